//! Parameters at a function's first instruction, by the calling convention.
//!
//! A function that keeps a parameter in its frame is described as if it were there from the
//! first instruction, but its first instructions put it there (all functions at `-O0`, and
//! parameters whose address is taken). What perf and gdb leave to the user, to probe behind
//! those, would make a probe at the entry, the usual place, useless. So the parameter is
//! taken from where the caller put it: System V AMD64 psABI 3.2.3, Itanium C++ ABI 3.1.1.

use std::rc::Rc;

use capriole_event::Gpr;
use gimli::{AttributeValue, constants as dw};

use super::die::Die;
use super::error::DebugError;
use super::place::{Place, Start, Sum};
use super::types::Shape;
use super::units::{Debug, DieKey};

const INTEGER: [Gpr; 6] = [Gpr::Rdi, Gpr::Rsi, Gpr::Rdx, Gpr::Rcx, Gpr::R8, Gpr::R9];
const VECTOR: usize = 8;
/// Structs within each other.
const DEPTH: usize = 16;
/// Elements and members of one parameter that are looked at: of 16 bytes.
const MOST_PARTS: u64 = 64;

/// How eight bytes of a parameter are passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Nothing,
    Integer,
    Vector,
}

/// How a parameter is passed.
enum Passed {
    /// In registers: size in bytes, classes of its eight-byte parts.
    Registers(u64, [Class; 2]),
    /// On the stack: its size in bytes.
    Stack(u64),
    /// By the address of a copy (C++ classes that have a copy constructor or destructor).
    Reference,
}

