//! Results of `capriole stat` match the program's own: sums, extremes, averages and
//! histograms of numbers in registers and in memory, by keys of all kinds, from several
//! threads and a child, with and without restartable sequences.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{scratch, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const THREADS: u64 = 3;
const CALLS: u64 = 20_000;

/// One call made by the program.
#[derive(Clone, Copy)]
struct Call {
    fd: u64,
    size: i64,
    name: u64,
    wild: bool,
}

fn all() -> impl Iterator<Item = Call> {
    let of = |t| {
        (0..CALLS).map(move |n| Call {
            fd: (t + n) % 5,
            size: (n * 2_654_435_761 % 100_000) as i64 - 1000,
            name: n % 7,
            wild: n % 50 == 49,
        })
    };
    (0..=THREADS).flat_map(of) // the last one is the child
}

fn program() -> std::path::PathBuf {
    build(Compiler::Gcc, "added.c", &[]).expect("there is a compiler")
}

/// Returns the groups of `capriole stat --json` for the program.
fn stat(program: &Path, words: &[&str], environment: Option<&str>) -> Value {
    let [threads, calls] = [THREADS, CALLS].map(|n| n.to_string());
    let end = [
        "--json",
        "--",
        program.to_str().expect("text"),
        &threads,
        &calls,
    ];
    let words = [&["stat"], words, &end].concat();
    let output = match environment {
        None => capriole(&words),
        Some(tunables) => crate::target::own()
            .args(&words)
            .env("GLIBC_TUNABLES", tunables)
            .output()
            .expect("capriole starts"),
    };
    assert!(output.status.success(), "{}", told(&output));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        said["restartable_sequences"],
        json!(environment.is_none()),
        "{said}"
    );
    said["groups"].clone()
}

/// Returns the rows of a group by their keys.
fn rows(group: &Value) -> BTreeMap<String, &Value> {
    let rows = group["rows"].as_array().expect("a list").iter();
    rows.map(|row| (row["keys"].to_string(), row)).collect()
}

fn measure<'a>(row: &'a Value, function: &str) -> &'a Value {
    let measures = row["measures"].as_array().expect("a list");
    let found = measures.iter().find(|m| m["function"] == function);
    found.unwrap_or_else(|| panic!("{function} in {row}"))
}

/// Checks that a row has the aggregates of these values.
fn check(row: &Value, sizes: &[i64]) {
    let value = |function: &str| &measure(row, function)["value"];
    assert_eq!(value("sum"), &json!(sizes.iter().sum::<i64>()), "{row}");
    assert_eq!(value("min"), &json!(sizes.iter().min()), "{row}");
    assert_eq!(value("max"), &json!(sizes.iter().max()), "{row}");
    let average = sizes.iter().sum::<i64>() as f64 / sizes.len() as f64;
    let told = value("avg").as_f64().expect("a number");
    assert!((told - average).abs() < 1e-6 * average.abs(), "{row}");
    let buckets = measure(row, "hist")["buckets"].as_array().expect("a list");
    let mut counted = 0;
    for bucket in buckets {
        let bound = |name: &str| bucket[name].as_i64().expect("a number");
        let bounds = bound("low")..=bound("high");
        let inside = sizes.iter().filter(|size| bounds.contains(size));
        assert_eq!(bucket["count"], json!(inside.count()), "{bucket}");
        counted += bucket["count"].as_u64().expect("a number");
    }
    assert_eq!(counted, sizes.len() as u64, "{row}");
}

const MEASURES: &str = "sum(size=$arg2:s64) min(size) max(size) avg(size) hist(size)";

