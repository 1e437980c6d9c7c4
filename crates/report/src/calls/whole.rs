//! Calls recorded by one event, at the exit, with their duration (`_duration`): calls that
//! `record --min-duration` found long enough.
//!
//! A call is known only when its exit is read, after all calls made in it. To report calls in the
//! order of their start times a trace is read twice: first for the calls, which are kept in memory,
//! then for everything.
//!
//! Both ends of each call are certain. Calls on one stack are nested, and inner ones are at lower
//! addresses. So a call is inside another one if it began and ended while that was open, at most
//! 8 MiB (Go: 1 KiB) below it: unrecorded calls may take up much of the stack between them. Or at the same
//! address: a function that was jumped to (a tail call) inherits its caller's return address, and with
//! `--return=stack` the caller's call lasts until the return of that function. If two
//! calls that were open at once cannot be on one stack, the limit drops to at most half of their
//! distance: this separates the stacks of coroutines.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

use super::functions::{Functions, Part, Site};
use super::pairing::{GO, LEAST_REACH, REACH_IN_GO};
use super::stacks::{Place, Stack};
use super::{Begin, Exit, Visitor};
use crate::error::ReportError;
use capriole_trace::Document;
use capriole_trace::{Event, Kept, Trace};

/// Greatest distance of a call below its caller, in bytes: the usual size of a stack.
const REACH: u64 = 8 << 20;
/// Number of losses of events that is passed on for all calls: both ends of each are certain.
const LOSSES: u64 = 0;
/// Number of open calls examined when looking for calls on other stacks.
const LOOKED_AT: usize = 16;

/// A call that has not begun yet in the walk.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) time: u64,
    site: Site,
    stack_pointer: u64,
    /// The end: its time, and its position in the order of all ends.
    end: (u64, u64),
    /// Its exit.
    event: Kept,
}

impl Coming {
    /// The thread whose stacks it may be on; `None` for Go: goroutines move from thread to thread.
    fn home(&self) -> Option<u32> {
        home(self.stack_pointer, self.event.tid())
    }
}

fn home(stack_pointer: u64, tid: u32) -> Option<u32> {
    (!GO.contains(&stack_pointer)).then_some(tid)
}

/// Collects all calls of a trace in the order of their start times, outer calls first; empty if it
/// has no such events.
pub(super) fn coming(
    trace: &Trace,
    functions: &Functions,
) -> Result<VecDeque<Coming>, ReportError> {
    let mut all = Vec::new();
    if !functions.have_whole() {
        return Ok(VecDeque::new());
    }
    let mut events = trace.events()?;
    while let Some(event) = events.next()? {
        let Part::Whole { site, duration, .. } = functions.part(event.index) else {
            continue;
        };
        if let Some((stack_pointer, time)) = ends_of(&site, duration, &event) {
            all.push(Coming {
                time,
                site,
                stack_pointer,
                end: (event.tsc, all.len() as u64),
                event: event.keep(time),
            });
        }
    }
    // Of two calls with the same start time, the outer one comes first. At the same stack pointer, calls
    // that ended at once come first, in the order of their ends, and the others overlap: the one that
    // ended last is the outer one.
    all.sort_by_key(|call| {
        let order = match call.time == call.end.0 {
            true => (false, call.end),
            false => (true, (u64::MAX - call.end.0, u64::MAX - call.end.1)),
        };
        (call.time, Reverse(call.stack_pointer), order)
    });
    Ok(all.into())
}

/// Returns the stack pointer and the start time of a call.
fn ends_of(site: &Site, duration: u32, event: &Event<'_>) -> Option<(u64, u64)> {
    let time = event.tsc.checked_sub(site.number(event, Some(duration))?)?;
    Some((site.stack_pointer(event)?, time))
}

