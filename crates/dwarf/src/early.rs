//! Variables at sites where the function has not yet stored them in their described places.

use gimli::constants as dw;

use super::die::Die;
use super::error::{DebugError, Refusal};
use super::location::Context;
use super::relative::Held;
use super::scope::Variable;
use super::setup::Setup;
use super::types::Shape;
use super::units::Debug;
use capriole_event::Gpr;
use capriole_prologue::instructions::stores;
use capriole_prologue::registers::PARAMETERS;
use capriole_prologue::{Place, Prologue, Start, Sum};

/// Maximum bytes of a function's code examined.
const CODE: u64 = 1 << 16;
/// Number of registers for arguments that are numbers or pointers.
const REGISTERS: usize = 6;
/// Work charged for following a function's first instructions once, in entries read.
const INSTRUCTIONS: u64 = 1000;

impl<'a> Debug<'a> {
    /// Returns where a variable is before the first statement. The debug information gives
    /// `place` for the whole function. `own` is the function's entry if the variable belongs to
    /// the function itself, and `None` if it belongs to an inlined copy.
    pub(super) fn early(
        &self,
        own: Option<&Die<'a>>,
        setup: Setup,
        variable: &Variable<'a>,
        context: Context<'_>,
        place: Place,
        held: Held,
    ) -> Result<Place, Refusal> {
        let (setup, context) = match held {
            Held::Loaded(body) => (Setup { body, ..setup }, Context { body, ..context }),
            Held::Passed => (setup, context),
        };
        let later = context.at_body();
        let not_yet = || {
            let written = match self.locate(&variable.die, later) {
                Ok((place, false)) => self.written(setup, &place, setup.body),
                _ => None,
            };
            self.not_yet(setup, context.name, written.unwrap_or(setup.body))
        };
        let children = own.map(|own| self.declared(own)).transpose()?;
        let is_own = |die: &Die<'a>| die.key() == variable.die.key();
        let Some(children) = children.filter(|children| children.iter().any(is_own)) else {
            // The variable belongs to an inner block or an inlined copy that begins here.
            return match self.in_own_frame(&place, context.address) {
                true => Err(not_yet()),
                false => Ok(place),
            };
        };
        if !depends(&place) && held == Held::Passed {
            return Ok(place);
        }
        let code = self.code(setup).ok_or_else(not_yet)?;
        let arrival = |die: &Die<'a>| self.arrival(die, setup, later, &code);
        if !variable.parameter {
            // A lambda's captured variables are reached through its first parameter.
            let through = setup.at_entry && self.through_parameter(&children, variable, later);
            let found = match &place {
                Place::Memory(_) if through => arrival(&variable.die)?,
                _ => None,
            };
            return found.ok_or_else(not_yet);
        }
        let Some(found) = arrival(&variable.die)? else {
            return Err(not_yet());
        };
        if !setup.at_entry {
            // Arguments that the caller put on the stack are there already.
            let caller = self.on_callers_stack(&found, context.address);
            return caller.ok_or_else(not_yet);
        }
        // Parameters use the argument registers in order, so refuse a result out of order: if the
        // function changed a parameter before it stored it, the stored value may be another
        // parameter.
        let mut next = [0, 0];
        for die in &children {
            if die.tag() != dw::DW_TAG_formal_parameter {
                continue;
            }
            let place = match self.locate(die, context) {
                Ok((place, true)) => Some(place),
                Ok((_, false)) => match arrival(die) {
                    Err(Refusal::ValueOrPointer { .. }) => None,
                    found => found?,
                },
                Err(_) => None,
            };
            let mut after = next;
            for (file, number) in place.iter().flat_map(claims) {
                if number < next[file] {
                    return Err(not_yet());
                }
                after[file] = after[file].max(number + 1);
            }
            next = after;
        }
        Ok(found)
    }

