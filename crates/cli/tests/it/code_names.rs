//! Names of functions come from the files that a program has mapped, wherever they are, and not from others at
//! their paths: a matrix of what may have become of a file, and of the ways to a name.

use crate::programs::{Compiler, build, copied};
use crate::target::{capriole, command, told};
use crate::traces::{Background, events, record_program, scratch, text};
use capriole_testkit::target::Running;
use capriole_testkit::waiting::until;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The innermost functions of each hit.
const CHAIN: [&str; 5] = ["hit", "point", "third", "second", "first"];

fn program(flags: &[&str]) -> Option<PathBuf> {
    build(Compiler::Gcc, "stacked.c", flags)
}

/// A program with other functions, for paths at which nobody may look.
fn other() -> Option<PathBuf> {
    build(Compiler::Gcc, "callers.c", &["-O2"])
}

/// True if a command of the binutils, or another, can be run and succeeds.
fn done(words: &[&str]) -> bool {
    let status = Command::new(words[0]).args(&words[1..]).status();
    let done = status.is_ok_and(|status| status.success());
    if !done {
        println!("skipped: {words:?} cannot be run");
    }
    done
}

/// Runs a shell script in a mount namespace of its own, which executes the program in the end.
fn in_mount_namespace(script: &str, words: &[&Path]) -> Option<Running> {
    let can = ["unshare", "--mount", "true"];
    done(&can).then(|| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-ec", script, "sh"])
            .args(words);
        Running::of(&mut command)
    })
}

fn names<'a>(functions: &'a Value, key: &str) -> Vec<&'a str> {
    let Some(list) = functions.as_array() else {
        panic!("not a list: {functions}");
    };
    list.iter()
        .map(|function| function[key].as_str().unwrap_or("?"))
        .collect()
}

/// Checks the names of a program in its case `waiting`: of call stacks in records, as keys, in flame graphs,
/// and of a field of the type `symbol`; then again when the program is gone.
fn all_ways(situation: &str, program: Running) {
    all_ways_at(situation, program, ":hit");
}

/// As [`all_ways`], with `hit` written in another way.
fn all_ways_at(situation: &str, mut program: Running, hit: &str) {
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let event = format!("{hit} from=$stack0:symbol stack");
    let recorder = Background::attach(&trace, program.pid, &[&event]);
    program.say("go");
    program.line();
    recorder.until_recorded();
    recorder.end();
    let pid = program.pid.to_string();
    let event = format!("{hit} by stack");
    let stat = command(&["stat", "--json", "-e", &event, "-p", &pid]);
    let stat = Background::of(stat, program.pid);
    program.say("go");
    program.line();
    // It prints that line before the hit.
    program.say("done");
    program.line();
    let counted = stat.end();
    program.finish();
    let key = &counted["groups"][0]["rows"][0]["keys"]["stack"];
    assert!(key.is_array(), "{situation}: {counted}");
    assert_eq!(names(key, "symbol")[..5], CHAIN, "{situation}: {counted}");
    for _ in 0..2 {
        let event = &events(&trace)[0];
        assert!(event["stack"].is_array(), "{situation}: {event}");
        assert_eq!(
            names(&event["stack"], "symbol")[..5],
            CHAIN,
            "{situation}: {event}"
        );
        let from = event["arguments"]["from"].as_str().expect("a symbol");
        assert!(from.starts_with("point+0x"), "{situation}: {event}");
        let picture = scratch.path().join("flame.svg");
        let output = capriole(&["report", "--json", "--flame", text(&picture), text(&trace)]);
        assert!(output.status.success(), "{}", told(&output));
        let flame: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let functions = flame["stacks"][0]["functions"].as_array().expect("a list");
        let inner: Vec<&str> = functions
            .iter()
            .rev()
            .take(5)
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(inner, CHAIN, "{situation}: {flame}");
    }
}

#[test]
fn of_a_file_that_was_deleted_or_replaced() {
    let (Some(program), Some(other)) = (program(&[]), other()) else {
        return;
    };
    for build_id in [true, false] {
        for replaced in [false, true] {
            let scratch = scratch();
            let copy = scratch.path().join("stacked");
            copied(&program, &copy);
            let section = ".note.gnu.build-id";
            if !build_id && !done(&["objcopy", "--remove-section", section, text(&copy)]) {
                return;
            }
            let running = Running::start(&copy, &["waiting"]);
            fs::remove_file(&copy).expect("it was there");
            if replaced {
                fs::copy(&other, &copy).expect("a copy");
            }
            all_ways(
                &format!("build id {build_id}, replaced {replaced}"),
                running,
            );
        }
    }
}

