//! The tracer killed at each step of attaching and of detaching, and at any time between; and stopped
//! there while another one takes the probes out.
//!
//! Builds with debug assertions die of SIGKILL at the n-th step if `CAPRIOLE_DIE_AT=n` says
//! so, and stop there with `CAPRIOLE_STOP_AT=n`. After each death the program must go on and find its results right, `capriole detach`
//! must put back all that is there, and another recording must work.
//!
//! One step of five is tried, which ones changes from run to run. All of them, and many more
//! kills at random times:
//!
//! ```text
//! CAPRIOLE_LONG=1 cargo test -p capriole-cli --test it killed:: -- --nocapture
//! ```

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{recorder, scratch, summary, until_recording};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Victim {
    running: Running,
    before: Looks,
    directory: tempfile::TempDir,
    events: Vec<&'static str>,
    options: &'static [&'static str],
}

fn died(output: &Output) -> bool {
    output.status.signal() == Some(libc::SIGKILL)
}

/// Waits until a child has stopped, or ended. True if it has stopped; the end is left to be waited for.
fn stops(pid: u32) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let what = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
    // SAFETY: `info` is as large as what is written to it.
    let result = unsafe { libc::waitid(libc::P_PID, pid, info.as_mut_ptr(), what) };
    assert_eq!(result, 0);
    // SAFETY: it was written to; all zero is a siginfo_t as well.
    unsafe { info.assume_init() }.si_code == libc::CLD_STOPPED
}

