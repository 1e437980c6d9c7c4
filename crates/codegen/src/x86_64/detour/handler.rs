//! The code that hands a site over to handlers in the program itself, and the jump to code that
//! replaces the site's.
//!
//! ```text
//!         lea  -FRAME(%rsp), %rsp       below the red zone
//!         mov  %rdi, DI(%rsp)
//!         lea  FRAME(%rsp), %rdi        the stack pointer at the site
//!         mov  %rdi, SP(%rsp)
//!         movabs $argument, %rdi
//!         call *routine(%rip)
//!         lea  FRAME(%rsp), %rsp
//! ```
//!
//! The routine finds the registers `struct capriole_regs` (of `include/capriole/probe.h`) right
//! above its return address, with `di` and `sp` stored, stores the others, and lets the handlers
//! change them. It returns here with all registers as the handlers left them, `rsp` excepted,
//! which it leaves as it was here; with another `ip` or `sp` it does not return, but goes there.
//! The return address on the stack is the only one that leads into a detour: the routine's own
//! unwind information describes the registers of the site, so nobody who unwinds comes across it,
//! and a detach that finds it waits.
//!
//! It comes last, right before the copies, with all registers as at the site: what handlers change
//! is seen by the program, and not by other work of the site.

use super::emit::{Labels, at, mark};
use super::frame::Frame;
use crate::work::Handler;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, Register};

/// Size in bytes of the space that the code takes below the stack pointer: the red zone, room in
/// which the routine can put three words below the red zone of a changed stack pointer without
/// overwriting the registers, and the registers.
pub const FRAME: i32 = 432;
/// Offset in bytes of `di` in `struct capriole_regs`.
pub const DI: i32 = 14 * 8;
/// Offset in bytes of `sp` in `struct capriole_regs`.
pub const SP: i32 = 17 * 8;

/// Emits a word with an address.
pub(super) fn word(a: &mut CodeAssembler, address: u64) -> Result<CodeLabel, IcedError> {
    let label = mark(a)?;
    a.dq(&[address])?;
    Ok(label)
}

/// Emits the call of the routine, whose address is in a word.
pub(super) fn call(
    a: &mut CodeAssembler,
    handler: &Handler,
    routine: CodeLabel,
) -> Result<Labels, IcedError> {
    let own = |offset: i32| at(Register::RSP, i64::from(offset));
    let store = |a: &mut CodeAssembler, offset| {
        let store = Instruction::with2(Code::Mov_rm64_r64, own(offset), Register::RDI)?;
        a.add_instruction(store)
    };
    let begin = mark(a)?;
    Frame::move_stack(a, -FRAME)?;
    store(a, DI)?;
    a.add_instruction(Instruction::with2(
        Code::Lea_r64_m,
        Register::RDI,
        own(FRAME),
    )?)?;
    store(a, SP)?;
    let argument = handler.argument;
    a.add_instruction(Instruction::with2(
        Code::Mov_r64_imm64,
        Register::RDI,
        argument,
    )?)?;
    let value = mark(a)?;
    a.call(qword_ptr(routine))?;
    Frame::move_stack(a, FRAME)?;
    let done = mark(a)?;
    Ok(Labels::new(begin, done, (value, 8)))
}

/// Emits the jump to other code, whose address is in a word.
pub(super) fn replace(a: &mut CodeAssembler, target: CodeLabel) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    a.jmp(qword_ptr(target))?;
    let done = mark(a)?;
    Ok(Labels::new(begin, done, (begin, 0)))
}
