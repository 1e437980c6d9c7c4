//! Debuggers find the way from a handler to the probed function, and on to `main`.

use super::{command, output, program};
use crate::target::{Running, told};
use std::process::{Command, Stdio};

/// Returns the names of the functions in a backtrace of gdb at a breakpoint.
fn backtrace(how: &str, function: &str) -> Option<Vec<String>> {
    let program = program("probes_unwound.c")?;
    let mut target = command(&program, &[how]);
    let mut running = Running::of(&mut target);
    let pid = running.pid.to_string();
    let mut gdb = Command::new("gdb");
    // The file by its name: what /proc has for it is "(deleted)" once another test has built it anew.
    gdb.args(["-nx", "-batch"]).arg(&program);
    gdb.args(["-p", &pid]);
    let commands = [
        "set debuginfod enabled off",
        // The program has breakpoints of its own, and a handler.
        "handle SIGTRAP nostop noprint pass",
        &format!("break {function}"),
        "continue",
        "backtrace",
        "frame function probed",
        "info args",
        "delete",
        // gdb would give it the last one, which was gdb's own.
        "handle SIGTRAP nopass",
        "detach",
    ];
    for command in commands {
        gdb.args(["-ex", command]);
    }
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("skipped: there is no gdb");
        return None;
    }
    let output = output(gdb.stdin(Stdio::null()));
    let text = told(&output);
    if text.contains("ptrace: Operation not permitted") {
        println!("skipped: gdb may not attach");
        return None;
    }
    println!("{text}");
    let frame = |line: &str| {
        let (_, rest) = line.strip_prefix('#')?.split_once(' ')?;
        let rest = rest.trim_start();
        let rest = rest.split_once(" in ").map_or(rest, |(_, rest)| rest);
        Some(rest.split([' ', '(']).next()?.to_owned())
    };
    let lines = text.lines().skip_while(|line| !line.starts_with("#0 "));
    let frames = lines.take_while(|line| !line.contains("number ="));
    let mut frames: Vec<String> = frames.filter_map(frame).collect();
    if let Some(end) = frames.iter().position(|name| name == "main") {
        frames.truncate(end + 1);
    }
    // The program goes on as if nobody had looked: it calls some more before it ends.
    running.signal(libc::SIGTERM);
    let ended = running.line();
    assert_eq!(ended, "ok", "{text}");
    Some(frames)
}

/// Checks that these functions follow each other in a backtrace, with functions of the library
/// between the first and the second.
fn follow(how: &str, functions: &[&str]) {
    let Some(frames) = backtrace(how, functions[0]) else {
        return;
    };
    assert_eq!(
        frames.first().map(String::as_str),
        Some(functions[0]),
        "{frames:?}"
    );
    let rest = &frames[frames.len().saturating_sub(functions.len() - 1)..];
    assert_eq!(rest, &functions[1..], "{frames:?}");
}

#[test]
fn gdb_in_a_handler_of_a_jump() {
    follow("jump", &["pre", "probed", "middle", "outer", "main"]);
}

#[test]
fn gdb_in_a_handler_of_a_breakpoint() {
    follow("breakpoint", &["pre", "probed", "middle", "outer", "main"]);
}

#[test]
fn gdb_in_a_post_handler() {
    follow("post", &["post", "probed", "middle", "outer", "main"]);
}

/// The instruction is executed: of a call the function that is called is there, of a return the caller.
#[test]
fn gdb_in_a_post_handler_of_a_branch() {
    follow("call", &["post", "probed", "through", "main"]);
    follow("return", &["post", "main"]);
}

#[test]
fn gdb_at_the_entry_of_a_call() {
    follow("exits", &["entered", "middle", "outer", "main"]);
    follow("address", &["entered", "middle", "outer", "main"]);
}

#[test]
fn gdb_at_the_return_of_a_call() {
    follow("exits", &["returned", "outer", "main"]);
    follow("address", &["returned", "outer", "main"]);
}

/// Through the frame of a call whose return address is replaced: a stub without a name stands for it.
#[test]
fn gdb_through_a_replaced_return_address() {
    let Some(mut frames) = backtrace("address", "pre") else {
        return;
    };
    assert!(frames.contains(&"??".to_owned()), "{frames:?}");
    frames.retain(|name| name != "??");
    let end = ["probed", "middle", "outer", "main"];
    assert_eq!(frames[frames.len().saturating_sub(4)..], end, "{frames:?}");
}
