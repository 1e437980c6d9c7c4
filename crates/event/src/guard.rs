//! Guards: conditions that select the hits with which a probe does something.

use std::fmt;
use std::time::Duration;

/// Comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`, of numbers only
    Less,
    /// `<=`, of numbers only
    LessOrEqual,
    /// `>`, of numbers only
    Greater,
    /// `>=`, of numbers only
    GreaterOrEqual,
    /// `&`: field and number have at least one set bit in common.
    Bits,
    /// `~`: the string matches a pattern, see [`glob_match`](crate::glob_match).
    Matches,
}

impl Comparison {
    /// True for `<`, `<=`, `>` and `>=`.
    pub(crate) fn is_order(self) -> bool {
        match self {
            Comparison::Less
            | Comparison::LessOrEqual
            | Comparison::Greater
            | Comparison::GreaterOrEqual => true,
            Comparison::Equal | Comparison::NotEqual | Comparison::Bits | Comparison::Matches => {
                false
            }
        }
    }

    /// The operator.
    pub fn as_str(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
            Comparison::Bits => "&",
            Comparison::Matches => "~",
        }
    }
}

/// Value that a field is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A number, or a character's code.
    Number {
        /// The number as two's complement: `-1` is `u64::MAX`.
        value: u64,
        /// The number is negative.
        negative: bool,
    },
    /// A string or a pattern, without quotes and without the backslashes before quotes.
    Text(String),
    /// An IPv6 address, for [`Comparison::Equal`] and [`Comparison::NotEqual`].
    Address(std::net::Ipv6Addr),
    /// A time, which [`Guard::DURATION`] is compared with.
    Duration(Duration),
    /// Names of values of the field's enumeration, and numbers, joined by `|`: `READY`,
    /// `READ|WRITE`. Debug information has their values. Not for [`Comparison::Matches`].
    Named(String),
}

/// A condition, in an event's text its filter: a probe does nothing at a hit that does not meet it.
///
/// `!` binds more tightly than `&&`, which binds more tightly than `||`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Guard {
    /// `FIELD OPERATOR VALUE`
    Compare {
        /// Name of a value of the probe, or else one of [`Guard::COMMON`], or, at a return,
        /// [`Guard::DURATION`]; a value with such a name takes precedence.
        field: String,
        /// The operator.
        comparison: Comparison,
        /// The value.
        operand: Operand,
    },
    /// `!`
    Not(Box<Guard>),
    /// `&&`, of two or more
    And(Vec<Guard>),
    /// `||`, of two or more
    Or(Vec<Guard>),
}

impl Guard {
    /// Fields that every guard can compare: the thread's name (a string), its id, and the
    /// CPU's number.
    pub const COMMON: [&str; 6] = ["comm", "COMM", "tid", "common_pid", "cpu", "CPU"];

    /// Field that every guard at a return can compare: the duration of the call that ends. Only
    /// [`Comparison::Less`] and the like, with an [`Operand::Duration`].
    pub const DURATION: &str = "duration";

    /// Maximum nesting of parentheses and `!`.
    pub const MAX_DEPTH: usize = 32;

    /// Compares a field.
    pub fn compare(
        field: impl Into<String>,
        comparison: Comparison,
        operand: impl Into<Operand>,
    ) -> Guard {
        Guard::Compare {
            field: field.into(),
            comparison,
            operand: operand.into(),
        }
    }

    /// `FIELD == VALUE`
    pub fn equal(field: impl Into<String>, value: impl Into<Operand>) -> Guard {
        Guard::compare(field, Comparison::Equal, value)
    }

    /// `FIELD < NUMBER`
    pub fn less(field: impl Into<String>, value: impl Into<Operand>) -> Guard {
        Guard::compare(field, Comparison::Less, value)
    }

    /// `FIELD > NUMBER`
    pub fn greater(field: impl Into<String>, value: impl Into<Operand>) -> Guard {
        Guard::compare(field, Comparison::Greater, value)
    }

    /// `FIELD >= NUMBER`
    pub fn at_least(field: impl Into<String>, value: impl Into<Operand>) -> Guard {
        Guard::compare(field, Comparison::GreaterOrEqual, value)
    }

    /// `&&`
    pub fn and(self, other: Guard) -> Guard {
        let mut all = match self {
            Guard::And(all) => all,
            one => vec![one],
        };
        all.push(other);
        Guard::And(all)
    }

    /// `||`
    pub fn or(self, other: Guard) -> Guard {
        let mut all = match self {
            Guard::Or(all) => all,
            one => vec![one],
        };
        all.push(other);
        Guard::Or(all)
    }

