//! Results that the compiler may have left out, because it knew all callers and none uses them.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{events, record, record_program, scratch, text};
use std::path::Path;

/// Returns the results that the returns of a function are recorded with.
fn results(function: &str, program: &Path) -> Vec<String> {
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = format!("r:result :{function} $retval");
    record_program(&trace, &["-e", &event], program, &[]);
    let all = events(&trace);
    let all = all.iter().filter(|event| event["event"] == "result");
    all.map(|event| event["arguments"]["ret"].to_string())
        .collect()
}

fn programs() -> impl Iterator<Item = std::path::PathBuf> {
    let compilers = [Compiler::Gcc, Compiler::Clang];
    compilers
        .into_iter()
        .filter_map(|compiler| build(compiler, "unused_results.c", &["-g", "-O2"]))
}

#[test]
fn results_that_no_caller_uses_are_refused() {
    for program in programs() {
        for (function, register) in [
            ("unused", "rax"),
            ("unused_written", "rax"),
            ("unused_inner", "rax"),
            ("unused_real", "xmm0"),
        ] {
            let directory = scratch();
            let trace = directory.path().join("t");
            // GCC has renamed them.
            for name in [format!("{function}.isra.0"), function.to_owned()] {
                let event = format!("r :{name} $retval");
                let output = record(&trace, &["-e", &event, "--", text(&program)]);
                let said = told(&output);
                assert!(!output.status.success(), "{event}: {said}");
                if said.contains("no function") {
                    continue;
                }
                let why = "none of them uses its result, which it may have left out";
                assert!(said.contains(why), "{event}: {said}");
                let advice = said.split_once("left out; ").expect("advice").1;
                let advice = advice.split(' ').next().expect("a value");
                assert!(said.contains(register), "{event}: {said}");
                // The register itself can be recorded.
                let event = format!("r :{name} {advice}");
                record_program(&trace, &["-e", &event], &program, &[]);
                assert_eq!(events(&trace).len(), 2, "{event}");
                break;
            }
        }
    }
}

#[test]
fn results_that_some_caller_may_use_are_right() {
    for program in programs() {
        assert_eq!(results("used", &program), ["6"], "{program:?}");
        assert_eq!(results("used_real", &program), ["1.5"], "{program:?}");
        assert_eq!(results("passed", &program), ["15"], "{program:?}");
        assert_eq!(
            results("pointed", &program),
            ["0", "7", "21"],
            "{program:?}"
        );
    }
    // Without optimisation results are there, used or not.
    for compiler in [Compiler::Gcc, Compiler::Clang] {
        if let Some(program) = build(compiler, "unused_results.c", &["-g", "-O0"]) {
            assert_eq!(
                results("unused_written", &program),
                ["1", "7"],
                "{program:?}"
            );
        }
    }
}

/// Calls are recorded with their result, but not with one that may be missing.
#[test]
fn calls_are_recorded_without_a_result_that_may_be_missing() {
    let Some(program) = build(Compiler::Clang, "unused_results.c", &["-g", "-O2"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    record_program(&trace, &["--graph", ":unused"], &program, &[]);
    let shown = capriole(&["report", text(&trace)]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("unused__return"), "{shown}");
    assert!(!shown.contains("ret="), "{shown}");
}
