//! A function may begin and end at one instruction, after its `endbr64`, and several events may
//! be at one instruction.

use crate::programs::{Compiler, build};
use crate::target::told;
use crate::traces::{calls, events, record, scratch, text};
use std::path::{Path, PathBuf};

const FUNCTIONS: [&str; 3] = ["landing_empty", "landing_wrapper", "landing_tight"];

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "landing.c", &[])
}

/// Records these events of the program into `trace`.
fn recorded(trace: &Path, words: &[&str], program: &Path) {
    let output = record(trace, &[words, &["--", text(program)]].concat());
    assert!(told(&output).contains("ok calls=1000"), "{}", told(&output));
}

#[test]
fn it_is_entered_before_it_is_left() {
    let Some(program) = program() else { return };
    let directory = scratch();
    for function in FUNCTIONS {
        let trace = directory.path().join(function);
        let (entry, exit) = (format!(":{function}"), format!("r :{function}"));
        for words in [["-e", &entry, "-e", &exit], ["-e", &exit, "-e", &entry]] {
            recorded(&trace, &words, &program);
            let events = events(&trace);
            assert_eq!(events.len(), 2000, "{function}");
            let way = if function == "landing_wrapper" {
                "tail"
            } else {
                "return"
            };
            let expected = [function.to_owned(), format!("{function}__{way}")];
            for (event, expected) in events.iter().zip(expected.iter().cycle()) {
                assert_eq!(event["event"], **expected, "{event}");
            }
        }
    }
}

#[test]
fn every_call_ends() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("trace");
    recorded(&trace, &["--graph", ":landing_*"], &program);
    let output = crate::target::capriole(&["report", "--graph", "--json", text(&trace)]);
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(r#""exit":"returned""#).count(), 4000, "{said}");
    assert_eq!(
        said.matches(r#""exit":"tail_call""#).count(),
        1000,
        "{said}"
    );
    let summary = told(&crate::target::capriole(&[
        "report",
        "--summary",
        text(&trace),
    ]));
    for word in ["without an entry", "had not ended", "cannot"] {
        assert!(!summary.contains(word), "{summary}");
    }
}

/// Each event has its own records, even if their contents are the same.
#[test]
fn several_events_at_one_place_are_all_recorded() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let words = [
        "-e",
        "p:one/first :landing_work",
        "-e",
        "p:one/second :landing_work",
        "-e",
        ":landing_work",
    ];
    recorded(&trace, &words, &program);
    let found: Vec<(String, u64)> = calls(&trace).into_iter().collect();
    let expected = ["first", "landing_work", "second"];
    let expected = expected.map(|name| (name.to_owned(), 1000));
    assert_eq!(found, expected);
}
