//! A program that handles its own faults never sees a handler of Capriole's, while probes come
//! and go.

#[path = "common/programs.rs"]
mod programs;
#[path = "common/target.rs"]
mod target;
#[path = "common/traces.rs"]
mod traces;

use programs::{Compiler, build};
use std::time::Duration;
use target::*;
use traces::{Background, scratch};

fn runs_among_probes(flags: &[&str], how: &[&str], events: &[&str]) {
    let Some(program) = build(Compiler::Gcc, "actions.c", flags) else {
        return;
    };
    let mut running = Running::start(&program, how);
    for round in 0..rounds(4, 40) {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let recording = Background::attach(&trace, running.pid, events);
        std::thread::sleep(Duration::from_millis(100));
        running.assert_alive();
        let told = recording.end();
        assert!(told["events"].as_u64() > Some(0), "{round}: {told}");
        running.assert_alive();
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

/// A handler that steps over the instruction that faults goes on in the middle of the jump: at
/// an instruction that it covers.
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
