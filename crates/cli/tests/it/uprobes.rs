//! Kernel uprobes that appear at places with probes, and go away again, in every order relative
//! to the end of the recording. The program verifies its own answers.
//!
//! Text that is covered has no uprobes. Where it is not, because the program has locked memory, a uprobe
//! writes over the probe.

use crate::programs::{Compiler, build, copied};
use crate::target::{
    HANGS, OwnText, Probes, Reach, Recording, Running, assert_no_session, assert_text_is_the_files,
    attach_to, capriole, is_root, told,
};
use crate::traces::{Background, events, recorder, scratch, summary, text, until_looked};
use crate::uprobe::Uprobe;
use capriole_event::EventSpec;
use capriole_object::Objects;
use capriole_patch::attach::{self, Attached, Beside, How, Probe, SiteState};
use capriole_planner::resolve::resolve;
use capriole_proc::process::Process;
use capriole_testkit::effort::rounds;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const NAMES: [&str; 4] = ["single", "several", "nop", "nops"];
/// The order in which uprobes are added: once the last one is visible, all are.
const COMING: [&str; 4] = ["nops", "nop", "several", "single"];
const EVENTS: [&str; 4] = [":single", ":several", ":nop", ":nops"];

/// Makes a copy of the program for one test: uprobes belong to the file, for all processes.
fn program(directory: &tempfile::TempDir) -> Option<PathBuf> {
    let program = build(Compiler::Gcc, "beside.c", &[])?;
    let copy = directory.path().join("beside");
    copied(&program, &copy);
    Some(copy)
}

/// Returns file offset and address of the program's own functions.
fn places(process: &Process) -> Vec<(u64, u64)> {
    let objects = Objects::of_process(process).expect("the objects");
    let place = |event: &&str| {
        let spec = EventSpec::parse(event).expect("an event");
        let site = resolve(&objects, &spec.into())
            .expect("a function")
            .remove(0);
        (site.file_offset, site.address)
    };
    EVENTS.iter().map(place).collect()
}

/// Adds uprobes at the functions with these names.
fn uprobes(program: &Path, process: &Process, names: &[&str]) -> Option<Vec<Uprobe>> {
    let places = places(process);
    let at = |name: &&str| {
        let index = NAMES.iter().position(|n| n == name).expect("a name");
        Uprobe::at(program, places[index].0)
    };
    names.iter().map(at).collect()
}

fn recording(running: &Running) -> Recording {
    let process = running.process();
    let probes = Probes::joined(&process, &EVENTS);
    attach_to(&process, &probes, 1 << 20)
}

fn bytes(process: &Process, address: u64) -> [u8; 5] {
    let mut bytes = [0; 5];
    assert_eq!(process.read_memory(address, &mut bytes).expect("bytes"), 5);
    bytes
}

fn call(running: &mut Running) {
    running.say("call");
    let line = running.line();
    running.assert_alive();
    assert_eq!(line, "called");
}

/// Waits until nothing of a jump is left at a function, only the uprobe's breakpoint.
fn until_taken_out(running: &mut Running, address: u64) {
    let process = running.process();
    let places = places(&process);
    let which = places.iter().position(|place| place.1 == address);
    let name = NAMES[which.expect("one of the functions")];
    let mut file = [0; 5];
    let program = std::fs::File::open(process.exe().expect("exe")).expect("a file");
    let offset = places[which.unwrap_or_default()].0;
    program.read_exact_at(&mut file, offset).expect("bytes");
    let started = Instant::now();
    loop {
        running.assert_alive();
        let mut now = [0; 5];
        // The program may have died of the fault that this test looks for.
        let _ = process.read_memory(address, &mut now);
        if now[1..] == file[1..] {
            return;
        }
        assert!(started.elapsed() < HANGS, "{name}: {now:02x?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A uprobe is added, the probe is removed at once, the uprobe is removed, and then the
/// recording ends.
#[test]
fn a_uprobe_that_comes_is_made_way_for_and_told_of() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &["locked"]);
    let process = running.process();
    let several = places(&process)[1].1;
    let before = bytes(&process, several);
    let recorder = Background::attach(&trace, running.pid, &EVENTS);
    assert_eq!(bytes(&process, several)[0], 0xe9);
    call(&mut running);
    let Some(uprobes) = uprobes(&program, &process, &["several"]) else {
        return;
    };
    assert_eq!(bytes(&process, several)[0], 0xcc, "the kernel asks nobody");
    until_taken_out(&mut running, several);
    call(&mut running);
    assert_eq!(uprobes[0].hits(), 100, "the tool sees every call");
    drop(uprobes);
    assert_eq!(bytes(&process, several), before);
    call(&mut running);
    let told = recorder.end();
    assert_text_is_the_files(&process, true);
    assert_no_session(&process);
    call(&mut running);
    running.finish();
    let sites = told["sites"].as_array().expect("sites");
    for site in sites {
        let is_it = site["function"] == "several" || site["event"] == "several";
        assert_eq!(site["state"] == "taken-out", is_it, "{site}");
        let reason = site["reason"].as_str().unwrap_or_default();
        assert_eq!(reason.contains("uprobe"), is_it, "{site}");
    }
    assert_eq!(told["taken_out"], 1, "{told}");
    let events = events(&trace);
    let count = |name: &str| events.iter().filter(|e| e["event"] == name).count();
    assert_eq!((count("single"), count("several")), (300, 100));
    let notes: Vec<&str> = events
        .iter()
        .filter(|e| e["event"] == "capriole:message")
        .filter_map(|e| e["text"].as_str())
        .collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("several") && notes[0].contains("uprobe"));
    assert!(summary(&trace)["warnings"].to_string().contains("several"));
}

