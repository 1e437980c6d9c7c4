//! Reads the tables that the program keeps.

use super::maps::{counted, entered};
use super::model::{Group, Snapshot, by_event};
use super::table::AggregateTable;
use crate::plan::Probed;
use capriole_ring::tables::TableReader;
use capriole_select::select::Selected;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The tables of a program with counting probes.
#[derive(Debug)]
pub struct Source {
    reader: TableReader,
    /// For each definition its table, and its events that have a probe.
    groups: Vec<(AggregateTable, Vec<usize>)>,
    /// The tables that count entries of calls, with the events at the entries.
    entries: Vec<(AggregateTable, Vec<usize>)>,
}

impl Source {
    /// Creates the source for these probes, and takes their tables.
    pub fn new(probed: &mut Probed) -> Source {
        let memory = &probed.attached.memory;
        Source {
            reader: TableReader::new(memory.memory.clone(), memory.geometry),
            entries: entered(&mut probed.own, &probed.selected),
            groups: counted(
                std::mem::take(&mut probed.own),
                &probed.selected,
                &probed.dropped,
            ),
        }
    }

    /// Returns the step of the clock in ns, if calls are timed.
    pub fn clock_step_ns(&self) -> Option<u64> {
        let groups = self.groups.iter();
        groups.filter_map(|(kept, _)| kept.clock_step_ns()).max()
    }

    /// Number of hits that were counted, modulo 2^64.
    pub fn hits(&self) -> u64 {
        let hits = self.groups.iter().map(|(kept, _)| kept.hits(&self.reader));
        hits.fold(0, u64::wrapping_add)
    }

    /// Returns the snapshot at the start: all empty.
    pub fn nothing(&self) -> Snapshot {
        Snapshot {
            time: Duration::ZERO,
            groups: vec![Group::default(); self.groups.len()],
            lost: 0,
        }
    }

    /// Returns how often each function was entered, for events at its exits for which that is counted:
    /// by the event's number. Filters at the entry have already rejected what they reject.
    pub fn entries(&self, selected: &[Selected]) -> BTreeMap<usize, u64> {
        let mut entries: BTreeMap<usize, u64> = BTreeMap::new();
        for (table, events) in &self.entries {
            for (event, calls) in by_event(&[table.read(&self.reader, (selected, 0), events)]) {
                let entry = &selected[event];
                let ends = selected.iter().filter(|other| {
                    other.definition == entry.definition
                        && other.site.function() == entry.site.function()
                        && !other.part.begins_calls()
                });
                let ends: BTreeSet<u32> = ends.map(|event| event.id).collect();
                for end in ends {
                    let sum = entries.entry(end as usize).or_default();
                    *sum = sum.wrapping_add(calls);
                }
            }
        }
        entries
    }

    /// Reads all results until now, which is `time` after the start.
    pub fn read(&self, time: Duration, selected: &[Selected]) -> Snapshot {
        let groups = self.groups.iter();
        Snapshot {
            time,
            groups: groups
                .map(|(kept, events)| kept.read(&self.reader, (selected, 0), events))
                .collect(),
            lost: self.reader.lost(),
        }
    }
}
