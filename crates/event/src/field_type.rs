//! Field types, in the kernel's syntax.

use crate::error::ParseError;
use crate::number;
use std::fmt;

/// Display format of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shown {
    /// `u8` to `u64`, `b3@5/32`: decimal.
    Unsigned,
    /// `s8` to `s64`: decimal with a sign.
    Signed,
    /// `x8` to `x64`: hexadecimal.
    Hexadecimal,
    /// `char`: one byte as a character.
    Character,
    /// `symbol`: the function that the address lies in.
    Symbol,
    /// `f32`, `f64`: a floating point number (IEEE 754). The kernel has no such types.
    Float,
    /// `be16` to `be64`: a number in network byte order; decimal. The kernel has no such types.
    Network,
    /// `ipv4`: an IPv4 address, which is a number of 4 bytes in network byte order; `127.0.0.1`. The
    /// kernel has no such type.
    Ipv4,
    /// `fd`: a file descriptor, a number of 4 bytes with a sign, shown with what it was open for. The
    /// kernel has no such type.
    Descriptor,
}

impl Shown {
    /// True for numbers with a sign.
    pub fn is_signed(self) -> bool {
        matches!(self, Shown::Signed | Shown::Descriptor)
    }
}

/// Bit field within a number. `1 <= width`, and `width + offset <=` the bits of the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bits {
    /// Number of bits.
    pub width: u8,
    /// Number of the lowest bit; 0 is the least significant bit of the container.
    pub offset: u8,
}

/// Type of a field, or of an element of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// A number; little endian, unless it is in network byte order.
    Number {
        /// Display format.
        shown: Shown,
        /// Size: 1, 2, 4 or 8 bytes. For a bit field, the size of its container.
        bytes: u8,
        /// The bit field within it, if any.
        bits: Option<Bits>,
    },
    /// The bytes at the address up to a NUL.
    String {
        /// `ustring`, which in a program means the same as `string`.
        user: bool,
    },
    /// `ipv6`: the 16 bytes of an IPv6 address; `::1`. Never an array. The kernel has no such type.
    Ipv6,
    /// The chain of callers: the address of the hit, then return addresses. Only for the field and
    /// the key `stack`; never an array.
    CallStack {
        /// Maximum number of addresses, from 1 to [`FieldType::MOST_FRAMES`].
        frames: u16,
    },
}

/// The type after the colon of a fetch argument.
///
/// `Display` and [`FromStr`](std::str::FromStr) use the kernel's syntax: `u32`, `s8`, `x64`, `char`, `string`,
/// `ustring`, `symbol`, `b3@5/32`, `u16[4]`, `string[2]`; and extensions: `f32`, `f64`, `be16`,
/// `be32`, `be64`, `port` (which is `be16`), `ipv4`, `ipv6`, `fd`, bit fields with another display format (`s3@5/32`, `x8@8/64`, `c8@8/64`,
/// `f32@32/64`), and `stack(64)`, which is not a type that events can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FieldType {
    /// Type of each element.
    pub element: Element,
    /// The number of elements of an array, 1 to 64.
    pub count: Option<u16>,
}

/// Maximum number of elements of an array.
const MAX_COUNT: u64 = 64;

/// First letters of bit field types; they select the display format.
const LETTERS: [char; 5] = ['b', 's', 'x', 'c', 'f'];

/// Help for an unknown type.
const TYPES: &str = "the types are u8 to u64, s8 to s64, x8 to x64, f32, f64, be16, be32, be64, port, ipv4, \
     ipv6, fd, char, string, ustring, symbol, bWIDTH@OFFSET/SIZE, and TYPE[COUNT]";

impl FieldType {
    /// `x64`: the default for a register or 8 bytes of memory.
    pub const X64: FieldType = FieldType {
        element: Element::Number {
            shown: Shown::Hexadecimal,
            bytes: 8,
            bits: None,
        },
        count: None,
    };

    /// `u32`
    pub const U32: FieldType = FieldType {
        element: Element::Number {
            shown: Shown::Unsigned,
            bytes: 4,
            bits: None,
        },
        count: None,
    };

    /// `u64`
    pub const U64: FieldType = FieldType {
        element: Element::Number {
            shown: Shown::Unsigned,
            bytes: 8,
            bits: None,
        },
        count: None,
    };

    /// `f64`
    pub const F64: FieldType = FieldType {
        element: Element::Number {
            shown: Shown::Float,
            bytes: 8,
            bits: None,
        },
        count: None,
    };

