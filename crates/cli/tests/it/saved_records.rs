//! Recorded events reach the trace even if the recorder is killed: `capriole detach`, and the
//! next `capriole record`, save the data that it had not written yet. Nothing appears twice and
//! nothing is missing: recorded plus lost events equal the calls.

use crate::programs::{Compiler, build};
use crate::target::{Running, assert_no_session, capriole, command, is_root, told};
use crate::traces::{events, record, recorder, scratch, summary, text, until_recording};
use capriole_patch::recover::find;
use capriole_patch::session::is_session;
use capriole_proc::process::Process;
use capriole_ring::layout::{Geometry, header};
use capriole_testkit::effort::{Effort, Random, effort, rounds};
use capriole_testkit::steps::{Step, died, dies_at, few, firsts, has_stopped, reached, stops_at};
use capriole_testkit::waiting::{until, until_stopped};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

const EVENT: &str = ":saved_work thread=$arg1:u64 seq=$arg2:u64 text=+0($arg3):string";

/// Numbers of threads and of their calls, and microseconds behind each call.
type Work = (u64, u64, u64);

/// The program and its recorder.
struct Case {
    running: Running,
    directory: tempfile::TempDir,
    recorder: Option<Child>,
    /// Number of calls since the recorder attached.
    calls: u64,
}

impl Case {
    fn start() -> Option<Case> {
        let program = build(Compiler::Gcc, "saved.c", &["-pthread"])?;
        Some(Case {
            running: Running::start(&program, &[]),
            directory: scratch(),
            recorder: None,
            calls: 0,
        })
    }

    fn pid(&self) -> String {
        self.running.pid.to_string()
    }

    fn trace(&self) -> PathBuf {
        self.directory.path().join("trace")
    }

    /// Starts a recorder; returns when its probes are there.
    fn record(&mut self, options: &[&str]) {
        let pid = self.pid();
        let arguments = [&["-e", EVENT, "-p", &pid], options].concat();
        let mut command = recorder(&self.trace(), &arguments);
        let child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn();
        self.recorder = Some(child.expect("capriole starts"));
        until_recording(self.running.pid);
        self.calls = 0;
    }

    /// Makes each thread of the program do this many calls, with a pause of this many microseconds
    /// after each.
    fn ask(&mut self, (threads, calls, pause): Work) {
        self.running.say(&format!("{threads} {calls} {pause}"));
        self.calls += threads * calls;
    }

    fn call(&mut self, work: Work) {
        self.ask(work);
        assert_eq!(self.running.line(), "done");
    }

    /// Lets the recorder stand still: it writes nothing from here on.
    fn freeze(&self) {
        let recorder = self.recorder.as_ref().expect("a recorder").id();
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(recorder as i32, libc::SIGSTOP) }, 0);
        until_stopped(recorder);
    }

    /// Kills the recorder while these calls are made, of which it has written none. Returns when all
    /// are done.
    fn call_and_kill(&mut self, work: Work) {
        self.freeze();
        self.ask(work);
        self.kill();
        assert_eq!(self.running.line(), "done");
    }

    /// Kills the recorder some time after these calls began.
    fn call_and_kill_after(&mut self, work: Work, after: Duration) {
        self.ask(work);
        std::thread::sleep(after);
        self.kill();
        assert_eq!(self.running.line(), "done");
    }

    /// Waits until all calls are in the trace.
    fn until_written(&self) {
        until("all calls are written", || {
            summary(&self.trace())["events"] == self.calls
        });
    }

    fn kill(&mut self) {
        let mut child = self.recorder.take().expect("a recorder");
        child.kill().expect("a child");
        child.wait().expect("a child");
    }

    /// Returns a recording with some calls, whose recorder was killed.
    fn killed() -> Option<Case> {
        let mut case = Case::start()?;
        case.record(&[]);
        case.call_and_kill((2, 500, 0));
        Some(case)
    }

    fn detach(&self, options: &[&str]) -> Output {
        capriole(&[&["detach", &self.pid()], options].concat())
    }

    /// Detaches and saves into the trace, after which no session is left in the program.
    fn detach_and_save(&self) -> String {
        let output = self.detach(&["-o", text(&self.trace())]);
        assert!(output.status.success(), "{}", told(&output));
        assert_no_session(&self.running.process());
        told(&output)
    }

    fn finish(self) {
        self.running.finish();
    }
}

