//! The end of a session: detaching, and the signs that somebody else has ended it.

use super::Attached;
use crate::detach::{Detached, Flush, detach, detach_and_flush};
use crate::recover::{detach_children, detach_sharing, shares, sharing};
use capriole_host::error::TargetError;
use capriole_host::host::Host;
use capriole_ledger::{Ledger, MemoryAt};
use capriole_proc::process::Process;
use capriole_ring::layout::{State, header, leave, own};

/// Reason for which a program must not have probes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// It disables reading of the time stamp counter.
    Clock,
    /// It sets thread pointers itself.
    ThreadPointer,
}

impl Attached {
    /// Returns the mapping of session memory in the process.
    pub fn memory_at(&self) -> MemoryAt {
        MemoryAt {
            base: self.memory.base,
            size: self.memory.geometry.size() as u64,
            inode: rustix::fs::fstat(&self.memory.file).map_or(0, |s| s.st_ino),
        }
    }

    /// Removes every probe from the process and from the children that it forked meanwhile. Records
    /// stay in session memory.
    ///
    /// # Errors
    /// See [`detach`]; a process that has ended is no error.
    pub fn detach(&self) -> Result<Detached, TargetError> {
        self.detach_by(detach(&*self.host, &self.installed))
    }

    /// Removes every probe as [`detach`](Self::detach) does. `flush` is called when no thread of the process
    /// records any more, while session memory is still in it.
    ///
    /// # Errors
    /// See [`detach`](Self::detach).
    pub fn detach_and_flush(&self, flush: &mut Flush<'_>) -> Result<Detached, TargetError> {
        self.detach_by(detach_and_flush(&*self.host, &self.installed, flush))
    }

    fn detach_by(&self, detached: Result<Detached, TargetError>) -> Result<Detached, TargetError> {
        let mut report = match detached {
            Ok(report) => report,
            Err(_) if self.process().is_over() => Detached::default(),
            Err(error) => return Err(error),
        };
        self.in_use.end();
        report.add_children(&detach_children(
            &*self.host,
            self.kind(),
            &self.memory_at(),
            self.process().pid(),
            None,
        )?);
        Ok(report)
    }

    /// True if a process, one that the program has forked, has the memory of the session.
    #[must_use]
    pub fn is_shared_with(&self, process: &Process) -> bool {
        shares(process, &self.memory_at())
    }

    /// True while the session is mapped in the process: not after exec.
    pub fn is_mapped(&self) -> bool {
        self.memory.ledger.is_in(self.process()).unwrap_or(false)
    }

    /// Returns the reason for which a thread of the program waits until the probes are removed, if one
    /// does. A forked child with such a thread is detached at once, and the recording continues.
    ///
    /// The word that tells that some thread waits is in memory that all processes can write; the
    /// word that tells in which process it waits is in memory private to each. So a child can end
    /// only its own part in a recording.
    pub fn must_leave(&self) -> Option<Leave> {
        let memory = &self.memory.memory;
        if memory.load_u32(header::LEAVE) == 0 {
            return None;
        }
        memory.store_u32(header::LEAVE, 0);
        let word = self.memory.own() + own::LEAVE as u64;
        let waits = |host: &dyn Host| {
            let reason = host.memory().ok()?.read_u32(word).ok()?;
            match reason {
                0 => None,
                leave::THREAD_POINTER => Some(Leave::ThreadPointer),
                _ => Some(Leave::Clock),
            }
        };
        if let Some(reason) = waits(&*self.host) {
            return Some(reason);
        }
        let memory = self.memory_at();
        for child in sharing(&memory, self.process().pid()) {
            let child = self.host.other(&child);
            if waits(&*child).is_some() {
                // If that fails the child continues by itself after some seconds.
                let _ = detach_sharing(&*child, self.kind(), memory.inode);
            }
        }
        None
    }

    /// True if another process (`capriole detach`) has removed the probes. That process records
    /// this in session memory, but so can any other process; so the record is not believed if the
    /// process's own ledger is there and contradicts it.
    pub fn is_restored(&self) -> bool {
        let restored = State::Restored as u32;
        self.memory.memory.load_u32(header::STATE) == restored
            && (!self.is_mapped() || !recorded_as_armed(&*self.host, &self.memory.ledger))
    }

    /// Returns the addresses of the memory for detours.
    pub fn arenas(&self) -> impl Iterator<Item = u64> {
        self.installed.arenas.iter().map(|arena| arena.start)
    }
}

fn recorded_as_armed(host: &dyn Host, ledger: &Ledger) -> bool {
    let memory = host.memory();
    let state = memory.and_then(|remote| ledger.header(&remote)?.state());
    state.is_ok_and(|state| state == State::Armed)
}
