//! The table of rules by which the resident finds callers, and what it makes of it.
//!
//! ```text
//! for each module its rows and its blocks
//! u64 base, u64 count, modules by address
//! row     u32 place of the rule's start, in the module, above the u32 rule
//! block   u32 number of the row that holds at the start of 256 places
//! ```
//!
//! A row takes 8 bytes; blocks take a 64th of the code's size. For libc.so.6 that is 250 KiB. A module with one
//! rule has neither, however large it is.

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
        // The frame that a frame pointer describes.
        FrameRule::Called => (row::CALLED, 16, SavedRbp::AtRbp),
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
    /// Returns the rule of code to which signal handlers return.
    #[must_use]
    pub fn signal_return(at: u64) -> Module {
        Module {
            addresses: at - 1..at + 8,
            link: 0,
            rules: vec![RuleStart {
                address: 0,
                rule: FrameRule::Signal,
            }],
        }
    }

    /// True if it is not empty, and its places are numbers of 32 bits.
    fn is_sound(&self) -> bool {
        let addresses = &self.addresses;
        addresses.start < addresses.end && addresses.end - addresses.start <= 1 << 32
    }

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

/// A module whose rules are in the target.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placed {
    addresses: Range<u64>,
    rows: u32,
    blocks: u32,
}

/// The table in a target. Modules can be added.
#[derive(Debug)]
pub struct Table {
    base: u64,
    /// By address; none overlap.
    modules: Vec<Placed>,
}

impl Table {
    /// Begins a table whose parts are from this address on, a multiple of 8.
    #[must_use]
    pub fn from(base: u64) -> Table {
        Table {
            base,
            modules: Vec::new(),
        }
    }

    /// Returns how many bytes these modules add, at most, to a table without others.
    #[must_use]
    pub fn size(modules: &[Module]) -> usize {
        let of = |module: &Module| {
            if module.rules.len() <= 1 && module.rows().len() == 1 {
                return unwinding::MODULE;
            }
            let size = (module.addresses.end - module.addresses.start) as usize;
            let blocks = (size >> unwinding::BLOCK_SHIFT) + 3;
            8 * (module.rules.len() + 1) + (4 * blocks).next_multiple_of(8) + unwinding::MODULE
        };
        let sound = modules.iter().filter(|module| module.is_sound());
        sound.map(of).sum::<usize>() + unwinding::HEAD
    }

    /// Returns the address at which the table's parts begin.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the size of a table without further modules, bytes.
    #[must_use]
    pub fn size_of_head(&self) -> usize {
        unwinding::HEAD + unwinding::MODULE * self.modules.len()
    }

    /// Adds modules, which do not overlap each other. Returns what is to be written at `at`, a multiple of 8
    /// behind all that was written before, and the address in it at which the table then is. Modules that
    /// were there are left out if they overlap a new one: they were unmapped. One that is too large is left
    /// out as well.
    #[must_use]
    pub fn add(&mut self, modules: &[Module], at: u64) -> (Vec<u8>, u64) {
        let mut body: Vec<u8> = Vec::new();
        for module in modules.iter().filter(|module| module.is_sound()) {
            let new = &module.addresses;
            self.modules
                .retain(|old| old.addresses.end <= new.start || new.end <= old.addresses.start);
            let rows = module.rows();
            if let [rule] = rows[..] {
                self.modules.push(Placed {
                    addresses: new.clone(),
                    rows: rule as u32,
                    blocks: unwinding::WHOLE,
                });
                continue;
            }
            let here = |body: &Vec<u8>| ((at - self.base + body.len() as u64) / 8) as u32;
            let rows_at = here(&body);
            body.extend(rows.iter().flat_map(|row| row.to_le_bytes()));
            let blocks_at = here(&body);
            let size = new.end - new.start;
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
            self.modules.push(Placed {
                addresses: new.clone(),
                rows: rows_at,
                blocks: blocks_at,
            });
        }
        self.modules.sort_by_key(|module| module.addresses.start);
        let head = at + body.len() as u64;
        body.extend(self.base.to_le_bytes());
        body.extend((self.modules.len() as u64).to_le_bytes());
        for module in &self.modules {
            body.extend(module.addresses.start.to_le_bytes());
            body.extend(module.addresses.end.to_le_bytes());
            body.extend(module.rows.to_le_bytes());
            body.extend(module.blocks.to_le_bytes());
        }
        (body, head)
    }
}

#[cfg(test)]
mod tests;
