//! Events that are aggregated in a table instead of recorded.
//!
//! Aggregation that depends on registers alone (no key, or one that is a register, a constant
//! or the thread; numbers in registers, and constants) is straight code, one piece for each
//! cell. Otherwise the resident fetches key and numbers into the spare part of a packet, where
//! nothing is committed, and aggregates them from there.

use super::{Builder, Content, Fetch, FetchError, Field, STRING_LIMIT, Source};
use crate::arch::registers::MOST_IN_CELL;
use crate::condition::{Condition, Width};
use crate::program::{Program, Step};
use crate::work::{Filter, Function, Key, Straight, StraightAmount, StraightRow, Value, Work};
use capriole_ring::intervals::Intervals;
use capriole_ring::numbers::{directory, op, program, table, tally};
use capriole_ring::summary::Summaries;
use capriole_ring::tables::Table;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of bytes of a string used as a key.
pub const KEY_TEXT_LIMIT: u16 = 124;

/// Width of a latency in a register.
const LATENCY: Width = Width {
    bytes: 8,
    signed: false,
    bits: None,
};

/// Change made to a cell of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Amount {
    /// Adds one.
    One,
    /// Adds one if a field can be read.
    Readable(usize),
    /// Adds the number in a field.
    Sum(usize),
    /// Keeps the largest value of the field's number with these bits inverted; adds nothing.
    Maximum {
        /// The field.
        field: usize,
        /// The bits: 0 for the maximum of unsigned numbers, the highest bit for the maximum of
        /// signed ones, the complement of these for the minimum.
        flip: u64,
    },
    /// Adds one to the [bucket](crate::histogram) of the field's number, counted from this cell.
    Bucket(usize),
    /// Adds one to the bucket of the field's number, an unsigned one, counted from this cell; and
    /// changes the [`TIMES_CELLS`] cells before it: adds the number, keeps the largest, and keeps the
    /// largest complement.
    Times(usize),
}

/// Number of cells before the buckets that [`Amount::Times`] changes.
pub const TIMES_CELLS: u32 = 3;

/// Aggregation of an event: its table, key and cells. The event's first fields are the key; the
/// numbers follow, up to `recorded` fields in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// The table.
    pub table: Table,
    /// Number of fields that form the key.
    pub keys: usize,
    /// Cells of the row, and the change made to each. If a field cannot be read, its cells stay
    /// unchanged.
    pub cells: Vec<(u32, Amount)>,
    /// The cell that counts hits with an unreadable number.
    pub unreadable: Option<u32>,
    /// The slots of intervals of which one ends here: only then is anything aggregated. Its key is the
    /// [words](Fetch::words).
    pub ends: Option<Intervals>,
}

impl Amount {
    fn field(self) -> Option<usize> {
        match self {
            Amount::One => None,
            Amount::Readable(field)
            | Amount::Sum(field)
            | Amount::Maximum { field, .. }
            | Amount::Bucket(field)
            | Amount::Times(field) => Some(field),
        }
    }
}

impl Tally {
    /// Returns the maximum size in bytes of a key made of these fields; 0 without fields.
    pub fn key_size(keys: &[Field]) -> u32 {
        let size = |field: &Field| match field.content {
            _ if field.source.is_text() => field.size(),
            Content::Text => (4 + u64::from(KEY_TEXT_LIMIT)).next_multiple_of(8),
            Content::Number(_)
            | Content::Network { .. }
            | Content::Numbers { .. }
            | Content::Texts { .. }
            | Content::Callers { .. } => field.size(),
        };
        let faults = keys.iter().any(Field::can_fault);
        keys.iter().map(size).sum::<u64>() as u32 + if faults { 8 } else { 0 }
    }
}

impl Fetch {
    /// Returns the work that aggregates this event.
    ///
    /// # Errors
    /// A field is not a number, or cannot be a key.
    pub fn tally(&self, event: u32, tally: &Tally) -> Result<Vec<Work>, FetchError> {
        for (index, field) in self.fields[..tally.keys].iter().enumerate() {
            match field.content {
                Content::Numbers {
                    bytes: 16,
                    count: 1,
                } if field.pointers.is_empty() => {
                    return Err(FetchError::NotInMemory(index));
                }
                Content::Numbers {
                    bytes: 16,
                    count: 1,
                } => {}
                Content::Numbers { .. } | Content::Texts { .. } => {
                    return Err(FetchError::NotAKey(index));
                }
                Content::Text if field.pointers.is_empty() && !field.is_text() => {
                    return Err(FetchError::NotInMemory(index));
                }
                Content::Number(_)
                | Content::Network { .. }
                | Content::Text
                | Content::Callers { .. } => {}
            }
        }
        let values = tally.cells.iter().filter_map(|(_, amount)| amount.field());
        for index in values {
            self.width(index).ok_or(FetchError::NotANumber(index))?;
        }
        let (filter, rest) = self.split();
        if rest.is_none()
            && tally.ends.is_none()
            && let Some(straight) = self.straight_cells(event, tally, filter.as_ref())?
        {
            return Ok(straight);
        }
        let program = self.tally_program(tally, &tally.cells, &[], rest.as_ref(), true)?;
        Ok(vec![self.run(event, program, filter, rest.as_ref())])
    }

