//! Messages for people, and advice in them as data: each program that uses the engine has its own
//! words for it.

use capriole_tactic::site::{Refusal, Refused};
use std::fmt;

/// Advice that belongs to a message. See [`Message`] for its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
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
    /// Detach, to have memory unmapped that probes have left.
    DetachUnmaps {
        /// The process.
        pid: u32,
    },
    /// Detach later, to save what a dead recorder had not written.
    DetachSavesLater,
    /// Name the trace of a dead recorder when detaching, to save what it had not written. Too late
    /// Detach again, or throw the records away. Stands behind the reason why they were not written.
    DetachAgainSaves,
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
    /// Let the engine start the program: the process ended while it was being attached to.
    LaunchInstead,
    /// Detect returns by probes at the exits, if return addresses were to be replaced.
    LeaveOutReturnStackIfUsed,
    /// Detach the probes of the recorder that has the process.
    DetachOther {
        /// The process.
        pid: i32,
    },
    /// Share less memory with the program.
    SmallerBuffer,
    /// Name the process: the number was a thread's.
    NameProcess {
        /// The process.
        pid: u32,
    },
    /// Name a process, so that its libraries are known.
    GiveProcess,
    /// Record the event of a call's entry instead of calls from entry to exit.
    EntryInsteadOfCalls,
    /// List the markers of the file.
    ListShowsMarkers,
    /// List the functions that a pattern could have matched.
    ListShowsFunctions,
    /// List everything that an object has.
    ListShowsAll,
    /// Wait until the program has called an indirect function, or make it choose all implementations
    /// when it starts.
    ImplementationIsChosenLater,
    /// Assume that an instruction begins at the address.
    TrustAddress,
    /// Assume that an instruction begins at the address. Stands behind what shows none.
    TrustThatOneDoes,
    /// Allow breakpoints. Stands behind "only on request".
    RequestBreakpoints,
    /// Record the event with call stacks. Stands behind "record it".
    ReportCountsCallers,
    /// Count or measure instead of recording. Stands behind that word.
    Counting,
    /// Record calls from entry to exit. Stands behind these words.
    RecordCalls,
    /// Make a trace.
    RecordMakesTrace,
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

    /// Replaces the first place where this text stands by a message with the same text: so advice
    /// comes into an error that had the message as text. No advice must be before that place.
    pub fn within(self, text: &str, message: Message) -> Message {
        let Some(at) = self.text.find(text) else {
            return self;
        };
        let end = at + text.len();
        let advice = self.advice.into_iter();
        let rest = Message {
            text: self.text[end..].to_owned(),
            advice: advice.map(|(at, advice)| (at - end, advice)).collect(),
        };
        Message::from(&self.text[..at]).then(message).then(rest)
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
    pub fn chain(messages: impl IntoIterator<Item = Message>) -> Message {
        let mut messages = messages.into_iter();
        let first = messages.next().unwrap_or_default();
        messages.fold(first, |all, cause| match all.text.ends_with(&cause.text) {
            true => all,
            false => all.then(": ").then(cause),
        })
    }
}

impl From<Refusal> for Message {
    fn from(refusal: Refusal) -> Message {
        let message = Message::from(refusal.to_string());
        match refusal {
            Refusal::NotReached { .. } => message.advise(Advice::TrustAddress),
            Refusal::NotShown { .. } => message.advise(Advice::TrustThatOneDoes),
            Refusal::BreakpointsOff => message.advise(Advice::RequestBreakpoints),
            _ => message,
        }
    }
}

impl From<&Refused> for Message {
    fn from(refused: &Refused) -> Message {
        let mut message = Message::default();
        for (index, (tactic, refusal)) in refused.telling().into_iter().enumerate() {
            if index > 0 {
                message = message.then("; ");
            }
            if let Some(tactic) = tactic {
                message = message.then(format!("{tactic}: "));
            }
            message = message.then(refusal);
        }
        message
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
    use capriole_tactic::site::Tactic;

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

    #[test]
    fn a_refusal_has_its_advice_at_its_place() {
        let refused = Refused {
            refusals: vec![
                (Tactic::Int3, Refusal::BreakpointsOff),
                (Tactic::Region, Refusal::GoPreemption),
            ],
        };
        let message = Message::from(&refused);
        assert_eq!(message.to_string(), refused.to_string());
        let told = message.with(|advice| format!(" ({advice:?})"));
        let wanted = "int3: breakpoints are used only on request (RequestBreakpoints); region: ";
        assert!(told.starts_with(wanted), "{told}");
    }
}