    /// Returns the parameters, variables and blocks of a function; parameter packs are expanded.
    pub(super) fn declared(&self, function: &Die<'a>) -> Result<Vec<Die<'a>>, DebugError> {
        let mut found = Vec::new();
        for die in self.children(function)? {
            match die.tag() {
                dw::DW_TAG_GNU_formal_parameter_pack => found.extend(self.children(&die)?),
                _ => found.push(die),
            }
        }
        Ok(found)
    }

    /// True for a `float` of a C function without a prototype: the caller passes a `double`, and
    /// the debug information does not distinguish the two.
    pub(super) fn is_promoted(
        &self,
        setup: Setup,
        variable: &Variable<'a>,
        place: &Place,
    ) -> Result<bool, DebugError> {
        if !variable.parameter || !matches!(place, Place::Vector(_)) {
            return Ok(false);
        }
        let function = self.die(setup.function)?;
        let languages = [
            dw::DW_LANG_C,
            dw::DW_LANG_C89,
            dw::DW_LANG_C99,
            dw::DW_LANG_C11,
            dw::DW_LANG_C17,
        ];
        let is_c = function
            .language()
            .is_some_and(|language| languages.contains(&language));
        let chain = self.with_origins(&function);
        let without = !chain.iter().any(|die| die.flag(dw::DW_AT_prototyped));
        Ok(is_c && without && self.size(self.type_of(&variable.die)?)? == Some(4))
    }

    /// Corrects the place of a class whose address is passed on the stack: LLVM describes the
    /// object itself as being there, although it never is. Refuses a large structure of Rust of which
    /// that is not certain.
    pub(super) fn by_address(
        &self,
        die: &Die<'a>,
        place: Place,
        context: Context<'_>,
    ) -> Result<Place, Refusal> {
        let (Place::Memory(sum), Some(cfa)) = (&place, self.cfa(context.address)) else {
            return Ok(place);
        };
        let passed = sum.start == cfa.start && sum.reads == cfa.reads && sum.plus >= cfa.plus;
        if !passed || die.tag() != dw::DW_TAG_formal_parameter {
            return Ok(place);
        }
        let pointed = sum.clone().read().map_or(Place::Missing, Place::Memory);
        if die.language() == Some(dw::DW_LANG_Rust) {
            return match self.is_described_by_pointer(die, sum, context)? {
                Some(true) => Ok(pointed),
                Some(false) => Ok(place),
                None => Err(Refusal::ValueOrPointer {
                    name: context.name.to_owned(),
                    word: (sum.plus - cfa.plus) / 8 + 1,
                }),
            };
        }
        let Shape::Record { key, .. } = self.shape(self.type_of(die)?)? else {
            return Ok(place);
        };
        let convention = self.die(key)?.attr(dw::DW_AT_calling_convention);
        Ok(match convention {
            // DW_CC_pass_by_reference.
            Some(gimli::AttributeValue::CallingConvention(gimli::DwCc(4))) => pointed,
            _ => place,
        })
    }

    /// True if the caller has put a pointer where debug information of Rust has a parameter, on the
    /// stack. Functions of Rust get a pointer to each structure of more than two words, `extern "C"`
    /// ones the structure itself; debug information has the same for both. `None` if it is not known
    /// which of them the function is.
    fn is_described_by_pointer(
        &self,
        die: &Die<'a>,
        own: &Sum,
        context: Context<'_>,
    ) -> Result<Option<bool>, DebugError> {
        if self.large(die)?.is_none() {
            return Ok(Some(false));
        }
        let Some(function) = context.function else {
            return Ok(None);
        };
        let is_beside = |place: &Sum| place.start == own.start && place.reads == own.reads;
        let mut all = Vec::new();
        let mut before = 0;
        for parameter in self.children(&self.die(function)?)? {
            if parameter.tag() != dw::DW_TAG_formal_parameter {
                continue;
            }
            if let Ok((Place::Memory(place), _)) = self.locate(&parameter, context) {
                let size = self.large(&parameter)?;
                // A pointer would have been in a register: those before took no more than two each,
                // and the result one.
                if size.is_some() && is_beside(&place) && 1 + 2 * before < REGISTERS {
                    return Ok(Some(false));
                }
                all.push((place, size));
            }
            before += 1;
        }
        let is_by_pointer = |(place, size): &(Sum, Option<u64>)| {
            let Some(size) = *size else {
                return false;
            };
            // Another one is where the structure itself would be.
            let is_inside = |(other, _): &(Sum, Option<u64>)| {
                let distance = other.plus.checked_sub(place.plus);
                is_beside(other) && distance.is_some_and(|far| (1..size as i64).contains(&far))
            };
            !is_beside(place) || all.iter().any(is_inside)
        };
        Ok(all.iter().any(is_by_pointer).then_some(true))
    }

    /// Returns the size of a structure or array of more than two words.
    fn large(&self, die: &Die<'a>) -> Result<Option<u64>, DebugError> {
        const TWO_WORDS: u64 = 16;
        let kind = self.type_of(die)?;
        Ok(match self.shape(kind)? {
            Shape::Record { .. } | Shape::Array { .. } => {
                self.size(kind)?.filter(|&size| size > TWO_WORDS)
            }
            _ => None,
        })
    }

    /// Returns where an object is at the function's entry, if the debug information gives a
    /// single (later) place for the whole function.
    pub(super) fn arrival(
        &self,
        die: &Die<'a>,
        setup: Setup,
        later: Context<'_>,
        code: &[u8],
    ) -> Result<Option<Place>, Refusal> {
        let Ok((place, false)) = self.locate(die, later) else {
            return Ok(None);
        };
        let place = self.by_address(die, place, later)?;
        let kind = self.type_of(die)?;
        // If the size is unknown, only the address counts.
        let size = self.size(kind)?.unwrap_or(0);
        let truth = matches!(
            self.shape(kind)?,
            Shape::Base {
                encoding: dw::DW_ATE_boolean,
                ..
            }
        );
        self.spend(INSTRUCTIONS)?;
        let mut prologue = Prologue::new(code, setup.start, setup.body);
        if !prologue.follow(setup.body) {
            return Ok(None);
        }
        Ok(prologue.arrival(&place, size, truth))
    }

    /// True if a variable is reached through a pointer in the place of a parameter.
    fn through_parameter(
        &self,
        children: &[Die<'a>],
        variable: &Variable<'a>,
        later: Context<'_>,
    ) -> bool {
        let Ok((Place::Memory(sum), false)) = self.locate(&variable.die, later) else {
            return false;
        };
        let Some(&first) = sum.reads.first() else {
            return false;
        };
        let slot = Sum::of(sum.start).shift(first);
        let mut parameters = children
            .iter()
            .filter(|die| die.tag() == dw::DW_TAG_formal_parameter);
        parameters.any(|die| {
            matches!(self.locate(die, later), Ok((Place::Memory(place), false)) if place == slot)
        })
    }

    pub(super) fn code(&self, setup: Setup) -> Option<Vec<u8>> {
        let size = (setup.end - setup.start).min(CODE);
        self.object.read(setup.start, size)
    }

    /// Returns the address after the instruction that stores a parameter into its place, if
    /// that instruction has not executed yet at `address`.
    pub(super) fn stored(&self, setup: Setup, place: &Place, address: u64) -> Option<u64> {
        let Place::Memory(sum) = place else {
            return None;
        };
        if !sum.reads.is_empty() {
            return None;
        }
        let code = self.code(setup)?;
        let mut prologue = Prologue::new(&code, setup.start, setup.body);
        prologue.follow(address).then_some(())?;
        prologue.next_store(sum)
    }

    /// Returns the address after the first instruction that stores the address of a variable (a
    /// variable-length array, for example) into the frame, if `address` is below the result.
    pub(super) fn written(&self, setup: Setup, place: &Place, address: u64) -> Option<u64> {
        let Place::Memory(sum) = place else {
            return None;
        };
        let Start::Register(base @ (Gpr::Rsp | Gpr::Rbp)) = sum.start else {
            return None;
        };
        let first = *sum.reads.first()?;
        if address < setup.start || setup.end <= address {
            return None;
        }
        let code = self.code(setup)?;
        let frame = self.cfa(address);
        let mut stores = stores(&code, setup.start, base);
        let (_, behind, _) =
            stores.find(|&(store, _, at)| at == first && self.cfa(store) == frame)?;
        (address < behind).then_some(behind)
    }

    /// Returns the refusal for a variable that has no value before the link address `from`.
    pub(super) fn not_yet(&self, setup: Setup, name: &str, from: u64) -> Refusal {
        Refusal::NotYetStored {
            name: name.to_owned(),
            from: self.onward(setup, name, from),
        }
    }

    /// True if the place is in the stack frame that the function itself sets up, or is reached
    /// through that frame.
    fn in_own_frame(&self, place: &Place, address: u64) -> bool {
        let Place::Memory(sum) = place else {
            return false;
        };
        if !sum.reads.is_empty() {
            return matches!(sum.start, Start::Register(Gpr::Rsp | Gpr::Rbp));
        }
        match self.cfa(address) {
            Some(cfa) if cfa.reads.is_empty() => cfa.start == sum.start && sum.plus < cfa.plus,
            _ => true,
        }
    }
}

/// True if the place is relative to a register that the function changes first (any but an
/// argument register). A variable that is in an argument register for the whole function is
/// there from the beginning.
fn depends(place: &Place) -> bool {
    let changes = |register: Gpr| !PARAMETERS.contains(&register);
    match place {
        Place::Memory(sum) | Place::Value { value: sum, .. } => match sum.start {
            Start::Register(register) => changes(register),
            Start::Link(_) | Start::Constant(_) => false,
        },
        Place::Pieces { pieces, .. } => pieces.iter().any(|(_, place)| depends(place)),
        Place::Register { register, .. } => changes(*register),
        Place::Vector(_) | Place::VectorPart { .. } | Place::Lost | Place::Missing => false,
    }
}

/// Returns the registers that pass a parameter or its address: `(0, n)` is the `n`th general
/// argument register, counted from 0; `(1, n)` is vector register `n`.
pub(super) fn claims(place: &Place) -> Vec<(usize, usize)> {
    let general = |register: &Gpr| {
        let number = PARAMETERS[..6]
            .iter()
            .position(|argument| argument == register);
        number.map(|number| (0, number)).into_iter().collect()
    };
    match place {
        Place::Register { register, .. } => general(register),
        Place::Memory(Sum {
            start: Start::Register(register),
            reads,
            ..
        }) if reads.is_empty() => general(register),
        Place::Vector(Some(number))
        | Place::VectorPart {
            register: number, ..
        } => vec![(1, usize::from(*number))],
        Place::Pieces { pieces, .. } => pieces.iter().flat_map(|piece| claims(&piece.1)).collect(),
        _ => Vec::new(),
    }
}
