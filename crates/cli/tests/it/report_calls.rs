//! `capriole report` of a trace with calls: each form, and the message if there are no calls.

use crate::target::{capriole, told};
use crate::traces::{scratch, text};
use capriole_trace::clock::{ClockModel, SyncPoint};
use capriole_trace::{
    EventInfo, FieldInfo, Finish, PacketMeta, Role, Target, TraceInfo, TraceWriter,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

fn event(id: u32, name: &str, role: Role, call: u32) -> EventInfo {
    let field = |name: &str, of: &str| FieldInfo::new(name.to_owned(), of.parse().expect("a type"));
    let value = if role == Role::Entry { "fd" } else { "ret" };
    EventInfo {
        id,
        name: name.to_owned(),
        symbol: Some(name.to_owned()),
        symbol_offset: 0,
        object: "/usr/bin/orders".to_owned(),
        soname: None,
        build_id: None,
        offset: 0x1000,
        address: 0x1000,
        fields: vec![field("_sp", "x64"), field(value, "s32")],
        faults: false,
        tactic: "jump".to_owned(),
        refusals: Vec::new(),
        role,
        call: (role != Role::Point).then_some(call),
        format: None,
    }
}

/// Writes a trace in which `main` calls `read` twice; a tick is a nanosecond.
fn write(directory: &Path, events: Vec<EventInfo>) {
    let point = |tsc| SyncPoint {
        tsc,
        monotonic_ns: tsc,
        realtime_ns: tsc,
    };
    let clock = ClockModel::from_points(vec![point(1), point(1_000_001)], 0).expect("a clock");
    let info = TraceInfo {
        target: Target {
            pid: 7,
            executable: "/usr/bin/orders".to_owned(),
            command_line: vec!["orders".to_owned()],
        },
        events,
        clock: clock.clone(),
        warnings: Vec::new(),
    };
    let mut writer = TraceWriter::create(directory, &info).expect("a trace");
    let mut content: Vec<u8> = Vec::new();
    for (time, id, stack_pointer, value) in [
        (1_000_u64, 0_u32, 0x8000_u64, 0_u64),
        (1_200, 2, 0x7f00, 3),
        (1_700, 3, 0x7f00, 12),
        (2_000, 2, 0x7f00, 4),
        (52_000, 3, 0x7f00, u64::MAX),
        (52_500, 1, 0x8000, 0),
    ] {
        content.extend_from_slice(&time.to_le_bytes());
        content.extend_from_slice(&id.to_le_bytes());
        content.extend_from_slice(&7_u32.to_le_bytes());
        content.extend_from_slice(&stack_pointer.to_le_bytes());
        content.extend_from_slice(&value.to_le_bytes());
    }
    let meta = PacketMeta::default();
    writer.write_packet(&meta, &content).expect("a packet");
    let finish = Finish {
        clock,
        threads: BTreeMap::from([(7, "orders".to_owned())]),
        probed_ns: None,
        stops: Vec::new(),
        lost_elsewhere: 0,
        exit: None,
        complete: true,
        warnings: Vec::new(),
    };
    writer.finish(finish).expect("a whole trace");
}

fn calls() -> Vec<EventInfo> {
    vec![
        event(0, "main", Role::Entry, 0),
        event(1, "main__return", Role::Return, 0),
        event(2, "read", Role::Entry, 2),
        event(3, "read__return", Role::Return, 2),
    ]
}

/// Returns the command's output for the trace in `t`, without the directory's name.
fn report(directory: &Path, words: &[&str]) -> String {
    let trace = directory.join("t");
    let mut all = vec!["report", text(&trace)];
    all.extend(words);
    let output = capriole(&all);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        told(&output)
    );
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    said.replace(text(directory), "DIR")
}

