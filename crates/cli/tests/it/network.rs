//! Numbers in network byte order: in registers, in memory, by name, kept for the return, in filters,
//! and as keys.

use crate::programs::{Compiler, build};
use crate::target::{assert_failed, capriole, told};
use crate::traces::{counts_of, events, record_program, scratch, text};
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
    let last = counts_of(event, &program);
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
        assert_failed(&output);
        assert!(told(&output).contains(reason), "{}", told(&output));
    }
}

#[test]
fn addresses_are_shown_and_compared_as_such() {
    let Some(program) = build(Compiler::Gcc, "addresses.c", &["-g"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let four = "p:four :reach4 addr=+4($arg1):ipv4 port=+2($arg1):port named=to->sin_addr:ipv4 \
                register=$arg2:ipv4";
    let six = "p:six :reach6 addr=+8($arg1):ipv6 named=to->sin6_addr:ipv6 port=to->sin6_port:port \
               n=$arg2:u32";
    let home = "p:home :reach4 addr=+4($arg1):ipv4 if addr == 127.0.0.1";
    let net = "p:net :reach4 addr=+4($arg1):ipv4 if addr >= 10.0.0.0 && addr < 11.0.0.0";
    let loopback = "p:loopback :reach6 addr=+8($arg1):ipv6 if addr == ::1";
    let others = "p:others :reach6 addr=+8($arg1):ipv6 if addr != ::1";
    let all = [four, six, home, net, loopback, others];
    let words: Vec<&str> = all.iter().flat_map(|event| ["-e", *event]).collect();
    record_program(&trace, &words, &program, &[]);
    let all = events(&trace);
    let of = |event: &str, field: &str| -> Vec<Value> {
        let own = all.iter().filter(|e| e["event"] == event);
        own.map(|e| e["arguments"][field].clone()).collect()
    };
    let v4 = ["127.0.0.1", "10.1.2.3", "192.168.0.255"];
    for field in ["addr", "named", "register"] {
        assert_eq!(of("four", field), v4, "{field}");
    }
    assert_eq!(of("four", "port"), [80, 81, 82]);
    let v6 = ["::1", "2001:db8::a:0:0:1", "::2"];
    for field in ["addr", "named"] {
        assert_eq!(of("six", field), v6, "{field}");
    }
    assert_eq!(of("six", "port"), [443, 444, 445]);
    assert_eq!(of("six", "n"), [0, 1, 2]);
    assert_eq!(of("home", "addr"), ["127.0.0.1"]);
    assert_eq!(of("net", "addr"), ["10.1.2.3"]);
    assert_eq!(of("loopback", "addr"), ["::1"]);
    assert_eq!(of("others", "addr"), v6[1..]);
    let report = capriole(&["report", text(&trace)]);
    let report = String::from_utf8(report.stdout).expect("UTF-8");
    assert!(report.contains("addr=192.168.0.255 port=82"), "{report}");
    assert!(report.contains("addr=2001:db8::a:0:0:1 named="), "{report}");
    let Ok(output) = std::process::Command::new("babeltrace2")
        .arg(&trace)
        .output()
    else {
        println!("skipped: no babeltrace2");
        return;
    };
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    let shown = said.lines().find(|line| line.contains("four")).expect("it");
    assert!(shown.contains("addr = 0x7F000001, port = 80"), "{shown}");
    let bytes = "[0] = 0x20, [1] = 0x1, [2] = 0xD, [3] = 0xB8";
    assert!(said.contains(bytes), "{said}");
}

#[test]
fn addresses_are_keys() {
    let Some(program) = build(Compiler::Gcc, "addresses.c", &["-g"]) else {
        return;
    };
    for (event, expected) in [
        (
            ":reach4 count() by addr=+4($arg1):ipv4",
            ["10.1.2.3", "127.0.0.1", "192.168.0.255"],
        ),
        (
            ":reach6 count() by addr=+8($arg1):ipv6",
            ["2001:db8::a:0:0:1", "::1", "::2"],
        ),
    ] {
        let last = counts_of(event, &program);
        let rows = last["groups"][0]["rows"].as_array().expect("a list");
        let mut keys: Vec<_> = rows
            .iter()
            .map(|row| row["keys"]["addr"].as_str())
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, expected.map(Some), "{last}");
    }
}

#[test]
fn addresses_are_compared_with_addresses_only() {
    let Some(program) = build(Compiler::Gcc, "addresses.c", &["-g"]) else {
        return;
    };
    for (event, reason) in [
        (":reach6 a=+8($arg1):ipv6 if a == 1", "expecting an address"),
        (":reach6 a=+8($arg1):ipv6 if a > ::1", "illegal operation"),
        (":reach4 a=+4($arg1):ipv4 if a == ::1", "invalid value"),
        (
            ":reach4 a=+4($arg1):ipv4 if a == 127.0.0",
            "something behind",
        ),
        (":reach6 a=+8($arg1):ipv6[2]", "one by one"),
        (":reach6 a=\\1:ipv6", "only a memory argument"),
    ] {
        let directory = scratch();
        let trace = directory.path().join("t");
        let words = ["record", "-o", text(&trace), "-e", event, "--"];
        let output = capriole(&[&words[..], &[text(&program)]].concat());
        assert_failed(&output);
        assert!(told(&output).contains(reason), "{event}: {}", told(&output));
    }
}
