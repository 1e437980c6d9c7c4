//! Reference counters: 16-bit numbers in a program that are nonzero while a tracer watches a
//! site. The program checks them before it prepares data that only tracers need (the semaphores
//! of SystemTap's static probes, `ref_ctr_offset` of the kernel's uprobes). Each tracer
//! increments the counter, and decrements it when it detaches.
//!
//! Incrementing is not idempotent, and the tracer may die at any moment. So before a counter
//! changes, a word of private memory in the arena records its state and its value before the
//! change:
//!
//! ```text
//! state           counter   what is left to do if the tracer died here
//! idle            n         nothing
//! raising from n  n         nothing
//! raising from n  n + 1     subtract one
//! raised          m         subtract one
//! lowering from m m         subtract one
//! lowering from m m - 1     nothing
//! ```
//!
//! The word is private because the counter is: a child forked meanwhile has its own copies of
//! both, which agree, since they change only while all threads are stopped. Other tools,
//! including the kernel, write the same counter without a lock; an update is lost only if both
//! write within the same microsecond.

use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_host::steps::step;
use capriole_object::{Object, Segment};
use capriole_proc::maps::{Device, Mapping};
use std::path::PathBuf;
use thiserror::Error;

/// Size of a counter, bytes.
const SIZE: u64 = 2;
/// Size of the state word with padding, bytes.
pub const STATE_SIZE: u64 = 16;

/// A counter of a program or library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReferenceCounter {
    /// Run-time address.
    pub address: u64,
    /// Offset in the mapped file. Memory is checked against it before it is written: the library
    /// may be gone and something else mapped in its place.
    pub offset: u64,
    /// The file's device.
    pub dev: Device,
    /// The file's inode.
    pub inode: u64,
}

/// Reason why a file offset cannot hold a counter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReferenceError {
    /// The offset is odd.
    #[error("a reference counter has an even offset in its file, not {offset:#x}")]
    Odd {
        /// The offset.
        offset: u64,
    },
    /// The file has no writable data at the offset.
    #[error(
        "no reference counter can be at {offset:#x}: {} has no data there that the program may write",
        path.display()
    )]
    NotData {
        /// The offset.
        offset: u64,
        /// The file.
        path: PathBuf,
    },
}

impl ReferenceCounter {
    /// Finds the counter at a file offset of an object.
    ///
    /// # Errors
    /// The offset cannot hold a counter.
    pub fn of(object: &Object, offset: u64) -> Result<ReferenceCounter, ReferenceError> {
        if !offset.is_multiple_of(SIZE) {
            return Err(ReferenceError::Odd { offset });
        }
        let not_data = || ReferenceError::NotData {
            offset,
            path: object.path().to_owned(),
        };
        let writable = |s: &&Segment| s.perms.write;
        let segments = object.file().segments();
        let mut data = segments.iter().filter(writable);
        let link_address = data.find_map(|s| s.address_of(offset));
        let address = object.run_time(link_address.ok_or_else(not_data)?);
        let counter = |dev, inode| ReferenceCounter {
            address,
            offset,
            dev,
            inode,
        };
        if object.mappings().is_empty() {
            let id = object.file().id();
            return Ok(counter(Device::from_st_dev(id.dev), id.inode));
        }
        let mapping = object.mappings().iter().find(|m| m.contains(address));
        let mapping = mapping
            .filter(|m| m.perms.write && !m.perms.shared)
            .ok_or_else(not_data)?;
        Ok(counter(mapping.dev, mapping.inode))
    }

    /// True if the counter's file is still mapped at its address.
    fn is_mapped(&self, maps: &[Mapping]) -> bool {
        maps.iter().any(|m| {
            m.contains(self.address)
                && (m.dev, m.inode) == (self.dev, self.inode)
                && m.offset + (self.address - m.start) == self.offset
        })
    }
}

/// A counter that was incremented or is about to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The counter.
    pub counter: ReferenceCounter,
    /// Address of the state word.
    pub state: u64,
}

/// States of a counter, the upper half of the state word. The lower half is the value before the
/// change.
const IDLE: u32 = 0;
const RAISING: u32 = 1;
const RAISED: u32 = 2;
const LOWERING: u32 = 3;

struct Target<'a> {
    pid: i32,
    remote: &'a dyn TargetMemory,
    reference: &'a Reference,
}

impl Target<'_> {
    fn value(&self) -> Result<u16, TargetError> {
        let address = self.reference.counter.address;
        let mut bytes = [0; SIZE as usize];
        let read = self.remote.read(address, &mut bytes);
        read.map_err(TargetError::reading(self.pid, address))?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), TargetError> {
        let written = self.remote.write(address, bytes);
        written.map_err(TargetError::writing(self.pid, address))
    }

    fn set_value(&self, value: u16) -> Result<(), TargetError> {
        self.write(self.reference.counter.address, &value.to_le_bytes())?;
        step("reference counter written");
        Ok(())
    }

    fn set_state(&self, state: u32, from: u16) -> Result<(), TargetError> {
        let word = u64::from(state) << 32 | u64::from(from);
        self.write(self.reference.state, &word.to_le_bytes())?;
        step("state of a reference counter written");
        Ok(())
    }
}

impl Reference {
    fn target<'a>(&'a self, pid: i32, remote: &'a dyn TargetMemory) -> Target<'a> {
        Target {
            pid,
            remote,
            reference: self,
        }
    }

    /// Increments the counter while the process is stopped. Does nothing if the counter is at its
    /// maximum or its library is gone.
    pub fn raise(
        &self,
        pid: i32,
        remote: &dyn TargetMemory,
        maps: &[Mapping],
    ) -> Result<(), TargetError> {
        let target = self.target(pid, remote);
        if !self.counter.is_mapped(maps) {
            return Ok(());
        }
        let from = target.value()?;
        let Some(to) = from.checked_add(1) else {
            return Ok(());
        };
        target.set_state(RAISING, from)?;
        target.set_value(to)?;
        target.set_state(RAISED, 0)
    }

    /// Undoes the increment while the process is stopped. Decrements only once, however often it is
    /// called and wherever an earlier call was interrupted.
    pub fn lower(
        &self,
        pid: i32,
        remote: &dyn TargetMemory,
        maps: &[Mapping],
    ) -> Result<(), TargetError> {
        let target = self.target(pid, remote);
        let Ok(word) = remote.read_u64(self.state) else {
            // The arena is unmapped only after all other work is done.
            return Ok(());
        };
        let (state, from) = ((word >> 32) as u32, word as u16);
        if state == IDLE || !self.counter.is_mapped(maps) {
            return Ok(());
        }
        let value = target.value()?;
        let done = match state {
            RAISING => value == from,
            LOWERING => value != from,
            // No other state is ever written.
            _ => state != RAISED,
        };
        // Another tool may have reset it to zero meanwhile.
        if let (false, Some(to)) = (done, value.checked_sub(1)) {
            target.set_state(LOWERING, value)?;
            target.set_value(to)?;
        }
        target.set_state(IDLE, 0)
    }
}
