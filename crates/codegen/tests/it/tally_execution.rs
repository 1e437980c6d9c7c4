//! Runs events that are aggregated, in a child process, from random registers and
//! pointers: the final table must be equal to a reference evaluation of the same
//! description, and the program must not be disturbed. Some runs are interrupted at every
//! instruction, so that every restartable sequence is aborted.

use crate::constants;
use crate::flags;
use crate::mapped;
use crate::signals;

use crate::description::*;
use crate::support::random::Random;
use crate::support::sandbox::{COPY, EXIT, STACK_POINTER, Sandbox, State, in_child};
use crate::undisturbed::undisturbed;
use capriole_codegen::condition::Width;
use capriole_codegen::detour::{Compiler, Request};
use capriole_codegen::fetch::{
    Amount, Content, Fetch, Field, KEY_TEXT_LIMIT, Source, TIMES_CELLS, Tally,
};
use capriole_codegen::histogram;
use capriole_codegen::runtime::Runtime;
use capriole_codegen::work::Work;
use capriole_insn::liveness::{Live, RegSet};
use capriole_resident as resident;
use capriole_ring::Memory;
use capriole_ring::layout::{Geometry, directory, frame, frame_index};
use capriole_ring::summary;
use capriole_ring::tables::{Shape, Table, TableReader, Tables};
use capriole_testkit::effort::{rounds, seed};
use iced_x86::{Code, Decoder, DecoderOptions, OpKind, Register};
use mapped::map_session;
use signals::step_from;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const DETOUR: u64 = COPY + 0x6000;
/// Address of the breakpoint at which single stepping through the detour starts.
const STEP: u64 = DETOUR - 16;
/// Events of the table; the second one runs.
const EVENTS: std::ops::Range<u32> = 4710..4713;
const EVENT: u32 = 4711;
const RUNS: usize = 14;

#[derive(Debug)]
struct Case {
    fetch: Fetch,
    tally: Tally,
    tables: Tables,
    live: Live,
    red_zone: bool,
    rseq: bool,
    stepped: bool,
    seed: u64,
}

fn straight_field(random: &mut Random) -> Field {
    let mut number = width(random);
    if random.below(3) != 0 {
        number.bits = None;
    }
    let source = match random.below(8) {
        0 => Source::Thread,
        1 => Source::Immediate(constants::random(random)),
        _ => Source::Register(gpr(random)),
    };
    if source == Source::Thread {
        number = Width::WORD;
    }
    Field {
        source,
        pointers: Vec::new(),
        length: None,
        content: Content::Number(number),
    }
}

/// A number field; for a key it may also be a string.
fn single_field(random: &mut Random, key: bool) -> Field {
    loop {
        let field = random_field(random);
        let text = matches!(field.source, Source::Comm | Source::Text(_))
            || field.content == Content::Text;
        let number = !text && compared(field.content).is_some();
        if number || key && text {
            return field;
        }
    }
}

fn random_case(random: &mut Random, seed: u64) -> Case {
    let straight = random.below(3) != 0;
    let keys = random.below(if straight { 2 } else { 3 });
    let values = random.below(3);
    let hidden = random.below(3);
    let fields: Vec<Field> = (0..keys + values + hidden)
        .map(|index| match straight {
            true => straight_field(random),
            false if index < keys + values => single_field(random, index < keys),
            false => random_field(random),
        })
        .collect();
    let condition =
        (hidden > 0 && random.below(2) == 0).then(|| random_condition(random, &fields, 2));
    let recorded = keys + values;
    let mut next = 0;
    let mut cell = |count| {
        next += count;
        next - count
    };
    let mut cells = Vec::new();
    let mut maxima = Vec::new();
    for (field, value) in fields.iter().enumerate().take(recorded).skip(keys) {
        let signed = matches!(value.content, Content::Number(w) if w.signed);
        match random.below(5) {
            4 => cells.push((cell(1), Amount::Readable(field))),
            0 => cells.push((cell(1), Amount::Sum(field))),
            1 => cells.push((cell(histogram::buckets(signed)), Amount::Bucket(field))),
            _ => {
                let flip = random.pick(&[0, u64::MAX, 1 << 63, !(1 << 63)]);
                maxima.push(cell(1));
                let at = maxima[maxima.len() - 1];
                cells.push((at, Amount::Maximum { field, flip }));
            }
        }
    }
    if cells.is_empty() || random.below(2) == 0 {
        cells.push((cell(1), Amount::One));
    }
    let readable = |field: &Field| field.pointers.is_empty();
    let unreadable = (!fields[keys..recorded].iter().all(readable)).then(|| cell(1));
    let mut tables = Tables::default();
    let summary = random.pick(&[0, summary::ROOM]);
    let shape = |cells| Shape {
        events: EVENTS,
        key: Tally::key_size(&fields[..keys]),
        keys: 4,
        cells,
        maxima: maxima.clone(),
        summary,
    };
    tables.add(shape(1)).expect("room");
    let table = tables.add(shape(next)).expect("room").clone();
    Case {
        tally: Tally {
            table,
            keys,
            cells,
            unreadable,
            ends: None,
        },
        tables,
        fetch: Fetch {
            fields,
            recorded,
            condition,
            flags: flags::random(random).filter(|_| random.below(3) == 0),
            words: Vec::new(),
        },
        live: Live {
            gprs: RegSet(random.number() as u16 | RegSet::of(Register::RSP).0),
            flags: random.below(2) == 0,
        },
        red_zone: random.below(2) == 0,
        rseq: random.below(4) != 0,
        stepped: random.below(8) == 0,
        seed,
    }
}

