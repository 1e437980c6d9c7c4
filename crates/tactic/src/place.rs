//! Placement of stubs, and accounting of bytes shared by several probes.
//!
//! A jump with some fixed displacement bytes can lead to few addresses only. [`Placer`] knows
//! which addresses around the code are free and hands them out for stubs, small jumps to the
//! detours:
//!
//! ```text
//!   site    e9 xx xx │ 8b 47 …          two bytes of the displacement are ours
//!                      ──┬──            two are the next instruction's
//!   target  site + 5 + 0x478b____       any of 64 KiB: a stub goes there
//! ```
//!
//! It prefers pages that already hold a stub, as every page costs the program a mapping. Pages
//! whose stubs do not overlap can share one page of memory; that is left to the code that maps
//! them.
//!
//! It also tracks which bytes of the program the probes placed so far change or rely on, so
//! that each probe can be inserted and removed independently of the others.
//!
//! Punned jumps: Chamith et al., "Instruction Punning: Lightweight
//! Instrumentation for x86-64", PLDI 2017. Eviction and page sharing: Duck, Gao,
//! Roychoudhury, "Binary Rewriting without Control Flow Recovery", PLDI 2020.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::arch::jump::{FAR_STUB, NEAR_STUB, REACH};
use crate::arch::mask::Mask;

/// Page size in bytes.
const PAGE: u64 = 4096;
/// Maximum distance of a near stub from its site. A near stub is a `jmp rel32` to the detour, which
/// is near its object; one farther away might not reach the detour and holds its full address.
const NEAR: u64 = 1 << 30;
/// Programs linked for a fixed address are loaded below this limit.
const LOW: u64 = 1 << 32;
/// Maximum number of pages in use that are searched for another stub.
const LOOK: usize = 256;

/// The addresses around an object at which stubs may be mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Free ranges, whole pages, ascending.
    free: Vec<Range<u64>>,
    /// Number of pages that may be mapped, each on its own.
    mappings: usize,
}

impl Space {
    /// Creates a space from the `free` ranges, whole pages, and the number of mappings that the
    /// process can spare.
    ///
    /// Addresses are taken modulo 2^64: the space below an object at 0 (an unloaded file) ends at
    /// 2^64.
    #[must_use]
    pub fn new(mut free: Vec<Range<u64>>, mappings: usize) -> Self {
        free.retain(|range| range.start < range.end);
        free.sort_unstable_by_key(|range| range.start);
        Self { free, mappings }
    }

    /// Creates the space that an object can reach if it is loaded alone and at any address; for
    /// objects that are not loaded.
    #[must_use]
    pub fn around(near: Range<u64>) -> Self {
        let start = near.start / PAGE * PAGE;
        let end = near.end.next_multiple_of(PAGE);
        let above = end..start.saturating_add(REACH);
        let lowest = start.wrapping_sub(REACH);
        let mut free = vec![above];
        match lowest < start {
            true => free.push(lowest..start),
            // The first and the last page are never mapped.
            false => free.extend([PAGE..start, lowest..u64::MAX / PAGE * PAGE]),
        }
        Self::new(free, usize::MAX)
    }

    /// Reserves one contiguous piece of `size` bytes for other uses, within reach of all of `near`:
    /// detours are placed together, while stubs lie wherever the program's bytes lead. The piece is
    /// the nearest one; for a program at a low address, above which its heap grows, the highest.
    /// Does nothing if there is no such piece.
    pub fn keep_free(&mut self, near: Range<u64>, size: u64) {
        let size = size.next_multiple_of(PAGE);
        let lowest = near.end.saturating_sub(REACH).next_multiple_of(PAGE);
        let highest = near.start.saturating_add(REACH) / PAGE * PAGE;
        let pieces = self.free.iter().filter_map(|range| {
            let (start, end) = (range.start.max(lowest), range.end.min(highest));
            let last = end.checked_sub(size).filter(|last| *last >= start)?;
            Some(match start >= near.end && near.end > LOW {
                true => start,
                false => last,
            })
        });
        let distance = |start: &u64| match near.end <= LOW {
            true => u64::MAX - *start,
            false if *start >= near.end => start - near.end,
            false => near.start.saturating_sub(start + size),
        };
        let Some(start) = pieces.min_by_key(distance) else {
            return;
        };
        let piece = start..start + size;
        let parts = |range: &Range<u64>| {
            let below = range.start..range.end.min(piece.start);
            let above = range.start.max(piece.end)..range.end;
            [below, above]
        };
        self.free = self.free.iter().flat_map(parts).collect();
        self.free.retain(|range| range.start < range.end);
    }

