//! Floating-point numbers: results, arguments by name and registers, in records made by
//! straight-line code, by the resident, and without restartable sequences.

use crate::programs::{Compiler, build};
use crate::target::{assert_failed, capriole, told};
use crate::traces::{events, pairs, recorder, scratch, summary, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// By name, the bits of each value, in order.
type Bits = BTreeMap<String, Vec<u64>>;

fn program(flags: &[&str]) -> Option<PathBuf> {
    build(Compiler::Gcc, "floats.c", flags)
}

/// Parses the program's output.
fn said(output: &str) -> Bits {
    assert!(output.contains("ok floats"), "{output}");
    let mut bits = Bits::new();
    for (name, value) in pairs(output) {
        let value = value.strip_prefix("0x").unwrap_or(value);
        let value = u64::from_str_radix(value, 16).expect("hexadecimal");
        bits.entry(name.to_owned()).or_default().push(value);
    }
    bits
}

/// Returns the bits of a number that `report --json` shows.
fn bits(value: &Value, single: bool) -> u64 {
    let number = match value.as_str() {
        Some(hexadecimal) if hexadecimal.starts_with("0x") => {
            return u64::from_str_radix(&hexadecimal[2..], 16).expect("hexadecimal");
        }
        Some(special) => special.parse().expect("infinite or no number"),
        None => value.as_f64().unwrap_or_else(|| panic!("{value}")),
    };
    // A NaN has a sign, which is not shown.
    match single {
        true => u64::from((number as f32).to_bits()),
        false => number.to_bits(),
    }
}

/// Makes all NaNs equal, whatever their sign.
fn alike(bits: u64, single: bool) -> u64 {
    match single {
        true if f32::from_bits(bits as u32).is_nan() => u64::from(f32::NAN.to_bits()),
        false if f64::from_bits(bits).is_nan() => f64::NAN.to_bits(),
        _ => bits,
    }
}

fn run(program: &Path, events: &[&str], words: &[&str], tunables: &str, trace: &Path) -> String {
    let mut arguments = vec!["--buffer-size", "32M"];
    arguments.extend(events.iter().flat_map(|event| ["-e", event]));
    let mut command = recorder(trace, &arguments);
    command.arg("--").arg(program).args(words);
    let output = command.env("GLIBC_TUNABLES", tunables).output();
    let output = output.expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let whole = summary(trace);
    for nothing in ["lost_events", "lost_packets", "damages"] {
        assert_eq!(whole[nothing], 0, "{nothing}: {whole}");
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the values of a field in all events with this name.
fn column(all: &[Value], event: &str, field: &str, single: bool) -> Vec<u64> {
    let own = all.iter().filter(|e| e["event"] == event);
    own.map(|e| alike(bits(&e["arguments"][field], single), single))
        .collect()
}

#[test]
fn results_and_arguments_are_those_of_the_program() {
    for flags in [&[][..], &["-O0"]] {
        let Some(program) = program(flags) else {
            return;
        };
        for (more, tunables) in [
            ("", ""),
            // These are recorded by the resident, in locked mode, or both.
            (" m=+0(%sp):x8", ""),
            ("", "glibc.pthread.rseq=0"),
            (" m=+0(%sp):x8", "glibc.pthread.rseq=0"),
        ] {
            let directory = scratch();
            let trace = directory.path().join("t");
            let texts = [
                format!("r :doubled ret=$retval raw=%xmm0:x64 hand=$retval:f64{more}"),
                format!("r :halved ret=$retval raw=%xmm0:x32 hand=$retval:f32{more}"),
                format!("p:at_entry :weighed weight scale count w=%xmm0 s=%xmm1:f32{more}"),
                format!("r :weighed ret=$retval{more}"),
                format!("r :pair ret=$retval{more}"),
                format!("r :halves ret=$retval{more}"),
                format!("r :mixed ret=$retval{more}"),
                format!("r :large x=+24($retval):f64 all=+0($retval):f64[4]{more}"),
            ];
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let output = run(&program, &texts, &[], tunables, &trace);
            let said = said(&output);
            let all = events(&trace);
            for (event, field, name, single) in [
                ("doubled__return", "ret", "doubled", false),
                ("doubled__return", "raw", "doubled", false),
                ("doubled__return", "hand", "doubled", false),
                ("halved__return", "ret", "halved", true),
                ("halved__return", "raw", "halved", true),
                ("halved__return", "hand", "halved", true),
                ("at_entry", "weight", "weight", false),
                ("at_entry", "w", "weight", false),
                ("weighed__return", "ret", "weighed", false),
                ("pair__return", "ret", "pair", false),
                ("halves__return", "ret", "halves", false),
                ("mixed__return", "ret", "mixed", false),
                ("large__return", "x", "weight", false),
            ] {
                let wanted = said[name].iter().map(|bits| alike(*bits, single));
                let wanted: Vec<u64> = wanted.collect();
                let seen = column(&all, event, field, single);
                assert_eq!(seen, wanted, "{event} {field} {flags:?} {more} {tunables}");
            }
            let half = u64::from(0.5f32.to_bits());
            for field in ["scale", "s"] {
                let scales = column(&all, "at_entry", field, true);
                assert!(scales.iter().all(|scale| *scale == half), "{scales:x?}");
            }
        }
    }
}

/// Threads interrupted in the middle of a record make it again in another mode, with the same
/// number.
#[test]
fn numbers_survive_interruptions() {
    let Some(program) = program(&[]) else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    run(
        &program,
        &["r :doubled ret=$retval"],
        &["threads"],
        "",
        &trace,
    );
    let mut seen = column(&events(&trace), "doubled__return", "ret", false);
    let each = |first: u64| (first * 100_000..first * 100_000 + 50_000).map(|i| 2 * i);
    let mut wanted: Vec<u64> = (0..4)
        .flat_map(each)
        .map(|n| (n as f64).to_bits())
        .collect();
    seen.sort_unstable();
    wanted.sort_unstable();
    assert!(seen == wanted, "{} of {}", seen.len(), wanted.len());
}

#[test]
fn calls_have_their_floating_results_in_the_graph() {
    let Some(program) = program(&[]) else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut command = recorder(&trace, &["--graph", ":passed_on", "--graph", ":halved"]);
    let output = command.arg("--").arg(&program).output();
    let output = output.expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let graph = capriole(&["report", "--graph", text(&trace)]);
    let graph = String::from_utf8_lossy(&graph.stdout).into_owned();
    assert!(graph.contains("halved() = 0.05;"), "{graph}");
    assert!(graph.contains("halved() = -inf;"), "{graph}");
    assert!(graph.contains("/* tail call */"), "{graph}");
}

/// Calls whose result cannot be read are in the graph as those without one.
#[test]
fn calls_are_in_the_graph_without_results_that_cannot_be_read() {
    let Some(program) = program(&[]) else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let functions = ["extended", "turned"];
    let mut arguments = Vec::new();
    for function in functions {
        arguments.extend(["--graph".to_owned(), format!(":{function}")]);
    }
    let output = recorder(&trace, &arguments)
        .arg("--")
        .arg(&program)
        .output();
    let output = output.expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let graph = capriole(&["report", "--graph", text(&trace)]);
    let graph = String::from_utf8_lossy(&graph.stdout).into_owned();
    for function in functions {
        assert!(graph.contains(&format!("{function}();")), "{graph}");
    }
}

#[test]
fn what_cannot_be_done_with_them_is_said() {
    let Some(program) = program(&[]) else { return };
    for (how, event, reason) in [
        (
            "record",
            "r :wide_integer $retval",
            "the function returns `__int128`, of 16 bytes in two registers",
        ),
        (
            "record",
            "r :extended $retval",
            "the function returns `long double`",
        ),
        (
            "record",
            "r :turned $retval",
            "the function returns `complex double`",
        ),
        (
            "record",
            "r :doubled v=$retval if v > 3",
            "the filter asks for `v`, a floating point number",
        ),
        (
            "record",
            "r :doubled v=$retval:f64 if v > 3",
            "v is a floating point number\n  r :doubled v=$retval:f64 if v > 3\n                              ^",
        ),
        (
            "record",
            ":doubled $arg1:f64",
            "$arg1 is an integer or pointer argument\n  :doubled $arg1:f64\n                 ^",
        ),
        (
            "record",
            ":doubled +0(%xmm0)",
            "there is no address in a vector register",
        ),
        ("record", ":doubled %xmm16", "%xmm0 to %xmm15 can be read"),
        ("record", ":doubled %xmm0:f16", "unknown type `f16`"),
        (
            "stat",
            "r :doubled sum(v=$retval)",
            "`v` is a floating point number",
        ),
        (
            "stat",
            "r :doubled sum($retval:f64)",
            "sum needs a number, $retval:f64 is a floating point number",
        ),
        ("stat", ":doubled by x", "`x` is a floating point number"),
    ] {
        let output = capriole(&[how, "-e", event, "--", text(&program)]);
        assert_failed(&output);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(reason), "{event}: {said}");
    }
}

#[test]
fn their_registers_are_listed() {
    let Some(program) = program(&[]) else { return };
    let output = capriole(&["list", "--args", ":weighed", text(&program)]);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = |name: &str| {
        let line = table
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        let words = line.unwrap_or_else(|| panic!("{table}")).split_whitespace();
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("weight"), ["weight", "double", "%xmm0", "as", "f64"]);
    assert_eq!(row("scale"), ["scale", "float", "%xmm1", "as", "f32"]);
}
