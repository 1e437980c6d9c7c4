//! Several functions of one name: what an event leaves out is reported, and rows of one name can be
//! told apart.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record, scratch, text};

#[test]
fn code_of_the_same_name_that_gets_no_probe_is_reported() {
    let Some(program) = build(Compiler::Gcc, "namesakes.c", &[]) else {
        return;
    };
    let program = text(&program);
    let directory = scratch();
    let trace = directory.path().join("t");
    let outputs = [
        capriole(&["list", ":helper", program]),
        capriole(&["check", ":helper", program]),
        capriole(&["stat", "-e", ":helper", "--", program]),
        record(&trace, &["-e", ":helper", "--", program]),
        record(&trace, &["--graph", ":helper", "--", program]),
    ];
    for output in outputs {
        let said = told(&output);
        assert!(output.status.success(), "{said}");
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            notes.contains("capriole: left out: more code named `helper`"),
            "{said}"
        );
        assert!(
            notes.contains(&format!("\n  helper.isra.0  code at {program}:0x")),
            "{said}"
        );
        for other in ["helper.part.0", "helper.cold", "another_name"] {
            assert!(!notes.contains(other), "{said}");
        }
    }
    // Where it has a probe as well, was named itself, or a pattern was given, nothing is left out.
    for events in [
        &["-e", ":helper", "-e", ":helper.isra.0"][..],
        &["-e", ":helper.isra.0"],
        &["-e", ":helper*"],
    ] {
        let output = capriole(&[&["stat"], events, &["--", program]].concat());
        let said = told(&output);
        assert!(output.status.success(), "{said}");
        assert!(!said.contains("more code named"), "{said}");
    }
}

#[test]
fn rows_of_one_name_show_their_places() {
    let Some(program) = build(Compiler::Gcc, "namesakes.c", &[]) else {
        return;
    };
    let events = [
        "-e",
        "p:one/same :helper",
        "-e",
        "p:two/same :helper_of_another_name",
    ];
    let output = capriole(&[&["stat"], &events[..], &["--", text(&program)]].concat());
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<&str> = shown.lines().filter(|l| l.contains("same (")).collect();
    let [one, two] = rows[..] else {
        panic!("{}", told(&output));
    };
    assert_ne!(one, two);
    // One function has no need of it, also with two events.
    for events in [
        &events[..2],
        &[
            "-e",
            "p:same :helper",
            "-e",
            "p:same :helper n=$arg1 sum(n)",
        ],
    ] {
        let output = capriole(&[&["stat"], events, &["--", text(&program)]].concat());
        assert!(!told(&output).contains("same ("), "{}", told(&output));
    }
}
