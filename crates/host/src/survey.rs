//! Facts about a stopped process that are needed before code is compiled for it.

use crate::host::{StoppedThreads, TargetMemory};
use capriole_proc::files;
use capriole_proc::process::Process;
use capriole_resident::RSEQ_SIGNATURE;

/// Facts about a process that hold for each of its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Survey {
    /// Offset of `struct rseq` from the thread pointer.
    pub rseq_offset: Option<i32>,
    /// Offset of the kernel's thread id from the thread pointer.
    pub tid_offset: Option<i32>,
    /// True if the threads have a shadow stack (CET).
    pub shadow_stack: bool,
    /// True if threads may have thread pointers that the program itself has set: then the offsets are not known.
    pub own_storage: bool,
}

/// Offsets of the thread id in C libraries: glibc (`struct pthread.tid`) and musl.
const KNOWN_TID_OFFSETS: [i32; 2] = [0x2d0, 0x30];
/// Distance from the thread pointer that is searched otherwise, bytes.
const SEARCH: i64 = 2048;

/// Returns an address's offset from the thread pointer, if detours can encode that offset.
fn offset(address: u64, thread_pointer: u64) -> Option<i32> {
    i32::try_from(address.wrapping_sub(thread_pointer) as i64).ok()
}

/// True if the process runs with a shadow stack (CET), from `x86_Thread_features` of its status.
pub fn has_shadow_stack(process: &Process) -> bool {
    files::read_pseudo_text(process.proc_path("status")).is_ok_and(|status| {
        status
            .lines()
            .any(|l| l.starts_with("x86_Thread_features:") && l.contains("shstk"))
    })
}

/// Returns the one offset at which all threads have registered restartable sequences.
///
/// If one thread has no registration (a C library without support, or threads created without a
/// C library), no offset is returned: that thread's thread pointer may lead anywhere, and
/// reading at an offset from it could fault.
fn rseq_offset(stopped: &dyn StoppedThreads) -> Option<i32> {
    let mut common = None;
    for (index, thread) in stopped.threads().iter().enumerate() {
        let rseq = stopped.restartable_sequences(index)?;
        if rseq.address == 0 || rseq.signature != RSEQ_SIGNATURE {
            return None;
        }
        let here = offset(rseq.address, thread.thread_pointer())?;
        if *common.get_or_insert(here) != here {
            return None;
        }
    }
    common
}

/// Returns the thread id as the target itself sees it, which differs from ours if it lives in a PID
/// namespace: the last number of the `NSpid` line.
pub fn own_tid(pid: i32, tid: i32) -> Option<u32> {
    let status = files::read_pseudo_text(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// True if one of `signals` is pending for a thread that does not block it.
pub fn is_pending(tid: i32, signals: &[i32]) -> bool {
    let Ok(status) = files::read_pseudo_text(format!("/proc/{tid}/status")) else {
        return false;
    };
    let set = |field: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(field));
        line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
    };
    let (pending, blocked) = (set("SigPnd:").unwrap_or(0), set("SigBlk:").unwrap_or(0));
    let waits = |signal: &i32| (pending & !blocked) >> (signal - 1) & 1 == 1;
    signals.iter().any(waits)
}

/// Returns the one offset from the thread pointer at which every thread has its thread id.
fn tid_offset(
    process: &Process,
    stopped: &dyn StoppedThreads,
    memory: &dyn TargetMemory,
) -> Option<i32> {
    let is_ours = process.shares_pid_namespace();
    let own = |tid: i32| match is_ours {
        true => u32::try_from(tid).ok(),
        false => own_tid(stopped.pid(), tid),
    };
    let threads: Vec<(u64, u32)> = stopped
        .threads()
        .iter()
        .map(|t| Some((t.thread_pointer(), own(t.tid)?)))
        .collect::<Option<_>>()?;
    if threads.iter().any(|(base, _)| *base == 0) {
        return None;
    }
    let holds = |offset: i32| {
        threads.iter().all(|(base, tid)| {
            memory
                .read_u32(base.wrapping_add(offset as u64))
                .is_ok_and(|word| word == *tid)
        })
    };
    if let Some(known) = KNOWN_TID_OFFSETS.into_iter().find(|o| holds(*o)) {
        return Some(known);
    }
    // Possibly another runtime's thread structure (Go's runtime.m, for one). With a single thread
    // a word may equal its id by chance: no offset is better than a wrong one.
    if threads.len() < 2 {
        return None;
    }
    (-SEARCH..SEARCH)
        .step_by(4)
        .map(|o| o as i32)
        .find(|o| holds(*o))
}

impl Survey {
    /// Examines every thread of a stopped process.
    pub fn of(
        process: &Process,
        stopped: &dyn StoppedThreads,
        memory: &dyn TargetMemory,
    ) -> Survey {
        Survey {
            shadow_stack: has_shadow_stack(process),
            rseq_offset: rseq_offset(stopped),
            tid_offset: tid_offset(process, stopped, memory),
            own_storage: false,
        }
    }
}
