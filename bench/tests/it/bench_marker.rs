//! Short runs of `capriole bench marker`. Every row is there, measured or with a reason, and
//! nothing is left behind, even after an interrupt. The tests check that numbers are possible,
//! never how large they are.

use crate::command;
use capriole_testkit::files::scratch;
use capriole_testkit::target::told;
use capriole_testkit::waiting::until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const TIMED: [&str; 24] = [
    "bare",
    "floor.record",
    "marker.empty",
    "marker.empty.off",
    "marker.empty.guarded_off",
    "marker.memcpy",
    "marker.memcpy.off",
    "marker.memcpy.guarded_off",
    "marker.on.nothing",
    "marker.on.count",
    "marker.on.record2",
    "marker.on.format2",
    "marker.on.format6",
    "marker.on.constant",
    "marker.on.guarded_record2",
    "sdt.on.record2",
    "kernel.uprobe.marker",
    "kernel.uprobe.sdt",
    "lttng_ust.off",
    "lttng_ust.on",
    "minigzip",
    "minigzip.off",
    "minigzip.on.count",
    "minigzip.on.record2",
];
const SIZES: [&str; 4] = [
    "size.gcc.plain",
    "size.gcc.guarded",
    "size.clang.plain",
    "size.clang.guarded",
];
/// Rows whose probe counts its hits.
const COUNTED: [&str; 10] = [
    "marker.on.count",
    "marker.on.record2",
    "marker.on.format2",
    "marker.on.format6",
    "marker.on.constant",
    "marker.on.guarded_record2",
    "sdt.on.record2",
    "kernel.uprobe.marker",
    "kernel.uprobe.sdt",
    "minigzip.on.record2",
];
const SHORT: [&str; 4] = ["--rounds", "7", "--round-ms", "1"];

/// Returns the command with a directory for its files, which must be empty afterwards.
fn bench(arguments: &[&str], files: &Path) -> Command {
    let mut command = command(&[&["marker", "--json"], arguments].concat());
    command.env("TMPDIR", files);
    let heed_interrupts = || {
        // SAFETY: signal(2) may be called between fork and exec.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(())
    };
    // If a shell has put the tests into the background they ignore interrupts.
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(heed_interrupts) };
    command
}

