//! The resident's open intervals, run access by access: wherever a thread is killed or interrupted for
//! any time, nobody is kept waiting, no interval is counted twice or of another key, and every start is
//! accounted for.

use crate::compiled::Compiled;
use crate::mapped::map_session;
use crate::support::random::Random;
use crate::support::sandbox::alone;
use capriole_ring::Memory;
use capriole_ring::intervals::{Contents, Intervals};
use capriole_ring::layout::Geometry;
use capriole_ring::numbers::interval;
use capriole_ring::tables::{TableReader, Tables};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

type Interrupt = Option<extern "C" fn()>;
type SetUp = unsafe extern "C" fn(u64, u64, u64, u64);
type Now = unsafe extern "C" fn() -> u64;
type StartFunction = unsafe extern "C" fn(*const u64, u64, u64, i64, Interrupt) -> i64;
type FinishFunction =
    unsafe extern "C" fn(*const u64, u64, *mut u64, *mut u64, i64, Interrupt) -> i64;

/// Slots in which a key can be: all of the table.
const SLOTS: u64 = interval::WINDOW as u64;

/// The library.
#[derive(Clone, Copy)]
struct Resident {
    set_up: SetUp,
    now: Now,
    start: StartFunction,
    finish: FinishFunction,
}

impl Resident {
    fn build() -> Resident {
        let compiled = Compiled::load("intervals.c");
        let symbol = |name| compiled.symbol(name);
        let [set_up, now] = [symbol(c"set_up"), symbol(c"now")];
        let [start, finish] = [symbol(c"start"), symbol(c"finish")];
        Resident {
            // SAFETY: the function has this type.
            set_up: unsafe { std::mem::transmute::<*mut libc::c_void, SetUp>(set_up) },
            // SAFETY: as above.
            now: unsafe { std::mem::transmute::<*mut libc::c_void, Now>(now) },
            // SAFETY: as above.
            start: unsafe { std::mem::transmute::<*mut libc::c_void, StartFunction>(start) },
            // SAFETY: as above.
            finish: unsafe { std::mem::transmute::<*mut libc::c_void, FinishFunction>(finish) },
        }
    }
}

/// How an operation went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Killed,
    /// It was done; true if it came to the stop.
    Done(bool),
}

/// Slots, and what was started and ended there.
struct Session {
    resident: Resident,
    intervals: Intervals,
    /// The description for the resident.
    words: Vec<u64>,
    memory: Arc<Memory>,
    geometry: Geometry,
    base: u64,
    starts: u64,
    unmatched: u64,
    /// Starts by their numbers, each with its key and time.
    started: Vec<(u64, u64)>,
    ended: BTreeSet<u64>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the mapping was made for this session.
        unsafe { libc::munmap(self.base as *mut _, self.geometry.size()) };
    }
}

impl Session {
    fn new(resident: Resident) -> Session {
        let mut tables = Tables::default();
        let intervals = tables.add_intervals(2, 1, 1).expect("room");
        let mut bytes = [0; interval::SIZE];
        for (at, word) in [
            (interval::MASK, intervals.slots - 1),
            (interval::SHIFT, intervals.shift()),
            (interval::KEYS, 2),
            (interval::WORDS, 3),
        ] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let (words, _) = bytes.as_chunks();
        let geometry = Geometry::for_buffer(1 << 16, 1, 1).with_tables(&tables);
        let (memory, base) = map_session(&geometry);
        let session = Session {
            resident,
            intervals,
            words: words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
            memory,
            geometry,
            base,
            starts: 0,
            unmatched: 0,
            started: Vec::new(),
            ended: BTreeSet::new(),
        };
        session.set_up();
        session
    }

    fn set_up(&self) {
        let at = |offset: usize| self.base + offset as u64;
        let geometry = &self.geometry;
        // SAFETY: only notes addresses.
        unsafe {
            (self.resident.set_up)(
                self.base,
                at(geometry.directories_offset()),
                at(geometry.counters_offset()),
                at(geometry.own_offset()),
            );
        }
    }

    fn clear(&mut self) {
        let reader = TableReader::new(self.memory.clone(), self.geometry);
        reader.clear_intervals(&self.intervals);
        (self.starts, self.unmatched) = (0, 0);
        (self.started, self.ended) = (Vec::new(), BTreeSet::new());
    }

    fn contents(&self) -> Contents {
        TableReader::new(self.memory.clone(), self.geometry).intervals(&self.intervals)
    }

    /// Checks that all starts and ends are accounted for, and at most `lost` were lost.
    fn check(&self, lost: u64, when: &str) {
        let contents = self.contents();
        let ended = self.ended.len() as u64;
        let known = contents.restarted + contents.no_room + contents.open + ended;
        assert!(
            known <= contents.started && contents.lost(ended) <= lost,
            "{when}: {contents:?}, {ended} ended"
        );
        assert!(contents.started <= self.starts, "{when}: {contents:?}");
        assert!(contents.unmatched <= self.unmatched, "{when}: {contents:?}");
    }
}

