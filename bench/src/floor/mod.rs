//! The floor: the work of a probe, written by hand in assembly.
//!
//! Three copies of the empty function begin with one `jmp rel32` to a stub that
//! does its work, executes the three displaced instructions and jumps back to byte
//! 8, as any detour must:
//!
//! - [`Function::FloorCount`]: one `inc` of a counter in memory, not shared.
//! - [`Function::FloorRdtsc`]: `rdtsc` and nothing else, the part of a record whose cost cannot be
//!   reduced.
//! - [`Function::FloorRecord`]: the record below, into this CPU's packet, committed
//!   by one `add` under a restartable sequence.
//!
//! ```text
//!  0        8     12     16        24        32
//!  | tsc    | id  | tid  | arg1    | arg2    |
//! ```
//! The stub relies on what its author knows: the function has two integer arguments, so rax, rdx,
//! r10, r11 and the flags are free at its entry, and nothing is saved or restored. The per-CPU data
//! lies below 2 GiB, so that a 32-bit displacement addresses it; offsets known only at run time
//! (rseq area, thread id) are written into the instructions once, by [`install`].
//! The order of the instructions matters and was found by measurement (Sapphire Rapids):
//! instructions before `rdtsc` overlap with earlier code, and no instruction after it starts until
//! it is done, so the CPU number, the packet's position and its end are fetched first. The time is
//! read inside the restartable sequence: an interrupted record takes a new time, therefore times
//! never go back in one CPU's packets.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

mod stub;

#[allow(unused_imports)] // for the documentation
use crate::function::Function;
use stub::RseqCs;

/// Bytes of a record.
pub const RECORD_BYTES: u64 = 32;
/// The event id that the stub writes.
pub const EVENT_ID: u32 = 7;
/// Default size of a packet, in bytes.
pub const DEFAULT_PACKET_BYTES: u64 = 64 * 1024;

/// Reasons why [`install`] fails.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FloorError {
    /// The C library has no `__rseq_offset`, or has not registered this thread.
    #[error("the C library has registered no restartable sequences (glibc 2.35 or later does)")]
    NoRseq,
    /// The thread control block does not contain the thread id.
    #[error("found no place in the thread control block that holds the thread id")]
    NoThreadId,
    /// A system call failed.
    #[error("cannot {what}: {error}")]
    Sys {
        /// The attempted operation.
        what: &'static str,
        /// The error.
        error: rustix::io::Errno,
    },
    /// The packet size is no multiple of the record size, or zero.
    #[error("packet size {0} is not a positive multiple of {RECORD_BYTES}")]
    PacketBytes(u64),
}

/// Per-CPU state of the stub. When the packet is full, one 16-byte store sets `position` and
/// `wraps` together.
#[repr(C, align(64))]
struct PerCpu {
    /// Address of the next record.
    position: AtomicU64,
    /// Number of times that the packet was full.
    wraps: AtomicU64,
    /// Address after the last record that fits.
    end: u64,
    /// Address of the first record.
    base: u64,
}

/// Counter of [`Function::FloorCount`]. Incremented without a `lock` prefix: one thread only.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// Returns the number of calls that [`Function::FloorCount`] has counted in this process.
pub fn count() -> u64 {
    COUNTER.load(Ordering::Relaxed)
}

/// The installed record stub's memory; lives as long as the process.
pub struct Floor {
    per_cpu: &'static [PerCpu],
    packet_bytes: u64,
}

/// One record, as [`Floor::records`] reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Raw time stamp counter.
    pub tsc: u64,
    /// [`EVENT_ID`].
    pub id: u32,
    /// The kernel's id of the thread.
    pub tid: u32,
    /// The function's arguments.
    pub arguments: [u64; 2],
}

/// Makes [`Function::FloorRecord`] callable; calling that function earlier kills the process. The
/// first call of `install` sets the packet size (in bytes); later calls return the same [`Floor`].
///
/// # Errors
///
/// Why the row cannot be measured here: no restartable sequences, no thread id in
/// the thread control block, no memory below 2 GiB, no writable text.
pub fn install(packet_bytes: u64) -> Result<&'static Floor, FloorError> {
    static FLOOR: OnceLock<Result<Floor, FloorError>> = OnceLock::new();
    if packet_bytes == 0 || !packet_bytes.is_multiple_of(RECORD_BYTES) {
        return Err(FloorError::PacketBytes(packet_bytes));
    }
    FLOOR
        .get_or_init(|| Floor::new(packet_bytes))
        .as_ref()
        .map_err(Clone::clone)
}

