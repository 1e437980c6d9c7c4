//! The code that tests whether to record an event.
//!
//! ```text
//!         cmp  $3, %edi         fd == 3 && tid != 77
//!         jne  reject
//!         cmp  $77, %fs:tid
//!         je   reject
//! ```
//!
//! Where the flags are dead (at a function's entry) and the site has a single piece of work,
//! this comes before anything is saved: a rejected hit costs the jump to the detour, the
//! comparison and the copies.
//!
//! **The flags themselves** may be tested, too: at a conditional jump they determine whether
//! the jump will be taken. That test comes first. If all work of the site requires the same
//! flags, as at a jump that is only an exit, one jump is enough, before anything is changed:
//!
//! ```text
//!  entry  jne  copies           of `je other`: it will not be taken
//!         ...
//!  copies je   other
//! ```
//!
//! Otherwise each work has its own test: work that comes before registers are saved finds the
//! flags unchanged, later work restores them from where they were saved.

use super::CompileError;
use super::emit::{at, fs};
use super::frame::Frame;
use crate::condition::{Exit, Test, Tree};
use crate::runtime::Runtime;
use crate::work::{Compare, Filter, Operand};
use iced_x86::code_asm::*;
use iced_x86::{Code, ConditionCode, IcedError, Instruction, MemoryOperand, Register};

impl Filter {
    /// Appends everything that distinguishes filters, as bytes.
    pub(super) fn key(&self, key: &mut Vec<u8>) {
        use std::io::Write;
        let _ = write!(key, "{self:?}"); // a vector takes everything
    }

    /// Checks that the location of everything the filter tests is known.
    pub(super) fn check(&self, runtime: &Runtime) -> Result<(), CompileError> {
        let asks = |compare: &&Compare| compare.operand == Operand::Thread;
        match runtime.tid_offset.is_none() && self.compares().iter().any(asks) {
            true => Err(CompileError::NoThreadId),
            false => Ok(()),
        }
    }
}

/// 64-bit constants, placed before the code that compares with them.
#[derive(Default)]
pub(super) struct Literals(Vec<(u64, CodeLabel)>);

impl Literals {
    /// Emits the constants of a filter at the current position.
    pub(super) fn add(&mut self, a: &mut CodeAssembler, filter: &Filter) -> Result<(), IcedError> {
        for compare in filter.compares() {
            let value = compare.with;
            if needs_literal(compare) && !self.0.iter().any(|(known, _)| *known == value) {
                let mut label = a.create_label();
                a.set_label(&mut label)?;
                a.dq(&[value])?;
                self.0.push((value, label));
            }
        }
        Ok(())
    }

    fn label(&self, value: u64) -> Option<CodeLabel> {
        self.0
            .iter()
            .find(|(known, _)| *known == value)
            .map(|(_, label)| *label)
    }
}

/// True if the constant is not a sign-extended 32-bit number.
fn needs_literal(compare: &Compare) -> bool {
    compare.width.bytes == 8 && i32::try_from(compare.with as i64).is_err()
}

/// Returns the register for the low `bytes` bytes of a 64-bit register.
pub(super) fn part(register: Register, bytes: u8) -> Register {
    let number = register.number() as u32;
    match bytes {
        8 => register,
        4 => Register::EAX + number,
        2 => Register::AX + number,
        // Numbering of 8-bit registers: low bytes without a REX prefix, four high-byte registers,
        // then low bytes that need REX.
        _ if number < 4 => Register::AL + number,
        _ => Register::SPL + (number - 4),
    }
}

/// Jumps to `reject` unless the filter holds. Overwrites the flags; and rax, if the registers have
/// been `saved`.
pub(super) fn reject_unless(
    a: &mut CodeAssembler,
    filter: &Filter,
    runtime: &Runtime,
    saved: Option<&Frame>,
    literals: &Literals,
    reject: CodeLabel,
) -> Result<(), IcedError> {
    match &filter.tree {
        Tree::Constant(true) => return Ok(()),
        Tree::Constant(false) => return a.jmp(reject),
        _ => {}
    }
    let branches = filter.tree.branches(false);
    let mut labels: Vec<CodeLabel> = branches.iter().map(|_| a.create_label()).collect();
    let mut accept = a.create_label();
    let targets = labels.clone();
    for (branch, label) in branches.iter().zip(&mut labels) {
        a.set_label(label)?;
        compare(a, branch.leaf, runtime, saved, literals)?;
        let to = match branch.exit {
            Exit::Decided(false) => reject,
            Exit::Decided(true) => accept,
            Exit::Branch(index) => targets.get(index).copied().unwrap_or(accept),
        };
        jump(a, branch.leaf, branch.leaf.result == branch.when, to)?;
    }
    super::emit::bind(a, &mut accept)
}

