//! Threads that are killed while they record, or leave by `siglongjmp`, keep the lane they
//! write to forever. It must be reclaimed, so that later events are recorded.

use crate::programs::{Compiler, build};
use crate::target::*;
use serde_json::Value;

/// Number of calls of the recorded function.
const AFTER: u64 = 20_000;

/// Records the program in this mode; most of its calls at the end must be in the trace.
fn later_events_are_recorded(mode: &str) {
    let Some(program) = build(Compiler::Gcc, "jumped.c", &["-O1", "-pthread"]) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace").display().to_string();
    let program = program.display().to_string();
    let output = capriole(&[
        "record",
        "--json",
        "--buffer-size",
        "32M",
        "-o",
        &trace,
        "-e",
        ":jumped_before text=+0($arg1):string",
        "-e",
        ":jumped_after text=+0($arg1):string n=$arg2",
        "--",
        &program,
        mode,
    ]);
    let text = told(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("\nok left="), "{text}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said = stdout.lines().last().expect("a line");
    let said: Value = serde_json::from_str(said).expect("JSON");
    let (lost, busy) = (&said["lost"], &said["lost_busy"]);
    assert!(busy.as_u64() <= lost.as_u64(), "{said}");
    let report = capriole(&["report", "--summary", "--json", &trace]);
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let events = report["by_event"].as_array().expect("events");
    let calls = events
        .iter()
        .find(|event| event["event"] == "jumped_after")
        .and_then(|event| event["calls"].as_u64());
    let calls = calls.unwrap_or(0);
    println!("{mode}: {calls} of {AFTER} recorded; lost {lost}, of those busy {busy}");
    assert!(
        calls <= AFTER && calls * 100 >= AFTER * 95,
        "{calls}: {said}"
    );
}

#[test]
fn a_handler_that_jumps_away_leaves_lanes_to_its_thread() {
    later_events_are_recorded("alarm");
}

#[test]
fn a_handler_that_jumps_away_leaves_lanes_to_other_threads() {
    later_events_are_recorded("other");
}

#[test]
fn a_stack_that_overflows_leaves_lanes_to_others() {
    later_events_are_recorded("overflow");
}

#[test]
fn children_that_are_killed_leave_lanes_to_others() {
    later_events_are_recorded("killed");
}
