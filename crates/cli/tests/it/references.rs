//! Reference counters: a program runs a place only while a 16-bit counter of its own is above
//! zero. The counter is raised while a probe is there, whatever other tools watch, and has its
//! old value afterwards, whenever the tracer is killed.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{calls, record_program, scratch, until_recording};
use crate::uprobe::Uprobe;
use capriole_object::ObjectFile;
use capriole_object::symbols::OtherSymbol;
use capriole_testkit::steps::{Step, died, dies_at, few, reached};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program, and the file offsets of its functions and its counter.
struct Watched {
    program: PathBuf,
    function: u64,
    other: u64,
    counter: u64,
}

impl Watched {
    /// Each test has its own file: the kernel watches files, in all processes.
    fn build(test: &str) -> Option<Watched> {
        let program = build(Compiler::Gcc, "watched.c", &[&format!("-DTEST_{test}")])?;
        let file = ObjectFile::open(&program).expect("an ELF file");
        let symbols = file.symbols().expect("symbols");
        let start = |name| symbols.exact(name)[0].function.extent.start;
        let counter = file.other_symbol("watched_counter").expect("symbols");
        let Some(OtherSymbol::Data(counter)) = counter else {
            panic!("no counter, but {counter:?}")
        };
        let offset = |address| file.file_offset(address).expect("in the file");
        Some(Watched {
            function: offset(start("watched_step")),
            other: offset(start("watched_other")),
            counter: offset(counter),
            program,
        })
    }

    fn event(&self) -> String {
        let program = self.program.display();
        format!("p:step {program}:{:#x}({:#x})", self.function, self.counter)
    }
}

fn asked(running: &mut Running, question: &str) -> String {
    running.say(question);
    running.line()
}

const UNWATCHED: &str = "counter 0 calls 0";
const WATCHED: &str = "counter 1 calls 100";

fn record(running: &Running, event: &str, trace: &Path) -> Command {
    let pid = running.pid.to_string();
    let mut command = command(&["record", "-p", &pid, "--duration", "5ms", "-e", event]);
    command.args(["--buffer-size", "8M", "-o"]).arg(trace);
    command
}

/// Starts a recording that goes on until it is killed.
fn recording(running: &Running, events: &[&str], trace: &Path) -> std::process::Child {
    let pid = running.pid.to_string();
    let mut command = command(&["record", "-p", &pid, "--buffer-size", "8M", "-o"]);
    command.arg(trace).stderr(Stdio::null());
    for event in events {
        command.args(["-e", event]);
    }
    let child = command.spawn().expect("capriole starts");
    until_recording(running.pid);
    child
}

#[test]
fn a_program_comes_where_it_is_watched() {
    let Some(watched) = Watched::build("COMES") else {
        return;
    };
    let mut running = Running::start(&watched.program, &[]);
    assert_eq!(asked(&mut running, ""), UNWATCHED);
    let directory = scratch();
    let trace = directory.path().join("trace");
    // Two events with the same counter raise it once.
    let again = format!("{} n=%di", watched.event()).replace("p:step", "p:again");
    let mut recorder = recording(&running, &[&watched.event(), &again], &trace);
    assert_eq!(asked(&mut running, ""), WATCHED);
    // Another tool raises it too, and stays when we leave.
    let uprobe = Uprobe::counted(&watched.program, watched.other, watched.counter);
    if uprobe.is_some() {
        assert_eq!(asked(&mut running, ""), "counter 2 calls 100");
    }
    // SAFETY: sends a signal to a child of this test.
    assert_eq!(unsafe { libc::kill(recorder.id() as i32, libc::SIGINT) }, 0);
    assert!(recorder.wait().expect("a child").success());
    let after = if uprobe.is_some() { WATCHED } else { UNWATCHED };
    assert_eq!(asked(&mut running, ""), after);
    drop(uprobe);
    assert_eq!(asked(&mut running, ""), UNWATCHED);
    assert!(running.finish().ends_with("ok counter=0\n"));
    let calls = calls(&trace);
    let expected = if after == WATCHED { 200 } else { 100 };
    assert_eq!(calls["step"], expected, "{calls:?}");
    assert_eq!(calls["again"], expected, "{calls:?}");
}

/// A program that `record` starts is watched from its first instruction on.
#[test]
fn a_program_is_watched_from_its_start() {
    let Some(watched) = Watched::build("STARTED") else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let said = record_program(&trace, &["-e", &watched.event()], &watched.program, &[]);
    assert!(said.ends_with("ok counter=1\n"), "{said}");
}