    /// True if `[start, start + len)` is free.
    fn is_free(&self, start: u64, len: u64) -> bool {
        let at = self.free.partition_point(|range| range.end <= start);
        self.free
            .get(at)
            .is_some_and(|range| range.start <= start && range.end - start >= len)
    }
}

/// Address range for a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Its first address.
    pub(crate) address: u64,
    /// Its size: `NEAR_STUB` or `FAR_STUB`.
    pub(crate) size: u64,
}

impl Slot {
    fn new(address: u64, from: u64) -> Self {
        let near = address.wrapping_sub(from).min(from.wrapping_sub(address)) < NEAR;
        // The detours of a program at a low address are placed as far above it as possible.
        let below_low_program = from < LOW && address < from;
        let size = match near && !below_low_program {
            true => NEAR_STUB,
            false => FAR_STUB,
        };
        Self { address, size }
    }
}

/// Use of a byte of the program by a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// The byte changes, or is never executed again.
    Claimed,
    /// The byte is part of the instruction at a site that is not yet placed.
    Reserved,
    /// The byte does not change, and is part of a jump's displacement.
    Pinned,
}

/// Hands out stub addresses and program bytes.
#[derive(Clone, Debug)]
pub struct Placer {
    space: Space,
    /// For each page with stubs, the bytes in use, as offsets in the page.
    pages: BTreeMap<u64, Vec<Range<u16>>>,
    uses: HashMap<u64, Use>,
}

impl Placer {
    /// Creates a placer for an empty space.
    #[must_use]
    pub fn new(space: Space) -> Self {
        Self {
            space,
            pages: BTreeMap::new(),
            uses: HashMap::new(),
        }
    }

    /// Records bytes that a probe changes. Other probes can then neither change them nor rely on
    /// them.
    pub fn claim(&mut self, bytes: Range<u64>) {
        self.uses.extend(bytes.map(|at| (at, Use::Claimed)));
    }

    /// Records bytes of a site that is not yet placed: no other probe may evict them or rely on
    /// them.
    pub fn reserve(&mut self, bytes: Range<u64>) {
        for at in bytes {
            self.uses.entry(at).or_insert(Use::Reserved);
        }
    }

    /// Undoes [`reserve`](Self::reserve), for the site itself.
    pub fn release(&mut self, bytes: Range<u64>) {
        for at in bytes {
            if self.uses.get(&at) == Some(&Use::Reserved) {
                self.uses.remove(&at);
            }
        }
    }

    /// Undoes [`claim`](Self::claim), because the probe of these bytes is planned anew.
    pub fn unclaim(&mut self, bytes: Range<u64>) {
        for at in bytes {
            if self.uses.get(&at) == Some(&Use::Claimed) {
                self.uses.remove(&at);
            }
        }
    }

    /// Records bytes that must not change.
    pub(crate) fn pin(&mut self, bytes: impl Iterator<Item = u64>) {
        for at in bytes {
            self.uses.entry(at).or_insert(Use::Pinned);
        }
    }

    /// True if another probe changes one of these bytes or relies on it.
    pub(crate) fn is_used(&self, bytes: Range<u64>) -> bool {
        bytes.into_iter().any(|at| self.uses.contains_key(&at))
    }

    /// True if another probe changes a byte, or may change it later.
    pub(crate) fn is_taken(&self, at: u64) -> bool {
        matches!(self.uses.get(&at), Some(Use::Claimed | Use::Reserved))
    }

    /// Reserves a slot, which must come from [`candidates`](Self::candidates), with nothing
    /// reserved since.
    pub(crate) fn reserve_stub(&mut self, slot: Slot) {
        for (page, bytes) in pieces(slot) {
            let used = self.pages.entry(page).or_default();
            let at = used.partition_point(|range| range.end <= bytes.start);
            used.insert(at, bytes);
        }
    }

