//! A register that the program will overwrite is no scratch register for one probe if another
//! probe reads it.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record_program, scratch, text};
use serde_json::Value;
use std::path::PathBuf;

const REGISTERS: [&str; 8] = ["rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11"];

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "read_later.c", &[])
}

/// Records all registers at the later place, with another event at the earlier one.
fn all_are_read(events: &[&str]) {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words: Vec<&str> = events.iter().flat_map(|event| ["-e", event]).collect();
    let said = record_program(&trace, &words, &program, &[]);
    assert!(said.contains("ok calls=1000"), "{said}");
    let report = capriole(&["report", "--json", text(&trace)]);
    assert!(report.status.success(), "{}", told(&report));
    let mut seen = 0;
    for line in String::from_utf8_lossy(&report.stdout).lines() {
        let event: Value = serde_json::from_str(line).expect("JSON");
        if event["event"] != "late" {
            continue;
        }
        let values = event["arguments"].as_object().expect("values").values();
        for value in values.filter(|value| value.is_number()) {
            assert_eq!(*value, seen, "{event}");
        }
        seen += 1;
    }
    assert_eq!(seen, 1000);
}

/// Returns an event that records these fields, each under its name.
fn late(fields: impl IntoIterator<Item = &'static str>) -> String {
    let fields = fields.into_iter().map(|r| format!(" {r}=%{r}:u64"));
    format!("p:late :read_later+0x30{}", fields.collect::<String>())
}

#[test]
fn by_records() {
    for register in REGISTERS {
        all_are_read(&[":read_later n=%rdi", &late([register])]);
    }
    all_are_read(&[":read_later+0x20 n=%rdi", &late(REGISTERS)]);
}

#[test]
fn by_filters() {
    for register in REGISTERS {
        let late = format!("{} if {register} < 1000", late([register]));
        all_are_read(&[":read_later+0x20 n=%rdi", &late]);
    }
}

#[test]
fn by_programs() {
    for register in REGISTERS {
        let late = late([register]) + " comm=$comm";
        all_are_read(&[":read_later n=%rdi comm=$comm", &late]);
        all_are_read(&[":read_later+0x20 n=%rdi", &late]);
    }
}

#[test]
fn by_sums() {
    let Some(program) = program() else { return };
    for register in REGISTERS {
        let early = [":read_later", ":read_later+0x20"];
        let late = format!("p:late :read_later+0x30 sum(n=%{register}:u64)");
        let words = [
            "stat", "--json", "-e", early[0], "-e", early[1], "-e", &late,
        ];
        let output = capriole(&[&words[..], &["--", text(&program)]].concat());
        let said = told(&output);
        assert!(output.status.success(), "{said}");
        let sum: u64 = (0..1000).sum();
        assert!(said.contains(&format!(":{sum}")), "%{register}: {said}");
    }
}
