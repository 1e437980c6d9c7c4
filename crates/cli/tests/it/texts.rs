//! Texts of C++, Rust and Go by their names, compared with gdb, which reads their pointers and
//! lengths at the same calls.

use crate::programs::{Compiler, build, build_go};
use crate::target::{capriole, told};
use crate::traces::{events, record_program, scratch, text};
use std::path::Path;
use std::process::Command;

/// Values of one call: of each expression in turn, the first 1,024 bytes.
type Call = Vec<Vec<u8>>;

/// An expression, with the pointer and the length of its text as gdb has to read them.
type Expression = (&'static str, &'static str, &'static str);

/// Reads the expressions at each call of a function with gdb; `None` if there is no gdb.
fn by_gdb(
    program: &Path,
    (language, function): (&str, &str),
    expressions: &[Expression],
) -> Option<Vec<Call>> {
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("skipped: no gdb");
        return None;
    }
    let pairs: Vec<String> = expressions
        .iter()
        .map(|(_, pointer, length)| format!("({pointer:?}, {length:?})"))
        .collect();
    let script = format!(
        "import gdb\n\
         class Stop(gdb.Breakpoint):\n\
         \x20   def stop(self):\n\
         \x20       frame = gdb.newest_frame()\n\
         \x20       while 'take' not in (frame.name() or ''):\n\
         \x20           frame = frame.older()\n\
         \x20       frame.select()\n\
         \x20       gdb.execute('set language ' + {language:?})\n\
         \x20       for pointer, length in [{}]:\n\
         \x20           at = int(gdb.parse_and_eval(pointer))\n\
         \x20           size = min(int(gdb.parse_and_eval(length)), 1024)\n\
         \x20           data = bytes(gdb.selected_inferior().read_memory(at, size)) if size else b''\n\
         \x20           print('VALUE ' + data.hex())\n\
         \x20       return False\n\
         gdb.execute('set confirm off')\n\
         gdb.execute('set pagination off')\n\
         Stop('{function}')\n\
         gdb.execute('run')\n",
        pairs.join(", "),
    );
    let directory = scratch();
    let path = directory.path().join("values.py");
    std::fs::write(&path, script).expect("it is written");
    let output = Command::new("gdb")
        .args(["-nx", "-batch", "-x", text(&path), text(program)])
        .output()
        .expect("gdb runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(digits, 16).expect("digits")
    };
    let values: Vec<Vec<u8>> = said
        .lines()
        .filter_map(|line| line.strip_prefix("VALUE"))
        .map(|hex| hex.trim().as_bytes().chunks(2).map(byte).collect())
        .collect();
    assert!(!values.is_empty(), "{}", told(&output));
    // A function of Go starts again when its stack has grown; no two calls in a row are equal.
    let calls = values.chunks(expressions.len()).map(<[_]>::to_vec);
    let mut calls: Vec<Call> = calls.collect();
    calls.dedup();
    Some(calls)
}

/// Records the expressions at each call, without types and as strings, and compares both with gdb.
fn compare(
    program: &Path,
    (language, function): (&str, &str),
    expressions: &[Expression],
    calls: usize,
) {
    let Some(expected) = by_gdb(program, (language, function), expressions) else {
        return;
    };
    assert_eq!(expected.len(), calls, "gdb stops at each call");
    for suffix in ["", ":string"] {
        let fields: Vec<String> = expressions
            .iter()
            .enumerate()
            .map(|(index, (name, ..))| format!("f{index}={name}{suffix}"))
            .collect();
        let event = format!("p:take :{function} {}", fields.join(" "));
        let directory = scratch();
        let trace = directory.path().join("t");
        assert_eq!(
            record_program(&trace, &["-e", &event], program, &[]),
            "ok texts\n"
        );
        let all = events(&trace);
        let own: Vec<_> = all.iter().filter(|e| e["event"] == "take").collect();
        assert_eq!(own.len(), calls);
        for (event, expected) in own.iter().zip(&expected) {
            for (index, (name, ..)) in expressions.iter().enumerate() {
                let found = event["arguments"][format!("f{index}")].as_str();
                let expected = String::from_utf8_lossy(&expected[index]).into_owned();
                assert_eq!(found, Some(expected.as_str()), "{name}{suffix}: {event}");
            }
        }
    }
}

#[test]
fn texts_of_cxx_are_those_that_gdb_reads() {
    const ALL: [Expression; 5] = [
        ("text", "text._M_dataplus._M_p", "text._M_string_length"),
        ("view", "view._M_str", "view._M_len"),
        (
            "order->name",
            "order->name._M_dataplus._M_p",
            "order->name._M_string_length",
        ),
        ("order->note", "order->note._M_str", "order->note._M_len"),
        ("own", "own._M_dataplus._M_p", "own._M_string_length"),
    ];
    for flags in [&["-g", "-O0", "-std=c++20"], &["-g", "-O2", "-std=c++20"]] {
        if let Some(program) = build(Compiler::Gxx, "texts.cpp", flags) {
            compare(&program, ("c++", "take"), &ALL, 5);
        }
    }
}

