//! Functions in assembly whose symbols have no size, no type or neither, and which have no call frame
//! information.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{calls, events, record, record_program, scratch};
use capriole_testkit::files::text;
use capriole_testkit::workshop::Workshop;
use std::path::PathBuf;

const FUNCTIONS: [&str; 5] = [
    "bare_global",
    "bare_typed",
    "bare_calls",
    "bare_local",
    "bare_last",
];

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "bare.c", &[])
}

#[test]
fn each_is_probed_by_its_name() {
    let Some(program) = program() else { return };
    for function in FUNCTIONS {
        for prefix in [":", "r :"] {
            let directory = scratch();
            let trace = directory.path().join("t");
            let event = format!("{prefix}{function}");
            let said = record_program(&trace, &["-e", &event], &program, &[]);
            assert!(said.contains("ok calls=100"), "{event}: {said}");
            let counted: u64 = calls(&trace).into_values().sum();
            assert_eq!(counted, 100, "{event}");
        }
    }
}

#[test]
fn a_pattern_means_functions_and_no_data() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let said = record_program(&trace, &["-e", ":bare_*"], &program, &[]);
    assert!(said.contains("ok calls=100"), "{said}");
    let calls = calls(&trace);
    let mut names: Vec<&str> = calls.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["bare_calls", "bare_global", "bare_last", "bare_typed"]
    );
    assert!(calls.values().all(|calls| *calls == 100), "{calls:?}");
}

#[test]
fn labels_and_data_are_refused_with_the_reason() {
    let Some(program) = program() else { return };
    for event in [":bare_out", "bare_out"] {
        let said = told(&capriole(&["check", event, text(&program)]));
        let expected = "is a label, not a function; write :bare_typed+0x";
        assert!(said.contains(expected), "{event}: {said}");
    }
    let output = capriole(&["check", ":bare_typed+0xc", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let output = capriole(&["check", ":bare_data", text(&program)]);
    assert!(!output.status.success(), "{}", told(&output));
    let directory = scratch();
    let trace = directory.path().join("t");
    let output = record(&trace, &["-e", ":bare_data", "--", text(&program)]);
    assert!(!output.status.success(), "{}", told(&output));
    // It could be entered by a jump.
    let words = ["--return=stack", "-e", "r :bare_data", "--", text(&program)];
    let output = record(&trace, &words);
    assert!(!output.status.success(), "{}", told(&output));
}

#[test]
fn they_have_their_names_in_call_stacks() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    record_program(
        &trace,
        &["-e", "called stack", "-e", "bare_local stack"],
        &program,
        &[],
    );
    for (event, expected) in [
        ("called", ["bare_global", "main"]),
        ("bare_local", ["bare_calls", "main"]),
    ] {
        let all = events(&trace);
        let of_event: Vec<_> = all.iter().filter(|e| e["event"] == event).collect();
        assert_eq!(of_event.len(), 100);
        for event in of_event {
            let stack = event["stack"].as_array().expect("a list");
            let callers: Vec<&str> = stack
                .iter()
                .filter_map(|frame| frame["symbol"].as_str())
                .collect();
            let is_there = |name: &&str| callers.contains(name);
            assert!(expected.iter().all(is_there), "{event}");
        }
    }
}

#[test]
fn labels_of_one_name_are_listed() {
    let shop = Workshop::new();
    let file = |name: &str| {
        let sized = format!(
            ".globl {name}\\n.type {name},@function\\n{name}:\\n call helper\\n ret\\n.size {name},.-{name}\\n"
        );
        let path = shop.path(&format!("{name}.c"));
        let source = format!("__asm__(\"{sized}helper:\\n ret\\n\");");
        std::fs::write(&path, source).expect("a source");
        path
    };
    let (one, two) = (file("one"), file("two"));
    let source = "void one(void), two(void); int main(void) { one(); two(); return 0; }";
    let options = [text(&one), text(&two)];
    let Some(program) = shop.compile("gcc", &options, source, "labels") else {
        return;
    };
    let said = told(&capriole(&["check", ":helper", text(&program)]));
    let listed: Vec<&str> = said.split(":0x").skip(1).collect();
    assert_eq!(listed.len(), 2, "{said}");
    for offset in listed {
        let offset: String = offset.chars().take_while(char::is_ascii_hexdigit).collect();
        let output = capriole(&["check", &format!(":0x{offset}"), text(&program)]);
        assert!(told(&output).contains("ret"), "{}", told(&output));
    }
}
