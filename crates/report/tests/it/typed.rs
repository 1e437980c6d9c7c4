//! Fields of every type: written data is read back, by this crate and by babeltrace2, and
//! damaged data is reported and skipped.

use crate::common;

use std::fs;
use std::path::Path;

use capriole_event::{Element, FieldType, Shown};
use capriole_report::{TextOptions, write_text};
use capriole_trace::{
    DamageKind, EventInfo, Health, PacketMeta, RecordFault, StackEnd, Trace, TraceWriter, Value,
    WriteError,
};
use common::typed::{self, Expected, Owned};
use proptest::prelude::*;

fn read(directory: &Path) -> (Vec<Expected>, Health) {
    let trace = Trace::open(directory).unwrap();
    let mut events = trace.events().unwrap();
    let mut found = Vec::new();
    while let Some(event) = events.next().unwrap() {
        assert_eq!(event.fields().len(), event.info().fields.len());
        let values = event.fields().map(typed::owned).collect();
        found.push((event.tsc, event.index, event.tid, event.cpu, values));
    }
    let health = events.health();
    (found, health)
}

/// A writer for one event of these fields.
fn writer(directory: &Path, fields: &[&str]) -> TraceWriter {
    let mut info = common::info();
    info.events = vec![typed::event(1, "event", fields, false)];
    TraceWriter::create(directory, &info).unwrap()
}

/// A record of event 1.
fn record(payload: &[&[u8]]) -> Vec<u8> {
    let mut bytes = common::record(common::START, 1, 4242, &[]);
    bytes.extend_from_slice(&payload.concat());
    bytes
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

#[test]
fn every_type_is_read_as_it_was_written() {
    let scratch = tempfile::tempdir().unwrap();
    let expected = typed::generate(scratch.path(), 3000, 11, false);
    let (found, health) = read(scratch.path());
    assert_eq!(found, expected);
    assert_eq!(
        (health.lost_events, health.lost_packets, health.damages),
        (0, 0, 0)
    );
    let trace = Trace::open(scratch.path()).unwrap();
    assert_eq!(trace.document().events, typed::events());
    for kind in 0..typed::events().len() {
        assert!(expected.iter().any(|event| event.1 == kind), "{kind}");
    }
}

#[test]
fn records_with_strings_are_put_in_order() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = writer(scratch.path(), &["text:string"]);
    let texts = ["third, and long", "", "first", "second"];
    let times = [30u64, 40, 10, 20];
    let mut content = Vec::new();
    for (time, text) in times.iter().zip(texts) {
        let mut bytes = record(&[&string(text)]);
        bytes[..8].copy_from_slice(&time.to_le_bytes());
        content.extend_from_slice(&bytes);
    }
    writer
        .write_packet(&PacketMeta::default(), &content)
        .unwrap();
    writer.finish(common::finish()).unwrap();
    let (found, health) = read(scratch.path());
    let text = |text: &str| vec![Owned::Text(text.as_bytes().to_vec())];
    let found: Vec<_> = found.into_iter().map(|event| (event.0, event.4)).collect();
    let wanted = [
        (10, text("first")),
        (20, text("second")),
        (30, text("third, and long")),
        (40, text("")),
    ];
    assert_eq!(found, wanted);
    assert_eq!(
        (health.lost_events, health.lost_packets, health.damages),
        (0, 0, 0)
    );
}

#[test]
fn the_writer_leaves_out_what_a_wrong_length_makes_unreadable() {
    let good = record(&[&string("good"), &[1; 8]]);
    for (length, kept) in [(4000, 0), (4001, 0), (u32::MAX, 0), (12, 0), (0, 2)] {
        let scratch = tempfile::tempdir().unwrap();
        let mut writer = writer(scratch.path(), &["text:string", "number:u64"]);
        let mut bad = good.clone();
        bad[16..20].copy_from_slice(&u32::to_le_bytes(length));
        let content = [&good[..], &bad].concat();
        let written = writer
            .write_packet(&PacketMeta::default(), &content)
            .unwrap();
        let damaged = if kept == 0 { bad.len() as u64 } else { 0 };
        assert_eq!(
            (written.events, written.damaged_bytes),
            (1 + kept / 2, damaged),
            "{length}"
        );
        writer.finish(common::finish()).unwrap();
        let (found, health) = read(scratch.path());
        assert_eq!((found.len() as u64, health.damages), (1 + kept / 2, 0));
    }
}

