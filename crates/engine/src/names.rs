//! Names of functions at addresses of code, from the files that the program has mapped.
//!
//! A name comes only from a file that is proved to be the mapped one, while it is mapped: [`Objects`] opens it
//! by the mapping itself, or by a path at which the same device and inode is found. So it does not matter what
//! is at the path later, in another mount namespace, or after a file was deleted or replaced. Code in no file has the
//! names that its compiler has written down (`compiled.rs`); the vDSO is read from memory.

use crate::compiled::{Compiled, Found};
use crate::error::Result;
use capriole_dwarf::{DebugInfo as _, Inlined};
use capriole_object::frame_rules::SIGRETURN;
use capriole_object::{Object, Objects, vdso};
use capriole_planner::unwinders::{Compiler, JAVA_FRAME_POINTERS};
use capriole_proc::maps::{Device, Mapping};
use capriole_proc::process::Process;
use capriole_trace::{Code, CodeName, FunctionName, MappingInfo};
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between searches for code that the program has mapped.
const SOON: Duration = Duration::from_millis(20);
/// Time for which what a search has found is taken as what is there.
const FRESH: Duration = Duration::from_millis(2);
/// Limits these searches to one part in this many of a processor's time.
const SHARE: u32 = 100;

/// Returns the time until the next search, after one that took so long.
pub(crate) fn until_next(spent: Duration) -> Duration {
    SOON.max(spent * SHARE)
}

/// The kernel's names of code that it has mapped, one of which is an ELF file.
const VDSO: &str = "[vdso]";
const KERNELS: [&str; 2] = [VDSO, "[vsyscall]"];

/// Remark on code that was replaced by other code.
const SEVERAL: &str = "different functions that the program compiled were at the same addresses, one after the other: \
                       calls there have no names";

/// Age of a forked child that does not execute another program: younger ones may be about to.
const FORKED: Duration = Duration::from_secs(1);

/// Number of call stacks of which a recorder remembers that it has named them.
const MOST_SEEN: usize = 1 << 20;

/// A mapping of code: addresses, offset in the file, and the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CodeMapping {
    start: u64,
    end: u64,
    offset: u64,
    file: (Device, u64),
}

impl CodeMapping {
    /// True if some of the addresses are the same.
    pub fn overlaps(&self, other: &CodeMapping) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// True if other code is at the same addresses.
    fn differs(&self, other: &CodeMapping) -> bool {
        let place = |mapping: &CodeMapping| mapping.start.wrapping_sub(mapping.offset);
        self.file != other.file || self.file.1 != 0 && place(self) != place(other)
    }
}

impl From<&Mapping> for CodeMapping {
    fn from(mapping: &Mapping) -> CodeMapping {
        CodeMapping {
            start: mapping.start,
            end: mapping.end,
            offset: mapping.offset,
            file: (mapping.dev, mapping.inode),
        }
    }
}

/// Returns the mappings of files with code.
pub(crate) fn with_code(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter().filter(|m| m.is_file() && m.perms.execute)
}

/// A mapping with its file.
struct Part {
    mapping: CodeMapping,
    /// Its path, or the kernel's name of it; `None` for memory without a file.
    path: Option<Arc<str>>,
    /// Its number among the files.
    file: Option<usize>,
}

/// A file as it is mapped.
struct File {
    object: Arc<Object>,
    /// Its inlined functions, once they were needed; `None` without debug information.
    inlined: OnceCell<Option<Inlined>>,
}

/// Returns the name of code of which nothing is known.
fn nothing(at: u64) -> CodeName {
    CodeName {
        at,
        object: None,
        functions: Vec::new(),
        returned_to: true,
        before_start: false,
        signal: false,
        replaced: false,
    }
}

/// Identity of the program that a process executes: its file, and its auxiliary vector.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    file: (u64, u64),
    auxv: Vec<u8>,
}

impl Program {
    /// Returns `None` if the process has ended.
    fn of(process: &Process) -> Option<Program> {
        let file = process.open_exe().ok()?.metadata().ok()?;
        Some(Program {
            file: (file.dev(), file.ino()),
            auxv: process.raw_auxv().ok().filter(|auxv| !auxv.is_empty())?,
        })
    }
}

