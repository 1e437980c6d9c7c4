//! Sessions: events come and go while the program runs, and every call is accounted for.

use capriole::aggregate::Row;
use capriole::aggregate::model::{ChainEnd, Value as Key};
use capriole::plan::Known;
use capriole::{Added, Code, EventId, Happened, Record, Session, Status, Value};
use capriole_proc::process::{Process, State};
use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::{Running, assert_no_session, assert_text_is_the_files, sleeping};
use capriole_testkit::waiting::until;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const THREADS: usize = 3;
const CALLS: usize = 200;
const EVENT: &str = ":saved_work thread=$arg1 seq=$arg2 text=+0($arg3):string";

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "saved.c", &[])
}

/// Has the program make its calls, and waits until they are made.
fn calls(running: &mut Running) {
    running.say(&format!("{THREADS} {CALLS} 0"));
    assert_eq!(running.line(), "done");
}

/// Every thread's calls are there, once each and in order, with the text that belongs to each.
fn assert_whole(records: &[Record]) {
    let mut threads: BTreeMap<u64, u64> = BTreeMap::new();
    for record in records {
        let number = |name: &str| record.field(name).and_then(Value::as_u64);
        let (thread, seq) = (
            number("thread").expect("a number"),
            number("seq").expect("a number"),
        );
        let next = threads.entry(thread).or_insert(0);
        assert_eq!(seq, *next, "{record}");
        *next += 1;
        let text = Value::Text(format!("{thread}:{seq}").into_bytes());
        assert_eq!(record.field("text"), Some(&text), "{record}");
        assert_eq!(
            (&*record.name, record.happened),
            ("saved_work", Happened::Hit)
        );
    }
    let all: Vec<u64> = threads.into_values().collect();
    assert_eq!(all, [CALLS as u64; THREADS]);
}

#[test]
fn events_come_and_go() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let mut session = Session::attach(running.pid).expect("a session");
    assert_no_session(&running.process());
    assert_eq!(session.read().expect("nothing"), []);

    let first = session.add(EVENT).expect("the event");
    assert_eq!((first.sites, &first.refused[..]), (1, &[][..]));
    calls(&mut running);
    assert_whole(&session.read().expect("records"));

    session.disable(&first).expect("out");
    session.disable(&first).expect("out already");
    calls(&mut running);
    assert_eq!(session.read().expect("nothing"), []);
    assert_eq!(session.enable(&first).expect("in"), []);
    calls(&mut running);
    assert_whole(&session.read().expect("records"));

    // Another event at the same place, and one elsewhere.
    let second = session
        .add(":saved_work seq=$arg2 if seq < 10")
        .expect("the event");
    let other = session.add("libc:fgets").expect("the event");
    calls(&mut running);
    let records = session.read().expect("records");
    let of = |id| records.iter().filter(move |record| record.event == id);
    assert_whole(&of(first.id).cloned().collect::<Vec<_>>());
    assert_eq!(of(second.id).count(), 10 * THREADS);
    // It waits for its next line already, or is just about to.
    assert!(of(other.id).count() <= 1);

    session.remove(&first).expect("out");
    calls(&mut running);
    let records = session.read().expect("records");
    assert!(records.iter().all(|record| record.event != first.id));
    let seconds = records.iter().filter(|record| record.event == second.id);
    assert_eq!(seconds.count(), 10 * THREADS);
    let error = session.enable(&first).expect_err("it is gone");
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(
        session.remove(&first).expect_err("it is gone").code(),
        Code::NotFound
    );
    // Events of another session are not taken for those of this one.
    let idle = Running::start(&program, &[]);
    let mut own = Session::attach(idle.pid).expect("nothing is touched");
    assert_eq!(
        own.disable(&second).expect_err("another's").code(),
        Code::NotFound
    );
    assert!(own.rows(&second).is_empty());

    assert_eq!((session.lost(), session.status()), (0, Status::Running));
    calls(&mut running);
    let rest = session.detach().expect("out");
    assert_eq!(
        rest.iter()
            .filter(|record| record.event == second.id)
            .count(),
        10 * THREADS
    );
    assert_text_is_the_files(&running.process(), false);
    assert_no_session(&running.process());
    calls(&mut running);
    running.finish();
}

