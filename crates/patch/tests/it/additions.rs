//! Probes that are added, disarmed and armed while a session lives: no call of an armed probe is
//! missing, none of a disarmed one is there, the program finds all its results right, and after
//! whatever step the tracer is killed, `capriole detach` puts its bytes back.

use crate::parked::{REGIONS, places, regions};
use capriole_codegen::runtime::ClockReading;
use capriole_codegen::work::{Record, Work};
use capriole_host::error::TargetError;
use capriole_host::ptrace;
use capriole_host::steps::step;
use capriole_ledger::counter::ReferenceCounter;
use capriole_object::symbols::OtherSymbol;
use capriole_object::{ObjectFile, Objects};
use capriole_patch::attach::{Attached, Probe, SiteError, SiteState, attach};
use capriole_patch::recover;
use capriole_planner::guards;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_tactic::site::Tactic;
use capriole_testkit::files::{scratch, text};
use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::steps::{Step, chosen, few, firsts, listed};
use capriole_testkit::target::*;
use capriole_testkit::waiting::until;
use iced_x86::Register;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// Numbers without order, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn some(&mut self, all: impl Iterator<Item = usize>) -> Vec<usize> {
        all.filter(|_| self.below(3) == 0).collect()
    }
}

/// The time stamp counter, from which records have their times.
fn now() -> u64 {
    // SAFETY: reads a counter that every x86-64 processor has.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Has a probe record arguments 1 and 2 as event `event`.
fn as_event(mut probe: Probe, event: usize) -> Probe {
    let record = Record::new(event as u32, vec![Register::RDI, Register::RSI]);
    for point in probe.points.iter_mut().filter(|p| !p.work.is_empty()) {
        point.work = vec![record.clone().into()];
    }
    probe
}

fn state(attached: &Attached, probe: usize) -> SiteState {
    attached.outcome(probe).expect("a site").state
}

/// When a probe was armed, and when disarmed: from after one operation to before the next.
#[derive(Default)]
struct History {
    armed: Vec<(u64, u64)>,
    disarmed: Vec<(u64, u64)>,
    /// True if it is armed now, and since when; `None`: it is waiting for its site.
    now: Option<(bool, u64)>,
}

impl History {
    /// Before an operation.
    fn close(&mut self, at: u64) {
        match self.now.take() {
            Some((true, since)) => self.armed.push((since, at)),
            Some((false, since)) => self.disarmed.push((since, at)),
            None => {}
        }
    }
}

/// The first event is never disarmed: it tells which calls there were, and when.
fn assert_exact(calls: &[Call], names: &[String], histories: &[History]) -> usize {
    let mut times: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut seen: BTreeMap<u32, BTreeMap<(u64, u64), usize>> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.thread < 20_000) {
        if call.event == 0 {
            let times = times.entry(call.thread).or_default();
            if let Some((_, last)) = times.last() {
                assert_eq!(
                    call.seq,
                    last + 1,
                    "thread {}: calls are missing",
                    call.thread
                );
            }
            times.push((call.time, call.seq));
        }
        let seen = seen.entry(call.event).or_default();
        *seen.entry((call.thread, call.seq)).or_default() += 1;
    }
    let mut checked = 0;
    for (event, history) in histories.iter().enumerate().skip(1) {
        let none = BTreeMap::new();
        let seen = seen.get(&(event as u32)).unwrap_or(&none);
        for (periods, wanted) in [(&history.armed, 1), (&history.disarmed, 0)] {
            for (start, end) in periods {
                for (thread, times) in times.iter().filter(|(thread, _)| **thread < 10_000) {
                    // Between two calls of the first function each of the others was called once.
                    // The call before them shows that the thread entered the first of the two in
                    // the period: a thread may have waited in the previous detour for a processor.
                    for three in times.windows(3) {
                        let [before, call, next] = [three[0], three[1], three[2]];
                        if before.0 >= *start && next.0 <= *end {
                            let found = seen.get(&(*thread, call.1)).copied().unwrap_or(0);
                            assert_eq!(
                                found, wanted,
                                "event {event} ({}), thread {thread}, call {}",
                                names[event], call.1
                            );
                            checked += 1;
                        }
                    }
                }
            }
        }
    }
    checked
}

/// A session of a program in which probes come and go.
struct Changing {
    recording: Recording,
    names: Vec<String>,
    histories: Vec<History>,
    random: Random,
}