    /// True if each `&&` and `||` has two conditions or more.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Guard::Compare { .. } => true,
            Guard::Not(inner) => inner.is_whole(),
            Guard::And(of) | Guard::Or(of) => of.len() > 1 && of.iter().all(Guard::is_whole),
        }
    }

    /// Nesting of the guard, in the sense of [`Guard::MAX_DEPTH`].
    pub(crate) fn depth(&self) -> usize {
        let deepest = |of: &[Guard]| of.iter().map(Guard::depth).max().unwrap_or(0);
        match self {
            Guard::Compare { .. } => 0,
            Guard::Not(inner) => 1 + inner.depth(),
            Guard::And(of) | Guard::Or(of) => 1 + deepest(of),
        }
    }

    /// Returns the guard with each comparison replaced by the result of `change`.
    ///
    /// # Errors
    /// The first error of `change`.
    pub fn try_map<E>(
        &self,
        change: &mut impl FnMut(&Guard) -> Result<Guard, E>,
    ) -> Result<Guard, E> {
        Ok(match self {
            Guard::Compare { .. } => change(self)?,
            Guard::Not(inner) => Guard::Not(Box::new(inner.try_map(change)?)),
            Guard::And(of) => Guard::And(
                of.iter()
                    .map(|one| one.try_map(change))
                    .collect::<Result<_, E>>()?,
            ),
            Guard::Or(of) => Guard::Or(
                of.iter()
                    .map(|one| one.try_map(change))
                    .collect::<Result<_, E>>()?,
            ),
        })
    }

    /// Returns the names of all fields that the guard uses.
    pub fn names(&self) -> Vec<&str> {
        let all = self.comparisons().into_iter();
        all.map(|(field, ..)| field).collect()
    }

    /// Returns all comparisons of the guard.
    pub(crate) fn comparisons(&self) -> Vec<(&str, Comparison, &Operand)> {
        match self {
            Guard::Compare {
                field,
                comparison,
                operand,
            } => vec![(field, *comparison, operand)],
            Guard::Not(inner) => inner.comparisons(),
            Guard::And(of) | Guard::Or(of) => of.iter().flat_map(Guard::comparisons).collect(),
        }
    }
}

impl std::ops::Not for Guard {
    type Output = Guard;

    fn not(self) -> Guard {
        Guard::Not(Box::new(self))
    }
}

impl From<u64> for Operand {
    fn from(value: u64) -> Operand {
        Operand::Number {
            value,
            negative: false,
        }
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Operand {
        Operand::Number {
            value: i64::from(value) as u64,
            negative: value < 0,
        }
    }
}

impl From<Duration> for Operand {
    fn from(time: Duration) -> Operand {
        Operand::Duration(time)
    }
}

impl From<&str> for Operand {
    fn from(text: &str) -> Operand {
        Operand::Text(text.to_owned())
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Number {
                value,
                negative: true,
            } => write!(f, "{}", *value as i64),
            Operand::Number { value, .. } => write!(f, "{value}"),
            Operand::Address(address) => write!(f, "{address}"),
            Operand::Named(names) => f.write_str(names),
            Operand::Duration(time) => {
                let nanoseconds = time.as_nanos();
                let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)];
                let mut units = units.into_iter();
                let whole = units.find(|(_, scale)| nanoseconds.is_multiple_of(*scale));
                let (unit, scale) = whole.unwrap_or(("ns", 1));
                write!(f, "{}{unit}", nanoseconds / scale)
            }
            Operand::Text(text) => {
                let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
                write!(f, "\"{escaped}\"")
            }
        }
    }
}

/// Escapes a pattern for use between quotes; its own backslashes stay.
fn quoted_pattern(pattern: &str) -> String {
    let mut result = String::with_capacity(pattern.len() + 2);
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => result.push_str("\\\""),
            '\\' => result.extend(std::iter::once('\\').chain(chars.next())),
            c => result.push(c),
        }
    }
    result
}

impl fmt::Display for Guard {
    /// Writes the guard in canonical form, with parentheses around each `&&` and `||` inside
    /// another.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[Guard], operator: &str| {
            for (index, one) in all.iter().enumerate() {
                if index > 0 {
                    write!(f, " {operator} ")?;
                }
                match one {
                    Guard::And(_) | Guard::Or(_) => write!(f, "({one})")?,
                    _ => write!(f, "{one}")?,
                }
            }
            Ok(())
        };
        match self {
            Guard::Compare {
                field,
                comparison: Comparison::Matches,
                operand: Operand::Text(pattern),
                ..
            } => write!(f, "{field} ~ \"{}\"", quoted_pattern(pattern)),
            Guard::Compare {
                field,
                comparison,
                operand,
                ..
            } => write!(f, "{field} {} {operand}", comparison.as_str()),
            Guard::Not(inner) => write!(f, "!({inner})"),
            Guard::And(all) => list(f, all, "&&"),
            Guard::Or(all) => list(f, all, "||"),
        }
    }
}
