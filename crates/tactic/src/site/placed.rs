//! Bytes and stubs of prescribed tactics.

use crate::arch::instruction::Instruction;
use crate::arch::jump;

/// Bytes and stubs that a [prescribed](super::Tactic::is_prescribed) tactic needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The bytes that change, in order of writing: the program runs correctly after each write.
    /// They are restored in the opposite order.
    pub writes: Vec<Write>,
    /// Bytes expected when the first write is made: those that change and those that displacements
    /// share.
    pub relies_on: Vec<(u64, Vec<u8>)>,
    /// Jumps that have to be mapped before the writes.
    pub stubs: Vec<Stub>,
    /// The neighbours whose bytes change too. [`StubTo::Evicted`] leads to a copy of each, which
    /// continues after the original.
    pub evicted: Vec<Instruction>,
    /// Address of another site's jump, and its first bytes, which are a part of this jump's
    /// displacement: the other jump has to be written before this one, and restored after it.
    pub builds_on: Option<(u64, Vec<u8>)>,
    /// Covered instructions whose first byte becomes a breakpoint: a thread that hits one continues
    /// at the instruction's copy in the detour.
    pub traps: Vec<u64>,
}

/// A change to some bytes of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The first byte.
    pub address: u64,
    /// The program's own bytes, at most 15.
    pub before: Vec<u8>,
    /// The new bytes, as many as `before`.
    pub after: Vec<u8>,
}

/// A small jump at a prescribed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Its address.
    pub address: u64,
    /// Its size in bytes: larger if it leads anywhere and not only nearby.
    pub size: u64,
    /// Its target.
    pub to: StubTo,
}

/// Target of a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StubTo {
    /// The detour.
    Detour,
    /// The copy of an evicted neighbour, by its index.
    Evicted(usize),
}

impl Stub {
    /// Returns the stub's bytes for a jump to `target`; `None` if that is out of its reach.
    #[must_use]
    pub fn bytes(&self, target: u64) -> Option<Vec<u8>> {
        jump::stub(self.address, self.size, target)
    }
}
