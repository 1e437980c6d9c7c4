//! Calls from their entry to their exit: what is written for a function becomes an event at
//! its entry and one at its exits.

use crate::selection;
use anyhow::{Context, bail};
use capriole_event::{Aggregate, At, Base, EventSpec, Fetch, FetchArg, FieldType, Function, Place};

/// The field of events of a call by which its entry and its exit find one another.
const STACK: &str = "_sp";
/// The field with what a function returns.
const RESULT: &str = "ret";
/// The name of how long a call took, in nanoseconds.
const LATENCY: &str = "ns";

/// What a function's entry and its exits do in `record --graph`.
///
/// # Errors
/// It cannot be understood, or means no function.
pub fn graph(text: &str) -> anyhow::Result<[EventSpec; 2]> {
    let spec = selection::parse_plain(&[text.to_owned()], &[])?.remove(0);
    let (mut entry, mut exit) = both(spec)?;
    let stack = argument(STACK, Base::StackPointer, Some(FieldType::X64));
    entry.arguments.insert(0, stack.clone());
    // Of the type that debug information tells.
    exit.arguments = vec![stack, argument(RESULT, Base::Retval, None)];
    exit.name = exit.name.map(|name| format!("{name}__return"));
    Ok([entry, exit])
}

/// How a time is asked for: `latency(EVENT)`.
const LATENCY_OF: &str = "latency(";

/// Whether the text asks how long calls take.
pub fn is_latency(text: &str) -> bool {
    text.trim_start().starts_with(LATENCY_OF)
}

/// What a function's entry and its exits do for `latency(EVENT) [by KEYS]`; nothing if that is
/// not what the text says.
///
/// # Errors
/// It is, and cannot be understood, or means no function.
pub fn latency(text: &str) -> anyhow::Result<Option<[EventSpec; 2]>> {
    let Some(inside) = text.trim().strip_prefix(LATENCY_OF) else {
        return Ok(None);
    };
    let form = "write latency(EVENT), and behind it maybe `by` and keys";
    let Some(end) = closing(inside) else {
        bail!("`{text}`: the parenthesis is not closed; {form}");
    };
    let (inside, rest) = (&inside[..end], inside[end + 1..].trim());
    let spec = selection::parse_plain(&[inside.to_owned()], &[])?.remove(0);
    let (mut entry, mut exit) = both(spec)?;
    entry.text = text.to_owned();
    exit.text = text.to_owned();
    if !rest.is_empty() {
        // Keys are parsed as those of any event at a return.
        let keys = EventSpec::parse(&format!(":f%return {rest}"));
        let keys = keys.with_context(|| format!("`{rest}` behind latency(...); {form}"))?;
        if keys.filter.is_some() || !keys.aggregation.aggregates.is_empty() {
            bail!("`{rest}`: a filter belongs inside the parentheses; {form}");
        }
        exit.arguments = keys.arguments;
        exit.aggregation.keys = keys.aggregation.keys;
    }
    let time = argument(LATENCY, Base::Latency, Some(FieldType::U64));
    exit.arguments.push(time);
    exit.aggregation.aggregates.push(Aggregate {
        function: Function::Histogram,
        field: Some(LATENCY.to_owned()),
        at: 0,
    });
    Ok(Some([entry, exit]))
}

/// The same function's entry and exits; what is recorded, and when, stays with the entry.
fn both(spec: EventSpec) -> anyhow::Result<(EventSpec, EventSpec)> {
    let function = matches!(
        spec.place,
        Place::Symbol { offset: 0, .. } | Place::FileOffset(_)
    );
    if spec.at == At::Return || !function {
        bail!(
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

/// Where the parenthesis is closed before which `text` stands.
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

/// The number of a function, by which a slot for an open call tells whose it is: from the
/// address at which it is entered.
pub fn number(function: u64) -> u32 {
    // Fibonacci hashing; the upper bits are the best.
    (function.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32
}
