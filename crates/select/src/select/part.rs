//! Source of an event, and its part in calls from entry to exit.

use crate::slots::Area;
use capriole_insn::ExitKind;

/// Source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// An event of the user's.
    User {
        /// True if the user named this very function, rather than a pattern. It is an error if it
        /// cannot be probed.
        named: bool,
    },
    /// Added without an event of the user's; then it is no error if it is missing.
    Implied,
}

impl Origin {
    /// True if the user named this very function.
    #[must_use]
    pub fn is_named(self) -> bool {
        self == Origin::User { named: true }
    }

    /// True if there is no event of the user's.
    #[must_use]
    pub fn is_implied(self) -> bool {
        self == Origin::Implied
    }
}

/// Part of an event in calls from entry to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// None: each hit is an event by itself. At a function's entry, other events at its exits may
    /// be linked with it.
    Point,
    /// Records each call at its entry, for an event that covers calls.
    Entry,
    /// Begins calls for the event at the exits, and records nothing itself.
    Begins {
        /// Area of the slots for the calls.
        area: Area,
        /// True if the event at the exits records whole calls, so that this one describes their
        /// entry in the trace.
        whole: bool,
    },
    /// Control leaves the function here.
    Exit {
        /// By a return or by a tail call.
        kind: ExitKind,
        /// How that is detected.
        detected: Detected,
        /// True if the user's event covers calls from entry to exit.
        of_calls: bool,
    },
}

/// Detection of an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detected {
    /// By a probe at the exit, which is the site.
    Here,
    /// By the return address: the site is the function's entry, where it is replaced, and the event
    /// happens when the function returns.
    ByReturnAddress,
}

impl Part {
    /// True if it only begins calls, and records nothing itself.
    #[must_use]
    pub fn begins_calls(self) -> bool {
        matches!(self, Part::Begins { .. })
    }

    /// True if control leaves a function.
    #[must_use]
    pub fn is_exit(self) -> bool {
        matches!(self, Part::Exit { .. })
    }

    /// True if the exit is detected by the return address.
    #[must_use]
    pub fn is_followed(self) -> bool {
        match self {
            Part::Exit { detected, .. } => detected == Detected::ByReturnAddress,
            Part::Point | Part::Entry | Part::Begins { .. } => false,
        }
    }

    /// True if the site is an instruction that leaves a function.
    #[must_use]
    pub fn is_probed_exit(self) -> bool {
        self.is_exit() && !self.is_followed()
    }

    /// True if the user's event covers calls from entry to exit.
    #[must_use]
    pub fn is_of_calls(self) -> bool {
        match self {
            Part::Point => false,
            Part::Entry | Part::Begins { .. } => true,
            Part::Exit { of_calls, .. } => of_calls,
        }
    }
}
