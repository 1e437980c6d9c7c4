//! The parser: object, place, arguments, from left to right.

use crate::argument::{ArgRegister, FetchArg};
use crate::error::ParseError;
use crate::spec::{EventSpec, ObjectRef, Place};
use crate::symbol::{SymbolEnd, assigned, is_word, lone_colon, offset_sign, symbol_end};

/// The help that fits most errors about the whole form.
const FORM: &str = "write LIBRARY:SYMBOL, PATH:SYMBOL, or :SYMBOL for the main program";
/// The help for errors about arguments.
const ARGUMENTS: &str = "an argument is $arg1 to $arg6, or NAME=$arg1 to give it a name";

/// Parses a whole event.
pub(crate) fn event(text: &str) -> Result<EventSpec, ParseError> {
    let end = text.trim_end().len();
    let start = end - text[..end].trim_start().len();
    if start == end {
        return Err(ParseError::at(text, 0, "the event is empty", FORM));
    }
    let colon = separator(text, start, end)?;
    let object = object(text, start, colon)?;
    let (place, arguments_at) = place(text, colon + 1, end)?;
    let arguments = arguments(text, arguments_at, end)?;
    Ok(EventSpec {
        text: text.to_string(),
        object,
        place,
        arguments,
    })
}

/// The first colon that is not part of `::`.
fn separator(text: &str, start: usize, end: usize) -> Result<usize, ParseError> {
    let main = |name: &str| format!("write :{name} for the main program, or LIBRARY:{name}");
    if text[start..end].starts_with("::") {
        let name = first_word(text[start..end].trim_start_matches(':'));
        return Err(ParseError::at(
            text,
            start,
            "`::` does not part a file from a symbol",
            main(if name.is_empty() { "ns::name" } else { name }),
        ));
    }
    let mut at = start;
    while let Some(found) = text[at..end].find(':') {
        let colon = at + found;
        let run = text[colon..end].bytes().take_while(|b| *b == b':').count();
        if run % 2 == 1 {
            return Ok(colon);
        }
        at = colon + run;
    }
    let word = first_word(&text[start..end]);
    let help = if word.contains('/') {
        FORM.to_string()
    } else {
        main(word)
    };
    Err(ParseError::at(
        text,
        start + word.len(),
        "there is no colon between a file and a symbol",
        help,
    ))
}

/// What stands before the colon.
fn object(text: &str, start: usize, colon: usize) -> Result<ObjectRef, ParseError> {
    let object = &text[start..colon];
    if object.is_empty() {
        return Ok(ObjectRef::Main);
    }
    let is_path = object.contains('/');
    let stray = if is_path {
        object.find(" $")
    } else {
        object.find(char::is_whitespace)
    };
    if let Some(blank) = stray {
        return Err(ParseError::at(
            text,
            start + blank,
            "there is no colon before the first blank",
            FORM,
        ));
    }
    if is_path {
        return Ok(ObjectRef::Path(object.to_string()));
    }
    if let Some(wildcard) = object.find(['*', '?']) {
        return Err(ParseError::at(
            text,
            start + wildcard,
            "a library is not named by a pattern",
            "the start of its file name is enough, such as libpython for libpython3.11.so.1.0",
        ));
    }
    Ok(ObjectRef::Name(object.to_string()))
}

