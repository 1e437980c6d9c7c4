//! The examples of programs that probe themselves: built by their Makefile with the library of the
//! source tree, run with the command as their helper, and their output compared.

use capriole_testkit::files::{directory, locked, scratch, text};
use capriole_testkit::target::told;
use capriole_testkit::waiting::{found, until};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The directory with the built examples; `None`, with a message, without the tools for it.
fn examples() -> Option<&'static Path> {
    static BUILT: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        for tool in ["make", "cc", "c++", "ld", "objcopy", "ar"] {
            if Command::new(tool).arg("--version").output().is_err() {
                println!("skipped: {tool} is not installed");
                return None;
            }
        }
        let directory = directory().join("probe_examples");
        let _lock = locked("probe_examples");
        let output = Command::new("make")
            .args(["-s", "-C"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
            .arg(format!("OUT={}", text(&directory)))
            .arg("HELPER=/nowhere/capriole")
            .output()
            .expect("make starts");
        assert!(output.status.success(), "{}", told(&output));
        assert!(output.stderr.is_empty(), "{}", told(&output));
        Some(directory)
    });
    BUILT.as_deref()
}

fn example(name: &str) -> Option<Command> {
    let mut command = Command::new(examples()?.join(name));
    command
        .env("CAPRIOLE_HELPER", env!("CARGO_BIN_EXE_capriole"))
        .stdin(Stdio::null());
    Some(command)
}

/// Runs an example, which succeeds; returns its output.
fn run(name: &str) -> Option<String> {
    let output = example(name)?.output().expect("it starts");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        told(&output)
    );
    Some(String::from_utf8(output.stdout).expect("text"))
}