#[test]
fn what_is_counted_is_read_as_rows() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let mut session = Session::attach(running.pid).expect("a session");
    // Records first: the room for tables is there from the beginning.
    let recorded = session.add(EVENT).expect("the event");
    let sums = session
        .add(":saved_work seq=$arg2 sum(seq) max(seq)")
        .expect("the event");
    let keyed = session
        .add(":saved_work thread=$arg1 count() by thread")
        .expect("the event");
    let timed = session.add("latency(:saved_work)").expect("the event");
    calls(&mut running);
    assert_whole(&session.read().expect("records"));
    let all = (THREADS * CALLS) as u64;
    let rows = |id| -> Vec<_> {
        let tables = session.rows(id).into_iter();
        tables
            .flat_map(|table| table.rows)
            .filter(|row| row.calls > 0)
            .collect()
    };
    let [row] = &rows(sums.id)[..] else {
        panic!("one row")
    };
    assert_eq!(row.calls, all);
    assert_eq!(session.name(row).as_deref(), Some("saved_work"));
    let shown = format!("{:?}", row.measures);
    let sum = THREADS * CALLS * (CALLS - 1) / 2;
    assert!(shown.contains(&format!("word: {sum}")), "{shown}");
    let by_thread: Vec<u64> = rows(keyed.id).iter().map(|row| row.calls).collect();
    assert_eq!(by_thread, [CALLS as u64; THREADS]);
    let timed: u64 = rows(timed.id).iter().map(|row| row.calls).sum();
    assert_eq!(timed, all);
    assert!(session.rows(&recorded).is_empty());
    drop(session);
    assert_text_is_the_files(&running.process(), false);
    assert_no_session(&running.process());
    running.finish();
}

#[test]
fn calls_have_two_ends() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let mut session = Session::attach(running.pid).expect("a session");
    let added = session
        .add_calls(":saved_work thread=$arg1", None)
        .expect("the calls");
    calls(&mut running);
    let records = session.read().expect("records");
    let ends = |happened| {
        records
            .iter()
            .filter(|record| record.happened == happened)
            .count()
    };
    let all = THREADS * CALLS;
    assert_eq!((ends(Happened::Entry), ends(Happened::Return)), (all, all));
    // These are read when the program has ended.
    calls(&mut running);
    running.finish();
    let mut rest = Vec::new();
    until("the end of the program", || {
        rest.extend(session.read().expect("records"));
        session.status() != Status::Running
    });
    rest.extend(session.read().expect("records"));
    assert_eq!(rest.len(), 2 * all);
    assert_eq!(session.status(), Status::Ended(capriole::Ended::Exited));
    let error = session.add(EVENT).expect_err("it is over");
    assert_eq!(error.code(), Code::Vanished);
    assert_eq!(
        session.disable(added.id).expect_err("it is over").code(),
        Code::Vanished
    );
    // Each record is delivered once.
    assert_eq!(session.read().expect("nothing"), []);
    assert_eq!(session.detach().expect("nothing is left"), []);
}

#[test]
fn a_program_that_is_launched_has_its_probes_before_it_runs() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let words = ["--threads", "2", "--calls", "300"].map(Into::into);
    let words = [&[program.into_os_string()], &words[..]].concat();
    let mut session = Session::launch(&words).expect("it starts");
    session
        .add(":work thread=$arg1 seq=$arg2")
        .expect("the event");
    let main = session.add(":main").expect("the event");
    session.run();
    let mut records = Vec::new();
    until("the end of the program", || {
        records.extend(session.read().expect("records"));
        session.status() != Status::Running
    });
    let work = records.iter().filter(|record| record.event != main.id);
    assert_eq!(work.count(), 2 * 300);
    assert_eq!(
        records
            .iter()
            .filter(|record| record.event == main.id)
            .count(),
        1
    );
}

