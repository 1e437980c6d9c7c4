//! Events as JSON, one object per line.

use std::io::Write;

use super::backtraces::Backtraces;
use super::escape::{escaped, put_json, quoted};
use super::line::Lines;
use super::marker_text::MarkerText;
use super::symbols::Symbols;
use super::tasks::Tasks;
use crate::error::ReportError;
use crate::shown::is_shown;
use capriole_object::symbols::shown::Form;
use capriole_trace::Health;
use capriole_trace::Value;
use capriole_trace::{Event, Trace};
use capriole_trace::{EventInfo, FieldInfo};

/// Writes every event of a trace as a JSON object on its own line:
///
/// ```json
/// {"time_ns":1234567890123,"cpu":1,"tid":12345,"comm":"sqlite3","event":"sqlite3_step","id":3,"object":"/usr/lib/libsqlite3.so.0","offset":"0x1234","arguments":{"arg1":"0x55"}}
/// {"lost_events":12,"cpu":1}
/// ```
///
/// `time_ns` is `CLOCK_MONOTONIC`; `comm` is null for a thread without a known name; `offset`
/// is the link-time address of the probe in the object, as `nm` shows it, not a file offset. A
/// `lost_events` line precedes the event before which events of that CPU are missing; the last
/// line `{"lost_events_total":12}` is present only if events were lost.
///
/// `arguments` has the fields by name:
///
/// | type | JSON |
/// | --- | --- |
/// | `x8` to `x64` | a string in hexadecimal: `"0x55"` |
/// | `u8` to `u64`, `s8` to `s64`, `be16` to `be64`, bit fields | a number from -2^53 to 2^53; outside that range, where most JSON readers lose precision, a string in decimal |
/// | `char`, `string`, `ustring` | a string; bytes that are not UTF-8 are replaced by U+FFFD |
/// | `ipv4`, `ipv6` | a string: `"127.0.0.1"`, `"::1"` |
/// | `symbol` | a string: `"on_event+0x10"`, or `"0x55d0c0de1234"` if the trace has no symbol for it |
/// | arrays | an array of these |
///
/// A field that could not be read is null, and `"faults":["path"]` after the arguments has the
/// names of all such fields. Fields whose names begin with `_` are not shown. For a marker
/// event with a format, `"text"` follows, its first fields formatted.
///
/// For an event with a call stack, `"stack"` follows, an array of its functions, innermost
/// first, and `"stack_end"`, the reason why it ends: `outermost`, `truncated` or `unknown`:
///
/// ```json
/// {"address":"0x7f0c1a2b3c4d","symbol":"sqlite3_step","offset":"0x1d","object":"/usr/lib/libsqlite3.so.0"}
/// ```
///
/// Symbol, offset and object are null if they are unknown. `"inlined":true` marks a function
/// that was inlined into the next one without this mark; it has no offset.
///
/// # Errors
///
/// If the trace cannot be read or the report cannot be written. Damage is not an error: it is
/// in the result, and the caller should report it.
pub fn write_json_lines(trace: &Trace, out: impl Write) -> Result<Health, ReportError> {
    let document = trace.document();
    let labels: Vec<Label> = document.events.iter().map(Label::new).collect();
    let symbols = Symbols::of(trace, escaped);
    let mut comms = Tasks::new(&document.threads, |comm, _| quoted(comm));
    let mut lines = Lines::new(out);
    let mut backtraces = Backtraces::of(trace, Form::Full);
    let mut scratch = Vec::new();
    let mut events = trace.events()?;
    while let Some(event) = events.next()? {
        if event.lost_before > 0 {
            let (cpu, lost) = (event.cpu, event.lost_before);
            lines.put_line(&format!("{{\"lost_events\":{lost},\"cpu\":{cpu}}}"))?;
        }
        let comm: &[u8] = match document.threads.contains_key(&event.tid) {
            true => comms.get(event.tid),
            false => b"null",
        };
        let label = &labels[event.index];
        put_event(&mut lines, label, &symbols, comm, &event);
        if let Some(text) = &label.text {
            scratch.clear();
            text.put(&mut scratch, &event);
            lines.put(b",\"text\":");
            put_string(&mut lines, &scratch);
        }
        if let Some(backtraces) = &mut backtraces {
            backtraces.put_json(&mut lines, &event);
        }
        lines.put(b"}");
        lines.end()?;
    }
    let mut health = events.health();
    let remarks = backtraces.map_or_else(|| trace.names().remarks(), Backtraces::into_remarks);
    health.remarks.extend(remarks);
    if health.lost_events > 0 {
        let lost = health.lost_events;
        lines.put_line(&format!("{{\"lost_events_total\":{lost}}}"))?;
    }
    lines.flush()?;
    Ok(health)
}