/// At the path there is another program for everybody else.
#[test]
fn of_a_file_in_another_mount_namespace() {
    let (Some(program), Some(other)) = (program(&[]), other()) else {
        return;
    };
    let scratch = scratch();
    let path = scratch.path().join("stacked");
    fs::copy(&other, &path).expect("a copy");
    let script = "mount --bind \"$1\" \"$2\"; exec \"$2\" waiting";
    let Some(running) = in_mount_namespace(script, &[&program, &path]) else {
        return;
    };
    all_ways("bind mount", running);
}

#[test]
fn of_a_file_on_an_overlay() {
    let (Some(program), Some(other)) = (program(&[]), other()) else {
        return;
    };
    let scratch = scratch();
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| {
        let directory = scratch.path().join(name);
        fs::create_dir(&directory).expect("a directory");
        directory
    });
    copied(&program, &lower.join("stacked"));
    fs::copy(&other, merged.join("stacked")).expect("a copy");
    // An overlay on an overlay may be refused: this one is on memory.
    let script = "mount -t tmpfs none \"$2\"; mkdir \"$2/upper\" \"$2/work\"; \
                  mount -t overlay overlay -o lowerdir=\"$1\",upperdir=\"$2/upper\",workdir=\"$2/work\" \"$3\"; \
                  exec \"$3/stacked\" waiting";
    let can = "mount -t overlay overlay -o lowerdir=\"$1\":\"$2\" \"$3\"";
    let words = ["unshare", "--mount", "sh", "-ec", can, "sh"];
    let words = [&words[..], &[text(&lower), text(&work), text(&merged)]].concat();
    if !done(&words) {
        return;
    }
    let Some(running) = in_mount_namespace(script, &[&lower, &upper, &merged]) else {
        return;
    };
    all_ways("overlay", running);
}

/// A stripped program has the names of its MiniDebugInfo, as in Fedora.
#[test]
fn of_a_stripped_program_with_mini_debug_info() {
    let Some(program) = program(&[]) else { return };
    let scratch = scratch();
    let [copy, mini] = ["stacked", "mini"].map(|name| scratch.path().join(name));
    copied(&program, &copy);
    let packed = scratch.path().join("mini.xz");
    let section = format!(".gnu_debugdata={}", text(&packed));
    let all = done(&["objcopy", "--only-keep-debug", text(&copy), text(&mini)])
        && done(&[
            "strip",
            "--strip-debug",
            "--remove-section=.comment",
            text(&mini),
        ])
        && done(&["xz", "--keep", text(&mini)])
        && done(&["strip", "--strip-all", text(&copy)])
        && done(&["objcopy", "--add-section", &section, text(&copy)]);
    if all {
        all_ways("MiniDebugInfo", Running::start(&copy, &["waiting"]));
    }
}

/// Damaged, cut and huge MiniDebugInfo names nothing, and does no harm.
#[test]
fn damaged_mini_debug_info_is_as_none() {
    let Some(program) = program(&[]) else { return };
    let scratch = scratch();
    let copy = scratch.path().join("stacked");
    let junk = scratch.path().join("junk");
    let packed = scratch.path().join("junk.xz");
    fs::write(&junk, vec![0; 65 << 20]).expect("written");
    if !done(&["xz", "-0", "--keep", text(&junk)]) {
        return;
    }
    fs::remove_file(&junk).expect("it was there");
    let bomb = fs::read(&packed).expect("a file");
    let cut = bomb[..bomb.len() / 2].to_vec();
    for bytes in [bomb, cut, b"\xfd7zXZ\0".to_vec(), Vec::new()] {
        copied(&program, &copy);
        fs::write(&packed, &bytes).expect("written");
        let section = format!(".gnu_debugdata={}", text(&packed));
        if !done(&["objcopy", "--add-section", &section, text(&copy)]) {
            return;
        }
        all_ways("damaged MiniDebugInfo", Running::start(&copy, &["waiting"]));
        fs::remove_file(&copy).expect("it was there");
    }
}

/// A stripped program in a root directory of its own has the names of the debug file there.
#[test]
fn of_a_stripped_program_with_a_debug_file_in_its_root() {
    let Some(program) = program(&["-static-pie", "-fPIE", "-g", "-O1"]) else {
        return;
    };
    if !done(&["chroot", "/", "true"]) {
        return;
    }
    let scratch = scratch();
    let copy = scratch.path().join("stacked");
    let debug = scratch.path().join("usr/lib/debug");
    fs::create_dir_all(&debug).expect("directories");
    let debug = debug.join("stacked.debug");
    copied(&program, &copy);
    let link = format!("--add-gnu-debuglink={}", text(&debug));
    let Ok(symbols) = Command::new("nm").arg(&copy).output() else {
        println!("skipped: nm cannot be run");
        return;
    };
    let symbols = String::from_utf8_lossy(&symbols.stdout);
    let hit = symbols
        .lines()
        .find(|line| line.ends_with(" T hit"))
        .expect("a function");
    let hit = hit
        .split(' ')
        .next()
        .expect("an address")
        .trim_start_matches('0');
    let all = done(&["objcopy", "--only-keep-debug", text(&copy), text(&debug)])
        && done(&["strip", "--strip-all", text(&copy)])
        && done(&["objcopy", &link, text(&copy)]);
    if !all {
        return;
    }
    let mut command = Command::new("chroot");
    command.arg(scratch.path()).args(["/stacked", "waiting"]);
    let running = Running::of(&mut command);
    all_ways_at(
        "debug file in a root directory",
        running,
        &format!(":0x{hit}"),
    );
}

