//! Call stacks as keys of `stat`: those that the program finds are those that `record` copies and
//! `report` unwinds, call by call.

use crate::programs::{Compiler, build, build_go};
use crate::target::{capriole, told};
use crate::traces::{events, record_program, scratch, text};
use capriole_testkit::effort::{Effort, effort, rounds};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SOURCE: &str = "callers.c";
const FLAGS: [&[&str]; 4] = [
    &["-O2", "-fomit-frame-pointer"],
    &["-O2", "-fno-omit-frame-pointer"],
    &["-O0"],
    &["-O2", "-fno-plt", "-fcf-protection"],
];

fn builds() -> Vec<PathBuf> {
    let builds = FLAGS.map(|flags| build(Compiler::Gcc, SOURCE, flags));
    let builds: Vec<PathBuf> = builds.into_iter().flatten().collect();
    assert!(!builds.is_empty(), "there is a compiler");
    builds
}

/// A stack without what differs between two runs: functions with offsets, and its end.
type Shape = (Vec<String>, String);

fn shape(functions: &Value, end: &Value) -> Shape {
    let functions = functions.as_array().expect("a list").iter();
    let one = |f: &Value| {
        format!(
            "{} {} {} {}",
            f["symbol"], f["offset"], f["object"], f["inlined"]
        )
    };
    let end = end.as_str().expect("a word").to_owned();
    (functions.map(one).collect(), end)
}

/// Returns the stacks of the recorded events, with their numbers.
fn recorded(program: &Path, case: &str, event: &str) -> BTreeMap<Shape, u64> {
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let event = format!("{event} stack(128)");
    record_program(&trace, &["-e", &event], program, &[case]);
    let mut stacks = BTreeMap::new();
    for event in events(&trace) {
        let shape = shape(&event["stack"], &event["stack_end"]);
        *stacks.entry(shape).or_default() += 1;
    }
    stacks
}

fn stat(words: &[&str], program: &Path, case: &[&str]) -> Output {
    let words = [&["stat"], words, &["--", text(program)], case].concat();
    let output = capriole(&words);
    assert!(output.status.success(), "{words:?}: {}", told(&output));
    output
}

/// Returns the first table of `stat --json`.
fn table(words: &[&str], program: &Path, case: &[&str]) -> Value {
    let output = stat(&[&["--json"], words].concat(), program, case);
    // Some programs print lines before.
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let last = lines.lines().last().expect("a line");
    let said: Value = serde_json::from_str(last).expect("JSON");
    said["groups"][0].clone()
}

fn rows(table: &Value) -> &Vec<Value> {
    table["rows"].as_array().expect("a list")
}

/// Returns the stacks that are keys, with their numbers of calls. Several rows may have the same
/// functions: those of several events, and of exits of a function.
fn counted(program: &Path, case: &str, event: &str) -> BTreeMap<Shape, u64> {
    let event = format!("{event} by stack(128)");
    let mut stacks = BTreeMap::new();
    for row in rows(&table(&["-e", &event], program, &[case])) {
        let keys = &row["keys"];
        let calls = row["calls"].as_u64().expect("a number");
        *stacks
            .entry(shape(&keys["stack"], &keys["stack_end"]))
            .or_default() += calls;
    }
    stacks
}

/// Returns the names of the functions, `?` for one without.
fn names(stack: &Shape) -> Vec<&str> {
    let name = |function: &'_ str| match function.strip_prefix('"') {
        Some(rest) => rest.split('"').next().map_or(0, str::len),
        None => 0,
    };
    let functions = stack.0.iter().map(String::as_str);
    let named = functions.map(|function| match name(function) {
        0 => "?",
        length => &function[1..=length],
    });
    named.collect()
}

const CASES: [&str; 8] = [
    "varied", "aligned", "tail", "ends", "sorted", "signal", "thread", "large",
];

