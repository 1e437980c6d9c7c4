//! Programs in states in which being stopped, or used for a system call, could harm them: in
//! calls with a time limit, behind a system call filter, in vfork, with memory that another
//! process shares, with descriptors that change while in use.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{Background, recorder, scratch, text, until_recording};
use capriole_patch::recover;
use capriole_proc::process::{Process, State};
use capriole_testkit::steps::{chosen, has_stopped, reached, stops_at};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn built(source: &str) -> Option<PathBuf> {
    build(Compiler::Gcc, source, &["-pthread"])
}

/// Records `events` of a process briefly, a few times: for longer than the time until the sites
/// are checked for other tools, of which there are none.
fn record_often(pid: u32, events: &[&str], times: usize) {
    let pid = pid.to_string();
    for _ in 0..times {
        let scratch = scratch();
        let trace = scratch.path().join("trace");
        let mut arguments = vec!["record", "--json", "-p", &pid, "--duration", "300ms"];
        arguments.extend(["-o", text(&trace)]);
        arguments.extend(events.iter().flat_map(|event| ["-e", event]));
        let output = capriole(&arguments);
        assert!(output.status.success(), "{}", told(&output));
        let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(told["taken_out"], 0, "{}", told["sites"]);
    }
}

/// Every mapping is as before: no page stays in a program that is recorded again and again,
/// whoever takes the probes out.
#[test]
fn no_mapping_stays() {
    let mut sleeper = sleeping();
    let pid = sleeper.id().to_string();
    record_often(sleeper.id(), &["libc:malloc"], 1);
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let before = maps();
    let kept = "r libc:read fd=$entry:arg1 n=$retval";
    record_often(sleeper.id(), &["libc:malloc", kept], 2);
    assert_eq!(maps(), before, "after recordings");
    let latency = [
        "stat",
        "-p",
        &pid,
        "-e",
        "latency(libc:read)",
        "--duration",
        "10ms",
    ];
    let output = capriole(&latency);
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(maps(), before, "after latencies");
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let mut recorder = recorder(&trace, &["-e", kept, "-p"]);
    let mut recorder = recorder.arg(&pid).stderr(Stdio::null()).spawn();
    let recorder = recorder.as_mut().expect("it starts");
    until_recording(sleeper.id());
    recorder.kill().expect("a child");
    recorder.wait().expect("a child");
    assert_ne!(maps(), before);
    let output = capriole(&["detach", &pid]);
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(maps(), before, "after a detach");
    sleeper.kill().expect("a child");
    sleeper.wait().expect("a child");
}

/// Waiting calls end neither early nor with an error, whatever is done to the process. One of
/// its threads makes thousands of calls meanwhile (`libc:*` needs stubs, which are mapped by a
/// batch).
#[test]
fn calls_with_a_time_limit_last_as_long_as_asked() {
    let Some(program) = built("timed.c") else {
        return;
    };
    let mut running = Running::start(&program, &["--milliseconds", "2500"]);
    record_often(running.pid, &["libc:*"], rounds(2, 9, 30));
    running.assert_alive();
    running.finish();
}

/// The filter kills the program for `restart_syscall`, which the kernel uses to continue an
/// interrupted sleep.
#[test]
fn a_filter_that_knows_no_restarted_call_does_not_kill() {
    if !is_root("suspend a filter") {
        return;
    }
    let Some(program) = built("timed.c") else {
        return;
    };
    let mut running = Running::start(&program, &["--filter"]);
    record_often(running.pid, &["libc:*"], rounds(2, 9, 30));
    running.assert_alive();
    // The program also survives if the event is refused.
    let pid = running.pid.to_string();
    for event in [
        "libc:no_such_function",
        ":sleep_in/0x3",
        "libc:getenv +0(%di):string",
    ] {
        let _ = capriole(&[
            "record",
            "-p",
            &pid,
            "--duration",
            "50ms",
            "-e",
            event,
            "-o",
            "/dev/null/no",
        ]);
        running.assert_alive();
    }
    let output = capriole(&["detach", &pid]);
    assert!(!output.status.success(), "{}", told(&output));
    running.assert_alive();
    running.finish();
}