/// Returns the row names and the rows by name, after checking that the command succeeded.
fn rows(output: &Output) -> (Vec<String>, BTreeMap<String, Value>) {
    assert!(output.status.success(), "{}", told(output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a list");
    let name = |row: &Value| row["name"].as_str().expect("a name").to_owned();
    let names = rows.iter().map(name).collect();
    (
        names,
        rows.into_iter().map(|row| (name(&row), row)).collect(),
    )
}

fn number(value: &Value) -> f64 {
    let number = value.as_f64();
    number.unwrap_or_else(|| panic!("{value} is no number"))
}

/// True if the row was skipped; prints the reason to standard output.
fn skipped(row: &Value) -> bool {
    let why = row["skipped"].as_str();
    if let Some(why) = why {
        assert!(!why.is_empty(), "{row}");
        println!("skipped: {}: {why}", row["name"]);
    }
    why.is_some()
}

fn assert_empty(files: &Path) {
    let left: Vec<_> = fs::read_dir(files).expect("list").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn every_row_is_there_or_says_why_not() {
    let files = scratch();
    // LTTng's daemon is used only with CAPRIOLE_BENCH_PEERS=1, as in the tests of `bench hit`.
    let peers = std::env::var_os("CAPRIOLE_BENCH_PEERS").is_some_and(|value| value == "1");
    let chosen = ["--rows", "marker,sdt,kernel,minigzip,size,lttng_ust.off"];
    let arguments = if peers { &[][..] } else { &chosen };
    let output = bench(&[&SHORT[..], arguments].concat(), files.path()).output();
    let (names, rows) = rows(&output.expect("capriole starts"));
    let expected = TIMED
        .iter()
        .filter(|name| peers || **name != "lttng_ust.on");
    let expected: Vec<&str> = expected.chain(&SIZES).copied().collect();
    assert_eq!(names, expected);
    for name in TIMED {
        let Some(row) = rows.get(name).filter(|row| !skipped(row)) else {
            continue;
        };
        for key in ["ns", "ticks", "min_ns", "max_ns"] {
            assert!(number(&row[key]) > 0.0, "{row}");
        }
        let ascending = ["min_ns", "ns", "max_ns"].map(|key| number(&row[key]));
        assert!(ascending.is_sorted(), "{row}");
        let over = row["over"].as_str().expect("another row");
        if let Some(ns) = rows.get(over).and_then(|over| over["ns"].as_f64()) {
            let difference = number(&row["ns"]) - ns;
            assert!(
                (difference - number(&row["over_bare_ns"])).abs() < 1e-6,
                "{row}"
            );
        }
        assert!(
            row["hits"].is_null() || row["hits"] == row["calls"],
            "{row}"
        );
        if COUNTED.contains(&name) {
            assert!(number(&row["hits"]) > 0.0, "{row}");
        }
    }
    for name in SIZES {
        let row = &rows[name];
        if skipped(row) {
            continue;
        }
        // A five-byte nop, and no data reads.
        let is = |key: &str| row[key].as_i64().expect("a number");
        if name.ends_with("plain") {
            assert_eq!(
                [is("hot_bytes"), is("hot_reads"), is("data_bytes")],
                [5, 0, 0],
                "{row}"
            );
        } else {
            assert_eq!([is("hot_reads"), is("data_bytes")], [1, 2], "{row}");
        }
        assert!(is("note_bytes") > 100, "{row}");
    }
    assert_empty(files.path());
}

#[test]
fn no_row_vanishes_without_a_compiler() {
    let (files, path) = (scratch(), scratch());
    let output = bench(&SHORT, files.path())
        .env("PATH", path.path())
        .output();
    let (names, rows) = rows(&output.expect("capriole starts"));
    assert_eq!(names, [&TIMED[..], &SIZES].concat());
    for name in [&TIMED[2..], &SIZES].concat() {
        let why = rows[name]["skipped"].as_str();
        let why = why.unwrap_or_else(|| panic!("{}", rows[name]));
        let tool = why.ends_with("is installed") || why.ends_with("is not installed");
        assert!(tool || why.contains("minigzip.c"), "{why}");
    }
    assert_empty(files.path());
}

#[test]
fn a_source_that_is_not_there_is_named() {
    let files = scratch();
    let arguments = [&SHORT[..], &["--rows", "minigzip"]].concat();
    let output = bench(&arguments, files.path())
        .env("CAPRIOLE_MINIGZIP", "/nowhere/minigzip.c")
        .output();
    let (names, rows) = rows(&output.expect("capriole starts"));
    // The rows they are compared with are included.
    assert_eq!(names, [&TIMED[..2], &TIMED[TIMED.len() - 4..]].concat());
    let why = rows["minigzip.off"]["skipped"].as_str().expect("no source");
    assert!(why.starts_with("/nowhere/minigzip.c is not there"), "{why}");
    let unknown = bench(&["--rows", "markers"], files.path()).output();
    let unknown = unknown.expect("capriole starts");
    assert_eq!(unknown.status.code(), Some(1), "{}", told(&unknown));
    let few = bench(&["--rounds", "3"], files.path()).output();
    assert_eq!(few.expect("capriole starts").status.code(), Some(2));
}

/// Returns the kernel's uprobe events that this process has created.
fn uprobes(pid: u32) -> String {
    let events = fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    let group = format!(":capriole_bench_{pid}_");
    events
        .lines()
        .filter(|line| line.contains(&group))
        .collect()
}

/// True if a moment has come in a benchmark whose files are in this directory.
type Moment = fn(&Path) -> bool;

/// True if the benchmark has begun to build its programs.
fn builds(files: &Path) -> bool {
    fs::read_dir(files).is_ok_and(|mut files| files.next().is_some())
}

/// True if it runs a program that it has built.
fn measures(files: &Path) -> bool {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let mut programs = processes.filter_map(|entry| fs::read_link(entry.path().join("exe")).ok());
    programs.any(|program| program.starts_with(files))
}

#[test]
fn interrupted_it_leaves_nothing() {
    // Build only the programs needed for the loops, so that there is soon something to interrupt.
    let moments: [(_, Moment); 2] = [(None, builds), (Some(["cc", "as", "ld"]), measures)];
    for (path, has_come) in moments {
        let (files, programs) = (scratch(), scratch());
        let arguments = ["--rounds", "1000", "--rows", "marker,kernel"];
        let mut bench = bench(&arguments, files.path());
        if let Some(tools) = path {
            let places = std::env::var_os("PATH").unwrap_or_default();
            for tool in tools {
                let mut all = std::env::split_paths(&places).map(|place| place.join(tool));
                if let Some(found) = all.find(|file| file.is_file()) {
                    symlink(found, programs.path().join(tool)).expect("a link");
                }
            }
            bench.env("PATH", programs.path());
        }
        let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bench.spawn().expect("capriole starts");
        until("the moment of the interrupt", || has_come(files.path()));
        assert!(child.try_wait().expect("a child").is_none(), "it is over");
        let asked = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(asked.expect("kill runs").success());
        until("its end", || child.try_wait().expect("a child").is_some());
        let pid = child.id();
        let output = child.wait_with_output().expect("it ended");
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("stopped by signal 2"), "{said}");
        assert_eq!(uprobes(pid), "");
        assert_empty(files.path());
    }
}
