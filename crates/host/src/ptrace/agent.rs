//! Choosing a thread of the target that makes system calls for us.

use crate::error::TargetError;
use crate::host::{Caller, Calls, FramePlace, StoppedThread, StoppedThreads, TargetMemory};
use crate::ptrace::inject::Injector;
use crate::ptrace::threads::Stopped;
use crate::ptrace::{redirected, requests};
use crate::stacks::own_stack;
use crate::x86_64::frame::frame_size;
use crate::x86_64::gadgets::Gadgets;
use crate::x86_64::registers::{Loss, loss};
use capriole_proc::files;
use capriole_proc::maps::Mapping;
use capriole_proc::process::{Process, Seccomp};
use std::fmt::Debug;
use std::ops::Deref;
use std::time::Duration;

/// Pause before the second attempt to get a thread that is not about to receive a signal; it is
/// doubled before each further one, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Number of such pauses, 1.5 s in all. At one instant all threads may be unusable, for example
/// when each of them is about to receive a timer's signal; one that faults all the time is at most instants.
const PAUSES: u32 = 300;

/// Number of threads that are looked at before one of them is stopped.
const LOOKED_AT: usize = 64;

/// A stopped thread of the target, with the instructions by which it makes calls.
#[derive(Debug)]
pub(super) struct Agent<S> {
    process: Process,
    /// The stopped threads, of which it is the one at `index`.
    stopped: S,
    index: usize,
    gadgets: Gadgets,
}

/// Returns the index of the thread that is best for calls by these instructions.
fn best(
    stopped: &dyn StoppedThreads,
    memory: &dyn TargetMemory,
    maps: &[Mapping],
    gadgets: &Gadgets,
) -> Result<usize, TargetError> {
    let pid = stopped.pid();
    // Use only threads of this process: another process with the same memory may have other
    // descriptors and handlers.
    let threads = stopped.threads();
    let usable = |t: &StoppedThread| t.signal == 0 && t.pid == pid;
    let mut usable: Vec<usize> = (0..threads.len())
        .filter(|index| usable(&threads[*index]))
        .collect();
    usable.sort_by_key(|index| loss(&threads[*index].registers));
    // Stacks are looked for in that order: all threads stand still meanwhile.
    let on_stack = |index: &usize| stack_of(maps, &threads[*index]).is_some();
    let permits = |index: &usize| redirected::permits(threads[*index].tid, gadgets, memory);
    // One whose instruction has just faulted is about to receive a signal, too. If we died with the
    // registers set for a call, the program's handler would be told that it had faulted there.
    let goes_on = |index: &usize| threads[*index].goes_on();
    let in_order = || usable.iter().copied().filter(permits).filter(goes_on);
    let found = in_order().find(on_stack).or_else(|| in_order().next());
    found.ok_or_else(|| match usable.iter().any(goes_on) {
        true => TargetError::Redirected { pid },
        false => TargetError::NoThread { pid },
    })
}

/// Returns the mapping of the stack below which a thread's frame may be written.
fn stack_of<'a>(maps: &'a [Mapping], thread: &StoppedThread) -> Option<&'a Mapping> {
    own_stack(maps, thread).filter(|m| m.perms.write && !m.perms.shared)
}

/// Returns what a thread that is not stopped would probably lose: it may go on meanwhile.
fn probable_loss(pid: i32, tid: i32) -> Loss {
    let call = files::read_pseudo_text(format!("/proc/{pid}/task/{tid}/syscall"));
    let number = call
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok());
    match number {
        Some(libc::SYS_restart_syscall) => Loss::Call,
        Some(0..) => Loss::Nothing,
        _ => Loss::Time,
    }
}

impl Agent<Box<dyn StoppedThreads>> {
    /// Chooses one of the stopped threads, resumes the others, and keeps that one stopped.
    pub(super) fn choose(
        process: &Process,
        stopped: Box<dyn StoppedThreads>,
        memory: &dyn TargetMemory,
        gadgets: Gadgets,
    ) -> Result<Self, TargetError> {
        let index = best(&*stopped, memory, &process.maps()?, &gadgets)?;
        Agent::of(process, stopped.keep_only(index), 0, gadgets)
    }

