//! Walks through the calls of a trace.

use super::Visitor;
use super::functions::{Functions, Part};
use super::pairing::Pairing;
use super::whole::{self, Whole};
use crate::error::ReportError;
use capriole_trace::Health;
use capriole_trace::{Gaps, Trace};

/// Counters of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Entries and exits of functions.
    pub events: u64,
    /// Events unrelated to calls.
    pub points: u64,
    /// Entries and exits that were paired although the stack pointer had changed, because Go moves
    /// stacks.
    pub moved: u64,
    /// The earliest event, in ticks; 0 if there is none.
    pub first: u64,
    /// The end of the trace, in ticks: its latest event, or the end of the recording.
    pub last: u64,
}

/// Reads a whole trace and reports its calls to the visitor. `functions` are those of the trace.
/// The second part of the result lists the damage found in the trace.
///
/// # Errors
///
/// If the trace cannot be read, or if the visitor fails.
pub fn walk(
    trace: &Trace,
    functions: &Functions,
    visitor: &mut impl Visitor,
) -> Result<(Counts, Health), ReportError> {
    let mut pairing = Pairing::new();
    let mut counts = Counts::default();
    let mut gaps = Gaps::default();
    let mut before = 0;
    let losses = trace.document().losses.as_ref();
    let coming = whole::coming(trace, functions)?;
    // If both kinds of calls exist, each has its own range of call and stack numbers.
    let mut whole = Whole::new(coming, if functions.have_both() { 1 << 32 } else { 0 });
    let document = trace.document();
    let first = whole.first();
    let mut events = trace.events()?;
    while let Some(event) = events.next()? {
        if event.gaps.are_between(&gaps, (before, event.tsc), losses) {
            pairing.lose();
        }
        (gaps, before) = (event.gaps, event.tsc);
        if event.lost_before > 0 {
            visitor.lost(event.cpu, event.lost_before)?;
        }
        if counts.events + counts.points == 0 {
            counts.first = event.tsc;
        }
        counts.last = counts.last.max(event.tsc);
        whole.begin_until(event.tsc, document, visitor)?;
        match functions.part(event.index) {
            Part::Point => {
                counts.points += 1;
                pairing.point(&event);
                let at = whole.depth(event.tid);
                let at = at.or_else(|| pairing.depth(event.tid));
                visitor.point(&event, at.map(|at| at.0), at.map_or(0, |at| at.1))?;
            }
            Part::Entry(site) => {
                counts.events += 1;
                pairing.enter(&site, &event, visitor)?;
            }
            Part::Exit { site, tail } => {
                counts.events += 1;
                pairing.leave(&site, tail, &event, visitor)?;
            }
            Part::Whole { site, tail, .. } => {
                counts.events += 1;
                whole.end(&site, tail, &event, document, visitor)?;
            }
        }
    }
    let health = events.health();
    let (end, lost) = (events.gaps(), events.lost());
    if let Some(end) = trace.document().end_ticks() {
        counts.last = counts.last.max(end);
    }
    if end.are_between(&gaps, (before, counts.last), losses) || trace.document().lost_events > lost
    {
        pairing.lose();
    }
    if let Some(first) = first {
        counts.first = counts.first.min(first);
    }
    whole.finish(counts.last, document, visitor)?;
    let last = document.last_threads.as_ref();
    // Threads were paused to remove the probes, so the program still ran then.
    let mut stops = document.stops.iter();
    let program_ran = stops.any(|stop| stop.what == "detach" && stop.duration_ns > 0);
    let end = (program_ran && last.is_some()).then_some(counts.last);
    pairing.finish(end, last, visitor)?;
    counts.moved = pairing.moved;
    Ok((counts, health))
}
