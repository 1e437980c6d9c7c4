//! Result of planning: a plan, a refusal, or another reason why there is no probe.

use crate::advice::Message;
use capriole_planner::planner::Plan;
use capriole_tactic::site::Refused;

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