/// Returns the greatest distance between calls on one stack: smaller than the distance between
/// two calls on different stacks.
fn reach(coming: &VecDeque<Coming>) -> u64 {
    let mut reach = REACH;
    let mut open: HashMap<Option<u32>, Vec<&Coming>> = HashMap::new();
    for call in coming {
        let open = open.entry(call.home()).or_default();
        open.retain_back(|other| other.end.0 > call.time);
        for other in open.iter().rev().take(LOOKED_AT) {
            let nested = other.stack_pointer >= call.stack_pointer && other.end > call.end;
            if other.end.0 > call.time && !nested {
                let apart = other.stack_pointer.abs_diff(call.stack_pointer);
                reach = reach.min((apart / 2).max(LEAST_REACH));
            }
        }
        open.push(call);
    }
    reach
}

/// Like `Vec::retain`, but from the end, up to the first element that is kept.
trait RetainBack<T> {
    fn retain_back(&mut self, is_kept: impl Fn(&T) -> bool);
}

impl<T> RetainBack<T> for Vec<T> {
    fn retain_back(&mut self, is_kept: impl Fn(&T) -> bool) {
        while self.last().is_some_and(|last| !is_kept(last)) {
            self.pop();
        }
    }
}

/// A stack with open calls, and their end times.
#[derive(Debug)]
struct Busy {
    stack: Stack,
    ends: Vec<(u64, u64)>,
}

/// Key of a stack: the stack pointer of its innermost call, and its number.
type Key = (u64, u64);

/// The state of pairing: all calls that are open.
#[derive(Debug)]
pub(super) struct Whole {
    coming: VecDeque<Coming>,
    reach: u64,
    homes: BTreeMap<Option<u32>, BTreeMap<Key, Busy>>,
    /// The stack that each thread was last on.
    current: HashMap<u32, (Option<u32>, Key)>,
    next_call: u64,
    next_stack: u64,
}

impl Whole {
    /// Creates the state for the calls of a trace, which are numbered from `first` on.
    pub(super) fn new(coming: VecDeque<Coming>, first: u64) -> Whole {
        Whole {
            reach: reach(&coming),
            coming,
            homes: BTreeMap::new(),
            current: HashMap::new(),
            next_call: first,
            next_stack: first,
        }
    }

    /// Returns the start time of the next call.
    pub(super) fn first(&self) -> Option<u64> {
        self.coming.front().map(|call| call.time)
    }

    /// Returns the current stack of a thread and its number of open calls, if it has any.
    pub(super) fn depth(&self, tid: u32) -> Option<(u64, usize)> {
        let (home, key) = self.current.get(&tid)?;
        let busy = self.homes.get(home)?.get(key)?;
        Some((busy.stack.id, busy.stack.frames.len()))
    }

    /// If the call that ends began at the time of its end, begins it first; also begins the calls
    /// enclosing it that began at the same time.
    fn begin_before(
        &mut self,
        stack_pointer: u64,
        end: &Event<'_>,
        document: &Document,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let home = home(stack_pointer, end.tid);
        let mut at = 0;
        while let Some(call) = self.coming.get(at) {
            if call.time > end.tsc {
                break;
            }
            let around = call.home() == home
                && call.event.tid() == end.tid
                && (stack_pointer..=stack_pointer.saturating_add(self.reach))
                    .contains(&call.stack_pointer);
            // If another call is still open at or below this address, this call was made later.
            let is_next = around && !self.is_open_below(home, call);
            match is_next.then(|| self.coming.remove(at)).flatten() {
                Some(call) => self.begin(&call, document, visitor)?,
                None => at += 1,
            }
        }
        Ok(())
    }

    /// True if a call is open within reach below this one, or at the same stack address if it ends earlier.
    fn is_open_below(&self, home: Option<u32>, call: &Coming) -> bool {
        let here = call.stack_pointer;
        let near = (here.saturating_sub(self.reach), 0)..=(here, u64::MAX);
        let is_inside = |(key, busy): (&Key, &Busy)| {
            key.0 < here || busy.ends.last().is_none_or(|end| *end < call.end)
        };
        let stacks = self.homes.get(&home);
        stacks.is_some_and(|stacks| stacks.range(near).any(is_inside))
    }

