//! Tables that the program keeps for maps, and the meaning of their cells.

use super::model::{
    Bucket, Chain, ChainEnd, Exact, Group, Histogram, Intervals, Measure, Row, Total, Value,
};
use super::totals::{Part, Totals};
use crate::error::Result;
use capriole_codegen::fetch::{Amount, Content, Field, Source, TIMES_CELLS, Tally};
use capriole_codegen::histogram;
use capriole_codegen::work::Work;
use capriole_event::{Aggregation, Element, FieldType, Function, Pairing, Shown};
use capriole_ring::intervals::Intervals as Slots;
use capriole_ring::memory::MOST;
use capriole_ring::numbers::chain;
use capriole_ring::tables::{self, Shape, Table, TableReader, Tables};
use capriole_select::fields::Fields;
use capriole_select::select::Selected;
use capriole_trace::Enumerated;
use capriole_trace::clock::Clock;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::OnceLock;

/// The highest bit: inverting it sorts signed numbers in the order of unsigned ones.
const SIGN: u64 = 1 << 63;

/// Number of slots for open intervals for each key that a table has room for.
const SLOTS_OF_KEY: u32 = 4;

/// The table of a map.
#[derive(Debug)]
pub struct AggregateTable {
    table: Table,
    aggregation: Aggregation,
    /// Index of the action whose table this is, among those of its probe.
    action: usize,
    measures: Vec<(String, Cells)>,
    calls: Calls,
    /// Cell that counts hits with an unreadable number; `None` if every number can be read.
    unreadable: Option<u32>,
    keys: Keys,
    /// Clock that gives the length of a tick, if calls are timed.
    clock: Option<Clock>,
    /// Times that ticks and their buckets stand for, once rows were read. They stay the same then:
    /// readings are subtracted from each other bucket by bucket.
    times: OnceLock<Times>,
    /// Fields at one of the sites, if all sites share the rows.
    shared: Option<Fields>,
    values: Vec<Kind>,
    /// The slots of open intervals, if the table is of those.
    intervals: Option<Slots>,
    /// Numbers of the events that start them, and have a probe.
    starts: Vec<usize>,
}

/// Room for the keys of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keys {
    /// Number of keys that have a row in any case.
    pub room: u32,
    /// Number of counters, at most, for [summaries](capriole_ring::summary) of further keys. With
    /// too few for one, hits of further keys are dropped.
    pub summary: u64,
}

/// Source of the number of hits.
#[derive(Debug, Clone, Copy)]
enum Calls {
    /// A cell of its own.
    Cell(u32),
    /// The sum of a histogram's buckets, and of the hits that could not be read: every hit is in
    /// one of the two.
    Sum {
        first: u32,
        buckets: u32,
        unreadable: Option<u32>,
    },
}

/// The cells of a measure.
#[derive(Debug, Clone, Copy)]
enum Cells {
    /// The number of calls, which is always shown.
    Calls,
    Sum {
        value: usize,
        cell: u32,
    },
    /// The largest value, or the smallest if `least`.
    Extreme {
        value: usize,
        cell: u32,
        least: bool,
        readable: Option<u32>,
    },
    Average {
        value: usize,
        sum: u32,
        readable: Option<u32>,
    },
    Histogram {
        value: usize,
        first: u32,
        buckets: u32,
        /// The values are ticks, to be shown as nanoseconds. Their sum, their largest, and their
        /// largest complement are in the [`TIMES_CELLS`] cells before the first bucket.
        ticks: bool,
    },
}

/// Times that ticks stand for.
#[derive(Debug)]
struct Times {
    /// Ticks per second.
    hz: u64,
    /// Time in ns of each bucket of ticks.
    buckets: Vec<Range<i128>>,
}

impl Times {
    fn ns(&self, ticks: u64) -> i128 {
        i128::from(ticks) * 1_000_000_000 / i128::from(self.hz.max(1))
    }
}

impl Cells {
    fn is_shown(&self) -> bool {
        !matches!(self, Cells::Calls)
    }
}

/// Properties shared by all sites, as far as their table depends on them.
struct Common {
    key: u32,
    values: Vec<Kind>,
}

/// Properties of an aggregated value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Kind {
    /// Signed at some site.
    signed: bool,
    /// Possibly unreadable at some site.
    faults: bool,
    /// The duration of a call, in ticks.
    ticks: bool,
}

