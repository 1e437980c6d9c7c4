//! One pass over a piece of code that keeps only what control flow analysis needs of each
//! instruction.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

use crate::decode::{Code, Extent, MAX_INSTRUCTION};

/// Effect of an instruction on control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Continues with the next instruction.
    Next,
    /// Like `Next`, but also makes a constant that may be an address (`target`):
    /// `lea x(%rip), reg`, `mov $imm32, reg`, `push $imm32`.
    Constant,
    /// Continues with the next instruction or at `target`.
    Conditional,
    /// Jumps to `target`, never to the next instruction.
    Jump,
    /// Jumps to an address that is computed or loaded.
    IndirectJump,
    /// Calls `target`.
    Call,
    /// Calls an address that is computed or loaded.
    IndirectCall,
    /// Never continues: `ret`, `ud2`, `iret`.
    Stop,
}

impl Kind {
    /// True if the next instruction in memory may run after this one.
    pub(crate) const fn falls_through(self) -> bool {
        !matches!(self, Self::Jump | Self::IndirectJump | Self::Stop)
    }

    /// True if `target` is the target of a direct jump (not a call).
    pub(crate) const fn jumps_to_target(self) -> bool {
        matches!(self, Self::Jump | Self::Conditional)
    }
}

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Its run-time address.
    pub address: u64,
    /// Its branch target, or the constant it makes; 0 if `kind` has neither.
    pub target: u64,
    /// Length in bytes.
    pub length: u8,
    /// Effect on control flow.
    pub kind: Kind,
    /// True if it begins with a `lock` prefix, which some hand-written code jumps over.
    pub lock: bool,
}

impl Record {
    /// Returns the address of the next instruction in memory.
    pub(crate) const fn end(&self) -> u64 {
        self.address.wrapping_add(self.length as u64)
    }
}

/// Decodes `extent` from its start, one instruction after the other, skipping known data, and
/// calls `each` for every instruction. If `straddle` is set, an instruction may end past the
/// extent, but never past the code.
///
/// Returns the address of the first byte at which no instruction begins.
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
    let code = Code::new(bytes, extent.start).with_data(code.data);
    let mut walk = Walk::new(&code, extent);
    while walk.can_decode() && walk.address() < extent.end {
        let address = walk.address();
        if let Some(known) = walk.data_here() {
            if !walk.go_to(known.end) {
                break;
            }
            continue;
        }
        match walk.next() {
            Some(instruction) => each(record(instruction)),
            None => return Some(address),
        }
    }
    None
}

/// Decodes one instruction after the other, from any address.
pub(crate) struct Walk<'a> {
    code: Code<'a>,
    /// Where known data is heeded.
    extent: Extent,
    decoder: Decoder<'a>,
    instruction: Instruction,
    /// The next piece of known data.
    data: Option<Extent>,
}

impl<'a> Walk<'a> {
    /// Starts at the first byte of the code. Known data counts only in `extent`.
    pub(crate) fn new(code: &Code<'a>, extent: Extent) -> Self {
        Self {
            code: *code,
            extent,
            decoder: Decoder::with_ip(64, code.bytes, code.address, DecoderOptions::NONE),
            instruction: Instruction::default(),
            data: code.data_in(extent),
        }
    }

    /// Moves to an address. Returns false if it is outside the code.
    pub(crate) fn go_to(&mut self, address: u64) -> bool {
        let text = self.code.extent();
        let offset = address.wrapping_sub(text.start);
        if !text.contains(address) || self.decoder.set_position(offset as usize).is_err() {
            return false;
        }
        self.decoder.set_ip(address);
        self.data = self.code.data_in(Extent::new(address, self.extent.end));
        true
    }

    /// Returns the address of the next instruction.
    pub(crate) fn address(&self) -> u64 {
        self.decoder.ip()
    }

    /// True unless the end of the code is reached.
    pub(crate) fn can_decode(&self) -> bool {
        self.decoder.can_decode()
    }

    /// Returns the piece of known data that contains the next byte.
    pub(crate) fn data_here(&self) -> Option<Extent> {
        self.data.filter(|data| data.start <= self.address())
    }

    /// Decodes the next instruction. Returns `None` at the end of the code, and if the bytes do not
    /// decode or some of them are known to be data.
    pub(crate) fn next(&mut self) -> Option<&Instruction> {
        if !self.can_decode() {
            return None;
        }
        self.decoder.decode_out(&mut self.instruction);
        let end = self.address();
        let is_data = self.data.is_some_and(|data| data.start < end);
        (!self.instruction.is_invalid() && !is_data).then_some(&self.instruction)
    }
}

/// Returns the record of `instruction`.
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

/// Returns the constant in `instruction` that may be a code address.
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
