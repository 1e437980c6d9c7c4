//! The code that adds one to a counter.
//!
//! ```text
//!         lea  descriptor(%rip), %r
//!         mov  %r, %fs:rseq_cs
//!  start  mov  %fs:cpu_id, %r
//!         cmp  $cpus, %r                no such CPU: the thread is not registered
//!         jae  abort
//!         imul $stride, %r
//!         add  counters(%rip), %r       a word in shared code
//!         addq $1, counter(%r)          the commit
//! ```
//!
//! To the kernel, an instruction is either complete or not started. So an abort means that
//! nothing has been added yet, and the addition made after the abort happens exactly once.

use super::emit::{
    Cold, Labels, Links, Part, RSEQ_CPU_ID, RSEQ_CS, RSEQ_SIGNATURE, Sequence, SequenceLabels, at,
    copy_bytes, from_detour, fs, go, into_shared, mark, near,
};
use super::frame::Frame;
use crate::runtime::Runtime;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

/// Emits the way out of the hot path, 9 bytes.
pub(super) fn cold(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    links: &Links,
) -> Result<Cold, IcedError> {
    a.dd(&[RSEQ_SIGNATURE])?;
    let abort = mark(a)?;
    let after_abort = into_shared(a, runtime, frame.pointer, links.shared.aborted)?;
    Ok(Cold {
        way_out: abort,
        abort,
        after_abort: Some(after_abort),
        other: None,
    })
}

/// Emits the restartable sequence.
pub(super) fn hot(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    rseq: i32,
    counter: u32,
    links: &Links,
    cold: Cold,
) -> Result<Labels, IcedError> {
    let r = frame.pointer;
    let begin = mark(a)?;
    let counters = own_counters(a, r, runtime, rseq, links, cold.way_out)?;
    // Always uses a 32-bit displacement.
    let offset = i64::from(runtime.counters.offset(counter));
    let to = MemoryOperand::new(r, Register::None, 1, offset, 8, false, Register::None);
    a.add_instruction(Instruction::with2(Code::Add_rm64_imm8, to, 1)?)?;
    let done = mark(a)?;
    Ok(Labels {
        sequence: Some(counters.sequence(cold.abort, cold.after_abort)),
        ..Labels::new(begin, done, (done, 5))
    })
}

/// Labels at the start of a restartable sequence. `descriptor` and `base` mark the end of a rel32.
pub(super) struct OwnCounters {
    descriptor: CodeLabel,
    start: CodeLabel,
    base: CodeLabel,
}

impl OwnCounters {
    /// Returns the labels of the whole sequence, with the label where it continues after an abort.
    pub fn sequence(self, abort: CodeLabel, after_abort: Option<CodeLabel>) -> SequenceLabels {
        SequenceLabels {
            start: self.start,
            abort,
            after_abort,
            descriptor: self.descriptor,
            other: self.base,
            streams: None,
            commit: None,
        }
    }
}

/// Begins a restartable sequence, and loads the address of this CPU's counters into `r`. A thread
/// without a valid CPU number goes to `out`.
pub(super) fn own_counters(
    a: &mut CodeAssembler,
    r: Register,
    runtime: &Runtime,
    rseq: i32,
    links: &Links,
    out: CodeLabel,
) -> Result<OwnCounters, IcedError> {
    let r32 = r.full_register32();
    let lea = Instruction::with2(Code::Lea_r64_m, r, near(links.descriptor))?;
    a.add_instruction(lea)?;
    let descriptor = mark(a)?;
    let to = fs(rseq + RSEQ_CS);
    a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, to, r)?)?;
    let start = mark(a)?;
    let cpu = fs(rseq + RSEQ_CPU_ID);
    a.add_instruction(Instruction::with2(Code::Mov_r32_rm32, r32, cpu)?)?;
    let cpus = runtime.counters.cpus as i32;
    let compare = match i8::try_from(cpus) {
        Ok(_) => Code::Cmp_rm32_imm8,
        Err(_) => Code::Cmp_rm32_imm32,
    };
    a.add_instruction(Instruction::with2(compare, r32, cpus)?)?;
    a.jae(out)?;
    let stride = runtime.counters.stride as i32;
    let multiply = match i8::try_from(stride) {
        Ok(_) => Code::Imul_r64_rm64_imm8,
        Err(_) => Code::Imul_r64_rm64_imm32,
    };
    a.add_instruction(Instruction::with3(multiply, r, r, stride)?)?;
    let other = near(links.shared.other);
    a.add_instruction(Instruction::with2(Code::Add_r64_rm64, r, other)?)?;
    let base = mark(a)?;
    Ok(OwnCounters {
        descriptor,
        start,
        base,
    })
}

/// Emits the code that detours share: the addition with a `lock` prefix, on the shared counters,
/// whose address is the word at `base`. Detours enter it from [`cold`], with the stack pointer of
/// the hot path, and it returns by a jump.
pub(super) fn shared(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    part: &Part,
    sequence: &Sequence,
    base: u64,
) -> Result<(CodeLabel, Option<CodeLabel>), IcedError> {
    let r = frame.pointer;
    let site = sequence.after_abort();
    let aborted = mark(a)?;
    from_detour(a, runtime, r)?;
    let saved = at(Register::RSP, 0);
    a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, r, saved)?)?;
    let (other, low) = match r {
        Register::RAX => (Register::RCX, cl),
        _ => (Register::RAX, al),
    };
    // Below are what the hot path has saved, and a word for the value.
    Frame::move_stack(a, -8 - frame.size())?;
    a.add_instruction(Instruction::with1(Code::Push_r64, other)?)?;
    copy_bytes(a, (r, part.value as i64 - site as i64), 8, 4, low)?;
    let there = at(Register::RSP, 8);
    let load = Instruction::with2(Code::Mov_r32_rm32, r.full_register32(), there)?;
    a.add_instruction(load)?;
    a.add_instruction(Instruction::with1(Code::Pop_r64, other)?)?;
    Frame::move_stack(a, 8 + frame.size())?;
    a.add_instruction(Instruction::with2(Code::Add_r64_rm64, r, near(base))?)?;
    lock_add(a, r)?;
    a.add_instruction(Instruction::with1(Code::Pop_r64, r)?)?;
    go(a, r, site, part.done)?;
    Ok((aborted, None))
}

/// Emits the whole work without restartable sequences.
pub(super) fn locked(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    counter: u32,
) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    let counters = &runtime.counters;
    let address = counters.shared() + u64::from(counters.offset(counter));
    let load = Instruction::with2(Code::Mov_r64_imm64, frame.pointer, address)?;
    a.add_instruction(load)?;
    let value = (mark(a)?, 8);
    lock_add(a, frame.pointer)?;
    let done = mark(a)?;
    Ok(Labels::new(begin, done, value))
}

/// Emits `lock addq $1, (pointer)`.
fn lock_add(a: &mut CodeAssembler, pointer: Register) -> Result<(), IcedError> {
    let mut add = Instruction::with2(Code::Add_rm64_imm8, at(pointer, 0), 1)?;
    add.set_has_lock_prefix(true);
    a.add_instruction(add)
}
