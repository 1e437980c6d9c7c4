//! Runs events with fields in memory and with filters, in a child process, from random
//! registers and pointers, both valid and invalid: the record must be equal, byte for byte,
//! to a reference evaluation of the same description, an event that the filter rejects
//! must not be recorded, and the program must not be disturbed.

use crate::constants;
use crate::flags;
use crate::mapped;

use crate::description::*;
use crate::support::random::Random;
use crate::support::sandbox::{COPY, EXIT, Sandbox, State, in_child};
use crate::undisturbed::undisturbed;
use capriole_codegen::detour::{Compiler, Request};
use capriole_codegen::fetch::{Content, Fetch, Field, STRING_LIMIT, Source};
use capriole_codegen::runtime::Runtime;
use capriole_codegen::work::Work;
use capriole_insn::liveness::{Live, RegSet};
use capriole_resident as resident;
use capriole_ring::layout::{self, Geometry};
use capriole_ring::{Memory, Reader};
use capriole_testkit::effort::{rounds, seed};
use iced_x86::Register;
use mapped::map_session;
use std::sync::{Arc, LazyLock};

static GEOMETRY: LazyLock<Geometry> = LazyLock::new(|| Geometry {
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
});
const DETOUR: u64 = COPY + 0x6000;
const EVENT: u32 = 4711;

#[derive(Debug)]
struct Case {
    fetch: Fetch,
    live: Live,
    red_zone: bool,
    rseq: bool,
    seed: u64,
}

fn random_case(random: &mut Random, seed: u64) -> Case {
    let recorded = random.below(5);
    let hidden = random.below(3);
    // In half of the cases, all fields allow straight-line code.
    let straight = random.below(2) == 0;
    let fields: Vec<Field> = (0..recorded + hidden)
        .map(|_| match straight {
            false => random_field(random),
            true => Field {
                source: match random.below(4) {
                    0 => Source::Immediate(constants::random(random)),
                    _ => Source::Register(gpr(random)),
                },
                pointers: Vec::new(),
                length: None,
                content: Content::Number(width(random)),
            },
        })
        .collect();
    let condition =
        (!fields.is_empty() && random.below(4) != 0).then(|| random_condition(random, &fields, 3));
    let asked = flags::random(random).filter(|_| random.below(3) == 0);
    Case {
        fetch: Fetch {
            fields,
            recorded,
            condition,
            flags: asked,
            words: Vec::new(),
        },
        live: Live {
            gprs: RegSet(random.number() as u16 | RegSet::of(Register::RSP).0),
            flags: random.below(2) == 0,
        },
        red_zone: random.below(2) == 0,
        rseq: random.below(4) != 0,
        seed,
    }
}

struct Session {
    memory: Arc<Memory>,
    base: u64,
    area: Area,
}

impl Session {
    fn new() -> Session {
        let (memory, base) = map_session(&GEOMETRY);
        Session {
            memory,
            base,
            area: Area::map(),
        }
    }

    fn reset(&self) {
        for at in mapped::streams(&GEOMETRY) {
            let lock = self.memory.load(at + layout::stream::LOCK);
            assert_eq!(lock, 0, "a lane is held");
        }
        mapped::empty(&self.memory, self.base, &GEOMETRY);
    }

    /// Writes the resident and the detour into the sandbox. Returns the detour's entry.
    fn place(&self, sandbox: &mut Sandbox, case: &Case, work: &Work) -> u64 {
        let rseq = rseq_offset().filter(|_| case.rseq);
        let config = resident::Config {
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            ..mapped::config(self.base, &GEOMETRY)
        };
        forget_sequence();
        sandbox.write(COPY, &resident::place(COPY, &config));
        let runtime = Runtime {
            shadow_stack: case.seed % 2 == 1,
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            ..mapped::runtime(self.base, &GEOMETRY, COPY)
        };
        let mut compiler = Compiler::new(runtime, DETOUR, Vec::new());
        // First compile another event with the same fetch program.
        let other = case.fetch.work(EVENT + 1).expect("as for the first");
        let mut request = Request {
            work: std::slice::from_ref(&other),
            displaced: &[],
            resume: EXIT,
            red_zone: case.red_zone,
            live: case.live,
        };
        compiler.compile(&request).expect("all is near");
        request.work = std::slice::from_ref(work);
        let detour = compiler.compile(&request).expect("all is near");
        sandbox.write(DETOUR, compiler.image());
        detour.entry
    }

