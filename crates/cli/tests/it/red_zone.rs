//! Symbols within functions that keep values below the stack pointer when control passes there.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{calls, record_program, scratch};
use std::path::Path;

/// Checks that all functions are recorded, including those defined only by a symbol, and that
/// the program finds all its values.
fn nothing_is_lost(program: &Path) {
    let directory = scratch();
    let trace = directory.path().join("trace");
    let said = record_program(&trace, &["-e", ":z_*", "-e", ":in_*"], program, &[]);
    assert!(said.contains("ok red_zone"), "{said}");
    let calls = calls(&trace);
    let comes_by = |name: &str| calls.get(name) == Some(&100);
    for name in [
        "z_fall_notype",
        "in_fall_notype",
        "in_fall_func",
        "in_jmp_away",
    ] {
        assert!(comes_by(name), "{name}: {calls:?}");
    }
    assert!(calls.contains_key("in_table_0"), "{calls:?}");
}

#[test]
fn values_below_the_stack_pointer_survive() {
    let Some(program) = build(Compiler::Gcc, "red_zone.c", &[]) else {
        return;
    };
    nothing_is_lost(&program);
}

#[test]
fn call_frame_information_does_not_tell() {
    let Some(program) = build(Compiler::Gcc, "red_zone.c", &["-DFRAMES"]) else {
        return;
    };
    nothing_is_lost(&program);
}

#[test]
fn nor_does_its_absence() {
    let flags = ["-static", "-fno-asynchronous-unwind-tables"];
    let Some(program) = build(Compiler::MuslGcc, "red_zone.c", &flags) else {
        return;
    };
    nothing_is_lost(&program);
}

/// Functions that are called, or reached by jumps from functions that keep no values there,
/// need no red zone protection.
#[test]
fn called_functions_are_entered_with_nothing_there() {
    let Some(program) = build(Compiler::Gcc, "red_zone.c", &["-DFRAMES"]) else {
        return;
    };
    let red_zone = |name: &str| {
        let event = format!("{}:{name}", program.display());
        let output = capriole(&["check", "--json", &event]);
        assert!(output.status.success(), "{}", told(&output));
        let sites: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        sites[0]["red_zone"].as_bool().expect("it can be probed")
    };
    for name in ["z_fall_notype", "z_jmp_away", "calls_it", "main"] {
        assert!(!red_zone(name), "{name}");
    }
    for name in ["in_fall_notype", "in_jmp_on", "in_jcc_away", "in_table_1"] {
        assert!(red_zone(name), "{name}");
    }
}
