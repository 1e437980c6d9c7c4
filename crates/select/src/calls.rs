//! Calls from entry to exit: a function that the user names becomes one probe at its entry and one
//! at its exits.

use crate::definitions::{LATENCY_OF, parse_plain};
use crate::error::{Result, bail};
use crate::event::Event;
use crate::names::{DURATION, GOROUTINE, LATENCY, RESULT, SINCE, STACK};
use capriole_event::{
    Action, Aggregate, Aggregation, At, Base, Deref, Entry, Fetch, FetchArg, FieldType, Fields,
    Function, Gpr, Guard, Map, ParseError, Place, Probe, Value,
};

/// Builds the event of a function's entry and exits for `record --graph`. With `least`, a call is
/// recorded at its exit only, with the entry's fields, and only if it took at least that many
/// ticks of the time stamp counter.
///
/// With a filter, exits are recorded only for calls whose entries were recorded. Other exits
/// would be paired with the entries of earlier calls that an exception has left.
///
/// # Errors
/// The event cannot be parsed, or is not at a function.
pub fn graph(text: &str, least: Option<u64>) -> Result<Event> {
    let (mut entry, begun, exit) = ends(text)?;
    let of_guard = entry.guard_values.clone();
    let begun_with = |begun: Entry| Entry {
        values: begun.values.into_iter().chain(of_guard.clone()).collect(),
        ..begun
    };
    let own = [STACK, GOROUTINE, DURATION, SINCE];
    let own = |value: &&FetchArg| {
        let name = value.name.as_str();
        // Fields of the entry and the result are in one record only if the entry has none.
        own.contains(&name) || name == RESULT && least.is_some()
    };
    if let Some(value) = begun.values.iter().find(own) {
        bail!(
            Field,
            "event `{}`: the field name `{}` is taken, by a field of each call; write NAME=VALUE with \
             another name",
            entry.label,
            value.name
        );
    }
    let exit = Probe {
        name: exit.name.as_ref().map(|name| format!("{name}__return")),
        ..exit
    };
    let stack = Value::from(Base::StackPointer).typed(FieldType::X64);
    let Some(least) = least else {
        // Go's functions keep the goroutine in this register.
        let goroutine = Value::from(Base::Register(Gpr::R14)).typed(FieldType::X64);
        let mut exit = exit.value(STACK, stack).value(GOROUTINE, goroutine);
        let own = exit.values.clone();
        if begun.guard.is_some() {
            exit = exit
                .value(SINCE, Value::latency())
                .when(Guard::at_least(SINCE, 0));
            exit.entry = Some(Entry {
                name: None,
                ..begun_with(begun)
            });
        }
        entry.values.splice(0..0, own);
        // The type of the result comes from debug information.
        let exit = exit.value(RESULT, Value::result_word()).record();
        return Ok(Event::of_calls(entry.record(), exit));
    };
    let mut exit = exit.value(STACK, stack).value(DURATION, Value::latency());
    exit.values.extend(begun.values.iter().map(at_exit));
    exit.entry = Some(begun_with(begun));
    let exit = exit.when(Guard::at_least(DURATION, least));
    Ok(exit.value(RESULT, Value::result_word()).record().into())
}

/// Turns a field of the entry into one of the exit. A number is kept from the entry. A text, an array or
/// an address is read at the exit, through a pointer that is kept; a call stack is that of the exit.
fn at_exit(argument: &FetchArg) -> FetchArg {
    let is_call_stack = matches!(argument.fetch.base, Base::CallStack(_));
    if is_call_stack || argument.fetch.base == Base::Comm {
        return argument.clone();
    }
    let FetchArg {
        name,
        named,
        fetch,
        field_type,
        length,
    } = argument.clone();
    let value = exit_value(fetch, field_type);
    let length = length.map(|length| Box::new(exit_value(length.fetch, length.field_type)));
    FetchArg {
        name,
        named,
        length,
        ..value.into()
    }
}

fn exit_value(fetch: Fetch, field_type: Option<FieldType>) -> Value {
    let is_in_memory = field_type.is_some_and(|of| of.is_in_memory());
    let Fetch { base, derefs } = fetch;
    if !is_in_memory {
        return Value {
            fetch: Fetch { base, derefs },
            field_type,
        }
        .at_entry();
    }
    let pointed = match (&base, derefs.is_empty()) {
        // A pointer of the source, to characters.
        (Base::Variable(_), true) => vec![Deref {
            offset: 0,
            user: false,
        }],
        _ => derefs,
    };
    Value {
        fetch: Fetch {
            base: Value::new(base).at_entry().fetch.base,
            derefs: pointed,
        },
        field_type,
    }
}

