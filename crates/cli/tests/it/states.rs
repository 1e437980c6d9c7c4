//! Threads in unusual states, and the stack that a probe needs.

use crate::programs::{Compiler, build};
use crate::target::{
    Running, assert_no_session, assert_text_is_the_files, capriole, command, looks, told,
};
use crate::traces::{Background, counted_and_told, scratch, text, until_recording};
use capriole_testkit::workshop::Workshop;
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

/// Each kind of work for a hit, in calls with EFLAGS.AC and arguments that are not aligned.
#[test]
fn a_thread_whose_accesses_are_checked_for_alignment_is_recorded() {
    let Some(program) = build(Compiler::Gcc, "alignment_checked.c", &["-g"]) else {
        return;
    };
    let record: &[&str] = &["record", "-o"];
    let stat: &[&str] = &["stat"];
    let several = [
        "-e",
        ":work n",
        "-e",
        ":work n p->a",
        "-e",
        "r :work $retval",
        "-e",
        ":work if n > 3",
    ];
    let adds = [
        "-e",
        ":work",
        "-e",
        ":work sum(n)",
        "-e",
        ":work hist(n) by a=$arg2",
        "-e",
        "latency(:work)",
        "-e",
        ":work max(n) by p->a",
    ];
    let kinds: [(&[&str], &[&str]); 16] = [
        (record, &several),
        (stat, &adds),
        (record, &["-e", ":work $arg1 $arg2"]),
        (
            record,
            &[
                "-e",
                ":work a=+1($arg2):s32 b=+5($arg2):s64 t=+0($arg3):string",
            ],
        ),
        (record, &["-e", ":work p->a p->b p->text d $comm stack"]),
        (record, &["-e", ":work n if p->a == 7"]),
        (record, &["-e", "r :outer n=$entry:n r=$retval stack"]),
        (record, &["--graph", ":work", "--graph", ":outer"]),
        (
            record,
            &["--return=stack", "--graph", ":work", "--graph", ":outer"],
        ),
        (stat, &["-e", ":work"]),
        (stat, &["-e", ":work hist($arg1) by key=p->a"]),
        (stat, &["-e", ":work sum(n) by stack"]),
        (stat, &["-e", "latency(:work)"]),
        (stat, &["-e", "latency(:outer n -> :work n) by p->a"]),
        (stat, &["--breakpoints", "-e", ":one_byte"]),
        (
            record,
            &["--breakpoints", "-e", ":one_byte", "-e", ":work p->b stack"],
        ),
    ];
    for (rseq, calls, stepped) in [(0, 200, ""), (1, 200, ""), (1, 8, "stepped")] {
        for (how, what) in kinds {
            let directory = scratch();
            let trace = directory.path().join("t");
            let place: &[&str] = if how == record { &[text(&trace)] } else { &[] };
            let count = calls.to_string();
            let mut program = vec!["--json", "--", text(&program), &count];
            program.extend(Some(stepped).filter(|stepped| !stepped.is_empty()));
            let words = [how, place, what, &program].concat();
            let tunables = format!("glibc.pthread.rseq={rseq}");
            let output = command(&words).env("GLIBC_TUNABLES", tunables).output();
            let (counted, json) = counted_and_told(&output.expect("it starts"));
            let case = format!("{what:?} {rseq} {stepped}: {json}");
            assert_eq!(counted, calls, "{case}");
            assert_eq!(json["ended"], "program ended", "{case}");
            assert!(
                json["events"].as_u64() >= Some(calls) || how == stat,
                "{case}"
            );
        }
    }
}

#[test]
fn a_program_without_a_clock_is_refused() {
    is_refused("timeless", "PR_SET_TSC");
}

/// A call of ours in a thread that has set EFLAGS.TF must not trap: its signals are blocked meanwhile.
#[test]
fn a_thread_that_steps_itself_lives() {
    let Some(mut running) = start("stepping") else {
        return;
    };
    let pid = running.pid.to_string();
    let kinds: [&[&str]; 3] = [
        &["-e", ":painted sum(n=$arg1)"],
        &["-e", ":painted hist(n=$arg1) by stack"],
        &["--return=stack", "-e", "latency(:painted)"],
    ];
    for round in 0..6 {
        let words = [
            &["stat", "--duration", "50ms", "-p", &pid],
            kinds[round % 3],
        ]
        .concat();
        let output = capriole(&words);
        let said = told(&output);
        assert!(output.status.success(), "{round}: {said}");
        assert!(!said.contains("stays mapped"), "{round}: {said}");
    }
    running.say("call");
    assert_eq!(running.line(), "called");
    assert_text_is_the_files(&running.process(), false);
}

