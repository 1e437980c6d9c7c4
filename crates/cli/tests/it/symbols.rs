//! Addresses that are shown as functions and variables: those of the program and its libraries have their
//! names, probed or not.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, told};
use crate::traces::{events, record, scratch, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

const EVENT: &str = ":symbols_take address=$arg1:symbol";

#[test]
fn reports_name_functions_without_probes() {
    let Some(program) = build(Compiler::Gcc, "symbols.c", &[]) else {
        return;
    };
    let directory = scratch();
    let own = directory.path().join("symbols");
    fs::copy(&program, &own).expect("a copy");
    let trace = directory.path().join("trace");
    let output = record(&trace, &["-e", EVENT, "--", text(&own), "2"]);
    assert!(output.status.success(), "{}", told(&output));
    let addresses = |events: &[Value]| -> Vec<String> {
        let address = |event: &Value| event["arguments"]["address"].as_str().map(str::to_owned);
        events
            .iter()
            .map(|event| address(event).expect("text"))
            .collect()
    };
    let named = addresses(&events(&trace));
    assert_eq!(named.len(), 8);
    for round in named.chunks(4) {
        assert_eq!(round[..2], ["symbols_first+0x0", "symbols_first+0x1"]);
        // The C library has several names for it.
        assert!(round[2].ends_with("puts+0x0"), "{round:?}");
        assert_eq!(round[3], "symbols_data+0x0");
    }
    let output = capriole(&["report", text(&trace)]);
    let report = told(&output);
    assert_eq!(
        report.matches(" address=symbols_first+0x1\n").count(),
        2,
        "{report}"
    );

    // Another file in its place has other functions. They are not asked for.
    let other = build(Compiler::Gcc, "rows.c", &[]).expect("it was built");
    fs::remove_file(&own).expect("it is there");
    fs::copy(other, &own).expect("a copy");
    assert_eq!(addresses(&events(&trace)), named);
}

#[test]
fn keys_name_functions() {
    let Some(program) = build(Compiler::Gcc, "symbols.c", &[]) else {
        return;
    };
    let event = ":symbols_take by address=$arg1:symbol";
    let output = capriole(&["stat", "-e", event, "--", text(&program)]);
    let table = told(&output);
    let names = [
        "symbols_first+0x0",
        "symbols_first+0x1",
        "puts+0x0",
        "symbols_data+0x0",
    ];
    for name in names {
        let ends = |line: &&str| line.starts_with("   10 ") && line.ends_with(name);
        assert_eq!(table.lines().filter(ends).count(), 1, "{name}: {table}");
    }
    let output = capriole(&["stat", "--json", "-e", event, "--", text(&program)]);
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let said: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
    let rows = said["groups"][0]["rows"].as_array().expect("rows");
    let rows: BTreeMap<&str, u64> = rows
        .iter()
        .map(|row| {
            let key = row["keys"]["address"].as_str().expect("text");
            (key, row["calls"].as_u64().expect("a number"))
        })
        .collect();
    assert_eq!(rows.len(), 4, "{said}");
    assert_eq!(rows["symbols_first+0x0"], 10, "{said}");

    // The rows of intervals add up to those of the whole.
    let running = Running::start(&program, &["1000000", "1000"]);
    let pid = running.pid.to_string();
    let words = [
        "stat",
        "--json",
        "-e",
        event,
        "-p",
        &pid,
        "--interval",
        "100ms",
    ];
    let output = capriole(&[&words[..], &["--duration", "2s"]].concat());
    assert!(output.status.success(), "{}", told(&output));
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let (whole, intervals) = lines.split_last().expect("lines");
    let calls = |of: &Value| {
        let rows = of["groups"][0]["rows"].as_array().expect("rows");
        let row = rows
            .iter()
            .find(|row| row["keys"]["address"] == "symbols_first+0x0");
        row.map_or(0, |row| row["calls"].as_u64().expect("a number"))
    };
    assert!(intervals.len() >= 2, "{lines:?}");
    let sum: u64 = intervals.iter().map(calls).sum();
    assert!(sum > 0 && sum <= calls(whole), "{sum}: {whole}");
}
