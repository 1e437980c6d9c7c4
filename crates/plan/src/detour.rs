//! The detour: machine code made for one site and its events.
//!
//! ```text
//!  detour + 0     struct rseq_cs for each event             (32 bytes each)
//!                 cold code: packet full, no restartable sequences
//!  entry          go below the red zone                     if one may be live
//!                 save the scratch registers and the flags  those that are live
//!  retry          rseq_cs of this thread = ours
//!  start          control = heads[cpu]                      abort from here on
//!                 room for the record?                      no: cold
//!                 store the arguments, event id, thread id
//!                 rdtsc; store the time
//!  commit         control.pos = behind the record           the one store
//!                 restore flags, registers, stack
//!  copies         the displaced instructions, relocated
//!                 jmp resume
//! ```
//!
//! There is no call, lock, system call or vector register on the hot path, and no
//! memory is touched but session memory, the thread's own `struct rseq` and thread
//! id, and the stack below the stack pointer.
//!
//! **Restartable.** From *start* to *commit* the kernel restarts nobody: it sends
//! a thread that was preempted, migrated or interrupted by a signal there to the
//! abort address, from where the event goes the locked way. Everything stored
//! before the commit lies behind `control.pos`, in room nobody else looks at, so
//! an aborted attempt leaves nothing. It does not loop, so that a debugger which
//! steps through a detour (every step is an abort) comes out at the other end.
//!
//! **Saved** registers lie below the stack pointer, which is not moved: within 128
//! bytes of it nobody looks (the kernel builds signal frames below the red zone).
//! The flags go through `lahf` and `seto` there, where they are live. Cold code moves
//! the stack pointer below before it pushes or calls.
//!
//! **Order of work.** All that has to be loaded is loaded before `rdtsc`, which
//! takes longer than the loads and during which they complete.
//!
//! **Time order.** The time is read inside the sequence: whoever commits later on
//! this CPU has also read the clock later.

use capriole_insn::liveness::Live;
use capriole_insn::relocate::{RelocateError, relocate};
use capriole_ring::layout::{HEAD_SIZE, control, record};
use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, Code, IcedError, Instruction, MemoryOperand, Register};
use thiserror::Error;

/// What the detours of one arena need to know of the session and the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runtime {
    /// Address of the heads in the target: for each CPU, the control of the packet
    /// being filled; before the first, those for threads without a CPU.
    pub heads: u64,
    /// Offset of `struct rseq` from the thread pointer, if every thread has one there.
    pub rseq_offset: Option<i32>,
    /// Offset of the thread id from the thread pointer, if every thread has it there.
    pub tid_offset: Option<i32>,
    /// Address of the resident's entry for a full packet.
    pub switch: u64,
    /// Address of the resident's entry for recording without restartable sequences.
    pub locked: u64,
}

/// An event to record at a site: its id and the registers that are its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The event's id in the trace.
    pub event: u32,
    /// 64-bit general registers, in the order of the fields.
    pub fields: Vec<Register>,
}

/// What a detour has to do and where it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The events of the site, recorded in this order. Not empty.
    pub records: &'a [Record],
    /// The instructions that the jump displaces; empty for reserved bytes.
    pub displaced: &'a [Instruction],
    /// Where the program goes on.
    pub resume: u64,
    /// Whether the 128 bytes below the stack pointer may hold something live (the
    /// System V ABI's red zone). Not at a function's entry: the caller has just
    /// called, so nothing of it is below.
    pub red_zone: bool,
    /// Registers and flags that may still be read after the site.
    pub live: Live,
}

/// A detour ready to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detour {
    /// The bytes, to be written at the address it was compiled for.
    pub bytes: Vec<u8>,
    /// Where the site has to jump to.
    pub entry: u64,
    /// For each displaced instruction: its address, and the address of its copy.
    pub copies: Vec<(u64, u64)>,
    /// General registers that are saved.
    pub saved: Vec<Register>,
}

