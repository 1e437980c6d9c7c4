//! Reports of a trace, for people and for programs.

use crate::common;

use std::path::Path;

use capriole_report::{Summary, TextOptions, write_json_lines, write_text};
use capriole_trace::clock::Clock;
use capriole_trace::{Finish, PacketMeta, Trace, TraceWriter};
use std::time::Instant;

/// A small trace of known events.
fn small(directory: &Path) -> Trace {
    let mut info = common::info();
    info.warnings.push("times may be off".to_string());
    let mut writer = TraceWriter::create(directory, &info).unwrap();
    let second = common::HZ;
    let at = |quarter: u64| common::START + quarter * second / 4;
    let first = [
        common::record(at(1), 0, 4242, &[0x55]),
        common::record(at(2), 7, 4243, &[1, 2, 3, 4, 5, u64::MAX]),
    ]
    .concat();
    let second = [
        common::record(at(3), 2, 4244, &[]),
        common::record(at(4), 70_000, 99, &[4096, 0]),
        common::record(at(38), u32::MAX, 4_194_303, &[0]),
    ]
    .concat();
    let meta = PacketMeta {
        cpu: 2,
        ..PacketMeta::default()
    };
    writer.write_packet(&meta, &first).unwrap();
    let meta = PacketMeta {
        cpu: 11,
        lane: 1,
        discarded: 12,
        ..PacketMeta::default()
    };
    writer.write_packet(&meta, &second).unwrap();
    let mut finish = common::finish();
    finish.lost_elsewhere = 3;
    writer.finish(finish).unwrap();
    Trace::open(directory).unwrap()
}

#[test]
fn text_is_laid_out_as_that_of_ftrace() {
    let scratch = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    let health = write_text(&small(scratch.path()), &mut text, &TextOptions::default()).unwrap();
    assert_eq!((health.lost_events, health.damages), (15, 0));
    insta::assert_snapshot!(String::from_utf8(text).unwrap());
}

#[test]
fn json_is_one_object_a_line() {
    let scratch = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    write_json_lines(&small(scratch.path()), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn the_summary_is_a_table() {
    let scratch = tempfile::tempdir().unwrap();
    let (mut summary, _) = Summary::of(&small(scratch.path())).unwrap();
    summary.directory = "capriole.trace".into();
    insta::assert_snapshot!(summary.to_string());
    insta::assert_snapshot!(serde_json::to_string_pretty(&summary).unwrap());
}

/// Two functions of one name share a row; the one that is not hit does not change its times.
#[test]
fn an_event_of_the_same_name_that_was_never_hit_counts_as_such() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(scratch.path(), &common::info()).unwrap();
    let hit = common::record(common::START + common::HZ, 7, 1, &[0; 6]);
    writer.write_packet(&PacketMeta::default(), &hit).unwrap();
    writer.finish(common::finish()).unwrap();
    let (summary, _) = Summary::of(&Trace::open(scratch.path()).unwrap()).unwrap();
    let [row] = &summary.by_event[..] else {
        panic!("{summary}");
    };
    assert_eq!((row.event.as_str(), row.calls), ("sqlite3_step", 1));
    assert_eq!(row.first_ns / 1_000_000, 1000);
    assert_eq!(row.first_ns, row.last_ns);
    assert_eq!(summary.silent, 5);
}

/// The recording begins when its probes are in, not when its clock was started.
#[test]
fn time_before_the_attach_is_not_part_of_the_recording() {
    let scratch = tempfile::tempdir().unwrap();
    let mut info = common::info();
    let clock = Clock::start().unwrap();
    info.clock = clock.model().unwrap();
    let began = info.clock.sync_points[0].monotonic_ns;
    let mut writer = TraceWriter::create(scratch.path(), &info).unwrap();
    let since = Instant::now();
    writer.set_start(since);
    let finish = common::finish();
    writer
        .finish(Finish {
            clock: info.clock,
            ..finish
        })
        .unwrap();
    let time = &Trace::open(scratch.path()).unwrap().document().time.clone();
    // The clock was watched for 10 ms before.
    assert!(time.start_monotonic_ns >= began + 10_000_000);
}

#[test]
fn a_trace_without_events_and_one_that_was_not_ended_say_so() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(scratch.path(), &common::info()).unwrap();
    let summary = || {
        let (mut summary, _) = Summary::of(&Trace::open(scratch.path()).unwrap()).unwrap();
        summary.directory = "capriole.trace".into();
        summary.to_string()
    };
    insta::assert_snapshot!(summary());
    let one = common::record(common::START, 0, 1, &[0]);
    writer.write_packet(&PacketMeta::default(), &one).unwrap();
    let gap = PacketMeta {
        seq: 5,
        ..PacketMeta::default()
    };
    writer.write_packet(&gap, &one.repeat(2000)).unwrap();
    let cpu = std::fs::OpenOptions::new()
        .append(true)
        .open(scratch.path().join("cpu0"));
    std::io::Write::write_all(&mut cpu.unwrap(), b"junk").unwrap();
    insta::assert_snapshot!(summary());
    let mut text = Vec::new();
    write_text(
        &Trace::open(scratch.path()).unwrap(),
        &mut text,
        &TextOptions::default(),
    )
    .unwrap();
    assert!(
        String::from_utf8(text)
            .unwrap()
            .contains("# warning: the recorder did not end")
    );
}

/// Every event of a large trace is written once, in each form.
#[test]
fn large_traces_come_out_whole() {
    let scratch = tempfile::tempdir().unwrap();
    common::generate(scratch.path(), 5000, 8);
    let trace = Trace::open(scratch.path()).unwrap();
    let mut text = Vec::new();
    write_text(&trace, &mut text, &TextOptions::default()).unwrap();
    let text = String::from_utf8(text).unwrap();
    let events = text
        .lines()
        .filter(|line| line.contains(": (libsqlite3.so.0.8.6+0x"))
        .count();
    assert_eq!(events, 5000);
    assert_eq!(
        text.lines()
            .filter(|line| line.ends_with(" [LOST 5 EVENTS]"))
            .count(),
        5
    );
    assert!(text.ends_with("# LOST 35 EVENTS in all: there was no room for them in the buffers\n"));
    let (summary, _) = Summary::of(&trace).unwrap();
    assert_eq!(
        summary
            .by_event
            .iter()
            .map(|event| event.calls)
            .sum::<u64>(),
        5000
    );
    assert_eq!((summary.threads, summary.cpus, summary.silent), (4, 3, 0));
}
