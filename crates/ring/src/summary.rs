//! Summaries: hits of keys for which a [table](crate::tables) has no row.
//!
//! A table's rows are those of the first keys that come. The hits of all further keys go to a
//! *summary* of the most frequent ones, by the Space-Saving algorithm (A. Metwally, D. Agrawal, A.
//! El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005): a
//! key without a row takes the row that has the least count, and begins with that count as its
//! *error*. Keys of a table's own rows stay exact.
//!
//! Each lane of each CPU has a summary of its own, changed only by the holder of the lane: so an
//! interrupted thread never finds a row's key replaced behind its back. The summaries are among
//! the [counters](crate::layout#counters) of the CPU.
//!
//! ```text
//! summary   of lane 1: set 0, set 1, ...; of lane 2: ...      for each CPU
//! set       state, cell, sum              of a row that is being emptied
//!           16 heads                      used, length, entered, count, error, the key
//!           cells of 16 rows, others      as in the table
//! ```
//!
//! **Counts.** A key's set is selected by its event and hash, so a set is a whole instance of the
//! algorithm, for the hits of its own keys. In one set:
//!
//! * A row's cells have the hits since it got its key: all its numbers are of these same hits.
//! * The key had at most `error` hits before; a key without a row had at most as many as the least
//!   `count + error` of the set. Proof, by induction over hits: both hold in an empty set. A hit of
//!   a key with a row changes neither, as counts only grow. A new key has had at most the least
//!   `count + error`, which becomes its error; the replaced key has had at most its own `count +
//!   error`, which was the least, and the least of the set never falls.
//! * If a set was hit `n` times, the least is at most `n / 16`: all `count + error` together are
//!   `n`. With `k` frequent keys in it, the least is at most their rest's hits `/ (16 - k)`.
//! * The cells of a replaced key are added to the set's *others*, so totals stay exact.
//!
//! A key's hits are in the sets of the same number of several summaries; what is unknown of it is
//! at most the sum of the errors, or least counts where it has no row (as in P. Agarwal et al.,
//! Mergeable Summaries, PODS 2012).
//!
//! **Reading.** The state changes whenever a row begins and ends to be emptied. While that lasts,
//! `cell` and `sum` tell which cell is on its way to the others: whoever reads the set takes the sum
//! for the others' cell and 0 for the row's. So a hit is read exactly once at any moment, if state and
//! `cell` are the same before and after, as no pair of them returns; also if the program was killed
//! in between.

use crate::layout::Geometry;
use crate::memory::MOST;
use crate::numbers::session::LANES;
use crate::numbers::summary::{
    CELL, COUNT, ENTERED, ERROR, HEAD, KEY, LENGTH, STATE, SUM, USED, WAYS,
};
use crate::tables::{Shape, Table, merge, overlaps};
use crate::{Memory, layout};
use std::collections::BTreeMap;
use std::ops::Range;

/// Counters that are enough for the summaries of one table: 64 MiB for each CPU. Memory is used only
/// for lanes that are.
pub const ROOM: u64 = 1 << 23;
/// Number of lanes for which there is room by all means, if there can be.
const FEWEST_LANES: u64 = 4;
/// Number of times that a set is read again because it was changing.
const ATTEMPTS: usize = 100;

/// Place and size of a table's summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summaries {
    /// The counter at which the first one begins.
    pub first: u32,
    /// Number of lanes that have one, from lane 1.
    pub lanes: u32,
    /// Number of sets of a summary.
    pub sets: u32,
    /// Two's logarithm of the number of sets for each event.
    pub bits: u32,
}

impl Summaries {
    /// Returns the summaries for a table of this shape, from counter 0: for each event at least as
    /// many rows as keys were requested, as far as there is room. `None` if there is no room at all.
    pub(crate) fn of(shape: &Shape) -> Option<Summaries> {
        if shape.key == 0 {
            return None;
        }
        let room = shape.summary;
        let events = u64::from(shape.events.end - shape.events.start).max(1);
        let wanted = shape.keys.div_ceil(WAYS).next_power_of_two();
        let mut bits = wanted.ilog2().saturating_sub(events.ilog2());
        let set = set_words(shape);
        let size = |bits: u32| (events << bits) * set;
        while bits > 0 && size(bits) * FEWEST_LANES > room {
            bits -= 1;
        }
        let lanes = (room / size(bits)).min(LANES as u64 - 1);
        (lanes > 0).then_some(Summaries {
            first: 0,
            lanes: lanes as u32,
            sets: (events << bits) as u32,
            bits,
        })
    }

    /// Number of counters that all of them take.
    pub(crate) fn counters(&self, shape: &Shape) -> u64 {
        u64::from(self.lanes) * u64::from(self.sets) * set_words(shape)
    }
}

/// Words of a row's head.
fn head_words(shape: &Shape) -> u64 {
    (KEY as u64 + u64::from(shape.key)) / 8
}

/// Words of a set.
fn set_words(shape: &Shape) -> u64 {
    let ways = u64::from(WAYS);
    HEAD as u64 / 8 + ways * head_words(shape) + (ways + 1) * u64::from(shape.cells)
}

/// Identity of a row in a summary, between the moments when it gets a key and loses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Life {
    /// Number of the row, among all of the table.
    pub row: u64,
    /// State of its set when it got the key.
    pub entered: u64,
}

/// A row of a summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub life: Life,
    pub event: u32,
    pub key: Vec<u8>,
    pub cells: Vec<u64>,
    /// Number of the set.
    pub set: u32,
    /// Hits that are not in the cells, at most.
    pub error: u64,
    /// Least count of the row's set: the error of a key that has no row there.
    pub least: u64,
}

