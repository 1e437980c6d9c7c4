//! Arithmetic on totals, for the intervals of tables whose rows are in part those of
//! [summaries](capriole_ring::summary).
//!
//! A key can lose its row of a summary, and get another one that begins at zero. So the difference
//! between two readings is that of each *part*, a row of one summary during one life; a part that
//! was not there before belongs to the interval as a whole. What a lost part had before is now among
//! the others, and no part of their difference. So the rows and others of an interval add up to its
//! calls.

use super::model::{Bucket, Exact, Group, Histogram, Measure, Row};
use capriole_ring::summary::Life;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Calls and aggregates without the key that they belong to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// All hits.
    pub calls: u64,
    /// Hits with a value that could not be read.
    pub unreadable: u64,
    /// One for each of [`Group::measure_names`].
    pub measures: Vec<Measure>,
}

/// The part of a row that is one row of a summary, or the table's own row.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The row of a summary that it is; `None` for the table's own.
    pub life: Option<Life>,
    /// Its numbers.
    pub totals: Totals,
}

impl From<Totals> for Row {
    /// Creates a row without a key, of event 0.
    fn from(totals: Totals) -> Row {
        Row {
            calls: totals.calls,
            unreadable: totals.unreadable,
            measures: totals.measures,
            ..Row::default()
        }
    }
}

impl Totals {
    fn of(row: &Row) -> Totals {
        Totals {
            calls: row.calls,
            unreadable: row.unreadable,
            measures: row.measures.clone(),
        }
    }

    fn since(&self, before: &Totals) -> Totals {
        let both = self.measures.iter().zip(&before.measures);
        Totals {
            calls: self.calls.saturating_sub(before.calls),
            unreadable: self.unreadable.saturating_sub(before.unreadable),
            measures: both.map(|(now, then)| now.since(then)).collect(),
        }
    }

    fn plus(&self, other: &Totals) -> Totals {
        let both = self.measures.iter().zip(&other.measures);
        Totals {
            calls: self.calls.wrapping_add(other.calls),
            unreadable: self.unreadable.wrapping_add(other.unreadable),
            measures: both.map(|(one, other)| plus(one, other)).collect(),
        }
    }
}

fn plus(one: &Measure, other: &Measure) -> Measure {
    let either =
        |one: Option<i128>, other: Option<i128>, both: fn(i128, i128) -> i128| match (one, other) {
            (Some(one), Some(other)) => Some(both(one, other)),
            (one, other) => one.or(other),
        };
    match (one, other) {
        (Measure::Sum(one), Measure::Sum(other)) => Measure::Sum(one.plus(*other)),
        (Measure::Minimum(one), Measure::Minimum(other)) => {
            Measure::Minimum(either(*one, *other, i128::min))
        }
        (Measure::Maximum(one), Measure::Maximum(other)) => {
            Measure::Maximum(either(*one, *other, i128::max))
        }
        (
            Measure::Average { sum, count },
            Measure::Average {
                sum: other,
                count: others,
            },
        ) => Measure::Average {
            sum: sum.plus(*other),
            count: count.wrapping_add(*others),
        },
        (Measure::Histogram(one), Measure::Histogram(other)) => {
            Measure::Histogram(plus_histogram(one, other))
        }
        _ => one.clone(), // measures of one name are of one kind
    }
}

fn plus_histogram(one: &Histogram, other: &Histogram) -> Histogram {
    let mut counts: BTreeMap<(i128, i128), u64> = BTreeMap::new();
    for bucket in one.buckets.iter().chain(&other.buckets) {
        let count = counts.entry((bucket.low, bucket.high)).or_default();
        *count = count.wrapping_add(bucket.count);
    }
    let buckets = counts.into_iter();
    let exact = one.exact.zip(other.exact).map(|(one, other)| Exact {
        sum: one.sum + other.sum,
        extremes: one.extremes.zip(other.extremes).map(|(one, other)| {
            let (least, largest) = (one.0.min(other.0), one.1.max(other.1));
            (least, largest)
        }),
    });
    Histogram {
        buckets: buckets
            .map(|((low, high), count)| Bucket { low, high, count })
            .collect(),
        exact,
    }
}

/// Returns the numbers of a row that came after an earlier reading of it.
pub(super) fn since(row: &Row, before: &Row) -> Totals {
    if row.parts.is_empty() && before.parts.is_empty() {
        return Totals::of(row).since(&Totals::of(before));
    }
    let then: HashMap<Option<Life>, Totals> = parts(before).into_iter().collect();
    let differences = parts(row).into_iter().map(|(life, now)| {
        let before = then.get(&life);
        before.map_or_else(|| now.clone(), |before| now.since(before))
    });
    let sum = differences.reduce(|sum, part| sum.plus(&part));
    sum.unwrap_or_default()
}

fn parts(row: &Row) -> Vec<(Option<Life>, Totals)> {
    if row.parts.is_empty() {
        return vec![(None, Totals::of(row))];
    }
    let parts = row.parts.iter();
    parts.map(|part| (part.life, part.totals.clone())).collect()
}

/// Returns the numbers of keys without a row that came after an earlier reading.
pub(super) fn others_since(group: &Group, before: Option<&Group>) -> Vec<Row> {
    let lives = group.rows.iter().flat_map(|row| &row.parts);
    let lives: HashSet<Life> = lives.filter_map(|part| part.life).collect();
    // Numbers that are no difference, by event: those of the others before, and of lost parts.
    let mut old: HashMap<usize, Totals> = HashMap::new();
    let mut add = |event: usize, totals: &Totals| {
        let old = old.entry(event);
        old.and_modify(|old| *old = old.plus(totals))
            .or_insert_with(|| totals.clone());
    };
    for row in before.iter().flat_map(|before| &before.others) {
        add(row.event, &Totals::of(row));
    }
    for row in before.iter().flat_map(|before| &before.rows) {
        for part in &row.parts {
            if part.life.is_some_and(|life| !lives.contains(&life)) {
                add(row.event, &part.totals);
            }
        }
    }
    let others = group.others.iter().map(|row| {
        let now = Totals::of(row);
        let since = match old.get(&row.event) {
            Some(old) => now.since(old),
            None => now,
        };
        Row {
            event: row.event,
            ..since.into()
        }
    });
    others.filter(Row::is_hit).collect()
}
