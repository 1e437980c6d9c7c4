//! Filters: conditions that select the hits to record.

use std::fmt;

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
}

/// A condition; a hit that does not meet it is not recorded.
///
/// `!` binds more tightly than `&&`, which binds more tightly than `||`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Filter {
    /// `FIELD OPERATOR VALUE`
    Compare {
        /// Name of an argument of the event, or else one of [`Filter::COMMON`]; an argument with
        /// such a name takes precedence.
        field: String,
        /// Byte offset of the field in the event's text.
        at: usize,
        /// The operator.
        comparison: Comparison,
        /// The value.
        operand: Operand,
    },
    /// `!`
    Not(Box<Filter>),
    /// `&&`, of two or more
    And(Vec<Filter>),
    /// `||`, of two or more
    Or(Vec<Filter>),
}

impl Filter {
    /// Fields that every event can be filtered by: the thread's name (a string), its id, and the
    /// CPU's number.
    pub const COMMON: [&str; 6] = ["comm", "COMM", "tid", "common_pid", "cpu", "CPU"];

    /// Maximum nesting of parentheses and `!`.
    pub const MAX_DEPTH: usize = 32;

    /// Returns the names of all fields that the filter uses.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Filter::Compare { field, .. } => vec![field],
            Filter::Not(inner) => inner.names(),
            Filter::And(of) | Filter::Or(of) => of.iter().flat_map(Filter::names).collect(),
        }
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

impl fmt::Display for Filter {
    /// Writes the filter in canonical form, with parentheses around each `&&` and `||` inside
    /// another.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[Filter], operator: &str| {
            for (index, one) in all.iter().enumerate() {
                if index > 0 {
                    write!(f, " {operator} ")?;
                }
                match one {
                    Filter::And(_) | Filter::Or(_) => write!(f, "({one})")?,
                    _ => write!(f, "{one}")?,
                }
            }
            Ok(())
        };
        match self {
            Filter::Compare {
                field,
                comparison: Comparison::Matches,
                operand: Operand::Text(pattern),
                ..
            } => write!(f, "{field} ~ \"{}\"", quoted_pattern(pattern)),
            Filter::Compare {
                field,
                comparison,
                operand,
                ..
            } => write!(f, "{field} {} {operand}", comparison.as_str()),
            Filter::Not(inner) => write!(f, "!({inner})"),
            Filter::And(all) => list(f, all, "&&"),
            Filter::Or(all) => list(f, all, "||"),
        }
    }
}
