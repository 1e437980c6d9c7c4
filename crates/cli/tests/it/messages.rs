//! Messages that had misled users, each beside the one that it replaced.

use crate::programs::{Compiler, build};
use crate::target::{Running, assert_failed, capriole, command, told};
use crate::traces::{
    events, record, record_program, recorder, scratch, text, until_looked, until_recording,
};
use capriole_testkit::waiting::{until, until_stopped};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A table of messages: the command, the message that misled, and the message now.
#[derive(Default)]
struct Table(String);

impl Table {
    fn add(&mut self, command: &str, before: &str, now: &str) {
        let _ = writeln!(self.0, "$ capriole {command}\n  before: {before}");
        for line in now.lines() {
            let _ = writeln!(self.0, "  now:    {line}");
        }
        self.0.push('\n');
    }
}

fn program() -> Option<PathBuf> {
    build(Compiler::Gxx, "talk.cpp", &[])
}

/// Replaces what differs in each run: numbers, units of time, the program's name, the directory.
fn constant(said: &str, program: &Path, directory: &Path) -> String {
    let name = program
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    let said = said
        .replace(text(directory), "DIR")
        .replace(text(program), "PROGRAM")
        .replace(name, "PROGRAM")
        .replace(&name[..name.len().min(15)], "PROGRAM"); // the kernel's name
    let word = |word: &str| {
        let rest = word.trim_start_matches('(');
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || "., ".contains(c)));
        let unit = |word: &str| ["ns", "us", "ms", "s", "B", "kB"].contains(&word);
        match digits.unwrap_or(rest.len()) {
            0 if unit(word.trim_end_matches([',', ';', ')'])) => {
                let end = word.trim_start_matches(|c: char| c.is_ascii_alphabetic());
                format!("UNIT{end}")
            }
            0 => word.to_owned(),
            end => format!("{}N{}", &word[..word.len() - rest.len()], &rest[end..]),
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    said.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn the_end_of_the_program() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut table = Table::default();
    for (how, status, before) in [
        ("crash", 128 + libc::SIGSEGV, "; the program has ended"),
        ("fail", 3, "; the program has ended"),
        ("exec", 0, "; the program has ended ... and 0 ns to detach"),
    ] {
        let output = record(&trace, &["-e", ":talk::work*", "--", text(&program), how]);
        assert_eq!(output.status.code(), Some(status), "{}", told(&output));
        let now = constant(&said(&output), &program, directory.path());
        table.add(
            &format!("record -e ':talk::work*' -- PROGRAM {how}"),
            before,
            &now,
        );
    }
    insta::assert_snapshot!(table.0);
}

#[test]
fn events_that_were_not_hit() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let running = Running::start(&program, &["stays"]);
    let pid = running.pid.to_string();
    let mut table = Table::default();
    let before = "show it with `capriole report DIR/t`";
    for words in [
        &["-e", "libc:labs", "-e", "libc:llabs"][..],
        &["-e", ":talk::work n=$arg1 if n > 1000000"],
        &["--graph", ":talk::*", "--min-duration", "1m"],
    ] {
        let timed = [words, &["--duration", "50ms", "-p", &pid]].concat();
        let now = constant(&said(&record(&trace, &timed)), &program, directory.path());
        table.add(&format!("record {} -p PID", words.join(" ")), before, &now);
    }
    let words = ["stat", "-e", "libc:labs", "--duration", "50ms", "-p", &pid];
    let now = constant(&said(&capriole(&words)), &program, directory.path());
    table.add("stat -e libc:labs -p PID", "1 event was never hit", &now);
    insta::assert_snapshot!(table.0);
}

