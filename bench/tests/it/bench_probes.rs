//! `capriole bench probes`: every row is there, measured or with a reason, and its handlers were
//! called once for each call. The tests check that numbers are possible, never how large they are.

use crate::{command, kernel_probes};
use capriole_testkit::files::scratch;
use capriole_testkit::target::told;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

/// Rows that the program measures, and whether their hits are counted.
const OWN: [(&str, bool); 26] = [
    ("bare", false),
    ("floor.call", false),
    ("floor.record", true),
    ("step.empty", false),
    ("step.record", true),
    ("step.return.empty", false),
    ("step.return.record", true),
    ("boosted.empty", false),
    ("boosted.record", true),
    ("boosted.argument.empty", false),
    ("boosted.argument.record", true),
    ("boosted.return.exits.empty", false),
    ("boosted.return.exits.record", true),
    ("boosted.return.address.empty", false),
    ("boosted.return.address.record", true),
    ("optimised.empty", false),
    ("optimised.record", true),
    ("optimised.argument.empty", false),
    ("optimised.argument.record", true),
    ("optimised.return.exits.empty", false),
    ("optimised.return.exits.record", true),
    ("optimised.return.address.empty", false),
    ("optimised.return.address.record", true),
    ("replacement.empty", false),
    ("replacement.record", true),
    ("written.record", true),
];
const BESIDE: [&str; 6] = [
    "kernel.uprobe",
    "kernel.uretprobe",
    "kernel.uprobe_bpf",
    "kernel.uretprobe_bpf",
    "gdb.fast_tracepoint",
    "frida",
];
const SHORT: [&str; 5] = ["probes", "--rounds", "7", "--round-ms", "1"];

/// Runs it with `more` arguments, with a directory for its files, which is empty afterwards.
fn run(more: &[&str], path: Option<&Path>) -> Output {
    let files = scratch();
    let mut command = command(&[&SHORT, more].concat());
    command.env("TMPDIR", files.path());
    command.env("CAPRIOLE_PEERS", "/nowhere");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("capriole starts");
    let left: Vec<_> = fs::read_dir(files.path()).expect("list").collect();
    assert!(left.is_empty(), "{left:?}");
    output
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", told(output));
    serde_json::from_slice(&output.stdout).expect("a list")
}

fn names(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["name"].as_str()).collect()
}

fn number(value: &Value) -> f64 {
    let number = value.as_f64();
    number.unwrap_or_else(|| panic!("{value} is no number"))
}

/// True, with a message, if the row has only a reason why it was not measured.
fn is_skipped(row: &Value) -> bool {
    let Some(why) = row["skipped"].as_str() else {
        return false;
    };
    println!("skipped: {}: {why}", row["name"]);
    let keys = row.as_object().expect("an object").keys();
    assert!(!why.is_empty() && keys.eq(["name", "skipped"]), "{row}");
    true
}

/// True if the library and its helper are there.
fn is_built() -> bool {
    let command = Path::new(env!("CARGO_BIN_EXE_capriole-bench")).with_file_name("capriole");
    if !command.exists() {
        let path = command.display();
        println!("skipped: {path} is not built (cargo build -p capriole-cli)");
    }
    command.exists()
}

fn assert_hit(row: &Value, counted: Option<bool>) {
    let keys = row.as_object().expect("an object").keys();
    let expected = [
        "name",
        "ns",
        "over_bare_ns",
        "p50_ns",
        "p99_ns",
        "threads",
        "hits",
        "calls",
        "min_ns",
        "q1_ns",
        "q3_ns",
        "max_ns",
        "rounds",
        "times_floor",
        "published_ns",
    ];
    assert!(keys.eq(expected), "{row}");
    for ascending in [&["p50_ns", "p99_ns"][..], &["min_ns", "ns", "max_ns"]] {
        let numbers: Vec<f64> = ascending.iter().map(|name| number(&row[*name])).collect();
        assert!(numbers[0] >= 0.0 && numbers.is_sorted(), "{row}");
    }
    assert_eq!(row["rounds"], 7, "{row}");
    assert!(number(&row["calls"]) > 0.0, "{row}");
    match counted {
        Some(true) => assert_eq!(row["hits"], row["calls"], "{row}"),
        Some(false) => assert!(row["hits"].is_null(), "{row}"),
        None => assert!(
            row["hits"].is_null() || row["hits"] == row["calls"],
            "{row}"
        ),
    }
}

