//! Probes as they are planned: the shape of the patch, and the work done at each instruction.

use capriole_codegen::work::Work;
use capriole_insn::Extent;
use capriole_insn::liveness::{Live, RegSet};
use capriole_ledger::counter::ReferenceCounter;
use capriole_tactic::site::{Patch, Refusal, Shape};
use std::ops::{BitOr, Range};

/// A probed instruction, with the work done before it.
#[derive(Debug, Clone)]
pub struct Point {
    /// Address of the instruction.
    pub site: u64,
    /// Work done before the instruction.
    pub work: Vec<Work>,
    /// Work done after the instruction, if the next one follows.
    pub after: Vec<Work>,
    /// Work done when the function entered here returns. If there is any, the site is the
    /// function's entry, where the return address is on top of the stack, and that address is
    /// replaced.
    pub returns: Vec<Work>,
    /// See [`Shape`].
    pub at_entry: bool,
    /// See [`Shape`].
    pub live: Live,
    /// See [`Shape`].
    pub function: Extent,
}

impl Point {
    /// Makes a point without work at the site of a shape.
    #[must_use]
    pub fn of(shape: &Shape) -> Point {
        Point {
            site: shape.site,
            work: Vec::new(),
            after: Vec::new(),
            returns: Vec::new(),
            at_entry: shape.at_entry,
            live: shape.live,
            function: shape.function,
        }
    }

    /// Registers that the work reads.
    pub(crate) fn reads(&self) -> RegSet {
        let sets = self.work.iter().chain(&self.after).map(Work::reads);
        sets.fold(RegSet::EMPTY, BitOr::bitor)
    }
}

/// A plan, with the original bytes that it is made for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Shape of the jump that reaches the site.
    pub shape: Shape,
    /// The original bytes of `shape.covered`.
    pub before: Vec<u8>,
    /// The reason why no breakpoint may be at the site, if there is one.
    pub breakpoint: Result<(), Refusal>,
    /// True if a function is entered at the site, by calls and by jumps that leave their function,
    /// so that its return address is on top of the stack. The red zone may still be in use.
    pub called: bool,
}

/// A site to be probed, or several sites that share one jump.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Shape of the patch: how the detour is reached.
    pub shape: Shape,
    /// The instructions of `shape` before which work is done, ascending.
    pub points: Vec<Point>,
    /// Mapped extent of the site's object, in run-time addresses.
    pub near: Range<u64>,
    /// The bytes of `shape.covered` for which the plan was made.
    pub before: Vec<u8>,
    /// True if a breakpoint may stand in for the jump while the bytes that change are occupied.
    pub stand_in: bool,
    /// Counters that must be above zero for the program to reach the site.
    pub counters: Vec<ReferenceCounter>,
}

impl Probe {
    /// Makes a probe of `plan`, in the object mapped at `near`, without work.
    #[must_use]
    pub fn new(plan: Plan, near: Range<u64>) -> Probe {
        Probe {
            points: vec![Point::of(&plan.shape)],
            shape: plan.shape,
            near,
            before: plan.before,
            stand_in: plan.breakpoint.is_ok(),
            counters: Vec::new(),
        }
    }

    /// Sets the work at the probe's own site.
    #[must_use]
    pub fn with(mut self, work: Vec<Work>) -> Probe {
        self.point(&Point::of(&self.shape)).work = work;
        self
    }

    /// Returns the point at the address of `like`; if there is none, inserts a copy of `like`
    /// without work.
    pub fn point(&mut self, like: &Point) -> &mut Point {
        let at = self.points.partition_point(|point| point.site < like.site);
        if self
            .points
            .get(at)
            .is_none_or(|point| point.site != like.site)
        {
            let new = Point {
                work: Vec::new(),
                after: Vec::new(),
                returns: Vec::new(),
                ..like.clone()
            };
            self.points.insert(at, new);
        }
        &mut self.points[at]
    }

    /// True if it can be written while the program runs, as a breakpoint at least.
    #[must_use]
    pub fn is_written_running(&self) -> bool {
        let by_breakpoint = self.shape.tactic.patch() == Patch::Breakpoint;
        let single = self.shape.placed.is_none() && self.counters.is_empty();
        single && (self.stand_in || by_breakpoint)
    }

    /// Returns the number of places that are written for the patch.
    pub(crate) fn writes(&self) -> usize {
        let placed = self.shape.placed.as_ref();
        placed.map_or(1, |placed| placed.writes.len())
    }

    /// True if the probe follows calls to their returns.
    pub(crate) fn follows(&self) -> bool {
        self.points.iter().any(|point| !point.returns.is_empty())
    }

    /// Returns all work done at the probe's points and at returns.
    pub(crate) fn works(&self) -> impl Iterator<Item = &Work> {
        let points = self.points.iter();
        points.flat_map(|point| point.work.iter().chain(&point.after).chain(&point.returns))
    }
}