/// Checks that a trace is complete: it contains all calls, once and in order, except for those
/// reported as lost. Returns the number lost.
fn assert_whole(trace: &Path, calls: u64, when: &str) -> u64 {
    let summary = summary(trace);
    assert_eq!(summary["complete"], true, "{when}: {summary}");
    for nothing in ["lost_packets", "damages"] {
        assert_eq!(summary[nothing], 0, "{when}: {nothing}: {summary}");
    }
    let lost = summary["lost_events"].as_u64().expect("a number");
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut recorded, mut time) = (0, 0);
    for event in events(trace) {
        let Some(arguments) = event.get("arguments") else {
            continue;
        };
        let number = |name: &str| arguments[name].as_u64().expect("a number");
        let (thread, seq) = (number("thread"), number("seq"));
        assert_eq!(arguments["text"], format!("{thread}:{seq}"), "{when}");
        let next = next.entry(thread).or_default();
        assert!(seq >= *next, "{when}: {thread}:{seq} twice or late");
        assert!(lost > 0 || seq == *next, "{when}: {thread}:{next} missing");
        *next = seq + 1;
        let now = event["time_ns"].as_u64().expect("a time");
        assert!(now >= time, "{when}: {now} after {time}");
        time = now;
        recorded += 1;
    }
    assert_eq!(recorded + lost, calls, "{when}: {recorded} and {lost} lost");
    lost
}

/// Returns a source of moments: a different sequence for each number, and with each seed.
fn moments(number: u64) -> impl FnMut(u64) -> Duration {
    let mut random = Random::new(number);
    move |most| Duration::from_micros(random.below(most as usize * 1000) as u64)
}

const FAST: Work = (2, 10_000, 0);
/// Takes about a second and a half, so packets are handed over in parts meanwhile.
const SLOW: Work = (3, 150, 10_000);

/// Records killed at different moments, each with what the recorder had written by then: nothing,
/// whole packets, parts of a packet; in the soak killed at random moments as well. `check` is called
/// after each.
fn killed_at_moments(case: &mut Case, number: u64, mut check: impl FnMut(&mut Case, &str)) {
    let written: [(&str, &[Work]); 3] = [
        ("nothing", &[]),
        ("packets", &[FAST]),
        ("parts of a packet", &[(3, 20, 0), (3, 1, 0)]),
    ];
    for (what, works) in written {
        case.record(&[]);
        for work in works {
            case.call(*work);
            case.until_written();
        }
        case.call_and_kill(match works {
            [] | [_] => FAST,
            _ => (3, 50, 0),
        });
        check(case, &format!("killed after {what} was written"));
    }
    if effort() == Effort::Test {
        return;
    }
    let mut moment = moments(number);
    for (work, most) in [
        (FAST, 30),
        (SLOW, 1400),
        (FAST, 3),
        (SLOW, 1400),
        (FAST, 10),
    ] {
        case.record(&[]);
        let after = moment(most);
        case.call_and_kill_after(work, after);
        check(case, &format!("killed after {after:?}"));
    }
}

#[test]
fn detach_saves_what_a_killed_recorder_has_not_written() {
    let Some(mut case) = Case::start() else {
        return;
    };
    killed_at_moments(&mut case, 1, |case, when| {
        assert_eq!(summary(&case.trace())["complete"], false, "{when}");
        let when = format!("{when}: {}", case.detach_and_save());
        assert!(
            when.contains("that the killed recorder had not written ->"),
            "{when}"
        );
        assert_eq!(assert_whole(&case.trace(), case.calls, &when), 0, "{when}");
    });
    case.finish();
}

/// Nobody empties the buffer any more: events without room are counted.
#[test]
fn what_was_lost_after_the_kill_is_counted() {
    let Some(mut case) = Case::start() else {
        return;
    };
    for round in 0..rounds(1, 5, 20) {
        case.record(&["--buffer-size", "128K"]);
        case.call_and_kill(FAST);
        // The calls that follow fill the buffer; of the last ones some find room in a packet that is
        // not quite full.
        for work in [FAST, (2, 10, 0)] {
            case.call(work);
        }
        let when = format!("round {round}: {}", case.detach_and_save());
        let lost = assert_whole(&case.trace(), case.calls, &when);
        assert!(lost > 0 && when.contains("LOST"), "{when}");
    }
    case.finish();
}

#[test]
fn the_next_recorder_saves_it_before_the_trace_is_put_aside() {
    let Some(mut case) = Case::start() else {
        return;
    };
    let old = case.directory.path().join("trace.old");
    killed_at_moments(&mut case, 2, |case, when| {
        let output = recorder(&case.trace(), &["-e", EVENT, "--duration", "1ms", "-p"])
            .arg(case.pid())
            .output()
            .expect("capriole starts");
        let when = format!("{when}: {}", told(&output));
        assert!(output.status.success(), "{when}");
        assert!(
            when.contains("that the killed recorder had not written ->"),
            "{when}"
        );
        assert_eq!(assert_whole(&old, case.calls, &when), 0, "{when}");
        assert_eq!(assert_whole(&case.trace(), 0, &when), 0, "{when}");
        assert_no_session(&case.running.process());
    });
    case.finish();
}

