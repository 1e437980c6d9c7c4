//! Functions in call stacks that a program has compiled while it runs: their names, from the files that runtimes write
//! for perf, and their callers, where the compiler is known to keep frame pointers.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, command, told};
use crate::traces::{Background, events, scratch, text};
use capriole_testkit::waiting::until;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The functions of a hit, innermost first.
const CHAIN: [&str; 6] = ["hit", "third", "inner", "outer", "first", "main"];
/// The size of each function that the program compiles.
const SIZE: u64 = 32;
/// With a runtime whose code is known to keep frame pointers, or not.
const LIKE_V8: &[&str] = &["-DLIKE_V8"];
const UNKNOWN: &[&str] = &[];

/// A program that compiles, and the map that a test writes for it.
struct Compiling {
    running: Running,
    map: PathBuf,
}

impl Compiling {
    fn start(flags: &[&str]) -> Option<Compiling> {
        let running = Running::start(&build(Compiler::Gcc, "compiled.c", flags)?, &[]);
        let map = PathBuf::from(format!("/tmp/perf-{}.map", running.pid));
        // Of an earlier process with this number.
        let _ = fs::remove_file(&map);
        Some(Compiling { running, map })
    }

    /// Starts the program, and writes the map of both functions.
    fn with_map(flags: &[&str]) -> Option<Compiling> {
        let mut program = Compiling::start(flags)?;
        let lines = program.lines();
        program.write(lines);
        Some(program)
    }

    /// Makes the program do something.
    fn does(&mut self, command: &str) {
        self.running.say(command);
        assert_eq!(self.running.line(), "done", "{command}");
    }

    /// The addresses of outer and inner.
    fn addresses(&mut self) -> [u64; 2] {
        self.running.say("where");
        let line = self.running.line();
        let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let numbers: Vec<u64> = line.split(' ').filter_map(number).collect();
        numbers.try_into().expect("two addresses")
    }

    /// Adds text to the map.
    fn write(&self, text: impl AsRef<[u8]>) {
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.map);
        file.and_then(|mut file| file.write_all(text.as_ref()))
            .expect("written");
    }

    /// Lines for both functions.
    fn lines(&mut self) -> String {
        let [outer, inner] = self.addresses();
        format!("{outer:x} {SIZE:x} outer\n{inner:x} {SIZE:x} inner\n")
    }

    fn record(&self, trace: &Path, event: &str) -> Background {
        Background::attach(trace, self.running.pid, &[event])
    }

    /// Records a call, and returns the event and all that a report says on standard error.
    fn recorded(&mut self) -> (Value, String) {
        let scratch = scratch();
        let trace = scratch.path().join("trace");
        let recorder = self.record(&trace, ":hit stack");
        self.does("go");
        recorder.until_recorded();
        recorder.end();
        let event = events(&trace).pop().expect("an event");
        (event, remarks(&trace))
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.map);
    }
}

/// Returns the messages of a report on standard error.
fn remarks(trace: &Path) -> String {
    let output = capriole(&["report", text(trace)]);
    String::from_utf8(output.stderr).expect("text")
}

fn names(functions: &Value) -> Vec<&str> {
    let functions = functions.as_array().expect("a list").iter();
    functions
        .map(|function| function["symbol"].as_str().unwrap_or("?"))
        .collect()
}

#[test]
fn a_map_names_functions_and_frame_pointers_lead_to_their_callers() {
    let Some(mut program) = Compiling::with_map(LIKE_V8) else {
        return;
    };
    let (event, remarks) = program.recorded();
    assert_eq!(names(&event["stack"])[..6], CHAIN, "{event}");
    assert_eq!(event["stack_end"], "outermost", "{event}");
    // The return addresses, behind the call.
    for at in [2, 3] {
        assert_eq!(event["stack"][at]["offset"], "0xd", "{event}");
        assert_eq!(event["stack"][at]["object"], Value::Null, "{event}");
    }
    assert_eq!(remarks, "");
}

