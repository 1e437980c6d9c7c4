//! The layout and length of a record.
//!
//! ```text
//! byte  0  timestamp           u64     event.header
//!       8  id                  u32
//!      12  tid                 u32     stream event.context
//!      16  faults              u64     only in events with `EventInfo::faults`: bit i is set
//!                                      if field i could not be read; the first 64 fields
//!       .  field 1 ...
//! ```
//!
//! All numbers are little endian. Every field starts at a multiple of 8 bytes:
//!
//! ```text
//! number            its bytes, then undefined bytes up to 8
//! bit field         the number that contains the bits, likewise
//! array of numbers  number, number, ..., zeros up to a multiple of 8
//! string            u32 length, that many bytes, zeros up to a multiple of 8
//! array of strings  string, string, ...
//! call stack        u32 number of addresses, u32 reason for the end, u64 address ...
//! ```

use std::collections::HashMap;

use capriole_event::{Bits, Element, FieldType};

use crate::document::EventInfo;
use crate::packet::word;

/// Size of a record without fields, bytes.
pub const RECORD_BYTES: usize = 16;
/// The size of every part of a record is a multiple of this, bytes.
pub const WORD_BYTES: usize = 8;
/// Maximum number of fields of one event, as in the kernel (`MAX_TRACE_ARGS`).
pub const MAX_FIELDS: usize = 128;
/// Maximum length of a string, bytes.
pub const MAX_STRING_BYTES: usize = 4000;
/// Maximum number of addresses in a call stack.
pub const MAX_FRAMES: usize = FieldType::MOST_FRAMES as usize;

/// Size of the length before a string, bytes.
pub(crate) const LENGTH_BYTES: usize = 4;
/// Bytes of an IPv6 address.
pub(crate) const ADDRESS_BYTES: usize = 16;
/// Size of a call stack before its addresses, bytes.
pub(crate) const STACK_HEAD: usize = WORD_BYTES;

/// Returns the size of a string of `length` bytes, with its length field and padding.
pub(crate) fn string_bytes(length: usize) -> usize {
    (LENGTH_BYTES + length).next_multiple_of(WORD_BYTES)
}

/// Fault in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// The packet ends inside the record.
    #[error("the packet ends inside a record")]
    CutOff,
    /// No event has this id.
    #[error("a record is of event {0}, and there is no such event")]
    UnknownEvent(u32),
    /// A string is longer than the maximum.
    #[error("a string of {0} bytes is longer than {MAX_STRING_BYTES}")]
    StringTooLong(u32),
    /// A call stack has more addresses than the maximum.
    #[error("a call stack of {0} addresses has more than {MAX_FRAMES}")]
    StackTooLong(u32),
}

/// The events by id, with the lengths of their records.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventTable {
    /// By id.
    dense: Vec<Entry>,
    /// Ids too large for `dense`.
    sparse: HashMap<u32, Entry>,
    /// By index in the list of events.
    layouts: Vec<Layout>,
    /// Indices of events that were removed.
    free: Vec<u32>,
}

/// Minimum size of an event's record in bytes, with `VARIABLE` if it may be longer, and the
/// event's index in the list of events. Size 0 means that there is no such event.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    size: u32,
    index: u32,
}

/// Marks the size of an event with strings or call stacks. No record is this large: it has at most
/// [`MAX_FIELDS`] arrays of 64 strings each, 33 MB.
const VARIABLE: u32 = 1 << 31;

/// Positions of the strings and call stacks in an event's record.
#[derive(Debug, Clone, Default)]
struct Layout {
    runs: Vec<Run>,
    /// Bytes of the fields after the last string or call stack.
    rest: usize,
    /// Unused bits at the end of the last field; `None` if the record determines its length.
    padding_bits: Option<u32>,
}

/// Fields of known size, followed by strings or a call stack.
#[derive(Debug, Clone, Copy)]
struct Run {
    bytes: usize,
    strings: usize,
    is_stack: bool,
}

