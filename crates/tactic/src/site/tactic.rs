//! The tactics, and everything that differs between them.
//!
//! [`Tactic::properties`] is the only list: a new tactic needs a variant, a row there and the rule
//! that the row names. Other crates ask a tactic or a [`Shape`](super::Shape) for a property and
//! do not match on single tactics, so that no decision about a new tactic can be forgotten.

use std::fmt;

use super::Refusal;
use super::ladder::{Cover, Ladder};
use crate::place::Placer;

/// Method of getting from a site to its detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tactic {
    /// The site holds nops reserved for this purpose: nothing is displaced.
    Reserved,
    /// A jump over one instruction of five bytes or more.
    OneInstruction,
    /// A jump over several instructions.
    Region,
    /// A jump over one instruction of two to four bytes, which takes the rest of
    /// its displacement from the instruction after it.
    Punned,
    /// Like `Punned`, but over a one-byte instruction: the whole displacement is given.
    PunnedByte,
    /// A jump for which the site is too short. A neighbouring instruction makes room by being
    /// executed elsewhere as well, or unused bytes nearby are used.
    Evicted,
    /// A jump over several instructions, all but the first starting with a breakpoint, for threads
    /// that may still enter there.
    Trapped,
    /// A breakpoint whose handler continues in the detour. The last resort, and so the last tactic.
    Int3,
}

/// Kind of instruction at the first covered byte that leads to the detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// `jmp rel32`
    Jump,
    /// `int3`
    Breakpoint,
}

/// Use of the covered bytes after the first one at the moment when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interior {
    /// No instruction starts there, or none that changes: no thread can be inside.
    Closed,
    /// Instructions start there. Threads have to be moved, and no stack may hold an address there.
    Open,
    /// Instructions start there, each of which becomes a breakpoint that leads to its copy.
    /// Threads have to be moved, but a thread may still return there later.
    Trapped,
}

/// Rule of a tactic: the bytes it covers at a site, or why it cannot be used.
#[derive(Clone, Copy)]
pub(super) enum Rule<'a> {
    /// A patch that can lead to any address.
    Free(fn(&Ladder<'a>) -> Result<Cover, Refusal>),
    /// A jump that can lead only to some addresses, which the placer hands out.
    Prescribed(fn(&Ladder<'a>, &mut Placer) -> Result<Cover, Refusal>),
}

/// Everything that differs between the tactics.
struct Properties<'a> {
    /// See [`Tactic::as_str`].
    name: &'static str,
    /// See [`Tactic::description`].
    description: &'static str,
    /// Rule for a site.
    rule: Rule<'a>,
    /// Rule for [`choose_one_instruction`](super::choose_one_instruction); `None` if the tactic
    /// removes starts of instructions or makes the program trap.
    rule_in_place: Option<Rule<'a>>,
    /// See [`Tactic::patch`].
    patch: Patch,
    /// See [`Tactic::interior`].
    interior: Interior,
    /// See [`Tactic::covers_nops`].
    covers_nops: bool,
}

impl Tactic {
    /// All tactics in the order in which they are tried.
    pub const ALL: [Self; 8] = [
        Self::Reserved,
        Self::OneInstruction,
        Self::Region,
        Self::Punned,
        Self::PunnedByte,
        Self::Evicted,
        Self::Trapped,
        Self::Int3,
    ];

    /// Returns everything that differs between the tactics, in one place.
    const fn properties<'a>(self) -> Properties<'a> {
        match self {
            Self::Reserved => Properties {
                name: "reserved",
                description: "nops that may be overwritten stand here",
                rule: Rule::Free(Ladder::reserved),
                rule_in_place: Some(Rule::Free(Ladder::reserved_in_one)),
                patch: Patch::Jump,
                interior: Interior::Open,
                covers_nops: true,
            },
            Self::OneInstruction => Properties {
                name: "jump",
                description: "a jump over one instruction",
                rule: Rule::Free(Ladder::one_instruction),
                rule_in_place: Some(Rule::Free(Ladder::one_instruction)),
                patch: Patch::Jump,
                interior: Interior::Closed,
                covers_nops: false,
            },
            Self::Region => Properties {
                name: "region",
                description: "a jump over several instructions",
                rule: Rule::Free(Ladder::region),
                rule_in_place: None,
                patch: Patch::Jump,
                interior: Interior::Open,
                covers_nops: false,
            },
            Self::Punned => Properties {
                name: "pun",
                description: "a jump that shares bytes with the next instruction",
                rule: Rule::Prescribed(Ladder::punned),
                rule_in_place: Some(Rule::Prescribed(Ladder::punned)),
                patch: Patch::Jump,
                interior: Interior::Closed,
                covers_nops: false,
            },
            Self::PunnedByte => Properties {
                name: "pun-byte",
                description: "a jump of which only the first byte is new",
                rule: Rule::Prescribed(Ladder::punned_byte),
                rule_in_place: Some(Rule::Prescribed(Ladder::punned_byte)),
                patch: Patch::Jump,
                interior: Interior::Closed,
                covers_nops: false,
            },
            Self::Evicted => Properties {
                name: "evict",
                description: "a jump for which something nearby makes room",
                rule: Rule::Prescribed(Ladder::evicted),
                rule_in_place: Some(Rule::Prescribed(Ladder::evicted)),
                patch: Patch::Jump,
                interior: Interior::Closed,
                covers_nops: false,
            },
            Self::Trapped => Properties {
                name: "trapped",
                description: "a jump over several instructions, with breakpoints inside for who still comes there",
                rule: Rule::Prescribed(Ladder::trapped),
                rule_in_place: None,
                patch: Patch::Jump,
                interior: Interior::Trapped,
                covers_nops: false,
            },
            Self::Int3 => Properties {
                name: "int3",
                description: "a breakpoint, which costs about 100 times more than a jump",
                rule: Rule::Free(Ladder::int3),
                rule_in_place: None,
                patch: Patch::Breakpoint,
                interior: Interior::Closed,
                covers_nops: false,
            },
        }
    }

    /// Returns the rule for a site.
    pub(super) const fn rule<'a>(self) -> Rule<'a> {
        self.properties().rule
    }

    /// Returns the rule for changing only whole instructions in place, if there is one.
    pub(super) const fn rule_in_place<'a>(self) -> Option<Rule<'a>> {
        self.properties().rule_in_place
    }

    /// Returns the tactics that are tried before this one.
    pub(super) fn before(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().take_while(move |other| *other < self)
    }

    /// Returns the name used in output and files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.properties().name
    }

    /// Returns a line for people: the patch, without the site.
    #[must_use]
    pub const fn description(self) -> &'static str {
        self.properties().description
    }

    /// True if some bytes of the jump, and so its target, are not free to choose.
    #[must_use]
    pub const fn is_prescribed(self) -> bool {
        matches!(self.properties().rule, Rule::Prescribed(_))
    }

    /// Returns the kind of instruction at the first covered byte.
    #[must_use]
    pub const fn patch(self) -> Patch {
        self.properties().patch
    }

    /// True if a breakpoint, instead of a jump, leads to the detour.
    #[must_use]
    pub const fn is_breakpoint(self) -> bool {
        matches!(self.patch(), Patch::Breakpoint)
    }

    /// Returns the use of the covered bytes after the first one.
    #[must_use]
    pub(crate) const fn interior(self) -> Interior {
        self.properties().interior
    }

    /// True if the tactic puts breakpoints into the program that stay, so that it needs the
    /// handler for SIGTRAP.
    #[must_use]
    pub const fn needs_trap(self) -> bool {
        self.is_breakpoint() || matches!(self.interior(), Interior::Trapped)
    }

    /// True for a jump with a free choice of target that may cover several instructions.
    #[must_use]
    pub const fn is_wide(self) -> bool {
        !self.is_prescribed() && matches!(self.interior(), Interior::Open)
    }

    /// True if the covered bytes have no effect: a thread anywhere inside can go on after them.
    #[must_use]
    pub(crate) const fn covers_nops(self) -> bool {
        self.properties().covers_nops
    }
}

