//! Helpers to record traces and to read them with the command's own `report`.

#![allow(dead_code)] // each test uses a part

use crate::target::{capriole, told, until};
use capriole_host::{Host, TargetError};
use capriole_ledger::{Entry, Ledger};
use capriole_proc::process::Process;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use capriole_testkit::files::{scratch, text};

/// Returns the output of `report --summary --json` for a trace.
pub fn summary(trace: &Path) -> Value {
    let output = capriole(&["report", "--summary", "--json", text(trace)]);
    assert!(output.status.success(), "{}", told(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns the number of calls by event in a complete trace: ended, and without a lost event.
pub fn calls(trace: &Path) -> BTreeMap<String, u64> {
    let summary = summary(trace);
    assert_eq!(summary["complete"], true, "{summary}");
    for nothing in ["lost_events", "lost_packets", "damages"] {
        assert_eq!(summary[nothing], 0, "{nothing}: {summary}");
    }
    let events = summary["by_event"].as_array().expect("a list");
    let name = |e: &Value| e["event"].as_str().expect("a name").to_owned();
    let by_event: BTreeMap<_, _> = events
        .iter()
        .map(|e| (name(e), e["calls"].as_u64().expect("a number")))
        .collect();
    assert_eq!(
        by_event.len(),
        events.len(),
        "two events of one name: {summary}"
    );
    by_event
}

/// Returns the events of a trace, as `report --json` prints them.
pub fn events(trace: &Path) -> Vec<Value> {
    let output = capriole(&["report", "--json", text(trace)]);
    assert!(output.status.success(), "{}", told(&output));
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let parse = |line| serde_json::from_str(line).expect("JSON");
    lines.lines().map(parse).collect()
}

/// Runs `capriole record -o TRACE ARGUMENTS`.
pub fn record<S: AsRef<OsStr>>(trace: &Path, arguments: &[S]) -> Output {
    recorder(trace, arguments)
        .output()
        .expect("capriole starts")
}

/// Returns that command, not yet started.
pub fn recorder<S: AsRef<OsStr>>(trace: &Path, arguments: &[S]) -> Command {
    let mut command = crate::target::own();
    command.args(["record", "-o"]).arg(trace).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Splits what `stat --json -- PROGRAM` printed, which must have succeeded: what the program printed,
/// and the JSON behind it.
pub fn told_by_stat(output: &Output) -> (String, Value) {
    assert!(output.status.success(), "{}", told(output));
    let both = String::from_utf8_lossy(&output.stdout);
    let json = both.trim_end().rfind('\n').map_or(0, |at| at + 1);
    let (own, json) = both.split_at(json);
    let json = serde_json::from_str(json).expect("JSON is the last line");
    (own.to_owned(), json)
}

/// Returns the lines `NAME VALUE` that a program printed about its calls.
pub fn pairs(output: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = output.lines().filter_map(|line| line.split_once(' '));
    pairs.filter(|(name, _)| !matches!(*name, "ok" | "ready"))
}

/// Counts an event of a program with `stat --json`, and returns the table.
pub fn counts_of(event: &str, program: &Path) -> Value {
    let output = capriole(&["stat", "--json", "-e", event, "--", text(program)]);
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    // The program may print lines of its own before.
    let last = said.lines().last().expect("a line");
    serde_json::from_str(last).expect("JSON")
}

/// Records a program from its start with `capriole record -o TRACE ARGUMENTS -- PROGRAM WORDS`,
/// which must succeed. Returns the output of both.
pub fn record_program(trace: &Path, arguments: &[&str], program: &Path, words: &[&str]) -> String {
    let mut command = recorder(trace, arguments);
    let output = command.arg("--").arg(program).args(words).output();
    let output = output.expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Records an event of a program from its start, and checks what the program prints. Returns the arguments of
/// each hit.
pub fn arguments_in(program: &Path, event: &str, output: &str) -> Vec<Value> {
    let directory = scratch();
    let trace = directory.path().join("t");
    assert_eq!(record_program(&trace, &["-e", event], program, &[]), output);
    let all = events(&trace);
    all.iter().map(|event| event["arguments"].clone()).collect()
}

/// Records the example of markers, which serves requests until it is told to end: as soon as the trace is
/// such.
pub fn record_shop(
    trace: &Path,
    arguments: &[&str],
    program: &Path,
    mut is_enough: impl FnMut(&Path) -> bool,
) {
    // So many seconds, or until SIGALRM.
    let mut command = recorder(
        trace,
        &[arguments, &["--", text(program), "100000"]].concat(),
    );
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("capriole starts");
    let mut printed = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    printed.read_line(&mut line).expect("text");
    let pid = line.split(' ').nth(1).and_then(|pid| pid.parse().ok());
    let pid: i32 = pid.unwrap_or_else(|| panic!("{line:?}"));
    until("the trace has enough", || {
        trace.join("metadata").exists() && is_enough(trace)
    });
    // SAFETY: sends a signal to the program, which its recorder waits for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGALRM) }, 0);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", told(&output));
}

/// Returns the number of calls that a program has counted and printed at its end: `ok calls=N`.
pub fn counted(said: &str) -> u64 {
    let (_, number) = said.rsplit_once("calls=").expect("it counts");
    number.trim().parse().expect("a number")
}

/// Returns the number of calls from the program's output, and the recorder's JSON, which share standard
/// output.
pub fn counted_and_told(output: &Output) -> (u64, Value) {
    assert!(output.status.success(), "{}", told(output));
    let said = String::from_utf8_lossy(&output.stdout);
    let (program, json) = said.split_once('{').expect("JSON");
    // The program may print its last line after the recorder's.
    let json = format!("{{{json}");
    let mut values = serde_json::Deserializer::from_str(&json).into_iter();
    let value = values.next().expect("JSON").expect("JSON");
    let rest = &json[values.byte_offset()..];
    (counted(&format!("{program}{rest}")), value)
}

/// Waits until a tracer that was just started has its probes in `pid`: their bytes are written, the
/// stop in which that is done is over, and a recorder has put its trace in its place.
#[track_caller]
pub fn until_recording(pid: u32) {
    let process = Process::open(pid).expect("it runs");
    until("somebody attaches", || is_recorded(&process));
}

/// True if a tracer has its probes in the process: see [`until_recording`].
fn is_recorded(process: &Process) -> bool {
    let maps = process.maps().expect("maps");
    let session = maps.iter().find(|m| capriole_patch::session::is_session(m));
    let armed = session.is_some_and(|m| {
        let mut state = [0; 4];
        let at = m.start + capriole_ring::layout::header::STATE as u64;
        process.read_memory(at, &mut state).is_ok_and(|n| n == 4)
            && u32::from_le_bytes(state) == capriole_ring::layout::State::Armed as u32
    });
    armed && has_begun(process)
}

/// True if the owner of each session in the process has written its probes.
fn has_begun(process: &Process) -> bool {
    let host = capriole_host::ptrace::host(process);
    let Ok(sessions) = capriole_patch::recover::find(&*host) else {
        return false;
    };
    let owners: Vec<u32> = sessions
        .iter()
        .filter_map(|session| session.owner)
        .collect();
    let begun = |owner| match keeps_a_trace(owner) {
        true => !has_unbegun_trace(owner),
        // Guards may be written in a stop before, and a stop may end before anything is written.
        false => are_written(&*host).unwrap_or(false) && !stops(owner, process),
    };
    // A session without an owner has been left behind: the next one removes it first.
    !owners.is_empty() && owners.into_iter().all(begun)
}

/// True if the process has probes, other than guards, and all that are noted have been written.
fn are_written(host: &dyn Host) -> Result<bool, TargetError> {
    let process = host.process();
    let remote = host.memory()?;
    let (mut probes, mut written) = (0, true);
    for ledger in Ledger::all(process.pid() as i32, &process.maps()?) {
        ledger.header(&remote)?.journal(&remote, |entry| {
            let Entry::Change(change) = entry else { return };
            let mut bytes = vec![0; change.len];
            let read = remote.read(change.address, &mut bytes);
            written &= read.is_ok() && bytes == change.after[..change.len];
            probes += usize::from(!change.guard);
        })?;
    }
    Ok(probes > 0 && written)
}

fn keeps_a_trace(owner: u32) -> bool {
    let line = std::fs::read(format!("/proc/{owner}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"record")
}

/// True if a recorder has its trace open under a temporary name, which it has until its probes are
/// written.
fn has_unbegun_trace(owner: u32) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{owner}/fd"));
    let descriptors = descriptors.into_iter().flatten().flatten();
    let mut open = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    open.any(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with('.') && name.ends_with(".new")
    })
}

/// Waits until a recorder has looked at the program's threads and children once more: as it does before
/// it brings the trace's description up to date, about each second. The first of two such moments may
/// have followed an earlier look.
pub fn until_looked(trace: &Path) {
    let description = trace.join("info/capriole.json");
    let modified = || {
        std::fs::metadata(&description)
            .and_then(|file| file.modified())
            .ok()
    };
    for _ in 0..2 {
        let before = modified();
        until("the trace is described anew", || modified() != before);
    }
}

/// True if a thread of `process` is traced by `owner`, or may be.
fn stops(owner: u32, process: &Process) -> bool {
    let own = threads_of(owner);
    tracers(process).any(|tracer| own.contains(&tracer))
}

/// Returns the tracers of the threads of a process.
pub fn tracers(process: &Process) -> impl Iterator<Item = u32> {
    let threads = process.threads().unwrap_or_default().into_iter();
    let statuses = threads.filter_map(|tid| process.thread_status(tid).ok());
    let tracers = statuses.map(|status| status.tracer);
    tracers.filter(|tracer| *tracer != 0)
}

fn threads_of(owner: u32) -> Vec<u32> {
    let owner = Process::open(owner);
    owner.and_then(|owner| owner.threads()).unwrap_or_default()
}

/// Returns the number of bytes in the streams of a trace.
fn size(trace: &Path) -> u64 {
    let entries = std::fs::read_dir(trace).into_iter().flatten().flatten();
    let streams = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("cpu"));
    let sizes = streams.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

/// A recorder that has attached to a process and records in the background.
pub struct Background {
    child: std::process::Child,
    pub trace: PathBuf,
}

impl Background {
    /// Attaches to `pid`; returns when its probes are there.
    pub fn attach(trace: &Path, pid: u32, events: &[&str]) -> Background {
        let words: Vec<&str> = events.iter().flat_map(|event| ["-e", event]).collect();
        Background::attach_with(trace, pid, &words)
    }

    /// Like [`Background::attach`], with these words on the command line.
    pub fn attach_with(trace: &Path, pid: u32, words: &[&str]) -> Background {
        let pid_text = pid.to_string();
        let arguments = [&["--json", "-p", &pid_text], words].concat();
        Background::of(recorder(trace, &arguments), pid)
    }

    /// Runs a recorder of `pid` with `--json`, and returns when its probes are there.
    pub fn of(command: Command, pid: u32) -> Background {
        let mut background = Background::started(command);
        let process = Process::open(pid).expect("it runs");
        let mut attached = false;
        until("the recorder attaches", || {
            attached = is_recorded(&process);
            attached || background.child.try_wait().expect("a child").is_some()
        });
        if !attached {
            let output = background.child.wait_with_output().expect("it has ended");
            panic!("the recorder has ended:\n{}", told(&output));
        }
        background
    }

    /// Starts a recorder, which need not have attached yet.
    pub fn started(mut command: Command) -> Background {
        let trace = command.get_args().nth(2).map(PathBuf::from);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Background {
            child: child.expect("capriole starts"),
            trace: trace.expect("record -o TRACE"),
        }
    }

    /// Waits until its trace has an event.
    pub fn until_recorded(&self) {
        until("something is recorded", || size(&self.trace) > 0);
    }

    /// Waits until its trace has further events: the recorder has gone through its loop meanwhile.
    pub fn until_recorded_again(&self) {
        let before = size(&self.trace);
        until("more is recorded", || size(&self.trace) > before);
    }

    /// Ends it as Ctrl-C does. Returns its JSON.
    pub fn end(self) -> Value {
        self.end_by(libc::SIGINT)
    }

    pub fn end_by(self, signal: i32) -> Value {
        self.signal(signal);
        self.ended_by_itself()
    }

    /// Returns what the recorder is doing.
    pub fn state(&self) -> capriole_proc::process::State {
        let recorder = Process::open(self.child.id()).expect("a child");
        recorder.status().expect("a child").state
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Waits for its end; returns what it has said.
    pub fn output(self) -> Output {
        self.child.wait_with_output().expect("it ends")
    }

    /// Waits for its end, which something else causes. Returns its JSON.
    pub fn ended_by_itself(self) -> Value {
        let output = self.output();
        assert!(output.status.success(), "{}", told(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}
