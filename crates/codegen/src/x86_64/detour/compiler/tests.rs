use super::*;
use crate::condition::{Test, Tree, Width};
use crate::detour::Purpose;
use crate::detour::emit::{Named, Part, RSEQ_SIGNATURE};
use crate::fetch::{Content, Fetch, Field, Source};
use crate::runtime::Counters;
use crate::work::{
    Compare, Function, Key, Long, Operand, Record, Straight, StraightAmount, StraightRow, Value,
};
use capriole_insn::liveness::RegSet;
use iced_x86::{ConditionCode, Decoder, DecoderOptions, Mnemonic, Register};
use std::collections::HashSet;
use std::ops::Range;

const ADDRESS: u64 = 0x1000_0000;
const SITE: u64 = 0x2000_0000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn runtime(rseq_offset: Option<i32>) -> Runtime {
    Runtime {
        shadow_stack: false,
        clock: crate::runtime::ClockReading::default(),
        streams: 0x7000_0000_1000,
        limit: 1 << 20,
        directories: 0,
        frames: crate::runtime::Frames {
            address: 0x7000_0100_0000,
            slots: 1 << 20,
            size: 16,
        },
        counters: Counters {
            address: 0x7000_0001_0000,
            stride: 0x4_0000,
            cpus: 200,
        },
        rseq_offset,
        tid_offset: Some(720),
        switch: ADDRESS + 0x40,
        locked: ADDRESS + 0x80,
        run: ADDRESS + 0xc0,
    }
}

/// `push %rbp; mov %rsp,%rbp; lea 0x100(%rip),%rax`
fn displaced() -> Vec<Instruction> {
    let bytes = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x05, 0x00, 0x01, 0x00, 0x00,
    ];
    Decoder::with_ip(64, &bytes, SITE, DecoderOptions::NONE)
        .iter()
        .collect()
}

fn random_work(random: &mut Random) -> Vec<Work> {
    let arguments = [
        Register::RDI,
        Register::RSI,
        Register::RDX,
        Register::RCX,
        Register::RAX,
    ];
    let word = |random: &mut Random| match random.below(3) {
        0 => Word::Constant(random_constant(random)),
        _ => Word::Register(arguments[random.below(5) as usize]),
    };
    let mut one = || {
        let filter = random_filter(random);
        match random.below(7) {
            6 => Work::Long(Long {
                event: random.below(1 << 32) as u32,
                call: random.below(1 << 19) as u32,
                least: random.below(1 << 40),
                program: Arc::new(Program {
                    bytes: vec![random.below(2) as u8; 32],
                    size: 64,
                    faults: false,
                }),
                registers: vec![Register::RAX],
                filter,
            }),
            5 => Work::Enter {
                call: random.below(1 << 19) as u32,
                kept: (0..random.below(3)).map(|_| word(random)).collect(),
                filter,
            },
            4 => random_tally(random, filter),
            0 => Work::Count {
                counter: random.below(0x8000) as u32,
                filter,
            },
            1 => {
                let comm = Field {
                    source: Source::Comm,
                    pointers: Vec::new(),
                    length: None,
                    content: Content::Text,
                };
                let fetch = Fetch {
                    fields: vec![comm; 1 + random.below(2) as usize],
                    recorded: 1,
                    ..Fetch::default()
                };
                match fetch.work(random.below(1 << 32) as u32) {
                    Ok(Work::Run { event, program, .. }) => Work::Run {
                        event,
                        program,
                        filter,
                    },
                    other => panic!("{other:?}"),
                }
            }
            _ => Work::Record(Record {
                event: random.below(1 << 32) as u32,
                fields: (0..random.below(4)).map(|_| word(random)).collect(),
                filter,
            }),
        }
    };
    (0..3).map(|_| one()).collect::<Vec<_>>()
}