/// Jumps to `reject` unless the current flags satisfy the condition.
pub(super) fn reject_unless_flags(
    a: &mut CodeAssembler,
    flags: ConditionCode,
    reject: CodeLabel,
) -> Result<(), IcedError> {
    use ConditionCode as C;
    match flags {
        C::None => Ok(()),
        C::o => a.jno(reject),
        C::no => a.jo(reject),
        C::b => a.jae(reject),
        C::ae => a.jb(reject),
        C::e => a.jne(reject),
        C::ne => a.je(reject),
        C::be => a.ja(reject),
        C::a => a.jbe(reject),
        C::s => a.jns(reject),
        C::ns => a.js(reject),
        C::p => a.jnp(reject),
        C::np => a.jp(reject),
        C::l => a.jge(reject),
        C::ge => a.jl(reject),
        C::le => a.jg(reject),
        C::g => a.jle(reject),
    }
}

/// Sets the flags by a comparison.
fn compare(
    a: &mut CodeAssembler,
    compare: &Compare,
    runtime: &Runtime,
    saved: Option<&Frame>,
    literals: &Literals,
) -> Result<(), IcedError> {
    let bytes = compare.width.bytes;
    let register = match compare.operand {
        Operand::Thread => {
            let tid = fs(runtime.tid_offset.unwrap_or(0)); // it was checked
            return a.add_instruction(immediate(compare, None, tid)?);
        }
        Operand::Register(register) => register,
    };
    // A saved register may have been overwritten since; read it from its slot.
    let slot = saved.and_then(|frame| frame.slot(register));
    match (
        literals
            .label(compare.with)
            .filter(|_| needs_literal(compare)),
        slot,
    ) {
        (None, None) => a.add_instruction(immediate(
            compare,
            Some(part(register, bytes)),
            MemoryOperand::with_base(Register::None),
        )?),
        (None, Some(slot)) => a.add_instruction(immediate(compare, None, at(Register::RSP, slot))?),
        (Some(literal), slot) => {
            let mut with = register;
            if let Some(slot) = slot {
                with = Register::RAX;
                let from = at(Register::RSP, slot);
                a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, with, from)?)?;
            }
            let with = get_gpr64(with).unwrap_or(rax); // it is one
            match compare.test {
                Test::Bits => a.test(qword_ptr(literal), with),
                _ => a.cmp(with, qword_ptr(literal)),
            }
        }
    }
}

/// Returns the comparison of a register, or of memory, with an immediate.
fn immediate(
    compare: &Compare,
    register: Option<Register>,
    memory: MemoryOperand,
) -> Result<Instruction, IcedError> {
    let bits = compare.test == Test::Bits;
    let code = match (compare.width.bytes, bits) {
        (8, false) => Code::Cmp_rm64_imm32,
        (4, false) => Code::Cmp_rm32_imm32,
        (2, false) => Code::Cmp_rm16_imm16,
        (_, false) => Code::Cmp_rm8_imm8,
        (8, true) => Code::Test_rm64_imm32,
        (4, true) => Code::Test_rm32_imm32,
        (2, true) => Code::Test_rm16_imm16,
        (_, true) => Code::Test_rm8_imm8,
    };
    // The part that fits the width, sign-extended as the encoder requires.
    let value = match compare.width.bytes {
        8 | 4 => i64::from(compare.with as i32),
        2 => i64::from(compare.with as i16),
        _ => i64::from(compare.with as i8),
    };
    match register {
        Some(register) => Instruction::with2(code, register, value as i32),
        None => Instruction::with2(code, memory, value as i32),
    }
}

/// Jumps if the comparison's result is `wanted`.
fn jump(
    a: &mut CodeAssembler,
    compare: &Compare,
    wanted: bool,
    to: CodeLabel,
) -> Result<(), IcedError> {
    match (compare.test, compare.width.is_signed(), wanted) {
        (Test::Equal, _, true) | (Test::Bits, _, false) => a.je(to),
        (Test::Equal, _, false) | (Test::Bits, _, true) => a.jne(to),
        (Test::Less, true, true) => a.jl(to),
        (Test::Less, true, false) => a.jge(to),
        (Test::Less, false, true) => a.jb(to),
        (Test::Less, false, false) => a.jae(to),
        (Test::LessOrEqual, true, true) => a.jle(to),
        (Test::LessOrEqual, true, false) => a.jg(to),
        (Test::LessOrEqual, false, true) => a.jbe(to),
        (Test::LessOrEqual, false, false) => a.ja(to),
    }
}
