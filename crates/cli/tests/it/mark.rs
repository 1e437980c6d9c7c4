//! Messages in recordings: those of the program, and those that others write with
//! `capriole mark`.
//!
//! Always with `-p`: without it every recording on the machine would get them.

use crate::target;
use crate::traces;

use crate::programs::{Compiler, build};
use capriole_host::ptrace;
use capriole_patch::outside::sessions;
use capriole_proc::process::State;
use capriole_testkit::effort::{Effort, effort, rounds};
use capriole_testkit::waiting::until;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use target::{Running, assert_no_session, capriole, told};
use traces::{
    Background, events, record_program, record_shop, scratch, summary, text, until_recording,
};

const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");

fn mark(pid: u32, words: &[&str]) -> Output {
    let pid = pid.to_string();
    capriole(&[&["mark", "-p", &pid], words].concat())
}

/// Returns the messages of a trace in time order, and if the program itself wrote them.
fn texts(trace: &Path) -> Vec<(String, bool)> {
    let mut events = events(trace);
    events.retain(|event| event["event"] == "capriole:message");
    let text = |event: &Value| {
        let text = event["arguments"]["arg1"].as_str().expect("a text");
        // The report shows it as it was written.
        assert_eq!(event["text"], text);
        (text.to_owned(), !event["object"].is_null())
    };
    events.iter().map(text).collect()
}

fn shop() -> Option<PathBuf> {
    let flags = ["-O2", "-I", INCLUDE];
    build(Compiler::Gcc, "../../examples/markers.c", &flags)
}

/// Several writers at once, while the program's own threads need the same lanes of the buffer:
/// without restartable sequences, and with them.
#[test]
fn every_text_is_there_once_and_nothing_of_the_program_is_missing() {
    const WRITERS: usize = 3;
    const THREADS: u64 = 4;
    let each = rounds(50_000, 200_000, 1_000_000) as u64;
    let texts_each = rounds(8, 25, 100);
    for tunables in ["glibc.pthread.rseq=0", "glibc.pthread.rseq=1"] {
        let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("t");
        let (threads, calls) = (THREADS.to_string(), each.to_string());
        let mut running = Running::of(
            Command::new(&program)
                .args(["--wait", "--threads", &threads, "--calls", &calls])
                .env("GLIBC_TUNABLES", tunables),
        );
        let pid = running.pid;
        let words = ["--buffer-size", "512M", "-e", ":counted_work"];
        let recorder = Background::attach_with(&trace, pid, &words);
        running.say("go");
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    for number in 0..texts_each {
                        let output = mark(pid, &[&format!("writer {writer}"), &number.to_string()]);
                        assert!(output.status.success(), "{}", told(&output));
                    }
                });
            }
        });
        let wanted = THREADS * each;
        assert_eq!(running.line(), format!("ok calls={}", wanted + 3));
        let said = recorder.end();
        let all = wanted + (WRITERS * texts_each) as u64;
        assert_eq!((&said["events"], &said["lost"]), (&json!(all), &json!(0)));
        let summary = summary(&trace);
        assert_eq!(summary["damages"], 0, "{summary}");
        let mut next = [0; WRITERS];
        for (text, own) in texts(&trace) {
            assert!(!own, "{text}");
            let words: Vec<&str> = text.split(' ').collect();
            let writer: usize = words[1].parse().expect("a writer");
            assert_eq!(text, format!("writer {writer} {}", next[writer]));
            next[writer] += 1;
        }
        assert_eq!(next, [texts_each; WRITERS]);
        running.say("end");
        assert!(running.child.wait().expect("it ends").success());
    }
}

#[test]
fn texts_of_the_program_are_recorded_unasked() {
    let Some(program) = shop() else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    // The first message follows the 990th request.
    record_shop(&trace, &["-e", "usdt::shop:reply"], &program, |trace| {
        !texts(trace).is_empty()
    });
    let replies = events(&trace);
    let replies = replies
        .iter()
        .filter(|event| event["event"] == "shop:reply");
    let (mut missing, mut messages) = (0, 0);
    for number in 1..=replies.count() {
        missing += usize::from(number % 10 == 0);
        if missing % 100 == 99 {
            messages += 1;
            missing += 1;
        }
    }
    let own = (String::from("a hundred requests in vain"), true);
    assert_eq!(texts(&trace), vec![own; messages]);
}

