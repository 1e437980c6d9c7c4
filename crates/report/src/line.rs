//! Builds lines without an allocation per line.

use std::io::{self, Write};

/// Number of bytes collected before they are written.
const FLUSH_AT: usize = 1 << 16;

/// Buffered text output.
pub(super) struct Lines<W> {
    out: W,
    bytes: Vec<u8>,
}

impl<W: Write> Lines<W> {
    pub(super) fn new(out: W) -> Self {
        Lines {
            out,
            bytes: Vec::with_capacity(FLUSH_AT + 4096),
        }
    }

    /// Appends text.
    #[inline]
    pub(super) fn put(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
    }

    /// Returns the buffered bytes, to append more.
    #[inline]
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a decimal number, padded with zeros to at least `width` digits.
    #[inline]
    pub(super) fn put_decimal(&mut self, number: u64, width: usize) {
        let mut digits = [b'0'; 20];
        let mut at = digits.len();
        let mut rest = number;
        while rest > 0 {
            at -= 1;
            digits[at] += (rest % 10) as u8;
            rest /= 10;
        }
        self.put(&digits[at.min(digits.len() - width)..]);
    }

    /// Appends a number with its sign.
    #[inline]
    pub(super) fn put_signed(&mut self, number: i64) {
        if number < 0 {
            self.put(b"-");
        }
        self.put_decimal(number.unsigned_abs(), 1);
    }

    /// Appends a hexadecimal number: `0x1f`.
    #[inline]
    pub(super) fn put_hex(&mut self, number: u64) {
        self.put(b"0x");
        self.put_hex_digits(number);
    }

    /// Appends a hexadecimal number without a prefix.
    #[inline]
    pub(super) fn put_hex_digits(&mut self, number: u64) {
        let mut digits = [b'0'; 16];
        let mut at = digits.len();
        let mut rest = number;
        while rest > 0 {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(rest & 15) as usize];
            rest >>= 4;
        }
        self.put(&digits[at.min(digits.len() - 1)..]);
    }

    /// Appends ns as seconds with nine decimal places, the whole part at least `width` wide.
    #[inline]
    pub(super) fn put_seconds(&mut self, ns: u64, width: usize) {
        let start = self.bytes.len();
        self.put_decimal(ns / 1_000_000_000, 1);
        for _ in self.bytes.len() - start..width {
            self.bytes.insert(start, b' ');
        }
        self.put(b".");
        self.put_decimal(ns % 1_000_000_000, 9);
    }

    /// Appends the rest of a line, and ends it.
    pub(super) fn put_line(&mut self, text: &str) -> io::Result<()> {
        self.put(text.as_bytes());
        self.end()
    }

    /// Ends the line.
    #[inline]
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.bytes.push(b'\n');
        if self.bytes.len() < FLUSH_AT {
            return Ok(());
        }
        self.flush()
    }

    /// Writes the buffered bytes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.bytes)?;
        self.bytes.clear();
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::Lines;

    fn text(put: impl Fn(&mut Lines<Vec<u8>>)) -> String {
        let mut lines = Lines::new(Vec::new());
        put(&mut lines);
        lines.flush().unwrap();
        String::from_utf8(lines.out).unwrap()
    }

    #[test]
    fn numbers_are_those_of_format() {
        for number in [0, 1, 9, 10, 255, 999_999_999, u64::MAX] {
            assert_eq!(
                text(|lines| lines.put_decimal(number, 1)),
                format!("{number}")
            );
            assert_eq!(
                text(|lines| lines.put_decimal(number, 9)),
                format!("{number:09}")
            );
            assert_eq!(text(|lines| lines.put_hex(number)), format!("{number:#x}"));
            let digits = text(|lines| lines.put_hex_digits(number));
            assert_eq!(digits, format!("{number:x}"));
        }
        for number in [0, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(text(|lines| lines.put_signed(number)), format!("{number}"));
        }
    }

    #[test]
    fn seconds_have_nine_places_and_their_width() {
        assert_eq!(text(|lines| lines.put_seconds(0, 1)), "0.000000000");
        assert_eq!(
            text(|lines| lines.put_seconds(12_000_000_034, 5)),
            "   12.000000034"
        );
        assert_eq!(
            text(|lines| lines.put_seconds(u64::MAX, 2)),
            "18446744073.709551615"
        );
    }
}
