//! Access to another process's memory through /proc/PID/mem.
//!
//! Reading needs no stop. Writing bypasses page protections for private mappings (the kernel
//! makes a private copy of the page). Instruction bytes and the arena, neither of which is ever
//! writable in the target, are written this way.

use crate::error::TargetError;
use crate::host::TargetMemory;
use capriole_proc::process::deputy;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// An open /proc/PID/mem.
#[derive(Debug)]
pub struct RemoteMemory {
    file: File,
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
            .open(format!("/proc/{}/mem", deputy(pid as u32)))
            .map_err(TargetError::accessing(pid, "open", 0))?;
        Ok(RemoteMemory { file })
    }
}

impl From<File> for RemoteMemory {
    fn from(file: File) -> RemoteMemory {
        RemoteMemory { file }
    }
}

impl TargetMemory for RemoteMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, address)
    }

    fn read_some(&self, address: u64, len: usize) -> io::Result<Vec<u8>> {
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

    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, address)
    }
}