/// Names the functions at addresses of a process.
pub struct Namer {
    process: Process,
    /// Later ones are valid where they overlap.
    parts: Vec<Part>,
    files: Vec<File>,
    seen: HashSet<CodeMapping>,
    /// Mapped memory without code, as of the last search.
    data: Vec<Range<u64>>,
    /// The addresses that have names: true if signal handlers return there.
    known: HashMap<u64, bool>,
    /// Those of them that are before the start of a function.
    starts: HashSet<u64>,
    /// The runtime that compiles code, if it is known, the functions that it has compiled, and the addresses with names
    /// of them.
    compiler: Option<Compiler>,
    compiled: Compiled,
    named_compiled: BTreeSet<u64>,
    new: Vec<CodeName>,
    mappings: Vec<MappingInfo>,
    remarks: Vec<String>,
    /// Remarks on compiled code, each of which is made once.
    told: HashSet<String>,
    /// The other processes that are recorded.
    children: Vec<Process>,
    /// Identity of the program, by which exec is noticed.
    program: Option<Program>,
    /// Time of the last search, and how long it took to read the lists of mappings.
    looked: Instant,
    spent: Duration,
}

/// Names that were found, and what belongs to them.
#[derive(Debug, Default)]
pub struct Named {
    /// Names of addresses that had none.
    pub names: Vec<CodeName>,
    /// Parts of files that are mapped as code.
    pub mappings: Vec<MappingInfo>,
    /// Reasons why functions have no names.
    pub remarks: Vec<String>,
}

impl Named {
    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.mappings.is_empty() && self.remarks.is_empty()
    }
}

impl Namer {
    /// Creates a namer that knows what the process has mapped and compiled now, before events occur.
    #[must_use]
    pub fn new(process: &Process) -> Namer {
        Namer::with(process, Compiled::of(process, true))
    }

    /// Creates a namer for events that have occurred.
    #[must_use]
    pub fn of_past_events(process: &Process) -> Namer {
        Namer::with(process, Compiled::of(process, false))
    }

    fn with(process: &Process, compiled: Compiled) -> Namer {
        let mut namer = Namer {
            process: process.clone(),
            parts: Vec::new(),
            files: Vec::new(),
            seen: HashSet::new(),
            data: Vec::new(),
            known: HashMap::new(),
            starts: HashSet::new(),
            compiler: None,
            compiled,
            named_compiled: BTreeSet::new(),
            new: Vec::new(),
            mappings: Vec::new(),
            remarks: Vec::new(),
            told: HashSet::new(),
            children: Vec::new(),
            program: Program::of(process),
            looked: Instant::now(),
            spent: Duration::ZERO,
        };
        namer.look();
        namer
    }

    /// Adds the addresses in the session's code to which signal handlers return.
    pub fn know_signal_returns(&mut self, addresses: Vec<u64>) {
        for address in addresses {
            // What is there without us has this name in C libraries.
            let name = FunctionName {
                name: Some(Arc::from("__restore_rt")),
                ..FunctionName::default()
            };
            for at in [address, address.wrapping_sub(1)] {
                self.add_name(CodeName {
                    functions: vec![name.clone()],
                    signal: true,
                    ..nothing(at)
                });
            }
        }
    }

    /// Sets the other processes that are recorded: children may have other code at the same addresses.
    pub fn set_children(&mut self, children: Vec<Process>) {
        self.children = children;
    }

    /// Looks for code that was mapped or compiled since the last time, if it is time.
    pub fn keep_looking(&mut self) {
        if self.looked.elapsed() >= self.interval() {
            self.look();
        }
    }

    /// Reads which functions were compiled since the last time. What was named at the addresses of other functions may
    /// have been these.
    fn update_compiled(&mut self) {
        let program = Program::of(&self.process);
        if program.is_some() && program != self.program {
            return; // what another program compiles belongs to no event
        }
        for range in self.compiled.update() {
            let why = (!self.compiled.is_incomplete()).then(|| SEVERAL.to_owned());
            self.forget_compiled(range, why);
        }
        let remarks = self.compiled.take_remarks();
        remarks.iter().for_each(|remark| self.remark(remark));
    }

