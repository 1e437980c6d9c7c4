//! Reads the tables that the program keeps.

use super::counting::counted;
use super::model::{Group, Snapshot};
use super::table::AggregateTable;
use crate::plan::Probed;
use crate::select::Selected;
use capriole_ring::tables::TableReader;
use std::time::Duration;

/// The tables of a program with counting probes.
#[derive(Debug)]
pub struct Source {
    reader: TableReader,
    /// For each definition its table, and its events that have a probe.
    groups: Vec<(AggregateTable, Vec<usize>)>,
}

impl Source {
    /// Creates the source for the probes of these definitions.
    pub fn new(probed: &Probed, kept: Vec<Option<AggregateTable>>) -> Source {
        let memory = &probed.attached.memory;
        let counted = counted(kept.len(), &probed.selected, &probed.dropped);
        Source {
            reader: TableReader::new(memory.memory.clone(), memory.geometry),
            groups: kept
                .into_iter()
                .zip(counted)
                .filter_map(|(kept, events)| Some((kept?, events)))
                .collect(),
        }
    }

    /// Returns the snapshot at the start: all empty.
    pub fn nothing(&self) -> Snapshot {
        Snapshot {
            time: Duration::ZERO,
            groups: vec![Group::default(); self.groups.len()],
            lost: 0,
        }
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