impl Common {
    fn of(sites: &[&Fields]) -> Common {
        let mut common = Common {
            key: 0,
            values: Vec::new(),
        };
        for Fields { fetch, keys, .. } in sites {
            common.key = common.key.max(Tally::key_size(&fetch.fields[..*keys]));
            let values = &fetch.fields[*keys..fetch.recorded];
            common.values.resize(values.len(), Kind::default());
            for (value, kind) in values.iter().zip(&mut common.values) {
                kind.signed |= matches!(value.content, Content::Number(width) if width.signed);
                kind.faults |= value.can_fault();
                kind.ticks |= matches!(value.source, Source::Latency(_) | Source::Interval);
            }
        }
        common
    }
}

/// Allocates the cells of a row.
#[derive(Default)]
struct RowLayout {
    next: u32,
    maxima: Vec<u32>,
    /// Cells that count how often a value could be read, by value.
    readable: HashMap<usize, u32>,
}

impl RowLayout {
    fn cells(&mut self, count: u32) -> u32 {
        self.next += count;
        self.next - count
    }

    fn extreme(&mut self) -> u32 {
        let cell = self.cells(1);
        self.maxima.push(cell);
        cell
    }

    /// Returns the cell that counts the hits in which this value could be read; `None` if it
    /// always can.
    fn readable(&mut self, value: usize, faults: bool) -> Option<u32> {
        if !faults {
            return None;
        }
        if let Some(cell) = self.readable.get(&value) {
            return Some(*cell);
        }
        let cell = self.cells(1);
        self.readable.insert(value, cell);
        Some(cell)
    }
}

impl AggregateTable {
    /// Adds a table for an aggregation at `sites`, whose events have these ids, with this room
    /// for keys. `clock` shows durations in ns.
    ///
    /// # Errors
    /// There is not enough room.
    pub fn new(
        aggregation: &Aggregation,
        sites: &[&Fields],
        events: Range<u32>,
        keys: Keys,
        clock: Option<&Clock>,
        tables: &mut Tables,
    ) -> Result<AggregateTable> {
        let common = Common::of(sites);
        let names = sites.first().map(|fields| fields.value_names());
        let names: Vec<&str> = names.unwrap_or_default();
        let mut row = RowLayout::default();
        let mut measures = Vec::new();
        for aggregate in &aggregation.aggregates {
            let value = |name: &str| names.iter().position(|other| *other == name);
            let cells = match (aggregate.function, &aggregate.field) {
                (Function::Count, _) | (_, None) => Cells::Calls,
                (function, Some(name)) => {
                    // Without a site there are no hits to aggregate, so any value will do.
                    let value = value(name).unwrap_or(0);
                    let kind = common.values.get(value).copied();
                    Cells::new(function, value, kind.unwrap_or_default(), &mut row)
                }
            };
            measures.push((aggregate.to_string(), cells));
        }
        let faults = common.values.iter().any(|kind| kind.faults);
        let unreadable = faults.then(|| row.cells(1));
        // With a single value, each hit is either in its histogram or could not be read.
        let single = common.values.len() == 1;
        let whole = measures.iter().find_map(|(_, cells)| match *cells {
            Cells::Histogram {
                value,
                first,
                buckets,
                ..
            } => {
                let faults = common.values.get(value)?.faults;
                (single || !faults).then_some(Calls::Sum {
                    first,
                    buckets,
                    unreadable: unreadable.filter(|_| faults),
                })
            }
            _ => None,
        });
        let calls = whole.unwrap_or_else(|| Calls::Cell(row.cells(1)));
        let shape = Shape {
            events,
            key: common.key,
            keys: keys.room,
            cells: row.next,
            maxima: row.maxima,
            summary: keys.summary,
        };
        let table = tables.add(shape)?.clone();
        Ok(AggregateTable {
            table,
            aggregation: aggregation.clone(),
            action: 0,
            measures,
            calls,
            unreadable,
            keys,
            clock: clock
                .filter(|_| common.values.iter().any(|kind| kind.ticks))
                .cloned(),
            times: OnceLock::new(),
            shared: None,
            values: common.values,
            intervals: None,
            starts: Vec::new(),
        })
    }

