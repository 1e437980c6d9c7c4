//! Calls: the entry and the exit of a function, put together.
//!
//! [`walk`] reads a trace once, in time order, and tells a [`Visitor`] of every call when it
//! begins and when it ends. Only calls that are open are kept, so that a trace may be larger
//! than memory.
//!
//! # Which exit ends which call
//!
//! Entries and exits of a function have [`EventInfo::call`](crate::EventInfo::call) in common,
//! and record the stack pointer (`_sp`) where it points to the return address: it is the same at
//! the entry and at the exit of one call. Stacks grow downwards, so:
//!
//! * an exit ends the call of its function with the same stack pointer;
//! * open calls below it were left by an exception or `longjmp`: they are **abandoned**. So are
//!   those at or below the stack pointer of a new call. Nobody saw when they ended: they count up
//!   to the last event that was seen in them, and the time after it is their caller's;
//! * an exit whose call is not open is counted as **unpaired** and is otherwise nothing:
//!   the call began before its function was probed, or its entry was lost;
//! * a tail call ends the caller at the jump. What it jumped to is the next call at the same
//!   depth;
//! * what is open when the trace ends is **open**, up to the end of the recording; if its thread
//!   was not there any more then, up to that thread's last event.
//!
//! Calls that were open at any time at which events may have been lost, in whatever stream, are
//! marked **doubtful**: they may be two, of which the end of the first and the beginning of the
//! second are missing. A thread's next event may be in another stream than the lost one.
//!
//! Calls that were recorded at their exits only, with how long they took (`_duration`), are put
//! together as the module `whole` says.
//!
//! # Several stacks in a thread
//!
//! Coroutines, signal handlers with a stack of their own and Go have several stacks in one
//! thread, and nothing in a trace says where one begins. Therefore (heuristics):
//!
//! * What is at most 256 KiB (Go: 1 KiB) away from the next open call is taken for the same
//!   stack; what is farther is another stack, whose calls wait until the thread comes back.
//! * If that was wrong, the proof comes: the exit of a call that was given up. From then on the
//!   distance is half of what was between the two.
//! * Functions of Go record their goroutine (`_g`), and each has one stack, whatever threads it
//!   runs in; the module `pairing::goroutines` says how it is followed when Go moves it. The
//!   following two are for traces without that field.
//! * Go copies stacks to other places. An exit far from all open calls ends the newest one, if
//!   that is of the same function, and all calls below it are moved by as much. A second entry of
//!   the newest call's function is not a second call if only the stack was moved or looked at.
//! * Go moves goroutines between threads. An exit whose call is open in another thread takes
//!   that stack along. Go's stacks are known by their addresses (0xc000000000 and up).
//! * Without recorded stack pointers an exit ends the newest open call of its function.
//!
//! Runtimes that copy the stacks of several tasks to one and the same place (greenlet) cannot be
//! told from `longjmp`: their calls become abandoned ones and unpaired exits.
//!
//! # Time
//!
//! In ticks of the time stamp counter. Calls are nested in each stack, so that the sum of the
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

use crate::reader::Event;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// It returned.
    Returned,
    /// It jumped to another function, which returns in its place.
    TailCall,
    /// It ended without an exit: by an exception, by `longjmp`, or its exit was lost. It counts
    /// up to the last event that was seen in it.
    Abandoned,
    /// It had not ended when the trace did.
    Open,
    /// It had not ended when its thread did, by `pthread_exit`, `_exit`, `exec` or a signal. It
    /// counts up to the thread's last event.
    ThreadEnded,
}

/// A call that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Counts calls, from 0.
    pub id: u64,
    /// The call that it was made in, of those that were recorded; nothing if it is the first of
    /// its stack.
    pub parent: Option<u64>,
    /// The stack it is on. A stack has a number of its own from its first open call until none
    /// is open.
    pub stack: u64,
    /// The thread.
    pub tid: u32,
    /// The CPU.
    pub cpu: u32,
    /// Its place in [`Functions::names`].
    pub function: usize,
    /// That of the call that it was made in.
    pub caller: Option<usize>,
    /// When, in ticks.
    pub time: u64,
    /// How many recorded calls it is in.
    pub depth: usize,
    /// Whether one of those is of the same function.
    pub recursive: bool,
}

/// A call that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// How it began.
    pub begin: Begin,
    /// When it ended, in ticks; not before it began.
    pub end: u64,
    /// How.
    pub exit: Exit,
    /// The thread that it ended in: another one than it began in only in Go.
    pub tid: u32,
    /// The CPU on which it ended.
    pub cpu: u32,
    /// Ticks that were spent in it, and not in recorded calls made by it.
    pub own: u64,
    /// Whether events were lost while it was open, so that it may be two.
    pub doubtful: bool,
}

impl Call {
    /// How long it took, in ticks.
    pub fn duration(&self) -> u64 {
        self.end - self.begin.time
    }

    /// Whether both of its ends were seen, and no doubt is about them.
    pub fn is_certain(&self) -> bool {
        matches!(self.exit, Exit::Returned | Exit::TailCall) && !self.doubtful
    }
}

/// What [`walk`] tells of. Of each stack, calls end in the opposite order of their beginning.
pub trait Visitor {
    /// A call begins.
    ///
    /// # Errors
    ///
    /// End the walk.
    fn begin(&mut self, begin: &Begin, event: &Event<'_>) -> io::Result<()> {
        let _ = (begin, event);
        Ok(())
    }

    /// A call has ended; with the event of its exit if there was one.
    ///
    /// # Errors
    ///
    /// End the walk.
    fn end(&mut self, call: &Call, event: Option<&Event<'_>>) -> io::Result<()> {
        let _ = (call, event);
        Ok(())
    }

    /// An exit of this function has no call.
    ///
    /// # Errors
    ///
    /// End the walk.
    fn unpaired(&mut self, function: usize, event: &Event<'_>) -> io::Result<()> {
        let _ = (function, event);
        Ok(())
    }

    /// An event that has nothing to do with calls. `stack` is the one that its thread is on, if
    /// a call is open there, and `depth` how many are.
    ///
    /// # Errors
    ///
    /// End the walk.
    fn point(&mut self, event: &Event<'_>, stack: Option<u64>, depth: usize) -> io::Result<()> {
        let _ = (event, stack, depth);
        Ok(())
    }

    /// Events of this CPU are missing before the next one.
    ///
    /// # Errors
    ///
    /// End the walk.
    fn lost(&mut self, cpu: u32, events: u64) -> io::Result<()> {
        let _ = (cpu, events);
        Ok(())
    }
}
