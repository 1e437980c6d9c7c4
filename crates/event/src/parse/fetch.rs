//! Parsing values: registers, memory, variables, and nested dereferences.

use crate::error::ParseError;
use crate::fetch::{Base, Deref, Fetch, Value};
use crate::gpr::Gpr;
use crate::number;
use crate::symbol::{is_word, template_width};
use std::str::FromStr;

const REGISTERS: &str =
    "the registers are %ax, %bx, %cx, %dx, %si, %di, %bp, %sp and %r8 to %r15, all of 64 bits";
const VARIABLES: &str =
    "write $arg1 and so on, $arg*, $retval, $entry:NAME, $stack, $stack0 and so on, or $comm";
const FORMS: &str = "a value is %REG, $argN, $stackN, $retval, $comm, @ADDR, @+OFFSET, \\NUMBER, \
     \\\"TEXT\", +OFFSET(VALUE) or the name of a variable";

/// Parses `text[start..end]`.
pub(crate) fn parse(text: &str, start: usize, end: usize) -> Result<Fetch, ParseError> {
    let mut derefs = Vec::new();
    let (mut at, mut end) = (start, end);
    while text[at..end].starts_with(['+', '-']) {
        if derefs.len() == Fetch::MAX_DEREFS {
            let help = format!("at most {} may be nested", Fetch::MAX_DEREFS);
            let message = "dereference is too much nested";
            return Err(ParseError::at(text, at, message, help));
        }
        let (deref, inside, close) = deref(text, at, end)?;
        derefs.push(deref);
        (at, end) = (inside, close);
    }
    derefs.reverse();
    let base = base(text, at, end)?;
    if !derefs.is_empty() {
        let what = match base {
            Base::Comm => "$comm",
            Base::Text(_) => "a text",
            Base::AllArguments => "$arg*",
            _ => return Ok(Fetch { base, derefs }),
        };
        let message = format!("{what} can not be dereferenced");
        return Err(ParseError::at(text, at, message, "only a number can be"));
    }
    Ok(Fetch { base, derefs })
}

/// Parses `+|-[u]OFFS(...)`; also returns where the inner value begins and ends.
fn deref(text: &str, at: usize, end: usize) -> Result<(Deref, usize, usize), ParseError> {
    let Some(open) = text[at..end].find('(') else {
        let help =
            "memory is +OFFSET(VALUE); an offset in a function is SYMBOL+OFFSET, in one word";
        return Err(ParseError::at(text, at, "dereference needs a brace", help));
    };
    let negative = text[at..].starts_with('-');
    let signed = &text[at + 1..at + open];
    let (user, digits) = match signed.strip_prefix('u') {
        Some(digits) => (true, digits),
        None => (false, signed),
    };
    // After a plus sign the kernel accepts a second sign.
    let offset = match negative {
        true => number::with_sign(true, digits).map(u64::cast_signed),
        false => number::signed(digits),
    };
    let offset = offset.map_err(|why| number::bad(text, at, "dereference offset", &why))?;
    let inside = at + open + 1;
    let Some(close) = text[inside..end].rfind(')') else {
        let help = "write +OFFSET(VALUE)";
        let message = "dereference brace is not closed";
        return Err(ParseError::at(text, end, message, help));
    };
    let behind = inside + close + 1;
    if behind < end {
        let help = "a type is written behind a colon, as in +0(%di):u32";
        let message = "invalid fetch argument: there is something behind the brace";
        return Err(ParseError::at(text, behind, message, help));
    }
    Ok((Deref { offset, user }, inside, inside + close))
}

/// Parses the innermost value.
fn base(text: &str, at: usize, end: usize) -> Result<Base, ParseError> {
    let word = &text[at..end];
    let Some(first) = word.chars().next() else {
        let message = "invalid fetch argument: there is nothing";
        return Err(ParseError::at(text, at, message, FORMS));
    };
    match first {
        '%' => register(text, at, &word[1..]),
        '$' => dollar(text, at, &word[1..]),
        '@' => memory(text, at, &word[1..]),
        '\\' => immediate(text, at + 1, &word[1..]),
        c if is_word(c) && !c.is_ascii_digit() => variable(text, at, word),
        '\'' if word.contains("'::") => variable(text, at, word),
        ':' if word.starts_with("::") => variable(text, at, word),
        _ => {
            let help = match first {
                '&' => "write the variable without &: a structure's own address cannot be recorded",
                '*' => &format!("write {} for what the pointer leads to", followed(word)),
                '/' => "the file stands first, as in PATH:SYMBOL; events are of the kinds p and r",
                '"' | '\'' => "a text is \\\"TEXT\"",
                _ => FORMS,
            };
            let message = format!("invalid fetch argument `{word}`");
            Err(ParseError::at(text, at, message, help))
        }
    }
}

