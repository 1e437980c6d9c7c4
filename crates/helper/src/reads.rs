//! Handlers that only read registers: found by following what their machine code does with the
//! pointer to `struct capriole_regs`.
//!
//! Such a handler reads words of the structure at offsets that are seen in the code, writes none,
//! gives the pointer to nobody, and returns 0. Then the routine that calls it (`READ_ONLY` in
//! `library/hit.S`) need not store the registers that the handler does not read and, by the ABI,
//! preserves, and has to put back only those that a C function may change. For a simple one, which
//! calls no function and leaves r8 to r11 alone, these stay in place as well.
//!
//! The code is interpreted over four values a register, see `Value`. A path ends where it returns.
//! Everything else that is done with a register that may hold the pointer refuses the handler, and
//! so does an instruction that is not understood: compiled without optimisation most handlers are
//! refused, because they keep the pointer on the stack.

use crate::uses::target;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use std::collections::BTreeMap;

/// Number of instructions that are looked at.
const MOST: usize = 4096;
/// Words of `struct capriole_regs`, by number: those that the routine stores for all handlers. ax,
/// cx, dx, si, di, ip, sp.
const STORED: u32 = 0b10_1111_1100_0000_0000;
/// Words that it does not store for simple handlers: r11 to r8.
const STORED_FOR_OTHERS: u32 = 0b11_1100_0000;

/// Handler that only reads registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// It calls nothing, and neither reads nor changes r8 to r11.
    pub simple: bool,
}

/// Value of a register as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    /// The pointer.
    Regs,
    /// Zero, at least in its lower half.
    Zero,
    /// Not derived from the pointer.
    Other,
    /// The pointer on one path and not on another.
    Either,
}
use Value::{Either, Other, Regs, Zero};

impl Value {
    fn may_be_regs(self) -> bool {
        matches!(self, Regs | Either)
    }

    fn join(self, other: Value) -> Value {
        match (self, other) {
            (one, another) if one == another => one,
            (one, another) if one.may_be_regs() || another.may_be_regs() => Either,
            _ => Other,
        }
    }
}

/// Values of the general registers, by their numbers.
type State = [Value; 16];

/// Registers that a called function may change, those of its arguments among them.
const CHANGED_BY_CALLS: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

/// Instructions that read no register but those that they name.
const EXPLICIT: [Mnemonic; 21] = [
    Mnemonic::Mov,
    Mnemonic::Movzx,
    Mnemonic::Movsx,
    Mnemonic::Movsxd,
    Mnemonic::Add,
    Mnemonic::Adc,
    Mnemonic::Sub,
    Mnemonic::Sbb,
    Mnemonic::And,
    Mnemonic::Or,
    Mnemonic::Xor,
    Mnemonic::Cmp,
    Mnemonic::Test,
    Mnemonic::Cmove,
    Mnemonic::Cmovne,
    Mnemonic::Cmova,
    Mnemonic::Cmovae,
    Mnemonic::Cmovb,
    Mnemonic::Cmovbe,
    Mnemonic::Push,
    Mnemonic::Nop,
];

/// Returns the handler at `address` if it only reads registers. `read` copies memory, and returns
/// the number of bytes.
pub fn reader(address: u64, read: impl Fn(u64, &mut [u8]) -> usize) -> Option<Reader> {
    let mut simple = true;
    let mut state = [Other; 16];
    state[Register::RSI.number()] = Regs;
    let mut states = BTreeMap::from([(address, state)]);
    let mut todo = vec![address];
    let mut info = InstructionInfoFactory::new();
    let word = |at: u64| {
        let mut bytes = [0; 8];
        (read(at, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    };
    while let Some(at) = todo.pop() {
        let mut bytes = [0; 15];
        let len = read(at, &mut bytes);
        let instruction =
            Decoder::with_ip(64, &bytes[..len.min(15)], at, DecoderOptions::NONE).decode();
        let mut state = states[&at];
        if instruction.is_invalid() || states.len() > MOST {
            return None;
        }
        simple &= execute(&instruction, &mut info, &mut state)?;
        for at in successors(&instruction, &state, word)?
            .into_iter()
            .flatten()
        {
            let joined = match states.get(&at) {
                Some(before) => std::array::from_fn(|n| before[n].join(state[n])),
                None => state,
            };
            if states.insert(at, joined) != Some(joined) {
                todo.push(at);
            }
        }
    }
    Some(Reader { simple })
}

/// Returns where the program goes on after an instruction; `None` if the handler is refused.
fn successors(
    instruction: &Instruction,
    state: &State,
    word: impl Fn(u64) -> Option<u64>,
) -> Option<[Option<u64>; 2]> {
    let behind = Some(instruction.next_ip());
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => Some([behind, None]),
        FlowControl::Return => (state[0] == Zero).then_some([None, None]),
        FlowControl::Exception => Some([None, None]),
        FlowControl::ConditionalBranch => Some([behind, Some(instruction.near_branch_target())]),
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
            Some([Some(target(instruction, word)?), None])
        }
        FlowControl::Interrupt | FlowControl::XbeginXabortXend => None,
    }
}