/// The recording ends while the uprobe is there; then the uprobe is removed.
#[test]
fn a_uprobe_may_stay_longer_than_the_recording() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &["locked"]);
    let process = running.process();
    let recorder = Background::attach(&trace, running.pid, &EVENTS);
    let Some(uprobes) = uprobes(&program, &process, &COMING) else {
        return;
    };
    until_taken_out(&mut running, places(&process)[0].1);
    call(&mut running);
    let told = recorder.end();
    assert_eq!(told["taken_out"], 4, "{told}");
    assert_no_session(&process);
    call(&mut running);
    for uprobe in &uprobes {
        assert_eq!(uprobe.hits(), 200);
    }
    drop(uprobes);
    call(&mut running);
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// A jump within one instruction tolerates a uprobe while the program keeps running through it.
#[test]
fn the_program_may_run_what_lies_within_one_instruction() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &["locked"]);
    let process = running.process();
    let recorder = Background::attach(&trace, running.pid, &EVENTS);
    running.say("hot");
    assert_eq!(running.line(), "called");
    for _ in 0..2 {
        let Some(uprobes) = uprobes(&program, &process, &["single", "nop"]) else {
            return;
        };
        until_taken_out(&mut running, places(&process)[0].1);
        drop(uprobes);
        running.assert_alive();
    }
    running.say("cool");
    assert_eq!(running.line(), "called");
    recorder.end();
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// With `--one-instruction` the same holds for functions that begin with short instructions.
#[test]
fn one_instruction_is_enough_for_functions_that_begin_with_short_ones() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &["locked"]);
    let process = running.process();
    let words = EVENTS.iter().flat_map(|event| ["-e", event]);
    let words: Vec<&str> = std::iter::once("--one-instruction").chain(words).collect();
    let recorder = Background::attach_with(&trace, running.pid, &words);
    running.say("all hot");
    assert_eq!(running.line(), "called");
    for _ in 0..2 {
        let Some(uprobes) = uprobes(&program, &process, &COMING) else {
            return;
        };
        until_taken_out(&mut running, places(&process)[0].1);
        drop(uprobes);
        running.assert_alive();
    }
    running.say("cool");
    assert_eq!(running.line(), "called");
    let told = recorder.end();
    for site in told["sites"].as_array().expect("sites") {
        assert_ne!(site["tactic"], "region", "{site}");
    }
    assert_eq!(told["taken_out"], 4, "{told}");
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// A detach that comes too late finds half of each jump, and must leave nothing of it.
#[test]
fn detach_leaves_no_half_of_a_jump() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    for (goes_first, by_command) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut running = Running::start(&program, &["locked"]);
        let process = running.process();
        let recording = recording(&running);
        let Some(uprobes) = uprobes(&program, &process, &COMING) else {
            return;
        };
        let mut uprobes = Some(uprobes);
        if goes_first {
            uprobes.take();
            // Half of a jump: the program would fail if it ran now.
            let several = bytes(&process, places(&process)[1].1);
            assert_ne!(&several[1..], [0x48, 0x89, 0xfb, 0x48]);
            assert_eq!(several[0], 0x53);
        }
        let repaired = match by_command {
            true => {
                let output = capriole(&["detach", "--json", &running.pid.to_string()]);
                assert!(output.status.success(), "{}", told(&output));
                let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                told["repaired"].as_u64()
            }
            false => {
                let report = recording.attached.detach().expect("detach");
                assert!(!report.lingering && report.foreign == 0, "{report:?}");
                Some(report.repaired as u64)
            }
        };
        assert_eq!(repaired, Some(4));
        assert_no_session(&process);
        call(&mut running);
        if let Some(uprobes) = uprobes.take() {
            for uprobe in &uprobes {
                assert_eq!(uprobe.hits(), 100, "it goes on after the detach");
            }
        }
        call(&mut running);
        assert_text_is_the_files(&process, true);
        running.finish();
    }
}

