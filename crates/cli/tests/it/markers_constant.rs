//! Static marker arguments that are constants: like registers, they are recorded as they are,
//! by the detour's own code.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{events, record_program, scratch, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const INCLUDE: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");

/// Includes an address as a constant, which a position-independent program does not have.
fn constants() -> Option<PathBuf> {
    build(Compiler::Gcc, "constants.c", &["-no-pie", INCLUDE])
}

/// Returns names and fields of the hits of these events, in time order.
fn recorded(program: &Path, arguments: &[&str]) -> Vec<(String, Value)> {
    let directory = scratch();
    let trace = directory.path().join("trace");
    record_program(&trace, arguments, program, &["3"]);
    let mut events: Vec<Value> = events(&trace).into_iter().collect();
    events.sort_by_key(|event| event["time_ns"].as_u64());
    let fields = events.into_iter().map(|event| {
        let name = event["event"].as_str().expect("a name").to_owned();
        (name, event["arguments"].clone())
    });
    fields.collect()
}

fn of<'a>(events: &'a [(String, Value)], name: &str) -> Vec<&'a Value> {
    let named = events.iter().filter(|(event, _)| event == name);
    named.map(|(_, fields)| fields).collect()
}

#[test]
fn constants_are_recorded_as_they_are() {
    let Some(program) = constants() else {
        return;
    };
    let events = recorded(&program, &["-e", "usdt::fixed:*"]);
    let sizes = json!({
        "arg1": -128,
        "arg2": 255,
        "arg3": -32_768,
        "arg4": 65_535,
        "arg5": i32::MIN,
        "arg6": u32::MAX,
        "arg7": i64::MIN.to_string(),
        "arg8": u64::MAX.to_string(),
        "arg9": 0x7fff_ffff,
        "arg10": 0x8000_0000_u64,
    });
    assert_eq!(of(&events, "fixed:sizes"), [&sizes; 3]);
    let floats = json!({"arg1": 0.5, "arg2": 2.0, "arg3": -1.0 / 1024.0});
    assert_eq!(of(&events, "fixed:floats"), [&floats; 3]);
    let places = of(&events, "fixed:places");
    assert_eq!(places.len(), 6);
    for round in 0..3 {
        let at = |name: &str| of(&events, name)[round];
        let mixed = json!({
            "arg1": round,
            "arg2": -5,
            "arg3": round * 3,
            "arg4": 0x1122_3344_5566_7788_u64.to_string(),
        });
        assert_eq!(*at("fixed:mixed"), mixed);
        assert_eq!(*places[2 * round], json!({"arg1": -7, "arg2": round}));
        let kind = -((round % 2) as i64);
        assert_eq!(*places[2 * round + 1], json!({"arg1": kind, "arg2": 100}));
        assert_eq!(at("fixed:text")["arg2"], round);
        let described = json!({
            "round": round,
            "line": 4711,
            "f": 0.5,
            "d": -1.0 / 1024.0,
            "small": -3,
            "c": "x",
            "nowhere": "0x1000",
        });
        assert_eq!(*at("fixed:described"), described);
    }
    // As other types, and together with the user's own fields.
    let event = "usdt::fixed:mixed low=$arg4:x16 five=\\5 minus=\\-1:s64 arg1";
    let wanted = json!({"low": "0x7788", "five": "0x5", "minus": -1, "arg1": 2});
    let events = recorded(&program, &["-e", event]);
    assert_eq!(events.last().map(|(_, fields)| fields), Some(&wanted));
}

/// A variable that is a constant is listed as its type shows it, with its sign and no further bits.
#[test]
fn constants_are_listed_by_their_type() {
    let Some(program) = constants() else {
        return;
    };
    let words = ["list", "--args", "usdt::fixed:described", text(&program)];
    let output = capriole(&words);
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<Vec<&str>> = said
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    for (name, number, as_type) in [
        ("below", "-5", "s32"),
        ("small", "-3", "s8"),
        ("large", "4294967280", "u32"),
    ] {
        let line = lines.iter().find(|words| words.first() == Some(&name));
        let line = line.unwrap_or_else(|| panic!("{name}: {said}"));
        assert!(line.contains(&as_type), "{said}");
        assert!(
            line.windows(2).any(|two| two == ["constant", number]),
            "{said}"
        );
    }
}

