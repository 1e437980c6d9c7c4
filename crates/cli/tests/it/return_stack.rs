//! `--return=stack`: the recorded values are those that the program reports as returned, also
//! through tail calls, and the program is unaffected, whatever it does with its stacks.

use crate::programs::{Compiler, build, build_go};
use crate::target::{Running, assert_no_session, assert_text_is_the_files, capriole, told};
use crate::traces::{Background, events, pairs, record, recorder, scratch, summary, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Returned values by function name, in order of the calls.
type Returns = BTreeMap<String, Vec<i128>>;

/// Parses the program's output: "FUNCTION VALUE"; "FUNCTION tail" means not known yet.
fn said(output: &str) -> Returns {
    let mut returns = Returns::new();
    for (name, value) in pairs(output).filter(|(_, value)| *value != "tail") {
        let value = value.parse().expect("a number");
        returns.entry(name.to_owned()).or_default().push(value);
    }
    assert!(
        output.contains("\nok ") || output.starts_with("ok "),
        "{output}"
    );
    returns
}

fn value(event: &Value) -> i128 {
    let value = &event["arguments"]["ret"];
    if let Some(number) = value.as_i64() {
        return number.into();
    }
    let text = value.as_str().unwrap_or_else(|| panic!("{event}"));
    match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).expect("hexadecimal"),
        // `enum mood` of the program
        None if text == "SAD" => -3,
        None if text == "GLAD" => 4,
        None => text.parse().expect("a number"),
    }
}

fn seen(trace: &Path) -> Returns {
    let whole = summary(trace);
    for nothing in ["lost_events", "lost_packets", "damages"] {
        assert_eq!(whole[nothing], 0, "{nothing}: {whole}");
    }
    let mut returns = Returns::new();
    for event in events(trace) {
        let name = event["event"].as_str().expect("a name");
        let name = name.strip_suffix("__return").expect("a return");
        returns
            .entry(name.to_owned())
            .or_default()
            .push(value(&event));
    }
    returns
}

fn arguments(functions: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = ["--return=stack", "--buffer-size", "64M"]
        .map(str::to_owned)
        .to_vec();
    for function in functions {
        let typed = match *function {
            "taking" | "repeated" | "sharing" | "shared" | "special" | "conditional" => ":s64",
            _ => "",
        };
        arguments.extend(["-e".to_owned(), format!("r :{function} ret=$retval{typed}")]);
    }
    arguments
}

/// Records a program's scenario. Returns the program's values and the recorded ones.
fn run(program: &Path, words: &[&str], functions: &[&str]) -> (Returns, Returns) {
    let directory = scratch();
    let trace = directory.path().join("t");
    let arguments = arguments(functions);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = recorder(&trace, &arguments);
    // Programs compiled with -pg leave a file where they run.
    command.current_dir(directory.path());
    let output = command.arg("--").arg(program).args(words).output();
    let output = output.expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let output = String::from_utf8_lossy(&output.stdout);
    (said(&output), seen(&trace))
}

fn sorted(mut returns: Returns) -> Returns {
    returns.values_mut().for_each(|v| v.sort_unstable());
    returns
}

fn agree(source: &str, scenario: &str, functions: &[&str]) {
    let all = [&[][..], &["-O0"], &["-fcf-protection=full", "-no-pie"]];
    agree_with(&all, source, scenario, functions);
}

fn agree_with(all: &[&[&str]], source: &str, scenario: &str, functions: &[&str]) {
    for flags in all {
        let Some(program) = build(Compiler::Gcc, source, flags) else {
            return;
        };
        let (said, seen) = run(&program, &[scenario], functions);
        for function in functions {
            assert!(
                said[*function] == seen[*function],
                "{scenario} {flags:?}: {function}"
            );
        }
    }
}

#[test]
fn deep_recursion() {
    agree("returns.c", "deep", &["deep"]);
}

#[test]
fn results_of_every_size() {
    let functions = [
        "small", "middle", "whole", "wide", "truth", "feeling", "text",
    ];
    agree("returns.c", "sizes", &functions);
}

/// A table of the program has the address of the nops, or of the call, right after `endbr64`.
#[test]
fn functions_that_are_made_for_patching() {
    const CET: &str = "-fcf-protection=full";
    let all: [&[&str]; 4] = [
        &[CET, "-fpatchable-function-entry=5"],
        &[CET, "-fpatchable-function-entry=5", "-no-pie", "-fno-pie"],
        &[CET, "-fpatchable-function-entry=8,3"],
        &[
            CET,
            "-pg",
            "-mfentry",
            "-mrecord-mcount",
            "-no-pie",
            "-fno-pie",
        ],
    ];
    agree_with(&all, "returns.c", "sizes", &["small", "middle", "whole"]);
}

