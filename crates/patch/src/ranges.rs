//! Ranges of addresses, found by address: a search looks at those nearby, not at all.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of addresses, which may overlap, with a number each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// By start and number: the end.
    ends: BTreeMap<(u64, usize), u64>,
    /// Length of the longest range.
    longest: u64,
}

impl Ranges {
    /// Adds a range. Of those with one start and number the longest counts.
    pub(crate) fn insert(&mut self, range: Range<u64>, number: usize) {
        let end = self.ends.entry((range.start, number)).or_insert(range.end);
        *end = range.end.max(*end);
        self.longest = self.longest.max(range.end.saturating_sub(range.start));
    }

    /// Returns the ranges that share an address with `range`, with their numbers.
    pub(crate) fn meeting(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, usize)> {
        let near = self.near(range.clone());
        near.filter(move |(_, end)| **end > range.start)
            .map(|((start, number), end)| (*start..*end, *number))
    }

    /// Returns the ranges that begin before the end of `range`, and not so far before its start that
    /// none reaches it.
    fn near(&self, range: Range<u64>) -> impl Iterator<Item = (&(u64, usize), &u64)> {
        let first = range.start.saturating_sub(self.longest);
        self.ends.range((first, 0)..(range.end.max(first), 0))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Pseudo-random numbers (xorshift).
    pub(crate) struct Random(pub u64);

    impl Random {
        pub(crate) fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }

        pub(crate) fn range(&mut self, longest: u64) -> Range<u64> {
            let start = self.below(200);
            start..start + self.below(longest + 1)
        }
    }

    #[test]
    fn ranges_that_meet_are_those_that_comparing_all_finds() {
        let mut random = Random(1);
        for _ in 0..200 {
            let all: Vec<Range<u64>> = (0..60).map(|_| random.range(12)).collect();
            let mut ranges = Ranges::default();
            for (number, range) in all.iter().enumerate() {
                ranges.insert(range.clone(), number);
            }
            for _ in 0..50 {
                let asked = random.range(12);
                let meets = |one: &Range<u64>| one.start < asked.end && asked.start < one.end;
                let expected: BTreeSet<usize> = (0..60).filter(|i| meets(&all[*i])).collect();
                let found: BTreeSet<usize> = {
                    let found = ranges.meeting(asked.clone());
                    found.map(|(_, number)| number).collect()
                };
                assert_eq!(found, expected, "{asked:?} among {all:?}");
            }
        }
    }

    #[test]
    fn few_ranges_are_looked_at_however_many_there_are() {
        let mut ranges = Ranges::default();
        for number in 0..10_000 {
            let start = 16 * number as u64;
            ranges.insert(start..start + 9, number);
        }
        for number in 0..10_000 {
            let start = 16 * number as u64;
            assert!(ranges.near(start..start + 9).count() <= 2);
        }
    }
}
