//! Tables that are full: the most frequent keys are kept, whenever they come first; each count is
//! within the error that is told, and totals are exact.

use crate::programs::{Compiler, build};
use crate::target::{HANGS, Running, assert_no_session, capriole, told};
use crate::traces::{text, told_by_stat, until_recording};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Keys that come once each, before all others.
const FLOOD: u64 = 6000;
const FIRST_OF_FLOOD: u64 = 1_000_000;

fn program() -> PathBuf {
    build(Compiler::Gcc, "zipf.c", &["-O1"]).expect("there is a compiler")
}

/// Calls as the program has printed them.
struct Truth {
    /// Calls of each key, without those of the flood.
    calls: BTreeMap<u64, u64>,
    flood: u64,
}

impl Truth {
    fn read(lines: &str, flood: u64) -> Truth {
        let calls = lines.lines().filter_map(|line| {
            let (key, calls) = line.split_once(' ')?;
            Some((key.parse().ok()?, calls.parse().ok()?))
        });
        let calls: BTreeMap<u64, u64> = calls.collect();
        assert!(calls.len() > 2500, "more keys than rows");
        Truth { calls, flood }
    }

    fn all(&self) -> u64 {
        self.calls.values().sum::<u64>() + self.flood
    }

    fn of(&self, key: u64) -> u64 {
        let flooded = (FIRST_OF_FLOOD..FIRST_OF_FLOOD + self.flood).contains(&key);
        self.calls.get(&key).copied().unwrap_or(u64::from(flooded))
    }

    /// The `count` most frequent keys.
    fn top(&self, count: usize) -> Vec<u64> {
        let mut keys: Vec<u64> = self.calls.keys().copied().collect();
        keys.sort_by_key(|key| std::cmp::Reverse(self.calls[key]));
        keys.truncate(count);
        keys
    }
}

