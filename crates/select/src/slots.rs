//! Slots of open calls: their numbers and areas.

use crate::error::{Result, bail};
use capriole_ring::layout::frame;
use std::collections::HashSet;

/// The slots for the calls of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Area {
    /// Number of the area.
    pub number: u32,
    /// Number of the addition that uses the area, see [`number()`].
    pub addition: u32,
}

/// Returns the number that marks the slots of a function's open calls: a hash of its entry address,
/// with the area of slots in the bits above.
///
/// An area is used again when its event has been removed. Calls that were open then stay in their
/// slots, and a thread that was in a detour of that event may still begin one. If the next event is
/// at the same function, its exits must not take them for calls of their own: the values kept for
/// them are others, and its filter has not seen them. So the number of the addition is mixed in.
/// Numbers of one function are equal only for additions that are a multiple of 2^16 apart.
pub fn number(function: u64, area: Area) -> u32 {
    // Fibonacci hashing; the upper bits are the best.
    let number = (function.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32;
    let own = area.addition & ((1 << frame::CALL_BITS) - 1);
    area.number << frame::CALL_BITS | (number ^ own)
}

/// Assigns each event of an addition an area of call slots, so that events for the same function
/// have different areas; `together`, because calls of different functions may be open at one place
/// of a stack, all events have, as far as there are enough. `functions` lists the functions of each
/// event; other events have the areas whose bits are set in `taken`.
///
/// # Errors
/// More areas would be needed than there are.
pub fn areas(
    functions: &[HashSet<u64>],
    together: bool,
    taken: u32,
    addition: u32,
) -> Result<Vec<Area>> {
    let mut areas: Vec<Area> = Vec::new();
    for own in functions {
        let others = || functions.iter().zip(&areas);
        let is_unused = |area: &u32| {
            let mut all = others().map(|(_, other)| other.number);
            taken >> area & 1 == 0 && all.all(|other| other != *area)
        };
        let is_free = |area: &u32| {
            let mut same = others().filter(|(_, other)| other.number == *area);
            taken >> area & 1 == 0 && same.all(|(of, _)| of.is_disjoint(own))
        };
        let mut all = 0..frame::MOST_AREAS;
        let unused = all.clone().find(|area| together && is_unused(area));
        let Some(number) = unused.or_else(|| all.find(is_free)) else {
            bail!(
                Limit,
                "more than {} events follow calls of the same function to their end; ask for \
                 fewer at once",
                frame::MOST_AREAS
            );
        };
        areas.push(Area { number, addition });
    }
    Ok(areas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_used_again_with_other_numbers() {
        let f = || [HashSet::from([0x40_1000])];
        let first = areas(&f(), false, 0, 0).expect("free")[0];
        let second = areas(&f(), false, 0b0001, 1).expect("free")[0];
        let third = areas(&f(), false, 0b0010, 2).expect("free")[0];
        assert_eq!([first, second, third].map(|area| area.number), [0, 1, 0]);
        let numbers = [first, second, third].map(|area| number(0x40_1000, area));
        assert_eq!(numbers.map(|n| n >> frame::CALL_BITS), [0, 1, 0]);
        assert_ne!(numbers[0], numbers[2]);
        assert!(areas(&f(), false, (1 << frame::MOST_AREAS) - 1, 3).is_err());
    }

    #[test]
    fn events_whose_calls_may_be_open_together_have_areas_of_their_own() {
        let of = |count: u64| (0..count).map(|f| HashSet::from([f])).collect::<Vec<_>>();
        let numbers = |count, together| -> Vec<u32> {
            let areas = areas(&of(count), together, 0b10, 0).expect("free");
            areas.iter().map(|area| area.number).collect()
        };
        assert_eq!(numbers(3, false), [0, 0, 0]);
        assert_eq!(numbers(3, true), [0, 2, 3]);
        // If there are not enough, only events at the same function need them.
        assert_eq!(numbers(9, true), [0, 2, 3, 4, 5, 6, 7, 0, 0]);
    }
}
