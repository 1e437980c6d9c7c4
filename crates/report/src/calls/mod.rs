//! Calls: pairs of a function's entry and exit.
//!
//! [`walk`] reads a trace once, in time order, and reports the start and end of every call to a
//! [`Visitor`]. Only open calls are kept in memory, so a trace may be larger than memory.
//!
//! # Which exit ends which call
//!
//! Entry and exit events of a function share one [`EventInfo::call`](capriole_trace::EventInfo::call), and
//! record the stack pointer (`_sp`) while it points to the return address: it is the same at the
//! entry and at the exit of one call. Stacks grow downwards, so:
//!
//! * an exit ends the call of its function with the same stack pointer;
//! * open calls below it were left by an exception or `longjmp`: they are **abandoned**. So are
//!   those at or below the stack pointer of a new call. Their real end was not recorded: they count
//!   up to the last event seen in them, and the time after that belongs to their caller;
//! * an exit whose call is not open is counted as **unpaired** and otherwise ignored: the call
//!   began before its function was probed, or its entry was lost;
//! * a tail call ends the caller at the jump. The function jumped to is the next call at the same
//!   depth;
//! * a call still open when the trace ends is **open**, or its **thread ended**. An exception may have
//!   left it without any later event of its thread, so it, too, counts up to the last event seen in it.
//!
//! Calls that were open while events may have been lost, in any stream, are marked **doubtful**:
//! each may really be two calls, with the end of the first and the start of the second missing. A
//! thread's next event may be in a different stream than the lost one.
//!
//! Calls recorded at their exits only, with their duration (`_duration`), are put together as
//! described in the module `whole`.
//!
//! # Several stacks in a thread
//!
//! Coroutines, signal handlers with a stack of their own and Go use several stacks in one thread,
//! and nothing in a trace marks where one starts. Therefore (heuristics):
//!
//! * A stack pointer at most 256 KiB (Go: 1 KiB) from the next open call counts as the same stack;
//!   one farther away is another stack, whose calls wait until the thread comes back.
//! * If that was wrong, the exit of an abandoned call proves it. From then on the limit is half of
//!   the distance between the two. Open calls farther than that from their callers are abandoned
//!   at once: they are taken for calls of another stack, which has been found in the wrong caller.
//! * Go functions record their goroutine (`_g`), and each goroutine has one stack, whatever threads
//!   it runs in; the module `pairing::goroutines` describes how it is followed when Go moves it.
//!   The following two rules are for traces without that field.
//! * Go copies stacks to other addresses. An exit far from all open calls ends the newest one, if
//!   that is of the same function, and moves all calls of its stack by the same distance. A second
//!   entry of the newest call's function is not a second call if the stack was only moved or
//!   checked.
//! * Go moves goroutines between threads. An exit whose call is open in another thread takes that
//!   stack along. Go's stacks are recognised by their addresses (0xc000000000 and up).
//! * Without recorded stack pointers an exit ends the newest open call of its function.
//!
//! Runtimes that copy the stacks of several tasks to the same addresses (greenlet) cannot be
//! distinguished from `longjmp`: they cause abandoned calls and unpaired exits.
//!
//! # Time
//!
//! Times are ticks of the time stamp counter. Calls are nested in each stack, so the sum of the
//! self times of all calls of a stack is exactly the sum of the times of its outermost calls.

mod functions;
mod pairing;
mod stacks;
mod walk;
mod whole;

use std::io;

pub use functions::Functions;
pub(crate) use functions::Side;
pub use walk::{Counts, walk};

use capriole_trace::Event;

/// The way in which a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// It returned.
    Returned,
    /// It jumped to another function, which returns in its place.
    TailCall,
    /// It ended without an exit: by an exception, by `longjmp`, or the exit was lost. It counts up
    /// to the last event seen in it.
    Abandoned,
    /// It was still open at the end of the trace, or had been left and no later event of its thread
    /// shows that. It counts up to the last event seen in it.
    Open,
    /// Its thread ended first, by `pthread_exit`, `_exit`, `exec` or a signal. It counts up to the
    /// last event seen in it.
    ThreadEnded,
}

