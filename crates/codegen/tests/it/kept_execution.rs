//! Calls that keep values from their entry to their exit, and are recorded at the exit if they
//! took long: entry and exit run in a child process, with random registers and pointers. The
//! exit must record the result of a reference evaluation at the entry, or nothing, as if the
//! entry's filter rejected the call, or `(fault)` if another call has taken the slot; and the
//! program must not be disturbed.

use crate::constants;
#[allow(dead_code)] // what work asks for is not looked at here
use crate::flags;
use crate::mapped;

use crate::description::*;
use crate::support::random::Random;
use crate::support::sandbox::{COPY, EXIT, STACK_POINTER, Sandbox, State, in_child};
use crate::undisturbed::undisturbed;
use capriole_codegen::condition::{Condition, Relation, Subject, Width};
use capriole_codegen::detour::{Compiler, Request};
use capriole_codegen::fetch::{Content, Fetch, FetchError, Field, STRING_LIMIT, Source};
use capriole_codegen::runtime::{ClockReading, Runtime};
use capriole_codegen::work::Work;
use capriole_insn::liveness::{Live, RegSet};
use capriole_resident as resident;
use capriole_ring::layout::{Geometry, frame, frame_index};
use capriole_ring::{Memory, Reader};
use capriole_testkit::effort::{rounds, seed};
use iced_x86::Register;
use mapped::map_session;
use std::sync::{Arc, LazyLock};

const WORDS: u32 = 5;
const AREAS: u32 = 2;
static GEOMETRY: LazyLock<Geometry> = LazyLock::new(|| Geometry {
    cpus: mapped::cpus(),
    packet_size: 1 << 16,
    packets: 8,
    journal: 1,
    counters: 0,
    directories: 0,
    frames: frame::SLOTS,
    areas: AREAS,
    kept: WORDS,
    windows: false,
});
const DETOUR: u64 = COPY + 0x6000;
const EVENT: u32 = 4711;
const NUMBER: u32 = 0xbeef;
/// Longer than any call here, in time stamp counter ticks.
const AGES: u64 = 1 << 46;
/// Ticks by which a call's entry may be moved into the past.
const EARLIER: [u64; 5] = [1 << 31, 1 << 32, 7 << 32, 3 << 46, 1 << 48];

const WHOLE: Width = Width {
    bytes: 8,
    signed: false,
    bits: None,
};

#[derive(Debug)]
struct Case {
    entry: Fetch,
    exit: Fetch,
    call: u32,
    least: Option<u64>,
    live: Live,
    red_zone: bool,
    rseq: bool,
    seed: u64,
}

/// Change made by another thread to the slot between entry and exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mix {
    Nothing,
    /// The slot belongs to a call of the other thread.
    Owner,
    /// The other thread has written one half of this word.
    Half(usize, usize),
    /// The other thread has written the time.
    Time,
    /// No change; but the call was entered this many ticks earlier.
    Earlier(u64),
}

fn number_field(random: &mut Random, straight: bool) -> Field {
    if straight {
        return Field {
            source: match random.below(4) {
                0 => Source::Immediate(constants::random(random)),
                _ => Source::Register(gpr(random)),
            },
            pointers: Vec::new(),
            length: None,
            content: Content::Number(width(random)),
        };
    }
    loop {
        let field = random_field(random);
        let text = matches!(field.source, Source::Comm | Source::Text(_));
        let content = field.content;
        if matches!(content, Content::Number(_) | Content::Network { .. }) && !text {
            return field;
        }
    }
}

impl Case {
    /// Chooses one of the ways to read the clock; all must work.
    fn clock(&self) -> ClockReading {
        ClockReading {
            ordered: self.seed.is_multiple_of(3),
            coarse: true,
            step: [0, 26, 1000][(self.seed / 3 % 3) as usize],
        }
    }
}

