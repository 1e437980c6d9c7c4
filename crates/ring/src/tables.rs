//! Tables in session memory, which aggregate events by key, and their reader.
//!
//! A table has a row for each key. Its *directory*, which exists once in session memory, maps
//! keys to rows. An assigned row is never released or moved, so a thread that has found a row
//! needs no lock to use it. The values are in the row's *cells*, which are
//! [counters](crate::layout#counters): each CPU has its own copy, and there is a shared one.
//!
//! ```text
//! directory   64 bytes: hits of keys for which there was no room
//!             rows: u32 tag (event + 2; 0: free; 1: being written), u32 bytes of the key,
//!                   the key
//! cells       row 0: cell 0, cell 1, ...; row 1: ...       for each CPU, and shared
//! ```
//!
//! A key's home is a set of four rows, selected by its hash; if it is full, the next sets are
//! tried. Two threads that see the same new key at the same moment may take a row each; the
//! reader merges them. A table without keys has no directory, and has a row for each event.
//!
//! Each cell is changed by one store, addition or maximum, as the commit of a restartable
//! sequence of its own: the cells of one hit may be read at slightly different moments, but
//! none is ever wrong. A minimum is kept as the maximum of the complement, so that an empty
//! cell is zero. Straight code looks only at the four rows of the key's home. A new key, a key
//! elsewhere, an abort, and a thread without restartable sequences lead to a program of the
//! resident that handles every case. The shared copy is used only if no sequence is possible or
//! aborts keep coming.
//!
//! Hits of keys for which a full directory has no row go to a [summary], or are
//! dropped and counted if there is none.

use crate::Memory;
use crate::intervals::{self, Intervals};
use crate::layout;
use crate::layout::{Geometry, MAX_COUNTERS, directory};
use crate::numbers::interval;
use crate::summary::{self, Life, Summaries, Summed};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// Requested contents of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Ids of the events that the table aggregates.
    pub events: Range<u32>,
    /// Length of the longest key in bytes, a multiple of 8; 0: no key.
    pub key: u32,
    /// Number of keys to make room for; ignored without a key.
    pub keys: u32,
    /// Number of cells in a row, at least 1.
    pub cells: u32,
    /// Cells of a row that hold a maximum; the others hold sums.
    pub maxima: Vec<u32>,
    /// Number of counters that [summaries](crate::summary) of keys without a row may take. With
    /// too few for one, hits of such keys are dropped.
    pub summary: u64,
}

/// A table and its place in session memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Contents of the table.
    pub shape: Shape,
    /// Byte offset of its directory from [`Geometry::directories_offset`].
    pub directory: u64,
    /// Number of rows; with keys, a power of two, at least eight.
    pub rows: u32,
    /// The counter that is cell 0 of row 0; the others follow, row by row.
    pub first_cell: u32,
    /// Its summaries, whose counters follow those of the rows.
    pub summaries: Option<Summaries>,
}

impl Table {
    /// Size in bytes of a row of the directory.
    pub(crate) fn row_size(&self) -> u32 {
        directory::KEY as u32 + self.shape.key
    }

    /// The counters that are its cells, and those of its summaries.
    fn counters(&self) -> Range<u64> {
        let first = u64::from(self.first_cell);
        let cells = u64::from(self.rows) * u64::from(self.shape.cells);
        let summaries = self.summaries.map_or(0, |all| all.counters(&self.shape));
        first..first + cells + summaries
    }

    /// Size of its directory in bytes; 0 without a key.
    fn directory_size(&self) -> u64 {
        match self.shape.key {
            0 => 0,
            _ => {
                let size = u64::from(self.rows) * u64::from(self.row_size());
                (directory::HEAD as u64 + size).next_multiple_of(directory::HEAD as u64)
            }
        }
    }

    fn directory_range(&self) -> Range<u64> {
        self.directory..self.directory + self.directory_size()
    }

    /// Index of the counter that holds a cell of a row.
    pub fn cell(&self, row: u32, cell: u32) -> u32 {
        self.first_cell + row * self.shape.cells + cell
    }
}

/// The tables do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the tables would take more than 2 GiB for each CPU; ask for fewer keys, or for fewer events with histograms"
)]
pub struct TooLarge;

/// All tables of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    tables: Vec<Table>,
    intervals: Vec<Intervals>,
}

