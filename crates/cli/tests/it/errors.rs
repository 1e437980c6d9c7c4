//! Tests for bad input: exit status 1, a message that tells what is wrong, where, and how to
//! fix it, and a program that is not affected.

use crate::programs;

use crate::target::{
    Looks, Running, assert_failed, assert_no_session, assert_text_is_the_files, capriole, is_root,
    looks, told,
};
use crate::traces::{record, recorder, scratch, summary, text};
use capriole_proc::process::Process;
use capriole_testkit::files::libc;
use capriole_testkit::steps::reached;
use programs::{Compiler, build};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Replaces run-time addresses, which differ on each run, with ADDRESS.
fn addresses_aside(text: &str) -> String {
    let mut pieces = text.split("0x");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(piece.len());
        if digits > 8 {
            out += "ADDRESS";
            out += &piece[digits..];
        } else {
            out += "0x";
            out += piece;
        }
    }
    out
}

/// A waiting program, and its earlier appearance.
struct Target {
    running: Running,
    before: Looks,
    pid: String,
    directory: tempfile::TempDir,
}

impl Target {
    fn start(program: &Path, words: &[&str]) -> Target {
        let running = Running::start(program, words);
        Target {
            before: looks(&running.process()),
            pid: running.pid.to_string(),
            running,
            directory: scratch(),
        }
    }

    fn counted() -> Option<Target> {
        let program = build(Compiler::Gcc, "counted.c", &[])?;
        Some(Target::start(&program, &["--wait"]))
    }

    fn trace(&self) -> PathBuf {
        self.directory.path().join("t")
    }

    /// Runs `capriole record` with these words, which must fail. Returns its message with the
    /// variable parts replaced.
    fn refuses(&mut self, words: &[&str]) -> String {
        let mut command = recorder(&self.trace(), words);
        self.refused(
            &command
                .args(["--duration", "5s", "-p", &self.pid])
                .output()
                .expect("it starts"),
        )
    }

    fn refused(&mut self, output: &Output) -> String {
        assert_failed(output);
        self.is_untouched();
        assert!(
            !self.trace().exists(),
            "a trace was left behind: {}",
            told(output)
        );
        self.said(output)
    }

    fn said(&self, output: &Output) -> String {
        assert_eq!(output.stdout, b"", "{}", told(output));
        let said = String::from_utf8(output.stderr.clone()).expect("UTF-8");
        let program = self.running.process().exe().map(|p| text(&p).to_owned());
        let said = match &program {
            Ok(path) => said.replace(path, "PROGRAM"),
            Err(_) => said,
        };
        let said = addresses_aside(&said);
        let name = self.running.process().name().to_owned();
        let name = said
            .split('`')
            .find(|word| word.starts_with(&name))
            .unwrap_or("PROGRAM");
        said.replace(name, "PROGRAM")
            .replace(text(self.directory.path()), "DIR")
            .replace(&format!("process {}", self.pid), "process PID")
            .replace(&format!("detach {}", self.pid), "detach PID")
    }

    fn is_untouched(&mut self) {
        self.running.assert_alive();
        let process = self.running.process();
        assert_eq!(looks(&process), self.before);
        assert_text_is_the_files(&process, false);
        assert_no_session(&process);
    }

    /// Checks that the program still works, and ends as it should.
    fn finish(mut self) {
        self.running.say("go");
        assert_eq!(self.running.line(), "ok calls=103");
        self.running.say("end");
        assert!(self.running.child.wait().expect("it ends").success());
    }
}

