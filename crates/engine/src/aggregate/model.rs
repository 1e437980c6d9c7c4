//! The data that `capriole stat` shows, independent of its source.

use super::totals::{self, Part};
use capriole_trace::Certainty;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Value of one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A number of any of the types that fields have.
    Number(i128),
    /// A number of a hexadecimal type, such as a pointer.
    Hexadecimal(u64),
    /// A character, by its byte.
    Character(u8),
    /// A value of an enumeration, by its name or the names of its flags.
    Name(String),
    /// A file descriptor, and what it was open for, if [`Group::name_descriptors`] found out.
    Descriptor(i32, Option<(String, Certainty)>),
    /// An address in the program, and the function there with the offset from its start, if
    /// [`Group::name_functions`] found it.
    Function(u64, Option<(String, u64)>),
    /// An address of IPv4 or IPv6.
    Address(IpAddr),
    /// A string, as the bytes that the program has. They may not be UTF-8, and are escaped when
    /// shown.
    Text(Vec<u8>),
    /// A chain of callers.
    Stack(Chain),
    /// A value that could not be read.
    Unreadable,
}

/// A chain of callers, as the program has found it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chain {
    /// The place of the hit, for exits of a function its beginning, then the return addresses; but
    /// behind the place to which a signal handler returns there is the place where its signal came.
    pub addresses: Vec<u64>,
    /// The reason why there are no more.
    pub end: ChainEnd,
    /// The functions, innermost first, with those that were inlined; empty until
    /// [`Group::name_stacks`] names them.
    pub functions: Vec<ChainFunction>,
}

/// Reason why a chain of callers ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainEnd {
    /// The last one has no caller: the program or the thread begins there.
    Outermost,
    /// There are as many as were asked for, or the stack could not be read any further.
    Truncated,
    /// The caller of the last one cannot be determined.
    Unknown,
}

/// A function in a chain of callers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainFunction {
    /// The address in the chain.
    pub address: u64,
    /// The complete name of the function, if it has one.
    pub symbol: Option<String>,
    /// Its name, or if it has none, where it begins, or the file that it is in.
    pub name: String,
    /// Bytes from the function's start to the address; `None` for inlined functions, and without a
    /// function.
    pub offset: Option<u64>,
    /// Path of the file with the code, if any.
    pub object: Option<Arc<str>>,
    /// True if the function is inlined into the next one that is not.
    pub inlined: bool,
    /// Names of other functions that have the same code: it may be any of them.
    pub same_code: Vec<Arc<str>>,
}

/// A sum as the program keeps it: modulo 2^64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// The bits of the sum.
    pub word: u64,
    /// True if the bits are a signed number.
    pub signed: bool,
}

impl Total {
    /// Returns the sum as a number.
    pub fn value(self) -> i128 {
        match self.signed {
            true => i128::from(self.word as i64),
            false => i128::from(self.word),
        }
    }

    fn since(self, before: Total) -> Total {
        Total {
            word: self.word.wrapping_sub(before.word),
            ..self
        }
    }

    pub(super) fn plus(self, other: Total) -> Total {
        Total {
            word: self.word.wrapping_add(other.word),
            ..self
        }
    }
}

/// An aggregate of a field over all hits whose value could be read.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// All values added up.
    Sum(Total),
    /// The smallest value; `None` without any.
    Minimum(Option<i128>),
    /// The largest value; `None` without any.
    Maximum(Option<i128>),
    /// The parts of an average, since averages themselves cannot be subtracted.
    Average {
        /// All values added up.
        sum: Total,
        /// Number of values.
        count: u64,
    },
    /// A histogram of the values.
    Histogram(Histogram),
}

impl Measure {
    /// Returns the mean of an average; `None` for other measures, and without any value.
    pub fn mean(&self) -> Option<f64> {
        match *self {
            Measure::Average { sum, count } if count > 0 => Some(sum.value() as f64 / count as f64),
            _ => None,
        }
    }

