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
//! There is no call, lock or system call on the hot path. No vector register is changed (and
//! none read, unless it is a field), and no memory is accessed except session memory, the
//! thread's own `struct rseq` and thread id, and the stack below the stack pointer.
//!
//! **Restartable.** The kernel does not resume a thread between *start* and *commit* if it was
//! preempted, migrated or interrupted by a signal there: it sends the thread to the abort
//! address, from where the event takes the locked path. Everything stored before the commit
//! lies past `stream.pos`, in space that nothing else reads, so an aborted attempt leaves no
//! trace. The sequence does not retry in a loop, so that a debugger single-stepping a detour
//! (every step is an abort) reaches its end.
//!
//! **Hostile words.** A process that shares session memory may write anything there at any
//! time. The address of the stream comes from the code and the thread's own `struct rseq`. The
//! position is read from the stream once, into a 32-bit register; the value that is compared
//! with the limit, a constant, is also the value that is used. So a record is written between
//! [`MAX_STRAIGHT`](capriole_ring::layout::MAX_STRAIGHT) bytes before the stream and the end of
//! session memory, whatever the stream contains.
//!
//! **Counting** works the same way with fewer steps: the commit is an `add` to this CPU's copy
//! of the counter. A thread that is aborted, or has no restartable sequences, adds with a
//! `lock` prefix to an extra copy that belongs to no CPU.
//!
//! **Aggregation** by key is described in `detour/tally.rs`.
//!
//! **Saved** registers lie below the stack pointer, which is not moved: within 128 bytes of it
//! nothing else accesses the stack (the kernel builds signal frames below the red zone). The
//! flags are saved there by `lahf` and `seto`, if they are live. The word right below the stack
//! pointer is left free for the return address of the calls into shared code, which identifies
//! the detour that the shared code serves.
//!
//! **Shared code.** Code off the hot path exists once in an arena for all detours of the same
//! form. It reads the event id or counter from the hot path's own instruction, and returns by
//! an indirect jump.
//!
//! **Templates.** Detours of the same form (saved registers, number of fields, ...) differ in
//! few words. The assembler runs once for each form; then words are patched.
//!
//! **Order of work.** On the processors measured (Sapphire and Emerald Rapids) `rdtsc` takes
//! about 27 cycles. It starts when everything before it is done, and for most of that time no
//! later instruction is even issued. So two things cost time: every instruction, a sixth of a
//! cycle; and the longest dependency chain between one clock reading and the next. The chain of
//! a record is cpu, stream, position, comparison: 15 cycles or more. With the clock reading in
//! its middle, one record's second half and the next one's first half run at the same time.
//! (With the clock reading first or last a hit took 2 to 4 ns more.)
//!
//! **New threads** are marked as having no restartable sequences by a probe of their own,
//! see [`Work::Unregister`].
//!
//! **Time order.** The time is read inside the sequence: a thread that commits later on this
//! CPU has also read the clock later.
//!
//! **Live state.** The registers and flags to save are computed from the code that follows the
//! site, never from the calling convention. A register that the program is about to overwrite
//! may still be read by another probe of the same function; the detours of a function keep all
//! registers that any of its probes reads (`keep_what_is_read` in the crate `patch`).
//!
//! **Several events** at one site are recorded or counted in one detour.
//!
//! **Cost of templates.** About fifty forms occur in libcrypto; a detour made from one takes
//! about 1 us instead of 14. A test compares the patched code with the assembler's output for
//! the same place. Constants stored as fields are patched words too (`word`); only constants of
//! aggregated events, as keys or values, make forms of their own.
//!
//! **Descriptors** (`struct rseq_cs`) must be aligned to 32 bytes. They are placed together, 64
//! at a time, since between detours each would need padding.

mod anatomy;
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

pub use anatomy::{Anatomy, Named, Purpose};
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

