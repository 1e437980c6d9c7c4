//! Escapes text from the traced program, so that it is harmless.
//!
//! A string can hold anything: terminal escape sequences, characters that reverse the writing
//! direction, and bytes that are not valid text. In a report only printable characters appear
//! unescaped.

use std::io::Write;

/// Appends bytes in readable form, escaped as in C and Rust source: `\n`, `\x1b`, `\u{202e}`; bytes
/// that are not UTF-8 as `\xff`. `quote` is the surrounding quote character.
pub fn put_escaped(out: &mut Vec<u8>, text: &[u8], quote: u8) {
    for part in parts(text, |byte| byte == quote || byte == b'\\') {
        match part {
            Part::Plain(text) => out.extend_from_slice(text),
            Part::Byte(byte) => match letter(byte) {
                Some(letter) => out.extend_from_slice(&[b'\\', letter]),
                None => {
                    // Writing to a vector does not fail.
                    let _ = write!(out, "\\x{byte:02x}");
                }
            },
            Part::Other(bytes) => {
                for chunk in bytes.utf8_chunks() {
                    let _ = write!(out, "{}", chunk.valid().escape_debug());
                    for byte in chunk.invalid() {
                        let _ = write!(out, "\\x{byte:02x}");
                    }
                }
            }
        }
    }
}

/// Appends bytes as the contents of a JSON string, without the quotes. Bytes that are not UTF-8
/// become U+FFFD, and all non-printable characters are escaped.
pub fn put_json(out: &mut Vec<u8>, text: &[u8]) {
    for part in parts(text, |byte| byte == b'"' || byte == b'\\') {
        match part {
            Part::Plain(text) => out.extend_from_slice(text),
            Part::Byte(0x08) => out.extend_from_slice(b"\\b"),
            Part::Byte(0x0c) => out.extend_from_slice(b"\\f"),
            Part::Byte(byte) => match letter(byte) {
                Some(letter) => out.extend_from_slice(&[b'\\', letter]),
                None => {
                    let _ = write!(out, "\\u{byte:04x}");
                }
            },
            Part::Other(bytes) => {
                for chunk in bytes.utf8_chunks() {
                    for character in chunk.valid().chars() {
                        put_json_character(out, character);
                    }
                    if !chunk.invalid().is_empty() {
                        put_json_character(out, char::REPLACEMENT_CHARACTER);
                    }
                }
            }
        }
    }
}

/// Appends `/* text */` for a text that is already escaped. The text cannot end the comment: `*/`
/// becomes `*\/`.
pub(crate) fn put_comment(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(b"/* ");
    let mut before = b' ';
    for &byte in text {
        if before == b'*' && byte == b'/' {
            out.push(b'\\');
        }
        out.push(byte);
        before = byte;
    }
    out.extend_from_slice(b" */");
}

/// Returns the character that follows the backslash for an ASCII byte that must be escaped, in
/// C, Rust and JSON: the byte itself if it is printable. `None` for bytes that are escaped by
/// number.
fn letter(byte: u8) -> Option<u8> {
    match byte {
        b'\n' => Some(b'n'),
        b'\r' => Some(b'r'),
        b'\t' => Some(b't'),
        b' '..=b'~' => Some(byte),
        _ => None,
    }
}

fn put_json_character(out: &mut Vec<u8>, character: char) {
    // `escape_debug` yields one character for a character that needs no escape.
    if character.escape_debug().len() == 1 {
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        return;
    }
    for unit in character.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// A piece of text that is treated uniformly.
enum Part<'a> {
    /// Printable ASCII characters.
    Plain(&'a [u8]),
    /// A non-printable or special ASCII character.
    Byte(u8),
    /// Non-ASCII bytes.
    Other(&'a [u8]),
}

/// Splits text into pieces.
fn parts(text: &[u8], special: impl Fn(u8) -> bool) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !special(*byte);
        let first = *rest.first()?;
        let length = if plain(&first) {
            rest.iter().position(|byte| !plain(byte))
        } else if first.is_ascii() {
            Some(1)
        } else {
            rest.iter().position(u8::is_ascii)
        };
        let (part, others) = rest.split_at(length.unwrap_or(rest.len()));
        rest = others;
        Some(if plain(&first) {
            Part::Plain(part)
        } else if first.is_ascii() {
            Part::Byte(first)
        } else {
            Part::Other(part)
        })
    })
}