#[test]
fn events_that_mean_nothing_here() {
    let Some(mut target) = Target::counted() else {
        return;
    };
    insta::assert_snapshot!(target.refuses(&["-e", ":counted_wrok"]), @"capriole: event `:counted_wrok`: no function `counted_wrok` in PROGRAM; similar: `counted_work`, `counted_short`");
    insta::assert_snapshot!(target.refuses(&["-e", ":nothing_of_the_kind"]), @"capriole: event `:nothing_of_the_kind`: no function `nothing_of_the_kind` in PROGRAM; `capriole list` shows all that it has");
    let said = target.refuses(&["-e", ":nothing_of_the_kind_*"]);
    let wanted = " functions with names in PROGRAM matches `nothing_of_the_kind_*`; `capriole list` shows them
";
    assert!(said.ends_with(wanted), "{said}");
    insta::assert_snapshot!(target.refuses(&["-e", "libnothing:malloc"]), @"capriole: event `libnothing:malloc`: no program or library `libnothing` is loaded; loaded are, among others, `PROGRAM`, `libc.so.6`, `ld-linux-x86-64.so.2`");
    insta::assert_snapshot!(target.refuses(&["-e", ":stop_asked"]), @"capriole: event `:stop_asked`: `stop_asked` in PROGRAM is data, not a function");
    insta::assert_snapshot!(target.refuses(&["-e", ":printf"]), @"capriole: event `:printf`: `printf` is used but not defined in PROGRAM; write libc.so.6:printf");
    insta::assert_snapshot!(target.refuses(&["-e", ":getppid"]), @"capriole: event `:getppid`: no function `getppid` in PROGRAM; libc.so.6 has it: write libc.so.6:getppid");
    insta::assert_snapshot!(target.refuses(&["-e", ":counted_work %foo"]), @r"
    capriole: invalid register name `%foo`
      :counted_work %foo
                    ^
      help: the registers are %ax, %bx, %cx, %dx, %si, %di, %bp, %sp and %r8 to %r15, all of 64 bits
    ");
    insta::assert_snapshot!(target.refuses(&["-e", ":counted_work+1 $arg7"]), @"capriole: event `:counted_work+1 $arg7`: field `$arg7`: arguments on the stack are known at a function's entry only");
    insta::assert_snapshot!(target.refuses(&["-e", "r :counted_work $arg*"]), @"capriole: event `r :counted_work $arg*`: field `$arg*`: a function's arguments are kept for its return one by one: write $entry:NAME or $entry:arg1 for each");
    insta::assert_snapshot!(target.refuses(&["-e", "counted_worc"]), @"capriole: event `counted_worc`: no function `counted_worc` in PROGRAM, nor in its 2 libraries; similar: `:counted_work`, `:counted_short`");
    insta::assert_snapshot!(target.refuses(&["-e", "libc"]), @"capriole: event `libc`: `libc` is no function; libc.so.6 is loaded: write libc:FUNCTION, or libc:* for all of its functions");
    let said = target.refuses(&["-e", ":main", "-e", ":counted_work+0x1000"]);
    assert!(
        said.starts_with("capriole: event `:counted_work+0x1000`: `counted_work` has "),
        "{said}"
    );
    assert!(
        said.ends_with(
            " bytes: offset 0x1000 is outside of it
"
        ),
        "{said}"
    );
    // In the middle of `mov %edi,%eax`, next to `ret`.
    insta::assert_snapshot!(target.refuses(&["-e", ":counted_behind+1"]), @"capriole: no instruction starts at counted_behind+0x1: it is in the middle of the one at counted_behind; the next starts at counted_behind+0x2");
    let program = target.running.process().exe().expect("exe");
    let place = |offset: &str| format!("{}:{offset}", text(&program));
    insta::assert_snapshot!(target.refuses(&["-e", &place("0x10")]), @"capriole: event `PROGRAM:0x10`: there is no code at file offset 0x10 of PROGRAM (this is an offset in the file, not an address)");
    insta::assert_snapshot!(target.refuses(&["-e", &place("0x7fffffff")]), @"capriole: event `PROGRAM:0x7fffffff`: there is no code at file offset 0x7fffffff of PROGRAM (this is an offset in the file, not an address)");
    insta::assert_snapshot!(target.refuses(&["-e", ":counted_stubborn"]), @"capriole: counted_stubborn cannot be probed: region: less than 5 bytes up to ADDRESS, and no unused padding follows; pun: something may jump to ADDRESS, which would be covered; evict: something may jump to ADDRESS, which would be covered; trapped: breakpoints are used only on request (`--breakpoints`); int3: breakpoints are used only on request (`--breakpoints`); `capriole check` shows the site");
    target.finish();
}

/// Aggregates over many hits are for `stat`; elsewhere they would be ignored.
#[test]
fn aggregates_are_for_stat() {
    let Some(mut target) = Target::counted() else {
        return;
    };
    insta::assert_snapshot!(target.refuses(&["-e", ":main", "-e", ":counted_work x=$arg1 sum(n=$arg2) by x if n > 3"]), @r"
    capriole: aggregates and `by` are for counting (`capriole stat`)
      :counted_work x=$arg1 sum(n=$arg2) by x if n > 3
                            ^
      help: count the event, or write the fields alone, without aggregates and `by`
    ");
    insta::assert_snapshot!(target.refuses(&["-e", ":counted_work $arg1 by cpu, tid"]), @r"
    capriole: aggregates and `by` are for counting (`capriole stat`)
      :counted_work $arg1 by cpu, tid
                             ^
      help: count the event, or write the fields alone, without aggregates and `by`
    ");
    let file = target.directory.path().join("events");
    std::fs::write(
        &file,
        "p:g/a :counted_work count() # calls\n\np:g/b :main\np:g/c :main by comm\n",
    )
    .expect("ours");
    insta::assert_snapshot!(target.refuses(&["-f", text(&file)]), @r"
    capriole: DIR/events: line 1: aggregates and `by` are for counting (`capriole stat`)
      p:g/a :counted_work count()
                          ^
      help: count the event, or write the fields alone, without aggregates and `by`
    line 4: aggregates and `by` are for counting (`capriole stat`)
      p:g/c :main by comm
                     ^
      help: count the event, or write the fields alone, without aggregates and `by`
    ");
    let pid = target.pid.clone();
    for command in ["check", "list"] {
        let output = capriole(&[command, ":counted_work count()", "-p", &pid]);
        let said = target.refused(&output);
        assert!(
            said.starts_with("capriole: aggregates and `by` are for counting (`capriole stat`)\n"),
            "{said}"
        );
    }
    target.finish();
}

/// Latencies are for `stat` as well.
#[test]
fn latencies_are_for_stat() {
    let Some(mut target) = Target::counted() else {
        return;
    };
    insta::assert_snapshot!(target.refuses(&["-e", "latency(libc:read) by tid"]), @r"
    capriole: `latency(...)` is for measuring (`capriole stat`)
      latency(libc:read) by tid
      ^
      help: measure the event, or record calls from entry to exit (`capriole record --graph EVENT`)
    ");
    let file = target.directory.path().join("events");
    std::fs::write(&file, ":main\n\n latency(:main) # timed\n").expect("ours");
    insta::assert_snapshot!(target.refuses(&["-f", text(&file)]), @r"
    capriole: DIR/events: line 3: `latency(...)` is for measuring (`capriole stat`)
       latency(:main)
       ^
      help: measure the event, or record calls from entry to exit (`capriole record --graph EVENT`)
    ");
    let pid = target.pid.clone();
    for command in ["check", "list"] {
        let output = capriole(&[command, "latency(:main)", "-p", &pid]);
        let said = target.refused(&output);
        assert!(
            said.starts_with("capriole: `latency(...)` is for"),
            "{said}"
        );
    }
    target.finish();
}

#[test]
fn a_name_of_several_functions() {
    let Some(program) = build(Compiler::Gxx, "overloads.cpp", &["-no-pie"]) else {
        return;
    };
    let output = capriole(&["check", ":over::twice", text(&program)]);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let said = told(&output).replace(text(&program), "PROGRAM");
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[1].ends_with("`over::twice` names 3 functions; choose one:"),
        "{said}"
    );
    for name in [
        "over::twice(int)",
        "over::twice(double)",
        "over::twice(char const*, int)",
    ] {
        let line = lines
            .iter()
            .find(|l| l.contains(name))
            .expect("a candidate");
        assert!(
            line.starts_with("  PROGRAM:0x") && line.contains("[_ZN4over5twice"),
            "{said}"
        );
    }
}

#[test]
fn processes_that_cannot_be() {
    let directory = scratch();
    let trace = directory.path().join("t");
    let refused = |pid: &str| {
        let output = record(&trace, &["-e", ":main", "-p", pid]);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert!(!trace.exists());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    // Beyond the kernel's largest process number, 2^22.
    insta::assert_snapshot!(refused("4194999"), @"capriole: no process has the number 4194999 (it may have ended)");

    insta::assert_snapshot!(refused("0"), @"capriole: no process has the number 0: numbers begin at 1");

    let mut child = Command::new("true").spawn().expect("it starts");
    let pid = child.id().to_string();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a zombie");
    while !state().contains(") Z ") {
        std::thread::yield_now();
    }
    insta::assert_snapshot!(refused(&pid).replace(&pid, "PID"), @"capriole: process PID (true) has already ended (zombie); there is nothing left to trace");
    child.wait().expect("it has ended");

    let is_kernel_thread = |pid: &u32| {
        capriole_proc::process::Process::open(*pid)
            .and_then(|p| p.stat())
            .is_ok_and(|stat| stat.is_kernel_thread())
    };
    match (2..200).find(is_kernel_thread) {
        None => println!("skipped: no thread of the kernel is to be seen here"),
        Some(pid) => {
            let said = refused(&pid.to_string());
            let wanted =
                "is a thread of the kernel and has no program; only user programs can be traced\n";
            assert!(said.ends_with(wanted), "{said}");
        }
    }

    // A thread of a program other than its first.
    let Some(program) = build(Compiler::Gcc, "static.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &[]);
    let thread = *running
        .process()
        .threads()
        .expect("threads")
        .last()
        .expect("three");
    let said = refused(&thread.to_string());
    assert_eq!(
        said,
        format!(
            "capriole: {thread} is a thread of process {0}; use -p {0}\n",
            running.pid
        )
    );
    running.finish();
}

#[test]
fn somebody_elses_process() {
    if !is_root("become another user") {
        return;
    }
    let Some(mut target) = Target::counted() else {
        return;
    };
    // A directory where the other user may execute and write.
    let directory = tempfile::tempdir().expect("a directory");
    let capriole = Path::new(env!("CARGO_BIN_EXE_capriole"));
    let copy = programs::copied_for_others(capriole, directory.path(), 0o777);
    let as_other = |words: &[&str]| {
        let mut command = Command::new(&copy);
        command
            .args(words)
            .uid(65534)
            .gid(65534)
            .current_dir(directory.path());
        command.output().expect("it starts")
    };
    let pid = target.pid.clone();
    for words in [
        &["record", "-e", ":main", "-p", &pid][..],
        &["detach", &pid],
        &["list", "-p", &pid],
    ] {
        let output = as_other(words);
        let said = target.refused(&output);
        assert!(
            said.starts_with("capriole: process PID (counted-"),
            "{said}"
        );
        assert!(said.contains("): not permitted to trace it; "), "{said}");
        assert!(said.contains("root"), "{said}");
    }
    target.finish();
}

#[test]
fn programs_of_another_kind() {
    if let Some(program) = build(Compiler::Gcc, "thirtytwo.c", &["-m32"]) {
        let running = Running::start(&program, &[]);
        let directory = scratch();
        let pid = running.pid.to_string();
        let output = record(&directory.path().join("t"), &["-e", ":main", "-p", &pid]);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert!(
            told(&output).contains("runs a 32-bit program; only 64-bit"),
            "{}",
            told(&output)
        );
        running.finish();
    }
    // The file header is enough to detect these.
    let directory = scratch();
    let mut header = std::fs::read(env!("CARGO_BIN_EXE_capriole")).expect("ourselves");
    header.truncate(4096);
    let refused = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = header.clone();
        change(&mut bytes);
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let output = capriole(&["list", text(&path)]);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert_eq!(output.stdout, b"");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        said.replace(text(directory.path()), "DIR")
    };
    insta::assert_snapshot!(refused("arm", &|b| b[18] = 183), @"capriole: DIR/arm: made for another processor (ELF machine 183); only x86-64 can be traced");
    insta::assert_snapshot!(refused("x32", &|b| b[4] = 1), @"capriole: DIR/x32: a 32-bit file; only 64-bit x86 programs can be traced");
    insta::assert_snapshot!(refused("text", &|b| *b = b"#!/bin/sh\n".to_vec()), @"capriole: DIR/text: not an ELF file; name the program or library itself");
    insta::assert_snapshot!(refused("empty", &|b| b.clear()), @"capriole: DIR/empty: not an ELF file; name the program or library itself");
    insta::assert_snapshot!(refused("cut", &|b| b.truncate(100)), @"capriole: DIR/cut: damaged ELF file: bad program headers");
}

#[test]
fn a_program_that_is_traced_already() {
    let Some(mut target) = Target::counted() else {
        return;
    };
    let pid = target.running.pid as libc::pid_t;
    // SAFETY: makes this thread the tracer of its child; no memory is involved.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
    assert_eq!(seized, 0);
    let said = target.refuses(&["-e", ":main"]);
    // SAFETY: only returns a number.
    let own = unsafe { libc::gettid() }.to_string();
    // The thread of a test has the test's name, truncated.
    insta::assert_snapshot!(said.replace(&own, "TRACER"), @"capriole: process PID is already traced by errors::a_progr (pid TRACER); end that program or detach it first");
    // SAFETY: as above; the thread must be stopped for the detach below.
    let interrupted = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0) };
    assert_eq!(interrupted, 0);
    let mut status = 0;
    // SAFETY: waits for the stop; `status` is a place for the answer.
    let stopped = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
    assert_eq!(stopped, pid);
    // SAFETY: as above.
    let detached = unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
    assert_eq!(detached, 0);
    target.finish();
}

#[test]
fn a_process_that_ends_meanwhile() {
    let Some(program) = build(Compiler::Gcc, "exit_race.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let (mut recorded, mut late) = (0, 0);
    for after in (0..24).map(|step| step * 1500) {
        let after = after.to_string();
        let mut running = Running::start(&program, &["--how", "exit", "--after-us", &after]);
        let pid = running.pid.to_string();
        let output = record(&trace, &["-e", ":race_work $arg1", "-p", &pid]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            // The program's own.
            Some(7) => {
                assert!(
                    said.contains("the program has ended with status 7"),
                    "{said}"
                );
                assert_eq!(summary(&trace)["complete"], true);
                recorded += 1;
            }
            Some(1) => {
                let known = [
                    "no process has the number",
                    "has already ended (zombie)",
                    "ended while it was being attached to",
                ];
                assert!(known.iter().any(|text| said.contains(text)), "{said}");
                assert_eq!(said.lines().count(), 1, "{said}");
                late += 1;
            }
            other => panic!("{other:?}: {}", told(&output)),
        }
        let status = running.child.wait().expect("it ends");
        assert_eq!((status.code(), status.signal()), (Some(7), None), "{said}");
    }
    println!("{recorded} were recorded, {late} had ended");
}

#[test]
fn no_room_for_detours() {
    for flags in [&[][..], &["-no-pie"]] {
        let Some(program) = build(Compiler::Gcc, "nospace.c", flags) else {
            return;
        };
        let mut target = Target::start(&program, &[]);
        let said = target.refuses(&["-e", ":nospace_work"]);
        assert!(said.starts_with("capriole: no free memory of "), "{said}");
        assert!(said.ends_with("a jump reaches no further\n"), "{said}");
        assert!(target.running.finish().contains("ok calls="));
    }
}

/// Where a thread blocks SIGTRAP it takes long to see that it goes on doing so. Nobody waits for that
/// if no probe needs a breakpoint.
#[test]
fn blocked_signals_are_looked_at_only_for_breakpoints() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let target = Target::start(&program, &["--wait", "--block-sigtrap"]);
    for (words, asks) in [(&[][..], false), (&["--breakpoints"], true)] {
        let mut command = recorder(&target.trace(), &["-e", ":counted_*"]);
        command.args(words).args(["--duration", "10ms"]);
        let (steps, output) = reached(command.args(["-p", &target.pid]));
        assert!(output.status.success(), "{}", told(&output));
        let asked = steps
            .iter()
            .any(|step| step.name == "breakpoints asked for");
        assert_eq!(asked, asks, "{words:?} {steps:?}");
        std::fs::remove_dir_all(target.trace()).expect("a trace");
    }
    target.finish();
}

/// Functions that only a breakpoint can reach, in programs that a breakpoint would kill.
#[test]
fn breakpoints_that_would_kill() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let mut target = Target::start(&program, &["--wait", "--ignore-sigtrap"]);
    insta::assert_snapshot!(target.refuses(&["--breakpoints", "-e", ":counted_stubborn"]), @"capriole: counted_stubborn cannot be probed: region: less than 5 bytes up to ADDRESS, and no unused padding follows; pun: something may jump to ADDRESS, which would be covered; evict: something may jump to ADDRESS, which would be covered; trapped: breakpoints cannot be used: the program ignores SIGTRAP, so a breakpoint would kill it; int3: breakpoints cannot be used: the program ignores SIGTRAP, so a breakpoint would kill it; `capriole check` shows the site");
    target.finish();
    let mut target = Target::start(&program, &["--wait", "--block-sigtrap"]);
    insta::assert_snapshot!(target.refuses(&["--breakpoints", "-e", ":counted_stubborn"]), @"capriole: counted_stubborn cannot be probed: region: less than 5 bytes up to ADDRESS, and no unused padding follows; pun: something may jump to ADDRESS, which would be covered; evict: something may jump to ADDRESS, which would be covered; trapped: breakpoints cannot be used: a thread blocks SIGTRAP, so a breakpoint would kill the program; int3: breakpoints cannot be used: a thread blocks SIGTRAP, so a breakpoint would kill the program; `capriole check` shows the site");
    // With a pattern it is left out, and the rest is recorded.
    let words = ["--breakpoints", "-e", ":counted_*", "--duration", "10ms"];
    let mut command = recorder(&target.trace(), &words);
    let output = command
        .args(["-p", &target.pid])
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", told(&output));
    let said = told(&output);
    let wanted = "left out: 3 of 6 functions (too short for a jump: 3); `capriole check EVENT`";
    assert!(said.contains(wanted), "{said}");
    target.is_untouched();
    target.finish();
}

/// A small file system of its own; needs root. Unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn of_kib(size: u32) -> Option<SmallDisk> {
        let directory = scratch();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}k"), "none"])
            .arg(directory.path())
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(SmallDisk(directory)),
            Ok(output) => {
                println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                println!("skipped: cannot run mount: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Checks that the recording stops, that the program goes on without probes, and that the data
/// on disk can be read.
fn recording_was_cut_short(output: &Output, trace: &Path, started: bool) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}", told(output));
    let (first, last) = said.trim_end().rsplit_once('\n').expect("two lines");
    assert!(first.contains("cannot write "), "{said}");
    // A program that `record` started may have ended by then.
    let goes_on = last.contains("; the program goes on without probes; ");
    let ended = started && last.contains("; the program has ended; ");
    assert!(goes_on || ended, "{said}");
    let has = format!("; {} has the events until then", trace.display());
    assert!(last.starts_with("capriole: recording stopped; "), "{said}");
    assert!(last.ends_with(&has), "{said}");
    let found = summary(trace);
    let events = found["events"].as_u64().expect("a number");
    assert!(events > 0, "{found}");
    match Command::new("babeltrace2").arg(trace).output() {
        Err(error) => println!("skipped: cannot run babeltrace2: {error}"),
        Ok(read) => {
            assert!(
                read.status.success(),
                "{}",
                told(&read).chars().take(2000).collect::<String>()
            );
            assert_eq!(
                read.stdout.iter().filter(|b| **b == b'\n').count() as u64,
                events
            );
        }
    }
}

#[test]
fn a_full_disk() {
    let Some(program) = build(Compiler::Gcc, "static.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &[]);
    let process = running.process();
    let pid = running.pid.to_string();
    let untouched = || {
        assert!(process.is_alive());
        assert_text_is_the_files(&process, false);
        assert_no_session(&process);
    };
    if let Some(disk) = SmallDisk::of_kib(2048) {
        let trace = disk.0.path().join("t");
        let output = record(&trace, &["-e", ":static_leaf", "-p", &pid]);
        let said = told(&output);
        assert!(
            said.contains("No space left on device (os error 28)\n"),
            "{said}"
        );
        recording_was_cut_short(&output, &trace, false);
        untouched();
        // The disk is full from the beginning.
        let second = disk.0.path().join("u");
        let output = record(&second, &["-e", ":static_leaf", "-p", &pid]);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert!(
            told(&output).contains("No space left on device"),
            "{}",
            told(&output)
        );
        untouched();
    }
    // No file may be larger than 8192 blocks of 512 or 1024 bytes, and the shared memory
    // counts as a file.
    let directory = scratch();
    let trace = directory.path().join("t");
    let limited = "ulimit -f 8192; exec \"$@\"";
    let capriole = env!("CARGO_BIN_EXE_capriole");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        limited,
        "sh",
        capriole,
        "record",
        "--buffer-size",
        "1M",
        "-e",
        ":static_leaf",
        "-p",
        &pid,
        "-o",
    ]);
    let output = command.arg(&trace).output().expect("a shell");
    assert!(
        told(&output).contains("File too large (os error 27)\n"),
        "{}",
        told(&output)
    );
    recording_was_cut_short(&output, &trace, false);
    untouched();
    running.finish();

    // A program that `record` started still runs to its end.
    let trace = directory.path().join("u");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        limited,
        "sh",
        capriole,
        "record",
        "--buffer-size",
        "1M",
        "-e",
        ":static_leaf",
        "-o",
    ]);
    command
        .arg(&trace)
        .arg("--")
        .arg(&program)
        .args(["--seconds", "0.7"]);
    let output = command.output().expect("a shell");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("\nok calls="), "{}", told(&output));
    recording_was_cut_short(&output, &trace, true);
}

