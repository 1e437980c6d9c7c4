//! Return addresses are restored when the probes are taken out: in the middle of deep
//! recursion, while other threads call, by `capriole detach` after the tracer was killed at
//! any step, and in forked children. A replaced address that cannot be found on any stack
//! still returns to its caller.

use crate::traces;

use crate::programs::{Compiler, build};
use crate::target::*;
use capriole_proc::maps::Mapping;
use capriole_ring::layout::returns::{SLOTS, STUB_SIZE};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
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

fn died(output: &Output) -> bool {
    output.status.signal() == Some(libc::SIGKILL)
}

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

    fn detach(&self, die_at: Option<usize>) -> Output {
        let mut command = command(&["detach", &self.running.pid.to_string()]);
        if let Some(step) = die_at {
            command.env("CAPRIOLE_DIE_AT", step.to_string());
        }
        command.output().expect("capriole starts")
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
        let started = Instant::now();
        while self.replaced() < replaced {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{}",
                self.replaced()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
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
    for round in 0..rounds(12, 300) {
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

/// Kills a recorder at this step, after the threads have gone down if `down`. Returns true if
/// the recorder had no such step.
fn killed_recorder(stairs: &mut Stairs, step: usize, down: bool) -> bool {
    if down {
        stairs.down();
    }
    let mut command = stairs.recorder("5ms");
    command.env("CAPRIOLE_DIE_AT", step.to_string());
    let output = command.output().expect("capriole starts");
    let when = format!("killed at step {step}: {}", told(&output));
    stairs.running.assert_alive();
    if !down {
        stairs.down();
    }
    stairs.up();
    let over = !died(&output);
    if over {
        assert!(output.status.success(), "{when}");
    } else if (step / 5).is_multiple_of(3) {
        let again = stairs.recorder("5ms").output().expect("capriole starts");
        assert!(again.status.success(), "{when}, then {}", told(&again));
    } else {
        stairs.down();
        let output = stairs.detach(None);
        let text = told(&output);
        assert!(
            output.status.success() || text.contains("has no probes of capriole"),
            "{when}: {text}"
        );
        assert_eq!(stairs.replaced(), 0, "{when}");
        stairs.up();
    }
    stairs.assert_clean(&when);
    over
}

#[test]
fn a_recorder_killed_at_each_step() {
    let Some(mut stairs) = Stairs::start(&["stairs", "2", "300"]) else {
        return;
    };
    let steps = steps_to_die_at().find(|step| killed_recorder(&mut stairs, *step, step % 2 == 0));
    println!("{} steps of record", steps.expect("it ends") - 1);
    assert!(steps > Some(30));
    stairs.finish();
}

/// In a program into which nothing was mapped before.
#[test]
fn a_first_recorder_killed_at_each_step() {
    for step in steps_to_die_at() {
        let Some(mut stairs) = Stairs::start(&["stairs", "1", "50"]) else {
            return;
        };
        let over = killed_recorder(&mut stairs, step, false);
        stairs.finish();
        if over {
            return;
        }
    }
}

#[test]
fn a_detach_killed_at_each_step() {
    let Some(mut stairs) = Stairs::start(&["stairs", "2", "300"]) else {
        return;
    };
    for step in steps_to_die_at() {
        let mut command = stairs.recorder("1h");
        let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
        traces::until_recording(stairs.running.pid);
        stairs.down();
        child.kill().expect("a child");
        child.wait().expect("a child");
        let output = stairs.detach(Some(step));
        let when = format!("detach killed at step {step}: {}", told(&output));
        stairs.running.assert_alive();
        let over = !died(&output);
        if step % 2 == 0 {
            // With whatever is left there now.
            stairs.up();
            stairs.down();
        }
        if over {
            assert!(output.status.success(), "{when}");
        } else {
            let output = stairs.detach(None);
            let text = told(&output);
            assert!(
                output.status.success() || text.contains("has no probes of capriole"),
                "{when}: {text}"
            );
        }
        stairs.assert_clean(&when);
        stairs.up();
        if over {
            println!("{} steps of detach", step - 1);
            assert!(step > 10);
            break;
        }
    }
    stairs.finish();
}

#[test]
fn a_recorder_killed_at_any_time() {
    let Some(mut stairs) = Stairs::start(&["stairs", "3", "200"]) else {
        return;
    };
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for round in 0..rounds(15, 500) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut command = stairs.recorder("20ms");
        command.stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        std::thread::sleep(Duration::from_micros(random % 80_000));
        stairs.down();
        let _ = child.kill();
        child.wait().expect("a child");
        if round % 2 == 0 {
            stairs.up();
            stairs.down();
        }
        let output = stairs.detach(None);
        let text = told(&output);
        assert!(
            output.status.success() || text.contains("has no probes of capriole"),
            "round {round}: {text}"
        );
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
    for round in 0..rounds(6, 200) {
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