/// Mappings of a program that is executed later do not name earlier events.
#[test]
fn of_a_program_that_executes_another() {
    let flags = ["-no-pie", "-fno-pie"];
    let program = program(&flags);
    let other = build(Compiler::Gcc, "callers.c", &[&flags[..], &["-O2"]].concat());
    let (Some(program), Some(other)) = (program, other) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let mut running = Running::start(&program, &["waiting"]);
    let pid = running.pid.to_string();
    let stat = command(&["stat", "--json", "-e", ":hit by stack(5)", "-p", &pid]);
    let stat = Background::of(stat, running.pid);
    running.say("go");
    running.line();
    running.say(&format!("exec {}", text(&other)));
    let counted = stat.ended_by_itself();
    let key = &counted["groups"][0]["rows"][0]["keys"]["stack"];
    assert!(key.is_array(), "{counted}");
    assert_eq!(names(key, "symbol"), CHAIN, "{counted}");

    let mut running = Running::start(&program, &["waiting"]);
    let recorder = Background::attach(&trace, running.pid, &[":hit stack(5)"]);
    running.say("go");
    running.line();
    running.say(&format!("exec {}", text(&other)));
    recorder.ended_by_itself();
    let event = &events(&trace)[0];
    assert_eq!(names(&event["stack"], "symbol"), CHAIN, "{event}");
}

/// Where one library is unloaded and another one comes to its addresses, no function has the name of the
/// other's, and it is said why they have none.
#[test]
fn of_libraries_at_the_same_addresses() {
    let Some(program) = program(&[]) else { return };
    let libraries = ["one", "other"].map(|name| {
        let name = format!("-DTHROUGH={name}");
        let flags = ["-shared", "-fPIC", &name];
        build(Compiler::Gcc, "callers_loaded.c", &flags)
    });
    let [Some(one), Some(other)] = libraries else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let mut running = Running::start(&program, &["waiting"]);
    let recorder = Background::attach(&trace, running.pid, &[":hit n=$arg1 stack"]);
    let mut mapped = Vec::new();
    for library in [&one, &other] {
        running.say(&format!("load {}", text(library)));
        running.say("through");
        running.line();
        let name = library.file_name().expect("a name").to_str().expect("text");
        until("the library is seen", || {
            let description = fs::read(trace.join("info/capriole.json")).expect("a trace");
            let description: Value = serde_json::from_slice(&description).expect("JSON");
            let mappings = description["mappings"].as_array().expect("a list").clone();
            let is_it = |mapping: &&Value| {
                let path = mapping["path"].as_str().expect("a path");
                path.ends_with(name)
            };
            let found = mappings
                .iter()
                .find(is_it)
                .map(|mapping| mapping["start"].clone());
            mapped.extend(found.clone());
            found.is_some()
        });
        running.say("through");
        running.line();
    }
    recorder.until_recorded();
    recorder.end();
    running.finish();
    let found = events(&trace);
    assert_eq!(found.len(), 4);
    for (at, event) in found.iter().enumerate() {
        let names = names(&event["stack"], "symbol");
        assert_eq!(names[..3], CHAIN[..3], "{event}");
        let its = if at < 2 { "one" } else { "other" };
        assert!(
            names.get(3).is_none_or(|name| *name == its || *name == "?"),
            "{event}"
        );
    }
    let output = capriole(&["report", text(&trace)]);
    let told = told(&output);
    let is_told = told.contains("were at the same addresses");
    assert_eq!(is_told, mapped[0] == mapped[1], "{told}");
}

/// A trace that has lost its names says so.
#[test]
fn of_a_trace_without_them() {
    let Some(program) = program(&[]) else { return };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    record_program(&trace, &["-e", ":hit stack"], &program, &["chain"]);
    fs::remove_file(trace.join("info/names.jsonl.gz")).expect("names");
    let output = capriole(&["report", text(&trace)]);
    assert!(output.status.success());
    assert!(
        told(&output).contains("no names of functions"),
        "{}",
        told(&output)
    );
}