#[test]
fn values_through_tail_calls() {
    agree("followed.c", "tail", &["first", "second", "third"]);
}

/// More chained tail calls than a slot holds: the rest is counted.
#[test]
fn endless_tail_calls_are_missed_and_counted() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut words = arguments(&["even", "odd"]);
    words.extend(["--json", "--", text(&program), "tail"].map(str::to_owned));
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = lines.lines().find(|l| l.starts_with('{')).expect("JSON");
    let json: Value = serde_json::from_str(json).expect("JSON");
    // even(n) for n below 50 makes n + 1 calls, which return at once; five are followed.
    let calls = |n: u64| n + 1;
    let followed: u64 = (0..50).map(|n| calls(n).min(5)).sum();
    let missed: u64 = (0..50).map(|n| calls(n).saturating_sub(5)).sum();
    assert_eq!(json["events"], followed, "{json}");
    assert_eq!(json["returns_missed"], missed, "{json}");
    let all = seen(&trace).into_values().flatten();
    assert!(all.into_iter().all(|value| value == 0 || value == 1));

    let mut words = vec!["stat", "--return=stack", "--json", "-e", "r :even"];
    words.extend(["-e", "r :odd", "--", text(&program), "tail"]);
    let output = capriole(&words);
    assert!(output.status.success(), "{}", told(&output));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = lines.lines().find(|l| l.starts_with('{')).expect("JSON");
    let json: Value = serde_json::from_str(json).expect("JSON");
    let events = json["events"].as_array().expect("events");
    let counted: u64 = events.iter().filter_map(|e| e["calls"].as_u64()).sum();
    assert_eq!(counted, followed, "{json}");
    assert_eq!(json["returns_missed"], missed, "{json}");
}

#[test]
fn functions_left_by_a_conditional_jump() {
    agree("followed.c", "conditional", &["conditional"]);
}

#[test]
fn every_register_and_flag_is_kept() {
    agree("followed.c", "special", &["special"]);
}

/// `ret $16` leaves the stack pointer at another address.
#[test]
fn returns_written_by_hand() {
    let functions = ["taking", "repeated", "sharing", "shared"];
    agree("returns.c", "assembler", &functions);
}

#[test]
fn frames_that_longjmp_leaves_do_not_return() {
    agree("returns.c", "jumps", &["jumper"]);
}

#[test]
fn stacks_of_its_own() {
    agree("returns.c", "coroutines", &["yielding", "worker"]);
}

#[test]
fn signal_handlers_in_the_middle() {
    agree("returns.c", "signals", &["raising", "whole"]);
}

/// The handler returns to the C library's own code, through an address that is also replaced.
#[test]
fn signal_handlers_themselves() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &["-O0"]) else {
        return;
    };
    let (_, seen) = run(&program, &["signals"], &["handler"]);
    assert_eq!(seen["handler"].len(), 20);
}

#[test]
fn children_that_share_memory() {
    let Some(program) = build(Compiler::Gcc, "followed.c", &[]) else {
        return;
    };
    let (said, mut seen) = run(&program, &["spawn"], &["spawning", "in_child"]);
    assert_eq!(seen.remove("in_child"), Some((0..10).collect()));
    assert_eq!(said, seen);
}

#[test]
fn both_processes_return_from_a_fork() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let (said, seen) = run(&program, &["fork"], &["forking"]);
    assert_eq!(sorted(said), sorted(seen));
    let Some(program) = build(Compiler::Gcc, "followed.c", &[]) else {
        return;
    };
    let (_, seen) = run(&program, &["dividing"], &["dividing"]);
    let both: Vec<i128> = (101..=121).chain(201..=221).collect();
    assert_eq!(sorted(seen)["dividing"], both);
}

#[test]
fn threads_return_as_often_as_they_call() {
    let Some(program) = build(Compiler::Gcc, "followed.c", &[]) else {
        return;
    };
    let output = capriole(&[
        "stat",
        "--json",
        "--return=stack",
        "-e",
        "r :hot sum($retval)",
        "--",
        text(&program),
        "threads",
        "200000",
    ]);
    assert!(output.status.success(), "{}", told(&output));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = lines.lines().find(|l| l.starts_with('{')).expect("JSON");
    let sum = lines.lines().find_map(|l| l.strip_prefix("hot "));
    let (json, sum) = (json.to_owned(), sum.expect("it is said").to_owned());
    assert!(json.contains("1600000"), "{json}");
    assert!(json.contains(&sum), "{sum}: {json}");
}