/// Returns `p[0][0]` for `**p`.
fn followed(word: &str) -> String {
    let variable = word.trim_start_matches('*');
    let stars = word.len() - variable.len();
    let variable = match variable.starts_with(is_word) {
        true => variable,
        false => "VARIABLE",
    };
    variable.to_owned() + &"[0]".repeat(stars)
}

fn register(text: &str, at: usize, name: &str) -> Result<Base, ParseError> {
    if let Some(register) = Gpr::from_name(name) {
        return Ok(Base::Register(register));
    }
    let vector = |number: &&str| number.len() < 3 && !number.starts_with('0') || *number == "0";
    let vector = name.strip_prefix("xmm").filter(vector);
    if let Some(number @ 0..16) = vector.and_then(|number| number.parse().ok()) {
        return Ok(Base::Vector(number));
    }
    let help = match (name, Gpr::from_part(name)) {
        ("ip" | "rip" | "eip", _) => {
            "the place of an event is known: it is in the trace's description".to_string()
        }
        (
            "flags" | "eflags" | "rflags" | "cs" | "ss" | "ds" | "es" | "fs" | "gs" | "orig_ax",
            _,
        ) => {
            format!("only general registers can be read; {REGISTERS}")
        }
        (_, Some((register, bytes))) => {
            format!("write {register}:u{} for its lower bits", bytes * 8)
        }
        _ if name.starts_with("xmm") || name.starts_with("ymm") || name.starts_with("st") => {
            "of floating point registers %xmm0 to %xmm15 can be read, 32 or 64 bits".to_string()
        }
        _ => REGISTERS.to_string(),
    };
    let message = format!("invalid register name `%{name}`");
    Err(ParseError::at(text, at, message, help))
}

fn dollar(text: &str, at: usize, name: &str) -> Result<Base, ParseError> {
    let digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let error = |what: &str, help: &str| {
        let message = format!("invalid {what} `${name}`");
        Err(ParseError::at(text, at, message, help))
    };
    if let Some(value) = name.strip_prefix("entry:") {
        return entry(text, at + 1 + "entry:".len(), value);
    }
    match name {
        "entry" => {
            let help = "write $entry:arg1, or $entry:NAME of a parameter";
            let message = "invalid $-variable `$entry`: what is meant is missing";
            return Err(ParseError::at(text, at + 1 + name.len(), message, help));
        }
        "retval" => return Ok(Base::Retval),
        "comm" | "COMM" => return Ok(Base::Comm),
        "stack" => return Ok(Base::StackPointer),
        "arg*" => return Ok(Base::AllArguments),
        _ => {}
    }
    if let Some(number) = name.strip_prefix("stack").filter(|n| digits(n)) {
        return match number.parse() {
            Ok(number) => Ok(Base::StackWord(number)),
            Err(_) => error(
                "stack number",
                "$stack0 to $stack65535 can be read; write +OFFSET($stack) for memory above them",
            ),
        };
    }
    if let Some(number) = name.strip_prefix("arg").filter(|n| digits(n)) {
        return match number.parse() {
            Ok(number @ 1..) => Ok(Base::Argument(number)),
            Ok(0) | Err(_) => error("argument number", "arguments are $arg1 to $arg255"),
        };
    }
    error("$-variable", VARIABLES)
}

/// Parses the value after `$entry:`, at byte `at`.
fn entry(text: &str, at: usize, word: &str) -> Result<Base, ParseError> {
    let number = word.strip_prefix("arg").filter(|n| {
        let digits = n.bytes().all(|b| b.is_ascii_digit());
        !n.is_empty() && digits
    });
    let base = match (number, word.chars().next()) {
        (Some(number), _) => match number.parse() {
            Ok(number @ 1..) => Base::Argument(number),
            Ok(0) | Err(_) => {
                let message = format!("invalid argument number `$entry:{word}`");
                let help = "arguments are $entry:arg1 to $entry:arg255";
                return Err(ParseError::at(text, at, message, help));
            }
        },
        (None, Some(c)) if is_word(c) && !c.is_ascii_digit() => variable(text, at, word)?,
        (None, Some('\'' | ':')) => variable(text, at, word)?,
        (None, first) => {
            let message = match first {
                Some(_) => format!("invalid value at the entry `{word}`"),
                None => "invalid $-variable `$entry:`: what is meant is missing".to_string(),
            };
            let help = match first {
                Some('$') => "write $entry:arg1, without a second $",
                _ => "write $entry:arg1, or $entry:NAME of a parameter",
            };
            return Err(ParseError::at(text, at, message, help));
        }
    };
    Ok(Base::Entry(Box::new(Value {
        fetch: Fetch {
            base,
            derefs: Vec::new(),
        },
        field_type: None,
    })))
}

/// Parses the address or offset after the `@`.
fn memory(text: &str, at: usize, word: &str) -> Result<Base, ParseError> {
    if let Some(offset) = word.strip_prefix('+') {
        let offset = number::signed(offset)
            .map_err(|why| number::bad(text, at, "file offset value", &why))?;
        return Ok(Base::FileOffset(offset.cast_unsigned()));
    }
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        let address = number::parse(text, at, word, "memory address")?;
        return Ok(Base::Address(address));
    }
    let message = "symbol is not available with uprobe";
    let help = "write @ADDRESS, @+OFFSET in the file, or the name of a variable without @";
    Err(ParseError::at(text, at, message, help))
}