    /// Takes back the names of compiled functions at some addresses.
    fn forget_compiled(&mut self, range: Range<u64>, why: Option<String>) {
        let named: Vec<u64> = self.named_compiled.range(range).copied().collect();
        for at in named {
            self.named_compiled.remove(&at);
            if let Some(why) = &why {
                self.remark(why);
            }
            self.add_name(nothing(at));
        }
    }

    fn remark(&mut self, remark: &str) {
        if self.told.insert(remark.to_owned()) {
            self.remarks.push(remark.to_owned());
        }
    }

    /// Returns the time between two searches for code.
    fn interval(&self) -> Duration {
        until_next(self.spent)
    }

    /// Looks for code that was mapped or compiled since the last time. A process that has ended has no more, and what
    /// another program has mapped that it executes belongs to no event.
    pub fn look(&mut self) {
        self.looked = Instant::now();
        self.spent = Duration::ZERO;
        let own = (self.process.clone(), self.program.clone());
        let children = std::mem::take(&mut self.children);
        self.look_at(&own.0, own.1.as_ref());
        for child in &children {
            let program = Program::of(child);
            // The same program as its parent, at the same addresses.
            if program.is_some() && program == self.program {
                self.look_at(child, program.as_ref());
                if child.age() >= FORKED && self.compiled.set_forked() {
                    let why = self.compiled.why_nameless(&self.how_to_name());
                    self.forget_compiled(0..u64::MAX, Some(why));
                }
            }
        }
        self.children = children;
        self.update_compiled();
    }

    fn look_at(&mut self, process: &Process, program: Option<&Program>) {
        let begun = Instant::now();
        let maps = process.maps().unwrap_or_default();
        self.spent += begun.elapsed();
        if *process == self.process {
            let data = maps.iter().filter(|m| !m.perms.execute);
            self.data = data.map(|m| m.start..m.end).collect();
        }
        let code = maps.iter().filter(|m| m.perms.execute);
        let new: Vec<&Mapping> = code
            .filter(|mapping| !self.seen.contains(&CodeMapping::from(*mapping)))
            .collect();
        if new.is_empty() {
            return;
        }
        let objects = Objects::of_process(process).ok();
        let found: Vec<Option<Arc<Object>>> = new
            .iter()
            .map(|mapping| match mapping.is_named(VDSO) {
                true => vdso(process, &maps),
                false => objects.as_ref()?.containing(mapping.start).cloned(),
            })
            .collect();
        if Program::of(process).as_ref() != program {
            return;
        }
        for dump in new.iter().filter(|mapping| Compiled::is_dump(mapping)) {
            self.compiled.add_dump(process, dump);
        }
        let mut numbers: HashMap<*const Object, usize> = HashMap::new();
        for (mapping, object) in new.into_iter().zip(found) {
            self.seen.insert(CodeMapping::from(mapping));
            let file = object.map(|object| {
                *numbers.entry(Arc::as_ptr(&object)).or_insert_with(|| {
                    self.files.push(File {
                        object,
                        inlined: OnceCell::new(),
                    });
                    self.files.len() - 1
                })
            });
            self.add(mapping, objects.as_ref(), file);
        }
    }