/// `ALL` holds every variant, in order of declaration.
const _: () = {
    let mut at = 0;
    while at < Tactic::ALL.len() {
        assert!(Tactic::ALL[at] as usize == at);
        at += 1;
    }
    assert!(at == Tactic::Int3 as usize + 1);
};

impl fmt::Display for Tactic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (name, first instruction, interior, [covers nops, prescribed, used in place, needs the
    /// handler for SIGTRAP, wide])
    type Row = (&'static str, Patch, Interior, [bool; 5]);

    /// The decisions about each tactic, written a second time: a new variant does not compile
    /// until it is decided here as well.
    fn decided(tactic: Tactic) -> Row {
        use Interior::{Closed, Open, Trapped};
        use Patch::{Breakpoint, Jump};
        const NO: bool = false;
        const YES: bool = true;
        match tactic {
            //                                              nops prescribed in-place trap wide
            Tactic::Reserved => ("reserved", Jump, Open, [YES, NO, YES, NO, YES]),
            Tactic::OneInstruction => ("jump", Jump, Closed, [NO, NO, YES, NO, NO]),
            Tactic::Region => ("region", Jump, Open, [NO, NO, NO, NO, YES]),
            Tactic::Punned => ("pun", Jump, Closed, [NO, YES, YES, NO, NO]),
            Tactic::PunnedByte => ("pun-byte", Jump, Closed, [NO, YES, YES, NO, NO]),
            Tactic::Evicted => ("evict", Jump, Closed, [NO, YES, YES, NO, NO]),
            Tactic::Trapped => ("trapped", Jump, Trapped, [NO, YES, NO, YES, NO]),
            Tactic::Int3 => ("int3", Breakpoint, Closed, [NO, NO, NO, YES, NO]),
        }
    }

    #[test]
    fn every_tactic_has_the_properties_decided_for_it() {
        for tactic in Tactic::ALL {
            let row = (
                tactic.as_str(),
                tactic.patch(),
                tactic.interior(),
                [
                    tactic.covers_nops(),
                    tactic.is_prescribed(),
                    tactic.rule_in_place().is_some(),
                    tactic.needs_trap(),
                    tactic.is_wide(),
                ],
            );
            assert_eq!(row, decided(tactic));
        }
    }

    #[test]
    fn names_and_descriptions_differ() {
        for tactic in Tactic::ALL {
            for other in tactic.before() {
                assert_ne!(tactic.as_str(), other.as_str());
                assert_ne!(tactic.description(), other.description());
            }
        }
    }

    #[test]
    fn every_tactic_is_documented() {
        let page = include_str!("../../../../docs/tactics.md");
        for tactic in Tactic::ALL {
            let heading = format!("### {tactic}\n");
            assert!(page.contains(&heading), "docs/tactics.md: {heading}");
        }
    }

    #[test]
    fn a_breakpoint_is_the_last_resort() {
        let first = Tactic::ALL.iter().position(|tactic| tactic.is_breakpoint());
        assert_eq!(first, Some(Tactic::ALL.len() - 1));
    }
}
