//! Which events are the two sides of which functions.

use std::collections::{HashMap, HashSet};

use crate::document::{EventInfo, Role};
use crate::reader::Event;
use crate::value::Value;

/// The field with the stack pointer at the site.
const STACK_POINTER: &str = "_sp";

/// The functions of which a trace has entries and exits.
///
/// A function is known by its name here: what has the same name in several objects, or is
/// there in several copies, is one row of a table. Entries and exits are paired by
/// [`EventInfo::call`] nevertheless.
#[derive(Debug, Clone)]
pub struct Functions {
    names: Vec<String>,
    /// By the event's place in `Document::events`.
    parts: Vec<Part>,
}

/// What an event is for pairing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Nothing.
    Point,
    /// The beginning of a call.
    Entry(Site),
    /// Its end, by a tail call or by a return.
    Exit { site: Site, tail: bool },
}

/// The function that an entry or an exit is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    /// Counts the different `EventInfo::call`.
    pub(super) pair: u32,
    /// The place of the function's name.
    pub(super) function: u32,
    /// Which field is the stack pointer, if there is one.
    stack_pointer: Option<u32>,
}

impl Functions {
    /// Finds the functions that have an entry and an exit among a trace's events.
    pub fn of(events: &[EventInfo]) -> Functions {
        let calls_of = |wanted: fn(Role) -> bool| -> HashSet<u32> {
            let events = events.iter().filter(|event| wanted(event.role));
            events.filter_map(|event| event.call).collect()
        };
        let entered = calls_of(|role| role == Role::Entry);
        let left = calls_of(|role| matches!(role, Role::Return | Role::TailCall));
        let mut functions = Functions {
            names: Vec::new(),
            parts: vec![Part::Point; events.len()],
        };
        let mut by_name: HashMap<&str, u32> = HashMap::new();
        // By call: its number, and its function's.
        let mut pairs: HashMap<u32, (u32, u32)> = HashMap::new();
        for (event, part) in events.iter().zip(&mut functions.parts) {
            let Some(call) = event.call else { continue };
            if event.role != Role::Entry || !left.contains(&call) {
                continue;
            }
            let number = pairs.len() as u32;
            let pair = pairs.entry(call).or_insert_with(|| {
                let function = *by_name.entry(&event.name).or_insert_with(|| {
                    functions.names.push(event.name.clone());
                    functions.names.len() as u32 - 1
                });
                (number, function)
            });
            *part = Part::Entry(Site::new(*pair, event));
        }
        for (event, part) in events.iter().zip(&mut functions.parts) {
            let Some(call) = event.call.filter(|call| entered.contains(call)) else {
                continue;
            };
            let tail = match event.role {
                Role::Return => false,
                Role::TailCall => true,
                Role::Point | Role::Entry => continue,
            };
            if let Some(pair) = pairs.get(&call) {
                let site = Site::new(*pair, event);
                *part = Part::Exit { site, tail };
            }
        }
        functions
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the stack pointer was recorded at an entry and at an exit, as it is where calls are
    /// what is recorded.
    pub fn have_stack_pointers(&self) -> bool {
        let parts = || self.parts.iter();
        let entry = |part: &Part| matches!(part, Part::Entry(s) if s.stack_pointer.is_some());
        let exit =
            |part: &Part| matches!(part, Part::Exit { site, .. } if site.stack_pointer.is_some());
        parts().any(entry) && parts().any(exit)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Their names, all different, as the entry events have them.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    #[inline]
    pub(super) fn part(&self, event: usize) -> Part {
        self.parts[event]
    }
}

impl Site {
    fn new((pair, function): (u32, u32), event: &EventInfo) -> Site {
        let mut fields = event.fields.iter();
        let at = fields.position(|field| field.name == STACK_POINTER);
        Site {
            pair,
            function,
            stack_pointer: at.map(|at| at as u32),
        }
    }

    /// The stack pointer that an event of this site recorded.
    #[inline]
    pub(super) fn stack_pointer(&self, event: &Event<'_>) -> Option<u64> {
        match event.fields().nth(self.stack_pointer? as usize)? {
            Value::Hexadecimal(value) | Value::Unsigned(value) | Value::Symbol(value) => {
                Some(value)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u32, name: &str, role: Role, call: Option<u32>) -> EventInfo {
        let mut event = crate::record::tests::event(id, &["x64"], false);
        event.fields[0].name = "_sp".to_string();
        event.name = name.to_string();
        (event.role, event.call) = (role, call);
        event
    }

    #[test]
    fn a_function_has_an_entry_and_an_exit() {
        let functions = Functions::of(&[
            event(3, "f__return", Role::Return, Some(1)),
            event(1, "f", Role::Entry, Some(1)),
            event(2, "f__tail", Role::TailCall, Some(1)),
            event(4, "only entered", Role::Entry, Some(4)),
            event(5, "only left", Role::Return, Some(5)),
            event(6, "no call", Role::Entry, None),
            event(7, "point", Role::Point, Some(1)),
            event(8, "f", Role::Entry, Some(8)),
            event(9, "f__return", Role::Return, Some(8)),
        ]);
        assert_eq!(functions.names(), ["f"]);
        assert!(functions.have_stack_pointers());
        let parts: Vec<_> = (0..9)
            .map(|event| match functions.part(event) {
                Part::Point => "point".to_string(),
                Part::Entry(site) => format!("entry {}", site.pair),
                Part::Exit { site, tail } => format!("exit {} {tail}", site.pair),
            })
            .collect();
        assert_eq!(
            parts,
            [
                "exit 0 false",
                "entry 0",
                "exit 0 true",
                "point",
                "point",
                "point",
                "point",
                "entry 1",
                "exit 1 false"
            ]
        );
        assert!(Functions::of(&[]).is_empty());
        assert!(!Functions::of(&[]).have_stack_pointers());
    }
}
