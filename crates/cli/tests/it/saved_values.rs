//! Values saved at a function's entry and used at its exit: calls that are recorded only if
//! they took long, and `$entry:NAME`, through recursion, tail calls, longjmp, coroutines,
//! signals, forks, cancelled threads, and functions that are active at attach.

use crate::traces;

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, told};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use traces::{Background, events, pairs, record, record_program, scratch, text, told_by_stat};

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "returns.c", &["-g"])
}

/// Parses the program's output: by function, the number of calls that returned or made a tail
/// call.
fn said(output: &str) -> BTreeMap<&str, u64> {
    let mut calls = BTreeMap::new();
    for (function, _) in pairs(output) {
        *calls.entry(function).or_default() += 1;
    }
    calls
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn report(trace: &Path, words: &[&str]) -> String {
    let output = capriole(&[&["report"], words, &[text(trace)]].concat());
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The ways to find out that a call ends.
const ENDS: [&str; 2] = ["--return=exits", "--return=stack"];

/// Returns the calls as `report --graph --json` prints them.
fn graph(trace: &Path) -> Vec<Value> {
    let lines = report(trace, &["--graph", "--json"]);
    let parse = |line| serde_json::from_str(line).expect("JSON");
    lines.lines().map(parse).collect()
}

/// Checks that every call's duration is its own time plus the calls made in it, and that it
/// lies within its caller's.
fn check_nesting(calls: &[Value]) {
    let by_id: BTreeMap<u64, &Value> = calls.iter().map(|c| (number(&c["id"]), c)).collect();
    let mut inside: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let span = |call: &Value| {
        let begin = number(&call["time_ns"]);
        (begin, begin + number(&call["duration_ns"]))
    };
    for call in calls {
        if let Some(parent) = call["parent"].as_u64() {
            let around = by_id[&parent];
            let (outer, inner) = (span(around), span(call));
            // Each number is rounded down.
            assert!(
                outer.0 <= inner.0 && inner.1 <= outer.1 + 2,
                "{around} {call}"
            );
            assert_eq!(number(&around["depth"]) + 1, number(&call["depth"]));
            let sum = inside.entry(parent).or_default();
            *sum = (sum.0 + number(&call["duration_ns"]), sum.1 + 1);
        }
    }
    for call in calls {
        let (children, count) = inside.remove(&number(&call["id"])).unwrap_or_default();
        let whole = number(&call["duration_ns"]);
        let parts = number(&call["self_ns"]) + children;
        assert!((parts..=parts + count + 1).contains(&whole), "{call}");
    }
}

/// With the shortest minimum duration, every call that returns is recorded, and nothing else.
#[test]
fn all_calls_are_longer_than_nothing() {
    let Some(program) = program() else { return };
    let scenarios = [
        ("deep", &["deep"][..]),
        ("tail", &["even", "odd"]),
        ("jumps", &["jumper"]),
        ("coroutines", &["yielding", "worker"]),
        ("signals", &["raising", "whole"]),
        ("fork", &["forking"]),
        ("cancel", &["cleaning"]),
    ];
    for (returns, (scenario, functions)) in ENDS
        .iter()
        .flat_map(|returns| scenarios.iter().map(move |scenario| (returns, *scenario)))
    {
        // One function is open several times at one place there: see below.
        if scenario == "tail" && *returns == "--return=stack" {
            continue;
        }
        let directory = scratch();
        let trace = directory.path().join("t");
        let asked: Vec<String> = functions.iter().map(|f| format!(":{f}")).collect();
        let mut words = vec![returns, "--min-duration", "1ns"];
        words.extend(asked.iter().flat_map(|event| ["--graph", event]));
        let output = record_program(&trace, &words, &program, &[scenario]);
        let said = said(&output);
        let entries = events(&trace);
        let is_exit = |e: &Value| e["event"].as_str().is_some_and(|name| name.contains("__"));
        assert!(entries.iter().all(is_exit), "{returns} {scenario}");
        let calls = graph(&trace);
        for function in functions {
            let own = calls.iter().filter(|call| call["function"] == *function);
            let own = own.count() as u64;
            assert_eq!(own, said[function], "{returns} {scenario} {function}");
        }
        let ended = ["returned", "tail_call"];
        let has_ended = |call: &Value| ended.contains(&call["exit"].as_str().expect("a word"));
        assert!(calls.iter().all(has_ended), "{scenario}");
        if scenario != "fork" {
            check_nesting(&calls);
        }
        if scenario == "deep" {
            // Each call is nested in the one before.
            let depths = calls.iter().map(|call| number(&call["depth"]));
            assert_eq!(depths.max(), Some(said["deep"] - 1));
        }
    }
}

/// Functions that are left for each other by jumps return together, and each is shown in the one that jumped
/// to it: their time is counted once.
#[test]
fn a_chain_of_tail_calls_is_nested() {
    let Some(program) = build(Compiler::Gcc, "followed.c", &["-g", "-O2", "-pthread"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let functions = ["first", "second", "third"];
    let mut words = vec![ENDS[1], "--min-duration", "1ns"];
    let events: Vec<String> = functions.iter().map(|name| format!(":{name}")).collect();
    words.extend(events.iter().flat_map(|event| ["--graph", event]));
    record_program(&trace, &words, &program, &["tail"]);
    let calls = graph(&trace);
    check_nesting(&calls);
    let by_id: BTreeMap<u64, &Value> = calls.iter().map(|c| (number(&c["id"]), c)).collect();
    for (depth, function) in functions.iter().enumerate() {
        let own = calls.iter().filter(|call| call["function"] == *function);
        let own: Vec<&Value> = own.collect();
        assert_eq!(own.len(), 100, "{function}");
        for call in own {
            assert_eq!(number(&call["depth"]), depth as u64, "{call}");
            assert_eq!(call["exit"], "returned", "{call}");
            let caller = call["parent"].as_u64().map(|id| &by_id[&id]["function"]);
            let wanted = depth.checked_sub(1).map(|at| json!(functions[at]));
            assert_eq!(caller, wanted.as_ref(), "{call}");
        }
    }
    let summary = traces::summary(&trace);
    let rows = summary["by_function"].as_array().expect("rows").iter();
    let sum: u64 = rows.clone().map(|row| number(&row["self_ns"])).sum();
    let mut rows = rows.filter(|row| row["function"] == "first");
    let first = rows.next().expect("a row");
    // Each number is rounded down.
    let total = number(&summary["total_ns"]);
    assert_eq!(number(&first["total_ns"]), total, "{summary}");
    assert!((sum..=sum + 3).contains(&total), "{summary}");
}

#[test]
fn short_calls_are_not_recorded() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    // The program sleeps a millisecond each time.
    let words = [
        "--graph",
        ":main",
        "--graph",
        ":note_as",
        "--min-duration",
        "5ms",
    ];
    let output = record_program(&trace, &words, &program, &["cancel"]);
    assert!(said(&output)["cleaning"] == 10, "{output}");
    let calls = graph(&trace);
    let main: Vec<&Value> = calls.iter().filter(|c| c["function"] == "main").collect();
    assert_eq!(main.len(), 1, "{calls:?}");
    assert!(
        calls.iter().all(|c| number(&c["duration_ns"]) >= 4_999_000),
        "{calls:?}"
    );
    let trace = directory.path().join("none");
    let words = ["--graph", ":main", "--min-duration", "1h"];
    record_program(&trace, &words, &program, &["cancel"]);
    assert_eq!(events(&trace), [] as [Value; 0]);
    let table = report(&trace, &["--summary"]);
    let last = "1 function was never called, or no call took the minimum duration";
    assert_eq!(table.lines().last(), Some(last), "{table}");
    // With all calls recorded, it was not called.
    let trace = directory.path().join("all");
    let words = ["--graph", ":main", "--graph", ":jumper"];
    record_program(&trace, &words, &program, &["cancel"]);
    let table = report(&trace, &["--summary"]);
    assert_eq!(
        table.lines().last(),
        Some("1 function was never called"),
        "{table}"
    );
}

/// Texts and arrays of long calls are read at the exit, through pointers kept from the entry.
#[test]
fn long_calls_have_texts_and_stacks() {
    let Some(program) = build(Compiler::Gcc, "long_calls.c", &["-g", "-O2"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let returned_by = |returns: &str, event: &str, least: &str| {
        let words = [returns, "--graph", event, "--min-duration", least];
        record_program(&trace, &words, &program, &[]);
        events(&trace)
    };
    let recorded = |event: &str, least: &str| returned_by(ENDS[0], event, least);
    let event = ":work p=$arg1:string path:string r->name:string n=+0(+8($arg2)):string \
                 data=$arg3:string[$arg4] head=$arg3:u8[2] r->id who=$comm stack";
    let all = returned_by(ENDS[1], event, "1ns");
    assert_eq!(all.len(), 20);
    let again = recorded(event, "1ns");
    assert_eq!(again.len(), 20);
    for (number, event) in all.iter().chain(&again).enumerate() {
        let i = number % 20;
        let arguments = &event["arguments"];
        for (field, wanted) in [
            ("p", json!(format!("/p/{i}"))),
            ("path", json!(format!("/p/{i}"))),
            ("r_name", json!(format!("name{i}"))),
            ("n", json!(format!("name{i}"))),
            ("data", json!("abcdefgh"[..i % 8])),
            ("head", json!([97, 98])),
            ("r_id", json!(i)),
        ] {
            assert_eq!(arguments[field], wanted, "{field}: {event}");
        }
        assert_eq!(arguments["who"], event["comm"], "{event}");
        let stack = event["stack"].as_array().expect("a stack");
        let functions: Vec<&Value> = stack.iter().map(|frame| &frame["symbol"]).collect();
        assert_eq!(functions[..2], [&json!("work"), &json!("main")], "{event}");
    }
    let said = capriole(&["report", "--graph", text(&trace)]);
    assert!(told(&said).contains("work(p=\"/p/7\", path=\"/p/7\", r_name=\"name7\""));
    // A filter over a text is evaluated at the entry.
    let some = recorded(":work path=$arg1:string if path ~ \"/p/1*\"", "1ns");
    let numbers: Vec<&str> = some
        .iter()
        .filter_map(|event| event["arguments"]["path"].as_str())
        .collect();
    let wanted = [
        "1", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19",
    ];
    assert_eq!(numbers, wanted.map(|number| format!("/p/{number}")));
    let long = recorded(":work path:string stack", "10ms");
    for i in [0, 5, 10, 15] {
        let path = json!(format!("/p/{i}"));
        assert!(long.iter().any(|e| e["arguments"]["path"] == path), "{i}");
    }
    // Without a type a pointer to characters is a text, which has to be given as one.
    let words = ["--graph", ":work path", "--min-duration", "1ns", "--"];
    let output = record(&trace, &[&words[..], &[text(&program)]].concat());
    let said = told(&output);
    assert!(said.contains("write path:string for calls"), "{said}");
}

/// Another event at the exits of such calls is recorded as an event, and ends no call.
#[test]
fn calls_and_events_at_their_exits() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    for events in [["-e", "r :even"], ["-e", "r :even result=$retval"]] {
        let calls = ["--graph", ":even", "--min-duration", "1ns"];
        let words = [&calls[..], &events].concat();
        let output = record_program(&trace, &words, &program, &["tail"]);
        let expected = said(&output)["even"];
        let calls = graph(&trace);
        assert_eq!(calls.len() as u64, expected, "{events:?}");
        assert!(calls.iter().all(|call| {
            ["returned", "tail_call"].contains(&call["exit"].as_str().expect("a word"))
        }));
        let all = traces::events(&trace).len() as u64;
        assert_eq!(all, 2 * expected, "{events:?}");
        std::fs::remove_dir_all(&trace).expect("it is ours");
    }
}

/// Arguments are saved, and shown where the call begins; the filter is evaluated at the entry.
#[test]
fn arguments_of_long_calls() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let all = ["--graph", ":even $arg*", "--min-duration", "1ns"];
    record_program(&trace, &all, &program, &["tail"]);
    let calls = graph(&trace);
    for call in &calls {
        let n = number(&call["arguments"]["n"]);
        assert_eq!(
            call["arguments"].as_object().map(|o| o.len()),
            Some(1),
            "{call}"
        );
        if call["exit"] == "returned" {
            assert_eq!(
                number(&call["return"]["ret"]),
                u64::from(n.is_multiple_of(2)),
                "{call}"
            );
            assert_eq!(
                call["return"].as_object().map(|o| o.len()),
                Some(1),
                "{call}"
            );
        }
    }
    let threes = calls
        .iter()
        .filter(|call| call["arguments"]["n"] == 3)
        .count();
    let text = report(&trace, &["--graph", "--depth", "1"]);
    assert!(
        text.contains("even(n=7)") && !text.contains("_duration"),
        "{text}"
    );

    let trace = directory.path().join("filtered");
    let filtered = ["--graph", ":even n if n == 3", "--min-duration", "1ns"];
    record_program(&trace, &filtered, &program, &["tail"]);
    let calls = graph(&trace);
    assert_eq!(calls.len(), threes);
    assert!(
        calls.iter().all(|call| call["arguments"]["n"] == 3),
        "{calls:?}"
    );
}

/// Returns the values that one function has returned, according to the program.
fn results(output: &str, function: &str) -> Vec<i64> {
    let of = |line: &str| line.strip_prefix(function)?.strip_prefix(' ')?.parse().ok();
    output.lines().filter_map(of).collect()
}

#[test]
fn a_return_knows_the_arguments() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "-e",
        "r :whole $entry:x other=$entry:arg1:s32 same=$arg1:s32 $retval",
        "-e",
        "r :wide x=$entry:x if x == 5",
        "-e",
        "r :small filtered=$entry:x if filtered > 20",
    ];
    let output = record_program(&trace, &words[..2], &program, &["sizes"]);
    let found: Vec<i64> = events(&trace)
        .iter()
        .map(|event| {
            let value = |name: &str| event["arguments"][name].as_i64().expect("a number");
            assert_eq!(value("x"), value("same"), "{event}");
            assert_eq!(value("x"), value("other"), "{event}");
            value("ret")
        })
        .collect();
    assert_eq!(found, results(&output, "whole"));
    let xs: Vec<i64> = events(&trace)
        .iter()
        .map(|event| event["arguments"]["x"].as_i64().expect("a number"))
        .collect();
    assert_eq!(xs, (0..24).collect::<Vec<i64>>());

    let trace = directory.path().join("filtered");
    record_program(&trace, &words[2..], &program, &["sizes"]);
    let calls = traces::calls(&trace);
    let counts: Vec<u64> = ["wide__return", "small__return"].map(|n| calls[n]).to_vec();
    assert_eq!(counts, [1, 3], "{calls:?}");
}

/// Deep in a recursion, and through tail calls, each exit has the value of its own entry.
#[test]
fn recursion_keeps_a_value_for_each_level() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    for returns in ENDS {
        let words = [returns, "-e", "r :deep levels=$entry:levels"];
        record_program(&trace, &words, &program, &["deep"]);
        let found: Vec<u64> = events(&trace)
            .iter()
            .map(|event| number(&event["arguments"]["levels"]))
            .collect();
        let count = found.len() as u64;
        assert!(count > 90_000, "{returns}: {count}");
        assert_eq!(found, (0..count).collect::<Vec<_>>(), "{returns}");
    }
}