impl Tables {
    /// Adds a table, in the first room that is large enough: between others, or behind them.
    ///
    /// # Errors
    /// There would be more counters than a session can have.
    pub fn add(&mut self, shape: Shape) -> Result<&Table, TooLarge> {
        let rows = match shape.key {
            0 => shape.events.end - shape.events.start,
            // At most half of the rows are in use, so that a set is seldom full.
            _ => {
                let rows = shape.keys.max(4).checked_mul(2).ok_or(TooLarge)?;
                rows.checked_next_power_of_two().ok_or(TooLarge)?
            }
        };
        let mut table = Table {
            directory: 0,
            rows,
            first_cell: 0,
            summaries: Summaries::of(&shape),
            shape,
        };
        let cells = rows.checked_mul(table.shape.cells).ok_or(TooLarge)?;
        let counters = table.counters().end;
        let first = first_gap(self.all_counters(), counters);
        if first + counters > u64::from(MAX_COUNTERS) {
            return Err(TooLarge);
        }
        table.first_cell = first as u32;
        if let Some(summaries) = &mut table.summaries {
            summaries.first = table.first_cell + cells;
        }
        table.directory = first_gap(self.all_directories(), table.directory_size());
        self.tables.push(table);
        Ok(&self.tables[self.tables.len() - 1])
    }

    /// Adds slots for open intervals, at least `slots` of them, with keys of `keys` words and `kept`
    /// further words.
    ///
    /// # Errors
    /// There would be more counters than a session can have, or too many slots.
    ///
    /// # Panics
    /// If there are more words than [`interval::MOST_WORDS`].
    pub fn add_intervals(
        &mut self,
        keys: u32,
        kept: u32,
        slots: u32,
    ) -> Result<Intervals, TooLarge> {
        let mut added = Intervals::new(keys, kept, slots).ok_or(TooLarge)?;
        let counters = u64::from(interval::COUNTERS);
        let first = first_gap(self.all_counters(), counters);
        if first + counters > u64::from(MAX_COUNTERS) {
            return Err(TooLarge);
        }
        added.first_counter = first as u32;
        added.states = first_gap(self.all_directories(), added.size());
        self.intervals.push(added);
        Ok(added)
    }

    /// Removes slots of intervals, as [`Tables::remove`] removes a table.
    pub fn remove_intervals(&mut self, intervals: &Intervals) {
        self.intervals.retain(|other| other != intervals);
    }

    fn all_counters(&self) -> impl Iterator<Item = Range<u64>> {
        let tables = self.tables.iter().map(Table::counters);
        tables.chain(self.intervals.iter().map(Intervals::counters))
    }

    fn all_directories(&self) -> impl Iterator<Item = Range<u64>> {
        let tables = self.tables.iter().map(Table::directory_range);
        tables.chain(self.intervals.iter().map(Intervals::range))
    }

    /// Removes a table. Its room may be given to the next one, which expects it to be zero: see
    /// [`TableReader::clear`].
    pub fn remove(&mut self, table: &Table) {
        self.tables.retain(|other| other != table);
    }

    /// Number of counters up to the last table's end.
    pub fn counters(&self) -> u32 {
        let ends = self.all_counters().map(|counters| counters.end as u32);
        ends.max().unwrap_or(0)
    }

    /// Size of the tables' directories in bytes, up to the end of the last.
    pub fn directories(&self) -> u64 {
        let ends = self.all_directories().map(|range| range.end);
        ends.max().unwrap_or(0)
    }
}

/// Returns the start of the first gap of this size between ranges, or behind them.
fn first_gap(ranges: impl Iterator<Item = Range<u64>>, size: u64) -> u64 {
    let mut ranges: Vec<Range<u64>> = ranges.filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut start = 0;
    for range in ranges {
        if range.start >= start + size {
            break;
        }
        start = start.max(range.end);
    }
    start
}

impl Geometry {
    /// Adds room for `tables`.
    #[must_use]
    pub fn with_tables(self, tables: &Tables) -> Geometry {
        Geometry {
            counters: tables.counters(),
            directories: tables.directories(),
            ..self
        }
    }
}

/// Values of an event under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The event's id.
    pub event: u32,
    /// The key's bytes.
    pub key: Vec<u8>,
    /// The values of the cells: sums modulo 2^64, and maxima.
    pub cells: Vec<u64>,
    /// Hits of the key that may be missing here, at most: they are among the
    /// [others](Contents::others), or were dropped.
    pub error: u64,
    /// Sources of the cells, if some are of summaries.
    pub parts: Vec<Part>,
}

