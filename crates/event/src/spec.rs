//! The parsed event.

use crate::aggregation::Aggregation;
use crate::at::At;
use crate::fetch::FetchArg;
use crate::guard::Guard;
use crate::place::{ObjectRef, Place};
use crate::probe::{Action, Map, Probe};

/// The text of an event as it was parsed. [`Probe`] is its meaning.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventSpec {
    /// Source text of the event, for messages.
    pub text: String,
    /// Before the place is executed, or at the function's return.
    pub at: At,
    /// `GROUP` of `p:GROUP/EVENT`; see [`EventSpec::DEFAULT_GROUP`].
    pub group: Option<String>,
    /// `EVENT` of `p:GROUP/EVENT`.
    pub name: Option<String>,
    /// The file that holds the code.
    pub object: ObjectRef,
    /// The place, or places, in that file.
    pub place: Place,
    /// File offset of a 16-bit counter that must be greater than zero for the program to reach the
    /// place: `PATH:OFFSET(COUNTER)`.
    pub reference_counter: Option<u64>,
    /// Values to record at each hit, in the given order; at most 128, with distinct names. For a
    /// static marker without arguments in the event, `$arg*`.
    pub arguments: Vec<FetchArg>,
    /// Aggregation over all hits. Every field that it names is in `arguments`, also if it was
    /// written inside an aggregate or after `by`.
    pub aggregation: Aggregation,
    /// Condition for recording a hit. Every field that it names is in `arguments`, in
    /// `filter_values` or in [`Guard::COMMON`] or is [`Guard::DURATION`], unless `$arg*` is among the
    /// arguments.
    pub filter: Option<Guard>,
    /// Values that only the filter reads, named as they are written: `r->size`.
    pub filter_values: Vec<FetchArg>,
    pub(crate) columns: Columns,
}

/// Byte offsets in the text of the parts of an event, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Columns {
    /// Columns of the arguments, including their names.
    pub arguments: Vec<usize>,
    pub aggregates: Vec<usize>,
    pub keys: Vec<usize>,
    pub named: Vec<NamedOperand>,
}

/// An [`Operand::Named`](crate::Operand::Named) of the filter, with the byte offset of its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NamedOperand {
    pub field: String,
    pub names: String,
    pub column: usize,
}

impl EventSpec {
    /// Group of events without one.
    pub const DEFAULT_GROUP: &str = "uprobes";

    /// Maximum length of an event's text, in bytes without surrounding blanks. Finding the end of a
    /// symbol takes time quadratic in its length.
    pub const MAX_LENGTH: usize = 1 << 14;

    /// Byte offset in the event's text of the first aggregate or, without aggregates, the first
    /// key.
    pub fn aggregation_column(&self) -> Option<usize> {
        let Columns {
            aggregates, keys, ..
        } = &self.columns;
        aggregates.first().or(keys.first()).copied()
    }

    /// Returns the byte offset in the event's text of the names that its filter compares a field
    /// with.
    pub fn column_of_names(&self, field: &str, names: &str) -> Option<usize> {
        let mut all = self.columns.named.iter();
        let found = all.find(|named| named.field == field && named.names == names);
        found.map(|named| named.column)
    }

    /// Returns the probe that counts the event's hits, in a table of its own.
    pub fn counted(self) -> Probe {
        let action = Action::Update {
            map: Map::Own,
            aggregation: self.aggregation.clone(),
        };
        self.with(action)
    }

    fn with(self, action: Action) -> Probe {
        Probe {
            label: self.text,
            object: self.object,
            place: self.place,
            at: self.at,
            group: self.group,
            name: self.name,
            reference_counter: self.reference_counter,
            values: self.arguments,
            guard: self.filter,
            guard_values: self.filter_values,
            entry: None,
            actions: vec![action],
            pairing: None,
            of_calls: false,
            implied: false,
        }
    }
}

impl From<EventSpec> for Probe {
    /// Returns the probe that records the event's hits, or counts them if it has aggregates or keys.
    fn from(spec: EventSpec) -> Probe {
        match spec.aggregation.is_empty() {
            true => spec.with(Action::Record),
            false => spec.counted(),
        }
    }
}