#[test]
fn places_where_no_trace_can_be() {
    let Some(mut target) = Target::counted() else {
        return;
    };
    let directory = scratch();
    let file = directory.path().join("file");
    std::fs::write(&file, "mine").expect("a file");
    let full = directory.path().join("full");
    std::fs::create_dir(&full).expect("a directory");
    std::fs::write(full.join("mine"), "mine").expect("a file");
    let mut refused = |place: &Path| {
        let output = record(place, &["-e", ":main", "-p", &target.pid]);
        let said = target.refused(&output);
        said.replace(text(directory.path()), "PLACE")
    };
    insta::assert_snapshot!(refused(&file), @"capriole: PLACE/file exists and is not a directory; choose another place for the trace");
    insta::assert_snapshot!(refused(&full), @"capriole: PLACE/full exists and is not a trace; move it away, or choose another place for the trace");
    insta::assert_snapshot!(refused(&directory.path().join("no/such")), @"capriole: cannot create PLACE/no/such: No such file or directory (os error 2)");
    insta::assert_snapshot!(refused(Path::new("/dev/full")), @"capriole: /dev/full exists and is not a directory; choose another place for the trace");
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "mine");
    assert_eq!(
        std::fs::read_to_string(full.join("mine")).expect("it is there"),
        "mine"
    );
    target.finish();
}

