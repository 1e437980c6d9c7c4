//! A second opinion: babeltrace2 reads the traces that this crate writes.

use crate::common;

use capriole_trace::{PacketMeta, TraceWriter};
use common::babeltrace;

/// Converts ticks to ns as babeltrace2 does (`bt_util_ns_from_clock_class`): in floating point,
/// the offset and the ticks separately.
fn babeltrace_ns(ticks: u64) -> i128 {
    let clock = common::clock();
    let ns = |ticks: u64| (1e9 * ticks as f64 / clock.freq_hz as f64) as u64;
    i128::from(clock.offset_s) * 1_000_000_000
        + i128::from(ns(clock.offset_cycles))
        + i128::from(ns(ticks))
}

/// A line in babeltrace2's layout, without the time.
fn line(event: &common::Expected) -> String {
    let (_, id, tid, cpu, lane, values) = event;
    let info = common::events()
        .into_iter()
        .find(|event| event.id == *id)
        .unwrap();
    let names: &[&str] = match *id {
        70_000 => &["size", "size_2"],
        u32::MAX => &["gr__e"],
        _ => &info
            .fields
            .iter()
            .map(|field| field.name.as_str())
            .collect::<Vec<_>>(),
    };
    let fields: Vec<String> = names
        .iter()
        .zip(values)
        .map(|(name, value)| format!("{name} = 0x{value:X}"))
        .collect();
    let fields = match fields.is_empty() {
        true => "{ }".to_string(),
        false => format!("{{ {} }}", fields.join(", ")),
    };
    format!(
        "{}: {{ cpu_id = {cpu}, lane = {lane} }}, {{ tid = {tid} }}, {fields}",
        info.name
    )
}

#[test]
fn babeltrace_reads_the_same_events_at_the_same_times() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let (expected, totals) = common::generate(&directory, 5000, 42);
    assert_eq!((totals.events, totals.lost_events), (5000, 5 * 7));
    let Some((lines, errors)) = babeltrace(&directory) else {
        return;
    };
    assert_eq!(lines.len(), expected.len());
    for (found, wanted) in lines.iter().zip(&expected) {
        let (time, rest) = found.strip_prefix('[').unwrap().split_once("] ").unwrap();
        assert_eq!(rest, line(wanted));
        let (seconds, fraction) = time.split_once('.').unwrap();
        let ns =
            seconds.parse::<i128>().unwrap() * 1_000_000_000 + fraction.parse::<i128>().unwrap();
        assert_eq!(ns, babeltrace_ns(wanted.0));
        // Floating point has 53 bits, and the ticks use 51 before the multiplication.
        let exact = common::ctf_ns(&common::clock(), wanted.0);
        assert!((ns - exact).abs() <= 2, "{ns} {exact}");
    }
    // Each stream lost 5 and then 2 events, and babeltrace2 complains about nothing else.
    let complaints: Vec<&str> = errors.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(complaints.len(), 10, "{errors}");
    for (lost, count) in [("discarded 5 events", 5), ("discarded 2 events", 5)] {
        let found = complaints.iter().filter(|line| line.contains(lost)).count();
        assert_eq!(found, count, "{errors}");
    }
}

#[test]
fn babeltrace_takes_a_trace_without_events() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    TraceWriter::create(&directory, &common::info()).unwrap();
    if let Some((lines, errors)) = babeltrace(&directory) {
        assert_eq!((lines.len(), errors.as_str()), (0, ""));
    }
}

#[test]
fn babeltrace_takes_what_is_out_of_order_broken_or_lost_at_the_start() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let mut writer = TraceWriter::create(&directory, &common::info()).unwrap();
    let records = |times: &[u64]| -> Vec<u8> {
        times
            .iter()
            .flat_map(|time| common::record(*time, 2, 4242, &[]))
            .collect()
    };
    let first = PacketMeta {
        discarded: 9,
        ..PacketMeta::default()
    };
    writer
        .write_packet(&first, &records(&[900, 700, 800]))
        .unwrap();
    let mut broken = records(&[1000, 850]);
    broken.extend_from_slice(&[0x55; 40]);
    let second = PacketMeta {
        seq: 1,
        ts_begin: Some(10),
        ..first
    };
    let written = writer.write_packet(&second, &broken).unwrap();
    assert_eq!(
        (written.events, written.adjusted, written.damaged_bytes),
        (2, 1, 40)
    );
    let after_gap = PacketMeta {
        seq: 4,
        discarded: 9,
        ..first
    };
    writer.write_packet(&after_gap, &records(&[1100])).unwrap();
    writer.finish(common::finish()).unwrap();
    let Some((lines, errors)) = babeltrace(&directory) else {
        return;
    };
    assert_eq!(lines.len(), 6);
    let complaints: Vec<&str> = errors.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(complaints.len(), 2, "{errors}");
    assert!(complaints[0].contains("discarded 9 events"), "{errors}");
    assert!(complaints[1].contains("discarded 2 packets"), "{errors}");
}
