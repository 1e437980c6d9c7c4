//! Programs for the resident: lists of steps.
//!
//! All steps go forward, so a program terminates.

use crate::condition::Width;
use capriole_insn::RegSet;
use capriole_ring::numbers::op::Effect;
use capriole_ring::numbers::{op, program, step, test};
use std::ops::BitOr;

/// A program for the resident, as placed in memory at a multiple of 8.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Size in bytes of the longest record, header included; never more than 65,535.
    pub size: u64,
    /// True if the record begins with the mask of fields that could not be read.
    pub faults: bool,
}

impl Program {
    /// True if the resident may make a system call for it, in the program's own thread.
    #[must_use]
    pub fn may_call(&self) -> bool {
        self.steps().any(|step| match op::effect(step[step::OP]) {
            Some(Effect::Call) | None => true,
            Some(Effect::Register | Effect::Neither) => false,
        })
    }

    /// True if it finds callers, for which the session needs a table, and memory for copies of the stack.
    #[must_use]
    pub fn finds_callers(&self) -> bool {
        self.steps().any(|step| step[step::OP] == op::CHAIN)
    }

    /// True if it reads what a call has kept since its entry, or its time.
    #[must_use]
    pub fn reads_call(&self) -> bool {
        self.steps()
            .any(|step| matches!(step[step::OP], op::LATENCY | op::KEPT))
    }

    /// Returns the general registers that the program reads.
    pub(crate) fn registers(&self) -> RegSet {
        let read = |step: &[u8]| match step[step::OP] {
            op if op::effect(op) == Some(Effect::Register) => Some(RegSet(1 << step[step::A])),
            _ => None,
        };
        self.steps()
            .filter_map(read)
            .fold(RegSet::EMPTY, BitOr::bitor)
    }

    /// Returns the steps, [`step::SIZE`] bytes each.
    fn steps(&self) -> impl Iterator<Item = &[u8]> {
        let count = self.bytes.first_chunk();
        let count = count.map_or(0, |n| u32::from_le_bytes(*n) as usize);
        let steps = self.bytes.get(program::HEADER..).unwrap_or_default();
        steps.chunks_exact(step::SIZE).take(count)
    }
}

/// A step of a program, as `capriole_ring::numbers` lays it out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Step {
    pub(crate) op: u8,
    pub(crate) a: u8,
    pub(crate) count: u16,
    pub(crate) limit: u16,
    pub(crate) field: u8,
    pub(crate) bit: u8,
    pub(crate) value: u64,
}

impl Step {
    /// Encodes the step.
    pub(crate) fn bytes(&self) -> [u8; step::SIZE] {
        let mut bytes = [0; step::SIZE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(step::OP, &[self.op]);
        put(step::A, &[self.a]);
        put(step::COUNT, &self.count.to_le_bytes());
        put(step::LIMIT, &self.limit.to_le_bytes());
        put(step::FIELD, &[self.field]);
        put(step::BIT, &[self.bit]);
        put(step::VALUE, &self.value.to_le_bytes());
        bytes
    }

    /// Creates a step that needs nothing but its operation.
    pub(crate) fn new(op: u8) -> Step {
        Step {
            op,
            ..Step::default()
        }
    }

    /// Creates a step that operates on a number of this width.
    pub(crate) fn made(op: u8, how: u8, width: Width) -> Step {
        let bits = |(offset, width)| u16::from(offset) << 8 | u16::from(width);
        let signed = if width.is_signed() { test::SIGNED } else { 0 };
        Step {
            a: width.bytes | how | signed,
            count: width.bits.map_or(0, bits),
            ..Step::new(op)
        }
    }
}
