//! What `capriole stat` shows, whatever it was read from.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// One key's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A number of any of the types that fields have.
    Number(i128),
    /// A number that was asked for as a hexadecimal one, such as a pointer.
    Hexadecimal(u64),
    /// A character, by its byte.
    Character(u8),
    /// A text; what was not UTF-8 is U+FFFD. It can hold anything, and is escaped when shown.
    Text(Vec<u8>),
    /// It could not be read.
    Unreadable,
}

/// A sum as the program has it: modulo 2^64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// Its bits.
    pub word: u64,
    /// Whether they are a signed number.
    pub signed: bool,
}

impl Total {
    /// The number.
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
}

/// What was found out about a field in all hits whose value could be read.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// All values added up.
    Sum(Total),
    /// The least value; `None` without any.
    Minimum(Option<i128>),
    /// The largest value; `None` without any.
    Maximum(Option<i128>),
    /// What the average is made of: an average itself could not be subtracted.
    Average {
        /// All values added up.
        sum: Total,
        /// How many there were.
        count: u64,
    },
    /// How often which values came.
    Histogram(Histogram),
}

impl Measure {
    /// An average's value; `None` for what is none, and without any value.
    pub fn mean(&self) -> Option<f64> {
        match *self {
            Measure::Average { sum, count } if count > 0 => Some(sum.value() as f64 / count as f64),
            _ => None,
        }
    }

    /// Whether it tells of no value. The least and the largest tell nothing of an interval.
    fn is_empty(&self) -> bool {
        match self {
            Measure::Sum(sum) => sum.word == 0,
            Measure::Minimum(_) | Measure::Maximum(_) => true,
            Measure::Average { count, .. } => *count == 0,
            Measure::Histogram(histogram) => histogram.buckets.is_empty(),
        }
    }

    /// What came since `before`. The least and the largest value stay those since the start.
    fn since(&self, before: &Measure) -> Measure {
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

/// What is said of a histogram besides its buckets, and its permille. The buckets know a value
/// no better than between two bounds; what is told is the larger one.
pub const QUANTILES: [(&str, u16); 4] =
    [("p50", 500), ("p90", 900), ("p99", 990), ("largest", 1000)];

/// How often which values came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// In ascending order, without common values, and only those with a count.
    pub buckets: Vec<Bucket>,
}

impl Histogram {
    /// How many values there are.
    pub fn total(&self) -> u128 {
        self.buckets.iter().map(|b| u128::from(b.count)).sum()
    }

    /// The bucket that holds the value which `permille` thousandths of all values are not
    /// above (the nearest rank; 0 is the least value); `None` without any value.
    pub fn quantile(&self, permille: u16) -> Option<&Bucket> {
        let permille = u128::from(permille.min(1000));
        let rank = (self.total() * permille).div_ceil(1000).max(1);
        let mut below = 0;
        self.buckets.iter().find(|bucket| {
            below += u128::from(bucket.count);
            below >= rank
        })
    }

    fn since(&self, before: &Histogram) -> Histogram {
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
        Histogram {
            buckets: self.buckets.iter().filter_map(left).collect(),
        }
    }
}

/// The values from `low` to `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// The least value that belongs here.
    pub low: i128,
    /// The largest value that belongs here, not below `low`.
    pub high: i128,
    /// How often such values came.
    pub count: u64,
}

/// What names a row among all rows: its event, its keys as they are shown, and as the program
/// has them.
pub type RowName<'a> = (usize, &'a [Value], &'a [u8]);

/// What was found out about one event with one set of keys' values.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The event's number.
    pub event: usize,
    /// One for each of [`Group::key_names`].
    pub keys: Vec<Value>,
    /// The keys as the program has them: what is shown alike need not be the same.
    pub key: Vec<u8>,
    /// All hits.
    pub calls: u64,
    /// Those of them with a value that could not be read.
    pub unreadable: u64,
    /// One for each of [`Group::measure_names`].
    pub measures: Vec<Measure>,
}

