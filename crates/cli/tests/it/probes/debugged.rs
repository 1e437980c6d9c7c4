//! A debugger is used as usual on a program that probes itself, in the way that `docs/probes.md` says.

use super::{command, output, program};
use crate::programs::{Compiler, build};
use crate::target::{Running, told};
use std::process::{Command, Stdio};

/// Has gdb attach to the program once its probes are in, and execute some commands, in which the program
/// has to end by itself, with its own results. Returns what gdb prints; `None` if it may not attach.
fn debugged(how: &str, commands: &[&str]) -> Option<String> {
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("skipped: there is no gdb");
        return None;
    }
    let program = program("probes_debugged.c")?;
    let mut running = Running::of(&mut command(&program, &[how]));
    let pid = running.pid.to_string();
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch"]).arg(&program);
    gdb.args(["-p", &pid, "-ex", "set debuginfod enabled off"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    let text = told(&output(gdb.stdin(Stdio::null())));
    if text.contains("ptrace: Operation not permitted") {
        println!("skipped: gdb may not attach");
        return None;
    }
    println!("{text}");
    assert_eq!(running.line(), "ok", "{text}");
    assert!(text.contains("exited normally"), "{text}");
    Some(text)
}

/// Checks that these stand in a text, one after the other.
fn in_order(mut text: &str, parts: &[&str]) {
    for part in parts {
        let (_, rest) = text.split_once(part).unwrap_or_else(|| panic!("{part}"));
        text = rest;
    }
}

/// Probes that are jumps: breakpoints before and behind them, at them, and in their handlers; steps over
/// probed functions and into them. gdb has its own settings.
#[test]
fn gdb_breaks_and_steps_where_probes_are_jumps() {
    let commands = [
        "break outer",
        "continue",
        "next",
        "next",
        "print first + 2 == second",
        "delete",
        "break pre",
        "continue",
        "backtrace",
        "next",
        "delete",
        "break *probed",
        "continue",
        "continue",
        "delete",
        "tbreak *inner",
        "continue",
        "stepi 30",
        "tbreak returned",
        "continue",
        "backtrace",
        "tbreak outer",
        "continue",
        "finish",
        "set var stop_asked = 1",
        "continue",
    ];
    let Some(text) = debugged("jumps", &commands) else {
        return;
    };
    let parts = [
        "Breakpoint 1, outer",
        "$1 = 1",
        "Breakpoint 2, pre",
        "in inner (",
        "in outer (",
        "Breakpoint 3, probed",
        "Breakpoint 3, probed",
        "Temporary breakpoint 4, inner",
        "Temporary breakpoint 5, returned",
        "outer (",
        "Temporary breakpoint 6, outer",
        "Value returned is",
    ];
    in_order(&text, &parts);
    assert!(!text.contains("SIGTRAP"), "{text}");
}

/// A probe that is a breakpoint: gdb stops there, and gives the signal to the program.
#[test]
fn gdb_passes_on_the_breakpoint_of_a_probe() {
    let on = "signal SIGTRAP";
    let commands = ["continue", on, on, on, "set var stop_asked = 1", on, on];
    let Some(text) = debugged("breakpoints", &commands) else {
        return;
    };
    let hits = ["Program received signal SIGTRAP"; 4];
    in_order(&text, &hits);
}

/// A debugger leaves the program at each step through a probe with a handler, and through the entry of a call
/// whose return has one. Its trap flag must not come back.
#[test]
fn a_debugger_may_leave_in_a_probe() {
    let Some(program) = program("probes_debugged.c") else {
        return;
    };
    let Some(debugger) = build(Compiler::Gcc, "left_by_debugger.c", &["-g"]) else {
        return;
    };
    let mut running = Running::of(&mut command(&program, &["left"]));
    let places = running.line();
    let places: Vec<&str> = places.split_whitespace().skip(1).collect();
    let pid = running.pid.to_string();
    for place in &places[..2] {
        let mut debugger = Command::new(&debugger);
        let left = output(debugger.args([pid.as_str(), place, places[2], places[3]]));
        let left = told(&left);
        assert!(left.contains("\nok "), "{place}: {left}");
    }
    running.signal(libc::SIGTERM);
    assert_eq!(running.line(), "ok");
}
