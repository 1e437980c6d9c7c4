//! Control characters that a terminal acts on, in every name and string that comes from
//! outside: symbols, types, arguments, markers, files, processes, definitions, command-line
//! arguments and traces. No command prints any of them, to either output, except in a visible
//! form.

use crate::target;
use crate::traces;

use crate::programs::{Compiler, build};
use capriole_text::is_hidden;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use target::{Running, capriole, told};
use traces::{Background, scratch, text};

const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");

/// Reverse video; then CSI as one character, DEL, and BEL.
const ESCAPES: [(&str, &str); 2] = [("ESC1", "\x1b[7m"), ("ESC2", "\u{9b}\x7f\x07")];
/// A file name.
const PATH: &str = "a\x1b[7m\u{9b}b\u{202e}c\u{2028}d\re\x7f";

fn hostile(text: &str) -> String {
    let [(one, first), (two, second)] = ESCAPES;
    text.replace(one, first).replace(two, second)
}

/// Builds the program with escapes in it.
fn program(directory: &Path) -> Option<PathBuf> {
    let built = build(Compiler::Gcc, "hostile.c", &["-I", INCLUDE, "-O1"])?;
    let mut bytes = fs::read(built).expect("it was just built");
    for (name, escape) in ESCAPES {
        let (name, escape) = (name.as_bytes(), escape.as_bytes());
        let places: Vec<usize> = bytes
            .windows(4)
            .enumerate()
            .filter_map(|(at, word)| (word == name).then_some(at))
            .collect();
        assert!(places.len() > 3, "{places:?}");
        for at in places {
            bytes[at..at + 4].copy_from_slice(escape);
        }
    }
    let place = directory.join(PATH);
    fs::write(&place, bytes).expect("a file");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).expect("it is ours");
    Some(place)
}

fn assert_visible(words: &[&str], output: &Output) {
    for bytes in [&output.stdout, &output.stderr] {
        let shown = std::str::from_utf8(bytes);
        let shown = shown.unwrap_or_else(|_| panic!("{words:?}: not UTF-8: {}", told(output)));
        let bad = shown
            .chars()
            .find(|c| is_hidden(*c) && !matches!(c, '\n' | '\t'));
        assert_eq!(bad, None, "{words:?}: {shown:?}");
    }
    assert_ne!(output.status.code(), None, "{words:?}");
}

/// Returns a command's output, after checking that all of it is visible. With `--json` it must
/// be JSON, one or more values.
fn shown(words: &[&str]) -> String {
    let output = capriole(words);
    assert_visible(words, &output);
    if words.contains(&"--json") {
        let all = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        for value in all {
            value.unwrap_or_else(|error| panic!("{words:?}: {error}: {}", told(&output)));
        }
    }
    told(&output)
}

#[test]
fn of_a_program_and_of_a_process() {
    let scratch = scratch();
    let Some(program) = program(scratch.path()) else {
        return;
    };
    let path = text(&program);
    let work = hostile("hostileESC1work");
    for words in [
        &["list", path][..],
        &["list", ":hostile*", path],
        &["list", ":hostile*", path, "--args"],
        &["list", "usdt::*", path],
        &["check", ":hostile*", path],
        &["check", ":plain+4", path],
        &["check", "usdt::*:*", path],
    ] {
        let plain = shown(words);
        let worked = !plain.contains("no such file") && plain.lines().count() > 2;
        assert!(worked, "{words:?} {plain}");
        shown(&[words, &["--json"]].concat());
    }
    assert!(shown(&["list", path]).contains("hostile?[7mwork"));

    let mut running = Running::start(&program, &[]);
    let pid = running.pid.to_string();
    shown(&["list", ":hostile*", "-p", &pid]);
    shown(&["check", "-p", &pid, ":hostile*"]);
    shown(&["detach", &pid]);
    shown(&["mark", "-p", &pid, "text"]);
    let trace = scratch.path().join("short");
    let words = [
        "record",
        "-o",
        text(&trace),
        "-p",
        &pid,
        "--duration",
        "10ms",
        "-e",
    ];
    for event in [
        ":hostile*",
        ":nothing*",
        ":plain not",
        &format!(":{work} {work}"),
    ] {
        shown(&[&words[..], &[event]].concat());
    }
    for wanted in [
        &[
            "-e",
            ":plain stack +0($arg1):string",
            "-e",
            "usdt::*:*",
            "-e",
            ":hostile*",
        ][..],
        &["--graph", ":plain +0($arg1):string", "--graph", ":hostile*"],
    ] {
        let trace = scratch.path().join(format!("{PATH} {}", wanted[0]));
        let recorder = Background::attach_with(&trace, running.pid, wanted);
        for _ in 0..3 {
            running.say("go");
            assert_eq!(running.line(), "called");
        }
        shown(&["mark", "-p", &pid, &hostile("marked with ESC1 and ESC2")]);
        shown(&[
            "mark",
            "-p",
            &pid,
            "--json",
            &hostile("marked with ESC1 and ESC2"),
        ]);
        recorder.end();
        reports(&trace, scratch.path());
    }
    let mut stat = target::command(&[
        "stat",
        "-p",
        &pid,
        "-e",
        ":plain count() by +0($arg1):string",
        "-e",
        ":hostile*",
    ]);
    let stat = stat
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("capriole starts");
    traces::until_recording(running.pid);
    running.say("go");
    assert_eq!(running.line(), "called");
    // SAFETY: sends a signal to a child of this test that has not been waited for.
    assert_eq!(unsafe { libc::kill(stat.id() as i32, libc::SIGINT) }, 0);
    let output = stat.wait_with_output().expect("it ends");
    assert_visible(&["stat"], &output);
    assert!(told(&output).contains("a text with"), "{}", told(&output));
    running.finish();
}

