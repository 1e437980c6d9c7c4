//! `capriole record` works on programs of every kind, started by it or already running: ways of
//! linking, C libraries, languages, numbers of threads, ways to end.

use crate::programs::{Compiler, build};
use crate::target::{
    self, Effort, Running, assert_no_session, assert_text_is_the_files, capriole, effort, rounds,
    told, until,
};
use crate::traces::{
    Background, calls, counted, events, record, record_program, recorder, scratch, summary, text,
};
use capriole_object::Objects;
use capriole_patch::recover::find;
use capriole_proc::process::Process;
use capriole_testkit::steps::{dies_at, few, reached};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Returns every build of a C program that is possible here.
fn ways() -> Vec<(&'static str, PathBuf)> {
    let ways: [(&str, Compiler, &[&str]); 7] = [
        ("PIE", Compiler::Gcc, &[]),
        ("non-PIE", Compiler::Gcc, &["-no-pie"]),
        ("static", Compiler::Gcc, &["-static"]),
        ("static-pie", Compiler::Gcc, &["-static-pie"]),
        ("musl", Compiler::MuslGcc, &[]),
        ("static musl", Compiler::MuslGcc, &["-static"]),
        ("stripped", Compiler::Gcc, &["-rdynamic", "-s"]),
    ];
    let built = |(name, compiler, flags)| Some((name, build(compiler, "counted.c", flags)?));
    ways.into_iter().filter_map(built).collect()
}

fn path_of(program: &Path) -> String {
    text(program).to_owned()
}

/// From the constructor on, through 4 threads, to the exit status: no call is missing, and each
/// has its arguments.
#[test]
fn started_programs_are_recorded_from_their_first_call() {
    for (way, program) in ways() {
        let directory = scratch();
        let trace = directory.path().join("t");
        let output = record(
            &trace,
            &[
                "-e",
                ":counted_work $arg1 seq=$arg2 $arg6",
                "-e",
                ":main",
                "--",
                &path_of(&program),
                "--threads",
                "4",
                "--calls",
                "200",
                "--exit",
                "7",
            ],
        );
        assert_eq!(output.status.code(), Some(7), "{way}: {}", told(&output));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "ok calls=803\n",
            "{way}"
        );
        let calls = calls(&trace);
        assert_eq!((calls["counted_work"], calls["main"]), (803, 1), "{way}");

        let mut seen = Vec::new();
        let mut main_at = None;
        for (index, event) in events(&trace).iter().enumerate() {
            if event["event"] == "main" {
                assert_eq!(event["arguments"], serde_json::json!({}));
                main_at = Some(index);
                continue;
            }
            let number = |name: &str| {
                let text = event["arguments"][name].as_str().expect("hexadecimal");
                u64::from_str_radix(&text[2..], 16).expect("hexadecimal")
            };
            assert_eq!(event["arguments"].as_object().expect("fields").len(), 3);
            seen.push((number("arg1"), number("seq")));
        }
        // The constructor makes its three calls before main.
        assert_eq!(
            (main_at, &seen[..3]),
            (Some(3), &[(1000, 0), (1000, 1), (1000, 2)][..]),
            "{way}"
        );
        let mut wanted: Vec<_> = (0..4).flat_map(|t| (0..200).map(move |s| (t, s))).collect();
        wanted.extend((0..3).map(|s| (1000, s)));
        wanted.sort_unstable();
        seen.sort_unstable();
        assert_eq!(seen, wanted, "{way}");
    }
}