    /// True if the measure has no value. Minimum and maximum count as empty: they do not belong to
    /// an interval.
    fn is_empty(&self) -> bool {
        match self {
            Measure::Sum(sum) => sum.word == 0,
            Measure::Minimum(_) | Measure::Maximum(_) => true,
            Measure::Average { count, .. } => *count == 0,
            Measure::Histogram(histogram) => histogram.buckets.is_empty(),
        }
    }

    /// Returns the difference to `before`. Minimum and maximum stay those since the start.
    pub(super) fn since(&self, before: &Measure) -> Measure {
        match (self, before) {
            (Measure::Sum(now), Measure::Sum(then)) => Measure::Sum(now.since(*then)),
            (
                Measure::Average { sum, count },
                Measure::Average {
                    sum: sum_before,
                    count: count_before,
                },
            ) => Measure::Average {
                sum: sum.since(*sum_before),
                count: count.saturating_sub(*count_before),
            },
            (Measure::Histogram(now), Measure::Histogram(then)) => {
                Measure::Histogram(now.since(then))
            }
            _ => self.clone(),
        }
    }
}

/// Percentiles shown for a histogram, with their permille.
pub const PERCENTILES: [(&str, u16); 4] =
    [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)];

/// Number of values by bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Buckets in ascending order, not overlapping, and only those with a count.
    pub buckets: Vec<Bucket>,
    /// Exact numbers of the values, where they are kept.
    pub exact: Option<Exact>,
}

/// Exact numbers that are kept beside a histogram of durations, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exact {
    /// All values added up.
    pub sum: i128,
    /// The smallest and the largest value; `None` without any value, and in an interval, as earlier
    /// values cannot be removed from them.
    pub extremes: Option<(i128, i128)>,
}

impl Histogram {
    /// Returns the number of values.
    pub fn total(&self) -> u128 {
        self.buckets.iter().map(|b| u128::from(b.count)).sum()
    }

    /// Returns the bucket of the smallest value that at least `permille` thousandths of all values
    /// do not exceed (nearest rank; 0 is the smallest value); `None` without any value. Its bounds are
    /// no wider than the smallest and the largest value, if these are known.
    pub fn quantile(&self, permille: u16) -> Option<Bucket> {
        let permille = u128::from(permille.min(1000));
        let rank = (self.total() * permille).div_ceil(1000).max(1);
        let mut below = 0;
        let found = self.buckets.iter().find(|bucket| {
            below += u128::from(bucket.count);
            below >= rank
        });
        let found = *found?;
        let within = |value: i128| (found.low..=found.high).contains(&value);
        let (least, largest) = self.exact.and_then(|exact| exact.extremes).unzip();
        Some(Bucket {
            low: least.filter(|least| within(*least)).unwrap_or(found.low),
            high: largest
                .filter(|largest| within(*largest))
                .unwrap_or(found.high),
            ..found
        })
    }

    /// Returns the sum of all values. If it was not kept, each counts as the middle of its bucket. A
    /// bucket of the program's is at most an eighth of its values wide, so the sum of values that all
    /// have one sign is right to a sixteenth.
    pub fn sum(&self) -> f64 {
        if let Some(exact) = self.exact {
            return exact.sum as f64;
        }
        let middles = self.buckets.iter().map(|bucket| {
            let middle = (bucket.low as f64 + bucket.high as f64) / 2.0;
            middle * bucket.count as f64
        });
        middles.sum()
    }

    /// Returns the mean of the values, with the relative error of their [sum](Self::sum); `None`
    /// without any value.
    pub fn mean(&self) -> Option<f64> {
        let total = self.total();
        (total > 0).then(|| self.sum() / total as f64)
    }