#[test]
fn each_form() {
    let directory = scratch();
    let directory = directory.path();
    write(&directory.join("t"), calls());
    insta::assert_snapshot!(report(directory, &["--graph", "--min-duration", "1us"]), @r"
    # tracer: capriole
    #
    # program: orders (pid 7)
    #
    # CPU  TASK-PID           DURATION          FUNCTION CALLS
    # |       |                |   |             |   |   |   |
      0)   orders-7      |                   |  main(fd=0) {
      0)   orders-7      | +       50.000 us |    read(fd=4) = -1;
      0)   orders-7      | +       51.500 us |  } = 0 /* main */
    ");
    let none = report(directory, &["--graph", "--min-duration", "100s"]);
    assert!(
        none.ends_with("|\n# none of the 3 calls took 100 s; the longest took 51.5 us\n"),
        "{none}"
    );
    let outermost = report(directory, &["--graph", "--depth", "1", "--json"]);
    let outermost: Value = serde_json::from_str(&outermost).expect("one line of JSON");
    assert_eq!(outermost["function"], "main");
    assert_eq!(outermost["self_ns"], 1_000);
    assert_eq!(outermost["return"]["ret"], 0);
    insta::assert_snapshot!(report(directory, &["--summary", "--sort", "total"]), @r"
    DIR/t: 3 calls in 0.001000 s, 1 thread; 0.000051 s in outermost calls

    times in us
    calls   total    self  average     min     max     p50     p99  function
        1  51.500   1.000   51.500  51.500  51.500  51.500  51.500  main
        2  50.500  50.500   25.250   0.500  50.000   0.501  50.000  read
    ");
    let summary: Value =
        serde_json::from_str(&report(directory, &["--summary", "--json"])).expect("JSON");
    assert_eq!(summary["by_function"][0]["function"], "read");
    insta::assert_snapshot!(report(directory, &["--callers"]), @r"
    DIR/t: 3 calls of 2 functions; times in us
    calls   total    self

        1  51.500   1.000    <- (no recorded caller)
        1  51.500   1.000  main
        2  50.500  50.500    -> read

        2  50.500  50.500    <- main
        2  50.500  50.500  read
    ");
    let callers: Value =
        serde_json::from_str(&report(directory, &["--callers", "--json"])).expect("JSON");
    assert_eq!(callers["functions"][0]["callees"][0]["calls"], 2);
    for (by, shown) in [("time", "50,500 ns"), ("calls", "2 calls")] {
        let file = directory.join("out.svg");
        assert_eq!(report(directory, &["--flame", text(&file), "--by", by]), "");
        let picture = std::fs::read_to_string(&file).expect("a picture");
        assert!(picture.contains(&format!("read ({shown}")), "{picture}");
        roxmltree::Document::parse_with_options(
            &picture,
            roxmltree::ParsingOptions {
                allow_dtd: true,
                ..Default::default()
            },
        )
        .expect("XML");
    }
    let file = directory.join("out.svg");
    let flame = report(directory, &["--flame", text(&file), "--json"]);
    let flame: Value = serde_json::from_str(&flame).expect("JSON");
    assert_eq!(
        flame["stacks"][1],
        serde_json::json!({"functions": ["main", "read"], "calls": 2, "self_ns": 50_500, "unended": 0})
    );
    // Every event, without the fields used for pairing.
    let events = report(directory, &[]);
    assert!(
        events.ends_with("main__return: (orders+0x1000) ret=0\n"),
        "{events}"
    );
    assert!(!events.contains("_sp"), "{events}");
}

#[test]
fn what_has_no_calls_says_so() {
    let directory = scratch();
    let directory = directory.path();
    let points = calls().into_iter().map(|mut event| {
        (event.role, event.call) = (Role::Point, None);
        event
    });
    write(&directory.join("t"), points.collect());
    let trace = directory.join("t");
    let file = directory.join("out.svg");
    for words in [
        &["--graph"][..],
        &["--callers"],
        &["--flame", text(&file)],
        &["--summary", "--sort", "total"],
    ] {
        let mut all = vec!["report", text(&trace)];
        all.extend(words);
        let output = capriole(&all);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(
            said.replace(text(directory), "DIR"),
            "capriole: DIR/t has no calls from entry to exit: record them by `capriole record --graph EVENT`\n"
        );
        assert!(!file.exists());
    }
    let summary = report(directory, &["--summary"]);
    assert!(summary.contains("6 events in"), "{summary}");
}

/// Entries and exits that were recorded separately are events, unless calls are requested.
#[test]
fn without_stack_pointers_a_summary_is_one_of_events() {
    let directory = scratch();
    let directory = directory.path();
    let plain = calls().into_iter().map(|mut event| {
        event.fields[0].name = "arg1".to_owned();
        event
    });
    write(&directory.join("t"), plain.collect());
    let summary = report(directory, &["--summary"]);
    assert!(summary.contains("6 events in"), "{summary}");
    let summary = report(directory, &["--summary", "--sort", "self"]);
    assert!(summary.contains("3 calls in"), "{summary}");
}

#[test]
fn a_picture_that_cannot_be_written_is_an_error() {
    let directory = scratch();
    let directory = directory.path();
    let trace = directory.join("t");
    write(&trace, calls());
    let file = directory.join("nowhere/out.svg");
    let output = capriole(&["report", text(&trace), "--flame", text(&file)]);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    insta::assert_snapshot!(said.replace(text(directory), "DIR"), @"capriole: cannot write DIR/nowhere/out.svg: No such file or directory (os error 2)");
}
