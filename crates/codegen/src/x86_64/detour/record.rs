//! The code that records an event.

use super::emit::{
    Cold, Labels, Links, Part, Patch, RSEQ_CPU_ID, RSEQ_CS, RSEQ_SIGNATURE, Sequence,
    SequenceLabels, advance, at, bind, copy_bytes, from_detour, fs, go, into_shared, mark, near,
};
use super::frame::Frame;
use super::{timing, word};
use crate::runtime::Runtime;
use crate::work::{Record, Word};
use capriole_ring::layout::{MAX_STRAIGHT, UNIT, record, stream};
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

/// Emits the ways out of the hot path: 5 bytes for a full packet, 9 for an abort. At both, rax
/// is saved, if it is live, and holds nothing that is still needed.
pub(super) fn cold(
    a: &mut CodeAssembler,
    runtime: &Runtime,
    links: &Links,
) -> Result<Cold, IcedError> {
    let way_out = mark(a)?;
    let other = into_shared(a, runtime, Register::RAX, links.shared.other)?;
    a.dd(&[RSEQ_SIGNATURE])?;
    let abort = mark(a)?;
    let after_abort = into_shared(a, runtime, Register::RAX, links.shared.aborted)?;
    Ok(Cold {
        way_out,
        abort,
        after_abort: Some(after_abort),
        other: Some(other),
    })
}

/// Returns the record's size in bytes.
fn record_size(work: &Record) -> i64 {
    (record::FIELDS + 8 * work.fields.len()) as i64
}

/// Emits the restartable sequence.
pub(super) fn hot(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    rseq: i32,
    work: &Record,
    links: &Links,
    cold: Cold,
) -> Result<Labels, IcedError> {
    use Register as R;
    let (stream, place) = (frame.pointer, frame.place);
    let place32 = place.full_register32();
    let load = |to, from| Instruction::with2(Code::Mov_r64_rm64, to, from);
    let store = |to, from| Instruction::with2(Code::Mov_rm64_r64, to, from);
    let store32 = |to, from| Instruction::with2(Code::Mov_rm32_r32, to, from);
    let lea = |to, from| Instruction::with2(Code::Lea_r64_m, to, from);
    let size = record_size(work);
    assert!(size as usize <= MAX_STRAIGHT, "a record of {size} bytes");

    let begin = mark(a)?;
    a.add_instruction(lea(R::RAX, near(links.descriptor))?)?;
    let descriptor = mark(a)?;
    a.add_instruction(store(fs(rseq + RSEQ_CS), R::RAX)?)?;
    let start = mark(a)?;
    // -1 or -2 for an unregistered thread: the streams with these numbers have no space.
    let cpu = fs(rseq + RSEQ_CPU_ID);
    a.add_instruction(Instruction::with2(Code::Movsxd_r64_rm32, stream, cpu)?)?;
    let shift = stream::SIZE.ilog2();
    a.add_instruction(Instruction::with2(Code::Shl_rm64_imm8, stream, shift)?)?;
    let first = near(links.shared.streams);
    a.add_instruction(Instruction::with2(Code::Add_r64_rm64, stream, first)?)?;
    let streams = mark(a)?;
    timing::read(a, runtime.clock)?;
    // Whatever the head contains, `place` is then at most the limit, and it is the end of the
    // record.
    let pos = at(stream, stream::HEAD as i64);
    let end = at(stream, stream::HEAD as i64 + 4);
    a.add_instruction(Instruction::with2(Code::Mov_r32_rm32, place32, pos)?)?;
    let units = (size / UNIT as i64) as i32;
    let add = match i8::try_from(units) {
        Ok(_) => Code::Add_rm32_imm8,
        Err(_) => Code::Add_rm32_imm32,
    };
    a.add_instruction(Instruction::with2(add, place32, units)?)?;
    a.add_instruction(Instruction::with2(Code::Cmp_r32_rm32, place32, end)?)?;
    a.ja(cold.way_out)?;
    let limit = Instruction::with2(Code::Cmp_rm32_imm32, place32, runtime.limit)?;
    a.add_instruction(limit)?;
    a.ja(cold.way_out)?;
    // Offsets are relative to the end of the record.
    let part = |offset: usize| {
        let by = offset as i64 - size;
        MemoryOperand::new(stream, place, UNIT as u32, by, 1, false, R::None)
    };
    a.add_instruction(store32(part(record::TIME), R::EAX)?)?;
    a.add_instruction(store32(part(record::TIME + 4), R::EDX)?)?;
    let mut more = Vec::new();
    for (index, word) in work.fields.iter().enumerate() {
        let to = part(record::FIELDS + 8 * index);
        let field = match word {
            Word::Register(register) => *register,
            Word::Constant(value) => {
                match word::short(*value) {
                    Some(short) => {
                        let mov = Instruction::with2(Code::Mov_rm64_imm32, to, short)?;
                        a.add_instruction(mov)?;
                        more.push((mark(a)?, Patch::Short(index)));
                    }
                    None => {
                        more.push(word::load(a, R::RAX, *value, index)?);
                        a.add_instruction(store(to, R::RAX)?)?;
                    }
                }
                continue;
            }
        };
        match frame.slot(field) {
            None if field == R::RSP => {
                frame.stack_pointer(a, R::RAX, 0)?;
                a.add_instruction(store(to, R::RAX)?)?;
            }
            Some(saved) => {
                a.add_instruction(load(R::RAX, at(R::RSP, saved))?)?;
                a.add_instruction(store(to, R::RAX)?)?;
            }
            None if field.is_xmm() => {
                a.add_instruction(Instruction::with2(Code::Movq_xmmm64_xmm, to, field)?)?;
            }
            None => a.add_instruction(store(to, field)?)?,
        }
    }
    let id = part(record::ID);
    a.add_instruction(Instruction::with2(Code::Mov_rm32_imm32, id, work.event)?)?;
    let value = (mark(a)?, 4);
    match runtime.tid_offset {
        Some(offset) => {
            let tid = fs(offset);
            a.add_instruction(Instruction::with2(Code::Mov_r32_rm32, R::EAX, tid)?)?;
        }
        None => a.xor(eax, eax)?,
    }
    a.add_instruction(store32(part(record::TID), R::EAX)?)?;
    // The end of this record becomes the position of the next one.
    let commit = mark(a)?;
    a.add_instruction(store32(pos, place32)?)?;
    let done = mark(a)?;
    Ok(Labels {
        more,
        sequence: Some(SequenceLabels {
            start,
            abort: cold.abort,
            after_abort: cold.after_abort,
            descriptor,
            other: cold.other.unwrap_or(done),
            streams: Some(streams),
            commit: Some(commit),
        }),
        ..Labels::new(begin, done, value)
    })
}

