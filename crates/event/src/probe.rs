//! The intermediate form: a probe as plain data.

use crate::aggregation::{Aggregate, Aggregation, Function, KeyKind};
use crate::at::At;
use crate::fetch::{Base, Fetch, FetchArg, Value};
use crate::field_type::FieldType;
use crate::guard::Guard;
use crate::names::{self, Kind};
use crate::parse::aggregation::{no_key, no_number};
use crate::parse::arguments::{MAX_ARGUMENTS, Where, at_entry, misfit};
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
    /// Condition for all actions. Every field that it names is in `values` or in
    /// [`Guard::COMMON`], unless `$arg*` is among the values.
    pub guard: Option<Guard>,
    /// Condition at the function's entry, for a probe at its return.
    pub entry: Option<Entry>,
    /// Actions of a hit, at most one of which is [`Action::Record`]. None is allowed: the program
    /// only jumps away and back.
    pub actions: Vec<Action>,
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
    /// Values at the entry, for the guard.
    pub values: Vec<FetchArg>,
    /// The condition; `None` follows all calls.
    pub guard: Option<Guard>,
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
            entry: None,
            actions: Vec::new(),
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

    /// Records the hits.
    pub fn record(mut self) -> Probe {
        // The fields of the record are those by which the probe is known.
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

    /// Returns the aggregates and keys of all updates.
    pub fn aggregations(&self) -> impl Iterator<Item = &Aggregation> {
        self.actions.iter().filter_map(|action| match action {
            Action::Update { aggregation, .. } => Some(aggregation),
            Action::Record | Action::Keep(_) => None,
        })
    }

    /// Returns the value with this name.
    pub fn find(&self, name: &str) -> Option<&FetchArg> {
        self.values.iter().find(|value| value.name == name)
    }

    /// Checks what the parser guarantees of a parsed event.
    ///
    /// # Errors
    ///
    /// A name, a value, a guard or an action is not well-formed, or they do not fit together.
    pub fn check(&self) -> Result<(), ProbeError> {
        self.misfit().map_or(Ok(()), |message| {
            Err(ProbeError {
                label: self.label.clone(),
                message,
            })
        })
    }

    fn misfit(&self) -> Option<String> {
        let function = matches!(
            self.place,
            Place::Symbol { offset: 0, .. } | Place::FileOffset(_)
        );
        if self.at == At::Return && !function {
            return Some("only functions have a return".to_owned());
        }
        if self.at == At::Entry && self.entry.is_some() {
            return Some("a condition at the entry is for a probe at the return".to_owned());
        }
        for (name, kind) in [(&self.group, Kind::Group), (&self.name, Kind::Event)] {
            if let Some(name) = name
                && let Err(error) = names::event(name, 0, name, kind)
            {
                return Some(error.message);
            }
        }
        let of_entry = self.entry.iter().map(|e| (&e.values, &e.guard, At::Entry));
        let own = (&self.values, &self.guard, self.at);
        of_entry
            .chain([own])
            .find_map(|(values, guard, at)| self.no_values(values, guard.as_ref(), at))
            .or_else(|| self.no_actions())
    }

    fn no_values(&self, values: &[FetchArg], guard: Option<&Guard>, at: At) -> Option<String> {
        if values.len() > MAX_ARGUMENTS {
            return Some(format!("it has more than {MAX_ARGUMENTS} values"));
        }
        // The guard of a parsed event has an `&&` or `||` at each level of parentheses.
        if guard.is_some_and(|guard| guard.depth() > 2 * Guard::MAX_DEPTH + 1) {
            return Some("the guard is nested too deeply".to_owned());
        }
        let at_site = Where {
            at,
            is_marker: matches!(self.place, Place::Static { .. }),
        };
        for (index, value) in values.iter().enumerate() {
            let name = &value.name;
            let named = match value.fetch.base {
                Base::AllArguments => None,
                _ => names::argument(name, 0, name).err(),
            };
            let misfit = || misfit(value, at_site).map(|misfit| misfit.message);
            let message = match named {
                Some(error) => Some(error.message),
                None if values[..index].iter().any(|other| other.name == *name) => {
                    Some("the name is already used".to_owned())
                }
                None if at == At::Entry && value.fetch.base == Base::Latency => {
                    Some("how long a call took is known at its end only".to_owned())
                }
                None if !is_valid(&value.fetch, value.field_type) => {
                    Some("no event can have this value".to_owned())
                }
                None => misfit(),
            };
            if let Some(message) = message {
                return Some(format!("value `{value}`: {message}"));
            }
        }
        None
    }

    fn no_actions(&self) -> Option<String> {
        let records = |action: &&Action| **action == Action::Record;
        if self.actions.len() > Probe::MAX_ACTIONS {
            return Some(format!("it has more than {} actions", Probe::MAX_ACTIONS));
        }
        if self.actions.iter().filter(records).count() > 1 {
            return Some("it records twice".to_owned());
        }
        if self.actions.iter().any(|a| matches!(a, Action::Keep(_))) {
            return Some("values are kept by probes at the return that need them".to_owned());
        }
        self.aggregations().find_map(|aggregation| {
            let Aggregation { aggregates, keys } = aggregation;
            if aggregates.len() > Aggregation::MAX_AGGREGATES || keys.len() > Aggregation::MAX_KEYS
            {
                return Some("a map has too many aggregates or keys".to_owned());
            }
            let aggregates = aggregates.iter().enumerate();
            let aggregates = aggregates.map(|(index, aggregate)| {
                let others = &aggregation.aggregates[..index];
                match others.contains(aggregate) {
                    true => Some(format!("{aggregate} is asked for twice")),
                    false => self.no_aggregate(aggregate),
                }
            });
            let keys = keys.iter().enumerate().map(|(index, key)| {
                let others = &aggregation.keys[..index];
                match others.iter().any(|other| other.name() == key.name()) {
                    true => Some(format!("the key {key} stands twice")),
                    false => self.no_key(key),
                }
            });
            aggregates.chain(keys).flatten().next()
        })
    }

    fn no_aggregate(&self, aggregate: &Aggregate) -> Option<String> {
        let Aggregate { function, field } = aggregate;
        let name = match (function, field) {
            (Function::Count, None) => return None,
            (Function::Count, Some(_)) => return Some("count takes no field".to_owned()),
            (_, None) => return Some(format!("{function} needs a field")),
            (_, Some(name)) => name,
        };
        let Some(value) = self.find(name) else {
            return Some(format!("{aggregate} is of no value of the probe"));
        };
        if value.fetch.base == Base::Latency && *function != Function::Histogram {
            return Some(format!(
                "{aggregate}: a duration is measured by a histogram"
            ));
        }
        let (is, ..) = no_number(value, name)?;
        Some(format!("{function} needs a number, {name} {is}"))
    }

    fn no_key(&self, key: &KeyKind) -> Option<String> {
        let KeyKind::Field(name) = key else {
            return None;
        };
        let Some(value) = self.find(name) else {
            return Some(format!("the key {key} is no value of the probe"));
        };
        let (is, ..) = no_key(value)?;
        Some(format!("a key is one value, {name} {is}"))
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

/// True if the grammar has this value and type, so that all numbers in them are in range.
fn is_valid(fetch: &Fetch, field_type: Option<FieldType>) -> bool {
    let known = |t: FieldType| t.to_string().parse() == Ok(t);
    let inner = match &fetch.base {
        // These have no syntax as values.
        Base::Latency => fetch.derefs.is_empty() && field_type == Some(FieldType::U64),
        Base::CallStack(bytes) => {
            fetch.derefs.is_empty() && field_type.is_none() && known(FieldType::call_stack(*bytes))
        }
        Base::Entry(value) => {
            let nested = matches!(value.fetch.base, Base::Entry(_) | Base::Latency);
            let outer = Fetch {
                base: Base::Immediate(0),
                derefs: fetch.derefs.clone(),
            };
            !nested && is_valid(&value.fetch, value.field_type) && is_valid(&outer, None)
        }
        _ => fetch.to_string().parse().as_ref() == Ok(fetch),
    };
    inner && field_type.is_none_or(known)
}
