//! Sessions as seen from processes other than their recorders: listing them and writing into
//! them.

use crate::recover;
use crate::recover::FoundSession;
use crate::session::{SESSION_PATH, is_of_session};
use capriole_host::error::TargetError;
use capriole_host::{memfd, ptrace};
use capriole_ledger::Kind;
use capriole_proc::process::{Process, deputy};
use capriole_ring::{Memory, Writer};
use rustix::fd::OwnedFd;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Name of the command, as its process has it.
const NAME: &str = "capriole";

/// Finds the sessions of recorders that run as the caller's user, each with the oldest of the
/// processes that share it.
///
/// Any process can create memory that looks like a session. So sessions are found by something
/// that cannot be faked: files with our name that processes of this user have open. Contents
/// are read only where such a file is mapped.
pub fn sessions() -> Vec<(Process, FoundSession)> {
    let own = Process::open(std::process::id());
    let uid = rustix::process::geteuid().as_raw();
    let is_recorder = |process: &Process| {
        let name = process.name();
        let named = name == NAME || own.as_ref().is_ok_and(|own| own.name() == name);
        named && process.status().is_ok_and(|status| status.uid == uid)
    };
    // Inodes and the processes that hold them: the recorder, and perhaps writers of messages.
    let mut held: BTreeSet<(u64, u32)> = BTreeSet::new();
    for recorder in own.iter().cloned().chain(Process::others()) {
        if is_recorder(&recorder) {
            let files =
                memfd::descriptors(recorder.pid(), |name| name == Kind::Recorder.memory_name());
            held.extend(files.iter().map(|file| (file.inode, recorder.pid())));
        }
    }
    let is_ours = |session: &FoundSession| {
        let owner = session.owner;
        owner.is_some_and(|owner| held.contains(&(session.inode, owner)))
    };
    let inodes: BTreeSet<u64> = held.iter().map(|(inode, _)| *inode).collect();
    let mut found: BTreeMap<u64, (Process, FoundSession)> = BTreeMap::new();
    for process in Process::others_that_map(SESSION_PATH) {
        // Empty if the process has just ended.
        let maps = process.maps().unwrap_or_default();
        if !maps
            .iter()
            .any(|m| is_of_session(m, Kind::Recorder) && inodes.contains(&m.inode))
        {
            continue;
        }
        // Empty if the process has just ended, or is not ours.
        let sessions = recover::find_of(&*ptrace::host(&process), Kind::Recorder)
            .unwrap_or_default()
            .into_iter();
        for session in sessions.filter(|session| session.inode != 0) {
            let older = found
                .get(&session.inode)
                .is_none_or(|(other, _)| process.start_time() < other.start_time());
            if older && is_ours(&session) {
                found.insert(session.inode, (process.clone(), session));
            }
        }
    }
    found.into_values().collect()
}

/// Opens the memory of a session through its recorder's descriptor, to write records there. (The
/// program itself has no descriptor of it, and opening a mapping takes a capability.)
///
/// # Errors
/// [`TargetError::Share`] if the recorder has ended, or belongs to another user;
/// [`TargetError::Damaged`] if the memory's contents are invalid.
pub fn writer(process: &Process, session: &FoundSession) -> Result<Writer, TargetError> {
    let pid = process.pid() as i32;
    let share = |errno| TargetError::Share { pid, errno };
    let damaged = |what| TargetError::Damaged { pid, what };
    let owner = session.owner.ok_or(share(Errno::SRCH))?;
    let file = descriptor(owner, session.inode).map_err(share)?;
    // The seal prevents truncation, so that reading the mapping is safe.
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(share)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(damaged("its memory is not sealed"));
    }
    let len = rustix::fs::fstat(&file).map_err(share)?.st_size as usize;
    let memory = Memory::map(&file, len).map_err(share)?;
    Writer::new(memory).map_err(|_| damaged("the header"))
}

/// Opens the descriptor that a process has for the session memory with this inode.
fn descriptor(owner: u32, inode: u64) -> rustix::io::Result<OwnedFd> {
    let mut problem = Errno::BADF;
    for path in descriptors(owner)? {
        match memfd::open(&path, Some(inode)) {
            Ok(file) => return Ok(file),
            Err(Errno::BADF) => {}
            Err(errno) => problem = errno,
        }
    }
    Err(problem)
}

/// Returns the paths in `/proc` of the descriptors of a process that have the name of session
/// memory.
fn descriptors(pid: u32) -> rustix::io::Result<impl Iterator<Item = PathBuf>> {
    let name = format!("/memfd:{} (deleted)", Kind::Recorder.memory_name());
    let entries = std::fs::read_dir(format!("/proc/{}/fd", deputy(pid)))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(entries.filter_map(move |entry| {
        let path = entry.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        (target.as_os_str() == name.as_str()).then_some(path)
    }))
}