thread_local! {
    /// The session, which is also used by what interrupts a thread.
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
    /// Operations that interrupt it.
    static OTHERS: RefCell<Vec<Operation>> = const { RefCell::new(Vec::new()) };
}

fn with<T>(act: impl FnOnce(&mut Session) -> T) -> T {
    SESSION.with_borrow_mut(|session| act(session.as_mut().expect("a session")))
}

/// Operation of a thread, with the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Start(u64),
    End(u64),
}

extern "C" fn interrupt() {
    for operation in OTHERS.take() {
        operation.run(-1, None);
    }
}

impl Operation {
    /// Runs it, stopped before access `stop`.
    fn run(self, stop: i64, interrupt: Interrupt) -> Outcome {
        let resident = with(|session| session.resident);
        let words = with(|session| session.words.clone());
        match self {
            Operation::Start(key) => {
                let number = with(|session| {
                    session.starts += 1;
                    // SAFETY: only reads a number.
                    let now = unsafe { (session.resident.now)() };
                    session.started.push((key, now));
                    session.started.len() as u64 - 1
                });
                // SAFETY: the session's memory is mapped, and the description is right.
                match unsafe { (resident.start)(words.as_ptr(), key, number, stop, interrupt) } {
                    0 => Outcome::Killed,
                    result => Outcome::Done(result == 1),
                }
            }
            Operation::End(key) => {
                let (mut kept, mut ticks) = (0, 0);
                let at = words.as_ptr();
                // SAFETY: as above.
                let result =
                    unsafe { (resident.finish)(at, key, &mut kept, &mut ticks, stop, interrupt) };
                with(|session| match result {
                    0 => session.unmatched += 1,
                    result if result & 1 == 0 => session.unmatched += 1,
                    _ => {
                        assert_ne!(kept, u64::MAX, "what was kept is not known");
                        let (of, begin) = session.started[kept as usize];
                        assert_eq!(of, key, "an interval of another key");
                        assert!(session.ended.insert(kept), "start {kept} has ended twice");
                        // SAFETY: only reads a number.
                        let now = unsafe { (resident.now)() };
                        assert!(ticks <= now - begin, "{ticks} of {begin} to {now}");
                    }
                });
                match result {
                    0 => Outcome::Killed,
                    result => Outcome::Done(result >= 4),
                }
            }
        }
    }
}

fn all(operations: &[Operation]) {
    for operation in operations {
        operation.run(-1, None);
    }
}

use Operation::{End, Start};

/// Each with an operation that is stopped, and those before it.
const SCENARIOS: [(Operation, &[Operation]); 5] = [
    (Start(7), &[]),
    (Start(7), &[Start(7)]),
    (End(7), &[Start(7)]),
    (End(7), &[]),
    (Start(7), &[Start(263), Start(7), Start(519)]), // of one hash
];

/// Runs `scenario` with a stop before each access.
fn at_each_access(mut scenario: impl FnMut(i64) -> Outcome) -> i64 {
    for stop in 0.. {
        if scenario(stop) == Outcome::Done(false) {
            return stop;
        }
    }
    unreachable!("it ends")
}

#[test]
fn a_killed_thread_loses_one_interval_at_most_and_blocks_nobody() {
    let _guard = alone();
    let resident = Resident::build();
    SESSION.set(Some(Session::new(resident)));
    for (stopped, before) in SCENARIOS {
        let accesses = at_each_access(|stop| {
            let when = format!("{before:?}, {stopped:?} killed before access {stop}");
            with(Session::clear);
            all(&[Start(1), Start(2)]);
            all(before);
            let outcome = stopped.run(stop, None);
            with(|session| session.check(1, &when));
            // Others go on as if nothing had happened.
            all(&[Start(7), End(7), End(1), End(2)]);
            with(|session| {
                session.check(1, &when);
                let last = session.started.len() as u64 - 1;
                for number in [0, 1, last] {
                    assert!(session.ended.contains(&number), "{when}: start {number}");
                }
            });
            // Slots that are left behind are used again: those of one key, and those of many.
            for number in 0..3 * SLOTS {
                if (outcome, stopped) == (Outcome::Killed, Start(7)) {
                    Start(1000 + number).run(stop, None);
                }
                stopped.run(stop, None);
            }
            all(&[Start(5), End(5)]);
            with(|session| {
                let contents = session.contents();
                assert_eq!(contents.no_room, 0, "{when}: {contents:?}");
                let last = session.started.len() as u64 - 1;
                assert!(session.ended.contains(&last), "{when}");
            });
            outcome
        });
        assert!(accesses > 20, "{accesses}");
    }
}

