//! Events at the entries of Go functions, which Go runs again when a stack must grow or another
//! goroutine is scheduled: each call counts once.

use crate::programs::build_go;
use crate::target::{capriole, told};
use crate::traces::{calls, record_program, scratch, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAMES: [&str; 3] = ["main.small", "main.large", "main.huge"];

/// Builds the program as it is, and without symbols.
fn programs(name: &str) -> Vec<PathBuf> {
    let Some(whole) = build_go("go_entries.go", name) else {
        return Vec::new();
    };
    let stripped = whole.with_extension("stripped");
    let status = Command::new("strip")
        .arg("-o")
        .args([&stripped, &whole])
        .status();
    let status = status.expect("strip runs");
    assert!(status.success());
    vec![whole, stripped]
}

/// Parses the program's output: calls and sums of arguments, by function.
fn own(printed: &str) -> BTreeMap<String, (u64, u64)> {
    assert!(printed.contains("ok go_entries\n"), "{printed}");
    let lines = printed.lines().filter(|line| line.starts_with("main."));
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse().expect("a number");
        (words[0].to_owned(), (number(1), number(2)))
    };
    lines.map(line).collect()
}

/// Returns the calls and sums of `stat`, and the program's output.
fn counted(program: &Path, events: &[String]) -> (Value, String) {
    let mut arguments = vec!["stat", "--json"];
    for event in events {
        arguments.extend(["-e", event]);
    }
    arguments.extend(["--", text(program)]);
    let output = capriole(&arguments);
    assert!(output.status.success(), "{}", told(&output));
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let json = printed.lines().find(|line| line.starts_with('{'));
    let json = serde_json::from_str(json.expect("JSON")).expect("JSON");
    (json, printed)
}

/// Returns the number of hits of each event.
fn hits(json: &Value) -> BTreeMap<String, u64> {
    let events = json["events"].as_array().expect("a list").iter();
    let pair = |e: &Value| Some((e["event"].as_str()?.to_owned(), e["calls"].as_u64()?));
    events.filter_map(pair).collect()
}

#[test]
fn a_call_counts_once_however_often_its_stack_is_checked() {
    for program in programs("go_entries_counted") {
        let events = NAMES.map(|name| format!(":{name} sum(k=$arg1:s64)"));
        let (json, printed) = counted(&program, &events);
        let own = own(&printed);
        for (name, hits) in hits(&json) {
            assert_eq!(
                hits,
                own[&name].0,
                "{name} of {}: {json}",
                program.display()
            );
        }
        for (group, name) in json["groups"].as_array().expect("a list").iter().zip(NAMES) {
            assert_eq!(
                group["rows"][0]["measures"][0]["value"], own[name].1,
                "{name}: {group}"
            );
        }
        // Also with a pattern.
        let (json, printed) = counted(&program, &[":main.[slh]*".to_owned()]);
        let hits = hits(&json);
        for (name, (count, _)) in self::own(&printed) {
            assert_eq!(hits[&name], count, "{json}");
        }
    }
}

/// A user can still probe the very first instruction, by its file offset.
#[test]
fn the_first_instruction_itself_is_run_more_often() {
    for program in programs("go_entries_offset") {
        let output = capriole(&["list", "--json", ":main.small", text(&program)]);
        let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let check = listed[0]["stack_check"].as_u64().expect("a number");
        let offset = listed[0]["offset"].as_str().expect("an offset");
        let offset = u64::from_str_radix(&offset[2..], 16).expect("a number") - check;
        let event = format!("{}:{offset:#x}", program.display());
        let (json, printed) = counted(&program, &[event]);
        let hits = hits(&json).into_values().sum::<u64>();
        assert!(hits > own(&printed)["main.small"].0, "{json}");
        let checked = told(&capriole(&["check", ":main.small", text(&program)]));
        let place = format!("behind the check of the stack, {check} bytes from");
        assert!(checked.contains(&place), "{checked}");
    }
}

/// Stacks move in the middle of calls, and goroutines move to other threads.
#[test]
fn every_call_of_a_goroutine_is_seen_to_return() {
    for program in programs("go_entries_graph") {
        let directory = scratch();
        let trace = directory.path().join("t");
        let mut arguments = vec!["--buffer-size", "32M"];
        let events = NAMES.map(|name| format!(":{name}"));
        for event in &events {
            arguments.extend(["--graph", event]);
        }
        let printed = record_program(&trace, &arguments, &program, &[]);
        let output = capriole(&["report", "--graph", "--json", text(&trace)]);
        assert!(output.status.success(), "{}", told(&output));
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        let mut deepest = 0;
        for line in String::from_utf8(output.stdout).expect("UTF-8").lines() {
            let call: Value = serde_json::from_str(line).expect("JSON");
            assert!(call["unpaired_exits"].is_null(), "{call}");
            let Some(name) = call["function"].as_str() else {
                continue;
            };
            assert_eq!(call["exit"], "returned", "{call}");
            *seen.entry(name.to_owned()).or_default() += 1;
            deepest = deepest.max(call["depth"].as_u64().expect("a depth"));
        }
        let own = own(&printed).into_iter();
        let own: BTreeMap<String, u64> = own.map(|(name, (count, _))| (name, count)).collect();
        assert_eq!(seen, own, "{}", program.display());
        // The calls stay nested across all moves.
        assert_eq!(deepest, 300);
    }
}

/// In a function that recovers, Go resumes at a place of its own that no jump leads to.
#[test]
fn a_function_that_recovers_is_seen_to_return() {
    for program in programs("go_entries_recovered") {
        let (json, _) = counted(&program, &["r :main.caught".to_owned()]);
        assert_eq!(hits(&json)["main.caught__return"], 30, "{json}");
    }
}

/// After the stack check everything is where it is at the entry.
#[test]
fn arguments_return_addresses_and_results_are_as_at_the_entry() {
    let programs = programs("go_entries_fields");
    let Some(program) = programs.first() else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let arguments = [
        "--buffer-size",
        "32M",
        "-e",
        ":main.large a=$arg1:s64 k from=$stack0:x64 if k < 2",
        "-e",
        "r :main.huge $retval:s64 k=$entry:arg1:s64 if k < 2",
    ];
    record_program(&trace, &arguments, program, &[]);
    let output = capriole(&["list", "--json", ":main.large", text(program)]);
    let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |value: &Value| {
        let digits = value.as_str().and_then(|value| value.strip_prefix("0x"));
        u64::from_str_radix(digits.expect("a number"), 16).expect("a number")
    };
    let start = number(&listed[0]["address"]);
    let function = start..start + 0x200;
    let count = calls(&trace);
    assert_eq!(count["main.large"], 120, "{count:?}");
    for event in crate::traces::events(&trace) {
        let arguments = &event["arguments"];
        match event["event"].as_str() {
            Some("main.large") => {
                assert_eq!(arguments["a"], arguments["k"], "{event}");
                assert!(function.contains(&number(&arguments["from"])), "{event}");
            }
            Some("main.huge__return") => {
                let k = arguments["k"].as_i64().expect("a number");
                assert_eq!(arguments["ret"].as_i64(), Some(k + 1), "{event}");
            }
            _ => {}
        }
    }
}
