//! Where the program's stack pointer and registers are at each instruction of a detour, for an unwinder
//! that starts from a signal which has interrupted it there.
//!
//! Found in the finished code, by following its control flow from the entry and from where the kernel sends
//! aborted sequences: what the assembler was told does not count. The rows have the format of
//! [`place`](capriole_ring::numbers::place).

use capriole_ring::numbers::place;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpKind, Register,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Registers that a function preserves, in the order of the rows.
const PRESERVED: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
const WORD: i64 = 8;
const RED_ZONE: i64 = super::frame::RED_ZONE as i64;

/// A piece of code.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    pub address: u64,
    pub bytes: &'a [u8],
}

impl Piece<'_> {
    fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes.len() as u64
    }

    fn decode(&self, at: u64) -> Instruction {
        let code = &self.bytes[(at - self.address) as usize..];
        Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode()
    }
}

/// Place of an address in the detour that is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Nowhere,
    Register(Register),
    /// So many words below the site's stack pointer.
    Stack(i64),
}

/// Where everything is before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    /// Bytes by which the stack pointer is below that of the site.
    below: i64,
    way: Way,
    /// Bytes below the site's stack pointer where the preserved registers are saved; 0: they hold what
    /// they held.
    saved: [i64; PRESERVED.len()],
}

impl State {
    const ENTRY: State = State {
        below: 0,
        way: Way::Nowhere,
        saved: [0; PRESERVED.len()],
    };

    /// Returns the row, without its offset; `None` if it has no form.
    fn row(&self) -> Option<u64> {
        let fits = |value: i64, limit: u64| u64::try_from(value).ok().filter(|v| *v < limit);
        let mut row = fits(self.below / WORD, place::UNKNOWN)? << place::BELOW_SHIFT;
        let way = match self.way {
            Way::Nowhere => place::NOWHERE,
            Way::Register(register) => place::REGISTER + register.number() as u64,
            Way::Stack(words) => place::STACK + fits(words, 0xff - place::STACK)?,
        };
        row |= way << place::DETOUR_SHIFT;
        let below_red_zone = self.saved.iter().any(|saved| *saved > RED_ZONE);
        row |= u64::from(below_red_zone) << place::RED_ZONE;
        let zone = if below_red_zone { RED_ZONE } else { 0 };
        for (shift, saved) in (place::SAVED_SHIFT..)
            .step_by(place::SAVED_BITS as usize)
            .zip(self.saved)
        {
            if saved != 0 {
                row |= fits((saved - zone) / WORD, 1 << place::SAVED_BITS)? << shift;
            }
        }
        Some(row)
    }
}

/// The rows of a detour's code and of the code that it shares with others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Places {
    pub body: Vec<u64>,
    pub shared: Vec<u64>,
}

/// Returns the rows for a detour, up to its copies, and for the code that it `shares` with others. `aborts`
/// are the starts of restartable sequences, and where they are aborted to. `None` if the rows have no
/// form, or would be too many.
pub(super) fn places(
    body: Piece<'_>,
    entry: u64,
    shared: Piece<'_>,
    aborts: &[(u64, u64)],
) -> Option<Places> {
    let mut walk = Walk {
        body,
        shared,
        known: BTreeMap::new(),
        info: InstructionInfoFactory::new(),
    };
    walk.from(entry, State::ENTRY)?;
    for (start, abort) in aborts {
        // A filter that never holds leaves out its sequence.
        if let Some((state, _)) = walk.known.get(start).copied() {
            walk.from(*abort, state)?;
        }
    }
    Some(Places {
        body: rows(body, &walk.known)?,
        shared: rows(shared, &walk.known)?,
    })
}

/// Returns the rows of a piece.
fn rows(piece: Piece<'_>, known: &BTreeMap<u64, (State, u64)>) -> Option<Vec<u64>> {
    const UNKNOWN: u64 = place::UNKNOWN << place::BELOW_SHIFT;
    let mut rows = Vec::new();
    let mut last = None;
    let mut add = |at: u64, row: u64| {
        if last != Some(row) {
            rows.push((at - piece.address) | row);
            last = Some(row);
        }
    };
    let mut end = piece.address;
    for (at, (state, next)) in known.range(piece.range()) {
        if *at != end {
            add(end, UNKNOWN);
        }
        add(*at, state.row()?);
        end = *next;
    }
    if end < piece.range().end {
        add(end, UNKNOWN);
    }
    rows.push(place::END);
    let fits = piece.bytes.len() < place::END as usize && rows.len() <= place::MOST;
    fits.then_some(rows)
}

struct Walk<'a> {
    body: Piece<'a>,
    shared: Piece<'a>,
    /// For each instruction: the state before it, and the address of the next one.
    known: BTreeMap<u64, (State, u64)>,
    info: InstructionInfoFactory,
}

