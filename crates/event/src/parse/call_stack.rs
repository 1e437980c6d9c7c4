//! Parsing the field `stack`, and the key.

use crate::aggregation::KeyKind;
use crate::error::ParseError;
use crate::field_type::{self, FieldType};
use crate::number;
use std::ops::Range;
use std::str::FromStr;

const FORM: &str = "write stack, or stack(SIZE) with a size from 64 to 32000 bytes, such as 8k; a \
     variable called stack is written NAME=stack";

const KEY_FORM: &str = "write by stack, or by stack(FUNCTIONS) with the number of functions to keep, \
     from 1 to 128";

/// True if the unnamed field `word` is the call stack.
pub(crate) fn is_meant(word: &str) -> bool {
    word == "stack" || word.starts_with("stack(")
}

/// Returns the range of what is between the braces of the [call stack](is_meant) `text[start..end]`;
/// `None` without braces. `form` is the help for errors.
fn inside(
    text: &str,
    start: usize,
    end: usize,
    form: &str,
) -> Result<Option<Range<usize>>, ParseError> {
    let word = &text[start..end];
    let error = |at, message: &str| Err(ParseError::at(text, at, message, form));
    let Some(open) = word.find('(') else {
        return Ok(None);
    };
    let Some(close) = word.find(')') else {
        return error(end, "the brace of stack is not closed");
    };
    if close + 1 < word.len() {
        let message = "a call stack has no type, and nothing stands behind its brace";
        return error(start + close + 1, message);
    }
    Ok(Some(start + open + 1..start + close))
}

/// Parses the stack size of the [call stack](is_meant) `text[start..end]`: bytes, rounded up to a
/// multiple of 8.
pub(crate) fn size(text: &str, start: usize, end: usize) -> Result<u16, ParseError> {
    let Some(range) = inside(text, start, end, FORM)? else {
        return Ok(FieldType::USUAL_STACK);
    };
    let (at, inside) = (range.start, &text[range]);
    let error = |message: &str| Err(ParseError::at(text, at, message, FORM));
    let (digits, unit) = match inside.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (inside, 1),
    };
    let bytes = number::parse(text, at, digits, "stack size")?.saturating_mul(unit);
    let (least, most) = (FieldType::LEAST_STACK, FieldType::MOST_STACK);
    if bytes < u64::from(least) {
        return error(&format!("stack size {inside} is too small"));
    }
    match u16::try_from(bytes) {
        Ok(bytes) if bytes <= most => Ok(bytes.next_multiple_of(8)),
        _ => error(&format!("stack size {inside} is too big")),
    }
}

/// Parses the number of addresses of the [call stack](is_meant) `text[start..end]` that is a key.
pub(crate) fn frames(text: &str, start: usize, end: usize) -> Result<u16, ParseError> {
    let Some(range) = inside(text, start, end, KEY_FORM)? else {
        return Ok(KeyKind::USUAL_FRAMES);
    };
    let (at, inside) = (range.start, &text[range]);
    let frames = number::parse(text, at, inside, "number of functions")?;
    match u16::try_from(frames) {
        Ok(frames @ 1..=KeyKind::MOST_FRAMES) => Ok(frames),
        _ => {
            let message = format!("a call stack of {inside} functions cannot be a key");
            Err(ParseError::at(text, at, message, KEY_FORM))
        }
    }
}

impl FromStr for FieldType {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.starts_with("stack(") {
            true => Ok(FieldType::call_stack(size(text, 0, text.len())?)),
            false => field_type::parse(text, 0, text.len()),
        }
    }
}
