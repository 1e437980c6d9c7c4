//! Values of enumerations are shown by the names of the source.

use crate::programs::{Compiler, build};
use crate::target::{assert_failed, capriole, told};
use crate::traces::{counts_of, events, record_program, scratch, text};
use serde_json::{Value, json};

#[test]
fn values_have_names() {
    let Some(program) = build(Compiler::Gxx, "enumerations.cpp", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let entry = "p:in :handle color access level request->access plain=color:s32";
    let exit = "r:out :pick $retval kept=$entry:access";
    record_program(&trace, &["-e", entry, "-e", exit], &program, &[]);
    let all = events(&trace);
    let values = |event: &str, field: &str| -> Vec<Value> {
        let own = all.iter().filter(|e| e["event"] == event);
        own.map(|e| e["arguments"][field].clone()).collect()
    };
    let repeated = |values: Value| -> Vec<Value> {
        let values = values.as_array().expect("a list").clone();
        let count = values.len();
        values
            .into_iter()
            .cycle()
            .take(24 / count * count)
            .collect()
    };
    let accesses = json!([
        "NOTHING",
        "READ",
        "READ|WRITE",
        "READ|WRITE|APPEND",
        "0x40",
        "WRITE|0x40"
    ]);
    for (field, wanted) in [
        ("color", json!(["RED", "GREEN", "BLUE", 7])),
        ("plain", json!([0, 5, -3, 7])),
        ("access", accesses.clone()),
        ("request_access", accesses),
        ("level", json!(["high", "low"])),
    ] {
        assert_eq!(values("in", field), repeated(wanted), "{field} {all:?}");
    }
    assert_eq!(
        values("out", "ret"),
        repeated(json!(["RED", "BLUE", "GREEN"]))
    );
    assert_eq!(
        values("out", "kept"),
        repeated(json!(["NOTHING", "READ", "WRITE"]))
    );
    let report = capriole(&["report", text(&trace)]);
    let said = String::from_utf8(report.stdout).expect("UTF-8");
    assert!(said.contains("color=BLUE access=READ|WRITE "), "{said}");
}

#[test]
fn keys_have_names() {
    let Some(program) = build(Compiler::Gxx, "enumerations.cpp", &[]) else {
        return;
    };
    let event = ":handle count() by access, color";
    let last = counts_of(event, &program);
    let rows = last["groups"][0]["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 12, "{last}");
    let unknown = rows
        .iter()
        .filter(|row| row["keys"]["access"] == "WRITE|0x40");
    let mut colors: Vec<&Value> = unknown.map(|row| &row["keys"]["color"]).collect();
    colors.sort_by_key(|color| color.is_string());
    assert_eq!(colors, [&json!(7), &json!("GREEN")], "{last}");
    let output = capriole(&["stat", "-e", event, "--", text(&program)]);
    let said = told(&output);
    assert!(said.contains("READ|WRITE|APPEND"), "{said}");
}

/// Returns the number of recorded calls for a filter on `handle` or `pick`.
fn selected(program: &std::path::Path, event: &str) -> usize {
    let directory = scratch();
    let trace = directory.path().join("t");
    record_program(&trace, &["-e", event], program, &[]);
    events(&trace).len()
}

#[test]
fn filters_compare_with_names() {
    let Some(program) = build(Compiler::Gxx, "enumerations.cpp", &[]) else {
        return;
    };
    for (event, calls) in [
        (":handle color if color == BLUE", 6),
        (":handle color if color != BLUE && color <= RED", 6),
        (":handle color if color < RED || color == GREEN", 12),
        (":handle level if level == high", 12),
        (":handle access if access == READ|WRITE", 4),
        (":handle access if access == WRITE | 0x40", 4),
        (":handle access if access & READ|APPEND", 12),
        (":handle request->access if request->access & WRITE", 12),
        (":handle $arg* if access >= READ|WRITE && level == high", 8),
        ("r :pick $retval if $retval == GREEN", 8),
        ("r :pick kept=$entry:access if kept == WRITE", 8),
        ("r :pick kept=$entry:access if $entry:access == WRITE", 8),
    ] {
        assert_eq!(selected(&program, event), calls, "{event}");
    }
    let last = counts_of(
        ":handle access count() by color if access == READ",
        &program,
    );
    assert_eq!(last["groups"][0]["rows"][0]["calls"], 2, "{last}");
}

#[test]
fn filters_compare_with_names_of_rust() {
    let Some(program) = build(Compiler::Rustc, "enumerations.rs", &["-g"]) else {
        return;
    };
    for (event, calls) in [
        (":handle level if level == Low", 4),
        (":handle level if level >= Middle", 8),
        (":handle request.level if request.level == High", 4),
    ] {
        assert_eq!(selected(&program, event), calls, "{event}");
    }
}

#[test]
fn names_that_are_not_there_are_refused_at_their_column() {
    let Some(program) = build(Compiler::Gxx, "enumerations.cpp", &[]) else {
        return;
    };
    let events = [
        ":handle color if color == 5 || color == BLU",
        ":handle access if access == READ | WRIT",
        ":handle level if level == level::high",
        ":handle color if color == PURPLE",
        ":handle request->id if request->id == READY",
        ":handle color:s32 if color == RED",
        ":handle color if color ~ RED",
        ":handle color if tid == RED",
        "handle* color if color == BLU",
    ];
    let refused = events.map(|event| {
        let output = capriole(&["record", "-e", event, "--", text(&program)]);
        assert_failed(&output);
        String::from_utf8(output.stderr).expect("UTF-8")
    });
    insta::assert_snapshot!(refused.concat());
}
