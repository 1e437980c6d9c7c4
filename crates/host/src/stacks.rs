//! Scan of every word on the stacks of a stopped process.
//!
//! A thread's stack is scanned from its stack pointer to the end of the mapping (return
//! addresses and signal frames are above the stack pointer). The mapping that holds its thread
//! structure (the top of a C library's thread stack) and the main stack are scanned in full as
//! well, because a thread on an alternate signal stack has the rest of its frames there.

use crate::host::{StoppedThread, StoppedThreads, TargetMemory};
use capriole_proc::maps::{Mapping, containing};
use std::collections::HashSet;
use std::ops::Range;

/// Maximum number of bytes scanned of one stack.
const LIMIT: u64 = 256 << 20;
/// A larger mapping that holds a thread structure is a heap, not a stack.
const HOME_LIMIT: u64 = 64 << 20;
const CHUNK: usize = 1 << 20;

/// Returns the mapping of the stack that a thread is on, if that is the main thread's stack, or one
/// on whose upper end the C library keeps its thread structure. Anything else (a goroutine's stack in
/// the heap) may have other data below it.
pub fn own_stack<'a>(maps: &'a [Mapping], thread: &StoppedThread) -> Option<&'a Mapping> {
    let (sp, base) = (thread.sp(), thread.thread_pointer());
    let stack = containing(maps, sp)?;
    let is_own = stack.is_named("[stack]") || stack.contains(base) && base > sp;
    is_own.then_some(stack)
}

/// True if a thread's stack pointer is above `frame` on the thread's own stack: what had that frame has
/// returned, or was left by a jump.
pub fn is_above(thread: &StoppedThread, maps: &[Mapping], frame: u64) -> bool {
    let stack = own_stack(maps, thread);
    stack.is_some_and(|stack| stack.contains(frame) && frame < thread.sp())
}

fn ranges(stopped: &dyn StoppedThreads, maps: &[Mapping]) -> Vec<Range<u64>> {
    // There may be thousands of threads, and as many mappings.
    let mapping = |address: u64| containing(maps, address).filter(|m| m.perms.read);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut current = HashSet::new();
    for thread in stopped.threads() {
        let start = thread.sp() & !7;
        if let Some(m) = mapping(thread.sp()) {
            ranges.push(start.max(m.start)..m.end.min(start.saturating_add(LIMIT)));
            current.insert(m.start);
        }
    }
    let homes = stopped
        .threads()
        .iter()
        .filter_map(|t| mapping(t.thread_pointer()))
        .filter(|m| m.perms.write && !m.is_named("[heap]") && m.end - m.start <= HOME_LIMIT)
        .chain(maps.iter().filter(|m| m.is_named("[stack]")));
    for home in homes {
        if !current.contains(&home.start) {
            ranges.push(home.end.saturating_sub(LIMIT).max(home.start)..home.end);
        }
    }
    ranges.sort_by_key(|r| (r.start, std::cmp::Reverse(r.end)));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// A word on a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// Its address.
    pub address: u64,
    /// The word itself.
    pub value: u64,
    /// The program counter saved in a live signal frame, if the word holds that frame's segment
    /// registers.
    pub saved_rip: Option<u64>,
    /// The start of a stale signal frame, which holds the address of the restorer, if the word
    /// holds that frame's segment registers.
    pub stale_frame: Option<u64>,
}

impl Word {
    /// Returns the address of the signal number, if this word holds the segment registers of a
    /// frame.
    pub fn signal_at(&self) -> u64 {
        self.address.wrapping_add(SIGNAL - BEFORE_SEGMENTS)
    }

    /// True if this word holds the segment registers of the frame of a breakpoint instruction.
    pub fn is_of_breakpoint(&self, memory: &dyn TargetMemory) -> bool {
        let at = self.signal_at();
        let word = |offset| memory.read_u32(at.wrapping_add(offset));
        let (signal, code) = (word(0), word(SIGNAL_CODE));
        self.saved_rip.is_some()
            && signal.is_ok_and(|signal| signal == libc::SIGTRAP as u32)
            && code.is_ok_and(|code| code == BREAKPOINT_CODE)
    }
}

/// Offset in a signal frame of the `siginfo`, which begins with the signal number.
const SIGNAL: u64 = 312;
/// Offset of the code in `siginfo`.
const SIGNAL_CODE: u64 = 8;
/// Code of a SIGTRAP that a breakpoint instruction causes (`SI_KERNEL` of asm-generic/siginfo.h).
pub(crate) const BREAKPOINT_CODE: u32 = 0x80;
/// Offset in a signal frame of the segment registers (struct rt_sigframe).
const BEFORE_SEGMENTS: u64 = 192;
/// Distances in words back from the segment registers of a signal frame to `uc_stack.ss_sp` and to
/// `uc_stack.ss_size` (struct ucontext, asm/ucontext.h).
const STACK_START: usize = 21;
const STACK_SIZE: usize = 19;

/// The last words read, the newest first.
#[derive(Default)]
struct History([u64; STACK_START], usize);

impl History {
    fn push(&mut self, word: u64) {
        self.1 = (self.1 + STACK_START - 1) % STACK_START;
        self.0[self.1] = word;
    }

    /// Returns the word read `back` words ago; 1 is the last.
    fn back(&self, back: usize) -> u64 {
        self.0[(self.1 + back - 1) % STACK_START]
    }
}

/// True if a signal frame at `at` is left over from a handler that has returned: it lies on the
/// alternate stack that the signal was delivered on, and no thread is on that stack. The kernel
/// would write the next frame over it.
fn is_stale(at: u64, history: &History, stopped: &dyn StoppedThreads) -> bool {
    let (start, size) = (history.back(STACK_START), history.back(STACK_SIZE));
    let Some(end) = start.checked_add(size) else {
        return false;
    };
    let stack = start..end;
    let is_on = |t: &StoppedThread| stack.contains(&t.sp());
    size < LIMIT && stack.contains(&at) && !stopped.threads().iter().any(is_on)
}

/// True for the segments word of `struct sigcontext_64`: cs, gs, fs, ss, 16 bits each. The kernel
/// writes the program's cs (0x33) and ss (0x2b, or 0 before Linux 4.6).
fn is_segments(word: u64) -> bool {
    word & 0xffff == 0x33 && matches!(word >> 48, 0x2b | 0)
}

/// Calls `see` with every aligned word on the stacks.
pub fn scan(
    stopped: &dyn StoppedThreads,
    memory: &dyn TargetMemory,
    maps: &[Mapping],
    mut see: impl FnMut(Word),
) {
    for range in ranges(stopped, maps) {
        let mut at = range.start;
        let mut history = History::default();
        while at < range.end {
            let len = (range.end - at).min(CHUNK as u64) as usize;
            let Ok(bytes) = memory.read_some(at, len) else {
                break;
            };
            if bytes.is_empty() {
                break;
            }
            for (word, address) in bytes.as_chunks().0.iter().zip((at..).step_by(8)) {
                let value = u64::from_le_bytes(*word);
                // sigcontext_64 has rip, then the flags, then the segments.
                let is_frame = is_segments(value);
                let stale = is_frame && is_stale(address, &history, stopped);
                see(Word {
                    address,
                    value,
                    saved_rip: (is_frame && !stale).then(|| history.back(2)),
                    stale_frame: stale.then(|| address.wrapping_sub(BEFORE_SEGMENTS)),
                });
                history.push(value);
            }
            at += bytes.len() as u64;
        }
    }
}
