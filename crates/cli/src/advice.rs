//! The engine's advice in words of the command line.

use capriole::advice::{Advice, Message};

/// Returns the words for advice, with the punctuation that joins them to their message.
pub fn words(advice: Advice) -> String {
    match advice {
        Advice::ProbeExitsForValues => "; leave --return=stack out".to_owned(),
        Advice::LeaveOutReturnStack => "; leave out --return=stack".to_owned(),
        Advice::ProbeExitsOfFunction => {
            "; without --return=stack a probe is put at each of its exits".to_owned()
        }
        Advice::CheckShowsTheSite => "; `capriole check` shows the site".to_owned(),
        Advice::ListShowsVariables => {
            ": `capriole list --args` of the event without fields shows what each has".to_owned()
        }
        Advice::RecordAndReportStacks => {
            ": record the event, and see `capriole report --callers`".to_owned()
        }
        Advice::RecordShowsEach => "; `capriole record` shows each".to_owned(),
        Advice::RecordProcess { pid } => format!("; `capriole record -p {pid}` does it"),
        Advice::DetachDoesIt { pid } => format!(", which `capriole detach {pid}` does"),
        Advice::DetachTakesProbesOut { pid } => {
            format!(": `capriole detach {pid}` takes them out")
        }
        Advice::DetachSavesLater => {
            "; `capriole detach` saves what is in it when it can".to_owned()
        }
        Advice::DetachIntoTrace => {
            "; they are lost now: `capriole detach -o DIR` with the trace of that recording would \
             have saved them"
                .to_owned()
        }
        Advice::DetachWithoutTrace => {
            "; give the trace of that recording with -o, or leave -o out to give those records up"
                .to_owned()
        }
        Advice::SuchAsCounting => ", such as `capriole stat`".to_owned(),
        Advice::LargerBuffer => ", or record with a larger --buffer-size".to_owned(),
        Advice::IsAWriterStopped => "; is a `capriole mark` stopped?".to_owned(),
    }
}

/// Formats a message with its advice in words.
pub fn told(message: &Message) -> String {
    message.with(words)
}
