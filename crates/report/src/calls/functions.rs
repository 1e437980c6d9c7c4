//! Maps a trace's events to the functions whose entries and exits they record.

use std::collections::{HashMap, HashSet};

use crate::shown::names_apart;
use capriole_trace::Event;
use capriole_trace::Value;
use capriole_trace::{EventInfo, Role};

/// The field with the stack pointer at the site.
const STACK_POINTER: &str = "_sp";
/// The field with the address of the goroutine (`runtime.g`).
const GOROUTINE: &str = "_g";
/// The field of an exit event with the ticks since the entry; such a call has no entry event.
const DURATION: &str = "_duration";
/// The field with the result of a call.
const RESULT: &str = "ret";

/// The functions for which a trace has both entries and exits.
///
/// A function is identified by its name here: functions with the same name in several objects share one
/// table row. Those of one object are told apart by their places. Entries and exits are still paired by
/// [`EventInfo::call`].
#[derive(Debug, Clone)]
pub struct Functions {
    names: Vec<String>,
    /// Indexed like `Document::events`.
    parts: Vec<Part>,
    /// Indexed likewise; set for events that record a whole call. For each field: true if it was
    /// recorded at the entry.
    arguments: Vec<Option<Vec<bool>>>,
}

/// Role of an event in call pairing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// No role.
    Point,
    /// Entry: the call begins.
    Entry(Site),
    /// Exit: the call ends, by a tail call or a return.
    Exit { site: Site, tail: bool },
    /// A whole call: this is its exit, and the field `duration` holds how long it took.
    Whole {
        site: Site,
        tail: bool,
        duration: u32,
    },
}

/// One end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The entry.
    Entry,
    /// The exit; also used for events unrelated to calls.
    Exit,
}

/// The function and call that an entry or exit event belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    /// Dense index of `EventInfo::call`.
    pub(super) pair: u32,
    /// Index of the function's name.
    pub(super) function: u32,
    /// Index of the stack pointer field, if there is one.
    stack_pointer: Option<u32>,
    /// Index of the goroutine field, if there is one.
    goroutine: Option<u32>,
}

