//! Parsing the field `stack`.

use crate::error::ParseError;
use crate::field_type::{self, FieldType};
use crate::number;
use std::str::FromStr;

const FORM: &str = "write stack, or stack(SIZE) with a size from 64 to 32000 bytes, such as 8k; a \
     variable called stack is written NAME=stack";

/// True if the unnamed field `word` is the call stack.
pub(crate) fn is_meant(word: &str) -> bool {
    word == "stack" || word.starts_with("stack(")
}

/// Parses the stack size of the [call stack](is_meant) `text[start..end]`: bytes, rounded up to a
/// multiple of 8.
pub(crate) fn size(text: &str, start: usize, end: usize) -> Result<u16, ParseError> {
    let word = &text[start..end];
    let error = |at, message: &str| Err(ParseError::at(text, at, message, FORM));
    let Some(open) = word.find('(') else {
        return Ok(FieldType::USUAL_STACK);
    };
    let at = start + open + 1;
    let Some(close) = word.find(')') else {
        return error(end, "the brace of stack is not closed");
    };
    if close + 1 < word.len() {
        let message = "a call stack has no type, and nothing stands behind its brace";
        return error(start + close + 1, message);
    }
    let inside = &word[open + 1..close];
    let (digits, unit) = match inside.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (inside, 1),
    };
    let bytes = number::parse(text, at, digits, "stack size")?.saturating_mul(unit);
    let (least, most) = (FieldType::LEAST_STACK, FieldType::MOST_STACK);
    if bytes < u64::from(least) {
        return error(at, &format!("stack size {inside} is too small"));
    }
    match u16::try_from(bytes) {
        Ok(bytes) if bytes <= most => Ok(bytes.next_multiple_of(8)),
        _ => error(at, &format!("stack size {inside} is too big")),
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