/// Why a detour could not be compiled.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum CompileError {
    /// A displaced instruction cannot run at the place the arena offers.
    #[error("{0}")]
    Relocate(#[from] RelocateError),
    /// The encoder refused: an address is out of reach.
    #[error("no encoding: {0}")]
    Encode(String),
}

impl From<IcedError> for CompileError {
    fn from(error: IcedError) -> Self {
        CompileError::Encode(error.to_string())
    }
}

/// Detours start at multiples of this: `struct rseq_cs` has to.
pub const ALIGNMENT: u64 = 32;
const RSEQ_CS_SIZE: usize = 32;
const RSEQ_SIGNATURE: u32 = 0x5305_3053;
/// Offsets in `struct rseq` (linux/rseq.h).
const RSEQ_CPU_ID: i32 = 4;
const RSEQ_CS: i32 = 8;
const RED_ZONE: i32 = 128;

/// The registers a record is written with, beside rax and rdx which `rdtsc` takes,
/// in order of preference: those that the ABI lets a function clobber come first,
/// being most often dead.
const SCRATCH: [Register; 13] = [
    Register::R11,
    Register::R10,
    Register::R9,
    Register::R8,
    Register::RCX,
    Register::RSI,
    Register::RDI,
    Register::RBX,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
    Register::RBP,
];

fn fs(offset: i32) -> MemoryOperand {
    MemoryOperand::new(
        Register::None,
        Register::None,
        1,
        i64::from(offset),
        8, // sign-extended to 64 bits; 4 would mean a 32-bit address
        false,
        Register::FS,
    )
}

fn at(base: Register, offset: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, offset)
}

/// Which registers are used for what at one site.
struct Frame {
    /// Address of the packet's control.
    control: Register,
    /// Address of the record.
    place: Register,
    /// What is saved, from the stack pointer downwards.
    saved: Vec<Register>,
    keep_flags: bool,
    red_zone: bool,
}

impl Frame {
    fn new(request: &Request<'_>) -> Frame {
        let is_field = |r| {
            request
                .records
                .iter()
                .any(|record| record.fields.contains(&r))
        };
        let is_live = |r: Register| request.live.gprs.contains(r);
        let keep_flags = request.live.flags;
        let mut candidates: Vec<Register> = SCRATCH.into_iter().filter(|r| !is_field(*r)).collect();
        candidates.sort_by_key(|r| is_live(*r)); // stable: dead ones first
        let control = candidates[0];
        let place = candidates[1];
        let scratch = [Register::RAX, Register::RDX, control, place];
        // What is a field is saved even if dead: it is read again from there.
        let saved = scratch
            .into_iter()
            .filter(|r| is_live(*r) || is_field(*r))
            .collect();
        Frame {
            control,
            place,
            saved,
            keep_flags,
            red_zone: request.red_zone,
        }
    }

    /// Without restartable sequences only rax is needed, for the event's header.
    fn locked_only(request: &Request<'_>) -> Frame {
        let mut frame = Frame::new(request);
        frame.saved.retain(|r| *r == Register::RAX);
        frame.keep_flags = false; // nothing changes them
        frame
    }

    /// Where `register` is saved, from the stack pointer of the hot path.
    fn slot(&self, register: Register) -> Option<i64> {
        let index = self.saved.iter().position(|r| *r == register)?;
        Some(-8 * (index as i64 + 1))
    }

    /// Bytes below the stack pointer that are in use, which calls must spare.
    fn size(&self) -> i32 {
        8 * (self.saved.len() + usize::from(self.keep_flags)) as i32
    }

    /// Moves the stack pointer without touching the flags.
    fn move_stack(a: &mut CodeAssembler, by: i32) -> Result<(), IcedError> {
        if by == 0 {
            return Ok(());
        }
        let to = at(Register::RSP, i64::from(by));
        a.add_instruction(Instruction::with2(Code::Lea_r64_m, Register::RSP, to)?)
    }