/// Changes the values of registers as an instruction does; `None` if the handler is refused. Returns
/// true if the instruction is one of a simple handler.
fn execute(
    instruction: &Instruction,
    info: &mut InstructionInfoFactory,
    state: &mut State,
) -> Option<bool> {
    let mut simple = true;
    if matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    ) {
        // The kernel and functions may do anything with an argument.
        for register in CHANGED_BY_CALLS {
            if state[register.number()].may_be_regs() {
                return None;
            }
            state[register.number()] = Other;
        }
        return Some(false);
    }
    let info = info.info(instruction);
    let value = |register: Register| match register.is_gpr() {
        true => state[register.full_register().number()],
        false => Other,
    };
    let touched = (info.used_registers().iter())
        .any(|used| reads(used.access()) && value(used.register()).may_be_regs());
    if touched && !EXPLICIT.contains(&instruction.mnemonic()) {
        return None;
    }
    for memory in info.used_memory() {
        if value(memory.index()).may_be_regs() {
            return None;
        }
        match value(memory.base()) {
            Regs => {
                let plain = memory.index() == Register::None
                    && memory.access() == OpAccess::Read
                    && !matches!(memory.segment(), Register::FS | Register::GS);
                let first = memory.displacement();
                let last = first.checked_add(memory.memory_size().size().max(1) as u64 - 1)?;
                if !plain || last >= 18 * 8 {
                    return None;
                }
                for word in first / 8..=last / 8 {
                    simple &= STORED >> word & 1 != 0;
                    if (STORED | STORED_FOR_OTHERS) >> word & 1 == 0 {
                        return None;
                    }
                }
            }
            Either => return None,
            Zero | Other => {}
        }
    }
    let result = result(instruction, &value);
    for operand in 0..instruction.op_count() {
        let register = instruction.op_register(operand);
        let is_value = instruction.op_kind(operand) == OpKind::Register
            && reads(info.op_access(operand))
            && value(register).may_be_regs();
        // Comparing a pointer gives it to nobody.
        let harmless = matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
            || result == Regs && is_copy(instruction);
        if is_value && !harmless {
            return None;
        }
    }
    let mut written = Vec::new();
    for used in info.used_registers() {
        let register = used.register();
        let access = used.access();
        if !register.is_gpr() || matches!(access, OpAccess::Read | OpAccess::CondRead) {
            continue;
        }
        let whole = register.size() >= 4;
        let conditional = matches!(access, OpAccess::CondWrite | OpAccess::ReadCondWrite);
        if value(register).may_be_regs() && (!whole || conditional) {
            return None;
        }
        simple &= !(8..12).contains(&register.full_register().number());
        written.push((register, if conditional { Other } else { result }));
    }
    for (register, value) in written {
        // Only the named result is one that is known.
        let named = instruction.op_kind(0) == OpKind::Register
            && instruction.op0_register().full_register() == register.full_register();
        state[register.full_register().number()] = if named { value } else { Other };
    }
    Some(simple)
}

fn reads(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess
    )
}

/// True for a copy of one whole register to another.
fn is_copy(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
}

