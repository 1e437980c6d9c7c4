//! What a thread has when it hits a breakpoint, it has behind it: registers, flags, vector
//! registers, red zone, blocked signals, alternate stack, access rights. The program checks itself,
//! see `trapped.c`.

use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::*;
use std::path::Path;
use std::process::Command;

const WORK: &[&str] = &[":trapped_work"];
const BUFFER: u64 = 64 << 20;

/// Attaches to the program and detaches from it again and again, while its threads hit breakpoints.
fn nothing_changes(program: &Path, arguments: &[&str], repeats: usize) {
    let mut running = Running::start(program, arguments);
    let process = running.process();
    let probes = Probes::of(&process, WORK, Reach::Breakpoint);
    let before = looks(&process);
    let storm = arguments.contains(&"--storm");
    let is_in_handler = |call: &&Call| call.thread > 1000;
    let mut complete = 0;
    for round in 0..repeats {
        let mut recording = attach_to(&process, &probes, BUFFER);
        recording.record_calls(200 * (1 + round % 4));
        recording.record_until("a handler makes a call", |calls| {
            !storm || calls.iter().any(|call| is_in_handler(&call))
        });
        running.assert_alive();
        let in_handlers = recording.calls.iter().filter(is_in_handler).count();
        assert_eq!(in_handlers > 0, storm, "{arguments:?}: {in_handlers}");
        // Without a processor for long, the test has not read all of them in time.
        if let Some(calls) = recording.detach() {
            assert_gap_free(&probes.names, &calls);
            complete += 1;
        }
        running.assert_alive();
        assert_no_session(&process);
        assert_text_is_the_files(&process, true);
        assert_looks(&process, &before, &format!("{arguments:?}, round {round}"));
    }
    running.finish();
    println!("{arguments:?}: {complete} of {repeats} complete");
    if effort() != Effort::Test {
        assert!(complete * 2 >= repeats, "{arguments:?}: {complete}");
    }
}

#[test]
fn by_a_breakpoint() {
    let Some(program) = build(Compiler::Gcc, "trapped.c", &[]) else {
        return;
    };
    nothing_changes(&program, &["--threads", "3"], rounds(3, 30, 1000));
}

#[test]
fn in_a_storm_of_signals() {
    let Some(program) = build(Compiler::Gcc, "trapped.c", &[]) else {
        return;
    };
    for more in [&[][..], &["--stack"], &["--disarmed"]] {
        nothing_changes(
            &program,
            &[&["--storm"], more].concat(),
            rounds(3, 30, 1000),
        );
    }
}

/// Its action has an alternate stack, and blocks signals: so does ours.
#[test]
fn where_the_program_handles_sigtrap() {
    let Some(program) = build(Compiler::Gcc, "trapped.c", &[]) else {
        return;
    };
    for more in [&[][..], &["--storm", "--stack"], &["--storm", "--disarmed"]] {
        let arguments = [&["--handler"], more].concat();
        nothing_changes(&program, &arguments, rounds(2, 24, 1000));
    }
}

#[test]
fn with_access_rights_of_its_own() {
    let Some(program) = build(Compiler::Gcc, "trapped.c", &[]) else {
        return;
    };
    let mut command = Command::new(&program);
    let tried = command.args(["--key", "--seconds", "0.01"]).output();
    let tried = tried.expect("a program that was just built starts");
    if told(&tried).contains("skipped") {
        println!("skipped: there are no protection keys here");
        return;
    }
    nothing_changes(&program, &["--key"], rounds(3, 30, 1000));
    let arguments = ["--key", "--storm", "--stack"];
    nothing_changes(&program, &arguments, rounds(3, 30, 1000));
}

/// The filter kills the program if a handler ends by `rt_sigreturn`.
#[test]
fn without_a_system_call() {
    let Some(program) = build(Compiler::Gcc, "trapped.c", &[]) else {
        return;
    };
    if !is_root("detach from a program with a filter") {
        return;
    }
    let mut running = Running::start(&program, &["--threads", "1", "--filter"]);
    let process = running.process();
    let probes = Probes::of(&process, WORK, Reach::Breakpoint);
    let mut recording = attach_to(&process, &probes, 4 * BUFFER);
    running.say("filter");
    // As many as it makes with the filter.
    recording.record_calls(20_000);
    assert_eq!(running.line(), "filtered");
    recording.record_calls(100);
    if let Some(calls) = recording.detach() {
        assert_gap_free(&probes.names, &calls);
        assert!(calls.len() > 20_000, "{}", calls.len());
    }
    assert_no_session(&process);
    running.finish();
}