impl Walk<'_> {
    /// Follows the code from an instruction on. `None` if some instruction is reached in two states, or
    /// makes one that has no form.
    fn from(&mut self, start: u64, state: State) -> Option<()> {
        let mut pending = vec![(start, state)];
        while let Some((at, state)) = pending.pop() {
            let pieces = [self.body, self.shared];
            let Some(piece) = pieces.into_iter().find(|piece| piece.range().contains(&at)) else {
                continue; // the copies
            };
            let instruction = piece.decode(at);
            if instruction.is_invalid() {
                return None;
            }
            let known = (state, instruction.next_ip());
            match self.known.insert(at, known) {
                Some(before) if before == known => continue,
                Some(_) => return None,
                None => {}
            }
            let after = self.after(&instruction, state)?;
            let target = instruction.near_branch_target();
            match instruction.flow_control() {
                FlowControl::UnconditionalBranch => pending.push((target, after)),
                FlowControl::ConditionalBranch => {
                    pending.extend([(target, after), (instruction.next_ip(), after)]);
                }
                FlowControl::Call if self.shared.range().contains(&target) => {
                    // It returns by a jump.
                    let below = after.below + WORD;
                    let way = Way::Stack(below / WORD);
                    pending.push((
                        target,
                        State {
                            below,
                            way,
                            ..after
                        },
                    ));
                }
                FlowControl::IndirectBranch | FlowControl::Return => {}
                _ => pending.push((instruction.next_ip(), after)),
            }
        }
        Some(())
    }

    /// True if an instruction's operand is at a place in the detour, relative to the instruction.
    fn is_in_body(&self, instruction: &Instruction) -> bool {
        let body = self.body.range();
        instruction.is_ip_rel_memory_operand()
            && body.contains(&instruction.ip_rel_memory_address())
    }

    /// Returns the state after an instruction. Calls leave everything as it is. A register that is changed
    /// without being saved is dead: the program writes it before it reads it.
    fn after(&mut self, instruction: &Instruction, state: State) -> Option<State> {
        let mut after = state;
        let register = instruction.op0_register();
        let by = i64::from(instruction.stack_pointer_increment());
        match instruction.mnemonic() {
            Mnemonic::Call => return Some(state),
            Mnemonic::Push => {
                after.below -= by;
                if state.way == Way::Register(register) {
                    after.way = Way::Stack(after.below / WORD);
                }
                return Some(after);
            }
            Mnemonic::Pop => {
                after.below -= by;
                if state.way == Way::Stack(state.below / WORD) {
                    after.way = Way::Register(register);
                    return Some(after);
                }
            }
            Mnemonic::Lea if register == Register::RSP => {
                let is_relative = instruction.memory_base() == Register::RSP
                    && instruction.memory_index() == Register::None;
                after.below -= instruction.memory_displacement64() as i64;
                return is_relative.then_some(after);
            }
            Mnemonic::Lea if self.is_in_body(instruction) => {
                after.way = Way::Register(register);
                return Some(after);
            }
            // To another place in the same detour.
            Mnemonic::Lea if instruction.memory_base() == register => return Some(state),
            Mnemonic::Mov => {
                if let Some(after) = save_or_restore(instruction, state) {
                    return Some(after);
                }
            }
            _ => {}
        }
        for used in self.info.info(instruction).used_registers() {
            let written = used.register().full_register();
            if !writes(used.access()) {
                continue;
            }
            if state.way == Way::Register(written) {
                after.way = Way::Nowhere;
            }
            if written == Register::RSP && by == 0 {
                return None;
            }
        }
        Some(after)
    }
}

fn writes(access: iced_x86::OpAccess) -> bool {
    use iced_x86::OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
}

/// Returns the state after a preserved register is saved on the stack, or restored from there.
fn save_or_restore(instruction: &Instruction, state: State) -> Option<State> {
    let on_stack =
        instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None;
    let (register, saves) = match instruction.code() {
        Code::Mov_rm64_r64 if instruction.op0_kind() == OpKind::Memory => {
            (instruction.op1_register(), true)
        }
        Code::Mov_r64_rm64 if instruction.op1_kind() == OpKind::Memory => {
            (instruction.op0_register(), false)
        }
        _ => return None,
    };
    let index = PRESERVED.iter().position(|known| *known == register)?;
    let at = state.below - instruction.memory_displacement64() as i64;
    let mut after = state;
    match (saves, state.saved[index]) {
        (true, 0) if on_stack => after.saved[index] = at,
        (false, saved) if on_stack && saved == at => after.saved[index] = 0,
        _ => return None,
    }
    Some(after)
}
