//! A marker's format and source file, encoded for the assembler.

/// Number of words of text.
pub const WORDS: usize = 32;

/// The format, a zero, the name of the source file and a zero, in words of eight bytes, the first
/// byte lowest. Numbers, because braces, quotes and backslashes have a meaning in the assembler's
/// text. If there is no room, the beginning of the file's name is cut off.
pub struct Text {
    /// The bytes; those after the end are 0.
    pub words: [i64; WORDS],
    /// Number of bytes, with both zeros.
    pub length: usize,
}

impl Text {
    /// Panics if the format does not fit.
    pub const fn new(format: &str, file: &str) -> Text {
        let (format, file) = (format.as_bytes(), file.as_bytes());
        assert!(
            format.len() + 2 <= 8 * WORDS,
            "mark!: the format is longer than 254 bytes"
        );
        let room = 8 * WORDS - format.len() - 2;
        let lost = file.len().saturating_sub(room);
        let mut words = [0; WORDS];
        let mut at = 0;
        while at < format.len() {
            words[at / 8] |= (format[at] as i64) << (at % 8 * 8);
            at += 1;
        }
        at += 1;
        let mut from = lost;
        while from < file.len() {
            words[at / 8] |= (file[from] as i64) << (at % 8 * 8);
            at += 1;
            from += 1;
        }
        Text {
            words,
            length: at + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Text, WORDS};

    extern crate std;
    use std::{string::String, vec::Vec};

    fn bytes(text: &Text) -> Vec<u8> {
        let all: Vec<u8> = text
            .words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert!(all[text.length..].iter().all(|&byte| byte == 0));
        all[..text.length].to_vec()
    }

    #[test]
    fn format_and_file_stand_behind_each_other() {
        assert_eq!(
            bytes(&Text::new("a=%d \u{e9}", "src/main.rs")),
            "a=%d \u{e9}\0src/main.rs\0".as_bytes()
        );
        assert_eq!(bytes(&Text::new("", "")), b"\0\0");
    }

    #[test]
    fn the_end_of_a_long_file_name_stays() {
        let format = "x".repeat(250);
        let expected: String = format.clone() + "\0n.rs\0";
        assert_eq!(expected.len(), 8 * WORDS);
        assert_eq!(
            bytes(&Text::new(&format, "src/main.rs")),
            expected.as_bytes()
        );
        assert_eq!(
            bytes(&Text::new(&"y".repeat(254), "src/main.rs")).len(),
            256
        );
    }
}
