//! Single instructions at the start of a function.

use capriole_event::Gpr;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

/// The longest instruction, in bytes.
pub const LONGEST: u64 = 15;

/// Returns the address after the instruction at `address`, where `code` is; at least the next
/// byte's.
#[must_use]
pub fn behind(code: &[u8], address: u64) -> u64 {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    decoder.decode().next_ip().max(address + 1)
}

/// Returns the link addresses behind each of the no-op instructions with which code begins.
pub fn ends_of_nops(code: &[u8], address: u64) -> Vec<u64> {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let nops = decoder
        .into_iter()
        .take_while(|i| i.mnemonic() == Mnemonic::Nop);
    nops.map(|nop| nop.next_ip()).collect()
}

/// Finds the direct branches. Yields the link address of each, and of its target.
pub fn branches(code: &[u8], start: u64) -> impl Iterator<Item = (u64, u64)> {
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let branches = decoder.into_iter().filter(|i| {
        let is_branch = matches!(
            i.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        is_branch && i.op_kinds().all(|kind| kind == OpKind::NearBranch64)
    });
    branches.map(|i| (i.ip(), i.near_branch_target()))
}

/// True if `code` consists of instructions without effect.
#[must_use]
pub fn does_nothing(code: &[u8]) -> bool {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    decoder
        .iter()
        .all(|i| matches!(i.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Nop))
}

/// Finds the instructions that write to memory at an offset from a register. Yields, for each, its link
/// address, that of the next one, and the offset.
pub fn stores(code: &[u8], start: u64, base: Gpr) -> impl Iterator<Item = (u64, u64, i64)> {
    let mut info = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode())).filter_map(
        move |i| {
            let is_there = i.op0_kind() == OpKind::Memory
                && general(i.memory_base()) == Some((base as usize, 8))
                && i.memory_index() == Register::None
                && writes(info.info(&i).op0_access());
            is_there.then(|| (i.ip(), i.next_ip(), i.memory_displacement64() as i64))
        },
    )
}

/// How an instruction changes a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A copy of another register.
    Copy(Gpr),
    /// A word loaded from memory at this offset from a register, or the address of that memory.
    Load(Gpr, i64),
    /// A function is called, which may change it.
    Call,
    /// Another calculation.
    Other,
}

/// Finds the instructions that may change a register. Yields the link address of each.
pub fn changes(code: &[u8], start: u64, register: Gpr) -> impl Iterator<Item = (u64, Change)> {
    let mut info = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode())).filter_map(
        move |i| {
            let is_call = matches!(
                i.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            );
            if is_call {
                return Some((i.ip(), Change::Call));
            }
            let mut used = info.info(&i).used_registers().iter();
            let is_changed = used.any(|used| {
                let full = used.register().full_register();
                writes(used.access()) && general(full) == Some((register as usize, 8))
            });
            is_changed.then(|| (i.ip(), change(&i)))
        },
    )
}

fn change(i: &Instruction) -> Change {
    let source = |register| general(register).and_then(|(number, _)| Gpr::ALL.get(number).copied());
    let plain = i.memory_index() == Register::None;
    match (i.mnemonic(), i.op1_kind()) {
        (Mnemonic::Mov, OpKind::Register) => {
            source(i.op1_register()).map_or(Change::Other, Change::Copy)
        }
        (Mnemonic::Mov | Mnemonic::Lea, OpKind::Memory) if plain => {
            let offset = i.memory_displacement64() as i64;
            let load = |base| Change::Load(base, offset);
            source(i.memory_base()).map_or(Change::Other, load)
        }
        _ => Change::Other,
    }
}

/// Returns the address of the last instruction that jumps back to `address` or before it, and is not
/// before it itself; `None` if there is none.
#[must_use]
pub fn last_way_back(code: &[u8], start: u64, address: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let jumps = std::iter::from_fn(|| decoder.can_decode().then(|| decoder.decode()));
    let ways = jumps.filter(|i| {
        let is_jump = matches!(
            i.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        let target = i.near_branch_target();
        is_jump && i.ip() >= address && (start..=address).contains(&target)
    });
    ways.map(|i| i.ip()).last()
}

/// True if an operand is written, possibly.
pub(super) fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Returns the number and the size in bytes of a general register, or of a part of one.
pub(super) fn general(register: Register) -> Option<(usize, usize)> {
    use Register::{AH, BH, CH, DH};
    if !register.is_gpr() || matches!(register, AH | BH | CH | DH) {
        return None;
    }
    let number = register.full_register().number();
    (number < 16).then(|| (number, register.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nops_and_landmarks_do_nothing() {
        let endbr64 = [0xf3, 0x0f, 0x1e, 0xfa];
        assert!(does_nothing(&endbr64) && does_nothing(&[0x66, 0x90]));
        assert!(!does_nothing(&[0x90, 0x55])); // nop; push %rbp
        assert_eq!(behind(&endbr64, 0x1000), 0x1004);
        assert_eq!(behind(&[], 0x1000), 0x1001);
    }

    #[test]
    fn changes_of_a_register_are_told_apart() {
        let code = [
            0x48, 0x89, 0xf7, // mov %rsi,%rdi
            0x48, 0x8b, 0x7d, 0x10, // mov 16(%rbp),%rdi
            0x48, 0x8d, 0x7c, 0x24, 0x08, // lea 8(%rsp),%rdi
            0x31, 0xff, // xor %edi,%edi
            0x48, 0x89, 0xc6, // mov %rax,%rsi
            0xe8, 0, 0, 0, 0, // call
            0x75, 0xe8, // jne 0x1000
        ];
        let found: Vec<_> = changes(&code, 0x1000, Gpr::Rdi).collect();
        let expected = [
            (0x1000, Change::Copy(Gpr::Rsi)),
            (0x1003, Change::Load(Gpr::Rbp, 16)),
            (0x1007, Change::Load(Gpr::Rsp, 8)),
            (0x100c, Change::Other),
            (0x1011, Change::Call),
        ];
        assert_eq!(found, expected);
        assert_eq!(last_way_back(&code, 0x1000, 0x1003), Some(0x1016));
        assert_eq!(last_way_back(&code[..22], 0x1000, 0x1003), None);
    }

    #[test]
    fn stores_are_found_with_their_offsets() {
        let code = [
            0x48, 0x8b, 0x45, 0xf8, // mov -8(%rbp),%rax
            0x48, 0x89, 0x45, 0xf0, // mov %rax,-16(%rbp)
            0x48, 0x89, 0x45, 0xf8, // mov %rax,-8(%rbp)
        ];
        let found: Vec<_> = stores(&code, 0x1000, Gpr::Rbp).collect();
        assert_eq!(found, [(0x1004, 0x1008, -16), (0x1008, 0x100c, -8)]);
    }
}
