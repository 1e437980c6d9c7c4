//! Reports of calls, for people and for programs.

use crate::common;

use std::path::Path;

use capriole_report::{
    CallSummary, Callers, Flame, FlameBy, Form, GraphOptions, Order, TextOptions, write_graph,
    write_graph_json, write_text,
};
use capriole_trace::Trace;
use common::calls::Script;

const NAMES: [&str; 5] = ["main", "parse", "read", "throw", "a\x1b[1m;b"];
const STACK: u64 = 0x7ffc_0000_8000;

/// Two threads, recursion, an exception, a tail call, a loss, unpaired events, and an event
/// that is no call.
fn small(directory: &Path) -> Trace {
    let mut script = Script::new();
    script.leave(3, STACK - 0x200);
    script.enter(0, STACK);
    script.enter(1, STACK - 0x40);
    script.time += 20_000;
    script.enter(1, STACK - 0x80);
    script.note(1);
    script.enter(2, STACK - 0xc0).value = u64::MAX;
    script.leave(2, STACK - 0xc0).value = -12_i64 as u64;
    script.tid = 4243;
    script.cpu = 1;
    script.enter(4, STACK - 0x1000_0000);
    script.tid = 4242;
    script.cpu = 0;
    script.leave(1, STACK - 0x80);
    script.leave(1, STACK - 0x40);
    script.enter(3, STACK - 0x40);
    script.enter(2, STACK - 0x80);
    script.time += 3_000_000;
    script.jump(2, STACK - 0x80);
    script.enter(1, STACK - 0x40);
    script.enter(2, STACK - 0x80);
    script.time += 300_000;
    script.leave(2, STACK - 0x80);
    script.leave(1, STACK - 0x40).lost = 7;
    script.enter(2, STACK - 0x40);
    script.leave(2, STACK - 0x40);
    script.leave(0, STACK);
    script.write(directory, &NAMES)
}

fn graph(options: &GraphOptions) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    write_graph(&small(scratch.path()), &mut text, options).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn the_graph_is_laid_out_as_that_of_ftrace() {
    insta::assert_snapshot!(graph(&GraphOptions::default()), @r#"
    # tracer: capriole
    #
    # program: sqlite3 test "x".db (pid 4242)
    # LOST EVENTS: 7
    #
    # CPU  TASK-PID             DURATION          FUNCTION CALLS
    # |       |                  |   |             |   |   |   |
      0)   sqlite3-4242    |                   |  main(n=0) {
      0)   sqlite3-4242    |                   |    parse(n=1) {
      0)   sqlite3-4242    |                   |      parse(n=1) {
      0)   sqlite3-4242    |                   |        /* parse__note: n=7 */
      0)   sqlite3-4242    |          0.444 us |        read(n=-1) = -12;
      0)   sqlite3-4242    |          2.222 us |      } = 101 /* parse */
      0)   sqlite3-4242    | +       12.000 us |    } = 101 /* parse */
      0)   sqlite3-4242    |                   |    throw(n=3) {
      0)   sqlite3-4242    | #     1333.777 us |      read(n=2); /* tail call */
      0)   sqlite3-4242    |    >= 1334.222 us |    } /* throw: abandoned */
      0)   sqlite3-4242    |                   |    parse(n=1) {
      0)   sqlite3-4242    | !      133.777 us |      read(n=2) = 102;
    CPU:0 [LOST 7 EVENTS]
      0)   sqlite3-4242    | !      134.666 us |    } = 101 /* parse: doubtful: events were lost */
      0)   sqlite3-4242    |          0.444 us |    read(n=2) = 102;
      0)   sqlite3-4242    | #     1483.555 us |  } = 100 /* main: doubtful: events were lost */
      1)   worker "1"-4243 |                 - |  a?[1m;b(n=4); /* still open, or its exit was lost */
    # 1 exit without an entry is not shown
    # LOST 7 EVENTS in all: there was no room for them in the buffers
    "#);
}

