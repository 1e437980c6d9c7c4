//! What a prescribed tactic puts where.

use iced_x86::Instruction;

use crate::place::{FAR_STUB, NEAR_STUB};

/// What has to stand where for a [prescribed](super::Tactic::is_prescribed) tactic.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The bytes that change, in this order: after each of them the program is
    /// one that runs correctly. They are taken back in the opposite order.
    pub writes: Vec<Write>,
    /// Bytes that have to be there when the first write is made: those that
    /// change and those that displacements share.
    pub relies_on: Vec<(u64, Vec<u8>)>,
    /// Jumps that have to be mapped before.
    pub stubs: Vec<Stub>,
    /// The neighbours whose bytes change too: a copy of each, which goes on behind
    /// it, is what [`StubTo::Evicted`] leads to.
    pub evicted: Vec<Instruction>,
    /// Where the jump of another site stands, of which these first bytes are a part of this
    /// one's displacement: it has to be written before, and taken back after.
    pub builds_on: Option<(u64, Vec<u8>)>,
    /// Covered instructions whose first byte becomes a breakpoint: whoever runs
    /// into it goes on at their copies in the detour.
    pub traps: Vec<u64>,
}

/// Some bytes of the program that change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The first byte.
    pub address: u64,
    /// The program's own bytes, at most 15.
    pub before: Vec<u8>,
    /// As many others.
    pub after: Vec<u8>,
}

/// A small jump at a prescribed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Where it stands.
    pub address: u64,
    /// The room it has, in bytes: [`NEAR_STUB`] or [`FAR_STUB`].
    pub size: u64,
    /// Where it leads.
    pub to: StubTo,
}

/// Where a stub leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StubTo {
    /// To the detour.
    Detour,
    /// To the copy of an evicted neighbour, by its index.
    Evicted(usize),
}

impl Stub {
    /// Its bytes, if it leads to `target`; `None` if that is out of its reach.
    #[must_use]
    pub fn bytes(&self, target: u64) -> Option<Vec<u8>> {
        let displacement = target.wrapping_sub(self.address.wrapping_add(NEAR_STUB)) as i64;
        if let Ok(near) = i32::try_from(displacement) {
            let mut bytes = vec![0xe9];
            bytes.extend(near.to_le_bytes());
            return Some(bytes);
        }
        if self.size < FAR_STUB {
            return None;
        }
        // `notrack`: where indirect branches are tracked, a detour does not begin
        // with `endbr64`, which would be one more instruction for all others.
        let mut bytes = vec![0x3e, 0xff, 0x25, 0, 0, 0, 0];
        bytes.extend(target.to_le_bytes());
        Some(bytes)
    }
}