/// A name belongs to an address, whichever process an event is from: a child may compile other functions there.
#[test]
fn where_the_program_has_forked_compiled_functions_have_no_names() {
    let Some(mut program) = Compiling::with_map(LIKE_V8) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":hit stack");
    program.does("go");
    recorder.until_recorded();
    program.does("fork");
    until("the names are taken back", || {
        remarks(&trace).contains("the program has forked")
    });
    program.does("go");
    recorder.until_recorded_again();
    recorder.end();
    for event in events(&trace) {
        let functions = names(&event["stack"]);
        let expected = ["hit", "third", "?", "?", "first", "main"];
        assert_eq!(functions[..6], expected, "{event}");
    }
}

/// The chain ends at code of a compiler that is not known.
#[test]
fn callers_of_other_compiled_code_are_not_guessed() {
    let Some(mut program) = Compiling::with_map(UNKNOWN) else {
        return;
    };
    let (event, _) = program.recorded();
    assert_eq!(names(&event["stack"]), CHAIN[..3], "{event}");
    assert_eq!(event["stack_end"], "unknown", "{event}");
}

/// In call stacks of `stat`, in reports and pictures, and as a value of the type `symbol`.
#[test]
fn compiled_functions_have_names_wherever_functions_are_shown() {
    let Some(mut program) = Compiling::with_map(LIKE_V8) else {
        return;
    };
    let pid = program.running.pid.to_string();
    let stat = command(&[
        "stat",
        "--json",
        "-e",
        ":hit by stack",
        "-e",
        ":third by from=$stack0:symbol",
        "-p",
        &pid,
    ]);
    let stat = Background::of(stat, program.running.pid);
    program.does("go");
    let counted = stat.end();
    let key = &counted["groups"][0]["rows"][0]["keys"]["stack"];
    assert_eq!(names(key)[..6], CHAIN, "{counted}");
    let key = &counted["groups"][1]["rows"][0]["keys"]["from"];
    assert_eq!(*key, "inner+0xd", "{counted}");

    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":third from=$stack0:symbol stack");
    program.does("go");
    recorder.until_recorded();
    recorder.end();
    // The names are in the trace.
    drop(program);
    let event = &events(&trace)[0];
    assert_eq!(event["arguments"]["from"], "inner+0xd", "{event}");
    let output = capriole(&["report", text(&trace)]);
    let lines = String::from_utf8(output.stdout).expect("text");
    assert!(lines.contains(" inner+0xd"), "{lines}");
    let picture = scratch.path().join("flame.svg");
    let output = capriole(&["report", "--json", "--flame", text(&picture), text(&trace)]);
    let flame: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let functions = flame["stacks"][0]["functions"].as_array().expect("a list");
    let inner: Vec<&str> = functions.iter().rev().filter_map(Value::as_str).collect();
    assert_eq!(inner[..5], CHAIN[1..], "{flame}");
}

/// Where memory was reserved, no rule has to follow the code that is compiled there.
#[test]
fn code_in_reserved_memory_has_callers_at_once() {
    let Some(mut program) = Compiling::start(LIKE_V8) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":hit stack");
    program.does("more");
    let lines = program.lines();
    // In two pieces, the first of which ends within a line.
    let (first, rest) = lines.split_at(lines.len() - 3);
    program.write(first);
    program.write(rest);
    program.does("go");
    recorder.until_recorded();
    recorder.end();
    let event = events(&trace).pop().expect("an event");
    assert_eq!(names(&event["stack"])[..6], CHAIN, "{event}");
    assert_eq!(event["stack_end"], "outermost", "{event}");
}

/// Where it was not, the rule comes soon after the memory was seen.
#[test]
fn code_elsewhere_has_callers_soon() {
    let Some(mut program) = Compiling::start(LIKE_V8) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":hit stack");
    program.does("elsewhere");
    let lines = program.lines();
    program.write(lines);
    until("its callers are found", || {
        program.does("go");
        let last = events(&trace).pop();
        last.is_some_and(|last| last["stack_end"] == "outermost")
    });
    recorder.end();
    let found = events(&trace);
    let whole = |event: &Value| event["stack_end"] == "outermost";
    assert!(found.is_sorted_by_key(whole), "from then on, all are");
    for event in &found {
        let length = if whole(event) { 6 } else { 3 };
        assert_eq!(names(&event["stack"])[..length], CHAIN[..length], "{event}");
    }
}

