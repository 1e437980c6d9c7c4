//! The code that times calls: at a function's entry it stores the time in the slot of the call,
//! and at the function's exit looks it up there.
//!
//! ```text
//!  entry  slot of the stack pointer
//!         slot.kept[i] = lower half, tag; upper half, tag       for each word
//!         slot.owner = stack pointer, the function's number above it
//!         slot.begin = rdtsc + (stack pointer >> 23 << 48)
//!
//!  exit   slot of the stack pointer
//!         slot.owner another one?        unknown
//!         rdtsc + (stack pointer >> 23 << 48) - slot.begin
//!         32 bits or more?               far
//! ```
//!
//! The stack pointer at a function's exit equals the one at its entry, and belongs to one call
//! alone while that call is open, whatever exceptions or `longjmp` unwind meanwhile. Two calls
//! may need the same slot; then the later one gets it, and the other's exit finds a foreign
//! owner.
//!
//! Two threads may even write the same slot at the same time, and leave the owner of one with
//! the time of the other. Stack pointers that share a slot differ above their lowest 23 bits
//! ([`frame`]), so those bits, 23 to 38, are added to the time from its bit 48 on: two times
//! adjusted for different stacks are 2^48 apart or more, which is 34 hours at 2.3 GHz. (This
//! fails only for stacks that differ in bits 39 to 46 only: those stacks are half a terabyte apart.)
//!
//! **Far**: straight code leaves calls that took 2^32 ticks or more to the resident, which
//! repeats the check for 48 bits.
//!
//! **Order.** As `rdtsc` starts when everything before it is done ([`super`]), the cost is the
//! length of the dependency chain from one reading to the next. The slot is looked up before
//! the clock is read, at the exit too: that needs only the stack pointer, which is known long
//! before. After the exit's clock reading there is a chain of half a dozen instructions to the
//! bucket, for which the lower half of the time is enough; all other setup for it comes before
//! the first of them. An entry's clock reading also comes last for another reason: the call is
//! not charged for the rest.
//!
//! **Kept words** are verified as well. A word is kept in two halves of eight bytes; each
//! contains half of the word below a tag: all bits of the stack pointer from 23 on. A store of
//! eight bytes is never seen in part. Threads that write the same slot have stack pointers that
//! differ in the tag, since stack pointers that share a slot and have the same tag have the
//! same lower bits. So a half with the tag of the call being left was written on its stack, at
//! its stack position, by a call of the function that the owner names. Such calls come one
//! after the other, and each writes all its words before its owner, so both halves are from the
//! last of them: the call being left. (A forked child, which has calls at the same positions,
//! has slots of its own: they are private memory.)
//!
//! **A call that the filter rejects** takes its slot, too, with an owner that no other call has:
//! its exit must not find an entry that an earlier call of its function left at its stack position,
//! and knows from this that it does not count. Another owner means that the entry is not known.
//!
//! **Areas.** A function may be entered for several purposes, each with its own filter and
//! words. Their calls are at the same stack positions; each purpose has slots in an area of its
//! own.
//!
//! **Recording only the calls that a filter selects** (`record --graph ':f if ...'`): a
//! selected entry is recorded and takes a slot; the exit is recorded if the slot is that call's
//! (`_since`, a latency, is known). A rejected entry takes the slot, so its exit is not taken
//! for that of an earlier call left by an exception.

use super::emit::{Labels, Patch, at, mark};
use super::frame::{Frame, RED_ZONE};
use super::word;
use crate::condition::Width;
use crate::runtime::{ClockReading, Frames, Runtime};
use crate::work::Word;
use capriole_ring::layout::frame;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

/// Position of the function's number in the upper half of a slot's owner.
const CALL_SHIFT: u32 = 32 - frame::CALL_BITS;

/// Returns the upper half of a slot's owner: the function's number, above all bits of any stack
/// pointer.
pub(super) fn above_pointer(call: u32) -> u32 {
    call << CALL_SHIFT
}

/// Returns the number of the area that holds the slots of `call`.
pub(super) fn area(call: u32) -> u32 {
    call >> frame::CALL_BITS
}

/// Two's logarithm of the largest factor of an address's index.
const MOST_SCALE: u32 = 3;

/// Width of a whole register, 64 bits.
const WHOLE: Width = Width {
    bytes: 8,
    signed: false,
    bits: None,
};

