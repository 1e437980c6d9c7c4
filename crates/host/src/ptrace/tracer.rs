//! Our thread that traces a program, which lives only as long as it works on that program.
//!
//! A tracer can take back an interrupt in one way only: by ending. When a thread that has
//! seized others ends, the kernel releases all of them at once, including those that sleep,
//! without waking them (`exit_ptrace`). So all work on a program is done on a thread created
//! for it ([`apart`]), and no thread of the program stays behind that
//!
//! - was interrupted and sleeps where it cannot stop (in vfork, on a dead disk): it would stop
//!   when that sleep is over, with no tracer to resume it;
//! - has been led past its own seccomp filter: see `restart`.

use crate::error::TargetError;
use crate::ptrace::requests;
use crate::ptrace::requests::Event;
use crate::ptrace::threads;
use crate::x86_64::registers::enters_restart_call;
use capriole_proc::files;
use capriole_proc::process::{Process, Seccomp, Status, TRACER_NAME};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time limit for leading threads past their filters. A thread needs a processor for microseconds.
const RESTART_LIMIT: Duration = Duration::from_secs(5);
/// Time between two checks.
const LOOK: Duration = Duration::from_micros(50);

thread_local! {
    /// True if this thread was created by [`apart`].
    static APART: Cell<bool> = const { Cell::new(false) };
    /// Threads that are being led past their filter; true for those that are inside the call.
    static RESTARTING: RefCell<BTreeMap<i32, bool>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs `work` on a thread of its own, which is the tracer meanwhile; on the calling thread, if
/// that was created for this already, or holds a program that has just been started.
pub fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if APART.get() || threads::holds_any() {
        return work();
    }
    std::thread::scope(|scope| {
        // The name tells others that it is worth waiting for us.
        let tracer = std::thread::Builder::new().name(TRACER_NAME.to_owned());
        let tracer = tracer.spawn_scoped(scope, || {
            APART.set(true);
            let result = work();
            finish_restarts();
            (result, rustix::thread::gettid())
        });
        let tracer = tracer.expect("a thread can be created");
        let (result, tid) = match tracer.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // A joined thread may not have ended yet: only when the kernel has removed our thread are all
        // traced threads released.
        let task = format!("/proc/self/task/{}", tid.as_raw_nonzero());
        while std::path::Path::new(&task).exists() {
            std::thread::yield_now();
        }
        result
    })
}

/// Resumes a stopped thread that has a seccomp filter and continues by `restart_syscall`, a
/// call that it never makes by itself and for which its filter may kill it.
///
/// The filter is suspended at the entry of that one call (PTRACE_O_SUSPEND_SECCOMP, which
/// requires privileges). The thread stays traced at each system call, so that it makes no other
/// one meanwhile, until it sleeps in that call; then the end of our thread releases it.
///
/// # Errors
/// That is not permitted here, or the thread is gone.
pub(crate) fn restart(tid: i32, signal: i32) -> Result<(), Errno> {
    if !APART.get() {
        return Err(Errno::PERM);
    }
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_SUSPEND_SECCOMP;
    requests::set_options(tid, options)?;
    requests::cont_to_syscall(tid, signal)?;
    RESTARTING.with_borrow_mut(|restarting| restarting.insert(tid, false));
    Ok(())
}

/// True if a thread is being led past its filter.
pub(crate) fn is_restarting(tid: i32) -> bool {
    RESTARTING.with_borrow(|restarting| restarting.contains_key(&tid))
}

/// Stops leading a thread past its filter; returns true if it was being led.
pub(crate) fn stop_restart(tid: i32) -> bool {
    RESTARTING.with_borrow_mut(|restarting| restarting.remove(&tid).is_some())
}

/// Leads the threads that [`restart`] has resumed past the entry of the call, all at once.
pub(crate) fn lead_restarts() {
    let started = Instant::now();
    let on_their_way = || {
        RESTARTING.with_borrow(|restarting| {
            let tids = restarting.iter().filter(|(_, inside)| !**inside);
            tids.map(|(tid, _)| *tid).collect::<Vec<_>>()
        })
    };
    loop {
        let waiting = on_their_way();
        if waiting.is_empty() || started.elapsed() > RESTART_LIMIT {
            return;
        }
        let before = waiting.len();
        for tid in waiting {
            lead(tid);
        }
        if on_their_way().len() == before {
            std::thread::sleep(LOOK);
        }
    }
}

/// Handles the next event of a thread that is being led, and releases it when that is done.
fn lead(tid: i32) {
    let done = match requests::wait(tid, false) {
        Ok(None) => return,
        Ok(Some(Event::Syscall)) => {
            let enters = requests::registers(tid).is_ok_and(|r| enters_restart_call(&r));
            if enters && requests::cont_to_syscall(tid, 0).is_ok() {
                RESTARTING.with_borrow_mut(|restarting| restarting.insert(tid, true));
                return;
            }
            // This is the entry of another call, made by a handler: its filter is active again when we are
            // gone. Or it is the exit of this call: if a signal caused that, the signal is pending.
            requests::detach(tid, 0)
        }
        Ok(Some(event @ (Event::Signal(_) | Event::Interrupted))) => {
            let signal = match event {
                Event::Signal(signal) => signal,
                _ => 0,
            };
            if requests::cont_to_syscall(tid, signal).is_ok() {
                RESTARTING.with_borrow_mut(|restarting| restarting.insert(tid, false));
                return;
            }
            Ok(())
        }
        Ok(Some(Event::Gone(_))) | Err(_) => Ok(()),
        Ok(Some(_)) => requests::detach(tid, 0),
    };
    let _ = done; // killed meanwhile: nothing to do
    stop_restart(tid);
}

/// Waits until all of them sleep in the call, or have been released.
fn finish_restarts() {
    lead_restarts();
    let started = Instant::now();
    loop {
        let inside = RESTARTING.with_borrow(|r| r.keys().copied().collect::<Vec<_>>());
        for tid in &inside {
            lead(*tid);
        }
        let awake = RESTARTING.with_borrow(|r| r.keys().any(|tid| !sleeps(*tid)));
        if !awake || started.elapsed() > RESTART_LIMIT {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// True if a thread sleeps in a system call, and so is past its entry.
fn sleeps(tid: i32) -> bool {
    matches!(threads::thread_state(tid), 'S' | 'D' | 'Z' | 'X')
}

/// Refuses, before any thread is interrupted, a process whose filter could kill it then: the
/// kernel may continue a sleep that we have interrupted by a system call of its own, and
/// without privileges the thread cannot be led past the filter.
///
/// # Errors
/// [`TargetError::Filtered`]
pub(crate) fn check_filters(process: &Process) -> Result<(), TargetError> {
    /// The capability that [`restart`] needs (linux/capability.h).
    const CAP_SYS_ADMIN: u64 = 21;
    let filtered = |tid: &u32| {
        let status = process.thread_status(*tid);
        status.is_ok_and(|status| status.seccomp == Seccomp::Filter)
    };
    if !process.threads()?.iter().any(filtered) {
        return Ok(());
    }
    let own = files::read_pseudo("/proc/self/status");
    let own = own.ok().and_then(|text| Status::parse(&text));
    let is_capable = |own: &Status| own.credentials.effective >> CAP_SYS_ADMIN & 1 == 1;
    let filtered_too = own.as_ref().is_some_and(|own| own.seccomp != Seccomp::Off);
    if own.as_ref().is_some_and(is_capable) && !filtered_too {
        return Ok(());
    }
    Err(TargetError::Filtered {
        pid: process.pid() as i32,
        filtered_too,
        as_root: rustix::process::geteuid().is_root(),
    })
}