    /// Returns the records: event, thread, content.
    fn records(&self) -> Result<Vec<(u32, u32, Vec<u8>)>, String> {
        let mut reader = Reader::new(self.memory.clone(), *GEOMETRY);
        let mut records = Vec::new();
        reader
            .collect::<String>(true, |packet| {
                // Each run makes one record.
                let word =
                    |at: usize| u32::from_le_bytes(packet.content[at..at + 4].try_into().unwrap());
                if !packet.content.is_empty() {
                    records.push((word(8), word(12), packet.content[16..].to_vec()));
                }
                Ok(())
            })
            .map_err(|e| format!("reading: {e}"))?;
        match (reader.lost(), reader.damaged()) {
            (0, 0) => Ok(records),
            other => Err(format!("lost, damaged: {other:?}")),
        }
    }
}

fn run_case(session: &Session, sandbox: &mut Sandbox, case: &Case) -> Result<(), String> {
    let work = case.fetch.work(EVENT).map_err(|e| e.to_string())?;
    let mut random = Random::new(case.seed);
    for _ in 0..6 {
        session.reset();
        let entry = session.place(sandbox, case, &work);
        let area = session.area.fill(&mut random);
        let mut input: State = random.state();
        for register in &mut input.gprs {
            if random.below(4) != 0 {
                *register = pointer(&mut random);
            }
        }
        let seed = random.number();
        let plain = sandbox.run(EXIT, &input, seed);
        let out = sandbox.run(entry, &input, seed);
        undisturbed(&plain, &out, case.live, case.red_zone)?;
        let world = World {
            area,
            registers: plain.state.gprs,
            stack: plain.stack.clone(),
            data: plain.data.clone(),
            comm: own_comm(),
            tid: own_tid(),
            text_limit: STRING_LIMIT,
        };
        let flags = case.fetch.flags;
        let asked = flags.is_none_or(|flags| flags::hold(flags, plain.state.flags));
        compare_records(session, case, &work, &world, asked)?;
    }
    Ok(())
}

fn compare_records(
    session: &Session,
    case: &Case,
    work: &Work,
    world: &World,
    asked: bool,
) -> Result<(), String> {
    let fetch = &case.fetch;
    let condition = fetch.condition.as_ref();
    let wanted = asked && condition.is_none_or(|condition| world.holds(&fetch.fields, condition));
    let records = session.records()?;
    if records.len() != usize::from(wanted) {
        return Err(format!("{} records; wanted: {wanted}", records.len()));
    }
    let Some((event, tid, content)) = records.first() else {
        return Ok(());
    };
    if (*event, *tid) != (EVENT, world.tid) {
        return Err(format!("event {event}, thread {tid}"));
    }
    let (mut expected, mut mask) = (Vec::new(), 0u64);
    for (index, field) in fetch.fields[..fetch.recorded].iter().enumerate() {
        let (bytes, good) = world.content(field);
        expected.extend(bytes);
        mask |= u64::from(!good) << index;
    }
    let faults = fetch.can_fault();
    if let Work::Run { program, .. } = work
        && (program.faults != faults || content.len() as u64 + 16 > program.size)
    {
        return Err(format!("{} bytes, of {}", content.len(), program.size));
    }
    if faults {
        expected = [mask.to_le_bytes().to_vec(), expected].concat();
    }
    match *content == expected {
        true => Ok(()),
        false => Err(format!("recorded {content:x?}, not {expected:x?}")),
    }
}

#[test]
fn what_is_recorded_is_what_the_description_says() {
    if thread_word(TID_OFFSET) != own_tid() {
        println!("skipped: this C library keeps the thread's id elsewhere");
        return;
    }
    let mut random = Random::new(seed() + 7);
    let count = rounds(1333, 12000, 200_000) as u64;
    let cases: Vec<Case> = (0..count)
        .map(|i| random_case(&mut random, i + 1))
        .collect();
    let straight = |case: &&Case| matches!(case.fetch.work(0), Ok(Work::Record(_)));
    let share = cases.iter().filter(straight).count();
    assert!(share > cases.len() / 10, "only {share} are straight code");
    // A child process has a limit of processor time.
    for cases in cases.chunks(4_000) {
        let mut session = None;
        in_child(
            cases,
            |sandbox, case| run_case(session.get_or_insert_with(Session::new), sandbox, case),
            |case| format!("{case:#x?}\n{:#x?}", case.fetch.work(EVENT)),
        );
    }
}