    /// Adds slots for open intervals, if the table is of those.
    ///
    /// # Errors
    /// There is not enough room.
    pub(crate) fn of_intervals(
        self,
        pairing: Option<&Pairing>,
        tables: &mut Tables,
    ) -> Result<AggregateTable> {
        let add = |pairing: &Pairing| {
            let keys = pairing.key.len().max(1) as u32;
            let slots = self.keys.room.saturating_mul(SLOTS_OF_KEY);
            tables.add_intervals(keys, pairing.kept.len() as u32, slots)
        };
        Ok(AggregateTable {
            intervals: pairing.map(add).transpose()?,
            ..self
        })
    }

    /// Says which events start its intervals.
    pub(crate) fn started_by(self, starts: Vec<usize>) -> AggregateTable {
        AggregateTable { starts, ..self }
    }

    /// Returns the slots of open intervals, if the table is of those.
    pub(crate) fn intervals(&self) -> Option<&Slots> {
        self.intervals.as_ref()
    }

    /// Returns the work that starts an interval at a site with these fields.
    ///
    /// # Errors
    /// A field is not a number.
    pub(crate) fn start(&self, id: u32, fields: &Fields) -> Result<Option<Work>> {
        let start = |slots| fields.fetch.start(id, slots);
        let work = self.intervals.as_ref().map(start).transpose();
        work.map_err(|error| fields.not_compiled(&error))
    }

    /// Returns the table in session memory.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Says which of its probe's actions the table is for.
    pub(crate) fn of_action(self, action: usize) -> AggregateTable {
        AggregateTable { action, ..self }
    }

    /// Returns the index of the action whose table this is.
    pub(crate) fn action(&self) -> usize {
        self.action
    }

    /// Makes all sites update the same rows. One of them has these fields.
    pub(crate) fn shared(self, fields: &Fields) -> AggregateTable {
        AggregateTable {
            shared: Some(fields.clone()),
            ..self
        }
    }

    /// True if the table has this aggregation.
    pub(crate) fn is_of(&self, aggregation: &Aggregation) -> bool {
        self.aggregation == *aggregation
    }

    /// True if a site with these fields may update the shared rows: keys and values have the types
    /// that the table was made for, and there are cells for values that cannot be read.
    pub(crate) fn fits(&self, fields: &Fields) -> bool {
        let types = |of: &Fields| -> Vec<FieldType> {
            of.infos.iter().map(|info| info.field_type).collect()
        };
        let keys = |of: &Fields| {
            let keys = &of.fetch.fields[..of.keys];
            (of.keys, keys.iter().any(Field::can_fault))
        };
        let common = Common::of(&[fields]);
        let mut both = common.values.iter().zip(&self.values);
        let same = |shared: &Fields| types(shared) == types(fields) && keys(shared) == keys(fields);
        self.shared.as_ref().is_some_and(same)
            && common.key <= self.table.shape.key
            && both.all(|(own, has)| own.ticks == has.ticks && own.faults <= has.faults)
    }

    /// Returns the step of the clock in ns, if calls are timed.
    pub fn clock_step_ns(&self) -> Option<u64> {
        Some(self.clock.as_ref()?.model().ok()?.step_ns())
    }

    /// Returns the work of the probe of event `id`, which has these fields.
    ///
    /// # Errors
    /// A field cannot be aggregated, or cannot be a key.
    pub fn work(&self, id: u32, fields: &Fields) -> Result<Vec<Work>> {
        let id = match self.shared {
            Some(_) => self.table.shape.events.start,
            None => id,
        };
        let Fields {
            fetch, keys, infos, ..
        } = fields;
        let mut cells = Vec::new();
        let mut add = |cell: u32, amount: Amount| {
            if !cells.contains(&(cell, amount)) {
                cells.push((cell, amount));
            }
        };
        if let Calls::Cell(cell) = self.calls {
            add(cell, Amount::One);
        }
        for (_, measure) in &self.measures {
            let readable = match *measure {
                Cells::Calls => None,
                Cells::Sum { value, cell } => {
                    add(cell, Amount::Sum(keys + value));
                    None
                }
                Cells::Extreme {
                    value,
                    cell,
                    least,
                    readable,
                } => {
                    let field = keys + value;
                    let flip = flip(&infos[field].field_type, least);
                    add(cell, Amount::Maximum { field, flip });
                    readable.map(|cell| (cell, field))
                }
                Cells::Average {
                    value,
                    sum,
                    readable,
                } => {
                    add(sum, Amount::Sum(keys + value));
                    readable.map(|cell| (cell, keys + value))
                }
                Cells::Histogram {
                    value,
                    first,
                    ticks,
                    ..
                } => {
                    let field = keys + value;
                    let amount = match ticks {
                        true => Amount::Times(field),
                        false => Amount::Bucket(field),
                    };
                    add(first, amount);
                    None
                }
            };
            if let Some((cell, field)) = readable {
                add(cell, Amount::Readable(field));
            }
        }
        let tally = Tally {
            table: self.table.clone(),
            keys: *keys,
            cells,
            unreadable: self.unreadable,
            ends: self.intervals,
        };
        let works = fetch.tally(id, &tally);
        works.map_err(|error| fields.not_compiled(&error))
    }

