//! The format of a marker: the names of its arguments, and how they are printed.

use std::fmt;

/// A part of a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Literal text; `%%` is one `%`.
    Text(String),
    /// An argument; the arguments for its `*` precede it.
    Value(Value),
    /// `%m`: the message for `errno`, which takes no argument.
    Errno,
}

/// Format specification of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Text from the `%` on.
    pub text: String,
    /// Flags between the `%` and the width.
    pub flags: Flags,
    /// Minimum width, bytes.
    pub width: Option<Amount>,
    /// Precision, after the `.`: number of digits, or maximum length of a string in bytes.
    pub precision: Option<Amount>,
    /// The conversion letter: `d`, `s`. For a wide character it is `C`, for a wide string `S`.
    pub letter: char,
    /// Interpretation of the argument.
    pub shown: Shown,
    /// Size of the argument that the conversion expects, bytes; `None` if unspecified.
    pub bytes: Option<u8>,
}

/// A width or a precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// A literal number.
    Number(u32),
    /// `*`: taken from the argument before.
    Argument,
}

/// Flags between the `%` and the width. `'` and `I` have no effect in the locale in which
/// programs start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// `-`: pads on the right.
    pub left: bool,
    /// `+`: prints the sign of positive numbers.
    pub plus: bool,
    /// Space: prints a space in place of a plus sign.
    pub blank: bool,
    /// `#`: the alternate form, such as `0x1f`.
    pub alternate: bool,
    /// `0`: pads numbers with zeros.
    pub zero: bool,
}

/// One conversion, such as `fd=%d`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    /// The word before the conversion, a name.
    pub name: Option<String>,
    /// Text from the `%` on.
    pub text: String,
    /// Interpretation of the argument.
    pub shown: Shown,
    /// Size of the argument that the conversion expects, bytes; `None` if unspecified.
    pub bytes: Option<u8>,
}

/// Interpretation of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// `%d`, `%i`, and widths given by `*`.
    Signed,
    /// `%u`, `%o`, and wide characters (`%lc`).
    Unsigned,
    /// `%x`, `%X`, `%b`.
    Hexadecimal,
    /// `%p`
    Pointer,
    /// `%c`
    Character,
    /// `%s`: the string at the address.
    Text,
    /// `%f`, `%e`, `%g`, `%a`.
    Float,
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        f.write_str(&self.text)
    }
}

/// Returns the conversions of a format, in the order of the arguments.
///
/// # Errors
/// The first conversion that printf does not know, as written.
pub fn conversions(format: &str) -> Result<Vec<Conversion>, String> {
    let mut found = Vec::new();
    let mut before = String::new();
    for part in parts(format)? {
        let value = match part {
            Part::Text(text) => {
                before = text;
                continue;
            }
            Part::Value(value) => Some(value),
            Part::Errno => None,
        };
        let name = name(&std::mem::take(&mut before));
        let Some(value) = value else {
            continue;
        };
        for _ in value.stars() {
            found.push(Conversion {
                name: None,
                text: "%*".to_owned(),
                shown: Shown::Signed,
                bytes: Some(4),
            });
        }
        found.push(Conversion {
            name,
            text: value.text,
            shown: value.shown,
            bytes: value.bytes,
        });
    }
    Ok(found)
}

/// Splits a format into its parts, in order.
///
/// # Errors
/// The first conversion that printf does not know, as written.
pub fn parts(format: &str) -> Result<Vec<Part>, String> {
    let mut found = Vec::new();
    let mut rest = format;
    let mut before = String::new();
    while let Some(percent) = rest.find('%') {
        before.push_str(&rest[..percent]);
        let text = &rest[percent..];
        if let Some(behind) = text.strip_prefix("%%") {
            before.push('%');
            rest = behind;
            continue;
        }
        let (part, length) = conversion(text)?;
        if !before.is_empty() {
            found.push(Part::Text(std::mem::take(&mut before)));
        }
        found.push(part);
        rest = &text[length..];
    }
    before.push_str(rest);
    if !before.is_empty() {
        found.push(Part::Text(before));
    }
    Ok(found)
}

