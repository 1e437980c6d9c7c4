//! Events in the layout of ftrace's uprobe events.
//!
//! ```text
//!         sqlite3-12345   [001]  1234.567890123: sqlite3_step: (libsqlite3.so.0+0x1234) arg1=0x55
//! ```
//!
//! Fields are shown as the kernel shows them:
//!
//! ```text
//! x32           flags=0x1f               string     path="/etc/passwd"
//! u32, b3@5/32  size=31                  char       key='a'
//! s32           fd=-1                    symbol     callback=on_event+0x10
//! u16[3]        ports={80,443,8080}      any        path=(fault)
//! ```
//!
//! In strings and characters, non-printable characters and bytes that are not UTF-8 are
//! escaped. A symbol unknown to the trace is shown as an address. Fields whose names begin with
//! `_` are not shown. A call stack follows its event, one line for each function:
//!
//! ```text
//! \t    7f0c1a2b3c4d sqlite3_step+0x1d (/usr/lib/x86_64-linux-gnu/libsqlite3.so.0.8.6)
//! ```

use std::io::Write;

use super::backtraces::Backtraces;
use super::escape::put_escaped;
use super::line::Lines;
use super::marker_text::MarkerText;
use super::symbols::Symbols;
use super::table::head;
use super::tasks::{self, Tasks, printable};
use crate::error::ReportError;
use crate::shown::{event_names, is_shown, object_name, shown_library};
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::Health;
use capriole_trace::Value;
use capriole_trace::{Certainty, Descriptor, Event, Trace};
use capriole_trace::{Document, EventInfo, FieldInfo};

/// Options for showing events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextOptions {
    /// Shows events by their raw fields, even if they have a format.
    pub fields: bool,
    /// Form of the names of functions.
    pub names: Form,
}

/// Writes every event of a trace as a line, below a header, and marks where events are missing.
/// Times are `CLOCK_MONOTONIC` in seconds. A marker event with a format is shown in that
/// format.
///
/// # Errors
///
/// If the trace cannot be read or the report cannot be written. Damage is not an error: it is
/// in the result, and the caller should report it.
pub fn write_text(
    trace: &Trace,
    out: impl Write,
    options: &TextOptions,
) -> Result<Health, ReportError> {
    let document = trace.document();
    let layout = Layout::new(document);
    let names = event_names(document, options.names);
    let label = |event| Label::new(document, event, &names, options);
    let labels: Vec<Label> = document.events.iter().map(label).collect();
    let mut scratch = Vec::new();
    let named = names.clone();
    let symbols = Symbols::of(trace, move |name| printable(&named.get(name)));
    let mut tasks = Tasks::new(&document.threads, tasks::name_and_id);
    let mut lines = Lines::new(out);
    layout.header(&mut lines, document)?;
    let mut backtraces = Backtraces::of(trace, options.names);
    let mut events = trace.events()?;
    while let Some(event) = events.next()? {
        if event.lost_before > 0 {
            // In ftrace's wording.
            let (cpu, lost) = (event.cpu, event.lost_before);
            lines.put_line(&format!("CPU:{cpu} [LOST {lost} EVENTS]"))?;
        }
        put_event(
            &mut lines,
            &layout,
            &labels[event.index],
            &symbols,
            tasks.get(event.tid),
            &event,
            &mut scratch,
        )?;
        if let Some(backtraces) = &mut backtraces {
            backtraces.put_text(&mut lines, &event)?;
        }
    }
    let mut health = events.health();
    let remarks = backtraces.map_or_else(|| trace.names().remarks(), Backtraces::into_remarks);
    health.remarks.extend(remarks);
    if health.lost_events > 0 {
        let lost = health.lost_events;
        lines.put_line(&format!(
            "# LOST {lost} EVENTS in all: there was no room for them in the buffers"
        ))?;
    }
    lines.flush()?;
    Ok(health)
}

/// The parts of a line that are the same for each record of an event.
struct Label {
    /// `: sqlite3_step: (libsqlite3.so.0+0x1234)`
    site: Vec<u8>,
    /// ` arg1=` and so on; ` arg1=0x` if all are hexadecimal. Empty for a field that is not shown.
    fields: Vec<Vec<u8>>,
    /// True if all fields are of the type `x64`, which has a fast path.
    hexadecimal: bool,
    /// Format that replaces the first fields.
    text: Option<MarkerText>,
    /// True if there are fields before the formatted text.
    is_fielded: bool,
}

impl Label {
    fn new(
        document: &Document,
        event: &EventInfo,
        names: &ShownNames,
        options: &TextOptions,
    ) -> Label {
        let text = MarkerText::of(event).filter(|_| !options.fields);
        let place = match event.place() {
            Some((object, offset)) => {
                let name = object_name(&document.target, &document.threads, object);
                let name = printable(shown_library(name, event.soname.as_deref()));
                format!(" ({name}+{offset:#x})")
            }
            None => String::new(),
        };
        let name = printable(&names.get(&event.name));
        let hexadecimal = event.is_hexadecimal() && event.fields.iter().all(is_shown);
        let hexadecimal = hexadecimal && text.is_none();
        let prefix = if hexadecimal { "0x" } else { "" };
        let field = |field: &FieldInfo| match is_shown(field) {
            true => format!(" {}={prefix}", printable(&field.name)).into_bytes(),
            false => Vec::new(),
        };
        let in_text = text.as_ref().map_or(0, MarkerText::fields);
        Label {
            site: format!(": {name}:{place}").into_bytes(),
            is_fielded: event.fields.iter().skip(in_text).any(is_shown),
            fields: event.fields.iter().map(field).collect(),
            hexadecimal,
            text,
        }
    }
}

