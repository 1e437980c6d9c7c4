//! Events with fields in memory and with filters are run, in a child process, from random
//! registers and pointers, good and bad ones: what is recorded must be, byte for byte,
//! what a plain evaluation of the same description gives, an event that the filter does
//! not want must not be there, and the program must not notice.

#[path = "common/mapped.rs"]
mod mapped;
#[path = "../../insn/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use capriole_insn::liveness::{Live, RegSet};
use capriole_plan::condition::{Condition, Relation, Subject, Width};
use capriole_plan::detour::{Compiler, Counters, Request, Runtime, Work};
use capriole_plan::program::{Content, Fetch, Field, STRING_LIMIT, Source};
use capriole_resident as resident;
use capriole_ring::layout::{self, Geometry};
use capriole_ring::memory::Identity;
use capriole_ring::{Memory, Reader};
use iced_x86::Register;
use mapped::map_session;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use support::random::Random;
use support::sandbox::{COPY, DATA, EXIT, STACK_POINTER, Sandbox, State, in_child};

const GEOMETRY: Geometry = Geometry {
    cpus: 256,
    packet_size: 1 << 16,
    packets: 8,
    journal: 1,
    counters: 0,
};
const DETOUR: u64 = COPY + 0x4000;
/// Memory that the fields are read from: two pages, and nothing behind.
const AREA: u64 = 0x5000_0000;
const AREA_SIZE: usize = 8192;
const EVENT: u32 = 4711;
/// The page in which the sandbox's stack lies.
const STACK_PAGE: u64 = STACK_POINTER & !0xfff;

#[derive(Debug)]
struct Case {
    fetch: Fetch,
    live: Live,
    red_zone: bool,
    rseq: bool,
    seed: u64,
}

fn gpr(random: &mut Random) -> Register {
    Register::RAX + random.below(16) as u32
}

fn width(random: &mut Random) -> Width {
    let bytes = random.pick(&[1, 2, 4, 8]);
    let bits = (random.below(4) == 0).then(|| {
        let offset = random.below(8 * usize::from(bytes)) as u8;
        (
            offset,
            1 + random.below(usize::from(8 * bytes - offset)) as u8,
        )
    });
    Width {
        bytes,
        signed: bits.is_none() && random.below(2) == 0,
        bits,
    }
}

fn random_field(random: &mut Random) -> Field {
    let number = Content::Number(width(random));
    let source = match random.below(8) {
        0 => Source::Comm,
        1 => Source::Text(text(random)),
        2 => Source::Immediate(pointer(random)),
        _ => Source::Register(gpr(random)),
    };
    if matches!(source, Source::Comm | Source::Text(_)) {
        return Field {
            source,
            pointers: Vec::new(),
            content: Content::Text,
        };
    }
    let offset = |random: &mut Random| random.below(80) as i64 - 16;
    let mut pointers: Vec<i64> = (0..random.below(4)).map(|_| offset(random)).collect();
    if source == Source::Register(Register::RSP)
        && let Some(first) = pointers.first_mut()
    {
        *first = first.abs();
    }
    let content = match random.below(6) {
        _ if pointers.is_empty() => number,
        0 | 1 => Content::Text,
        2 => Content::Texts {
            count: 1 + random.below(3) as u16,
        },
        3 => Content::Numbers {
            bytes: random.pick(&[1, 2, 4, 8]),
            count: 1 + random.below(7) as u16,
        },
        _ => number,
    };
    Field {
        source,
        pointers,
        content,
    }
}

fn text(random: &mut Random) -> Vec<u8> {
    (0..random.below(12))
        .map(|_| random.pick(b"abc-x"))
        .collect()
}

/// A good pointer, or one that is not.
fn pointer(random: &mut Random) -> u64 {
    match random.below(12) {
        0 => random.next(),
        1 => random.below(5000) as u64,
        2 => 0x8000_0000_0000_0000 | random.next() >> 8,
        3 => AREA + AREA_SIZE as u64 - random.below(24) as u64,
        4 => AREA - random.below(24) as u64,
        // Below the stack pointer is what the detour itself writes.
        5 => STACK_POINTER + 16 + random.below(1000) as u64,
        _ => AREA + 16 + random.below(AREA_SIZE - 200) as u64,
    }
}

