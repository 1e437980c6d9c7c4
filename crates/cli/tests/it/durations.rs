//! Conditions on the duration of calls, together with all that an event at a return can have. The
//! program measures each call itself: inside the function, and around the call. The duration lies
//! between the two.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{events, record_program, scratch, text, told_by_stat};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The limit in the events, ns.
const LIMIT: u64 = 10_000_000;

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "slow.c", &["-g", "-pthread"])
}

/// A call, as the program prints it.
struct Span {
    inside: u64,
    around: u64,
}

impl Span {
    /// Returns if the call took the limit, unless it is too close.
    fn is_long(&self) -> Option<bool> {
        // The clock is exact to 10 parts in a million.
        let near = LIMIT / 10_000;
        match (self.inside >= LIMIT + near, self.around < LIMIT - near) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// Parses the calls of a function, by their numbers.
fn spans(output: &str, function: &str) -> BTreeMap<u64, Span> {
    let of = |line: &str| {
        let mut words = line.strip_prefix(function)?.split_whitespace();
        let mut next = || words.next()?.parse().ok();
        let (id, inside, around) = (next()?, next()?, next()?);
        Some((id, Span { inside, around }))
    };
    output.lines().filter_map(of).collect()
}

/// Checks that the calls with the numbers `found` are the long ones, or all others.
fn check(found: &[u64], spans: &BTreeMap<u64, Span>, long: bool) {
    for (id, span) in spans {
        let count = found.iter().filter(|other| *other == id).count();
        match span.is_long() {
            Some(is_long) => assert_eq!(count, usize::from(is_long == long), "{id} of {found:?}"),
            None => assert!(count <= 1, "{id} of {found:?}"),
        }
    }
    assert!(found.iter().all(|id| spans.contains_key(id)), "{found:?}");
}

fn value<'a>(event: &'a Value, name: &str) -> &'a Value {
    &event["arguments"][name]
}

fn number(event: &Value, name: &str) -> u64 {
    let value = value(event, name);
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{name} of {event}"))
}

#[test]
fn long_calls_with_all_kinds_of_fields() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = "r :work id=$entry:id same=$arg1:s32 name=$entry:name:string \
                 from=$entry:inside spans=+0($entry:inside):u64[2] \
                 n=$retval thread=$comm stack if duration > 10ms";
    let output = record_program(&trace, &["-e", event], &program, &[]);
    let spans = spans(&output, "work");
    assert_eq!(spans.len(), 80, "{output}");
    let events = events(&trace);
    let found: Vec<u64> = events.iter().map(|event| number(event, "id")).collect();
    check(&found, &spans, true);
    assert!(found.len() >= 20, "{found:?}");
    for event in &events {
        let id = number(event, "id");
        let slow = id.is_multiple_of(4);
        assert_eq!(number(event, "same"), id, "{event}");
        assert_eq!(*value(event, "name"), if slow { "slow" } else { "quick" });
        assert_eq!(number(event, "n"), id + u64::from(slow), "{event}");
        let times = value(event, "spans").as_array().expect("an array");
        let times: Vec<u64> = times.iter().filter_map(Value::as_u64).collect();
        assert_eq!(times[1] - times[0], spans[&id].inside, "{event}");
        let calls = event["stack"].to_string();
        assert!(
            calls.contains("work") && calls.contains("worker"),
            "{event}"
        );
    }
}

/// Each level of a recursion has its own duration.
#[test]
fn long_calls_of_a_recursion() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = "r :deep level=$entry:level n=$retval if duration >= 10ms";
    let output = record_program(&trace, &["-e", event], &program, &[]);
    let spans = spans(&output, "deep");
    assert_eq!(spans.len(), 20, "{output}");
    let events = events(&trace);
    let found: Vec<u64> = events.iter().map(|event| number(event, "level")).collect();
    check(&found, &spans, true);
    assert!(found.len() >= 10, "{found:?}");
    assert!(
        events
            .iter()
            .all(|e| number(e, "n") == number(e, "level") + 1)
    );
}

