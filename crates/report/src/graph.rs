//! Calls in the layout of function graph tracers.
//!
//! ```text
//! # CPU  TASK-PID          DURATION          FUNCTION CALLS
//! # |       |               |   |             |   |   |   |
//!   1)   orders-5574   |                 |  main(argc=1) {
//!   1)   orders-5574   |        0.123 us |    parse(n=3) = 12;
//!   1)   orders-5574   | +     23.400 us |  } = 0 /* main */
//! ```
//!
//! Marks as in ftrace: more than 10 us `+`, 100 us `!`, 1 ms `#`, 10 ms `*`, 100 ms `@`, 1 s
//! `$`. The lines of one thread are in time order. Lines of different threads are ordered by
//! the time at which their contents are known: a call that makes no other call is printed at
//! its end.

use std::io::{self, Write};

use super::call_summary::is_near_step;
use super::escape::put_comment;
use super::line::Lines;
use super::lines_text::put_value;
use super::marker_text::MarkerText;
use super::open::Open;
use super::symbols::Symbols;
use super::table::{head, microseconds};
use super::tasks::{self, Tasks, printable};
use crate::calls::{Begin, Call, Exit, Functions, Side, Visitor, walk};
use crate::error::ReportError;
use crate::shown::{event_names, is_shown};
use capriole_object::symbols::shown::{Form, ShownNames, has_parameters};
use capriole_text::units::{counted, short_time};
use capriole_trace::Health;
use capriole_trace::clock::Scale;
use capriole_trace::{Document, EventInfo};
use capriole_trace::{Event, Trace};

/// Selection of the calls to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GraphOptions {
    /// Number of levels; all if `None`. 1 shows only the outermost calls.
    pub depth: Option<usize>,
    /// Hides calls shorter than this, in ns; if nonzero, also hides events that are not calls. A
    /// call without a recorded end is hidden if it began less than this before the end of the
    /// recording, or before the last event seen in it.
    pub min_duration_ns: u64,
    /// Shows events that are not calls by their raw fields, even if they have a format.
    pub fields: bool,
    /// Form of the names of functions.
    pub names: Form,
}

impl GraphOptions {
    pub(super) fn shows_depth(&self, depth: usize) -> bool {
        self.depth.is_none_or(|most| depth < most)
    }

    /// True if a call is not too short.
    pub(super) fn shows_duration(&self, call: &Call, scale: &Scale) -> bool {
        scale.ns(u128::from(known_duration(call))) >= self.min_duration_ns
    }
}

/// Returns the ticks that a call is known to have taken: all of them if its end was recorded.
fn known_duration(call: &Call) -> u64 {
    call.duration().max(call.before_end.unwrap_or(0))
}

/// Maximum number of levels shown by indentation; deeper lines show the level's number.
const MOST_INDENTED: usize = 50;

/// Writes the calls of a trace as indented text, below a header, and marks where events are
/// missing.
///
/// # Errors
///
/// If the trace cannot be read or the report cannot be written. Damage is not an error: it is
/// in the result, and the caller should report it.
pub fn write_graph(
    trace: &Trace,
    out: impl Write,
    options: &GraphOptions,
) -> Result<Health, ReportError> {
    let document = trace.document();
    let functions = Functions::of(&document.events);
    let shown = event_names(document, options.names);
    let names = functions.names().iter();
    let names = names.map(|name| printable(&shown.get(name)));
    let labels = |side| -> Vec<Label> {
        let events = functions.side(&document.events, side);
        events
            .iter()
            .map(|event| Label::new(event, &shown))
            .collect()
    };
    let of_symbols = shown.clone();
    let mut printer = Printer {
        lines: Lines::new(out),
        scratch: Lines::new(io::sink()),
        options: *options,
        scale: Scale::of(&document.clock),
        names: names.collect(),
        entries: labels(Side::Entry),
        labels: labels(Side::Exit),
        texts: match options.fields {
            true => Vec::new(),
            false => document.events.iter().map(MarkerText::of).collect(),
        },
        symbols: Symbols::of(trace, move |name| printable(&of_symbols.get(name))),
        tasks: Tasks::new(&document.threads, tasks::name_and_id),
        width: tasks::width(document),
        calls: Open::new(),
        unpaired: 0,
        short: 0,
        longest: 0,
        longest_has_ended: true,
        shown: 0,
        step_ns: document.clock.step_ns(),
        shows_steps: false,
    };
    printer.header(document)?;
    let (_, health) = walk(trace, &functions, &mut printer)?;
    printer.footer(&health)?;
    Ok(health)
}