impl Floor {
    fn new(packet_bytes: u64) -> Result<Floor, FloorError> {
        let rseq = stub::rseq_offset().ok_or(FloorError::NoRseq)?;
        let tid = thread_id_offset().ok_or(FloorError::NoThreadId)?;
        let cpus = possible_cpus();
        let low = map(
            size_of::<RseqCs>().next_multiple_of(64) + cpus * size_of::<PerCpu>(),
            libc::MAP_32BIT,
        )?;
        let packets = map(cpus * packet_bytes as usize, 0)?;
        let per_cpu = low.wrapping_byte_add(size_of::<RseqCs>().next_multiple_of(64));

        // SAFETY: `low` was just mapped, page-aligned and large enough.
        unsafe { low.cast::<RseqCs>().write(RseqCs::of_the_stub()) };
        for cpu in 0..cpus {
            let base = packets.addr() as u64 + cpu as u64 * packet_bytes;
            let state = PerCpu {
                position: AtomicU64::new(base),
                wraps: AtomicU64::new(0),
                end: base + packet_bytes,
                base,
            };
            // SAFETY: the mapping holds `cpus` of these structures after the descriptor.
            unsafe { per_cpu.cast::<PerCpu>().wrapping_add(cpu).write(state) };
        }
        stub::patch(low.addr() as u32, per_cpu.addr() as u32, rseq, tid)?;
        // SAFETY: initialised above, never unmapped; the fields that change are atomic here.
        let per_cpu = unsafe { core::slice::from_raw_parts(per_cpu.cast::<PerCpu>(), cpus) };
        Ok(Floor {
            per_cpu,
            packet_bytes,
        })
    }

    /// Returns the number of records committed so far, on all CPUs. Exact while no thread is in the
    /// function.
    pub fn committed(&self) -> u64 {
        let per_packet = self.packet_bytes / RECORD_BYTES;
        let one = |cpu: &PerCpu| {
            let written = cpu.position.load(Ordering::Acquire) - cpu.base;
            cpu.wraps.load(Ordering::Acquire) * per_packet + written / RECORD_BYTES
        };
        self.per_cpu.iter().map(one).sum()
    }

    /// Returns the records in each CPU's packet since it was last full, oldest first. Call it only
    /// while no thread is in the function.
    pub fn records(&self) -> Vec<Vec<Record>> {
        let one = |cpu: &PerCpu| {
            let end = cpu.position.load(Ordering::Acquire);
            (cpu.base..end)
                .step_by(RECORD_BYTES as usize)
                .map(read_record)
                .collect()
        };
        self.per_cpu.iter().map(one).collect()
    }
}

fn read_record(address: u64) -> Record {
    // SAFETY: the caller stays between the base and the position of a packet.
    let words = unsafe { (address as *const [u64; 4]).read_volatile() };
    Record {
        tsc: words[0],
        id: words[1] as u32,
        tid: (words[1] >> 32) as u32,
        arguments: [words[2], words[3]],
    }
}

fn map(length: usize, extra: i32) -> Result<*mut u8, FloorError> {
    let what = if extra == 0 {
        "map the floor's packets"
    } else {
        "map memory below 2 GiB"
    };
    let flags = MapFlags::PRIVATE | MapFlags::from_bits_retain(extra as u32);
    // SAFETY: a new anonymous mapping at a place of the kernel's choice.
    unsafe {
        mmap_anonymous(
            core::ptr::null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    }
    .map(|address| address.cast::<u8>())
    .map_err(|error| FloorError::Sys { what, error })
}

/// Returns the number of possible CPU numbers: the last one in the kernel's list, plus one.
fn possible_cpus() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = list
        .trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|n| n.parse::<usize>().ok());
    // Without the list, as many as the largest kernel configuration has.
    last.map_or(8192, |last| last + 1)
}

/// Finds the offset of the kernel's thread id from the thread pointer: the word that holds it in
/// two different threads.
fn thread_id_offset() -> Option<u32> {
    let here = thread_id_candidates();
    let there = std::thread::spawn(thread_id_candidates).join().ok()?;
    here.into_iter().find(|offset| there.contains(offset))
}

fn thread_id_candidates() -> Vec<u32> {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mut thread: *const u32;
    // SAFETY: on x86-64 Linux the word at the thread pointer is its own address (ABI,
    // "TLS variant II").
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    // glibc's is at 0x2d0, musl's at 0x30; glibc's block is larger than 0x400 bytes.
    let words = 0x400 / 4;
    let holds_it = |word: &usize| {
        // SAFETY: the thread control block is mapped and larger than what is read.
        unsafe { thread.wrapping_add(*word).read_volatile() == tid }
    };
    (0..words)
        .filter(holds_it)
        .map(|word| word as u32 * 4)
        .collect()
}
