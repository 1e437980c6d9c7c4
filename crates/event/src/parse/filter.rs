//! Parsing filters, and checking them against the fields.

use crate::at::At;
use crate::error::ParseError;
use crate::fetch::{Base, FetchArg};
use crate::field_type::{Element, FieldType};
use crate::guard::{Comparison, Guard, Operand};
use crate::number;
use crate::parse::arguments;
use crate::parse::arguments::{MAX_ARGUMENTS, Where, is_result};
use crate::parse::fetch::{closing_quote, unescaped};
use crate::spec::NamedOperand;
use crate::symbol::{is_word, template_width};
use capriole_text::units::parse_duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Operators, longer ones first. `!~` is an extension to the kernel's.
const OPERATORS: [(&str, Comparison, bool); 9] = [
    ("==", Comparison::Equal, false),
    ("!=", Comparison::NotEqual, false),
    ("<=", Comparison::LessOrEqual, false),
    (">=", Comparison::GreaterOrEqual, false),
    ("!~", Comparison::Matches, true),
    ("<", Comparison::Less, false),
    (">", Comparison::Greater, false),
    ("&", Comparison::Bits, false),
    ("~", Comparison::Matches, false),
];

/// Kind of value that can be compared with a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    /// An IPv6 address.
    Address,
    /// The duration of a call.
    Duration,
    Text,
    /// Not known yet: debug information or the marker determines it.
    Unknown,
}

/// A filter, the values that it reads besides the event's fields, and the places of the names that it
/// compares fields with.
pub(super) struct Parsed {
    pub guard: Guard,
    pub values: Vec<FetchArg>,
    pub named: Vec<NamedOperand>,
}