impl Functions {
    /// Finds the functions in a trace's events that have both an entry and an exit.
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
            arguments: vec![None; events.len()],
        };
        // Calls recorded as a whole, with the names of the fields of their entries.
        let mut whole: HashMap<u32, HashSet<&str>> = HashMap::new();
        for event in events {
            if let (Some(call), Some(_)) = (event.call, duration(event)) {
                whole.entry(call).or_default();
            }
        }
        for event in events.iter().filter(|event| event.role == Role::Entry) {
            let fields = event.call.and_then(|call| whole.get_mut(&call));
            let names = event.fields.iter().map(|field| field.name.as_str());
            fields
                .into_iter()
                .for_each(|fields| fields.extend(names.clone()));
        }
        let names = names_apart(events);
        let mut by_name: HashMap<&str, u32> = HashMap::new();
        // By call: its own index, and its function's.
        let mut pairs: HashMap<u32, (u32, u32)> = HashMap::new();
        for ((event, name), part) in events.iter().zip(&names).zip(&mut functions.parts) {
            let Some(call) = event.call else { continue };
            if event.role != Role::Entry || !left.contains(&call) {
                continue;
            }
            let number = pairs.len() as u32;
            let pair = pairs.entry(call).or_insert_with(|| {
                let function = *by_name.entry(name).or_insert_with(|| {
                    functions.names.push(name.clone());
                    functions.names.len() as u32 - 1
                });
                (number, function)
            });
            if !whole.contains_key(&call) {
                *part = Part::Entry(Site::new(*pair, event));
            }
        }
        let parts = functions.parts.iter_mut().zip(&mut functions.arguments);
        for (event, (part, arguments)) in events.iter().zip(parts) {
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
                *part = match duration(event) {
                    Some(duration) => Part::Whole {
                        site,
                        tail,
                        duration,
                    },
                    // Another event at an exit of a whole-call function.
                    None if whole.contains_key(&call) => Part::Point,
                    None => Part::Exit { site, tail },
                };
                if matches!(part, Part::Whole { .. })
                    && let Some(of_entry) = whole.get(&call)
                {
                    let fields = event.fields.iter();
                    // A field that is read at the exit, such as a text, is not among those of the entry.
                    let belongs = fields.map(|field| {
                        field.name != RESULT || of_entry.contains(field.name.as_str())
                    });
                    *arguments = Some(belongs.collect());
                }
            }
        }
        functions
    }

    /// True if there are no functions.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// True if the stack pointer was recorded at both an entry and an exit, as it is in every trace
    /// of calls.
    pub fn have_stack_pointers(&self) -> bool {
        let parts = || self.parts.iter();
        let has = |site: &Site| site.stack_pointer.is_some();
        let whole = |part: &Part| matches!(part, Part::Whole { site, .. } if has(site));
        let entry = |part: &Part| matches!(part, Part::Entry(site) if has(site));
        let exit = |part: &Part| matches!(part, Part::Exit { site, .. } if has(site));
        parts().any(entry) && parts().any(exit) || parts().any(whole)
    }

    /// True if some or all calls were recorded at their exits only, and only those that took long enough.
    pub(crate) fn have_whole(&self) -> bool {
        let whole = |part: &Part| matches!(part, Part::Whole { .. });
        self.parts.iter().any(whole)
    }

    /// True if some calls were recorded at exits only and others at both ends.
    pub(super) fn have_both(&self) -> bool {
        let entry = |part: &Part| matches!(part, Part::Entry(_));
        self.have_whole() && self.parts.iter().any(entry)
    }

    /// Returns a trace's events as a report shows them at the start or at the end of a call: for
    /// whole-call events, the fields that belong to the other side are hidden.
    pub(crate) fn side(&self, events: &[EventInfo], side: Side) -> Vec<EventInfo> {
        let mut events = events.to_vec();
        for (event, arguments) in events.iter_mut().zip(&self.arguments) {
            let Some(arguments) = arguments else { continue };
            for (field, argument) in event.fields.iter_mut().zip(arguments) {
                if *argument != (side == Side::Entry) && !field.name.starts_with('_') {
                    field.name.insert(0, '_');
                }
            }
        }
        events
    }

    /// Returns the function names, all different, as in the entry events.
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
        Site {
            pair,
            function,
            stack_pointer: field(event, STACK_POINTER),
            goroutine: field(event, GOROUTINE),
        }
    }

    /// Returns the stack pointer recorded by an event of this site.
    #[inline]
    pub(super) fn stack_pointer(&self, event: &Event<'_>) -> Option<u64> {
        self.number(event, self.stack_pointer)
    }

    /// Returns the goroutine and the stack pointer, if both were recorded.
    #[inline]
    pub(super) fn in_goroutine(&self, event: &Event<'_>) -> Option<(u64, u64)> {
        let goroutine = self.number(event, self.goroutine)?;
        Some((goroutine, self.stack_pointer(event)?))
    }

    /// Returns the number in a field of an event of this site.
    #[inline]
    pub(super) fn number(&self, event: &Event<'_>, field: Option<u32>) -> Option<u64> {
        match event.fields().nth(field? as usize)? {
            Value::Hexadecimal(value) | Value::Unsigned(value) | Value::Symbol(value) => {
                Some(value)
            }
            _ => None,
        }
    }
}

/// Returns the index of an exit event's duration field.
fn duration(event: &EventInfo) -> Option<u32> {
    let is_exit = matches!(event.role, Role::Return | Role::TailCall);
    field(event, DURATION).filter(|_| is_exit)
}

/// Returns the index of a field.
fn field(event: &EventInfo, name: &str) -> Option<u32> {
    let at = event.fields.iter().position(|field| field.name == name);
    at.map(|at| at as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u32, name: &str, role: Role, call: Option<u32>) -> EventInfo {
        let mut event = crate::fixtures::event(id, &["x64"]);
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
                Part::Whole { site, .. } => format!("whole {}", site.pair),
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
