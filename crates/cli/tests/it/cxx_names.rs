//! Functions of C++ and Rust are shown by names as in the source, and complete with `--names full`.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record, scratch, text};
use capriole_object::ObjectFile;
use std::path::{Path, PathBuf};

const STRING: &str = "std::__cxx11::basic_string<char";

fn program() -> Option<PathBuf> {
    build(Compiler::Gxx, "cxx_names.cpp", &[])
}

/// Returns what a command prints on standard output.
fn printed(words: &[&str]) -> String {
    let output = capriole(words);
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the last column of a table, sorted, each name once.
fn names(table: &str, column: &str) -> String {
    let head = table.lines().find(|line| line.ends_with(column));
    let start = head.expect("a head").rfind(column).expect("the column");
    let rows = table.lines().skip_while(|line| !line.ends_with(column));
    let rows = rows.skip(1).take_while(|row| !row.is_empty());
    let mut names: Vec<&str> = rows.filter_map(|row| row.get(start..)).collect();
    names.sort_unstable();
    names.dedup();
    names.join("\n")
}

fn assert_is_short(shown: &str) {
    for part in ["__cxx11", "[abi:", "[clone", "allocator", "constprop"] {
        assert!(!shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn tables_show_names_as_in_the_source() {
    let Some(program) = program() else { return };
    let short = printed(&["list", "shop::*", text(&program)]);
    assert_is_short(&short);
    insta::assert_snapshot!(names(&short, "FUNCTION"), @r"
        shop::Box<std::string>::get
        shop::add(int)
        shop::add(long)
        shop::either
        shop::folded
        shop::folded::{lambda#1}::operator()
        shop::label
        shop::price
        shop::scaled
        shop::total
        shop::unused
        ");
    let full = printed(&["list", "--names", "full", "shop::*", text(&program)]);
    assert!(full.contains(STRING), "{full}");
    let json = printed(&["list", "--json", "shop::*", text(&program)]);
    assert!(json.contains(STRING), "{json}");
    let words = ["stat", "-e", ":shop::*", "--", text(&program)];
    let short = printed(&words);
    assert_is_short(&short);
    assert!(short.contains("  shop::price\n"), "{short}");
    assert!(short.contains("  shop::add(long)\n"), "{short}");
    let full = printed(&[&words[..1], &["--names", "full"], &words[1..]].concat());
    assert!(full.contains(STRING), "{full}");
}

#[test]
fn reports_show_names_as_in_the_source() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["--graph", ":shop::*", "--", text(&program)];
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let picture = directory.path().join("flame.svg");
    let report = |words: &[&str]| printed(&[&["report"], words, &[text(&trace)]].concat());
    let flame = |words: &[&str]| {
        report(&[&["--flame", text(&picture)], words].concat());
        std::fs::read_to_string(&picture).expect("a picture")
    };
    insta::assert_snapshot!(names(&report(&["--summary"]), "function"), @r"
        shop::Box<std::string>::get
        shop::add(int)
        shop::add(long)
        shop::either
        shop::folded
        shop::folded::{lambda#1}::operator()
        shop::label
        shop::price
        shop::scaled
        shop::total
        ");
    let graph = report(&["--graph"]);
    assert!(graph.contains("shop::price() = "), "{graph}");
    assert!(graph.contains("shop::add(long) = "), "{graph}");
    for shown in [
        report(&[]),
        graph,
        report(&["--callers"]),
        flame(&["--by", "calls"]),
    ] {
        assert_is_short(&shown);
        assert!(shown.contains("shop::price"), "{shown}");
    }
    for form in [&[][..], &["--graph"], &["--callers"], &["--summary"]] {
        for option in [&["--names", "full"][..], &["--json"]] {
            let full = report(&[form, option].concat());
            assert!(full.contains(STRING), "{option:?} {form:?}: {full}");
        }
    }
    let full = flame(&["--by", "calls", "--names", "full"]);
    assert!(
        full.contains("std::__cxx11::basic_string&lt;char"),
        "{full}"
    );
}

#[test]
fn call_stacks_show_names_as_in_the_source() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let output = record(&trace, &["-e", ":shop::price stack", "--", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let short = printed(&["report", text(&trace)]);
    assert!(short.contains(" shop::price+0x0 ("), "{short}");
    assert_is_short(&short);
    let full = printed(&["report", "--names", "full", text(&trace)]);
    assert!(full.contains(STRING), "{full}");
}

/// Functions of a stripped program are told apart by the places where they begin.
#[test]
fn functions_without_names_have_places() {
    let stripped = build(Compiler::Gxx, "cxx_names.cpp", &["-s"]);
    let (Some(program), Some(stripped)) = (program(), stripped) else {
        return;
    };
    let file = ObjectFile::open(&program).expect("a program");
    let main = file.symbols().expect("symbols").linked("main")[0];
    let main = main.function.extent.start;
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["-e", "libc:malloc stack", "--", text(&stripped)];
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let file = stripped.file_name().and_then(|name| name.to_str());
    let place = format!("{}+{main:#x}", file.expect("a name"));
    let lines = printed(&["report", text(&trace)]);
    assert!(
        lines.contains(&format!(" [{place}]+0x")),
        "{place}: {lines}"
    );
    let callers = printed(&["report", "--callers", text(&trace)]);
    assert!(
        callers.contains(&format!("  {place}\n")),
        "{place}: {callers}"
    );
}

/// The names in a table are names for events.
#[test]
fn a_shown_name_names_the_function() {
    let Some(program) = program() else { return };
    for name in [
        "shop::Box<std::string>::get",
        "shop::price(std::map<std::string, int> const&, std::string const&)",
        "shop::label",
        "shop::scaled",
        "shop::folded::{lambda#1}::operator()",
    ] {
        let list = printed(&["list", name, text(&program)]);
        assert_eq!(list.lines().count(), 2, "{name}: {list}");
    }
}

fn rust_names(program: &Path, pattern: &str) -> String {
    let list = printed(&["list", pattern, text(program)]);
    names(&list, "FUNCTION")
}

#[test]
fn names_of_rust_have_no_hash() {
    for mangling in ["legacy", "v0"] {
        let mangling = format!("-Csymbol-mangling-version={mangling}");
        let Some(program) = build(Compiler::Rustc, "rustprog.rs", &[&mangling]) else {
            return;
        };
        let shown = rust_names(&program, "*");
        let has_hash = |name: &str| {
            let last = name.rsplit("::").next().unwrap_or_default();
            last.len() == 17 && last.starts_with('h')
        };
        assert!(!shown.lines().any(has_hash), "{shown}");
        assert!(!shown.contains("$LT$"), "{shown}");
        assert!(shown.contains("rustprog::main"), "{shown}");
        assert!(shown.contains("closure"), "{shown}");
    }
}

/// A function that has a return and a tail call ends in one of both ways.
#[test]
fn the_other_way_to_end_is_no_event_that_was_not_hit() {
    let Some(program) = program() else { return };
    let event = "latency(:shop::either)";
    let json = printed(&["stat", "--json", "-e", event, "--", text(&program)]);
    assert!(json.contains("shop::either(int)__tail"), "{json}");
    let table = printed(&["stat", "-e", event, "--", text(&program)]);
    assert!(table.contains("shop::either__return"), "{table}");
    assert!(!table.contains("never hit"), "{table}");
    assert!(!table.contains("__tail"), "{table}");
    // Neither is it one of those that were all not hit.
    let event = "latency(:shop::unused)";
    let output = told(&capriole(&["stat", "-e", event, "--", text(&program)]));
    assert!(output.contains("1 event was never hit"), "{output}");
    assert!(output.contains("hit: shop::unused__return\n"), "{output}");
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["-e", ":shop::either%return", "--", text(&program)];
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let table = printed(&["report", "--summary", text(&trace)]);
    assert!(!table.contains("never hit"), "{table}");
}

/// A file is shown by the link by which the event gave it.
#[test]
fn an_object_has_the_name_that_the_event_gave() {
    let Some(program) = program() else { return };
    let events = [
        "-e",
        "p:same libstdc++.so.6:__cxa_throw",
        "-e",
        "p:same libstdc++.so.6:__cxa_rethrow",
        "-e",
        "p:same libstdc++.so.6:__cxa_begin_catch",
    ];
    let words = [&["stat", "-v"], &events[..], &["--", text(&program)]].concat();
    let output = told(&capriole(&words));
    assert!(output.contains(" (libstdc++.so.6+0x"), "{output}");
    assert!(!output.contains(" (libstdc++.so.6."), "{output}");
}

/// A pattern matches the names that a list shows, not only complete ones.
#[test]
fn patterns_match_names_as_they_are_shown() {
    let Some(program) = build(Compiler::Gxx, "cxx_names.cpp", &[]) else {
        return;
    };
    let name = "shop::folded::{lambda#1}::operator()";
    for pattern in [":shop::folded::{lambda#1}*", ":*::{lambda#?}::operator()"] {
        let output = capriole(&["list", pattern, text(&program)]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(name), "{pattern}: {}", told(&output));
    }
}
