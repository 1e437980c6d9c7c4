//! Parsing the field and the key `stack`.

use crate::error::ParseError;
use crate::field_type::{self, FieldType};
use crate::number;
use std::ops::Range;
use std::str::FromStr;

const FORM: &str = "write stack, or stack(FUNCTIONS) with the number of functions to keep, from 1 to \
     128; a variable called stack is written NAME=stack";

/// True if the unnamed field `word` is the call stack.
pub(crate) fn is_meant(word: &str) -> bool {
    word == "stack" || word.starts_with("stack(")
}

/// Returns the range of what is between the braces of the [call stack](is_meant) `text[start..end]`;
/// `None` without braces.
fn inside(text: &str, start: usize, end: usize) -> Result<Option<Range<usize>>, ParseError> {
    let word = &text[start..end];
    let error = |at, message: &str| Err(ParseError::at(text, at, message, FORM));
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

/// Parses the number of addresses of the [call stack](is_meant) `text[start..end]`.
pub(crate) fn frames(text: &str, start: usize, end: usize) -> Result<u16, ParseError> {
    let Some(range) = inside(text, start, end)? else {
        return Ok(FieldType::USUAL_FRAMES);
    };
    let (at, inside) = (range.start, &text[range]);
    let frames = number::parse(text, at, inside, "number of functions")?;
    match u16::try_from(frames) {
        Ok(frames @ 1..=FieldType::MOST_FRAMES) => Ok(frames),
        _ => {
            let message = format!("a call stack cannot have {inside} functions");
            Err(ParseError::at(text, at, message, FORM))
        }
    }
}

impl FromStr for FieldType {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.starts_with("stack(") {
            true => Ok(FieldType::call_stack(frames(text, 0, text.len())?)),
            false => field_type::parse(text, 0, text.len()),
        }
    }
}
