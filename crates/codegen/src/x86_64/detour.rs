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
//! **Aggregation** by key is described in the module `tally`.
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
//!
//! **Places.** For unwinders, each form has a table of where the program's stack pointer and registers are at
//! each of its instructions (`places`).

mod anatomy;
mod assemble;
mod chain;
mod compiler;
mod count;
mod emit;
mod filter;
mod frame;
pub mod handler;
mod help;
mod long;
mod places;
mod record;
mod run;
mod tally;
mod timing;
mod unregister;
mod word;

pub use anatomy::{Anatomy, Purpose};
pub use chain::{Chain, Point};
pub use compiler::{Compiler, PLACES_ROOM, room};
pub use emit::Named;

use crate::runtime::Runtime;
use crate::work::Work;
use capriole_insn::liveness::Live;
use capriole_insn::relocate::RelocateError;
use iced_x86::{IcedError, Instruction, Register};
use thiserror::Error;

impl Work {
    /// True if the work is done before registers are saved.
    fn is_early(&self) -> bool {
        match self {
            Work::Run { .. } | Work::Unregister | Work::Help { .. } => true,
            Work::Record(_)
            | Work::Enter { .. }
            | Work::Count { .. }
            | Work::Tally(_)
            | Work::Long(_)
            | Work::Handler(_)
            | Work::Replace(_) => false,
        }
    }

    /// Replaces straight code with a program where straight code is not possible, or if `none` is
    /// set.
    fn possible(&self, runtime: &Runtime, none: bool) -> Work {
        match self {
            Work::Tally(straight) if none || !straight.is_possible(runtime) => Work::Run {
                event: straight.event,
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
    /// The address to which it leads.
    pub goes_to: u64,
    /// Address of the [places](capriole_ring::numbers::place) of its code up to the copies, in the same
    /// image; 0 if there are none.
    pub places: u64,
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
