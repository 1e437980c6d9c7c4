//! Members of tuples and tuple structs of Rust, by their numbers.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{events, record, scratch};
use capriole_testkit::files::text;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn program() -> Option<PathBuf> {
    build(Compiler::Rustc, "tuples.rs", &["-Copt-level=0"])
}

fn recorded(program: &Path, event: &str) -> Vec<Value> {
    let directory = scratch();
    let trace = directory.path().join("trace");
    let output = record(&trace, &["-e", event, "--", text(program)]);
    assert!(output.status.success(), "{event}: {}", told(&output));
    events(&trace)
}

#[test]
fn members_have_the_numbers_of_the_source() {
    let Some(program) = program() else { return };
    let event = "take self.0.pair.0 self.0.pair.1 self.0.length.0 self.1.0 self.1.1.0 self.1.1.1 \
         pair.0 pair.1 deep.0.0 deep.0.1 deep->1.0 texts.0 texts.1";
    let all = recorded(&program, event);
    assert_eq!(all.len(), 100);
    for (number, event) in (0_i64..).zip(&all) {
        let expected = json!({
            "self_0_pair_0": number,
            "self_0_pair_1": -number,
            "self_0_length_0": 1000 + number,
            "self_1_0": 3,
            "self_1_1_0": 2000 + number,
            "self_1_1_1": "route",
            "pair_0": 5000 + number,
            "pair_1": -6,
            "deep_0_0": 3000 + number,
            "deep_0_1": 4,
            "deep_1_0": 4000 + number,
            "texts_0": "first",
            "texts_1": "second",
        });
        assert_eq!(event["arguments"], expected);
    }
}

#[test]
fn they_are_compared_and_counted() {
    let Some(program) = program() else { return };
    let filtered = "take n=self.0.pair.0 if pair.0 >= 5090 && self.1.1.0 < 2095 && deep.0.1 == 4";
    let numbers: Vec<Value> = recorded(&program, filtered)
        .iter()
        .map(|event| event["arguments"]["n"].clone())
        .collect();
    assert_eq!(numbers, [90, 91, 92, 93, 94]);
    let returned = recorded(
        &program,
        "r take $entry:pair.1 if $entry:self.0.pair.0 == 7",
    );
    assert_eq!(returned.len(), 1);
    assert_eq!(returned[0]["arguments"]["pair_1"], -6);
    let event = "take sum(self.0.length.0) by self.1.0";
    let output = capriole(&["stat", "-e", event, "--", text(&program)]);
    let said = told(&output);
    assert!(output.status.success() && said.contains("104950"), "{said}");
}

#[test]
fn messages_and_lists_write_them_like_this() {
    let Some(program) = program() else { return };
    for (event, expected) in [
        (
            "take pair.2",
            "(u32, i16) has no member `2`: there are 0, 1",
        ),
        ("take self.2", "has no member `2`: there are 0, 1"),
        (
            "take self.0.length",
            "is Meters; name a member: there are 0",
        ),
    ] {
        let said = told(&capriole(&["check", event, text(&program)]));
        let is_there = said.contains(expected)
            || said.contains(&expected.replace("is Meters", "is tuples::Meters"));
        assert!(is_there, "{event}: {said}");
    }
    // As debug information calls it.
    let output = capriole(&["check", "take pair.__0", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let said = told(&capriole(&[
        "list",
        "--args",
        ":*Route::take",
        text(&program),
    ]));
    assert!(
        said.contains("there are 0, 1") && !said.contains("__0"),
        "{said}"
    );
}
