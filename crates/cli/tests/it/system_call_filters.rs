//! Programs that filter their own system calls while they are recorded, or disable the time
//! stamp counter: none of our code may run into that.

use crate::traces;

use crate::programs::{Compiler, build};
use crate::target::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use traces::{Background, counted, counted_and_told, recorder, scratch, summary, text};

const EVENT: &str = ":work text=+0($arg1):string comm=$comm n=$arg2";
/// Room for all records, should nobody read them for a while.
const ROOMY: [&str; 2] = ["--buffer-size", "1G"];
/// Number of calls that `filtered` makes with its filter.
const FILTERED: u64 = 100_000;

fn program(compiler: Compiler, flags: &[&str]) -> Option<PathBuf> {
    build(compiler, "filtered.c", flags)
}

fn record(trace: &Path, arguments: &[&str], program: &Path, how: &str) -> Output {
    let mut command = recorder(trace, arguments);
    let command = command.arg("--json").arg("--").arg(program).arg(how);
    command.output().expect("capriole starts")
}

/// Checks that the program survives: its filter kills it for any system call but its own few.
fn assert_lives(program: &Path, how: &str) {
    let directory = scratch();
    let trace = directory.path().join("trace");
    let arguments = [&ROOMY[..], &["-e", EVENT]].concat();
    let output = record(&trace, &arguments, program, how);
    let (calls, told) = counted_and_told(&output);
    assert_eq!(told["lost"], 0, "{how}: {told}");
    assert!(told["events"].as_u64() >= Some(calls), "{how}: {told}");
    // A string and a name cannot be read each time; with threads the filter starts at some moment.
    let not_read = told["not_read"].as_u64().expect("a number");
    match how {
        "thread" => assert!(not_read > 0, "{how}: {told}"),
        _ => assert_eq!(not_read, 2 * FILTERED, "{how}: {told}"),
    }
    let summary = summary(&trace);
    assert_eq!(summary["complete"], true, "{how}: {summary}");
}

#[test]
fn a_program_that_filters_its_system_calls_lives() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    for how in [
        "prctl", "syscall", "inline", "register", "thread", "child", "dispatch",
    ] {
        assert_lives(&program, how);
    }
}

/// A pointer that leads nowhere in any program is not said to be unread because of a filter.
#[test]
fn null_pointers_are_faults_with_a_filter_too() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    // The second argument counts the calls: the first ones point into the first page.
    let event = ":work near_null=+0($arg2):u64 far=-1($arg2):u64";
    let arguments = [&ROOMY[..], &["-e", event]].concat();
    let output = record(&trace, &arguments, &program, "prctl");
    let (_, told) = counted_and_told(&output);
    // The one before 0 is the last address of all.
    let counted = (FILTERED - 4096) + (FILTERED - 4097);
    assert_eq!(told["not_read"], counted, "{told}");
}

#[test]
fn so_does_a_static_one() {
    let Some(program) = program(Compiler::Gcc, &["-static"]) else {
        return;
    };
    for how in ["prctl", "syscall", "register", "thread"] {
        assert_lives(&program, how);
    }
}

/// Stops a thread right before its next `process_vm_readv`, which the resident makes.
fn stop_before_reading(tid: libc::pid_t) {
    const PROCESS_VM_READV: u64 = 310;
    const PUSHF: u8 = 0x9c;
    const TRAP_FLAG: i64 = 1 << 8;
    let wait = || {
        let mut status = 0;
        // SAFETY: waits for a thread that this test traces.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        assert_eq!(waited, tid);
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
    };
    let request = |request, data: *mut libc::c_void| {
        // SAFETY: the request takes no data, or writes the registers to `data`.
        let result = unsafe { libc::ptrace(request, tid, 0, data) };
        assert_eq!(result, 0, "ptrace: {}", std::io::Error::last_os_error());
    };
    // The recorder may just be stopping the thread itself.
    until("nobody else traces the thread", || {
        // SAFETY: the request takes no data.
        unsafe { libc::ptrace(libc::PTRACE_ATTACH, tid, 0, 0) == 0 }
    });
    wait();
    for _ in 0..100_000 {
        // SAFETY: zero is a valid value of all its fields.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        request(libc::PTRACE_GETREGS, (&raw mut registers).cast());
        // SAFETY: reads a word of the traced program.
        let code = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, tid, registers.rip, 0) };
        if code as u16 == 0x050f && registers.rax == PROCESS_VM_READV {
            // The kernel takes the flag for the program's own after steps over `popf`.
            registers.eflags &= !(TRAP_FLAG as u64);
            request(libc::PTRACE_SETREGS, (&raw mut registers).cast());
            return;
        }
        request(libc::PTRACE_SINGLESTEP, std::ptr::null_mut());
        wait();
        if code as u8 == PUSHF {
            let top = registers.rsp - 8;
            // SAFETY: reads a word of the traced program.
            let flags = unsafe { libc::ptrace(libc::PTRACE_PEEKDATA, tid, top, 0) };
            // SAFETY: writes it, without the flag that single steps have set.
            let done = unsafe { libc::ptrace(libc::PTRACE_POKEDATA, tid, top, flags & !TRAP_FLAG) };
            assert_eq!(done, 0);
        }
    }
    panic!("the thread reads nothing");
}

