//! Formats one value as printf does, in the locale that programs start with.
//!
//! The digits of floating point numbers come from the standard library, which is exact; this
//! module adds C's flags, widths and forms. Where C leaves the result open, it follows glibc.

use capriole_object::markers::format::Flags;

/// Maximum width and precision. Both may come from a program, and a line of a million blanks is
/// useless.
pub(super) const MOST: usize = 4000;

/// The part of a conversion between the `%` and the letter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    /// Sign and padding flags.
    pub flags: Flags,
    /// Minimum number of bytes.
    pub width: usize,
    /// Number of digits, or the maximum number of bytes of a string.
    pub precision: Option<usize>,
}

impl Style {
    /// Returns the sign before a number.
    fn sign(&self, negative: bool) -> &'static [u8] {
        match (negative, self.flags.plus, self.flags.blank) {
            (true, ..) => b"-",
            (false, true, _) => b"+",
            (false, false, true) => b" ",
            (false, false, false) => b"",
        }
    }

    /// Pads digits to the precision; a zero with precision 0 has no digits.
    fn digits(&self, digits: String) -> String {
        let least = self.precision.unwrap_or(1).min(MOST);
        let digits = if digits == "0" { "" } else { &digits };
        format!("{digits:0>least$}")
    }

    /// Appends sign, prefix and digits of an integer.
    fn put_whole(&self, out: &mut Vec<u8>, sign: &[u8], prefix: &str, digits: &str) {
        let zeros = self.precision.is_none();
        let parts = [sign, prefix.as_bytes(), digits.as_bytes()];
        self.put(out, parts, zeros);
    }

    /// Appends sign, prefix and digits, padded to the width; the padding is zeros before the digits
    /// if `zeros` and the flags allow it.
    fn put(&self, out: &mut Vec<u8>, parts: [&[u8]; 3], zeros: bool) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let missing = self.width.min(MOST).saturating_sub(length);
        let [sign, prefix, digits] = parts;
        let zeros = zeros && self.flags.zero && !self.flags.left;
        if !self.flags.left && !zeros {
            out.resize(out.len() + missing, b' ');
        }
        out.extend_from_slice(sign);
        out.extend_from_slice(prefix);
        if zeros {
            out.resize(out.len() + missing, b'0');
        }
        out.extend_from_slice(digits);
        if self.flags.left {
            out.resize(out.len() + missing, b' ');
        }
    }
}

/// Appends a string unchanged, padded with blanks.
pub(super) fn filled(out: &mut Vec<u8>, style: &Style, text: &[u8]) {
    style.put(out, [b"", b"", text], false);
}

/// `%s`: at most as many bytes as the precision.
pub(super) fn text(out: &mut Vec<u8>, style: &Style, text: &[u8]) {
    let most = style.precision.unwrap_or(text.len()).min(text.len());
    filled(out, style, &text[..most]);
}

/// `%d`
pub(super) fn signed(out: &mut Vec<u8>, style: &Style, value: i64) {
    let digits = style.digits(value.unsigned_abs().to_string());
    style.put_whole(out, style.sign(value < 0), "", &digits);
}

/// `%u`, `%o`, `%x`, `%X`, `%b` and `%B`.
pub(super) fn unsigned(out: &mut Vec<u8>, style: &Style, letter: char, value: u64) {
    let (prefix, digits) = match letter {
        'x' => ("0x", format!("{value:x}")),
        'X' => ("0X", format!("{value:X}")),
        'b' => ("0b", format!("{value:b}")),
        'B' => ("0B", format!("{value:b}")),
        'o' => ("", format!("{value:o}")),
        _ => ("", value.to_string()),
    };
    let mut digits = style.digits(digits);
    // An octal number in alternate form begins with a zero, which may come from the precision.
    if letter == 'o' && style.flags.alternate && !digits.starts_with('0') {
        digits.insert(0, '0');
    }
    let prefix = if style.flags.alternate && value != 0 {
        prefix
    } else {
        ""
    };
    style.put_whole(out, b"", prefix, &digits);
}

/// `%p`: glibc prints sign flags here too, but not for a null pointer.
pub(super) fn pointer(out: &mut Vec<u8>, style: &Style, value: u64) {
    match value {
        0 => filled(out, style, b"(nil)"),
        _ => {
            let digits = style.digits(format!("{value:x}"));
            style.put_whole(out, style.sign(false), "0x", &digits);
        }
    }
}

