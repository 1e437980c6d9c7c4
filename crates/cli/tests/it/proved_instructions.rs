//! Addresses in programs without information about their functions: only an address shown to be
//! an instruction is probed, unless the user overrides this.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{calls, recorder, scratch};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NAMELESS: [&str; 4] = [
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-fcf-protection=none",
    "-s",
];

fn program(flags: &[&str]) -> Option<(PathBuf, HashMap<String, u64>)> {
    let program = build(Compiler::Gcc, "nameless.c", flags)?;
    let output = Command::new(&program).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(said.contains("ok nameless"), "{said}");
    let places = said.lines().filter_map(|line| {
        let (name, offset) = line.split_once(' ')?;
        Some((name.to_owned(), offset.parse().ok()?))
    });
    Some((program, places.collect()))
}

/// Records the program with one event; returns the output and the number of records.
fn record(program: &Path, offset: u64, words: &[&str]) -> (Output, u64) {
    let directory = scratch();
    let trace = directory.path().join("trace");
    let event = format!("{}:{offset:#x}", program.display());
    let mut command = recorder(&trace, &["-e", &event]);
    let output = command.args(words).arg("--").arg(program).output();
    let output = output.expect("capriole starts");
    let events = output
        .status
        .success()
        .then(|| calls(&trace).values().sum());
    (output, events.unwrap_or(0))
}

fn assert_recorded(program: &Path, offset: u64, words: &[&str], times: u64) {
    let (output, events) = record(program, offset, words);
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("ok nameless"), "{said}");
    assert_eq!(events, times, "{said}");
}

fn assert_refused(program: &Path, offset: u64, words: &[&str], why: &str) {
    let (output, _) = record(program, offset, words);
    let said = told(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(why), "{said}");
    assert!(!said.contains("results are wrong"), "{said}");
}

#[test]
fn what_a_call_leads_to_is_code() {
    let Some((program, at)) = program(&NAMELESS) else {
        return;
    };
    assert_recorded(&program, at["called"], &[], 100);
    assert_recorded(&program, at["main"], &[], 1);
    assert_recorded(&program, at["inner"], &[], 100);
}

#[test]
fn the_middle_of_an_instruction_is_refused() {
    let Some((program, at)) = program(&NAMELESS) else {
        return;
    };
    for behind in 1..6 {
        let offset = at["called"] + behind;
        for words in [&[][..], &["--trust-address"]] {
            assert_refused(&program, offset, words, "is in the middle of the one at");
        }
    }
}

#[test]
fn what_nothing_shows_needs_to_be_trusted() {
    let Some((program, at)) = program(&NAMELESS) else {
        return;
    };
    for name in ["pointed", "data"] {
        for behind in 0..3 {
            assert_refused(&program, at[name] + behind, &[], "--trust-address");
        }
    }
    assert_recorded(&program, at["pointed"], &["--trust-address"], 100);
    let event = format!("{}:{:#x}", program.display(), at["pointed"]);
    assert!(!capriole(&["check", &event]).status.success());
    let output = capriole(&["check", "--trust-address", &event]);
    assert!(output.status.success(), "{}", told(&output));
}

/// Within a function, after data: a call in the same function leads there.
#[test]
fn a_call_in_the_same_function_shows_code() {
    let Some((program, at)) = program(&[]) else {
        return;
    };
    assert_recorded(&program, at["inner"], &[], 100);
    assert_refused(&program, at["data"], &[], "may be data");
}