#[test]
fn programs_that_cannot_be_started() {
    let directory = scratch();
    let trace = directory.path().join("t");
    let script = directory.path().join("script");
    std::fs::write(&script, "echo hello\n").expect("a file");
    let refused = |words: &[&str]| {
        let output = record(&trace, words);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert!(!trace.exists(), "{}", told(&output));
        assert_eq!(output.stdout, b"");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        said.replace(text(directory.path()), "DIR")
    };
    insta::assert_snapshot!(refused(&["-e", ":main", "--", "./no-such-program"]), @"capriole: cannot start ./no-such-program: no such program; is it in PATH?");
    insta::assert_snapshot!(refused(&["-e", ":main", "--", "no-such-program"]), @"capriole: cannot start no-such-program: no such program; is it in PATH?");
    insta::assert_snapshot!(refused(&["-e", ":main", "--", text(directory.path())]), @"capriole: cannot start DIR: Permission denied (os error 13)");
    insta::assert_snapshot!(refused(&["-e", ":main", "--", text(&script)]), @"capriole: cannot start DIR/script: Permission denied (os error 13)");
    // With a bad event the program does not even start, or is killed.
    let made = directory.path().join("made");
    for event in ["main", ":no_such_function"] {
        refused(&["-e", event, "--", "touch", text(&made)]);
        assert!(!made.exists());
    }
}

