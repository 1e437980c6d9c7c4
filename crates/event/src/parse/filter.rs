//! Parsing filters, and checking them against the fields.

use crate::at::At;
use crate::error::ParseError;
use crate::fetch::{Base, FetchArg};
use crate::field_type::{Element, FieldType};
use crate::guard::{Comparison, Guard, Operand};
use crate::number;
use crate::parse::fetch::{closing_quote, unescaped};
use crate::symbol::is_word;
use capriole_text::units::parse_duration;
use std::net::{Ipv4Addr, Ipv6Addr};

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

/// Parses the filter `text[start..end]`, which follows the word `if`.
pub(super) fn parse(
    text: &str,
    start: usize,
    end: usize,
    arguments: &[FetchArg],
    (site, is_marker): (At, bool),
) -> Result<Guard, ParseError> {
    let mut parser = Parser {
        text,
        at: start,
        end,
        arguments,
        site,
        is_marker,
    };
    let filter = parser.or(0)?;
    match parser.rest().chars().next() {
        None => Ok(filter),
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
    /// The event is at an entry, or at a return.
    site: At,
    /// The event is a static marker, which determines the types of its arguments.
    is_marker: bool,
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
        let rest = self.rest();
        let width = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let field = rest[..width].to_string();
        let at = self.at;
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

    /// Returns the kind of the field, or an error if there is no such field.
    fn kind(&self, field: &str, at: usize) -> Result<Kind, ParseError> {
        let recorded = self.arguments.iter().find(|a| a.name == field);
        if let Some(argument) = recorded {
            let told_later = self.is_marker && matches!(argument.fetch.base, Base::Argument(_));
            let known = match argument.field_type {
                None if told_later && argument.fetch.derefs.is_empty() => None,
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
        if field == Guard::DURATION && self.site == At::Return {
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
        let duration = (self.site == At::Return).then_some(Guard::DURATION);
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
            return Err(self.error(at, message, "write an IPv6 address, as in == ::1"));
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
                return Err(self.error(at, message, "one character in single quotes is a number"));
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
        if !is_number && !negative {
            let message = "invalid value (did you forget quotes?)";
            let help = "a value is a number, or a text in quotes";
            return Err(self.error(at, message, help));
        }
        if kind == Kind::Text || comparison == Comparison::Matches {
            let message = match kind {
                Kind::Text => format!("expecting a string: {field} is one"),
                _ => format!("expecting a string: {} compares them", comparison.as_str()),
            };
            return Err(self.error(at, message, "write the text in quotes"));
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

/// Returns the only condition, or joins all of them with `join`.
fn single(mut all: Vec<Guard>, join: impl Fn(Vec<Guard>) -> Guard) -> Guard {
    match all.len() {
        1 => all.remove(0),
        _ => join(all),
    }
}