#[test]
fn stacks_are_those_of_records() {
    for (number, program) in builds().into_iter().enumerate() {
        for (index, case) in CASES.into_iter().enumerate() {
            // Each case with two of the builds; in the soak with all.
            if effort() == Effort::Test && index % 2 != number % 2 {
                continue;
            }
            let counted = counted(&program, case, ":hit");
            let recorded = match case {
                // The copy of a record ends before.
                "large" => BTreeMap::new(),
                _ => recorded(&program, case, ":hit"),
            };
            assert!(!counted.is_empty());
            for stack in counted.keys() {
                assert_eq!(stack.1, "outermost", "{case} {stack:#?}");
            }
            if case == "large" {
                let stack = counted.keys().next().expect("one");
                assert_eq!(
                    names(stack)[..4],
                    ["hit", "large", "once", "main"],
                    "{stack:?}"
                );
                continue;
            }
            assert_eq!(counted, recorded, "{} {case}", program.display());
        }
    }
}

/// Returns the offsets of all instructions of a function, according to objdump.
fn offsets(program: &Path, function: &str) -> Option<Vec<u64>> {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", text(program)])
        .output()
        .ok()?;
    let listing = String::from_utf8(output.stdout).ok()?;
    let title = format!("<{function}>:");
    let body = listing.lines().skip_while(|line| !line.ends_with(&title));
    let body = body.skip(1).take_while(|line| !line.is_empty());
    let at = |line: &str| u64::from_str_radix(line.trim().split_once(':')?.0, 16).ok();
    let all: Vec<u64> = body.filter_map(at).collect();
    let start = *all.first()?;
    Some(all.iter().map(|address| address - start).collect())
}

#[test]
fn every_instruction_has_the_stack_of_records() {
    let program = &builds()[0];
    for (function, case) in [
        ("aligned", "aligned"),
        ("varied", "varied"),
        ("stop", "ends"),
    ] {
        let Some(offsets) = offsets(program, function) else {
            println!("skipped: objdump cannot be run");
            return;
        };
        let (mut compared, mut known) = (0, 0);
        // Every fourth instruction; in the soak each.
        let step = rounds(4, 1, 1);
        for offset in offsets.into_iter().step_by(step) {
            let event = format!(":{function}+{offset:#x}");
            if !capriole(&["check", "-q", &event, text(program)])
                .status
                .success()
            {
                continue; // it cannot be probed
            }
            let (counted, recorded) = (
                counted(program, case, &event),
                recorded(program, case, &event),
            );
            compared += 1;
            // Both know nothing but rsp and rbp of the callers; where a frame is told by another
            // register, both end.
            assert_eq!(counted, recorded, "{event}");
            known += usize::from(counted.keys().all(|stack| stack.1 == "outermost"));
        }
        println!("{function}: {compared} instructions, {known} with whole stacks");
        assert!(
            compared * step > 4 && known * 2 > compared,
            "{function}: {known} of {compared}"
        );
    }
}

#[test]
fn gdb_says_the_same() {
    let program = &builds()[0];
    let gdb = Command::new("gdb")
        .args([
            "-nx",
            "-batch",
            "-ex",
            "break *hit",
            "-ex",
            "run tail",
            "-ex",
            "bt",
        ])
        .arg(program)
        .output();
    let Ok(gdb) = gdb else {
        println!("skipped: gdb cannot be run");
        return;
    };
    let said = String::from_utf8_lossy(&gdb.stdout).into_owned();
    let name = |line: &str| {
        let (_, rest) = line.strip_prefix('#')?.split_once("  ")?;
        let rest = rest.split_once(" in ").map_or(rest, |(_, rest)| rest);
        Some(rest.split(' ').next()?.to_owned())
    };
    let theirs: Vec<String> = said.lines().filter_map(name).collect();
    if theirs.is_empty() {
        println!("skipped: gdb has no backtrace: {}", told(&gdb));
        return;
    }
    let counted = counted(program, "tail", ":hit");
    let ours = names(counted.keys().next().expect("a stack"));
    let until_main = ours.iter().position(|name| *name == "main").expect("main");
    // gdb shows the function that jumped as well, which it finds out from debug information.
    let theirs: Vec<&String> = theirs.iter().filter(|name| *name != "tail").collect();
    assert_eq!(ours[..=until_main], theirs[..], "{said}");
}