    /// Returns the smallest value, and if that is exact: otherwise it is the lower bound of the first
    /// bucket. `None` without any value.
    pub fn least(&self) -> Option<(i128, bool)> {
        let first = self.buckets.first()?;
        Some(match self.exact.and_then(|exact| exact.extremes) {
            Some((least, _)) => (least, true),
            None => (first.low, first.low == first.high),
        })
    }

    /// Returns the largest value, and if that is exact: otherwise it is the upper bound of the last
    /// bucket. `None` without any value.
    pub fn largest(&self) -> Option<(i128, bool)> {
        let last = self.buckets.last()?;
        Some(match self.exact.and_then(|exact| exact.extremes) {
            Some((_, largest)) => (largest, true),
            None => (last.high, last.low == last.high),
        })
    }

    /// True if sum and mean are exact: the sum was kept, or each bucket is one number.
    pub fn is_exact(&self) -> bool {
        self.exact.is_some() || self.buckets.iter().all(|bucket| bucket.low == bucket.high)
    }

    /// Returns the difference to `before`.
    #[must_use]
    pub fn since(&self, before: &Histogram) -> Histogram {
        let before_exact = before.exact;
        let before: HashMap<(i128, i128), u64> = before
            .buckets
            .iter()
            .map(|b| ((b.low, b.high), b.count))
            .collect();
        let left = |bucket: &Bucket| {
            let then = before.get(&(bucket.low, bucket.high)).unwrap_or(&0);
            let count = bucket.count.saturating_sub(*then);
            (count > 0).then_some(Bucket { count, ..*bucket })
        };
        let sum_before = before_exact.map_or(0, |exact| exact.sum);
        let exact = self.exact.map(|exact| Exact {
            sum: exact.sum - sum_before,
            extremes: None,
        });
        Histogram {
            buckets: self.buckets.iter().filter_map(left).collect(),
            exact,
        }
    }
}

/// A histogram bucket: the values from `low` to `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// The smallest value in this bucket.
    pub low: i128,
    /// The largest value in this bucket, not below `low`.
    pub high: i128,
    /// Number of values in this bucket.
    pub count: u64,
}

/// Identity of a row: its event, its keys as shown, and its keys as the program has them.
pub type RowName<'a> = (usize, &'a [Value], &'a [u8]);

/// The aggregates of one event for one set of key values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Number of the site; in a map that probes share, one that stands for all sites. In a session,
    /// [`Session::name`](crate::Session::name) returns the site's name.
    pub event: usize,
    /// One for each of [`Group::key_names`].
    pub keys: Vec<Value>,
    /// The keys as the program has them: keys that look alike when shown may differ.
    pub key: Vec<u8>,
    /// All hits.
    pub calls: u64,
    /// Hits with a value that could not be read.
    pub unreadable: u64,
    /// One for each of [`Group::measure_names`].
    pub measures: Vec<Measure>,
    /// Number of calls that may be missing in this row, at most: those while another key had its
    /// place. 0: all numbers are exact.
    pub error: u64,
    /// Sources of the numbers, if some are of [summaries](capriole_ring::summary).
    pub parts: Vec<Part>,
}

impl Row {
    fn since(&self, before: &Row) -> Row {
        Row {
            event: self.event,
            keys: self.keys.clone(),
            key: self.key.clone(),
            error: self.error,
            ..totals::since(self, before).into()
        }
    }

    /// True if there was a hit. A hit that arrives while the row is read may be present only in
    /// part.
    pub fn is_hit(&self) -> bool {
        let measured = || self.measures.iter().any(|measure| !measure.is_empty());
        self.calls > 0 || self.unreadable > 0 || measured()
    }

    /// Returns the identity of the row.
    pub fn name(&self) -> RowName<'_> {
        (self.event, &self.keys, &self.key)
    }
}

