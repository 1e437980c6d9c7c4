//! The code that calls a routine in the region of followed calls (calls whose return address is
//! replaced).
//!
//! ```text
//!         push $128                     how far the stack pointer was moved, or 0
//!         push argument(%rip)
//!         call *routine(%rip)
//!         lea  16(%rsp), %rsp
//! ```
//!
//! The routine preserves all registers and the flags, and may be anywhere: it stays mapped
//! after the detours are gone. The call comes last, so that an entry's events record the stack
//! as it was before.

use super::emit::{Labels, mark};
use super::frame::{Frame, RED_ZONE};
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction};

/// The words with the addresses of the routine and of its argument.
pub(super) struct Words {
    routine: CodeLabel,
    argument: CodeLabel,
    /// The position after the argument.
    behind: CodeLabel,
}

/// Emits the words.
pub(super) fn words(
    a: &mut CodeAssembler,
    routine: u64,
    argument: u64,
) -> Result<Words, IcedError> {
    let word = |a: &mut CodeAssembler, value| -> Result<CodeLabel, IcedError> {
        let label = mark(a)?;
        a.dq(&[value])?;
        Ok(label)
    };
    Ok(Words {
        routine: word(a, routine)?,
        argument: word(a, argument)?,
        behind: mark(a)?,
    })
}

/// Emits the call.
pub(super) fn early(
    a: &mut CodeAssembler,
    frame: &Frame,
    words: Words,
) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    let below = if frame.red_zone { RED_ZONE } else { 0 };
    a.add_instruction(Instruction::with1(Code::Pushq_imm32, below)?)?;
    a.push(qword_ptr(words.argument))?;
    a.call(qword_ptr(words.routine))?;
    Frame::move_stack(a, 16)?;
    let done = mark(a)?;
    Ok(Labels::new(begin, done, (words.behind, 8)))
}