/// The time of a function that jumps to another one ends there, which explains why no call was slow.
#[test]
fn a_time_that_ends_by_a_jump() {
    let Some(program) = build(Compiler::Gcc, "jumps_away.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let hint = "capriole: outer ends by a jump to another function (a tail call), and so does its \
                time; record that function, or add --return=stack for the whole time";
    // Whatever else the processors do, no call takes an hour.
    for (words, hinted) in [
        (&["-e", "r:x :outer if duration > 1h"][..], true),
        (&["--graph", ":outer", "--min-duration", "1h"], true),
        (&["-e", "r:x :slow if duration > 1h"], false),
        (&["-e", "r:x :outer n=$arg1 if n > 10"], false),
        (&["-e", "r:x :slow if duration > 10ms"], false),
    ] {
        let output = record(&trace, &[words, &["--", text(&program)]].concat());
        let said = told(&output);
        assert!(said.contains("ok jumps"), "{said}");
        assert_eq!(said.contains(hint), hinted, "{said}");
    }
    for words in [
        &["-e", "r:x :outer if duration > 10ms"][..],
        &["--graph", ":outer", "--min-duration", "10ms"],
    ] {
        let words = [words, &["--return=stack"]].concat();
        record_program(&trace, &words, &program, &[]);
        assert_eq!(events(&trace).len(), 5, "{words:?}");
    }
    // What is advised shows it.
    let words = [
        "stat",
        "--json",
        "--return=stack",
        "-e",
        "latency(:outer)",
        "--",
        text(&program),
    ];
    let output = capriole(&words);
    let said = String::from_utf8_lossy(&output.stdout);
    let json = said.strip_prefix("ok jumps\n").expect(&said);
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let measure = &json["groups"][0]["rows"][0]["measures"][0];
    assert!(measure["avg_ns"].as_f64() > Some(19e6), "{json}");
}

/// `list --args` prints that a file has no debug information once, not for every function.
#[test]
fn a_program_without_debug_information() {
    let Some(program) = build(Compiler::Gcc, "jumps_away.c", &["-g0"]) else {
        return;
    };
    let output = capriole(&["list", "--args", ":*", text(&program)]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said.matches("no debug information for").count(),
        1,
        "{said}"
    );
    let first = said.lines().next().expect("a function");
    for function in ["slow", "outer"].iter().filter(|name| **name != first) {
        let expected = format!("{function}\n  as for {first}\n");
        assert!(said.contains(&expected), "{said}");
    }
}

/// The first Ctrl-C ends the recording, the second one the wait for a program that ignores it.
#[test]
fn a_program_that_ignores_ctrl_c() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["-e", ":talk::work*", "--", text(&program), "stays"];
    let mut recorder = recorder(&trace, &words);
    let mut child = recorder
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("capriole starts");
    // From then on it ignores Ctrl-C.
    let mut ready = String::new();
    let mut printed = BufReader::new(child.stdout.take().expect("a pipe"));
    printed.read_line(&mut ready).expect("a line");
    assert!(ready.starts_with("ready "), "{ready:?}");
    until("it begins to record", || trace.join("metadata").exists());
    let own = Pid::from_child(&child);
    kill_process(own, Signal::INT).expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut next = |wanted: &str| {
        let mut lines = lines.by_ref().map(|line| line.expect("UTF-8"));
        lines.find(|line| line.contains(wanted)).expect("a message")
    };
    let paused = next("program paused for");
    assert!(paused.contains(" (detach)"), "{paused}");
    let waiting = next("waiting for ");
    let (_, behind) = waiting.split_once("(pid ").expect("a pid");
    let (pid, then) = behind.split_once(')').expect("a pid");
    assert_eq!(then, "; Ctrl-C again leaves it running");
    let target = Pid::from_raw(pid.parse().expect("a number")).expect("not 0");
    assert!(child.try_wait().expect("ours").is_none(), "it did not wait");
    kill_process(own, Signal::INT).expect("it waits");
    let left = next("left running");
    assert!(left.ends_with(&format!("(pid {pid})")), "{left}");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    // It runs without probes, until we end it.
    kill_process(target, Signal::KILL).expect("it still runs");
    let name = program
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    let comm = &name[..name.len().min(15)];
    let mut table = Table::default();
    let now = waiting.replace(comm, "PROGRAM").replace(pid, "PID");
    table.add(
        "record -e ':talk::work*' -- PROGRAM stays, Ctrl-C",
        "(nothing)",
        &now,
    );
    insta::assert_snapshot!(table.0);
}

