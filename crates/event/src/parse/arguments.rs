//! Parsing the list of fetch arguments: names, types, and which of them can be combined.

use crate::aggregation::{Aggregate, Aggregation};
use crate::at::At;
use crate::error::ParseError;
use crate::fetch::{Base, Deref, Fetch, FetchArg, Value};
use crate::field_type;
use crate::field_type::{Element, FieldType};
use crate::guard::Guard;
use crate::names;
use crate::parse::fetch;
use crate::parse::fetch::closing_quote;
use crate::parse::{aggregation, call_stack};
use crate::spec::Columns;
use crate::symbol::{starts_aggregate, template_width};

/// Name of a function's result that has none.
const RESULT: &str = "ret";

/// True for a plain `$retval`.
pub(super) fn is_result(fetch: &Fetch) -> bool {
    fetch.base == Base::Retval && fetch.derefs.is_empty()
}

/// Maximum number of arguments, as in the kernel.
pub(crate) const MAX_ARGUMENTS: usize = 128;

/// Kind of place that the arguments are for.
#[derive(Clone, Copy)]
pub(crate) struct Where {
    pub at: At,
    /// The place is a static marker: `$arg1` is the marker's first argument, of whatever type, and
    /// not the value of a register.
    pub is_marker: bool,
    /// A result without a name is called by its position, as in the kernel's `uprobe_events`, and
    /// not `ret`.
    pub kernel_names: bool,
}

/// The part of an event between the place and the filter.
pub(super) struct Body {
    pub arguments: Vec<FetchArg>,
    pub aggregation: Aggregation,
    pub columns: Columns,
    /// End of the part: the end of the text, or the word `if`.
    pub end: usize,
}

/// Parses the arguments, aggregates and keys in `text[start..end]`.
pub(super) fn parse(
    text: &str,
    start: usize,
    end: usize,
    at_site: Where,
) -> Result<Body, ParseError> {
    let mut fields = Fields {
        text,
        end,
        at_site,
        all: Vec::new(),
        aggregates: Vec::new(),
        columns: Columns::default(),
    };
    let mut keys = Vec::new();
    let mut at = start;
    loop {
        at = fields.skip_blanks(at);
        let word_end = word_end(text, at, end, char::is_whitespace);
        let word = &text[at..word_end];
        if word == "by" {
            (keys, at) = aggregation::keys(&mut fields, word_end)?;
        }
        if at == end || matches!(word, "if" | "by") {
            let (aggregates, columns) = (fields.aggregates, fields.columns);
            return Ok(Body {
                arguments: fields.all,
                aggregation: Aggregation { aggregates, keys },
                columns,
                end: at,
            });
        }
        if let "where" | "when" = word
            && compares(&text[word_end..end])
        {
            let help = "write if, and the condition behind it";
            return Err(ParseError::at(text, at, "a filter begins with `if`", help));
        }
        at = match starts_aggregate(&text[at..end]) {
            Some(function) => aggregation::aggregate(&mut fields, function, at)?,
            None => {
                aggregation::not_one(text, at, word)?;
                fields.add(at, word_end)?;
                word_end
            }
        };
    }
}

/// Fields and aggregates parsed so far.
pub(super) struct Fields<'a> {
    pub text: &'a str,
    /// End of the whole event.
    pub end: usize,
    at_site: Where,
    all: Vec<FetchArg>,
    pub aggregates: Vec<Aggregate>,
    pub columns: Columns,
}

