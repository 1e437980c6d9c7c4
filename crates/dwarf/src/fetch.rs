//! Turns a variable into the fetch and field type that a probe records.

use capriole_event::{Base, Bits, Deref, Element, Fetch, FieldType, Shown};
use capriole_prologue::{Place, Start, Sum, Window};
use gimli::constants as dw;

use super::error::{DebugError, Refusal, VariableError};
use super::scope::Site;
use super::types::{Enumerators, Shape, is_signed};
use super::units::Debug;
use super::walk::{Thing, word};

/// Maximum number of array elements in one field.
const MOST_ELEMENTS: u64 = 64;

/// A variable in the form that a probe reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedFetch {
    /// Base (a register, an address or a constant) and the reads that follow.
    pub fetch: Fetch,
    /// True if the base of `fetch` ([`Base::Address`] or [`Base::Immediate`]) is a link address:
    /// the load bias has to be added to it.
    pub link_address: bool,
    /// The requested type, or the one derived from the debug information.
    pub field_type: FieldType,
    /// The type in the source.
    pub c_type: String,
    /// Names of the values, if its type is an enumeration and none was requested.
    pub enumerators: Enumerators,
    /// The length of the text, if its type has one: that of `std::string`, for example.
    pub length: Option<Box<Length>>,
}

/// How long a text is that does not end with NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Length {
    /// As many bytes as a number says.
    Number {
        /// The number.
        of: TypedFetch,
        /// Bytes to subtract from the number: those of a header that it includes.
        less: u64,
        /// The members that have the address and the length, as they are named behind the text
        /// (`_M_str`, `_M_len`), if these are two.
        members: Option<[String; 2]>,
    },
    /// The byte that is fetched tells where the text is, and how long. The first case applies whose
    /// bits are as it says; if none does, the text cannot be read.
    Cases(Vec<Case>),
}

/// One of the ways in which a text may lie in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The bits of the byte that tell.
    pub bits: Bits,
    /// Their value.
    pub equal: u8,
    /// The text; `None` if it cannot be read, for example because it is compressed.
    pub text: Option<TypedFetch>,
}

impl<'a> Debug<'a> {
    /// Turns a fetch whose base is a [`Base::Variable`] into one whose base a probe can read at
    /// the site. `wanted` is the requested type. Reads written around the variable
    /// (`+8(req->next)`) are relative to its value or, for an array, to its address.
    ///
    /// Without `wanted`, the field follows the type in the source: numbers by sign and size,
    /// `bool` as `u8`, `char` as a character, enumerations as numbers, pointers as `x64`,
    /// pointers to `char` and arrays of `char` as strings, arrays of up to 64 numbers as arrays,
    /// bit fields as their bits, `std::string` and the like as texts with a length.
    ///
    /// # Errors
    ///
    /// See [`Refusal`]; the column counts from the start of the variable. A base that is not a
    /// variable is refused as [`Refusal::Syntax`].
    pub fn fetch(
        &self,
        site: &Site,
        fetch: &Fetch,
        wanted: Option<FieldType>,
    ) -> Result<TypedFetch, VariableError> {
        self.begin();
        let Base::Variable(text) = &fetch.base else {
            return Err(VariableError::new(0, Refusal::Syntax("a variable")));
        };
        let thing = self.walk(site, text)?;
        let at = thing.at;
        let typed = match fetch.derefs.split_last() {
            None => self.typed(thing, wanted),
            Some((last, before)) => self.around(thing, before, *last, wanted),
        };
        typed.map_err(|refusal| VariableError { at, refusal })
    }