#[test]
fn a_trace_that_is_removed_meanwhile() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let running = Running::start(&program, &["stays"]);
    let pid = running.pid.to_string();
    let words = ["-e", ":talk::fib*", "-p", &pid];
    let mut recorder = recorder(&trace, &words);
    let child = recorder
        .stderr(Stdio::piped())
        .spawn()
        .expect("capriole starts");
    until_recording(running.pid);
    // It makes no files there meanwhile.
    let own = Pid::from_child(&child);
    kill_process(own, Signal::STOP).expect("it runs");
    until_stopped(child.id());
    std::fs::remove_dir_all(&trace).expect("it is there");
    kill_process(own, Signal::INT).expect("it runs");
    kill_process(own, Signal::CONT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let said = said(&output);
    let wanted = format!("{} was removed or moved ", text(&trace));
    assert!(said.contains(&wanted), "{said}");
    assert!(!said.contains("show it with"), "{said}");
}

#[test]
fn functions_that_are_left_out() {
    let Some(counted) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let running = Running::start(&counted, &["--wait"]);
    let pid = running.pid.to_string();
    let words = [
        "-e",
        ":counted_*",
        "--graph",
        ":*",
        "-p",
        &pid,
        "--duration",
        "1ms",
    ];
    let said = said(&record(&trace, &words));
    let line = said
        .lines()
        .find(|line| line.contains("left out"))
        .expect("some are");
    let mut table = Table::default();
    let before = "left out: 12 of 340 functions; `capriole list` tells why. For example: (three \
                  times 300 characters)";
    table.add(
        "record -e ':counted_*' --graph ':*' -p PID",
        before,
        &constant(line, &counted, directory.path()),
    );
    insta::assert_snapshot!(table.0);
}

#[test]
fn latencies_that_cannot_be_measured() {
    let mut table = Table::default();
    for (event, before) in [
        (
            "latency(:f) by req->path",
            "variables are not known at a return; $entry:req->path is what it was at the entry",
        ),
        (
            "latency(:f) max(ns)",
            "a filter belongs inside the parentheses",
        ),
        ("latency(:f) avg() by tid", "avg needs a field"),
        (
            "latency(:f) if ns > 3",
            "a filter belongs inside the parentheses",
        ),
        (
            "latency(:f) fd=$entry:arg1",
            "the field `fd` would not be used",
        ),
        (
            "latency(usdt:app:net:request)",
            "write its name without an offset or a return",
        ),
        (
            "latency(:f+4)",
            "write its name without an offset or a return",
        ),
        ("latency(:f", "the parenthesis is not closed"),
    ] {
        let output = capriole(&["stat", "-e", event, "--", "true"]);
        assert_failed(&output);
        let said = said(&output);
        assert!(!said.contains("%return"), "{said}");
        table.add(&format!("stat -e '{event}'"), before, &said);
    }
    insta::assert_snapshot!(table.0);
}

#[test]
fn a_file_of_events_that_is_not_text() {
    let directory = scratch();
    let file = directory.path().join("events");
    std::fs::write(&file, b"libc:read # caf\xe9\nlibc:write caf\xe9=$arg1\n").expect("ours");
    let output = capriole(&["record", "-f", text(&file), "--", "true"]);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let mut table = Table::default();
    let now = said(&output).replace(text(directory.path()), "DIR");
    table.add(
        "record -f DIR/events -- true",
        "cannot read DIR/events: stream did not contain valid UTF-8",
        &now,
    );
    insta::assert_snapshot!(table.0);
}