/// Text that is the same for all occurrences of one event.
struct Label {
    /// The event's own name.
    name: String,
    /// `fd=` and so on; `None` for fields that are not shown.
    fields: Vec<Option<Vec<u8>>>,
    /// Number of fields shown.
    shown: usize,
}

impl Label {
    fn new(event: &EventInfo, names: &ShownNames) -> Label {
        let fields: Vec<Option<Vec<u8>>> = event
            .fields
            .iter()
            .map(|field| {
                is_shown(field).then(|| format!("{}=", printable(&field.name)).into_bytes())
            })
            .collect();
        Label {
            name: printable(&names.get(&event.name)),
            shown: fields.iter().flatten().count(),
            fields,
        }
    }
}

/// An open call.
struct Shown {
    begin: Begin,
    /// True if its opening line has been printed.
    opened: bool,
    /// `fd=3, size=12`, until it has been printed.
    arguments: Vec<u8>,
}

struct Printer<W> {
    lines: Lines<W>,
    /// Buffer for formatting fields.
    scratch: Lines<io::Sink>,
    options: GraphOptions,
    scale: Scale,
    names: Vec<String>,
    /// Labels at the start of a call; `labels` is for all other places.
    entries: Vec<Label>,
    labels: Vec<Label>,
    /// Formatted text that replaces the first fields.
    texts: Vec<Option<MarkerText>>,
    symbols: Symbols,
    tasks: Tasks,
    width: usize,
    calls: Open<Shown>,
    unpaired: u64,
    /// Number of calls left out because they were too short, and the longest duration of any call, in
    /// ticks.
    short: u64,
    longest: u64,
    /// True if the end of that call was recorded.
    longest_has_ended: bool,
    /// Number of calls shown.
    shown: u64,
    /// Step of the clock, in ns.
    step_ns: u64,
    /// True if a shown time was not much longer than the step.
    shows_steps: bool,
}

impl<W: Write> Printer<W> {
    fn header(&mut self, document: &Document) -> io::Result<()> {
        let width = self.width;
        self.lines.put(head(document).as_bytes());
        self.lines.put_line(&format!(
            "# CPU  {:<width$}      DURATION          FUNCTION CALLS",
            "TASK-PID"
        ))?;
        self.lines.put_line(&format!(
            "# |    {:<width$}       |   |             |   |   |   |",
            "   |"
        ))
    }

    fn footer(&mut self, health: &Health) -> io::Result<()> {
        if self.shown == 0 && self.short > 0 {
            let (took, at_least) = match self.longest_has_ended {
                true => ("took", ""),
                false => ("is known to have taken", "at least "),
            };
            let text = format!(
                "# none of the {} {} {}; the longest took {}{}",
                counted(self.short, "call", "calls"),
                took,
                short_time(self.options.min_duration_ns as f64),
                at_least,
                short_time(self.scale.ns(u128::from(self.longest)) as f64),
            );
            self.lines.put_line(&text)?;
        }
        if self.shows_steps {
            let text = format!("# times are by a clock with steps of {} ns", self.step_ns);
            self.lines.put_line(&text)?;
        }
        if self.unpaired > 0 {
            let text = match self.unpaired {
                1 => "# 1 exit without an entry is not shown".to_string(),
                more => format!("# {more} exits without an entry are not shown"),
            };
            self.lines.put_line(&text)?;
        }
        if health.lost_events > 0 {
            let text = format!(
                "# LOST {} EVENTS in all: there was no room for them in the buffers",
                health.lost_events
            );
            self.lines.put_line(&text)?;
        }
        self.lines.flush()
    }

    /// Writes the columns before a call, and its indentation.
    fn put_columns(&mut self, cpu: u32, tid: u32, time: Time, depth: usize) {
        self.lines.put(format!("{cpu:>3})   ").as_bytes());
        let task = self.tasks.get(tid);
        let blanks = self
            .width
            .saturating_sub(String::from_utf8_lossy(task).chars().count());
        self.lines.put(task);
        self.lines.put(" ".repeat(blanks).as_bytes());
        let text = match time {
            Time::None => format!(" | {:17} |  ", ""),
            Time::AtLeast(0) => format!(" | {:>17} |  ", "-"),
            Time::AtLeast(ns) => format!(" | {:>14} us |  ", format!(">= {}", microseconds(ns))),
            Time::Exactly(ns) => format!(" | {} {:>12} us |  ", mark(ns), microseconds(ns)),
        };
        if let Time::AtLeast(ns @ 1..) | Time::Exactly(ns) = time {
            self.shows_steps |= is_near_step(ns, self.step_ns);
        }
        self.lines.put(text.as_bytes());
        let levels = depth.min(MOST_INDENTED);
        self.lines.put("  ".repeat(levels).as_bytes());
        if depth > MOST_INDENTED {
            self.lines.put(format!("[{depth}] ").as_bytes());
        }
    }

