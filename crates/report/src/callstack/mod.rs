//! Call stacks, reconstructed from a copy of the stack (the field `stack`).
//!
//! A record has the stack pointer, rbp and a copy of the stack. The event's description has the
//! address of the hit, the trace's description the files that the program had mapped as code. The
//! files are read from their paths: their call frame information (`.eh_frame`) gives, for every
//! instruction, the location of the function's return address. In code without it the frame pointer
//! is used, as long as it leads to return addresses right after call instructions.
//!
//! Nothing in a trace is trusted: every address is looked up in the copy and in the mappings, and
//! an inconsistency ends the backtrace. A file that is gone or was replaced (detected by its build
//! id) is no error: addresses then replace names, and [`CallStacks::remarks`] gives the reason.
//!
//! framehop unwinds by the call frame information. Some rules are added here: at a function's
//! exits, and at entries without frame information, the stack pointer leads to the return
//! address; signal frames are read as the kernel lays them out; and a return address must
//! follow a call, or be a function's start, so that guesses by frame pointers end instead of
//! inventing callers. Only rsp and rbp are recorded, so frame information that needs other
//! registers (the first instructions of functions that align their stacks) cannot be followed.

mod module;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwinderX86_64};
use framehop::{MayAllocateDuringUnwind, Unwinder as _};

use crate::shown::file_name;
use capriole_text::printable;
use capriole_trace::CallStack;
use capriole_trace::{ARCH, Document, EventInfo, MappingInfo};
pub(crate) use module::Module;
use walk::Place;

/// One line of a backtrace: a function that was called and has not returned yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The return address; for the innermost frame, the address of the event.
    pub address: u64,
    /// The function, demangled, if its name is known.
    pub symbol: Option<String>,
    /// The function's start if it has no name: its address in the object's file, as in `objdump`.
    pub start: Option<u64>,
    /// Bytes from the function's start to the address; `None` for inlined functions, and without a
    /// function.
    pub offset: Option<u64>,
    /// Path of the file that contains the code, if any.
    pub object: Option<Arc<str>>,
    /// True if the function is inlined into the next frame that is not inlined.
    pub inlined: bool,
}

impl Frame {
    /// Returns the place where a function without a name begins: `orders+0x1330`.
    pub(crate) fn place(&self) -> Option<String> {
        let object = self.object.as_deref()?;
        let start = self.start?;
        Some(format!("{}+{start:#x}", file_name(object)))
    }
}

impl Frame {
    /// Returns the function's name, or the place where it begins if it has none. If no function is
    /// known, returns the file's name in brackets.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.symbol.clone().or_else(|| self.place());
        name.unwrap_or_else(|| match &self.object {
            Some(object) => format!("[{}]", file_name(object)),
            None => "[unknown]".to_string(),
        })
    }
}

/// The reason why a backtrace ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The outermost call: the program or the thread begins there.
    Outermost,
    /// The unwinder needed more of the stack than was copied.
    Truncated,
    /// The caller of the last frame cannot be determined: its code belongs to no file (JIT code,
    /// for example), or has no frame information.
    Unknown,
}

/// The chain of calls that led to an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Backtrace {
    /// The numbers of the calls, innermost first; [`CallStacks::call`] resolves them. A
    /// place has the same number in all backtraces.
    pub calls: Vec<usize>,
    /// The reason why there are no more calls.
    pub end: End,
}

/// Unwinds call stacks of a trace. Caches what it learns about files and addresses.
pub struct CallStacks {
    /// Sorted by address.
    modules: Vec<Module>,
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    cache: CacheX86_64<MayAllocateDuringUnwind>,
    /// The numbers of calls, by place.
    known: HashMap<Place, usize>,
    /// Indexed by number.
    calls: Vec<Vec<Frame>>,
    /// Cache: true if the address may be a return address.
    plausible: HashMap<u64, bool>,
    /// Cache: true if signal handlers return to the address.
    from_signals: HashMap<u64, bool>,
    remarks: Vec<String>,
}