    fn add(&mut self, mapping: &Mapping, objects: Option<&Objects>, file: Option<usize>) {
        let path = mapping.path.to_string_lossy();
        // Memory may have an inode but no file: code that was compiled at run time.
        let is_file = mapping.is_file()
            && (file.is_some() || !path.starts_with("/memfd:"))
            && !Compiled::is_dump(mapping);
        let has_name = is_file || KERNELS.iter().any(|name| mapping.is_named(name));
        if is_file && file.is_none() {
            let entries = objects.map_or(&[][..], Objects::entries);
            let entry = entries
                .iter()
                .find(|entry| entry.path() == mapping.path.as_os_str());
            let why = entry.and_then(|entry| objects?.open(entry).err());
            let why = why.map_or_else(
                || format!("{path} is not mapped as a whole"),
                |e| e.to_string(),
            );
            self.remarks
                .push(format!("{why}: its functions have no names"));
        }
        let new = CodeMapping::from(mapping);
        let differs = |part: &&Part| part.mapping.overlaps(&new) && part.mapping.differs(&new);
        if let Some(old) = self.parts.iter().find(differs) {
            if let (Some(old), true) = (&old.path, is_file) {
                self.remarks.push(format!(
                    "{old} and {path} were at the same addresses, one after the other or in a child process: \
                     functions there have no names"
                ));
            }
            // What was named there may have been the other one.
            let named: Vec<u64> = self
                .known
                .keys()
                .copied()
                .filter(|at| mapping.contains(*at))
                .collect();
            for at in named {
                self.add_name(CodeName {
                    replaced: true,
                    ..nothing(at)
                });
            }
        }
        if is_file {
            let hexadecimal = |id: &[u8]| id.iter().map(|b| format!("{b:02x}")).collect();
            self.mappings.push(MappingInfo {
                start: mapping.start,
                end: mapping.end,
                offset: mapping.offset,
                path: path.clone().into_owned(),
                build_id: file
                    .and_then(|file| self.files[file].object.file().build_id())
                    .map(hexadecimal),
            });
        }
        self.parts.push(Part {
            mapping: new,
            path: has_name.then(|| Arc::from(path)),
            file,
        });
    }

    /// Names the functions of a chain of callers.
    pub fn chain(&mut self, addresses: impl IntoIterator<Item = u64>) {
        let mut exact = true;
        for address in addresses {
            let at = if exact {
                address
            } else {
                address.wrapping_sub(1)
            };
            let signal = self.address(at);
            // The start of a function, to which a stack of `makecontext` returns, has its name at its own address.
            if !exact && self.starts.contains(&at) {
                self.address(address);
            }
            exact = signal;
        }
    }

    /// Names the function at an address; returns true if signal handlers return there.
    pub fn address(&mut self, at: u64) -> bool {
        if let Some(known) = self.known.get(&at) {
            return *known;
        }
        if self.part(at).is_none() && self.looked.elapsed() >= SOON {
            self.look();
        }
        let name = match self.is_in_no_file(at) {
            true => self.compiled_name(at),
            false => self.name(at),
        };
        self.add_name(name)
    }

    /// True if it is known, as of the last search, that there is executable memory without a file.
    fn is_compiled(&self, at: u64) -> bool {
        self.part(at).is_some_and(|part| part.path.is_none())
    }

    /// True if code at an address, if there is some, is in no file.
    fn is_in_no_file(&self, at: u64) -> bool {
        self.part(at).is_none_or(|part| part.path.is_none())
    }

    /// Names code in no file.
    fn compiled_name(&mut self, at: u64) -> CodeName {
        // So that it is known if other code has come there meanwhile.
        self.update_compiled();
        // It may be in a library that is loaded later.
        let find = || Compiler::of(self.files.iter().map(|file| &file.object));
        self.compiler = self.compiler.or_else(find);
        let mut name = self.name(at);
        name.returned_to &= self.is_returned_to(at.wrapping_add(1));
        match self.compiled.at(at) {
            _ if name.replaced || name.signal => {}
            Found::Function(function, offset) => {
                self.named_compiled.insert(at);
                name.functions = vec![FunctionName {
                    name: Some(function),
                    offset: Some(offset),
                    ..FunctionName::default()
                }];
            }
            Found::Several => self.remark(SEVERAL),
            Found::Nothing if self.is_compiled(at) => {
                let remark = self.compiled.why_nameless(&self.how_to_name());
                self.remark(&remark);
            }
            Found::Nothing => {}
        }
        name
    }

    /// Returns how a program writes down the names of the functions that it compiles.
    fn how_to_name(&self) -> String {
        let pid = self.process.pid();
        match self.compiler {
            Some(Compiler::V8) => {
                "start node with --perf-basic-prof --interpreted-frames-native-stack".to_owned()
            }
            Some(Compiler::Java) => format!(
                "start java with {JAVA_FRAME_POINTERS}, and run `jcmd {pid} Compiler.perfmap` before recording"
            ),
            Some(Compiler::DotNet) => "start the program with DOTNET_PerfMapEnabled=1".to_owned(),
            None => "its runtime may have an option to write a map for perf".to_owned(),
        }
    }

