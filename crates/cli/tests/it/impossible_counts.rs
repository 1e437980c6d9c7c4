//! Reported numbers are correct: with memory overwritten by a hostile program, very few
//! descriptors, full tables, and events that nobody requested.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, command, told};
use crate::traces::{record_program, scratch, text, until_recording};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::{Child, Output, Stdio};

/// No count in these tests reaches this.
const MOST: u64 = 1 << 48;

/// Starts the program and `capriole WORDS -p PID`, and makes the program do its calls.
fn among(words: &[&str]) -> Option<(Running, Child)> {
    let program = build(Compiler::Gcc, "overwriter.c", &["-O1"])?;
    let mut running = Running::start(&program, &[]);
    let pid = running.pid.to_string();
    let mut command = command(&[&words[..1], &["-p", &pid], &words[1..]].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let tracer = command.spawn().expect("capriole starts");
    until_recording(running.pid);
    running.say("call");
    assert_eq!(running.line(), "done");
    Some((running, tracer))
}

/// Ends the command and the program, which must be intact.
fn ended(running: Running, tracer: Child) -> Output {
    // SAFETY: sends a signal to a child of this test that has not been waited for.
    assert_eq!(unsafe { libc::kill(tracer.id() as i32, libc::SIGINT) }, 0);
    let output = tracer.wait_with_output().expect("it ends");
    running.finish();
    assert!(output.status.success(), "{}", told(&output));
    output
}

/// Returns the last object printed, after checking that no number in it is impossibly large.
fn honest(output: &Output) -> Value {
    fn largest(value: &Value) -> u64 {
        match value {
            Value::Number(number) => number.as_f64().map_or(0, |n| n as u64),
            Value::Array(values) => values.iter().map(largest).max().unwrap_or(0),
            Value::Object(values) => values.values().map(largest).max().unwrap_or(0),
            _ => 0,
        }
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    let last = printed.lines().last().expect("an object");
    let value: Value = serde_json::from_str(last).expect("JSON");
    assert!(largest(&value) < MOST, "{last}");
    value
}

/// Runs the command while the program writes over its counts. Returns the last object printed, which
/// says so.
fn spoilt(words: &[&str]) -> Option<Value> {
    let (mut running, tracer) = among(words)?;
    running.say("spoil");
    assert_eq!(running.line(), "spoilt 1");
    let value = honest(&ended(running, tracer));
    assert!(value["damaged"].as_u64() > Some(0), "{value}");
    Some(value)
}

#[test]
fn counts_that_were_written_over_are_none() {
    let words = [
        "stat",
        "--json",
        "-e",
        ":counted",
        "-e",
        ":counted hist(n=$arg1:u64)",
        "-e",
        ":counted count() by n=$arg1:u8",
    ];
    spoilt(&words);
}

#[test]
fn losses_that_were_written_over_are_none() {
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "record",
        "--json",
        "--return=stack",
        "-o",
        text(&trace),
        "-e",
        "r :counted $retval",
    ];
    let Some(value) = spoilt(&words) else { return };
    assert_eq!(value["returns_damaged"], true, "{value}");
}

#[test]
fn a_full_table_does_not_say_how_many_keys_it_holds() {
    let words = ["stat", "--keys", "4", "-e", ":counted by n=$arg1:u8"];
    let Some((running, tracer)) = among(&words) else {
        return;
    };
    let said = told(&ended(running, tracer));
    assert!(said.contains("\nthe table is full: "), "{said}");
    assert!(said.contains("with --keys (now 4)\n"), "{said}");
}

/// Runs `capriole` with this limit on descriptors.
fn with_descriptors(count: u64, words: &[&str]) -> Output {
    let mut command = crate::target::own();
    command.args(words).stdin(Stdio::null());
    let limit = move || Rlimit {
        current: Some(count),
        maximum: Some(count),
    };
    // SAFETY: only a system call is made between fork and exec.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, limit())?)) };
    command.output().expect("capriole starts")
}

#[test]
fn too_few_descriptors_are_called_by_their_name_and_leave_nothing() {
    let Some(program) = build(Compiler::Gcc, "overwriter.c", &["-O1"]) else {
        return;
    };
    let running = Running::start(&program, &[]);
    let pid = running.pid.to_string();
    let directory = scratch();
    let trace = directory.path().join("t");
    let rest = ["--duration", "1ms", "-e", ":counted", "-o", text(&trace)];
    let mut failures = 0;
    for descriptors in 5..13 {
        let of_process = [&["record", "-p", &pid], &rest[..]].concat();
        let of_program = [&["record"], &rest[..], &["--", text(&program)]].concat();
        for words in [of_process, of_program] {
            let said = told(&with_descriptors(descriptors, &words));
            if said.starts_with("exit status: 0") {
                continue;
            }
            failures += 1;
            assert!(
                said.contains("Too many open files"),
                "{descriptors}: {said}"
            );
            assert!(!said.contains("ended"), "{descriptors}: {said}");
            if descriptors < 7 {
                assert!(!trace.exists(), "{descriptors}: {said}");
            }
            // Any remains do not interfere.
            let said = told(&capriole(&[&["record", "-p", &pid], &rest[..]].concat()));
            assert!(said.starts_with("exit status: 0"), "{descriptors}: {said}");
            std::fs::remove_dir_all(&trace).expect("a trace");
        }
        let _ = std::fs::remove_dir_all(&trace);
    }
    assert!(failures > 4, "{failures}");
    running.finish();
}

#[test]
fn texts_that_nobody_wrote_are_no_event_that_was_never_hit() {
    let Some(program) = build(Compiler::Gcc, "own_breakpoint.c", &["-O1"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    record_program(&trace, &["-e", ":work"], &program, &[]);
    let said = told(&capriole(&["report", "--summary", text(&trace)]));
    assert!(said.contains("work"), "{said}");
    assert!(!said.contains("never hit"), "{said}");
}

#[test]
fn a_breakpoint_of_the_program_is_called_so() {
    let Some(program) = build(Compiler::Gcc, "own_breakpoint.c", &["-O1"]) else {
        return;
    };
    let said = told(&capriole(&["check", ":trap", text(&program)]));
    assert!(
        said.contains("is a breakpoint (int3) of the program itself"),
        "{said}"
    );
}