fn random_case(random: &mut Random, seed: u64) -> Case {
    let straight = random.below(2) == 0;
    let words = random.below(WORDS as usize + 1);
    let hidden = random.below(2);
    let fields: Vec<Field> = (0..words + hidden)
        .map(|_| number_field(random, straight))
        .collect();
    let condition =
        (!fields.is_empty() && random.below(3) == 0).then(|| random_condition(random, &fields, 2));
    let area = random.below(AREAS as usize) as u32;
    let call = area << frame::CALL_BITS | NUMBER;
    let plain = |source| Field {
        source,
        pointers: Vec::new(),
        length: None,
        content: Content::Number(WHOLE),
    };
    let mut exits = vec![plain(Source::Latency(call))];
    for (word, field) in fields[..words].iter().enumerate() {
        let word = word as u16;
        let mut kept = Field {
            source: Source::Kept { call, word },
            pointers: Vec::new(),
            length: None,
            content: field.content,
        };
        exits.push(kept.clone());
        if random.below(4) == 0 {
            // A kept pointer, followed at the exit.
            kept.pointers = vec![random.below(64) as i64];
            exits.push(kept);
        }
    }
    exits.push(plain(Source::Register(gpr(random))));
    let least = match random.below(3) {
        0 => None,
        1 => Some(1),
        _ => Some(AGES),
    };
    Case {
        entry: Fetch {
            fields,
            recorded: words,
            condition,
            flags: None,
            words: Vec::new(),
        },
        exit: Fetch {
            recorded: exits.len(),
            fields: exits,
            condition: least.map(|least| Condition::Number {
                subject: Subject::Field(0),
                relation: Relation::GreaterOrEqual,
                with: least.into(),
            }),
            flags: flags::random(random).filter(|_| random.below(4) == 0),
            words: Vec::new(),
        },
        call,
        least,
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

    /// Writes the resident and the detour into the sandbox. Returns the detour's entry.
    fn place(&self, sandbox: &mut Sandbox, case: &Case, work: &Work, other: &Work) -> u64 {
        let rseq = rseq_offset().filter(|_| case.rseq);
        let config = resident::Config {
            clock_step: case.clock().step,
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            ..mapped::config(self.base, &GEOMETRY)
        };
        forget_sequence();
        sandbox.write(COPY, &resident::place(COPY, &config));
        let runtime = Runtime {
            shadow_stack: case.seed % 2 == 1,
            clock: case.clock(),
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            ..mapped::runtime(self.base, &GEOMETRY, COPY)
        };
        let mut compiler = Compiler::new(runtime, DETOUR, Vec::new());
        // First compile another detour of the same form.
        let mut request = Request {
            work: std::slice::from_ref(other),
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

    /// Returns the offset of the call's slot in session memory.
    fn slot(case: &Case) -> usize {
        let index = frame_index(STACK_POINTER);
        let area = case.call >> frame::CALL_BITS;
        let slot = area as usize * frame::SLOTS as usize + (index % frame::SLOTS) as usize;
        GEOMETRY.frames_offset() + slot * GEOMETRY.frame_size()
    }

    fn mix(&self, case: &Case, mix: Mix) {
        let slot = Session::slot(case);
        // Another stack that uses the same slot differs in a bit of the tag.
        let other = 1 << 29;
        match mix {
            Mix::Nothing => {}
            Mix::Owner => {
                let owner = self.memory.load(slot + frame::OWNER);
                self.memory.store(slot + frame::OWNER, owner ^ other);
            }
            Mix::Half(word, half) => {
                let at = slot + frame::KEPT + word * frame::WORD + half * 8;
                let tag = (STACK_POINTER ^ other) >> frame::TAG_SHIFT << 32;
                self.memory.store(at, tag | 0x1234_5678);
            }
            Mix::Time => {
                let moved = |stack: u64| stack >> frame::TAG_SHIFT << frame::TIME_SHIFT;
                let time = self.memory.load(slot + frame::BEGIN);
                let time = time.wrapping_sub(moved(STACK_POINTER));
                let time = time.wrapping_add(moved(STACK_POINTER ^ other));
                self.memory.store(slot + frame::BEGIN, time);
            }
            Mix::Earlier(ticks) => {
                let time = self.memory.load(slot + frame::BEGIN);
                self.memory
                    .store(slot + frame::BEGIN, time.wrapping_sub(ticks));
            }
        }
    }

    /// Returns the records: time, event, content.
    fn records(&self) -> Result<Vec<(u64, u32, Vec<u8>)>, String> {
        let mut reader = Reader::new(self.memory.clone(), *GEOMETRY);
        let mut records = Vec::new();
        reader
            .collect::<String>(true, |packet| {
                if let [header @ .., _, _] = packet.content
                    && header.len() >= 16
                {
                    let time = u64::from_le_bytes(packet.content[..8].try_into().unwrap());
                    let event = u32::from_le_bytes(packet.content[8..12].try_into().unwrap());
                    records.push((time, event, packet.content[16..].to_vec()));
                }
                Ok(())
            })
            .map_err(|e| format!("reading: {e}"))?;
        match (reader.lost(), reader.damaged()) {
            (0, 0) => Ok(records),
            other => Err(format!("lost, damaged: {other:?}")),
        }
    }

    fn input(&self, random: &mut Random) -> State {
        let mut input: State = random.state();
        for register in &mut input.gprs {
            if random.below(3) != 0 {
                *register = pointer(random);
            }
        }
        input
    }

    /// Runs work at a site. Returns the memory and flags at its start.
    fn run(
        &self,
        sandbox: &mut Sandbox,
        case: &Case,
        entry: u64,
        random: &mut Random,
    ) -> Result<(World, u64), String> {
        let area = self.area.fill(random);
        let input = self.input(random);
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
        Ok((world, plain.state.flags))
    }
}

fn run_case(session: &Session, sandbox: &mut Sandbox, case: &Case) -> Result<(), String> {
    let enter = |call| case.entry.enter(call).map_err(|e| e.to_string());
    let leave = |event| case.exit.work(event).map_err(|e| e.to_string());
    let (enters, other) = (enter(case.call)?, enter(case.call ^ 1)?);
    let elsewhere = enter(case.call ^ 1 << frame::CALL_BITS)?;
    let (leaves, another) = (leave(EVENT)?, leave(EVENT + 1)?);
    let is_long = matches!(leaves, Work::Long(_));
    assert_eq!(is_long, case.least.is_some(), "{leaves:?}");
    let mut random = Random::new(case.seed);
    // The slot still holds data of an earlier case.
    session.memory.store(Session::slot(case) + frame::OWNER, 0);
    for _ in 0..5 {
        mapped::empty(&session.memory, session.base, &GEOMETRY);
        let entry = session.place(sandbox, case, &enters, &other);
        let before = timestamp();
        let (world, _) = session.run(sandbox, case, entry, &mut random)?;
        let after = timestamp();
        let known = (case.entry.condition.as_ref())
            .is_none_or(|condition| world.holds(&case.entry.fields, condition));
        let accepted = known;
        if random.below(2) == 0 {
            // The same function's entry, probed for another purpose, changes nothing.
            let entry = session.place(sandbox, case, &elsewhere, &other);
            session.run(sandbox, case, entry, &mut random)?;
        }
        let mix = match random.below(8) {
            0 | 1 if known => Mix::Owner,
            2 if known && is_long => Mix::Time,
            // Around the limit that straight-line code can measure; nothing can measure the last
            // value.
            3 | 4 if known => {
                let count = EARLIER.len() - usize::from(!is_long);
                Mix::Earlier(EARLIER[random.below(count)])
            }
            5 if known && case.entry.recorded > 0 => {
                Mix::Half(random.below(case.entry.recorded), random.below(2))
            }
            _ => Mix::Nothing,
        };
        session.mix(case, mix);
        let entry = session.place(sandbox, case, &leaves, &another);
        let (out, left) = session.run(sandbox, case, entry, &mut random)?;
        let known = known && !matches!(mix, Mix::Owner | Mix::Time);
        let earlier = match mix {
            Mix::Earlier(ticks) => ticks,
            _ => 0,
        };
        let known = known && earlier < 1 << frame::TIME_SHIFT;
        let long = match case.least {
            None => true,
            Some(least) => known && (least < AGES || least <= earlier),
        };
        let flags = case.exit.flags;
        // The end of a call that the filter at its entry rejected is none.
        let wanted = accepted && long && flags.is_none_or(|flags| flags::hold(flags, left));
        let records = session.records()?;
        let [(time, event, content)] = &records[..] else {
            match (wanted, records.len()) {
                (false, 0) => continue,
                (_, count) => return Err(format!("{count} records; wanted: {wanted}, {mix:?}")),
            }
        };
        if !wanted || *event != EVENT {
            return Err(format!("event {event}; wanted: {wanted}, {mix:?}"));
        }
        let expected = expected(case, known.then_some(&world), mix, &out);
        let (mask, rest) = content.split_at(8);
        let (latency, rest) = rest.split_at(8);
        if (mask, rest) != (&expected[..8], &expected[8..]) {
            return Err(format!(
                "recorded {mask:x?} {rest:x?}, not {expected:x?}, {mix:?}, {known}"
            ));
        }
        // The entry's time is the record's time minus the latency, exact to the tick.
        let latency = u64::from_le_bytes(latency.try_into().unwrap());
        let began = time.wrapping_sub(latency).wrapping_add(earlier);
        if known && !(before..=after).contains(&began) {
            return Err(format!("began at {began}, not {before} to {after}"));
        }
    }
    Ok(())
}

/// Returns the field whose content a call keeps: numbers in network byte order are kept as they are,
/// and reversed at the exit.
fn as_kept(field: &Field) -> Field {
    let content = match field.content {
        Content::Network { bytes } => Content::Number(Width {
            bytes,
            signed: false,
            bits: None,
        }),
        content => content,
    };
    Field {
        content,
        ..field.clone()
    }
}

/// Returns the mask of unreadable fields, and all fields after the latency.
fn expected(case: &Case, entered: Option<&World>, mix: Mix, out: &World) -> Vec<u8> {
    let (mut mask, mut bytes) = (u64::from(entered.is_none()), Vec::new());
    for (index, field) in case.exit.fields.iter().enumerate().skip(1) {
        let (content, good) = match field.source {
            Source::Kept { word, .. } => {
                let word = usize::from(word);
                let field_of_entry = as_kept(&case.entry.fields[word]);
                let kept = entered.map(|world| world.content(&field_of_entry));
                let mixed = matches!(mix, Mix::Half(other, _) if other == word);
                match kept {
                    Some((content, true)) if !mixed => {
                        let value = u64::from_le_bytes(content.try_into().unwrap());
                        out.content(&Field {
                            source: Source::Immediate(value),
                            ..field.clone()
                        })
                    }
                    _ => (vec![0; 8], false),
                }
            }
            _ => out.content(field),
        };
        bytes.extend(content);
        mask |= u64::from(!good) << index;
    }
    [mask.to_le_bytes().to_vec(), bytes].concat()
}

fn timestamp() -> u64 {
    // SAFETY: every processor of this kind has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[test]
fn what_a_call_keeps_is_recorded_at_its_exit() {
    if thread_word(TID_OFFSET) != own_tid() {
        println!("skipped: this C library keeps the thread's id elsewhere");
        return;
    }
    let mut random = Random::new(seed() + 11);
    let count = rounds(500, 4500, 60_000) as u64;
    let cases: Vec<Case> = (0..count)
        .map(|i| random_case(&mut random, i + 1))
        .collect();
    let straight = |case: &&Case| matches!(case.entry.enter(0), Ok(Work::Enter { .. }));
    let share = cases.iter().filter(straight).count();
    assert!(share > cases.len() / 4, "only {share} are straight code");
    // A child process has a limit of processor time.
    for cases in cases.chunks(1_500) {
        let mut session = None;
        in_child(
            cases,
            |sandbox, case| run_case(session.get_or_insert_with(Session::new), sandbox, case),
            |case| format!("{case:#x?}"),
        );
    }
}

#[test]
fn only_so_many_numbers_are_kept() {
    let field = |content| Field {
        source: Source::Register(Register::RDI),
        pointers: vec![0],
        length: None,
        content,
    };
    let entry = |fields: Vec<Field>| Fetch {
        recorded: fields.len(),
        fields,
        ..Fetch::default()
    };
    let number = field(Content::Number(WHOLE));
    let most = frame::MOST_WORDS as usize;
    assert!(entry(vec![number.clone(); most]).enter(1).is_ok());
    let more = entry(vec![number.clone(); most + 1]).enter(1);
    assert_eq!(more, Err(FetchError::TooManyKept(most + 1)));
    let text = entry(vec![number, field(Content::Text)]).enter(1);
    assert_eq!(text, Err(FetchError::NotKept(1)));
}
