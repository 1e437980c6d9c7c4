//! Tests that a program that handles its own faults never sees a handler of Capriole's while
//! probes are attached and detached.

use crate::programs::{Compiler, build, build_go};
use crate::target::*;
use crate::traces::{Background, recorder, scratch, until_recording};
use capriole_codegen::runtime::ClockReading;
use capriole_host::error::TargetError;
use capriole_host::ptrace;
use capriole_patch::attach::attach;
use capriole_planner::guards;
use capriole_proc::process;
use capriole_ring::layout::Geometry;
use std::process::Stdio;
use std::time::Instant;

fn runs_among_probes(flags: &[&str], how: &[&str], events: &[&str]) {
    let Some(program) = build(Compiler::Gcc, "actions.c", flags) else {
        return;
    };
    let mut running = Running::start(&program, how);
    let mut hit = 0;
    let started = Instant::now();
    while hit < rounds(2, 12, 40) {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let recording = Background::attach(&trace, running.pid, events);
        running.turns(1024);
        let told = recording.end();
        running.assert_alive();
        // If the program keeps faulting at a site, the probe is written late or not at all.
        hit += usize::from(told["events"].as_u64() > Some(0));
        assert!(started.elapsed() < HANGS, "{hit}: {told}");
    }
    running.finish();
}

#[test]
fn it_sees_its_own_handlers() {
    runs_among_probes(
        &[],
        &[],
        &[":work text=+0($arg1):string", ":load from=$arg1"],
    );
}

#[test]
fn so_it_does_without_fields_in_memory() {
    runs_among_probes(
        &[],
        &[],
        &[":load from=$arg1", "libc:sigaction signal=$arg1:s32"],
    );
}

#[test]
fn they_are_told_where_the_program_stood() {
    for flags in [&[][..], &["-static"]] {
        runs_among_probes(flags, &["steady"], &[":load from=$arg1"]);
    }
}

/// A handler that steps over the faulting instruction resumes in the middle of the jump, at an
/// instruction that the jump covers.
#[test]
fn its_handlers_may_step_over_a_displaced_instruction() {
    for events in [
        &[":loads from=$arg1"][..],
        &[":loads", ":loads+2 from=%si"],
        &[":loads+2 from=%si"],
        &[":loads+4", ":work"],
    ] {
        runs_among_probes(&[], &["steady"], events);
        runs_among_probes(&[], &[], events);
    }
}

#[test]
fn so_it_does_in_a_static_program() {
    runs_among_probes(
        &["-static"],
        &[],
        &[":work text=+0($arg1):string", ":load from=$arg1"],
    );
}

/// Most attempts to attach find a thread in a call that may install a filter, and start again, with
/// memory elsewhere. What an attempt has prepared must be gone with it: handlers of the attempts
/// before would be called where nothing is mapped any more.
#[test]
fn an_attempt_leaves_nothing_to_the_next() {
    let Some(program) = build(Compiler::Gcc, "actions.c", &["-static"]) else {
        return;
    };
    let mut running = Running::start(&program, &["prctl"]);
    let process = running.process();
    let before = looks(&process);
    let all = Probes::of(&process, &[":work", ":load"], Reach::Best);
    let guards = guards::of_process(&process).expect("guards");
    let (mut times, mut refused) = (0, 0);
    let started = Instant::now();
    for round in 0.. {
        if times > 0 && round >= rounds(10, 180, 600) {
            break;
        }
        assert!(started.elapsed() < HANGS, "{refused} refused");
        let geometry = |journal| Geometry::for_buffer(1 << 20, 2, journal);
        let probes = all.probes.clone();
        match attach(
            &ptrace::host(&process),
            probes,
            &guards,
            ClockReading::default(),
            geometry,
        ) {
            Ok(attached) => {
                times += 1;
                running.turns(20);
                attached.detach().expect("detached");
            }
            Err(TargetError::Filtering { .. }) => refused += 1,
            Err(error) => panic!("{round}, after {times}: {error}"),
        }
        running.assert_alive();
    }
    println!("{times} attached, {refused} refused");
    assert_looks(&process, &before, "at the end");
    running.finish();
}