/// Events for the same function do not interfere with each other.
#[test]
fn several_events_keep_values_of_one_function() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "-e",
        "r:all :even n=$entry:n",
        "-e",
        "r:some :even $entry:n if n == 4",
        "--graph",
        ":even n if n == 5",
        "--min-duration",
        "1ns",
    ];
    let output = record_program(&trace, &words, &program, &["tail"]);
    let events = events(&trace);
    let of = |name: &str| -> Vec<u64> {
        let own = events
            .iter()
            .filter(|e| e["event"].as_str().expect("a name").starts_with(name));
        own.map(|event| number(&event["arguments"]["n"])).collect()
    };
    assert_eq!(of("all").len() as u64, said(&output)["even"]);
    for (name, n) in [("some", 4), ("even", 5)] {
        let expected = of("all").into_iter().filter(|other| *other == n).count();
        assert_eq!(of(name), vec![n; expected], "{name}");
    }
}

/// Calls that end at one return, because one has jumped to the other, have values and times of their
/// own, each event for itself.
#[test]
fn calls_that_return_together_keep_their_own_values() {
    let Some(program) = build(Compiler::Gcc, "jumps_away.c", &["-g"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "--return=stack",
        "-e",
        "r:outer :outer n=$entry:n $retval if duration > 20ms",
        "-e",
        "r:slow :slow n=$entry:n $retval if duration > 20ms && n != 3",
    ];
    record_program(&trace, &words, &program, &[]);
    let found: Vec<_> = events(&trace)
        .iter()
        .map(|event| {
            let value = |name: &str| event["arguments"][name].as_i64().expect("a number");
            let name = event["event"].as_str().expect("a name").to_owned();
            (name, value("n"), value("ret"))
        })
        .collect();
    let expected: Vec<_> = (0..5)
        .flat_map(|n| {
            let slow = (n != 2).then_some(("slow".to_owned(), n + 1, n + 1));
            slow.into_iter().chain([("outer".to_owned(), n, n + 1)])
        })
        .collect();
    assert_eq!(found, expected);
    // Of one event's calls the innermost is known, and nothing is taken for the others' values.
    let words = ["--return=stack", "-e", "r:any :*[rw] n=$arg1:s32 $retval"];
    record_program(&trace, &words, &program, &[]);
    let events = events(&trace);
    assert_eq!(events.len(), 10, "{events:?}");
    for (number, event) in events.iter().enumerate() {
        let n = &event["arguments"]["n"];
        // First `slow` returns, then `outer`.
        let expected = match number % 2 {
            0 => json!(number / 2 + 1),
            _ => Value::Null,
        };
        assert_eq!(n, &expected, "{event}");
        assert_eq!(event["arguments"]["ret"], number / 2 + 1, "{event}");
    }
}

/// A chain of tail calls that comes back to a function: its last call is known, the others are missed,
/// and none has the values of another.
#[test]
fn a_chain_that_comes_back_to_a_function() {
    let Some(program) = build(Compiler::Gcc, "jumps_back.c", &["-g"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let stack = "--return=stack";
    // From 4 by 3, 2 and 1 to 0: `even` three times, `odd` twice; from 7 more than are followed.
    for (from, evens, odds, last_even) in [("4", 3, 2, 0), ("7", 4, 4, 1)] {
        let all = ["--json", stack, "-e", "r:even :even n=$arg1:s64 $retval"];
        let both = ["-e", "r:odd :odd n=$arg1:s64 $retval"];
        for words in [&all[..], &[&all[..], &both].concat()] {
            let said = record_program(&trace, words, &program, &[from]);
            let missed = json_of(&said)["returns_missed"].as_u64();
            let functions = if words.len() > all.len() { 2 } else { 1 };
            let expected = evens - 1 + (functions - 1) * (odds - 1);
            assert_eq!(missed, Some(10 * expected), "{said}");
            let events = events(&trace);
            assert_eq!(events.len() as u64, 10 * functions, "{events:?}");
            for event in events {
                let last = match event["event"] == "even" {
                    true => last_even,
                    false => 1 - last_even,
                };
                assert_eq!(event["arguments"]["n"], last, "{event}");
            }
        }
    }
    // The first call waits 5 ms, and is missed: the last one is short, unless it had to wait for a
    // processor, which the program has noticed as well.
    for (event, is_short) in [
        ("r:even :even if duration < 4ms", true),
        ("r:even :even if duration >= 4ms", false),
    ] {
        let said = record_program(&trace, &[stack, "-e", event], &program, &["4"]);
        let quick = said.lines().find_map(|line| line.strip_prefix("quick "));
        let quick = quick.and_then(|number| number.parse().ok());
        let quick: usize = quick.expect("a number");
        let range = if is_short { quick..=10 } else { 0..=10 - quick };
        assert!(range.contains(&events(&trace).len()), "{event}: {quick}");
    }
    let words = [
        "stat",
        "--json",
        stack,
        "-e",
        "latency(:even)",
        "--",
        text(&program),
        "4",
    ];
    let output = capriole(&words);
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = json_of(&said);
    let measure = &json["groups"][0]["rows"][0]["measures"][0];
    assert_eq!(
        (&measure["count"], &json["returns_missed"]),
        (&json!(10), &json!(20))
    );
    // Without values of the entry each call returns for itself.
    let words = [stack, "-e", "r:even :even $retval"];
    record_program(&trace, &words, &program, &["4"]);
    assert_eq!(events(&trace).len(), 30);
}

/// Returns the JSON behind what a program has printed.
fn json_of(said: &str) -> Value {
    let line = said.lines().last().expect("JSON is the last line");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn totals_by_what_was_at_the_entry() {
    let Some(program) = program() else { return };
    let stat = |event: &str| -> Value {
        let words = ["stat", "--json", "-e", event, "--", text(&program), "tail"];
        let output = capriole(&words);
        told_by_stat(&output).1
    };
    let told = stat("r :even count() sum(m=$entry:n:u64) by n=$entry:arg1:u64");
    let rows = told["groups"][0]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 50, "{told}");
    let mut selected = 0;
    for row in rows {
        let (n, calls) = (number(&row["keys"]["n"]), number(&row["calls"]));
        let sum = row["measures"]
            .as_array()
            .expect("a list")
            .last()
            .expect("a sum");
        assert_eq!(number(&sum["value"]), n * calls, "{row}");
        assert_eq!(row["unreadable"], 0, "{row}");
        selected += if n > 10 { calls } else { 0 };
    }
    // The filter is evaluated at the entry, where timed calls begin. The end of a call that it rejects
    // does not count, under no key.
    let told = stat("latency(:even n if n > 10) by n=$entry:n:u64");
    let rows = told["groups"][0]["rows"].as_array().expect("rows");
    let mut timed = 0;
    for row in rows {
        assert!(number(&row["keys"]["n"]) > 10, "{row}");
        timed += number(&row["measures"][0]["count"]);
    }
    assert!(selected > 0, "{told}");
    assert_eq!(timed, selected, "{told}");
}

/// Memory is read at the entry, or at the exit through a pointer saved at the entry.
#[test]
fn memory_at_the_entry() {
    let Some(program) = build(Compiler::Gcc, "fetch_values.c", &["-g"]) else {
        return;
    };
    for returns in ENDS {
        values_of_the_entry(&program, returns);
    }
}

fn values_of_the_entry(program: &Path, returns: &str) {
    let mut running = Running::start(program, &["20"]);
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = "r :fetch_target fd=$entry:request->fd $entry:request->port \
                 path=+0($entry:request->path):string n=$entry:number seventh=$arg7:s64 \
                 wild=$entry:absent->port $retval if n != -7";
    let recording = Background::attach_with(&trace, running.pid, &[returns, "-e", event]);
    running.say("go");
    running.finished();
    recording.ended_by_itself();
    let events = events(&trace);
    let expected = (0..20).filter(|i| *i != 7);
    assert_eq!(events.len(), 19, "{events:?}");
    for (event, i) in events.iter().zip(expected) {
        let value = |name: &str| event["arguments"][name].as_i64();
        assert_eq!(value("fd"), Some(i - 3), "{event}");
        assert_eq!(value("request_port"), Some(8080 + i), "{event}");
        assert_eq!(value("n"), Some(-i), "{event}");
        assert_eq!(value("seventh"), Some(7000 + i), "{event}");
        let path = if i % 3 == 0 {
            "/tmp/x y"
        } else {
            "/etc/hostname"
        };
        assert_eq!(event["arguments"]["path"], path, "{event}");
        assert_eq!(event["faults"], serde_json::json!(["wild"]), "{event}");
    }
}

/// A call that was active at attach has no entry.
#[test]
fn an_exit_without_an_entry() {
    let Some(program) = program() else { return };
    for graph in [false, true] {
        let mut running = Running::start(&program, &["active"]);
        let directory = scratch();
        let trace = directory.path().join("t");
        let recording = match graph {
            false => Background::attach(&trace, running.pid, &["r :active d=$entry:depth $retval"]),
            true => Background::attach_with(
                &trace,
                running.pid,
                &["--graph", ":active $arg1", "--min-duration", "1ns"],
            ),
        };
        running.say("go");
        running.finished();
        recording.ended_by_itself();
        let events = events(&trace);
        if graph {
            assert_eq!(events, [] as [Value; 0]);
            continue;
        }
        let results: Vec<i64> = (0..6).map(|n| 1 + 10 * n).collect();
        let found = |event: &Value| event["arguments"]["ret"].as_i64().expect("a number");
        assert_eq!(events.iter().map(found).collect::<Vec<_>>(), results);
        for event in &events {
            assert_eq!(event["arguments"]["d"], Value::Null, "{event}");
            assert_eq!(event["faults"], serde_json::json!(["d"]), "{event}");
        }
    }
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    for (words, reason) in [
        (
            &["-e", "r :text $entry:y"][..],
            "no variable `y` here: there are x",
        ),
        (
            &[
                "-e",
                "r :whole $arg1 $arg2 $arg3 $arg4 $arg5 $arg6 $arg7 $arg8",
            ],
            "a call keeps at most 7 values from its entry to its exit, not 8",
        ),
        (&["-e", ":whole", "--min-duration", "1us"], "--graph"),
    ] {
        let all = [words, &["--", text(&program), "sizes"]].concat();
        let output = record(&trace, &all);
        let said = told(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(reason), "{words:?}: {said}");
        assert!(!trace.exists());
    }
}

/// Forked workers run the same code at the same stack addresses: each finds the values that its
/// own calls have saved.
#[test]
fn forked_workers_have_calls_of_their_own() {
    let Some(program) = build(Compiler::Gcc, "prefork.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "-e",
        "r:work :prefork_work given=$entry:arg1:u64 got=$retval:u64",
    ];
    record_program(&trace, &words, &program, &["4", "300"]);
    let events = events(&trace);
    assert_eq!(events.len(), 1200);
    for event in &events {
        let fields = &event["arguments"];
        assert_eq!(number(&fields["given"]), number(&fields["got"]), "{event}");
    }
}
