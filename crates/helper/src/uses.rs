//! State beyond the general registers that a handler uses, found in its machine code: vector and x87
//! registers, and the flags that are not those of comparisons.
//!
//! Everything is followed that a call or a jump leads to, through the tables of imported functions
//! as well. Code that cannot be followed (an indirect call, code that is not mapped, too much of it)
//! counts as using all of it.

use capriole_proc::process::Process;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpKind, Register,
    RflagsBits,
};
use std::collections::HashSet;

/// Number of instructions that are looked at.
const MOST: usize = 20_000;
/// Bytes that are read at a time.
const BLOCK: usize = 4096;

/// State that a function, or a function that it calls, uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uses {
    /// A vector or x87 register may change.
    pub vectors: bool,
    /// A flag such as the direction flag may change, or an instruction depends on it.
    pub control_flags: bool,
}

impl Uses {
    /// Function of which nothing is known.
    pub const ALL: Self = Self {
        vectors: true,
        control_flags: true,
    };
    /// No function, or one that uses neither.
    pub const NOTHING: Self = Self {
        vectors: false,
        control_flags: false,
    };
}

/// Returns what the function at `address` uses.
pub fn uses(process: &Process, address: u64) -> Uses {
    search(process, address, false)
}

/// Returns what a function of the library's own uses, without the handlers that it calls by
/// pointers.
pub fn uses_itself(process: &Process, address: u64) -> Uses {
    search(process, address, true)
}

fn search(process: &Process, address: u64, calls_handlers: bool) -> Uses {
    let mut search = Search {
        process,
        calls_handlers,
        control_flags: false,
        seen: HashSet::new(),
        todo: vec![address],
        info: InstructionInfoFactory::new(),
    };
    match search.finds() {
        true => Uses::ALL,
        false => Uses {
            vectors: false,
            control_flags: search.control_flags,
        },
    }
}

struct Search<'a> {
    process: &'a Process,
    /// True if calls by pointers are those of handlers.
    calls_handlers: bool,
    control_flags: bool,
    seen: HashSet<u64>,
    todo: Vec<u64>,
    info: InstructionInfoFactory,
}

impl Search<'_> {
    /// Follows all code. Returns true if it may change a vector register.
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
                self.control_flags |= uses_control_flags(&instruction);
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
            FlowControl::IndirectCall | FlowControl::IndirectBranch => {
                match self.target(instruction) {
                    Some(target) => self.todo.push(target),
                    None if self.calls_handlers => {}
                    None => return None,
                }
                Some(instruction.flow_control() == FlowControl::IndirectCall)
            }
            FlowControl::Interrupt | FlowControl::XbeginXabortXend => None,
        }
    }

    fn target(&self, instruction: &Instruction) -> Option<u64> {
        target(instruction, |slot| {
            let mut word = [0; 8];
            let read = self.process.read_memory(slot, &mut word);
            (read.ok() == Some(8)).then(|| u64::from_le_bytes(word))
        })
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

/// Returns the address that a jump or call leads to. `word` reads a word of memory.
pub(crate) fn target(
    instruction: &Instruction,
    word: impl FnOnce(u64) -> Option<u64>,
) -> Option<u64> {
    match instruction.op0_kind() {
        OpKind::NearBranch64 => Some(instruction.near_branch_target()),
        // A slot of the table of imported functions. It does not change any more once it is
        // resolved, and leads to the resolver, which saves vector registers, before.
        OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
            word(instruction.ip_rel_memory_address())
        }
        _ => None,
    }
}

/// True if the instruction reads or changes a flag other than those of comparisons.
fn uses_control_flags(instruction: &Instruction) -> bool {
    const STATUS: u32 = RflagsBits::CF
        | RflagsBits::PF
        | RflagsBits::AF
        | RflagsBits::ZF
        | RflagsBits::SF
        | RflagsBits::OF;
    // A system call has the kernel change and restore them.
    instruction.code() != iced_x86::Code::Syscall
        && (instruction.rflags_read() | instruction.rflags_modified()) & !STATUS != 0
}
