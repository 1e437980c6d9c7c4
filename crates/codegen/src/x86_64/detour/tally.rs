//! The code that adds to a cell of a table.
//!
//! ```text
//!         amount, key                   registers, as wide as they are meant, or constants
//!         hash; look at the four rows of the key's home
//!         none with this key and event: out
//!         lea  descriptor(%rip), %r
//!         mov  %r, %fs:rseq_cs
//!  start  mov  %fs:cpu_id, %r
//!         cmp  $cpus, %r                no such CPU: the thread is not registered
//!         jae  out
//!         imul $stride, %r
//!         add  counters(%rip), %r
//!         add  %row, %r
//!         add  %amount, cell(%r)        the commit
//! ```
//!
//! The path *out*, also taken after an abort, restores the registers and has the resident run a
//! program that does the same: it assigns a row to a new key, searches beyond the key's home,
//! and adds to the shared copy if nothing else is possible. To the kernel, an instruction is
//! either complete or not started, so nothing is added twice.
//!
//! **Durations** change four cells in one sequence, all by the same time:
//!
//! ```text
//!         neg  %state                   1 before: now -1, and the carry flag is set
//!         add  %time, sum(%r)           clears the carry flag: sums do not reach 2^64
//!         lea  -1(%state), %state       leaves the flags
//!         largest, largest complement   the same if done twice
//!         add  $1, bucket(%r, %index)   the commit
//!
//!  abort  %state not negative, or -1 with carry: out
//!         the rest again, on the shared copy
//! ```
//!
//! An interrupted thread continues at *abort* with its registers and flags. So it is known whether
//! the sum was changed: if not, out, where the time is read again; else only the rest is missing.
//! It is added to the shared copy, as the thread may be on another CPU.
//!
//! The row is looked up outside the restartable sequence: assigned rows are never moved or
//! taken back. A row's tag is written after its key, so a key is certainly the row's if it is
//! read after the tag (reading it before only finds the row).

use super::count::own_counters;
use super::emit::{Labels, Links, Patch, RSEQ_SIGNATURE, at, bind, fs, mark};
use super::frame::Frame;
use super::run::Apart;
use super::{run, timing, word};
use crate::fetch::TIMES_CELLS;
use crate::histogram;
use crate::runtime::Runtime;
use crate::work::{Function, Key, Straight, StraightAmount, StraightRow, Value};
use capriole_ring::layout::directory;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

/// Size in bytes of a directory row with a one-word key.
const ROW: u32 = 16;

impl Straight {
    /// True if straight code is possible: everything that it needs is known.
    pub(super) fn is_possible(&self, runtime: &Runtime) -> bool {
        let asks = self.row.is_some_and(|row| row.key == Key::Thread);
        let timed = !self.is_timed() || runtime.frames.slots > 0;
        runtime.rseq_offset.is_some() && (!asks || runtime.tid_offset.is_some()) && timed
    }

    /// Appends everything that distinguishes forms, as bytes: not the event, the cell, or the
    /// function being left.
    pub(super) fn key(&self, key: &mut Vec<u8>) {
        use std::io::Write;
        let amount = match self.amount {
            StraightAmount::Of(function, Value::Latency(call), width) => {
                StraightAmount::Of(function, Value::Latency(timing::area(call)), width)
            }
            other => other,
        };
        let _ = write!(key, "{:?}{amount:?}", self.row); // a vector takes everything
    }
}

/// Labels of the code before the hot path.
pub(super) struct Before {
    /// The word with the address of the directory's first row.
    directory: CodeLabel,
    /// The way out of the hot path.
    pub way: Apart,
    /// Label at which the sequence continues after an abort.
    abort: CodeLabel,
    /// End of the instruction there that has the cell's offset, if there is one.
    shared: Option<CodeLabel>,
}

/// Position of the sum among the cells before the buckets of durations.
const SUM: i64 = 0;
/// Position of the largest time, and of the largest complement, in the order in which they are
/// changed.
const EXTREMES: [i64; 2] = [1, LEAST];
/// Position of the largest complement.
const LEAST: i64 = 2;
/// State of a sequence for durations when the sum has been changed.
const CHANGED: i32 = -2;