impl<'a> Debug<'a> {
    /// Where the caller put a parameter; `None` if the convention is not known: languages
    /// other than C and C++, clones whose parameters the compiler changed.
    pub(super) fn passed(
        &self,
        function: &Die<'a>,
        parameter: DieKey,
    ) -> Result<Option<Place>, DebugError> {
        if !self.follows_convention(function) {
            return Ok(None);
        }
        let (mut integer, mut vector, mut stack) = (0, 0, 8u64);
        let result = self.type_of(function)?;
        if result.is_some() && !matches!(self.passing(result)?, Some(Passed::Registers(..))) {
            // The address of where to put the result comes first.
            integer = 1;
        }
        for die in self.children(function)? {
            if die.tag() != dw::DW_TAG_formal_parameter {
                continue;
            }
            let wanted = die.key() == parameter;
            let Some(mut passed) = self.passing(self.type_of(&die)?)? else {
                return Ok(None);
            };
            if let Passed::Registers(size, classes) = passed {
                let count = |class| classes.iter().filter(|&&c| c == class).count();
                let (integers, vectors) = (count(Class::Integer), count(Class::Vector));
                if integer + integers > INTEGER.len() || vector + vectors > VECTOR {
                    passed = Passed::Stack(size);
                }
            }
            let place = match passed {
                Passed::Stack(size) => {
                    let at = stack;
                    stack = stack.saturating_add(size.next_multiple_of(8));
                    let at = i64::try_from(at).map_err(|_| DebugError::Damaged("a huge type"))?;
                    Place::Memory(Sum::of(Start::Register(Gpr::Rsp)).add(at))
                }
                Passed::Reference => match INTEGER.get(integer) {
                    Some(&register) => {
                        integer += 1;
                        Place::Memory(Sum::of(Start::Register(register)))
                    }
                    None => {
                        let at = i64::try_from(stack).unwrap_or(i64::MAX);
                        stack = stack.saturating_add(8);
                        let at = Sum::of(Start::Register(Gpr::Rsp)).add(at);
                        at.read().map_or(Place::Missing, Place::Memory)
                    }
                },
                Passed::Registers(size, classes) => {
                    let mut next = |class| match class {
                        Class::Integer => {
                            integer += 1;
                            let register = INTEGER[integer - 1];
                            Place::Register { register, at: 0 }
                        }
                        Class::Vector => {
                            vector += 1;
                            Place::Vector(u8::try_from(vector - 1).ok())
                        }
                        Class::Nothing => Place::Missing,
                    };
                    let first = next(classes[0]);
                    if size <= 8 {
                        first
                    } else {
                        let pieces = [(8, first), (size - 8, next(classes[1]))];
                        Place::Pieces {
                            pieces: Rc::from(pieces),
                            at: 0,
                        }
                    }
                }
            };
            if wanted {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Whether what a function returns, of this type, begins in a vector register.
    pub(super) fn returned_in_vector(&self, kind: Option<DieKey>) -> Result<bool, DebugError> {
        let passed = self.passing(kind)?;
        Ok(matches!(
            passed,
            Some(Passed::Registers(_, [Class::Vector, _]))
        ))
    }

    fn follows_convention(&self, function: &Die<'a>) -> bool {
        let language = function.language();
        let known = [
            dw::DW_LANG_C,
            dw::DW_LANG_C89,
            dw::DW_LANG_C99,
            dw::DW_LANG_C11,
            dw::DW_LANG_C17,
            dw::DW_LANG_C_plus_plus,
            dw::DW_LANG_C_plus_plus_03,
            dw::DW_LANG_C_plus_plus_11,
            dw::DW_LANG_C_plus_plus_14,
            dw::DW_LANG_C_plus_plus_17,
            dw::DW_LANG_C_plus_plus_20,
        ];
        if !language.is_some_and(|language| known.contains(&language)) {
            return false;
        }
        if matches!(
            function.attr(dw::DW_AT_calling_convention),
            Some(AttributeValue::CallingConvention(convention)) if convention != dw::DW_CC_normal
        ) {
            return false;
        }
        // LLVM drops parameters of functions that nobody else can call.
        let dies = self.with_origins(function);
        let external = dies.iter().any(|die| die.flag(dw::DW_AT_external));
        let optimised = dies.iter().any(|die| die.flag(dw::DW_AT_APPLE_optimized));
        if optimised && !external {
            return false;
        }
        // GCC's clones have names that say what was done: `name.isra.0`.
        let changed = |name: &str| {
            [".isra.", ".constprop.", ".part."]
                .iter()
                .any(|mark| name.contains(mark))
        };
        let symbols = function
            .entry_address()
            .and_then(|address| self.object.symbols().ok()?.function_starting_at(address));
        !symbols.is_some_and(|function| {
            let names = self.object.symbols().ok();
            names.is_some_and(|table| table.names(function).any(|name| changed(name.linkage)))
        })
    }

    /// `None` if it cannot be told.
    fn passing(&self, kind: Option<DieKey>) -> Result<Option<Passed>, DebugError> {
        let Some(size) = self.size(kind)? else {
            return Ok(None);
        };
        if let Shape::Record { key, .. } = self.shape(kind)? {
            let convention = self.die(key)?.attr(dw::DW_AT_calling_convention);
            // DW_CC_pass_by_reference.
            if let Some(AttributeValue::CallingConvention(gimli::DwCc(4))) = convention {
                return Ok(Some(Passed::Reference));
            }
        }
        if size == 0 || size > 16 {
            // What has no size is not passed in C, and as an empty class in C++: on the stack
            // or nowhere, but in no register.
            return Ok(Some(Passed::Stack(size)));
        }
        let mut classes = [Class::Nothing; 2];
        let mut parts = MOST_PARTS;
        let fits = self.classify(kind, 0, &mut classes, &mut parts, 0)?;
        Ok(match fits {
            Fits::Yes => Some(Passed::Registers(size, classes)),
            Fits::No => Some(Passed::Stack(size)),
            Fits::Unknown => None,
        })
    }

    fn classify(
        &self,
        kind: Option<DieKey>,
        offset: u64,
        classes: &mut [Class; 2],
        parts: &mut u64,
        depth: usize,
    ) -> Result<Fits, DebugError> {
        if depth > DEPTH || *parts == 0 {
            return Ok(Fits::Unknown);
        }
        *parts -= 1;
        let mut put = |size: u64, class: Class| {
            if size == 0 || !offset.is_multiple_of(size.min(8)) {
                return Fits::No;
            }
            for at in [offset, offset + size - 1] {
                match classes.get_mut((at / 8) as usize) {
                    // Integer wins over the others.
                    Some(part) if *part == Class::Integer => {}
                    Some(part) => *part = class,
                    None => return Fits::No,
                }
            }
            Fits::Yes
        };
        match self.shape(kind)? {
            Shape::Base { encoding, size, .. } => Ok(match encoding {
                dw::DW_ATE_float if size == 16 => Fits::No,
                dw::DW_ATE_float | dw::DW_ATE_complex_float if size <= 16 => {
                    // A complex number is two of half its size.
                    match put(size.min(8), Class::Vector) {
                        Fits::Yes if size == 16 => {
                            classes[1] = Class::Vector;
                            Fits::Yes
                        }
                        fits => fits,
                    }
                }
                dw::DW_ATE_float | dw::DW_ATE_complex_float => Fits::No,
                _ => put(size, Class::Integer),
            }),
            Shape::Pointer { .. } | Shape::Reference { .. } => Ok(put(8, Class::Integer)),
            Shape::Enumeration { size, .. } => Ok(put(size, Class::Integer)),
            Shape::Array { element, .. } => {
                let (Some(size), Some(whole)) = (self.size(element)?, self.size(kind)?) else {
                    return Ok(Fits::Unknown);
                };
                if let Some(die) = self.bare(kind)?
                    && die.flag(dw::DW_AT_GNU_vector)
                {
                    return Ok(Fits::Unknown);
                }
                let mut at = 0;
                while size > 0 && at < whole {
                    let next = offset.saturating_add(at);
                    match self.classify(element, next, classes, parts, depth + 1)? {
                        Fits::Yes => at += size,
                        fits => return Ok(fits),
                    }
                }
                Ok(Fits::Yes)
            }
            Shape::Record { key, .. } => {
                for die in self.children(&self.die(key)?)? {
                    let is_part = matches!(die.tag(), dw::DW_TAG_member | dw::DW_TAG_inheritance);
                    if !is_part || die.flag(dw::DW_AT_external) || die.flag(dw::DW_AT_declaration) {
                        continue;
                    }
                    let Some(member) = self.layout(&die)? else {
                        return Ok(Fits::Unknown);
                    };
                    if let Some((first, _)) = member.bits {
                        let at = offset.saturating_add(first / 8) / 8;
                        match classes.get_mut(usize::try_from(at).unwrap_or(2)) {
                            Some(class) => *class = Class::Integer,
                            None => return Ok(Fits::Unknown),
                        }
                        continue;
                    }
                    if self.size(member.kind)? == Some(0) {
                        continue;
                    }
                    let at = offset.saturating_add(member.offset);
                    match self.classify(member.kind, at, classes, parts, depth + 1)? {
                        Fits::Yes => {}
                        fits => return Ok(fits),
                    }
                }
                Ok(Fits::Yes)
            }
            Shape::Function | Shape::Void | Shape::Other => Ok(Fits::Unknown),
        }
    }
}

enum Fits {
    Yes,
    No,
    Unknown,
}
