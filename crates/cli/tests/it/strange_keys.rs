//! Keys that are characters, or strings that are not UTF-8, and 32-bit programs that are
//! started.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record, scratch, text};
use serde_json::Value;
use std::fs;
use std::process::Command;

#[test]
fn texts_of_different_bytes_are_different_keys() {
    let Some(program) = build(Compiler::Gcc, "bytes.c", &["-O1"]) else {
        return;
    };
    let event = ":named by name=+0($arg1):string";
    let output = capriole(&["stat", "-e", event, "--", text(&program)]);
    let said = told(&output);
    let rows: Vec<(&str, &str)> = said
        .lines()
        .filter(|line| line.contains("caf"))
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[0], words[words.len() - 1])
        })
        .collect();
    let expected = [("3", r"caf\xe9"), ("2", r"caf\xe8"), ("1", r"caf\\xe8")];
    assert_eq!(rows, expected, "{said}");

    let output = capriole(&["stat", "--json", "-e", event, "--", text(&program)]);
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let last = printed.lines().last().expect("an object");
    let value: Value = serde_json::from_str(last).expect("JSON");
    let rows = value["groups"][0]["rows"].as_array().expect("rows");
    let mut keys: Vec<(u64, String)> = rows
        .iter()
        .map(|row| {
            (
                row["calls"].as_u64().expect("a number"),
                row["keys"].to_string(),
            )
        })
        .collect();
    keys.sort();
    assert_eq!(keys.len(), 3, "{printed}");
    assert!(keys[2].1.contains(r"caf\\xe9"), "{keys:?}");
    assert!(keys[1].1.contains(r"caf\\xe8"), "{keys:?}");
}

#[test]
fn a_character_is_shown_as_one_where_it_is_a_key() {
    let Some(program) = build(Compiler::Gcc, "bytes.c", &["-O1"]) else {
        return;
    };
    let event = ":named by first=+0($arg1):char";
    let stat = |words: &[&str]| {
        let all = [&["stat", "-e", event], words, &["--", text(&program)]].concat();
        told(&capriole(&all))
    };
    let said = stat(&[]);
    assert!(said.lines().any(|line| line.ends_with("'c'")), "{said}");
    let said = stat(&["--json"]);
    assert!(said.contains(r#""keys":{"first":"c"}"#), "{said}");
}

/// A program that ends at once, without a C library, as there may be none for 32 bits.
const THIRTY_TWO: &str = ".globl _start
_start: mov $1, %eax
        xor %ebx, %ebx
        int $0x80
";

#[test]
fn a_program_of_32_bits_is_refused_before_anything_else() {
    let directory = scratch();
    let [source, object, program] = ["s.s", "s.o", "program"].map(|n| directory.path().join(n));
    fs::write(&source, THIRTY_TWO).expect("written");
    let run = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
    let made = run(Command::new("as")
        .args(["--32", "-o"])
        .args([&object, &source]))
        && run(Command::new("ld")
            .args(["-m", "elf_i386", "-o"])
            .args([&program, &object]));
    if !made || !run(&mut Command::new(&program)) {
        println!("skipped: programs of 32 bits cannot be made or run here");
        return;
    }
    for event in [":main", ":_start $arg1", "libc:malloc"] {
        let trace = directory.path().join("t");
        let said = told(&record(&trace, &["-e", event, "--", text(&program)]));
        assert!(
            said.contains("runs a 32-bit program; only 64-bit x86 programs can be traced"),
            "{event}: {said}"
        );
        assert!(!trace.exists(), "{event}");
    }
}
