//! Messages for people, and advice in them as data: each program that uses the engine has its own
//! words for it.

use std::fmt;

/// Advice that belongs to a message. See [`Message`] for its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Detect returns by probes at the exits: values at the entry and shortest times need them.
    ProbeExitsForValues,
    /// Detect returns by probes at the exits: return addresses cannot be replaced in this program.
    LeaveOutReturnStack,
    /// Detect returns by probes at the exits: the return address of this function cannot be
    /// replaced.
    ProbeExitsOfFunction,
    /// Look at the site in detail.
    CheckShowsTheSite,
    /// List the variables that there are at each place.
    ListShowsVariables,
    /// Record events with call stacks, and let a report count them.
    RecordAndReportStacks,
    /// Record events with floating point numbers, instead of counting.
    RecordShowsEach,
    /// Begin a recording of the process.
    RecordProcess {
        /// The process.
        pid: u32,
    },
    /// Detach a dead recorder's probes from the process. Stands behind "without taking its probes
    /// out".
    DetachDoesIt {
        /// The process.
        pid: u32,
    },
    /// Detach the probes that are still in the process.
    DetachTakesProbesOut {
        /// The process.
        pid: u32,
    },
    /// Detach later, to save what a dead recorder had not written.
    DetachSavesLater,
    /// Name the trace of a dead recorder when detaching, to save what it had not written. Too late
    /// for the records that the message is about.
    DetachIntoTrace,
    /// Name the right trace when detaching, or none, to give up what was not written.
    DetachWithoutTrace,
    /// An example of a program that probes a process and takes no messages: one that counts.
    SuchAsCounting,
    /// Record with more memory.
    LargerBuffer,
    /// Look for a stopped program that writes a message.
    IsAWriterStopped,
}

/// A message, and the advice that belongs into it.
///
/// `Display` shows the message without advice; [`Message::with`] puts words for the advice in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    text: String,
    /// Advice, each with the offset in `text` where its words belong; ascending.
    advice: Vec<(usize, Advice)>,
}

/// Puts advice into words, with the punctuation that joins it to the message.
pub type Words = fn(Advice) -> String;

impl Message {
    /// Appends advice.
    #[must_use]
    pub fn advise(mut self, advice: Advice) -> Message {
        self.advice.push((self.text.len(), advice));
        self
    }

    /// Appends another message.
    #[must_use]
    pub fn then(mut self, other: impl Into<Message>) -> Message {
        let other = other.into();
        let start = self.text.len();
        let advice = other.advice.into_iter();
        self.advice
            .extend(advice.map(|(at, advice)| (start + at, advice)));
        self.text += &other.text;
        self
    }

    /// Returns the advice.
    pub fn advice(&self) -> impl Iterator<Item = Advice> {
        self.advice.iter().map(|(_, advice)| *advice)
    }

    /// Formats the message with its advice in these words.
    #[must_use]
    pub fn with(&self, words: Words) -> String {
        let mut text = String::new();
        let mut done = 0;
        for (at, advice) in &self.advice {
            text += &self.text[done..*at];
            text += &words(*advice);
            done = *at;
        }
        text + &self.text[done..]
    }

    /// Joins messages, outermost first, without those that the ones in front already end with.
    pub(crate) fn chain(messages: impl IntoIterator<Item = Message>) -> Message {
        let mut messages = messages.into_iter();
        let first = messages.next().unwrap_or_default();
        messages.fold(first, |all, cause| match all.text.ends_with(&cause.text) {
            true => all,
            false => all.then(": ").then(cause),
        })
    }
}

impl From<String> for Message {
    fn from(text: String) -> Message {
        Message {
            text,
            advice: Vec::new(),
        }
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Message {
        text.to_owned().into()
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stays_at_its_place() {
        let inner = Message::from("it is full")
            .advise(Advice::LargerBuffer)
            .then(", or late");
        let whole = Message::chain([Message::from("cannot write"), inner]);
        assert_eq!(whole.to_string(), "cannot write: it is full, or late");
        assert_eq!(
            whole.with(|advice| format!(" ({advice:?})")),
            "cannot write: it is full (LargerBuffer), or late"
        );
    }
}
