//! Checks that the hand-written record is correct, also with threads, preemption and signals:
//! a floor that loses or tears records would be no floor.

use std::collections::HashMap;
use std::process::{Command, Stdio};

use capriole_bench::floor::{self, EVENT_ID, Record};
use capriole_bench::{Function, function};
use capriole_testkit::effort::rounds;

const THREADS: u64 = 8;

/// Calls of each thread.
fn calls() -> u64 {
    rounds(50_000, 300_000, 3_000_000) as u64
}

/// Runs `test` of this program in a child process, so that a crash is reported as a failure.
fn in_child(test: &str) {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .output()
        .expect("the test program starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}: {text}",
        output.status
    );
    print!("{text}");
}

/// The floor, or the reason why there is none here.
fn floor_with(packet_bytes: u64) -> Option<&'static floor::Floor> {
    floor::install(packet_bytes)
        .inspect_err(|why| println!("skipped: {why}"))
        .ok()
}

#[test]
fn threads_and_signals_lose_and_tear_nothing() {
    in_child("floor::hammered_by_threads");
}

/// All records are kept: the packets are large enough.
#[test]
#[ignore = "run in a child process by threads_and_signals_lose_and_tear_nothing"]
fn hammered_by_threads() {
    let calls = calls();
    let Some(floor) = floor_with(THREADS * calls * floor::RECORD_BYTES) else {
        return;
    };
    interrupt_often();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(move || function::call(Function::FloorRecord, calls));
        }
    });
    assert_eq!(floor.committed(), THREADS * calls);
    let packets = floor.records();
    assert_eq!(
        packets.iter().map(|p| p.len() as u64).sum::<u64>(),
        THREADS * calls
    );
    let mut by_thread: HashMap<u32, Vec<Record>> = HashMap::new();
    for packet in &packets {
        for pair in packet.windows(2) {
            assert!(pair[0].tsc <= pair[1].tsc, "time goes back: {pair:?}");
        }
        for record in packet {
            assert_eq!(record.id, EVENT_ID, "{record:?}");
            assert_eq!(
                record.arguments[0] + record.arguments[1],
                calls,
                "{record:?}"
            );
            by_thread.entry(record.tid).or_default().push(*record);
        }
    }
    assert_eq!(by_thread.len() as u64, THREADS);
    for (tid, mut records) in by_thread {
        records.sort_by_key(|record| record.arguments[0]);
        assert_eq!(records.len() as u64, calls, "thread {tid}");
        for (sequence, record) in records.iter().enumerate() {
            assert_eq!(
                record.arguments[0], sequence as u64,
                "thread {tid}: {record:?}"
            );
        }
    }
}

#[test]
fn full_packets_are_counted() {
    in_child("floor::hammered_with_small_packets");
}

/// Packets of 16 records fill up all the time.
#[test]
#[ignore = "run in a child process by full_packets_are_counted"]
fn hammered_with_small_packets() {
    let calls = calls();
    let Some(floor) = floor_with(16 * floor::RECORD_BYTES) else {
        return;
    };
    interrupt_often();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(move || function::call(Function::FloorRecord, calls));
        }
    });
    assert_eq!(floor.committed(), THREADS * calls);
    for record in floor.records().iter().flatten() {
        assert_eq!(
            (record.id, record.arguments[0] + record.arguments[1]),
            (EVENT_ID, calls)
        );
    }
}

/// Raises a signal every 100 microseconds of CPU time, whose handler does nothing: each one
/// that arrives inside a critical section aborts it.
fn interrupt_often() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: all zero bytes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler does nothing.
    let set = unsafe { libc::sigaction(libc::SIGPROF, &action, core::ptr::null_mut()) };
    assert_eq!(set, 0);
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: 100,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: a timer for this process, with a handler for its signal.
    let set = unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, core::ptr::null_mut()) };
    assert_eq!(set, 0);
}

#[test]
fn the_packet_size_must_hold_whole_records() {
    assert!(floor::install(33).is_err());
    assert!(floor::install(0).is_err());
}
