//! Call pairing from entry to exit: `record --graph` sees every call that the program
//! reports, with nothing left over, and `stat 'latency(...)'` times every one of them,
//! through recursion, exceptions, longjmp, coroutines, signals, threads and forks.

use crate::traces;

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use traces::{pairs, record_program, scratch, text, told_by_stat};

/// Parses the program's output: by function, the number of calls that returned or made a tail
/// call.
fn said(output: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for (function, _) in pairs(output) {
        *calls.entry(function.to_owned()).or_default() += 1;
    }
    calls
}

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "returns.c", &[])
}

/// Returns the program's own counts and the summary of its calls, by function.
fn graph(
    program: &Path,
    scenario: &[&str],
    functions: &[&str],
) -> (BTreeMap<String, u64>, BTreeMap<String, Value>) {
    let directory = scratch();
    let trace = directory.path().join("t");
    let events: Vec<String> = functions.iter().map(|f| format!(":{f}")).collect();
    let mut words = vec!["--buffer-size", "64M"];
    words.extend(events.iter().flat_map(|event| ["--graph", event]));
    let output = record_program(&trace, &words, program, scenario);
    let summary = capriole(&["report", "--summary", "--json", text(&trace)]);
    assert!(summary.status.success(), "{}", told(&summary));
    let summary: Value = serde_json::from_slice(&summary.stdout).expect("JSON");
    assert_eq!(summary["lost_events"], 0);
    let number = |value: &Value, name: &str| value[name].as_u64().expect("a number");
    let mut selves = 0;
    let mut by_function = BTreeMap::new();
    for function in summary["by_function"].as_array().expect("a list") {
        selves += number(function, "self_ns");
        let name = function["function"].as_str().expect("a name");
        by_function.insert(name.to_owned(), function.clone());
    }
    // Each number is rounded down.
    let total = number(&summary, "total_ns");
    let rounded = by_function.len() as u64;
    assert!((selves..=selves + rounded).contains(&total), "{summary}");
    (said(&output), by_function)
}

/// Returns the number of calls that ended by an exit, and the numbers abandoned, open, and
/// without an entry.
fn ended(function: &Value) -> (u64, [u64; 3]) {
    let number = |name: &str| function[name].as_u64().expect("a number");
    let others = ["abandoned", "open", "unpaired"].map(number);
    (number("calls") - others[0] - others[1], others)
}

/// Runs a program under `stat`; returns the program's own counts and the JSON of `stat`.
fn stat(words: &[&str]) -> (BTreeMap<String, u64>, Value) {
    let stat = capriole(&[&["stat", "--json"], words].concat());
    let (lines, json) = told_by_stat(&stat);
    (said(&lines), json)
}

/// Returns the number of a group's calls that were timed, and that were not.
fn timed(group: &Value) -> (u64, u64) {
    let rows = group["rows"].as_array().expect("a list").iter();
    let number = |value: &Value| value.as_u64().expect("a number");
    let timed = rows.clone().map(|row| number(&row["measures"][0]["count"]));
    let unknown = rows.map(|row| number(&row["unreadable"]));
    (timed.sum(), unknown.sum())
}

fn agree(scenario: &str, functions: &[&str], leave: bool) {
    let Some(program) = program() else { return };
    let (said, calls) = graph(&program, &[scenario], functions);
    let mut abandoned = 0;
    for function in functions {
        let (ended, [lost, open, unpaired]) = ended(&calls[*function]);
        assert_eq!(ended, said[*function], "{scenario}: {calls:?}");
        assert_eq!([open, unpaired], [0, 0], "{scenario}: {calls:?}");
        abandoned += lost;
    }
    assert_eq!(abandoned > 0, leave, "{scenario}: {calls:?}");
}

#[test]
fn deep_recursion_is_seen_level_by_level() {
    agree("deep", &["deep"], false);
}

#[test]
fn tail_calls_end_their_callers() {
    agree("tail", &["even", "odd"], false);
}

#[test]
fn what_longjmp_leaves_is_abandoned() {
    agree("jumps", &["jumper"], true);
}

/// Adjacent stacks look like one until there is an exit of a call that was given up. Each call
/// and each exit is still recorded.
#[test]
fn coroutines_lose_no_call() {
    let Some(program) = program() else { return };
    let functions = ["yielding", "worker"];
    let (said, calls) = graph(&program, &["coroutines"], &functions);
    for function in functions {
        let (ended, [abandoned, open, unpaired]) = ended(&calls[function]);
        assert_eq!(ended + abandoned, said[function], "{calls:?}");
        assert_eq!((open, unpaired), (0, abandoned), "{calls:?}");
    }
}

