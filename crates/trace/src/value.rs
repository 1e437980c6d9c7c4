//! Extracts the fields of a record from its bytes, one by one.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::slice;

use capriole_event::{Bits, Element, FieldType, Shown};

use crate::descriptors::{Descriptor, Open};
use crate::document::{EventInfo, FieldInfo};
use crate::packet::{long, word};
use crate::record::{ADDRESS_BYTES, LENGTH_BYTES, STACK_HEAD, WORD_BYTES, string_bytes};

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A number shown in decimal (`u8` to `u64`, and bit fields).
    Unsigned(u64),
    /// A number with a sign (`s8` to `s64`).
    Signed(i64),
    /// A number shown in hexadecimal (`x8` to `x64`).
    Hexadecimal(u64),
    /// A floating point number of 32 bits (`f32`).
    Single(f32),
    /// A floating point number of 64 bits (`f64`).
    Double(f64),
    /// A character, in the program's encoding (`char`).
    Character(u8),
    /// An address (`symbol`).
    Symbol(u64),
    /// An IPv4 address (`ipv4`).
    Ipv4(Ipv4Addr),
    /// An IPv6 address (`ipv6`).
    Ipv6(Ipv6Addr),
    /// A file descriptor (`fd`).
    Descriptor(Descriptor<'a>),
    /// Text without the terminating NUL, in the program's encoding (`string`, `ustring`).
    Text(&'a [u8]),
    /// A call stack (`stack`).
    CallStack(CallStack<'a>),
    /// The value of an enumeration (a number with or without a sign).
    Enumerated(Enumerated<'a>),
    /// Several values of one type.
    Array(Array<'a>),
    /// The field could not be read when the event was recorded.
    Fault,
}

/// The value of an enumeration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enumerated<'a> {
    /// The number; one without a sign is taken as one with a sign.
    pub value: i64,
    /// True if it has a sign.
    pub signed: bool,
    names: &'a [(String, i64)],
}

impl<'a> Enumerated<'a> {
    /// Returns the value of an enumeration with these names.
    #[must_use]
    pub fn new(value: i64, signed: bool, names: &'a [(String, i64)]) -> Enumerated<'a> {
        Enumerated {
            value,
            signed,
            names,
        }
    }

    /// True if it is shown by a name, or by several.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.name().is_some() || self.value != 0 && self.are_flags()
    }

    fn name(&self) -> Option<&'a str> {
        let found = self.names.iter().find(|(_, value)| *value == self.value);
        found.map(|(name, _)| name.as_str())
    }

    /// True if the names are those of flags: each is one bit or none, and no bit has two names, and there
    /// are at least two.
    fn are_flags(&self) -> bool {
        let mut bits = 0;
        let mut named = 0;
        for (_, value) in self.names.iter().filter(|(_, value)| *value != 0) {
            if value.count_ones() != 1 || bits & value != 0 {
                return false;
            }
            bits |= value;
            named += 1;
        }
        // RED, GREEN, BLUE are 0, 1 and 2 as well.
        named > 2 || named == 2 && !self.names.iter().any(|(_, value)| *value == 0)
    }
}

/// The name; for flags, all names and then what has none, as `READ|WRITE|0x40`; else the number.
impl fmt::Display for Enumerated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.write_str(name);
        }
        if !self.is_named() {
            return match self.signed {
                true => write!(f, "{}", self.value),
                false => write!(f, "{}", self.value.cast_unsigned()),
            };
        }
        let mut left = self.value;
        let flags = self.names.iter().filter(|(_, flag)| self.value & flag != 0);
        for (n, (name, flag)) in flags.enumerate() {
            write!(f, "{}{name}", if n == 0 { "" } else { "|" })?;
            left &= !flag;
        }
        match (left, left == self.value) {
            (0, _) => Ok(()),
            (left, true) => write!(f, "{left:#x}"),
            (left, false) => write!(f, "|{left:#x}"),
        }
    }
}

