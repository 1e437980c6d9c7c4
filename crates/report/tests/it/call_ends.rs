//! Calls around losses, calls of threads that have ended, and coroutines.

use crate::common;

use capriole_report::calls::{Call, Exit};
use capriole_report::{CallSummary, GraphOptions, Order, Summary, write_graph};
use capriole_trace::{PacketMeta, Trace, TraceWriter};
use common::calls::{Heard, Script, Step, function};
use common::{START, record};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const NAMES: [&str; 2] = ["outer", "inner"];
const OUTER: u32 = 0;
const INNER: u32 = 1;
const STACK: u64 = 0x7ffc_0000_8000;

/// A packet: CPU, lane, events lost so far, and times of entries (even) and returns of `inner` in
/// one thread.
type Packet<'a> = (u32, u32, u64, &'a [u64]);

/// Time ranges of losses, and the time up to which they are known.
type Times<'a> = Option<(&'a [(u64, u64)], u64)>;

/// Writes packets with calls of `inner` that begin at even times and end at odd ones. Returns
/// each call's beginning and end, and whether it is doubtful.
fn doubts(packets: &[Packet<'_>], times: Times<'_>) -> Vec<(u64, u64, bool)> {
    let scratch = tempfile::tempdir().unwrap();
    let mut info = common::info();
    info.events = function(INNER, NAMES[1]);
    let mut writer = TraceWriter::create(scratch.path(), &info).unwrap();
    let mut seq = std::collections::BTreeMap::new();
    for (cpu, lane, discarded, records) in packets {
        let seq: &mut u64 = seq.entry((cpu, lane)).or_default();
        let meta = PacketMeta {
            cpu: *cpu,
            lane: *lane,
            seq: *seq,
            discarded: *discarded,
            ..PacketMeta::default()
        };
        *seq += 1;
        let content: Vec<u8> = records
            .iter()
            .flat_map(|time| {
                record(
                    START + time,
                    10 * INNER + (*time % 2) as u32,
                    7,
                    &[STACK, 0],
                )
            })
            .collect();
        writer.write_packet(&meta, &content).unwrap();
    }
    if let Some((times, known_until)) = times {
        let mut before = START;
        for (begin, end) in times {
            writer.note_losses((before, START + begin), false);
            writer.note_losses((START + begin, START + end), true);
            before = START + end;
        }
        writer.note_losses((before, START + known_until), false);
    }
    writer.finish(common::finish()).unwrap();
    let heard = Heard::of(&Trace::open(scratch.path()).unwrap());
    let told = |call: &Call| (call.begin.time - START, call.end - START, call.doubtful);
    heard.calls.iter().map(told).collect()
}

/// The thread's events are in one CPU's stream, and another CPU's stream has lost events
/// between 24 and 50: those may have been the thread's.
#[test]
fn calls_are_doubtful_while_any_stream_loses_events() {
    let calls = [10, 13, 20, 25, 30, 35, 40, 51, 60, 65];
    let packets: [Packet<'_>; 3] = [(0, 0, 0, &calls), (1, 0, 0, &[2, 3, 24]), (1, 0, 5, &[71])];
    let exact = doubts(&packets, Some((&[], 1000)));
    // The entry at 24 is inside the thread's own call, with the same stack pointer: that call is
    // abandoned.
    let found: Vec<_> = exact.iter().map(|call| (call.0, call.2)).collect();
    assert_eq!(
        found,
        [
            (2, false),
            (10, false),
            (20, false),
            (24, true),
            (30, true),
            (40, true),
            (60, true)
        ],
        "{exact:?}"
    );
    let packets: [Packet<'_>; 3] = [(0, 0, 0, &calls), (1, 0, 0, &[2, 3]), (1, 0, 5, &[36, 37])];
    let exact = doubts(&packets, Some((&[], 1000)));
    let sure: Vec<_> = exact.iter().filter(|c| !c.2).map(|c| c.0).collect();
    assert_eq!(sure, [2, 36, 40, 60], "{exact:?}");
    // Without times, events may be lost anywhere, not only between packets: up to the end.
    let rough = doubts(&packets, None);
    let sure: Vec<_> = rough.iter().filter(|c| !c.2).map(|c| c.0).collect();
    assert_eq!(sure, [2], "{rough:?}");
}

/// Losses after the last record of a packet, counted in that packet, as in old traces.
#[test]
fn losses_may_be_behind_the_packet_that_counts_them() {
    let packets: [Packet<'_>; 4] = [
        (0, 0, 0, &[2, 3]),
        (0, 0, 5, &[4, 5, 6]),
        // Lost: the end of that call and the beginning of another one.
        (0, 0, 5, &[9, 10, 11]),
        (0, 0, 5, &[12, 13]),
    ];
    let found = doubts(&packets, None);
    let all = [
        (2, 3, false),
        (4, 5, true),
        (6, 9, true),
        (10, 11, false),
        (12, 13, false),
    ];
    assert_eq!(found, all);
    // What was lost may have happened up to the first record of the next packet.
    let packets: [Packet<'_>; 4] = [
        (0, 0, 0, &[2, 3]),
        (0, 0, 5, &[4, 5]),
        (0, 0, 5, &[10, 11]),
        (1, 0, 0, &[6, 7]),
    ];
    let all = [(2, 3, false), (4, 5, true), (6, 7, true), (10, 11, true)];
    assert_eq!(doubts(&packets, None), all);
}

/// In lanes other than the first, the trace contains the times of losses.
#[test]
fn losses_of_lanes_have_times() {
    let calls = [10, 13, 20, 25, 30, 35, 40, 45];
    let packets: [Packet<'_>; 2] = [(0, 0, 0, &calls), (0, 3, 5, &[])];
    let sure = |times| {
        let found = doubts(&packets, Some(times));
        let sure = found.into_iter().filter(|call| !call.2);
        sure.map(|call| call.0).collect::<Vec<_>>()
    };
    assert_eq!(sure((&[(22, 23)], 1000)), [10, 30, 40]);
    assert_eq!(sure((&[(15, 18), (31, 31)], 1000)), [10, 20, 40]);
    assert_eq!(sure((&[(15, 18)], 37)), [10, 20, 30]);
}

fn write(directory: &Path, script: &Script, last: Option<&[u32]>) -> Heard {
    script.write(directory, &NAMES);
    if let Some(last) = last {
        let path = directory.join("info/capriole.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let end = text.rfind('}').unwrap();
        let text = format!("{},\"last_threads\":{last:?}}}", &text[..end].trim_end());
        std::fs::write(&path, text).unwrap();
    }
    Heard::of(&Trace::open(directory).unwrap())
}

#[test]
fn calls_of_threads_that_have_ended_end_with_them() {
    let mut script = Script::new();
    script.enter(OUTER, STACK);
    script.tid = 4243;
    script.enter(OUTER, STACK);
    script.enter(INNER, STACK - 64);
    script.time += 5000;
    script.note(INNER);
    script.tid = 4242;
    script.note(INNER);
    let scratch = || tempfile::tempdir().unwrap();
    let heard = write(scratch().path(), &script, Some(&[4242]));
    insta::assert_snapshot!(heard.told(&NAMES), @r"
    outer 1000..1000 self 0 Open
    outer 2000..3000 self 1000 ThreadEnded
      inner 3000..3000 self 0 ThreadEnded
    ");
    for last in [None, Some(&[4242, 4243][..])] {
        let heard = write(scratch().path(), &script, last);
        assert!(heard.calls.iter().all(|call| call.exit == Exit::Open));
    }
}

/// A call left by an exception that no later event of its thread shows, in a program that goes on.
#[test]
fn a_call_that_was_only_entered_has_no_time() {
    let mut script = Script::new();
    for _ in 0..4 {
        script.enter(OUTER, STACK);
        script.time += 1_000_000;
    }
    script.tid = 4243;
    script.enter(INNER, STACK);
    script.leave(INNER, STACK);
    let directory = tempfile::tempdir().unwrap();
    for (last, before_end) in [(None, false), (Some(&[4242][..]), true)] {
        write(directory.path(), &script, last);
        if before_end {
            // The program still runs.
            let path = directory.path().join("info/capriole.json");
            let mut document: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            document["stops"] =
                serde_json::json!([{"what": "detach", "duration_ns": 1000, "threads": 2}]);
            std::fs::write(&path, document.to_string()).unwrap();
        }
        let trace = Trace::open(directory.path()).unwrap();
        let (summary, _) = CallSummary::of(&trace, Order::Own).unwrap();
        let rows = summary.by_function.iter();
        let rows = rows.map(|row| (row.function.as_str(), row.total_ns, row.unended));
        let rows: Vec<_> = rows.collect();
        assert_eq!(rows[0].0, "inner", "{rows:?}");
        assert_eq!(rows[1], ("outer", None, 4));
        let heard = Heard::of(&trace);
        let outer = heard.calls.iter().filter(|call| call.begin.tid == 4242);
        let outer: Vec<_> = outer.collect();
        assert!(outer.iter().all(|call| call.duration() == 0));
        let ends: Vec<bool> = outer.iter().map(|call| call.before_end.is_some()).collect();
        assert_eq!(ends, [false, false, false, before_end]);
        let mut text = Vec::new();
        let long = GraphOptions {
            min_duration_ns: 1_000_000_000,
            ..GraphOptions::default()
        };
        write_graph(&trace, &mut text, &long).unwrap();
        let text = String::from_utf8(text).unwrap();
        let begun = "  outer(n=0); /* still open, or left by an exception; begun ";
        assert_eq!(text.contains(begun), before_end, "{text}");
        // The clock was read for the last time after 10 s, 9 s after the probes were out.
        let ticks = |trace: &Trace| {
            Heard::of(trace)
                .calls
                .iter()
                .find_map(|call| call.before_end)
        };
        let until_clock = ticks(&trace);
        let path = directory.path().join("info/capriole.json");
        let mut document: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        document["time"]["probed_ns"] = 1_000_000_000.into();
        std::fs::write(&path, document.to_string()).unwrap();
        let until_out = ticks(&Trace::open(directory.path()).unwrap());
        let sooner = until_clock.zip(until_out).map(|(clock, out)| clock - out);
        assert_eq!(sooner, before_end.then_some(9 * common::HZ));
    }
}

/// Calls of coroutines as they were made, and as they were reported.
struct Coroutines {
    /// For each call, by the time of its entry: the coroutine, and the time of its exit.
    made: BTreeMap<u64, (usize, u64)>,
    heard: Heard,
}

/// Coroutines with adjacent stacks: each has a call of `outer` that makes `rounds` calls
/// of `inner`, and yields in each of them. `next` chooses the one that continues.
fn coroutines(
    count: usize,
    size: u64,
    rounds: usize,
    mut next: impl FnMut(&[usize]) -> usize,
) -> Coroutines {
    let mut script = Script::new();
    let place = |n: usize| 0x7f00_0000_0000 + (n as u64 + 1) * size - 64;
    let mut done = vec![0; count];
    let mut open = vec![Vec::new(); count];
    let mut left: Vec<usize> = (0..count).collect();
    let mut made = BTreeMap::new();
    while !left.is_empty() {
        let at = next(&left);
        let n = left[at];
        let mut ended = |begin: Option<u64>, exit: &Step| {
            made.insert(begin.unwrap(), (n, exit.time));
        };
        match done[n] {
            0 => open[n].push(script.enter(OUTER, place(n)).time),
            _ => ended(open[n].pop(), script.leave(INNER, place(n) - 64)),
        };
        if done[n] == rounds {
            ended(open[n].pop(), script.leave(OUTER, place(n)));
            left.remove(at);
        } else {
            open[n].push(script.enter(INNER, place(n) - 64).time);
            done[n] += 1;
        }
    }
    let scratch = tempfile::tempdir().unwrap();
    let heard = Heard::of(&script.write(scratch.path(), &NAMES));
    Coroutines { made, heard }
}

#[test]
fn a_hundred_coroutines_in_turn_are_told_apart() {
    for size in [16 << 10, 64 << 10, 256 << 10] {
        let mut turn = 0;
        let Coroutines { heard, .. } = coroutines(100, size, 50, |left| {
            turn += 1;
            (turn - 1) % left.len()
        });
        let right = heard.calls.iter().filter(|call| call.is_certain()).count();
        assert_eq!((right, heard.unpaired.len()), (5100 - 198, 198), "{size}");
    }
}

/// Runs coroutines whose stacks have `1 << bits` bytes. Checks that calls that are reported as
/// certain are as they were made, and that the guess which calls share a stack was corrected at
/// most once for each power of two between that size and the first guess, 256 KiB.
fn told_apart(count: usize, bits: u32, seed: u64, in_turn: bool) {
    let mut random = common::Random(seed);
    let mut turn = 0;
    let Coroutines { made, heard } = coroutines(count, 1 << bits, 12, |left| {
        turn += 1;
        match in_turn {
            true => (turn - 1) % left.len(),
            false => random.below(left.len() as u64) as usize,
        }
    });
    assert_eq!((heard.calls.len(), made.len()), (13 * count, 13 * count));
    let mut wrong = Vec::new();
    let mut of_coroutine = vec![0; count];
    for call in &heard.calls {
        let begin = call.begin.time - START;
        let (coroutine, end) = made[&begin];
        match call.exit {
            Exit::Returned => assert_eq!(call.end - START, end, "{call:?}"),
            Exit::Abandoned => {
                wrong.push((begin, end));
                of_coroutine[coroutine] += 1;
            }
            _ => panic!("{call:?}"),
        }
    }
    assert_eq!(heard.unpaired.len(), wrong.len());
    let corrections = 19_u32.saturating_sub(bits) as usize;
    // A correction abandons no call that begins after it, and each coroutine has two open calls.
    assert!(of_coroutine.iter().all(|calls| *calls <= 2 * corrections));
    // A call that began after a correction and is abandoned proves that there was another one
    // before its exit.
    let (mut corrected, mut found) = (0, 0);
    while let Some(end) = wrong
        .iter()
        .filter_map(|(begin, end)| (*begin > corrected).then_some(*end))
        .min()
    {
        corrected = end;
        found += 1;
    }
    assert!(found <= corrections, "{found} {corrections}");
}

/// In this order one coroutine is in the stack of another until long after the guess was corrected.
#[test]
fn coroutines_in_one_stack_are_separated_by_a_correction() {
    told_apart(320, 16, 8_670_725_025_386_579_769, false);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn coroutines_in_any_order_are_told_apart(
        count in 2..400_usize,
        bits in 12..20_u32,
        seed in 1..u64::MAX,
        in_turn: bool,
    ) {
        told_apart(count, bits, seed, in_turn);
    }
}

/// While a trace is written, and after a kill, it lasts up to its last event, in summaries of calls as
/// in those of events.
#[test]
fn a_trace_without_an_end_lasts_up_to_its_last_event() {
    let scratch = tempfile::tempdir().unwrap();
    let mut info = common::info();
    info.events = function(INNER, NAMES[1]);
    let mut writer = TraceWriter::create(scratch.path(), &info).unwrap();
    let ticks = [10, 2_000_000_001, 4_000_000_000];
    let one = |(n, time)| record(START + time, 10 * INNER + n % 2, 7, &[STACK, 0]);
    let content: Vec<u8> = (0u32..).zip(ticks).flat_map(one).collect();
    writer
        .write_packet(&PacketMeta::default(), &content)
        .unwrap();
    drop(writer);
    let trace = Trace::open(scratch.path()).unwrap();
    let (calls, _) = CallSummary::of(&trace, Order::Total).unwrap();
    assert_eq!(calls.calls, 2);
    let (events, _) = Summary::of(&trace).unwrap();
    assert_eq!(calls.duration_ns, events.duration_ns);
    assert!(calls.duration_ns >= calls.total_ns, "{calls:?}");
}
