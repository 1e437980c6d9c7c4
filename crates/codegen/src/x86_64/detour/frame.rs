//! Register use of a detour: which registers it needs, and how they are saved.

use super::Request;
use super::emit::{at, mark};
use crate::work::{Filter, Straight, Word, Work, asks_for_flags};
use capriole_insn::liveness::RegSet;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, Register};

pub(super) const RED_ZONE: i32 = 128;

/// Registers for the work, in addition to rax and rdx, which `rdtsc` overwrites, in order of
/// preference: those that the ABI lets a function clobber come first, as they are most often
/// dead.
const SCRATCH: [Register; 13] = [
    Register::R11,
    Register::R10,
    Register::R9,
    Register::R8,
    Register::RCX,
    Register::RSI,
    Register::RDI,
    Register::RBX,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
    Register::RBP,
];

/// Assignment of registers at one site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// Address of the stream, or of a counter.
    pub pointer: Register,
    /// Address of the record, or offset of a table's row.
    pub place: Register,
    /// A table's key, and the amount added there.
    pub key: Register,
    pub amount: Register,
    /// Saved registers, from the stack pointer downwards, padded with `None`.
    saved: [Register; 7],
    /// True if rcx is free for shifts.
    shifts: bool,
    pub keep_flags: bool,
    pub red_zone: bool,
    /// True if the flags may still be read: after the site, or by its work.
    pub flags_live: bool,
}

/// True if code of the work's stores below the stack pointer where the frame leads it.
fn uses_stack(work: &Work) -> bool {
    !matches!(work, Work::Unregister | Work::Handler(_) | Work::Replace(_))
}

impl Frame {
    /// Chooses the registers. `None` if the work reads so many that too few remain.
    pub fn new(request: &Request<'_>, restartable: bool) -> Option<Frame> {
        let mut fields = RegSet::EMPTY;
        let late = || request.work.iter().filter(|w| !w.is_early());
        for register in late().flat_map(Work::registers) {
            fields.0 |= RegSet::of(register).0;
        }
        let filters = late().filter_map(Work::filter);
        for register in filters.clone().flat_map(Filter::registers) {
            fields.0 |= RegSet::of(register).0;
        }
        let filters = filters.clone().any(Filter::compares_any);
        let enters = request.work.iter().any(|w| matches!(w, Work::Enter { .. }));
        let runs = request.work.iter().any(|w| matches!(w, Work::Run { .. }));
        // Work that precedes a program must leave every register intact for it.
        let live = match enters && runs {
            true => RegSet::ALL,
            false => request.live.gprs,
        };
        let flags_live = request.live.flags || asks_for_flags(request.work);
        let records = request.work.iter().any(|w| matches!(w, Work::Record(_)));
        let any = |asked: fn(&Straight) -> bool| {
            let tallies = |w: &Work| matches!(w, Work::Tally(straight) if asked(straight));
            request.work.iter().any(tallies)
        };
        let long = request.work.iter().any(|w| matches!(w, Work::Long(_)));
        let timed = enters || long || any(Straight::is_timed);
        let rows = any(Straight::is_keyed);
        let keyed = timed || rows;
        let amounts = any(Straight::has_amount);
        let shifts = any(Straight::shifts);
        let adds = any(|_| true) || request.work.iter().any(|w| matches!(w, Work::Count { .. }));
        let counts = timed || adds;
        // The locked path of a record changes no flag.
        let keep_flags = flags_live && (counts || filters || records && restartable);
        let mut taken = fields;
        let mut all = true;
        if shifts {
            taken.0 |= RegSet::of(Register::RCX).0;
        }
        let mut take = |dead: &[Register]| {
            let free = |r: &&Register| !taken.contains(**r);
            let mut candidates = SCRATCH.iter().chain(dead).filter(free);
            let dead = candidates.clone().find(|r| !live.contains(**r));
            let found = dead.or(candidates.next()).copied();
            let found = found.unwrap_or(Register::None);
            all &= found != Register::None;
            taken.0 |= RegSet::of(found).0;
            found
        };
        // Registers that are free once the time is in rax: rdx, and the register with the slot's
        // address if rcx holds the entry's time.
        let (pointer, place, key, amount) = match timed && !records {
            true => {
                let (place, key) = (take(&[]), take(&[]));
                let pointer = if shifts && !rows {
                    place
                } else {
                    Register::RDX
                };
                (pointer, place, key, Register::RAX)
            }
            false => {
                let pointer = match (records, keep_flags) {
                    (true, _) => take(&[]),
                    (false, true) => take(&[Register::RDX]),
                    (false, false) => take(&[Register::RDX, Register::RAX]),
                };
                let mut also = |wanted| if wanted { take(&[]) } else { pointer };
                (pointer, also(records || keyed), also(keyed), also(amounts))
            }
        };
        // Without restartable sequences a record needs only rax.
        let used = [
            (Register::RAX, records || keep_flags || filters || timed),
            (Register::RDX, records && restartable || timed),
            (pointer, adds || records && restartable),
            (place, records && restartable || keyed),
            (key, keyed),
            (amount, amounts),
            (Register::RCX, shifts),
        ];
        let mut saved = [Register::None; 7];
        let mut count = 0;
        for (register, used) in used {
            // A field's register is saved even if it is dead: it is read back from the stack.
            let wanted = used && (live.contains(register) || fields.contains(register));
            if wanted && !saved[..count].contains(&register) {
                saved[count] = register;
                count += 1;
            }
        }
        all.then_some(Frame {
            pointer,
            place,
            key,
            amount,
            saved,
            shifts,
            keep_flags,
            flags_live,
            red_zone: request.red_zone && request.work.iter().any(uses_stack),
        })
    }