    /// Stops one thread of a process for system calls.
    pub(super) fn hire(
        process: &Process,
        memory: &dyn TargetMemory,
        gadgets: Gadgets,
    ) -> Result<Self, TargetError> {
        let pid = process.pid() as i32;
        let mut why = TargetError::NoThread { pid };
        for attempt in 0..=PAUSES {
            if attempt > 0 {
                let doubled = FIRST_PAUSE * (1 << (attempt - 1).min(16));
                std::thread::sleep(doubled.min(LONGEST_PAUSE));
            }
            let mut tids: Vec<i32> = process.threads()?.into_iter().map(|t| t as i32).collect();
            let len = tids.len().max(1);
            tids.rotate_left(attempt as usize % len);
            // The best first, as in `choose`.
            let some = tids.len().min(LOOKED_AT);
            tids[..some].sort_by_cached_key(|tid| probable_loss(pid, *tid));
            for tid in tids {
                let stopped = Stopped::one(pid, tid).and_then(|stopped| match stopped {
                    Some(mut stopped) => stopped.past_signals().map(|()| Some(stopped)),
                    None => Ok(None),
                });
                let stopped = match stopped {
                    Ok(Some(stopped)) => stopped,
                    Ok(None) | Err(TargetError::Unstoppable { .. }) => continue,
                    Err(error) => return Err(error),
                };
                match Agent::choose(process, Box::new(stopped), memory, gadgets) {
                    Err(error @ TargetError::Redirected { .. }) => why = error,
                    Err(TargetError::NoThread { .. }) => {}
                    result => return result,
                }
            }
        }
        Err(why)
    }
}

impl<'s> Agent<&'s (dyn StoppedThreads + 'static)> {
    /// Chooses one of the stopped threads; all stay stopped.
    pub(super) fn among(
        process: &Process,
        stopped: &'s (dyn StoppedThreads + 'static),
        memory: &dyn TargetMemory,
        maps: &[Mapping],
        gadgets: Gadgets,
    ) -> Result<Self, TargetError> {
        let index = best(stopped, memory, maps, &gadgets)?;
        Agent::of(process, stopped, index, gadgets)
    }
}

impl<S: Deref<Target = dyn StoppedThreads + 'static>> Agent<S> {
    fn of(
        process: &Process,
        stopped: S,
        index: usize,
        gadgets: Gadgets,
    ) -> Result<Self, TargetError> {
        let pid = stopped.pid();
        let tid = stopped.threads()[index].tid;
        if process.thread_status(tid as u32)?.seccomp != Seccomp::Off {
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_SUSPEND_SECCOMP;
            requests::set_options(tid, options).map_err(|_| TargetError::Sandboxed {
                pid,
                mode: "filter",
            })?;
        }
        let process = process.clone();
        Ok(Agent {
            process,
            stopped,
            index,
            gadgets,
        })
    }

    fn thread(&self) -> &StoppedThread {
        &self.stopped.threads()[self.index]
    }
}

impl<S: Deref<Target = dyn StoppedThreads + 'static> + Debug> Caller for Agent<S> {
    fn pid(&self) -> i32 {
        self.stopped.pid()
    }

    fn tid(&self) -> i32 {
        self.thread().tid
    }

    fn stack(&self) -> Result<FramePlace, TargetError> {
        let thread = self.thread();
        let maps = self.process.maps()?;
        let xstate = requests::xstate(thread.tid).unwrap_or_default();
        let need = 128
            + 64
            + match xstate.is_empty() {
                true => 0,
                false => frame_size(&xstate),
            };
        Ok(match stack_of(&maps, thread) {
            Some(m) if self.returns_by_itself() && thread.sp() - need >= m.start + 64 => {
                FramePlace::Stack {
                    limit: m.start + 64,
                }
            }
            _ => FramePlace::Nowhere,
        })
    }

    fn returns_by_itself(&self) -> bool {
        self.gadgets.chain.is_some()
    }

    fn begin<'a>(
        &'a self,
        memory: &'a dyn TargetMemory,
        place: FramePlace,
    ) -> Result<Box<dyn Calls + 'a>, TargetError> {
        let injector = Injector::new(self.thread(), self.pid(), memory, &self.gadgets, place)?;
        Ok(Box::new(injector))
    }

    fn calls_from_anywhere(&self) -> bool {
        redirected::is_never(self.thread().tid)
    }

    fn elapsed(&self) -> Duration {
        self.stopped.elapsed()
    }
}
