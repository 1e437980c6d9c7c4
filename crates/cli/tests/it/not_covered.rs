//! Calls that are not seen because they are in other processes, or began before: what is said of them.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, command, told};
use crate::traces::{recorder, scratch, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "ends.c", &[])
}

fn stat(words: &[&str], running: &Running) -> std::process::Output {
    let pid = running.pid.to_string();
    let words = [&["stat", "--duration", "50ms", "-p", &pid], words].concat();
    let output = capriole(&words);
    assert!(output.status.success(), "{}", told(&output));
    output
}

fn forked(program: &Path, children: usize) -> (Running, Vec<u32>) {
    let mut running = Running::start(program, &[]);
    for _ in 0..children {
        running.say("fork");
        assert_eq!(running.line(), "done");
    }
    let found = running.process().children_of(running.pid);
    assert_eq!(found.len(), children);
    (running, found)
}

/// Children that were there before are named, in text, JSON and the trace.
#[test]
fn children_that_were_there_before() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let (running, children) = forked(&program, 2);
    let name = running.process().name().to_owned();
    let wanted = format!(
        "capriole: not covered: 2 child processes that were there before: {} ({name}), {} ({name}); -p PID covers \
         one of them, and the children that it forks from then on\n",
        children[0], children[1]
    );
    let said = told(&stat(&["-e", ":told_to"], &running));
    assert!(said.contains(&wanted), "{said}");
    let output = stat(&["--json", "-e", ":told_to"], &running);
    let told_json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let child = |pid: &u32| json!({"pid": pid, "name": name, "relation": "child"});
    let all: Vec<Value> = children.iter().map(child).collect();
    assert_eq!(told_json["not_covered"], json!(all));

    let pid = running.pid.to_string();
    let words = ["-p", &pid, "--duration", "50ms", "-e", ":told_to"];
    let output = recorder(&trace, &words).output().expect("capriole starts");
    assert!(told(&output).contains(&wanted), "{}", told(&output));
    let report = told(&capriole(&["report", text(&trace)]));
    assert!(
        report.contains("not covered: 2 child processes"),
        "{report}"
    );
    running.finish();

    // None of these: the program that was started, and one without children.
    let output = command(&["stat", "-e", ":told_to", "--", text(&program)]).output();
    let said = told(&output.expect("capriole starts"));
    assert!(!said.contains("not covered"), "{said}");
    let running = Running::start(&program, &[]);
    let said = told(&stat(&["-e", ":told_to"], &running));
    assert!(!said.contains("not covered"), "{said}");
    running.finish();
}

/// A worker has a parent of the same program, and others beside it.
#[test]
fn others_of_the_same_program() {
    let Some(program) = program() else { return };
    let (running, children) = forked(&program, 3);
    let pid = children[1].to_string();
    let output = capriole(&["stat", "--duration", "50ms", "-p", &pid, "-e", ":told_to"]);
    let said = told(&output);
    let mut others = [running.pid, children[0], children[2]];
    others.sort_unstable();
    let [first, second, third] = others;
    let name = running.process().name().to_owned();
    let wanted = format!(
        "not covered: 3 other processes of this program: {first} ({name}), {second} ({name}), {third} ({name}); -p PID"
    );
    assert!(said.contains(&wanted), "{said}");
    running.finish();
}

/// A function that runs all the time is not hit, and that is explained.
#[test]
fn a_call_that_began_before() {
    let Some(program) = program() else { return };
    let wanted = "capriole: a thread has been in served since before the probes were in: its entry was not \
                  seen, and it has not returned\n";
    let mut running = Running::start(&program, &[]);
    for (event, is_open) in [
        (":served", true),
        ("r :served", true),
        ("latency(:served)", true),
        (":told_to", false),
        // They have returned, and their return addresses are still on the stack.
        (":begin", false),
        (":once", false),
    ] {
        let said = told(&stat(&["-e", event], &running));
        assert!(said.contains("none of these was hit: "), "{event}: {said}");
        assert_eq!(said.contains(wanted), is_open, "{event}: {said}");
    }
    running.say("call");
    assert_eq!(running.line(), "done");
    running.finish();
}
