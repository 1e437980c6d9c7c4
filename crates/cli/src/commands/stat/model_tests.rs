use crate::commands::stat::fixtures::{
    bounds, group, histogram, names, plain, reads, row, snapshot, text, total,
};
use capriole::aggregate::model::*;
use capriole::aggregate::totals::{Part, Totals};
use capriole_ring::summary::Life;
use proptest::prelude::*;
use std::time::Duration;

fn number(value: i128) -> Value {
    Value::Number(value)
}

#[test]
fn intervals_match_rows_by_event_and_keys() {
    let keyed = |rows: Vec<Row>| group([0, 1], ["fd"], ["sum(n)"], rows);
    let one = |event, fd, calls, sum| row(event, [number(fd)], calls, [Measure::Sum(total(sum))]);
    let mut before = snapshot(
        2,
        [
            plain(2, &[10, 0]),
            keyed(vec![one(0, 3, 5, -50), one(1, 3, 7, 70)]),
        ],
    );
    before.groups[1].dropped = 4;
    let mut now = snapshot(
        5,
        [
            plain(2, &[10, 3]),
            // Another order, a new key, and one that was not hit again.
            keyed(vec![one(1, 4, 1, 9), one(1, 3, 9, 60), one(0, 3, 5, -50)]),
        ],
    );
    now.groups[1].dropped = 6;
    let interval = now.since(&before);
    assert_eq!(
        (interval.end, interval.time),
        (Duration::from_secs(5), Duration::from_secs(3))
    );
    assert_eq!(interval.groups[0].rows, [row(3, [], 3, [])]);
    assert_eq!(interval.groups[0].events, [2, 3]);
    assert_eq!(
        interval.groups[1].rows,
        [one(1, 4, 1, 9), one(1, 3, 2, -10)]
    );
    assert_eq!(interval.groups[1].dropped, 2);
}

#[test]
fn everything_but_the_extremes_is_subtracted() {
    let measures = |values: &[i128]| {
        [
            Measure::Minimum(values.iter().min().copied()),
            Measure::Maximum(values.iter().max().copied()),
            Measure::Average {
                sum: total(values.iter().sum()),
                count: values.len() as u64,
            },
            Measure::Histogram(histogram(values.iter().copied())),
        ]
    };
    let all = |calls, unreadable, values: &[i128]| {
        let mut row = row(0, [], calls, measures(values));
        row.unreadable = unreadable;
        let names = ["min(n)", "max(n)", "avg(n)", "hist(n)"];
        snapshot(calls, [group([0], [], names, [row])])
    };
    let interval = all(6, 3, &[100, 5, 5]).since(&all(3, 1, &[100, 5]));
    let row = &interval.groups[0].rows[0];
    assert_eq!((row.calls, row.unreadable), (3, 2));
    let [_, _, average, histogram] = measures(&[5]);
    let wanted = [
        Measure::Minimum(Some(5)),
        Measure::Maximum(Some(100)),
        average,
        histogram,
    ];
    assert_eq!(row.measures, wanted);
    assert_eq!(row.measures[2].mean(), Some(5.0));
}

#[test]
fn counts_that_became_less_were_written_over() {
    let before = snapshot(1, [plain(0, &[u64::MAX - 1, 1])]);
    let now = snapshot(2, [plain(0, &[3, 5])]);
    let calls: Vec<u64> = now.since(&before).groups[0]
        .rows
        .iter()
        .map(|row| row.calls)
        .collect();
    assert_eq!(calls, [4]);
}

