//! Location of a function's result by the calling convention: System V AMD64 psABI 3.2.3, Itanium
//! C++ ABI 3.1.2 and 3.1.3.

use gimli::{AttributeValue, constants as dw};

use super::die::Die;
use super::error::DebugError;
use super::types::Shape;
use super::units::{Debug, DieKey};

/// Maximum nesting of structs and arrays.
const DEPTH: usize = 16;
/// Maximum number of elements and members examined in one result of 16 bytes.
const MOST_PARTS: u64 = 64;

/// Argument class (psABI) of one eightbyte of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Nothing,
    Integer,
    Vector,
}

/// Location of the first eight bytes of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultLocation {
    /// In rax, or rax holds the address of the whole result.
    General,
    /// In xmm0.
    Vector,
    /// In an x87 register, or unknown.
    Elsewhere,
}

/// Where a whole structure is that a C or C++ function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Words {
    /// In memory, and rax holds its address.
    Memory,
    /// In rax and rdx.
    General,
    /// Not only there, or unknown.
    Other,
}

enum Fits {
    Yes,
    No,
    Unknown,
}

impl<'a> Debug<'a> {
    /// Returns where a C or C++ function returns a struct, a vector or a similar type.
    pub(super) fn result_location(
        &self,
        kind: Option<DieKey>,
    ) -> Result<ResultLocation, DebugError> {
        let Some(size) = self.size(kind)? else {
            return Ok(ResultLocation::Elsewhere);
        };
        let is_record = matches!(self.shape(kind)?, Shape::Record { .. });
        // The caller provides memory for such a result. The exception is a larger vector, if
        // there are registers for it, which depends on compiler options.
        if is_record && (size == 0 || size > 16 || self.needs_address(kind, 0)?) {
            return Ok(match self.is_large_vector(kind, size)? {
                true => ResultLocation::Elsewhere,
                false => ResultLocation::General,
            });
        }
        let mut classes = [Class::Nothing; 2];
        let mut parts = MOST_PARTS;
        let fits = self.classify(kind, 0, &mut classes, &mut parts, 0)?;
        Ok(match (fits, classes[0]) {
            (Fits::Unknown, _) => ResultLocation::Elsewhere,
            (Fits::Yes, Class::Vector) => ResultLocation::Vector,
            (Fits::Yes | Fits::No, _) => ResultLocation::General,
        })
    }

    /// Returns where a C or C++ function returns the words of a structure.
    pub(super) fn result_words(&self, kind: Option<DieKey>) -> Result<Words, DebugError> {
        let Some(size) = self.size(kind)? else {
            return Ok(Words::Other);
        };
        if size == 0 || size > 16 || self.needs_address(kind, 0)? {
            return Ok(match self.is_large_vector(kind, size)? {
                true => Words::Other,
                false => Words::Memory,
            });
        }
        let mut classes = [Class::Nothing; 2];
        let mut parts = MOST_PARTS;
        let fits = self.classify(kind, 0, &mut classes, &mut parts, 0)?;
        Ok(match (fits, classes) {
            (Fits::Yes, [Class::Integer, Class::Integer | Class::Nothing]) => Words::General,
            (Fits::No, _) => Words::Memory,
            (Fits::Yes | Fits::Unknown, _) => Words::Other,
        })
    }

    /// True for a vector of more than 16 bytes, or a struct that consists of one.
    fn is_large_vector(&self, mut kind: Option<DieKey>, size: u64) -> Result<bool, DebugError> {
        for _ in 0..DEPTH {
            let Shape::Record { key, .. } = self.shape(kind)? else {
                break;
            };
            let mut whole = None;
            for die in self.children(&self.die(key)?)? {
                if matches!(die.tag(), dw::DW_TAG_member | dw::DW_TAG_inheritance) {
                    let member = self.type_of(&die)?;
                    if self.size(member)? == Some(size) {
                        whole = Some(member);
                    }
                }
            }
            match whole {
                Some(member) => kind = member,
                None => return Ok(false),
            }
        }
        let die = self.bare(kind)?;
        Ok(size > 16 && die.is_some_and(|die| die.flag(dw::DW_AT_GNU_vector)))
    }