/// On a busy machine, a thread may wait for a processor between the resident's check that system
/// calls are allowed and the call. The filter has to wait for it.
#[test]
fn a_thread_that_is_about_to_make_a_call_is_waited_for() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let mut running = Running::start(&program, &["held", "wait"]);
    let recording = Background::attach(&trace, running.pid, &[EVENT]);
    running.say("go");
    assert_eq!(running.line(), "working");
    let threads = running.process().threads().expect("threads");
    let worker = threads.into_iter().find(|tid| *tid != running.pid);
    let worker = worker.expect("a worker") as libc::pid_t;
    stop_before_reading(worker);
    running.say("filter");
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: lets a thread that this test traces continue.
    let left = unsafe { libc::ptrace(libc::PTRACE_DETACH, worker, 0, 0) };
    assert_eq!(left, 0, "{}", std::io::Error::last_os_error());
    running.finished();
    recording.ended_by_itself();
}

#[test]
fn so_does_one_with_musl() {
    let flags = [
        "-idirafter",
        "/usr/include/x86_64-linux-gnu",
        "-idirafter",
        "/usr/include",
    ];
    let Some(program) = program(Compiler::MuslGcc, &flags) else {
        return;
    };
    for how in ["prctl", "syscall", "child"] {
        assert_lives(&program, how);
    }
}

/// When no packet is free no recorder is woken, because that would take a system call.
#[test]
fn nobody_is_woken_when_the_buffer_is_full() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    for how in ["prctl", "thread", "child"] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let arguments = ["--buffer-size", "64K", "-e", ":work n=$arg2"];
        let (calls, told) = counted_and_told(&record(&trace, &arguments, &program, how));
        let number = |name: &str| told[name].as_u64().expect("a number");
        assert!(number("lost") > 0, "{how}: {told}");
        assert!(number("events") + number("lost") >= calls, "{how}: {told}");
        assert_eq!(number("not_read"), 0, "{how}: {told}");
    }
}

/// Reading the time stamp counter faults in seccomp's strict mode.
#[test]
fn probes_are_taken_out_before_the_clock_is_given_up() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    for event in [EVENT, ":work n=$arg2"] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let (calls, told) = counted_and_told(&record(&trace, &["-e", event], &program, "strict"));
        assert_eq!(calls, FILTERED + 2000);
        assert_eq!(told["ended"], "no clock", "{told}");
        assert_eq!(told["events"], 2000, "{told}");
    }
}

/// A child disables it: its probes are taken out, and the recording of its parent goes on.
#[test]
fn a_child_that_gives_the_clock_up_ends_its_own_part_only() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let output = record(&trace, &["-e", EVENT], &program, "strict-child");
    let (calls, told) = counted_and_told(&output);
    assert_eq!(told["ended"], "program ended", "{told}");
    // The parent's calls before, during and after the child, and none of the child's.
    assert_eq!(told["events"], calls - FILTERED, "{told}");
}

#[test]
fn what_is_added_up_is_so_without_system_calls() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    let event = ":work count() by text=+0($arg1):string";
    let mut command = crate::target::own();
    let command = command.args(["stat", "--json", "-e", event, "--"]);
    let output = command.arg(&program).arg("prctl").output();
    let (calls, told) = counted_and_told(&output.expect("capriole starts"));
    assert_eq!(calls, FILTERED + 2000);
    assert_eq!(told["not_read"], FILTERED, "{told}");
}

#[test]
fn return_addresses_are_replaced_as_before() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    for how in ["syscall", "child", "strict"] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let arguments = [
            "--return=stack",
            "-e",
            ":work%return value=$retval comm=$comm",
        ];
        let (calls, told) = counted_and_told(&record(&trace, &arguments, &program, how));
        assert!(calls > FILTERED, "{how}: {told}");
    }
}

/// The call that disables the time stamp counter is itself followed: its return is not
/// recorded, because that would read the counter.
#[test]
fn the_call_that_gives_the_clock_up_returns() {
    if !is_root("suspend a filter") {
        return;
    }
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    let event = "r libc:prctl result=$retval";
    for how in ["strict", "strict-child", "clock"] {
        for returns in ["--return=stack", "--return=exits"] {
            let directory = scratch();
            let trace = directory.path().join("trace");
            let output = record(&trace, &[returns, "-e", event], &program, how);
            let (calls, told) = counted_and_told(&output);
            assert!(calls > FILTERED, "{how} {returns}: {told}");
            // An earlier PR_SET_NO_NEW_PRIVS.
            assert!(
                told["events"].as_u64() >= Some(1),
                "{how} {returns}: {told}"
            );
        }
    }
}