#[test]
fn running_programs_are_recorded_and_left_as_they_were() {
    for (way, program) in ways() {
        let directory = scratch();
        let mut running = Running::start(&program, &["--wait", "--threads", "3", "--calls", "50"]);
        let trace = directory.path().join("t");
        let recorder = Background::attach(&trace, running.pid, &[":counted_work $arg1", ":main"]);
        running.say("go");
        assert_eq!(running.line(), "ok calls=153", "{way}");
        let said = recorder.end();
        assert_eq!(
            (&said["events"], &said["ended"]),
            (&150.into(), &"requested".into()),
            "{way}"
        );
        assert_eq!(calls(&trace)["counted_work"], 150, "{way}");
        let with_threads: Vec<_> = events(&trace).iter().map(|e| e["tid"].as_u64()).collect();
        let mut different = with_threads.clone();
        different.sort_unstable();
        different.dedup();
        assert!(
            !different.contains(&Some(0)),
            "{way}: a thread id is unknown"
        );
        assert!(different.len() <= 3, "{way}: {different:?}");
        running.assert_alive();
        let process = running.process();
        assert_text_is_the_files(&process, false);
        assert_no_session(&process);
        running.signal(libc::SIGTERM);
        assert!(running.child.wait().expect("it ends").success(), "{way}");
    }
}

