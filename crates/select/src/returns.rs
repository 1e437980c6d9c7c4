//! Detection of function returns.

use crate::advice::{Advice, Message};
use capriole_patch::attach::Attached;
use capriole_planner::resolve::NotFollowed;
use capriole_ring::layout::header;

/// Method of detecting function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Returns {
    /// By a probe at each exit of the function.
    #[default]
    Exits,
    /// By the return address, which is replaced at the entry; works through tail calls too.
    Stack,
}

/// Calls whose return address was replaced and whose return was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unseen {
    /// Number of calls for which no slot was free when they began, or where more than five
    /// functions, linked by tail calls, would have shared one.
    pub missed: u64,
    /// Number of calls that ended without returning.
    pub abandoned: u64,
    /// True if the numbers were overwritten, and so are unknown.
    pub damaged: bool,
}

impl Unseen {
    /// Reads the session's counts, over all processes that share it.
    pub fn of(attached: &Attached) -> Unseen {
        let memory = &attached.memory.memory;
        Unseen {
            missed: memory.counted(header::RETURNS_MISSED),
            abandoned: memory.counted(header::RETURNS_ABANDONED),
            damaged: [header::RETURNS_MISSED, header::RETURNS_ABANDONED]
                .into_iter()
                .any(|word| memory.is_written_over(word)),
        }
    }

    /// Adds the counts to the session's JSON.
    pub fn put_into(self, value: &mut serde_json::Value) {
        value["returns_missed"] = self.missed.into();
        value["returns_abandoned"] = self.abandoned.into();
        value["returns_damaged"] = self.damaged.into();
    }
}

/// Returns the reason why a named function cannot have its return address replaced.
pub fn refusal(reason: NotFollowed) -> Message {
    let message = format!("the function's return address cannot be replaced: {reason}");
    Message::from(message).advise(Advice::ProbeExitsOfFunction)
}
