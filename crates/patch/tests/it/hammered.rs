//! Attach and detach, again and again, while threads run through the probed functions as
//! fast as they can.
//!
//! Every round must have recorded each thread's calls from the first to the last without a
//! gap, the program must find all its results right, and after every round it must look
//! exactly as before: text, handlers, mappings and descriptors.
//!
//! The short form runs with the other tests. The long form, a thousand rounds of each:
//!
//! ```text
//! CAPRIOLE_LONG=1 cargo test --release -p capriole-cli --test it hammered:: -- --nocapture
//! ```

use capriole_testkit::effort::{Effort, effort};
use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

struct Hammering<'a> {
    program: &'a Path,
    arguments: &'a [&'a str],
    events: &'a [&'a str],
    reach: Reach,
    rounds: usize,
    /// Accepts the names of the functions to probe.
    wanted: fn(&str) -> bool,
}

fn all(_: &str) -> bool {
    true
}

/// One program at a time hammers; two would only compete for the processors.
static TURN: Mutex<()> = Mutex::new(());

impl<'a> Hammering<'a> {
    /// Uses the best probe for each function except `step`, whose many calls would only fill the
    /// buffer.
    fn of(program: &'a Path, arguments: &'a [&'a str], rounds: usize) -> Hammering<'a> {
        Hammering {
            program,
            arguments,
            events: HAMMER,
            reach: Reach::Best,
            rounds,
            wanted: |name| name != "step" && name != "work_library",
        }
    }

    /// Nobody empties the buffer while the process is stopped and resumed for the last time, which
    /// takes longer with more threads.
    fn buffer(&self) -> u64 {
        if self.arguments.contains(&"200") {
            512 << 20
        } else {
            64 << 20
        }
    }

    fn run(&self) -> String {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // This test must sort the program's records meanwhile.
        let mut running = Running::last(self.program, self.arguments);
        let process = running.process();
        let mut probes = Probes::of(&process, self.events, self.reach);
        probes.keep(self.wanted);
        assert!(!probes.probes.is_empty());
        // With --fork, children come and go by themselves; with --dlopen, libraries do.
        let steady = !self.arguments.contains(&"--dlopen");
        let before = looks(&process);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let (mut complete, mut calls_seen) = (0, 0);
        // A loaded machine may give this test too little time to empty the buffer, and a recording
        // of few milliseconds none to some thread: more rounds then.
        let seen_all = |counts: &BTreeMap<String, usize>| {
            (probes.names.iter()).all(|name| counts.contains_key(name))
        };
        let is_soak = effort() != Effort::Test;
        let more = 10 * self.rounds;
        let mut round = 0;
        while round < self.rounds
            || (is_soak && round < more && !(complete * 2 >= round && seen_all(&counts)))
        {
            running.assert_alive();
            let mut recording = attach_to(&process, &probes, self.buffer());
            recording.record(Duration::from_millis(1 + round as u64 % 4));
            if let Some(calls) = recording.detach() {
                complete += 1;
                calls_seen += calls.len();
                for (name, n) in assert_gap_free(&probes.names, &calls) {
                    *counts.entry(name).or_default() += n;
                }
            }
            running.assert_alive();
            assert_no_session(&process);
            assert_text_is_the_files(&process, round % 10 != 0);
            if steady {
                assert_looks(&process, &before, &format!("round {round}"));
            }
            round += 1;
        }
        let text = running.finish();
        println!(
            "{:?} {:?}: {round} rounds, {complete} complete, {calls_seen} calls: {counts:?}",
            self.arguments, self.reach
        );
        if !is_soak {
            return text;
        }
        assert!(
            complete * 2 >= round,
            "the buffer was too small in {} of {round} rounds",
            round - complete
        );
        for name in &probes.names {
            assert!(counts.contains_key(name), "{name} was never recorded");
        }
        text
    }
}

#[test]
fn a_program_with_four_threads() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    Hammering::of(&program, &["--threads", "4"], rounds(3, 90, 1000)).run();
}

#[test]
fn with_breakpoints_everywhere() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    Hammering {
        reach: Reach::Breakpoint,
        wanted: all,
        ..Hammering::of(&program, &["--threads", "4"], rounds(3, 90, 1000))
    }
    .run();
}

#[test]
fn a_static_program_without_pie() {
    let flags = ["-static", "-no-pie"];
    let Some(program) = build(Compiler::Gcc, "hammer.c", &flags) else {
        return;
    };
    Hammering::of(&program, &["--threads", "3"], rounds(3, 60, 1000)).run();
}

/// musl registers no restartable sequences, so this uses locked mode.
#[test]
fn a_program_without_restartable_sequences() {
    for flags in [&[][..], &["-static"]] {
        let Some(program) = build(Compiler::MuslGcc, "hammer.c", flags) else {
            return;
        };
        Hammering::of(
            &program,
            &["--threads", "3", "--signals"],
            rounds(3, 45, 1000),
        )
        .run();
    }
}

#[test]
#[ignore = "soak"]
fn a_program_with_two_hundred_threads() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &["-no-pie"]) else {
        return;
    };
    for reach in [Reach::Best, Reach::Breakpoint] {
        Hammering {
            events: &[":work_switch"],
            reach,
            wanted: all,
            ..Hammering::of(
                &program,
                &["--threads", "200", "--signals"],
                rounds(3, 6, 100),
            )
        }
        .run();
    }
}

#[test]
fn with_signals_forks_and_faults() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    for reach in [Reach::Best, Reach::Breakpoint] {
        for arguments in [
            &["--threads", "3", "--signals"][..],
            &["--threads", "2", "--segv"],
            &["--threads", "2", "--fork"],
            &["--threads", "2", "--signals", "--segv", "--fork"],
        ] {
            Hammering {
                reach,
                ..Hammering::of(&program, arguments, rounds(3, 24, 1000))
            }
            .run();
        }
    }
}

#[test]
fn with_libraries_that_come_and_go() {
    let (Some(program), Some(library)) = (
        build(Compiler::Gcc, "hammer.c", &[]),
        build(Compiler::Gcc, "hammer_library.c", &["-shared", "-fPIC"]),
    ) else {
        return;
    };
    Hammering::of(
        &program,
        &["--threads", "2", "--dlopen", &library.display().to_string()],
        rounds(3, 90, 1000),
    )
    .run();
}
