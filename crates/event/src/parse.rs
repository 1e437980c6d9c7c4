//! The parser: kind and name, object, place, arguments and filter, from left to right.

pub(crate) mod aggregation;
pub(crate) mod arguments;
pub(crate) mod call_stack;
pub(crate) mod fetch;
mod filter;
mod place;

use crate::aggregation::Aggregation;
use crate::at::At;
use crate::error::ParseError;
use crate::fetch::{Base, FetchArg, Value};
use crate::names;
use crate::names::Kind;
use crate::spec::EventSpec;

/// Help for most errors about the overall form.
const FORM: &str = "write SYMBOL, LIBRARY:SYMBOL, PATH:SYMBOL, or :SYMBOL for the main program";

/// The part of an event before the object.
struct Head {
    at: At,
    group: Option<String>,
    name: Option<String>,
    form: Form,
    /// Byte offset of the object.
    end: usize,
}

/// Syntax in which an event is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `p`, `r`, or nothing.
    Kernel,
    /// `uprobe:` or `uretprobe:`
    Bpftrace,
    /// `usdt:`
    Static,
}

impl EventSpec {
    /// Parses the text of one event.
    ///
    /// # Errors
    ///
    /// Returns the message, its column, and what to write instead. Never panics.
    pub fn parse(text: &str) -> Result<EventSpec, ParseError> {
        event(text, false)
    }

    /// Parses a line of a definition file: fields without a name are called as in the kernel.
    pub(crate) fn parse_definition(text: &str) -> Result<EventSpec, ParseError> {
        event(text, true)
    }
}

/// Fields, aggregates and keys without the event that they belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    /// The fields, as [`EventSpec::arguments`].
    pub arguments: Vec<FetchArg>,
    /// The aggregates and keys.
    pub aggregation: Aggregation,
    /// True if a filter follows, which is not parsed.
    pub filtered: bool,
}

impl Fields {
    /// Parses fields, aggregates and keys at a function's return, from byte `start` of `text` on.
    ///
    /// # Errors
    ///
    /// As [`EventSpec::parse`].
    pub fn parse_at_return(text: &str, start: usize) -> Result<Fields, ParseError> {
        Fields::parse_at(text, start, At::Return, false)
    }

    /// Parses fields, aggregates and keys of an event, from byte `start` of `text` on.
    ///
    /// # Errors
    ///
    /// As [`EventSpec::parse`].
    pub fn parse_at(
        text: &str,
        start: usize,
        at: At,
        is_marker: bool,
    ) -> Result<Fields, ParseError> {
        let at_site = arguments::Where {
            at,
            is_marker,
            kernel_names: false,
        };
        let end = trimmed(text).1;
        let body = arguments::parse(text, start, end, at_site)?;
        Ok(Fields {
            arguments: body.arguments,
            aggregation: body.aggregation,
            filtered: body.end < end,
        })
    }
}

/// Parses a whole event.
fn event(text: &str, kernel_names: bool) -> Result<EventSpec, ParseError> {
    let (start, end) = trimmed(text);
    if start == end {
        return Err(ParseError::at(text, 0, "the event is empty", FORM));
    }
    if end - start > EventSpec::MAX_LENGTH {
        let message = "the event is too long";
        let help = format!("at most {} bytes are read", EventSpec::MAX_LENGTH);
        return Err(ParseError::at(
            text,
            start + EventSpec::MAX_LENGTH,
            message,
            help,
        ));
    }
    if removes(&text[start..end]) {
        let help = "events are removed in a file of definitions only";
        return Err(ParseError::at(
            text,
            start,
            "there is nothing to remove",
            help,
        ));
    }
    let head = head(text, start, end)?;
    let site = match head.form {
        Form::Static => place::static_marker(text, head.end, end)?,
        form => place::site(text, head.end, end, form == Form::Bpftrace)?,
    };
    let at = if site.returns { At::Return } else { head.at };
    if at == At::Return {
        place::can_return(text, head.end, &site)?;
    }
    let is_marker = head.form == Form::Static;
    let at_site = arguments::Where {
        at,
        is_marker,
        kernel_names,
    };
    let mut body = arguments::parse(text, site.end, end, at_site)?;
    if is_marker && body.arguments.is_empty() {
        body.arguments.push(all_arguments());
        body.columns.arguments.push(head.end);
    }
    let (filter, filter_values) = match text[body.end..end].strip_prefix("if") {
        Some(_) => {
            let parsed = filter::parse(text, body.end + 2, end, &body.arguments, at_site)?;
            body.columns.named = parsed.named;
            (Some(parsed.guard), parsed.values)
        }
        None => (None, Vec::new()),
    };
    Ok(EventSpec {
        text: text.to_string(),
        at,
        group: head.group,
        name: head.name,
        object: site.object,
        place: site.place,
        reference_counter: site.reference_counter,
        arguments: body.arguments,
        aggregation: body.aggregation,
        filter,
        filter_values,
        columns: body.columns,
    })
}