#[test]
fn a_wrong_length_in_a_file_is_told_with_its_place() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = writer(scratch.path(), &["number:u8", "text:string"]);
    let content = record(&[&[7; 8], &string("some text")]);
    for seq in 0..2 {
        let meta = PacketMeta {
            seq,
            ..PacketMeta::default()
        };
        writer.write_packet(&meta, &content.repeat(3)).unwrap();
    }
    writer.finish(common::finish()).unwrap();
    let path = scratch.path().join("cpu0");
    let whole = fs::read(&path).unwrap();
    let second = 80 + content.len();
    for (length, fault) in [
        (4001, RecordFault::StringTooLong(4001)),
        (u32::MAX, RecordFault::StringTooLong(u32::MAX)),
        (4000, RecordFault::CutOff),
    ] {
        let mut bytes = whole.clone();
        bytes[second + 24..second + 28].copy_from_slice(&length.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let (found, health) = read(scratch.path());
        // The rest of its packet cannot be parsed; the next packet can.
        assert_eq!((found.len(), health.damages), (1 + 3, 1), "{length}");
        let damage = &health.shown[0];
        assert_eq!(damage.kind, DamageKind::Record(fault));
        assert_eq!(damage.offset, second as u64);
        assert_eq!(damage.skipped, 2 * content.len() as u64);
    }
    let mut bytes = whole.clone();
    bytes[second + 24..second + 28].copy_from_slice(&4001u32.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let mut damage = read(scratch.path()).1.shown[0].clone();
    damage.file = "DIR/cpu0".into();
    insta::assert_snapshot!(damage,
        @"DIR/cpu0: at byte 120: a string of 4001 bytes is longer than 4000; 80 bytes were passed over");
}

#[test]
fn a_file_cut_anywhere_is_read_up_to_there() {
    let scratch = tempfile::tempdir().unwrap();
    let expected = typed::generate(scratch.path(), 60, 5, false);
    let path = scratch.path().join("cpu0");
    let whole = fs::read(&path).unwrap();
    let of = |events: &[Expected], cpu: u32| -> Vec<Expected> {
        events
            .iter()
            .filter(|event| event.3 == cpu)
            .cloned()
            .collect()
    };
    let mut before = 0;
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let (found, health) = read(scratch.path());
        let own = of(&found, 0);
        assert_eq!(own, of(&expected, 0)[..own.len()], "{cut}");
        assert_eq!(of(&found, 1), of(&expected, 1));
        assert!(own.len() >= before && health.damages <= 1, "{cut}");
        before = own.len();
    }
    assert!(before > 10);
}

#[test]
fn traces_of_version_1_are_read() {
    let scratch = tempfile::tempdir().unwrap();
    let (expected, _) = common::generate(scratch.path(), 200, 9);
    let path = scratch.path().join("info/capriole.json");
    let mut document: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    document["format_version"] = 1.into();
    for event in document["events"].as_array_mut().unwrap() {
        let event = event.as_object_mut().unwrap();
        let fields = event.remove("fields").unwrap();
        let fields = fields.as_array().unwrap();
        let names = fields.iter().map(|field| field["name"].clone()).collect();
        event.insert("arguments".to_string(), serde_json::Value::Array(names));
        event.remove("faults");
    }
    fs::write(&path, document.to_string()).unwrap();
    let trace = Trace::open(scratch.path()).unwrap();
    assert_eq!(trace.document().format_version, 1);
    assert_eq!(trace.document().events, common::events());
    let (found, health) = read(scratch.path());
    assert_eq!(health.damages, 0);
    let values = |words: &[u64]| words.iter().map(|word| Owned::Hexadecimal(*word)).collect();
    let wanted: Vec<Vec<Owned>> = expected.iter().map(|event| values(&event.5)).collect();
    let found: Vec<Vec<Owned>> = found.into_iter().map(|event| event.4).collect();
    assert_eq!(found, wanted);
}

