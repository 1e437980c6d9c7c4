//! Calls as JSON, one object per line.

use std::collections::HashSet;
use std::io::{self, Write};

use super::escape::{escaped, quoted};
use super::graph::GraphOptions;
use super::line::Lines;
use super::lines_json::Arguments;
use super::open::Open;
use super::symbols::Symbols;
use super::tasks::Tasks;
use crate::calls::{Begin, Call, Exit, Functions, Side, Visitor, walk};
use crate::error::ReportError;
use capriole_trace::Health;
use capriole_trace::clock::{Converter, Scale};
use capriole_trace::{Event, Trace};

/// Writes every call of a trace as a JSON object on its own line, in the order in which
/// they end:
///
/// ```json
/// {"id":7,"parent":6,"function":"read","time_ns":1234567890123,"duration_ns":812,"self_ns":812,"cpu":1,"tid":12345,"comm":"orders","depth":1,"exit":"returned","doubtful":false,"arguments":{"fd":3},"return":{"ret":12}}
/// {"lost_events":12,"cpu":1}
/// ```
///
/// `time_ns` is the start time by `CLOCK_MONOTONIC`; `cpu` and `tid` are the values at the
/// start; `parent` is null for the outermost recorded call of a stack; `exit` is `returned`,
/// `tail_call`, `abandoned`, `open` or `thread_ended`, as in [`Exit`]. With the last three,
/// `duration_ns` and `self_ns` are null, `at_least_ns` is the time up to the last event seen in the
/// call, and `before_end_ns` that up to the end of the recording if the call was open then, else
/// null. `arguments` and `return`
/// are the fields recorded at the entry and at the exit, in the form that
/// [`write_json_lines`](super::write_json_lines) describes; `return` is null if there was no
/// exit. If there are unpaired exits, `"unpaired_exits":3` is on the last line, before the
/// total of lost events. Events that are not calls are left out.
///
/// # Errors
///
/// If the trace cannot be read or the report cannot be written. Damage is not an error: it is
/// in the result, and the caller should report it.
pub fn write_graph_json(
    trace: &Trace,
    out: impl Write,
    options: &GraphOptions,
) -> Result<Health, ReportError> {
    let document = trace.document();
    let functions = Functions::of(&document.events);
    // The clock was checked when the trace was opened.
    let converter = Converter::new(&document.clock).map_err(io::Error::other)?;
    let arguments = |side| -> Vec<Arguments> {
        let events = functions.side(&document.events, side);
        events.iter().map(Arguments::new).collect()
    };
    let mut printer = Printer {
        lines: Lines::new(out),
        scratch: Lines::new(io::sink()),
        options: *options,
        scale: Scale::of(&document.clock),
        converter,
        names: functions.names().iter().map(|name| quoted(name)).collect(),
        entries: arguments(Side::Entry),
        arguments: arguments(Side::Exit),
        symbols: Symbols::of(trace, escaped),
        named: document.threads.keys().copied().collect(),
        comms: Tasks::new(&document.threads, |comm, _| quoted(comm)),
        calls: Open::new(),
        unpaired: 0,
    };
    let (_, health) = walk(trace, &functions, &mut printer)?;
    if printer.unpaired > 0 {
        let text = format!("{{\"unpaired_exits\":{}}}", printer.unpaired);
        printer.lines.put_line(&text)?;
    }
    if health.lost_events > 0 {
        let text = format!("{{\"lost_events_total\":{}}}", health.lost_events);
        printer.lines.put_line(&text)?;
    }
    printer.lines.flush()?;
    Ok(health)
}

struct Printer<W> {
    lines: Lines<W>,
    scratch: Lines<io::Sink>,
    options: GraphOptions,
    scale: Scale,
    converter: Converter,
    names: Vec<String>,
    /// Arguments at the start of a call; `arguments` is used at its end.
    entries: Vec<Arguments>,
    arguments: Vec<Arguments>,
    symbols: Symbols,
    named: HashSet<u32>,
    comms: Tasks,
    /// The fields recorded at the entries, formatted.
    calls: Open<Vec<u8>>,
    unpaired: u64,
}

impl<W: Write> Printer<W> {
    fn object(&mut self, event: &Event<'_>, side: Side) -> Vec<u8> {
        let arguments = match side {
            Side::Entry => &self.entries,
            Side::Exit => &self.arguments,
        };
        arguments[event.index].put(&mut self.scratch, &self.symbols, event);
        std::mem::take(self.scratch.bytes())
    }
}

impl<W: Write> Visitor for Printer<W> {
    fn begin(&mut self, begin: &Begin, event: &Event<'_>) -> io::Result<()> {
        if self.options.shows_depth(begin.depth) {
            let arguments = self.object(event, Side::Entry);
            self.calls.push(begin.stack, arguments);
        }
        Ok(())
    }

    fn end(&mut self, call: &Call, event: Option<&Event<'_>>) -> io::Result<()> {
        let begin = &call.begin;
        if !self.options.shows_depth(begin.depth) {
            return Ok(());
        }
        let Some(arguments) = self.calls.pop(begin.stack) else {
            return Ok(());
        };
        if !self.options.shows_duration(call, &self.scale) {
            return Ok(());
        }
        let ns = |ticks: u64| self.scale.ns(u128::from(ticks));
        let duration = ns(call.duration());
        let times = match call.exit.is_recorded() {
            true => format!("\"duration_ns\":{duration},\"self_ns\":{}", ns(call.own)),
            false => {
                let before = call
                    .before_end
                    .map_or("null".to_owned(), |ticks| ns(ticks).to_string());
                format!(
                    "\"duration_ns\":null,\"self_ns\":null,\"at_least_ns\":{duration},\"before_end_ns\":{before}"
                )
            }
        };
        let text = format!(
            "{{\"id\":{},\"parent\":{},\"function\":{},\"time_ns\":{},{times},\"cpu\":{},\"tid\":{},\"comm\":",
            begin.id,
            begin.parent.map_or("null".to_string(), |id| id.to_string()),
            self.names[begin.function],
            self.converter.monotonic_ns(begin.time),
            begin.cpu,
            begin.tid,
        );
        self.lines.put(text.as_bytes());
        match self.named.contains(&begin.tid) {
            true => self.lines.put(self.comms.get(begin.tid)),
            false => self.lines.put(b"null"),
        }
        let exit = match call.exit {
            Exit::Returned => "returned",
            Exit::TailCall => "tail_call",
            Exit::Abandoned => "abandoned",
            Exit::Open => "open",
            Exit::ThreadEnded => "thread_ended",
        };
        let text = format!(
            ",\"depth\":{},\"exit\":\"{exit}\",\"doubtful\":{},\"arguments\":",
            begin.depth, call.doubtful
        );
        self.lines.put(text.as_bytes());
        self.lines.put(&arguments);
        self.lines.put(b",\"return\":");
        match event {
            Some(event) => {
                let returned = self.object(event, Side::Exit);
                self.lines.put(&returned);
            }
            None => self.lines.put(b"null"),
        }
        self.lines.put(b"}");
        self.lines.end()
    }

    fn unpaired(&mut self, _: usize, _: &Event<'_>) -> io::Result<()> {
        self.unpaired += 1;
        Ok(())
    }

    fn lost(&mut self, cpu: u32, events: u64) -> io::Result<()> {
        let text = format!("{{\"lost_events\":{events},\"cpu\":{cpu}}}");
        self.lines.put_line(&text)
    }
}
