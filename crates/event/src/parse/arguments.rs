//! Parsing the list of fetch arguments: names, types, and what goes together.

use crate::at::At;
use crate::error::ParseError;
use crate::fetch::{Base, FetchArg};
use crate::field_type::{self, FieldType};
use crate::names;
use crate::parse::fetch::{self, closing_quote};

/// As many as the kernel takes.
const MAX_ARGUMENTS: usize = 128;

/// Parses the arguments in `text[start..end]`, and says where they end: at the end, or at the
/// word `if`.
pub(super) fn parse(
    text: &str,
    start: usize,
    end: usize,
    at_site: At,
) -> Result<(Vec<FetchArg>, usize), ParseError> {
    let mut arguments: Vec<FetchArg> = Vec::new();
    let mut at = start;
    loop {
        at = end - text[at..end].trim_start().len();
        let word_end = word_end(text, at, end);
        if at == end || &text[at..word_end] == "if" {
            return Ok((arguments, at));
        }
        if arguments.len() == MAX_ARGUMENTS {
            let message = "too many arguments are specified";
            let help = format!("an event has at most {MAX_ARGUMENTS}");
            return Err(ParseError::at(text, at, message, help));
        }
        let argument = argument(text, at, word_end, arguments.len() + 1, at_site)?;
        if arguments.iter().any(|other| other.name == argument.name) {
            let message = format!("the argument name {} is already used", argument.name);
            let help = "write NAME=VALUE with another name";
            return Err(ParseError::at(text, at, message, help));
        }
        arguments.push(argument);
        at = word_end;
    }
}

/// The end of the word at `at`: a blank outside of `\"..."`.
fn word_end(text: &str, at: usize, end: usize) -> usize {
    let mut here = at;
    while let Some(c) = text[here..end].chars().next() {
        if c.is_whitespace() {
            break;
        }
        here += c.len_utf8();
        let quoted = (c == '\\')
            .then(|| text[here..end].strip_prefix('"'))
            .flatten();
        if let Some(length) = quoted.and_then(|rest| closing_quote(rest, '"')) {
            here += length + 2;
        }
    }
    here
}

/// Parses the argument `text[at..end]`, the `number`-th of its event.
fn argument(
    text: &str,
    at: usize,
    end: usize,
    number: usize,
    at_site: At,
) -> Result<FetchArg, ParseError> {
    let word = &text[at..end];
    let sign = word
        .find(['=', '"'])
        .filter(|sign| word[*sign..].starts_with('='));
    let given = sign.map(|sign| &word[..sign]);
    let body_at = at + sign.map_or(0, |sign| sign + 1);
    if let Some(name) = given {
        names::argument(text, at, name)?;
    }
    if body_at == end {
        let message = "no argument expression";
        let help = "write NAME=VALUE in one word, without blanks";
        return Err(ParseError::at(text, end, message, help));
    }
    let colon = colon(&text[body_at..end]).map(|colon| body_at + colon);
    let type_at = colon.map_or(end, |colon| colon + 1);
    if text[type_at..end].contains(')') {
        field_type::parse(text, type_at, end)?; // always an error, and the clearer one
    }
    let fetch = fetch::parse(text, body_at, colon.unwrap_or(end))?;
    let field_type = match colon {
        Some(_) => Some(field_type::parse(text, type_at, end)?),
        None => None,
    };
    let argument = FetchArg {
        name: match given {
            Some(name) => name.to_string(),
            None => automatic_name(&fetch.base, fetch.derefs.is_empty(), number),
        },
        named: given.is_some(),
        fetch,
        field_type,
        at: body_at,
    };
    check(text, &argument, type_at, at, at_site)?;
    Ok(argument)
}

/// The colon before the type, which is not in a text.
fn colon(body: &str) -> Option<usize> {
    let behind = match body.find("\\\"") {
        Some(quote) => quote + 2 + closing_quote(&body[quote + 2..], '"').unwrap_or(0),
        None => 0,
    };
    body[behind..].find(':').map(|colon| behind + colon)
}

/// The name of an argument without one: the variable's, or that of `$arg1`, else its number
/// among the arguments.
fn automatic_name(base: &Base, is_plain: bool, number: usize) -> String {
    let own = match base {
        Base::Argument(argument) if is_plain => Some(format!("arg{argument}")),
        Base::AllArguments => Some("arg*".to_string()),
        Base::Variable(path) if is_plain => names::identifier(path),
        _ => None,
    };
    own.unwrap_or_else(|| format!("arg{number}"))
}

/// Refuses what does not go together.
fn check(
    text: &str,
    argument: &FetchArg,
    type_at: usize,
    start: usize,
    at_site: At,
) -> Result<(), ParseError> {
    let error = |at, message: &str, help: String| Err(ParseError::at(text, at, message, help));
    let fetch = &argument.fetch;
    let field_type = argument.field_type;
    match fetch.base {
        Base::Retval if at_site == At::Entry => {
            let message = "$retval is not available on probe";
            let help = "write r: before the event, or %return behind the place";
            let found = text[argument.at..].find('$').unwrap_or(0);
            return error(argument.at + found, message, help.to_string());
        }
        Base::AllArguments if argument.named => {
            let message = "$arg* has no name";
            return error(
                start,
                message,
                "its fields get the arguments' names".to_string(),
            );
        }
        Base::AllArguments if field_type.is_some() => {
            let help = "debug information tells the arguments' types";
            return error(type_at, "$arg* has no type", help.to_string());
        }
        Base::Comm | Base::Text(_) if field_type.is_some_and(|t| t != FieldType::STRING) => {
            let message = "$comm and immediate-string only accept the type string";
            return error(type_at, message, "leave the type out".to_string());
        }
        Base::Comm | Base::Text(_) => return Ok(()),
        _ => {}
    }
    let Some(field_type) = field_type.filter(|_| !fetch.is_memory()) else {
        return Ok(());
    };
    let help = format!("write +0({fetch}):{field_type} for the memory that it points to");
    if field_type.is_string() {
        error(type_at, "string accepts only a memory argument", help)
    } else if field_type.count.is_some() {
        error(type_at, "array accepts only a memory argument", help)
    } else {
        Ok(())
    }
}
