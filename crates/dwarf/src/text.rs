//! Texts that are a pointer and a length in a struct: `std::string` and `std::string_view` of C++,
//! `&str`, `String`, `&[u8]` and `Vec<u8>` of Rust, `string` and `[]byte` of Go; and of programs in C
//! those in the table of [`known`](super::known).
//!
//! The members are found by their names, in structs of these names. A struct that looks different is a
//! struct like any other.

use super::class::Lookup;
use super::error::{DebugError, Refusal};
use super::fetch::{Case, Length, TypedFetch, typed, with_bits};
use super::known::{Known, Layout};
use super::types::Shape;
use super::units::{Debug, DieKey};
use super::walk::{Thing, follow, word};
use capriole_event::{Bits, FieldType, Shown};
use capriole_object::symbols::demangle::is_without_blanks;
use capriole_prologue::{Place, Start, Sum};
use gimli::constants as dw;

/// Members on the way to the pointer, and to the length.
type Members = (&'static [&'static str], &'static [&'static str]);

/// libstdc++, and libc++ in its newer and older versions.
const CXX_STRING: &[Members] = &[(&["_M_dataplus", "_M_p"], &["_M_string_length"])];
/// The name of `std::string` without blanks and namespaces around it.
const USUAL_STRING: &str = "basic_string<char,std::char_traits<char>,std::allocator<char>>";
const CXX_VIEW: &[Members] = &[
    (&["_M_str"], &["_M_len"]),
    (&["__data_"], &["__size_"]),
    (&["__data"], &["__size"]),
];
const RUST_SLICE: &[Members] = &[(&["data_ptr"], &["length"])];
/// Since Rust 1.82, and before that.
const RUST_VEC: &[Members] = &[
    (&["buf", "inner", "ptr", "pointer", "pointer"], &["len"]),
    (&["buf", "ptr", "pointer", "pointer"], &["len"]),
];
const RUST_STRING: &[Members] = &[
    (
        &["vec", "buf", "inner", "ptr", "pointer", "pointer"],
        &["vec", "len"],
    ),
    (
        &["vec", "buf", "ptr", "pointer", "pointer"],
        &["vec", "len"],
    ),
];
const GO_STRING: &[Members] = &[(&["str"], &["len"])];
const GO_SLICE: &[Members] = &[(&["array"], &["len"])];

/// Returns the layouts of a struct of this name, if it may be a text.
fn layouts(language: Option<gimli::DwLang>, name: &str) -> &'static [Members] {
    match language {
        Some(dw::DW_LANG_Rust) => match name {
            "String" => RUST_STRING,
            "alloc::boxed::Box<str, alloc::alloc::Global>" | "alloc::boxed::Box<str>" => RUST_SLICE,
            "&str" | "&mut str" | "&[u8]" | "&mut [u8]" => RUST_SLICE,
            _ if name.starts_with("Vec<u8,") || name == "Vec<u8>" => RUST_VEC,
            _ => &[],
        },
        Some(dw::DW_LANG_Go) => match name {
            "string" => GO_STRING,
            "[]uint8" => GO_SLICE,
            _ => &[],
        },
        // The arguments of templates may be missing from the name; see `is_byte`.
        _ if name == "basic_string" || name.starts_with("basic_string<char,") => CXX_STRING,
        _ if name == "basic_string_view" || name.starts_with("basic_string_view<char,") => CXX_VIEW,
        _ => &[],
    }
}