impl Run {
    /// Returns the size of one of its strings, or of its call stack, and the unused bytes at the end, by
    /// the length in the record.
    fn size(&self, length: u32) -> Result<(usize, usize), RecordFault> {
        match (self.is_stack, length as usize) {
            (false, bytes) if bytes > MAX_STRING_BYTES => Err(RecordFault::StringTooLong(length)),
            (false, bytes) => {
                let size = string_bytes(bytes);
                Ok((size, size - LENGTH_BYTES - bytes))
            }
            (true, frames) if frames > MAX_FRAMES => Err(RecordFault::StackTooLong(length)),
            (true, frames) => Ok((STACK_HEAD + WORD_BYTES * frames, 0)),
        }
    }
}

impl Layout {
    fn new(event: &EventInfo) -> Layout {
        let mut layout = Layout {
            rest: RECORD_BYTES,
            padding_bits: Some(0),
            ..Layout::default()
        };
        if event.faults {
            layout.rest += WORD_BYTES;
        }
        for field in &event.fields {
            match used_bits(field.field_type) {
                Some(bits) => {
                    let bytes = bits.div_ceil(8).next_multiple_of(WORD_BYTES);
                    layout.rest += bytes;
                    layout.padding_bits = Some((bytes * 8 - bits) as u32);
                }
                None => {
                    let is_stack = field.field_type.is_call_stack();
                    layout.runs.push(Run {
                        bytes: std::mem::take(&mut layout.rest),
                        strings: field.field_type.count.map_or(1, usize::from),
                        is_stack,
                    });
                    layout.padding_bits = None;
                }
            }
        }
        layout
    }

    /// Returns the size of a record whose strings and call stacks are all empty.
    fn least(&self) -> usize {
        let run = |run: &Run| run.bytes + run.strings * string_bytes(0);
        self.runs.iter().map(run).sum::<usize>() + self.rest
    }

    /// Walks through the record at the start of `bytes`; returns its size and the number of unused
    /// bits at its end. Not inlined, so that events without strings do not pay for it.
    #[inline(never)]
    fn measure(&self, bytes: &[u8]) -> Result<(usize, u32), RecordFault> {
        let mut at = 0;
        let mut unused = 0;
        for run in &self.runs {
            at += run.bytes;
            for _ in 0..run.strings {
                if bytes.len() < at + LENGTH_BYTES {
                    return Err(RecordFault::CutOff);
                }
                let (size, rest) = run.size(word(bytes, at))?;
                unused = rest;
                at += size;
            }
        }
        at += self.rest;
        match at <= bytes.len() {
            true => Ok((at, self.padding_bits.unwrap_or(unused as u32 * 8))),
            false => Err(RecordFault::CutOff),
        }
    }
}

/// Returns the number of bits used, counted from the field's start, if it is fixed.
fn used_bits(field_type: FieldType) -> Option<usize> {
    match (field_type.element, field_type.count) {
        (Element::String { .. } | Element::CallStack { .. }, _) => None,
        (Element::Ipv6, count) => Some(usize::from(count.unwrap_or(1)) * ADDRESS_BYTES * 8),
        (Element::Number { bytes, .. }, Some(count)) => {
            Some(usize::from(bytes) * usize::from(count) * 8)
        }
        (
            Element::Number {
                bits: None, bytes, ..
            },
            None,
        ) => Some(usize::from(bytes) * 8),
        (
            Element::Number {
                bits: Some(Bits { width, offset }),
                ..
            },
            None,
        ) => Some(usize::from(width) + usize::from(offset)),
    }
}

impl EventTable {
    /// Ids below this limit are looked up in an array.
    const DENSE: u32 = 1 << 20;

    /// Adds an event to the list: in the place of one that was removed, else at the end. Returns
    /// false if its id is already in use.
    pub(crate) fn add(&mut self, event: &EventInfo) -> bool {
        let layout = Layout::new(event);
        let variable = if layout.runs.is_empty() { 0 } else { VARIABLE };
        let index = self.free.pop();
        let index = index.unwrap_or(self.layouts.len() as u32);
        let entry = Entry {
            size: layout.least() as u32 | variable,
            index,
        };
        match self.layouts.get_mut(index as usize) {
            Some(free) => *free = layout,
            None => self.layouts.push(layout),
        }
        if event.id >= Self::DENSE {
            return self.sparse.insert(event.id, entry).is_none();
        }
        let at = event.id as usize;
        if self.dense.len() <= at {
            self.dense.resize(at + 1, Entry::default());
        }
        std::mem::replace(&mut self.dense[at], entry).size == 0
    }