#[test]
fn a_description_of_fields_that_makes_no_sense_says_why() {
    let refused = |from: &str, to: &str| {
        let scratch = tempfile::tempdir().unwrap();
        writer(scratch.path(), &["a:u16[4]"]);
        let path = scratch.path().join("info/capriole.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).unwrap();
        let error = Trace::open(scratch.path()).unwrap_err().to_string();
        let at = error.find(" at line").unwrap();
        error[..at].replace(scratch.path().to_str().unwrap(), "DIR")
    };
    insta::assert_snapshot!(refused("u16[4]", "u16[99]"),
        @"DIR/info/capriole.json is damaged: `u16[99]` is not a type: array number 99 is too big");
    insta::assert_snapshot!(refused("u16[4]", "u17"),
        @"DIR/info/capriole.json is damaged: `u17` is not a type: unknown type `u17`");
    insta::assert_snapshot!(refused("\"faults\"", "\"x\""),
        @"DIR/info/capriole.json is damaged: missing field `faults`");
    insta::assert_snapshot!(refused("\"fields\"", "\"x\""),
        @"DIR/info/capriole.json is damaged: missing field `fields`");
}

#[test]
fn a_type_without_a_name_is_not_recorded() {
    let scratch = tempfile::tempdir().unwrap();
    let mut info = common::info();
    info.events = vec![typed::event(1, "event", &["a:u8"], false)];
    info.events[0].fields[0].field_type = FieldType {
        element: Element::Number {
            shown: Shown::Character,
            bytes: 3,
            bits: None,
        },
        count: None,
    };
    let error = TraceWriter::create(&scratch.path().join("trace"), &info).unwrap_err();
    assert!(matches!(error, WriteError::FieldType { .. }));
    insta::assert_snapshot!(error, @"the field a of the event event has the type `char`, which does not exist");
}

/// A value in babeltrace2's layout.
fn babeltrace_value(element: Element, value: &Owned) -> String {
    let bits = match element {
        Element::Number { bits, .. } => bits,
        Element::String { .. } | Element::CallStack { .. } | Element::Ipv6 => None,
    };
    match value {
        Owned::Unsigned(value) => value.to_string(),
        Owned::Signed(value) => value.to_string(),
        Owned::Hexadecimal(value) | Owned::Symbol(value) => format!("0x{value:X}"),
        Owned::Ipv4(value) => format!("0x{value:X}"),
        Owned::Ipv6(address) => {
            let bytes = address.iter().enumerate();
            let bytes = bytes.map(|(n, byte)| format!("[{n}] = 0x{byte:X}"));
            format!("[ {} ]", bytes.collect::<Vec<_>>().join(", "))
        }
        Owned::Single(bits) => f32::from_bits(*bits).to_string(),
        Owned::Double(bits) => f64::from_bits(*bits).to_string(),
        Owned::Character(value) => value.to_string(),
        Owned::Text(text) => format!("\"{}\"", String::from_utf8(text.clone()).unwrap()),
        Owned::Array(values) if matches!(values[0], Owned::Character(_)) => {
            let characters = values.iter().map(|value| match value {
                Owned::Character(value) => char::from(*value),
                other => panic!("{other:?}"),
            });
            format!("\"{}\"", characters.collect::<String>())
        }
        Owned::Array(values) => {
            let values = values.iter().enumerate().map(|(n, value)| {
                let shown = babeltrace_value(element, value);
                match (value, bits) {
                    (Owned::Text(text), _) => {
                        format!("[{n}] = {{ length = {}, text = {shown} }}", text.len())
                    }
                    // The maker sets the bits around the number to ones; these are b3@5/16 and
                    // b8@0/8.
                    (_, Some(bits)) if bits.offset > 0 => {
                        format!("[{n}] = {{ below = 31, bits = {shown}, above = 255 }}")
                    }
                    (_, Some(_)) => format!("[{n}] = {{ bits = {shown} }}"),
                    _ => format!("[{n}] = {shown}"),
                }
            });
            format!("[ {} ]", values.collect::<Vec<_>>().join(", "))
        }
        Owned::CallStack(..) => panic!("tests/it/call_stacks.rs has them"),
        Owned::Fault => panic!("a fault is shown as what stands in its place"),
    }
}

/// Returns the value that replaces a field that could not be read, as in `typed::events`.
fn nothing(field_type: FieldType) -> Owned {
    let one = match field_type.element {
        Element::String { .. } => Owned::Text(Vec::new()),
        Element::CallStack { .. } => Owned::CallStack(Vec::new(), StackEnd::Outermost),
        Element::Ipv6 => Owned::Ipv6([0; 16]),
        Element::Number {
            shown: Shown::Signed,
            ..
        } => Owned::Signed(0),
        Element::Number {
            shown: Shown::Hexadecimal,
            ..
        } => Owned::Hexadecimal(0),
        Element::Number { .. } => Owned::Unsigned(0),
    };
    match field_type.count {
        Some(count) => Owned::Array(vec![one; usize::from(count)]),
        None => one,
    }
}

/// Formats an event's fields in babeltrace2's layout, without the empty arrays used for
/// alignment.
fn babeltrace_fields(event: &EventInfo, values: &[Owned]) -> String {
    let mut shown = Vec::new();
    if event.faults {
        let faults = values.iter().rev().fold(0, |mask, value| {
            mask << 1 | u64::from(*value == Owned::Fault)
        });
        shown.push(format!("_faults = 0x{faults:X}"));
    }
    for (field, value) in event.fields.iter().zip(values) {
        let name = &field.name;
        let value = match value {
            Owned::Fault => nothing(field.field_type),
            value => value.clone(),
        };
        match (field.field_type.element, &value) {
            (_, Owned::Text(text)) => shown.push(format!("_{name}_length = {}", text.len())),
            (_, Owned::Array(_)) => {}
            (
                Element::Number {
                    bits: Some(bits), ..
                },
                _,
            ) if bits.offset > 0 => {
                let ones = (1u64 << bits.offset) - 1;
                shown.push(format!("_{name}_below = {ones}"));
            }
            _ => {}
        }
        shown.push(format!(
            "{name} = {}",
            babeltrace_value(field.field_type.element, &value)
        ));
    }
    shown.join(", ")
}

/// babeltrace2 2.0 reuses the memory of its fields: an empty text, although its length is
/// shown as 0, may be that of an earlier event.
fn without_stale_text(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("length = 0, ") {
        let (name, stale) = after.split_once(" = \"").unwrap();
        text.push_str(&format!("{before}length = 0, {name} = \"\""));
        rest = stale.split_once('"').unwrap().1;
    }
    text.push_str(rest);
    text
}

#[test]
fn babeltrace_reads_every_type() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let expected = typed::generate(&directory, 2000, 12, true);
    let Some((lines, errors)) = common::babeltrace(&directory) else {
        return;
    };
    assert_eq!((lines.len(), errors.as_str()), (expected.len(), ""));
    let (found, _) = read(&directory);
    for ((line, wanted), own) in lines.iter().zip(&expected).zip(&found) {
        assert_eq!(own, wanted);
        let event = &typed::events()[own.1];
        let (_, rest) = line.split_once("] ").unwrap();
        let mut rest = rest.replace("_align = [ ], ", "");
        for n in 2..7 {
            rest = rest.replace(&format!("_align_{n} = [ ], "), "");
        }
        let rest = without_stale_text(&rest);
        let (tid, cpu, fields) = (own.2, own.3, babeltrace_fields(event, &own.4));
        let name = &event.name;
        let context = format!("{name}: {{ cpu_id = {cpu}, lane = 0 }}, {{ tid = {tid} }}");
        assert_eq!(rest, format!("{context}, {{ {fields} }}"));
    }
}