impl Changing {
    fn close(&mut self) {
        let at = now();
        self.histories.iter_mut().for_each(|h| h.close(at));
    }

    fn open(&mut self, armed: &BTreeSet<usize>) {
        let attached = &self.recording.attached;
        for (probe, history) in self.histories.iter_mut().enumerate() {
            let is_in = attached
                .outcome(probe)
                .is_ok_and(|site| matches!(site.state, SiteState::Final | SiteState::StandIn));
            assert!(armed.contains(&probe) || !is_in, "{probe} is not armed");
            if armed.contains(&probe) == is_in {
                history.now = Some((is_in, now()));
            }
        }
    }

    /// Collects records until the threads have called the first event often enough that some calls of
    /// them lie between two others: see [`assert_exact`].
    fn record_some(&mut self) {
        let (from, since) = (self.recording.calls.len(), now());
        let is_one = |call: &&Call| call.event == 0 && call.thread < 10_000 && call.time > since;
        self.recording
            .record_until("calls of the first event", |calls| {
                calls[from..].iter().filter(is_one).count() >= 16
            });
    }

    fn run(&mut self, all: &Probes, count: usize) {
        let mut armed: BTreeSet<usize> = (0..self.names.len()).collect();
        self.open(&armed);
        let mut waited = 0;
        for round in 0..count {
            self.close();
            let attached = &mut self.recording.attached;
            match self.random.below(4) {
                0 if self.names.len() < 40 => {
                    let chosen = self.random.some(0..all.probes.len());
                    let first = self.names.len();
                    let number =
                        |(i, at): (usize, &usize)| as_event(all.probes[*at].clone(), first + i);
                    let probes = chosen.iter().enumerate().map(number).collect();
                    let added = attached.add(probes).expect("they can be added");
                    assert_eq!(added, first..first + chosen.len(), "round {round}");
                    for (probe, at) in added.zip(&chosen) {
                        let outcome = attached.outcome(probe);
                        assert!(
                            outcome.is_ok(),
                            "round {round}, {}: {outcome:?}",
                            all.names[*at]
                        );
                        armed.insert(probe);
                        self.names.push(all.names[*at].clone());
                        self.histories.push(History::default());
                    }
                }
                0 | 1 => {
                    let chosen = self.random.some(1..self.names.len());
                    let failed = attached.arm(&chosen).expect("they can be armed");
                    assert_eq!(failed, [], "round {round}");
                    armed.extend(chosen);
                }
                2 => {
                    let chosen = self.random.some(1..self.names.len());
                    let out = attached.disarm(&chosen).expect("they can be disarmed");
                    let wanted = chosen.iter().filter(|probe| armed.remove(probe));
                    assert_eq!(out, wanted.copied().collect::<Vec<_>>(), "round {round}");
                }
                _ => {
                    waited += usize::from(attached.has_waiting());
                    attached.optimise().expect("it lives");
                }
            }
            let attached = &self.recording.attached;
            for probe in 0..self.names.len() {
                let is_out = state(attached, probe) == SiteState::Disarmed;
                assert_eq!(
                    is_out,
                    !armed.contains(&probe),
                    "round {round}, probe {probe}"
                );
            }
            self.open(&armed);
            self.record_some();
        }
        self.close();
        println!(
            "{} probes, {waited} rounds with occupied sites",
            self.names.len()
        );
    }
}

fn change(arguments: &[&str], functions: &[&str], reach: Reach) {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, arguments);
    let process = running.process();
    let before = looks(&process);
    let mut all = Probes::of(&process, HAMMER, reach);
    all.keep(|name| functions.contains(&name));
    // The first is the one whose calls are counted.
    let first = all
        .names
        .iter()
        .position(|name| name == "work")
        .expect("work");
    all.names.swap(0, first);
    all.probes.swap(0, first);
    let base = Probes {
        probes: (0..2).map(|i| as_event(all.probes[i].clone(), i)).collect(),
        names: all.names[..2].to_vec(),
        ..Probes::default()
    };
    let mut changing = Changing {
        recording: attach_to(&process, &base, 256 << 20),
        names: base.names.clone(),
        histories: (0..2).map(|_| History::default()).collect(),
        random: Random(0x2545_f491_4f6c_dd1d),
    };
    changing.run(&all, rounds(50, 600, 2000));
    running.assert_alive();
    let Changing {
        recording,
        names,
        histories,
        ..
    } = changing;
    match recording.detach() {
        Some(calls) => {
            let checked = assert_exact(&calls, &names, &histories);
            println!("{} calls, {checked} checked", calls.len());
            assert!(checked > 1000, "only {checked}");
        }
        None => println!("skipped: on this busy machine 256 MiB were too small for all calls"),
    }
    assert_no_session(&process);
    assert_text_is_the_files(&process, false);
    assert_looks(&process, &before, "at the end");
    running.finish();
}