/// Uprobes added and removed between two checks are noticed by the second check.
#[test]
fn a_look_takes_out_what_a_uprobe_left() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let mut running = Running::start(&program, &["locked"]);
    let process = running.process();
    let again = Probes::joined(&process, &EVENTS).probes.swap_remove(1);
    let mut recording = recording(&running);
    assert_eq!(
        recording.attached.look().expect("a look"),
        Beside::TakenOut(Vec::new())
    );
    let Some(gone) = uprobes(&program, &process, &["several", "nop"]) else {
        return;
    };
    drop(gone);
    let Beside::TakenOut(found) = recording.attached.look().expect("a look") else {
        panic!("no guard was touched");
    };
    let hows: Vec<(usize, How)> = found.iter().map(|d| (d.probe, d.how)).collect();
    assert_eq!(hows.len(), 2, "{hows:?}");
    assert!(hows.contains(&(1, How::Restored)) && hows.contains(&(2, How::Restored)));
    let state = |at: usize| recording.attached.outcome(at).expect("a site").state;
    assert_eq!(
        [0, 1, 2, 3].map(state),
        [
            SiteState::Final,
            SiteState::TakenOut,
            SiteState::TakenOut,
            SiteState::Final
        ]
    );
    call(&mut running);
    assert_eq!(
        recording.attached.look().expect("a look"),
        Beside::TakenOut(Vec::new())
    );
    // One that was disarmed then does not come back with another probe at its place.
    recording.attached.disarm(&[1]).expect("disarmed");
    let again = recording.attached.add(vec![again]).expect("added").start;
    let outcome = |at: usize| recording.attached.outcome(at).map(|site| site.state);
    assert_eq!(outcome(again), Ok(SiteState::Final));
    call(&mut running);
    let calls = recording.detach().expect("nothing is lost");
    assert_eq!(
        calls.len(),
        200 + 200 + 100,
        "of the two that are left, and the new one"
    );
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// A library that is unloaded and loaded again at its address holds the file's bytes. A change that comes before
/// the next look finds that, and the look tells of it.
#[test]
fn a_change_before_the_next_look_finds_what_the_look_would() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let process = running.process();
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open(process.proc_path("mem"));
    let memory = memory.expect("memory of a child");
    let tid = running.pid as i32;
    let nothing = Beside::TakenOut(Vec::new());
    type Change = fn(&mut Attached, Probe, &attach::Running);
    let changes: [Change; 6] = [
        |attached, _, _| drop(attached.disarm(&[0]).expect("disarmed")),
        |attached, _, tid| drop(attached.disarm_running(&[0], tid).expect("disarmed")),
        |attached, _, _| assert_eq!(attached.arm(&[0]).expect("armed"), []),
        |attached, _, tid| assert_eq!(attached.arm_running(&[0], tid).expect("armed"), []),
        |attached, more, _| assert_eq!(attached.add(vec![more]).expect("added").len(), 1),
        |attached, more, tid| {
            assert_eq!(
                attached.add_running(vec![more], tid).expect("added").len(),
                1
            )
        },
    ];
    for (at, event) in EVENTS.iter().enumerate() {
        let address = places(&process)[at].1;
        let file = bytes(&process, address);
        let probe = || Probes::joined(&process, &[event]).probes.swap_remove(0);
        for (number, change) in changes.iter().enumerate() {
            let case = format!("{event}, change {number}");
            let (second, third) = (probe(), probe());
            let mut recording = attach_to(&process, &Probes::joined(&process, &[event]), 1 << 20);
            let attached = &mut recording.attached;
            let second = attached.add(vec![second]).expect("added").start;
            assert_eq!(attached.look().expect("a look"), nothing, "{case}");
            assert_ne!(bytes(&process, address), file, "{case}");
            memory.write_all_at(&file, address).expect("written");
            change(attached, third, &attach::Running { tid });
            let state = attached.outcome(second).expect("a site").state;
            // Where the first was armed again, or a third one added, the place is in use again.
            let expected = match number {
                0 | 1 => SiteState::TakenOut,
                _ => SiteState::Final,
            };
            assert_eq!(state, expected, "{case}");
            call(&mut running);
            let Ok(Beside::TakenOut(found)) = attached.look() else {
                panic!("{case}: no guard was touched");
            };
            let found: Vec<(usize, How)> = found.iter().map(|d| (d.probe, d.how)).collect();
            assert_eq!(
                found,
                [(0, How::Restored), (second, How::Restored)],
                "{case}"
            );
            assert_eq!(attached.look().expect("a look"), nothing, "{case}");
            recording.detach().expect("nothing is lost");
            assert_eq!(bytes(&process, address), file, "{case}");
        }
    }
    running.finish();
}

