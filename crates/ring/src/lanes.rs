//! Locked lanes and their holders.
//!
//! A lane's lock is one word: 0, or the holder's thread id as that thread itself sees it (0 if it
//! does not know), above the address of a variable of the resident that is on the holder's stack
//! while it holds the lane. A thread that is killed inside, or leaves it by `siglongjmp` from a
//! signal handler, holds its lane for good. The thread itself takes it back when that part of its
//! stack is in use again; the recorder detects all other cases (`capriole_patch::lanes`).
//!
//! Each CPU has 128 lanes. A lane is taken by an atomic exchange; a taken lane is skipped,
//! never waited for. A thread preempted inside a system call of such an event keeps its lane
//! until it runs again, so there must be as many lanes as threads competing for a CPU. The
//! first free lane is taken, so no more are used, and read, than needed. If all are taken, the
//! event is lost, and counted apart from those for which the buffer was full. A holder checks
//! the lock again before it commits.
//!
//! A forked child has its parent's stack addresses and, for a moment or for good, its thread id
//! in the C library's data (musl; a bare `syscall(SYS_fork)`). Each would take the other's lane
//! for its own abandoned one. So a page of each process is emptied by the kernel in a child
//! (`MADV_WIPEONFORK`), which then asks the kernel for its id until the library's copy agrees
//! (`real_id` in `resident.c`).

use crate::layout::{Geometry, LANES, stream};
use crate::memory::Memory;

pub use crate::numbers::lock::{FRAME_SHIFT, TID_SHIFT};

/// A lane that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Byte offset of the stream.
    stream: usize,
    lock: u64,
    turns: u32,
}

impl Held {
    /// All lanes that are held.
    pub fn all(memory: &Memory, geometry: &Geometry) -> Vec<Held> {
        let streams = (1..LANES as u32)
            .flat_map(|lane| (0..geometry.cpus).map(move |cpu| geometry.stream(lane, cpu)));
        let held = streams.map(|stream| Held {
            stream,
            lock: memory.load(stream + stream::LOCK),
            turns: memory.load_u32(stream + stream::TURNS),
        });
        held.filter(|held| held.lock != 0).collect()
    }

    /// Id of the thread that holds the lane; 0 if the thread does not know its id.
    pub fn tid(&self) -> u32 {
        (self.lock >> TID_SHIFT) as u32
    }

    /// An address on the holder's stack, in the frame that holds the lane.
    pub fn frame(&self) -> u64 {
        (self.lock & ((1 << TID_SHIFT) - 1)) << FRAME_SHIFT
    }

    /// Releases the lane; returns true if it was still held in the same way.
    pub fn release(&self, memory: &Memory) -> bool {
        memory.replace(self.stream + stream::LOCK, self.lock, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    #[test]
    fn a_lane_is_released_only_as_it_was_seen() {
        let geometry = Geometry::for_buffer(1 << 16, 2, 1);
        let fd = rustix::fs::memfd_create("lanes-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, geometry.size() as u64).expect("ftruncate");
        let memory = Memory::map(&fd, geometry.size()).expect("map");
        assert_eq!(Held::all(&memory, &geometry), []);
        let at = geometry.stream(3, 1);
        let (tid, frame) = ((1 << 22) - 1, 0x7fff_ffff_efe0);
        let lock = tid << TID_SHIFT | frame >> FRAME_SHIFT;
        memory.store(at + stream::LOCK, lock);
        let held = Held::all(&memory, &geometry);
        assert_eq!(held.len(), 1);
        assert_eq!((u64::from(held[0].tid()), held[0].frame()), (tid, frame));
        memory.store_u32(at + stream::TURNS, 1);
        assert_ne!(Held::all(&memory, &geometry), held, "in another turn");
        memory.store(at + stream::LOCK, lock + 1);
        assert!(!held[0].release(&memory), "by somebody else");
        memory.store(at + stream::LOCK, lock);
        assert!(held[0].release(&memory));
        assert_eq!(Held::all(&memory, &geometry), []);
    }
}