/// Part of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The row of a summary that it is; `None` for the table's own.
    pub life: Option<Life>,
    /// The values of the cells.
    pub cells: Vec<u64>,
}

/// Contents of a table at the time it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    /// Its rows; without a key, those of all events.
    pub rows: Vec<Row>,
    /// Hits of keys that have no row any more, by event.
    pub others: Vec<Row>,
    /// Number of hits that a key without a row may have.
    pub most_without_row: u64,
    /// Hits that were not counted because there was no room for their key.
    pub dropped: u64,
}

/// Reads tables of a session.
///
/// If the target has corrupted them, the numbers are wrong, but nothing else happens.
#[derive(Debug, Clone)]
pub struct TableReader {
    memory: Arc<Memory>,
    geometry: Geometry,
}

impl TableReader {
    /// Creates a reader of the tables in session memory of this geometry.
    ///
    /// # Panics
    /// If `memory` is smaller than the geometry says.
    pub fn new(memory: Arc<Memory>, geometry: Geometry) -> TableReader {
        assert!(memory.len() >= geometry.shared_size());
        TableReader { memory, geometry }
    }

    /// Hits that were not evaluated because all lanes or packets of a CPU were in use.
    pub fn lost(&self) -> u64 {
        let lanes = 0..layout::LANES as u32;
        let streams = lanes.flat_map(|lane| (0..self.geometry.cpus).map(move |cpu| (lane, cpu)));
        streams
            .map(|(lane, cpu)| {
                self.memory
                    .counted(self.geometry.stream(lane, cpu) + layout::stream::LOST)
            })
            .sum()
    }

    /// Reads the rows of a table that the geometry has room for. While the target runs, a hit may
    /// be read when only some of its values are updated.
    pub fn read(&self, table: &Table) -> Contents {
        let written = Written::of(self, table);
        if table.shape.key == 0 {
            let events = table.shape.events.clone();
            let row = |(row, event)| Row {
                event,
                key: Vec::new(),
                cells: self.cells(table, row, &written),
                error: 0,
                parts: Vec::new(),
            };
            return Contents {
                rows: (0..).zip(events).map(row).collect(),
                ..Contents::default()
            };
        }
        let start = self.geometry.directories_offset() + table.directory as usize;
        let size = table.row_size() as usize;
        let first = start + directory::HEAD;
        let mut rows: Vec<Row> = Vec::new();
        let mut known: HashMap<(u32, Vec<u8>), usize> = HashMap::new();
        // Rows whose keys may have hits in summaries, too.
        let mut doubtful: HashSet<usize> = HashSet::new();
        for index in 0..table.rows {
            let at = first + index as usize * size;
            if !overlaps(&written.directory, at..at + size) {
                continue;
            }
            let tag = self.memory.load_u32(at + directory::TAG);
            let Some(event) = tag.checked_sub(directory::FIRST_TAG) else {
                continue;
            };
            if !table.shape.events.contains(&event) {
                continue; // written over
            }
            let length = self.memory.load_u32(at + directory::LENGTH);
            let size = (length & !directory::DOUBTFUL).min(table.shape.key);
            let mut key = vec![0; size as usize];
            self.memory.read(at + directory::KEY, &mut key);
            let cells = self.cells(table, index, &written);
            let known = *known.entry((event, key.clone())).or_insert(rows.len());
            if length & directory::DOUBTFUL != 0 {
                doubtful.insert(known);
            }
            match rows.get_mut(known) {
                Some(row) => merge(&table.shape, &mut row.cells, &cells),
                None => rows.push(Row {
                    event,
                    key,
                    cells,
                    error: 0,
                    parts: Vec::new(),
                }),
            }
        }
        let dropped = self.memory.counted(start + directory::DROPPED);
        let summed = summary::read(&self.memory, &self.geometry, table);
        let most_without_row = summed.most().saturating_add(dropped);
        for index in doubtful {
            rows[index].error = most_without_row;
        }
        add_summaries(table, &summed, dropped, &mut rows, known);
        let others = summed.others.into_iter().map(|(event, cells)| Row {
            event,
            key: Vec::new(),
            cells,
            error: 0,
            parts: Vec::new(),
        });
        Contents {
            rows,
            others: others.collect(),
            most_without_row,
            dropped,
        }
    }

