//! Places of Go's parameters and variables.
//!
//! Go describes a variable that it has split into words by the places of these words, which DWARF's
//! pieces do not say completely:
//!
//! - padding between members has no piece;
//! - a word that the function never uses may have none either, and if one word is left, it is described
//!   as if it were the whole variable;
//! - a parameter that the function does not use is described by its register, which may not be saved
//!   while the stack grows.
//!
//! So pieces are laid out by the type, and parameters on the stack by Go's calling convention (Go's
//! cmd/compile/abi-internal.md).

use std::rc::Rc;

use capriole_event::Gpr;
use capriole_object::{Convention, Restored};
use capriole_prologue::{Place, Sum};
use gimli::constants as dw;

use super::die::Die;
use super::error::{DebugError, Refusal};
use super::go::{FLOATS, INTEGERS};
use super::location::{Context, NoPlace};
use super::types::Shape;
use super::units::{Debug, DieKey};

/// Maximum nesting of types.
const DEPTH: usize = 16;
/// Maximum number of words of a variable that is split.
const MOST: usize = 64;
/// Maximum size in bytes of a variable that Go splits (`CanSSA` in cmd/compile/internal/ssa/value.go).
const SPLIT: u64 = 32;

/// A part of a variable that Go keeps in one place: a number or a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    /// Bytes from the start of the variable.
    at: u64,
    size: u64,
    is_float: bool,
}

impl Word {
    fn end(self) -> u64 {
        self.at.saturating_add(self.size)
    }
}

/// The words of a type.
struct Words {
    words: Vec<Word>,
    /// True if it has an array of several elements, which Go never splits.
    has_array: bool,
}

impl<'a> Debug<'a> {
    /// Corrects the place of a variable of Go.
    pub(super) fn go_place(
        &self,
        die: &Die<'a>,
        place: Place,
        listed: bool,
        context: Context<'_>,
    ) -> Result<Place, NoPlace> {
        let unclear = || NoPlace::Refusal(Refusal::Pieces(context.name.to_owned()));
        if context.function.is_none() {
            return Ok(place);
        }
        if !listed {
            return self.escaped(die, place, context);
        }
        let kind = self.type_of(die)?;
        let Some(Words { words, has_array }) = self.words(kind)? else {
            return match place {
                Place::Pieces { .. } => Err(unclear()),
                place => Ok(place),
            };
        };
        if words.len() < 2 {
            return Ok(place);
        }
        let is_parameter = die.tag() == dw::DW_TAG_formal_parameter;
        let passed = match is_parameter {
            true => self.passed_at(die, &place, context)?,
            false => None,
        };
        let is_split = !has_array && words.last().is_some_and(|last| last.end() <= SPLIT);
        if let Some((start, at)) = passed {
            // Before the function changes anything, all words are where the caller put them.
            if context.entry.is_some() {
                return Ok(Place::Memory(start));
            }
            let word = words.iter().find(|word| Some(word.at) == at).copied();
            return match (place, word) {
                (place @ Place::Memory(_), Some(Word { at: 0, .. })) if !is_split => Ok(place),
                (place @ Place::Memory(_), Some(word)) => Ok(alone(word, place)),
                (Place::Pieces { pieces, .. }, _) => laid_out(&pieces, &words).ok_or_else(unclear),
                _ => Err(unclear()),
            };
        }
        match place {
            Place::Pieces { pieces, .. } => laid_out(&pieces, &words).ok_or_else(unclear),
            Place::Lost | Place::Missing => Ok(place),
            Place::Memory(_) if !is_split => Ok(place),
            _ => {
                let why = "debug information of Go has one of its words, and not which one";
                Err(NoPlace::Refusal(Refusal::Location(
                    context.name.to_owned(),
                    why,
                )))
            }
        }
    }

