//! Search of an object's code for system calls that may have one of some numbers.
//!
//! A `syscall` instruction takes its number from eax. The search follows the possible values
//! back along all paths through the function that lead there, from register to register:
//!
//! ```text
//!  mov  $202, %r13d
//!  ...
//!  mov  %r13d, %eax        always 202
//!  syscall
//! ```
//!
//! If a path does not end at a constant (`syscall(2)` of the C library takes the number as an
//! argument), any number is possible. An indirect jump into the middle of such a path is not
//! seen; compilers use such jumps only to reach places that nothing else falls or jumps to, or
//! that are reached by a comparison as well.

use super::{function_around, instructions};
use capriole_insn::{Code, Extent};
use capriole_object::Object;
use iced_x86::{
    Code as Op, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use std::collections::{BTreeSet, HashMap};

/// Bytes of a `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Distance before a call outside known functions in which the number may be loaded, bytes.
const NEAR: usize = 40;
/// Number of instructions examined on the paths back, at most.
const MOST: usize = 4096;
/// Registers in which calls return values (System V ABI).
const RESULTS: [Register; 2] = [Register::RAX, Register::RDX];

/// A `syscall` instruction.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Run-time address.
    pub address: u64,
    /// The function around it; `None` if no known function contains it.
    pub function: Option<Extent>,
    /// Its number, if only one is possible.
    pub number: Option<u32>,
    /// The straight-line code before it, last instruction first.
    pub before: Vec<Instruction>,
}

impl Call {
    /// A call that may be a chance sequence of bytes, or code outside known functions.
    fn unknown(address: u64) -> Call {
        Call {
            address,
            function: None,
            number: None,
            before: Vec::new(),
        }
    }
}

/// A function's code.
struct Function {
    all: Vec<Instruction>,
    /// For each instruction, those that may be executed right before it.
    before: Vec<Vec<usize>>,
}

/// The `syscall` instructions of an object.
#[derive(Debug, Default)]
pub(super) struct Calls {
    all: Vec<(Call, Numbers)>,
}

/// Numbers that a call may have.
#[derive(Debug)]
enum Numbers {
    Any,
    These(BTreeSet<u32>),
    /// It is not known whether this is an instruction; the bytes before it.
    Near(Vec<u8>),
}

impl Calls {
    /// Finds all system calls of an object.
    pub(super) fn of(object: &Object) -> Calls {
        let mut calls = Calls::default();
        let mut functions: HashMap<u64, Function> = HashMap::new();
        for text in object.file().text().unwrap_or_default() {
            let code = Code::new(&text.bytes, object.run_time(text.address));
            for at in memchr::memmem::find_iter(&text.bytes, &SYSCALL) {
                let address = code.address + at as u64;
                if !object.is_mapped(address) {
                    continue;
                }
                let extent = function_around(object, address);
                let function = extent.map(|extent| {
                    let new = || Function::new(&code, extent);
                    &*functions.entry(extent.start).or_insert_with(new)
                });
                let function = function.filter(|f| f.end() > address);
                let near = || &text.bytes[at.saturating_sub(NEAR)..at];
                calls.all.extend(match function {
                    Some(function) => function.call(address, extent),
                    None => Some((Call::unknown(address), Numbers::Near(near().to_vec()))),
                });
            }
        }
        calls
    }

    /// Returns the calls that may have one of the numbers `wanted`.
    pub(super) fn with(&self, wanted: &[u32]) -> impl Iterator<Item = &Call> {
        let may_be = move |numbers: &Numbers| match numbers {
            Numbers::Any => true,
            Numbers::These(numbers) => wanted.iter().any(|number| numbers.contains(number)),
            Numbers::Near(bytes) => loads(bytes, wanted),
        };
        let all = self.all.iter();
        all.filter(move |(_, numbers)| may_be(numbers))
            .map(|(call, _)| call)
    }
}

/// `__X32_SYSCALL_BIT` (asm/unistd.h).
const X32_SYSCALL_BIT: u32 = 0x4000_0000;

/// True if these bytes load one of the numbers.
fn loads(bytes: &[u8], wanted: &[u32]) -> bool {
    const MOV_EAX: u8 = 0xb8;
    let load = |window: &[u8]| {
        let number = u32::from_le_bytes([window[1], window[2], window[3], window[4]]);
        window[0] == MOV_EAX && wanted.contains(&number)
    };
    bytes.windows(5).any(load)
}

