//! `report --compare BEFORE AFTER`.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, told};
use crate::traces::{record, record_program, scratch, text};
use capriole_testkit::waiting::found;
use serde_json::Value;
use std::path::Path;

fn json(words: &[&str]) -> Value {
    let output = capriole(words);
    assert!(output.status.success(), "{}", told(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns the row of a function in a list of rows.
fn row<'a>(of: &'a Value, function: &str) -> &'a Value {
    let mut rows = of["by_function"].as_array().expect("rows").iter();
    let found = rows.find(|row| row["function"] == function);
    found.unwrap_or_else(|| panic!("{function}: {of}"))
}

fn summary(trace: &Path) -> Value {
    json(&["report", "--summary", "--json", text(trace)])
}

#[test]
fn two_traces_are_compared() {
    let Some(program) = build(Compiler::Gcc, "long_calls.c", &["-g", "-O2"]) else {
        return;
    };
    let directory = scratch();
    let [before, after] = ["before", "after"].map(|name| directory.path().join(name));
    let record = |trace: &Path, events: &[&str]| {
        let words: Vec<&str> = events.iter().flat_map(|event| ["--graph", event]).collect();
        record_program(trace, &words, &program, &[]);
    };
    record(&before, &[":work", "libc:strlen"]);
    record(&after, &[":work path=$arg1", ":main"]);
    let words = ["report", "--compare", text(&before), text(&after)];
    let compared = json(&[&words[..], &["--json"]].concat());
    assert_eq!(compared["before"]["directory"], text(&before));
    assert_eq!(compared["after"]["directory"], text(&after));
    let (first, second) = (summary(&before), summary(&after));
    let work = row(&compared, "work");
    assert_eq!(work["before"], *row(&first, "work"));
    assert_eq!(work["after"], *row(&second, "work"));
    assert_eq!(work["before"]["calls"], 20, "{work}");
    let total = |row: &Value| row["total_ns"].as_i64().expect("a number");
    let change = total(&work["after"]) - total(&work["before"]);
    assert_eq!(work["total_change_ns"], change);
    // What is in one of them only.
    let main = row(&compared, "main");
    assert_eq!(main["before"], Value::Null);
    assert_eq!(main["total_change_ns"], main["after"]["total_ns"]);
    let rows = compared["by_function"].as_array().expect("rows");
    let changes: Vec<i64> = rows
        .iter()
        .map(|row| row["total_change_ns"].as_i64().expect("a number"))
        .collect();
    assert!(changes.is_sorted_by(|one, next| one >= next), "{changes:?}");
    assert_eq!(rows[0]["function"], "main");

    let output = capriole(&words);
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let line = said.lines().find(|line| line.ends_with("  main"));
    assert!(line.expect("a row").contains(" new "), "{said}");
    assert!(said.contains("before: "), "{said}");
}

#[test]
fn traces_that_cannot_be_compared_are_refused() {
    let Some(program) = build(Compiler::Gcc, "long_calls.c", &["-g", "-O2"]) else {
        return;
    };
    let directory = scratch();
    let [calls, events] = ["calls", "events"].map(|name| directory.path().join(name));
    record_program(&calls, &["--graph", ":work"], &program, &[]);
    record_program(&events, &["-e", ":work"], &program, &[]);
    for (words, status, reason) in [
        (
            &["--compare", text(&calls), text(&events)][..],
            1,
            "events has no calls from entry to exit: record them by `capriole record --graph EVENT`",
        ),
        (&["--compare", text(&calls), "/nowhere"], 1, "/nowhere"),
        (
            &["--compare", text(&calls)],
            2,
            "has a wrong number of values",
        ),
        (
            &["--compare", text(&calls), text(&calls), "--summary"],
            2,
            "exclude each other",
        ),
    ] {
        let output = capriole(&[&["report"], words].concat());
        let said = told(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(reason), "{words:?}: {said}");
    }
}

/// Reports divide by the time that `record` prints, in which the probes were in, and not by one that goes
/// on until the trace is complete.
#[test]
fn all_reports_have_the_time_that_record_prints() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &["-O1"]) else {
        return;
    };
    let words = ["--wait", "--threads", "1", "--calls", "1000000000"];
    let mut running = Running::start(&program, &words);
    running.say("go");
    let pid = running.pid.to_string();
    let attach = ["-p", &pid, "--duration", "20ms"];
    let launch = ["--", text(&program), "--calls", "1000"];
    let directory = scratch();
    for (at, subject) in [&attach[..], &launch].into_iter().enumerate() {
        let once = |option: &str, attempt: u32| {
            let trace = directory.path().join(format!("{at}{option}{attempt}"));
            let words = [&["--json", option, ":counted_work"], subject].concat();
            let output = record(&trace, &words);
            assert!(output.status.success(), "{}", told(&output));
            let said = String::from_utf8(output.stdout).expect("UTF-8");
            let said = said.lines().last().expect("a line");
            let said: Value = serde_json::from_str(said).expect("JSON");
            let time = said["duration_ns"].as_u64().expect("a number");
            (said["events"] != 0).then_some((trace, time))
        };
        // On a busy machine the program may get no processor in so short a time.
        let times = ["-e", "--graph"].map(|option| {
            let mut attempts = 0..;
            found("the program is recorded", || once(option, attempts.next()?))
        });
        let [(events, time), (calls, time_of_calls)] = times;
        let table = summary(&events);
        assert_eq!(table["duration_ns"], time, "{table}");
        let row = &table["by_event"][0];
        let per_second = row["calls"].as_f64().expect("a number") * 1e9 / time as f64;
        let ratio = row["calls_per_second"].as_f64().expect("a number") / per_second;
        assert!((ratio - 1.0).abs() < 1e-6, "{table}");
        // Every hit is in that time, by the time stamp counter.
        let last = row["last_ns"].as_u64().expect("a number");
        assert!(last <= time + 100_000, "{time}: {row}");
        assert_eq!(summary(&calls)["duration_ns"], time_of_calls);
        let words = ["report", "--json", "--compare", text(&calls), text(&calls)];
        assert_eq!(json(&words)["after"]["duration_ns"], time_of_calls);
        if at == 0 {
            assert!(time >= 20_000_000, "{time}");
        }

        // A trace of an older recorder: up to its last sync point.
        let path = events.join("info/capriole.json");
        let document = std::fs::read(&path).expect("a description");
        let mut document: Value = serde_json::from_slice(&document).expect("JSON");
        let span = document["time"].as_object_mut().expect("an object");
        assert_eq!(span.remove("probed_ns"), Some(time.into()));
        let number = |name: &str| span[name].as_u64().expect("a number");
        let until_end = number("end_monotonic_ns") - number("start_monotonic_ns");
        assert!(until_end > time, "{until_end} {time}");
        std::fs::write(&path, document.to_string()).expect("it is ours");
        assert_eq!(summary(&events)["duration_ns"], until_end);
    }
}