/// The process that saves is killed as well, at one step after the other, including between
/// writing a packet to the trace and noting that. Then the next process saves.
#[test]
fn killed_while_it_is_saved() {
    let Some(mut case) = Case::start() else {
        return;
    };
    let left = |case: &mut Case| {
        case.record(&["--buffer-size", "256K"]);
        case.call_and_kill((2, 300, 0));
        command(&["detach", &case.pid(), "-o", text(&case.trace())])
    };
    let (steps, output) = reached(&mut left(&mut case));
    assert!(output.status.success(), "{}", told(&output));
    assert!(steps.len() > 8, "are debug assertions on? {steps:?}");
    assert_eq!(assert_whole(&case.trace(), case.calls, "saved"), 0);
    for step in firsts(&steps) {
        let mut command = left(&mut case);
        let trace = case.trace();
        let output = dies_at(&mut command, &step).output();
        let output = output.expect("capriole starts");
        let mut when = format!("killed at step {step}: {}", told(&output));
        if died(&output) {
            let again = case.detach(&["-o", text(&trace)]);
            when += &told(&again);
            let gone = when.contains("has no probes of capriole");
            assert!(again.status.success() || gone, "{when}");
        }
        assert_no_session(&case.running.process());
        assert_eq!(assert_whole(&trace, case.calls, &when), 0, "{when}");
    }
    case.finish();
}

/// Two recorders killed one after the other: the second before, while, and after it saves the
/// data that the first one left; in the soak also at random moments.
#[test]
fn killed_twice() {
    let Some(mut case) = Case::start() else {
        return;
    };
    let first_killed = |case: &mut Case| {
        case.record(&[]);
        case.call_and_kill((2, 2000, 0));
        let id = uuid(&case.trace()).expect("a trace");
        let mut second = recorder(&case.trace(), &["-e", EVENT, "-p"]);
        second.arg(case.pid());
        (id, second)
    };
    let second_killed = |case: &Case, id: &Value, when: &str| {
        let output = case.detach(&["-o", text(&case.trace())]);
        assert_no_session(&case.running.process());
        let old = case.directory.path().join("trace.old");
        let mut places = [case.trace(), old].into_iter();
        let first = places.find(|place| uuid(place).as_ref() == Some(id));
        let when = format!("{when}: {}", told(&output));
        let first = first.expect("it is there");
        assert_eq!(assert_whole(&first, case.calls, &when), 0);
    };
    for name in [
        "session found",
        "packet noted",
        "packet saved",
        "trace ended",
        "ledger begun",
        "all sites written",
    ] {
        let (id, mut second) = first_killed(&mut case);
        let step = Step {
            name: name.to_owned(),
            number: 1,
            at: 1,
        };
        let output = dies_at(&mut second, &step).output();
        let output = output.expect("capriole starts");
        let when = format!("killed at step {step}: {}", told(&output));
        assert!(died(&output), "are debug assertions on? {when}");
        second_killed(&case, &id, &when);
    }
    let mut moment = moments(3);
    for _ in 0..rounds(0, 4, 40) {
        let (id, mut second) = first_killed(&mut case);
        let second = second.stderr(Stdio::null()).spawn();
        case.recorder = Some(second.expect("capriole starts"));
        let after = moment(600);
        std::thread::sleep(after);
        case.kill();
        second_killed(&case, &id, &format!("killed after {after:?}"));
    }
    case.finish();
}

fn document(trace: &Path) -> Option<Value> {
    let json = fs::read(trace.join("info/capriole.json")).ok()?;
    serde_json::from_slice(&json).ok()
}

