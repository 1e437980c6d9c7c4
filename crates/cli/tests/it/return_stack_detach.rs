//! Return addresses are restored when the probes are taken out: in the middle of deep
//! recursion, while other threads call, by `capriole detach` after the tracer was killed at
//! any step, and in forked children. A replaced address that cannot be found on any stack
//! still returns to its caller.

use crate::traces;

use crate::programs::{Compiler, build};
use crate::target::*;
use capriole_proc::maps::Mapping;
use capriole_ring::layout::returns::{SLOTS, STUB_SIZE};
use capriole_testkit::effort::Random;
use capriole_testkit::steps::{Step, chosen, died, dies_at, few, reached};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use traces::{Background, events, recorder, scratch};

/// Bytes of the stubs and of the code page that they lead to.
const STUBS: u64 = 4096 + SLOTS * STUB_SIZE;
const EVENTS: [&str; 8] = [
    "-e",
    "r :stair ret=$retval",
    "-e",
    "r :first",
    "-e",
    "r :third",
    "-e",
    "r :hot",
];

/// A program whose threads recurse deeply and return on command.
struct Stairs {
    running: Running,
    directory: tempfile::TempDir,
}

impl Stairs {
    fn start(words: &[&str]) -> Option<Stairs> {
        let program = build(Compiler::Gcc, "followed.c", &[])?;
        Some(Stairs {
            running: Running::start(&program, words),
            directory: scratch(),
        })
    }

    fn recorder(&self, duration: &str) -> Command {
        self.recorder_of(duration, &EVENTS)
    }

    fn recorder_of(&self, duration: &str, events: &[&str]) -> Command {
        let pid = self.running.pid.to_string();
        let trace = self.directory.path().join("t");
        let mut words = vec!["--return=stack", "--json", "--buffer-size", "8M"];
        words.extend(["--duration", duration, "-p", &pid]);
        words.extend(events);
        recorder(&trace, &words)
    }

    fn down(&mut self) {
        self.running.say("down");
        assert_eq!(self.running.line(), "down");
    }

    fn up(&mut self) {
        self.running.say("up");
        assert_eq!(self.running.line(), "up");
    }

    fn detach_command(&self) -> Command {
        command(&["detach", &self.running.pid.to_string()])
    }

    /// Removes what is there, if anything is.
    fn clean_up(&self, when: &str) {
        let output = self.detach_command().output().expect("capriole starts");
        let text = told(&output);
        assert!(
            output.status.success() || text.contains("has no probes of capriole"),
            "{when}: {text}"
        );
    }

    fn assert_clean(&mut self, when: &str) {
        self.running.assert_alive();
        let process = self.running.process();
        assert_no_session(&process);
        assert_text_is_the_files(&process, true);
        assert_eq!(self.replaced(), 0, "{when}");
    }

    /// Returns the number of words on the stacks that lead to stubs.
    fn replaced(&self) -> usize {
        let process = self.running.process();
        let maps = process.maps().expect("maps");
        let is_stubs =
            |m: &&Mapping| m.perms.execute && m.path.is_empty() && m.end - m.start == STUBS;
        let stubs = maps.iter().filter(is_stubs);
        let stubs: Vec<_> = stubs.map(|m| m.start..m.end).collect();
        let mut found = 0;
        for thread in process.threads().expect("threads") {
            let Some(sp) = stack_pointer(self.running.pid, thread) else {
                continue;
            };
            let Some(stack) = maps.iter().find(|m| m.contains(sp)) else {
                continue;
            };
            let mut bytes = vec![0; (stack.end - sp) as usize];
            let _ = process.read_memory(sp, &mut bytes);
            let words = bytes.chunks_exact(8);
            let words = words.map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes")));
            found += words
                .filter(|w| stubs.iter().any(|stubs| stubs.contains(w)))
                .count();
        }
        found
    }

    /// Waits for this many replaced words; threads that are not asleep yet are not counted.
    fn wait_for(&self, replaced: usize) {
        until("return addresses are replaced", || {
            self.replaced() >= replaced
        });
    }

    fn finish(mut self) {
        self.assert_clean("at the end");
        self.running.finish();
    }
}

/// Where the stack of a thread that waits in the kernel is.
fn stack_pointer(pid: u32, thread: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).ok()?;
    let mut words = text.split_whitespace().rev();
    let _rip = words.next()?;
    let sp = words.next()?.strip_prefix("0x")?;
    u64::from_str_radix(sp, 16).ok()
}