    /// Corrects the place of a parameter that Go has moved to the heap: its debug information has a place in
    /// the frame for the address that is not always used.
    fn escaped(&self, die: &Die<'a>, place: Place, context: Context<'_>) -> Result<Place, NoPlace> {
        let is_moved = match &place {
            Place::Memory(sum) => !sum.reads.is_empty(),
            _ => false,
        };
        if die.tag() != dw::DW_TAG_formal_parameter || !is_moved {
            return Ok(place);
        }
        let refused = || {
            let why = "debug information of Go has no right place of a parameter that it has moved";
            NoPlace::Refusal(Refusal::Location(context.name.to_owned(), why))
        };
        let function = context.function.filter(|_| context.entry.is_some());
        let own = match function {
            Some(function) => self.stack_parameter(function, die.key())?,
            None => None,
        };
        let own = own.and_then(|own| i64::try_from(own).ok());
        let start = self.cfa(context.address).zip(own);
        let (cfa, own) = start.ok_or_else(refused)?;
        Ok(Place::Memory(cfa.shift(own)))
    }

    /// Returns the number of words of a type that Go could keep in registers; `None` if it has an array.
    pub(super) fn number_of_words(&self, kind: DieKey) -> Result<Option<usize>, DebugError> {
        let words = self.words(Some(kind))?;
        Ok(words
            .filter(|words| !words.has_array)
            .map(|words| words.words.len()))
    }

    /// Returns the address of a parameter that the caller put on the stack, and how far from it the
    /// described place is, if that is a single one. `None` if it was passed in registers.
    fn passed_at(
        &self,
        die: &Die<'a>,
        place: &Place,
        context: Context<'_>,
    ) -> Result<Option<(Sum, Option<u64>)>, NoPlace> {
        let Some(cfa) = self.cfa(context.address) else {
            return Ok(None);
        };
        let above = |place: &Place| match place {
            Place::Memory(sum) if sum.start == cfa.start && sum.reads == cfa.reads => {
                u64::try_from(sum.plus.wrapping_sub(cfa.plus)).ok()
            }
            _ => None,
        };
        let single = above(place);
        let first = match place {
            Place::Pieces { pieces, .. } => pieces.iter().find_map(|piece| above(&piece.1)),
            _ => single,
        };
        let (Some(first), Some(function)) = (first, context.function) else {
            return Ok(None);
        };
        let unclear = || NoPlace::Refusal(Refusal::Pieces(context.name.to_owned()));
        let key = die.key();
        let Some(own) = self.stack_parameter(function, key)? else {
            return Ok(None);
        };
        let size = self.size(self.type_of(die)?)?.ok_or_else(unclear)?;
        let Some(distance) = first.checked_sub(own).filter(|&distance| distance < size) else {
            // A register argument that was stored in its own place, above those on the stack.
            return Ok(None);
        };
        let start = cfa.shift(i64::try_from(own).map_err(|_| unclear())?);
        Ok(Some((start, single.map(|_| distance))))
    }

    /// Returns how far above the return address a parameter is that the caller passes on the stack;
    /// `None` if it passes it in registers, or that is not known.
    fn stack_parameter(
        &self,
        function: DieKey,
        parameter: DieKey,
    ) -> Result<Option<u64>, DebugError> {
        let function = self.die(function)?;
        let Some(entry) = self.entry_address(&function) else {
            return Ok(None);
        };
        let (mut integers, mut floats) = match self.object.convention(entry) {
            Convention::Go => (INTEGERS, FLOATS),
            _ => (0, 0),
        };
        let mut at: u64 = 0;
        for die in self.children(&function)? {
            if die.tag() != dw::DW_TAG_formal_parameter || self.is_go_result(&die) {
                continue;
            }
            let kind = self.type_of(&die)?;
            let (Some(words), Some(size)) = (self.words(kind)?, self.size(kind)?) else {
                return Ok(None);
            };
            let float = words.words.iter().filter(|word| word.is_float).count();
            let integer = words.words.len() - float;
            if !words.has_array && integer <= integers && float <= floats {
                integers -= integer;
                floats -= float;
                if die.key() == parameter {
                    return Ok(None);
                }
                continue;
            }
            let alignment = words.words.iter().map(|word| word.size).max();
            let aligned = at.checked_next_multiple_of(alignment.unwrap_or(1).clamp(1, 8));
            let Some(aligned) = aligned else {
                return Ok(None);
            };
            at = aligned;
            if die.key() == parameter {
                return Ok(Some(at));
            }
            at = at.saturating_add(size);
        }
        Ok(None)
    }

