//! The format of a marker: what its arguments are called, and how they are shown.

use std::fmt;

/// One conversion, such as `fd=%d`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    /// The word before it.
    pub name: Option<String>,
    /// From the `%` on.
    pub text: String,
    /// How it is shown.
    pub shown: Shown,
    /// Bytes of the argument that the conversion expects; `None` if it does not say.
    pub bytes: Option<u8>,
}

/// How an argument is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// `%d`, `%i`, and the widths of `*`.
    Signed,
    /// `%u`, `%o`.
    Unsigned,
    /// `%x`, `%X`, `%b`.
    Hexadecimal,
    /// `%p`
    Pointer,
    /// `%c`
    Character,
    /// `%s`: the text at the address.
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

/// The conversions of a format, in the order of the arguments.
///
/// # Errors
/// One that printf does not know, as it stands there.
pub fn conversions(format: &str) -> Result<Vec<Conversion>, String> {
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
        let Parsed {
            length,
            argument,
            stars,
        } = conversion(text)?;
        rest = &text[length..];
        for star in std::iter::repeat_n("%*", stars) {
            found.push(Conversion {
                name: None,
                text: star.to_owned(),
                shown: Shown::Signed,
                bytes: Some(4),
            });
        }
        if let Some((shown, bytes)) = argument {
            found.push(Conversion {
                name: name(&before),
                text: text[..length].to_owned(),
                shown,
                bytes,
            });
        }
        before.clear();
    }
    Ok(found)
}

/// The name that the text before a conversion ends with: `fd=`, `fd `, `fd: `, `at 0x`, `"`.
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

/// A conversion at the start of a text.
struct Parsed {
    /// Its bytes.
    length: usize,
    /// How it shows its argument, and how large that is; `%m` has none.
    argument: Option<(Shown, Option<u8>)>,
    /// How many arguments come before that.
    stars: usize,
}

/// The conversion that `text` begins with.
fn conversion(text: &str) -> Result<Parsed, String> {
    let unknown = || {
        let end = text.char_indices().nth(4).map_or(text.len(), |(at, _)| at);
        format!("`{}` is no conversion", &text[..end])
    };
    let flags = |c: char| matches!(c, '-' | '+' | ' ' | '#' | '0' | '\'' | 'I');
    let mut rest = text[1..].trim_start_matches(flags);
    let mut stars = 0;
    let mut number = |rest: &mut &str| match rest.strip_prefix('*') {
        Some(behind) => {
            stars += 1;
            *rest = behind;
        }
        None => *rest = rest.trim_start_matches(|c: char| c.is_ascii_digit()),
    };
    number(&mut rest);
    if let Some(precision) = rest.strip_prefix('.') {
        rest = precision;
        number(&mut rest);
    }
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
    let what = match rest.chars().next() {
        Some('d' | 'i') => Some((Shown::Signed, bytes)),
        Some('u' | 'o') => Some((Shown::Unsigned, bytes)),
        Some('x' | 'X' | 'b' | 'B') => Some((Shown::Hexadecimal, bytes)),
        Some('c' | 'C') => Some((Shown::Character, None)),
        // Wide characters are not recorded as text.
        Some('s') if given.is_some() => Some((Shown::Pointer, Some(8))),
        Some('s') => Some((Shown::Text, Some(8))),
        Some('S') => Some((Shown::Pointer, Some(8))),
        Some('p') => Some((Shown::Pointer, Some(8))),
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'a' | 'A') => Some((Shown::Float, None)),
        Some('m') => None,
        _ => return Err(unknown()),
    };
    Ok(Parsed {
        length: text.len() - rest.len() + 1,
        argument: what,
        stars,
    })
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
        ] {
            assert_eq!(shown(format), expected, "{format}");
        }
        for format in ["%", "%y", "%5", "100% sure", "%ü", "%n"] {
            let error = conversions(format);
            // A blank is a flag, and `s` behind it a conversion.
            if format == "100% sure" {
                assert!(error.is_ok());
            } else {
                assert!(error.is_err(), "{format}: {error:?}");
            }
        }
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
