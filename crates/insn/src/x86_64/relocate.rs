//! Copies of instructions that behave the same at another address.
//!
//! Lengths never depend on the new address, so that a caller may relocate once to learn the size
//! and again when the address is known:
//!
//! | original | copy |
//! | --- | --- |
//! | RIP-relative operand | the same address, by another displacement |
//! | `jcc`, `jmp`, 8 or 32 bits | the same target, 32 bits |
//! | `loop`, `jrcxz`, ... `t` | `loop 1f; jmp 2f; 1: jmp t; 2:` |
//! | `call t` | `push 1f(%rip); jmp t; 1: .quad next` |
//! | `call *x` | `push 1f(%rip); jmp *x; 1: .quad next` |
//! | anything else | itself |
//!
//! `next` is the *original* address behind the call, so a return address never points into a copy:
//! unwinders, `longjmp` and detaching need not know about copies. It is pushed from memory because
//! that is one store of 8 bytes, which `ret` can take from the store buffer, and changes neither
//! registers nor flags.

use iced_x86::{Code, Encoder, FlowControl, Instruction, Mnemonic, OpKind, Register};
use thiserror::Error;

/// Relocated instructions; see [`relocate()`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocated {
    /// The machine code for the new address. It may end with 8 bytes of data
    /// after a jump.
    pub bytes: Vec<u8>,
    /// For each original instruction, in order: its address and the offset of
    /// its copy in `bytes`.
    pub offsets: Vec<(u64, usize)>,
    /// True if control can run off the end of `bytes`. Then the caller must append a jump to the
    /// address after the last original instruction.
    pub falls_through: bool,
}

/// Reason why instructions cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum RelocateError {
    /// The bytes are not an instruction known to the decoder.
    #[error("no known instruction at {at:#x}")]
    Undecodable {
        /// Its address.
        at: u64,
    },
    /// A thread can sleep in the kernel here, and the kernel keeps the address
    /// to restart it.
    #[error("system call at {at:#x}")]
    SystemCall {
        /// Its address.
        at: u64,
    },
    /// `int3`, `ud2`, ...: the trap's handler inspects the instruction's address.
    #[error("trap instruction at {at:#x}")]
    Trap {
        /// Its address.
        at: u64,
    },
    /// `xbegin`, `xabort`, `xend`.
    #[error("transactional memory instruction at {at:#x}")]
    Transaction {
        /// Its address.
        at: u64,
    },
    /// A branch or return to another segment, or with 16-bit operands.
    #[error("far or 16-bit branch at {at:#x}")]
    FarBranch {
        /// Its address.
        at: u64,
    },
    /// It refers to something more than 2 GB away from the new address.
    #[error("instruction at {at:#x} refers to {target:#x}, out of reach from the new place")]
    OutOfReach {
        /// Its address.
        at: u64,
        /// The address that it refers to.
        target: u64,
    },
    /// A call that is not the last instruction of the block: it would return to the original code.
    #[error("call at {at:#x} is not the last instruction of the block")]
    CallInside {
        /// Its address.
        at: u64,
    },
    /// A call through a stack slot that the call itself overwrites, or through
    /// the stack pointer.
    #[error("call at {at:#x} goes through its own return address")]
    CallThroughStack {
        /// Its address.
        at: u64,
    },
    /// The instruction cannot be re-encoded unchanged (an operand relative to a
    /// 32-bit instruction pointer, an encoding that is not known).
    #[error("instruction at {at:#x} cannot be encoded elsewhere")]
    NotEncodable {
        /// Its address.
        at: u64,
    },
}

/// Checks that the instruction can be displaced. If so, [`relocate()`] can fail only because
/// something is out of reach from the new address, or because a call is not the last instruction.
///
/// # Errors
///
/// The reason why it cannot be displaced.
pub fn relocatable(instruction: &Instruction) -> Result<(), RelocateError> {
    kind_is_relocatable(instruction)?;
    copied_length(instruction).map(drop)
}

