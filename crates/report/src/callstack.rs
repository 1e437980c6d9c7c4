//! Call stacks: the chains of addresses that a program has found, with the functions at these addresses.
//!
//! The program walks its stack by rules that were compiled from the call frame information of its code
//! (see `chain.c` of the resident). The names come from the recorder, which has looked the addresses up
//! in the files that were mapped, while they were mapped ([`Names`]), and in those that just-in-time compilers write.
//!
//! Nothing in a trace is trusted. A chain ends where it cannot be right: at a return address that no call
//! returns to, and at an address where different code was at different times, as the rules of one of them
//! may have been used for the other.

use std::collections::HashMap;
use std::sync::Arc;

use crate::shown::file_name;
use capriole_trace::{CallStack, CodeName, Names, StackEnd, Trace};

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
    /// Names of other functions that have the same code: it may be any of them.
    pub same_code: Vec<Arc<str>>,
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
    /// There are more calls than were recorded, or the stack could not be read any further.
    Truncated,
    /// The caller of the last frame cannot be determined: its code has no frame information, as that of most
    /// just-in-time compilers.
    Unknown,
}

impl From<StackEnd> for End {
    fn from(end: StackEnd) -> End {
        match end {
            StackEnd::Outermost => End::Outermost,
            StackEnd::Full | StackEnd::Unreadable => End::Truncated,
            StackEnd::Unknown => End::Unknown,
        }
    }
}

/// Remark on a trace without names.
const NO_NAMES: &str = "the trace has no names of functions (info/names.jsonl.gz): its recorder was killed before it \
                        wrote them, or the file was lost";

/// The chain of calls that led to an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Backtrace {
    /// The numbers of the calls, innermost first; [`CallStacks::call`] resolves them. A
    /// place has the same number in all backtraces.
    pub calls: Vec<usize>,
    /// The reason why there are no more calls.
    pub end: End,
}

/// An address in the chain of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    address: u64,
    /// True if the program was at exactly this instruction; false for a return address.
    exact: bool,
}

impl Place {
    /// Returns an address within the instruction that was executed: a call may be the last
    /// instruction of its function.
    fn lookup(self) -> u64 {
        match self.exact {
            true => self.address,
            false => self.address.wrapping_sub(1),
        }
    }
}

/// Gives the addresses of call stacks their functions.
#[derive(Debug, Default)]
pub struct CallStacks {
    names: Arc<Names>,
    /// The numbers of calls, by place.
    known: HashMap<Place, usize>,
    /// Indexed by number.
    calls: Vec<Vec<Frame>>,
}

impl CallStacks {
    /// Creates the call stacks of a trace.
    pub fn of(trace: &Trace) -> CallStacks {
        let mut names = trace.names();
        if names.is_empty() && names.remarks().is_empty() {
            Arc::make_mut(&mut names).remark(NO_NAMES.to_owned());
        }
        CallStacks {
            names,
            ..CallStacks::default()
        }
    }

    /// Creates call stacks with these names.
    pub fn with(names: Names) -> CallStacks {
        CallStacks {
            names: Arc::new(names),
            ..CallStacks::default()
        }
    }

    /// Adds a name, also of an address that has one: calls that are found from now on have what [`Names::add`] makes
    /// of both.
    pub fn add_name(&mut self, name: CodeName) {
        let at = name.at;
        if self.names.get(at).is_some_and(|known| *known != name) {
            self.known.retain(|place, _| place.lookup() != at);
        }
        Arc::make_mut(&mut self.names).add(name);
    }

    /// Adds a reason why functions have no names.
    pub fn remark(&mut self, remark: String) {
        Arc::make_mut(&mut self.names).remark(remark);
    }

    /// Returns what is to be said of the functions' names, see [`Names::remarks`].
    pub fn remarks(&self) -> Vec<String> {
        self.names.remarks()
    }

    /// Returns the backtrace of a recorded call stack.
    pub fn backtrace(&mut self, stack: &CallStack<'_>) -> Backtrace {
        self.chain(stack.addresses(), stack.end.into())
    }

    /// Returns the backtrace with these addresses: the place of a hit, then return addresses, but after
    /// the place to which a signal handler returns the place that was interrupted. It ends before an
    /// address that cannot be right.
    pub fn chain(&mut self, addresses: impl IntoIterator<Item = u64>, end: End) -> Backtrace {
        let (places, end) = self.places(addresses, end);
        let calls = places.iter().map(|place| self.number(*place)).collect();
        Backtrace { calls, end }
    }

    /// Returns the call with this number: the functions inlined at its place, innermost first, then
    /// the function itself.
    pub fn call(&self, number: usize) -> &[Frame] {
        self.calls.get(number).map_or(&[], Vec::as_slice)
    }

    /// Returns the places of a chain as far as they can be right, and the reason for its end.
    fn places(&self, addresses: impl IntoIterator<Item = u64>, end: End) -> (Vec<Place>, End) {
        let mut places: Vec<Place> = Vec::new();
        let mut exact = true;
        let mut addresses = addresses.into_iter().peekable();
        while let Some(address) = addresses.next() {
            let mut place = Place { address, exact };
            let mut name = self.names.get(place.lookup());
            // Where `makecontext` has made the stack, the outermost return address is the start of a function.
            let is_last = addresses.peek().is_none();
            let is_returned_to = |name: &CodeName| name.returned_to || name.signal;
            if !exact && name.is_some_and(|name| !is_returned_to(name) && name.before_start) {
                place.exact = is_last;
                name = self.names.get(place.lookup());
            }
            // What the site has on top of the stack is its return address, whatever it looks like.
            let checked = !place.exact && places.len() > 1;
            let is_wrong = checked && name.is_some_and(|name| !is_returned_to(name));
            if is_wrong || self.names.was_replaced(place.lookup()) && !places.is_empty() {
                return (places, End::Unknown);
            }
            places.push(place);
            exact = name.is_some_and(|name| name.signal);
        }
        (places, end)
    }

    /// Returns the number of the call at a place; assigns one if the place is new.
    fn number(&mut self, place: Place) -> usize {
        if let Some(known) = self.known.get(&place) {
            return *known;
        }
        let number = self.calls.len();
        self.calls
            .push(frames(place, self.names.get(place.lookup())));
        self.known.insert(place, number);
        number
    }
}

/// Returns the functions at a place, innermost first.
fn frames(place: Place, name: Option<&CodeName>) -> Vec<Frame> {
    let object = name.and_then(|name| name.object.clone());
    let behind = place.address.wrapping_sub(place.lookup());
    let functions = name.map_or(&[][..], |name| &name.functions);
    if functions.is_empty() {
        return vec![Frame {
            address: place.address,
            symbol: None,
            start: None,
            offset: None,
            object,
            inlined: false,
            same_code: Vec::new(),
        }];
    }
    let functions = functions.iter().map(|function| Frame {
        address: place.address,
        symbol: function.name.as_deref().map(str::to_owned),
        start: function.start,
        offset: function.offset.map(|offset| offset.wrapping_add(behind)),
        object: object.clone(),
        inlined: function.inlined,
        same_code: function.same_code.clone(),
    });
    functions.collect()
}

#[cfg(test)]
mod tests;