#[test]
fn signal_handlers_are_called_in_the_middle() {
    agree("signals", &["raising", "whole"], false);
}

/// Every call that returns is timed, and no other.
#[test]
fn latencies_are_those_of_the_calls_that_return() {
    let Some(program) = program() else { return };
    for (scenario, functions) in [
        ("deep", &["deep"][..]),
        ("tail", &["even", "odd"]),
        ("jumps", &["jumper"]),
        ("coroutines", &["yielding", "worker"]),
        ("signals", &["raising", "whole"]),
    ] {
        let events: Vec<String> = functions.iter().map(|f| format!("latency(:{f})")).collect();
        let mut words: Vec<&str> = events.iter().flat_map(|event| ["-e", event]).collect();
        words.extend(["--", text(&program), scenario]);
        let (said, result) = stat(&words);
        for (function, group) in functions
            .iter()
            .zip(result["groups"].as_array().expect("a list"))
        {
            assert_eq!(timed(group), (said[*function], 0), "{scenario}: {group}");
        }
    }
}

/// An inlined copy of a function has no exits of its own, so it begins no call.
#[test]
fn copies_of_a_function_are_no_calls() {
    let Some(program) = build(Compiler::Gcc, "inlined.c", &[]) else {
        return;
    };
    let copies = capriole(&["list", "--json", ":both", text(&program)]);
    let copies: Value = serde_json::from_slice(&copies.stdout).expect("JSON");
    let is_copy = |site: &Value| site["inlined"] == "both";
    assert!(copies.as_array().expect("a list").iter().any(is_copy));
    let directory = scratch();
    let trace = directory.path().join("t");
    record_program(&trace, &["--graph", ":both"], &program, &[]);
    let mut events: BTreeMap<String, u64> = BTreeMap::new();
    for event in traces::events(&trace) {
        let name = event["event"].as_str().expect("a name");
        *events.entry(name.to_owned()).or_default() += 1;
    }
    let names = ["both", "both__return"].map(str::to_owned);
    assert_eq!(events, BTreeMap::from(names.map(|name| (name, 3))));
    let result = stat(&["-e", "latency(:both)", "--", text(&program)]).1;
    assert_eq!(timed(&result["groups"][0]), (3, 0), "{result}");
    let events = result["events"].as_array().expect("a list").iter();
    let names: Vec<&Value> = events.map(|event| &event["event"]).collect();
    assert!(
        names
            .iter()
            .all(|name| !name.to_string().contains("inlined")),
        "{result}"
    );
}

#[test]
fn latencies_can_stand_in_a_file() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let file = directory.path().join("events");
    let write = |text: &str| std::fs::write(&file, text).expect("ours");
    write("# calls\n:whole\n  latency(:even) by tid # timed\n:odd count()\n");
    let words = ["-f", text(&file), "--", text(&program), "tail"];
    let (said, result) = stat(&words);
    let group = &result["groups"][0];
    assert_eq!(group["keys"], serde_json::json!(["tid"]), "{result}");
    assert_eq!(timed(group), (said["even"], 0), "{result}");
    for (wrong, reason) in [
        (
            "latency(:even",
            "events: line 2: the parenthesis is not closed\n  latency(:even\n               ^\n",
        ),
        (
            "latency(:even+4)",
            "events: line 2: event `:even+4`: a call lasts from",
        ),
        (
            "latency(:even) i=$arg1",
            "events: line 2: `i` behind latency(...) would not be used",
        ),
        (
            "latency(:even) i=$entry:arg1 by tid",
            "events: line 2: `i` behind latency(...) would not be used",
        ),
        (
            "latency(:even i=$arg1)",
            "events: line 2: `latency(:even i=$arg1)`: the field `i` would not be used",
        ),
    ] {
        write(&format!(":odd\n{wrong}\n"));
        let output = capriole(&["stat", "-f", text(&file), "--", text(&program), "tail"]);
        let said = told(&output);
        assert!(!output.status.success() && said.contains(reason), "{said}");
    }
}

#[test]
fn a_function_whose_calls_have_no_end_is_refused() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    for words in [
        &["record", "-o", text(&trace), "--graph", ":never"][..],
        &["stat", "-e", "latency(:never)"],
    ] {
        let output = capriole(&[words, &["--", text(&program), "never"]].concat());
        let said = told(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("calls of `never` cannot be followed to their end: it never returns")
                && said.contains("write the event with `-e`, without `latency(...)`")
                && !said.contains("%return"),
            "{said}"
        );
    }
}