    /// Makes a table empty: its cells and its directory are zero again, as they were before it was
    /// first used. No thread may count in it any more.
    pub fn clear(&self, table: &Table) {
        let Written { directory, cells } = Written::of(self, table);
        let summaries = table.summaries.iter().flat_map(|all| {
            let cpus = 0..self.geometry.cpus;
            let range = |cpu| summary::range(&self.geometry, table, all, cpu);
            cpus.flat_map(move |cpu| self.memory.written(range(cpu)))
        });
        let cells = cells.into_iter().flatten().chain(summaries);
        for part in directory.into_iter().chain(cells) {
            self.memory.write(part.start, &vec![0; part.len()]);
        }
    }

    /// Reads what is known of intervals. While the target runs, some of it is a little older.
    pub fn intervals(&self, of: &Intervals) -> intervals::Contents {
        intervals::read(&self.memory, &self.geometry, of)
    }

    /// Drops all intervals, as [`TableReader::clear`] clears a table.
    pub fn clear_intervals(&self, of: &Intervals) {
        intervals::clear(&self.memory, &self.geometry, of);
    }

    /// Returns the cells of a row, combined over all CPUs.
    fn cells(&self, table: &Table, row: u32, written: &Written) -> Vec<u64> {
        let mut all = vec![0; table.shape.cells as usize];
        let mut copy = all.clone();
        for (cpu, written) in (0..).zip(&written.cells) {
            let at = self.geometry.counter(cpu, table.cell(row, 0));
            if !overlaps(written, at..at + 8 * all.len()) {
                continue;
            }
            for (cell, value) in copy.iter_mut().enumerate() {
                *value = self.memory.load(at + 8 * cell);
            }
            merge(&table.shape, &mut all, &copy);
        }
        all
    }
}

/// The parts of a table that were ever written.
struct Written {
    directory: Vec<Range<usize>>,
    /// Parts of each CPU's copy, and of the shared one.
    cells: Vec<Vec<Range<usize>>>,
}

impl Written {
    fn of(reader: &TableReader, table: &Table) -> Written {
        let (memory, geometry) = (&reader.memory, &reader.geometry);
        let start = geometry.directories_offset() + table.directory as usize;
        let size = directory::HEAD + table.rows as usize * table.row_size() as usize;
        let copy = |cpu| {
            let cell = |row| geometry.counter(cpu, table.cell(row, 0));
            memory.written(cell(0)..cell(table.rows))
        };
        Written {
            directory: match table.shape.key {
                0 => Vec::new(),
                _ => memory.written(start..start + size),
            },
            cells: (0..=geometry.cpus).map(copy).collect(),
        }
    }
}

/// Adds the rows of summaries to those of the table; `known` has the numbers of the keys' rows.
fn add_summaries(
    table: &Table,
    summed: &Summed,
    dropped: u64,
    rows: &mut Vec<Row>,
    mut known: HashMap<(u32, Vec<u8>), usize>,
) {
    for kept in &summed.kept {
        let known = known.entry((kept.event, kept.key.clone()));
        let number = *known.or_insert(rows.len());
        if number == rows.len() {
            rows.push(Row {
                event: kept.event,
                key: kept.key.clone(),
                cells: vec![0; table.shape.cells as usize],
                error: 0,
                parts: Vec::new(),
            });
        }
        let row = &mut rows[number];
        if row.parts.is_empty() {
            row.parts.push(Part {
                life: None,
                cells: row.cells.clone(),
            });
            row.error = summed.least[kept.set as usize].saturating_add(dropped);
        }
        // There it has a row, and so an error of its own.
        row.error = row.error.saturating_sub(kept.least);
        row.error = row.error.saturating_add(kept.error);
        merge(&table.shape, &mut row.cells, &kept.cells);
        row.parts.push(Part {
            life: Some(kept.life),
            cells: kept.cells.clone(),
        });
    }
}

/// True if a range overlaps any of `parts`, which are in order.
pub(crate) fn overlaps(parts: &[Range<usize>], range: Range<usize>) -> bool {
    let next = parts.partition_point(|part| part.end <= range.start);
    parts.get(next).is_some_and(|part| part.start < range.end)
}

