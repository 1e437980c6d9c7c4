//! Call stacks in events: the callers of known chains, compared with the program's own
//! `backtrace`, and with gdb.

use crate::programs;

use crate::target::{capriole, told};
use crate::traces::{events, record_program, scratch, text};
use capriole_trace::{Trace, Value as Content};
use programs::{Compiler, build};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "stacked.c";
const WITHOUT: &[&str] = &["-fomit-frame-pointer"];
const WITH: &[&str] = &["-fno-omit-frame-pointer"];
/// The end of one segment and the beginning of the next share a page of the file.
const BY_LLD: &[&str] = &["-fuse-ld=lld"];
/// Compiles the same source as C++.
const AS_CPP: &[&str] = &["-xc++"];

fn builds() -> Vec<PathBuf> {
    let c = [WITHOUT, WITH, &["-O0"], BY_LLD].map(|flags| build(Compiler::Gcc, SOURCE, flags));
    let cpp = build(Compiler::Gxx, SOURCE, AS_CPP);
    c.into_iter().chain([cpp]).flatten().collect()
}

/// Returns the addresses that the program printed, one line per hit.
fn printed(said: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect();
    said.lines().map(words).collect()
}

fn frames(event: &Value) -> &Vec<Value> {
    event["stack"].as_array().expect("a call stack")
}

/// Returns the frames' addresses without those of inlined functions.
fn addresses(event: &Value) -> Vec<String> {
    let real = frames(event).iter().filter(|f| f["inlined"] != true);
    let address = |frame: &Value| frame["address"].as_str().expect("an address").to_owned();
    real.map(address).collect()
}

fn names(event: &Value) -> Vec<&str> {
    frames(event)
        .iter()
        .map(|f| match &f["symbol"] {
            Value::String(name) => base(name),
            _ => "?",
        })
        .collect()
}

/// Removes the parameters that a demangler adds to a name.
fn base(name: &str) -> &str {
    name.split_once('(').map_or(name, |(name, _)| name)
}

/// Records one case; returns the events and the addresses that the program printed.
fn record(program: &Path, case: &str, asked: &[&str]) -> (Vec<Value>, Vec<Vec<String>>) {
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let arguments: Vec<&str> = asked.iter().flat_map(|event| ["-e", event]).collect();
    let said = record_program(&trace, &arguments, program, &[case]);
    (events(&trace), printed(&said))
}

#[test]
fn callers_are_those_that_the_program_itself_finds() {
    for program in builds() {
        for case in ["chain", "signal", "thread"] {
            let (events, printed) = record(&program, case, &[":hit n=$arg1 stack(16k)"]);
            assert_eq!(events.len(), 1, "{case}");
            let found = addresses(&events[0]);
            assert_eq!(found[2..], printed[0], "{} {case}", program.display());
            assert_eq!(events[0]["stack_end"], "outermost", "{case}");
            assert_eq!(
                names(&events[0])[..5],
                ["hit", "point", "third", "second", "first"]
            );
            assert_eq!(frames(&events[0])[0]["offset"], "0x0");
            assert!(events[0]["arguments"]["n"].is_string());
        }
    }
}

/// Returns the offsets of all instructions of `hit`, according to objdump.
fn offsets(program: &Path) -> Option<Vec<u64>> {
    let output = Command::new("objdump")
        .args(["-dC", "--no-show-raw-insn", text(program)])
        .output()
        .ok()?;
    let listing = String::from_utf8(output.stdout).ok()?;
    let body = listing.lines().skip_while(|line| !line.contains("<hit"));
    let at = |line: &str| u64::from_str_radix(line.trim().split_once(':')?.0, 16).ok();
    // There may be padding after the return.
    let mut returned = false;
    let all: Vec<u64> = body
        .skip(1)
        .take_while(|line| !std::mem::replace(&mut returned, line.contains("ret")))
        .filter_map(at)
        .collect();
    let start = *all.first()?;
    Some(all.iter().map(|address| address - start).collect())
}

#[test]
fn every_instruction_of_a_function_has_the_same_callers() {
    for program in builds() {
        let Some(offsets) = offsets(&program) else {
            println!("skipped: objdump cannot be run");
            return;
        };
        assert!(offsets.len() > 5, "{offsets:?}");
        let asked: Vec<String> = offsets
            .iter()
            .map(|offset| format!(":hit+{offset:#x} stack"))
            .collect();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        let (events, printed) = record(&program, "chain", &asked);
        // Some instructions cannot be probed, or are padding.
        assert!(events.len() > offsets.len() / 2, "{}", events.len());
        for event in &events {
            let found = addresses(event);
            assert_eq!(found[2..], printed[0], "{}: {event}", program.display());
            assert_eq!(event["stack_end"], "outermost", "{event}");
        }
    }
}

