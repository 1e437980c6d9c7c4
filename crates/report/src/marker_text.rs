//! Formats the fields of a marker event with the marker's own printf format.
//!
//! The format is in `info/capriole.json`, since CTF 1.8 has no place for it, with the types of
//! the arguments in the program: printf promotes an argument smaller than an `int` by its own
//! sign, which the displayed type does not tell. One parser (`capriole_object::markers`) finds
//! the names and types of the recorded fields and the flags for formatting. Format and values
//! come from the program, so widths are bounded, and the output is escaped as a whole.

use capriole_event::{Element, FieldType};
use capriole_object::markers::format;
use capriole_object::markers::format::{Amount, Part, Shown, parts};

use super::escape::put_escaped;
use super::printf::{self, Style};
use capriole_trace::Event;
use capriole_trace::EventInfo;
use capriole_trace::Value;

/// Shown in place of a value that could not be read.
const FAULT: &[u8] = b"(fault)";

/// A parsed event format.
pub(super) struct MarkerText {
    pieces: Vec<Piece>,
    /// Number of leading fields used in the text.
    fields: usize,
    /// True if the format ends with a newline.
    ends_line: bool,
}

enum Piece {
    Text(Vec<u8>),
    Value(format::Value, Argument),
}

/// Size and sign of an argument's type.
#[derive(Debug, Clone, Copy)]
struct Argument {
    bytes: u8,
    signed: bool,
}

impl MarkerText {
    /// Parses the format of an event; `None` if it has none or it does not fit the first fields.
    pub(super) fn of(event: &EventInfo) -> Option<MarkerText> {
        let format = event.format.as_ref()?;
        let mut fields = event.fields.iter().map(|field| field.field_type);
        let mut arguments = format.arguments.iter().copied();
        let mut pieces = Vec::new();
        let mut used = 0;
        let mut take = || {
            used += 1;
            Some((fields.next()?, argument(arguments.next()?)?))
        };
        for part in parts(&format.text).ok()? {
            let value = match part {
                Part::Text(text) => {
                    pieces.push(Piece::Text(text.into_bytes()));
                    continue;
                }
                Part::Value(value) => value,
                // The value of errno was not recorded.
                Part::Errno => return None,
            };
            for amount in [value.width, value.precision] {
                if amount == Some(Amount::Argument) {
                    let (field, _) = take()?;
                    is_shown_by(field, Shown::Signed).then_some(())?;
                }
            }
            let (field, argument) = take()?;
            // The contents of wide strings were not recorded either.
            let known = value.letter != 'S' && is_shown_by(field, value.shown);
            known.then_some(())?;
            pieces.push(Piece::Value(value, argument));
        }
        let all = format.arguments.len() == used && !format.text.is_empty();
        all.then_some(MarkerText {
            pieces,
            fields: used,
            ends_line: format.text.ends_with('\n'),
        })
    }

    /// Returns the number of leading fields used in the text.
    pub(super) fn fields(&self) -> usize {
        self.fields
    }

    /// Appends the text as the program would have written it. It may contain any bytes.
    pub(super) fn put(&self, out: &mut Vec<u8>, event: &Event<'_>) {
        let mut values = event.fields();
        let mut next = || values.next().unwrap_or(Value::Fault);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Value(value, argument) => {
                    let style = style(value, &mut next);
                    put_value(out, value, *argument, &style, next());
                }
            }
        }
    }

    /// Appends the text as shown in a line of a report: non-printable characters are escaped, and
    /// the final newline is left out.
    pub(super) fn put_line(&self, out: &mut Vec<u8>, scratch: &mut Vec<u8>, event: &Event<'_>) {
        scratch.clear();
        self.put(scratch, event);
        let line = match self.ends_line {
            true => scratch.strip_suffix(b"\n").unwrap_or(scratch),
            false => scratch,
        };
        // The line is not enclosed in quotes.
        put_escaped(out, line, b'\\');
    }
}

/// Returns size and sign of an argument; `None` for arrays and non-numbers.
fn argument(field_type: FieldType) -> Option<Argument> {
    match (field_type.element, field_type.count) {
        (Element::Number { shown, bytes, bits }, None) => Some(Argument {
            bytes: bits.map_or(bytes, |bits| bits.width.div_ceil(8)),
            signed: shown.is_signed(),
        }),
        _ => None,
    }
}

