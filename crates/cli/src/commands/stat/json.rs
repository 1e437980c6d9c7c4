//! Groups with keys or measures as JSON.

use super::columns::{Names, parts};
use super::stacks;
use capriole::aggregate::model::{self, Group, Histogram, Measure, PERCENTILES, Row, Value as Key};
use capriole_report::put_json;
use capriole_trace::Descriptor;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// Time covered by `min` and `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The time that all other measures cover.
    Same,
    /// Since the start, while other measures cover an interval.
    SinceStart,
}

/// Formats the groups that do more than plain counting, with their rows, the most frequent
/// first. `time` is the base of the rates; `names` are the event names.
pub fn groups(groups: &[Group], names: &[String], time: Duration, extent: Extent) -> Vec<Value> {
    let shown = groups.iter().filter(|group| !group.is_plain());
    let one = |group: &Group| {
        let rows = model::sorted(group.rows.iter());
        let rows = rows
            .iter()
            .map(|row| self::row(group, row, names, time, extent));
        let others = model::sorted(group.others.iter());
        let others = others.iter().map(|row| {
            let mut row = self::row(group, row, names, time, extent);
            row.as_object_mut().map(|row| row.remove("keys"));
            row
        });
        let mut value = json!({
            "events": group.events.iter().map(|event| names.get(*event)).collect::<Vec<_>>(),
            "keys": group.key_names,
            "capacity": group.capacity,
            "dropped": group.dropped,
            "most_without_row": group.most_without_row,
            "rows": rows.collect::<Vec<_>>(),
            "others": others.collect::<Vec<_>>(),
        });
        if let Some(intervals) = &group.intervals {
            let starts = group.starts.iter().map(|event| json!(names.get(*event)));
            value["starts"] = starts.collect();
            value["intervals"] = json!({
                "started": intervals.started,
                "restarted": intervals.restarted,
                "open": intervals.open,
                "no_room": intervals.no_room,
                "lost": intervals.lost,
                "unmatched": intervals.unmatched,
                "unreadable": intervals.unreadable,
                "slots": intervals.slots,
            });
        }
        value
    };
    shown.map(one).collect()
}

fn row(group: &Group, row: &Row, names: &[String], time: Duration, extent: Extent) -> Value {
    let keys = group.key_names.iter().zip(&row.keys);
    let mut all = Map::new();
    for (name, value) in keys {
        all.insert(name.clone(), key(value));
        if let Key::Stack(chain) = value {
            all.insert(format!("{name}_end"), json!(stacks::end(chain.end)));
        }
    }
    let names_of = Names::from(group);
    let measures = group.measure_names.iter().zip(&row.measures).enumerate();
    let measures = measures.map(|(number, (name, measure))| {
        self::measure(name, measure, names_of.is_time(number), extent)
    });
    json!({
        "event": names.get(row.event),
        "keys": all,
        "calls": row.calls,
        "calls_per_second": model::per_second(row.calls, time),
        "error": row.error,
        "unreadable": row.unreadable,
        "measures": measures.collect::<Vec<_>>(),
    })
}

/// Formats a key's value; null if it could not be read.
fn key(value: &Key) -> Value {
    match value {
        Key::Number(value) => number(*value),
        Key::Hexadecimal(value) => json!(value),
        Key::Character(byte) => json!(characters(&[*byte])),
        Key::Descriptor(number, None) => json!(number),
        Key::Descriptor(number, Some((name, certainty))) => {
            let name = Some((name.as_str(), *certainty));
            let number = *number;
            json!(Descriptor { number, name }.to_string())
        }
        Key::Name(name) => json!(name),
        Key::Function(address, None) => json!(format!("{address:#x}")),
        Key::Function(_, Some((name, offset))) => json!(format!("{name}+{offset:#x}")),
        Key::Address(address) => json!(address.to_string()),
        Key::Text(text) => json!(characters(text)),
        Key::Stack(chain) => stacks::json(chain),
        Key::Unreadable => Value::Null,
    }
}

/// Returns a string in which bytes that are not UTF-8 are written as `\xff`, so that different keys
/// stay different.
fn characters(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        shown.push_str(chunk.valid());
        for byte in chunk.invalid() {
            shown += &format!("\\x{byte:02x}");
        }
    }
    shown
}

fn measure(name: &str, measure: &Measure, time: bool, extent: Extent) -> Value {
    let (function, field) = parts(name);
    let mut value = json!({
        "function": function,
        "field": field,
    });
    if time {
        value["unit"] = json!("ns");
    }
    match measure {
        Measure::Sum(sum) => value["value"] = number(sum.value()),
        Measure::Minimum(least_or_largest) | Measure::Maximum(least_or_largest) => {
            value["value"] = json!(least_or_largest.map(number));
            if extent == Extent::SinceStart {
                value["since_start"] = json!(true);
            }
        }
        Measure::Average { sum, count } => {
            value["value"] = json!(measure.mean());
            value["sum"] = number(sum.value());
            value["count"] = json!(count);
        }
        Measure::Histogram(histogram) => put_histogram(&mut value, histogram, time),
    }
    value
}

/// Adds the numbers of a histogram. The names of times end in their unit.
fn put_histogram(value: &mut Value, histogram: &Histogram, time: bool) {
    let name = |name: &str| match time {
        true => format!("{}_ns", name.replace('.', "_")),
        false => name.replace('.', "_"),
    };
    let exact = histogram.is_exact();
    value["count"] = json!(u64::try_from(histogram.total()).unwrap_or(u64::MAX));
    value[name("avg")] = json!(histogram.mean());
    if time {
        value[name("min")] = json!(histogram.least().map(|(least, _)| number(least)));
    }
    for (percentile, permille) in PERCENTILES {
        let bucket = histogram.quantile(permille);
        value[name(percentile)] = json!(bucket.map(|bucket| number(bucket.high)));
    }
    let largest = histogram.largest();
    value[name("max")] = json!(largest.map(|(largest, _)| number(largest)));
    value[name("total")] = match (histogram.exact, largest) {
        (_, None) => Value::Null,
        (Some(exact), _) => number(exact.sum),
        (None, _) => json!(histogram.sum()),
    };
    value["exact"] = json!(exact);
    let buckets = histogram.buckets.iter().map(|bucket| {
        json!({
            "low": number(bucket.low),
            "high": number(bucket.high),
            "count": bucket.count,
        })
    });
    value["buckets"] = buckets.collect();
}

/// Formats an exact number; one that does not fit 64 bits, possible only for sums, becomes a
/// string.
fn number(value: i128) -> Value {
    match (u64::try_from(value), i64::try_from(value)) {
        (Ok(value), _) => json!(value),
        (_, Ok(value)) => json!(value),
        _ => json!(value.to_string()),
    }
}

/// Formats JSON on one line, with characters that act on a terminal escaped, as in reports.
pub fn line(value: &Value) -> String {
    let mut out = Vec::new();
    // Neither writing to a vector nor serializing keys, which are strings, can fail.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut out, Harmless));
    out.push(b'\n');
    String::from_utf8_lossy(&out).into_owned()
}

struct Harmless;

impl Formatter for Harmless {
    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut escaped = Vec::new();
        put_json(&mut escaped, fragment.as_bytes());
        writer.write_all(&escaped)
    }
}

#[cfg(test)]
mod tests;
