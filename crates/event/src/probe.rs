//! The intermediate form: a probe as plain data.

mod check;

use crate::aggregation::{Aggregate, Aggregation, KeyKind};
use crate::at::At;
use crate::fetch::{Base, FetchArg, Value};
use crate::guard::Guard;
use crate::parse::arguments::at_entry;
use crate::place::{ObjectRef, Place};

/// A probe: its place, the values that it reads there, and what it does with them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Name of the probe in messages: the text of its event, or else its place.
    pub label: String,
    /// The file that holds the code.
    pub object: ObjectRef,
    /// The place, or places, in that file.
    pub place: Place,
    /// Before the place is executed, or at the function's return.
    pub at: At,
    /// Group of the event; see [`EventSpec::DEFAULT_GROUP`](crate::EventSpec::DEFAULT_GROUP).
    pub group: Option<String>,
    /// Name of the event; `None` for that of the function or marker.
    pub name: Option<String>,
    /// File offset of a 16-bit counter that must be greater than zero for the program to reach the
    /// place.
    pub reference_counter: Option<u64>,
    /// Values that are read at each hit, at most 128, with distinct names.
    pub values: Vec<FetchArg>,
    /// Condition for all actions. Every field that it names is in `values`, in `guard_values` or in
    /// [`Guard::COMMON`] or is [`Guard::DURATION`], unless `$arg*` is among the values.
    pub guard: Option<Guard>,
    /// Values that only the guard reads: no action uses them. Their names need not be identifiers.
    pub guard_values: Vec<FetchArg>,
    /// Condition at the function's entry, for a probe at its return.
    pub entry: Option<Entry>,
    /// Actions of a hit, at most [`Probe::MAX_ACTIONS`]; [`Action::Record`] only as the first. Without
    /// any, the program only jumps away and back.
    pub actions: Vec<Action>,
    /// The start, or the end, of intervals from one event to another.
    pub pairing: Option<Pairing>,
    /// True for the entry or the exits of calls that are paired with each other. A function's name
    /// then means its own code only, not the copies that compilers make of it.
    pub of_calls: bool,
    /// True if nobody has asked for the probe: a place that cannot be probed is then no error, and
    /// no session is created for such probes alone.
    pub implied: bool,
}

/// Condition at a function's entry for a probe at its return: only calls that meet it are followed
/// to their end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Name of the entry, where a trace describes it.
    pub name: Option<String>,
    /// Values at the entry, for the guard. Their names need not be identifiers.
    pub values: Vec<FetchArg>,
    /// The condition; `None` follows all calls.
    pub guard: Option<Guard>,
}

/// Pairing of two probes, which measures the time from a hit of one to the next hit of the other with
/// the same key. Both have the same names here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pairing {
    /// Which of the two the probe is.
    pub side: Side,
    /// Names of the values that are the key, numbers of the same sizes in both probes; none: the
    /// thread is the key.
    pub key: Vec<String>,
    /// Names of the values of the start that are kept for the end, numbers. There they are
    /// [`Base::Started`].
    pub kept: Vec<String>,
}

/// One of the two probes of a [`Pairing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The start of intervals; its action is [`Action::Start`].
    Start,
    /// The end of intervals; only hits that end one have an effect.
    End,
}

impl Pairing {
    /// Maximum number of values of a key, together with those that are kept.
    pub const MOST: usize = 7;
}

/// Action of a probe at a hit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Records the hit with all values.
    Record,
    /// Updates the row of a map.
    Update {
        /// The map.
        map: Map,
        /// The keys that select the row, and the aggregates in it. The number of hits is always
        /// counted.
        aggregation: Aggregation,
    },
    /// Begins a call, and keeps the first so many values for its exits; the others are for the
    /// guard. The engine makes these probes, for values of the form [`Base::Entry`],
    /// [`Base::Latency`] and for [`Probe::entry`].
    Keep(usize),
    /// Starts an interval, see [`Pairing`].
    Start,
    /// Calls code in the program itself.
    Call(Call),
    /// Continues at this address of the program instead of at the place; the other actions come
    /// before.
    Replace(u64),
}

/// Code in the program that a probe calls with all registers in memory. It is a routine for this
/// purpose, not a C function: `library/hit.S` has it, and says what it finds where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// Address of the routine for places where the flags are dead.
    pub routine: u64,
    /// Address of the routine for all other places.
    pub with_flags: u64,
    /// The argument of either.
    pub argument: u64,
    /// True if it is called after the instruction at the place, which then must be one that the
    /// next instruction follows.
    pub after: bool,
}

/// A table of aggregates in the program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Map {
    /// A table of this action alone. Its rows are separated by site.
    Own,
    /// The table of this name in a session. All probes that name it update it; they have the same
    /// keys and aggregates, and their rows are separated by keys only.
    Shared(String),
}

/// The reason why a probe is not well-formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("probe `{label}`: {message}")]
pub struct ProbeError {
    /// The probe's label.
    pub label: String,
    /// The reason: a lower-case fragment without a full stop.
    pub message: String,
}

impl Map {
    /// Returns the table of this name.
    pub fn shared(name: impl Into<String>) -> Map {
        Map::Shared(name.into())
    }
}

impl Probe {
    /// Maximum number of actions.
    pub const MAX_ACTIONS: usize = 8;

