//! `/tmp/perf-PID.map`: a line for each function, `START SIZE NAME`, in hexadecimal. (tools/perf/Documentation/jit-interface.txt
//! in the kernel's source.) Runtimes add lines, or write the whole file anew.

use super::{Function, MAX_SIZE, check_owner, too_large};
use capriole_host::survey::own_tid;
use capriole_proc::files;
use capriole_proc::process::Process;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum length of a line, bytes: longer ones are skipped.
const MAX_LINE: usize = 16 << 10;
/// Number of bytes by which it is seen that a file was written anew.
const COMPARED: usize = 64;

/// The map of a process, as far as it was read.
#[derive(Debug)]
pub(super) struct Map {
    /// The process's pid as it sees it itself.
    pid: u32,
    open: Option<Open>,
    /// True after an error in a map of which something was read.
    failed: bool,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Device and inode.
    id: (u64, u64),
    offset: u64,
    lines: Lines,
    /// The bytes before the offset.
    last: Vec<u8>,
}

impl Map {
    /// Begins to read the map of a process, which need not have one yet.
    pub fn of(process: &Process) -> Map {
        let pid = process.pid();
        Map {
            pid: own_tid(pid as i32, pid as i32).unwrap_or(pid),
            open: None,
            failed: false,
        }
    }

    /// Returns the path, as the process sees it.
    pub fn path(&self) -> String {
        format!("/tmp/perf-{}.map", self.pid)
    }

    /// True if there is a map.
    pub fn is_there(&self) -> bool {
        self.open.is_some()
    }

    /// Adds the functions that were written since the last call.
    pub fn read(&mut self, process: &Process, functions: &mut Vec<Function>) -> io::Result<()> {
        if self.failed {
            return Ok(());
        }
        let read = self.read_more(process, functions);
        self.failed = read.is_err() && self.is_there();
        read
    }

    fn read_more(&mut self, process: &Process, functions: &mut Vec<Function>) -> io::Result<()> {
        match files::open_in(&process.proc_path("root"), Path::new(&self.path())) {
            Ok(file) => {
                let metadata = file.metadata()?;
                let id = (metadata.dev(), metadata.ino());
                if self.open.as_ref().is_none_or(|open| open.id != id) {
                    check_owner(process, &file)?;
                    check_age(process, &metadata)?;
                    self.open = Some(Open::new(file, id));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // It may have been removed, and the process may have ended.
            Err(_) if self.open.is_some() || !process.is_alive() => {}
            Err(error) => return Err(error),
        }
        match &mut self.open {
            Some(open) => open.read(functions),
            None => Ok(()),
        }
    }
}

/// Refuses a map that an earlier process with the same pid has left.
fn check_age(process: &Process, metadata: &Metadata) -> io::Result<()> {
    // Both clocks count in steps, and the other one may be set.
    const TOLERANCE: Duration = Duration::from_secs(1);
    let age = metadata.modified()?.elapsed().unwrap_or_default();
    match age <= process.age() + TOLERANCE {
        true => Ok(()),
        false => Err(io::Error::other("it is older than the process")),
    }
}

impl Open {
    fn new(file: File, id: (u64, u64)) -> Open {
        Open {
            file,
            id,
            offset: 0,
            lines: Lines::default(),
            last: Vec::new(),
        }
    }

    fn read(&mut self, functions: &mut Vec<Function>) -> io::Result<()> {
        if !self.goes_on()? {
            self.offset = 0;
            self.lines = Lines::default();
            self.last.clear();
        }
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = self.file.read_at(&mut bytes, self.offset)?;
            if read == 0 {
                return Ok(());
            }
            self.offset += read as u64;
            if self.offset > MAX_SIZE {
                return Err(too_large());
            }
            self.lines.add(&bytes[..read], functions);
            self.last.extend(&bytes[..read]);
            self.last.drain(..self.last.len().saturating_sub(COMPARED));
        }
    }

    /// True if the file has what was read before.
    fn goes_on(&self) -> io::Result<bool> {
        let mut there = [0; COMPARED];
        let there = &mut there[..self.last.len()];
        let read = self
            .file
            .read_at(there, self.offset - self.last.len() as u64)?;
        Ok(read == self.last.len() && *there == self.last[..])
    }
}

/// Lines of a file, the last of which may be incomplete.
#[derive(Debug, Default)]
struct Lines {
    incomplete: Vec<u8>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8], functions: &mut Vec<Function>) {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            self.extend(line);
            functions.extend(parse(&self.incomplete));
            self.incomplete.clear();
        }
        self.extend(last);
    }

    /// Adds a part of a line, of which no more is kept than shows that it is too long.
    fn extend(&mut self, part: &[u8]) {
        let room = (MAX_LINE + 1).saturating_sub(self.incomplete.len());
        self.incomplete.extend(&part[..part.len().min(room)]);
    }
}

/// Reads a line; `None` if it is not one of a map.
fn parse(line: &[u8]) -> Option<Function> {
    if line.len() > MAX_LINE {
        return None;
    }
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.trim_start().split_once(' ')?;
    let number = |digits: &str| {
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let is_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_digits.then(|| u64::from_str_radix(digits, 16).ok())?
    };
    let (start, size, name) = (number(start)?, number(size)?, name.trim_start());
    let end = start.checked_add(size)?;
    (start < end && !name.is_empty()).then(|| Function {
        addresses: start..end,
        name: Arc::from(name),
    })
}

#[cfg(test)]
mod tests;
