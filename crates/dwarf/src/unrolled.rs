//! Inlined copies in loops that the compiler has unrolled, peeled or vectorised: debug information has one copy for
//! all rounds, with one entry.

use std::collections::{BTreeMap, BTreeSet};

use super::scope::Site;
use super::units::Debug;

/// Maximum number of ranges and bytes of a copy that are examined.
const RANGES: usize = 256;
const CODE: u64 = 1 << 16;
/// Maximum number of lines of an inlined function.
const LINES: u64 = 200;
/// Number of places at which a statement begins from which on it is taken for repeated: that of a loop has up to
/// three in one round, and those of both sides of a branch two.
const REPEATED: usize = 3;

impl Debug<'_> {
    /// True if statements of an inlined copy begin at so many places that they are probably those of several rounds
    /// of an unrolled loop: a probe at the copy's entry is hit in some rounds only.
    ///
    /// That is at least two lines, and two of three, at three places or more. In a loop of the function's own, its
    /// head is repeated, and not all that is around it. Of a function with one line it is not known.
    pub fn is_repeated(&self, copy: &Site) -> bool {
        let frame = copy.frame();
        let Ok(die) = self.die(frame.key) else {
            return false;
        };
        let ranges = die.ranges(RANGES);
        let (Some(start), Some(end), Some(declared)) = (
            ranges.iter().map(|range| range.0).min(),
            ranges.iter().map(|range| range.1).max(),
            self.declared_at(&die),
        ) else {
            return false;
        };
        if !frame.inlined || end - start > CODE {
            return false;
        }
        // The lines of the function around it may be in the same file.
        let outer = copy
            .chosen
            .checked_sub(1)
            .and_then(|outer| copy.frames.get(outer));
        let outer = outer.and_then(|outer| self.declared_at(&self.die(outer.key).ok()?));
        let last = outer.filter(|outer| *outer > declared).unwrap_or(u64::MAX);
        let lines = declared..last.min(declared + LINES);
        // Other copies of the same function have statements of their own.
        let around = &copy.frames[..=copy.chosen];
        let is_own = |address: u64| {
            let frames = self.frames_at(address).unwrap_or_default();
            let innermost = frames.last();
            innermost.is_some_and(|frame| around.iter().any(|own| own.key == frame.key))
        };
        let file = self.row_at(copy.address).map(|row| row.file);
        let rows = self.rows_within(start, end).into_iter();
        let rows = rows.filter(|row| Some(row.file) == file && lines.contains(&row.line));
        let mut begins: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for row in rows.filter(|row| is_own(row.address)) {
            begins.entry(row.line).or_default().insert(row.address);
        }
        let repeated = begins
            .values()
            .filter(|places| places.len() >= REPEATED)
            .count();
        repeated >= 2 && repeated * 3 >= begins.len() * 2
    }
}