    fn save(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.red_zone {
            Frame::move_stack(a, -RED_ZONE)?;
        }
        for register in &self.saved {
            let to = at(Register::RSP, self.slot(*register).unwrap_or(0));
            a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, to, *register)?)?;
        }
        if self.keep_flags {
            a.lahf()?; // all status flags but OF
            a.seto(al)?;
            let to = at(Register::RSP, i64::from(-self.size()));
            a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, to, Register::RAX)?)?;
        }
        Ok(())
    }

    fn restore(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.keep_flags {
            let from = at(Register::RSP, i64::from(-self.size()));
            a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, from)?)?;
            a.add(al, 0x7f)?; // overflows exactly if OF was set
            a.sahf()?;
        }
        for register in self.saved.iter().rev() {
            let from = at(Register::RSP, self.slot(*register).unwrap_or(0));
            a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, *register, from)?)?;
        }
        if self.red_zone {
            Frame::move_stack(a, RED_ZONE)?;
        }
        Ok(())
    }

    /// Calls the resident with the event on the stack, from the stack pointer of the
    /// hot path. The fields still have their values, or are saved.
    fn record_locked(
        &self,
        a: &mut CodeAssembler,
        record: &Record,
        locked: u64,
    ) -> Result<(), IcedError> {
        Frame::move_stack(a, -self.size())?;
        let base = i64::from(self.size());
        for (pushed, field) in record.fields.iter().rev().enumerate() {
            match self.slot(*field) {
                Some(slot) => a.add_instruction(Instruction::with1(
                    Code::Push_rm64,
                    at(Register::RSP, base + slot + 8 * pushed as i64),
                )?)?,
                None => a.add_instruction(Instruction::with1(Code::Push_r64, *field)?)?,
            }
        }
        let bytes = 8 * record.fields.len() as u64;
        a.mov(rax, (bytes << 32 | u64::from(record.event)) as i64)?;
        a.push(rax)?;
        a.call(locked)?;
        Frame::move_stack(a, 8 + bytes as i32 + self.size())
    }
}

/// Labels of one record's code. Where one record ends the next one starts, so the
/// boundaries are kept apart: boundary `i` is where record `i` (again) begins, and
/// what follows the commit of record `i - 1`.
struct Labels {
    cs: CodeLabel,
    start: CodeLabel,
    full: CodeLabel,
    /// Also the abort address.
    locked: CodeLabel,
}

/// The code of a record that is written under a restartable sequence.
struct Restartable<'a> {
    frame: &'a Frame,
    runtime: &'a Runtime,
    rseq: i32,
    record: &'a Record,
    first: bool,
}

