//! How events at returns are seen.

use crate::output::tell;
use crate::selection::Selected;
use capriole_plan::detour::Work;
use capriole_ring::layout::header;
use capriole_target::attach::Attached;
use capriole_target::resolve::NotFollowed;

/// How it is seen that a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Returns {
    // By a probe at each of its exits
    #[default]
    Exits,
    // By its return address, which is replaced when it is entered: also through tail calls
    Stack,
}

/// Calls that were followed by their return address and whose return was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unseen {
    /// There was no slot free when they began, or more than five functions were left for one
    /// another.
    pub missed: u64,
    /// They were left in another way than by returning.
    pub abandoned: u64,
    /// The numbers were written over, and are not known.
    pub damaged: bool,
}

impl Unseen {
    /// What a session has counted, in all processes that share it.
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

    /// Adds it to what is told of a session as JSON.
    pub fn put_into(self, value: &mut serde_json::Value) {
        value["returns_missed"] = self.missed.into();
        value["returns_abandoned"] = self.abandoned.into();
        value["returns_damaged"] = self.damaged.into();
    }

    /// Tells a person what was missed.
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

/// Work at a function's entry, and what is done when it returns.
pub fn part(event: &Selected, work: Vec<Work>) -> (Vec<Work>, Vec<Work>) {
    match event.followed {
        true => (Vec::new(), work),
        false => (work, Vec::new()),
    }
}

/// Why an event that the user named cannot have its return address replaced.
pub fn refusal(reason: NotFollowed) -> String {
    format!(
        "the function's return address cannot be replaced: {reason}; without --return=stack a \
         probe is put at each of its exits"
    )
}