impl Fields<'_> {
    /// Returns the first position from `at` on that is not blank, or the end.
    pub fn skip_blanks(&self, at: usize) -> usize {
        self.end - self.text[at.min(self.end)..self.end].trim_start().len()
    }

    /// Adds the field `text[at..end]`, which must be a new one.
    fn add(&mut self, at: usize, end: usize) -> Result<(), ParseError> {
        self.room(at)?;
        let field = self.read(at, end)?;
        self.push(at, field)?;
        Ok(())
    }

    /// Returns the field `text[at..end]`: one that has this name or was written the same before, or
    /// else a new one.
    pub fn meant(&mut self, at: usize, end: usize) -> Result<&FetchArg, ParseError> {
        let word = &self.text[at..end];
        let named = self.all.iter().position(|field| field.name == word);
        let index = match named {
            Some(index) => index,
            None => {
                let field = self.read(at, end)?;
                let is_same = |other: &FetchArg| {
                    (other.named, &other.fetch, other.field_type, &other.length)
                        == (field.named, &field.fetch, field.field_type, &field.length)
                        && (other.name == field.name || !field.named)
                };
                match self.all.iter().position(is_same) {
                    Some(index) => index,
                    None => {
                        self.room(at)?;
                        self.push(at, field)?
                    }
                }
            }
        };
        Ok(&self.all[index])
    }

    /// Reports whether a field has this name.
    pub fn has(&self, name: &str) -> bool {
        self.all.iter().any(|field| field.name == name)
    }

    /// Reports whether a field other than a call stack has this name.
    pub fn has_value(&self, name: &str) -> bool {
        let is_value = |field: &FetchArg| !matches!(field.fetch.base, Base::CallStack(_));
        let mut all = self.all.iter();
        all.any(|field| field.name == name && is_value(field))
    }

    fn read(&self, at: usize, end: usize) -> Result<FetchArg, ParseError> {
        let number = self.all.len() + 1;
        let mut field = argument(self.text, at, end, number, self.at_site, &self.all)?;
        if !field.named && is_result(&field.fetch) {
            let by_position = self.at_site.kernel_names || self.has(RESULT);
            if !by_position {
                field.name = RESULT.to_string();
            }
        }
        Ok(field)
    }

    fn room(&self, at: usize) -> Result<(), ParseError> {
        if self.all.len() < MAX_ARGUMENTS {
            return Ok(());
        }
        let message = "too many arguments are specified";
        let help = format!("an event has at most {MAX_ARGUMENTS}");
        Err(ParseError::at(self.text, at, message, help))
    }

    fn push(&mut self, at: usize, field: FetchArg) -> Result<usize, ParseError> {
        if self.has(&field.name) {
            let name = &field.name;
            let message = format!("the argument name {name} is already used");
            let taken = |aggregate: &&Aggregate| aggregate.field.as_ref() == Some(name);
            let help = match self.aggregates.iter().find(taken) {
                Some(aggregate) => format!(
                    "write the field before {aggregate}, which takes its name, or \
                     NAME=VALUE with another name"
                ),
                None => "write NAME=VALUE with another name".to_string(),
            };
            return Err(ParseError::at(self.text, at, message, help));
        }
        self.all.push(field);
        self.columns.arguments.push(at);
        Ok(self.all.len() - 1)
    }
}

/// True if an operator that only conditions have follows.
fn compares(text: &str) -> bool {
    let operators = ["==", "!=", "<", ">", "~", "&"];
    let text = text.replace("->", "");
    operators.iter().any(|operator| text.contains(operator))
}