    /// Reads the rows of `events`, which have a probe; `selected` lists all events that were
    /// selected together, the first of them with the number `first`.
    pub fn read(
        &self,
        reader: &TableReader,
        (selected, first): (&[Selected], u32),
        events: &[usize],
    ) -> Group {
        self.read_with(reader, events, |event| {
            let event = &selected[(event - first) as usize];
            event.fields.all().nth(self.action)
        })
    }

    /// Reads the rows that all sites share.
    pub(crate) fn read_shared(&self, reader: &TableReader) -> Group {
        let tag = self.table.shape.events.start;
        self.read_with(reader, &[tag as usize], |_| self.shared.as_ref())
    }

    /// Reads the rows of `events`, at whose sites these are the fields.
    fn read_with<'a>(
        &self,
        reader: &TableReader,
        events: &[usize],
        fields: impl Fn(u32) -> Option<&'a Fields>,
    ) -> Group {
        let mut contents = reader.read(&self.table);
        let all = contents.rows.iter_mut().chain(&mut contents.others);
        let damaged: u64 = all.map(|row| self.mend(row)).sum();
        let times = self.times();
        let all = contents.rows.iter().chain(&contents.others);
        let ended = all.map(|row| self.calls(&row.cells));
        let ended = ended.fold(contents.dropped, u64::saturating_add);
        let intervals = self.intervals.as_ref().map(|slots| {
            let found = reader.intervals(slots);
            Intervals {
                started: found.started,
                restarted: found.restarted,
                unmatched: found.unmatched,
                no_room: found.no_room,
                unreadable: found.unreadable,
                open: found.open,
                lost: Some(found.lost(ended)),
                slots: slots.slots,
                damaged: found.damaged,
            }
        });
        let has_probe = |row: &&tables::Row| events.binary_search(&(row.event as usize)).is_ok();
        let rows = contents.rows.iter().filter(has_probe);
        let others = contents.others.iter().filter(has_probe);
        Group {
            key_names: self
                .aggregation
                .keys
                .iter()
                .map(|key| key.name().to_owned())
                .collect(),
            measure_names: self
                .measures
                .iter()
                .filter(|(_, cells)| cells.is_shown())
                .map(|(name, _)| name.clone())
                .collect(),
            in_nanoseconds: self
                .measures
                .iter()
                .filter(|(_, cells)| cells.is_shown())
                .map(|(_, cells)| matches!(cells, Cells::Histogram { ticks: true, .. }))
                .collect(),
            events: events.to_vec(),
            rows: rows
                .filter_map(|row| Some(self.row(row, fields(row.event)?, times)))
                .collect(),
            others: others
                .filter_map(|row| Some(self.others(row, fields(row.event)?, times)))
                .collect(),
            most_without_row: contents.most_without_row,
            dropped: contents.dropped,
            capacity: self.keys.room,
            damaged: damaged + intervals.map_or(0, |intervals| intervals.damaged),
            intervals,
            starts: self.starts.clone(),
        }
    }

    /// Returns the times that ticks stand for; `None` if no calls are timed.
    fn times(&self) -> Option<&Times> {
        let clock = self.clock.as_ref()?;
        if self.times.get().is_none() {
            let mut clock = clock.clone();
            clock.sync().ok()?;
            let hz = clock.model().ok()?.freq_hz;
            let buckets = times(hz);
            let _ = self.times.set(Times { hz, buckets }); // another thread may have been faster
        }
        self.times.get()
    }

    /// Returns the number of hits that were counted.
    pub fn hits(&self, reader: &TableReader) -> u64 {
        let mut contents = reader.read(&self.table);
        let all = contents.rows.iter_mut().chain(&mut contents.others);
        let hits = all.map(|row| {
            self.mend(row);
            self.calls(&row.cells)
        });
        hits.fold(0, u64::wrapping_add)
    }

    /// Zeroes impossibly large counts, which must have been overwritten, and returns how many there
    /// were. Sums may be any number.
    fn mend(&self, row: &mut tables::Row) -> u64 {
        let one = |cell: u32| cell..cell + 1;
        let calls = match self.calls {
            Calls::Cell(cell) => one(cell),
            Calls::Sum { first, buckets, .. } => first..first + buckets,
        };
        let measures = self.measures.iter().filter_map(|(_, cells)| match *cells {
            Cells::Calls | Cells::Sum { .. } => None,
            Cells::Extreme { readable, .. } | Cells::Average { readable, .. } => readable.map(one),
            Cells::Histogram { first, buckets, .. } => Some(first..first + buckets),
        });
        let unreadable = match self.calls {
            Calls::Sum { unreadable, .. } => unreadable,
            Calls::Cell(_) => None,
        };
        let others = [unreadable, self.unreadable].into_iter().flatten().map(one);
        let mut damaged = 0;
        let parts = row.parts.iter_mut().map(|part| &mut part.cells);
        let mut all: Vec<&mut Vec<u64>> = std::iter::once(&mut row.cells).chain(parts).collect();
        for cell in measures.chain(others).chain([calls]).flatten() {
            for (index, cells) in all.iter_mut().enumerate() {
                let count = &mut cells[cell as usize];
                if *count >= MOST {
                    *count = 0;
                    damaged += u64::from(index == 0);
                }
            }
        }
        damaged
    }

    fn calls(&self, cells: &[u64]) -> u64 {
        match self.calls {
            Calls::Cell(cell) => cells[cell as usize],
            Calls::Sum {
                first,
                buckets,
                unreadable,
            } => {
                let counts = &cells[first as usize..(first + buckets) as usize];
                let others = unreadable.map_or(0, |cell| cells[cell as usize]);
                counts.iter().copied().fold(others, u64::wrapping_add)
            }
        }
    }

    fn row(&self, row: &tables::Row, fields: &Fields, times: Option<&Times>) -> Row {
        let parts = row.parts.iter().map(|part| Part {
            life: part.life,
            totals: self.totals(&part.cells, fields, times),
        });
        Row {
            keys: key_values(fields, &row.key),
            key: row.key.clone(),
            error: row.error,
            parts: parts.collect(),
            ..self.others(row, fields, times)
        }
    }

    /// Returns the totals of keys that have no row; as a row, which has no key.
    fn others(&self, row: &tables::Row, fields: &Fields, times: Option<&Times>) -> Row {
        Row {
            event: row.event as usize,
            ..self.totals(&row.cells, fields, times).into()
        }
    }

    fn totals(&self, row: &[u64], fields: &Fields, times: Option<&Times>) -> Totals {
        let cell = |cell: u32| row[cell as usize];
        let calls = self.calls(row);
        let signed = |value: usize| is_signed(&fields.infos[fields.keys + value].field_type);
        let total = |value: usize, word: u64| Total {
            word,
            signed: signed(value),
        };
        let number = |value: usize, word: u64| total(value, word).value();
        let count = |readable: Option<u32>| readable.map_or(calls, cell);
        let shown = self.measures.iter().filter(|(_, cells)| cells.is_shown());
        let measures = shown.map(|(_, cells)| match *cells {
            Cells::Calls => unreachable!("it is not shown"),
            Cells::Sum { value, cell: at } => Measure::Sum(total(value, cell(at))),
            Cells::Extreme {
                value,
                cell: at,
                least,
                readable,
            } => {
                let flip = flip(&fields.infos[fields.keys + value].field_type, least);
                let known = count(readable) > 0;
                let extreme = known.then(|| number(value, cell(at) ^ flip));
                match least {
                    true => Measure::Minimum(extreme),
                    false => Measure::Maximum(extreme),
                }
            }
            Cells::Average {
                value,
                sum,
                readable,
            } => Measure::Average {
                sum: total(value, cell(sum)),
                count: count(readable),
            },
            Cells::Histogram {
                first,
                buckets,
                ticks,
                ..
            } => {
                let all = &row[first as usize..(first + buckets) as usize];
                let times = times.filter(|_| ticks);
                let mut histogram = histogram_of(all, |bucket| match times {
                    Some(times) => times.buckets[bucket].clone(),
                    None => {
                        let numbers = histogram::numbers(bucket as u32);
                        *numbers.start()..numbers.end() + 1
                    }
                });
                histogram.exact = times.map(|times| Exact {
                    sum: times.ns(cell(first - 3)),
                    extremes: (!histogram.buckets.is_empty())
                        .then(|| (times.ns(!cell(first - 1)), times.ns(cell(first - 2)))),
                });
                Measure::Histogram(histogram)
            }
        });
        Totals {
            calls,
            unreadable: self.unreadable.map_or(0, cell),
            measures: measures.collect(),
        }
    }
}

