//! Use of the red zone, the memory below the stack pointer.
//!
//! The 128 bytes below the stack pointer, the *red zone*, belong to a function until it calls
//! another one (System V ABI, AMD64 supplement, 3.2.2). A function entered by a call finds
//! nothing there. But code in assembly has symbols in the middle of functions, to which the
//! function falls through or jumps while its values are in the red zone.
//!
//! The functions here judge a piece of code without following its control flow: they may report
//! a use where there is none, but miss none that goes through the stack pointer or through a
//! register that the stack pointer was copied to.

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::arch::depth::grows;
use crate::decode::{Code, Extent, is_padding, is_write};
use crate::liveness::RegSet;

/// True if code in `extent` may access memory below the stack pointer, or compute an address
/// there; also true if some of it cannot be decoded.
#[must_use]
pub fn uses_red_zone(code: &Code<'_>, extent: Extent) -> bool {
    let mut factory = InstructionInfoFactory::new();
    // Bytes that the code allocates for its frame: copies of the stack pointer access those.
    let mut room: i64 = 0;
    // Registers that hold the stack pointer plus some offset.
    let mut copies = RegSet::EMPTY;
    let mut at = extent.start;
    while at < extent.end {
        let Some(instruction) = code.instruction_at(at, extent.end) else {
            return true;
        };
        at = instruction.next_ip();
        if is_padding(&instruction) {
            continue;
        }
        match grows(&instruction, &mut factory) {
            Some(by) => room = room.saturating_add(by.max(0)),
            None if is_aligned(&instruction) => {}
            // A stack frame of computed size, or another thread's stack.
            None if instruction.mnemonic() == Mnemonic::Sub => room = i64::MAX,
            None => {}
        }
        if is_below(&instruction, copies, room) || goes_below(&instruction, copies, room) {
            return true;
        }
        follow_copies(&instruction, &mut copies, &mut factory);
    }
    false
}

/// True for `and $-16, %rsp` and the like.
fn is_aligned(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::And
}

/// True if the memory operand (for `lea` too) lies below the stack pointer.
fn is_below(instruction: &Instruction, copies: RegSet, room: i64) -> bool {
    let has_memory =
        (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    if !has_memory || instruction.mnemonic() == Mnemonic::Nop {
        return false;
    }
    let base = instruction.memory_base().full_register();
    let index = instruction.memory_index();
    let displacement = instruction.memory_displacement64() as i64;
    if base == Register::RSP {
        let moves = instruction.mnemonic() == Mnemonic::Lea
            && instruction.op0_register().full_register() == Register::RSP;
        // An index may be negative; in code with a frame, it indexes an array in that frame.
        return !moves && (displacement < 0 || index != Register::None && room == 0);
    }
    copies.contains(base) && displacement < 0 && displacement.saturating_neg() > room
        || copies.contains(index.full_register()) && room == 0
}

/// True if arithmetic with the stack pointer or a copy of it computes an address below it.
fn goes_below(instruction: &Instruction, copies: RegSet, room: i64) -> bool {
    let made = instruction.op0_register();
    if instruction.op0_kind() != OpKind::Register || made == Register::RSP {
        return false;
    }
    let other = (instruction.op1_kind() == OpKind::Register).then(|| instruction.op1_register());
    let by = || instruction.try_immediate(1).map_or(0, |by| by as i64);
    let is_copy = copies.contains(made);
    match instruction.mnemonic() {
        Mnemonic::Add if other == Some(Register::RSP) => room == 0,
        Mnemonic::Add | Mnemonic::Sub if is_copy && other.is_some() => room == 0,
        Mnemonic::Sub if is_copy => by() > room,
        Mnemonic::Add if is_copy => by().saturating_neg() > room,
        Mnemonic::And | Mnemonic::Dec if is_copy => room == 0,
        _ => false,
    }
}

/// Updates the set of registers that the stack pointer was copied to, taking instructions in memory
/// order.
fn follow_copies(
    instruction: &Instruction,
    copies: &mut RegSet,
    factory: &mut InstructionInfoFactory,
) {
    let of_stack = |register: Register, copies: &RegSet| {
        register == Register::RSP || copies.contains(register)
    };
    let copied = match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
            of_stack(instruction.op1_register(), copies)
        }
        Mnemonic::Lea => {
            of_stack(instruction.memory_base(), copies)
                || of_stack(instruction.memory_index(), copies)
        }
        // `add %rsp, %rax`, and `sub $8, %rax` on a copy.
        Mnemonic::Add | Mnemonic::Sub => {
            of_stack(instruction.op0_register(), copies)
                || instruction.op1_kind() == OpKind::Register
                    && of_stack(instruction.op1_register(), copies)
        }
        Mnemonic::And => of_stack(instruction.op0_register(), copies),
        _ => false,
    };
    for used in factory.info(instruction).used_registers() {
        if is_write(used.access()) {
            copies.0 &= !RegSet::of(used.register().full_register()).0;
        }
    }
    let made = instruction.op0_register();
    if copied && instruction.op0_kind() == OpKind::Register && made != Register::RSP {
        copies.0 |= RegSet::of(made).0;
    }
}

