//! `capriole bench hit`: every row is there, measured or with a reason, and nothing is left
//! behind, even after an interrupt. The tests check that numbers are possible, never how large
//! they are.
//!
//! Other tools are run only with `CAPRIOLE_BENCH_PEERS=1`.

use crate::{command, kernel_probes};
use capriole_testkit::effort::rounds;
use capriole_testkit::files::{scratch, text};
use capriole_testkit::target::told;
use capriole_testkit::tools::quiet;
use capriole_testkit::waiting::until;
use roxmltree::Document;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const KERNEL: [&str; 7] = [
    "kernel.uprobe",
    "kernel.uprobe_4args",
    "kernel.uretprobe",
    "kernel.uprobe_nop5",
    "kernel.uprobe_bpf",
    "kernel.uretprobe_bpf",
    "kernel.trace_marker",
];
const PEERS: [&str; 6] = [
    "bpftrace.count",
    "lttng_ust",
    "uftrace",
    "xray_fdr",
    "gdb.fast_tracepoint",
    "frida",
];
/// Set in the environment of the command and of all processes that it starts.
const TOKEN: &str = "CAPRIOLE_TEST_TOKEN";

/// Returns the command with a directory for its files, which must be empty afterwards.
fn bench(arguments: &[&str], files: &Path) -> Command {
    prepared(command(&[]), arguments, files)
}

/// Prepares a run of this command.
fn prepared(mut command: Command, arguments: &[&str], files: &Path) -> Command {
    command.args(["hit", "--json"]).args(arguments);
    let token = files.file_name().expect("a name");
    command.env("TMPDIR", files).env(TOKEN, token);
    command.env("CAPRIOLE_PEERS", "/nowhere");
    let heed_interrupts = || {
        // SAFETY: signal(2) may be called between fork and exec.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(())
    };
    // If a shell has put the tests into the background they ignore interrupts, and so would all
    // processes that they start.
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(heed_interrupts) };
    command
}

/// Returns the command without its symbols, as it is installed. Each attach to it is quicker: there are
/// fewer names to be looked through.
fn stripped(directory: &Path) -> PathBuf {
    let command = env!("CARGO_BIN_EXE_capriole-bench");
    let copy = directory.join("capriole-bench");
    quiet(Command::new("strip").arg("-o").arg(&copy).arg(command));
    copy
}

/// Creates a directory for `PATH` with these programs, as far as they are installed.
fn only(programs: &[&str]) -> tempfile::TempDir {
    let directory = scratch();
    for program in programs {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut all = std::env::split_paths(&path).map(|place| place.join(program));
        if let Some(found) = all.find(|file| file.is_file()) {
            symlink(found, directory.path().join(program)).expect("a link");
        }
    }
    directory
}

/// Returns the rows after checking that the command succeeded.
fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", told(output));
    serde_json::from_slice(&output.stdout).expect("a list")
}

fn names(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["name"].as_str()).collect()
}

fn number(value: &Value) -> f64 {
    let number = value.as_f64();
    number.unwrap_or_else(|| panic!("{value} is no number"))
}

/// Checks that the row has its numbers and that they are possible, or that it has only a
/// reason.
fn assert_shape(row: &Value) {
    let keys = row.as_object().expect("an object").keys();
    if let Some(why) = row["skipped"].as_str() {
        assert!(!why.is_empty() && keys.eq(["name", "skipped"]), "{row}");
        return;
    }
    let expected = [
        "name",
        "ns",
        "over_bare_ns",
        "p50_ns",
        "p99_ns",
        "threads",
        "hits",
        "calls",
        "min_ns",
        "q1_ns",
        "q3_ns",
        "max_ns",
        "rounds",
    ];
    assert!(keys.eq(expected), "{row}");
    assert!(0.0 <= number(&row["p50_ns"]), "{row}");
    let ascending = [&["p50_ns", "p99_ns"][..], &["min_ns", "ns", "max_ns"]];
    for names in ascending {
        assert!(names.is_sorted_by_key(|name| number(&row[*name])), "{row}");
    }
    assert!(
        row["hits"].is_null() || row["hits"] == row["calls"],
        "{row}"
    );
    let name = row["name"].as_str().expect("a name");
    let threads = name.split_once('@').map_or("1", |(_, threads)| threads);
    assert_eq!(row["threads"].to_string(), threads, "{row}");
}