#[test]
fn in_the_middle_of_deep_recursion() {
    let Some(mut stairs) = Stairs::start(&["stairs", "2", "30000"]) else {
        return;
    };
    for _ in 0..2 {
        let recording = Background::of(stairs.recorder_of("1h", &EVENTS[..2]), stairs.running.pid);
        stairs.down();
        stairs.wait_for(60_002);
        let told = recording.end();
        assert_eq!(stairs.replaced(), 0);
        assert_eq!(told["returns_missed"], 0, "{told}");
        stairs.up();
    }
    // Half of the time with probes, and half without.
    let recording = Background::of(stairs.recorder_of("1h", &EVENTS[..2]), stairs.running.pid);
    stairs.down();
    stairs.up();
    stairs.down();
    recording.end();
    stairs.up();
    let seen = events(&stairs.directory.path().join("t"));
    let returned = seen.iter().filter(|e| e["event"] == "stair__return");
    assert_eq!(returned.count(), 60_002);
    stairs.finish();
}

/// Functions active at attach are not followed; at detach, other functions are active.
#[test]
fn while_threads_come_and_go() {
    let Some(mut stairs) = Stairs::start(&["stairs", "3", "500"]) else {
        return;
    };
    for round in 0..rounds(3, 36, 300) {
        if round % 2 == 0 {
            stairs.down();
        }
        let recording = Background::of(stairs.recorder("1h"), stairs.running.pid);
        if round % 2 == 0 {
            stairs.up();
        } else {
            stairs.down();
        }
        recording.end();
        if round % 2 == 1 {
            stairs.up();
        }
        stairs.assert_clean(&format!("round {round}"));
    }
    stairs.finish();
}

/// The memory for return addresses is mapped only once.
#[test]
fn the_memory_that_stays_is_used_again() {
    let Some(mut stairs) = Stairs::start(&["stairs", "1", "10"]) else {
        return;
    };
    let mut looks = None;
    for _ in 0..4 {
        let output = stairs.recorder("5ms").output().expect("capriole starts");
        assert!(output.status.success(), "{}", told(&output));
        let now = self::looks(&stairs.running.process());
        if let Some(before) = looks.replace(now.clone()) {
            assert_eq!(before, now);
        }
        stairs.down();
        stairs.up();
    }
    stairs.finish();
}

/// Kills a recorder at this step, the `index`-th that is tried, after the threads have gone down if
/// `down`. Every third time the next recording, not `detach`, must clean up.
fn killed_recorder(stairs: &mut Stairs, step: &Step, index: usize, down: bool) {
    if down {
        stairs.down();
    }
    let mut command = stairs.recorder("5ms");
    let output = dies_at(&mut command, step).output();
    let output = output.expect("capriole starts");
    let when = format!("killed at step {step}: {}", told(&output));
    stairs.running.assert_alive();
    if !down {
        stairs.down();
    }
    stairs.up();
    if !died(&output) {
        // A run may take a step less than another one.
        assert!(output.status.success(), "{when}");
    } else if index.is_multiple_of(3) {
        let again = stairs.recorder("5ms").output().expect("capriole starts");
        assert!(again.status.success(), "{when}, then {}", told(&again));
    } else {
        stairs.down();
        stairs.clean_up(&when);
        assert_eq!(stairs.replaced(), 0, "{when}");
        stairs.up();
    }
    stairs.assert_clean(&when);
}

/// Records once, and returns the steps.
fn steps_of_recording(stairs: &mut Stairs) -> Vec<Step> {
    let (steps, output) = reached(&mut stairs.recorder("5ms"));
    assert!(output.status.success(), "{}", told(&output));
    assert!(!steps.is_empty(), "are debug assertions on?");
    steps
}

#[test]
fn a_recorder_killed_at_each_step() {
    let Some(mut stairs) = Stairs::start(&["stairs", "2", "300"]) else {
        return;
    };
    // The first recording maps the memory that stays.
    steps_of_recording(&mut stairs);
    let steps = steps_of_recording(&mut stairs);
    let steps = few(&steps);
    for (index, step) in steps.iter().enumerate() {
        killed_recorder(&mut stairs, step, index, index % 2 == 0);
    }
    println!("{} steps of record", steps.len());
    assert!(steps.len() > 12, "only {}", steps.len());
    stairs.finish();
}