fn random_condition(random: &mut Random, fields: &[Field], depth: usize) -> Condition {
    let several = |random: &mut Random| -> Vec<Condition> {
        let count = random.below(4);
        (0..count)
            .map(|_| random_condition(random, fields, depth - 1))
            .collect()
    };
    match random.below(6) {
        0 if depth > 0 => Condition::All(several(random)),
        1 if depth > 0 => Condition::Any(several(random)),
        2 if depth > 0 => Condition::Not(Box::new(random_condition(random, fields, depth - 1))),
        3 => Condition::Number {
            subject: Subject::Thread,
            relation: random.pick(&[Relation::Equal, Relation::NotEqual, Relation::Less]),
            with: random.pick(&[0, 1, i128::from(own_tid())]),
        },
        _ => {
            let field = random.below(fields.len());
            match (&fields[field].source, fields[field].content) {
                (Source::Comm | Source::Text(_), _) | (_, Content::Text) => Condition::Text {
                    field,
                    pattern: pattern(random),
                },
                (_, Content::Number(width)) => Condition::Number {
                    subject: Subject::Field(field),
                    relation: random.pick(&[
                        Relation::Equal,
                        Relation::NotEqual,
                        Relation::Less,
                        Relation::LessOrEqual,
                        Relation::Greater,
                        Relation::GreaterOrEqual,
                        Relation::Bits,
                    ]),
                    with: constant(random, width),
                },
                _ => Condition::Number {
                    subject: Subject::Cpu,
                    relation: Relation::Less,
                    with: random.pick(&[0, 4096]),
                },
            }
        }
    }
}

/// Constants that decide something: near the values that registers have.
fn constant(random: &mut Random, width: Width) -> i128 {
    match random.below(5) {
        0 => random.pick(&[0, 1, -1, 127, 128, 255, 256, -128]),
        1 => i128::from(random.next()),
        2 => i128::from(random.next() as i64),
        3 => i128::from(AREA) + random.below(AREA_SIZE) as i128,
        _ => i128::from(random.next() >> (64 - 8 * u32::from(width.bytes))),
    }
}

fn pattern(random: &mut Random) -> Vec<u8> {
    let pieces: [&[u8]; 9] = [
        b"*", b"?", b"a", b"b", b"[a-b]", b"[!x]", b"*", b"\\c", b"-",
    ];
    (0..random.below(5))
        .flat_map(|_| random.pick(&pieces).to_vec())
        .collect()
}

fn random_case(random: &mut Random, seed: u64) -> Case {
    let recorded = random.below(5);
    let hidden = random.below(3);
    // Half of the cases can be straight code.
    let straight = random.below(2) == 0;
    let fields: Vec<Field> = (0..recorded + hidden)
        .map(|_| match straight {
            false => random_field(random),
            true => Field {
                source: Source::Register(gpr(random)),
                pointers: Vec::new(),
                content: Content::Number(width(random)),
            },
        })
        .collect();
    let condition =
        (!fields.is_empty() && random.below(4) != 0).then(|| random_condition(random, &fields, 3));
    Case {
        fetch: Fetch {
            fields,
            recorded,
            condition,
        },
        live: Live {
            gprs: RegSet(random.next() as u16 | RegSet::of(Register::RSP).0),
            flags: random.below(2) == 0,
        },
        red_zone: random.below(2) == 0,
        rseq: random.below(4) != 0,
        seed,
    }
}

/// glibc has the thread's id there (`struct pthread.tid`), if this is what it says.
const TID_OFFSET: i32 = 0x2d0;

fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn thread_word(offset: i32) -> u32 {
    let word;
    // SAFETY: glibc's thread structure is larger than that.
    unsafe { std::arch::asm!("mov {0:e}, fs:[{1}]", out(reg) word, in(reg) i64::from(offset)) };
    word
}

fn rseq_offset() -> Option<i32> {
    // SAFETY: looks up a symbol by a terminated name.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: glibc defines it as ptrdiff_t.
    i32::try_from(unsafe { *symbol.cast::<isize>() }).ok()
}

/// Memory as the evaluation sees it.
struct World {
    area: Vec<u8>,
    registers: [u64; 16],
    stack: Vec<u8>,
    data: Vec<u8>,
    comm: Vec<u8>,
    tid: u32,
}

