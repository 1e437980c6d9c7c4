//! Many more threads than processors: a thread that loses the processor in the middle of a
//! record must not make others lose their records.

use crate::programs::{Compiler, build};
use crate::target::{capriole, rounds, told};
use crate::traces::{recorder, scratch, text};
use serde_json::Value;
use std::path::PathBuf;

const THREADS: usize = 64;

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "crowd.c", &["-O1", "-pthread"])
}

/// Records `calls` calls of each thread, 16 at a time; all of them must be in the trace. The buffer holds
/// them all: the recorder may stand still meanwhile.
fn all_are_recorded(event: &str, calls: usize, pause_us: usize) {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut command = recorder(
        &trace,
        &["--json", "--buffer-size", "512M", "-e", event, "--"],
    );
    let words = [THREADS, calls, pause_us].map(|n| n.to_string());
    let output = command.arg(program).args(words).output();
    let output = output.expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let called = (THREADS * calls) as u64;
    assert!(stdout.contains(&format!("ok {called}\n")), "{stdout}");
    let said = stdout.lines().last().expect("a line");
    let said: Value = serde_json::from_str(said).expect("JSON");
    let lanes = std::fs::read_dir(&trace).expect("a trace").count();
    println!("{event}: {called} calls, {lanes} files, {said}");
    assert_eq!(said["lost"], 0, "{said}");
    assert_eq!(said["events"], called, "{said}");
    let report = capriole(&["report", "--summary", "--json", text(&trace)]);
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["by_event"][0]["calls"], called, "{report}");
}

#[test]
fn strings_of_all_threads_are_recorded() {
    let event = ":crowd_work text=+0($arg1):string comm=$comm n=$arg2";
    all_are_recorded(event, rounds(2000, 6000, 15_625), 0);
}

/// A stack takes 4 KiB, so in longer forms the program must pause to let the disk keep up.
#[test]
fn stacks_of_all_threads_are_recorded() {
    let event = ":crowd_work text=+0($arg1):string stack";
    all_are_recorded(event, rounds(100, 600, 15_625), 40_000);
}

#[test]
fn calls_of_all_threads_are_counted_by_key() {
    let Some(program) = program() else { return };
    let calls = rounds(2000, 6000, 15_625);
    let words = [THREADS.to_string(), calls.to_string()];
    let event = ":crowd_work by text=+0($arg1):string, $comm";
    let program = program.display().to_string();
    let output = capriole(&[
        "stat", "--json", "-e", event, "--", &program, &words[0], &words[1],
    ]);
    assert!(output.status.success(), "{}", told(&output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said: Value = serde_json::from_str(stdout.lines().last().expect("a line")).expect("JSON");
    assert_eq!(said["lost"], 0, "{said}");
    assert_eq!(said["events"][0]["calls"], (THREADS * calls) as u64);
    let rows = said["groups"][0]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), THREADS);
    assert!(rows.iter().all(|row| row["calls"] == calls), "{said}");
}
