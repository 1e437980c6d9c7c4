//! Pairs entries with exits, by the rules in the module `calls`.

mod goroutines;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use super::functions::Site;
use super::stacks::{Gone, Place, Stack, Thread};
use super::{Exit, Visitor};
use capriole_trace::Event;
use goroutines::Goroutine;

/// Greatest distance from the next open call that still counts as the same stack, in bytes. Less
/// than the usual distance of a coroutine's stack from its thread's.
const REACH: u64 = 256 << 10;
/// The reach in Go, whose smallest stack is 2 KiB.
pub(super) const REACH_IN_GO: u64 = 1 << 10;
/// Lower bound of the reach, in bytes.
pub(super) const LEAST_REACH: u64 = 1 << 10;
/// Address range of Go's stacks on x86-64 (runtime/malloc.go: arenas from 0x00c0 << 32 on).
pub(super) const GO: std::ops::Range<u64> = 0xc0_0000_0000..0xe0_0000_0000;
/// Stack pointer assumed for the first call of a stack if none was recorded.
const IMAGINED: u64 = 1 << 63;

/// The state of pairing: all calls that are open.
#[derive(Debug)]
pub(super) struct Pairing {
    threads: BTreeMap<u32, Thread>,
    /// Keyed by the addresses of their `runtime.g`.
    goroutines: BTreeMap<u64, Goroutine>,
    /// The goroutine that a thread ran at its last event, if that event recorded it.
    runs: HashMap<u32, u64>,
    reach: u64,
    /// Number of losses of events so far.
    losses: u64,
    next_call: u64,
    next_stack: u64,
    /// Calls that were paired although their stack pointers differ.
    pub(super) moved: u64,
}

impl Pairing {
    pub(super) fn new() -> Pairing {
        Pairing {
            threads: BTreeMap::new(),
            goroutines: BTreeMap::new(),
            runs: HashMap::new(),
            reach: REACH,
            losses: 0,
            next_call: 0,
            next_stack: 0,
            moved: 0,
        }
    }

    /// Records a loss of events: all open calls become doubtful.
    pub(super) fn lose(&mut self) {
        self.losses += 1;
    }

    /// Returns the current stack of a thread and its number of open calls, if it has any.
    pub(super) fn depth(&self, tid: u32) -> Option<(u64, usize)> {
        let goroutine = self.runs.get(&tid);
        if let Some(own) = goroutine.and_then(|g| self.goroutines.get(g)) {
            return Some((own.stack.id, own.stack.frames.len()));
        }
        let thread = self.threads.get(&tid)?;
        let stack = thread.stacks.get(&thread.current?)?;
        Some((stack.id, stack.frames.len()))
    }

    fn reach(&self, stack_pointer: u64) -> u64 {
        match GO.contains(&stack_pointer) {
            true => self.reach.min(REACH_IN_GO),
            false => self.reach,
        }
    }

    /// Returns the place of an event. Time does not go backwards in a thread.
    fn place(&mut self, event: &Event<'_>) -> Place {
        let thread = self.threads.entry(event.tid).or_default();
        Place::of(event, &mut thread.time)
    }

