//! Callers and callees in the call stacks of events, with event counts.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::stack_flame::ways;
use super::stack_names::functions;
use super::summary::counted;
use super::tasks::printable;
use crate::error::ReportError;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::Health;
use capriole_trace::Trace;

/// The functions in the call stacks of a trace with their callers and callees. `Display` prints
/// readable text; `Serialize` gives the same data for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StackCallers {
    /// The trace directory.
    pub directory: PathBuf,
    /// Events with call stacks.
    pub events: u64,
    /// Hits that are not in the trace.
    pub lost_events: u64,
    /// The functions, most events first.
    pub functions: Vec<FunctionEvents>,
    /// Form of the names of functions in the text; JSON has complete names.
    #[serde(skip)]
    pub names: Form,
}

/// A function with its callers and callees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FunctionEvents {
    /// Its name.
    pub function: String,
    /// Number of events with this function in their call stacks.
    pub events: u64,
    /// Number of these events that occurred in the function itself.
    pub own_events: u64,
    /// The callers, most events first.
    pub callers: Vec<EventEdge>,
    /// The callees, most events first.
    pub callees: Vec<EventEdge>,
}

/// The calls from one function to another in the call stacks of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventEdge {
    /// Name of the other function; `None` if there is no caller.
    pub function: Option<String>,
    /// Number of events with this call in their call stacks.
    pub events: u64,
}

#[derive(Default)]
struct Counts {
    events: u64,
    own: u64,
    callers: BTreeMap<Option<String>, u64>,
    callees: BTreeMap<Option<String>, u64>,
}

impl StackCallers {
    /// Reads a whole trace. The second part of the result lists the damage found in it.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read.
    pub fn of(trace: &Trace) -> Result<(StackCallers, Health), ReportError> {
        let (ways, stacks, health) = ways(trace)?;
        let mut all: BTreeMap<String, Counts> = BTreeMap::new();
        let mut events = 0;
        for (way, count) in ways {
            let functions = functions(&stacks, &way);
            events += count;
            // Count each function and each call once per event, however often it occurs.
            let mut seen = HashSet::new();
            let mut calls = HashSet::new();
            for (at, function) in functions.iter().enumerate() {
                let caller = at.checked_sub(1).map(|at| &functions[at]);
                if seen.insert(function) {
                    all.entry(function.clone()).or_default().events += count;
                }
                if !calls.insert((caller, function)) {
                    continue;
                }
                let called = all.entry(function.clone()).or_default();
                *called.callers.entry(caller.cloned()).or_default() += count;
                if let Some(caller) = caller {
                    let calls = &mut all.entry(caller.clone()).or_default().callees;
                    *calls.entry(Some(function.clone())).or_default() += count;
                }
            }
            if let Some(own) = functions.last() {
                all.entry(own.clone()).or_default().own += count;
            }
        }
        let mut functions: Vec<FunctionEvents> = all
            .into_iter()
            .map(|(function, counts)| FunctionEvents {
                function,
                events: counts.events,
                own_events: counts.own,
                callers: edges(counts.callers),
                callees: edges(counts.callees),
            })
            .collect();
        functions.sort_by(|a, b| {
            let more = b.events.cmp(&a.events);
            more.then_with(|| a.function.cmp(&b.function))
        });
        let callers = StackCallers {
            directory: trace.directory().to_path_buf(),
            events,
            lost_events: health.lost_events,
            functions,
            names: Form::default(),
        };
        Ok((callers, health))
    }
}

fn edges(counts: BTreeMap<Option<String>, u64>) -> Vec<EventEdge> {
    let edge = |(function, events)| EventEdge { function, events };
    let mut edges: Vec<EventEdge> = counts.into_iter().map(edge).collect();
    edges.sort_by_key(|edge| std::cmp::Reverse(edge.events));
    edges
}

impl fmt::Display for StackCallers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} with call stacks, {}",
            self.directory.display(),
            counted(self.events, "event", "events"),
            counted(self.functions.len() as u64, "function", "functions"),
        )?;
        if self.lost_events > 0 {
            writeln!(f, "LOST {}", counted(self.lost_events, "EVENT", "EVENTS"))?;
        }
        // No function has more events than the total.
        let width = self.events.to_string().len().max("events".len());
        writeln!(f, "{:>width$}  {:>width$}", "events", "own")?;
        let names = self.functions.iter();
        let names = names.map(|function| function.function.as_str());
        let names = ShownNames::of(names, self.names);
        let put_edge = |f: &mut fmt::Formatter<'_>, arrow: &str, edge: &EventEdge| {
            let name = edge.function.as_deref();
            let name = name.map(|name| printable(&names.get(name)));
            let name = name.as_deref().unwrap_or("(no caller)");
            let events = edge.events;
            writeln!(f, "{events:>width$}  {:>width$}    {arrow} {name}", "")
        };
        for function in &self.functions {
            writeln!(f)?;
            for caller in &function.callers {
                put_edge(f, "<-", caller)?;
            }
            let (events, own) = (function.events, function.own_events);
            let name = printable(&names.get(&function.function));
            writeln!(f, "{events:>width$}  {own:>width$}  {name}")?;
            for callee in &function.callees {
                put_edge(f, "->", callee)?;
            }
        }
        Ok(())
    }
}
