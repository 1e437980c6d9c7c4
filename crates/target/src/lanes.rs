//! Lanes whose holder is gone are given back.
//!
//! A thread that is killed while it is inside a locked lane ([`capriole_ring::lanes`]), or
//! leaves it by `siglongjmp`, never unlocks it. Threads that come later pass over the lane; when
//! all of a CPU are held so, every event that needs one is lost. Nobody in the program can tell
//! a holder that is gone from one that waits for a processor. So whoever records looks now and
//! then, and releases a lane only if it is sure:
//!
//! 1. The lane is held by the same thread, in the same turn, as at the look before.
//! 2. No process that shares the session has a thread of that number. Or: it has, and while that
//!    thread stands still, its stack pointer is above the frame that holds the lane, on the stack
//!    of its own (a stack grows downwards, so that frame is left); or no word of that frame
//!    points into our code any more, as the return address of a frame that is under way does.
//! 3. The lock is still the same word.
//!
//! A thread that is inside for longer, as it is stopped itself or waits for a page, passes
//! neither test. If a lane is taken from somebody all the same, he finds another word in the lock
//! before he commits, and his event is lost; his positions are his own, so he still writes
//! into the packet that he had.

use crate::attach::Attached;
use crate::maps::Mapping;
use crate::memory::RemoteMemory;
use crate::process::{Process, State};
use crate::recover::sharing;
use crate::session::Arena;
use crate::survey::own_tid;
use crate::threads::{Stopped, StoppedThread};
use crate::tracer;
use capriole_ring::Memory;
use capriole_ring::lanes::Held;
use std::time::{Duration, Instant};

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// The same while there are lanes that cannot be released.
const LONGEST_PERIOD: Duration = Duration::from_secs(1);
/// Bytes of the stack, from the place in a frame that a lock names, in which the frame's return
/// address into our code stands.
const FRAME: usize = 1024;

/// What was seen at the last look.
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

/// A session whose lanes are looked at.
struct Session<'a> {
    process: &'a Process,
    inode: u64,
    memory: &'a Memory,
    arenas: &'a [Arena],
}

/// A thread that may hold a lane, and its process.
struct Candidate {
    process: Process,
    tid: i32,
}

impl Lanes {
    /// Looks, if it is time to. Returns how many lanes were released.
    pub fn look(&mut self, attached: &Attached) -> usize {
        if Instant::now() < self.next {
            return 0;
        }
        let session = &attached.memory;
        let held = Held::all(&session.memory, &session.geometry);
        // A thread that does not know its id cannot be looked for.
        let is_stuck = |lane: &&Held| self.held.contains(lane) && lane.tid() != 0;
        let stuck: Vec<Held> = held.iter().filter(is_stuck).copied().collect();
        let released = match stuck.is_empty() {
            true => 0,
            false if tracer::check_filters(&attached.process).is_err() => 0,
            false => {
                let session = Session {
                    process: &attached.process,
                    inode: attached.inode(),
                    memory: &session.memory,
                    arenas: &attached.installed.arenas,
                };
                tracer::apart(|| release(&session, &stuck))
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
    let mut sharers = vec![session.process.clone()];
    sharers.extend(sharing(session.inode, session.process.pid()));
    let threads: Vec<(u32, Candidate)> = sharers.iter().flat_map(own_tids).collect();
    let is_free = |lane: &&Held| {
        let mut holders = threads.iter().filter(|(own, _)| *own == lane.tid());
        // Until the lane is released they stand still: who goes on may take the same lane, with
        // the same frame, which would be the same word.
        let mut still = Vec::new();
        let left = holders.all(|(_, holder)| has_left(session, holder, lane, &mut still));
        left && lane.release(session.memory)
    };
    stuck.iter().filter(is_free).count()
}

/// The threads of a process, with their numbers as they see them themselves.
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

/// Whether a thread, which stands still then, is not in the frame that holds a lane. If that
/// cannot be found out, it may be.
fn has_left(
    session: &Session<'_>,
    holder: &Candidate,
    lane: &Held,
    still: &mut Vec<Stopped>,
) -> bool {
    let (process, tid) = (&holder.process, holder.tid);
    let Ok(status) = process.thread_status(tid as u32) else {
        return !process.is_alive();
    };
    // One in the middle of a system call, such as vfork, would not stop for long.
    match status.state {
        State::Running | State::Sleeping => {}
        state => return matches!(state, State::Zombie | State::Dead),
    }
    let (Ok(memory), Ok(maps)) = (RemoteMemory::open(process.pid() as i32), process.maps()) else {
        return false;
    };
    let stopped = match Stopped::one(process.pid() as i32, tid) {
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

/// Whether a thread's stack pointer is above `frame` on the stack of its own.
fn is_above(thread: &StoppedThread, maps: &[Mapping], frame: u64) -> bool {
    let (rsp, base) = (thread.registers.rsp, thread.registers.fs_base);
    let Some(stack) = maps.iter().find(|m| m.contains(rsp)) else {
        return false;
    };
    // The main thread's, or one on whose upper end the C library has its thread structure.
    let is_own = stack.is_named("[stack]") || stack.contains(base) && base > rsp;
    is_own && stack.contains(frame) && frame < rsp
}

/// Whether what stands at `frame` may be a frame that was called by our code.
fn is_intact(session: &Session<'_>, memory: &RemoteMemory, frame: u64) -> bool {
    let bytes = memory.read_some(frame, FRAME).unwrap_or_default();
    let mut words = bytes.chunks_exact(8).map(|word| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        u64::from_le_bytes(bytes)
    });
    words.any(|word| session.arenas.iter().any(|a| a.contains(word)))
}