impl World {
    fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let inside = |start: u64, bytes: &[u8]| {
            let at = usize::try_from(address.checked_sub(start)?).ok()?;
            Some(bytes.get(at..at.checked_add(len)?)?.to_vec())
        };
        inside(AREA, &self.area)
            .or_else(|| inside(STACK_PAGE, &self.stack))
            .or_else(|| inside(DATA, &self.data))
            .or_else(|| {
                // The code, the test's own memory: a pointer may lead there by chance.
                let mut bytes = vec![0; len];
                let memory = File::open("/proc/self/mem").expect("procfs");
                memory.read_exact_at(&mut bytes, address).ok()?;
                Some(bytes)
            })
    }

    fn word(&self, address: u64) -> Option<u64> {
        let bytes = self.read(address, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().unwrap()))
    }

    /// A string: up to its NUL, or to the limit.
    fn string(&self, address: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < STRING_LIMIT.into() {
            match self.read(address.wrapping_add(text.len() as u64), 1)?[0] {
                0 => break,
                byte => text.push(byte),
            }
        }
        Some(text)
    }

    fn start(&self, field: &Field) -> u64 {
        match field.source {
            Source::Register(register) => self.registers[register.number()],
            Source::Immediate(value) => value,
            _ => 0,
        }
    }

    /// The address of the content, if it is in memory.
    fn address(&self, field: &Field) -> Option<u64> {
        let (last, pointers) = field.pointers.split_last().unwrap();
        let mut at = self.start(field);
        for pointer in pointers {
            at = self.word(at.wrapping_add_signed(*pointer))?;
        }
        Some(at.wrapping_add_signed(*last))
    }

    /// What stands in the record, and whether that could be read.
    fn content(&self, field: &Field) -> (Vec<u8>, bool) {
        let string = |text: &[u8]| {
            let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
            bytes.extend(text);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        };
        match (&field.source, field.content) {
            (Source::Comm, _) => (string(&self.comm), true),
            (Source::Text(text), _) => (string(text), true),
            (_, Content::Number(_)) if field.pointers.is_empty() => {
                (self.start(field).to_le_bytes().to_vec(), true)
            }
            (_, Content::Number(width)) => self.numbers(field, width.bytes, 1),
            (_, Content::Numbers { bytes, count }) => self.numbers(field, bytes, count),
            (_, Content::Text) => match self.address(field).and_then(|at| self.string(at)) {
                Some(text) => (string(&text), true),
                None => (vec![0; 8], false),
            },
            (_, Content::Texts { count }) => {
                let (mut bytes, mut good) = (Vec::new(), true);
                for index in 0..u64::from(count) {
                    let text = self
                        .address(field)
                        .filter(|_| good)
                        .and_then(|at| self.word(at.wrapping_add(8 * index)))
                        .and_then(|at| self.string(at));
                    good &= text.is_some();
                    bytes.extend(text.map_or(vec![0; 8], |text| string(&text)));
                }
                (bytes, good)
            }
        }
    }

    fn numbers(&self, field: &Field, bytes: u8, count: u16) -> (Vec<u8>, bool) {
        let size = usize::from(bytes) * usize::from(count);
        let found = self.address(field).and_then(|at| self.read(at, size));
        let good = found.is_some();
        let mut bytes = found.unwrap_or(vec![0; size]);
        bytes.resize(size.next_multiple_of(8), 0);
        (bytes, good)
    }

    fn number(&self, field: &Field, width: Width) -> Option<i128> {
        let (bytes, good) = self.content(field);
        let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let shift = 64 - 8 * u32::from(width.bytes);
        let value = match width.bits {
            Some((offset, bits)) => i128::from(word >> offset) & ((1 << bits) - 1),
            None if width.signed => i128::from((word << shift) as i64 >> shift),
            None => i128::from(word << shift >> shift),
        };
        good.then_some(value)
    }

    fn holds(&self, fields: &[Field], condition: &Condition) -> bool {
        match condition {
            Condition::Not(inner) => !self.holds(fields, inner),
            Condition::All(of) => of.iter().all(|c| self.holds(fields, c)),
            Condition::Any(of) => of.iter().any(|c| self.holds(fields, c)),
            Condition::Text { field, pattern } => {
                let (bytes, good) = self.content(&fields[*field]);
                let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
                good && matches(&bytes[4..4 + length], pattern)
            }
            Condition::Number {
                subject,
                relation,
                with,
            } => {
                let (value, width) = match subject {
                    Subject::Thread => (Some(i128::from(self.tid)), Width::WORD),
                    // Constants are such that every CPU decides alike.
                    Subject::Cpu => (Some(1), Width::WORD),
                    Subject::Field(index) => match fields[*index].content {
                        Content::Number(width) => (self.number(&fields[*index], width), width),
                        _ => unreachable!(),
                    },
                };
                // What holds of every number holds of one that cannot be read, too; the
                // description says nothing else.
                let Some(value) = value else {
                    return self.decided(*relation, *with, width);
                };
                compare(value, *relation, *with, width)
            }
        }
    }

    /// Of a field that cannot be read: an equation is false, so its opposite is true.
    fn decided(&self, relation: Relation, with: i128, width: Width) -> bool {
        let (low, high) = match (width.bits, width.signed) {
            (Some((_, bits)), _) => (0, (1i128 << bits) - 1),
            (None, true) => {
                let half = 1i128 << (8 * u32::from(width.bytes) - 1);
                (-half, half - 1)
            }
            (None, false) => (0, (1i128 << (8 * u32::from(width.bytes))) - 1),
        };
        let inside = (low..=high).contains(&with);
        match relation {
            Relation::Equal | Relation::Bits => false,
            Relation::NotEqual => true,
            Relation::Less | Relation::LessOrEqual => !inside && with > high,
            Relation::Greater | Relation::GreaterOrEqual => inside || with < low,
        }
    }
}

