//! Runs detours and the resident while session memory holds arbitrary values that a hostile
//! process could write there, also while they change: these values must not cause a read or
//! write outside session memory, the program must not be disturbed, and every run must end.
//!
//! Nothing is mapped for a long way around session memory, so an access outside it crashes.

use crate::constants;
use crate::mapped;

use crate::description::*;
use crate::support::random::Random;
use crate::support::sandbox::{COPY, EXIT, Sandbox, State, in_child};
use crate::undisturbed::undisturbed;
use capriole_codegen::condition::Width;
use capriole_codegen::detour::{Compiler, Request};
use capriole_codegen::fetch::{Amount, Content, Fetch, Field, Source, Tally};
use capriole_codegen::runtime::Runtime;
use capriole_codegen::work::{Record, Word, Work};
use capriole_insn::liveness::{Live, RegSet};
use capriole_resident as resident;
use capriole_ring::intervals::Intervals;
use capriole_ring::layout::{self, Geometry, stream};
use capriole_ring::tables::{Shape, Table, TableReader, Tables};
use capriole_ring::{Memory, Reader};
use iced_x86::Register;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// A table, and slots for open intervals.
static TABLES: LazyLock<(Tables, Table, Intervals)> = LazyLock::new(|| {
    let mut tables = Tables::default();
    let shape = Shape {
        events: 0..2,
        key: 16,
        keys: 8,
        cells: 10,
        maxima: Vec::new(),
        summary: 0,
    };
    let table = tables.add(shape).expect("room").clone();
    let intervals = tables.add_intervals(2, 2, 32).expect("room");
    (tables, table, intervals)
});
static GEOMETRY: LazyLock<Geometry> = LazyLock::new(|| {
    let geometry = Geometry {
        cpus: mapped::cpus(),
        packet_size: 1 << 16,
        packets: 8,
        journal: 1,
        counters: 0,
        directories: 0,
        frames: 0,
        areas: 0,
        kept: 0,
        windows: false,
    };
    geometry.with_tables(&TABLES.0)
});
const DETOUR: u64 = COPY + 0x6000;
/// Registers that are recorded: with too many, no register would be left to work with.
const REGISTERS: [Register; 4] = [Register::RDI, Register::RSI, Register::RSP, Register::R11];
/// More than a 32-bit index can reach.
const AROUND: usize = 40 << 30;

#[derive(Debug)]
struct Case {
    work: Vec<Work>,
    live: Live,
    red_zone: bool,
    rseq: bool,
    seed: u64,
}

fn random_case(random: &mut Random, seed: u64) -> Case {
    let mut work = Vec::new();
    for event in 0..1 + random.below(2) as u32 {
        work.push(match random.below(5) {
            3 => started(random, event),
            4 => ended(event),
            0 => {
                let word = |_| match random.below(3) {
                    0 => Word::Constant(constants::random(random)),
                    _ => random.pick(&REGISTERS).into(),
                };
                let fields = (0..random_count(seed)).map(word).collect();
                Record {
                    event,
                    fields,
                    filter: None,
                }
                .into()
            }
            1 => Work::Count {
                counter: random.below(10) as u32,
                filter: None,
            },
            _ => fetched(random, event),
        });
    }
    Case {
        work,
        live: Live {
            gprs: RegSet(random.number() as u16 | RegSet::of(Register::RSP).0),
            flags: random.below(2) == 0,
        },
        red_zone: random.below(2) == 0,
        rseq: random.below(3) != 0,
        seed,
    }
}

fn random_count(seed: u64) -> usize {
    [0, 1, 2, 6, 60][seed as usize % 5]
}

/// Fields from memory, read through pointers of the program, and a filter on them.
fn fetched(random: &mut Random, event: u32) -> Work {
    let mut fields: Vec<Field> = (0..1 + random.below(4))
        .map(|_| match random.below(6) {
            0 => call_stack(random),
            _ => random_field(random),
        })
        .collect();
    fields.push(Field {
        source: Source::Register(gpr(random)),
        pointers: vec![0],
        length: None,
        content: Content::Text,
    });
    let condition = (random.below(2) == 0).then(|| random_condition(random, &fields, 2));
    let fetch = Fetch {
        recorded: fields.len(),
        fields,
        condition,
        ..Fetch::default()
    };
    fetch.work(event).expect("a program")
}

fn number(source: Source) -> Field {
    Field {
        source,
        pointers: Vec::new(),
        length: None,
        content: Content::Number(Width::unsigned(8)),
    }
}

