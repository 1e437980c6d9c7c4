//! Values that a probe at a function's exits takes from its entry (`$entry:NAME`): a separate
//! probe at the entry keeps them; it begins calls and records nothing.

use capriole_event::{Action, At, Base, Deref, Fetch, FetchArg, FieldType, Guard, Probe, Value};

/// A value that is kept, and its requested type.
pub type Kept = (Fetch, Option<FieldType>);

/// Returns the value that a field of an exit needs from the entry, if any.
pub fn kept(argument: &FetchArg) -> Option<Kept> {
    let Base::Entry(entry) = &argument.fetch.base else {
        return None;
    };
    let Value { fetch, field_type } = &**entry;
    let wanted = match &argument.fetch.derefs[..] {
        [] => argument.field_type.or(*field_type),
        // What has to be kept of a text or an array depends on its type in the source.
        [Deref { offset: 0, .. }] if is_named_memory(argument, entry) => argument.field_type,
        // A dereference at the exit starts at a kept address.
        _ => field_type.or(Some(FieldType::X64)),
    };
    let wanted = wanted.filter(|_| fetch.base != Base::AllArguments);
    Some((fetch.clone(), wanted))
}

/// True for `$entry:NAME:string` and the like: a variable that is asked for as a text or an array.
fn is_named_memory(argument: &FetchArg, entry: &Value) -> bool {
    let is_variable =
        matches!(entry.fetch.base, Base::Variable(_)) && entry.fetch.derefs.is_empty();
    let is_in_memory = argument.field_type.is_some_and(|of| of.is_in_memory());
    is_variable && entry.field_type.is_none() && argument.length.is_none() && is_in_memory
}

/// Returns all values that the fields of an exit need from the entry, each once, with the field's
/// name.
pub fn all_kept(exit: &Probe) -> Vec<(String, Kept)> {
    let mut all: Vec<(String, Kept)> = Vec::new();
    let lengths = |argument: &FetchArg| argument.length_argument();
    let both = |argument: &FetchArg| [Some(argument.clone()), lengths(argument)];
    for argument in exit.all_values().flat_map(both).flatten() {
        if let Some(kept) = kept(&argument)
            && !all.iter().any(|(_, known)| *known == kept)
        {
            let taken = all.iter().any(|(name, _)| *name == argument.name);
            let name = match taken {
                true => format!("{}_length", argument.name),
                false => argument.name,
            };
            all.push((name, kept));
        }
    }
    all
}

/// True if the guard of a probe at the exits compares the duration of the call.
pub fn compares_duration(probe: &Probe) -> bool {
    let names = probe.guard.as_ref().map(Guard::names).unwrap_or_default();
    let is_value = probe.find(Guard::DURATION).is_some();
    probe.at == At::Return && !is_value && names.contains(&Guard::DURATION)
}

/// Returns the probe at the entry that begins the calls of a probe at the exits, if that needs any:
/// for values from there, for durations, or for a condition at the entry.
pub fn keeping(exit: &Probe) -> Option<Probe> {
    let kept = all_kept(exit);
    let timed = |value: &FetchArg| value.fetch.base == Base::Latency;
    let timed = exit.values.iter().any(timed) || compares_duration(exit);
    let needed = !kept.is_empty() || exit.entry.is_some() || timed;
    if exit.at != At::Return || !needed {
        return None;
    }
    let actions = vec![Action::Keep(kept.len())];
    let kept = kept
        .into_iter()
        .map(|(name, (fetch, field_type))| FetchArg {
            name,
            named: false,
            fetch,
            field_type,
            length: None,
        });
    let entry = exit.entry.clone().unwrap_or_default();
    Some(Probe {
        at: At::Entry,
        of_calls: true,
        name: entry.name,
        values: kept.chain(entry.values).collect(),
        guard: entry.guard,
        guard_values: Vec::new(),
        entry: None,
        actions,
        ..exit.clone()
    })
}
