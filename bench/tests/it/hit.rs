//! The bench target and the rows, used as a program uses them.

use std::process::Command;
use std::time::Duration;

use capriole_bench::{
    BpfCounter, Function, HitOptions, Moment, Probe, Row, RowResult, Target, TargetInfo,
    default_rows, run_hit,
};

fn target_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_capriole-bench-hit"));
    command.arg("--target");
    command
}

fn short() -> HitOptions {
    HitOptions {
        rounds: 3,
        round_time: Duration::from_millis(2),
        ..HitOptions::default()
    }
}

#[test]
fn every_row_is_measured_or_says_why_not() {
    let results = run_hit(target_command(), default_rows(), &short(), |_| {}).expect("a run");
    let names: Vec<&str> = results.iter().map(RowResult::name).collect();
    let expected = [
        "bare",
        "floor.count",
        "floor.rdtsc",
        "floor.record",
        "kernel.uprobe",
        "kernel.uprobe_4args",
        "kernel.uretprobe",
        "kernel.uprobe_nop5",
        "kernel.uprobe_bpf",
        "kernel.uretprobe_bpf",
        "kernel.trace_marker",
    ];
    assert_eq!(names, expected);
    for result in &results {
        match result {
            RowResult::Measured(row) => {
                assert_eq!(row.rounds, 3, "{result:?}");
                assert!(row.min_ns <= row.ns && row.ns <= row.max_ns, "{result:?}");
                assert!(row.ns > 0.0, "{result:?}");
                let [p50, p99] = [row.p50_ns, row.p99_ns].map(|ns| ns.expect("a number"));
                assert!(0.0 <= p50 && p50 <= p99, "{result:?}");
                assert_eq!(row.threads, 1, "{result:?}");
                if !["bare", "floor.rdtsc"].contains(&row.name.as_str()) {
                    assert_eq!(row.hits, Some(row.calls), "{result:?}");
                }
            }
            // bare, count and rdtsc need nothing that could be missing.
            RowResult::Skipped { name, why } => {
                assert!(
                    name.starts_with("kernel.") || name == "floor.record",
                    "{name}: {why}"
                );
                assert!(!why.is_empty());
            }
            RowResult::Failed { name, why } => panic!("{name}: {why}"),
        }
    }
    nothing_is_left_in_tracefs();
}

/// Checks that tracefs contains no events or instances of this process.
fn nothing_is_left_in_tracefs() {
    let mine = format!("capriole_bench_{}_", std::process::id());
    for root in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        let events = std::fs::read_to_string(format!("{root}/uprobe_events")).unwrap_or_default();
        assert!(!events.contains(&mine), "{events}");
        let instances = std::fs::read_dir(format!("{root}/instances"))
            .into_iter()
            .flatten();
        for instance in instances.flatten() {
            let name = instance.file_name();
            assert!(!name.to_string_lossy().starts_with(&mine), "{name:?}");
        }
    }
}

/// Returns the number of processors, if there are several.
fn several_processors() -> Option<usize> {
    let cpus = std::thread::available_parallelism().expect("CPUs").get();
    if cpus == 1 {
        println!("skipped: there is one processor only");
    }
    (cpus > 1).then_some(cpus)
}

#[test]
fn threads_are_rows_of_their_own() {
    let Some(cpus) = several_processors() else {
        return;
    };
    let rows = vec![
        Row::plain("bare", Function::Bare),
        Row::plain("bare", Function::Bare).on_threads(cpus),
        Row::plain("floor.record", Function::FloorRecord).on_threads(cpus),
        Row::plain("floor.count", Function::FloorCount).on_threads(cpus),
    ];
    let results = run_hit(target_command(), rows, &short(), |_| {}).expect("a run");
    let threads = |at: usize| results[at].measured().map(|row| row.threads);
    assert_eq!(
        (threads(0), threads(1)),
        (Some(1), Some(cpus)),
        "{results:?}"
    );
    assert_eq!(results[1].name(), format!("bare@{cpus}"));
    assert_eq!(results[1].measured().map(|row| row.over_bare_ns), Some(0.0));
    match &results[2] {
        RowResult::Measured(row) => assert_eq!(row.hits, Some(row.calls), "{row:?}"),
        RowResult::Skipped { why, .. } => println!("skipped: {why}"),
        RowResult::Failed { why, .. } => panic!("{why}"),
    }
    // A row that cannot run in several threads reports that, and does not affect the other rows.
    assert!(
        matches!(&results[3], RowResult::Failed { .. }),
        "{results:?}"
    );
}

/// A probe that logs each call of its methods and claims a number of hits.
struct Liar {
    hits: u64,
    step: u64,
    refuse: bool,
    log: std::sync::mpsc::Sender<&'static str>,
}

