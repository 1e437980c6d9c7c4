//! Variables that a function literal of Go has captured, and variables that Go has moved to the heap, are read where
//! they are, or refused.

use crate::programs::{build_go, build_go_with};
use crate::target::{capriole, told};
use crate::tools::run;
use crate::traces::{events, record, record_program, scratch, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const OK: &str = "ok go_captured\n";
const SOURCE: &str = "go_captured.go";

/// Returns the program, optimised and not.
fn programs() -> Vec<PathBuf> {
    let plain = build_go(SOURCE, "go_captured");
    let unoptimised = ["-gcflags=-N -l"];
    let both = [plain, build_go_with(&unoptimised, SOURCE, "go_captured_n")];
    both.into_iter().flatten().collect()
}

/// Returns the arguments of each hit of an event.
fn arguments(program: &Path, event: &str) -> Vec<Value> {
    let directory = scratch();
    let trace = directory.path().join("t");
    assert_eq!(record_program(&trace, &["-e", event], program, &[]), OK);
    let all = events(&trace);
    all.iter().map(|event| event["arguments"].clone()).collect()
}

/// Returns the number of the line with this mark.
fn line(mark: &str) -> usize {
    let source = include_str!("../../../../tests/programs/go_captured.go");
    let line = source.lines().position(|line| line.contains(mark));
    line.expect("the line") + 1
}

/// Returns the offsets of the first instructions behind the entry of the function literal.
fn instructions(program: &Path) -> Vec<u64> {
    let mut objdump = Command::new("objdump");
    let listing = run(objdump
        .args(["-d", "--no-show-raw-insn", "--disassemble=main.main.func1"])
        .arg(program));
    let addresses = listing.lines().filter_map(|line| {
        let (address, _) = line.strip_prefix(' ')?.split_once(':')?;
        u64::from_str_radix(address.trim(), 16).ok()
    });
    let addresses: Vec<u64> = addresses.take(20).collect();
    addresses[1..].iter().map(|at| at - addresses[0]).collect()
}

#[test]
fn captured_variables_are_in_the_closure_at_the_entry() {
    for program in programs() {
        let found = arguments(&program, ":main.main.func1 n total name k");
        let expected = [(0, 0), (1, 0), (2, 2)]
            .map(|(n, total)| json!({ "n": n, "total": total, "name": "abc", "k": 77 }));
        assert_eq!(found, expected, "{}", program.display());
    }
}

#[test]
fn captured_variables_are_read_or_refused_at_each_instruction() {
    for program in programs() {
        let (mut read, mut refused) = (0, 0);
        for offset in instructions(&program) {
            let directory = scratch();
            let trace = directory.path().join("t");
            let event = format!(":main.main.func1+{offset} name k");
            let output = record(&trace, &["-e", &event, "--", text(&program)]);
            if !output.status.success() {
                let told = told(&output);
                refused +=
                    usize::from(told.contains("no value yet") || told.contains("optimised out"));
                continue;
            }
            for event in events(&trace) {
                let expected = json!({ "name": "abc", "k": 77 });
                assert_eq!(
                    event["arguments"],
                    expected,
                    "{offset} {}",
                    program.display()
                );
                read += 1;
            }
        }
        let is_optimised = program.ends_with("go_captured");
        assert!(refused > 4, "{read} {refused} {}", program.display());
        assert!(
            is_optimised || read > 12,
            "{read} {refused} {}",
            program.display()
        );
    }
}

#[test]
fn variables_on_the_heap_have_the_names_of_the_source() {
    for program in programs() {
        let event = format!(":{SOURCE}:{} far", line("LINE moved"));
        let expected = [5, 6, 7].map(|far| json!({ "far": far }));
        assert_eq!(
            arguments(&program, &event),
            expected,
            "{}",
            program.display()
        );
        let event = format!(":{SOURCE}:{} n", line("LINE arrives"));
        let expected = [1, 2, 3].map(|n| json!({ "n": n }));
        assert_eq!(
            arguments(&program, &event),
            expected,
            "{}",
            program.display()
        );
    }
}

#[test]
fn they_are_listed_as_the_source_has_them() {
    for program in programs() {
        let output = capriole(&["list", "--args", "main.main.func1", text(&program)]);
        let told = told(&output);
        assert!(told.contains("total") && !told.contains('&'), "{told}");
    }
}