/// What stands behind the colon, and where the arguments start.
fn place(text: &str, start: usize, end: usize) -> Result<(Place, usize), ParseError> {
    let rest = &text[start..end];
    if rest.is_empty() || rest.starts_with(char::is_whitespace) {
        return Err(ParseError::at(
            text,
            start,
            "there is no symbol after the colon",
            FORM,
        ));
    }
    if rest.starts_with('$') || assigned(rest).is_some_and(|value| value.starts_with('$')) {
        return Err(ParseError::at(
            text,
            start,
            "there is no symbol before the argument",
            FORM,
        ));
    }
    if rest.starts_with("0x") || rest.starts_with("0X") {
        let word = first_word(rest);
        let offset = number(text, start, word)?;
        return Ok((Place::FileOffset(offset), start + word.len()));
    }
    if rest.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(ParseError::at(
            text,
            start,
            "a symbol does not start with a digit",
            "a file offset starts with 0x",
        ));
    }
    let width = match symbol_end(rest) {
        SymbolEnd::Here(width) => width,
        SymbolEnd::Unexpected { end: width, word } => {
            lone(text, start, width)?;
            let found = first_word(&rest[word..]);
            return Err(match foreign_form(&text[..start]) {
                Some(help) if found.contains(':') => {
                    ParseError::at(text, start + word, "the file does not come first", help)
                }
                _ => unexpected(text, start + word, found),
            });
        }
    };
    lone(text, start, width)?;
    let symbol = &rest[..width];
    let (pattern, offset) = match offset_sign(symbol) {
        Some(0) => {
            return Err(ParseError::at(
                text,
                start,
                "there is no symbol before the offset",
                FORM,
            ));
        }
        Some(sign) if symbol[..sign].ends_with(char::is_whitespace) => {
            return Err(blank_before_offset(text, start + sign));
        }
        Some(sign) => {
            let offset = number(text, start + sign + 1, &symbol[sign + 1..])?;
            (&symbol[..sign], offset)
        }
        None => (symbol, 0),
    };
    let place = Place::Symbol {
        pattern: pattern.to_string(),
        offset,
    };
    Ok((place, start + width))
}

/// Refuses a second colon, which other tools' ways to write an event have.
fn lone(text: &str, start: usize, width: usize) -> Result<(), ParseError> {
    let Some(colon) = lone_colon(&text[start..start + width]) else {
        return Ok(());
    };
    let help = foreign_form(&text[..start]).unwrap_or(FORM);
    Err(ParseError::at(
        text,
        start + colon,
        "there is a second colon",
        help,
    ))
}

/// What to change in an event that is written for another tool, by what stands up to the colon.
fn foreign_form(object: &str) -> Option<&'static str> {
    Some(match object.trim() {
        "uprobe:" => "leave out `uprobe:`",
        "uretprobe:" | "r:" => "only entries are recorded; write PATH:SYMBOL or PATH:0xOFFSET",
        "usdt:" => "static probes are not recorded; write PATH:SYMBOL",
        "p:" => "leave out `p:` and the event's name; write PATH:SYMBOL or PATH:0xOFFSET",
        _ => return None,
    })
}

/// The error for a word behind the symbol that is no argument.
fn unexpected(text: &str, at: usize, word: &str) -> ParseError {
    if let Some(value) = assigned(word) {
        let value_at = at + word.len() - value.len();
        return bad_source(text, value_at, value);
    }
    if word.starts_with('+') {
        return blank_before_offset(text, at);
    }
    bad_source(text, at, word)
}

/// The error for `SYMBOL +OFFSET`.
fn blank_before_offset(text: &str, at: usize) -> ParseError {
    let help = "write SYMBOL+OFFSET in one word";
    ParseError::at(text, at, "there is a blank before the offset", help)
}

/// Parses the list of arguments, blanks between them.
fn arguments(text: &str, start: usize, end: usize) -> Result<Vec<FetchArg>, ParseError> {
    let mut arguments: Vec<FetchArg> = Vec::new();
    let mut at = start;
    loop {
        at = end - text[at..end].trim_start().len();
        let word = first_word(&text[at..end]);
        if word.is_empty() {
            return Ok(arguments);
        }
        let (argument, name_at) = argument(text, at, word)?;
        if arguments.iter().any(|other| other.name == argument.name) {
            return Err(ParseError::at(
                text,
                name_at,
                format!("there are two arguments with the name {}", argument.name),
                "write NAME=$argN with another name",
            ));
        }
        if arguments.len() == MAX_ARGUMENTS {
            return Err(ParseError::at(
                text,
                at,
                format!("there are more than {MAX_ARGUMENTS} arguments"),
                "record each register once",
            ));
        }
        arguments.push(argument);
        at += word.len();
    }
}