fn compare(value: i128, relation: Relation, with: i128, width: Width) -> bool {
    match relation {
        Relation::Equal => value == with,
        Relation::NotEqual => value != with,
        Relation::Less => value < with,
        Relation::LessOrEqual => value <= with,
        Relation::Greater => value > with,
        Relation::GreaterOrEqual => value >= with,
        Relation::Bits => {
            let bits = match width.bits {
                Some((_, bits)) => u32::from(bits),
                None => 8 * u32::from(width.bytes),
            };
            value & with & ((1 << bits) - 1) != 0
        }
    }
}

/// A pattern, slowly.
fn matches(text: &[u8], pattern: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|skip| matches(&text[skip..], rest)),
        [b'?', rest @ ..] => !text.is_empty() && matches(&text[1..], rest),
        [b'\\', c, rest @ ..] | [c, rest @ ..] if !(*c == b'[' && pattern[0] != b'\\') => {
            text.first() == Some(c) && matches(&text[1..], rest)
        }
        [_, set @ ..] => {
            let end = set.iter().position(|c| *c == b']').unwrap();
            let rest = &set[end + 1..];
            let Some(c) = text.first() else { return false };
            let found = match &set[..end] {
                b"a-b" => (b'a'..=b'b').contains(c),
                b"!x" => *c != b'x',
                other => panic!("{other:?}"),
            };
            found && matches(&text[1..], rest)
        }
    }
}

struct Session {
    memory: Arc<Memory>,
    base: u64,
    area: *mut u8,
}

