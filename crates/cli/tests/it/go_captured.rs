//! Variables that a function literal of Go has captured, and variables that Go has moved to the heap, are read where
//! they are, or refused.

use crate::programs::{build_go, build_go_with};
use crate::target::{capriole, told};
use crate::tools::run;
use crate::traces::{arguments_in, events, record, scratch, text};
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
    arguments_in(program, event, OK)
}

/// Returns the message of an event that is refused.
fn refused(program: &Path, event: &str) -> String {
    let directory = scratch();
    let trace = directory.path().join("t");
    let output = record(&trace, &["-e", event, "--", text(program)]);
    assert!(!output.status.success(), "{event}");
    told(&output)
}

/// Returns the number of the line with this mark.
fn line(mark: &str) -> usize {
    let source = include_str!("../../../../tests/programs/go_captured.go");
    let line = source.lines().position(|line| line.contains(mark));
    line.expect("the line") + 1
}

/// Returns the offsets of the first instructions behind the entry of a function.
fn instructions(program: &Path, function: &str) -> Vec<u64> {
    let mut objdump = Command::new("objdump");
    let listing = run(objdump
        .args(["-d", "--no-show-raw-insn"])
        .arg(format!("--disassemble={function}"))
        .arg(program));
    let addresses = listing.lines().filter_map(|line| {
        let (address, _) = line.strip_prefix(' ')?.split_once(':')?;
        u64::from_str_radix(address.trim(), 16).ok()
    });
    let addresses: Vec<u64> = addresses.take(20).collect();
    addresses[1..].iter().map(|at| at - addresses[0]).collect()
}

/// Records variables at each of these instructions. Each value is one of those that they can have, or the variable is refused.
/// Returns how many were read, and how many refused.
fn each_instruction(
    program: &Path,
    function: &str,
    names: &str,
    values: impl Fn(&Value) -> bool,
) -> (usize, usize) {
    let (mut read, mut refused) = (0, 0);
    for offset in instructions(program, function) {
        let directory = scratch();
        let trace = directory.path().join("t");
        let event = format!(":{function}+{offset} {names}");
        let output = record(&trace, &["-e", &event, "--", text(program)]);
        if !output.status.success() {
            refused += 1;
            continue;
        }
        for event in events(&trace) {
            let arguments = &event["arguments"];
            assert!(
                values(arguments),
                "{offset:#x} {}: {arguments}",
                program.display()
            );
            read += 1;
        }
    }
    (read, refused)
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
fn variables_are_read_or_refused_at_each_instruction() {
    for program in programs() {
        let is_optimised = program.ends_with("go_captured");
        let captured = json!({ "name": "abc", "k": 77 });
        let all = |arguments: &Value| *arguments == captured;
        let (read, refused) = each_instruction(&program, "main.main.func1", "name k", all);
        assert!(
            refused > 4 && (is_optimised || read > 12),
            "{read} {refused}"
        );
        let small = |arguments: &Value| {
            let expected =
                (0..3).map(|n| json!({ "a": n, "b": 100 * n, "e": u8::from(n % 2 == 0) }));
            expected.into_iter().any(|expected| expected == *arguments)
        };
        each_instruction(&program, "main.small.func1", "a b e", small);
        let moved = |arguments: &Value| (0..4).any(|n| *arguments == json!({ "n": n }));
        each_instruction(&program, "main.arrives", "n", moved);
    }
}

/// Debug information does not say if a closure has such a value or its address.
#[test]
fn captured_values_in_memory_are_right_or_refused() {
    for program in programs() {
        let told = refused(&program, ":main.inMemory.func1 big.b n");
        assert!(told.contains("its value or its address"), "{told}");
        assert_eq!(
            arguments(&program, ":main.inMemory.func1 n"),
            [0, 1, 2].map(|n| json!({ "n": n })),
        );
    }
}

#[test]
fn a_name_means_what_it_means_on_its_line() {
    let Some(program) = build_go_with(&["-gcflags=-N -l"], SOURCE, "go_captured_n") else {
        return;
    };
    let at = |mark| format!(":{SOURCE}:{} y", line(mark));
    let captured = [7, 7, 7].map(|y| json!({ "y": y }));
    assert_eq!(arguments(&program, &at("LINE captured")), captured);
    let local = [0, 2, 6].map(|y| json!({ "y": y }));
    assert_eq!(arguments(&program, &at("LINE local")), local);
}

#[test]
fn parameters_on_the_stack_that_escape_are_read_or_refused() {
    for program in programs() {
        let mut places = vec![":main.stacked m".to_owned()];
        let marks = ["LINE stacked", "LINE later"];
        places.extend(marks.map(|mark| format!(":{SOURCE}:{} m", line(mark))));
        for event in places {
            let directory = scratch();
            let trace = directory.path().join("t");
            let output = record(&trace, &["-e", &event, "--", text(&program)]);
            if output.status.success() {
                let all = events(&trace);
                let found = all.iter().map(|event| event["arguments"].clone());
                let expected = [90, 91, 92].map(|m| json!({ "m": m }));
                assert_eq!(found.collect::<Vec<_>>(), expected, "{event}");
            }
        }
    }
}

#[test]
fn parameters_that_escape_are_read_at_the_entry() {
    for program in programs() {
        let expected = [0, 1, 2].map(|n| json!({ "n": n }));
        assert_eq!(
            arguments(&program, ":main.arrives n"),
            expected,
            "{}",
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
