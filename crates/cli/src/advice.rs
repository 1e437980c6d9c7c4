//! The engine's advice in words of the command line.

use capriole::advice::{Advice, Message};

#[cfg(test)]
mod tests;

/// Returns the words for advice, with the punctuation that joins them to their message.
pub fn words(advice: Advice) -> String {
    match advice {
        Advice::LeaveOutReturnStack => "; leave out --return=stack".to_owned(),
        Advice::ProbeExitsOfFunction => {
            "; without --return=stack a probe is put at each of its exits".to_owned()
        }
        Advice::CheckShowsTheSite => "; `capriole check` shows the site".to_owned(),
        Advice::ListShowsVariables => {
            ": `capriole list --args` of the event without fields shows what each has".to_owned()
        }
        Advice::RecordAndReportStacks => {
            ": write `by stack`, or record the event, and see `capriole report --callers`".to_owned()
        }
        Advice::RecordShowsEach => "; `capriole record` shows each".to_owned(),
        Advice::RecordProcess { pid } => format!("; `capriole record -p {pid}` does it"),
        Advice::DetachDoesIt { pid } => format!(", which `capriole detach {pid}` does"),
        Advice::DetachTakesProbesOut { pid } => {
            format!(": `capriole detach {pid}` takes them out")
        }
        Advice::DetachUnmaps { pid } => {
            format!(": `capriole detach {pid}` unmaps it")
        }
        Advice::DetachSavesLater => {
            "; `capriole detach` saves what is in it when it can".to_owned()
        }
        Advice::DetachAgainSaves => {
            "; the rest stays in the program's memory: `capriole detach` saves it later, and throws it away with \
             --discard"
                .to_owned()
        }
        Advice::DetachIntoTrace => "; they are lost now".to_owned(),
        Advice::DetachWithoutTrace => {
            "; `-o DIR` names the trace of that recording, `--discard` throws its last records away".to_owned()
        }
        Advice::SuchAsCounting => ", such as `capriole stat`".to_owned(),
        Advice::LargerBuffer => ", or record with a larger --buffer-size".to_owned(),
        Advice::IsAWriterStopped => "; is a `capriole mark` stopped?".to_owned(),
        Advice::LaunchInstead => ", or use `capriole record -- PROGRAM`".to_owned(),
        Advice::LeaveOutReturnStackIfUsed => {
            ", or leave out --return=stack if you gave it".to_owned()
        }
        Advice::DetachOther { pid } => {
            format!(", or take its probes out with `capriole detach {pid}`")
        }
        Advice::SmallerBuffer => "; see --buffer-size".to_owned(),
        Advice::NameProcess { pid } => format!("; use -p {pid}"),
        Advice::GiveProcess => " (use -p PID for its libraries)".to_owned(),
        Advice::EntryInsteadOfCalls => {
            ": write the event with `-e`, without `latency(...)`".to_owned()
        }
        Advice::ListShowsMarkers => "; `capriole list 'usdt:PATH:*'` shows them".to_owned(),
        Advice::ListShowsFunctions => "; `capriole list` shows them".to_owned(),
        Advice::ListShowsAll => "; `capriole list` shows all that it has".to_owned(),
        // Slots are bound when a function is first called.
        Advice::ImplementationIsChosenLater => {
            "; name it with -p PID after the first call, or start the program with LD_BIND_NOW=1 in \
             its environment"
                .to_owned()
        }
        Advice::TrustAddress => {
            "; if you know that an instruction begins there, give --trust-address".to_owned()
        }
        Advice::TrustThatOneDoes => "; if you know that one does, give --trust-address".to_owned(),
        Advice::RequestBreakpoints => " (`--breakpoints`)".to_owned(),
        Advice::ReportCountsCallers => ", and see `capriole report --callers`".to_owned(),
        Advice::Counting => " (`capriole stat`)".to_owned(),
        Advice::RecordCalls => " (`capriole record --graph EVENT`)".to_owned(),
        Advice::RecordMakesTrace => "; `capriole record -o DIR` makes one".to_owned(),
    }
}

/// Formats a message with its advice in words.
pub fn told(message: &Message) -> String {
    message.with(words)
}