const JUMPS: &[&str] = &[
    "work",
    "work_nops",
    "work_short",
    "work_many",
    "work_varargs",
    "work_float",
    "work_switch",
    "work_ret",
];

/// Threads, signals that run in handlers on other stacks, and forks in between.
#[test]
fn in_a_program_with_threads_signals_and_children() {
    let pause = ["--threads", "3", "--pause", "400000", "--signals", "--fork"];
    change(&pause, JUMPS, Reach::Best);
}

/// The resident's handlers of faults stand before the program's own.
#[test]
fn in_a_program_that_handles_faults() {
    let arguments = ["--threads", "2", "--pause", "200000", "--segv"];
    change(&arguments, JUMPS, Reach::Best);
}

#[test]
fn with_breakpoints_everywhere() {
    let functions = [JUMPS, &["work_loop"]].concat();
    change(
        &["--threads", "2", "--pause", "200000"],
        &functions,
        Reach::Breakpoint,
    );
}

/// Jumps that share bytes with others, in threads that a breakpoint would kill.
#[test]
fn jumps_that_build_on_others() {
    let Some(program) = build(Compiler::Gcc, "tight.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--threads", "3"]);
    let process = running.process();
    let all = Probes::joined(&process, &[":tight_*", ":tight_*%return"]);
    let mut recording = attach_to(&process, &all, 64 << 20);
    let attached = &mut recording.attached;
    let builds: Vec<usize> = (0..all.probes.len())
        .filter(|i| {
            let placed = all.probes[*i].shape.placed.as_ref();
            placed.is_some_and(|placed| placed.builds_on.is_some())
        })
        .collect();
    assert!(builds.len() > 2);
    // All jumps that others build on, without those others: these are taken out as well.
    let bases: Vec<usize> = (0..all.probes.len())
        .filter(|i| !builds.contains(i))
        .collect();
    let out = attached.disarm(&bases).expect("disarmed");
    assert_eq!(out.len(), all.probes.len());
    assert_text_is_the_guards(attached, &program);
    // None of these can be armed without the jump that it builds on.
    let failed = attached.arm(&builds).expect("it lives");
    let failed: Vec<usize> = failed
        .into_iter()
        .map(|(probe, error)| {
            assert!(matches!(error, SiteError::Neighbour(_)), "{error}");
            probe
        })
        .collect();
    assert_eq!(failed, builds);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut added = 0;
    for _ in 0..rounds(50, 600, 2000) {
        let attached = &mut recording.attached;
        let known = attached.probes();
        let chosen = random.some(0..known);
        match random.below(3) {
            0 => drop(attached.disarm(&chosen).expect("disarmed")),
            1 => drop(attached.arm(&chosen).expect("armed")),
            _ if known < 80 => {
                let probes = random.some(0..all.probes.len());
                let probes = probes.iter().map(|i| as_event(all.probes[*i].clone(), 100));
                let probes = attached.add(probes.collect()).expect("added");
                added += probes.filter(|i| attached.outcome(*i).is_ok()).count();
            }
            _ => drop(attached.optimise().expect("it lives")),
        }
        // Nobody reads the records, which are far too many.
        std::thread::sleep(std::time::Duration::from_millis(1));
        running.assert_alive();
    }
    println!("{added} added");
    assert!(added > 10);
    let everything: Vec<usize> = (0..recording.attached.probes()).collect();
    recording.attached.disarm(&everything).expect("disarmed");
    assert_text_is_the_guards(&recording.attached, &program);
    recording.attached.arm(&everything).expect("armed");
    recording.attached.detach().expect("detached");
    assert_text_is_the_files(&process, true);
    assert_no_session(&process);
    running.finish();
}

/// The bytes of the program itself, in which there are no guards.
fn assert_text_is_the_guards(attached: &Attached, program: &Path) {
    assert_eq!(attached.process().exe().expect("exe"), program);
    assert_text_is_the_files(attached.process(), true);
}

