//! Programs that fork, exec, throw, jump and end while they are recorded.

use crate::programs::{Compiler, ENDS, build};
use crate::target::*;
use capriole_testkit::steps::listed;
use capriole_trace::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the event names, and all events, of a trace whose fields are a thread number and its
/// seq.
fn read_trace(directory: &Path) -> (Vec<String>, Vec<Call>) {
    let trace = Trace::open(directory).expect("a trace");
    let names = trace.document().events.iter().map(|e| e.name.clone());
    let names = names.collect();
    let mut events = trace.events().expect("streams");
    let mut calls = Vec::new();
    while let Some(event) = events.next().expect("a whole trace") {
        let arguments: Vec<u64> = event.words().collect();
        calls.push(Call {
            time: event.tsc,
            event: event.index as u32,
            tid: event.tid,
            thread: arguments[0],
            seq: arguments[1],
        });
    }
    assert_eq!(events.health().lost_events, 0);
    (names, calls)
}

/// Starts the program under `record` and returns its calls; it must have verified itself.
fn record_program(program: &Path, arguments: &[&str], event: &str) -> (String, Vec<Call>) {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace");
    let text = record_into(&trace, program, arguments, event);
    (text, read_trace(&trace).1)
}

/// Starts the program under `record`; it must have verified itself.
fn record_into(trace: &Path, program: &Path, arguments: &[&str], event: &str) -> String {
    // The recorder gets no larger share of the processors than the program: the buffer has room
    // for all records.
    let output = command(&["record", "--buffer-size", "1G", "-e", event, "-o"])
        .arg(trace)
        .arg("--")
        .arg(program)
        .args(arguments)
        .output()
        .expect("capriole starts");
    let text = told(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.lines().any(|l| l.starts_with("ok ")), "{text}");
    text
}

/// Returns the bytes of a trace recorded with restartable sequences, and all of its bytes.
fn restartable_part(trace: &Path) -> (u64, u64) {
    let (mut part, mut all) = (0, 0);
    for entry in std::fs::read_dir(trace).expect("a trace") {
        let entry = entry.expect("a file");
        let name = entry.file_name().into_string().expect("a name");
        if let Some(stream) = name.strip_prefix("cpu") {
            let size = entry.metadata().expect("a file").len();
            all += size;
            part += if stream.contains('.') { 0 } else { size };
        }
    }
    (part, all)
}

/// Children of fork are recorded with their own thread ids; programs they exec are not.
#[test]
fn children_are_recorded_under_their_own_thread_ids() {
    let Some(program) = build(Compiler::Gcc, "forker.c", &[]) else {
        return;
    };
    let event = ":forker_work $arg1 $arg2";
    let (text, calls) = record_program(&program, &["10"], event);
    let mut tids: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let mut seqs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for call in &calls {
        tids.entry(call.thread).or_default().insert(call.tid);
        seqs.entry(call.thread).or_default().push(call.seq);
    }
    let count = |thread| seqs.get(&thread).map_or(0, Vec::len);
    assert_eq!(seqs[&0], (0..60).collect::<Vec<_>>(), "{text}");
    let parent = &tids[&0];
    assert_eq!(parent.len(), 1);
    let mut all = parent.clone();
    for child in 1..=10 {
        assert_eq!(seqs[&child], (0..100).collect::<Vec<_>>(), "child {child}");
        assert_eq!(tids[&child].len(), 1);
        all.extend(&tids[&child]);
    }
    assert_eq!(all.len(), 11, "each child has its own thread id");
    assert_eq!(count(1_000_000), 10, "children of vfork");
    assert_eq!(count(2_000_000), 0, "executed programs are not recorded");
}

/// A vfork child works on its parent's thread structure, which claims to have restartable
/// sequences, but the kernel does not restart the child. Other threads work on the same CPUs.
#[test]
fn children_of_vfork_record_every_call_once() {
    let Some(program) = build(Compiler::Gcc, "vfork_work.c", &[]) else {
        return;
    };
    let children = rounds(8, 90, 600);
    let count = children.to_string();
    let event = ":vfork_work $arg1 $arg2";
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace");
    let text = record_into(&trace, &program, &[&count, "30000"], event);
    // SAFETY: looks up a symbol by a terminated name.
    let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    match offset.is_null() {
        true => println!("skipped: the C library registers no restartable sequences"),
        false => {
            let (part, all) = restartable_part(&trace);
            assert!(
                part > all / 2,
                "only {part} bytes of {all} by restartable sequences"
            );
        }
    }
    let calls = read_trace(&trace).1;
    let mut seqs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for call in &calls {
        seqs.entry(call.thread).or_default().push(call.seq);
    }
    let ok = text.lines().find(|line| line.starts_with("ok "));
    let busy = ok.expect("it was checked").split(" busy=").skip(1);
    let busy: Vec<u64> = busy.map(|n| n.trim().parse().expect("a number")).collect();
    let wanted = (0..).zip(busy).chain((100..).zip(vec![30_000; children]));
    for (who, calls) in wanted {
        let seqs = seqs.remove(&who).unwrap_or_default();
        let right = seqs.iter().copied().eq(0..calls);
        assert!(right, "{} of {calls} calls of {who}", seqs.len());
    }
    assert!(seqs.is_empty(), "{seqs:?}");
}