/// The chain of callers at a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallStack<'a> {
    /// The reason why there are no more addresses.
    pub end: StackEnd,
    addresses: &'a [u8],
}

impl<'a> CallStack<'a> {
    /// Returns the addresses: that of the hit, then return addresses, but after the place to which a signal
    /// handler returns the address that was interrupted.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        self.addresses
            .chunks_exact(WORD_BYTES)
            .map(|bytes| long(bytes, 0))
    }
}

/// The reason for the end of a call stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// 0: the last function has no caller.
    Outermost,
    /// 1: there are as many addresses as there may be.
    Full,
    /// 2: the stack could not be read any further.
    Unreadable,
    /// 3, and any other number: there is no rule for finding the caller of the last function.
    Unknown,
}

impl From<u32> for StackEnd {
    fn from(number: u32) -> StackEnd {
        match number {
            0 => StackEnd::Outermost,
            1 => StackEnd::Full,
            2 => StackEnd::Unreadable,
            _ => StackEnd::Unknown,
        }
    }
}

/// The values of a field that is an array.
#[derive(Debug, Clone, Copy)]
pub struct Array<'a> {
    element: Element,
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Returns the number of values: 1 to 64.
    #[allow(clippy::len_without_is_empty, reason = "an array is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns the values, none of them an array or a fault.
    pub fn iter(&self) -> Elements<'a> {
        Elements { array: *self }
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

/// The values of an array, one by one.
#[derive(Debug, Clone)]
pub struct Elements<'a> {
    /// The remaining values.
    array: Array<'a>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let array = &mut self.array;
        array.count = array.count.checked_sub(1)?;
        Some(match array.element {
            Element::Number { shown, bytes, bits } => {
                let mut raw = [0; WORD_BYTES];
                let own = take(&mut array.bytes, usize::from(bytes));
                raw[..own.len()].copy_from_slice(own);
                number(shown, bytes, bits, u64::from_le_bytes(raw))
            }
            Element::String { .. } => Value::Text(take_string(&mut array.bytes)),
            Element::Ipv6 => Value::Ipv6(take_address(&mut array.bytes)),
            Element::CallStack { .. } => Value::CallStack(take_stack(&mut array.bytes)),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.array.len(), Some(self.array.len()))
    }
}

impl ExactSizeIterator for Elements<'_> {}

/// Iterator over the fields of an event, in the order of `EventInfo::fields`.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    fields: slice::Iter<'a, FieldInfo>,
    /// Faults of the remaining fields; bit 0 belongs to the next field.
    faults: u64,
    bytes: &'a [u8],
    /// The descriptors of the event's process at its time.
    open: Open<'a>,
}

impl<'a> Fields<'a> {
    /// Creates the iterator. `payload` is a record of the event, without its header, which
    /// `EventTable::record` has checked to be complete.
    #[inline]
    pub(crate) fn new(event: &'a EventInfo, payload: &'a [u8]) -> Fields<'a> {
        let mut fields = Fields {
            fields: event.fields.iter(),
            faults: 0,
            bytes: payload,
            open: Open::default(),
        };
        if event.faults {
            fields.faults = long(take(&mut fields.bytes, WORD_BYTES), 0);
        }
        fields
    }

    /// Names descriptors by what they were open for.
    #[inline]
    pub(crate) fn named(self, open: Open<'a>) -> Fields<'a> {
        Fields { open, ..self }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        let field = self.fields.next()?;
        let mut value = take_field(&mut self.bytes, field.field_type);
        if !field.enumerators.is_empty() {
            let names = &field.enumerators;
            value = match value {
                Value::Signed(value) => Value::Enumerated(Enumerated::new(value, true, names)),
                Value::Unsigned(value) => {
                    Value::Enumerated(Enumerated::new(value.cast_signed(), false, names))
                }
                other => other,
            };
        }
        if let Value::Descriptor(descriptor) = &mut value {
            descriptor.name = self.open.find(descriptor.number);
        }
        let fault = self.faults & 1 != 0;
        self.faults >>= 1;
        Some(if fault { Value::Fault } else { value })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.fields.size_hint()
    }
}

