//! Intervals from one event to another: `latency(EVENT -> EVENT)`.

use crate::calls::{SHOWN_ALREADY, aggregate_of_nothing, closing};
use crate::definitions::LATENCY_OF;
use crate::entry;
use crate::error::{Error, Result, bail, err};
use crate::event::Event;
use crate::names::LATENCY;
use capriole_event::{
    Action, Aggregate, Aggregation, Base, Element, EventSpec, FetchArg, FieldType, Fields, Guard,
    KeyKind, Map, Pairing, ParseError, Place, Probe, Shown, Side, Value,
};
use std::ops::Range;

/// Builds the probes for `latency(EVENT -> EVENT) [by KEYS]`; `None` for any other event.
///
/// # Errors
/// The event is of that form and cannot be parsed, or its parts do not fit together.
pub fn intervals(text: &str) -> Result<Option<Event>> {
    let text = text.trim_end();
    let start = text.len() - text.trim_start().len();
    let Some(inside) = text[start..].strip_prefix(LATENCY_OF) else {
        return match arrow(text, start..text.len()) {
            Ok(Some(_)) => Err(err!(
                Unsuitable,
                "`{text}`: the time between two events is written latency(EVENT -> EVENT)"
            )),
            _ => Ok(None),
        };
    };
    let open = start + LATENCY_OF.len();
    let close = open + closing(inside).unwrap_or(inside.trim_end().len());
    let Some(arrow) = arrow(text, open..close)? else {
        return Ok(None);
    };
    if close == text.trim_end().len() {
        let help = "write latency(EVENT -> EVENT), or latency(EVENT -> EVENT) by KEY";
        return Err(ParseError::at(text, close, "the parenthesis is not closed", help).into());
    }
    let begin = side(text, open..arrow.start)?;
    let end = side(text, arrow.end..close)?;
    let keys = keys(text, close + 1, &end)?;
    Ok(Some(Parts { text, begin, end }.event(keys)?))
}

/// Finds the arrow between two events: `->` with a blank, or the end of the range, on both sides. One
/// in a string, in parentheses, or in the angle brackets of a name is a part of an event.
fn arrow(text: &str, range: Range<usize>) -> Result<Option<Range<usize>>> {
    let inside = &text[range.clone()];
    let (mut depth, mut angles, mut quoted, mut filter) = (0_i32, 0_i32, false, false);
    let mut in_angles = None;
    let mut attached = None;
    for (at, c) in inside.char_indices() {
        let rest = &inside[at..];
        let after_blank = inside[..at].ends_with(char::is_whitespace);
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ if depth > 0 => {}
            'i' if after_blank
                && rest.starts_with("if")
                && rest[2..].starts_with(char::is_whitespace) =>
            {
                filter = true;
            }
            '-' if rest.starts_with("->") => {
                let behind = &rest[2..];
                let found = range.start + at..range.start + at + 2;
                let apart = (at == 0 || after_blank)
                    && (behind.is_empty() || behind.starts_with(char::is_whitespace));
                match apart {
                    true if angles <= 0 => return Ok(Some(found)),
                    true => in_angles = in_angles.or(Some(found)),
                    false if behind.trim_start().starts_with([':', '/']) => {
                        attached = attached.or(Some(found));
                    }
                    false => {}
                }
            }
            '<' if !filter => angles += 1,
            '>' if !filter && !inside[..at].ends_with('-') => angles -= 1,
            _ => {}
        }
    }
    // `operator<` has a bracket that is never closed.
    if let (Some(found), true) = (in_angles, angles > 0) {
        return Ok(Some(found));
    }
    match attached {
        None => Ok(None),
        Some(found) => Err(ParseError::at(
            text,
            found.start,
            "there is no blank around `->`",
            "write latency(EVENT -> EVENT); without blanks it is a part of a name",
        )
        .into()),
    }
}

/// Parses one of the two events.
fn side(text: &str, range: Range<usize>) -> Result<EventSpec> {
    let own = &text[range.clone()];
    let lead = own.len() - own.trim_start().len();
    let at = range.start + lead;
    if own.trim().is_empty() {
        let before = text[..range.start].ends_with("->");
        let message = match before {
            true => "there is no event behind `->`",
            false => "there is no event before `->`",
        };
        let help = "write latency(EVENT -> EVENT)";
        return Err(ParseError::at(text, range.end, message, help).into());
    }
    let in_whole = |error: ParseError| ParseError {
        text: text.to_owned(),
        column: at + error.column,
        ..error
    };
    if own.contains(" -> ") && arrow(own, 0..own.len())?.is_some() {
        let found = arrow(own, 0..own.len())?.map_or(0, |found| found.start);
        let message = "there is more than one `->`";
        let help = "an interval is between two events; write latency(...) twice";
        return Err(ParseError::at(text, range.start + found, message, help).into());
    }
    let spec = EventSpec::parse(own.trim()).map_err(in_whole)?;
    if let Some(column) = spec.aggregation_column() {
        let message = "aggregates and `by` are no parts of the two events";
        let help = "keys follow the parenthesis, as in latency(:begin -> :end) by comm";
        return Err(ParseError::at(text, at + column, message, help).into());
    }
    Ok(spec)
}

