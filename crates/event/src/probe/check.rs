//! Checks of probes that were built in code, by the rules that the parser has for texts.

use super::{Action, Probe, ProbeError};
use crate::aggregation::{Aggregate, Aggregation, Function, KeyKind};
use crate::at::At;
use crate::fetch::{Base, Fetch, FetchArg};
use crate::field_type::FieldType;
use crate::guard::{Comparison, Guard, Operand};
use crate::names::{self, Kind};
use crate::parse::aggregation::{no_key, no_number};
use crate::parse::arguments::{MAX_ARGUMENTS, Where, misfit};
use crate::place::Place;

impl Probe {
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
        let none = &Vec::new();
        let of_entry = self.entry.iter();
        let of_entry = of_entry.map(|e| ((none, &e.values), &e.guard, At::Entry));
        let own = ((&self.values, &self.guard_values), &self.guard, self.at);
        of_entry
            .chain([own])
            .find_map(|(values, guard, at)| self.no_values(values, guard.as_ref(), at))
            .or_else(|| self.no_actions())
    }

    fn no_values(
        &self,
        (of_actions, of_guard): (&Vec<FetchArg>, &Vec<FetchArg>),
        guard: Option<&Guard>,
        at: At,
    ) -> Option<String> {
        let values: Vec<&FetchArg> = of_actions.iter().chain(of_guard).collect();
        if values.len() > MAX_ARGUMENTS {
            return Some(format!("it has more than {MAX_ARGUMENTS} values"));
        }
        if let Some(guard) = guard {
            let of_all = values.iter().any(|v| v.fetch.base == Base::AllArguments);
            let is_value = |name: &str| values.iter().any(|v| v.name == *name);
            let is_duration =
                |name: &str| at == At::Return && name == Guard::DURATION && !is_value(name);
            let known = |name: &&str| {
                of_all || Guard::COMMON.contains(name) || is_value(name) || is_duration(name)
            };
            for (name, comparison, operand) in guard.comparisons() {
                let is_time = matches!(operand, Operand::Duration(_));
                if is_time != is_duration(name) || is_time && !comparison.is_order() {
                    return Some(format!(
                        "the guard compares {name} with {operand}; at a return `{}` is compared \
                         with a time, by <, <=, > or >=",
                        Guard::DURATION
                    ));
                }
            }
            let mut comparisons = guard.comparisons().into_iter();
            let named = |operand: &Operand| matches!(operand, Operand::Named(_));
            if let Some((name, ..)) =
                comparisons.find(|(_, by, operand)| *by == Comparison::Matches && named(operand))
            {
                return Some(format!("the guard compares {name} by ~ with a name"));
            }
            if !guard.is_whole() {
                return Some(
                    "the guard has an `&&` or `||` of less than two conditions".to_owned(),
                );
            }
            if let Some(name) = guard.names().into_iter().find(|name| !known(name)) {
                return Some(format!(
                    "the guard asks for {name}, which is no value of the probe"
                ));
            }
        }
        // The guard of a parsed event has an `&&` or `||` at each level of parentheses.
        if guard.is_some_and(|guard| guard.depth() > 2 * Guard::MAX_DEPTH + 1) {
            return Some("the guard is nested too deeply".to_owned());
        }
        let at_site = Where {
            at,
            is_marker: matches!(self.place, Place::Static { .. }),
            kernel_names: false,
        };
        for (index, value) in values.iter().enumerate() {
            let name = &value.name;
            let named = match value.fetch.base {
                Base::AllArguments => None,
                _ if index >= of_actions.len() => None,
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
                None if !is_valid(&value.fetch, value.field_type)
                    || value.length.as_deref().is_some_and(|length| {
                        length.fetch.base == Base::Latency
                            || !is_valid(&length.fetch, length.field_type)
                    }) =>
                {
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
        if self.actions.len() > Probe::MAX_ACTIONS {
            return Some(format!("it has more than {} actions", Probe::MAX_ACTIONS));
        }
        if self.actions.iter().skip(1).any(|a| *a == Action::Record) {
            return Some("it may record once, before its other actions".to_owned());
        }
        if self.actions.iter().any(|a| matches!(a, Action::Keep(_))) {
            return Some("values are kept by probes at the return that need them".to_owned());
        }
        if self.pairing.is_some() || self.starts_intervals() {
            return Some("intervals are made of two probes, from the text of an event".to_owned());
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
        let name = match key {
            KeyKind::Field(name) => name,
            KeyKind::Stack(1..=FieldType::MOST_FRAMES) => return None,
            KeyKind::Stack(frames) => {
                return Some(format!(
                    "a call stack of {frames} functions cannot be a key"
                ));
            }
            KeyKind::Thread | KeyKind::Comm | KeyKind::Cpu => return None,
        };
        let Some(value) = self.find(name) else {
            return Some(format!("the key {key} is no value of the probe"));
        };
        let (is, ..) = no_key(value)?;
        Some(format!("a key is one value, {name} {is}"))
    }
}

/// True if the grammar has this value and type, so that all numbers in them are in range.
fn is_valid(fetch: &Fetch, field_type: Option<FieldType>) -> bool {
    let known = |t: FieldType| t.to_string().parse() == Ok(t);
    let inner = match &fetch.base {
        // These have no syntax as values.
        Base::Latency => fetch.derefs.is_empty() && field_type == Some(FieldType::U64),
        Base::Interval | Base::Started(_) => false,
        Base::RetvalWord => fetch.derefs.is_empty() && field_type.is_none(),
        Base::CallStack(frames) => {
            fetch.derefs.is_empty() && field_type.is_none() && known(FieldType::call_stack(*frames))
        }
        Base::Entry(value) => {
            // The result of a call is not known at its entry.
            let nested = matches!(
                value.fetch.base,
                Base::Entry(_)
                    | Base::Latency
                    | Base::Interval
                    | Base::Started(_)
                    | Base::Retval
                    | Base::RetvalWord
            );
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