impl Cells {
    fn new(function: Function, value: usize, kind: Kind, row: &mut RowLayout) -> Cells {
        let Kind {
            signed,
            faults,
            ticks,
        } = kind;
        match function {
            Function::Count => Cells::Calls,
            Function::Sum => Cells::Sum {
                value,
                cell: row.cells(1),
            },
            Function::Minimum => Cells::Extreme {
                value,
                cell: row.extreme(),
                least: true,
                readable: row.readable(value, faults),
            },
            Function::Maximum => Cells::Extreme {
                value,
                cell: row.extreme(),
                least: false,
                readable: row.readable(value, faults),
            },
            Function::Average => Cells::Average {
                value,
                sum: row.cells(1),
                readable: row.readable(value, faults),
            },
            Function::Histogram => {
                let buckets = histogram::buckets(signed);
                if ticks {
                    const _: () = assert!(TIMES_CELLS == 3);
                    row.cells(1);
                    row.extreme();
                    row.extreme();
                }
                Cells::Histogram {
                    value,
                    first: row.cells(buckets),
                    buckets,
                    ticks,
                }
            }
        }
    }
}

/// Returns the bits of a number to invert, so that the unsigned maximum of the results is the
/// wanted extreme.
fn flip(field_type: &FieldType, least: bool) -> u64 {
    let sign = if is_signed(field_type) { SIGN } else { 0 };
    if least { !sign } else { sign }
}