    /// False if it is certain that no call returns to an address of code in no file: it does not follow a call
    /// instruction, or is not in executable memory.
    fn is_returned_to(&self, at: u64) -> bool {
        let may_be = self.is_compiled(at) || !self.process.is_alive();
        if let Some(compiler) = self.compiler
            && !compiler.uses_call_instructions()
        {
            return may_be;
        }
        let mut before = [0; MOST_CALL];
        let start = at.wrapping_sub(MOST_CALL as u64);
        match self.process.read_memory(start, &mut before) {
            Ok(MOST_CALL) => {
                is_behind_call(|length| before.get(MOST_CALL - length..).map(<[u8]>::to_vec))
            }
            // It may be gone, or begin right there.
            _ => may_be,
        }
    }

    /// Names the function or the variable at an address.
    pub fn symbol(&mut self, at: u64) {
        if self.known.contains_key(&at) || self.address(at) || self.part(at).is_some() {
            return;
        }
        let mut files = self.files.iter().map(|file| &file.object);
        let object = files.rfind(|object| object.contains(at));
        if let Some(object) = object
            && let Some((name, offset)) = object.file().variable_at(object.link(at))
        {
            // In place of the name that was just added, which is none.
            self.new.pop();
            self.add_name(CodeName {
                at,
                object: Some(Arc::from(object.path().to_string_lossy())),
                functions: vec![FunctionName {
                    name: Some(Arc::from(name)),
                    offset: Some(offset),
                    ..FunctionName::default()
                }],
                returned_to: false,
                ..nothing(at)
            });
        }
    }

    fn add_name(&mut self, name: CodeName) -> bool {
        self.known.insert(name.at, name.signal);
        if name.before_start {
            self.starts.insert(name.at);
        }
        let signal = name.signal;
        self.new.push(name);
        signal
    }

    fn part(&self, at: u64) -> Option<&Part> {
        let contains = |part: &&Part| (part.mapping.start..part.mapping.end).contains(&at);
        self.parts.iter().rev().find(contains)
    }

    fn name(&self, at: u64) -> CodeName {
        let nothing = nothing(at);
        let Some(part) = self.part(at) else {
            // Code may have come to where data was.
            let is_fresh = self.looked.elapsed() < FRESH;
            let is_data = is_fresh && self.data.iter().any(|data| data.contains(&at));
            return CodeName {
                returned_to: !is_data,
                ..nothing
            };
        };
        let is_here = |other: &Part| (other.mapping.start..other.mapping.end).contains(&at);
        let mut parts = self.parts.iter();
        if parts.any(|other| is_here(other) && other.mapping.differs(&part.mapping)) {
            return CodeName {
                replaced: true,
                ..nothing
            };
        }
        let Some(file) = part.file.map(|file| &self.files[file]) else {
            return CodeName {
                object: part.path.clone(),
                signal: [at, at.wrapping_add(1)]
                    .iter()
                    .any(|at| self.is_signal_return(*at)),
                ..nothing
            };
        };
        let link = file.object.link(at);
        let next = link.wrapping_add(1);
        let functions = file.functions(link);
        // It is entered as if the instruction that has faulted had called it.
        let panics = |function: &FunctionName| function.name.as_deref() == Some("runtime.sigpanic");
        let panics = file.object.file().is_go() && functions.last().is_some_and(panics);
        CodeName {
            object: part.path.clone(),
            functions,
            returned_to: file.is_returned_to(next),
            before_start: file.is_start(next),
            signal: panics || file.is_signal_return(link) || file.is_signal_return(next),
            ..nothing
        }
    }

    /// True if signal handlers return to code at this address that is in no file.
    fn is_signal_return(&self, at: u64) -> bool {
        is_signal_return(|size| {
            let mut code = vec![0; size];
            let read = self.process.read_memory(at, &mut code).ok()?;
            (read == size).then_some(code)
        })
    }

