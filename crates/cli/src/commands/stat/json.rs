//! Groups with keys or measures as JSON.

use super::model::{self, Group, Histogram, Measure, QUANTILES, Row, Value as Key};
use capriole_trace::report::put_json;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// Which values `min` and `max` are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// As all other measures.
    Same,
    /// All since the start, while other measures are of an interval.
    SinceStart,
}

/// The groups that are more than plain counting, with their rows, the most frequent one
/// first. `time` is that of the rates, `names` are those of the events.
pub fn groups(groups: &[Group], names: &[String], time: Duration, extent: Extent) -> Vec<Value> {
    let shown = groups.iter().filter(|group| !group.is_plain());
    let one = |group: &Group| {
        let rows = model::sorted(group.rows.iter());
        let rows = rows
            .iter()
            .map(|row| self::row(group, row, names, time, extent));
        json!({
            "events": group.events.iter().map(|event| names.get(*event)).collect::<Vec<_>>(),
            "keys": group.key_names,
            "capacity": group.capacity,
            "dropped": group.dropped,
            "rows": rows.collect::<Vec<_>>(),
        })
    };
    shown.map(one).collect()
}

fn row(group: &Group, row: &Row, names: &[String], time: Duration, extent: Extent) -> Value {
    let keys = group.key_names.iter().zip(&row.keys);
    let keys: Map<String, Value> = keys
        .map(|(name, value)| (name.clone(), key(value)))
        .collect();
    let measures = group.measure_names.iter().zip(&row.measures);
    let measures = measures.map(|(name, measure)| self::measure(name, measure, extent));
    json!({
        "event": names.get(row.event),
        "keys": keys,
        "calls": row.calls,
        "calls_per_second": model::per_second(row.calls, time),
        "unreadable": row.unreadable,
        "measures": measures.collect::<Vec<_>>(),
    })
}

/// A key's value; one that could not be read is null.
fn key(value: &Key) -> Value {
    match value {
        Key::Number(value) => number(*value),
        Key::Hexadecimal(value) => json!(value),
        Key::Character(byte) => json!(characters(&[*byte])),
        Key::Text(text) => json!(characters(text)),
        Key::Unreadable => Value::Null,
    }
}

/// A text; what is no character in UTF-8 is `\xff`, so that different texts stay different.
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

fn measure(name: &str, measure: &Measure, extent: Extent) -> Value {
    let (function, field) = name.split_once('(').unwrap_or((name, ""));
    let mut value = json!({
        "function": function,
        "field": field.strip_suffix(')').unwrap_or(field),
    });
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
        Measure::Histogram(histogram) => put_histogram(&mut value, histogram),
    }
    value
}

fn put_histogram(value: &mut Value, histogram: &Histogram) {
    value["count"] = json!(u64::try_from(histogram.total()).unwrap_or(u64::MAX));
    for (name, permille) in QUANTILES {
        let bucket = histogram.quantile(permille);
        value[name] = json!(bucket.map(|bucket| number(bucket.high)));
    }
    let buckets = histogram.buckets.iter().map(|bucket| {
        json!({
            "low": number(bucket.low),
            "high": number(bucket.high),
            "count": bucket.count,
        })
    });
    value["buckets"] = buckets.collect();
}

/// An exact number; one that has no place in 64 bits, which only sums can be, is a text.
fn number(value: i128) -> Value {
    match (u64::try_from(value), i64::try_from(value)) {
        (Ok(value), _) => json!(value),
        (_, Ok(value)) => json!(value),
        _ => json!(value.to_string()),
    }
}

/// JSON on one line, in which also what acts on a terminal is escaped, as in reports.
pub fn line(value: &Value) -> String {
    let mut out = Vec::new();
    // Writing to a vector does not fail, nor do a value's keys, which are texts.
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