#[test]
fn calls_are_timed_from_entry_to_return() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let output = capriole(&[
        "stat",
        "--json",
        "--return=stack",
        "-e",
        "latency(:deep)",
        "--",
        text(&program),
        "deep",
    ]);
    assert!(output.status.success(), "{}", told(&output));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = lines.lines().find(|l| l.starts_with('{')).expect("JSON");
    assert!(json.contains("100001"), "{json}");
}

/// With and without the unwinder loaded at attach: it is loaded when the first thread is
/// cancelled.
#[test]
fn cancelled_threads_and_those_that_exit() {
    for flags in [&[][..], &["-Wl,--no-as-needed", "-lgcc_s"]] {
        let Some(program) = build(Compiler::Gcc, "returns.c", flags) else {
            return;
        };
        let (said, seen) = run(&program, &["cancel"], &["cancelled", "cleaning"]);
        assert_eq!(sorted(said), sorted(seen.clone()), "{flags:?}");
        assert_eq!(seen["cleaning"].len(), 10, "{flags:?}");
        let Some(program) = build(Compiler::Gcc, "followed.c", flags) else {
            return;
        };
        let (said, seen) = run(&program, &["exit"], &["leaving", "counting"]);
        // 20 threads, five levels.
        assert_eq!(said["cleaned"], [100], "{flags:?}");
        assert_eq!(seen["counting"].len(), 100, "{flags:?}");
        assert!(!seen.contains_key("leaving"), "{flags:?}");
    }
}

/// Backtraces are unchanged if the unwinder was already loaded. Otherwise they end where the
/// first return address was replaced.
#[test]
fn backtraces() {
    for (flags, whole) in [(&["-Wl,--no-as-needed", "-lgcc_s"][..], true), (&[], false)] {
        let Some(program) = build(Compiler::Gcc, "followed.c", flags) else {
            return;
        };
        let alone = std::process::Command::new(&program)
            .arg("backtrace")
            .output()
            .expect("it starts");
        let alone = said(&String::from_utf8_lossy(&alone.stdout))["frames"][0];
        let (said, seen) = run(&program, &["backtrace"], &["asking", "looking"]);
        assert_eq!(said["asking"], [16]);
        assert_eq!(seen["asking"], (6..=16).collect::<Vec<_>>());
        let frames = said["frames"][0];
        match whole {
            true => assert_eq!(frames, alone),
            false => assert!(frames < alone, "{frames} of {alone}"),
        }
    }
}

#[test]
fn exceptions_through_replaced_return_addresses() {
    for flags in [&[][..], &["-O0"], &["-static"], &["-static-libgcc"]] {
        let Some(program) = build(Compiler::Gxx, "returns_cxx.cpp", flags) else {
            return;
        };
        let (said, seen) = run(&program, &[], &["leaf", "descend"]);
        assert_eq!(said, seen, "{flags:?}");
    }
}

#[test]
fn panics_through_replaced_return_addresses() {
    let Some(program) = build(Compiler::Rustc, "rustprog.rs", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--threads", "3"]);
    let directory = scratch();
    let trace = directory.path().join("t");
    let pid = running.pid.to_string();
    // How often it panics in so short a time depends on the machine's load.
    let (mut abandoned, mut left) = (0, 30);
    while abandoned < 3 {
        assert!(left > 0, "{abandoned} recordings saw a panic");
        left -= 1;
        let output = record(
            &trace,
            &[
                "--return=stack",
                "--json",
                "-p",
                &pid,
                "--duration",
                "100ms",
                "-e",
                "r :rustprog::*",
            ],
        );
        assert!(output.status.success(), "{}", told(&output));
        running.assert_alive();
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        abandoned += u32::from(said["returns_abandoned"].as_u64() > Some(0));
    }
    assert_text_is_the_files(&running.process(), true);
    assert_no_session(&running.process());
    running.finish();
}

#[test]
fn functions_that_are_active_are_followed_from_their_next_call() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["active"]);
    let directory = scratch();
    let trace = directory.path().join("t");
    let pid = running.pid.to_string();
    let event = "r :active ret=$retval";
    let command = recorder(
        &trace,
        &["--return=stack", "--json", "-p", &pid, "-e", event],
    );
    let recording = Background::of(command, running.pid);
    running.say("go");
    let output = running.finished();
    recording.ended_by_itself();
    assert_eq!(said(&output)["active"], [1, 11, 21, 31, 41, 51]);
    // Their entries came before attach, so their return addresses were not replaced.
    assert!(events(&trace).is_empty());
}

