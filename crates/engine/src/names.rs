//! Names of functions at addresses of code, from the files that the program has mapped.
//!
//! A name comes only from a file that is proved to be the mapped one, while it is mapped: [`Objects`] opens it
//! by the mapping itself, or by a path at which the same device and inode is found. So it does not matter what
//! is at the path later, in another mount namespace, or after a file was deleted or replaced.

use crate::error::Result;
use capriole_dwarf::{DebugInfo as _, Inlined};
use capriole_object::{Object, Objects};
use capriole_proc::maps::{Device, Mapping};
use capriole_proc::process::Process;
use capriole_trace::{Code, CodeName, EventInfo, FunctionName, MappingInfo};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between searches for code that the program has mapped: at first, when most libraries are
/// loaded, and later.
pub(crate) const SOON: Duration = Duration::from_millis(20);
pub(crate) const LATER: Duration = Duration::from_secs(1);
/// Time from the start of a recording for which [`SOON`] applies.
pub(crate) const BEGINNING: Duration = Duration::from_secs(5);
/// Number of call stacks of which a recorder remembers that it has named them.
const MOST_SEEN: usize = 1 << 20;

/// True if an event has a field that needs names: a call stack, or the address of a function.
pub(crate) fn are_needed(events: &[EventInfo]) -> bool {
    let mut fields = events.iter().flat_map(|event| &event.fields);
    fields.any(|field| field.field_type.is_call_stack() || field.field_type.is_symbol())
}

/// A mapping of code: addresses, offset in the file, and the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CodeMapping {
    start: u64,
    end: u64,
    offset: u64,
    file: (Device, u64),
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
    path: Arc<str>,
    /// Its number among the files.
    file: Option<usize>,
}

/// A file as it is mapped.
struct File {
    object: Arc<Object>,
    /// Its inlined functions, once they were needed; `None` without debug information.
    inlined: OnceCell<Option<Inlined>>,
}

/// Names the functions at addresses of a process.
pub struct Namer {
    process: Process,
    /// Later ones are valid where they overlap.
    parts: Vec<Part>,
    files: Vec<File>,
    seen: HashSet<CodeMapping>,
    /// The addresses that have names: true if signal handlers return there.
    known: HashMap<u64, bool>,
    new: Vec<CodeName>,
    mappings: Vec<MappingInfo>,
    remarks: Vec<String>,
    begun: Instant,
    looked: Instant,
    /// True if code was replaced since the last [`Namer::take`].
    replaced: bool,
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
    /// True if other code is at addresses that may have been named.
    replaced: bool,
}

impl Named {
    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.mappings.is_empty() && self.remarks.is_empty()
    }
}

impl Namer {
    /// Creates a namer that knows what the process has mapped now.
    #[must_use]
    pub fn new(process: &Process) -> Namer {
        let mut namer = Namer {
            process: process.clone(),
            parts: Vec::new(),
            files: Vec::new(),
            seen: HashSet::new(),
            known: HashMap::new(),
            new: Vec::new(),
            mappings: Vec::new(),
            remarks: Vec::new(),
            begun: Instant::now(),
            looked: Instant::now(),
            replaced: false,
        };
        namer.look();
        namer
    }

    /// Looks for code that was mapped since the last time, if it is time.
    pub fn keep_looking(&mut self) {
        if self.looked.elapsed() >= self.interval() {
            self.look();
        }
    }

    /// Returns the time between two searches for code.
    fn interval(&self) -> Duration {
        match self.begun.elapsed() < BEGINNING {
            true => SOON,
            false => LATER,
        }
    }

    /// Looks for code that was mapped since the last time. A process that has ended has no more.
    pub fn look(&mut self) {
        self.looked = Instant::now();
        let Ok(maps) = self.process.maps() else {
            return;
        };
        let new: Vec<&Mapping> = with_code(&maps)
            .filter(|mapping| self.seen.insert(CodeMapping::from(*mapping)))
            .collect();
        if new.is_empty() {
            return;
        }
        let objects = Objects::of_process(&self.process).ok();
        let mut numbers: HashMap<*const Object, usize> = HashMap::new();
        for mapping in new {
            let object = objects
                .as_ref()
                .and_then(|all| all.containing(mapping.start));
            let file = object.map(|object| {
                *numbers.entry(Arc::as_ptr(object)).or_insert_with(|| {
                    self.files.push(File {
                        object: Arc::clone(object),
                        inlined: OnceCell::new(),
                    });
                    self.files.len() - 1
                })
            });
            // Memory may have an inode but no file: code that was compiled at run time.
            let is_memory = mapping.path.as_encoded_bytes().starts_with(b"/memfd:");
            if file.is_some() || !is_memory {
                self.add(mapping, objects.as_ref(), file);
            }
        }
    }