impl Row {
    fn since(&self, before: &Row) -> Row {
        let both = self.measures.iter().zip(&before.measures);
        Row {
            event: self.event,
            keys: self.keys.clone(),
            key: self.key.clone(),
            calls: self.calls.saturating_sub(before.calls),
            unreadable: self.unreadable.saturating_sub(before.unreadable),
            measures: both.map(|(now, then)| now.since(then)).collect(),
        }
    }

    /// Whether there was a hit. Of a hit that came while the row was read, not all may be
    /// there yet.
    pub fn is_hit(&self) -> bool {
        let measured = || self.measures.iter().any(|measure| !measure.is_empty());
        self.calls > 0 || self.unreadable > 0 || measured()
    }

    /// Its name.
    pub fn name(&self) -> RowName<'_> {
        (self.event, &self.keys, &self.key)
    }
}

/// What one definition of the user's asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Group {
    /// `fd`, `comm`; none without `by`.
    pub key_names: Vec<String>,
    /// `sum(n)`, `hist(n)`; none for plain counting.
    pub measure_names: Vec<String>,
    /// The numbers of the definition's events that have a probe.
    pub events: Vec<usize>,
    /// In no order. Events that were not hit may have a row without calls.
    pub rows: Vec<Row>,
    /// Hits of new keys when the table was full.
    pub dropped: u64,
    /// How many keys there is room for in each event's table.
    pub capacity: u32,
    /// Counts that were written over, and so are none.
    pub damaged: u64,
}

impl Group {
    /// Whether calls are counted by event, and nothing else.
    pub fn is_plain(&self) -> bool {
        self.key_names.is_empty() && self.measure_names.is_empty()
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
            events: self.events.clone(),
            rows: rows.filter(Row::is_hit).collect(),
            dropped: self
                .dropped
                .saturating_sub(before.map_or(0, |group| group.dropped)),
            capacity: self.capacity,
            damaged: self.damaged,
        }
    }
}

/// Rows that were hit, the most frequent one first, then by event and keys: rows that are
/// read in another order each time stay where they are.
pub fn sorted<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<&'a Row> {
    let mut sorted: Vec<&Row> = rows.filter(|row| row.is_hit()).collect();
    sorted.sort_by_key(|row| (Reverse(row.calls), row.name()));
    sorted
}

/// Everything that was found out until some moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Since the start.
    pub time: Duration,
    /// One for each definition, in the order given.
    pub groups: Vec<Group>,
    /// Hits that the program could not look at.
    pub lost: u64,
}

/// What was found out between two moments.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// When it was over, since the start.
    pub end: Duration,
    /// How long it was.
    pub time: Duration,
    /// As in [`Snapshot`], but only with rows that were hit. The least and the largest values
    /// are those since the start.
    pub groups: Vec<Group>,
}

impl Snapshot {
    /// The difference to `before`, an earlier snapshot of the same definitions. Sums are
    /// taken modulo 2^64, as the program adds them up; counts that are less than before were
    /// written over.
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

    /// All calls that were counted, modulo 2^64.
    pub fn calls(&self) -> u64 {
        let rows = self.groups.iter().flat_map(|group| &group.rows);
        rows.map(|row| row.calls).fold(0, u64::wrapping_add)
    }
}

/// The calls of each event that has a probe, modulo 2^64, the most frequent one first, then
/// in the order of their numbers.
pub fn by_event(groups: &[Group]) -> Vec<(usize, u64)> {
    let mut calls: HashMap<usize, u64> = HashMap::new();
    for group in groups {
        for event in &group.events {
            calls.entry(*event).or_default();
        }
        for row in &group.rows {
            let sum = calls.entry(row.event).or_default();
            *sum = sum.wrapping_add(row.calls);
        }
    }
    let mut calls: Vec<(usize, u64)> = calls.into_iter().collect();
    calls.sort_by_key(|(event, calls)| (Reverse(*calls), *event));
    calls
}

/// A rate in 1/s.
pub fn per_second(calls: u64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => calls as f64 / time.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests;
