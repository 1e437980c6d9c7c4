//! Free memory for generated code, within reach of a 32-bit displacement.

use std::ops::Range;

use super::{Mapping, PAGE_SIZE};

/// End of the user address space with four-level page tables. (With five levels, the kernel
/// uses higher addresses only on request.)
const ADDRESS_END: u64 = 0x7fff_ffff_f000;
/// End of the low addresses: a program below it is linked at a fixed address (0x400000), and
/// its `brk` heap lies between the program and the end of its reach.
const LOW_END: u64 = 1 << 32;
/// Lowest address to map at, even where the system allows lower ones: accesses at an offset
/// from a null pointer must still fault.
pub(crate) const NULL_END: u64 = 64 * 1024;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Space reserved for the heap to grow upwards and for the main stack to grow downwards, from
/// the preferred sizes to the minimum. A smaller reservation is tried only after the larger
/// ones.
const ROOMS: [(u64, u64); 3] = [(GIB, GIB), (256 * MIB, 256 * MIB), (16 * MIB, 16 * MIB)];

/// Facts about a process, besides its map, that decide where memory may be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The lowest usable address: at least `vm.mmap_min_addr`.
    pub min_address: u64,
    /// Start of the `brk` heap, if known: an empty heap is not in the map.
    pub start_brk: Option<u64>,
    /// Limit of the main stack in bytes, `None` if unlimited or unknown.
    pub stack_limit: Option<u64>,
}

/// A request for free memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapQuery {
    /// Number of bytes needed; rounded up to whole pages.
    pub size: u64,
    /// Addresses that must all be within reach of every byte of the gap, and vice versa. If code
    /// that refers to data is to be copied, this is the whole object.
    pub near: Range<u64>,
    /// Maximum distance in bytes, see [`GapQuery::REACH`].
    pub reach: u64,
}

impl GapQuery {
    /// Reach of a signed 32-bit displacement, minus a margin for the length of the instruction that
    /// the displacement is relative to.
    pub const REACH: u64 = (1 << 31) - 4096;

    /// Makes a query with the reach of `jmp rel32`.
    #[must_use]
    pub fn new(size: u64, near: Range<u64>) -> GapQuery {
        GapQuery {
            size,
            near,
            reach: GapQuery::REACH,
        }
    }
}

/// Returns addresses where `query.size` bytes are free, the best first.
///
/// The program may map memory at any time, so the map may be out of date when an address is
/// used: use `MAP_FIXED_NOREPLACE`, and the next address if that fails.
///
/// * No address is below `min_address`, in the space reserved for the heap to grow
///   (1 GiB; at least 16 MiB if there is nothing else), or in the space reserved below
///   the main stack (1 GiB or its limit; at least 16 MiB).
/// * Addresses close to `query.near` come first. For a program linked at a low fixed
///   address, the highest addresses come first, away from its heap.
/// * A free range yields up to three addresses: its nearer end, its other end and its middle.
///
/// The result is empty if there is no such gap.
#[must_use]
pub fn find_gaps(maps: &[Mapping], layout: &Layout, query: &GapQuery) -> Vec<u64> {
    let size = match query.size.checked_next_multiple_of(PAGE_SIZE) {
        Some(0) | None => return Vec::new(),
        Some(size) => size,
    };
    let window = window(layout, query);
    let mut candidates = Vec::new();
    for (heap_room, stack_room) in ROOMS {
        let busy = busy(maps, layout, heap_room, stack_room);
        let mut found: Vec<u64> = free(&busy, &window)
            .filter(|gap| gap.end - gap.start >= size)
            .flat_map(|gap| places(&gap, size))
            .filter(|place| !candidates.contains(place))
            .collect();
        if query.near.end <= LOW_END {
            found.sort_unstable_by(|a, b| b.cmp(a));
        } else {
            found.sort_unstable_by_key(|&place| (distance(place, size, &query.near), place));
        }
        found.dedup();
        candidates.extend(found);
    }
    candidates
}

/// Returns the free ranges in which small pieces may be mapped: whole pages, in ascending
/// order, with 256 MiB left for the heap and the main stack to grow.
#[must_use]
pub fn free_stretches(maps: &[Mapping], layout: &Layout) -> Vec<Range<u64>> {
    let (heap_room, stack_room) = ROOMS[1];
    let busy = busy(maps, layout, heap_room, stack_room);
    let lowest = layout.min_address.max(PAGE_SIZE);
    let all = lowest.next_multiple_of(PAGE_SIZE)..ADDRESS_END;
    free(&busy, &all).collect()
}

/// Returns the range of addresses that are within reach of all of `near`.
fn window(layout: &Layout, query: &GapQuery) -> Range<u64> {
    let start = query.near.end.saturating_sub(query.reach);
    let end = query.near.start.saturating_add(query.reach);
    let start = start.max(layout.min_address).max(PAGE_SIZE);
    start.next_multiple_of(PAGE_SIZE)..end.min(ADDRESS_END) / PAGE_SIZE * PAGE_SIZE
}

