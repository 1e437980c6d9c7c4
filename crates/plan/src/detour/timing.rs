//! The code that times calls: at a function's entry the time is put into the slot of the
//! call, and at its exit looked up there.
//!
//! ```text
//!  entry  time = rdtsc                   its lower 48 bits
//!         slot of the stack pointer
//!         slot.begin = time ^ (stack pointer << 24)
//!         slot.owner = stack pointer, the function's number above it
//!
//!  exit   rdtsc
//!         slot of the stack pointer
//!         slot.owner another one?        out
//!         time = slot.begin ^ (stack pointer << 24)
//!         more than 48 bits?             out
//! ```
//!
//! The stack pointer at a function's entry is that at its exit, and belongs to one call
//! alone while that is open, whatever is thrown or jumped over meanwhile. Two calls may
//! want the same slot; then the later one has it, and the other's exit finds none of its
//! own.
//!
//! Two threads may even write the same slot at the same time, and leave the one's owner
//! with the other's time. Stack pointers that want the same slot differ above their lowest
//! 24 bits ([`frame`]), so those bits, 24 to 39, are put over the part of the word that the
//! time does not fill: a time that was written for another stack does not come out as one.
//! (For stacks that differ in bits 40 to 46 only it does: they are a terabyte apart.)

use super::assemble::{Labels, mark};
use super::frame::{Frame, at};
use super::tally::Patch;
use super::{Frames, Runtime};
use capriole_ring::layout::frame;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, Register};

/// Where the function's number starts in the upper half of a slot's owner.
const CALL_SHIFT: u32 = 32 - frame::CALL_BITS;

/// The upper half of the owner of a slot: the function's number, above any stack pointer.
pub(super) fn above_pointer(call: u32) -> u32 {
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
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    slot(a, registers, &runtime.frames)?;
    let stretched = registers.key;
    stretch(a, registers, stretched)?;
    let xor = Instruction::with2(Code::Xor_rm64_r64, Register::RAX, stretched)?;
    a.add_instruction(xor)?;
    let time = at(registers.place, frame::BEGIN as i64);
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, time, Register::RAX)?)?;
    let call = owner(a, registers, call)?;
    let slot = at(registers.place, frame::OWNER as i64);
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, slot, registers.key)?)?;
    let done = mark(a)?;
    Ok(Labels {
        begin,
        done,
        value: (call, 4),
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
    let (place, amount) = (registers.place, registers.amount);
    more.push((owner(a, registers, call)?, Patch::Call));
    let slot = at(place, frame::OWNER as i64);
    a.add_instruction(Instruction::with2(Code::Cmp_rm64_r64, slot, registers.key)?)?;
    a.jne(out)?;
    stretch(a, registers, amount)?;
    let time = at(place, frame::BEGIN as i64);
    a.add_instruction(Instruction::with2(Code::Xor_r64_rm64, amount, time)?)?;
    // Nothing may be left above the time.
    let rest = registers.key;
    a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, rest, amount)?)?;
    let bits = 64 - frame::CALL_BITS;
    a.add_instruction(Instruction::with2(Code::Shr_rm64_imm8, rest, bits)?)?;
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

/// Loads what a slot's time is hidden under: the stack pointer in `control`, moved up.
fn stretch(a: &mut CodeAssembler, registers: &Frame, to: Register) -> Result<(), IcedError> {
    let pointer = registers.control;
    a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, to, pointer)?)?;
    let by = frame::POINTER_SHIFT;
    a.add_instruction(Instruction::with2(Code::Shl_rm64_imm8, to, by)?)
}

/// Loads the owner of the call's slot into `key`. Returns the end of the instruction whose
/// last four bytes are [`above_pointer`].
fn owner(a: &mut CodeAssembler, registers: &Frame, call: u32) -> Result<CodeLabel, IcedError> {
    let (pointer, key) = (registers.control, registers.key);
    let (key32, above) = (key.full_register32(), above_pointer(call));
    a.add_instruction(Instruction::with2(Code::Mov_r32_imm32, key32, above)?)?;
    let value = mark(a)?;
    a.add_instruction(Instruction::with2(Code::Shl_rm64_imm8, key, 32)?)?;
    a.add_instruction(Instruction::with2(Code::Or_r64_rm64, key, pointer)?)?;
    Ok(value)
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