/// No trace, half a trace, or something else.
#[test]
fn traces_that_cannot_be_read() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let make = || {
        let output = record(&trace, &["-e", ":counted_work $arg2", "--", text(&program)]);
        assert!(output.status.success(), "{}", told(&output));
    };
    let report = |path: &Path| {
        let output = capriole(&["report", "--summary", "--json", text(path)]);
        let said = String::from_utf8(output.stderr.clone()).expect("UTF-8");
        (output, said.replace(text(directory.path()), "DIR"))
    };
    let refused = |path: &Path| {
        let (output, said) = report(path);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert_eq!(output.stdout, b"", "{}", told(&output));
        said
    };
    insta::assert_snapshot!(refused(&directory.path().join("none")), @"capriole: there is no trace at DIR/none; `capriole record -o DIR` makes one");
    insta::assert_snapshot!(refused(&program).replace(text(&program), "PROGRAM"), @"capriole: PROGRAM is not a capriole trace: it has no info/capriole.json");
    let json = trace.join("info/capriole.json");
    make();
    std::fs::write(&json, "{\"no\": \"trace\"}").expect("ours");
    insta::assert_snapshot!(refused(&trace), @"capriole: DIR/t/info/capriole.json is damaged: missing field `format_version` at line 1 column 15");
    make();
    let whole = std::fs::read(&json).expect("ours");
    std::fs::write(&json, &whole[..whole.len() / 2]).expect("ours");
    let said = refused(&trace);
    assert!(
        said.starts_with("capriole: DIR/t/info/capriole.json is damaged: EOF"),
        "{said}"
    );
    std::fs::remove_file(&json).expect("ours");
    insta::assert_snapshot!(refused(&trace), @"capriole: DIR/t is not a capriole trace: it has no info/capriole.json");

    // Truncated or overwritten streams: existing data is shown, and missing data is reported.
    make();
    let stream = std::fs::read_dir(&trace)
        .expect("a directory")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("cpu"))
        })
        .max_by_key(|path| path.metadata().map_or(0, |m| m.len()))
        .expect("a stream");
    let bytes = std::fs::read(&stream).expect("ours");
    for (cut, garbage) in [(bytes.len() - 7, false), (40, false), (bytes.len(), true)] {
        let mut changed = bytes[..cut].to_vec();
        if garbage {
            changed.fill(0x5a);
        }
        std::fs::write(&stream, &changed).expect("ours");
        let (output, said) = report(&trace);
        assert!(output.status.success(), "{}", told(&output));
        assert!(said.starts_with("capriole: "), "{}", told(&output));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_ne!(found["damages"], 0, "{found}");
        assert!(found["events"].as_u64() < Some(103), "{found}");
    }
}