/// A thread in vfork cannot be stopped until its child has gone; the others run meanwhile. Here the
/// recorder stands still while it waits.
#[test]
fn others_run_while_a_thread_is_in_vfork() {
    if !cfg!(debug_assertions) {
        println!("skipped: only debug builds stop at a step");
        return;
    }
    let Some(program) = built("vforking.c") else {
        return;
    };
    let mut running = Running::start(&program, &["held"]);
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let pid = running.pid.to_string();
    let mut command = recorder(&trace, &["--json", "-p", &pid, "-e", ":work"]);
    command.env("CAPRIOLE_STOP_AT", "others run#1");
    let recording = Background::started(command);
    let process = running.process();
    let states = || {
        let threads = process.threads().expect("threads").into_iter();
        let states = threads.flat_map(|tid| process.thread_status(tid));
        states.map(|status| status.state).collect::<Vec<_>>()
    };
    let is_traced = || states().contains(&State::Traced);
    loop {
        until("it waits for the thread", || {
            recording.state() == State::Stopped
        });
        // On a busy machine others, too, may have got no processor in time. Then they stop now, and
        // only the recorder lets them go on.
        until("others sleep, or are stopped", || {
            !states().contains(&State::Running)
        });
        if !is_traced() {
            break;
        }
        recording.signal(libc::SIGCONT);
        until("the others go on", || !is_traced());
        recording.signal(libc::SIGSTOP);
    }
    running.say("tick");
    assert_eq!(running.line(), "ticked");
    running.say("go");
    assert_eq!(running.line(), "gone");
    until("the thread stops", is_traced);
    recording.signal(libc::SIGCONT);
    until_recording(running.pid);
    recording.until_recorded();
    let told = recording.end();
    assert!(told["events"].as_u64() > Some(0), "{told}");
    running.finish();
}

/// A thread that gets no processor does not stop; the others run meanwhile. It does get one for a
/// twentieth of the time: an attempt that meets it then need not wait.
#[test]
fn others_run_while_a_thread_gets_no_processor() {
    if !cfg!(debug_assertions) {
        println!("skipped: only debug builds stop at a step");
        return;
    }
    let Some(program) = built("starved.c") else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let said = running.line();
    if said != "starved" {
        println!("{said}");
        running.finish();
        return;
    }
    let pid = running.pid.to_string();
    let process = running.process();
    let waits = |attempt: usize| {
        let scratch = scratch();
        let trace = scratch.path().join("trace");
        let mut command = recorder(&trace, &["--json", "-p", &pid, "-e", ":work"]);
        command.args(["--duration", "10ms"]);
        command.env("CAPRIOLE_STOP_AT", "others run#1");
        let recording = Background::started(command);
        let mut state = State::Running;
        until("it waits, or need not", || {
            state = recording.state();
            matches!(state, State::Stopped | State::Zombie)
        });
        let is_stopped = state == State::Stopped;
        // On a busy machine the other thread, too, may have got no processor in time. Then it is
        // stopped now, and nobody lets it go on.
        let of_the_other = || {
            process
                .thread_status(running.pid)
                .map(|status| status.state)
        };
        until("the other thread sleeps, or is stopped", || {
            state = of_the_other().expect("a thread");
            matches!(state, State::Sleeping | State::Traced)
        });
        let waits = is_stopped && state == State::Sleeping;
        if waits {
            running.say("tick");
            assert_eq!(running.line(), "ticked");
        }
        if is_stopped {
            recording.signal(libc::SIGCONT);
        }
        println!("attempt {attempt}: {waits}");
        recording.ended_by_itself();
        waits
    };
    assert!((0..10).any(waits), "nothing waited for it");
    running.finish();
}