/// Parses the constant after the backslash, at byte `at`.
fn immediate(text: &str, at: usize, word: &str) -> Result<Base, ParseError> {
    if let Some(rest) = word.strip_prefix('"') {
        let Some(length) = closing_quote(rest, '"') else {
            let message = "string is not closed with '\"'";
            let help = "write \\\"TEXT\"; a quote in the text is \\\"";
            return Err(ParseError::at(text, at + word.len(), message, help));
        };
        let behind = at + 1 + length + 1;
        if length + 1 < rest.len() {
            let message = "invalid fetch argument: there is something behind the string";
            let help = "a quote in the text is \\\"";
            return Err(ParseError::at(text, behind, message, help));
        }
        return Ok(Base::Text(unescaped(&rest[..length], &['"', '\\'])));
    }
    let value = match word.strip_prefix('+') {
        Some(signed) => number::signed(signed).map(i64::cast_unsigned),
        None if word.starts_with('-') => number::signed(word).map(i64::cast_unsigned),
        None => number::unsigned(word),
    };
    let value = value.map_err(|why| number::bad(text, at, "immediate value", &why))?;
    Ok(Base::Immediate(value))
}

/// Returns the length of the text before the first `quote` that is not escaped by a backslash.
pub(crate) fn closing_quote(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return Some(at);
        }
    }
    None
}

/// Removes the backslash before these characters, and keeps other backslashes.
pub(crate) fn unescaped(text: &str, escaped: &[char]) -> String {
    let mut result = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            result.push(c);
            continue;
        }
        match chars.next() {
            Some(next) if escaped.contains(&next) => result.push(next),
            Some(next) => result.extend(['\\', next]),
            None => result.push('\\'),
        }
    }
    result
}

/// Parses `NAME`, then any number of `.NAME`, `->NAME`, `.0` and `[INDEX]`. The first name may be
/// `::NAME`, `'FILE'::NAME` or `NAME#INDEX`, and each one `SCOPE::NAME`.
fn variable(text: &str, at: usize, word: &str) -> Result<Base, ParseError> {
    let word_end = |from: usize| {
        word[from..]
            .find(|c| !is_word(c))
            .map_or(word.len(), |n| from + n)
    };
    // The end of a word with its template arguments, if it is a scope.
    let part_end = |from: usize| {
        let end = word_end(from);
        match end > from {
            true => end + template_width(&word[end..]).unwrap_or(0),
            false => end,
        }
    };
    // The end of a name with its scopes, and true if its last word is present.
    let name_end = |from: usize| {
        let mut end = part_end(from);
        let mut whole = end > from;
        while whole && word[end..].starts_with("::") {
            let behind = end + 2;
            end = part_end(behind);
            whole = end > behind;
        }
        (end, whole)
    };
    let bad = |offset: usize, why: &str| {
        let message = format!("invalid variable: {why}");
        let help = "write VARIABLE, and behind it ->MEMBER, .MEMBER or [INDEX]";
        Err(ParseError::at(text, at + offset, message, help))
    };
    let mut start = 0;
    if let Some(inside) = word.strip_prefix('\'') {
        start = match inside.find('\'') {
            Some(length) => length + 2,
            None => return bad(word.len(), "the quote is not closed"),
        };
        if !word[start..].starts_with("::") {
            return bad(start, "`::` and a name are missing behind the file");
        }
    }
    if word[start..].starts_with("::") {
        start += 2;
    }
    let (mut done, whole) = name_end(start);
    if !whole || word[start..].starts_with(|c: char| c.is_ascii_digit()) {
        return bad(done, "the name is missing");
    }
    if word[done..].starts_with('#') {
        let end = word_end(done + 1);
        let digits = &word[done + 1..end];
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return bad(done + 1, "the number of the parameter is missing");
        }
        done = end;
    }
    while done < word.len() {
        let rest = &word[done..];
        if let Some(inside) = rest.strip_prefix('[') {
            let Some(close) = inside.find(']') else {
                return bad(word.len(), "the bracket is not closed");
            };
            if let Err(why) = number::unsigned(&inside[..close]) {
                return bad(done + 1, &format!("the index is not a number, {why}"));
            }
            done += close + 2;
            continue;
        }
        let operator = match rest {
            _ if rest.starts_with("->") => 2,
            _ if rest.starts_with('.') => 1,
            _ => return bad(done, "it goes on with something else than a member"),
        };
        let (member, whole) = name_end(done + operator);
        if !whole {
            return bad(member, "the member's name is missing");
        }
        done = member;
    }
    Ok(Base::Variable(word.to_string()))
}

impl FromStr for Fetch {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text, 0, text.len())
    }
}