#[test]
fn static_programs_of_another_library() {
    let Some(program) = build(Compiler::MuslGcc, "static.c", &["-static"]) else {
        return;
    };
    let mut running = Running::start(&program, &["--threads", "3"]);
    let directory = scratch();
    let trace = directory.path().join("t");
    let pid = running.pid.to_string();
    let output = record(
        &trace,
        &[
            "--return=stack",
            "--json",
            "-p",
            &pid,
            "--duration",
            "50ms",
            "-e",
            "r :static_work",
            "-e",
            "r :static_leaf",
            "-e",
            "r :snprintf",
        ],
    );
    assert!(output.status.success(), "{}", told(&output));
    running.assert_alive();
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(said["events"].as_u64() > Some(100), "{said}");
    running.finish();
}

fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", told(output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = |event: &str| {
        let all = ["--return=stack", "-e", event, "--", text(&program), "sizes"];
        all.map(str::to_owned)
    };
    for (event, reason) in [
        ("r libc:_setjmp", "returns more than once"),
        ("r libc:vfork", "returns more than once"),
        ("r libc:getcontext", "returns more than once"),
        ("r libc:swapcontext", "returns more than once"),
        ("r libc:dlsym", "finds its caller by its return address"),
        ("r :_start", "is not entered by a call"),
        ("r ld-linux:__tls_get_addr", "the dynamic loader"),
    ] {
        let output = record(&trace, &words(event));
        let said = failure(&output);
        assert!(said.contains(reason), "{event}: {said}");
    }
    // With a pattern it is left out.
    let mut all = words("r libc:*setjmp*").to_vec();
    all.insert(0, "--json".to_owned());
    let output = record(&trace, &all);
    assert!(
        told(&output).contains("returns more than once"),
        "{}",
        told(&output)
    );
}

/// Every function of the C library, while it computes known answers.
#[test]
fn all_of_the_c_library() {
    let flags = ["-Wl,--no-as-needed", "-lm"];
    let Some(program) = build(Compiler::Gcc, "libc_answers.c", &flags) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let answer = |running: &mut Running| -> Vec<String> {
        running.say("again");
        let lines = std::iter::from_fn(|| Some(running.line()));
        lines.take_while(|line| line != "done").collect()
    };
    let answers = answer(&mut running);
    let directory = scratch();
    let trace = directory.path().join("t");
    let pid = running.pid.to_string();
    for _ in 0..2 {
        let arguments = ["--return=stack", "--json", "-p", &pid, "-e", "r libc:*"];
        let recording = Background::of(recorder(&trace, &arguments), running.pid);
        for _ in 0..3 {
            assert_eq!(answer(&mut running), answers);
        }
        let told = recording.end();
        assert!(told["events"].as_u64() > Some(1000), "{}", told["events"]);
        assert_eq!(answer(&mut running), answers);
    }
    running.finish();
}

fn go_program() -> Option<PathBuf> {
    build_go("go_returns.go", "go_followed")
}

#[test]
fn go_is_refused() {
    let Some(program) = go_program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let output = record(
        &trace,
        &["--return=stack", "-e", "r :main.grow", "--", text(&program)],
    );
    let said = failure(&output);
    assert!(said.contains("Go moves stacks"), "{said}");
}

/// Exceptions of a stripped program with its own unwinder would fail, because the unwinder
/// cannot be found.
#[test]
fn hidden_unwinders_are_refused() {
    let Some(program) = build(Compiler::Gxx, "returns_cxx.cpp", &["-static", "-s"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    // Any called function will do, by its file offset.
    let Some(with) = build(Compiler::Gxx, "returns_cxx.cpp", &["-static"]) else {
        return;
    };
    let place = capriole(&["list", "--json", ":leaf", text(&with)]);
    let place: Vec<Value> = serde_json::from_slice(&place.stdout).expect("JSON");
    let event = format!("r :{}", place[0]["offset"].as_str().expect("a place"));
    let output = record(
        &trace,
        &["--return=stack", "-e", &event, "--", text(&program)],
    );
    let said = failure(&output);
    assert!(
        said.contains("without symbols") || said.contains("has no name"),
        "{said}"
    );
}

#[test]
fn it_is_checked() {
    let Some(program) = build(Compiler::Gcc, "followed.c", &[]) else {
        return;
    };
    let output = capriole(&["check", "--return=stack", "r :first", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let checked = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(checked.starts_with("first__return in "), "{checked}");
    assert!(
        checked.contains("its return address is replaced here"),
        "{checked}"
    );
    let output = capriole(&["check", "--return=stack", "r libc:*setjmp*", text(&program)]);
    assert!(!output.status.success(), "{}", told(&output));
}