/// Each packet ends with this event, whose last field leaves bits or a string's bytes unused.
#[test]
fn babeltrace_finds_the_end_of_packets_whatever_is_last() {
    for last in [
        "u8",
        "b4@7/16",
        "b64@0/64",
        "u16[3]",
        "string",
        "string[2]",
        "char[5]",
        "x64",
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        let mut info = common::info();
        let field = format!("last:{last}");
        info.events = vec![typed::event(1, "event", &[&field], false)];
        let mut writer = TraceWriter::create(&directory, &info).unwrap();
        let mut maker = typed::Maker {
            random: common::Random(3),
            plain: true,
        };
        for seq in 0..20 {
            let meta = PacketMeta {
                seq,
                ..PacketMeta::default()
            };
            let records = (0..seq % 3).map(|n| {
                let time = common::START + seq * 10 + n;
                maker.record(time, &info.events[0], 1).0
            });
            let content = records.collect::<Vec<_>>().concat();
            writer.write_packet(&meta, &content).unwrap();
        }
        writer.finish(common::finish()).unwrap();
        assert_eq!(read(&directory).0.len(), 20 - 1);
        if let Some((lines, errors)) = common::babeltrace(&directory) {
            assert_eq!((lines.len(), errors.as_str()), (20 - 1, ""), "{last}");
        }
    }
}

