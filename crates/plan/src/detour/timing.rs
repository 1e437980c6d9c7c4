//! The code that times calls: at a function's entry the time is put into the slot of the
//! call, and at its exit looked up there.
//!
//! ```text
//!  entry  rdtsc                          time, with the function's number above it
//!         slot of the stack pointer
//!         slot.stack = 0
//!         slot.begin = time
//!         slot.stack = stack pointer
//!
//!  exit   rdtsc
//!         slot of the stack pointer
//!         slot.stack other than it?      out
//!         begin = slot.begin
//!         slot.stack other than it?      out
//!         another function's?            out
//! ```
//!
//! The stack pointer at a function's entry is that at its exit, and belongs to one call
//! alone while that is open, whatever is thrown or jumped over meanwhile. Two calls may
//! want the same slot; then the later one has it, and the other's exit finds none of its
//! own. Writers change `stack` first and last, and processors of this kind show stores in
//! their order, so an exit that finds its stack pointer before and after has read a time
//! that was written with it. (Only a signal's handler that meets an entry between its
//! stores, and calls the same function on another stack whose slot is the same, could lend
//! it its time.)

use super::assemble::{Labels, mark};
use super::frame::{Frame, at};
use super::tally::Patch;
use super::{Frames, Runtime};
use capriole_ring::layout::frame;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, Register};

/// Where the function's number starts in the upper half of a slot's time.
const CALL_SHIFT: u32 = 32 - frame::CALL_BITS;

/// The function's number, as an entry puts it above the time.
pub(super) fn above_time(call: u32) -> u32 {
    call << CALL_SHIFT
}

/// The whole work of an entry.
pub(super) fn enter(
    a: &mut CodeAssembler,
    registers: &Frame,
    runtime: &Runtime,
    call: u32,
) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    a.rdtsc()?;
    a.movzx(edx, dx)?;
    let above = above_time(call) as i32;
    a.add_instruction(Instruction::with2(
        Code::Or_rm32_imm32,
        Register::EDX,
        above,
    )?)?;
    let value = (mark(a)?, 4);
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    slot(a, registers, &runtime.frames)?;
    let place = registers.place;
    let (stack, time) = (
        at(place, frame::STACK as i64),
        at(place, frame::BEGIN as i64),
    );
    a.add_instruction(Instruction::with2(Code::Mov_rm64_imm32, stack, 0)?)?;
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, time, Register::RAX)?)?;
    let pointer = registers.control;
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, stack, pointer)?)?;
    let done = mark(a)?;
    Ok(Labels {
        begin,
        done,
        value,
        sequence: None,
        locked: None,
        more: Vec::new(),
    })
}

/// Loads how long the call has taken that is left, or goes `out`. Spoils rax and rdx.
pub(super) fn latency(
    a: &mut CodeAssembler,
    registers: &Frame,
    runtime: &Runtime,
    call: u32,
    out: CodeLabel,
    more: &mut Vec<(CodeLabel, Patch)>,
) -> Result<(), IcedError> {
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    slot(a, registers, &runtime.frames)?;
    let (pointer, place) = (registers.control, registers.place);
    let (temporary, amount) = (registers.key, registers.amount);
    let (stack, time) = (
        at(place, frame::STACK as i64),
        at(place, frame::BEGIN as i64),
    );
    a.add_instruction(Instruction::with2(Code::Cmp_rm64_r64, stack, pointer)?)?;
    a.jne(out)?;
    a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, amount, time)?)?;
    a.add_instruction(Instruction::with2(Code::Cmp_rm64_r64, stack, pointer)?)?;
    a.jne(out)?;
    a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, temporary, amount)?)?;
    let rest = 64 - frame::CALL_BITS;
    a.add_instruction(Instruction::with2(Code::Shr_rm64_imm8, temporary, rest)?)?;
    let temporary = temporary.full_register32();
    a.add_instruction(Instruction::with2(
        Code::Cmp_rm32_imm32,
        temporary,
        call as i32,
    )?)?;
    more.push((mark(a)?, Patch::Call));
    a.jne(out)?;
    a.add_instruction(Instruction::with2(
        Code::Sub_r64_rm64,
        Register::RAX,
        amount,
    )?)?;
    a.shl(rax, frame::CALL_BITS)?;
    a.shr(rax, frame::CALL_BITS)?;
    a.add_instruction(Instruction::with2(
        Code::Mov_r64_rm64,
        amount,
        Register::RAX,
    )?)
}

/// Loads the stack pointer of the site into `control`, and the address of its slot into
/// `place`. Spoils `key`.
fn slot(a: &mut CodeAssembler, registers: &Frame, frames: &Frames) -> Result<(), IcedError> {
    let (pointer, place, key) = (registers.control, registers.place, registers.key);
    let (place32, key32) = (place.full_register32(), key.full_register32());
    let move64 = |to, from| Instruction::with2(Code::Mov_r64_rm64, to, from);
    let shift = |register, by: u32| Instruction::with2(Code::Shr_rm64_imm8, register, by);
    registers.stack_pointer(a, pointer, 0)?;
    a.add_instruction(move64(place, pointer)?)?;
    a.add_instruction(shift(place, 4)?)?;
    a.add_instruction(move64(key, pointer)?)?;
    a.add_instruction(shift(key, 24)?)?;
    let spread = frame::SPREAD as i32;
    a.add_instruction(Instruction::with3(
        Code::Imul_r32_rm32_imm32,
        key32,
        key32,
        spread,
    )?)?;
    a.add_instruction(Instruction::with2(Code::Add_r32_rm32, place32, key32)?)?;
    let mask = (frames.slots - 1) as i32;
    a.add_instruction(Instruction::with2(Code::And_rm32_imm32, place32, mask)?)?;
    let size = frame::SIZE.ilog2();
    a.add_instruction(Instruction::with2(Code::Shl_rm64_imm8, place, size)?)?;
    let base = Instruction::with2(Code::Mov_r64_imm64, key, frames.address)?;
    a.add_instruction(base)?;
    a.add_instruction(Instruction::with2(Code::Add_r64_rm64, place, key)?)
}
