//! Definition files with one event that cannot be probed: the file is refused as a whole, or
//! recorded without that event if the user requests this.

use crate::programs::{Compiler, build};
use crate::target::{rounds, told};
use crate::traces::{calls, record, scratch, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns a definition for each instruction of these functions.
fn dense(program: &Path, functions: &[&str]) -> Vec<String> {
    let mut command = Command::new("objdump");
    let output = command
        .args(["-d", "--no-show-raw-insn"])
        .arg(program)
        .output();
    let printed = String::from_utf8(output.expect("objdump").stdout).expect("UTF-8");
    let mut function = "";
    let mut all = Vec::new();
    for line in printed.lines() {
        if let Some((_, name)) = line.trim_end_matches(">:").split_once(" <")
            && line.ends_with(">:")
        {
            function = name;
        } else if let Some((address, instruction)) = line.trim().split_once(":\t")
            && functions.contains(&function)
            && !instruction.starts_with("nop")
        {
            let event = format!("{function}_{address}");
            all.push(format!(
                "p:dense/{event} {}:0x{address}\n",
                program.display()
            ));
        }
    }
    all
}

fn program() -> Option<PathBuf> {
    let options = ["-Os", "-pie", "-fPIE", "-falign-functions=1"];
    build(Compiler::Gcc, "dense.c", &options)
}

/// The load address of the program decides if jumps that share bytes lead to free addresses. If
/// they do not, the program is started again.
#[test]
fn a_start_does_not_depend_on_luck() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let file = directory.path().join("events");
    let events = dense(&program, &["parse", "hash", "middle"]);
    let events: String = events.into_iter().skip(1).step_by(2).collect();
    std::fs::write(&file, events).expect("written");
    let run = |shell: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{shell} \"$@\""), "sh"]);
        command.args([env!("CARGO_BIN_EXE_capriole"), "stat", "-f", text(&file)]);
        command.args(["--", text(&program)]).stdin(Stdio::null());
        command.output().expect("sh")
    };
    // With another compiler's code it may be impossible at any address.
    let first = run("");
    // As under nohup: the program that finally runs has the same signal dispositions as the first.
    for shell in ["", "trap '' HUP;"]
        .iter()
        .cycle()
        .take(rounds(12, 36, 100))
    {
        let output = run(shell);
        let (one, other) = (told(&first), told(&output));
        assert_eq!(first.status, output.status, "{one}\n{other}");
        if output.status.success() {
            let ignored = other.contains("SIGHUP is ignored");
            assert_eq!(ignored, !shell.is_empty(), "{other}");
        }
    }
}

#[test]
fn what_cannot_be_probed_is_left_out_only_if_that_was_asked_for() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let file = directory.path().join("events");
    let events = dense(&program, &["add", "parse", "hash", "middle"]);
    assert!(events.len() > 20, "{events:?}");
    // A system call cannot be relocated, wherever the program is loaded.
    let call = dense(&program, &["call"]);
    let impossible = call.iter().filter(|event| !events.contains(event)).cloned();
    let all: String = events.iter().cloned().chain(impossible).collect();
    std::fs::write(&file, all).expect("written");
    let rest = ["-f", text(&file), "--", text(&program)];
    let said = told(&record(&trace, &rest));
    assert!(said.contains("cannot be probed: "), "{said}");
    assert!(!trace.exists(), "{said}");
    let said = told(&record(&trace, &[&["--keep-going"], &rest[..]].concat()));
    assert!(said.starts_with("exit status: 0"), "{said}");
    assert!(said.contains("capriole: left out: "), "{said}");
    assert!(said.contains("ok "), "{said}");
    assert!(calls(&trace).len() > 10, "{said}");
}