    /// Releases a slot.
    pub(crate) fn release_stub(&mut self, slot: Slot) {
        for (page, bytes) in pieces(slot) {
            if let Some(used) = self.pages.get_mut(&page) {
                used.retain(|range| *range != bytes);
                if used.is_empty() {
                    self.pages.remove(&page);
                }
            }
        }
    }

    /// Checks that a slot is free; if not, returns the address to try next.
    fn fits(&self, slot: Slot) -> Result<(), u64> {
        let mut new_pages = 0;
        for (page, bytes) in pieces(slot) {
            let Some(used) = self.pages.get(&page) else {
                new_pages += 1;
                continue;
            };
            let at = used.partition_point(|range| range.end <= bytes.start);
            if let Some(range) = used.get(at).filter(|range| range.start < bytes.end) {
                return Err(page * PAGE + u64::from(range.end));
            }
        }
        let allowed = self.pages.len() + new_pages <= self.space.mappings;
        match allowed && self.space.is_free(slot.address, slot.size) {
            true => Ok(()),
            false => Err(slot.address.saturating_add(1)),
        }
    }

    /// Returns candidate stub addresses for a jump that ends at `from` with a displacement of the
    /// form `mask`: at most `limit`, those in pages already in use first, the others spread out.
    pub(crate) fn candidates(&self, from: u64, mask: Mask, limit: usize) -> Vec<Slot> {
        let mut found = Vec::new();
        let window = mask.window();
        // As signed displacements from `from`, addresses ascend within each half.
        for half in [0..0x8000_0000u64, 0x8000_0000..0x1_0000_0000] {
            let (low, high) = (half.start.max(window.start), half.end.min(window.end));
            if low >= high {
                continue;
            }
            let address = |displacement: u64| from.wrapping_add(displacement as u32 as i32 as u64);
            let (first, last) = (address(low), address(high - 1));
            if first > last {
                continue; // around the end of the address space
            }
            for (page, _) in self.pages.range(first / PAGE..=last / PAGE).take(LOOK) {
                let start = (page * PAGE).max(first);
                let end = page * PAGE + PAGE - 1;
                self.in_stretch(from, mask, start..end.min(last) + 1, 1, 2, &mut found);
                if found.len() >= limit {
                    break;
                }
            }
            let at = self.space.free.partition_point(|range| range.end <= first);
            // Small windows are searched byte by byte, large ones in steps that change all bytes
            // but the highest.
            let step = match window.end - window.start {
                0..=0x100 => 1,
                0x101..=0x1_0000 => 0x137,
                0x1_0001..=0x100_0000 => 0x1_3137,
                _ => 0x35_3137,
            };
            // Addresses that programs often map come last.
            for popular in [false, true] {
                for range in &self.space.free[at..] {
                    if range.start > last || found.len() >= limit {
                        break;
                    }
                    let stretch = range.start.max(first)..range.end.min(last + 1);
                    for part in parts(stretch, popular) {
                        self.in_stretch(from, mask, part, step, limit, &mut found);
                    }
                }
            }
        }
        found.truncate(limit);
        found
    }

    /// Adds at most `limit` addresses in a range.
    fn in_stretch(
        &self,
        from: u64,
        mask: Mask,
        stretch: Range<u64>,
        step: u64,
        limit: usize,
        found: &mut Vec<Slot>,
    ) {
        let limit = found.len() + limit;
        let mut at = stretch.start;
        for _ in 0..4096 {
            if at >= stretch.end || found.len() >= limit {
                return;
            }
            let wanted = at.wrapping_sub(from) as u32;
            let Some(displacement) = mask.next(wanted) else {
                return;
            };
            let address = at.wrapping_add(u64::from(displacement - wanted));
            if address >= stretch.end {
                return;
            }
            let slot = Slot::new(address, from);
            at = match self.fits(slot) {
                Ok(()) => {
                    if !found.contains(&slot) {
                        found.push(slot);
                    }
                    address.saturating_add(step)
                }
                Err(next) => next.max(address.saturating_add(step)),
            };
        }
    }
}