fn assert_empty(files: &Path) {
    let left: Vec<_> = fs::read_dir(files).expect("list").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn no_row_vanishes_without_its_tool() {
    let _turn = kernel_probes();
    let (files, path) = (scratch(), only(&[]));
    let svg = path.path().join("chart.svg");
    let arguments = ["--rounds", "7", "--round-ms", "1", "--svg", text(&svg)];
    // The rows with several threads take half of the time; a few of them are in the next test.
    let one = &["--threads", "1"][..rounds(2, 0, 0)];
    let installed = Command::new(stripped(path.path()));
    let output = prepared(installed, &[&arguments, one].concat(), files.path())
        .env("PATH", path.path())
        .stdin(Stdio::null())
        .output();
    let rows = rows(&output.expect("capriole starts"));
    rows.iter().for_each(assert_shape);
    let found: Vec<&str> = names(&rows);
    let ones = ["bare", "floor.count", "floor.rdtsc", "floor.record"];
    let ours = [
        "count",
        "count_by_key",
        "sum",
        "hist",
        "hist_by_key",
        "reject",
        "record0",
        "record2",
        "record6",
        "entry_exit",
        "return.stack",
        "latency",
        "string",
        "int3",
    ];
    let ours = ours.map(|name| format!("capriole.{name}"));
    let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
    let expected: Vec<&str> = [&ones[..], &ours, &KERNEL].concat();
    assert!(found.starts_with(&expected), "{found:?}");
    assert!(found.ends_with(&PEERS), "{found:?}");
    let with_threads = &found[expected.len()..found.len() - PEERS.len()];
    let cpus = std::thread::available_parallelism().expect("CPUs").get();
    let again = ["bare", "floor.rdtsc", "floor.record"];
    let again = again.iter().chain(&ours);
    let again = again.filter(|_| cpus > 1 && one.is_empty());
    let again: Vec<String> = again.map(|name| format!("{name}@{cpus}")).collect();
    assert_eq!(with_threads, again);
    for row in &rows[rows.len() - PEERS.len()..] {
        let why = row["skipped"].as_str().expect("no tool is there");
        assert!(
            why.ends_with("is installed") || why.ends_with("is not installed"),
            "{row}"
        );
    }
    let svg = fs::read_to_string(&svg).expect("a chart");
    let document = Document::parse(&svg).expect("well-formed");
    let said: BTreeSet<&str> = document
        .descendants()
        .filter_map(|node| node.text())
        .collect();
    for name in &found {
        assert!(said.contains(name), "no {name} in {svg}");
    }
    assert_empty(files.path());
}

#[test]
fn rows_and_threads_can_be_chosen() {
    let files = scratch();
    let arguments = ["--rounds", "7", "--round-ms", "1", "--threads", "1"];
    let chosen = ["--rows", "floor,capriole.count"];
    let unknown = bench(&["--rows", "floors"], files.path()).output();
    let unknown = unknown.expect("capriole starts");
    assert_eq!(unknown.status.code(), Some(1), "{}", told(&unknown));
    let output = bench(&[&arguments[..], &chosen].concat(), files.path()).output();
    let rows = rows(&output.expect("capriole starts"));
    let expected = [
        "bare",
        "floor.count",
        "floor.rdtsc",
        "floor.record",
        "capriole.count",
    ];
    assert_eq!(names(&rows), expected);
    // By default as many threads as processors as well.
    let chosen = ["--rows", "floor.rdtsc"];
    let output = bench(&[&arguments[..4], &chosen].concat(), files.path()).output();
    let rows = self::rows(&output.expect("capriole starts"));
    rows.iter().for_each(assert_shape);
    let cpus = std::thread::available_parallelism().expect("CPUs").get();
    let expected = [String::new(), format!("@{cpus}")].into_iter().take(cpus);
    let expected =
        expected.flat_map(|of| ["bare", "floor.rdtsc"].map(|name| name.to_owned() + &of));
    assert_eq!(names(&rows), expected.collect::<Vec<_>>());
    let output = bench(&["--threads", "1000000"], files.path()).output();
    assert_eq!(output.expect("capriole starts").status.code(), Some(2));
}

/// Returns the /proc directories of processes that have the token in their environment. A
/// zombie has none.
fn started(files: &Path) -> Vec<PathBuf> {
    let token = format!(
        "{TOKEN}={}",
        files.file_name().expect("a name").to_string_lossy()
    );
    let has_it = |process: &PathBuf| {
        let variables = fs::read(process.join("environ")).unwrap_or_default();
        variables
            .split(|&byte| byte == 0)
            .any(|variable| variable == token.as_bytes())
    };
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    processes.map(|entry| entry.path()).filter(has_it).collect()
}

fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(status.expect("kill runs").success());
}

