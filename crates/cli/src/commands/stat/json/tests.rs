use super::*;
use crate::commands::stat::fixtures::{
    bounds, durations, group, histogram, names, plain, reads, row, snapshot, text, total,
};

fn shown(shown: &[Group], extent: Extent) -> String {
    let value = groups(shown, &names(), Duration::from_secs(2), extent);
    serde_json::to_string_pretty(&value).expect("JSON")
}

#[test]
fn a_group_has_its_rows_with_keys_by_name_and_measures_in_order() {
    let mut reads = reads();
    reads.rows.truncate(2);
    insta::assert_snapshot!(shown(&[plain(1, &[4]), reads], Extent::Same), @r#"
    [
      {
        "events": [
          "read"
        ],
        "keys": [
          "fd",
          "comm"
        ],
        "capacity": 1024,
        "dropped": 0,
        "most_without_row": 0,
        "rows": [
          {
            "event": "read",
            "keys": {
              "fd": 3,
              "comm": "cat"
            },
            "calls": 6,
            "calls_per_second": 3.0,
            "error": 0,
            "unreadable": 0,
            "measures": [
              {
                "function": "sum",
                "field": "n",
                "value": 722
              },
              {
                "function": "min",
                "field": "n",
                "value": 0
              },
              {
                "function": "max",
                "field": "n",
                "value": 700
              },
              {
                "function": "avg",
                "field": "n",
                "value": 120.33333333333333,
                "sum": 722,
                "count": 6
              },
              {
                "function": "hist",
                "field": "n",
                "count": 6,
                "avg": 121.0,
                "p50": 1,
                "p90": 767,
                "p99": 767,
                "p99_9": 767,
                "max": 767,
                "total": 726.0,
                "exact": false,
                "buckets": [
                  {
                    "low": 0,
                    "high": 0,
                    "count": 1
                  },
                  {
                    "low": 1,
                    "high": 1,
                    "count": 2
                  },
                  {
                    "low": 3,
                    "high": 3,
                    "count": 1
                  },
                  {
                    "low": 16,
                    "high": 19,
                    "count": 1
                  },
                  {
                    "low": 640,
                    "high": 767,
                    "count": 1
                  }
                ]
              }
            ]
          },
          {
            "event": "read",
            "keys": {
              "fd": -1,
              "comm": ""
            },
            "calls": 2,
            "calls_per_second": 1.0,
            "error": 0,
            "unreadable": 2,
            "measures": [
              {
                "function": "sum",
                "field": "n",
                "value": 0
              },
              {
                "function": "min",
                "field": "n",
                "value": null
              },
              {
                "function": "max",
                "field": "n",
                "value": null
              },
              {
                "function": "avg",
                "field": "n",
                "value": null,
                "sum": 0,
                "count": 0
              },
              {
                "function": "hist",
                "field": "n",
                "count": 0,
                "avg": null,
                "p50": null,
                "p90": null,
                "p99": null,
                "p99_9": null,
                "max": null,
                "total": null,
                "exact": true,
                "buckets": []
              }
            ]
          }
        ],
        "others": []
      }
    ]
    "#);
}

#[test]
fn extremes_of_an_interval_say_that_they_are_not() {
    let extremes = [
        Measure::Maximum(Some(-4)),
        Measure::Minimum(None),
        Measure::Sum(total(4)),
    ];
    let rows = [row(1, [], 2, extremes)];
    let group = group([1], [], ["max(n)", "min(n)", "sum(n)"], rows);
    insta::assert_snapshot!(shown(&[group], Extent::SinceStart), @r#"
    [
      {
        "events": [
          "write"
        ],
        "keys": [],
        "capacity": 1024,
        "dropped": 0,
        "most_without_row": 0,
        "rows": [
          {
            "event": "write",
            "keys": {},
            "calls": 2,
            "calls_per_second": 1.0,
            "error": 0,
            "unreadable": 0,
            "measures": [
              {
                "function": "max",
                "field": "n",
                "value": -4,
                "since_start": true
              },
              {
                "function": "min",
                "field": "n",
                "value": null,
                "since_start": true
              },
              {
                "function": "sum",
                "field": "n",
                "value": 4
              }
            ]
          }
        ],
        "others": []
      }
    ]
    "#);
}

#[test]
fn numbers_are_exact() {
    for (value, wanted) in [
        (0, "0"),
        ((1 << 53) + 1, "9007199254740993"),
        (i128::from(i64::MIN), "-9223372036854775808"),
        (i128::from(u64::MAX), "18446744073709551615"),
        (i128::from(u64::MAX) + 1, "\"18446744073709551616\""),
        (i128::from(i64::MIN) - 1, "\"-9223372036854775809\""),
    ] {
        assert_eq!(number(value).to_string(), wanted);
    }
}

#[test]
fn a_line_is_harmless_and_read_back_as_it_was() {
    let hostile = "\x1b]0;x\x07 \u{9b}31m \u{202e} \" \\ 日本\n";
    let mut row = row(0, [text(hostile), Key::Number(1)], 1, []);
    row.keys[1] = Key::Unreadable;
    let group = group([0], [hostile, "x"], [], [row]);
    let value = json!({"groups": groups(&[group], &names(), Duration::ZERO, Extent::Same)});
    let line = line(&value);
    let (text, end) = line.split_at(line.len() - 1);
    assert_eq!(end, "\n");
    assert!(
        !text.contains(|c: char| c.is_control() || c == '\u{202e}'),
        "{text}"
    );
    let back: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(back, value);
    assert_eq!(back["groups"][0]["rows"][0]["keys"][hostile], hostile);
    assert_eq!(back["groups"][0]["rows"][0]["keys"]["x"], Value::Null);
    assert_eq!(snapshot(0, []).calls(), 0);
}

/// The names of times end in their unit.
#[test]
fn times_have_their_unit_in_the_name() {
    let timed = row(0, [], 3, [Measure::Histogram(histogram([100, 100, 1000]))]);
    let mut group = group([0], [], ["hist(ns)"], [timed]);
    group.in_nanoseconds = vec![true];
    let value = groups(&[group], &names(), Duration::from_secs(1), Extent::Same);
    let measure = &value[0]["rows"][0]["measures"][0];
    let (low, high) = (bounds(100), bounds(1000));
    let middle = |bounds: (i128, i128)| (bounds.0 + bounds.1) as f64 / 2.0;
    let total = 2.0 * middle(low) + middle(high);
    assert_eq!(measure["unit"], "ns");
    assert_eq!(measure["count"], 3);
    assert_eq!(measure["p50_ns"], json!(low.1 as u64));
    for name in ["p90_ns", "p99_ns", "p99_9_ns", "max_ns"] {
        assert_eq!(measure[name], json!(high.1 as u64), "{name}");
    }
    assert_eq!(measure["avg_ns"], json!(total / 3.0));
    assert_eq!(measure["total_ns"], json!(total));
    assert_eq!(measure["exact"], json!(false));
    assert_eq!(measure["p50"], Value::Null);
}

/// Numbers that the program keeps beside the histogram are shown as they are.
#[test]
fn durations_are_exact() {
    let timed = row(0, [], 3, [Measure::Histogram(durations(&[100, 101, 1000]))]);
    let mut group = group([0], [], ["hist(ns)"], [timed]);
    group.in_nanoseconds = vec![true];
    let value = groups(&[group], &names(), Duration::from_secs(1), Extent::Same);
    let measure = &value[0]["rows"][0]["measures"][0];
    assert_eq!(measure["avg_ns"], json!(1201.0 / 3.0));
    assert_eq!(measure["min_ns"], json!(100));
    assert_eq!(measure["max_ns"], json!(1000));
    assert_eq!(measure["total_ns"], json!(1201));
    assert_eq!(measure["exact"], json!(true));
    assert_eq!(measure["p99_ns"], json!(1000));
}

/// Each row says whether it is exact.
#[test]
fn a_full_table_has_errors_and_others() {
    let mut missing = row(0, [Key::Number(7)], 40, []);
    missing.error = 3;
    let mut full = group([0], ["fd"], [], [missing]);
    full.others = vec![row(0, [], 9, [])];
    full.most_without_row = 4;
    let value = groups(&[full], &names(), Duration::from_secs(2), Extent::Same);
    assert_eq!(value[0]["most_without_row"], 4);
    assert_eq!(
        value[0]["rows"],
        json!([{
            "event": "read", "keys": { "fd": 7 }, "calls": 40, "calls_per_second": 20.0,
            "error": 3, "unreadable": 0, "measures": [],
        }])
    );
    assert_eq!(
        value[0]["others"],
        json!([{
            "event": "read", "calls": 9, "calls_per_second": 4.5,
            "error": 0, "unreadable": 0, "measures": [],
        }])
    );
}