/// Returns the operand that is one of the cells before the first bucket, whose address is in `r`.
fn kept(r: Register, index: i64) -> MemoryOperand {
    at(r, 8 * (index - i64::from(TIMES_CELLS)))
}

/// Returns the register that says how far a sequence for durations has come: it is free once the
/// time is known. Its highest bit is 0 until then.
fn state(frame: &Frame) -> Register {
    match frame.pointer {
        Register::RDX => Register::RCX,
        _ => Register::RDX,
    }
}

/// Emits the code that continues after an abort of a sequence for durations.
fn aborted(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    work: &Straight,
    way: &Apart,
) -> Result<(CodeLabel, CodeLabel), IcedError> {
    let (r, state) = (frame.pointer, state(frame));
    a.dd(&[RSEQ_SIGNATURE])?;
    let abort = mark(a)?;
    let (mut carry, mut changed) = (a.create_label(), a.create_label());
    a.jb(carry)?;
    a.add_instruction(Instruction::with2(Code::Test_rm64_r64, state, state)?)?;
    a.jns(way.out)?;
    a.jmp(changed)?;
    bind(a, &mut carry)?;
    a.add_instruction(Instruction::with2(Code::Cmp_rm64_imm8, state, CHANGED)?)?;
    a.jne(way.out)?;
    bind(a, &mut changed)?;
    let shared = runtime.counters.shared();
    a.add_instruction(Instruction::with2(Code::Mov_r64_imm64, r, shared)?)?;
    if work.is_keyed() {
        a.add_instruction(Instruction::with2(Code::Add_r64_rm64, r, frame.place)?)?;
    }
    let offset = i64::from(runtime.counters.offset(work.counter));
    let first = MemoryOperand::new(r, Register::None, 1, offset, 8, false, Register::None);
    a.add_instruction(Instruction::with2(Code::Lea_r64_m, r, first)?)?;
    let end = mark(a)?;
    let bucket = MemoryOperand::new(r, frame.amount, 8, 0, 0, false, Register::None);
    let mut add = Instruction::with2(Code::Add_rm64_imm8, bucket, 1)?;
    add.set_has_lock_prefix(true);
    a.add_instruction(add)?;
    // It may have been inverted already: a time has at most 32 bits.
    let (time, mut upright) = (frame.key, a.create_label());
    a.add_instruction(Instruction::with2(Code::Test_rm64_r64, time, time)?)?;
    a.jns(upright)?;
    a.add_instruction(Instruction::with1(Code::Not_rm64, time)?)?;
    bind(a, &mut upright)?;
    for index in EXTREMES {
        a.add_instruction(Instruction::with2(
            Code::Mov_r64_rm64,
            Register::RAX,
            kept(r, index),
        )?)?;
        if index == LEAST {
            a.add_instruction(Instruction::with1(Code::Not_rm64, time)?)?;
        }
        let (again, mut greater) = (mark(a)?, a.create_label());
        a.add_instruction(Instruction::with2(Code::Cmp_r64_rm64, time, Register::RAX)?)?;
        a.jbe(greater)?;
        let mut exchange = Instruction::with2(Code::Cmpxchg_rm64_r64, kept(r, index), time)?;
        exchange.set_has_lock_prefix(true);
        a.add_instruction(exchange)?;
        a.jne(again)?;
        bind(a, &mut greater)?;
    }
    a.jmp(way.done)?;
    Ok((abort, end))
}

/// The words with the address of the program, and of the directory if there is a row.
pub(super) struct Words {
    program: CodeLabel,
    directory: CodeLabel,
}

/// Emits the words.
pub(super) fn words(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    work: &Straight,
    program: u64,
) -> Result<Words, IcedError> {
    let program = run::literal(a, frame, program)?;
    let directory = mark(a)?;
    if let Some(row) = work.row {
        a.dq(&[runtime.directories + row.directory + directory::HEAD as u64])?;
    }
    Ok(Words { program, directory })
}