/// Returns the end of the word at `at`: the first character that `stops` it, outside of `\"..."`,
/// `'FILE'::` and the template arguments of a scope.
pub(super) fn word_end(
    text: &str,
    at: usize,
    end: usize,
    mut stops: impl FnMut(char) -> bool,
) -> usize {
    let mut here = at;
    while let Some(c) = text[here..end].chars().next() {
        if stops(c) {
            break;
        }
        if let Some(width) = scope_width(&text[here..end]) {
            here += width;
            continue;
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

/// Returns the width of a part of a variable's scope that may have any characters, at the start of
/// `text`: `'FILE'` or template arguments.
pub(super) fn scope_width(text: &str) -> Option<usize> {
    match text.strip_prefix('\'') {
        Some(inside) => {
            let length = inside.find('\'')?;
            inside[length + 1..].starts_with("::").then_some(length + 2)
        }
        None => template_width(text),
    }
}

/// Parses the argument `text[at..end]`, the `number`-th of its event, behind the fields `before`.
pub(super) fn argument(
    text: &str,
    at: usize,
    end: usize,
    number: usize,
    at_site: Where,
    before: &[FetchArg],
) -> Result<FetchArg, ParseError> {
    let word = &text[at..end];
    let sign = word
        .find(['=', '"'])
        .filter(|sign| word[*sign..].starts_with('='));
    let given = sign.map(|sign| &word[..sign]);
    let body_at = at + sign.map_or(0, |sign| sign + 1);
    if let Some(function) = starts_aggregate(&text[body_at..end]) {
        return Err(aggregation::misplaced(text, body_at, function, given));
    }
    if let Some(name) = given {
        names::argument(text, at, name)?;
    }
    if body_at == end {
        let message = "no argument expression";
        let help = "write NAME=VALUE in one word, without blanks";
        return Err(ParseError::at(text, end, message, help));
    }
    if call_stack::is_meant(&text[body_at..end]) {
        match given {
            None => return stack(text, at, end),
            Some(_) if text[body_at..end].contains('(') => {
                let help = "its field is called stack";
                return Err(ParseError::at(text, at, "a call stack has no name", help));
            }
            Some(_) => {}
        }
    }
    let colon = colon(&text[body_at..end]).map(|colon| body_at + colon);
    let type_at = colon.map_or(end, |colon| colon + 1);
    let (type_end, length) = match length_at(&text[type_at..end]) {
        Some(bracket) => {
            let length = length(text, type_at + bracket + 1, end, at_site, before)?;
            (type_at + bracket, Some(Box::new(length)))
        }
        None => (end, None),
    };
    if text[type_at..type_end].contains(')') {
        field_type::parse(text, type_at, type_end)?; // always an error, and the clearer one
    }
    let mut fetch = fetch::parse(text, body_at, colon.unwrap_or(end))?;
    at_entry(&mut fetch, at_site.at);
    if let (At::Return, Base::Variable(name)) = (at_site.at, &fetch.base)
        && (name == Guard::DURATION || name == "latency")
    {
        let message = "the duration of a call is no value of an event";
        let help = "latency(FUNCTION) measures it, and a filter compares it: if duration > 10ms";
        return Err(ParseError::at(text, body_at, message, help));
    }
    let field_type = match colon {
        Some(_) => Some(field_type::parse(text, type_at, type_end)?),
        None => None,
    };
    let name = match given {
        Some(name) => name.to_string(),
        None => {
            let own = fetch.own_name();
            own.unwrap_or_else(|| format!("arg{number}"))
        }
    };
    if field_type.is_some_and(|field_type| is_pointed_to(&fetch, field_type, at_site)) {
        fetch.derefs.push(Deref {
            offset: 0,
            user: false,
        });
    }
    let argument = FetchArg {
        name,
        named: given.is_some(),
        fetch,
        field_type,
        length,
    };
    let Some(Misfit {
        part,
        message,
        help,
    }) = misfit(&argument, at_site)
    else {
        return Ok(argument);
    };
    let column = match part {
        Misplaced::Name => at,
        Misplaced::Value => body_at,
        Misplaced::Word => body_at + text[body_at..].find('$').unwrap_or(0),
        Misplaced::Type => type_at,
    };
    Err(ParseError::at(text, column, message, help))
}

/// Returns where the bracket with a length is in the type `string[LENGTH]`. A number is no length:
/// `string[2]` is an array.
fn length_at(field_type: &str) -> Option<usize> {
    let bracket = field_type.find('[')?;
    let inside = &field_type[bracket + 1..];
    let counted = inside.starts_with(|c: char| c.is_ascii_digit());
    let text = matches!(&field_type[..bracket], "string" | "ustring");
    (text && !counted && !inside.is_empty() && !inside.starts_with(']')).then_some(bracket)
}

/// Parses the length of a text, which begins at `at` and ends with the bracket before `end`: a value,
/// or the name of a field before it.
fn length(
    text: &str,
    at: usize,
    end: usize,
    at_site: Where,
    before: &[FetchArg],
) -> Result<Value, ParseError> {
    let help = "the length of a text is a value, as in string[$arg3] or string[+8($arg1):u32]";
    let Some(inside) = text[at..end].strip_suffix(']') else {
        let message = "the bracket of the length is not closed, or something is behind it";
        return Err(ParseError::at(text, end, message, help));
    };
    let colon = colon(inside).map(|colon| at + colon);
    let value_end = colon.unwrap_or(end - 1);
    let named = before.iter().find(|field| field.name == *inside);
    let (mut fetch, field_type) = match named {
        Some(field) => (field.fetch.clone(), field.field_type),
        None => (
            fetch::parse(text, at, value_end)?,
            match colon {
                Some(colon) => Some(field_type::parse(text, colon + 1, end - 1)?),
                None => None,
            },
        ),
    };
    at_entry(&mut fetch, at_site.at);
    let length = Value { fetch, field_type };
    if let Some(message) = no_length(&length, at_site) {
        return Err(ParseError::at(text, at, message, help));
    }
    Ok(length)
}

/// Returns the reason if a value cannot be the length of a text.
fn no_length(length: &Value, at_site: Where) -> Option<String> {
    let argument = FetchArg {
        named: false,
        ..length.clone().into()
    };
    match &length.fetch.base {
        Base::AllArguments | Base::CallStack(_) => {
            return Some(format!("{} is no length", length.fetch));
        }
        _ => {}
    }
    let number = |known: FieldType| {
        matches!(known.element, Element::Number { .. })
            && known.count.is_none()
            && !known.is_float()
    };
    match argument.known_type() {
        Some(known) if !number(known) => Some(format!("a {known} is no length")),
        _ => misfit(&argument, at_site).map(|misfit| misfit.message),
    }
}

/// The call stack `text[at..end]`.
fn stack(text: &str, at: usize, end: usize) -> Result<FetchArg, ParseError> {
    let base = Base::CallStack(call_stack::frames(text, at, end)?);
    Ok(FetchArg {
        name: "stack".to_string(),
        ..Value::new(base).into()
    })
}

/// True for a text or an array in a register: it is in the memory that the register points to, so
/// that `$arg1:string` is `+0($arg1):string`.
fn is_pointed_to(fetch: &Fetch, field_type: FieldType, at_site: Where) -> bool {
    // A marker knows by itself that its argument is a pointer.
    let knows = at_site.is_marker && matches!(fetch.base, Base::Argument(_));
    let pointer = fetch.base.may_point() && !knows;
    field_type.is_in_memory() && pointer && fetch.derefs.is_empty()
}

/// Makes an argument at a return mean its value at the entry, as in the kernel's function probes.
pub(crate) fn at_entry(fetch: &mut Fetch, at_site: At) {
    if let (At::Return, Base::Argument(number)) = (at_site, &fetch.base) {
        fetch.base = Base::Entry(Box::new(Value::argument(*number)));
    }
}

/// Finds the colon before the type, ignoring colons in strings, file names and `::`.
fn colon(body: &str) -> Option<usize> {
    let mut at = 0;
    while at < body.len() {
        let rest = &body[at..];
        at += match rest.chars().next()? {
            '\\' if rest[1..].starts_with('"') => 2 + closing_quote(&rest[2..], '"').unwrap_or(0),
            // The colon of `$entry:` does not start a type.
            '$' if rest.starts_with("$entry:") => "$entry:".len(),
            ':' if rest.starts_with("::") => 2,
            ':' => return Some(at),
            '\'' | '<' => scope_width(rest).unwrap_or(1),
            c => c.len_utf8(),
        };
    }
    None
}

/// Part of an argument that does not fit.
pub(crate) enum Misplaced {
    Name,
    Value,
    /// The word after the first `$`.
    Word,
    Type,
}

/// An argument whose value, name and type do not fit together.
pub(crate) struct Misfit {
    part: Misplaced,
    pub message: String,
    help: String,
}

/// Returns the reason if value, name and type of an argument do not fit together, or not to the
/// place.
pub(crate) fn misfit(argument: &FetchArg, at_site: Where) -> Option<Misfit> {
    use Misplaced::{Name, Type, Value, Word};
    let error = |part, message: &str, help: &str| {
        Some(Misfit {
            part,
            message: message.to_string(),
            help: help.to_string(),
        })
    };
    let fetch = &argument.fetch;
    let field_type = argument.field_type;
    match fetch.base {
        Base::Retval | Base::RetvalWord if at_site.at == At::Entry => {
            let message = "$retval is not available on probe";
            let help = "write r and a blank before the event, as in `r libc:read n=$retval`, or %return behind the place";
            return error(Word, message, help);
        }
        Base::Entry(_) if at_site.at == At::Entry => {
            let message = "$entry is not available on probe";
            let help = "write r and a blank before the event, or the value without $entry:";
            return error(Word, message, help);
        }
        Base::AllArguments if argument.named => {
            let message = "$arg* has no name";
            return error(Name, message, "its fields get the arguments' names");
        }
        Base::AllArguments if field_type.is_some() => {
            let help = match at_site.is_marker {
                true => "the marker tells the arguments' types",
                false => "debug information tells the arguments' types",
            };
            return error(Type, "$arg* has no type", help);
        }
        Base::Comm | Base::Text(_) if field_type.is_some_and(|t| t != FieldType::STRING) => {
            let message = "$comm and immediate-string only accept the type string";
            return error(Type, message, "leave the type out");
        }
        Base::Comm | Base::Text(_) => return None,
        Base::Vector(_) if !fetch.derefs.is_empty() => {
            let message = "there is no address in a vector register";
            let help = "write the register alone, as in %xmm0:f64";
            return error(Value, message, help);
        }
        // The marker determines the type; for a pointer, `string` means the string that it points
        // to.
        Base::Argument(_)
            if at_site.is_marker
                && fetch.derefs.is_empty()
                && field_type.is_none_or(|t| t.count.is_none()) =>
        {
            return None;
        }
        Base::Argument(_)
            if fetch.derefs.is_empty() && field_type.is_some_and(|t| t.is_float()) =>
        {
            let message = format!("{fetch} is an integer or pointer argument");
            let help = "floating point arguments are counted by themselves: the first is \
                        %xmm0:f64, the eighth %xmm7:f64; debug information knows them by name";
            return error(Type, &message, help);
        }
        Base::Register(_)
        | Base::Vector(_)
        | Base::Argument(_)
        | Base::AllArguments
        | Base::Retval
        | Base::RetvalWord
        | Base::Entry(_)
        | Base::StackPointer
        | Base::StackWord(_)
        | Base::Latency
        | Base::Interval
        | Base::Started(_)
        | Base::CallStack(_)
        | Base::Immediate(_)
        | Base::Address(_)
        | Base::FileOffset(_)
        | Base::Variable(_) => {}
    }
    if let Some(length) = &argument.length {
        if field_type != Some(FieldType::STRING)
            && field_type.is_none_or(|t| !t.is_string() || t.count.is_some())
        {
            return error(Type, "only a string has a length", "write string[LENGTH]");
        }
        if let Some(message) = no_length(length, at_site) {
            return error(Type, &message, "a length is a number");
        }
    }
    let field_type = field_type.filter(|_| !fetch.is_memory())?;
    let help = format!("write +0({fetch}):{field_type} for the memory that it points to");
    if field_type.is_string() {
        error(Type, "string accepts only a memory argument", &help)
    } else if field_type.element == Element::Ipv6 {
        error(Type, "ipv6 accepts only a memory argument", &help)
    } else if field_type.count.is_some() {
        error(Type, "array accepts only a memory argument", &help)
    } else {
        None
    }
}
