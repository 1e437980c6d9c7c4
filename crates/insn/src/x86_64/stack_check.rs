//! The stack check at the start of Go functions.
//!
//! ```text
//!   entry  cmp 0x10(%r14),%rsp        is there room? (g.stackguard0)
//!          jbe more
//!   body   push %rbp
//!          …
//!   more   mov %rax,0x8(%rsp)         save the register arguments
//!          call runtime.morestack_noctxt
//!          mov 0x8(%rsp),%rax
//!          jmp entry
//! ```
//!
//! So one call can reach `entry` several times: when its stack grows, and when the runtime
//! wants another goroutine to run (then the check always fails). It reaches `body` once, with
//! the same stack pointer and arguments. Larger frames compare `%r12`, made by `lea
//! -N(%rsp),%r12`, or by `mov %rsp,%r12; sub $N,%r12; jb more`; functions of the older calling
//! convention get `g` from thread-local storage first. Source: `stacksplit` in
//! `cmd/internal/obj/x86/obj6.go` of Go 1.17 to 1.26.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::decode::{Code, Extent};

/// Offsets in `runtime.g` of the limits that the stack pointer is compared with: `stackguard0`,
/// and `stackguard1` for functions on the system stack.
const GUARDS: [u64; 2] = [0x10, 0x18];
/// Maximum number of instructions read between `more` and the jump back: up to fifteen vector
/// and nine other registers may be saved and restored.
const MOST: usize = 64;

/// Returns the length in bytes of the stack check at the start of a Go function: the code after
/// it is reached once in each call. `None` if the function does not begin with a check, if the
/// check does not come back to the entry, or if the function jumps to the end of the check from
/// elsewhere.
#[must_use]
pub fn stack_check(code: &Code<'_>, function: Extent) -> Option<u64> {
    let mut at = function.start;
    let mut next = || {
        let instruction = code.instruction_at(at, function.end)?;
        at = instruction.next_ip();
        Some(instruction)
    };
    let mut instruction = next()?;
    let mut g = Register::R14;
    while let Some(loaded) = loads_g(&instruction, g) {
        g = loaded;
        instruction = next()?;
    }
    let mut compared = Register::RSP;
    let mut more = None;
    match instruction.mnemonic() {
        Mnemonic::Lea if is_below_stack_pointer(&instruction) => {
            compared = instruction.op0_register();
            instruction = next()?;
        }
        Mnemonic::Mov if instruction.op1_register() == Register::RSP => {
            compared = instruction.op0_register();
            instruction = next()?;
            let subtracts = instruction.mnemonic() == Mnemonic::Sub
                && instruction.op0_register() == compared
                && instruction.op1_kind() != OpKind::Register;
            let wraps = next().filter(|jump| subtracts && jump.mnemonic() == Mnemonic::Jb)?;
            more = Some(wraps.near_branch_target());
            instruction = next()?;
        }
        _ => {}
    }
    // The register written must not hold anything that the function uses.
    let scratch = matches!(compared, Register::RSP | Register::R12 | Register::R13);
    if !scratch || !is_comparison(&instruction, compared, g) {
        return None;
    }
    let jump = next().filter(|jump| jump.mnemonic() == Mnemonic::Jbe)?;
    let target = jump.near_branch_target();
    let body = jump.next_ip();
    let same = more.is_none_or(|more| more == target);
    let behind = body < target && target < function.end;
    if !same || !behind || !comes_back(code, function, target) {
        return None;
    }
    let reached_otherwise = jumps_to(code, Extent::new(body, function.end), body)?;
    (!reached_otherwise).then_some(body - function.start)
}

/// Registers that a Go function loads again after its stack has grown. Go does not save arguments that
/// the function does not use; their registers then hold whatever the runtime left there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    general: u16,
    vectors: u16,
}

impl Restored {
    /// True if the general register of this number (as in instructions) is among them.
    #[must_use]
    pub fn has_general(self, number: usize) -> bool {
        number < 16 && self.general & 1 << number != 0
    }

    /// True if the vector register of this number is among them.
    #[must_use]
    pub fn has_vector(self, number: usize) -> bool {
        number < 16 && self.vectors & 1 << number != 0
    }

