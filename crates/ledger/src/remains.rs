//! Records that a dead recorder left in session memory.
//!
//! The recorder's descriptor of that memory is closed, and opening a mapping of the program
//! takes a capability; so the memory is read through `/proc/PID/mem`, like the journal. No
//! thread writes records there any more: the probes are removed, and no thread is in a detour.
//! But any process of the session can write anything there at any time. So the tables in front
//! of the packets are read once, and their contents are checked against the size of the
//! mapping, which the kernel reports.
//!
//! Each process that shares the memory is read, children first, before the memory is unmapped.
//! The packets to write are found by the notes described in `taken` of the crate `ring`: a
//! packet in the file is numbered, and is whole or absent, so no moment of a kill takes records
//! twice or leaves any out. (Times could not decide that: records with equal or adjusted times
//! cannot be told apart.) The saving process makes the same notes, so it may be killed as well,
//! and it completes the trace while the session still exists.

use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_ring::Source;
use capriole_ring::layout::{Geometry, HEADER_SIZE, header};
use std::ops::Range;
use std::path::PathBuf;

/// The UUID of the trace that a session records to.
pub type TraceId = [u8; 16];

/// The trace that a session records to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracePlace {
    /// Its UUID.
    pub id: TraceId,
    /// Its directory, an absolute path.
    pub directory: PathBuf,
}

/// Callback that saves the records that a dead recorder left in a process, for the trace with
/// this UUID. It is called for each process that has the session, after the process has stopped
/// writing records and before its memory is unmapped. The program runs meanwhile. Returns false if the memory is to
/// stay, because the records could not be written and may be later.
pub type Save<'a> = dyn FnMut(&TraceId, Result<Remains<'_>, TargetError>) -> bool + Send + 'a;

/// Session memory of a process.
#[derive(Debug)]
pub struct Remains<'a> {
    pid: i32,
    remote: &'a dyn TargetMemory,
    base: u64,
    tables: Vec<u8>,
    geometry: Geometry,
}

impl<'a> Remains<'a> {
    /// Reads the session memory of process `pid`, mapped at `mapped`.
    pub fn read(
        pid: i32,
        remote: &'a dyn TargetMemory,
        mapped: Range<u64>,
    ) -> Result<Remains<'a>, TargetError> {
        let base = mapped.start;
        // Refuse further messages: a writer that checked while the recorder was alive gets an error.
        let messages = base + header::MESSAGES as u64;
        let written = remote.write(messages, &[0; 4]);
        written.map_err(TargetError::writing(pid, messages))?;
        let mut remains = Remains {
            pid,
            remote,
            base,
            tables: vec![0; HEADER_SIZE],
            geometry: Geometry::for_buffer(0, 1, 0),
        };
        let read = remote.read(base, &mut remains.tables);
        read.map_err(TargetError::reading(pid, base))?;
        remains.geometry = Geometry::of_recording(&remains, mapped.end - mapped.start).ok_or(
            TargetError::Damaged {
                pid,
                what: "the header of session memory",
            },
        )?;
        let geometry = remains.geometry;
        let mut rest = vec![0; geometry.packets_offset() - HEADER_SIZE];
        let at = base + HEADER_SIZE as u64;
        let read = remote.read(at, &mut rest);
        read.map_err(TargetError::reading(pid, at))?;
        remains.tables.append(&mut rest);
        Ok(remains)
    }

    /// Returns the pid.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the layout of the memory.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.tables[offset..offset + N]);
        bytes
    }
}

impl Source for Remains<'_> {
    fn load(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes(offset))
    }

    fn load_u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.bytes(offset))
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        self.remote.read(self.base + offset as u64, into).is_ok()
    }

    fn store(&self, offset: usize, value: u64) -> bool {
        let address = self.base + offset as u64;
        self.remote.write(address, &value.to_le_bytes()).is_ok()
    }

    /// Does nothing: no probe uses packets any more, and a later reader must find them.
    fn free_packet(&self, _index: u32) {}
}
