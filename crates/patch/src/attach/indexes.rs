//! Indexes of the places and probes of a session by address. Adding a probe looks at those near it,
//! not at all that are there.

use super::Point;
use capriole_insn::Extent;
use capriole_insn::liveness::RegSet;
use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of addresses, which may overlap, with a number each.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// By start and number: the end.
    ends: BTreeMap<(u64, usize), u64>,
    /// Length of the longest range.
    longest: u64,
}

impl Ranges {
    /// Adds a range. Of those with one start and number the longest counts.
    pub(super) fn insert(&mut self, range: Range<u64>, number: usize) {
        let end = self.ends.entry((range.start, number)).or_insert(range.end);
        *end = range.end.max(*end);
        self.longest = self.longest.max(range.end.saturating_sub(range.start));
    }

    /// Returns the numbers of the ranges that share an address with `range`.
    pub(super) fn meeting(&self, range: Range<u64>) -> impl Iterator<Item = usize> {
        let near = self.near(range.clone());
        near.filter(move |(_, end)| **end > range.start)
            .map(|((_, number), _)| *number)
    }

    /// Returns the ranges that begin before the end of `range`, and not so far before its start that
    /// none reaches it.
    fn near(&self, range: Range<u64>) -> impl Iterator<Item = (&(u64, usize), &u64)> {
        let first = range.start.saturating_sub(self.longest);
        self.ends.range((first, 0)..(range.end.max(first), 0))
    }
}

/// A function with probes.
#[derive(Debug, Default)]
struct Function {
    /// The registers that probes inside read.
    reads: RegSet,
    probes: Vec<usize>,
}

/// The functions that have probes, and the registers that these read.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Registers read by probes, by the addresses of the points.
    reads: BTreeMap<u64, RegSet>,
    /// By start and end. Usually one is not inside another.
    functions: BTreeMap<(u64, u64), Function>,
    /// Length of the longest function.
    longest: u64,
}

impl Functions {
    /// Adds a point of a probe. Returns the functions in which more is read than before.
    pub(super) fn add(&mut self, probe: usize, point: &Point) -> Vec<Extent> {
        self.add_reads(probe, point.function, point.site, point.reads())
    }

    /// Adds a probe's point in `function`, at `site`, that reads some registers.
    fn add_reads(
        &mut self,
        probe: usize,
        function: Extent,
        site: u64,
        read: RegSet,
    ) -> Vec<Extent> {
        if !read.is_empty() {
            let all = self.reads.entry(site).or_insert(RegSet::EMPTY);
            *all = *all | read;
        }
        let Extent { start, end } = function;
        let known = &self.reads;
        let function = self.functions.entry((start, end));
        let function = function.or_insert_with(|| Function {
            reads: known
                .range(start..end.max(start))
                .fold(RegSet::EMPTY, |all, (_, set)| all | *set),
            probes: Vec::new(),
        });
        if function.probes.last() != Some(&probe) {
            function.probes.push(probe);
        }
        self.longest = self.longest.max(end.saturating_sub(start));
        let first = site.saturating_sub(self.longest);
        let candidates = self.functions.range_mut((first, 0)..=(site, u64::MAX));
        let around = candidates.filter(|((_, end), _)| *end > site);
        let grown = around.filter_map(|((start, end), function)| {
            let reads = function.reads | read;
            let grows = reads != function.reads;
            function.reads = reads;
            grows.then_some(Extent {
                start: *start,
                end: *end,
            })
        });
        grown.collect()
    }

    /// Returns the probes with a point of this function.
    pub(super) fn probes(&self, function: Extent) -> &[usize] {
        let known = self.functions.get(&(function.start, function.end));
        known.map_or(&[], |known| &known.probes)
    }

    /// Returns the registers that probes inside a function read.
    pub(super) fn reads(&self, function: Extent) -> RegSet {
        let known = self.functions.get(&(function.start, function.end));
        known.map_or(RegSet::EMPTY, |known| known.reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Pseudo-random numbers (xorshift).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }

        fn range(&mut self, longest: u64) -> Range<u64> {
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
                let found: BTreeSet<usize> = ranges.meeting(asked.clone()).collect();
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

    /// Functions may overlap, and points be anywhere in them.
    #[test]
    fn registers_read_in_functions_are_those_of_all_points_inside() {
        let mut random = Random(2);
        for _ in 0..200 {
            let mut functions = Functions::default();
            let mut points: Vec<(Extent, u64, RegSet)> = Vec::new();
            for probe in 0..40 {
                let Range { start, end } = match points.is_empty() || random.below(3) == 0 {
                    true => random.range(30),
                    false => {
                        let known = points[random.below(points.len() as u64) as usize].0;
                        known.start..known.end
                    }
                };
                let function = Extent { start, end };
                let site = start + random.below((end - start).max(1));
                let read = RegSet((random.below(0x10000) & random.below(0x10000)) as u16);
                let reads = |points: &[(Extent, u64, RegSet)], of: Extent| {
                    let inside = points
                        .iter()
                        .filter(|(_, site, _)| (of.start..of.end).contains(site));
                    inside.fold(RegSet::EMPTY, |all, (_, _, set)| all | *set)
                };
                let before = points.clone();
                points.push((function, site, read));
                let grown = functions.add_reads(probe, function, site, read);
                for (index, (of, ..)) in points.iter().enumerate() {
                    assert_eq!(functions.reads(*of), reads(&points, *of), "{points:?}");
                    assert!(functions.probes(*of).contains(&index));
                    // Those that were there before have to keep more.
                    if index < before.len() && reads(&before, *of) != reads(&points, *of) {
                        assert!(grown.contains(of), "{of:?} of {points:?}");
                    }
                }
            }
        }
    }
}