fn is_signed(field_type: &FieldType) -> bool {
    matches!(field_type.element, Element::Number { shown, .. } if shown.is_signed())
}

/// Returns the time in ns that each bucket of ticks stands for, with the bounds of the bucket: they
/// follow each other without overlapping. Several ticks within one nanosecond have the same range.
fn times(ticks_per_second: u64) -> Vec<Range<i128>> {
    let ns = |ticks: i128| ticks * 1_000_000_000 / i128::from(ticks_per_second.max(1));
    let mut times: Vec<Range<i128>> = Vec::new();
    for bucket in 0..histogram::BUCKETS {
        let ticks = histogram::numbers(bucket);
        let low = ns(*ticks.start());
        let end = ns(ticks.end() + 1).max(low + 1);
        times.push(match times.last() {
            Some(last) if last.end >= end => last.clone(),
            Some(last) => last.end..end,
            None => low..end,
        });
    }
    times
}

/// Returns the buckets that are not empty, in ascending order. Those with the same `numbers` are
/// one.
fn histogram_of(cells: &[u64], numbers: impl Fn(usize) -> Range<i128>) -> Histogram {
    let counted = cells.iter().enumerate().filter(|(_, count)| **count > 0);
    let mut counted: Vec<Bucket> = counted
        .map(|(bucket, &count)| {
            let numbers = numbers(bucket);
            Bucket {
                low: numbers.start,
                high: numbers.end - 1,
                count,
            }
        })
        .collect();
    counted.sort_by_key(|bucket| bucket.low);
    let mut buckets: Vec<Bucket> = Vec::with_capacity(counted.len());
    for bucket in counted {
        match buckets.last_mut().filter(|last| last.low == bucket.low) {
            Some(last) => last.count = last.count.wrapping_add(bucket.count),
            None => buckets.push(bucket),
        }
    }
    Histogram {
        buckets,
        exact: None,
    }
}