#[test]
fn every_row_is_measured_and_its_handlers_count_right() {
    let _turn = kernel_probes();
    if !is_built() {
        return;
    }
    let rows = rows(&run(&["--json", "--sites", "150"], None));
    let own = OWN.iter().map(|(name, _)| *name);
    let mut expected: Vec<String> = own.chain(BESIDE).map(str::to_owned).collect();
    for load in ["idle", "busy", "hot"] {
        for step in ["register", "optimise", "unregister"] {
            expected.push(format!("latency.{step}.{load}"));
        }
    }
    expected.push("many.150".to_owned());
    assert_eq!(names(&rows), expected);
    for (row, (_, counted)) in rows.iter().zip(OWN) {
        if !is_skipped(row) {
            assert_hit(row, Some(counted));
        }
    }
    for row in &rows[OWN.len()..OWN.len() + BESIDE.len()] {
        if !is_skipped(row) {
            assert_hit(row, None);
        }
    }
    let published = rows.iter().filter(|row| row["published_ns"].is_number());
    let published: Vec<_> = published.collect();
    assert!(
        published.len() == 6 || is_skipped(&rows[0]),
        "{published:?}"
    );
    let others = &rows[OWN.len() + BESIDE.len()..];
    let (many, latencies) = others.split_last().expect("rows");
    for row in latencies.iter().filter(|row| !is_skipped(row)) {
        let keys = row.as_object().expect("an object").keys();
        let expected = ["name", "p50_ns", "p99_ns", "samples", "threads"];
        assert!(keys.eq(expected), "{row}");
        let [p50, p99] = ["p50_ns", "p99_ns"].map(|name| number(&row[name]));
        assert!(0.0 < p50 && p50 <= p99, "{row}");
        let idle = row["name"].as_str().is_some_and(|n| n.ends_with("idle"));
        assert_eq!(row["threads"], if idle { 0 } else { 8 }, "{row}");
        assert_eq!(row["samples"], 10, "{row}");
    }
    if is_skipped(many) {
        return;
    }
    assert_eq!(
        (&many["probes"], &many["optimised"]),
        (&150.into(), &150.into())
    );
    assert_eq!(many["rounds"], 3, "{many}");
    for what in ["first_ns", "register_ns", "optimise_ns", "unregister_ns"] {
        let [min, median, max] = ["min", "median", "max"].map(|part| number(&many[what][part]));
        assert!(0.0 < min && min <= median && median <= max, "{many}");
    }
}

#[test]
fn some_rows_are_chosen_and_shown_as_a_table() {
    if !is_built() {
        return;
    }
    let output = run(&["--rows", "boosted.return.exits,replacement"], None);
    assert!(output.status.success(), "{}", told(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    let firsts: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let expected = [
        "row",
        "bare",
        "floor.record",
        "boosted.return.exits.empty",
        "boosted.return.exits.record",
        "replacement.empty",
        "replacement.record",
    ];
    assert_eq!(firsts, expected, "{text}");
    assert!(
        text.lines()
            .next()
            .is_some_and(|line| line.ends_with("kprobes")),
        "{text}"
    );
}

#[test]
fn without_a_compiler_all_rows_of_the_program_are_skipped() {
    let path = scratch();
    let rows = rows(&run(&["--json", "--rows", "step,many"], Some(path.path())));
    let expected = [
        "bare",
        "floor.record",
        "step.empty",
        "step.record",
        "step.return.empty",
        "step.return.record",
        "many.10000",
    ];
    assert_eq!(names(&rows), expected);
    assert!(rows.iter().all(is_skipped), "{rows:?}");
}

#[test]
fn a_row_that_does_not_exist_is_an_error() {
    let output = run(&["--rows", "boosted.nothing"], None);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("no row of `bench probes` is named boosted.nothing"),
        "{said}"
    );
}