/// Facts about the session and the target that the detours of one arena need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runtime {
    /// Address of the streams in the target. Each CPU has one, which holds the position of its next
    /// record; the streams for threads without a CPU precede the first.
    pub streams: u64,
    /// The largest position that is accepted from a stream, see
    /// [`Geometry::limit`](capriole_ring::layout::Geometry::limit).
    pub limit: u32,
    /// Location of the counters.
    pub counters: Counters,
    /// Address of the tables' directories in the target.
    pub directories: u64,
    /// Location of open calls.
    pub frames: Frames,
    /// Offset of `struct rseq` from the thread pointer, if every thread has one there.
    pub rseq_offset: Option<i32>,
    /// Offset of the thread id from the thread pointer, if every thread has it there.
    pub tid_offset: Option<i32>,
    /// True if the program runs with a shadow stack, which records only what calls push.
    pub shadow_stack: bool,
    /// Method of reading the time stamp counter.
    pub clock: ClockReading,
    /// Address of the resident's entry for a full packet.
    pub switch: u64,
    /// Address of the resident's entry for recording without restartable sequences.
    pub locked: u64,
    /// Address of the resident's entry for programs.
    pub run: u64,
}

/// Method of reading the time stamp counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockReading {
    /// Reads only after all earlier loads of the thread are complete (`lfence`), so that times
    /// agree with the order of events across CPUs. Otherwise the processor reads it up to a few
    /// hundred ticks earlier.
    pub ordered: bool,
    /// Two readings may be equal: the counter advances in steps.
    pub coarse: bool,
    /// For tests: makes the counter appear to advance in steps of this many ticks. 0, 1: unchanged.
    pub step: u32,
}

impl ClockReading {
    /// Returns the constants for rounding a time down to a multiple of the step: the multiplier for
    /// its lower half, the number of bits by which the product is then shifted right, and the
    /// multiplier of the result.
    pub fn in_steps(self) -> Option<(u32, u8, u32)> {
        let bits = self.step.checked_sub(1).filter(|less| *less > 0)?.ilog2() + 1;
        let shift = 30 + bits;
        let factor = (1u64 << shift).div_ceil(u64::from(self.step));
        Some((factor as u32, shift as u8, self.step))
    }
}

/// Location of the counters: each CPU has a copy of all, and there is one shared copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Address, in the target, of the first CPU's copy.
    pub address: u64,
    /// Bytes from one CPU's copy to the next, less than 2 GiB; 0 if there are no counters.
    pub stride: u32,
    /// Number of CPUs that have a copy; the shared copy follows theirs.
    pub cpus: u32,
}

/// Location of the open calls that are timed, see [`capriole_ring::layout::frame`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frames {
    /// Address of the first slot.
    pub address: u64,
    /// Number of slots in an area, a power of two; 0 if no calls are timed.
    pub slots: u32,
    /// Size of a slot in bytes, a power of two.
    pub size: u32,
}

impl Frames {
    /// Returns the size of an area of slots in bytes.
    fn area(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.size)
    }
}

impl Counters {
    /// Returns the address of the copy that is only changed with a `lock` prefix.
    fn shared(&self) -> u64 {
        self.address + u64::from(self.cpus) * u64::from(self.stride)
    }

    /// Returns the offset of a counter in a copy, in bytes.
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
    /// The fields, in order; at most eleven different general registers in all records of a site.
    pub fields: Vec<Word>,
    /// Condition for recording; `None` records always.
    pub filter: Option<Filter>,
}

/// Work done when a site is hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Records an event.
    Record(Record),
    /// Adds one to a counter.
    Count {
        /// The counter's number, less than the session's number of counters.
        counter: u32,
        /// Condition for counting; `None` counts always.
        filter: Option<Filter>,
    },
    /// Begins a timed call: at a function's entry, for
    /// [`Source::Latency`](crate::program::Source::Latency) and
    /// [`Source::Kept`](crate::program::Source::Kept) at its exits.
    Enter {
        /// Number of the function in the lower 16 bits, and above it the number of the area that
        /// holds its slots.
        call: u32,
        /// Values kept for the call: of registers only general ones, and at most as many as a slot
        /// has words.
        kept: Vec<Word>,
        /// Condition for timing; `None` times always.
        filter: Option<Filter>,
    },
    /// Adds an amount to a cell of a table.
    Tally(Straight),
    /// Has the resident run a program that records an event. This precedes the site's other work,
    /// except the start of a timed call, as the program reads all registers.
    Run {
        /// The event's id in the trace.
        event: u32,
        /// The program.
        program: Arc<Program>,
        /// Condition for running it; `None` runs it always.
        filter: Option<Filter>,
    },
    /// Has the resident run a program that records the call that ends here, if it took long.
    Long(Long),
    /// Marks a thread that finds 0 in rax as having no restartable sequences. After a system call
    /// that creates a thread, that is the new thread, see `detour/unregister.rs`. Overwrites the
    /// flags. Does nothing where such sequences are not used anyway.
    Unregister,
    /// Calls a routine that stays in the program after the detours are gone: it follows a call, or
    /// serves an unwinder. It preserves all registers and the flags, and comes after the site's
    /// other work.
    Help {
        /// Address of the routine, which reads two words from the stack, pushed in this order: the
        /// number of bytes by which the stack pointer is below the site's, and the argument.
        routine: u64,
        /// The argument.
        argument: u64,
    },
}