/// Parses the filter `text[start..end]`, which follows the word `if`.
pub(super) fn parse(
    text: &str,
    start: usize,
    end: usize,
    arguments: &[FetchArg],
    site: Where,
) -> Result<Parsed, ParseError> {
    let mut parser = Parser {
        named: Vec::new(),
        values: Vec::new(),
        text,
        at: start,
        end,
        arguments,
        site,
    };
    let filter = parser.or(0)?;
    match parser.rest().chars().next() {
        None => Ok(Parsed {
            guard: filter,
            values: parser.values,
            named: parser.named,
        }),
        Some(')') => Err(parser.error(parser.at, "too few '('", "")),
        Some(_) => {
            let help = "join conditions with && and ||";
            Err(parser.error(parser.at, "there is something behind the condition", help))
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    end: usize,
    arguments: &'a [FetchArg],
    site: Where,
    /// Values that are no fields of the event.
    values: Vec<FetchArg>,
    named: Vec<NamedOperand>,
}

impl Parser<'_> {
    /// Skips blanks and returns the rest of the filter.
    fn rest(&mut self) -> &str {
        self.at = self.end - self.text[self.at..self.end].trim_start().len();
        &self.text[self.at..self.end]
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn error(&self, at: usize, message: impl Into<String>, help: impl Into<String>) -> ParseError {
        ParseError::at(self.text, at, message, help)
    }

    fn or(&mut self, depth: usize) -> Result<Guard, ParseError> {
        let mut all = vec![self.and(depth)?];
        while self.take("||") {
            all.push(self.and(depth)?);
        }
        Ok(single(all, Guard::Or))
    }

    fn and(&mut self, depth: usize) -> Result<Guard, ParseError> {
        let mut all = vec![self.term(depth)?];
        while self.take("&&") {
            all.push(self.term(depth)?);
        }
        Ok(single(all, Guard::And))
    }

    fn term(&mut self, depth: usize) -> Result<Guard, ParseError> {
        let start = self.end - self.rest().len();
        let not = self.take("!");
        let open = !not && self.take("(");
        if (not || open) && depth == Guard::MAX_DEPTH {
            let help = format!("`!` and parentheses are nested at most {depth} times");
            return Err(self.error(start, "the filter is nested too deeply", help));
        }
        if not {
            return Ok(Guard::Not(Box::new(self.term(depth + 1)?)));
        }
        if open {
            let inner = self.or(depth + 1)?;
            if !self.take(")") {
                return Err(match self.rest() {
                    "" => self.error(start, "too many '('", ""),
                    _ => {
                        let help = "join conditions with && and ||";
                        self.error(self.at, "there is something behind the condition", help)
                    }
                });
            }
            return Ok(inner);
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Guard, ParseError> {
        self.rest();
        let at = self.at;
        let (field, width) = self.field()?;
        let kind = self.kind(&field, at)?;
        self.at += width;
        let rest = self.rest();
        let operator = OPERATORS.iter().find(|(token, ..)| rest.starts_with(token));
        let doubled = rest.starts_with("&&");
        let Some(&(token, comparison, negated)) = operator.filter(|_| !doubled) else {
            let help = "write FIELD and ==, !=, <, <=, >, >=, & or ~, and a value";
            return Err(self.error(self.at, "invalid operator", help));
        };
        let operator_at = self.at;
        let of_text = matches!(
            comparison,
            Comparison::Equal | Comparison::NotEqual | Comparison::Matches
        );
        if kind == Kind::Address && (!of_text || comparison == Comparison::Matches) {
            let message = format!("illegal operation for field type: {field} is an address");
            return Err(self.error(
                operator_at,
                message,
                "addresses are compared with == and !=",
            ));
        }
        if kind == Kind::Duration && !comparison.is_order() {
            let message = format!("illegal operation for field type: {field} is a time");
            let help = "times are compared with <, <=, > and >=";
            return Err(self.error(operator_at, message, help));
        }
        if (kind == Kind::Text && !of_text)
            || (kind == Kind::Number && comparison == Comparison::Matches)
        {
            let (is, help) = match kind {
                Kind::Text => ("a string", "strings are compared with ==, != and ~"),
                _ => (
                    "a number",
                    "~ is for strings; compare numbers with ==, <, & and so on",
                ),
            };
            let message = format!("illegal operation for field type: {field} is {is}");
            return Err(self.error(operator_at, message, help));
        }
        self.at += token.len();
        self.rest();
        let operand = self.operand(&field, kind, comparison)?;
        let compare = Guard::Compare {
            field,
            comparison,
            operand,
        };
        Ok(match negated {
            true => Guard::Not(Box::new(compare)),
            false => compare,
        })
    }

    /// Returns the name of the field that the rest of the filter begins with, and the width of its
    /// text: the name, or the value as it is written in the event, such as `req->state` or `$arg1`.
    /// A value that is no field of the event is read for the filter alone.
    fn field(&mut self) -> Result<(String, usize), ParseError> {
        let rest = &self.text[self.at..self.end];
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let written = self.arguments.iter().filter_map(|argument| {
            let value = argument.fetch.to_string();
            let behind = rest.strip_prefix(value.as_str())?;
            let goes_on = behind.starts_with(|c| is_word(c) || matches!(c, '.' | '['))
                || behind.starts_with("->")
                || behind.starts_with("::");
            (value.len() > word && !goes_on).then(|| (argument.name.clone(), value.len()))
        });
        if let Some(written) = written.max_by_key(|(_, width)| *width) {
            return Ok(written);
        }
        let name = &rest[..word];
        let width = value_width(rest);
        match width > 0 && !self.is_name(name, width == word, &rest[word..width.max(word)]) {
            true => Ok((self.value(width)?, width)),
            false => Ok((name.to_string(), word)),
        }
    }

    /// True if a word is the name of a field, or not that of a value. It may be `alone`, or go on
    /// with `behind`.
    fn is_name(&self, word: &str, alone: bool, behind: &str) -> bool {
        let is_field = self.arguments.iter().any(|a| a.name == word);
        // `stack(...)` and aggregates are no values; a field has its type in the event.
        if behind.starts_with('(') && !word.is_empty()
            || is_field && behind.starts_with(':') && !behind.starts_with("::")
        {
            return true;
        }
        let all = |a: &FetchArg| a.fetch.base == Base::AllArguments;
        let of_marker = self.site.is_marker && self.arguments.iter().any(all);
        let known = is_field || Guard::COMMON.contains(&word) || word == Guard::DURATION;
        // Variables are not known at a return.
        alone && (known || of_marker || self.site.at == At::Return)
    }

    /// Adds the value of this width at the current place, unless it is known, and returns its name.
    fn value(&mut self, width: usize) -> Result<String, ParseError> {
        let (at, end) = (self.at, self.at + width);
        let number = self.arguments.len() + self.values.len() + 1;
        let argument = arguments::argument(self.text, at, end, number, self.site, self.arguments)?;
        if let (At::Return, Base::Variable(path)) = (self.site.at, &argument.fetch.base) {
            let message = "variables are not known at a return";
            let help = format!("$entry:{path} is what it was at the entry");
            return Err(self.error(at, message, help));
        }
        let name = self.text[at..end].to_string();
        if self.values.iter().all(|known| known.name != name) {
            if number > MAX_ARGUMENTS {
                let help = format!("an event has at most {MAX_ARGUMENTS}");
                return Err(self.error(at, "too many values are specified", help));
            }
            self.values.push(FetchArg {
                name: name.clone(),
                ..argument
            });
        }
        Ok(name)
    }

    /// Returns the kind of the field, or an error if there is no such field.
    fn kind(&self, field: &str, at: usize) -> Result<Kind, ParseError> {
        let read = self.read(field);
        if let Some(argument) = read {
            let told_later =
                self.site.is_marker && matches!(argument.fetch.base, Base::Argument(_));
            let known = match argument.field_type {
                None if told_later && argument.fetch.derefs.is_empty() => None,
                None if is_result(&argument.fetch) => None,
                _ => argument.known_type(),
            };
            return match known {
                Some(FieldType { count: Some(_), .. }) => {
                    let message = format!("illegal operation for field type: {field} is an array");
                    Err(self.error(at, message, "record one element, and compare that"))
                }
                Some(known) if known.is_call_stack() => {
                    let message =
                        format!("illegal operation for field type: {field} is a call stack");
                    let help = "who called whom is found out later, when the trace is read";
                    Err(self.error(at, message, help))
                }
                Some(FieldType {
                    element: Element::String { .. },
                    ..
                }) => Ok(Kind::Text),
                Some(float) if float.is_float() => {
                    let message = format!(
                        "illegal operation for field type: {field} is a floating point number"
                    );
                    let help = "floating point numbers are recorded, and not compared";
                    Err(self.error(at, message, help))
                }
                Some(known) if known.element == Element::Ipv6 => Ok(Kind::Address),
                Some(_) => Ok(Kind::Number),
                None => Ok(Kind::Unknown),
            };
        }
        if Guard::COMMON.contains(&field) {
            let is_name = field.eq_ignore_ascii_case("comm");
            return Ok(if is_name { Kind::Text } else { Kind::Number });
        }
        if field == Guard::DURATION && self.site.at == At::Return {
            return Ok(Kind::Duration);
        }
        let open = |a: &FetchArg| a.fetch.base == Base::AllArguments;
        if !field.is_empty() && self.arguments.iter().any(open) {
            return Ok(Kind::Unknown);
        }
        if field == Guard::DURATION {
            let message = "the duration of a call is known at its return only";
            return Err(self.error(
                at,
                message,
                "write the event as r FUNCTION or FUNCTION%return",
            ));
        }
        let names = self.arguments.iter().map(|a| a.name.as_str());
        let duration = (self.site.at == At::Return).then_some(Guard::DURATION);
        let names: Vec<&str> = names
            .chain(["comm", "tid", "cpu"])
            .chain(duration)
            .collect();
        let help = format!("the fields are {}", names.join(", "));
        let message = match field {
            "" => "there is no field".to_string(),
            _ => format!("field `{field}` not found"),
        };
        Err(self.error(at, message, help))
    }

    fn operand(
        &mut self,
        field: &str,
        kind: Kind,
        comparison: Comparison,
    ) -> Result<Operand, ParseError> {
        if kind == Kind::Duration {
            return self.time();
        }
        let at = self.at;
        let rest = &self.text[at..self.end];
        let address_end = |c: char| !c.is_ascii_hexdigit() && !matches!(c, ':' | '.');
        let word = &rest[..rest.find(address_end).unwrap_or(rest.len())];
        let may_be = kind != Kind::Text && comparison != Comparison::Matches;
        if let (true, Ok(address)) = (may_be && kind != Kind::Address, word.parse::<Ipv4Addr>()) {
            self.at += word.len();
            if self.rest().starts_with('/') {
                let help =
                    "compare with the first and the last address of the network, by >= and <=";
                return Err(self.error(self.at, "networks are not compared", help));
            }
            return Ok(Operand::Number {
                value: u64::from(u32::from(address)),
                negative: false,
            });
        }
        let equal = matches!(comparison, Comparison::Equal | Comparison::NotEqual);
        if let (true, Ok(address)) = (may_be && equal, word.parse::<Ipv6Addr>())
            && kind != Kind::Number
        {
            self.at += word.len();
            return Ok(Operand::Address(address));
        }
        if kind == Kind::Address {
            let message = format!("expecting an address: {field} is one");
            let help = match quoted_address(rest) {
                Some(address) => format!("write {address} without quotes"),
                None => "write an IPv6 address, as in == ::1".to_owned(),
            };
            return Err(self.error(at, message, help));
        }
        if let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let Some(length) = closing_quote(&rest[1..], quote) else {
                return Err(self.error(at, "missing matching quote", ""));
            };
            let inside = &rest[1..=length];
            self.at += length + 2;
            let only_number = comparison != Comparison::Equal && comparison != Comparison::NotEqual;
            let as_number =
                kind == Kind::Number || (kind == Kind::Unknown && (quote == '\'' || only_number));
            if as_number && quote == '\'' && comparison != Comparison::Matches {
                let text = unescaped(inside, &['\'', '\\']);
                let mut chars = text.chars();
                if let (Some(c), None) = (chars.next(), chars.next()) {
                    let value = u64::from(u32::from(c));
                    return Ok(Operand::Number {
                        value,
                        negative: false,
                    });
                }
            }
            let must_be_number =
                kind == Kind::Number || (only_number && comparison != Comparison::Matches);
            if must_be_number {
                let message = match kind {
                    Kind::Number => format!("expecting a number: {field} is one"),
                    _ => format!("expecting a number: {} compares them", comparison.as_str()),
                };
                let help = match quoted_address(rest) {
                    Some(address) => format!("write {address} without quotes"),
                    None => "one character in single quotes is a number".to_owned(),
                };
                return Err(self.error(at, message, help));
            }
            // In a pattern, a backslash escapes the next character, so keep it.
            let text = match comparison {
                Comparison::Matches => unescaped(inside, &[quote]),
                _ => unescaped(inside, &[quote, '\\']),
            };
            return Ok(Operand::Text(text));
        }
        let negative = rest.starts_with('-');
        let digits = &rest[usize::from(negative)..];
        let width = digits.find(|c| !is_word(c)).unwrap_or(digits.len());
        let digits = &digits[..width];
        let is_number = digits.starts_with(|c: char| c.is_ascii_digit());
        let named = names(rest);
        if !named.is_empty() && comparison != Comparison::Matches && self.may_be_named(field) {
            self.at += named.len();
            let names = named.split('|').map(str::trim);
            let names = names.collect::<Vec<_>>().join("|");
            self.named.push(NamedOperand {
                field: field.to_string(),
                names: names.clone(),
                column: at,
            });
            return Ok(Operand::Named(names));
        }
        if !is_number && !negative {
            let message = "invalid value (did you forget quotes?)";
            let help = match kind {
                Kind::Text => "a value is a text in quotes",
                _ if !named.is_empty() && comparison != Comparison::Matches => {
                    "a value is a number, or a text in quotes; names are those of an enumeration, \
                     whose variable is written without a type"
                }
                _ => "a value is a number, or a text in quotes",
            };
            return Err(self.error(at, message, help));
        }
        if kind == Kind::Text || comparison == Comparison::Matches {
            let message = match kind {
                Kind::Text => format!("expecting a string: {field} is one"),
                _ => format!("expecting a string: {} compares them", comparison.as_str()),
            };
            return Err(self.error(at, message, "write the text in quotes"));
        }
        let behind = &rest[usize::from(negative) + width..];
        // Two dots would be in a part of an address.
        if let Some(fraction) = behind.strip_prefix('.')
            && fraction.starts_with(|c: char| c.is_ascii_digit())
            && !fraction.contains('.')
        {
            let message = "floating point numbers are not compared";
            return Err(self.error(at, message, "compare with a whole number"));
        }
        let value = number::with_sign(negative, digits)
            .map_err(|why| number::bad(self.text, at, "integer value", &why))?;
        self.at += usize::from(negative) + width;
        Ok(Operand::Number {
            value,
            negative: negative && value != 0,
        })
    }
}

impl Parser<'_> {
    /// Returns the value that is compared under this name.
    fn read(&self, field: &str) -> Option<&FetchArg> {
        let mut all = self.arguments.iter().chain(&self.values);
        all.find(|argument| argument.name == field)
    }

    /// True if debug information may have names for the values of a field: it determines the type.
    fn may_be_named(&self, field: &str) -> bool {
        match self.read(field) {
            Some(argument) => {
                let by_debug_info = is_result(&argument.fetch) || argument.known_type().is_none();
                argument.field_type.is_none() && by_debug_info
            }
            None => !Guard::COMMON.contains(&field),
        }
    }

    /// Parses a time with its unit.
    fn time(&mut self) -> Result<Operand, ParseError> {
        let at = self.at;
        let rest = &self.text[at..self.end];
        let word = &rest[..rest.find(|c| !is_word(c) && c != '.').unwrap_or(rest.len())];
        let help = "write a number and its unit: ns, us, ms, s, m or h";
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.error(at, "expecting a time, such as 10ms", help));
        }
        if !word.ends_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(self.error(at, "the time has no unit", help));
        }
        let time = parse_duration(word).map_err(|why| self.error(at, why, help))?;
        self.at += word.len();
        Ok(Operand::Duration(time))
    }
}

