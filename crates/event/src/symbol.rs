//! Reading symbols as a demangler prints them: with blanks, colons, brackets and operators.
//!
//! ```text
//! void ns::Foo<int (*)(char)>::operator()<A>(A&&) const [clone .cold]
//!     ^ blank at depth 0        ^ not a bracket        ^ belongs to it
//! ```

use crate::aggregation::Function;
use crate::glob::set_width;

/// A character that is not part of an operator's name, and its position.
struct Spot {
    /// Byte position in the text.
    at: usize,
    c: char,
    /// Number of brackets open around it; an opening bracket itself is outside.
    depth: usize,
    /// The character is a backslash, together with the one that it escapes.
    escaped: bool,
}

/// Walks over a symbol, keeping count of brackets.
///
/// `operator<`, `operator->`, `operator()` and so on are skipped as one word, and so are `->` and,
/// outside all brackets, a set of a pattern (`[<>]`), which only look like brackets.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// Operators whose names have brackets, plus signs, stars or colons in them; longer ones first.
const OPERATORS: [&str; 26] = [
    "<=>", "<<=", ">>=", "->*", "\"\"", "()", "[]", "<<", ">>", "<=", ">=", "->", "++", "+=", "*=",
    "&&", "&=", "||", "==", "!=", "<", ">", "+", "*", "&", "-",
];

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Scanner {
            text,
            at: 0,
            depth: 0,
        }
    }

    /// Length in bytes of the operator's name that starts here, blanks included; 0 if none does.
    fn operator(&self) -> usize {
        let before = self.text[..self.at].chars().next_back();
        let Some(rest) = self.text[self.at..].strip_prefix("operator") else {
            return 0;
        };
        if before.is_some_and(is_word) {
            return 0;
        }
        let Some(token) = OPERATORS.iter().find(|token| rest.starts_with(**token)) else {
            return 0;
        };
        // A demangler separates `operator<` and the template arguments by a blank.
        let blank = rest[token.len()..].starts_with(" <") as usize;
        "operator".len() + token.len() + blank
    }
}

impl Iterator for Scanner<'_> {
    type Item = Spot;

    fn next(&mut self) -> Option<Spot> {
        loop {
            let operator = self.operator();
            if operator == 0 {
                break;
            }
            self.at += operator;
        }
        let at = self.at;
        let mut chars = self.text[at..].chars();
        let c = chars.next()?;
        self.at += c.len_utf8();
        let mut spot = Spot {
            at,
            c,
            depth: self.depth,
            escaped: false,
        };
        match c {
            '\\' => {
                if let Some(escaped) = chars.next() {
                    self.at += escaped.len_utf8();
                }
                spot.escaped = true;
            }
            '[' if self.depth == 0 => match set_width(&self.text[at..]) {
                Some(width) => self.at = at + width,
                None => self.depth += 1,
            },
            '(' | '<' | '[' | '{' => self.depth += 1,
            '>' if self.text[..at].ends_with('-') => {}
            ')' | '>' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Some(spot)
    }
}

/// Returns the width of the template arguments at the start of `text` if they belong to a scope:
/// of `<int, long>` in `<int, long>::count`.
pub fn template_width(text: &str) -> Option<usize> {
    if !text.starts_with('<') {
        return None;
    }
    let mut scanner = Scanner::new(text);
    while scanner.next().is_some() && scanner.depth > 0 {}
    let is_closed = scanner.depth == 0;
    (is_closed && text[scanner.at..].starts_with("::")).then_some(scanner.at)
}

/// True if a bracket is never closed.
pub(crate) fn is_open(symbol: &str) -> bool {
    let mut scanner = Scanner::new(symbol);
    while scanner.next().is_some() {}
    scanner.depth != 0
}

/// Returns the end of the symbol at the start of `text`, in bytes: the end of the text, or the
/// blank before something that is not part of it.
pub(crate) fn symbol_end(text: &str) -> usize {
    for spot in Scanner::new(text) {
        if !spot.c.is_whitespace() || spot.escaped {
            continue;
        }
        let before = &text[..spot.at];
        let rest = text[spot.at..].trim_start();
        let ends = match spot.depth {
            0 => rest.is_empty() || starts_argument(rest) || !continues(before, rest),
            // In brackets, which may never be closed, it ends only before text that no symbol
            // contains.
            _ => rest.is_empty() || starts_dollar(rest),
        };
        if ends {
            return spot.at;
        }
    }
    text.len()
}

/// True for text that can only be an argument: `$...`, `%...`, `@...`, `+8(...)`, `\1`, `NAME=...`,
/// `if ...`
pub(crate) fn starts_argument(rest: &str) -> bool {
    let mut chars = rest.chars();
    match chars.next() {
        Some('$' | '%' | '@') => true,
        Some('+' | '-') => !rest.starts_with("->"),
        Some('\\') => chars
            .next()
            .is_some_and(|c| c.is_ascii_digit() || matches!(c, '"' | '-' | '+')),
        _ if rest.starts_with('=') => true,
        _ => {
            let word = rest.split(char::is_whitespace).next();
            word == Some("if") || assigned(rest).is_some()
        }
    }
}

/// True for `$...` and `NAME=$...`
fn starts_dollar(rest: &str) -> bool {
    rest.starts_with('$') || assigned(rest).is_some_and(|value| value.starts_with('$'))
}

