//! A file that the program had mapped as code.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::Inlined;
use capriole_object::ObjectFile;
use framehop::{ExplicitModuleSectionInfo, Module as ForUnwinding};

use super::Frame;
use capriole_trace::{ARCH, Document, MappingInfo};

/// One mapping of a file.
pub(crate) struct Module {
    mapping: MappingInfo,
    path: Arc<str>,
    /// Time when the recording began, in ns since 1970.
    recorded: u64,
    state: State,
}

enum State {
    /// Not needed so far.
    Unread,
    /// Cannot be used.
    Missing,
    Read(Box<Contents>),
}

struct Contents {
    file: ObjectFile,
    /// Added to a link-time address to get its address in the program's memory.
    bias: u64,
    inlined: Option<Inlined>,
}

/// Result of loading a module's file.
pub(crate) enum Loaded {
    /// Loading was tried before.
    Before,
    /// The file was just read.
    Now(ForUnwinding<Arc<[u8]>>),
    /// The file cannot be used, for this reason.
    Not(String),
}

impl Module {
    fn new(mapping: MappingInfo, recorded: u64) -> Module {
        Module {
            path: Arc::from(mapping.path.as_str()),
            mapping,
            recorded,
            state: State::Unread,
        }
    }

    /// Returns the code mappings of a trace, sorted by address; none if it is for another
    /// architecture. `recorded` is the time when the recording began, in ns since 1970.
    pub(crate) fn all(document: &Document, recorded: u64) -> Vec<Module> {
        let mappings = match document.arch == ARCH {
            true => &document.mappings[..],
            false => &[],
        };
        let mut modules: Vec<Module> = Module::of(mappings, recorded).collect();
        modules.sort_by_key(Module::start);
        modules
    }

    /// Returns the modules of these mappings, in their order.
    pub(crate) fn of(mappings: &[MappingInfo], recorded: u64) -> impl Iterator<Item = Module> {
        let sound = mappings
            .iter()
            .filter(|mapping| mapping.start < mapping.end);
        sound.map(move |mapping| Module::new(mapping.clone(), recorded))
    }