/// A definition file names fields as the kernel does, so that its filters and readers keep working.
#[test]
fn a_result_without_a_name() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let file = directory.path().join("events");
    let event = "r :talk::fib(int) n=$entry:arg1:s32 $retval:s32";
    std::fs::write(&file, format!("{event}\n")).expect("ours");
    for (option, wanted) in [
        (["-e", event], "n=2 ret=1"),
        (["-f", text(&file)], "n=2 arg2=1"),
    ] {
        let output = record(&trace, &[&option[..], &["--", text(&program)]].concat());
        assert!(output.status.success(), "{}", told(&output));
        let report = capriole(&["report", text(&trace)]);
        let shown = String::from_utf8(report.stdout).expect("UTF-8");
        assert!(shown.contains(wanted), "{shown}");
    }
}

#[test]
fn children_have_names() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["-e", ":talk::work*", "--", text(&program), "forks"];
    let mut recorder = recorder(&trace, &words);
    recorder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = recorder.spawn().expect("capriole starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut printed = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for _ in 0..2 {
        let line = printed.next().expect("a line").expect("text");
        assert_eq!(line, "called");
        // The child lives until its name is known.
        until_looked(&trace);
        input.write_all(b"\n").expect("it reads");
    }
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let report = capriole(&["report", text(&trace)]);
    let shown = String::from_utf8(report.stdout).expect("UTF-8");
    let lines = shown.lines().filter(|line| line.contains(": talk::work"));
    assert_eq!(lines.count(), 3, "{shown}");
    assert!(!shown.contains("<...>"), "{shown}");
}

#[test]
fn graphs_and_summaries_of_cxx() {
    let Some(program) = build(Compiler::Gxx, "talk.cpp", &["-g"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["--graph", ":talk::*", "--", text(&program)];
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let shown = |words: &[&str]| {
        let output = capriole(&[words, &[text(&trace)]].concat());
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let graph = shown(&["report", "--graph"]);
    let calls = graph.lines().filter(|line| !line.starts_with('#'));
    let calls = calls.filter_map(|line| line.rsplit_once('|').map(|(_, call)| call));
    insta::assert_snapshot!(calls.collect::<Vec<_>>().join("\n"), @r"
        talk::work();
        talk::fib() {
          talk::fib() = 1;
        } = 1 /* talk::fib */
        ");
    let summary = shown(&["report", "--summary"]);
    let head = summary
        .lines()
        .find(|line| line.starts_with("calls"))
        .expect("a head");
    let head: Vec<&str> = head.split_whitespace().collect();
    insta::assert_snapshot!(head.join(" "), @"calls total self average min max p50 p99 function");
}

/// How many files are open before capriole opens its own is up to whoever starts it.
#[test]
fn a_limit_of_open_files() {
    let directory = scratch();
    let mut refused = 0;
    for limit in 8..24 {
        let trace = directory.path().join(limit.to_string());
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_capriole")])
            .args(["record", "-e", "libc:read", "-o", text(&trace)])
            .args(["--", "true"])
            .output()
            .expect("sh starts");
        let said = said(&output);
        match output.status.code() {
            Some(0) => {}
            code => {
                assert_eq!(code, Some(1), "{limit}: {said}");
                let is_named = said.contains("ulimit -n") && !said.contains("ended while");
                assert!(is_named, "{limit}: {said}");
                refused += 1;
            }
        }
    }
    assert_ne!(refused, 0);
}

#[test]
fn a_process_is_named_for_detach_as_for_others() {
    let Some(program) = program() else { return };
    let running = Running::start(&program, &["stays"]);
    let pid = running.pid.to_string();
    for words in [&["detach", &pid][..], &["detach", "-p", &pid]] {
        let output = capriole(words);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let wanted = format!("capriole: process {pid} has no probes of capriole\n");
        assert_eq!(said(&output), wanted);
    }
    let both = capriole(&["detach", "-p", &pid, &pid]);
    assert_eq!(both.status.code(), Some(2), "{}", told(&both));
}

#[test]
fn help_fits_a_narrow_terminal() {
    for name in [
        "record", "report", "stat", "list", "check", "detach", "mark", "bench",
    ] {
        let output = command(&[name, "--help"]).env("COLUMNS", "60").output();
        let output = output.expect("capriole starts");
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        for line in help.lines() {
            assert!(line.chars().count() <= 60, "{name}: {line}");
        }
    }
}