fn kind_is_relocatable(instruction: &Instruction) -> Result<(), RelocateError> {
    let at = instruction.ip();
    if instruction.is_invalid() {
        return Err(RelocateError::Undecodable { at });
    }
    match instruction.mnemonic() {
        Mnemonic::Syscall
        | Mnemonic::Sysenter
        | Mnemonic::Sysret
        | Mnemonic::Sysexit
        | Mnemonic::Int
        | Mnemonic::Vmcall
        | Mnemonic::Vmmcall => return Err(RelocateError::SystemCall { at }),
        Mnemonic::Int1 | Mnemonic::Int3 | Mnemonic::Into | Mnemonic::Hlt => {
            return Err(RelocateError::Trap { at });
        }
        // To the decoder the last two are like any other instruction.
        Mnemonic::Xbegin | Mnemonic::Xabort | Mnemonic::Xend => {
            return Err(RelocateError::Transaction { at });
        }
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Uiret | Mnemonic::Retf => {
            return Err(RelocateError::FarBranch { at });
        }
        _ => {}
    }
    match instruction.flow_control() {
        FlowControl::Exception | FlowControl::Interrupt => return Err(RelocateError::Trap { at }),
        FlowControl::XbeginXabortXend => return Err(RelocateError::Transaction { at }),
        FlowControl::ConditionalBranch
        | FlowControl::UnconditionalBranch
        | FlowControl::Call
        | FlowControl::IndirectBranch
        | FlowControl::IndirectCall
        | FlowControl::Return => branch_relocatable(instruction)?,
        FlowControl::Next => {}
    }
    if instruction.memory_base() == Register::EIP {
        return Err(RelocateError::NotEncodable { at });
    }
    Ok(())
}

fn branch_relocatable(instruction: &Instruction) -> Result<(), RelocateError> {
    let at = instruction.ip();
    let near = match instruction.code() {
        Code::Call_rel32_64 | Code::Call_rm64 => true,
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 | Code::Jmp_rm64 => true,
        Code::Retnq | Code::Retnq_imm16 => true,
        _ => {
            instruction.flow_control() == FlowControl::ConditionalBranch
                && instruction.op0_kind() == OpKind::NearBranch64
        }
    };
    if !near {
        return Err(RelocateError::FarBranch { at });
    }
    if instruction.code() == Code::Call_rm64 && calls_through_stack(instruction) {
        return Err(RelocateError::CallThroughStack { at });
    }
    Ok(())
}

/// True if pushing the return address first would change the call's target.
fn calls_through_stack(call: &Instruction) -> bool {
    if call.op0_kind() == OpKind::Register {
        return call.op0_register() == Register::RSP;
    }
    if call.memory_base() == Register::ESP {
        return true;
    }
    // The pushed word is at -8(%rsp) and 8 bytes long.
    let displacement = call.memory_displacement64() as i64;
    call.memory_base() == Register::RSP
        && (call.memory_index() != Register::None || (displacement > -16 && displacement < 0))
}

/// Copies `instructions`, which must follow each other in memory, so that they
/// behave the same at `new_address`.
///
/// A branch to an instruction of the block goes to its copy, but a branch to the first one goes to
/// the original: the probe is there and must be hit again. If an instruction faults, the fault is
/// reported at the copy.
///
/// # Errors
///
/// [`RelocateError`] tells which instruction cannot be copied and why.
pub fn relocate(
    instructions: &[Instruction],
    new_address: u64,
) -> Result<Relocated, RelocateError> {
    let mut offsets = Vec::with_capacity(instructions.len());
    let mut bytes = Vec::with_capacity(16 * instructions.len());
    let mut branches = Vec::new();
    for (i, instruction) in instructions.iter().enumerate() {
        kind_is_relocatable(instruction)?;
        let offset = bytes.len();
        offsets.push((instruction.ip(), offset));
        let here = new_address.wrapping_add(offset as u64);
        match instruction.flow_control() {
            // Its target may be a copy whose offset is not known yet.
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                bytes.resize(offset + copied_length(instruction)?, 0);
                branches.push((instruction, offset));
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                if i + 1 != instructions.len() {
                    let at = instruction.ip();
                    return Err(RelocateError::CallInside { at });
                }
                copy_call(&mut bytes, instruction, here)?;
            }
            _ => bytes.extend(encode(instruction, here)?),
        }
    }
    let target_of = |instruction: &Instruction| {
        let target = instruction.near_branch_target();
        let copy = offsets.iter().skip(1).find(|(old, _)| *old == target);
        copy.map_or(target, |(_, offset)| {
            new_address.wrapping_add(*offset as u64)
        })
    };
    for (instruction, offset) in branches {
        let here = new_address.wrapping_add(offset as u64);
        let mut branch = Vec::with_capacity(16);
        copy_branch(&mut branch, instruction, here, target_of(instruction))?;
        bytes[offset..offset + branch.len()].copy_from_slice(&branch);
    }
    let falls_through = instructions.last().is_none_or(|last| {
        !matches!(
            last.flow_control(),
            FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Return
                | FlowControl::Call
                | FlowControl::IndirectCall
        )
    });
    Ok(Relocated {
        bytes,
        offsets,
        falls_through,
    })
}

