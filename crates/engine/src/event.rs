//! The user's events with everything that is probed for each of them.

use crate::names::DURATION;
use capriole_event::EventSpec;

/// One event of the user's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Hits of places, each by itself.
    Single(Box<EventSpec>),
    /// Calls of functions, from entry to exit.
    Calls(Box<CallSpec>),
}

/// Calls of functions: the events at their entry and at their exits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSpec {
    /// Records each call at its entry.
    pub entry: Option<EventSpec>,
    /// Begins calls at the entry, for the exits: it has [`EventSpec::keeps`], and records nothing.
    pub begin: Option<EventSpec>,
    /// Records or counts each call at its exits.
    pub exit: EventSpec,
    /// True if the exits aggregate the duration of calls.
    pub timed: bool,
}

/// One of the events that are probed for an event of the user's.
#[derive(Debug, Clone, Copy)]
pub enum EventPart<'a> {
    /// An event by itself.
    Single(&'a EventSpec),
    /// Records each call at its entry.
    Entry(&'a EventSpec),
    /// Begins calls at the entry.
    Begin {
        /// The event.
        spec: &'a EventSpec,
        /// True if the exits record whole calls, so that the entry is described in the trace.
        whole: bool,
    },
    /// Records or counts each call at its exits.
    Exit(&'a EventSpec),
}

impl From<EventSpec> for Event {
    fn from(spec: EventSpec) -> Event {
        Event::Single(Box::new(spec))
    }
}

impl From<CallSpec> for Event {
    fn from(calls: CallSpec) -> Event {
        Event::Calls(Box::new(calls))
    }
}

impl Event {
    /// Returns the event whose hits are recorded or counted: at the exits, for calls.
    #[must_use]
    pub fn spec(&self) -> &EventSpec {
        match self {
            Event::Single(spec) => spec,
            Event::Calls(calls) => &calls.exit,
        }
    }

    /// Returns the source text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.spec().text
    }

    /// True if it was added without an event of the user's.
    #[must_use]
    pub fn is_implied(&self) -> bool {
        self.spec().implied
    }

    /// True if the duration of calls is aggregated.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        matches!(self, Event::Calls(calls) if calls.timed)
    }

    /// Returns all that is probed for the event, in the order in which it is numbered.
    pub fn parts(&self) -> impl Iterator<Item = EventPart<'_>> {
        let parts = match self {
            Event::Single(spec) => [Some(EventPart::Single(spec)), None, None],
            Event::Calls(calls) => [
                calls.entry.as_ref().map(EventPart::Entry),
                calls.begin.as_ref().map(|spec| EventPart::Begin {
                    spec,
                    whole: calls.records_whole(),
                }),
                Some(EventPart::Exit(&calls.exit)),
            ],
        };
        parts.into_iter().flatten()
    }
}

impl CallSpec {
    /// True if the exits record whole calls, with their duration, and the entry records nothing.
    fn records_whole(&self) -> bool {
        has_duration(&self.exit)
    }
}

impl<'a> EventPart<'a> {
    /// Returns the event that is probed.
    #[must_use]
    pub fn spec(self) -> &'a EventSpec {
        match self {
            EventPart::Single(spec)
            | EventPart::Entry(spec)
            | EventPart::Begin { spec, .. }
            | EventPart::Exit(spec) => spec,
        }
    }
}

/// True if an event at exits records how long calls took.
pub(crate) fn has_duration(exit: &EventSpec) -> bool {
    exit.arguments.iter().any(|a| a.name == DURATION)
}