/// Session memory for one case.
struct Session {
    memory: Arc<Memory>,
    geometry: Geometry,
    base: u64,
}

impl Drop for Session {
    fn drop(&mut self) {
        forget_sequence();
        // SAFETY: the mapping was made for this session, and none of its detours is running.
        unsafe { libc::munmap(self.base as *mut _, self.geometry.size()) };
    }
}

impl Session {
    fn new(case: &Case) -> Session {
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
        }
        .with_tables(&case.tables)
        .with_frames(1, 0);
        let (memory, base) = map_session(&geometry);
        mapped::empty(&memory, base, &geometry);
        Session {
            memory,
            geometry,
            base,
        }
    }

    /// Changes the time of the open call as if another thread had written it, for a call of its own
    /// whose stack pointer differs in `bits`; moves it into the past by `earlier`.
    fn change_time(&self, bits: u64, earlier: u64) {
        let index = frame_index(STACK_POINTER);
        let slot = (index % self.geometry.frames) as usize * frame::SIZE;
        let slot = self.base + (self.geometry.frames_offset() + slot) as u64;
        let owner = (slot + frame::OWNER as u64) as *const u64;
        // SAFETY: a slot of the session's memory, which is mapped there.
        let owner = unsafe { owner.read_volatile() };
        assert_eq!(owner << frame::CALL_BITS >> frame::CALL_BITS, STACK_POINTER);
        let begin = (slot + frame::BEGIN as u64) as *mut u64;
        // SAFETY: as above.
        let time = unsafe { begin.read_volatile() };
        let moved = |stack: u64| stack >> frame::TAG_SHIFT << frame::TIME_SHIFT;
        let other = moved(STACK_POINTER ^ bits);
        let time = time.wrapping_sub(moved(STACK_POINTER)).wrapping_add(other);
        // SAFETY: as above.
        unsafe { begin.write_volatile(time.wrapping_sub(earlier)) };
    }

    /// Writes the resident and the detour into the sandbox; `run` can replace the resident's entry
    /// of that name. Returns the detour's entry.
    fn place(
        &self,
        sandbox: &mut Sandbox,
        case: &Case,
        run: Option<u64>,
        work: &[Work],
        other: &[Work],
    ) -> u64 {
        let rseq = simulated().or_else(rseq_offset).filter(|_| case.rseq);
        let config = resident::Config {
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            ..mapped::config(self.base, &self.geometry)
        };
        forget_sequence();
        sandbox.write(COPY, &resident::place(COPY, &config));
        let mut runtime = Runtime {
            shadow_stack: case.seed % 2 == 1,
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            ..mapped::runtime(self.base, &self.geometry, COPY)
        };
        runtime.run = run.unwrap_or(runtime.run);
        let mut compiler = Compiler::new(runtime, DETOUR, Vec::new());
        // First compile another event of the same form.
        let mut request = Request {
            work: other,
            displaced: &[],
            resume: EXIT,
            red_zone: case.red_zone,
            live: case.live,
        };
        compiler.compile(&request).expect("all is near");
        request.work = work;
        let detour = compiler.compile(&request).expect("all is near");
        sandbox.write(DETOUR, compiler.image());
        if !case.stepped {
            return detour.entry;
        }
        let mut jump = vec![0xcc, 0xe9];
        jump.extend(((detour.entry - STEP - 6) as u32).to_le_bytes());
        sandbox.write(STEP, &jump);
        STEP
    }
}

/// The expected contents of a table.
#[derive(Default)]
struct Expected {
    rows: BTreeMap<Vec<u8>, Vec<u64>>,
    dropped: u64,
}