/// A user who records messages through an event gets that event's fields, and nothing more.
#[test]
fn texts_that_are_asked_for_are_not_recorded_twice() {
    let flags = ["-O2", "-I", INCLUDE];
    let Some(program) = build(Compiler::Gcc, "texts.c", &flags) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let arguments = |trace: &Path| {
        let events = events(trace).into_iter();
        let events = events.filter(|event| event["event"] == "capriole:message");
        events.map(|e| e["arguments"].clone()).collect::<Vec<_>>()
    };
    let all: Vec<Value> = ["text 0", "text 1", "text 2", "text 3", "text 4", ""]
        .iter()
        .map(|text| json!({"arg1": text}))
        .collect();
    let mut first = vec![json!({"first": "t"}); 5];
    first.push(json!({"first": "\0"}));
    let file = directory.path().join("file");
    for (event, wanted) in [
        (":work", &all),
        ("usdt::capriole:message", &all),
        ("usdt::capriole:*", &all),
        ("usdt::capriole:message first=+0($arg1):char", &first),
    ] {
        // This file takes the place of the kernel's trace_marker.
        std::fs::write(&file, "").expect("a file");
        record_program(&trace, &["-e", event], &program, &[text(&file)]);
        assert_eq!(arguments(&trace), *wanted, "{event}");
        let written = std::fs::read_to_string(&file).expect("a file");
        assert_eq!(written, "text 1text 4");
    }
    // This applies only to a library's messages; the program's own are still recorded.
    let library = [&flags[..], &["-shared", "-fPIC"]].concat();
    let Some(library) = build(Compiler::Gcc, "texts.c", &library) else {
        return;
    };
    let event = format!("usdt:{}:*", library.display());
    let mut command = traces::recorder(&trace, &["-e", &event, "--", text(&program)]);
    let output = command.env("LD_PRELOAD", &library).output();
    let output = output.expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(arguments(&trace), all);
    // Messages alone do not start a recording either.
    let output = traces::record(&trace, &["-e", ":never", "--", text(&program)]);
    assert!(!output.status.success(), "{}", told(&output));
    assert!(
        told(&output).contains("never cannot be probed"),
        "{}",
        told(&output)
    );
    let output = traces::record(&trace, &["-e", ":nev*", "--", text(&program)]);
    assert!(
        told(&output).contains("none of 1 function can be probed"),
        "{}",
        told(&output)
    );
}

/// A writer killed midway does not block others.
#[test]
fn killed_at_any_moment_it_leaves_nothing() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--wait", "--threads", "1", "--calls", "5"]);
    let pid = running.pid;
    let directory = scratch();
    let trace = directory.path().join("t");
    let recorder = Background::attach(&trace, pid, &[":counted_work"]);
    let killed = |number: u64| {
        let words = ["mark", "-p", &pid.to_string(), &format!("killed {number}")];
        let mut child = target::command(&words)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("capriole starts");
        std::thread::sleep(std::time::Duration::from_micros(number * 97 % 8000));
        let ended = child.try_wait().expect("a child").is_some();
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
        !ended
    };
    let count = rounds(20, 150, 1000) as u64;
    let in_time = (0..count).filter(|number| killed(number * 131)).count();
    // On a busy machine each of a few may end before this test gets a processor again.
    if effort() != Effort::Test {
        assert!(in_time > 0, "all were faster than their end");
    }
    let output = mark(pid, &["the last"]);
    assert!(output.status.success(), "{}", told(&output));
    recorder.end();
    let found = texts(&trace);
    assert_eq!(found.last(), Some(&("the last".to_owned(), false)));
    assert!(
        found.len() as u64 <= count + 1 && (found.len() + in_time) as u64 > count,
        "{}",
        found.len()
    );
    assert_eq!(summary(&trace)["damages"], 0);
    running.say("go");
    running.say("end");
    running.finish();
}

