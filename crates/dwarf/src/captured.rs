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
use super::error::DebugError;
use super::scope::Variable;
use super::setup::Setup;
use super::units::Debug;

/// `DW_AT_go_closure_offset`: bytes from the start of the closure.
const CLOSURE_OFFSET: DwAt = DwAt(0x2907);
/// Bytes of a word.
const WORD: u64 = 8;
/// Maximum number of words of a variable whose stores are looked for.
const MOST_WORDS: u64 = 16;

impl<'a> Debug<'a> {
    /// Returns where a captured variable, or its address, is at the function's entry.
    pub(super) fn captured(&self, setup: Setup, die: &Die<'a>) -> Option<Place> {
        let offset = captured_at(die).filter(|_| setup.at_entry)?;
        Some(Place::Memory(
            Sum::of(Start::Register(Gpr::Rdx)).shift(offset),
        ))
    }

    /// Returns the address behind the instructions that put a captured variable, or the address of one
    /// that was moved to the heap, into its described place, if not all of them are done at `address`.
    pub(super) fn copied_later(
        &self,
        setup: Setup,
        variable: &Variable<'a>,
        place: &Place,
        address: u64,
    ) -> Result<Option<u64>, DebugError> {
        let is_local = variable.die.language() == Some(dw::DW_LANG_Go) && !variable.parameter;
        if !is_local || !(variable.moved || captured_at(&variable.die).is_some()) {
            return Ok(None);
        }
        let Place::Memory(sum) = place else {
            return Ok(None);
        };
        let Start::Register(base @ (Gpr::Rsp | Gpr::Rbp)) = sum.start else {
            return Ok(None);
        };
        let Some(code) = self.code(setup).filter(|_| sum.reads.is_empty()) else {
            return Ok(None);
        };
        // The register has another value before the frame is set up.
        let above = |address, offset: i64| {
            let cfa = self.cfa(address)?;
            (cfa.start == sum.start && cfa.reads.is_empty()).then(|| cfa.plus.wrapping_sub(offset))
        };
        let Some(own) = above(address, sum.plus) else {
            return Ok(None);
        };
        let size = self.size(self.type_of(&variable.die)?)?.unwrap_or(WORD);
        let words = size.div_ceil(WORD).clamp(1, MOST_WORDS);
        let mut firsts = vec![None; words as usize];
        for (store, behind, offset) in stores(&code, setup.start, base) {
            let distance = above(store, offset).map(|above| own.wrapping_sub(above));
            let word = distance
                .and_then(|distance| usize::try_from(distance.div_euclid(WORD as i64)).ok());
            let first = word.and_then(|word| firsts.get_mut(word));
            if let Some(first) = first.filter(|first| first.is_none()) {
                *first = Some(behind);
            }
        }
        let behind = firsts.into_iter().max().flatten();
        Ok(behind.filter(|&behind| address < behind))
    }
}

/// Returns where the closure has a variable, bytes from its start.
fn captured_at(die: &Die<'_>) -> Option<i64> {
    let is_go = die.language() == Some(dw::DW_LANG_Go);
    let offset = die.unsigned(CLOSURE_OFFSET).filter(|_| is_go)?;
    i64::try_from(offset).ok()
}
