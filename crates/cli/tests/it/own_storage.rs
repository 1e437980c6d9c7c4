//! Programs whose threads have thread-local storage of their own making: nothing is written
//! there, and its contents are not misinterpreted.

use crate::traces;

use crate::programs::{Compiler, build};
use crate::target::*;
use serde_json::json;
use traces::{counted, counted_and_told, recorder, scratch};

/// Probes are removed before the program sets a thread pointer by a system call whose number is not in its code.
#[test]
fn probes_are_out_before_a_thread_pointer_is_set() {
    let Some(program) = build(Compiler::Gcc, "own_storage_late.c", &[]) else {
        return;
    };
    for how in ["arch_prctl", "clone", "clone3", "fork", "none"] {
        for event in [":work n=$arg2", ":work n=$arg2 text=+0($arg1):string", ":*"] {
            let directory = scratch();
            let trace = directory.path().join("trace");
            let mut command = recorder(&trace, &["--json", "-e", event, "--"]);
            let output = command.arg(&program).arg(how).output();
            let output = output.expect("capriole starts");
            assert!(output.status.success(), "{how} {event}: {}", told(&output));
            let (counted, json) = counted_and_told(&output);
            assert_eq!(counted, 40_000, "{how} {event}");
            let (ended, calls) = match how {
                "fork" | "none" => ("program ended", 40_000),
                _ => ("thread pointer", 20_000),
            };
            assert_eq!(json["ended"], ended, "{how} {event}: {json}");
            assert!(json["events"].as_u64() >= Some(calls), "{how}: {json}");
        }
    }
}

/// Where a call that may set a thread pointer has no place for a guard, nothing is read at thread pointers.
#[test]
fn a_call_without_room_for_a_guard_leaves_storage_as_it_is() {
    let Some(program) = build(Compiler::Gcc, "own_storage_late.c", &["-DLOADED"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let mut command = recorder(&trace, &["--json", "-e", ":work n=$arg2", "--"]);
    let output = command.arg(&program).arg("loaded").output();
    let output = output.expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let (counted, json) = counted_and_told(&output);
    assert_eq!(counted, 40_000);
    assert_eq!(json["ended"], "program ended", "{json}");
    assert_eq!(json["events"], 40_000, "{json}");
    assert_eq!(json["thread_ids"], false, "{json}");
}

#[test]
fn storage_of_its_own_stays_as_it_is() {
    let Some(program) = build(Compiler::Gcc, "own_storage.c", &[]) else {
        return;
    };
    for how in ["clone", "raw", "arch_prctl", "wrfsbase"] {
        for event in [":work n=$arg2", ":work n=$arg2 text=+0($arg1):string", ":*"] {
            let directory = scratch();
            let trace = directory.path().join("trace");
            let mut command = recorder(&trace, &["-e", event, "--"]);
            let output = command.arg(&program).arg(how).output();
            let output = output.expect("capriole starts");
            assert!(output.status.success(), "{how} {event}: {}", told(&output));
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(counted(&said), 40_000, "{how} {event}");
            let why = "may give threads thread pointers of its own";
            assert!(
                told(&output).contains(why),
                "{how} {event}: {}",
                told(&output)
            );
            let summary = traces::summary(&trace);
            assert!(
                summary["events"].as_u64() >= Some(40_000),
                "{how} {event}: {summary}"
            );
        }
    }
}

/// In stripped code, too, bytes that look like flags of `clone` by chance are told from an instruction.
#[test]
fn a_constant_is_not_taken_for_flags() {
    for flags in [&["-s", "-rdynamic"][..], &["-rdynamic"]] {
        let Some(program) = build(Compiler::Gcc, "chance_flags.c", flags) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("trace");
        let mut command = recorder(&trace, &["--json", "-e", ":work", "--"]);
        let output = command.arg(&program).output().expect("capriole starts");
        let (counted, json) = counted_and_told(&output);
        assert_eq!((counted, &json["events"]), (100, &json!(100)), "{json}");
        assert_eq!(json["thread_ids"], true, "{flags:?}: {json}");
    }
}
