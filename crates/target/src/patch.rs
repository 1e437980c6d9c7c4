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
use std::collections::BTreeMap;
use std::ops::Range;

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
    /// Among the changes of one site, which are made one after the other: lower ones
    /// first. They are taken back in the opposite order.
    pub phase: u8,
    /// It is a [guard's](crate::guards): made before all others, taken back after them.
    pub guard: bool,
    /// It answers [unwinders](crate::unwinders): taken back when no return address is
    /// replaced any more. Then it is a guard's, too.
    pub unwinder: bool,
    /// It is a guard's by which the program sees its own signal actions: taken back when none
    /// is replaced any more.
    pub action: bool,
}

/// What stands at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The program's own bytes.
    Before,
    /// The probe.
    After,
    /// A change that was cut short: a breakpoint, and behind it either tail or, with
    /// a page boundary in it, a piece of each.
    Between,
    /// Something else: the library is gone, or somebody else changes code too.
    Foreign,
}

impl Change {
    /// Whether it is taken back after the signal actions.
    pub(crate) fn is_late(&self) -> bool {
        self.unwinder || self.action
    }

    /// Whether the bytes lie in two pages.
    pub fn crosses_pages(&self) -> bool {
        self.address / PAGE_SIZE != (self.address + self.len as u64 - 1) / PAGE_SIZE
    }

    /// What `now`, the bytes that stand there, are.
    fn judge(&self, now: &[u8]) -> Found {
        let (before, after) = (&self.before[..self.len], &self.after[..self.len]);
        if now == before {
            Found::Before
        } else if now == after {
            Found::After
        } else if now[0] == INT3 && self.is_of_both(now) {
            Found::Between
        } else {
            Found::Foreign
        }
    }

    /// Whether the bytes behind the first are the program's or the probe's, those of
    /// each page as a whole: they are written in that many pieces.
    fn is_of_both(&self, now: &[u8]) -> bool {
        let second = match self.crosses_pages() {
            true => (PAGE_SIZE - self.address % PAGE_SIZE) as usize,
            false => self.len,
        };
        [1..second, second..self.len].into_iter().all(|piece| {
            now[piece.clone()] == self.before[piece.clone()]
                || now[piece.clone()] == self.after[piece]
        })
    }

    /// Writes a change that crosses pages, breakpoint first.
    fn write_across(
        &self,
        pid: i32,
        memory: &RemoteMemory,
        bytes: &[u8],
    ) -> Result<(), TargetError> {
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
        step("head over a page boundary");
        Ok(())
    }
}

/// Many changes of one process, read and written page by page: a page is read once,
/// and what changes in it is written with one copy in the kernel, from the first
/// changed byte to the last. The bytes between are written as they were read, which
/// changes nothing: nobody else runs.
#[derive(Debug)]
pub struct Batch<'a> {
    pid: i32,
    memory: &'a RemoteMemory,
    pages: BTreeMap<u64, Page>,
}

#[derive(Debug)]
struct Page {
    /// Nothing where the page cannot be read.
    bytes: Vec<u8>,
    /// What has to be written.
    dirty: Option<Range<usize>>,
}

impl<'a> Batch<'a> {
    /// For a process that stands still until the batch is written.
    pub fn new(pid: i32, memory: &'a RemoteMemory) -> Batch<'a> {
        Batch {
            pid,
            memory,
            pages: BTreeMap::new(),
        }
    }

    fn page(&mut self, number: u64) -> &mut Page {
        let memory = self.memory;
        self.pages.entry(number).or_insert_with(|| {
            let mut bytes = vec![0; PAGE_SIZE as usize];
            if memory.read(number * PAGE_SIZE, &mut bytes).is_err() {
                bytes.clear();
            }
            Page { bytes, dirty: None }
        })
    }

    /// What stands at a site now.
    pub fn inspect(&mut self, change: &Change) -> Found {
        let mut now = [0; MAX_BYTES];
        for (offset, byte) in now[..change.len].iter_mut().enumerate() {
            let address = change.address + offset as u64;
            match self
                .page(address / PAGE_SIZE)
                .bytes
                .get((address % PAGE_SIZE) as usize)
            {
                Some(b) => *byte = *b,
                None => return Found::Foreign,
            }
        }
        change.judge(&now[..change.len])
    }

    /// Whether these bytes stand there now.
    pub fn holds(&mut self, address: u64, bytes: &[u8]) -> bool {
        (address..).zip(bytes).all(|(at, byte)| {
            let page = self.page(at / PAGE_SIZE);
            page.bytes.get((at % PAGE_SIZE) as usize) == Some(byte)
        })
    }

    /// Puts a probe in, or with [`write`](Self::write). The journal entry must have
    /// been written, the detour and (if the change crosses pages) the trap handler
    /// must be in place.
    pub fn apply(&mut self, change: &Change) -> Result<(), TargetError> {
        self.replace(change, &change.after[..change.len])
    }

    /// Puts a breakpoint at the first byte, or with [`write`](Self::write), which leads
    /// to the detour as well.
    pub fn stand_in(&mut self, change: &Change) -> Result<(), TargetError> {
        self.replace_some(change, &[INT3])
    }

    /// Puts the program's own bytes back, or with [`write`](Self::write).
    pub fn revert(&mut self, change: &Change) -> Result<(), TargetError> {
        self.replace(change, &change.before[..change.len])
    }

    fn replace(&mut self, change: &Change, bytes: &[u8]) -> Result<(), TargetError> {
        if change.crosses_pages() {
            change.write_across(self.pid, self.memory, bytes)?;
        }
        self.replace_some(change, bytes)
    }

    fn replace_some(&mut self, change: &Change, bytes: &[u8]) -> Result<(), TargetError> {
        let across = change.crosses_pages() && bytes.len() > 1;
        for (offset, byte) in bytes.iter().enumerate() {
            let address = change.address + offset as u64;
            let at = (address % PAGE_SIZE) as usize;
            let page = self.page(address / PAGE_SIZE);
            let Some(place) = page.bytes.get_mut(at) else {
                continue;
            };
            *place = *byte;
            if !across {
                let dirty = page.dirty.get_or_insert(at..at + 1);
                *dirty = dirty.start.min(at)..dirty.end.max(at + 1);
            }
        }
        Ok(())
    }

    /// Writes all that was put in or back.
    ///
    /// # Errors
    /// The first page that cannot be written; the others are written all the same.
    pub fn write(&mut self) -> Result<(), TargetError> {
        let pid = self.pid;
        let mut result = Ok(());
        for (number, page) in &mut self.pages {
            let Some(dirty) = page.dirty.take() else {
                continue;
            };
            let address = number * PAGE_SIZE + dirty.start as u64;
            let written = self.memory.write(address, &page.bytes[dirty]);
            result = result.and(written.map_err(|source| TargetError::Memory {
                pid,
                what: "write",
                address,
                source,
            }));
            step("bytes of a page");
        }
        result
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
            phase: 0,
            guard: false,
            unwinder: false,
        };
        assert!(!change(0x1000, 5).crosses_pages());
        assert!(!change(0x1ffb, 5).crosses_pages());
        assert!(change(0x1ffc, 5).crosses_pages());
        assert!(change(0x1fff, 5).crosses_pages());
        assert!(!change(0x1fff, 1).crosses_pages());
    }
}