impl Probe for Liar {
    fn arm(&mut self, target: &TargetInfo) -> Result<(), String> {
        assert_ne!(
            target.address(Function::Spare),
            target.address(Function::Bare)
        );
        self.log.send("arm").expect("the test listens");
        if self.refuse {
            Err("not today".to_owned())
        } else {
            Ok(())
        }
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        self.hits += self.step;
        Ok(Some(self.hits))
    }

    fn disarm(&mut self) -> Result<(), String> {
        self.log.send("disarm").expect("the test listens");
        Ok(())
    }
}

#[test]
fn a_probe_that_misses_calls_fails_its_row_and_no_other() {
    let (log, events) = std::sync::mpsc::channel();
    let liar = Liar {
        hits: 0,
        step: 1,
        refuse: false,
        log,
    };
    let rows = vec![
        Row::plain("bare", Function::Bare),
        Row::probed("liar", Function::Spare, Box::new(liar)),
    ];
    let results = run_hit(target_command(), rows, &short(), |_| {}).expect("a run");
    assert!(results[0].measured().is_some(), "{results:?}");
    let RowResult::Failed { why, .. } = &results[1] else {
        panic!("{results:?}")
    };
    assert!(why.starts_with("1 hits were counted in "), "{why}");
    assert_eq!(events.iter().collect::<Vec<_>>(), ["arm", "disarm"]);
}

#[test]
fn a_probe_that_cannot_be_armed_is_skipped_with_its_reason() {
    let (log, events) = std::sync::mpsc::channel();
    let liar = Liar {
        hits: 0,
        step: 0,
        refuse: true,
        log,
    };
    let rows = vec![
        Row::probed("liar", Function::Spare, Box::new(liar)),
        Row::plain("bare", Function::Bare),
    ];
    let results = run_hit(target_command(), rows, &short(), |_| {}).expect("a run");
    let expected = RowResult::Skipped {
        name: "liar".into(),
        why: "not today".into(),
    };
    assert_eq!(results[0], expected);
    assert!(results[1].measured().is_some(), "{results:?}");
    assert_eq!(events.iter().collect::<Vec<_>>(), ["arm", "disarm"]);
}

#[test]
fn file_offsets_agree_with_the_symbol_table() {
    use object::{Object, ObjectSegment, ObjectSymbol};
    let target = Target::spawn(target_command(), None, 64).expect("a target");
    let data = std::fs::read(env!("CARGO_BIN_EXE_capriole-bench-hit")).expect("the program");
    let file = object::File::parse(&*data).expect("an ELF file");
    for &function in Function::ALL {
        let symbol = file
            .symbol_by_name(function.symbol())
            .expect("the symbol is kept")
            .address();
        let segment = file
            .segments()
            .find(|s| (s.address()..s.address() + s.size()).contains(&symbol))
            .expect("the symbol is loaded");
        let offset = symbol - segment.address() + segment.file_range().0;
        assert_eq!(
            target.info().file_offset(function).expect("maps"),
            offset,
            "{function:?}"
        );
    }
}

#[test]
fn a_target_that_dies_is_reported() {
    let mut target = Target::spawn(target_command(), None, 64).expect("a target");
    let status = Command::new("kill")
        .args(["-9", &target.info().pid.to_string()])
        .status();
    assert!(status.expect("kill runs").success());
    let error = target.run(Function::Bare, 1, 1).expect_err("it is dead");
    assert!(error.to_string().contains("signal: 9"), "{error}");
}

#[test]
fn a_counter_in_bpf_counts_each_hit_of_all_its_uprobes() {
    if several_processors().is_none() {
        return;
    }
    let mut target = Target::spawn(target_command(), None, 1 << 16).expect("a target");
    let info = target.info().clone();
    let file = std::path::PathBuf::from(format!("/proc/{}/exe", info.pid));
    let mut counter = match BpfCounter::new() {
        Ok(counter) => counter,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    // Returns are seen beside entries, and other processes with the same file are not.
    for (function, moment) in [
        (Function::UprobeBpf, Moment::Entry),
        (Function::UretprobeBpf, Moment::Entry),
        (Function::UretprobeBpf, Moment::Return),
    ] {
        let offset = info.file_offset(function).expect("its offset");
        if let Err(why) = counter.attach(info.pid, &file, offset, moment) {
            println!("skipped: {why}");
            return;
        }
    }
    let mut other = Target::spawn(target_command(), None, 1 << 16).expect("a target");
    for target in [&mut target, &mut other] {
        target.run(Function::UprobeBpf, 100, 1).expect("calls");
        target.run(Function::UretprobeBpf, 10, 2).expect("calls");
        assert_eq!(counter.hits(), Ok(100 + 2 * 2 * 10));
    }
    drop(counter);
    assert!(target.run(Function::UprobeBpf, 1, 1).is_ok());
}