/// Returns a constant that is sign-extended from 32 bits, or one that needs 64; from a small
/// set or from a large one.
fn random_constant(random: &mut Random) -> u64 {
    let edges = [
        0,
        1,
        u64::MAX,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff_8000_0000,
        0xffff_ffff_7fff_ffff,
        1 << 63,
    ];
    match random.below(4) {
        0 => edges[random.below(8) as usize],
        1 => random.below(1 << 31),
        2 => random.below(1 << 31).wrapping_neg(),
        _ => random.below(u64::MAX),
    }
}

fn random_tally(random: &mut Random, filter: Option<Filter>) -> Work {
    let width = Width {
        bytes: [1, 2, 4, 8][random.below(4) as usize],
        signed: random.below(2) == 0,
        bits: None,
    };
    let (rdi, rcx) = (Register::RDI, Register::RCX);
    // Only a few constants: each makes a new form.
    let constants = [5, u64::MAX, 1 << 40];
    let constant = constants[random.below(3) as usize];
    let keys = [Key::Thread, Key::Register(rdi), Key::Constant(constant)];
    let key = keys[random.below(3) as usize];
    let row = (random.below(2) == 0).then_some(StraightRow {
        key,
        width,
        directory: 64 * random.below(9),
        shift: 20,
        cells: 1 + random.below(4) as u32,
    });
    let flip = [0, u64::MAX, 1 << 63, !(1 << 63)][random.below(4) as usize];
    let latency = Value::Latency(random.below(1 << 16) as u32);
    let values = [Value::Register(rcx), latency, Value::Constant(constant)];
    let value = values[random.below(3) as usize];
    let amount = match random.below(4) {
        0 => StraightAmount::One,
        1 => StraightAmount::Of(Function::Sum, value, width),
        2 => StraightAmount::Of(Function::Maximum(flip), value, width),
        _ => StraightAmount::Of(Function::Bucket, value, width),
    };
    let program = Program {
        bytes: vec![0; 8 * random.below(3) as usize],
        size: 24,
        faults: false,
    };
    let (event, counter) = (random.below(1 << 32) as u32, random.below(0x8000) as u32);
    Work::Tally(Straight::new(
        event,
        counter,
        row,
        amount,
        Arc::new(program),
        filter,
    ))
}

/// Returns mostly no filter, sometimes one of a small set.
fn random_filter(random: &mut Random) -> Option<Filter> {
    let compare = Compare {
        operand: [Operand::Thread, Operand::Register(Register::RDI)][random.below(2) as usize],
        width: Width::WORD,
        test: Test::Less,
        with: random.below(3),
        result: true,
    };
    let long = Compare {
        operand: Operand::Register(Register::RAX),
        width: Width {
            bytes: 8,
            ..Width::WORD
        },
        with: u64::MAX >> random.below(2),
        ..compare
    };
    let flags = [None, Some(ConditionCode::le), Some(ConditionCode::no)];
    let flags = flags[random.below(3) as usize];
    let tree = match random.below(6) {
        0 => Tree::Leaf(compare),
        1 => Tree::Any(vec![Tree::Leaf(long), Tree::Leaf(compare)]),
        2 => Tree::Constant(random.below(2) == 0),
        _ if flags.is_none() => return None,
        _ => Tree::Constant(true),
    };
    Some(Filter { flags, tree })
}

