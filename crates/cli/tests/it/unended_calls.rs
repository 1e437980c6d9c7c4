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

#[test]
fn rejected_calls_are_not_unreadable() {
    let Some(program) = program() else { return };
    for (event, calls) in [
        ("latency(:halved if $arg1 > 3)", 36),
        ("latency(:halved if $arg1 > 3) by tid", 36),
        (
            "latency(:halved if $arg1:s32 > 3) by odd=$entry:arg1:b1@0/32",
            36,
        ),
        // A filter that the resident evaluates.
        (
            "latency(:taken if request->size >= 200) by where=$entry:arg1",
            20,
        ),
        ("latency(:taken if request->size >= 200)", 20),
        // Rejected calls are left by longjmp, too, from the same place of the stack.
        ("latency(:mostly if $arg1 >= 20)", 5),
    ] {
        let said = json(&program, &["-e", event]);
        let rows = said["groups"][0]["rows"].as_array().expect("rows");
        let sum = |name: &str| -> u64 {
            rows.iter()
                .map(|row| row[name].as_u64().expect("a number"))
                .sum()
        };
        assert_eq!(
            (sum("calls"), sum("unreadable")),
            (calls, 0),
            "{event}: {said}"
        );
        let measured: u64 = rows
            .iter()
            .map(|row| row["measures"][0]["count"].as_u64().expect("a number"))
            .sum();
        assert_eq!(measured, calls, "{event}: {said}");
    }
    let said = stat(&program, &["-e", "latency(:halved if $arg1 > 3)"]);
    assert!(!said.contains("unreadable"), "{said}");
}

/// Asserts that no function of these events is said to have been entered and not left.
fn assert_returned(program: &Path, events: &[&str]) {
    for event in events {
        let said = stat(program, &["-e", event]);
        assert!(!said.contains("was entered"), "{event}: {said}");
    }
}

/// A filter at the exit rejects calls that have returned.
#[test]
fn returns_that_a_filter_rejects_have_returned() {
    let Some(program) = program() else { return };
    let events = [
        "latency(r :halved n=$entry:arg1 if n > 1000 -> :left n=$arg1)",
        "r :halved hist(n=$entry:arg1) if n > 1000",
    ];
    assert_returned(&program, &events);
}

/// Returns that start intervals have returned, and those that end none have as well.
#[test]
fn returns_of_intervals_have_returned() {
    let Some(program) = program() else { return };
    let events = [
        "latency(r :halved n=$entry:arg1 -> :left n=$arg1)",
        "latency(r :halved n=$entry:arg1 -> :left n=$arg2)",
        "latency(:left n=$arg1 -> r :halved n=$entry:arg1)",
    ];
    assert_returned(&program, &events);
    let event = "latency(r :left n=$entry:arg1 -> :halved n=$arg1)";
    let said = stat(&program, &["-e", event]);
    assert!(
        said.contains("left was entered 40 times, but no call"),
        "{said}"
    );
}
