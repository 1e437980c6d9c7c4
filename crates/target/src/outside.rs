//! Sessions as somebody sees them who has made none: which there are, and how to write into one.

use crate::error::TargetError;
use crate::process::Process;
use crate::recover::{self, FoundSession};
use crate::session::MEMFD_NAME;
use capriole_ring::{Memory, Writer};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// The sessions of all processes that we may look at, each with the oldest of the processes
/// that share it.
pub fn sessions() -> Vec<(Process, FoundSession)> {
    let mut found: BTreeMap<u64, (Process, FoundSession)> = BTreeMap::new();
    for process in Process::others() {
        // One that has just ended, or that is not ours.
        let sessions = recover::find(&process).unwrap_or_default().into_iter();
        for session in sessions.filter(|session| session.inode != 0) {
            let older = found
                .get(&session.inode)
                .is_none_or(|(other, _)| process.start_time() < other.start_time());
            if older {
                found.insert(session.inode, (process.clone(), session));
            }
        }
    }
    found.into_values().collect()
}

/// Opens the memory of a session by the descriptor that its recorder has of it, to write
/// records there. (The program itself has no descriptor of it, and to open a mapping takes a
/// capability.)
///
/// # Errors
/// [`TargetError::Share`] if the recorder has ended, or is somebody else's;
/// [`TargetError::Damaged`] if what is there makes no sense.
pub fn writer(process: &Process, session: &FoundSession) -> Result<Writer, TargetError> {
    let pid = process.pid() as i32;
    let share = |errno| TargetError::Share { pid, errno };
    let damaged = |what| TargetError::Damaged { pid, what };
    let owner = session.owner.ok_or(share(Errno::SRCH))?;
    let file = descriptor(owner, session.inode).map_err(share)?;
    // Nobody can make it shorter, so that to look at it is safe.
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(share)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(damaged("its memory is not sealed"));
    }
    let len = rustix::fs::fstat(&file).map_err(share)?.st_size as usize;
    let memory = Memory::map(&file, len).map_err(share)?;
    Writer::new(memory).map_err(|_| damaged("the header"))
}

/// The descriptor of session memory with this inode that a process has open.
fn descriptor(owner: u32, inode: u64) -> rustix::io::Result<OwnedFd> {
    let entries = std::fs::read_dir(format!("/proc/{owner}/fd"))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let name = format!("/memfd:{MEMFD_NAME} (deleted)");
    let mut ours = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        let named = target.as_os_str() == name.as_str();
        // Opened anew, not shared with its owner: a lock of it is then ours alone.
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let open = || rustix::fs::open(entry.path(), flags, Mode::empty()).ok();
        let file = named.then(open)??;
        let is_it = rustix::fs::fstat(&file).ok()?.st_ino == inode;
        is_it.then_some(file)
    });
    ours.next().ok_or(Errno::BADF)
}