/// A detour patched from templates equals, byte for byte, the assembler's output for that address.
#[test]
fn detours_are_what_the_assembler_makes() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (rseq, shadow_stack) in [(Some(-160), false), (Some(-160), true), (None, false)] {
        let runtime = Runtime {
            shadow_stack,
            ..runtime(rseq)
        };
        let mut compiler = Compiler::new(runtime, ADDRESS, vec![INT3; 0x123]);
        let mut descriptors = HashSet::new();
        for round in 0..2000 {
            let mut work = random_work(&mut random);
            work.truncate(random.below(3) as usize);
            let work: Vec<Work> = work.iter().map(|w| w.possible(&runtime, false)).collect();
            // Only a few forms, so that most detours come from an existing template.
            let request = Request {
                work: &work,
                displaced: &displaced(),
                resume: SITE + 11,
                red_zone: random.below(2) == 0,
                live: Live {
                    gprs: RegSet(!(random.below(4) as u16 * 0x0c00)),
                    flags: random.below(2) == 0,
                },
            };
            let detour = compiler.compile(&request).expect("all is near");
            let from = (detour.address - ADDRESS) as usize;
            let bytes = &compiler.image[from..from + detour.size].to_vec();
            // The first of a form is followed by the form's places.
            let (length, behind) = (compiler.image.len(), from + detour.size);
            let places = (detour.places.wrapping_sub(ADDRESS)) as usize;
            assert!(length == behind || places == behind.next_multiple_of(8));

            let frame = Frame::new(&request, rseq.is_some()).expect("few registers");
            let programs: Vec<u64> = work.iter().map(|w| compiler.program(w)).collect();
            let template = compiler.template(&frame, &work, &programs);
            let template = template.expect("it is known");
            assert_eq!(compiler.image.len(), length);
            let Template { body, shared, .. } = &compiler.templates[template];
            let word = |at: usize| {
                let bytes = bytes[at..at + 4].try_into().expect("four bytes");
                let behind = detour.address + at as u64 + 4;
                behind.wrapping_add_signed(i64::from(i32::from_le_bytes(bytes)))
            };
            let links: Vec<Links> = body
                .parts
                .iter()
                .zip(shared)
                .zip(&programs)
                .map(|((part, shared), program)| Links {
                    descriptor: part.sequence.as_ref().map_or(0, |s| word(s.descriptor)),
                    shared: *shared,
                    program: *program,
                })
                .collect();
            let made = assemble::body(&frame, &runtime, &work, &links, detour.address)
                .expect("all is near");
            assert_eq!(made.bytes, bytes[..made.bytes.len()], "{round}: {work:?}");
            assert_eq!((&made.parts, made.entry), (&body.parts, body.entry));
            assert_eq!(detour.entry, detour.address + made.entry as u64);
            let has_places = detour.places != 0;
            assert_eq!(has_places, !made.bytes.is_empty(), "{round}: {work:?}");

            check_anatomy(&compiler, &detour, &made.parts, &links);
            for (part, links) in made.parts.iter().zip(&links) {
                let Some(sequence) = &part.sequence else {
                    continue;
                };
                assert!(descriptors.insert(links.descriptor), "it is another's");
                assert!(links.descriptor.is_multiple_of(32));
                let at = (links.descriptor - ADDRESS) as usize;
                let word = |i: usize| {
                    let bytes = &compiler.image[at + 8 * i..at + 8 * i + 8];
                    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
                };
                assert_eq!(
                    [word(0), word(1), word(1) + word(2), word(3)],
                    [
                        0,
                        detour.address + sequence.start as u64,
                        detour.address + part.done as u64,
                        detour.address + sequence.abort as u64
                    ]
                );
                let signature = &bytes[sequence.abort - 4..sequence.abort];
                assert_eq!(signature, RSEQ_SIGNATURE.to_le_bytes());
            }

            let copies_at = detour.address + made.bytes.len() as u64;
            let copies = relocate(&displaced(), copies_at).expect("all is near");
            let rest = &bytes[made.bytes.len()..];
            assert_eq!(rest[..copies.bytes.len()], copies.bytes);
            let back = Decoder::with_ip(
                64,
                &rest[copies.bytes.len()..],
                copies_at + copies.bytes.len() as u64,
                DecoderOptions::NONE,
            )
            .decode();
            assert_eq!(back.near_branch_target(), SITE + 11);
            assert_eq!(copies.bytes.len() + back.len(), rest.len());
            let old: Vec<u64> = detour.copies.iter().map(|c| c.0).collect();
            assert_eq!(old, [SITE, SITE + 1, SITE + 4]);
        }
        assert!(
            compiler.templates().len() < 1900,
            "{}",
            compiler.templates().len()
        );
    }
}