#[test]
fn a_tool_that_does_nothing_ends_with_the_interrupt() {
    let (files, path) = (scratch(), only(&["cc", "as", "ld", "sleep"]));
    let tool = path.path().join("bpftrace");
    let sign = path.path().join("started");
    let script = format!("#!/bin/sh\n: > '{}'\nsleep 1000 &\nwait\n", text(&sign));
    fs::write(&tool, script).expect("a script");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("a program");
    let mut bench = bench(&["--rows", "bpftrace"], files.path());
    let bench = bench
        .env("PATH", path.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = bench.spawn().expect("capriole starts");
    until("the tool starts", || {
        sign.exists() || child.try_wait().expect("a child").is_some()
    });
    if !sign.exists() {
        let output = child.wait_with_output().expect("it ends");
        println!("skipped: {}", told(&output));
        assert!(
            rows(&output)[1..]
                .iter()
                .any(|row| row["skipped"].is_string())
        );
        return;
    }
    signal(&child, "-INT");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("stopped by signal 2"), "{said}");
    until("all have ended", || started(files.path()).is_empty());
    assert_empty(files.path());
}

/// The peers that are installed; none unless they are enabled.
fn peers() -> &'static [&'static str] {
    match std::env::var_os("CAPRIOLE_BENCH_PEERS").is_some_and(|value| value == "1") {
        true => &PEERS,
        false => {
            println!("skipped: CAPRIOLE_BENCH_PEERS=1 runs other tools");
            &[]
        }
    }
}

#[test]
fn peers_are_measured_or_say_why_not() {
    let peers = peers();
    if peers.is_empty() {
        return;
    }
    let files = scratch();
    let list = peers.join(",");
    let arguments = [
        "--rounds",
        "7",
        "--round-ms",
        "1",
        "--threads",
        "1",
        "--rows",
        &list,
    ];
    let output = bench(&arguments, files.path())
        .env_remove("CAPRIOLE_PEERS")
        .output();
    let rows = rows(&output.expect("capriole starts"));
    assert_eq!(names(&rows)[1..], *peers);
    rows.iter().for_each(assert_shape);
    for row in &rows[1..] {
        match row["skipped"].as_str() {
            Some(why) => println!("skipped: {}: {why}", row["name"]),
            None => assert!(number(&row["hits"]) > 0.0, "{row}"),
        }
    }
    assert!(started(files.path()).is_empty());
    assert_empty(files.path());
}

/// Mounts, uprobes of the kernel, and shared memory that the other tools may leave behind.
fn surroundings() -> [String; 3] {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let theirs = |name: &String| {
        ["lttng", "uftrace", "frida"]
            .iter()
            .any(|tool| name.contains(tool))
    };
    let shared = shared.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut shared: Vec<_> = shared.filter(theirs).collect();
    shared.sort();
    let ours = |text: String, pattern| -> String {
        text.lines().filter(|line| line.contains(pattern)).collect()
    };
    [
        // The tools see a different file system at /run than the machine does.
        ours(read("/proc/self/mounts"), " /run "),
        ours(read("/sys/kernel/tracing/uprobe_events"), "capriole_peer"),
        format!("{shared:?}"),
    ]
}

/// Number of sockets left by GDB's agent whose programs have ended.
fn sockets() -> usize {
    let files = fs::read_dir("/tmp").into_iter().flatten().flatten();
    let names = files.filter_map(|entry| entry.file_name().into_string().ok());
    let dead = |name: &String| {
        let pid = name.strip_prefix("gdb_ust");
        pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    names.filter(dead).count()
}

#[test]
fn interrupted_or_killed_peers_leave_nothing() {
    for peer in peers() {
        // Different moments: during the build, while the tool starts, during the rounds.
        for (how, wait) in [
            ("-INT", 100),
            ("-INT", 700),
            ("-INT", 2000),
            ("-KILL", 1500),
        ] {
            let files = scratch();
            let (before, sockets_before) = (surroundings(), sockets());
            let arguments = ["--rounds", "1000", "--threads", "1", "--rows", peer];
            let mut bench = bench(&arguments, files.path());
            let bench = bench.env_remove("CAPRIOLE_PEERS").stdout(Stdio::piped());
            let mut child = bench
                .stderr(Stdio::piped())
                .spawn()
                .expect("capriole starts");
            std::thread::sleep(Duration::from_millis(wait));
            if child.try_wait().expect("a child").is_some() {
                let output = child.wait_with_output().expect("it ends");
                panic!("{peer}: {}", told(&output));
            }
            signal(&child, how);
            let output = child.wait_with_output().expect("it ends");
            assert!(!output.status.success(), "{}", told(&output));
            let what = format!("all of {peer} have ended after {how}");
            until(&what, || started(files.path()).is_empty());
            assert_eq!(surroundings(), before, "{peer} {how}");
            if how == "-INT" {
                assert_empty(files.path());
                // Another test may run GDB at the same time. What a killed one leaves is not counted
                // before its process has been waited for, maybe with the next peer.
                if peer.starts_with("gdb.") {
                    until("its socket is removed", || sockets() <= sockets_before);
                }
            }
        }
    }
}