/// Emits the whole work of an entry, which keeps the words `kept`.
pub(super) fn enter(
    a: &mut CodeAssembler,
    registers: &Frame,
    runtime: &Runtime,
    call: u32,
    kept: &[Word],
) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    slot(a, registers, &runtime.frames, call)?;
    let upper = registers.key;
    let mut more = Vec::new();
    if !kept.is_empty() {
        let tag = Register::RDX;
        a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, tag, upper)?)?;
        a.shl(rdx, 32)?;
        for (index, word) in kept.iter().enumerate() {
            keep(a, registers, index, *word, &mut more)?;
        }
        a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, upper, tag)?)?;
        a.add_instruction(Instruction::with2(Code::Shr_rm64_imm8, upper, 32)?)?;
    }
    let call = owner(a, registers, call)?;
    let slot = at(registers.place, frame::OWNER as i64);
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, slot, Register::RAX)?)?;
    moved_time(a, registers, runtime)?;
    let time = at(registers.place, frame::BEGIN as i64);
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, time, Register::RAX)?)?;
    let done = mark(a)?;
    Ok(Labels {
        more,
        ..Labels::new(begin, done, (call, 4))
    })
}

/// Stores a word in the slot, with the tag in the upper half of rdx above each half. Overwrites
/// rax and `key`.
fn keep(
    a: &mut CodeAssembler,
    registers: &Frame,
    index: usize,
    word: Word,
    more: &mut Vec<(CodeLabel, Patch)>,
) -> Result<(), IcedError> {
    let (key, key32) = (registers.key, registers.key.full_register32());
    match word {
        Word::Register(Register::RSP) => registers.stack_pointer(a, Register::RAX, 0)?,
        Word::Register(register) => {
            word::load_register(a, registers, Register::RAX, register, WHOLE)?
        }
        Word::Constant(value) => more.push(word::load(a, Register::RAX, value, index)?),
    }
    let low = (frame::KEPT + index * frame::WORD) as i64;
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

/// Emits the work of an entry that the filter has rejected. Returns the end of the instruction
/// whose last four bytes are [`above_pointer`].
pub(super) fn reject(
    a: &mut CodeAssembler,
    registers: &Frame,
    runtime: &Runtime,
    call: u32,
) -> Result<CodeLabel, IcedError> {
    slot(a, registers, &runtime.frames, call)?;
    let value = owner(a, registers, call)?;
    a.bts(rax, frame::REJECTED.trailing_zeros())?;
    let slot = at(registers.place, frame::OWNER as i64);
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, slot, Register::RAX)?)?;
    Ok(value)
}

/// A clock reading, and the time at which the call was entered.
///
/// The reading is in eax and edx, and becomes available a few instructions later than
/// everything else.
#[must_use]
pub(super) struct Clock {
    /// Lower half of the entry's time, in a 32-bit register; then the upper half.
    low: Register,
    high: Register,
}

/// Reads the clock at the end of a call, or jumps to `unknown` if the call's start is not
/// known. Overwrites rax, rdx, `key`, and either `place` or, if there are shifts, rcx.
pub(super) fn clock(
    a: &mut CodeAssembler,
    registers: &Frame,
    runtime: &Runtime,
    call: u32,
    unknown: CodeLabel,
    more: &mut Vec<(CodeLabel, Patch)>,
) -> Result<Clock, IcedError> {
    slot(a, registers, &runtime.frames, call)?;
    more.push((owner(a, registers, call)?, Patch::Call));
    let (place, upper) = (registers.place, registers.key);
    let slot = at(place, frame::OWNER as i64);
    a.add_instruction(Instruction::with2(Code::Cmp_rm64_r64, slot, Register::RAX)?)?;
    a.jne(unknown)?;
    let by = frame::TIME_SHIFT;
    a.add_instruction(Instruction::with2(Code::Shl_rm64_imm8, upper, by)?)?;
    read(a, runtime.clock)?;
    let low = registers.earlier();
    let time = at(place, frame::BEGIN as i64);
    a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, low, time)?)?;
    a.add_instruction(Instruction::with2(Code::Sub_r64_rm64, low, upper)?)?;
    a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, upper, low)?)?;
    a.add_instruction(Instruction::with2(Code::Shr_rm64_imm8, upper, 32)?)?;
    Ok(Clock {
        low: low.full_register32(),
        high: upper.full_register32(),
    })
}

/// Computes the time since the entry in rax, or jumps to `far` if it is 2^32 or more.
/// Overwrites rdx.
pub(super) fn since(a: &mut CodeAssembler, clock: Clock, far: CodeLabel) -> Result<(), IcedError> {
    let (low, high) = (Register::EAX, Register::EDX);
    a.add_instruction(Instruction::with2(Code::Sub_r32_rm32, low, clock.low)?)?;
    a.add_instruction(Instruction::with2(Code::Sbb_r32_rm32, high, clock.high)?)?;
    a.jne(far)
}

