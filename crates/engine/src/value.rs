//! Values of fields, owned.

use capriole_trace::{StackEnd, Value as Borrowed};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A number shown in decimal.
    Unsigned(u64),
    /// A number with a sign.
    Signed(i64),
    /// A number shown in hexadecimal.
    Hexadecimal(u64),
    /// A floating point number of 32 bits.
    Single(f32),
    /// A floating point number of 64 bits.
    Double(f64),
    /// A character, in the program's encoding.
    Character(u8),
    /// An address.
    Symbol(u64),
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// An IPv6 address.
    Ipv6(Ipv6Addr),
    /// Text without the terminating NUL, in the program's encoding.
    Text(Vec<u8>),
    /// The chain of callers.
    CallStack {
        /// The address of the hit, then return addresses.
        addresses: Vec<u64>,
        /// The reason why there are no more.
        end: StackEnd,
    },
    /// Several values of one type.
    Array(Vec<Value>),
    /// The field could not be read when the event was recorded.
    Unreadable,
}

impl Value {
    /// Returns the bytes of a text.
    #[must_use]
    pub fn as_text(&self) -> Option<&[u8]> {
        match self {
            Value::Text(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the number, if it is one that fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Signed(number) => Some(*number),
            other => i64::try_from(other.as_u64()?).ok(),
        }
    }

    /// Returns the number, if it is one that fits.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(number) | Value::Hexadecimal(number) | Value::Symbol(number) => {
                Some(*number)
            }
            Value::Signed(number) => u64::try_from(*number).ok(),
            Value::Character(character) => Some(u64::from(*character)),
            Value::Ipv4(address) => Some(u64::from(u32::from(*address))),
            Value::Single(_)
            | Value::Double(_)
            | Value::Ipv6(_)
            | Value::Text(_)
            | Value::CallStack { .. }
            | Value::Array(_)
            | Value::Unreadable => None,
        }
    }
}

impl From<Borrowed<'_>> for Value {
    fn from(value: Borrowed<'_>) -> Value {
        match value {
            Borrowed::Unsigned(number) => Value::Unsigned(number),
            Borrowed::Signed(number) => Value::Signed(number),
            Borrowed::Hexadecimal(number) => Value::Hexadecimal(number),
            Borrowed::Single(number) => Value::Single(number),
            Borrowed::Double(number) => Value::Double(number),
            Borrowed::Character(character) => Value::Character(character),
            Borrowed::Symbol(address) => Value::Symbol(address),
            Borrowed::Ipv4(address) => Value::Ipv4(address),
            Borrowed::Ipv6(address) => Value::Ipv6(address),
            Borrowed::Descriptor(descriptor) => Value::Signed(i64::from(descriptor.number)),
            Borrowed::Enumerated(number) => match number.signed {
                true => Value::Signed(number.value),
                false => Value::Unsigned(number.value.cast_unsigned()),
            },
            Borrowed::Text(bytes) => Value::Text(bytes.to_vec()),
            Borrowed::CallStack(stack) => Value::CallStack {
                addresses: stack.addresses().collect(),
                end: stack.end,
            },
            Borrowed::Array(array) => Value::Array(array.iter().map(Value::from).collect()),
            Borrowed::Fault => Value::Unreadable,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(number) => write!(f, "{number}"),
            Value::Signed(number) => write!(f, "{number}"),
            Value::Hexadecimal(number) | Value::Symbol(number) => write!(f, "{number:#x}"),
            Value::Single(number) => write!(f, "{number}"),
            Value::Double(number) => write!(f, "{number}"),
            Value::Character(character) => write!(f, "'{}'", character.escape_ascii()),
            Value::Ipv4(address) => write!(f, "{address}"),
            Value::Ipv6(address) => write!(f, "{address}"),
            Value::Text(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Value::CallStack { addresses, .. } => {
                for (index, address) in addresses.iter().enumerate() {
                    let arrow = if index > 0 { " < " } else { "" };
                    write!(f, "{arrow}{address:#x}")?;
                }
                Ok(())
            }
            Value::Array(values) => {
                f.write_str("{")?;
                for (index, value) in values.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{value}")?;
                }
                f.write_str("}")
            }
            Value::Unreadable => f.write_str("(fault)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_the_reports_show_them() {
        let shown = |value: Value| value.to_string();
        assert_eq!(shown(Value::Hexadecimal(31)), "0x1f");
        assert_eq!(shown(Value::Signed(-5)), "-5");
        assert_eq!(shown(Value::Character(b'\n')), "'\\n'");
        assert_eq!(shown(Value::Text(b"a\"b".to_vec())), "\"a\\\"b\"");
        let array = Value::Array(vec![Value::Unsigned(1), Value::Unreadable]);
        assert_eq!(shown(array), "{1,(fault)}");
        assert_eq!(Value::Signed(-1).as_u64(), None);
        assert_eq!(Value::Signed(7).as_u64(), Some(7));
        assert_eq!(Value::Signed(-1).as_i64(), Some(-1));
        assert_eq!(Value::Unsigned(u64::MAX).as_i64(), None);
        assert_eq!(Value::Text(b"a".to_vec()).as_text(), Some(&b"a"[..]));
    }
}