/// `int3`.
const INT3: u8 = 0xcc;
/// `push 8-byte constant(%rip)`: ff 35 rel32.
const PUSH: usize = 6;
/// That constant, with what aligns it: the thread may have its accesses checked for alignment.
const CONSTANT: usize = 8 + 7;
/// `jmp rel32`: e9 rel32.
const JMP: usize = 5;
/// `jcc rel32`: 0f 8x rel32.
const JCC: usize = 6;
/// `jmp rel8`: eb rel8.
const SHORT_JMP: usize = 2;

/// Returns the length of the instruction's copy, which is the same at any address.
fn copied_length(instruction: &Instruction) -> Result<usize, RelocateError> {
    Ok(match instruction.flow_control() {
        FlowControl::UnconditionalBranch => JMP,
        FlowControl::ConditionalBranch if is_jcc(instruction) => JCC,
        FlowControl::ConditionalBranch => {
            short_branch(instruction, instruction.ip())?.len() + SHORT_JMP + JMP
        }
        FlowControl::Call => PUSH + JMP + CONSTANT,
        FlowControl::IndirectCall => {
            let jump = encode(&jump_for(instruction), instruction.ip())?;
            PUSH + jump.len() + CONSTANT
        }
        _ => encode(instruction, instruction.ip())?.len(),
    })
}

fn is_jcc(instruction: &Instruction) -> bool {
    instruction.is_jcc_short_or_near()
}

fn copy_branch(
    bytes: &mut Vec<u8>,
    instruction: &Instruction,
    here: u64,
    target: u64,
) -> Result<(), RelocateError> {
    let at = instruction.ip();
    if instruction.flow_control() == FlowControl::UnconditionalBranch {
        jump(bytes, at, here, target)
    } else if is_jcc(instruction) {
        let condition = jcc_opcode(instruction);
        let displacement = displacement(at, here, JCC, target)?;
        bytes.extend([0x0f, condition]);
        bytes.extend(displacement.to_le_bytes());
        Ok(())
    } else {
        let short = short_branch(instruction, here)?;
        let over = here.wrapping_add((short.len() + SHORT_JMP) as u64);
        bytes.extend(short);
        bytes.extend([0xeb, JMP as u8]);
        jump(bytes, at, over, target)
    }
}

/// Encodes `loop`, `jrcxz` or the like at `here` so that it jumps over the two bytes that follow:
/// the first instruction of `loop 1f; jmp 2f; 1: jmp target; 2:`.
fn short_branch(instruction: &Instruction, here: u64) -> Result<Vec<u8>, RelocateError> {
    let mut short = *instruction;
    short.set_near_branch64(here.wrapping_add(16));
    let length = encode(&short, here)?.len();
    short.set_near_branch64(here.wrapping_add((length + SHORT_JMP) as u64));
    encode(&short, here)
}