    /// Formats `fd=3, size=12`, skipping the first `without` fields.
    fn fields(&mut self, event: &Event<'_>, side: Side, without: usize) -> Vec<u8> {
        let label = match side {
            Side::Entry => &self.entries[event.index],
            Side::Exit => &self.labels[event.index],
        };
        if label.shown == 0 {
            return Vec::new();
        }
        let shown = label.fields.iter().zip(event.fields()).skip(without);
        let shown = shown.filter_map(|(name, value)| Some((name.as_ref()?, value)));
        for (n, (name, value)) in shown.enumerate() {
            self.scratch.put(if n == 0 { b"" } else { b", " });
            self.scratch.put(name);
            put_value(&mut self.scratch, &self.symbols, value);
        }
        std::mem::take(self.scratch.bytes())
    }

    /// Formats the values recorded by an exit: ` = 12`, or ` = (ret=12, errno=0)` for several.
    fn returned(&mut self, event: Option<&Event<'_>>) -> Vec<u8> {
        let Some(event) = event else {
            return Vec::new();
        };
        let label = &self.labels[event.index];
        if label.shown == 1 {
            let mut values = label.fields.iter().zip(event.fields());
            if let Some((_, value)) = values.find(|(name, _)| name.is_some()) {
                self.scratch.put(b" = ");
                put_value(&mut self.scratch, &self.symbols, value);
            }
            return std::mem::take(self.scratch.bytes());
        }
        let fields = self.fields(event, Side::Exit, 0);
        match fields.is_empty() {
            true => fields,
            false => [b" = (", fields.as_slice(), b")"].concat(),
        }
    }

    /// Prints the opening lines of the open calls of a stack that are not printed yet.
    fn open(&mut self, stack: u64) -> io::Result<()> {
        let calls = self.calls.of(stack);
        let first = calls.partition_point(|call| call.opened);
        let news = calls[first..].iter_mut().map(|call| {
            call.opened = true;
            (call.begin, std::mem::take(&mut call.arguments))
        });
        for (begin, arguments) in news.collect::<Vec<_>>() {
            self.put_columns(begin.cpu, begin.tid, Time::None, begin.depth);
            self.put_call(begin.function, &arguments);
            self.lines.put(b" {");
            self.lines.end()?;
        }
        Ok(())
    }

    /// Writes `read(fd=3)`.
    fn put_call(&mut self, function: usize, arguments: &[u8]) {
        let name = &self.names[function];
        self.lines.put(name.as_bytes());
        // The types of the parameters tell overloads apart.
        if has_parameters(name) && arguments.is_empty() {
            return;
        }
        self.lines.put(b"(");
        self.lines.put(arguments);
        self.lines.put(b")");
    }
}

/// Contents of the column of durations, in ns.
#[derive(Debug, Clone, Copy)]
enum Time {
    /// The line is not the end of a call.
    None,
    /// The end of the call was not recorded; nothing is known if this is 0.
    AtLeast(u64),
    Exactly(u64),
}

/// Returns ftrace's mark for a duration in ns.
fn mark(ns: u64) -> char {
    match ns {
        0..=10_000 => ' ',
        10_001..=100_000 => '+',
        100_001..=1_000_000 => '!',
        1_000_001..=10_000_000 => '#',
        10_000_001..=100_000_000 => '*',
        100_000_001..=1_000_000_000 => '@',
        _ => '$',
    }
}

/// Returns a remark on a call that did not end normally.
fn remark(call: &Call, scale: &Scale) -> Option<String> {
    let how = how_it_ended(call)?;
    Some(match call.before_end {
        Some(ticks) => {
            let us = microseconds(scale.ns(u128::from(ticks)));
            format!("{how}; begun {us} us before the end of the recording")
        }
        None => how.to_owned(),
    })
}