impl Session {
    fn new() -> Session {
        let (memory, base) = map_session(&GEOMETRY);
        // SAFETY: a new mapping that replaces no other; behind it nothing is mapped.
        let area = unsafe {
            libc::mmap(
                AREA as *mut _,
                AREA_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(area as u64, AREA);
        Session {
            memory,
            base,
            area: area.cast(),
        }
    }

    /// Fills the area with words, pointers to it, and texts.
    fn fill(&self, random: &mut Random) -> Vec<u8> {
        let mut area = Vec::with_capacity(AREA_SIZE);
        while area.len() < AREA_SIZE {
            match random.below(5) {
                0 => area.extend(random.next().to_le_bytes()),
                1 | 2 => area.extend(pointer(random).to_le_bytes()),
                _ => {
                    let long = random.below(40) == 0;
                    let length = if long {
                        random.below(1500)
                    } else {
                        random.below(24)
                    };
                    area.extend((0..length).map(|_| random.pick(b"abc-x")));
                    area.extend([0; 8][..1 + random.below(7)].iter());
                    area.resize(area.len().next_multiple_of(8), 0);
                }
            }
        }
        area.truncate(AREA_SIZE);
        // SAFETY: the area is that large, and nobody else uses it.
        unsafe { std::ptr::copy_nonoverlapping(area.as_ptr(), self.area, AREA_SIZE) };
        area
    }

    fn reset(&self) {
        let nobody = Identity {
            target: (0, 0),
            owner: (0, 0),
        };
        self.memory.format(self.base, &GEOMETRY, &nobody);
        for lane in 0..layout::LANES as u32 {
            for cpu in 0..GEOMETRY.cpus {
                let at = GEOMETRY.stream(lane, cpu);
                self.memory.store(at + layout::stream::LOST, 0);
                assert_eq!(
                    self.memory.load_u32(at + layout::stream::LOCK),
                    0,
                    "a lane is held"
                );
            }
        }
    }

    /// Puts the resident and the detour in place. Returns its entry.
    fn place(&self, sandbox: &mut Sandbox, case: &Case, work: &Work) -> u64 {
        let rseq = rseq_offset().filter(|_| case.rseq);
        let config = resident::Config {
            session: self.base,
            geometry: GEOMETRY,
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            no_wake: true,
            traps: 0,
            old_trap: (0, 0),
        };
        // The kernel reads the last descriptor when it preempts us: not while the
        // bytes of another detour take its place.
        if let Some(offset) = rseq_offset() {
            let pointer: u64;
            // SAFETY: the thread pointer's first word points to itself.
            unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer) };
            let rseq_cs = pointer.wrapping_add(offset as u64) + 8;
            // SAFETY: a field of this thread's registered `struct rseq`.
            unsafe { (rseq_cs as *mut u64).write_volatile(0) };
        }
        sandbox.write(COPY, &resident::place(COPY, &config));
        let entries = resident::entries(COPY);
        let runtime = Runtime {
            shadow_stack: case.seed % 2 == 1,
            heads: self.base + GEOMETRY.heads() as u64,
            counters: Counters::default(),
            rseq_offset: rseq,
            tid_offset: Some(TID_OFFSET),
            switch: entries.switch,
            locked: entries.locked,
            run: entries.run,
        };
        let mut compiler = Compiler::new(runtime, DETOUR, Vec::new());
        // Another event with the same program first.
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

    /// The records: event, content.
    fn records(&self) -> Result<Vec<(u32, u32, Vec<u8>)>, String> {
        let mut reader = Reader::new(self.memory.clone(), GEOMETRY, self.base);
        let mut records = Vec::new();
        reader
            .collect::<String>(true, |packet| {
                // One record is made in a run.
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
        let area = session.fill(&mut random);
        let mut input: State = random.state();
        for register in &mut input.gprs {
            if random.below(4) != 0 {
                *register = pointer(&mut random);
            }
        }
        let seed = random.next();
        let plain = sandbox.run(EXIT, &input, seed);
        let out = sandbox.run(entry, &input, seed);
        for register in case.live.gprs.iter() {
            let i = register.number();
            if out.state.gprs[i] != plain.state.gprs[i] {
                return Err(format!("{register:?} was changed"));
            }
        }
        if case.live.flags && out.state.flags != plain.state.flags {
            return Err(format!(
                "flags {:x}, not {:x}",
                out.state.flags, plain.state.flags
            ));
        }
        let kept = (STACK_POINTER & 0xfff) as usize - if case.red_zone { 128 } else { 0 };
        if out.stack[kept..2048] != plain.stack[kept..2048] || out.data != plain.data {
            return Err("memory was changed".to_owned());
        }
        let world = World {
            area,
            registers: plain.state.gprs,
            stack: plain.stack.clone(),
            data: plain.data.clone(),
            comm: own_comm(),
            tid: own_tid(),
        };
        compare_records(session, case, &work, &world)?;
    }
    Ok(())
}

fn own_comm() -> Vec<u8> {
    let comm = std::fs::read_to_string("/proc/thread-self/comm").expect("procfs");
    comm.trim_end().as_bytes().to_vec()
}

fn compare_records(
    session: &Session,
    case: &Case,
    work: &Work,
    world: &World,
) -> Result<(), String> {
    let fetch = &case.fetch;
    let wanted = fetch
        .condition
        .as_ref()
        .is_none_or(|condition| world.holds(&fetch.fields, condition));
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
    let mut random = Random::new(7);
    let count = std::env::var("CAPRIOLE_LONG").map_or(4_000, |_| 200_000);
    let cases: Vec<Case> = (0..count)
        .map(|i| random_case(&mut random, i + 1))
        .collect();
    let straight = |case: &&Case| matches!(case.fetch.work(0), Ok(Work::Record(_)));
    let share = cases.iter().filter(straight).count();
    assert!(share > cases.len() / 10, "only {share} are straight code");
    // A child has half a minute.
    for cases in cases.chunks(4_000) {
        let mut session = None;
        in_child(
            cases,
            |sandbox, case| run_case(session.get_or_insert_with(Session::new), sandbox, case),
            |case| format!("{case:#x?}\n{:#x?}", case.fetch.work(EVENT)),
        );
    }
}
