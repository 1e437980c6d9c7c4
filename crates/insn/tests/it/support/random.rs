//! Random instructions that are safe to run in the sandbox.

use iced_x86::{
    Code, Encoder, FlowControl, Formatter, GasFormatter, Instruction, MemoryOperand, OpKind,
    Register,
};

use capriole_testkit::effort;
use std::ops::{Deref, DerefMut};

use super::sandbox::{ARITHMETIC_FLAGS, DATA, State};

/// Random numbers, and what is made of them.
pub struct Random(effort::Random);

impl Deref for Random {
    type Target = effort::Random;

    fn deref(&self) -> &effort::Random {
        &self.0
    }
}

impl DerefMut for Random {
    fn deref_mut(&mut self) -> &mut effort::Random {
        &mut self.0
    }
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(effort::Random::of(seed))
    }

    /// Random registers and flags. `rbx` points to the data; small numbers are common
    /// so that branches go both ways.
    pub fn state(&mut self) -> State {
        let mut gprs = [0; 16];
        for gpr in &mut gprs {
            *gpr = match self.below(4) {
                0 => self.below(3) as u64,
                1 => self.number() as u32 as u64,
                2 => (self.below(5) as u64).wrapping_sub(2),
                _ => self.number(),
            };
        }
        gprs[3] = DATA + 1024;
        State {
            gprs,
            flags: self.number() & ARITHMETIC_FLAGS,
        }
    }

    /// A general register of `size` bytes that code may change.
    pub fn register(&mut self, size: usize) -> Register {
        let number = self.pick(&[0u32, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let first = match size {
            8 => Register::RAX,
            4 => Register::EAX,
            2 => Register::AX,
            // AL CL DL BL AH CH DH BH SPL BPL SIL DIL R8L ...
            _ => {
                return match number {
                    0..=2 if self.below(4) == 0 => Register::AH + number,
                    0..=3 => Register::AL + number,
                    _ => Register::SPL + (number - 4),
                };
            }
        };
        first + number
    }

    /// A memory operand in the data: RIP-relative or based on `rbx`.
    fn memory(&mut self) -> MemoryOperand {
        if self.below(2) == 0 {
            let target = DATA + self.below(4000) as u64;
            MemoryOperand::with_base_displ(Register::RIP, target as i64)
        } else {
            let displacement = self.below(1000) as i64 - 500;
            MemoryOperand::with_base_displ(Register::RBX, displacement)
        }
    }

    /// An instruction that continues with the next one.
    pub fn plain(&mut self) -> Instruction {
        loop {
            let instruction = self.try_plain();
            let uses_high = |r| matches!(r, Register::AH | Register::CH | Register::DH);
            let high = (0..2).any(|i| {
                instruction.op_kind(i) == OpKind::Register && uses_high(instruction.op_register(i))
            });
            // `ah` cannot be encoded together with newer registers.
            if !high || Encoder::new(64).encode(&instruction, DATA).is_ok() {
                return instruction;
            }
        }
    }

    fn try_plain(&mut self) -> Instruction {
        use Code::*;
        let (r8, r8b) = (self.register(8), self.register(8));
        let (r4, r4b) = (self.register(4), self.register(4));
        let (r2, r1, r1b) = (self.register(2), self.register(1), self.register(1));
        let immediate = self.number() as i32;
        let memory = self.memory();
        match self.below(30) {
            0 => with2(
                self.pick(&[Add_r64_rm64, Sub_r64_rm64, Xor_r64_rm64]),
                r8,
                r8b,
            ),
            1 => with2(
                self.pick(&[Adc_r64_rm64, Sbb_r64_rm64, And_r64_rm64]),
                r8,
                r8b,
            ),
            2 => with2(
                self.pick(&[Add_r32_rm32, Sub_r32_rm32, Xor_r32_rm32]),
                r4,
                r4b,
            ),
            3 => with2(
                self.pick(&[Adc_r32_rm32, Sbb_r32_rm32, Or_r32_rm32]),
                r4,
                r4b,
            ),
            4 => with2(self.pick(&[Cmp_r64_rm64, Imul_r64_rm64]), r8, r8b),
            5 => with2(self.pick(&[Test_rm32_r32, Mov_r32_rm32]), r4, r4b),
            6 => with2(self.pick(&[Mov_r8_rm8, Add_r8_rm8, Xor_r8_rm8]), r1, r1b),
            7 => with2(Mov_r64_rm64, r8, r8b),
            8 => with2(self.pick(&[Xor_r64_rm64, Sub_r64_rm64]), r8, r8),
            9 => with2(self.pick(&[Xor_r32_rm32, Sub_r32_rm32]), r4, r4),
            10 => Instruction::with2(Mov_r64_imm64, r8, self.number()).unwrap(),
            11 => Instruction::with2(Mov_r32_imm32, r4, immediate).unwrap(),
            12 => Instruction::with2(Mov_rm64_imm32, r8, immediate).unwrap(),
            13 => Instruction::with2(Mov_r64_rm64, r8, memory).unwrap(),
            14 => Instruction::with2(Mov_rm64_r64, memory, r8).unwrap(),
            15 => Instruction::with2(Add_rm32_r32, memory, r4).unwrap(),
            16 => Instruction::with2(Cmp_rm32_imm32, memory, immediate).unwrap(),
            17 => Instruction::with2(Lea_r64_m, r8, memory).unwrap(),
            18 => {
                let scale = self.pick(&[1, 2, 4, 8]);
                let sum = MemoryOperand::with_base_index_scale_displ_size(
                    r8,
                    r8b,
                    scale,
                    i64::from(immediate),
                    8,
                );
                Instruction::with2(Lea_r64_m, self.register(8), sum).unwrap()
            }
            19 => Instruction::with1(self.pick(&[Inc_rm64, Dec_rm64, Neg_rm64]), r8).unwrap(),
            20 => Instruction::with1(self.pick(&[Not_rm32, Inc_rm32, Dec_rm32]), r4).unwrap(),
            21 => Instruction::with1(self.pick(&[Sete_rm8, Setb_rm8, Setg_rm8]), r1).unwrap(),
            22 => with2(
                self.pick(&[Cmove_r64_rm64, Cmovb_r64_rm64, Cmovl_r64_rm64]),
                r8,
                r8b,
            ),
            23 => with2(self.pick(&[Cmovne_r32_rm32, Cmovs_r32_rm32]), r4, r4b),
            24 => with2(self.pick(&[Movzx_r32_rm8, Movsx_r64_rm8]), r4, r1)
                .pipe(|i| fix_size(i, r8, r4)),
            25 => Instruction::with2(Shl_rm64_imm8, r8, 1).unwrap(),
            26 => {
                let shift = self.pick(&[Shl_rm64_CL, Shr_rm64_CL, Rol_rm64_CL]);
                with2(shift, r8, Register::CL)
            }
            27 => Instruction::with2(Mov_r16_imm16, r2, immediate & 0x7fff).unwrap(),
            28 => with2(
                self.pick(&[Xchg_rm64_r64, Bt_rm64_r64, Xadd_rm64_r64]),
                r8,
                r8b,
            ),
            _ => match self.below(4) {
                0 => Instruction::with1(Push_r64, r8).unwrap(),
                1 => Instruction::with(Stc),
                2 => Instruction::with(Cmc),
                _ => Instruction::with(Cdqe),
            },
        }
    }

    /// A conditional or unconditional branch; the target is filled in later.
    pub fn branch(&mut self) -> Instruction {
        use Code::*;
        let code = self.pick(&[
            Je_rel8_64,
            Jne_rel32_64,
            Jb_rel32_64,
            Jae_rel8_64,
            Jl_rel32_64,
            Jg_rel8_64,
            Js_rel8_64,
            Jo_rel32_64,
            Jp_rel8_64,
            Jrcxz_rel8_64,
            Jecxz_rel8_64,
            Loop_rel8_64_RCX,
            Loope_rel8_64_RCX,
            Loopne_rel8_64_RCX,
            Loop_rel8_64_ECX,
            Jmp_rel8_64,
            Jmp_rel32_64,
            Jbe_rel8_64,
            Jle_rel32_64,
            Jns_rel8_64,
        ]);
        Instruction::with_branch(code, 0).unwrap()
    }
}

trait Pipe: Sized {
    fn pipe<T>(self, f: impl FnOnce(Self) -> T) -> T {
        f(self)
    }
}
impl Pipe for Instruction {}

/// Gives `movsx` its 64-bit destination.
fn fix_size(mut instruction: Instruction, r8: Register, r4: Register) -> Instruction {
    let wide = instruction.code() == Code::Movsx_r64_rm8;
    instruction.set_op0_register(if wide { r8 } else { r4 });
    instruction
}

fn with2(code: Code, a: Register, b: Register) -> Instruction {
    Instruction::with2(code, a, b).unwrap()
}

/// Target of a branch in a block.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// The instruction with this number; the number of instructions means the
    /// end of the block.
    Inside(usize),
    /// An address elsewhere.
    Outside(u64),
}