    /// Handles an entry of a function.
    pub(super) fn enter(
        &mut self,
        site: &Site,
        event: &Event<'_>,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        if let Some(at) = site.in_goroutine(event) {
            return self.enter_in(at, site, event, visitor);
        }
        self.runs.remove(&event.tid);
        let place = self.place(event);
        let losses = self.losses;
        let recorded = site.stack_pointer(event);
        let reach = self.reach(recorded.unwrap_or(IMAGINED));
        let thread = self.threads.entry(place.tid).or_default();
        let stack_pointer = recorded.unwrap_or_else(|| imagine(thread));
        if GO.contains(&stack_pointer) && goes_on(thread, site.pair, stack_pointer, reach) {
            self.moved += 1;
            return Ok(());
        }
        let high = thread.above(stack_pointer, reach);
        if let Some(found) = high {
            abandon(
                thread,
                found,
                stack_pointer,
                stack_pointer,
                losses,
                place,
                visitor,
            )?;
        } else {
            // The first call of a stack, or of the rest of one.
            abandon_below(thread, stack_pointer, reach, losses, place, visitor)?;
        }
        // If that stack has no open calls left, a new one begins here.
        let key = high.unwrap_or(stack_pointer);
        let stack = thread.stacks.entry(key).or_insert_with(|| {
            self.next_stack += 1;
            Stack::new(self.next_stack - 1)
        });
        debug_assert!(stack.low().is_none_or(|low| low > stack_pointer));
        let begin = stack.enter(self.next_call, site, stack_pointer, losses, place);
        thread.current = Some(key);
        self.next_call += 1;
        visitor.begin(&begin, event)
    }

    /// Handles an exit of a function.
    pub(super) fn leave(
        &mut self,
        site: &Site,
        tail: bool,
        event: &Event<'_>,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let exit = if tail { Exit::TailCall } else { Exit::Returned };
        if let Some(at) = site.in_goroutine(event) {
            return self.leave_in(at, site, exit, event, visitor);
        }
        self.runs.remove(&event.tid);
        let place = self.place(event);
        let losses = self.losses;
        let stack_pointer = match site.stack_pointer(event) {
            Some(stack_pointer) => Some(stack_pointer),
            None => self.newest(site, place.tid),
        };
        let Some(stack_pointer) = stack_pointer else {
            return visitor.unpaired(site.function as usize, event);
        };
        self.fetch(site.pair, stack_pointer, place.tid);
        let reach = self.reach(stack_pointer);
        let thread = self.threads.entry(place.tid).or_default();
        let Some(high) = thread.around(stack_pointer) else {
            return self.leave_elsewhere(site, exit, stack_pointer, event, place, visitor);
        };
        // Calls below are dead, no matter which call is at this address.
        let below = stack_pointer.checked_sub(1);
        if let Some(below) = below {
            abandon(thread, high, below, stack_pointer, losses, place, visitor)?;
        }
        let stack = thread.stacks.get(&high);
        let frame = stack.and_then(|stack| stack.at(stack_pointer));
        if frame.is_some_and(|frame| frame.pair == site.pair) {
            thread.current = Some(high);
            return close(thread, high, exit, losses, place, Some(event), visitor);
        }
        if frame.is_some() {
            // The exit of the call at this place is missing.
            abandon(
                thread,
                high,
                stack_pointer,
                stack_pointer,
                losses,
                place,
                visitor,
            )?;
        }
        thread.current = thread.above(stack_pointer, reach);
        self.learn(site.pair, stack_pointer, place, visitor)?;
        visitor.unpaired(site.function as usize, event)
    }

    /// Handles an exit at a place where no stack has open calls.
    fn leave_elsewhere(
        &mut self,
        site: &Site,
        exit: Exit,
        stack_pointer: u64,
        event: &Event<'_>,
        place: Place,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        if self.learn(site.pair, stack_pointer, place, visitor)? {
            return visitor.unpaired(site.function as usize, event);
        }
        let reach = self.reach(stack_pointer);
        let losses = self.losses;
        let thread = self.threads.entry(place.tid).or_default();
        if GO.contains(&stack_pointer)
            && let Some(high) = follow(thread, site.pair, stack_pointer, reach)
        {
            self.moved += 1;
            return close(thread, high, exit, losses, place, Some(event), visitor);
        }
        abandon_below(thread, stack_pointer, reach, losses, place, visitor)?;
        thread.current = thread.above(stack_pointer, reach);
        visitor.unpaired(site.function as usize, event)
    }

    /// Returns the stack pointer of the newest open call of this function on the thread's stack.
    fn newest(&self, site: &Site, tid: u32) -> Option<u64> {
        let thread = self.threads.get(&tid)?;
        let stack = thread.stacks.get(&thread.current?)?;
        if !stack.has(site.function) {
            return None;
        }
        let mut frames = stack.frames.iter().rev();
        frames
            .find(|frame| frame.pair == site.pair)
            .map(|frame| frame.stack_pointer)
    }

    /// Moves a goroutine's stack to this thread if the exit's call is open in another thread.
    fn fetch(&mut self, pair: u32, stack_pointer: u64, tid: u32) {
        let has = |thread: &Thread| -> Option<u64> {
            let high = thread.around(stack_pointer)?;
            let frame = thread.stacks.get(&high)?.at(stack_pointer)?;
            (frame.pair == pair).then_some(high)
        };
        if !GO.contains(&stack_pointer) || self.threads.get(&tid).is_some_and(|t| has(t).is_some())
        {
            return;
        }
        let found = self
            .threads
            .iter()
            .find_map(|(tid, thread)| Some((*tid, has(thread)?)));
        let Some((other, high)) = found else { return };
        let Some(from) = self.threads.get_mut(&other) else {
            return;
        };
        let Some(stack) = from.stacks.get(&high) else {
            return;
        };
        let low = stack.low().unwrap_or(high);
        let to = self.threads.get(&tid);
        if to.is_some_and(|to| overlaps(to, low, high)) {
            return;
        }
        let Some(from) = self.threads.get_mut(&other) else {
            return;
        };
        from.current = from.current.filter(|current| *current != high);
        if let Some(stack) = from.stacks.remove(&high) {
            let to = self.threads.entry(tid).or_default();
            to.stacks.insert(high, stack);
            self.moved += 1;
        }
    }

    /// Lowers the reach if this exit is of a call that was abandoned wrongly, because it is on
    /// another stack than assumed. Returns true if it is such an exit.
    fn learn(
        &mut self,
        pair: u32,
        stack_pointer: u64,
        place: Place,
        visitor: &mut impl Visitor,
    ) -> io::Result<bool> {
        let thread = self.threads.get_mut(&place.tid);
        let Some(gone) = thread.and_then(|thread| thread.recall(pair, stack_pointer)) else {
            return Ok(false);
        };
        if gone.losses != self.losses {
            return Ok(false);
        }
        let most = (gone.distance / 2).max(LEAST_REACH);
        if most < self.reach {
            self.reach = most;
            self.separate(place.time, visitor)?;
        }
        Ok(true)
    }

    /// Abandons the calls that are farther from their callers than the lowered reach: they are
    /// probably on stacks of their own. If they were left where they are, they would be shown in
    /// the wrong caller, and be abandoned when that is seen again, however late.
    fn separate(&mut self, time: u64, visitor: &mut impl Visitor) -> io::Result<()> {
        let (reach, losses) = (self.reach, self.losses);
        for (&tid, thread) in &mut self.threads {
            let highs: Vec<u64> = thread.stacks.keys().copied().collect();
            for high in highs {
                let stack = &thread.stacks[&high];
                let Some(first) = stack.first_beyond(reach) else {
                    continue;
                };
                for _ in first..stack.frames.len() {
                    let innermost = thread.stacks.get(&high).and_then(|s| s.frames.last());
                    let Some(frame) = innermost else { break };
                    let cpu = frame.begin.cpu;
                    // Its exit is expected, and proves nothing: the stack may as well be the same.
                    let gone = Gone {
                        stack_pointer: frame.stack_pointer,
                        pair: frame.pair,
                        distance: u64::MAX,
                        losses,
                    };
                    thread.remember(gone);
                    let place = Place { tid, cpu, time };
                    close(thread, high, Exit::Abandoned, losses, place, None, visitor)?;
                }
            }
        }
        Ok(())
    }

    /// Handles an event unrelated to calls.
    pub(super) fn point(&mut self, event: &Event<'_>) {
        if let Some(thread) = self.threads.get_mut(&event.tid) {
            thread.time = thread.time.max(event.tsc);
        }
    }

    /// Ends all open calls at the end of the trace, `end` if the program still ran then. Calls of
    /// threads not in `last` ended with their thread; `None` if the threads alive at the end are not
    /// known.
    pub(super) fn finish(
        &mut self,
        end: Option<u64>,
        last: Option<&BTreeSet<u32>>,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let time = end.unwrap_or(0);
        self.finish_goroutines(time, visitor)?;
        let losses = self.losses;
        for (tid, thread) in &mut self.threads {
            let exit = match last.is_none_or(|last| last.contains(tid)) {
                true => Exit::Open,
                false => Exit::ThreadEnded,
            };
            while let Some(high) = thread.stacks.keys().next().copied() {
                let frame = thread.stacks[&high].frames.last();
                let cpu = frame.map_or(0, |frame| frame.begin.cpu);
                let place = Place {
                    tid: *tid,
                    cpu,
                    time,
                };
                close(thread, high, exit, losses, place, None, visitor)?;
            }
        }
        Ok(())
    }
}