    /// Begins all calls up to a time (exclusive).
    pub(super) fn begin_until(
        &mut self,
        time: u64,
        document: &Document,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        while self.first().is_some_and(|first| first < time) {
            if let Some(call) = self.coming.pop_front() {
                self.begin(&call, document, visitor)?;
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        call: &Coming,
        document: &Document,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let event = call.event.event(document);
        let stack_pointer = call.stack_pointer;
        let reach = match GO.contains(&stack_pointer) {
            true => self.reach.min(REACH_IN_GO),
            false => self.reach,
        };
        let home = self.homes.entry(call.home()).or_default();
        let near = (stack_pointer, 0)..=(stack_pointer.saturating_add(reach), u64::MAX);
        let around = home.range(near).take(LOOKED_AT);
        let around = around.filter(|(_, busy)| busy.ends.last().is_some_and(|e| *e > call.end));
        let key = around.map(|(key, _)| *key).next();
        let mut busy = match key.and_then(|key| home.remove(&key)) {
            Some(busy) => busy,
            None => {
                self.next_stack += 1;
                Busy {
                    stack: Stack::new(self.next_stack - 1),
                    ends: Vec::new(),
                }
            }
        };
        let place = Place {
            tid: event.tid,
            cpu: event.cpu,
            time: call.time,
        };
        let begin = (busy.stack).enter(self.next_call, &call.site, stack_pointer, LOSSES, place);
        busy.ends.push(call.end);
        let key = (stack_pointer, busy.stack.id);
        home.insert(key, busy);
        self.current.insert(event.tid, (call.home(), key));
        self.next_call += 1;
        visitor.begin(&begin, &event)
    }

    /// Handles the exit of a call that has begun.
    pub(super) fn end(
        &mut self,
        site: &Site,
        tail: bool,
        event: &Event<'_>,
        document: &Document,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let exit = if tail { Exit::TailCall } else { Exit::Returned };
        let stack_pointer = site.stack_pointer(event).unwrap_or_default();
        self.begin_before(stack_pointer, event, document, visitor)?;
        let home = home(stack_pointer, event.tid);
        let stacks = self.homes.entry(home).or_default();
        let here = (stack_pointer, 0)..=(stack_pointer, u64::MAX);
        let own = stacks.range(here).find(|(_, busy)| {
            let frame = busy.stack.frames.last();
            let ends = busy.ends.last().map(|end| end.0);
            frame.is_some_and(|frame| frame.pair == site.pair) && ends == Some(event.tsc)
        });
        // A trace that is still being written may have more exits than the first pass found.
        let Some(key) = own.map(|(key, _)| *key) else {
            return visitor.unpaired(site.function as usize, event);
        };
        let place = Place {
            tid: event.tid,
            cpu: event.cpu,
            time: event.tsc,
        };
        self.close(home, key, exit, place, Some(event), visitor)
    }

    fn close(
        &mut self,
        home: Option<u32>,
        key: Key,
        exit: Exit,
        place: Place,
        event: Option<&Event<'_>>,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let stacks = self.homes.entry(home).or_default();
        let Some(mut busy) = stacks.remove(&key) else {
            return Ok(());
        };
        busy.ends.pop();
        let Some(call) = busy.stack.leave(exit, LOSSES, place) else {
            return Ok(());
        };
        self.current.remove(&place.tid);
        if let Some(low) = busy.stack.low() {
            let key = (low, busy.stack.id);
            stacks.insert(key, busy);
            self.current.insert(place.tid, (home, key));
        }
        visitor.end(&call, event)
    }

    /// Ends all open calls at the end of the trace.
    pub(super) fn finish(
        &mut self,
        time: u64,
        document: &Document,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        self.begin_until(u64::MAX, document, visitor)?;
        // Exits that the first pass found and that the trace no longer contains.
        while let Some((home, key, Begin { tid, cpu, .. })) =
            self.homes.iter().find_map(|(home, stacks)| {
                let (key, busy) = stacks.first_key_value()?;
                Some((*home, *key, busy.stack.frames.last()?.begin))
            })
        {
            let place = Place { tid, cpu, time };
            self.close(home, key, Exit::Open, place, None, visitor)?;
        }
        Ok(())
    }
}