    /// `string`
    pub const STRING: FieldType = FieldType {
        element: Element::String { user: false },
        count: None,
    };

    /// Type of one number without a bit field.
    #[must_use]
    pub const fn number(shown: Shown, bytes: u8) -> FieldType {
        FieldType {
            element: Element::Number {
                shown,
                bytes,
                bits: None,
            },
            count: None,
        }
    }

    /// True for floating point numbers and arrays of them.
    pub fn is_float(&self) -> bool {
        matches!(
            self.element,
            Element::Number {
                shown: Shown::Float,
                ..
            }
        )
    }

    /// Maximum number of addresses in a call stack, if none is given.
    pub const USUAL_FRAMES: u16 = 64;
    /// Maximum number of addresses in a call stack.
    pub const MOST_FRAMES: u16 = 128;

    /// `stack(FUNCTIONS)`
    pub const fn call_stack(frames: u16) -> FieldType {
        FieldType {
            element: Element::CallStack { frames },
            count: None,
        }
    }

    /// True for addresses that are shown as functions, and arrays of them.
    pub fn is_symbol(&self) -> bool {
        matches!(
            self.element,
            Element::Number {
                shown: Shown::Symbol,
                ..
            }
        )
    }

    /// True for strings and arrays of them, whose length is known only when they are read.
    pub fn is_string(&self) -> bool {
        matches!(self.element, Element::String { .. })
    }

    /// True for what no register holds: texts, arrays and IPv6 addresses.
    pub fn is_in_memory(&self) -> bool {
        self.is_string() || self.count.is_some() || self.element == Element::Ipv6
    }

    /// True for a call stack.
    pub fn is_call_stack(&self) -> bool {
        matches!(self.element, Element::CallStack { .. })
    }
}

/// Parses the type `text[start..end]`.
pub(crate) fn parse(text: &str, start: usize, end: usize) -> Result<FieldType, ParseError> {
    let word = &text[start..end];
    let (name, count) = match word.find('[') {
        Some(bracket) => {
            let count = array(text, start + bracket + 1, end)?;
            (&word[..bracket], Some(count))
        }
        None => (word, None),
    };
    let element = element(text, start, name)?;
    Ok(FieldType { element, count })
}

/// Parses the number of elements after the opening bracket.
fn array(text: &str, start: usize, end: usize) -> Result<u16, ParseError> {
    let inside = &text[start..end];
    let Some(close) = inside.find(']') else {
        let help = "write TYPE[COUNT]";
        return Err(ParseError::at(text, end, "array is not closed", help));
    };
    if close + 1 < inside.len() {
        let help = "an array has one dimension, and nothing stands behind it";
        let at = start + close + 1;
        return Err(ParseError::at(text, at, "array has wrong suffix", help));
    }
    let count = number::with_plus(&inside[..close])
        .map_err(|why| number::bad(text, start, "array size", &why))?;
    match count {
        0 => Err(number::bad(text, start, "array size", "it is zero")),
        1..=MAX_COUNT => Ok(count as u16),
        _ => {
            let message = format!("array number {count} is too big");
            let help = "an array has at most 64 elements";
            Err(ParseError::at(text, start, message, help))
        }
    }
}

/// Parses a type without its array suffix.
fn element(text: &str, start: usize, name: &str) -> Result<Element, ParseError> {
    let unknown = |help: &str| {
        let message = match name {
            "" => "the type is missing".to_string(),
            _ => format!("unknown type `{name}`"),
        };
        Err(ParseError::at(text, start, message, help))
    };
    let number = |shown, bytes| Element::Number {
        shown,
        bytes,
        bits: None,
    };
    Ok(match name {
        "char" => number(Shown::Character, 1),
        "symbol" => number(Shown::Symbol, 8),
        "be16" | "port" => number(Shown::Network, 2),
        "be32" => number(Shown::Network, 4),
        "be64" => number(Shown::Network, 8),
        "ipv4" => number(Shown::Ipv4, 4),
        "ipv6" => Element::Ipv6,
        "fd" => number(Shown::Descriptor, 4),
        "string" => Element::String { user: false },
        "ustring" => Element::String { user: true },
        "symstr" => return unknown("`symbol` shows an address as the function it lies in"),
        "stack" => return unknown("a call stack is a field of its own: stack or stack(SIZE)"),
        _ if name.starts_with("stack(") => {
            return unknown("a call stack is a field of its own: stack or stack(SIZE)");
        }
        "%pd" | "%pD" => return unknown("directory entries are in the kernel only"),
        _ if name.contains(')') => return unknown("the type stands behind the last brace"),
        _ if name.starts_with(LETTERS) && name.contains('@') => {
            return bit_field(text, start, name);
        }
        _ => {
            let shown = match name.chars().next() {
                Some('u') => Shown::Unsigned,
                Some('s') => Shown::Signed,
                Some('x') => Shown::Hexadecimal,
                Some('f') => Shown::Float,
                _ => return unknown(TYPES),
            };
            match &name[1..] {
                "8" | "16" if shown == Shown::Float => return unknown(TYPES),
                "8" => number(shown, 1),
                "16" => number(shown, 2),
                "32" => number(shown, 4),
                "64" => number(shown, 8),
                _ => return unknown(TYPES),
            }
        }
    })
}