/// Returns the number that an instruction puts into a register regardless of the register's
/// previous value.
pub(super) fn constant(instruction: &Instruction) -> Option<u64> {
    match instruction.code() {
        Op::Mov_r32_imm32 | Op::Mov_rm32_imm32 => Some(u64::from(instruction.immediate32())),
        Op::Mov_rm64_imm32 | Op::Mov_r64_imm64 => Some(instruction.immediate(1)),
        Op::Xor_r32_rm32 | Op::Xor_rm32_r32 | Op::Xor_rm64_r64 | Op::Xor_r64_rm64
            if instruction.op1_kind() == OpKind::Register
                && instruction.op0_register() == instruction.op1_register() =>
        {
            Some(0)
        }
        _ => None,
    }
}

/// Returns the register that an instruction copies, at least its lower half, to another one.
pub(super) fn copied(instruction: &Instruction) -> Option<Register> {
    let copies = matches!(
        instruction.code(),
        Op::Mov_r32_rm32 | Op::Mov_rm32_r32 | Op::Mov_r64_rm64 | Op::Mov_rm64_r64
    );
    let register = copies && instruction.op1_kind() == OpKind::Register;
    register.then(|| instruction.op1_register().full_register())
}

/// Returns the memory location from which an instruction loads all of a register's lower half:
/// base register and offset.
pub(super) fn loaded(instruction: &Instruction) -> Option<(Register, i32)> {
    let loads = matches!(instruction.code(), Op::Mov_r32_rm32 | Op::Mov_r64_rm64)
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None;
    let base = instruction.memory_base();
    let offset = instruction.memory_displacement64() as i64;
    let offset = i32::try_from(offset).ok()?;
    (loads && base.is_gpr64()).then_some((base, offset))
}

/// True if an instruction changes `register` (a 64-bit one) or a part of it.
pub(super) fn changes(instruction: &Instruction, register: Register) -> bool {
    match instruction.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall
            if instruction.mnemonic() == Mnemonic::Syscall =>
        {
            matches!(register, Register::RAX | Register::RCX | Register::R11)
        }
        // No code reads other registers behind a call, unless the call is known to preserve them or
        // never returns.
        FlowControl::Call | FlowControl::IndirectCall => RESULTS.contains(&register),
        _ => {
            let mut factory = InstructionInfoFactory::new();
            let used = factory.info(instruction).used_registers().iter();
            used.filter(|u| u.register().full_register() == register)
                .any(|u| !matches!(u.access(), OpAccess::Read | OpAccess::CondRead))
        }
    }
}

impl Function {
    fn new(code: &Code<'_>, extent: Extent) -> Function {
        let all: Vec<_> = instructions(code, extent.start, extent.end).collect();
        let mut before = vec![Vec::new(); all.len()];
        let index_of = |address| all.binary_search_by_key(&address, Instruction::ip).ok();
        for (index, instruction) in all.iter().enumerate() {
            let flow = instruction.flow_control();
            let jumps = matches!(
                flow,
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            );
            if jumps && let Some(to) = index_of(instruction.near_branch_target()) {
                before[to].push(index);
            }
            let ends = matches!(
                flow,
                FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Return
                    | FlowControl::Exception
            );
            if !ends && let Some(next) = before.get_mut(index + 1) {
                next.push(index);
            }
        }
        // Unreachable padding is no predecessor.
        for index in 1..all.len() {
            let is_padding = |at: &usize| all[*at].mnemonic() == Mnemonic::Nop;
            let led_to = |before: &[Vec<usize>], at: &usize| *at == 0 || !before[*at].is_empty();
            let kept = before[index].iter().copied();
            let kept = kept.filter(|at| !is_padding(at) || led_to(&before, at));
            before[index] = kept.collect();
        }
        Function { all, before }
    }

    /// Returns the address behind the last instruction that could be decoded.
    fn end(&self) -> u64 {
        self.all.last().map_or(0, Instruction::next_ip)
    }