    /// Returns what is new since the last call.
    pub fn take(&mut self) -> Named {
        Named {
            names: std::mem::take(&mut self.new),
            mappings: std::mem::take(&mut self.mappings),
            remarks: std::mem::take(&mut self.remarks),
        }
    }
}

impl File {
    /// Returns the functions at a link address, innermost first.
    fn functions(&self, link: u64) -> Vec<FunctionName> {
        let file = self.object.file();
        let symbols = self.object.symbols().ok();
        let function = symbols.and_then(|symbols| Some((symbols, symbols.function_at(link)?)));
        let inlined = self.inlined.get_or_init(|| file.inlined().ok());
        let mut inlined = inlined
            .as_ref()
            .map(|inlined| inlined.at(link))
            .unwrap_or_default();
        // A stripped file has fewer symbols than its debug information has functions.
        let known = inlined.pop();
        let mut own = FunctionName::default();
        if let Some((symbols, function)) = function {
            let name = symbols.display_name(function).map(|name| name.into_owned());
            // Its functions have the names of those of the C library, which call them, as well.
            let of_vdso = symbols.names(function).map(|name| name.linkage);
            let name = of_vdso
                .into_iter()
                .find(|name| name.starts_with("__vdso_"))
                .map(str::to_owned)
                .or(name);
            if let (Some(_), Some(linkage)) = (&name, symbols.linkage_name(function)) {
                let others = symbols.same_code(function, linkage).into_iter();
                own.same_code = others.map(Arc::from).collect();
            }
            own.name = name.or(known).map(Arc::from);
            own.offset = Some(link.wrapping_sub(function.extent.start));
            own.start = own.name.is_none().then_some(function.extent.start);
        }
        // Code is running there, so that the label is not one of data.
        if own.name.is_none()
            && let Some((name, start)) = symbols.and_then(|symbols| symbols.label_around(link))
        {
            own = FunctionName {
                name: Some(Arc::from(name)),
                offset: Some(link.wrapping_sub(start)),
                ..FunctionName::default()
            };
        }
        let inlined = inlined.into_iter().map(|name| FunctionName {
            name: Some(Arc::from(name)),
            inlined: true,
            ..FunctionName::default()
        });
        inlined.chain([own]).collect()
    }

    /// True if signal handlers return to this link address.
    fn is_signal_return(&self, link: u64) -> bool {
        is_signal_return(|size| self.object.file().read(link, size as u64))
    }

    /// True if a link address may be a return address: it follows a call instruction.
    fn is_returned_to(&self, link: u64) -> bool {
        // The outermost return address in Go follows an initial nop (`goexit`).
        let is_go = self.object.file().is_go();
        let before = |length: usize| {
            let start = link.wrapping_sub(length as u64);
            self.object.file().read(start, length as u64)
        };
        is_behind_call(before) || is_go && self.is_start(link.wrapping_sub(1))
    }

    /// True if a function begins at a link address.
    fn is_start(&self, link: u64) -> bool {
        let symbols = self.object.symbols().ok();
        symbols.is_some_and(|symbols| symbols.function_starting_at(link).is_some())
    }
}

/// Length of the longest call instruction without prefixes, bytes.
const MOST_CALL: usize = 7;

/// True if the bytes before an address, of which `before` returns the last ones, are a call instruction.
fn is_behind_call(before: impl Fn(usize) -> Option<Vec<u8>>) -> bool {
    // call rel32
    if before(5).is_some_and(|code| code[0] == 0xe8) {
        return true;
    }
    // call through a register or memory: ff /2. A prefix before it makes no difference.
    (2..=MOST_CALL).any(|length| {
        let code = before(length);
        code.is_some_and(|code| {
            let (opcode, form) = (code[0], code[1]);
            opcode == 0xff && form & 0x38 == 0x10 && call_lengths(form).contains(&length)
        })
    })
}

/// True if `read`, which returns that many bytes of code, finds what signal handlers return to.
fn is_signal_return(read: impl Fn(usize) -> Option<Vec<u8>>) -> bool {
    let mut codes = SIGRETURN.iter();
    codes.any(|code| read(code.len()).as_deref() == Some(*code))
}