#[test]
fn a_copy_that_is_too_short_is_said_to_be() {
    for program in builds() {
        let (few, printed) = record(&program, "deep", &[":hit stack(2048)"]);
        let found = addresses(&few[0]);
        assert_eq!(few[0]["stack_end"], "truncated");
        assert!(found.len() > 4 && found.len() < 40, "{}", found.len());
        assert_eq!(found[2..], printed[0][..found.len() - 2]);
        let (all, printed) = record(&program, "deep", &[":hit stack(32000)"]);
        assert_eq!(addresses(&all[0])[2..], printed[0]);
        assert_eq!(all[0]["stack_end"], "outermost");
    }
}

#[test]
fn a_handler_on_another_stack_ends_where_that_does() {
    for program in builds() {
        let (events, printed) = record(&program, "alternate", &[":hit stack(32000)"]);
        let found = addresses(&events[0]);
        assert_eq!(events[0]["stack_end"], "truncated");
        // Includes the interrupted function, which can still be found from the copied stack.
        assert!(found.len() >= 7, "{found:?}");
        assert_eq!(found[2..], printed[0][..found.len() - 2]);
    }
}

#[test]
fn the_end_of_a_stack_ends_its_copy() {
    let Some(program) = build(Compiler::Gcc, SOURCE, WITHOUT) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let said = record_program(&trace, &["-e", ":hit stack(32000)"], &program, &["chain"]);
    let opened = Trace::open(&trace).expect("a trace");
    let mut found = opened.events().expect("events");
    let event = found.next().expect("readable").expect("an event");
    let Some(Content::CallStack(stack)) = event.fields().next() else {
        panic!("no call stack");
    };
    // A program's stack ends with its arguments and its environment, some kilobytes.
    assert!(stack.bytes.len() > 256 && stack.bytes.len() < 32_000);
    let end = stack.stack_pointer + stack.bytes.len() as u64;
    assert_eq!(end % 4096, 0, "it ends with a page: {end:#x}");
    let shown = events(&trace);
    assert_eq!(addresses(&shown[0])[2..], printed(&said)[0]);
}

#[test]
fn code_of_no_file_ends_a_stack() {
    for program in builds() {
        let (events, _) = record(&program, "generated", &[":hit stack"]);
        let frames = frames(&events[0]);
        assert_eq!(events[0]["stack_end"], "unknown", "{}", events[0]);
        assert_eq!(names(&events[0]), ["hit", "point", "third", "?"]);
        assert_eq!(frames[3]["object"], Value::Null);
    }
}

#[test]
fn a_static_program_of_another_c_library() {
    let Some(program) = build(Compiler::MuslGcc, SOURCE, &["-static"]) else {
        return;
    };
    for case in ["chain", "signal"] {
        let (events, _) = record(&program, case, &[":hit stack(16k)"]);
        let names = names(&events[0]);
        let chain = ["hit", "point", "third", "second", "first"];
        assert_eq!(names[..5], chain, "{case}: {names:?}");
        // There is no information about the callers of musl code without frame pointers.
        assert!(names.contains(&"main") || case == "signal", "{names:?}");
        assert_eq!(events[0]["stack_end"], "unknown", "{names:?}");
    }
}

#[test]
fn gdb_says_the_same() {
    let Some(program) = build(Compiler::Gcc, SOURCE, WITHOUT) else {
        return;
    };
    let gdb = Command::new("gdb")
        .args([
            "-nx",
            "-batch",
            "-ex",
            "break *hit",
            "-ex",
            "run chain",
            "-ex",
            "bt",
        ])
        .arg(&program)
        .output();
    let Ok(gdb) = gdb else {
        println!("skipped: gdb cannot be run");
        return;
    };
    let said = String::from_utf8_lossy(&gdb.stdout).into_owned();
    // `#1  0x... in point (n=3) at ...`, `#0  hit (n=3) at ...`
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
    let (events, _) = record(&program, "chain", &[":hit stack"]);
    let ours = names(&events[0]);
    let until_main = ours.iter().position(|name| *name == "main").expect("main");
    assert_eq!(ours[..=until_main], theirs[..], "{said}");
}