/// Parses what follows the parenthesis.
fn keys(text: &str, from: usize, end: &EventSpec) -> Result<Fields> {
    let rest = text[from..].trim();
    if let Some(aggregate) = aggregate_of_nothing(rest) {
        bail!(
            Unsuitable,
            "`{aggregate}` behind latency(...) {SHOWN_ALREADY}"
        );
    }
    let at = from + (text[from..].len() - text[from..].trim_start().len());
    let is_marker = matches!(end.place, Place::Static { .. });
    let keys = Fields::parse_at(text, at, end.at, is_marker)?;
    if let Some(aggregate) = keys.aggregation.aggregates.first() {
        bail!(
            Unsuitable,
            "`{aggregate}` behind latency(...) {SHOWN_ALREADY}"
        );
    }
    if keys.filtered {
        bail!(
            Unsuitable,
            "`{rest}` behind latency(...): a filter belongs to one of the two events, as in \
             latency(:begin r=$arg1 -> :end r=$arg1 if r != 0)"
        );
    }
    Ok(keys)
}

/// The two events of an interval.
struct Parts<'a> {
    text: &'a str,
    begin: EventSpec,
    end: EventSpec,
}

impl Parts<'_> {
    fn event(self, keys: Fields) -> Result<Event> {
        let text = self.text;
        let (start, end) = (&self.begin.arguments, &self.end.arguments);
        let find = |all: &[FetchArg], name: &str| all.iter().find(|a| a.name == name).cloned();
        let is_all = |argument: &FetchArg| argument.fetch.base == Base::AllArguments;
        let paired: Vec<String> = start
            .iter()
            .filter(|argument| !is_all(argument) && find(end, &argument.name).is_some())
            .map(|argument| argument.name.clone())
            .collect();
        for name in &paired {
            for argument in start.iter().chain(end).filter(|a| a.name == *name) {
                if let Some(is) = no_word(argument) {
                    bail!(
                        Unsuitable,
                        "`{text}`: `{name}` is {is}, and only numbers pair two events; pair them by a \
                         number or an address that both have, or by their thread, which is the key \
                         if no field has the same name in both"
                    );
                }
            }
        }
        let mut kept: Vec<FetchArg> = Vec::new();
        let mut values: Vec<FetchArg> = Vec::new();
        let mut aggregation = Aggregation::default();
        for key in keys.aggregation.keys {
            let name = key.name().to_owned();
            let written = find(&keys.arguments, &name);
            // A bare name is the field, if there is one of this name.
            let bare = written.as_ref().is_none_or(|argument| {
                !argument.named
                    && argument.field_type.is_none()
                    && argument.fetch.derefs.is_empty()
                    && argument.fetch.base == Base::Variable(name.clone())
            });
            let known = find(end, &name).or_else(|| find(start, &name));
            if let (Some(known), false) = (&known, bare) {
                bail!(
                    Unsuitable,
                    "`{text}`: the key `{name}` has the name of the field `{known}`; write `by {name}` \
                     for that field, or NAME=VALUE with another name"
                );
            }
            let is_field = known.is_some() || written.is_some();
            if known.is_some() && find(end, &name).is_none() {
                kept.extend(find(start, &name));
            } else if known.is_none() {
                values.extend(written);
            }
            aggregation.keys.push(match is_field {
                true => KeyKind::Field(name),
                false => key,
            });
        }
        if let Some(unused) = keys
            .arguments
            .iter()
            .find(|argument| !aggregation.keys.iter().any(|k| k.name() == argument.name))
        {
            bail!(
                Unsuitable,
                "`{}` behind latency(...) would not be used: only keys may follow, written `by \
                 NAME=VALUE`",
                unused.name
            );
        }
        let used = |spec: &EventSpec, argument: &FetchArg| {
            let names = spec.filter.as_ref().map(Guard::names).unwrap_or_default();
            let name = argument.name.as_str();
            paired.iter().any(|other| other == name)
                || names.contains(&name)
                || aggregation.keys.iter().any(|key| key.name() == name)
        };
        for spec in [&self.begin, &self.end] {
            let is_marker = matches!(spec.place, Place::Static { .. });
            // A marker without arguments has `$arg*`.
            let mut arguments = spec.arguments.iter().filter(|a| !(is_marker && is_all(a)));
            if let Some(unused) = arguments.find(|argument| !used(spec, argument)) {
                bail!(
                    Unsuitable,
                    "`{text}`: the field `{unused}` would not be used: a field pairs the two events, \
                     if both have it by one name; or it is for the filter; or a key, behind the \
                     parenthesis: `by {}`",
                    unused.name
                );
            }
        }
        // A filter is evaluated before it is known which interval ends.
        for value in &self.end.filter_values {
            let other = |key: &&FetchArg| key.name == value.name && key.fetch != value.fetch;
            if let Some(key) = kept.iter().chain(&values).find(other) {
                bail!(
                    Unsuitable,
                    "`{text}`: `{0}` in the filter of the second event is a value of that event, and not \
                     the key `{key}`; give the key another name, or filter the first event",
                    value.name
                );
            }
        }
        let typed: Result<Vec<FieldType>> = kept.iter().map(|a| self.kept_type(a)).collect();
        let words = paired.len().max(1);
        if words + kept.len() > Pairing::MOST {
            bail!(
                Limit,
                "`{text}`: the start of an interval has at most {} values, those that pair it and \
                 those that it keeps for `by`",
                Pairing::MOST
            );
        }
        let started = kept.iter().zip(typed?).enumerate();
        let started = started.map(|(number, (argument, field_type))| FetchArg {
            name: argument.name.clone(),
            named: true,
            ..Value::new(Base::Started((words + number) as u8))
                .typed(field_type)
                .into()
        });
        values.extend(started);
        let mut duration = LATENCY.to_owned();
        let is_taken = |name: &str| {
            let all = [end, &values, &self.end.filter_values];
            all.iter().any(|values| find(values, name).is_some())
        };
        while is_taken(&duration) {
            duration.insert_str(0, "interval_");
        }
        let duration_value = FetchArg {
            name: duration.clone(),
            named: true,
            ..Value::interval().into()
        };
        aggregation.aggregates.push(Aggregate::histogram(&duration));
        let pairing = |side| Pairing {
            side,
            key: paired.clone(),
            kept: kept.iter().map(|a| a.name.clone()).collect(),
        };
        let probe = |spec: EventSpec, side, action| Probe {
            label: text.to_owned(),
            actions: vec![action],
            pairing: Some(pairing(side)),
            ..spec.into()
        };
        let unfiltered = |spec: &EventSpec| spec.filter.is_none();
        let (drop_start, drop_end) = (unfiltered(&self.begin), unfiltered(&self.end));
        let update = Action::Update {
            map: Map::Own,
            aggregation,
        };
        let mut start = probe(self.begin, Side::Start, Action::Start);
        let mut end = probe(self.end, Side::End, update);
        // Only a filter may ask for one of all arguments.
        start.values.retain(|value| !(drop_start && is_all(value)));
        end.values.retain(|value| !(drop_end && is_all(value)));
        end.values.extend(values);
        end.values.push(duration_value);
        if entry::keeping(&start).is_some() && entry::keeping(&end).is_some() {
            bail!(
                Unsuitable,
                "`{text}`: both events are returns with values at the entry, or durations; only one \
                 of the two may have them"
            );
        }
        Ok(Event::of_intervals(start, end))
    }

    /// Returns the type of a value that the start keeps.
    fn kept_type(&self, argument: &FetchArg) -> Result<FieldType> {
        if let Some(is) = no_word(argument) {
            bail!(
                Unsuitable,
                "`{}`: `{argument}` is {is}, and only numbers are kept from the start of an interval \
                 to its end; read it in the second event",
                self.text
            );
        }
        let is_marker = matches!(self.begin.place, Place::Static { .. });
        let untyped = argument.field_type.is_none();
        let by_debug_info = match argument.fetch.base {
            Base::Retval | Base::Variable(_) => argument.fetch.derefs.is_empty(),
            Base::Entry(_) => argument.known_type().is_none(),
            _ => is_marker,
        };
        match argument.known_type().unwrap_or(FieldType::X64) {
            known if !(untyped && by_debug_info) => Ok(known),
            _ => Err(Error::from(ParseError::at(
                self.text,
                self.text.find(&argument.to_string()).unwrap_or(0),
                format!(
                    "`{}` is kept from the start of an interval to its end, and has no type",
                    argument.name
                ),
                "give it one, as in NAME=VALUE:u64",
            ))),
        }
    }
}

/// Returns a description of a value that is certainly no number, and so no word of an interval.
fn no_word(argument: &FetchArg) -> Option<&'static str> {
    let known = argument.known_type()?;
    if known.is_call_stack() {
        return Some("a call stack");
    }
    if known.count.is_some() {
        return Some("an array");
    }
    match known.element {
        Element::Number {
            shown: Shown::Float,
            ..
        } => Some("a floating point number"),
        Element::Number { .. } => None,
        Element::String { .. } => Some("a text"),
        Element::Ipv6 => Some("an address of 16 bytes"),
        Element::CallStack { .. } => Some("a call stack"),
    }
}
