//! Reference counters: 16-bit numbers in a program that are more than zero while somebody
//! watches a place in it, and which the program looks at before it prepares what is only
//! for watchers (the semaphores of SystemTap's static probes, `ref_ctr_offset` of the
//! kernel's uprobes). Whoever watches adds one, and takes it back when he leaves.
//!
//! Adding one is not a thing that can be done twice, and the tracer may die at any moment.
//! So before a counter changes, a word of private memory in the arena says what it is
//! and what it is going to be:
//!
//! ```text
//! state           counter   the tracer died here: what is to be done
//! idle            n         nothing
//! raising from n  n         nothing
//! raising from n  n + 1     take one back
//! raised          m         take one back
//! lowering from m m         take one back
//! lowering from m m - 1     nothing
//! ```
//!
//! The word is private because the counter is: a child that was forked meanwhile has its
//! own copies of both, which agree, since they change only while all threads stand still.
//! Other tools write the same counter without a lock (the kernel does, too); they can lose
//! against us only if they write within the same microsecond.

use crate::error::TargetError;
use crate::maps::{Device, Mapping};
use crate::memory::RemoteMemory;
use crate::object::{Object, Segment};
use crate::steps::step;
use std::path::PathBuf;
use thiserror::Error;

/// Bytes of a counter.
const SIZE: u64 = 2;
/// Room for the word that says how far it is, bytes.
pub(crate) const STATE_SIZE: u64 = 16;

/// A counter of a program or library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReferenceCounter {
    /// Run-time address.
    pub address: u64,
    /// Offset in the file that is mapped there, by which memory is recognised before it is
    /// written: the library may be gone, and something else in its place.
    pub offset: u64,
    /// The file's device.
    pub dev: Device,
    /// The file's inode.
    pub inode: u64,
}

/// Why an offset is not that of a counter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReferenceError {
    /// It is not a multiple of two.
    #[error("a reference counter has an even offset in its file, not {offset:#x}")]
    Odd {
        /// The offset.
        offset: u64,
    },
    /// No data of the file is there.
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
    /// The counter at an offset of an object's file.
    ///
    /// # Errors
    /// There cannot be one.
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
        if object.mappings().is_empty() {
            let id = object.file().id();
            return Ok(ReferenceCounter {
                address,
                offset,
                dev: Device::from_st_dev(id.map_or(0, |id| id.dev)),
                inode: id.map_or(0, |id| id.inode),
            });
        }
        let mapping = object.mappings().iter().find(|m| m.contains(address));
        let mapping = mapping
            .filter(|m| m.perms.write && !m.perms.shared)
            .ok_or_else(not_data)?;
        Ok(ReferenceCounter {
            address,
            offset,
            dev: mapping.dev,
            inode: mapping.inode,
        })
    }

    /// Whether it is still what is mapped there.
    fn is_mapped(&self, maps: &[Mapping]) -> bool {
        maps.iter().any(|m| {
            m.contains(self.address)
                && (m.dev, m.inode) == (self.dev, self.inode)
                && m.offset + (self.address - m.start) == self.offset
        })
    }
}

/// A counter that one was added to, or is going to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reference {
    pub counter: ReferenceCounter,
    /// Address of the word that says how far it is.
    pub state: u64,
}

/// What the word says. Its lower half is the value from which the counter changes.
const IDLE: u32 = 0;
const RAISING: u32 = 1;
const RAISED: u32 = 2;
const LOWERING: u32 = 3;

struct Target<'a> {
    pid: i32,
    remote: &'a RemoteMemory,
    reference: &'a Reference,
}

impl Target<'_> {
    fn fail(&self, what: &'static str, address: u64) -> impl Fn(std::io::Error) -> TargetError {
        let pid = self.pid;
        move |source| TargetError::Memory {
            pid,
            what,
            address,
            source,
        }
    }

    fn value(&self) -> Result<u16, TargetError> {
        let address = self.reference.counter.address;
        let mut bytes = [0; SIZE as usize];
        let read = self.remote.read(address, &mut bytes);
        read.map_err(self.fail("read", address))?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn set_value(&self, value: u16) -> Result<(), TargetError> {
        let address = self.reference.counter.address;
        let written = self.remote.write(address, &value.to_le_bytes());
        written.map_err(self.fail("write", address))?;
        step("reference counter written");
        Ok(())
    }

    fn set_state(&self, state: u32, from: u16) -> Result<(), TargetError> {
        let address = self.reference.state;
        let word = u64::from(state) << 32 | u64::from(from);
        let written = self.remote.write(address, &word.to_le_bytes());
        written.map_err(self.fail("write", address))?;
        step("state of a reference counter written");
        Ok(())
    }
}

impl Reference {
    /// Adds one, with the process standing still. A counter that is as large as it can be,
    /// or whose library is gone, is left alone.
    pub(crate) fn raise(
        &self,
        pid: i32,
        remote: &RemoteMemory,
        maps: &[Mapping],
    ) -> Result<(), TargetError> {
        let target = Target {
            pid,
            remote,
            reference: self,
        };
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

    /// Takes back what was added, with the process standing still; once, however often it
    /// is called and whatever was cut short before.
    pub(crate) fn lower(
        &self,
        pid: i32,
        remote: &RemoteMemory,
        maps: &[Mapping],
    ) -> Result<(), TargetError> {
        let target = Target {
            pid,
            remote,
            reference: self,
        };
        let Ok(word) = remote.read_u64(self.state) else {
            // The arena went after everything else was done.
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
            // Anything else would be a value that nobody wrote.
            _ => state != RAISED,
        };
        // Somebody may have set it to zero meanwhile.
        if let (false, Some(to)) = (done, value.checked_sub(1)) {
            target.set_state(LOWERING, value)?;
            target.set_value(to)?;
        }
        target.set_state(IDLE, 0)
    }
}
