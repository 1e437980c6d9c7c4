//! Parsing aggregates, and the keys after the word `by`.

use crate::aggregation::{Aggregate, Aggregation, Function, KeyKind};
use crate::error::{Instead, ParseError};
use crate::fetch::{Base, FetchArg};
use crate::field_type::{Element, Shown};
use crate::parse::arguments::{Fields, word_end};
use crate::parse::call_stack;
use crate::symbol::{is_word, starts_aggregate};
use std::ops::Range;

const KEYS: &str = "write by NAME, by NAME=VALUE:TYPE, or by tid, comm, cpu or stack; a variable \
     called by is written NAME=by";

/// Parses the aggregate at `at`, whose function is known, and returns its end.
pub(super) fn aggregate(
    fields: &mut Fields<'_>,
    function: Function,
    at: usize,
) -> Result<usize, ParseError> {
    let text = fields.text;
    let error = |message: String, help: &str| Err(ParseError::at(text, at, message, help));
    let (inside, end) = in_brace(fields, function, at)?;
    if fields.aggregates.len() == Aggregation::MAX_AGGREGATES {
        let help = format!("an event has at most {}", Aggregation::MAX_AGGREGATES);
        return error("too many aggregates are specified".to_string(), &help);
    }
    let field = match function {
        Function::Count => None,
        _ => Some(field(fields, function, inside)?),
    };
    let aggregate = Aggregate { function, field };
    if fields.aggregates.contains(&aggregate) {
        return error(format!("{aggregate} is asked for twice"), "write it once");
    }
    fields.aggregates.push(aggregate);
    fields.columns.aggregates.push(at);
    Ok(end)
}

/// Returns the range of the field in the aggregate at `at`, and the aggregate's end.
fn in_brace(
    fields: &Fields<'_>,
    function: Function,
    at: usize,
) -> Result<(Range<usize>, usize), ParseError> {
    let text = &fields.text[..fields.end];
    let open = at + function.as_str().len();
    if !text[open..].starts_with('(') {
        let message = format!("there is a blank before the brace of {function}");
        let help = format!("write {}", form(function));
        return Err(ParseError::at(fields.text, open, message, help));
    }
    let start = fields.skip_blanks(open + 1);
    let end = match function {
        Function::Count => start,
        _ => field_end(text, start, fields.end),
    };
    let close = fields.skip_blanks(end);
    if !text[close..].starts_with(')') {
        return Err(not_closed(fields, function, end, close));
    }
    let behind = close + 1;
    let help = match text[behind..].chars().next() {
        None => return Ok((start..end, behind)),
        Some(c) if c.is_whitespace() => return Ok((start..end, behind)),
        Some(':') => "the type stands inside, as in sum(NAME=VALUE:TYPE)",
        Some(')') => "there are more braces closed than opened",
        Some(_) => "fields and aggregates are parted by blanks",
    };
    let message = format!("there is something behind the brace of {function}");
    Err(ParseError::at(fields.text, behind, message, help))
}

/// Returns the name of the field `inside` an aggregate.
fn field(
    fields: &mut Fields<'_>,
    function: Function,
    inside: Range<usize>,
) -> Result<String, ParseError> {
    let text = fields.text;
    let word = &text[inside.clone()];
    let error = |message: String, help| Err(ParseError::at(text, inside.start, message, help));
    if word.is_empty() {
        let message = format!("{function} needs a field");
        return error(message, format!("write {}", form(function)));
    }
    if starts_aggregate(word).is_some() {
        let message = "an aggregate cannot stand in another".to_string();
        return error(message, format!("write {}", form(function)));
    }
    let field = fields.meant(inside.start, inside.end)?;
    if let Some((is, help, instead)) = no_number(field, word) {
        let message = format!("{function} needs a number, {} {is}", shown(field, word));
        return error(message, help).map_err(|error| error.instead(instead));
    }
    Ok(field.name.clone())
}

/// Syntax of an aggregate, for help.
fn form(function: Function) -> String {
    match function {
        Function::Count => "count()".to_string(),
        _ => format!("{function}(NAME=VALUE:TYPE), or {function}(NAME) of a field before it"),
    }
}