/// Parses `bWIDTH@OFFSET/SIZE`, all in bits, with `b` or another of [`LETTERS`].
fn bit_field(text: &str, start: usize, name: &str) -> Result<Element, ParseError> {
    let bad = |why: &str| {
        let help = "write bWIDTH@OFFSET/SIZE in bits; SIZE is 8, 16, 32 or 64";
        let message = format!("invalid bitfield `{name}`: {why}");
        Err(ParseError::at(text, start, message, help))
    };
    let parts = name[1..].split_once('@');
    let Some((width, (offset, size))) =
        parts.and_then(|(width, rest)| Some((width, rest.split_once('/')?)))
    else {
        return bad("the size of its container is missing");
    };
    let (width, offset, size) = match (
        number::unsigned(width),
        number::unsigned(offset),
        number::with_plus(size),
    ) {
        (Ok(width), Ok(offset), Ok(size)) => (width, offset, size),
        (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => return bad(&why),
    };
    if !matches!(size, 8 | 16 | 32 | 64) {
        return bad(&format!("there is no container of {size} bits"));
    }
    if width == 0 {
        return bad("it has no bits");
    }
    if width.saturating_add(offset) > size {
        return bad("it ends behind its container");
    }
    let shown = match &name[..1] {
        "s" => Shown::Signed,
        "x" => Shown::Hexadecimal,
        "c" if width == 8 => Shown::Character,
        "c" => return bad("a character has 8 bits"),
        "f" if matches!(width, 32 | 64) => Shown::Float,
        "f" => return bad("a floating point number has 32 or 64 bits"),
        _ => Shown::Unsigned,
    };
    Ok(Element::Number {
        shown,
        bytes: (size / 8) as u8,
        bits: Some(Bits {
            width: width as u8,
            offset: offset as u8,
        }),
    })
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, bits) = match *self {
            Element::String { user: false } => return f.write_str("string"),
            Element::String { user: true } => return f.write_str("ustring"),
            Element::Ipv6 => return f.write_str("ipv6"),
            Element::CallStack { frames } => return write!(f, "stack({frames})"),
            Element::Number {
                shown,
                bytes,
                bits: Some(Bits { width, offset }),
            } => {
                let letter = match shown {
                    Shown::Unsigned | Shown::Symbol | Shown::Network | Shown::Ipv4 => 'b',
                    Shown::Signed | Shown::Descriptor => 's',
                    Shown::Hexadecimal => 'x',
                    Shown::Character => 'c',
                    Shown::Float => 'f',
                };
                return write!(f, "{letter}{width}@{offset}/{}", u16::from(bytes) * 8);
            }
            Element::Number { shown, bytes, .. } => match shown {
                Shown::Character => return f.write_str("char"),
                Shown::Symbol => return f.write_str("symbol"),
                Shown::Ipv4 => return f.write_str("ipv4"),
                Shown::Descriptor => return f.write_str("fd"),
                Shown::Network => return write!(f, "be{}", u16::from(bytes) * 8),
                Shown::Unsigned => ('u', u16::from(bytes) * 8),
                Shown::Signed => ('s', u16::from(bytes) * 8),
                Shown::Hexadecimal => ('x', u16::from(bytes) * 8),
                Shown::Float => ('f', u16::from(bytes) * 8),
            },
        };
        write!(f, "{letter}{bits}")
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.element.fmt(f)?;
        match self.count {
            Some(count) => write!(f, "[{count}]"),
            None => Ok(()),
        }
    }
}