/// In a program into which nothing was mapped before.
#[test]
fn a_first_recorder_killed_at_each_step() {
    let begin = || Stairs::start(&["stairs", "1", "50"]);
    let Some(mut stairs) = begin() else { return };
    let steps = steps_of_recording(&mut stairs);
    let later = steps_of_recording(&mut stairs);
    stairs.finish();
    let is_in = |step: &Step| {
        later
            .iter()
            .any(|l| (&l.name, l.number) == (&step.name, step.number))
    };
    // Those that later recordings do not have, and some of those that they have.
    let firsts: Vec<Step> = steps.iter().filter(|step| !is_in(step)).cloned().collect();
    assert!(!firsts.is_empty());
    let more = few(&steps);
    let more: Vec<Step> = more.into_iter().filter(is_in).step_by(3).collect();
    for step in chosen(&firsts).iter().chain(&more) {
        let mut stairs = begin().expect("the compiler is still there");
        killed_recorder(&mut stairs, step, step.at, false);
        stairs.finish();
    }
}

#[test]
fn a_detach_killed_at_each_step() {
    let Some(mut stairs) = Stairs::start(&["stairs", "2", "300"]) else {
        return;
    };
    // Leaves the probes of a killed recorder, and replaced return addresses.
    let leave = |stairs: &mut Stairs| {
        let mut command = stairs.recorder("1h");
        let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
        traces::until_recording(stairs.running.pid);
        stairs.down();
        child.kill().expect("a child");
        child.wait().expect("a child");
    };
    leave(&mut stairs);
    let (steps, output) = reached(&mut stairs.detach_command());
    assert!(output.status.success(), "{}", told(&output));
    stairs.up();
    let steps = few(&steps);
    assert!(steps.len() > 5, "only {}", steps.len());
    for (index, step) in steps.iter().enumerate() {
        leave(&mut stairs);
        let mut command = stairs.detach_command();
        let output = dies_at(&mut command, step).output();
        let output = output.expect("capriole starts");
        let when = format!("detach killed at step {step}: {}", told(&output));
        stairs.running.assert_alive();
        if index % 2 == 0 {
            // With whatever is left there now.
            stairs.up();
            stairs.down();
        }
        match died(&output) {
            true => stairs.clean_up(&when),
            false => assert!(output.status.success(), "{when}"),
        }
        stairs.assert_clean(&when);
        stairs.up();
    }
    println!("{} steps of detach", steps.len());
    stairs.finish();
}

#[test]
#[ignore = "soak"]
fn a_recorder_killed_at_any_time() {
    let Some(mut stairs) = Stairs::start(&["stairs", "3", "200"]) else {
        return;
    };
    let mut random = Random::new(0);
    for round in 0..rounds(0, 60, 500) {
        let mut command = stairs.recorder("20ms");
        command.stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        std::thread::sleep(Duration::from_micros(random.below(80_000) as u64));
        stairs.down();
        let _ = child.kill();
        child.wait().expect("a child");
        if round % 2 == 0 {
            stairs.up();
            stairs.down();
        }
        stairs.clean_up(&format!("round {round}"));
        stairs.assert_clean(&format!("round {round}"));
        stairs.up();
    }
    stairs.finish();
}

/// Exceptions, signals, forks, and libraries that come and go, while Capriole attaches and
/// detaches.
fn hammered(program: &Path, words: &[&str], event: &str) {
    let mut running = Running::start(program, words);
    let directory = scratch();
    let trace = directory.path().join("t");
    let pid = running.pid.to_string();
    for round in 0..rounds(2, 18, 200) {
        let arguments = ["--return=stack", "--json", "--duration", "60ms", "-p", &pid];
        let mut command = recorder(&trace, &arguments);
        let output = command.args(["-e", event]).output().expect("it starts");
        assert!(output.status.success(), "{round}: {}", told(&output));
        running.assert_alive();
        assert_no_session(&running.process());
        assert_text_is_the_files(&running.process(), true);
    }
    running.finish();
}

#[test]
fn threads_that_take_signals_and_fork() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    hammered(&program, &["--threads", "3", "--signals"], "r :work*");
    hammered(&program, &["--threads", "2", "--fork"], "r :*");
}

#[test]
fn programs_that_throw() {
    let Some(program) = build(Compiler::Gxx, "cxx_throw.cpp", &[]) else {
        return;
    };
    hammered(&program, &["--threads", "3"], "r :*");
    let Some(program) = build(Compiler::Gcc, "longjmp.c", &[]) else {
        return;
    };
    hammered(&program, &["--threads", "3"], "r :*");
}
