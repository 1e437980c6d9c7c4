//! Descriptions of jumps, calls and returns, which the library carries out itself at probes with
//! post-handlers: `library/branch.c` draws them.
//!
//! A copy of such an instruction leaves the detour, so nothing can be called behind it. The library
//! does not decode; it gets the words of [`Branch::words`].

use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind,
    Register,
};
use thiserror::Error;

/// Number of "no register".
const NO_REGISTER: u64 = 16;

/// The effect of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Jump = 1,
    Call = 2,
    Return = 3,
}

/// Location of the address that a branch leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    /// In the instruction.
    Direct = 0,
    Register = 1,
    Memory = 2,
}

/// Numbers of conditions behind those of machine code.
const ALWAYS: u64 = 16;
const COUNTER_IS_ZERO: u64 = 17;
const LOOP: u64 = 18;
const LOOP_EQUAL: u64 = 19;
const LOOP_NOT_EQUAL: u64 = 20;

/// A jump, call or return, in numbers. Registers have those of machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    kind: Kind,
    condition: u64,
    operand: Operand,
    base: u64,
    index: u64,
    scale: u64,
    /// 1: fs, 2: gs.
    segment: u64,
    /// The bits of an address, or of the counter, that count.
    mask: u64,
    /// The target; of a memory operand the displacement; of a return the number of bytes that it
    /// takes off the stack besides.
    number: u64,
}

/// Reason why an instruction has no post-handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoPost {
    /// No instruction is known there.
    #[error("no known instruction is there")]
    Unknown,
    /// A system call.
    #[error("a system call is there")]
    SystemCall,
    /// `int3`, `int`, `ud2` and the like.
    #[error("an interrupt is there")]
    Interrupt,
    /// `xbegin`, `xabort`, `xend`: a transaction may go on elsewhere later.
    #[error("an instruction of transactional memory is there")]
    Transaction,
    /// A jump, call or return by way of another code segment, `iret`, `retf` and the like.
    #[error("a jump, call or return to another code segment is there")]
    Far,
    /// An operand of 16 bits: processors of different makers do different things.
    #[error("a jump, call or return with 16 bits is there")]
    Short,
    /// The return address would not be on the shadow stack.
    #[error(
        "a jump, call or return is there, and the program runs with a shadow stack; \
         its pre-handler sees the same registers"
    )]
    ShadowStack,
}

impl Branch {
    /// Describes an instruction with these bytes. Returns `None` if the next one always follows.
    pub fn of(instruction: &Instruction, bytes: &[u8]) -> Result<Option<Branch>, NoPost> {
        let kind = match instruction.flow_control() {
            _ if instruction.is_invalid() => return Err(NoPost::Unknown),
            FlowControl::Next => return Ok(None),
            FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::IndirectBranch => Kind::Jump,
            FlowControl::Call | FlowControl::IndirectCall => Kind::Call,
            FlowControl::Return => Kind::Return,
            FlowControl::Interrupt | FlowControl::Exception => return Err(NoPost::Interrupt),
            FlowControl::XbeginXabortXend => return Err(NoPost::Transaction),
        };
        if is_system_call(instruction) {
            return Err(NoPost::SystemCall);
        }
        if is_short(instruction, bytes) {
            return Err(NoPost::Short);
        }
        let mut branch = Branch {
            kind,
            condition: ALWAYS,
            operand: Operand::Direct,
            base: NO_REGISTER,
            index: NO_REGISTER,
            scale: 1,
            segment: 0,
            mask: u64::MAX,
            number: 0,
        };
        match instruction.code() {
            Code::Retnq => {}
            Code::Retnq_imm16 => branch.number = instruction.immediate16().into(),
            Code::Jmp_rm64 | Code::Call_rm64 => branch.indirect(instruction)?,
            _ if instruction.op0_kind() == OpKind::NearBranch64 => {
                branch.number = instruction.near_branch_target();
                if instruction.flow_control() == FlowControl::ConditionalBranch {
                    branch.conditional(instruction)?;
                }
            }
            _ => return Err(NoPost::Far),
        }
        Ok(Some(branch))
    }

