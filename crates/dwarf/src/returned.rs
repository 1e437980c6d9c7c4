//! Results of functions: location and type.

use capriole_event::{Element, FieldType, Gpr, Shown};
use capriole_prologue::{Place, Start, Sum};
use gimli::constants as dw;

use super::convention::{ResultLocation, Words};
use super::error::{DebugError, Refusal};
use super::fetch::TypedFetch;
use super::go::Begins;
use super::scope::Site;
use super::types::{Enumerators, Shape, is_signed};
use super::units::Debug;
use super::walk::Thing;

/// Result of the function around a site: location and type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    /// Nothing (`void`).
    Nothing,
    /// A number or an address in `rax`: numbers by sign and size, `bool` as `u8`, `char` as a
    /// character, enumerations as numbers with names, pointers and references as `x64`.
    Number(FieldType, Enumerators),
    /// In the low half of `xmm0`: `float` and `double`; also the first eight bytes, as `x64`, of a
    /// vector, or of a structure of at most 16 bytes that begins with such numbers.
    Vector(FieldType),
    /// Neither in `rax` nor as a plain number in `xmm0`, or unknown: `long double` is in an x87
    /// register, complex and decimal numbers have another form, the place of vectors of more than
    /// 16 bytes depends on compiler options. Contains the type in the source.
    Elsewhere(String),
    /// A class that is only declared, so that its size is unknown: `rax` holds its address or its
    /// first eight bytes, or nothing of it. Contains the type in the source.
    Undescribed(String),
    /// In `rax` and `rdx`: an integer of 16 bytes, of this type in the source.
    Pair(String),
    /// On the stack, of this type in the source: a large structure or an array in Go.
    Stack(String),
    /// A structure or another type that does not determine the content of `rax`: `rax` holds the
    /// first eight bytes of a small structure, or the address of a large one. Contains the type
    /// in the source.
    Other(String),
}

/// The possible callers of a function, derived from its symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// Any code: its symbol is not local.
    Any,
    /// Only code that the compiler has seen: its symbol is local, or it has none.
    Own,
    /// Only code for which GCC has changed it: it has the symbol of a copy, such as `f.isra.0`.
    Changed,
}

/// A function's result as a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReturnedText {
    /// It is none.
    No,
    /// It is one, of this type in the source; but the compiler may have left it out, or elsewhere.
    Unsure(String),
    /// It is one, and this fetches it where the function returns.
    Text(TypedFetch),
}

