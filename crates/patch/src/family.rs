//! The processes that share a session, and which of them now have other rights.
//!
//! A forked child has its parent's probes and session memory. If it then changes its user, its
//! groups or its capabilities, it is in another security domain, but both can still write to
//! the memory that they share. Such a child gets its own code back and is no longer recorded.
//! If it keeps session memory mapped elsewhere, the recording has to end, because the child
//! could read later records. (It may have kept that memory where it cannot be found, in a
//! descriptor or in another process.)
//!
//! The check is cheap: a process is examined once, when its number is new; after that, only the
//! status of those that share the session is read.
//!
//! A child that has the very memory of the recorded process (a child of `vfork`) is left alone.
//! This is detected by a word that is written into one ledger and looked for in the other.

use crate::attach::Attached;
use crate::recover;
use capriole_host::error::TargetError;
use capriole_proc::process::Process;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// A process whose rights differ from those of the process that it was forked from.
#[derive(Debug)]
pub struct Stranger {
    /// The process itself.
    pub process: Process,
    /// Result of removing its probes.
    pub result: Result<(), TargetError>,
    /// True if it still has session memory, and so can read the records.
    pub keeps: bool,
}

/// The other processes that share a session.
#[derive(Debug, Default)]
pub struct Family {
    /// Numbers of the processes that have been examined.
    known: BTreeSet<u32>,
    members: Vec<Process>,
}

impl Family {
    /// Removes the probes from processes whose rights now differ from those of the process that was
    /// attached to. Reports each such process once: whether its probes could be removed, and
    /// whether it still has session memory.
    pub fn part(&mut self, attached: &Attached) -> Vec<Stranger> {
        let Ok(status) = attached.process().status() else {
            return Vec::new();
        };
        self.examine(attached);
        let mut strangers = Vec::new();
        self.members.retain(|member| {
            let Ok(now) = member.status() else {
                return false;
            };
            let is_stranger = now.credentials != status.credentials;
            if is_stranger {
                strangers.push(member.clone());
            }
            !is_stranger
        });
        let memory = attached.memory_at();
        // A process that has executed another program meanwhile shares nothing.
        strangers.retain(|p| recover::shares(p, &memory));
        let mut parted = Vec::new();
        for stranger in strangers {
            match has_memory_of(attached, &stranger) {
                // For example a child of vfork, which will execute a program: removing the probes from its
                // memory would remove them from its parent's.
                Ok(true) => self.members.push(stranger),
                Ok(false) => {
                    let host = attached.host.other(&stranger);
                    let result =
                        recover::detach_sharing(&*host, attached.kind(), memory.inode).map(|_| ());
                    if !stranger.is_over() {
                        let keeps = recover::shares(&stranger, &memory);
                        parted.push(Stranger {
                            process: stranger,
                            result,
                            keeps,
                        });
                    }
                }
                Err(_) => {}
            }
        }
        parted
    }

    /// Returns the processes that share the session now, other than the one that was attached to.
    pub fn members(&mut self, attached: &Attached) -> impl Iterator<Item = &Process> {
        self.examine(attached);
        let memory = attached.memory_at();
        self.members
            .iter()
            .filter(move |member| recover::shares(member, &memory))
    }

    /// Examines processes that were not there at the last check.
    fn examine(&mut self, attached: &Attached) {
        let now: BTreeSet<u32> = Process::numbers().collect();
        let target = attached.process();
        let memory = attached.memory_at();
        for pid in now.difference(&self.known) {
            if let Ok(process) = Process::listed(*pid)
                && *pid != target.pid()
                && process.start_time() >= target.start_time()
                && recover::shares(&process, &memory)
            {
                self.members.push(process);
            }
        }
        self.known = now;
    }
}

/// Returns true if a process has the very memory of the one that was attached to, not a copy of
/// it: a word written into one ledger then appears in the other.
fn has_memory_of(attached: &Attached, process: &Process) -> Result<bool, TargetError> {
    let target = attached.host.memory()?;
    let other = attached.host.other(process).memory()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // A value that the ledger did not hold when the child was forked.
    let mark = now.map_or(1, |now| now.as_nanos() as u64);
    let address = attached.memory.ledger.mark(&target, mark)?;
    Ok(other.read_u64(address).is_ok_and(|word| word == mark))
}
