//! Programs that end their main thread and go on in others: `/proc/PID` shows neither their memory nor
//! their files.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{
    Background, calls, recorder, scratch, text, told_by_stat, until_looked, until_recording,
};
use std::io::Write;
use std::process::Stdio;

/// Starts it, without its main thread or with it. Returns it and what it looks like.
fn started(arguments: &[&str]) -> Option<(Running, Looks)> {
    let program = build(Compiler::Gcc, "main_ended.c", &[])?;
    let running = Running::start(&program, arguments);
    let before = looks(&running.process());
    Some((running, before))
}

fn ask(running: &mut Running, command: &str) {
    running.say(command);
    assert_eq!(running.line(), "done");
}

/// Checks that nothing is left, and that the program has made so many calls.
fn ends_untouched(running: Running, before: Option<&Looks>, calls: u64) {
    let process = running.process();
    assert!(process.is_alive() && !process.is_over());
    assert_no_session(&process);
    assert_text_is_the_files(&process, true);
    if let Some(before) = before {
        assert_looks(&process, before, "at the end");
    }
    let said = running.finish();
    assert!(said.ends_with(&format!("ok calls={calls}\n")), "{said}");
}

const EVENTS: [&str; 2] = [":work $arg1 $arg2:string stack", ":work%return $retval"];

fn without_its_main_thread_it_is_recorded(returns: &str) {
    let Some((mut running, before)) = started(&["now"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let events = EVENTS.map(|event| ["-e", event]).concat();
    let words = [&[returns], &events[..]].concat();
    let recorder = Background::attach_with(&trace, running.pid, &words);
    ask(&mut running, "call");
    let told = recorder.end();
    assert_eq!(told["ended"], "requested", "{told}");
    let counted: Vec<u64> = calls(&trace).into_values().collect();
    assert_eq!(counted, [10, 10]);
    // The code of replaced return addresses stays.
    let before = (returns != "--return=stack").then_some(before);
    ends_untouched(running, before.as_ref(), 10);
}

#[test]
fn one_without_its_main_thread_is_recorded() {
    without_its_main_thread_it_is_recorded("--return=exits");
}

#[test]
fn return_addresses_are_replaced_in_one_without_its_main_thread() {
    without_its_main_thread_it_is_recorded("--return=stack");
}

#[test]
fn one_whose_main_thread_ends_is_recorded_on() {
    let Some((mut running, before)) = started(&[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let recorder = Background::attach(&trace, running.pid, &EVENTS);
    for command in ["call", "end", "call"] {
        ask(&mut running, command);
    }
    until_looked(&trace);
    ask(&mut running, "call");
    recorder.end();
    let counted: Vec<u64> = calls(&trace).into_values().collect();
    assert_eq!(counted, [30, 30]);
    ends_untouched(running, Some(&before), 30);
}

#[test]
fn probes_left_in_one_are_taken_out() {
    let Some((mut running, before)) = started(&[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let pid = running.pid.to_string();
    let mut recorder = recorder(&trace, &["-p", &pid, "-e", EVENTS[0], "-e", EVENTS[1]]);
    let mut recorder = recorder.spawn().expect("capriole starts");
    until_recording(running.pid);
    recorder.kill().expect("a child");
    recorder.wait().expect("a child");
    for command in ["call", "end", "call"] {
        ask(&mut running, command);
    }
    let output = capriole(&["detach", &running.pid.to_string()]);
    assert!(output.status.success(), "{}", told(&output));
    ends_untouched(running, Some(&before), 20);
}

/// The recorder waits for the program, not for its main thread.
#[test]
fn one_that_was_launched_is_recorded_to_its_end() {
    let Some(program) = build(Compiler::Gcc, "main_ended.c", &[]) else {
        return;
    };
    let words = ["stat", "--json", "-e", ":work", "--", text(&program)];
    let mut stat = command(&words);
    stat.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = stat.spawn().expect("capriole starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"call\nend\ncall\n").expect("it reads");
    drop(input);
    let (said, told) = told_by_stat(&child.wait_with_output().expect("it ends"));
    assert!(said.ends_with("ok calls=20\n"), "{said}");
    assert_eq!(told["events"][0]["calls"], 20, "{told}");
    assert_eq!(told["ended"], "program ended", "{told}");
}