/// Only data that a constant points to is fetched by the resident's program.
#[test]
fn constants_need_no_program() {
    let Some(program) = constants() else {
        return;
    };
    let runs = |event: &str| -> Vec<bool> {
        let output = capriole(&["check", "--json", event, text(&program)]);
        assert!(output.status.success(), "{}", told(&output));
        let sites: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let sites = sites.as_array().expect("a list").iter();
        sites
            .map(|site| {
                let detour = site["detour"].as_array().expect("instructions");
                let what = |what: &str| detour.iter().any(|line| line["what"] == what);
                let run = |line: &Value| line["text"].as_str() == Some("call run");
                assert!(what("record"), "{site:#}");
                detour.iter().any(run)
            })
            .collect()
    };
    for (event, sites) in [
        ("usdt::fixed:sizes", 1),
        ("usdt::fixed:floats", 1),
        ("usdt::fixed:mixed", 1),
        ("usdt::fixed:mixed five=\\5", 1),
        ("usdt::fixed:places", 2),
        ("usdt::fixed:places if arg1 == -7 && arg2 < 50", 2),
        ("usdt::fixed:described", 1),
        ("usdt::fixed:text", 1),
    ] {
        assert_eq!(runs(event), vec![false; sites], "{event}");
    }
    assert_eq!(runs("usdt::fixed:text $arg1:string"), [true]);
    assert_eq!(runs("usdt::fixed:mixed $comm"), [true]);
    let texts = recorded(&program, &["-e", "usdt::fixed:text $arg1:string arg2"]);
    let fields = json!({"arg1": "hello", "arg2": 2});
    assert_eq!(texts.last().map(|(_, fields)| fields), Some(&fields));
}

#[test]
fn filters_over_constants_want_all_hits_of_a_place_or_none() {
    let Some(program) = constants() else {
        return;
    };
    let hits = |event: &str| recorded(&program, &["-e", event]).len();
    assert_eq!(hits("usdt::fixed:sizes if arg1 == -128"), 3);
    assert_eq!(hits("usdt::fixed:sizes if arg1 >= 0"), 0);
    assert_eq!(
        hits("usdt::fixed:mixed $arg1 $arg2 if arg2 < 0 && arg1 > 0"),
        2
    );
    assert_eq!(hits("usdt::fixed:mixed if arg2 > 0 || arg1 > 1"), 1);
    // One place has it as a constant, the other in a register.
    assert_eq!(hits("usdt::fixed:places if arg1 == -7"), 3);
    assert_eq!(hits("usdt::fixed:places if arg1 == -1"), 1);
    assert_eq!(
        hits("usdt::fixed:text $arg1:string arg2 if arg2 == 1 && arg1 == \"hello\""),
        1
    );
}

#[test]
fn constants_are_keys_and_are_added_up() {
    let Some(program) = constants() else {
        return;
    };
    let output = capriole(&[
        "stat",
        "--json",
        "-e",
        "usdt::fixed:places count() sum(arg2) max(arg2) by arg1",
        "--",
        text(&program),
        "10",
    ]);
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8(output.stdout).expect("UTF-8");
    let line = shown.lines().find(|line| line.starts_with('{'));
    let stat: Value = serde_json::from_str(line.expect("JSON")).expect("JSON");
    let groups = stat["groups"].as_array().expect("a list");
    let rows = groups.iter().flat_map(|group| group["rows"].as_array());
    let mut seen: Vec<[i64; 4]> = rows
        .flatten()
        .map(|row| {
            let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("{row:#}"));
            let measure = |index: usize| number(&row["measures"][index]["value"]);
            let key = number(&row["keys"]["arg1"]);
            [key, number(&row["calls"]), measure(0), measure(1)]
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [[-7, 10, 45, 9], [-1, 5, 500, 100], [0, 5, 500, 100]]);
}
