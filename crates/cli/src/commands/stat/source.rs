//! Reads what the program keeps.

use super::model::{Group, Row, Snapshot};
use crate::probing::Probed;
use capriole_ring::Counters;
use std::time::Duration;

/// What can be read of a program with probes that count.
#[derive(Debug)]
pub struct Source {
    counters: Counters,
    /// The events of each definition that have a probe.
    groups: Vec<Vec<usize>>,
    room: Room,
}

/// How much of what depends on the program there is room for in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Keys in each event's table.
    pub keys: u32,
}

impl Source {
    /// Of the probes for so many definitions.
    pub fn new(probed: &Probed, definitions: usize, room: Room) -> Source {
        let memory = &probed.attached.memory;
        let mut groups = vec![Vec::new(); definitions];
        let events = probed.selected.iter().zip(&probed.dropped).enumerate();
        for (number, (event, dropped)) in events {
            if dropped.is_none() {
                groups[event.definition].push(number);
            }
        }
        Source {
            counters: Counters::new(memory.memory.clone(), memory.geometry),
            groups,
            room,
        }
    }

    /// What there was at the start.
    pub fn nothing(&self) -> Snapshot {
        Snapshot {
            time: Duration::ZERO,
            groups: vec![Group::default(); self.groups.len()],
        }
    }

    /// What was found out until now, which is `time` after the start.
    pub fn read(&self, time: Duration) -> Snapshot {
        let calls = self.counters.read();
        let row = |event: &usize| Row {
            event: *event,
            keys: Vec::new(),
            calls: calls[*event],
            unreadable: 0,
            measures: Vec::new(),
        };
        let group = |events: &Vec<usize>| Group {
            events: events.clone(),
            rows: events.iter().map(row).collect(),
            capacity: self.room.keys,
            ..Group::default()
        };
        Snapshot {
            time,
            groups: self.groups.iter().map(group).collect(),
        }
    }
}