/// Emits the code before the hot path.
pub(super) fn before(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    work: &Straight,
    words: Words,
) -> Result<Before, IcedError> {
    let Words { program, directory } = words;
    let times = matches!(work.amount, StraightAmount::Of(Function::Times, ..));
    if !times {
        a.dd(&[RSEQ_SIGNATURE])?;
    }
    let way = run::apart(a, frame, runtime, work.event, program)?;
    let (abort, shared) = match times {
        true => {
            let (abort, shared) = aborted(a, frame, runtime, work, &way)?;
            (abort, Some(shared))
        }
        false => (way.out, None),
    };
    Ok(Before {
        directory,
        way,
        abort,
        shared,
    })
}

/// Emits the hot path.
pub(super) fn hot(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    rseq: i32,
    work: &Straight,
    links: &Links,
    before: Before,
) -> Result<Labels, IcedError> {
    let r = frame.pointer;
    let begin = mark(a)?;
    let mut tags = Vec::new();
    // Set these up while the clock is being read, if there is a register for them.
    let mut counters = None;
    if let StraightAmount::Of(function, value, width) = work.amount {
        match value {
            Value::Register(register) => {
                word::load_register(a, frame, frame.amount, register, width)?
            }
            Value::Constant(value) => load_constant(a, frame.amount, value)?,
            Value::Latency(call) => {
                let out = before.way.out;
                let clock = timing::clock(a, frame, runtime, call, out, &mut tags)?;
                if frame.pointer == frame.place {
                    counters = Some(own_counters(a, r, runtime, rseq, links, out)?);
                }
                timing::since(a, clock, out)?;
                if frame.amount != Register::RAX {
                    let load = Instruction::with2(Code::Mov_r64_rm64, frame.amount, Register::RAX)?;
                    a.add_instruction(load)?;
                }
            }
        }
        match function {
            Function::Sum => {}
            Function::Maximum(flip) => turn_over(a, frame.amount, flip)?,
            // It comes after the lookup of the row, which needs the register for the copy.
            Function::Times => {}
            Function::Bucket => {
                let timed = matches!(value, Value::Latency(_));
                let narrow = timed || width.bytes < 8 && !width.signed;
                bucket(a, frame.amount, width.signed, narrow)?;
            }
        }
    }
    if let Some(row) = &work.row {
        match row.key {
            Key::Register(register) => {
                word::load_register(a, frame, frame.key, register, row.width)?
            }
            Key::Constant(value) => load_constant(a, frame.key, value)?,
            Key::Thread => {
                let tid = fs(runtime.tid_offset.unwrap_or(0)); // it was checked
                let key = frame.key.full_register32();
                a.add_instruction(Instruction::with2(Code::Mov_r32_rm32, key, tid)?)?;
            }
        }
        let tag = work.event.wrapping_add(directory::FIRST_TAG) as i32;
        find(a, frame, row, tag, &before, &mut tags)?;
    }

    if matches!(work.amount, StraightAmount::Of(Function::Times, ..)) {
        let (time, state) = (frame.key, state(frame).full_register32());
        a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, time, frame.amount)?)?;
        bucket(a, frame.amount, false, true)?;
        a.add_instruction(Instruction::with2(Code::Mov_r32_imm32, state, 1)?)?;
    }
    let counters = match counters {
        Some(counters) => counters,
        None => own_counters(a, r, runtime, rseq, links, before.way.out)?,
    };
    if work.row.is_some() {
        a.add_instruction(Instruction::with2(Code::Add_r64_rm64, r, frame.place)?)?;
    }
    // Always uses a 32-bit displacement.
    let offset = i64::from(runtime.counters.offset(work.counter));
    let cell = |index, scale| MemoryOperand::new(r, index, scale, offset, 8, false, Register::None);
    let mut done = before.way.done;
    if let Some(shared) = before.shared {
        tags.push((shared, Patch::Counter));
    }
    let value = match work.amount {
        StraightAmount::Of(Function::Times, ..) => {
            let first = cell(Register::None, 1);
            a.add_instruction(Instruction::with2(Code::Lea_r64_m, r, first)?)?;
            let value = (mark(a)?, 4);
            self::times(a, r, frame.key, state(frame))?;
            let to = MemoryOperand::new(r, frame.amount, 8, 0, 0, false, Register::None);
            a.add_instruction(Instruction::with2(Code::Add_rm64_imm8, to, 1)?)?;
            value
        }
        StraightAmount::One | StraightAmount::Of(Function::Bucket, ..) => {
            let (index, scale) = match work.has_amount() {
                true => (frame.amount, 8),
                false => (Register::None, 1),
            };
            let to = cell(index, scale);
            a.add_instruction(Instruction::with2(Code::Add_rm64_imm8, to, 1)?)?;
            (mark(a)?, 5)
        }
        StraightAmount::Of(Function::Sum, ..) => {
            let to = cell(Register::None, 1);
            a.add_instruction(Instruction::with2(Code::Add_rm64_r64, to, frame.amount)?)?;
            (mark(a)?, 4)
        }
        StraightAmount::Of(Function::Maximum(_), ..) => {
            let old = cell(Register::None, 1);
            a.add_instruction(Instruction::with2(Code::Cmp_r64_rm64, frame.amount, old)?)?;
            tags.push((mark(a)?, Patch::Counter));
            a.jbe(done)?;
            a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, old, frame.amount)?)?;
            (mark(a)?, 4)
        }
    };
    bind(a, &mut done)?;
    tags.push((before.way.event, Patch::Event));
    Ok(Labels {
        sequence: Some(counters.sequence(before.abort, None)),
        locked: before.way.called,
        more: tags,
        ..Labels::new(begin, done, value)
    })
}

