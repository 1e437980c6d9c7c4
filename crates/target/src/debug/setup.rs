//! The first instructions of a function, which set up its frame.

use super::error::DebugError;
use super::units::{Debug, DieKey};

/// Where in its function an address is, as regards the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    /// Nothing of the function was executed yet but instructions that do nothing.
    pub at_entry: bool,
    /// Link address of the first statement: from there on variables are in their places.
    pub body: u64,
}

/// Bytes behind the entry that are looked through for instructions that do nothing.
const ENTRY: u64 = 64;

impl Debug<'_> {
    /// How far the function around `address` has set up its frame there.
    pub(super) fn setup(&self, function: DieKey, address: u64) -> Result<Setup, DebugError> {
        let die = self.die(function)?;
        let Some((start, end)) = die.ranges(1).first().copied() else {
            return Err(DebugError::NoFunction(address));
        };
        let known = self.first_statements.borrow().get(&function).copied();
        let body = known.unwrap_or_else(|| {
            // Compilers begin a second row of the line table where the frame is set up
            // (gdb relies on the same).
            let statements = self.statements(start, end);
            let second = statements.iter().find(|statement| statement.0 > start);
            let body = second.map_or(start + 1, |statement| statement.0);
            self.first_statements.borrow_mut().insert(function, body);
            body
        });
        let at_entry = start <= address && self.does_nothing(start, address);
        Ok(Setup {
            at_entry,
            // Behind `endbr64` and nops it is still the entry.
            body: if at_entry {
                body.max(address + 1)
            } else {
                body
            },
        })
    }

    /// Nothing but instructions that do nothing is between two addresses.
    pub(super) fn does_nothing(&self, start: u64, address: u64) -> bool {
        use iced_x86::{Decoder, DecoderOptions, Mnemonic};
        if address == start {
            return true;
        }
        if address - start > ENTRY {
            return false;
        }
        let Some(bytes) = self.object.read(start, address - start) else {
            return false;
        };
        let mut decoder = Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE);
        decoder
            .iter()
            .all(|i| matches!(i.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Nop))
    }
}
