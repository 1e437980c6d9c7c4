//! Definition files: one event per line, in the format of the kernel's `uprobe_events`.

use crate::error::ParseError;
use crate::names::automatic_name;
use crate::parse;
use crate::place::{ObjectRef, Place};
use crate::spec::EventSpec;
use std::collections::HashMap;
use std::fmt;

/// A line of a definition file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "nearly all are probes")]
pub enum Definition {
    /// An event.
    Probe(EventSpec),
    /// `-:GROUP/EVENT`: removes the events defined so far under this name.
    Remove {
        /// The group; `None` matches events of all groups.
        group: Option<String>,
        /// The event's name; empty for `-:GROUP/`, which matches all events of the group.
        name: String,
    },
}

/// Error in one line of a definition file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionError {
    /// Line number, from 1.
    pub line: usize,
    /// The error; its text is the line, and its column is relative to the line.
    pub error: ParseError,
}

/// All errors of a definition file, in line order; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct DefinitionErrors(pub Vec<DefinitionError>);

impl Definition {
    /// Parses one line, without its comment.
    ///
    /// # Errors
    ///
    /// Returns the message, its column, and what to write instead. Never panics.
    pub fn parse(line: &str) -> Result<Definition, ParseError> {
        let (start, end) = parse::trimmed(line);
        if !parse::removes(&line[start..end]) {
            return EventSpec::parse_definition(line).map(Definition::Probe);
        }
        let help = "write -:GROUP/EVENT, -:EVENT, or -:GROUP/ for a whole group";
        let Some(names) = line[start..end].strip_prefix("-:") else {
            let message = "event name is not specified";
            return Err(ParseError::at(line, start + 1, message, help));
        };
        if let Some(blank) = names.find(char::is_whitespace) {
            let message = "there is something behind the event's name";
            return Err(ParseError::at(line, start + 2 + blank, message, help));
        }
        let (group, name) = parse::names(line, start + 2, names, false)?;
        let name = name.unwrap_or_default();
        Ok(Definition::Remove { group, name })
    }
}

/// Parses a definition file: processes all lines in order and returns the events that remain, each
/// with its line number, from 1.
///
/// Empty lines are skipped. A `#` at the start of a line or after a blank begins a comment, unless
/// it is inside double quotes. A definition cannot continue on the next line.
///
/// As in the kernel, several definitions may share a name: they are one event at several places,
/// and must have the same kind, arguments, aggregates and keys. An exact duplicate is an error, and
/// so is the removal of an event that is not defined.
///
/// # Errors
///
/// The errors of all invalid lines.
pub fn definitions(text: &str) -> Result<Vec<(usize, EventSpec)>, DefinitionErrors> {
    let mut events = Events::default();
    let mut errors = Vec::new();
    for (number, line) in definition_lines(text) {
        let done = Definition::parse(line).and_then(|definition| match definition {
            Definition::Probe(event) => events.add(number, line, event),
            Definition::Remove { group, name } => {
                if events.remove(group.as_deref(), &name) {
                    return Ok(());
                }
                let at = line.find(':').map_or(0, |colon| colon + 1);
                let message = "there is no such event in the lines before";
                let help = "only what this file defines can be removed in it";
                Err(ParseError::at(line, at, message, help))
            }
        });
        if let Err(error) = done {
            let line = number;
            errors.push(DefinitionError { line, error });
        }
    }
    if errors.is_empty() {
        Ok(events.all.into_iter().flatten().collect())
    } else {
        Err(DefinitionErrors(errors))
    }
}

/// Returns the non-empty lines of a file without their comments, each with its line number.
pub fn definition_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines().map(without_comment));
    lines.filter(|(_, line)| !line.trim().is_empty())
}

/// The line up to its comment.
fn without_comment(line: &str) -> &str {
    let (mut quoted, mut escaped) = (false, false);
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        if c == '#' && !quoted && before.is_whitespace() {
            return &line[..at];
        }
        if c == '"' && !(quoted && escaped) {
            quoted = !quoted;
        }
        escaped = c == '\\' && !escaped;
        before = c;
    }
    line
}

/// Events defined so far.
#[derive(Default)]
struct Events {
    /// All events in line order; `None` for those that were removed.
    all: Vec<Option<(usize, EventSpec)>>,
    /// Indices into `all` of the events with this group and name.
    named: HashMap<(String, String), Vec<usize>>,
}

