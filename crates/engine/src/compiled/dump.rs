//! `jit-PID.dump`: all that a runtime has compiled, as `perf inject --jit` reads it. The program maps a page of the file
//! as code, by which it is found. (tools/perf/Documentation/jitdump-specification.txt in the kernel's source.)
//!
//! ```text
//! header   u32 magic, version, size, ELF machine, 0, pid; u64 time, flags
//! record   u32 kind, size; u64 time
//! load     u32 pid, tid; u64 address twice, size, number; the name, 0, the code
//! move     u32 pid, tid; u64 new address, old address, new address, size, number
//! ```
//!
//! A record with a time of `CLOCK_MONOTONIC` says when code came to an address; an event has only one name for an
//! address, so that the times are not used.

use super::{Function, MAX_SIZE, check_owner, too_large};
use capriole_proc::process::Process;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

/// `JiTD` as a number of this byte order.
const MAGIC: u32 = 0x4a69_5444;
/// `e_machine` of x86-64.
const X86_64: u32 = 62;
const HEADER: usize = 40;
/// Size of the start of each record, bytes.
const RECORD: usize = 16;
/// Kinds of records.
const LOAD: u32 = 0;
const MOVE: u32 = 1;
const CLOSE: u32 = 3;
/// Sizes of these records without their names and code, bytes.
const LOAD_SIZE: usize = RECORD + 40;
const MOVE_SIZE: usize = RECORD + 48;
/// Maximum length of a name, bytes.
const MAX_NAME: usize = 16 << 10;
/// Maximum size of a record, which the code is a part of, and of the whole file, bytes.
const MAX_RECORD: u64 = MAX_SIZE;
const MAX_FILE: u64 = 1 << 40;
/// Maximum number of functions.
const MOST: usize = 1 << 20;

/// A dump, as far as it was read.
#[derive(Debug)]
pub(super) struct Dump {
    file: File,
    /// Device and inode.
    id: (u64, u64),
    offset: u64,
    /// The names of functions by their numbers, for those that are moved.
    names: HashMap<u64, Arc<str>>,
    /// True after its end, or an error, which is told once.
    is_over: bool,
}

impl Dump {
    /// Begins to read a dump of a process.
    ///
    /// # Errors
    /// It is not a dump, or not written by the process's user.
    pub fn new(process: &Process, file: File) -> io::Result<Dump> {
        check_owner(process, &file)?;
        Dump::of(file)
    }

    fn of(file: File) -> io::Result<Dump> {
        let metadata = file.metadata()?;
        let mut header = [0; HEADER];
        let not = |_| io::Error::other("it is not a jitdump");
        file.read_exact_at(&mut header, 0).map_err(not)?;
        let (magic, version) = (half(&header, 0), half(&header, 4));
        let (size, machine) = (half(&header, 8), half(&header, 12));
        if magic != MAGIC || (size as usize) < HEADER {
            return Err(io::Error::other("it is not a jitdump"));
        }
        if version != 1 || machine != X86_64 {
            return Err(io::Error::other(
                "it is a jitdump of another version or machine",
            ));
        }
        Ok(Dump {
            id: (metadata.dev(), metadata.ino()),
            file,
            offset: size.into(),
            names: HashMap::new(),
            is_over: false,
        })
    }

    /// True if both are the same file.
    pub fn is_same(&self, other: &Dump) -> bool {
        self.id == other.id
    }

