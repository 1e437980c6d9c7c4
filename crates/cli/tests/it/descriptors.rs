//! File descriptors are shown with what they were open for, and never with something else.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{Background, events, record_program, recorder, scratch, text};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const EVENT: &str = ":use fd=$arg1:fd truth=$arg2:string";

/// Descriptors of each round that stay open, and one that is for something else in each round.
const STABLE: usize = 3;
const CALLS: usize = STABLE + 5;

/// The program, at work.
struct Working {
    child: Child,
    input: std::process::ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Working {
    fn start(program: &Path, directory: &Path) -> Working {
        let mut command = Command::new(program);
        let command = command.arg(directory).arg("0");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let input = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut working = Working {
            child,
            input,
            lines,
        };
        working.rounds(2);
        working
    }

    /// Has it do this many rounds.
    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.input.write_all(b"\n").expect("it reads");
            self.lines.next().expect("a line").expect("text");
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program, and a directory for its files, whose name has a `>`.
fn prepared(scratch: &Path) -> Option<(PathBuf, PathBuf)> {
    let program = build(Compiler::Gcc, "descriptors.c", &[])?;
    let directory = scratch.join("a>b").to_owned();
    std::fs::create_dir(&directory).expect("it is new");
    let directory = directory.canonicalize().expect("it is there");
    Some((program, directory))
}

/// Checks what the events show against the truth. Returns the number of events with a name that is
/// certain.
fn checked(all: &[Value]) -> usize {
    let mut certain = 0;
    for event in all {
        let truth = event["arguments"]["truth"].as_str().expect("a text");
        match &event["arguments"]["fd"] {
            Value::Number(_) => {}
            Value::String(shown) if shown.ends_with('?') => {}
            Value::String(shown) => {
                certain += 1;
                let (number, name) = shown.split_once('<').expect("a name");
                number.parse::<i32>().expect("a number");
                assert_eq!(name.strip_suffix('>'), Some(truth), "{event}");
            }
            other => panic!("{other}"),
        }
    }
    certain
}

/// True for calls with a descriptor that stays open.
fn is_stable(event: &Value) -> bool {
    let truth = event["arguments"]["truth"].as_str().expect("a text");
    !truth.ends_with("(deleted)")
}

#[test]
fn names_are_certain_between_two_looks() {
    let scratch = scratch();
    let Some((program, directory)) = prepared(scratch.path()) else {
        return;
    };
    let mut working = Working::start(&program, &directory);
    let trace = scratch.path().join("t");
    let background =
        Background::attach_with(&trace, working.pid(), &["--graph", EVENT, "-e", EVENT]);
    working.rounds(12);
    background.end();
    let all = events(&trace);
    let all: Vec<Value> = all
        .into_iter()
        .filter(|event| event["event"] == "use")
        .collect();
    assert!(all.len() >= 10 * CALLS, "{all:?}");
    checked(&all);
    // The recorder looked before the first event and after the last one.
    let stable: Vec<Value> = all.into_iter().filter(is_stable).collect();
    assert_eq!(checked(&stable), stable.len(), "{stable:?}");
    let peers = |event: &&Value| event["arguments"]["truth"].to_string().contains("->");
    assert!(stable.iter().any(|event| peers(&event)));
    for report in ["report", "report --graph"] {
        let words: Vec<&str> = report.split(' ').chain([text(&trace)]).collect();
        let said = String::from_utf8(capriole(&words).stdout).expect("UTF-8");
        let path = directory.to_string_lossy().replace('>', "\\>");
        for wanted in [
            format!("</{}/stable>", path.trim_start_matches('/')),
            format!("<unix:{path}/socket>"),
        ] {
            assert!(said.contains(&wanted), "{wanted}: {said}");
        }
    }
}

#[test]
fn a_program_and_its_child_have_their_own_descriptors() {
    let scratch = scratch();
    let Some((program, directory)) = prepared(scratch.path()) else {
        return;
    };
    let trace = scratch.path().join("t");
    let words = [text(&directory), "40", "fork"];
    record_program(&trace, &["-e", EVENT], &program, &words);
    let all = events(&trace);
    assert_eq!(all.len(), (40 + 35) * CALLS);
    checked(&all);
    // The program's own descriptors that stay open have no other name, however few looks there were.
    let own = all.iter().filter(|event| event["tid"] == all[0]["tid"]);
    for event in own.filter(|event| is_stable(event)) {
        if let Some(shown) = event["arguments"]["fd"].as_str() {
            let truth = event["arguments"]["truth"].as_str().expect("a text");
            let shown = shown.trim_end_matches('?');
            assert!(shown.ends_with(&format!("<{truth}>")), "{event}");
        }
    }
}

#[test]
fn keys_have_names() {
    let scratch = scratch();
    let Some((program, directory)) = prepared(scratch.path()) else {
        return;
    };
    let mut working = Working::start(&program, &directory);
    let mut command = crate::target::own();
    let pid = working.pid().to_string();
    let event = ":use count() by fd=$arg1:fd";
    command.args(["stat", "--json", "-p", &pid, "-e", event]);
    let background = Background::of(command, working.pid());
    working.rounds(12);
    let counts = background.end();
    let rows = counts["groups"][0]["rows"].as_array().expect("rows");
    let named = rows.iter().filter_map(|row| row["keys"]["fd"].as_str());
    let mut named: Vec<&str> = named.collect();
    named.sort_unstable();
    assert_eq!(named.len(), STABLE, "{counts}");
    let stable = format!("<{}/stable>", directory.display());
    let local = format!("<unix:{}/socket>", directory.display());
    assert!(named.iter().any(|name| name.ends_with(&stable)), "{counts}");
    assert!(named.iter().any(|name| name.ends_with(&local)), "{counts}");
    // One number was for many files.
    let numbers = rows.iter().filter(|row| row["keys"]["fd"].is_number());
    assert_eq!(numbers.count(), 1, "{counts}");
}

#[test]
fn filters_compare_numbers_and_traces_have_them() {
    let scratch = scratch();
    let Some((program, directory)) = prepared(scratch.path()) else {
        return;
    };
    let trace = scratch.path().join("t");
    let event = format!("{EVENT} if fd < 0");
    let words = [text(&directory), "2"];
    record_program(&trace, &["-e", &event], &program, &words);
    assert!(events(&trace).is_empty());
    let sum = ":use sum(fd=$arg1:fd)";
    let output = recorder(&trace, &["-e", sum, "--", text(&program)]).output();
    let refused = told(&output.expect("it starts"));
    assert!(refused.contains("can be a key: by fd"), "{refused}");
}