/// Returns the occupied and the reserved ranges, sorted by start. The heap and the stack can
/// grow only up to the next mapping, so nothing is reserved beyond it.
fn busy(maps: &[Mapping], layout: &Layout, heap_room: u64, stack_room: u64) -> Vec<Range<u64>> {
    let mut busy: Vec<Range<u64>> = maps.iter().map(|m| m.start..m.end).collect();
    let next = |at: u64| {
        maps.iter()
            .map(|m| m.start)
            .filter(|&start| start >= at)
            .min()
    };
    let mut reserve_above = |at: u64| {
        let end = at.saturating_add(heap_room);
        busy.push(at..end.min(next(at).unwrap_or(end)));
    };
    let heaps = || maps.iter().filter(|m| m.is_named("[heap]"));
    heaps().for_each(|heap| reserve_above(heap.end));
    if heaps().next().is_none() {
        layout.start_brk.into_iter().for_each(reserve_above);
    }
    for stack in maps.iter().filter(|m| m.is_named("[stack]")) {
        let below = maps
            .iter()
            .map(|m| m.end)
            .filter(|&end| end <= stack.start)
            .max();
        // A stack limit larger than the preferred space counts in the first step only.
        let limit = match layout.stack_limit {
            Some(limit) if stack_room == GIB => limit.min(64 * GIB),
            _ => 0,
        };
        let limited = stack.end.saturating_sub(limit);
        let start = stack.start.saturating_sub(stack_room).min(limited);
        busy.push(start.max(below.unwrap_or(0))..stack.end);
    }
    busy.sort_unstable_by_key(|range| range.start);
    busy
}

/// Returns the parts of `window` that do not overlap any range of `busy` (sorted).
fn free(busy: &[Range<u64>], window: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut cursor = window.start;
    let end = window.end;
    busy.iter()
        .map(|range| (range.start, range.end))
        .chain([(end, end)])
        .map(move |(busy_start, busy_end)| {
            let gap = cursor..(busy_start / PAGE_SIZE * PAGE_SIZE).min(end);
            cursor = cursor.max(
                busy_end
                    .checked_next_multiple_of(PAGE_SIZE)
                    .unwrap_or(u64::MAX),
            );
            gap
        })
        .filter(|gap| gap.start < gap.end)
}

/// Returns the first and the last place in a gap that is large enough, and the middle if it
/// differs.
fn places(gap: &Range<u64>, size: u64) -> Vec<u64> {
    let last = gap.end - size;
    let middle = gap.start + (last - gap.start) / 2 / PAGE_SIZE * PAGE_SIZE;
    let mut places = vec![gap.start, middle, last];
    places.dedup();
    places
}

