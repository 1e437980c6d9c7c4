use super::*;
use crate::commands::stat::fixtures::{bounds, histogram};
use proptest::prelude::*;

fn drawn(values: impl IntoIterator<Item = i128>, blocks: bool) -> String {
    lines(&histogram(values), false, blocks).join("\n")
}

/// Sizes of reads: three values of 64 to 79, and so on.
fn sizes() -> Vec<i128> {
    let ranges = [
        (0, 3),
        (1, 12),
        (5, 1),
        (64, 400),
        (100, 1000),
        (130, 333),
        (4096, 7),
    ];
    let all = ranges.iter().flat_map(|(value, n)| vec![*value; *n]);
    all.collect()
}

#[test]
fn a_line_for_each_power_of_two_with_blocks() {
    insta::assert_snapshot!(drawn(sizes(), true), @r"
       0             3  ▏
       1            12  ▍
       2 .. 3        0
       4 .. 7        1  ▏
       8 .. 15       0
      16 .. 31       0
      32 .. 63       0
      64 .. 127   1400  ████████████████████████████████████████
     128 .. 255    333  █████████▌
     256 .. 511      0
     512 .. 1023     0
    1024 .. 2047     0
    2048 .. 4095     0
    4096 .. 8191     7  ▎
    ");
}

#[test]
fn and_with_what_every_terminal_has() {
    insta::assert_snapshot!(drawn(sizes(), false), @r"
       0             3  #
       1            12  #
       2 .. 3        0
       4 .. 7        1  #
       8 .. 15       0
      16 .. 31       0
      32 .. 63       0
      64 .. 127   1400  ########################################
     128 .. 255    333  ##########
     256 .. 511      0
     512 .. 1023     0
    1024 .. 2047     0
    2048 .. 4095     0
    4096 .. 8191     7  #
    ");
}

#[test]
fn negative_values_are_mirrored() {
    let values = [-100, -100, -9, -2, -1, -1, -1, 0, 2, 3];
    insta::assert_snapshot!(drawn(values, false), @r"
    -127 .. -64  2  ###########################
     -63 .. -32  0
     -31 .. -16  0
     -15 .. -8   1  #############
      -7 .. -4   0
      -3 .. -2   1  #############
      -1         3  ########################################
       0         1  #############
       1         0
       2 .. 3    2  ###########################
    ");
}

#[test]
fn one_value_is_told_exactly_and_none_is_nothing() {
    insta::assert_snapshot!(drawn([7, 7], true), @r"
    4 .. 7  2  ████████████████████████████████████████
    ");
    insta::assert_snapshot!(drawn([i128::from(u64::MAX)], false), @r"
    9223372036854775808 .. 18446744073709551615  1  ########################################
    ");
    assert!(lines(&Histogram::default(), false, true).is_empty());
}

#[test]
fn bars_tell_eighths_and_of_the_least_count_something() {
    let bars = |count| (bar(count, 320, true), bar(count, 320, false).len());
    for (count, blocks, hashes) in [
        (0, String::new(), 0),
        (1, "▏".into(), 1),
        (7, "▉".into(), 1),
        (8, "█".into(), 1),
        (12, "█▌".into(), 2),
        (319, "█".repeat(39) + "▉", 40),
        (320, "█".repeat(40), 40),
    ] {
        assert_eq!(bars(count), (blocks, hashes), "{count}");
    }
    assert_eq!(bar(1, u64::MAX, true), "▏");
    assert_eq!(bar(u64::MAX, u64::MAX, true), "█".repeat(40));
}

#[test]
fn times_have_units() {
    let times = [100, 300, 1_500, 40_000, 3_000_000, 5_000_000_000];
    let shown = lines(&histogram(times), true, false);
    assert_eq!(
        shown.first().map(String::as_str),
        Some("  64 ns .. 127 ns   1  ########################################")
    );
    let last = shown.last().expect("lines");
    assert!(last.starts_with(" 4.29 s .. 8.59 s   1  #"), "{last}");
}

/// Buckets of ticks in ns may cross a power of two.
#[test]
fn a_bucket_of_several_powers_of_two_counts_where_its_middle_is() {
    let bucket = |low, high, count| Bucket { low, high, count };
    let merged = merge(&[
        bucket(-1, 0, 1),
        bucket(3, 3, 2),
        bucket(5, 40, 4),
        bucket(41, 1000, 8),
    ]);
    let wanted = [
        bucket(-1, -1, 1),
        bucket(0, 0, 0),
        bucket(1, 1, 0),
        bucket(2, 3, 2),
        bucket(4, 7, 0),
        bucket(8, 15, 0),
        bucket(16, 31, 4),
        bucket(32, 63, 0),
        bucket(64, 127, 0),
        bucket(128, 255, 0),
        bucket(256, 511, 0),
        bucket(512, 1023, 8),
    ];
    assert_eq!(merged, wanted);
    let extremes = [
        bucket(i128::MIN, i128::MIN, u64::MAX),
        bucket(i128::MAX, i128::MAX, u64::MAX),
    ];
    let merged = merge(&extremes);
    assert_eq!(merged.len(), 256);
    assert_eq!((merged[0], merged[255].high), (extremes[0], i128::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Lines follow each other without a gap, are of one power of two each, and have the
    /// counts of the buckets within them.
    #[test]
    fn lines_have_all_counts_and_exact_bounds(
        values in prop::collection::vec(
            prop_oneof![-20i128..20, any::<i64>().prop_map(i128::from), any::<u64>().prop_map(i128::from)],
            1..100,
        ),
        blocks in any::<bool>(),
    ) {
        let histogram = histogram(values.iter().copied());
        let merged = merge(&histogram.buckets);
        let sum: u128 = merged.iter().map(|line| u128::from(line.count)).sum();
        prop_assert_eq!(sum, histogram.total());
        prop_assert_eq!(sum, values.len() as u128);
        prop_assert!(merged[0].count > 0 && merged[merged.len() - 1].count > 0);
        for pair in merged.windows(2) {
            prop_assert_eq!(pair[0].high + 1, pair[1].low);
        }
        for line in &merged {
            let within = values.iter().filter(|value| (line.low..=line.high).contains(value));
            prop_assert_eq!(within.count() as u64, line.count);
            let (least, most) = (line.low.unsigned_abs(), line.high.unsigned_abs());
            prop_assert_eq!(least.checked_ilog2(), most.checked_ilog2());
            prop_assert_eq!(line.low.signum(), line.high.signum());
            for bound in [line.low, line.high] {
                prop_assert!((line.low..=line.high).contains(&bounds(bound).0));
            }
        }
        let drawn = lines(&histogram, false, blocks);
        let mut left = &merged[..];
        for text in &drawn {
            // A line without a bar may stand for several.
            let empty = text.split_once("... (").and_then(|(_, text)| text.strip_suffix(" empty)"));
            let number = empty.map_or(1, |number| number.parse().unwrap());
            let (these, others) = left.split_at(number);
            prop_assert!(empty.is_none() || number > MOST_EMPTY);
            let count: u64 = these.iter().map(|line| line.count).sum();
            let bar = text.chars().filter(|c| "█▏▎▍▌▋▊▉#".contains(*c)).count();
            prop_assert!(bar <= 40 && (bar > 0) == (count > 0), "{}", text);
            prop_assert!(empty.is_none() || count == 0);
            left = others;
        }
        prop_assert!(left.is_empty());
    }
}

#[test]
fn a_long_run_of_empty_buckets_is_one_line() {
    let bucket = |low, high, count| Bucket { low, high, count };
    let drawn = |high| {
        let histogram = Histogram {
            buckets: vec![bucket(5, 5, 2), bucket(high, high, 1)],
            ..Histogram::default()
        };
        lines(&histogram, false, false)
    };
    // Buckets from 2^3 to 2^62 are empty.
    let wide = drawn(i128::from(u64::MAX));
    assert_eq!(wide.len(), 3, "{wide:#?}");
    assert!(wide[1].trim_start() == "... (60 empty)", "{wide:#?}");
    // Four empty buckets are drawn, five are not.
    assert_eq!([drawn(1 << 7).len(), drawn(1 << 8).len()], [6, 3]);
}
