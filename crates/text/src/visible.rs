//! Safe output of text from outside: names of symbols, files and processes, and text that errors
//! quote.
//!
//! Such text may contain characters that move a terminal's cursor or reverse the writing direction.
//! [`printable`] makes one name safe for a line or a table; [`Visible`] filters all output to a
//! terminal, so that nothing is forgotten.

use std::io::{self, Write};

/// True for characters that are invisible and have an effect: control characters (C0, DEL, C1),
/// those that end lines or change the writing direction (Unicode TR 36, 2.5), and tags.
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns a name that can be printed in a line: each hidden character becomes `?`.
pub fn printable(name: &str) -> String {
    name.replace(is_hidden, "?")
}

/// Writer that passes text on and escapes hidden characters as in `\u001b`, which means the same in
/// JSON; newlines and tabs stay. Bytes that are not UTF-8 become `\xff`.
#[derive(Debug)]
pub struct Visible<W: Write> {
    out: W,
    /// First bytes of a character whose other bytes are still to come.
    begun: Vec<u8>,
}

impl<W: Write> Visible<W> {
    /// Creates a filter in front of `out`.
    pub fn new(out: W) -> Visible<W> {
        Visible {
            out,
            begun: Vec::new(),
        }
    }

    /// Writes bytes that do not end within a character.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut text = String::with_capacity(bytes.len() + 16);
        for chunk in bytes.utf8_chunks() {
            for character in chunk.valid().chars() {
                if matches!(character, '\n' | '\t') || !is_hidden(character) {
                    text.push(character);
                    continue;
                }
                for unit in character.encode_utf16(&mut [0; 2]) {
                    text += &format!("\\u{unit:04x}");
                }
            }
            for byte in chunk.invalid() {
                text += &format!("\\x{byte:02x}");
            }
        }
        self.out.write_all(text.as_bytes())
    }
}

/// Number of bytes at the end that begin a character without completing it.
fn unfinished(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let last = last.map_or(&[][..], |chunk| chunk.invalid());
    let length = match last.first() {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => 0,
    };
    if last.len() < length { last.len() } else { 0 }
}

impl<W: Write> Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The common case; written so that the compiler checks many bytes at once.
        let special =
            |byte: &u8| (*byte < b' ' && *byte != b'\n' && *byte != b'\t') | (*byte > b'~');
        if self.begun.is_empty() && !bytes.iter().fold(false, |any, byte| any | special(byte)) {
            self.out.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        self.begun = all.split_off(all.len() - unfinished(&all));
        self.put(&all)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let begun = std::mem::take(&mut self.begun);
        self.put(&begun)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut visible = Visible::new(&mut out);
        for piece in pieces {
            visible.write_all(piece).expect("a vector");
        }
        visible.flush().expect("a vector");
        drop(visible);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn what_is_hidden_is_shown_and_the_rest_stays() {
        for (text, wanted) in [
            (&b"plain\ttext\n"[..], "plain\ttext\n"),
            (
                "Grüße, 世界 🙂 e\u{301}".as_bytes(),
                "Grüße, 世界 🙂 e\u{301}",
            ),
            (
                b"\x1b[31m\x07\r\x7f\0",
                "\\u001b[31m\\u0007\\u000d\\u007f\\u0000",
            ),
            (
                "\u{9b}2J\u{202e}\u{2066}\u{2028}".as_bytes(),
                "\\u009b2J\\u202e\\u2066\\u2028",
            ),
            ("\u{e0041}".as_bytes(), "\\udb40\\udc41"),
            (b"\xff\x9b\xe2\x80", "\\xff\\x9b\\xe2\\x80"),
        ] {
            assert_eq!(shown(&[text]), wanted, "{text:?}");
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(shown(&bytes), wanted, "{text:?} byte by byte");
        }
        assert_eq!(printable("a\u{202e}\u{1b}b\nü"), "a??b?ü");
    }

    /// Escaping does not change the meaning of JSON.
    #[test]
    fn escapes_are_those_of_json() {
        let every = (0..=0x10ffffu32).filter_map(char::from_u32);
        for character in every.filter(|c| is_hidden(*c) && !matches!(c, '\n' | '\t')) {
            let text = shown(&[character.to_string().as_bytes()]);
            let units = text.split("\\u").skip(1);
            let units: Vec<u16> = units
                .map(|unit| u16::from_str_radix(unit, 16).expect("a number"))
                .collect();
            assert_eq!(String::from_utf16(&units).ok(), Some(character.to_string()));
        }
    }
}
