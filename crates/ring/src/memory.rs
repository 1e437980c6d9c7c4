//! The mapping of session memory, read and written with atomics and bounds checks.

use crate::layout;
use crate::layout::{Geometry, State, control, header, stream};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FlockOperation, SeekFrom, flock, seek};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bound of a valid count, which takes years to reach. Sums of lower counts do not
/// overflow.
pub const MOST: u64 = 1 << 48;

/// A mapping of session memory.
///
/// Every access names a byte offset; one outside the mapping panics, because the
/// offsets come from a [`Geometry`] that the tracer made itself. What is *read*
/// may be anything.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to the value and is accessed through atomics and
// byte copies only, which are sound from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above; no method hands out a reference to plain memory.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` bytes of the memfd `fd` shared, for reading and writing.
    ///
    /// # Errors
    /// The error of `mmap`, or `EINVAL` if the file is shorter than `len`: an access to a page
    /// beyond its end would raise SIGBUS later.
    pub fn map(fd: &OwnedFd, len: usize) -> rustix::io::Result<Memory> {
        if rustix::fs::fstat(fd.as_fd())?.st_size < len as i64 {
            return Err(rustix::io::Errno::INVAL);
        }
        // SAFETY: a fresh mapping at an address that the kernel chooses; the file is long enough,
        // as was just checked, and sealed against shrinking by its creator.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::FAULT)?;
        Ok(Memory {
            start,
            len,
            // Programs started meanwhile do not inherit it.
            file: rustix::io::fcntl_dupfd_cloexec(fd, 0)?,
        })
    }

    /// Returns the parts of a range that were ever written; the rest is zero. Reading the rest
    /// would make the kernel allocate memory for it.
    pub fn written(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut from = range.start;
        while from < range.end {
            let Ok(start) = seek(&self.file, SeekFrom::Data(from as u64)) else {
                return parts; // nothing up to the end
            };
            let start = (start as usize).max(from);
            if start >= range.end {
                break;
            }
            let end = seek(&self.file, SeekFrom::Hole(start as u64));
            let end = end.map_or(range.end, |end| end as usize).min(range.end);
            parts.push(start..end);
            from = end.max(start + 1);
        }
        parts
    }

    /// Size of the mapping in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the mapping is empty (it never is).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn check(&self, offset: usize, size: usize) {
        assert!(
            offset.is_multiple_of(size) && offset.checked_add(size).is_some_and(|e| e <= self.len),
            "offset {offset:#x} outside session memory of {:#x} bytes",
            self.len
        );
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        // SAFETY: inside the mapping and aligned, as checked; the other process
        // uses aligned machine words there as well, so atomics suffice.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().wrapping_add(offset).cast()) }
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4);
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().wrapping_add(offset).cast()) }
    }

    /// Loads a u64 with acquire ordering: everything the writer stored before it is visible
    /// afterwards.
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores a u64 with release ordering: everything stored earlier is visible before it.
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Loads a u32 with acquire ordering: everything the writer stored before it is visible
    /// afterwards.
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.half(offset).load(Ordering::Acquire)
    }

    /// Stores a u32 with release ordering: everything stored earlier is visible before it.
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.half(offset).store(value, Ordering::Release);
    }

    /// Locks the file against other processes, and against other open file descriptions in this
    /// one; waits for at most `limit`. The kernel unlocks it when the holder ends. Returns true if
    /// it is locked.
    pub(crate) fn lock(&self, limit: Duration) -> bool {
        let began = Instant::now();
        loop {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return true,
                Err(_) if began.elapsed() > limit => return false,
                Err(_) => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Releases the lock taken by [`lock`](Self::lock).
    pub(crate) fn unlock(&self) {
        // This process holds the lock, so there is no error to handle.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }

    /// Adds to a u64 atomically; concurrent additions are not lost.
    pub(crate) fn add(&self, offset: usize, value: u64) {
        self.word(offset).fetch_add(value, Ordering::AcqRel);
    }

    /// Stores a u64 if the current one is `old`; returns true if it did.
    pub(crate) fn replace(&self, offset: usize, old: u64, new: u64) -> bool {
        let word = self.word(offset);
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Copies bytes out. They may change while they are copied; the copy does not.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset
                .checked_add(into.len())
                .is_some_and(|e| e <= self.len)
        );
        // SAFETY: source inside the mapping, as checked; destination is ours and
        // cannot overlap a mapping that we own exclusively. A concurrent writer
        // in another process can only make the bytes themselves arbitrary.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start.as_ptr().wrapping_add(offset),
                into.as_mut_ptr(),
                into.len(),
            );
        }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(
            offset
                .checked_add(bytes.len())
                .is_some_and(|e| e <= self.len)
        );
        // SAFETY: destination inside the mapping, as checked; see `read`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.start.as_ptr().wrapping_add(offset),
                bytes.len(),
            );
        }
    }

    /// Lays out fresh (zeroed) session memory that the target has mapped at `base`.
    ///
    /// Every stream starts without a packet, as if its packet was full: a CPU takes its first
    /// packet when it records its first event.
    pub fn format(&self, base: u64, g: &Geometry) {
        use header as h;
        for (offset, value) in [
            (h::BASE, base),
            (h::SIZE, g.size() as u64),
            (h::PACKETS_OFFSET, g.packets_offset() as u64),
        ] {
            self.store(offset, value);
        }
        for (offset, value) in [
            (h::VERSION, layout::VERSION),
            (h::STATE, State::Building as u32),
            (h::CPUS, g.cpus),
            (h::LANES, layout::LANES as u32),
            (h::PACKET_SIZE, g.packet_size),
            (h::PACKETS, g.packets),
            (h::NO_CALLS, 0),
            (h::MESSAGES, 0),
        ] {
            self.store_u32(offset, value);
        }
        for index in 0..g.packets {
            self.free_packet(index);
        }
        self.store(g.control(g.packets) + control::SEQ, u64::MAX);
        let first = g.streams() - layout::NULL_STREAMS * stream::SIZE;
        for stream in (first..g.packets_offset()).step_by(stream::SIZE) {
            self.store(stream + stream::HEAD, 0);
        }
        // Stored last, so that memory with a magic number has a complete header.
        self.store(h::MAGIC, layout::MAGIC);
    }

    /// Reads a word that processes of the session use as a counter. A value too high to have been
    /// counted is returned as 0: the word was overwritten.
    #[must_use]
    pub fn counted(&self, offset: usize) -> u64 {
        let count = self.load(offset);
        if count < MOST { count } else { 0 }
    }

    /// True if a word used as a counter was overwritten.
    #[must_use]
    pub fn is_written_over(&self, offset: usize) -> bool {
        self.load(offset) >= MOST
    }

    /// Gives packet `index` back to the writers.
    pub fn free_packet(&self, index: u32) {
        let offset = header::FREE + index as usize / 64 * 8;
        self.word(offset)
            .fetch_or(1 << (index % 64), Ordering::AcqRel);
    }

    /// Takes the free packet with the lowest number away from the writers, if there is one.
    pub(crate) fn take_packet(&self, packets: u32) -> Option<u32> {
        (0..packets.div_ceil(64)).find_map(|i| {
            let word = self.word(header::FREE + i as usize * 8);
            let taken = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
                (free != 0).then_some(free & free.wrapping_sub(1))
            });
            let index = i * 64 + taken.ok()?.trailing_zeros();
            (index < packets).then_some(index)
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use rustix::io::FdFlags;

    /// A program started while a session is read does not inherit its memory.
    #[test]
    fn the_memory_is_not_inherited() {
        let fd = rustix::fs::memfd_create("memory-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, 1 << 16).expect("ftruncate");
        let memory = Memory::map(&fd, 1 << 16).expect("map");
        let flags = rustix::io::fcntl_getfd(&memory.file).expect("flags");
        assert!(flags.contains(FdFlags::CLOEXEC));
    }
}