/// Results of one of the user's definitions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Group {
    /// Names of the keys, such as `fd`, `comm`; empty without `by`.
    pub key_names: Vec<String>,
    /// Names of the measures, such as `sum(n)`, `hist(n)`; empty for plain counting.
    pub measure_names: Vec<String>,
    /// For each measure: true if its values are durations in ns.
    pub in_nanoseconds: Vec<bool>,
    /// The numbers of the definition's events that have a probe.
    pub events: Vec<usize>,
    /// Rows in no particular order. Events that were not hit may have a row without calls.
    pub rows: Vec<Row>,
    /// Calls of keys that have no row any more, because others took their places: a row without
    /// keys for each event that has any.
    pub others: Vec<Row>,
    /// Number of calls that a key without a row may have had, at most.
    pub most_without_row: u64,
    /// Number of hits dropped because they had a new key and the table was full.
    pub dropped: u64,
    /// Number of keys that fit in each event's table.
    pub capacity: u32,
    /// Number of counts that were overwritten, and are left out.
    pub damaged: u64,
    /// Counts of starts and ends without an interval, if the rows are of intervals.
    pub intervals: Option<Intervals>,
    /// The numbers of the events that start them, and have a probe.
    pub starts: Vec<usize>,
}

/// Counts of the starts and ends of intervals between two events, by their outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Starts whose key could be read.
    pub started: u64,
    /// Starts that another one with the same key followed before an end.
    pub restarted: u64,
    /// Ends without an open interval of their key.
    pub unmatched: u64,
    /// Starts for which no slot was free.
    pub no_room: u64,
    /// Starts and ends whose key could not be read.
    pub unreadable: u64,
    /// Intervals that are open now.
    pub open: u64,
    /// Starts of which it is not known what became: their threads were interrupted for long, or killed,
    /// while they started or ended an interval. While the program runs, also those of which only a part
    /// was read; so `None` in an [`Interval`].
    pub lost: Option<u64>,
    /// Number of slots for open intervals.
    pub slots: u32,
    /// Number of counts that were overwritten, and are left out.
    pub damaged: u64,
}

impl Intervals {
    /// True if an event at either side was hit, also if that was no interval.
    pub fn is_hit(&self) -> bool {
        self.started > 0 || self.unmatched > 0 || self.unreadable > 0
    }

    fn since(self, before: Option<Intervals>) -> Intervals {
        let before = before.unwrap_or_default();
        Intervals {
            started: self.started.saturating_sub(before.started),
            restarted: self.restarted.saturating_sub(before.restarted),
            unmatched: self.unmatched.saturating_sub(before.unmatched),
            no_room: self.no_room.saturating_sub(before.no_room),
            unreadable: self.unreadable.saturating_sub(before.unreadable),
            lost: None,
            ..self
        }
    }
}

impl Group {
    /// True if calls are only counted by event.
    pub fn is_plain(&self) -> bool {
        self.key_names.is_empty() && self.measure_names.is_empty()
    }

    /// Returns the rows, and those of keys that have none any more: each call is in one of them.
    pub fn all_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().chain(&self.others)
    }

    /// Names file descriptors in the keys by `name`.
    pub fn name_descriptors(&mut self, name: impl Fn(i32) -> Option<(String, Certainty)>) {
        for value in self.rows.iter_mut().flat_map(|row| &mut row.keys) {
            if let Value::Descriptor(fd, named) = value {
                *named = name(*fd);
            }
        }
    }

    /// Names the functions of addresses in the keys by `name`.
    pub fn name_functions(&mut self, mut name: impl FnMut(u64) -> Option<(String, u64)>) {
        for value in self.rows.iter_mut().flat_map(|row| &mut row.keys) {
            if let Value::Function(address, named) = value {
                *named = name(*address);
            }
        }
    }

    /// Names the functions in the keys that are chains of callers.
    pub fn name_stacks(&mut self, mut name: impl FnMut(&mut Chain)) {
        for value in self.rows.iter_mut().flat_map(|row| &mut row.keys) {
            if let Value::Stack(chain) = value {
                name(chain);
            }
        }
    }

    fn since(&self, before: Option<&Group>) -> Group {
        let before_rows = before.map_or(&[][..], |group| &group.rows);
        let before_rows: HashMap<_, &Row> =
            before_rows.iter().map(|row| (row.name(), row)).collect();
        let rows = self
            .rows
            .iter()
            .map(|row| match before_rows.get(&row.name()) {
                Some(then) => row.since(then),
                None => row.clone(),
            });
        Group {
            key_names: self.key_names.clone(),
            measure_names: self.measure_names.clone(),
            in_nanoseconds: self.in_nanoseconds.clone(),
            events: self.events.clone(),
            rows: rows.filter(Row::is_hit).collect(),
            others: totals::others_since(self, before),
            most_without_row: self.most_without_row,
            dropped: self
                .dropped
                .saturating_sub(before.map_or(0, |group| group.dropped)),
            capacity: self.capacity,
            damaged: self.damaged,
            intervals: self
                .intervals
                .map(|now| now.since(before.and_then(|group| group.intervals))),
            starts: self.starts.clone(),
        }
    }
}

