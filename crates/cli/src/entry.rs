//! What an event at a function's exits asks of the function's entry (`$entry:NAME`): it is kept
//! there by an event of its own, which begins calls and records nothing.

use capriole_event::{Aggregation, At, Base, EntryValue, EventSpec, Fetch, FetchArg, FieldType};

/// A value that is kept, and the type that is asked for there.
pub type Kept = (Fetch, Option<FieldType>);

/// What a field of an exit wants to be kept.
pub fn kept(argument: &FetchArg) -> Option<Kept> {
    let Base::Entry(entry) = &argument.fetch.base else {
        return None;
    };
    let EntryValue { fetch, field_type } = &**entry;
    // What is read at the exit starts at an address.
    let wanted = match argument.fetch.derefs.is_empty() {
        true => argument.field_type.or(*field_type),
        false => field_type.or(Some(FieldType::X64)),
    };
    let wanted = wanted.filter(|_| fetch.base != Base::AllArguments);
    Some((fetch.clone(), wanted))
}

/// All that the fields of an exit want to be kept, each once, by the names of the fields.
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

/// The fields of an entry that keep this.
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

/// The event at the entry that keeps what an event at the exits wants.
fn companion(exit: &EventSpec) -> Option<EventSpec> {
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

/// The event itself; before it that at the entry, if it wants something to be kept there.
pub fn with_companion(spec: EventSpec) -> impl Iterator<Item = EventSpec> {
    companion(&spec).into_iter().chain([spec])
}
