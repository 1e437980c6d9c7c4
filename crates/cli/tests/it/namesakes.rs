//! Several functions of one name: what an event leaves out is reported, and rows of one name can be
//! told apart. Names of libraries.

use crate::programs::{Compiler, build, build_go};
use crate::target::{capriole, told};
use crate::tools::have;
use crate::traces::{counted_and_told, events, record, record_program, scratch, text};
use capriole_testkit::workshop::Workshop;
use serde_json::{Value, json};
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

/// Functions whose basic blocks the linker has sorted: the entry need not be in the first range.
#[test]
fn a_function_in_several_places_is_entered_where_its_symbol_is() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) static int handle(int request)
{
	if (request % 10 == 0) {
		for (int i = 0; i < request; i++)
			putchar('a' + i % 26);
		putchar('\n');
		return request / 7;
	}
	if (request > 5)
		request += rand() % 3;
	return request * 2 + 1;
}
int main(void)
{
	int sum = 0;
	for (int i = 1; i <= 40; i++)
		sum += handle(i);
	printf("ok sum=%d calls=40\n", sum);
	return 0;
}
"#;
    let shop = Workshop::new();
    let flags = ["-g", "-O2", "-fbasic-block-sections=all"];
    let Some(program) = shop.compile("clang", &flags, SOURCE, "blocks") else {
        return;
    };
    let words = [
        "stat",
        "--json",
        "-e",
        ":handle max(request)",
        "-e",
        "r :handle",
    ];
    let output = capriole(&[&words[..], &["--", text(&program)]].concat());
    let (calls, json) = counted_and_told(&output);
    let rows = json["events"].as_array().expect("a list");
    assert_eq!(rows.len(), 2, "{json}");
    assert!(rows.iter().all(|row| row["calls"] == calls), "{json}");
    assert_eq!(
        json["groups"][0]["rows"][0]["measures"][0]["value"], 40,
        "{json}"
    );
    assert!(!told(&output).contains("left out"), "{}", told(&output));
    // Its other parts are no functions.
    let output = capriole(&["stat", "--json", "-e", ":handle*", "--", text(&program)]);
    let (calls, json) = counted_and_told(&output);
    let rows = json["events"].as_array().expect("a list");
    assert_eq!(
        (rows.len(), rows[0]["calls"].as_u64()),
        (1, Some(calls)),
        "{json}"
    );
}

/// Identical functions, folded by the compiler or the linker: one place cannot tell which is called, and this is
/// said with the names.
#[test]
fn functions_of_one_code_are_told() {
    const SOURCE: &str = r#"
#include <cstdio>
#include <cstdlib>
#define KEPT __attribute__((noinline))
static KEPT int twice(int count) { volatile int kept = count; return kept * 2 + std::rand() % 2; }
static KEPT int doubled(int amount) { volatile int kept = amount; return kept * 2 + std::rand() % 2; }
static KEPT int alone(int of) { volatile int kept = of; return kept * 5 + std::rand() % 2; }
struct Box { int v; Box(int v); KEPT int get(int x) { volatile int k = x; return v + k; } };
struct Bag { int v; KEPT int get(int y) { volatile int k = y; return v + k; } };
KEPT Box::Box(int v) : v(v + std::rand() % 2) {}
int main()
{
	int sum = 0;
	Box box(1);
	Bag bag{2};
	for (int i = 0; i < 10; i++)
		sum += twice(i) + box.get(i) + alone(i);
	for (int i = 0; i < 20; i++)
		sum += doubled(i) + bag.get(i);
	printf("ok sum=%d calls=30\n", sum);
}
"#;
    let shop = Workshop::new();
    let lld = [
        "-g",
        "-O2",
        "-ffunction-sections",
        "-fuse-ld=lld",
        "-Wl,--icf=all",
    ];
    for (compiler, flags, folds_members) in
        [("g++", &["-g", "-O2"][..], false), ("clang++", &lld, true)]
    {
        let Some(program) = shop.compile(compiler, flags, SOURCE, compiler) else {
            continue;
        };
        let path = text(&program);
        let events = ["-e", ":twice", "-e", ":alone", "-e", "p:box :Box::Box"];
        let output = capriole(&[&["stat", "--json"], &events[..], &["--", path]].concat());
        let (calls, json) = counted_and_told(&output);
        let told = told(&output);
        assert_eq!(json["events"][0]["calls"], calls, "{told}");
        assert_eq!(json["events"][1]["calls"], 10, "{told}");
        assert!(told.contains("\n  twice(int) = doubled(int)\n"), "{told}");
        assert_eq!(told.matches(" = ").count(), 1, "{told}");

        let output = capriole(&["list", "--json", ":doubled", path]);
        let told = crate::target::told(&output);
        assert!(told.contains("\n  doubled(int) = twice(int)\n"), "{told}");
        let sites: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(sites[0]["same_code"], json!(["twice(int)"]), "{told}");
        let members = crate::target::told(&capriole(&["check", ":B*::get*", path]));
        let folded = members.contains("Bag::get(int) = Box::get(int)");
        assert_eq!(folded, folds_members, "{members}");
    }
}