/// Emits the changes to the three cells before those at `r`, which has the address of the first
/// bucket. Overwrites `time` and `state`, which is 1.
fn times(
    a: &mut CodeAssembler,
    r: Register,
    time: Register,
    state: Register,
) -> Result<(), IcedError> {
    a.add_instruction(Instruction::with1(Code::Neg_rm64, state)?)?;
    a.add_instruction(Instruction::with2(Code::Add_rm64_r64, kept(r, SUM), time)?)?;
    a.add_instruction(Instruction::with2(Code::Lea_r64_m, state, at(state, -1))?)?;
    for index in EXTREMES {
        if index == LEAST {
            a.add_instruction(Instruction::with1(Code::Not_rm64, time)?)?;
        }
        let mut kept_already = a.create_label();
        a.add_instruction(Instruction::with2(
            Code::Cmp_r64_rm64,
            time,
            kept(r, index),
        )?)?;
        a.jbe(kept_already)?;
        a.add_instruction(Instruction::with2(
            Code::Mov_rm64_r64,
            kept(r, index),
            time,
        )?)?;
        bind(a, &mut kept_already)?;
    }
    Ok(())
}

/// Looks up the row, and leaves the offset of its cells in `frame.place`.
fn find(
    a: &mut CodeAssembler,
    frame: &Frame,
    row: &StraightRow,
    tag: i32,
    before: &Before,
    tags: &mut Vec<(CodeLabel, Patch)>,
) -> Result<(), IcedError> {
    let (key, h) = (frame.key, frame.place);
    let (key32, h32) = (key.full_register32(), h.full_register32());
    let gpr = |register| get_gpr64(register).unwrap_or(rax); // they are
    if row.width.bytes == 8 || row.width.signed {
        a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, h, key)?)?;
        a.add_instruction(Instruction::with2(Code::Shr_rm64_imm8, h, 32)?)?;
        let rotate = directory::HASH_ROTATE;
        a.add_instruction(Instruction::with2(Code::Rol_rm32_imm8, h32, rotate)?)?;
        a.add_instruction(Instruction::with2(Code::Xor_r32_rm32, h32, key32)?)?;
    } else {
        a.add_instruction(Instruction::with2(Code::Mov_r32_rm32, h32, key32)?)?;
    }
    a.add_instruction(Instruction::with2(Code::Xor_rm32_imm32, h32, tag)?)?;
    tags.push((mark(a)?, Patch::Tag));
    let factor = directory::HASH_FACTOR as i32;
    a.add_instruction(Instruction::with3(
        Code::Imul_r32_rm32_imm32,
        h32,
        h32,
        factor,
    )?)?;
    a.add_instruction(Instruction::with2(Code::Shr_rm32_imm8, h32, row.shift)?)?;
    let set = (directory::WAYS * ROW).ilog2();
    a.add_instruction(Instruction::with2(Code::Shl_rm64_imm8, h, set)?)?;
    a.add(gpr(h), qword_ptr(before.directory))?;
    let mut found = a.create_label();
    for way in 0..directory::WAYS {
        if way > 0 {
            a.add_instruction(Instruction::with2(Code::Add_rm64_imm8, h, ROW)?)?;
        }
        let there = at(h, directory::KEY as i64);
        a.add_instruction(Instruction::with2(Code::Cmp_r64_rm64, key, there)?)?;
        match way + 1 < directory::WAYS {
            true => a.je(found)?,
            false => a.jne(before.way.out)?,
        }
    }
    bind(a, &mut found)?;
    let there = at(h, directory::TAG as i64);
    a.add_instruction(Instruction::with2(Code::Cmp_rm32_imm32, there, tag)?)?;
    tags.push((mark(a)?, Patch::Tag));
    a.jne(before.way.out)?;
    // A row that was free when its key was compared may have been assigned since: keys of free
    // rows are 0. Now that the row has its tag, its key is final.
    let there = at(h, directory::KEY as i64);
    a.add_instruction(Instruction::with2(Code::Cmp_r64_rm64, key, there)?)?;
    a.jne(before.way.out)?;
    a.sub(gpr(h), qword_ptr(before.directory))?;
    let cells = row.cells * 8;
    if !cells.is_multiple_of(ROW) {
        a.add_instruction(Instruction::with2(Code::Shr_rm64_imm8, h, ROW.ilog2())?)?;
        a.add_instruction(Instruction::with3(
            Code::Imul_r64_rm64_imm32,
            h,
            h,
            cells as i32,
        )?)?;
    } else if cells != ROW {
        let factor = (cells / ROW) as i32;
        a.add_instruction(Instruction::with3(Code::Imul_r64_rm64_imm32, h, h, factor)?)?;
    }
    Ok(())
}

