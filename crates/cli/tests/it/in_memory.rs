//! Libraries that have no file: their names, as messages tell them, can be written.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, told};
use crate::traces::{Background, calls, scratch, text};
use std::path::PathBuf;

/// Returns the program, and the library that it loads from memory.
fn built() -> Option<(PathBuf, PathBuf)> {
    let library = build(Compiler::Gcc, "probes_plugin.c", &["-shared", "-fPIC"]);
    build(Compiler::Gcc, "in_memory.c", &[]).zip(library)
}

#[test]
fn they_are_named_as_messages_name_them() {
    let Some((program, library)) = built() else {
        return;
    };
    for (name, shown) in [
        ("orders-plugin", "memfd:orders-plugin"),
        ("the plugin", "memfd:the plugin"),
        // As far as an event can have it.
        ("orders:plugin", "memfd:orders"),
        ("plugin*", "memfd:plugin"),
        ("from/a/directory", "directory"),
    ] {
        let mut running = Running::start(&program, &[text(&library), name]);
        let pid = running.pid.to_string();
        let said = told(&capriole(&["check", "nothing:plugged", "-p", &pid]));
        let suggested = shown.to_owned();
        assert!(said.contains(&format!("`{suggested}`")), "{said}");
        let said = told(&capriole(&["check", ":plugged", "-p", &pid]));
        assert!(
            said.contains(&format!("write {suggested}:plugged")),
            "{said}"
        );
        for (event, field) in [
            (format!("{suggested}:plugged n=$arg1:s64"), "plugged"),
            (
                format!("r {suggested}:plugged ret=$retval:s64"),
                "plugged__return",
            ),
        ] {
            let directory = scratch();
            let trace = directory.path().join("t");
            let recorder = Background::attach(&trace, running.pid, &[&event]);
            running.say("call");
            assert_eq!(running.line(), "called");
            recorder.end();
            assert_eq!(calls(&trace)[field], 10, "{event}");
        }
        running.finish();
    }
}

/// The path is that of `check` and JSON; several libraries of one name are refused.
#[test]
fn they_are_named_by_their_paths() {
    let Some((program, library)) = built() else {
        return;
    };
    let check = |event: &str, pid: u32| capriole(&["check", event, "-p", &pid.to_string()]);
    let running = Running::start(&program, &[text(&library), "one/a", "other"]);
    for path in ["/memfd:one/a", "memfd:one/a", "/memfd:other"] {
        let said = told(&check(&format!("{path}:plugged"), running.pid));
        let place = format!("plugged in /{},", path.trim_start_matches('/'));
        assert!(said.contains(&place), "{said}");
    }
    running.finish();
    let running = Running::start(&program, &[text(&library), "same", "same"]);
    for name in ["memfd:same", "/memfd:same"] {
        let output = check(&format!("{name}:plugged"), running.pid);
        let said = told(&output);
        assert!(!output.status.success(), "{said}");
        let reason = format!("2 libraries in memory have the name of `{name}`");
        assert!(said.contains(&reason), "{said}");
    }
    running.finish();
}
