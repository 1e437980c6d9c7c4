//! `capriole stat` counts the same as the program itself, in all its threads, and leaves
//! nothing behind.

use crate::programs::{Compiler, build};
use crate::target::{Running, assert_no_session, assert_text_is_the_files, capriole, told};
use crate::traces::{text, until_recording};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Output, Stdio};

/// A `capriole stat --json` of a process, in the background.
struct Background {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Background {
    fn attach(pid: u32, words: &[&str]) -> Background {
        let mut child = crate::target::own()
            .args(["stat", "--json", "-p", &pid.to_string()])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("capriole starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        until_recording(pid);
        Background { child, lines }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("text");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Ends it as Ctrl-C does. Returns the last line that it prints, which must be the next.
    fn end(mut self) -> Value {
        let pid = self.child.id() as i32;
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
        let mut said = self.line();
        while said.get("ended").is_none() {
            said = self.line();
        }
        assert!(self.child.wait().expect("it ends").success());
        said
    }
}

/// Returns the number of calls by event, after checking that the events are sorted.
fn calls(said: &Value) -> BTreeMap<String, u64> {
    let events = said["events"].as_array().expect("a list");
    let one = |event: &Value| {
        let name = event["event"].as_str().expect("a name").to_owned();
        (name, event["calls"].as_u64().expect("a number"))
    };
    let list: Vec<(String, u64)> = events.iter().map(one).collect();
    assert!(list.is_sorted_by(|a, b| a.1 >= b.1), "{list:?}");
    list.into_iter().collect()
}

fn map<const N: usize>(calls: [(&str, u64); N]) -> BTreeMap<String, u64> {
    calls.map(|(name, n)| (name.to_owned(), n)).into()
}

fn stat(words: &[&str]) -> Output {
    capriole(&[&["stat"], words].concat())
}

#[test]
fn the_program_counts_the_same() {
    const THREADS: u64 = 6;
    const CALLS: u64 = 30_000;
    let (threads, each) = (THREADS.to_string(), CALLS.to_string());
    let words = ["--wait", "--threads", &threads, "--calls", &each];
    for (compiler, flags, restartable) in [
        (Compiler::Gcc, &[][..], Some(true)),
        (Compiler::Gcc, &["-no-pie", "-O1"], Some(true)),
        (Compiler::Gcc, &["-static"], None),
        (Compiler::MuslGcc, &["-static"], Some(false)),
    ] {
        let Some(program) = build(compiler, "counted.c", flags) else {
            continue;
        };
        let mut running = Running::start(&program, &words);
        // The same event twice, with arguments that mean nothing here, counts as one.
        let events = ["-e", ":counted_work", "-e", ":counted_work $arg1"];
        let counting = Background::attach(running.pid, &events);
        running.say("go");
        let wanted = THREADS * CALLS;
        // The constructor made its 3 calls earlier.
        assert_eq!(running.line(), format!("ok calls={}", wanted + 3));
        let said = counting.end();
        assert_eq!(calls(&said), map([("counted_work", wanted)]), "{said}");
        assert_eq!(said["ended"], "requested");
        let sequences = said["restartable_sequences"].as_bool();
        assert!(restartable.is_none() || sequences == restartable, "{said}");
        assert_text_is_the_files(&running.process(), false);
        assert_no_session(&running.process());
        running.say("end");
        assert!(running.child.wait().expect("it ends").success());
    }
}

/// From the first function of a program to its last, with a breakpoint among the probes.
#[test]
fn a_program_that_is_started_is_counted_from_start_to_end() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let events = [
        "--breakpoints",
        "-e",
        ":counted_short",
        "-e",
        ":counted_work",
        "-e",
        ":counted_beh*",
    ];
    let program = [
        text(&program),
        "--threads",
        "5",
        "--calls",
        "700",
        "--exit",
        "7",
    ];
    let output = stat(&[&["--json"], &events[..], &["--"], &program].concat());
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let (theirs, ours) = stdout.trim().split_once('\n').expect("two lines");
    assert_eq!(theirs, "ok calls=3503");
    let said: Value = serde_json::from_str(ours).expect("JSON");
    let found = calls(&said);
    assert_eq!(
        (found["counted_work"], found["counted_short"]),
        (3503, 3500)
    );
    assert_eq!(said["events"][1]["state"], "breakpoint", "{said}");
    assert_eq!(said["ended"], "program ended");

    let output = stat(&[&events[..], &["--"], &program].concat());
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    // The rates may have any value.
    let table: Vec<String> = stdout
        .lines()
        .map(
            |line| match line.split_whitespace().collect::<Vec<_>>()[..] {
                [calls, _, name] => format!("{calls} {name}"),
                _ => line.to_owned(),
            },
        )
        .collect();
    let wanted = [
        "ok calls=3503",
        "calls event",
        "3503 counted_work",
        "3500 counted_short",
    ];
    assert_eq!(table[..4], wanted, "{stdout}");
    assert!(table[4..].concat().ends_with("never hit"), "{stdout}");
}

#[test]
fn intervals_add_up_to_the_whole() {
    const CALLS: u64 = 200_000;
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let words = ["--wait", "--threads", "2", "--calls", "100000"];
    let mut running = Running::start(&program, &words);
    let words = ["--interval", "1ms", "-e", ":counted_work"];
    let mut counting = Background::attach(running.pid, &words);
    running.say("go");
    let (mut sum, mut time) = (0, 0);
    while sum < CALLS {
        let line = counting.line();
        let at = line["time_ns"].as_u64().expect("a number");
        let interval = line["interval_ns"].as_u64().expect("a number");
        assert_eq!(at - time, interval, "{line}");
        time = at;
        let calls = calls(&line);
        assert!(calls.values().all(|calls| *calls > 0), "{line}");
        sum += calls.get("counted_work").copied().unwrap_or(0);
    }
    assert_eq!(running.line(), format!("ok calls={}", CALLS + 3));
    let said = counting.end();
    assert_eq!(calls(&said), map([("counted_work", CALLS)]), "{said}");
    assert_eq!(sum, CALLS);
    running.say("end");
    assert!(running.child.wait().expect("it ends").success());
}

/// The time after the last whole interval, or before the first, is an interval of its own.
#[test]
fn the_last_interval_ends_with_the_program() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    for (interval, calls_of_thread) in [("1h", 1000), ("20ms", 20_000)] {
        let count = calls_of_thread.to_string();
        let words = [
            "stat",
            "--json",
            "--interval",
            interval,
            "-e",
            ":counted_work",
            "--",
        ];
        let program = [text(&program), "--threads", "2", "--calls", &count];
        let output = capriole(&[&words[..], &program].concat());
        assert!(output.status.success(), "{}", told(&output));
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        let lines = lines.lines().filter(|line| line.starts_with('{'));
        let parse = |line: &str| -> Value { serde_json::from_str(line).expect("JSON") };
        let mut lines: Vec<Value> = lines.map(parse).collect();
        let whole = lines.pop().expect("the totals");
        let of = |line: &Value| calls(line).get("counted_work").copied().unwrap_or(0);
        let all = 2 * calls_of_thread + 3; // the program calls it three times before its threads do
        assert_eq!([of(&whole), lines.iter().map(of).sum()], [all; 2]);
        let last = lines.last().expect("one");
        // In the one of 20 ms before the end nothing may have happened any more.
        let is_whole = last["time_ns"] == whole["duration_ns"];
        assert!(is_whole || interval == "20ms", "{last}");
    }
}

/// A terminal of 24 lines and 80 columns: our end, and the end for programs in it.
fn terminal() -> Option<(std::fs::File, std::fs::File)> {
    let size = libc::winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let (mut ours, mut theirs) = (-1, -1);
    let nothing = std::ptr::null_mut();
    // SAFETY: passes places for two numbers, and a size; the name and the attributes may be null.
    let made = unsafe { libc::openpty(&mut ours, &mut theirs, nothing, nothing.cast(), &size) };
    if made != 0 {
        println!("skipped: no terminal can be made here");
        return None;
    }
    // SAFETY: just created, and owned by nobody else.
    let ours = unsafe { OwnedFd::from_raw_fd(ours) };
    // SAFETY: as above.
    let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
    Some((ours.into(), theirs.into()))
}

#[test]
fn on_a_terminal_the_table_is_drawn_again_in_place_and_stays_at_the_end() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let Some((mut ours, theirs)) = terminal() else {
        return;
    };
    let words = ["--wait", "--threads", "1", "--calls", "40"];
    let mut running = Running::start(&program, &words);
    let mut child = crate::target::own()
        .args(["stat", "-e", ":counted_*", "--top", "2", "-p"])
        .arg(running.pid.to_string())
        .env("TERM", "xterm")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(theirs)
        .stderr(Stdio::null())
        .spawn()
        .expect("capriole starts");
    until_recording(running.pid);
    running.say("go");
    assert_eq!(running.line(), "ok calls=43");
    let mut shown = String::new();
    let mut until = |wanted: &str, shown: &mut String| {
        let mut part = [0; 4096];
        while !shown.contains(wanted) {
            let read = ours.read(&mut part).expect("the terminal is there");
            *shown += std::str::from_utf8(&part[..read]).expect("UTF-8");
        }
    };
    // It draws once with these calls, and then once more over that.
    until("40 ", &mut shown);
    until("A", &mut String::new());
    let pid = child.id() as i32;
    // SAFETY: sends a signal to a child of this test that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    assert!(child.wait().expect("it ends").success());
    let mut rest = String::new();
    until("never hit", &mut rest);
    let (_, last) = rest.rsplit_once("\x1b[J").expect("it was cleared");
    let lines: Vec<&str> = last.lines().collect();
    assert!(lines[0].starts_with("calls  calls/s  event"), "{rest:?}");
    assert_eq!(lines[1].split_whitespace().next(), Some("40"), "{rest:?}");
    assert!(
        lines[1..].iter().all(|line| !line.contains('\x1b')),
        "{rest:?}"
    );
    running.say("end");
    assert!(running.child.wait().expect("it ends").success());
}