    /// Appends everything that distinguishes frames, as bytes.
    pub fn key(&self, key: &mut Vec<u8>) {
        let byte = |register: Register| register as u8;
        let used = [self.pointer, self.place, self.key, self.amount];
        key.extend(used.map(byte));
        key.extend(self.saved.map(byte));
        let bits = [self.shifts, self.keep_flags, self.red_zone, self.flags_live];
        key.extend(bits.map(u8::from));
    }

    /// Returns the saved registers, from the stack pointer downwards.
    pub fn saved(&self) -> &[Register] {
        let none = |r: &Register| *r == Register::None;
        &self.saved[..self.saved.iter().position(none).unwrap_or(self.saved.len())]
    }

    /// Returns the register that holds the time of a call's entry, other than `place` if possible.
    pub fn earlier(&self) -> Register {
        match self.shifts {
            true => Register::RCX,
            false => self.place,
        }
    }

    /// Returns the location of the saved `register`, as an offset from the hot path's stack
    /// pointer.
    pub fn slot(&self, register: Register) -> Option<i64> {
        let index = self.saved().iter().position(|r| *r == register)?;
        Some(-8 * (index as i64 + 2))
    }

    /// Returns the number of bytes in use below the stack pointer, which calls must not overwrite:
    /// the word for a return address, the registers, the flags.
    pub fn size(&self) -> i32 {
        8 * (1 + self.saved().len() + usize::from(self.keep_flags)) as i32
    }

    /// Moves the stack pointer without changing the flags.
    pub fn move_stack(a: &mut CodeAssembler, by: i32) -> Result<(), IcedError> {
        if by == 0 {
            return Ok(());
        }
        let to = at(Register::RSP, i64::from(by));
        a.add_instruction(Instruction::with2(Code::Lea_r64_m, Register::RSP, to)?)
    }

    /// Moves the stack pointer below the red zone.
    pub fn enter(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        Frame::move_stack(a, if self.red_zone { -RED_ZONE } else { 0 })
    }

    /// Moves the stack pointer back.
    pub fn leave(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        Frame::move_stack(a, if self.red_zone { RED_ZONE } else { 0 })
    }

