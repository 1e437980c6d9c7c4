//! Parameters of Go are read where they are, or refused: with padding, on the stack, and in registers
//! that are not saved while the stack grows.

use crate::programs::build_go;
use crate::target::told;
use crate::traces::{arguments_in, record, scratch, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const OK: &str = "ok go_places\n";

/// Returns the arguments of each hit of an event.
fn arguments(program: &Path, event: &str) -> Vec<Value> {
    arguments_in(program, event, OK)
}

/// Returns the message of an event that is refused.
fn refused(program: &Path, event: &str) -> String {
    let directory = scratch();
    let trace = directory.path().join("t");
    told(&record(&trace, &["-e", event, "--", text(program)]))
}

fn program(name: &str) -> Option<PathBuf> {
    build_go("go_places.go", name)
}

/// Returns the number of the line with this mark.
fn line(mark: &str) -> usize {
    let source = include_str!("../../../../tests/programs/go_places.go");
    let line = source.lines().position(|line| line.contains(mark));
    line.expect("the line") + 1
}

#[test]
fn a_string_that_was_stored_from_its_registers_is_read_there() {
    let Some(program) = program("go_spilled") else {
        return;
    };
    let event = format!(":go_places.go:{} in i", line("LINE spilled"));
    let expected = (0..3).map(|i| json!({ "in": "abc", "i": i }));
    assert_eq!(arguments(&program, &event), expected.collect::<Vec<_>>());
}

#[test]
fn structs_in_registers_have_padding() {
    let Some(program) = program("go_padding") else {
        return;
    };
    for function in ["main.pieces", "main.padded.method"] {
        let found = arguments(&program, &format!(":{function} x.a x.b x.c x.d n"));
        let expected = (0..3)
            .map(|i| json!({ "x_a": 1, "x_b": 1000 + i, "x_c": 10 + i, "x_d": "hello", "n": i }));
        assert_eq!(found, expected.collect::<Vec<_>>(), "{function}");
    }
}

#[test]
fn strings_on_the_stack_begin_where_the_caller_put_them() {
    let Some(program) = program("go_stacked") else {
        return;
    };
    let expected = json!({
        "a0": "zero", "a1": "one", "a2": 2, "a3": 3, "a4": "four", "a7": 7, "a8": "eight",
    });
    assert_eq!(
        arguments(&program, ":main.stacked $arg*"),
        vec![expected; 3]
    );
    let expected = json!({ "a8_len": 5, "a8": "eight" });
    assert_eq!(
        arguments(&program, ":main.stacked a8.len a8"),
        vec![expected; 3]
    );
    // Later only the part that the function uses is described.
    let expected = json!({ "a8_len": 5 });
    assert_eq!(
        arguments(&program, ":main.stacked+5 a8.len"),
        vec![expected; 3]
    );
}

#[test]
fn a_variable_of_which_one_word_is_described_is_refused() {
    let Some(program) = program("go_local") else {
        return;
    };
    let line = line("LINE local");
    for field in ["s", "s.len", "s.str"] {
        let message = refused(&program, &format!(":go_places.go:{line} {field}"));
        let reason = "debug information of Go has one of its words, and not which one";
        assert!(message.contains(reason), "{field}: {message}");
    }
}

#[test]
fn arguments_that_are_not_saved_while_the_stack_grows_are_refused() {
    let Some(program) = program("go_grows") else {
        return;
    };
    let found = arguments(&program, ":main.grows used second=$arg2:s64");
    let expected = (0..3).map(|i| json!({ "used": 200 + i, "second": 200 + i }));
    assert_eq!(found, expected.collect::<Vec<_>>());
    let found = arguments(&program, ":main.idle $arg*");
    assert_eq!(found, vec![json!({}); 3]);
    for field in ["id", "unused", "unused.len", "m", "$arg1", "x=$arg4:s64"] {
        let message = refused(&program, &format!(":main.idle {field}"));
        let reason =
            "so its register is not saved when the stack grows, and may hold something else";
        assert!(message.contains(reason), "{field}: {message}");
    }
}