impl Victim {
    fn new(program: &Path, arguments: &[&str], events: &[&'static str]) -> Victim {
        let running = Running::start(program, arguments);
        let before = looks(&running.process());
        Victim {
            running,
            before,
            directory: tempfile::tempdir().expect("a directory"),
            events: events.to_vec(),
            options: &[],
        }
    }

    fn record_command(&self, duration: &str) -> Command {
        let trace = self.directory.path().join("trace");
        let pid = self.running.pid.to_string();
        let mut command = command(&["record", "-p", &pid, "--duration", duration]);
        command.args(["--buffer-size", "8M", "-o"]).arg(trace);
        command.args(self.options);
        for event in &self.events {
            command.args(["-e", event]);
        }
        command
    }

    fn record(&self, die_at: Option<usize>) -> Output {
        let mut command = self.record_command("5ms");
        if let Some(step) = die_at {
            command.env("CAPRIOLE_DIE_AT", step.to_string());
        }
        command.output().expect("capriole starts")
    }

    fn detach_command(&self) -> Command {
        command(&["detach", &self.running.pid.to_string()])
    }

    fn detach(&self, die_at: Option<usize>) -> Output {
        let mut command = self.detach_command();
        if let Some(step) = die_at {
            command.env("CAPRIOLE_DIE_AT", step.to_string());
        }
        command.output().expect("capriole starts")
    }

    /// Checks that everything is as it was before the first attach.
    fn assert_untouched(&mut self, when: &str) {
        self.running.assert_alive();
        let process = self.running.process();
        assert_no_session(&process);
        assert_text_is_the_files(&process, true);
        assert_looks(&process, &self.before, when);
    }

    /// Removes the probes with `capriole detach`, if there are any.
    fn clean_up(&mut self, when: &str) {
        self.running.assert_alive();
        let output = self.detach(None);
        let text = told(&output);
        assert!(
            output.status.success() || text.contains("has no probes of capriole"),
            "{when}: {text}\n{}",
            last_words(self.running.pid)
        );
        assert!(!text.contains("were left alone"), "{when}: {text}");
        self.assert_untouched(when);
    }

    /// Kills the recorder at one step after the other and returns the number of steps. Every other
    /// time the next recording, not `detach`, must clean up.
    fn killed_recorders(&mut self) -> usize {
        for step in steps_to_die_at() {
            let output = self.record(Some(step));
            let when = format!("killed at step {step}: {}", told(&output));
            self.running.assert_alive();
            if !died(&output) {
                assert!(output.status.success(), "{when}");
                self.assert_untouched(&when);
                return step - 1;
            }
            if step / 5 % 3 == 0 {
                let again = self.record(None);
                assert!(again.status.success(), "{when}, then {}", told(&again));
                self.assert_untouched(&when);
            } else {
                self.clean_up(&when);
            }
        }
        unreachable!("a recording has fewer steps");
    }

    /// Records, and is killed.
    fn leave_probes(&self) {
        let mut recorder = self.record_command("1h");
        let mut recorder = recorder.stderr(Stdio::null()).spawn().expect("it starts");
        self.wait_until_probed();
        recorder.kill().expect("a child");
        recorder.wait().expect("a child");
    }

    /// Leaves probes behind, and kills `detach` at one step after the other.
    fn killed_detachers(&mut self, last_step: usize) -> usize {
        for step in steps_to_die_at() {
            // Kill the recorder directly: not all steps come after the last byte is written. A step in
            // the middle of recording would do, but its number is unknown.
            self.leave_probes();
            let output = self.detach(Some(step));
            let when = format!("detach killed at step {step}: {}", told(&output));
            self.running.assert_alive();
            if !died(&output) {
                assert!(output.status.success(), "{when}");
                self.assert_untouched(&when);
                return step - 1;
            }
            self.clean_up(&when);
        }
        unreachable!("more than {last_step} steps");
    }

    /// Stops a command at one step after the other while `detach` takes the probes out. The command
    /// must succeed, or say what is refused. Returns the number of steps.
    fn overtaken(
        &mut self,
        command: impl Fn(&Victim) -> Command,
        is_refused: impl Fn(&str) -> bool,
    ) -> usize {
        // Only at some steps is the program free, and on a busy machine at fewer: then it is done again
        // from the first step on.
        const MOST_PASSES: usize = 40;
        let (mut overtaken, mut pass, mut step) = (0, 1, 0);
        loop {
            step += 1;
            let mut command = command(self);
            command.env("CAPRIOLE_STOP_AT", step.to_string());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().expect("it starts");
            let is_stopped = stops(child.id());
            // While it holds the program, others wait for it.
            let is_free = is_stopped && !self.is_traced();
            let detached = is_free.then(|| self.detach(None));
            // SAFETY: sends a signal to a child of this test that has not been waited for.
            unsafe { libc::kill(child.id() as i32, libc::SIGCONT) };
            let output = child.wait_with_output().expect("a child");
            let said = detached.as_ref().map(told).unwrap_or_default();
            let when = format!(
                "stopped at step {step}: {}\nmeanwhile: {said}",
                told(&output)
            );
            self.running.assert_alive();
            self.assert_untouched(&when);
            let has_ended = output.status.success() || is_refused(&told(&output));
            assert!(has_ended, "{when}");
            if is_stopped {
                overtaken += usize::from(detached.is_some_and(|output| output.status.success()));
            } else if overtaken > 0 {
                return step - 1;
            } else {
                assert!(pass < MOST_PASSES, "never overtaken in {step} steps");
                (pass, step) = (pass + 1, 0);
            }
        }
    }

    fn is_traced(&self) -> bool {
        let status = self.running.process().status().expect("it runs");
        status.tracer != 0
    }

    /// Waits until a session is mapped and armed, and the text has changed.
    fn wait_until_probed(&self) {
        let process = self.running.process();
        loop {
            assert!(process.is_alive());
            let sessions = capriole_patch::recover::find(&*capriole_host::ptrace::host(&process))
                .unwrap_or_default();
            if sessions.iter().any(|s| !s.installed.changes.is_empty()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn finish(mut self) {
        self.assert_untouched("at the end");
        self.running.finish();
    }
}

const EVENTS: &[&str] = &[
    ":work $arg1 $arg2",
    ":work_short",
    ":work_nops",
    ":work_switch",
];

#[test]
fn a_recorder_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let mut victim = Victim::new(&program, &["--threads", "2"], EVENTS);
    let steps = victim.killed_recorders();
    println!("{steps} steps of record");
    assert!(steps > 30, "only {steps}: are debug assertions on?");
    victim.finish();
}

#[test]
fn a_recorder_with_breakpoints_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    // work_loop can only be probed with a breakpoint.
    let events = &[":work_loop", ":work_ret"];
    let mut victim = Victim::new(&program, &["--threads", "2"], events);
    victim.options = &["--breakpoints"];
    let steps = victim.killed_recorders();
    println!("{steps} steps of record with breakpoints");
    victim.finish();
}

#[test]
fn a_detach_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &["-no-pie"]) else {
        return;
    };
    let events = &[":work $arg1", ":work_loop"];
    let mut victim = Victim::new(&program, &["--threads", "2"], events);
    victim.options = &["--breakpoints"];
    let steps = victim.killed_detachers(0);
    println!("{steps} steps of detach");
    victim.finish();
}