/// The start of an interval: a key of two words, and two that are kept.
fn started(random: &mut Random, event: u32) -> Work {
    let kept = number(Source::Register(gpr(random)));
    let words = [Source::Immediate(7), Source::Thread, Source::Cpu].map(number);
    let fetch = Fetch {
        fields: words.into_iter().chain([kept]).collect(),
        words: vec![0, 1, 2, 3],
        ..Fetch::default()
    };
    fetch.start(event, &TABLES.2).expect("a program")
}

/// The end of such an interval, by a word that was kept.
fn ended(event: u32) -> Work {
    let fields = [
        Source::Started { word: 3 },
        Source::Interval,
        Source::Immediate(7),
        Source::Thread,
    ];
    let fetch = Fetch {
        fields: fields.map(number).into(),
        recorded: 2,
        words: vec![2, 3],
        ..Fetch::default()
    };
    let tally = Tally {
        table: TABLES.1.clone(),
        keys: 1,
        cells: vec![(0, Amount::One), (1, Amount::Sum(1))],
        unreadable: None,
        ends: Some(TABLES.2),
    };
    let mut works = fetch.tally(event, &tally).expect("a program");
    works.pop().expect("one program")
}

/// A hostile value for a stream's head.
fn hostile_head(random: &mut Random) -> u64 {
    let limit = GEOMETRY.limit();
    let near = |random: &mut Random, at: u32| {
        let by = random.below(40) as u32;
        at.wrapping_add(by).wrapping_sub(20)
    };
    let half = |random: &mut Random| match random.below(8) {
        0 => 0,
        1 => random.number() as u32,
        2 => near(random, u32::MAX),
        3 | 4 => near(random, limit),
        5 => near(random, 0x8000_0000),
        6 => random.below(limit as usize) as u32,
        _ => limit + random.below(1 << 12) as u32,
    };
    u64::from(half(random)) << 32 | u64::from(half(random))
}

/// An arbitrary hostile value.
fn hostile(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.number(),
        1 => random.below(64) as u64,
        2 => u64::MAX,
        _ => hostile_head(random),
    }
}

struct Session {
    memory: Arc<Memory>,
    base: u64,
    area: Area,
}