/// A snapshot of a running program is not atomic. A sum that arrives before its call is neither
/// lost nor counted twice.
#[test]
fn of_a_hit_that_comes_while_it_is_read_nothing_is_lost() {
    let one = |time, calls, sum| {
        let row = row(0, [], calls, [Measure::Sum(total(sum))]);
        snapshot(time, [group([0], [], ["sum(n)"], [row])])
    };
    let (first, second, third) = (one(1, 4, 40), one(2, 4, 50), one(3, 5, 50));
    let came = |interval: &Interval| {
        let row = &sorted(interval.groups[0].rows.iter())[0];
        (row.calls, row.measures[0].clone())
    };
    assert_eq!(came(&second.since(&first)), (0, Measure::Sum(total(10))));
    assert_eq!(came(&third.since(&second)), (1, Measure::Sum(total(0))));
    assert!(third.since(&third).groups[0].rows.is_empty());
}

/// A key that lost its row of a summary begins at zero when it gets another one, and what it had
/// until then is among the others: no call of an interval is lost, and none of an earlier one is
/// counted again.
#[test]
fn intervals_add_up_while_keys_lose_their_rows() {
    let totals = |calls: u64| Totals {
        calls,
        unreadable: 0,
        measures: vec![
            Measure::Sum(total(i128::from(calls) * 3)),
            Measure::Average {
                sum: total(i128::from(calls)),
                count: calls,
            },
            Measure::Histogram(histogram(vec![9; calls as usize])),
        ],
    };
    let part = |(life, calls): (Option<u64>, u64)| Part {
        life: life.map(|row| Life { row, entered: 2 }),
        totals: totals(calls),
    };
    let keyed = |fd, parts: &[(Option<u64>, u64)]| Row {
        keys: vec![number(fd)],
        key: vec![fd as u8],
        parts: match parts {
            [(None, _)] => Vec::new(),
            parts => parts.iter().copied().map(part).collect(),
        },
        ..totals(parts.iter().map(|(_, calls)| calls).sum()).into()
    };
    let reading = |rows: Vec<Row>, others: u64| {
        let mut group = group([0], ["fd"], ["sum(n)", "avg(n)", "hist(n)"], rows);
        group.others = vec![totals(others).into()];
        snapshot(1, [group])
    };
    let before = reading(
        vec![
            keyed(1, &[(None, 50)]),
            keyed(2, &[(None, 0), (Some(1), 10)]),
            keyed(3, &[(None, 0), (Some(2), 5)]),
            keyed(4, &[(None, 7)]),
            keyed(5, &[(None, 0), (Some(3), 4), (Some(4), 20)]),
        ],
        100,
    );
    let now = reading(
        vec![
            keyed(1, &[(None, 51)]),
            keyed(2, &[(None, 0), (Some(1), 14)]),
            // It had 8 when it lost its row.
            keyed(3, &[(None, 0), (Some(6), 2)]),
            keyed(4, &[(None, 8), (Some(7), 1)]),
            // It had 4 when it lost one of its rows.
            keyed(5, &[(None, 0), (Some(4), 23)]),
            keyed(6, &[(None, 0), (Some(8), 6)]),
        ],
        100 + 8 + 4,
    );
    let interval = &now.since(&before).groups[0];
    let rows = [(1, 1), (2, 4), (3, 2), (4, 2), (5, 3), (6, 6)];
    let found: Vec<(&Value, u64)> = interval
        .rows
        .iter()
        .map(|r| (&r.keys[0], r.calls))
        .collect();
    let keys = rows.map(|(fd, calls)| (number(fd), calls));
    assert_eq!(
        found,
        keys.iter()
            .map(|(key, calls)| (key, *calls))
            .collect::<Vec<_>>()
    );
    assert_eq!(interval.others.len(), 1);
    assert_eq!(interval.others[0].calls, 3);
    for row in interval.all_rows() {
        assert_eq!(row.measures, totals(row.calls).measures, "{row:?}");
    }
    assert_eq!(
        by_event(std::slice::from_ref(interval)),
        [(0, now.calls() - before.calls())]
    );
    let nothing = &now.since(&now).groups[0];
    assert_eq!((nothing.rows.len(), nothing.others.len()), (0, 0));
}

