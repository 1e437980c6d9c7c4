//! Result of planning: a plan, a refusal, or another reason why there is no probe.

use crate::advice::Message;
use capriole_planner::planner::Plan;
use capriole_tactic::site::{Refusal, Refused};

/// Result of planning an event's probe.
#[derive(Debug)]
pub enum Fate {
    /// It gets a probe.
    Planned(Plan),
    /// No tactic reaches the site.
    Refused(Refused),
    /// It has no probe whatever the plan: a field is not available in this copy of the function, or
    /// not all of the function's exits can have a probe.
    LeftOut {
        /// The reason.
        reason: Message,
        /// The plan that there would be.
        plan: Result<Plan, Refused>,
    },
}

/// Returns a refusal in a few words, and its rank: of several refusals the first one counts. `None`
/// for refusals that only rule out a tactic which needs luck.
fn kind(refusal: &Refusal) -> Option<(u8, &'static str)> {
    Some(match refusal {
        Refusal::EndsTooSoon { .. } => (0, "too short for a jump"),
        Refusal::NotRelocatable(_) => (1, "an instruction that cannot be moved"),
        Refusal::BranchTarget { .. } | Refusal::CallInside { .. } => {
            (2, "a jump or return leads into the bytes")
        }
        Refusal::UnresolvedIndirectJump { .. }
        | Refusal::UnresolvedPartJump { .. }
        | Refusal::TargetsUnknown(_) => (3, "an indirect jump that is not understood"),
        Refusal::Undecodable { .. } | Refusal::OverlappingCode { .. } => {
            (4, "bytes that may not be code")
        }
        Refusal::NotReached { .. } | Refusal::NotShown { .. } => (5, "not known to be code"),
        Refusal::Forbidden { .. } | Refusal::MarkerInside { .. } => {
            (6, "code that must not be changed")
        }
        Refusal::NoProbe => (7, "excluded by the program (CAPRIOLE_NOPROBE)"),
        _ => return None,
    })
}

impl From<Result<Plan, Refused>> for Fate {
    fn from(plan: Result<Plan, Refused>) -> Fate {
        match plan {
            Ok(plan) => Fate::Planned(plan),
            Err(refused) => Fate::Refused(refused),
        }
    }
}

impl Fate {
    /// Returns the plan, also if the event is left out.
    ///
    /// # Errors
    /// No tactic reaches the site.
    pub fn plan(&self) -> Result<&Plan, &Refused> {
        match self {
            Fate::Planned(plan) => Ok(plan),
            Fate::Refused(refused) => Err(refused),
            Fate::LeftOut { plan, .. } => plan.as_ref(),
        }
    }

    /// Returns the reason why the event is left out, if it is.
    #[must_use]
    pub fn left_out(&self) -> Option<&Message> {
        match self {
            Fate::LeftOut { reason, .. } => Some(reason),
            Fate::Planned(_) | Fate::Refused(_) => None,
        }
    }

    /// Returns the reason why there is no probe, if there is none.
    #[must_use]
    pub fn reason(&self) -> Option<Message> {
        match self {
            Fate::Planned(_) => None,
            Fate::Refused(refused) => Some(refused.into()),
            Fate::LeftOut { reason, .. } => Some(reason.clone()),
        }
    }

    /// Returns a short reason for `reason`, why there is no probe, so that equal ones can be counted.
    #[must_use]
    pub fn kind(&self, reason: &Message) -> String {
        if let Fate::Refused(refused) = self {
            let mut refusals = refused.refusals.iter();
            let kinds = refusals.by_ref().filter_map(|(_, refusal)| kind(refusal));
            if let Some((_, words)) = kinds.min_by_key(|(rank, _)| *rank) {
                return words.to_owned();
            }
        }
        let text = reason.to_string();
        if text.starts_with("its exit at ") {
            return "an exit that cannot be probed".to_owned();
        }
        let field = text.strip_prefix("field `");
        let why = field.and_then(|rest| rest.split_once("`: "));
        let text = why.map_or(text.as_str(), |(_, why)| why);
        let end = text.find([':', ';', ',']).unwrap_or(text.len());
        text[..end].to_owned()
    }

    /// Reaches the site by a breakpoint, if one may be there.
    pub fn by_breakpoint(&mut self) {
        if let Fate::Planned(plan) = self
            && plan.breakpoint.is_ok()
        {
            let before = plan.shape.covered.start;
            plan.shape.by_breakpoint();
            let dropped = plan.shape.covered.start - before;
            plan.before.drain(..dropped as usize);
        }
    }

    /// Leaves the event out, for this reason; an earlier one stays.
    pub fn leave_out(&mut self, reason: impl FnOnce() -> Message) {
        let nothing = Fate::Refused(Refused {
            refusals: Vec::new(),
        });
        let reasoned = |plan| Fate::LeftOut {
            reason: reason(),
            plan,
        };
        *self = match std::mem::replace(self, nothing) {
            Fate::Planned(plan) => reasoned(Ok(plan)),
            Fate::Refused(refused) => reasoned(Err(refused)),
            left_out @ Fate::LeftOut { .. } => left_out,
        };
    }
}