#[test]
fn errors_have_codes_and_leave_the_session_as_it_was() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let code = |event: &str, session: &mut Session| {
        let error = session.add(event).expect_err("an error");
        assert!(!error.full().contains("--"), "a command's words: {error}");
        error.code()
    };
    let error = Session::attach(u32::MAX).expect_err("no such process");
    assert_eq!(error.code(), Code::NoProcess);
    let mut session = Session::attach(running.pid).expect("a session");
    for with_probes in [false, true] {
        assert_eq!(code("libc:malloc size=", &mut session), Code::Syntax);
        assert_eq!(code(":nothing_there", &mut session), Code::NotFound);
        assert_eq!(code("libnothing:f", &mut session), Code::NotFound);
        assert_eq!(code(":saved_work n=nobody", &mut session), Code::Field);
        let calls = session.add_calls(":nothing_there", None);
        let calls = calls.expect_err("no such function");
        assert_eq!(calls.code(), Code::NotFound);
        assert_eq!(calls.full().matches("nothing_there").count(), 2, "{calls}");
        assert_eq!(
            code("latency(:nothing_there)", &mut session),
            Code::NotFound
        );
        if !with_probes {
            session.add(EVENT).expect("the event");
        }
    }
    calls(&mut running);
    assert_whole(&session.read().expect("records"));
    let second = Session::attach(running.pid)
        .expect("nothing is touched yet")
        .add(EVENT);
    assert_eq!(
        second.expect_err("one at a time").code(),
        Code::AlreadyRecorded
    );
    calls(&mut running);
    assert_whole(&session.read().expect("records"));
    session.detach().expect("out");
    running.finish();
}

/// Returns the rows of an event's tables that have calls.
fn counted(session: &Session, event: EventId) -> Vec<Row> {
    let tables = session.rows(event).into_iter();
    let rows = tables.flat_map(|table| table.rows);
    rows.filter(|row| row.calls > 0).collect()
}

#[test]
fn removed_events_give_their_room_back() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let mut session = Session::attach(running.pid).expect("a session");
    let all = (THREADS * CALLS) as u64;
    let stays = session
        .add(":saved_work seq=$arg2 count() by seq")
        .expect("the event");
    // The table of the histogram takes nearly all the room there is.
    for round in 1..=6 {
        let added =
            |added: capriole::Result<Added>| added.unwrap_or_else(|e| panic!("{round}: {e}"));
        let timed = added(session.add("latency(:saved_work)"));
        let keyed = added(session.add(":saved_work thread=$arg1 seq=$arg2 hist(seq) by thread"));
        calls(&mut running);
        let by_thread: Vec<u64> = counted(&session, keyed.id)
            .iter()
            .map(|r| r.calls)
            .collect();
        assert_eq!(by_thread, [CALLS as u64; THREADS], "round {round}");
        let timed_calls: u64 = counted(&session, timed.id).iter().map(|r| r.calls).sum();
        assert_eq!(timed_calls, all, "round {round}");
        session.remove(timed.id).expect("out");
        session.remove(&keyed).expect("out");
        // Still there, until the next event is added.
        assert_eq!(counted(&session, keyed.id).len(), THREADS);
        let staying: u64 = counted(&session, stays.id).iter().map(|r| r.calls).sum();
        assert_eq!(staying, round * all);
        assert_eq!(session.read().expect("nothing"), []);
    }
    // What is not removed keeps its room.
    let big = ":saved_work thread=$arg1 seq=$arg2 hist(seq) by thread";
    session.add(big).expect("the event");
    assert_eq!(session.add(big).expect_err("full").code(), Code::Limit);
    drop(session);
    running.finish();
}

/// Intervals that were open when their event was removed do not end by the next one, in the same room.
#[test]
fn intervals_of_a_removed_event_are_gone() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let mut session = Session::attach(running.pid).expect("a session");
    let between = "latency(:saved_work thread=$arg1 -> :saved_work thread=$arg1) by thread";
    for round in 1..=4 {
        let added = session.add(between).expect("the event");
        calls(&mut running);
        let intervals: Vec<u64> = counted(&session, added.id)
            .iter()
            .map(|r| r.calls)
            .collect();
        assert_eq!(intervals, [CALLS as u64 - 1; THREADS], "round {round}");
        let groups = session.rows(added.id);
        let found = groups[0].intervals.expect("they are of intervals");
        let all = (THREADS * CALLS) as u64;
        let threads = THREADS as u64;
        let lost = found.lost.expect("not an interval's");
        let told = [found.started, found.open, found.unmatched, lost];
        assert_eq!(told, [all, threads, threads, 0], "round {round}: {found:?}");
        session.remove(added.id).expect("out");
    }
    drop(session);
    assert_text_is_the_files(&running.process(), false);
    running.finish();
}

