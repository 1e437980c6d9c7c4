//! The region in a process through which followed calls return.
//!
//! It is mapped once, is private to the process (a forked child has its own copy, as of its
//! stacks), and stays when everything else is removed: a library that copies stacks may have
//! copied a replaced return address to where it is not searched for, and a late return through
//! it must still reach the original caller. The next attach finds the region by its mapping and
//! reuses it.
//!
//! ```text
//! rw-p  header                        addresses of the counters
//! r-xp  code, stubs                   of exactly that size, between two writable parts
//! rw-p  slots                         pages that were never used take no memory
//! ```
//!
//! **Removal.** Bytes first, so that no further calls are followed. When no thread is in
//! generated code, and while all threads are stopped, the word on the stack of each slot is
//! compared with the slot's stub and restored, and the slot's work is removed: a call that
//! returns through the stub later goes to its original caller. Then the detours can be
//! unmapped. The region is its own journal, to which the session's ledger leads, so `capriole
//! detach` does the same after the tracer was killed.

use crate::session::{Agent, SessionMemory, write};
use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_host::steps::step;
use capriole_proc::maps::{Mapping, PAGE_SIZE};
use capriole_proc::process::{Process, deputy};
use capriole_resident::returns::{self, CODE_OFFSET, COUNTERS, SLOTS_OFFSET, STUBS_OFFSET};
use capriole_ring::layout::header;
use capriole_ring::layout::returns::{
    ADDRESS, CALLS, MAGIC, ORIGINAL, SLOT_SIZE, SLOTS, STUB_SIZE,
};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Size of code and stubs, bytes.
const CODE_SIZE: u64 = SLOTS_OFFSET - CODE_OFFSET;
/// Number of bytes of a stack read at once.
const STRETCH: u64 = 64 << 10;

/// A region of followed calls in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    base: u64,
}

/// A slot that is not free.
struct Open {
    /// Address of the slot.
    slot: u64,
    address: u64,
    original: u64,
    calls: u64,
    stub: u64,
}

impl Region {
    /// Returns the region at `base`, if its code has been written.
    pub(crate) fn at(remote: &dyn TargetMemory, maps: &[Mapping], base: u64) -> Option<Region> {
        let code = base.checked_add(CODE_OFFSET)?;
        let first = maps.partition_point(|m| m.start < code);
        let mapped = maps.get(first).filter(|m| m.start == code)?;
        Region::of(remote, mapped)
    }

    /// Returns the region whose code is the mapping `code`.
    fn of(remote: &dyn TargetMemory, code: &Mapping) -> Option<Region> {
        let is_code = code.end - code.start == CODE_SIZE
            && code.perms.execute
            && !code.perms.write
            && code.inode == 0;
        let base = code.start.checked_sub(CODE_OFFSET)?;
        let is_ours = is_code && remote.read_u64(code.start).ok()? == MAGIC;
        is_ours.then_some(Region { base })
    }

    /// True if the region is mapped in a process.
    pub(crate) fn is_in(&self, process: &Process, remote: &dyn TargetMemory) -> bool {
        let maps = process.maps().unwrap_or_default();
        Region::at(remote, &maps, self.base).is_some()
    }

    /// Finds a region that an earlier attach has left, with exactly the code in use now.
    fn left(remote: &dyn TargetMemory, maps: &[Mapping]) -> Option<Region> {
        maps.iter().find_map(|mapping| {
            let region = Region::of(remote, mapping)?;
            let mut bytes = vec![0; CODE_SIZE as usize];
            remote.read(mapping.start, &mut bytes).ok()?;
            (bytes == returns::code()).then_some(region)
        })
    }

    /// Finds or creates the region of a process, and records it in the ledger.
    pub(crate) fn create(
        agent: &Agent,
        process: &Process,
        remote: &dyn TargetMemory,
        session: &SessionMemory,
    ) -> Result<Region, TargetError> {
        let region = match Region::left(remote, &process.maps()?) {
            Some(region) => region,
            None => Region::map(agent, remote, session)?,
        };
        // The region's earlier user and its detours are gone: no code reads this now.
        let counters = session.base + header::RETURNS_MISSED as u64;
        let at = region.base + COUNTERS;
        write(agent.pid(), remote, at, &counters.to_le_bytes())?;
        session.ledger.note_returns(remote, region.base)?;
        step("region of returns ready");
        Ok(region)
    }

    fn map(
        agent: &Agent,
        remote: &dyn TargetMemory,
        session: &SessionMemory,
    ) -> Result<Region, TargetError> {
        let what = "map memory for return addresses";
        let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let text = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let mapped = [0, returns::SIZE, data, flags, u64::MAX, 0];
        let base = agent.call(remote, session, what, libc::SYS_mmap, mapped)?;
        step("region of returns mapped");
        // Slots must take memory page by page, even where the kernel uses huge pages.
        let slots = [base + SLOTS_OFFSET, SLOTS * SLOT_SIZE];
        let advice = [slots[0], slots[1], libc::MADV_NOHUGEPAGE as u64, 0, 0, 0];
        let _ = agent.call(remote, session, what, libc::SYS_madvise, advice);
        // This is in the middle of our own mapping; the part for code never was writable.
        let code = base + CODE_OFFSET;
        let fixed = flags | libc::MAP_FIXED as u64;
        let mapped = [code, CODE_SIZE, text, fixed, u64::MAX, 0];
        agent.call(remote, session, what, libc::SYS_mmap, mapped)?;
        step("code of returns mapped");
        write(agent.pid(), remote, code, &returns::code())?;
        Ok(Region { base })
    }