/// Without keys, with a register as key, and with a key that only the resident can fetch: the
/// results are the same.
#[test]
fn numbers_are_those_of_the_program() {
    let program = program();
    let plain = format!(":added_call {MEASURES}");
    let by_fd = format!(":added_call {MEASURES} by fd=$arg1:s32");
    let by_name = format!(":added_call {MEASURES} by name=+0($arg3):string");
    let events = ["-e", &plain, "-e", &by_fd, "-e", &by_name];
    for environment in [None, Some("glibc.pthread.rseq=0")] {
        let groups = stat(&program, &events, environment);
        let every: Vec<i64> = all().map(|call| call.size).collect();
        let row = &groups[0]["rows"][0];
        assert_eq!(row["calls"], json!(every.len()));
        check(row, &every);

        let by_fd = rows(&groups[1]);
        assert_eq!(by_fd.len(), 5, "{by_fd:?}");
        for fd in 0..5 {
            let sizes = all().filter(|call| call.fd == fd).map(|call| call.size);
            check(
                by_fd[&json!({ "fd": fd }).to_string()],
                &sizes.collect::<Vec<_>>(),
            );
        }
        let by_name = rows(&groups[2]);
        assert_eq!(by_name.len(), 8, "{by_name:?}");
        for name in 0..7 {
            let named = all().filter(|call| call.name == name && !call.wild);
            let sizes: Vec<i64> = named.map(|call| call.size).collect();
            check(
                by_name[&json!({ "name": format!("file-{name}") }).to_string()],
                &sizes,
            );
        }
        let wild: Vec<i64> = all().filter(|c| c.wild).map(|c| c.size).collect();
        check(by_name[&json!({ "name": null }).to_string()], &wild);
        for group in groups.as_array().expect("a list") {
            assert_eq!(group["dropped"], json!(0));
        }
    }
}