/// The default argument of a marker, `$arg*`.
fn all_arguments() -> FetchArg {
    FetchArg {
        name: "arg*".to_string(),
        ..Value::new(Base::AllArguments).into()
    }
}

/// Returns the start and end of the text without leading and trailing blanks.
pub(crate) fn trimmed(text: &str) -> (usize, usize) {
    let end = text.trim_end().len();
    (end - text[..end].trim_start().len(), end)
}

/// True for the removal of an event: `-:GROUP/EVENT`.
pub(crate) fn removes(text: &str) -> bool {
    text == "-" || text.starts_with("-:") || text.starts_with("- ")
}

/// Parses `p:GROUP/EVENT ` and so on.
fn head(text: &str, start: usize, end: usize) -> Result<Head, ParseError> {
    let rest = &text[start..end];
    let head = |at, form, width: usize| Head {
        at,
        group: None,
        name: None,
        form,
        end: start + width,
    };
    for (prefix, at, form) in [
        ("uprobe:", At::Entry, Form::Bpftrace),
        ("uretprobe:", At::Return, Form::Bpftrace),
        ("usdt:", At::Entry, Form::Static),
    ] {
        if rest.starts_with(prefix) {
            return Ok(head(at, form, prefix.len()));
        }
    }
    let none = head(At::Entry, Form::Kernel, 0);
    let at = match rest.chars().next() {
        Some('p') => At::Entry,
        Some('r') => At::Return,
        _ => return Ok(none),
    };
    let behind = &rest[1..];
    let named = behind.starts_with(':') && !behind.starts_with("::");
    if !named && !behind.starts_with(char::is_whitespace) {
        return Ok(none);
    }
    let word = first_word(behind);
    let missing_at = start + 1 + word.len();
    let (group, name) = match word.strip_prefix(':') {
        Some(names) => self::names(text, start + 2, names, true)?,
        None => (None, None),
    };
    let place = behind[word.len()..].trim_start();
    if place.is_empty() {
        let help = "write p:GROUP/EVENT PATH:OFFSET; a library called p or r is named by its path";
        let message = "there is no place behind the event's name";
        return Err(ParseError::at(text, missing_at, message, help));
    }
    Ok(Head {
        at,
        group,
        name,
        form: Form::Kernel,
        end: end - place.len(),
    })
}

/// Parses `GROUP/EVENT`, `EVENT` or `GROUP/`; with `dots`, a dot separates them as well.
pub(crate) fn names(
    text: &str,
    at: usize,
    word: &str,
    dots: bool,
) -> Result<(Option<String>, Option<String>), ParseError> {
    let separator = word.find('/').or_else(|| word.find('.').filter(|_| dots));
    let (group, name, name_at) = match separator {
        Some(separator) => (
            Some(&word[..separator]),
            &word[separator + 1..],
            separator + 1,
        ),
        None => (None, word, 0),
    };
    if let Some(group) = group {
        names::event(text, at, group, Kind::Group)?;
    }
    let whole_group = group.is_some() && name.is_empty();
    if !whole_group {
        names::event(text, at + name_at, name, Kind::Event)?;
    }
    let name = (!whole_group).then(|| name.to_string());
    Ok((group.map(str::to_string), name))
}

/// The text up to the first blank.
fn first_word(text: &str) -> &str {
    text.split(char::is_whitespace).next().unwrap_or("")
}