/// Sites that share jumps, and jumps that are part of other jumps, in threads that would not
/// survive a breakpoint.
#[test]
fn shared_jumps_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "tight.c", &[]) else {
        return;
    };
    let mut victim = Victim::new(&program, &[], &[":tight_*", ":tight_*%return"]);
    let steps = victim.killed_recorders();
    let detach_steps = victim.killed_detachers(0);
    println!("{steps} steps of record, {detach_steps} of detach, with shared jumps");
    victim.finish();
}

/// Probes whose jump crosses a page boundary, at each possible position.
#[test]
fn jumps_across_pages_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "page_crossing.c", &[]) else {
        return;
    };
    let events = &[":cross_1", ":cross_2", ":cross_3", ":cross_4"];
    let mut victim = Victim::new(&program, &[], events);
    let steps = victim.killed_recorders();
    let detach_steps = victim.killed_detachers(0);
    println!("{steps} steps of record, {detach_steps} of detach, with jumps across pages");
    victim.finish();
}

/// The agent is a thread that waits in the kernel: its call must continue.
#[test]
fn a_recorder_of_sleepers_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "sleeper.c", &[]) else {
        return;
    };
    let mut victim = Victim::new(&program, &[], &[":sleep_in"]);
    let steps = victim.killed_recorders();
    println!("{steps} steps of record, of sleepers");
    victim.running.say("wake");
    assert_eq!(victim.running.line(), "woken");
    victim.running.say("report");
    assert_eq!(victim.running.line(), "report done");
    victim.running.say("quit");
    victim.running.finished();
}

#[test]
fn killed_at_any_time() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let arguments = &["--threads", "3", "--signals"];
    let events = &[":work* $arg1 $arg2"];
    let mut victim = Victim::new(&program, arguments, events);
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for round in 0..rounds(30, 1000) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut recorder = victim.record_command("20ms");
        let mut recorder = recorder
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_micros(random % 60_000));
        let _ = recorder.kill();
        recorder.wait().expect("a child");
        victim.clean_up(&format!("round {round}, after {} us", random % 60_000));
    }
    victim.finish();
}

/// Events of a slow program do not wait until a packet is full: those older than about a second
/// are in the trace, however the recorder is killed.
#[test]
fn what_was_recorded_is_in_the_trace_soon() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--wait", "--threads", "2", "--calls", "50"]);
    let directory = scratch();
    let trace = directory.path().join("trace");
    let mut recorder = recorder(&trace, &["-e", ":counted_work", "-p"])
        .arg(running.pid.to_string())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    until_recording(running.pid);
    running.say("go");
    let started = Instant::now();
    let found = || summary(&trace)["events"].as_u64();
    while found() != Some(100) {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", found());
        std::thread::sleep(Duration::from_millis(50));
    }
    recorder.kill().expect("a child");
    recorder.wait().expect("a child");
    assert_eq!(found(), Some(100));
    assert_eq!(summary(&trace)["lost_events"], 0);
    let output = capriole(&["detach", &running.pid.to_string()]);
    assert!(output.status.success(), "{}", told(&output));
    running.say("end");
    running.finish();
}

#[test]
fn a_recorder_overtaken_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let mut victim = Victim::new(&program, &["--threads", "2"], EVENTS);
    // While the probes are put in, what is read or written is not there any more.
    let is_refused = |said: &str| !said.contains("capriole: recording 4 functions");
    let steps = victim.overtaken(|victim| victim.record_command("5ms"), is_refused);
    println!("{steps} steps of record");
    victim.finish();
}

#[test]
fn a_detach_overtaken_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let mut victim = Victim::new(&program, &["--threads", "2"], EVENTS);
    let detach = |victim: &Victim| {
        victim.leave_probes();
        victim.detach_command()
    };
    let is_refused = |said: &str| said.contains("has no probes of capriole");
    let steps = victim.overtaken(detach, is_refused);
    println!("{steps} steps of detach");
    victim.finish();
}