/// Returns the end of the field at `at`: a blank, a comma, or the closing parenthesis around it.
fn field_end(text: &str, at: usize, end: usize) -> usize {
    let mut depth = 0_usize;
    word_end(text, at, end, |c| {
        match c {
            '(' => depth += 1,
            ')' | ',' if depth == 0 => return true,
            ')' => depth -= 1,
            _ => {}
        }
        c.is_whitespace()
    })
}

/// Creates the error for an aggregate whose field ends at `field_end` and is followed, at `next`,
/// by something other than the closing parenthesis.
fn not_closed(
    fields: &Fields<'_>,
    function: Function,
    field_end: usize,
    next: usize,
) -> ParseError {
    let rest = &fields.text[next..fields.end];
    let word = rest.split(char::is_whitespace).next().unwrap_or("");
    let is_outside = matches!(word, "" | "if" | "by") || starts_aggregate(rest).is_some();
    let (at, message, help) = if is_outside {
        let message = format!("the brace of {function} is not closed");
        (field_end, message, format!("write {}", form(function)))
    } else if function == Function::Count {
        let message = "count takes no field".to_string();
        let help = "write count(); sum(X) adds up the values of a field".to_string();
        (next, message, help)
    } else {
        let message = format!("{function} takes one field");
        (
            next,
            message,
            format!("write {function}(A) {function}(B) for two"),
        )
    };
    ParseError::at(fields.text, at, message, help)
}

/// Name of a field, written as `word`, in messages.
fn shown<'a>(field: &'a FetchArg, word: &'a str) -> &'a str {
    if field.named { &field.name } else { word }
}

/// Returns a description of the field, written as `word`, and what to write or do instead, if it is
/// certainly not a number that can be aggregated.
pub(crate) fn no_number(
    field: &FetchArg,
    word: &str,
) -> Option<(&'static str, String, Option<Instead>)> {
    let error = |is, help: &str| Some((is, help.to_string(), None));
    if field.fetch.base == Base::AllArguments {
        return error("is all arguments", "write the name of one argument");
    }
    let known = field.known_type()?;
    if known.count.is_some() {
        return error("is an array", "read one element, and take that");
    }
    if known.is_call_stack() {
        let help = "record it".to_string();
        return Some(("is a call stack", help, Some(Instead::CountCallers)));
    }
    if known.element == Element::Ipv6 {
        return error(
            "is an address",
            &format!("an address can be a key: by {word}"),
        );
    }
    let Element::Number { shown, .. } = known.element else {
        return error("is a string", &format!("a string can be a key: by {word}"));
    };
    match shown {
        Shown::Character => {
            let help = format!("give it the type u8 or s8, or make it a key: by {word}");
            error("is a character", &help)
        }
        Shown::Symbol => {
            let help = format!("give it the type u64, or make it a key: by {word}");
            error("is a symbol", &help)
        }
        Shown::Ipv4 => error(
            "is an address",
            &format!("an address can be a key: by {word}"),
        ),
        Shown::Descriptor => error(
            "is a file descriptor",
            &format!("a file descriptor can be a key: by {word}"),
        ),
        Shown::Float => {
            let help = "only whole numbers are added up".to_string();
            Some(("is a floating point number", help, Some(Instead::SeeEach)))
        }
        Shown::Unsigned | Shown::Signed | Shown::Hexadecimal | Shown::Network => None,
    }
}

/// Creates the error for an aggregate in place of a value: after `NAME=` or as a key.
pub(super) fn misplaced(
    text: &str,
    at: usize,
    function: Function,
    name: Option<&str>,
) -> ParseError {
    let (message, help) = match (name, function) {
        (Some(_), Function::Count) => ("an aggregate has no name", "write count()".to_string()),
        (Some(name), _) => (
            "an aggregate has no name",
            format!("write the name inside: {function}({name}=VALUE)"),
        ),
        (None, _) => (
            "an aggregate cannot be a key",
            "aggregates stand before the word by".to_string(),
        ),
    };
    ParseError::at(text, at, message, help)
}

