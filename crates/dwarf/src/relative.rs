//! Parameters that debug information describes relative to a register which functions may change.
//!
//! Such a place is given for the whole function, but does not hold in all of it:
//!
//! - clang describes a class whose address the caller put on the stack by the register into which the
//!   first instructions load that address;
//! - GCC describes parameters on the stack of a function that aligns its frame relative to r10, which
//!   the first instruction computes;
//! - GCC does not follow structures that were passed by address: the register is that of its own
//!   choice, from the instruction that sets it to the last use.

use capriole_event::Gpr;
use capriole_prologue::instructions::{Change, changes, last_way_back};
use capriole_prologue::registers::PARAMETERS;
use capriole_prologue::{Place, Prologue, Start, Sum};
use gimli::constants as dw;

use super::early::claims;
use super::error::Refusal;
use super::location::Context;
use super::scope::Variable;
use super::setup::Setup;
use super::units::Debug;

/// Registers that a function may change without restoring them.
const CHANGED: [Gpr; 9] = [
    Gpr::Rax,
    Gpr::Rcx,
    Gpr::Rdx,
    Gpr::Rsi,
    Gpr::Rdi,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
    Gpr::R11,
];
/// Registers in which callers pass arguments.
const ARGUMENTS: usize = 6;

/// Origin of a parameter's address that is in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// The caller put it into the register.
    Passed,
    /// The function's first instructions put it there: it is there at this link address.
    Loaded(u64),
}

impl<'a> Debug<'a> {
    /// Returns where the address of a parameter comes from that is at `place` in the whole function.
    /// Refuses a parameter whose register may hold something else at the site.
    pub(super) fn held(
        &self,
        setup: Setup,
        variable: &Variable<'a>,
        context: Context<'_>,
        place: &Place,
    ) -> Result<Held, Refusal> {
        let Some(register) = base(place) else {
            return Ok(Held::Passed);
        };
        let changed = || changed(context.name);
        let function = self.die(setup.function)?;
        // LLVM proves that the register has the address from the first statement on; with optimisation,
        // from the first instruction on.
        let is_followed = !self.producer(&function).starts_with("GNU");
        if is_followed && self.has_marks(&function) {
            return Ok(Held::Passed);
        }
        let code = self.code(setup).ok_or_else(changed)?;
        let is_argument = PARAMETERS[..ARGUMENTS].contains(&register);
        // The line table may have its second row before the instruction that sets another register.
        let set = changes(&code, setup.start, register).map(|(at, _)| self.behind(at));
        let body = match is_argument {
            true => setup.body,
            false => set.take(1).fold(setup.body, u64::max),
        };
        let mut prologue = Prologue::new(&code, setup.start, body);
        let own = Sum::of(Start::Register(register));
        let is_kept = prologue.follow(body) && prologue.value(register) == Some(own);
        match is_kept {
            _ if is_followed => {}
            false if is_argument => return Err(changed()),
            false => {}
            true => {
                let way_back = last_way_back(&code, setup.start, context.address);
                let last = way_back.unwrap_or(context.address);
                if changes(&code, setup.start, register).any(|(at, _)| at < last)
                    || self.is_set(setup, variable, context, register, &code)?
                {
                    return Err(changed());
                }
            }
        }
        Ok(match is_kept {
            true => Held::Passed,
            false => Held::Loaded(body),
        })
    }

    /// True if a register for arguments may be one that GCC has chosen for the address of a parameter,
    /// and set to it itself: from the caller's part of the stack, or from a register for arguments
    /// that no other parameter has.
    fn is_set(
        &self,
        setup: Setup,
        variable: &Variable<'a>,
        context: Context<'_>,
        register: Gpr,
        code: &[u8],
    ) -> Result<bool, Refusal> {
        let at_entry = Context {
            address: setup.start,
            at_entry: true,
            entry: Some(setup.start),
            ..context
        };
        let mut claimed = Vec::new();
        for die in self.declared(&self.die(setup.function)?)? {
            let is_other = die.key() != variable.die.key();
            if is_other && die.tag() == dw::DW_TAG_formal_parameter {
                let place = self.locate(&die, at_entry).ok();
                claimed.extend(place.iter().flat_map(|(place, _)| claims(place)));
            }
        }
        let is_free = |other: Gpr| {
            let number = PARAMETERS[..ARGUMENTS].iter().position(|&r| r == other);
            number.is_some_and(|number| !claimed.contains(&(0, number)))
        };
        let before_calls =
            changes(code, setup.start, register).take_while(|change| change.1 != Change::Call);
        for (at, change) in before_calls {
            let sets = match change {
                Change::Copy(other) => other != register && is_free(other),
                Change::Load(from, offset) => self.cfa(at).is_some_and(|cfa| {
                    cfa.start == Start::Register(from) && cfa.reads.is_empty() && offset >= cfa.plus
                }),
                Change::Call | Change::Other => false,
            };
            if sets {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns where a parameter is after the first instructions, which have put its address into a
    /// register.
    pub(super) fn loaded(
        &self,
        setup: Setup,
        variable: &Variable<'a>,
        context: Context<'_>,
        place: Place,
    ) -> Result<Place, Refusal> {
        let code = self.code(setup).unwrap_or_default();
        let entry = self.arrival(&variable.die, setup, context.at_body(), &code)?;
        let caller = entry.and_then(|entry| self.on_callers_stack(&entry, context.address));
        let is_followed = !self.producer(&self.die(setup.function)?).starts_with("GNU");
        caller
            .or(is_followed.then_some(place))
            .ok_or_else(|| changed(context.name))
    }

    /// Returns where an object is at an instruction whose address at the function's entry depends only
    /// on the stack pointer: the caller's part of the stack stays as it is.
    pub(super) fn on_callers_stack(&self, entry: &Place, address: u64) -> Option<Place> {
        /// Bytes of the return address.
        const RETURN: i64 = 8;
        let Place::Memory(Sum {
            start: Start::Register(Gpr::Rsp),
            reads,
            plus,
        }) = entry
        else {
            return None;
        };
        let mut offsets = reads.iter().chain([plus]).copied();
        let first = offsets.next().filter(|&first| first >= RETURN)?;
        let mut sum = self.cfa(address)?.shift(first - RETURN);
        for offset in offsets {
            sum = sum.read()?.shift(offset);
        }
        Some(Place::Memory(sum))
    }
}

fn changed(name: &str) -> Refusal {
    let why = "it is relative to a register that the function changes";
    Refusal::Location(name.to_owned(), why)
}

/// Returns the register that a place is relative to, if functions may change it.
fn base(place: &Place) -> Option<Gpr> {
    match place {
        Place::Memory(Sum {
            start: Start::Register(register),
            ..
        }) => CHANGED.contains(register).then_some(*register),
        _ => None,
    }
}