/// A site where there is a guard, one that shares bytes with another, and one whose needs the session
/// was not made for.
#[test]
fn what_cannot_be_added_is_told() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--threads", "1", "--pause", "1000"]);
    let process = running.process();
    let mut probes = Probes::of(&process, &[":work", ":work_short"], Reach::Best);
    probes.keep(|name| name == "work_short");
    let mut recording = attach_to(&process, &probes, 8 << 20);
    let attached = &mut recording.attached;
    let short = probes.probes[0].clone();
    assert_eq!(short.shape.tactic, Tactic::Region);
    // A breakpoint at an instruction that the region covers, as a plan of its own.
    let mut inside = short.clone();
    inside.shape.displaced.remove(0);
    inside.shape.covered.start = inside.shape.displaced[0].ip();
    inside.shape.site = inside.shape.covered.start - 1;
    inside.points[0].site = inside.shape.site;
    let mut following = short.clone();
    following.points[0].returns = following.points[0].work.clone();
    let mut enters = short.clone();
    enters.points[0].work = vec![Work::Enter {
        call: 0,
        kept: Vec::new(),
        filter: None,
    }];
    let guard = guards::of_process(&process).expect("guards").threads[0].clone();
    let guard = guard.with(vec![Record::new(7, vec![Register::RDI]).into()]);
    let added = attached
        .add(vec![inside, following, enters, guard, short])
        .expect("added");
    let outcome = |i: usize| attached.outcome(added.start + i);
    assert_eq!(outcome(0).err(), Some(SiteError::Shared));
    assert!(matches!(outcome(1), Err(SiteError::Unprepared(_))));
    assert!(matches!(outcome(2), Err(SiteError::Unprepared(_))));
    assert_eq!(outcome(3).err(), Some(SiteError::Guarded));
    assert_eq!(outcome(4).expect("a site").state, SiteState::Final);
    let failed = attached.arm(&[added.start]).expect("it lives");
    assert_eq!(failed, [(added.start, SiteError::Shared)]);
    let out = attached.disarm(&[added.start, 99]).expect("it lives");
    assert!(out.is_empty(), "{out:?}");
    recording.detach();
    assert_text_is_the_files(&process, false);
    running.finish();
}

/// A second attach by one process is refused; the probes of the first stay.
#[test]
fn a_second_attach_by_the_same_process_is_refused() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--threads", "2", "--pause", "30000"]);
    let process = running.process();
    let mut probes = Probes::of(&process, &[":work"], Reach::Best);
    probes.keep(|name| name == "work");
    let mut recording = attach_to(&process, &probes, 64 << 20);
    let guards = guards::of_process(&process).expect("guards");
    let geometry = |journal| Geometry::for_buffer(8 << 20, 64, journal);
    let again = attach(
        &ptrace::host(&process),
        probes.probes.clone(),
        &guards,
        ClockReading::default(),
        geometry,
    );
    let own = std::process::id() as i32;
    assert!(
        matches!(again, Err(TargetError::AlreadyRecorded { owner, .. }) if owner == own),
        "{:?}",
        again.err()
    );
    // Another program is none of the first one's business.
    let other = Running::start(&program, &["--threads", "1"]);
    let second = attach_to(
        &other.process(),
        &Probes::of(&other.process(), &[":work_nops"], Reach::Best),
        8 << 20,
    );
    second.detach();
    recording.record_calls(10);
    assert!(recording.attached.is_mapped());
    let calls = recording.detach().expect("nothing is lost");
    assert!(!assert_gap_free(&probes.names, &calls).is_empty());
    assert_no_session(&process);
    // A session that is over stands in nobody's way.
    attach_to(&process, &probes, 8 << 20).detach();
    other.finish();
    running.finish();
}

