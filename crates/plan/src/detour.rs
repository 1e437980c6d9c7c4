//! The detour: machine code made for one site and its work.
//!
//! ```text
//!  detour + 0     a call into shared code for each way out of the hot path
//!                 (packet full; aborted, with the signature before it); with a
//!                 shadow stack a jump
//!  entry          go below the red zone                     if one may be live
//!                 save the scratch registers and the flags  those that are live
//!  begin          rseq_cs of this thread = ours
//!  start          stream = streams + 64 * cpu               abort from here on
//!                 rdtsc
//!                 place = stream.pos + size                 read once
//!                 place above stream.end or the limit?      cold
//!                 store the time, the arguments, event id, thread id
//!  commit         stream.pos = place                        the one store
//!                 restore flags, registers, stack
//!  copies         the displaced instructions, relocated
//!                 jmp resume
//! ```
//!
//! There is no call, lock or system call on the hot path, no vector register is changed (and
//! none read, unless it is a field), and no
//! memory is touched but session memory, the thread's own `struct rseq` and thread
//! id, and the stack below the stack pointer.
//!
//! **Restartable.** From *start* to *commit* the kernel restarts nobody: it sends
//! a thread that was preempted, migrated or interrupted by a signal there to the
//! abort address, from where the event goes the locked way. Everything stored
//! before the commit lies behind `stream.pos`, in room nobody else looks at, so
//! an aborted attempt leaves nothing. It does not loop, so that a debugger which
//! steps through a detour (every step is an abort) comes out at the other end.
//!
//! **Hostile words.** A process that shares session memory may write anything there at any
//! time. The address of the stream comes from the code and the thread's own `struct rseq`. The
//! position is taken from the stream once, into a register of 32 bits, and what is compared with
//! the limit, a constant, is what is used. So a record is written between
//! [`MAX_STRAIGHT`](capriole_ring::layout::MAX_STRAIGHT) bytes before the stream and the end of
//! session memory, whatever stands there.
//!
//! **Counting** is the same with less: the commit is an `add` to this CPU's copy of
//! the counter. Who is aborted, or has no restartable sequences, adds with a `lock`
//! prefix to one more copy that no CPU has.
//!
//! **Adding up** by key is described in `detour/tally.rs`.
//!
//! **Saved** registers lie below the stack pointer, which is not moved: within 128
//! bytes of it nobody looks (the kernel builds signal frames below the red zone).
//! The flags go through `lahf` and `seto` there, where they are live. The word right
//! below the stack pointer is left free for the return address of the calls into
//! shared code, which tells that code which detour it serves.
//!
//! **Shared code.** What happens off the hot path stands once in an arena for all
//! detours of the same form. It takes event id or counter from the hot path's own
//! instruction, and goes back by an indirect jump.
//!
//! **Templates.** Detours of the same form (saved registers, number of fields, ...)
//! differ in few words. The assembler runs once for a form; then words are patched.
//!
//! **Order of work.** On the processors looked at (Sapphire and Emerald Rapids) `rdtsc` takes
//! about 27 cycles. It begins when everything before it is done, and for most of that time
//! nothing behind it is even taken up. So two things cost time: every instruction, a sixth of
//! a cycle; and the longest chain of results between one reading of the clock and the next.
//! The chain of a record is cpu, stream, position, comparison, 15 cycles or more. With
//! the clock in its middle one record's second half and the next one's first half are done
//! at the same time. (With the clock first or last a hit took 2 to 4 ns more.)
//!
//! **New threads** are marked as having no restartable sequences by a probe of their own,
//! see [`Work::Unregister`].
//!
//! **Time order.** The time is read inside the sequence: whoever commits later on
//! this CPU has also read the clock later.

mod assemble;
mod chain;
mod compiler;
mod count;
mod filter;
mod frame;
mod help;
mod long;
mod record;
mod run;
mod tally;
mod timing;
mod unregister;
mod word;

pub use chain::{Chain, Point};
pub use compiler::{Compiler, room};
pub use filter::Filter;
pub(crate) use filter::{Compare, Operand};
pub use long::Long;
pub use tally::Straight;
pub(crate) use tally::{Function, Key, StraightAmount, StraightRow, Value};
pub use word::Word;

use crate::program::Program;
use std::ops::BitOr;
use std::sync::Arc;

use capriole_insn::liveness::{Live, RegSet};
use capriole_insn::relocate::RelocateError;
use iced_x86::{IcedError, Instruction, Register};
use thiserror::Error;

