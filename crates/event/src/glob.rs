//! Shell-style patterns over symbol names.

/// Reports whether the whole of `name` matches `pattern`.
///
/// `*` matches any number of characters, `?` one, `[abc]` and `[a-z]` one of a set, `[!a-z]` and
/// `[^a-z]` one that is not in the set; `]` right after the opening bracket is a member, `-` first
/// or last is literal. A backslash makes the next character literal. A `[` without its `]` and a
/// backslash at the end are literal.
///
/// Takes at most `pattern.len() * name.len()` steps and no memory: after a mismatch only the last
/// `*` is retried, which suffices because an earlier one could only give up characters that the
/// later one can take as well (R. Cox, "Glob Matching Can Be Simple And Fast Too").
pub fn glob_match(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to resume after a mismatch: after the last `*`, which then takes one more character.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern[p..].starts_with('*') {
            p += 1;
            retry = Some((p, n));
            continue;
        }
        let matched = match name[n..].chars().next() {
            None if p == pattern.len() => return true,
            // A `*` takes characters only: with none left, no retry can help.
            None => return false,
            Some(c) => match one(&pattern[p..]) {
                Some((token, width)) if token.accepts(c) => Some((width, c.len_utf8())),
                _ => None,
            },
        };
        match (matched, retry) {
            (Some((in_pattern, in_name)), _) => {
                p += in_pattern;
                n += in_name;
            }
            (None, Some((after_star, taken_to))) => {
                let taken = name[taken_to..].chars().next().map_or(0, char::len_utf8);
                p = after_star;
                n = taken_to + taken;
                retry = Some((p, n));
            }
            (None, None) => return false,
        }
    }
}

/// Returns the width in bytes of the set at the start of `pattern`, if there is one.
pub(crate) fn set_width(pattern: &str) -> Option<usize> {
    match one(pattern) {
        Some((Token::Set { .. }, width)) => Some(width),
        _ => None,
    }
}

/// Element of a pattern that one character of the name is compared with.
enum Token<'a> {
    Any,
    Literal(char),
    Set { members: &'a str, negated: bool },
}

impl Token<'_> {
    fn accepts(&self, c: char) -> bool {
        match *self {
            Token::Any => true,
            Token::Literal(l) => l == c,
            Token::Set { members, negated } => set_contains(members, c) != negated,
        }
    }
}

/// The first token of `pattern`, which does not start with `*`, and its width in bytes.
fn one(pattern: &str) -> Option<(Token<'_>, usize)> {
    let first = pattern.chars().next()?;
    Some(match first {
        '?' => (Token::Any, 1),
        '[' => set(pattern).unwrap_or((Token::Literal('['), 1)),
        '\\' => match pattern[1..].chars().next() {
            Some(escaped) => (Token::Literal(escaped), 1 + escaped.len_utf8()),
            None => (Token::Literal('\\'), 1),
        },
        c => (Token::Literal(c), c.len_utf8()),
    })
}

/// The set at the start of `pattern`, or `None` if it is not closed.
fn set(pattern: &str) -> Option<(Token<'_>, usize)> {
    let negated = pattern[1..].starts_with(['!', '^']);
    let start = if negated { 2 } else { 1 };
    let mut chars = pattern[start..].char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ']' if at > 0 => {
                let members = &pattern[start..start + at];
                return Some((Token::Set { members, negated }, start + at + 1));
            }
            '\\' => {
                chars.next();
            }
            _ => {}
        }
    }
    None
}

/// Reports whether the inside of a set, without brackets and `!`, contains `c`.
fn set_contains(members: &str, c: char) -> bool {
    let mut rest = members;
    while let Some((low, width)) = member(rest) {
        rest = &rest[width..];
        // `a-z` is a range unless nothing follows the `-`.
        let range = rest.strip_prefix('-').and_then(member);
        if let Some((high, width)) = range {
            rest = &rest[1 + width..];
            if (low..=high).contains(&c) {
                return true;
            }
        } else if low == c {
            return true;
        }
    }
    false
}

/// The first, perhaps escaped, character and its width in bytes.
fn member(text: &str) -> Option<(char, usize)> {
    let first = text.chars().next()?;
    match (first, text[first.len_utf8()..].chars().next()) {
        ('\\', Some(escaped)) => Some((escaped, 1 + escaped.len_utf8())),
        _ => Some((first, first.len_utf8())),
    }
}
