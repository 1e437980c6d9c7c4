//! The host for other processes: threads are stopped and registers changed by ptrace, memory is
//! read and written through `/proc/PID/mem`.
//!
//! - [`requests`]: the ptrace requests in use
//! - [`tracer`], [`threads`]: seizing and stopping threads
//! - [`memory`], `inject`, `agent`: reading and writing memory, and making system calls in a
//!   stopped thread
//! - `redirected`: threads that cannot make system calls at any time
//! - [`launch`]: starting a program and stopping it before its own code runs

mod agent;
mod inject;
pub mod launch;
pub mod memory;
mod redirected;
pub mod requests;
pub mod threads;
pub mod tracer;

use crate::error::TargetError;
use crate::host::{Caller, Host, StoppedThread, StoppedThreads, TargetMemory};
use crate::x86_64::frame;
use crate::x86_64::gadgets::{self, Gadgets};
use agent::Agent;
use capriole_proc::maps::Mapping;
use capriole_proc::process::{Process, Seccomp};
use memory::RemoteMemory;
use std::sync::{Arc, Mutex, PoisonError};
use threads::Stopped;

/// Another process, changed by ptrace.
#[derive(Debug)]
pub struct Ptrace {
    process: Process,
    /// The instructions found last.
    gadgets: Mutex<Option<Gadgets>>,
}

/// Returns the host for another process.
pub fn host(process: &Process) -> Arc<dyn Host> {
    Arc::new(Ptrace {
        process: process.clone(),
        gadgets: Mutex::new(None),
    })
}

impl Ptrace {
    fn pid(&self) -> i32 {
        self.process.pid() as i32
    }

    /// Finds the instructions that calls need, or checks those found earlier: a library may have
    /// been unloaded, or a probe written over them.
    fn search(&self, memory: &dyn TargetMemory) -> Result<Option<Gadgets>, TargetError> {
        let mut known = self.gadgets.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.is_some_and(|gadgets| gadgets.still_there(memory)) {
            *known = gadgets::search(&self.process.maps()?, memory);
        }
        Ok(*known)
    }

    fn gadgets(&self, memory: &dyn TargetMemory) -> Result<Gadgets, TargetError> {
        self.search(memory)?
            .ok_or(TargetError::NoSyscall { pid: self.pid() })
    }
}

impl Host for Ptrace {
    fn process(&self) -> &Process {
        &self.process
    }

    fn other(&self, process: &Process) -> Arc<dyn Host> {
        host(process)
    }

    fn memory(&self) -> Result<Box<dyn TargetMemory>, TargetError> {
        Ok(Box::new(RemoteMemory::open(self.pid())?))
    }

    fn check_stops(&self) -> Result<(), TargetError> {
        tracer::check_filters(&self.process)
    }

    fn check_calls(&self) -> Result<(), TargetError> {
        match self.process.status()?.seccomp {
            Seccomp::Strict => Err(TargetError::Sandboxed {
                pid: self.pid(),
                mode: "strict",
            }),
            _ => Ok(()),
        }
    }

    fn prepare(&self, memory: &dyn TargetMemory) {
        // What is not found is told where it is needed.
        let _ = self.search(memory);
    }

    fn run_apart(&self, work: &mut (dyn FnMut() + Send)) {
        tracer::apart(work);
    }

    fn stop(&self) -> Result<Box<dyn StoppedThreads>, TargetError> {
        Ok(Box::new(Stopped::all(self.pid())?))
    }

    fn stop_one(&self, tid: i32) -> Result<Option<Box<dyn StoppedThreads>>, TargetError> {
        let stopped = Stopped::one(self.pid(), tid)?;
        Ok(stopped.map(|stopped| Box::new(stopped) as Box<dyn StoppedThreads>))
    }

    fn sharing_memory(&self) -> Result<Vec<i32>, TargetError> {
        threads::sharing_memory(self.pid())
    }

    fn is_orphan(&self, thread: &StoppedThread, memory: &dyn TargetMemory) -> bool {
        let gadgets = || self.search(memory).ok().flatten();
        frame::is_orphan(&thread.registers, memory, gadgets)
    }

    fn may_redirect_calls(&self, thread: &StoppedThread) -> bool {
        redirected::may_be(&self.process, thread.tid)
    }

    fn choose(
        &self,
        stopped: Box<dyn StoppedThreads>,
        memory: &dyn TargetMemory,
    ) -> Result<Box<dyn Caller>, TargetError> {
        let agent = Agent::choose(&self.process, stopped, memory, self.gadgets(memory)?)?;
        Ok(Box::new(agent))
    }

    fn choose_among<'s>(
        &self,
        stopped: &'s (dyn StoppedThreads + 'static),
        memory: &dyn TargetMemory,
        maps: &[Mapping],
    ) -> Result<Box<dyn Caller + 's>, TargetError> {
        let agent = Agent::among(&self.process, stopped, memory, maps, self.gadgets(memory)?)?;
        Ok(Box::new(agent))
    }

    fn hire(&self, memory: &dyn TargetMemory) -> Result<Box<dyn Caller>, TargetError> {
        let agent = Agent::hire(&self.process, memory, self.gadgets(memory)?)?;
        Ok(Box::new(agent))
    }
}
