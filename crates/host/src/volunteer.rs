//! The host for a program that makes calls for us of its own accord: one that probes itself.
//!
//! Its thread that has asked for a change waits at the other end of a [`Line`], and makes the
//! system calls that it is told to. It is stopped by ptrace all the same where that is possible:
//! then its state is kept if we die, and nobody else can change the program meanwhile. Where it is
//! not (a debugger is there, Yama or a seccomp filter forbids it), nothing can be proved about the
//! other threads: then only what is safe whatever they do may be written, see
//! [`Host::can_stop`].

use crate::error::TargetError;
use crate::host::{
    CallTable, Caller, Calls, FramePlace, Host, Routines, StoppedThread, StoppedThreads,
    TargetMemory, is_permitted,
};
use crate::ptrace::memory::RemoteMemory;
use crate::ptrace::{self, requests, tracer};
use capriole_proc::maps::Mapping;
use capriole_proc::process::{Process, Seccomp};
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The connection to a thread that makes calls.
pub trait Line: Debug + Send + Sync {
    /// True if a thread waits at the other end.
    fn is_open(&self) -> bool;

    /// Has the thread make a system call; returns what the kernel returned.
    ///
    /// # Errors
    /// The program is gone, or the connection is broken.
    fn call(&self, number: i64, arguments: [u64; 6]) -> io::Result<i64>;

    /// Address of 64 bytes in the program that are for us.
    fn scratch(&self) -> u64;

    /// Returns what the program has said about the routines that detours call.
    fn routines(&self) -> Option<Routines>;

    /// See [`Host::copied`].
    fn copied(&self) -> Vec<u64>;

    /// Returns the program's memory if the program has opened it for us: the kernel may not let
    /// us open it.
    fn memory(&self) -> Option<File>;
}

/// A program with a [`Line`] to it.
#[derive(Debug)]
pub struct Volunteer {
    ptrace: Arc<dyn Host>,
    line: Arc<dyn Line>,
    /// False if ptrace would kill us.
    may_trace: bool,
    /// The reason why the last attempt to stop a thread was not permitted.
    refusal: Mutex<Option<String>>,
}

/// Returns true if this process, which has a seccomp filter, may call ptrace: `trial` is how a
/// process that does nothing but [`try_ptrace`] ended, `None` if it was killed.
#[must_use]
pub fn may_trace(trial: impl FnOnce() -> Option<bool>) -> bool {
    match own_filter() {
        true => trial().unwrap_or(false),
        false => true,
    }
}

/// Calls ptrace in a way that changes nothing. Returns false if the call itself is not permitted.
/// A filter may kill the process for it.
#[must_use]
pub fn try_ptrace() -> bool {
    // Nobody traces itself: the kernel says so if it is asked.
    let own = rustix::process::getpid().as_raw_nonzero().get();
    requests::cont(own, 0) == Err(Errno::SRCH)
}

fn own_filter() -> bool {
    let own = Process::open(std::process::id());
    own.and_then(|own| own.status())
        .map_or(true, |status| status.seccomp != Seccomp::Off)
}

impl Volunteer {
    /// Returns the host for a program, and tries to stop its thread `tid` for that.
    #[must_use]
    pub fn new(process: &Process, line: Arc<dyn Line>, may_trace: bool, tid: i32) -> Volunteer {
        let volunteer = Volunteer {
            ptrace: ptrace::host(process),
            line,
            may_trace,
            refusal: Mutex::default(),
        };
        tracer::apart(|| drop(volunteer.stop_one(tid)));
        volunteer
    }

    fn pid(&self) -> i32 {
        self.process().pid() as i32
    }

    /// Does what needs ptrace, if that may be used.
    fn traced<T>(
        &self,
        work: impl FnOnce(&dyn Host) -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        let result = match self.may_trace {
            true => work(&*self.ptrace),
            false => Err(TargetError::TraceFiltered { pid: self.pid() }),
        };
        let refused = |error: &TargetError| match error {
            TargetError::NotPermitted { .. } | TargetError::AlreadyTraced { .. } => true,
            TargetError::Filtered { .. } | TargetError::TraceFiltered { .. } => true,
            TargetError::Ptrace { errno, .. } => *errno == Errno::PERM,
            _ => false,
        };
        let error = result.as_ref().err().filter(|error| refused(error));
        *self.refusal() = error.map(ToString::to_string);
        result
    }

    fn refusal(&self) -> MutexGuard<'_, Option<String>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why the program cannot be stopped, as far as is known.
    #[must_use]
    pub fn why_not_stopped(&self) -> Option<String> {
        self.refusal().clone()
    }

    /// Returns the thread that waits for us, if ptrace was not permitted.
    fn volunteers(
        &self,
        hired: Result<Box<dyn Caller>, TargetError>,
    ) -> Result<Box<dyn Caller>, TargetError> {
        let pid = self.pid();
        if hired.is_ok() || self.can_stop() || !self.line.is_open() {
            return hired;
        }
        // A filter that this process has as well has let the program start it, so its calls are not
        // those of a sandbox that kills for what is not expected. Of another nothing is known.
        let filtered = self.process().status()?.seccomp != Seccomp::Off;
        if filtered && !own_filter() {
            return Err(TargetError::Sandboxed {
                pid,
                mode: "filter",
            });
        }
        Ok(Box::new(Waiting {
            pid,
            line: self.line.clone(),
        }))
    }
}

impl Host for Volunteer {
    fn process(&self) -> &Process {
        self.ptrace.process()
    }

    fn other(&self, process: &Process) -> Arc<dyn Host> {
        self.ptrace.other(process)
    }

