//! The requested probes of a session, and the places that they share.
//!
//! ```text
//! probe 0 ─┐
//! probe 3 ─┴─ place: entries {0}, {0, 3}, {3}     one of them at most is written
//! probe 1 ─── place: entry {1}
//! ```
//!
//! A place is a patch of the program's bytes: a site, or a region with several sites. Each of its
//! entries is a detour with the work of some of its probes. All of them have the shape of the place,
//! so they change the same bytes, and one can replace another within one stop.

use super::indexes::Functions;
use super::round::Entry;
use super::{Probe, SiteError};
use crate::guards::{uses, uses_any};
use crate::ranges::Ranges;
use capriole_proc::maps::PAGE_SIZE;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A requested probe.
#[derive(Debug)]
pub(super) struct AskedProbe {
    /// The probe, with its own work.
    pub(super) probe: Probe,
    /// Its place, or the reason why it has none.
    pub(super) place: Result<usize, SiteError>,
    /// True if its work is to be done.
    pub(super) armed: bool,
}

/// A patch of the program's bytes.
#[derive(Debug)]
pub(super) struct Place {
    /// The probes there, in the order of their work.
    pub(super) members: Vec<usize>,
    /// The entries there.
    pub(super) variants: Vec<usize>,
    /// The entry that is written, or is to be written next, or was written last.
    pub(super) current: Option<usize>,
    /// True if a guard of Capriole's own is a part of the patch.
    pub(super) guard: bool,
}

/// The requested probes and their places.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) probes: Vec<AskedProbe>,
    pub(super) places: Vec<Place>,
    /// Places by the addresses of their instructions, those that were made first in front.
    by_instruction: BTreeMap<u64, Vec<usize>>,
    /// Places by the bytes that they use.
    by_bytes: Ranges,
    functions: Functions,
}

impl Asked {
    /// Makes a place of each probe of an attach; its entry has the same number.
    pub(super) fn of(probes: Vec<Probe>, entries: &mut [Entry], guards: &[usize]) -> Asked {
        let guards: BTreeSet<usize> = guards.iter().copied().collect();
        let mut asked = Asked::default();
        for (index, probe) in probes.into_iter().enumerate() {
            entries[index].place = Some(index);
            entries[index].members = vec![index];
            asked.open(&probe);
            let place = &mut asked.places[index];
            place.variants.push(index);
            place.current = Some(index);
            place.guard = guards.contains(&index);
            for point in &probe.points {
                asked.functions.add(index, point);
            }
            asked.add(probe, Ok(index));
            asked.probes[index].armed = true;
        }
        asked
    }

    /// Adds a probe that is not armed, with its place.
    pub(super) fn add(&mut self, probe: Probe, place: Result<usize, SiteError>) {
        if let Ok(place) = place {
            self.places[place].members.push(self.probes.len());
        }
        self.probes.push(AskedProbe {
            probe,
            place,
            armed: false,
        });
    }

    /// Makes a place for a probe, which is then to be its first member.
    fn open(&mut self, probe: &Probe) -> usize {
        let place = self.places.len();
        let instructions: BTreeSet<u64> = instructions(probe).collect();
        for instruction in instructions {
            self.by_instruction
                .entry(instruction)
                .or_default()
                .push(place);
        }
        for bytes in uses(probe) {
            self.by_bytes.insert(bytes, place);
        }
        self.places.push(Place {
            members: Vec::new(),
            variants: Vec::new(),
            current: None,
            guard: false,
        });
        place
    }

    /// Returns the probe whose shape is that of a place.
    pub(super) fn model(&self, place: usize) -> &Probe {
        &self.probes[self.places[place].members[0]].probe
    }

    /// Returns the place that has all points of a probe among its instructions.
    fn with_points(&self, probe: &Probe, before: usize) -> Option<usize> {
        let first = self.by_instruction.get(&probe.points.first()?.site)?;
        first.iter().copied().find(|place| {
            let model = self.model(*place);
            // A place of an earlier addition that failed was never there.
            let is_there = *place >= before || self.places[*place].current.is_some();
            let has = |site: u64| instructions(model).any(|at| at == site);
            is_there && model.near == probe.near && probe.points.iter().all(|p| has(p.site))
        })
    }