/// A thread seems to be where a guard must be written. It moves on, and all guards are
/// installed.
#[test]
fn who_is_at_a_guard_is_waited_for() {
    if !cfg!(debug_assertions) {
        println!("skipped: only debug builds stop at a step");
        return;
    }
    let Some(program) = build(Compiler::Gcc, "occupied.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let directory = scratch();
    let trace = directory.path().join("trace");
    let pid = running.pid.to_string();
    let mut command = recorder(&trace, &["--json", "-p", &pid, "-e", ":occupied_fault"]);
    command.env("CAPRIOLE_STOP_AT", "place of a guard occupied#1");
    let recording = Background::started(command);
    until("it finds the place occupied", || {
        recording.state() == process::State::Stopped
    });
    running.say("leave");
    assert_eq!(running.line(), "left");
    recording.signal(libc::SIGCONT);
    until_recording(running.pid);
    running.say("fault");
    assert_eq!(running.line(), "faulted");
    let told = recording.end();
    assert_eq!(told["events"], 1, "{told}");
    assert_eq!(told["restartable_sequences"], true, "{told}");
    running.finish();
}

/// The thread stays there. A program whose fault handlers would see wrong addresses is not
/// recorded.
#[test]
fn without_a_guard_of_handlers_there_is_no_recording() {
    let Some(program) = build(Compiler::Gcc, "occupied.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let before = looks(&running.process());
    let directory = scratch();
    let trace = directory.path().join("trace");
    let pid = running.pid.to_string();
    let mut recorder = recorder(
        &trace,
        &["-e", ":occupied_fault", "-p", &pid, "--duration", "300s"],
    );
    let mut recorder = recorder.stderr(Stdio::piped()).spawn().expect("it starts");
    while recorder.try_wait().expect("a child").is_none() {
        running.say("fault");
        assert_eq!(running.line(), "faulted");
    }
    let output = recorder.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(
        told(&output).contains("a thread stays at a place where Capriole needs a probe of its own"),
        "{}",
        told(&output)
    );
    assert_looks(&running.process(), &before, "afterwards");
    running.finish();
}

/// All guards are placed, whichever addresses are free. In a Go program without the guard after
/// `rt_sigaction`, a fault in a copied instruction would end the program instead of causing a
/// panic.
#[test]
fn guards_leave_room_to_each_other() {
    let Some(program) = build_go("go_faults.go", "go_faults") else {
        return;
    };
    for mapped in ["", "0x5000000"] {
        let mut running = Running::start(&program, &[mapped]);
        let guards = guards::of_process(&running.process()).expect("guards");
        assert!(guards.have_filters() && guards.have_actions(), "{mapped}");
        is_recorded(&mut running, ":main.faulted");
        running.finish();
    }
}

/// Records an event until it happens. It does, and the program lives on.
fn is_recorded(running: &mut Running, event: &str) {
    let directory = scratch();
    let trace = directory.path().join("trace");
    let recording = Background::attach(&trace, running.pid, &[event]);
    recording.until_recorded();
    running.assert_alive();
    let told = recording.end();
    assert!(told["events"].as_u64() > Some(0), "{told}");
    running.assert_alive();
}

/// Exceptions and backtraces of a handler find the kernel's frame of the signal and none of ours,
/// whatever else is probed.
#[test]
fn its_handlers_unwind_the_stack() {
    let flags = ["-fnon-call-exceptions", "-fasynchronous-unwind-tables"];
    let Some(program) = build(Compiler::Gxx, "unwound.cpp", &flags) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    for _ in 0..rounds(1, 9, 30) {
        is_recorded(&mut running, ":unwound_other n=$arg1");
    }
    running.finish();
}