    /// Applies the reads written around a variable.
    fn around(
        &self,
        thing: Thing,
        before: &[Deref],
        last: Deref,
        wanted: Option<FieldType>,
    ) -> Result<TypedFetch, Refusal> {
        self.check_whole(&thing)?;
        let c_type = self.c_type(thing.kind);
        let mismatch = Refusal::Mismatch {
            of: thing.text.clone(),
            c_type: c_type.clone(),
            wanted: "an address",
        };
        let mut sum = match (self.shape(thing.kind)?, thing.place.clone()) {
            (Shape::Array { .. }, Place::Memory(sum)) => sum,
            (Shape::Array { .. }, _) => return Err(mismatch),
            (Shape::Pointer { .. }, place) => word(place, &thing.text)?,
            (Shape::Base { size: 8, .. }, place) if thing.bits.is_none() => {
                word(place, &thing.text)?
            }
            _ => return Err(mismatch),
        };
        for deref in before {
            let read = sum.shift(deref.offset).read();
            sum = read.ok_or_else(|| Refusal::Computed(thing.text.clone()))?;
        }
        let (mut fetch, link_address) = sum.shift(last.offset).at();
        let around = before.iter().rev();
        for (deref, given) in fetch
            .derefs
            .iter_mut()
            .rev()
            .zip([&last].into_iter().chain(around))
        {
            deref.user = given.user;
        }
        Ok(TypedFetch {
            fetch,
            link_address,
            field_type: wanted.unwrap_or(FieldType::number(Shown::Hexadecimal, 8)),
            c_type,
            enumerators: Vec::new(),
            length: None,
        })
    }

    /// Returns the fetch and field type of an object.
    pub(super) fn typed(
        &self,
        thing: Thing,
        wanted: Option<FieldType>,
    ) -> Result<TypedFetch, Refusal> {
        self.check_whole(&thing)?;
        match wanted {
            None => self.by_itself(&thing),
            Some(FieldType {
                element: Element::String { .. },
                ..
            }) => self.as_string(&thing, wanted),
            Some(wanted) if wanted.count.is_some() || wanted.element == Element::Ipv6 => {
                self.as_array(&thing, wanted)
            }
            Some(wanted) => self.as_number(&thing, wanted),
        }
    }