/// Rejects a word among the arguments that looks like an aggregate but is not one.
pub(super) fn not_one(text: &str, at: usize, word: &str) -> Result<(), ParseError> {
    let name = &word[..word.find(|c| !is_word(c)).unwrap_or(word.len())];
    let is_name = name.starts_with(|c: char| !c.is_ascii_digit());
    if !is_name || !word[name.len()..].starts_with('(') || call_stack::is_meant(word) {
        return Ok(());
    }
    let message = format!("unknown aggregate `{name}`");
    let help = "the aggregates are count(), sum(X), min(X), max(X), avg(X) and hist(X)";
    Err(ParseError::at(text, at, message, help))
}

/// Parses the keys from `start` on, after the word `by`, and returns their end: the end of the
/// text, or the word `if`.
pub(super) fn keys(
    fields: &mut Fields<'_>,
    start: usize,
) -> Result<(Vec<KeyKind>, usize), ParseError> {
    let text = fields.text;
    let mut keys: Vec<KeyKind> = Vec::new();
    let mut comma = None;
    let mut at = start;
    loop {
        at = fields.skip_blanks(at);
        let word_end = key_end(text, at, fields.end);
        let word = &text[at..word_end];
        let next_is_comma = text[at..fields.end].starts_with(',');
        let error = |at, message: &str, help: &str| Err(ParseError::at(text, at, message, help));
        if word == "by" && !fields.has(word) {
            let help = "keys are parted by commas; a variable called by is written NAME=by";
            return error(at, "the word by stands twice", help);
        }
        if at == fields.end || word == "if" {
            return match (comma, keys.is_empty()) {
                (Some(comma), _) => error(comma + 1, "there is no key behind the comma", KEYS),
                (None, true) => error(start, "there is no key behind the word by", KEYS),
                (None, false) => Ok((keys, at)),
            };
        }
        if next_is_comma {
            if comma.is_some() || keys.is_empty() {
                return error(at, "there is no key before the comma", KEYS);
            }
            comma = Some(at);
            at += 1;
            continue;
        }
        if keys.len() == Aggregation::MAX_KEYS {
            let help = format!("an event has at most {}", Aggregation::MAX_KEYS);
            return error(at, "too many keys are specified", &help);
        }
        let key = key(fields, at, word_end)?;
        if keys.iter().any(|other| other.name() == key.name()) {
            let message = format!("the key {key} stands twice");
            let help = "write it once, or NAME=VALUE with another name";
            return error(at, &message, help);
        }
        keys.push(key);
        fields.columns.keys.push(at);
        comma = None;
        at = word_end;
    }
}

/// Returns the end of the word at `at`: a blank, or a comma, which is a word of its own.
fn key_end(text: &str, at: usize, end: usize) -> usize {
    word_end(text, at, end, |c| c == ',' || c.is_whitespace())
}

/// Parses the key `text[at..end]`.
fn key(fields: &mut Fields<'_>, at: usize, end: usize) -> Result<KeyKind, ParseError> {
    let text = fields.text;
    let word = &text[at..end];
    if let Some(function) = starts_aggregate(&text[at..fields.end]) {
        return Err(misplaced(text, at, function, None));
    }
    let common = [KeyKind::Thread, KeyKind::Comm, KeyKind::Cpu];
    let common = common.into_iter().find(|kind| kind.name() == word);
    if let Some(kind) = common.filter(|_| !fields.has(word)) {
        return Ok(kind);
    }
    if call_stack::is_meant(word) && !fields.has_value(word) {
        return Ok(KeyKind::Stack(call_stack::frames(text, at, end)?));
    }
    let field = fields.meant(at, end)?;
    if let Some((is, help, instead)) = no_key(field) {
        let message = format!("a key is one value, {} {is}", shown(field, word));
        return Err(ParseError::at(text, at, message, help).instead(instead));
    }
    Ok(KeyKind::Field(field.name.clone()))
}

/// Returns a description of the field, and what to write or do instead, if it is certainly not one
/// value.
pub(crate) fn no_key(field: &FetchArg) -> Option<(&'static str, &'static str, Option<Instead>)> {
    if field.fetch.base == Base::AllArguments {
        return Some(("is all arguments", "write the name of one argument", None));
    }
    if matches!(field.fetch.base, Base::CallStack(_)) {
        return Some(("is a call stack", "record it", Some(Instead::CountCallers)));
    }
    let array = field.known_type()?.count.is_some();
    array.then_some(("is an array", "read one element, and take that", None))
}