impl Work {
    /// Returns the words that the work stores.
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

    /// Returns the registers that the work reads, except by its filter.
    pub(crate) fn registers(&self) -> impl Iterator<Item = Register> {
        let others = match self {
            Work::Tally(straight) => straight.registers(),
            Work::Long(long) => &long.registers,
            Work::Record(_)
            | Work::Enter { .. }
            | Work::Count { .. }
            | Work::Run { .. }
            | Work::Unregister
            | Work::Help { .. } => &[],
        };
        let words = self.words().iter().filter_map(|word| word.register());
        words.chain(others.iter().copied())
    }

    /// Returns the general registers that the work reads in any way.
    #[must_use]
    pub fn reads(&self) -> RegSet {
        let filter = self.filter().into_iter().flat_map(Filter::registers);
        let words = self.registers().chain(filter).map(RegSet::of);
        let program = self.program().map(|program| program.registers());
        words.chain(program).fold(RegSet::EMPTY, BitOr::bitor)
    }

    /// Returns the filter guarding this work.
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

    /// Returns the program that the resident may run for this work.
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

    /// True if the resident may make a system call for this work, in the program's own thread.
    #[must_use]
    pub fn may_call(&self) -> bool {
        self.program().is_some_and(|program| program.may_call())
    }

    /// True if the work is done before registers are saved.
    fn is_early(&self) -> bool {
        match self {
            Work::Run { .. } | Work::Unregister | Work::Help { .. } => true,
            Work::Record(_)
            | Work::Enter { .. }
            | Work::Count { .. }
            | Work::Tally(_)
            | Work::Long(_) => false,
        }
    }

    /// Replaces straight code with a program where straight code is not possible, or if `none` is
    /// set.
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
}

impl Record {
    /// Creates an event that is always recorded, with these registers as its fields.
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

/// Input for compiling a detour: its work, and the code it is made for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The work of the site, done in this order. If empty, the detour only runs the copies.
    pub work: &'a [Work],
    /// The instructions that the jump displaces; empty for reserved bytes.
    pub displaced: &'a [Instruction],
    /// Address at which the program continues.
    pub resume: u64,
    /// True if the 128 bytes below the stack pointer may hold live data (the System V ABI's red
    /// zone). False at a function's entry: the caller has just made a call, so it has nothing
    /// below.
    pub red_zone: bool,
    /// Registers and flags that may still be read after the site.
    pub live: Live,
}

/// A detour in its compiler's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detour {
    /// Its first byte.
    pub address: u64,
    /// Size in bytes of the detour itself. It excludes shared code, and the 32-byte `struct
    /// rseq_cs` of each work.
    pub size: usize,
    /// The address that the site's jump leads to.
    pub entry: u64,
    /// For each displaced instruction: its address, and the address of its copy.
    pub copies: Vec<(u64, u64)>,
    /// General registers that the detour saves.
    pub saved: Vec<Register>,
    /// Address of the jump back; `None` if the copies do not fall through.
    pub back: Option<u64>,
    /// Number of its form in the compiler.
    template: usize,
}

impl Detour {
    /// Returns the address right after the detour.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address + self.size as u64
    }
}

/// Reason why a detour could not be compiled.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum CompileError {
    /// A displaced instruction cannot run at its address in the arena.
    #[error("{0}")]
    Relocate(#[from] RelocateError),
    /// A filter tests the thread's id, but its location in the threads is unknown.
    #[error("the filter asks for the thread, whose id is not to be found in this program")]
    NoThreadId,
    /// All events of the site together record too many registers.
    #[error("the events there ask for too many registers together; ask for fewer")]
    TooManyRegisters,
    /// The encoder failed: an address is out of reach.
    #[error("no encoding: {0}")]
    Encode(String),
}

impl From<IcedError> for CompileError {
    fn from(error: IcedError) -> Self {
        CompileError::Encode(error.to_string())
    }
}