/// Functions that were replaced before the recording do not matter; later ones take the name from their address, as an
/// event may belong to either.
#[test]
fn an_address_of_different_functions_has_no_name() {
    let Some(mut program) = Compiling::start(LIKE_V8) else {
        return;
    };
    let [_, inner] = program.addresses();
    let lines = program.lines();
    program.write(format!("{inner:x} {SIZE:x} old\n{lines}"));
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":hit stack");
    program.does("go");
    recorder.until_recorded();
    until("it is named", || names_in(&trace).contains("inner"));
    let before = events(&trace).pop().expect("an event");
    assert_eq!(names(&before["stack"])[..6], CHAIN, "{before}");
    program.write(format!("{:x} {SIZE:x} new\n", inner + 8));
    program.does("go");
    recorder.end();
    for event in events(&trace) {
        let expected = ["hit", "third", "?", "outer", "first", "main"];
        assert_eq!(names(&event["stack"])[..6], expected, "{event}");
        assert_eq!(event["stack_end"], "outermost", "{event}");
    }
    let told = remarks(&trace);
    assert_eq!(
        told.matches("different functions that the program compiled")
            .count(),
        1,
        "{told}"
    );
}

/// The names that a recorder has written.
fn names_in(trace: &Path) -> String {
    let output = Command::new("zcat")
        .arg(trace.join("info/names.jsonl.gz"))
        .output()
        .expect("zcat");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A return address at which there is no code any more is none.
#[test]
fn what_is_not_behind_a_call_ends_a_stack() {
    let Some(mut program) = Compiling::with_map(LIKE_V8) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":hit stack");
    // The recorder names code when it reads the record: that is held back until the code is gone.
    recorder.signal(libc::SIGSTOP);
    until("it stands still", || {
        recorder.state() == capriole_proc::process::State::Stopped
    });
    program.does("go");
    program.does("replace");
    recorder.signal(libc::SIGCONT);
    recorder.until_recorded();
    recorder.end();
    let event = events(&trace).pop().expect("an event");
    assert_eq!(names(&event["stack"]), CHAIN[..2], "{event}");
    assert_eq!(event["stack_end"], "unknown", "{event}");
}

