//! What is made of many hits: aggregates, and the keys by which they are kept apart.

use std::fmt;

/// What an aggregate does with the values of its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `count()`: how many hits; has no field.
    Count,
    /// `sum(X)`
    Sum,
    /// `min(X)`: the least value.
    Minimum,
    /// `max(X)`: the greatest value.
    Maximum,
    /// `avg(X)`: the arithmetic mean.
    Average,
    /// `hist(X)`: how many values are about how great.
    Histogram,
}

/// A function of a field's values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Aggregate {
    /// Which function.
    pub function: Function,
    /// The name of the field in [`EventSpec::arguments`](crate::EventSpec::arguments). `None`
    /// for [`Function::Count`], and for no other. Where the field's type is known, it is a
    /// number, and neither a `char` nor a `symbol`; of variables debug information tells it.
    pub field: Option<String>,
    /// Where the function's name stands in the event's text: bytes from its start.
    pub at: usize,
}

/// What keeps hits apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// The value of the field that has this name in
    /// [`EventSpec::arguments`](crate::EventSpec::arguments). Not an array, where the type is
    /// known.
    Field(String),
    /// `tid`: the thread's number.
    Thread,
    /// `comm`: the thread's name.
    Comm,
    /// `cpu`: the CPU's number.
    Cpu,
}

/// One of what stands behind `by`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// What it is.
    pub kind: KeyKind,
    /// Where it stands in the event's text: bytes from its start.
    pub at: usize,
}

/// The aggregates and keys of an event: what `capriole stat` shows of it.
///
/// `Display` is one ordinary way to write them, with fields by their names:
/// `sum(n) hist(n) by fd, comm`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Aggregation {
    /// In the order of the text, no two the same; at most [`Aggregation::MAX_AGGREGATES`].
    pub aggregates: Vec<Aggregate>,
    /// In the order of the text, with different names; at most [`Aggregation::MAX_KEYS`].
    pub keys: Vec<Key>,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 6] = [
        Function::Count,
        Function::Sum,
        Function::Minimum,
        Function::Maximum,
        Function::Average,
        Function::Histogram,
    ];

    /// As it is written.
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
    /// The name of its column: the field's, `tid`, `comm` or `cpu`.
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
    /// How many aggregates an event may have.
    pub const MAX_AGGREGATES: usize = 16;

    /// How many keys an event may have.
    pub const MAX_KEYS: usize = 8;

    /// Whether there are neither aggregates nor keys.
    pub fn is_empty(&self) -> bool {
        self.aggregates.is_empty() && self.keys.is_empty()
    }

    /// Where the first aggregate, or else the first key, stands in the event's text: bytes from
    /// its start.
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
    /// With the field by its name: `sum(n)`, `count()`.
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
