//! Large structures of Rust that are passed on the stack are read where they are, not from the
//! pointers to them.

use crate::programs::{Compiler, build};
use crate::target::told;
use crate::traces::{events, record, record_program, scratch, text};
use serde_json::json;

const FIELDS: &str = "s.first s.small s.sign s.list[3] s.real t.first t.list[1]";

#[test]
fn large_structures_on_the_stack_are_read_by_field() {
    for level in ["0", "1", "2"] {
        let optimised = format!("-Copt-level={level}");
        let flags = ["-g", &optimised];
        let Some(program) = build(Compiler::Rustc, "large_parameters.rs", &flags) else {
            return;
        };
        for function in ["pointers", "all", "values"] {
            let directory = scratch();
            let trace = directory.path().join("t");
            let event = format!(":*::{function} {FIELDS}");
            record_program(&trace, &["-e", &event], &program, &[]);
            let all = events(&trace);
            assert_eq!(all.len(), 1, "{function} {level}: {all:?}");
            let expected = json!({
                "s_first": 11, "s_small": 12, "s_sign": -13, "s_list_3": 4, "s_real": 1.5,
                "t_first": 77, "t_list_1": 2,
            });
            assert_eq!(all[0]["arguments"], expected, "{function} {level}");
        }
    }
}

#[test]
fn what_may_be_a_pointer_or_the_structure_is_refused() {
    let flags = ["-g", "-Copt-level=2"];
    let Some(program) = build(Compiler::Rustc, "large_parameters.rs", &flags) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let said = told(&record(
        &trace,
        &["-e", ":*::unclear s.first", "--", text(&program)],
    ));
    let reason = "`s` was passed on the stack, as a value or as a pointer to it";
    assert!(said.contains(reason), "{said}");
    // The word that the message names is the pointer.
    let word = said.split_once("entry ").expect("a word").1;
    let word = word.split(' ').next().expect("a word");
    let event = format!(":*::unclear first=+0({word}):u64");
    record_program(&trace, &["-e", &event], &program, &[]);
    assert_eq!(events(&trace)[0]["arguments"]["first"], json!(11));
}
