//! Jumps among the bytes around a site: which of these bytes may change, and to which values.

use std::ops::Range;

use capriole_insn::{Code, Extent};

use crate::arch::instruction::Instruction;
use crate::arch::jump::JUMP;
use crate::arch::mask::Mask;
use crate::place::{Placer, Slot};
use crate::site::{Placed, Refusal, Stub, StubTo, Write};

/// `jmp rel32`.
const NEAR_JUMP: u8 = 0xe9;
/// Number of addresses tried for the first of two jumps that share bytes.
pub(super) const TRIES: usize = 48;

/// A jump to be written: prefixes, opcode, displacement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jump {
    pub(super) at: u64,
    pub(super) prefixes: [u8; 3],
    pub(super) count: usize,
}

impl Jump {
    pub(super) fn plain(at: u64) -> Self {
        Self::with(at, &[])
    }

    pub(super) fn with(at: u64, prefixes: &[u8]) -> Self {
        let mut jump = Self {
            at,
            prefixes: [0; 3],
            count: prefixes.len(),
        };
        jump.prefixes[..prefixes.len()].copy_from_slice(prefixes);
        jump
    }

    /// Returns the jump in every form, from no prefix up to as many prefixes as leave the opcode in
    /// the first `len` bytes.
    pub(super) fn forms(at: u64, len: u64) -> impl Iterator<Item = Self> {
        let prefixes: [&[u8]; 4] = [&[], &[0x48], &[0x2e, 0x48], &[0x2e, 0x2e, 0x48]];
        (0..len.min(4)).map(move |count| Self::with(at, prefixes[count as usize]))
    }

    pub(super) fn opcode(&self) -> u64 {
        self.at + self.count as u64
    }

    pub(super) fn displacement(&self) -> u64 {
        self.opcode() + 1
    }

    pub(super) fn end(&self) -> u64 {
        self.opcode() + JUMP
    }
}

/// The bytes around a site: which may change, and their new values.
#[derive(Clone)]
pub(super) struct Cells<'a> {
    pub(super) code: &'a Code<'a>,
    /// Bytes that may change.
    pub(super) own: Vec<Range<u64>>,
    pub(super) changed: Vec<(u64, u8)>,
    /// Bytes that stay unchanged and are part of a displacement.
    pub(super) shared: Vec<u64>,
}

impl<'a> Cells<'a> {
    pub(super) fn new(code: &'a Code<'a>, own: Vec<Range<u64>>) -> Self {
        Self {
            code,
            own,
            changed: Vec::new(),
            shared: Vec::new(),
        }
    }

    pub(super) fn changed(&self, at: u64) -> Option<u8> {
        let found = self.changed.iter().find(|(address, _)| *address == at);
        found.map(|(_, byte)| *byte)
    }

    pub(super) fn is_own(&self, at: u64) -> bool {
        self.own.iter().any(|range| range.contains(&at))
    }

    /// Sets a byte to the required value; returns false if it has another value and must stay.
    pub(super) fn set(&mut self, at: u64, byte: u8) -> bool {
        match self.changed(at) {
            Some(is) => return is == byte,
            None if self.is_own(at) => self.changed.push((at, byte)),
            None => {
                if self.code.byte(at) != Some(byte) {
                    return false;
                }
                self.shared.push(at);
            }
        }
        true
    }

    pub(super) fn set_opcode(&mut self, jump: &Jump) -> bool {
        let prefixes = (jump.at..).zip(jump.prefixes).take(jump.count);
        for (at, byte) in prefixes {
            if !self.set(at, byte) {
                return false;
            }
        }
        self.set(jump.opcode(), NEAR_JUMP)
    }

    pub(super) fn set_target(&mut self, jump: &Jump, target: u64) -> bool {
        let displacement = target.wrapping_sub(jump.end()) as u32;
        let bytes = displacement.to_le_bytes();
        (jump.displacement()..)
            .zip(bytes)
            .all(|(at, byte)| self.set(at, byte))
    }