/// Places instructions one after the other at `address`, and sets the branch
/// targets. Returns the bytes and the instructions as decoded; `None` if a short
/// branch does not reach.
pub fn place(
    instructions: &[(Instruction, Option<Goal>)],
    address: u64,
) -> Option<(Vec<u8>, Vec<Instruction>)> {
    let mut lengths = Vec::new();
    for (instruction, goal) in instructions {
        let mut probe = *instruction;
        if goal.is_some() {
            probe.set_near_branch64(address);
        }
        lengths.push(Encoder::new(64).encode(&probe, address).ok()?);
    }
    let start_of = |index: usize| address + lengths[..index].iter().sum::<usize>() as u64;
    let mut bytes = Vec::new();
    let mut decoded = Vec::new();
    for (index, (instruction, goal)) in instructions.iter().enumerate() {
        let mut instruction = *instruction;
        if let Some(goal) = goal {
            instruction.set_near_branch64(match goal {
                Goal::Inside(inside) => start_of(*inside),
                Goal::Outside(target) => *target,
            });
        }
        let mut encoder = Encoder::new(64);
        encoder.encode(&instruction, start_of(index)).ok()?;
        let encoded = encoder.take_buffer();
        assert_eq!(encoded.len(), lengths[index]);
        let code = capriole_insn::Code::new(&encoded, start_of(index));
        decoded.push(code.instruction_at(start_of(index), u64::MAX)?);
        bytes.extend(encoded);
    }
    Some((bytes, decoded))
}

