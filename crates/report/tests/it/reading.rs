//! Written data is read back; damaged data is reported and skipped.

use crate::common;

use std::fs;
use std::path::Path;

use capriole_report::{TextOptions, write_text};
use capriole_trace::{DamageKind, HeaderFault, Health, RecordFault, Trace, TraceError};
use proptest::prelude::*;

/// Reads a whole trace.
fn read(directory: &Path) -> Result<(Vec<common::Expected>, Health), TraceError> {
    let trace = Trace::open(directory)?;
    let mut events = trace.events()?;
    let mut found = Vec::new();
    while let Some(event) = events.next()? {
        let id = trace.document().events[event.index].id;
        let arguments = event.words().collect();
        found.push((event.tsc, id, event.tid, event.cpu, event.lane, arguments));
    }
    let health = events.health();
    Ok((found, health))
}

#[test]
fn what_was_written_is_read_in_time_order() {
    let scratch = tempfile::tempdir().unwrap();
    let (expected, totals) = common::generate(scratch.path(), 5000, 1);
    let (found, health) = read(scratch.path()).unwrap();
    assert_eq!(found, expected);
    assert_eq!((health.lost_events, totals.lost_events), (35, 35));
    assert_eq!((health.lost_packets, health.damages), (0, 0));
    let trace = Trace::open(scratch.path()).unwrap();
    let document = trace.document();
    assert_eq!(document.events, common::events());
    assert_eq!(document.threads, common::finish().threads);
    assert_eq!(document.exit, common::finish().exit);
    assert_eq!(document.clock, common::clock());
    assert_eq!((document.complete, document.lost_events), (true, 35));
}

#[test]
fn times_are_those_of_the_clock() {
    let scratch = tempfile::tempdir().unwrap();
    let (expected, _) = common::generate(scratch.path(), 100, 3);
    let trace = Trace::open(scratch.path()).unwrap();
    let mut events = trace.events().unwrap();
    for wanted in expected {
        let event = events.next().unwrap().unwrap();
        let ticks = u128::from(wanted.0 - common::START);
        let ns = ticks * 1_000_000_000 / u128::from(common::HZ);
        assert_eq!(u128::from(event.time_ns), 548_697_000_000_017 + ns);
    }
    assert!(events.next().unwrap().is_none());
    assert!(events.next().unwrap().is_none());
}

#[test]
fn losses_are_told_where_they_happened() {
    let scratch = tempfile::tempdir().unwrap();
    common::generate(scratch.path(), 5000, 4);
    let trace = Trace::open(scratch.path()).unwrap();
    let mut events = trace.events().unwrap();
    let mut losses = Vec::new();
    while let Some(event) = events.next().unwrap() {
        if event.lost_before > 0 {
            losses.push((event.cpu, event.lane, event.lost_before));
        }
    }
    losses.sort_unstable();
    assert_eq!(
        losses,
        [(0, 0, 5), (1, 0, 5), (1, 1, 5), (11, 0, 5), (11, 300, 5)]
    );
}

/// Damages `cpu1` of a fresh trace, and returns the number of its events that are missing then.
fn damaged(damage: impl Fn(&mut Vec<u8>)) -> (usize, Health) {
    let scratch = tempfile::tempdir().unwrap();
    let (expected, _) = common::generate(scratch.path(), 1000, 5);
    let path = scratch.path().join("cpu1");
    let mut bytes = fs::read(&path).unwrap();
    damage(&mut bytes);
    fs::write(&path, bytes).unwrap();
    let (found, health) = read(scratch.path()).unwrap();
    assert!(
        found.iter().all(|event| expected.contains(event)),
        "an event was made up"
    );
    (expected.len() - found.len(), health)
}

/// Returns kind, offset and skipped bytes of the only damage.
fn only(health: &Health) -> (DamageKind, u64, u64) {
    assert_eq!((health.damages, health.shown.len()), (1, 1), "{health:?}");
    assert!(health.shown[0].file.ends_with("cpu1"));
    (
        health.shown[0].kind,
        health.shown[0].offset,
        health.shown[0].skipped,
    )
}

/// Returns the size of the packet that starts at `at`.
fn packet_bytes(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at + 40..at + 48].try_into().unwrap()) as usize / 8
}

