//! Parses numbers in the kernel's syntax: `10`, `0x10`, and `010`, which is eight.

use crate::error::ParseError;

/// Parses an unsigned number; the error is the reason, worded for a message.
pub(crate) fn unsigned(word: &str) -> Result<u64, String> {
    let hexadecimal = word.strip_prefix("0x").or(word.strip_prefix("0X"));
    let (digits, radix, kind) = match hexadecimal {
        Some(digits) => (digits, 16, "a hexadecimal"),
        None if word.len() > 1 && word.starts_with('0') => (&word[1..], 8, "an octal"),
        None => (word, 10, "a decimal"),
    };
    if digits.is_empty() {
        return Err("there are no digits".to_string());
    }
    if let Some(bad) = digits.chars().find(|c| !c.is_digit(radix)) {
        return Err(format!("`{bad}` is not {kind} digit"));
    }
    u64::from_str_radix(digits, radix).map_err(|_| "it does not fit into 64 bits".to_string())
}

/// Parses an unsigned number that may have a plus sign, as the kernel's `kstrtoul` does.
pub(crate) fn with_plus(word: &str) -> Result<u64, String> {
    unsigned(word.strip_prefix('+').unwrap_or(word))
}

/// Parses a number that may have one sign, as the kernel's `kstrtol` does.
pub(crate) fn signed(word: &str) -> Result<i64, String> {
    match word.strip_prefix('-') {
        Some(digits) => with_sign(true, digits).map(u64::cast_signed),
        None => {
            i64::try_from(with_plus(word)?).map_err(|_| "it does not fit into 63 bits".to_string())
        }
    }
}

/// Parses a number after its sign, as two's complement.
pub(crate) fn with_sign(negative: bool, word: &str) -> Result<u64, String> {
    let magnitude = unsigned(word)?;
    match negative {
        false => Ok(magnitude),
        true if magnitude <= 1 << 63 => Ok(magnitude.wrapping_neg()),
        true => Err("it does not fit into 64 bits".to_string()),
    }
}

/// Parses the number `word` at byte `at` of `text`, which messages call `what`.
pub(crate) fn parse(text: &str, at: usize, word: &str, what: &str) -> Result<u64, ParseError> {
    unsigned(word).map_err(|why| bad(text, at, what, &why))
}

/// Creates the error for an invalid number.
pub(crate) fn bad(text: &str, at: usize, what: &str, why: &str) -> ParseError {
    let help = "a number is decimal, hexadecimal after 0x, or octal after 0";
    ParseError::at(text, at, format!("invalid {what}: {why}"), help)
}
