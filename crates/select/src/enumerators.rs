//! Names of an enumeration's values in filters.

use crate::error::{Code, Error, Result};
use capriole_event::{Element, EventSpec, ParseError, Probe};
use capriole_object::symbols::nearest;
use capriole_trace::FieldInfo;

/// Returns the value that a filter compares a field with, from names such as `READ|WRITE`.
///
/// # Errors
/// The field's values have no names, or none of these; the error points at the column if the
/// probe was written as text.
pub fn value(probe: &Probe, field: &str, info: Option<&FieldInfo>, names: &str) -> Result<i128> {
    let mut value = 0;
    let mut offset = 0;
    for name in names.split('|') {
        value |= match number(name) {
            Some(number) => number,
            None => one(field, info, name)
                .map_err(|(message, help)| refused(probe, (field, names), offset, message, help))?,
        };
        offset += name.len() + 1;
    }
    Ok(info.map_or(i128::from(value), |info| as_compared(value, info)))
}

/// Returns the value of a name, or a message and advice.
fn one(field: &str, info: Option<&FieldInfo>, name: &str) -> Result<i64, (String, String)> {
    let known = info.map_or(&[][..], |info| &info.enumerators);
    if let Some((_, value)) = known.iter().find(|(known, _)| known == name) {
        return Ok(*value);
    }
    if known.is_empty() {
        let is_text = info.is_some_and(|i| matches!(i.field_type.element, Element::String { .. }));
        return Err(match is_text {
            true => (
                format!("`{field}` is a text, and not compared with a name"),
                format!("write it in quotes: \"{name}\""),
            ),
            false => (
                format!("`{name}` is no number, and the values of `{field}` have no names"),
                "names are those of an enumeration in debug information; compare with a number"
                    .to_owned(),
            ),
        });
    }
    let message = format!("no value of `{field}` has the name `{name}`");
    let last = name.rsplit("::").next().unwrap_or(name);
    if last != name && known.iter().any(|(known, _)| known == last) {
        let help = format!("write `{last}`, without the name of its type");
        return Err((message, help));
    }
    let similar = nearest(last, known.iter().map(|(known, _)| known.as_str()));
    let help = match similar.is_empty() {
        false => format!("similar: {}", similar.join(", ")),
        true => {
            let all: Vec<&str> = known.iter().map(|(known, _)| known.as_str()).collect();
            match all.len() {
                ..=MOST_LISTED => format!("its names are {}", all.join(", ")),
                more => format!(
                    "its names are {} and {} others",
                    all[..MOST_LISTED].join(", "),
                    more - MOST_LISTED
                ),
            }
        }
    };
    Err((message, help))
}

/// Maximum number of names in a message.
const MOST_LISTED: usize = 12;

/// Returns a part between `|` that is a number.
fn number(text: &str) -> Option<i64> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    value.ok().map(u64::cast_signed)
}

/// Returns a value as a field of this type has it when it is compared.
fn as_compared(value: i64, info: &FieldInfo) -> i128 {
    let Element::Number { shown, bytes, bits } = info.field_type.element else {
        return i128::from(value);
    };
    let width = bits.map_or(u32::from(bytes) * 8, |bits| u32::from(bits.width));
    let above = i64::BITS.saturating_sub(width);
    match shown.is_signed() {
        true => i128::from(value << above >> above),
        false => i128::from(value.cast_unsigned() << above >> above),
    }
}

fn refused(
    probe: &Probe,
    (field, names): (&str, &str),
    offset: usize,
    message: String,
    help: String,
) -> Error {
    let parsed = EventSpec::parse(&probe.label).ok();
    let column = parsed.and_then(|spec| spec.column_of_names(field, names));
    match column {
        // Blanks around `|` are not in `names`.
        Some(column) => {
            let before = names[..offset].matches('|').count();
            let behind = &probe.label[column..];
            let mut parts = behind.split('|');
            let skipped: usize = parts.by_ref().take(before).map(|part| part.len() + 1).sum();
            let part = parts.next().unwrap_or_default();
            let at = column + skipped + part.len() - part.trim_start().len();
            Error::from(ParseError::at(&probe.label, at, message, help)).recoded(Code::Field)
        }
        None => Error::new(Code::Field, format!("{message}; {help}")),
    }
}
