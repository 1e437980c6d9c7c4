//! The open calls of a thread, by stack.

use std::collections::{BTreeMap, HashMap, VecDeque};

use capriole_trace::Event;

use super::functions::Site;
use super::{Begin, Call, Exit};

/// Thread, CPU and time of an event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) tid: u32,
    pub(super) cpu: u32,
    pub(super) time: u64,
}

impl Place {
    /// Returns the place of an event. Time does not go backwards where the latest event was at
    /// `latest`, which is updated.
    pub(super) fn of(event: &Event<'_>, latest: &mut u64) -> Place {
        *latest = event.tsc.max(*latest);
        Place {
            tid: event.tid,
            cpu: event.cpu,
            time: *latest,
        }
    }
}

/// An open call.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) stack_pointer: u64,
    pub(super) pair: u32,
    pub(super) begin: Begin,
    /// The last time at which the call was known to be open.
    pub(super) last: u64,
    /// Ticks spent in the calls it made.
    pub(super) children: u64,
    /// Number of losses of events before it began.
    pub(super) losses: u64,
}

/// The open calls of one stack.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) id: u64,
    /// Innermost last; stack pointers descend.
    pub(super) frames: Vec<Frame>,
    /// Number of open calls by function.
    open: HashMap<u32, u32>,
}

impl Stack {
    pub(super) fn new(id: u64) -> Stack {
        Stack {
            id,
            frames: Vec::new(),
            open: HashMap::new(),
        }
    }

    /// Begins call number `id` inside the innermost one.
    pub(super) fn enter(
        &mut self,
        id: u64,
        site: &Site,
        stack_pointer: u64,
        losses: u64,
        place: Place,
    ) -> Begin {
        let recursive = self.has(site.function);
        let depth = self.frames.len();
        let parent = self.frames.last_mut();
        let mut begin = Begin {
            id,
            parent: parent.as_ref().map(|parent| parent.begin.id),
            stack: self.id,
            tid: place.tid,
            cpu: place.cpu,
            function: site.function as usize,
            caller: parent.as_ref().map(|parent| parent.begin.function),
            time: place.time,
            depth,
            recursive,
        };
        if let Some(parent) = parent {
            begin.time = begin.time.max(parent.last);
            parent.last = begin.time;
        }
        *self.open.entry(site.function).or_default() += 1;
        self.frames.push(Frame {
            stack_pointer,
            pair: site.pair,
            begin,
            last: begin.time,
            children: 0,
            losses,
        });
        begin
    }

    /// Ends the innermost call. For [`Exit::Open`], `place` has the end of the recording, or the time
    /// 0 if the program may have ended before it.
    pub(super) fn leave(&mut self, exit: Exit, losses: u64, place: Place) -> Option<Call> {
        let frame = self.frames.pop()?;
        let function = frame.begin.function as u32;
        if let Some(count) = self.open.get_mut(&function) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&function);
            }
        }
        let end = match exit.is_recorded() {
            true => place.time.max(frame.last),
            false => frame.last,
        };
        let before_end = match exit {
            Exit::Open => place.time.checked_sub(frame.begin.time),
            _ => None,
        };
        let duration = end - frame.begin.time;
        if let Some(parent) = self.frames.last_mut() {
            parent.children += duration;
            parent.last = parent.last.max(end);
        }
        Some(Call {
            begin: frame.begin,
            end,
            before_end,
            exit,
            tid: place.tid,
            cpu: place.cpu,
            own: duration - frame.children,
            doubtful: frame.losses != losses,
        })
    }

    /// True if a call of this function is open.
    pub(super) fn has(&self, function: u32) -> bool {
        self.open.contains_key(&function)
    }

    /// Returns the innermost call's stack pointer.
    pub(super) fn low(&self) -> Option<u64> {
        self.frames.last().map(|frame| frame.stack_pointer)
    }

    /// Returns the outermost call's stack pointer.
    pub(super) fn high(&self) -> Option<u64> {
        self.frames.first().map(|frame| frame.stack_pointer)
    }

    /// Returns the call with this stack pointer.
    pub(super) fn at(&self, stack_pointer: u64) -> Option<&Frame> {
        let frames = &self.frames;
        let at = frames.partition_point(|frame| frame.stack_pointer > stack_pointer);
        frames
            .get(at)
            .filter(|frame| frame.stack_pointer == stack_pointer)
    }

    /// Returns the index of the outermost call that is more than `reach` bytes from its caller.
    pub(super) fn first_beyond(&self, reach: u64) -> Option<usize> {
        let mut pairs = self.frames.windows(2);
        let gap = |pair: &[Frame]| pair[0].stack_pointer - pair[1].stack_pointer;
        pairs.position(|pair| gap(pair) > reach).map(|at| at + 1)
    }

    /// Moves all calls so that the innermost one is at `low`. Returns false if they do not fit
    /// at that address.
    pub(super) fn shift(&mut self, low: u64) -> bool {
        let (Some(old_low), Some(old_high)) = (self.low(), self.high()) else {
            return false;
        };
        if low.checked_add(old_high - old_low).is_none() {
            return false;
        }
        for frame in &mut self.frames {
            frame.stack_pointer = frame.stack_pointer - old_low + low;
        }
        true
    }
}