/// As many as there are registers.
const MAX_ARGUMENTS: usize = ArgRegister::ALL.len();

/// Parses one argument that stands at `at`.
fn argument(text: &str, at: usize, word: &str) -> Result<(FetchArg, usize), ParseError> {
    let (name, source_at) = match word.find('=') {
        Some(sign) => (Some(&word[..sign]), sign + 1),
        None => (None, 0),
    };
    if let Some(name) = name {
        identifier(text, at, name)?;
    }
    let value = &word[source_at..];
    let source = ArgRegister::ALL
        .into_iter()
        .find(|register| value.strip_prefix('$') == Some(register.default_name()))
        .ok_or_else(|| bad_source(text, at + source_at, value))?;
    let name = name.unwrap_or(source.default_name()).to_string();
    Ok((FetchArg { name, source }, at))
}

/// Refuses names that are no identifiers of C.
fn identifier(text: &str, at: usize, name: &str) -> Result<(), ParseError> {
    let bad = name
        .char_indices()
        .find(|(i, c)| !(is_word(*c) && c.is_ascii()) || (*i == 0 && c.is_ascii_digit()));
    let (bad_at, message) = match bad {
        Some((i, c)) => (i, format!("`{c}` cannot stand there in an argument's name")),
        None if name.is_empty() => (0, "the argument's name is missing".to_string()),
        None => return Ok(()),
    };
    let help = "a name has letters, digits and underscores, and no digit first";
    Err(ParseError::at(text, at + bad_at, message, help))
}

/// The error for a value that is none of `$arg1` to `$arg6`.
fn bad_source(text: &str, at: usize, value: &str) -> ParseError {
    let (message, help) = match value {
        "" => ("the argument's value is missing".to_string(), ARGUMENTS),
        "$retval" => (
            "$retval is not known when a function is entered".to_string(),
            ARGUMENTS,
        ),
        _ if value.strip_prefix("$arg").is_some_and(is_number) => (
            format!("there is no {value}"),
            "six arguments are passed in registers: $arg1 to $arg6",
        ),
        _ if value.starts_with("$arg") && value.contains(':') => (
            "an argument has no type".to_string(),
            "all are recorded as unsigned 64-bit numbers; leave out the colon and the type",
        ),
        _ if value.starts_with('%') => (
            "registers are named by the argument they carry".to_string(),
            "$arg1 is rdi, $arg2 rsi, $arg3 rdx, $arg4 rcx, $arg5 r8, $arg6 r9",
        ),
        _ => (format!("`{value}` is not an argument"), ARGUMENTS),
    };
    let at = match value.find(':') {
        Some(colon) if value.starts_with("$arg") => at + colon,
        _ => at,
    };
    ParseError::at(text, at, message, help)
}

/// Parses a decimal number, or a hexadecimal one after `0x`.
fn number(text: &str, at: usize, word: &str) -> Result<u64, ParseError> {
    let help = "write a decimal number, or 0x and hexadecimal digits";
    let (digits, radix) = match word.strip_prefix("0x").or(word.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (word, 10),
    };
    let digits_at = at + word.len() - digits.len();
    if digits.is_empty() {
        return Err(ParseError::at(
            text,
            digits_at,
            "the offset is missing",
            help,
        ));
    }
    if let Some((bad, c)) = digits.char_indices().find(|(_, c)| !c.is_digit(radix)) {
        let message = format!("`{c}` is not a digit of an offset");
        return Err(ParseError::at(text, digits_at + bad, message, help));
    }
    u64::from_str_radix(digits, radix)
        .map_err(|_| ParseError::at(text, at, "the offset does not fit into 64 bits", ""))
}

/// Whether there are only digits, and at least one.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// The text up to the first blank.
fn first_word(text: &str) -> &str {
    text.split(char::is_whitespace).next().unwrap_or("")
}
