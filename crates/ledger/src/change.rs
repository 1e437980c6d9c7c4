//! Changes of a program's code: the bytes of a site, and the state in which they are found.

use capriole_proc::maps::PAGE_SIZE;
use std::ops::Range;

/// Maximum number of bytes changed at a site.
pub const MAX_BYTES: usize = 16;

/// The one-byte breakpoint instruction.
pub const INT3: u8 = 0xcc;

/// The bytes of one site, before and while it is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes, 1..=16.
    pub len: usize,
    /// The program's own bytes.
    pub before: [u8; MAX_BYTES],
    /// The bytes that lead to the detour.
    pub after: [u8; MAX_BYTES],
    /// Address of the detour.
    pub detour: u64,
    /// Bytes around the change that no other session may change.
    pub uses: Uses,
    /// Order among the changes of one site, which are made one after the other: lower ones first.
    /// They are reverted in the opposite order.
    pub phase: u8,
    /// True for a guard, a probe of Capriole's own: written before all others, reverted after them.
    pub guard: bool,
    /// True if it answers an unwinder: taken back when no return address is
    /// replaced any more. Then `guard` is true, too.
    pub unwinder: bool,
    /// True if a breakpoint of Capriole's own may be at the first byte: permanently, in place of
    /// the jump, or while a change across pages is written. Any other breakpoint is another tool's.
    pub breakpoint: bool,
    /// True for a guard through which the program sees its own signal actions: reverted when none
    /// is replaced any more.
    pub action: bool,
}

/// Bytes that a probe changes, displaces or relies on, from the address of one of its changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uses {
    /// Number of bytes before the address.
    pub back: u16,
    /// Number of bytes from the address on.
    pub ahead: u16,
}

/// State of a site's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The program's own bytes.
    Before,
    /// The bytes of the probe.
    After,
    /// An interrupted change: a breakpoint at the first byte, and behind it the program's bytes or
    /// the probe's, or, if there is a page boundary among them, some of each.
    Between,
    /// Bytes of the program, or a breakpoint, that another tool has written over a part of the
    /// probe. The kernel does so when it installs or removes a uprobe: it writes one byte, the
    /// breakpoint or the file's, and the original instruction that it keeps is the file's as well.
    Disturbed,
    /// Other bytes: the library is gone, or another tool also changes code.
    Foreign,
}