#[test]
fn texts_of_rust_are_those_that_gdb_reads() {
    const ALL: [Expression; 6] = [
        ("text", "text.data_ptr", "text.length"),
        (
            "owned",
            "owned.vec.buf.inner.ptr.pointer.pointer",
            "owned.vec.len",
        ),
        ("bytes", "bytes.data_ptr", "bytes.length"),
        (
            "order.name",
            "order.name.vec.buf.inner.ptr.pointer.pointer",
            "order.name.vec.len",
        ),
        ("order.note", "order.note.data_ptr", "order.note.length"),
        (
            "order.data",
            "order.data.buf.inner.ptr.pointer.pointer",
            "order.data.len",
        ),
    ];
    for flags in [&["-g", "-Copt-level=0"], &["-g", "-Copt-level=2"]] {
        if let Some(program) = build(Compiler::Rustc, "texts.rs", flags) {
            compare(&program, ("rust", "take"), &ALL, 5);
        }
    }
}

#[test]
fn texts_of_go_are_those_that_gdb_reads() {
    const ALL: [Expression; 4] = [
        ("text", "text.str", "text.len"),
        ("data", "data.array", "data.len"),
        ("o.name", "o->name.str", "o->name.len"),
        ("o.data", "o->data.array", "o->data.len"),
    ];
    if let Some(program) = build_go("texts.go", "texts_go") {
        compare(&program, ("c", "main.take"), &ALL, 5);
    }
}

#[test]
fn texts_of_servers_are_those_that_gdb_reads() {
    const ALL: [Expression; 10] = [
        ("uri", "uri->data", "uri->len"),
        ("value", "value.data", "value.len"),
        ("r->uri", "r->uri.data", "r->uri.len"),
        ("r->main->uri", "r->main->uri.data", "r->main->uri.len"),
        ("info", "info->data", "info->len"),
        ("name", "&name->data", "$_strlen((char *)name->data)"),
        ("string", "string->str", "string->len"),
        ("ist", "ist.ptr", "ist.len"),
        ("body", "body.base", "body.len"),
        ("own", "own", "$_strlen(own)"),
    ];
    for flags in [&["-g", "-O0"], &["-g", "-O2"]] {
        if let Some(program) = build(Compiler::Gcc, "texts_known.c", flags) {
            compare(&program, ("c", "take"), &ALL, 5);
        }
    }
}

#[test]
fn a_type_with_a_known_name_and_other_members_is_no_text() {
    let Some(program) = build(Compiler::Gcc, "texts_known.c", &["-g", "-DOTHER"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = ":take uri uri->len uri->data";
    record_program(&trace, &["-e", event], &program, &[]);
    let all = events(&trace);
    let arguments = &all[0]["arguments"];
    let pointer = arguments["uri"].as_str().expect("a pointer");
    assert!(pointer.starts_with("0x7f"), "{arguments}");
    assert_eq!([&arguments["uri_len"], &arguments["uri_data"]], [7, 8]);
}

#[test]
fn all_arguments_are_those_that_can_be_shown() {
    let Some(program) = build(Compiler::Gxx, "texts.cpp", &["-g", "-O2", "-std=c++20"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let record = |event: &str| {
        let words = ["record", "-o", text(&trace), "-e", event, "--"];
        capriole(&[&words[..], &[text(&program)]].concat())
    };
    let output = record("p:price :price $arg*");
    assert!(output.status.success(), "{}", told(&output));
    let message = "left out of `p:price :price $arg*`: parameter `order`: `order` is ";
    assert_eq!(
        told(&output).matches(message).count(),
        1,
        "{}",
        told(&output)
    );
    let expected = serde_json::json!({"count": 3, "unit": "kg"});
    let all = events(&trace);
    let own: Vec<_> = all.iter().filter(|e| e["event"] == "price").collect();
    assert_eq!(own.len(), 5);
    assert!(own.iter().all(|e| e["arguments"] == expected), "{own:?}");
    // Hits are recorded also if no argument is left.
    let output = record("p:only :only $arg*");
    assert!(output.status.success(), "{}", told(&output));
    let message = "left out of `p:only :only $arg*`: parameter `order`: `order` is ";
    assert!(told(&output).contains(message), "{}", told(&output));
    let all = events(&trace);
    let own = all.iter().filter(|e| e["event"] == "only");
    let own: Vec<_> = own.map(|e| &e["arguments"]).collect();
    assert!(!own.is_empty(), "{all:?}");
    assert!(own.iter().all(|a| **a == serde_json::json!({})), "{own:?}");
}

/// A parameter that is optimised out does not take the others with it.
#[test]
fn all_arguments_are_those_that_are_known() {
    let Some(program) = build(Compiler::Rustc, "parts.rs", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "record",
        "-o",
        text(&trace),
        "-e",
        ":parts::part $arg*",
        "--",
    ];
    let output = capriole(&[&words[..], &[text(&program)]].concat());
    assert!(output.status.success(), "{}", told(&output));
    let message =
        "left out of `:parts::part $arg*`: parameter `_unused`: `_unused` is optimised out";
    assert!(told(&output).contains(message), "{}", told(&output));
    let all = events(&trace);
    let numbers: Vec<_> = all.iter().map(|e| &e["arguments"]["n"]).collect();
    assert_eq!(numbers, [0, 1, 2], "{all:?}");
}
