//! Calls left by exceptions, in recordings of only some calls.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record_program, scratch, text};
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the number of calls by kind of end, and of exits without a call.
fn ends(words: &[&str]) -> Option<BTreeMap<String, u64>> {
    let program = build(Compiler::Gxx, "thrown.cpp", &["-O1"])?;
    let directory = scratch();
    let trace = directory.path().join("t");
    let said = record_program(&trace, words, &program, &[]);
    assert_eq!(said, "ok\n");
    let output = capriole(&["report", "--graph", "--json", text(&trace)]);
    assert!(output.status.success(), "{}", told(&output));
    let mut ends = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        match line["exit"].as_str() {
            Some(exit) => {
                let n = line["arguments"]["n"].as_i64().expect("a number");
                assert!(n >= 1000, "{line}");
                if exit == "returned" {
                    assert_eq!(line["return"]["ret"], n + 1, "{line}");
                }
                *ends.entry(exit.to_owned()).or_default() += 1;
            }
            None => *ends.entry(line.to_string()).or_default() += 1,
        }
    }
    Some(ends)
}

/// Exits of calls that the filter left out do not count as exits of calls that were left by an
/// exception.
#[test]
fn what_was_thrown_out_of_has_no_exit() {
    let event = ":thrown_work n=$arg1:s64 if n >= 1000";
    let expected = [("abandoned".to_owned(), 100), ("returned".to_owned(), 50)];
    if let Some(ends) = ends(&["--graph", event]) {
        assert_eq!(ends, expected.clone().into());
    }
    if let Some(ends) = ends_of_long(event) {
        assert_eq!(ends, [("returned".to_owned(), 50)].into());
    }
    let stack = ["--return=stack", "--graph", event];
    if let Some(ends) = ends(&stack) {
        assert_eq!(ends, expected.into());
    }
}

fn ends_of_long(event: &str) -> Option<BTreeMap<String, u64>> {
    ends(&["--graph", event, "--min-duration", "1ns"])
}