/// Checks all reports of a trace, both as recorded and with a forged description.
fn reports(trace: &Path, scratch: &Path) {
    let directory = text(trace);
    let description = trace.join("info/capriole.json");
    let whole = fs::read(&description).expect("a description");
    let mut document: Value = serde_json::from_slice(&whole).expect("JSON");
    let lie = hostile("a lie ESC1\nESC2\u{202e}");
    document["warnings"] = serde_json::json!([lie]);
    for event in document["events"].as_array_mut().expect("events") {
        let name = format!("{}{lie}", event["name"].as_str().expect("a name"));
        event["name"] = name.into();
        event["object"] = lie.clone().into();
    }
    let lying = serde_json::to_vec(&document).expect("JSON");
    let broken = format!("{{\"format_version\": 1, \"{lie}").replace('\n', " ");
    let strange = String::from_utf8_lossy(&whole).replace("\"tactic\"", &format!("{lie:?}"));
    let picture = scratch.join(format!("{PATH}.svg"));
    for (text, readable) in [
        (&whole[..], true),
        (&lying, true),
        (broken.as_bytes(), false),
        (strange.as_bytes(), false),
    ] {
        fs::write(&description, text).expect("a description");
        for words in [
            &["report", directory][..],
            &["report", directory, "--fields"],
            &["report", directory, "--summary"],
            &["report", directory, "--callers"],
            &["report", directory, "--graph"],
            &[
                "report",
                directory,
                "--flame",
                picture.to_str().expect("UTF-8"),
            ],
        ] {
            let said = shown(words);
            shown(&[words, &["--json"]].concat());
            if words.len() == 2 {
                assert_eq!(said.contains("plain"), readable, "{said}");
            }
        }
    }
    fs::write(&description, &whole).expect("a description");
}

/// Text that error messages quote.
#[test]
fn of_arguments_and_definitions() {
    let scratch = scratch();
    let evil = hostile("evilESC1 ESC2\u{202e}");
    let file = scratch.path().join(PATH);
    let definitions = text(&file);
    for line in [
        &format!("p:{evil} /bin/true:main"),
        &format!("p:name {evil}"),
        &format!("p:name /bin/true:main {evil}"),
        &format!("p:name /bin/true:main {evil}=%di:{evil}"),
        &evil,
        "latency(\x1b[7m",
    ] {
        fs::write(&file, format!("{line}\n")).expect("a file");
        shown(&["record", "-f", definitions, "--", "/bin/true"]);
        shown(&["stat", "-f", definitions, "--", "/bin/true"]);
        shown(&["record", "-e", line, "--", "/bin/true"]);
        shown(&["check", line, "/bin/true"]);
        shown(&["list", line, "/bin/true"]);
        shown(&["stat", "-e", line, "--", "/bin/true"]);
    }
    for words in [
        &[evil.as_str()][..],
        &["record", &format!("--{evil}")],
        &["record", "-p", &evil],
        &["record", "-e", ":main", "--", &evil],
        &[
            "record",
            "-e",
            ":main",
            "--duration",
            &evil,
            "--",
            "/bin/true",
        ],
        &[
            "record",
            "-e",
            ":main",
            "--buffer-size",
            &evil,
            "--",
            "/bin/true",
        ],
        &["report", &evil],
        &["report", "--fields", "--sort", &evil],
        &["list", &evil],
        &["check", &evil, &evil],
        &["detach", &evil],
        &["mark", "-p", &evil, "text"],
        &["stat", "-e", &evil, "-p", "1"],
        &["bench", &evil],
    ] {
        let output = capriole(words);
        assert_visible(words, &output);
        assert!(!output.status.success(), "{words:?} {}", told(&output));
    }
}