#[test]
fn a_session_is_found_once_whoever_shares_it() {
    let Some(program) = build(Compiler::Gcc, "forker.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["100000"]);
    let pid = running.pid;
    let directory = scratch();
    let function = ":forker_work";
    let recorder = Background::attach(&directory.path().join("t"), pid, &[function]);
    let of_ours = || {
        let mut all = sessions();
        let ours = capriole_proc::process::Process::open(pid).expect("it runs");
        let ours = capriole_patch::recover::find(&*ptrace::host(&ours)).expect("a session");
        assert_eq!(ours.len(), 1);
        all.retain(|(_, session)| session.inode == ours[0].inode);
        all.iter()
            .map(|(process, _)| process.pid())
            .collect::<Vec<_>>()
    };
    // Children come and go meanwhile.
    for _ in 0..20 {
        assert_eq!(of_ours(), [pid]);
    }
    recorder.end();
}

/// Messages for cases where there is nothing to write to.
#[test]
fn what_cannot_be_marked_is_told() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--wait", "--threads", "1", "--calls", "5"]);
    let pid = running.pid;
    let name = program.file_name().expect("a name").to_string_lossy();
    let refused = |words: &[&str]| {
        let output = mark(pid, words);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        // The kernel keeps 15 characters of a name.
        said.replace(&*name.chars().take(15).collect::<String>(), "NAME")
            .replace(&pid.to_string(), "PID")
    };
    assert_eq!(
        refused(&["text"]),
        "capriole: process PID (NAME) is not being recorded; `capriole record -p PID` does it\n"
    );
    assert_eq!(
        refused(&[&"x".repeat(1025)]),
        "capriole: the message has 1,025 bytes; at most 1,024 are recorded: shorten it\n"
    );

    let mut stat = target::command(&["stat", "-p", &pid.to_string(), "-e", ":counted_work"]);
    let mut stat = stat
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("stat");
    until_recording(pid);
    assert_eq!(
        refused(&["text"]),
        "capriole: process PID (NAME) is probed by a command that takes no messages, such as \
         `capriole stat`, or its recording is just ending\n"
    );
    // SAFETY: sends a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(stat.id() as i32, libc::SIGINT) }, 0);
    assert!(stat.wait().expect("stat").success());

    let directory = scratch();
    let trace = directory.path().join("t");
    let arguments = ["-p", &pid.to_string(), "-e", ":counted_work"];
    let mut dead = traces::recorder(&trace, &arguments)
        .spawn()
        .expect("record");
    until_recording(pid);
    dead.kill().expect("it is killed");
    dead.wait().expect("it ends");
    assert_eq!(
        refused(&["text"]),
        "capriole: the recorder of process PID (NAME) is gone: it ended without removing its \
         probes, which `capriole detach PID` does, or is in another PID namespace\n"
    );
    let output = capriole(&["detach", &pid.to_string()]);
    assert!(output.status.success(), "{}", told(&output));
    assert_no_session(&running.process());

    // Of several processes, those that can be marked are marked.
    let recorder = Background::attach(&trace, pid, &[":counted_work"]);
    let longest = "y".repeat(1024);
    let own = std::process::id().to_string();
    let output = mark(pid, &["-p", &own, "--json", &longest]);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["recordings"][0]["pid"], pid, "{said}");
    assert_eq!(said["errors"].as_array().map(Vec::len), Some(1), "{said}");
    recorder.end();
    assert_eq!(texts(&trace), [(longest, false)]);
    running.say("go");
    running.say("end");
    running.finish();
}

/// Whoever has seen the trace may send a message: it is taken before the recorder goes on.
#[test]
fn a_recording_that_has_just_begun_takes_messages() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--wait", "--threads", "1", "--calls", "1"]);
    let directory = scratch();
    let trace = directory.path().join("t");
    let pid = running.pid.to_string();
    let mut command = traces::recorder(&trace, &["--json", "-p", &pid, "-e", ":counted_work"]);
    command.env("CAPRIOLE_STOP_AT", "trace begun#1");
    let recorder = Background::started(command);
    until("the trace is there", || recorder.state() == State::Stopped);
    let output = mark(running.pid, &["early"]);
    assert!(output.status.success(), "{}", told(&output));
    recorder.signal(libc::SIGCONT);
    recorder.end();
    assert_eq!(texts(&trace), [("early".to_owned(), false)]);
    running.say("go");
    running.say("end");
    running.finish();
}

#[test]
fn the_kernel_gets_a_text_too() {
    let text = format!("capriole test {}", std::process::id());
    let output = capriole(&[
        "mark",
        "--kernel",
        "-p",
        &std::process::id().to_string(),
        &text,
    ]);
    let said = told(&output);
    // This test itself is not being recorded.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is not being recorded"), "{said}");
    let file = [
        "/sys/kernel/tracing/trace",
        "/sys/kernel/debug/tracing/trace",
    ];
    let trace = file
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    match trace {
        Some(trace) if said.contains("marked in the kernel's trace") => {
            assert!(
                trace.contains(&format!("tracing_mark_write: {text}\n")),
                "{said}"
            );
        }
        _ => {
            println!("skipped: there is no trace_marker that could be written to");
            assert!(said.contains("trace_marker"), "{said}");
        }
    }
}