impl Expected {
    fn add(&mut self, world: &World, case: &Case) {
        let Case { fetch, tally, .. } = case;
        let wanted = fetch.condition.as_ref();
        if !wanted.is_none_or(|condition| world.holds(&fetch.fields, condition)) {
            return;
        }
        let (mut key, mut faults) = (Vec::new(), 0u64);
        let mut can_fault = false;
        for (index, field) in fetch.fields[..tally.keys].iter().enumerate() {
            can_fault |= !field.pointers.is_empty();
            let (mut bytes, good) = world.content(field);
            let is_text = matches!(field.source, Source::Comm | Source::Text(_));
            if let (Some(width), true, false) = (compared(field.content), good, is_text) {
                let number = world.number(field, width).expect("it was read");
                bytes = (number as u64).to_le_bytes().to_vec();
            }
            key.extend(bytes);
            faults |= u64::from(!good) << index;
        }
        if can_fault {
            key = [faults.to_le_bytes().to_vec(), key].concat();
        }
        let table = &tally.table;
        let full = self.rows.len() == table.rows as usize && !self.rows.contains_key(&key);
        // All further keys of a case have rows in a summary.
        if full && tally.keys > 0 && table.summaries.is_none() {
            self.dropped += 1;
            return;
        }
        let empty = || vec![0; table.shape.cells as usize];
        let row = self.rows.entry(key).or_insert_with(empty);
        let mut bad = false;
        for (cell, amount) in &tally.cells {
            let (Amount::Sum(field)
            | Amount::Bucket(field)
            | Amount::Readable(field)
            | Amount::Maximum { field, .. }) = *amount
            else {
                row[*cell as usize] += 1;
                assert_eq!(*amount, Amount::One, "random cases have no durations");
                continue;
            };
            let width = compared(fetch.fields[field].content).expect("values are numbers");
            let Some(number) = world.number(&fetch.fields[field], width) else {
                bad = true;
                continue;
            };
            let cell = *cell as usize;
            match *amount {
                Amount::Readable(_) => row[cell] += 1,
                Amount::Bucket(_) => row[cell + histogram::bucket(number) as usize] += 1,
                Amount::Maximum { flip, .. } => row[cell] = row[cell].max(number as u64 ^ flip),
                _ => row[cell] = row[cell].wrapping_add(number as u64),
            }
        }
        // Unreadable values count even if no cell uses them.
        let values = &fetch.fields[tally.keys..fetch.recorded];
        bad |= values.iter().any(|field| !world.content(field).1);
        if let (true, Some(cell)) = (bad, tally.unreadable) {
            row[cell as usize] += 1;
        }
    }
}

fn run_case(sandbox: &mut Sandbox, area: &Area, case: &Case) -> Result<(), String> {
    let work = |event| case.fetch.tally(event, &case.tally);
    let mut works = work(EVENT).map_err(|e| e.to_string())?;
    let mut other = work(EVENT + 1).map_err(|e| e.to_string())?;
    if case.fetch.flags.is_some() && case.seed.is_multiple_of(2) {
        // Other work at the site that does not test the flags, but overwrites them.
        for works in [&mut works, &mut other] {
            let at = if case.seed.is_multiple_of(4) {
                0
            } else {
                works.len()
            };
            let (call, filter) = (1, None);
            works.insert(
                at,
                Work::Enter {
                    call,
                    kept: Vec::new(),
                    filter,
                },
            );
        }
    }
    let session = Session::new(case);
    let mut random = Random::new(case.seed);
    let mut expected = Expected::default();
    // A small set of values, so that keys repeat.
    let few: Vec<u64> = (0..3).map(|_| pointer(&mut random)).collect();
    let bytes = area.fill(&mut random);
    let entry = session.place(sandbox, case, None, &works, &other);
    let runs = if case.stepped { 3 } else { RUNS };
    for _ in 0..runs {
        let mut input: State = random.state();
        for register in &mut input.gprs {
            match random.below(4) {
                0 => {}
                1 => *register = random.number() >> random.below(64),
                _ => *register = random.pick(&few),
            }
        }
        let seed = random.number();
        let plain = sandbox.run(EXIT, &input, seed);
        let out = sandbox.run(entry, &input, seed);
        undisturbed(&plain, &out, case.live, case.red_zone)?;
        let world = World {
            area: bytes.clone(),
            registers: plain.state.gprs,
            stack: plain.stack.clone(),
            data: plain.data.clone(),
            comm: own_comm(),
            tid: own_tid(),
            text_limit: KEY_TEXT_LIMIT,
        };
        let flags = case.fetch.flags;
        if flags.is_none_or(|flags| flags::hold(flags, plain.state.flags)) {
            expected.add(&world, case);
        }
    }
    compare_table(&session, &case.tally.table, &expected)
}