/// Builds the probe for `latency(EVENT) [by KEYS]`; `None` for any other event.
///
/// # Errors
/// The event is `latency(...)` and cannot be parsed, or is not at a function.
pub fn latency(text: &str) -> Result<Option<Probe>> {
    let Some(inside) = text.trim().strip_prefix(LATENCY_OF) else {
        return Ok(None);
    };
    let Some(end) = closing(inside) else {
        let help = "write latency(EVENT), or latency(EVENT) by KEY";
        let end = text.trim_end().len();
        return Err(ParseError::at(text, end, "the parenthesis is not closed", help).into());
    };
    let (inside, rest) = (&inside[..end], inside[end + 1..].trim());
    refuse_duration(text, inside, rest)?;
    if inside.trim_start().starts_with("usdt:") {
        bail!(
            Unsuitable,
            "`{text}`: a marker is a point without a duration; time the function around it, or the way \
             to another marker: latency(MARKER -> MARKER)"
        );
    }
    let (entry, mut begun, mut exit) = ends(inside)?;
    if let (None, Some(unused)) = (&begun.guard, begun.values.first()) {
        bail!(
            Unsuitable,
            "`{text}`: the field `{}` would not be used: inside latency(...) a field is for the \
             filter; a key follows the parenthesis, as in latency(libc:read) by fd=$entry:arg1",
            unused.name
        );
    }
    begun.values.extend(entry.guard_values);
    exit.entry = Some(begun);
    let mut aggregation = Aggregation::default();
    if !rest.is_empty() {
        if let Some(aggregate) = aggregate_of_nothing(rest) {
            bail!(
                Unsuitable,
                "`{aggregate}` behind latency(...) {SHOWN_ALREADY}"
            );
        }
        // Keys are parsed as those of any event at a return.
        let keys = Fields::parse_at_return(text, text.trim_end().len() - rest.len())?;
        if let Some(aggregate) = keys.aggregation.aggregates.first() {
            bail!(
                Unsuitable,
                "`{aggregate}` behind latency(...) {SHOWN_ALREADY}"
            );
        }
        if keys.filtered {
            bail!(
                Unsuitable,
                "`{rest}` behind latency(...): a filter belongs inside the parentheses, as in \
                 latency(libc:read if fd > 2)"
            );
        }
        aggregation = keys.aggregation;
        let keyed = |argument: &FetchArg| {
            let keys = &aggregation.keys;
            keys.iter().any(|key| key.name() == argument.name)
        };
        if let Some(unused) = keys.arguments.iter().find(|argument| !keyed(argument)) {
            bail!(
                Unsuitable,
                "`{}` behind latency(...) would not be used: only keys may follow, written `by \
                 NAME=VALUE`",
                unused.name
            );
        }
        let variable = |argument: &&FetchArg| matches!(argument.fetch.base, Base::Variable(_));
        if let Some(variable) = keys.arguments.iter().find(variable) {
            bail!(
                Unsuitable,
                "`by {0}` behind latency(...): a key is known when the call returns, and variables \
                 are not; a number can be kept from the entry, `by $entry:{0}`, and a text is read \
                 at the return, through a pointer from the entry, `by NAME=$entry:{0}:string`",
                variable.fetch
            );
        }
        exit.values = keys.arguments;
    }
    // A key may have the name of the duration.
    let mut duration = LATENCY.to_owned();
    while exit.find(&duration).is_some() {
        duration.insert_str(0, "latency_");
    }
    aggregation.aggregates.push(Aggregate::histogram(&duration));
    exit.actions = vec![Action::Update {
        map: Map::Own,
        aggregation,
    }];
    let exit = exit.value(duration, Value::latency());
    Ok(Some(exit.labelled(text)))
}

/// Refuses a filter by the duration, inside of `latency(...)` or behind it: the table is of all calls.
fn refuse_duration(text: &str, inside: &str, rest: &str) -> Result<()> {
    let (event, filter) = inside.split_once(" if ").unwrap_or((inside, ""));
    let behind = rest.split_once("if ").map_or("", |(_, filter)| filter);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let has = |text: &str| {
        text.split(|c| !is_word(c))
            .any(|word| word == Guard::DURATION)
    };
    let condition = [filter, behind].into_iter().find(|part| has(part));
    let Some(condition) = condition.filter(|_| !has(event)) else {
        return Ok(()); // also if it is a field
    };
    let event = event.trim();
    let function = event.strip_prefix("r ").unwrap_or(event);
    let condition = condition.trim();
    bail!(
        Unsuitable,
        "`{text}`: latency(...) measures all calls, and has no filter by duration; count the slow \
         ones: `r {function} count() if {condition}`"
    );
}

/// End of the message about an aggregate behind `latency(...)`.
pub(crate) const SHOWN_ALREADY: &str = "is not needed: the table has calls, avg, min, p50, p90, p99, p99.9, \
    max and total of the durations; only `by` and keys may follow";

/// Returns the first aggregate that names no field, such as `max()`.
pub(crate) fn aggregate_of_nothing(text: &str) -> Option<&str> {
    let is_one = |word: &&str| {
        let name = word.strip_suffix("()");
        let function = |name| {
            Function::ALL
                .iter()
                .any(|function| function.as_str() == name)
        };
        name.is_some_and(function)
    };
    text.split_whitespace().find(is_one)
}

/// Parses an event at a function, and splits it into a probe at the entry, the condition for the
/// exits, which has the event's values and filter, and a probe at the exits without values. None of
/// them has an action yet.
fn ends(text: &str) -> Result<(Probe, Entry, Probe)> {
    let spec = parse_plain(&[text.to_owned()], &[])?.remove(0);
    let entry = Probe {
        of_calls: true,
        actions: Vec::new(),
        ..spec.into()
    };
    let function = matches!(
        entry.place,
        Place::Symbol { offset: 0, .. } | Place::FileOffset(_)
    );
    if entry.at == At::Return || !function {
        bail!(
            Unsuitable,
            "event `{}`: a call lasts from a function's entry to its exit; write the function's name \
             alone, without an offset or a return",
            entry.label
        );
    }
    let begun = Entry {
        name: entry.name.clone(),
        values: entry.values.clone(),
        guard: entry.guard.clone(),
    };
    let exit = Probe {
        at: At::Return,
        values: Vec::new(),
        guard: None,
        guard_values: Vec::new(),
        ..entry.clone()
    };
    Ok((entry, begun, exit))
}

/// Finds the parenthesis that closes the one just before `text`.
pub(crate) fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quoted) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}
