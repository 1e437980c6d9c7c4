//! Log-linear histograms: each number below 2^3 has a bucket of its own, and every power of two
//! from there on has eight, so that the width of a bucket is at most an eighth of the numbers
//! in it. (The scheme of HdrHistogram, with one digit of octal precision.)

use capriole_ring::numbers::session::BUCKET_BITS;
use std::ops::RangeInclusive;

/// Number of bits below a number's highest bit that select its bucket.
pub const BITS: u32 = BUCKET_BITS;
/// Number of buckets for 0 to 2^64 - 1. Negative numbers have as many again, by absolute value.
pub use capriole_ring::numbers::session::BUCKETS;

/// Returns the number of buckets for signed or for unsigned numbers.
pub fn buckets(signed: bool) -> u32 {
    if signed { 2 * BUCKETS } else { BUCKETS }
}

/// Returns the bucket of a number.
pub fn bucket(value: i128) -> u32 {
    let first = if value < 0 { BUCKETS } else { 0 };
    let value = value.unsigned_abs() as u64;
    first
        + match value >> BITS {
            0 => value as u32,
            _ => {
                let shift = value.ilog2() - BITS;
                (shift << BITS) + (value >> shift) as u32
            }
        }
}

/// Returns the range of numbers that belong to a bucket.
///
/// # Panics
/// If there is no such bucket.
pub fn numbers(bucket: u32) -> RangeInclusive<i128> {
    assert!(bucket < 2 * BUCKETS);
    let positive = bucket % BUCKETS;
    let (low, high) = match positive >> BITS {
        0 | 1 => (i128::from(positive), i128::from(positive)),
        step => {
            let shift = step - 1;
            let low = i128::from(positive - (shift << BITS)) << shift;
            (low, low + (1 << shift) - 1)
        }
    };
    match bucket < BUCKETS {
        true => low..=high,
        false => -high..=-low,
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, bucket, numbers};

    #[test]
    fn buckets_part_all_numbers_without_gap() {
        let mut next = 0;
        for index in 0..BUCKETS {
            let range = numbers(index);
            assert_eq!(*range.start(), next, "bucket {index}");
            for value in [*range.start(), *range.end()] {
                assert_eq!(bucket(value), index, "{value}");
            }
            let width = range.end() - range.start() + 1;
            assert!(width == 1 || width * 8 <= *range.start(), "{range:?}");
            next = range.end() + 1;
        }
        assert_eq!(next, 1 << 64);
        for index in BUCKETS + 1..2 * BUCKETS {
            let (mirror, range) = (numbers(index - BUCKETS), numbers(index));
            assert_eq!(
                (*range.start(), *range.end()),
                (-mirror.end(), -mirror.start())
            );
            assert_eq!(bucket(*range.start()), index);
        }
    }
}