/// The program disables the counter just while Capriole attaches. (Each time at another
/// moment.)
#[test]
fn one_that_is_attached_to_at_that_moment_lives() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    for how in ["strict", "clock"] {
        for round in 0..rounds(2, 36, 500) {
            let directory = scratch();
            let trace = directory.path().join("trace");
            let mut running = Running::start(&program, &[how, "wait"]);
            let pid = running.pid.to_string();
            let mut recorder = recorder(&trace, &["-e", ":*", "-e", "r libc:prctl", "-p", &pid]);
            recorder.stderr(std::process::Stdio::null());
            let mut recorder = recorder.spawn().expect("capriole starts");
            // Attaching takes some tens of milliseconds.
            std::thread::sleep(std::time::Duration::from_millis(15 * (round as u64 % 6)));
            running.say("go");
            assert!(counted(&running.finished()) > FILTERED, "{how}");
            recorder.wait().expect("it ends");
        }
    }
}

/// Nobody takes the probes out, since the recorder was killed: the counter cannot be given up until somebody does.
#[test]
fn the_clock_is_not_given_up_under_abandoned_probes() {
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let mut running = Running::start(&program, &["abandoned", "wait"]);
    let recorder = Background::attach_with(&trace, running.pid, &["-e", EVENT]);
    recorder.signal(libc::SIGKILL);
    recorder.output();
    running.say("go");
    assert_eq!(running.line(), "refused");
    let detached = capriole(&["detach", &running.pid.to_string()]);
    assert!(detached.status.success(), "{}", told(&detached));
    running.say("go");
    assert!(counted(&running.finished()) > 0);
}

/// Ends a program of which system calls are redirected to itself, and checks that none was.
fn was_never_handed_a_call(mut running: Running) -> u64 {
    running.signal(libc::SIGUSR1);
    counted(&running.finished())
}

/// System calls are redirected to the program before Capriole comes: it gets none of ours.
#[test]
fn one_whose_calls_are_redirected_lives() {
    let Some(program) = program(Compiler::Gcc, &["-D_GNU_SOURCE"]) else {
        return;
    };
    for how in ["sleeps", "library"] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let running = Running::start(&program, &[how]);
        let before = looks(&running.process());
        // What would need a system call is refused.
        for event in [EVENT, ":work stack", ":work text=+0($arg1):u8"] {
            let pid = running.pid.to_string();
            let words = ["record", "-o", text(&trace), "--duration", "50ms"];
            let output = capriole(&[&words[..], &["-e", event, "-p", &pid]].concat());
            let said = told(&output);
            assert!(!output.status.success(), "{how}, {event}: {said}");
            assert!(said.contains("PR_SET_SYSCALL_USER_DISPATCH"), "{said}");
        }
        for _ in 0..rounds(5, 50, 200) {
            let recorder = Background::attach(&trace, running.pid, &[":work n=$arg2"]);
            recorder.until_recorded();
            recorder.end();
            std::fs::remove_dir_all(&trace).expect("a trace");
        }
        assert_eq!(looks(&running.process()), before, "{how}");
        assert_no_session(&running.process());
        assert!(was_never_handed_a_call(running) > 0);
    }
}

/// No thread may make a call for us: that is said, and nothing is done.
#[test]
fn one_whose_calls_are_always_redirected_is_refused() {
    let Some(program) = program(Compiler::Gcc, &["-D_GNU_SOURCE"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let running = Running::start(&program, &["never"]);
    let before = looks(&running.process());
    let pid = running.pid.to_string();
    let output = capriole(&["record", "-o", text(&trace), "-e", ":work", "-p", &pid]);
    let said = told(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("redirected to itself"), "{said}");
    assert_eq!(looks(&running.process()), before);
    assert_no_session(&running.process());
    was_never_handed_a_call(running);
}

/// Attached before the program filters its calls; detached after.
#[test]
fn one_that_was_running_lives_too() {
    if !is_root("suspend a filter") {
        return;
    }
    let Some(program) = program(Compiler::Gcc, &[]) else {
        return;
    };
    for how in ["prctl", "thread", "strict"] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let mut running = Running::start(&program, &[how, "wait"]);
        let pid = running.pid.to_string();
        let mut recorder = recorder(&trace, &["--json", "-e", EVENT, "-p", &pid]);
        let recorder = recorder.stdout(std::process::Stdio::piped());
        let recorder = recorder.spawn().expect("capriole starts");
        traces::until_recording(running.pid);
        running.say("go");
        let calls = counted(&running.finished());
        let output = recorder.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", told(&output));
        let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(calls > FILTERED, "{how}");
        match how {
            "strict" => assert_eq!(told["ended"], "no clock", "{told}"),
            _ => assert!(told["not_read"].as_u64() > Some(0), "{how}: {told}"),
        }
        assert!(text(&trace).ends_with("trace"));
    }
}