/// Returns the second opcode byte of `jcc rel32`.
fn jcc_opcode(instruction: &Instruction) -> u8 {
    use iced_x86::ConditionCode as C;
    0x80 | match instruction.condition_code() {
        C::o => 0x0,
        C::no => 0x1,
        C::b => 0x2,
        C::ae => 0x3,
        C::e => 0x4,
        C::ne => 0x5,
        C::be => 0x6,
        C::a => 0x7,
        C::s => 0x8,
        C::ns => 0x9,
        C::p => 0xa,
        C::np => 0xb,
        C::l => 0xc,
        C::ge => 0xd,
        C::le => 0xe,
        C::g | C::None => 0xf,
    }
}

fn copy_call(
    bytes: &mut Vec<u8>,
    instruction: &Instruction,
    here: u64,
) -> Result<(), RelocateError> {
    let at = instruction.ip();
    let behind_push = here.wrapping_add(PUSH as u64);
    let tail = if instruction.flow_control() == FlowControl::Call {
        let mut tail = Vec::with_capacity(JMP);
        jump(&mut tail, at, behind_push, instruction.near_branch_target())?;
        tail
    } else {
        encode(&jump_for(instruction), behind_push)?
    };
    // The constant follows the jump.
    let end = behind_push.wrapping_add(tail.len() as u64);
    let before = (end.wrapping_neg() % 8) as usize;
    bytes.extend([0xff, 0x35]);
    bytes.extend(((tail.len() + before) as u32).to_le_bytes());
    bytes.extend(tail);
    bytes.extend(std::iter::repeat_n(INT3, before));
    bytes.extend(instruction.next_ip().to_le_bytes());
    bytes.extend(std::iter::repeat_n(INT3, CONSTANT - 8 - before));
    Ok(())
}

/// Returns the `jmp *x` with the same target as `call *x` once the return address is pushed.
fn jump_for(call: &Instruction) -> Instruction {
    let mut jump = *call;
    jump.set_code(Code::Jmp_rm64);
    if call.op0_kind() == OpKind::Memory && call.memory_base() == Register::RSP {
        jump.set_memory_displacement64(call.memory_displacement64().wrapping_add(8));
        let short = i8::try_from(jump.memory_displacement64() as i64).is_ok();
        jump.set_memory_displ_size(if short { 1 } else { 8 });
    }
    jump
}

fn jump(bytes: &mut Vec<u8>, at: u64, here: u64, target: u64) -> Result<(), RelocateError> {
    let displacement = displacement(at, here, JMP, target)?;
    bytes.push(0xe9);
    bytes.extend(displacement.to_le_bytes());
    Ok(())
}

fn displacement(at: u64, here: u64, length: usize, target: u64) -> Result<i32, RelocateError> {
    let from = here.wrapping_add(length as u64);
    i32::try_from(target.wrapping_sub(from) as i64)
        .map_err(|_| RelocateError::OutOfReach { at, target })
}

/// Encodes an instruction without branch target for `here` and checks that it decodes to the same
/// instruction.
fn encode(instruction: &Instruction, here: u64) -> Result<Vec<u8>, RelocateError> {
    let at = instruction.ip();
    let mut encoder = Encoder::new(64);
    let encoded = encoder.encode(instruction, here);
    if encoded.is_err() && instruction.is_ip_rel_memory_operand() {
        return Err(RelocateError::OutOfReach {
            at,
            target: instruction.ip_rel_memory_address(),
        });
    }
    encoded.map_err(|_| RelocateError::NotEncodable { at })?;
    let bytes = encoder.take_buffer();
    let copy = crate::decode::Code::new(&bytes, here)
        .instruction_at(here, u64::MAX)
        .ok_or(RelocateError::NotEncodable { at })?;
    if copy.len() != bytes.len() || !same(instruction, &copy) {
        return Err(RelocateError::NotEncodable { at });
    }
    Ok(bytes)
}

/// True if two instructions have the same effect at their addresses.
fn same(a: &Instruction, b: &Instruction) -> bool {
    if a.is_ip_rel_memory_operand() && a.ip_rel_memory_address() != b.ip_rel_memory_address() {
        return false;
    }
    let (mut a, mut b) = (*a, *b);
    for instruction in [&mut a, &mut b] {
        instruction.set_ip(0);
        instruction.set_len(0);
        instruction.set_memory_displ_size(0);
    }
    a == b
}