/// Returns the IP address that a text begins with in quotes.
fn quoted_address(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (inside, _) = text[1..].split_once(quote)?;
    inside.parse::<IpAddr>().is_ok().then_some(inside)
}

/// Returns the width of the value that a text begins with: a path, `$arg1`, `+8(%di):u32` and so on.
/// 0 if it begins like none. The parser of values checks the rest.
fn value_width(text: &str) -> usize {
    let begins = |c: char| is_word(c) && !c.is_ascii_digit();
    let operator = |c: char| matches!(c, '$' | '%' | '+' | '-' | '@' | '\\' | '\'');
    if !text.starts_with(|c| begins(c) || operator(c)) && !text.starts_with("::") {
        return 0;
    }
    let (mut at, mut depth, mut last) = (0, 0_usize, '(');
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        // A sign stands before an offset or a number.
        let sign = matches!(last, '(' | '[' | '@' | '\\');
        let width = match c {
            '\'' => match rest[1..].find("'::") {
                Some(length) if matches!(last, '(' | ':') => length + 4,
                _ => break,
            },
            '<' if is_word(last) => match template_width(rest) {
                Some(width) => width,
                None => break,
            },
            '-' if rest.starts_with("->") => 2,
            '+' | '-' if sign => 1,
            '(' | '[' => {
                depth += 1;
                1
            }
            ')' | ']' if depth > 0 => {
                depth -= 1;
                1
            }
            '$' | '%' | '@' | '\\' | ':' | '.' | '#' => 1,
            c if is_word(c) => c.len_utf8(),
            _ => break,
        };
        at += width;
        last = text[..at].chars().next_back().unwrap_or(c);
    }
    at
}

/// Returns the names that a text begins with, joined by `|`: at least one, and maybe numbers. Empty
/// if the first word is none.
fn names(text: &str) -> &str {
    let (mut start, mut end) = (0, 0);
    let mut named = false;
    loop {
        let item = text[start..].trim_start();
        let is_part = |c| is_word(c) || c == ':';
        let width = item.find(|c| !is_part(c)).unwrap_or(item.len());
        if width == 0 {
            break;
        }
        named |= !item.starts_with(|c: char| c.is_ascii_digit());
        end = text.len() - item.len() + width;
        let behind = text[end..].trim_start();
        if !behind.starts_with('|') || behind.starts_with("||") {
            break;
        }
        start = text.len() - behind.len() + 1;
    }
    if named { &text[..end] } else { "" }
}

/// Returns the only condition, or joins all of them with `join`.
fn single(mut all: Vec<Guard>, join: impl Fn(Vec<Guard>) -> Guard) -> Guard {
    match all.len() {
        1 => all.remove(0),
        _ => join(all),
    }
}
