//! Numbers of events.

use super::places::leaves;
use crate::fields::Fields;
use capriole_insn::ExitKind;
use capriole_planner::resolve::Site;
use capriole_trace::{FieldInfo, TextFormat};
use std::collections::HashMap;

/// Assigns the numbers of events. The sites of one event share its number.
pub(super) struct Numbers {
    /// Number of the next site.
    next: u32,
    /// Numbers of events at exits: by part, function, and kind of exit.
    exits: HashMap<(usize, u64, ExitKind), u32>,
    /// Numbers of events at markers.
    markers: HashMap<(usize, String, Layout), u32>,
}

impl Numbers {
    pub(super) fn new(first: u32) -> Numbers {
        Numbers {
            next: first,
            exits: HashMap::new(),
            markers: HashMap::new(),
        }
    }

    /// Returns the number of the event at the next site.
    pub(super) fn of(&mut self, part: usize, site: &Site, fields: &Fields) -> u32 {
        let next = self.next;
        self.next += 1;
        match (&site.leaving, leaves(site), &site.marker) {
            (Some(leaving), Some(kind), _) => {
                let exit = (part, leaving.function, kind);
                *self.exits.entry(exit).or_insert(next)
            }
            (_, _, Some(marker)) => {
                let marker = (part, marker.full_name(), layout(fields));
                *self.markers.entry(marker).or_insert(next)
            }
            _ => next,
        }
    }
}

/// Layout of an event's records, its text format, and whether it can fault: places of a marker for
/// which all this is equal are one event.
type Layout = (Vec<Vec<FieldInfo>>, Option<TextFormat>, bool);

fn layout(fields: &Fields) -> Layout {
    (
        fields.all().map(|of| of.infos.clone()).collect(),
        fields.format.clone(),
        fields.fetch.can_fault(),
    )
}
