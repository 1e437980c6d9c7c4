//! `report --compare BEFORE AFTER`.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record_program, scratch, text};
use serde_json::Value;
use std::path::Path;

fn json(words: &[&str]) -> Value {
    let output = capriole(words);
    assert!(output.status.success(), "{}", told(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns the row of a function in a list of rows.
fn row<'a>(of: &'a Value, function: &str) -> &'a Value {
    let mut rows = of["by_function"].as_array().expect("rows").iter();
    let found = rows.find(|row| row["function"] == function);
    found.unwrap_or_else(|| panic!("{function}: {of}"))
}

fn summary(trace: &Path) -> Value {
    json(&["report", "--summary", "--json", text(trace)])
}

#[test]
fn two_traces_are_compared() {
    let Some(program) = build(Compiler::Gcc, "long_calls.c", &["-g", "-O2"]) else {
        return;
    };
    let directory = scratch();
    let [before, after] = ["before", "after"].map(|name| directory.path().join(name));
    let record = |trace: &Path, events: &[&str]| {
        let words: Vec<&str> = events.iter().flat_map(|event| ["--graph", event]).collect();
        record_program(trace, &words, &program, &[]);
    };
    record(&before, &[":work", "libc:strlen"]);
    record(&after, &[":work path=$arg1", ":main"]);
    let words = ["report", "--compare", text(&before), text(&after)];
    let compared = json(&[&words[..], &["--json"]].concat());
    assert_eq!(compared["before"]["directory"], text(&before));
    assert_eq!(compared["after"]["directory"], text(&after));
    let (first, second) = (summary(&before), summary(&after));
    let work = row(&compared, "work");
    assert_eq!(work["before"], *row(&first, "work"));
    assert_eq!(work["after"], *row(&second, "work"));
    assert_eq!(work["before"]["calls"], 20, "{work}");
    let total = |row: &Value| row["total_ns"].as_i64().expect("a number");
    let change = total(&work["after"]) - total(&work["before"]);
    assert_eq!(work["total_change_ns"], change);
    // What is in one of them only.
    let main = row(&compared, "main");
    assert_eq!(main["before"], Value::Null);
    assert_eq!(main["total_change_ns"], main["after"]["total_ns"]);
    let rows = compared["by_function"].as_array().expect("rows");
    let changes: Vec<i64> = rows
        .iter()
        .map(|row| row["total_change_ns"].as_i64().expect("a number"))
        .collect();
    assert!(changes.is_sorted_by(|one, next| one >= next), "{changes:?}");
    assert_eq!(rows[0]["function"], "main");

    let output = capriole(&words);
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let line = said.lines().find(|line| line.ends_with("  main"));
    assert!(line.expect("a row").contains(" new "), "{said}");
    assert!(said.contains("before: "), "{said}");
}

#[test]
fn traces_that_cannot_be_compared_are_refused() {
    let Some(program) = build(Compiler::Gcc, "long_calls.c", &["-g", "-O2"]) else {
        return;
    };
    let directory = scratch();
    let [calls, events] = ["calls", "events"].map(|name| directory.path().join(name));
    record_program(&calls, &["--graph", ":work"], &program, &[]);
    record_program(&events, &["-e", ":work"], &program, &[]);
    for (words, status, reason) in [
        (
            &["--compare", text(&calls), text(&events)][..],
            1,
            "events has no calls from entry to exit: record them by `capriole record --graph EVENT`",
        ),
        (&["--compare", text(&calls), "/nowhere"], 1, "/nowhere"),
        (
            &["--compare", text(&calls)],
            2,
            "has a wrong number of values",
        ),
        (
            &["--compare", text(&calls), text(&calls), "--summary"],
            2,
            "exclude each other",
        ),
    ] {
        let output = capriole(&[&["report"], words].concat());
        let said = told(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(reason), "{words:?}: {said}");
    }
}