/// Decodes the values of a key's fields from its bytes. Bytes that are missing, since the target
/// overwrote the key, read as 0.
fn key_values(fields: &Fields, bytes: &[u8]) -> Vec<Value> {
    let mut rest = bytes;
    let mut take = |size: usize| -> Vec<u8> {
        let (taken, left) = rest.split_at(size.min(rest.len()));
        rest = left;
        let mut bytes = taken.to_vec();
        bytes.resize(size, 0);
        bytes
    };
    let word = |bytes: Vec<u8>| {
        bytes
            .iter()
            .rev()
            .fold(0, |word, b| word << 8 | u64::from(*b))
    };
    let keys = &fields.fetch.fields[..fields.keys];
    let can_fault = keys.iter().any(Field::can_fault);
    let faults = if can_fault { word(take(8)) } else { 0 };
    let mut values = Vec::new();
    for (index, info) in fields.infos[..fields.keys].iter().enumerate() {
        let value = match info.field_type.element {
            Element::String { .. } => {
                let length = word(take(4)) as usize;
                let length = length.min(bytes.len());
                let text = take(length);
                take((length + 4).next_multiple_of(8) - length - 4);
                Value::Text(text)
            }
            Element::CallStack { .. } => {
                let head = word(take(chain::HEAD));
                let end = match (head >> 32) as u32 {
                    chain::OUTERMOST => ChainEnd::Outermost,
                    chain::FULL | chain::UNREADABLE => ChainEnd::Truncated,
                    _ => ChainEnd::Unknown,
                };
                let count = (head as u32).min(chain::MOST);
                Value::Stack(Chain {
                    addresses: (0..count).map(|_| word(take(8))).collect(),
                    end,
                    functions: Vec::new(),
                })
            }
            Element::Ipv6 => {
                let mut address = [0; 16];
                for (to, from) in address.iter_mut().zip(take(16)) {
                    *to = from;
                }
                Value::Address(Ipv6Addr::from(address).into())
            }
            Element::Number { shown, .. } if !info.enumerators.is_empty() => {
                let word = word(take(8)).cast_signed();
                let signed = shown == Shown::Signed;
                let named = Enumerated::new(word, signed, &info.enumerators);
                match (named.is_named(), signed) {
                    (true, _) => Value::Name(named.to_string()),
                    (false, true) => Value::Number(i128::from(word)),
                    (false, false) => Value::Number(i128::from(word.cast_unsigned())),
                }
            }
            Element::Number { shown, .. } => {
                let word = word(take(8));
                match shown {
                    Shown::Signed => Value::Number(i128::from(word as i64)),
                    Shown::Hexadecimal => Value::Hexadecimal(word),
                    Shown::Symbol => Value::Function(word, None),
                    Shown::Character => Value::Character(word as u8),
                    Shown::Descriptor => Value::Descriptor(word as i32, None),
                    Shown::Ipv4 => Value::Address(Ipv4Addr::from(word as u32).into()),
                    // The key of a floating point number is refused when fields are read.
                    Shown::Unsigned | Shown::Network | Shown::Float => {
                        Value::Number(i128::from(word))
                    }
                }
            }
        };
        values.push(match faults >> index & 1 {
            0 => value,
            _ => Value::Unreadable,
        });
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every duration is in the range of its bucket of ticks, to a nanosecond, and ranges are at
    /// most an eighth wide.
    #[test]
    fn buckets_of_ticks_are_ranges_of_time() {
        for hz in [999_999_000_u64, 2_100_000_000, 25_000_000, 5_000_000_000] {
            let times = times(hz);
            assert_eq!(times.len() as u32, histogram::BUCKETS);
            for pair in times.windows(2) {
                assert!(
                    pair[0] == pair[1] || pair[0].end == pair[1].start,
                    "{pair:?}"
                );
            }
            let step = i128::from(1_000_000_000_u64.div_ceil(hz));
            for (bucket, time) in times.iter().enumerate() {
                let width = time.end - time.start;
                assert!(width <= step.max(time.start / 8 + 2), "{hz}: {time:?}");
                let ticks = histogram::numbers(bucket as u32);
                for ticks in [*ticks.start(), *ticks.end()] {
                    let ns = ticks * 1_000_000_000 / i128::from(hz);
                    assert!(
                        (time.start - 1..time.end + 1).contains(&ns),
                        "{hz}: {ns} in {time:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn ticks_within_one_nanosecond_are_one_bucket() {
        let times = times(2_000_000_000);
        let mut cells = vec![0; times.len()];
        (cells[2], cells[3], cells[4]) = (5, 7, 1);
        let bucket = |low, high, count| Bucket { low, high, count };
        let shown = histogram_of(&cells, |bucket| times[bucket].clone());
        assert_eq!(shown.buckets, [bucket(1, 1, 12), bucket(2, 2, 1)]);
    }
}