impl Debug<'_> {
    /// Returns the result of the function that contains the code at a site, not of a copy inlined
    /// there.
    ///
    /// # Errors
    ///
    /// The debug information is damaged.
    pub fn returned(&self, site: &Site) -> Result<Returned, DebugError> {
        self.begin();
        let function = self.die(site.frames[0].key)?;
        let go = function.language() == Some(dw::DW_LANG_Go);
        let kind = match go {
            true => self.first_result(&function)?,
            false => self.type_of(&function)?,
        };
        let Some(kind) = kind else {
            return Ok(Returned::Nothing);
        };
        let c_type = || self.c_type(Some(kind));
        let number = |shown, size| {
            let bytes = matches!(size, 1 | 2 | 4 | 8).then_some(size as u8);
            match bytes {
                Some(bytes) => {
                    let element = Element::Number {
                        shown,
                        bytes,
                        bits: None,
                    };
                    let field_type = FieldType {
                        element,
                        count: None,
                    };
                    Returned::Number(field_type, Enumerators::new())
                }
                None => Returned::Other(c_type()),
            }
        };
        let of_sign = |signed| match signed {
            true => Shown::Signed,
            false => Shown::Unsigned,
        };
        Ok(match self.shape(Some(kind))? {
            Shape::Void => Returned::Nothing,
            Shape::Base {
                encoding: dw::DW_ATE_float,
                size: size @ (4 | 8),
                ..
            } => Returned::Vector(FieldType {
                element: Element::Number {
                    shown: Shown::Float,
                    bytes: size as u8,
                    bits: None,
                },
                count: None,
            }),
            Shape::Base {
                encoding:
                    dw::DW_ATE_float
                    | dw::DW_ATE_complex_float
                    | dw::DW_ATE_imaginary_float
                    | dw::DW_ATE_decimal_float,
                ..
            } => Returned::Elsewhere(c_type()),
            // Complex integers of GCC are two numbers.
            Shape::Base { encoding, .. } if encoding >= dw::DW_ATE_lo_user => {
                Returned::Other(c_type())
            }
            Shape::Base { size: 16, .. } => Returned::Pair(c_type()),
            Shape::Base { size: 1, name, .. } if name == "char" => number(Shown::Character, 1),
            Shape::Base { encoding, size, .. } => number(of_sign(is_signed(encoding)), size),
            Shape::Enumeration { size, signed } => match number(of_sign(signed), size) {
                Returned::Number(number, _) => {
                    Returned::Number(number, self.enumerators(Some(kind))?)
                }
                other => other,
            },
            Shape::Pointer { .. } | Shape::Reference { .. } => number(Shown::Hexadecimal, 8),
            Shape::Record { .. } | Shape::Array { .. } if go => match self.begins(Some(kind))? {
                Begins::Integer => Returned::Other(c_type()),
                Begins::Float => Returned::Vector(FieldType::X64),
                Begins::Stack => Returned::Stack(c_type()),
            },
            // It has constructors, so its caller provides memory.
            Shape::Record { key, size: None } => match self.is_declared_string(key)? {
                true => Returned::Other(c_type()),
                false => Returned::Undescribed(c_type()),
            },
            Shape::Record { .. } | Shape::Array { .. } => match self.result_location(Some(kind))? {
                // Rust has its own calling convention.
                ResultLocation::Vector if function.language() == Some(dw::DW_LANG_Rust) => {
                    Returned::Elsewhere(c_type())
                }
                ResultLocation::Vector => Returned::Vector(FieldType::X64),
                ResultLocation::Elsewhere => Returned::Elsewhere(c_type()),
                ResultLocation::General => Returned::Other(c_type()),
            },
            Shape::Function | Shape::Other => Returned::Other(c_type()),
        })
    }

    /// True if the compiler may have left out the result of the function that contains the code at a
    /// site, where no caller uses it: GCC in copies, which have names of their own, and LLVM in any
    /// function that it optimises and all of whose callers it has seen.
    ///
    /// # Errors
    ///
    /// The debug information is damaged.
    pub fn may_lack_result(&self, site: &Site, callers: Callers) -> Result<bool, DebugError> {
        self.begin();
        let function = self.die(site.frames[0].key)?;
        let producer = self.producer(&function);
        Ok(match callers {
            Callers::Any => false,
            Callers::Changed => true,
            Callers::Own if producer.contains("clang version") => !self.is_unoptimised(&function),
            // rustc, and other front ends of LLVM, do not mark optimised functions.
            Callers::Own => producer.contains("LLVM"),
        })
    }

    /// Returns the result of the function that contains the code at a site, if that is a text: a
    /// `std::string`, a `string_view` or a reference to them, `&str` or `String` of Rust, a `string` of
    /// Go, or a known one of C or a pointer to it; with `through`, also if it points to one.
    ///
    /// It is there only if the function keeps to the calling convention. A compiler that knows all
    /// callers may change that: it drops a result, or the half of one, that no caller uses. GCC then
    /// gives the function another name. LLVM does not; so a text is known of functions that others may
    /// call, and of those that clang has not optimised.
    ///
    /// # Errors
    ///
    /// The debug information is damaged, or the text cannot be reached.
    pub fn returned_text(
        &self,
        site: &Site,
        callers: Callers,
        through: bool,
    ) -> Result<ReturnedText, Refusal> {
        self.begin();
        let function = self.die(site.frames[0].key)?;
        let language = function.language();
        let producer = self.producer(&function);
        let is_kept = match callers {
            Callers::Any => true,
            Callers::Changed => false,
            Callers::Own => {
                let clang = producer.contains("clang version");
                language == Some(dw::DW_LANG_Go)
                    || producer.starts_with("GNU")
                    || clang && self.is_unoptimised(&function)
            }
        };
        let kind = match language {
            Some(dw::DW_LANG_Go) => self.first_result(&function)?,
            _ => self.type_of(&function)?,
        };
        let rax = Place::Register {
            register: Gpr::Rax,
            at: 0,
        };
        let in_memory = Place::Memory(Sum::of(Start::Register(Gpr::Rax)));
        let place = match self.shape(kind)? {
            Shape::Pointer { size: 8, .. } | Shape::Reference { .. } => rax,
            // Only a `std::string` is known although it is just declared. It has constructors, so its
            // caller provides memory.
            Shape::Record { size: None, .. } => in_memory,
            Shape::Record {
                size: Some(size), ..
            } => match language {
                // Each word of a string or a slice has a register of its own.
                Some(dw::DW_LANG_Go) if size.is_multiple_of(8) && size <= 24 => {
                    words(&[Gpr::Rax, Gpr::Rbx, Gpr::Rcx])
                }
                Some(dw::DW_LANG_Go) => return Ok(ReturnedText::No),
                Some(dw::DW_LANG_Rust) if size > 16 => in_memory,
                Some(dw::DW_LANG_Rust) => words(&[Gpr::Rax, Gpr::Rdx]),
                _ => match self.result_words(kind)? {
                    Words::Memory => in_memory,
                    Words::General => words(&[Gpr::Rax, Gpr::Rdx]),
                    Words::Other => return Ok(ReturnedText::No),
                },
            },
            _ => return Ok(ReturnedText::No),
        };
        let thing = self.settle(Thing {
            place,
            kind,
            indexed: 0,
            bits: None,
            text: "$retval".to_owned(),
            at: 0,
        })?;
        let text = self.as_text(&thing, through)?;
        Ok(match text {
            None => ReturnedText::No,
            Some(text) if is_kept => ReturnedText::Text(text),
            Some(_) => ReturnedText::Unsure(self.c_type(kind)),
        })
    }
}

/// An object in registers, eight bytes in each.
fn words(registers: &[Gpr]) -> Place {
    let piece = |register: &Gpr| {
        let register = *register;
        (8, Place::Register { register, at: 0 })
    };
    Place::Pieces {
        pieces: registers.iter().map(piece).collect(),
        at: 0,
    }
}