    /// Chooses the field type from the type in the source.
    fn by_itself(&self, thing: &Thing) -> Result<TypedFetch, Refusal> {
        let (of, c_type) = (thing.text.clone(), self.c_type(thing.kind));
        let wrong_size = |size| Refusal::Size {
            of: of.clone(),
            c_type: c_type.clone(),
            size,
        };
        if let Some(text) = self.as_text(thing, false)? {
            return Ok(text);
        }
        match self.shape(thing.kind)? {
            Shape::Base {
                encoding: dw::DW_ATE_float,
                size: size @ (4 | 8),
                ..
            } => self.as_number(thing, FieldType::number(Shown::Float, size as u8)),
            Shape::Base {
                encoding: dw::DW_ATE_float | dw::DW_ATE_complex_float | dw::DW_ATE_decimal_float,
                size,
                ..
            } => Err(match size {
                2 | 4 | 8 => Refusal::FloatingPoint { of, c_type, size },
                _ => wrong_size(size),
            }),
            Shape::Base {
                encoding,
                size,
                name,
            } => {
                let shown = match encoding {
                    _ if size == 1 && name == "char" => Shown::Character,
                    encoding if is_signed(encoding) => Shown::Signed,
                    _ => Shown::Unsigned,
                };
                let bytes = field_size(size).ok_or_else(|| wrong_size(size))?;
                if encoding == dw::DW_ATE_boolean && bytes == 1 && is_in_register(thing) {
                    return self.as_number(&lowest_bit(thing), FieldType::number(shown, bytes));
                }
                self.as_number(thing, FieldType::number(shown, bytes))
            }
            Shape::Enumeration { size, signed } => {
                let shown = if signed {
                    Shown::Signed
                } else {
                    Shown::Unsigned
                };
                let bytes = field_size(size).ok_or_else(|| wrong_size(size))?;
                Ok(TypedFetch {
                    enumerators: self.enumerators(thing.kind)?,
                    ..self.as_number(thing, FieldType::number(shown, bytes))?
                })
            }
            Shape::Pointer { target, size } => {
                if self.is_char(target)? {
                    return self.as_string(thing, None);
                }
                let bytes = field_size(size).ok_or_else(|| wrong_size(size))?;
                self.as_number(thing, FieldType::number(Shown::Hexadecimal, bytes))
            }
            Shape::Array { element, .. } => {
                let array = self.bare(thing.kind)?;
                let dimensions = array.map(|array| self.dimensions(&array)).transpose()?;
                let left = dimensions.unwrap_or_default();
                let left = left.get(thing.indexed..).unwrap_or_default();
                let refused = || Refusal::Array {
                    of: of.clone(),
                    c_type: c_type.clone(),
                };
                let &[count] = left else {
                    return Err(refused());
                };
                if self.is_char(element)? {
                    return self.as_string(thing, None);
                }
                let count = count.filter(|count| (1..=MOST_ELEMENTS).contains(count));
                let count = count.ok_or_else(refused)?;
                let inner = match self.shape(element)? {
                    Shape::Base {
                        encoding: dw::DW_ATE_float,
                        size: size @ (4 | 8),
                        ..
                    } => (Some(Shown::Float), size),
                    Shape::Base { encoding, size, .. }
                        if !matches!(
                            encoding,
                            dw::DW_ATE_float | dw::DW_ATE_complex_float | dw::DW_ATE_decimal_float
                        ) =>
                    {
                        (is_signed(encoding).then_some(Shown::Signed), size)
                    }
                    Shape::Enumeration { size, signed } => (signed.then_some(Shown::Signed), size),
                    Shape::Pointer { size, .. } => (Some(Shown::Hexadecimal), size),
                    _ => return Err(refused()),
                };
                let bytes = field_size(inner.1).ok_or_else(refused)?;
                let element = FieldType::number(inner.0.unwrap_or(Shown::Unsigned), bytes);
                self.as_array(
                    thing,
                    FieldType {
                        count: Some(count as u16),
                        ..element
                    },
                )
            }
            Shape::Record { key, .. } if self.has_variants(key)? => {
                Err(Refusal::Variants { of, c_type })
            }
            Shape::Record { key, .. } => {
                let members = self.member_names(key)?;
                let rust = matches!(self.die(key)?.language(), Some(dw::DW_LANG_Rust));
                let slice = members.iter().any(|name| name == "data_ptr")
                    || c_type.contains("String")
                    || c_type.starts_with('&');
                Err(match rust && slice {
                    true => Refusal::RustSlice {
                        of,
                        c_type,
                        members,
                    },
                    false => Refusal::Whole {
                        of,
                        c_type,
                        members,
                    },
                })
            }
            Shape::Function | Shape::Void | Shape::Other | Shape::Reference { .. } => {
                Err(wrong_size(0))
            }
        }
    }

    fn is_char(&self, kind: Option<super::units::DieKey>) -> Result<bool, DebugError> {
        Ok(match self.shape(kind)? {
            Shape::Base { size: 1, name, .. } => name == "char",
            _ => false,
        })
    }

    /// True for a type of which a string may consist: of one byte, or unknown (`void`).
    fn may_be_character(&self, kind: Option<super::units::DieKey>) -> Result<bool, DebugError> {
        Ok(match self.shape(kind)? {
            Shape::Base { size, .. } | Shape::Enumeration { size, .. } => size == 1,
            Shape::Array { element } => match self.shape(element)? {
                Shape::Base { size, .. } => size == 1,
                _ => false,
            },
            Shape::Void => true,
            _ => false,
        })
    }

    /// Returns the fetch of a text: of a struct that is one, or of the string that a pointer points
    /// to or an array contains.
    fn as_string(&self, thing: &Thing, wanted: Option<FieldType>) -> Result<TypedFetch, Refusal> {
        let single = wanted.is_none_or(|wanted| wanted.count.is_none());
        if single && let Some(text) = self.as_text(thing, true)? {
            return Ok(TypedFetch {
                field_type: wanted.unwrap_or(text.field_type),
                ..text
            });
        }
        self.terminated(thing, wanted)
    }