#[test]
fn a_handler_on_another_stack_is_followed_to_the_function_that_it_interrupted() {
    for program in builds() {
        let counted = counted(&program, "alternate", ":hit");
        let stack = counted.keys().next().expect("a stack");
        assert_eq!(stack.1, "outermost", "{stack:#?}");
        let names = names(stack);
        // The handler may be a jump to what it calls; below it is the place to which it returns.
        let raised = names.iter().position(|name| *name == "raise_with");
        let main = names.iter().position(|name| *name == "main");
        let signal = names.iter().position(|name| *name == "?");
        assert!(
            signal.is_some() && signal < raised && raised < main,
            "{names:?}"
        );
        assert_eq!(names[..4], ["hit", "varied", "varied", "varied"]);
    }
}

#[test]
fn as_many_functions_as_are_asked_for() {
    let program = &builds()[0];
    let stack_of = |key: &str, case: &str| {
        let table = table(&["-e", &format!(":hit by {key}")], program, &[case]);
        let keys = &rows(&table)[0]["keys"];
        shape(&keys["stack"], &keys["stack_end"])
    };
    let (one, end) = stack_of("stack(1)", "tail");
    assert_eq!((one.len(), end.as_str()), (1, "truncated"));
    let (three, end) = stack_of("stack(3)", "tail");
    assert_eq!((three.len(), end.as_str()), (3, "truncated"));
    let (usual, end) = stack_of("stack", "deep");
    assert_eq!((usual.len(), end.as_str()), (64, "truncated"));
    let (most, end) = stack_of("stack(128)", "deep");
    assert_eq!((most.len(), end.as_str()), (128, "truncated"));
    assert_eq!(most[..64], usual[..]);
    let short = ["varied"; 127];
    assert_eq!(names(&(most, end))[1..], short);
}

#[test]
fn totals_are_exact_with_other_keys_sums_and_children() {
    let program = &builds()[0];
    let event = ":hit sum(n=$arg1) by stack, tid";
    let one = table(&["-e", event], program, &["sorted", "50"]);
    let calls: u64 = rows(&one)
        .iter()
        .map(|row| row["calls"].as_u64().expect("calls"))
        .sum();
    let sums: u64 = rows(&one)
        .iter()
        .map(|row| row["measures"][0]["value"].as_u64().expect("sum"))
        .sum();
    assert_eq!(sums, 3 * calls);
    assert_eq!(one["others"], json!([]));
    assert!(rows(&one).iter().all(|row| row["keys"]["tid"].is_u64()));
    // The child finds callers by its copy of the table.
    let forked = table(&["-e", ":hit by stack, tid"], program, &["forked", "20"]);
    let mut tids: BTreeMap<u64, (u64, Shape)> = BTreeMap::new();
    for row in rows(&forked) {
        let keys = &row["keys"];
        let tid = keys["tid"].as_u64().expect("a thread");
        let shape = shape(&keys["stack"], &keys["stack_end"]);
        assert!(
            tids.insert(tid, (row["calls"].as_u64().expect("calls"), shape))
                .is_none()
        );
    }
    assert_eq!(tids.len(), 21);
    let shapes: Vec<&Shape> = tids.values().map(|(_, shape)| shape).collect();
    assert!(
        shapes
            .iter()
            .all(|shape| *shape == shapes[0] && shape.1 == "outermost")
    );
    assert_eq!(tids.values().map(|(calls, _)| calls).sum::<u64>(), 40);
}

#[test]
fn latencies_by_the_callers_of_a_function() {
    for program in builds() {
        let event = "latency(:varied) by stack";
        let timed = table(&["-e", event], &program, &["varied"]);
        let mut calls = 0;
        for row in rows(&timed) {
            let keys = &row["keys"];
            let stack = shape(&keys["stack"], &keys["stack_end"]);
            assert_eq!(stack.1, "outermost", "{stack:#?}");
            // All exits have the function's own name and beginning.
            assert_eq!(keys["stack"][0]["symbol"], "varied");
            assert_eq!(keys["stack"][0]["offset"], "0x0");
            let names = names(&stack);
            assert!(names.contains(&"main"), "{names:?}");
            assert_eq!(row["measures"][0]["count"], row["calls"]);
            calls += row["calls"].as_u64().expect("a number");
        }
        // 12 calls with 0 to 11 calls in them.
        if calls != 78 {
            // An optimised recursion has fewer calls; those that are left have all stacks.
            assert!(calls > 0 && calls < 78, "{calls}");
        }
    }
}

