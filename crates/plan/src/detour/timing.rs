//! The code that times calls: at a function's entry the time is put into the slot of the
//! call, and at its exit looked up there.
//!
//! ```text
//!  entry  time = rdtsc                   its lower 48 bits
//!         slot of the stack pointer
//!         slot.begin = time ^ (stack pointer << 24)
//!         slot.kept[i] = lower half, tag; upper half, tag       for each word
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
//!
//! **Kept words** have to prove themselves as well. A word is kept in two halves of eight
//! bytes, each of which has half of it below a tag: the bits of the stack pointer from 24 on,
//! all of them. A store of eight bytes is never seen in part. Threads that write the same
//! slot have stack pointers that differ in the tag, as the lower bits of those of one slot
//! follow from it; so a half with the tag of the call that is left was written on its stack,
//! at its place there, by a call of its function as the owner says. Such calls come one after
//! the other, and each writes all its words before its owner, so both halves are of the last
//! of them: that which is left. (A forked child, which has calls at the same places, has slots
//! of its own: they are private memory.)
//!
//! **A call that the filter rejects** takes away what an earlier one of its function left at
//! its place: else its exit would find that.
//!
//! **Areas.** A function may be entered for several purposes with filters and words of their
//! own. Their calls are at the same places; each has slots in an area of its own.

use super::assemble::{Labels, bind, mark};
use super::frame::{Frame, at};
use super::tally::{self, Patch};
use super::{Frames, Runtime};
use crate::condition::Width;
use capriole_ring::layout::frame;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, Register};

/// Where the function's number starts in the upper half of a slot's owner.
const CALL_SHIFT: u32 = 32 - frame::CALL_BITS;

/// The upper half of the owner of a slot: the function's number, above any stack pointer.
pub(super) fn above_pointer(call: u32) -> u32 {
    call << CALL_SHIFT
}

/// Which area of slots a call has its own in.
pub(super) fn area(call: u32) -> u32 {
    call >> frame::CALL_BITS
}

/// All 64 bits of a register.
const WHOLE: Width = Width {
    bytes: 8,
    signed: false,
    bits: None,
};

/// The whole work of an entry, which keeps what is in the registers `kept`.
pub(super) fn enter(
    a: &mut CodeAssembler,
    registers: &Frame,
    runtime: &Runtime,
    call: u32,
    kept: &[Register],
) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    a.rdtsc()?;
    a.movzx(edx, dx)?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    slot(a, registers, &runtime.frames, call)?;
    let stretched = registers.key;
    stretch(a, registers, stretched)?;
    let xor = Instruction::with2(Code::Xor_rm64_r64, Register::RAX, stretched)?;
    a.add_instruction(xor)?;
    let time = at(registers.place, frame::BEGIN as i64);
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, time, Register::RAX)?)?;
    if !kept.is_empty() {
        let (pointer, tag) = (registers.control, Register::RDX);
        a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, tag, pointer)?)?;
        a.shr(rdx, frame::TAG_SHIFT)?;
        a.shl(rdx, 32)?;
    }
    for (word, register) in kept.iter().enumerate() {
        keep(a, registers, word, *register)?;
    }
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

/// Puts a word into the slot, under the tag in the upper half of rdx. Spoils rax and `key`.
fn keep(
    a: &mut CodeAssembler,
    registers: &Frame,
    word: usize,
    register: Register,
) -> Result<(), IcedError> {
    let (key, key32) = (registers.key, registers.key.full_register32());
    match register {
        // It has moved here; `control` has what it was.
        Register::RSP => {
            let pointer = registers.control;
            let load = Instruction::with2(Code::Mov_r64_rm64, Register::RAX, pointer)?;
            a.add_instruction(load)?;
        }
        _ => tally::load(a, registers, Register::RAX, register, WHOLE)?,
    }
    let low = (frame::KEPT + word * frame::WORD) as i64;
    let (low, high) = (at(registers.place, low), at(registers.place, low + 8));
    a.add_instruction(Instruction::with2(
        Code::Mov_r32_rm32,
        key32,
        Register::EAX,
    )?)?;
    a.add_instruction(Instruction::with2(Code::Or_r64_rm64, key, Register::RDX)?)?;
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, low, key)?)?;
    a.shr(rax, 32)?;
    a.or(rax, rdx)?;
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, high, Register::RAX)?)
}

/// The work of an entry that the filter has rejected. Returns the end of the instruction
/// whose last four bytes are [`above_pointer`].
pub(super) fn forget(
    a: &mut CodeAssembler,
    registers: &Frame,
    runtime: &Runtime,
    call: u32,
) -> Result<CodeLabel, IcedError> {
    slot(a, registers, &runtime.frames, call)?;
    let value = owner(a, registers, call)?;
    let mut done = a.create_label();
    let slot = at(registers.place, frame::OWNER as i64);
    a.add_instruction(Instruction::with2(Code::Cmp_rm64_r64, slot, registers.key)?)?;
    a.jne(done)?;
    a.add_instruction(Instruction::with2(Code::Mov_rm64_imm32, slot, 0)?)?;
    bind(a, &mut done)?;
    Ok(value)
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
    slot(a, registers, &runtime.frames, call)?;
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
fn slot(
    a: &mut CodeAssembler,
    registers: &Frame,
    frames: &Frames,
    call: u32,
) -> Result<(), IcedError> {
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
    let size = frames.size.ilog2();
    a.add_instruction(Instruction::with2(Code::Shl_rm64_imm8, place, size)?)?;
    let first = frames.address + u64::from(area(call)) * frames.area();
    let base = Instruction::with2(Code::Mov_r64_imm64, key, first)?;
    a.add_instruction(base)?;
    a.add_instruction(Instruction::with2(Code::Add_r64_rm64, place, key)?)
}