#[test]
fn the_graph_can_be_cut() {
    let flat = GraphOptions {
        depth: Some(2),
        ..GraphOptions::default()
    };
    insta::assert_snapshot!(graph(&flat), @r#"
    # tracer: capriole
    #
    # program: sqlite3 test "x".db (pid 4242)
    # LOST EVENTS: 7
    #
    # CPU  TASK-PID             DURATION          FUNCTION CALLS
    # |       |                  |   |             |   |   |   |
      0)   sqlite3-4242    |                   |  main(n=0) {
      0)   sqlite3-4242    | +       12.000 us |    parse(n=1) = 101;
      0)   sqlite3-4242    |    >= 1334.222 us |    throw(n=3); /* abandoned */
    CPU:0 [LOST 7 EVENTS]
      0)   sqlite3-4242    | !      134.666 us |    parse(n=1) = 101; /* doubtful: events were lost */
      0)   sqlite3-4242    |          0.444 us |    read(n=2) = 102;
      0)   sqlite3-4242    | #     1483.555 us |  } = 100 /* main: doubtful: events were lost */
      1)   worker "1"-4243 |                 - |  a?[1m;b(n=4); /* still open, or its exit was lost */
    # 1 exit without an entry is not shown
    # LOST 7 EVENTS in all: there was no room for them in the buffers
    "#);
    let long = GraphOptions {
        min_duration_ns: 100_000,
        ..GraphOptions::default()
    };
    insta::assert_snapshot!(graph(&long), @r#"
    # tracer: capriole
    #
    # program: sqlite3 test "x".db (pid 4242)
    # LOST EVENTS: 7
    #
    # CPU  TASK-PID             DURATION          FUNCTION CALLS
    # |       |                  |   |             |   |   |   |
      0)   sqlite3-4242    |                   |  main(n=0) {
      0)   sqlite3-4242    |                   |    throw(n=3) {
      0)   sqlite3-4242    | #     1333.777 us |      read(n=2); /* tail call */
      0)   sqlite3-4242    |    >= 1334.222 us |    } /* throw: abandoned */
      0)   sqlite3-4242    |                   |    parse(n=1) {
      0)   sqlite3-4242    | !      133.777 us |      read(n=2) = 102;
    CPU:0 [LOST 7 EVENTS]
      0)   sqlite3-4242    | !      134.666 us |    } = 101 /* parse: doubtful: events were lost */
      0)   sqlite3-4242    | #     1483.555 us |  } = 100 /* main: doubtful: events were lost */
    # 1 exit without an entry is not shown
    # LOST 7 EVENTS in all: there was no room for them in the buffers
    "#);
}

