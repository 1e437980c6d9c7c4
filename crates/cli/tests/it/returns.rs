//! Events at returns: the recorded values are those that the program itself reports as
//! returned, however the functions are left, and they match the kernel's own return probes.

use crate::programs::{Compiler, build, build_go};
use crate::target::{
    Running, assert_failed, assert_no_session, assert_text_is_the_files, capriole, told,
};
use crate::traces::{Background, events, pairs, record, record_program, scratch, summary, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returned values by function name, in order; `None` for a jump to another function.
type Returns = BTreeMap<String, Vec<Option<i128>>>;

/// Parses the program's output: "FUNCTION VALUE" or "FUNCTION tail".
fn said(output: &str) -> Returns {
    let mut returns = Returns::new();
    for (name, value) in pairs(output) {
        let value = (value != "tail").then(|| value.parse().expect("a number"));
        returns.entry(name.to_owned()).or_default().push(value);
    }
    assert!(
        output.contains("\nok ") || output.starts_with("ok "),
        "{output}"
    );
    returns
}

/// Returns the value of an event's field `ret`.
fn value(event: &Value) -> Option<i128> {
    let value = event["arguments"].get("ret")?;
    if let Some(number) = value.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = value.as_u64() {
        return Some(number.into());
    }
    let text = value.as_str().unwrap_or_else(|| panic!("{event}"));
    // Numbers above 2^53 are strings.
    Some(match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).expect("hexadecimal"),
        // `enum mood` of the program
        None if text == "SAD" => -3,
        None if text == "GLAD" => 4,
        None => text.parse().expect("a number"),
    })
}

/// Returns the values recorded by events `r :FUNCTION ret=$retval`.
fn seen(trace: &Path) -> Returns {
    let whole = summary(trace);
    for nothing in ["lost_events", "lost_packets", "damages"] {
        assert_eq!(whole[nothing], 0, "{nothing}: {whole}");
    }
    let mut returns = Returns::new();
    for event in events(trace) {
        let name = event["event"].as_str().expect("a name");
        let (name, is_tail) = match name.strip_suffix("__return") {
            Some(name) => (name, false),
            None => (name.strip_suffix("__tail").expect("an exit"), true),
        };
        let value = value(&event);
        assert_eq!(value.is_none(), is_tail, "{event}");
        returns.entry(name.to_owned()).or_default().push(value);
    }
    returns
}

/// Returns one event for each of these functions.
fn return_events(functions: &[&str]) -> Vec<String> {
    // Hand-written assembly has no type information.
    let typed = |name: &str| match name {
        "taking" | "repeated" | "sharing" | "shared" => ":s64",
        _ => "",
    };
    let event = |name: &&str| {
        let event = format!("r :{name} ret=$retval{}", typed(name));
        ["-e".to_owned(), event]
    };
    functions.iter().flat_map(event).collect()
}