/// Splits a range, and returns the parts that programs often map at fixed addresses (if
/// `popular`), or the other parts. Popular parts: below 4 GiB, the 16 MiB from each multiple of
/// 256 MiB, and the GiB used by `MAP_32BIT`.
fn parts(stretch: Range<u64>, popular: bool) -> Vec<Range<u64>> {
    const ROUND: u64 = 1 << 28;
    const FROM_ROUND: u64 = 1 << 24;
    const MAP_32BIT: Range<u64> = 0x4000_0000..0x8000_0000;
    let end_of_part = |at: u64| match at {
        at if at >= LOW => (false, u64::MAX),
        at if MAP_32BIT.contains(&at) => (true, MAP_32BIT.end),
        at if at % ROUND < FROM_ROUND => (true, at / ROUND * ROUND + FROM_ROUND),
        at => (false, (at / ROUND + 1) * ROUND),
    };
    let mut parts = Vec::new();
    let mut at = stretch.start;
    while at < stretch.end {
        let (is_popular, end) = end_of_part(at);
        if is_popular == popular {
            parts.push(at..end.min(stretch.end));
        }
        at = end;
    }
    parts
}

/// Returns the parts of a slot, one for each page that it touches.
fn pieces(slot: Slot) -> impl Iterator<Item = (u64, Range<u16>)> {
    let (start, len) = (slot.address, slot.size);
    let split = (PAGE - start % PAGE).min(len);
    [(start, split), (start.wrapping_add(split), len - split)]
        .into_iter()
        .filter(|(_, len)| *len > 0)
        .map(|(at, len)| {
            let offset = (at % PAGE) as u16;
            (at / PAGE, offset..offset + len as u16)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mask(bytes: [Option<u8>; 4]) -> Mask {
        Mask::new(bytes)
    }

    #[test]
    fn a_fixed_displacement_has_one_address_once() {
        let mut placer = Placer::new(Space::around(0x7f00_0000_0000..0x7f00_0010_0000));
        let fixed = mask([Some(0x5d), Some(0x41), Some(0x5c), Some(0x41)]);
        let from = 0x7f00_0000_1005;
        let found = placer.candidates(from, fixed, 10);
        let address = from + 0x415c_415d;
        let size = FAR_STUB; // more than 1 GiB away
        assert_eq!(found, [Slot { address, size }]);
        placer.reserve_stub(found[0]);
        assert_eq!(placer.pages.len(), 1);
        assert!(placer.candidates(from, fixed, 10).is_empty());
        assert!(placer.candidates(from + 4, fixed, 10).is_empty());
        assert_eq!(placer.candidates(from + FAR_STUB, fixed, 10).len(), 1);
        placer.release_stub(found[0]);
        assert_eq!(placer.candidates(from, fixed, 10), found);
    }

    #[test]
    fn room_for_detours_is_the_nearest_in_reach() {
        const MIB: u64 = 1 << 20;
        let base = 0x7f00_0000_0000;
        let near = base..base + MIB;
        let mut space = Space::around(near.clone());
        space.keep_free(near.clone(), 3 * MIB);
        assert!(space.is_free(near.end, MIB));
        assert!(!space.is_free(base - MIB, MIB) && space.is_free(base - 4 * MIB, MIB));
        assert!(space.is_free(base - REACH, REACH - 3 * MIB));
        // Pieces that are too small or out of reach do not count.
        let before = vec![base - 2 * REACH..base - REACH, base + MIB..base + 2 * MIB];
        let mut space = Space::new(before.clone(), 1);
        space.keep_free(near.clone(), 2 * MIB);
        assert_eq!(space.free, before);
        space.keep_free(near, MIB / 2);
        assert_eq!(space.free[1], base + 3 * MIB / 2..base + 2 * MIB);
        // A program at a low address.
        let mut space = Space::new(vec![MIB..2 * MIB, 64 * MIB..1024 * MIB], 1);
        space.keep_free(4 * MIB..5 * MIB, MIB);
        assert_eq!(space.free[1], 64 * MIB..1023 * MIB);
    }

    #[test]
    fn pages_in_use_come_first() {
        let mut placer = Placer::new(Space::around(0x7f00_0000_0000..0x7f00_0010_0000));
        let wide = mask([None, None, None, Some(0x12)]);
        let first = placer.candidates(0x7f00_0000_1005, wide, 1)[0];
        placer.reserve_stub(first);
        for site in 1..200 {
            let found = placer.candidates(0x7f00_0000_1005 + site * 16, wide, 1)[0];
            placer.reserve_stub(found);
        }
        assert_eq!(placer.pages.len(), 1);
    }

    #[test]
    fn where_programs_map_comes_last() {
        let free = std::iter::once(0x1000_0000..0x9000_0000).collect();
        let placer = Placer::new(Space::new(free, 100));
        // 0x20..... to 0x2f.....: 256 MiB, of which the first 16 begin at a round address.
        let from = 0x40_1005;
        let all = placer.candidates(from, mask([None, None, None, None]), 40);
        let popular =
            |at: u64| at % (1 << 28) < 1 << 24 || (0x4000_0000..0x8000_0000).contains(&at);
        assert!(!all.is_empty() && all.iter().all(|slot| !popular(slot.address)));
        // If the fixed bytes leave no choice, popular addresses are used as well.
        for only in [0x20, 0x48] {
            let found = placer.candidates(from, mask([Some(1), Some(2), Some(3), Some(only)]), 9);
            assert_eq!(found.len(), 1);
        }
    }

    proptest! {
        #[test]
        fn parts_are_the_whole(start in 0..2 * LOW, length in 1..2 * LOW) {
            let stretch = start..start + length;
            let mut both = parts(stretch.clone(), false);
            both.extend(parts(stretch.clone(), true));
            both.sort_unstable_by_key(|part| part.start);
            prop_assert_eq!(both[0].start, stretch.start);
            prop_assert_eq!(both[both.len() - 1].end, stretch.end);
            prop_assert!(both.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn nothing_is_handed_out_beyond_the_number_of_mappings() {
        let free = std::iter::once(0x7f00_0010_0000..0x7f00_7000_0000).collect();
        let mut placer = Placer::new(Space::new(free, 1));
        let at = |byte| mask([None, None, Some(byte), Some(0x12)]);
        let first = placer.candidates(0x7f00_0000_1005, at(1), 1)[0];
        placer.reserve_stub(first);
        assert!(placer.candidates(0x7f00_0000_1005, at(2), 1).is_empty());
        assert!(!placer.candidates(0x7f00_0000_1005, at(1), 1).is_empty());
    }

    #[test]
    fn an_object_at_zero_reaches_below_it() {
        let placer = Placer::new(Space::around(0..0x10_0000));
        let below = mask([None, None, None, Some(0xe9)]);
        let found = placer.candidates(0x1005, below, 1)[0];
        assert_eq!(found.address.wrapping_sub(0x1005) as u32 >> 24, 0xe9);
        assert!(found.address > u64::MAX - REACH);
    }

    #[test]
    fn a_program_at_a_low_address_reaches_only_what_is_above() {
        let free = vec![0x1_0000..0x40_0000, 0x2000_0000..0x8000_0000];
        let placer = Placer::new(Space::new(free, 100));
        let high = |byte| mask([None, None, None, Some(byte)]);
        assert!(placer.candidates(0x40_1005, high(0xe9), 1).is_empty());
        assert!(!placer.candidates(0x40_1005, high(0x48), 1).is_empty());
        assert!(placer.candidates(0x40_1005, high(0x0f), 1).is_empty());
    }

    proptest! {
        #[test]
        fn candidates_match_their_mask_and_are_free(
            bytes in proptest::array::uniform4(proptest::option::of(any::<u8>())),
            from in 0x7f00_0000_0000u64..0x7f00_0010_0000,
            taken in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
        ) {
            let mut placer = Placer::new(Space::around(0x7f00_0000_0000..0x7f00_0010_0000));
            let mask = Mask::new(bytes);
            let mut used: Vec<Range<u64>> = Vec::new();
            for index in taken {
                let found = placer.candidates(from, mask, 20);
                for Slot { address, size } in &found {
                    let displacement = address.wrapping_sub(from) as i64;
                    prop_assert!(i32::try_from(displacement).is_ok());
                    let is = (displacement as u32).to_le_bytes();
                    prop_assert!(is.iter().zip(&bytes).all(|(i, b)| b.is_none_or(|b| b == *i)));
                    let end = address + size;
                    prop_assert!(used.iter().all(|r| r.end <= *address || end <= r.start));
                    prop_assert!(*address >= 0x7f00_0010_0000 || end <= 0x7f00_0000_0000);
                }
                if let Some(slot) = (!found.is_empty()).then(|| *index.get(&found)) {
                    placer.reserve_stub(slot);
                    used.push(slot.address..slot.address + slot.size);
                }
            }
        }
    }
}