/// Stack pointer assumed for a call that recorded none: right below the newest call.
fn imagine(thread: &Thread) -> u64 {
    let stack = thread.current.and_then(|high| thread.stacks.get(&high));
    match stack.and_then(Stack::low) {
        Some(low) => low.saturating_sub(1),
        None => IMAGINED,
    }
}

/// True if any call of the thread is between two addresses.
fn overlaps(thread: &Thread, low: u64, high: u64) -> bool {
    let next = thread.stacks.range(low..).next();
    next.and_then(|(_, stack)| stack.low())
        .is_some_and(|next| next <= high)
}

/// True if an entry is not a new call: Go runs the start of a function again after it has given
/// the goroutine a larger stack, or after a request to yield.
fn goes_on(thread: &mut Thread, pair: u32, stack_pointer: u64, reach: u64) -> bool {
    let Some(high) = thread.current else {
        return false;
    };
    let Some(stack) = thread.stacks.get(&high) else {
        return false;
    };
    let frame = stack.frames.last().filter(|frame| frame.pair == pair);
    let Some(frame) = frame else { return false };
    if frame.stack_pointer == stack_pointer {
        return true;
    }
    // The first function of a goroutine may also be the first of the next goroutine.
    stack.frames.len() > 1 && follow(thread, pair, stack_pointer, reach).is_some()
}

