//! The only module that writes instruction bytes of a program.
//!
//! All threads of the process are stopped when anything here is called, so that none executes a
//! byte while it changes. The remaining danger is our own death between two writes, after which
//! the program runs on with the bytes as they are then:
//!
//! ```text
//! before                  55 48 89 e5 41 57 …     push %rbp; mov %rsp,%rbp; push %r15
//! journal entry written   55 48 89 e5 41 57 …     the journal holds 55 48 89 e5 41
//! jump written            e9 xx xx xx xx 57 …     jmp detour
//! ```
//!
//! A write of a few bytes within a page is one copy in the kernel, which checks for a fatal
//! signal only before it: it happens completely or not at all. A jump across two pages is two
//! copies. There a breakpoint is written first and removed last; the resident's SIGTRAP handler
//! leads it to the same detour:
//!
//! ```text
//! before        page n …55 │ 48 89 e5 41… page n+1
//! breakpoint           …cc │ 48 89 e5 41…
//! tail                 …cc │ xx xx xx xx…
//! head                 …e9 │ xx xx xx xx…
//! ```

use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_host::steps::step;
use capriole_ledger::change::{Change, Found, INT3, MAX_BYTES};
use capriole_proc::maps::PAGE_SIZE;
use std::collections::BTreeMap;
use std::ops::Range;

/// Many changes of one process, read and written page by page: a page is read once, and its
/// changes are written with one copy in the kernel, from the first changed byte to the last.
/// The bytes between are written back as they were read, which changes nothing: no thread of
/// the process runs.
#[derive(Debug)]
pub struct Batch<'a> {
    pid: i32,
    memory: &'a dyn TargetMemory,
    pages: BTreeMap<u64, Page>,
}

#[derive(Debug)]
struct Page {
    /// Empty where the page cannot be read.
    bytes: Vec<u8>,
    /// Ranges that have to be written.
    dirty: Vec<Range<usize>>,
    /// True if another tool also writes to this page: bytes between changes are not written then.
    shared: bool,
}

impl Page {
    fn mark(&mut self, at: usize) {
        match self.dirty.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            _ => self.dirty.push(at..at + 1),
        }
    }

    /// Returns the ranges that have to be written, as one range where that is possible.
    fn take_dirty(&mut self) -> Vec<Range<usize>> {
        let runs = std::mem::take(&mut self.dirty);
        let start = runs.iter().map(|run| run.start).min();
        let end = runs.iter().map(|run| run.end).max();
        match (start, end) {
            (Some(start), Some(end)) if !self.shared => std::iter::once(start..end).collect(),
            _ => runs,
        }
    }
}

