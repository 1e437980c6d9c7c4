//! Static markers are switched on and off while threads run through them as fast as they can:
//! no hit is lost or torn while they are on, what is calculated around them comes out right,
//! and nothing stays behind.
//!
//! The long form, 100,000 switches on and as many off:
//!
//! ```text
//! CAPRIOLE_LONG=1 cargo test --release -p capriole-cli --test it markers_hammered:: -- --nocapture
//! ```

use capriole_ledger::counter::ReferenceCounter;
use capriole_object::Objects;
use capriole_planner::resolve::resolve;
use capriole_proc::process::Process;
use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// Returns probes at all markers of the program, each recording its two arguments and counting
/// up its semaphore.
fn probes(process: &Process) -> Probes {
    const EVENT: &str = "usdt::hammer:*";
    let mut probes = Probes::of(process, &[EVENT], Reach::Best);
    let objects = Objects::of_process(process).expect("the objects");
    let spec = capriole_event::EventSpec::parse(EVENT).expect("an event");
    for site in resolve(&objects, &spec.into()).expect("markers") {
        let marker = site.marker.as_ref().expect("a marker");
        let offset = |link| site.object.file().file_offset(link).expect("in the file");
        let counter = marker.semaphore.map(offset);
        let counter = counter.map(|at| ReferenceCounter::of(&site.object, at).expect("data"));
        let mut all = probes.probes.iter_mut();
        let probe = all.find(|probe| probe.shape.site == site.address);
        probe.expect("it has one").counters.extend(counter);
    }
    probes
}

fn switched(flags: &[&str], threads: &str, rounds: usize) {
    let Some(program) = build(Compiler::Gcc, "marked_hammer.c", flags) else {
        return;
    };
    // This test must sort the program's records meanwhile.
    let mut running = Running::last(&program, &["--threads", threads]);
    let process = running.process();
    let probes = probes(&process);
    assert_eq!(probes.names.len(), 4, "{:?}", probes.names);
    let tactics: Vec<&str> = probes
        .probes
        .iter()
        .map(|p| p.shape.tactic.as_str())
        .collect();
    assert!(tactics.contains(&"reserved"), "{tactics:?}");
    let before = looks(&process);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let (mut complete, mut hits) = (0, 0);
    for round in 0..rounds {
        running.assert_alive();
        let mut recording = attach_to(&process, &probes, 64 << 20);
        recording.record(Duration::from_micros(round as u64 % 7 * 100));
        if let Some(calls) = recording.detach() {
            complete += 1;
            hits += calls.len();
            for (name, n) in assert_gap_free(&probes.names, &calls) {
                *counts.entry(name).or_default() += n;
            }
        }
        assert_no_session(&process);
        if round % 10 == 0 {
            assert_text_is_the_files(&process, true);
            assert_looks(&process, &before, &format!("round {round}"));
        }
    }
    assert_text_is_the_files(&process, false);
    running.say("");
    let text = running.finished();
    assert!(text.ends_with(" semaphore=0\n"), "{text}");
    println!(
        "{flags:?}: {rounds} rounds, {complete} complete, {hits} hits: {counts:?}, {tactics:?}"
    );
    assert!(
        complete * 2 >= rounds,
        "the buffer was too small in most of {rounds} rounds"
    );
    for name in &probes.names {
        assert!(counts.contains_key(name), "{name} was never recorded");
    }
}

#[test]
fn under_load_from_several_threads() {
    switched(&["-O2"], "4", rounds(15, 180, 25_000));
}

/// Arguments and operands are on the stack.
#[test]
fn in_a_program_that_is_not_optimised() {
    switched(&["-O0"], "3", rounds(7, 75, 2500));
}
