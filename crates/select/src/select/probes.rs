//! From plans to probes: several events at an address share one.

use super::fate::Fate;
use super::selected::Selected;
use capriole_codegen::work::Work;
use capriole_patch::attach::{Point, Probe};
use std::collections::BTreeMap;

/// Probes to be inserted.
#[derive(Debug)]
pub struct Probes {
    /// Each probe with the indices of the events that it serves. All events at an address share one
    /// probe, as do several addresses covered by one jump.
    pub probes: Vec<(Probe, Vec<usize>)>,
    /// Events whose bytes overlap another event's probe, each with that other event, whose probe
    /// stays.
    pub overlapping: Vec<(usize, usize)>,
}

/// Builds the probes for all sites that can be probed; `works` has the work for each event.
pub fn probes(selected: &[Selected], works: Vec<Vec<Work>>) -> Probes {
    let mut by_address: BTreeMap<(u64, u64), (Probe, Vec<usize>)> = BTreeMap::new();
    let mut all: Vec<_> = selected.iter().zip(works).enumerate().collect();
    all.sort_by_key(|(_, (event, _))| event.order_at_instruction());
    for (index, (event, work)) in all {
        let Fate::Planned(plan) = &event.fate else {
            continue;
        };
        // Several sites under one jump cover the same bytes.
        let covered = plan.shape.covered;
        let (probe, events) = by_address
            .entry((covered.start, covered.end))
            .or_insert_with(|| {
                let near = event.site.object.range();
                (Probe::new(plan.clone(), near), Vec::new())
            });
        let (work, returns) = part(event, work);
        let point = probe.point(&Point::of(&plan.shape));
        let is_after = |work: &Work| matches!(work, Work::Handler(handler) if handler.after);
        let (after, work): (Vec<Work>, Vec<Work>) = work.into_iter().partition(is_after);
        point.work.extend(work);
        point.after.extend(after);
        point.returns.extend(returns);
        probe.counters.extend(event.counter);
        events.push(index);
    }
    let mut result = Probes {
        probes: Vec::new(),
        overlapping: Vec::new(),
    };
    for (probe, events) in by_address.into_values() {
        match result.probes.last() {
            Some((last, others)) if last.shape.covered.end > probe.shape.covered.start => {
                let other = others[0];
                result
                    .overlapping
                    .extend(events.iter().map(|event| (*event, other)));
            }
            _ => result.probes.push((probe, events)),
        }
    }
    result
}

/// Splits the work of an event into the part at the site and the part at the function's return.
fn part(event: &Selected, work: Vec<Work>) -> (Vec<Work>, Vec<Work>) {
    match event.part.is_followed() {
        true => (Vec::new(), work),
        false => (work, Vec::new()),
    }
}
