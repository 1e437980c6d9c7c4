//! Values that an event at a function's exits takes from its entry (`$entry:NAME`): a separate
//! event at the entry keeps them; it begins calls and records nothing.

use crate::event::{CallSpec, Event};
use capriole_event::{Aggregation, At, Base, EntryValue, EventSpec, Fetch, FetchArg, FieldType};

/// A value that is kept, and its requested type.
pub type Kept = (Fetch, Option<FieldType>);

/// Returns the value that a field of an exit needs from the entry, if any.
pub fn kept(argument: &FetchArg) -> Option<Kept> {
    let Base::Entry(entry) = &argument.fetch.base else {
        return None;
    };
    let EntryValue { fetch, field_type } = &**entry;
    // A dereference at the exit starts at a kept address.
    let wanted = match argument.fetch.derefs.is_empty() {
        true => argument.field_type.or(*field_type),
        false => field_type.or(Some(FieldType::X64)),
    };
    let wanted = wanted.filter(|_| fetch.base != Base::AllArguments);
    Some((fetch.clone(), wanted))
}

/// Returns all values that the fields of an exit need from the entry, each once, with the field's
/// name.
pub fn all_kept(exit: &EventSpec) -> Vec<(String, Kept)> {
    let mut all: Vec<(String, Kept)> = Vec::new();
    for argument in &exit.arguments {
        if let Some(kept) = kept(argument)
            && !all.iter().any(|(_, known)| *known == kept)
        {
            all.push((argument.name.clone(), kept));
        }
    }
    all
}

/// Returns the fields of the entry that keep these values.
pub fn arguments(kept: Vec<(String, Kept)>) -> Vec<FetchArg> {
    let argument = |(name, (fetch, field_type))| FetchArg {
        name,
        named: false,
        fetch,
        field_type,
        at: 0,
    };
    kept.into_iter().map(argument).collect()
}

/// Returns the event at the entry that keeps the values for an event at the exits, if it needs any.
fn begin(exit: &EventSpec) -> Option<EventSpec> {
    let kept = all_kept(exit);
    if exit.at != At::Return || kept.is_empty() {
        return None;
    }
    Some(EventSpec {
        at: At::Entry,
        of_calls: true,
        keeps: Some(kept.len()),
        name: None,
        arguments: arguments(kept),
        aggregation: Aggregation::default(),
        filter: None,
        ..exit.clone()
    })
}

/// Returns the event, with an event at the entry that begins its calls if it needs values from
/// there.
pub fn with_entry(spec: EventSpec) -> Event {
    match begin(&spec) {
        None => spec.into(),
        begin => CallSpec {
            entry: None,
            begin,
            exit: spec,
            timed: false,
        }
        .into(),
    }
}