fn compare_table(session: &Session, table: &Table, expected: &Expected) -> Result<(), String> {
    let contents = TableReader::new(session.memory.clone(), session.geometry).read(table);
    let rows = contents.rows.into_iter();
    let rows: BTreeMap<Vec<u8>, Vec<u64>> = rows
        .filter(|row| table.shape.key > 0 || row.cells.iter().any(|cell| *cell > 0))
        .map(|row| (row.event, row.key, row.cells))
        .inspect(|(event, ..)| assert_eq!(*event, EVENT))
        .map(|(_, key, cells)| (key, cells))
        .collect();
    let nothing = |cells: &Vec<u64>| cells.iter().all(|cell| *cell == 0);
    let wanted = expected.rows.iter();
    let wanted: BTreeMap<_, _> = wanted
        .filter(|(_, cells)| table.shape.key > 0 || !nothing(cells))
        .map(|(key, cells)| (key.clone(), cells.clone()))
        .collect();
    if contents.dropped != expected.dropped {
        return Err(format!(
            "{} dropped, not {}",
            contents.dropped, expected.dropped
        ));
    }
    if rows != wanted {
        let brief = |rows: &BTreeMap<Vec<u8>, Vec<u64>>| -> Vec<String> {
            let cells = |cells: &[u64]| -> Vec<(usize, u64)> {
                cells
                    .iter()
                    .copied()
                    .enumerate()
                    .filter(|c| c.1 > 0)
                    .collect()
            };
            rows.iter()
                .map(|(key, row)| format!("{key:x?}: {:x?}", cells(row)))
                .collect()
        };
        return Err(format!("{:#?}, not {:#?}", brief(&rows), brief(&wanted)));
    }
    Ok(())
}

#[test]
fn what_is_added_up_is_what_the_description_says() {
    if thread_word(TID_OFFSET) != own_tid() {
        println!("skipped: this C library keeps the thread's id elsewhere");
        return;
    }
    let mut random = Random::new(seed() + 11);
    let count = rounds(200, 3600, 100_000) as u64;
    let cases: Vec<Case> = (0..count)
        .map(|i| random_case(&mut random, i + 1))
        .collect();
    let straight = |case: &&Case| {
        let works = case.fetch.tally(EVENT, &case.tally).expect("it is one");
        works.iter().any(|w| matches!(w, Work::Tally(_)))
    };
    let share = cases.iter().filter(straight).count();
    assert!(share > cases.len() / 10, "only {share} are straight code");
    // A child process has a limit of processor time.
    for cases in cases.chunks(600) {
        let mut area = None;
        in_child(
            cases,
            |sandbox, case| {
                let area = area.get_or_insert_with(|| {
                    step_from(STEP);
                    Area::map()
                });
                run_case(sandbox, area, case)
            },
            |case| format!("{case:#x?}\n{:#x?}", case.fetch.tally(EVENT, &case.tally)),
        );
    }
}

/// A hit whose key already has a row is counted by straight-line code alone, unless that was
/// interrupted.
#[test]
fn known_keys_need_no_resident() {
    if rseq_offset().is_none() {
        println!("skipped: this C library registers no restartable sequences");
        return;
    }
    let mut random = Random::new(5);
    let straight = |case: &Case| {
        let works = case.fetch.tally(EVENT, &case.tally).expect("it is one");
        works.iter().all(|w| matches!(w, Work::Tally(_)))
    };
    let cases: Vec<Case> = (0..400)
        .map(|i| Case {
            rseq: true,
            stepped: false,
            ..random_case(&mut random, i + 1)
        })
        .filter(|case| straight(case) && case.fetch.condition.is_none())
        .take(30)
        .collect();
    assert_eq!(cases.len(), 30);
    in_child(
        &cases,
        |sandbox, case| {
            const INSTEAD: u64 = STEP - 64;
            let works = case.fetch.tally(EVENT, &case.tally).expect("it is one");
            let session = Session::new(case);
            let input: State = Random::new(case.seed).state();
            let entry = session.place(sandbox, case, None, &works, &works);
            sandbox.run(entry, &input, 1);
            // A counter in place of the resident: lock incq 24(%rip); ret
            let entry = session.place(sandbox, case, Some(INSTEAD), &works, &works);
            let mut counter = vec![0xf0, 0x48, 0xff, 0x05, 24, 0, 0, 0, 0xc3];
            counter.resize(40, 0);
            sandbox.write(INSTEAD, &counter);
            for _ in 0..100 {
                sandbox.run(entry, &input, 1);
            }
            // SAFETY: the sandbox keeps that memory mapped.
            let calls = unsafe { ((INSTEAD + 32) as *const u64).read_volatile() };
            match calls < 50 {
                true => Ok(()),
                false => Err(format!("the resident was called {calls} times of 100")),
            }
        },
        |case| format!("{case:#x?}"),
    );
}