/// Constants do not change the form, except by their length.
#[test]
fn constants_are_patched() {
    let displaced = displaced();
    for rseq in [Some(-160), None] {
        let mut compiler = Compiler::new(runtime(rseq), ADDRESS, Vec::new());
        let mut compile = |fields: &[Word]| {
            let record = Record {
                event: 7,
                fields: fields.to_vec(),
                filter: None,
            };
            let detour = compiler.compile(&Request {
                work: &[record.into()],
                displaced: &displaced,
                resume: SITE + 11,
                red_zone: false,
                live: Live::ALL,
            });
            detour.expect("all is near");
            compiler.templates().len()
        };
        let word = Word::Constant;
        assert_eq!(compile(&[word(5), word(1 << 40)]), 1);
        assert_eq!(compile(&[word(u64::MAX), word(u64::MAX >> 1)]), 1);
        assert_eq!(compile(&[word(1 << 40), word(5)]), 2);
        assert_eq!(compile(&[word(5), Word::Register(Register::RDI)]), 3);
    }
}

#[test]
fn what_is_out_of_reach_is_an_error_and_disturbs_no_other_detour() {
    let mut compiler = Compiler::new(runtime(Some(-160)), ADDRESS, Vec::new());
    let work = [Work::Count {
        counter: 1,
        filter: None,
    }];
    let request = Request {
        work: &work,
        displaced: &displaced(),
        resume: SITE + 11,
        red_zone: false,
        live: Live::ALL,
    };
    let far = Request {
        resume: ADDRESS + (3 << 30),
        ..request
    };
    assert!(matches!(
        compiler.compile(&far),
        Err(CompileError::Encode(_))
    ));
    let before = compiler.image().len();
    let detour = compiler.compile(&request).expect("all is near");
    assert_eq!(detour.address, ADDRESS + before as u64);
    assert_eq!(compiler.descriptors, compiler.free.len() + 1);
}

/// A site with many events: when registers run out, the resident takes the aggregated ones;
/// records have no alternative.
#[test]
fn a_crowded_site_is_compiled_or_refused() {
    let width = Width {
        bytes: 8,
        ..Width::WORD
    };
    let general = |number: u32| Register::RAX + number;
    let all: Vec<Register> = (0..16)
        .map(general)
        .filter(|r| *r != Register::RSP)
        .collect();
    let tally = |register: &Register| {
        let program = Program {
            bytes: vec![0; 8],
            size: 24,
            faults: false,
        };
        let amount = StraightAmount::Of(Function::Bucket, Value::Register(*register), width);
        Work::Tally(Straight::new(1, 1, None, amount, Arc::new(program), None))
    };
    let tallies: Vec<Work> = all.iter().map(tally).collect();
    let records = [Work::from(Record::new(1, all.clone()))];
    let mut compiler = Compiler::new(runtime(Some(-160)), ADDRESS, Vec::new());
    let displaced = displaced();
    let request = |work| Request {
        work,
        displaced: &displaced,
        resume: SITE + 11,
        red_zone: true,
        live: Live::ALL,
    };
    let detour = compiler.compile(&request(&tallies)).expect("it can run");
    assert!(detour.saved.is_empty(), "the resident saves");
    assert_eq!(
        compiler.compile(&request(&records)),
        Err(CompileError::TooManyRegisters)
    );
}

