//! Formats call stacks after their events, as lines of text and as JSON.

use std::io::{self, Write};

use super::escape::quoted;
use super::line::Lines;
use super::tasks::printable;
use crate::callstack::{Backtrace, CallStacks, End, Frame};
use crate::shown::{call_stack, with_call_stacks};
use capriole_trace::Document;
use capriole_trace::Event;

/// Determines the backtraces of a trace's events, and formats them.
pub(super) struct Backtraces {
    stacks: CallStacks,
    /// Indexed like `Document::events`: true if the event has a call stack.
    events: Vec<bool>,
    /// Formatted calls by number; empty if not formatted yet.
    shown: Vec<Vec<u8>>,
}

impl Backtraces {
    /// Returns `None` if no event has a call stack.
    pub(super) fn of(document: &Document) -> Option<Backtraces> {
        Some(Backtraces {
            events: with_call_stacks(document)?,
            stacks: CallStacks::of(document),
            shown: Vec::new(),
        })
    }

    /// Returns remarks on files that were missing.
    pub(super) fn into_remarks(self) -> Vec<String> {
        self.stacks.remarks().to_vec()
    }

    fn backtrace(&mut self, event: &Event<'_>) -> Option<Backtrace> {
        if !self.events[event.index] {
            return None;
        }
        let stack = call_stack(event)?;
        Some(self.stacks.backtrace(event.info(), &stack))
    }

    /// Returns the formatted frames of a call.
    fn shown(&mut self, call: usize, make: fn(&[Frame]) -> String) -> &[u8] {
        if self.shown.len() <= call {
            self.shown.resize(call + 1, Vec::new());
        }
        if self.shown[call].is_empty() {
            self.shown[call] = make(self.stacks.call(call)).into_bytes();
        }
        &self.shown[call]
    }

    /// Writes a line for each frame.
    pub(super) fn put_text(
        &mut self,
        lines: &mut Lines<impl Write>,
        event: &Event<'_>,
    ) -> io::Result<()> {
        let Some(backtrace) = self.backtrace(event) else {
            return Ok(());
        };
        for call in backtrace.calls {
            lines.put(self.shown(call, text));
        }
        let end: &[u8] = match backtrace.end {
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
            lines.put(self.shown(call, json));
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
fn text(frames: &[Frame]) -> String {
    let mut text = String::new();
    for frame in frames {
        let symbol = frame.symbol.as_deref().map(printable);
        text += &format!("\t{:16x} ", frame.address);
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
    }
    text
}

/// Formats an object for each frame, separated by commas.
fn json(frames: &[Frame]) -> String {
    let object = |frame: &Frame| {
        let or_null = |text: Option<&str>| text.map_or("null".to_string(), quoted);
        let offset = frame.offset.map(|offset| format!("{offset:#x}"));
        format!(
            "{{\"address\":\"{:#x}\",\"symbol\":{},\"offset\":{},\"object\":{}{}}}",
            frame.address,
            or_null(frame.symbol.as_deref()),
            or_null(offset.as_deref()),
            or_null(frame.object.as_deref()),
            if frame.inlined {
                ",\"inlined\":true"
            } else {
                ""
            },
        )
    };
    let objects: Vec<String> = frames.iter().map(object).collect();
    objects.join(",")
}