/// The condition is part of any other, and each event has its own.
#[test]
fn conditions_on_durations_and_others() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "-e",
        "r:t/long :work id=$entry:id if duration > 10ms",
        "-e",
        "r:t/short :work id=$entry:id if duration < 10ms",
        "-e",
        "r:t/not_long :work id=$entry:id if !(duration >= 10ms)",
        "-e",
        "r:t/both :work id=$entry:id name=$entry:name:string if duration > 10ms && id >= 100 && \
         name ~ \"s*\"",
        "-e",
        "r:t/either :work id=$entry:id n=$retval if n == 2 || duration > 10ms",
        "-e",
        "r:t/never :work if duration > 1h",
        "-e",
        "r:t/all :work id=$entry:id",
    ];
    let output = record_program(&trace, &words, &program, &[]);
    let spans = spans(&output, "work");
    let events = events(&trace);
    let of = |name: &str| -> Vec<u64> {
        let own = events.iter().filter(|event| event["event"] == name);
        let mut found: Vec<u64> = own.map(|event| number(event, "id")).collect();
        found.sort_unstable();
        found
    };
    let all: Vec<u64> = spans.keys().copied().collect();
    assert_eq!(of("all"), all);
    check(&of("long"), &spans, true);
    check(&of("short"), &spans, false);
    check(&of("not_long"), &spans, false);
    // The calls of two events are measured one after the other, at entries and exits.
    if spans.values().all(|span| span.is_long().is_some()) {
        let long = of("long");
        // Quick calls may be long, too: the thread may have to wait for a processor.
        let slow = |id: &u64| *id >= 100 && id.is_multiple_of(4);
        let of_other: Vec<u64> = long.iter().copied().filter(slow).collect();
        assert_eq!(of("both"), of_other);
        let mut either: Vec<u64> = long.iter().copied().chain([2]).collect();
        either.sort_unstable();
        either.dedup();
        assert_eq!(of("either"), either);
    }
    assert_eq!(of("never"), [] as [u64; 0]);
}

fn stat(event: &str, program: &str) -> (Value, String) {
    let output = capriole(&["stat", "--json", "-e", event, "--", program]);
    let (own, value) = told_by_stat(&output);
    (value, own)
}

#[test]
fn long_calls_are_counted() {
    let Some(program) = program() else { return };
    let program = text(&program);
    let (told, output) = stat("r :work if duration > 10ms", program);
    let spans_of_all = spans(&output, "work");
    let long = |wanted: Option<bool>| {
        let all = spans_of_all.values();
        all.filter(|span| span.is_long() == wanted).count() as u64
    };
    let (certain, unsure) = (long(Some(true)), long(None));
    let calls = told["events"][0]["calls"].as_u64().expect("a number");
    assert!((certain..=certain + unsure).contains(&calls), "{told}");

    let event = "r :work sum(n=$retval:s32) max(ns=$entry:ns) by id=$arg1:u32, \
                 name=$entry:name:string if duration > 10ms";
    let (told, output) = stat(event, program);
    let rows = told["groups"][0]["rows"].as_array().expect("rows");
    let id = |row: &Value| row["keys"]["id"].as_u64().expect("a number");
    let found: Vec<u64> = rows.iter().map(id).collect();
    check(&found, &spans(&output, "work"), true);
    for row in rows {
        let slow = id(row).is_multiple_of(4);
        assert_eq!(row["keys"]["name"], if slow { "slow" } else { "quick" });
        assert_eq!((&row["calls"], &row["unreadable"]), (&1.into(), &0.into()));
        let sum = &row["measures"][0]["value"];
        assert_eq!(*sum, id(row) + u64::from(slow), "{row}");
    }
}

#[test]
fn what_has_no_duration_is_refused() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let refused = |words: &[&str], because: &str| {
        let output = capriole(&[words, &["--", text(&program)]].concat());
        let told = told(&output);
        assert!(!output.status.success(), "{told}");
        assert!(told.contains(because), "{told}");
    };
    let record = |words: &[&str], because: &str| {
        refused(&[&["record", "-o", text(&trace)], words].concat(), because);
    };
    let known = "the duration of a call is known at its return only";
    record(&["-e", ":work if duration > 10ms"], known);
    record(&["--graph", ":work if duration > 10ms"], known);
    refused(
        &["stat", "-e", "latency(:work if duration > 1ms)"],
        "latency(...) measures all calls, and has no filter by duration",
    );
}