    /// Removes the event with this id; returns the index that the next event gets.
    pub(crate) fn remove(&mut self, id: u32) -> Option<usize> {
        let entry = match self.dense.get_mut(id as usize) {
            Some(Entry { size: 0, .. }) => return None,
            Some(entry) => std::mem::take(entry),
            None => self.sparse.remove(&id)?,
        };
        self.layouts[entry.index as usize] = Layout::default();
        self.free.push(entry.index);
        Some(entry.index as usize)
    }

    /// Returns the index in the list of the event with this id.
    pub(crate) fn index(&self, id: u32) -> Option<usize> {
        self.get(id).map(|entry| entry.index as usize)
    }

    #[inline]
    fn get(&self, id: u32) -> Option<Entry> {
        match self.dense.get(id as usize) {
            Some(Entry { size: 0, .. }) => None,
            Some(entry) => Some(*entry),
            None => self.sparse.get(&id).copied(),
        }
    }

    /// Returns the event's index in the list and the total size of the record at the start of
    /// `bytes`.
    #[inline]
    pub(crate) fn record(&self, bytes: &[u8]) -> Result<(usize, usize), RecordFault> {
        if bytes.len() < RECORD_BYTES {
            return Err(RecordFault::CutOff);
        }
        let id = word(bytes, 8);
        let Some(entry) = self.get(id) else {
            return Err(RecordFault::UnknownEvent(id));
        };
        let (index, least) = (entry.index as usize, (entry.size & !VARIABLE) as usize);
        if least > bytes.len() {
            return Err(RecordFault::CutOff);
        }
        if entry.size & VARIABLE == 0 {
            return Ok((index, least));
        }
        let (size, _) = self.layouts[index].measure(bytes)?;
        Ok((index, size))
    }