/// Contents of all summaries of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summed {
    /// Rows that have a key.
    pub kept: Vec<Kept>,
    /// Cells of the hits of replaced keys, by event.
    pub others: BTreeMap<u32, Vec<u64>>,
    /// For each set, the number of hits that a key may have that has a row nowhere.
    pub least: Vec<u64>,
}

impl Summed {
    /// Returns the number of hits that a key may have that has a row nowhere.
    pub(crate) fn most(&self) -> u64 {
        self.least.iter().copied().max().unwrap_or(0)
    }
}

/// One set, read at one moment.
struct Set {
    /// Rows with a key.
    rows: Vec<SetRow>,
    others: Vec<u64>,
    least: u64,
}

/// A row with a key.
struct SetRow {
    way: u32,
    entered: u64,
    error: u64,
    key: Vec<u8>,
    cells: Vec<u64>,
}

/// Reads the summaries of a table.
pub(crate) fn read(memory: &Memory, geometry: &Geometry, table: &Table) -> Summed {
    let mut summed = Summed::default();
    let Some(summaries) = table.summaries else {
        return summed;
    };
    let shape = &table.shape;
    summed.least = vec![0; summaries.sets as usize];
    let size = set_words(shape) as usize * layout::COUNTER_SIZE;
    for cpu in 0..geometry.cpus {
        let all = range(geometry, table, &summaries, cpu);
        let written = memory.written(all.clone());
        for (index, at) in (0u64..).zip(all.step_by(size)) {
            if !overlaps(&written, at..at + size) {
                continue;
            }
            let number = (index % u64::from(summaries.sets)) as u32;
            let event = shape.events.start + (number >> summaries.bits);
            let set = steady(memory, shape, at);
            let least = &mut summed.least[number as usize];
            *least = least.saturating_add(set.least);
            if set.others.iter().any(|cell| *cell > 0) {
                let others = summed.others.entry(event);
                let others = others.or_insert_with(|| vec![0; shape.cells as usize]);
                merge(shape, others, &set.others);
            }
            let lanes = u64::from(cpu) * u64::from(summaries.lanes) * u64::from(summaries.sets);
            let first = (lanes + index) * u64::from(WAYS);
            let kept = set.rows.into_iter().map(|row| Kept {
                life: Life {
                    row: first + u64::from(row.way),
                    entered: row.entered,
                },
                event,
                key: row.key,
                cells: row.cells,
                set: number,
                error: row.error,
                least: set.least,
            });
            summed.kept.extend(kept);
        }
    }
    summed
}

/// Returns the bytes of all summaries on a CPU.
pub(crate) fn range(
    geometry: &Geometry,
    table: &Table,
    summaries: &Summaries,
    cpu: u32,
) -> Range<usize> {
    let first = geometry.counter(cpu, summaries.first);
    let size = summaries.counters(&table.shape) as usize * layout::COUNTER_SIZE;
    first..first + size
}

/// Reads a set while no row is on its way to the others, or as if that row's cell had arrived. If
/// the set never rests, the last attempt counts.
fn steady(memory: &Memory, shape: &Shape, at: usize) -> Set {
    let head = || [STATE, CELL, SUM].map(|offset| memory.load(at + offset));
    let mut before = head();
    for _ in 0..ATTEMPTS {
        let set = set_of(memory, shape, at, before);
        let after = head();
        if before == after {
            return set;
        }
        before = after;
    }
    set_of(memory, shape, at, before)
}

fn set_of(memory: &Memory, shape: &Shape, at: usize, [state, cell, sum]: [u64; 3]) -> Set {
    let heads = at + HEAD;
    let head_size = 8 * head_words(shape) as usize;
    let cells_size = 8 * shape.cells as usize;
    let first_cells = heads + WAYS as usize * head_size;
    let cells = |way: u32| -> Vec<u64> {
        let first = first_cells + way as usize * cells_size;
        (first..first + cells_size)
            .step_by(8)
            .map(|at| memory.load(at))
            .collect()
    };
    let emptied = (state & 1 == 1).then_some((state >> 32) as u32 % WAYS);
    let moves = emptied.is_some() && cell & 1 == 1;
    let moved = (cell >> 1).checked_sub(1).filter(|_| moves);
    let moved = moved.filter(|cell| *cell < shape.cells.into());
    let moved = moved.map(|cell| cell as usize);
    // Counts that nobody can have counted so far were overwritten.
    let counted = |at: usize| Some(memory.load(at)).filter(|count| *count < MOST);
    let mut set = Set {
        rows: Vec::new(),
        others: cells(WAYS),
        least: u64::MAX,
    };
    if let Some(cell) = moved {
        set.others[cell] = sum;
    }
    for way in 0..WAYS {
        let head = heads + way as usize * head_size;
        // Read first: the key is complete if it is 1.
        let used = memory.load_u32(head + USED) == 1;
        let count = counted(head + COUNT).unwrap_or(0);
        let error = counted(head + ERROR).unwrap_or(0);
        set.least = set.least.min(count + error);
        if !used {
            continue;
        }
        let length = memory.load_u32(head + LENGTH).min(shape.key) as usize;
        let mut key = vec![0; length];
        memory.read(head + KEY, &mut key);
        let mut cells = cells(way);
        // The hits of a row that is being emptied may be among the others already.
        let is_emptied = emptied == Some(way);
        if let (true, Some(cell)) = (is_emptied, moved) {
            cells[cell] = 0;
        }
        set.rows.push(SetRow {
            way,
            entered: memory.load(head + ENTERED),
            error: if is_emptied { error + count } else { error },
            key,
            cells,
        });
    }
    set
}