/// A call that is entered and left: its latency is aggregated at the exit, by straight-line
/// code and by the resident. An exit without an entry does not count, nor does one whose entry
/// time was written for a call on another stack.
#[test]
fn calls_are_timed() {
    let mut random = Random::new(9);
    let cases: Vec<(u64, bool, bool, bool, bool)> = (0..rounds(100, 600, 6_000) as u64)
        .map(|seed| {
            (
                seed,
                random.below(3) != 0,
                random.below(8) == 0,
                random.below(2) == 0,
                random.below(2) == 0,
            )
        })
        .collect();
    let mut area = None;
    in_child(
        &cases,
        |sandbox, (seed, rseq, stepped, keyed, together)| {
            area.get_or_insert_with(|| {
                step_from(STEP);
                Area::map()
            });
            let case = timed(*seed, (*rseq, *stepped), *keyed, *together);
            let mut random = Random::new(*seed + 1000);
            time_case(sandbox, &case, CALL, &mut random)
        },
        |case| format!("{case:?}"),
    );
}

/// The function whose calls are timed.
const CALL: u32 = 0xbeef;
/// Number of a row's cells for durations, from 0 on: sum, maximum, maximum of the complement, buckets;
/// then hits without a known duration.
const TIMED_CELLS: u32 = TIMES_CELLS + histogram::BUCKETS + 1;

/// Makes a case whose calls are timed, by straight-line code if possible; `together` has one work for
/// all cells.
fn timed(seed: u64, (rseq, stepped): (bool, bool), keyed: bool, together: bool) -> Case {
    let mut random = Random::new(seed);
    let field = |source, width| Field {
        source,
        pointers: Vec::new(),
        length: None,
        content: Content::Number(width),
    };
    let keys = usize::from(keyed);
    let mut fields = vec![field(Source::Thread, Width::WORD); keys];
    fields.push(field(Source::Latency(CALL), Width::unsigned(8)));
    let mut tables = Tables::default();
    let shape = Shape {
        events: EVENTS,
        key: Tally::key_size(&fields[..keys]),
        keys: 4,
        cells: TIMED_CELLS,
        maxima: vec![1, 2],
        summary: 0,
    };
    let table = tables.add(shape).expect("room").clone();
    let maximum = |flip| Amount::Maximum { field: keys, flip };
    let cells = match together {
        true => vec![(TIMES_CELLS, Amount::Times(keys))],
        false => vec![
            (TIMES_CELLS, Amount::Bucket(keys)),
            (0, Amount::Sum(keys)),
            (1, maximum(0)),
            (2, maximum(u64::MAX)),
        ],
    };
    Case {
        tally: Tally {
            table,
            keys,
            cells,
            unreadable: Some(TIMED_CELLS - 1),
            ends: None,
        },
        tables,
        fetch: Fetch {
            recorded: fields.len(),
            fields,
            ..Fetch::default()
        },
        live: Live {
            gprs: RegSet(random.number() as u16 | RegSet::of(Register::RSP).0),
            flags: random.below(2) == 0,
        },
        red_zone: random.below(2) == 0,
        rseq,
        stepped,
        seed,
    }
}

