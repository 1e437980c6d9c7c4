//! Slots of open calls: their numbers and areas.

use crate::error::{Result, bail};
use capriole_ring::layout::frame;
use std::collections::HashSet;

/// Returns the number that marks the slots of a function's open calls: a hash of its entry address,
/// with the area of slots in the bits above.
pub fn number(function: u64, area: u32) -> u32 {
    // Fibonacci hashing; the upper bits are the best.
    let number = (function.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32;
    area << frame::CALL_BITS | number
}

/// Assigns each event an area of call slots, so that events for the same function have different
/// areas. `functions` lists the functions of each event; areas
/// below `first` are in use.
///
/// # Errors
/// More areas would be needed than there are.
pub fn areas(functions: &[HashSet<u64>], first: u32) -> Result<Vec<u32>> {
    let mut areas: Vec<u32> = Vec::new();
    for own in functions {
        let others = || functions.iter().zip(&areas);
        let is_free = |area: &u32| {
            let mut taken = others().filter(|(_, other)| *other == area);
            taken.all(|(of, _)| of.is_disjoint(own))
        };
        let Some(area) = (first..frame::MOST_AREAS).find(is_free) else {
            bail!(
                Limit,
                "more than {} events follow calls of the same function to their end; ask for \
                 fewer at once",
                frame::MOST_AREAS
            );
        };
        areas.push(area);
    }
    Ok(areas)
}
