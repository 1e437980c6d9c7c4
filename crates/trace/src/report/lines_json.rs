//! Events as JSON, one object a line.

use std::io::Write;

use super::ReportError;
use super::line::Lines;
use super::tasks::Tasks;
use crate::damage::Health;
use crate::document::EventInfo;
use crate::reader::{Event, Trace};

/// Writes every event of a trace as a JSON object on a line of its own:
///
/// ```json
/// {"time_ns":1234567890123,"cpu":1,"tid":12345,"comm":"sqlite3","event":"sqlite3_step","id":3,"object":"/usr/lib/libsqlite3.so.0","offset":"0x1234","arguments":{"arg1":"0x55"}}
/// {"lost_events":12,"cpu":1}
/// ```
///
/// `time_ns` is `CLOCK_MONOTONIC`; `comm` is null for a thread without a known name. Values are
/// strings because numbers above 2^53 do not survive most readers of JSON. A `lost_events` line
/// stands before the event in front of which events of that CPU are missing; the last line
/// `{"lost_events_total":12}` stands there only if there are any.
///
/// # Errors
///
/// If the trace cannot be read or the report cannot be written. Damage is no error: it is in
/// the answer, which is for the caller to tell.
pub fn write_json_lines(trace: &Trace, out: impl Write) -> Result<Health, ReportError> {
    let document = trace.document();
    let labels: Vec<Label> = document.events.iter().map(Label::new).collect();
    let mut comms = Tasks::new(&document.threads, |comm, _| quoted(comm));
    let mut lines = Lines::new(out);
    let mut events = trace.events()?;
    while let Some(event) = events.next()? {
        if event.lost_before > 0 {
            lines.put(b"{\"lost_events\":");
            lines.put_decimal(event.lost_before, 1);
            lines.put(b",\"cpu\":");
            lines.put_decimal(u64::from(event.cpu), 1);
            lines.put(b"}");
            lines.end()?;
        }
        let comm: &[u8] = match document.threads.contains_key(&event.tid) {
            true => comms.get(event.tid),
            false => b"null",
        };
        put_event(&mut lines, &labels[event.index], comm, &event)?;
    }
    let health = events.health();
    if health.lost_events > 0 {
        lines.put(b"{\"lost_events_total\":");
        lines.put_decimal(health.lost_events, 1);
        lines.put(b"}");
        lines.end()?;
    }
    lines.flush()?;
    Ok(health)
}

/// What is the same in each line of an event.
struct Label {
    /// From `,"event":` to `"arguments":{`.
    site: Vec<u8>,
    /// `"arg1":"0x` and so on, each but the first with what ends the one before.
    arguments: Vec<Vec<u8>>,
}

impl Label {
    fn new(event: &EventInfo) -> Label {
        let site = format!(
            ",\"event\":{},\"id\":{},\"object\":{},\"offset\":\"{:#x}\",\"arguments\":{{",
            quoted(&event.name),
            event.id,
            quoted(&event.object),
            event.offset
        );
        let argument = |(n, name): (usize, &String)| {
            let before = if n == 0 { "" } else { "\"," };
            format!("{before}{}:\"0x", quoted(name)).into_bytes()
        };
        Label {
            site: site.into_bytes(),
            arguments: event.arguments.iter().enumerate().map(argument).collect(),
        }
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[inline]
fn put_event(
    lines: &mut Lines<impl Write>,
    label: &Label,
    comm: &[u8],
    event: &Event<'_>,
) -> Result<(), ReportError> {
    lines.put(b"{\"time_ns\":");
    lines.put_decimal(event.time_ns, 1);
    lines.put(b",\"cpu\":");
    lines.put_decimal(u64::from(event.cpu), 1);
    lines.put(b",\"tid\":");
    lines.put_decimal(u64::from(event.tid), 1);
    lines.put(b",\"comm\":");
    lines.put(comm);
    lines.put(&label.site);
    for (name, value) in label.arguments.iter().zip(event.arguments()) {
        lines.put(name);
        lines.put_hex(value);
    }
    lines.put(if label.arguments.is_empty() {
        b"}}"
    } else {
        b"\"}}"
    });
    Ok(lines.end()?)
}