fn distance(place: u64, size: u64, near: &Range<u64>) -> u64 {
    if place >= near.end {
        place - near.end
    } else {
        near.start.saturating_sub(place.saturating_add(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout {
        min_address: 0x10000,
        start_brk: None,
        stack_limit: Some(8 * MIB),
    };

    fn mapping(start: u64, end: u64, name: &str) -> Mapping {
        Mapping {
            start,
            end,
            path: name.into(),
            ..Mapping::default()
        }
    }

    /// A position-independent program with the usual address space layout randomisation.
    fn pie() -> Vec<Mapping> {
        vec![
            mapping(0x5555_5555_4000, 0x5555_5560_0000, "prog"),
            mapping(0x5555_5600_0000, 0x5555_5700_0000, "[heap]"),
            mapping(0x7fff_e000_0000, 0x7fff_e100_0000, "libc.so.6"),
            mapping(0x7fff_e100_2000, 0x7fff_e200_0000, "ld.so"),
            mapping(0x7fff_ffdd_e000, 0x7fff_ffff_f000, "[stack]"),
        ]
    }

    #[test]
    fn takes_the_room_below_a_pie_and_not_above_its_heap() {
        let near = 0x5555_5555_4000..0x5555_5560_0000;
        let found = find_gaps(&pie(), &LAYOUT, &GapQuery::new(0x3000, near));
        // Directly before and directly after the program are equally near.
        assert_eq!(found[0], 0x5555_5555_1000);
        assert_eq!(found[1], 0x5555_5560_0000);
        let heap_end = 0x5555_5700_0000;
        assert!(
            found
                .iter()
                .all(|&at| !(heap_end..heap_end + 16 * MIB).contains(&at))
        );
        assert!(found.contains(&(heap_end + GIB)));
        let position = |at| found.iter().position(|&f| f == at);
        assert!(position(heap_end + GIB) < position(heap_end + 256 * MIB));
    }

    #[test]
    fn an_empty_heap_counts_as_well() {
        let mut maps = pie();
        maps.remove(1);
        let brk = 0x5555_5560_0000;
        let layout = Layout {
            start_brk: Some(brk),
            ..LAYOUT
        };
        let near = 0x5555_5555_4000..0x5555_5560_0000;
        let found = find_gaps(&maps, &layout, &GapQuery::new(0x1000, near));
        assert!(!found.is_empty());
        assert!(found.iter().all(|&at| !(brk..brk + 16 * MIB).contains(&at)));
    }

    #[test]
    fn finds_the_hole_between_libraries_and_leaves_the_stack_alone() {
        let near = 0x7fff_e000_0000..0x7fff_e200_0000;
        let found = find_gaps(&pie(), &LAYOUT, &GapQuery::new(0x2000, near.clone()));
        assert!(found[..2].contains(&0x7fff_e100_0000));
        let found = find_gaps(&pie(), &LAYOUT, &GapQuery::new(0x3000, near));
        assert_eq!(found[0], 0x7fff_dfff_d000);
        assert!(found.iter().all(|&at| at < 0x7fff_ffdd_e000 - 16 * MIB));
    }

    #[test]
    fn prefers_high_addresses_for_a_program_at_a_fixed_low_one() {
        let maps = [
            mapping(0x40_0000, 0x50_0000, "prog"),
            mapping(0x60_0000, 0x100_0000, "[heap]"),
        ];
        let query = GapQuery::new(0x10000, 0x40_0000..0x50_0000);
        let found = find_gaps(&maps, &LAYOUT, &query);
        assert_eq!(
            found[0],
            0x40_0000 + GapQuery::REACH / PAGE_SIZE * PAGE_SIZE - 0x10000
        );
        assert!(found.windows(2).take(2).all(|w| w[0] > w[1]));
        assert!(found.iter().all(|&at| at >= 0x10000));
        assert!(
            found
                .iter()
                .all(|&at| !(0x60_0000..0x100_0000 + 16 * MIB).contains(&at))
        );
    }

    #[test]
    fn a_large_heap_leaves_the_last_resorts() {
        // The heap ends 300 MiB before the end of the reach.
        let end = 0x8040_0000 - 300 * MIB;
        let maps = [
            mapping(0x40_0000, 0x50_0000, "prog"),
            mapping(0x60_0000, end, "[heap]"),
        ];
        let query = GapQuery::new(MIB, 0x40_0000..0x50_0000);
        let found = find_gaps(&maps, &LAYOUT, &query);
        // The space below the heap comes first, then the space 256 MiB above it.
        assert!(found[0] < 0x60_0000);
        assert!(found.contains(&(end + 256 * MIB)));
        assert!(found.contains(&(end + 16 * MIB)));
    }

    #[test]
    fn nothing_is_found_where_nothing_fits() {
        let maps = [mapping(0x10000, 0x1_0000_0000, "everything")];
        let query = GapQuery::new(0x1000, 0x40_0000..0x50_0000);
        assert!(find_gaps(&maps, &LAYOUT, &query).is_empty());
        // For an object as large as the reach, no address is within reach of both ends.
        let query = GapQuery::new(0x1000, 0x1_0000_0000..0x1_0000_0000 + (1 << 32));
        assert!(find_gaps(&[], &LAYOUT, &query).is_empty());
        assert!(find_gaps(&[], &LAYOUT, &GapQuery::new(0, 0x1000..0x2000)).is_empty());
        assert!(find_gaps(&[], &LAYOUT, &GapQuery::new(u64::MAX, 0x1000..0x2000)).is_empty());
    }

    proptest! {
        #[test]
        fn what_is_found_is_free_aligned_and_in_reach(
            cuts in proptest::collection::btree_set(1u64..0x10_0000, 2..40),
            which in any::<prop::sample::Index>(),
            size in 1u64..0x40_0000,
            heap in any::<prop::sample::Index>(),
        ) {
            let cuts: Vec<u64> = cuts.into_iter().map(|c| c * PAGE_SIZE + 0x7fff_0000_0000).collect();
            let mut maps: Vec<Mapping> =
                cuts.chunks_exact(2).map(|c| mapping(c[0], c[1], "lib")).collect();
            let heap = heap.index(maps.len());
            maps[heap].path = "[heap]".into();
            let near = &maps[which.index(maps.len())];
            let query = GapQuery::new(size, near.start..near.end);
            let size = size.next_multiple_of(PAGE_SIZE);
            for at in find_gaps(&maps, &LAYOUT, &query) {
                prop_assert_eq!(at % PAGE_SIZE, 0);
                prop_assert!(maps.iter().all(|m| m.end <= at || at + size <= m.start));
                prop_assert!(at + size <= near.start + GapQuery::REACH);
                prop_assert!(at + GapQuery::REACH >= near.end);
                let room = maps[heap].end..maps[heap].end + 16 * MIB;
                let blocked = maps.get(heap + 1).is_some_and(|next| next.start < at);
                prop_assert!(blocked || !room.contains(&at));
            }
        }
    }
}
