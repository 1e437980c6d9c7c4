//! Callers and callees of each function, with number of calls and times.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use super::summary::counted;
use super::table::{known, time_of_calls};
use super::tasks::printable;
use crate::calls::{Call, Functions, Visitor, walk};
use crate::error::ReportError;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::Health;
use capriole_trace::clock::Scale;
use capriole_trace::{Event, Trace};

/// The functions of a trace with their callers and callees. `Display` prints readable text;
/// `Serialize` gives the same data for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Callers {
    /// The trace directory.
    pub directory: PathBuf,
    /// Number of calls.
    pub calls: u64,
    /// Hits that are not in the trace.
    pub lost_events: u64,
    /// The functions that were called, most time first.
    pub functions: Vec<FunctionCallers>,
    /// Form of the names of functions in the text; JSON has complete names.
    #[serde(skip)]
    pub names: Form,
}

/// A function with its callers and callees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FunctionCallers {
    /// Its name.
    pub function: String,
    /// Number of calls.
    pub calls: u64,
    /// Time from entry to exit, in ns. A call within a call of the same function counts once. A lower
    /// bound if there are `unended` calls; `None` if nothing is known.
    pub total_ns: Option<u64>,
    /// Self time: time in the function itself, outside recorded calls made by it, in ns. Known as far
    /// as `total_ns`.
    pub self_ns: Option<u64>,
    /// Calls without a recorded end, which count up to the last event seen in them.
    pub unended: u64,
    /// The callers, most time first. Their values add up to the function's.
    pub callers: Vec<Edge>,
    /// The callees, most time first.
    pub callees: Vec<Edge>,
}

/// The calls from one function to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// Name of the other function; `None` if no recorded function made the call.
    pub function: Option<String>,
    /// Number of calls.
    pub calls: u64,
    /// Time of these calls from entry to exit, in ns, excluding calls nested, directly or
    /// indirectly, in another call of the called function. Known as far as that of a function.
    pub total_ns: Option<u64>,
    /// Self time of the called function in these calls, in ns. Known as far as that of a function.
    pub self_ns: Option<u64>,
    /// Those of these calls without a recorded end.
    pub unended: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    calls: u64,
    unended: u64,
    total: u128,
    own: u128,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.calls += other.calls;
        self.unended += other.unended;
        self.total += other.total;
        self.own += other.own;
    }

    fn known(&self, ticks: u128, scale: &Scale) -> Option<u64> {
        known(scale.ns(ticks), self.calls, self.unended)
    }
}

#[derive(Default)]
struct Counter {
    /// Keyed by caller and callee.
    edges: BTreeMap<(Option<usize>, usize), Sum>,
}

impl Visitor for Counter {
    fn end(&mut self, call: &Call, _: Option<&Event<'_>>) -> io::Result<()> {
        let begin = &call.begin;
        let edge = self
            .edges
            .entry((begin.caller, begin.function))
            .or_default();
        let total = match begin.recursive {
            true => 0,
            false => u128::from(call.duration()),
        };
        edge.add(Sum {
            calls: 1,
            unended: u64::from(!call.exit.is_recorded()),
            total,
            own: u128::from(call.own),
        });
        Ok(())
    }
}