/// Records a scenario of `returns.c`. Returns the program's values and the recorded ones.
fn scenario(name: &str, functions: &[&str], flags: &[&str]) -> Option<(Returns, Returns)> {
    let program = build(Compiler::Gcc, "returns.c", flags)?;
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut arguments = return_events(functions);
    arguments.extend(["--buffer-size".to_owned(), "32M".to_owned()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = record_program(&trace, &arguments, &program, &[name]);
    Some((said(&output), seen(&trace)))
}

/// Sorts each function's values, to compare them in any order.
fn sorted(mut returns: Returns) -> Returns {
    returns
        .values_mut()
        .for_each(|values| values.sort_unstable());
    returns
}

/// Checks that the same calls returned the same values in the same order.
fn agree(name: &str, functions: &[&str]) {
    for flags in [&[][..], &["-O0"], &["-fcf-protection=full", "-fno-plt"]] {
        let Some((said, seen)) = scenario(name, functions, flags) else {
            return;
        };
        // Without optimisation no call is a jump.
        if name == "tail" && flags == ["-O0"] {
            assert!(seen.values().flatten().all(Option::is_some), "{seen:?}");
            continue;
        }
        assert_eq!(
            said.keys().collect::<Vec<_>>(),
            seen.keys().collect::<Vec<_>>()
        );
        for (function, values) in &said {
            assert_eq!(
                values.len(),
                seen[function].len(),
                "{name} {flags:?}: {function}"
            );
            assert!(*values == seen[function], "{name} {flags:?}: {function}");
        }
    }
}

#[test]
fn deep_recursion() {
    agree("deep", &["deep"]);
}

#[test]
fn results_of_every_size_by_every_exit() {
    let functions = [
        "small", "middle", "whole", "wide", "truth", "feeling", "text",
    ];
    let Some((said, seen)) = scenario("sizes", &functions, &[]) else {
        return;
    };
    for function in functions {
        assert_eq!(said[function], seen[function], "{function}");
    }
    // One function returns a structure through memory of the caller, and one returns nothing.
    let others = ["structure", "nothing"];
    let Some((said, seen)) = scenario("sizes", &others, &[]) else {
        return;
    };
    for function in others {
        assert_eq!(said[function].len(), seen[function].len(), "{function}");
    }
    assert!(
        seen["structure"]
            .iter()
            .all(|at| at.is_some_and(|at| at > 1 << 32))
    );
}

#[test]
fn jumps_to_other_functions_have_no_result() {
    agree("tail", &["even", "odd"]);
}

#[test]
fn frames_that_longjmp_leaves_do_not_return() {
    agree("jumps", &["jumper"]);
}

#[test]
fn stacks_of_its_own() {
    agree("coroutines", &["yielding", "worker"]);
}

#[test]
fn signal_handlers_in_the_middle() {
    agree("signals", &["raising", "whole"]);
}

#[test]
fn cancelled_threads_do_not_return() {
    let Some((said, seen)) = scenario("cancel", &["cancelled", "cleaning"], &[]) else {
        return;
    };
    assert_eq!(sorted(said), sorted(seen.clone()));
    assert_eq!(seen["cleaning"].len(), 10);
}

#[test]
fn both_processes_return_from_a_fork() {
    let Some((said, seen)) = scenario("fork", &["forking"], &[]) else {
        return;
    };
    assert_eq!(sorted(said), sorted(seen));
}

/// `ret $16`, `rep ret`, and a return that belongs to two functions: each function has it.
#[test]
fn returns_written_by_hand() {
    let Some((mut said, mut seen)) = scenario(
        "assembler",
        &["taking", "repeated", "sharing", "shared"],
        &[],
    ) else {
        return;
    };
    assert_eq!(said.remove("taking"), seen.remove("taking"));
    assert_eq!(said.remove("repeated"), seen.remove("repeated"));
    let (sharing, shared) = (&said["sharing"], &said["shared"]);
    let both: Vec<_> = sharing
        .iter()
        .zip(shared)
        .flat_map(|(a, b)| [*a, *b])
        .collect();
    assert_eq!(seen["sharing"], both);
    assert_eq!(seen["shared"], both);
}

#[test]
fn functions_that_are_active_when_the_probes_come() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    // Its first line is printed from within the functions.
    let mut running = Running::start(&program, &["active"]);
    let directory = scratch();
    let trace = directory.path().join("t");
    let events = ["r :active ret=$retval", ":active"];
    let recording = Background::attach(&trace, running.pid, &events);
    running.say("go");
    let output = running.finished();
    let told = recording.ended_by_itself();
    let returned = [1, 11, 21, 31, 41, 51].map(Some);
    assert_eq!(said(&output)["active"], returned, "{told}");
    // Six returns of calls entered before attach.
    assert_eq!(seen(&trace)["active"], returned, "{told}");
}

#[test]
fn exceptions_through_probed_frames() {
    for flags in [&[][..], &["-O0"]] {
        let Some(program) = build(Compiler::Gxx, "returns_cxx.cpp", flags) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("t");
        let arguments = return_events(&["leaf", "descend"]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = record_program(&trace, &arguments, &program, &[]);
        assert_eq!(said(&output), seen(&trace), "{flags:?}");
    }
}

fn go_program() -> Option<PathBuf> {
    build_go("go_returns.go", "go_returns")
}

/// Stacks that grow are copied elsewhere, in the middle of the functions.
#[test]
fn go() {
    let Some(program) = go_program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut arguments = vec!["--buffer-size", "32M"];
    for function in ["main.grow", "main.broken"] {
        arguments.push("-e");
        arguments.push(match function {
            "main.grow" => "r :main.grow ret=$retval:s64",
            _ => "r :main.broken ret=$retval:s64",
        });
    }
    let output = record_program(&trace, &arguments, &program, &[]);
    assert!(output.ends_with("ok go_returns\n"), "{output}");
    let seen = seen(&trace);
    for line in output.lines().filter(|line| line.starts_with("main.")) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<i128>().expect("a number");
        let values = &seen[words[0]];
        assert_eq!(values.len() as i128, number(1), "{line}");
        assert_eq!(values.iter().flatten().sum::<i128>(), number(2), "{line}");
    }
}

fn failure(output: &Output) -> String {
    assert_failed(output);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_cannot_be_known_at_a_return_is_refused() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let refused = |event: &str| {
        let output = record(&trace, &["-e", event, "--", text(&program), "never"]);
        failure(&output)
    };
    for (event, reason) in [
        (
            "r :never",
            "the returns of `never` cannot be probed: it never returns",
        ),
        (
            "r :whole $arg*",
            "a function's arguments are kept for its return one by one: write $entry:NAME",
        ),
        ("r :whole x", "variables are not known at a return"),
        ("r :whole+4", "retprobe address must be a function entry"),
    ] {
        let said = refused(event);
        assert!(said.contains(reason), "{event}: {said}");
    }
    // With a pattern it is left out.
    let output = record(
        &trace,
        &["--json", "-e", "r :n*", "--", text(&program), "never"],
    );
    assert!(output.status.success(), "{}", told(&output));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let sites = said["sites"].as_array().expect("a list");
    let never = sites.iter().find(|site| site["symbol"] == "never");
    let reason = never.expect("it matches")["left_out"].as_str();
    assert!(
        reason.is_some_and(|reason| reason.contains("never returns")),
        "{said}"
    );
    assert!(
        sites
            .iter()
            .any(|s| s["symbol"] == "nothing" && s["exit"] == "return")
    );
}

#[test]
fn exits_are_listed_and_checked() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let output = capriole(&["list", "--json", "r :even", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let exit = |kind: &str| listed.iter().filter(|s| s["exit"] == kind).count();
    assert!(exit("return") > 0 && exit("tail call") > 0, "{listed:?}");
    assert!(listed.iter().all(|s| s["tactic"] != "none"), "{listed:?}");
    let output = capriole(&["list", "r :even", text(&program)]);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("even__return at even+0x"), "{table}");
    assert!(table.contains("even__tail at even+0x"), "{table}");
    let output = capriole(&["check", "r :whole $retval", text(&program)]);
    let checked = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", told(&output));
    assert!(
        checked.starts_with("whole__return at whole+0x"),
        "{checked}"
    );
    assert!(checked.contains(": ret"), "{checked}");
}

#[test]
fn returns_are_counted_and_added_up() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let events = [
        "r :small sum($retval) min($retval)",
        "r :small",
        "r :whole by r=$retval if r < -2100000",
    ];
    let mut arguments = vec!["stat", "--json"];
    for event in events {
        arguments.extend(["-e", event]);
    }
    arguments.extend(["--", text(&program), "sizes"]);
    let output = capriole(&arguments);
    assert!(output.status.success(), "{}", told(&output));
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let (printed, json) = lines
        .trim_end()
        .rsplit_once('\n')
        .unwrap_or(("", lines.trim_end()));
    let (printed, json) = match json.starts_with('{') {
        true => (printed.to_owned(), json.to_owned()),
        false => {
            let at = lines.find("{\"pid\"").expect("JSON");
            let end = lines[at..].find('\n').map_or(lines.len(), |end| at + end);
            (
                lines[..at].to_owned() + &lines[end..],
                lines[at..end].to_owned(),
            )
        }
    };
    let values: Vec<i128> = said(&printed)["small"].iter().flatten().copied().collect();
    let told: Value = serde_json::from_str(&json).expect("JSON");
    let rows = |group: usize| {
        told["groups"][group]["rows"]
            .as_array()
            .expect("rows")
            .clone()
    };
    let row = &rows(0)[0];
    assert_eq!(row["calls"], 24, "{told}");
    let measure = |index: usize| row["measures"][index]["value"].as_i64().map(i128::from);
    assert_eq!(measure(0), Some(values.iter().sum()), "{told}");
    assert_eq!(measure(1), values.iter().min().copied(), "{told}");
    let counted = told["events"].as_array().expect("a list");
    let small = counted.iter().filter(|event| event["symbol"] == "small");
    assert!(
        small.clone().count() == 2 && small.clone().all(|event| event["calls"] == 24),
        "{told}"
    );
    let mut keys: Vec<i64> = rows(1)
        .iter()
        .map(|row| row["keys"]["r"].as_i64().expect("a number"))
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, [-2_300_000, -2_200_000], "{told}");
}