/// Sorts the rows that were hit, the most frequent first, then by event and keys, so that rows keep
/// their places although each reading has them in another order.
pub fn sorted<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<&'a Row> {
    let mut sorted: Vec<&Row> = rows.filter(|row| row.is_hit()).collect();
    sorted.sort_by_key(|row| (Reverse(row.calls), row.name()));
    sorted
}

/// All results up to one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Time since the start.
    pub time: Duration,
    /// One group for each definition, in the order given.
    pub groups: Vec<Group>,
    /// Number of hits that the program could not process.
    pub lost: u64,
}

/// The results between two moments.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// End of the interval, since the start.
    pub end: Duration,
    /// Length of the interval.
    pub time: Duration,
    /// Groups as in [`Snapshot`], but only with rows that were hit. Minimum and maximum are those
    /// since the start.
    pub groups: Vec<Group>,
}

impl Snapshot {
    /// Returns the difference to `before`, an earlier snapshot of the same definitions. Sums are
    /// subtracted modulo 2^64, as the program adds them up; a count below its earlier value was
    /// overwritten.
    pub fn since(&self, before: &Snapshot) -> Interval {
        let groups = self.groups.iter().enumerate();
        Interval {
            end: self.time,
            time: self.time.saturating_sub(before.time),
            groups: groups
                .map(|(number, group)| group.since(before.groups.get(number)))
                .collect(),
        }
    }

    /// Returns the number of calls that were counted, modulo 2^64.
    pub fn calls(&self) -> u64 {
        all_calls(&self.groups)
    }
}

impl Interval {
    /// Returns the number of calls that were counted, modulo 2^64.
    pub fn calls(&self) -> u64 {
        all_calls(&self.groups)
    }
}

/// Returns the number of all calls, modulo 2^64.
fn all_calls(groups: &[Group]) -> u64 {
    let rows = groups.iter().flat_map(Group::all_rows);
    rows.map(|row| row.calls).fold(0, u64::wrapping_add)
}

/// Returns the calls of each event that has a probe, modulo 2^64, the most frequent first, then in
/// the order of their numbers.
pub fn by_event(groups: &[Group]) -> Vec<(usize, u64)> {
    let mut calls: HashMap<usize, u64> = HashMap::new();
    for group in groups {
        for event in &group.events {
            calls.entry(*event).or_default();
        }
        for row in group.all_rows() {
            let sum = calls.entry(row.event).or_default();
            *sum = sum.wrapping_add(row.calls);
        }
    }
    let mut calls: Vec<(usize, u64)> = calls.into_iter().collect();
    calls.sort_by_key(|(event, calls)| (Reverse(*calls), *event));
    calls
}

/// Returns a rate in 1/s; 0 if `time` is zero.
pub fn per_second(calls: u64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => calls as f64 / time.as_secs_f64(),
    }
}
