//! Values of enumerations are shown by the names of the source.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{events, record_program, scratch, text};
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
    let output = capriole(&["stat", "--json", "-e", event, "--", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let last = said.lines().last().expect("a line");
    let last: Value = serde_json::from_str(last).expect("JSON");
    let rows = last["groups"][0]["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 12, "{last}");
    let row = rows
        .iter()
        .find(|row| row["keys"]["access"] == "WRITE|0x40");
    let row = row.expect("a row");
    assert!(
        ["GREEN", "7"]
            .iter()
            .any(|color| { row["keys"]["color"] == *color || row["keys"]["color"] == json!(7) }),
        "{row}"
    );
    let output = capriole(&["stat", "-e", event, "--", text(&program)]);
    let said = told(&output);
    assert!(said.contains("READ|WRITE|APPEND"), "{said}");
}