#[test]
fn children_have_counters_of_their_own() {
    let Some(watched) = Watched::build("CHILDREN") else {
        return;
    };
    let mut running = Running::start(&watched.program, &[]);
    let directory = scratch();
    let trace = directory.path().join("trace");
    let mut recorder = recording(&running, &[&watched.event()], &trace);
    assert_eq!(asked(&mut running, "fork"), format!("child {WATCHED}"));
    assert_eq!(running.line(), WATCHED);
    recorder.kill().expect("a child");
    recorder.wait().expect("a child");
    // Nobody has lowered the counters.
    assert_eq!(asked(&mut running, ""), format!("child {WATCHED}"));
    assert_eq!(running.line(), WATCHED);
    let detached = capriole(&["detach", &running.pid.to_string()]);
    assert!(detached.status.success(), "{}", told(&detached));
    assert_eq!(asked(&mut running, ""), format!("child {UNWATCHED}"));
    assert_eq!(running.line(), UNWATCHED);
    running.finish();
}

/// Killed at each step, then cleaned up: the counter is lowered only once.
#[test]
fn a_counter_is_taken_back_once_whoever_is_killed() {
    let Some(watched) = Watched::build("KILLED") else {
        return;
    };
    let mut running = Running::start(&watched.program, &[]);
    let pid = running.pid.to_string();
    let directory = scratch();
    let trace = directory.path().join("trace");
    // Another tool may be watching all the time.
    let uprobe = Uprobe::counted(&watched.program, watched.other, watched.counter);
    let before = asked(&mut running, "");
    let run = |mut command: Command| command.output().expect("capriole starts");
    let detach = || command(&["detach", &pid]);
    let leave = |running: &Running| {
        let mut recorder = recording(running, &[&watched.event()], &trace);
        recorder.kill().expect("a child");
        recorder.wait().expect("a child");
    };
    let (steps, output) = reached(&mut record(&running, &watched.event(), &trace));
    assert!(output.status.success(), "{}", told(&output));
    leave(&running);
    let (of_detach, output) = reached(&mut detach());
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(asked(&mut running, ""), before);
    // Those around the counter, each of them, and some of the others.
    let wanted = |steps: &[Step]| -> Vec<Step> {
        let others = few(steps);
        let is_wanted = |step: &&Step| step.name.contains("counter") || others.contains(step);
        steps.iter().filter(is_wanted).cloned().collect()
    };
    let of_counter = |steps: &[Step]| steps.iter().filter(|s| s.name.contains("counter")).count();
    assert!(
        of_counter(&steps) >= 6,
        "are debug assertions on? {steps:?}"
    );
    let mut cleaners = of_detach.iter().cycle();
    for step in wanted(&steps) {
        let mut recorder = record(&running, &watched.event(), &trace);
        let output = dies_at(&mut recorder, &step).output();
        let output = output.expect("capriole starts");
        let when = format!("{step}: {}", told(&output));
        assert!(died(&output) || output.status.success(), "{when}");
        // The cleaner is killed as well, at another step each time.
        let mut killed = detach();
        let killed = dies_at(&mut killed, cleaners.next().expect("steps")).output();
        let killed = killed.expect("capriole starts");
        let when = format!(
            "{when}, then {}, then {}",
            told(&killed),
            told(&run(detach()))
        );
        assert_eq!(asked(&mut running, ""), before, "{when}");
        assert_no_session(&running.process());
    }
    for step in wanted(&of_detach) {
        leave(&running);
        let mut cleaner = detach();
        let cleaner = dies_at(&mut cleaner, &step).output();
        let cleaner = cleaner.expect("capriole starts");
        assert!(
            died(&cleaner) || cleaner.status.success(),
            "{}",
            told(&cleaner)
        );
        let when = format!("{step}: {}, then {}", told(&cleaner), told(&run(detach())));
        assert_eq!(asked(&mut running, ""), before, "{when}");
    }
    drop(uprobe);
    assert_eq!(asked(&mut running, ""), UNWATCHED);
    running.finish();
}

#[test]
fn what_is_no_counter_is_refused() {
    let Some(watched) = Watched::build("REFUSED") else {
        return;
    };
    let mut running = Running::start(&watched.program, &[]);
    let directory = scratch();
    let trace = directory.path().join("trace");
    let program = watched.program.display();
    for (counter, why) in [
        (watched.counter + 1, "has an even offset"),
        (watched.function & !1, "has no data there"),
        (1 << 40, "has no data there"),
    ] {
        let event = format!("{program}:{:#x}({counter:#x})", watched.function);
        let output = record(&running, &event, &trace).output();
        let output = output.expect("capriole starts");
        let told = told(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(why) && told.contains(&event), "{told}");
        assert_eq!(asked(&mut running, ""), UNWATCHED);
    }
    let event = watched.event();
    let output = capriole(&["check", &event, program.to_string().as_str()]);
    let told = told(&output);
    let line = format!("counter   at {:#x} in the file", watched.counter);
    assert!(told.contains(&line), "{told}");
    running.finish();
}
