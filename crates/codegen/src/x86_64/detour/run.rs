//! The code that has the resident run a program.
//!
//! ```text
//!         push $event
//!         push program(%rip)            with RED_ZONE, if the stack pointer was moved
//!         call run
//!         lea  16(%rsp), %rsp
//! ```
//!
//! It comes before registers are saved: the program reads all of them, and the resident
//! preserves them and the flags.

use super::emit::{Labels, mark};
use super::frame::Frame;
use crate::runtime::Runtime;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction};

/// Set in the program's address if the stack pointer is below the red zone
/// (`RUN_RED_ZONE` of the resident).
const RED_ZONE: u64 = capriole_ring::numbers::session::RUN_RED_ZONE;

/// Emits the word with the program's address.
pub(super) fn literal(
    a: &mut CodeAssembler,
    frame: &Frame,
    program: u64,
) -> Result<CodeLabel, IcedError> {
    let label = mark(a)?;
    a.dq(&[program | if frame.red_zone { RED_ZONE } else { 0 }])?;
    Ok(label)
}

/// Emits the call.
pub(super) fn early(
    a: &mut CodeAssembler,
    runtime: &Runtime,
    event: u32,
    program: CodeLabel,
) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    a.add_instruction(Instruction::with1(Code::Pushq_imm32, event as i32)?)?;
    let value = mark(a)?;
    a.push(qword_ptr(program))?;
    a.call(runtime.run)?;
    let called = mark(a)?;
    Frame::move_stack(a, 16)?;
    let done = mark(a)?;
    Ok(Labels {
        locked: Some(called),
        ..Labels::new(begin, done, (value, 4))
    })
}

/// A call off the hot path, for work that the straight code cannot finish.
pub(super) struct Apart {
    /// Start of the call's code.
    pub out: CodeLabel,
    /// End of the event's id in that code, and end of the call.
    pub event: CodeLabel,
    pub called: Option<CodeLabel>,
    /// Label at which execution continues: the end of the work.
    pub done: CodeLabel,
}

/// Emits the call: restores the registers before it, and saves them again after it.
pub(super) fn apart(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    event: u32,
    program: CodeLabel,
) -> Result<Apart, IcedError> {
    let done = a.create_label();
    let out = mark(a)?;
    frame.restore(a)?;
    let called = early(a, runtime, event, program)?;
    frame.save(a)?;
    a.jmp(done)?;
    Ok(Apart {
        out,
        event: called.value.0,
        called: called.locked,
        done,
    })
}