    /// Adds the functions of all complete records since the last call.
    pub fn read(&mut self, functions: &mut Vec<Function>) -> io::Result<()> {
        while !self.is_over {
            match self.record(functions) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.is_over = true;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Reads a record; returns false if there is no complete one.
    fn record(&mut self, functions: &mut Vec<Function>) -> io::Result<bool> {
        let mut bytes = vec![0; LOAD_SIZE + MAX_NAME];
        let there = self.file.metadata()?.len().saturating_sub(self.offset);
        if there < RECORD as u64 {
            return Ok(false);
        }
        self.file.read_exact_at(&mut bytes[..RECORD], self.offset)?;
        let (kind, size) = (half(&bytes, 0), u64::from(half(&bytes, 4)));
        let least = match kind {
            LOAD => LOAD_SIZE,
            MOVE => MOVE_SIZE,
            _ => RECORD,
        };
        if size < least as u64 {
            return Err(io::Error::other("it is damaged"));
        }
        if size > MAX_RECORD || self.offset > MAX_FILE || self.names.len() > MOST {
            return Err(too_large());
        }
        if there < size {
            return Ok(false);
        }
        bytes.truncate(size as usize);
        self.file.read_exact_at(&mut bytes, self.offset)?;
        self.offset += size;
        match kind {
            LOAD => {
                let (start, size) = (word(&bytes, RECORD + 16), word(&bytes, RECORD + 24));
                let name = bytes[LOAD_SIZE..].split(|byte| *byte == 0).next();
                let name = String::from_utf8_lossy(name.unwrap_or_default());
                let name: Arc<str> = Arc::from(name);
                self.names
                    .insert(word(&bytes, RECORD + 32), Arc::clone(&name));
                functions.extend(function(start, size, name));
            }
            MOVE => {
                let (start, size) = (word(&bytes, RECORD + 24), word(&bytes, RECORD + 32));
                let name = self.names.get(&word(&bytes, RECORD + 40));
                functions.extend(name.and_then(|name| function(start, size, Arc::clone(name))));
            }
            CLOSE => self.is_over = true,
            _ => {}
        }
        Ok(true)
    }
}

fn function(start: u64, size: u64, name: Arc<str>) -> Option<Function> {
    let end = start.checked_add(size)?;
    (start < end && !name.is_empty()).then_some(Function {
        addresses: start..end,
        name,
    })
}

/// Returns the number of 32 bits at an offset.
fn half(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes
        .get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

/// Returns the number of 64 bits at an offset.
fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes
        .get(at..at + 8)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{one, shown};
    use super::*;
    use std::io::Write;

    fn header(version: u32, machine: u32) -> Vec<u8> {
        let halves = [MAGIC, version, HEADER as u32, machine, 0, 1];
        let words = [0u64, 0];
        let halves = halves.iter().flat_map(|half| half.to_le_bytes());
        halves
            .chain(words.iter().flat_map(|word| word.to_le_bytes()))
            .collect()
    }

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = (RECORD + body.len()) as u32;
        [
            &kind.to_le_bytes()[..],
            &size.to_le_bytes(),
            &7u64.to_le_bytes(),
            body,
        ]
        .concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn load(start: u64, code: &[u8], number: u64, name: &str) -> Vec<u8> {
        let fields = words(&[1, start, start, code.len() as u64, number]);
        record(LOAD, &[&fields[..], name.as_bytes(), b"\0", code].concat())
    }

    fn moved(from: u64, to: u64, size: u64, number: u64) -> Vec<u8> {
        record(MOVE, &words(&[1, to, from, to, size, number]))
    }

    fn x86() -> Vec<u8> {
        header(1, X86_64)
    }

    fn file(parts: &[Vec<u8>]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&parts.concat()).expect("written");
        file
    }

    #[test]
    fn loads_and_moves_are_functions_and_others_are_skipped() {
        let file = file(&[
            x86(),
            load(0x1000, &[0xc3; 16], 1, "one"),
            record(2, &[0; 30]),
            record(4, &[]),
            load(0x2000, &[0xc3; 3], 2, "two words"),
            moved(0x1000, 0x3000, 16, 1),
            moved(0x1000, 0x4000, 16, 9),
            record(CLOSE, &[]),
            load(0x5000, &[0xc3; 3], 3, "behind the end"),
        ]);
        let mut dump = Dump::of(file).expect("a dump");
        let mut functions = Vec::new();
        dump.read(&mut functions).expect("readable");
        let expected = [
            one(0x1000, 0x1010, "one"),
            one(0x2000, 0x2003, "two words"),
            one(0x3000, 0x3010, "one"),
        ];
        assert_eq!(shown(functions), expected);
    }

    /// The program is writing, and a read sees any part of it.
    #[test]
    fn incomplete_records_are_read_when_they_are_complete() {
        let both = [
            load(0x1000, &[0xc3; 16], 1, "one"),
            load(0x2000, &[0xc3; 16], 2, "two"),
        ];
        let whole = both.concat();
        for cut in 0..=whole.len() {
            let mut file = file(&[x86()]);
            let mut dump = Dump::of(file.try_clone().expect("a file")).expect("a dump");
            let mut functions = Vec::new();
            for part in [&whole[..cut], &whole[cut..]] {
                file.write_all(part).expect("written");
                dump.read(&mut functions).expect("readable");
                if part.len() == cut && cut < both[0].len() {
                    assert!(functions.is_empty(), "{cut}");
                }
            }
            let expected = [one(0x1000, 0x1010, "one"), one(0x2000, 0x2010, "two")];
            assert_eq!(shown(functions), expected, "{cut}");
        }
    }

    #[test]
    fn what_is_not_a_dump_is_refused() {
        let swapped = [&MAGIC.to_be_bytes()[..], &x86()[4..]].concat();
        let cases = [
            (Vec::new(), "it is not a jitdump"),
            (x86()[..39].to_vec(), "it is not a jitdump"),
            (swapped, "it is not a jitdump"),
            (
                header(2, X86_64),
                "it is a jitdump of another version or machine",
            ),
            (
                header(1, 183),
                "it is a jitdump of another version or machine",
            ),
        ];
        for (bytes, expected) in cases {
            let error = Dump::of(file(&[bytes])).expect_err("refused");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn damage_ends_a_dump_and_is_told_once() {
        let long = load(0x3000, &[0xc3; 3], 1, &"x".repeat(2 * MAX_NAME));
        let overflow = load(u64::MAX - 1, &[0xc3; 16], 1, "beyond all addresses");
        let good = load(0x1000, &[0xc3; 16], 1, "one");
        let mut tiny = record(7, &[]);
        tiny[4] = 15;
        for damaged in [record(MOVE, &[0; 47]), record(LOAD, &[0; 39]), tiny] {
            let file = file(&[x86(), good.clone(), damaged, good.clone()]);
            let mut dump = Dump::of(file).expect("a dump");
            let mut functions = Vec::new();
            let error = dump.read(&mut functions).expect_err("damaged");
            assert_eq!(error.to_string(), "it is damaged");
            assert_eq!(shown(functions).len(), 1);
            assert!(dump.read(&mut Vec::new()).is_ok());
        }
        let mut dump = Dump::of(file(&[x86(), long, overflow, good])).expect("a dump");
        let mut functions = Vec::new();
        dump.read(&mut functions).expect("readable");
        let functions = shown(functions);
        assert_eq!(functions[0].2.len(), MAX_NAME);
        assert_eq!(functions[1..], [one(0x1000, 0x1010, "one")]);
    }
}
