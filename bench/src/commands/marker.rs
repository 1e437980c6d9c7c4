//! `capriole bench marker`: the cost of static markers, off and on, and the bytes that they add to
//! a program.

mod probes;

use super::hit::SharedKnown;
use super::{Arguments, Outcome, hit};
use capriole_bench::marker::sizes::{Size, sizes};
use capriole_bench::{MarkerRow, Subject, marker_rows, run_marker};
use probes::{Kernel, Kind, Ours};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Returns all timed rows: loops with markers that are off, loops with markers that are on, the
/// kernel's, and those of LTTng and of a real program.
fn all_rows() -> Vec<MarkerRow> {
    let on = |name: &str, run: &'static str, probe| {
        MarkerRow::plain(name, "marker.empty", Subject::Loops, run).with(probe)
    };
    let mut rows = marker_rows();
    let at = rows.iter().position(|row| row.name() == "lttng_ust.off");
    let at = at.unwrap_or(rows.len());
    let known = SharedKnown::default();
    let ours_at = |marker: &str, kind| Ours::at(&known, marker, kind);
    let record2 = |marker: &str| ours_at(marker, Kind::Record(2));
    let ours = [
        on(
            "marker.on.nothing",
            "nothing",
            ours_at("bench:nothing", Kind::Nothing),
        ),
        on(
            "marker.on.count",
            "count",
            ours_at("bench:count", Kind::Count),
        ),
        on("marker.on.record2", "record2", record2("bench:record2")),
        on(
            "marker.on.format2",
            "format2",
            ours_at("bench:format2", Kind::Record(2)),
        ),
        on(
            "marker.on.format6",
            "format6",
            ours_at("bench:format6", Kind::Record(6)),
        ),
        on(
            "marker.on.constant",
            "constant",
            ours_at("bench:constant", Kind::Record(2)),
        ),
        on(
            "marker.on.guarded_record2",
            "guarded_on",
            record2("bench:guarded_on"),
        ),
        on("sdt.on.record2", "sdt", record2("bench:sdt")),
        on("kernel.uprobe.marker", "uprobe", Kernel::at("bench:uprobe")),
        on(
            "kernel.uprobe.sdt",
            "sdt_uprobe",
            Kernel::at("bench:sdt_uprobe"),
        ),
    ];
    rows.splice(at..at, ours);
    let known = SharedKnown::default();
    let real = |name: &str, kind| {
        MarkerRow::plain(name, "minigzip", Subject::MarkedMinigzip, "blocks").with(Ours::at(
            &known,
            "minigzip:block",
            kind,
        ))
    };
    rows.push(real("minigzip.on.count", Kind::Count));
    rows.push(real("minigzip.on.record2", Kind::Record(2)));
    rows
}

/// Selects the rows requested, those that they are compared with, the bare call and the floor.
fn chosen(rows: Vec<MarkerRow>, names: &[String]) -> Vec<MarkerRow> {
    if names.is_empty() {
        return rows;
    }
    let asked = |row: &MarkerRow| names.iter().any(|name| hit::is_named(row.name(), name));
    let asked_for = rows.iter().filter(|row| asked(row));
    let mut kept: HashSet<String> = asked_for
        .flat_map(|row| [row.name().to_owned(), row.over().to_owned()])
        .collect();
    kept.extend(["bare", "floor.record"].map(str::to_owned));
    rows.into_iter()
        .filter(|row| kept.contains(row.name()))
        .collect()
}

/// Formats the sizes as a table.
fn size_table(all: &[Result<Size, (String, String)>]) -> String {
    let mut text = format!(
        "{:<18}  {:>9}  {:>9}  {:>10}  {:>10}  {:>10}\n",
        "adds, bytes", "hot path", "reads", "other code", "data", "notes"
    );
    for size in all {
        // Writing to a String cannot fail.
        let _ = match size {
            Ok(size) => writeln!(
                text,
                "{:<18}  {:>9}  {:>9}  {:>10}  {:>10}  {:>10}",
                size.name,
                size.hot_bytes,
                size.hot_reads,
                size.cold_bytes,
                size.data_bytes,
                size.note_bytes
            ),
            Err((name, why)) => writeln!(text, "{name:<18}  skipped: {why}"),
        };
    }
    text
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let rows = all_rows();
    for name in &arguments.rows {
        anyhow::ensure!(
            name == "size" || rows.iter().any(|row| hit::is_named(row.name(), name)),
            "no row of `bench marker` is named {name}, or begins so"
        );
    }
    let rows = chosen(rows, &arguments.rows);
    let options = hit::options(arguments, "`bench marker` wants at least 7 rounds")?;
    let results = hit::measured(&options, rows.len(), |command, progress| {
        run_marker(command, rows, &options, progress)
    })?;
    let mut text = results.table();
    let mut rows = results.json();
    if arguments.rows.is_empty() || arguments.rows.iter().any(|name| name == "size") {
        let sizes = sizes();
        let _ = write!(text, "\n{}", size_table(&sizes));
        rows.extend(sizes.iter().map(|size| match size {
            Ok(size) => json!(size),
            Err((name, why)) => json!({"name": name, "skipped": why}),
        }));
    }
    Ok(Outcome {
        text,
        failed: results.failed(),
        rows: Value::Array(rows),
    })
}
