//! Choice of a tactic for a probe site, with the reasons against the others.
//!
//! [`choose`] is a function of bytes: it examines the code around a site and the known facts
//! about the object, and returns which bytes would change and which instructions have to be
//! displaced. It does not know the detour's address.
//!
//! ```text
//!          site                         resume
//!           v                             v
//! before  │ 55 │ 48 89 e5 │ 41 57       │ 41 56 ...   push; mov; push │ push
//! after   │ e9 .. .. .. ..      │ 57    │ 41 56 ...   jmp detour      │ push
//!          └────────── covered ──────────┘
//! ```
//!
//! The last covered byte here is never executed again and stays unchanged.
//!
//! A *region* covers several instructions. It is allowed only if nothing can enter the middle:
//! no direct branch of the whole object, symbol, landing pad, jump table entry or pointer in
//! data leads there; a call may only be the last covered instruction, so no return address lies
//! inside; and the function has no indirect jump that is not understood. It is never used in Go
//! programs, whose runtime keeps the addresses of arbitrary instructions as return addresses.
//! The site may be any of the covered instructions, as the detour executes those before it
//! first: so a `ret`, which has no room behind it, is reached from before it.
//!
//! The tactics whose jump may lead anywhere (reserved, jump, region) do not depend on other
//! sites. The others need addresses from [`place`](crate::place).
//!
//! Breakpoints, and the tactic *trapped*, are used only on request: a program that hits a
//! breakpoint while it blocks SIGTRAP is killed by the kernel, and whether it will ever do so
//! cannot be known. The loss is small. Of 10,702 events of `--graph 'libpython3.11:*'`, 398
//! could not be probed without breakpoints before sites could share jumps; now 24 cannot, 20 of
//! them because the function never returns.

pub(crate) mod ladder;
mod placed;
mod refusal;
mod tactic;

use std::fmt;
use std::ops::Range;

use self::ladder::{Cover, Ladder};
pub use self::placed::{Placed, Stub, StubTo, Write};
pub use self::refusal::Refusal;
use self::tactic::Rule;
pub use self::tactic::{Interior, Patch, Tactic};
use crate::arch::instruction::Instruction;
pub use crate::arch::jump::{FAR_STUB, JUMP};
use crate::place::Placer;
use capriole_insn::{Code, Extent, FunctionFlow, Live, Targets};

/// Input of [`choose`]. All addresses are run-time addresses.
#[derive(Clone, Copy, Debug)]
pub struct SiteInput<'a> {
    /// The object's text, with the function and the padding after it, as it
    /// was before any patch.
    pub code: &'a Code<'a>,
    /// The function around the site. One analysis serves all its sites.
    pub flow: &'a FunctionFlow,
    /// The address to probe.
    pub site: u64,
    /// Targets of the jumps of the whole object.
    pub targets: &'a Targets,
    /// Start of the next function, or end of the text: nops and `int3` between the function's end
    /// and this address belong to no function.
    pub padding_end: u64,
    /// The function that begins right where this one ends, if there is one: its first instructions
    /// may be evicted.
    pub next: Option<Extent>,
    /// Code that must not change, such as restartable sequences.
    pub forbidden: &'a [Extent],
    /// True if the program runs with a shadow stack, so that a manually pushed return address would
    /// be fatal.
    pub shadow_stack: bool,
    /// `Ok` if a breakpoint may be used, or the reason against it.
    pub int3: Result<(), Refusal>,
    /// True for a Go program.
    pub go: bool,
    /// True if other code may jump or fall through into the function instead of *calling* it, with
    /// its own frame or red zone in place: a part that the compiler split off (`name.cold`, not
    /// `name.part.N`), or a symbol inside another function.
    pub split_part: bool,
}

/// Plan of the patch at a site.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The tactic used.
    pub tactic: Tactic,
    /// The instruction before which the work is done: at the requested address, or after the
    /// `endbr64` there.
    pub site: u64,
    /// Whole instructions (and possibly padding) that the jump or breakpoint, which is at the
    /// start, replaces partly or completely. In a [region](Tactic::Region) the site may be in the
    /// middle: then the detour runs the instructions before it first. A thread whose program
    /// counter is in here, but not at the start, has to be moved before the bytes change. Bytes
    /// after the first five stay unchanged.
    pub covered: Extent,
    /// Address at which the program continues after the displaced instructions, if they fall
    /// through.
    pub resume: u64,
    /// The instructions that the detour has to run, in order.
    pub displaced: Vec<Instruction>,
    /// True if nothing below the stack pointer is live at the site, so that no red zone has to be
    /// skipped.
    ///
    /// This holds where a function is entered. By a call: the caller's red zone is gone, as the
    /// return address was just pushed onto it. By a tail call: the caller's frame is gone, and the
    /// callee is free to overwrite everything below the stack pointer, so the caller cannot have
    /// left anything there. It does not hold if the function itself jumps back to its start, or
    /// might, where the cold part of a function is entered by a jump, or at a symbol that other
    /// code falls through into or jumps to, unless that code is proved to keep nothing there
    /// ([`SiteInput::split_part`]).
    pub at_entry: bool,
    /// The registers and flags that the detour must keep for the program.
    pub live: Live,
    /// The function around the site, to which the analysis applies.
    pub function: Extent,
    /// For a [prescribed](Tactic::is_prescribed) tactic, the bytes and stubs it needs.
    pub placed: Option<Placed>,
    /// Reasons why the tactics before this one were not used.
    pub refusals: Vec<(Tactic, Refusal)>,
}

