//! The test programs work without any probe: each is built and run.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use capriole_testkit::programs::{Compiler, ENDS, build};

/// Runs the program and checks that its last line begins with "ok" and its status is 0.
fn run(compiler: Compiler, source: &str, flags: &[&str], arguments: &[&str]) -> Option<String> {
    let program = build(compiler, source, flags)?;
    let output = Command::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("a program that was just built starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let told = format!("{source} {arguments:?}: {}\n{text}{errors}", output.status);
    assert!(output.status.success(), "{told}");
    assert!(
        text.starts_with("ready ") || text.starts_with("skipped"),
        "{told}"
    );
    assert!(
        text.lines()
            .last()
            .is_some_and(|line| line.starts_with("ok ")),
        "{told}"
    );
    Some(text)
}

/// Returns the number after `what` in the program's output.
fn number(text: &str, what: &str) -> u64 {
    let at = text
        .rfind(what)
        .unwrap_or_else(|| panic!("no {what} in {text}"))
        + what.len();
    let digits: String = text[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().expect("a number")
}

const SHORT: &[&str] = &["--seconds", "0.3"];

#[test]
fn hammer_of_all_kinds() {
    let library = build(Compiler::Gcc, "hammer_library.c", &["-shared", "-fPIC"]);
    let library = library.map(|path| path.display().to_string());
    let library = library.as_deref();
    for flags in [&[][..], &["-O0"], &["-fcf-protection=full"], &["-static"]] {
        let mut arguments = vec![
            "--signals",
            "--fork",
            "--segv",
            "--block-sigtrap",
            "--threads",
            "9",
        ];
        arguments.extend_from_slice(SHORT);
        if let (Some(library), false) = (library, flags.contains(&"-static")) {
            arguments.extend_from_slice(&["--dlopen", library]);
        }
        if let Some(text) = run(Compiler::Gcc, "hammer.c", flags, &arguments) {
            assert!(
                number(&text, "ok calls=") > 0 && number(&text, "faults ") > 0,
                "{text}"
            );
        }
    }
}

#[test]
fn hammer_makes_as_many_calls_as_asked() {
    let arguments = ["--threads", "200", "--calls", "123"];
    if let Some(text) = run(Compiler::Gcc, "hammer.c", &[], &arguments) {
        assert_eq!(number(&text, "ok calls="), 200 * 123);
        assert_eq!(text.matches(" calls 123\n").count(), 200);
    }
}

#[test]
fn registers_over_signals() {
    for more in [
        &[][..],
        &["--stack"],
        &["--disarmed", "--handler"],
        &["--key"],
    ] {
        let arguments = [&["--storm"], more, SHORT].concat();
        run(Compiler::Gcc, "trapped.c", &[], &arguments);
    }
}

#[test]
fn ways_out_of_functions() {
    run(Compiler::Gcc, "longjmp.c", &[], SHORT);
    run(Compiler::Gxx, "cxx_throw.cpp", &[], SHORT);
    run(Compiler::Rustc, "rustprog.rs", &[], SHORT);
}

#[test]
fn processes_that_make_processes() {
    for count in ["1", "2", "20"] {
        run(Compiler::Gcc, "exec_chain.c", &[], &[count]);
    }
    run(Compiler::Gcc, "forker.c", &[], &["5"]);
}

#[test]
fn ways_of_linking() {
    for flags in [&[][..], &["-static"], &["-static-pie"], &["-no-pie"]] {
        run(Compiler::Gcc, "static.c", flags, SHORT);
    }
    for flags in [&[][..], &["-static"]] {
        run(Compiler::MuslGcc, "static.c", flags, SHORT);
    }
    run(Compiler::Gcc, "thirtytwo.c", &["-m32"], SHORT);
}

#[test]
fn no_room_near_the_text() {
    run(Compiler::Gcc, "nospace.c", &[], SHORT);
    run(Compiler::Gcc, "nospace.c", &["-no-pie"], SHORT);
    run(
        Compiler::Gcc,
        "nospace.c",
        &[],
        &["--seconds", "0.1", "--leave", "65536"],
    );
}

#[test]
fn every_end_is_the_one_asked_for() {
    use std::os::unix::process::ExitStatusExt;
    let Some(program) = build(Compiler::Gcc, "exit_race.c", &[]) else {
        return;
    };
    for (how, code, signal) in ENDS {
        for after in ["0", "300", "3000"] {
            let output = Command::new(&program)
                .args(["--how", how, "--after-us", after])
                .output()
                .expect("it starts");
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(
                (output.status.code(), output.status.signal()),
                (code, signal),
                "{how}: {text}"
            );
            assert!(
                text.starts_with("ready ") && text.lines().count() == 1,
                "{how}: {text}"
            );
        }
    }
}

/// All stay asleep. SIGSTOP and SIGCONT make the kernel end some of the calls with EINTR
/// (signal(7)), and the program notices.
#[test]
fn sleepers_sleep_and_notice_when_they_do_not() {
    let Some(text) = run(Compiler::Gcc, "sleeper.c", &[], &[]) else {
        return;
    };
    assert!(number(&text, "ok asleep=") > 20, "{text}");

    let program = build(Compiler::Gcc, "sleeper.c", &[]).expect("it was built a moment ago");
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut until = |prefix: &str| -> Vec<String> {
        let mut seen = Vec::new();
        for line in lines.by_ref() {
            let line = line.expect("text");
            let last = line.starts_with(prefix);
            seen.push(line);
            if last {
                return seen;
            }
        }
        panic!("no {prefix} in {seen:?}");
    };
    until("ready ");
    writeln!(input, "wake").expect("it reads");
    until("woken");
    writeln!(input, "report").expect("it reads");
    assert_eq!(until("report done"), ["report done"]);
    let pid = child.id() as libc::pid_t;
    // SAFETY: sends signals to a child of this test that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
    while !std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .expect("it lives")
        .contains(") T ")
    {
        std::thread::yield_now();
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
    loop {
        writeln!(input, "report").expect("it reads");
        if until("report done")
            .iter()
            .any(|line| line.contains("EINTR"))
        {
            break;
        }
    }
    drop(input);
    until("BAD: ");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}