/// `capriole detach` takes added probes out as well; then nothing can be added.
#[test]
fn somebody_else_detaches() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--threads", "2", "--pause", "30000"]);
    let process = running.process();
    let before = looks(&process);
    let all = Probes::of(&process, &[":work*"], Reach::Best);
    let one = |i: usize| as_event(all.probes[i].clone(), i);
    let base = Probes {
        probes: vec![one(0)],
        names: all.names[..1].to_vec(),
        ..Probes::default()
    };
    let mut recording = attach_to(&process, &base, 8 << 20);
    let attached = &mut recording.attached;
    attached.add(vec![one(0), one(1), one(2)]).expect("added");
    attached.disarm(&[1, 2]).expect("disarmed");
    let sessions = recover::find(&*ptrace::host(&process)).expect("it lives");
    assert_eq!(sessions.len(), 1, "they are one session");
    let detached = recover::detach_all(&*ptrace::host(&process)).expect("detached");
    assert_eq!(detached.foreign, 0, "{detached:?}");
    let error = attached.add(vec![one(3)]).expect_err("it is over");
    assert!(
        matches!(error, TargetError::NothingAttached { .. }),
        "{error}"
    );
    assert!(attached.disarm(&[0]).is_err() && attached.arm(&[1]).is_err());
    assert_text_is_the_files(&process, false);
    assert_no_session(&process);
    assert_looks(&process, &before, "detached");
    running.finish();
}

/// Starts `watched`, and plans probes of its functions that raise its reference counter.
fn watched(flag: &str) -> Option<(Running, Probes)> {
    let program = build(Compiler::Gcc, "watched.c", &[flag])?;
    let running = Running::start(&program, &[]);
    let process = running.process();
    let file = ObjectFile::open(&program).expect("an ELF file");
    let symbol = file.other_symbol("watched_counter").expect("symbols");
    let Some(OtherSymbol::Data(counter)) = symbol else {
        panic!("no counter");
    };
    let offset = file.file_offset(counter).expect("in the file");
    let objects = Objects::of_process(&process).expect("objects");
    let object = &sites(&objects, &[":watched_step"])[0].object;
    let counter = ReferenceCounter::of(object, offset).expect("a counter");
    let mut all = Probes::of(&process, &[":watched_step", ":watched_other"], Reach::Best);
    for probe in &mut all.probes {
        probe.counters = vec![counter];
    }
    Some((running, all))
}

/// A counter is raised as long as an armed probe needs it, and not twice.
#[test]
fn reference_counters_follow() {
    let Some((mut running, all)) = watched("-DTEST_additions") else {
        return;
    };
    let process = running.process();
    let one = |i: usize, event| as_event(all.probes[i].clone(), event);
    let mut says = |wanted: &str| {
        running.say("go");
        assert_eq!(running.line(), wanted);
    };
    let mut bare = one(0, 0);
    bare.counters.clear();
    let base = Probes {
        probes: vec![bare],
        names: all.names[..1].to_vec(),
        ..Probes::default()
    };
    let mut recording = attach_to(&process, &base, 8 << 20);
    let attached = &mut recording.attached;
    says("counter 0 calls 0");
    assert_eq!(attached.add(vec![one(1, 1)]).expect("added"), 1..2);
    says("counter 1 calls 100");
    assert_eq!(attached.add(vec![one(0, 2)]).expect("added"), 2..3);
    says("counter 1 calls 100");
    attached.disarm(&[1]).expect("disarmed");
    says("counter 1 calls 100");
    attached.disarm(&[2]).expect("disarmed");
    says("counter 0 calls 0");
    assert_eq!(attached.arm(&[1, 2]).expect("armed"), []);
    says("counter 1 calls 100");
    let calls = recording.detach().expect("nothing is lost");
    let count = |event| calls.iter().filter(|call| call.event == event).count();
    assert_eq!([count(0), count(1), count(2)], [400, 300, 300]);
    says("counter 0 calls 0");
    running.finish();
}

/// Variable with the task of the tracer that is killed, and its events.
const TRACER: &str = "CAPRIOLE_TEST_TRACER";
/// Step between the attach and what follows it.
const ATTACHED: &str = "attached by the test";

/// Adds, disarms and arms probes.
fn add_and_disarm(process: &Process, all: &Probes) {
    let count = all.probes.len();
    let one = |i: usize| as_event(all.probes[i].clone(), i);
    let base = Probes {
        probes: (0..count / 2).map(one).collect(),
        names: all.names.clone(),
        guards: all.guards.clone(),
    };
    let mut recording = attach_to(process, &base, 8 << 20);
    let attached = &mut recording.attached;
    step(ATTACHED);
    // Some are there already, and some are new.
    let chosen = (0..count).filter(|i| i % 2 == 0 || *i >= count / 2);
    let added = attached.add(chosen.map(one).collect()).expect("added");
    attached
        .disarm(&[0, added.start, added.end - 1])
        .expect("disarmed");
    attached.add((0..count).map(one).collect()).expect("added");
    attached.arm(&[0, added.end - 1]).expect("armed");
}