#[test]
fn rows_keep_their_place_however_they_are_read() {
    let rows = [
        row(1, [text("b")], 5, []),
        row(0, [text("b")], 5, []),
        row(0, [number(1)], 0, []),
        row(0, [text("a")], 5, []),
        row(1, [text("z")], 9, []),
    ];
    let wanted = [&rows[4], &rows[3], &rows[1], &rows[0]];
    assert_eq!(sorted(rows.iter()), wanted);
    assert_eq!(sorted(rows.iter().rev()), wanted);
}

#[test]
fn calls_of_events_are_those_of_all_their_keys() {
    let mut groups = vec![plain(1, &[7, 0]), reads()];
    groups[1].rows.swap(0, 2);
    assert_eq!(by_event(&groups), [(0, 208), (1, 7), (2, 0)]);
    assert_eq!(names().len(), 4);
    assert_eq!(per_second(5, Duration::from_millis(2500)), 2.0);
    assert_eq!(per_second(5, Duration::ZERO), 0.0);
}

#[test]
fn sums_of_histograms_are_right_to_a_sixteenth() {
    let values = [3, 3, 100, 1000, 123_456];
    let shown = histogram(values);
    let (sum, exact) = (shown.sum(), values.iter().sum::<i128>() as f64);
    // The fixture's buckets are a quarter wide.
    assert!((sum - exact).abs() <= exact / 8.0 && !shown.is_exact());
    let small = histogram([0, 7, 7, -3]);
    assert_eq!(
        (small.sum(), small.mean(), small.is_exact()),
        (11.0, Some(2.75), true)
    );
    assert_eq!(Histogram::default().mean(), None);
}

#[test]
fn quantiles_are_within_the_values() {
    let buckets = vec![
        Bucket {
            low: 64,
            high: 71,
            count: 9,
        },
        Bucket {
            low: 128,
            high: 143,
            count: 1,
        },
    ];
    let exact = |extremes| Some(Exact { sum: 0, extremes });
    let of = |extremes, permille| {
        let histogram = Histogram {
            buckets: buckets.clone(),
            exact: exact(extremes),
        };
        let found = histogram.quantile(permille).expect("there are values");
        (found.low, found.high)
    };
    assert_eq!(of(Some((70, 130)), 500), (70, 71));
    assert_eq!(of(Some((70, 130)), 999), (128, 130));
    assert_eq!(of(None, 999), (128, 143));
    // Of another moment than the buckets.
    assert_eq!(of(Some((10, 200)), 999), (128, 143));
}

#[test]
fn no_value_has_no_quantile() {
    assert_eq!(Histogram::default().quantile(500), None);
    assert_eq!(
        Measure::Average {
            sum: total(0),
            count: 0
        }
        .mean(),
        None
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The quantile's bucket is the one that holds the value of that rank.
    #[test]
    fn a_quantile_is_in_the_bucket_that_holds_it(
        mut values in prop::collection::vec(prop_oneof![-20i128..20, any::<i64>().prop_map(i128::from)], 1..300),
        permille in 0u16..=1000,
    ) {
        let histogram = histogram(values.iter().copied());
        let bucket = histogram.quantile(permille).expect("there are values");
        values.sort();
        let rank = (values.len() * usize::from(permille)).div_ceil(1000).max(1);
        let exact = values[rank - 1];
        prop_assert_eq!((bucket.low, bucket.high), bounds(exact));
        let largest = histogram.quantile(1000).expect("there are values");
        prop_assert!(largest.low <= values[values.len() - 1] && values[values.len() - 1] <= largest.high);
    }

    /// Intervals add up to the whole, whatever the order in which buckets fill.
    #[test]
    fn histograms_of_intervals_add_up(values in prop::collection::vec(-300i128..300, 1..200), cut in 0usize..200) {
        let cut = cut.min(values.len());
        let (then, now) = (histogram(values[..cut].iter().copied()), histogram(values.iter().copied()));
        prop_assert_eq!(now.since(&then), histogram(values[cut..].iter().copied()));
    }
}
