//! Values of enumerations are shown by the names of the source.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
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
