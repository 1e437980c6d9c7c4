//! Index of the functions that have probes by address. Adding a probe looks at those around it, not
//! at all that are there.

use super::Point;
use capriole_insn::Extent;
use capriole_insn::liveness::RegSet;
use std::collections::BTreeMap;

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
    use crate::ranges::tests::Random;
    use std::ops::Range;

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
