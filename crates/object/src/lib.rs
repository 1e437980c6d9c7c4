//! Programs and shared libraries: ELF files, and where a process has mapped them.
//!
//! There are three kinds of address. A *file offset* counts from the start of the file. A *link
//! address* is an address as in the file itself (symbols, program headers). A *run-time
//! address* is the link address plus the load *bias* in one process.

pub mod markers;
pub mod symbols;

mod bias;
mod call_frames;
mod code;
pub(crate) mod elf;
mod entered;
mod error;
pub mod frame_rules;
pub(crate) mod go;
mod loaded;
mod mini;
pub(crate) mod notes;
mod pointers;
mod roots;
mod rseq;
pub mod source;
mod table;
pub(crate) mod unwind;
mod vdso;

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use capriole_insn::Restored;
pub use code::ObjectCode;
pub use elf::{ObjectKind, Segment};
pub use error::{ObjectError, ObjectProblem};
pub use loaded::Object;
pub use rseq::RseqSection;
pub use table::{Entry, Objects};
pub use unwind::{Frame, LandingPads};
pub use vdso::vdso;

use capriole_insn::{Code, Extent, restored, stack_check};

use crate::markers::Markers;
use crate::symbols::{OtherSymbol, SymbolTable, Table, Variables, defines, find_other};
use call_frames::CallFrames;
use capriole_proc::files;
use elf::Headers;
use go::{GoFunctions, NoTable};
use notes::Facts;
use source::Source;

/// Directory with separate debug information.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// Identity of a file on this system: `st_dev` and `st_ino` of stat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device number, as in `st_dev`.
    pub dev: u64,
    /// Inode.
    pub inode: u64,
}

impl FileId {
    /// Returns the identity of the file currently at `path`.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<FileId> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(FileId {
            dev: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

/// Calling convention: location of a function's arguments and result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convention {
    /// The System V ABI.
    SystemV,
    /// Arguments in registers, as Go's compiler passes them (`ABIInternal`).
    Go,
    /// Unknown, or on the stack.
    NotRegisters(NotRegisters),
}

/// Reason why a Go function is not known to take its arguments in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRegisters {
    /// Assembly, which normally uses `ABI0`.
    #[error("it is written in assembly, and its arguments are mostly on the stack (Go's ABI0)")]
    Assembly,
    /// A wrapper through which assembly code calls Go.
    #[error("assembly code calls it, with the arguments on the stack (Go's ABI0)")]
    Stack,
    /// One of two functions with the same name, in a stripped file.
    #[error(
        "the program is stripped, and there are two functions of this name, one of which has its arguments on the stack (Go's ABI0)"
    )]
    Wrapper,
    /// Compiled by an old version of Go.
    #[error("Go before 1.18 made the program, and mostly passes arguments on the stack")]
    Older,
    /// The function table is missing or not understood.
    #[error("the program's table of Go functions (.gopclntab) is not found or not understood")]
    Unknown,
}

/// Contents of one executable segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Link address of the first byte.
    pub address: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// The bytes as in the file.
    pub bytes: Vec<u8>,
}

impl Text {
    /// Returns the bytes of a range of link addresses that is within the segment.
    pub(crate) fn at(&self, range: Extent) -> Option<&[u8]> {
        let start = usize::try_from(range.start.checked_sub(self.address)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.address)?).ok()?;
        self.bytes.get(start..end)
    }

    /// Link address after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }
}

/// An ELF file, independent of any process. Each table is read once, on first use.
#[derive(Debug)]
pub struct ObjectFile {
    path: PathBuf,
    source: Source,
    id: FileId,
    headers: Headers,
    facts: Facts,
    frames: OnceLock<Result<Vec<Frame>, ObjectProblem>>,
    call_frames: OnceLock<CallFrames>,
    landing_pads: OnceLock<Result<LandingPads, ObjectProblem>>,
    symbols: OnceLock<Result<SymbolTable, ObjectProblem>>,
    variables: OnceLock<Variables>,
    go: OnceLock<Result<GoFunctions, NoTable>>,
    text: OnceLock<Result<Vec<Text>, ObjectProblem>>,
    rseq: OnceLock<Result<Vec<RseqSection>, ObjectProblem>>,
    markers: OnceLock<Result<Markers, ObjectProblem>>,
    debug_directories: Vec<PathBuf>,
    /// The root directory of the process that has mapped the file, if it is another one, and the file's
    /// directory there.
    root: Option<(PathBuf, PathBuf)>,
    debug: DebugSlot,
}

/// Place for the debug information that a crate above this one reads from the file.
#[derive(Default)]
struct DebugSlot(OnceLock<Box<dyn Any + Send + Sync>>);