/// A thread in vfork cannot be stopped until its child has gone; the others run meanwhile.
/// (Bounds are coarse, for busy machines: the child lives for three seconds.)
#[test]
#[ignore = "soak"]
fn nobody_waits_for_a_thread_in_vfork() {
    let Some(program) = built("vforking.c") else {
        return;
    };
    let running = Running::start(&program, &["3"]);
    record_often(running.pid, &[":work"], rounds(2, 2, 20));
    let said = running.finish();
    let last = said.lines().last().unwrap_or_default();
    let longest: u64 = last[3..].parse().expect("milliseconds");
    assert!(longest < 1000, "a thread stood still for {longest} ms");
}

/// Another process that shares the memory is stopped with it, and is in no detour when the
/// detours are removed.
#[test]
fn a_process_with_the_same_memory_survives() {
    let Some(program) = built("shared_memory.c") else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let process = running.process();
    let before = looks(&process);
    for round in 0..rounds(3, 45, 1000) {
        let probes = Probes::of(&process, &[":work_one", ":work_two"], Reach::Best);
        let mut recording = attach_to(&process, &probes, 1 << 20);
        recording.record_calls(1000);
        recording.detach();
        assert_looks(&process, &before, &format!("round {round}"));
    }
    running.assert_alive();
    running.finish();
}

/// Breakpoints are handled per process, not per memory.
#[test]
fn breakpoints_are_refused_where_another_process_has_the_memory() {
    let Some(program) = built("shared_memory.c") else {
        return;
    };
    let running = Running::start(&program, &[]);
    let refusal = capriole_patch::attach::breakpoints_allowed(&*capriole_host::ptrace::host(
        &running.process(),
    ));
    assert!(refusal.is_err_and(|reason| reason.contains("same memory")));
    running.finish();
}

/// A program that replaces each descriptor it has with another file: nothing is written to that
/// file, although its owner and we may write to it. No mapping is left if attaching fails.
#[test]
fn nothing_is_written_to_a_descriptor_that_is_not_ours() {
    let Some(program) = built("swapper.c") else {
        return;
    };
    let scratch = scratch();
    let victim = scratch.path().join("victim");
    let content = "what nobody may touch\n".repeat(100);
    std::fs::write(&victim, &content).expect("room");
    let mut running = Running::start(&program, &[text(&victim)]);
    let pid = running.pid.to_string();
    let before = looks(&running.process());
    for round in 0..rounds(5, 60, 1000) {
        let trace = scratch.path().join(format!("trace{round}"));
        // This may succeed or fail.
        let output = capriole(&[
            "record",
            "-p",
            &pid,
            "--duration",
            "1ms",
            "-e",
            ":work",
            "-o",
            text(&trace),
        ]);
        assert_eq!(
            std::fs::read_to_string(&victim).expect("it is there"),
            content,
            "round {round}"
        );
        running.assert_alive();
        let now = looks(&running.process());
        assert_eq!(now.mappings(), before.mappings(), "{}", told(&output));
    }
    running.finish();
}

