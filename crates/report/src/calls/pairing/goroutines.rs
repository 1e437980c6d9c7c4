//! Pairs calls for which the trace records the goroutine (`_g`).
//!
//! A goroutine has one stack, which Go copies to another address when it has to grow or can
//! shrink. The trace does not record the new address. But the new stack does not overlap the
//! old one, and no stack is smaller than 2 KiB. So the next call is above all open ones, or at
//! least 2 KiB below the innermost:
//!
//! ```text
//!   entry of f   0x5f00 ┐ a piece
//!   entry of g   0x5e80 ┘          moved to 0x9e80, which is not recorded
//!   entry of h   0x9e00 ─ another
//!   exit of h    0x9e00
//!   exit of g    0x9e80            so all of its piece is 0x4000 higher
//!   exit of f    0x9f00
//! ```
//!
//! So open calls are in *pieces*, each moved as a whole, and only the innermost piece is at its
//! recorded address. (An extra piece does no harm if nothing was moved.) An exit that matches
//! no call's address in that piece ends the innermost call of its function, and the exit's
//! address becomes that call's address.

use std::io;

use super::Pairing;
use crate::calls::functions::Site;
use crate::calls::stacks::{Frame, Place, Stack};
use crate::calls::{Exit, Visitor};
use capriole_trace::Event;

/// The smallest stack of a goroutine, in bytes (`stackMin` in runtime/stack.go).
const SMALLEST_STACK: u64 = 2 << 10;

/// The open calls of a goroutine.
#[derive(Debug)]
pub(super) struct Goroutine {
    pub(super) stack: Stack,
    /// Index of the first call of each piece; the outermost piece begins at 0.
    pieces: Vec<usize>,
    /// True if the innermost piece may have been moved since it was recorded.
    moved: bool,
    /// The time of its last event.
    time: u64,
}

impl Goroutine {
    fn new(id: u64) -> Goroutine {
        Goroutine {
            stack: Stack::new(id),
            pieces: vec![0],
            moved: false,
            time: 0,
        }
    }

    /// Returns the index of the first call of the innermost piece.
    fn first(&self) -> usize {
        self.pieces.last().copied().unwrap_or(0)
    }

    /// Returns the calls of the innermost piece.
    fn piece(&self) -> &[Frame] {
        &self.stack.frames[self.first()..]
    }

    /// Drops innermost pieces that have no open call left.
    fn settle(&mut self) {
        while self.pieces.len() > 1 && self.first() >= self.stack.frames.len() {
            self.pieces.pop();
            self.moved = true;
        }
    }

    /// Moves the innermost piece, so that its call at `index` is at `stack_pointer`. Drops empty
    /// pieces first.
    fn move_to(&mut self, index: usize, stack_pointer: u64) {
        self.settle();
        let first = self.first();
        let frames = &mut self.stack.frames[first..];
        let Some(by) = frames
            .get(index - first)
            .map(|frame| stack_pointer.wrapping_sub(frame.stack_pointer))
        else {
            return;
        };
        for frame in frames {
            frame.stack_pointer = frame.stack_pointer.wrapping_add(by);
        }
        self.moved = false;
    }

    /// Ends the innermost call.
    fn close(
        &mut self,
        exit: Exit,
        losses: u64,
        place: Place,
        event: Option<&Event<'_>>,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        match self.stack.leave(exit, losses, place) {
            Some(call) => visitor.end(&call, event),
            None => Ok(()),
        }
    }
}

impl Pairing {
    /// Handles an entry of a function in a goroutine.
    pub(super) fn enter_in(
        &mut self,
        (goroutine, stack_pointer): (u64, u64),
        site: &Site,
        event: &Event<'_>,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let losses = self.losses;
        self.runs.insert(event.tid, goroutine);
        let own = self.goroutines.entry(goroutine).or_insert_with(|| {
            self.next_stack += 1;
            Goroutine::new(self.next_stack - 1)
        });
        let place = Place::of(event, &mut own.time);
        let ends = own.piece().first().zip(own.piece().last());
        match ends.map(|(first, last)| (first.stack_pointer, last.stack_pointer)) {
            None => {}
            Some((high, low))
                if own.moved
                    || stack_pointer > high
                    || low.saturating_sub(stack_pointer) >= SMALLEST_STACK =>
            {
                own.pieces.push(own.stack.frames.len());
                own.moved = false;
            }
            // A panic abandoned the calls below this one, or at its address.
            Some(_) => {
                let dead = |frame: &Frame| frame.stack_pointer <= stack_pointer;
                while own.piece().last().is_some_and(dead) {
                    own.close(Exit::Abandoned, losses, place, None, visitor)?;
                }
            }
        }
        let call = self.next_call;
        let begin = own.stack.enter(call, site, stack_pointer, losses, place);
        self.next_call += 1;
        visitor.begin(&begin, event)
    }

    /// Handles an exit of a function in a goroutine.
    pub(super) fn leave_in(
        &mut self,
        (goroutine, stack_pointer): (u64, u64),
        site: &Site,
        exit: Exit,
        event: &Event<'_>,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let losses = self.losses;
        self.runs.insert(event.tid, goroutine);
        let Some(own) = self.goroutines.get_mut(&goroutine) else {
            return visitor.unpaired(site.function as usize, event);
        };
        let place = Place::of(event, &mut own.time);
        let own_pair = |frame: &Frame| frame.pair == site.pair;
        let here = |frame: &Frame| frame.stack_pointer == stack_pointer && own_pair(frame);
        let found = match own.moved {
            true => None,
            false => own
                .piece()
                .iter()
                .rposition(here)
                .map(|at| at + own.first()),
        };
        // An exit below the innermost call belongs to a call whose entry was lost.
        let last = own.piece().last();
        let is_lost = last.is_some_and(|l| l.losses != losses && stack_pointer < l.stack_pointer);
        let elsewhere = || own.stack.frames.iter().rposition(own_pair);
        let Some(at) = found.or_else(|| elsewhere().filter(|_| !is_lost || own.moved)) else {
            return visitor.unpaired(site.function as usize, event);
        };
        while own.stack.frames.len() > at + 1 {
            own.close(Exit::Abandoned, losses, place, None, visitor)?;
        }
        if found.is_none() {
            own.move_to(at, stack_pointer);
            self.moved += 1;
        }
        own.close(exit, losses, place, Some(event), visitor)?;
        own.settle();
        if own.stack.frames.is_empty() {
            self.goroutines.remove(&goroutine);
        }
        Ok(())
    }

    /// Ends all open calls of goroutines at the end of the trace.
    pub(super) fn finish_goroutines(
        &mut self,
        time: u64,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        let losses = self.losses;
        for own in self.goroutines.values_mut() {
            while let Some(frame) = own.stack.frames.last() {
                let place = Place {
                    tid: frame.begin.tid,
                    cpu: frame.begin.cpu,
                    time,
                };
                own.close(Exit::Open, losses, place, None, visitor)?;
            }
        }
        Ok(())
    }
}