#[test]
fn a_thread_that_is_interrupted_anywhere_harms_no_other_interval() {
    let _guard = alone();
    let resident = Resident::build();
    SESSION.set(Some(Session::new(resident)));
    let flood: Vec<Operation> = (100..100 + 2 * SLOTS).map(Start).collect();
    let drained: Vec<Operation> = (100..100 + 2 * SLOTS).map(End).collect();
    let others: Vec<Vec<Operation>> = vec![
        vec![Start(7)],
        vec![End(7)],
        vec![Start(7), End(7)],
        vec![Start(7), Start(7), End(7), End(7)],
        vec![Start(263), End(7), Start(7)],
        vec![Start(1), End(1), Start(3), End(2)],
        flood.clone(),
        [flood, drained].concat(),
    ];
    for (stopped, before) in SCENARIOS {
        for more in &others {
            with(Session::clear);
            all(&[Start(1), Start(2)]);
            all(before);
            let accesses = at_each_access(|stop| {
                with(Session::clear);
                all(&[Start(1), Start(2)]);
                all(before);
                stopped.run(stop, None)
            });
            at_each_access(|stop| {
                let when = format!("{before:?}, {stopped:?} at access {stop}, {more:?}");
                with(Session::clear);
                all(&[Start(1), Start(2)]);
                all(before);
                OTHERS.set(more.clone());
                let outcome = stopped.run(stop, Some(interrupt));
                OTHERS.set(Vec::new());
                // Lost are at most its own interval, and one whose slot it has written to. The last access
                // is its publication, which writes to no other's slot.
                let is_apart =
                    |other: &Operation| matches!(other, Start(key) | End(key) if *key < 7);
                let most = match stop + 1 == accesses {
                    // Nobody needs its slot, or takes it.
                    _ if more.iter().all(is_apart) => 0,
                    true => 1,
                    false => 2,
                };
                with(|session| session.check(most, &when));
                let ended = with(|session| session.ended.len());
                all(&[End(7), End(7)]);
                // Of two that were started at the same moment, the earlier one is dropped.
                assert!(with(|session| session.ended.len()) <= ended + 1, "{when}");
                all(&[Start(7), End(7)]);
                with(|session| {
                    session.check(2, &when);
                    let contents = session.contents();
                    let last = session.started.len() as u64 - 1;
                    let is_full = contents.no_room > 0;
                    assert!(is_full || session.ended.contains(&last), "{when}");
                });
                outcome
            });
        }
    }
}

/// A thread that writes into a slot which another one has taken breaks it; it is used again.
#[test]
fn broken_slots_are_used_again() {
    let _guard = alone();
    let resident = Resident::build();
    SESSION.set(Some(Session::new(resident)));
    let flood: Vec<Operation> = (100..100 + 2 * SLOTS).map(Start).collect();
    let drained: Vec<Operation> = (100..100 + 2 * SLOTS).map(End).collect();
    let mut lost = 0;
    at_each_access(|stop| {
        with(Session::clear);
        let mut outcome = Outcome::Killed;
        for _ in 0..2 * SLOTS {
            OTHERS.set(flood.clone());
            outcome = Start(7).run(stop, Some(interrupt));
            OTHERS.set(Vec::new());
            all(&drained);
            all(&[End(7)]);
        }
        let when = format!("interrupted at access {stop}");
        with(|session| {
            session.check(4 * SLOTS, &when);
            lost += session.contents().lost(session.ended.len() as u64);
        });
        for key in 300..300 + SLOTS {
            all(&[Start(key)]);
        }
        for key in 300..300 + SLOTS {
            all(&[End(key)]);
        }
        with(|session| {
            for number in 1..=SLOTS {
                let start = session.started.len() as u64 - number;
                assert!(session.ended.contains(&start), "{when}: start {start}");
            }
        });
        outcome
    });
    assert!(lost > 100, "{lost}: slots were broken");
}

/// Random operations, each of which may be interrupted by others.
#[test]
fn random_threads_account_for_all_starts() {
    let _guard = alone();
    let resident = Resident::build();
    SESSION.set(Some(Session::new(resident)));
    let mut random = Random::new(31);
    for round in 0..2000 {
        with(Session::clear);
        let keys = random.pick(&[1, 3, 20, 60]);
        let operation = |random: &mut Random| {
            let key = 7 + random.below(keys) as u64;
            match random.below(2) {
                0 => Start(key),
                _ => End(key),
            }
        };
        let mut lost = 0;
        for _ in 0..60 {
            let own = operation(&mut random);
            let count = random.below(5);
            OTHERS.set((0..count).map(|_| operation(&mut random)).collect());
            let stop = random.below(300) as i64 - 100;
            let interrupted = random.below(3) != 0;
            let outcome = own.run(stop, interrupted.then_some(interrupt as extern "C" fn()));
            // An operation that was not interrupted is not there any more; nor are the others.
            OTHERS.set(Vec::new());
            lost += match outcome {
                Outcome::Killed => 1,
                Outcome::Done(true) => 2,
                Outcome::Done(false) => 0,
            };
            with(|session| session.check(lost, &format!("round {round}")));
        }
    }
}