#[test]
fn callers_are_found_if_the_first_event_asks_for_them() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let stacks = ":saved_work seq=$arg2 sum(seq) by stack";
    let mut session = Session::attach(running.pid).expect("a session");
    let event = session.add(stacks).expect("the event");
    calls(&mut running);
    let rows = counted(&session, event.id);
    let all: u64 = rows.iter().map(|row| row.calls).sum();
    assert_eq!(all, (THREADS * CALLS) as u64);
    for row in &rows {
        let [Key::Stack(chain)] = &row.keys[..] else {
            panic!("{row:?}");
        };
        assert!(chain.addresses.len() > 2, "{chain:?}");
        assert_eq!(chain.end, ChainEnd::Outermost);
    }
    drop(session);
    let mut session = Session::attach(running.pid).expect("a session");
    session.add(EVENT).expect("the event");
    let error = session.add(stacks).expect_err("there is no table");
    assert_eq!(error.code(), Code::NotProbeable);
    assert!(
        error.full().contains("what finding callers needs"),
        "{error}"
    );
    drop(session);
    running.finish();
}

#[test]
fn room_in_which_a_child_still_counts_is_not_given_back() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let mut session = Session::attach(running.pid).expect("a session");
    // As another event is at the same place, the probe stays in the child when the first one goes.
    let big = ":saved_work thread=$arg1 seq=$arg2 hist(seq) by thread";
    session
        .add(":saved_work seq=$arg2 if seq > 1000")
        .expect("the event");
    let first = session.add(big).expect("the event");
    running.say("fork");
    assert_eq!(running.line(), "done");
    session.remove(&first).expect("out");
    assert_eq!(session.add(big).expect_err("no room").code(), Code::Limit);
    let children = format!("/proc/{0}/task/{0}/children", running.pid);
    let children = std::fs::read_to_string(children).expect("a list");
    let child = Process::open(children.trim().parse().expect("one")).expect("it lives");
    let pid = rustix::process::Pid::from_raw(child.pid() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("a signal");
    until("the child's end", || !child.is_alive());
    let second = session.add(big).expect("there is room");
    calls(&mut running);
    let by_thread: Vec<u64> = counted(&session, second.id)
        .iter()
        .map(|r| r.calls)
        .collect();
    assert_eq!(by_thread, [CALLS as u64; THREADS]);
    drop(session);
    running.finish();
}

/// Waits until the program waits for its next line.
fn wait_for_its_line(running: &Running) {
    let process = running.process();
    let asleep = || {
        let status = process.thread_status(process.pid());
        status.is_ok_and(|status| status.state == State::Sleeping)
    };
    until("the program waits", asleep);
}

#[test]
fn a_call_that_is_open_is_not_taken_for_one_of_the_next_event() {
    let Some(program) = program() else { return };
    let mut running = Running::start(&program, &[]);
    let mut session = Session::attach(running.pid).expect("a session");
    wait_for_its_line(&running);
    let first = session.add("latency(libc:fgets)").expect("the event");
    calls(&mut running);
    calls(&mut running);
    let seen = |session: &Session, event| {
        let rows = counted(session, event);
        let all = rows.iter().map(|row| (row.calls, row.unreadable));
        all.fold((0, 0), |all, row| (all.0 + row.0, all.1 + row.1))
    };
    // The first call was open when the event was added, the last one has not returned.
    assert_eq!(seen(&session, first.id), (2, 1));
    wait_for_its_line(&running);
    session.remove(first).expect("out");
    let second = session.add("latency(libc:fgets)").expect("the event");
    calls(&mut running);
    assert_eq!(seen(&session, second.id), (1, 1));
    calls(&mut running);
    assert_eq!(seen(&session, second.id), (2, 1));
    drop(session);
    running.finish();
}

