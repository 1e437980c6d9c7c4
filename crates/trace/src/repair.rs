//! Repairs records written by the target, so that they are valid in a trace.
//!
//! A stream's records must be in time order. Usually they are; a record is late if its thread
//! was interrupted between reading the time and writing the record.

use std::borrow::Cow;
use std::ops::Range;

use crate::packet::long;
use crate::record::EventTable;

/// Result of walking a packet's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Walk {
    /// Number of complete records.
    pub events: u64,
    /// The earliest and the latest time, after the repair.
    pub first: Option<u64>,
    pub last: Option<u64>,
    /// Number of records whose time was changed.
    pub adjusted: u64,
    /// Number of bytes after the last valid record.
    pub damaged_bytes: u64,
    /// Padding bits of the last record after the repair.
    pub padding_bits: u32,
}

/// Walks through the records, and returns the complete ones in time order, all between `not_before`
/// and `not_after`. Copies only if something must be changed.
pub(crate) fn walk<'a>(
    content: &'a [u8],
    table: &EventTable,
    not_before: u64,
    not_after: Option<u64>,
) -> (Walk, Cow<'a, [u8]>) {
    // If the two limits contradict each other, the previous packet's time takes precedence.
    let not_after = not_after.unwrap_or(u64::MAX).max(not_before);
    let mut walk = Walk::default();
    let mut at = 0;
    let mut last = not_before;
    let mut last_at = 0;
    let mut in_order = true;
    while let Ok((_, size)) = table.record(&content[at..]) {
        let time = long(content, at);
        in_order &= last <= time && time <= not_after;
        walk.first.get_or_insert(time);
        last = time;
        walk.events += 1;
        last_at = at;
        at += size;
    }
    walk.damaged_bytes = (content.len() - at) as u64;
    let content = &content[..at];
    if walk.events == 0 {
        return (walk, Cow::Borrowed(content));
    }
    walk.last = Some(last);
    if in_order {
        walk.padding_bits = padding_bits(table, &content[last_at..]);
        return (walk, Cow::Borrowed(content));
    }
    let sorted = sort(content, table, not_before, not_after, &mut walk);
    (walk, Cow::Owned(sorted))
}

/// Returns the padding bits of a record that is known to be complete.
fn padding_bits(table: &EventTable, record: &[u8]) -> u32 {
    table.padding_bits(record).unwrap_or(0)
}

/// Returns a copy in time order with all times within the limits. `content` has only complete
/// records.
fn sort(
    content: &[u8],
    table: &EventTable,
    not_before: u64,
    not_after: u64,
    walk: &mut Walk,
) -> Vec<u8> {
    let mut records: Vec<(u64, Range<usize>)> = Vec::with_capacity(walk.events as usize);
    let mut at = 0;
    while let Ok((_, size)) = table.record(&content[at..]) {
        let time = long(content, at);
        let moved = time.clamp(not_before, not_after);
        walk.adjusted += u64::from(moved != time);
        records.push((moved, at..at + size));
        at += size;
    }
    // Stable sort: records of the same time stay in the order in which they were written.
    records.sort_by_key(|(time, _)| *time);
    walk.first = records.first().map(|(time, _)| *time);
    if let Some((time, bytes)) = records.last() {
        walk.last = Some(*time);
        walk.padding_bits = padding_bits(table, &content[bytes.clone()]);
    }
    let mut sorted = Vec::with_capacity(content.len());
    for (time, bytes) in records {
        sorted.extend_from_slice(&time.to_le_bytes());
        sorted.extend_from_slice(&content[bytes.start + 8..bytes.end]);
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::event;

    fn table() -> EventTable {
        let mut table = EventTable::default();
        assert!(table.add(&event(1, &["x64"], false)));
        assert!(table.add(&event(2, &["string"], false)));
        table
    }

    fn records(times: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (n, time) in times.iter().enumerate() {
            bytes.extend_from_slice(&time.to_le_bytes());
            bytes.extend_from_slice(&1u32.to_le_bytes());
            bytes.extend_from_slice(&7u32.to_le_bytes());
            bytes.extend_from_slice(&(n as u64).to_le_bytes());
        }
        bytes
    }

    /// Returns time and argument of each record.
    fn read(bytes: &[u8]) -> Vec<(u64, u64)> {
        bytes
            .chunks(24)
            .map(|record| (long(record, 0), long(record, 16)))
            .collect()
    }

    #[test]
    fn records_in_order_are_not_copied() {
        let content = records(&[5, 5, 9]);
        let (walk, same) = walk(&content, &table(), 5, Some(9));
        assert!(matches!(same, Cow::Borrowed(bytes) if bytes == content));
        assert_eq!((walk.events, walk.first, walk.last), (3, Some(5), Some(9)));
        assert_eq!((walk.adjusted, walk.damaged_bytes), (0, 0));
    }

    #[test]
    fn late_records_are_sorted_and_older_or_newer_ones_moved_to_the_limit() {
        let content = records(&[30, 10, 20, 2, u64::MAX]);
        let (walk, sorted) = walk(&content, &table(), 15, Some(40));
        assert_eq!(read(&sorted), [(15, 1), (15, 3), (20, 2), (30, 0), (40, 4)]);
        assert_eq!((walk.events, walk.adjusted), (5, 3));
        assert_eq!((walk.first, walk.last), (Some(15), Some(40)));
    }

    #[test]
    fn what_is_not_a_record_is_left_out() {
        let mut content = records(&[1, 2]);
        content.extend_from_slice(&[0; 17]);
        let (found, kept) = walk(&content, &table(), 0, None);
        assert_eq!((found.events, kept.len(), found.damaged_bytes), (2, 48, 17));
        let cut = records(&[1, 2]);
        let (found, kept) = walk(&cut[..47], &table(), 0, None);
        assert_eq!((found.events, kept.len(), found.damaged_bytes), (1, 24, 23));
        let (found, kept) = walk(&[], &table(), 3, None);
        assert_eq!((found, kept.len()), (Walk::default(), 0));
    }

    #[test]
    fn strings_move_as_a_whole_and_the_last_one_says_where_the_content_ends() {
        let text = |time: u64, text: &[u8]| {
            let mut bytes = time.to_le_bytes().to_vec();
            bytes.extend_from_slice(&[2, 0, 0, 0, 7, 0, 0, 0]);
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(text);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        };
        let (first, second) = (text(10, b"longer than a word"), text(20, b"word"));
        let plain = records(&[15]);
        let ordered = [&first[..], &plain, &second].concat();
        for (content, padding_bits) in [
            ([&second[..], &first, &plain].concat(), 0),
            ([&first[..], &second, &plain].concat(), 0),
            (ordered.clone(), 0),
        ] {
            let (walk, sorted) = walk(&content, &table(), 0, None);
            assert_eq!((walk.events, walk.padding_bits), (3, padding_bits));
            assert_eq!(sorted, ordered);
        }
        let late = [&second[..], &text(30, b"x")].concat();
        assert_eq!(walk(&late, &table(), 0, None).0.padding_bits, 24);
        assert_eq!(walk(&late, &table(), 40, None).0.padding_bits, 24);

        // An impossible length: the records before it are kept.
        let mut broken = [&first[..], &second, &plain].concat();
        broken[first.len() + 16] = 0xff;
        let (found, kept) = walk(&broken, &table(), 0, None);
        assert_eq!((found.events, &kept[..]), (1, &first[..]));
        assert_eq!(found.damaged_bytes, (second.len() + plain.len()) as u64);
        broken[first.len() + 17] = 0xff;
        assert_eq!(walk(&broken, &table(), 0, None).0.events, 1);
    }
}
