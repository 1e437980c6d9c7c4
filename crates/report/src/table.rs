//! Formats readable tables.

use super::tasks::printable;
use capriole_trace::Document;
use std::fmt;

/// Returns the first lines of a report as text, each a comment: the program, and remarks on the
/// trace.
pub(super) fn head(document: &Document) -> String {
    let mut text = format!(
        "# tracer: capriole\n#\n# program: {} (pid {})\n",
        printable(&document.target.command_line.join(" ")),
        document.target.pid
    );
    if document.lost_events > 0 {
        text += &format!("# LOST EVENTS: {}\n", document.lost_events);
    }
    for warning in &document.warnings {
        text += &format!("# warning: {}\n", printable(warning));
    }
    if !document.complete {
        text += "# warning: the recorder did not end this trace; its last moments may be missing\n";
    }
    text + "#\n"
}

/// Writes a table with columns as wide as needed; the name comes last and may be long.
pub(super) fn put_table(
    f: &mut fmt::Formatter<'_>,
    head: &[&str],
    name: &str,
    rows: impl Iterator<Item = (Vec<String>, String)>,
) -> fmt::Result {
    let head = head.iter().map(|text| text.to_string()).collect();
    let rows: Vec<(Vec<String>, String)> = std::iter::once((head, name.to_string()))
        .chain(rows)
        .collect();
    let width = |column: usize| rows.iter().map(|(cells, _)| cells[column].len()).max();
    let widths: Vec<usize> = (0..rows[0].0.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for (cells, name) in &rows {
        for (cell, width) in cells.iter().zip(&widths) {
            write!(f, "{cell:>width$}  ")?;
        }
        writeln!(f, "{}", printable(name))?;
    }
    Ok(())
}

/// Formats ns in microseconds: `12.345`.
pub(super) fn microseconds(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// Formats the time of calls in microseconds: `>=12.345` if it is a lower bound, `-` if it is not
/// known.
pub(super) fn time_of_calls(ns: Option<u64>, unended: u64) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns) if unended > 0 => format!(">={}", microseconds(ns)),
        Some(ns) => microseconds(ns),
    }
}

/// Returns the sum of the times of calls, in ns; `None` if no part of it is known, because all calls
/// are without a recorded end and an event in them.
pub(super) fn known(ns: u64, calls: u64, unended: u64) -> Option<u64> {
    (ns > 0 || calls > unended).then_some(ns)
}

/// Formats a count; 0 as `-`.
pub(super) fn unless_zero(count: u64) -> String {
    match count {
        0 => "-".to_string(),
        count => count.to_string(),
    }
}