impl Change {
    /// Returns the pages that it changes bytes of: one, or two.
    pub fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        let ends = [self.address, self.address + self.len as u64 - 1];
        ends.into_iter().map(|at| at / PAGE_SIZE * PAGE_SIZE)
    }

    /// Returns the bytes that no other session may change while this change is in a journal.
    #[must_use]
    pub fn claim(&self) -> Range<u64> {
        let end = u64::from(self.uses.ahead).max(self.len as u64);
        self.address.saturating_sub(self.uses.back.into())..self.address.saturating_add(end)
    }

    /// True if it is reverted after the signal actions.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.unwinder || self.action
    }

    /// True if the bytes lie in two pages.
    #[must_use]
    pub fn crosses_pages(&self) -> bool {
        self.address / PAGE_SIZE != (self.address + self.len as u64 - 1) / PAGE_SIZE
    }

    /// Classifies `now`, the bytes at the site.
    #[must_use]
    pub fn judge(&self, now: &[u8]) -> Found {
        let (before, after) = (&self.before[..self.len], &self.after[..self.len]);
        if now == before {
            Found::Before
        } else if now == after {
            Found::After
        } else if self.breakpoint && now[0] == INT3 && self.is_of_both(now) {
            Found::Between
        } else if (0..self.len).all(|i| [before[i], after[i], INT3].contains(&now[i])) {
            Found::Disturbed
        } else {
            Found::Foreign
        }
    }

    /// Returns the runs of bytes in `now` that belong to the probe, at a
    /// [disturbed](Found::Disturbed) site: they have to become the program's again.
    #[must_use]
    pub fn ours(&self, now: &[u8]) -> Vec<Range<usize>> {
        let is_ours = |i: &usize| now[*i] == self.after[*i] && now[*i] != self.before[*i];
        let mut runs: Vec<Range<usize>> = Vec::new();
        for i in (0..self.len).filter(is_ours) {
            match runs.last_mut() {
                Some(run) if run.end == i => run.end += 1,
                _ => runs.push(i..i + 1),
            }
        }
        runs
    }

    /// True if the bytes behind the first are the program's or the probe's, in each page as a
    /// whole: each page's part is written at once.
    fn is_of_both(&self, now: &[u8]) -> bool {
        let second = match self.crosses_pages() {
            true => (PAGE_SIZE - self.address % PAGE_SIZE) as usize,
            false => self.len,
        };
        [1..second, second..self.len].into_iter().all(|piece| {
            now[piece.clone()] == self.before[piece.clone()]
                || now[piece.clone()] == self.after[piece]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_boundaries() {
        let change = |address, len| Change {
            address,
            len,
            before: [0; MAX_BYTES],
            after: [0; MAX_BYTES],
            detour: 0,
            uses: Uses::default(),
            phase: 0,
            guard: false,
            unwinder: false,
            action: false,
            breakpoint: false,
        };
        assert!(!change(0x1000, 5).crosses_pages());
        assert!(!change(0x1ffb, 5).crosses_pages());
        assert!(change(0x1ffc, 5).crosses_pages());
        assert!(change(0x1fff, 5).crosses_pages());
        assert!(!change(0x1fff, 1).crosses_pages());
    }
    /// A site of a `push` and a `mov`, as two tools change it.
    #[test]
    fn breakpoints_of_others() {
        let bytes = |bytes: [u8; 5]| {
            let mut all = [0; MAX_BYTES];
            all[..5].copy_from_slice(&bytes);
            all
        };
        let mut change = Change {
            address: 0x1000,
            len: 5,
            before: bytes([0x55, 0x48, 0x89, 0xe5, 0x41]),
            after: bytes([0xe9, 0x10, 0x89, 0x30, 0xff]),
            detour: 0,
            uses: Uses::default(),
            phase: 0,
            guard: false,
            unwinder: false,
            action: false,
            breakpoint: false,
        };
        type Case<'a> = ([u8; 5], Found, &'a [Range<usize>]);
        let cases: [Case<'_>; 8] = [
            ([0x55, 0x48, 0x89, 0xe5, 0x41], Found::Before, &[]),
            ([0xe9, 0x10, 0x89, 0x30, 0xff], Found::After, &[0..2, 3..5]),
            // A uprobe was added, and was removed.
            (
                [0xcc, 0x10, 0x89, 0x30, 0xff],
                Found::Disturbed,
                &[1..2, 3..5],
            ),
            (
                [0x55, 0x10, 0x89, 0x30, 0xff],
                Found::Disturbed,
                &[1..2, 3..5],
            ),
            // A uprobe on the `mov`, which the jump covers.
            (
                [0xe9, 0xcc, 0x89, 0x30, 0xff],
                Found::Disturbed,
                &[0..1, 3..5],
            ),
            (
                [0xe9, 0x48, 0x89, 0x30, 0xff],
                Found::Disturbed,
                &[0..1, 3..5],
            ),
            // Taken back while the tool is still there.
            ([0xcc, 0x48, 0x89, 0xe5, 0x41], Found::Disturbed, &[]),
            // Another tool's jump or call is left to that tool.
            (
                [0xe8, 0x10, 0x89, 0x30, 0xff],
                Found::Foreign,
                &[1..2, 3..5],
            ),
        ];
        for (now, found, ours) in cases {
            assert_eq!(change.judge(&now), found, "{now:02x?}");
            assert_eq!(change.ours(&now), ours, "{now:02x?}");
        }
        // Where a breakpoint of our own may be, any breakpoint counts as ours.
        change.breakpoint = true;
        let now = [0xcc, 0x10, 0x89, 0x30, 0xff];
        assert_eq!(change.judge(&now), Found::Between);
    }
}
