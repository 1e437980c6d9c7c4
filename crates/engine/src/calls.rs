//! Calls from entry to exit: a function that the user names becomes one event at its entry and one
//! at its exits.

use crate::definitions::{LATENCY_OF, parse_plain};
use crate::entry;
use crate::error::{Context, Result, bail};
use crate::event::CallSpec;
use crate::names::{DURATION, GOROUTINE, LATENCY, RESULT, SINCE, STACK};
use capriole_event::{
    Aggregate, At, Base, Comparison, EntryValue, EventSpec, Fetch, FetchArg, FieldType, Filter,
    Function, Gpr, Operand, Place,
};

/// Builds the entry and exit events of a function for `record --graph`. With `least`, a call is
/// recorded at its exit only, with the entry's fields, and only if it took at least that many
/// ticks of the time stamp counter.
///
/// With a filter, exits are recorded only for calls whose entries were recorded. Other exits
/// would be paired with the entries of earlier calls that an exception has left.
///
/// # Errors
/// The event cannot be parsed, or is not at a function.
pub fn graph(text: &str, least: Option<u64>) -> Result<CallSpec> {
    let spec = parse_plain(&[text.to_owned()], &[])?.remove(0);
    let (mut entry, mut exit) = both(spec)?;
    let stack = argument(STACK, Base::StackPointer, Some(FieldType::X64));
    exit.name = exit.name.map(|name| format!("{name}__return"));
    // Its type comes from debug information.
    let result = argument(RESULT, Base::Retval, None);
    let Some(least) = least else {
        let begin = entry.filter.is_some().then(|| EventSpec {
            keeps: Some(0),
            name: None,
            ..entry.clone()
        });
        // Go's functions keep the goroutine in this register.
        let goroutine = argument(GOROUTINE, Base::Register(Gpr::R14), Some(FieldType::X64));
        let own = [stack, goroutine];
        entry.arguments.splice(0..0, own.clone());
        exit.arguments = own.to_vec();
        if begin.is_some() {
            let since = argument(SINCE, Base::Latency, Some(FieldType::U64));
            exit.arguments.push(since);
            exit.filter = Some(at_least(SINCE, 0));
        }
        exit.arguments.push(result);
        return Ok(CallSpec {
            entry: Some(entry),
            begin,
            exit,
            timed: false,
        });
    };
    let time = argument(DURATION, Base::Latency, Some(FieldType::U64));
    exit.arguments = vec![stack, time];
    exit.arguments.extend(entry.arguments.iter().map(at_entry));
    exit.arguments.push(result);
    exit.filter = Some(at_least(DURATION, least));
    Ok(CallSpec {
        entry: None,
        begin: Some(beginning(entry, &exit)),
        exit,
        timed: false,
    })
}

/// Turns the event at an entry into one that begins calls, and keeps the values that the exit
/// needs. Its own fields stay, for the filter.
fn beginning(entry: EventSpec, exit: &EventSpec) -> EventSpec {
    let kept = entry::all_kept(exit);
    let keeps = Some(kept.len());
    let mut arguments = entry::arguments(kept);
    arguments.extend(entry.arguments);
    EventSpec {
        keeps,
        arguments,
        ..entry
    }
}

/// Builds a filter: true if the field is at least `value`, false if it cannot be read.
fn at_least(field: &str, value: u64) -> Filter {
    Filter::Compare {
        field: field.to_owned(),
        at: 0,
        comparison: Comparison::GreaterOrEqual,
        operand: Operand::Number {
            value,
            negative: false,
        },
    }
}

/// Wraps a field of the entry as a field of the exit.
fn at_entry(argument: &FetchArg) -> FetchArg {
    let value = EntryValue {
        fetch: argument.fetch.clone(),
        field_type: argument.field_type,
    };
    FetchArg {
        fetch: Fetch {
            base: Base::Entry(Box::new(value)),
            derefs: Vec::new(),
        },
        ..argument.clone()
    }
}

/// Builds the entry and exit events for `latency(EVENT) [by KEYS]`; `None` for any other event.
///
/// # Errors
/// The event is `latency(...)` and cannot be parsed, or is not at a function.
pub fn latency(text: &str) -> Result<Option<CallSpec>> {
    let Some(inside) = text.trim().strip_prefix(LATENCY_OF) else {
        return Ok(None);
    };
    let form = "write latency(EVENT), and behind it maybe `by` and keys";
    let Some(end) = closing(inside) else {
        bail!(
            Unsuitable,
            "`{text}`: the parenthesis is not closed; {form}"
        );
    };
    let (inside, rest) = (&inside[..end], inside[end + 1..].trim());
    let spec = parse_plain(&[inside.to_owned()], &[])?.remove(0);
    if let (None, Some(unused)) = (&spec.filter, spec.arguments.first()) {
        bail!(
            Unsuitable,
            "`{text}`: the field `{}` would not be used: inside latency(...) fields are for the \
             filter; keys are written behind it, `by NAME=$entry:VALUE`",
            unused.name
        );
    }
    let (mut entry, mut exit) = both(spec)?;
    entry.text = text.to_owned();
    exit.text = text.to_owned();
    if !rest.is_empty() {
        // Keys are parsed as those of any event at a return.
        let keys = EventSpec::parse(&format!(":f%return {rest}"));
        let keys = keys.with_context(|| format!("`{rest}` behind latency(...); {form}"))?;
        if keys.filter.is_some() || !keys.aggregation.aggregates.is_empty() {
            bail!(
                Unsuitable,
                "`{rest}`: a filter belongs inside the parentheses; {form}"
            );
        }
        let keyed = |argument: &FetchArg| {
            let keys = &keys.aggregation.keys;
            keys.iter().any(|key| key.name() == argument.name)
        };
        if let Some(unused) = keys.arguments.iter().find(|argument| !keyed(argument)) {
            bail!(
                Unsuitable,
                "`{rest}`: the field `{}` would not be used: behind latency(...) only keys are, \
                 written `by NAME=VALUE`; {form}",
                unused.name
            );
        }
        exit.arguments = keys.arguments;
        exit.aggregation.keys = keys.aggregation.keys;
    }
    let begin = Some(beginning(entry, &exit));
    let time = argument(LATENCY, Base::Latency, Some(FieldType::U64));
    exit.arguments.push(time);
    exit.aggregation.aggregates.push(Aggregate {
        function: Function::Histogram,
        field: Some(LATENCY.to_owned()),
        at: 0,
    });
    Ok(Some(CallSpec {
        entry: None,
        begin,
        exit,
        timed: true,
    }))
}

/// Splits an event into those of the function's entry and exits; fields and filter stay with the
/// entry.
fn both(spec: EventSpec) -> Result<(EventSpec, EventSpec)> {
    let function = matches!(
        spec.place,
        Place::Symbol { offset: 0, .. } | Place::FileOffset(_)
    );
    if spec.at == At::Return || !function {
        bail!(
            Unsuitable,
            "event `{}`: calls are those of a function; write its name without an offset or a return",
            spec.text
        );
    }
    let entry = EventSpec {
        of_calls: true,
        ..spec
    };
    let exit = EventSpec {
        at: At::Return,
        arguments: Vec::new(),
        filter: None,
        ..entry.clone()
    };
    Ok((entry, exit))
}

fn argument(name: &str, base: Base, field_type: Option<FieldType>) -> FetchArg {
    FetchArg {
        name: name.to_owned(),
        named: true,
        fetch: Fetch {
            base,
            derefs: Vec::new(),
        },
        field_type,
        at: 0,
    }
}

/// Finds the parenthesis that closes the one just before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}
