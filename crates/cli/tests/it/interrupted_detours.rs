//! Signals that interrupt Capriole's own code in a program: at each instruction of it, an unwinder that starts
//! in the handler finds the probed function and all its callers, and exceptions and cancellations get
//! through with registers, stack and destructors in order.

use crate::programs::{Compiler, build};
use crate::traces::{Background, record_program, scratch};
use capriole_testkit::target::Running;
use std::path::PathBuf;
use std::process::Command;

/// Events whose probes have all forms of code: straight, with several registers, shared, and run by the
/// resident, which makes system calls.
const RECORDED: &[&[&str]] = &[
    &[
        ":none",
        ":six $arg1 $arg2 $arg3 $arg4 $arg5 $arg6",
        ":text words=+0(%di):string n=+0(%si)",
        ":many $arg1 $arg2 if $arg1 > 3",
    ],
    &[
        "r :none",
        "r :six $retval $arg1",
        ":text stack",
        "r :many $retval if $retval > 3",
        ":text second=$arg1",
    ],
];
const COUNTED: &[&[&str]] = &[
    &[":none", ":six by $arg1", ":text by stack", "latency(:many)"],
    &[
        "latency(:none)",
        ":six sum($arg2) by $arg1",
        ":text hist($arg1)",
        ":many if $arg1 > 3",
    ],
];

fn program(flags: &[&str]) -> Option<PathBuf> {
    let usual = [
        "-fnon-call-exceptions",
        "-fasynchronous-unwind-tables",
        "-rdynamic",
    ];
    build(Compiler::Gxx, "interrupted.cpp", &[&usual, flags].concat())
}

/// Starts the program without restartable sequences, or with them.
fn started(program: &PathBuf, mode: &str, restartable: bool) -> Running {
    let mut command = Command::new(program);
    command.arg(mode);
    if !restartable {
        command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    }
    Running::of(&mut command)
}

/// Lets the program do its work while it is recorded by each list of events. It must have been interrupted in
/// our code.
fn all_ways(mode: &str) {
    let Some(program) = program(&[]) else { return };
    for restartable in [true, false] {
        for events in RECORDED {
            let mut running = started(&program, mode, restartable);
            let scratch = scratch();
            let trace = scratch.path().join("trace");
            let recorder = Background::attach(&trace, running.pid, events);
            running.say("go");
            let said = running.line();
            recorder.end();
            assert!(!said.starts_with("0 "), "{said}");
            running.finish();
        }
        for events in COUNTED {
            let mut running = started(&program, mode, restartable);
            let pid = running.pid.to_string();
            let mut words = vec!["stat", "--json", "-p", &pid];
            words.extend(events.iter().flat_map(|event| ["-e", event]));
            let stat = Background::of(crate::target::command(&words), running.pid);
            running.say("go");
            let said = running.line();
            stat.end();
            assert!(!said.starts_with("0 "), "{said}");
            running.finish();
        }
    }
}

#[test]
fn backtraces_lead_through_each_instruction() {
    all_ways("walk");
}

#[test]
fn exceptions_come_out_of_each_instruction() {
    all_ways("throw");
}

#[test]
fn an_exception_of_a_displaced_instruction_is_caught() {
    let Some(program) = program(&[]) else { return };
    for event in [":load", ":load $arg1", ":load by $arg1"] {
        let mut running = started(&program, "fault", true);
        let scratch = scratch();
        let trace = scratch.path().join("trace");
        let recorder = match event.contains(" by ") {
            false => Background::attach(&trace, running.pid, &[event]),
            true => {
                let pid = running.pid.to_string();
                let words = ["stat", "--json", "-e", event, "-p", &pid];
                Background::of(crate::target::command(&words), running.pid)
            }
        };
        running.say("go");
        running.line();
        recorder.end();
        running.finish();
    }
}

#[test]
fn cancelled_threads_run_their_destructors() {
    let Some(program) = program(&[]) else { return };
    let mut running = started(&program, "cancel", true);
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = Background::attach(&trace, running.pid, &[":none text=+0(%sp):u8"]);
    running.say("go");
    running.line();
    recorder.end();
    running.finish();
}

/// A program that is started has its guard before it has loaded anything.
#[test]
fn exceptions_come_out_of_a_program_that_is_started() {
    let Some(program) = program(&["-static-libgcc", "-static-libstdc++"]) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    record_program(&trace, &["-e", ":load"], &program, &["fault", "now"]);
}
