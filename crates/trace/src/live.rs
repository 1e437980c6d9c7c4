//! Decoding of records as they come out of session memory, without a trace directory.

use crate::document::EventInfo;
use crate::packet::{long, word};
use crate::record::{EventTable, RECORD_BYTES};
use crate::value::Fields;

/// A decoded record, borrowed from its packet.
#[derive(Debug, Clone)]
pub struct LiveRecord<'a> {
    /// Time in ticks of the time stamp counter.
    pub tsc: u64,
    /// The thread's id; 0 if unknown.
    pub tid: u32,
    /// Description of the event.
    pub info: &'a EventInfo,
    payload: &'a [u8],
}

impl<'a> LiveRecord<'a> {
    /// Returns the fields' values, in the order of `info.fields`.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        Fields::new(self.info, self.payload)
    }
}

/// Decodes the contents of packets. Nothing in them is trusted: bytes that are no record end the
/// packet.
#[derive(Debug, Default)]
pub struct LiveDecoder {
    /// By index in the table; `None` where an event was removed.
    events: Vec<Option<EventInfo>>,
    table: EventTable,
}

impl LiveDecoder {
    /// Creates a decoder that knows no event yet.
    #[must_use]
    pub fn new() -> LiveDecoder {
        LiveDecoder::default()
    }

    /// Adds an event. Returns false, and changes nothing, if there is one with its id.
    pub fn add(&mut self, event: EventInfo) -> bool {
        if self.table.index(event.id).is_some() {
            return false;
        }
        self.table.add(&event);
        let index = self.table.index(event.id).unwrap_or(self.events.len());
        match self.events.get_mut(index) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        true
    }

    /// Returns the events that it knows, by id.
    #[must_use]
    pub fn events(&self) -> Vec<EventInfo> {
        let mut events: Vec<EventInfo> = self.events.iter().flatten().cloned().collect();
        events.sort_by_key(|event| event.id);
        events
    }

    /// Removes the event with this id, whose records have all been decoded. Returns false if there
    /// is none.
    pub fn remove(&mut self, id: u32) -> bool {
        let removed = self.table.remove(id);
        removed.is_some_and(|index| self.events[index].take().is_some())
    }

    /// Passes each record of a packet to `each`, in the order in which they were written.
    pub fn packet(&self, content: &[u8], mut each: impl FnMut(LiveRecord<'_>)) {
        let mut rest = content;
        while !rest.is_empty() {
            let Ok((index, size)) = self.table.record(rest) else {
                return;
            };
            if let Some(info) = &self.events[index] {
                each(LiveRecord {
                    tsc: long(rest, 0),
                    tid: word(rest, 12),
                    info,
                    payload: &rest[RECORD_BYTES..size],
                });
            }
            rest = &rest[size..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::event;
    use crate::value::Value;

    fn record(id: u32, time: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&time.to_le_bytes());
        bytes[8..12].copy_from_slice(&id.to_le_bytes());
        bytes[12..16].copy_from_slice(&77u32.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    fn decoded(decoder: &mut LiveDecoder, content: &[u8]) -> Vec<(u64, u32, u64)> {
        let mut all = Vec::new();
        decoder.packet(content, |record| {
            let Some(Value::Hexadecimal(number)) = record.fields().next() else {
                panic!("not a number");
            };
            all.push((record.tsc, record.tid, number));
        });
        all
    }

    #[test]
    fn a_removed_event_leaves_its_place_to_the_next() {
        let mut decoder = LiveDecoder::new();
        for id in [3, 4, 1 << 20] {
            assert!(decoder.add(event(id, &["x64"], false)));
        }
        assert!(decoder.remove(3) && decoder.remove(1 << 20));
        assert!(!decoder.remove(3));
        assert!(decoder.add(event(5, &["x64"], false)));
        assert!(decoder.add(event(3, &["x64"], false)));
        assert_eq!(decoder.events.len(), 3);
        let content: Vec<u8> = [5, 4, 3]
            .iter()
            .flat_map(|id| record(*id, 1, &u64::from(*id).to_le_bytes()))
            .collect();
        assert_eq!(
            decoded(&mut decoder, &content),
            [(1, 77, 5), (1, 77, 4), (1, 77, 3)]
        );
    }

    #[test]
    fn records_are_decoded_until_something_is_none() {
        let mut decoder = LiveDecoder::new();
        assert!(decoder.add(event(3, &["x64"], false)));
        assert!(!decoder.add(event(3, &["x64"], false)));
        let mut content = record(3, 10, &5u64.to_le_bytes());
        content.extend(record(3, 11, &6u64.to_le_bytes()));
        assert_eq!(decoded(&mut decoder, &content), [(10, 77, 5), (11, 77, 6)]);
        // An event that nobody knows, and a record that is cut off.
        content.extend(record(4, 12, &[]));
        assert_eq!(decoded(&mut decoder, &content).len(), 2);
        assert_eq!(decoded(&mut decoder, &content[..40]).len(), 1);
    }
}