/// Replaces numbers in hexadecimal, and those of nanoseconds.
fn without_numbers(output: &str) -> Vec<String> {
    let hidden = |word: &str| {
        let digits = word.trim_start_matches("0x").trim_end_matches(',');
        let hex = digits.len() > 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if hex { "N".to_owned() } else { word.to_owned() }
    };
    output
        .lines()
        .map(|line| line.split(' ').map(hidden).collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn a_probe_says_what_it_sees_before_and_after() {
    let Some(output) = run("kprobe_example") else {
        return;
    };
    let hit = "<getppid> p->address = N ip = N flags = N";
    let lines = without_numbers(&output);
    let expected = [
        "Planted kprobe at N",
        hit,
        hit,
        hit,
        hit,
        "kprobe at N unregistered",
    ];
    assert_eq!(lines, expected, "{output}");
    // The post-handler is called behind the instruction.
    let ip = |line: &str| {
        let word = line
            .split("ip = ")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        u64::from_str_radix(word.expect("an address"), 16).expect("a number")
    };
    let places: Vec<u64> = output.lines().skip(1).take(4).map(ip).collect();
    assert!(
        places[1] > places[0] && places[1] < places[0] + 16,
        "{output}"
    );
    assert_eq!(places[..2], places[2..], "{output}");
}

#[test]
fn a_return_probe_says_results_and_durations() {
    let Some(output) = run("kretprobe_example") else {
        return;
    };
    let lines = without_numbers(&output);
    let returned = |value| format!("fibonacci returned {value} and took N ns to execute");
    let expected = [
        "Planted return probe at fibonacci: N".to_owned(),
        returned(2),
        returned(3),
        returned(2),
        returned(5),
        "kretprobe at N unregistered".to_owned(),
        "Missed probing 0 instances of fibonacci".to_owned(),
    ];
    assert_eq!(lines, expected, "{output}");
}

#[test]
fn mallocs_are_counted_and_sized() {
    let Some(output) = run("self_probe_malloc") else {
        return;
    };
    let mut lines = output.lines();
    // One of them is qsort's, of which not every C library needs one.
    let first = lines.next().expect("a line");
    let few = first == "malloc: 1000 calls, 40500 bytes";
    assert!(
        few || first == "malloc: 1001 calls, 48500 bytes",
        "{output}"
    );
    let sizes: Vec<Vec<&str>> = lines
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [
        ["16", "..", "31", "320"],
        ["32", "..", "63", "640"],
        ["64", "..", "127", "40"],
    ];
    assert_eq!(sizes[..3], expected, "{output}");
}

#[test]
fn blocks_in_use_are_known_by_allocations_and_frees() {
    let Some(output) = run("heap_profile") else {
        return;
    };
    let expected = "malloc: 200 calls, calloc: 100, realloc: 100\n\
                    in use: 30 blocks, 53000 bytes\n";
    assert_eq!(output, expected);
}

#[test]
fn arguments_are_those_of_the_function() {
    let Some(output) = run("argument_probe") else {
        return;
    };
    let expected = "Ada orders 2 with 10 % off, as a gift\n\
                    Grace orders 5 with 25 % off\n\
                    93.425 to pay, 35 % seen\n";
    assert_eq!(output, expected);
}

/// A handler of another type does not compile.
#[test]
fn the_type_of_a_handler_is_checked() {
    if examples().is_none() {
        return;
    }
    let examples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    let (include, directory) = (examples.join("../include"), scratch());
    let compiles = |compiler: &str, name: &str, from: &str, to: &str| {
        let source = std::fs::read_to_string(examples.join(name)).expect("the example");
        assert!(source.contains(from), "{name} has no {from}");
        let changed = directory.path().join(name);
        std::fs::write(&changed, source.replace(from, to)).expect("a file");
        let mut command = Command::new(compiler);
        command.args(["-fsyntax-only", "-I"]).arg(&include);
        let output = command.arg(changed).output().expect("a compiler");
        output.status.success()
    };
    for (compiler, name, right, wrong) in [
        (
            "c++",
            "argument_probe.cpp",
            "probe, static_cast",
            "probe, (void (*)(int))",
        ),
        (
            "cc",
            "hot_fix.c",
            "int fixed(int year)",
            "int fixed(long year)",
        ),
        ("cc", "hot_fix.c", "(*original)(int", "(*original)(long"),
    ] {
        assert!(compiles(compiler, name, right, right), "{name}");
        assert!(!compiles(compiler, name, right, wrong), "{name}: {wrong}");
    }
}

#[test]
fn every_third_malloc_fails() {
    let Some(output) = run("fault_injection") else {
        return;
    };
    let copy = |number| match number % 3 {
        2 => format!("copy {number}: no memory\n"),
        _ => format!("copy {number}: a text\n"),
    };
    let expected: String = (0..9).map(copy).collect();
    assert_eq!(output, expected + "3 of 9 calls of malloc failed\n");
}

#[test]
fn a_function_is_replaced_and_restored() {
    let Some(output) = run("hot_fix") else {
        return;
    };
    let wrong = "1900: 29  2000: 29  2023: 28  2024: 29  2100: 29\n";
    let right = "1900: 28  2000: 29  2023: 28  2024: 29  2100: 28\n";
    let expected = format!("before     {wrong}fixed      {right}restored   {wrong}");
    assert_eq!(output, expected);
}

/// Checks the records of one dump: three of each of two threads, in order, with what the program
/// passed.
fn assert_flight(lines: &[String]) {
    assert_eq!(lines.len(), 6, "{lines:?}");
    let mut threads = Vec::new();
    for records in lines.chunks(3) {
        let mut before = (0, 0);
        for record in records {
            let words: Vec<&str> = record.split_whitespace().collect();
            let [time, "thread", thread, event, id, value] = words[..] else {
                panic!("{record:?}");
            };
            let [time, id, value] = [time, id, value].map(|w| w.parse::<u64>().expect("a number"));
            let expected = match event {
                "order_take" => id * 31 % 500,
                _ => 199 + id * 7919 % 10000,
            };
            assert_eq!(value, expected, "{record:?}");
            assert!((time, id) >= before, "{lines:?}");
            before = (time, id);
            threads.push(thread);
        }
    }
    assert!(threads[..3].iter().all(|t| *t == threads[0]), "{lines:?}");
    assert!(threads[3..].iter().all(|t| *t == threads[3]), "{lines:?}");
    assert_ne!(threads[0], threads[3], "{lines:?}");
}

/// Waits until each of the program's two other threads, which begin after the registration, has called
/// both functions some times. It sleeps between two calls.
fn until_clerks_have_worked(pid: u32) {
    let slept = |tid: u32| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse().ok()
    };
    let clerks = found("two threads", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        let tids: Vec<u32> = tids.filter(|tid| *tid != pid).collect();
        (tids.len() == 2).then_some(tids)
    });
    for clerk in clerks {
        let before = slept(clerk).expect("it runs");
        until("calls", || {
            slept(clerk).is_some_and(|now| now > before + 20)
        });
    }
}

#[test]
fn a_flight_recorder_has_the_latest_calls() {
    let Some(mut command) = example("flight_recorder") else {
        return;
    };
    let mut child = command
        .arg("3600")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let pid = child.id();
    until_clerks_have_worked(pid);
    // SAFETY: the child has not been waited for.
    let send = |signal| assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
    send(libc::SIGUSR1);
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut lines = Vec::new();
    for _ in 0..7 {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        lines.push(line);
    }
    assert_eq!(lines[0], "asked for:\n");
    assert_flight(&lines[1..]);
    send(libc::SIGTERM);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("text");
    assert!(child.wait().expect("it ends").success());
    let rest: Vec<String> = rest.lines().map(str::to_owned).collect();
    assert_eq!(rest[0], "at the end:");
    assert_flight(&rest[1..]);
}
