//! Texts that are a pointer and a length in a struct: `std::string` and `std::string_view` of C++,
//! `&str`, `String`, `&[u8]` and `Vec<u8>` of Rust, `string` and `[]byte` of Go; and of programs in C
//! those in the table of [`known`](super::known).
//!
//! The members are found by their names, in structs of these names. A struct that looks different (the
//! `std::string` of libc++, whose pointer depends on a bit, or that of GCC's old ABI) is a struct
//! like any other.

use super::class::Lookup;
use super::error::{DebugError, Refusal};
use super::fetch::TypedFetch;
use super::known::Known;
use super::types::Shape;
use super::units::{Debug, DieKey};
use super::walk::{Thing, follow};
use gimli::constants as dw;

/// Members on the way to the pointer, and to the length.
type Layout = (&'static [&'static str], &'static [&'static str]);

/// libstdc++, and libc++ in its newer and older versions.
const CXX_STRING: &[Layout] = &[(&["_M_dataplus", "_M_p"], &["_M_string_length"])];
const CXX_VIEW: &[Layout] = &[
    (&["_M_str"], &["_M_len"]),
    (&["__data_"], &["__size_"]),
    (&["__data"], &["__size"]),
];
const RUST_SLICE: &[Layout] = &[(&["data_ptr"], &["length"])];
/// Since Rust 1.82, and before that.
const RUST_VEC: &[Layout] = &[
    (&["buf", "inner", "ptr", "pointer", "pointer"], &["len"]),
    (&["buf", "ptr", "pointer", "pointer"], &["len"]),
];
const RUST_STRING: &[Layout] = &[
    (
        &["vec", "buf", "inner", "ptr", "pointer", "pointer"],
        &["vec", "len"],
    ),
    (
        &["vec", "buf", "ptr", "pointer", "pointer"],
        &["vec", "len"],
    ),
];
const GO_STRING: &[Layout] = &[(&["str"], &["len"])];
const GO_SLICE: &[Layout] = &[(&["array"], &["len"])];

/// Returns the layouts of a struct of this name, if it may be a text.
fn layouts(language: Option<gimli::DwLang>, name: &str) -> &'static [Layout] {
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
        for (pointer, length) in self.text_layouts(key)? {
            let (Some(pointer), Some(length)) =
                (self.within(&thing, pointer)?, self.within(&thing, length)?)
            else {
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
                    length: Some(Box::new(length)),
                    c_type: self.c_type(thing.kind),
                    ..text
                }));
            }
        }
        Ok(None)
    }

    /// Returns the fetch of a text of a known type, if it has the members of that type.
    fn as_known(&self, thing: &Thing, known: &Known) -> Result<Option<TypedFetch>, Refusal> {
        let Some(text) = self.within(thing, &[known.text])? else {
            return Ok(None);
        };
        let characters = match self.shape(text.kind)? {
            Shape::Pointer { target, size: 8 } if known.length.is_some() => target,
            Shape::Array { element } if known.length.is_none() => element,
            _ => return Ok(None),
        };
        let is_character = matches!(self.shape(characters)?, Shape::Base { size: 1, name, .. }
            if matches!(name.as_str(), "char" | "unsigned char"));
        let length = match known.length {
            Some(name) => self.within(thing, &[name])?,
            None => None,
        };
        let is_number = match &length {
            Some(length) => matches!(self.shape(length.kind)?, Shape::Base { size: 4 | 8, .. }),
            None => known.length.is_none(),
        };
        if !is_character || !is_number {
            return Ok(None);
        }
        let length = match length {
            Some(length) => Some(Box::new(self.typed(length, None)?)),
            None => None,
        };
        Ok(Some(TypedFetch {
            length,
            c_type: self.c_type(thing.kind),
            ..self.pointed_text(&text)?
        }))
    }

    fn text_layouts(&self, record: DieKey) -> Result<&'static [Layout], DebugError> {
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