/// What the detours of one arena need to know of the session and the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runtime {
    /// Address of the streams in the target, of which each CPU's has the place where its next
    /// record goes; before the first, those for threads without a CPU.
    pub streams: u64,
    /// The largest position that is taken from a stream, see
    /// [`Geometry::limit`](capriole_ring::layout::Geometry::limit).
    pub limit: u32,
    /// Where counters stand.
    pub counters: Counters,
    /// Address of the tables' directories in the target.
    pub directories: u64,
    /// Where open calls stand.
    pub frames: Frames,
    /// Offset of `struct rseq` from the thread pointer, if every thread has one there.
    pub rseq_offset: Option<i32>,
    /// Offset of the thread id from the thread pointer, if every thread has it there.
    pub tid_offset: Option<i32>,
    /// Whether the program runs with a shadow stack, which knows only what calls push.
    pub shadow_stack: bool,
    /// How the time stamp counter is read.
    pub clock: ClockReading,
    /// Address of the resident's entry for a full packet.
    pub switch: u64,
    /// Address of the resident's entry for recording without restartable sequences.
    pub locked: u64,
    /// Address of the resident's entry for programs.
    pub run: u64,
}

/// How the time stamp counter is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockReading {
    /// Only when all that the thread has read before is there (`lfence`), so that times agree
    /// with what happened first, on whatever CPUs. Otherwise the processor reads it up to some
    /// hundred ticks earlier.
    pub ordered: bool,
    /// Two readings may be equal: it advances in steps.
    pub coarse: bool,
    /// For tests: as if the counter advanced in steps of so many ticks. 0, 1: as it does.
    pub step: u32,
}

impl ClockReading {
    /// What the lower half of a time is multiplied with, by how many bits that is moved to the
    /// right then, and what it is multiplied with again, to be a multiple of the step.
    pub fn in_steps(self) -> Option<(u32, u8, u32)> {
        let bits = self.step.checked_sub(1).filter(|less| *less > 0)?.ilog2() + 1;
        let shift = 30 + bits;
        let factor = (1u64 << shift).div_ceil(u64::from(self.step));
        Some((factor as u32, shift as u8, self.step))
    }
}

/// Where counters stand: each CPU has a copy of all, and one more is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Address, in the target, of the first CPU's.
    pub address: u64,
    /// Bytes from one CPU's to the next one's, less than 2 GiB; 0 if there are no
    /// counters.
    pub stride: u32,
    /// How many CPUs have a copy; behind them stands the shared one.
    pub cpus: u32,
}

/// Where the calls stand that are open and timed, see [`capriole_ring::layout::frame`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frames {
    /// Address of the first slot.
    pub address: u64,
    /// Slots of an area, a power of two; 0 if no calls are timed.
    pub slots: u32,
    /// Bytes of a slot, a power of two.
    pub size: u32,
}

impl Frames {
    /// Bytes of an area of slots.
    fn area(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.size)
    }
}

impl Counters {
    /// Address of the copy that is only changed with a `lock` prefix.
    fn shared(&self) -> u64 {
        self.address + u64::from(self.cpus) * u64::from(self.stride)
    }

    /// Offset of a counter in a copy, in bytes.
    fn offset(&self, counter: u32) -> u32 {
        let offset = u64::from(counter) * 8;
        assert!(
            offset < u64::from(self.stride),
            "no room was made for counter {counter}"
        );
        offset as u32
    }
}

/// An event to record at a site: its id and the words that are its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The event's id in the trace.
    pub event: u32,
    /// The fields in their order; at most eleven different general registers in all records of
    /// a site.
    pub fields: Vec<Word>,
    /// When it is recorded; always, if there is none.
    pub filter: Option<Filter>,
}

/// What is done when a site is hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// An event is recorded.
    Record(Record),
    /// One is added to a counter.
    Count {
        /// The counter's number, less than the session has.
        counter: u32,
        /// When it counts; always, if there is none.
        filter: Option<Filter>,
    },
    /// A call begins here that is timed: at a function's entry, for
    /// [`Source::Latency`](crate::program::Source::Latency) and
    /// [`Source::Kept`](crate::program::Source::Kept) at its exits.
    Enter {
        /// The number of the function in the lower 16 bits, and above it that of the area its
        /// slot is in.
        call: u32,
        /// What the call keeps, of registers general ones only; at most as many as a slot has
        /// words.
        kept: Vec<Word>,
        /// When it is timed; always, if there is none.
        filter: Option<Filter>,
    },
    /// Something is added to a cell of a table.
    Tally(Straight),
    /// The resident runs a program that records an event. This comes before what else the
    /// site has to do, but the beginning of a call, as it looks at all registers.
    Run {
        /// The event's id in the trace.
        event: u32,
        /// What it does.
        program: Arc<Program>,
        /// When it is run; always, if there is none.
        filter: Option<Filter>,
    },
    /// The resident runs a program that records the call that ends here, if it took long.
    Long(Long),
    /// A thread that finds 0 in rax is marked as one without restartable sequences.
    /// Behind a system call that makes a thread, that is the new one, see
    /// `detour/unregister.rs`. Spoils the flags. Nothing where they are not used anyway.
    Unregister,
    /// A routine is called that stays in the program longer than the detours do: it follows a
    /// call, or answers an unwinder. It keeps all registers and the flags, and comes behind
    /// what else the site has to do.
    Help {
        /// Address of the routine, which takes two words off the stack: how far the stack
        /// pointer is below that of the site, and behind it the argument.
        routine: u64,
        /// What it is given.
        argument: u64,
    },
}

