//! Bytes in the text that are not the program's code, or that other code reads: none may
//! change, and none may be taken for code or for padding.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{calls, record_program, scratch};
use std::path::{Path, PathBuf};

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "toolchains.c", &["-Wa,--noexecstack"])
}

/// Records one event of the program, which checks all these bytes; returns the number of hits.
fn recorded(program: &Path, event: &str) -> u64 {
    let directory = scratch();
    let trace = directory.path().join("trace");
    let said = record_program(&trace, &["-e", event], program, &[]);
    assert!(said.contains("ok toolchains"), "{event}: {said}");
    calls(&trace).values().sum()
}

#[test]
fn nothing_that_is_read_changes() {
    let Some(program) = program() else { return };
    assert!(recorded(&program, ":*") > 1000);
}

#[test]
fn functions_with_such_bytes_are_probed() {
    let Some(program) = program() else { return };
    let names = [
        "kcfi_nops",
        "words",
        "jump",
        "pool",
        "by_thunk",
        "by_notrack",
    ];
    for name in names
        .iter()
        .chain(&["patchable", "hook", "tiny_kcfi", "labelled"])
    {
        assert_eq!(recorded(&program, &format!(":{name}")), 100, "{name}");
    }
    // Plus one for each call of by_thunk.
    assert_eq!(recorded(&program, ":kcfi"), 200);
    assert_eq!(recorded(&program, ":thunk"), 100);
}

/// After the words that the entry jumps over, and after data in a function.
#[test]
fn code_behind_data_is_found() {
    let Some(program) = program() else { return };
    for place in [":jump+8", ":jump+0xc", ":jump+0x11", ":pool+6", ":pool+0xc"] {
        assert_eq!(recorded(&program, place), 100, "{place}");
    }
}

#[test]
fn data_is_refused() {
    let Some(program) = program() else { return };
    for place in [
        "jump+2",
        "jump+4",
        "pool+2",
        "pool+4",
        "__cfi_kcfi",
        "like_nops",
        "constant",
    ] {
        let event = format!("{}:{place}", program.display());
        let output = capriole(&["check", &event]);
        assert!(!output.status.success(), "{}", told(&output));
    }
    let output = capriole(&["list", &format!("{}", program.display())]);
    let listed = told(&output);
    assert!(listed.contains("kcfi_nops"), "{listed}");
    for name in ["__cfi_", "like_nops", "like_traps", "constant"] {
        assert!(!listed.contains(name), "{listed}");
    }
}