/// Files that somebody else may have put there, and damage.
#[test]
fn hostile_maps_name_nothing_wrong() {
    let Some(mut program) = Compiling::start(LIKE_V8) else {
        return;
    };
    let scratch = scratch();
    let lines = program.lines();
    let [outer, inner] = program.addresses();
    let nameless = ["hit", "third", "?", "?", "first", "main"];
    let map = program.map.clone();

    let elsewhere = scratch.path().join("map");
    fs::write(&elsewhere, &lines).expect("written");
    symlink(&elsewhere, &map).expect("a link");
    let (event, told) = program.recorded();
    assert_eq!(names(&event["stack"])[..6], nameless, "{event}");
    assert!(
        told.contains(text(&map)) && told.contains("symbolic link"),
        "{told}"
    );
    fs::remove_file(&map).expect("it was there");

    let fifo = Command::new("mkfifo").arg(&map).status();
    assert!(fifo.is_ok_and(|status| status.success()));
    let (event, told) = program.recorded();
    assert_eq!(names(&event["stack"])[..6], nameless, "{event}");
    assert!(told.contains("a FIFO, not a file"), "{told}");
    fs::remove_file(&map).expect("it was there");

    fs::write(&map, &lines).expect("written");
    match chown(&map, Some(12345), None) {
        Ok(()) => {
            let (event, told) = program.recorded();
            assert_eq!(names(&event["stack"])[..6], nameless, "{event}");
            assert!(told.contains("its owner is user 12345"), "{told}");
        }
        Err(error) => println!("skipped: files cannot be given away: {error}"),
    }
    fs::remove_file(&map).expect("it was there");

    // Of an earlier process.
    program.write(&lines);
    let file = fs::File::options().write(true).open(&map).expect("a file");
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    file.set_modified(yesterday).expect("a time");
    let (event, told) = program.recorded();
    assert_eq!(names(&event["stack"])[..6], nameless, "{event}");
    assert!(told.contains("it is older than the process"), "{told}");
    fs::remove_file(&map).expect("it was there");

    let huge = "x".repeat(1 << 20);
    let junk = format!(
        "\0\u{1b}]0;title\u{7}\n{inner:x}\n{inner:x} {SIZE:x}\n{inner:x} -1 no\nffffffffffffffff 10 no\n\
         {inner:x} {SIZE:x} {huge}\n{outer:x} 10000 all\n{lines}zz 10 no\n{inner:x} {SIZE:x} unfinished"
    );
    program.write(junk);
    let (event, _) = program.recorded();
    assert_eq!(names(&event["stack"])[..6], CHAIN, "{event}");
    fs::remove_file(&map).expect("it was there");

    // What a terminal would act on.
    program.write(format!("{inner:x} {SIZE:x} \u{1b}[31mred\u{7}\n"));
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":hit stack");
    program.does("go");
    recorder.until_recorded();
    recorder.end();
    let output = capriole(&["report", text(&trace)]);
    let shown = told_all(&output);
    assert!(
        shown.contains("[31mred") && !shown.contains('\u{1b}'),
        "{shown}"
    );
}

fn told_all(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &told(output)
}

/// A file that is written anew while it is read.
#[test]
fn a_map_may_be_written_anew() {
    let Some(mut program) = Compiling::start(LIKE_V8) else {
        return;
    };
    let lines = program.lines();
    program.write("1000 10 ".to_owned() + &"a long line ".repeat(100) + "\n1000 10 unfinish");
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":hit stack");
    fs::write(&program.map, lines).expect("written");
    program.does("go");
    recorder.until_recorded();
    recorder.end();
    let event = events(&trace).pop().expect("an event");
    assert_eq!(names(&event["stack"])[..6], CHAIN, "{event}");
}

/// Returns the bytes of a jitdump.
fn dump(records: &[Vec<u8>]) -> Vec<u8> {
    let halves = [0x4a69_5444u32, 1, 40, 62, 0, 1];
    let mut bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    bytes.extend([0; 16]);
    bytes.extend(records.concat());
    bytes
}

