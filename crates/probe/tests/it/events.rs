//! Events and records, each test in a process of its own.

use crate::support::in_child;
use capriole_probe::{Action, Event, Probe, Record, read_records};
use std::hint::black_box;

#[inline(never)]
extern "C" fn triple(number: u64) -> u64 {
    black_box(number) * 3 + black_box(1)
}

fn called(number: u64) -> u64 {
    black_box(triple as extern "C" fn(u64) -> u64)(number)
}

fn place() -> usize {
    triple as extern "C" fn(u64) -> u64 as usize
}

#[test]
fn an_aggregated_event_has_rows() {
    in_child("events::an_aggregated_event_has_rows", || {
        let event = Event::enable("libc:srandom count(), sum(seed=$arg1)").or_else(|error| {
            println!("{error}");
            Event::enable("libc:srandom sum(seed=$arg1)")
        });
        let event = event.unwrap();
        unsafe extern "C" {
            fn srandom(seed: u32);
        }
        for seed in 0..10 {
            unsafe { srandom(seed) };
        }
        let rows = event.rows().unwrap();
        assert!(rows.contains("srandom") && rows.contains("45"), "{rows}");
        event.disable().unwrap();
        assert!(Event::enable("libc:no_such_function").is_err());
        assert!(Event::enable("a\0b").is_err());
    });
}

#[test]
fn records_are_written_also_by_handlers() {
    static DONE: Record = Record::new(c"done", c"bytes=$arg1:u64 fd=$arg2:s32");
    in_child("events::records_are_written_also_by_handlers", || {
        DONE.write([1, 2]);
        DONE.enable().unwrap();
        assert!(DONE.enable().is_err());
        let probe = Probe::at(place()).before(|regs| {
            DONE.write([regs.di, u64::MAX]);
            Action::Continue
        });
        let _registered = unsafe { probe.register() }.unwrap();
        DONE.write([4096, 3]);
        called(17);
        let records = read_records().unwrap();
        let lines: Vec<&str> = records.lines().collect();
        assert_eq!(lines.len(), 2, "{records}");
        assert!(
            lines[0].contains("done") && lines[0].contains("bytes=4096 fd=3"),
            "{records}"
        );
        assert!(lines[1].contains("bytes=17 fd=-1"), "{records}");
        DONE.disable().unwrap();
        called(18);
        assert_eq!(read_records().unwrap(), "");
        DONE.enable().unwrap();
        called(19);
        assert!(read_records().unwrap().contains("bytes=19"));
    });
}
