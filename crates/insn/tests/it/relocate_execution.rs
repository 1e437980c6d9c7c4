//! Runs relocated code and the original: registers, flags, data and stack
//! must be the same afterwards, return addresses included.

use crate::support::elf::{Elf, find_library};
use crate::support::random::{Goal, Random, is_pure, listing, place};
use crate::support::sandbox::{COPY, DATA, EXIT, ORIGINAL, in_child};
use capriole_insn::{Code, RelocateError, relocate};
use iced_x86::{Code as Opcode, Instruction, MemoryOperand, Register};

/// Target of branches out of the block; the code there marks the data.
const ELSEWHERE: u64 = ORIGINAL + 0x2000;
/// A function that is called: it stores its return address in the data.
const CALLEE: u64 = ORIGINAL + 0x3000;
/// Address of the pointer to `CALLEE` in the data.
const POINTER: u64 = DATA + 4080;

/// A block of code and its copy, which is followed by a jump back, as in a
/// detour.
struct Case {
    instructions: Vec<Instruction>,
    original: Vec<u8>,
    copy: Vec<u8>,
    seed: u64,
}

impl Case {
    fn new(instructions: &[(Instruction, Option<Goal>)], seed: u64) -> Option<Self> {
        let (mut original, instructions) = place(instructions, ORIGINAL)?;
        let end = ORIGINAL + original.len() as u64;
        original.extend(jump(end, EXIT));
        let relocated = match relocate(&instructions, COPY) {
            Ok(relocated) => relocated,
            Err(RelocateError::CallInside { .. }) => return None,
            Err(error) => panic!("{error}\n{}", listing(&instructions)),
        };
        // The length is the same at any address, and so are the offsets of the copied instructions.
        let elsewhere = relocate(&instructions, COPY + 0x123_4567).unwrap();
        assert_eq!(elsewhere.bytes.len(), relocated.bytes.len());
        assert_eq!(elsewhere.offsets, relocated.offsets);
        let ips: Vec<u64> = instructions.iter().map(Instruction::ip).collect();
        let said: Vec<u64> = relocated.offsets.iter().map(|(ip, _)| *ip).collect();
        assert_eq!(ips, said);
        let mut copy = relocated.bytes;
        if relocated.falls_through {
            copy.extend(jump(COPY + copy.len() as u64, end));
        }
        Some(Self {
            instructions,
            original,
            copy,
            seed,
        })
    }
}

fn jump(from: u64, to: u64) -> Vec<u8> {
    let mut bytes = vec![0xe9];
    bytes.extend((to.wrapping_sub(from + 5) as i32).to_le_bytes());
    bytes
}

fn run(cases: &[Case]) {
    // mov %rax,DATA+4000; mov (%rsp),%rax; mov %rax,DATA+4008; mov DATA+4000,%rax; ret
    let mut a = iced_x86::code_asm::CodeAssembler::new(64).unwrap();
    {
        use iced_x86::code_asm::*;
        a.mov(qword_ptr(DATA + 4000), rax).unwrap();
        a.mov(rax, qword_ptr(rsp)).unwrap();
        a.mov(qword_ptr(DATA + 4008), rax).unwrap();
        a.mov(rax, qword_ptr(DATA + 4000)).unwrap();
        a.ret().unwrap();
    }
    let callee = a.assemble(CALLEE).unwrap();
    // movl $1, DATA+4016
    let mut elsewhere = vec![0xc7, 0x04, 0x25];
    elsewhere.extend((DATA as u32 + 4016).to_le_bytes());
    elsewhere.extend(0x7357u32.to_le_bytes());
    elsewhere.extend(jump(ELSEWHERE + elsewhere.len() as u64, EXIT));
    in_child(
        cases,
        |sandbox, case| {
            sandbox.write(CALLEE, &callee);
            sandbox.write(ELSEWHERE, &elsewhere);
            sandbox.write(ORIGINAL, &case.original);
            sandbox.write(COPY, &case.copy);
            let mut random = Random::new(case.seed);
            for _ in 0..4 {
                let mut input = random.state();
                // For indirect calls by a register and for short loops.
                input.gprs[15] = CALLEE;
                input.gprs[1] = random.below(4) as u64;
                let seed = random.number();
                let expected = sandbox.run(ORIGINAL, &input, seed);
                let found = sandbox.run(COPY, &input, seed);
                if found.state != expected.state {
                    return Err(format!(
                        "from {input:x?}\nexpected {:x?}\nfound    {:x?}",
                        expected.state, found.state
                    ));
                }
                if found != expected {
                    return Err(format!("memory differs, from {input:x?}"));
                }
            }
            Ok(())
        },
        |case| format!("{}\ncopy: {:02x?}", listing(&case.instructions), case.copy),
    );
}