/// Usage errors are errors that no process and no file could make right.
#[test]
fn wrong_usage() {
    let wrong: [&[&str]; 19] = [
        &[],
        &["frobnicate"],
        &["record"],
        &["record", "-e", ":main"],
        &["record", "-p", "1"],
        &["record", "-e", ":main", "-p", "1", "--", "true"],
        &["record", "-e", ":main", "-p", "one"],
        &["record", "-e", ":main", "--duration", "soon", "--", "true"],
        &["record", "-e", ":main", "--buffer-size", "3", "--", "true"],
        &["record", "-e", ":main", "--frob", "--", "true"],
        &["list"],
        &["list", "-p", "1", ":a", "b"],
        &["list", "a", "b", "c"],
        &["check"],
        &["check", ":main"],
        &["check", ":main", "/bin/true", "-p", "1"],
        &["report", "a", "b"],
        &["detach"],
        &["detach", "self"],
    ];
    for words in wrong {
        let output = capriole(words);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{words:?}: {}",
            told(&output)
        );
        assert!(
            !output.stderr.is_empty() && output.stdout.is_empty(),
            "{words:?}"
        );
    }
}

/// A reader that closes the pipe early is no error.
#[test]
fn a_closed_pipe() {
    let Some(program) = libc() else {
        return println!("skipped: no C library is mapped here");
    };
    let program = text(&program);
    for words in [&["list", program][..], &["list", "--json", program]] {
        let mut command = crate::target::own();
        let mut child = command
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{}",
            told(&output)
        );
    }
}

