//! Functions that are excluded from probes.

use super::{command, output, parts, program, program_by, run, static_program, well};
use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use capriole_testkit::files::text;

parts!("probes_noprobe.c":
    all_kinds,
    listed,
);

#[test]
fn of_a_library_that_is_loaded_later() {
    let flags = [
        "-shared",
        "-fPIC",
        "-DLIBRARY",
        "-I",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../include"),
    ];
    let (Some(program), Some(library)) = (
        program("probes_noprobe.c"),
        build(Compiler::Gcc, "probes_noprobe.c", &flags),
    ) else {
        return;
    };
    let mut command = command(&program, &["in_library"]);
    well(&output(command.env("PLUGIN", library)));
}

#[test]
fn without_symbols_or_a_dynamic_loader() {
    if let Some(program) = program_by(Compiler::Gcc, "probes_noprobe.c", &["-s"]) {
        run(&program, &["stripped"]);
    }
    if let Some(program) = static_program(Compiler::Gcc, "probes_noprobe.c", &["-static"]) {
        run(&program, &["all_kinds"]);
        run(&program, &["listed"]);
    }
}

#[test]
fn recorders_refuse_them_as_well() {
    let Some(program) = program("probes_noprobe.c") else {
        return;
    };
    let reason = "the program has excluded this function from probes (CAPRIOLE_NOPROBE)";
    for event in [":excluded", ":excluded+1", "r :excluded", ":excluded_too"] {
        let output = capriole(&["check", event, text(&program)]);
        assert!(told(&output).contains(reason), "{event}: {}", told(&output));
    }
    let output = capriole(&["check", ":ordinary", text(&program)]);
    assert!(!told(&output).contains(reason), "{}", told(&output));
    let stat = |event| capriole(&["stat", "-e", event, "--", text(&program), "listed"]);
    let output = stat(":excluded count()");
    assert!(!output.status.success(), "{}", told(&output));
    assert!(told(&output).contains(reason), "{}", told(&output));
}