#[test]
fn code_of_no_file_ends_a_stack() {
    let Some(program) = build(Compiler::Gcc, "stacked.c", &["-fomit-frame-pointer"]) else {
        return;
    };
    let counted = counted(&program, "generated", ":hit");
    let recorded = recorded(&program, "generated", ":hit");
    assert_eq!(counted, recorded);
    let stack = counted.keys().next().expect("a stack");
    assert_eq!(stack.1, "unknown");
    assert_eq!(names(stack)[..3], ["hit", "point", "third"]);
    assert_eq!(stack.0.len(), 4);
}

#[test]
fn a_library_that_is_loaded_later_ends_a_stack_or_has_rules() {
    let program = &builds()[0];
    let Some(library) = build(Compiler::Gcc, "callers_loaded.c", &["-shared", "-fPIC"]) else {
        return;
    };
    let words = ["loaded", "5", text(&library)];
    let table = table(&["-e", ":hit by stack"], program, &words);
    // Its rules may come between two calls.
    let mut calls = 0;
    for row in rows(&table) {
        let keys = &row["keys"];
        let stack = shape(&keys["stack"], &keys["stack_end"]);
        let names = names(&stack);
        assert_eq!(names[..3], ["hit", "by_tail", "through"], "{stack:#?}");
        match stack.1.as_str() {
            "unknown" => assert_eq!(names.len(), 3, "{stack:#?}"),
            end => assert_eq!((names[3], end), ("once", "outermost"), "{stack:#?}"),
        }
        calls += row["calls"].as_u64().expect("a number");
    }
    assert_eq!(calls, 5);
}