impl Shape {
    /// True if the page has a breakpoint of another tool, beside which only one of ours is safe.
    #[must_use]
    pub fn is_beside_another(&self) -> bool {
        let mut refusals = self.refusals.iter();
        refusals.any(|(_, refusal)| *refusal == Refusal::AlteredPage)
    }

    /// Reaches the site by a breakpoint, whatever the tactic was: a breakpoint needs only the site's
    /// own instruction, before which a jump may begin.
    pub fn by_breakpoint(&mut self) {
        let is_own = |i: &Instruction| i.ip() == self.site;
        let own = self.displaced.iter().position(is_own).unwrap_or(0);
        self.displaced.drain(..own);
        self.displaced.truncate(1);
        let start = match self.displaced.first() {
            Some(instruction) => instruction.ip(),
            None => self.covered.start,
        };
        self.tactic = Tactic::Int3;
        self.covered = Extent::new(start, start + 1);
        self.resume = self
            .displaced
            .first()
            .map_or(self.resume, Instruction::next_ip);
        self.placed = None;
    }

    /// Returns the addresses at which a thread may be between the covered instructions when they
    /// change: it has to be moved from there first. `None` if no thread can be inside.
    #[must_use]
    pub fn occupiable(&self) -> Option<Range<u64>> {
        match self.tactic.interior() {
            Interior::Closed => None,
            Interior::Open | Interior::Trapped => Some(self.covered.start + 1..self.covered.end),
        }
    }

    /// True if no stack may hold an [occupiable](Self::occupiable) address when the bytes change:
    /// a thread that returned there would find the middle of the patch.
    #[must_use]
    pub fn excludes_returns(&self) -> bool {
        match self.tactic.interior() {
            Interior::Open => true,
            Interior::Closed | Interior::Trapped => false,
        }
    }

    /// Returns the address at which a thread inside the covered bytes can go on if they have no
    /// effect.
    #[must_use]
    pub fn past_nops(&self) -> Option<u64> {
        self.tactic.covers_nops().then_some(self.resume)
    }

    /// Adapts the shape to another site among the displaced instructions.
    ///
    /// # Errors
    ///
    /// The reason why that site cannot be probed, whatever the tactic.
    pub fn for_site(&self, input: &SiteInput<'_>) -> Result<Shape, Refusal> {
        let ladder = Ladder::new(input)?;
        Ok(Shape {
            site: ladder.site,
            at_entry: ladder.at_entry(),
            live: ladder.live(),
            ..self.clone()
        })
    }
}

/// Error: no tactic can be used at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The reason for each tactic, in the order in which they were tried. If the site itself is
    /// unsuitable, all have the same reason.
    pub refusals: Vec<(Tactic, Refusal)>,
}

