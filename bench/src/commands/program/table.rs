//! Table of the results.

use super::Measured;
use capriole_bench::spread::Spread;
use capriole_text::units;
use std::fmt::Write as _;

/// A row.
pub enum Line {
    /// The columns.
    Numbers([String; 8]),
    /// A sentence in place of the columns.
    Said(String),
}

const HEAD: [&str; 8] = [
    "row",
    "wall ms (min .. max)",
    "x untraced",
    "cpu ms",
    "x untraced",
    "functions",
    "events",
    "lost",
];

fn milliseconds(spread: Spread) -> String {
    format!(
        "{:.1} ({:.1} .. {:.1})",
        spread.median / 1e6,
        spread.min / 1e6,
        spread.max / 1e6
    )
}

impl Line {
    /// A row that was measured.
    pub fn of(row: &Measured) -> Line {
        let count = |number: Option<u64>| number.map_or("-".to_owned(), units::count);
        Line::Numbers([
            row.name.clone(),
            milliseconds(row.wall_ns),
            format!("{:.2}", row.times),
            format!("{:.1}", row.cpu_ns.median / 1e6),
            format!("{:.2}", row.cpu_times),
            count(row.probed),
            count(row.events),
            count(row.lost),
        ])
    }

    /// A row that was not measured: `skipped` or `failed`.
    pub fn said(name: &str, what: &str, why: &str) -> Line {
        Line::Said(format!("{name}  {what}: {why}"))
    }
}

/// Formats the table.
pub fn of(lines: &[Line]) -> String {
    let head = HEAD.map(str::to_owned);
    let numbers = || {
        lines.iter().filter_map(|line| match line {
            Line::Numbers(cells) => Some(cells),
            Line::Said(_) => None,
        })
    };
    let width = |column: usize| {
        let all = numbers().chain([&head]);
        all.map(|cells| cells[column].len()).max().unwrap_or(0)
    };
    let widths: [usize; 8] = std::array::from_fn(width);
    let row = |cells: &[String; 8]| {
        let mut text = format!("{:<1$}", cells[0], widths[0]);
        for (cell, width) in cells.iter().zip(widths).skip(1) {
            // Writing to a String cannot fail.
            let _ = write!(text, "  {cell:>width$}");
        }
        text + "\n"
    };
    let mut text = String::new();
    if numbers().next().is_some() {
        text += &row(&head);
    }
    for line in lines {
        match line {
            Line::Numbers(cells) => text += &row(cells),
            Line::Said(said) => text += &format!("{said}\n"),
        }
    }
    text
}
