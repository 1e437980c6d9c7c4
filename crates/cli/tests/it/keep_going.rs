//! `--keep-going` probes every possible site, whatever else the user requested.

use crate::programs::{Compiler, build};
use crate::target::{assert_failed, capriole, told};
use crate::traces::{record, scratch, text};
use serde_json::Value;
use std::path::PathBuf;

fn program() -> Option<PathBuf> {
    // Without debug information.
    build(Compiler::Gcc, "counted.c", &["-g0"])
}

/// Events that cannot be probed, each for another reason, and words from that reason.
const IMPOSSIBLE: [(&str, &str); 10] = [
    (":no_such_function", "no function `no_such_function`"),
    (":nothing_like_it*", "matches `nothing_like_it*`"),
    ("libc", "libc.so.6 is loaded"),
    ("nolibrary:f", "no program or library `nolibrary` is loaded"),
    (":main count", "no debug information"),
    (":main.c:5", "no debug information"),
    (":main+0xfffff", "is outside of it"),
    ("usdt::nobody:knows", "no marker `nobody:knows`"),
    ("r :main $retval if c > 5", "c"),
    ("/nowhere/lib.so:f", "/nowhere/lib.so"),
];

#[test]
fn events_that_mean_nothing_are_left_out_one_by_one() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    for (event, reason) in IMPOSSIBLE {
        let both = ["-e", event, "-e", ":main", "--", text(&program)];
        assert_failed(&record(&trace, &both));
        if event.contains(" if ") {
            continue; // not an event at all: an error of its text
        }
        let said = told(&record(&trace, &[&["--keep-going"], &both[..]].concat()));
        assert!(said.starts_with("exit status: 0"), "{event}: {said}");
        assert!(said.contains("left out: 1 of 2 events:"), "{event}: {said}");
        assert!(said.contains(reason), "{event}: {said}");
        std::fs::remove_dir_all(&trace).expect("it was recorded");
    }
}

#[test]
fn files_and_stat_go_on_as_well_and_json_names_what_is_left_out() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let file = directory.path().join("events");
    let lines =
        ":no_such_function\nlatency(:nor_this)\nr :nor_that x=$entry:arg1\nlatency(:main)\n";
    std::fs::write(&file, lines).expect("written");
    let rest = ["-f", text(&file), "-e", ":main", "--", text(&program)];
    let said = told(&capriole(&[&["stat", "--keep-going"], &rest[..]].concat()));
    assert!(said.contains("left out: 3 of 5 events:"), "{said}");
    for name in ["no_such_function", "nor_this", "nor_that"] {
        assert_eq!(
            said.matches(&format!("no function `{name}`")).count(),
            1,
            "{said}"
        );
    }
    let output = capriole(&[&["stat", "--json", "--keep-going"], &rest[..]].concat());
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let json = printed.lines().find(|line| line.starts_with('{'));
    let json: Value = serde_json::from_str(json.expect("JSON")).expect("JSON");
    let events = json["events"].as_array().expect("a list");
    let left_out = events.iter().filter(|e| e["state"] == "not probed");
    let left_out: Vec<&str> = left_out.filter_map(|e| e["event"].as_str()).collect();
    assert_eq!(left_out.len(), 3, "{json}");
    assert!(left_out.contains(&"latency(:nor_this)"), "{json}");
    let probed = events.iter().filter(|e| e["calls"] == 1).count();
    assert_eq!(probed, 2, "{json}");
}

#[test]
fn if_nothing_remains_or_an_event_is_no_event_it_is_an_error() {
    let Some(program) = program() else { return };
    for events in [&[":nothing"][..], &[":nothing", "libc"]] {
        let mut arguments = vec!["stat", "--keep-going"];
        for event in events {
            arguments.extend(["-e", event]);
        }
        arguments.extend(["--", text(&program)]);
        let said = told(&capriole(&arguments));
        assert!(said.starts_with("exit status: 1"), "{said}");
        assert!(said.contains("no function `nothing`"), "{said}");
    }
    let wrong = [
        "stat",
        "--keep-going",
        "-e",
        ":main %nothing",
        "-e",
        ":main",
    ];
    let output = capriole(&[&wrong, &["--", text(&program)][..]].concat());
    assert_failed(&output);
    let said = told(&output);
    assert!(said.contains("invalid register name"), "{said}");
}