    fn add(&mut self, register: Register) {
        let number = register.full_register().number() as u32;
        match register {
            _ if number >= 16 => {}
            _ if register.is_gpr() => self.general |= 1 << number,
            _ if register.is_vector_register() => self.vectors |= 1 << number,
            _ => {}
        }
    }
}

/// Returns the registers that a Go function restores between the call that makes its stack grow and the
/// jump back to its entry. `None` if it has no such call, so that its stack cannot grow there.
#[must_use]
pub fn restored(code: &Code<'_>, function: Extent) -> Option<Restored> {
    let mut at = function.start;
    let mut since_call: Option<Restored> = None;
    while let Some(instruction) = code.instruction_at(at, function.end) {
        at = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Call => since_call = Some(Restored::default()),
            FlowControl::Next => {
                let loads = instruction.op0_kind() == OpKind::Register
                    && instruction.op1_kind() == OpKind::Memory
                    && instruction.memory_base() == Register::RSP;
                if let Some(restored) = since_call.as_mut().filter(|_| loads) {
                    restored.add(instruction.op0_register());
                }
            }
            FlowControl::UnconditionalBranch
                if instruction.near_branch_target() == function.start && since_call.is_some() =>
            {
                return since_call;
            }
            _ => since_call = None,
        }
    }
    None
}

/// Returns the register that receives `g`, or the offset of `g`, from thread-local storage. It
/// cannot hold an argument: where the calling convention passes arguments in registers, `g` is
/// in r14 already.
fn loads_g(instruction: &Instruction, so_far: Register) -> Option<Register> {
    let loads = instruction.mnemonic() == Mnemonic::Mov && instruction.op1_kind() == OpKind::Memory;
    let own = instruction.segment_prefix() == Register::FS
        || instruction.is_ip_rel_memory_operand() && so_far == Register::R14;
    let register = instruction.op0_register();
    let fits = matches!(register, Register::RCX | Register::R14);
    (loads && own && fits).then_some(register)
}

fn is_below_stack_pointer(lea: &Instruction) -> bool {
    lea.memory_base() == Register::RSP
        && lea.memory_index() == Register::None
        && (lea.memory_displacement64() as i64) < 0
}

fn is_comparison(instruction: &Instruction, compared: Register, g: Register) -> bool {
    instruction.mnemonic() == Mnemonic::Cmp
        && instruction.op0_register() == compared
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base() == g
        && instruction.memory_index() == Register::None
        && GUARDS.contains(&instruction.memory_displacement64())
}

/// True if the code at `more` is a call and then a jump to the function's entry.
fn comes_back(code: &Code<'_>, function: Extent, more: u64) -> bool {
    let mut at = more;
    let mut called = false;
    for _ in 0..MOST {
        let Some(instruction) = code.instruction_at(at, function.end) else {
            return false;
        };
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call if !called => called = true,
            FlowControl::UnconditionalBranch => {
                return called && instruction.near_branch_target() == function.start;
            }
            _ => return false,
        }
        at = instruction.next_ip();
    }
    false
}