/// Possible lengths in bytes of a call through a register or memory, by its ModRM byte.
fn call_lengths(form: u8) -> &'static [usize] {
    match (form >> 6, form & 7) {
        (0, 4) => &[3, 7],
        (0, 5) | (2, 0..=3 | 5..) => &[6],
        (0 | 3, _) => &[2],
        (1, 4) => &[4],
        (1, _) => &[3],
        _ => &[7],
    }
}

/// Names the code of a trace that is being written, on a thread of its own: reading debug information takes
/// time, in which a recorder has to read packets.
#[derive(Debug)]
pub(crate) struct Naming {
    /// Hashes of the call stacks and addresses that were handed over.
    seen: HashSet<u64>,
    work: Sender<Work>,
    found: Receiver<Named>,
    thread: JoinHandle<()>,
}

/// Work of the thread.
#[derive(Debug)]
enum Work {
    Chain(Vec<u64>),
    Address(u64),
    Children(Vec<Process>),
    SignalReturns(Vec<u64>),
    Look,
}

impl Naming {
    /// Starts to name code of a process. What is mapped now is known when this returns.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn of(process: &Process) -> Result<Naming> {
        let mut namer = Namer::new(process);
        let (work, to_do) = channel();
        let (done, found) = channel();
        let _ = done.send(namer.take());
        let thread = std::thread::Builder::new().name("names".to_owned());
        let thread = thread.spawn(move || name_all(namer, &to_do, &done))?;
        Ok(Naming {
            seen: HashSet::new(),
            work,
            found,
            thread,
        })
    }

    /// Sends code of a record to be named, unless it was sent before.
    pub fn see(&mut self, code: Code<'_>) {
        let mut hash = DefaultHasher::new();
        match code {
            Code::Stack(stack) => stack
                .addresses()
                .for_each(|address| hash.write_u64(address)),
            Code::Symbol(address) => hash.write_u64(address),
        }
        if !self.seen.insert(hash.finish()) {
            return;
        }
        if self.seen.len() > MOST_SEEN {
            self.seen.clear();
        }
        let work = match code {
            Code::Stack(stack) => Work::Chain(stack.addresses().collect()),
            Code::Symbol(address) => Work::Address(address),
        };
        // It ends only when we do.
        let _ = self.work.send(work);
    }

    /// Adds the addresses in the session's code to which signal handlers return.
    pub fn know_signal_returns(&mut self, addresses: Vec<u64>) {
        let _ = self.work.send(Work::SignalReturns(addresses));
    }

    /// Sets the other processes that are recorded.
    pub fn set_children(&mut self, children: impl Iterator<Item = Process>) {
        let _ = self.work.send(Work::Children(children.collect()));
    }

    /// Returns what was found since the last call.
    pub fn found(&self) -> Vec<Named> {
        self.found.try_iter().collect()
    }

    /// Looks for code once more, and returns all that was not returned yet.
    pub fn finish(self) -> Vec<Named> {
        let _ = self.work.send(Work::Look);
        drop(self.work);
        let failed = self.thread.join().is_err();
        let mut found: Vec<Named> = self.found.into_iter().collect();
        if failed {
            found.push(Named {
                remarks: vec!["naming functions has failed: some have no names".to_owned()],
                ..Named::default()
            });
        }
        found
    }
}

/// Does the work of the thread until there is no more.
fn name_all(mut namer: Namer, work: &Receiver<Work>, done: &Sender<Named>) {
    loop {
        let mut next = match work.recv_timeout(namer.interval()) {
            Ok(work) => Some(work),
            Err(RecvTimeoutError::Timeout) => Some(Work::Look),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        while let Some(work_now) = next {
            match work_now {
                Work::Chain(addresses) => namer.chain(addresses),
                Work::Address(address) => namer.symbol(address),
                Work::Children(children) => namer.set_children(children),
                Work::SignalReturns(addresses) => namer.know_signal_returns(addresses),
                Work::Look => namer.look(),
            }
            next = work.try_recv().ok();
        }
        namer.keep_looking();
        let named = namer.take();
        if !named.is_empty() && done.send(named).is_err() {
            return;
        }
    }
}