fn time_case(
    sandbox: &mut Sandbox,
    case: &Case,
    call: u32,
    random: &mut Random,
) -> Result<(), String> {
    let leave = case.fetch.tally(EVENT, &case.tally);
    let leave = leave.map_err(|e| e.to_string())?;
    let straight = |w: &Work| matches!(w, Work::Tally(_));
    assert!(leave.iter().all(straight), "{leave:?}");
    let session = Session::new(case);
    // Minimum and maximum latency of each call.
    let mut calls = Vec::new();
    let mut unknown = 0;
    let together_there = case.seed.is_multiple_of(3);
    for _ in 0..4 {
        let input: State = random.state();
        let begin = timestamp();
        let entered = random.below(5) != 0;
        let number = if entered { call } else { call + 1 };
        let mixed = !together_there && random.below(5) == 0;
        // Latencies that straight-line code can measure, and ones that it cannot.
        let earlier = match random.below(4) {
            0 if !together_there && !mixed => [1 << 31, 1 << 32, 5 << 40][random.below(3)],
            _ => 0,
        };
        // In a function of one instruction, both happen at the same site.
        let both = [&enter(number)[..], &leave].concat();
        let other = [&enter(1)[..], &leave].concat();
        let apart = [(&enter(number)[..], &enter(1)[..]), (&leave, &leave)];
        let together = [(&both[..], &other[..])];
        let sites = if together_there {
            &together[..]
        } else {
            &apart[..]
        };
        for (work, other) in sites.iter().copied() {
            let entry = session.place(sandbox, case, None, work, other);
            let plain = sandbox.run(EXIT, &input, 1);
            let out = sandbox.run(entry, &input, 1);
            undisturbed(&plain, &out, case.live, case.red_zone)?;
            if matches!(work, [Work::Enter { .. }]) {
                let bits = u64::from(mixed) << (frame::TAG_SHIFT as usize + random.below(16));
                session.change_time(bits, earlier);
            }
        }
        if entered && !mixed {
            calls.push((earlier + 1, timestamp() - begin + earlier));
        } else {
            unknown += 1;
        }
    }
    let contents = TableReader::new(session.memory.clone(), session.geometry);
    let mut rows = contents.read(&case.tally.table).rows;
    rows.retain(|row| row.event == EVENT);
    let [row] = &rows[..] else {
        return Err(format!("{} rows", rows.len()));
    };
    let [total, longest, shortest, ref buckets @ .., unreadable] = row.cells[..] else {
        return Err("cells".to_owned());
    };
    let counted: u64 = buckets.iter().sum();
    // Each cell's own code detects that there is no entry.
    let told = (counted, unreadable);
    let most_of = |of: fn(&(u64, u64)) -> u64| calls.iter().map(of).max().unwrap_or(0);
    let least_of = |of: fn(&(u64, u64)) -> u64| calls.iter().map(of).min().unwrap_or(u64::MAX);
    let bucket = |ticks: u64| histogram::bucket(ticks.into()) as usize;
    let in_bucket = |(least, most): &(u64, u64)| {
        let buckets = &buckets[bucket(*least)..=bucket(*most)];
        buckets.iter().any(|count| *count > 0)
    };
    let right = told == (calls.len() as u64, unknown)
        && calls.iter().all(in_bucket)
        && (calls.iter().map(|call| call.0).sum()..=calls.iter().map(|call| call.1).sum())
            .contains(&total)
        && (most_of(|call| call.0)..=most_of(|call| call.1)).contains(&longest)
        && (least_of(|call| call.0)..=least_of(|call| call.1)).contains(&!shortest);
    match right {
        true => Ok(()),
        false => Err(format!(
            "{told:?} calls, {unknown} unknown; {total} ticks, {} to {longest}; not {calls:?}",
            !shortest
        )),
    }
}

/// Returns the work that begins a call.
fn enter(call: u32) -> [Work; 1] {
    [Work::Enter {
        call,
        kept: Vec::new(),
        filter: None,
    }]
}