/// A program that was not started yet when its recorder died is never started.
#[test]
fn nobody_is_left_waiting_to_be_started() {
    if !cfg!(debug_assertions) {
        println!("skipped: only debug builds die at a step");
        return;
    }
    let scratch = scratch();
    let trace = scratch.path().join("a trace of its own");
    let mut recorder = command(&[
        "record",
        "-e",
        "libc:malloc",
        "-o",
        text(&trace),
        "--",
        "true",
    ]);
    recorder
        .env("CAPRIOLE_DIE_AT", "child made#1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = recorder.output().expect("it starts");
    assert_eq!(output.status.code(), None, "{}", told(&output));
    assert!(told(&output).contains("child made"), "{}", told(&output));
    // The recorder's child still has its command line.
    let left = || {
        let others = capriole_proc::process::Process::others();
        let lines = others.filter_map(|p| std::fs::read(p.proc_path("cmdline")).ok());
        lines
            .filter(|line| line.windows(18).any(|w| w == b"a trace of its own"))
            .count()
    };
    until("no child waits", || left() == 0);
}

/// Steps of a thread that makes system calls for the recorder.
const CALLING: [&str; 9] = [
    "signal frame written",
    "registers set for a call",
    "signals blocked",
    "at the call's entry",
    "behind the call",
    "registers set for many calls",
    "many calls under way",
    "signals unblocked",
    "registers restored",
];

/// SIGSTOP, which no thread can block, may arrive at any step of a thread that makes system calls for the
/// recorder. The calls are made, and the program stays stopped behind them.
#[test]
fn who_makes_calls_for_us_may_be_stopped() {
    if !cfg!(debug_assertions) {
        println!("skipped: only debug builds stop at a step");
        return;
    }
    let mut sleeper = sleeping();
    let pid = sleeper.id();
    let process = Process::open(pid).expect("it runs");
    let state = || process.status().expect("it lives").state;
    let signal = |pid: u32, signal: i32| {
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
    };
    let scratch = scratch();
    let record = |name: &str| {
        let trace = scratch.path().join(name);
        let pid = pid.to_string();
        // Stubs for these are mapped by many calls.
        let arguments = ["--json", "-p", &pid, "-e", "libc:*", "--duration", "1ms"];
        recorder(&trace, &arguments)
    };
    let (steps, output) = reached(&mut record("undisturbed"));
    assert!(output.status.success(), "{}", told(&output));
    let steps: Vec<_> = steps
        .into_iter()
        .filter(|step| CALLING.contains(&step.name.as_str()))
        .collect();
    for name in CALLING {
        assert!(steps.iter().any(|step| step.name == name), "{name}");
    }
    for step in chosen(&steps) {
        let name = format!("{}-{}", step.name.replace(' ', "-"), step.number);
        let mut recorder = record(&name);
        let recorder = stops_at(&mut recorder, &step)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let recorder = recorder.expect("capriole starts");
        assert!(has_stopped(recorder.id()), "{step}");
        signal(pid, libc::SIGSTOP);
        signal(recorder.id(), libc::SIGCONT);
        let output = recorder.wait_with_output().expect("a child");
        assert!(output.status.success(), "{step}: {}", told(&output));
        until("it stays stopped", || state() == State::Stopped);
        assert_text_is_the_files(&process, true);
        signal(pid, libc::SIGCONT);
        until("it sleeps again", || state() == State::Sleeping);
    }
    sleeper.kill().expect("a child");
    sleeper.wait().expect("a child");
}

/// The recorder has a higher priority than others only while the program is stopped for it.
#[test]
fn a_recorder_takes_its_turn() {
    if !is_root("go before others") {
        return;
    }
    let Some(program) = built("timed.c") else {
        return;
    };
    let running = Running::start(&program, &[]);
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recording = Background::attach(&trace, running.pid, &["libc:poll"]);
    let session =
        recover::find(&*capriole_host::ptrace::host(&running.process())).expect("a session");
    let recorder = session[0].owner.expect("a recorder");
    let nice = |task: &Path| {
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        let behind = stat.rsplit(')').next().expect("behind the name").to_owned();
        let value = behind.split_whitespace().nth(16).expect("a field");
        Some(value.parse::<i32>().expect("a number"))
    };
    // Other tests of this process stop programs meanwhile, and have a higher priority for it.
    let own = nice(Path::new("/proc/thread-self")).expect("it runs");
    // It stops the program now and then, to look at it.
    until("it goes before nobody", || {
        let tasks = std::fs::read_dir(format!("/proc/{recorder}/task")).expect("its threads");
        tasks.flatten().all(|task| nice(&task.path()) == Some(own))
    });
    recording.end();
    running.finish();
}
