//! Texts with a length: in registers, in memory, by name, as another field and as the result; in
//! filters, and as keys.

use crate::programs::{Compiler, build};
use crate::target::{assert_failed, capriole, told};
use crate::traces::{counts_of, events, record_program, scratch, text};
use serde_json::{Value, json};

/// The texts of the calls of `put` in `sized.c`; `None` could not be read.
fn texts() -> Vec<Option<String>> {
    let texts = [
        Some("GET"),
        Some("a\0b\n\"c"),
        Some(""),
        None,
        Some(&"m".repeat(1024)),
        Some("end"),
        Some(""),
    ];
    texts.map(|text| text.map(str::to_owned)).into()
}

/// Returns a field of all events of a name; `None` could not be read.
fn of(events: &[Value], event: &str, field: &str) -> Vec<Option<String>> {
    let own = events.iter().filter(|e| e["event"] == event);
    let values = own.map(|e| &e["arguments"][field]);
    values.map(|v| v.as_str().map(str::to_owned)).collect()
}

#[test]
fn texts_with_a_length_are_those_of_the_program() {
    let Some(program) = build(Compiler::Gcc, "sized.c", &["-g"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let put = "p:put :put n=%dx:s32 register=%si:string[%dx:s32] memory=+0(+0(%di)):string[+8(%di):s32] \
               network=+0(+0(%di)):string[+12(%di):be16] field=$arg2:ustring[n] \
               named=text:string[length] member=message->text:string[message->length:s32] \
               three=+0(%si):string[\\3] array=+0(%di):string[1]";
    let get = "p:get :put text=$arg2:string[$arg3:s32] if text == \"GET\"";
    let fill = "r:fill :fill got=+0($entry:buffer):string[$retval:s32] \
                asked=+0($entry:arg1):string[$entry:size]";
    record_program(&trace, &["-e", put, "-e", get, "-e", fill], &program, &[]);
    let all = events(&trace);
    for field in ["register", "memory", "field", "named", "member"] {
        assert_eq!(of(&all, "put", field), texts(), "{field}");
    }
    let mut network = texts();
    assert_eq!(of(&all, "put", "network"), network, "network");
    network.truncate(1);
    assert_eq!(of(&all, "get", "text"), network);
    let three = of(&all, "put", "three");
    assert_eq!(three[1].as_deref(), Some("a\0b"));
    assert_eq!(three[6].as_deref(), Some("neg"));
    let first = all.iter().find(|e| e["event"] == "put").expect("an event");
    assert_eq!(first["arguments"]["array"], json!(["GET /index"]));
    let got = ["", "", "f", "ff", "fff"].map(|text| Some(text.to_owned()));
    assert_eq!(of(&all, "fill", "got"), got);
    assert_eq!(of(&all, "fill", "asked"), got);
    // In a report a NUL is escaped.
    let report = capriole(&["report", text(&trace)]);
    let report = String::from_utf8(report.stdout).expect("UTF-8");
    assert!(report.contains(r#"register="a\x00b\n\"c""#), "{report}");
}

#[test]
fn texts_with_a_length_are_keys() {
    let Some(program) = build(Compiler::Gcc, "sized.c", &["-g"]) else {
        return;
    };
    let event = ":put count() by text=$arg2:string[$arg3:s32]";
    let last = counts_of(event, &program);
    let rows = last["groups"][0]["rows"].as_array().expect("a list");
    let mut rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let key = row["keys"]["text"].as_str().map(str::to_owned);
            (key, row["calls"].as_u64().expect("a count"))
        })
        .collect();
    rows.sort();
    // A key has the first 124 bytes of a text.
    let many = "m".repeat(124);
    let expected = [
        (None, 1),
        (Some(""), 2),
        (Some("GET"), 1),
        (Some("a\0b\n\"c"), 1),
        (Some("end"), 1),
        (Some(&many), 1),
    ];
    let expected = expected.map(|(key, count)| (key.map(str::to_owned), count));
    assert_eq!(rows, expected, "{last}");
}

#[test]
fn lengths_that_are_no_numbers_are_refused() {
    let Some(program) = build(Compiler::Gcc, "sized.c", &["-g"]) else {
        return;
    };
    for (field, reason) in [
        (
            "text:string[text]",
            "its length is a string, and not a number",
        ),
        ("text:string[$comm]", "a string is no length"),
        ("text:string[nothing]", "nothing"),
        ("text:u8[length]", "array size"),
        ("text:string[length", "bracket"),
        ("text:string[$retval]", "$retval is not available"),
    ] {
        let event = format!(":put {field}");
        let directory = scratch();
        let trace = directory.path().join("t");
        let words = ["record", "-o", text(&trace), "-e", &event, "--"];
        let output = capriole(&[&words[..], &[text(&program)]].concat());
        assert_failed(&output);
        assert!(told(&output).contains(reason), "{field}: {}", told(&output));
    }
}
