//! The fields of an event in TSDL.
//!
//! Fields start at multiples of 64 bits: their types have this alignment, so padding needs no
//! member name, which readers would show. Only an array of small numbers cannot be aligned by
//! its type, since the numbers are packed; after a field that does not end at such a multiple,
//! an empty array of words before the array aligns it.
//!
//! ```text
//! u32         integer { size = 32; align = 64; ... } _fd;
//! b3@5/32     integer { size = 5; ... } __flags_below;  integer { size = 3; ... } _flags;
//! u16[3]      u16_t _ports[3];
//! ipv6        byte_t _address[16];
//! string      length_t __path_length;  char8_t _path[__path_length];
//! stack       length_t __stack_length;  stack_end_t __stack_end;  hex64_t _stack[__stack_length];
//! string[2]   struct { length_t length; char8_t text[length]; } _names[2];
//! ```
//!
//! Names of added members begin with two underscores, like LTTng's length members: readers
//! remove one and show `_path_length = 4, path = "/tmp"`.

use std::collections::HashSet;
use std::fmt::Write;

use capriole_event::{Bits, Element, Shown};

use super::KEYWORDS;
use crate::document::{EventInfo, FieldInfo};

/// Types used by several fields.
pub(super) const TYPES: &str = "\
typealias integer { size = 32; align = 64; signed = false; } := length_t;
typealias integer { size = 8; align = 8; signed = false; encoding = UTF8; } := char8_t;
typealias integer { size = 64; align = 64; signed = false; base = 16; } := hex64_t;
typealias integer { size = 8; align = 8; signed = false; base = 16; } := byte_t;
typealias enum : uint32_t { outermost = 0, full = 1, unreadable = 2, unknown = 3 } := stack_end_t;
";

/// Writes the members of the structure that holds an event's fields.
pub(super) fn write_fields(text: &mut String, event: &EventInfo) {
    let mut writer = Writer {
        text,
        names: Names::of(&event.fields),
        aligned: true,
    };
    if event.faults {
        let name = writer.names.add("_faults");
        writer.member("hex64_t", &name, "");
    }
    for (at, field) in event.fields.iter().enumerate() {
        let name = writer.names.fields[at].clone();
        writer.field(field, &name);
    }
}

struct Writer<'t> {
    text: &'t mut String,
    names: Names,
    /// True if the fields so far end at a multiple of 64 bits.
    aligned: bool,
}

impl Writer<'_> {
    fn member(&mut self, type_name: &str, name: &str, suffix: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "\t\t{type_name} {name}{suffix};");
    }

    /// Makes the next member begin at a multiple of 64 bits, whatever its type is.
    fn align(&mut self) {
        if !self.aligned {
            let align = self.names.add("_align");
            self.member("hex64_t", &align, "[0]");
        }
    }

    fn field(&mut self, field: &FieldInfo, name: &str) {
        match (field.field_type.element, field.field_type.count) {
            (Element::String { .. }, None) => {
                let length = self.names.add(&format!("{name}_length"));
                self.member("length_t", &length, "");
                self.member("char8_t", name, &format!("[{length}]"));
                self.aligned = false;
            }
            (Element::String { .. }, Some(count)) => {
                let structure = "struct { length_t length; char8_t text[length]; }";
                self.member(structure, name, &format!("[{count}]"));
                self.aligned = false;
            }
            // There are no arrays of IPv6 addresses.
            (Element::Ipv6, _) => {
                self.align();
                self.member("byte_t", name, "[16]");
                self.aligned = true;
            }
            // There are no arrays of call stacks.
            (Element::CallStack { .. }, _) => {
                let length = self.names.add(&format!("{name}_length"));
                self.member("length_t", &length, "");
                let end = self.names.add(&format!("{name}_end"));
                self.member("stack_end_t", &end, "");
                self.member("hex64_t", name, &format!("[{length}]"));
                self.aligned = true;
            }
            (Element::Number { shown, bytes, bits }, None) => {
                let size = u32::from(bytes) * 8;
                match bits {
                    Some(Bits { width, offset: 0 }) => {
                        self.member(&integer(shown, u32::from(width), 64), name, "");
                    }
                    Some(Bits { width, offset }) => {
                        let below = self.names.add(&format!("{name}_below"));
                        self.member(&skipped(u32::from(offset), 64), &below, "");
                        self.member(&integer(shown, u32::from(width), 1), name, "");
                    }
                    None => self.member(&integer(shown, size, 64), name, ""),
                }
                self.aligned = match bits {
                    Some(bits) => bits.width + bits.offset == 64,
                    None => size == 64,
                };
            }
            (Element::Number { shown, bytes, bits }, Some(count)) => {
                self.align();
                let size = u32::from(bytes) * 8;
                let element = match (bits, shown) {
                    (Some(bits), _) => part(shown, size, bits),
                    (None, Shown::Character) => "char8_t".to_string(),
                    (None, _) => integer(shown, size, 8),
                };
                self.member(&element, name, &format!("[{count}]"));
                self.aligned = (size * u32::from(count)).is_multiple_of(64);
            }
        }
    }
}