#[test]
fn a_file_that_is_gone_or_another_one_is_told_of_once() {
    let Some(program) = build(Compiler::Gcc, SOURCE, WITHOUT) else {
        return;
    };
    let Some(other) = build(Compiler::Gcc, SOURCE, WITH) else {
        return;
    };
    let scratch = scratch();
    let copy = scratch.path().join("stacked");
    programs::copied(&program, &copy);
    let trace = scratch.path().join("trace");
    record_program(
        &trace,
        &["-e", ":hit stack", "-e", ":point stack"],
        &copy,
        &["chain"],
    );
    let check = |why: &str| {
        let output = capriole(&["report", text(&trace)]);
        assert!(output.status.success(), "{}", told(&output));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let about: Vec<&str> = errors.lines().filter(|l| l.contains("stacked")).collect();
        assert_eq!(about.len(), 1, "{errors}");
        assert!(about[0].contains(why), "{errors}");
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(lines.contains("\n\t"), "{lines}");
        assert!(!lines.contains("third+"), "{lines}");
        for form in [&["report", "--callers"][..], &["report", "--json"]] {
            let output = capriole(&[form, &[text(&trace)]].concat());
            assert!(output.status.success(), "{}", told(&output));
        }
    };
    std::fs::remove_file(&copy).expect("it was there");
    check("No such file");
    std::fs::copy(&other, &copy).expect("a copy");
    check("not the file that was recorded");
    for keep in [0, 3, 60, 1000, 20_000] {
        let bytes = std::fs::read(&program).expect("the program");
        std::fs::write(&copy, &bytes[..keep.min(bytes.len() - 1)]).expect("written");
        check("stacked");
    }
}

#[test]
fn lines_under_their_event_and_reports_of_all() {
    let Some(program) = build(Compiler::Gcc, SOURCE, WITHOUT) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    record_program(&trace, &["-e", ":hit n=$arg1 stack"], &program, &["chain"]);
    let output = capriole(&["report", text(&trace)]);
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let behind = lines.lines().skip_while(|line| !line.contains(": hit: "));
    let behind: Vec<&str> = behind.collect();
    assert!(behind[0].ends_with(" n=0x3"), "{lines}");
    for (line, name) in behind[1..]
        .iter()
        .zip(["hit+0x0 (", "point+0x", "third+0x"])
    {
        assert!(line.starts_with('\t') && line.contains(name), "{lines}");
    }

    let output = capriole(&["report", "--callers", "--json", text(&trace)]);
    let callers: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let functions = callers["functions"].as_array().expect("a list");
    let third = functions.iter().find(|f| f["function"] == "third");
    let third = third.expect("it is there");
    assert_eq!(
        (&third["events"], &third["own_events"]),
        (&1.into(), &0.into())
    );
    assert_eq!(third["callers"][0]["function"], "second");
    assert_eq!(third["callees"][0]["function"], "point");

    let picture = scratch.path().join("flame.svg");
    let output = capriole(&["report", "--flame", text(&picture), "--json", text(&trace)]);
    assert!(output.status.success(), "{}", told(&output));
    let flame: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let stack = flame["stacks"][0]["functions"].as_array().expect("a list");
    assert_eq!(stack.last(), Some(&"hit".into()));
    let svg = std::fs::read_to_string(&picture).expect("a picture");
    assert!(
        svg.contains("second (1 events"),
        "{}",
        &svg[..svg.len().min(2000)]
    );

    for (arguments, why) in [
        (&["report", "--graph"][..], "has no calls"),
        (&["report", "--callers", "--by", "time"], "has no calls"),
        (&["report", "--by", "events"], "--by needs"),
    ] {
        let output = capriole(&[arguments, &[text(&trace)]].concat());
        assert!(!output.status.success());
        assert!(told(&output).contains(why), "{}", told(&output));
    }
}

#[test]
fn a_call_stack_is_no_number() {
    let Some(program) = build(Compiler::Gcc, SOURCE, WITHOUT) else {
        return;
    };
    let program = text(&program);
    for (arguments, why) in [
        (
            ["record", "-e", ":hit stack if stack == 1"],
            "stack is a call stack",
        ),
        (["stat", "-e", ":hit sum(stack)"], "stack is a call stack"),
        (["stat", "-e", ":hit stack"], "cannot be counted"),
    ] {
        let output = capriole(&[&arguments[..], &["--", program, "chain"]].concat());
        assert!(!output.status.success());
        assert!(told(&output).contains(why), "{}", told(&output));
    }
}