impl Callers {
    /// Reads a whole trace. The second part of the result lists the damage found in it.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read.
    pub fn of(trace: &Trace) -> Result<(Callers, Health), ReportError> {
        let document = trace.document();
        let functions = Functions::of(&document.events);
        let mut counter = Counter::default();
        let (_, health) = walk(trace, &functions, &mut counter)?;
        let scale = Scale::of(&document.clock);
        let names = functions.names();
        let mut sums = vec![Sum::default(); names.len()];
        let mut callers: Vec<Vec<Edge>> = vec![Vec::new(); names.len()];
        let mut callees: Vec<Vec<Edge>> = vec![Vec::new(); names.len()];
        for ((caller, callee), sum) in &counter.edges {
            let edge = |other: Option<usize>| Edge {
                function: other.map(|other| names[other].clone()),
                calls: sum.calls,
                total_ns: sum.known(sum.total, &scale),
                self_ns: sum.known(sum.own, &scale),
                unended: sum.unended,
            };
            sums[*callee].add(*sum);
            callers[*callee].push(edge(*caller));
            if let Some(caller) = caller {
                callees[*caller].push(edge(Some(*callee)));
            }
        }
        let mut shown: Vec<FunctionCallers> = names
            .iter()
            .zip(sums)
            .zip(callers.into_iter().zip(callees))
            .filter(|((_, sum), _)| sum.calls > 0)
            .map(|((name, sum), (mut callers, mut callees))| {
                callers.sort_by(most_first);
                callees.sort_by(most_first);
                FunctionCallers {
                    function: name.clone(),
                    calls: sum.calls,
                    total_ns: sum.known(sum.total, &scale),
                    self_ns: sum.known(sum.own, &scale),
                    unended: sum.unended,
                    callers,
                    callees,
                }
            })
            .collect();
        shown.sort_by(|a, b| {
            let time = b.total_ns.cmp(&a.total_ns);
            time.then_with(|| a.function.cmp(&b.function))
        });
        let callers = Callers {
            directory: trace.directory().to_path_buf(),
            calls: shown.iter().map(|function| function.calls).sum(),
            lost_events: health.lost_events,
            functions: shown,
            names: Form::default(),
        };
        Ok((callers, health))
    }
}

fn most_first(a: &Edge, b: &Edge) -> std::cmp::Ordering {
    let time = b.total_ns.cmp(&a.total_ns);
    time.then_with(|| b.calls.cmp(&a.calls))
        .then_with(|| a.function.cmp(&b.function))
}

/// Shown in place of a caller that was not recorded.
const OUTERMOST: &str = "(no recorded caller)";

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} of {}; times in us",
            self.directory.display(),
            counted(self.calls, "call", "calls"),
            counted(self.functions.len() as u64, "function", "functions"),
        )?;
        if self.lost_events > 0 {
            let lost = counted(self.lost_events, "EVENT", "EVENTS");
            writeln!(f, "LOST {lost}: who called whom may be wrong there")?;
        }
        // Every caller and callee has an entry of its own.
        let all = self.functions.iter();
        let names = all.clone().map(|function| function.function.as_str());
        let names = ShownNames::of(names, self.names);
        let lines: Vec<[String; 4]> = all.flat_map(|function| lines(function, &names)).collect();
        let head = ["calls", "total", "self", ""].map(String::from);
        let width = |column: usize| {
            let cells = std::iter::once(&head).chain(&lines);
            cells.map(|cells| cells[column].len()).max().unwrap_or(0)
        };
        let widths = [width(0), width(1), width(2)];
        for cells in std::iter::once(&head).chain(&lines) {
            if cells[0].is_empty() {
                writeln!(f)?;
                continue;
            }
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(widths) {
                line += &format!("{cell:>width$}  ");
            }
            writeln!(f, "{}", (line + &cells[3]).trim_end())?;
        }
        Ok(())
    }
}

/// Returns the lines of one function, preceded by an empty line.
fn lines(function: &FunctionCallers, names: &ShownNames) -> Vec<[String; 4]> {
    let line = |calls: u64, unended: u64, total: Option<u64>, own: Option<u64>, text: String| {
        [
            calls.to_string(),
            time_of_calls(total, unended),
            time_of_calls(own, unended),
            text,
        ]
    };
    let name = |edge: &Edge| match &edge.function {
        Some(name) => printable(&names.get(name)),
        None => OUTERMOST.to_string(),
    };
    let of_edge = |arrow: &str, edge: &Edge| {
        let text = format!("  {arrow} {}", name(edge));
        line(edge.calls, edge.unended, edge.total_ns, edge.self_ns, text)
    };
    let mut lines = vec![Default::default()];
    lines.extend(function.callers.iter().map(|edge| of_edge("<-", edge)));
    lines.push(line(
        function.calls,
        function.unended,
        function.total_ns,
        function.self_ns,
        printable(&names.get(&function.function)),
    ));
    lines.extend(function.callees.iter().map(|edge| of_edge("->", edge)));
    lines
}