    fn preflight(&self) -> Result<(), TargetError> {
        match self.can_stop() {
            true => self.ptrace.preflight(),
            false => Ok(self.process().check_architecture()?),
        }
    }

    fn can_stop(&self) -> bool {
        self.refusal().is_none()
    }

    fn routines(&self) -> Option<Routines> {
        self.line.routines()
    }

    fn copied(&self) -> Vec<u64> {
        self.line.copied()
    }

    fn memory(&self) -> Result<Box<dyn TargetMemory>, TargetError> {
        match self.line.memory() {
            Some(file) => Ok(Box::new(RemoteMemory::from(file))),
            None => self.ptrace.memory(),
        }
    }

    fn check_stops(&self) -> Result<(), TargetError> {
        match self.can_stop() {
            true => self.traced(|host| host.check_stops()),
            // Nothing is going to be stopped.
            false => Ok(()),
        }
    }

    fn check_calls(&self) -> Result<(), TargetError> {
        self.ptrace.check_calls()
    }

    fn prepare(&self, memory: &dyn TargetMemory) {
        self.ptrace.prepare(memory);
    }

    fn run_apart(&self, work: &mut (dyn FnMut() + Send)) {
        self.ptrace.run_apart(work);
    }

    fn stop(&self) -> Result<Box<dyn StoppedThreads>, TargetError> {
        self.traced(|host| host.stop())
    }

    fn stop_one(&self, tid: i32) -> Result<Option<Box<dyn StoppedThreads>>, TargetError> {
        self.traced(|host| host.stop_one(tid))
    }

    fn sharing_memory(&self) -> Result<Vec<i32>, TargetError> {
        self.ptrace.sharing_memory()
    }

    fn is_orphan(&self, thread: &StoppedThread, memory: &dyn TargetMemory) -> bool {
        self.ptrace.is_orphan(thread, memory)
    }

    fn may_redirect_calls(&self, thread: &StoppedThread) -> bool {
        self.ptrace.may_redirect_calls(thread)
    }

    fn choose(
        &self,
        stopped: Box<dyn StoppedThreads>,
        memory: &dyn TargetMemory,
    ) -> Result<Box<dyn Caller>, TargetError> {
        self.ptrace.choose(stopped, memory)
    }

    fn choose_among<'s>(
        &self,
        stopped: &'s (dyn StoppedThreads + 'static),
        memory: &dyn TargetMemory,
        maps: &[Mapping],
    ) -> Result<Box<dyn Caller + 's>, TargetError> {
        self.ptrace.choose_among(stopped, memory, maps)
    }

    fn hire(&self, memory: &dyn TargetMemory) -> Result<Box<dyn Caller>, TargetError> {
        self.volunteers(self.traced(|host| host.hire(memory)))
    }

    fn hire_one(
        &self,
        tid: i32,
        memory: &dyn TargetMemory,
    ) -> Result<Box<dyn Caller>, TargetError> {
        self.volunteers(self.traced(|host| host.hire_one(tid, memory)))
    }
}

/// A thread that waits for us in its own code.
#[derive(Debug)]
struct Waiting {
    pid: i32,
    line: Arc<dyn Line>,
}

impl Waiting {
    fn make(&self, number: i64, arguments: [u64; 6]) -> Result<Result<u64, Errno>, TargetError> {
        assert!(
            is_permitted(number),
            "system call {number} is not permitted"
        );
        let pid = self.pid;
        let result = self.line.call(number, arguments);
        let result = result.map_err(|_| TargetError::Vanished { pid })?;
        Ok(match result {
            -4095..0 => Err(Errno::from_raw_os_error(-result as i32)),
            result => Ok(result as u64),
        })
    }
}

impl Caller for Waiting {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn tid(&self) -> i32 {
        self.pid
    }

    // Its registers stay its own: there is no frame, and it needs no stack.
    fn stack(&self) -> Result<FramePlace, TargetError> {
        Ok(FramePlace::Stack { limit: 0 })
    }

    fn returns_by_itself(&self) -> bool {
        true
    }

    fn begin<'a>(
        &'a self,
        memory: &'a dyn TargetMemory,
        _: FramePlace,
    ) -> Result<Box<dyn Calls + 'a>, TargetError> {
        Ok(Box::new(Asked {
            thread: self,
            memory,
        }))
    }

    fn calls_from_anywhere(&self) -> bool {
        true
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// Calls of a thread that waits for us.
struct Asked<'a> {
    thread: &'a Waiting,
    memory: &'a dyn TargetMemory,
}

impl Calls for Asked<'_> {
    fn call(
        &mut self,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<Result<u64, Errno>, TargetError> {
        self.thread.make(number, arguments)
    }

    fn call_each(
        &mut self,
        table: &CallTable,
        is_done: &dyn Fn() -> bool,
    ) -> Result<(), TargetError> {
        let pid = self.thread.pid;
        let [two, three, four] = table.arguments;
        let mut row = table.rows.start;
        while row < table.rows.end {
            let word = |at: u64| {
                let read = self.memory.read_u64(row + at);
                read.map_err(TargetError::reading(pid, row))
            };
            let arguments = [word(0)?, word(8)?, two, three, four, word(16)?];
            let wanted = word(24)?;
            let made = self.thread.make(table.number, arguments)?;
            if made != Ok(wanted) {
                break;
            }
            row += 32;
        }
        let came_to = self.memory.write(table.came_to, &row.to_le_bytes());
        came_to.map_err(TargetError::writing(pid, table.came_to))?;
        debug_assert!(is_done(), "the table is done");
        Ok(())
    }

    fn below_frame(&self) -> u64 {
        self.thread.line.scratch()
    }

    fn finish(self: Box<Self>) -> Result<(), TargetError> {
        Ok(())
    }
}