    /// True for a C++ class that is non-trivial for the purposes of calls (it has its own code
    /// for copying or destruction, for example), so that it always has an address. clang records
    /// this, GCC does not.
    fn needs_address(&self, kind: Option<DieKey>, depth: usize) -> Result<bool, DebugError> {
        let key = match self.shape(kind)? {
            Shape::Record { key, .. } if depth < DEPTH => key,
            Shape::Array { element, .. } if depth < DEPTH => {
                return self.needs_address(element, depth + 1);
            }
            _ => return Ok(false),
        };
        let record = self.die(key)?;
        match record.attr(dw::DW_AT_calling_convention) {
            Some(AttributeValue::CallingConvention(gimli::DwCc(4))) => return Ok(true),
            Some(AttributeValue::CallingConvention(gimli::DwCc(5))) => return Ok(false),
            _ => {}
        }
        for die in self.children(&record)? {
            let needs = match die.tag() {
                dw::DW_TAG_subprogram => self.is_own_copy(&record, &die)?,
                dw::DW_TAG_inheritance if die.has(dw::DW_AT_virtuality) => true,
                dw::DW_TAG_member | dw::DW_TAG_inheritance
                    if !die.flag(dw::DW_AT_external) && !die.flag(dw::DW_AT_declaration) =>
                {
                    self.needs_address(self.type_of(&die)?, depth + 1)?
                }
                _ => false,
            };
            if needs {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True for a virtual function, or a user-written destructor, copy or move constructor.
    fn is_own_copy(&self, record: &Die<'a>, function: &Die<'a>) -> Result<bool, DebugError> {
        if matches!(
            function.attr(dw::DW_AT_virtuality),
            Some(AttributeValue::Virtuality(how)) if how != dw::DW_VIRTUALITY_none
        ) {
            return Ok(true);
        }
        // The compiler generated this function; `needs_address` checks the members separately.
        let defaulted =
            function.unsigned(dw::DW_AT_defaulted) == Some(u64::from(dw::DW_DEFAULTED_in_class.0));
        if defaulted || function.flag(dw::DW_AT_deleted) || function.flag(dw::DW_AT_artificial) {
            return Ok(false);
        }
        let (Some(name), Some(class)) =
            (function.text(dw::DW_AT_name), record.text(dw::DW_AT_name))
        else {
            return Ok(false);
        };
        if name.starts_with('~') {
            return Ok(true);
        }
        if class.split('<').next() != Some(name.as_str()) {
            return Ok(false);
        }
        let mut own = Vec::new();
        for die in self.children(function)? {
            if die.tag() == dw::DW_TAG_formal_parameter && !die.flag(dw::DW_AT_artificial) {
                own.push(die);
            }
        }
        let [parameter] = &own[..] else {
            return Ok(false);
        };
        let Shape::Reference { target } = self.shape(self.type_of(parameter)?)? else {
            return Ok(false);
        };
        Ok(match self.shape(target)? {
            Shape::Record { key, .. } => key == record.key(),
            _ => false,
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
        let mut put = |size: u64, alignment: u64, class: Class| {
            if size == 0 || !offset.is_multiple_of(alignment.max(1)) {
                return Fits::No;
            }
            for at in [offset, offset.saturating_add(size - 1)] {
                match classes.get_mut(usize::try_from(at / 8).unwrap_or(2)) {
                    // INTEGER takes precedence over the other classes.
                    Some(part) if *part == Class::Integer => {}
                    Some(part) => *part = class,
                    None => return Fits::No,
                }
            }
            Fits::Yes
        };
        match self.shape(kind)? {
            Shape::Base {
                encoding,
                size,
                name,
            } => Ok(match encoding {
                // x87 types: `long double` and, below, its complex form.
                dw::DW_ATE_float if size > 8 && !name.contains("128") => Fits::Unknown,
                dw::DW_ATE_complex_float if size > 16 => Fits::Unknown,
                dw::DW_ATE_float | dw::DW_ATE_decimal_float => put(size, size, Class::Vector),
                // A complex number is two numbers of half its size.
                dw::DW_ATE_complex_float | dw::DW_ATE_imaginary_float => {
                    put(size, size / 2, Class::Vector)
                }
                _ => put(size, size.min(8), Class::Integer),
            }),
            Shape::Pointer { .. } | Shape::Reference { .. } => Ok(put(8, 8, Class::Integer)),
            Shape::Enumeration { size, .. } => Ok(put(size, size, Class::Integer)),
            Shape::Array { element, .. } => {
                let (Some(size), Some(whole)) = (self.size(element)?, self.size(kind)?) else {
                    return Ok(Fits::Unknown);
                };
                if let Some(die) = self.bare(kind)?
                    && die.flag(dw::DW_AT_GNU_vector)
                {
                    return Ok(match whole {
                        8 | 16 => put(whole, whole, Class::Vector),
                        _ => Fits::Unknown,
                    });
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
