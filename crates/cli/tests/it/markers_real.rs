//! Static markers of third-party programs: libstdc++'s for exceptions, and CPython's.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{calls, events, record, record_program, scratch, text};
use std::path::{Path, PathBuf};
use std::process::Command;

/// True if `capriole list` finds such a marker; otherwise prints that it is missing.
fn has(file: &Path, marker: &str) -> bool {
    let pattern = format!("usdt::{marker}");
    let found = capriole(&["list", &pattern, text(file)]).status.success();
    if !found {
        println!("skipped: {} has no marker {marker}", file.display());
    }
    found
}

/// Each exception is thrown and caught, or rethrown.
#[test]
fn exceptions_of_libstdcxx() {
    let Some(program) = build(Compiler::Gxx, "cxx_throw.cpp", &[]) else {
        return;
    };
    let linked = Command::new("ldd").arg(&program).output();
    let linked = linked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let library = linked.ok().and_then(|linked| {
        let line = linked.lines().find(|line| line.contains("libstdc++"))?;
        Some(PathBuf::from(line.split_whitespace().nth(2)?))
    });
    let Some(library) = library else {
        println!("skipped: ldd does not say where libstdc++ is");
        return;
    };
    if !has(&library, "libstdcxx:throw") {
        return;
    }
    let directory = scratch();
    let trace = directory.path().join("trace");
    let event = [
        "-e",
        "usdt:libstdc++:libstdcxx:* $arg*",
        "--buffer-size",
        "256M",
    ];
    let arguments = ["--threads", "2", "--seconds", "0.2"];
    let said = record_program(&trace, &event, &program, &arguments);
    assert!(
        said.lines().last().expect("a line").starts_with("ok "),
        "{said}"
    );
    let calls = calls(&trace);
    let (throw, rethrow) = (calls["libstdcxx:throw"], calls["libstdcxx:rethrow"]);
    assert!(throw > 100 && rethrow > 0, "{calls:?}");
    assert_eq!(calls["libstdcxx:catch"], throw + rethrow, "{calls:?}");
    // The thrown exception is the one that is caught: same object and type.
    let all = events(&trace);
    let mut thrown = None;
    let first = all[0]["tid"].clone();
    let of_thread = all.iter().filter(|event| event["tid"] == first);
    for event in of_thread.take(100) {
        let what = event["arguments"].clone();
        if event["event"] == "libstdcxx:catch" {
            assert_eq!(Some(what["arg2"].clone()), thrown, "{event}");
        } else {
            thrown = Some(what["arg2"].clone());
        }
    }
}

const SCRIPT: &str = "\
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
print(fib(10))
";

/// CPython checks a semaphore before each of its markers.
#[test]
fn functions_of_python() {
    let python = Path::new("/usr/bin/python3");
    let Ok(python) = python.canonicalize() else {
        println!("skipped: there is no {}", python.display());
        return;
    };
    if !has(&python, "python:function__return") {
        return;
    }
    let directory = scratch();
    let trace = directory.path().join("trace");
    let script = directory.path().join("fib.py");
    std::fs::write(&script, SCRIPT).expect("a file");
    let event = "usdt::python:function__return file=$arg1:string name=$arg2:string line=$arg3 \
                 if name == \"fib\"";
    let said = record_program(&trace, &["-e", event], &python, &["-S", text(&script)]);
    assert_eq!(said, "55\n");
    let all = events(&trace);
    // fib(10) makes 177 calls.
    assert_eq!(all.len(), 177);
    for event in &all {
        let fields = &event["arguments"];
        assert_eq!(fields["file"], text(&script));
        assert_eq!(fields["line"], 2);
    }
    // The counts are the same.
    let output = capriole(&[
        "stat",
        "--json",
        "-e",
        "usdt::python:function__return count() by $arg2:string",
        "--",
        text(&python),
        "-S",
        text(&script),
    ]);
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = shown
        .lines()
        .find(|line| line.starts_with('{'))
        .expect("JSON");
    let stat: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let groups = stat["groups"].as_array().expect("a list").iter();
    let fib: Vec<String> = groups
        .map(ToString::to_string)
        .filter(|group| group.contains("\"fib\""))
        .collect();
    assert!(fib.len() == 1 && fib[0].contains("177"), "{fib:?}");
    // The same together with all of its other markers.
    let output = record(
        &trace,
        &[
            "-e",
            "usdt::python:*",
            "--",
            text(&python),
            "-S",
            text(&script),
        ],
    );
    assert!(output.status.success(), "{}", told(&output));
    let calls = calls(&trace);
    assert!(calls["python:function__return"] > 177, "{calls:?}");
    assert!(calls.contains_key("python:audit"), "{calls:?}");
}
