//! The parts from which the code of all work is emitted: labels and their positions, words to
//! patch, operands, and the ways from a detour into shared code and back.

use crate::runtime::Runtime;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

pub(super) use capriole_ring::numbers::session::RSEQ_SIGNATURE;
/// Offsets in `struct rseq` (linux/rseq.h).
pub(super) const RSEQ_CPU_ID: i32 = 4;
pub(super) const RSEQ_CS: i32 = 8;

/// The addresses that one work's code refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Links {
    /// Its `struct rseq_cs`; 0 without restartable sequences.
    pub descriptor: u64,
    /// The shared code.
    pub shared: Shared,
    /// The program that the resident is to run, if the work has one.
    pub program: u64,
}

/// Addresses in the code that detours share, for one work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shared {
    /// Address at which an aborted attempt continues.
    pub aborted: u64,
    /// For a record: the address at which it continues when the packet is full. For a count or
    /// tally: the word that holds the address of the first CPU's counters.
    pub other: u64,
    /// For a record: the word that holds the address of the first CPU's stream.
    pub streams: u64,
}

/// Positions in a body of the words that differ from detour to detour, and of points that other
/// code refers to. All are offsets from the body's first byte.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Part {
    /// u32 event id or offset of the counter; u64 address of the counter without restartable
    /// sequences. Unused for work that has no value.
    pub value: usize,
    /// Start of the work.
    pub begin: usize,
    /// End of the work.
    pub done: usize,
    /// Present with restartable sequences only.
    pub sequence: Option<Sequence>,
    /// rel32 of the call to the resident.
    pub locked: Option<usize>,
    /// Further words to patch.
    pub more: Vec<(usize, Patch)>,
    /// Start of the code or word before the entry that the work refers to.
    pub apart: Option<(usize, Named)>,
}

impl Part {
    /// Returns the position of the field `field`, if it is a constant.
    pub fn constant(&self, field: usize) -> Option<(usize, Patch)> {
        let wanted = [Patch::Short(field), Patch::Long(field)];
        let mut more = self.more.iter();
        more.find(|(_, patch)| wanted.contains(patch)).copied()
    }
}

/// A restartable sequence in a body, in offsets from the body's first byte.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sequence {
    /// The first instruction of the sequence; `done` is just past the last.
    pub start: usize,
    /// The abort address: a [way into shared code](into_shared).
    pub abort: usize,
    /// Length of that way in bytes; 0 if it does not lead into shared code.
    pub way: usize,
    /// rel32 of the descriptor.
    pub descriptor: usize,
    /// rel32 of [`Shared::other`].
    pub other: usize,
    /// rel32 of [`Shared::streams`]; 0 if the work is not a record.
    pub streams: usize,
    /// The instruction that publishes a record, the last of its sequence.
    pub commit: Option<usize>,
}

impl Sequence {
    /// Returns the rel32 of [`Shared::aborted`].
    pub fn aborted(&self) -> usize {
        self.after_abort() - 4
    }
    /// Returns the offset of the address that shared code finds on the stack after an abort.
    pub fn after_abort(&self) -> usize {
        self.abort + self.way
    }
}

/// A word or a piece of code that the hot path refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// The `struct rseq_cs` of a work.
    Descriptor,
    /// The word with the address of the first CPU's stream.
    Streams,
    /// Start of a work's code off the hot path.
    Cold,
    /// The word with the address of a work's program.
    Program,
}

/// A word that differs from detour to detour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patch {
    /// u32: the event's id.
    Event,
    /// u32: the event's tag in the directory.
    Tag,
    /// u32: offset of the counter.
    Counter,
    /// u32: the number of the function being left.
    Call,
    /// u32: the field with this number, a sign-extended 32-bit constant.
    Short(usize),
    /// u64: the field with this number, a constant.
    Long(usize),
}

impl Patch {
    /// Returns the word's size in bytes.
    pub fn size(self) -> usize {
        match self {
            Patch::Event | Patch::Tag | Patch::Counter | Patch::Call | Patch::Short(_) => 4,
            Patch::Long(_) => 8,
        }
    }
}

/// Labels of one work's code.
pub(super) struct Labels {
    pub begin: CodeLabel,
    pub done: CodeLabel,
    /// End of the instruction that holds the value, and the distance back to the value's start.
    pub value: (CodeLabel, usize),
    pub sequence: Option<SequenceLabels>,
    pub locked: Option<CodeLabel>,
    /// Ends of further words to patch.
    pub more: Vec<(CodeLabel, Patch)>,
}

impl Labels {
    /// Returns the labels of code without a sequence or a call, and with no further words to patch.
    pub(super) fn new(begin: CodeLabel, done: CodeLabel, value: (CodeLabel, usize)) -> Labels {
        Labels {
            begin,
            done,
            value,
            sequence: None,
            locked: None,
            more: Vec::new(),
        }
    }