/// True if control may fall through from the code in `before` past its end with values below
/// the stack pointer. `before` begins at an instruction. After a call nothing is left there.
///
/// `is_target` reports whether anything leads into a range; after code that never continues,
/// control runs through padding only from such a target.
#[must_use]
pub fn runs_into_end(code: &Code<'_>, before: Extent, is_target: impl Fn(Extent) -> bool) -> bool {
    let mut last: Option<Instruction> = None;
    let mut at = before.start;
    while at < before.end {
        // An instruction that extends past the end shows that decoding went wrong.
        let Some(instruction) = code.instruction_at(at, before.end) else {
            return true;
        };
        at = instruction.next_ip();
        if !is_padding(&instruction) {
            last = Some(instruction);
        }
    }
    let Some(last) = last else {
        // Nothing but padding; control may still enter it from elsewhere.
        return is_target(before);
    };
    match last.flow_control() {
        FlowControl::Return
        | FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Exception => is_target(Extent::new(last.next_ip(), before.end)),
        FlowControl::Call | FlowControl::IndirectCall => {
            // `call 1f; 1: pop %rax` does not call a function.
            last.mnemonic() != Mnemonic::Call
                || last.near_branch_target() == last.next_ip()
                || is_target(Extent::new(last.next_ip(), before.end))
        }
        _ if last.mnemonic() == Mnemonic::Hlt => is_target(Extent::new(last.next_ip(), before.end)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(bytes: &[u8]) -> bool {
        let code = Code::new(bytes, 0x1000);
        uses_red_zone(&code, code.extent())
    }

    fn runs_on(bytes: &[u8]) -> bool {
        let code = Code::new(bytes, 0x1000);
        runs_into_end(&code, code.extent(), |_| false)
    }

    #[test]
    fn accesses_below_the_stack_pointer_are_seen() {
        // mov %rdi,-8(%rsp)
        assert!(uses(&[0x48, 0x89, 0x7c, 0x24, 0xf8]));
        // lea -64(%rsp),%rdx
        assert!(uses(&[0x48, 0x8d, 0x54, 0x24, 0xc0]));
        // mov %rdi,(%rsp,%rcx,8): the index may be negative
        assert!(uses(&[0x48, 0x89, 0x3c, 0xcc]));
        // push %rbp; mov %rsp,%rbp; mov %rdi,-16(%rbp); pop %rbp
        assert!(uses(&[
            0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x7d, 0xf0, 0x5d
        ]));
        // mov %rsp,%rax; mov %rax,%rdx; mov %rdi,-8(%rdx)
        assert!(uses(&[
            0x48, 0x89, 0xe0, 0x48, 0x89, 0xc2, 0x48, 0x89, 0x7a, 0xf8
        ]));
        // mov %rsp,%rax; sub $64,%rax
        assert!(uses(&[0x48, 0x89, 0xe0, 0x48, 0x83, 0xe8, 0x40]));
        // mov $-8,%rax; add %rsp,%rax
        assert!(uses(&[
            0x48, 0xc7, 0xc0, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x01, 0xe0
        ]));
        // (bad)
        assert!(uses(&[0x06]));
    }

    #[test]
    fn frames_are_no_red_zone() {
        // sub $24,%rsp; mov %rdi,8(%rsp); mov %rdi,(%rsp,%rcx,8); add $24,%rsp; ret
        assert!(!uses(&[
            0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0x7c, 0x24, 0x08, 0x48, 0x89, 0x3c, 0xcc, 0x48,
            0x83, 0xc4, 0x18, 0xc3
        ]));
        // push %rbp; mov %rsp,%rbp; sub $16,%rsp; mov %rdi,-16(%rbp); leave; ret
        assert!(!uses(&[
            0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x48, 0x89, 0x7d, 0xf0, 0xc9, 0xc3
        ]));
        // lea -24(%rsp),%rsp; mov %rsp,%rax; mov $1,%eax; mov %rdi,-8(%rax)
        assert!(!uses(&[
            0x48, 0x8d, 0x64, 0x24, 0xe8, 0x48, 0x89, 0xe0, 0xb8, 1, 0, 0, 0, 0x48, 0x89, 0x78,
            0xf8
        ]));
    }

    #[test]
    fn only_calls_and_ends_keep_from_running_on() {
        assert!(runs_on(&[0x89, 0xf8])); // mov %edi,%eax
        assert!(runs_on(&[0x74, 0x00])); // je
        assert!(runs_on(&[0x90, 0x89, 0xf8, 0x90, 0xcc])); // ...; nop; int3
        assert!(runs_on(&[0xe8, 0, 0, 0, 0])); // call of what is behind
        assert!(runs_on(&[0xc3, 0x0f])); // ret; the rest is no instruction
        assert!(!runs_on(&[0xe8, 0, 1, 0, 0, 0x90])); // call; nop
        assert!(!runs_on(&[0xc3, 0x0f, 0x1f, 0x00])); // ret; nop
        assert!(!runs_on(&[0xeb, 0x20])); // jmp
        assert!(!runs_on(&[0xff, 0xe0])); // jmp *%rax
        assert!(!runs_on(&[0x0f, 0x0b, 0xcc])); // ud2; int3
        assert!(!runs_on(&[])); // nothing
        // Something leads to the nop after the `ret`.
        let code = Code::new(&[0xc3, 0x90], 0x1000);
        let leads = |range: Extent| range.contains(0x1001);
        assert!(runs_into_end(&code, code.extent(), leads));
    }
}