    /// Finds or makes the place of a further probe. `guards` are the bytes that guards use, and
    /// `before` the number of places before the probes of this addition, which were planned
    /// together.
    pub(super) fn place(
        &mut self,
        probe: &Probe,
        guards: &[Range<u64>],
        entries: &[Entry],
        before: usize,
    ) -> Result<usize, SiteError> {
        if uses_any(probe, guards) {
            return Err(SiteError::Guarded);
        }
        if let Some(place) = self.with_points(probe, before) {
            if self.places[place].guard {
                return Err(SiteError::Guarded);
            }
            if let Some(Err(error)) = self.places[place].current.map(|c| &entries[c].made) {
                return Err(error.clone());
            }
            return match self.can_switch(place) {
                true => Ok(place),
                false => Err(SiteError::Shared),
            };
        }
        // The one place that the probe's jump may share bytes with: the jump that it builds on.
        let builds_on = probe.shape.placed.iter().find_map(|p| p.builds_on.as_ref());
        let is_base = |model: &Probe| {
            let mut writes = model.shape.placed.iter().flat_map(|p| &p.writes);
            builds_on.is_some_and(|(at, bytes)| {
                writes.any(|write| write.address == *at && write.after.starts_with(bytes))
            })
        };
        let meeting: BTreeSet<usize> = uses(probe)
            .flat_map(|bytes| self.by_bytes.meeting(bytes))
            .map(|(_, place)| place)
            .filter(|place| *place < before)
            .collect();
        for place in meeting {
            let current = self.places[place].current.map(|c| &entries[c].made);
            // A place where nothing was ever written has no bytes.
            if !matches!(current, Some(Ok(_))) {
                continue;
            }
            let model = self.model(place);
            let near = model.near.start < probe.near.end && probe.near.start < model.near.end;
            if near && !is_base(model) {
                return Err(SiteError::Shared);
            }
        }
        Ok(self.open(probe))
    }

    /// True if one entry of a place can replace another. The stubs, which lead to the detour, must
    /// each lie in one page: the tracer may be killed between two writes, and half of a stub leads
    /// astray.
    pub(super) fn can_switch(&self, place: usize) -> bool {
        let mut stubs = self.model(place).shape.placed.iter().flat_map(|p| &p.stubs);
        stubs.all(|stub| stub.address / PAGE_SIZE == (stub.address + stub.size - 1) / PAGE_SIZE)
    }

    /// Makes the probe that does the work of some probes of a place.
    pub(super) fn union(&self, place: usize, members: &[usize]) -> Probe {
        let model = self.model(place);
        let mut union = Probe {
            points: Vec::new(),
            counters: Vec::new(),
            ..model.clone()
        };
        for member in members {
            let probe = &self.probes[*member].probe;
            for point in &probe.points {
                let own = union.point(point);
                own.work.extend(point.work.iter().cloned());
                own.after.extend(point.after.iter().cloned());
                own.returns.extend(point.returns.iter().cloned());
                own.live.gprs = own.live.gprs | point.live.gprs;
                own.live.flags |= point.live.flags;
                own.at_entry &= point.at_entry;
            }
            union.counters.extend(&probe.counters);
        }
        union
    }

    /// Has all probes of functions keep the registers that any probe there reads, see
    /// [`keep_what_is_read`](super::keep_what_is_read). Returns the places whose armed probes have
    /// to keep more than before.
    ///
    /// Only the probes from `first` on are new; if none of them reads a register, nothing changes
    /// for the others.
    pub(super) fn keep_what_is_read(&mut self, first: usize) -> BTreeSet<usize> {
        let mut grown = BTreeSet::new();
        for (index, asked) in self.probes.iter().enumerate().skip(first) {
            if asked.place.is_ok() {
                for point in &asked.probe.points {
                    let more = self.functions.add(index, point);
                    grown.extend(more);
                }
            }
        }
        let new = first..self.probes.len();
        let probes = grown
            .iter()
            .flat_map(|function| self.functions.probes(*function));
        let affected: BTreeSet<usize> = probes.copied().chain(new).collect();
        let mut stale = BTreeSet::new();
        for index in affected {
            let asked = &mut self.probes[index];
            let Ok(place) = asked.place else { continue };
            for point in &mut asked.probe.points {
                let kept = point.live.gprs | self.functions.reads(point.function);
                if kept != point.live.gprs {
                    point.live.gprs = kept;
                    if index < first && asked.armed {
                        stale.insert(place);
                    }
                }
            }
        }
        stale
    }
}

/// Returns the addresses of the instructions at which a probe's place can have points.
fn instructions(probe: &Probe) -> impl Iterator<Item = u64> {
    let displaced = probe.shape.displaced.iter();
    std::iter::once(probe.shape.site).chain(displaced.map(iced_x86::Instruction::ip))
}

impl Entry {
    /// True if the entry keeps the registers that its probes have to keep now.
    pub(super) fn keeps(&self, union: &Probe) -> bool {
        union.points.iter().all(|point| {
            let kept = self.kept.iter().find(|(site, _)| *site == point.site);
            kept.is_none_or(|(_, kept)| *kept | point.live.gprs == *kept)
        })
    }
}