/// Not a test: plans probes, and forks a tracer for each line of input, `VARIABLE=VALUE` for its
/// environment. To plan takes longer than all the rest.
#[test]
fn tracer() {
    let Ok(words) = std::env::var(TRACER) else {
        return;
    };
    let mut words = words.split(' ');
    let pid = words
        .next()
        .and_then(|word| word.parse().ok())
        .expect("a pid");
    let process = Process::open(pid).expect("it runs");
    let events: Vec<&str> = words.collect();
    let all = match events[0].starts_with(":tight") {
        true => Probes::joined(&process, &events),
        false => Probes::of(&process, &events, Reach::Best),
    };
    let guards = || guards::of_process(&process).expect("guards");
    all.guards.get_or_init(guards);
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let (name, value) = line.split_once('=').expect("a variable");
        // SAFETY: the child uses what it inherits and nothing that another thread may hold: the only
        // other one waits for this test.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child has no other thread.
            unsafe { std::env::set_var(name, value) };
            let run = std::panic::AssertUnwindSafe(|| add_and_disarm(&process, &all));
            let result = std::panic::catch_unwind(run);
            // SAFETY: ends the child, without what this process would do at its end.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        eprintln!("ended {status}");
    }
}

/// A process that has planned, and forks tracers.
struct Tracers {
    child: std::process::Child,
    input: std::process::ChildStdin,
    output: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Tracers {
    fn of(running: &Running, events: &str) -> Tracers {
        let exe = std::env::current_exe().expect("this test");
        let mut command = Command::new(exe);
        command.args(["--exact", "additions::tracer", "--nocapture"]);
        command.env(TRACER, format!("{} {events}", running.pid));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        Tracers {
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stderr.take().expect("a pipe")).lines(),
            child,
        }
    }

    /// Runs a tracer to its end, or death. Returns the status and what it printed.
    fn run(&mut self, variable: &str, value: &str) -> (ExitStatus, String) {
        writeln!(self.input, "{variable}={value}").expect("it lives");
        let mut said = String::new();
        loop {
            let line = self
                .output
                .next()
                .unwrap_or_else(|| panic!("no end: {said}"));
            let line = line.expect("text");
            if let Some(status) = line.strip_prefix("ended ") {
                return (
                    ExitStatus::from_raw(status.parse().expect("a number")),
                    said,
                );
            }
            said += &line;
            said.push('\n');
        }
    }

    fn finish(self) {
        drop(self.input);
        let mut child = self.child;
        assert!(child.wait().expect("a child").success());
    }
}

/// The tracer of a program dies at steps of adding, disarming and arming. The program goes on, and is
/// as it was when the remains are taken out.
fn killed_at_each_step(
    program: &Path,
    arguments: &[&str],
    events: &str,
    of: fn(&[Step]) -> Vec<Step>,
) {
    let mut running = Running::start(program, arguments);
    let process = running.process();
    let before = looks(&process);
    let clean_up = |running: &mut Running, when: &str| {
        running.assert_alive();
        match recover::detach_all(&*ptrace::host(&process)) {
            Ok(detached) => assert_eq!(detached.foreign, 0, "{when}: {detached:?}"),
            Err(TargetError::NothingAttached { .. }) => {}
            Err(error) => panic!("{when}: {error}"),
        }
        running.assert_alive();
        assert_no_session(&process);
        assert_text_is_the_files(&process, false);
        assert_looks(&process, &before, when);
    };
    let mut tracers = Tracers::of(&running, events);
    let directory = scratch();
    let list = directory.path().join("steps");
    let (status, said) = tracers.run("CAPRIOLE_STEPS", text(&list));
    assert!(status.success(), "{said}");
    clean_up(&mut running, "after all steps");
    let steps = listed(&list);
    let attached = steps.iter().position(|step| step.name == ATTACHED);
    let steps = &steps[attached.expect("are debug assertions on?") + 1..];
    assert!(steps.len() > 20, "{steps:?}");
    let steps = of(steps);
    for step in &steps {
        let (status, said) = tracers.run("CAPRIOLE_DIE_AT", &step.to_string());
        let when = format!("killed at step {step}: {status} {said}");
        // A run may take a step less than another one.
        let died = status.signal() == Some(libc::SIGKILL);
        assert!(died || status.success(), "{when}");
        clean_up(&mut running, &when);
    }
    println!("{} steps after the attach", steps.len());
    tracers.finish();
    running.finish();
}

