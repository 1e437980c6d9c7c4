//! Programs that run under binary translators are refused, naming the translator, before they
//! are touched. Programs that only look like them are not refused.

use crate::programs::{Compiler, build, copied};
use crate::target::{Running, capriole, looks, told};
use crate::traces::{scratch, text};
use std::path::Path;
use std::process::Command;

fn is_there(program: &str, package: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no {program} (Debian: {package})");
    }
    found
}

/// Checks that `record`, `stat` and `list` refuse it, and that the program finds its own
/// answers right.
fn is_refused(mut running: Running, name: &str) {
    let directory = scratch();
    let trace = directory.path().join("t");
    // Valgrind blocks signals now and then.
    let looks = || looks(&running.process()).without_mask();
    let before = looks();
    let pid = running.pid.to_string();
    let record = ["record", "-o", text(&trace), "--duration", "1s", "-p", &pid];
    for words in [
        &record[..],
        &["stat", "--duration", "1s", "-p", &pid],
        &["check", "-p", &pid],
    ] {
        let event: &[&str] = match words[0] {
            "check" => &[":single"],
            _ => &["-e", ":single"],
        };
        let output = capriole(&[words, event].concat());
        let said = told(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("is run by {name}, ")), "{said}");
    }
    assert!(!trace.exists(), "nothing is left of it");
    assert_eq!(looks(), before, "it was not touched");
    running.say("call");
    assert_eq!(running.line(), "called");
    drop(running);
}

/// Checks that `record` does not start it either.
fn is_not_launched(words: &[&str], name: &str) {
    let directory = scratch();
    let trace = directory.path().join("t");
    for command in [&["record", "-o", text(&trace)][..], &["stat"]] {
        let output = capriole(&[command, &["-e", ":single", "--"], words].concat());
        let said = told(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("is run by {name}, ")), "{said}");
        assert!(!said.contains("ready"), "it has not run: {said}");
    }
}

#[test]
fn valgrind_is_refused_with_each_of_its_tools() {
    let Some(program) = build(Compiler::Gcc, "beside.c", &[]) else {
        return;
    };
    if !is_there("valgrind", "valgrind") {
        return;
    }
    for tool in ["memcheck", "callgrind", "helgrind", "none"] {
        let tool = format!("--tool={tool}");
        let mut command = Command::new("valgrind");
        command.args(["-q", &tool]);
        command.arg(&program);
        command.stderr(std::process::Stdio::null());
        // Callgrind leaves a file there.
        let directory = scratch();
        command.current_dir(directory.path());
        is_refused(Running::of(&mut command), "Valgrind");
    }
    is_not_launched(&["valgrind", "-q", text(&program)], "Valgrind");
}

#[test]
fn qemu_is_refused() {
    let Some(program) = build(Compiler::Gcc, "beside.c", &[]) else {
        return;
    };
    if !is_there("qemu-x86_64", "qemu-user") {
        return;
    }
    let mut command = Command::new("qemu-x86_64");
    is_refused(Running::of(command.arg(&program)), "QEMU (user mode)");
    is_not_launched(&["qemu-x86_64", text(&program)], "QEMU (user mode)");
}

/// Programs whose names resemble those of translators, in directories whose names do, too.
#[test]
fn a_name_alone_is_no_reason() {
    let Some(program) = build(Compiler::Gcc, "beside.c", &[]) else {
        return;
    };
    let directory = scratch();
    let valgrind = directory.path().join("valgrind");
    std::fs::create_dir(&valgrind).expect("a directory");
    for name in [
        "memcheck-amd64-linux",
        "qemu-x86_64",
        "valgrind",
        "pin",
        "sde64",
        "vgpreload_core-amd64-linux.so",
    ] {
        let copy = valgrind.join(name);
        copied(&program, &copy);
        records(&copy);
    }
}

fn records(program: &Path) {
    let mut running = Running::start(program, &[]);
    let pid = running.pid.to_string();
    let words = ["stat", "--duration", "50ms", "-e", ":single", "-p", &pid];
    let output = capriole(&words);
    assert!(output.status.success(), "{}", told(&output));
    running.say("call");
    assert_eq!(running.line(), "called");
    running.finish();
}