    /// Returns the positions of the labels; `offset` gives the position of one.
    pub(super) fn resolve(
        &self,
        offset: impl Fn(&CodeLabel) -> Result<usize, IcedError>,
    ) -> Result<Part, IcedError> {
        let ends_rel32 = |label: &CodeLabel| Ok::<_, IcedError>(offset(label)? - 4);
        let sequence = match &self.sequence {
            Some(s) => Some(Sequence {
                start: offset(&s.start)?,
                abort: offset(&s.abort)?,
                way: match &s.after_abort {
                    Some(label) => offset(label)? - offset(&s.abort)?,
                    None => 0,
                },
                descriptor: ends_rel32(&s.descriptor)?,
                other: ends_rel32(&s.other)?,
                streams: s.streams.as_ref().map_or(Ok(0), ends_rel32)?,
                commit: s.commit.as_ref().map(&offset).transpose()?,
            }),
            None => None,
        };
        let more = self.more.iter();
        let more = more.map(|(label, patch)| Ok((offset(label)? - patch.size(), *patch)));
        Ok(Part {
            more: more.collect::<Result<_, IcedError>>()?,
            value: offset(&self.value.0)? - self.value.1,
            begin: offset(&self.begin)?,
            done: offset(&self.done)?,
            sequence,
            locked: self.locked.as_ref().map(ends_rel32).transpose()?,
            apart: None,
        })
    }
}

/// Labels of a restartable sequence. `descriptor` and `other` mark the end of a rel32.
pub(super) struct SequenceLabels {
    pub start: CodeLabel,
    pub abort: CodeLabel,
    pub after_abort: Option<CodeLabel>,
    pub descriptor: CodeLabel,
    pub other: CodeLabel,
    /// End of the rel32 of [`Shared::streams`], if the work is a record.
    pub streams: Option<CodeLabel>,
    /// The instruction that publishes a record, if the work is one.
    pub commit: Option<CodeLabel>,
}

/// Creates a label for the current position. Several labels may share a position.
pub(super) fn mark(a: &mut CodeAssembler) -> Result<CodeLabel, IcedError> {
    let mut label = a.create_label();
    bind(a, &mut label)?;
    Ok(label)
}

/// Binds `label` to the current position.
pub(super) fn bind(a: &mut CodeAssembler, label: &mut CodeLabel) -> Result<(), IcedError> {
    a.set_label(label)?;
    a.zero_bytes() // takes the label, so that the next instruction can have one, too
}

/// Emits a jump into shared code, which expects on the stack the address after this code, and
/// returns by a jump. Overwrites `scratch`. Returns the label of that address.
///
/// A call is shorter, but a shadow stack would keep its return address forever.
pub(super) fn into_shared(
    a: &mut CodeAssembler,
    runtime: &Runtime,
    scratch: Register,
    to: u64,
) -> Result<CodeLabel, IcedError> {
    let mut behind = a.create_label();
    if runtime.shadow_stack {
        let scratch = get_gpr64(scratch).unwrap_or(rax); // it is one
        a.lea(scratch, ptr(behind))?;
    }
    // With a shadow stack this becomes a jump. Since the assembler would choose the jump's length,
    // it is written as a call, and `body` changes the opcode.
    a.call(to)?;
    bind(a, &mut behind)?;
    Ok(behind)
}

/// Emits the start of shared code, where [`into_shared`] leads.
pub(super) fn from_detour(
    a: &mut CodeAssembler,
    runtime: &Runtime,
    scratch: Register,
) -> Result<(), IcedError> {
    if runtime.shadow_stack {
        a.add_instruction(Instruction::with1(Code::Push_r64, scratch)?)?;
    }
    Ok(())
}

/// Labels of the code off the hot path, written before the work's own code.
pub(super) struct Cold {
    /// The label that the hot path jumps to when it cannot continue.
    pub way_out: CodeLabel,
    pub abort: CodeLabel,
    /// End of the way into shared code, if the abort address leads there.
    pub after_abort: Option<CodeLabel>,
    /// End of the rel32 of the call to [`Shared::other`], if that is called.
    pub other: Option<CodeLabel>,
}

/// Returns the operand at an offset from the thread pointer.
pub(super) fn fs(offset: i32) -> MemoryOperand {
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

/// Returns the operand at an offset from a register.
pub(super) fn at(base: Register, offset: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, offset)
}

/// Copies bytes that are not aligned to the stack, one by one: a thread may have its accesses checked for alignment
/// (EFLAGS.AC). Keeps the flags.
pub(super) fn copy_bytes(
    a: &mut CodeAssembler,
    (from, offset): (Register, i64),
    to: i64,
    bytes: i64,
    scratch: AsmRegister8,
) -> Result<(), IcedError> {
    let scratch = scratch.into();
    for byte in 0..bytes {
        let (from, to) = (at(from, offset + byte), at(Register::RSP, to + byte));
        a.add_instruction(Instruction::with2(Code::Mov_r8_rm8, scratch, from)?)?;
        a.add_instruction(Instruction::with2(Code::Mov_rm8_r8, to, scratch)?)?;
    }
    Ok(())
}

/// Returns the operand at `address`, relative to the instruction pointer.
pub(super) fn near(address: u64) -> MemoryOperand {
    at(Register::RIP, address as i64)
}

/// Jumps from shared code to offset `to` of the detour that it serves: `register` holds the
/// address of that detour's offset `from`, and is overwritten.
pub(super) fn go(
    a: &mut CodeAssembler,
    register: Register,
    from: usize,
    to: usize,
) -> Result<(), IcedError> {
    advance(a, register, from, to)?;
    a.add_instruction(Instruction::with1(Code::Jmp_rm64, register)?)
}

/// Changes `register` from the address of a detour's offset `from` to the address of its offset
/// `to`.
pub(super) fn advance(
    a: &mut CodeAssembler,
    register: Register,
    from: usize,
    to: usize,
) -> Result<(), IcedError> {
    let by = at(register, to as i64 - from as i64);
    a.add_instruction(Instruction::with2(Code::Lea_r64_m, register, by)?)
}
