//! Messages tell what is wrong, and how to fix it.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{calls, record_program, scratch, text};
use std::path::PathBuf;

fn program() -> Option<PathBuf> {
    build(Compiler::Gxx, "wordings.cpp", &["-O0"])
}

/// Returns the number of the source line that ends with this.
fn line(end: &str) -> usize {
    let source = include_str!("../../../../tests/programs/wordings.cpp");
    let at = source.lines().position(|line| line.ends_with(end));
    at.expect("it is there") + 1
}

#[test]
fn code_that_the_compiler_added_is_not_taken_for_one_without_debug_information() {
    let Some(program) = program() else { return };
    let thunk = line("// only the thunk has this line");
    let said = told(&capriole(&[
        "check",
        &format!(":wordings.cpp:{thunk} n"),
        text(&program),
    ]));
    assert!(said.contains("is in no function of the source"), "{said}");
    assert!(!said.contains("compile that"), "{said}");
    // If the function itself is there, the thunk that continues in it is not a second place.
    let both = line("// the thunk and the function");
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = format!(":wordings.cpp:{both} n");
    record_program(&trace, &["-e", &event], &program, &[]);
    assert_eq!(calls(&trace).values().sum::<u64>(), 1);
}

#[test]
fn a_name_is_found_without_the_tag_of_the_abi() {
    let Some(program) = program() else { return };
    for name in [
        "tagged",
        "tagged(int)",
        "tagged[abi:cxx11]",
        "tagged[abi:cxx11](int)",
    ] {
        let directory = scratch();
        let trace = directory.path().join("t");
        let event = format!(":{name} n");
        record_program(&trace, &["-e", &event], &program, &[]);
        assert_eq!(calls(&trace).values().sum::<u64>(), 1, "{name}");
    }
}

#[test]
fn a_type_that_is_too_large_is_said_to_be_so() {
    let Some(program) = program() else { return };
    let said = told(&capriole(&[
        "check",
        ":main argv[0][0]:u64",
        text(&program),
    ]));
    let words = "`argv[0][0]` is char, which has 1 byte: u64 would read what is behind it; \
                 leave the type out";
    assert!(said.contains(words), "{said}");
}
