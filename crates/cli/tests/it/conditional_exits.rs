//! Functions that end in conditional jumps or run on into the next one: an exit is recorded,
//! counted and timed if the jump is taken, and only then.

use crate::programs::{Compiler, build};
use crate::target::{capriole, sites, told};
use crate::traces::{events, pairs, record, record_program, scratch, summary, text, told_by_stat};
use capriole_object::Objects;
use capriole_planner::planner::Planner;
use capriole_tactic::site::{Shape, Tactic};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

/// By function, for each call: the returned value, or `None` if the call left for another
/// function.
type Calls = BTreeMap<String, Vec<Option<i64>>>;

const CONDITIONS: [&str; 16] = [
    "o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g",
];
const OTHERS: [&str; 5] = ["twice", "running_on", "over_nops", "either", "looping"];

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "conditional_exits.c", &[])
}

fn functions() -> Vec<String> {
    let conditions = CONDITIONS.iter().map(|cc| format!("if_{cc}"));
    conditions.chain(OTHERS.map(str::to_owned)).collect()
}

/// Parses the program's output.
fn said(output: &str) -> Calls {
    assert!(output.contains("ok conditional_exits"), "{output}");
    let mut calls = Calls::new();
    for (name, value) in pairs(output) {
        let value = (value != "tail").then(|| value.parse().expect("a number"));
        calls.entry(name.to_owned()).or_default().push(value);
    }
    assert!(functions().iter().all(|name| calls.contains_key(name)));
    calls
}

/// Returns the events at returns with their values, and other events by name without a value.
fn seen(trace: &Path) -> Calls {
    let whole = summary(trace);
    for nothing in ["lost_events", "lost_packets", "damages"] {
        assert_eq!(whole[nothing], 0, "{nothing}: {whole}");
    }
    let mut calls = Calls::new();
    for event in events(trace) {
        let name = event["event"].as_str().expect("a name");
        let (name, value) = match name.strip_suffix("__return") {
            Some(name) => (name, event["arguments"]["ret"].as_i64()),
            None => (name.strip_suffix("__tail").unwrap_or(name), None),
        };
        calls.entry(name.to_owned()).or_default().push(value);
    }
    calls
}

fn recorded(program: &Path, words: &[&str], events: &[String]) -> (Calls, Calls) {
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut words = words.to_vec();
    words.extend(["--buffer-size", "32M"]);
    words.extend(events.iter().flat_map(|event| ["-e", event]));
    let output = record_program(&trace, &words, program, &[]);
    (said(&output), seen(&trace))
}

#[test]
fn jumps_are_exits_when_they_are_taken() {
    let Some(program) = program() else { return };
    let events = functions().into_iter();
    let events: Vec<String> = events.map(|f| format!("r :{f} ret=$retval:s64")).collect();
    let (said, seen) = recorded(&program, &[], &events);
    assert_eq!(said, seen);
    for cc in CONDITIONS {
        let calls = &seen[&format!("if_{cc}")];
        let taken = calls.iter().filter(|value| value.is_none()).count();
        assert!(taken > 0 && taken < calls.len(), "{cc}: {taken}");
    }
}

/// Other events at the jump, before or after the exit in the order of events, are always
/// recorded. Also where the resident does the work, the jump decides if the exit is recorded.
#[test]
fn events_at_the_same_instruction_do_not_depend_on_the_jump() {
    let Some(program) = program() else { return };
    for (before, exit, after) in [
        ("p:at_jump :if_CC+8", "r :if_CC", None),
        (
            "p:at_jump :if_CC+8 $comm",
            "r :if_CC",
            Some("p:also :if_CC+8 %di"),
        ),
        ("p:at_jump :if_CC+8 %ax", "r :if_CC x=+0(%sp):x64", None),
        (
            "p:at_jump :if_CC+8 if tid == 0",
            "r :if_CC x=+0(%sp):x64 if x > 0",
            Some("p:also :if_CC+8"),
        ),
        (
            "p:at_jump :if_CC+8 %cx if tid > 0",
            "r :if_CC if tid > 0",
            None,
        ),
    ] {
        for cc in ["le", "p", "o"] {
            let with = |text: &str| text.replace("CC", cc);
            let all = [Some(before), Some(exit), after].into_iter().flatten();
            let all: Vec<String> = all.map(with).collect();
            let (said, seen) = recorded(&program, &[], &all);
            let calls = &said[&format!("if_{cc}")];
            let own = &seen[&format!("if_{cc}")];
            let count = |calls: Option<&Vec<Option<i64>>>| calls.map_or(0, Vec::len);
            // Each call leaves once, either way.
            assert_eq!(own.len(), calls.len(), "{all:?}");
            let rejected = before.contains("tid == 0");
            let wanted = if rejected { 0 } else { calls.len() };
            assert_eq!(count(seen.get("at_jump")), wanted, "{all:?}");
            let wanted = after.map_or(0, |_| calls.len());
            assert_eq!(count(seen.get("also")), wanted, "{all:?}");
        }
    }
}

fn stat(events: &[String], program: &Path, tunables: &str) -> (Calls, Value) {
    let mut command = crate::target::own();
    command.args(["stat", "--json"]);
    command.args(events.iter().flat_map(|event| ["-e", event]));
    command
        .arg("--")
        .arg(program)
        .env("GLIBC_TUNABLES", tunables);
    let output = command.output().expect("capriole starts");
    let (lines, json) = told_by_stat(&output);
    (said(&lines), json)
}

