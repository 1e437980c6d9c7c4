//! A forked child whose C library reports its parent's thread id: both have the same stack at
//! the same addresses, and must not be confused.

use crate::programs::{Compiler, build};
use crate::target::{capriole, rounds, told};
use crate::traces::{record_program, scratch, text};
use serde_json::Value;
use std::collections::BTreeMap;

/// Every call is recorded, in order, with the string and the thread of the process that made
/// it.
#[test]
fn parent_and_child_are_told_apart() {
    let Some(program) = build(Compiler::Gcc, "raw_fork.c", &["-O1"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let calls = rounds(50_000, 150_000, 500_000) as u64;
    let event = ":raw_work who=+0($arg1):string n=$arg2:u64";
    let said = record_program(&trace, &["-e", event], &program, &[&calls.to_string()]);
    let ids = said.lines().find_map(|line| line.strip_prefix("ok "));
    let (parent, child) = ids.and_then(|ids| ids.split_once(' ')).expect("two ids");
    let ids: BTreeMap<&str, Value> = [("parent", parent), ("child", child)]
        .map(|(who, id)| (who, id.parse().expect("an id")))
        .into();
    let report = capriole(&["report", "--json", text(&trace)]);
    assert!(report.status.success(), "{}", told(&report));
    let mut seen = BTreeMap::new();
    for line in String::from_utf8_lossy(&report.stdout).lines() {
        let event: Value = serde_json::from_str(line).expect("JSON");
        let Some(fields) = event.get("arguments") else {
            continue;
        };
        let who = fields["who"].as_str().unwrap_or_else(|| panic!("{event}"));
        let n = seen.entry(who.to_owned()).or_insert(0);
        *n += 1;
        assert_eq!(fields["n"], *n, "{event}");
        assert_eq!(Some(&event["tid"]), ids.get(who), "{event}");
    }
    let all = ["parent", "child"].map(|who| (who.to_owned(), calls));
    assert_eq!(seen, all.into());
}