    fn indirect(&mut self, instruction: &Instruction) -> Result<(), NoPost> {
        if instruction.op0_kind() == OpKind::Register {
            self.operand = Operand::Register;
            self.base = number(instruction.op0_register())?;
            return Ok(());
        }
        self.operand = Operand::Memory;
        self.number = instruction.memory_displacement64();
        self.segment = match instruction.memory_segment() {
            Register::FS => 1,
            Register::GS => 2,
            _ => 0,
        };
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        // Relative to the instruction: the displacement is the address.
        if base == Register::EIP {
            return Err(NoPost::Unknown);
        }
        if base != Register::RIP {
            self.base = number(base)?;
        }
        self.index = number(index)?;
        self.scale = instruction.memory_index_scale().into();
        if base.is_gpr32() || index.is_gpr32() || instruction.memory_displ_size() == 4 {
            self.mask = u32::MAX.into();
        }
        Ok(())
    }

    fn conditional(&mut self, instruction: &Instruction) -> Result<(), NoPost> {
        self.condition = match instruction.code() {
            Code::Jecxz_rel8_64 | Code::Jrcxz_rel8_64 => COUNTER_IS_ZERO,
            Code::Loop_rel8_64_ECX | Code::Loop_rel8_64_RCX => LOOP,
            Code::Loope_rel8_64_ECX | Code::Loope_rel8_64_RCX => LOOP_EQUAL,
            Code::Loopne_rel8_64_ECX | Code::Loopne_rel8_64_RCX => LOOP_NOT_EQUAL,
            _ => match instruction.condition_code() {
                ConditionCode::o => 0,
                ConditionCode::no => 1,
                ConditionCode::b => 2,
                ConditionCode::ae => 3,
                ConditionCode::e => 4,
                ConditionCode::ne => 5,
                ConditionCode::be => 6,
                ConditionCode::a => 7,
                ConditionCode::s => 8,
                ConditionCode::ns => 9,
                ConditionCode::p => 10,
                ConditionCode::np => 11,
                ConditionCode::l => 12,
                ConditionCode::ge => 13,
                ConditionCode::le => 14,
                ConditionCode::g => 15,
                ConditionCode::None => return Err(NoPost::Unknown),
            },
        };
        if matches!(
            instruction.code(),
            Code::Jecxz_rel8_64
                | Code::Loop_rel8_64_ECX
                | Code::Loope_rel8_64_ECX
                | Code::Loopne_rel8_64_ECX
        ) {
            self.mask = u32::MAX.into();
        }
        Ok(())
    }

    /// The words of the description, in the order of `struct branch` of the library.
    pub fn words(&self) -> [u64; 9] {
        [
            self.kind as u64,
            self.condition,
            self.operand as u64,
            self.base,
            self.index,
            self.scale,
            self.segment,
            self.mask,
            self.number,
        ]
    }
}

fn is_system_call(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Syscall | M::Sysenter | M::Sysret | M::Sysexit | M::Vmcall | M::Vmmcall
    )
}

/// True if a branch has a prefix for operands of 16 bits that counts, on processors of any maker.
fn is_short(instruction: &Instruction, bytes: &[u8]) -> bool {
    let prefixes = bytes.iter().take_while(|byte| {
        let legacy = [
            0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3,
        ];
        legacy.contains(*byte)
    });
    let prefixes = prefixes.count();
    let wide = bytes.get(prefixes).is_some_and(|byte| byte & 0xf8 == 0x48);
    let has_prefix = bytes[..prefixes].contains(&0x66);
    // What the decoder makes of it for processors that heed the prefix.
    let mut decoder = Decoder::with_ip(64, bytes, instruction.ip(), DecoderOptions::AMD);
    let narrow = |op| matches!(op, OpKind::NearBranch16 | OpKind::NearBranch32);
    has_prefix && !wide || narrow(decoder.decode().op0_kind())
}