    pub(crate) fn start(&self) -> u64 {
        self.mapping.start
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.mapping.start..self.mapping.end).contains(&address)
    }

    /// True if the other one has other code at the same addresses.
    pub(crate) fn differs_from(&self, other: &Module) -> bool {
        let key = |module: &Module| {
            let MappingInfo {
                start,
                offset,
                path,
                build_id,
                ..
            } = module.mapping.clone();
            (start.wrapping_sub(offset), path, build_id)
        };
        key(self) != key(other)
    }

    /// Reads the file, once.
    pub(crate) fn load(&mut self) -> Loaded {
        if !matches!(self.state, State::Unread) {
            return Loaded::Before;
        }
        self.state = State::Missing;
        match self.open() {
            Ok(contents) => {
                let for_unwinding = self.for_unwinding(&contents);
                self.state = State::Read(Box::new(contents));
                Loaded::Now(for_unwinding)
            }
            Err(why) => Loaded::Not(format!("{why}: its functions have no names in call stacks")),
        }
    }

    fn open(&self) -> Result<Contents, String> {
        let path = Path::new(&self.mapping.path);
        let file = ObjectFile::open(path).map_err(|error| error.to_string())?;
        let hexadecimal = |id: &[u8]| id.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let changed = match (&self.mapping.build_id, file.build_id()) {
            (None, None) => is_younger(path, self.recorded),
            (recorded, found) => recorded.as_deref() != found.map(hexadecimal).as_deref(),
        };
        if changed {
            let path = path.display();
            return Err(format!("{path} is not the file that was recorded"));
        }
        let link = file.mapping_address(self.mapping.offset).ok_or_else(|| {
            let (path, offset) = (path.display(), self.mapping.offset);
            format!("{path} has nothing to be mapped at offset {offset:#x}")
        })?;
        Ok(Contents {
            bias: self.mapping.start.wrapping_sub(link),
            inlined: file.inlined().ok(),
            file,
        })
    }

    /// Returns the module description for framehop, without call frame information if that is
    /// unreadable.
    fn for_unwinding(&self, contents: &Contents) -> ForUnwinding<Arc<[u8]>> {
        let file = &contents.file;
        let information = file.eh_frame().ok().flatten();
        let (at, eh_frame) = information.unzip();
        let base = file.link_range().start;
        let range = |at: u64, bytes: &Vec<u8>| at..at.saturating_add(bytes.len() as u64);
        let sections = ExplicitModuleSectionInfo {
            base_svma: base,
            text_svma: file.section(".text"),
            got_svma: file.section(".got"),
            eh_frame_svma: at
                .zip(eh_frame.as_ref())
                .map(|(at, bytes)| range(at, bytes)),
            eh_frame: eh_frame.map(Arc::from),
            ..ExplicitModuleSectionInfo::default()
        };
        ForUnwinding::new(
            self.mapping.path.clone(),
            self.mapping.start..self.mapping.end,
            base.wrapping_add(contents.bias),
            sections,
        )
    }

    fn contents(&self) -> Option<&Contents> {
        match &self.state {
            State::Read(contents) => Some(contents),
            _ => None,
        }
    }

    /// Returns the code bytes at an address, from the file.
    fn code<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let contents = self.contents()?;
        let link = address.wrapping_sub(contents.bias);
        contents.file.read(link, N as u64)?.try_into().ok()
    }

    /// True if the file's call frame information covers this instruction.
    pub(super) fn is_described(&self, address: u64) -> bool {
        let Some(contents) = self.contents() else {
            return false;
        };
        let link = address.wrapping_sub(contents.bias);
        let frames = contents.file.frames().unwrap_or_default();
        let after = frames.partition_point(|frame| frame.extent.start <= link);
        let frame = after.checked_sub(1).and_then(|at| frames.get(at));
        frame.is_some_and(|frame| link < frame.extent.end)
    }

    /// True if the chain of calls can credibly end here: call frame information covers the
    /// instruction, or it is Go code, which always keeps frame pointers, and the frame pointer is
    /// empty. In other code an empty rbp means nothing.
    pub(super) fn can_be_outermost(&self, address: u64) -> bool {
        let is_go = self.contents().is_some_and(|c| c.file.is_go());
        is_go || self.is_described(address)
    }

    /// True if signal handlers return to this address. Every C library has
    /// `mov $15,%rax; syscall` (`rt_sigreturn`), or `mov $15,%eax`, at that address.
    pub(super) fn returns_from_signal(&self, address: u64) -> bool {
        self.code(address) == Some(*b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05")
            || self.code(address) == Some(*b"\xb8\x0f\0\0\0\x0f\x05")
    }

    /// True if this may be a return address: it follows a call instruction, or it is the start of a
    /// function whose address was stored as the return address on a new stack (`makecontext`). If
    /// the file cannot be read, any address may be a return address.
    pub(super) fn may_be_returned_to(&self, address: u64) -> bool {
        let Some(contents) = self.contents() else {
            return true;
        };
        let link = address.wrapping_sub(contents.bias);
        let is_start = |at: u64| {
            let symbols = contents.file.symbols().ok();
            symbols.is_some_and(|s| s.function_starting_at(at).is_some())
        };
        // The outermost return address in Go follows an initial nop (`goexit`).
        self.is_behind_call(address) || is_start(link) || is_start(link.wrapping_sub(1))
    }

    fn is_behind_call(&self, address: u64) -> bool {
        // call rel32
        if self.code(address.wrapping_sub(5)) == Some([0xe8]) {
            return true;
        }
        // call through a register or memory: ff /2. A prefix before it makes no difference.
        (2..=7).any(|length| {
            let code = self.code::<2>(address.wrapping_sub(length));
            code.is_some_and(|[opcode, form]| {
                opcode == 0xff && form & 0x38 == 0x10 && call_lengths(form).contains(&length)
            })
        })
    }

    /// True if a function begins here with `endbr64`.
    pub(super) fn begins_with_endbr(&self, address: u64) -> bool {
        self.code(address) == Some(*b"\xf3\x0f\x1e\xfa")
    }

    /// Returns the length in bytes of the stack check at the start of the Go function at this
    /// address.
    pub(super) fn stack_check(&self, start: u64) -> Option<u64> {
        let contents = self.contents()?;
        let symbols = contents.file.symbols().ok()?;
        let function = symbols.function_starting_at(start.wrapping_sub(contents.bias))?;
        contents.file.stack_check(function.extent)
    }

    /// Returns the functions at the instruction that contains the byte at `lookup`, innermost
    /// first.
    pub(crate) fn frames(&self, lookup: u64, address: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut own = Frame {
            address,
            symbol: None,
            start: None,
            offset: None,
            object: Some(Arc::clone(&self.path)),
            inlined: false,
        };
        if let Some(contents) = self.contents() {
            let link = lookup.wrapping_sub(contents.bias);
            let symbols = contents.file.symbols().ok();
            let function = symbols.and_then(|s| Some((s, s.function_at(link)?)));
            let inlined = contents.inlined.as_ref().map(|inlined| inlined.at(link));
            let mut inlined = inlined.unwrap_or_default();
            // A stripped file has fewer symbols than its debug information has functions.
            let known = inlined.pop();
            if let Some((symbols, function)) = function {
                let name = symbols.display_name(function).map(|name| name.into_owned());
                own.symbol = name.or(known);
                let from_start = link.wrapping_sub(function.extent.start);
                let behind = address.wrapping_sub(lookup);
                own.offset = Some(from_start.wrapping_add(behind));
                own.start = own.symbol.is_none().then_some(function.extent.start);
            }
            frames.extend(inlined.into_iter().map(|name| Frame {
                symbol: Some(name),
                start: None,
                offset: None,
                inlined: true,
                ..own.clone()
            }));
        }
        frames.push(own);
        frames
    }
}

/// Possible lengths in bytes of a call through a register or memory, by its ModRM byte.
fn call_lengths(form: u8) -> &'static [u64] {
    match (form >> 6, form & 7) {
        (0, 4) => &[3, 7],
        (0, 5) | (2, 0..=3 | 5..) => &[6],
        (0 | 3, _) => &[2],
        (1, 4) => &[4],
        (1, _) => &[3],
        _ => &[7],
    }
}

/// True if the file was written after this time, in ns since 1970.
fn is_younger(path: &Path, moment: u64) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else {
        return true;
    };
    let seconds = u64::try_from(metadata.mtime()).unwrap_or(0);
    let nanoseconds = u64::try_from(metadata.mtime_nsec()).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
        > moment
}