    /// Returns the form of a jump's displacement, or as error the first byte that another probe
    /// changes.
    pub(super) fn mask(&self, jump: &Jump, placer: &Placer) -> Result<Mask, Refusal> {
        let mut bytes = [None; 4];
        for (at, byte) in (jump.displacement()..).zip(&mut bytes) {
            *byte = match self.changed(at) {
                Some(is) => Some(is),
                None if self.is_own(at) => None,
                None if placer.is_taken(at) => return Err(Refusal::BytesInUse { at }),
                None => Some(self.code.byte(at).ok_or(Refusal::NoStubAddress)?),
            };
        }
        Ok(Mask::new(bytes))
    }

    /// Directs a jump to a stub.
    pub(super) fn lead(&mut self, jump: &Jump, placer: &Placer) -> Result<Slot, Refusal> {
        if !self.set_opcode(jump) {
            return Err(Refusal::NoStubAddress);
        }
        let mask = self.mask(jump, placer)?;
        let found = placer.candidates(jump.end(), mask, 1);
        let slot = *found.first().ok_or(Refusal::NoStubAddress)?;
        match self.set_target(jump, slot.address) {
            true => Ok(slot),
            false => Err(Refusal::NoStubAddress),
        }
    }

    /// Directs two jumps that may share bytes to two stubs.
    pub(super) fn lead_both(
        &mut self,
        jumps: [&Jump; 2],
        placer: &mut Placer,
    ) -> Result<[Slot; 2], Refusal> {
        if !jumps.iter().all(|jump| self.set_opcode(jump)) {
            return Err(Refusal::NoStubAddress);
        }
        let mask = self.mask(jumps[0], placer)?;
        for first in placer.candidates(jumps[0].end(), mask, TRIES) {
            let mut tried = self.clone();
            if !tried.set_target(jumps[0], first.address) {
                continue;
            }
            placer.reserve_stub(first);
            let second = tried.lead(jumps[1], placer);
            placer.release_stub(first);
            if let Ok(second) = second {
                *self = tried;
                return Ok([first, second]);
            }
        }
        Err(Refusal::NoStubAddress)
    }

    /// Returns the changes within one instruction.
    pub(super) fn write(&self, own: Range<u64>) -> Option<Write> {
        let inside = || self.changed.iter().filter(|(at, _)| own.contains(at));
        let start = inside().map(|(at, _)| *at).min()?;
        let end = inside().map(|(at, _)| *at).max()? + 1;
        let before = self.code.get(Extent::new(start, end))?.to_vec();
        let after = (start..end)
            .zip(&before)
            .map(|(at, is)| self.changed(at).unwrap_or(*is))
            .collect();
        Some(Write {
            address: start,
            before,
            after,
        })
    }

    /// Returns the expected original bytes at these addresses, as contiguous ranges.
    pub(super) fn relied(
        &self,
        at: impl Iterator<Item = u64>,
    ) -> Result<Vec<(u64, Vec<u8>)>, Refusal> {
        let mut relied: Vec<u64> = at.collect();
        relied.sort_unstable();
        relied.dedup();
        let mut stretches: Vec<(u64, Vec<u8>)> = Vec::new();
        for at in relied {
            let byte = self.code.byte(at).ok_or(Refusal::NoStubAddress)?;
            match stretches.last_mut() {
                Some((start, bytes)) if *start + bytes.len() as u64 == at => bytes.push(byte),
                _ => stretches.push((at, vec![byte])),
            }
        }
        Ok(stretches)
    }

    /// Builds the result, and has the placer hold its bytes and stubs.
    pub(super) fn place(
        self,
        placer: &mut Placer,
        order: &[Range<u64>],
        stubs: &[(Slot, StubTo)],
        evicted: Vec<Instruction>,
        traps: Vec<u64>,
    ) -> Result<Placed, Refusal> {
        let writes = order.iter().filter_map(|own| self.write(own.clone()));
        let writes: Vec<Write> = writes.collect();
        let own = self.own.iter().cloned().flatten();
        let relies_on = self.relied(own.chain(self.shared.iter().copied()))?;
        for own in &self.own {
            placer.claim(own.clone());
        }
        placer.pin(self.shared.iter().copied());
        stubs
            .iter()
            .for_each(|(slot, _)| placer.reserve_stub(*slot));
        let stubs = stubs
            .iter()
            .map(|(slot, to)| Stub {
                address: slot.address,
                size: slot.size,
                to: *to,
            })
            .collect();
        Ok(Placed {
            writes,
            relies_on,
            stubs,
            evicted,
            builds_on: None,
            traps,
        })
    }
}
