//! Children that share session memory but have no privileges write random words there while
//! their parent is probed: the parent must go on and find its results and its memory right,
//! and the command must finish and report the data that it could not read.

use crate::programs::{Compiler, build};
use crate::target::*;
use std::process::Stdio;

/// Runs `capriole` with these arguments on the program, whose children write over the data that
/// detours use, or over everything. Returns its output.
fn among_hostile_children(everything: bool, arguments: &[&str]) -> Option<String> {
    let program = build(Compiler::Gcc, "scribbler.c", &["-O1"])?;
    let mut running = Running::start(&program, if everything { &["all"] } else { &[] });
    let pid = running.pid.to_string();
    let words = [&arguments[..1], &["-p", &pid], &arguments[1..]].concat();
    let mut command = command(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("capriole starts");
    assert_eq!(running.line(), "written over");
    // SAFETY: sends a signal to a child of this test that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().expect("it ends");
    let text = told(&output);
    assert!(!text.contains("panicked"), "{text}");
    assert!(output.status.success(), "{text}");
    // Nothing that they write ends the recording, or makes it report that the program ended.
    assert!(text.contains(r#""ended":"requested""#), "{text}");
    let last = running.finish();
    let children = last.rsplit('=').next();
    let children = children.and_then(|n| n.trim().parse::<u64>().ok());
    let children = children.expect("a number of children");
    assert!(children > 0, "{last}{text}");
    Some(text)
}

#[test]
fn a_recorded_program_survives_what_its_children_write() {
    recorded(false);
}

#[test]
fn a_recorded_program_survives_when_they_write_everywhere() {
    recorded(true);
}

fn recorded(everything: bool) {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace").display().to_string();
    let arguments = [
        "record",
        "--json",
        "--buffer-size",
        "4M",
        "-o",
        &trace,
        "-e",
        ":hostile_record n=$arg1 m=$arg2",
        "-e",
        ":hostile_text text=+0($arg1):string if text ~ \"*o*\"",
        "-e",
        "r :hostile_inner n=$entry:arg1 result=$retval",
    ];
    let Some(text) = among_hostile_children(everything, &arguments) else {
        return;
    };
    assert!(!text.contains(r#""damaged":0"#), "{text}");
    // The written data can be read as far as it makes sense; in no case does a command panic.
    let report = told(&capriole(&["report", "--summary", &trace]));
    assert!(!report.contains("panicked"), "{report}");
}

#[test]
fn a_measured_program_survives_what_its_children_write() {
    measured(false);
}

#[test]
fn a_measured_program_survives_when_they_write_everywhere() {
    measured(true);
}

fn measured(everything: bool) {
    let arguments = [
        "stat",
        "--json",
        // So that there are summaries to write over.
        "--keys",
        "4",
        "-e",
        "latency(:hostile_record)",
        "-e",
        ":hostile_inner hist(n=$arg1) sum($arg1) max($arg1)",
        "-e",
        ":hostile_text count() by text=+0($arg1):string",
        "-e",
        ":hostile_text max(n=$arg2) by low=$arg2:u8",
        "-e",
        ":hostile_record sum(m=$arg2) by n=$arg1",
        "-e",
        "latency(:hostile_record n=$arg1 m=$arg2 -> r :hostile_record n=$entry:arg1) by m, tid",
        "-e",
        "latency(:hostile_text -> :hostile_inner) by text=$arg1",
        "-e",
        ":hostile_inner sum(m=$arg1) by stack, tid",
    ];
    among_hostile_children(everything, &arguments);
}