/// Emits the code that detours share: where they continue when their packet is full, and after
/// an abort. Detours enter it from [`cold`], with the stack pointer of the hot path, and it
/// returns by a jump. Returns the labels for [`super::emit::Shared`].
pub(super) fn shared(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    work: &Record,
    part: &Part,
    sequence: &Sequence,
) -> Result<(CodeLabel, Option<CodeLabel>), IcedError> {
    // The return addresses that the two calls push.
    let (full_site, abort_site) = (sequence.other + 4, sequence.after_abort());
    let mut again = a.create_label();
    let mut locked = a.create_label();

    let full = mark(a)?;
    from_detour(a, runtime, Register::RAX)?;
    Frame::move_stack(a, 8 - frame.size())?;
    let units = record_size(work) / UNIT as i64;
    a.add_instruction(Instruction::with1(Code::Pushq_imm32, units as i32)?)?;
    a.call(runtime.switch)?;
    a.pop(rax)?; // 0: lost, 1: try again, 2: go the locked way
    Frame::move_stack(a, frame.size() - 8)?;
    a.cmp(eax, 1)?;
    a.pop(rax)?; // the site
    a.je(again)?;
    a.ja(locked)?;
    go(a, Register::RAX, full_site, part.done)?;
    bind(a, &mut again)?;
    go(a, Register::RAX, full_site, part.begin)?;

    let aborted = mark(a)?;
    from_detour(a, runtime, Register::RAX)?;
    a.pop(rax)?;
    advance(a, Register::RAX, abort_site, full_site)?;
    bind(a, &mut locked)?;
    Frame::move_stack(a, -frame.size())?;
    a.push(rax)?;
    let below = frame.size() + 8;
    let in_detour = |offset: usize| (Register::RAX, offset as i64 - full_site as i64);
    let constant = |a: &mut CodeAssembler, field: usize, _| {
        // Other detours of this form have other constants: read the value from the instruction.
        let Some((offset, patch)) = part.constant(field) else {
            unreachable!("every constant is in the hot path");
        };
        Frame::move_stack(a, -8)?;
        a.push(rcx)?;
        let there = at(Register::RSP, 8);
        copy_bytes(a, in_detour(offset), 8, patch.size() as i64, cl)?;
        if let Patch::Short(_) = patch {
            let load = Instruction::with2(Code::Movsxd_r64_rm32, Register::RCX, there)?;
            a.add_instruction(load)?;
            let store = Instruction::with2(Code::Mov_rm64_r64, there, Register::RCX)?;
            a.add_instruction(store)?;
        }
        a.pop(rcx)
    };
    frame.record_locked(
        a,
        &work.fields,
        below,
        runtime.locked,
        constant,
        |a, bytes| {
            Frame::move_stack(a, -8)?;
            a.push(rcx)?;
            copy_bytes(a, in_detour(part.value), 8, 4, cl)?;
            a.pop(rcx)?;
            let high = at(Register::RSP, 4);
            a.add_instruction(Instruction::with2(Code::Mov_rm32_imm32, high, bytes)?)
        },
    )?;
    a.pop(rax)?;
    Frame::move_stack(a, frame.size())?;
    go(a, Register::RAX, full_site, part.done)?;
    Ok((aborted, Some(full)))
}

/// Emits the whole work without restartable sequences.
pub(super) fn locked(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    work: &Record,
) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    let below = frame.size();
    Frame::move_stack(a, -below)?;
    let mut value = begin;
    let mut more = Vec::new();
    // A field in rax is always saved, so rax is free.
    let constant = |a: &mut CodeAssembler, field: usize, value: u64| {
        if let Some(short) = word::short(value) {
            a.add_instruction(Instruction::with1(Code::Pushq_imm32, short)?)?;
            more.push((mark(a)?, Patch::Short(field)));
            return Ok(());
        }
        more.push(word::load(a, Register::RAX, value, field)?);
        a.push(rax)
    };
    let called = frame.record_locked(
        a,
        &work.fields,
        below,
        runtime.locked,
        constant,
        |a, bytes| {
            let header = u64::from(bytes) << 32 | u64::from(work.event);
            let header = Instruction::with2(Code::Mov_r64_imm64, Register::RAX, header)?;
            a.add_instruction(header)?;
            value = mark(a)?;
            a.push(rax)
        },
    )?;
    Frame::move_stack(a, below)?;
    let done = mark(a)?;
    Ok(Labels {
        locked: Some(called),
        more,
        ..Labels::new(begin, done, (value, 8))
    })
}
