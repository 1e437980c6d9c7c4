//! Threads that are killed while they record, or leave by `siglongjmp`, keep the lane they
//! write to forever. It must be reclaimed, so that later events are recorded.

use crate::programs::{Compiler, build};
use crate::target::*;
use capriole_patch::session::is_session;
use capriole_proc::process::Process;
use capriole_ring::layout::{ALL_LANES, LANES, header, stream};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

/// Number of calls of the recorded function.
const AFTER: u64 = 20_000;

/// Returns how many lanes of each CPU are held in a process.
fn held(process: &Process) -> Vec<usize> {
    let maps = process.maps().expect("maps");
    let session = maps.iter().find(|m| is_session(m)).expect("a session");
    let read = |at: usize, len: usize| {
        let mut bytes = vec![0; len];
        let read = process.read_memory(session.start + at as u64, &mut bytes);
        assert_eq!(read.expect("session memory"), len);
        bytes
    };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let cpus = word(&read(header::CPUS, 8)) as u32 as usize;
    let packets = word(&read(header::PACKETS_OFFSET, 8)) as usize;
    // The streams are right before the packets.
    let size = ALL_LANES * cpus * stream::SIZE;
    let streams = read(packets - size, size);
    let is_held = |lane: usize, cpu: usize| {
        let at = (lane * cpus + cpu) * stream::SIZE + stream::LOCK;
        word(&streams[at..]) != 0
    };
    let of = |cpu| (1..LANES).filter(|lane| is_held(*lane, cpu)).count();
    (0..cpus).map(of).collect()
}

/// Records the program in this mode; most of its calls at the end, which it makes when at most
/// `most` lanes of each CPU are held, must be in the trace.
fn later_events_are_recorded(mode: &str, most: Option<usize>) {
    let Some(program) = build(Compiler::Gcc, "jumped.c", &["-O1", "-pthread"]) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace").display().to_string();
    let program = program.display().to_string();
    let mut command = command(&[
        "record",
        "--json",
        "--buffer-size",
        "32M",
        "-o",
        &trace,
        "-e",
        ":jumped_before text=+0($arg1):string",
        "-e",
        ":jumped_after text=+0($arg1):string n=$arg2",
        "--",
        &program,
        mode,
    ]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    let mut child = command.spawn().expect("capriole starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    };
    let ready = line();
    let pid = ready.strip_prefix("ready ").expect("its number");
    if let Some(most) = most {
        assert_eq!(line(), "left");
        let process = Process::open(pid.parse().expect("a number")).expect("it runs");
        until("lanes are released", || {
            held(&process).iter().all(|held| *held <= most)
        });
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"go\n").expect("it lives");
    }
    let mut text = String::new();
    output.read_to_string(&mut text).expect("text");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}: {text}");
    assert!(text.starts_with("ok left="), "{text}");
    let said = text.lines().last().expect("a line");
    let said: Value = serde_json::from_str(said).expect("JSON");
    let (lost, busy) = (&said["lost"], &said["lost_busy"]);
    assert!(busy.as_u64() <= lost.as_u64(), "{said}");
    let report = capriole(&["report", "--summary", "--json", &trace]);
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let events = report["by_event"].as_array().expect("events");
    let calls = events
        .iter()
        .find(|event| event["event"] == "jumped_after")
        .and_then(|event| event["calls"].as_u64());
    let calls = calls.unwrap_or(0);
    println!("{mode}: {calls} of {AFTER} recorded; lost {lost}, of those busy {busy}");
    assert!(
        calls <= AFTER && calls * 100 >= AFTER * 95,
        "{calls}: {said}"
    );
}

#[test]
fn a_handler_that_jumps_away_leaves_lanes_to_its_thread() {
    later_events_are_recorded("alarm", None);
}

#[test]
fn a_handler_that_jumps_away_leaves_lanes_to_other_threads() {
    later_events_are_recorded("other", Some(LANES / 2));
}

#[test]
fn a_stack_that_overflows_leaves_lanes_to_others() {
    later_events_are_recorded("overflow", Some(0));
}

#[test]
fn children_that_are_killed_leave_lanes_to_others() {
    later_events_are_recorded("killed", Some(0));
}