impl Session {
    fn new() -> Session {
        let fd = rustix::fs::memfd_create("hostile-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, GEOMETRY.size() as u64).unwrap();
        let memory = Arc::new(Memory::map(&fd, GEOMETRY.size()).unwrap());
        use rustix::mm::{MapFlags, ProtFlags};
        let none = ProtFlags::empty();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let null = std::ptr::null_mut();
        // SAFETY: a fresh mapping, never unmapped.
        let around = unsafe { rustix::mm::mmap_anonymous(null, 2 * AROUND, none, flags) };
        let at = around.unwrap().wrapping_byte_add(AROUND);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: it replaces the middle of that mapping, which nothing uses.
        let base = unsafe { rustix::mm::mmap(at, GEOMETRY.size(), access, flags, &fd, 0) };
        Session {
            memory,
            base: base.unwrap() as u64,
            area: Area::map(),
        }
    }

    /// Writes the resident and the detour into the sandbox. Returns the detour's entry.
    fn place(&self, sandbox: &mut Sandbox, case: &Case) -> u64 {
        let rseq = rseq_offset().filter(|_| case.rseq);
        let config = resident::Config {
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            ..mapped::config(self.base, &GEOMETRY)
        };
        forget_sequence();
        sandbox.write(COPY, &resident::place(COPY, &config));
        let runtime = Runtime {
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            ..mapped::runtime(self.base, &GEOMETRY, COPY)
        };
        let mut compiler = Compiler::new(runtime, DETOUR, Vec::new());
        let request = Request {
            work: &case.work,
            displaced: &[],
            resume: EXIT,
            red_zone: case.red_zone,
            live: case.live,
        };
        let detour = compiler.compile(&request).expect("all is near");
        sandbox.write(DETOUR, compiler.image());
        detour.entry
    }

    /// Overwrites states of slots, and parts of what is in them.
    fn scribble_intervals(&self, random: &mut Random) {
        let states = GEOMETRY.directories_offset() + TABLES.2.states as usize;
        for slot in 0..TABLES.2.slots as usize {
            let at = states + 8 * slot;
            if random.below(3) == 0 {
                let state = hostile_state(random, self.memory.load(at));
                self.memory.store(at, state);
            }
        }
        for _ in 0..8 {
            let words = GEOMETRY.directories_offset()..GEOMETRY.counters_offset();
            let at = words.start + random.below(words.len() / 8) * 8;
            let word = hostile_state(random, self.memory.load(at));
            self.memory.store(at, word);
        }
    }

    /// Overwrites everything before the packets, and now and then a packet too.
    fn scribble(&self, random: &mut Random) {
        let memory = &self.memory;
        let streams = GEOMETRY.streams() - layout::NULL_STREAMS * stream::SIZE;
        for at in (streams..GEOMETRY.packets_offset()).step_by(stream::SIZE) {
            memory.store(at + stream::HEAD, hostile_head(random));
            if random.below(4) == 0 {
                memory.store(at + stream::LOCK, 0); // nobody is in there
            }
        }
        for _ in 0..50 {
            scribble_word(memory, random);
        }
        self.scribble_intervals(random);
        for word in 0..2 {
            memory.store(layout::header::FREE + 8 * word, hostile(random));
        }
    }
}

/// Returns a state of a slot that may fit: any generation and hash, and each status.
fn hostile_state(random: &mut Random, known: u64) -> u64 {
    match random.below(4) {
        0 => hostile(random),
        1 => known ^ 1 << random.below(64),
        _ => known >> 2 << 2 | random.below(4) as u64,
    }
}

fn scribble_word(memory: &Memory, random: &mut Random) {
    let end = match random.below(4) {
        0 => GEOMETRY.size(),
        1 => GEOMETRY.packets_offset(),
        _ => GEOMETRY.controls() + 16 * layout::control::SIZE,
    };
    let at = random.below(end / 8) * 8;
    memory.store(at, hostile(random));
}

fn run_case(session: &Session, sandbox: &mut Sandbox, case: &Case) -> Result<(), String> {
    let mut random = Random::new(case.seed);
    mapped::empty(&session.memory, session.base, &GEOMETRY);
    let entry = session.place(sandbox, case);
    session.area.fill(&mut random);
    for _ in 0..10 {
        session.scribble(&mut random);
        let mut input: State = random.state();
        for register in &mut input.gprs {
            *register = pointer(&mut random);
        }
        let seed = random.number();
        let plain = sandbox.run(EXIT, &input, seed);
        let out = sandbox.run(entry, &input, seed);
        undisturbed(&plain, &out, case.live, case.red_zone)?;
    }
    // The reader must end as well, and must not read more than there is.
    let mut reader = Reader::new(session.memory.clone(), *GEOMETRY);
    for all in [false, true] {
        let mut bytes = 0;
        let collected = reader.collect::<()>(all, |packet| {
            bytes += packet.content.len();
            Ok(())
        });
        let most =
            layout::ALL_LANES * GEOMETRY.cpus as usize * GEOMETRY.packets as usize * (1 << 16);
        if collected.is_err() || bytes > most {
            return Err(format!("{bytes} bytes"));
        }
    }
    let _ = (reader.lost(), reader.pending(), reader.damaged());
    let reader = TableReader::new(session.memory.clone(), *GEOMETRY);
    let open = reader.intervals(&TABLES.2).open;
    if open > u64::from(TABLES.2.slots) {
        return Err(format!("{open} open intervals"));
    }
    reader.read(&TABLES.1);
    Ok(())
}

fn cases(count: usize) -> Vec<Case> {
    let mut random = Random::new(11);
    (1..=count as u64)
        .map(|seed| random_case(&mut random, seed))
        .collect()
}

fn describe(case: &Case) -> String {
    format!("{case:?}")
}

#[test]
fn hostile_words_lead_nowhere_else() {
    let mut session = None;
    in_child(
        &cases(500),
        |sandbox, case| run_case(session.get_or_insert_with(Session::new), sandbox, case),
        describe,
    );
}

/// The words change between two reads.
#[test]
fn words_that_change_all_the_time_lead_nowhere_else() {
    let mut session = None;
    let stop = Arc::new(AtomicBool::new(false));
    in_child(
        &cases(150),
        |sandbox, case| {
            let session = session.get_or_insert_with(|| {
                let session = Session::new();
                let (memory, stop) = (session.memory.clone(), stop.clone());
                std::thread::spawn(move || {
                    let mut random = Random::new(12);
                    while !stop.load(Ordering::Relaxed) {
                        scribble_word(&memory, &mut random);
                        // Existing lanes and CPUs.
                        let (lane, cpu) = (random.below(9) as u32, random.below(8) as u32);
                        let at = GEOMETRY.stream(lane, cpu);
                        memory.store(at + stream::HEAD, hostile_head(&mut random));
                        memory.store(at + stream::LOCK, 0);
                    }
                });
                session
            });
            run_case(session, sandbox, case)
        },
        describe,
    );
    stop.store(true, Ordering::Relaxed);
}