impl ExactSizeIterator for Fields<'_> {}

/// Removes and returns the first `count` bytes.
#[inline]
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(count);
    *bytes = rest;
    first
}

#[inline]
fn take_field<'a>(bytes: &mut &'a [u8], field_type: FieldType) -> Value<'a> {
    match (field_type.element, field_type.count) {
        (
            Element::Number {
                shown,
                bytes: size,
                bits,
            },
            None,
        ) => number(shown, size, bits, long(take(bytes, WORD_BYTES), 0)),
        (Element::String { .. }, None) => Value::Text(take_string(bytes)),
        (Element::Ipv6, None) => Value::Ipv6(take_address(bytes)),
        (Element::CallStack { .. }, None) => Value::CallStack(take_stack(bytes)),
        (element, Some(count)) => Value::Array(take_array(bytes, element, count)),
    }
}

fn take_array<'a>(bytes: &mut &'a [u8], element: Element, count: u16) -> Array<'a> {
    let all = *bytes;
    let used = match element {
        Element::Number { bytes: size, .. } => {
            let used = usize::from(size) * usize::from(count);
            take(bytes, used.next_multiple_of(WORD_BYTES));
            used
        }
        Element::String { .. } => {
            for _ in 0..count {
                take_string(bytes);
            }
            all.len() - bytes.len()
        }
        Element::Ipv6 => {
            let used = ADDRESS_BYTES * usize::from(count);
            take(bytes, used);
            used
        }
        Element::CallStack { .. } => {
            for _ in 0..count {
                take_stack(bytes);
            }
            all.len() - bytes.len()
        }
    };
    Array {
        element,
        count,
        bytes: &all[..used],
    }
}

fn take_string<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let length = word(bytes, 0) as usize;
    let string = take(bytes, string_bytes(length));
    &string[LENGTH_BYTES..LENGTH_BYTES + length]
}

fn take_address(bytes: &mut &[u8]) -> Ipv6Addr {
    let mut address = [0; ADDRESS_BYTES];
    address.copy_from_slice(take(bytes, ADDRESS_BYTES));
    Ipv6Addr::from(address)
}

fn take_stack<'a>(bytes: &mut &'a [u8]) -> CallStack<'a> {
    let head = take(bytes, STACK_HEAD);
    CallStack {
        end: StackEnd::from(word(head, LENGTH_BYTES)),
        addresses: take(bytes, WORD_BYTES * word(head, 0) as usize),
    }
}