    pub fn save(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        for register in self.saved() {
            let to = at(Register::RSP, self.slot(*register).unwrap_or(0));
            a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, to, *register)?)?;
        }
        if self.keep_flags {
            Frame::save_status(a, -self.size())?;
        }
        Ok(())
    }

    /// Stores the status flags at `place` bytes from the stack pointer. Overwrites rax.
    ///
    /// Never by `pushf` and `popf`: if a debugger steps over those, its trap flag is in what they store, comes
    /// back after it has detached, and ends the program.
    fn save_status(a: &mut CodeAssembler, place: i32) -> Result<(), IcedError> {
        a.lahf()?; // all status flags but OF
        a.seto(al)?;
        let to = at(Register::RSP, i64::from(place));
        a.add_instruction(Instruction::with2(Code::Mov_rm64_r64, to, Register::RAX)?)
    }

    /// Restores what [`save_status`](Self::save_status) has stored. Overwrites rax.
    fn restore_status(a: &mut CodeAssembler, place: i32) -> Result<(), IcedError> {
        let from = at(Register::RSP, i64::from(place));
        a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, from)?)?;
        a.add(al, 0x7f)?; // overflows exactly if OF was set
        a.sahf()
    }

    /// Saves the status flags on the stack, and changes no register but the stack pointer.
    pub fn push_status(a: &mut CodeAssembler) -> Result<(), IcedError> {
        Frame::move_stack(a, -16)?;
        a.mov(qword_ptr(rsp + 8), rax)?;
        Frame::save_status(a, 0)?;
        a.mov(rax, qword_ptr(rsp + 8))
    }

    /// Restores the status flags that [`push_status`](Self::push_status) has saved.
    pub fn pop_status(a: &mut CodeAssembler) -> Result<(), IcedError> {
        Frame::restore_status(a, 0)?;
        a.mov(rax, qword_ptr(rsp + 8))?;
        Frame::move_stack(a, 16)
    }

    pub fn restore(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        self.restore_flags(a)?;
        for register in self.saved().iter().rev() {
            let from = at(Register::RSP, self.slot(*register).unwrap_or(0));
            a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, *register, from)?)?;
        }
        Ok(())
    }

    /// Restores the flags of the site, in the hot path. Where they are live and not saved, nothing
    /// has changed them. Overwrites rax if they are saved.
    pub fn restore_flags(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.keep_flags {
            Frame::restore_status(a, -self.size())?;
        }
        Ok(())
    }

    /// Loads the program's stack pointer at the site; the stack pointer of the hot path is `above`
    /// bytes above the current one.
    pub fn stack_pointer(
        &self,
        a: &mut CodeAssembler,
        to: Register,
        above: i64,
    ) -> Result<(), IcedError> {
        let red_zone = if self.red_zone { RED_ZONE } else { 0 };
        let from = at(Register::RSP, above + i64::from(red_zone));
        a.add_instruction(Instruction::with2(Code::Lea_r64_m, to, from)?)
    }

    /// Pushes the fields of an event, then calls the resident with them. The stack pointer is
    /// `below` bytes below the hot path's; the fields still have their values, or are saved.
    /// `constant` pushes the field with the given number, if it is a constant; `header` pushes
    /// event id and size of the fields. Returns the label after the call.
    pub fn record_locked(
        &self,
        a: &mut CodeAssembler,
        fields: &[Word],
        below: i32,
        locked: u64,
        mut constant: impl FnMut(&mut CodeAssembler, usize, u64) -> Result<(), IcedError>,
        header: impl FnOnce(&mut CodeAssembler, u32) -> Result<(), IcedError>,
    ) -> Result<CodeLabel, IcedError> {
        for (pushed, word) in fields.iter().rev().enumerate() {
            let field = match word {
                Word::Register(register) => *register,
                Word::Constant(value) => {
                    constant(a, fields.len() - 1 - pushed, *value)?;
                    continue;
                }
            };
            if field == Register::RSP {
                // Replaces the pushed rax on the stack; rax itself keeps its value.
                let above = i64::from(below) + 8 * (pushed as i64 + 1);
                a.push(rax)?;
                self.stack_pointer(a, Register::RAX, above)?;
                a.add_instruction(Instruction::with2(
                    Code::Xchg_rm64_r64,
                    at(Register::RSP, 0),
                    Register::RAX,
                )?)?;
                continue;
            }
            if field.is_xmm() {
                // No code on this path has changed the vector register: the resident does not use
                // any.
                Frame::move_stack(a, -8)?;
                let to = at(Register::RSP, 0);
                let code = Code::Movq_xmmm64_xmm;
                a.add_instruction(Instruction::with2(code, to, field)?)?;
                continue;
            }
            match self.slot(field) {
                Some(slot) => a.add_instruction(Instruction::with1(
                    Code::Push_rm64,
                    at(Register::RSP, i64::from(below) + slot + 8 * pushed as i64),
                )?)?,
                None => a.add_instruction(Instruction::with1(Code::Push_r64, field)?)?,
            }
        }
        let bytes = 8 * fields.len() as i32;
        header(a, bytes as u32)?;
        a.call(locked)?;
        let called = mark(a)?;
        Frame::move_stack(a, 8 + bytes)?;
        Ok(called)
    }
}