/// The kernel restores one byte of each jump in the children as well.
#[test]
fn a_look_takes_it_out_of_children_too() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let mut running = Running::start(&program, &["locked"]);
    let process = running.process();
    let mut recording = recording(&running);
    running.say("fork");
    assert_eq!(running.line(), "called");
    call(&mut running);
    let child = Process::others().find(|other| {
        let status = std::fs::read_to_string(other.proc_path("status"));
        let line = format!("PPid:\t{}\n", process.pid());
        status.is_ok_and(|status| status.contains(&line))
    });
    let child = child.expect("a child");
    let Some(gone) = uprobes(&program, &process, &["several", "nop"]) else {
        return;
    };
    drop(gone);
    let look = recording.attached.look().expect("a look");
    assert!(matches!(&look, Beside::TakenOut(found) if found.len() == 2));
    let places = places(&process);
    for address in [places[1].1, places[2].1] {
        assert_eq!(bytes(&child, address), bytes(&process, address));
    }
    call(&mut running);
    let calls = recording.detach().expect("nothing is lost");
    assert_eq!(calls.len(), 2 * 400 + 2 * 200);
    for process in [&child, &process] {
        assert_text_is_the_files(process, true);
    }
    running.finish();
}

/// A place that already has a uprobe is refused, and the others are probed.
#[test]
fn a_uprobe_that_was_there_first_is_left_alone() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &[]);
    let process = running.process();
    let Some(uprobes) = uprobes(&program, &process, &["several"]) else {
        return;
    };
    let pid = running.pid.to_string();
    let words = [
        "record",
        "-p",
        &pid,
        "--duration",
        "1ms",
        "-o",
        text(&trace),
    ];
    let output = capriole(&[&words[..], &["-e", ":several"]].concat());
    assert!(!output.status.success(), "{}", told(&output));
    let said = told(&output);
    assert!(said.contains("a uprobe"), "{said}");
    let output = capriole(&[&words[..], &["-e", ":s*"]].concat());
    assert!(output.status.success(), "{}", told(&output));
    call(&mut running);
    assert_eq!(uprobes[0].hits(), 100);
    drop(uprobes);
    call(&mut running);
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// bpftrace creates its uprobes through another interface.
#[test]
fn bpftrace_comes_and_goes() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    if Command::new("bpftrace").arg("--version").output().is_err() {
        println!("skipped: there is no bpftrace");
        return;
    }
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &["locked"]);
    let process = running.process();
    let several = places(&process)[1].1;
    let recorder = Background::attach(&trace, running.pid, &EVENTS);
    let script = format!("uprobe:{}:several {{ @ = count(); }}", program.display());
    let mut bpftrace = Command::new("bpftrace")
        .args(["-e", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let started = Instant::now();
    while bytes(&process, several)[0] != 0xcc {
        if let Ok(Some(status)) = bpftrace.try_wait() {
            println!("skipped: bpftrace ends with {status}");
            return;
        }
        assert!(started.elapsed() < HANGS, "no uprobe");
        std::thread::sleep(Duration::from_millis(10));
    }
    until_taken_out(&mut running, several);
    call(&mut running);
    // One signal is not always enough: bpftrace may still be starting.
    let started = Instant::now();
    while bpftrace.try_wait().expect("a child").is_none() {
        let signal = match started.elapsed() {
            late if late > HANGS => libc::SIGKILL,
            _ => libc::SIGINT,
        };
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(bpftrace.id() as i32, signal) }, 0);
        std::thread::sleep(Duration::from_millis(500));
    }
    call(&mut running);
    assert_eq!(recorder.end()["taken_out"], 1);
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// Text that is covered gets no uprobes; that is said, and they are there when the recording ends.
#[test]
fn what_comes_to_covered_text_waits_until_the_recording_ends() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    for ends in ["by itself", "by detach", "killed"] {
        let trace = directory.path().join(ends);
        let mut running = Running::start(&program, &[]);
        let process = running.process();
        // The kernel has mappings of its own for uprobes.
        let of_files = || {
            let maps = process.raw_maps().expect("maps").into_iter();
            maps.filter(|mapping| mapping.is_file()).collect::<Vec<_>>()
        };
        let maps = of_files();
        let returns = EVENTS.map(|event| format!("{event}%return"));
        let all: Vec<&str> = EVENTS
            .into_iter()
            .chain(returns.iter().map(String::as_str))
            .collect();
        let recorder = Background::attach(&trace, running.pid, &all);
        running.say("all hot");
        assert_eq!(running.line(), "called");
        let Some(uprobes) = uprobes(&program, &process, &COMING) else {
            return;
        };
        for (_, address) in places(&process) {
            assert_ne!(bytes(&process, address)[0], 0xcc, "{ends}: a uprobe's");
        }
        running.say("cool");
        assert_eq!(running.line(), "called");
        call(&mut running);
        let hits = |uprobes: &[Uprobe]| uprobes.iter().map(Uprobe::hits).sum::<u64>();
        assert_eq!(hits(&uprobes), 0, "{ends}");
        match ends {
            "by itself" => {
                until_looked(&trace);
                recorder.signal(libc::SIGINT);
                let output = recorder.output();
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(said.matches("put a uprobe at").count(), 4, "{said}");
                let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                assert_eq!(told["taken_out"], 0, "{told}");
                assert_eq!(told["unreached_uprobes"], 4, "{told}");
                let summary = summary(&trace);
                assert!(
                    summary["warnings"].to_string().contains("several"),
                    "{summary}"
                );
            }
            "by detach" => {
                let output = capriole(&["detach", &running.pid.to_string()]);
                assert!(output.status.success(), "{}", crate::target::told(&output));
                recorder.ended_by_itself();
            }
            _ => {
                recorder.signal(libc::SIGKILL);
                recorder.output();
                call(&mut running);
                assert_eq!(hits(&uprobes), 0, "{ends}");
                let output = capriole(&["detach", &running.pid.to_string()]);
                assert!(output.status.success(), "{}", crate::target::told(&output));
            }
        }
        assert_no_session(&process);
        call(&mut running);
        assert_eq!(hits(&uprobes), 400, "{ends}: all calls");
        drop(uprobes);
        call(&mut running);
        assert_text_is_the_files(&process, true);
        assert_eq!(of_files(), maps, "{ends}");
        running.finish();
    }
}