/// True if a conversion can show a value recorded as this type.
fn is_shown_by(field_type: FieldType, conversion: Shown) -> bool {
    let is_number = matches!(field_type.element, Element::Number { .. });
    let one = field_type.count.is_none();
    one && match conversion {
        Shown::Text => field_type.is_string(),
        Shown::Float => is_number && field_type.is_float(),
        Shown::Signed
        | Shown::Unsigned
        | Shown::Hexadecimal
        | Shown::Pointer
        | Shown::Character => is_number && !field_type.is_float(),
    }
}

/// Returns flags, width and precision; the width and the precision may come from arguments.
fn style<'a>(value: &format::Value, next: &mut impl FnMut() -> Value<'a>) -> Style {
    let mut flags = value.flags;
    let mut given = |amount: Option<Amount>| match amount? {
        Amount::Number(number) => Some(i64::from(number)),
        Amount::Argument => bits(next()).map(|bits| i64::from(bits as i32)),
    };
    // A negative width means left-aligned.
    let width = given(value.width).unwrap_or(0);
    flags.left |= width < 0;
    // A negative precision is ignored.
    let precision = given(value.precision).and_then(|p| usize::try_from(p).ok());
    Style {
        flags,
        width: usize::try_from(width.unsigned_abs()).unwrap_or(printf::MOST),
        precision,
    }
}

/// Returns the bits of a number, sign-extended to 64 bits if it is signed.
fn bits(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Unsigned(value) | Value::Hexadecimal(value) | Value::Symbol(value) => Some(value),
        Value::Signed(value) => Some(value as u64),
        Value::Enumerated(number) => Some(number.value as u64),
        Value::Descriptor(descriptor) => Some(i64::from(descriptor.number) as u64),
        Value::Character(value) => Some(u64::from(value)),
        Value::Ipv4(address) => Some(u64::from(u32::from(address))),
        _ => None,
    }
}

fn put_value(
    out: &mut Vec<u8>,
    conversion: &format::Value,
    argument: Argument,
    style: &Style,
    value: Value<'_>,
) {
    match value {
        Value::Text(text) => return printf::text(out, style, text),
        Value::Single(value) => {
            return printf::float(out, style, conversion.letter, f64::from(value));
        }
        Value::Double(value) => return printf::float(out, style, conversion.letter, value),
        _ => {}
    }
    let Some(bits) = bits(value) else {
        return printf::filled(out, style, FAULT);
    };
    let bits = passed(bits, argument, conversion);
    match conversion.shown {
        Shown::Character => printf::filled(out, style, &[bits as u8]),
        Shown::Pointer => printf::pointer(out, style, bits),
        Shown::Signed => printf::signed(out, style, bits as i64),
        _ if conversion.letter == 'C' => {
            let wide = char::from_u32(bits as u32).unwrap_or(char::REPLACEMENT_CHARACTER);
            printf::filled(out, style, wide.encode_utf8(&mut [0; 4]).as_bytes());
        }
        _ => printf::unsigned(out, style, conversion.letter, bits),
    }
}

/// Converts an argument as printf does: promotes smaller types to `int`, then takes as many
/// bytes as the conversion's length modifier selects.
fn passed(bits: u64, argument: Argument, conversion: &format::Value) -> u64 {
    let own = extended(bits, argument.bytes, argument.signed);
    // In Rust a length modifier has no meaning; in C, a long one matches the argument's type.
    let bytes = match conversion.bytes {
        Some(short @ (1 | 2)) => short,
        _ => argument.bytes.max(4),
    };
    extended(own, bytes, conversion.shown == Shown::Signed)
}

/// Extends the low bytes of a number, with its sign or with zeros.
fn extended(bits: u64, bytes: u8, signed: bool) -> u64 {
    let unused = 64 - 8 * u32::from(bytes);
    match signed {
        true => ((bits << unused) as i64 >> unused) as u64,
        false => bits << unused >> unused,
    }
}