#[test]
fn a_tracer_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let events = ":work :work_short :work_nops :work_loop :work_switch :work_ret";
    killed_at_each_step(&program, &["--threads", "2", "--rest"], events, chosen);
}

#[test]
fn a_tracer_of_jumps_across_pages_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "page_crossing.c", &[]) else {
        return;
    };
    killed_at_each_step(&program, &[], ":cross_1 :cross_2 :cross_3 :cross_4", few);
}

#[test]
fn a_tracer_of_shared_jumps_killed_at_each_step() {
    let Some(program) = build(Compiler::Gcc, "tight.c", &[]) else {
        return;
    };
    killed_at_each_step(&program, &[], ":tight_* :tight_*%return", firsts);
}

/// Sites that are occupied when probes there are armed, added and disarmed: a word on a stack leads
/// into the bytes, as a return address would.
#[test]
fn at_sites_that_are_occupied() {
    let Some(mut running) = regions() else { return };
    let process = running.process();
    let all = Probes::of(&process, REGIONS, Reach::Best);
    let count = all.probes.len();
    let mut recording = attach_to(&process, &all, 16 << 20);
    let attached = &mut recording.attached;
    let everything: Vec<usize> = (0..count).collect();
    let text = |when: &str| {
        println!("{when}");
        assert_text_is_the_files(&process, true);
    };
    let mut occupied = 0;
    for (which, address) in places(&all) {
        let probe = &all.probes[which];
        let covered = probe.shape.covered;
        if address <= covered.start || address >= covered.end {
            continue;
        }
        let what = format!("{} at {address:#x}", all.names[which]);
        // As long as the jump is there, nobody can be inside: whatever the word is, it is none's.
        let hold = format!("hold {address:x}");
        running.say(&hold);
        assert_eq!(running.line(), hold);
        let first = attached
            .add(vec![as_event(probe.clone(), which)])
            .expect("added")
            .start;
        assert_eq!(state(attached, first), SiteState::Final, "{what}");
        let known: Vec<usize> = (0..attached.probes()).collect();
        attached.disarm(&known).expect("disarmed");
        text(&what);
        // Once it is out, the site is occupied, and a breakpoint stands in.
        assert_eq!(attached.arm(&[which]).expect("armed"), [], "{what}");
        assert_eq!(state(attached, which), SiteState::StandIn, "{what}");
        // Another probe joins it there, and goes again.
        let second = attached
            .add(vec![as_event(probe.clone(), which)])
            .expect("added")
            .start;
        assert_eq!(state(attached, second), SiteState::StandIn, "{what}");
        assert_eq!(state(attached, which), SiteState::StandIn, "{what}");
        running.assert_alive();
        assert_eq!(
            attached.disarm(&[which]).expect("disarmed"),
            [which],
            "{what}"
        );
        assert_eq!(state(attached, second), SiteState::StandIn, "{what}");
        assert_eq!(
            attached.disarm(&[second]).expect("disarmed"),
            [second],
            "{what}"
        );
        assert!(!attached.has_waiting(), "{what}");
        text(&what);
        running.assert_alive();
        assert_eq!(attached.arm(&[second, first]).expect("armed"), [], "{what}");
        assert_eq!(state(attached, first), SiteState::StandIn, "{what}");
        // The second time for the word that was left on the stack.
        for line in ["let go", "hold 0", "let go"] {
            running.say(line);
            assert_eq!(running.line(), line);
        }
        attached.arm(&everything).expect("armed");
        until("no site waits", || {
            attached.optimise().expect("it lives") == 0
        });
        for probe in [which, first, second] {
            assert_eq!(state(attached, probe), SiteState::Final, "{what}");
        }
        attached.disarm(&[first, second]).expect("disarmed");
        assert_eq!(state(attached, which), SiteState::Final, "{what}");
        running.assert_alive();
        occupied += 1;
    }
    assert!(occupied > 10, "only {occupied}");
    attached.detach().expect("detached");
    assert_text_is_the_files(&process, true);
    assert_no_session(&process);
    running.finish();
}

