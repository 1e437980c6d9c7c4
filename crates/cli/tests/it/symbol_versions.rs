//! A library's function with several versions, each bound by some program: all of them are probed.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::tools::root;
use crate::traces::{events, record, scratch};
use capriole_testkit::files::text;
use std::path::PathBuf;

/// Returns a program and its library.
fn programs() -> Option<(PathBuf, PathBuf)> {
    let script = root().join("tests/programs/versions.map");
    let script = format!("-Wl,--version-script={}", script.display());
    let library = build(
        Compiler::Gcc,
        "versions_library.c",
        &["-shared", "-fPIC", &script],
    )?;
    let program = build(
        Compiler::Gcc,
        "versions.c",
        &["-Wl,--no-as-needed", text(&library)],
    )?;
    Some((program, library))
}

#[test]
fn all_versions_are_recorded_by_the_plain_name() {
    let Some((program, library)) = programs() else {
        return;
    };
    let library = text(&library);
    let every = [3, 5, 7].as_slice();
    for (function, expected) in [
        ("sum", every),
        ("s*m", every),
        ("sum@V1", &[5, 7]),
        ("sum@V2", &[3]),
    ] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let event = format!("{library}:{function} a=$arg1:s32 n=$arg2:s32");
        let output = record(&trace, &["-e", &event, "--", text(&program)]);
        assert!(output.status.success(), "{event}: {}", told(&output));
        let all = events(&trace);
        for n in [3, 5, 7] {
            let with = all.iter().filter(|event| event["arguments"]["n"] == n);
            let wanted = if expected.contains(&n) { 100 } else { 0 };
            assert_eq!(with.count(), wanted, "{event} n={n}");
        }
        let returns = format!("r {library}:{function} ret=$retval:s32");
        let output = record(&trace, &["-e", &returns, "--", text(&program)]);
        assert!(output.status.success(), "{returns}: {}", told(&output));
        assert_eq!(events(&trace).len(), expected.len() * 100, "{returns}");
    }
    let output = capriole(&["list", "sum*", library]);
    let listed = told(&output);
    assert!(listed.contains("sum@V1"), "{listed}");
    let output = capriole(&[
        "check",
        "-e",
        &format!("{library}:sum@V3"),
        "--",
        text(&program),
    ]);
    assert!(!output.status.success());
}
