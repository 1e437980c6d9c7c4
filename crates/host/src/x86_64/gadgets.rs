//! Instructions already in the target that let a thread make a system call for us.

use crate::host::TargetMemory;
use capriole_proc::maps::Mapping;

/// A `syscall` followed by a `ret`, with only pops between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyscallReturn {
    /// Address of the `syscall`.
    pub address: u64,
    /// Number of words popped between `syscall` and `ret`.
    pub pops: usize,
}

/// Way for a thread to get from a `ret` to `rt_sigreturn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sigreturn {
    /// `mov $15, %rax; syscall`: the restorer that every C library has.
    Restorer(u64),
    /// `pop %rax; ret`, followed by a plain `syscall`.
    PopRax(u64),
}

/// Instructions found in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gadgets {
    /// Any `syscall` instruction.
    pub syscall: u64,
    /// A `syscall` that returns, and a way to `rt_sigreturn`: with both, a thread resumes by itself
    /// even if the tracer dies.
    pub chain: Option<(SyscallReturn, Sigreturn)>,
}

/// Number of bytes searched in one mapping, at most.
const SEARCH_LIMIT: usize = 16 << 20;

/// Checks the code behind a `syscall`: `Some(pops)` if it reaches a `ret`.
///
/// Besides pops it accepts the C libraries' error check (`cmp $-4095, %rax; jae error`), which
/// falls through on success, and on an error sets errno and returns as well.
fn pops_before_return(mut tail: &[u8]) -> Option<usize> {
    let mut pops = 0;
    if let [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, _, rest @ ..] = tail {
        tail = rest;
    }
    loop {
        match tail {
            [0xc3, ..] => return Some(pops),
            [0x58..=0x5b | 0x5d..=0x5f, rest @ ..] => tail = rest,
            [0x41, 0x58..=0x5f, rest @ ..] => tail = rest,
            _ => return None,
        }
        pops += 1;
        if pops > 6 {
            return None;
        }
    }
}

fn find(bytes: &[u8], pattern: &[u8], mut accept: impl FnMut(usize) -> bool) -> Option<usize> {
    let first = pattern[0];
    let mut from = 0;
    while let Some(next) = bytes[from..].iter().position(|b| *b == first) {
        let at = from + next;
        if bytes[at..].starts_with(pattern) && accept(at) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
const POP_RAX: [u8; 2] = [0x58, 0xc3];

impl Gadgets {
    /// True if the instructions are still where they were found: a library may have been unloaded,
    /// or a probe written over them.
    pub(crate) fn still_there(&self, memory: &dyn TargetMemory) -> bool {
        let has = |address, pattern: &[u8]| {
            memory
                .read_some(address, pattern.len())
                .is_ok_and(|bytes| bytes == pattern)
        };
        let returns = |s: &SyscallReturn| {
            has(s.address, &SYSCALL)
                && memory
                    .read_some(s.address + 2, 32)
                    .is_ok_and(|tail| pops_before_return(&tail) == Some(s.pops))
        };
        let back = |s: &Sigreturn| match s {
            Sigreturn::Restorer(address) => has(*address, &RESTORER),
            Sigreturn::PopRax(address) => has(*address, &POP_RAX),
        };
        has(self.syscall, &SYSCALL) && self.chain.is_none_or(|(s, b)| returns(&s) && back(&b))
    }
}

/// Returns the search order, lowest first: the C library has all of them and is small.
fn likelihood(mapping: &Mapping) -> u8 {
    let path = mapping.path.to_string_lossy();
    let name = path.rsplit('/').next().unwrap_or("");
    match name {
        _ if name.starts_with("libc.") || name.starts_with("libc-") => 0,
        _ if name.starts_with("ld-") => 1,
        "[vdso]" => 2,
        _ => 3,
    }
}

/// Finds the instructions in a process, which takes milliseconds.
pub(crate) fn search(maps: &[Mapping], memory: &dyn TargetMemory) -> Option<Gadgets> {
    let mut syscall = None;
    let mut returning = None;
    let mut restorer = None;
    let mut pop_rax = None;
    let mut executable: Vec<&Mapping> = maps
        .iter()
        .filter(|m| m.perms.execute && m.perms.read)
        .collect();
    executable.sort_by_key(|m| likelihood(m));
    for mapping in executable {
        // Skip generated code, which may be unmapped, and our own arenas.
        if !mapping.is_file() && !mapping.is_named("[vdso]") {
            continue;
        }
        let len = ((mapping.end - mapping.start) as usize).min(SEARCH_LIMIT);
        let Ok(bytes) = memory.read_some(mapping.start, len) else {
            continue;
        };
        let address = |offset: usize| mapping.start + offset as u64;
        if syscall.is_none() {
            syscall = find(&bytes, &SYSCALL, |_| true).map(address);
        }
        if returning.is_none() {
            let mut pops = 0;
            let accept = |i: usize| {
                pops_before_return(&bytes[i + 2..])
                    .map(|found| pops = found)
                    .is_some()
            };
            returning = find(&bytes, &SYSCALL, accept).map(|offset| SyscallReturn {
                address: address(offset),
                pops,
            });
        }
        if restorer.is_none() {
            restorer = find(&bytes, &RESTORER, |_| true).map(address);
        }
        if pop_rax.is_none() {
            pop_rax = find(&bytes, &POP_RAX, |_| true).map(address);
        }
        if returning.is_some() && restorer.is_some() {
            break;
        }
    }
    let back = restorer
        .map(Sigreturn::Restorer)
        .or(pop_rax.map(Sigreturn::PopRax));
    Some(Gadgets {
        syscall: syscall?,
        chain: returning.zip(back),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_of_system_calls() {
        assert_eq!(pops_before_return(&[0xc3]), Some(0));
        assert_eq!(pops_before_return(&[0x5d, 0x41, 0x5c, 0xc3]), Some(2));
        // glibc's syscall(): the check falls through on success
        let checked = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x01, 0xc3];
        assert_eq!(pops_before_return(&checked), Some(0));
        // pop %rsp would lose the chain
        assert_eq!(pops_before_return(&[0x5c, 0xc3]), None);
        assert_eq!(pops_before_return(&[0x90, 0xc3]), None);
        assert_eq!(pops_before_return(&[]), None);
        assert_eq!(pops_before_return(&[0x58; 20]), None);
    }
}