/// Before anything was changed, Ctrl-C ends the command like any other.
#[test]
fn ctrl_c_while_it_plans() {
    let Some(program) = build(Compiler::Gcc, "many.c", &[]) else {
        return;
    };
    let mut target = Target::start(&program, &[]);
    let words = ["--graph", ":many_*", "-p", &target.pid];
    let mut command = recorder(&target.trace(), &words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recorder = command.spawn().expect("it starts");
    // Wait until it catches the signal and plans with several threads, or has ended.
    let process = Process::open(recorder.id()).expect("a child");
    let plans = || {
        let status = process.status();
        let catches = status.is_ok_and(|status| status.caught.contains(libc::SIGINT));
        catches && process.threads().is_ok_and(|threads| threads.len() > 1)
    };
    while !plans() && recorder.try_wait().expect("a child").is_none() {
        std::thread::yield_now();
    }
    // SAFETY: sends a signal to a child of this test that has not been waited for.
    assert_eq!(unsafe { libc::kill(recorder.id() as i32, libc::SIGINT) }, 0);
    let output = recorder.wait_with_output().expect("a child");
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGINT),
        "{}",
        told(&output)
    );
    assert!(!target.trace().exists());
    target.is_untouched();
}

#[test]
fn no_threads_to_be_had() {
    if !is_root("become another user") {
        return;
    }
    let open = scratch();
    let capriole = Path::new(env!("CARGO_BIN_EXE_capriole"));
    let copy = programs::copied_for_others(capriole, open.path(), 0o755);
    let one = || Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    let limited = |words: &[&str]| {
        let mut command = Command::new(&copy);
        // A user who runs nothing else.
        command.args(words).uid(54_321).gid(54_321);
        // SAFETY: only a system call is made between fork and exec.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nproc, one())?)) };
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        output
    };
    // Detaching needs no threads.
    let detach = told(&limited(&["detach", &std::process::id().to_string()]));
    assert!(!detach.contains("threads"), "{detach}");
    let output = limited(&["check", "/bin/true"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with(
            "capriole: cannot start threads; raise the limits of processes (ulimit -u)"
        ),
        "{said}"
    );
}

/// The program stands behind the event; the other way round, the message says so.
#[test]
fn the_file_stands_last() {
    let Some(program) = build(Compiler::Gcc, "requests.c", &[]) else {
        return;
    };
    for (command, event) in [("list", "handle"), ("list", ":handle"), ("check", "handle")] {
        let output = capriole(&[command, text(&program), event]);
        let advice = format!("write `capriole {command} '{event}' {}`", text(&program));
        assert!(told(&output).contains(&advice), "{}", told(&output));
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let output = capriole(&[command, event, text(&program)]);
        assert!(output.status.success(), "{}", told(&output));
    }
}

/// Results that cannot be written are an error, which names standard output.
#[test]
fn standard_output_is_full() {
    for words in [
        &["--help"][..],
        &["--version"],
        &["help"],
        &["help", "events"],
        &["stat", "--help"],
        &["list", env!("CARGO_BIN_EXE_capriole")],
        &["stat", "-e", "libc:malloc", "--", "/bin/true"],
        &["stat", "--json", "-e", "libc:malloc", "--", "/bin/true"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let output = crate::target::command(words)
            .stdout(full.expect("/dev/full"))
            .output()
            .expect("capriole starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        let told = said.lines().filter(|line| {
            *line
                == "capriole: cannot write to standard output: No space left on device (os error 28)"
        });
        assert_eq!(told.count(), 1, "{words:?}: {said}");
    }
}