/// Returns the value that an instruction writes into the register that is its first operand.
fn result(instruction: &Instruction, value: &impl Fn(Register) -> Value) -> Value {
    let same = instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register();
    let wide = instruction.op0_register().size() >= 4;
    match instruction.mnemonic() {
        Mnemonic::Xor | Mnemonic::Sub if same && wide => Zero,
        Mnemonic::Mov if wide => match instruction.op1_kind() {
            OpKind::Immediate32 if instruction.immediate32() == 0 => Zero,
            OpKind::Immediate32to64 if instruction.immediate32to64() == 0 => Zero,
            OpKind::Register => match value(instruction.op1_register()) {
                Regs if is_copy(instruction) => Regs,
                Zero => Zero,
                _ => Other,
            },
            _ => Other,
        },
        _ => Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::IcedError;
    use iced_x86::code_asm::*;

    const START: u64 = 0x40_0000;
    const SIMPLE: Option<Reader> = Some(Reader { simple: true });
    const PLAIN: Option<Reader> = Some(Reader { simple: false });

    /// Returns what is found of a handler that is assembled by `code`.
    #[track_caller]
    fn found(code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Option<Reader> {
        let mut a = CodeAssembler::new(64).unwrap();
        code(&mut a).unwrap();
        let bytes = a.assemble(START).unwrap();
        reader(START, |at, to| {
            let rest = at
                .checked_sub(START)
                .and_then(|from| bytes.get(from as usize..))
                .unwrap_or(&[]);
            let len = rest.len().min(to.len());
            to[..len].copy_from_slice(&rest[..len]);
            len
        })
    }

    /// A handler that does this, and returns 0.
    #[track_caller]
    fn doing(code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Option<Reader> {
        found(|a| {
            code(a)?;
            a.xor(eax, eax)?;
            a.ret()
        })
    }

    #[test]
    fn handlers_that_read() {
        assert_eq!(doing(|_| Ok(())), SIMPLE);
        // regs->di, regs->sp, regs->ip, regs->ax.
        for offset in [14, 17, 15, 10] {
            assert_eq!(doing(|a| a.mov(rax, qword_ptr(rsi + 8 * offset))), SIMPLE);
        }
        assert_eq!(doing(|a| a.add(rdx, qword_ptr(rsi + 8 * 11))), SIMPLE);
        assert_eq!(doing(|a| a.movzx(eax, byte_ptr(rsi + 8 * 11 + 7))), SIMPLE);
        // regs->r8, and another register that changes.
        assert_eq!(doing(|a| a.mov(rax, qword_ptr(rsi + 8 * 9))), PLAIN);
        assert_eq!(doing(|a| a.mov(r11, qword_ptr(rdi))), PLAIN);
        assert_eq!(doing(|a| a.mov(r9d, ecx)), PLAIN);
        // A copy, kept while another function is called.
        let kept = |a: &mut CodeAssembler| {
            let mut function = a.create_label();
            a.push(rbx)?;
            a.mov(rbx, rsi)?;
            a.xor(esi, esi)?;
            a.call(function)?;
            a.mov(rdi, qword_ptr(rbx + 8 * 14))?;
            a.pop(rbx)?;
            a.xor(eax, eax)?;
            a.ret()?;
            a.set_label(&mut function)?;
            a.ret()
        };
        assert_eq!(found(kept), PLAIN);
        // Zero in another register, and compared.
        let compared = |a: &mut CodeAssembler| {
            let mut none = a.create_label();
            a.xor(ecx, ecx)?;
            a.test(rsi, rsi)?;
            a.je(none)?;
            a.mov(rdx, qword_ptr(rsi + 8 * 14))?;
            a.set_label(&mut none)?;
            a.mov(eax, ecx)?;
            a.ret()
        };
        assert_eq!(found(compared), SIMPLE);
        // A loop.
        let repeated = |a: &mut CodeAssembler| {
            let mut again = a.create_label();
            a.mov(ecx, 5)?;
            a.set_label(&mut again)?;
            a.add(rdx, qword_ptr(rsi + 8 * 14))?;
            a.sub(ecx, 1)?;
            a.jne(again)?;
            a.xor(eax, eax)?;
            a.ret()
        };
        assert_eq!(found(repeated), SIMPLE);
    }

    #[test]
    fn registers_that_are_not_stored() {
        // r15, r12, bp, bx, flags; before and behind the structure; across its words.
        for offset in [0, 24, 32, 40, 16 * 8, -8, 18 * 8, 5 * 8 + 4] {
            assert_eq!(
                doing(|a| a.mov(rax, qword_ptr(rsi + offset))),
                None,
                "{offset}"
            );
        }
        assert_eq!(doing(|a| a.mov(rax, qword_ptr(rsi + rcx * 8 + 80))), None);
        assert_eq!(doing(|a| a.mov(rax, qword_ptr(rcx + rsi * 1))), None);
        assert_eq!(doing(|a| a.bt(qword_ptr(rsi + 112), rcx)), None);
    }

    #[test]
    fn handlers_that_write() {
        assert_eq!(doing(|a| a.mov(qword_ptr(rsi + 112), rax)), None);
        assert_eq!(doing(|a| a.add(qword_ptr(rsi + 112), 1)), None);
        assert_eq!(doing(|a| a.xchg(qword_ptr(rsi + 112), rax)), None);
        assert_eq!(doing(|a| a.mov(byte_ptr(rsi + 88), 1)), None);
        assert_eq!(
            doing(|a| {
                a.mov(rdx, rsi)?;
                a.mov(dword_ptr(rdx + 88), 1)
            }),
            None
        );
    }

    #[test]
    fn pointers_that_go_elsewhere() {
        assert_eq!(doing(|a| a.mov(qword_ptr(rsp - 8), rsi)), None);
        assert_eq!(doing(|a| a.push(rsi)), None);
        assert_eq!(doing(|a| a.lea(rax, qword_ptr(rsi + 112))), None);
        assert_eq!(doing(|a| a.add(rdx, rsi)), None);
        assert_eq!(doing(|a| a.xchg(rdx, rsi)), None);
        assert_eq!(doing(|a| a.cmove(rdx, rsi)), None);
        assert_eq!(doing(|a| a.mov(edx, esi)), None);
        assert_eq!(doing(|a| a.mov(rsp, rsi)), None);
        assert_eq!(
            doing(|a| {
                a.mov(rax, rsi)?;
                a.mul(rcx)
            }),
            None
        );
        // An argument of a function, and of the kernel.
        let given = |a: &mut CodeAssembler| {
            let mut function = a.create_label();
            a.call(function)?;
            a.xor(eax, eax)?;
            a.ret()?;
            a.set_label(&mut function)?;
            a.ret()
        };
        assert_eq!(found(given), None);
        assert_eq!(doing(|a| a.syscall()), None);
        // On one path only.
        let sometimes = |a: &mut CodeAssembler| {
            let mut other = a.create_label();
            a.mov(rdx, rdi)?;
            a.test(rcx, rcx)?;
            a.je(other)?;
            a.mov(rdx, rsi)?;
            a.set_label(&mut other)?;
            a.mov(rcx, qword_ptr(rdx + 112))?;
            a.xor(eax, eax)?;
            a.ret()
        };
        assert_eq!(found(sometimes), None);
        // In the second round of a loop.
        let later = |a: &mut CodeAssembler| {
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            a.mov(qword_ptr(rdx), 1)?;
            a.mov(rdx, rsi)?;
            a.sub(ecx, 1)?;
            a.jne(again)?;
            a.xor(eax, eax)?;
            a.ret()
        };
        assert_eq!(found(later), None);
    }

    #[test]
    fn handlers_that_may_return_something_else() {
        assert_eq!(found(|a| a.ret()), None);
        assert_eq!(
            found(|a| {
                a.mov(eax, 1)?;
                a.ret()
            }),
            None
        );
        assert_eq!(
            found(|a| {
                a.xor(eax, eax)?;
                a.test(rcx, rcx)?;
                a.sete(al)?;
                a.ret()
            }),
            None
        );
        let sometimes = |a: &mut CodeAssembler| {
            let mut zero = a.create_label();
            a.xor(eax, eax)?;
            a.test(rcx, rcx)?;
            a.je(zero)?;
            a.mov(eax, 1)?;
            a.set_label(&mut zero)?;
            a.ret()
        };
        assert_eq!(found(sometimes), None);
        // Nothing that is mapped follows.
        assert_eq!(found(|a| a.nop()), None);
        assert_eq!(found(|a| a.jmp(rax)), None);
    }
}