impl Value {
    /// Returns its `*` amounts.
    fn stars(&self) -> impl Iterator<Item = Amount> {
        let both = [self.width, self.precision].into_iter().flatten();
        both.filter(|amount| *amount == Amount::Argument)
    }
}

/// Returns the name before a conversion, as in `fd=`, `fd `, `fd: `, `at 0x`; quotes and
/// brackets right before the conversion are skipped.
fn name(before: &str) -> Option<String> {
    let mut text = before.trim_end_matches(['"', '\'', '<', '(', '[', '{', '#']);
    if let Some(shorter) = text.strip_suffix("0x").or(text.strip_suffix("0X"))
        && !shorter.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
    {
        text = shorter.trim_end_matches(['"', '\'', '<', '(', '[', '{', '#']);
    }
    let text = text.trim_end();
    let text = text.strip_suffix(['=', ':']).unwrap_or(text).trim_end();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let start = text.len() - text.chars().rev().take_while(|c| is_part(*c)).count();
    let word = &text[start..];
    (!word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit())).then(|| word.to_owned())
}

/// Parses the conversion at the start of `text`; returns it and its length in bytes.
fn conversion(text: &str) -> Result<(Part, usize), String> {
    let unknown = || {
        let end = text.char_indices().nth(4).map_or(text.len(), |(at, _)| at);
        format!("`{}` is no conversion", &text[..end])
    };
    let mut rest = &text[1..];
    let flags = flags(&mut rest);
    let width = amount(&mut rest);
    let precision = rest.strip_prefix('.').map(|behind| {
        rest = behind;
        // A precision without a number is 0.
        amount(&mut rest).unwrap_or(Amount::Number(0))
    });
    let lengths = [
        ("hh", Some(1)),
        ("h", Some(2)),
        ("ll", Some(8)),
        ("l", Some(8)),
        ("q", Some(8)),
        ("j", Some(8)),
        ("z", Some(8)),
        ("t", Some(8)),
        ("L", None),
    ];
    let given = lengths.iter().find(|(length, _)| rest.starts_with(length));
    let bytes = given.map_or(Some(4), |(_, bytes)| *bytes);
    rest = &rest[given.map_or(0, |(length, _)| length.len())..];
    let letter = rest.chars().next().ok_or_else(unknown)?;
    let (letter, shown, bytes) = match (letter, given) {
        ('d' | 'i', _) => (letter, Shown::Signed, bytes),
        ('u' | 'o', _) => (letter, Shown::Unsigned, bytes),
        ('x' | 'X' | 'b' | 'B', _) => (letter, Shown::Hexadecimal, bytes),
        ('C', _) | ('c', Some(("l", _))) => ('C', Shown::Unsigned, Some(4)),
        ('c', _) => (letter, Shown::Character, None),
        // Wide strings are recorded as pointers.
        ('S', _) | ('s', Some(_)) => ('S', Shown::Pointer, Some(8)),
        ('s', None) => (letter, Shown::Text, Some(8)),
        ('p', _) => (letter, Shown::Pointer, Some(8)),
        ('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'a' | 'A', _) => (letter, Shown::Float, None),
        ('m', _) => return Ok((Part::Errno, text.len() - rest.len() + 1)),
        _ => return Err(unknown()),
    };
    let length = text.len() - rest.len() + 1;
    let value = Value {
        text: text[..length].to_owned(),
        flags,
        width,
        precision,
        letter,
        shown,
        bytes,
    };
    Ok((Part::Value(value), length))
}

/// Takes the flags from the front.
fn flags(rest: &mut &str) -> Flags {
    let mut flags = Flags::default();
    while let Some(flag) = rest.chars().next() {
        match flag {
            '-' => flags.left = true,
            '+' => flags.plus = true,
            ' ' => flags.blank = true,
            '#' => flags.alternate = true,
            '0' => flags.zero = true,
            '\'' | 'I' => {}
            _ => break,
        }
        *rest = &rest[1..];
    }
    flags
}

/// Takes a number or `*` from the front; a number that is too large becomes the maximum.
fn amount(rest: &mut &str) -> Option<Amount> {
    if let Some(behind) = rest.strip_prefix('*') {
        *rest = behind;
        return Some(Amount::Argument);
    }
    let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &rest[..rest.len() - behind.len()];
    *rest = behind;
    (!digits.is_empty()).then(|| Amount::Number(digits.parse().unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(format: &str) -> Vec<String> {
        let all = conversions(format).unwrap_or_else(|error| panic!("{format}: {error}"));
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_stand_before_conversions() {
        for (format, expected) in [
            ("", vec![]),
            ("no arguments, 100%%", vec![]),
            ("%d %p", vec!["%d", "%p"]),
            ("fd=%d buf=%p", vec!["fd=%d", "buf=%p"]),
            ("fd %d, buf: %p", vec!["fd=%d", "buf=%p"]),
            ("req->len=%zu", vec!["len=%zu"]),
            ("at 0x%lx", vec!["at=%lx"]),
            ("name=\"%s\" (%5.2f)", vec!["name=%s", "%5.2f"]),
            ("[%-08lld]", vec!["%-08lld"]),
            ("%% x=%hhu%%y=%c", vec!["x=%hhu", "y=%c"]),
            ("text=%.*s", vec!["%*", "text=%.*s"]),
            ("%*d", vec!["%*", "%*d"]),
            ("why=%m n=%d", vec!["n=%d"]),
            ("1=%d", vec!["%d"]),
            ("%s%s", vec!["%s", "%s"]),
            ("%*.*f", vec!["%*", "%*", "%*.*f"]),
            ("%% %m%%: x %d", vec!["x=%d"]),
        ] {
            assert_eq!(shown(format), expected, "{format}");
        }
        for format in ["%", "%y", "%5", "100% sure", "%ü", "%n"] {
            let error = conversions(format);
            // The space is a flag, and the `s` after it a conversion.
            if format == "100% sure" {
                assert!(error.is_ok());
            } else {
                assert!(error.is_err(), "{format}: {error:?}");
            }
        }
    }

    #[test]
    fn parts_are_what_stands_there() {
        let value = |text: &str| match &parts(text).unwrap()[..] {
            [Part::Value(value)] => value.clone(),
            other => panic!("{text}: {other:?}"),
        };
        let all = value("%-+ #0'I12.34llX");
        let flags = Flags {
            left: true,
            plus: true,
            blank: true,
            alternate: true,
            zero: true,
        };
        assert_eq!((all.flags, all.letter, all.bytes), (flags, 'X', Some(8)));
        assert_eq!(all.width, Some(Amount::Number(12)));
        assert_eq!(all.precision, Some(Amount::Number(34)));
        let stars = value("%*.*s");
        assert_eq!(stars.width, Some(Amount::Argument));
        assert_eq!(stars.precision, Some(Amount::Argument));
        let none = value("%.d");
        assert_eq!(
            (none.width, none.precision),
            (None, Some(Amount::Number(0)))
        );
        let large = value("%99999999999d");
        assert_eq!(large.width, Some(Amount::Number(u32::MAX)));
        for (text, letter, shown) in [
            ("%c", 'c', Shown::Character),
            ("%lc", 'C', Shown::Unsigned),
            ("%C", 'C', Shown::Unsigned),
            ("%ls", 'S', Shown::Pointer),
            ("%S", 'S', Shown::Pointer),
        ] {
            let value = value(text);
            assert_eq!((value.letter, value.shown), (letter, shown), "{text}");
        }
        let text = |text: &str| Part::Text(text.to_owned());
        let found = parts("50%% of %s, %m%%\n").unwrap();
        let expected = [
            text("50% of "),
            Part::Value(value("%s")),
            text(", "),
            Part::Errno,
            text("%\n"),
        ];
        assert_eq!(found, expected);
        assert_eq!(parts("").unwrap(), []);
    }

    proptest! {
        #[test]
        fn anything(format in "[%a-zA-Z0-9 .*=:lhz-]{0,40}|\\PC{0,30}") {
            if let Ok(all) = conversions(&format) {
                prop_assert!(all.len() <= format.len());
            }
        }
    }
}
