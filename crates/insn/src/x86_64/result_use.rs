//! The result of a call, as the code after the call uses it.

use std::collections::{HashMap, HashSet};

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};

use crate::decode::{Code, Extent};

/// Maximum number of instructions examined after a call, over all paths.
const LIMIT: usize = 256;

/// How the code after a call uses the register that has the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResultUse {
    /// An instruction reads it before another value replaces it.
    Read,
    /// No instruction reads it, but the caller returns with it unchanged: it may be the result of the
    /// caller.
    Returned,
    /// All known paths leave it unread.
    Unread,
}

/// Returns how the code of a caller uses `register` (`rax` or `xmm0`), from the instruction behind the
/// call on. Any call replaces the register. Paths that are not known, such as those behind an indirect
/// jump, count as leaving it unread.
#[must_use]
pub fn result_use(code: &Code<'_>, caller: Extent, behind: u64, register: Register) -> ResultUse {
    let mut info = InstructionInfoFactory::new();
    let mut seen = HashSet::new();
    let mut pending = vec![behind];
    let mut found = ResultUse::Unread;
    while let Some(at) = pending.pop() {
        if seen.len() == LIMIT || !caller.contains(at) || !seen.insert(at) {
            continue;
        }
        let Some(instruction) = code.instruction_at(at, caller.end) else {
            continue;
        };
        match effect(&mut info, &instruction, register) {
            Effect::Reads => return ResultUse::Read,
            Effect::Replaces => continue,
            Effect::Nothing => {}
        }
        match instruction.flow_control() {
            FlowControl::Return => found = ResultUse::Returned,
            FlowControl::Next => pending.push(instruction.next_ip()),
            FlowControl::UnconditionalBranch => pending.push(instruction.near_branch_target()),
            FlowControl::ConditionalBranch => {
                pending.extend([instruction.near_branch_target(), instruction.next_ip()]);
            }
            _ => {}
        }
    }
    found
}

/// Effect of an instruction on a register.
enum Effect {
    Reads,
    Replaces,
    Nothing,
}

fn effect(
    info: &mut InstructionInfoFactory,
    instruction: &Instruction,
    register: Register,
) -> Effect {
    let full = register.full_register();
    // Compilers make 0 or -1 of the carry flag by `sbb %eax, %eax`.
    let is_idiom = instruction.mnemonic() == Mnemonic::Sbb
        && instruction.op0_register() == instruction.op1_register()
        && instruction.op0_register().full_register() == full;
    if is_idiom {
        return Effect::Replaces;
    }
    let mut effect = Effect::Nothing;
    for used in info.info(instruction).used_registers() {
        if used.register().full_register() != full {
            continue;
        }
        match used.access() {
            OpAccess::Write => {
                if used.register().size() >= 4 {
                    effect = Effect::Replaces;
                }
            }
            OpAccess::None | OpAccess::NoMemAccess | OpAccess::CondWrite => {}
            OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
                return Effect::Reads;
            }
        }
    }
    let is_call = matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    );
    match is_call {
        true => Effect::Replaces,
        false => effect,
    }
}

/// A branch to the start of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Branch {
    /// The address behind the instruction.
    pub behind: u64,
    /// True for a call, false for a jump.
    pub is_call: bool,
}

/// Calls, jumps and loads of the addresses of some functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    branches: HashMap<u64, Vec<Branch>>,
    loaded: HashSet<u64>,
}

impl References {
    /// Adds the references in `code` to the functions that begin at `starts` (ascending).
    ///
    /// Any bytes that look like an instruction with such a distance are found: they would have to be the
    /// distance to a function by chance. With `fixed`, of code that runs at its link address, so
    /// are addresses that are numbers in instructions.
    pub fn add(&mut self, code: &Code<'_>, starts: &[u64], fixed: bool) {
        const CALL: u8 = 0xe8;
        const JUMP: u8 = 0xe9;
        const LEA: u8 = 0x8d;
        let is_start = |address: u64| starts.binary_search(&address).is_ok();
        for (index, bytes) in code.bytes.windows(6).enumerate() {
            let &[first, second, a, b, c, d] = bytes else {
                continue;
            };
            let number = i32::from_le_bytes([a, b, c, d]);
            let behind = code.address + index as u64 + 6;
            let target = behind.wrapping_add_signed(i64::from(number));
            if fixed && is_start(u64::from(number as u32)) {
                self.loaded.insert(u64::from(number as u32));
            }
            let is_call = match (first, second) {
                (_, CALL) => true,
                (_, JUMP) | (0x0f, 0x80..=0x8f) => false,
                // The operand is relative to rip.
                (LEA, mode) if mode & 0xc7 == 0x05 => {
                    if is_start(target) {
                        self.loaded.insert(target);
                    }
                    continue;
                }
                _ => continue,
            };
            if is_start(target) {
                self.add_branch(target, Branch { behind, is_call });
            }
        }
        for (index, bytes) in code.bytes.windows(2).enumerate() {
            let &[0xeb | 0x70..=0x7f, distance] = bytes else {
                continue;
            };
            let behind = code.address + index as u64 + 2;
            let target = behind.wrapping_add_signed(i64::from(distance as i8));
            if is_start(target) {
                let is_call = false;
                self.add_branch(target, Branch { behind, is_call });
            }
        }
    }