/// Converts the low `bytes` bytes of `raw` to a number.
#[inline]
fn number(shown: Shown, bytes: u8, bits: Option<Bits>, raw: u64) -> Value<'static> {
    let (raw, width) = match bits {
        Some(bits) => (raw >> bits.offset, u32::from(bits.width)),
        None => (raw, u32::from(bytes) * 8),
    };
    let above = u64::BITS - width;
    let plain = raw << above >> above;
    match shown {
        Shown::Unsigned | Shown::Network => Value::Unsigned(plain),
        Shown::Descriptor => Value::Descriptor(Descriptor {
            number: plain as i32,
            name: None,
        }),
        Shown::Signed => Value::Signed((raw << above) as i64 >> above),
        Shown::Hexadecimal => Value::Hexadecimal(plain),
        Shown::Character => Value::Character(plain as u8),
        Shown::Symbol => Value::Symbol(plain),
        Shown::Ipv4 => Value::Ipv4(Ipv4Addr::from(plain as u32)),
        Shown::Float if width == 32 => Value::Single(f32::from_bits(plain as u32)),
        Shown::Float => Value::Double(f64::from_bits(plain)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::event;

    /// Returns the fields of one record as `Debug` prints them, arrays as lists.
    fn shown(types: &[&str], faults: bool, payload: &[u8]) -> Vec<String> {
        let event = event(1, types, faults);
        let fields = Fields::new(&event, payload);
        assert_eq!(fields.len(), types.len());
        fields
            .map(|value| match value {
                Value::Array(array) => {
                    assert_eq!(array.iter().len(), array.len());
                    format!("{:?}", array.iter().collect::<Vec<_>>())
                }
                value => format!("{value:?}"),
            })
            .collect()
    }

    #[test]
    fn what_stands_above_a_number_does_not_count() {
        for (field_type, value) in [
            ("u8", "Unsigned(248)"),
            ("s8", "Signed(-8)"),
            ("be16", "Unsigned(33528)"),
            ("ipv4", "Ipv4(86.120.130.248)"),
            (
                "fd",
                "Descriptor(Descriptor { number: 1450738424, name: None })",
            ),
            ("x8", "Hexadecimal(248)"),
            ("char", "Character(248)"),
            ("u16", "Unsigned(33528)"),
            ("s16", "Signed(-32008)"),
            ("s32", "Signed(1450738424)"),
            ("u32", "Unsigned(1450738424)"),
            ("s64", "Signed(-81985529750977800)"),
            ("u64", "Unsigned(18364758543958573816)"),
            ("x64", "Hexadecimal(18364758543958573816)"),
            ("symbol", "Symbol(18364758543958573816)"),
            ("b3@3/8", "Unsigned(7)"),
            ("b4@4/8", "Unsigned(15)"),
            ("s3@3/8", "Signed(-1)"),
            ("s4@0/8", "Signed(-8)"),
            ("x4@4/8", "Hexadecimal(15)"),
            ("c8@8/16", "Character(130)"),
            ("b2@15/64", "Unsigned(3)"),
            ("b64@0/64", "Unsigned(18364758543958573816)"),
            ("b1@63/64", "Unsigned(1)"),
        ] {
            let raw = 0xfedc_ba98_5678_82f8u64;
            let raw = if field_type == "b2@15/64" {
                raw | 1 << 16
            } else {
                raw
            };
            assert_eq!(
                shown(&[field_type], false, &raw.to_le_bytes()),
                [value],
                "{field_type}"
            );
        }
    }

    #[test]
    fn arrays_and_strings_leave_their_padding_behind() {
        let payload = b"\
            \x01\0\xff\xff\x03\0zz\
            \x05\0\0\0hello\0\0\0zzzz\
            \0\0\0\0zzzz\x02\0\0\0\xff\0zz\
            \x2a\0zzzzzz";
        assert_eq!(
            shown(
                &["s16[3]", "string", "ustring[2]", "b3@2/16[1]"],
                false,
                payload
            ),
            [
                "[Signed(1), Signed(-1), Signed(3)]",
                "Text([104, 101, 108, 108, 111])",
                "[Text([]), Text([255, 0])]",
                "[Unsigned(2)]",
            ]
        );
    }

    #[test]
    fn addresses_of_ipv6_have_the_order_of_the_network() {
        let payload = b"\
            \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\
            \x07zzzzzzz";
        assert_eq!(
            shown(&["ipv6", "u8"], false, payload),
            ["Ipv6(2001:db8::1)", "Unsigned(7)"]
        );
    }

    #[test]
    fn fields_that_could_not_be_read_are_faults_and_the_others_are_not() {
        let payload = b"\x05\0\0\0\0\0\0\0\x07zzzzzzz\x08zzzzzzz\0\0\0\0\0\0\0\0";
        assert_eq!(
            shown(&["u8", "u8", "string"], true, payload),
            ["Fault", "Unsigned(8)", "Fault"]
        );
        // Only the first 64 fields have a bit.
        let mut payload = u64::MAX.to_le_bytes().to_vec();
        payload.extend_from_slice(&[0; 8 * 65]);
        let values = shown(&["u8"; 65], true, &payload);
        assert_eq!(values.iter().filter(|value| *value == "Fault").count(), 64);
        assert_eq!(values[64], "Unsigned(0)");
    }
}
