//! Intervals between two events, `latency(EVENT -> EVENT)`, of a program that makes known ones and
//! measures them itself.

use crate::programs::{Compiler, build};
use crate::target::{assert_failed, capriole, told};
use crate::traces::told_by_stat;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Output, Stdio};

fn program() -> PathBuf {
    let here = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    build(
        Compiler::Gcc,
        "intervals.c",
        &["-g", "-O1", "-pthread", here],
    )
    .expect("there is a compiler")
}

fn run(options: &[&str], arguments: &[&str]) -> Output {
    let program = program();
    let program = program.to_str().expect("text");
    capriole(&[&["stat"], options, &["--", program], arguments].concat())
}

/// Runs a script under `stat --json`. Returns the first group, and the program's own output.
fn stat(options: &[&str], arguments: &[&str]) -> (Value, String) {
    let output = run(&[&["--json"], options].concat(), arguments);
    let (own, said) = told_by_stat(&output);
    assert_eq!(said["lost"], 0, "{said}");
    (said["groups"][0].clone(), own)
}

/// Runs a script, and returns its group.
fn script(event: &str, words: &str) -> Value {
    let words: Vec<&str> = words.split_whitespace().collect();
    stat(&["-e", event], &[&["script"], &words[..]].concat()).0
}

/// Counts of a group: intervals, starts that are open, restarted and lost, ends that are unmatched,
/// keys that are unreadable.
fn counts(group: &Value) -> [u64; 6] {
    let rows = group["rows"].as_array().expect("rows").iter();
    let others = group["others"].as_array().expect("others").iter();
    let calls = rows.chain(others);
    let calls = calls
        .map(|row| row["calls"].as_u64().expect("calls"))
        .sum::<u64>();
    let intervals = &group["intervals"];
    let number = |name: &str| intervals[name].as_u64().expect("a number");
    let [open, restarted, no_room, lost] = ["open", "restarted", "no_room", "lost"].map(number);
    // Each start is accounted for.
    let sum = calls + open + restarted + no_room + lost;
    assert_eq!(number("started"), sum, "{group}");
    let [unmatched, unreadable] = ["unmatched", "unreadable"].map(number);
    [calls, open, restarted, lost, unmatched, unreadable]
}

fn keys(group: &Value) -> Vec<Value> {
    let rows = group["rows"].as_array().expect("rows").iter();
    let mut keys: Vec<Value> = rows.map(|row| row["keys"].clone()).collect();
    keys.sort_by_key(Value::to_string);
    keys
}

fn histogram(row: &Value) -> &Value {
    let measures = row["measures"].as_array().expect("measures");
    assert_eq!(measures.len(), 1, "{row}");
    assert_eq!(measures[0]["function"], "hist");
    &measures[0]
}

const BY_POINTER: &str = "latency(:begin r=$arg1 -> :finish r=$arg1)";

/// Every request is one interval, of the right kind, and as long as the program says; starts and ends
/// are in different threads, and many are open at the same time.
#[test]
fn intervals_are_those_of_the_program() {
    for event in [
        "latency(:begin r=$arg1 kind=$arg2:s64 -> :finish r=$arg1) by kind",
        "latency(:begin r=$arg1 -> :finish r=$arg1) by kind=request->kind",
        "latency(usdt::intervals:begin request kind=$arg2:s64 -> :finish request) by kind",
        "latency(r :create -> :finish) by kind=request->kind",
    ] {
        let of_threads = event.contains("create");
        let (group, own) = stat(&["-e", event], &["queue", "3", "4000"]);
        if of_threads {
            // Nothing is created here, and each thread ends only.
            assert_eq!(counts(&group), [0, 0, 0, 0, 12_000, 0], "{group}");
            continue;
        }
        assert_eq!(counts(&group), [12_000, 0, 0, 0, 0, 0], "{event}: {group}");
        for row in group["rows"].as_array().expect("rows") {
            let kind = row["keys"]["kind"].to_string();
            let own = own.lines().find(|line| line.starts_with(&kind));
            let own: Vec<u64> = own
                .expect("a kind")
                .split(' ')
                .map(|word| word.parse().expect("a number"))
                .collect();
            let [_, count, inside, around] = own[..] else {
                panic!("{own:?}")
            };
            assert_eq!(row["calls"], count, "{event}: {row}");
            let total = histogram(row)["total_ns"].as_u64().expect("a total");
            // The clocks agree to 100 parts in a million, and may advance in steps.
            let slack = around / 10_000 + 40 * count;
            assert!(
                (inside.saturating_sub(slack)..=around + slack).contains(&total),
                "{event}: {total}: {own:?}"
            );
            let text = histogram(row)["exact"].clone();
            assert_eq!(text, json!(true), "{row}");
        }
        assert_eq!(keys(&group).len(), 4, "{group}");
    }
}