/// The parts of a detour are all of its bytes, each once; every work is one of them, and every
/// displaced instruction.
fn check_anatomy(compiler: &Compiler, detour: &Detour, parts: &[Part], links: &[Links]) {
    let anatomy = compiler.anatomy(detour);
    let mut at = detour.address;
    let mut instructions = Vec::new();
    for (range, purpose) in &anatomy.stretches {
        assert!(range.start == at && range.end > at, "{anatomy:x?}");
        at = range.end;
        assert_eq!(anatomy.purpose(range.start), Some(*purpose));
        let bytes = (range.start - ADDRESS) as usize..(range.end - ADDRESS) as usize;
        let bytes = &compiler.image[bytes];
        if *purpose != Purpose::Cold {
            let decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
            let decoded: Vec<Instruction> = decoder.into_iter().collect();
            // No part begins in the middle of an instruction.
            assert!(decoded.iter().all(|i| !i.is_invalid()), "{purpose:?}");
            instructions.push((*purpose, decoded));
        }
    }
    assert_eq!(at, detour.end());
    let is_hot = |range: &Range<u64>| range.start >= detour.entry;
    for (range, purpose) in &anatomy.stretches {
        assert_eq!(*purpose != Purpose::Cold, is_hot(range), "{anatomy:x?}");
    }
    for (index, part) in parts.iter().enumerate() {
        let has = |wanted| {
            anatomy
                .stretches
                .iter()
                .filter(|(_, p)| *p == wanted)
                .count()
        };
        assert_eq!(has(Purpose::Work(index)), 1, "{anatomy:x?}");
        let commit = part.sequence.as_ref().and_then(|s| s.commit);
        assert_eq!(has(Purpose::Commit(index)), usize::from(commit.is_some()));
    }
    let copied = anatomy
        .stretches
        .iter()
        .filter_map(|(range, purpose)| match purpose {
            Purpose::Copy(old) => Some((*old, range.start)),
            _ => None,
        });
    assert_eq!(copied.collect::<Vec<_>>(), detour.copies);
    for (purpose, decoded) in &instructions {
        match purpose {
            Purpose::Commit(_) => {
                assert_eq!(decoded.len(), 1);
                let end = decoded[0].op1_register().full_register();
                assert_eq!(
                    (decoded[0].mnemonic(), end),
                    (Mnemonic::Mov, anatomy.record_end)
                );
            }
            Purpose::Back => {
                assert_eq!(decoded.len(), 1);
                assert_eq!(decoded[0].near_branch_target(), SITE + 11);
            }
            Purpose::Cold
            | Purpose::Save
            | Purpose::Work(_)
            | Purpose::Restore
            | Purpose::Copy(_) => {}
        }
    }
    let descriptors = anatomy
        .named
        .iter()
        .filter(|(_, n)| *n == Named::Descriptor);
    let descriptors: Vec<u64> = descriptors.map(|(address, _)| *address).collect();
    let wanted = links.iter().map(|links| links.descriptor);
    assert_eq!(descriptors, wanted.filter(|d| *d != 0).collect::<Vec<_>>());
    let streams = anatomy.named.iter().filter(|(_, n)| *n == Named::Streams);
    assert!(streams.clone().count() <= links.len());
    for (address, _) in streams {
        assert!(links.iter().any(|links| links.shared.streams == *address));
    }
}

/// Without work there are only the copies, as for an instruction that has to run elsewhere.
#[test]
fn without_work_only_the_copies_are_there() {
    let mut compiler = Compiler::new(runtime(Some(-160)), ADDRESS, vec![INT3; 64]);
    let request = Request {
        work: &[],
        displaced: &displaced(),
        resume: SITE + 11,
        red_zone: true,
        live: Live::ALL,
    };
    let detour = compiler.compile(&request).expect("all is near");
    assert_eq!(detour.entry, ADDRESS + 64);
    assert_eq!(detour.copies[0], (SITE, detour.entry));
    assert_eq!(detour.size, 11 + 5);
    assert_eq!(compiler.image().len(), 64 + 16);
    let last = displaced()[2];
    let copy = compiler.copy_out(&last).map(|copy| copy.entry);
    assert_eq!(copy, Ok(ADDRESS + 64 + 16));
    assert_eq!(compiler.image().len(), 64 + 16 + 7 + 5);
}
