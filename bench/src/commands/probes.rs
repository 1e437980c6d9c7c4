//! `capriole bench probes`: probes that a program puts into itself, by a jump, by a breakpoint, and
//! as they were in the first implementation of kprobes; beside other tools.

use super::hit::{is_named, measured, options};
use super::{Arguments, Outcome, progress};
use capriole_bench::probing::latency::{self, LOADS, Latency, Many, STEPS, Timed};
use capriole_bench::probing::{CROWD, Programs, published, rows};
use capriole_bench::{Row, RowResult, Trouble, default_rows, peer_rows, run_hit, table_with};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;

/// Rows of `bench hit` that are measured beside.
const BESIDE: [&str; 6] = [
    "kernel.uprobe",
    "kernel.uretprobe",
    "kernel.uprobe_bpf",
    "kernel.uretprobe_bpf",
    "gdb.fast_tracepoint",
    "frida",
];
/// Programs in which very many probes are registered.
const PROGRAMS: usize = 3;

fn all_rows(programs: &Rc<RefCell<Programs>>) -> Vec<Row> {
    let others = default_rows().into_iter().chain(peer_rows());
    let beside = others.filter(|row| BESIDE.contains(&row.name()));
    rows(programs).into_iter().chain(beside).collect()
}

/// True if the row is among those requested; `bare` and the floor always are.
fn wanted(row: &str, names: &[String]) -> bool {
    names.is_empty()
        || ["bare", "floor.record"].contains(&row)
        || names.iter().any(|name| is_named(row, name))
}

/// Returns the results for `--json`: those of `bench hit`, with `times_floor`, and with
/// `published_ns` where there is such a number.
fn json(results: &[RowResult]) -> Vec<Value> {
    let measured = || results.iter().filter_map(RowResult::measured);
    let floor = measured().find(|row| row.name == "floor.record");
    let floor = floor.map(|row| row.over_bare_ns).filter(|ns| *ns > 0.0);
    let one = |result: &RowResult| {
        let mut value = json!(result);
        if let Some(row) = result.measured() {
            value["times_floor"] = json!(floor.map(|floor| row.over_bare_ns / floor));
            value["published_ns"] = json!(published(&row.name));
        }
        value
    };
    results.iter().map(one).collect()
}

/// Formats a time that is given in nanoseconds.
fn time(ns: f64) -> String {
    match ns {
        0.0..1e6 => format!("{:.1} us", ns / 1e3),
        1e6..1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Rows other than hits, for both outputs.
#[derive(Default)]
struct Others {
    rows: Vec<Value>,
    text: String,
    failed: bool,
}

impl Others {
    fn add<T: serde::Serialize>(&mut self, row: Timed<T>, line: impl Fn(&T) -> String) {
        // Writing to a String cannot fail.
        let (line, value) = match row {
            Ok(row) => (line(&row), json!(row)),
            Err((name, Trouble::Missing(why))) => (
                format!("{name:<26}  skipped: {why}"),
                json!({"name": name, "skipped": why}),
            ),
            Err((name, Trouble::Wrong(why))) => {
                self.failed = true;
                (
                    format!("{name:<26}  failed: {why}"),
                    json!({"name": name, "failed": why}),
                )
            }
        };
        let _ = writeln!(self.text, "{line}");
        self.rows.push(value);
    }
}

fn latency_line(row: &Latency) -> String {
    let (p50, p99) = (time(row.p50_ns), time(row.p99_ns));
    format!("{:<26}  {p50:>9}  {p99:>9}  {:>7}", row.name, row.samples)
}

fn many_lines(row: &Many) -> String {
    let mut text = format!(
        "{:<26}  {} of {} probes are jumps\n",
        row.name, row.optimised, row.probes
    );
    for (what, spread) in [
        ("first registration", &row.first_ns),
        ("register", &row.register_ns),
        ("optimise", &row.optimise_ns),
        ("unregister", &row.unregister_ns),
    ] {
        let [median, min, max] = [spread.median, spread.min, spread.max].map(time);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {what:<24}  {median:>9}  ({min} .. {max})");
    }
    text.trim_end().to_owned()
}

/// Measures what is no hit.
fn others(
    arguments: &Arguments,
    programs: &Rc<RefCell<Programs>>,
    wanted: &dyn Fn(&str) -> bool,
) -> anyhow::Result<Others> {
    let mut others = Others::default();
    let samples = (arguments.round_ms.unwrap_or(25) * 8).clamp(10, 200) as u32;
    let bar = progress(LOADS.len() as u64 + 1)?;
    let title = format!(
        "{:<26}  {:>9}  {:>9}  {:>7}\n",
        "one probe", "p50", "p99", "samples"
    );
    for load in LOADS {
        bar.set_message(format!("latency, {}", load.name));
        if STEPS.iter().any(|step| wanted(&latency::name(step, load))) {
            for row in latency::measure(programs, load, samples) {
                let name = match &row {
                    Ok(row) => &row.name,
                    Err((name, _)) => name,
                };
                if wanted(name) {
                    others.add(row, latency_line);
                }
            }
        }
        bar.inc(1);
        super::go_on()?;
    }
    if !others.rows.is_empty() {
        others.text.insert_str(0, &title);
    }
    let probes = CROWD.min(arguments.sites as usize);
    if wanted("many") {
        bar.set_message("many");
        let row = latency::measure_many(programs, probes, PROGRAMS);
        others.add(row, many_lines);
    }
    bar.finish_and_clear();
    Ok(others)
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let cpu = arguments.cpu.or_else(capriole_bench::last_allowed_cpu);
    let programs = Programs::new(cpu);
    let mut rows = all_rows(&programs);
    let mut names: Vec<String> = rows.iter().map(|row| row.name().to_owned()).collect();
    names.extend(
        LOADS
            .iter()
            .flat_map(|load| STEPS.map(|step| latency::name(step, *load))),
    );
    names.push("many".to_owned());
    for name in &arguments.rows {
        anyhow::ensure!(
            names.iter().any(|row| is_named(row, name)),
            "no row of `bench probes` is named {name}, or begins so"
        );
    }
    rows.retain(|row| wanted(row.name(), &arguments.rows));
    let options = options(arguments, "`bench probes` wants at least 7 rounds")?;
    let results = measured(&options, rows.len(), |command, progress| {
        run_hit(command, rows, &options, progress)
    })?;
    let others = others(arguments, &programs, &|row| wanted(row, &arguments.rows))?;
    let column = |name: &str| published(name).map_or(String::new(), |ns| format!("{ns:.0}"));
    let mut text = table_with(&results, "kprobes", column);
    if !others.text.is_empty() {
        let _ = write!(text, "\n{}", others.text);
    }
    let failed = |result: &RowResult| matches!(result, RowResult::Failed { .. });
    let mut json = json(&results);
    json.extend(others.rows);
    Ok(Outcome {
        text,
        failed: others.failed || results.iter().any(failed),
        rows: Value::Array(json),
    })
}