/// With a table that is full of stacks, totals stay exact.
#[test]
fn stacks_without_a_row_are_others() {
    let program = &builds()[0];
    let event = ":hit sum(n=$arg1) by stack(128)";
    let words = ["--keys", "4", "-e", event];
    let table = table(&words, program, &["varied", "40"]);
    let all = || {
        rows(&table)
            .iter()
            .chain(table["others"].as_array().expect("a list"))
    };
    let calls: u64 = all().map(|row| row["calls"].as_u64().expect("calls")).sum();
    let sums: u64 = all()
        .map(|row| row["measures"][0]["value"].as_u64().expect("sum"))
        .sum();
    assert_eq!((calls, sums), (12 * 40, 12 * 40));
    assert_eq!(table["dropped"], 0);
    for row in rows(&table) {
        let stack = shape(&row["keys"]["stack"], &row["keys"]["stack_end"]);
        assert_eq!(stack.1, "outermost");
    }
    let words = [&words[..], &["--folded"]].concat();
    let output = stat(&words, program, &["varied", "40"]);
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let numbers = lines
        .lines()
        .map(|line| line.rsplit_once(' ').expect("a number").1);
    let sum: u64 = numbers
        .map(|number| number.parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(sum, 12 * 40, "{lines}");
}

#[test]
fn intervals_add_up_to_the_whole() {
    let program = &builds()[0];
    let words = ["--json", "--interval", "2ms", "-e", ":hit by stack"];
    let output = stat(&words, program, &["varied", "30000"]);
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let mut counts: Vec<BTreeMap<Shape, u64>> = Vec::new();
    for line in lines.lines() {
        let said: Value = serde_json::from_str(line).expect("JSON");
        let mut calls = BTreeMap::new();
        for row in rows(&said["groups"][0]) {
            let keys = &row["keys"];
            let shape = shape(&keys["stack"], &keys["stack_end"]);
            calls.insert(shape, row["calls"].as_u64().expect("a number"));
        }
        counts.push(calls);
    }
    let whole = counts.pop().expect("the whole");
    assert_eq!(whole.len(), 12);
    assert!(whole.values().all(|calls| *calls == 30_000), "{whole:#?}");
    // The end of the last interval is before that of the program.
    assert!(!counts.is_empty(), "there was no interval");
    for (stack, calls) in &whole {
        let parts = counts.iter().filter_map(|interval| interval.get(stack));
        let sum: u64 = parts.sum();
        assert!(sum <= *calls, "{sum} of {calls}");
    }
    let sum: u64 = counts.iter().flat_map(BTreeMap::values).sum();
    assert!(sum > 0);
}

/// Go's own table has the size of each frame at each instruction.
#[test]
fn callers_in_go_are_found() {
    let Some(program) = build_go("go_entries.go", "stat_stacks_go") else {
        return;
    };
    let stacks = counted(&program, "", ":main.main");
    let (stack, calls) = stacks.first_key_value().expect("a stack");
    assert_eq!((stacks.len(), *calls), (1, 1));
    let names = names(stack);
    assert_eq!(names[..2], ["main.main", "runtime.main"], "{stack:#?}");
    assert!(names[2].starts_with("runtime.goexit"), "{stack:#?}");
    assert_eq!((names.len(), stack.1.as_str()), (3, "outermost"));
}

#[test]
fn lines_for_flame_graphs() {
    let program = &builds()[0];
    let folded = |words: &[&str]| {
        let output = stat(
            &[&["-e", ":hit sum(n=$arg1) by stack", "--folded"], words].concat(),
            program,
            &["sorted", "10"],
        );
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        let number = |line: &str| -> (String, u64) {
            let (path, number) = line.rsplit_once(' ').expect("a number");
            (path.to_owned(), number.parse().expect("a number"))
        };
        lines.lines().map(number).collect::<BTreeMap<_, _>>()
    };
    let calls = folded(&[]);
    assert!(
        calls
            .keys()
            .all(|path| path.contains(";main;once;") && path.ends_with(";hit")),
        "{calls:?}"
    );
    assert!(
        calls.keys().any(|path| path.contains(";compare;hit")),
        "{calls:?}"
    );
    let sums = folded(&["--weight", "sum(n)"]);
    let tripled = calls.iter().map(|(path, calls)| (path.clone(), 3 * calls));
    assert_eq!(sums, tripled.collect());

    let scratch = scratch();
    let picture = scratch.path().join("flame.svg");
    let words = ["-e", ":hit by stack", "--flame", text(&picture)];
    let output = stat(&words, program, &["tail", "7"]);
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let below = "\n        hit+0x0 (";
    assert!(lines.contains(below), "{lines}");
    assert!(lines.contains("\n        main+0x"), "{lines}");
    let svg = std::fs::read_to_string(&picture).expect("a picture");
    assert!(svg.contains("hit (7 calls"), "{svg}");
    assert!(!svg.contains(">tail<"), "{svg}");
}

#[test]
fn what_cannot_be_is_refused() {
    let program = &builds()[0];
    for (words, why) in [
        (
            &["-e", ":hit by stack(0)"][..],
            "a call stack cannot have 0 functions",
        ),
        (
            &["-e", ":hit by stack(129)"],
            "a call stack cannot have 129 functions",
        ),
        (&["-e", ":hit by stack(4k)"], "invalid number of functions"),
        (
            &["-e", ":hit by stack(3):u64"],
            "nothing stands behind its brace",
        ),
        (&["-e", ":hit by stack, stack(3)"], "stands twice"),
        (&["-e", ":hit stack by stack"], "cannot be counted"),
        (
            &["-e", ":hit", "--folded"],
            "no event has call stacks as keys",
        ),
        (
            &["-e", ":hit by stack", "--folded", "--weight", "p99"],
            "can be added up; there are calls",
        ),
        (
            &["-e", ":hit by stack", "--weight", "calls"],
            "--weight needs",
        ),
        (
            &["-e", ":hit by stack", "--flame", "/no/such/directory/x.svg"],
            "there is no directory /no/such/directory",
        ),
    ] {
        let words = [&["stat"], words, &["--", text(program), "tail"]].concat();
        let output = capriole(&words);
        assert!(!output.status.success(), "{words:?}");
        assert!(told(&output).contains(why), "{words:?}: {}", told(&output));
    }
    // A variable of that name is a value.
    let table = table(
        &["-e", ":hit stack=$arg1:u64 count() by stack"],
        program,
        &["tail"],
    );
    assert_eq!(rows(&table)[0]["keys"], json!({"stack": 2}));
}