impl Events {
    fn add(&mut self, number: usize, line: &str, event: EventSpec) -> Result<(), ParseError> {
        if let Some(name) = name(&event) {
            let same = self
                .named
                .entry((group(&event).to_string(), name))
                .or_default();
            let others = same.iter().filter_map(|index| self.all[*index].as_ref());
            fits(line, &event, others)?;
            same.push(self.all.len());
        }
        self.all.push(Some((number, event)));
        Ok(())
    }

    /// Removes the matching events and returns true if there were any. An empty name matches the
    /// whole group.
    fn remove(&mut self, of_group: Option<&str>, of_name: &str) -> bool {
        let mut found = false;
        for one in &mut self.all {
            let is_meant = one.as_ref().is_some_and(|(_, event)| {
                of_group.is_none_or(|of_group| of_group == group(event))
                    && (of_name.is_empty() || name(event).as_deref() == Some(of_name))
            });
            if is_meant {
                *one = None;
                found = true;
            }
        }
        found
    }
}

fn group(event: &EventSpec) -> &str {
    event.group.as_deref().unwrap_or(EventSpec::DEFAULT_GROUP)
}

/// The given name, or the automatic name of an event at a file offset.
fn name(event: &EventSpec) -> Option<String> {
    match (&event.name, &event.object, &event.place) {
        (Some(name), ..) => Some(name.clone()),
        (None, ObjectRef::Path(path) | ObjectRef::Name(path), Place::FileOffset(offset)) => {
            Some(automatic_name(event.at, path, *offset))
        }
        _ => None,
    }
}

/// Byte offset of the first aggregate or key of `one` that differs from `other`'s; `Some(None)` if
/// `one` has fewer.
fn differs(one: &EventSpec, other: &EventSpec) -> Option<Option<usize>> {
    fn first<T: PartialEq>(one: &[T], other: &[T], columns: &[usize]) -> Option<Option<usize>> {
        let mut pairs = one.iter().zip(other);
        let different = pairs.position(|(a, b)| a != b);
        let extra = (one.len() != other.len()).then_some(other.len());
        different.or(extra).map(|index| columns.get(index).copied())
    }
    let (own, others, columns) = (&one.aggregation, &other.aggregation, &one.columns);
    let behind = columns.keys.first().copied();
    let aggregates = first(&own.aggregates, &others.aggregates, &columns.aggregates);
    let keys = first(&own.keys, &others.keys, &columns.keys);
    aggregates.map(|at| at.or(behind)).or(keys)
}

/// Rejects a definition that is incompatible with the others of its name.
fn fits<'a>(
    line: &str,
    event: &EventSpec,
    others: impl Iterator<Item = &'a (usize, EventSpec)>,
) -> Result<(), ParseError> {
    let start = parse::trimmed(line).0;
    for (number, other) in others {
        let error = |at, message: &str| {
            let help = format!("line {number} has an event of this name");
            Err(ParseError::at(line, at, message, help))
        };
        if other.at != event.at {
            return error(start, "probe type is different from existing probe");
        }
        let pairs = other.arguments.iter().zip(&event.arguments);
        let different = pairs
            .clone()
            .position(|(a, b)| a.name != b.name || a.known_type() != b.known_type());
        let longer = other.arguments.len() != event.arguments.len();
        if let Some(index) = different.or(longer.then_some(pairs.len())) {
            let at = event.columns.arguments.get(index).copied();
            let at = at.unwrap_or(line.trim_end().len());
            return error(at, "argument type or name is different from existing probe");
        }
        if let Some(at) = differs(event, other) {
            let at = at.unwrap_or(line.trim_end().len());
            let message = "aggregates or keys are different from existing probe";
            return error(at, message);
        }
        let values = |event: &EventSpec| -> Vec<_> {
            let values = event.arguments.iter();
            values.map(|argument| argument.fetch.clone()).collect()
        };
        if (&other.object, &other.place) == (&event.object, &event.place)
            && values(other) == values(event)
        {
            return error(start, "there is already the exact same probe event");
        }
    }
    Ok(())
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.error)
    }
}

impl fmt::Display for DefinitionErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}
