//! Calls that are recorded only at their exits, with their latencies.

use crate::common;

use capriole_report::calls::Exit;
use capriole_report::{CallSummary, GraphOptions, Order, write_graph, write_graph_json};
use capriole_trace::{EventInfo, FieldInfo, PacketMeta, Role, Trace, TraceWriter};
use common::calls::Heard;
use common::{Random, START, record};
use std::path::Path;

const NAMES: [&str; 3] = ["main", "parse", "read"];
const STACK: u64 = 0x7ffc_0000_8000;

/// A call: its function, its stack pointer, and its begin and end in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Whole {
    function: u32,
    stack_pointer: u64,
    begin: u64,
    end: u64,
    tid: u32,
}

fn whole(function: u32, below: u64, begin: u64, end: u64) -> Whole {
    Whole {
        function,
        stack_pointer: STACK - below,
        begin,
        end,
        tid: 4242,
    }
}

/// Event ids of a function: ten times its number for the entry, one more for the return.
fn infos(function: u32, name: &str) -> Vec<EventInfo> {
    let event = |add: u32, role, suffix: &str, fields: &[(&str, &str)]| {
        let mut event = common::event(10 * function + add, &format!("{name}{suffix}"), &[]);
        (event.role, event.call) = (role, Some(10 * function));
        let field = |(name, field_type): &(&str, &str)| {
            FieldInfo::new((*name).to_string(), field_type.parse().expect("a type"))
        };
        event.fields = fields.iter().map(field).collect();
        event
    };
    let exit = [
        ("_sp", "x64"),
        ("_duration", "u64"),
        ("n", "s64"),
        ("ret", "s64"),
    ];
    vec![
        event(0, Role::Entry, "", &[("n", "s64")]),
        event(1, Role::Return, "__return", &exit),
    ]
}

fn write(directory: &Path, calls: &[Whole]) -> Trace {
    write_by(directory, calls, 1)
}

/// Writes the calls with a clock that advances in steps of this many ticks.
fn write_by(directory: &Path, calls: &[Whole], step: u64) -> Trace {
    let mut info = common::info();
    let named = (0..).zip(NAMES);
    info.events = named.flat_map(|(n, name)| infos(n, name)).collect();
    let mut writer = TraceWriter::create(directory, &info).expect("a directory");
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.end);
    let mut content = Vec::new();
    for call in calls {
        let words = [
            call.stack_pointer,
            call.end - call.begin,
            u64::from(call.function),
            u64::from(call.function) + 100,
        ];
        let id = 10 * call.function + 1;
        content.extend_from_slice(&record(START + call.end, id, call.tid, &words));
    }
    let meta = PacketMeta::default();
    writer.write_packet(&meta, &content).expect("it is written");
    let mut finish = common::finish();
    finish.clock.step = step;
    writer.finish(finish).expect("it is written");
    Trace::open(directory).expect("it is whole")
}

fn heard(calls: &[Whole]) -> Heard {
    let scratch = tempfile::tempdir().expect("a directory");
    Heard::of(&write(scratch.path(), calls))
}