    /// Returns the routines that detours call.
    pub(crate) fn entries(&self) -> returns::Entries {
        returns::entries(self.base)
    }

    /// True if an address lies in the code that continues in a detour. A thread in a stub does not
    /// count: it has not read its slot yet, which tells it which code to run.
    pub(crate) fn holds(&self, address: u64) -> bool {
        (self.base + CODE_OFFSET..self.base + STUBS_OFFSET).contains(&address)
    }

    /// Restores every return address that is where it was replaced, and makes calls whose address
    /// is not there, if they ever return, go directly to the original caller. All threads of the
    /// process are stopped, none in a detour or in this region's code.
    ///
    /// A stack word is changed only if it holds exactly the stub of its slot. If that word is left
    /// over in a frame that is gone, no code reads it any more; so the change is harmless there.
    ///
    /// After each write the program runs correctly, as a slot may be open without a stack word (as
    /// an abandoned one is), and the detours remain until all are done.
    pub(crate) fn restore(&self, pid: i32, remote: &dyn TargetMemory) -> Result<(), TargetError> {
        let mut open = self.open(pid, remote)?;
        open.sort_unstable_by_key(|open| open.address);
        let mut rest = open.as_slice();
        while let Some(first) = rest.first() {
            let end = first.address.saturating_add(STRETCH);
            let len = rest.partition_point(|open| open.address < end);
            let (stretch, behind) = rest.split_at(len);
            rest = behind;
            let last = stretch.last().map_or(first.address, |open| open.address);
            let size = (last - first.address) as usize + 8;
            // A stack may be gone, or a part of it, and with it its return addresses.
            let bytes = remote.read_some(first.address, size).unwrap_or_default();
            for open in stretch {
                let at = (open.address - first.address) as usize;
                let word = match bytes.get(at..at + 8) {
                    Some(word) => word.try_into().map_or(0, u64::from_le_bytes),
                    None => remote.read_u64(open.address).unwrap_or(0),
                };
                if word == open.stub {
                    write(pid, remote, open.address, &open.original.to_le_bytes())?;
                }
            }
        }
        step("return addresses restored");
        self.close(pid, remote)?;
        step("slots of returns closed");
        Ok(())
    }

    /// Makes calls that return from now on go directly to the original caller: the code that runs
    /// when a call returns reads the time stamp counter, which a thread is about to give up. That
    /// thread waits in a guard, and so is in no stub.
    pub(crate) fn close(&self, pid: i32, remote: &dyn TargetMemory) -> Result<(), TargetError> {
        let open = self.open(pid, remote)?;
        for open in open.iter().filter(|open| open.calls != 0) {
            write(pid, remote, open.slot + CALLS as u64, &[0; 8])?;
        }
        Ok(())
    }

    /// True if a word on a stack leads to a stub but is not the return address that the stub
    /// replaced: a copy of it, such as an unwinder takes before it looks up the original.
    pub(crate) fn is_copy(&self, remote: &dyn TargetMemory, at: u64, word: u64) -> bool {
        let offset = word.wrapping_sub(self.base + STUBS_OFFSET);
        if offset >= SLOTS * STUB_SIZE || !offset.is_multiple_of(STUB_SIZE) {
            return false;
        }
        let slot = self.base + SLOTS_OFFSET + offset / STUB_SIZE * SLOT_SIZE;
        let address = remote.read_u64(slot + ADDRESS as u64);
        address.is_ok_and(|address| address != at)
    }

    /// True if a call is open whose return address was replaced.
    pub(crate) fn has_open(
        &self,
        pid: i32,
        remote: &dyn TargetMemory,
    ) -> Result<bool, TargetError> {
        Ok(!self.open(pid, remote)?.is_empty())
    }

    /// Returns the slots that are not free, in those pages that were ever used.
    fn open(&self, pid: i32, remote: &dyn TargetMemory) -> Result<Vec<Open>, TargetError> {
        let slots = self.base + SLOTS_OFFSET;
        let pages = SLOTS * SLOT_SIZE / PAGE_SIZE;
        let mut map = vec![0; pages as usize * 8];
        let is_known = File::open(format!("/proc/{}/pagemap", deputy(pid as u32)))
            .and_then(|file| file.read_exact_at(&mut map, slots / PAGE_SIZE * 8))
            .is_ok();
        let mut open = Vec::new();
        for (page, flags) in map.chunks_exact(8).enumerate() {
            // The upper two bits: present in memory, swapped out (proc_pid_pagemap(5)).
            if is_known && flags[7] >> 6 == 0 {
                continue;
            }
            let start = slots + page as u64 * PAGE_SIZE;
            let mut bytes = vec![0; PAGE_SIZE as usize];
            let read = remote.read(start, &mut bytes);
            read.map_err(TargetError::reading(pid, start))?;
            let found = bytes.chunks_exact(SLOT_SIZE as usize).enumerate();
            open.extend(found.filter_map(|(index, bytes)| {
                let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
                let slot = start + index as u64 * SLOT_SIZE;
                let number = (slot - slots) / SLOT_SIZE;
                (word(ADDRESS) != 0).then(|| Open {
                    slot,
                    address: word(ADDRESS),
                    original: word(ORIGINAL),
                    calls: word(CALLS),
                    stub: self.base + STUBS_OFFSET + number * STUB_SIZE,
                })
            }));
        }
        Ok(open)
    }
}