    /// Returns the fetch of the text that a pointer points to.
    pub(super) fn pointed_text(&self, pointer: &Thing) -> Result<TypedFetch, Refusal> {
        self.terminated(pointer, None)
    }

    /// Returns the fetch of a string that a pointer points to or an array contains.
    fn terminated(&self, thing: &Thing, wanted: Option<FieldType>) -> Result<TypedFetch, Refusal> {
        let c_type = self.c_type(thing.kind);
        let mismatch = || Refusal::Mismatch {
            of: thing.text.clone(),
            c_type: c_type.clone(),
            wanted: "a string",
        };
        // Several strings are where pointers point to.
        let several = wanted.is_some_and(|wanted| wanted.count.is_some());
        let address = match (self.shape(thing.kind)?, &thing.place) {
            (Shape::Array { element }, Place::Memory(sum))
                if several || self.may_be_character(element)? =>
            {
                sum.clone()
            }
            (Shape::Pointer { size: 8, target }, place)
                if thing.bits.is_none() && (several || self.may_be_character(target)?) =>
            {
                word(place.clone(), &thing.text)?
            }
            (Shape::Base { size: 8, .. }, place) if thing.bits.is_none() => {
                word(place.clone(), &thing.text)?
            }
            (Shape::Record { key, .. }, _)
                if matches!(self.die(key)?.language(), Some(dw::DW_LANG_Rust)) =>
            {
                return Err(Refusal::RustSlice {
                    of: thing.text.clone(),
                    members: self.member_names(key)?,
                    c_type,
                });
            }
            _ => return Err(mismatch()),
        };
        let (fetch, link_address) = address.at();
        Ok(TypedFetch {
            fetch,
            link_address,
            field_type: wanted.unwrap_or(FieldType {
                element: Element::String { user: false },
                count: None,
            }),
            c_type,
            enumerators: Vec::new(),
            length: None,
        })
    }

    /// Returns the fetch of several numbers in memory: in an array, or where a pointer points.
    fn as_array(&self, thing: &Thing, wanted: FieldType) -> Result<TypedFetch, Refusal> {
        let c_type = self.c_type(thing.kind);
        let address = match (self.shape(thing.kind)?, &thing.place) {
            (Shape::Pointer { size: 8, .. }, place) => word(place.clone(), &thing.text)?,
            (_, Place::Memory(sum)) if thing.bits.is_none() => sum.clone(),
            _ => {
                return Err(Refusal::Mismatch {
                    of: thing.text.clone(),
                    c_type,
                    wanted: "an array: it is not in memory here",
                });
            }
        };
        let (fetch, link_address) = address.at();
        Ok(TypedFetch {
            fetch,
            link_address,
            field_type: wanted,
            c_type,
            enumerators: Vec::new(),
            length: None,
        })
    }

    /// True for a floating point number of another size or kind than a binary one of so many bytes.
    fn is_other_float(&self, thing: &Thing, bytes: u8) -> Result<bool, Refusal> {
        Ok(match self.shape(thing.kind)? {
            Shape::Base { encoding, size, .. } => match encoding {
                dw::DW_ATE_float => size != u64::from(bytes),
                dw::DW_ATE_decimal_float => true,
                _ => false,
            },
            _ => false,
        })
    }