    /// Returns the words of a type; `None` for one of too many words, or one that is not known.
    fn words(&self, kind: Option<DieKey>) -> Result<Option<Words>, DebugError> {
        let mut words = Words {
            words: Vec::new(),
            has_array: false,
        };
        let is_known = self.add_words(kind, 0, &mut words, 0)?;
        Ok(is_known.then_some(words))
    }

    fn add_words(
        &self,
        kind: Option<DieKey>,
        at: u64,
        found: &mut Words,
        depth: usize,
    ) -> Result<bool, DebugError> {
        if depth > DEPTH || found.words.len() > MOST {
            return Ok(false);
        }
        let mut add = |at: u64, size: u64, is_float: bool| {
            if size > 0 {
                found.words.push(Word { at, size, is_float });
            }
        };
        match self.shape(kind)? {
            Shape::Base { encoding, size, .. } => match encoding {
                dw::DW_ATE_float => add(at, size, true),
                dw::DW_ATE_complex_float => {
                    add(at, size / 2, true);
                    add(at.saturating_add(size / 2), size / 2, true);
                }
                _ => add(at, size, false),
            },
            Shape::Pointer { size, .. } | Shape::Enumeration { size, .. } => add(at, size, false),
            Shape::Reference { .. } | Shape::Function => add(at, 8, false),
            Shape::Array { element } => {
                let Some(die) = self.bare(kind)? else {
                    return Ok(false);
                };
                let dimensions = self.dimensions(&die)?;
                let (&[Some(count)], Some(size)) = (&dimensions[..], self.size(element)?) else {
                    return Ok(false);
                };
                found.has_array |= count > 1;
                for index in 0..count.min(MOST as u64 + 1) {
                    let at = at.saturating_add(index.saturating_mul(size));
                    if !self.add_words(element, at, found, depth + 1)? {
                        return Ok(false);
                    }
                }
            }
            Shape::Record { key, .. } => {
                for die in self.children(&self.die(key)?)? {
                    if die.tag() != dw::DW_TAG_member {
                        continue;
                    }
                    let Some(member) = self.layout(&die)? else {
                        return Ok(false);
                    };
                    let at = at.saturating_add(member.offset);
                    if !self.add_words(member.kind, at, found, depth + 1)? {
                        return Ok(false);
                    }
                }
            }
            Shape::Void | Shape::Other => return Ok(false),
        }
        Ok(found.words.len() <= MOST)
    }

    /// Marks the registers that a parameter was passed in, and which may hold something else since the
    /// stack has grown.
    pub(super) fn without_lost(
        &self,
        die: &Die<'a>,
        place: Place,
        context: Context<'_>,
    ) -> Result<Place, NoPlace> {
        let Some(function) = context.function else {
            return Ok(place);
        };
        if die.tag() != dw::DW_TAG_formal_parameter || !has_registers(&place) {
            return Ok(place);
        }
        let function = self.die(function)?;
        let Some(entry) = self.entry_address(&function) else {
            return Ok(place);
        };
        let ranges = function.ranges(MOST);
        let around = ranges.iter().find(|range| range.0 == entry);
        let restored = around.and_then(|&(start, end)| self.object.restored(start, end));
        let Some(restored) = restored else {
            return Ok(place);
        };
        let at_entry = Context {
            address: entry,
            at_entry: true,
            entry: Some(entry),
            ..context
        };
        let passed = self.stated(die, at_entry).ok();
        let passed = passed.map_or(Place::Missing, |(place, _)| place);
        Ok(without(place, &passed, restored))
    }
}

/// Returns the place of a variable of which one word is known.
fn alone(word: Word, place: Place) -> Place {
    let gap = (word.at > 0).then_some((word.at, Place::Missing));
    Place::Pieces {
        pieces: gap.into_iter().chain([(word.size, place)]).collect(),
        at: 0,
    }
}