#[test]
fn starts_and_ends_without_each_other_are_counted() {
    for (event, words, wanted) in [
        // intervals, open, restarted, lost, unmatched, unreadable
        (BY_POINTER, "b1 f1", [1, 0, 0, 0, 0, 0]),
        (BY_POINTER, "b1 b1 b1 f1", [1, 0, 2, 0, 0, 0]),
        (BY_POINTER, "f1 b1 f1 f1", [1, 0, 0, 0, 2, 0]),
        (BY_POINTER, "b1 b2 b3 f2", [1, 2, 0, 0, 0, 0]),
        (BY_POINTER, "b1@1 b2@2 f1@2 f2@3 f1", [2, 0, 0, 0, 1, 0]),
        // By thread: recursion restarts, and the inner end is the one that counts.
        (
            "latency(:begin -> :finish)",
            "b1 b2 f2 f1",
            [1, 0, 1, 0, 1, 0],
        ),
        (
            "latency(:begin -> :finish)",
            "b1@1 b2@2 f3@1 f4@2 f5@3",
            [2, 0, 0, 0, 1, 0],
        ),
        // A key that cannot be read.
        (
            "latency(:begin id=request->id -> :finish id=request->id)",
            "n b1 f1 N n",
            [1, 0, 0, 0, 0, 3],
        ),
        // A filter of either side decides before anything is started or ended.
        (
            "latency(:begin r=$arg1 if id == 2 -> :finish r=$arg1)",
            "b1 b2 f1 f2",
            [1, 0, 0, 0, 1, 0],
        ),
        (
            "latency(:begin r=$arg1 -> :finish r=$arg1 if id == 2)",
            "b1 b2 f1 f2",
            [1, 1, 0, 0, 0, 0],
        ),
        (
            "latency(:begin r=$arg1 -> :finish r=$arg1 if comm ~ \"nobody*\")",
            "b1 f1",
            [0, 1, 0, 0, 0, 0],
        ),
        // One place on both sides: from one hit to the next.
        ("latency(:tick -> :tick)", "t1 t2 t3 t4", [3, 1, 0, 0, 1, 0]),
        (
            "latency(:tick n=$arg1 -> :tick n=$arg1)",
            "t1 t2 t1 t1 t3",
            [2, 3, 0, 0, 3, 0],
        ),
        // Returns on either side.
        (
            "latency(r :create r=$retval:x64 -> :finish r=$arg1)",
            "b1 b2 f1",
            [1, 1, 0, 0, 0, 0],
        ),
        (
            "latency(:begin r=$arg1 -> :finish%return r=$arg1)",
            "b1 f1 f2",
            [1, 0, 0, 0, 1, 0],
        ),
        (
            "latency(r :finish r=$arg1 -> :finish r=$arg1)",
            "f1 f1 f1",
            [2, 1, 0, 0, 1, 0],
        ),
        // Markers, of which one is without fields.
        (
            "latency(usdt::intervals:begin -> usdt::intervals:finish)",
            "b1 f2",
            [1, 0, 0, 0, 0, 0],
        ),
        (
            "latency(usdt::intervals:begin request -> usdt::intervals:finish request)",
            "b1 b2 f2 f1",
            [2, 0, 0, 0, 0, 0],
        ),
        // Patterns: any of these functions.
        (
            "latency(:[bc]*e* r=$arg1 -> :fin* r=$arg1)",
            "b1 f1",
            [1, 0, 1, 0, 0, 0],
        ),
        // A forked child has requests of its own at the same addresses.
        (BY_POINTER, "b1 F f1 f1 F b2 f2", [1, 1, 0, 0, 2, 0]),
    ] {
        let group = script(event, words);
        let mut found = counts(&group);
        if event.contains("[bc]") {
            // `create` and `begin`, and nothing else of the program's own that is called with it.
            found[1] = 0;
        }
        assert_eq!(found, wanted, "{event}: {words}: {group}");
    }
}

