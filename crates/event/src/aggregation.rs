//! Aggregation over many hits: aggregate functions, and the keys that group hits.

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
    /// Name of the field in [`EventSpec::arguments`](crate::EventSpec::arguments). `None` for
    /// [`Function::Count`] only. If the field's type is known, it is a number other than `char` and
    /// `symbol`; types of variables come from debug information.
    pub field: Option<String>,
    /// Byte offset of the function's name in the event's text.
    pub at: usize,
}

/// Kind of key that groups hits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// The value of the field with this name in
    /// [`EventSpec::arguments`](crate::EventSpec::arguments). Not an array, if its type is known.
    Field(String),
    /// `tid`: the thread's id.
    Thread,
    /// `comm`: the thread's name.
    Comm,
    /// `cpu`: the CPU's number.
    Cpu,
}

/// One key of the `by` list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// Kind of key.
    pub kind: KeyKind,
    /// Byte offset of the key in the event's text.
    pub at: usize,
}

/// Aggregates and keys of an event, as shown by `capriole stat`.
///
/// `Display` writes them in canonical form, with fields by name: `sum(n) hist(n) by fd, comm`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Aggregation {
    /// Aggregates in source order, without duplicates; at most [`Aggregation::MAX_AGGREGATES`].
    pub aggregates: Vec<Aggregate>,
    /// Keys in source order, with distinct names; at most [`Aggregation::MAX_KEYS`].
    pub keys: Vec<Key>,
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

impl Key {
    /// Name of the key's column: the field's name, `tid`, `comm` or `cpu`.
    pub fn name(&self) -> &str {
        self.kind.name()
    }
}

impl KeyKind {
    /// The field's name, `tid`, `comm` or `cpu`.
    pub fn name(&self) -> &str {
        match self {
            KeyKind::Field(name) => name,
            KeyKind::Thread => "tid",
            KeyKind::Comm => "comm",
            KeyKind::Cpu => "cpu",
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

    /// Byte offset in the event's text of the first aggregate or, without aggregates, the first
    /// key.
    pub fn at(&self) -> Option<usize> {
        let aggregate = self.aggregates.first().map(|aggregate| aggregate.at);
        aggregate.or(self.keys.first().map(|key| key.at))
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

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