/// When recording ends, the probes are also removed from children that live on.
#[test]
fn children_are_detached_too() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    for reach in [Reach::Best, Reach::Breakpoint] {
        // Not more calls than are read in time.
        let arguments = &["--threads", "2", "--fork", "--pause", "2000"];
        let running = Running::start(&program, arguments);
        let process = running.process();
        let mut probes = Probes::of(&process, HAMMER, reach);
        probes.keep(|name| name != "step");
        let mut children = BTreeMap::new();
        let of_child = |call: &&Call| (20_000..30_000).contains(&call.thread);
        for _ in 0..rounds(2, 30, 500) {
            let mut recording = attach_to(&process, &probes, 32 << 20);
            recording.record_until("a child is recorded", |calls| {
                calls.iter().rev().take(100_000).any(|call| of_child(&call))
            });
            for call in recording.calls.iter().filter(of_child) {
                let of_child = children.entry(call.thread).or_insert(call.tid);
                assert_eq!(*of_child, call.tid);
                assert_ne!(call.tid, process.pid());
            }
            let memory = recording.attached.memory_at();
            let calls = recording.detach();
            let left = capriole_patch::recover::sharing(&memory, process.pid());
            assert!(left.is_empty(), "{left:?}");
            let Some(calls) = calls else { continue };
            assert_gap_free(&probes.names, &calls);
        }
        running.finish();
    }
}

#[test]
fn exec_ends_a_recording_and_the_new_program_is_unharmed() {
    let Some(program) = build(Compiler::Gcc, "exec_chain.c", &[]) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut recorder = command(&["record", "-e", ":link_work $arg1 $arg2", "-o"])
        .arg(directory.path().join("trace"))
        .arg("--")
        .arg(&program)
        .arg("3wait")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("capriole starts");
    // The last program waits until the recording has ended.
    let mut said = BufReader::new(recorder.stderr.take().expect("a pipe")).lines();
    let noticed = said.any(|line| {
        let line = line.expect("text");
        line.contains("the program has executed another one")
    });
    drop(recorder.stdin.take());
    let output = recorder.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(noticed && output.status.success(), "{text}");
    assert!(text.lines().any(|l| l.starts_with("ok ")), "{text}");
}