#[test]
fn each_damage_is_told_with_its_place_and_costs_no_more_than_its_packet() {
    let (missing, health) = damaged(|_| {});
    assert_eq!((missing, health.damages), (0, 0));

    let (missing, health) = damaged(|bytes| bytes[0] ^= 1);
    let (kind, offset, skipped) = only(&health);
    assert_eq!((kind, offset), (DamageKind::Header(HeaderFault::Magic), 0));
    assert!(
        missing > 30 && skipped > 3000 && skipped < 3200,
        "{missing} {skipped}"
    );

    // The packet's length, changed to more than the file and to less than the header.
    for (byte, value) in [(43, 0x40), (47, 0x40), (40, 1), (41, 0)] {
        let (missing, health) = damaged(|bytes| bytes[byte] = value);
        let (kind, offset, _) = only(&health);
        assert_eq!(
            (kind, offset),
            (DamageKind::Header(HeaderFault::Sizes), 0),
            "{byte}"
        );
        assert!(missing > 30 && missing < 200);
    }

    let (_, health) = damaged(|bytes| bytes[72] ^= 1);
    assert_eq!(only(&health).0, DamageKind::Header(HeaderFault::Stream));
    let (_, health) = damaged(|bytes| bytes[5] ^= 1);
    assert_eq!(only(&health).0, DamageKind::Header(HeaderFault::Uuid));
    let (_, health) = damaged(|bytes| bytes[31] = 0xff);
    assert_eq!(only(&health).0, DamageKind::Header(HeaderFault::Times));

    // The first record's event, in the first and in the second packet.
    let (missing, health) = damaged(|bytes| bytes[91] = 0x55);
    let (kind, offset, _) = only(&health);
    assert!(
        matches!(kind, DamageKind::Record(RecordFault::UnknownEvent(_))),
        "{kind}"
    );
    assert_eq!(offset, 80);
    assert!(missing > 30);
    let (missing_too, health) = damaged(|bytes| {
        let second = packet_bytes(bytes, 0);
        bytes[second + 91] = 0x55;
    });
    assert!(only(&health).1 > 3000 && missing_too > 30);

    // The first record's time: one event is skipped.
    let (missing, health) = damaged(|bytes| bytes[87] = 0x55);
    assert_eq!(
        (missing, only(&health)),
        (1, (DamageKind::TimeOutside, 80, only(&health).2))
    );

    // The count of lost events, in the last packet.
    let (missing, health) = damaged(|bytes| {
        let at = bytes.len() - 80;
        bytes[at + 64] = 0;
    });
    let (kind, _, skipped) = only(&health);
    assert_eq!(
        (missing, kind, skipped),
        (0, DamageKind::LossesBackwards, 0)
    );
}

#[test]
fn a_file_that_ends_too_early_is_read_up_to_there() {
    // Inside the last, empty packet's header, and inside the records before it.
    let (missing, health) = damaged(|bytes| bytes.truncate(bytes.len() - 30));
    assert_eq!(
        (missing, only(&health).0, only(&health).2),
        (0, DamageKind::HeaderCutOff, 50)
    );
    let (missing, health) = damaged(|bytes| bytes.truncate(bytes.len() - 85));
    assert_eq!((missing, only(&health).0), (1, DamageKind::PacketCutOff));
    let (missing, health) = damaged(Vec::clear);
    assert!(missing > 100 && health.damages == 0);
}

/// The end of a trace that is being written, which may have a part of a packet, is no damage; anything else is.
#[test]
fn a_trace_that_is_being_written_may_end_inside_a_packet() {
    let cut = |end: &dyn Fn(&mut Vec<u8>)| {
        let scratch = tempfile::tempdir().unwrap();
        let (expected, _) = common::generate(scratch.path(), 1000, 5);
        let json = scratch.path().join("info/capriole.json");
        let text = fs::read_to_string(&json).unwrap();
        let unfinished = text.replace("\"complete\": true", "\"complete\": false");
        assert_ne!(text, unfinished);
        fs::write(&json, unfinished).unwrap();
        let path = scratch.path().join("cpu1");
        let mut bytes = fs::read(&path).unwrap();
        end(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let (found, health) = read(scratch.path()).unwrap();
        (expected.len() - found.len(), health.damages)
    };
    // Inside a packet's header, before and behind the magic number, and inside the records.
    for (less, missing) in [(30, 0), (78, 0), (85, 1)] {
        let end = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - less);
        assert_eq!(cut(&end), (missing, 0), "{less}");
    }
    assert_eq!(cut(&|bytes| bytes.extend(b"junk")), (0, 1));
}

#[test]
fn a_missing_packet_is_counted() {
    let (missing, health) = damaged(|bytes| {
        let first = packet_bytes(bytes, 0);
        let second = packet_bytes(bytes, first);
        bytes.drain(first..first + second);
    });
    assert!(missing > 30);
    assert_eq!((health.lost_packets, health.damages), (1, 0));
}

/// Returns the error message for a damaged trace directory, without the directory's own name.
fn refused(damage: impl Fn(&Path)) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    common::generate(&directory, 10, 1);
    damage(&directory);
    let error = Trace::open(&directory).unwrap_err();
    error
        .to_string()
        .replace(scratch.path().to_str().unwrap(), "DIR")
}

