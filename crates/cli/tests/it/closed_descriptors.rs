//! Standard descriptors that are closed when the command starts: no result is lost without a message,
//! and no other file gets their numbers.

use crate::programs::{Compiler, build};
use crate::target::{sleeping, told};
use crate::traces::{scratch, text};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Output, Stdio};

/// Runs `capriole` with one of its standard descriptors closed.
fn without(descriptor: i32, directory: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::target::own();
    command.args(arguments).current_dir(directory);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let close = move || {
        // SAFETY: a system call on a descriptor that nothing uses before the command is executed.
        unsafe { libc::close(descriptor) };
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes only a system call.
    unsafe { command.pre_exec(close) };
    command.output().expect("capriole starts")
}

/// Nothing is done, and the message says why: neither is the program started, nor a file made.
#[test]
fn a_closed_output_is_refused() {
    let Some(program) = build(Compiler::Gcc, "rows.c", &[]) else {
        return;
    };
    let directory = scratch();
    let mark = directory.path().join("started");
    let started = format!("touch {}; exec {}", text(&mark), text(&program));
    let commands: [&[&str]; 11] = [
        &["stat", "-e", ":halved", "--", text(&program)],
        &["stat", "-e", "libc:read", "--", "sh", "-c", &started],
        &[
            "record",
            "-o",
            "trace",
            "-e",
            "libc:read",
            "--",
            "sh",
            "-c",
            &started,
        ],
        &["report", "trace"],
        &["list", text(&program)],
        &["check", ":halved", text(&program)],
        &["help"],
        &["help", "events"],
        &["stat", "--help"],
        &["--help"],
        &["--version"],
    ];
    for arguments in commands {
        let output = without(1, directory.path(), arguments);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{arguments:?}: {}",
            told(&output)
        );
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "capriole: standard output is closed, so the results have no place to go; nothing was \
             done: open it, or redirect it to /dev/null\n",
            "{arguments:?}"
        );
    }
    let made: Vec<_> = std::fs::read_dir(directory.path())
        .expect("a directory")
        .collect();
    assert!(made.is_empty(), "{made:?}");
    // Wrong words are still told as such.
    let output = without(1, directory.path(), &["bogus"]);
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
}

/// Results are complete, and no file that is opened meanwhile gets messages or is read as input.
#[test]
fn closed_input_and_messages_do_no_harm() {
    let Some(program) = build(Compiler::Gcc, "rows.c", &[]) else {
        return;
    };
    for descriptor in [0, 2] {
        let directory = scratch();
        let words = ["stat", "-e", ":halved", "--", text(&program)];
        let output = without(descriptor, directory.path(), &words);
        assert!(output.status.success(), "{}", told(&output));
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(
            table.contains("   40 ") && table.contains("  halved\n"),
            "{table}"
        );
        let words = [
            "record",
            "-o",
            "trace",
            "-e",
            ":halved",
            "--",
            text(&program),
        ];
        let output = without(descriptor, directory.path(), &words);
        assert!(output.status.success(), "{}", told(&output));
        assert_eq!(output.stdout, b"ok rows=40\n");
        // A message in a file of the trace would damage it.
        let trace = directory.path().join("trace");
        assert_eq!(crate::traces::calls(&trace)["halved"], 40);
        if descriptor == 2 {
            assert_eq!(output.stderr, b"");
        }
    }
}

/// Runs `capriole` with an output that nobody reads.
fn unread(arguments: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = crate::target::own();
    command.args(arguments).stdin(Stdio::null());
    command.stdout(writer).stderr(Stdio::piped());
    command
        .spawn()
        .and_then(Child::wait_with_output)
        .expect("capriole runs")
}

/// The status is the program's, whether or not the results were read: as of `stat ... | head -n 1`.
#[test]
fn an_unread_output_leaves_the_status_of_the_program() {
    let directory = scratch();
    let drawing = directory.path().join("flame.svg");
    let stacks = "libc:malloc by stack";
    let options: [&[&str]; 7] = [
        &["-e", "libc:malloc"],
        &["-e", "libc:malloc", "--json"],
        &["-e", "libc:malloc", "--interval", "20ms"],
        &["-e", "libc:malloc", "--interval", "20ms", "--json"],
        // Only the time after the last whole interval is printed.
        &["-e", "libc:malloc", "--interval", "1h"],
        &["-e", stacks, "--folded"],
        &["-e", stacks, "--flame", text(&drawing)],
    ];
    for options in options {
        for (ends, status) in [("exit 200", 200), ("kill -SEGV $$", 128 + libc::SIGSEGV)] {
            let script = format!("sleep 0.1; {ends}");
            let words = [&["stat"], options, &["--", "sh", "-c", &script]].concat();
            let output = unread(&words);
            assert_eq!(
                output.status.code(),
                Some(status),
                "{words:?}: {}",
                told(&output)
            );
        }
    }
    let drawing = std::fs::read_to_string(&drawing).expect("it was drawn");
    assert!(drawing.contains("malloc"), "{drawing}");

    // Nothing was wrong in a recording that has no status of a program.
    let mut sleeper = sleeping();
    let pid = sleeper.id().to_string();
    let words = [
        "stat",
        "-e",
        "libc:malloc",
        "--duration",
        "10ms",
        "-p",
        &pid,
    ];
    assert_eq!(unread(&words).status.code(), Some(0));
    sleeper.kill().expect("it is ours");
    sleeper.wait().expect("it ends");

    // Results that could not be written are an error.
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = crate::target::own();
    command.args(["stat", "-e", "libc:malloc", "--", "sh", "-c", "exit 200"]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let status = command.stdout(full.expect("it exists")).status();
    assert_eq!(status.expect("capriole runs").code(), Some(1));
}
