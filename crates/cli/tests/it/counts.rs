//! The number of events equals the number of calls: by the program's own count, by
//! babeltrace2's reading of the trace, and by the kernel's count of hits of a uprobe that
//! follows our probe.

use crate::programs::{Compiler, build};
use crate::target::{Running, assert_no_session, assert_text_is_the_files, capriole, told};
use crate::traces::{Background, calls, record_program, recorder, scratch, summary, text};
use crate::uprobe::Uprobe;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the number of events by name as babeltrace2 reads them. `None` if it is not
/// installed.
fn babeltrace(trace: &Path) -> Option<BTreeMap<String, u64>> {
    let output = match Command::new("babeltrace2").arg(trace).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: cannot run babeltrace2: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", told(&output));
    assert!(output.stderr.is_empty(), "{}", told(&output));
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).expect("UTF-8").lines() {
        // [12:34:56.123456789] (+?.?????????) counted_work: { cpu_id = 1 }, { tid = 7 }, …
        let rest = line
            .split_once(") ")
            .expect("the time since the last event")
            .1;
        let name = rest.split_once(": {").expect("the event's name").0;
        *found.entry(name.to_owned()).or_default() += 1;
    }
    Some(found)
}

/// Returns the file offset after the instructions that a function's probe displaces. The
/// instruction there is executed once by every call, and never by our code.
fn behind(program: &Path, function: &str) -> u64 {
    let output = capriole(&["check", "--json", &format!(":{function}"), text(program)]);
    assert!(output.status.success(), "{}", told(&output));
    let sites: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |name: &str| {
        let text = sites[0][name].as_str().expect("hexadecimal");
        u64::from_str_radix(&text[2..], 16).expect("hexadecimal")
    };
    assert_ne!(sites[0]["tactic"], "int3", "{sites}");
    number("resume") - number("address") + number("offset")
}

#[test]
fn the_program_babeltrace_and_the_kernel_count_the_same() {
    const THREADS: u64 = 5;
    const CALLS: u64 = 4000;
    for flags in [&[][..], &["-static"], &["-no-pie", "-O1"]] {
        let Some(program) = build(Compiler::Gcc, "counted.c", flags) else {
            continue;
        };
        let directory = scratch();
        // A file of its own: the kernel counts the hits of all processes that run the file.
        let copy = directory.path().join("counted");
        std::fs::copy(&program, &copy).expect("copied");
        let program = copy;
        let trace = directory.path().join("t");
        let (threads, each) = (THREADS.to_string(), CALLS.to_string());
        let words = ["--wait", "--threads", &threads, "--calls", &each];
        let mut running = Running::start(&program, &words);
        // Before the recorder: text that is covered gets no uprobes.
        let uprobe = Uprobe::at(&program, behind(&program, "counted_work"));
        // Beside a uprobe no jump over several instructions is safe, and there may be no other.
        let words = ["--breakpoints", "-e", ":counted_work $arg2"];
        let recorder = Background::attach_with(&trace, running.pid, &words);
        running.say("go");
        let wanted = THREADS * CALLS;
        // The constructor made its 3 calls earlier.
        assert_eq!(running.line(), format!("ok calls={}", wanted + 3));
        let said = recorder.end();
        assert_eq!(
            (&said["events"], &said["lost"]),
            (&wanted.into(), &0.into())
        );
        assert_eq!(calls(&trace)["counted_work"], wanted);
        if let Some(uprobe) = uprobe {
            assert_eq!(uprobe.hits(), wanted, "{flags:?}: the kernel's count");
        }
        if let Some(found) = babeltrace(&trace) {
            assert_eq!(found, BTreeMap::from([("counted_work".to_owned(), wanted)]));
        }
        assert_text_is_the_files(&running.process(), false);
        assert_no_session(&running.process());
        running.say("end");
        assert!(running.child.wait().expect("it ends").success());
    }
}

/// Breakpoint probes, and a buffer much too small for the load: events missing from the trace
/// are counted as lost.
#[test]
fn lost_events_and_recorded_ones_are_all_calls() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "--buffer-size",
        "64K",
        "--json",
        "-e",
        ":counted_work $arg1 $arg2 $arg3 $arg4",
    ];
    let load = ["--threads", "8", "--calls", "100000"];
    let stdout = record_program(&trace, &words, &program, &load);
    let (first, second) = stdout.trim().split_once('\n').expect("two lines");
    assert_eq!(first, "ok calls=800003");
    let said: serde_json::Value = serde_json::from_str(second).expect("JSON");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let found = summary(&trace);
    assert_eq!(
        number(&said["events"]) + number(&said["lost"]),
        800_003,
        "{said}"
    );
    assert_eq!(found["events"], said["events"], "{found}");
    assert_eq!(found["lost_events"], said["lost"], "{found}");
    assert_eq!(found["damages"], 0, "{found}");

    let words = ["-e", ":counted_short", "-e", ":counted_work"];
    let load = ["--threads", "4", "--calls", "500"];
    record_program(&trace, &words, &program, &load);
    let found = calls(&trace);
    assert_eq!(
        (found["counted_short"], found["counted_work"]),
        (2000, 2003)
    );
    if let Some(found) = babeltrace(&trace) {
        assert_eq!(
            (found["counted_short"], found["counted_work"]),
            (2000, 2003)
        );
    }
}

