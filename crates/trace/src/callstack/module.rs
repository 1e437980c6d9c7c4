//! A file that the program had mapped as code.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use capriole_target::debug::Inlined;
use capriole_target::object::ObjectFile;
use framehop::{ExplicitModuleSectionInfo, Module as ForUnwinding};

use super::Frame;
use crate::document::MappingInfo;

/// One mapping of a file.
pub(super) struct Module {
    mapping: MappingInfo,
    path: Arc<str>,
    /// When the recording began, in ns since 1970.
    recorded: u64,
    state: State,
}

enum State {
    /// Nobody has asked for it.
    Unread,
    /// It cannot be used.
    Missing,
    Read(Box<Contents>),
}

struct Contents {
    file: ObjectFile,
    /// What is added to a link address to make it one of the program's memory.
    bias: u64,
    inlined: Option<Inlined>,
}

/// What reading a module's file came to.
pub(super) enum Loaded {
    /// It was tried before.
    Before,
    /// It has just been read.
    Now(ForUnwinding<Arc<[u8]>>),
    /// It cannot be used, and why.
    Not(String),
}

impl Module {
    pub(super) fn new(mapping: MappingInfo, recorded: u64) -> Module {
        Module {
            path: Arc::from(mapping.path.as_str()),
            mapping,
            recorded,
            state: State::Unread,
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.mapping.start
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.mapping.start..self.mapping.end).contains(&address)
    }

    /// Reads the file, once.
    pub(super) fn load(&mut self) -> Loaded {
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

    /// What framehop has to know. A file whose call frame information cannot be read has none.
    fn for_unwinding(&self, contents: &Contents) -> ForUnwinding<Arc<[u8]>> {
        let file = &contents.file;
        let information = file.call_frame_information().ok().flatten();
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

    /// The bytes of code at an address, as the file has them.
    fn code<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let contents = self.contents()?;
        let link = address.wrapping_sub(contents.bias);
        contents.file.read(link, N as u64)?.try_into().ok()
    }

    /// Whether the file says where the return address is while this instruction is executed.
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

    /// Whether it is believed that nobody called the function here: its call frame information
    /// says so, or Go, which always has frame pointers, has none. Elsewhere an empty rbp means
    /// nothing.
    pub(super) fn can_be_outermost(&self, address: u64) -> bool {
        let is_go = self.contents().is_some_and(|c| c.file.is_go());
        is_go || self.is_described(address)
    }

    /// Whether signal handlers return to this address, as they do in every C library:
    /// `mov $15,%rax; syscall` (`rt_sigreturn`), or `mov $15,%eax`.
    pub(super) fn returns_from_signal(&self, address: u64) -> bool {
        self.code(address) == Some(*b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05")
            || self.code(address) == Some(*b"\xb8\x0f\0\0\0\x0f\x05")
    }

    /// Whether this may be a return address: there is a call before it, or a function begins
    /// there, which somebody put on a new stack to be returned to (`makecontext`). One of a file
    /// that cannot be read may be.
    pub(super) fn may_be_returned_to(&self, address: u64) -> bool {
        let Some(contents) = self.contents() else {
            return true;
        };
        let link = address.wrapping_sub(contents.bias);
        let is_start = |at: u64| {
            let symbols = contents.file.symbols().ok();
            symbols.is_some_and(|s| s.function_starting_at(at).is_some())
        };
        // Go's functions are returned to behind a first nop (`goexit`).
        self.is_behind_call(address) || is_start(link) || is_start(link.wrapping_sub(1))
    }

    fn is_behind_call(&self, address: u64) -> bool {
        // call rel32
        if self.code(address.wrapping_sub(5)) == Some([0xe8]) {
            return true;
        }
        // call through a register or memory: ff /2. A prefix in front makes no difference.
        (2..=7).any(|length| {
            let code = self.code::<2>(address.wrapping_sub(length));
            code.is_some_and(|[opcode, form]| {
                opcode == 0xff && form & 0x38 == 0x10 && call_lengths(form).contains(&length)
            })
        })
    }

    /// Whether a function begins here with `endbr64`.
    pub(super) fn begins_with_endbr(&self, address: u64) -> bool {
        self.code(address) == Some(*b"\xf3\x0f\x1e\xfa")
    }

    /// Bytes of the check of its stack with which the function of Go at an address begins.
    pub(super) fn stack_check(&self, start: u64) -> Option<u64> {
        let contents = self.contents()?;
        let symbols = contents.file.symbols().ok()?;
        let function = symbols.function_starting_at(start.wrapping_sub(contents.bias))?;
        contents.file.stack_check(function.extent)
    }

    /// The functions at the instruction that has the byte at `lookup`, the innermost first.
    pub(super) fn frames(&self, lookup: u64, address: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut own = Frame {
            address,
            symbol: None,
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
            // A stripped file has fewer names than its debug information.
            let known = inlined.pop();
            if let Some((symbols, function)) = function {
                let name = symbols.display_name(function).map(|name| name.into_owned());
                own.symbol = name.or(known);
                let from_start = link.wrapping_sub(function.extent.start);
                let behind = address.wrapping_sub(lookup);
                own.offset = own
                    .symbol
                    .is_some()
                    .then_some(from_start.wrapping_add(behind));
            }
            frames.extend(inlined.into_iter().map(|name| Frame {
                symbol: Some(name),
                offset: None,
                inlined: true,
                ..own.clone()
            }));
        }
        frames.push(own);
        frames
    }
}

/// Bytes of a call through a register or memory, by the byte that says which.
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

/// Whether the file was written after that moment, in ns since 1970.
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
