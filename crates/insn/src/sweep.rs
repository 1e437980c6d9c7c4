//! One pass over a piece of code that keeps of each instruction only what
//! control flow needs.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

use crate::decode::{Code, Extent, MAX_INSTRUCTION};

/// What an instruction does to the flow of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Goes on to the next instruction.
    Next,
    /// As `Next`, and makes a constant that may be an address (`target`):
    /// `lea x(%rip), reg`, `mov $imm32, reg`, `push $imm32`.
    Constant,
    /// Goes on to the next instruction or to `target`.
    Conditional,
    /// Goes to `target` and never on.
    Jump,
    /// Goes to an address that is computed or loaded.
    IndirectJump,
    /// Calls `target`.
    Call,
    /// Calls an address that is computed or loaded.
    IndirectCall,
    /// Never goes on: `ret`, `ud2`, `iret`.
    Stop,
}

impl Kind {
    /// Whether the next instruction in memory may run after this one.
    pub(crate) const fn falls_through(self) -> bool {
        !matches!(self, Self::Jump | Self::IndirectJump | Self::Stop)
    }

    /// Whether `target` is where a direct jump (no call) leads.
    pub(crate) const fn jumps_to_target(self) -> bool {
        matches!(self, Self::Jump | Self::Conditional)
    }
}

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Its run-time address.
    pub address: u64,
    /// Where it leads, or the constant it makes; 0 if `kind` has none.
    pub target: u64,
    /// Bytes.
    pub length: u8,
    /// What it does to control flow.
    pub kind: Kind,
    /// Whether it begins with a `lock` prefix, which some hand-written code
    /// jumps over.
    pub lock: bool,
}

impl Record {
    /// The address of the next instruction in memory.
    pub(crate) const fn end(&self) -> u64 {
        self.address.wrapping_add(self.length as u64)
    }
}

/// Decodes `extent` from its start, one instruction after the other but for
/// known data, and calls `each` for all of them. An instruction may end behind the extent if
/// `straddle` says so, never behind the code.
///
/// Returns the address of the first byte that begins no instruction.
pub(crate) fn sweep(
    code: &Code<'_>,
    extent: Extent,
    straddle: bool,
    mut each: impl FnMut(Record),
) -> Option<u64> {
    let end = if straddle {
        extent
            .end
            .saturating_add(MAX_INSTRUCTION as u64)
            .min(code.extent().end)
    } else {
        extent.end
    };
    let bytes = code.get(Extent::new(extent.start, end))?;
    let mut decoder = Decoder::with_ip(64, bytes, extent.start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut data = code.data_in(extent);
    while decoder.can_decode() && decoder.ip() < extent.end {
        let address = decoder.ip();
        if let Some(known) = data.filter(|known| known.start <= address) {
            let behind = known.end.clamp(address, end);
            decoder
                .set_position((behind - extent.start) as usize)
                .ok()?;
            decoder.set_ip(behind);
            data = code.data_in(Extent::new(behind, extent.end));
            continue;
        }
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() || data.is_some_and(|known| known.start < decoder.ip()) {
            return Some(address);
        }
        each(record(&instruction));
    }
    None
}

/// What is kept of `instruction`.
pub(crate) fn record(instruction: &Instruction) -> Record {
    let (kind, target) = match instruction.flow_control() {
        FlowControl::Next | FlowControl::Interrupt => match constant(instruction) {
            Some(value) => (Kind::Constant, value),
            None => (Kind::Next, 0),
        },
        FlowControl::ConditionalBranch => (Kind::Conditional, instruction.near_branch_target()),
        FlowControl::UnconditionalBranch if is_far(instruction) => (Kind::IndirectJump, 0),
        FlowControl::UnconditionalBranch => (Kind::Jump, instruction.near_branch_target()),
        FlowControl::IndirectBranch => (Kind::IndirectJump, 0),
        FlowControl::Call if instruction.mnemonic() != Mnemonic::Call => (Kind::Next, 0),
        FlowControl::Call if is_far(instruction) => (Kind::IndirectCall, 0),
        FlowControl::Call => (Kind::Call, instruction.near_branch_target()),
        FlowControl::IndirectCall => (Kind::IndirectCall, 0),
        FlowControl::Return | FlowControl::Exception => (Kind::Stop, 0),
        FlowControl::XbeginXabortXend if instruction.mnemonic() == Mnemonic::Xbegin => {
            (Kind::Conditional, instruction.near_branch_target())
        }
        FlowControl::XbeginXabortXend => (Kind::Next, 0),
    };
    Record {
        address: instruction.ip(),
        target,
        length: instruction.len() as u8,
        kind,
        lock: instruction.has_lock_prefix(),
    }
}

fn is_far(instruction: &Instruction) -> bool {
    matches!(
        instruction.op0_kind(),
        OpKind::FarBranch16 | OpKind::FarBranch32
    )
}

/// The constant that may be a code address.
fn constant(instruction: &Instruction) -> Option<u64> {
    match instruction.mnemonic() {
        Mnemonic::Lea if instruction.is_ip_rel_memory_operand() => {
            Some(instruction.ip_rel_memory_address())
        }
        Mnemonic::Mov => match instruction.op1_kind() {
            OpKind::Immediate32 => Some(u64::from(instruction.immediate32())),
            OpKind::Immediate32to64 | OpKind::Immediate64 => Some(instruction.immediate(1)),
            _ => None,
        },
        Mnemonic::Push if instruction.op0_kind() == OpKind::Immediate32to64 => {
            Some(instruction.immediate(0))
        }
        _ => None,
    }
}
