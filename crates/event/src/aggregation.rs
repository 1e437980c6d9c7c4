//! Aggregation over many hits: aggregate functions, and the keys that group hits.

use crate::field_type::FieldType;
use std::fmt;

/// Aggregate function, applied to the values of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `count()`: number of hits; takes no field.
    Count,
    /// `sum(X)`
    Sum,
    /// `min(X)`: the smallest value.
    Minimum,
    /// `max(X)`: the largest value.
    Maximum,
    /// `avg(X)`: the arithmetic mean.
    Average,
    /// `hist(X)`: histogram with logarithmic buckets.
    Histogram,
}

/// An aggregate function applied to a field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Aggregate {
    /// The function.
    pub function: Function,
    /// Name of the value. `None` for [`Function::Count`] only. If the value's type is known, it is a
    /// number other than `char` and `symbol`; types of variables come from debug information.
    pub field: Option<String>,
}

/// Key that groups hits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// The value with this name. Not an array, if its type is known.
    Field(String),
    /// `tid`: the thread's id.
    Thread,
    /// `comm`: the thread's name.
    Comm,
    /// `cpu`: the CPU's number.
    Cpu,
    /// `stack`, `stack(FRAMES)`: the chain of callers, up to so many addresses, that of the hit
    /// included; 1 to [`FieldType::MOST_FRAMES`].
    Stack(u16),
}

/// Aggregates and keys: the columns of a [`Map`](crate::Map), as shown by `capriole stat`.
///
/// `Display` writes them in canonical form, with fields by name: `sum(n) hist(n) by fd, comm`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Aggregation {
    /// Aggregates in source order, without duplicates; at most [`Aggregation::MAX_AGGREGATES`].
    pub aggregates: Vec<Aggregate>,
    /// Keys in source order, with distinct names; at most [`Aggregation::MAX_KEYS`].
    pub keys: Vec<KeyKind>,
}

impl Function {
    /// All functions.
    pub const ALL: [Function; 6] = [
        Function::Count,
        Function::Sum,
        Function::Minimum,
        Function::Maximum,
        Function::Average,
        Function::Histogram,
    ];

    /// The function's name in an event.
    pub fn as_str(self) -> &'static str {
        match self {
            Function::Count => "count",
            Function::Sum => "sum",
            Function::Minimum => "min",
            Function::Maximum => "max",
            Function::Average => "avg",
            Function::Histogram => "hist",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Function> {
        Function::ALL.into_iter().find(|f| f.as_str() == name)
    }
}

impl Aggregate {
    /// Number of hits: `count()`.
    pub fn count() -> Aggregate {
        Aggregate {
            function: Function::Count,
            field: None,
        }
    }

    /// Creates the aggregate of the value with this name, for any function but
    /// [`Function::Count`].
    pub fn of(function: Function, value: impl Into<String>) -> Aggregate {
        Aggregate {
            function,
            field: Some(value.into()),
        }
    }

    /// Sum of a value, modulo 2^64.
    pub fn sum(value: impl Into<String>) -> Aggregate {
        Aggregate::of(Function::Sum, value)
    }

    /// Histogram of a value.
    pub fn histogram(value: impl Into<String>) -> Aggregate {
        Aggregate::of(Function::Histogram, value)
    }
}

impl From<&str> for KeyKind {
    /// Makes the value with this name a key.
    fn from(value: &str) -> KeyKind {
        KeyKind::Field(value.to_owned())
    }
}

impl KeyKind {
    /// The chain of callers, with the usual number of addresses.
    #[must_use]
    pub fn stack() -> KeyKind {
        KeyKind::Stack(FieldType::USUAL_FRAMES)
    }

    /// Name of the key's column: the value's name, `tid`, `comm`, `cpu` or `stack`.
    pub fn name(&self) -> &str {
        match self {
            KeyKind::Field(name) => name,
            KeyKind::Thread => "tid",
            KeyKind::Comm => "comm",
            KeyKind::Cpu => "cpu",
            KeyKind::Stack(_) => "stack",
        }
    }
}

impl Aggregation {
    /// Maximum number of aggregates of an event.
    pub const MAX_AGGREGATES: usize = 16;

    /// Maximum number of keys of an event.
    pub const MAX_KEYS: usize = 8;

    /// True if there are neither aggregates nor keys.
    pub fn is_empty(&self) -> bool {
        self.aggregates.is_empty() && self.keys.is_empty()
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Aggregate {
    /// Writes the aggregate with its field's name: `sum(n)`, `count()`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}({})",
            self.function,
            self.field.as_deref().unwrap_or("")
        )
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            KeyKind::Stack(FieldType::USUAL_FRAMES) => Ok(()),
            KeyKind::Stack(frames) => write!(f, "({frames})"),
            KeyKind::Field(_) | KeyKind::Thread | KeyKind::Comm | KeyKind::Cpu => Ok(()),
        }
    }
}

impl fmt::Display for Aggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, aggregate) in self.aggregates.iter().enumerate() {
            let before = if index > 0 { " " } else { "" };
            write!(f, "{before}{aggregate}")?;
        }
        for (index, key) in self.keys.iter().enumerate() {
            let before = match index {
                0 if self.aggregates.is_empty() => "by ",
                0 => " by ",
                _ => ", ",
            };
            write!(f, "{before}{key}")?;
        }
        Ok(())
    }
}
