//! Release of lanes whose holder is gone.
//!
//! A thread that is killed while it is inside a locked lane ([`capriole_ring::lanes`]), or
//! leaves it by `siglongjmp`, never unlocks it. Later threads skip the lane; when all lanes of
//! a CPU are held so, every event that needs one is lost. No code in the program can tell a
//! holder that is gone from one that waits for a processor. So the recorder checks now and
//! then, and releases a lane only if it is sure:
//!
//! 1. The lane is held by the same thread, in the same turn, as at the previous check.
//! 2. No process that shares the session has a thread with that id. Or one has such a thread,
//!    and while the thread is stopped, its stack pointer is above the frame that holds the
//!    lane, on the thread's own stack (a stack grows downwards, so the thread has left that
//!    frame); or no word of that frame points into our code any more, as the return address of
//!    an active frame does.
//! 3. The lock still holds the same word.
//!
//! A thread that is inside for longer, because it is stopped itself or waits for a page, passes
//! neither test. If a lane is nevertheless taken from a live holder, the holder finds another
//! word in the lock before it commits, and its event is lost; its positions are its own, so it
//! still writes into the packet that it had.

use crate::attach::Attached;
use crate::recover::sharing;
use capriole_host::host::{Host, StoppedThreads, TargetMemory};
use capriole_host::stacks::is_above;
use capriole_host::survey::own_tid;
use capriole_ledger::{Arena, MemoryAt};
use capriole_proc::process::{Process, State};
use capriole_ring::Memory;
use capriole_ring::lanes::Held;
use std::time::{Duration, Instant};

/// Time between two checks.
const PERIOD: Duration = Duration::from_millis(250);
/// Longest time between two checks while some lanes cannot be released.
const LONGEST_PERIOD: Duration = Duration::from_secs(1);
/// Number of bytes searched for a frame's return address into our code, from the position in
/// the frame that a lock names.
const FRAME: usize = 1024;

/// Lanes held at the last check, and the time of the next check.
#[derive(Debug)]
pub struct Lanes {
    held: Vec<Held>,
    period: Duration,
    next: Instant,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            held: Vec::new(),
            period: PERIOD,
            next: Instant::now() + PERIOD,
        }
    }
}

/// A session whose lanes are checked.
struct Session<'a> {
    host: &'a dyn Host,
    memory_at: MemoryAt,
    memory: &'a Memory,
    arenas: &'a [Arena],
}

/// A thread that may hold a lane, and its process.
struct Candidate {
    process: Process,
    tid: i32,
}

impl Lanes {
    /// Checks the lanes if a check is due. Returns how many were released.
    pub fn look(&mut self, attached: &Attached) -> usize {
        if Instant::now() < self.next {
            return 0;
        }
        let session = &attached.memory;
        let held = Held::all(&session.memory, &session.geometry);
        // A holder without a known thread id cannot be searched for.
        let is_stuck = |lane: &&Held| self.held.contains(lane) && lane.tid() != 0;
        let stuck: Vec<Held> = held.iter().filter(is_stuck).copied().collect();
        let released = match stuck.is_empty() {
            true => 0,
            false if attached.host.check_stops().is_err() => 0,
            false => {
                let session = Session {
                    host: &*attached.host,
                    memory_at: attached.memory_at(),
                    memory: &session.memory,
                    arenas: &attached.installed.arenas,
                };
                attached.host.apart(|| release(&session, &stuck))
            }
        };
        self.period = match released < stuck.len() {
            true => (self.period * 2).min(LONGEST_PERIOD),
            false => PERIOD,
        };
        self.held = held;
        self.next = Instant::now() + self.period;
        released
    }
}

fn release(session: &Session<'_>, stuck: &[Held]) -> usize {
    let mut sharers = vec![session.host.process().clone()];
    sharers.extend(sharing(&session.memory_at, session.host.process().pid()));
    let threads: Vec<(u32, Candidate)> = sharers.iter().flat_map(own_tids).collect();
    let is_free = |lane: &&Held| {
        let mut holders = threads.iter().filter(|(own, _)| *own == lane.tid());
        // The threads stay stopped until the lane is released: one that resumes may take the same
        // lane, with the same frame, which would be the same word.
        let mut still = Vec::new();
        let left = holders.all(|(_, holder)| has_left(session, holder, lane, &mut still));
        left && lane.release(session.memory)
    };
    stuck.iter().filter(is_free).count()
}

/// Returns the threads of a process, with their ids in the process's own PID namespace.
fn own_tids(process: &Process) -> Vec<(u32, Candidate)> {
    let candidate = |tid: u32| {
        let own = own_tid(process.pid() as i32, tid as i32)?;
        let process = process.clone();
        let tid = tid as i32;
        Some((own, Candidate { process, tid }))
    };
    let tids = process.threads().unwrap_or_default();
    tids.into_iter().filter_map(candidate).collect()
}

/// Returns true if a thread, which is then kept stopped in `still`, is not in the frame that
/// holds a lane; false if that cannot be determined.
fn has_left(
    session: &Session<'_>,
    holder: &Candidate,
    lane: &Held,
    still: &mut Vec<Box<dyn StoppedThreads>>,
) -> bool {
    let (process, tid) = (&holder.process, holder.tid);
    let Ok(status) = process.thread_status(tid as u32) else {
        return !process.is_alive();
    };
    // A thread in the middle of a system call, such as vfork, might take long to stop.
    match status.state {
        State::Running | State::Sleeping => {}
        state => return state.has_ended(),
    }
    let host = session.host.other(process);
    let (Ok(memory), Ok(maps)) = (host.memory(), process.maps()) else {
        return false;
    };
    let stopped = match host.stop_one(tid) {
        Ok(Some(stopped)) => stopped,
        Ok(None) => return true, // it has ended
        Err(_) => return false,
    };
    let left = stopped.threads().iter().all(|thread| {
        is_above(thread, &maps, lane.frame()) || !is_intact(session, &memory, lane.frame())
    });
    still.push(stopped);
    left
}

/// True if the bytes at `frame` may be a frame that our code called.
fn is_intact(session: &Session<'_>, memory: &dyn TargetMemory, frame: u64) -> bool {
    let bytes = memory.read_some(frame, FRAME).unwrap_or_default();
    let words = bytes.as_chunks().0.iter();
    let mut words = words.map(|word| u64::from_le_bytes(*word));
    words.any(|word| session.arenas.iter().any(|a| a.contains(word)))
}