fn timestamp() -> u64 {
    // SAFETY: every processor of this kind has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Address of the directory row that another thread takes during the run; 0 once it is taken.
static ROW: AtomicU64 = AtomicU64::new(0);

/// Steps as `signals` does, and gives a free row to another key just before its tag is
/// compared.
extern "C" fn step_and_take(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    const TRAP_FLAG: i64 = 0x100;
    // SAFETY: the kernel hands it to the handler.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let rip = registers[libc::REG_RIP as usize] as u64;
    let flags = &mut registers[libc::REG_EFL as usize];
    if rip == STEP + 1 {
        *flags |= TRAP_FLAG;
    } else if rip == EXIT {
        *flags &= !TRAP_FLAG;
    }
    // SAFETY: the instructions about to run.
    let bytes = unsafe { std::slice::from_raw_parts(rip as *const u8, 16) };
    let mut decoder = Decoder::with_ip(64, bytes, rip, DecoderOptions::NONE);
    let next = decoder.decode();
    let compares_tag = next.code() == Code::Cmp_rm32_imm32
        && next.immediate32() == EVENT + 2
        && next.op0_kind() == OpKind::Memory;
    let row = ROW.load(Ordering::Relaxed);
    if compares_tag && row != 0 {
        // SAFETY: the key of a row of the directory, which the test has mapped.
        unsafe { ((row + 8) as *mut u64).write_volatile(77) };
        // SAFETY: its length and tag, as above.
        unsafe { (row as *mut u64).write_volatile(8 << 32 | u64::from(EVENT + 2)) };
        ROW.store(0, Ordering::Relaxed);
    }
}

/// The key of a free row is 0. A hit of key 0 that has compared the key must not be added to
/// another key that takes the row at this moment.
#[test]
fn a_row_that_is_given_away_meanwhile_is_another_key_s() {
    if thread_word(TID_OFFSET) != own_tid() || rseq_offset().is_none() {
        println!("skipped: this C library registers no restartable sequences");
        return;
    }
    let width = Width {
        bytes: 8,
        signed: false,
        bits: None,
    };
    let field = Field {
        source: Source::Register(Register::RDI),
        pointers: Vec::new(),
        length: None,
        content: Content::Number(width),
    };
    let mut tables = Tables::default();
    let shape = Shape {
        events: EVENTS,
        key: 8,
        keys: 4,
        cells: 1,
        maxima: Vec::new(),
        summary: 0,
    };
    let table = tables.add(shape).expect("room").clone();
    let case = Case {
        fetch: Fetch {
            fields: vec![field],
            recorded: 1,
            ..Fetch::default()
        },
        tally: Tally {
            table,
            keys: 1,
            cells: vec![(0, Amount::One)],
            unreadable: None,
            ends: None,
        },
        tables,
        live: Live::ALL,
        red_zone: true,
        rseq: true,
        stepped: true,
        seed: 2,
    };
    in_child(
        &[case],
        |sandbox, case| {
            let handler = step_and_take as *const () as usize;
            signals::handle(libc::SIGTRAP, handler, libc::SA_SIGINFO);
            let works = case.fetch.tally(EVENT, &case.tally).expect("it is one");
            let session = Session::new(case);
            let entry = session.place(sandbox, case, None, &works, &works);
            // Home row of key 0; the directory has two.
            let hash = (EVENT + 2).wrapping_mul(directory::HASH_FACTOR);
            let row = session.geometry.directories_offset() + directory::HEAD;
            let row = row as u64 + u64::from(hash >> 31) * 64;
            ROW.store(session.base + row, Ordering::Relaxed);
            let mut input: State = Random::new(1).state();
            input.gprs[Register::RDI.number()] = 0;
            sandbox.run(entry, &input, 1);
            if ROW.load(Ordering::Relaxed) != 0 {
                return Err("the tag was not looked at".to_owned());
            }
            let reader = TableReader::new(session.memory.clone(), session.geometry);
            let rows = reader.read(&case.tally.table).rows;
            let mut rows: Vec<(u8, u64)> = rows.iter().map(|r| (r.key[0], r.cells[0])).collect();
            rows.sort_unstable();
            match rows[..] == [(0, 1), (77, 0)] {
                true => Ok(()),
                false => Err(format!("{rows:?}")),
            }
        },
        |case| format!("{case:#x?}"),
    );
}

/// A `struct rseq` that the kernel does not know, on CPU 0.
#[repr(C, align(32))]
struct Simulated {
    cpu_id_start: u32,
    cpu_id: u32,
    rseq_cs: u64,
    rest: [u64; 2],
}

thread_local! {
    static SIMULATED: std::cell::UnsafeCell<Simulated> = const {
        std::cell::UnsafeCell::new(Simulated {
            cpu_id_start: 0,
            cpu_id: 0,
            rseq_cs: 0,
            rest: [0; 2],
        })
    };
}

/// Address of the simulated structure; 0 if the kernel's is used.
static SIMULATED_AT: AtomicU64 = AtomicU64::new(0);
/// Number of instructions in sequences before the one at which a sequence is aborted.
static ABORT_AFTER: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Returns the offset of the simulated structure from the thread pointer, if it is used.
fn simulated() -> Option<i32> {
    let at = SIMULATED_AT.load(Ordering::Relaxed);
    let thread: u64;
    // SAFETY: glibc's thread structure begins with its own address.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) thread) };
    (at != 0).then(|| (at.wrapping_sub(thread) as i64).try_into().expect("near"))
}

/// Steps as `signals` does. In a sequence it counts the instructions, and once does what the kernel
/// does when a thread is interrupted there.
extern "C" fn step_and_abort(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    const TRAP_FLAG: i64 = 0x100;
    // SAFETY: the kernel hands it to the handler.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let rip = registers[libc::REG_RIP as usize] as u64;
    let flags = &mut registers[libc::REG_EFL as usize];
    if rip == STEP + 1 {
        *flags |= TRAP_FLAG;
    } else if rip == EXIT {
        *flags &= !TRAP_FLAG;
    }
    let simulated = SIMULATED_AT.load(Ordering::Relaxed) as *mut Simulated;
    // SAFETY: it is this thread's.
    let descriptor = unsafe { (*simulated).rseq_cs } as *const [u64; 4];
    if descriptor.is_null() {
        return;
    }
    // SAFETY: the sequence's descriptor, in the image of the detour.
    let [_, start, length, abort] = unsafe { descriptor.read_unaligned() };
    if rip.wrapping_sub(start) >= length {
        return;
    }
    let left = ABORT_AFTER.load(Ordering::Relaxed);
    if left == usize::MAX {
        return;
    }
    ABORT_AFTER.store(left.wrapping_sub(1), Ordering::Relaxed);
    if left == 0 {
        // SAFETY: as above.
        unsafe { (*simulated).rseq_cs = 0 };
        registers[libc::REG_RIP as usize] = abort as i64;
    }
}

/// Wherever the sequence for a duration is aborted, the call is counted once, with the same number in
/// all cells.
#[test]
fn a_duration_that_is_aborted_anywhere_counts_once() {
    if thread_word(TID_OFFSET) != own_tid() {
        println!("skipped: this C library keeps the thread's id elsewhere");
        return;
    }
    let cases: Vec<(u64, bool)> = (0..rounds(4, 12, 12) as u64)
        .map(|seed| (seed, seed % 2 == 1))
        .collect();
    in_child(
        &cases,
        |sandbox, (seed, keyed)| {
            let handler = step_and_abort as *const () as usize;
            signals::handle(libc::SIGTRAP, handler, libc::SA_SIGINFO);
            let at = SIMULATED.with(|simulated| simulated.get() as u64);
            SIMULATED_AT.store(at, Ordering::Relaxed);
            let case = timed(*seed, (true, true), *keyed, true);
            let leave = case.fetch.tally(EVENT, &case.tally).expect("it is one");
            let mut aborted = 0;
            loop {
                let session = Session::new(&case);
                let input: State = Random::new(*seed).state();
                // The first call of a key always needs the resident.
                for after in [usize::MAX, aborted] {
                    for work in [&enter(CALL)[..], &leave] {
                        let entry = session.place(sandbox, &case, None, work, work);
                        ABORT_AFTER.store(usize::MAX, Ordering::Relaxed);
                        if matches!(work, [Work::Tally(_)]) {
                            ABORT_AFTER.store(after, Ordering::Relaxed);
                        }
                        let plain = sandbox.run(EXIT, &input, 1);
                        let out = sandbox.run(entry, &input, 1);
                        undisturbed(&plain, &out, case.live, case.red_zone)?;
                    }
                }
                let contents = TableReader::new(session.memory.clone(), session.geometry);
                let mut rows = contents.read(&case.tally.table).rows;
                rows.retain(|row| row.event == EVENT);
                let cells = &rows[0].cells;
                let [sum, longest, shortest, ref buckets @ .., unknown] = cells[..] else {
                    return Err("cells".to_owned());
                };
                let mut expected = vec![0; buckets.len()];
                for ticks in [longest, !shortest] {
                    expected[histogram::bucket(ticks.into()) as usize] += 1;
                }
                if sum != longest + !shortest || *buckets != expected[..] || unknown != 0 {
                    let counted: u64 = buckets.iter().sum();
                    return Err(format!(
                        "after {aborted}: {sum}, {longest}, {}, {counted}, {unknown}",
                        !shortest
                    ));
                }
                if ABORT_AFTER.load(Ordering::Relaxed) != usize::MAX {
                    break;
                }
                aborted += 1;
            }
            match aborted > 15 {
                true => Ok(()),
                false => Err(format!("only {aborted} instructions")),
            }
        },
        |case| format!("{case:?}"),
    );
}

/// The room computed for a site is large enough.
#[test]
fn detours_that_add_up_fit_into_their_room() {
    let mut random = Random::new(99);
    for seed in 0..1000 {
        let case = random_case(&mut random, seed + 1);
        let works = case.fetch.tally(EVENT, &case.tally).expect("it is one");
        let geometry = Geometry::for_buffer(1 << 20, 2, 1).with_tables(&case.tables);
        let runtime = Runtime {
            shadow_stack: seed % 2 == 1,
            rseq_offset: Some(-160),
            tid_offset: Some(TID_OFFSET),
            ..mapped::runtime(0x7000_0000, &geometry, COPY)
        };
        let mut compiler = Compiler::new(runtime, DETOUR, Vec::new());
        let request = Request {
            work: &works,
            displaced: &[],
            resume: EXIT,
            red_zone: true,
            live: Live::ALL,
        };
        compiler.compile(&request).expect("all is near");
        let room = capriole_codegen::detour::room(&works);
        assert!(compiler.image().len() as u64 <= room, "{works:?}");
    }
}
