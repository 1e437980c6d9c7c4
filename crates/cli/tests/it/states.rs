//! Threads in unusual states, and the stack that a probe needs.

use crate::programs::{Compiler, build};
use crate::target::{
    Running, assert_no_session, assert_text_is_the_files, capriole, command, looks, told,
};
use crate::traces::{scratch, text, until_recording};
use std::process::{Command, Stdio};

fn start(state: &str) -> Option<Running> {
    let program = build(Compiler::Gcc, "states.c", &[])?;
    Some(Running::start(&program, &[state]))
}

/// Checks that recording is refused with a message about `what`, and that the program then goes
/// on as before.
fn is_refused(state: &str, what: &str) {
    let Some(mut running) = start(state) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let before = looks(&running.process());
    let pid = running.pid.to_string();
    let record = [
        "record",
        "-o",
        text(&trace),
        "--duration",
        "100ms",
        "-p",
        &pid,
    ];
    let stat = ["stat", "--duration", "100ms", "-p", &pid];
    for words in [&record[..], &stat] {
        let output = capriole(&[words, &["-e", ":painted"]].concat());
        let said = told(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(what), "{said}");
    }
    assert!(!trace.exists(), "nothing is left of it");
    assert_eq!(looks(&running.process()), before);
    assert_no_session(&running.process());
    assert_text_is_the_files(&running.process(), false);
    running.say("call");
    assert_eq!(running.line(), "called");
}

#[test]
fn a_thread_whose_accesses_are_checked_for_alignment_is_refused() {
    is_refused("checked", "EFLAGS.AC");
}

#[test]
fn a_program_without_a_clock_is_refused() {
    is_refused("timeless", "PR_SET_TSC");
}

/// Stack use of each kind of probe, in bytes, as docs/safety.md states it: for threads with
/// restartable sequences, and for others, whose events take a longer path.
#[test]
fn no_probe_needs_more_stack_than_is_said() {
    let Some(program) = build(Compiler::Gcc, "states.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let trace = text(&trace);
    let record: &[&str] = &["record", "--buffer-size", "1M", "-o", trace];
    let registers: Vec<String> = (0..40).map(|n| format!("r{n}=$arg1")).collect();
    let registers = format!(":painted {}", registers.join(" "));
    let kinds: [(&str, &[&str], &[&str], i64); 14] = [
        ("nothing", &[], &[], 0),
        ("count", &["stat"], &["-e", ":painted"], 136),
        ("latency", &["stat"], &["-e", "latency(:painted)"], 872),
        (
            "histogram",
            &["stat"],
            &["-e", ":painted hist($arg1) by key=$arg2"],
            872,
        ),
        ("record", record, &["-e", ":painted $arg1 $arg2"], 608),
        (
            "forty registers",
            record,
            &["-e", &registers],
            608 + 8 * (40 - 7),
        ),
        ("return", record, &["-e", "r :painted n=$retval"], 608),
        ("graph", record, &["--graph", ":painted"], 608),
        (
            "followed",
            record,
            &["--return=stack", "--graph", ":painted"],
            608,
        ),
        (
            "memory",
            record,
            &["-e", ":painted text=+0($arg2):string"],
            872,
        ),
        (
            "interval",
            &["stat"],
            &[
                "-e",
                "latency(:painted a=$arg1 -> :painted a=$arg1) by b=+0($arg2):string",
            ],
            952,
        ),
        ("stack", record, &["-e", ":painted stack"], 1024),
        ("callers", &["stat"], &["-e", ":painted by stack"], 1024),
        (
            "stack at the exit",
            record,
            &["-e", "r :painted stack"],
            1024,
        ),
    ];
    let kinds = kinds.iter().flat_map(|kind| [(kind, 0), (kind, 1)]);
    for ((kind, how, what, said), rseq) in kinds {
        let tunables = format!("glibc.pthread.rseq={rseq}");
        let mut states = Command::new(&program);
        states.arg("painted").env("GLIBC_TUNABLES", tunables);
        let mut running = Running::of(&mut states);
        let pid = running.pid.to_string();
        let recorder = (!how.is_empty()).then(|| {
            let words = [how, &["-p", &pid][..], what].concat();
            let child = command(&words).stdout(Stdio::null()).spawn();
            until_recording(running.pid);
            child.expect("it starts")
        });
        running.say("call");
        let depth: i64 = running.line().parse().expect("a number");
        println!("{kind}: {depth} bytes with rseq={rseq}");
        if let Some(mut child) = recorder {
            // SAFETY: sends a signal to a child of this test that has not been waited for.
            assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
            assert!(child.wait().expect("it ends").success());
            let _ = std::fs::remove_dir_all(trace);
        }
        running.finish();
        assert!(depth <= *said, "{kind}: {depth} bytes, not at most {said}");
        // One that only counts does so when the kernel has interrupted it, which is rare.
        if *kind != "count" {
            assert_eq!(depth > 0, *said > 0, "{kind}: it is measured");
        }
    }
}
