//! Number of entries of a jump table, from the comparison that guards it.

use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::Resolver;
use super::table::MAX_ENTRIES;
use crate::decode::{is_call, is_write};

/// Where the table index was held at an earlier point of the backward search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Register(Register),
    Memory {
        segment: Register,
        base: Register,
        index: Register,
        scale: u32,
        displacement: u64,
    },
}

/// Number of entries of a table.
#[derive(Clone, Copy)]
pub(super) enum Bound {
    /// A comparison lets exactly the indices below this number through. All of them are entries,
    /// and this jump uses no others.
    Exactly(usize),
    /// The index is less than this, but the table may be shorter.
    AtMost(usize),
    /// No limit was found.
    Unknown,
}

impl Resolver<'_> {
    /// Finds the number of entries from the comparison that guards the table.
    pub(super) fn bound(&mut self, index: Register, before: usize) -> Bound {
        let mut place = Place::Register(index.full_register());
        let mut condition = ConditionCode::None;
        let mut fallback = Bound::Unknown;
        for at in (0..before).rev() {
            let instruction = self.window[at];
            if instruction.flow_control() == FlowControl::ConditionalBranch {
                condition = instruction.condition_code();
                continue;
            }
            if is_call(&instruction) {
                return fallback;
            }
            if instruction.mnemonic() == Mnemonic::Cmp
                && operand_place(&instruction, 0) == Some(place)
                && let Some(limit) = immediate(&instruction)
            {
                match condition {
                    ConditionCode::a => return Bound::Exactly(limit + 1),
                    ConditionCode::ae => return Bound::Exactly(limit),
                    _ => {}
                }
            }
            if instruction.rflags_modified() != 0 {
                condition = ConditionCode::None;
            }
            match place {
                Place::Register(register) => {
                    if !self.writes(&instruction, register) {
                        continue;
                    }
                    if instruction.op0_kind() != OpKind::Register
                        || instruction.op0_register().full_register() != register
                    {
                        return fallback;
                    }
                    match instruction.mnemonic() {
                        Mnemonic::Mov if instruction.op0_register().size() >= 4 => {}
                        Mnemonic::Movzx => {
                            let size = match instruction.op1_kind() {
                                OpKind::Register => instruction.op1_register().size(),
                                _ => instruction.memory_size().size(),
                            };
                            if size == 1 {
                                fallback = Bound::AtMost(256);
                            }
                        }
                        Mnemonic::And => {
                            return match immediate(&instruction) {
                                Some(mask) => Bound::AtMost(mask + 1),
                                None => fallback,
                            };
                        }
                        // Unoptimised GCC code: `lea 0(,%rax,4), %rdx`.
                        Mnemonic::Lea
                            if instruction.memory_base() == Register::None
                                && instruction.memory_displacement64() == 0
                                && matches!(instruction.memory_index_scale(), 4 | 8) =>
                        {
                            place = Place::Register(instruction.memory_index().full_register());
                            continue;
                        }
                        _ => return fallback,
                    }
                    match operand_place(&instruction, 1) {
                        Some(from) => place = from,
                        None => return fallback,
                    }
                }
                Place::Memory { base, index, .. } => {
                    let moved = [base, index]
                        .into_iter()
                        .any(|r| r != Register::None && self.writes(&instruction, r));
                    if moved || self.stores(&instruction) {
                        return fallback;
                    }
                }
            }
        }
        fallback
    }

    fn stores(&mut self, instruction: &Instruction) -> bool {
        let mut used = self.info.info(instruction).used_memory().iter();
        used.any(|memory| is_write(memory.access()))
    }
}

fn operand_place(instruction: &Instruction, operand: u32) -> Option<Place> {
    match instruction.op_kind(operand) {
        OpKind::Register => Some(Place::Register(
            instruction.op_register(operand).full_register(),
        )),
        OpKind::Memory => Some(Place::Memory {
            segment: instruction.segment_prefix(),
            base: instruction.memory_base(),
            index: instruction.memory_index(),
            scale: instruction.memory_index_scale(),
            displacement: instruction.memory_displacement64(),
        }),
        _ => None,
    }
}

/// Returns the immediate second operand if it is plausible as a number of entries.
fn immediate(instruction: &Instruction) -> Option<usize> {
    let value = match instruction.op1_kind() {
        OpKind::Immediate8 => u64::from(instruction.immediate8()),
        OpKind::Immediate16 => u64::from(instruction.immediate16()),
        OpKind::Immediate32 => u64::from(instruction.immediate32()),
        OpKind::Immediate8to16 | OpKind::Immediate8to32 | OpKind::Immediate8to64 => {
            instruction.immediate(1)
        }
        OpKind::Immediate32to64 => instruction.immediate(1),
        _ => return None,
    };
    usize::try_from(value).ok().filter(|&v| v < MAX_ENTRIES)
}
