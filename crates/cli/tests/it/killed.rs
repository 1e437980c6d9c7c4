//! The tracer killed at each step of attaching and of detaching, and at any time between; and stopped
//! there while another one takes the probes out.
//!
//! Each of these starts with a run that writes its steps down; then the first, the middle and the last
//! step of each name are tried, more of them in the soak. After each death the program must go on and
//! find its results right, `capriole detach` must put back all that is there, and another recording
//! must work.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{recorder, scratch, summary, tracers, until_recording};
use capriole_testkit::effort::Random;
use capriole_testkit::steps::{
    Step, chosen, died, dies_at, few, firsts, has_stopped, reached, stops_at,
};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

struct Victim {
    running: Running,
    before: Looks,
    directory: tempfile::TempDir,
    events: Vec<&'static str>,
    options: &'static [&'static str],
    /// Has the program say that it is well, after each death.
    check: fn(&mut Running, &str),
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
            check: |_, _| {},
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

    fn record(&self) -> Output {
        let mut command = self.record_command("5ms");
        command.output().expect("capriole starts")
    }

    fn detach_command(&self) -> Command {
        command(&["detach", &self.running.pid.to_string()])
    }

    fn detach(&self) -> Output {
        self.detach_command().output().expect("capriole starts")
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
        let output = self.detach();
        let text = told(&output);
        assert!(
            output.status.success() || text.contains("has no probes of capriole"),
            "{when}: {text}\n{}",
            last_words(self.running.pid)
        );
        assert!(!text.contains("were left alone"), "{when}: {text}");
        self.assert_untouched(when);
    }

    /// Kills the recorder at these of its steps, and returns their number. Every third time the next
    /// recording, not `detach`, must clean up.
    fn killed_recorders(&mut self, of: fn(&[Step]) -> Vec<Step>) -> usize {
        let steps = self.steps_of(self.record_command("5ms"));
        let steps = of(&steps);
        for (index, step) in steps.iter().enumerate() {
            let mut command = self.record_command("5ms");
            let output = dies_at(&mut command, step).output();
            let output = output.expect("capriole starts");
            let when = format!("killed at step {step}: {}", told(&output));
            self.running.assert_alive();
            if !died(&output) {
                // A run may take a step less than another one.
                assert!(output.status.success(), "{when}");
                self.assert_untouched(&when);
            } else if index % 3 == 0 {
                let again = self.record();
                assert!(again.status.success(), "{when}, then {}", told(&again));
                self.assert_untouched(&when);
            } else {
                self.clean_up(&when);
            }
            (self.check)(&mut self.running, &when);
        }
        steps.len()
    }

    /// Runs a command that must succeed, and returns its steps.
    fn steps_of(&mut self, mut command: Command) -> Vec<Step> {
        let (steps, output) = reached(&mut command);
        assert!(output.status.success(), "{}", told(&output));
        assert!(!steps.is_empty(), "are debug assertions on?");
        self.assert_untouched("after all steps");
        steps
    }

    /// Records, and is killed.
    fn leave_probes(&self) {
        let mut recorder = self.record_command("1h");
        let mut recorder = recorder.stderr(Stdio::null()).spawn().expect("it starts");
        self.wait_until_probed();
        recorder.kill().expect("a child");
        recorder.wait().expect("a child");
    }

    /// Leaves probes behind, and kills `detach` at these of its steps. Returns their number.
    fn killed_detachers(&mut self, of: fn(&[Step]) -> Vec<Step>) -> usize {
        // The recorder is killed rather than ended at a step: not all steps of `detach` come after the
        // last byte is written, and the number of one in the middle of recording is unknown.
        self.leave_probes();
        let steps = self.steps_of(self.detach_command());
        let steps = of(&steps);
        for step in &steps {
            self.leave_probes();
            let mut command = self.detach_command();
            let output = dies_at(&mut command, step).output();
            let output = output.expect("capriole starts");
            let when = format!("detach killed at step {step}: {}", told(&output));
            self.running.assert_alive();
            if died(&output) {
                self.clean_up(&when);
            } else {
                assert!(output.status.success(), "{when}");
                self.assert_untouched(&when);
            }
        }
        steps.len()
    }

    /// Stops a command at one step after the other while `detach` takes the probes out. The command
    /// must succeed, or say what is refused. Returns the number of steps at which it was overtaken.
    fn overtaken(
        &mut self,
        command: impl Fn(&Victim) -> Command,
        is_refused: impl Fn(&str) -> bool,
    ) -> usize {
        let steps = self.steps_of(command(self));
        let mut overtaken = 0;
        for step in firsts(&steps) {
            let mut command = command(self);
            stops_at(&mut command, &step);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().expect("it starts");
            let is_stopped = has_stopped(child.id());
            // While it holds the program, others wait for it.
            let is_free = is_stopped && !self.is_traced();
            // One that saves leaves the trace to the other, which has it open.
            let mut other = self.detach_command();
            let other = other.arg("--discard");
            let detached = is_free.then(|| other.output().expect("capriole starts"));
            // SAFETY: sends a signal to a child of this test that has not been waited for.
            unsafe { libc::kill(child.id() as i32, libc::SIGCONT) };
            let output = child.wait_with_output().expect("a child");
            let said = detached.as_ref().map(told).unwrap_or_default();
            let when = format!("stopped at {step}: {}\nmeanwhile: {said}", told(&output));
            self.running.assert_alive();
            self.assert_untouched(&when);
            let has_ended = output.status.success() || is_refused(&told(&output));
            assert!(has_ended, "{when}");
            overtaken += usize::from(detached.is_some_and(|output| output.status.success()));
        }
        overtaken
    }

    fn is_traced(&self) -> bool {
        tracers(&self.running.process()).next().is_some()
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
    let mut victim = Victim::new(&program, &["--threads", "2", "--rest"], EVENTS);
    let steps = victim.killed_recorders(chosen);
    println!("{steps} steps of record");
    assert!(steps > 40, "only {steps}");
    victim.finish();
}

