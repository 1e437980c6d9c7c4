//! Parser of the argument strings of static probes: the size of each argument, and its operand
//! in assembler syntax.
//!
//! ```text
//! [-]N[f]@OP      N bytes; - signed, f floating point
//!
//! %edi %al %ah    a register, or a part of one
//! $-5 $sym+8      a number, an address
//! -4(%rbp)        memory: a sum, then base register, index register and scale
//! 8(%rbx,%rcx,4)
//! mp_+24(%rip)    a variable
//! ```
//!
//! The sums have the form that compilers write when they add to an operand: `-8+4-8(%rbp)`,
//! `24+mp_(%rip)`. (`sys/sdt.h` defines the format; the variants found in real files come from
//! the C library, Hotspot, PostgreSQL and CPython, and from the parsers of gdb and bcc.)

use iced_x86::Register;
use std::fmt;

/// One argument of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Size in bytes: 1, 2, 4 or 8; at most the size of the operand.
    pub bytes: u8,
    /// True if the value is signed.
    pub signed: bool,
    /// True if the value is a floating point number, of 4 or 8 bytes.
    pub float: bool,
    /// Its location.
    pub operand: Operand,
}

/// Location of an argument when the program reaches the marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// The lowest bytes of a 64-bit general register.
    Register(Register),
    /// The second byte of rax, rcx, rdx or rbx (ah, ch, dh, bh).
    SecondByte(Register),
    /// The lowest bytes of xmm0 to xmm15.
    Vector(u8),
    /// A number: a symbol's address if there is one, plus the number.
    Immediate(Place),
    /// Memory at a base address plus registers.
    Memory {
        /// The base address, or a displacement.
        place: Place,
        /// A 64-bit general register.
        base: Option<Register>,
        /// Another general register, and its scale as a power of two, 0 to 3.
        index: Option<(Register, u8)>,
    },
}

/// A symbol's address plus an offset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// The symbol.
    pub symbol: Option<String>,
    /// The offset, in two's complement.
    pub offset: i64,
}

/// Reason why an argument cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` in the marker's note {reason}")]
pub struct OperandError {
    /// The argument as written in the note.
    pub text: String,
    /// The defect.
    pub reason: String,
}

/// Names of the first eight registers, by encoding number; the names of the others follow a
/// rule.
const OLD: [[&str; 4]; 8] = [
    ["al", "ax", "eax", "rax"],
    ["cl", "cx", "ecx", "rcx"],
    ["dl", "dx", "edx", "rdx"],
    ["bl", "bx", "ebx", "rbx"],
    ["spl", "sp", "esp", "rsp"],
    ["bpl", "bp", "ebp", "rbp"],
    ["sil", "si", "esi", "rsi"],
    ["dil", "di", "edi", "rdi"],
];
/// Names of the second bytes of registers.
const SECOND: [&str; 4] = ["ah", "ch", "dh", "bh"];
/// Size keywords of a memory operand in Intel syntax.
const SIZES: [&str; 6] = ["BYTE", "WORD", "DWORD", "QWORD", "XMMWORD", "TBYTE"];

/// A register name in an operand.
enum Named {
    /// The encoding number, and the number of bytes that the name covers.
    General(u32, u8),
    SecondByte(u32),
    Vector(u8),
}

fn general(number: u32) -> Register {
    Register::RAX + number
}

/// Looks up a register name, without `%`.
fn named(name: &str) -> Option<Named> {
    for (number, names) in OLD.iter().enumerate() {
        if let Some(size) = names.iter().position(|known| *known == name) {
            return Some(Named::General(number as u32, 1 << size));
        }
    }
    if let Some(number) = SECOND.iter().position(|known| *known == name) {
        return Some(Named::SecondByte(number as u32));
    }
    let plain = |digits: &str| -> Option<u8> {
        let all = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        (all && (digits == "0" || !digits.starts_with('0'))).then(|| digits.parse().ok())?
    };
    if let Some(digits) = name.strip_prefix("xmm").or(name.strip_prefix("ymm")) {
        return plain(digits).filter(|n| *n < 16).map(Named::Vector);
    }
    let rest = name.strip_prefix('r')?;
    let (digits, bytes) = match rest.as_bytes().last()? {
        b'b' | b'l' => (&rest[..rest.len() - 1], 1),
        b'w' => (&rest[..rest.len() - 1], 2),
        b'd' => (&rest[..rest.len() - 1], 4),
        _ => (rest, 8),
    };
    let number = plain(digits).filter(|n| (8..16).contains(n))?;
    Some(Named::General(number.into(), bytes))
}

/// Parses the arguments of a note. Each argument can fail on its own.
#[must_use]
pub fn arguments(text: &str) -> Vec<Result<Argument, OperandError>> {
    words(text).into_iter().map(argument).collect()
}