/// Returns a number type; size and alignment are in bits.
fn integer(shown: Shown, size: u32, align: u32) -> String {
    let more = match shown {
        // IEEE 754: `mant_dig` counts the hidden bit of the mantissa, which is not stored; the sign
        // bit takes its place in the size.
        Shown::Float => {
            let (exponent, mantissa) = if size == 32 { (8, 24) } else { (11, 53) };
            return format!(
                "floating_point {{ exp_dig = {exponent}; mant_dig = {mantissa}; align = {align}; }}"
            );
        }
        Shown::Unsigned | Shown::Network => "signed = false; base = 10;",
        Shown::Signed | Shown::Descriptor => "signed = true; base = 10;",
        Shown::Hexadecimal | Shown::Symbol | Shown::Ipv4 => "signed = false; base = 16;",
        Shown::Character => "signed = false; base = 10; encoding = UTF8;",
    };
    format!("integer {{ size = {size}; align = {align}; {more} }}")
}

/// Returns a type for bits that are not part of a field. Decimal, because babeltrace2 2.0 shows
/// hexadecimal numbers of 61 to 63 bits as 0.
fn skipped(size: u32, align: u32) -> String {
    integer(Shown::Unsigned, size, align)
}

/// Returns a bit field together with the surrounding number of `size` bits, for arrays.
fn part(shown: Shown, size: u32, bits: Bits) -> String {
    let (width, offset) = (u32::from(bits.width), u32::from(bits.offset));
    let mut text = "struct { ".to_string();
    if offset > 0 {
        let _ = write!(text, "{} _below; ", skipped(offset, 1));
    }
    let _ = write!(text, "{} bits; ", integer(shown, width, 1));
    if width + offset < size {
        let _ = write!(text, "{} _above; ", skipped(size - width - offset, 1));
    }
    text.push('}');
    text
}

/// The names of an event's fields and added members.
struct Names {
    fields: Vec<String>,
    taken: HashSet<String>,
}

impl Names {
    /// Creates the names. Each gets a leading underscore, as in LTTng, which readers remove and
    /// which distinguishes names from keywords. Characters not allowed in an identifier become `_`,
    /// and a name already in use gets a number.
    fn of(fields: &[FieldInfo]) -> Names {
        let mut names = Names {
            fields: Vec::with_capacity(fields.len()),
            taken: HashSet::new(),
        };
        for field in fields {
            let mut plain: String = field
                .name
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
                .collect();
            if plain.is_empty() {
                plain.push_str("unnamed");
            }
            let name = names.add(&plain);
            names.fields.push(name);
        }
        names
    }

    /// Returns a unique name based on `plain`.
    fn add(&mut self, plain: &str) -> String {
        let mut name = format!("_{plain}");
        let mut number = 2;
        while KEYWORDS.contains(&name.as_str()) || !self.taken.insert(name.clone()) {
            name = format!("_{plain}_{number}");
            number += 1;
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::event;

    #[test]
    fn field_names_are_identifiers_no_keywords_and_all_different() {
        let names = ["size", "size", "int", "Bool", "a-b", "a.b", "_Bool", ""];
        let fields =
            names.map(|name| FieldInfo::new(name.to_string(), capriole_event::FieldType::X64));
        assert_eq!(
            Names::of(&fields).fields,
            [
                "_size", "_size_2", "_int", "_Bool_2", "_a_b", "_a_b_2", "__Bool", "_unnamed"
            ]
        );
    }

    #[test]
    fn what_is_added_gets_out_of_the_way_of_the_fields() {
        let mut event = event(1, &["string", "u8", "u8", "u8[2]"], true);
        for (field, name) in event
            .fields
            .iter_mut()
            .zip(["s", "_s_length", "_faults", "a"])
        {
            field.name = name.to_string();
        }
        let mut text = String::new();
        write_fields(&mut text, &event);
        let names: Vec<&str> = text
            .lines()
            .map(|line| line.rsplit(' ').next().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "__faults_2;",
                "__s_length_2;",
                "_s[__s_length_2];",
                "__s_length;",
                "__faults;",
                "__align[0];",
                "_a[2];"
            ]
        );
    }
}
