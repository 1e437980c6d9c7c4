//! Arguments and results of Go functions, which Go passes in registers of its own, also in
//! stripped programs.

use crate::programs::build_go;
use crate::target::{capriole, told};
use crate::traces::{events, record_program, scratch, text};
use std::path::{Path, PathBuf};
use std::process::Command;

const OK: &str = "ok go_registers\n";

/// Builds the program with these linker flags and in this mode.
fn built(name: &str, flags: &str, mode: &str) -> Option<PathBuf> {
    let whole = build_go("go_registers.go", "go_registers")?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/go_registers.go");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    for go in ["go", "/usr/local/go/bin/go"] {
        let mut command = Command::new(go);
        command.args([
            "build",
            &format!("-ldflags={flags}"),
            &format!("-buildmode={mode}"),
        ]);
        command.arg("-o").args([&program, &source]);
        if let Ok(output) = command.env("CGO_ENABLED", "0").output() {
            assert!(output.status.success(), "{}", told(&output));
            return Some(program);
        }
    }
    unreachable!("{} was built", whole.display())
}

/// Returns each event's name and arguments.
fn seen(program: &Path, wanted: &[&str]) -> Vec<(String, String)> {
    let directory = scratch();
    let trace = directory.path().join("t");
    let arguments: Vec<&str> = wanted.iter().flat_map(|event| ["-e", event]).collect();
    assert_eq!(record_program(&trace, &arguments, program, &[]), OK);
    let pair = |event: &serde_json::Value| {
        let name = event["event"].as_str().expect("a name").to_owned();
        (name, event["arguments"].to_string())
    };
    events(&trace)
        .iter()
        .filter(|e| e["event"].is_string())
        .map(pair)
        .collect()
}

fn expect(seen: &[(String, String)], expected: &[(&str, &str)]) {
    let seen: Vec<(&str, &str)> = seen.iter().map(|(n, a)| (n.as_str(), a.as_str())).collect();
    assert_eq!(seen, expected);
}

#[test]
fn arguments_and_results_are_where_go_has_them() {
    let Some(program) = build_go("go_registers.go", "go_arguments") else {
        return;
    };
    let seen = seen(
        &program,
        &[
            ":main.numbers $arg1:u64 $arg2:u64 $arg3:u64 $arg4:u64 $arg5:u64 $arg6:u64 $arg7:u64 $arg8:u64 $arg9:u64 j",
            "r :main.numbers sum=$retval third=$arg3:u64",
            ":main.words at=+0($arg1):x8 size=$arg2:u64 n=$arg3:s32 x=%xmm0:f64 s.len",
            "r :main.words product=$retval",
            ":main.(*thing).method a=+0($arg1):s64 n=$arg2:u8",
            "r :main.(*thing).method at=+0($retval):x8 size=%bx:u64 a=%cx:s64",
            // An array is on the stack, and takes no register.
            ":main.memory n=$arg1:u64",
        ],
    );
    expect(
        &seen,
        &[
            (
                "main.numbers",
                r#"{"arg1":1,"arg2":2,"arg3":3,"arg4":4,"arg5":5,"arg6":6,"arg7":7,"arg8":8,"arg9":9,"j":10}"#,
            ),
            ("main.numbers__return", r#"{"sum":55,"third":3}"#),
            (
                "main.words",
                r#"{"at":"0x68","size":5,"n":42,"x":2.5,"s_len":5}"#,
            ),
            ("main.words__return", r#"{"product":117.5}"#),
            ("main.(*thing).method", r#"{"a":77,"n":1}"#),
            (
                "main.(*thing).method__return",
                r#"{"at":"0x65","size":3,"a":77}"#,
            ),
            ("main.memory", r#"{"n":5}"#),
        ],
    );
}

#[test]
fn a_stripped_program_has_the_names_of_gos_own_table() {
    for (name, mode) in [("go_stripped", "exe"), ("go_stripped_pie", "pie")] {
        let Some(program) = built(name, "-s -w", mode) else {
            return;
        };
        let seen = seen(
            &program,
            &[
                ":main.numbers $arg1:u64 $arg9:u64",
                "r :main.(*thing).method $retval a=%cx:s64 entered=$entry:arg2:u8",
            ],
        );
        assert_eq!(seen[0].1, r#"{"arg1":1,"arg9":9}"#, "{name}");
        assert!(seen[1].1.contains(r#""a":77"#), "{name}: {seen:?}");
        assert!(seen[1].1.contains(r#""entered":1"#), "{name}: {seen:?}");
        // A function and its assembly wrapper have the same name.
        let both = check(&program, ":runtime.args $arg1");
        assert!(both.contains("names 2 functions"), "{name}: {both}");
    }
}

fn check(program: &Path, event: &str) -> String {
    told(&capriole(&["check", event, text(program)]))
}

#[test]
fn what_is_in_no_known_register_is_refused() {
    let Some(program) = build_go("go_registers.go", "go_refused") else {
        return;
    };
    for (event, reason) in [
        (":main.numbers $arg10", "at most nine words in registers"),
        ("r :main.memory $retval", "which Go leaves on the stack"),
        (":runtime.memmove $arg1", "it is written in assembly"),
        (
            ":syscall.rawVforkSyscall.abi0 $arg1",
            "it is written in assembly",
        ),
        (":runtime.mstart0.abi0 $arg1", "assembly code calls it"),
    ] {
        let said = check(&program, event);
        assert!(said.contains(reason), "{event}: {said}");
    }
    // With a pattern they are left out.
    let said = check(&program, ":runtime.m*[01]* $arg1");
    assert!(said.contains("it is left out: field `$arg1`"), "{said}");
    assert!(said.contains("\n  go on "), "{said}");
}