    fn add_branch(&mut self, function: u64, branch: Branch) {
        self.branches.entry(function).or_default().push(branch);
    }

    /// Adds functions to which something else points.
    pub fn add_pointers(&mut self, functions: impl IntoIterator<Item = u64>) {
        self.loaded.extend(functions);
    }

    /// Returns the calls of a function, and jumps to its start. `None` if its address is used in
    /// another way, so that not all calls are known.
    #[must_use]
    pub fn of(&self, function: u64) -> Option<&[Branch]> {
        let branches = self.branches.get(&function).map_or(&[][..], Vec::as_slice);
        (!self.loaded.contains(&function)).then_some(branches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(bytes: &[u8], register: Register) -> ResultUse {
        let code = Code::new(bytes, 0x1000);
        result_use(&code, code.extent(), 0x1000, register)
    }

    #[test]
    fn a_result_is_read_returned_or_left() {
        // mov %eax, %ebx; ret
        assert_eq!(used(&[0x89, 0xc3, 0xc3], Register::RAX), ResultUse::Read);
        // pop %rbx; ret
        assert_eq!(used(&[0x5b, 0xc3], Register::RAX), ResultUse::Returned);
        // xor %eax, %eax; ret
        assert_eq!(used(&[0x31, 0xc0, 0xc3], Register::RAX), ResultUse::Unread);
        // sbb %eax, %eax; ret
        assert_eq!(used(&[0x19, 0xc0, 0xc3], Register::RAX), ResultUse::Unread);
        // mov $1, %al; ret: the rest of the register is left
        assert_eq!(
            used(&[0xb0, 0x01, 0xc3], Register::RAX),
            ResultUse::Returned
        );
        // je over the next; xor %eax, %eax; call *%rax
        let branch = [0x74, 0x02, 0x31, 0xc0, 0xff, 0xd0];
        assert_eq!(used(&branch, Register::RAX), ResultUse::Read);
        // addsd %xmm0, %xmm1; ret
        let vector = [0xf2, 0x0f, 0x58, 0xc8, 0xc3];
        assert_eq!(used(&vector, Register::XMM0), ResultUse::Read);
        // call; mov %eax, %ebx: a call replaces it
        let call = [0xe8, 0, 0, 0, 0, 0x89, 0xc3];
        assert_eq!(used(&call, Register::RAX), ResultUse::Unread);
    }

    #[test]
    fn references_are_calls_jumps_and_loads() {
        // nop; nop; call 0x1000; jmp 0x1000; je 0x1000
        let bytes = [
            0x90, 0x90, 0xe8, 0xf9, 0xff, 0xff, 0xff, 0xe9, 0xf4, 0xff, 0xff, 0xff, 0x0f, 0x84,
            0xee, 0xff, 0xff, 0xff,
        ];
        let mut references = References::default();
        references.add(&Code::new(&bytes, 0x1000), &[0x1000, 0x1004], false);
        let found = references.of(0x1000).expect("its address is not loaded");
        let found: Vec<_> = found.iter().map(|b| (b.behind, b.is_call)).collect();
        assert_eq!(found, [(0x1007, true), (0x100c, false), (0x1012, false)]);
        // jmp 0x1004, in two bytes
        let mut short = References::default();
        short.add(&Code::new(&[0xeb, 0x02], 0x1000), &[0x1004], false);
        assert_eq!(short.of(0x1004).map(<[_]>::len), Some(1));
        assert_eq!(references.of(0x1004), Some(&[][..]));
        // lea 0x1000(%rip), %rdi
        let load = [0x48, 0x8d, 0x3d, 0xf9, 0xff, 0xff, 0xff];
        references.add(&Code::new(&load, 0x1000), &[0x1000, 0x1004], false);
        assert_eq!(references.of(0x1000), None);
        // mov $0x1004, %edi
        let load = [0x90, 0xbf, 0x04, 0x10, 0x00, 0x00];
        references.add(&Code::new(&load, 0x9000), &[0x1000, 0x1004], true);
        assert_eq!(references.of(0x1004), None);
    }
}
