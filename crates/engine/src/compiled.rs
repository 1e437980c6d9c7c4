//! Names of functions that a program compiles while it runs, from the files that runtimes write for `perf`.
//!
//! [`map`] is a list of functions, [`dump`] a record of all that was compiled. Memory of compiled code is used again:
//! where different functions were at an address since the recording began, it is not known which of them an event
//! belongs to, and there is no name.

mod dump;
mod functions;
mod map;

use capriole_proc::maps::{Device, Mapping};
use capriole_proc::process::Process;
use dump::Dump;
use functions::Functions;
use map::Map;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

pub(crate) use functions::Found;

/// Maximum number of bytes that are read of such files.
const MAX_SIZE: u64 = 256 << 20;

/// Remark on a program that has compiled more functions than are kept.
const TOO_MANY: &str = "the program has compiled too many functions: the latest have no names";

/// A function that was compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Function {
    addresses: Range<u64>,
    name: Arc<str>,
}

/// Remark on a program that goes on in several processes.
const FORKED: &str = "the program has forked, and each process compiles its own functions: those that are in no file have \
                      no names";

/// The functions that a program has compiled.
#[derive(Debug)]
pub(crate) struct Compiled {
    functions: Functions,
    process: Process,
    map: Map,
    dumps: Vec<Dump>,
    /// True as long as code that is replaced belongs to no event.
    before_events: bool,
    /// Why functions have no names.
    remarks: Vec<String>,
    /// Why a map was not read; it does not matter unless names are missing.
    unread: Option<String>,
    /// True after something was not read: code may be other code since.
    incomplete: bool,
    /// True if events may belong to other processes, with code of their own at the same addresses.
    is_forked: bool,
}

impl Compiled {
    /// Creates the functions of a program, of which nothing was read yet. If it is not yet recorded
    /// (`before_events`), those that others have replaced up to the first [`Compiled::update`] do not matter.
    pub fn of(process: &Process, before_events: bool) -> Compiled {
        Compiled {
            functions: Functions::default(),
            process: process.clone(),
            map: Map::of(process),
            dumps: Vec::new(),
            before_events,
            remarks: Vec::new(),
            unread: None,
            incomplete: false,
            is_forked: false,
        }
    }

    /// Gives up all names: the program goes on in a child as well, and names are those of addresses in any of them.
    /// Returns true the first time.
    pub fn set_forked(&mut self) -> bool {
        !std::mem::replace(&mut self.is_forked, true)
    }

    /// True if the name of a mapped file is that of a dump.
    pub fn is_dump(mapping: &Mapping) -> bool {
        let path = Path::new(&mapping.path);
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        mapping.is_file() && name.starts_with(b"jit-") && name.ends_with(b".dump")
    }

    /// Adds a dump that a process has mapped.
    pub fn add_dump(&mut self, process: &Process, mapping: &Mapping) {
        let dump = open_mapped(process, mapping).and_then(|file| Dump::new(process, file));
        match dump {
            Ok(dump) if self.dumps.iter().any(|known| known.is_same(&dump)) => {}
            Ok(dump) => self.dumps.push(dump),
            Err(error) => {
                let path = mapping.path.to_string_lossy();
                self.remarks.push(no_names(&path, &error));
            }
        }
    }

    /// Reads what was added to the files. Returns the addresses at which there are different functions now.
    pub fn update(&mut self) -> Vec<Range<u64>> {
        let was_incomplete = self.incomplete;
        self.unread = None;
        let mut new = Vec::new();
        if let Err(error) = self.map.read(&self.process, &mut new) {
            let remark = no_names(&self.map.path(), &error);
            match self.map.is_there() {
                true => {
                    self.remarks.push(remark);
                    self.incomplete = true;
                }
                false => self.unread = Some(remark),
            }
        }
        for dump in &mut self.dumps {
            if let Err(error) = dump.read(&mut new) {
                self.remarks
                    .push(no_names("the jitdump of the program", &error));
                self.incomplete = true;
            }
        }
        let mut several = Vec::new();
        for function in new {
            match self.functions.add(function, self.before_events) {
                Some(more) => several.extend(more),
                None if self.incomplete => {}
                None => {
                    self.remarks.push(TOO_MANY.to_owned());
                    self.incomplete = true;
                }
            }
        }
        self.before_events = false;
        if self.incomplete && !was_incomplete {
            // Code may be replaced by code that is not read.
            several.push(0..u64::MAX);
        }
        several
    }

    /// True after something was not read, for a reason in the remarks.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// Finds the function at an address.
    pub fn at(&self, address: u64) -> Found {
        match self.incomplete || self.is_forked {
            true => Found::Nothing,
            false => self.functions.at(address),
        }
    }

    /// Returns why a function has no name, for which the advice is `how` if nothing names functions.
    pub fn why_nameless(&self, how: &str) -> String {
        if self.is_forked {
            return FORKED.to_owned();
        }
        if let Some(unread) = &self.unread {
            return unread.clone();
        }
        let path = self.map.path();
        if !self.dumps.is_empty() {
            return "the jitdump does not have all functions that the program compiled: some have no names".to_owned();
        }
        match self.map.is_there() {
            true => format!(
                "{path} does not have all functions that the program compiled: some have no names"
            ),
            false => {
                format!(
                    "functions that the program compiled have no names, as there is no {path}: {how}"
                )
            }
        }
    }

    /// Returns why functions have no names, since the last call.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }
}

fn no_names(path: &str, error: &io::Error) -> String {
    format!("{path}: {error}: functions that the program compiled have no names")
}

/// Opens exactly the file that is mapped.
fn open_mapped(process: &Process, mapping: &Mapping) -> io::Result<File> {
    process.open_mapped(mapping).or_else(|_| {
        let path = Path::new(&mapping.path);
        let file = capriole_proc::files::open_in(&process.proc_path("root"), path)?;
        let metadata = file.metadata()?;
        let id = (Device::from_st_dev(metadata.dev()), metadata.ino());
        match id == (mapping.dev, mapping.inode) {
            true => Ok(file),
            false => Err(io::Error::other("it is not the mapped file")),
        }
    })
}

/// Refuses a file that neither the process's user nor root has written: anybody may create files in `/tmp`.
fn check_owner(process: &Process, file: &File) -> io::Result<()> {
    let owner = file.metadata()?.uid();
    let user = process.status().map_err(io::Error::other)?.uid;
    match owner == 0 || owner == user {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "its owner is user {owner}, not the program's user"
        ))),
    }
}

fn too_large() -> io::Error {
    io::Error::other(format!("it is larger than {} MiB", MAX_SIZE >> 20))
}

#[cfg(test)]
mod tests {
    use super::Function;

    pub fn shown(functions: Vec<Function>) -> Vec<(u64, u64, String)> {
        let shown = functions.into_iter().map(|function| {
            let Function { addresses, name } = function;
            (addresses.start, addresses.end, name.to_string())
        });
        shown.collect()
    }

    pub fn one(start: u64, end: u64, name: &str) -> (u64, u64, String) {
        (start, end, name.to_owned())
    }
}
