//! Formats call stacks after their events, as lines of text and as JSON.

use std::collections::HashMap;
use std::io::{self, Write};

use super::escape::quoted;
use super::line::Lines;
use super::tasks::printable;
use crate::callstack::{Backtrace, CallStacks, End, Frame};
use crate::shown::{call_stack, with_call_stacks};
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::{Event, Trace};

/// Maximum number of call stacks that are kept as text.
const MOST_TEXTS: usize = 4096;

/// Determines the backtraces of a trace's events, and formats them.
pub(super) struct Backtraces {
    stacks: CallStacks,
    /// Indexed like `Document::events`: true if the event has a call stack.
    events: Vec<bool>,
    /// Calls by number as JSON; empty if not formatted yet.
    shown: Vec<Vec<u8>>,
    /// Call stacks as text; a part of those formatted so far.
    texts: HashMap<Backtrace, Vec<u8>>,
    /// Form of the names in text.
    names: Form,
}

impl Backtraces {
    /// Returns `None` if no event has a call stack.
    pub(super) fn of(trace: &Trace, names: Form) -> Option<Backtraces> {
        Some(Backtraces {
            events: with_call_stacks(trace.document())?,
            stacks: CallStacks::of(trace),
            shown: Vec::new(),
            texts: HashMap::new(),
            names,
        })
    }

    /// Returns remarks on missing names.
    pub(super) fn into_remarks(self) -> Vec<String> {
        self.stacks.remarks()
    }

    fn backtrace(&mut self, event: &Event<'_>) -> Option<Backtrace> {
        if !self.events[event.index] {
            return None;
        }
        let stack = call_stack(event)?;
        Some(self.stacks.backtrace(&stack))
    }

    /// Returns the frames of a call as JSON.
    fn json(&mut self, call: usize) -> &[u8] {
        if self.shown.len() <= call {
            self.shown.resize(call + 1, Vec::new());
        }
        if self.shown[call].is_empty() {
            self.shown[call] = json(self.stacks.call(call)).into_bytes();
        }
        &self.shown[call]
    }

    /// Writes a line for each frame. Functions of one call stack have different names.
    pub(super) fn put_text(
        &mut self,
        lines: &mut Lines<impl Write>,
        event: &Event<'_>,
    ) -> io::Result<()> {
        let Some(backtrace) = self.backtrace(event) else {
            return Ok(());
        };
        let end = backtrace.end;
        if self.texts.len() == MOST_TEXTS {
            self.texts.clear();
        }
        let (stacks, names) = (&self.stacks, self.names);
        let make = |backtrace: &Backtrace| text(stacks, backtrace, names).into_bytes();
        let text = self.texts.entry(backtrace);
        lines.put(text.or_insert_with_key(make));
        let end: &[u8] = match end {
            End::Outermost => return Ok(()),
            End::Truncated => b"\t    (truncated)",
            End::Unknown => b"\t    ...",
        };
        lines.put(end);
        lines.end()
    }

    /// Writes `,"stack":[...],"stack_end":"outermost"`.
    pub(super) fn put_json(&mut self, lines: &mut Lines<impl Write>, event: &Event<'_>) {
        let Some(backtrace) = self.backtrace(event) else {
            return;
        };
        lines.put(b",\"stack\":[");
        for (n, call) in backtrace.calls.into_iter().enumerate() {
            lines.put(if n == 0 { b"" } else { b"," });
            lines.put(self.json(call));
        }
        lines.put(b"],\"stack_end\":");
        lines.put(match backtrace.end {
            End::Outermost => b"\"outermost\"",
            End::Truncated => b"\"truncated\"",
            End::Unknown => b"\"unknown\"",
        });
    }
}

/// Formats a line for each frame.
fn text(stacks: &CallStacks, backtrace: &Backtrace, form: Form) -> String {
    let calls = backtrace.calls.iter();
    let frames: Vec<&Frame> = calls.flat_map(|call| stacks.call(*call)).collect();
    let symbols = frames.iter().filter_map(|frame| frame.symbol.as_deref());
    let names = ShownNames::of(symbols, form);
    frames.iter().map(|frame| line(frame, &names)).collect()
}

fn line(frame: &Frame, names: &ShownNames) -> String {
    let symbol = frame.symbol.as_deref();
    let symbol = symbol.map(|symbol| names.get(symbol));
    let symbol = symbol.or_else(|| frame.place().map(|place| format!("[{place}]")));
    let symbol = symbol.map(|symbol| printable(&symbol));
    let mut text = format!("\t{:16x} ", frame.address);
    text += symbol.as_deref().unwrap_or("[unknown]");
    if let Some(offset) = frame.offset {
        text += &format!("+{offset:#x}");
    }
    if frame.inlined {
        text += " (inlined)";
    }
    match &frame.object {
        Some(object) => text += &format!(" ({})\n", printable(object)),
        None => text += " ([unknown])\n",
    }
    text
}

/// Formats an object for each frame, separated by commas.
fn json(frames: &[Frame]) -> String {
    let object = |frame: &Frame| {
        let or_null = |text: Option<&str>| text.map_or("null".to_string(), quoted);
        let offset = frame.offset.filter(|_| frame.symbol.is_some());
        let offset = offset.map(|offset| format!("{offset:#x}"));
        let same_code: Vec<String> = frame.same_code.iter().map(|name| quoted(name)).collect();
        format!(
            "{{\"address\":\"{:#x}\",\"symbol\":{},\"offset\":{},\"object\":{}{}{}}}",
            frame.address,
            or_null(frame.symbol.as_deref()),
            or_null(offset.as_deref()),
            or_null(frame.object.as_deref()),
            if frame.inlined {
                ",\"inlined\":true"
            } else {
                ""
            },
            match same_code.is_empty() {
                true => String::new(),
                false => format!(",\"same_code\":[{}]", same_code.join(",")),
            },
        )
    };
    let objects: Vec<String> = frames.iter().map(object).collect();
    objects.join(",")
}