/// Merges the cells of one row into those of another.
pub(crate) fn merge(shape: &Shape, into: &mut [u64], from: &[u64]) {
    for (cell, (into, from)) in (0..).zip(into.iter_mut().zip(from)) {
        *into = match shape.maxima.contains(&cell) {
            true => (*into).max(*from),
            false => into.wrapping_add(*from),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    fn shape(events: Range<u32>, key: u32, keys: u32) -> Shape {
        Shape {
            events,
            key,
            keys,
            cells: 3,
            maxima: vec![2],
            summary: 0,
        }
    }

    fn session(tables: &Tables) -> (Arc<Memory>, Geometry) {
        let geometry = Geometry::for_buffer(1 << 16, 2, 4).with_tables(tables);
        let fd = rustix::fs::memfd_create("tables-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, geometry.size() as u64).expect("ftruncate");
        let memory = Memory::map(&fd, geometry.size()).expect("map");
        (Arc::new(memory), geometry)
    }

    fn put(memory: &Memory, geometry: &Geometry, table: &Table, row: u32, tag: u32, key: &[u8]) {
        let at = geometry.directories_offset()
            + table.directory as usize
            + directory::HEAD
            + row as usize * table.row_size() as usize;
        memory.store_u32(at + directory::TAG, tag);
        memory.store_u32(at + directory::LENGTH, key.len() as u32);
        memory.write(at + directory::KEY, key);
    }

    #[test]
    fn rows_are_put_together_by_event_and_key() {
        let mut tables = Tables::default();
        tables.add(shape(3..5, 0, 0)).expect("room");
        tables.add(shape(5..7, 16, 10)).expect("room");
        let (memory, geometry) = session(&tables);
        let reader = TableReader::new(memory.clone(), geometry);
        let [plain, keyed] = &tables.tables[..] else {
            panic!("two tables")
        };
        assert_eq!((keyed.rows, keyed.first_cell), (32, 6));
        for (cpu, value) in [(0, 10), (1, 20), (2, 5)] {
            for cell in 0..3 {
                memory.store(geometry.counter(cpu, plain.cell(1, cell)), value);
                memory.store(geometry.counter(cpu, keyed.cell(7, cell)), value);
                memory.store(geometry.counter(cpu, keyed.cell(9, cell)), value + 1);
            }
        }
        put(&memory, &geometry, keyed, 7, 5 + 2, b"12345678");
        put(&memory, &geometry, keyed, 9, 5 + 2, b"12345678"); // by another thread
        put(&memory, &geometry, keyed, 31, 6 + 2, b"12345678");
        put(&memory, &geometry, keyed, 8, directory::CLAIMED, b"1234");
        let row = |event, key: &[u8], cells: [u64; 3]| Row {
            event,
            key: key.to_vec(),
            cells: cells.to_vec(),
            error: 0,
            parts: Vec::new(),
        };
        assert_eq!(
            reader.read(plain).rows,
            [row(3, b"", [0, 0, 0]), row(4, b"", [35, 35, 20])]
        );
        let contents = reader.read(keyed);
        assert_eq!(contents.dropped, 0);
        assert_eq!(
            contents.rows,
            [
                row(5, b"12345678", [73, 73, 21]),
                row(6, b"12345678", [0, 0, 0])
            ]
        );
    }

    /// Reading memory that was never written does not allocate it.
    #[test]
    fn reading_makes_nothing() {
        let mut tables = Tables::default();
        let plain = Shape {
            cells: 1000,
            ..shape(0..100, 0, 0)
        };
        tables.add(plain).expect("room");
        tables.add(shape(100..101, 8, 5000)).expect("room");
        let (memory, geometry) = session(&tables);
        let all = 0..geometry.size();
        let bytes = |memory: &Memory| memory.written(all.clone()).iter().map(Range::len).sum();
        let before: usize = bytes(&memory);
        let counter = geometry.counter(1, tables.tables[0].cell(50, 7));
        memory.store(counter, 3);
        let reader = TableReader::new(memory.clone(), geometry);
        let rows = reader.read(&tables.tables[0]).rows;
        assert_eq!(rows.len(), 100);
        assert_eq!((rows[50].cells[7], rows[51].cells[7]), (3, 0));
        assert_eq!(reader.read(&tables.tables[1]).rows, []);
        let after: usize = bytes(&memory);
        // Only the directory's head and the rows on the page that was written, out of some 600
        // rows.
        assert!(after - before <= 8 * 4096, "{before} {after}");
        let word = counter..counter + 8;
        assert_eq!(memory.written(word.clone()).as_slice(), [word].as_slice());
    }

    #[test]
    fn nonsense_from_the_target_is_read_without_harm() {
        let mut tables = Tables::default();
        tables.add(shape(0..1, 8, 4)).expect("room");
        let (memory, geometry) = session(&tables);
        let from = geometry.directories_offset();
        for at in (from..geometry.packets_offset()).step_by(8) {
            memory.store(at, u64::MAX);
        }
        let table = &tables.tables[0];
        put(&memory, &geometry, table, 0, 2, &[7; 8]);
        memory.store_u32(from + directory::HEAD + directory::LENGTH, u32::MAX);
        let contents = TableReader::new(memory, geometry).read(table);
        assert_eq!(contents.dropped, 0, "nobody can have counted so far");
        assert_eq!(contents.rows.len(), 1);
        assert_eq!(contents.rows[0].key, [7; 8]);
    }

    #[test]
    fn nonsense_in_a_summary_is_read_without_harm() {
        let mut tables = Tables::default();
        let summarised = Shape {
            summary: summary::ROOM,
            ..shape(0..2, 8, 40)
        };
        tables.add(summarised).expect("room");
        let (memory, geometry) = session(&tables);
        let table = &tables.tables[0];
        let reader = TableReader::new(memory.clone(), geometry);
        // A generator of Marsaglia's.
        let mut word = 88_172_645_463_325_252_u64;
        for round in 0..20 {
            for cpu in 0..2 {
                let summaries = table.summaries.expect("it has some");
                for at in summary::range(&geometry, table, &summaries, cpu).step_by(8) {
                    word ^= word << 13;
                    word ^= word >> 7;
                    word ^= word << 17;
                    // Also small numbers, which may mean something.
                    memory.store(at, word >> (word % 64).min(3 * round));
                }
            }
            let contents = reader.read(table);
            assert!(contents.rows.iter().all(|row| row.key.len() <= 8));
            assert!(contents.others.len() <= 2);
        }
        reader.clear(table);
        assert_eq!(reader.read(table), Contents::default());
    }

    #[test]
    fn the_room_of_a_removed_table_is_used_again() {
        let mut tables = Tables::default();
        for (event, key) in [(0, 8), (1, 0), (2, 24), (3, 8)] {
            tables.add(shape(event..event + 1, key, 100)).expect("room");
        }
        let size = (tables.counters(), tables.directories());
        let (memory, geometry) = session(&tables);
        let reader = TableReader::new(memory.clone(), geometry);
        for table in &tables.tables {
            for cpu in 0..3 {
                memory.store(geometry.counter(cpu, table.cell(0, 2)), 7);
            }
            if table.shape.key > 0 {
                put(
                    &memory,
                    &geometry,
                    table,
                    0,
                    table.shape.events.start + 2,
                    &[1; 8],
                );
            }
        }
        let old = tables.tables[2].clone();
        let before: Vec<Contents> = tables.tables.iter().map(|t| reader.read(t)).collect();
        tables.remove(&old);
        reader.clear(&old);
        let new = tables.add(shape(4..5, 16, 100)).expect("room").clone();
        assert_eq!(
            (new.first_cell, new.directory),
            (old.first_cell, old.directory)
        );
        assert_eq!((tables.counters(), tables.directories()), size);
        assert_eq!(reader.read(&new), Contents::default());
        // The others are as they were; and one that is too large for the gap goes behind them.
        let after: Vec<Contents> = tables.tables[..3].iter().map(|t| reader.read(t)).collect();
        assert_eq!(after, [&before[..2], &before[3..]].concat());
        tables.remove(&new);
        let larger = tables.add(shape(5..6, 24, 200)).expect("room");
        assert_eq!(
            (u64::from(larger.first_cell), larger.directory),
            (u64::from(size.0), size.1)
        );
    }

    #[test]
    fn tables_do_not_overlap_and_have_a_limit() {
        let mut tables = Tables::default();
        for keys in [1, 4, 5, 1000] {
            tables.add(shape(0..1, 24, keys)).expect("room");
        }
        for pair in tables.tables.windows(2) {
            let directory = pair[0].directory + 64 + u64::from(pair[0].rows * pair[0].row_size());
            assert!(directory <= pair[1].directory, "{pair:?}");
            assert!(pair[0].cell(pair[0].rows, 0) <= pair[1].first_cell);
            assert!(pair[0].rows >= 2 * pair[0].shape.keys.max(4));
        }
        for keys in [1 << 27, u32::MAX] {
            assert_eq!(tables.add(shape(0..1, 8, keys)), Err(TooLarge));
        }
        assert_eq!(tables.tables.len(), 4);
    }
}