impl fmt::Debug for DebugSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() {
            "read"
        } else {
            "not read"
        })
    }
}

impl ObjectFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    ///
    /// Not readable, not ELF, not for x86-64, or damaged.
    pub fn open(path: &Path) -> Result<ObjectFile, ObjectError> {
        let file = files::open(path).map_err(|e| ObjectError::new(path, e))?;
        ObjectFile::from_file(file, path)
    }

    /// Takes a file that is already open; `path` is its name in messages.
    ///
    /// # Errors
    ///
    /// As [`ObjectFile::open`].
    pub fn from_file(file: File, path: &Path) -> Result<ObjectFile, ObjectError> {
        let metadata = file.metadata().map_err(|e| ObjectError::new(path, e))?;
        let id = FileId {
            dev: metadata.dev(),
            inode: metadata.ino(),
        };
        Source::file(file)
            .and_then(|source| ObjectFile::new(source, id, path))
            .map_err(|reason| ObjectError::new(path, reason))
    }

    fn new(source: Source, id: FileId, path: &Path) -> Result<ObjectFile, ObjectProblem> {
        let mut headers = Headers::read(&source)?;
        let facts = Facts::read(&source, &headers);
        headers.kind = match headers.kind {
            ObjectKind::FixedProgram => ObjectKind::FixedProgram,
            _ if facts.pie_flag => ObjectKind::PositionIndependentProgram,
            // Some libraries can be executed, such as libc.so.6.
            _ if facts.soname.is_some() => ObjectKind::SharedLibrary,
            kind => kind,
        };
        Ok(ObjectFile {
            path: path.to_owned(),
            source,
            id,
            headers,
            facts,
            frames: OnceLock::new(),
            call_frames: OnceLock::new(),
            landing_pads: OnceLock::new(),
            symbols: OnceLock::new(),
            variables: OnceLock::new(),
            go: OnceLock::new(),
            text: OnceLock::new(),
            rseq: OnceLock::new(),
            markers: OnceLock::new(),
            debug_directories: vec![PathBuf::from(DEBUG_DIRECTORY)],
            root: None,
            debug: DebugSlot::default(),
        })
    }

    /// Sets the directories to search for separate debug information instead of `/usr/lib/debug`.
    #[must_use]
    pub fn with_debug_directories(mut self, directories: Vec<PathBuf>) -> ObjectFile {
        self.debug_directories = directories;
        self
    }

    /// Searches for separate debug information in the root directory of a process first, which is in
    /// another one than this. `directory` is that of the file, as the process sees it.
    #[must_use]
    pub fn in_root(mut self, root: PathBuf, directory: PathBuf) -> ObjectFile {
        let of_root =
            |directory: &PathBuf| root.join(directory.strip_prefix("/").unwrap_or(directory));
        let inside: Vec<PathBuf> = self.debug_directories.iter().map(of_root).collect();
        self.debug_directories.splice(0..0, inside);
        self.root = Some((root, directory));
        self
    }

    /// Returns the root directory of the process that has mapped the file, if it is another one, and the
    /// file's directory there.
    #[must_use]
    pub fn root(&self) -> Option<(&Path, &Path)> {
        let (root, directory) = self.root.as_ref()?;
        Some((root, directory))
    }

    /// Returns the directories to search for separate debug information.
    #[must_use]
    pub fn debug_directories(&self) -> &[PathBuf] {
        &self.debug_directories
    }

    /// Returns what `read` made of the file's debug information when it was first called. All
    /// calls for a file must be for one type: there is one slot, and `None` for any other.
    pub fn debug_slot<T: Any + Send + Sync>(&self, read: impl FnOnce() -> T) -> Option<&T> {
        let held = self.debug.0.get_or_init(|| Box::new(read()));
        held.downcast_ref()
    }

    /// Returns the bytes of the file.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the link address and the bytes of the call frame information (`.eh_frame`).
    ///
    /// # Errors
    ///
    /// The file is truncated.
    pub fn eh_frame(&self) -> Result<Option<(u64, Vec<u8>)>, ObjectProblem> {
        unwind::eh_frame(&self.source, &self.headers)
    }

    /// Returns the link address range of a section.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<std::ops::Range<u64>> {
        let section = self.headers.section(name)?;
        Some(section.address..section.address.checked_add(section.size)?)
    }

    /// Returns the file's path: as in the process, or as given when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity of the file.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Returns how the file is loaded.
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        self.headers.kind
    }

    /// Returns the link address of the entry point, 0 for none.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.headers.entry
    }

    /// Returns the loadable segments.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.headers.segments
    }

    /// Returns the linker's identification of this build (`.note.gnu.build-id`).
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.facts.build_id.as_deref()
    }

    /// Returns the library's own name (`DT_SONAME`).
    #[must_use]
    pub fn soname(&self) -> Option<&str> {
        self.facts.soname.as_deref()
    }

    /// True if the Go tool chain linked the file: its functions move their stacks and do not follow
    /// the platform's calling convention.
    #[must_use]
    pub fn is_go(&self) -> bool {
        const MARKS: [&str; 4] = [
            ".note.go.buildid",
            ".gopclntab",
            ".data.rel.ro.gopclntab",
            ".go.buildinfo",
        ];
        self.facts.go_note
            || MARKS
                .iter()
                .any(|name| self.headers.section(name).is_some())
    }

    /// Returns Go's own table of functions; `None` if the file is not a Go file.
    fn go_functions(&self) -> Option<&Result<GoFunctions, NoTable>> {
        let read = || GoFunctions::read(&self.source, &self.headers);
        self.is_go().then(|| self.go.get_or_init(read))
    }

    /// Returns the length in bytes of the stack check at the start of a Go function with this
    /// extent (link addresses): see [`stack_check`].
    #[must_use]
    pub fn stack_check(&self, function: Extent) -> Option<u64> {
        stack_check(&self.go_code(function)?, function)
    }

    /// Returns the registers that a Go function between these link addresses restores after its stack
    /// has grown; `None` if it does not grow there: see [`restored`].
    #[must_use]
    pub fn restored(&self, start: u64, end: u64) -> Option<Restored> {
        let function = Extent::new(start, end);
        restored(&self.go_code(function)?, function)
    }

    /// Returns the code of a Go file around a function.
    fn go_code(&self, function: Extent) -> Option<Code<'_>> {
        let texts = self.is_go().then(|| self.text().ok())??;
        let mut codes = texts
            .iter()
            .map(|text| Code::new(&text.bytes, text.address));
        codes.find(|code| code.get(function).is_some())
    }

    /// Returns the calling convention of the function around a link address.
    #[must_use]
    pub fn convention(&self, link_address: u64) -> Convention {
        /// Suffix that the linker adds to the name of one of two functions.
        const ABI0: &str = ".abi0";
        let not = Convention::NotRegisters;
        let functions = match self.go_functions() {
            None => return Convention::SystemV,
            Some(Ok(functions)) => functions,
            Some(Err(NoTable::Older)) => return not(NotRegisters::Older),
            Some(Err(NoTable::Unknown)) => return not(NotRegisters::Unknown),
        };
        let Some(function) = functions.at(link_address).filter(|function| function.go) else {
            return Convention::SystemV; // C
        };
        if function.assembly {
            return not(NotRegisters::Assembly);
        }
        let Ok(symbols) = self.symbols() else {
            return not(NotRegisters::Unknown);
        };
        let marked = |at: u64| {
            let named = symbols.function_starting_at(at);
            let mut names = named.into_iter().flat_map(|f| symbols.names(f));
            names.any(|name| name.linkage.ends_with(ABI0))
        };
        if marked(function.extent.start) {
            return not(NotRegisters::Stack);
        }
        let name = String::from_utf8_lossy(functions.name(function));
        match function.twice && symbols.linked(&format!("{name}{ABI0}")).is_empty() {
            true => not(NotRegisters::Wrapper),
            false => Convention::Go,
        }
    }

    /// Returns the link address of the byte at a file offset, if it is loaded. If a page of the
    /// file is loaded twice, the executable segment takes precedence.
    #[must_use]
    pub fn link_address(&self, offset: u64) -> Option<u64> {
        let segments = || self.headers.segments.iter();
        segments()
            .filter(|s| s.perms.execute)
            .chain(segments().filter(|s| !s.perms.execute))
            .find_map(|segment| segment.address_of(offset))
    }

    /// Returns the link address of the first byte of a code mapping that begins at a file offset.
    /// The mapping begins at a page boundary, and the code may begin later: lld lays out segments
    /// so that one ends and the next begins in the same page of the file.
    #[must_use]
    pub fn mapping_address(&self, offset: u64) -> Option<u64> {
        let mut code = self.headers.segments.iter().filter(|s| s.perms.execute);
        code.find_map(|segment| segment.page_address_of(offset))
    }

    /// Returns the file offset of the byte at a link address, if the byte comes from the file.
    #[must_use]
    pub fn file_offset(&self, link_address: u64) -> Option<u64> {
        self.headers.offset_of(link_address)
    }

    /// True if the link address is in an executable section (in the executable segment, if there
    /// are no sections).
    #[must_use]
    pub fn is_text(&self, link_address: u64) -> bool {
        self.headers.text_range(link_address).is_some()
    }

    /// Returns the link address range of all loadable segments, from the first to the end of the
    /// last.
    #[must_use]
    pub fn link_range(&self) -> std::ops::Range<u64> {
        let segments = &self.headers.segments;
        let start = segments.iter().map(Segment::page_address).min();
        let end = segments.iter().map(|s| s.address + s.memory_size).max();
        start.unwrap_or(0)..end.unwrap_or(0)
    }

    /// Returns the executable segments with their bytes.
    ///
    /// # Errors
    ///
    /// The file is truncated or cannot be read any more.
    pub fn text(&self) -> Result<&[Text], ObjectError> {
        let read = || {
            let executable = self.headers.segments.iter().filter(|s| s.perms.execute);
            executable
                .map(|segment| {
                    Ok(Text {
                        address: segment.address,
                        offset: segment.offset,
                        bytes: self.source.read(segment.offset, segment.file_size)?,
                    })
                })
                .collect()
        };
        self.lazy(&self.text, read).map(Vec::as_slice)
    }

    /// Returns the file's bytes at a link address; `None` unless all of them are in the file.
    #[must_use]
    pub fn read(&self, link_address: u64, size: u64) -> Option<Vec<u8>> {
        let segments = self.headers.segments.iter();
        let segment = segments
            .into_iter()
            .find(|s| s.offset_of(link_address).is_some())?;
        let distance = link_address - segment.address;
        (size <= segment.file_size - distance)
            .then(|| self.source.read(segment.offset + distance, size).ok())?
    }

    /// Returns the functions, from symbols, call frame information, and Go's own table. If the call
    /// frame information is damaged, only functions with names are returned.
    ///
    /// # Errors
    ///
    /// The symbol table is damaged.
    pub fn symbols(&self) -> Result<&SymbolTable, ObjectError> {
        let frames = self.frames().unwrap_or_default();
        let go = self.go_functions().and_then(|go| go.as_ref().ok());
        self.lazy(&self.symbols, || {
            SymbolTable::read(&self.tables()?, &self.headers, frames, go)
        })
    }

    /// Reads the symbol tables: its own, and that of its MiniDebugInfo.
    fn tables(&self) -> Result<Vec<Table>, ObjectProblem> {
        let mut tables = Table::all(&self.source, &self.headers, &self.facts)?;
        if let Some((source, headers)) = mini::read(&self.source, &self.headers) {
            // What is damaged there names nothing.
            tables.extend(Table::all(&source, &headers, &self.facts).unwrap_or_default());
        }
        Ok(tables)
    }

    /// Returns the variable at a link address: its name, demangled, and the offset of the address in it.
    /// Only variables in symbol tables are known, not those on stacks.
    #[must_use]
    pub fn variable_at(&self, address: u64) -> Option<(String, u64)> {
        let read = || Variables::of(&self.tables().unwrap_or_default());
        self.variables.get_or_init(read).at(address)
    }

    /// Returns the entries of the call frame information, by start address.
    ///
    /// # Errors
    ///
    /// `.eh_frame` is damaged.
    pub fn frames(&self) -> Result<&[Frame], ObjectError> {
        self.lazy(&self.frames, || {
            unwind::read_frames(&self.source, &self.headers)
        })
        .map(Vec::as_slice)
    }

    /// Returns true if the return address is on top of the stack at a link address, according to
    /// the call frame information. `None` if the call frame information does not cover the address.
    #[must_use]
    pub fn is_called(&self, link_address: u64) -> Option<bool> {
        let read = || CallFrames::read(&self.source, &self.headers);
        self.call_frames.get_or_init(read).is_called(link_address)
    }

    /// Returns the rules by which frames lead to their callers, by address: each holds until the next
    /// one. Nothing is kept: there are many.
    #[must_use]
    pub fn frame_rules(&self) -> Vec<frame_rules::RuleStart> {
        let texts = self.text().unwrap_or_default();
        let go = self.go_functions().and_then(|go| go.as_ref().ok());
        frame_rules::read(&self.source, &self.headers, texts, go, self.symbols().ok())
    }

    /// Returns the landing pads of exceptions and of recovered panics in Go functions: code that is
    /// not the target of any jump.
    ///
    /// # Errors
    ///
    /// `.eh_frame` is damaged.
    pub fn landing_pads(&self) -> Result<&LandingPads, ObjectError> {
        let frames = self.frames()?;
        self.lazy(&self.landing_pads, || {
            let mut pads = unwind::read_landing_pads(&self.source, &self.headers, frames);
            if let Some(Ok(go)) = self.go_functions() {
                let functions = go.functions.iter().filter(|function| function.go);
                pads.addresses.extend(functions.filter_map(|f| f.recovers));
                pads.addresses.sort_unstable();
            }
            Ok(pads)
        })
    }

    /// Returns the restartable sequences that the file declares (rseq(2)).
    ///
    /// # Errors
    ///
    /// Their table or the relocations are damaged.
    pub fn rseq_sections(&self) -> Result<&[RseqSection], ObjectError> {
        self.lazy(&self.rseq, || rseq::read(&self.source, &self.headers))
            .map(Vec::as_slice)
    }

    /// Returns the static markers.
    ///
    /// # Errors
    ///
    /// Their notes are truncated.
    pub fn markers(&self) -> Result<&Markers, ObjectError> {
        let texts = self.text()?;
        let read = || Markers::read(&self.source, &self.headers, &self.facts, texts);
        self.lazy(&self.markers, read)
    }

    /// Classifies `name` if it is a symbol that is not a function in this object.
    ///
    /// # Errors
    ///
    /// The symbol table is damaged.
    pub fn other_symbol(&self, name: &str) -> Result<Option<OtherSymbol>, ObjectError> {
        Table::all(&self.source, &self.headers, &self.facts)
            .and_then(|tables| find_other(&tables, name))
            .map_err(|reason| ObjectError::new(&self.path, reason))
    }

    /// Returns for each of these symbols whether the file uses it and another file defines it. Of a damaged
    /// symbol table none is used.
    #[must_use]
    pub fn imports<const N: usize>(&self, names: [&str; N]) -> [bool; N] {
        let shared = Table::shared(&self.source, &self.headers, &self.facts);
        let shared = shared.ok().flatten();
        names.map(|name| shared.as_ref().is_some_and(|table| table.imports(name)))
    }

    /// True if a symbol table has a function with this name. False if it is damaged.
    #[must_use]
    pub fn defines(&self, name: &str) -> bool {
        if let Some(Ok(symbols)) = self.symbols.get() {
            return symbols.has_linkage_name(name);
        }
        let tables = Table::all(&self.source, &self.headers, &self.facts);
        tables.is_ok_and(|tables| defines(&tables, name))
    }

    /// Returns the link addresses of the words where the loader stores the implementation that the
    /// resolver of an indirect function, at this link address, has chosen for calls in this object.
    pub fn resolved_slots(&self, resolver: u64) -> Vec<u64> {
        pointers::resolved_slots(&self.source, &self.headers, resolver).unwrap_or_default()
    }

    /// Returns the link addresses of the slots through which the object calls a function `name` of
    /// any object, or takes its address. Empty if there are none or the relocations are damaged.
    #[must_use]
    pub fn import_slots(&self, name: &str) -> Vec<u64> {
        pointers::import_slots(&self.source, &self.headers, name).unwrap_or_default()
    }

    /// Returns the link addresses in the text to which words of the object's data point.
    ///
    /// # Errors
    ///
    /// The relocations are damaged, or the file cannot be read any more.
    pub fn code_pointers(&self) -> Result<Vec<u64>, ObjectError> {
        let problem = |reason| ObjectError::new(&self.path, reason);
        let relocated = pointers::relative_relocations(&self.source, &self.headers);
        let mut found: Vec<u64> = Vec::new();
        let mut insert = |link: u64| {
            if self.is_text(link) {
                found.push(link);
            }
        };
        let relocated = relocated.map_err(problem)?;
        relocated.into_iter().for_each(|(_, value)| insert(value));
        if self.kind() == ObjectKind::FixedProgram {
            pointers::data_words(&self.source, &self.headers, |_, word| insert(word))
                .map_err(problem)?;
        }
        Ok(found)
    }

    /// Reads a table on first use, and returns the same result or error from then on.
    fn lazy<'a, T>(
        &self,
        cell: &'a OnceLock<Result<T, ObjectProblem>>,
        read: impl FnOnce() -> Result<T, ObjectProblem>,
    ) -> Result<&'a T, ObjectError> {
        cell.get_or_init(read)
            .as_ref()
            .map_err(|reason| ObjectError::new(&self.path, reason.clone()))
    }
}

/// True if a library's file name is `link` with more of its version: `libz.so.1.2.13` of `libz.so.1`.
#[must_use]
pub fn is_link(link: &str, file: &str) -> bool {
    let version = file.strip_prefix(link);
    version.is_some_and(|version| version.starts_with('.'))
}