/// A debugger leaves the program at each step through a detour. Its trap flag must not come back.
#[test]
fn a_debugger_may_leave_in_a_detour() {
    let Some(program) = build(Compiler::Gcc, "left_by_debugger.c", &["-g"]) else {
        return;
    };
    // Without restartable sequences, each record goes the slow way.
    let kinds: [(usize, usize, &[&str]); 7] = [
        (0, 1, &["-e", ":work $arg1"]),
        (0, 0, &["-e", ":work $arg1"]),
        (0, 1, &["-e", ":work n p->text p->b"]),
        (0, 1, &["-e", ":work n t=+0($arg3):string if p->a == 7"]),
        (0, 1, &["--return=stack", "--graph", ":work"]),
        (1, 1, &["-e", ":flagged+4 a=+0($arg2):s64 if $arg1 > 3"]),
        (1, 0, &["-e", ":flagged+4 a=+0($arg2):s64 if $arg1 >= 0"]),
    ];
    for (place, rseq, what) in kinds {
        let tunables = format!("glibc.pthread.rseq={rseq}");
        let mut running = Running::of(Command::new(&program).env("GLIBC_TUNABLES", tunables));
        let places = running.line();
        let places: Vec<&str> = places.split_whitespace().skip(1).collect();
        let directory = scratch();
        let trace = directory.path().join("t");
        let recorder = Background::attach_with(&trace, running.pid, what);
        recorder.until_recorded();
        let pid = running.pid.to_string();
        let debugger = Command::new(&program)
            .args([&pid, places[place], places[2], places[3]])
            .output();
        let debugger = told(&debugger.expect("it starts"));
        assert!(debugger.contains("\nok "), "{what:?} {rseq}: {debugger}");
        running.assert_alive();
        assert_eq!(recorder.end()["ended"], "requested", "{what:?} {rseq}");
        running.finish();
    }
}

/// The stub of a jump into the bytes behind it, far from the detours, reads its target's address.
#[test]
fn a_far_stub_is_passed_with_alignment_checks() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__asm__(".text\n.balign 16\n.globl leaf\n.type leaf,@function\nleaf: lea 1(%rax),%rax\n lea 3(%rax),%rax\n ret\n"
	".size leaf,.-leaf\n.balign 16\n.skip OFFSET,0x90\n.globl f\n.type f,@function\nf: push %rdi\n1: call leaf\n"
	" subl $1,%edi\n jns 1b\n pop %rax\n ret\n.size f,.-f\n");
extern long f(long);
int main(int argc, char **argv)
{
	long sum = 0, calls = argc > 1 ? atol(argv[1]) : 0;
	for (long i = 0; i < calls; i++) {
		__asm__ volatile("sub $128, %%rsp; pushfq; orl $0x40000, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
		sum += f(i & 3);
		__asm__ volatile("sub $128, %%rsp; pushfq; andl $~0x40000, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
	}
	printf("ok sum=%ld calls=%ld\n", sum, calls);
	return 0;
}
"#;
    let shop = Workshop::new();
    for offset in ["0x2e5", "0x2e6", "0x1003", "0x77"] {
        let source = SOURCE.replace("OFFSET", offset);
        let flags = ["-O2", "-no-pie"];
        let Some(program) = shop.compile("gcc", &flags, &source, &format!("far_{offset}")) else {
            return;
        };
        for more in [&[][..], &["--one-instruction"]] {
            let words = [
                &["stat", "--json", "-e", ":f"],
                more,
                &["--", text(&program), "40"],
            ];
            let (calls, json) = counted_and_told(&capriole(&words.concat()));
            assert_eq!(
                json["events"][0]["calls"], calls,
                "{offset} {more:?}: {json}"
            );
        }
    }
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
        ("count", &["stat"], &["-e", ":painted"], 160),
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
