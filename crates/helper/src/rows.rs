//! The tables of aggregated events as text.

use capriole::aggregate::model::{Measure, Value};
use capriole::{Group, Session};
use std::fmt::Write;

/// Formats tables, one row a line: the site, the keys, the number of calls, the measures.
pub fn text(session: &Session, groups: &[Group]) -> String {
    let mut text = String::new();
    for group in groups {
        for row in &group.rows {
            text.push_str(session.name(row).as_deref().unwrap_or("-"));
            for (name, key) in group.key_names.iter().zip(&row.keys) {
                let _ = write!(text, " {name}={}", shown(key));
            }
            let _ = write!(text, " count={}", row.calls);
            for (name, measure) in group.measure_names.iter().zip(&row.measures) {
                let _ = write!(text, " {name}={}", measured(measure));
            }
            text.push('\n');
        }
    }
    text
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Hexadecimal(number) | Value::Function(number, _) => format!("{number:#x}"),
        Value::Character(byte) => format!("'{}'", byte.escape_ascii()),
        Value::Descriptor(fd, _) => fd.to_string(),
        Value::Name(name) => name.clone(),
        Value::Address(address) => address.to_string(),
        Value::Text(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Stack(chain) => {
            let addresses = chain.addresses.iter().map(|at| format!("{at:#x}"));
            addresses.collect::<Vec<_>>().join("<")
        }
        Value::Unreadable => "-".to_owned(),
    }
}

fn measured(measure: &Measure) -> String {
    match measure {
        Measure::Sum(total) => total.value().to_string(),
        Measure::Minimum(value) | Measure::Maximum(value) => {
            value.map_or("-".to_owned(), |value| value.to_string())
        }
        Measure::Average { .. } => measure
            .mean()
            .map_or("-".to_owned(), |mean| mean.to_string()),
        Measure::Histogram(histogram) => {
            let bucket = |b: &capriole::Bucket| format!("{}..{}:{}", b.low, b.high, b.count);
            let buckets: Vec<String> = histogram.buckets.iter().map(bucket).collect();
            format!("[{}]", buckets.join(" "))
        }
    }
}
