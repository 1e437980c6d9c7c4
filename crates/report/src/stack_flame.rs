//! Flame graphs of events: call paths and their event counts.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use super::flame::{Flame, FrameNames, draw};
use super::stack_names::functions;
use crate::callstack::{Backtrace, CallStacks};
use crate::error::ReportError;
use crate::shown::{call_stack, with_call_stacks};
use capriole_object::symbols::shown::Form;
use capriole_trace::Health;
use capriole_trace::Trace;

/// The events of a trace that have call stacks, merged by call path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StackFlame {
    /// All call paths of events, sorted by names.
    pub stacks: Vec<EventStack>,
    /// Hits that are not in the trace.
    pub lost_events: u64,
}

/// All events with the same call path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventStack {
    /// The function names, outermost first. `[truncated]` or `[unknown caller]` at the beginning
    /// means that outer functions are missing; a function without a name is its file with the
    /// address where it begins, or, if no function is known, the file in brackets. Levels deeper than [`Flame::MOST_DEEP`] are merged into `(deeper)`.
    pub functions: Vec<String>,
    /// Number of events.
    pub events: u64,
}

impl StackFlame {
    /// Reads a whole trace. The second part of the result lists the damage found in it.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read.
    pub fn of(trace: &Trace) -> Result<(StackFlame, Health), ReportError> {
        let (ways, calls, health) = ways(trace)?;
        let mut stacks: HashMap<Vec<String>, u64> = HashMap::new();
        for (way, count) in ways {
            let mut functions = functions(&calls, &way);
            if functions.len() > Flame::MOST_DEEP {
                functions.truncate(Flame::MOST_DEEP);
                functions.push(Flame::DEEPER.to_string());
            }
            *stacks.entry(functions).or_default() += count;
        }
        let stack = |(functions, events)| EventStack { functions, events };
        let mut stacks: Vec<EventStack> = stacks.into_iter().map(stack).collect();
        stacks.sort_by(|a, b| a.functions.cmp(&b.functions));
        let flame = StackFlame {
            stacks,
            lost_events: health.lost_events,
        };
        Ok((flame, health))
    }

    /// Draws the flame graph as SVG.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or if there is nothing to draw.
    pub fn draw(&self, form: Form, title: &str, out: impl Write) -> io::Result<()> {
        if self.stacks.is_empty() {
            return Err(io::Error::other("there are no call stacks in the trace"));
        }
        let stacks = self.stacks.iter();
        let functions = self.stacks.iter().flat_map(|stack| &stack.functions);
        let names = FrameNames::of(functions, form);
        let lines: Vec<String> = stacks.map(|s| names.line(&s.functions, s.events)).collect();
        draw(&lines, title, "events", out)
    }
}

/// Counts the events of each call path.
pub(super) fn ways(
    trace: &Trace,
) -> Result<(HashMap<Backtrace, u64>, CallStacks, Health), ReportError> {
    let document = trace.document();
    let mut stacks = CallStacks::of(trace);
    let mut ways: HashMap<Backtrace, u64> = HashMap::new();
    let with = with_call_stacks(document).unwrap_or_default();
    let mut events = trace.events()?;
    while let Some(event) = events.next()? {
        if !with.get(event.index).is_some_and(|with| *with) {
            continue;
        }
        let Some(stack) = call_stack(&event) else {
            continue;
        };
        let backtrace = stacks.backtrace(&stack);
        *ways.entry(backtrace).or_default() += 1;
    }
    let mut health = events.health();
    health.remarks.extend(stacks.remarks());
    Ok((ways, stacks, health))
}
