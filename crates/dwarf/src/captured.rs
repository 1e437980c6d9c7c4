//! Variables of Go that a function reaches through memory: those that a function literal has captured,
//! and those that were moved to the heap.
//!
//! At the entry of a function literal rdx points to its closure (Go's cmd/compile/abi-internal.md, "closure
//! context pointer"): a word for the code, then copies of the captured variables, or, of those that change,
//! their addresses. `DW_AT_go_closure_offset` (cmd/internal/dwarf/dwarf.go) says where each is. The
//! function copies what it needs to its frame, where its debug information describes it from the first
//! instruction on.

use capriole_event::Gpr;
use capriole_prologue::instructions::stores;
use capriole_prologue::{Place, Start, Sum};
use gimli::{DwAt, constants as dw};

use super::die::Die;
use super::error::{DebugError, Refusal};
use super::scope::Variable;
use super::setup::Setup;
use super::types::Shape;
use super::units::{Debug, DieKey};

/// `DW_AT_go_closure_offset`: bytes from the start of the closure.
const CLOSURE_OFFSET: DwAt = DwAt(0x2907);
/// Maximum size in bytes of a variable that Go captures by value, if nothing changes it (`flowClosure` in
/// cmd/compile/internal/escape).
const BY_VALUE: u64 = 128;
/// Maximum size, and number of words, of a variable that Go keeps in registers (`CanSSA` in
/// cmd/compile/internal/ssa).
const IN_REGISTERS: (u64, usize) = (32, 4);

impl<'a> Debug<'a> {
    /// Returns where a captured variable, or its address, is at the function's entry.
    pub(super) fn captured(
        &self,
        setup: Setup,
        variable: &Variable<'a>,
    ) -> Result<Option<Place>, Refusal> {
        let Some(offset) = captured_at(&variable.die).filter(|_| setup.at_entry) else {
            return Ok(None);
        };
        if variable.moved && !self.is_by_reference(setup, variable, offset)? {
            let why = "Go may have captured its value or its address";
            return Err(Refusal::Location(variable.name.clone(), why));
        }
        Ok(Some(Place::Memory(
            Sum::of(Start::Register(Gpr::Rdx)).shift(offset),
        )))
    }

    /// True if the closure certainly has the address of a variable that is described by its address. A
    /// value that Go does not keep in registers is described so, too: by its address in the closure.
    fn is_by_reference(
        &self,
        setup: Setup,
        variable: &Variable<'a>,
        offset: i64,
    ) -> Result<bool, DebugError> {
        let Shape::Pointer {
            target: Some(target),
            ..
        } = self.shape(self.type_of(&variable.die)?)?
        else {
            return Ok(false);
        };
        let Some(size) = self.size(Some(target))? else {
            return Ok(false);
        };
        if size > BY_VALUE || size <= IN_REGISTERS.0 && self.is_in_registers(target)? {
            return Ok(true);
        }
        let others = self.children(&self.die(setup.function)?)?;
        let mut others = others.iter().filter_map(captured_at);
        Ok(others.any(|other| offset < other && other < offset + size as i64))
    }

    fn is_in_registers(&self, kind: DieKey) -> Result<bool, DebugError> {
        let words = self.number_of_words(kind)?;
        Ok(words.is_some_and(|words| words <= IN_REGISTERS.1))
    }

    /// Refuses a variable at a place behind the entry where it is not certain that its described place has
    /// it: before the function has copied a captured variable to its frame, or has put a variable on the heap.
    pub(super) fn check_copied(
        &self,
        setup: Setup,
        variable: &Variable<'a>,
        (place, listed): (&Place, bool),
        address: u64,
    ) -> Result<(), Refusal> {
        let is_go = variable.die.language() == Some(dw::DW_LANG_Go);
        let is_captured = captured_at(&variable.die).is_some();
        if !is_go || !(variable.moved || is_captured) {
            return Ok(());
        }
        let refused = |why| Err(Refusal::Location(variable.name.clone(), why));
        if listed {
            return match is_captured && variable.moved {
                // Debug information has no variable that optimisation has removed.
                true => refused("a variable of the function that is optimised out may hide it"),
                false => Ok(()),
            };
        }
        if is_captured {
            // The copies belong to the line on which the function begins.
            let statements = self.statements(setup.start, setup.end);
            let first = statements.first().map(|statement| statement.1);
            let next = statements
                .iter()
                .find(|statement| Some(statement.1) != first);
            return match next {
                _ if self.line_at(address) != first => Ok(()),
                Some(next) => Err(self.not_yet(setup, &variable.name, next.0)),
                None => refused("all of the function is one line; probe its entry"),
            };
        }
        match self.behind_store(setup, place, address) {
            Some(behind) if address >= behind => Ok(()),
            Some(behind) => Err(self.not_yet(setup, &variable.name, behind)),
            None => refused("nothing shows when the function puts it there"),
        }
    }

    /// Returns the address behind the first instruction that stores a pointer at a place in the frame.
    pub(super) fn behind_store(&self, setup: Setup, place: &Place, address: u64) -> Option<u64> {
        let Place::Memory(sum) = place else {
            return None;
        };
        let Start::Register(base @ (Gpr::Rsp | Gpr::Rbp)) = sum.start else {
            return None;
        };
        let code = self.code(setup).filter(|_| sum.reads.is_empty())?;
        // The register has another value before the frame is set up.
        let above = |address, offset: i64| {
            let cfa = self.cfa(address)?;
            (cfa.start == sum.start && cfa.reads.is_empty()).then(|| cfa.plus.wrapping_sub(offset))
        };
        let own = above(address, sum.plus)?;
        let mut stores = stores(&code, setup.start, base);
        let found = stores.find(|&(store, _, offset)| above(store, offset) == Some(own));
        found.map(|(_, behind, _)| behind)
    }
}

/// Returns where the closure has a variable, bytes from its start.
pub(super) fn captured_at(die: &Die<'_>) -> Option<i64> {
    let is_go = die.language() == Some(dw::DW_LANG_Go);
    let offset = die.unsigned(CLOSURE_OFFSET).filter(|_| is_go)?;
    i64::try_from(offset).ok()
}
