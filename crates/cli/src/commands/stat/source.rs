//! Reads what the program keeps.

use super::kept::Kept;
use super::model::{Group, Snapshot};
use crate::probing::Probed;
use crate::selection::Selected;
use capriole_ring::tables::TableReader;
use std::time::Duration;

/// What can be read of a program with probes that count.
#[derive(Debug)]
pub struct Source {
    reader: TableReader,
    /// What is kept of each definition, and its events that have a probe.
    groups: Vec<(Kept, Vec<usize>)>,
}

impl Source {
    /// Of the probes for these definitions.
    pub fn new(probed: &Probed, kept: Vec<Option<Kept>>) -> Source {
        let memory = &probed.attached.memory;
        // Of what only begins calls there is nothing to read.
        let mut groups: Vec<(Option<Kept>, Vec<usize>)> =
            kept.into_iter().map(|kept| (kept, Vec::new())).collect();
        // An event may have several sites.
        for (event, dropped) in probed.selected.iter().zip(&probed.dropped) {
            if dropped.is_none() {
                groups[event.definition].1.push(event.id as usize);
            }
        }
        for (_, events) in &mut groups {
            events.sort_unstable();
            events.dedup();
        }
        Source {
            reader: TableReader::new(memory.memory.clone(), memory.geometry),
            groups: groups
                .into_iter()
                .filter_map(|(kept, events)| Some((kept?, events)))
                .collect(),
        }
    }

    /// What there was at the start.
    pub fn nothing(&self) -> Snapshot {
        Snapshot {
            time: Duration::ZERO,
            groups: vec![Group::default(); self.groups.len()],
            lost: 0,
        }
    }

    /// What was found out until now, which is `time` after the start.
    pub fn read(&self, time: Duration, selected: &[Selected]) -> Snapshot {
        let groups = self.groups.iter();
        Snapshot {
            time,
            groups: groups
                .map(|(kept, events)| kept.read(&self.reader, selected, events))
                .collect(),
            lost: self.reader.lost(),
        }
    }
}