/// With keys, a histogram is one row of numbers, which are right to the widths of the buckets.
#[test]
fn histograms_by_key_are_one_table() {
    let program = program();
    let event = ":added_call hist(size=$arg2:s64) by fd=$arg1:s32";
    let [threads, calls] = [THREADS, CALLS].map(|n| n.to_string());
    let shown = |options: &[&str]| {
        let words = ["-e", event, "--", text(&program), &threads, &calls];
        let output = capriole(&[&["stat"], options, &words].concat());
        assert!(output.status.success(), "{}", told(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let table = shown(&[]);
    let lines: Vec<&str> = table.lines().skip_while(|l| !l.contains(" by ")).collect();
    assert_eq!(lines.len(), 2 + 5, "{table}");
    let titles: Vec<&str> = lines[1].split_whitespace().collect();
    let rest = "avg(size) p50(size) p90(size) p99(size) p99.9(size) max(size) fd";
    assert_eq!(titles.join(" "), format!("calls calls/s {rest}"));
    for line in &lines[2..] {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> f64 {
            let cell = cells[at].trim_start_matches('~');
            cell.parse().unwrap_or_else(|_| panic!("{line}"))
        };
        let fd = number(8) as u64;
        let mut sizes: Vec<i64> = all().filter(|c| c.fd == fd).map(|c| c.size).collect();
        sizes.sort_unstable();
        assert_eq!(number(0), sizes.len() as f64, "{line}");
        let size: i64 = sizes.iter().map(|size| size.abs()).sum();
        let mean = sizes.iter().sum::<i64>() as f64 / sizes.len() as f64;
        let error = size as f64 / sizes.len() as f64 / 16.0;
        assert!(cells[2].starts_with('~'), "{line}");
        assert!((number(2) - mean).abs() <= error, "{mean}: {line}");
        for (column, permille) in [(3, 500), (4, 900), (5, 990), (6, 999), (7, 1000)] {
            let rank = (sizes.len() * permille).div_ceil(1000);
            let exact = sizes[rank - 1] as f64;
            let bounds = exact..=exact * 1.125;
            assert!(bounds.contains(&number(column)), "{exact}: {line}");
        }
    }
    let sorted = shown(&["--sort", "fd", "--top", "2"]);
    let first = sorted
        .lines()
        .skip_while(|line| !line.ends_with(" by fd"))
        .skip(2);
    let keys: Vec<&str> = first
        .filter_map(|line| line.split_whitespace().nth(8))
        .collect();
    assert_eq!(keys, ["0", "1"], "{sorted}");
    let words = ["stat", "--sort", "p98", "-e", event, "--", text(&program)];
    let output = capriole(&words);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let wanted = "no table has a column `p98` to sort by; the columns are calls, calls/s, \
                  error, unreadable, avg(size), p50(size), p90(size), p99(size), p99.9(size), \
                  max(size), fd, event";
    assert!(told(&output).contains(wanted), "{}", told(&output));
    let drawn = shown(&["--histogram"]);
    assert_eq!(
        drawn.matches("hist(size) of added_call, fd=").count(),
        5,
        "{drawn}"
    );
}

/// Values in memory, some of which cannot be read, and filters on them.
#[test]
fn what_cannot_be_read_is_counted_and_the_program_does_not_notice() {
    let program = program();
    let numbers = MEASURES.replace("$arg2:s64", "+0($arg4):s32");
    let plain = format!(":added_call {numbers} by fd=$arg1:s32");
    let few = ":added_call sum(n=$arg2:s64) by fd=$arg1:u8 if n > 50000 && fd != 2";
    let some = r#":added_call count() by comm, tid, name=+0($arg3):string if name ~ "*-[35]""#;
    let groups = stat(&program, &["-e", &plain, "-e", few, "-e", some], None);
    let by_fd = rows(&groups[0]);
    for fd in 0..5 {
        let row = by_fd[&json!({ "fd": fd }).to_string()];
        let read = all().filter(|call| call.fd == fd && !call.wild);
        check(row, &read.map(|call| call.size).collect::<Vec<_>>());
        let wild = all().filter(|call| call.fd == fd && call.wild).count();
        assert_eq!(row["unreadable"], json!(wild), "{row}");
        let calls = all().filter(|call| call.fd == fd).count();
        assert_eq!(row["calls"], json!(calls), "{row}");
    }
    let by_fd = rows(&groups[1]);
    assert_eq!(by_fd.len(), 4);
    for fd in [0, 1, 3, 4] {
        let sizes = all().filter(|c| c.fd == fd && c.size > 50_000);
        let sum: i64 = sizes.map(|call| call.size).sum();
        let row = by_fd[&json!({ "fd": fd }).to_string()];
        assert_eq!(measure(row, "sum")["value"], json!(sum), "{row}");
    }
    let file = program.file_name().and_then(|name| name.to_str());
    let comm = &file.expect("text")[..15]; // TASK_COMM_LEN
    let rows = groups[2]["rows"].as_array().expect("a list");
    assert_eq!(rows.len() as u64, 2 * (THREADS + 1), "{rows:?}");
    for row in rows {
        let name = row["keys"]["name"].as_str().expect("text");
        let number: u64 = name["file-".len()..].parse().expect("a number");
        let calls = all().filter(|c| c.name == number && !c.wild).count() as u64;
        assert_eq!(row["calls"], json!(calls / (THREADS + 1)), "{row}");
        assert_eq!(row["keys"]["comm"], comm);
    }
}

/// A full table keeps counting known keys exactly, and all numbers of a row are of the same calls.
#[test]
fn a_full_table_keeps_its_rows() {
    let program = program();
    let event = ":added_call by size=$arg2:s64, delta=$arg4";
    let small = ":added_call sum(n=$arg2:u8) by size=$arg2:u16";
    let groups = stat(&program, &["-e", event, "-e", small, "--keys", "100"], None);
    for group in groups.as_array().expect("a list") {
        let rows = group["rows"].as_array().expect("a list");
        assert!(rows.len() > 256, "{}", rows.len());
        let others = group["others"].as_array().expect("a list").iter();
        let calls = |row: &Value| row["calls"].as_u64().expect("a number");
        let counted: u64 = rows.iter().chain(others).map(calls).sum();
        assert_eq!(counted, (THREADS + 1) * CALLS);
        assert_eq!(group["dropped"], 0);
    }
    let mut exact = 0;
    for row in groups[1]["rows"].as_array().expect("a list") {
        let size = row["keys"]["size"].as_u64().expect("a number");
        let calls = all().filter(|call| call.size as u16 == size as u16).count() as u64;
        let counted = row["calls"].as_u64().expect("a number");
        let error = row["error"].as_u64().expect("a number");
        assert!(
            counted <= calls && calls <= counted + error,
            "{calls}: {row}"
        );
        let sum = measure(row, "sum")["value"].as_u64().expect("a number");
        assert_eq!(sum, counted * (size & 0xff), "{row}");
        exact += u64::from(error == 0);
    }
    assert!(exact >= 100, "{exact}");
}

/// String keys that are constant, long, or not UTF-8, filters that compare more than a key
/// holds, definitions that mean the same, and sites with very many values.
#[test]
fn odd_definitions_add_up_as_well() {
    let program = program();
    let long = "y".repeat(400);
    let given = format!(r#":added_call by k=\"{long}", n=$arg1:u8"#);
    let twice = ":added_call hist(n=$arg2:s64)";
    let every = "%si %di %r8 %r9 %r10 %r11 %bx %r12 %r13 %r14 %r15 %bp %ax %cx";
    let hungry = |registers: &[&str]| {
        let sums = registers.iter().map(|r| format!("sum({r}:u64)"));
        format!(":added_call {}", sums.collect::<Vec<_>>().join(" "))
    };
    let every: Vec<&str> = every.split(' ').collect();
    let (some, others) = (hungry(&every[..7]), hungry(&every[7..]));
    let tail = r#":added_call by name=+0($arg3):string if name ~ "*-6""#;
    let events = [
        &given,
        ":added_call by n=$arg1:u8",
        twice,
        twice,
        &some,
        &others,
        tail,
    ];
    let words: Vec<&str> = events.iter().flat_map(|event| ["-e", event]).collect();
    let groups = stat(&program, &words, None);
    let all = (THREADS + 1) * CALLS;
    for (group, event) in groups.as_array().expect("a list").iter().zip(events) {
        assert_eq!(group["dropped"], json!(0), "{event}");
        let counted = rows(group)
            .values()
            .filter_map(|row| row["calls"].as_u64())
            .sum::<u64>();
        let wanted = match event == tail {
            true => self::all().filter(|c| c.name == 6 && !c.wild).count() as u64,
            false => all,
        };
        assert_eq!(counted, wanted, "{event}");
    }
    assert_eq!(rows(&groups[0]).len(), 5);
    assert_eq!(rows(&groups[1]).len(), 5);
    let sizes: Vec<i64> = self::all().map(|call| call.size).collect();
    for group in [&groups[2], &groups[3]] {
        let count = measure(&group["rows"][0], "hist")["count"].as_u64();
        assert_eq!(count, Some(sizes.len() as u64));
    }
}

/// A site that needs more registers than there are to work with cannot be recorded.
#[test]
fn too_many_registers_of_one_place_are_refused() {
    let program = program();
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("t");
    let output = capriole(&[
        "record",
        "-o",
        trace.to_str().expect("text"),
        "-e",
        ":added_call %si %di %r8 %r9 %r10 %r11 %bx",
        "-e",
        ":added_call %r12 %r13 %r14 %r15 %bp %cx %ax",
        "--",
        program.to_str().expect("text"),
        "1",
        "10",
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("too many registers together"), "{said}");
}

/// A key may have the name that the measured duration usually has.
#[test]
fn a_key_is_not_taken_for_the_duration() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let event = "latency(:counted_work) by ns=\\4000000000";
    let output = capriole(&["stat", "--json", "-e", event, "--", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    // The program prints a line of its own before.
    let json = output.stdout.split(|byte| *byte == b'\n').nth(1);
    let said: Value = serde_json::from_slice(json.expect("a line")).expect("JSON");
    let row = &said["groups"][0]["rows"][0];
    assert_eq!(row["calls"], 103, "{said}");
    assert_eq!(row["keys"]["ns"], 4_000_000_000_u64, "{said}");
    let buckets = row["measures"][0]["buckets"]
        .as_array()
        .expect("a histogram");
    let whole: u64 = buckets.iter().filter_map(|b| b["count"].as_u64()).sum();
    assert_eq!(whole, 103, "{said}");
    let measure = &row["measures"][0];
    let number = |name: &str| measure[name].as_f64().expect("a number");
    assert_eq!(measure["unit"], "ns", "{said}");
    assert!(
        (number("total_ns") - 103.0 * number("avg_ns")).abs() < 1.0,
        "{said}"
    );
    // Percentiles are the upper bounds of buckets, and may be above the largest duration.
    for rising in [
        ["p50_ns", "p90_ns", "p99_ns", "p99_9_ns"],
        ["min_ns", "avg_ns", "max_ns", "total_ns"],
    ] {
        assert!(rising.map(number).is_sorted(), "{said}");
    }
    let short = |bucket: &Value| bucket["high"].as_u64().is_some_and(|ns| ns < 3_000_000_000);
    assert!(buckets.iter().all(short), "{said}");
}

/// Fields that calls have themselves, and that an event would hide.
#[test]
fn names_of_the_fields_of_calls_are_refused() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let record = |event: &str, words: &[&str]| {
        let head = ["record", "-o", text(&trace), "--graph", event];
        capriole(&[&head, words, &["--", text(&program)]].concat())
    };
    let least = &["--min-duration", "1ns"][..];
    for (event, words) in [
        (":counted_work _duration=$arg1", least),
        (":counted_work _sp=$arg1", &[]),
        (":counted_work _since=$arg1 if _since > 1", &[]),
        (":counted_work ret=$arg1", least),
    ] {
        let said = told(&record(event, words));
        assert!(
            said.contains("is taken, by a field of each call"),
            "{event}: {said}"
        );
        assert!(!trace.exists(), "{event}");
    }
    let output = record(":counted_work ret=$arg1", &[]);
    assert!(output.status.success(), "{}", told(&output));
}
