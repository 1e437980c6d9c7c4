//! Calls that are timed, and do not reach an exit, or that the filter rejects.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::text;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "rows.c", &[])
}

fn stat(program: &Path, words: &[&str]) -> String {
    let output = capriole(&[&["stat"], words, &["--", text(program)]].concat());
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    said
}

fn json(program: &Path, words: &[&str]) -> Value {
    let output = capriole(&[&["stat", "--json"], words, &["--", text(program)]].concat());
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    serde_json::from_str(said.lines().last().expect("a line")).expect("JSON")
}

#[test]
fn calls_without_an_end_are_told_from_no_calls() {
    let Some(program) = program() else { return };
    let left = "left was entered 40 times, but no call of it was seen to return: they were left by \
                exceptions or longjmp, or have not ended\n";
    let said = stat(&program, &["-e", "latency(:left)"]);
    assert!(said.contains(left), "{said}");
    assert!(
        !said.contains("never hit") && !said.contains("none of these"),
        "{said}"
    );

    // Beside others that do end, and with a filter, which is evaluated at the entry.
    let events = [
        "-e",
        "latency(:left if $arg1 >= 30) by tid",
        "-e",
        "latency(:halved)",
    ];
    let said = stat(&program, &events);
    assert!(said.contains(&left.replace("40", "10")), "{said}");
    assert!(!said.contains("halved was entered"), "{said}");
    assert!(!said.contains("never hit"), "{said}");

    // Some calls end.
    let said = json(&program, &["-e", "latency(:mostly)"]);
    let event = &said["events"][0];
    assert_eq!(
        (&event["calls"], &event["entered"]),
        (&10.into(), &40.into()),
        "{said}"
    );
    let said = stat(&program, &["-e", "latency(:mostly)"]);
    assert!(!said.contains("was entered"), "{said}");

    // Values of the entry need it, too.
    let said = stat(&program, &["-e", "r :left by x=$entry:arg1"]);
    assert!(said.contains(left), "{said}");

    // Not called at all.
    let said = stat(&program, &["-e", "latency(:left if $arg1 > 1000)"]);
    assert!(said.contains("none of these was hit"), "{said}");
}