/// `%f`, `%e`, `%g`, `%a`, and their uppercase variants.
pub(super) fn float(out: &mut Vec<u8>, style: &Style, letter: char, value: f64) {
    let sign = style.sign(value.is_sign_negative());
    let magnitude = value.abs();
    let (prefix, mut digits) = match letter.to_ascii_lowercase() {
        _ if value.is_nan() => ("", "nan".to_owned()),
        _ if value.is_infinite() => ("", "inf".to_owned()),
        'a' => ("0x", hexadecimal(style, magnitude)),
        'e' => ("", exponential(style, magnitude, decimals(style))),
        'g' => ("", general(style, magnitude)),
        _ => ("", fixed(style, magnitude, decimals(style))),
    };
    let mut prefix = prefix.to_owned();
    if letter.is_ascii_uppercase() {
        prefix.make_ascii_uppercase();
        digits.make_ascii_uppercase();
    }
    let parts = [sign, prefix.as_bytes(), digits.as_bytes()];
    style.put(out, parts, value.is_finite());
}

/// Returns the number of digits after the point.
fn decimals(style: &Style) -> usize {
    style.precision.unwrap_or(6).min(MOST)
}

/// `3.14`
fn fixed(style: &Style, magnitude: f64, decimals: usize) -> String {
    let mut digits = format!("{magnitude:.decimals$}");
    if decimals == 0 && style.flags.alternate {
        digits.push('.');
    }
    digits
}

/// `3.14e+00`
fn exponential(style: &Style, magnitude: f64, decimals: usize) -> String {
    let (digits, exponent) = scientific(magnitude, decimals);
    let point = if decimals == 0 && style.flags.alternate {
        "."
    } else {
        ""
    };
    with_exponent(&format!("{digits}{point}"), exponent)
}

/// `3.14e+00`, or `3.14` if its exponent is small enough; without trailing zeros.
fn general(style: &Style, magnitude: f64) -> String {
    let significant = decimals(style).max(1);
    // The exponent after rounding decides the form.
    let (digits, exponent) = scientific(magnitude, significant - 1);
    let fits = exponent >= -4 && exponent < significant as i32;
    let digits = match fits {
        true => fixed(
            style,
            magnitude,
            (significant as i32 - 1 - exponent) as usize,
        ),
        false if style.flags.alternate && significant == 1 => format!("{digits}."),
        false => digits,
    };
    let digits = match digits.contains('.') && !style.flags.alternate {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => &digits,
    };
    match fits {
        true => digits.to_owned(),
        false => with_exponent(digits, exponent),
    }
}

/// Returns the digits, one of them before the point, and the exponent of 10.
fn scientific(magnitude: f64, decimals: usize) -> (String, i32) {
    let text = format!("{magnitude:.decimals$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (digits.to_owned(), exponent.parse().unwrap_or(0))
}

/// Appends the exponent with a sign and at least two digits, as C does.
fn with_exponent(digits: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// `1.8p+0`, which follows `0x`: the exact bits of the number.
fn hexadecimal(style: &Style, magnitude: f64) -> String {
    /// Bits after the point, four for each digit.
    const FRACTION: u32 = f64::MANTISSA_DIGITS - 1;
    const DIGITS: usize = (FRACTION / 4) as usize;
    let bits = magnitude.to_bits();
    let fraction = bits & ((1 << FRACTION) - 1);
    let (lead, exponent) = match bits >> FRACTION {
        0 if fraction == 0 => (0, 0),
        0 => (0, f64::MIN_EXP - 1),
        exponent => (1, exponent as i32 - (f64::MAX_EXP - 1)),
    };
    let mantissa = lead << FRACTION | fraction;
    let wanted = style.precision.unwrap_or(DIGITS).min(DIGITS);
    let dropped = 4 * (DIGITS - wanted) as u32;
    // Round to nearest, ties to even. The digit before the point may become 2.
    let half = 1_u64 << dropped >> 1;
    let odd = mantissa >> dropped & 1;
    let rounded = match dropped {
        0 => mantissa,
        _ => (mantissa + (half - 1) + odd) >> dropped,
    };
    let behind = 4 * wanted as u32;
    let mut text = format!("{:x}", rounded >> behind);
    let fraction = rounded & ((1 << behind) - 1);
    let mut digits = match wanted {
        0 => String::new(),
        _ => format!("{fraction:0wanted$x}"),
    };
    match style.precision {
        Some(precision) => {
            let precision = precision.min(MOST);
            digits = format!("{digits:0<precision$}");
        }
        None => digits.truncate(digits.trim_end_matches('0').len()),
    }
    if !digits.is_empty() || style.flags.alternate {
        text.push('.');
    }
    text += &digits;
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{text}p{sign}{}", exponent.unsigned_abs())
}