impl Restartable<'_> {
    fn hot(
        &self,
        a: &mut CodeAssembler,
        l: &mut Labels,
        begin: &mut CodeLabel,
    ) -> Result<(), IcedError> {
        use Register as R;
        let (control_ptr, place) = (self.frame.control, self.frame.place);
        let mov_load = |to, from| Instruction::with2(Code::Mov_r64_rm64, to, from);
        let mov_load32 = |to, from| Instruction::with2(Code::Mov_r32_rm32, to, from);
        let store = |to, from| Instruction::with2(Code::Mov_rm64_r64, to, from);
        let store32 = |to, from| Instruction::with2(Code::Mov_rm32_r32, to, from);
        let size = (record::FIELDS + 8 * self.record.fields.len()) as i64;

        a.set_label(begin)?;
        a.lea(rax, ptr(l.cs))?;
        a.add_instruction(store(fs(self.rseq + RSEQ_CS), R::RAX)?)?;
        a.set_label(&mut l.start)?;
        // -1 or -2 for an unregistered thread: those heads lead to a full packet.
        let cpu = fs(self.rseq + RSEQ_CPU_ID);
        a.add_instruction(Instruction::with2(Code::Movsxd_r64_rm32, R::RAX, cpu)?)?;
        let heads = Instruction::with2(Code::Mov_r64_imm64, control_ptr, self.runtime.heads)?;
        a.add_instruction(heads)?;
        let head = MemoryOperand::new(control_ptr, R::RAX, HEAD_SIZE as u32, 0, 0, false, R::None);
        a.add_instruction(mov_load(control_ptr, head)?)?;
        let pos = at(control_ptr, control::POS as i64);
        let end = at(control_ptr, control::END as i64);
        a.add_instruction(mov_load(place, pos)?)?;
        a.add_instruction(Instruction::with2(
            Code::Lea_r64_m,
            R::RAX,
            at(place, size),
        )?)?;
        a.add_instruction(Instruction::with2(Code::Cmp_r64_rm64, R::RAX, end)?)?;
        a.ja(l.full)?;
        for (index, field) in self.record.fields.iter().enumerate() {
            let to = at(place, (record::FIELDS + 8 * index) as i64);
            // rdx still is what it was, until the first rdtsc; rax, and what
            // holds addresses, is not.
            let intact = *field == R::RDX && self.first;
            match self.frame.slot(*field).filter(|_| !intact) {
                Some(saved) => {
                    a.add_instruction(mov_load(R::RAX, at(R::RSP, saved))?)?;
                    a.add_instruction(store(to, R::RAX)?)?;
                }
                None => a.add_instruction(store(to, *field)?)?,
            }
        }
        let id = at(place, record::ID as i64);
        a.add_instruction(Instruction::with2(
            Code::Mov_rm32_imm32,
            id,
            self.record.event,
        )?)?;
        match self.runtime.tid_offset {
            Some(offset) => a.add_instruction(mov_load32(R::EAX, fs(offset))?)?,
            None => a.mov(eax, 0)?,
        }
        a.add_instruction(store32(at(place, record::TID as i64), R::EAX)?)?;
        a.rdtsc()?;
        a.add_instruction(store32(at(place, record::TIME as i64), R::EAX)?)?;
        a.add_instruction(store32(at(place, record::TIME as i64 + 4), R::EDX)?)?;
        // The record's place becomes that of the next one.
        a.add_instruction(Instruction::with2(Code::Lea_r64_m, place, at(place, size))?)?;
        a.add_instruction(store(pos, place)?)
    }

    fn cold(
        &self,
        a: &mut CodeAssembler,
        l: &mut Labels,
        again: CodeLabel,
        done: CodeLabel,
    ) -> Result<(), IcedError> {
        a.set_label(&mut l.full)?;
        Frame::move_stack(a, -self.frame.size())?;
        a.add_instruction(Instruction::with1(Code::Push_r64, self.frame.control)?)?;
        a.call(self.runtime.switch)?;
        a.pop(rax)?; // 0: lost, 1: try again, 2: go the locked way
        Frame::move_stack(a, self.frame.size())?;
        a.cmp(eax, 1)?;
        a.je(again)?;
        a.jb(done)?;
        a.jmp(l.locked)?;
        a.dd(&[RSEQ_SIGNATURE])?;
        a.set_label(&mut l.locked)?;
        self.frame
            .record_locked(a, self.record, self.runtime.locked)?;
        a.jmp(done)
    }
}

/// Compiles the detour of a site, to stand at `address` (a multiple of
/// [`ALIGNMENT`]).
///
/// # Errors
/// A displaced instruction or the way back is out of reach from `address`.
pub fn compile(
    request: &Request<'_>,
    runtime: &Runtime,
    address: u64,
) -> Result<Detour, CompileError> {
    assert!(address.is_multiple_of(ALIGNMENT) && !request.records.is_empty());
    match runtime.rseq_offset {
        Some(rseq) => compile_restartable(request, runtime, rseq, address),
        None => compile_locked(request, runtime, address),
    }
}