#[test]
fn a_recorder_with_breakpoints_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    // work_loop can only be probed with a breakpoint.
    let events = &[":work_loop", ":work_ret"];
    let mut victim = Victim::new(&program, &["--threads", "2", "--rest"], events);
    victim.options = &["--breakpoints"];
    let steps = victim.killed_recorders(few);
    println!("{steps} steps of record with breakpoints");
    victim.finish();
}

#[test]
fn a_detach_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &["-no-pie"]) else {
        return;
    };
    let events = &[":work $arg1", ":work_loop"];
    let mut victim = Victim::new(&program, &["--threads", "2", "--rest"], events);
    victim.options = &["--breakpoints"];
    let steps = victim.killed_detachers(chosen);
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
    let steps = victim.killed_recorders(few);
    let detach_steps = victim.killed_detachers(few);
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
    let steps = victim.killed_recorders(few);
    let detach_steps = victim.killed_detachers(few);
    println!("{steps} steps of record, {detach_steps} of detach, with jumps across pages");
    victim.finish();
}

/// The program has faults, and sets other handlers of them, all the time.
#[test]
fn handlers_of_faults_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "actions.c", &[]) else {
        return;
    };
    let mut victim = Victim::new(&program, &[], &[":load from=$arg1", ":work"]);
    victim.check = |running, _| running.turns(1024);
    let steps = victim.killed_recorders(few);
    let detach_steps = victim.killed_detachers(few);
    println!("{steps} steps of record, {detach_steps} of detach, with handlers of faults");
    victim.finish();
}

/// The agent is a thread that waits in the kernel: its call must continue.
#[test]
fn a_recorder_of_sleepers_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "sleeper.c", &[]) else {
        return;
    };
    let mut victim = Victim::new(&program, &[], &[":sleep_in"]);
    // While others run, one that gets no processor has been interrupted and is still to be healed.
    let none_under_way = |steps: &[Step]| {
        let mut steps = few(steps);
        steps.retain(|step| step.name != "others run");
        steps
    };
    victim.check = |running, when| {
        running.say("report");
        assert_eq!(running.line(), "report done", "{when}");
    };
    let steps = victim.killed_recorders(none_under_way);
    println!("{steps} steps of record, of sleepers");
    victim.running.say("wake");
    assert_eq!(victim.running.line(), "woken");
    (victim.check)(&mut victim.running, "woken");
    victim.running.say("quit");
    victim.running.finished();
}

#[test]
#[ignore = "soak"]
fn killed_at_any_time() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let arguments = &["--threads", "3", "--signals"];
    let events = &[":work* $arg1 $arg2"];
    let mut victim = Victim::new(&program, arguments, events);
    let mut random = Random::new(0);
    for round in 0..rounds(0, 100, 1000) {
        let after = random.below(60_000) as u64;
        let mut recorder = victim.record_command("20ms");
        let mut recorder = recorder
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_micros(after));
        let _ = recorder.kill();
        recorder.wait().expect("a child");
        victim.clean_up(&format!("round {round}, after {after} us"));
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
    let found = || summary(&trace)["events"].as_u64();
    until("all events are in the trace", || found() == Some(100));
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
    let mut victim = Victim::new(&program, &["--threads", "2", "--rest"], EVENTS);
    // While the probes are put in, what is read or written is not there any more.
    let is_refused = |said: &str| !said.contains("capriole: recording 4 functions");
    let steps = victim.overtaken(|victim| victim.record_command("5ms"), is_refused);
    println!("overtaken at {steps} steps of record");
    assert!(steps > 0);
    victim.finish();
}

#[test]
fn a_detach_overtaken_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let mut victim = Victim::new(&program, &["--threads", "2", "--rest"], EVENTS);
    let detach = |victim: &Victim| {
        victim.leave_probes();
        victim.detach_command()
    };
    let is_refused = |said: &str| said.contains("has no probes of capriole");
    let steps = victim.overtaken(detach, is_refused);
    println!("overtaken at {steps} steps of detach");
    assert!(steps > 0);
    victim.finish();
}
