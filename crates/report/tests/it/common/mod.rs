//! A synthetic trace, the same each time.
#![allow(dead_code, reason = "each test uses its part")]

pub mod calls;
pub mod typed;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use capriole_event::FieldType;
use capriole_trace::clock::{ClockModel, SyncPoint};
use capriole_trace::{
    EventInfo, ExitStatus, FieldInfo, Finish, PacketMeta, RefusalInfo, Stop, Target, Totals,
    TraceInfo, TraceWriter,
};

/// Ticks per second of the made-up clock.
pub const HZ: u64 = 2_249_999_871;
/// The tick at which the recording begins, as on a machine that has been up for some days.
pub const START: u64 = 1_234_567_890_123_456;

/// Two sync points, ten seconds apart.
pub fn clock() -> ClockModel {
    let point = |second: u64| SyncPoint {
        tsc: START + second * HZ,
        monotonic_ns: 548_697_000_000_017 + second * 1_000_000_000,
        realtime_ns: 1_700_000_000_123_456_789 + second * 1_000_000_000,
    };
    ClockModel::from_points(vec![point(0), point(10)], 0).unwrap()
}

/// Converts a TSC value as a CTF reader does: ns since 1970-01-01 UTC along one line, rounded down.
/// Differs from the piecewise conversion by the rounding of the frequency (at most 1 us an hour) and
/// by adjustments of the system time during the recording.
pub fn ctf_ns(model: &ClockModel, tsc: u64) -> i128 {
    let ticks = u128::from(model.offset_cycles) + u128::from(tsc);
    let ns = ticks * 1_000_000_000 / u128::from(model.freq_hz);
    i128::from(model.offset_s) * 1_000_000_000 + ns as i128
}

pub fn event(id: u32, name: &str, arguments: &[&str]) -> EventInfo {
    EventInfo {
        id,
        name: name.to_string(),
        symbol: Some(name.to_string()),
        symbol_offset: 0,
        object: "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0.8.6".to_string(),
        soname: None,
        build_id: Some("0123456789abcdef".to_string()),
        offset: 0x1234 + u64::from(id % 1000) * 16,
        address: 0x7f00_0000_1234,
        fields: arguments
            .iter()
            .map(|name| FieldInfo::new(name.to_string(), FieldType::X64))
            .collect(),
        faults: false,
        tactic: "jump".to_string(),
        refusals: vec![RefusalInfo {
            tactic: "reserved".to_string(),
            reason: "there are no reserved bytes".to_string(),
        }],
        role: capriole_trace::Role::Point,
        call: None,
        format: None,
    }
}

/// Events with all kinds of names and ids, whose fields are all of the type `x64`.
pub fn events() -> Vec<EventInfo> {
    vec![
        event(0, "sqlite3_step", &["arg1"]),
        event(
            1,
            "std::vector<char, \"quoted\\\">::push_back(char const&)",
            &["int", "struct", "align", "event"],
        ),
        event(2, "no arguments", &[]),
        event(
            7,
            "sqlite3_step",
            &["arg1", "arg2", "arg3", "arg4", "arg5", "arg6"],
        ),
        event(70_000, "operator new[](unsigned long)", &["size", "size"]),
        event(u32::MAX, "größe", &["größe"]),
    ]
}

pub fn info() -> TraceInfo {
    TraceInfo {
        target: Target {
            pid: 4242,
            executable: "/usr/bin/sqlite3".to_string(),
            command_line: vec!["sqlite3".to_string(), "test \"x\".db".to_string()],
        },
        events: events(),
        clock: clock(),
        warnings: Vec::new(),
    }
}

pub fn finish() -> Finish {
    Finish {
        clock: clock(),
        threads: BTreeMap::from([
            (4242, "sqlite3".to_string()),
            (4243, "worker \"1\"".to_string()),
            (4244, "a\tb".to_string()),
        ]),
        probed_ns: None,
        stops: vec![Stop {
            what: "attach".to_string(),
            duration_ns: 812_345,
            threads: 3,
        }],
        lost_elsewhere: 0,
        exit: Some(ExitStatus::Exited(3)),
        complete: true,
        warnings: Vec::new(),
    }
}

/// The bytes of a record.
pub fn record(time: u64, id: u32, tid: u32, arguments: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&time.to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&tid.to_le_bytes());
    for argument in arguments {
        bytes.extend_from_slice(&argument.to_le_bytes());
    }
    bytes
}

/// xorshift64*: pseudo-random numbers, the same each time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }
}

/// A written event: time, event id, thread, CPU, lane, arguments.
pub type Expected = (u64, u32, u32, u32, u32, Vec<u64>);

/// Writes `count` events to five streams, and returns them in time order. Each stream's second
/// packet reports 5 lost events; its last packet is empty and reports 2 more.
pub fn generate(directory: &Path, count: usize, seed: u64) -> (Vec<Expected>, Totals) {
    let mut writer = TraceWriter::create(directory, &info()).unwrap();
    let mut random = Random(seed);
    let events = events();
    let mut expected = Vec::new();
    let streams = [(0, 0), (1, 0), (1, 1), (11, 0), (11, 300)];
    let mut contents = vec![Vec::new(); streams.len()];
    let mut packets = vec![0; streams.len()];
    let mut time = START;
    let flush =
        |writer: &mut TraceWriter, content: &mut Vec<u8>, at: usize, packets: &mut Vec<u64>| {
            let (cpu, lane) = streams[at];
            let seq = packets[at];
            let discarded = if seq == 0 { 0 } else { 5 };
            let meta = PacketMeta {
                cpu,
                lane,
                seq,
                discarded,
                ..PacketMeta::default()
            };
            let written = writer.write_packet(&meta, content).unwrap();
            assert_eq!((written.adjusted, written.damaged_bytes), (0, 0));
            packets[at] += 1;
            content.clear();
        };
    for _ in 0..count {
        time += random.below(2_000_000);
        let at = random.below(streams.len() as u64) as usize;
        let event = &events[random.below(events.len() as u64) as usize];
        let tid = 4242 + random.below(4) as u32;
        let arguments: Vec<u64> = event
            .fields
            .iter()
            .map(|_| random.below(u64::MAX) >> random.below(64))
            .collect();
        contents[at].extend_from_slice(&record(time, event.id, tid, &arguments));
        let (cpu, lane) = streams[at];
        expected.push((time, event.id, tid, cpu, lane, arguments));
        if contents[at].len() > 3000 {
            flush(&mut writer, &mut contents[at], at, &mut packets);
        }
    }
    for at in 0..streams.len() {
        flush(&mut writer, &mut contents[at], at, &mut packets);
        let (cpu, lane) = streams[at];
        let meta = PacketMeta {
            cpu,
            lane,
            seq: packets[at],
            discarded: 7,
            ts_begin: Some(time),
            ts_end: Some(time),
        };
        writer.write_packet(&meta, &[]).unwrap();
    }
    // Events of the same time in different streams are ordered by CPU and lane.
    expected.sort_by_key(|event| (event.0, event.3, event.4));
    (expected, writer.finish(finish()).unwrap())
}

/// Returns babeltrace2's output for a trace: standard output and standard error, or `None` if
/// it is not installed.
pub fn babeltrace(directory: &Path) -> Option<(Vec<String>, String)> {
    let output = Command::new("babeltrace2")
        .args(["--no-delta", "--clock-seconds"])
        .arg(directory)
        .env("LC_ALL", "C.UTF-8")
        .output();
    let Ok(output) = output else {
        println!("skipped: babeltrace2 is not installed");
        return None;
    };
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(String::from)
        .collect();
    Some((lines, errors))
}