#[test]
fn a_function_without_a_name_is_found_by_its_place_in_the_file() {
    let (Some(named), Some(stripped)) = (
        build(Compiler::Gcc, "counted.c", &[]),
        build(Compiler::Gcc, "counted.c", &["-s"]),
    ) else {
        return;
    };
    // Same source and flags: stripping moves nothing.
    let listed = capriole(&["list", "--json", "counted_work", text(&named)]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let offset = listed[0]["offset"].as_str().expect("an offset");
    let directory = scratch();
    let trace = directory.path().join("t");
    let by_place = format!("{}:{offset} seq=$arg2", text(&stripped));
    let output = record(&trace, &["-e", &by_place, "--", text(&stripped)]);
    assert!(output.status.success(), "{}", told(&output));
    // It has the name that the kernel gives such an event.
    assert_eq!(calls(&trace), [(format!("p_counted_{offset}"), 103)].into());
    let output = record(&trace, &["-e", ":*", "--", text(&stripped)]);
    assert!(
        told(&output).contains("matches `*`: it was stripped of all names: use PATH:0xOFFSET"),
        "{}",
        told(&output)
    );
    let output = record(&trace, &["-e", ":counted_work", "--", text(&stripped)]);
    assert_eq!(output.status.code(), Some(1));
    let said = told(&output);
    assert!(
        said.contains("stripped of all names: use PATH:0xOFFSET"),
        "{said}"
    );
}

#[test]
fn cxx_functions_by_every_name() {
    let Some(program) = build(Compiler::Gxx, "overloads.cpp", &[]) else {
        return;
    };
    let by_demangled = [
        ("over::twice(int)", 11),
        ("over::twice(double)", 12),
        ("over::twice(char const*, int)", 13),
        ("over::Value::operator<<(int) const", 14),
        ("over::Value::operator<(over::Value const&) const", 15),
        ("over::Value::operator()(int) const", 16),
        ("over::Sized<int, 3>::times(int)", 17),
    ];
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut arguments = Vec::new();
    for (name, _) in by_demangled {
        arguments.extend(["-e".to_owned(), format!(":{name} $arg1")]);
    }
    arguments.extend(["--".to_owned(), path_of(&program)]);
    let output = record(&trace, &arguments);
    assert!(output.status.success(), "{}", told(&output));
    let found = calls(&trace);
    for (name, count) in by_demangled {
        assert_eq!(found.get(name), Some(&count), "{name}: {found:?}");
    }

    // Mangled names, names without parameters where unambiguous, and patterns.
    let others = [
        ("_ZN4over5twiceEi", 11),
        ("_ZN4over5SizedIiLi3EE5timesEi", 17),
        ("over::Value::operator<<", 14),
        ("over::Value::operator()", 16),
        ("over::Sized<int, 3>::times", 17),
    ];
    for (name, count) in others {
        let event = format!(":{name}");
        let output = record(&trace, &["-e", &event, "--", text(&program)]);
        assert!(output.status.success(), "{name}: {}", told(&output));
        assert_eq!(summary(&trace)["events"], count, "{name}");
    }
    let output = record(&trace, &["-e", ":over::twice*", "--", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(summary(&trace)["events"], 11 + 12 + 13);

    let output = record(&trace, &["-e", ":over::twice", "--", text(&program)]);
    let said = told(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("names 3 functions; choose one"), "{said}");
    assert!(said.contains("over::twice(char const*, int)"), "{said}");
}

#[test]
fn rust_functions_by_both_names() {
    let Some(program) = build(Compiler::Rustc, "rustprog.rs", &[]) else {
        return;
    };
    let listed = capriole(&["list", "--json", "rustprog::work", text(&program)]);
    assert!(listed.status.success(), "{}", told(&listed));
    let directory = scratch();
    let trace = directory.path().join("t");
    let symbols = Command::new("nm").arg(&program).output().expect("nm");
    let symbols = String::from_utf8(symbols.stdout).expect("names");
    let mangled = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|name| name.contains("8rustprog4work"))
        .expect("the function");
    for name in ["rustprog::work", mangled] {
        let event = format!(":{name} $arg1 $arg2");
        let words = ["-e", &event, "--", text(&program), "--calls", "1000"];
        let output = record(&trace, &words);
        assert!(output.status.success(), "{name}: {}", told(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(summary(&trace)["events"], counted(&said), "{name}");
    }
}

#[test]
fn two_hundred_threads() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let events = ["-e", ":counted_*", "-e", ":counted_work $arg1"];
    let words = ["--threads", "200", "--calls", "100"];
    record_program(&trace, &events, &program, &words);
    let found = summary(&trace);
    assert_eq!(found["lost_events"], 0, "{found}");
    assert!(found["threads"].as_u64() > Some(190), "{found}");
    let work: Vec<_> = found["by_event"]
        .as_array()
        .expect("events")
        .iter()
        .filter(|e| e["event"] == "counted_work")
        .map(|e| e["calls"].as_u64())
        .collect();
    // Each call appears twice: once by the pattern, once with an argument.
    assert_eq!(work, [Some(2 * 20_003)]);

    // Attach while the threads hammer.
    let Some(hammer) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    // So many that never sleep keep all processors busy for long.
    let sleeps: &[&str] = match effort() {
        Effort::Test => &["--sleep", "20000"],
        _ => &[],
    };
    let running = Running::start(&hammer, &[&["--threads", "200"], sleeps].concat());
    let recorder = Background::attach(&trace, running.pid, &[":work_switch $arg1 $arg2"]);
    recorder.until_recorded();
    let said = recorder.end();
    assert!(said["events"].as_u64() > Some(0), "{said}");
    assert_no_session(&running.process());
    assert!(running.finish().contains("ok calls="));
}

#[test]
fn the_exit_status_is_the_programs() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let ends: [(&[&str], i32); 5] = [
        (&[], 0),
        (&["--exit", "7"], 7),
        (&["--exit", "255"], 255),
        (&["--raise", "9"], 128 + 9),
        (&["--raise", "15"], 128 + 15),
    ];
    for (words, status) in ends {
        let mut command = recorder(&trace, &["-e", ":counted_work", "--"]);
        let output = command
            .arg(&program)
            .args(words)
            .output()
            .expect("capriole starts");
        assert_eq!(
            output.status.code(),
            Some(status),
            "{words:?}: {}",
            told(&output)
        );
        assert_eq!(calls(&trace)["counted_work"], 103, "{words:?}");
        assert_eq!(output.status.signal(), None);
    }
}

/// The program keeps its own input, output and signals.
#[test]
fn a_started_program_does_not_notice() {
    let directory = scratch();
    let trace = directory.path().join("t");
    let script = "read a; echo \"got $a\"; echo err >&2; cat /proc/self/status | \
                  grep -E '^Sig(Ign|Blk|Cgt)|^TracerPid'; nice; ls /proc/self/fd | wc -l";
    let bare = |mut command: Command| {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        use std::io::Write;
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"word\n").expect("it reads");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        // Signals 32 and 33 belong to the C library: the way it creates a child decides if they are
        // ignored there.
        String::from_utf8_lossy(&output.stdout)
            .replace("SigIgn:\t0000000180", "SigIgn:\t0000000080")
    };
    let mut plain = Command::new("sh");
    plain.args(["-c", script]);
    let traced = recorder(&trace, &["-e", "libc:read*", "--", "sh", "-c", script]);
    let (plain, traced) = (bare(plain), bare(traced));
    assert!(plain.starts_with("got word\n"), "{plain}");
    assert_eq!(plain, traced);
}

#[test]
fn a_recording_ends_by_signal_or_after_its_time() {
    let Some(program) = build(Compiler::Gcc, "static.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let running = Running::start(&program, &[]);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let recorder = Background::attach(&trace, running.pid, &[":static_leaf"]);
        let said = recorder.end_by(signal);
        assert_eq!(said["ended"], "requested");
        let found = summary(&trace);
        assert_eq!(
            (&found["complete"], &found["events"]),
            (&true.into(), &said["events"])
        );
        assert_no_session(&running.process());
    }
    let pid = running.pid.to_string();
    let words = [
        "-e",
        ":static_leaf",
        "-p",
        &pid,
        "--duration",
        "50ms",
        "--json",
    ];
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["ended"], "duration");
    assert!(said["duration_ns"].as_u64() >= Some(50_000_000), "{said}");
    assert_eq!(summary(&trace)["complete"], true);
    running.finish();

    // A program that `record` started goes on after the recording and returns its own status.
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let trace = directory.path().join("started");
    let words = ["-e", ":counted_work", "--duration", "1ms", "--"];
    let mut command = recorder(&trace, &words);
    command.arg(&program).args(["--wait", "--exit", "7"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    until("the recording ends", || {
        trace.exists() && summary(&trace)["complete"] == true
    });
    // Those of the constructor, if it is in time.
    assert!(summary(&trace)["events"].as_u64() <= Some(3));
    let mut input = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, b"go\nend\n").expect("it lives");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(counted(&said), 103, "{said}");
}

/// Starts a command with this action of SIGINT and SIGHUP.
fn with(action: libc::sighandler_t, mut command: Command) -> Command {
    let set = move || {
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // SAFETY: the action is one of the constants.
            unsafe { libc::signal(signal, action) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec this only makes system calls.
    unsafe { command.pre_exec(set) };
    command
}

/// A script starts what is to run in its background with SIGINT ignored, `nohup` with SIGHUP; and a
/// program may have blocked SIGINT.
fn in_the_background(mut command: Command) -> Command {
    let block = || {
        // SAFETY: a set is plain bits, all of them 0 in an empty one.
        let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: adds to a set of ours.
        unsafe { libc::sigaddset(&raw mut mask, libc::SIGINT) };
        // SAFETY: only changes the mask of this thread.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut()) };
        Ok(())
    };
    // SAFETY: between fork and exec this only makes system calls.
    unsafe { command.pre_exec(block) };
    with(libc::SIG_IGN, command)
}

#[test]
fn a_recording_in_the_background_ends_by_sigint_and_outlives_sighup() {
    let Some(program) = build(Compiler::Gcc, "static.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let running = Running::start(&program, &[]);
    let pid = running.pid.to_string();
    let words = ["--json", "-p", &pid, "-e", ":static_leaf"];
    let command = in_the_background(recorder(&trace, &words));
    let background = Background::of(command, running.pid);
    background.signal(libc::SIGHUP);
    // A look at the requests to end follows each time that the recorder wakes up.
    background.until_recorded_again();
    background.until_recorded_again();
    let session = find(&*capriole_host::ptrace::host(&running.process())).expect("sessions");
    assert_eq!(session.len(), 1);
    assert_eq!(background.end()["ended"], "requested");
    assert_no_session(&running.process());

    // Before it has looked at any process: it waits for somebody to write its events.
    for command in ["record", "stat"] {
        let mut command = target::command(&[command, "-p", &pid, "-f", "-"]);
        command.current_dir(directory.path());
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut early = in_the_background(command).spawn().expect("it starts");
        let process = Process::open(early.id()).expect("it runs");
        until("SIGINT is caught", || {
            let caught = process.status().expect("it runs").caught;
            caught.contains(libc::SIGINT)
        });
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(early.id() as i32, libc::SIGINT) }, 0);
        let status = early.wait().expect("a child");
        assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
    }
    running.finish();

    // What it starts ignores what it was started with.
    let both = 1 << (libc::SIGINT - 1) | 1 << (libc::SIGHUP - 1);
    for (action, expected) in [(libc::SIG_DFL, 0), (libc::SIG_IGN, both)] {
        let show = [
            "-e",
            "libc:read",
            "--",
            "grep",
            "^SigIgn",
            "/proc/self/status",
        ];
        let command = recorder(&trace, &show);
        let output = with(action, command).output();
        let output = output.expect("capriole starts");
        let said = told(&output);
        let mask = String::from_utf8_lossy(&output.stdout);
        let mask = mask.strip_prefix("SigIgn:").expect(&said);
        let mask = u64::from_str_radix(mask.trim(), 16).expect(&said);
        assert_eq!(mask & both, expected, "{said}");
    }
}

/// A started program inherits the caller's ignored and blocked signals, including SIGPIPE and SIGCHLD,
/// which the recorder changes for itself.
#[test]
fn programs_inherit_their_signals() {
    let directory = scratch();
    let trace = directory.path().join("t");
    let shown = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];
    let all_ignored = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGHUP, libc::SIGUSR1];
    let all_blocked = [
        None,
        Some(libc::SIGINT),
        Some(libc::SIGTERM),
        Some(libc::SIGTRAP),
    ];
    for (row, ignored) in all_ignored.into_iter().enumerate() {
        for (column, blocked) in all_blocked.into_iter().enumerate() {
            // Each of them once, and in the soak each with each.
            if effort() == Effort::Test && row != column {
                continue;
            }
            let prepared = |mut command: Command| {
                let prepare = move || {
                    // SAFETY: the action is a constant.
                    unsafe { libc::signal(ignored, libc::SIG_IGN) };
                    // SAFETY: a set is plain bits, all of them 0 in an empty one.
                    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
                    if let Some(signal) = blocked {
                        // SAFETY: adds to a set of ours.
                        unsafe { libc::sigaddset(&raw mut mask, signal) };
                    }
                    let how = libc::SIG_SETMASK;
                    // SAFETY: only changes the mask of this thread.
                    unsafe { libc::sigprocmask(how, &raw const mask, std::ptr::null_mut()) };
                    Ok(())
                };
                // SAFETY: between fork and exec this only makes system calls.
                unsafe { command.pre_exec(prepare) };
                command
            };
            let mut plain = Command::new(shown[0]);
            plain.args(&shown[1..]);
            let plain = prepared(plain).output().expect("it starts");
            let words = [&["-e", "libc:read", "--"], &shown[..]].concat();
            let traced = prepared(recorder(&trace, &words))
                .output()
                .expect("it starts");
            let said = told(&traced);
            assert!(traced.status.success(), "{ignored} {blocked:?}: {said}");
            let [plain, traced] =
                [plain, traced].map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
            assert_eq!(plain, traced, "{ignored} {blocked:?}");
        }
    }
    // The status is known where children end by themselves.
    let words = ["-e", "libc:read", "--", "sh", "-c", "exit 37"];
    let mut command = recorder(&trace, &words);
    let ignore = || {
        // SAFETY: the action is a constant.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: between fork and exec this only makes system calls.
    unsafe { command.pre_exec(ignore) };
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(37), "{}", told(&output));
}