/// True if a jump in `range` leads to `target`; `None` if part of the range does not decode.
fn jumps_to(code: &Code<'_>, range: Extent, target: u64) -> Option<bool> {
    let mut at = range.start;
    while at < range.end {
        let instruction = code.instruction_at(at, range.end)?;
        if instruction.near_branch_target() == target {
            return Some(true);
        }
        at = instruction.next_ip();
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cmp 0x10(%r14),%rsp; jbe more; push %rbp; pop %rbp; ret`, followed by `more`.
    const SMALL: &[u8] = &[0x49, 0x3b, 0x66, 0x10, 0x76, 0x03, 0x55, 0x5d, 0xc3];
    /// `lea -0x40(%rsp),%r12; cmp 0x10(%r14),%r12; jbe more; push %rbp; pop %rbp; ret`.
    const LARGE: &[u8] = &[
        0x4c, 0x8d, 0x64, 0x24, 0xc0, 0x4d, 0x3b, 0x66, 0x10, 0x76, 0x03, 0x55, 0x5d, 0xc3,
    ];
    /// `mov %rsp,%r12; sub $0x10000,%r12; jb more; cmp 0x10(%r14),%r12; jbe more; push %rbp;
    /// pop %rbp; ret`.
    const HUGE: &[u8] = &[
        0x49, 0x89, 0xe4, 0x49, 0x81, 0xec, 0, 0, 1, 0, 0x72, 0x09, 0x4d, 0x3b, 0x66, 0x10, 0x76,
        0x03, 0x55, 0x5d, 0xc3,
    ];
    /// `mov %fs:-8,%rcx; cmp 0x10(%rcx),%rsp; jbe more; push %rbp; pop %rbp; ret`.
    const THREAD_LOCAL: &[u8] = &[
        0x64, 0x48, 0x8b, 0x0c, 0x25, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x3b, 0x61, 0x10, 0x76, 0x03,
        0x55, 0x5d, 0xc3,
    ];

    /// `mov %rax,8(%rsp); call; mov 8(%rsp),%rax; jmp entry`, after `length` bytes of function.
    fn more(length: usize, to: usize) -> Vec<u8> {
        let mut bytes = vec![0x48, 0x89, 0x44, 0x24, 8, 0xe8, 0, 1, 0, 0];
        bytes.extend([0x48, 0x8b, 0x44, 0x24, 8, 0xeb]);
        let behind = length + bytes.len() + 1;
        bytes.push((to as i64 - behind as i64) as u8);
        bytes
    }

    fn check_of(bytes: &[u8]) -> Option<u64> {
        let code = Code::new(bytes, 0x1000);
        stack_check(&code, code.extent())
    }

    #[test]
    fn the_check_ends_behind_its_last_jump() {
        for (start, length) in [(SMALL, 6), (LARGE, 11), (HUGE, 18), (THREAD_LOCAL, 15)] {
            let whole = [start, &more(start.len(), 0)].concat();
            assert_eq!(check_of(&whole), Some(length));
        }
    }

    #[test]
    fn whatever_does_not_come_back_to_the_entry_is_none() {
        let elsewhere = [SMALL, &more(SMALL.len(), 4)].concat();
        assert_eq!(check_of(&elsewhere), None);
        assert_eq!(check_of(SMALL), None); // cut off
        let mut no_call = [SMALL, &more(SMALL.len(), 0)].concat();
        let call = SMALL.len() + 5;
        no_call[call..call + 5].copy_from_slice(&[0x0f, 0x1f, 0x44, 0, 0]);
        assert_eq!(check_of(&no_call), None);
    }

    #[test]
    fn saved_arguments_are_those_loaded_after_the_call() {
        let restored_of = |bytes: &[u8]| {
            let code = Code::new(bytes, 0x1000);
            restored(&code, code.extent())
        };
        let whole = [SMALL, &more(SMALL.len(), 0)].concat();
        let found = restored_of(&whole).expect("it may grow");
        assert!(found.has_general(0) && !found.has_general(3) && !found.has_vector(0));
        assert_eq!(restored_of(SMALL), None);
        let elsewhere = [SMALL, &more(SMALL.len(), 4)].concat();
        assert_eq!(restored_of(&elsewhere), None);
    }

    #[test]
    fn other_beginnings_are_none() {
        // rbx, which holds an argument, instead of r12; another offset; `ja` instead of `jbe`.
        let changed = |start: &[u8], at: usize, byte: u8| {
            let mut whole = [start, &more(start.len(), 0)].concat();
            whole[at] = byte;
            check_of(&whole)
        };
        let rbx = [
            0x48, 0x8d, 0x5c, 0x24, 0xc0, 0x49, 0x3b, 0x5e, 0x10, 0x76, 3, 0x55, 0x5d, 0xc3,
        ];
        assert_eq!(changed(&rbx, 0, 0x48), None);
        assert_eq!(changed(SMALL, 3, 0x20), None);
        assert_eq!(changed(SMALL, 4, 0x77), None);
    }

    #[test]
    fn a_loop_to_the_body_is_none() {
        // `push %rbp; jmp body` instead of `push %rbp; pop %rbp; ret`.
        let start = [0x49, 0x3b, 0x66, 0x10, 0x76, 0x03, 0x55, 0xeb, 0xfd];
        assert_eq!(check_of(&[&start, more(9, 0).as_slice()].concat()), None);
    }
}
