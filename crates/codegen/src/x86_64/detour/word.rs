//! A word that straight code stores: a register, or a constant.
//!
//! A constant is in an instruction of the detour's own, encoded as short as possible:
//!
//! ```text
//!         movq $5, field(%r)            32 bits, sign-extended
//!
//!         mov  $0x1122334455667788, %rax
//!         mov  %rax, field(%r)
//! ```
//!
//! Detours of one form have constants of the same length in the same places, and their values
//! are patched. Code that such detours share reads the values from there.

use super::assemble::mark;
use super::tally::Patch;
use crate::work::Word;
use iced_x86::code_asm::{CodeAssembler, CodeLabel};
use iced_x86::{Code, IcedError, Instruction, Register};

impl Word {
    /// Returns everything that distinguishes forms, as a byte; for a constant, its length.
    pub(super) fn key(self) -> u8 {
        const SHORT: u8 = u8::MAX;
        const LONG: u8 = u8::MAX - 1;
        const _: () = assert!((Register::XMM31 as u32) < LONG as u32);
        match self {
            Word::Register(register) => register as u8,
            Word::Constant(value) if short(value).is_some() => SHORT,
            Word::Constant(_) => LONG,
        }
    }
}

/// Returns the 32 bits that sign-extend to the constant, if there are any.
pub(super) fn short(value: u64) -> Option<i32> {
    i32::try_from(value as i64).ok()
}

/// Loads the constant of field `index`. Returns the label after it, and how to patch it.
pub(super) fn load(
    a: &mut CodeAssembler,
    to: Register,
    value: u64,
    index: usize,
) -> Result<(CodeLabel, Patch), IcedError> {
    let (load, patch) = match short(value) {
        Some(short) => (
            Instruction::with2(Code::Mov_rm64_imm32, to, short)?,
            Patch::Short(index),
        ),
        None => (
            Instruction::with2(Code::Mov_r64_imm64, to, value)?,
            Patch::Long(index),
        ),
    };
    a.add_instruction(load)?;
    Ok((mark(a)?, patch))
}