/// A block of a few instructions with a branch here and there, and maybe a
/// call at its end.
fn random_block(random: &mut Random) -> Vec<(Instruction, Option<Goal>)> {
    let count = 1 + random.below(6);
    let mut block: Vec<(Instruction, Option<Goal>)> = Vec::new();
    for index in 0..count {
        if random.below(4) == 0 {
            let branch = random.branch();
            let goal = match random.below(2) {
                // A short branch cannot reach it.
                0 if is_long(&branch) => Goal::Outside(ELSEWHERE),
                0 => Goal::Inside(count),
                _ => Goal::Inside(index + 1 + random.below(count - index)),
            };
            block.push((branch, Some(goal)));
        } else {
            block.push((random.plain(), None));
        }
    }
    block
}

#[test]
fn random_blocks_behave_the_same() {
    let mut random = Random::new(1);
    let mut cases = Vec::new();
    while cases.len() < 30_000 {
        let block = random_block(&mut random);
        cases.extend(Case::new(&block, random.number()));
    }
    run(&cases);
}

fn is_long(branch: &Instruction) -> bool {
    let name = format!("{:?}", branch.code());
    name.contains("rel32")
}

#[test]
fn calls_push_the_original_return_address() {
    let mut random = Random::new(2);
    let mut cases = Vec::new();
    let memory = |base, displacement| MemoryOperand::with_base_displ(base, displacement);
    let indirect = |operand| Instruction::with1(Opcode::Call_rm64, operand).unwrap();
    for _ in 0..500 {
        for call in [
            (
                Instruction::with_branch(Opcode::Call_rel32_64, 0).unwrap(),
                Some(Goal::Outside(CALLEE)),
            ),
            (
                Instruction::with1(Opcode::Call_rm64, Register::R15).unwrap(),
                None,
            ),
            (indirect(memory(Register::RIP, POINTER as i64)), None),
            (indirect(memory(Register::RSP, -8)), None),
            (indirect(memory(Register::RSP, 8)), None),
            (indirect(memory(Register::RSP, 120)), None),
            (indirect(memory(Register::RSP, -120)), None),
            (indirect(memory(Register::RSP, 0x120)), None),
        ] {
            let mut block = Vec::new();
            // Put the callee's address where the call looks for it.
            let displacement = call.0.memory_displacement64() as i64;
            if call.0.memory_base() == Register::RSP {
                let store = memory(Register::RSP, displacement);
                block.push((
                    Instruction::with2(Opcode::Mov_rm64_r64, store, Register::R15).unwrap(),
                    None,
                ));
            }
            if call.0.memory_base() == Register::RIP {
                let store = memory(Register::RIP, POINTER as i64);
                block.push((
                    Instruction::with2(Opcode::Mov_rm64_r64, store, Register::R15).unwrap(),
                    None,
                ));
            }
            block.push(call);
            let through_itself = call.0.memory_base() == Register::RSP && displacement == -8;
            if through_itself {
                let (_, instructions) = place(&block, ORIGINAL).unwrap();
                let refused = relocate(&instructions, COPY);
                assert!(matches!(
                    refused,
                    Err(RelocateError::CallThroughStack { .. })
                ));
            } else {
                cases.extend(Case::new(&block, random.number()));
            }
        }
    }
    run(&cases);
}

/// Repeats this with instructions of real libraries: those that work on registers
/// alone, or whose RIP-relative operands are redirected to the sandbox's data.
#[test]
fn instructions_of_libraries_behave_the_same() {
    for name in ["libc.so.6", "libcrypto.so.3"] {
        let Some(elf) = find_library(name).and_then(|path| Elf::open(&path)) else {
            println!("skipped: no {name} on this system");
            continue;
        };
        let (bytes, address) = elf.text();
        let code = Code::new(bytes, address);
        let mut random = Random::new(3);
        let mut cases = Vec::new();
        for (_, extent) in elf.functions() {
            let Ok(flow) = capriole_insn::FunctionFlow::analyse(&code, &extent) else {
                continue;
            };
            let mut block: Vec<(Instruction, Option<Goal>)> = Vec::new();
            for at in flow.boundaries() {
                let mut instruction = code.instruction_at(at, extent.end).unwrap();
                let relative = instruction.is_ip_rel_memory_operand()
                    && instruction.mnemonic() == iced_x86::Mnemonic::Lea;
                if relative {
                    instruction.set_memory_displacement64(DATA + random.below(4000) as u64);
                }
                let written = instruction.op0_register().full_register();
                if is_pure(&instruction) || relative && written != Register::RBX {
                    block.push((instruction, None));
                }
                if block.len() == 8 {
                    cases.extend(Case::new(&block, random.number()));
                    block.clear();
                }
            }
            if cases.len() > 10_000 {
                break;
            }
        }
        assert!(cases.len() > 100, "{name}: only {} cases", cases.len());
        println!("{name}: {} blocks of 8 instructions", cases.len());
        run(&cases);
    }
}