/// Total, average, least and largest of the durations are those of the values, and lie between the
/// sums, the least and the largest of what the program measures.
#[test]
fn latencies_are_exact() {
    let Some(program) = program() else { return };
    let program = text(&program);
    let check = |row: &Value, spans: &[&Span]| {
        let measure = &row["measures"][0];
        let number = |name: &str| {
            let value = &measure[name];
            value.as_u64().unwrap_or_else(|| panic!("{name} of {row}"))
        };
        assert_eq!(number("count"), spans.len() as u64, "{row}");
        assert_eq!(measure["exact"], true, "{row}");
        // The clock is exact to 10 parts in a million.
        let within = |name: &str, of: fn(&[u64]) -> u64| {
            let all = |time: fn(&Span) -> u64| -> u64 {
                of(&spans.iter().map(|span| time(span)).collect::<Vec<_>>())
            };
            let (least, most) = (all(|span| span.inside), all(|span| span.around));
            let value = number(name);
            let range = least - least / 50_000..=most + most / 50_000 + 1;
            assert!(range.contains(&value), "{name} not in {range:?}: {row}");
        };
        within("total_ns", |times| times.iter().sum());
        within("min_ns", |times| times.iter().copied().min().unwrap_or(0));
        within("max_ns", |times| times.iter().copied().max().unwrap_or(0));
        let average = measure["avg_ns"].as_f64().expect("a number");
        let expected = number("total_ns") as f64 / spans.len() as f64;
        assert!((average - expected).abs() < 1e-6 * expected, "{row}");
        let buckets = measure["buckets"].as_array().expect("buckets");
        let inside = |bucket: &Value, name: &str| {
            let bound = |bound: &str| bucket[bound].as_u64().expect("a number");
            (bound("low")..=bound("high")).contains(&number(name))
        };
        assert!(inside(&buckets[0], "min_ns"), "{row}");
        assert!(inside(&buckets[buckets.len() - 1], "max_ns"), "{row}");
    };
    for event in [
        "latency(:work)",
        "latency(:work) by tid",
        "latency(:work) by id=$arg1, comm",
    ] {
        let (told, output) = stat(event, program);
        let all = spans(&output, "work");
        let rows = told["groups"][0]["rows"].as_array().expect("rows");
        let by_id = event.contains("id=");
        assert_eq!(
            rows.len(),
            if by_id {
                80
            } else {
                1 + usize::from(event.contains("tid"))
            }
        );
        let (first, second): (Vec<_>, Vec<_>) = all.iter().partition(|(id, _)| **id < 100);
        for row in rows {
            let own: Vec<&Span> = match row["keys"]["id"].as_u64() {
                Some(id) => vec![&all[&id]],
                None if !event.contains("tid") => all.values().collect(),
                None => {
                    // The thread that was started by the other has the greater number.
                    let tids = rows.iter().map(|row| row["keys"]["tid"].as_u64());
                    let of_main = row["keys"]["tid"].as_u64() == tids.min().flatten();
                    let own = if of_main { &first } else { &second };
                    own.iter().map(|(_, span)| *span).collect()
                }
            };
            check(row, &own);
        }
    }
    let (told, output) = stat("latency(:deep)", program);
    let all = spans(&output, "deep");
    check(
        &told["groups"][0]["rows"][0],
        &all.values().collect::<Vec<_>>(),
    );
}

/// Calls whose return addresses are next to each other on the stack are all timed, and keep their values.
#[test]
fn calls_eight_bytes_apart() {
    let Some(program) = build(Compiler::Gcc, "close_frames.c", &["-O2"]) else {
        return;
    };
    let calls = ["latency(:outer) by n=$entry:arg2:s32", "latency(:inner)"];
    let words = ["stat", "--json", "-e", calls[0], "-e", calls[1], "--"];
    let output = capriole(&[&words[..], &[text(&program), "3000"]].concat());
    assert!(output.status.success(), "{}", told(&output));
    let line = output.stdout.split(|byte| *byte == b'\n').nth(1);
    let said: Value = serde_json::from_slice(line.expect("two lines")).expect("JSON");
    let mut totals = Vec::new();
    for (group, calls) in [(0, 3000), (1, 30_000)] {
        let rows = said["groups"][group]["rows"].as_array().expect("a list");
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!(rows[0]["calls"], calls, "{rows:?}");
        assert_eq!(rows[0]["unreadable"], 0, "{rows:?}");
        totals.push(rows[0]["measures"][0]["total_ns"].as_u64().expect("exact"));
    }
    assert_eq!(said["groups"][0]["rows"][0]["keys"]["n"], 10);
    assert!(totals[0] > totals[1], "{totals:?}");

    let directory = scratch();
    let trace = directory.path().join("t");
    let options = ["--graph", ":outer", "--graph", ":inner"];
    let long = [&options[..], &["--min-duration", "1ns"]].concat();
    record_program(&trace, &long, &program, &["3000"]);
    let found = events(&trace);
    let outer = found.iter().filter(|one| one["event"] == "outer__return");
    assert_eq!(outer.count(), 3000);
}
