//! Snapshots for tests.

use capriole::aggregate::model::{
    Bucket, Exact, Group, Histogram, Measure, Row, Snapshot, Total, Value,
};
use std::time::Duration;

/// Returns the event names for all snapshots here.
pub fn names() -> Vec<String> {
    ["read", "write", "malloc", "free"].map(String::from).into()
}

/// Creates a snapshot that covers `seconds` seconds.
pub fn snapshot(seconds: u64, groups: impl Into<Vec<Group>>) -> Snapshot {
    Snapshot {
        lost: 0,
        time: Duration::from_secs(seconds),
        groups: groups.into(),
    }
}

/// Creates a group that only counts events, numbered from `first`.
pub fn plain(first: usize, calls: &[u64]) -> Group {
    let rows = (first..).zip(calls);
    let rows = rows.map(|(event, calls)| row(event, [], *calls, []));
    let rows: Vec<Row> = rows.collect();
    Group {
        events: rows.iter().map(|row| row.event).collect(),
        rows,
        ..Group::default()
    }
}

/// Creates a group of some events.
pub fn group<const K: usize, const M: usize>(
    events: impl Into<Vec<usize>>,
    keys: [&str; K],
    measures: [&str; M],
    rows: impl Into<Vec<Row>>,
) -> Group {
    Group {
        key_names: keys.map(String::from).into(),
        measure_names: measures.map(String::from).into(),
        in_nanoseconds: vec![false; M],
        events: events.into(),
        rows: rows.into(),
        others: Vec::new(),
        most_without_row: 0,
        dropped: 0,
        capacity: 1024,
        damaged: 0,
        intervals: None,
        starts: Vec::new(),
    }
}

/// Creates a row whose values could all be read.
pub fn row<const K: usize, const M: usize>(
    event: usize,
    keys: [Value; K],
    calls: u64,
    measures: [Measure; M],
) -> Row {
    Row {
        event,
        key: format!("{keys:?}").into_bytes(),
        keys: keys.into(),
        calls,
        unreadable: 0,
        measures: measures.into(),
        ..Row::default()
    }
}

/// Creates a signed sum.
pub fn total(sum: i128) -> Total {
    Total {
        word: sum as u64,
        signed: true,
    }
}

/// Creates a key's value from text.
pub fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_owned())
}

/// Creates a histogram with buckets as the program may keep them: exact below 8, then four per
/// power of two.
pub fn histogram(values: impl IntoIterator<Item = i128>) -> Histogram {
    let mut buckets: Vec<Bucket> = Vec::new();
    for value in values {
        let (low, high) = bounds(value);
        match buckets.binary_search_by_key(&low, |bucket| bucket.low) {
            Ok(at) => buckets[at].count += 1,
            Err(at) => buckets.insert(
                at,
                Bucket {
                    low,
                    high,
                    count: 1,
                },
            ),
        }
    }
    Histogram {
        buckets,
        exact: None,
    }
}

/// Creates a histogram of durations, beside which the program keeps exact numbers.
pub fn durations(values: &[i128]) -> Histogram {
    let extremes = values.iter().min().zip(values.iter().max());
    Histogram {
        exact: Some(Exact {
            sum: values.iter().sum(),
            extremes: extremes.map(|(least, largest)| (*least, *largest)),
        }),
        ..histogram(values.iter().copied())
    }
}

/// Returns the bounds of the bucket that holds a value.
pub fn bounds(value: i128) -> (i128, i128) {
    let size = value.unsigned_abs() as i128;
    if size < 8 {
        return (value, value);
    }
    let width = 1i128 << (size.ilog2() - 2);
    let low = size / width * width;
    let high = low + width - 1;
    if value < 0 {
        (-high, -low)
    } else {
        (low, high)
    }
}

/// Creates reads by file and program, as for `read sum(n) min(n) max(n) avg(n) hist(n) by fd,
/// comm`.
pub fn reads() -> Group {
    let measures = |values: &[i128]| {
        [
            Measure::Sum(total(values.iter().sum())),
            Measure::Minimum(values.iter().min().copied()),
            Measure::Maximum(values.iter().max().copied()),
            Measure::Average {
                sum: total(values.iter().sum()),
                count: values.len() as u64,
            },
            Measure::Histogram(histogram(values.iter().copied())),
        ]
    };
    let few: Vec<i128> = vec![0, 1, 1, 3, 17, 700];
    let many: Vec<i128> = (0..200).map(|n| n * n % 97 + 64).collect();
    let mut unread = row(0, [Value::Number(-1), text("")], 2, measures(&[]));
    unread.unreadable = 2;
    group(
        [0],
        ["fd", "comm"],
        ["sum(n)", "min(n)", "max(n)", "avg(n)", "hist(n)"],
        [
            row(0, [Value::Number(3), text("cat")], 6, measures(&few)),
            unread,
            row(
                0,
                [Value::Number(17), text("nginx: w")],
                200,
                measures(&many),
            ),
        ],
    )
}
