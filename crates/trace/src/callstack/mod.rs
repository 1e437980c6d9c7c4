//! Who called whom, found out from a copy of the stack (the field `stack`).
//!
//! A record has the stack pointer, rbp and a copy of the stack; the event's description has the
//! place that was hit, and the trace's the files that the program had mapped as code. The files
//! themselves are read where they are: their call frame information (`.eh_frame`) says, for every
//! instruction, where a function's return address is. Of code without it a frame pointer is
//! believed, as far as it leads to return addresses that stand behind calls.
//!
//! Nothing in a trace is taken on trust: every address is looked up in the copy and in the
//! mappings, and what makes no sense ends the backtrace. A file that is gone or was replaced (its
//! build id tells) is no error: there are addresses then in place of names, and
//! [`CallStacks::remarks`] says why.

mod module;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwinderX86_64};
use framehop::{MayAllocateDuringUnwind, Unwinder as _};

use crate::document::{Document, EventInfo};
use crate::value::CallStack;
use module::Module;
use walk::Place;

/// One line of a backtrace: a function that had been called and had not returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The address at which it will go on; of the innermost one the place of the event.
    pub address: u64,
    /// The function, demangled, if its name is known.
    pub symbol: Option<String>,
    /// Bytes from the function's start to the address; of inlined functions nothing.
    pub offset: Option<u64>,
    /// Path of the file that the code is from, if it is from one.
    pub object: Option<Arc<str>>,
    /// Its code stands in that of the next frame that is not inlined.
    pub inlined: bool,
}

/// Why a backtrace ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The program, or the thread, begins there.
    Outermost,
    /// More of the stack would have been needed than was copied.
    Truncated,
    /// The last frame is code that nobody can say who called it: of no file, such as a JIT
    /// compiler makes, or without information about its frames.
    Unknown,
}

/// The calls that an event came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backtrace {
    /// Their numbers, the innermost first; [`CallStacks::call`] says what they are. The same
    /// place has the same number in all backtraces.
    pub calls: Vec<usize>,
    /// Why there are no more.
    pub end: End,
}

/// Finds out backtraces of a trace. What it learns of a file or an address it keeps.
pub struct CallStacks {
    /// By address.
    modules: Vec<Module>,
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    cache: CacheX86_64<MayAllocateDuringUnwind>,
    /// The numbers of calls, by their places.
    known: HashMap<Place, usize>,
    /// By number.
    calls: Vec<Vec<Frame>>,
    /// Whether a return address may be one.
    plausible: HashMap<u64, bool>,
    /// Whether signal handlers return to an address.
    from_signals: HashMap<u64, bool>,
    remarks: Vec<String>,
}

impl CallStacks {
    /// For the events of this trace.
    pub fn of(document: &Document) -> CallStacks {
        let recorded = document.time.start_realtime_ns;
        let mut modules: Vec<Module> = document
            .mappings
            .iter()
            .filter(|mapping| mapping.start < mapping.end)
            .map(|mapping| Module::new(mapping.clone(), recorded))
            .collect();
        modules.sort_by_key(Module::start);
        CallStacks {
            modules,
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            known: HashMap::new(),
            calls: Vec::new(),
            plausible: HashMap::new(),
            from_signals: HashMap::new(),
            remarks: Vec::new(),
        }
    }

    /// What had to do without a file, one line each, as far as backtraces have been asked for.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// The backtrace of an event with this field.
    pub fn backtrace(&mut self, event: &EventInfo, stack: &CallStack<'_>) -> Backtrace {
        let (places, end) = self.walk(event, stack);
        let calls = places.iter().map(|place| self.number(*place)).collect();
        Backtrace { calls, end }
    }

    /// The call with this number: the functions that are inlined at its place, the innermost
    /// first, then the function itself.
    pub fn call(&self, number: usize) -> &[Frame] {
        self.calls.get(number).map_or(&[], Vec::as_slice)
    }

    /// The module with this address, its file read.
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

    /// The number of the call at a place.
    fn number(&mut self, place: Place) -> usize {
        if let Some(known) = self.known.get(&place) {
            return *known;
        }
        let frames = match self.module(place.lookup()) {
            Some(module) => module.frames(place.lookup(), place.address),
            None => vec![Frame {
                address: place.address,
                symbol: None,
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