/// Reads the time stamp counter into eax and edx. Overwrites the flags if the time is rounded
/// to steps.
pub(super) fn read(a: &mut CodeAssembler, clock: ClockReading) -> Result<(), IcedError> {
    if clock.ordered {
        a.lfence()?;
    }
    a.rdtsc()?;
    if let Some((factor, shift, step)) = clock.in_steps() {
        a.imul_3(rax, rax, factor as i32)?;
        a.shr(rax, u32::from(shift))?;
        a.imul_3(eax, eax, step as i32)?;
    }
    Ok(())
}

/// Reads the clock, and adds the stack's bits, initially in `key`, to the upper part of the time.
/// The result is in rax; rdx and `key` are overwritten.
fn moved_time(
    a: &mut CodeAssembler,
    registers: &Frame,
    runtime: &Runtime,
) -> Result<(), IcedError> {
    let upper = registers.key.full_register32();
    let by = frame::TIME_SHIFT - 32;
    a.add_instruction(Instruction::with2(Code::Shl_rm32_imm8, upper, by)?)?;
    read(a, runtime.clock)?;
    a.add_instruction(Instruction::with2(
        Code::Add_r32_rm32,
        Register::EDX,
        upper,
    )?)?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)
}

/// Loads the expected owner of the call's slot into rax. Returns the end of the instruction whose
/// last four bytes are [`above_pointer`].
fn owner(a: &mut CodeAssembler, registers: &Frame, call: u32) -> Result<CodeLabel, IcedError> {
    let above = u64::from(above_pointer(call)) << 32;
    let load = Instruction::with2(Code::Mov_r64_imm64, Register::RAX, above)?;
    a.add_instruction(load)?;
    let value = mark(a)?;
    let sum = above_site(registers, Register::RAX);
    a.add_instruction(Instruction::with2(Code::Lea_r64_m, Register::RAX, sum)?)?;
    Ok(value)
}

/// Loads the address of the slot for the site's stack pointer into `place`, and the stack
/// pointer without its lowest bits, up to the tag, into `key`. Overwrites rax.
///
/// The stack pointer is a multiple of the grain, so the slot's number is computed as a multiple of
/// it, too, which needs no shift; then it is scaled to the size of a slot.
fn slot(
    a: &mut CodeAssembler,
    registers: &Frame,
    frames: &Frames,
    call: u32,
) -> Result<(), IcedError> {
    let (place, upper) = (registers.place, registers.key);
    let (place32, upper32) = (place.full_register32(), upper.full_register32());
    registers.stack_pointer(a, upper, 0)?;
    let by = frame::TAG_SHIFT;
    a.add_instruction(Instruction::with2(Code::Shr_rm64_imm8, upper, by)?)?;
    let spread = frame::SPREAD.wrapping_shl(frame::GRAIN_SHIFT) as i32;
    a.add_instruction(Instruction::with3(
        Code::Imul_r32_rm32_imm32,
        place32,
        upper32,
        spread,
    )?)?;
    let sum = above_site(registers, place);
    a.add_instruction(Instruction::with2(Code::Lea_r32_m, place32, sum)?)?;
    let mask = ((frames.slots - 1) << frame::GRAIN_SHIFT) as i32;
    a.add_instruction(Instruction::with2(Code::And_rm32_imm32, place32, mask)?)?;
    let larger = frames.size.ilog2() - frame::GRAIN_SHIFT;
    let scale = larger.min(MOST_SCALE);
    if larger > scale {
        a.add_instruction(Instruction::with2(
            Code::Shl_rm64_imm8,
            place,
            larger - scale,
        )?)?;
    }
    let first = frames.address + u64::from(area(call)) * frames.area();
    let base = Instruction::with2(Code::Mov_r64_imm64, Register::RAX, first)?;
    a.add_instruction(base)?;
    let sum = MemoryOperand::with_base_index_scale(Register::RAX, place, 1 << scale);
    a.add_instruction(Instruction::with2(Code::Lea_r64_m, place, sum)?)
}

/// Returns the operand `register` bytes above the site's stack pointer.
fn above_site(registers: &Frame, register: Register) -> MemoryOperand {
    let red_zone = if registers.red_zone { RED_ZONE } else { 0 };
    let displacement = i64::from(red_zone);
    let size = if registers.red_zone { 8 } else { 0 };
    MemoryOperand::new(
        Register::RSP,
        register,
        1,
        displacement,
        size,
        false,
        Register::None,
    )
}