/// Children that execute another program are counted, in words, in JSON and in the trace: their later
/// calls are not in it.
#[test]
fn children_that_execute_another_program_are_mentioned() {
    let Some(program) = build(Compiler::Gcc, "executing.c", &[]) else {
        return;
    };
    if !cfg!(debug_assertions) {
        println!("skipped: only debug builds say when they have looked at children");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace");
    let path = program.to_str().expect("UTF-8");
    let trace_path = trace.to_str().expect("UTF-8");
    let wanted = "capriole: at least 3 child processes executed another program, which is not \
                  followed: only the calls before that are recorded\n";
    let told_of = |words: &[&str]| {
        let words = [words, &["-e", ":executing_work", "--", path]].concat();
        with_three_children(&mut command(&words))
    };
    let text = told_of(&["stat"]);
    assert!(text.contains("   6 ") && text.contains(wanted), "{text}");
    let text = told_of(&["stat", "--json"]);
    assert!(text.contains(r#""executed_children":3"#), "{text}");
    let text = told_of(&["record", "--json", "-o", trace_path]);
    assert!(text.contains(r#""executed_children":3"#), "{text}");
    let text = told_of(&["record", "-o", trace_path]);
    assert!(
        text.contains("capriole: 6 events") && text.contains(wanted),
        "{text}"
    );
    let output = command(&["report", "--summary"]).arg(&trace).output();
    let text = told(&output.expect("capriole starts"));
    assert!(
        text.contains("at least 3 child processes executed another program"),
        "{text}"
    );
    // Children that end without doing so are not.
    let Some(forker) = build(Compiler::Gcc, "raw_fork.c", &[]) else {
        return;
    };
    let output = command(&["stat", "-e", ":raw_work", "--json", "--"])
        .arg(&forker)
        .arg("200")
        .output();
    let text = told(&output.expect("capriole starts"));
    assert!(text.contains(r#""executed_children":0"#), "{text}");
}

/// Runs a command that starts `executing`, which makes one child after the other as soon as the one
/// before was noticed. Returns what the command says.
fn with_three_children(command: &mut Command) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let steps = directory.path().join("steps");
    let looks = || {
        let all = listed(&steps);
        let looks = all.iter().filter(|step| step.name == "children looked at");
        looks.count()
    };
    let child = command
        .env("CAPRIOLE_STEPS", &steps)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("capriole starts");
    let mut input = child.stdin.take().expect("a pipe");
    for made in 0..3 {
        // The first look is at children that were there before.
        until("somebody looks at children", || looks() > made);
        std::io::Write::write_all(&mut input, b"\n").expect("it lives");
    }
    until("somebody looks at children", || looks() > 3);
    drop(input);
    told(&child.wait_with_output().expect("it ends"))
}

#[test]
fn exceptions_and_jumps_go_through_probed_frames() {
    for (compiler, source) in [
        (Compiler::Gxx, "cxx_throw.cpp"),
        (Compiler::Gcc, "longjmp.c"),
        (Compiler::Rustc, "rustprog.rs"),
    ] {
        let Some(program) = build(compiler, source, &[]) else {
            continue;
        };
        for breakpoints in [false, true] {
            let running = Running::start(&program, &[]);
            let process = running.process();
            let events = match source {
                "rustprog.rs" => &[":rustprog::*"][..],
                "longjmp.c" => &[":descend", ":escape", ":coroutine", ":yield_value"],
                _ => &[":leaf*", ":descend*", ":no_throw*", ":*::get*"],
            };
            let reach = if breakpoints {
                Reach::Breakpoint
            } else {
                Reach::Best
            };
            let probes = Probes::of_any(&process, events, reach);
            assert!(!probes.probes.is_empty(), "{source} has other names");
            for _ in 0..rounds(3, 30, 300) {
                let mut recording = attach_to(&process, &probes, 16 << 20);
                recording.record_calls(1000);
                recording.detach();
                assert_no_session(&process);
            }
            running.finish();
        }
    }
}

/// A process that ends at any moment of attaching, recording or detaching ends as it would
/// have, and `record` reports it or succeeds.
#[test]
fn a_process_that_ends_meanwhile() {
    use std::os::unix::process::ExitStatusExt;
    let Some(program) = build(Compiler::Gcc, "exit_race.c", &[]) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace");
    for (how, code, signal) in ENDS {
        for after in (0..rounds(2, 30, 100)).map(|n| n * 4_000) {
            let after = after.to_string();
            let arguments = ["--how", how, "--after-us", &after];
            let mut running = Running::start(&program, &arguments);
            let pid = running.pid.to_string();
            let mut recorder = command(&["record", "-p", &pid, "-e", ":race_work", "-o"])
                .arg(&trace)
                .args(["--duration", "15ms"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("capriole starts");
            let status = running.child.wait().expect("it ends");
            assert_eq!(
                (status.code(), status.signal()),
                (code, signal),
                "{how} {after}"
            );
            let recorder_status = recorder.wait().expect("it ends");
            let mut text = String::new();
            let errors = recorder.stderr.as_mut().expect("a pipe");
            std::io::Read::read_to_string(errors, &mut text).expect("text");
            assert!(
                recorder_status.success()
                    || text.contains("ended")
                    || text.contains("no such process")
                    || text.contains("no process"),
                "{how} {after}: {recorder_status}: {text}"
            );
        }
    }
}

/// The exit status of a started program is passed on, however it ends.
#[test]
fn a_started_program_that_ends_at_once() {
    let Some(program) = build(Compiler::Gcc, "exit_race.c", &[]) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    for how in ["return", "thread", "last-thread"] {
        for after in ["0", "1000", "20000"] {
            let output = command(&["record", "-e", ":race_work", "-o"])
                .arg(directory.path().join("trace"))
                .arg("--")
                .arg(&program)
                .args(["--how", how, "--after-us", after])
                .output()
                .expect("capriole starts");
            assert_eq!(output.status.code(), Some(7), "{how}: {}", told(&output));
        }
    }
}

/// A probed library is unloaded, and perhaps loaded again, at any moment of a recording.
#[test]
fn a_probed_library_that_comes_and_goes() {
    let (Some(program), Some(library)) = (
        build(Compiler::Gcc, "hammer.c", &[]),
        build(Compiler::Gcc, "hammer_library.c", &["-shared", "-fPIC"]),
    ) else {
        return;
    };
    let mut running = Running::start(
        &program,
        &["--threads", "1", "--dlopen", &library.display().to_string()],
    );
    let process = running.process();
    let pid = running.pid.to_string();
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace");
    let event = format!("{}:library_work $arg1 $arg2", library.display());
    let mut recorded = 0;
    for _ in 0..rounds(3, 75, 1000) {
        let output = command(&["record", "-p", &pid, "-e", &event, "-e", ":work", "-o"])
            .arg(&trace)
            .args(["--duration", "10ms", "--buffer-size", "4M"])
            .output()
            .expect("capriole starts");
        running.assert_alive();
        let text = told(&output);
        // At that moment it is not loaded yet, no longer loaded, or being relocated.
        let absent = text.contains("no program or library")
            || text.contains("the bytes in memory are not those of the file")
            || text.contains("its file is no longer mapped")
            || text.contains("cannot read");
        assert!(output.status.success() || absent, "{text}");
        recorded += usize::from(output.status.success());
        assert_no_session(&process);
        assert_text_is_the_files(&process, true);
    }
    // In a library that is not there most of the time, this is a matter of chance.
    if effort() != Effort::Test {
        assert!(recorded > 0);
    }
    running.finish();
}

/// A program that blocks SIGTRAP gets no breakpoint, but jumps like any other.
#[test]
fn no_breakpoint_where_sigtrap_is_blocked() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--threads", "2", "--block-sigtrap"]);
    let pid = running.pid.to_string();
    let directory = tempfile::tempdir().expect("a directory");
    let record = |event| {
        let words = [
            "record",
            "--json",
            "-p",
            &pid,
            "-e",
            event,
            "--duration",
            "5ms",
            "-o",
        ];
        command(&words)
            .arg(directory.path().join("trace"))
            .output()
            .expect("capriole starts")
    };
    for event in [":work_loop", ":work_*"] {
        let output = record(event);
        assert!(output.status.success(), "{}", told(&output));
        let sites: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let sites = sites["sites"].as_array().expect("sites");
        assert!(!sites.is_empty());
        for site in sites {
            assert_ne!(site["tactic"], "int3", "{site}");
            assert_ne!(site["state"], "stand-in", "{site}");
        }
    }
    assert_no_session(&running.process());
    running.finish();
}

/// Threads come and go while everything is stopped and resumed.
#[test]
fn a_storm_of_threads() {
    let source = r#"
        #include "common.h"
        #include <pthread.h>
        PROBED uint64_t storm_work(uint64_t thread, uint64_t seq) { return mix(thread) + seq; }
        static volatile int stop;
        static uint64_t next;
        static void *once(void *unused)
        {
            (void)unused;
            uint64_t thread = __sync_fetch_and_add(&next, 1);
            for (uint64_t seq = 0; seq < 20; seq++)
                if (storm_work(thread, seq) != mix(thread) + seq)
                    BAD("thread %llu", (unsigned long long)thread);
            return NULL;
        }
        static void *make(void *unused)
        {
            (void)unused;
            while (!stop) {
                pthread_t threads[8];
                for (int i = 0; i < 8; i++)
                    CHECK(pthread_create(&threads[i], NULL, once, NULL) == 0);
                for (int i = 0; i < 8; i++)
                    CHECK(pthread_join(threads[i], NULL) == 0);
            }
            return NULL;
        }
        int main(void)
        {
            pthread_t makers[3];
            stop_on_sigterm();
            for (int i = 0; i < 3; i++)
                CHECK(pthread_create(&makers[i], NULL, make, NULL) == 0);
            ready();
            wait_for_stop(0);
            stop = 1;
            for (int i = 0; i < 3; i++)
                CHECK(pthread_join(makers[i], NULL) == 0);
            printf("ok threads=%llu\n", (unsigned long long)next);
            return 0;
        }
    "#;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("storm.c");
    std::fs::write(&path, source).expect("write");
    let program = directory.path().join("storm");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let built = Command::new("gcc")
        .args(["-O2", "-std=gnu99", "-pthread", "-I"])
        .arg(include)
        .arg(&path)
        .arg("-o")
        .arg(&program)
        .status();
    let Ok(status) = built else {
        println!("skipped: no gcc");
        return;
    };
    assert!(status.success());
    for reach in [Reach::Best, Reach::Breakpoint] {
        let mut running = Running::start(&program, &[]);
        let process = running.process();
        let probes = Probes::of(&process, &[":storm_work"], reach);
        for round in 0..rounds(4, 90, 1000) {
            let mut recording = attach_to(&process, &probes, 16 << 20);
            recording.record_calls(100 << (round % 3));
            running.assert_alive();
            if let Some(calls) = recording.detach() {
                assert_gap_free(&probes.names, &calls);
            }
            running.assert_alive();
            assert_no_session(&process);
            assert_text_is_the_files(&process, true);
        }
        running.finish();
    }
}