impl CallStacks {
    /// Creates an unwinder for the events of this trace.
    pub fn of(document: &Document) -> CallStacks {
        let recorded = document.time.start_realtime_ns;
        if document.arch == ARCH {
            return CallStacks::in_mappings(&document.mappings, recorded);
        }
        let mut stacks = CallStacks::in_mappings(&[], recorded);
        stacks.remarks.push(format!(
            "call stacks of {} cannot be unwound by this build, which is for {ARCH}",
            printable(&document.arch)
        ));
        stacks
    }

    /// As [`CallStacks::of`], for a program with these mappings; `begun` is when they were seen, in ns
    /// since 1970.
    pub fn in_mappings(mappings: &[MappingInfo], begun: u64) -> CallStacks {
        let mut stacks = CallStacks {
            modules: Vec::new(),
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            known: HashMap::new(),
            calls: Vec::new(),
            plausible: HashMap::new(),
            from_signals: HashMap::new(),
            remarks: Vec::new(),
        };
        stacks.add_mappings(mappings, begun);
        stacks
    }

    /// Adds mappings. Calls that were found before keep their functions.
    pub fn add_mappings(&mut self, mappings: &[MappingInfo], begun: u64) {
        self.modules.extend(Module::of(mappings, begun));
        self.modules.sort_by_key(Module::start);
    }

    /// Returns one line for each file that was missing for the backtraces requested so far.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Returns the backtrace of an event from its stack field.
    pub fn backtrace(&mut self, event: &EventInfo, stack: &CallStack<'_>) -> Backtrace {
        let (places, end) = self.walk(event, stack);
        let calls = places.iter().map(|place| self.number(*place)).collect();
        Backtrace { calls, end }
    }

    /// Returns the backtrace with these addresses, which the program has found itself: the place of a
    /// hit, then return addresses, but behind the place to which a signal handler returns the
    /// place that was interrupted. As in [`CallStacks::backtrace`], an address that no call
    /// returns to ends it.
    pub fn chain(&mut self, addresses: &[u64], end: End) -> Backtrace {
        let (places, end) = self.follow(addresses, end);
        let calls = places.iter().map(|place| self.number(*place)).collect();
        Backtrace { calls, end }
    }

    /// Returns the call with this number: the functions inlined at its place, innermost first, then
    /// the function itself.
    pub fn call(&self, number: usize) -> &[Frame] {
        self.calls.get(number).map_or(&[], Vec::as_slice)
    }

    /// True if several files were mapped there, one after the other.
    fn was_replaced(&self, address: u64) -> bool {
        let mut there = self.modules.iter().filter(|m| m.contains(address));
        let first = there.next();
        first.is_some_and(|first| there.any(|other| other.differs_from(first)))
    }

    /// Returns the module that contains this address, with its file read.
    fn module(&mut self, address: u64) -> Option<&Module> {
        let after = self.modules.partition_point(|m| m.start() <= address);
        let module = &mut self.modules[after.checked_sub(1)?];
        if !module.contains(address) {
            return None;
        }
        match module.load() {
            module::Loaded::Before => {}
            module::Loaded::Now(for_unwinding) => self.unwinder.add_module(for_unwinding),
            module::Loaded::Not(why) => self.remarks.extend(
                // One file may be mapped in several parts.
                (!self.remarks.contains(&why)).then_some(why),
            ),
        }
        Some(module)
    }

    /// Returns the number of the call at a place; assigns one if the place is new.
    fn number(&mut self, place: Place) -> usize {
        if let Some(known) = self.known.get(&place) {
            return *known;
        }
        let frames = match self.module(place.lookup()) {
            Some(module) => module.frames(place.lookup(), place.address),
            None => vec![Frame {
                address: place.address,
                symbol: None,
                start: None,
                offset: None,
                object: None,
                inlined: false,
            }],
        };
        let number = self.calls.len();
        self.calls.push(frames);
        self.known.insert(place, number);
        number
    }
}
