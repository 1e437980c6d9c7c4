//! Detection of function returns.

use crate::output::tell;
use crate::selection::Selected;
use capriole_codegen::detour::Work;
use capriole_patch::attach::Attached;
use capriole_planner::resolve::NotFollowed;
use capriole_ring::layout::header;

/// Method of detecting function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Returns {
    // By a probe at each of its exits
    #[default]
    Exits,
    // By the return address, which is replaced at the entry; works through tail calls too
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

    /// Prints a warning about missed returns, if there are any.
    pub fn say(self) {
        if self.damaged {
            tell!(
                "capriole: how many returns were missed is not known: the program, or a child \
                 that it forked, wrote over session memory"
            );
        }
        if self.missed > 0 {
            tell!(
                "capriole: the returns of {} were MISSED: too many calls were open at once, or \
                 functions left for one another; follow fewer functions",
                crate::units::counted(self.missed, "call", "calls")
            );
        }
    }
}

/// Splits the work of an event into the part at the site and the part at the function's return.
pub fn part(event: &Selected, work: Vec<Work>) -> (Vec<Work>, Vec<Work>) {
    match event.followed {
        true => (Vec::new(), work),
        false => (work, Vec::new()),
    }
}

/// Formats the reason why a named function cannot have its return address replaced.
pub fn refusal(reason: NotFollowed) -> String {
    format!(
        "the function's return address cannot be replaced: {reason}; without --return=stack a \
         probe is put at each of its exits"
    )
}
