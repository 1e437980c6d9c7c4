//! Several functions of one name: what an event leaves out is reported, and rows of one name can be
//! told apart. Names of libraries.

use crate::programs::{Compiler, build, build_go};
use crate::target::{capriole, told};
use crate::tools::have;
use crate::traces::{events, record, record_program, scratch, text};
use std::path::Path;

/// Instances of a generic function of Rust have one name; a place tells them apart where both are in a
/// table, and no hash is shown.
#[test]
fn instances_of_generic_functions_have_rows_of_their_own() {
    let Some(program) = build(Compiler::Rustc, "rust_namesakes.rs", &[]) else {
        return;
    };
    let path = text(&program);
    let events = [
        "-e",
        ":rust_namesakes::show*",
        "-e",
        ":rust_namesakes::alone",
    ];
    // The calls of each row, by the name without the place.
    let rows = |table: &str| {
        let mut rows: Vec<(String, u64, bool)> = table
            .lines()
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let name = words
                    .iter()
                    .find(|word| word.starts_with("rust_namesakes::"))?;
                let calls = words[0].parse().ok()?;
                Some((name.to_string(), calls, line.ends_with(')')))
            })
            .collect();
        rows.sort();
        rows
    };
    let row = |name: &str, calls, told: bool| (format!("rust_namesakes::{name}"), calls, told);
    let expected = [
        row("alone", 10, false),
        row("show", 10, true),
        row("show", 20, true),
        row("show::{{closure}}", 10, true),
        row("show::{{closure}}", 20, true),
    ];
    let output = capriole(&[&["stat"], &events[..], &["--", path]].concat());
    let table = told(&output);
    assert_eq!(rows(&table), expected, "{table}");
    assert!(!table.contains("::h"), "{table}");
    let directory = scratch();
    let trace = directory.path().join("trace");
    for graph in [false, true] {
        let events = match graph {
            false => events.to_vec(),
            true => vec![
                "--graph",
                ":rust_namesakes::show*",
                "--graph",
                ":rust_namesakes::alone",
            ],
        };
        let output = record(&trace, &[&events[..], &["--", path]].concat());
        assert!(output.status.success(), "{}", told(&output));
        let table = told(&capriole(&["report", "--summary", text(&trace)]));
        assert_eq!(rows(&table), expected, "{table}");
    }
    let callers = told(&capriole(&["report", "--callers", text(&trace)]));
    assert!(callers.contains("rust_namesakes::show ("), "{callers}");
    assert!(!callers.contains("rust_namesakes::show\n"), "{callers}");
}

#[test]
fn code_of_the_same_name_that_gets_no_probe_is_reported() {
    let Some(program) = build(Compiler::Gcc, "namesakes.c", &[]) else {
        return;
    };
    let program = text(&program);
    let directory = scratch();
    let trace = directory.path().join("t");
    let outputs = [
        capriole(&["list", ":helper", program]),
        capriole(&["check", ":helper", program]),
        capriole(&["stat", "-e", ":helper", "--", program]),
        record(&trace, &["-e", ":helper", "--", program]),
        record(&trace, &["--graph", ":helper", "--", program]),
    ];
    for output in outputs {
        let said = told(&output);
        assert!(output.status.success(), "{said}");
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            notes.contains("capriole: left out: more code named `helper`"),
            "{said}"
        );
        assert!(
            notes.contains(&format!("\n  helper.isra.0  code at {program}:0x")),
            "{said}"
        );
        for other in ["helper.part.0", "helper.cold", "another_name"] {
            assert!(!notes.contains(other), "{said}");
        }
    }
    // Where it has a probe as well, was named itself, or a pattern was given, nothing is left out.
    for events in [
        &["-e", ":helper", "-e", ":helper.isra.0"][..],
        &["-e", ":helper.isra.0"],
        &["-e", ":helper*"],
    ] {
        let output = capriole(&[&["stat"], events, &["--", program]].concat());
        let said = told(&output);
        assert!(output.status.success(), "{said}");
        assert!(!said.contains("more code named"), "{said}");
    }
}

#[test]
fn rows_of_one_name_show_their_places() {
    let Some(program) = build(Compiler::Gcc, "namesakes.c", &[]) else {
        return;
    };
    let events = [
        "-e",
        "p:one/same :helper",
        "-e",
        "p:two/same :helper_of_another_name",
    ];
    let output = capriole(&[&["stat"], &events[..], &["--", text(&program)]].concat());
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<&str> = shown.lines().filter(|l| l.contains("same (")).collect();
    let [one, two] = rows[..] else {
        panic!("{}", told(&output));
    };
    assert_ne!(one, two);
    // One function has no need of it, also with two events.
    for events in [
        &events[..2],
        &[
            "-e",
            "p:same :helper",
            "-e",
            "p:same :helper n=$arg1 sum(n)",
        ],
    ] {
        let output = capriole(&[&["stat"], events, &["--", text(&program)]].concat());
        assert!(!told(&output).contains("same ("), "{}", told(&output));
    }
}

/// Closures of Go are named after the function around them, and are others.
#[test]
fn closures_of_go_are_not_code_of_the_same_name() {
    let Some(program) = build_go("go_returns.go", "go_namesakes") else {
        return;
    };
    let listed = told(&capriole(&["list", ":main.main.func*", text(&program)]));
    assert!(listed.contains("main.main.func1"), "{listed}");
    for event in ["latency(:main.main)", ":main.main"] {
        let output = capriole(&["stat", "-e", event, "--", text(&program)]);
        let said = told(&output);
        assert!(output.status.success(), "{said}");
        assert!(!said.contains("main.main.func"), "{said}");
    }
}

/// A function with a probe at some of its exits is not one that is left out.
#[test]
fn exits_that_are_left_out_are_not_functions() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &["-g"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["-e", "r :odd n=$retval if n >= 0", "-e", ":even", "--"];
    let words = [&words[..], &[text(&program), "tail"]].concat();
    let said = told(&record(&trace, &words));
    let reason = "(a jump to another function has no result yet: 1)";
    let wanted = format!("capriole: left out: some exits of 1 function {reason}; ");
    assert!(said.contains(&wanted), "{said}");
    assert!(!said.contains(" of 2 functions"), "{said}");
    // Calls are one function each, with their entries and exits.
    let words = ["--graph", ":even", "--", text(&program), "tail"];
    let said = told(&record(&trace, &words));
    assert!(!said.contains("left out"), "{said}");
}

/// A library's file has more of its version in its name than programs know it by.
#[test]
fn libraries_are_shown_by_their_sonames() {
    if !have("sqlite3") {
        println!("skipped: no sqlite3");
        return;
    }
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = "libsqlite3:sqlite3_open_v2";
    let sqlite = Path::new("/usr/bin/sqlite3");
    record_program(&trace, &["-e", event], sqlite, &[":memory:", ".databases"]);
    let said = told(&capriole(&["report", text(&trace)]));
    assert!(said.contains(" (libsqlite3.so.0+0x"), "{said}");
    let all = events(&trace);
    let object = all[0]["object"].as_str().expect("a path");
    assert!(object.contains("libsqlite3.so.0."), "{object}");
}