/// Widths of the columns.
struct Layout {
    /// Width of task name, dash and thread id.
    task: usize,
    /// Number of digits of the seconds.
    seconds: usize,
}

impl Layout {
    fn new(document: &Document) -> Layout {
        let end = document.time.end_monotonic_ns / 1_000_000_000;
        Layout {
            task: tasks::width(document),
            seconds: end.max(1).ilog10() as usize + 1,
        }
    }

    fn header(
        &self,
        lines: &mut Lines<impl Write>,
        document: &Document,
    ) -> Result<(), ReportError> {
        let task = self.task + 2;
        let time = self.seconds + 10;
        lines.put(head(document).as_bytes());
        lines.put_line(&format!(
            "#{:>width$}   CPU#   {:>time$}  FUNCTION",
            "TASK-PID",
            "TIMESTAMP",
            width = task - 1,
        ))?;
        Ok(lines.put_line(&format!(
            "#{:>width$}     |    {:>time$}     |",
            "| |",
            "|",
            width = task - 3
        ))?)
    }
}

#[inline]
fn put_event(
    lines: &mut Lines<impl Write>,
    layout: &Layout,
    label: &Label,
    symbols: &Symbols,
    task: &[u8],
    event: &Event<'_>,
    scratch: &mut Vec<u8>,
) -> Result<(), ReportError> {
    const BLANKS: &[u8; 64] = &[b' '; 64];
    let blanks = (layout.task + 2).saturating_sub(task.len());
    lines.put(&BLANKS[..blanks.min(BLANKS.len())]);
    lines.put(task);
    lines.put(b"   [");
    lines.put_decimal(u64::from(event.cpu), 3);
    lines.put(b"]  ");
    lines.put_seconds(event.time_ns, layout.seconds);
    lines.put(&label.site);
    if label.hexadecimal {
        for (name, value) in label.fields.iter().zip(event.words()) {
            lines.put(name);
            lines.put_hex_digits(value);
        }
    } else {
        put_fields(lines, label, symbols, event);
        put_text(lines, label, event, scratch);
    }
    Ok(lines.end()?)
}

/// Writes the fields of an event that has types other than `x64`, except those in its formatted
/// text.
#[inline(never)]
fn put_fields(lines: &mut Lines<impl Write>, label: &Label, symbols: &Symbols, event: &Event<'_>) {
    let in_text = label.text.as_ref().map_or(0, MarkerText::fields);
    for (name, value) in label.fields.iter().zip(event.fields()).skip(in_text) {
        if name.is_empty() {
            continue;
        }
        lines.put(name);
        put_value(lines, symbols, value);
    }
}

/// Writes the formatted text of an event that has one. It comes last in a line, so that it
/// cannot imitate other parts of the line.
fn put_text(
    lines: &mut Lines<impl Write>,
    label: &Label,
    event: &Event<'_>,
    scratch: &mut Vec<u8>,
) {
    let Some(text) = &label.text else {
        return;
    };
    let bytes = lines.bytes();
    let start = bytes.len();
    bytes.extend_from_slice(if label.is_fielded { b": " } else { b" " });
    let empty = bytes.len();
    text.put_line(bytes, scratch, event);
    if bytes.len() == empty {
        bytes.truncate(start);
    }
}

#[inline]
pub(super) fn put_value(lines: &mut Lines<impl Write>, symbols: &Symbols, value: Value<'_>) {
    match value {
        Value::Hexadecimal(value) => lines.put_hex(value),
        Value::Unsigned(value) => lines.put_decimal(value, 1),
        Value::Signed(value) => lines.put_signed(value),
        // The shortest form that parses to the same number.
        Value::Single(value) => lines.put(format!("{value:?}").as_bytes()),
        Value::Double(value) => lines.put(format!("{value:?}").as_bytes()),
        Value::Character(value) => put_quoted(lines, &[value], b'\''),
        Value::Ipv4(address) => lines.put(address.to_string().as_bytes()),
        Value::Ipv6(address) => lines.put(address.to_string().as_bytes()),
        Value::Enumerated(value) => {
            put_escaped(lines.bytes(), value.to_string().as_bytes(), b'"');
        }
        Value::Descriptor(descriptor) => put_descriptor(lines.bytes(), descriptor),
        Value::Text(text) => put_quoted(lines, text, b'"'),
        Value::Symbol(address) => match symbols.find(address) {
            Some((name, offset)) => {
                lines.put(name.as_bytes());
                lines.put(b"+");
                lines.put_hex(offset);
            }
            None => lines.put_hex(address),
        },
        Value::Array(values) => {
            for (n, value) in values.iter().enumerate() {
                lines.put(if n == 0 { b"{" } else { b"," });
                put_value(lines, symbols, value);
            }
            lines.put(b"}");
        }
        Value::Fault => lines.put(b"(fault)"),
        // Shown on separate lines.
        Value::CallStack(_) => {}
    }
}

/// Writes `8</var/log/shop.log>`. In a path, which may have any characters, `>` is escaped.
pub fn put_descriptor(out: &mut Vec<u8>, descriptor: Descriptor<'_>) {
    out.extend_from_slice(descriptor.number.to_string().as_bytes());
    let Some((name, certainty)) = descriptor.name else {
        return;
    };
    let is_path = ["/", "unix:"].iter().any(|start| name.starts_with(start));
    out.push(b'<');
    put_escaped(out, name.as_bytes(), if is_path { b'>' } else { b'"' });
    out.push(b'>');
    if certainty == Certainty::Possible {
        out.push(b'?');
    }
}

fn put_quoted(lines: &mut Lines<impl Write>, text: &[u8], quote: u8) {
    lines.put(&[quote]);
    put_escaped(lines.bytes(), text, quote);
    lines.put(&[quote]);
}
