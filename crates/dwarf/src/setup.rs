//! The first instructions of a function, which set up its frame.

use capriole_prologue::instructions::{self, LONGEST};

use super::error::DebugError;
use super::units::{Debug, DieKey};

/// Progress of a function's frame setup at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    pub function: DieKey,
    /// Link addresses of the first instruction, and of the end of the code range that contains it.
    pub start: u64,
    pub end: u64,
    /// True if the function has executed only no-op instructions so far.
    pub at_entry: bool,
    /// Link address of the first statement: from there on variables are in their places.
    pub body: u64,
}

impl Setup {
    /// True if the frame may not be set up yet at this address.
    pub(super) fn is_early(&self, address: u64) -> bool {
        self.start <= address && address < self.body
    }
}

/// Maximum bytes after the entry examined for no-op instructions.
const ENTRY: u64 = 64;
/// Maximum number of ranges of a function examined.
const RANGES: usize = 64;

impl Debug<'_> {
    /// Returns the progress of frame setup at `address` in `function`.
    pub(super) fn setup(&self, function: DieKey, address: u64) -> Result<Setup, DebugError> {
        let die = self.die(function)?;
        let entry = self.entry_address(&die);
        let mut ranges = die.ranges(RANGES).into_iter();
        let around =
            |&(start, end): &(u64, u64)| entry.is_some_and(|entry| start <= entry && entry < end);
        let (Some(start), Some((_, end))) = (entry, ranges.find(around)) else {
            return Err(DebugError::NoFunction(address));
        };
        let known = self.first_statements.borrow().get(&function).copied();
        let body = known.unwrap_or_else(|| {
            // Compilers begin a second row of the line table where the frame is set up
            // (gdb relies on this too).
            let statements = self.statements(start, end);
            let second = statements.iter().find(|statement| statement.0 > start);
            let body = second.map_or_else(|| self.behind(start), |statement| statement.0);
            self.first_statements.borrow_mut().insert(function, body);
            body
        });
        let at_entry = start <= address && address < end && self.does_nothing(start, address);
        Ok(Setup {
            function,
            start,
            end,
            at_entry,
            // An address after only `endbr64` and nops is still the entry.
            body: match at_entry && body <= address {
                true => self.behind(address),
                false => body,
            },
        })
    }

    /// Returns the address of the instruction after the one at `address`.
    pub(super) fn behind(&self, address: u64) -> u64 {
        let longest = |size| self.object.read(address, size);
        let code = (1..=LONGEST).rev().find_map(longest).unwrap_or_default();
        instructions::behind(&code, address)
    }

    /// True if only no-op instructions are between two addresses.
    pub(super) fn does_nothing(&self, start: u64, address: u64) -> bool {
        if address == start {
            return true;
        }
        if address - start > ENTRY {
            return false;
        }
        let bytes = self.object.read(start, address - start);
        bytes.is_some_and(|bytes| instructions::does_nothing(&bytes))
    }
}