#[test]
fn a_launched_session_may_be_used_by_any_thread() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let words = ["--threads", "1", "--calls", "100"].map(Into::into);
    let words = [&[program.into_os_string()], &words[..]].concat();
    // The thread that launches it ends.
    let launched = std::thread::spawn(move || Session::launch(words).expect("it starts"));
    let mut session = launched.join().expect("a session");
    let work = session.add(":work seq=$arg2").expect("the event");
    let main = session.add(":main").expect("the event");
    session.disable(&work).expect("out");
    assert_eq!(session.enable(&work).expect("in"), []);
    let ran = std::thread::spawn(move || {
        session.run();
        session.run();
        session
    });
    let mut session = ran.join().expect("a session");
    let mut records = Vec::new();
    while session.status() == Status::Running {
        session.wait(Duration::from_millis(5));
        records.extend(session.read().expect("records"));
    }
    let of = |id| {
        records
            .iter()
            .filter(move |r: &&Record| r.event == id)
            .count()
    };
    assert_eq!((of(work.id), of(main.id)), (100, 1));
    assert_eq!(session.status(), Status::Ended(capriole::Ended::Exited));
    assert!(session.exit_status().is_some_and(|status| status.success()));
}

#[test]
fn a_launched_program_that_never_ran_ends_with_its_session() {
    let Some(program) = program() else { return };
    for with_probes in [false, true] {
        let mut session = Session::launch([&program]).expect("it starts");
        if with_probes {
            session.add(EVENT).expect("the event");
        }
        let pid = session.pid();
        assert!(Process::open(pid).is_ok_and(|process| process.is_alive()));
        drop(session);
        assert!(Process::open(pid).is_err(), "it is left");
    }
    let error = Session::launch(["/nowhere/to/be/found"]).expect_err("no program");
    assert_eq!(error.code(), Code::Launch);
}

/// A session ends with its program also if no event was ever added, or none could be.
#[test]
fn a_session_without_events_ends_with_its_program() {
    let mut session = Session::launch(["/bin/true"]).expect("it starts");
    let error = session.add(":no_such_function").expect_err("no function");
    assert_eq!(error.code(), Code::NotFound);
    session.run();
    while session.status() == Status::Running {
        session.wait(Duration::from_millis(1));
        assert!(session.read().expect("none").is_empty());
    }
    assert_eq!(session.status(), Status::Ended(capriole::Ended::Exited));
    let error = session.add(":main").expect_err("it has ended");
    assert_eq!(error.code(), Code::Vanished);
}

#[test]
fn options_and_processes_that_cannot_be_are_refused() {
    let error = Session::attach(std::process::id()).expect_err("it cannot");
    assert_eq!(error.code(), Code::UnsupportedProcess);
    let mut options = capriole::Options::default();
    options.counters = (1 << 28) - 7;
    let error = Session::launch_with(["/bin/true"], options).expect_err("too many");
    assert_eq!(error.code(), Code::Limit);
    options.counters -= 1;
    let mut session = Session::launch_with(["/bin/true"], options).expect("it starts");
    session.add("libc:malloc count()").expect("the event");
    session.detach().expect("detached");
}

/// Nothing stays mapped in the program, however often a session is in it.
#[test]
fn sessions_leave_no_mapping() {
    let mut sleeper = sleeping();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", sleeper.id())).expect("maps");
    let before = maps();
    for dropped in [false, true, false] {
        let mut session = Session::attach(sleeper.id()).expect("a session");
        session.add("libc:malloc by tid").expect("the event");
        session.add("latency(libc:read)").expect("the event");
        assert_ne!(maps(), before);
        match dropped {
            true => drop(session),
            false => assert!(session.detach().expect("out").is_empty()),
        }
        assert_eq!(maps(), before, "{dropped}");
    }
    sleeper.kill().expect("a child");
    sleeper.wait().expect("a child");
}

#[test]
fn objects_are_read_once_while_the_mappings_stay() {
    let command = ["-c", "echo ready $$; read line; exec cat"];
    let mut running = Running::of(std::process::Command::new("/bin/sh").args(command));
    let process = running.process();
    let mut known = Known::default();
    // There is none for a moment, while the process executes another program.
    let mut main = || {
        let objects = known.objects(&process).ok()?;
        let entry = objects.main_entry().ok()?;
        objects.open(entry).ok()?.first().cloned()
    };
    let shell = main().expect("the shell");
    assert!(Arc::ptr_eq(&shell, &main().expect("the shell")));
    running.say("go on");
    until("it executes cat", || {
        main().is_some_and(|main| main.path() != shell.path())
    });
    running.say("ok cat");
    running.finish();
}