    /// Creates a probe at a place, without values and actions.
    pub fn new(object: impl Into<ObjectRef>, place: Place, at: At) -> Probe {
        let object = object.into();
        let returns = match at {
            At::Entry => "",
            At::Return => "%return",
        };
        Probe {
            label: format!("{object}:{place}{returns}"),
            object,
            place,
            at,
            group: None,
            name: None,
            reference_counter: None,
            values: Vec::new(),
            guard: None,
            guard_values: Vec::new(),
            entry: None,
            actions: Vec::new(),
            pairing: None,
            of_calls: false,
            implied: false,
        }
    }

    /// Creates a probe at the entry of a function. The object is the start of a library's file
    /// name, a path, or nothing for the main program; the name may have
    /// [wildcards](Place::is_glob).
    pub fn at_function(object: impl Into<ObjectRef>, name: impl Into<String>) -> Probe {
        Probe::new(object, Place::function(name), At::Entry)
    }

    /// Creates a probe at the returns of a function, named as in [`Probe::at_function`].
    pub fn at_return(object: impl Into<ObjectRef>, name: impl Into<String>) -> Probe {
        Probe::new(object, Place::function(name), At::Return)
    }

    /// Creates a probe at a static marker; provider and name may be patterns. Without a
    /// [value](Probe::value) it reads none of the marker's arguments.
    pub fn at_marker(
        object: impl Into<ObjectRef>,
        provider: impl Into<String>,
        name: impl Into<String>,
    ) -> Probe {
        let place = Place::Static {
            provider: provider.into(),
            name: name.into(),
            format: None,
        };
        Probe::new(object, place, At::Entry)
    }

    /// Sets the name in messages.
    pub fn labelled(self, label: impl Into<String>) -> Probe {
        Probe {
            label: label.into(),
            ..self
        }
    }

    /// Names the event.
    pub fn named(self, name: impl Into<String>) -> Probe {
        Probe {
            name: Some(name.into()),
            ..self
        }
    }

    /// Adds a value with a name. At a return, an [argument](Value::argument) means its value at the
    /// function's entry.
    pub fn value(mut self, name: impl Into<String>, value: impl Into<Value>) -> Probe {
        let mut argument = argument(name, value);
        at_entry(&mut argument.fetch, self.at);
        self.values.push(argument);
        self
    }

    /// Adds `$arg*`: all arguments of the function or marker, by their names.
    pub fn all_arguments(mut self) -> Probe {
        self.values.push(FetchArg {
            named: false,
            ..argument("arg*", Base::AllArguments)
        });
        self
    }

    /// Sets the condition for the actions.
    pub fn when(self, guard: Guard) -> Probe {
        Probe {
            guard: Some(guard),
            ..self
        }
    }

    /// Adds a value at the function's entry, for [`Probe::entry_when`].
    pub fn entry_value(mut self, name: impl Into<String>, value: impl Into<Value>) -> Probe {
        let entry = self.entry.get_or_insert_default();
        entry.values.push(argument(name, value));
        self
    }

    /// Sets the condition at the function's entry: other calls are not followed to their end.
    pub fn entry_when(mut self, guard: Guard) -> Probe {
        self.entry.get_or_insert_default().guard = Some(guard);
        self
    }

    /// Records the hits; this becomes the first of the actions.
    pub fn record(mut self) -> Probe {
        self.actions.insert(0, Action::Record);
        self
    }

    /// Updates a map at each hit.
    pub fn update<K: Into<KeyKind>>(
        mut self,
        map: Map,
        keys: impl IntoIterator<Item = K>,
        aggregates: impl IntoIterator<Item = Aggregate>,
    ) -> Probe {
        let aggregation = Aggregation {
            aggregates: aggregates.into_iter().collect(),
            keys: keys.into_iter().map(Into::into).collect(),
        };
        self.actions.push(Action::Update { map, aggregation });
        self
    }

    /// Calls code in the program at each hit.
    pub fn call(mut self, call: Call) -> Probe {
        self.actions.push(Action::Call(call));
        self
    }

    /// Continues at an address of the program at each hit.
    pub fn replace(mut self, target: u64) -> Probe {
        self.actions.push(Action::Replace(target));
        self
    }

    /// Returns the aggregates and keys of all updates.
    pub fn aggregations(&self) -> impl Iterator<Item = &Aggregation> {
        self.actions.iter().filter_map(|action| match action {
            Action::Update { aggregation, .. } => Some(aggregation),
            Action::Record
            | Action::Keep(_)
            | Action::Start
            | Action::Call(_)
            | Action::Replace(_) => None,
        })
    }

    /// Returns all values that the probe reads, those of its actions before those of its guard.
    pub fn all_values(&self) -> impl Iterator<Item = &FetchArg> {
        self.values.iter().chain(&self.guard_values)
    }

    /// True if the probe starts intervals, which another one ends.
    #[must_use]
    pub fn starts_intervals(&self) -> bool {
        self.actions.contains(&Action::Start)
    }

    /// True if the probe ends intervals.
    #[must_use]
    pub fn ends_intervals(&self) -> bool {
        let pairing = self.pairing.as_ref();
        pairing.is_some_and(|pairing| pairing.side == Side::End)
    }

    /// Returns the value with this name, if it is not one for the guard alone.
    pub fn find(&self, name: &str) -> Option<&FetchArg> {
        self.values.iter().find(|value| value.name == name)
    }
}

/// Names a value.
fn argument(name: impl Into<String>, value: impl Into<Value>) -> FetchArg {
    FetchArg {
        name: name.into(),
        named: true,
        ..value.into().into()
    }
}
