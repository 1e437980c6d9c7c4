//! Code that a program has mapped or copied once more: probes are in each mapping of its file, and copies in
//! memory are mentioned.

use crate::programs::{Compiler, build};
use crate::target::{Running, assert_text_is_the_files, capriole, command, told};
use crate::traces::{Background, events, scratch, until_recording};
use capriole_object::ObjectFile;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// At a fixed address, and at any.
const KINDS: [&[&str]; 2] = [&["-no-pie", "-fno-pie"], &["-pie", "-fPIE"]];

fn program(kind: &[&str]) -> Option<PathBuf> {
    build(Compiler::Gcc, "mapped_again.c", kind)
}

fn call(running: &mut Running, place: &str) {
    running.say(place);
    assert_eq!(running.line(), "called");
}

/// Records an event while the first and the second copy are called; returns the JSON and the events.
fn recorded(running: &mut Running, places: &[&str], event: &str) -> (Value, Vec<Value>) {
    let directory = scratch();
    let trace = directory.path().join("t");
    let recorder = Background::attach(&trace, running.pid, &[event]);
    for place in places {
        call(running, place);
    }
    let json = recorder.end();
    (json, events(&trace))
}

/// Returns the function's result.
fn result(value: i64) -> i64 {
    ((31 * value) ^ value) * 3 + 1
}

#[test]
fn each_mapping_of_a_file_is_probed() {
    for kind in KINDS {
        let Some(program) = program(kind) else { return };
        for how in ["file", "page"] {
            let mut running = Running::start(&program, &[how]);
            let (json, all) = recorded(
                &mut running,
                &["first", "second"],
                ":worked value known stack",
            );
            let context = format!("{kind:?} {how}");
            let sites = json["sites"].as_array().expect("a list");
            assert_eq!(sites.len(), 2, "{context}: {json}");
            for site in sites {
                let at = |event: &&Value| event["stack"][0]["address"] == site["address"];
                let own: Vec<&Value> = all.iter().filter(at).collect();
                let values: Vec<i64> = own
                    .iter()
                    .filter_map(|event| event["arguments"]["value"].as_i64())
                    .collect();
                assert_eq!(values, (0..10).collect::<Vec<i64>>(), "{context}: {json}");
                for event in own {
                    assert_eq!(event["arguments"]["known"], 77, "{context}");
                    assert_eq!(event["stack"][0]["symbol"], "worked", "{context}");
                    assert_eq!(event["stack"][1]["symbol"], "main", "{context}");
                }
            }
            let (_, all) = recorded(&mut running, &["second"], "r :worked $entry:value $retval");
            let returned = |event: &Value| event["arguments"]["ret"].as_i64();
            let returned: Vec<i64> = all.iter().filter_map(returned).collect();
            assert_eq!(returned, (0..10).map(result).collect::<Vec<i64>>());
            assert_text_is_the_files(&running.process(), true);
            running.finish();
        }
    }
}

/// A program in JavaScript that calls a built-in function of V8, a method of its maps, 10 times for each line.
const SCRIPT: &str = r#"
const map = new Map();
console.log("ready " + process.pid);
require("readline").createInterface({ input: process.stdin }).on("line", () => {
	for (let i = 0; i < 10; i++) map.set(i, i);
	console.log("called");
}).on("close", () => console.log("ok all answers"));
"#;

/// node maps them once more.
#[test]
fn built_in_functions_of_node_are_hit() {
    let node = Command::new("node").arg("--version").output();
    if !node.is_ok_and(|output| output.status.success()) {
        println!("skipped: node is not installed");
        return;
    }
    let mut running = Running::of(Command::new("node").args(["-e", SCRIPT]));
    let symbol = "Builtins_MapPrototypeSet";
    let path = Path::new("/proc").join(running.pid.to_string()).join("exe");
    let file = ObjectFile::open(&path).expect("a program");
    if file.symbols().expect("symbols").exact(symbol).is_empty() {
        println!("skipped: this node has no symbols of built-in functions");
        return;
    }
    let (_, all) = recorded(&mut running, &["call"], &format!(":{symbol}"));
    assert!(all.len() >= 10, "{} calls", all.len());
    running.finish();
}

/// A function of which the second mapping has no code is probed in the first alone.
#[test]
fn code_that_is_not_mapped_again_has_one_probe() {
    for kind in KINDS {
        let Some(program) = program(kind) else { return };
        let mut running = Running::start(&program, &["page"]);
        let (json, all) = recorded(&mut running, &["second"], ":worked_*");
        assert_eq!(json["sites"].as_array().expect("a list").len(), 1, "{json}");
        assert_eq!(all.len(), 10);
        running.finish();
    }
}

/// `stat` tells rows of both copies apart.
#[test]
fn rows_of_mappings_are_told_apart() {
    let Some(program) = program(KINDS[0]) else {
        return;
    };
    let mut running = Running::start(&program, &["file"]);
    let mut counting = command(&["stat", "-p", &running.pid.to_string(), "-e", ":worked"]);
    counting.stdout(Stdio::piped()).stderr(Stdio::piped());
    let counting = counting.spawn().expect("capriole starts");
    until_recording(running.pid);
    call(&mut running, "first");
    call(&mut running, "second");
    // SAFETY: sends a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(counting.id() as i32, libc::SIGINT) }, 0);
    let said = told(&counting.wait_with_output().expect("a child"));
    assert_eq!(said.matches(", mapped again at 0x").count(), 1, "{said}");
    running.finish();
}

#[test]
fn copies_in_memory_are_mentioned() {
    for kind in KINDS {
        let Some(program) = program(kind) else { return };
        let mut running = Running::start(&program, &["memory"]);
        let (json, all) = recorded(&mut running, &["second"], ":worked");
        assert!(all.is_empty(), "{kind:?}");
        let copies = json["copied_code"].as_array().expect("a list");
        assert_eq!(copies.len(), 1, "{json}");
        assert_eq!(copies[0]["function"], "worked", "{json}");
        let address = copies[0]["address"].as_str().expect("an address");
        let pid = running.pid.to_string();
        let words = ["stat", "-p", &pid, "-e", ":worked", "--duration", "10ms"];
        let said = told(&capriole(&words));
        let expected = format!("a copy of worked in memory without a file, at {address};");
        assert!(said.contains(&expected), "{said}");
        let (json, all) = recorded(&mut running, &["first"], ":worked");
        assert_eq!(
            (all.len(), &json["copied_code"]),
            (10, &Value::Array(Vec::new()))
        );
        running.finish();
    }
}