/// Keys are values of the end, and numbers of the start: signed, narrow, and unreadable ones.
#[test]
fn keys_are_of_the_end_or_kept_from_the_start() {
    let group = script(
        "latency(:begin r=$arg1 kind=$arg2:s8 seven=\\7:s32 gone=+0(+0(\\8)):u32 -> :finish r=$arg1 \
         minus=\\-3:s16) by kind, minus, seven, gone, id=$arg2:u32, comm",
        "b1 b2 f1 f2",
    );
    let row = |id: u64| {
        json!({
            "kind": id, "minus": -3, "seven": 7, "gone": null, "id": id,
            "comm": group["rows"][0]["keys"]["comm"],
        })
    };
    assert_eq!(keys(&group), [row(1), row(2)], "{group}");
    let comm = group["rows"][0]["keys"]["comm"].as_str().expect("a name");
    assert!(comm.starts_with("intervals"), "{comm}");
    assert_eq!(counts(&group), [2, 0, 0, 0, 0, 0]);
    assert_eq!(group["keys"].as_array().map(Vec::len), Some(6));
    assert_eq!(group["events"], json!(["finish"]));
    assert_eq!(group["starts"], json!(["begin"]));
    // A key may be a value of the filter; and a value of the filter may be called `ns`.
    let event = "latency(:begin r=$arg1 -> :finish r=$arg1 if id > 1) by id";
    let group = script(event, "b1 b2 f1 f2");
    assert_eq!(keys(&group), [json!({"id": 2})], "{group}");
    let event = "latency(:begin r=$arg1 -> :finish r=$arg1 ns=$arg2:u32 if ns > 1) by ns";
    let group = script(event, "b1 b2 f1 f2");
    assert_eq!(keys(&group), [json!({"ns": 2})], "{group}");
    assert_eq!(histogram(&group["rows"][0])["field"], "interval_ns");
    // A field of both sides, and of a type that is not its register's.
    let group = script(
        "latency(:begin id=$arg3:u16 -> :finish id=$arg2:u16) by id",
        "b65537 f1 b70000 f4464",
    );
    assert_eq!(
        keys(&group),
        [json!({"id": 1}), json!({"id": 4464})],
        "{group}"
    );
}

/// Source lines, one of them beside a function.
#[test]
fn intervals_between_lines() {
    let source = include_str!("../../../../tests/programs/intervals.c");
    let line = |of: &str| {
        let found = source.lines().position(|line| line.contains(of));
        format!("intervals.c:{}", found.expect("a line") + 1)
    };
    let (create, finish) = (line("\t\tcreate(request);"), line("case 'f': finish("));
    let event = format!("latency({create} request -> {finish} request)");
    assert_eq!(counts(&script(&event, "b1 f1 b2 f1")), [1, 1, 0, 0, 1, 0]);
    let event = format!("latency(:begin r=$arg1 -> {finish} r=request)");
    assert_eq!(counts(&script(&event, "b1 f2 f1")), [1, 0, 0, 0, 1, 0]);
}

/// A number of the start is the same value as at the end, whatever its type.
#[test]
fn numbers_of_all_types_are_kept() {
    let types = [
        "u8", "s8", "x16", "u32", "s64", "char", "be16", "be32", "be64", "port", "ipv4", "fd",
        "symbol", "b4@4/32", "b7@1/8",
    ];
    let fields = |letter: char, register: &str| {
        let all = types.iter().enumerate();
        let all = all.map(|(number, field)| format!("{letter}{number}={register}:{field}"));
        all.collect::<Vec<_>>()
    };
    // Of one start not more than six.
    for part in 0..3 {
        let range = 5 * part..5 * part + 5;
        let begin = fields('b', "$arg3")[range.clone()].join(" ");
        let end = fields('e', "$arg2")[range.clone()].join(", ");
        let names: Vec<String> = range.clone().map(|number| format!("b{number}")).collect();
        let event = format!(
            "latency(:begin r=$arg1 {begin} -> :finish r=$arg1) by {}, tid",
            names.join(", ")
        );
        let other = format!("latency(:begin r=$arg1 -> :finish r=$arg1) by {end}, tid");
        let words = ["script", "b200", "f200", "b77", "f77"];
        let (kept, _) = stat(&["-e", &event], &words);
        let (read, _) = stat(&["-e", &other], &words);
        for (kept, read) in keys(&kept).iter().zip(keys(&read)) {
            for number in range.clone() {
                let (kept, read) = (&kept[format!("b{number}")], &read[format!("e{number}")]);
                assert_eq!(kept, read, "{}", types[number]);
            }
        }
    }
}

