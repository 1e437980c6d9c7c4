//! The table of rules by which the resident finds callers, and what it makes of it.
//!
//! ```text
//! head, modules by address, then for each module its rows and its blocks
//! row     u32 place of the rule's start, in the module, above the u32 rule
//! block   u32 number of the row that holds at the start of 256 places
//! ```
//!
//! A row takes 8 bytes; blocks take a 64th of the code's size. For libc.so.6 that is 250 KiB.

use capriole_object::frame_rules::{
    Cfa, FrameRule, MOST_DISTANCE, MOST_SAVED, RuleStart, SavedRbp,
};
use capriole_ring::numbers::{row, unwinding};
use std::ops::Range;

pub use capriole_ring::numbers::chain;

/// Code that the program has mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Run-time addresses of the mapping: at most 4 GiB.
    pub addresses: Range<u64>,
    /// Link address of its first byte.
    pub link: u64,
    /// The rules of the object, by link addresses.
    pub rules: Vec<RuleStart>,
}

const _: () = {
    assert!(MOST_DISTANCE / 8 < 1 << row::DISTANCE_BITS);
    assert!(MOST_SAVED / 8 < row::RBP_THERE);
};

/// Encodes a rule.
fn encoded(rule: FrameRule) -> u32 {
    let (kind, distance, rbp) = match rule {
        FrameRule::Unknown => (row::UNKNOWN, 0, SavedRbp::Unchanged),
        FrameRule::Outermost => (row::OUTERMOST, 0, SavedRbp::Unchanged),
        FrameRule::Signal => (row::SIGNAL, 0, SavedRbp::Unchanged),
        FrameRule::Frame { cfa, rbp } => match cfa {
            Cfa::Rsp(distance) => (row::RSP, distance, rbp),
            Cfa::Rbp(distance) => (row::RBP, distance, rbp),
            Cfa::Saved(distance) => (row::SAVED, distance, rbp),
            Cfa::Plt => (row::PLT, 0, rbp),
        },
    };
    let rbp = match rbp {
        SavedRbp::Unchanged => row::RBP_UNCHANGED,
        SavedRbp::BelowCfa(below) => below / 8,
        SavedRbp::AtRbp => row::RBP_THERE,
        SavedRbp::Unknown => row::RBP_UNKNOWN,
    };
    kind | ((distance / 8) << row::KIND_BITS) | (rbp << row::RBP_SHIFT)
}

impl Module {
    /// Returns the rows: the first at place 0, each later than the one before.
    fn rows(&self) -> Vec<u64> {
        let size = self.addresses.end - self.addresses.start;
        let first = self.rules.partition_point(|rule| rule.address <= self.link);
        let before = first.checked_sub(1).map(|at| self.rules[at].rule);
        let before = encoded(before.unwrap_or(FrameRule::Unknown));
        let inside = self.rules[first..].iter();
        let inside = inside
            .map(|rule| (rule.address - self.link, encoded(rule.rule)))
            .take_while(|(place, _)| *place < size);
        let rows = std::iter::once((0, before)).chain(inside);
        rows.map(|(place, rule)| place << 32 | u64::from(rule))
            .collect()
    }
}

/// Encodes the table for modules, which do not overlap; in the target it has to be at a multiple of
/// 8. A module that is too large is left out.
#[must_use]
pub fn table(modules: &[Module]) -> Vec<u8> {
    let is_sound = |module: &&Module| {
        let addresses = &module.addresses;
        addresses.start < addresses.end && addresses.end - addresses.start <= 1 << 32
    };
    let mut modules: Vec<&Module> = modules.iter().filter(is_sound).collect();
    modules.sort_by_key(|module| module.addresses.start);
    let mut head = (modules.len() as u64).to_le_bytes().to_vec();
    let start = unwinding::HEAD + unwinding::MODULE * modules.len();
    let mut body: Vec<u8> = Vec::new();
    for module in &modules {
        let rows = module.rows();
        let at = |body: &Vec<u8>| (((start + body.len()) / 8) as u32).to_le_bytes();
        head.extend(module.addresses.start.to_le_bytes());
        head.extend(module.addresses.end.to_le_bytes());
        head.extend(at(&body));
        body.extend(rows.iter().flat_map(|row| row.to_le_bytes()));
        head.extend(at(&body));
        let size = module.addresses.end - module.addresses.start;
        // One more than there are: the rows of the last block end there.
        let mut row = 0;
        for block in 0..size.div_ceil(1 << unwinding::BLOCK_SHIFT) + 1 {
            let place = block << unwinding::BLOCK_SHIFT;
            while rows.get(row + 1).is_some_and(|next| next >> 32 <= place) {
                row += 1;
            }
            body.extend((row as u32).to_le_bytes());
        }
        body.resize(body.len().next_multiple_of(8), 0);
    }
    head.extend(body);
    head
}

#[cfg(test)]
mod tests;
