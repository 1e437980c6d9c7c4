//! Origins of a register's value over all paths, to decide whether a jump through it is a jump
//! through a pointer.

use std::collections::HashSet;

use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::decode::{is_call, is_padding};
use crate::liveness::RegSet;

use super::{Resolver, writes_whole};

/// Maximum number of (instruction, register) pairs examined.
const LIMIT: usize = 4096;

impl Resolver<'_> {
    /// True if the memory operand may be a slot where the compiler spilled a register: an address
    /// in it may have been computed earlier. Slots are addressed through `rsp`, or through `rbp` if
    /// that is the frame pointer.
    pub(super) fn is_stack_slot(&mut self, load: &Instruction) -> bool {
        match load.memory_base() {
            Register::RSP => true,
            Register::RBP => self.has_frame_pointer(),
            _ => false,
        }
    }

    fn has_frame_pointer(&mut self) -> bool {
        if let Some(known) = self.frame_pointer {
            return known;
        }
        let found = self.records.iter().any(|record| {
            self.code
                .instruction_at(record.address, record.end())
                .is_some_and(|i| {
                    i.mnemonic() == Mnemonic::Enter
                        || i.op0_kind() == OpKind::Register
                            && i.op0_register() == Register::RBP
                            && (i.memory_base() == Register::RSP
                                || i.op1_kind() == OpKind::Register
                                    && i.op1_register() == Register::RSP)
                })
        });
        self.frame_pointer = Some(found);
        found
    }

    /// True if, before instruction number `jump` and on every path, `register` holds an unchanged
    /// value that was loaded from memory (not from a stack slot), passed to the function, returned
    /// by a call, or made by `lea`.
    pub(super) fn origins_are_pointers(&mut self, jump: usize, register: Register) -> bool {
        let mut seen = HashSet::new();
        let mut work = vec![(jump, register)];
        while let Some((index, register)) = work.pop() {
            if !seen.insert((index, register)) {
                continue;
            }
            if seen.len() > LIMIT {
                return false;
            }
            let record = self.records[index];
            if self.hints.landing_pads.contains(&record.address) {
                return false;
            }
            let before = self.predecessors(index);
            // At the function's start it is an argument. Padding that no control flow reaches never
            // runs.
            let at_start = record.address == self.extent.start;
            if before.is_empty() && !at_start && !self.is_padding(index) {
                return false;
            }
            for previous in before {
                match self.step_back(previous, register) {
                    Origin::Pointer => {}
                    Origin::Same(registers) => {
                        work.extend(registers.into_iter().flatten().map(|r| (previous, r)));
                    }
                    Origin::Other => return false,
                }
            }
        }
        true
    }

    fn is_padding(&self, index: usize) -> bool {
        let record = &self.records[index];
        self.code
            .instruction_at(record.address, record.end())
            .is_some_and(|instruction| is_padding(&instruction))
    }

    /// Returns the instructions that can run directly before number `index`.
    fn predecessors(&mut self, index: usize) -> Vec<usize> {
        let records = self.records;
        let edges = self.edges.get_or_insert_with(|| {
            let mut edges: Vec<(u64, usize)> = records
                .iter()
                .enumerate()
                .filter(|(_, r)| r.kind.jumps_to_target())
                .map(|(i, r)| (r.target, i))
                .collect();
            edges.sort_unstable();
            edges
        });
        let address = records[index].address;
        let first = edges.partition_point(|(target, _)| *target < address);
        let mut before: Vec<usize> = edges[first..]
            .iter()
            .take_while(|(target, _)| *target == address)
            .map(|(_, i)| *i)
            .collect();
        if index > 0 {
            let previous = &records[index - 1];
            if previous.kind.falls_through() && previous.end() == address {
                before.push(index - 1);
            }
        }
        before
    }

    /// Returns the origin of the value that `register` holds after instruction number `index`.
    fn step_back(&mut self, index: usize, register: Register) -> Origin {
        let record = self.records[index];
        let Some(instruction) = self.code.instruction_at(record.address, record.end()) else {
            return Origin::Other;
        };
        if is_call(&instruction) {
            return match register {
                Register::RAX => Origin::Pointer,
                _ if RegSet::PRESERVED.contains(register) => Origin::Same([Some(register), None]),
                _ => Origin::Other,
            };
        }
        if !self.writes(&instruction, register) {
            return Origin::Same([Some(register), None]);
        }
        // An address made by `lea` is as good as a pointer in data: `Resolver::pointer` handles a
        // function that makes one inside itself.
        if instruction.mnemonic() == Mnemonic::Lea
            && instruction.is_ip_rel_memory_operand()
            && writes_whole(&instruction, register)
        {
            return Origin::Pointer;
        }
        let conditional = is_conditional_move(&instruction);
        if !(writes_whole(&instruction, register)
            && (conditional || instruction.mnemonic() == Mnemonic::Mov))
        {
            return Origin::Other;
        }
        let old = conditional.then_some(register);
        match instruction.op1_kind() {
            OpKind::Register => {
                Origin::Same([Some(instruction.op1_register().full_register()), old])
            }
            OpKind::Memory if !self.is_stack_slot(&instruction) => match old {
                Some(_) => Origin::Same([old, None]),
                None => Origin::Pointer,
            },
            _ => Origin::Other,
        }
    }
}

/// Origin of a register's value, one instruction back.
enum Origin {
    /// From outside: a pointer.
    Pointer,
    /// The previous value of one of these registers.
    Same([Option<Register>; 2]),
    /// Computed, or unknown.
    Other,
}

fn is_conditional_move(instruction: &Instruction) -> bool {
    instruction.condition_code() != ConditionCode::None
        && instruction.flow_control() == FlowControl::Next
        && instruction.op_count() == 2
}