/// Returns a JSON string.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

/// Returns the contents of a JSON string, without the quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut bytes = Vec::new();
    put_json(&mut bytes, text.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(text: &[u8]) -> String {
        let mut out = Vec::new();
        put_escaped(&mut out, text, b'"');
        String::from_utf8(out).unwrap()
    }

    fn json(text: &[u8]) -> String {
        let mut out = b"\"".to_vec();
        put_json(&mut out, text);
        out.push(b'"');
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_can_be_seen_stays_and_the_rest_is_escaped() {
        for (text, wanted) in [
            (&b"plain 'text' ~"[..], r"plain 'text' ~"),
            (b"", ""),
            (b"a\"b\\c", r#"a\"b\\c"#),
            (b"\n\r\t\0\x07\x7f", r"\n\r\t\x00\x07\x7f"),
            (b"\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
            ("größe 日本 😀".as_bytes(), "größe 日本 😀"),
            // The one-character form of ESC [ (CSI), and a character that reverses the writing
            // direction.
            ("\u{9b}31m".as_bytes(), r"\u{9b}31m"),
            ("a\u{202e}b\u{2028}".as_bytes(), r"a\u{202e}b\u{2028}"),
            (b"\x9b31m \xff\xc3", r"\x9b31m \xff\xc3"),
            (b"\xe6\x97", r"\xe6\x97"),
        ] {
            assert_eq!(escaped(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn json_strings_are_ascii_where_others_would_act_on_them() {
        for (text, wanted) in [
            (&b"a\"b\\c/"[..], r#""a\"b\\c/""#),
            (
                b"\n\r\t\x08\x0c\0\x1b\x7f",
                r#""\n\r\t\b\f\u0000\u001b\u007f""#,
            ),
            ("größe 😀".as_bytes(), "\"größe 😀\""),
            (
                "\u{9b}\u{202e}\u{e0001}".as_bytes(),
                r#""\u009b\u202e\udb40\udc01""#,
            ),
            (b"a\xffb\xe6\x97", "\"a\u{fffd}b\u{fffd}\""),
        ] {
            assert_eq!(json(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn comments_end_at_their_end() {
        for (text, wanted) in [
            ("", "/*  */"),
            ("parse: tail call", "/* parse: tail call */"),
            ("a */ b(); /* c", r"/* a *\/ b(); /* c */"),
            ("*/*/**/", r"/* *\/*\/**\/ */"),
            ("/ * /", "/* / * / */"),
            // A backslash in the program's text is already doubled.
            (r"*\\/", r"/* *\\/ */"),
        ] {
            let mut out = Vec::new();
            put_comment(&mut out, text.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), wanted);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The output contains nothing that a terminal acts on, and parsing the JSON gives the
        /// original text.
        #[test]
        fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..60), text in "\\PC*|.*|[\\x00-\\u{a0}\u{2020}-\u{2030}]*") {
            for text in [&bytes[..], text.as_bytes()] {
                let mut comment = Vec::new();
                put_comment(&mut comment, text);
                let end = comment[2..].windows(2).position(|two| two == b"*/");
                prop_assert_eq!(end, Some(comment.len() - 4));
                let (plain, json) = (escaped(text), json(text));
                for shown in [&plain, &json] {
                    let bad = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}');
                    prop_assert!(!shown.contains(bad), "{shown:?}");
                }
                let back: String = serde_json::from_str(&json).unwrap();
                prop_assert_eq!(back, String::from_utf8_lossy(text));
            }
        }
    }
}