#[test]
fn a_call_contains_those_that_were_made_in_it() {
    let heard = heard(&[
        whole(0, 0, 1000, 9000),
        whole(1, 0x40, 2000, 4000),
        whole(2, 0x80, 2500, 3500),
        // Between them there were many short calls.
        whole(2, 0x10_0000, 5000, 6000),
        whole(1, 0x40, 6500, 8000),
        // After it, with the same stack pointer.
        whole(1, 0, 9500, 9600),
    ]);
    assert_eq!(heard.counts.first, START + 1000);
    insta::assert_snapshot!(heard.told(&NAMES), @r"
    main 1000..9000 self 3500 Returned
      parse 2000..4000 self 1000 Returned
        read 2500..3500 self 1000 Returned
      read 5000..6000 self 1000 Returned
      parse 6500..8000 self 1500 Returned
    parse 9500..9600 self 100 Returned
    ");
}

/// A function that is jumped to has its caller's stack pointer, and with `--return=stack` both return together,
/// it first. A chain does not shorten the reach between other calls.
#[test]
fn a_chain_of_tail_calls_is_nested() {
    let heard = heard(&[
        whole(0, 0, 1000, 9000),
        whole(0, 0x10_0000, 2000, 4002),
        whole(1, 0x10_0000, 2100, 4001),
        whole(2, 0x10_0000, 2200, 4000),
        whole(2, 0x10_0040, 2500, 2600),
        // Begun at one moment.
        whole(0, 0x40, 5000, 6002),
        whole(1, 0x40, 5000, 6001),
        // One after the other.
        whole(2, 0x40, 7000, 7100),
        whole(2, 0x40, 7100, 7200),
    ]);
    insta::assert_snapshot!(heard.told(&NAMES), @r"
    main 1000..9000 self 4796 Returned
      main 2000..4002 self 101 Returned
        parse 2100..4001 self 101 Returned
          read 2200..4000 self 1700 Returned
            read 2500..2600 self 100 Returned
      main 5000..6002 self 1 Returned
        parse 5000..6001 self 1001 Returned
      read 7000..7100 self 100 Returned
      read 7100..7200 self 100 Returned
    ");
}

/// Two calls that overlap are on two stacks, and so are two of which the later one is above the
/// other, or that are as far apart.
#[test]
fn stacks_are_told_apart() {
    let heard = heard(&[
        whole(0, 0, 1000, 5000),
        // A coroutine's call, which continues after the call that resumed it.
        whole(1, 0x2_0000, 2000, 7000),
        // Within both times, on the coroutine's stack.
        whole(2, 0x2_0040, 3000, 4000),
        // A handler on a separate stack.
        Whole {
            stack_pointer: STACK + 0x9000,
            ..whole(2, 0, 3200, 3300)
        },
        // Another thread at the same time.
        Whole {
            tid: 77,
            ..whole(1, 0x20, 1500, 4500)
        },
    ]);
    insta::assert_snapshot!(heard.told(&NAMES), @r"
    main 1000..5000 self 4000 Returned
    parse 1500..4500 self 3000 Returned
    parse 2000..7000 self 4000 Returned
      read 3000..4000 self 1000 Returned
    read 3200..3300 self 100 Returned
    ");
}

#[test]
fn goroutines_move_between_threads() {
    let at = |function, below: u64, begin, end, tid| Whole {
        stack_pointer: 0xc0_0010_0000 - below,
        tid,
        ..whole(function, 0, begin, end)
    };
    let heard = heard(&[at(0, 0, 1000, 5000, 1), at(1, 0x80, 2000, 3000, 2)]);
    insta::assert_snapshot!(heard.told(&NAMES), @r"
    main 1000..5000 self 3000 Returned
      parse 2000..3000 self 1000 Returned
    ");
}

#[test]
fn arguments_stand_at_the_beginning_and_results_at_the_end() {
    let scratch = tempfile::tempdir().expect("a directory");
    let trace = write(
        scratch.path(),
        &[whole(0, 0, 1000, 9000), whole(2, 0x40, 2000, 4000)],
    );
    let mut text = Vec::new();
    write_graph(&trace, &mut text, &GraphOptions::default()).expect("a report");
    let text = String::from_utf8(text).expect("UTF-8");
    let calls: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.rsplit_once("|  ")?.1))
        .collect();
    assert_eq!(
        calls,
        ["main(n=0) {", "  read(n=2) = 102;", "} = 100 /* main */"]
    );
    let mut json = Vec::new();
    write_graph_json(&trace, &mut json, &GraphOptions::default()).expect("a report");
    let json = String::from_utf8(json).expect("UTF-8");
    let first = json.lines().next().expect("a call");
    assert!(
        first.ends_with("\"arguments\":{\"n\":2},\"return\":{\"ret\":102}}"),
        "{first}"
    );
}

/// Calls shorter than some limit are omitted from call trees. Each remaining call belongs to
/// the innermost remaining call around it.
#[test]
fn what_is_left_out_belongs_to_its_caller() {
    let mut seed = 7_u64;
    let mut below = |limit: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % limit
    };
    for _ in 0..50 {
        let (mut time, mut open, mut all) = (1000, Vec::<(u32, u64, u64)>::new(), Vec::new());
        for _ in 0..400 {
            time += 1 + below(50);
            if open.len() < 12 && below(2) == 0 {
                let place = open
                    .last()
                    .map_or(0, |(_, place, _)| place + 0x10 * (1 + below(500)));
                open.push((below(3) as u32, place, time));
            } else if let Some((function, place, begin)) = open.pop() {
                all.push(whole(function, place, begin, time));
            }
        }
        while let Some((function, place, begin)) = open.pop() {
            time += 1;
            all.push(whole(function, place, begin, time));
        }
        let least = below(200);
        all.retain(|call| call.end - call.begin >= least);
        let heard = heard(&all);
        assert_eq!(heard.calls.len(), all.len());
        for call in &heard.calls {
            let time = (call.begin.time - START, call.end - START);
            let around = |other: &&Whole| {
                (other.begin, other.end) != time && other.begin <= time.0 && other.end >= time.1
            };
            let depth = all.iter().filter(around).count();
            assert_eq!(call.begin.depth, depth, "{call:?}");
        }
    }
}

/// Makes a call with calls inside it, by a clock that advances in steps. Returns its end time.
fn tree(random: &mut Random, step: u64, at: (u64, u64), depth: u32, calls: &mut Vec<Whole>) -> u64 {
    let (below, begin) = at;
    let mut now = begin + random.below(step);
    for _ in 0..random.below(4).saturating_sub(u64::from(depth / 3)) {
        let below = below + 16 * (1 + random.below(8));
        now = tree(random, step, (below, now), depth + 1, calls) + random.below(step);
    }
    if depth > 0 && depth < 6 && random.below(4) == 0 {
        // A tail call.
        now = tree(random, step, (below, now), depth + 1, calls);
    }
    let by_clock = |time: u64| time / step * step;
    calls.push(whole(depth % 3, below, by_clock(begin), by_clock(now)));
    now
}

/// Calls of zero latency, by a clock that advances in steps, are still calls; calls that begin
/// and end at the same time are reported in a possible order.
#[test]
fn a_clock_that_steps_loses_no_call() {
    let mut random = Random(11);
    for round in 0..300 {
        let step = [26, 100, 4000][round % 3];
        let mut calls = Vec::new();
        let mut now = 1000;
        while calls.len() < 40 {
            now = tree(&mut random, step, (0, now), 0, &mut calls);
        }
        let heard = heard(&calls);
        let told = heard.told(&NAMES);
        assert!(heard.unpaired.is_empty(), "{calls:#?}\n{told}");
        let mut found: Vec<_> = heard
            .calls
            .iter()
            .map(|call| {
                assert_eq!(call.exit, Exit::Returned, "{calls:#?}\n{told}");
                (
                    call.begin.time - START,
                    call.end - START,
                    call.begin.function,
                )
            })
            .collect();
        let mut made: Vec<_> = calls
            .iter()
            .map(|call| (call.begin, call.end, call.function as usize))
            .collect();
        found.sort_unstable();
        made.sort_unstable();
        assert_eq!(found, made, "{told}");
    }
}

/// Readers of times that short must be told about the clock's steps.
#[test]
fn steps_are_told_where_times_are_not_much_longer() {
    let told = |calls: &[Whole], step| {
        let scratch = tempfile::tempdir().expect("a directory");
        let trace = write_by(scratch.path(), calls, step);
        let (summary, _) = CallSummary::of(&trace, Order::Own).expect("a summary");
        let mut graph = Vec::new();
        write_graph(&trace, &mut graph, &GraphOptions::default()).expect("a graph");
        let graph = String::from_utf8(graph).expect("text");
        let clock = trace.document().clock.step_ns();
        assert_eq!(summary.clock_step_ns, clock);
        let in_graph = graph.contains(&format!(
            "\n# times are by a clock with steps of {clock} ns\n"
        ));
        let in_table = summary.to_string().contains("by a clock with steps of");
        assert_eq!(in_graph, in_table, "{graph}{summary}");
        in_table
    };
    let short = [whole(0, 0, 2600, 2600)];
    let long = [whole(0, 0, 2600, 2_600_000)];
    assert!(told(&short, 26));
    assert!(!told(&short, 1));
    assert!(!told(&long, 26));
}