    /// Returns the fetch of one number of the type `wanted`.
    fn as_number(&self, thing: &Thing, wanted: FieldType) -> Result<TypedFetch, Refusal> {
        let c_type = self.c_type(thing.kind);
        let of = || thing.text.clone();
        let Element::Number { shown, bytes, bits } = wanted.element else {
            return self.as_string(thing, Some(wanted));
        };
        let size = self.size(thing.kind)?.unwrap_or(u64::from(bytes));
        if thing.bits.is_none() && u64::from(bytes) > size && self.is_whole(thing)? {
            return Err(Refusal::Wider {
                of: of(),
                c_type,
                size,
                wanted,
            });
        }
        if shown == Shown::Float && self.is_other_float(thing, bytes)? {
            return Err(Refusal::Mismatch {
                of: of(),
                c_type,
                wanted: if bytes == 4 { "f32" } else { "f64" },
            });
        }
        let part = match (thing.bits, bits) {
            (Some((first, width)), _) => Some((first, width)),
            (None, Some(bits)) => Some((u64::from(bits.offset), u64::from(bits.width))),
            (None, None) => None,
        };
        let extent = part.map_or(u64::from(bytes), |(first, width)| {
            first.saturating_add(width).div_ceil(8)
        });
        let wrong_bits = || Refusal::Size {
            of: of(),
            c_type: c_type.clone(),
            size,
        };
        let (sum, window, at) = match thing.place.clone().narrow(extent) {
            Place::Memory(sum) => {
                let Some((first, width)) = part else {
                    let (fetch, link_address) = sum.at();
                    return Ok(typed(fetch, link_address, wanted, c_type));
                };
                let (byte, container, offset) = if thing.bits.is_some() {
                    container(first, width).ok_or_else(wrong_bits)?
                } else {
                    (0, bytes, first as u8)
                };
                let byte = i64::try_from(byte).map_err(|_| wrong_bits())?;
                let (fetch, link_address) = sum.shift(byte).at();
                let field = with_bits(shown, container, width as u8, offset);
                return Ok(typed(fetch, link_address, field, c_type));
            }
            Place::Register { register, at } => {
                (Sum::of(Start::Register(register)), Window::WHOLE, at)
            }
            Place::Value { value, bits, at } => (value, bits, at),
            Place::Pieces { .. } => return Err(Refusal::Pieces(of())),
            Place::Vector(Some(number)) if part.is_none() => {
                let fetch = Fetch {
                    base: Base::Vector(number),
                    derefs: Vec::new(),
                };
                return Ok(typed(fetch, false, wanted, c_type));
            }
            Place::VectorPart { register, at } if part.is_none() && at + u64::from(bytes) <= 8 => {
                let fetch = Fetch {
                    base: Base::Vector(register),
                    derefs: Vec::new(),
                };
                let field = with_bits(shown, 8, bytes * 8, at as u8 * 8);
                return Ok(typed(fetch, false, field, c_type));
            }
            Place::Vector(_) | Place::VectorPart { .. } => {
                return Err(Refusal::VectorRegister(of()));
            }
            Place::Lost => return Err(Refusal::NotSaved(of())),
            Place::Missing => {
                return Err(Refusal::OptimisedOut {
                    name: of(),
                    lines: Vec::new(),
                    optimised: false,
                });
            }
        };
        let computed = || Refusal::Computed(of());
        // Bits to take from the word: a bit field, or `bytes` bytes from byte `at` up.
        let (first, width) = match part {
            Some((first, width)) => (first.saturating_add(at.saturating_mul(8)), width),
            None if at == 0 && window.is_whole() => {
                let (fetch, link_address) = sum.value().ok_or_else(computed)?;
                return Ok(typed(fetch, link_address, wanted, c_type));
            }
            None => (at.saturating_mul(8), u64::from(bytes) * 8),
        };
        if first.saturating_add(width) > 64 || width == 0 {
            return Err(wrong_bits());
        }
        // Above the available bits, the number is sign-extended or zero-extended.
        let there = u64::from(window.width).saturating_sub(first);
        let (shown, width) = match (shown, window.signed) {
            _ if width <= there => (shown, width),
            (Shown::Signed, true) if there > 0 => (shown, there),
            (Shown::Signed | Shown::Unsigned, false) if there > 0 => (Shown::Unsigned, there),
            (Shown::Hexadecimal, false) if there > 0 => (shown, there),
            _ => return Err(computed()),
        };
        let first = first + u64::from(window.shift);
        let in_memory = sum.clone().read_at((first / 8) as i64);
        let (sum, first, size) = match (container(first % 8, width), in_memory) {
            // Read no more memory than needed.
            (Some((0, size, first)), Some(sum)) => (sum, first, size),
            _ => (sum, first as u8, 8),
        };
        let (fetch, link_address) = sum.value().ok_or_else(computed)?;
        let field = match width == u64::from(size) * 8 {
            true => FieldType::number(shown, size),
            false => with_bits(shown, size, width as u8, first),
        };
        Ok(typed(fetch, link_address, field, c_type))
    }

