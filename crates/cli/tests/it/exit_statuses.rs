//! Exit statuses of the command, and what it says of the program's end.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, command, told};
use crate::traces::{Background, recorder, scratch, summary, text};
use rustix::system::uname;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "ends.c", &[])
}

/// The status of a process that is no child of the command is known, and passed on.
#[test]
fn a_program_that_was_attached_to() {
    let Some(program) = program() else { return };
    let ends = [
        (
            "crash",
            128 + libc::SIGSEGV,
            "; the program was killed by SIGSEGV",
        ),
        ("exit 7", 7, "; the program has ended with status 7"),
        ("exit 0", 0, "; the program has ended"),
    ];
    for (word, status, remark) in ends {
        for stat in [false, true] {
            let directory = scratch();
            let trace = directory.path().join("t");
            let mut running = Running::start(&program, &[]);
            let pid = running.pid.to_string();
            let words = ["-p", &pid, "-e", ":told_to"];
            let mut command = match stat {
                true => command(&[&["stat"], &words[..]].concat()),
                false => recorder(&trace, &words),
            };
            let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut attached = command.spawn().expect("capriole starts");
            let mut messages = BufReader::new(attached.stderr.take().expect("a pipe"));
            // The first one comes when everything is in its place.
            let mut said = String::new();
            messages.read_line(&mut said).expect("text");
            assert!(said.ends_with(", until it ends or Ctrl-C\n"), "{said}");
            running.say("call");
            assert_eq!(running.line(), "done");
            running.say(word);
            messages.read_to_string(&mut said).expect("text");
            let ended = attached.wait().expect("it ends");
            assert_eq!(ended.code(), Some(status), "{word}: {said}");
            assert!(said.contains(&format!("{remark}\n")), "{word}: {said}");
            if !stat {
                assert_eq!(summary(&trace)["events"], 1, "{said}");
            }
            let _ = running.child.wait();
        }
    }
}

/// The parent of a process has waited for it before we look: only a newer kernel still knows the status.
#[test]
fn a_program_whose_parent_has_waited_for_it() {
    let release = uname().release().to_string_lossy().into_owned();
    let mut numbers = release
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    let kernel = (numbers.next(), numbers.next());
    if kernel < (Some(6), Some(15)) {
        println!("skipped: Linux {release} keeps no exit status, which 6.15 does");
        return;
    }
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut parent = Command::new(&program);
    let parent = parent
        .arg("reaped")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut parent = parent.spawn().expect("it starts");
    let mut lines = BufReader::new(parent.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    let pid = line();
    let pid = pid.strip_prefix("is ").expect("a number");
    let words = ["-p", pid, "-e", ":told_to"];
    let attached = Background::of(recorder(&trace, &words), pid.parse().expect("a number"));
    // So that it looks when the parent has waited.
    attached.signal(libc::SIGSTOP);
    let mut input = parent.stdin.take().expect("a pipe");
    input.write_all(b"crash\n").expect("it reads");
    assert_eq!(line(), "gone");
    attached.signal(libc::SIGCONT);
    let output = attached.output();
    assert_eq!(
        output.status.code(),
        Some(128 + libc::SIGSEGV),
        "{}",
        told(&output)
    );
    assert!(
        told(&output).contains("; the program was killed by SIGSEGV\n"),
        "{}",
        told(&output)
    );
    assert_eq!(line(), "ok as told");
    assert!(parent.wait().expect("it ends").success());
}

/// Checks that an invalid command line or event ends with status 2, and any other failure with 1.
#[test]
fn an_invalid_command_line_is_2() {
    let Some(program) = program() else { return };
    let program = text(&program);
    let directory = scratch();
    let invalid: &[&[&str]] = &[
        &[],
        &["-v"],
        &["nothing"],
        &["record", "-e", ":told_to if", "--", program],
        &["record", "--graph", ":told_to if", "--", program],
        &["stat", "-e", ":told_to sum(", "--", program],
        &["stat", "-e", "latency(:told_to -> )", "--", program],
        &["check", ":told_to $arg1:u7", program],
        &["check", "", program],
        &["list", "", program],
        &["record", "-o", "-", "-e", ":told_to", "--", program],
        &[
            "stat",
            "--flame",
            "-",
            "-e",
            ":told_to count() by stack",
            "--",
            program,
        ],
        &["report", "--flame", "-"],
    ];
    let failed: &[&[&str]] = &[
        &["record", "-e", ":nothing", "--", program],
        &["check", ":nothing", program],
        &["list", ":nothing", program],
        &["record", "-e", ":told_to", "--", "./nothing"],
        &["stat", "-e", ":told_to", "--", "./nothing"],
        &["check", ":told_to", "./nothing"],
        &["list", "./nothing"],
        &["report", "./nothing"],
    ];
    for (all, status) in [(invalid, 2), (failed, 1)] {
        for words in all {
            let mut command = command(words);
            let output = command.current_dir(directory.path()).output();
            let output = output.expect("capriole starts");
            assert_eq!(
                output.status.code(),
                Some(status),
                "{words:?}: {}",
                told(&output)
            );
        }
    }
    let made = std::fs::read_dir(directory.path()).expect("a directory");
    assert_eq!(made.count(), 0, "no file is called `-`");
    let said = told(&capriole(&["-v"]));
    assert!(!said.contains("probe-helper"), "{said}");
}