    /// Returns straight code for each cell, if possible.
    fn straight_cells(
        &self,
        event: u32,
        tally: &Tally,
        filter: Option<&Filter>,
    ) -> Result<Option<Vec<Work>>, FetchError> {
        let table = &tally.table;
        let row = match (&self.fields[..tally.keys], table.shape.key) {
            ([], 0) => None,
            ([key], 8) => {
                let (key, width) = match (&key.source, key.register(), key.constant()) {
                    (_, Some((register, width)), _) => (Key::Register(register), width),
                    (_, _, Some((value, width))) => (Key::Constant(value), width),
                    (Source::Thread, ..) => (Key::Thread, Width::WORD),
                    _ => return Ok(None),
                };
                Some(StraightRow {
                    key,
                    width,
                    directory: table.directory,
                    shift: shift(table),
                    cells: table.shape.cells,
                })
            }
            _ => return Ok(None),
        };
        let number = |field: usize| {
            let field = &self.fields[field];
            match (&field.source, field.register(), field.constant()) {
                (_, Some((register, width)), _) => Some((Value::Register(register), width)),
                (_, _, Some((value, width))) => Some((Value::Constant(value), width)),
                (Source::Latency(call), ..) => Some((Value::Latency(*call), LATENCY)),
                _ => None,
            }
        };
        let of = |function, field| {
            let (value, width) = number(field)?;
            Some(StraightAmount::Of(function, value, width))
        };
        let mut works = Vec::new();
        for (cell, amount) in &tally.cells {
            let amount_of = match *amount {
                // Registers and constants are always readable.
                Amount::One => Some(StraightAmount::One),
                Amount::Readable(field) => match number(field) {
                    Some((Value::Register(_) | Value::Constant(_), _)) => Some(StraightAmount::One),
                    _ => None,
                },
                Amount::Sum(field) => of(Function::Sum, field),
                Amount::Maximum { field, flip } => of(Function::Maximum(flip), field),
                Amount::Bucket(field) => of(Function::Bucket, field),
                Amount::Times(field) => match number(field) {
                    Some((Value::Latency(_), _)) => of(Function::Times, field),
                    _ => None,
                },
            };
            let Some(amount_of) = amount_of else {
                return Ok(None);
            };
            let first = match row {
                Some(_) => 0,
                None => event - table.shape.events.start,
            };
            let counter = table.cell(first, *cell);
            if let (None, StraightAmount::One) = (&row, &amount_of) {
                works.push(Work::Count {
                    counter,
                    filter: filter.cloned(),
                });
                continue;
            }
            // The program does whatever the straight code cannot, with the same result. In a
            // summary the first one does it for all cells: another might find the key's row
            // replaced.
            let first = works.is_empty();
            let rest = if first { &tally.cells[1..] } else { &[] };
            let program = self.tally_program(tally, &[(*cell, *amount)], rest, None, first)?;
            works.push(Work::Tally(Straight::new(
                event,
                counter,
                row,
                amount_of,
                Arc::new(program),
                filter.cloned(),
            )));
        }
        let registers: BTreeSet<_> = works.iter().flat_map(Work::registers).collect();
        let asked = filter.iter().flat_map(|filter| filter.registers());
        let all: BTreeSet<_> = registers.into_iter().chain(asked).collect();
        let bits = |w: &Work| matches!(w, Work::Tally(straight) if straight.has_bits());
        Ok((all.len() <= MOST_IN_CELL && !works.iter().any(bits)).then_some(works))
    }