/// Processes that are killed at any moment harm no interval of another one, and leave no slot in use.
#[test]
fn killed_processes_harm_no_others() {
    let event = "latency(:begin r=$arg1 kind=$arg2:s64 -> :finish r=$arg1) by kind";
    let (group, _) = stat(&["-e", event], &["killed", "60", "3000"]);
    let [_, open, restarted, lost, unmatched, unreadable] = counts(&group);
    let rows = group["rows"].as_array().expect("rows");
    let own = rows.iter().find(|row| row["keys"]["kind"] == 5);
    let own = own.expect("a row");
    assert_eq!(own["calls"], 60 * 3000, "{group}");
    // Each child leaves those that were open when it was killed, and may lose one.
    assert!(open <= 60 * 8 && lost <= 60, "{group}");
    assert_eq!([restarted, unmatched, unreadable], [0, 0, 0], "{group}");
    assert_eq!(group["intervals"]["no_room"], 0);
}

/// If more keys come than there are rows, each interval is in a row or among the others.
#[test]
fn keys_without_a_row_are_in_others() {
    let words: String = (0..60).map(|id| format!("b{id} f{id} ")).collect();
    let words: Vec<&str> = words.split_whitespace().collect();
    let event = "latency(:begin r=$arg1 id=$arg3:u32 -> :finish r=$arg1) by id";
    let options = ["--keys", "1", "-e", event];
    let (group, _) = stat(&options, &[&["script"], &words[..]].concat());
    assert_eq!(counts(&group), [60, 0, 0, 0, 0, 0], "{group}");
    assert_eq!(group["others"].as_array().map(Vec::len), Some(1), "{group}");
}

/// When more intervals are open than there is room for, the starts without room are counted, and all
/// others are right.
#[test]
fn starts_without_room_are_counted() {
    let begun: String = (0..90).map(|id| format!("b{id} ")).collect();
    let ended: String = (0..90).map(|id| format!("f{id} ")).collect();
    // The least number of slots.
    let words = begun + &ended;
    let words: Vec<&str> = words.split_whitespace().collect();
    let options = ["--keys", "1", "-e", BY_POINTER];
    let (group, _) = stat(&options, &[&["script"], &words[..]].concat());
    let [calls, open, restarted, lost, unmatched, unreadable] = counts(&group);
    assert_eq!([open, restarted, lost, unreadable], [0, 0, 0, 0], "{group}");
    assert_eq!(group["intervals"]["slots"], 32);
    assert_eq!((calls, unmatched), (32, 58), "{group}");
    assert_eq!(group["intervals"]["no_room"], 58);
    let output = run(&options, &[&["script"], &words[..]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains(
            "too many intervals were open: 58 starts had no room; give them more with --keys (now 1, \
             which is room for 32 intervals at most)"
        ),
        "{text}"
    );
    // The default is enough.
    assert_eq!(
        script(BY_POINTER, &words.join(" "))["intervals"]["no_room"],
        0
    );
}

/// The table names both events, and says what is not in it.
#[test]
fn the_table_says_what_became_of_all_starts() {
    let shown = |event: &str, words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        let output = run(&["-e", event], &[&["script"], &words[..]].concat());
        assert!(output.status.success(), "{}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = shown(
        "latency(:begin r=$arg1 id=$arg3:u32 -> :finish r=$arg1) by id",
        "b1 b1 f1 b2 b3 f4 f5",
    );
    assert!(text.starts_with("begin -> finish by id\ncalls "), "{text}");
    let last =
        "no interval: 2 starts still open, 1 start restarted by the next one, 2 ends unmatched\n";
    assert!(text.ends_with(last), "{text}");
    assert!(shown(BY_POINTER, "b1 f1").contains("  begin -> finish\n"));
    // Ends that are never reached, and ends without a start.
    let text = shown(BY_POINTER, "b1 b2");
    assert_eq!(
        text,
        "begin -> finish: no interval: 2 starts still open\n\n1 event was never hit\n"
    );
    let text = shown(BY_POINTER, "f1");
    assert_eq!(text, "begin -> finish: no interval: 1 end unmatched\n");
    let text = shown("latency(:[bc]*e* r=$arg1 -> :fin* r=$arg1)", "b1 f1");
    assert!(text.contains("  [bc]*e* -> finish\n"), "{text}");
}

/// Definition files have such events, too.
#[test]
fn a_file_defines_intervals() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("events");
    let lines = "# requests\n\nlatency(:begin r=$arg1 -> :finish r=$arg1) by comm\nlatency(:begin)\n\
         latency(:begin r=$arg1 -> :finish r=$arg1)  # all\n";
    std::fs::write(&file, lines).expect("ours");
    let file = file.to_str().expect("text");
    let output = run(&["--json", "-f", file], &["script", "b1", "f1"]);
    assert!(output.status.success(), "{}", told(&output));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(counts(&said["groups"][0]), [1, 0, 0, 0, 0, 0], "{said}");
    assert_eq!(said["groups"][1]["rows"][0]["calls"], 1);
    assert!(said["groups"][1]["intervals"].is_null());
    assert_eq!(counts(&said["groups"][2]), [1, 0, 0, 0, 0, 0], "{said}");
    let blank = "latency(:begin r=$arg1 -> :finish r=$arg1) \t";
    assert_eq!(counts(&script(blank, "b1 f1")), [1, 0, 0, 0, 0, 0]);
}

