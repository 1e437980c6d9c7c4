//! Fills registers and flags that are reported dead with random values: nothing may change.

use crate::support::dead;
use crate::support::elf::{Elf, find_library};
use crate::support::random::{Goal, Random, is_pure, listing, place};
use crate::support::sandbox::{ARITHMETIC_FLAGS, EXIT, ORIGINAL, State, in_child};
use capriole_insn::{Code, Extent, Live, live_at};
use iced_x86::{Instruction, Register, RflagsBits};

struct Case {
    instructions: Vec<Instruction>,
    bytes: Vec<u8>,
    live: Live,
    /// True if some instruction leaves AF undefined.
    undefined: bool,
    seed: u64,
}

impl Case {
    fn new(block: &[(Instruction, Option<Goal>)], seed: u64) -> Option<Self> {
        let (mut bytes, instructions) = place(block, ORIGINAL)?;
        let end = ORIGINAL + bytes.len() as u64;
        let live = live_at(
            &Code::new(&bytes, ORIGINAL),
            &Extent::new(ORIGINAL, end),
            ORIGINAL,
        );
        let undefined = instructions
            .iter()
            .any(|i| i.rflags_undefined() & RflagsBits::AF != 0);
        bytes.push(0xe9);
        bytes.extend((EXIT.wrapping_sub(end + 5) as i32).to_le_bytes());
        Some(Self {
            instructions,
            bytes,
            live,
            undefined,
            seed,
        })
    }
}

/// Returns `input` with other values in all dead registers and flags.
fn spoil(input: &State, live: &Live, random: &mut Random) -> State {
    let mut spoilt = *input;
    for register in dead(live).iter() {
        spoilt.gprs[register.number()] = random.number();
    }
    if !live.flags {
        spoilt.flags = random.number() & ARITHMETIC_FLAGS;
    }
    spoilt
}

/// Runs all cases; returns the number of dead registers, and the number of cases with dead
/// flags.
fn run(cases: &[Case]) -> (usize, usize) {
    in_child(
        cases,
        |sandbox, case| {
            sandbox.write(ORIGINAL, &case.bytes);
            let mut random = Random::new(case.seed);
            for _ in 0..4 {
                let mut input = random.state();
                input.gprs[1] = random.below(4) as u64;
                let seed = random.number();
                let mut expected = sandbox.run(ORIGINAL, &input, seed);
                let spoilt = spoil(&input, &case.live, &mut random);
                let mut found = sandbox.run(ORIGINAL, &spoilt, seed);
                if case.undefined {
                    expected.state.flags &= !0x10;
                    found.state.flags &= !0x10;
                }
                if found != expected {
                    return Err(format!(
                        "from  {input:x?}\nspoilt {spoilt:x?}\nexpected {:x?}\nfound    {:x?}",
                        expected.state, found.state
                    ));
                }
            }
            Ok(())
        },
        |case| format!("{:?}\n{}", case.live, listing(&case.instructions)),
    );
    (
        cases
            .iter()
            .map(|case| dead(&case.live).iter().count())
            .sum(),
        cases.iter().filter(|case| !case.live.flags).count(),
    )
}

#[test]
fn random_blocks_do_not_miss_what_is_dead() {
    let mut random = Random::new(7);
    let mut cases = Vec::new();
    while cases.len() < 30_000 {
        let count = 1 + random.below(12);
        let block: Vec<(Instruction, Option<Goal>)> = (0..count)
            .map(|index| {
                if random.below(5) == 0 {
                    let goal = Goal::Inside(index + 1 + random.below(count - index));
                    (random.branch(), Some(goal))
                } else {
                    (random.plain(), None)
                }
            })
            .collect();
        cases.extend(Case::new(&block, random.number()));
    }
    let (registers, flags) = run(&cases);
    println!(
        "dead: {registers} registers, {flags} times the flags, in {} blocks",
        cases.len()
    );
    assert!(registers > 1000 && flags > 1000, "the test says nothing");
}

#[test]
fn code_of_libraries_does_not_miss_what_is_dead() {
    for name in ["libc.so.6", "libcrypto.so.3", "libsqlite3.so.0"] {
        let Some(elf) = find_library(name).and_then(|path| Elf::open(&path)) else {
            println!("skipped: no {name} on this system");
            continue;
        };
        let (bytes, address) = elf.text();
        let code = Code::new(bytes, address);
        let mut random = Random::new(8);
        let mut cases = Vec::new();
        for (_, extent) in elf.functions() {
            let Ok(flow) = capriole_insn::FunctionFlow::analyse(&code, &extent) else {
                continue;
            };
            let pure: Vec<(Instruction, Option<Goal>)> = flow
                .boundaries()
                .map(|at| code.instruction_at(at, extent.end).unwrap())
                .filter(is_pure)
                .map(|instruction| (instruction, None))
                .collect();
            for block in pure.chunks(10) {
                cases.extend(Case::new(block, random.number()));
            }
            if cases.len() > 10_000 {
                break;
            }
        }
        let (registers, flags) = run(&cases);
        println!(
            "{name}: {} blocks, dead: {registers} registers, {flags} times the flags",
            cases.len()
        );
        assert!(
            registers > 100 && flags > 100,
            "{name}: the test says nothing"
        );
    }
}

#[test]
fn the_preserved_registers_are_always_live() {
    // mov $1,%ebx; mov $2,%r12d; mov $3,%eax; ret
    let bytes = [
        0xbb, 1, 0, 0, 0, 0x41, 0xbc, 2, 0, 0, 0, 0xb8, 3, 0, 0, 0, 0xc3,
    ];
    let live = live_at(
        &Code::new(&bytes, 0x1000),
        &Extent::new(0x1000, 0x1011),
        0x1000,
    );
    assert_eq!(dead(&live).iter().collect::<Vec<_>>(), [Register::RAX]);
    assert!(live.flags);
}