/// Returns the disassembly, one instruction a line.
pub fn listing(instructions: &[Instruction]) -> String {
    let mut formatter = GasFormatter::new();
    let mut text = String::new();
    for instruction in instructions {
        let mut line = String::new();
        formatter.format(instruction, &mut line);
        text += &format!("{:#x}: {line}\n", instruction.ip());
    }
    text
}

/// Returns true if the instruction reads and writes general registers and flags only,
/// exists on every x86-64 processor and leaves `rsp` and `rbx` unchanged.
pub fn is_pure(instruction: &Instruction) -> bool {
    use iced_x86::{CpuidFeature as F, InstructionInfoFactory, Mnemonic as M, OpAccess};
    let basic = instruction.cpuid_features().iter().all(|feature| {
        matches!(
            feature,
            F::INTEL8086 | F::INTEL186 | F::INTEL286 | F::INTEL386 | F::INTEL486 | F::X64 | F::CMOV
        )
    });
    let excluded = matches!(
        instruction.mnemonic(),
        M::Div
            | M::Idiv
            | M::Std
            | M::Cli
            | M::Sti
            | M::In
            | M::Out
            | M::Wait
            | M::Pushfq
            | M::Popfq
    );
    let mut info = InstructionInfoFactory::new();
    let info = info.info(instruction);
    basic
        && !excluded
        && instruction.flow_control() == FlowControl::Next
        && !instruction.is_privileged()
        && !instruction.is_stack_instruction()
        && info.used_memory().is_empty()
        && info.used_registers().iter().all(|used| {
            let register = used.register().full_register();
            let writes = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            register.is_gpr64() && !(writes && matches!(register, Register::RSP | Register::RBX))
        })
}
