//! A histogram as lines of text: a line for each power of two.

use capriole::aggregate::model::{Bucket, Histogram};
use capriole_text::units;

/// The length of the longest bar, in columns.
const BAR: u64 = 40;

/// Longest run of empty buckets that is drawn; a longer one is a single line.
const MOST_EMPTY: usize = 4;

/// Draws the histogram; nothing without values. Values that are a `time` in ns have units. Bars are of
/// block characters, or of `#`.
pub fn lines(histogram: &Histogram, time: bool, blocks: bool) -> Vec<String> {
    let number = |value: i128| match time {
        true => units::short_time(value as f64),
        false => value.to_string(),
    };
    let merged = merge(&histogram.buckets);
    let Some(most) = merged.iter().map(|line| line.count).max() else {
        return Vec::new();
    };
    let rows = merged.iter().map(|line| {
        let high = match line.low == line.high {
            true => String::new(),
            false => format!(".. {}", number(line.high)),
        };
        [number(line.low), high, line.count.to_string()]
    });
    let rows: Vec<[String; 3]> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (lows, highs, counts) = (width(0), width(1), width(2));
    let line = |([low, high, count], line): (&[String; 3], &Bucket)| {
        let bar = bar(line.count, most, blocks);
        let text = format!("{low:>lows$} {high:<highs$}  {count:>counts$}  {bar}");
        text.trim_end().to_owned()
    };
    let all: Vec<(&[String; 3], &Bucket)> = rows.iter().zip(&merged).collect();
    let runs = all.chunk_by(|one, next| (one.1.count == 0) == (next.1.count == 0));
    let drawn = runs.flat_map(|run| match run[0].1.count == 0 && run.len() > MOST_EMPTY {
        true => vec![format!("{:>lows$} ({} empty)", "...", run.len())],
        false => run.iter().copied().map(line).collect(),
    });
    drawn.collect()
}

/// Draws a bar for `count` of at most `most`; every count but 0 is visible.
fn bar(count: u64, most: u64, blocks: bool) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let length = |unit: u64| {
        let exact = u128::from(count) * u128::from(BAR * unit);
        let rounded = (exact + u128::from(most) / 2) / u128::from(most.max(1));
        // At most BAR times the unit.
        (rounded as usize).max(usize::from(count > 0))
    };
    match blocks {
        true => "█".repeat(length(8) / 8) + EIGHTHS[length(8) % 8],
        false => "#".repeat(length(1)),
    }
}

/// Merges buckets into one per power of two: `0`, `1`, `2 .. 3`, `4 .. 7`, and mirrored below 0.
/// Covers the range from the first bucket with a count to the last, including empty ones. A bucket
/// that crosses a power of two, as those of ticks in ns may, counts where its middle is.
fn merge(buckets: &[Bucket]) -> Vec<Bucket> {
    let mut merged: Vec<Bucket> = Vec::new();
    for bucket in buckets.iter().filter(|bucket| bucket.count > 0) {
        let (low, high) = around(bucket.low + (bucket.high - bucket.low) / 2);
        while let Some(last) = merged.last()
            && last.high < low.saturating_sub(1)
        {
            let (low, high) = around(last.high + 1);
            merged.push(Bucket {
                low,
                high,
                count: 0,
            });
        }
        match merged.last_mut() {
            Some(last) if last.high >= low => {
                last.count = last.count.saturating_add(bucket.count);
            }
            _ => merged.push(Bucket {
                low,
                high,
                count: bucket.count,
            }),
        }
    }
    merged
}

/// Returns the smallest and the largest value with the sign and the highest bit of `value`.
fn around(value: i128) -> (i128, i128) {
    let Some(bit) = value.unsigned_abs().checked_ilog2() else {
        return (0, 0);
    };
    match (value > 0, bit) {
        (true, _) => (1 << bit, i128::MAX >> (126 - bit)),
        (false, 127) => (i128::MIN, i128::MIN),
        (false, _) => (-(i128::MAX >> (126 - bit)), -(1 << bit)),
    }
}

#[cfg(test)]
mod tests;
