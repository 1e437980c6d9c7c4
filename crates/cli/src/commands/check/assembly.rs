//! Bytes and instructions as text.

use iced_x86::{
    Decoder, DecoderOptions, Formatter, GasFormatter, Instruction, Mnemonic, Register,
    SymbolResolver, SymbolResult,
};
use std::collections::HashMap;

/// Formats bytes in hexadecimal, separated by blanks.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the name of a register in lower case.
pub(super) fn name(register: Register) -> String {
    format!("{register:?}").to_lowercase()
}

/// Creates a formatter for AT&T syntax, as GNU tools print it, with names for some addresses.
pub(super) fn formatter(names: Option<Names>) -> GasFormatter {
    let names = names.map(|names| Box::new(names) as Box<dyn SymbolResolver>);
    let mut formatter = GasFormatter::with_options(names, None);
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    formatter
}

/// Formats an instruction without symbol names.
pub(super) fn assembly(instruction: &Instruction) -> String {
    let mut formatter = formatter(None);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

/// Symbol names for addresses in the sketched session, which does not exist.
pub(super) struct Names(pub(super) HashMap<u64, String>);

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        let name = self.0.get(&address)?;
        Some(SymbolResult::with_str(address, name))
    }
}

/// Decodes copies of displaced instructions. The copy of a call pushes its return address from
/// the 8 bytes of data after it.
pub(super) fn instructions(bytes: &[u8], start: u64) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let mut literals: Vec<u64> = Vec::new();
    let mut found = Vec::new();
    while decoder.can_decode() {
        let at = decoder.ip();
        let position = decoder.position();
        let literal = bytes.get(position..position + 8);
        if let Some(Ok(word)) = literal.map(<[u8; 8]>::try_from)
            && literals.contains(&at)
            && decoder.set_position(position + 8).is_ok()
        {
            decoder.set_ip(at + 8);
            let mut quad = Instruction::with_declare_qword_1(u64::from_le_bytes(word));
            quad.set_len(8);
            quad.set_ip(at);
            found.push(quad);
            continue;
        }
        let instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::Push && instruction.is_ip_rel_memory_operand() {
            literals.push(instruction.ip_rel_memory_address());
        }
        found.push(instruction);
    }
    found
}
