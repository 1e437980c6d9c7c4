//! Definitions of the kernel's uprobe tracer mean the same here, even where that is surprising;
//! statements about them elsewhere are correct.

use crate::programs::{Compiler, build, copied};
use crate::target::{capriole, told};
use crate::traces::{events, record, record_program, scratch, text};
use std::path::Path;
use std::process::Command;

/// Returns the address of a symbol in a program that may be loaded anywhere.
fn address(program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().expect("nm");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut lines = text.lines();
    let line = lines.find(|line| line.ends_with(&format!(" {name}")));
    let digits = line
        .and_then(|line| line.split(' ').next())
        .expect("an address");
    u64::from_str_radix(digits, 16).expect("a number")
}

/// crates/cli/tests/it/kernel_fields.rs compares with the kernel for a program at a fixed
/// address, where an offset in the data is the same either way.
#[test]
fn an_offset_in_memory_counts_from_where_the_code_is() {
    let Some(program) = build(Compiler::Gcc, "offsets.c", &["-O1", "-pie", "-fPIE"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let variable = address(&program, "variable");
    let event = format!(":work at=@+{variable:#x}:u32 gone=@+0x7fffffff:u8");
    record_program(&trace, &["-e", &event], &program, &[]);
    let all = events(&trace);
    let arguments = all[0]["arguments"].to_string();
    assert_eq!(
        arguments,
        r#"{"at":305419896,"gone":"(fault)"}"#.replace("\"(fault)\"", "null")
    );
}

/// The place is the same, however the number is written and whatever characters the path has.
#[test]
fn places_in_files_have_the_kernels_names() {
    let Some(program) = build(Compiler::Gcc, "offsets.c", &["-O1", "-pie", "-fPIE"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let colon = directory.path().join("off:set");
    copied(&program, &colon);
    // In the first segments, addresses equal file offsets.
    let work = address(&program, "work");
    for (path, place) in [
        (&program, format!("{work:#x}")),
        (&program, work.to_string()),
        (&colon, format!("{work:#x}")),
        (&colon, format!("0{work:o}")),
    ] {
        let event = format!("{}:{place}", path.display());
        let returned = format!("r {event}");
        record_program(&trace, &["-e", &event, "-e", &returned], path, &[]);
        let file = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        let file = file
            .split(['.', '-', '_'])
            .next()
            .expect("a name")
            .replace(':', "_");
        let all = events(&trace);
        let names: Vec<_> = all
            .iter()
            .map(|event| event["event"].as_str().expect("a name"))
            .collect();
        let entry = format!("p_{file}_{work:#x}");
        assert_eq!(names, [&entry, &entry.replacen('p', "r", 1)], "{event}");
    }
}

#[test]
fn comments_may_have_any_bytes_and_events_only_characters() {
    let Some(program) = build(Compiler::Gcc, "offsets.c", &["-O1", "-pie", "-fPIE"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let file = directory.path().join("events");
    let arguments = ["-f", text(&file), "--", text(&program)];
    std::fs::write(&file, b"# caf\xe9\np:net/req :work # caf\xe9\n").expect("written");
    let said = told(&record(&trace, &arguments));
    assert!(said.starts_with("exit status: 0"), "{said}");
    std::fs::write(&file, b"p:net/req :work\n\np:net/b :caf\xe9 %di\n").expect("written");
    let said = told(&record(&trace, &arguments));
    assert!(
        said.contains("line 3: byte 13 is 0xe9, which is not UTF-8: p:net/b :caf"),
        "{said}"
    );
}

#[test]
fn an_event_that_could_not_fit_is_refused() {
    let Some(program) = build(Compiler::Gcc, "offsets.c", &["-O1", "-pie", "-fPIE"]) else {
        return;
    };
    for (count, fits) in [(31, true), (32, false)] {
        let event = format!(":work a=+0(%di):string[{count}]");
        let said = told(&capriole(&["check", &event, text(&program)]));
        assert_eq!(!said.contains("more than the 32,768"), fits, "{said}");
    }
}