/// Lays out pieces by the words of a type: with padding, or without. `None` if neither fits.
fn laid_out(pieces: &[(u64, Place)], words: &[Word]) -> Option<Place> {
    let end = words.last()?.end();
    let is_start = |at: u64| words.iter().any(|word| word.at == at);
    let is_end = |at: u64| words.iter().any(|word| word.end() == at);
    let total = pieces
        .iter()
        .try_fold(0u64, |sum, piece| sum.checked_add(piece.0))?;
    let mut found: Vec<(u64, Place)> = Vec::new();
    let mut at = 0;
    for (size, place) in pieces {
        if total < end {
            let next = words.iter().map(|word| word.at).find(|&next| next >= at)?;
            if next > at {
                found.push((next - at, Place::Missing));
            }
            at = next;
        }
        let behind = at.checked_add(*size)?;
        let is_there = !matches!(place, Place::Missing);
        if (is_there || total < end) && !(is_start(at) && is_end(behind)) {
            return None;
        }
        found.push((*size, place.clone()));
        at = behind;
    }
    (at >= end).then(|| Place::Pieces {
        pieces: Rc::from(found),
        at: 0,
    })
}

fn has_registers(place: &Place) -> bool {
    match place {
        Place::Register { .. } | Place::Vector(Some(_)) => true,
        Place::Pieces { pieces, .. } => pieces.iter().any(|piece| has_registers(&piece.1)),
        _ => false,
    }
}

/// True if a place is in this register.
fn is_in(place: &Place, register: Gpr) -> bool {
    match place {
        Place::Register { register: own, .. } => *own == register,
        Place::Pieces { pieces, .. } => pieces.iter().any(|piece| is_in(&piece.1, register)),
        _ => false,
    }
}

/// True if a place is in the vector register of this number.
fn is_in_vector(place: &Place, number: u8) -> bool {
    match place {
        Place::Vector(Some(own)) => *own == number,
        Place::Pieces { pieces, .. } => pieces.iter().any(|piece| is_in_vector(&piece.1, number)),
        _ => false,
    }
}

/// Replaces the registers of `place` in which the object was passed, and which are not restored.
fn without(place: Place, passed: &Place, restored: Restored) -> Place {
    match place {
        Place::Register { register, .. }
            if is_in(passed, register)
                && !restored.has_general(usize::from(register.encoding())) =>
        {
            Place::Lost
        }
        Place::Vector(Some(number))
            if is_in_vector(passed, number) && !restored.has_vector(usize::from(number)) =>
        {
            Place::Lost
        }
        Place::Pieces { pieces, at } => Place::Pieces {
            pieces: pieces
                .iter()
                .map(|(size, place)| (*size, without(place.clone(), passed, restored)))
                .collect(),
            at,
        },
        place => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(register: Gpr) -> Place {
        Place::Register { register, at: 0 }
    }

    fn word(at: u64, size: u64) -> Word {
        Word {
            at,
            size,
            is_float: false,
        }
    }

    /// Returns the register of each piece with its offset.
    fn places(pieces: &[(u64, Place)], words: &[Word]) -> Option<Vec<(u64, Gpr)>> {
        let Place::Pieces { pieces, .. } = laid_out(pieces, words)? else {
            panic!("it has pieces");
        };
        let mut at = 0;
        let mut found = Vec::new();
        for (size, place) in pieces.iter() {
            if let Place::Register { register, .. } = place {
                found.push((at, *register));
            }
            at += size;
        }
        Some(found)
    }

    #[test]
    fn pieces_are_where_the_words_of_the_type_are() {
        // struct { a bool; b uint32; c uint8; d string }
        let words = [word(0, 1), word(4, 4), word(8, 1), word(16, 8), word(24, 8)];
        let expected = [
            (0, Gpr::Rax),
            (4, Gpr::Rbx),
            (8, Gpr::Rcx),
            (16, Gpr::Rdi),
            (24, Gpr::Rsi),
        ];
        let compact: Vec<_> = [1, 4, 1, 8, 8].into_iter().zip(expected).collect();
        let compact: Vec<_> = compact
            .iter()
            .map(|(size, (_, r))| (*size, register(*r)))
            .collect();
        assert_eq!(places(&compact, &words).unwrap(), expected);
        let mut padded = compact.clone();
        padded.insert(1, (3, Place::Missing));
        padded.insert(4, (7, Place::Missing));
        assert_eq!(places(&padded, &words).unwrap(), expected);
        // A word without a piece.
        assert_eq!(places(&compact[1..], &words), None);
        assert_eq!(places(&compact[..4], &words), None);
    }
}
