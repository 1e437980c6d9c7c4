//! Numbers in network byte order: in registers, in memory, by name, kept for the return, in filters,
//! and as keys.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{events, record_program, scratch, text};
use serde_json::Value;

#[test]
fn numbers_in_network_order_are_those_of_the_program() {
    let Some(program) = build(Compiler::Gcc, "network.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let entry = "p:in :connect_to by=%si:be16 port=+2(%di):be16 host=+4(%di):be32 \
                 cookie=+8(%di):be64 named=to->port:be16 if port >= 443";
    let exit = "r:out :connect_to kept=$entry:port:be16 behind=+2($entry:to):be16";
    record_program(&trace, &["-e", entry, "-e", exit], &program, &[]);
    let all = events(&trace);
    let of = |event: &str, field: &str| -> Vec<u64> {
        let own = all.iter().filter(|e| e["event"] == event);
        own.filter_map(|e| e["arguments"][field].as_u64()).collect()
    };
    for field in ["by", "port", "named"] {
        assert_eq!(of("in", field), [443, 444], "{field}");
    }
    assert_eq!(of("in", "host"), [0x0a00_0002, 0x0a00_0003]);
    let cookie = 0x1234_5678_9abc;
    assert_eq!(of("in", "cookie"), [cookie + 1, cookie + 2]);
    assert_eq!(of("out", "kept"), [442, 443, 444]);
    assert_eq!(of("out", "behind"), [442, 443, 444]);
}

#[test]
fn numbers_in_network_order_are_keys_and_are_added_up() {
    let Some(program) = build(Compiler::Gcc, "network.c", &[]) else {
        return;
    };
    let event = "r :connect_to sum(host=+4($entry:to):be32) by port=$entry:port:be16";
    let output = capriole(&["stat", "--json", "-e", event, "--", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let last = said.lines().last().expect("a line");
    let last: Value = serde_json::from_str(last).expect("JSON");
    let rows = last["groups"][0]["rows"].as_array().expect("a list");
    let row = |row: &Value| {
        let sum = row["measures"][0]["value"].as_u64();
        (row["keys"]["port"].as_u64(), sum)
    };
    let mut rows: Vec<_> = rows.iter().map(row).collect();
    rows.sort_unstable();
    let expected = [0, 1, 2].map(|i| (Some(442 + i), Some(0x0a00_0001 + i)));
    assert_eq!(rows, expected, "{last}");
}

#[test]
fn what_is_no_whole_number_is_not_read_in_network_order() {
    let Some(program) = build(Compiler::Gcc, "network.c", &[]) else {
        return;
    };
    for (field, reason) in [
        ("+2(%di):be16[2]", "read the elements one by one"),
        ("to->weight:be16", "some bits of a number"),
    ] {
        let event = format!(":connect_to {field}");
        let directory = scratch();
        let trace = directory.path().join("t");
        let words = ["record", "-o", text(&trace), "-e", &event, "--"];
        let output = capriole(&[&words[..], &[text(&program)]].concat());
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert!(told(&output).contains(reason), "{}", told(&output));
    }
}
