//! Generic functions of Go can be named as Go prints them, `main.f[...]`.

use crate::programs::build_go;
use crate::target::{capriole, told};
use crate::traces::{events, record, record_program, scratch, text};

#[test]
fn generic_functions_have_the_names_that_go_prints() {
    let Some(program) = build_go("go_generic.go", "go_generic") else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    for event in [
        "main.once[...]",
        ":main.once[...]",
        ":main.(*pair[...]).first",
    ] {
        record_program(&trace, &["-e", event], &program, &[]);
        assert_eq!(events(&trace).len(), 1, "{event}");
    }
    // Several instantiations are several functions, which are listed with their places.
    let output = record(&trace, &["-e", ":main.twice[...]", "--", text(&program)]);
    let said = told(&output);
    assert!(
        said.contains("`main.twice[...]` names 2 functions"),
        "{said}"
    );
    let places: Vec<&str> = said
        .lines()
        .filter(|line| line.contains(":0x"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(places.len(), 2, "{said}");
    for place in places {
        record_program(&trace, &["-e", place], &program, &[]);
        assert_eq!(events(&trace).len(), 1, "{place}");
    }
}

/// Go's linker marks functions in assembly by `.abi0`; the source has no such name.
#[test]
fn functions_in_assembly_are_shown_without_a_mark() {
    let Some(program) = build_go("go_generic.go", "go_generic") else {
        return;
    };
    let listed = capriole(&["list", "runtime.memclrNoHeapPointers*", text(&program)]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("runtime.memclrNoHeapPointers"), "{listed}");
    let listed = capriole(&["list", "runtime.*", text(&program)]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    for name in &names {
        // A wrapper of the same name is told apart by the mark.
        let plain = name.strip_suffix(".abi0");
        assert!(plain.is_none_or(|plain| names.contains(&plain)), "{name}");
    }
    let full = capriole(&["list", "--names", "full", "runtime.*", text(&program)]);
    assert!(String::from_utf8_lossy(&full.stdout).contains(".abi0"));
}