#[test]
fn the_graph_as_json_is_one_object_a_line() {
    let scratch = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    write_graph_json(&small(scratch.path()), &mut text, &GraphOptions::default()).unwrap();
    let text = String::from_utf8(text).unwrap();
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    insta::assert_snapshot!(text, @r#"
    {"id":3,"parent":2,"function":"read","time_ns":548697000011572,"duration_ns":444,"self_ns":444,"cpu":0,"tid":4242,"comm":"sqlite3","depth":3,"exit":"returned","doubtful":false,"arguments":{"n":-1},"return":{"ret":-12}}
    {"id":2,"parent":1,"function":"parse","time_ns":548697000010683,"duration_ns":2222,"self_ns":1777,"cpu":0,"tid":4242,"comm":"sqlite3","depth":2,"exit":"returned","doubtful":false,"arguments":{"n":1},"return":{"ret":101}}
    {"id":1,"parent":0,"function":"parse","time_ns":548697000001350,"duration_ns":12000,"self_ns":9777,"cpu":0,"tid":4242,"comm":"sqlite3","depth":1,"exit":"returned","doubtful":false,"arguments":{"n":1},"return":{"ret":101}}
    {"id":6,"parent":5,"function":"read","time_ns":548697000014239,"duration_ns":1333777,"self_ns":1333777,"cpu":0,"tid":4242,"comm":"sqlite3","depth":2,"exit":"tail_call","doubtful":false,"arguments":{"n":2},"return":{}}
    {"id":5,"parent":0,"function":"throw","time_ns":548697000013794,"duration_ns":null,"self_ns":null,"at_least_ns":1334222,"before_end_ns":null,"cpu":0,"tid":4242,"comm":"sqlite3","depth":1,"exit":"abandoned","doubtful":false,"arguments":{"n":3},"return":null}
    {"id":8,"parent":7,"function":"read","time_ns":548697001348905,"duration_ns":133777,"self_ns":133777,"cpu":0,"tid":4242,"comm":"sqlite3","depth":2,"exit":"returned","doubtful":false,"arguments":{"n":2},"return":{"ret":102}}
    {"lost_events":7,"cpu":0}
    {"id":7,"parent":0,"function":"parse","time_ns":548697001348461,"duration_ns":134666,"self_ns":888,"cpu":0,"tid":4242,"comm":"sqlite3","depth":1,"exit":"returned","doubtful":true,"arguments":{"n":1},"return":{"ret":101}}
    {"id":9,"parent":0,"function":"read","time_ns":548697001483572,"duration_ns":444,"self_ns":444,"cpu":0,"tid":4242,"comm":"sqlite3","depth":1,"exit":"returned","doubtful":false,"arguments":{"n":2},"return":{"ret":102}}
    {"id":0,"parent":null,"function":"main","time_ns":548697000000905,"duration_ns":1483555,"self_ns":2222,"cpu":0,"tid":4242,"comm":"sqlite3","depth":0,"exit":"returned","doubtful":true,"arguments":{"n":0},"return":{"ret":100}}
    {"id":4,"parent":null,"function":"a\u001b[1m;b","time_ns":548697000012461,"duration_ns":null,"self_ns":null,"at_least_ns":0,"before_end_ns":null,"cpu":1,"tid":4243,"comm":"worker \"1\"","depth":0,"exit":"open","doubtful":true,"arguments":{"n":4},"return":null}
    {"unpaired_exits":1}
    {"lost_events_total":7}
    "#);
}

/// A hundred calls, of which so many are short: which are the half, and the hundredth, that take longer?
#[test]
fn quantiles_are_those_of_the_calls() {
    let of = |short: u64| {
        let scratch = tempfile::tempdir().unwrap();
        let mut script = Script::new();
        for call in 0..100 {
            script.enter(1, STACK);
            script.time += if call < short {
                1_000_000
            } else {
                1_000_000_000
            };
            script.leave(1, STACK);
        }
        let trace = script.write(scratch.path(), &NAMES);
        let (summary, _) = CallSummary::of(&trace, Order::Own).unwrap();
        let function = &summary.by_function[0];
        // 2.25 ticks are a nanosecond.
        let is_short = |ns: Option<u64>| ns.unwrap() < 1_000_000;
        assert!(is_short(function.min_ns) && !is_short(function.max_ns));
        (is_short(function.p50_ns), is_short(function.p99_ns))
    };
    assert_eq!(of(49), (false, false));
    assert_eq!(of(50), (true, false));
    assert_eq!(of(98), (true, false));
    assert_eq!(of(99), (true, true));
}

#[test]
fn the_summary_of_calls_is_a_table() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = small(scratch.path());
    let (mut summary, _) = CallSummary::of(&trace, Order::Own).unwrap();
    summary.directory = "capriole.trace".into();
    insta::assert_snapshot!(summary.to_string(), @r"
    capriole.trace: 10 calls in 10.000000 s, 2 threads; at least 0.001483 s in outermost calls
    LOST 7 EVENTS (25.0 %): not in the table
    1 call ended without an exit: by an exception, by longjmp, or with their exits lost
    1 call had not ended when the trace or their thread did
    3 calls may be two, because events were lost meanwhile
    1 exit without an entry: of calls from before the recording, or with their entries lost
    1 event of other kinds not in the table

    times in us
    calls       total      self  average    min       max    p50       p99  abandoned  open  doubtful  unpaired  function
        4    1468.444  1468.444  367.111  0.444  1333.777  0.445  1333.777          -     -         -         -  read
        3     146.666    12.444    7.111  2.222    12.000  2.232    12.000          -     -         1         -  parse
        1    1483.555     2.222        -      -         -      -         -          -     -         1         -  main
        1  >=1334.222   >=0.444        -      -         -      -         -          1     -         -         1  throw
        1           -         -        -      -         -      -         -          -     1         1         -  a?[1m;b
    ");
    insta::assert_snapshot!(serde_json::to_string(&summary.by_function[1]).unwrap(), @r#"{"function":"parse","calls":3,"total_ns":146666,"self_ns":12444,"unended":0,"measured":2,"average_ns":7111.0,"min_ns":2222,"max_ns":12000,"p50_ns":2232,"p99_ns":12000,"tail_calls":0,"abandoned":0,"open":0,"doubtful":1,"unpaired":0}"#);
    let names = |order| -> Vec<String> {
        let (summary, _) = CallSummary::of(&trace, order).unwrap();
        let own: u64 = summary.by_function.iter().filter_map(|f| f.self_ns).sum();
        // Each is rounded down.
        assert!(own <= summary.total_ns && summary.total_ns - own < 5);
        summary
            .by_function
            .into_iter()
            .map(|f| f.function)
            .collect()
    };
    insta::assert_debug_snapshot!([names(Order::Total), names(Order::Calls)], @r#"
    [
        [
            "main",
            "read",
            "throw",
            "parse",
            "a\u{1b}[1m;b",
        ],
        [
            "read",
            "parse",
            "a\u{1b}[1m;b",
            "main",
            "throw",
        ],
    ]
    "#);
}

#[test]
fn callers_and_callees_have_the_same_sums() {
    let scratch = tempfile::tempdir().unwrap();
    let (mut callers, _) = Callers::of(&small(scratch.path())).unwrap();
    callers.directory = "capriole.trace".into();
    insta::assert_snapshot!(callers.to_string(), @r"
    capriole.trace: 10 calls of 5 functions; times in us
    LOST 7 EVENTS: who called whom may be wrong there
    calls       total      self

        1    1483.555     2.222    <- (no recorded caller)
        1    1483.555     2.222  main
        1  >=1334.222   >=0.444    -> throw
        2     146.666    10.666    -> parse
        1       0.444     0.444    -> read

        1    1333.777  1333.777    <- throw
        2     134.222   134.222    <- parse
        1       0.444     0.444    <- main
        4    1468.444  1468.444  read

        1  >=1334.222   >=0.444    <- main
        1  >=1334.222   >=0.444  throw
        1    1333.777  1333.777    -> read

        2     146.666    10.666    <- main
        1       0.000     1.777    <- parse
        3     146.666    12.444  parse
        2     134.222   134.222    -> read
        1       0.000     1.777    -> parse

        1           -         -    <- (no recorded caller)
        1           -         -  a?[1m;b
    ");
    insta::assert_snapshot!(serde_json::to_string(&callers.functions[2]).unwrap(), @r#"{"function":"throw","calls":1,"total_ns":1334222,"self_ns":444,"unended":1,"callers":[{"function":"main","calls":1,"total_ns":1334222,"self_ns":444,"unended":1}],"callees":[{"function":"read","calls":1,"total_ns":1333777,"self_ns":1333777,"unended":0}]}"#);
}

#[test]
fn the_flame_graph_is_folded_by_time_and_by_calls() {
    let scratch = tempfile::tempdir().unwrap();
    let (flame, _) = Flame::of(&small(scratch.path())).unwrap();
    let lines: Vec<String> = flame
        .stacks
        .iter()
        .map(|s| {
            format!(
                "{} {} {:?} {}\n",
                s.functions.join(" > ").escape_debug(),
                s.calls,
                s.self_ns,
                s.unended
            )
        })
        .collect();
    insta::assert_snapshot!(lines.concat(), @r"
    a\u{1b}[1m;b 1 None 1
    main 1 Some(2222) 0
    main > parse 2 Some(10666) 0
    main > parse > parse 1 Some(1777) 0
    main > parse > parse > read 1 Some(444) 0
    main > parse > read 1 Some(133777) 0
    main > read 1 Some(444) 0
    main > throw 1 Some(444) 1
    main > throw > read 1 Some(1333777) 0
    ");
    for (by, unit) in [(FlameBy::Time, "ns"), (FlameBy::Calls, "calls")] {
        let mut picture = Vec::new();
        flame
            .draw(by, Form::Short, "a <title>", &mut picture)
            .unwrap();
        let picture = String::from_utf8(picture).unwrap();
        assert!(picture.contains("a &lt;title&gt;"), "{picture}");
        assert!(picture.contains(unit));
        assert!(picture.contains("<title>parse ("));
        // A name is one frame, whatever it contains. The time of this one is not known.
        assert_eq!(picture.contains("<title>a?[1m,b ("), by == FlameBy::Calls);
        assert!(!picture.contains('\x1b'));
        let mut again = Vec::new();
        flame
            .draw(by, Form::Short, "a <title>", &mut again)
            .unwrap();
        assert_eq!(picture.as_bytes(), again);
    }
}

/// 100,000 levels neither overflow a stack nor give endless lines or pictures.
#[test]
fn deep_recursion_can_be_shown() {
    const LEVELS: u64 = 100_000;
    let scratch = tempfile::tempdir().unwrap();
    let mut script = Script::new();
    for level in 0..LEVELS {
        script.enter(1, STACK - level * 32);
    }
    for level in (0..LEVELS).rev() {
        script.leave(1, STACK - level * 32);
    }
    let trace = script.write(scratch.path(), &NAMES);
    let mut text = Vec::new();
    write_graph(&trace, &mut text, &GraphOptions::default()).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.clone().count() as u64, 2 * LEVELS - 1);
    assert!(lines.clone().all(|line| line.len() < 250));
    assert!(
        lines
            .clone()
            .any(|line| line.contains("[99998] parse(n=1) {"))
    );
    let (flame, _) = Flame::of(&trace).unwrap();
    assert_eq!(flame.stacks.len(), Flame::MOST_DEEP + 1);
    assert_eq!(
        flame.stacks.iter().map(|stack| stack.calls).sum::<u64>(),
        LEVELS
    );
    let (callers, _) = Callers::of(&trace).unwrap();
    let edges = &callers.functions[0].callers;
    assert_eq!(
        edges.iter().map(|edge| edge.total_ns).max(),
        Some(callers.functions[0].total_ns)
    );
}

/// `_sp` is used for pairing only, and is not shown.
#[test]
fn fields_for_reading_are_not_shown() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = small(scratch.path());
    let mut text = Vec::new();
    write_text(&trace, &mut text, &TextOptions::default()).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("read__return: (libsqlite3.so.0.8.6+0x1384) ret=-12"),
        "{text}"
    );
    assert!(!text.contains("_sp"));
    let mut json = Vec::new();
    capriole_report::write_json_lines(&trace, &mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert!(json.contains("\"arguments\":{\"ret\":-12}"), "{json}");
    for line in json.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

/// The field for pairing has a name that begins like reserved names in CTF's metadata.
#[test]
fn babeltrace_reads_entries_and_exits() {
    let scratch = tempfile::tempdir().unwrap();
    small(scratch.path());
    let Some((lines, _)) = common::babeltrace(scratch.path()) else {
        return;
    };
    let exit = "read__return: { cpu_id = 0, lane = 0 }, { tid = 4242 }, { _sp = 0x7FFC00007F40, ret = -12 }";
    assert!(lines.iter().any(|line| line.ends_with(exit)), "{lines:#?}");
}