/// Strings that a terminal would act on.
const HOSTILE: [&str; 3] = [
    "\x1b[2J\x1b]0;owned\x07",
    "a\u{202e}b\u{9b}1m",
    "two\nlines\t\"x\\y\"",
];

/// Known values of every kind.
fn known(directory: &Path) -> Trace {
    let mut info = common::info();
    info.events = vec![
        typed::event(
            1,
            "numbers",
            &[
                "size:u32",
                "most:u64",
                "fd:s32",
                "least:s64",
                "flags:x16",
                "mode:b3@5/32",
                "key:char",
                "esc:char",
            ],
            false,
        ),
        typed::event(2, "texts", &["path:string", "list:string[2]"], false),
        typed::event(
            3,
            "arrays",
            &[
                "ports:u16[3]",
                "deltas:s8[2]",
                "magic:char[4]",
                "flags:x8[1]",
            ],
            false,
        ),
        typed::event(
            4,
            "calls",
            &["callback:symbol", "unknown:symbol", "both:symbol[2]"],
            false,
        ),
        typed::event(
            5,
            "open",
            &["path:string", "flags:u32", "names:string[2]"],
            true,
        ),
    ];
    let function = &mut info.events[3];
    function.symbol = Some("on_event".to_string());
    (function.address, function.symbol_offset) = (0x4010, 0x10);
    let mut writer = TraceWriter::create(directory, &info).unwrap();
    let number = |value: i64| value.to_le_bytes().to_vec();
    let record = |n: u64, id: u32, parts: &[Vec<u8>]| {
        let time = common::START + n * common::HZ / 1000;
        let mut bytes = common::record(time, id, 4242, &[]);
        bytes.extend_from_slice(&parts.concat());
        bytes
    };
    let raw = |text: &[u8]| {
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(text);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    };
    let content = [
        record(
            1,
            1,
            &[
                number(-1),
                number(-1),
                number(-1),
                number(i64::MIN),
                number(0x1_beef),
                number(0b1010_0000),
                number(i64::from(b'a')),
                number(0x1b),
            ],
        ),
        record(
            2,
            1,
            &[
                number(31),
                number(1 << 53),
                number(7),
                number(-(1 << 53)),
                number(0),
                number(0),
                number(i64::from(b'\'')),
                number(0xe9),
            ],
        ),
        record(3, 2, &[string("/etc/passwd"), string(""), string("größe")]),
        record(
            4,
            2,
            &[string(HOSTILE[0]), string(HOSTILE[1]), string(HOSTILE[2])],
        ),
        record(5, 2, &[raw(b"\xff\xc3 \0"), string("x"), string("y")]),
        record(
            6,
            3,
            &[
                vec![80, 0, 0xbb, 1, 0x90, 0x1f, 9, 9],
                vec![1, 0xff, 0, 0, 0, 0, 0, 0],
                vec![0x7f, b'E', b'L', b'"', 0, 0, 0, 0],
                number(255),
            ],
        ),
        record(
            7,
            4,
            &[number(0x4008), number(0x4011), number(0x4000), number(0)],
        ),
        record(
            8,
            5,
            &[
                number(0),
                string("/tmp"),
                number(2),
                string("a"),
                string("b"),
            ],
        ),
        record(
            9,
            5,
            &[number(0b101), string(""), number(2), string(""), string("")],
        ),
    ];
    writer
        .write_packet(&PacketMeta::default(), &content.concat())
        .unwrap();
    writer.finish(common::finish()).unwrap();
    Trace::open(directory).unwrap()
}