/// An abandoned call, kept in case its exit is read later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone {
    pub(super) stack_pointer: u64,
    pub(super) pair: u32,
    /// Bytes from the outermost call abandoned with it to the stack pointer that caused it;
    /// `u64::MAX` if a lowered reach caused it.
    pub(super) distance: u64,
    /// Number of losses of events at that time.
    pub(super) losses: u64,
}

/// Maximum number of abandoned calls that a thread keeps. With many thousand coroutines, each may
/// look abandoned once before the first one's exit disproves it.
const MOST_GONE: usize = 1 << 16;

/// The open calls of a thread. Its stacks do not overlap, and each has at least one call.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// Keyed by their outermost calls' stack pointers.
    pub(super) stacks: BTreeMap<u64, Stack>,
    /// The stack of the thread's last entry or exit, if that stack has open calls.
    pub(super) current: Option<u64>,
    /// The time of its last event.
    pub(super) time: u64,
    /// Abandoned calls by function and stack pointer, each with its number in `order`.
    gone: HashMap<(u32, u64), (u64, Gone)>,
    /// The keys of `gone` in the order in which the calls were abandoned, and some keys already
    /// removed from it.
    order: VecDeque<(u64, (u32, u64))>,
    given_up: u64,
}

impl Thread {
    /// Returns the stack that has this address between two of its calls, or at one of them.
    pub(super) fn around(&self, stack_pointer: u64) -> Option<u64> {
        let (high, stack) = self.stacks.range(stack_pointer..).next()?;
        (stack.low()? <= stack_pointer).then_some(*high)
    }

    /// Returns the stack around this address, or the one whose innermost call is at most `reach`
    /// bytes above it.
    pub(super) fn above(&self, stack_pointer: u64, reach: u64) -> Option<u64> {
        let (high, stack) = self.stacks.range(stack_pointer..).next()?;
        let gap = stack.low()?.saturating_sub(stack_pointer);
        (gap <= reach).then_some(*high)
    }

    /// Returns the stack whose outermost call is at most `reach` bytes below this address.
    pub(super) fn below(&self, stack_pointer: u64, reach: u64) -> Option<u64> {
        let (high, _) = self.stacks.range(..stack_pointer).next_back()?;
        (stack_pointer - high <= reach).then_some(*high)
    }

    pub(super) fn remember(&mut self, gone: Gone) {
        let key = (gone.pair, gone.stack_pointer);
        self.given_up += 1;
        self.gone.insert(key, (self.given_up, gone));
        self.order.push_back((self.given_up, key));
        if self.order.len() > MOST_GONE
            && let Some((number, key)) = self.order.pop_front()
            && self.gone.get(&key).is_some_and(|gone| gone.0 == number)
        {
            self.gone.remove(&key);
        }
    }

    /// Removes and returns the data kept for an abandoned call.
    pub(super) fn recall(&mut self, pair: u32, stack_pointer: u64) -> Option<Gone> {
        let gone = self.gone.remove(&(pair, stack_pointer));
        gone.map(|(_, gone)| gone)
    }
}