fn number(value: &Value, name: &str) -> u64 {
    let number = value[name].as_u64();
    number.unwrap_or_else(|| panic!("{name} in {value}"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    let list = value[name].as_array();
    list.unwrap_or_else(|| panic!("{name} in {value}"))
}

/// Returns a row's key, which is a number, or a number behind `key-`.
fn key(row: &Value) -> u64 {
    let value = row["keys"]
        .as_object()
        .and_then(|keys| keys.values().next());
    let key = value.and_then(|key| match key.as_str() {
        Some(text) => text.strip_prefix("key-")?.parse().ok(),
        None => key.as_u64(),
    });
    key.unwrap_or_else(|| panic!("a key in {row}"))
}

/// Returns all calls of a group.
fn calls(group: &Value) -> u64 {
    let rows = list(group, "rows").iter().chain(list(group, "others"));
    rows.map(|row| number(row, "calls")).sum()
}

/// Checks one group against what the program did. Returns its calls by key.
fn check(group: &Value, truth: &Truth) -> BTreeMap<u64, u64> {
    assert_eq!(group["dropped"], 0, "{}", group["keys"]);
    assert_eq!(calls(group), truth.all(), "{}", group["keys"]);
    let mut found = BTreeMap::new();
    for row in list(group, "rows") {
        let (key, calls) = (key(row), number(row, "calls"));
        let (wanted, most) = (truth.of(key), calls + number(row, "error"));
        assert!(calls <= wanted && wanted <= most, "{wanted}: {row}");
        assert_eq!(found.insert(key, calls), None, "two rows of {key}");
        for measure in list(row, "measures") {
            // All numbers of a row are of the same calls.
            let size = key * 7 % 1000;
            match measure["function"].as_str() {
                Some("sum") => assert_eq!(number(measure, "value"), size * calls, "{row}"),
                Some("max") => assert_eq!(number(measure, "value"), size, "{row}"),
                Some("hist") => assert_eq!(number(measure, "count"), calls, "{row}"),
                other => panic!("{other:?}"),
            }
        }
    }
    let most = number(group, "most_without_row");
    for (key, calls) in &truth.calls {
        assert!(
            found.contains_key(key) || *calls <= most,
            "{key}: {calls} > {most}"
        );
    }
    for key in truth.top(100) {
        assert!(found.contains_key(&key), "{key} of {}", group["keys"]);
    }
    found
}

/// Returns what `capriole stat` says of the program, and what the program says.
fn stat(words: &[&str], environment: Option<&str>, program: &[&str]) -> (Value, Output) {
    let mut command = crate::target::own();
    command
        .args(["stat", "--json"])
        .args(words)
        .arg("--")
        .args(program);
    if let Some(tunables) = environment {
        command.env("GLIBC_TUNABLES", tunables);
    }
    let output = command.output().expect("capriole starts");
    (told_by_stat(&output).1, output)
}

const BY_REGISTER: &str = ":zipf_call sum(size=$arg2:s64) max(size) by key=$arg1:s64";
const BY_NAME: &str = ":zipf_call sum(size=$arg2:s64) max(size) by name=$arg3:string";
const LATENCY: &str = "latency(:zipf_call) by key=$entry:arg1:s64";

/// Straight code and the resident, counts, sums, maxima and durations; one thread, and more threads
/// than processors; with and without restartable sequences.
#[test]
fn the_most_frequent_keys_have_rows_however_late_they_come() {
    let program = program();
    let program = text(&program);
    let flood = FLOOD.to_string();
    for (threads, calls, environment) in [
        ("1", "100000", None),
        ("7", "20000", None),
        ("3", "25000", Some("glibc.pthread.rseq=0")),
    ] {
        let events = ["-e", BY_REGISTER, "-e", BY_NAME, "-e", LATENCY];
        let (said, output) = stat(&events, environment, &[program, threads, calls, &flood]);
        let truth = Truth::read(&String::from_utf8_lossy(&output.stdout), FLOOD);
        assert_eq!(said["lost"], 0);
        for group in list(&said, "groups") {
            let found = check(group, &truth);
            // Nothing of the first key is lost but a few hits while the summary was filled.
            let (counted, wanted) = (found[&0], truth.of(0));
            assert!(counted > wanted / 2, "{counted} of {wanted}");
            assert_eq!(list(group, "others").len(), 1);
            assert!(number(group, "most_without_row") < truth.all() / 50);
        }
    }
}

/// Keys that come early have exact rows, also those of a table that is full later.
#[test]
fn rows_of_the_first_keys_are_exact() {
    let program = program();
    let (said, output) = stat(
        &["-e", BY_REGISTER],
        None,
        &[text(&program), "2", "100000", "0"],
    );
    let truth = Truth::read(&String::from_utf8_lossy(&output.stdout), 0);
    let group = &said["groups"][0];
    let found = check(group, &truth);
    let exact = list(group, "rows").iter().filter(|row| row["error"] == 0);
    let exact: Vec<u64> = exact.map(key).collect();
    assert!(exact.len() >= 1024, "{}", exact.len());
    for key in exact {
        assert_eq!(found[&key], truth.of(key), "{key}");
    }
    // So the most frequent ones, which came first, are.
    for key in truth.top(20) {
        assert_eq!(found[&key], truth.of(key), "{key}");
    }
}

/// Each function of a pattern has its own calls, also those of keys without a row.
#[test]
fn calls_of_each_function_are_exact() {
    let program = program();
    let event = ":zipf_* by key=$arg1:s64";
    let flood = FLOOD.to_string();
    let words = ["-e", event, "--keys", "100"];
    let (said, output) = stat(&words, None, &[text(&program), "3", "50000", &flood]);
    let truth = Truth::read(&String::from_utf8_lossy(&output.stdout), FLOOD);
    let odd = truth.calls.iter().filter(|(key, _)| *key % 2 == 1);
    let odd = odd.map(|(_, calls)| calls).sum::<u64>() + FLOOD / 2;
    let events = list(&said, "events").iter();
    let events: Vec<(&str, u64)> = events
        .map(|event| {
            (
                event["event"].as_str().expect("a name"),
                number(event, "calls"),
            )
        })
        .collect();
    assert_eq!(events, [("zipf_call", truth.all()), ("zipf_odd", odd)]);
    let group = &said["groups"][0];
    assert_eq!(list(group, "others").len(), 2);
    assert_eq!(calls(group), truth.all() + odd);
    for row in list(group, "rows") {
        let (key, calls) = (key(row), number(row, "calls"));
        let wanted = truth.of(key);
        assert!(row["event"] == "zipf_call" || key % 2 == 1, "{row}");
        assert!(
            calls <= wanted && wanted <= calls + number(row, "error"),
            "{wanted}: {row}"
        );
    }
}

/// Keys that all come once: nobody is frequent, and the total is right.
#[test]
fn a_flood_is_counted() {
    let program = program();
    let words = ["-e", BY_REGISTER, "-e", BY_NAME];
    let (said, _) = stat(&words, None, &[text(&program), "0", "0", "50000"]);
    for group in list(&said, "groups") {
        assert_eq!(calls(group), 50_000);
        for row in list(group, "rows") {
            assert!(number(row, "calls") <= 1, "{row}");
        }
        let sum = |row: &Value| number(&row["measures"][0], "value");
        let sums: u64 = list(group, "rows")
            .iter()
            .chain(list(group, "others"))
            .map(sum)
            .sum();
        let all = FIRST_OF_FLOOD..FIRST_OF_FLOOD + 50_000;
        assert_eq!(sums, all.map(|key| key * 7 % 1000).sum::<u64>());
    }
}

/// A `capriole stat --json` of a process that reports very often, and the lines that it prints.
fn reporting(running: &Running, events: &[&str]) -> (Child, Receiver<Value>) {
    let mut child = crate::target::own()
        .args(["stat", "--json", "-p", &running.pid.to_string()])
        .args(["--interval", "1ms"])
        .args(events)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("capriole starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let (to, from) = channel();
    std::thread::spawn(move || {
        for line in lines {
            // One that is killed may leave a part of a line.
            let line = serde_json::from_str(&line.expect("text"));
            if line.is_ok_and(|line| to.send(line).is_err()) {
                break;
            }
        }
    });
    until_recording(running.pid);
    (child, from)
}

/// Returns what the program prints until it has made all calls.
fn printed(running: &mut Running) -> String {
    let mut all = String::new();
    loop {
        let line = running.line();
        assert!(!line.is_empty(), "{all}");
        if line == "ok" {
            return all;
        }
        all += &format!("{line}\n");
    }
}

/// Intervals add up to the whole, and no row has more calls than the program has made.
#[test]
fn intervals_of_a_full_table_add_up() {
    let flood = FLOOD.to_string();
    let mut running = Running::start(&program(), &["--wait", "4", "25000", &flood]);
    let (mut child, lines) = reporting(&running, &["-e", BY_REGISTER, "-e", BY_NAME]);
    running.say("go");
    let truth = Truth::read(&printed(&mut running), FLOOD);
    let mut all = [0; 2];
    let mut by_key = [BTreeMap::<u64, u64>::new(), BTreeMap::new()];
    while all != [truth.all(); 2] {
        let interval = lines.recv_timeout(HANGS).expect("an interval");
        let both = all.iter_mut().zip(&mut by_key);
        for ((all, by_key), group) in both.zip(list(&interval, "groups")) {
            *all += calls(group);
            assert!(*all <= truth.all(), "{all}");
            for row in list(group, "rows") {
                *by_key.entry(key(row)).or_default() += number(row, "calls");
            }
        }
    }
    // SAFETY: sends a signal to a child of this test that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let mut said = lines.recv_timeout(HANGS).expect("a line");
    while said.get("ended").is_none() {
        said = lines.recv_timeout(HANGS).expect("a line");
    }
    assert!(child.wait().expect("it ends").success());
    for (group, by_key) in list(&said, "groups").iter().zip(by_key) {
        let found = check(group, &truth);
        for (key, calls) in by_key {
            assert!(calls <= truth.of(key), "{key}: {calls}");
            // A key that kept its row has all of its calls in the intervals.
            let kept = found.get(&key).copied().unwrap_or(0);
            assert!(calls >= kept, "{key}: {calls} < {kept}");
        }
    }
    running.say("end");
    assert!(running.child.wait().expect("it ends").success());
}

/// A recorder that is killed leaves a program that goes on, and can be taken out.
#[test]
fn a_recorder_that_is_killed_does_no_harm() {
    let mut running = Running::start(&program(), &["--wait", "4", "25000", "6000"]);
    let (mut recorder, lines) = reporting(&running, &["-e", BY_REGISTER, "-e", LATENCY]);
    running.say("go");
    let mut full = [false; 2];
    while full != [true; 2] {
        let line = lines.recv_timeout(HANGS).expect("an interval");
        for (full, group) in full.iter_mut().zip(list(&line, "groups")) {
            *full |= group["others"] != json!([]);
        }
    }
    recorder.kill().expect("a child");
    recorder.wait().expect("it ends");
    Truth::read(&printed(&mut running), FLOOD);
    let output = capriole(&["detach", "-p", &running.pid.to_string()]);
    assert!(output.status.success(), "{}", told(&output));
    assert_no_session(&running.process());
    running.say("end");
    assert!(running.child.wait().expect("it ends").success());
}

/// With room for all keys nothing changes: no errors, no others.
#[test]
fn a_table_with_room_is_exact() {
    let program = program();
    let words = ["--keys", "20000", "-e", BY_REGISTER];
    let (said, output) = stat(&words, None, &[text(&program), "2", "50000", "0"]);
    let truth = Truth::read(&String::from_utf8_lossy(&output.stdout), 0);
    let group = &said["groups"][0];
    let found = check(group, &truth);
    assert_eq!(found, truth.calls);
    assert_eq!(group["others"], json!([]));
    assert_eq!(group["most_without_row"], 0);
}

/// In the table the other keys are a row, and a line says which rows are exact.
#[test]
fn the_table_says_what_is_exact() {
    let program = program();
    let words = [
        "stat",
        "--top",
        "3",
        "-e",
        BY_REGISTER,
        "--",
        text(&program),
        "1",
        "50000",
        "6000",
    ];
    let output = capriole(&words);
    let shown = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.contains(" by "))
        .collect();
    let titles: Vec<&str> = lines[1].split_whitespace().collect();
    let wanted = ["calls", "calls/s", "error", "sum(size)", "max(size)", "key"];
    assert_eq!(titles, wanted, "{shown}");
    assert!(lines[5].ends_with("(other keys)"), "{shown}");
    assert!(
        lines[7].starts_with("the table is full: up to `error` calls of a row"),
        "{shown}"
    );
}