    fn add(&mut self, mapping: &Mapping, objects: Option<&Objects>, file: Option<usize>) {
        let path = mapping.path.to_string_lossy();
        if file.is_none() {
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
        let overlaps =
            |part: &Part| part.mapping.start < mapping.end && mapping.start < part.mapping.end;
        if self.parts.iter().any(overlaps) {
            self.replaced = true;
            self.known.retain(|at, _| !mapping.contains(*at));
        }
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
        self.parts.push(Part {
            mapping: CodeMapping::from(mapping),
            path: Arc::from(path),
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
            exact = self.address(at);
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
        let name = self.name(at);
        self.known.insert(at, name.signal);
        let signal = name.signal;
        self.new.push(name);
        signal
    }

    fn part(&self, at: u64) -> Option<&Part> {
        let contains = |part: &&Part| (part.mapping.start..part.mapping.end).contains(&at);
        self.parts.iter().rev().find(contains)
    }

    fn name(&self, at: u64) -> CodeName {
        let nothing = CodeName {
            at,
            object: None,
            functions: Vec::new(),
            returned_to: true,
            signal: false,
        };
        let Some(part) = self.part(at) else {
            return nothing;
        };
        let Some(file) = part.file.map(|file| &self.files[file]) else {
            return CodeName {
                object: Some(Arc::clone(&part.path)),
                ..nothing
            };
        };
        let link = file.object.link(at);
        CodeName {
            at,
            object: Some(Arc::clone(&part.path)),
            functions: file.functions(link),
            returned_to: file.is_returned_to(link.wrapping_add(1)),
            signal: file.is_signal_return(link) || file.is_signal_return(link.wrapping_add(1)),
        }
    }

    /// Returns what is new since the last call.
    pub fn take(&mut self) -> Named {
        Named {
            names: std::mem::take(&mut self.new),
            mappings: std::mem::take(&mut self.mappings),
            remarks: std::mem::take(&mut self.remarks),
            replaced: std::mem::take(&mut self.replaced),
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
        let mut own = FunctionName {
            name: None,
            start: None,
            offset: None,
            inlined: false,
        };
        if let Some((symbols, function)) = function {
            let name = symbols.display_name(function).map(|name| name.into_owned());
            own.name = name.or(known).map(Arc::from);
            own.offset = Some(link.wrapping_sub(function.extent.start));
            own.start = own.name.is_none().then_some(function.extent.start);
        }
        let inlined = inlined.into_iter().map(|name| FunctionName {
            name: Some(Arc::from(name)),
            start: None,
            offset: None,
            inlined: true,
        });
        inlined.chain([own]).collect()
    }

    /// Returns code bytes at a link address, from the file.
    fn code<const N: usize>(&self, link: u64) -> Option<[u8; N]> {
        self.object.file().read(link, N as u64)?.try_into().ok()
    }

    /// True if signal handlers return to this link address. Every C library has
    /// `mov $15,%rax; syscall` (`rt_sigreturn`), or `mov $15,%eax`, at that address.
    fn is_signal_return(&self, link: u64) -> bool {
        self.code(link) == Some(*b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05")
            || self.code(link) == Some(*b"\xb8\x0f\0\0\0\x0f\x05")
    }

    /// True if a link address may be a return address: it follows a call instruction, or it is the start of
    /// a function whose address was stored as the return address on a new stack (`makecontext`).
    fn is_returned_to(&self, link: u64) -> bool {
        let is_start = |at: u64| {
            let symbols = self.object.symbols().ok();
            symbols.is_some_and(|s| s.function_starting_at(at).is_some())
        };
        // The outermost return address in Go follows an initial nop (`goexit`).
        self.is_behind_call(link) || is_start(link) || is_start(link.wrapping_sub(1))
    }

    fn is_behind_call(&self, link: u64) -> bool {
        // call rel32
        if self.code(link.wrapping_sub(5)) == Some([0xe8]) {
            return true;
        }
        // call through a register or memory: ff /2. A prefix before it makes no difference.
        (2..=7).any(|length| {
            let code = self.code::<2>(link.wrapping_sub(length));
            code.is_some_and(|[opcode, form]| {
                opcode == 0xff && form & 0x38 == 0x10 && call_lengths(form).contains(&length)
            })
        })
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

    /// Has code of a record named, unless it was.
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

    /// Returns what was found since the last call.
    pub fn found(&mut self) -> Vec<Named> {
        let found: Vec<Named> = self.found.try_iter().collect();
        if found.iter().any(|named| named.replaced) {
            self.seen.clear();
        }
        found
    }

    /// Looks for code once more, and returns all that was not returned yet.
    pub fn finish(self) -> Vec<Named> {
        let _ = self.work.send(Work::Look);
        drop(self.work);
        let _ = self.thread.join();
        self.found.into_iter().collect()
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
                Work::Address(address) => drop(namer.address(address)),
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
