//! Counting: from definitions to probes that update tables.

use super::AggregateTable;
use crate::calls;
use crate::definitions::{InFile, in_file};
use crate::entry::with_companion;
use crate::error::{Context, Result, err};
use crate::fields::{Fields, Purpose};
use crate::machine;
use crate::options::{ProbeOptions, clock};
use crate::plan::{Planned, Probed, Request};
use crate::returns::Returns;
use crate::select::{self, Mode, Selected};
use capriole_codegen::detour::Work;
use capriole_event::EventSpec;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_ring::tables::Tables;
use capriole_trace::clock::Clock;
use std::path::PathBuf;

/// An event, and the purpose of its hits.
pub struct Definition {
    /// The event.
    pub spec: EventSpec,
    /// Purpose of its hits.
    pub hits: Hits,
}

/// Purpose of the hits of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hits {
    /// Hits are counted and aggregated.
    Kept,
    /// Hits end calls: also counted and aggregated, with the duration of the call.
    Exits,
    /// Hits begin calls that are timed, or that keep values for their exits.
    Entries,
}

impl Definition {
    /// Returns the definition of an event, preceded by one for its entry if values are kept there.
    pub fn kept(spec: EventSpec) -> impl Iterator<Item = Definition> {
        with_companion(spec).map(|spec| {
            let hits = match spec.keeps {
                Some(_) => Hits::Entries,
                None => Hits::Kept,
            };
            Definition { spec, hits }
        })
    }

    /// Returns the definitions of the entry and the exits of timed calls.
    pub fn timed([entry, exit]: [EventSpec; 2]) -> [Definition; 2] {
        let parts = [(entry, Hits::Entries), (exit, Hits::Exits)];
        parts.map(|(spec, hits)| Definition { spec, hits })
    }
}

/// Parses events, and those of definition files.
///
/// # Errors
/// An event cannot be parsed.
pub fn definitions(events: &[String], files: &[PathBuf]) -> Result<Vec<Definition>> {
    let mut definitions = Vec::new();
    for text in events {
        match calls::latency(text)? {
            Some(both) => definitions.extend(Definition::timed(both)),
            None => definitions.extend(Definition::kept(EventSpec::parse(text)?)),
        }
    }
    for file in files {
        let InFile { events, latencies } = in_file(file)?;
        let mut all: Vec<(usize, Definition)> = Vec::new();
        for (line, text) in latencies {
            let both = calls::latency(&text);
            let both = both.with_context(|| format!("{}: line {line}", file.display()))?;
            let both = both.into_iter().flat_map(Definition::timed);
            all.extend(both.map(|definition| (line, definition)));
        }
        let others = events.into_iter();
        all.extend(others.flat_map(|(line, spec)| Definition::kept(spec).map(move |d| (line, d))));
        all.sort_by_key(|(line, _)| *line);
        definitions.extend(all.into_iter().map(|(_, definition)| definition));
    }
    Ok(definitions)
}

/// Attaches counting probes; returns them with the table of each definition, if it has one.
///
/// # Errors
/// As [`Planned::new`] and [`Planned::attach`], or there is not enough room for the tables.
pub fn attach(
    process: &Process,
    definitions: &[Definition],
    options: &ProbeOptions,
    returns: Returns,
    keys: u32,
) -> Result<(Probed, Vec<Option<AggregateTable>>)> {
    let events: Vec<EventSpec> = definitions.iter().map(|d| d.spec.clone()).collect();
    let timed = definitions.iter().any(|d| d.hits == Hits::Exits);
    let clock = match timed {
        true => Some(clock()?),
        false => None,
    };
    let mut all = Tables::default();
    let mut kept = Vec::new();
    let mut fetches = false;
    let request = Request {
        events: &events,
        options,
        mode: Mode::new(Purpose::Count, returns),
        messages: false,
    };
    let planned = Planned::new(process, &request, |selected| {
        kept = tables(definitions, selected, keys, clock.as_ref(), &mut all)?;
        let works = works(&events, selected, &kept);
        let plain = |work: &Work| matches!(work, Work::Count { .. });
        fetches = !works.iter().flatten().flatten().all(plain);
        Ok(works)
    })?;
    // Fetched values are assembled in packets; without fetches no packets are needed.
    let cpus = machine::possible_cpus();
    let frames = select::frames(&planned.selected);
    let probed = planned.attach(process, None, |journal| {
        let geometry = match fetches {
            true => Geometry::for_scratch(cpus, journal),
            false => Geometry::for_buffer(0, cpus, journal),
        };
        let geometry = geometry.with_tables(&all);
        match frames {
            Some((areas, words)) => geometry.with_frames(areas, words),
            None => geometry,
        }
    })?;
    Ok((probed, kept))
}

/// Makes the table of each definition; `None` for one that only begins calls, and for one without
/// a site.
///
/// # Errors
/// There is not enough room.
pub fn tables(
    definitions: &[Definition],
    selected: &[Selected],
    keys: u32,
    clock: Option<&Clock>,
    tables: &mut Tables,
) -> Result<Vec<Option<AggregateTable>>> {
    let mut all = Vec::new();
    for (definition, Definition { spec, hits }) in definitions.iter().enumerate() {
        let sites = selected.iter().filter(|e| e.definition == definition);
        // An event without a site was left out.
        let (first, last) = match (sites.clone().map(|e| e.id).min(), hits) {
            (None, _) | (_, Hits::Entries) => {
                all.push(None);
                continue;
            }
            (Some(first), _) => (first, sites.clone().map(|e| e.id).max().unwrap_or(first)),
        };
        let usable = sites.filter(|e| e.left_out.is_none());
        let fields: Vec<&Fields> = usable.map(|e| &*e.fields).collect();
        let made = AggregateTable::new(spec, &fields, first..last + 1, keys, tables)?;
        all.push(Some(match (hits, clock) {
            (Hits::Exits, Some(clock)) => made.timed(clock.clone()),
            _ => made,
        }));
    }
    Ok(all)
}

/// Returns the work of each site's probe, with the tables of [`tables`].
pub fn works(
    events: &[EventSpec],
    selected: &[Selected],
    kept: &[Option<AggregateTable>],
) -> Vec<Result<Vec<Work>>> {
    let work = |event: &Selected| {
        if event.left_out.is_some() {
            return Ok(Vec::new());
        }
        let works = match &kept[event.definition] {
            Some(kept) => kept.work(event.id, &event.fields),
            None => enter(event),
        };
        works.with_context(|| format!("event `{}`", events[event.definition].text))
    };
    selected.iter().map(work).collect()
}

/// Returns the work that begins calls at their entry.
fn enter(event: &Selected) -> Result<Vec<Work>> {
    let work = event.fields.fetch.enter(event.call());
    Ok(vec![work.map_err(|error| err!(Field, "{error}"))?])
}