impl Refused {
    /// Returns the reasons that tell a reader most, with the tactic if the reason holds for it
    /// alone.
    #[must_use]
    pub fn telling(&self) -> Vec<(Option<Tactic>, Refusal)> {
        let mut reasons = self.refusals.iter().map(|(_, refusal)| refusal);
        if let Some(first) = reasons.next()
            && reasons.all(|refusal| refusal == first)
        {
            return vec![(None, *first)];
        }
        // If the instruction cannot run elsewhere at all, that reason is the most informative.
        if let Some((tactic, refusal @ Refusal::NotRelocatable(_))) = self.refusals.last()
            && tactic.is_breakpoint()
        {
            return vec![(None, *refusal)];
        }
        let others = self.refusals.iter().filter(|(_, r)| !r.is_about_length());
        others.map(|(tactic, r)| (Some(*tactic), *r)).collect()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (tactic, refusal)) in self.telling().iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            match tactic {
                Some(tactic) => write!(f, "{separator}{tactic}: {refusal}")?,
                None => write!(f, "{separator}{refusal}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

/// Chooses the first tactic that is safe at a site, among those that work wherever the detour is.
///
/// # Errors
///
/// [`Refused`], with a reason for each tactic.
pub fn choose(input: &SiteInput<'_>) -> Result<Shape, Refused> {
    climb(input, None, |tactic| Some(tactic.rule()))
}

/// Chooses the first tactic that is safe at a site, including the
/// [prescribed](Tactic::is_prescribed) ones.
///
/// If the shape has a prescribed tactic, the placer then holds its bytes and stubs. Bytes that the
/// placer holds for the site itself have to be [released](Placer::release) before.
///
/// # Errors
///
/// [`Refused`], with a reason for each tactic.
pub fn choose_placed(input: &SiteInput<'_>, placer: &mut Placer) -> Result<Shape, Refused> {
    climb(input, Some(placer), |tactic| Some(tactic.rule()))
}

/// Chooses a tactic that changes only whole instructions in place: the site's and, for
/// [evict](Tactic::Evicted), neighbours. Every address where an instruction starts remains one.
/// Another tool that puts a breakpoint at the site, and runs the original instruction elsewhere
/// (a uprobe), then continues after it as if there were no probe.
///
/// The placer is used as in [`choose_placed`].
///
/// # Errors
///
/// [`Refused`], with a reason for each such tactic.
pub fn choose_one_instruction(
    input: &SiteInput<'_>,
    placer: &mut Placer,
) -> Result<Shape, Refused> {
    climb(input, Some(placer), Tactic::rule_in_place)
}

/// Plans a jump at `from`, before the site: a [region](Tactic::Region) up to the site's
/// instruction and as far past it as needed. One jump can thus serve several sites.
///
/// # Errors
///
/// The reason why that would not be safe.
pub fn choose_from(input: &SiteInput<'_>, from: u64) -> Result<Shape, Refusal> {
    let ladder = Ladder::new(input)?;
    Ladder::instruction(input, from)?;
    let cover = ladder.region_from(from)?;
    let before = Tactic::Region.before();
    let refusals = before.map(|tactic| (tactic, Refusal::SharedJump { at: from }));
    let refusals = refusals.collect();
    Ok(shape(&ladder, Tactic::Region, cover, refusals))
}

/// Plans a jump for a site right before a `neighbour`, another site whose shape has a jump that
/// is [free](Tactic::is_prescribed): the first bytes of that jump become a part of this one's
/// displacement. The second value replaces the neighbour's [`Shape::placed`] from then on.
///
/// The jump is at `from`: the site itself, or another site before it, for which the same shape
/// then holds ([`Shape::for_site`]).
///
/// The bytes from there on have to be [released](Placer::release) to the placer beforehand;
/// it then holds them and the neighbour's.
///
/// # Errors
///
/// The reason why that cannot be done.
pub fn choose_before(
    input: &SiteInput<'_>,
    from: u64,
    neighbour: &Shape,
    placer: &mut Placer,
) -> Result<(Shape, Placed), Refusal> {
    let ladder = Ladder::new(input)?;
    if neighbour.tactic.is_prescribed()
        || neighbour.tactic.is_breakpoint()
        || neighbour.placed.is_some()
    {
        return Err(Refusal::NoNeighbour);
    }
    Ladder::instruction(input, from)?;
    let (cover, theirs) = ladder.before(from, neighbour.covered.start, placer)?;
    let tactic = match (cover.displaced.len(), cover.covered.len()) {
        (1, 1) => Tactic::PunnedByte,
        (1, _) => Tactic::Punned,
        _ => Tactic::Region,
    };
    let at = neighbour.covered.start;
    let refusals = tactic
        .before()
        .map(|tactic| (tactic, Refusal::BytesInUse { at }));
    let refusals = refusals.collect();
    Ok((shape(&ladder, tactic, cover, refusals), theirs))
}

/// Chooses the first tactic whose rule holds, among those that have a rule. Without a placer the
/// prescribed tactics are not tried.
fn climb<'a>(
    input: &'a SiteInput<'a>,
    mut placer: Option<&mut Placer>,
    rule: impl Fn(Tactic) -> Option<Rule<'a>>,
) -> Result<Shape, Refused> {
    let ladder = match Ladder::new(input) {
        Ok(ladder) => ladder,
        Err(refusal) => {
            let refusals = Tactic::ALL.map(|tactic| (tactic, refusal)).to_vec();
            return Err(Refused { refusals });
        }
    };
    let mut refusals = Vec::new();
    for tactic in Tactic::ALL {
        let tried = match (rule(tactic), placer.as_deref_mut()) {
            (Some(Rule::Free(rule)), _) => rule(&ladder),
            (Some(Rule::Prescribed(rule)), Some(placer)) => rule(&ladder, placer),
            (Some(Rule::Prescribed(_)), None) | (None, _) => continue,
        };
        match tried {
            Ok(cover) => return Ok(shape(&ladder, tactic, cover, refusals)),
            Err(refusal) => refusals.push((tactic, refusal)),
        }
    }
    Err(Refused { refusals })
}

fn shape(
    ladder: &Ladder<'_>,
    tactic: Tactic,
    cover: Cover,
    refusals: Vec<(Tactic, Refusal)>,
) -> Shape {
    Shape {
        tactic,
        site: ladder.site,
        covered: cover.covered,
        resume: cover.resume,
        displaced: cover.displaced,
        at_entry: ladder.at_entry(),
        live: ladder.live(),
        function: ladder.function(),
        placed: cover.placed,
        refusals,
    }
}
