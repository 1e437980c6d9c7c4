//! Events that differ in nothing but their names.

#[path = "common/programs.rs"]
mod programs;
#[path = "common/target.rs"]
mod target;
#[path = "common/traces.rs"]
mod traces;

use programs::{Compiler, build};
use target::told;
use traces::{calls, record, scratch, text};

/// Each is recorded under its name, wherever the place is named in another way, too; the same
/// without names is recorded once.
#[test]
fn events_of_different_names_are_all_recorded() {
    let Some(program) = build(Compiler::Gcc, "inlined.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let events = [
        "p:one :both n=size",
        "p:two :both n=size",
        "p:g/one :both n=size",
    ];
    let more = [
        ":both n=size",
        ":both n=size",
        "r:back :first",
        "r:again :first",
    ];
    let mut words: Vec<&str> = events
        .iter()
        .chain(&more)
        .flat_map(|event| ["-e", event])
        .collect();
    words.extend(["--", text(&program)]);
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let calls = calls(&trace);
    // The function's own code and its copy, three times each.
    let expected = [
        ("one", 12),
        ("two", 6),
        ("both", 3),
        ("back", 3),
        ("again", 3),
    ];
    for (name, hits) in expected {
        assert_eq!(
            calls.get(name),
            Some(&hits),
            "{name}, of two groups: {calls:?}"
        );
    }
}