/// A child has the probes as they were at the fork, without those that are disarmed later; and it is
/// detached with its parent.
#[test]
fn a_child_has_the_probes_of_the_fork() {
    let Some((mut running, all)) = watched("-DTEST_children") else {
        return;
    };
    let process = running.process();
    let one = |i: usize, event| as_event(all.probes[i].clone(), event);
    let base = Probes {
        probes: vec![one(0, 0)],
        names: all.names[..1].to_vec(),
        ..Probes::default()
    };
    let mut recording = attach_to(&process, &base, 8 << 20);
    let attached = &mut recording.attached;
    attached.add(vec![one(1, 1)]).expect("added");
    let mut both = |line: &str, child: &str, parent: &str| {
        running.say(line);
        assert_eq!(running.line(), format!("child {child}"));
        assert_eq!(running.line(), parent);
    };
    let (none, some) = ("counter 0 calls 0", "counter 1 calls 100");
    both("fork", some, some);
    let parent = process.pid();
    let is_child = |process: &Process| {
        let status = std::fs::read_to_string(process.proc_path("status"));
        status.is_ok_and(|text| text.contains(&format!("PPid:\t{parent}\n")))
    };
    let child = Process::others().find(is_child).expect("a child");
    // Not in the child.
    assert_eq!(attached.add(vec![one(0, 2)]).expect("added"), 2..3);
    both("go", some, some);
    attached.disarm(&[1]).expect("disarmed");
    both("go", some, some);
    // The child has another jump there than its parent.
    attached.disarm(&[0, 2]).expect("disarmed");
    assert_text_is_the_files(&child, true);
    assert_text_is_the_files(&process, true);
    both("go", some, none);
    assert_eq!(attached.arm(&[0, 1, 2]).expect("armed"), []);
    assert_text_is_the_files(&child, true);
    both("go", some, some);
    let calls = recording.detach().expect("nothing is lost");
    let count = |event| calls.iter().filter(|call| call.event == event).count();
    // Of parent and child: fork, go, go; and of the parent the last.
    assert_eq!(count(0), 3 * 200 + 100);
    assert_eq!(count(1), 2 * 200 + 100);
    assert_eq!(count(2), 2 * 100 + 100);
    both("go", none, none);
    for process in [&child, &process] {
        assert_no_session(process);
        assert_text_is_the_files(process, false);
    }
    running.finish();
}

/// Calls that are followed to their returns, at sites of the attach and at new ones.
#[test]
fn calls_that_are_followed() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--threads", "2", "--pause", "100000"]);
    let process = running.process();
    let mut all = Probes::of(&process, &[":work", ":work_many"], Reach::Best);
    all.keep(|name| ["work", "work_many"].contains(&name));
    let one = |i: usize, event: usize| {
        let mut probe = as_event(all.probes[i].clone(), event);
        let record = Record::new(event as u32 + 1, vec![Register::RSP, Register::RSP]);
        probe.points[0].returns = vec![record.into()];
        probe
    };
    let base = Probes {
        probes: vec![one(0, 0)],
        names: all.names[..1].to_vec(),
        ..Probes::default()
    };
    let mut recording = attach_to(&process, &base, 64 << 20);
    recording
        .attached
        .add(vec![one(1, 2), one(0, 4)])
        .expect("added");
    for round in 0..rounds(13, 150, 500) {
        let attached = &mut recording.attached;
        assert!(
            attached.outcomes().iter().all(Result::is_ok),
            "{:?}",
            attached.outcomes()
        );
        let wanted = match round % 2 {
            0 => {
                assert_eq!(attached.disarm(&[1, 2]).expect("disarmed"), [1, 2]);
                &[0][..]
            }
            _ => {
                assert_eq!(attached.arm(&[2, 1]).expect("armed"), []);
                &[0, 2, 4]
            }
        };
        let before = recording.calls.len();
        recording.record_until("calls of all armed events", |calls| {
            let count = |event: &u32| {
                let new = calls[before..].iter();
                new.filter(|call| call.event == *event).count()
            };
            wanted.iter().all(|event| count(event) >= 30)
        });
        running.assert_alive();
    }
    let calls = recording.detach().expect("nothing is lost");
    let count = |event| calls.iter().filter(|call| call.event == event).count();
    for event in [0, 2, 4] {
        let (entries, returns) = (count(event), count(event + 1));
        assert!(
            entries > 100 && entries.abs_diff(returns) <= 2,
            "{entries}, {returns}"
        );
    }
    assert!(count(2) < count(0) && count(4) < count(0));
    assert_text_is_the_files(&process, false);
    running.finish();
}