/// A recorder that is killed while it starts a program leaves nothing that says so.
#[test]
fn a_recorder_that_is_killed_at_the_start_is_silent() {
    let directory = scratch();
    let trace = directory.path().join("t");
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let starting = || {
        let words = ["-q", "-e", ":counted_work", "--", text(&program)];
        let mut command = recorder(&trace, &words);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let assert_silent = |output: &Output, when: &str| {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("fatal runtime error"), "{when}: {said}");
    };
    let (steps, _) = reached(&mut starting());
    for step in few(&steps) {
        let output = dies_at(&mut starting(), &step).output();
        assert_silent(&output.expect("it starts"), &step.to_string());
    }
    for round in 0..rounds(2, 40, 400) as u64 {
        let mut child = starting().spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(5 + round % 40));
        child.kill().expect("a child");
        let output = child.wait_with_output().expect("a child");
        assert_silent(&output, &format!("round {round}"));
    }
}

/// Ctrl-C in a terminal goes to both. A signal to the recorder alone ends the recording, and
/// the next one ends its wait.
#[test]
fn a_started_program_outlives_its_recorder() {
    let Some(program) = build(Compiler::Gcc, "static.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut command = recorder(&trace, &["-e", ":static_leaf", "--"]);
    command.arg(&program).args(["--seconds", "300"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut ready = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut output, &mut ready).expect("text");
    let pid: u32 = ready
        .trim()
        .rsplit(' ')
        .next()
        .and_then(|w| w.parse().ok())
        .expect("ready PID");
    let recorder = child.id() as i32;
    // SAFETY: sends a signal to a child of this test that has not been waited for.
    assert_eq!(unsafe { libc::kill(recorder, libc::SIGINT) }, 0);
    let process = capriole_proc::process::Process::open(pid).expect("it runs");
    until("it is detached", || {
        let maps = process.maps().expect("it runs");
        !maps.iter().any(capriole_patch::session::is_session)
    });
    until("it is ended", || summary(&trace)["complete"] == true);
    assert!(process.is_alive());
    assert!(
        child.try_wait().expect("a child").is_none(),
        "the recorder waits for the program"
    );
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(recorder, libc::SIGINT) }, 0);
    assert!(child.wait().expect("it ends").success());
    assert_text_is_the_files(&process, true);
    // SAFETY: sends a signal to the program started for this test, a grandchild of the test.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGTERM) }, 0);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut output, &mut rest).expect("text");
    assert!(
        rest.lines().last().is_some_and(|l| l.starts_with("ok ")),
        "{rest}"
    );
}