/// A program that calls the functions all the time, while uprobes and recordings come and go in any
/// order.
#[test]
fn uprobes_and_recordings_come_and_go_in_any_order() {
    come_and_go(rounds(3, 3, 50));
}

/// As above, for longer.
#[test]
#[ignore = "soak"]
fn uprobes_and_recordings_come_and_go_200_times() {
    come_and_go(rounds(50, 50, 500));
}

fn come_and_go(rounds: usize) {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let process = running.process();
    running.say("all hot");
    assert_eq!(running.line(), "called");
    for round in 0..rounds {
        for order in 0..4 {
            let when = format!("round {round}, order {order}");
            let mut recorded: Option<Recording> = None;
            let mut probed = None;
            for step in 0..4 {
                // Each of them comes before or after the other, and leaves before or after it.
                let is_recording = match step {
                    0 | 1 => (order & 1 == 0) == (step == 0),
                    _ => (order & 2 == 0) == (step == 2),
                };
                match (is_recording, step < 2) {
                    (true, true) => {
                        // A function that has a uprobe is refused.
                        let free = match probed {
                            Some(_) => &[":single", ":nops"][..],
                            None => &EVENTS,
                        };
                        let probes = Probes::joined(&process, free);
                        recorded = Some(attach_to(&process, &probes, 1 << 20));
                    }
                    (true, false) => {
                        let recording = recorded.take().expect("it is recorded");
                        let report = recording.attached.detach().expect("detach");
                        assert_eq!(report.foreign, 0, "{when}: {report:?}");
                    }
                    (false, true) => match uprobes(&program, &process, &["nop", "several"]) {
                        Some(uprobes) => probed = Some(uprobes),
                        None => return,
                    },
                    (false, false) => drop(probed.take()),
                }
                running.assert_alive();
            }
        }
    }
    running.say("cool");
    assert_eq!(running.line(), "called");
    assert_no_session(&process);
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// Attaches to the functions of an event. Returns the mappings from before as well.
fn attached_to(process: &Process, event: &str) -> (Vec<capriole_proc::maps::Mapping>, Recording) {
    let maps = process.raw_maps().expect("maps");
    let probes = Probes::of(process, &[event], Reach::Best);
    (maps, attach_to(process, &probes, 1 << 20))
}

/// More pages than are covered, or uncovered, in one stop: each has a cover of its own, or one with up to three
/// pages that lie between.
#[test]
fn many_pages_are_covered_and_uncovered() {
    for (stride, covers) in [("-DSTRIDE=16384", 1), ("-DSTRIDE=32768", 150)] {
        if let Some(program) = build(Compiler::Gcc, "scattered.c", &[stride]) {
            covered_and_uncovered(&program, covers);
        }
    }
}

fn covered_and_uncovered(program: &Path, covers: usize) {
    let mut running = Running::start(program, &[]);
    let process = running.process();
    let (maps, recording) = attached_to(&process, ":far_*");
    let covered = process.raw_maps().expect("maps");
    let of_the_program: Vec<_> = capriole_proc::maps::covers(&covered)
        .filter(|cover| {
            let parts = cover.belongs(&covered);
            parts.iter().all(|part| Path::new(&part.path) == program)
        })
        .collect();
    assert_eq!(of_the_program.len(), covers);
    let shown = |maps: Vec<_>| {
        let maps = maps.into_iter().filter(|m: &capriole_proc::maps::Mapping| {
            Path::new(&m.path) == program && m.perms.execute
        });
        maps.collect::<Vec<_>>()
    };
    assert_eq!(
        shown(process.maps().expect("maps")),
        shown(maps.clone()),
        "as the program has made it"
    );
    call(&mut running);
    let calls = recording.detach().expect("nothing is lost");
    assert_eq!(calls.len(), 150);
    assert_eq!(process.raw_maps().expect("maps"), maps);
    call(&mut running);
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// A page with a uprobe cannot be covered. So that another one does no harm there, jumps in it lie within one
/// instruction.
#[test]
fn a_page_with_a_uprobe_gets_no_jump_over_several_instructions() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &[]);
    let process = running.process();
    let Some(first) = uprobes(&program, &process, &["nop"]) else {
        return;
    };
    let recorder = Background::attach(&trace, running.pid, &[":several"]);
    let Some(second) = uprobes(&program, &process, &["several"]) else {
        return;
    };
    for _ in 0..20 {
        call(&mut running);
    }
    drop((first, second));
    let told = recorder.end();
    let site = &told["sites"][0];
    assert_ne!(site["tactic"], "region", "{told}");
    call(&mut running);
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// Where no jump within one instruction is possible beside a uprobe, a breakpoint is used if that is allowed.
#[test]
fn a_page_with_a_uprobe_gets_a_breakpoint_where_no_jump_is_safe() {
    let directory = scratch();
    let Some(built) = build(Compiler::Gcc, "hemmed.c", &["-no-pie"]) else {
        return;
    };
    let program = directory.path().join("hemmed");
    copied(&built, &program);
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &[]);
    let process = running.process();
    let objects = Objects::of_process(&process).expect("the objects");
    let spec = EventSpec::parse(":hemmed").expect("an event");
    let site = resolve(&objects, &spec.into()).expect("it").remove(0);
    // In the middle of what a jump would cover.
    let Some(inside) = Uprobe::at(&program, site.file_offset + 3) else {
        return;
    };
    let pid = running.pid.to_string();
    let refused = recorder(&trace, &["-p", &pid, "-e", ":hemmed"]).output();
    let refused = refused.expect("capriole starts");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(
        why.contains("another tool has a uprobe in the same page"),
        "{}",
        told(&refused)
    );
    assert!(
        why.contains("a breakpoint would be safe"),
        "{}",
        told(&refused)
    );
    call(&mut running);

    let words = ["--breakpoints", "-e", ":hemmed"];
    let recording = Background::attach_with(&trace, running.pid, &words);
    call(&mut running);
    recording.until_recorded();
    let Some(at_entry) = Uprobe::at(&program, site.file_offset) else {
        return;
    };
    for _ in 0..20 {
        call(&mut running);
    }
    assert_eq!((inside.hits(), at_entry.hits()), (2200, 2000));
    drop((inside, at_entry));
    let said = recording.end();
    assert_eq!(said["sites"][0]["tactic"], "int3", "{said}");
    call(&mut running);
    assert_text_is_the_files(&process, true);
    assert!(summary(&trace)["events"].as_u64() >= Some(100), "{said}");
    running.finish();
}

