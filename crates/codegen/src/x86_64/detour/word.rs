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

use super::emit::{Patch, at, mark};
use super::filter::part;
use super::frame::Frame;
use crate::condition::Width;
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

/// Loads the number in the lower bytes of a register, from its saved copy if the register has
/// been saved and may hold something else now.
pub(super) fn load_register(
    a: &mut CodeAssembler,
    frame: &Frame,
    to: Register,
    from: Register,
    width: Width,
) -> Result<(), IcedError> {
    use Code::*;
    let to32 = to.full_register32();
    let (code, to) = match (width.bytes, width.signed) {
        (8, _) => (Mov_r64_rm64, to),
        (4, false) => (Mov_r32_rm32, to32),
        (4, true) => (Movsxd_r64_rm32, to),
        (2, false) => (Movzx_r32_rm16, to32),
        (2, true) => (Movsx_r64_rm16, to),
        (_, false) => (Movzx_r32_rm8, to32),
        (_, true) => (Movsx_r64_rm8, to),
    };
    a.add_instruction(match frame.slot(from) {
        Some(slot) => Instruction::with2(code, to, at(Register::RSP, slot))?,
        None => Instruction::with2(code, to, part(from, width.bytes))?,
    })
}