/// Several events, names and patterns, in the program and in its library, at the same time.
#[test]
fn several_events_at_once() {
    let Some(program) = build(Compiler::Gcc, "static.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "-e",
        ":static_work a=$arg1 b=$arg2 c=$arg3",
        "-e",
        ":static_l??f",
        "-e",
        "libc:strtou[kl]l*",
    ];
    let said = record_program(&trace, &words, &program, &["--calls", "500"]);
    let counted = counted(&said);
    let found = summary(&trace);
    let of = |name: &str| {
        found["by_event"]
            .as_array()
            .expect("events")
            .iter()
            .find(|e| e["event"] == name)
            .map(|e| e["calls"].as_u64().expect("a number"))
    };
    assert_eq!(found["lost_events"], 0, "{found}");
    assert_eq!(of("static_work"), Some(counted), "{found}");
    assert_eq!(of("static_leaf"), Some(counted), "{found}");
    assert!(
        of("strtoull")
            .or(of("strtoul"))
            .is_some_and(|n| n >= counted),
        "{found}"
    );
}

/// `list` and error messages know the objects of a process, too.
#[test]
fn libraries_are_named_by_the_start_of_their_names() {
    let Some(program) = build(Compiler::Gcc, "static.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &[]);
    let pid = running.pid.to_string();
    let objects = Objects::of_process(&running.process()).expect("objects");
    assert!(objects.paths().count() >= 2);
    for event in ["libc:getppid", "libc.so.6:getppid", "libc.so:getpp?d"] {
        let output = capriole(&["check", event, "-p", &pid]);
        assert!(output.status.success(), "{event}: {}", told(&output));
    }
    running.finish();
}