    /// Builds the program that adds to these cells if `condition` holds, and to `summarised` if the
    /// row is in a summary. Of the programs of one hit, the first counts unreadable numbers, and
    /// keys for which no row is free.
    fn tally_program(
        &self,
        tally: &Tally,
        cells: &[(u32, Amount)],
        summarised: &[(u32, Amount)],
        condition: Option<&Condition>,
        is_first: bool,
    ) -> Result<Program, FetchError> {
        let mut builder = Builder::new(self);
        let table = describe(&tally.table);
        let at = builder.texts.len() as u64;
        builder.texts.extend(table);
        let tree = builder.condition(condition)?;
        if let Some(intervals) = &tally.ends {
            for index in 0..self.recorded {
                builder.compared(index)?;
            }
            for index in self.recorded..self.fields.len() {
                builder.field(index, STRING_LIMIT)?;
            }
            // Only an end that the condition accepts takes the interval.
            builder.conclude(&tree);
            builder.interval(op::END, intervals);
        }
        let fields = match tally.ends {
            Some(_) => self.recorded,
            None => self.fields.len(),
        };
        for index in 0..fields {
            if index == tally.keys {
                builder.steps.push(Step::new(op::KEY));
            }
            let is_key = index < tally.keys;
            let limit = if is_key { KEY_TEXT_LIMIT } else { STRING_LIMIT };
            builder.field(index, limit)?;
            // The key is only the number, without the register's upper bits.
            if is_key && let Some(width) = self.width(index) {
                builder.steps.push(Step::made(op::NARROW, 0, width));
            }
        }
        if fields == tally.keys {
            builder.steps.push(Step::new(op::KEY));
        }
        if tally.ends.is_none() {
            builder.conclude(&tree);
        }
        builder.to_place.push(builder.steps.len());
        builder.steps.push(Step {
            a: u8::from(is_first),
            value: at,
            ..Step::new(op::ROW)
        });
        builder.steps.extend(self.changes(tally, cells));
        if let Some(cell) = tally.unreadable.filter(|_| is_first) {
            let can_fault = |field: &usize| self.fields[*field].can_fault();
            let values = (tally.keys..self.recorded).filter(can_fault);
            builder.steps.push(Step {
                limit: cell as u16,
                value: values.fold(0, |mask, field| mask | 1 << field),
                ..Step::new(op::UNREADABLE)
            });
        }
        let summarised = match tally.table.summaries {
            Some(_) => self.changes(tally, summarised),
            None => Vec::new(),
        };
        if !summarised.is_empty() {
            builder.steps.push(Step {
                count: summarised.len() as u16,
                ..Step::new(op::SUMMARY)
            });
            builder.steps.extend(summarised);
        }
        let faults = self.fields[..tally.keys].iter().any(Field::can_fault);
        let faults = if faults { program::FAULTS } else { 0 };
        let intervals = match tally.ends {
            Some(_) => program::INTERVAL,
            None => 0,
        };
        builder.finish(program::TALLY | faults | intervals)
    }

    /// Returns the steps that change these cells of the row.
    fn changes(&self, tally: &Tally, cells: &[(u32, Amount)]) -> Vec<Step> {
        let one_by_one = cells.iter().flat_map(|(cell, amount)| match *amount {
            Amount::Times(field) => {
                let maximum = |flip| Amount::Maximum { field, flip };
                let all = [
                    Amount::Sum(field),
                    maximum(0),
                    maximum(u64::MAX),
                    Amount::Bucket(field),
                ];
                (cell - TIMES_CELLS..).zip(all).collect()
            }
            amount => vec![(*cell, amount)],
        });
        let step = |(cell, amount): (u32, Amount)| {
            let of = |op, field: usize| Step {
                limit: cell as u16,
                field: u8::try_from(field).unwrap_or(u8::MAX),
                bit: (field - tally.keys) as u8,
                ..Step::made(op::TALLY, op, self.width(field).unwrap_or(Width::WORD))
            };
            Some(match amount {
                Amount::One => Step {
                    a: tally::ONE,
                    field: u8::MAX,
                    limit: cell as u16,
                    ..Step::new(op::TALLY)
                },
                Amount::Readable(field) => of(tally::ONE, field),
                Amount::Sum(field) => of(tally::SUM, field),
                Amount::Maximum { field, flip } => Step {
                    value: flip,
                    ..of(tally::MAXIMUM, field)
                },
                Amount::Bucket(field) => of(tally::BUCKET, field),
                Amount::Times(_) => return None, // it was replaced above
            })
        };
        one_by_one.filter_map(step).collect()
    }
}

/// Returns the shift that turns the hash of a key into the number of its set.
fn shift(table: &Table) -> u32 {
    32 - (table.rows / directory::WAYS).max(1).ilog2()
}

/// Returns the table's description for the resident.
fn describe(described: &Table) -> Vec<u8> {
    let shape = &described.shape;
    let maxima = shape.cells.div_ceil(64) as usize;
    let mut bytes = vec![0; table::SIZE + 8 * maxima];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let shift = if shape.key == 0 { 0 } else { shift(described) };
    let summaries = described.summaries.as_ref();
    let of = |number: fn(&Summaries) -> u32| summaries.map_or(0, number);
    put(table::DIRECTORY, &described.directory.to_le_bytes());
    for (at, word) in [
        (table::ROWS, described.rows),
        (table::KEY_SIZE, shape.key),
        (table::FIRST_CELL, described.first_cell),
        (table::CELLS, shape.cells),
        (table::FIRST_EVENT, shape.events.start),
        (table::SHIFT, shift),
        (table::SUMMARIES, of(|all| all.first)),
        (table::SUMMARY_LANES, of(|all| all.lanes)),
        (table::SUMMARY_SETS, of(|all| all.sets)),
        (table::SUMMARY_BITS, of(|all| all.bits)),
    ] {
        put(at, &word.to_le_bytes());
    }
    for cell in shape.maxima.iter().filter(|cell| **cell < shape.cells) {
        bytes[table::SIZE + *cell as usize / 8] |= 1 << (cell % 8);
    }
    bytes
}