/// On call stacks and in fields of the type `symbol` they have one of the names: the others are told.
#[test]
fn functions_of_one_code_are_told_on_call_stacks() {
    const SOURCE: &str = r#"
#include <stdio.h>
static volatile int sink;
__attribute__((noinline)) int hit(int x)
{
	sink = x;
	return x + sink;
}
static __attribute__((noinline)) int alpha(int x)
{
	return hit(x) + 1;
}
static __attribute__((noinline)) int beta(int x)
{
	return hit(x) + 1;
}
int main(void)
{
	int sum = 0;
	for (int i = 0; i < 10; i++)
		sum += alpha(i);
	for (int i = 0; i < 20; i++)
		sum += beta(i);
	printf("ok sum=%d calls=30\n", sum);
}
"#;
    const TOLD: &str = "the first name stands for all of them: ";
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-g", "-O2"], SOURCE, "folded") else {
        return;
    };
    let path = text(&program);
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["--json", "-e", ":hit from=$stack0:symbol stack", "--", path];
    counted_and_told(&record(&trace, &words));
    let json = capriole(&["report", "--json", text(&trace)]);
    assert!(told(&json).contains(TOLD), "{}", told(&json));
    let caller = &events(&trace)[0]["stack"][1];
    let (kept, other) = match caller["symbol"].as_str() {
        Some("alpha") => ("alpha", "beta"),
        _ => ("beta", "alpha"),
    };
    assert_eq!(caller["symbol"], kept, "{caller}");
    assert_eq!(caller["same_code"], json!([other]), "{caller}");
    let both = format!("{TOLD}{kept} = {other}");
    let plain = told(&capriole(&["report", text(&trace)]));
    assert_eq!(plain.matches(&both).count(), 1, "{plain}");
    let picture = directory.path().join("flame.svg");
    let flame = told(&capriole(&[
        "report",
        "--flame",
        text(&picture),
        text(&trace),
    ]));
    assert!(flame.contains(&both), "{flame}");

    let symbols = directory.path().join("s");
    let words = ["--json", "-e", ":hit from=$stack0:symbol", "--", path];
    counted_and_told(&record(&symbols, &words));
    let symbols = told(&capriole(&["report", text(&symbols)]));
    assert!(symbols.contains(&both), "{symbols}");
    for by in ["stack", "$stack0:symbol"] {
        let output = capriole(&["stat", "-e", &format!(":hit by {by}"), "--", path]);
        let told = told(&output);
        assert_eq!(told.matches(&both).count(), 1, "{told}");
    }
    let lone = told(&capriole(&["stat", "-e", ":alpha by stack", "--", path]));
    assert!(lone.contains("\n  alpha = beta\n"), "{lone}");
    assert_eq!(lone.matches(&both).count(), 1, "{lone}");
}

#[test]
fn spellings_of_one_name_are_not_told() {
    let Some(program) = build(Compiler::Gcc, "namesakes.c", &[]) else {
        return;
    };
    let events = [
        "-e",
        "libc:malloc",
        "-e",
        "libc:fopen",
        "-e",
        "libc:read",
        "-e",
        "libc:open",
    ];
    let output = capriole(&[&["stat"], &events[..], &["--", text(&program)]].concat());
    let told = told(&output);
    assert!(output.status.success(), "{told}");
    assert!(!told.contains("one code"), "{told}");
}