#[test]
fn text_shows_fields_as_the_kernel_does() {
    let scratch = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    write_text(&known(scratch.path()), &mut text, &TextOptions::default()).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(!text.contains(|c: char| c != '\n' && c.is_control()));
    let fields: Vec<&str> = text
        .lines()
        .filter_map(|line| Some(line.split_once("so.0.8.6+0x")?.1.split_once(") ")?.1))
        .collect();
    insta::assert_snapshot!(fields.join("\n"));
}

#[test]
fn json_has_values_of_json() {
    let scratch = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    capriole_report::write_json_lines(&known(scratch.path()), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(!text.contains(|c: char| c != '\n' && c.is_control()));
    let mut fields = Vec::new();
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
        fields.push(&line[line.find("\"arguments\"").unwrap()..]);
    }
    let texts: serde_json::Value = serde_json::from_str(text.lines().nth(3).unwrap()).unwrap();
    let texts = &texts["arguments"];
    assert_eq!(texts["path"], HOSTILE[0]);
    assert_eq!(
        (&texts["list"][0], &texts["list"][1]),
        (&HOSTILE[1].into(), &HOSTILE[2].into())
    );
    insta::assert_snapshot!(fields.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Arbitrary damage to one stream: reading and reporting end and do not panic, the output
    /// contains nothing that a terminal acts on, and the other stream is read as if nothing were
    /// wrong.
    #[test]
    fn random_damage_never_panics(
        seed in 1u64..20,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let expected = typed::generate(scratch.path(), 200, seed, false);
        let path = scratch.path().join("cpu0");
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fs::write(&path, bytes).unwrap();
        let (found, _) = read(scratch.path());
        let other = |events: &[Expected]| -> Vec<Expected> {
            events.iter().filter(|event| event.3 == 1).cloned().collect()
        };
        prop_assert_eq!(other(&found), other(&expected));
        let trace = Trace::open(scratch.path()).unwrap();
        let mut text = Vec::new();
        write_text(&trace, &mut text, &TextOptions::default()).unwrap();
        let text = String::from_utf8(text).unwrap();
        prop_assert!(!text.contains(|c: char| c != '\n' && c.is_control()));
        let mut text = Vec::new();
        capriole_report::write_json_lines(&trace, &mut text).unwrap();
        let mut events = 0;
        for line in String::from_utf8(text).unwrap().lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            events += usize::from(line.get("event").is_some());
        }
        prop_assert_eq!(events, found.len());
    }
}

/// Values are small and can be stored: they need no allocation.
#[test]
fn a_value_outlives_its_iterator() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = writer(scratch.path(), &["a:u16[2]", "b:string"]);
    let content = record(&[&[1, 0, 2, 0, 0, 0, 0, 0], &string("text")]);
    writer
        .write_packet(&PacketMeta::default(), &content)
        .unwrap();
    let trace = Trace::open(scratch.path()).unwrap();
    let mut events = trace.events().unwrap();
    let event = events.next().unwrap().unwrap();
    let kept: Vec<Value<'_>> = event.fields().collect();
    let [Value::Array(array), Value::Text(text)] = kept[..] else {
        panic!("{kept:?}");
    };
    let sum: u64 = array
        .into_iter()
        .map(|value| match value {
            Value::Unsigned(value) => value,
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!((array.len(), sum, text), (2, 3, &b"text"[..]));
}
