//! Memory whose pages come from the very thread that hits a probe: a read there that waits would wait for
//! good.

use crate::programs::{Compiler, build};
use crate::target::{Running, assert_no_session, assert_text_is_the_files, capriole, told};
use crate::traces::{Background, events, scratch, until_looked};
use serde_json::Value;
use std::process::{Command, Stdio};

const EVENTS: [&str; 3] = [
    ":provide text=+0($arg1):string n=$arg2:u64",
    ":provide whole=+0($arg1):u64 n=$arg2:u64 stack",
    ":seen text=+0($arg1):string n=$arg2:u64",
];
/// Pages that each "call" touches.
const EACH: u64 = 16;

/// True if pages can be provided so here.
fn can(program: &std::path::Path, how: &str, directory: &std::path::Path) -> bool {
    let mut command = Command::new(program);
    let command = command.arg(how).env("TMPDIR", directory);
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let can = !String::from_utf8_lossy(&output.stdout).starts_with("skip");
    if !can {
        println!("skipped: no pages can be provided by {how} here");
    }
    can
}

fn waits_for_nobody(how: &str) {
    let Some(program) = build(Compiler::Gcc, "slow_memory.c", &["-pthread"]) else {
        return;
    };
    let directory = scratch();
    if !can(&program, how, directory.path()) {
        return;
    }
    // What is created later by another process is not found.
    let late = [false, true]
        .into_iter()
        .take(2 - usize::from(how == "apart"));
    for late in late {
        let trace = directory.path().join("t");
        let mut command = Command::new(&program);
        command.arg(how).env("TMPDIR", directory.path());
        let mut running = Running::of(command.args(late.then_some("late")));
        let recorder = Background::attach(&trace, running.pid, &EVENTS);
        if late {
            running.say("begin");
            assert_eq!(running.line(), "begun");
            if how != "uffd" {
                // The recorder has to notice; userfaultfd(2) is noticed at once.
                until_looked(&trace);
                until_looked(&trace);
            }
        }
        for _ in 0..2 {
            running.say("call");
            assert_eq!(running.line(), "called");
        }
        let told = recorder.end();
        assert_eq!(told["lost"], 0, "{told}");
        assert_text_is_the_files(&running.process(), false);
        assert_no_session(&running.process());
        running.finish();
        let events = events(&trace);
        let of = |name: &str, field: &str| -> Vec<(u64, Value)> {
            let events = events.iter().filter(|e| e["event"] == name);
            let with = events.filter(|e| e["arguments"].get(field).is_some());
            let number = |e: &Value| e["arguments"]["n"].as_u64().expect("a number");
            with.map(|e| (number(e), e["arguments"][field].clone()))
                .collect()
        };
        let numbers = || 0..2 * EACH;
        let missing: Vec<_> = numbers().map(|n| (n, Value::Null)).collect();
        assert_eq!(of("provide", "text"), missing, "{how}: not in memory yet");
        let there = numbers().map(|n| (n, format!("page {n}").into()));
        assert_eq!(of("seen", "text"), there.collect::<Vec<_>>(), "{how}");
        std::fs::remove_dir_all(&trace).expect("a trace");
    }
}

/// While the program is stopped, nobody could read its code.
#[test]
fn one_that_may_serve_its_own_code_is_refused() {
    let Some(program) = build(Compiler::Gcc, "slow_memory.c", &["-pthread"]) else {
        return;
    };
    let directory = scratch();
    if !can(&program, "code", directory.path()) {
        return;
    }
    let mut command = Command::new(&program);
    let command = command.arg("code").env("TMPDIR", directory.path());
    let mut running = Running::of(command);
    let before = running.process().raw_maps().expect("maps");
    let pid = running.pid.to_string();
    let output = capriole(&["stat", "-p", &pid, "-e", ":seen", "--duration", "10ms"]);
    let said = told(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("serves one itself"), "{said}");
    assert_eq!(running.process().raw_maps().expect("maps"), before);
    running.say("call");
    assert_eq!(running.line(), "called");
    running.finish();
}

#[test]
fn a_page_that_the_thread_itself_provides_is_not_read() {
    waits_for_nobody("uffd");
}

#[test]
fn nor_one_that_it_provides_by_the_device() {
    waits_for_nobody("device");
}

#[test]
fn nor_one_that_another_process_provides() {
    waits_for_nobody("apart");
}

#[test]
fn nor_one_of_a_file_that_it_serves() {
    waits_for_nobody("fuse");
}
