use super::*;
use crate::commands::stat::fixtures::{
    durations, group, histogram, names, plain, reads, row, snapshot, text, total,
};
use capriole::aggregate::model::{Chain, ChainEnd, ChainFunction};
use std::sync::Arc;

const ALL: Style = Style {
    rows: usize::MAX,
    plots: usize::MAX,
    keyed_plots: true,
    stacks: Stacks::Below,
    form: Form::Short,
    blocks: true,
    columns: usize::MAX,
};

fn whole(snapshot: &Snapshot, style: Style) -> String {
    Page::whole(snapshot, &names()).lines(style).join("\n")
}

#[test]
fn plain_counting_of_several_definitions_is_one_table() {
    let counted = snapshot(2, [plain(0, &[3, 1000]), plain(2, &[0, 20])]);
    insta::assert_snapshot!(whole(&counted, ALL), @r"
    calls  calls/s  event
     1000      500  write
       20     10.0  free
        3      1.5  read

    1 event was never hit
    ");
    let silent = snapshot(2, [plain(0, &[0])]);
    insta::assert_snapshot!(whole(&silent, ALL), @"1 event was never hit");
    assert_eq!(whole(&snapshot(2, []), ALL), "");
}

#[test]
fn measures_and_keys_are_columns_and_histograms_stand_below() {
    let all = snapshot(2, [reads()]);
    insta::assert_snapshot!(whole(&all, ALL), @r#"
    read by fd, comm
    calls  calls/s  unreadable  sum(n)  min(n)  max(n)  avg(n)  p50(n)  p90(n)  p99(n)  p99.9(n)  fd  comm
      200      100           0   22167      64     160   110.8     111     159     191       191  17  nginx: w
        6      3.0           0     722       0     700   120.3       1     767     767       767   3  cat
        2      1.0           2       0       -       -       -       -       -       -         -  -1  ""

    hist(n) of read, fd=17, comm="nginx: w"
     64 .. 127  128  ████████████████████████████████████████
    128 .. 255   72  ██████████████████████▌

    hist(n) of read, fd=3, comm="cat"
      0          1  ████████████████████
      1          2  ████████████████████████████████████████
      2 .. 3     1  ████████████████████
      4 .. 7     0
      8 .. 15    0
     16 .. 31    1  ████████████████████
     32 .. 63    0
     64 .. 127   0
    128 .. 255   0
    256 .. 511   0
    512 .. 1023  1  ████████████████████
    "#);
}

#[test]
fn several_tables_follow_each_other() {
    let mut full = group(
        [2, 3],
        ["tid"],
        [],
        [
            row(3, [Value::Number(4711)], 50, []),
            row(2, [Value::Number(12)], 70, []),
            row(2, [Value::Unreadable], 3, []),
        ],
    );
    (full.capacity, full.dropped) = (1, 1234);
    let bare = group(
        [1],
        [],
        ["sum(n)", "avg(n)"],
        [row(
            1,
            [],
            4,
            [
                Measure::Sum(total(-9)),
                Measure::Average {
                    sum: total(-9),
                    count: 4,
                },
            ],
        )],
    );
    let all = snapshot(10, [full, bare, plain(0, &[0])]);
    let ascii = Style {
        blocks: false,
        columns: usize::MAX,
        ..ALL
    };
    insta::assert_snapshot!(whole(&all, ascii), @r"
    calls  calls/s      tid  event
       70      7.0       12  malloc
       50      5.0     4711  free
        3      0.3  (fault)  malloc
    a table is full: 1,234 hits of new keys were not counted; give it more room with --keys (now 1)

    calls  calls/s  sum(n)  avg(n)  event
        4      0.4      -9    -2.2  write

    1 event was never hit
    ");
}

#[test]
fn the_rest_is_told_where_rows_or_histograms_are_limited() {
    let all = snapshot(2, [plain(1, &[5, 6, 7]), reads()]);
    let one = Style { rows: 1, ..ALL };
    insta::assert_snapshot!(whole(&all, one), @r#"
    calls  calls/s  event
        7      3.5  free
    … and 2 more

    read by fd, comm
    calls  calls/s  sum(n)  min(n)  max(n)  avg(n)  p50(n)  p90(n)  p99(n)  p99.9(n)  fd  comm
      200      100   22167      64     160   110.8     111     159     191       191  17  nginx: w
    … and 2 more

    hist(n) of read, fd=17, comm="nginx: w"
     64 .. 127  128  ████████████████████████████████████████
    128 .. 255   72  ██████████████████████▌
    "#);
    let no_plots = Style {
        rows: 2,
        plots: 0,
        keyed_plots: false,
        stacks: Stacks::Below,
        form: Form::Short,
        blocks: false,
        columns: usize::MAX,
    };
    insta::assert_snapshot!(whole(&all, no_plots), @r"
    calls  calls/s  event
        7      3.5  free
        6      3.0  malloc
    ... and 1 more

    read by fd, comm
    calls  calls/s  sum(n)  min(n)  max(n)  avg(n)  p50(n)  p90(n)  p99(n)  p99.9(n)  fd  comm
      200      100   22167      64     160   110.8     111     159     191       191  17  nginx: w
        6      3.0     722       0     700   120.3       1     767     767       767   3  cat
    ... and 1 more
    ");
}

#[test]
fn a_table_that_is_full_says_so() {
    let mut full = group([0], ["fd"], [], [row(0, [Value::Number(3)], 5, [])]);
    (full.capacity, full.dropped) = (1024, 1);
    insta::assert_snapshot!(whole(&snapshot(1, [full]), ALL), @r"
    read by fd
    calls  calls/s  fd
        5      5.0   3
    the table is full: 1 hit of a new key was not counted; give it more room with --keys (now 1,024)
    ");
}

#[test]
fn a_table_with_other_keys_says_what_is_exact() {
    let mut rows = [(3, 50, 0), (4, 7, 2)].map(|(fd, calls, error)| {
        let mut row = row(0, [Value::Number(fd)], calls, [Measure::Sum(total(12))]);
        row.error = error;
        row
    });
    let mut full = group([0], ["fd"], ["sum(n)"], rows.clone());
    full.others = vec![row(0, [], 90, [Measure::Sum(total(300))])];
    full.others[0].key.clear();
    full.most_without_row = 6;
    let one = Style { rows: 1, ..ALL };
    insta::assert_snapshot!(whole(&snapshot(1, [full.clone()]), one), @r"
    read by fd
    calls  calls/s  sum(n)            fd
       50     50.0      12             3
       90     90.0     300  (other keys)
    … and 1 more
    the table is full: up to `error` calls of a row may be among those of other keys, and a key without a row had at most 6; give it more room with --keys (now 1,024)
    ");
    insta::assert_snapshot!(whole(&snapshot(1, [full.clone()]), ALL), @r"
    read by fd
    calls  calls/s  error  sum(n)            fd
       50     50.0      0      12             3
        7      7.0      2      12             4
       90     90.0      0     300  (other keys)
    the table is full: up to `error` calls of a row may be among those of other keys, and a key without a row had at most 6; give it more room with --keys (now 1,024)
    ");
    let live = |before: u64| {
        let mut then = full.clone();
        then.others[0].calls = before;
        let (then, now) = (snapshot(1, [then]), snapshot(2, [full.clone()]));
        Page::live(&now, &now.since(&then), &names())
            .lines(ALL)
            .into_iter()
            .find(|line| line.ends_with("(other keys)"))
    };
    let line = live(40).expect("it is shown");
    assert!(line.trim_start().starts_with("90     50.0"), "{line}");
    // Rows that are exact need no words.
    rows[1].error = 0;
    (full.rows, full.others) = (rows.into(), Vec::new());
    assert!(!whole(&snapshot(1, [full]), ALL).contains("full"));
}

#[test]
fn texts_do_not_act_on_the_terminal_and_cannot_be_taken_for_others() {
    let texts = [
        "plain",
        "two words",
        "",
        " leading",
        "trailing ",
        "(fault)",
        "\x1b[2J\u{9b}31m\n",
        "a\"b\\c",
        "日本",
        "\u{202e}txt",
        "\u{fffd}",
    ];
    let mut calls = 100;
    let rows = texts.iter().map(|shown| {
        calls -= 1;
        row(0, [text(shown), Value::Number(1)], calls, [])
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.push(row(0, [Value::Unreadable, Value::Unreadable], 1, []));
    let all = snapshot(1, [group([0, 1], ["comm", "x"], [], rows)]);
    let shown = Page::whole(&all, &["re\x07ad".to_owned()]).lines(ALL);
    insta::assert_snapshot!(shown.join("\n"), @r#"
    calls  calls/s  comm                      x  event
       99     99.0  plain                     1  re\x07ad
       98     98.0  two words                 1  re\x07ad
       97     97.0  ""                        1  re\x07ad
       96     96.0  " leading"                1  re\x07ad
       95     95.0  "trailing "               1  re\x07ad
       94     94.0  "(fault)"                 1  re\x07ad
       93     93.0  \x1b[2J\u{9b}31m\n        1  re\x07ad
       92     92.0  a\"b\\c                   1  re\x07ad
       91     91.0  日本                      1  re\x07ad
       90     90.0  \u{202e}txt               1  re\x07ad
       89     89.0  �                         1  re\x07ad
        1      1.0  (fault)             (fault)  re\x07ad

    1 event was never hit
    "#);
}

#[test]
fn an_interval_tells_which_values_are_since_the_start() {
    let before = snapshot(3, [reads(), plain(1, &[5, 1])]);
    let mut now = snapshot(5, [reads(), plain(1, &[5, 4])]);
    let hit = &mut now.groups[0].rows[0];
    hit.calls += 2;
    hit.measures[0] = Measure::Sum(total(750));
    hit.measures[3] = Measure::Average {
        sum: total(750),
        count: 8,
    };
    hit.measures[4] = Measure::Histogram(histogram([0, 1, 1, 3, 17, 700, 20, 8]));
    let interval = now.since(&before);
    let shown = Page::interval(&interval, &names()).lines(ALL);
    insta::assert_snapshot!(shown.join("\n"), @r#"
    calls  calls/s  event
        3      1.5  malloc

    read by fd, comm
    calls  calls/s  sum(n)  min(n) so far  max(n) so far  avg(n)  p50(n)  p90(n)  p99(n)  p99.9(n)  fd  comm
        2      1.0      28              0            700    14.0       9      23      23        23   3  cat

    hist(n) of read, fd=3, comm="cat"
     8 .. 15  1  ████████████████████████████████████████
    16 .. 31  1  ████████████████████████████████████████
    "#);
}

#[test]
fn while_it_is_live_rates_are_those_of_the_last_moment() {
    let before = snapshot(100, [plain(0, &[500, 7, 0])]);
    let now = snapshot(102, [plain(0, &[900, 7, 0])]);
    let recent = now.since(&before);
    let shown = Page::live(&now, &recent, &names()).lines(ALL);
    insta::assert_snapshot!(shown.join("\n"), @r"
    calls  calls/s  event
      900      200  read
        7      0.0  write

    1 event was not hit yet
    ");
}

/// Durations as `latency(read) by fd` keeps them.
fn latencies() -> Group {
    let timed = |fd, times: &[i128]| {
        let measures = [Measure::Histogram(durations(times))];
        row(0, [Value::Number(fd)], times.len() as u64, measures)
    };
    let rows = [
        timed(3, &[100, 100, 100, 100]),
        timed(4, &[1_000, 2_000_000, 5]),
        timed(5, &[5, 5]),
        timed(6, &[]),
    ];
    let mut group = group([0], ["fd"], ["hist(ns)"], rows);
    group.rows[3].unreadable = 1;
    group.in_nanoseconds = vec![true];
    group
}

/// Durations are exact, except for percentiles.
#[test]
fn durations_are_one_table_with_units() {
    let all = snapshot(2, [latencies()]);
    let no_plots = Style {
        keyed_plots: false,
        ..ALL
    };
    insta::assert_snapshot!(whole(&all, no_plots), @r"
    read by fd
    calls  calls/s  unreadable     avg     min      p50      p90      p99    p99.9      max    total  fd
        4      2.0           0  100 ns  100 ns   100 ns   100 ns   100 ns   100 ns   100 ns   400 ns   3
        3      1.5           0  667 us    5 ns  1.02 us  2.00 ms  2.00 ms  2.00 ms  2.00 ms  2.00 ms   4
        2      1.0           0    5 ns    5 ns     5 ns     5 ns     5 ns     5 ns     5 ns    10 ns   5
        0      0.0           1       -       -        -        -        -        -        -        -   6
    ");
}

/// In an interval the least and the largest duration are bounds of buckets; those are marked.
#[test]
fn durations_of_an_interval() {
    let before = snapshot(1, [latencies()]);
    let mut after = latencies();
    let more = [100, 100, 100, 100, 70, 1_000];
    after.rows[0].measures = vec![Measure::Histogram(durations(&more))];
    after.rows[0].calls = 6;
    let interval = snapshot(2, [after]).since(&before);
    let shown = Page::interval(&interval, &names()).lines(Style {
        keyed_plots: false,
        ..ALL
    });
    insta::assert_snapshot!(shown.join("\n"), @r"
    read by fd
    calls  calls/s     avg     min    p50      p90      p99    p99.9       max    total  fd
        2      2.0  535 ns  ~64 ns  79 ns  1.02 us  1.02 us  1.02 us  ~1.02 us  1.07 us   3
    ");
}

/// Without keys the histogram is drawn.
#[test]
fn a_histogram_is_drawn_below_durations_without_keys() {
    let mut timed = latencies();
    timed.rows.truncate(1);
    (timed.rows[0].keys, timed.key_names) = (Vec::new(), Vec::new());
    let no_plots = Style {
        keyed_plots: false,
        ..ALL
    };
    insta::assert_snapshot!(whole(&snapshot(2, [timed]), no_plots), @r"
    calls  calls/s     avg     min     p50     p90     p99   p99.9     max   total  event
        4      2.0  100 ns  100 ns  100 ns  100 ns  100 ns  100 ns  100 ns  400 ns  read

    hist(ns) of read
    64 ns .. 127 ns  4  ████████████████████████████████████████
    ");
}

#[test]
fn rows_are_sorted_by_a_column() {
    let (times, numbers) = (snapshot(2, [latencies()]), snapshot(2, [reads()]));
    let order = |all: &Snapshot, title: &str, column: Option<usize>| -> Vec<String> {
        let page = Page::whole(all, &names()).sorted_by(Some(title));
        let table = page.lines(Style { plots: 0, ..ALL });
        let cells = table[2..].iter().map(|line| {
            let mut cells = line.split_whitespace();
            let cell = match column {
                Some(column) => cells.nth(column),
                None => cells.last(),
            };
            cell.expect("a cell").to_owned()
        });
        cells.collect()
    };
    // Times have blanks, and the key is behind them; a name has some, and the key is before it.
    let (last, twelfth) = (None, Some(11));
    for (title, wanted) in [
        ("calls", ["3", "4", "5", "6"]),
        ("avg", ["4", "3", "5", "6"]),
        ("p99.9", ["4", "3", "5", "6"]),
        ("total", ["4", "3", "5", "6"]),
        ("unreadable", ["6", "3", "4", "5"]),
        ("fd", ["3", "4", "5", "6"]),
        // No table has it: as usual.
        ("sum(x)", ["3", "4", "5", "6"]),
    ] {
        assert_eq!(order(&times, title, last), wanted, "{title}");
    }
    for (title, wanted) in [
        ("max", ["3", "17", "-1"]),
        ("max(n)", ["3", "17", "-1"]),
        ("total", ["17", "3", "-1"]),
        ("p50(n)", ["17", "3", "-1"]),
        ("avg", ["3", "17", "-1"]),
        ("fd", ["-1", "3", "17"]),
    ] {
        assert_eq!(order(&numbers, title, twelfth), wanted, "{title}");
    }
}

/// Creates the chain `read < parse < main`; of `main` and the inlined `parse` at one address.
fn chain(end: ChainEnd) -> Value {
    let function = |address, symbol: Option<&str>, offset, inlined| ChainFunction {
        address,
        symbol: symbol.map(str::to_owned),
        name: symbol.unwrap_or("[shop]").to_owned(),
        offset,
        object: (address != 0x9000).then(|| Arc::from("/usr/bin/shop")),
        inlined,
        same_code: Vec::new(),
    };
    Value::Stack(Chain {
        addresses: vec![0x1000, 0x2000, 0x9000],
        end,
        functions: vec![
            function(0x1000, Some("read(int)"), Some(0), false),
            function(0x2000, Some("shop::parse<int>(int)"), None, true),
            function(0x2000, Some("main"), Some(0x18), false),
            function(0x9000, None, None, false),
        ],
    })
}

#[test]
fn stacks_stand_below_their_rows() {
    let sum = |sum| Measure::Sum(total(sum));
    let rows = [
        row(
            0,
            [chain(ChainEnd::Unknown), Value::Number(7)],
            30,
            [sum(90)],
        ),
        row(
            0,
            [chain(ChainEnd::Truncated), Value::Number(8)],
            4,
            [sum(5)],
        ),
    ];
    let all = snapshot(2, [group([0], ["stack", "fd"], ["sum(n)"], rows)]);
    insta::assert_snapshot!(whole(&all, ALL), @r"
    read by stack, fd
    calls  calls/s  sum(n)  fd
       30     15.0      90   7
            read+0x0 (shop)
            shop::parse<int> (inlined) (shop)
            main+0x18 (shop)
            [shop] (0x9000)
            [unknown caller]
        4      2.0       5   8
            read+0x0 (shop)
            shop::parse<int> (inlined) (shop)
            main+0x18 (shop)
            [shop] (0x9000)
            [truncated]
    ");
    let inline = Style {
        stacks: Stacks::Inline,
        ..ALL
    };
    insta::assert_snapshot!(whole(&all, inline), @r"
    read by stack, fd
    calls  calls/s  sum(n)  stack                                                      fd
       30     15.0      90  read < shop::parse<..> < main < [shop] < [unknown caller]   7
        4      2.0       5  read < shop::parse<..> < main < [shop] < [truncated]        8
    ");
}
