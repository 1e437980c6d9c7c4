//! Events as texts: single ones, and those of definition files.

use crate::advice::{Advice, Message};
use crate::calls;
use crate::error::{Code, Context, Error, Result, bail, message_of};
use crate::event::Event;
use crate::intervals;
use capriole_event::{EventSpec, ParseError, definition_lines, definitions};
use capriole_proc::files;
use std::path::{Path, PathBuf};

/// Prefix of an event whose calls are timed: `latency(EVENT)`.
pub const LATENCY_OF: &str = "latency(";

/// True if an event is `latency(...)`.
pub fn is_latency(text: &str) -> bool {
    text.trim_start().starts_with(LATENCY_OF)
}

/// Parses events whose hits are recorded one by one, without aggregates and keys: those of the
/// command line, then those of definition files.
///
/// # Errors
/// The first event that cannot be parsed, with its position marked; for a file, all such events.
pub fn parse_plain(events: &[String], files: &[PathBuf]) -> Result<Vec<EventSpec>> {
    let mut parsed: Vec<EventSpec> = Vec::new();
    for text in events {
        if is_latency(text) {
            return Err(Error::new(Code::Unsuitable, for_measuring(text)));
        }
        let spec = EventSpec::parse(text)?;
        plain(&spec).map_err(|message| Error::new(Code::Unsuitable, message))?;
        parsed.push(spec);
    }
    for file in files {
        let InFile { events, latencies } = in_file(file)?;
        let latencies = latencies.iter();
        let latencies = latencies.map(|(line, text)| (*line, for_measuring(text)));
        let others = events
            .iter()
            .filter_map(|(line, spec)| Some((*line, plain(spec).err()?)));
        let mut refused: Vec<_> = latencies.chain(others).collect();
        if !refused.is_empty() {
            refused.sort_by_key(|(line, _)| *line);
            return Err(Error::new(Code::Definitions, in_lines(file, refused)));
        }
        parsed.extend(events.into_iter().map(|(_, spec)| spec));
    }
    Ok(parsed)
}

/// Parses events whose hits are counted: those of the command line, then those of definition files.
///
/// # Errors
/// An event cannot be parsed.
pub fn parse_counted(events: &[String], files: &[PathBuf]) -> Result<Vec<Event>> {
    let mut definitions = Vec::new();
    for text in events {
        definitions.push(match timed(text)? {
            Some(timed) => timed,
            None => EventSpec::parse(text)?.counted().into(),
        });
    }
    for file in files {
        let InFile { events, latencies } = in_file(file)?;
        let mut all: Vec<(usize, Event)> = Vec::new();
        for (line, text) in latencies {
            let timed = timed(&text);
            let timed = timed.with_context(|| format!("{}: line {line}", file.display()))?;
            all.extend(timed.map(|timed| (line, timed)));
        }
        let others = events.into_iter();
        all.extend(others.map(|(line, spec)| (line, spec.counted().into())));
        all.sort_by_key(|(line, _)| *line);
        definitions.extend(all.into_iter().map(|(_, event)| event));
    }
    Ok(definitions)
}

/// Builds the event of `latency(...)`: calls of a function, or intervals between two events; `None` for
/// any other event.
///
/// # Errors
/// The event is `latency(...)` and cannot be parsed.
pub fn timed(text: &str) -> Result<Option<Event>> {
    match intervals::intervals(text)? {
        Some(event) => Ok(Some(event)),
        None => Ok(calls::latency(text)?.map(Event::from)),
    }
}

/// Joins the errors of a definition file, each with its line.
fn in_lines(file: &Path, errors: impl IntoIterator<Item = (usize, Message)>) -> Message {
    let mut all = Message::from(format!("{}: ", file.display()));
    for (index, (line, error)) in errors.into_iter().enumerate() {
        let end = if index > 0 { "\n" } else { "" };
        all = all.then(format!("{end}line {line}: ")).then(error);
    }
    all
}

/// Checks that an event has neither aggregates nor keys.
fn plain(spec: &EventSpec) -> Result<(), Message> {
    let Some(column) = spec.aggregation_column() else {
        return Ok(());
    };
    Err(not_recorded(ParseError {
        text: spec.text.clone(),
        column,
        message: "aggregates and `by` are for counting".to_string(),
        help: "count the event, or write the fields alone, without aggregates and `by`".to_string(),
        instead: None,
    }))
}

/// Returns the message for `latency(...)` where calls are not measured.
fn for_measuring(text: &str) -> Message {
    let message = not_recorded(ParseError {
        text: text.to_owned(),
        column: text.len() - text.trim_start().len(),
        message: "`latency(...)` is for measuring".to_string(),
        help: "measure the event, or record calls from entry to exit".to_string(),
        instead: None,
    });
    message.advise(Advice::RecordCalls)
}

/// Returns the message of an error, with advice on how to count or measure.
fn not_recorded(error: ParseError) -> Message {
    let rest = error.to_string().split_off(error.message.len());
    let message = Message::from(error.message);
    message.advise(Advice::Counting).then(rest)
}

/// Contents of a definition file, with line numbers.
pub struct InFile {
    /// Events written as on the command line.
    pub events: Vec<(usize, EventSpec)>,
    /// Events that are `latency(...)`, for [`timed`].
    pub latencies: Vec<(usize, String)>,
}

/// Reads a definition file.
///
/// # Errors
/// The file cannot be read or has no event, or all lines that cannot be parsed.
pub fn in_file(file: &Path) -> Result<InFile> {
    let bytes = files::read_input(file);
    let bytes = bytes.map_err(|error| {
        let message = format!("cannot read {}", file.display());
        Error::caused(Code::Definitions, message, error)
    })?;
    let text = event_text(&bytes).with_context(|| file.display().to_string())?;
    let latency = |(_, line): &(usize, &str)| is_latency(line);
    let latencies = definition_lines(&text).filter(latency);
    let latencies: Vec<_> = latencies.map(|(n, line)| (n, line.to_owned())).collect();
    // Blank these lines, so that all others keep their numbers.
    let mut rest: Vec<&str> = text.lines().collect();
    for (number, _) in &latencies {
        rest[number - 1] = "";
    }
    let events = definitions(&rest.join("\n"));
    let events = events.map_err(|errors| {
        let errors = errors.0.into_iter();
        let errors = errors.map(|error| (error.line, message_of(&error.error)));
        Error::new(Code::Definitions, in_lines(file, errors))
    })?;
    if events.is_empty() && latencies.is_empty() {
        bail!(Definitions, "{}: the file defines no event", file.display());
    }
    Ok(InFile { events, latencies })
}

/// Decodes a definition file. Comments may be in any encoding.
fn event_text(bytes: &[u8]) -> Result<String> {
    let mut text = String::new();
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let shown = String::from_utf8_lossy(line);
        // Invalid bytes appear as U+FFFD, which no event contains.
        let said = definition_lines(&shown).next().map_or("", |(_, said)| said);
        if let Err(error) = std::str::from_utf8(line)
            && said.contains(char::REPLACEMENT_CHARACTER)
        {
            let at = error.valid_up_to();
            bail!(
                Definitions,
                "line {number}: byte {} is {:#04x}, which is not UTF-8: {said}; save the file as \
                 UTF-8",
                at + 1,
                line[at]
            );
        }
        text.push_str(&shown);
        text.push('\n');
    }
    Ok(text)
}