impl<'a> Batch<'a> {
    /// Makes a batch for a process that stays stopped until the batch is written.
    pub fn new(pid: i32, memory: &'a dyn TargetMemory) -> Batch<'a> {
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
            Page {
                bytes,
                dirty: Vec::new(),
                shared: false,
            }
        })
    }

    /// Reports the state of a site's bytes.
    pub fn inspect(&mut self, change: &Change) -> Found {
        let now = self.now(change);
        now.map_or(Found::Foreign, |now| change.judge(&now[..change.len]))
    }

    fn now(&mut self, change: &Change) -> Option<[u8; MAX_BYTES]> {
        let mut now = [0; MAX_BYTES];
        for (offset, byte) in now[..change.len].iter_mut().enumerate() {
            let address = change.address + offset as u64;
            let page = self.page(address / PAGE_SIZE);
            *byte = *page.bytes.get((address % PAGE_SIZE) as usize)?;
        }
        Some(now)
    }

    /// True if all bytes that change are mapped.
    pub fn is_mapped(&mut self, change: &Change) -> bool {
        self.now(change).is_some()
    }

    /// True if `bytes` are at `address` now.
    pub fn holds(&mut self, address: u64, bytes: &[u8]) -> bool {
        (address..).zip(bytes).all(|(at, byte)| {
            let page = self.page(at / PAGE_SIZE);
            page.bytes.get((at % PAGE_SIZE) as usize) == Some(byte)
        })
    }

    /// Installs a probe, at once or with the next [`write`](Self::write). The journal entry must
    /// have been written; the detour and (if the change crosses pages) the trap handler must be in
    /// place.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), TargetError> {
        self.replace(change, &change.after[..change.len])
    }

    /// Puts a breakpoint, which leads to the detour as well, at the first byte with the next
    /// [`write`](Self::write).
    pub fn stand_in(&mut self, change: &Change) -> Result<(), TargetError> {
        self.replace_some(change, &[INT3])
    }

    /// Restores the program's own bytes, at once or with the next [`write`](Self::write).
    pub(crate) fn revert(&mut self, change: &Change) -> Result<(), TargetError> {
        self.replace(change, &change.before[..change.len])
    }

    /// Restores, with the next [`write`](Self::write), the program's own bytes where a
    /// [disturbed](Found::Disturbed) site has the probe's, and leaves the bytes that the other tool
    /// has written: its breakpoint goes when that tool removes it. Returns true if there were any
    /// bytes to restore.
    ///
    /// ```text
    /// before          55 48 89 e5 41      push %rbp; mov %rsp,%rbp; push %r15
    /// jump            e9 xx xx xx xx
    /// uprobe added    cc xx xx xx xx      executes the file's push, then the bytes behind it: xx
    /// taken back      cc 48 89 e5 41      executes the file's push, then the mov
    /// uprobe removed  55 48 89 e5 41
    /// ```
    pub(crate) fn take_back(&mut self, change: &Change) -> bool {
        let Some(now) = self.now(change) else {
            return false;
        };
        let runs = change.ours(&now[..change.len]);
        for run in &runs {
            for offset in run.clone() {
                self.set(change.address + offset as u64, change.before[offset]);
            }
        }
        for offset in 0..change.len as u64 {
            self.page((change.address + offset) / PAGE_SIZE).shared = true;
        }
        !runs.is_empty()
    }

    fn replace(&mut self, change: &Change, bytes: &[u8]) -> Result<(), TargetError> {
        if change.crosses_pages() {
            write_across(change, self.pid, self.memory, bytes)?;
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
                page.mark(at);
            }
        }
        Ok(())
    }

    fn set(&mut self, address: u64, byte: u8) {
        let at = (address % PAGE_SIZE) as usize;
        let page = self.page(address / PAGE_SIZE);
        if let Some(place) = page.bytes.get_mut(at) {
            *place = byte;
            page.mark(at);
        }
    }

    /// Writes all pending changes.
    ///
    /// # Errors
    /// The error of the first page that cannot be written; the others are written all the same.
    pub fn write(&mut self) -> Result<(), TargetError> {
        let pid = self.pid;
        let mut result = Ok(());
        for (number, page) in &mut self.pages {
            for dirty in page.take_dirty() {
                let address = number * PAGE_SIZE + dirty.start as u64;
                let written = self.memory.write(address, &page.bytes[dirty]);
                result = result.and(written.map_err(TargetError::writing(pid, address)));
                step("bytes of a page");
            }
        }
        result
    }
}

/// Writes a change that crosses pages, breakpoint first.
fn write_across(
    change: &Change,
    pid: i32,
    memory: &dyn TargetMemory,
    bytes: &[u8],
) -> Result<(), TargetError> {
    let write = |offset: usize, bytes: &[u8]| {
        let address = change.address + offset as u64;
        let written = memory.write(address, bytes);
        written.map_err(TargetError::writing(pid, address))
    };
    write(0, &[INT3])?;
    step("breakpoint over a page boundary");
    // The tail may itself end in the first page: one copy for each page.
    let second = (PAGE_SIZE - change.address % PAGE_SIZE) as usize;
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