fn number(register: Register) -> Result<u64, NoPost> {
    match register {
        Register::None => Ok(NO_REGISTER),
        _ if register.is_gpr64() || register.is_gpr32() => Ok(register.number() as u64),
        _ => Err(NoPost::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Result<Option<[u64; 9]>, NoPost> {
        let mut decoder = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE);
        let described = Branch::of(&decoder.decode(), bytes)?;
        Ok(described.map(|branch| branch.words()))
    }

    const ALL: u64 = u64::MAX;
    const LOW: u64 = u32::MAX as u64;

    #[test]
    fn branches_are_described() {
        let kinds: [(&[u8], [u64; 9]); 13] = [
            // jmp +0x10
            (&[0xeb, 0x10], [1, 16, 0, 16, 16, 1, 0, ALL, 0x1012]),
            // jle -2
            (&[0x7e, 0xfe], [1, 14, 0, 16, 16, 1, 0, ALL, 0x1000]),
            // jb +0x100, 32 bits, with a hint
            (
                &[0x2e, 0x0f, 0x82, 0, 1, 0, 0],
                [1, 2, 0, 16, 16, 1, 0, ALL, 0x1107],
            ),
            // jecxz, loopne
            (&[0x67, 0xe3, 0], [1, 17, 0, 16, 16, 1, 0, LOW, 0x1003]),
            (&[0xe0, 0], [1, 20, 0, 16, 16, 1, 0, ALL, 0x1002]),
            // call +0, and as it is in calls of __tls_get_addr
            (&[0xe8, 0, 0, 0, 0], [2, 16, 0, 16, 16, 1, 0, ALL, 0x1005]),
            (
                &[0x66, 0x66, 0x48, 0xe8, 0, 0, 0, 0],
                [2, 16, 0, 16, 16, 1, 0, ALL, 0x1008],
            ),
            // call *%r12, with notrack
            (&[0x3e, 0x41, 0xff, 0xd4], [2, 16, 1, 12, 16, 1, 0, ALL, 0]),
            // jmp *-8(%rsp,%rbx,4)
            (
                &[0xff, 0x64, 0x9c, 0xf8],
                [1, 16, 2, 4, 3, 4, 0, ALL, -8i64 as u64],
            ),
            // call *0x10(%rip)
            (
                &[0xff, 0x15, 0x10, 0, 0, 0],
                [2, 16, 2, 16, 16, 1, 0, ALL, 0x1016],
            ),
            // jmp *%fs:(%eax)
            (&[0x64, 0x67, 0xff, 0x20], [1, 16, 2, 0, 16, 1, 1, LOW, 0]),
            // rep ret, ret 0x1234
            (&[0xf3, 0xc3], [3, 16, 0, 16, 16, 1, 0, ALL, 0]),
            (&[0xc2, 0x34, 0x12], [3, 16, 0, 16, 16, 1, 0, ALL, 0x1234]),
        ];
        for (bytes, words) in kinds {
            assert_eq!(of(bytes), Ok(Some(words)), "{bytes:02x?}");
        }
    }

    #[test]
    fn others_are_left_to_the_detour() {
        for bytes in [&[0x90][..], &[0x48, 0x89, 0xc3], &[0xf3, 0xa4]] {
            assert_eq!(of(bytes), Ok(None), "{bytes:02x?}");
        }
    }

    #[test]
    fn some_are_refused() {
        let kinds: [(&[u8], NoPost); 13] = [
            (&[0x0f, 0x05], NoPost::SystemCall),
            (&[0x0f, 0x34], NoPost::SystemCall),
            (&[0xcc], NoPost::Interrupt),
            (&[0xcd, 0x80], NoPost::Interrupt),
            (&[0x0f, 0x0b], NoPost::Interrupt),
            (&[0xc7, 0xf8, 0, 0, 0, 0], NoPost::Transaction),
            (&[0x48, 0xcf], NoPost::Far),
            (&[0x48, 0xcb], NoPost::Far),
            (&[0xff, 0x28], NoPost::Far),
            (&[0x66, 0xc3], NoPost::Short),
            (&[0x66, 0xff, 0xe0], NoPost::Short),
            (&[0x66, 0x0f, 0x84, 0, 0, 0, 0], NoPost::Short),
            (&[0x06], NoPost::Unknown),
        ];
        for (bytes, reason) in kinds {
            assert_eq!(of(bytes), Err(reason), "{bytes:02x?}");
        }
    }
}
