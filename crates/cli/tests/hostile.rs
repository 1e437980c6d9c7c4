//! Children that share session memory, and have no privileges any more, write random words there
//! while their parent is probed: the parent must go on and find its results and its memory
//! right, and the command must come to its end and say what it could not read.

#[path = "common/programs.rs"]
mod programs;
#[path = "common/target.rs"]
mod target;

use programs::{Compiler, build};
use target::*;

/// Runs `capriole` with these arguments on the program; what it says, and how many children have
/// written meanwhile.
fn among_hostile_children(arguments: &[&str]) -> Option<(String, u64)> {
    let program = build(Compiler::Gcc, "scribbler.c", &["-O1"])?;
    let running = Running::start(&program, &[]);
    let pid = running.pid.to_string();
    let output = capriole(&[&arguments[..1], &["-p", &pid], &arguments[1..]].concat());
    let text = told(&output);
    assert!(!text.contains("panicked"), "{text}");
    assert!(output.status.success(), "{text}");
    let last = running.finish();
    let children = last.rsplit('=').next().and_then(|n| n.trim().parse().ok());
    let children = children.expect("a number of children");
    assert!(children > 0, "{last}{text}");
    Some((text, children))
}

#[test]
fn a_recorded_program_survives_what_its_children_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace").display().to_string();
    let arguments = [
        "record",
        "--duration",
        "1500ms",
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
    let Some((text, _)) = among_hostile_children(&arguments) else {
        return;
    };
    assert!(text.contains("could not be read"), "{text}");
    // What has been written can be read, if it makes sense; nobody panics in any case.
    let report = told(&capriole(&["report", "--summary", &trace]));
    assert!(!report.contains("panicked"), "{report}");
}

#[test]
fn a_measured_program_survives_what_its_children_write() {
    among_hostile_children(&[
        "stat",
        "--duration",
        "1500ms",
        "-e",
        "latency(:hostile_record)",
        "-e",
        ":hostile_inner hist(n=$arg1) sum($arg1) max($arg1)",
        "-e",
        ":hostile_text count() by text=+0($arg1):string",
        "-e",
        ":hostile_text max(n=$arg2) by low=$arg2:u8",
    ]);
}