/// Replaces text in the JSON file.
fn edit(directory: &Path, from: &str, to: &str) {
    let path = directory.join("info/capriole.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&path, text.replace(from, to)).unwrap();
}

#[test]
fn a_trace_that_cannot_be_read_says_why() {
    insta::assert_snapshot!(refused(|directory| fs::remove_dir_all(directory).unwrap()),
        @"there is no trace at DIR/trace");
    insta::assert_snapshot!(refused(|directory| fs::remove_dir_all(directory.join("info")).unwrap()),
        @"DIR/trace is not a capriole trace: it has no info/capriole.json");
    insta::assert_snapshot!(refused(|directory| edit(directory, "\"format_version\": 4", "\"format_version\": 9")),
        @"DIR/trace/info/capriole.json has format version 9, and this program reads up to version 4; read it with a newer one");
    insta::assert_snapshot!(refused(|directory| edit(directory, "\"id\": 7,", "\"id\": 2,")),
        @"DIR/trace/info/capriole.json is damaged: two events have the id 2");
    insta::assert_snapshot!(refused(|directory| edit(directory, "\"uuid\": \"", "\"uuid\": \"\", \"was\": \"")),
        @"DIR/trace/info/capriole.json is damaged: `` is not a UUID");
    insta::assert_snapshot!(refused(|directory| edit(directory, "548707000000017", "17")),
        @"DIR/trace/info/capriole.json is damaged: the clock's sync point 1 is not later than the one before it");
    insta::assert_snapshot!(refused(|directory| edit(directory, "\"pid\": 4242", "\"pid\": \"no\"")),
        @r#"DIR/trace/info/capriole.json is damaged: invalid type: string "no", expected u32 at line 10 column 15"#);
    insta::assert_snapshot!(refused(|directory| fs::write(directory.join("info/capriole.json"), "").unwrap()),
        @"DIR/trace/info/capriole.json is damaged: EOF while parsing a value at line 1 column 0");
}

#[test]
fn damage_says_what_where_and_how_much() {
    let (_, health) = damaged(|bytes| bytes[0] ^= 1);
    let mut damage = health.shown[0].clone();
    damage.file = "DIR/cpu1".into();
    insta::assert_snapshot!(damage,
        @"DIR/cpu1: at byte 0: no packet starts here; 3136 bytes were passed over");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Arbitrary damage to the streams: reading ends, does not panic, and reads the other
    /// streams as if nothing were wrong.
    #[test]
    fn random_damage_never_panics(
        seed in 0u64..20,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1u8..), 0..20),
        cut in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>())),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let (expected, _) = common::generate(scratch.path(), 400, seed + 1);
        let names = ["cpu0", "cpu1", "cpu1.1", "cpu11", "cpu11.300"];
        let mut files = names.map(|name| fs::read(scratch.path().join(name)).unwrap());
        for (file, byte, bits) in &flips {
            let file = &mut files[file.index(names.len())];
            let byte = byte.index(file.len());
            file[byte] ^= bits;
        }
        if let Some((file, from, to)) = cut {
            let file = &mut files[file.index(names.len())];
            let (from, to) = (from.index(file.len()), to.index(file.len()));
            file.drain(from.min(to)..from.max(to));
        }
        for (name, bytes) in names.iter().zip(&files) {
            fs::write(scratch.path().join(name), bytes).unwrap();
        }
        let (found, health) = read(scratch.path()).unwrap();
        // Undamaged streams are read as they were written.
        let mut touched: Vec<usize> =
            flips.iter().map(|(file, ..)| file.index(names.len())).collect();
        touched.extend(cut.map(|(file, ..)| file.index(names.len())));
        let streams = [(0, 0), (1, 0), (1, 1), (11, 0), (11, 300)];
        for (at, stream) in streams.iter().enumerate() {
            if !touched.contains(&at) {
                let of = |events: &[common::Expected]| -> Vec<common::Expected> {
                    events.iter().filter(|event| (event.3, event.4) == *stream).cloned().collect()
                };
                prop_assert_eq!(of(&found), of(&expected));
            }
        }
        if touched.is_empty() {
            prop_assert_eq!(health.damages, 0);
        }
        let mut text = Vec::new();
        let trace = Trace::open(scratch.path()).unwrap();
        write_text(&trace, &mut text, &TextOptions::default()).unwrap();
        let lines = text.split(|byte| *byte == b'\n').filter(|line| line.contains(&b':') && !line.starts_with(b"#"));
        let lost = lines.clone().filter(|line| line.ends_with(b"EVENTS]")).count();
        prop_assert_eq!(lines.count() - lost, found.len());
        capriole_report::Summary::of(&trace).unwrap().0.to_string();
    }

    /// Arbitrary damage to the description: an error or a trace, and never a panic.
    #[test]
    fn a_damaged_description_never_panics(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        common::generate(scratch.path(), 50, 1);
        let path = scratch.path().join("info/capriole.json");
        let mut text = fs::read(&path).unwrap();
        for (byte, value) in flips {
            let byte = byte.index(text.len());
            text[byte] = value;
        }
        fs::write(&path, text).unwrap();
        if let Ok(trace) = Trace::open(scratch.path()) {
            capriole_report::write_json_lines(&trace, Vec::new()).unwrap();
            capriole_report::Summary::of(&trace).unwrap().0.to_string();
        }
    }
}
