//! The parts of a detour, and the purpose of its instructions.

use super::threads::Threads;
use capriole::select::Selected;
use capriole_ring::layout::record;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Start addresses of the parts of a detour.
pub(super) struct Parts {
    record: u64,
    commit: u64,
    restore: u64,
    copies: u64,
    /// Register that holds the address just past the record.
    pub(super) place: Register,
}

impl Parts {
    /// Splits a detour that records from `begin` to `done`. With restartable sequences the last
    /// instruction before `done` is the commit: `mov %place, (%stream)`.
    pub(super) fn between(begin: u64, done: u64, copies: u64, code: &[Instruction]) -> Parts {
        let last = code.iter().rfind(|i| i.next_ip() == done);
        let commit =
            last.filter(|i| i.mnemonic() == Mnemonic::Mov && i.op0_kind() == OpKind::Memory);
        Parts {
            record: begin,
            commit: commit.map_or(done, Instruction::ip),
            restore: done,
            copies,
            place: commit.map_or(Register::None, |i| i.op1_register().full_register()),
        }
    }

    /// Splits a detour that records on the locked path, which moves the stack pointer before and
    /// after its work.
    pub(super) fn locked(entry: u64, copies: u64, code: &[Instruction]) -> Parts {
        let moves = |i: &&Instruction| {
            i.mnemonic() == Mnemonic::Lea && i.op0_register() == Register::RSP && i.ip() < copies
        };
        let call = code.iter().position(|i| i.mnemonic() == Mnemonic::Call);
        let (before, behind) = code.split_at(call.unwrap_or(0));
        let begin = before.iter().rfind(moves).map_or(entry, Instruction::ip);
        let done = behind.iter().filter(moves).nth(1);
        let done = done.map_or(copies, Instruction::next_ip);
        Parts::between(begin, done, copies, code)
    }

    /// Returns the part that an instruction belongs to; `None` for the copies.
    pub(super) fn name(&self, at: u64) -> Option<&'static str> {
        match at {
            _ if at < self.record => Some("save"),
            _ if at < self.commit => Some("record"),
            _ if at < self.restore => Some("commit"),
            _ if at < self.copies => Some("restore"),
            _ => None,
        }
    }
}

/// Data for the notes on recording instructions.
pub(super) struct Notes<'a> {
    pub(super) event: &'a Selected,
    pub(super) threads: &'a Threads,
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
