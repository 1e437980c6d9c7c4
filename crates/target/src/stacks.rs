//! Every word on the stacks of a stopped process.
//!
//! A thread's stack is scanned from its stack pointer to the end of the mapping
//! (return addresses and signal frames lie above the stack pointer); the mapping that holds its thread structure (the top of a C library's thread
//! stack) and the main stack are scanned whole as well, because a thread on an
//! alternate signal stack has the rest of its frames there.

use crate::maps::Mapping;
use crate::memory::RemoteMemory;
use crate::threads::Stopped;
use std::ops::Range;

/// Most bytes of one stack that are scanned.
const LIMIT: u64 = 256 << 20;
/// A larger mapping that holds a thread structure is a heap, not a stack.
const HOME_LIMIT: u64 = 64 << 20;
const CHUNK: usize = 1 << 20;

fn ranges(stopped: &Stopped, maps: &[Mapping]) -> Vec<Range<u64>> {
    let mapping = |address: u64| maps.iter().find(|m| m.contains(address) && m.perms.read);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut current = Vec::new();
    for thread in stopped.threads() {
        let start = thread.registers.rsp & !7;
        if let Some(m) = mapping(thread.registers.rsp) {
            ranges.push(start.max(m.start)..m.end.min(start.saturating_add(LIMIT)));
            current.push(m.start);
        }
    }
    let homes = stopped
        .threads()
        .iter()
        .filter_map(|t| mapping(t.registers.fs_base))
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
    /// The word itself.
    pub value: u64,
    /// If the word is the segment registers of a signal frame: the program counter
    /// that was saved in that frame.
    pub saved_rip: Option<u64>,
}

/// The segments word of `struct sigcontext_64`: cs, gs, fs, ss, 16 bits each. The
/// kernel writes the program's cs (0x33) and ss (0x2b, or 0 before Linux 4.6).
fn is_segments(word: u64) -> bool {
    word & 0xffff == 0x33 && matches!(word >> 48, 0x2b | 0)
}

/// Calls `see` with every aligned word on the stacks.
pub fn scan(stopped: &Stopped, memory: &RemoteMemory, maps: &[Mapping], mut see: impl FnMut(Word)) {
    for range in ranges(stopped, maps) {
        let mut at = range.start;
        // sigcontext_64 has rip, then the flags, then the segments.
        let (mut two_before, mut before) = (0, 0);
        while at < range.end {
            let len = (range.end - at).min(CHUNK as u64) as usize;
            let Ok(bytes) = memory.read_some(at, len) else {
                break;
            };
            if bytes.is_empty() {
                break;
            }
            for word in bytes.chunks_exact(8) {
                let mut w = [0; 8];
                w.copy_from_slice(word);
                let value = u64::from_le_bytes(w);
                see(Word {
                    value,
                    saved_rip: is_segments(value).then_some(two_before),
                });
                (two_before, before) = (before, value);
            }
            at += bytes.len() as u64;
        }
    }
}