/// Returns the lines of a file of a process.
fn lines_of(process: &Process, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(process.proc_path(file)).expect("a file");
    text.lines().map(str::to_owned).collect()
}

/// Text that the program has locked in memory stays so, and session memory is in no core dump.
#[test]
fn locked_text_stays_locked_and_session_memory_is_not_dumped() {
    let Some(program) = build(Compiler::Gcc, "beside.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["locked"]);
    let process = running.process();
    let locked = |process| {
        let mut lines = lines_of(process, "status").into_iter();
        lines.find(|line| line.starts_with("VmLck:"))
    };
    let (before, maps) = (locked(&process), process.raw_maps().expect("maps"));
    let recording = recording(&running);
    let during = process.raw_maps().expect("maps");
    assert!(capriole_proc::maps::covers(&during).next().is_none());
    let smaps = lines_of(&process, "smaps");
    let names = (0..smaps.len()).filter(|at| smaps[*at].contains("/memfd:capriole"));
    let flags = names.filter_map(|at| smaps[at..].iter().find(|l| l.starts_with("VmFlags:")));
    let has = |flags: &str, flag| flags.split_whitespace().any(|f| f == flag);
    let shared: Vec<&String> = flags.filter(|flags| has(flags, "sh")).collect();
    assert!(!shared.is_empty(), "{smaps:#?}");
    assert!(shared.iter().all(|flags| has(flags, "dd")), "{shared:?}");
    call(&mut running);
    recording.detach();
    assert_eq!(locked(&process), before);
    assert_eq!(process.raw_maps().expect("maps"), maps);
    running.finish();
}

/// The program has lowered its limit for address space below what it has mapped.
#[test]
fn covers_go_where_nothing_more_may_be_mapped() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let Some(program) = build(Compiler::Gcc, "scattered.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let process = running.process();
    let (maps, recording) = attached_to(&process, ":far_1*");
    let limit = |current| {
        let limit = Rlimit {
            current,
            maximum: None,
        };
        let pid = Pid::from_raw(process.pid() as i32);
        prlimit(pid, Resource::As, limit).map(|_| ())
    };
    if limit(Some(4096)).is_err() {
        return println!("skipped: no limit can be set for a child");
    }
    recording.detach();
    call(&mut running);
    limit(None).expect("it can be taken back");
    assert_eq!(process.raw_maps().expect("maps"), maps);
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// Probes that are added without a pause, as a program adds them to itself: their pages are covered before.
#[test]
fn text_is_covered_before_a_breakpoint_is_written_to_it() {
    let Some(program) = build(Compiler::Gcc, "scattered.c", &[]) else {
        return;
    };
    let directory = scratch();
    let copy = directory.path().join("scattered");
    copied(&program, &copy);
    let mut running = Running::start(&copy, &[]);
    let process = running.process();
    let (maps, mut recording) = attached_to(&process, ":far_1");
    let more = Probes::of(&process, &[":far_77"], Reach::Best);
    let address = more.probes[0].shape.site;
    let before = bytes(&process, address);
    let tid = process.pid() as i32;
    let by = capriole_patch::attach::Running { tid };
    let added = recording.attached.add_running(more.probes.clone(), &by);
    let added = added.expect("it is added");
    assert_eq!(bytes(&process, address)[0], 0xcc, "for now");
    let Some(uprobe) = Uprobe::at(&copy, offset_of(&process, address)) else {
        return;
    };
    call(&mut running);
    let all: Vec<usize> = added.collect();
    recording.attached.optimise_probes(&all).expect("a jump");
    assert_eq!(bytes(&process, address)[0], 0xe9);
    call(&mut running);
    assert_eq!(uprobe.hits(), 0, "it waits");
    recording.detach();
    call(&mut running);
    assert_eq!(uprobe.hits(), 1);
    drop(uprobe);
    assert_eq!(bytes(&process, address), before);
    assert_text_is_the_files(&process, true);
    assert_eq!(process.raw_maps().expect("maps").len(), maps.len());
    running.finish();
}

/// Returns the file offset of an address.
fn offset_of(process: &Process, address: u64) -> u64 {
    let maps = process.maps().expect("maps");
    let mapping = maps
        .iter()
        .find(|m| m.contains(address))
        .expect("a mapping");
    mapping.offset + (address - mapping.start)
}

/// Starts the program in a PID namespace where `vm.memfd_noexec` is set so. The first process is that of
/// `unshare`. `None` if this machine has no such setting, or a stricter one.
fn with_noexec(program: &Path, level: &str) -> Option<(std::process::Child, Process)> {
    let setting = "/proc/sys/vm/memfd_noexec";
    let now = std::fs::read_to_string(setting).ok()?;
    (now.trim() <= level).then_some(())?;
    let set = format!("echo {level} > {setting} && exec \"$0\"");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.args(["sh", "-c", &set, text(program)]);
    let (input, output) = (Stdio::piped(), Stdio::piped());
    let mut unshare = command.stdin(input).stdout(output).spawn().ok()?;
    let ready = line_of(&mut unshare);
    assert_eq!(ready, "ready 1\n");
    let pid = unshare.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let child = children.expect("a list").trim().parse().expect("one child");
    Some((unshare, Process::open(child).expect("it runs")))
}

fn line_of(child: &mut std::process::Child) -> String {
    let mut line = Vec::new();
    let output = child.stdout.as_mut().expect("a pipe");
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        output.read_exact(&mut byte).expect("it lives");
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("text")
}

/// `vm.memfd_noexec` forbids memfds that could be executed as programs. Ours are none.
#[test]
fn text_is_covered_where_no_memfd_may_be_a_program() {
    if !is_root("make namespaces") {
        return;
    }
    let Some(program) = build(Compiler::Gcc, "beside.c", &[]) else {
        return;
    };
    for level in ["1", "2"] {
        let Some((mut unshare, process)) = with_noexec(&program, level) else {
            println!("skipped: vm.memfd_noexec cannot be set to {level} here");
            continue;
        };
        let maps = process.raw_maps().expect("maps");
        let probes = Probes::joined(&process, &EVENTS);
        let recording = attach_to(&process, &probes, 1 << 20);
        let covered = process.raw_maps().expect("maps");
        assert!(capriole_proc::maps::covers(&covered).next().is_some());
        let input = unshare.stdin.as_mut().expect("a pipe");
        input.write_all(b"call\n").expect("it lives");
        assert_eq!(line_of(&mut unshare), "called\n");
        let calls = recording.detach().expect("nothing is lost");
        assert_eq!(calls.len(), 400, "level {level}");
        assert_eq!(process.raw_maps().expect("maps"), maps);
        drop(unshare.stdin.take());
        assert!(unshare.wait().expect("it ends").success());
    }
}

/// A page of which the program has a copy of its own, as a uprobe leaves it on older kernels, is covered
/// if it holds what the file holds.
#[test]
fn a_copy_that_holds_what_the_file_holds_is_covered() {
    let directory = scratch();
    let Some(program) = program(&directory) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let process = running.process();
    OwnText::of(&process, &program).restore();
    let page = places(&process)[1].1 / 4096 * 4096;
    let is_own = || process.has_own_copies(&[page]).expect("pages")[0];
    assert!(is_own());
    let recording = recording(&running);
    let Some(uprobes) = uprobes(&program, &process, &COMING) else {
        return;
    };
    assert_ne!(bytes(&process, places(&process)[1].1)[0], 0xcc);
    call(&mut running);
    recording.attached.detach().expect("detach");
    call(&mut running);
    assert_eq!(uprobes[1].hits(), 100);
    drop(uprobes);
    assert_text_is_the_files(&process, true);
    running.finish();
}

/// Returns where memory differs from the file: (address, file offset) of each first byte.
fn changed(process: &Process, program: &Path) -> Vec<(u64, u64)> {
    let file = std::fs::read(program).expect("the file");
    let maps = process.maps().expect("maps");
    let text = maps.iter().filter(|m| m.perms.execute && m.is_file());
    let text = text.filter(|m| Path::new(&m.path) == program);
    let mut changed: Vec<(u64, u64)> = Vec::new();
    for mapping in text {
        let mut now = vec![0; (mapping.end - mapping.start) as usize];
        process
            .read_memory(mapping.start, &mut now)
            .expect("memory");
        for (at, byte) in now.iter().enumerate() {
            let offset = mapping.offset + at as u64;
            let address = mapping.start + at as u64;
            let is_other = file.get(offset as usize).is_some_and(|b| b != byte);
            let near = changed.last().is_some_and(|(last, _)| address - last < 16);
            if is_other && !near {
                changed.push((address, offset));
            }
        }
    }
    changed
}

/// A static program contains the calls that create threads in its own file, and so has the
/// guards there: a uprobe at one of them, if its text cannot be covered, ends the recording.
#[test]
fn a_uprobe_at_a_guard_ends_the_recording() {
    at_guards(false);
}

/// In covered text it has no effect on the recording.
#[test]
fn a_uprobe_at_a_covered_guard_waits() {
    at_guards(true);
}

fn at_guards(is_covered: bool) {
    let directory = scratch();
    let Some(program) = build(Compiler::Gcc, "beside.c", &["-static"]) else {
        return;
    };
    let copy = directory.path().join("beside");
    copied(&program, &copy);
    let trace = directory.path().join("t");
    let mut running = Running::start(&copy, &[]);
    let process = running.process();
    let own = (!is_covered).then(|| OwnText::of(&process, &copy));
    let before: Vec<(u64, u64)> = changed(&process, &copy);
    let recorder = Background::attach_with(
        &trace,
        running.pid,
        &["--duration", "300s", "-e", ":single"],
    );
    let changed = changed(&process, &copy);
    let single = places(&process)[0].1;
    let is_guard = |at: &&(u64, u64)| at.0 != single && !before.contains(at);
    let guards: Vec<_> = changed.iter().filter(is_guard).collect();
    assert!(!guards.is_empty());
    let mut uprobes = Vec::new();
    for (_, offset) in guards {
        let Some(uprobe) = Uprobe::at(&copy, *offset) else {
            return;
        };
        uprobes.push(uprobe);
    }
    let hits = || uprobes.iter().map(Uprobe::hits).sum::<u64>();
    let make_a_thread = |running: &mut Running| {
        running.say("hot");
        assert_eq!(running.line(), "called");
        running.say("cool");
        assert_eq!(running.line(), "called");
    };
    if is_covered {
        make_a_thread(&mut running);
        assert_eq!(hits(), 0);
        let told = recorder.end();
        assert_eq!(told["ended"], "requested", "{told}");
    } else {
        let told = recorder.ended_by_itself();
        assert_eq!(told["ended"], "disturbed", "{told}");
    }
    assert_no_session(&process);
    // Threads begin and end at the uprobe.
    make_a_thread(&mut running);
    assert!(hits() > 0, "the thread came by there");
    drop(uprobes);
    call(&mut running);
    if let Some(own) = own {
        own.restore();
    }
    assert_text_is_the_files(&process, true);
    running.finish();
}
