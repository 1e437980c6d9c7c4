//! Stack depth at the instructions of a function.
//!
//! The depth is the number of bytes by which the stack pointer is below its value at the
//! function's entry. At the entry, and wherever control can leave for another function, it is
//! 0, and the stack pointer points to the return address. The depth is followed along control
//! flow through instructions that move the stack pointer by a constant; after any other change
//! (`mov %rbp, %rsp`, `leave`, `and $-16, %rsp`) it is unknown. It is also unknown where paths
//! of different depths meet, for example after a call that never returns.

use std::collections::BTreeMap;

use iced_x86::{
    Code as Opcode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
};

use crate::decode::{Code, changes, is_call};
use crate::flow::FunctionFlow;
use crate::jump_table::Resolution;

/// The depth at the instructions that control flow reaches from the function's start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Depths(BTreeMap<u64, Option<i64>>);

impl Depths {
    /// Follows the control flow of a function (or of a part of one that is entered at its start),
    /// and also from `labels`: pairs of a jump target that the control flow does not show, and the
    /// depth there.
    pub(crate) fn of(code: &Code<'_>, flow: &FunctionFlow, labels: &[(u64, i64)]) -> Self {
        let mut depths = Self::default();
        let mut factory = InstructionInfoFactory::new();
        let labels = labels.iter().map(|(label, depth)| (*label, Some(*depth)));
        let mut work: Vec<_> = labels.collect();
        work.push((flow.extent().start, Some(0)));
        while let Some((at, depth)) = work.pop() {
            // A known depth changes at most once: to unknown.
            let depth = match depths.0.get(&at) {
                None => depth,
                Some(known) if *known == depth || known.is_none() => continue,
                Some(_) => None,
            };
            depths.0.insert(at, depth);
            let Some(instruction) = code.instruction_at(at, flow.extent().end) else {
                continue;
            };
            let behind = depth.and_then(|depth| {
                let by = grows(&instruction, &mut factory)?;
                depth.checked_add(by)
            });
            let mut go = |to: u64| {
                if flow.extent().contains(to) {
                    work.push((to, behind));
                }
            };
            match instruction.flow_control() {
                FlowControl::Next
                | FlowControl::Call
                | FlowControl::IndirectCall
                | FlowControl::Interrupt => go(instruction.next_ip()),
                FlowControl::ConditionalBranch => {
                    go(instruction.next_ip());
                    go(instruction.near_branch_target());
                }
                FlowControl::UnconditionalBranch => go(instruction.near_branch_target()),
                FlowControl::IndirectBranch => {
                    let jumps = flow.indirect_jumps().iter();
                    for jump in jumps.filter(|jump| jump.address == at) {
                        if let Resolution::Table { targets, .. } = &jump.resolution {
                            targets.iter().copied().for_each(&mut go);
                        }
                    }
                }
                FlowControl::Return | FlowControl::Exception | FlowControl::XbeginXabortXend => {}
            }
        }
        depths
    }

    /// Returns the depth before the instruction at `address`.
    pub(crate) fn at(&self, address: u64) -> Option<i64> {
        self.0.get(&address).copied().flatten()
    }
}

/// Returns by how many bytes an instruction makes the stack grow (for a call: after it has
/// returned), or `None` if that is not a known constant.
pub(crate) fn grows(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> Option<i64> {
    if is_call(instruction) || !changes(instruction, Register::RSP, factory) {
        return Some(0);
    }
    let constant = |instruction: &Instruction| {
        let is = matches!(
            instruction.op1_kind(),
            OpKind::Immediate8to64 | OpKind::Immediate32to64
        );
        is.then(|| instruction.immediate(1) as i64)
    };
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => {
            Some(-i64::from(instruction.stack_pointer_increment()))
        }
        Mnemonic::Pop if instruction.op0_register() == Register::RSP => None,
        Mnemonic::Pop | Mnemonic::Popfq => Some(-i64::from(instruction.stack_pointer_increment())),
        Mnemonic::Sub if instruction.op0_register() == Register::RSP => constant(instruction),
        Mnemonic::Add if instruction.op0_register() == Register::RSP => {
            constant(instruction).map(|by| -by)
        }
        Mnemonic::Lea
            if instruction.code() == Opcode::Lea_r64_m
                && instruction.memory_base() == Register::RSP
                && instruction.memory_index() == Register::None =>
        {
            Some(-(instruction.memory_displacement64() as i64))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Extent;

    const START: u64 = 0x1000;

    fn depths(bytes: &[u8]) -> Depths {
        let code = Code::new(bytes, START);
        let flow = FunctionFlow::analyse(&code, &code.extent()).unwrap();
        Depths::of(&code, &flow, &[])
    }

    fn depth_at(bytes: &[u8], offset: u64) -> Option<i64> {
        assert!(Extent::new(0, bytes.len() as u64).contains(offset));
        depths(bytes).at(START + offset)
    }

    #[test]
    fn constants_are_followed() {
        // push %rbx; sub $0x20,%rsp; lea 8(%rsp),%rsp; add $0x18,%rsp; pop %rbx; ret
        let code = [
            0x53, 0x48, 0x83, 0xec, 0x20, 0x48, 0x8d, 0x64, 0x24, 0x08, 0x48, 0x83, 0xc4, 0x18,
            0x5b, 0xc3,
        ];
        let found: Vec<Option<i64>> = [0, 1, 5, 10, 14, 15]
            .iter()
            .map(|at| depth_at(&code, *at))
            .collect();
        assert_eq!(found, [0, 8, 40, 32, 8, 0].map(Some));
        // sub $0x100,%rsp; call +0; push $5; nop
        let code = [
            0x48, 0x81, 0xec, 0, 1, 0, 0, 0xe8, 0, 0, 0, 0, 0x6a, 0x05, 0x90,
        ];
        assert_eq!(depth_at(&code, 12), Some(0x100));
        assert_eq!(depth_at(&code, 14), Some(0x108));
    }

    #[test]
    fn what_is_no_constant_is_not_known() {
        // mov %rbp,%rsp; nop
        assert_eq!(depth_at(&[0x48, 0x89, 0xec, 0x90], 3), None);
        // leave; ret
        assert_eq!(depth_at(&[0xc9, 0xc3], 1), None);
        // and $-16,%rsp; nop
        assert_eq!(depth_at(&[0x48, 0x83, 0xe4, 0xf0, 0x90], 4), None);
        // sub %rax,%rsp; nop
        assert_eq!(depth_at(&[0x48, 0x29, 0xc4, 0x90], 3), None);
        // xchg %rax,%rsp; nop
        assert_eq!(depth_at(&[0x48, 0x94, 0x90], 2), None);
        // sub $8,%esp; nop
        assert_eq!(depth_at(&[0x83, 0xec, 0x08, 0x90], 3), None);
        // pop %rsp; nop
        assert_eq!(depth_at(&[0x5c, 0x90], 1), None);
    }

    #[test]
    fn paths_have_to_agree() {
        // test %edi,%edi; je 5; push %rax; 5: nop
        assert_eq!(depth_at(&[0x85, 0xff, 0x74, 0x01, 0x50, 0x90], 5), None);
        // test %edi,%edi; je 6; push %rax; pop %rax; 6: nop
        let both = [0x85, 0xff, 0x74, 0x02, 0x50, 0x58, 0x90];
        assert_eq!(depth_at(&both, 6), Some(0));
        // push %rax; jmp 0: a loop in which the stack grows
        assert_eq!(depth_at(&[0x50, 0xeb, 0xfd], 0), None);
        // Unreachable.
        assert_eq!(depth_at(&[0xc3, 0x90], 1), None);
    }
}