/// Tested with restartable sequences and in locked mode.
#[test]
fn exits_are_counted_added_up_and_timed() {
    let Some(program) = program() else { return };
    for tunables in ["", "glibc.pthread.rseq=0"] {
        let functions = functions();
        let counts: Vec<String> = functions.iter().map(|f| format!("r :{f}")).collect();
        let (said, told) = stat(&counts, &program, tunables);
        let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
        for event in told["events"].as_array().expect("a list") {
            let symbol = event["symbol"].as_str().expect("a name");
            *counted.entry(symbol).or_default() += event["calls"].as_u64().expect("a number");
        }
        for (function, calls) in &said {
            assert_eq!(counted[&**function], calls.len() as u64, "{function}");
        }
        let keys = |f: &String| format!("r :{f} sum(%sp) hist(%di) by %si");
        let times = |f: &String| format!("latency(:{f})");
        let groups: Vec<String> = functions.iter().map(keys).collect();
        let timed: Vec<String> = functions.iter().map(times).collect();
        for events in [groups, timed] {
            let (said, told) = stat(&events, &program, tunables);
            let groups = told["groups"].as_array().expect("a list");
            assert_eq!(groups.len(), functions.len());
            for (function, group) in functions.iter().zip(groups) {
                let (mut calls, mut unknown) = (0, 0);
                for row in group["rows"].as_array().expect("a list") {
                    let known = row["measures"].as_array().expect("a list").last();
                    let known = known.and_then(|m| m["count"].as_u64());
                    calls += known.or(row["calls"].as_u64()).expect("a number");
                    unknown += row["unreadable"].as_u64().unwrap_or(0);
                }
                let wanted = (said[function].len() as u64, 0);
                assert_eq!((calls, unknown), wanted, "{function}");
            }
        }
    }
}

#[test]
fn calls_end_where_they_are_left() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let functions = functions();
    let events: Vec<String> = functions.iter().map(|f| format!(":{f}")).collect();
    let mut words = vec!["--buffer-size", "32M", "--graph", ":landed"];
    words.extend(events.iter().flat_map(|event| ["--graph", event]));
    let output = record_program(&trace, &words, &program, &[]);
    let said = said(&output);
    let summary = capriole(&["report", "--summary", "--json", text(&trace)]);
    assert!(summary.status.success(), "{}", told(&summary));
    let summary: Value = serde_json::from_slice(&summary.stdout).expect("JSON");
    let rows = summary["by_function"].as_array().expect("a list");
    for function in &functions {
        let row = rows.iter().find(|row| row["function"] == **function);
        let row = row.unwrap_or_else(|| panic!("{function}: {summary}"));
        let calls = said[function].len() as u64;
        assert_eq!(row["calls"], calls, "{row}");
        for nothing in ["abandoned", "open", "unpaired"] {
            assert_eq!(row[nothing], 0, "{nothing}: {row}");
        }
    }
}

/// The entry of `looping` can only be probed with a jump that contains its next bytes. The
/// program has memory at the target of the first such jump; the other needs a byte that the
/// exit's jump would change, so the exit's jump must go elsewhere.
#[test]
fn a_jump_stands_elsewhere_for_another_site() {
    let Some(program) = build(Compiler::Gcc, "conditional_exits.c", &["-DROOM"]) else {
        return;
    };
    let objects = Objects::offline(&program).expect("a program");
    let planner = Planner::offline().with_breakpoints(false);
    let planned = |events: &[&str]| {
        let sites = sites(&objects, events);
        let plans = planner.plan_all(&sites.iter().collect::<Vec<_>>());
        let shapes = plans.into_iter().map(|plan| plan.expect("a plan").shape);
        shapes.collect::<Vec<_>>()
    };
    let alone = planned(&["r :looping"]);
    assert!(alone.iter().all(|shape| shape.tactic == Tactic::Region));
    for events in [
        &[":looping", "r :looping"][..],
        &["r :looping", ":looping", "r :looping"],
    ] {
        let both = planned(events);
        assert_eq!(both.len(), events.len());
        for (shape, event) in both.iter().zip(events) {
            assert_eq!(shape.tactic, Tactic::Punned, "{event} {both:#?}");
            let apart =
                |other: &Shape| other.site == shape.site || !other.covered.overlaps(&shape.covered);
            assert!(both.iter().all(apart), "{event}");
        }
    }
}

fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", told(output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_no_exit_for_sure_is_refused() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    for (event, reason) in [
        (
            "r :counted",
            "the jump at counted+0x3 depends on a register",
        ),
        (
            "r :framed",
            "the jump at framed+0x7 leads out of the function, which keeps its stack frame",
        ),
    ] {
        let said = failure(&record(&trace, &["-e", event, "--", text(&program)]));
        assert!(said.contains(reason), "{event}: {said}");
    }
}

#[test]
fn conditional_exits_are_listed_and_checked_as_such() {
    let Some(program) = program() else { return };
    let output = capriole(&["list", "--json", "r :if_ge", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let conditions: Vec<&Value> = listed.iter().map(|site| &site["condition"]).collect();
    assert_eq!(conditions, [&Value::from("ge"), &Value::Null], "{listed:?}");
    let output = capriole(&["list", "r :if_ge", text(&program)]);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        table.contains("if_ge__tail at if_ge+0x8, conditional"),
        "{table}"
    );
    let output = capriole(&["check", "r :if_ge", text(&program)]);
    let checked = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", told(&output));
    assert!(checked.contains(": jl 0x"), "it is asked first: {checked}");
    assert!(
        checked.contains("the function is not left here"),
        "{checked}"
    );
}