fn how_it_ended(call: &Call) -> Option<&'static str> {
    Some(match (call.exit, call.doubtful) {
        (Exit::Returned, false) => return None,
        (Exit::Returned, true) => "doubtful: events were lost",
        (Exit::TailCall, false) => "tail call",
        (Exit::TailCall, true) => "tail call, doubtful: events were lost",
        (Exit::Abandoned, false) => "abandoned",
        (Exit::Abandoned, true) => "abandoned, or its exit was lost",
        (Exit::Open, false) => "still open, or left by an exception",
        (Exit::Open, true) => "still open, or its exit was lost",
        (Exit::ThreadEnded, false) => "its thread ended first",
        (Exit::ThreadEnded, true) => "its thread ended first, or its exit was lost",
    })
}

impl<W: Write> Visitor for Printer<W> {
    fn begin(&mut self, begin: &Begin, event: &Event<'_>) -> io::Result<()> {
        if !self.options.shows_depth(begin.depth) {
            return Ok(());
        }
        if self.options.min_duration_ns == 0 {
            self.open(begin.stack)?;
        }
        let arguments = self.fields(event, Side::Entry, 0);
        let call = Shown {
            begin: *begin,
            opened: false,
            arguments,
        };
        self.calls.push(begin.stack, call);
        Ok(())
    }

    fn end(&mut self, call: &Call, event: Option<&Event<'_>>) -> io::Result<()> {
        let stack = call.begin.stack;
        if !self.options.shows_depth(call.begin.depth) {
            return Ok(());
        }
        let Some(shown) = self.calls.pop(stack) else {
            return Ok(());
        };
        let duration = known_duration(call);
        if duration >= self.longest {
            self.longest = duration;
            self.longest_has_ended = call.exit.is_recorded();
        }
        if !self.options.shows_duration(call, &self.scale) && !shown.opened {
            self.short += 1;
            return Ok(());
        }
        self.shown += 1;
        // Its callers took at least as long.
        self.open(stack)?;
        let begin = call.begin;
        let ns = self.scale.ns(u128::from(call.duration()));
        let column = match call.exit.is_recorded() {
            true => Time::Exactly(ns),
            false => Time::AtLeast(ns),
        };
        self.put_columns(call.cpu, call.tid, column, begin.depth);
        let returned = self.returned(event);
        if shown.opened {
            self.lines.put(b"}");
            self.lines.put(&returned);
            self.lines.put(b" ");
            let name = &self.names[begin.function];
            let comment = match remark(call, &self.scale) {
                Some(remark) => &format!("{name}: {remark}"),
                None => name,
            };
            put_comment(self.lines.bytes(), comment.as_bytes());
        } else {
            self.put_call(begin.function, &shown.arguments);
            self.lines.put(&returned);
            self.lines.put(b";");
            if let Some(remark) = remark(call, &self.scale) {
                self.lines.put(b" ");
                put_comment(self.lines.bytes(), remark.as_bytes());
            }
        }
        self.lines.end()
    }

    fn unpaired(&mut self, _: usize, _: &Event<'_>) -> io::Result<()> {
        self.unpaired += 1;
        Ok(())
    }

    fn point(&mut self, event: &Event<'_>, stack: Option<u64>, depth: usize) -> io::Result<()> {
        if self.options.min_duration_ns > 0 || !self.options.shows_depth(depth) {
            return Ok(());
        }
        if let Some(stack) = stack {
            self.open(stack)?;
        }
        self.put_columns(event.cpu, event.tid, Time::None, depth);
        let text = self.texts.get(event.index).and_then(Option::as_ref);
        let (text, behind) = match text {
            Some(text) => {
                text.put_line(self.scratch.bytes(), &mut Vec::new(), event);
                (std::mem::take(self.scratch.bytes()), text.fields())
            }
            None => (Vec::new(), 0),
        };
        let fields = self.fields(event, Side::Exit, behind);
        let mut comment = self.labels[event.index].name.clone().into_bytes();
        // The formatted text comes last, so that it cannot be mistaken for recorded fields.
        for part in [fields, text].iter().filter(|part| !part.is_empty()) {
            comment.extend_from_slice(b": ");
            comment.extend_from_slice(part);
        }
        put_comment(self.lines.bytes(), &comment);
        self.lines.end()
    }

    fn lost(&mut self, cpu: u32, events: u64) -> io::Result<()> {
        let text = format!("CPU:{cpu} [LOST {events} EVENTS]");
        self.lines.put_line(&text)
    }
}