/// Starts that were lost are known at the end: before, some are just being written.
#[test]
fn times_between_have_no_lost_starts() {
    let words = ["stat", "--json", "--interval", "1ms", "-e"];
    let mut command = crate::target::command(&words);
    command.arg("latency(:begin r=$arg1 -> :finish r=$arg1)");
    command.arg("--").arg(program());
    command.args(["script", "b1", "f1", "W"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("capriole starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut line = || -> Option<Value> {
        let line = lines.next()?.expect("text");
        Some(serde_json::from_str(&line).expect("JSON"))
    };
    let started = |line: &Value| {
        let intervals = &line["groups"][0]["intervals"];
        assert!(intervals["lost"].is_null(), "{line}");
        intervals["started"].as_u64().expect("a number")
    };
    while started(&line().expect("times between")) == 0 {}
    // The program goes on when its input ends.
    drop(child.stdin.take());
    let mut last = Vec::new();
    while let Some(line) = line() {
        last.push(line);
    }
    let whole = last.pop().expect("the totals");
    assert_eq!(counts(&whole["groups"][0]), [1, 0, 0, 0, 0, 0], "{whole}");
    assert_eq!(last.iter().map(started).sum::<u64>(), 0);
    assert!(child.wait().expect("it ends").success());
}

/// Without restartable sequences the same.
#[test]
fn intervals_without_restartable_sequences() {
    let program = program();
    let mut command = crate::target::command(&["stat", "--json", "-e", BY_POINTER, "--"]);
    let output = command
        .arg(program)
        .args(["queue", "2", "1000"])
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .output()
        .expect("capriole starts");
    let both = String::from_utf8_lossy(&output.stdout).into_owned();
    let said: Value = serde_json::from_str(both.lines().last().expect("a line")).expect("JSON");
    assert_eq!(said["restartable_sequences"], json!(false), "{said}");
    assert_eq!(counts(&said["groups"][0]), [2000, 0, 0, 0, 0, 0], "{said}");
}

/// Asserts what is said of an event that cannot be measured.
fn refused(event: &str) -> String {
    let output = run(&["-e", event], &["script"]);
    assert_failed(&output);
    String::from_utf8_lossy(&output.stderr)
        .replace(program().to_str().expect("text"), "PROGRAM")
        .trim_end()
        .to_owned()
}

#[test]
fn mistakes_are_explained() {
    let all = [
        "latency(:begin -> )",
        "latency( -> :finish)",
        "latency(-> :finish)",
        "latency(->)",
        "latency(:begin->:finish)",
        ":begin -> :finish",
        "latency (:begin -> :finish)",
        "latency(:begin -> :finish -> :tick)",
        "latency(:begin -> :finish",
        "latency(:begin r=%foo -> :finish)",
        "latency(:begin -> :finish r=%foo)",
        "latency(:begin -> :nosuch)",
        "latency(:nosuch -> :finish)",
        "latency(:begin r=$arg1 -> :finish q=$arg1)",
        "latency(:begin -> :finish q=$arg1)",
        "latency(:begin id=$arg3:u32 -> :finish id=$arg2:u64)",
        "latency(:begin id -> :finish id=$arg2:u64)",
        "latency(:begin n=$arg1:string -> :finish n=$arg1:string)",
        "latency(:begin n=request->name -> :finish n=request->name)",
        "latency(:begin x=%xmm0 -> :finish x=%xmm0)",
        "latency(:begin stack -> :finish stack)",
        "latency(:begin r=$arg1 n=request->name -> :finish r=$arg1) by n",
        "latency(:begin r=$arg1 n=$arg1:string -> :finish r=$arg1) by n",
        "latency(:begin r=$arg1 kind -> :finish r=$arg1) by kind",
        "latency(usdt::intervals:begin request kind -> :finish request) by kind",
        "latency(:begin r=$arg1 -> :finish r=$arg1) by r=$arg2",
        "latency(:begin r=$arg1 -> :finish r=$arg1) by nosuch",
        "latency(:begin r=$arg1 -> :finish r=$arg1) by comm if r > 3",
        "latency(:begin r=$arg1 -> :finish r=$arg1) max()",
        "latency(:begin r=$arg1 -> :finish r=$arg1) sum(r)",
        "latency(:begin r=$arg1 -> :finish r=$arg1) n=$arg2",
        "latency(:begin r=$arg1 by comm -> :finish r=$arg1)",
        "latency(:begin hist(n=$arg2) -> :finish)",
        "latency(:begin if nosuch > 3 -> :finish)",
        "latency(:begin if request->id > 3 -> :finish if nosuch > 1)",
        "latency(:begin a=%ax b=%bx c=%cx d=%dx e=%si f=%di g=%r8 h=%r9 -> :finish a=%ax b=%bx c=%cx) by \
         d, e, f, g, h, tid",
        "latency(:begin a=%ax b=%bx c=%cx d=%dx e=%si f=%di g=%r8 h=%r9 -> :finish a=%ax b=%bx c=%cx d=%dx \
         e=%si f=%di g=%r8 h=%r9)",
        "latency(r :create r=$arg1 -> r :finish r=$arg1)",
        "latency(:begin r=$arg1 id=$arg3:u32 -> :finish r=$arg1 if id > 3) by id",
        "latency(:begin r=$arg1 -> :finish r=$arg1 if id > 3) by id=request->id",
    ];
    let all = all.map(|event| format!("{event}\n{}\n", refused(event)));
    insta::assert_snapshot!(all.join("\n"));
}

/// Both sides may be in the same file, and an arrow in a name or a text is a part of it.
#[test]
fn arrows_in_texts_are_parts_of_them() {
    let event =
        "latency(:begin r=$arg1 if comm != \"a -> b\" -> :finish r=$arg1 if comm != \") -> (\")";
    assert_eq!(counts(&script(event, "b1 f1")), [1, 0, 0, 0, 0, 0]);
    let event = "latency(:begin id=request->id if request->id<3 -> :finish id=request->id)";
    assert_eq!(counts(&script(event, "b1 f1 b4 f4")), [1, 0, 0, 0, 1, 0]);
    // A name of Rust's is one event.
    let text = refused("latency(:<fn(u8) -> u8 as Foo>::bar)");
    assert!(text.contains("`<fn(u8) -> u8 as Foo>::bar`"), "{text}");
}

#[test]
fn only_stat_measures_intervals() {
    let program = program();
    let program = program.to_str().expect("text");
    for command in ["list", "check"] {
        let output = capriole(&[command, BY_POINTER, program]);
        let said = told(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("`latency(...)` is for measuring"), "{said}");
    }
}
