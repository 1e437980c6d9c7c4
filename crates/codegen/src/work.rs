//! Work done at a site, in the form from which code is generated.
//!
//! [`fetch`](crate::fetch) makes it from an event's fields and condition. What straight code can
//! do is described here by registers and constants; everything else is a
//! [`Program`] for the resident.

mod filter;
mod straight;

pub use filter::Filter;
pub(crate) use filter::{Compare, Operand, asks_for_flags, common_flags};
pub use straight::Straight;
pub(crate) use straight::{Function, Key, StraightAmount, StraightRow, Value};

use crate::arch::registers::Register;
use crate::program::Program;
use capriole_insn::liveness::RegSet;
use std::ops::BitOr;
use std::sync::Arc;

/// A field of a record, or a value that a call keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// The value at the site of a 64-bit general register, or the low 64 bits of an xmm register.
    Register(Register),
    /// A constant, the same at every hit.
    Constant(u64),
}

impl Word {
    /// Returns the register, if this is one.
    #[must_use]
    pub const fn register(self) -> Option<Register> {
        match self {
            Word::Register(register) => Some(register),
            Word::Constant(_) => None,
        }
    }
}

impl From<Register> for Word {
    fn from(register: Register) -> Word {
        Word::Register(register)
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

/// The end of a call that is recorded, or counted, only if it took long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Long {
    /// The event's id in the trace.
    pub(crate) event: u32,
    /// The function being left, identified as in the work of its entry.
    pub(crate) call: u32,
    /// The shortest time that is recorded, in time stamp counter ticks.
    pub(crate) least: u64,
    /// The program that records or counts it.
    pub(crate) program: Arc<Program>,
    /// The registers that the program reads, which must be intact for it.
    pub(crate) registers: Vec<Register>,
    /// Condition for checking the time; `None` checks always.
    pub(crate) filter: Option<Filter>,
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
    /// [`Source::Latency`](crate::fetch::Source::Latency) and
    /// [`Source::Kept`](crate::fetch::Source::Kept) at its exits.
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
    /// Has the resident run a program that records or counts the call that ends here, if it took
    /// long.
    Long(Long),
    /// Marks a thread that finds 0 in rax as having no restartable sequences. After a system call
    /// that creates a thread, that is the new thread. Overwrites the flags. Does nothing where such
    /// sequences are not used anyway.
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
    /// Calls handlers in the program itself, which may change all registers. It comes after all
    /// other work of the site that does not replace it.
    Handler(Handler),
    /// Continues at this address instead of at the site. It comes after all other work.
    Replace(u64),
}

/// Handlers of a site: code of the program's own, see the module `handler` of the detours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handler {
    /// Address of the routine that calls them where the flags are dead: it may overwrite them.
    pub routine: u64,
    /// Address of the routine that also preserves the flags.
    pub with_flags: u64,
    /// Its argument.
    pub argument: u64,
    /// True if it is called after the instruction.
    pub after: bool,
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
            | Work::Help { .. }
            | Work::Handler(_)
            | Work::Replace(_) => &[],
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
            | Work::Help { .. }
            | Work::Handler(_)
            | Work::Replace(_) => &[],
        };
        let words = self.words().iter().filter_map(|word| word.register());
        words.chain(others.iter().copied())
    }

    /// Returns the general registers that the work reads in any way.
    #[must_use]
    pub fn reads(&self) -> RegSet {
        if let Work::Handler(_) = self {
            return RegSet::ALL;
        }
        let filter = self.filter().into_iter().flat_map(Filter::registers);
        let words = self.registers().chain(filter).map(RegSet::of);
        let program = self.program().map(|program| program.registers());
        words.chain(program).fold(RegSet::EMPTY, BitOr::bitor)
    }

    /// Returns the filter guarding this work.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        match self {
            Work::Record(record) => record.filter.as_ref(),
            Work::Tally(straight) => straight.filter(),
            Work::Long(long) => long.filter.as_ref(),
            Work::Count { filter, .. } | Work::Run { filter, .. } | Work::Enter { filter, .. } => {
                filter.as_ref()
            }
            Work::Unregister | Work::Help { .. } | Work::Handler(_) | Work::Replace(_) => None,
        }
    }

    /// Returns the program that the resident may run for this work.
    pub(crate) fn program(&self) -> Option<&Arc<Program>> {
        match self {
            Work::Run { program, .. } => Some(program),
            Work::Tally(straight) => Some(straight.program()),
            Work::Long(long) => Some(&long.program),
            Work::Record(_)
            | Work::Count { .. }
            | Work::Enter { .. }
            | Work::Unregister
            | Work::Help { .. }
            | Work::Handler(_)
            | Work::Replace(_) => None,
        }
    }

    /// True if the resident may make a system call for this work, in the program's own thread.
    #[must_use]
    pub fn may_call(&self) -> bool {
        self.program().is_some_and(|program| program.may_call())
    }

    /// True if the work reads what the call that ends here has kept since its entry, or its time.
    #[must_use]
    pub fn reads_call(&self) -> bool {
        self.program().is_some_and(|program| program.reads_call())
    }

    /// True if the work finds callers, for which the session needs a table, and memory for copies of the stack.
    #[must_use]
    pub fn finds_callers(&self) -> bool {
        self.program()
            .is_some_and(|program| program.finds_callers())
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
