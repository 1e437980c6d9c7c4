//! Whether a handler leaves vector and x87 registers alone: read in its machine code.
//!
//! Everything is followed that a call or a jump leads to, through the tables of imported functions
//! as well. What cannot be followed (an indirect call, code that is not mapped, too much of it)
//! counts as using them.

use capriole_proc::process::Process;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpKind, Register,
};
use std::collections::HashSet;

/// Number of instructions that are looked at.
const MOST: usize = 20_000;
/// Bytes that are read at a time.
const BLOCK: usize = 4096;

/// True if the function at `address` may change a vector or x87 register.
pub fn uses_vectors(process: &Process, address: u64) -> bool {
    let mut search = Search {
        process,
        seen: HashSet::new(),
        todo: vec![address],
        info: InstructionInfoFactory::new(),
    };
    search.finds()
}

struct Search<'a> {
    process: &'a Process,
    seen: HashSet<u64>,
    todo: Vec<u64>,
    info: InstructionInfoFactory,
}

impl Search<'_> {
    fn finds(&mut self) -> bool {
        while let Some(start) = self.todo.pop() {
            if !self.seen.contains(&start) && !self.is_plain(start) {
                return true;
            }
        }
        false
    }

    /// Follows the code from an address up to where it leaves, or meets code that was seen.
    fn is_plain(&mut self, start: u64) -> bool {
        let mut at = start;
        loop {
            let mut block = [0; BLOCK];
            let Ok(len) = self.process.read_memory(at, &mut block) else {
                return false;
            };
            let mut decoder = Decoder::with_ip(64, &block[..len], at, DecoderOptions::NONE);
            // The last bytes may be a part of an instruction.
            while decoder.position() + 15 <= len || (len < BLOCK && decoder.can_decode()) {
                let instruction = decoder.decode();
                if !self.seen.insert(instruction.ip()) {
                    return true;
                }
                if instruction.is_invalid() || self.seen.len() > MOST || self.touches(&instruction)
                {
                    return false;
                }
                match self.follow(&instruction) {
                    Some(true) => {}
                    Some(false) => return true,
                    None => return false,
                }
            }
            if decoder.position() == 0 {
                return false;
            }
            at = decoder.ip();
        }
    }

    /// Notes where an instruction leads. Returns true if the next one follows; `None` if it is not
    /// known where it leads.
    fn follow(&mut self, instruction: &Instruction) -> Option<bool> {
        match instruction.flow_control() {
            FlowControl::Next => Some(true),
            FlowControl::Return | FlowControl::Exception => Some(false),
            FlowControl::ConditionalBranch | FlowControl::Call => {
                // A system call is one of these as well.
                if instruction.code() == iced_x86::Code::Syscall {
                    return Some(true);
                }
                self.todo.push(self.target(instruction)?);
                Some(true)
            }
            FlowControl::UnconditionalBranch => {
                self.todo.push(self.target(instruction)?);
                Some(false)
            }
            FlowControl::IndirectCall => {
                self.todo.push(self.target(instruction)?);
                Some(true)
            }
            FlowControl::IndirectBranch => {
                self.todo.push(self.target(instruction)?);
                Some(false)
            }
            FlowControl::Interrupt | FlowControl::XbeginXabortXend => None,
        }
    }

    fn target(&self, instruction: &Instruction) -> Option<u64> {
        match instruction.op0_kind() {
            OpKind::NearBranch64 => Some(instruction.near_branch_target()),
            // A slot of the table of imported functions. It does not change any more once it is
            // resolved, and leads to the resolver, which saves vector registers, before.
            OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
                let mut word = [0; 8];
                let slot = instruction.ip_rel_memory_address();
                let read = self.process.read_memory(slot, &mut word);
                (read.ok() == Some(8)).then(|| u64::from_le_bytes(word))
            }
            _ => None,
        }
    }

    fn touches(&mut self, instruction: &Instruction) -> bool {
        let info = self.info.info(instruction);
        let mut registers = info.used_registers().iter();
        let vector = |register: Register| {
            register.is_vector_register()
                || register.is_mm()
                || register.is_st()
                || register.is_k()
                || register.is_tmm()
        };
        registers.any(|used| vector(used.register()))
            || instruction.is_save_restore_instruction()
            || {
                use iced_x86::CpuidFeature as F;
                let features = instruction.cpuid_features().iter();
                features
                    .clone()
                    .any(|feature| matches!(feature, F::FPU | F::MMX | F::XSAVE | F::FXSR))
                    || matches!(
                        instruction.mnemonic(),
                        iced_x86::Mnemonic::Ldmxcsr
                            | iced_x86::Mnemonic::Vldmxcsr
                            | iced_x86::Mnemonic::Vzeroupper
                            | iced_x86::Mnemonic::Vzeroall
                    )
            }
    }
}
