//! Registers and flags that a detour uses.

use super::assembly::name;
use capriole_insn::RegSet;
use capriole_select::select::Selected;
use capriole_tactic::site::Shape;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};

/// Use of one register by the detour, or of the flags.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) name: String,
    pub(super) live: bool,
    pub(super) saved: bool,
    written: bool,
    pub(super) field: Option<String>,
}

impl Used {
    /// Describes the use in a few words.
    pub(super) fn why(&self) -> String {
        let live = if self.live { "live" } else { "dead" };
        match (&self.field, self.written, self.saved) {
            (Some(field), false, _) => format!("holds the field {field}, is only read"),
            (Some(field), true, _) => format!("holds the field {field}, saved"),
            (None, _, true) => format!("{live}, saved"),
            (None, true, false) => format!("{live}, not saved"),
            (None, false, false) => format!("{live}, not changed"),
        }
    }
}

/// Lists the registers that a detour reads or writes for its work, and the flags.
pub(super) fn used<'a>(
    event: &Selected,
    shape: &Shape,
    saved: &[Register],
    code: impl Iterator<Item = &'a Instruction> + Clone,
) -> Vec<Used> {
    let mut written = RegSet::EMPTY;
    let mut info = InstructionInfoFactory::new();
    let mut flags = false;
    for instruction in code.clone() {
        flags |= instruction.rflags_modified() != 0;
        for register in info.info(instruction).used_registers() {
            let only_read = matches!(register.access(), OpAccess::Read | OpAccess::CondRead);
            if !only_read && register.register().full_register() != Register::RSP {
                written.0 |= RegSet::of(register.register()).0;
            }
        }
    }
    let field = |register: Register| {
        let found = event.fields.registers().find(|(_, r)| *r == register);
        found.map(|(name, _)| name.to_owned())
    };
    let mut used: Vec<Used> = RegSet::ALL
        .iter()
        .filter(|r| written.contains(*r) || field(*r).is_some())
        .map(|register| Used {
            name: name(register),
            live: shape.live.gprs.contains(register),
            saved: saved.contains(&register),
            written: written.contains(register),
            field: field(register),
        })
        .collect();
    used.push(Used {
        name: "flags".to_owned(),
        live: shape.live.flags,
        saved: code.clone().any(|i| i.mnemonic() == Mnemonic::Lahf),
        written: flags,
        field: None,
    });
    used
}