impl Debug<'_> {
    /// Returns the fetch of the text that an object is, if it is one; with `through`, also if it
    /// points to one. A reference of Rust is always followed.
    pub(super) fn as_text(
        &self,
        thing: &Thing,
        through: bool,
    ) -> Result<Option<TypedFetch>, Refusal> {
        let thing = match self.shape(thing.kind)? {
            Shape::Pointer { target, size: 8 } if thing.bits.is_none() => {
                let is_text = matches!(self.shape(target)?, Shape::Record { key, .. }
                    if !self.text_layouts(key)?.is_empty());
                // Programs in C pass them by pointers.
                let is_known = self.known_text(target)?.is_some();
                let is_followed = through || self.c_type(thing.kind).starts_with('&');
                if !(is_known || is_text && is_followed) {
                    return Ok(None);
                }
                Thing {
                    place: follow(&thing.place, &thing.text)?,
                    kind: target,
                    indexed: 0,
                    ..thing.clone()
                }
            }
            _ => thing.clone(),
        };
        let Shape::Record { key, .. } = self.shape(thing.kind)? else {
            return Ok(None);
        };
        if let Some(known) = self.known_text(thing.kind)? {
            return self.as_known(&thing, known);
        }
        for (to_text, to_length) in self.text_layouts(key)? {
            let (Some(pointer), Some(length)) = (
                self.within(&thing, to_text)?,
                self.within(&thing, to_length)?,
            ) else {
                continue;
            };
            let is_text = match self.shape(pointer.kind)? {
                Shape::Pointer { target, size: 8 } => self.is_byte(target)?,
                _ => false,
            };
            let is_number = matches!(self.shape(length.kind)?, Shape::Base { size: 8, .. });
            if is_text && is_number {
                let length = self.typed(length, None)?;
                let text = self.pointed_text(&pointer)?;
                return Ok(Some(TypedFetch {
                    length: Some(Box::new(Length::Number {
                        of: length,
                        less: 0,
                        members: Some([to_text, to_length].map(|path| path.join("."))),
                    })),
                    c_type: self.c_type(thing.kind),
                    ..text
                }));
            }
        }
        if self.text_layouts(key)? != CXX_STRING {
            return Ok(None);
        }
        for read in [
            Self::libcxx_string,
            Self::old_string,
            Self::undescribed_string,
        ] {
            if let Some(text) = read(self, &thing)? {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// Returns the fetch of a text of a known type, if it has the members of that type.
    fn as_known(&self, thing: &Thing, known: &Known) -> Result<Option<TypedFetch>, Refusal> {
        let is_character = |kind| -> Result<bool, DebugError> {
            Ok(
                matches!(self.shape(kind)?, Shape::Base { size: 1, name, .. }
                if matches!(name.as_str(), "char" | "unsigned char")),
            )
        };
        let (text, length) = match known.layout {
            Layout::Counted { text, length } => {
                let members = Some([text, length].map(str::to_owned));
                let (Some(text), Some(length)) =
                    (self.within(thing, &[text])?, self.within(thing, &[length])?)
                else {
                    return Ok(None);
                };
                match (self.shape(text.kind)?, self.shape(length.kind)?) {
                    (Shape::Pointer { target, size: 8 }, Shape::Base { size: 4 | 8, .. })
                        if is_character(target)? => {}
                    _ => return Ok(None),
                }
                let of = self.typed(length, None)?;
                let length = Length::Number {
                    of,
                    less: 0,
                    members,
                };
                (text, Some(Box::new(length)))
            }
            Layout::Terminated { text } => {
                let Some(text) = self.within(thing, &[text])? else {
                    return Ok(None);
                };
                match self.shape(text.kind)? {
                    Shape::Array { element } if is_character(element)? => {}
                    _ => return Ok(None),
                }
                (text, None)
            }
            Layout::Varlena => return self.varlena(thing),
        };
        Ok(Some(TypedFetch {
            length,
            c_type: self.c_type(thing.kind),
            ..self.pointed_text(&text)?
        }))
    }

    /// Returns the fetch of PostgreSQL's `struct varlena` (`text`, `bytea`; varatt.h, little endian):
    /// the lowest bits of its first byte tell which of four kinds it is.
    fn varlena(&self, thing: &Thing) -> Result<Option<TypedFetch>, Refusal> {
        let members = [
            self.offset(thing, &["vl_len_"])?,
            self.offset(thing, &["vl_dat"])?,
        ];
        let Place::Memory(begin) = &thing.place else {
            return Ok(None);
        };
        if members != [Some(0), Some(4)] {
            return Ok(None);
        }
        let at = |place: i64| begin.clone().shift(place);
        let case = |first: (u8, u8, u8), text| Case {
            bits: Bits {
                offset: first.0,
                width: first.1,
            },
            equal: first.2,
            text,
        };
        // The length counts the header: one byte, or four.
        let short = with_bits(Shown::Unsigned, 1, 7, 1);
        let long = with_bits(Shown::Unsigned, 4, 30, 2);
        let cases = vec![
            // It is elsewhere ("external"), and this is a pointer to it.
            case((0, 8, 1), None),
            case((0, 1, 1), Some(counted(at(1), (at(0), short), 1))),
            case((0, 2, 0), Some(counted(at(4), (at(0), long), 4))),
            // Else it is compressed.
        ];
        Ok(Some(self.by_cases(thing, at(0), cases)))
    }

    /// Returns the fetch of a `std::string` of libc++ (`__rep` in its `<string>`, little endian): a
    /// bit tells whether the text is in the string itself or elsewhere. That bit is in the first byte,
    /// or with `_LIBCPP_ABI_ALTERNATE_STRING_LAYOUT` in the last.
    fn libcxx_string(&self, thing: &Thing) -> Result<Option<TypedFetch>, Refusal> {
        let Place::Memory(begin) = &thing.place else {
            return Ok(None);
        };
        let at = |place: i64| begin.clone().shift(place);
        // Since LLVM 19, and before that.
        for rep in [&["__rep_"][..], &["__r_", "__value_"]] {
            let path = |of, name| [rep, &[of, name]].concat();
            let Some(pointer) = self.within(thing, &path("__l", "__data_"))? else {
                continue;
            };
            match self.shape(pointer.kind)? {
                Shape::Pointer { target, size: 8 } if self.is_byte(target)? => {}
                _ => return Ok(None),
            }
            let offsets = [
                self.offset(thing, &path("__l", "__data_"))?,
                self.offset(thing, &path("__l", "__size_"))?,
                self.offset(thing, &path("__s", "__data_"))?,
            ];
            // Of the pointer, a short text, the byte that tells; its bit; the first bit of a short
            // text's length.
            let (pointer, inside, tag, bit, length) = match offsets {
                [Some(16), Some(8), Some(1)] => (at(16), at(1), 0, 0, 1),
                [Some(0), Some(8), Some(0)] => (at(0), at(0), 23, 7, 0),
                _ => return Ok(None),
            };
            let elsewhere = pointer.read();
            let elsewhere = elsewhere.ok_or_else(|| Refusal::Computed(thing.text.clone()))?;
            let short = with_bits(Shown::Unsigned, 1, 7, length);
            let long = FieldType::number(Shown::Unsigned, 8);
            let case = |equal, text| Case {
                bits: Bits {
                    offset: bit,
                    width: 1,
                },
                equal,
                text: Some(text),
            };
            let cases = vec![
                case(0, counted(inside, (at(tag), short), 0)),
                case(1, counted(elsewhere, (at(8), long), 0)),
            ];
            return Ok(Some(self.by_cases(thing, at(tag), cases)));
        }
        Ok(None)
    }

    /// Returns the fetch of a `std::string` of GCC's old ABI (`_Rep` in bits/cow_string.h): a pointer
    /// to the text, whose length is three words before it.
    fn old_string(&self, thing: &Thing) -> Result<Option<TypedFetch>, Refusal> {
        let path = ["_M_dataplus", "_M_p"];
        let Some(pointer) = self.within(thing, &path)? else {
            return Ok(None);
        };
        let is_text = match self.shape(pointer.kind)? {
            Shape::Pointer { target, size: 8 } => self.is_byte(target)?,
            _ => false,
        };
        if !is_text || self.size(thing.kind)? != Some(8) {
            return Ok(None);
        }
        let text = word(pointer.place, &thing.text)?;
        let length = text.clone().shift(-24);
        let long = FieldType::number(Shown::Unsigned, 8);
        Ok(Some(TypedFetch {
            c_type: self.c_type(thing.kind),
            ..counted(text, (length, long), 0)
        }))
    }

    /// Returns the fetch of a `std::string` of libstdc++ that debug information does not describe: clang
    /// describes a class where its constructor is, which is maybe in the library. Then it is only
    /// declared, or the member with its pointer is. What `std::__cxx11::basic_string` consists of is
    /// part of the library's ABI.
    fn undescribed_string(&self, thing: &Thing) -> Result<Option<TypedFetch>, Refusal> {
        let (Shape::Record { key, size }, Place::Memory(begin)) =
            (self.shape(thing.kind)?, &thing.place)
        else {
            return Ok(None);
        };
        let is_known = match size {
            None => self.is_declared_string(key)?,
            Some(32) => match self.within(thing, &["_M_dataplus"])? {
                Some(holder) => {
                    matches!(self.shape(holder.kind)?, Shape::Record { size: None, .. })
                        && self.offset(thing, &["_M_dataplus"])? == Some(0)
                        && self.offset(thing, &["_M_string_length"])? == Some(8)
                        && self.is_usual_string(key)?
                }
                None => false,
            },
            Some(_) => false,
        };
        if !is_known {
            return Ok(None);
        }
        let text = begin.clone().read();
        let text = text.ok_or_else(|| Refusal::Computed(thing.text.clone()))?;
        let length = begin.clone().shift(8);
        let long = FieldType::number(Shown::Unsigned, 8);
        Ok(Some(TypedFetch {
            c_type: self.c_type(thing.kind),
            ..counted(text, (length, long), 0)
        }))
    }

    /// True if a class that debug information only declares is the `std::string` of libstdc++.
    pub(super) fn is_declared_string(&self, key: DieKey) -> Result<bool, DebugError> {
        let around = self.enclosing(key)?;
        let names = around.0.iter().map(|part| part.name.as_str());
        Ok(names.eq(["__cxx11", "std"]) && self.is_usual_string(key)?)
    }

    fn is_usual_string(&self, key: DieKey) -> Result<bool, DebugError> {
        let name = self.die(key)?.text(dw::DW_AT_name).unwrap_or_default();
        Ok(is_without_blanks(&name, USUAL_STRING))
    }

    /// Returns the fetch of a text in one of several ways, which the byte at `tag` tells.
    fn by_cases(&self, thing: &Thing, tag: Sum, cases: Vec<Case>) -> TypedFetch {
        let (fetch, link_address) = tag.at();
        TypedFetch {
            length: Some(Box::new(Length::Cases(cases))),
            ..typed(
                fetch,
                link_address,
                FieldType::STRING,
                self.c_type(thing.kind),
            )
        }
    }

    /// Returns where a member is in an object, in bytes.
    fn offset(&self, thing: &Thing, path: &[&str]) -> Result<Option<u64>, DebugError> {
        let at_zero = Thing {
            place: Place::Memory(Sum::of(Start::Constant(0))),
            ..thing.clone()
        };
        Ok(
            match self.within(&at_zero, path)?.map(|found| found.place) {
                Some(Place::Memory(sum)) => sum.constant(),
                _ => None,
            },
        )
    }

    fn text_layouts(&self, record: DieKey) -> Result<&'static [Members], DebugError> {
        let die = self.die(record)?;
        let name = die.text(dw::DW_AT_name).unwrap_or_default();
        Ok(layouts(die.language(), &name))
    }

    /// Returns the member at the end of a path, if the struct has all of them.
    fn within(&self, thing: &Thing, path: &[&str]) -> Result<Option<Thing>, DebugError> {
        let mut thing = thing.clone();
        for name in path {
            let Shape::Record { key, .. } = self.shape(thing.kind)? else {
                return Ok(None);
            };
            let Lookup::Found(member) = self.member(key, name)? else {
                return Ok(None);
            };
            let Ok(offset) = i64::try_from(member.offset) else {
                return Ok(None);
            };
            if member.bits.is_some() {
                return Ok(None);
            }
            thing = Thing {
                place: thing.place.shift(offset),
                kind: member.kind,
                indexed: 0,
                ..thing
            };
        }
        Ok(Some(thing))
    }

    /// True for `char` of C++, `u8` of Rust, and `uint8` of Go.
    fn is_byte(&self, kind: Option<DieKey>) -> Result<bool, DebugError> {
        Ok(match self.shape(kind)? {
            Shape::Base { size: 1, name, .. } => matches!(name.as_str(), "char" | "u8" | "uint8"),
            _ => false,
        })
    }
}

/// Returns the fetch of a text of known length, less what that counts beyond the text.
fn counted(text: Sum, (length, of): (Sum, FieldType), less: u64) -> TypedFetch {
    let (length, is_link) = length.at();
    let of = typed(length, is_link, of, String::new());
    let (fetch, link_address) = text.at();
    TypedFetch {
        length: Some(Box::new(Length::Number {
            of,
            less,
            members: None,
        })),
        ..typed(fetch, link_address, FieldType::STRING, String::new())
    }
}
