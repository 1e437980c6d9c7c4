//! Calls still open when their thread or process ended.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record_program, scratch, text};
use serde_json::Value;
use std::collections::BTreeMap;

/// They end with their threads, and not with the recording half a second later.
#[test]
fn calls_do_not_outlive_their_threads() {
    let Some(program) = build(Compiler::Gcc, "ended_threads.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let said = record_program(&trace, &["--graph", ":*_work"], &program, &[]);
    assert_eq!(said, "ok\n");
    let output = capriole(&["report", "--graph", "--json", text(&trace)]);
    assert!(output.status.success(), "{}", told(&output));
    let mut ends: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut times: BTreeMap<String, u64> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| line[name].as_str().expect("a word").to_owned();
        *ends.entry((word("function"), word("exit"))).or_default() += 1;
        let time = line["duration_ns"].as_u64().expect("a number");
        *times.entry(word("function")).or_default() += time;
    }
    let expected = [
        ("child_work", "thread_ended", 5),
        ("main_work", "returned", 1),
        ("sleeper_work", "open", 1),
        ("thread_work", "thread_ended", 5),
    ];
    let expected = expected.map(|(name, exit, n)| ((name.to_owned(), exit.to_owned()), n));
    assert_eq!(ends, expected.into());
    let half = 500_000_000;
    assert!(
        times["main_work"] >= half && times["sleeper_work"] >= half,
        "{times:?}"
    );
    // The last event of each is its entry.
    assert_eq!((times["thread_work"], times["child_work"]), (0, 0));
}