    /// Returns the number of unused bits at the end of the record at the start of `bytes`, less
    /// than 64.
    pub(crate) fn padding_bits(&self, bytes: &[u8]) -> Result<u32, RecordFault> {
        let (index, _) = self.record(bytes)?;
        Ok(self.layouts[index].measure(bytes)?.1)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::document::FieldInfo;

    /// Makes an event with fields of these types.
    pub(crate) fn event(id: u32, types: &[&str], faults: bool) -> EventInfo {
        let field = |text: &&str| FieldInfo::new(text.to_string(), text.parse().unwrap());
        EventInfo {
            id,
            name: String::new(),
            symbol: None,
            symbol_offset: 0,
            object: String::new(),
            soname: None,
            build_id: None,
            offset: 0,
            address: 0,
            fields: types.iter().map(field).collect(),
            faults,
            tactic: String::new(),
            refusals: Vec::new(),
            role: crate::Role::Point,
            call: None,
            format: None,
        }
    }

    fn record(id: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; RECORD_BYTES];
        bytes[8..12].copy_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn the_table_knows_small_and_large_ids() {
        let mut table = EventTable::default();
        assert!(table.add(&event(5, &[], false)));
        assert!(table.add(&event(u32::MAX, &["x64"; 6], false)));
        let record = |id: u32| table.record(&record(id, &[0; 48]));
        assert_eq!(record(5), Ok((0, 16)));
        assert_eq!(record(u32::MAX), Ok((1, 64)));
        for id in [4, 6, u32::MAX - 1] {
            assert_eq!(record(id), Err(RecordFault::UnknownEvent(id)));
        }
        for id in [5, u32::MAX] {
            assert!(!table.clone().add(&event(id, &["x64"], false)));
        }
    }

    #[test]
    fn numbers_and_arrays_have_their_size_and_unused_bits() {
        for (types, faults, size, unused) in [
            (&[][..], false, 16, 0),
            (&[], true, 24, 0),
            (&["u8"], false, 24, 56),
            (&["u8", "u64"], true, 40, 0),
            (&["s32"], false, 24, 32),
            (&["char"], false, 24, 56),
            (&["symbol"], false, 24, 0),
            (&["b3@5/32"], false, 24, 56),
            (&["b4@7/16"], false, 24, 53),
            (&["b4@7/16[3]"], false, 24, 16),
            (&["u16[4]"], false, 24, 0),
            (&["u16[5]"], false, 32, 48),
            (&["x64[64]"], false, 16 + 512, 0),
        ] {
            let mut table = EventTable::default();
            assert!(table.add(&event(1, types, faults)));
            let bytes = record(1, &[0xff; 600]);
            assert_eq!(table.record(&bytes), Ok((0, size)), "{types:?}");
            assert_eq!(table.padding_bits(&bytes), Ok(unused), "{types:?}");
            let cut = table.record(&bytes[..size - 1]);
            assert_eq!(cut, Err(RecordFault::CutOff), "{types:?}");
        }
    }

    fn string(length: usize) -> Vec<u8> {
        let mut bytes = (length as u32).to_le_bytes().to_vec();
        bytes.resize(string_bytes(length), b'x');
        bytes
    }

    #[test]
    fn the_size_of_a_record_with_strings_is_found_by_walking() {
        let mut table = EventTable::default();
        assert!(table.add(&event(1, &["u32", "string", "string[2]"], true)));
        assert!(table.add(&event(2, &["string", "u16"], false)));
        for (length, filled) in [(0, 8), (4, 8), (5, 16), (12, 16), (MAX_STRING_BYTES, 4008)] {
            let payload = [vec![0; 16], string(3), string(length), string(length)].concat();
            let bytes = record(1, &payload);
            let size = 16 + 16 + 8 + 2 * filled;
            assert_eq!(bytes.len(), size);
            assert_eq!(table.record(&bytes), Ok((0, size)));
            let unused = (filled - 4 - length) as u32 * 8;
            assert_eq!(table.padding_bits(&bytes), Ok(unused));
            for cut in 0..size {
                assert_eq!(table.record(&bytes[..cut]), Err(RecordFault::CutOff));
            }
            let bytes = record(2, &[string(length), vec![0; 8]].concat());
            assert_eq!(table.record(&bytes), Ok((1, bytes.len())));
            assert_eq!(table.padding_bits(&bytes), Ok(48));
        }
    }

    #[test]
    fn a_record_with_a_call_stack_is_as_long_as_its_addresses() {
        let mut table = EventTable::default();
        assert!(table.add(&event(1, &["u8", "stack(64)", "string"], true)));
        assert!(table.add(&event(2, &["stack(128)"], false)));
        for frames in [0, 1, 2, 64, MAX_FRAMES] {
            let mut stack = (frames as u64).to_le_bytes().to_vec();
            stack.extend(vec![0xff; 8 * frames]);
            let payload = [vec![0xff; 16], stack.clone(), string(3)].concat();
            let bytes = record(1, &payload);
            assert_eq!(table.record(&bytes), Ok((0, bytes.len())));
            assert_eq!(table.padding_bits(&bytes), Ok(8));
            for cut in 0..bytes.len() {
                assert_eq!(table.record(&bytes[..cut]), Err(RecordFault::CutOff));
            }
            let bytes = record(2, &stack);
            assert_eq!(table.record(&bytes), Ok((1, bytes.len())));
            assert_eq!(table.padding_bits(&bytes), Ok(0));
        }
        for frames in [MAX_FRAMES as u32 + 1, u32::MAX, 1 << 31] {
            let mut bytes = record(2, &[0; 40_000]);
            bytes[16..20].copy_from_slice(&frames.to_le_bytes());
            assert_eq!(table.record(&bytes), Err(RecordFault::StackTooLong(frames)));
        }
    }

    #[test]
    fn a_string_longer_than_any_is_no_record() {
        let mut table = EventTable::default();
        assert!(table.add(&event(1, &["u32", "string"], false)));
        for length in [MAX_STRING_BYTES as u32 + 1, u32::MAX, 1 << 31] {
            let mut bytes = record(1, &[0; 10_000]);
            bytes[24..28].copy_from_slice(&length.to_le_bytes());
            assert_eq!(
                table.record(&bytes),
                Err(RecordFault::StringTooLong(length))
            );
        }
    }
}
