//! Functions of a few bytes with nothing between them: entries and exits without room for jumps
//! of their own, in threads that a breakpoint would kill.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{counted, record_program, scratch};
use capriole_tactic::site::Tactic;
use std::path::Path;

const EVENTS: &[&str] = &[":tight_*", ":tight_*%return"];

fn program() -> Option<std::path::PathBuf> {
    build(Compiler::Gcc, "tight.c", &[])
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = capriole(arguments);
    assert!(output.status.success(), "{}", told(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// No site is left out, and each call is recorded from entry to exit.
#[test]
fn every_call_is_recorded() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let arguments = ["--graph", ":tight_*", "--buffer-size", "256M"];
    let words = ["--threads", "2", "--calls", "5000"];
    let said = record_program(&trace, &arguments, &program, &words);
    assert_eq!(counted(&said), 10_000, "{said}");
    assert_calls(&trace, 10_000);
}

fn assert_calls(trace: &Path, wanted: u64) {
    let path = trace.to_str().expect("UTF-8");
    let calls = json(&["report", "--summary", "--json", path]);
    assert_eq!(calls["lost_events"], 0, "{calls}");
    let functions = calls["by_function"].as_array().expect("a list");
    assert_eq!(functions.len(), 10, "{calls}");
    for function in functions {
        assert_eq!(function["calls"], wanted, "{function}");
        for nothing in ["abandoned", "open", "unpaired"] {
            assert_eq!(function[nothing], 0, "{function}");
        }
    }
}

/// Checks that the program has the cases for the other tests: sites that share a jump, and
/// jumps that are part of other jumps.
#[test]
fn the_program_has_what_is_to_be_tested() {
    let Some(program) = program() else { return };
    let running = Running::start(&program, &["--threads", "1"]);
    let probes = Probes::joined(&running.process(), EVENTS).probes;
    let sites: usize = probes.iter().map(|probe| probe.points.len()).sum();
    let shapes = || probes.iter().map(|probe| &probe.shape);
    let placed = || shapes().filter_map(|shape| Some((shape, shape.placed.as_ref()?)));
    let parts = placed().filter(|(_, placed)| placed.builds_on.is_some());
    let shared = parts
        .clone()
        .filter(|(shape, _)| shape.tactic == Tactic::Region);
    let led = probes
        .iter()
        .filter(|p| p.points[0].site > p.shape.covered.start);
    assert!(
        sites > probes.len() + 3,
        "{sites} sites of {}",
        probes.len()
    );
    assert!(parts.count() >= 4);
    assert!(shared.count() >= 2);
    assert!(led.count() >= 1);
    running.finish();
}

#[test]
fn in_and_out_again_and_again() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &["--threads", "3"]);
    let process = running.process();
    let probes = Probes::joined(&process, EVENTS);
    for _ in 0..rounds(4, 90, 3000) {
        let mut recording = attach_to(&process, &probes, 16 << 20);
        recording.record_calls(1000);
        running.assert_alive();
        if let Some(calls) = recording.detach() {
            assert_gap_free(&probes.names, &calls);
        }
        running.assert_alive();
        assert_text_is_the_files(&process, true);
        assert_no_session(&process);
    }
    running.finish();
}