/// Returns the text after `NAME=`, if `text` starts that way.
pub(crate) fn assigned(text: &str) -> Option<&str> {
    let name = text.find(|c| !is_word(c)).filter(|end| *end > 0)?;
    let value = text[name..].strip_prefix('=')?;
    (!value.starts_with('=')).then_some(value)
}

/// Returns the function of the aggregate at the start of `text`: its name and a parenthesis, maybe
/// with blanks between, which is an error.
pub(crate) fn starts_aggregate(text: &str) -> Option<Function> {
    let name = text.find(|c| !is_word(c))?;
    let function = Function::from_name(&text[..name])?;
    let behind = text[name..].trim_start();
    behind.starts_with('(').then_some(function)
}

/// True if an aggregate, a call stack with its size or the word `by` starts at `rest`, after a
/// blank outside all brackets.
///
/// No demangler prints a return type before `sum(`, as only templates have one (`int
/// sum<int>(int)`); but `operator sum()` is a conversion and `transaction clone for sum(int)` a
/// function.
fn starts_statistics(before: &str, rest: &str) -> bool {
    let is_by = || rest.split(char::is_whitespace).next() == Some("by");
    (starts_aggregate(rest).is_some() || rest.starts_with("stack(") || is_by())
        && !matches!(last_word(before), "operator" | "for")
}

/// Returns the last word of `text`, ignoring blanks at the end.
fn last_word(text: &str) -> &str {
    let mut words = text.trim_end().rsplit(|c| !is_word(c));
    words.next().unwrap_or("")
}

/// True if a symbol continues with `rest` after a blank outside all brackets.
fn continues(before: &str, rest: &str) -> bool {
    let word = rest.split(|c: char| !is_word(c)).next().unwrap_or("");
    let qualifier = matches!(word, "const" | "volatile" | "noexcept");
    if qualifier || rest.starts_with(['[', '(']) {
        return true;
    }
    if rest.starts_with('&') {
        return has_parameters(before);
    }
    if rest.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    if starts_statistics(before, rest) {
        return false;
    }
    // `operator new(...)`, `operator unsigned long() const`: the name extends to the parenthesis.
    let name = before.rsplit("::").next().unwrap_or(before);
    let in_operator = name.split_whitespace().any(|word| word == "operator");
    if in_operator && !name.contains('(') {
        return true;
    }
    // `void f<int>(int)`: a return type comes first, and the parameters are still to come.
    let end = argument_start(rest);
    !has_parameters(before) && has_parameters(&rest[..end])
}

/// Returns the start of the first argument in `text`, or the end of `text`.
fn argument_start(text: &str) -> usize {
    let end = text
        .char_indices()
        .filter(|(_, c)| c.is_whitespace())
        .find(|(at, _)| starts_argument(text[*at..].trim_start()))
        .map_or(text.len(), |(at, _)| at);
    Scanner::new(&text[..end])
        .filter(|spot| spot.c.is_whitespace() && spot.depth == 0)
        .find(|spot| starts_statistics(&text[..spot.at], text[spot.at..].trim_start()))
        .map_or(end, |spot| spot.at)
}

/// True if a parenthesis opens outside all other brackets.
fn has_parameters(text: &str) -> bool {
    Scanner::new(text).any(|spot| spot.c == '(' && spot.depth == 0)
}

/// Finds the last `+` of a symbol that can only separate it from its offset.
pub(crate) fn offset_sign(symbol: &str) -> Option<usize> {
    Scanner::new(symbol)
        .filter(|spot| spot.c == '+' && spot.depth == 0)
        .last()
        .map(|spot| spot.at)
}

/// Finds the first single `:` outside all brackets.
pub(crate) fn lone_colon(symbol: &str) -> Option<usize> {
    let mut spots = Scanner::new(symbol).filter(|spot| !spot.escaped).peekable();
    while let Some(spot) = spots.next() {
        if spot.c == ':'
            && spots
                .next_if(|next| next.c == ':' && next.at == spot.at + 1)
                .is_none()
            && spot.depth == 0
        {
            return Some(spot.at);
        }
    }
    None
}

/// True if `pattern` can match more than one name; see `EventSpec::is_glob`.
pub(crate) fn has_wildcards(pattern: &str) -> bool {
    Scanner::new(pattern).any(|spot| match spot.c {
        _ if spot.escaped => false,
        '?' => true,
        '[' if spot.depth == 0 => is_wildcard_set(&pattern[spot.at..]),
        '*' if spot.depth == 0 => !pattern[spot.at + 1..].starts_with(char::is_whitespace),
        '*' => stands_for_types(&pattern[..spot.at], &pattern[spot.at + 1..]),
        _ => false,
    })
}

/// True for a set, but not for text that demanglers put into square brackets.
fn is_wildcard_set(text: &str) -> bool {
    set_width(text).is_some() && !text.starts_with("[abi:") && !text.starts_with("[clone ")
}

/// True if a `*` between brackets is a wildcard, as in `f(*)` and `vector<*, int>`, and not a
/// pointer, as in `f(int*)`, `f(int (*)(int))` and Rust's `f<*const u8>`.
fn stands_for_types(before: &str, after: &str) -> bool {
    if after.starts_with("const ") || after.starts_with("mut ") {
        return false;
    }
    let outer = before.trim_end();
    match outer.chars().next_back() {
        Some('(') => !outer[..outer.len() - 1].ends_with(char::is_whitespace),
        Some('<' | ',') => true,
        _ => false,
    }
}

/// True for letters, digits and underscores.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