/// A recorder that is killed while it takes its probes out and completes its trace: every event is in the trace, or
/// can still be saved into it.
#[test]
fn a_recorder_killed_while_it_ends_loses_nothing() {
    let Some(mut case) = Case::start() else {
        return;
    };
    let recorder = |case: &Case, more: &[&str]| {
        let pid = case.pid();
        let words = [&["-e", EVENT, "-p", &pid], more].concat();
        let mut command = recorder(&case.trace(), &words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let (steps, output) = reached(&mut recorder(&case, &["--duration", "1ms"]));
    assert!(output.status.success(), "{}", told(&output));
    let begin = steps.iter().position(|step| step.name == "session found");
    let steps = firsts(&steps[begin.expect("are debug assertions on?")..]);
    let flushed = steps.iter().position(|step| step.name == "records flushed");
    assert!(
        flushed.is_some_and(|at| at > 3 && at + 3 < steps.len()),
        "{steps:?}"
    );
    let mut kept = 0;
    for step in &steps {
        let mut command = recorder(&case, &[]);
        let child = dies_at(&mut command, step).spawn();
        case.recorder = Some(child.expect("capriole starts"));
        until_recording(case.running.pid);
        case.calls = 0;
        case.call((2, 300, 0));
        let child = case.recorder.take().expect("a recorder");
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
        let ended = child.wait_with_output().expect("a child");
        let sessions = find(&*capriole_host::ptrace::host(&case.running.process()));
        let when = format!("{step}: {}", ended.status);
        if !sessions.expect("sessions").is_empty() {
            let output = case.detach(&[]);
            assert!(output.status.success(), "{when}: {}", told(&output));
            assert_no_session(&case.running.process());
        }
        let summary = summary(&case.trace());
        if summary["complete"] == true {
            assert_eq!(assert_whole(&case.trace(), case.calls, &when), 0, "{when}");
            continue;
        }
        // Its recorder was killed when all events were in the trace.
        assert!(died(&ended), "{when}");
        assert_eq!(
            (
                &summary["events"],
                &summary["lost_events"],
                &summary["damages"]
            ),
            (&case.calls.into(), &0.into(), &0.into()),
            "{when}: {summary}"
        );
        let report = told(&capriole(&["report", "--summary", text(&case.trace())]));
        assert!(
            report.contains("did not end this trace"),
            "{when}: {report}"
        );
        kept += 1;
    }
    assert!(kept > 0);
    case.finish();
}

/// Without `-o` the records go where the recorder had made its trace, wherever the command runs.
#[test]
fn they_go_where_the_recorder_made_its_trace() {
    let Some(mut case) = Case::killed() else {
        return;
    };
    let elsewhere = scratch();
    let pid = case.pid();
    let run = |words: &[&str]| {
        let mut command = command(words);
        let output = command.current_dir(elsewhere.path()).output();
        let output = output.expect("capriole starts");
        assert!(output.status.success(), "{}", told(&output));
        told(&output)
    };
    let saved = format!(" -> {}\n", text(&case.trace()));
    let said = run(&["detach", &pid]);
    assert!(said.contains(&saved), "{said}");
    assert_eq!(assert_whole(&case.trace(), case.calls, "detach"), 0);

    // A recording that was made by a relative path, and what comes next makes another trace, or none.
    for next in [
        &[
            "record",
            "-o",
            "other",
            "-e",
            EVENT,
            "--duration",
            "1ms",
            "-p",
            &pid,
        ][..],
        &["stat", "-e", ":saved_work", "--duration", "1ms", "-p", &pid],
    ] {
        fs::remove_dir_all(case.trace()).expect("a trace");
        let mut command =
            crate::target::command(&["record", "-o", "trace", "-e", EVENT, "-p", &pid]);
        let command = command.current_dir(case.directory.path());
        let child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn();
        case.recorder = Some(child.expect("capriole starts"));
        until_recording(case.running.pid);
        case.calls = 0;
        case.call_and_kill((2, 500, 0));
        let said = run(next);
        assert!(said.contains(&saved), "{said}");
        assert_eq!(assert_whole(&case.trace(), case.calls, next[0]), 0);
    }

    // Another recording has moved it aside.
    fs::remove_dir_all(case.trace()).expect("a trace");
    case.record(&[]);
    case.call_and_kill((2, 500, 0));
    let Some(other) = Case::start() else { return };
    let trace = case.trace();
    let words = [
        "record",
        "-o",
        text(&trace),
        "-e",
        EVENT,
        "--duration",
        "1ms",
    ];
    run(&[&words[..], &["-p", &other.pid()]].concat());
    run(&["detach", &pid]);
    let old = case.directory.path().join("trace.old");
    assert_eq!(assert_whole(&old, case.calls, "moved"), 0);
    other.finish();
    case.finish();
}

/// Checks that records which cannot be written stay in the program's memory until a later `detach` writes them,
/// whatever is run in between.
#[test]
fn they_wait_until_they_can_be_written() {
    let Some(mut case) = Case::start() else {
        return;
    };
    case.record(&[]);
    case.call_and_kill(FAST);
    let limited = |words: &[&str]| {
        let limit = ["-c", "ulimit -f 8 && exec \"$@\"", "sh"];
        let own = crate::target::own();
        let mut command = std::process::Command::new("sh");
        command.args(limit).arg(own.get_program()).args(words);
        command.env_clear().envs(
            own.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        command.output().expect("a shell")
    };
    let pid = case.pid();
    let other = case.directory.path().join("other");
    for words in [
        &["detach", &pid][..],
        &[
            "record",
            "-o",
            text(&other),
            "-e",
            EVENT,
            "--duration",
            "1ms",
            "-p",
            &pid,
        ],
        &["stat", "-e", ":saved_work", "--duration", "1ms", "-p", &pid],
        &["detach", "--json", &pid],
    ] {
        let output = limited(words);
        let said = told(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        if words.contains(&"--json") {
            let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(said["still_mapped"], true, "{said}");
            assert!(said["saved"]["unsaved_bytes"].as_u64() > Some(0), "{said}");
        } else {
            assert!(
                said.contains("stays in the program's memory"),
                "{words:?}: {said}"
            );
        }
        assert!(!other.exists(), "{said}");
    }
    case.call((1, 10, 0)); // not recorded any more
    case.calls -= 10;
    let when = case.detach_and_save();
    assert_eq!(assert_whole(&case.trace(), case.calls, &when), 0);
    case.finish();
}

#[test]
fn they_are_thrown_away_on_request() {
    let Some(case) = Case::killed() else {
        return;
    };
    let output = case.detach(&["--discard", "--json"]);
    assert!(output.status.success(), "{}", told(&output));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(said["saved"].is_null(), "{said}");
    assert_no_session(&case.running.process());
    assert_eq!(summary(&case.trace())["complete"], false);
    assert_eq!(summary(&case.trace())["events"], 0);
    case.finish();
}

/// The program can write another directory into its session: nothing is added to a trace that is not this one.
#[test]
fn a_program_cannot_name_another_trace() {
    let Some(first) = Case::killed() else {
        return;
    };
    let Some(mut second) = Case::start() else {
        return;
    };
    second.record(&[]);
    second.call_and_kill((1, 10, 0));
    let process = first.running.process();
    let maps = process.raw_maps().expect("maps");
    let ledger = maps
        .iter()
        .find(|m| m.path.to_string_lossy().contains("memfd:capriole-ledger"));
    let ledger = ledger.expect("a ledger").start;
    let memory = OpenOptions::new()
        .write(true)
        .open(process.proc_path("mem"));
    let mut path = text(&second.trace()).to_owned().into_bytes();
    path.push(0);
    let place = ledger + 5 * 4096;
    let mut before = vec![0; path.len()];
    process.read_memory(place, &mut before).expect("a path");
    assert!(
        before.starts_with(text(&first.trace()).as_bytes()),
        "{before:?}"
    );
    memory
        .expect("ours")
        .write_all_at(&path, place)
        .expect("written");
    let content = content(&second.trace());
    let output = first.detach(&[]);
    let said = told(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is the trace of another recording"), "{said}");
    assert_eq!(content, self::content(&second.trace()));
    first.detach_and_save();
    second.detach_and_save();
    assert_eq!(assert_whole(&second.trace(), second.calls, "second"), 0);
    first.finish();
    second.finish();
}

fn uuid(trace: &Path) -> Option<Value> {
    Some(document(trace)?["uuid"].clone())
}

/// A recording that is refused, before or while it attaches, leaves older traces as they are.
#[test]
fn a_refused_recording_leaves_older_traces_where_they_are() {
    let Some(mut case) = Case::start() else {
        return;
    };
    let pid = case.pid();
    let (trace, old) = (case.trace(), case.directory.path().join("trace.old"));
    for _ in 0..2 {
        let arguments = ["-e", EVENT, "--duration", "1ms", "-p", &pid];
        let output = record(&trace, &arguments);
        assert!(output.status.success(), "{}", told(&output));
    }
    let before = (uuid(&trace), uuid(&old));
    assert!(before.0.is_some() && before.1.is_some() && before.0 != before.1);
    let mut other = recorder(
        &case.directory.path().join("other"),
        &["-e", EVENT, "-p", &pid],
    );
    case.recorder = Some(other.stderr(Stdio::null()).spawn().expect("it starts"));
    until_recording(case.running.pid);
    for (event, why) in [
        (EVENT, "is already being recorded by capriole"),
        (":no_such_function", "no function `no_such_function`"),
    ] {
        let output = record(&trace, &["-e", event, "-p", &pid]);
        let said = told(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
        assert_eq!((uuid(&trace), uuid(&old)), before, "{said}");
        let entries = fs::read_dir(case.directory.path()).expect("a directory");
        assert_eq!(entries.count(), 3, "{said}");
    }
    case.kill();
    case.detach(&[]);
    case.finish();
}

/// At whatever step a recorder is interrupted: either its recording has begun, or it changes nothing.
/// In the soak also at random moments.
#[test]
fn an_interrupted_recording_has_begun_or_changes_nothing() {
    let Some(case) = Case::start() else {
        return;
    };
    let pid = case.pid();
    let (trace, old) = (case.trace(), case.directory.path().join("trace.old"));
    let command = |more: &[&str]| {
        let arguments = [&["-e", EVENT, "-e", "libc:str*", "-p", &pid], more].concat();
        let mut command = recorder(&trace, &arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let (steps, output) = reached(&mut command(&["--duration", "1ms"]));
    assert!(output.status.success(), "{}", told(&output));
    assert!(steps.len() > 20, "are debug assertions on? {steps:?}");
    let output = command(&["--duration", "1ms"]).output().expect("it starts");
    assert!(output.status.success(), "{}", told(&output));
    let send = |child: &Child, signal: i32| {
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    };
    let interrupted = |child: Child, before: (Option<Value>, Option<Value>), when: &str| {
        send(&child, libc::SIGINT);
        send(&child, libc::SIGCONT);
        let output = child.wait_with_output().expect("a child");
        let when = format!("{when}: {}", told(&output));
        match output.status.success() {
            true => {
                assert_eq!(uuid(&old), before.0, "{when}");
                assert_ne!(uuid(&trace), before.0, "{when}");
            }
            false => assert_eq!((uuid(&trace), uuid(&old)), before, "{when}"),
        }
        assert_no_session(&case.running.process());
    };
    // Those of the attach; a recording that nobody interrupts does not come to others.
    let attach = steps
        .iter()
        .position(|step| step.name == "all sites written");
    let steps = &steps[..=attach.expect("it attaches")];
    for step in few(steps) {
        let before = (uuid(&trace), uuid(&old));
        let child = stops_at(&mut command(&["--duration", "1ms"]), &step).spawn();
        let child = child.expect("capriole starts");
        // A step that is only taken where a thread of the program gets no processor may not be this time:
        // then the recording ends.
        if has_stopped(child.id()) {
            interrupted(child, before, &format!("at step {step}"));
        } else {
            let output = child.wait_with_output().expect("a child");
            assert!(output.status.success(), "{step}: {}", told(&output));
        }
    }
    let mut moment = moments(4);
    for round in 0..rounds(0, 20, 100) {
        let before = (uuid(&trace), uuid(&old));
        let child = command(&[]).spawn().expect("capriole starts");
        let after = moment(400);
        std::thread::sleep(after);
        interrupted(child, before, &format!("round {round}, after {after:?}"));
    }
    case.finish();
}

/// A forked child continues recording until it is detached as well, which is later.
#[test]
fn what_a_forked_child_records_is_saved_with_it() {
    let Some(mut case) = Case::start() else {
        return;
    };
    case.record(&[]);
    case.running.say("fork");
    assert_eq!(case.running.line(), "done");
    case.call_and_kill((1, 100, 0));
    case.running.say("join");
    assert_eq!(case.running.line(), "done");
    let when = case.detach_and_save();
    assert_whole(&case.trace(), case.calls + 100, &when);
    case.finish();
}

/// Returns the contents of all files in a directory.
fn content(trace: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for directory in [trace.to_path_buf(), trace.join("info")] {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                files.insert(path.clone(), fs::read(&path).expect("a file"));
            }
        }
    }
    files
}

/// Checks that `detach -o PLACE` is refused with the reason and changes nothing, neither the program
/// nor the trace nor `place`; and that `detach` without a trace saves the records into the trace, or does the
/// same if that is `place`.
fn refused(case: &Case, place: &Path, why: &str) {
    let before = content(&case.trace());
    let there = place.is_dir().then(|| content(place));
    let output = case.detach(&["-o", text(place)]);
    let said = told(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(why) && said.contains("nothing was changed"),
        "{why}: {said}"
    );
    let sessions = find(&*capriole_host::ptrace::host(&case.running.process())).expect("sessions");
    assert_eq!(sessions.len(), 1, "{said}");
    // Without a trace the records go where they belong, if that is possible.
    let output = case.detach(&[]);
    let said = told(&output);
    assert_eq!(place.is_dir().then(|| content(place)), there, "{said}");
    if place != case.trace() {
        assert!(output.status.success(), "{said}");
        assert_eq!(assert_whole(&case.trace(), case.calls, &said), 0);
        assert_no_session(&case.running.process());
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(why) && said.contains("nothing was changed"),
        "{said}"
    );
    let output = case.detach(&["--discard"]);
    assert!(output.status.success(), "{}", told(&output));
    assert_no_session(&case.running.process());
    assert_eq!(content(&case.trace()), before, "{said}");
    assert_eq!(summary(&case.trace())["complete"], false);
}

#[test]
fn nothing_is_saved_into_what_is_not_the_trace() {
    for which in 0..5 {
        let Some(mut case) = Case::killed() else {
            return;
        };
        let other = case.directory.path().join("other");
        match which {
            0 => refused(&case, &other, "does not exist"),
            1 => {
                fs::create_dir(&other).expect("a directory");
                fs::write(other.join("cpu0"), b"mine").expect("a file");
                refused(&case, &other, "is not a trace");
            }
            2 => {
                fs::write(&other, b"mine").expect("a file");
                refused(&case, &other, "is not a directory");
                assert_eq!(fs::read(&other).expect("a file"), b"mine");
            }
            3 => {
                // The trace of an earlier recording of the same process, whose recorder was killed too.
                case.detach(&[]);
                fs::rename(case.trace(), &other).expect("renamed");
                case.record(&[]);
                case.call_and_kill((1, 10, 0));
                refused(&case, &other, "is the trace of another recording");
            }
            _ => {
                // Another process holds the lock, as a recorder in another PID namespace does.
                let held = File::open(case.trace()).expect("a directory");
                held.lock().expect("a lock");
                refused(
                    &case,
                    &case.trace(),
                    "is being written by another recording",
                );
            }
        }
        case.finish();
    }
}

#[test]
fn nothing_is_saved_where_others_may_write() {
    let Some(case) = Case::killed() else {
        return;
    };
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(case.trace(), open).expect("it is ours");
    refused(&case, &case.trace(), "others may write to it");
    case.finish();
    if !is_root("give a directory to somebody else") {
        return;
    }
    let Some(case) = Case::killed() else {
        return;
    };
    std::os::unix::fs::chown(case.trace(), Some(65534), None).expect("chown");
    refused(&case, &case.trace(), "belongs to another user");
    case.finish();
    // It does not write through another user's link either.
    let Some(case) = Case::killed() else {
        return;
    };
    let link = case.directory.path().join("link");
    std::os::unix::fs::symlink(case.trace(), &link).expect("a link");
    std::os::unix::fs::lchown(&link, Some(65534), None).expect("lchown");
    let before = content(&case.trace());
    let output = case.detach(&["-o", text(&link)]);
    assert!(
        told(&output).contains("symbolic link of another user"),
        "{}",
        told(&output)
    );
    assert_eq!(content(&case.trace()), before);
    case.finish();
}

/// A trace marked as complete, while session memory claims to have more records for it.
#[test]
fn a_trace_that_is_complete_stays_as_it_is() {
    let Some(case) = Case::killed() else {
        return;
    };
    let json = case.trace().join("info/capriole.json");
    let ended = fs::read_to_string(&json).expect("JSON");
    let ended = ended.replace("\"complete\": false", "\"complete\": true");
    fs::write(&json, ended).expect("JSON");
    let before = content(&case.trace());
    let output = case.detach(&["-o", text(&case.trace())]);
    assert!(
        told(&output).contains("is complete: its recorder has ended it"),
        "{}",
        told(&output)
    );
    assert_eq!(content(&case.trace()), before);
    case.finish();
}

/// Returns the stream with the most data in it.
fn largest(trace: &Path) -> (PathBuf, u64) {
    let files = content(trace).into_iter();
    let streams = files.filter(|(path, _)| {
        let name = path.file_name().expect("a name");
        name.to_string_lossy().starts_with("cpu")
    });
    let largest = streams.max_by_key(|(_, bytes)| bytes.len());
    largest
        .map(|(path, bytes)| (path, bytes.len() as u64))
        .expect("a stream")
}

/// Killed in the middle of a write: the part that was written is cut off, and the packet is
/// taken from memory again.
#[test]
fn half_a_packet_is_cut_off_and_taken_again() {
    for cut in [1, 100] {
        let Some(mut case) = Case::start() else {
            return;
        };
        case.record(&[]);
        case.call((1, 20, 0));
        case.until_written();
        case.call_and_kill((2, 50, 0));
        let (path, len) = largest(&case.trace());
        let file = OpenOptions::new().write(true).open(path).expect("a stream");
        file.set_len(len - cut).expect("cut");
        let when = format!("cut by {cut}: {}", case.detach_and_save());
        assert_eq!(assert_whole(&case.trace(), case.calls, &when), 0, "{when}");
        case.finish();
    }
}

#[test]
fn a_damaged_stream_is_left_alone() {
    let Some(mut case) = Case::start() else {
        return;
    };
    case.record(&[]);
    case.call((2, 10, 0));
    case.until_written();
    case.call_and_kill((2, 10, 0));
    let (path, _) = largest(&case.trace());
    let file = OpenOptions::new().write(true).open(path).expect("a stream");
    file.write_all_at(&[0; 4], 0).expect("written");
    refused(
        &case,
        &case.trace(),
        "is damaged at byte 0: no packet starts here",
    );
    case.finish();
}

#[test]
fn nothing_is_left_of_a_process_that_has_ended() {
    let Some(mut case) = Case::killed() else {
        return;
    };
    let before = content(&case.trace());
    case.running.child.kill().expect("a child");
    case.running.child.wait().expect("a child");
    let output = case.detach(&["-o", text(&case.trace())]);
    assert_eq!(output.status.code(), Some(1));
    let told = told(&output);
    assert!(
        told.contains("no process has the number")
            && told.contains("had not yet written are lost with it"),
        "{told}"
    );
    assert_eq!(content(&case.trace()), before);
}

/// Returns the session memory of a process, to write into it.
fn session(process: &Process) -> (File, u64) {
    let maps = process.maps().expect("maps");
    let session = maps.iter().find(|m| is_session(m)).expect("a session");
    let path = process.proc_path("mem");
    let memory = OpenOptions::new().read(true).write(true).open(path);
    (memory.expect("its memory"), session.start)
}

#[test]
fn a_header_that_was_written_over_is_an_error_and_the_probes_go() {
    let values: [(usize, &[u8]); 6] = [
        (header::MAGIC, &[0; 8]),
        (header::VERSION, &[0xff; 4]),
        (header::CPUS, &[0xff; 4]),
        (header::CPUS, &[0xff, 0xff, 0, 0]),
        (header::PACKET_SIZE, &[0xff; 4]),
        (header::PACKETS_OFFSET, &[0xff; 8]),
    ];
    for (at, bytes) in values {
        let Some(case) = Case::killed() else {
            return;
        };
        let process = case.running.process();
        let (memory, base) = session(&process);
        memory
            .write_all_at(bytes, base + at as u64)
            .expect("written");
        let output = case.detach(&["-o", text(&case.trace())]);
        let told = told(&output);
        assert!(output.status.success(), "{told}");
        assert!(told.contains("the header of session memory"), "{told}");
        assert!(told.contains("the trace stays incomplete"), "{told}");
        assert_no_session(&process);
        assert_eq!(summary(&case.trace())["complete"], false);
        case.finish();
    }
}

/// Random numbers in the data that locates records damage only their own trace.
#[test]
fn noise_in_session_memory_spoils_its_own_trace_only() {
    let mut random = Random::new(0x0153);
    for round in 0..rounds(3, 10, 50) {
        let Some(case) = Case::killed() else {
            return;
        };
        let process = case.running.process();
        assert!(
            find(&*capriole_host::ptrace::host(&process)).expect("sessions")[0]
                .trace
                .is_some()
        );
        let (memory, base) = session(&process);
        let geometry = Geometry::for_buffer(64 << 20, 2, 1);
        for _ in 0..2000 {
            let state = random.number();
            // Free packets, controls and streams, but not the header.
            let at = 256 + state % (geometry.streams() as u64 - 256) / 8 * 8;
            let value = [0, 1, u64::MAX, state % 64, state][state as usize % 5];
            memory
                .write_all_at(&value.to_le_bytes(), base + at)
                .expect("written");
        }
        let output = case.detach(&["-o", text(&case.trace())]);
        assert!(output.status.success(), "round {round}: {}", told(&output));
        assert!(!told(&output).contains("panicked"), "{}", told(&output));
        assert_no_session(&process);
        let report = told(&capriole(&["report", "--summary", text(&case.trace())]));
        assert!(
            !report.contains("panicked") && report.contains("events in"),
            "{report}"
        );
        case.finish();
    }
}

/// The names of code that a killed recorder has not written are added with its last records.
#[test]
fn names_that_were_not_written_are_added() {
    let Some(program) = build(Compiler::Gcc, "stacked.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["waiting"]);
    let directory = scratch();
    let trace = directory.path().join("trace");
    let pid = running.pid.to_string();
    let mut command = recorder(&trace, &["-e", ":hit stack", "-p", &pid]);
    let child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = child.expect("capriole starts");
    until_recording(running.pid);
    running.say("go");
    running.line();
    until("the first is written", || summary(&trace)["events"] == 1);
    child.kill().expect("a child");
    child.wait().expect("a child");
    running.say("go");
    running.line();
    // It prints that line before the hit.
    running.say("done");
    running.line();
    let names = trace.join("info/names.jsonl.gz");
    let _ = fs::remove_file(&names);
    let output = capriole(&["detach", "-p", &pid]);
    assert!(output.status.success(), "{}", told(&output));
    running.finish();
    let found = events(&trace);
    assert_eq!(found.len(), 2);
    for event in found {
        for (frame, name) in ["hit", "point", "third"].into_iter().enumerate() {
            assert_eq!(event["stack"][frame]["symbol"], name, "{event}");
        }
    }
}