/// Moves the thread's stack to where Go has copied it, if its newest call is of this function and
/// the new address is far from all other stacks.
fn follow(thread: &mut Thread, pair: u32, stack_pointer: u64, reach: u64) -> Option<u64> {
    let high = thread.current?;
    let stack = thread.stacks.get(&high)?;
    let frame = stack.frames.last().filter(|frame| frame.pair == pair)?;
    let far = GO.contains(&frame.stack_pointer)
        && thread.above(stack_pointer, reach).is_none()
        && thread.below(stack_pointer, reach).is_none();
    let size = high - frame.stack_pointer;
    let new_high = stack_pointer.checked_add(size)?;
    if !far || overlaps(thread, stack_pointer, new_high) {
        return None;
    }
    let mut stack = thread.stacks.remove(&high)?;
    stack.shift(stack_pointer);
    thread.stacks.insert(new_high, stack);
    thread.current = Some(new_high);
    Some(new_high)
}

/// Abandons the calls of a stack at or below `up_to`, because of an event whose stack pointer is
/// `because`.
fn abandon(
    thread: &mut Thread,
    high: u64,
    up_to: u64,
    because: u64,
    losses: u64,
    place: Place,
    visitor: &mut impl Visitor,
) -> io::Result<()> {
    let Some(stack) = thread.stacks.get(&high) else {
        return Ok(());
    };
    let first = stack
        .frames
        .partition_point(|frame| frame.stack_pointer > up_to);
    let Some(outermost) = stack.frames.get(first) else {
        return Ok(());
    };
    let distance = because.saturating_sub(outermost.stack_pointer);
    for _ in first..stack.frames.len() {
        let innermost = thread.stacks.get(&high).and_then(|s| s.frames.last());
        let Some(frame) = innermost else { break };
        if distance > 0 {
            let gone = Gone {
                stack_pointer: frame.stack_pointer,
                pair: frame.pair,
                distance,
                losses,
            };
            thread.remember(gone);
        }
        close(thread, high, Exit::Abandoned, losses, place, None, visitor)?;
    }
    Ok(())
}

/// Abandons all calls of stacks that end at most `reach` bytes below an address: everything below
/// an address in use is dead.
fn abandon_below(
    thread: &mut Thread,
    stack_pointer: u64,
    reach: u64,
    losses: u64,
    place: Place,
    visitor: &mut impl Visitor,
) -> io::Result<()> {
    let because = stack_pointer;
    while let Some(dead) = thread.below(stack_pointer, reach) {
        abandon(thread, dead, u64::MAX, because, losses, place, visitor)?;
    }
    Ok(())
}

/// Ends the innermost call of a stack.
fn close(
    thread: &mut Thread,
    high: u64,
    exit: Exit,
    losses: u64,
    place: Place,
    event: Option<&Event<'_>>,
    visitor: &mut impl Visitor,
) -> io::Result<()> {
    let Some(stack) = thread.stacks.get_mut(&high) else {
        return Ok(());
    };
    let Some(call) = stack.leave(exit, losses, place) else {
        return Ok(());
    };
    if stack.frames.is_empty() {
        thread.stacks.remove(&high);
        thread.current = thread.current.filter(|current| *current != high);
    }
    visitor.end(&call, event)
}
