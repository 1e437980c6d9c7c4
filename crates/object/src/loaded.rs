//! An object as loaded in one process.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use capriole_insn::Extent;

use super::bias::Instance;
use super::code::ObjectCode;
use super::{ObjectError, ObjectFile, ObjectKind, Segment};
use crate::symbols::SymbolTable;
use capriole_proc::maps::{Mapping, PAGE_SIZE};

/// A program or library as loaded in a process, or a file without a process, at bias 0.
#[derive(Debug)]
pub struct Object {
    file: Arc<ObjectFile>,
    bias: u64,
    is_main: bool,
    mappings: Vec<Mapping>,
    /// See [`Object::is_part`]: the bias of the whole file.
    part_of: Option<u64>,
    code: OnceLock<Result<ObjectCode, ObjectError>>,
}

impl Object {
    /// Makes an object from a file without a process, at its link addresses.
    #[must_use]
    pub fn offline(file: Arc<ObjectFile>) -> Object {
        let is_main = file.kind() != ObjectKind::SharedLibrary;
        let instance = Instance {
            bias: 0,
            mappings: Vec::new(),
            is_whole: true,
        };
        Object::new(file, instance, is_main, None)
    }

    pub(super) fn new(
        file: Arc<ObjectFile>,
        instance: Instance,
        is_main: bool,
        part_of: Option<u64>,
    ) -> Object {
        Object {
            file,
            bias: instance.bias,
            is_main,
            mappings: instance.mappings,
            part_of,
            code: OnceLock::new(),
        }
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &Arc<ObjectFile> {
        &self.file
    }

    /// Returns the file's path, as the process names it.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the last part of the path, for messages and event names.
    #[must_use]
    pub fn name(&self) -> String {
        let path = self.path();
        let name = path.file_name().unwrap_or(path.as_os_str());
        OsStr::to_string_lossy(name).into_owned()
    }

    /// True for the main program of the process, and for a file without a process.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.is_main
    }

    /// Returns the object's mappings; empty without a process. Zeroed memory (`.bss`) after the
    /// last page of the file is not included.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// True if this is code of a loaded file that the process has mapped once more, without the
    /// file's data: V8 maps its built-in functions near the code that it compiles.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.part_of.is_some()
    }

    /// True if a run-time address of the object is mapped; always, except in a [part](Self::is_part).
    #[must_use]
    pub fn is_mapped(&self, address: u64) -> bool {
        let mut mappings = self.mappings.iter();
        !self.is_part() || mappings.any(|mapping| mapping.contains(address))
    }

    /// Returns the difference between run-time and link addresses of data. A [part](Self::is_part)
    /// uses the data of the loaded file.
    #[must_use]
    pub fn data_bias(&self) -> u64 {
        self.part_of.unwrap_or(self.bias)
    }

    /// Converts a link address to a run-time address.
    #[must_use]
    pub fn run_time(&self, link_address: u64) -> u64 {
        link_address.wrapping_add(self.bias)
    }

    /// Converts a run-time address to a link address.
    #[must_use]
    pub fn link(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }

    /// Converts an extent of link addresses to run-time addresses.
    #[must_use]
    pub fn run_time_extent(&self, extent: Extent) -> Extent {
        Extent::new(self.run_time(extent.start), self.run_time(extent.end))
    }

    /// Returns the run-time addresses of the whole object, from the start of its first segment to
    /// the end of the last, or of the mapped [part](Self::is_part): the `near` of a
    /// [`GapQuery`](capriole_proc::maps::GapQuery) for its detours.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        if let (true, [first, ..]) = (self.is_part(), &self.mappings[..]) {
            let last = self.mappings.last().unwrap_or(first);
            return first.start..last.end;
        }
        let link = self.file.link_range();
        self.run_time(link.start)..self.run_time(link.end)
    }

    /// True if a run-time address lies within the pages of the object.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        let link = self.link(address);
        let holds = |s: &Segment| {
            let end = s.address.saturating_add(s.memory_size);
            link >= s.page_address()
                && link < end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX)
        };
        self.file.segments().iter().any(holds)
    }

    /// Returns the functions, in link addresses.
    ///
    /// # Errors
    ///
    /// See [`ObjectFile::symbols`].
    pub fn symbols(&self) -> Result<&SymbolTable, ObjectError> {
        self.file.symbols()
    }

    /// Returns the facts about the code that planning needs, in run-time addresses. Computed on
    /// first use, on all processors.
    ///
    /// # Errors
    ///
    /// Some table of the file is damaged.
    pub fn code(&self) -> Result<&ObjectCode, ObjectError> {
        self.code
            .get_or_init(|| ObjectCode::build(&self.file, self.bias))
            .as_ref()
            .map_err(Clone::clone)
    }
}
