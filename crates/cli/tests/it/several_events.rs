//! Several events at one function: rows and summaries tell them apart.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, told};
use crate::traces::{scratch, text};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "rows.c", &[])
}

/// Runs `stat` with these words and the program; returns its table.
fn stat(program: &Path, words: &[&str]) -> String {
    let output = capriole(&[&["stat"], words, &["--", text(program)]].concat());
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let (line, table) = said.split_once('\n').expect("lines");
    assert_eq!(line, "ok rows=40");
    table.to_owned()
}

/// Returns the first and the last column of a table: calls and event.
fn rows(table: &str) -> Vec<(u64, String)> {
    let lines = table.lines().skip(1).take_while(|line| !line.is_empty());
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let calls = words.next().expect("calls").parse().expect("a number");
        words.next().expect("a rate");
        (calls, words.collect::<Vec<_>>().join(" "))
    };
    lines.map(row).collect()
}

#[test]
fn events_of_one_function_have_different_rows() {
    let Some(program) = program() else { return };
    let filters = [
        "-e",
        ":halved if $arg1 > 3",
        "-e",
        ":halved if $arg1 <= 3",
        "-e",
        ":halved",
    ];
    let expected = [
        (40, "halved"),
        (36, "halved if $arg1 > 3"),
        (4, "halved if $arg1 <= 3"),
    ];
    let expected = expected.map(|(calls, event)| (calls, event.to_owned()));
    assert_eq!(rows(&stat(&program, &filters)), expected);

    // What differs is not only the filter.
    let events = [
        "-e",
        ":halved if $arg1 > 3",
        "-e",
        ":halved sum(x=$arg1:s32) if $arg1 > 35",
    ];
    let table = stat(&program, &events);
    assert!(
        table.contains("  halved [:halved if $arg1 > 3]\n"),
        "{table}"
    );
    assert!(
        table.contains("  halved [:halved sum(x=$arg1:s32) if $arg1 > 35]\n"),
        "{table}"
    );
    let keys = [
        "-e",
        ":halved by x=$arg1:s32",
        "-e",
        ":halved by odd=$arg1:b1@0/32",
    ];
    let table = stat(&program, &keys);
    assert!(
        table.contains("halved [:halved by x=$arg1:s32] by x\n"),
        "{table}"
    );
    assert!(
        table.contains("halved [:halved by odd=$arg1:b1@0/32] by odd\n"),
        "{table}"
    );

    // An `if` in a text begins no filter, and nothing stands behind names that differ.
    let texts = [
        "-e",
        r#":halved if comm != "a if b""#,
        "-e",
        r#":halved if comm == "a if b""#,
    ];
    let table = stat(&program, &texts);
    assert!(
        table.contains("  halved if comm != \"a if b\"\n"),
        "{table}"
    );
    let table = stat(&program, &["-e", ":halved if $arg1 > 3", "-e", ":taken"]);
    assert!(
        table.contains("  halved\n") && table.contains("  taken\n"),
        "{table}"
    );
}

#[test]
fn json_has_the_event_as_written() {
    let Some(program) = program() else { return };
    let events = [
        "-e",
        ":halved if $arg1 > 3",
        "-e",
        ":halved by x=$arg1:s32 if $arg1 <= 3",
    ];
    let table = stat(&program, &[&["--json"], &events[..]].concat());
    let said: Value = serde_json::from_str(&table).expect("JSON");
    let all = said["events"].as_array().expect("a list");
    let definition = |event: &Value| {
        let calls = event["calls"].as_u64().expect("a number");
        (
            event["definition"].as_str().expect("text").to_owned(),
            calls,
        )
    };
    let all: Vec<_> = all.iter().map(definition).collect();
    let second = ":halved by x=$arg1:s32 if $arg1 <= 3".to_owned();
    assert_eq!(
        all,
        [(":halved if $arg1 > 3".to_owned(), 36), (second.clone(), 4)]
    );
    assert_eq!(
        said["groups"][0]["definition"],
        Value::String(second),
        "{said}"
    );
}

#[test]
fn columns_are_named_as_shown_or_as_written() {
    let Some(program) = program() else { return };
    let event = [
        "-e",
        ":taken sum(request->size) max(request->size) by request->kind",
    ];
    let sorted = |column: &str| {
        let table = stat(&program, &[&event[..], &["--sort", column]].concat());
        let keys = table.lines().skip(2).map(|line| {
            let key = line.split_whitespace().last();
            key.expect("a key").to_owned()
        });
        keys.collect::<Vec<_>>()
    };
    for column in [
        "sum(request->size)",
        "sum(request_size)",
        "sum",
        "max(request->size) so far",
    ] {
        assert_eq!(sorted(column), ["1", "0"], "{column}");
    }
    for column in ["request->kind", "request_kind"] {
        assert_eq!(sorted(column), ["0", "1"], "{column}");
    }
    let words = [
        &["stat"],
        &event[..],
        &["--sort", "sum(request->kind)", "--", text(&program)],
    ];
    let output = capriole(&words.concat());
    assert!(!output.status.success(), "{}", told(&output));
    assert!(
        told(&output).contains("no table has a column `sum(request->kind)`"),
        "{}",
        told(&output)
    );
}

/// A function is counted once, whatever is probed in it.
#[test]
fn summaries_count_functions() {
    let Some(program) = program() else { return };
    let running = Running::start(&program, &["1000000", "1000"]);
    let pid = running.pid.to_string();
    let first = |words: &[&str]| {
        let of = ["-p", &pid, "--duration", "100ms"];
        let output = capriole(&[words, &of[..]].concat());
        assert!(output.status.success(), "{}", told(&output));
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        said.lines().next().expect("a line").to_owned()
    };
    let name = running.process().name().to_owned();
    let of = format!("of process {pid} ({name})");
    for (events, subjects) in [
        (&["-e", ":halved"][..], "1 function"),
        (
            &["-e", ":halved", "-e", "r :halved"],
            "1 function (2 events)",
        ),
        (&["-e", "latency(:halved)"], "1 function"),
        (
            &["-e", "latency(:halved)", "-e", "latency(:taken)"],
            "2 functions",
        ),
        (
            &["-e", ":halved", "-e", "r :halved", "-e", ":taken"],
            "2 functions (3 events)",
        ),
    ] {
        let told = first(&[&["stat"], events].concat());
        assert_eq!(told, format!("capriole: counting {subjects} {of}"));
    }
    let directory = scratch();
    let trace = directory.path().join("trace");
    let words = [
        "record",
        "-o",
        text(&trace),
        "-e",
        ":halved",
        "-e",
        "r :halved",
    ];
    assert_eq!(
        first(&words),
        format!("capriole: recording 1 function (2 events) {of}")
    );
}
