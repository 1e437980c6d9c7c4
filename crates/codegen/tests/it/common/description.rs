//! Random descriptions of fields and conditions, and a simple reference evaluation of them.

#![allow(dead_code)] // each test uses a part

use crate::support::random::Random;
use crate::support::sandbox::{DATA, STACK_POINTER};
use capriole_codegen::condition::{Condition, Relation, Subject, Width};
use capriole_codegen::fetch::{Case, Content, Field, Length, Source};
use iced_x86::Register;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Memory that the fields are read from: two pages, with nothing mapped after them.
pub const AREA: u64 = 0x5000_0000;
pub const AREA_SIZE: usize = 8192;
/// The page that contains the sandbox's stack.
pub const STACK_PAGE: u64 = STACK_POINTER & !0xfff;

pub fn gpr(random: &mut Random) -> Register {
    Register::RAX + random.below(16) as u32
}

pub fn width(random: &mut Random) -> Width {
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

pub fn random_field(random: &mut Random) -> Field {
    let number = Content::Number(width(random));
    let source = match random.below(8) {
        0 => Source::Comm,
        1 => Source::Text(text(random)),
        2 => Source::Immediate(pointer(random)),
        3 if random.below(2) == 0 => Source::Thread,
        4 => indexed(random),
        _ => Source::Register(gpr(random)),
    };
    if matches!(source, Source::Comm | Source::Text(_)) {
        return Field {
            source,
            pointers: Vec::new(),
            length: None,
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
    let network = Content::Network {
        bytes: random.pick(&[2, 4, 8]),
    };
    let content = match random.below(7) {
        6 => network,
        _ if pointers.is_empty() => number,
        0 | 1 => Content::Text,
        2 => Content::Texts {
            count: 1 + random.below(3) as u16,
        },
        3 => Content::Numbers {
            bytes: random.pick(&[1, 2, 4, 8, 16]),
            count: 1 + random.below(7) as u16,
        },
        _ => number,
    };
    let length = match random.below(4) {
        0 if content == Content::Text => Some(Box::new(length(random))),
        1 if content == Content::Text => Some(Box::new(Length::Cases(
            (0..1 + random.below(4)).map(|_| case(random)).collect(),
        ))),
        _ => None,
    };
    Field {
        source,
        pointers,
        length,
        content,
    }
}

/// A way in which a text may lie: most have a length.
fn case(random: &mut Random) -> Case {
    let offset = random.below(8) as u8;
    let bits = 1 + random.below(usize::from(8 - offset)) as u8;
    let text = Field {
        source: match random.below(2) {
            0 => Source::Register(gpr(random)),
            _ => Source::Immediate(pointer(random)),
        },
        // The detour itself writes below the stack pointer.
        pointers: (0..1 + random.below(3))
            .map(|_| random.below(80) as i64)
            .collect(),
        length: (random.below(4) > 0).then(|| Box::new(length(random))),
        content: Content::Text,
    };
    Case {
        bits: Width {
            bits: Some((offset, bits)),
            ..Width::unsigned(1)
        },
        equal: random.below(1 << bits.min(2)) as u64,
        text: (random.below(6) > 0).then_some(text),
    }
}

/// The length of a text: a number in a register or in memory, or a usual one; some count more than
/// the text.
fn length(random: &mut Random) -> Length {
    let content = match random.below(5) {
        0 => Content::Network {
            bytes: random.pick(&[2, 4, 8]),
        },
        _ => Content::Number(width(random)),
    };
    let source = match random.below(3) {
        0 => Source::Register(gpr(random)),
        1 => Source::Immediate(random.below(1300) as u64),
        _ => Source::Immediate(pointer(random)),
    };
    let in_memory = matches!(source, Source::Immediate(at) if at >= 1300);
    let pointers = (0..random.below(3)).map(|_| random.below(80) as i64);
    Length::Number {
        of: Field {
            source,
            pointers: pointers.filter(|_| in_memory).collect(),
            length: None,
            content,
        },
        less: random.pick(&[0, 0, 1, 4, 1000]),
    }
}

/// An element of the area, or an arbitrary address formed from two registers.
fn indexed(random: &mut Random) -> Source {
    let base = (random.below(2) == 0).then(|| gpr(random));
    let index = std::iter::repeat_with(|| gpr(random)).find(|r| *r != Register::RSP);
    Source::Indexed {
        base,
        index: index.unwrap_or(Register::RAX),
        shift: random.below(4) as u8,
        // The detour itself writes below the stack pointer.
        offset: match base {
            Some(Register::RSP) => 64,
            _ => random.pick(&[0, 8, 0u64.wrapping_sub(16), AREA, AREA + 4096]),
        },
    }
}

/// Returns the width with which a field is compared, if it is a number.
pub fn compared(content: Content) -> Option<Width> {
    match content {
        Content::Number(width) => Some(width),
        Content::Network { bytes } => Some(Width {
            bytes,
            signed: false,
            bits: None,
        }),
        Content::Numbers { .. }
        | Content::Text
        | Content::Texts { .. }
        | Content::Callers { .. } => None,
    }
}

/// A call stack, of a session that may have no rules: `callers_execution` describes its content.
pub fn call_stack(random: &mut Random) -> Field {
    Field {
        source: Source::Register(Register::RBP),
        pointers: Vec::new(),
        length: None,
        content: Content::Callers {
            most: random.pick(&[1, 2, 64, 128]),
            site: random.number(),
            on_top: random.below(2) == 0,
        },
    }
}

pub fn text(random: &mut Random) -> Vec<u8> {
    (0..random.below(12))
        .map(|_| random.pick(b"abc-x"))
        .collect()
}

/// A valid pointer, or an invalid one.
pub fn pointer(random: &mut Random) -> u64 {
    match random.below(12) {
        0 => random.number(),
        1 => random.below(5000) as u64,
        2 => 0x8000_0000_0000_0000 | random.number() >> 8,
        3 => AREA + AREA_SIZE as u64 - random.below(24) as u64,
        4 => AREA - random.below(24) as u64,
        // The detour itself writes below the stack pointer.
        5 => STACK_POINTER + 16 + random.below(1000) as u64,
        _ => AREA + 16 + random.below(AREA_SIZE - 200) as u64,
    }
}

pub fn random_condition(random: &mut Random, fields: &[Field], depth: usize) -> Condition {
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
                (_, content) => match compared(content) {
                    Some(width) => Condition::Number {
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
                    None => Condition::Number {
                        subject: Subject::Cpu,
                        relation: Relation::Less,
                        with: random.pick(&[0, 4096]),
                    },
                },
            }
        }
    }
}

/// Constants that make a difference: near the values that registers have.
pub fn constant(random: &mut Random, width: Width) -> i128 {
    match random.below(5) {
        0 => random.pick(&[0, 1, -1, 127, 128, 255, 256, -128]),
        1 => i128::from(random.number()),
        2 => i128::from(random.number() as i64),
        3 => i128::from(AREA) + random.below(AREA_SIZE) as i128,
        _ => i128::from(random.number() >> (64 - 8 * u32::from(width.bytes))),
    }
}

pub fn pattern(random: &mut Random) -> Vec<u8> {
    let pieces: [&[u8]; 9] = [
        b"*", b"?", b"a", b"b", b"[a-b]", b"[!x]", b"*", b"\\c", b"-",
    ];
    (0..random.below(5))
        .flat_map(|_| random.pick(&pieces).to_vec())
        .collect()
}

/// Offset of the thread's id in glibc (`struct pthread.tid`), if the word there is the id.
pub const TID_OFFSET: i32 = 0x2d0;

pub fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

pub fn thread_word(offset: i32) -> u32 {
    let word;
    // SAFETY: glibc's thread structure is larger than that.
    unsafe { std::arch::asm!("mov {0:e}, fs:[{1}]", out(reg) word, in(reg) i64::from(offset)) };
    word
}

pub fn rseq_offset() -> Option<i32> {
    // SAFETY: looks up a symbol by a terminated name.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: glibc defines it as ptrdiff_t.
    i32::try_from(unsafe { *symbol.cast::<isize>() }).ok()
}

pub fn own_comm() -> Vec<u8> {
    let comm = std::fs::read_to_string("/proc/thread-self/comm").expect("procfs");
    comm.trim_end().as_bytes().to_vec()
}

/// Memory as the reference evaluation sees it.
pub struct World {
    pub area: Vec<u8>,
    pub registers: [u64; 16],
    pub stack: Vec<u8>,
    pub data: Vec<u8>,
    pub comm: Vec<u8>,
    pub tid: u32,
    /// Maximum number of bytes that are read of a string.
    pub text_limit: u16,
}

impl World {
    pub fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let inside = |start: u64, bytes: &[u8]| {
            let at = usize::try_from(address.checked_sub(start)?).ok()?;
            Some(bytes.get(at..at.checked_add(len)?)?.to_vec())
        };
        inside(AREA, &self.area)
            .or_else(|| inside(STACK_PAGE, &self.stack))
            .or_else(|| inside(DATA, &self.data))
            .or_else(|| {
                // The code, or the test's own memory: a pointer may lead there by chance.
                let mut bytes = vec![0; len];
                let memory = File::open("/proc/self/mem").expect("procfs");
                memory.read_exact_at(&mut bytes, address).ok()?;
                Some(bytes)
            })
    }

    pub fn word(&self, address: u64) -> Option<u64> {
        let bytes = self.read(address, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().unwrap()))
    }

    /// Returns a string: up to its NUL, or to the limit.
    pub fn string(&self, address: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < self.text_limit.into() {
            match self.read(address.wrapping_add(text.len() as u64), 1)?[0] {
                0 => break,
                byte => text.push(byte),
            }
        }
        Some(text)
    }

    /// Returns a text with a length: as much of it as can be read.
    fn sized(&self, field: &Field) -> Option<Vec<u8>> {
        let (of, less) = match field.length.as_deref()? {
            Length::Number { of, less } => (of, *less),
            Length::Cases(cases) => {
                let tag = self.read(self.address(field)?, 1)?[0];
                let holds = |case: &&Case| {
                    let (offset, bits) = case.bits.bits.expect("bits");
                    u64::from(tag >> offset) % (1 << bits) == case.equal
                };
                let text = cases.iter().find(holds)?.text.as_ref()?;
                return match text.length {
                    Some(_) => self.sized(text),
                    None => self.string(self.address(text)?),
                };
            }
        };
        let width = compared(of.content)?;
        let length = (self.number(of, width)? as i64).wrapping_sub_unsigned(less);
        let address = self.address(field)?;
        let most = length.clamp(0, self.text_limit.into()) as usize;
        let text = self.readable(address, most);
        (most == 0 || !text.is_empty()).then_some(text)
    }

    pub fn start(&self, field: &Field) -> u64 {
        match field.source {
            Source::Register(register) => self.registers[register.number()],
            Source::Immediate(value) => value,
            Source::Indexed {
                base,
                index,
                shift,
                offset,
            } => {
                let base = base.map_or(0, |base| self.registers[base.number()]);
                let index = self.registers[index.number()] << shift;
                offset.wrapping_add(base).wrapping_add(index)
            }
            Source::Thread => self.tid.into(),
            _ => 0,
        }
    }

    /// Returns the address of the content, if it is in memory.
    pub fn address(&self, field: &Field) -> Option<u64> {
        let (last, pointers) = field.pointers.split_last().unwrap();
        let mut at = self.start(field);
        for pointer in pointers {
            at = self.word(at.wrapping_add_signed(*pointer))?;
        }
        Some(at.wrapping_add_signed(*last))
    }

    /// Returns the expected content of the record, and whether it could be read.
    pub fn content(&self, field: &Field) -> (Vec<u8>, bool) {
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
            (_, Content::Network { bytes }) => {
                let (mut content, good) = match field.pointers.is_empty() {
                    true => (self.start(field).to_le_bytes().to_vec(), true),
                    false => self.numbers(field, bytes, 1),
                };
                content[..usize::from(bytes)].reverse();
                content[usize::from(bytes)..].fill(0);
                (content, good)
            }
            (_, Content::Numbers { bytes, count }) => self.numbers(field, bytes, count),
            (_, Content::Text) if field.length.is_some() => match self.sized(field) {
                Some(text) => (string(&text), true),
                None => (vec![0; 8], false),
            },
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
            // Programs here have none: `callers_execution` describes them.
            (_, Content::Callers { .. }) => unreachable!("no random field is a chain of callers"),
        }
    }

    /// Returns the bytes that can be read from an address on, at most `most`.
    pub fn readable(&self, address: u64, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < most {
            let at = address.wrapping_add(bytes.len() as u64);
            let in_page = 4096 - (at & 4095) as usize;
            match self.read(at, in_page.min(most - bytes.len())) {
                Some(more) => bytes.extend(more),
                None => break,
            }
        }
        bytes
    }

    pub fn numbers(&self, field: &Field, bytes: u8, count: u16) -> (Vec<u8>, bool) {
        let size = usize::from(bytes) * usize::from(count);
        let found = self.address(field).and_then(|at| self.read(at, size));
        let good = found.is_some();
        let mut bytes = found.unwrap_or(vec![0; size]);
        bytes.resize(size.next_multiple_of(8), 0);
        (bytes, good)
    }

    pub fn number(&self, field: &Field, width: Width) -> Option<i128> {
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

    pub fn holds(&self, fields: &[Field], condition: &Condition) -> bool {
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
                    // The constants are chosen so that the result is the same on every CPU.
                    Subject::Cpu => (Some(1), Width::WORD),
                    Subject::Field(index) => {
                        let width = compared(fields[*index].content).expect("a number");
                        (self.number(&fields[*index], width), width)
                    }
                };
                // A condition that is true for every number is also true for one that cannot be
                // read; the description says nothing else.
                let Some(value) = value else {
                    return self.decided(*relation, *with, width);
                };
                compare(value, *relation, *with, width)
            }
        }
    }

    /// Decides a comparison with a field that cannot be read: an equality is false, so its opposite
    /// is true.
    pub fn decided(&self, relation: Relation, with: i128, width: Width) -> bool {
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

pub fn compare(value: i128, relation: Relation, with: i128, width: Width) -> bool {
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

/// Matches a pattern, slowly.
pub fn matches(text: &[u8], pattern: &[u8]) -> bool {
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

/// The mapping that fields are read from.
pub struct Area(*mut u8);

impl Area {
    pub fn map() -> Area {
        // SAFETY: a new mapping that replaces no other; nothing is mapped after it.
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
        Area(area.cast())
    }

    /// Fills the area with these bytes.
    pub fn set(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), AREA_SIZE);
        // SAFETY: the area is that large, and nothing else uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, AREA_SIZE) };
    }

    /// Fills the area with words, pointers into it, and strings.
    pub fn fill(&self, random: &mut Random) -> Vec<u8> {
        let mut area = Vec::with_capacity(AREA_SIZE);
        while area.len() < AREA_SIZE {
            match random.below(5) {
                0 => area.extend(random.number().to_le_bytes()),
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
        self.set(&area);
        area
    }
}

/// Clears the pointer to the last descriptor: the kernel reads it when it preempts this thread,
/// so it must not be set while the bytes of another detour replace the last one.
pub fn forget_sequence() {
    let Some(offset) = rseq_offset() else { return };
    let pointer: u64;
    // SAFETY: the thread pointer's first word points to itself.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer) };
    let rseq_cs = pointer.wrapping_add(offset as u64) + 8;
    // SAFETY: a field of this thread's registered `struct rseq`.
    unsafe { (rseq_cs as *mut u64).write_volatile(0) };
}
