//! Table of one program's numbers, with a column for each number of sites.

use super::Measured;
use capriole_bench::spread::Spread;
use capriole_text::units;
use std::fmt::Write as _;

const LABEL: usize = 26;
const COLUMN: usize = 24;

/// Formats nanoseconds as milliseconds: `1.23 (1.20 .. 1.41)`.
fn milliseconds(spread: Spread) -> String {
    let ms = |ns: f64| match ns / 1e6 {
        ms if ms < 10.0 => format!("{ms:.2}"),
        ms if ms < 100.0 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    };
    format!(
        "{} ({} .. {})",
        ms(spread.median),
        ms(spread.min),
        ms(spread.max)
    )
}

type Cell = fn(&Measured) -> String;

const LINES: [(&str, Cell); 8] = [
    ("find and plan, ms", |m| milliseconds(m.plan_ns)),
    ("attach, ms", |m| milliseconds(m.attach_ns)),
    ("  all threads stand, ms", |m| {
        milliseconds(m.attach_standstill_ns)
    }),
    ("  one thread stands, ms", |m| {
        milliseconds(m.attach_one_thread_ns)
    }),
    ("detach, ms", |m| milliseconds(m.detach_ns)),
    ("  all threads stand, ms", |m| {
        milliseconds(m.detach_standstill_ns)
    }),
    ("bytes a probe", |m| format!("{:.0}", m.bytes_per_probe)),
    ("  with its code", |m| {
        format!("{:.0}", m.bytes_per_probe_with_code)
    }),
];

/// Formats the table; empty if there are no columns.
pub fn of(program: &str, columns: &[Measured]) -> String {
    let mut text = String::new();
    if columns.is_empty() {
        return text;
    }
    let heads = columns
        .iter()
        .map(|m| units::counted(m.probed as u64, "probe", "probes"));
    line(&mut text, program, heads);
    for (label, cell) in LINES {
        line(&mut text, label, columns.iter().map(cell));
    }
    for column in columns {
        let tactics = column.tactics.iter().map(|(t, n)| (*t, *n));
        // Writing to a String cannot fail.
        let _ = write!(text, "{}: {}", column.name, counts(tactics));
        if !column.refused.is_empty() {
            let refused = column.refused.iter().map(|(why, n)| (why.as_str(), *n));
            let _ = write!(text, "; no probe: {}", counts(refused));
        }
        text.push('\n');
    }
    text
}

/// Formats counts: `jump 3, region 1,200`.
fn counts<'a>(counts: impl Iterator<Item = (&'a str, usize)>) -> String {
    let counts = counts.map(|(what, count)| format!("{what} {}", units::count(count as u64)));
    counts.collect::<Vec<_>>().join(", ")
}

// Writing to a String cannot fail.
fn line(text: &mut String, label: &str, cells: impl Iterator<Item = String>) {
    let mut line = format!("{label:<LABEL$}");
    for cell in cells {
        let _ = write!(line, "{cell:>COLUMN$}");
    }
    let _ = writeln!(text, "{}", line.trim_end());
}