/// Returns a record of a jitdump.
fn record(kind: u32, words: &[u64], rest: &[u8]) -> Vec<u8> {
    let size = 16 + 8 * words.len() + rest.len();
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((size as u32).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(rest);
    bytes
}

fn load(at: u64, number: u64, name: &str) -> Vec<u8> {
    let rest = [name.as_bytes(), b"\0", &[0x90; SIZE as usize]].concat();
    record(0, &[1, at, at, SIZE, number], &rest)
}

/// The dump names functions, also those that were moved, and is itself no file of functions without names.
#[test]
fn a_jitdump_names_functions() {
    let Some(mut program) = Compiling::start(LIKE_V8) else {
        return;
    };
    let [outer, inner] = program.addresses();
    let scratch = scratch();
    let path = scratch
        .path()
        .join(format!("jit-{}.dump", program.running.pid));
    let moved = record(1, &[1, inner, outer + 0x100, inner, SIZE, 2], &[]);
    let records = [
        load(outer, 1, "outer"),
        load(outer + 0x100, 2, "inner"),
        moved,
    ];
    fs::write(&path, dump(&records)).expect("written");
    program.does(&format!("dump {}", text(&path)));
    let (event, told) = program.recorded();
    assert_eq!(names(&event["stack"])[..6], CHAIN, "{event}");
    assert_eq!(told, "");
}

#[test]
fn a_file_that_is_no_jitdump_names_nothing() {
    let Some(mut program) = Compiling::start(LIKE_V8) else {
        return;
    };
    let scratch = scratch();
    let path = scratch.path().join("jit-1.dump");
    fs::write(&path, "something else").expect("written");
    program.does(&format!("dump {}", text(&path)));
    let (event, told) = program.recorded();
    assert_eq!(names(&event["stack"])[2..4], ["?", "?"], "{event}");
    assert!(told.contains("it is not a jitdump"), "{told}");
}

/// Without names the advice is given once, and only if there was such code.
#[test]
fn advice_for_code_without_names_is_given_once() {
    let Some(mut program) = Compiling::start(LIKE_V8) else {
        return;
    };
    let (event, told) = program.recorded();
    assert_eq!(names(&event["stack"])[2..4], ["?", "?"], "{event}");
    let advice = format!(
        "functions that the program compiled have no names, as there is no {}: start node with --perf-basic-prof",
        text(&program.map)
    );
    assert_eq!(told.matches(&advice).count(), 1, "{told}");
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let recorder = program.record(&trace, ":first stack");
    program.does("go");
    recorder.until_recorded();
    recorder.end();
    assert_eq!(remarks(&trace), "");
}

/// Functions of JavaScript, each of which calls the next one.
const SCRIPT: &str = r#"
const fs = require("fs");
function inner() { fs.accessSync("/"); return new Error().stack; }
function middle() { return inner() + ""; }
function outer() { return middle() + ""; }
console.log("ready " + process.pid);
require("readline").createInterface({ input: process.stdin }).on("line", () => {
	const said = outer();
	const names = said.split("\n").map((line) => (/^ *at (\S+) \(\[eval/.exec(line) || [])[1]);
	console.log(names.filter((name) => name).join(" "));
}).on("close", () => console.log("ok all answers"));
"#;

/// The functions of JavaScript, as node finds them itself, are in the chain from the C library out to node's start.
#[test]
fn functions_of_javascript_are_in_the_chain() {
    let version = Command::new("node").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        println!("skipped: node is not installed");
        return;
    }
    for options in [
        &["--perf-basic-prof", "--interpreted-frames-native-stack"][..],
        &["--perf-basic-prof", "--always-sparkplug"],
    ] {
        let scratch = scratch();
        let mut node = Command::new("node");
        node.args(options)
            .args(["-e", SCRIPT])
            .current_dir(scratch.path());
        let mut running = Running::of(&mut node);
        let map = PathBuf::from(format!("/tmp/perf-{}.map", running.pid));
        let trace = scratch.path().join("trace");
        let event = "libc:access path=$arg1:string stack(128) if path == \"/\"";
        let recorder = Background::attach(&trace, running.pid, &[event]);
        running.say("call");
        let own = running.line();
        recorder.until_recorded();
        recorder.end();
        running.finish();
        let _ = fs::remove_file(map);
        let event = events(&trace).pop().expect("an event");
        let names = names(&event["stack"]);
        let of_script: Vec<&str> = names
            .iter()
            .filter(|name| name.contains("[eval]"))
            .flat_map(|name| name.split([':', '~', '^', '*', ' ']))
            .filter(is_own)
            .collect();
        let own: Vec<&str> = own.split(' ').filter(is_own).collect();
        assert_eq!(own, ["inner", "middle", "outer"]);
        assert_eq!(of_script, own, "{options:?}: {names:?}");
        // That is called at the end of `main`.
        let start = names
            .iter()
            .position(|name| name.starts_with("node::Start("));
        assert!(start.is_some(), "{options:?}: {names:?}");
        assert_eq!(event["stack_end"], "outermost", "{options:?}: {names:?}");
    }
}

/// A program in Java whose methods call each other, and reach a function of the C library.
const CLASS: &str = r#"
public class Chain {
	// What the methods below need is loaded: they are compiled once.
	static final boolean LOADED = new java.io.File("/").canRead();
	static boolean inner() { return new java.io.File("/").canRead(); }
	static boolean middle() { return inner() && System.nanoTime() != 0; }
	static boolean outer() { return middle() && System.nanoTime() != 0; }
	public static void main(String[] words) throws Exception {
		var input = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
		outer();
		System.out.println("ready " + ProcessHandle.current().pid());
		while (input.readLine() != null) {
			outer();
			System.out.println("called");
		}
		System.out.println("ok all answers");
	}
}
"#;

/// Methods of Java that are compiled, and keep frame pointers, are in the chain.
#[test]
fn methods_of_java_are_in_the_chain() {
    let scratch = scratch();
    let source = scratch.path().join("Chain.java");
    fs::write(&source, CLASS).expect("written");
    let compiled = Command::new("javac").arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: javac is not installed");
        return;
    }
    let mut java = Command::new("java");
    java.args([
        "-XX:+PreserveFramePointer",
        "-Xcomp",
        "-XX:CompileCommand=quiet",
        "-XX:CompileCommand=compileonly,Chain::*",
        "-XX:CompileCommand=dontinline,Chain::*",
        "-cp",
    ]);
    let mut running = Running::of(java.arg(scratch.path()).arg("Chain"));
    let map = PathBuf::from(format!("/tmp/perf-{}.map", running.pid));
    let pid = running.pid.to_string();
    let wrote = Command::new("jcmd")
        .args([&pid, "Compiler.perfmap"])
        .output();
    if !wrote.is_ok_and(|output| output.status.success() && map.exists()) {
        println!("skipped: this Java does not write maps for perf");
        return;
    }
    let trace = scratch.path().join("trace");
    let event = "libc:access path=$arg1:string stack(128) if path == \"/\"";
    let recorder = Background::attach(&trace, running.pid, &[event]);
    running.say("call");
    assert_eq!(running.line(), "called");
    recorder.until_recorded();
    recorder.end();
    running.finish();
    let _ = fs::remove_file(map);
    let event = events(&trace).pop().expect("an event");
    let names = names(&event["stack"]);
    let of_class: Vec<&str> = names
        .iter()
        .filter_map(|name| name.split_once("Chain"))
        .map(|(_, method)| method.trim_start_matches([':', '.']))
        .filter_map(|method| method.split('(').next())
        .collect();
    assert_eq!(of_class[..3], ["inner", "middle", "outer"], "{names:?}");
    assert_eq!(event["stack_end"], "outermost", "{names:?}");
}

/// True for the name of a function of the script.
fn is_own(name: &&str) -> bool {
    ["inner", "middle", "outer"].contains(name)
}

/// A handler that has interrupted the vDSO has the function there, and its callers.
#[test]
fn a_signal_that_interrupts_the_vdso_has_a_whole_chain() {
    let Some(program) = build(Compiler::Gcc, "vdso.c", &[]) else {
        return;
    };
    let scratch = scratch();
    let trace = scratch.path().join("trace");
    let said = crate::traces::record_program(&trace, &["-e", ":hit stack"], &program, &["400"]);
    let instructions: usize = said.trim().parse().expect("a number");
    if instructions == 0 {
        println!("skipped: the C library does not use the vDSO");
        return;
    }
    let events = events(&trace);
    assert_eq!(events.len(), instructions);
    for event in &events {
        let names = names(&event["stack"]);
        let handler = names.iter().position(|name| *name == "trapped");
        let interrupted = &names[handler.expect("the handler") + 2..];
        assert_eq!(interrupted[0], "__vdso_clock_gettime", "{event}");
        let callers = interrupted
            .iter()
            .filter(|name| ["asks", "main"].contains(*name));
        assert_eq!(
            callers.copied().collect::<Vec<_>>(),
            ["asks", "main"],
            "{event}"
        );
        assert_eq!(event["stack_end"], "outermost", "{event}");
        let frames = event["stack"].as_array().expect("a list");
        let of_kernel = frames.iter().filter(|frame| frame["object"] == "[vdso]");
        assert!(of_kernel.count() >= 1, "{event}");
    }
}
