//! A program that sets handlers of faults while it is recorded: they are told where it stood, as those
//! are that it had before.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{Background, scratch};
use capriole_testkit::steps::{died, dies_at, few, reached};
use std::path::{Path, PathBuf};

/// Has the program do these things, and checks that it finds everything as it has to be.
fn does(running: &mut Running, things: &[&str]) {
    for thing in things {
        running.say(thing);
        assert_eq!(running.line(), "done", "{thing}");
    }
}

fn program(flags: &[&str]) -> Option<PathBuf> {
    let flags = [&["-pthread"], flags].concat();
    build(Compiler::Gcc, "later_faults.c", &flags)
}

/// Starts the program, which does `first`, and records a function that faults.
fn recorded(program: &Path, first: &[&str], trace: &Path) -> (Running, Background) {
    let mut running = Running::start(program, &[]);
    does(&mut running, first);
    let recording = Background::attach(trace, running.pid, &[":load from=$arg1"]);
    (running, recording)
}

fn detach(running: &Running) {
    let output = capriole(&["detach", &running.pid.to_string()]);
    assert!(output.status.success(), "{}", told(&output));
}

const ALL: &[&str] = &[
    "one", "faults", "two", "faults", "two", "one", "faults", "default", "check", "two", "faults",
    "ignore", "check", "once", "one", "faults", "raw", "faults", "fork", "vfork", "threads", "one",
    "faults",
];

fn is_told_where_it_stood(flags: &[&str]) {
    let Some(program) = program(flags) else {
        return;
    };
    // Without a handler at first, and with one, and replaced or not.
    let cases: [(&[&str], &[&str]); 4] = [
        (&[], ALL),
        (&["one", "faults"], ALL),
        (&["one"], &["default"]),
        (&["two"], &["threads", "once"]),
    ];
    for (first, things) in cases {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let (mut running, recording) = recorded(&program, first, &trace);
        does(&mut running, things);
        let told = recording.end();
        let faults = things.contains(&"faults");
        assert!(!faults || told["events"].as_u64() > Some(5), "{told}");
        // The program's newest action is the kernel's again.
        does(&mut running, &["check"]);
        assert_no_session(&running.process());
        does(&mut running, &["two", "faults", "one", "faults"]);
        running.finish();
    }
}

#[test]
fn they_are_told_where_it_stood() {
    is_told_where_it_stood(&[]);
}

#[test]
fn so_they_are_in_a_static_program() {
    is_told_where_it_stood(&["-static"]);
}

/// Probes are taken out of a program, and of its child, each of which has set handlers of its own
/// meanwhile.
#[test]
fn each_process_gets_its_own_back() {
    let Some(program) = program(&[]) else {
        return;
    };
    for first in [&["one"][..], &[]] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let (mut running, recording) = recorded(&program, first, &trace);
        does(&mut running, &["child", "one", "faults"]);
        recording.end();
        does(&mut running, &["check", "faults", "end", "check", "faults"]);
        running.finish();
    }
}

/// While its recorder is dead, the program sees what it saw before; then its newest action is restored.
#[test]
fn after_a_recorder_was_killed() {
    let Some(program) = program(&[]) else {
        return;
    };
    for first in [&["one"][..], &[]] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let (mut running, recording) = recorded(&program, first, &trace);
        does(&mut running, &["two", "faults", "child"]);
        recording.signal(libc::SIGKILL);
        drop(recording.output());
        does(
            &mut running,
            &["faults", "check", "one", "faults", "two", "faults"],
        );
        detach(&running);
        does(&mut running, &["check", "faults", "end", "one", "faults"]);
        assert_no_session(&running.process());
        running.finish();
    }
}

/// A thread is in such a handler while the probes are taken out, and returns from there through the
/// session's memory: that stays until it has.
#[test]
fn a_handler_that_runs_at_the_end_returns() {
    let Some(program) = program(&[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let (mut running, recording) = recorded(&program, &[], &trace);
    does(&mut running, &["one", "faults"]);
    running.say("stay");
    assert_eq!(running.line(), "inside");
    recording.end();
    running.say("leave");
    assert_eq!(running.line(), "done");
    does(&mut running, &["check", "two", "faults"]);
    detach(&running);
    does(&mut running, &["check", "faults"]);
    assert_no_session(&running.process());
    running.finish();
}

/// `detach` is killed at each of its steps; the next one still finds the newest action.
#[test]
fn a_detach_killed_at_each_step() {
    let Some(program) = program(&[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let mut running = Running::start(&program, &[]);
    let pid = running.pid.to_string();
    let leave_probes = |running: &mut Running| {
        does(running, &["default"]);
        let recording = Background::attach(&trace, running.pid, &[":load from=$arg1"]);
        does(running, &["one", "two", "faults"]);
        recording.signal(libc::SIGKILL);
        drop(recording.output());
        std::fs::remove_dir_all(&trace).expect("its trace");
    };
    leave_probes(&mut running);
    let (steps, output) = reached(&mut command(&["detach", "--discard", &pid]));
    assert!(output.status.success(), "{}", told(&output));
    let steps = few(&steps);
    for step in &steps {
        leave_probes(&mut running);
        let output = dies_at(&mut command(&["detach", "--discard", &pid]), step).output();
        let output = output.expect("capriole starts");
        println!("{step}");
        does(&mut running, &["faults", "check"]);
        if died(&output) {
            let output = capriole(&["detach", "--discard", &pid]);
            let text = told(&output);
            let gone = text.contains("has no probes of capriole");
            assert!(output.status.success() || gone, "{step}: {text}");
        }
        assert_no_session(&running.process());
        does(&mut running, &["check", "faults", "one", "faults"]);
    }
    assert!(
        steps.len() > 5 || !cfg!(debug_assertions),
        "{}",
        steps.len()
    );
    running.finish();
}
