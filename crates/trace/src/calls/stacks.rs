//! The open calls of a thread, by stack.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::Begin;

/// An open call.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) stack_pointer: u64,
    pub(super) pair: u32,
    pub(super) begin: Begin,
    /// The last time at which it was known to be open.
    pub(super) last: u64,
    /// Ticks of the calls made in it.
    pub(super) children: u64,
    /// How often events had been lost when it began.
    pub(super) losses: u64,
}

/// The open calls of one stack.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) id: u64,
    /// Innermost last. Stack pointers descend.
    pub(super) frames: Vec<Frame>,
    /// How many are open of each function.
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

    pub(super) fn push(&mut self, frame: Frame) {
        *self.open.entry(frame.begin.function as u32).or_default() += 1;
        self.frames.push(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Frame> {
        let frame = self.frames.pop()?;
        let function = frame.begin.function as u32;
        if let Some(count) = self.open.get_mut(&function) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&function);
            }
        }
        Some(frame)
    }

    /// Whether a call of this function is open.
    pub(super) fn has(&self, function: u32) -> bool {
        self.open.contains_key(&function)
    }

    /// The innermost call's stack pointer.
    pub(super) fn low(&self) -> Option<u64> {
        self.frames.last().map(|frame| frame.stack_pointer)
    }

    /// The outermost call's stack pointer.
    pub(super) fn high(&self) -> Option<u64> {
        self.frames.first().map(|frame| frame.stack_pointer)
    }

    /// The call with this stack pointer.
    pub(super) fn at(&self, stack_pointer: u64) -> Option<&Frame> {
        let frames = &self.frames;
        let at = frames.partition_point(|frame| frame.stack_pointer > stack_pointer);
        frames
            .get(at)
            .filter(|frame| frame.stack_pointer == stack_pointer)
    }

    /// Moves all calls, so that the innermost one is at this place; not if they do not fit there.
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

/// A call that was given up, in case that its exit comes nevertheless.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone {
    pub(super) stack_pointer: u64,
    pub(super) pair: u32,
    /// From there to what made it look abandoned, in bytes.
    pub(super) distance: u64,
    /// How often events had been lost.
    pub(super) losses: u64,
}

/// How many calls that were given up a thread remembers: those of many thousand coroutines, each
/// of which may look abandoned once before the first of them shows that it is not.
const MOST_GONE: usize = 1 << 16;

/// The open calls of a thread. Its stacks do not overlap, and none is without a call.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// By their outermost calls' stack pointers.
    pub(super) stacks: BTreeMap<u64, Stack>,
    /// The stack it was on at its last entry or exit, if that has open calls.
    pub(super) current: Option<u64>,
    /// The time of its last event.
    pub(super) time: u64,
    /// By function and stack pointer, each with its number in `order`.
    gone: HashMap<(u32, u64), (u64, Gone)>,
    /// Those of them in the order in which they were given up, and some that are not there any
    /// more.
    order: VecDeque<(u64, (u32, u64))>,
    given_up: u64,
}

impl Thread {
    /// The stack that holds this place between two of its calls, or at one.
    pub(super) fn around(&self, stack_pointer: u64) -> Option<u64> {
        let (high, stack) = self.stacks.range(stack_pointer..).next()?;
        (stack.low()? <= stack_pointer).then_some(*high)
    }

    /// The stack that a place at most `reach` bytes below its innermost call belongs to, or
    /// that is around it.
    pub(super) fn above(&self, stack_pointer: u64, reach: u64) -> Option<u64> {
        let (high, stack) = self.stacks.range(stack_pointer..).next()?;
        let gap = stack.low()?.saturating_sub(stack_pointer);
        (gap <= reach).then_some(*high)
    }

    /// The stack whose outermost call is at most `reach` bytes below.
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

    /// What is known of a call that was given up.
    pub(super) fn recall(&mut self, pair: u32, stack_pointer: u64) -> Option<Gone> {
        let gone = self.gone.remove(&(pair, stack_pointer));
        gone.map(|(_, gone)| gone)
    }
}