/// Session memory as large as the reach of a jump leaves room for detours near the libraries,
/// although the kernel would put it there.
#[test]
fn a_large_buffer_is_out_of_the_way() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["--buffer-size", "2G", "-e", "libc:write"];
    let words = [&words[..], &["-e", "libc:exit", "-e", ":counted_work"]].concat();
    record_program(&trace, &words[..4], &program, &["--calls", "5"]);
    record_program(&trace, &words, &program, &["--calls", "5"]);
    assert_eq!(calls(&trace)["counted_work"], 8);
}

/// The sqlite3 workload: every kind of statement, sorting, joining, functions.
const QUERIES: &str = "
create table t(id integer primary key, name text, value real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000)
  insert into t select i, printf('name %d', i * 7919 % 1000), i / 3.0 from n;
create index by_name on t(name);
begin; update t set value = value * 2 where id % 3 = 0; delete from t where id % 10 = 0; commit;
select count(*), sum(value), min(name), max(name) from t;
select a.name, count(*) from t a join t b on a.name = b.name group by a.name order by 2 desc, 1 limit 20;
select upper(substr(name, 1, 6)), group_concat(id, '/') from t where id < 40 group by 1;
select json_group_array(json_object('id', id, 'name', name)) from t where id < 20;
explain query plan select * from t where name = 'name 5';
select * from nowhere;
pragma integrity_check;
";

fn sqlite(mut command: Command) -> (Option<i32>, String, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(QUERIES.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn sqlite3_says_the_same_with_all_its_library_probed() {
    let Ok(version) = Command::new("sqlite3").arg("--version").output() else {
        println!("skipped: cannot run sqlite3");
        return;
    };
    assert!(version.status.success());
    let mut plain = Command::new("sqlite3");
    plain.arg(":memory:");
    let plain = sqlite(plain);
    assert!(
        plain.1.contains("name 999") && plain.1.contains("ok\n"),
        "{plain:?}"
    );

    let directory = scratch();
    let (trace, again) = (directory.path().join("t"), directory.path().join("u"));
    let words = ["-e", "libsqlite3:sqlite3_*", "--", "sqlite3", ":memory:"];
    let (status, out, err) = sqlite(recorder(&trace, &words));
    if err.contains("no program or library `libsqlite3`") {
        println!("skipped: sqlite3 has its library inside");
        return;
    }
    let ours = |line: &&str| line.starts_with("capriole:") || line.starts_with("  sqlite3");
    let theirs: Vec<&str> = err.lines().filter(|line| !ours(line)).collect();
    assert_eq!((status, &out), (plain.0, &plain.1));
    assert_eq!(theirs, plain.2.lines().collect::<Vec<_>>());
    let first = calls(&trace);
    let steps = first["sqlite3_step"];
    assert!(first.len() > 40 && steps > 40, "{first:?}");

    // Run it again, with the kernel's count of one function and babeltrace2's count of all.
    // The kernel counts the hits of all processes that have the file: a copy is this one's only.
    let library = library();
    let file = Path::new(&library).file_name().expect("a name");
    let own = directory.path().join(file);
    std::fs::copy(&library, &own).expect("copied");
    std::os::unix::fs::symlink(&own, directory.path().join("libsqlite3.so.0")).expect("linked");
    let output = capriole(&["list", "--json", "sqlite3_step", &library]);
    let uprobe = output
        .status
        .success()
        .then(|| Uprobe::at(&own, behind(&own, "sqlite3_step")));
    let words = [
        "-e",
        "libsqlite3:sqlite3_* $arg1 $arg2",
        "--",
        "sqlite3",
        ":memory:",
    ];
    let mut with_own = recorder(&again, &words);
    with_own.env("LD_LIBRARY_PATH", directory.path());
    let (status, out, _) = sqlite(with_own);
    assert_eq!((status, &out), (plain.0, &plain.1));
    let second = calls(&again);
    assert_eq!(
        second["sqlite3_step"], steps,
        "the same queries take the same steps"
    );
    if let Some(uprobe) = uprobe.flatten() {
        assert_eq!(uprobe.hits(), steps);
    }
    if let Some(found) = babeltrace(&again) {
        assert_eq!(found, second);
    }
}

/// Returns the path of the library that sqlite3 uses.
fn library() -> String {
    let output = Command::new("sh")
        .args(["-c", "ldd $(command -v sqlite3)"])
        .output();
    let text = String::from_utf8(output.expect("a shell").stdout).expect("UTF-8");
    let line = text.lines().find(|line| line.contains("libsqlite3"));
    let path = line
        .and_then(|l| l.split_whitespace().nth(2))
        .expect("libsqlite3 => PATH");
    std::fs::canonicalize(path)
        .expect("it is there")
        .to_str()
        .expect("UTF-8")
        .to_owned()
}