fn compile_restartable(
    request: &Request<'_>,
    runtime: &Runtime,
    rseq: i32,
    address: u64,
) -> Result<Detour, CompileError> {
    let frame = Frame::new(request);
    let mut a = CodeAssembler::new(64)?;
    let mut labels = Vec::new();
    let mut boundaries = vec![a.create_label()];
    for _ in request.records {
        boundaries.push(a.create_label());
        labels.push(Labels {
            cs: a.create_label(),
            start: a.create_label(),
            full: a.create_label(),
            locked: a.create_label(),
        });
    }
    for l in &mut labels {
        a.set_label(&mut l.cs)?;
        a.db(&[0; RSEQ_CS_SIZE])?;
    }
    let part = |index, record| Restartable {
        frame: &frame,
        runtime,
        rseq,
        record,
        first: index == 0,
    };
    for (index, record) in request.records.iter().enumerate() {
        let (again, done) = (boundaries[index], boundaries[index + 1]);
        part(index, record).cold(&mut a, &mut labels[index], again, done)?;
    }
    let mut entry = a.create_label();
    a.set_label(&mut entry)?;
    a.zero_bytes()?; // lets the entry and the first boundary share an address
    frame.save(&mut a)?;
    for (index, record) in request.records.iter().enumerate() {
        part(index, record).hot(&mut a, &mut labels[index], &mut boundaries[index])?;
    }
    let done = &mut boundaries[request.records.len()];
    a.set_label(done)?;
    a.zero_bytes()?;
    frame.restore(&mut a)?;
    let code = a.assemble_options(address, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let entry = code.label_ip(&entry)?;
    let mut descriptors = Vec::new();
    for (index, l) in labels.iter().enumerate() {
        let (start, abort) = (code.label_ip(&l.start)?, code.label_ip(&l.locked)?);
        let committed = code.label_ip(&boundaries[index + 1])?;
        descriptors.push([0, start, committed - start, abort]);
    }
    let mut bytes = code.inner.code_buffer;
    for (index, descriptor) in descriptors.iter().enumerate() {
        for (word, value) in descriptor.iter().enumerate() {
            let to = index * RSEQ_CS_SIZE + word * 8;
            bytes[to..to + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    finish(request, address, bytes, entry, &frame)
}

fn compile_locked(
    request: &Request<'_>,
    runtime: &Runtime,
    address: u64,
) -> Result<Detour, CompileError> {
    let frame = Frame::locked_only(request);
    let mut a = CodeAssembler::new(64)?;
    frame.save(&mut a)?;
    for record in request.records {
        frame.record_locked(&mut a, record, runtime.locked)?;
    }
    frame.restore(&mut a)?;
    let bytes = a.assemble(address)?;
    finish(request, address, bytes, address, &frame)
}

/// The copy of one instruction, to stand at `address`, which goes on behind the
/// original.
///
/// # Errors
/// The instruction, or the way back, does not work from there.
pub fn copy_out(instruction: &Instruction, address: u64) -> Result<Vec<u8>, CompileError> {
    let relocated = relocate(std::slice::from_ref(instruction), address)?;
    let mut bytes = relocated.bytes;
    if relocated.falls_through {
        let end = address + bytes.len() as u64 + 5;
        let displacement = instruction.next_ip().wrapping_sub(end) as i64;
        let displacement = i32::try_from(displacement)
            .map_err(|_| CompileError::Encode("the way back is out of reach".to_owned()))?;
        bytes.push(0xe9);
        bytes.extend(displacement.to_le_bytes());
    }
    Ok(bytes)
}

/// Appends the copies of the displaced instructions and the way back.
fn finish(
    request: &Request<'_>,
    address: u64,
    mut bytes: Vec<u8>,
    entry: u64,
    frame: &Frame,
) -> Result<Detour, CompileError> {
    let copies_at = address + bytes.len() as u64;
    let relocated = relocate(request.displaced, copies_at)?;
    let copies = relocated
        .offsets
        .iter()
        .map(|(old, offset)| (*old, copies_at + *offset as u64))
        .collect();
    bytes.extend_from_slice(&relocated.bytes);
    if relocated.falls_through {
        let mut a = CodeAssembler::new(64)?;
        a.add_instruction(Instruction::with_branch(
            Code::Jmp_rel32_64,
            request.resume,
        )?)?;
        let here = address + bytes.len() as u64;
        let back = a.assemble_options(here, BlockEncoderOptions::DONT_FIX_BRANCHES)?;
        bytes.extend_from_slice(&back.inner.code_buffer);
    }
    Ok(Detour {
        bytes,
        entry,
        copies,
        saved: frame.saved.clone(),
    })
}
