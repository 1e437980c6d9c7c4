//! Calls still open when their thread or process ended.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{recorder, scratch, text, until_looked};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Instant;

/// Their ends are not known, and nothing is shown as lasting up to the end of the recording.
#[test]
fn calls_do_not_outlive_their_threads() {
    let Some(program) = build(Compiler::Gcc, "ended_threads.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut recorder = recorder(&trace, &["--graph", ":*_work", "--", text(&program)]);
    recorder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = recorder.spawn().expect("capriole starts");
    let mut printed = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut line = || printed.next().expect("a line").expect("text");
    assert_eq!(line(), "ended");
    // The recorder sees who is left.
    let began = Instant::now();
    until_looked(&trace);
    let waited = began.elapsed().as_nanos() as u64;
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"\n").expect("it reads");
    assert_eq!(line(), "ok");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let output = capriole(&["report", "--graph", "--json", text(&trace)]);
    assert!(output.status.success(), "{}", told(&output));
    let mut ends: BTreeMap<(String, String), u64> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| line[name].as_str().expect("a word").to_owned();
        *ends.entry((word("function"), word("exit"))).or_default() += 1;
        if word("exit") == "returned" {
            // Both clocks are exact to a part in a thousand.
            let least = waited / 1000 * 999;
            assert!(line["duration_ns"].as_u64() >= Some(least), "{line}");
            continue;
        }
        // The last event of each is its entry, and the program ended with the recording.
        assert_eq!(
            [
                &line["duration_ns"],
                &line["self_ns"],
                &line["before_end_ns"]
            ],
            [&Value::Null; 3]
        );
        assert_eq!(line["at_least_ns"], 0, "{line}");
    }
    let expected = [
        ("child_work", "thread_ended", 5),
        ("main_work", "returned", 1),
        ("sleeper_work", "open", 1),
        ("thread_work", "thread_ended", 5),
    ];
    let expected = expected.map(|(name, exit, n)| ((name.to_owned(), exit.to_owned()), n));
    assert_eq!(ends, expected.into());
    let summary = capriole(&["report", "--summary", text(&trace)]);
    let summary = String::from_utf8(summary.stdout).expect("UTF-8");
    let row = |function: &str| {
        let row = summary.lines().find(|row| row.ends_with(function));
        let row = row.unwrap_or_else(|| panic!("no {function}: {summary}"));
        row.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for function in ["sleeper_work", "thread_work", "child_work"] {
        assert_eq!(row(function)[1..3], ["-", "-"], "{summary}");
    }
    // It leads by self time: the others are not known.
    assert!(
        summary.find("main_work") < summary.find("child_work"),
        "{summary}"
    );
}