/// Probes the entry and the exits of every function of a program, which afterwards is as
/// before.
#[test]
fn entries_and_exits_of_all_functions() {
    let Some(program) = build(Compiler::Gcc, "returns.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["active"]);
    let directory = scratch();
    let trace = directory.path().join("t");
    let process = running.process();
    let events_asked = [":*", "r :*", "r libc:f* $retval"];
    let recording = Background::attach(&trace, running.pid, &events_asked);
    let told = recording.end();
    let sites = told["sites"].as_array().expect("a list");
    let exits = sites.iter().filter(|s| s["exit"].is_string());
    let probed = exits.filter(|s| s["state"] != "not probed").count();
    assert!(probed > 50, "{probed} exits: {told}");
    assert_no_session(&process);
    assert_text_is_the_files(&process, false);
    running.say("go");
    assert_eq!(said(&running.finished())["active"].len(), 6);
    // The trace tells which events belong to one call.
    let document = fs::read(trace.join("info/capriole.json")).expect("a file");
    let document: Value = serde_json::from_slice(&document).expect("JSON");
    let infos = document["events"].as_array().expect("a list");
    let event = |name: &str| {
        let mut found = infos.iter().filter(|e| e["name"] == name);
        let event = found.next().unwrap_or_else(|| panic!("{name}: {document}"));
        assert!(found.next().is_none(), "{name} is there twice");
        event
    };
    let (entry, exit) = (event("whole"), event("whole__return"));
    assert_eq!(
        (&entry["role"], &exit["role"]),
        (&"entry".into(), &"return".into())
    );
    assert_eq!(
        (&entry["call"], &exit["call"]),
        (&entry["id"], &entry["id"])
    );
    assert_eq!(event("even__tail")["role"], "tail_call");
    assert_eq!(event("even__tail")["call"], event("even")["id"]);
}

/// The kernel's own return probes, which write to the stack, on the same program.
#[test]
fn returns_are_those_that_the_kernel_sees() {
    const TRACEFS: &str = "/sys/kernel/tracing";
    let functions = [
        "small", "middle", "whole", "wide", "truth", "feeling", "text",
    ];
    let Some(program) = build(Compiler::Gcc, "returns.c", &["-no-pie"]) else {
        return;
    };
    let group = format!("capriole_returns_{}", std::process::id());
    let define = |line: &str| {
        let path = Path::new(TRACEFS).join("uprobe_events");
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())
    };
    let instance = Path::new(TRACEFS).join("instances").join(&group);
    if let Err(error) = fs::create_dir(&instance) {
        println!("skipped: {}: {error}", instance.display());
        return;
    }
    let enable = instance.join("events").join(&group).join("enable");
    let listing = Command::new("nm").arg(&program).output();
    let listing = listing.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let listing = listing.unwrap_or_default();
    let mut theirs = Returns::new();
    for function in functions {
        let symbol = listing
            .lines()
            .find(|line| line.ends_with(&format!(" T {function}")));
        let Some(address) = symbol.and_then(|line| line.split(' ').next()) else {
            println!("skipped: nm does not tell where functions are");
            let _ = fs::remove_dir(&instance);
            return;
        };
        // The linker's layout of a program at a fixed address.
        let offset = u64::from_str_radix(address, 16).expect("hexadecimal") - 0x40_0000;
        let kind = match function {
            "small" => "s8",
            "middle" => "u16",
            "whole" | "feeling" => "s32",
            "truth" => "u8",
            _ => "u64",
        };
        let path = program.display();
        if let Err(error) = define(&format!(
            "r:{group}/{function} {path}:{offset:#x} ret=$retval:{kind}"
        )) {
            println!("skipped: this kernel takes no return probe: {error}");
            let _ = fs::remove_dir(&instance);
            return;
        }
        theirs.insert(function.to_owned(), Vec::new());
    }
    fs::write(&enable, "1").expect("the kernel's probes are on");
    let output = Command::new(&program)
        .arg("sizes")
        .output()
        .expect("it runs");
    fs::write(&enable, "0").expect("they are off");
    let lines = fs::read_to_string(instance.join("trace")).expect("the kernel's trace");
    let _ = fs::remove_dir(&instance);
    let _ = define(&format!("-:{group}/"));
    assert!(output.status.success());
    for line in lines.lines() {
        for (function, values) in &mut theirs {
            if line.contains(&format!(": {function}: ("))
                && let Some((_, value)) = line.split_once("ret=")
            {
                values.push(Some(value.trim().parse().expect("a number")));
            }
        }
    }
    let Some((_, ours)) = scenario("sizes", &functions, &["-no-pie"]) else {
        return;
    };
    assert_eq!(theirs, ours);
    assert!(ours.values().all(|values| values.len() == 24));
}