    /// Returns the system call at an address, unless that is in the middle of another instruction.
    fn call(&self, address: u64, extent: Option<Extent>) -> Option<(Call, Numbers)> {
        let index = self.all.binary_search_by_key(&address, |i| i.ip()).ok()?;
        if self.all[index].mnemonic() != Mnemonic::Syscall {
            return None;
        }
        // The kernel reads the lower half, in which one bit selects the table.
        let plain = |number: u64| number as u32 & !X32_SYSCALL_BIT;
        let numbers = self.values(index, Register::RAX);
        let numbers = numbers.map(|all| all.into_iter().map(plain).collect::<BTreeSet<_>>());
        let only = numbers.as_ref().filter(|numbers| numbers.len() == 1);
        let call = Call {
            address,
            function: extent,
            number: only.and_then(BTreeSet::first).copied(),
            before: self.straight(index),
        };
        Some((call, numbers.map_or(Numbers::Any, Numbers::These)))
    }

    /// Returns the constants that a register can hold at an instruction, if they are all known.
    fn values(&self, at: usize, register: Register) -> Option<BTreeSet<u64>> {
        let mut values = BTreeSet::new();
        let mut seen = BTreeSet::from([(at, register)]);
        let mut todo = vec![(at, register)];
        while let Some((at, register)) = todo.pop() {
            if at == 0 || self.before[at].is_empty() || seen.len() > MOST {
                return None;
            }
            for &index in &self.before[at] {
                let instruction = &self.all[index];
                let mut wanted = register;
                if self.is_zero_between(index, at, register) {
                    values.insert(0);
                    continue;
                }
                // Nobody takes the result of a call for the number of another: this is a loop around a call
                // that does not return, as the end of a thread is.
                if instruction.mnemonic() == Mnemonic::Syscall && register == Register::RAX {
                    continue;
                }
                if changes(instruction, register) {
                    if let Some(value) = constant(instruction).or_else(|| self.low_byte(index)) {
                        values.insert(value);
                        continue;
                    }
                    wanted = copied(instruction)?;
                }
                if seen.insert((index, wanted)) {
                    todo.push((index, wanted));
                }
            }
        }
        Some(values)
    }

    /// True if a conditional jump leads to `to` only when a register is zero:
    /// `test %rax, %rax; je to`.
    fn is_zero_between(&self, jump: usize, to: usize, register: Register) -> bool {
        let taken = match self.all[jump].condition_code() {
            ConditionCode::e => true,
            ConditionCode::ne => false,
            _ => return false,
        };
        let leads_there = self.all[jump].near_branch_target() == self.all[to].ip();
        let Some(test) = jump.checked_sub(1).map(|at| &self.all[at]) else {
            return false;
        };
        let tests = matches!(test.code(), Op::Test_rm32_r32 | Op::Test_rm64_r64)
            && test.op0_kind() == OpKind::Register
            && test.op0_register() == test.op1_register()
            && test.op0_register().full_register() == register;
        let jumps = self.all[jump].flow_control() == FlowControl::ConditionalBranch;
        // Both outcomes lead there if the jump's target is the next instruction.
        let next = jump + 1 == to;
        tests
            && jumps
            && self.before[jump] == [jump - 1]
            && taken == leads_there
            && leads_there != next
    }

    /// Returns the number that an instruction produces by loading the low byte of a register that
    /// has just been cleared, as in `xor %eax, %eax; mov $56, %al`.
    fn low_byte(&self, at: usize) -> Option<u64> {
        let (cleared, instruction) = (self.all.get(at.checked_sub(1)?)?, &self.all[at]);
        let register = |i: &Instruction| i.op0_register().full_register();
        let low = matches!(instruction.code(), Op::Mov_r8_imm8 | Op::Mov_rm8_imm8)
            && instruction.op0_register() as usize <= Register::BL as usize;
        let fits = low
            && self.before[at] == [at - 1]
            && constant(cleared) == Some(0)
            && register(cleared) == register(instruction);
        fits.then(|| u64::from(instruction.immediate8()))
    }

    /// Returns the instructions that always run before this one, and that it always follows; the
    /// nearest first.
    fn straight(&self, at: usize) -> Vec<Instruction> {
        let comes_from_above = |at: &usize| *at > 0 && self.before[*at] == [*at - 1];
        let falls = |at: &usize| self.all[*at].flow_control() == FlowControl::Next;
        (1..=at)
            .rev()
            .take_while(comes_from_above)
            .map(|at| at - 1)
            .take_while(falls)
            .map(|at| self.all[at])
            .collect()
    }
}
