//! Access to another process's memory through /proc/PID/mem.
//!
//! Reading needs no stop. Writing bypasses page protections for private mappings (the kernel
//! makes a private copy of the page). Instruction bytes and the arena, neither of which is ever
//! writable in the target, are written this way.

use crate::error::TargetError;
use crate::gadgets::Gadgets;
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// An open /proc/PID/mem.
#[derive(Debug)]
pub struct RemoteMemory {
    file: File,
    /// Result of [`gadgets::search`](crate::gadgets::search).
    pub(crate) gadgets: Cell<Option<Gadgets>>,
}

impl RemoteMemory {
    /// Opens the memory of process `pid`.
    ///
    /// # Errors
    /// The kernel's error: not found, or not permitted.
    pub fn open(pid: i32) -> Result<RemoteMemory, TargetError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map_err(|source| TargetError::Memory {
                pid,
                what: "open",
                address: 0,
                source,
            })?;
        Ok(RemoteMemory {
            file,
            gadgets: Cell::new(None),
        })
    }

    /// Fills `into` from `address`.
    ///
    /// # Errors
    /// EIO where nothing is mapped; unexpected end of file if the process is gone.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, address)
    }

    /// Reads up to `len` bytes, fewer if the mapping ends before.
    pub fn read_some(&self, address: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; len];
        let mut done = 0;
        while done < len {
            match self
                .file
                .read_at(&mut buffer[done..], address + done as u64)
            {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        buffer.truncate(done);
        Ok(buffer)
    }

    /// Reads a u64.
    pub fn read_u64(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a u32.
    pub fn read_u32(&self, address: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes `bytes` at `address`.
    ///
    /// Not for instruction bytes of the program: only the `patch` module writes those.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, address)
    }
}