/// The parts of a line that are the same for each record of an event.
struct Label {
    /// From `,"event":` to `"arguments":{`.
    site: Vec<u8>,
    /// `"arg1":` and so on, preceded by a comma except the first; `"arg1":"0x` if all are
    /// hexadecimal, preceded by the end of the previous one except the first. Empty for a field
    /// that is not shown.
    fields: Vec<Vec<u8>>,
    /// `"arg1"` and so on.
    names: Vec<String>,
    /// True if all fields are of the type `x64`, which has a fast path.
    hexadecimal: bool,
    /// Format for the first fields.
    text: Option<MarkerText>,
}

impl Label {
    fn new(event: &EventInfo) -> Label {
        let place = match event.place() {
            Some((object, offset)) => {
                format!("\"object\":{},\"offset\":\"{offset:#x}\"", quoted(object))
            }
            None => "\"object\":null,\"offset\":null".to_owned(),
        };
        let site = format!(
            ",\"event\":{},\"id\":{},{place},\"arguments\":{{",
            quoted(&event.name),
            event.id,
        );
        let hexadecimal = event.is_hexadecimal() && event.fields.iter().all(is_shown);
        let quote = |field: &FieldInfo| quoted(&field.name);
        let names: Vec<String> = event.fields.iter().map(quote).collect();
        let mut first = true;
        let field = |(field, name): (&FieldInfo, &String)| {
            if !is_shown(field) {
                return Vec::new();
            }
            match (std::mem::replace(&mut first, false), hexadecimal) {
                (true, true) => format!("{name}:\"0x"),
                (false, true) => format!("\",{name}:\"0x"),
                (true, false) => format!("{name}:"),
                (false, false) => format!(",{name}:"),
            }
            .into_bytes()
        };
        Label {
            site: site.into_bytes(),
            fields: event.fields.iter().zip(&names).map(field).collect(),
            names,
            hexadecimal,
            text: MarkerText::of(event),
        }
    }
}

#[inline]
fn put_event(
    lines: &mut Lines<impl Write>,
    label: &Label,
    symbols: &Symbols,
    comm: &[u8],
    event: &Event<'_>,
) {
    lines.put(b"{\"time_ns\":");
    lines.put_decimal(event.time_ns, 1);
    lines.put(b",\"cpu\":");
    lines.put_decimal(u64::from(event.cpu), 1);
    lines.put(b",\"tid\":");
    lines.put_decimal(u64::from(event.tid), 1);
    lines.put(b",\"comm\":");
    lines.put(comm);
    lines.put(&label.site);
    if label.hexadecimal {
        for (name, value) in label.fields.iter().zip(event.words()) {
            lines.put(name);
            lines.put_hex_digits(value);
        }
        lines.put(match label.fields.is_empty() {
            true => b"}",
            false => b"\"}",
        });
    } else {
        put_fields(lines, label, symbols, event);
    }
}

/// Writes the fields, and the names of those that could not be read.
#[inline(never)]
fn put_fields(lines: &mut Lines<impl Write>, label: &Label, symbols: &Symbols, event: &Event<'_>) {
    if put_arguments(lines, label, symbols, event) {
        put_faults(lines, label, event);
    }
}

/// Writes the fields of a label that has types other than `x64`. Returns true if one could not
/// be read.
fn put_arguments(
    lines: &mut Lines<impl Write>,
    label: &Label,
    symbols: &Symbols,
    event: &Event<'_>,
) -> bool {
    let mut faults = false;
    for (name, value) in label.fields.iter().zip(event.fields()) {
        if name.is_empty() {
            continue;
        }
        lines.put(name);
        put_value(lines, symbols, value);
        faults |= matches!(value, Value::Fault);
    }
    lines.put(b"}");
    faults
}

/// An event's fields as an object: `{"fd":3}`.
pub(super) struct Arguments {
    label: Label,
}