/// Loads a constant. It is part of the form, so nothing is patched.
fn load_constant(a: &mut CodeAssembler, to: Register, value: u64) -> Result<(), IcedError> {
    word::load(a, to, value, 0).map(drop)
}

/// Inverts bits: all, the highest, all but the highest, or none.
fn turn_over(a: &mut CodeAssembler, register: Register, bits: u64) -> Result<(), IcedError> {
    if bits >> 62 & 1 == 1 {
        a.add_instruction(Instruction::with1(Code::Not_rm64, register)?)?;
    }
    if matches!(bits >> 62, 1 | 2) {
        a.add_instruction(Instruction::with2(Code::Btc_rm64_imm8, register, 63)?)?;
    }
    Ok(())
}

/// Replaces a number by the number of its [bucket](histogram). Overwrites rcx. A `narrow` number
/// has at most 32 bits.
fn bucket(
    a: &mut CodeAssembler,
    number: Register,
    signed: bool,
    narrow: bool,
) -> Result<(), IcedError> {
    let number = get_gpr64(number).unwrap_or(rax); // it is one
    let mut done = a.create_label();
    if signed {
        let mut positive = a.create_label();
        a.test(number, number)?;
        a.jns(positive)?;
        a.neg(number)?;
        of_positive(a, number, false)?;
        a.add(number, histogram::BUCKETS as i32)?;
        a.jmp(done)?;
        bind(a, &mut positive)?;
    }
    of_positive(a, number, narrow)?;
    bind(a, &mut done)
}

fn of_positive(
    a: &mut CodeAssembler,
    number: AsmRegister64,
    narrow: bool,
) -> Result<(), IcedError> {
    let bits = histogram::BITS;
    let mut small = a.create_label();
    a.cmp(number, 1 << bits)?;
    a.jb(small)?;
    a.bsr(rcx, number)?;
    if narrow {
        // As below, but with the subtraction moved to the end, so that the shift need not wait for
        // it.
        a.shl(number, bits)?;
        a.shr(number, cl)?;
        let by = (bits << bits) as i32;
        a.lea(number, qword_ptr(number + rcx * (1 << bits) - by))?;
    } else {
        a.sub(ecx, bits as i32)?;
        a.shr(number, cl)?;
        a.lea(number, qword_ptr(number + rcx * (1 << bits)))?;
    }
    bind(a, &mut small)
}
