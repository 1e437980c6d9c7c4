//! Programs that record themselves into traces.

use super::{command, output, program, run};
use crate::traces::{calls, events, scratch, summary};
use capriole_testkit::files::text;
use capriole_testkit::waiting::until;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

fn is_complete(trace: &Path) -> bool {
    let json = std::fs::read_to_string(trace.join("info/capriole.json")).unwrap_or_default();
    let document: Option<serde_json::Value> = serde_json::from_str(&json).ok();
    document.is_some_and(|document| document["complete"] == true)
}

#[test]
fn a_trace_has_what_is_recorded_meanwhile() {
    let Some(program) = program("probes_trace.c") else {
        return;
    };
    let directory = scratch();
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
    // One of them by a relative path.
    let mut command = command(&program, &["parts", "first", text(&second)]);
    let output = output(command.current_dir(directory.path()));
    super::well(&output);
    let counted = |trace: &Path| {
        let calls = calls(trace);
        ["work", "other", "done"].map(|name| calls.get(name).copied().unwrap_or(0))
    };
    assert_eq!(counted(&first), [2000, 1000, 2000]);
    assert_eq!(counted(&second), [1000, 0, 1000]);
    for trace in [&first, &second] {
        assert!(is_complete(trace), "{trace:?}");
        let summary = summary(trace);
        assert_eq!(summary["lost_events"], 0, "{summary}");
        for event in events(trace) {
            let number = event["arguments"]["n"].as_u64();
            let wanted = match trace == &first {
                true => 10_000..30_000,
                false => 40_000..50_000,
            };
            assert!(number.is_some_and(|n| wanted.contains(&n)), "{event}");
            assert_ne!(event["tid"], 0, "{event}");
        }
    }
}

#[test]
fn a_trace_is_completed_however_the_program_ends() {
    let Some(program) = program("probes_trace.c") else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("finish");
    run(&program, &["finish", text(&trace)]);
    assert_eq!(calls(&trace).get("work"), Some(&1000));
    assert!(is_complete(&trace));
    for how in ["9", "15", "6", "11", "exit", "_exit", "exec"] {
        let trace = directory.path().join(how);
        let output = output(&mut command(&program, &["die", text(&trace), how]));
        let died = output.status.signal().map(|signal| signal.to_string());
        assert_eq!(
            died.unwrap_or("0".to_owned()),
            match how.parse::<i32>() {
                Ok(_) => how,
                Err(_) => "0",
            }
        );
        until("the trace is complete", || is_complete(&trace));
        assert_eq!(calls(&trace).get("work"), Some(&1000), "{how}");
    }
}

fn warnings(trace: &Path) -> String {
    summary(trace)["warnings"].to_string()
}

#[test]
fn what_is_missing_is_said() {
    let Some(program) = program("probes_trace.c") else {
        return;
    };
    let directory = scratch();
    let [own, child] = ["own", "child"].map(|name| directory.path().join(name));
    run(&program, &["fork", text(&own), text(&child)]);
    assert_eq!(calls(&own).get("work"), Some(&2000));
    assert_eq!(calls(&child).get("other"), Some(&1000));
    assert_eq!(
        (warnings(&own), warnings(&child)),
        ("[]".to_owned(), "[]".to_owned())
    );
    for (how, said) in [
        ("closes", "closed the connection"),
        ("daemon", "that the program has forked went on"),
    ] {
        let trace = directory.path().join(how);
        run(&program, &[how, text(&trace)]);
        until("the trace is complete", || is_complete(&trace));
        assert!(warnings(&trace).contains(said), "{}", warnings(&trace));
    }
}

#[test]
fn what_cannot_be_recorded_is_an_error() {
    let Some(program) = program("probes_trace.c") else {
        return;
    };
    let directory = scratch();
    let file = directory.path().join("file");
    std::fs::write(&file, "something else").expect("a file");
    let trace = directory.path().join("trace");
    run(&program, &["errors", text(&trace), text(&file)]);
    let kept = std::fs::read_to_string(&file).expect("the file");
    assert_eq!(kept, "something else");
}
