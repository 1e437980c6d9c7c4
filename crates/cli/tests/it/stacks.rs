//! Call stacks in events: the callers of known chains, compared with the program's own
//! `backtrace`, and with gdb.

use crate::programs;

use crate::target::{capriole, told};
use crate::traces::{Background, events, record_program, scratch, text};
use capriole_testkit::target::Running;
use capriole_trace::{StackEnd, Trace, Value as Content};
use programs::{Compiler, build, build_go};
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
        for case in ["chain", "signal", "thread", "fault"] {
            let (events, printed) = record(&program, case, &[":hit n=$arg1 stack(128)"]);
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
    offsets_of(program, "hit")
}

/// Returns the offsets of all instructions up to the first return of the function whose name begins so.
fn offsets_of(program: &Path, name: &str) -> Option<Vec<u64>> {
    let output = Command::new("objdump")
        .args(["-dC", "--no-show-raw-insn", text(program)])
        .output()
        .ok()?;
    let listing = String::from_utf8(output.stdout).ok()?;
    let body = listing
        .lines()
        .skip_while(|line| !line.contains(&format!("<{name}")));
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

/// A program without call frame information is followed by its frame pointers, from every instruction.
#[test]
fn frame_pointers_lead_through_code_without_call_frame_information() {
    let flags = [
        "-O1",
        "-fno-asynchronous-unwind-tables",
        "-fno-omit-frame-pointer",
    ];
    for more in ["-fcf-protection=none", "-fcf-protection=full"] {
        let Some(program) = build(Compiler::Gcc, SOURCE, &[&flags[..], &[more]].concat()) else {
            return;
        };
        let Some(offsets) = offsets(&program) else {
            println!("skipped: objdump cannot be run");
            return;
        };
        let asked: Vec<String> = offsets
            .iter()
            .map(|offset| format!(":hit+{offset:#x} stack"))
            .collect();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        let (events, _) = record(&program, "chain", &asked);
        assert!(events.len() > offsets.len() / 2, "{}", events.len());
        let callers = &addresses(&events[0])[1..];
        let expected = ["point", "third", "second", "first", "main"];
        for event in &events {
            assert_eq!(names(event)[1..6], expected, "{event}");
            assert_eq!(addresses(event)[1..], *callers, "{event}");
            assert_eq!(event["stack_end"], "outermost", "{event}");
        }
    }
}

#[test]
fn a_chain_is_as_long_as_was_asked_for() {
    for program in builds() {
        let (few, printed) = record(&program, "deep", &[":hit stack(10)"]);
        let found = addresses(&few[0]);
        assert_eq!(few[0]["stack_end"], "truncated");
        assert_eq!(found.len(), 10);
        assert_eq!(found[2..], printed[0][..found.len() - 2]);
        let (all, printed) = record(&program, "deep", &[":hit stack(128)"]);
        assert_eq!(addresses(&all[0])[2..], printed[0]);
        assert_eq!(all[0]["stack_end"], "outermost");
    }
}

#[test]
fn a_handler_on_another_stack_leads_to_what_it_interrupted() {
    for program in builds() {
        let (events, printed) = record(&program, "alternate", &[":hit stack(128)"]);
        assert_eq!(addresses(&events[0])[2..], printed[0]);
        assert_eq!(events[0]["stack_end"], "outermost");
    }
}

/// A record has as many addresses as there are functions, each of eight bytes.
#[test]
fn a_record_is_as_long_as_its_chain() {
    let Some(program) = build(Compiler::Gcc, SOURCE, WITHOUT) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let said = record_program(&trace, &["-e", ":hit stack(128)"], &program, &["chain"]);
    let opened = Trace::open(&trace).expect("a trace");
    let mut found = opened.events().expect("events");
    let event = found.next().expect("readable").expect("an event");
    let Some(Content::CallStack(stack)) = event.fields().next() else {
        panic!("no call stack");
    };
    let chain: Vec<String> = stack.addresses().map(|at| format!("{at:#x}")).collect();
    assert_eq!(chain[2..], printed(&said)[0]);
    assert_eq!(stack.end, StackEnd::Outermost);
    assert_eq!(event.words().len(), 1 + chain.len());
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
        let (events, _) = record(&program, case, &[":hit stack(128)"]);
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

/// Runs `capriole report` in all forms that show names.
fn reports(trace: &Path, picture: &Path) -> Vec<Vec<u8>> {
    let forms: [&[&str]; 5] = [
        &["report"],
        &["report", "--json"],
        &["report", "--callers"],
        &["report", "--callers", "--json"],
        &["report", "--json", "--flame", text(picture)],
    ];
    let mut all: Vec<Vec<u8>> = Vec::new();
    for form in forms {
        let output = capriole(&[form, &[text(trace)]].concat());
        assert!(output.status.success(), "{}", told(&output));
        all.extend([output.stdout, output.stderr]);
    }
    all.push(std::fs::read(picture).expect("a picture"));
    all
}

/// The trace has its names: whatever becomes of the files, a report says the same.
#[test]
fn names_do_not_come_from_files_that_are_there_later() {
    let Some(program) = build(Compiler::Gcc, SOURCE, WITHOUT) else {
        return;
    };
    let Some(other) = build(Compiler::Gcc, SOURCE, WITH) else {
        return;
    };
    for build_id in [true, false] {
        let scratch = scratch();
        let copy = scratch.path().join("stacked");
        programs::copied(&program, &copy);
        if !build_id && !without_build_id(&copy) {
            println!("skipped: objcopy cannot be run");
            return;
        }
        let trace = scratch.path().join("trace");
        let picture = scratch.path().join("flame.svg");
        record_program(
            &trace,
            &["-e", ":hit n=$arg1 stack", "-e", ":point stack"],
            &copy,
            &["chain"],
        );
        let all = reports(&trace, &picture);
        let lines = String::from_utf8_lossy(&all[0]);
        assert!(lines.contains("third+"), "{lines}");
        std::fs::remove_file(&copy).expect("it was there");
        assert!(reports(&trace, &picture) == all, "the file is gone");
        std::fs::copy(&other, &copy).expect("a copy");
        assert!(reports(&trace, &picture) == all, "it is another one");
        for keep in [0, 60, 20_000] {
            let bytes = std::fs::read(&program).expect("the program");
            std::fs::write(&copy, &bytes[..keep.min(bytes.len() - 1)]).expect("written");
            assert!(reports(&trace, &picture) == all, "{keep} bytes of it");
        }
        // Elsewhere.
        let moved = scratch.path().join("moved");
        std::fs::rename(&trace, &moved).expect("moved");
        assert!(
            reports(&moved, &picture)[..4] == all[..4],
            "the trace was moved"
        );
    }
}

/// Removes the build id from a file. Returns false where that cannot be done.
fn without_build_id(path: &Path) -> bool {
    let objcopy = Command::new("objcopy")
        .args(["--remove-section", ".note.gnu.build-id"])
        .arg(path)
        .status();
    objcopy.is_ok_and(|status| status.success())
}

/// The program gets the rules of code that it has mapped since the attach, and the trace its names.
#[test]
fn callers_in_a_library_that_is_loaded_later_are_found() {
    let library = build(Compiler::Gcc, "callers_loaded.c", &["-shared", "-fPIC"]);
    for program in builds() {
        let Some(library) = &library else { return };
        let mut program = Running::start(&program, &["waiting"]);
        let scratch = scratch();
        let trace = scratch.path().join("trace");
        let recorder = Background::attach(&trace, program.pid, &[":hit n=$arg1 stack"]);
        program.say(&format!("load {}", text(library)));
        // Its rules come soon after it was seen.
        let whole = (0..500).any(|_| {
            program.say("through");
            program.line();
            recorder.until_recorded();
            let last = events(&trace).pop().expect("an event");
            last["stack_end"] == "outermost"
        });
        assert!(whole, "all callers are found at last");
        recorder.end();
        program.finish();
        let mut found = events(&trace);
        let last = found.pop().expect("an event");
        let expected = ["hit", "point", "third", "through", "main"];
        assert_eq!(names(&last)[..5], expected, "{last}");
        let whole = |event: &Value| event["stack_end"] == "outermost";
        assert!(found.is_sorted_by_key(whole), "from then on, all are");
        for earlier in found.iter().filter(|event| !whole(event)) {
            assert_eq!(names(earlier), expected[..4], "{earlier}");
            assert_eq!(earlier["stack_end"], "unknown", "{earlier}");
        }
    }
}

/// Callers in Go, at every instruction of a function, are those that Go itself finds.
#[test]
fn callers_in_go_are_those_that_go_finds() {
    let Some(program) = build_go("go_callers.go", "stacks_go") else {
        return;
    };
    let Some(offsets) = offsets_of(&program, "main.(*counter).hit>") else {
        println!("skipped: objdump cannot be run");
        return;
    };
    let asked: Vec<String> = offsets
        .iter()
        .map(|offset| format!(":main.(*counter).hit+{offset:#x} stack"))
        .collect();
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let (events, mut printed) = record(&program, "", &asked);
    // The last line is the sum.
    printed.pop();
    assert!(events.len() > 3 * offsets.len() / 2, "{}", events.len());
    let mut seen = vec![0; printed.len()];
    for event in &events {
        let found = addresses(event);
        // The call of the method's value by main has no line.
        let chain = printed.iter().position(|printed| found[2..] == printed[..]);
        match chain {
            Some(chain) => seen[chain] += 1,
            None => {
                // Go counts from the instruction behind the one that has faulted.
                let names = names(event);
                let fault = names.iter().position(|name| *name == "runtime.sigpanic");
                let (from, expected) = match fault {
                    Some(at) => (at + 1, ["main.faulting", "main.main"]),
                    None => (2, ["main.main", "runtime.main"]),
                };
                assert_eq!(names[from..from + 2], expected, "{event}");
            }
        }
        assert_eq!(event["stack_end"], "outermost", "{event}");
    }
    // All but the one behind the fault.
    let unseen = seen.iter().filter(|seen| **seen == 0).count();
    assert!(unseen <= 1, "{seen:?}");
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
