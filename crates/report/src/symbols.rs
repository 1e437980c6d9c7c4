//! Names of addresses: from the functions with probes, or else from the names in the trace.

use capriole_trace::{EventInfo, Names, Trace};
use std::rc::Rc;
use std::sync::Arc;

/// Functions by address.
///
/// The trace has the addresses of its events, but not the sizes of functions. A function of the trace
/// covers the range from its first byte to its last probe; nothing is guessed beyond that. Other
/// addresses have the names that the recorder has noted.
pub(super) struct Symbols {
    /// Sorted by address, none inside another.
    known: Vec<Known>,
    /// Formats a name.
    make: Box<dyn Fn(&str) -> String>,
    names: Arc<Names>,
}

struct Known {
    first: u64,
    last: u64,
    name: Rc<str>,
}

/// A function's name, and an offset from its start.
type Named = (Rc<str>, u64);

impl Symbols {
    /// Prepares the names in a trace, as formatted by `make`.
    pub(super) fn of(trace: &Trace, make: impl Fn(&str) -> String + 'static) -> Symbols {
        let symbols = Symbols::of_events(&trace.document().events, make);
        Symbols {
            names: trace.names(),
            ..symbols
        }
    }

    fn of_events(events: &[EventInfo], make: impl Fn(&str) -> String + 'static) -> Symbols {
        let mut all: Vec<Known> = events
            .iter()
            .filter_map(|event| {
                Some(Known {
                    first: event.address.checked_sub(event.symbol_offset)?,
                    last: event.address,
                    name: make(event.symbol.as_deref()?).into(),
                })
            })
            .collect();
        // For each function, the last probe comes first.
        all.sort_by_key(|known| (known.first, std::cmp::Reverse(known.last)));
        let mut known: Vec<Known> = Vec::with_capacity(all.len());
        for next in all {
            if known.last().is_none_or(|last| last.last < next.first) {
                known.push(next);
            }
        }
        Symbols {
            known,
            make: Box::new(make),
            names: Arc::default(),
        }
    }

    /// Returns the function that contains an address, and the offset of the address from its start.
    pub(super) fn find(&self, address: u64) -> Option<Named> {
        self.probed(address).or_else(|| {
            let function = self.names.get(address)?.functions.last()?;
            let name = (self.make)(function.name.as_deref()?);
            Some((name.into(), function.offset?))
        })
    }

    /// Finds the function among those that have probes.
    fn probed(&self, address: u64) -> Option<Named> {
        let at = self.known.partition_point(|known| known.first <= address);
        let known = &self.known[at.checked_sub(1)?];
        (address <= known.last).then(|| (Rc::clone(&known.name), address - known.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(events: &[(&str, u64, u64)]) -> Symbols {
        let events = events.iter().map(|(name, address, offset)| {
            let mut event = crate::fixtures::event(0, &[]);
            event.symbol = (!name.is_empty()).then(|| name.to_string());
            (event.address, event.symbol_offset) = (*address, *offset);
            event
        });
        Symbols::of_events(&events.collect::<Vec<_>>(), str::to_string)
    }

    #[test]
    fn only_what_is_between_a_function_and_its_last_probe_has_a_name() {
        let symbols = known(&[
            ("open", 0x1000, 0),
            ("open", 0x1010, 0x10),
            ("read", 0x2000, 0),
            ("__read", 0x2000, 0),
            ("", 0x3000, 0),
            ("broken", 5, 6),
        ]);
        for (address, found) in [
            (0, None),
            (0xfff, None),
            (0x1000, Some(("open", 0))),
            (0x1008, Some(("open", 8))),
            (0x1010, Some(("open", 0x10))),
            (0x1011, None),
            (0x2000, Some(("read", 0))),
            (0x2001, None),
            (0x3000, None),
            (u64::MAX, None),
        ] {
            let named = symbols.find(address);
            let named = named.as_ref().map(|(name, offset)| (&**name, *offset));
            assert_eq!(named, found, "{address:#x}");
        }
        assert_eq!(known(&[]).find(0), None);
    }
}
