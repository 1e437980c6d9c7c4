//! Single instructions at the start of a function.

use capriole_event::Gpr;
use iced_x86::{
    Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
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

/// True if `code` consists of instructions without effect.
#[must_use]
pub fn does_nothing(code: &[u8]) -> bool {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    decoder
        .iter()
        .all(|i| matches!(i.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Nop))
}

/// Finds the instructions that store to the memory at `base` plus `offset`. Yields the link
/// address of each, and of the instruction after it.
pub fn stores(code: &[u8], start: u64, base: Gpr, offset: i64) -> impl Iterator<Item = (u64, u64)> {
    let mut info = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode())).filter_map(
        move |i| {
            let is_there = i.op0_kind() == OpKind::Memory
                && general(i.memory_base()) == Some((base as usize, 8))
                && i.memory_index() == Register::None
                && i.memory_displacement64() as i64 == offset
                && writes(info.info(&i).op0_access());
            is_there.then(|| (i.ip(), i.next_ip()))
        },
    )
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
    fn only_stores_to_that_word_count() {
        let code = [
            0x48, 0x8b, 0x45, 0xf8, // mov -8(%rbp),%rax
            0x48, 0x89, 0x45, 0xf0, // mov %rax,-16(%rbp)
            0x48, 0x89, 0x45, 0xf8, // mov %rax,-8(%rbp)
        ];
        let found: Vec<_> = stores(&code, 0x1000, Gpr::Rbp, -8).collect();
        assert_eq!(found, [(0x1008, 0x100c)]);
    }
}