    /// True if a read must not extend past the object: structs, arrays, and anything in memory.
    fn is_whole(&self, thing: &Thing) -> Result<bool, DebugError> {
        Ok(match self.shape(thing.kind)? {
            Shape::Record { .. } | Shape::Array { .. } => true,
            // A number in a register may be recorded as the whole register.
            _ => matches!(thing.place, Place::Memory(_)),
        })
    }
}

/// True for an object in a register or calculated from one.
fn is_in_register(thing: &Thing) -> bool {
    let place = thing.place.clone().narrow(1);
    let is_known = |value: &Sum| value.constant().is_some();
    thing.bits.is_none()
        && match place {
            Place::Register { .. } => true,
            Place::Value { value, .. } => !is_known(&value),
            _ => false,
        }
}

/// Returns the bit that compilers use of a truth value: in a register, they may keep the number that
/// it was taken from.
fn lowest_bit(thing: &Thing) -> Thing {
    Thing {
        bits: Some((0, 1)),
        ..thing.clone()
    }
}

pub(super) fn typed(
    fetch: Fetch,
    link_address: bool,
    field_type: FieldType,
    c_type: String,
) -> TypedFetch {
    TypedFetch {
        fetch,
        link_address,
        field_type,
        c_type,
        enumerators: Vec::new(),
        length: None,
    }
}

pub(super) fn with_bits(shown: Shown, bytes: u8, width: u8, offset: u8) -> FieldType {
    FieldType {
        element: Element::Number {
            shown,
            bytes,
            bits: Some(Bits { width, offset }),
        },
        count: None,
    }
}

fn field_size(size: u64) -> Option<u8> {
    matches!(size, 1 | 2 | 4 | 8).then_some(size as u8)
}

/// Returns the smallest aligned container of a bit field: its byte offset, its size in bytes,
/// and the number of bits below the field. If there is none (packed structs), returns the
/// eight bytes from the byte where the field begins.
fn container(first: u64, width: u64) -> Option<(u64, u8, u8)> {
    if width == 0 || width > 64 {
        return None;
    }
    for bytes in [1u64, 2, 4, 8] {
        let bits = bytes * 8;
        let offset = first % bits;
        if offset + width <= bits {
            return Some((first / bits * bytes, bytes as u8, offset as u8));
        }
    }
    let offset = first % 8;
    (offset + width <= 64).then_some((first / 8, 8, offset as u8))
}

#[cfg(test)]
mod tests {
    use super::container;

    #[test]
    fn containers_hold_their_fields() {
        assert_eq!(container(5, 3), Some((0, 1, 5)));
        assert_eq!(container(6, 3), Some((0, 2, 6)));
        assert_eq!(container(32, 32), Some((4, 4, 0)));
        assert_eq!(container(60, 8), Some((7, 8, 4)));
        assert_eq!(container(0, 64), Some((0, 8, 0)));
        assert_eq!(container(4, 64), None);
        assert_eq!(container(4, 0), None);
        for first in 0..200 {
            for width in 1..=56 {
                let (byte, size, offset) = container(first, width).unwrap();
                assert_eq!(byte * 8 + u64::from(offset), first);
                assert!(u64::from(offset) + width <= u64::from(size) * 8);
            }
        }
    }
}