impl Work {
    /// The words that it stores.
    pub(crate) fn words(&self) -> &[Word] {
        match self {
            Work::Record(record) => &record.fields,
            Work::Enter { kept, .. } => kept,
            Work::Tally(_)
            | Work::Long(_)
            | Work::Count { .. }
            | Work::Run { .. }
            | Work::Unregister
            | Work::Help { .. } => &[],
        }
    }

    /// The registers that it looks at, other than by its filter.
    pub(crate) fn registers(&self) -> impl Iterator<Item = Register> {
        let others = match self {
            Work::Tally(straight) => straight.registers(),
            Work::Long(long) => &long.registers,
            _ => &[],
        };
        let words = self.words().iter().filter_map(|word| word.register());
        words.chain(others.iter().copied())
    }

    /// The general registers that it looks at in any way.
    #[must_use]
    pub fn reads(&self) -> RegSet {
        let filter = self.filter().into_iter().flat_map(Filter::registers);
        let words = self.registers().chain(filter).map(RegSet::of);
        let program = self.program().map(|program| program.registers());
        words.chain(program).fold(RegSet::EMPTY, BitOr::bitor)
    }

    /// What asks whether it is done.
    fn filter(&self) -> Option<&Filter> {
        match self {
            Work::Record(record) => record.filter.as_ref(),
            Work::Tally(straight) => straight.filter(),
            Work::Long(long) => long.filter.as_ref(),
            Work::Count { filter, .. } | Work::Run { filter, .. } | Work::Enter { filter, .. } => {
                filter.as_ref()
            }
            Work::Unregister | Work::Help { .. } => None,
        }
    }

    /// The program that it may have the resident run.
    fn program(&self) -> Option<&Arc<Program>> {
        match self {
            Work::Run { program, .. } => Some(program),
            Work::Tally(straight) => Some(straight.program()),
            Work::Long(long) => Some(&long.program),
            Work::Record(_)
            | Work::Count { .. }
            | Work::Enter { .. }
            | Work::Unregister
            | Work::Help { .. } => None,
        }
    }

    /// Whether the resident may make a system call for it, in the program's own thread.
    #[must_use]
    pub fn may_call(&self) -> bool {
        self.program().is_some_and(|program| program.may_call())
    }

    /// The same where there cannot be straight code for it, or `none` is wanted.
    fn possible(&self, runtime: &Runtime, none: bool) -> Work {
        match self {
            Work::Tally(straight) if none || !straight.is_possible(runtime) => Work::Run {
                event: straight.event(),
                program: straight.program().clone(),
                filter: straight.filter().cloned(),
            },
            Work::Long(long) if none || runtime.frames.slots == 0 => Work::Run {
                event: long.event,
                program: long.program.clone(),
                filter: long.filter.clone(),
            },
            other => other.clone(),
        }
    }

    /// Whether it is done before registers are saved.
    fn is_early(&self) -> bool {
        matches!(
            self,
            Work::Run { .. } | Work::Unregister | Work::Help { .. }
        )
    }
}

impl Record {
    /// An event that is always recorded, with these registers as its fields.
    #[must_use]
    pub fn new(event: u32, fields: Vec<Register>) -> Record {
        Record {
            event,
            fields: fields.into_iter().map(Word::from).collect(),
            filter: None,
        }
    }
}

impl From<Record> for Work {
    fn from(record: Record) -> Work {
        Work::Record(record)
    }
}

/// What a detour has to do and where it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The work of the site, done in this order. If there is none, the detour only
    /// runs the copies.
    pub work: &'a [Work],
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

/// A detour that stands in its compiler's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detour {
    /// Its first byte.
    pub address: u64,
    /// How many bytes are its own. Not counted is what it shares with others, and
    /// `struct rseq_cs` for each work, 32 bytes.
    pub size: usize,
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
    /// A filter asks for the thread's id, and nobody knows where the threads have it.
    #[error("the filter asks for the thread, whose id is not to be found in this program")]
    NoThreadId,
    /// All events of the site together record too many registers.
    #[error("the events there ask for too many registers together; ask for fewer")]
    TooManyRegisters,
    /// The encoder refused: an address is out of reach.
    #[error("no encoding: {0}")]
    Encode(String),
}

impl From<IcedError> for CompileError {
    fn from(error: IcedError) -> Self {
        CompileError::Encode(error.to_string())
    }
}
