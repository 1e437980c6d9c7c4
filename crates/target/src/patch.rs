//! The one module that writes instruction bytes of a program.
//!
//! All threads of the process stand still when anything here is called, so that
//! nobody executes a byte while it changes. What remains is our own death between
//! two writes, after which the program goes on as it then is:
//!
//! ```text
//! before                  55 48 89 e5 41 57 …     push %rbp; mov %rsp,%rbp; push %r15
//! journal entry written   55 48 89 e5 41 57 …     the journal says 55 48 89 e5 41
//! jump written            e9 xx xx xx xx 57 …     jmp detour
//! ```
//!
//! A write of a few bytes within a page is one copy in the kernel, which looks at
//! a fatal signal only before it: it happens or it does not. A jump across two
//! pages is two copies. There a breakpoint goes first and comes off last, which
//! the resident's SIGTRAP handler leads to the same detour:
//!
//! ```text
//! before        page n …55 │ 48 89 e5 41… page n+1
//! breakpoint           …cc │ 48 89 e5 41…
//! tail                 …cc │ xx xx xx xx…
//! head                 …e9 │ xx xx xx xx…
//! ```

use crate::error::TargetError;
use crate::maps::PAGE_SIZE;
use crate::memory::RemoteMemory;
use crate::steps::step;
use capriole_ring::layout::journal::MAX_BYTES;

/// The one-byte breakpoint instruction.
pub const INT3: u8 = 0xcc;

/// The bytes of one site, before and while it is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes, 1..=16.
    pub len: usize,
    /// The program's own bytes.
    pub before: [u8; MAX_BYTES],
    /// The bytes that lead to the detour.
    pub after: [u8; MAX_BYTES],
    /// Address of the detour.
    pub detour: u64,
}

/// What stands at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The program's own bytes.
    Before,
    /// The probe.
    After,
    /// A change that was cut short: a breakpoint over either tail.
    Between,
    /// Something else: the library is gone, or somebody else changes code too.
    Foreign,
}

impl Change {
    /// Whether the bytes lie in two pages.
    pub fn crosses_pages(&self) -> bool {
        self.address / PAGE_SIZE != (self.address + self.len as u64 - 1) / PAGE_SIZE
    }

    /// What stands there now.
    pub fn inspect(&self, memory: &RemoteMemory) -> Found {
        let mut now = [0; MAX_BYTES];
        let now = &mut now[..self.len];
        if memory.read(self.address, now).is_err() {
            return Found::Foreign;
        }
        let (before, after) = (&self.before[..self.len], &self.after[..self.len]);
        if now == before {
            Found::Before
        } else if now == after {
            Found::After
        } else if now[0] == INT3 && (now[1..] == before[1..] || now[1..] == after[1..]) {
            Found::Between
        } else {
            Found::Foreign
        }
    }

    /// Puts the probe in. The journal entry must have been written, the detour and
    /// (if the change crosses pages) the trap handler must be in place.
    pub fn apply(&self, pid: i32, memory: &RemoteMemory) -> Result<(), TargetError> {
        self.replace(pid, memory, &self.after[..self.len])
    }

    /// Puts the program's own bytes back.
    pub fn revert(&self, pid: i32, memory: &RemoteMemory) -> Result<(), TargetError> {
        self.replace(pid, memory, &self.before[..self.len])
    }

    fn replace(&self, pid: i32, memory: &RemoteMemory, bytes: &[u8]) -> Result<(), TargetError> {
        let write = |offset: usize, bytes: &[u8]| {
            let address = self.address + offset as u64;
            memory
                .write(address, bytes)
                .map_err(|source| TargetError::Memory {
                    pid,
                    what: "write",
                    address,
                    source,
                })
        };
        if self.crosses_pages() {
            write(0, &[INT3])?;
            step("breakpoint over a page boundary");
            // The tail may itself end in the first page: one copy a page.
            let second = (PAGE_SIZE - self.address % PAGE_SIZE) as usize;
            if second > 1 {
                write(1, &bytes[1..second])?;
                step("first tail");
            }
            write(second, &bytes[second..])?;
            step("tail over a page boundary");
            write(0, &bytes[..1])?;
        } else {
            write(0, bytes)?;
        }
        step("bytes of a site");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_boundaries() {
        let change = |address, len| Change {
            address,
            len,
            before: [0; MAX_BYTES],
            after: [0; MAX_BYTES],
            detour: 0,
        };
        assert!(!change(0x1000, 5).crosses_pages());
        assert!(!change(0x1ffb, 5).crosses_pages());
        assert!(change(0x1ffc, 5).crosses_pages());
        assert!(change(0x1fff, 5).crosses_pages());
        assert!(!change(0x1fff, 1).crosses_pages());
    }
}
