//! Names of the parts of a detour, and the purpose of its recording instructions.

use super::threads::Threads;
use capriole_codegen::detour::{Named, Purpose};
use capriole_ring::layout::record;
use capriole_select::select::Selected;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Returns the part's name in the output: `save`, `record`, `copy of ADDRESS`, …
pub(super) fn name(purpose: Purpose) -> String {
    match purpose {
        Purpose::Cold => "cold".to_owned(),
        Purpose::Save => "save".to_owned(),
        Purpose::Work(_) => "record".to_owned(),
        Purpose::Commit(_) => "commit".to_owned(),
        Purpose::Restore => "restore".to_owned(),
        Purpose::Copy(old) => format!("copy of {old:#x}"),
        Purpose::Back => "go on".to_owned(),
    }
}

/// Returns the name that stands for an address in the detour's instructions.
pub(super) fn symbol(named: Named) -> &'static str {
    match named {
        Named::Descriptor => "descriptor",
        Named::Streams => "streams",
        Named::Cold => "cold",
        Named::Program => "program",
    }
}

/// Data for the notes on recording instructions.
pub(super) struct Notes<'a> {
    pub(super) event: &'a Selected,
    pub(super) threads: &'a Threads,
    /// Register that holds the address just past the record.
    pub(super) place: Register,
}

impl Notes<'_> {
    /// Returns the purpose of a recording instruction where it is not obvious.
    pub(super) fn of(&self, instruction: &Instruction) -> String {
        let i = instruction;
        let displacement = i.memory_displacement64() as i64;
        let rseq = self.threads.rseq_offset.map(i64::from);
        let note = match i.mnemonic() {
            Mnemonic::Rdtsc => "the time",
            Mnemonic::Ja => "no room",
            Mnemonic::Call => "records the event",
            _ if i.memory_segment() == Register::FS => match displacement {
                _ if rseq.is_some_and(|rseq| displacement == rseq + 4) => "the CPU",
                _ if rseq.is_some_and(|rseq| displacement == rseq + 8) => "restartable from here",
                _ => "the thread's id",
            },
            Mnemonic::Mov if i.op0_kind() == OpKind::Memory && i.memory_index() == self.place => {
                const FIELDS: i64 = record::FIELDS as i64;
                // `place` points just past the record.
                let size = FIELDS + 8 * self.event.fields.fetch.recorded as i64;
                match displacement + size {
                    offset if offset == record::ID as i64 => "event 0",
                    offset if offset >= FIELDS => {
                        let index = (offset - FIELDS) / 8;
                        let field = self.event.fields.infos.get(index as usize);
                        return field.map(|info| info.name.clone()).unwrap_or_default();
                    }
                    _ => "",
                }
            }
            _ => "",
        };
        note.to_owned()
    }
}