/// Splits the string into arguments at spaces outside of parentheses and brackets.
fn words(text: &str) -> Vec<&str> {
    let mut words: Vec<(usize, usize)> = Vec::new();
    let (mut depth, mut start) = (0_usize, None);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match (c.is_ascii_whitespace() && depth == 0, start) {
            (true, Some(from)) => {
                words.push((from, at));
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    words.extend(start.map(|from| (from, text.len())));
    // `4@DWORD PTR [rbp-4]` is one argument.
    let mut joined: Vec<(usize, usize)> = Vec::new();
    for (from, to) in words {
        match joined.last_mut() {
            Some((first, end)) if goes_on(&text[*first..*end], &text[from..to]) => *end = to,
            _ => joined.push((from, to)),
        }
    }
    joined
        .into_iter()
        .map(|(from, to)| &text[from..to])
        .collect()
}

/// True if `word` continues an operand in Intel syntax.
fn goes_on(before: &str, word: &str) -> bool {
    let last = before.rsplit([' ', '@']).next().unwrap_or(before);
    (word == "PTR" && SIZES.contains(&last)) || (last == "PTR" && !word.contains('@'))
}

/// Parses `-N` or `N`, with an optional `f`, before the `@`.
fn size(text: &str) -> Option<(u64, bool, bool)> {
    let (digits, signed) = match text.strip_prefix('-') {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let (digits, float) = match digits.strip_suffix('f') {
        Some(digits) => (digits, true),
        None => (digits, false),
    };
    let all = !digits.is_empty() && digits.len() < 9 && digits.bytes().all(|b| b.is_ascii_digit());
    Some((all.then(|| digits.parse().ok())??, signed, float))
}

fn argument(text: &str) -> Result<Argument, OperandError> {
    let error = |reason: &str| OperandError {
        text: text.to_owned(),
        reason: reason.to_owned(),
    };
    let given = text.split_once('@').and_then(|(before, operand)| {
        let (bytes, signed, float) = size(before)?;
        Some((Some(bytes), signed, float, operand))
    });
    // Without a size, the argument is as large as its operand, as in gdb.
    let (bytes, signed, float, body) = given.unwrap_or((None, false, false, text));
    match bytes {
        Some(4 | 8) | None => {}
        Some(1 | 2) if !float => {}
        Some(_) if float => {
            return Err(error(
                "is a floating point number of other than 4 or 8 bytes",
            ));
        }
        Some(_) => return Err(error("has other than 1, 2, 4 or 8 bytes")),
    }
    let bytes = bytes.map(|bytes| bytes as u8);
    let (operand, room) = operand(body).map_err(|reason| error(&reason))?;
    // The assembler knew the type and chose the register, so the register's size is the limit.
    let bytes = bytes.unwrap_or(room).min(room);
    let vector = matches!(operand, Operand::Vector(_));
    if vector && bytes < 4 {
        return Err(error("has less than 4 bytes in a vector register"));
    }
    if float && bytes < 4 {
        return Err(error("is a floating point number in a part of a register"));
    }
    Ok(Argument {
        bytes,
        signed,
        // Vector registers hold only floating point numbers, even if an older header did not record
        // that.
        float: float || vector,
        operand,
    })
}

/// Parses an operand; returns it and its maximum size in bytes.
fn operand(text: &str) -> Result<(Operand, u8), String> {
    let text = text.trim();
    if let Some(name) = text.strip_prefix('%') {
        if name.contains(':') {
            return Err("is relative to a segment, which cannot be read".into());
        }
        return match named(name) {
            Some(Named::General(number, bytes)) => Ok((Operand::Register(general(number)), bytes)),
            Some(Named::SecondByte(number)) => Ok((Operand::SecondByte(general(number)), 1)),
            Some(Named::Vector(number)) => Ok((Operand::Vector(number), 8)),
            None => Err(format!("names no register that can be read: {text}")),
        };
    }
    if let Some(sum) = text.strip_prefix('$') {
        return Ok((Operand::Immediate(place(sum)?), 8));
    }
    if text.contains('[') || SIZES.iter().any(|size| text.starts_with(size)) {
        return Err("is in Intel's syntax".into());
    }
    let Some((sum, registers)) = text.split_once('(') else {
        let place = place(text)?;
        return match &place.symbol {
            None => Err("is a number without `$`, which is no address in a program".into()),
            Some(symbol) if named(symbol).is_some() => Err("is in Intel's syntax".into()),
            Some(_) => Ok((memory(place, None, None), 8)),
        };
    };
    let Some(registers) = registers.strip_suffix(')') else {
        return Err("has a parenthesis that is not closed".into());
    };
    let place = match sum.trim() {
        "" => Place::default(),
        sum => place(sum)?,
    };
    if registers.trim() == "%rip" {
        return match place.symbol {
            Some(_) => Ok((memory(place, None, None), 8)),
            // The instruction that the address is relative to is unknown.
            None => Err("is relative to an unknown instruction".into()),
        };
    }
    let mut parts = registers.split(',').map(str::trim);
    let (base, index, scale) = (parts.next(), parts.next(), parts.next());
    if parts.next().is_some() {
        return Err("has too many registers".into());
    }
    let address = |name: Option<&str>| match name {
        None | Some("") => Ok(None),
        Some(name) => match name.strip_prefix('%').and_then(named) {
            Some(Named::General(number, 8)) => Ok(Some(general(number))),
            _ => Err(format!(
                "has an address by `{name}`, which is no 64-bit register"
            )),
        },
    };
    let (base, index) = (address(base)?, address(index)?);
    let shift = match scale {
        None | Some("" | "1") => 0,
        Some("2") => 1,
        Some("4") => 2,
        Some("8") => 3,
        Some(other) => return Err(format!("has a scale of `{other}`, not 1, 2, 4 or 8")),
    };
    if index == Some(Register::RSP) {
        return Err("has the stack pointer as index".into());
    }
    if base.is_none() && index.is_none() {
        return Err("has no register between its parentheses".into());
    }
    Ok((memory(place, base, index.map(|index| (index, shift))), 8))
}

fn memory(place: Place, base: Option<Register>, index: Option<(Register, u8)>) -> Operand {
    Operand::Memory { place, base, index }
}

/// Parses a sum of numbers and at most one symbol.
fn place(text: &str) -> Result<Place, String> {
    let mut found = Place::default();
    let mut rest = text.trim();
    let mut first = true;
    while first || !rest.is_empty() {
        let negative = match rest.as_bytes().first() {
            Some(b'-') => true,
            Some(b'+') => false,
            // The first term needs no sign.
            _ if first => false,
            _ => return Err(format!("has `{rest}` behind a number")),
        };
        rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).trim_start();
        let end = rest.find(['-', '+']).unwrap_or(rest.len());
        let term = rest[..end].trim_end();
        rest = &rest[end..];
        first = false;
        if term.is_empty() {
            return Err("lacks a number or a symbol".into());
        }
        if term.starts_with(|c: char| c.is_ascii_digit()) {
            let number = number(term).ok_or_else(|| format!("has `{term}`, which is no number"))?;
            found.offset = match negative {
                true => found.offset.wrapping_sub(number as i64),
                false => found.offset.wrapping_add(number as i64),
            };
            continue;
        }
        if let Some((_, relocation)) = term.split_once('@') {
            return Err(format!(
                "is reached by a table (`@{relocation}`), not directly"
            ));
        }
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '$');
        if !term.chars().all(is_part) {
            return Err(format!(
                "has `{term}`, which is neither a number nor a symbol"
            ));
        }
        if negative {
            return Err(format!("takes the address of `{term}` away"));
        }
        if found.symbol.replace(term.to_owned()).is_some() {
            return Err("adds two symbols".into());
        }
    }
    Ok(found)
}

/// Parses a number as an assembler does; values that need more than 63 bits are two's
/// complement.
fn number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let (digits, radix) = match hexadecimal {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    // `from_str_radix` would accept a sign, which is not part of the number.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// Returns the name of the lowest `bytes` bytes of a register.
fn register_name(register: Register, bytes: u8) -> String {
    let number = register.number();
    let size = bytes.trailing_zeros() as usize;
    match OLD.get(number) {
        Some(names) => names[size.min(3)].to_owned(),
        None => format!("r{number}{}", ["b", "w", "d", ""][size.min(3)]),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.symbol, self.offset) {
            (Some(symbol), 0) => f.write_str(symbol),
            (Some(symbol), offset) => write!(f, "{symbol}{offset:+}"),
            (None, offset) => write!(f, "{offset}"),
        }
    }
}

impl fmt::Display for Argument {
    /// Writes the argument as in a note.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.signed { "-" } else { "" };
        let float = if self.float { "f" } else { "" };
        write!(f, "{sign}{}{float}@", self.bytes)?;
        match &self.operand {
            Operand::Register(register) => write!(f, "%{}", register_name(*register, self.bytes)),
            Operand::SecondByte(register) => write!(f, "%{}", SECOND[register.number() & 3]),
            Operand::Vector(number) => write!(f, "%xmm{number}"),
            Operand::Immediate(place) => write!(f, "${place}"),
            Operand::Memory {
                place,
                base: None,
                index: None,
            } => write!(f, "{place}(%rip)"),
            Operand::Memory { place, base, index } => {
                if *place != Place::default() {
                    write!(f, "{place}")?;
                }
                f.write_str("(")?;
                if let Some(base) = base {
                    write!(f, "%{}", register_name(*base, 8))?;
                }
                if let Some((index, shift)) = index {
                    write!(f, ",%{},{}", register_name(*index, 8), 1 << shift)?;
                }
                f.write_str(")")
            }
        }
    }
}

#[cfg(test)]
mod tests;