#[test]
fn what_cannot_be_counted_is_said() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let program = text(&program);
    for (words, wanted) in [
        (&["-e", ":no_such_function"][..], "no function"),
        (
            &["-e", ":counted_stubborn"],
            "breakpoints are used only on request (`--breakpoints`)",
        ),
        (
            &["--interval", "10us", "-e", ":counted_work"],
            "at least 1ms",
        ),
        (
            &["--keys", "0", "-e", ":counted_work"],
            "a number from 1 to 1048576 is needed",
        ),
        (&["--top", "0", "-e", ":counted_work"], "a number from 1 on"),
    ] {
        let output = stat(&[words, &["--", program]].concat());
        assert!(!output.status.success(), "{}", told(&output));
        assert!(output.stdout.is_empty(), "{}", told(&output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(wanted), "{said}");
    }
}

/// A word that is neither an aggregate nor readable data is not ignored.
#[test]
fn unknown_words_are_refused() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &["-g"]) else {
        return;
    };
    let stat = |event: &str| {
        let program = program.to_str().expect("UTF-8");
        capriole(&["stat", "-e", event, "--", program, "--calls", "5"])
    };
    for (event, reason) in [
        (":counted_work nosuchvar", "`nosuchvar` is no aggregate"),
        (
            ":counted_work count",
            "`count` is read as the name of a variable; the aggregate is written `count(...)`",
        ),
        (":counted_work sum($arg1) nosuchvar", "`nosuchvar`"),
    ] {
        let output = stat(event);
        let said = told(&output);
        assert_eq!(output.status.code(), Some(1), "{event}: {said}");
        assert!(said.contains(reason), "{event}: {said}");
    }
    // `stat` ignores a field that only `record` would show.
    let output = stat(":counted_work sum($arg1) seq=$arg2");
    assert!(output.status.success(), "{}", told(&output));
}