impl Exit {
    /// True if the end was recorded. Otherwise the last event in the call is a lower bound.
    #[must_use]
    pub fn is_recorded(self) -> bool {
        matches!(self, Exit::Returned | Exit::TailCall)
    }
}

/// The start of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Number of the call; counts from 0.
    pub id: u64,
    /// The innermost recorded call that encloses it; `None` if it is the outermost one of its
    /// stack.
    pub parent: Option<u64>,
    /// Number of the stack. A stack keeps its number from its first open call until none is open.
    pub stack: u64,
    /// The thread.
    pub tid: u32,
    /// The CPU.
    pub cpu: u32,
    /// Index of the function in [`Functions::names`].
    pub function: usize,
    /// Index of the function of the parent call, if there is one.
    pub caller: Option<usize>,
    /// Start time, in ticks.
    pub time: u64,
    /// Number of recorded calls enclosing this one.
    pub depth: usize,
    /// True if one of the enclosing calls is of the same function.
    pub recursive: bool,
}

/// A finished call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The call's start.
    pub begin: Begin,
    /// Time of the end, in ticks; not before its start. If the end was not recorded, the time of
    /// the last event seen in the call.
    pub end: u64,
    /// Ticks from its start to the end of the recording, if it was open then and its thread existed.
    pub before_end: Option<u64>,
    /// The way in which it ended.
    pub exit: Exit,
    /// The thread in which it ended; differs from the thread it began in only in Go.
    pub tid: u32,
    /// The CPU on which it ended.
    pub cpu: u32,
    /// Self time: ticks spent in the call itself, outside recorded calls made by it.
    pub own: u64,
    /// True if events were lost while it was open, so that it may really be two calls.
    pub doubtful: bool,
}

impl Call {
    /// Returns the duration, in ticks: a lower bound if the end was not recorded.
    pub fn duration(&self) -> u64 {
        self.end - self.begin.time
    }

    /// True if both ends were recorded and the call is not doubtful.
    pub fn is_certain(&self) -> bool {
        self.exit.is_recorded() && !self.doubtful
    }
}

/// Receives the calls found by [`walk`]. Calls of one stack end in the reverse order of their
/// starts.
pub trait Visitor {
    /// Called when a call begins.
    ///
    /// # Errors
    ///
    /// An error ends the walk.
    fn begin(&mut self, begin: &Begin, event: &Event<'_>) -> io::Result<()> {
        let _ = (begin, event);
        Ok(())
    }

    /// Called when a call has ended, with the event of its exit if there was one.
    ///
    /// # Errors
    ///
    /// An error ends the walk.
    fn end(&mut self, call: &Call, event: Option<&Event<'_>>) -> io::Result<()> {
        let _ = (call, event);
        Ok(())
    }

    /// Called for an exit of this function without an open call.
    ///
    /// # Errors
    ///
    /// An error ends the walk.
    fn unpaired(&mut self, function: usize, event: &Event<'_>) -> io::Result<()> {
        let _ = (function, event);
        Ok(())
    }

    /// Called for an event unrelated to calls. `stack` is the current stack of its thread, if it
    /// has open calls, and `depth` their number.
    ///
    /// # Errors
    ///
    /// An error ends the walk.
    fn point(&mut self, event: &Event<'_>, stack: Option<u64>, depth: usize) -> io::Result<()> {
        let _ = (event, stack, depth);
        Ok(())
    }

    /// Called when events of this CPU are missing before the next one.
    ///
    /// # Errors
    ///
    /// An error ends the walk.
    fn lost(&mut self, cpu: u32, events: u64) -> io::Result<()> {
        let _ = (cpu, events);
        Ok(())
    }
}