impl Arguments {
    pub(super) fn new(event: &EventInfo) -> Arguments {
        let mut label = Label::new(event);
        if label.hexadecimal {
            label.hexadecimal = false;
            for (n, (field, name)) in label.fields.iter_mut().zip(&label.names).enumerate() {
                let comma = if n == 0 { "" } else { "," };
                *field = format!("{comma}{name}:").into_bytes();
            }
        }
        Arguments { label }
    }

    /// Writes the object. Fields that could not be read are null.
    pub(super) fn put(&self, lines: &mut Lines<impl Write>, symbols: &Symbols, event: &Event<'_>) {
        lines.put(b"{");
        put_arguments(lines, &self.label, symbols, event);
    }
}

/// Writes the names of the fields that could not be read.
#[cold]
fn put_faults(lines: &mut Lines<impl Write>, label: &Label, event: &Event<'_>) {
    let shown = label.fields.iter().map(|field| !field.is_empty());
    let fields = label.names.iter().zip(event.fields()).zip(shown);
    let faults = fields.filter(|((_, value), shown)| *shown && matches!(value, Value::Fault));
    for (n, ((name, _), _)) in faults.enumerate() {
        lines.put(if n == 0 { b",\"faults\":[" } else { b"," });
        lines.put(name.as_bytes());
    }
    lines.put(b"]");
}

/// Largest magnitude up to which a JSON reader that stores every number as a `double`
/// represents all integers exactly.
const MOST: u64 = 1 << 53;

#[inline]
fn put_value(lines: &mut Lines<impl Write>, symbols: &Symbols, value: Value<'_>) {
    match value {
        Value::Hexadecimal(value) => put_hex(lines, value),
        Value::Unsigned(value) => put_number(lines, value <= MOST, |l| l.put_decimal(value, 1)),
        Value::Signed(value) => {
            let fits = value.unsigned_abs() <= MOST;
            put_number(lines, fits, |lines| lines.put_signed(value));
        }
        Value::Single(value) => put_float(lines, value.is_finite(), &format!("{value:?}")),
        Value::Double(value) => put_float(lines, value.is_finite(), &format!("{value:?}")),
        Value::Character(value) => put_string(lines, &[value]),
        Value::Ipv4(address) => put_string(lines, address.to_string().as_bytes()),
        Value::Ipv6(address) => put_string(lines, address.to_string().as_bytes()),
        Value::Enumerated(value) if value.is_named() => {
            put_string(lines, value.to_string().as_bytes());
        }
        Value::Enumerated(number) => {
            let fits = number.value.unsigned_abs() <= MOST;
            put_number(lines, fits, |l| l.put(number.to_string().as_bytes()));
        }
        Value::Descriptor(descriptor) if descriptor.name.is_some() => {
            put_string(lines, descriptor.to_string().as_bytes());
        }
        Value::Descriptor(descriptor) => lines.put_signed(i64::from(descriptor.number)),
        Value::Text(text) => put_string(lines, text),
        Value::Symbol(address) => match symbols.find(address) {
            Some((name, offset)) => {
                lines.put(b"\"");
                lines.put(name.as_bytes());
                lines.put(b"+");
                lines.put_hex(offset);
                lines.put(b"\"");
            }
            None => put_hex(lines, address),
        },
        Value::Array(values) => {
            for (n, value) in values.iter().enumerate() {
                lines.put(if n == 0 { b"[" } else { b"," });
                put_value(lines, symbols, value);
            }
            lines.put(b"]");
        }
        Value::Fault | Value::CallStack(_) => lines.put(b"null"),
    }
}

fn put_hex(lines: &mut Lines<impl Write>, value: u64) {
    lines.put(b"\"");
    lines.put_hex(value);
    lines.put(b"\"");
}

/// JSON has no infinity and no NaN: they are written as strings.
fn put_float(lines: &mut Lines<impl Write>, finite: bool, shown: &str) {
    put_number(lines, finite, |lines| lines.put(shown.as_bytes()));
}

fn put_number<W: Write>(lines: &mut Lines<W>, fits: bool, put: impl Fn(&mut Lines<W>)) {
    if fits {
        return put(lines);
    }
    lines.put(b"\"");
    put(lines);
    lines.put(b"\"");
}

fn put_string(lines: &mut Lines<impl Write>, text: &[u8]) {
    lines.put(b"\"");
    put_json(lines.bytes(), text);
    lines.put(b"\"");
}
