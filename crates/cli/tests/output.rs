//! What a person, or a program, reads: tables, reports, JSON, help.

#[path = "common/programs.rs"]
mod programs;
#[path = "common/target.rs"]
mod target;
#[path = "common/traces.rs"]
mod traces;

use programs::{Compiler, build};
use serde_json::Value;
use std::path::{Path, PathBuf};
use target::{Running, capriole, told};
use traces::{record, scratch, text};

/// A program of fixed bytes at fixed addresses.
fn shapes() -> Option<PathBuf> {
    let flags = [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,-Ttext=0x401000",
        "-Wl,--build-id=none",
    ];
    build(Compiler::Gcc, "shapes.S", &flags)
}

fn of(program: &Path, words: &[&str], status: i32) -> String {
    let output = capriole(words);
    assert_eq!(output.status.code(), Some(status), "{}", told(&output));
    assert_eq!(output.stderr, b"", "{}", told(&output));
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    stdout.replace(text(program), "PROGRAM")
}

#[test]
fn list() {
    let Some(program) = shapes() else { return };
    let path = text(&program);
    insta::assert_snapshot!(of(&program, &["list", path], 0), @r"
     ADDRESS    BYTES  TACTIC    FUNCTION
    0x401000       60  region    _start
    0x401040       10  reserved  shape_reserved
    0x401050        6  jump      shape_jump
    0x401060        9  region    shape_region
    0x401070       10  jump      shape_endbr
    0x401080        1  int3      shape_short  (less than 5 bytes up to 0x401081, and no unused padding follows)
    0x401081        3  region    shape_behind
    0x401090        7  int3      shape_loop  (something may jump to 0x401092, which would be covered)
    ");
    insta::assert_snapshot!(of(&program, &["list", "--summary", path], 0), @r"
    8 functions
      reserved                             1   12.50 %
      jump                                 2   25.00 %
      region                               3   37.50 %
      int3                                 2   25.00 %
      none                                 0    0.00 %
    why not a jump:
      branch-target                        1   12.50 %
      ends-too-soon                        1   12.50 %
    ");
    insta::assert_snapshot!(of(&program, &["list", "--summary", "--json", path], 0), @r#"{"functions":8,"tactics":{"int3":2,"jump":2,"region":3,"reserved":1},"refusals":{"branch-target":1,"ends-too-soon":1}}"#);
    insta::assert_snapshot!(of(&program, &["list", "shape_jump", "--json", path], 0), @r#"
    [
      {
        "event": "shape_jump",
        "object": "PROGRAM",
        "symbol": "shape_jump",
        "offset": "0x1050",
        "address": "0x401050",
        "tactic": "jump",
        "refusals": [
          {
            "tactic": "reserved",
            "reason": "no nops at the site"
          }
        ]
      }
    ]
    "#);
}

#[test]
fn check() {
    let Some(program) = shapes() else { return };
    let path = text(&program);
    insta::assert_snapshot!(of(&program, &["check", ":shape_*", path], 0), @r"
    shape_reserved in PROGRAM, file offset 0x1040, address 0x401040
      reserved  yes: nops that may be overwritten stand here
      before    0f 1f 44 00 00
      after     e9 .. .. .. ..
      displaced nothing
      goes on   at 0x401045: lea (%rdi,%rsi),%rax
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_jump in PROGRAM, file offset 0x1050, address 0x401050
      reserved  no: no nops at the site
      jump      yes: a jump over one instruction
      before    b8 07 00 00 00
      after     e9 .. .. .. ..
      displaced 0x401050: mov $7,%eax
      goes on   at 0x401055: ret
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_region in PROGRAM, file offset 0x1060, address 0x401060
      reserved  no: no nops at the site
      jump      no: the instruction has 1 bytes, 5 are needed
      region    yes: a jump over several instructions
      before    55 48 89 e5 48 89 f8
      after     e9 .. .. .. .. 89 f8
      displaced 0x401060: push %rbp
                0x401061: mov %rsp,%rbp
                0x401064: mov %rdi,%rax
      goes on   at 0x401067: pop %rbp
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_endbr in PROGRAM, file offset 0x1070, address 0x401070
      reserved  no: no nops at the site
      jump      yes: a jump over one instruction
      the probe goes behind endbr64, to 0x401074
      before    b8 08 00 00 00
      after     e9 .. .. .. ..
      displaced 0x401074: mov $8,%eax
      goes on   at 0x401079: ret
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_short in PROGRAM, file offset 0x1080, address 0x401080
      reserved  no: no nops at the site
      jump      no: the instruction has 1 bytes, 5 are needed
      region    no: less than 5 bytes up to 0x401081, and no unused padding follows
      int3      yes: a breakpoint, which costs about 100 times more than a jump
      before    c3
      after     cc
      displaced 0x401080: ret
      goes on   at 0x401081: mov %edi,%eax
      live      rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_behind in PROGRAM, file offset 0x1081, address 0x401081
      reserved  no: no nops at the site
      jump      no: the instruction has 2 bytes, 5 are needed
      region    yes: a jump over several instructions
      before    89 f8 c3 cc cc
      after     e9 .. .. .. ..
      displaced 0x401081: mov %edi,%eax
                0x401083: ret
      goes on   at 0x401084: int3
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_loop in PROGRAM, file offset 0x1090, address 0x401090
      reserved  no: no nops at the site
      jump      no: the instruction has 2 bytes, 5 are needed
      region    no: something may jump to 0x401092, which would be covered
      int3      yes: a breakpoint, which costs about 100 times more than a jump
      before    89
      after     cc
      displaced 0x401090: mov %edi,%ecx
      goes on   at 0x401092: dec %ecx
      live      rax rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    ");
    insta::assert_snapshot!(of(&program, &["check", ":shape_loop+3", path], 1), @r"
    shape_loop+0x3 in PROGRAM, file offset 0x1093, address 0x401093
      it cannot be probed: 0x401093 is in the middle of the instruction at 0x401092; the next one begins at 0x401094
    ");
    insta::assert_snapshot!(of(&program, &["check", ":shape_endbr", "--json", path], 0), @r#"
    [
      {
        "event": "shape_endbr",
        "object": "PROGRAM",
        "symbol": "shape_endbr",
        "offset": "0x1070",
        "address": "0x401070",
        "tactic": "jump",
        "refusals": [
          {
            "tactic": "reserved",
            "reason": "no nops at the site"
          }
        ],
        "site": "0x401074",
        "before": "b8 08 00 00 00",
        "resume": "0x401079",
        "live_registers": [
          "rcx",
          "rdx",
          "rbx",
          "rsp",
          "rbp",
          "rsi",
          "rdi",
          "r8",
          "r9",
          "r10",
          "r11",
          "r12",
          "r13",
          "r14",
          "r15"
        ],
        "live_flags": true,
        "red_zone": false
      }
    ]
    "#);
}

/// The keys of an object, and of the first object in each list of it.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), shape(v))).collect(),
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "bool".into(),
        Value::Null => Value::Null,
    }
}

fn shape_of(json: &str) -> String {
    let value: Value = serde_json::from_str(json).expect("JSON");
    serde_json::to_string_pretty(&shape(&value)).expect("JSON")
}

/// Without what is another each time: numbers in front of an event are one 9, and blanks
/// one blank, since columns are as wide as they must be.
fn figures_aside(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let line = words.join(" ");
        match line.split_once(": shape_") {
            None => out += &line,
            Some((head, event)) => {
                let mut last = ' ';
                for c in head
                    .chars()
                    .map(|c| if c.is_ascii_digit() { '9' } else { c })
                {
                    if (c, last) != ('9', '9') {
                        out.push(c);
                    }
                    last = c;
                }
                out += ": shape_";
                out += event;
            }
        }
        out.push('\n');
    }
    out
}

#[test]
fn record_and_report() {
    let Some(program) = shapes() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = ":shape_r* $arg1 second=$arg2";
    let output = record(
        &trace,
        &[
            "--json",
            "-e",
            event,
            "-e",
            ":shape_short",
            "--",
            text(&program),
        ],
    );
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    insta::assert_snapshot!(shape_of(&said), @r#"
    {
      "trace": "text",
      "pid": "number",
      "events": "number",
      "lost": "number",
      "bytes": "number",
      "duration_ns": "number",
      "standstill_ns": {
        "attach": "number",
        "attach_one_thread": "number",
        "detach": "number"
      },
      "restartable_sequences": "bool",
      "thread_ids": "bool",
      "ended": "text",
      "sites": [
        {
          "event": "text",
          "object": "text",
          "symbol": "text",
          "offset": "text",
          "address": "text",
          "tactic": "text",
          "refusals": [],
          "state": "text"
        }
      ]
    }
    "#);
    let value: Value = serde_json::from_str(&said).expect("JSON");
    let states = value["sites"].as_array().expect("sites").iter();
    let states: Vec<_> = states
        .map(|s| format!("{} {} {}", s["event"], s["tactic"], s["state"]))
        .collect();
    insta::assert_snapshot!(states.join("\n"), @r#"
    "shape_reserved" "reserved" "optimised"
    "shape_region" "region" "optimised"
    "shape_short" "int3" "breakpoint"
    "#);

    let report = |words: &[&str]| {
        let mut all = vec!["report", text(&trace)];
        all.extend(words);
        let name = program
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        of(&program, &all, 0)
            .replace(&name, "NAME")
            .replace(text(directory.path()), "DIR")
    };
    let lines = report(&[]);
    let pid = value["pid"].to_string();
    insta::assert_snapshot!(figures_aside(&lines.replace(&format!("(pid {pid})"), "(pid PID)")), @r"
    # tracer: capriole
    #
    # program: PROGRAM (pid PID)
    # warning: thread ids are unknown: every event has thread 0
    #
    # TASK-PID CPU# TIMESTAMP FUNCTION
    # | | | | |
    <...>-9 [9] 9.9: shape_reserved: (NAME+0x401040) arg1=0x5 second=0x6
    <...>-9 [9] 9.9: shape_region: (NAME+0x401060) arg1=0x5 second=0x6
    <...>-9 [9] 9.9: shape_short: (NAME+0x401080)
    <...>-9 [9] 9.9: shape_reserved: (NAME+0x401040) arg1=0x5 second=0x6
    <...>-9 [9] 9.9: shape_region: (NAME+0x401060) arg1=0x5 second=0x6
    <...>-9 [9] 9.9: shape_short: (NAME+0x401080)
    ");
    let json = report(&["--json"]);
    assert_eq!(json.lines().count(), 6);
    insta::assert_snapshot!(shape_of(json.lines().next().expect("events")), @r#"
    {
      "time_ns": "number",
      "cpu": "number",
      "tid": "number",
      "comm": null,
      "event": "text",
      "id": "number",
      "object": "text",
      "offset": "text",
      "arguments": {
        "arg1": "text",
        "second": "text"
      }
    }
    "#);
    insta::assert_snapshot!(shape_of(&report(&["--summary", "--json"])), @r#"
    {
      "directory": "text",
      "events": "number",
      "lost_events": "number",
      "lost_packets": "number",
      "damages": "number",
      "duration_ns": "number",
      "threads": "number",
      "cpus": "number",
      "complete": "bool",
      "warnings": [
        "text"
      ],
      "by_event": [
        {
          "event": "text",
          "calls": "number",
          "share": "number",
          "calls_per_second": "number",
          "first_ns": "number",
          "last_ns": "number",
          "threads": "number"
        }
      ],
      "silent": "number"
    }
    "#);
    let summary = report(&["--summary"]);
    for event in ["shape_reserved", "shape_region", "shape_short"] {
        let row = summary
            .lines()
            .find(|line| line.ends_with(event))
            .expect("a row");
        assert_eq!(row.split_whitespace().next(), Some("2"), "{summary}");
    }

    // Without --json, everything that is said stands on standard error.
    let output = record(&trace, &["-e", ":shape_jump", "--", text(&program)]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{}",
        told(&output)
    );
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    let said = said.replace(text(directory.path()), "DIR");
    let words = said.split(' ').map(|word| match word {
        "ns" | "us" | "ms" | "s" => "UNIT",
        _ if word.starts_with(|c: char| c == '(' || c.is_ascii_digit()) => "N",
        _ => word,
    });
    insta::assert_snapshot!(words.collect::<Vec<_>>().join(" "), @r"
    capriole: N events in N UNIT -> DIR/t N B); the program has ended
    capriole: thread ids are unknown: a static program has none yet when it starts; attach with -p PID to see them
    capriole: the program stood still for N UNIT to attach
    capriole: show it with `capriole report DIR/t`
    ");
}

#[test]
fn detach() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--wait"]);
    let pid = running.pid.to_string();
    let directory = scratch();
    let output = capriole(&["detach", &pid]);
    assert_eq!(output.status.code(), Some(1));
    let said = told(&output);
    assert!(
        said.contains(&format!(
            "capriole: process {pid} has no probes of capriole"
        )),
        "{said}"
    );
    for json in [false, true] {
        let trace = directory.path().join("t");
        let recorder = traces::Background::attach(&trace, running.pid, &[":counted_work", ":main"]);
        let mut words = vec!["detach", &pid];
        words.extend(json.then_some("--json"));
        let output = capriole(&words);
        assert!(output.status.success(), "{}", told(&output));
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        if json {
            insta::assert_snapshot!(shape_of(&said), @r#"
            {
              "pid": "number",
              "restored": "number",
              "changed_by_others": "number",
              "still_mapped": "bool",
              "standstill_ns": "number"
            }
            "#);
        } else {
            let wanted = format!("2 probes taken out of process {pid} (counted-");
            assert!(said.starts_with(&wanted), "{said}");
        }
        assert_eq!(recorder.ended_by_itself()["ended"], "detached");
    }
    drop(running);
}

#[test]
fn help() {
    let help = |words: &[&str]| {
        let output = capriole(words);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{}",
            told(&output)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    insta::assert_snapshot!(help(&["--help"]), @r"
    Dynamic probes and a flight recorder for native programs that are running

    Usage: capriole <COMMAND>

    Commands:
      record  Record every call of functions of a running program, or of one that is started
      report  Show a recorded trace
      stat    Count the calls of functions of a running program, or of one that is started
      list    List functions, and the tactic by which each would be reached
      check   Show how a site would be probed: tactics, reasons, bytes
      detach  Take every probe out of a process, also those of a recorder that was killed
      bench   Measure what a hit costs on this machine, next to other ways of seeing a call
      help    Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version
    ");
    insta::assert_snapshot!(help(&["record", "--help"]), @r"
    Record every call of functions of a running program, or of one that is started

    Usage: capriole record [OPTIONS] -e EVENT... (-p PID | [--] PROGRAM [ARGS]...)

    Arguments:
      [PROGRAM]...  The program to start, and its arguments

    Options:
      -e, --event <EVENT>       What to record: `LIB:FUNCTION [$arg1 NAME=$arg2 …]`, patterns allowed; an empty LIB is the main program
      -p, --pid <PID>           The running process
      -o, --output <DIR>        The trace directory [default: capriole.trace]
          --duration <TIME>     Stop recording after this time, such as 500ms, 2s, 1m
          --buffer-size <SIZE>  Memory shared with the program for events not yet on disk [default: 64M]
          --no-breakpoints      Never use breakpoints; functions that need one are left out
          --json                Print what was recorded where as JSON, when it is over
      -h, --help                Print help
    ");
    insta::assert_snapshot!(help(&["stat", "--help"]), @r"
    Count the calls of functions of a running program, or of one that is started

    Usage: capriole stat [OPTIONS] -e EVENT... (-p PID | [--] PROGRAM [ARGS]...)

    Arguments:
      [PROGRAM]...  The program to start, and its arguments

    Options:
      -e, --event <EVENT>    What to count: `LIB:FUNCTION`, patterns allowed; an empty LIB is the main program
      -p, --pid <PID>        The running process
          --duration <TIME>  Stop counting after this time, such as 500ms, 2s, 1m
          --interval <TIME>  Also print, each time this time is over, what was called in it
          --no-breakpoints   Never use breakpoints; functions that need one are left out
          --json             Print JSON
      -h, --help             Print help
    ");
    insta::assert_snapshot!(help(&["report", "--help"]), @r"
    Show a recorded trace

    Usage: capriole report [OPTIONS] [DIRECTORY]

    Arguments:
      [DIRECTORY]  The trace directory [default: capriole.trace]

    Options:
          --summary  Calls, share and rate of each event, instead of every event
          --json     Print JSON: one object, or without --summary one a line
      -h, --help     Print help
    ");
    insta::assert_snapshot!(help(&["list", "--help"]), @r"
    List functions, and the tactic by which each would be reached

    Usage: capriole list [OPTIONS] [PATTERN] (-p PID | PATH)

    Arguments:
      [PATTERN|PATH]...  `[PATTERN] PATH`, or with -p only `[PATTERN]`, such as `libc:mem*` or `:main`

    Options:
      -p, --pid <PID>  The running process
          --summary    Count tactics and reasons instead of listing functions
          --json       Print JSON
      -h, --help       Print help
    ");
    insta::assert_snapshot!(help(&["check", "--help"]), @r"
    Show how a site would be probed: tactics, reasons, bytes

    Usage: capriole check [OPTIONS] EVENT (-p PID | PATH)

    Arguments:
      <EVENT>  The event, such as `libc:malloc` or `:main+4`
      [PATH]   A file instead of a process

    Options:
      -p, --pid <PID>  The running process
          --json       Print JSON
      -h, --help       Print help
    ");
    insta::assert_snapshot!(help(&["detach", "--help"]), @r"
    Take every probe out of a process, also those of a recorder that was killed

    Usage: capriole detach [OPTIONS] <PID>

    Arguments:
      <PID>  The process

    Options:
          --json  Print JSON
      -h, --help  Print help
    ");
    insta::assert_snapshot!(help(&["bench", "--help"]), @r"
    Measure what a hit costs on this machine, next to other ways of seeing a call

    Usage: capriole bench [OPTIONS] [WHAT]

    Arguments:
      [WHAT]  What to measure [default: hit] [possible values: hit]

    Options:
          --rounds <ROUNDS>      Rounds, at least 7; the median of them counts [default: 9]
          --round-ms <ROUND_MS>  Length of a round of one row, in milliseconds [default: 25]
          --cpu <CPU>            Measure on this CPU
          --json                 Print JSON
      -h, --help                 Print help
    ");
    let version = help(&["--version"]);
    assert_eq!(version, format!("capriole {}\n", env!("CARGO_PKG_VERSION")));
}
