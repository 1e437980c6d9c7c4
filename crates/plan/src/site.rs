//! Which tactic a probe site allows, and why not the others.
//!
//! [`choose`] is a function of bytes: it looks at the code around a site and at
//! what is known about the object, and says which bytes would change and which
//! instructions have to be displaced. It does not know the detour's address.
//!
//! ```text
//!          site                         resume
//!           v                             v
//! before  │ 55 │ 48 89 e5 │ 41 57       │ 41 56 ...   push; mov; push │ push
//! after   │ e9 .. .. .. ..      │ 57    │ 41 56 ...   jmp detour      │ push
//!          └────────── covered ──────────┘
//! ```
//!
//! The last covered byte here is never run again and stays as it was.

mod ladder;
mod placed;
mod prescribed;
mod refusal;

use std::fmt;

use capriole_insn::{Code, Extent, FunctionFlow, Live, Targets};
use iced_x86::Instruction;

use self::ladder::{Cover, Ladder};
pub use self::placed::{Placed, Stub, StubTo, Write};
pub use self::refusal::Refusal;
use crate::place::Placer;

/// The length of `jmp rel32`, in bytes.
pub const JUMP: u64 = 5;

/// A way of getting from a site to its detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tactic {
    /// The site holds nops that were put there for this: nothing is displaced.
    Reserved,
    /// A jump over one instruction of five bytes or more.
    OneInstruction,
    /// A jump over several instructions.
    Region,
    /// A jump over one instruction of two to four bytes, which takes the rest of
    /// its displacement from the instruction behind.
    Punned,
    /// The same over one byte: the whole displacement is given.
    PunnedByte,
    /// A jump that is short of room, beside a neighbouring instruction that makes
    /// room by being run elsewhere as well, or in unused bytes nearby.
    Evicted,
    /// A jump over several instructions with a breakpoint at the start of each but
    /// the first, for whoever may still come there.
    Trapped,
    /// A breakpoint, whose handler goes to the detour.
    Int3,
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

    /// Whether the jump's bytes, and so where it leads, are not free to choose.
    #[must_use]
    pub const fn is_prescribed(self) -> bool {
        matches!(
            self,
            Self::Punned | Self::PunnedByte | Self::Evicted | Self::Trapped
        )
    }

    /// The name in output and files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::OneInstruction => "jump",
            Self::Region => "region",
            Self::Punned => "pun",
            Self::PunnedByte => "pun-byte",
            Self::Evicted => "evict",
            Self::Trapped => "trapped",
            Self::Int3 => "int3",
        }
    }
}

impl fmt::Display for Tactic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What [`choose`] has to know about a site. All addresses are run-time
/// addresses.
#[derive(Clone, Copy, Debug)]
pub struct SiteInput<'a> {
    /// The object's text, with the function and the padding behind it, as it
    /// was before any patch.
    pub code: &'a Code<'a>,
    /// The function around the site. One analysis serves all its sites.
    pub flow: &'a FunctionFlow,
    /// The address to probe.
    pub site: u64,
    /// Where the jumps of the whole object lead.
    pub targets: &'a Targets,
    /// Where the next function begins, or the text ends: nops and `int3` from
    /// the function's end up to here belong to nobody.
    pub padding_end: u64,
    /// The function that begins right where this one ends, if there is one: its first
    /// instructions may be made to give way.
    pub next: Option<Extent>,
    /// Code that must not change: restartable sequences and the like.
    pub forbidden: &'a [Extent],
    /// Whether the program runs with a shadow stack, so that a return address
    /// that was pushed by hand would be fatal.
    pub shadow_stack: bool,
    /// Whether a breakpoint may be used, or why not.
    pub int3: Result<(), Refusal>,
    /// Whether it is a Go program.
    pub go: bool,
    /// Whether the function is one that others may not *call* but jump or fall
    /// into with their own frame or red zone in place: a part that the compiler
    /// split off (`name.cold`, `name.part.N` is not meant), or a symbol inside
    /// another function.
    pub split_part: bool,
}

/// How a site would be patched.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The way to the detour.
    pub tactic: Tactic,
    /// The instruction before which the work is done: at the wanted address, or behind
    /// the `endbr64` there.
    pub site: u64,
    /// Whole instructions (and maybe padding) that the jump or breakpoint, which stands
    /// at the start, replaces, in part or wholly. Of a [region](Tactic::Region) the site may
    /// be in the middle: then the detour runs the instructions before it first. A thread whose program counter is in here, but not at the
    /// start, has to be moved before the bytes change. Bytes behind the first
    /// five stay as they are.
    pub covered: Extent,
    /// Where the program goes on after the displaced instructions, if they let
    /// control through.
    pub resume: u64,
    /// The instructions that the detour has to run, in order.
    pub displaced: Vec<Instruction>,
    /// Whether nothing below the stack pointer is alive at the site, so that no
    /// red zone has to be skipped.
    ///
    /// That holds where a function is entered. By a call: the caller's red zone
    /// is gone, as the return address was just pushed onto it. By a tail call:
    /// the caller's frame is gone, and the callee is free to overwrite all
    /// below the stack pointer, so the caller cannot have left anything there.
    /// It does not hold if the function itself jumps back to its start, or
    /// might, nor where the cold part of a function is entered by a jump, nor at
    /// a symbol that other code runs on into or jumps to, unless that is shown to
    /// keep nothing there ([`SiteInput::split_part`]).
    pub at_entry: bool,
    /// The registers and flags that the detour must keep for the program.
    pub live: Live,
    /// The function around the site, in which that was found out.
    pub function: Extent,
    /// For a [prescribed](Tactic::is_prescribed) tactic, what has to stand where.
    pub placed: Option<Placed>,
    /// Why the tactics before this one were not used.
    pub refusals: Vec<(Tactic, Refusal)>,
}

impl Shape {
    /// The same for another site among the displaced instructions.
    ///
    /// # Errors
    ///
    /// Why that site cannot be probed, whatever the tactic.
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

/// No tactic can be used at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The reason for each tactic, in the order in which they were tried. If
    /// the site itself is no good, all have the same reason.
    pub refusals: Vec<(Tactic, Refusal)>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons = self.refusals.iter().map(|(_, refusal)| refusal);
        if let Some(first) = reasons.next()
            && reasons.all(|refusal| refusal == first)
        {
            return first.fmt(f);
        }
        // What cannot run elsewhere at all says the most.
        if let Some((Tactic::Int3, refusal @ Refusal::NotRelocatable(_))) = self.refusals.last() {
            return refusal.fmt(f);
        }
        let telling = |(_, refusal): &&(Tactic, Refusal)| !refusal.is_about_length();
        for (i, (tactic, refusal)) in self.refusals.iter().filter(telling).enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{tactic}: {refusal}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

/// Chooses the first tactic that is safe at a site, of those that work wherever
/// the detour is.
///
/// # Errors
///
/// [`Refused`], with a reason for each tactic.
pub fn choose(input: &SiteInput<'_>) -> Result<Shape, Refused> {
    climb(input, None)
}

/// Chooses the first tactic that is safe at a site, also of the
/// [prescribed](Tactic::is_prescribed) ones.
///
/// The placer then holds the bytes and the stubs of the shape, if it is of such a
/// tactic. Bytes that it holds for the site itself have to be
/// [given back](Placer::give_back) before.
///
/// # Errors
///
/// [`Refused`], with a reason for each tactic.
pub fn choose_placed(input: &SiteInput<'_>, placer: &mut Placer) -> Result<Shape, Refused> {
    climb(input, Some(placer))
}

/// Chooses a tactic that changes nothing but whole instructions that stay where they are, the
/// site's and for [evict](Tactic::Evicted) neighbours: every start of an instruction stays one.
/// Another tool that puts a breakpoint at the site, and runs the original instruction elsewhere
/// (a uprobe), then goes on behind it as if there was no probe.
///
/// The placer as in [`choose_placed`].
///
/// # Errors
///
/// [`Refused`], with a reason for each such tactic.
pub fn choose_one_instruction(
    input: &SiteInput<'_>,
    placer: &mut Placer,
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
        let tried = match tactic {
            Tactic::Reserved => ladder.reserved().and_then(|cover| match cover.covered.end {
                end if end > ladder.first.next_ip() => Err(Refusal::NopsTooShort {
                    bytes: ladder.first.len() as u64,
                }),
                _ => Ok(cover),
            }),
            Tactic::OneInstruction => ladder.one_instruction(),
            Tactic::Punned => ladder.punned(placer),
            Tactic::PunnedByte => ladder.punned_byte(placer),
            Tactic::Evicted => ladder.evicted(placer),
            Tactic::Region | Tactic::Trapped | Tactic::Int3 => continue,
        };
        match tried {
            Ok(cover) => return Ok(shape(&ladder, tactic, cover, refusals)),
            Err(refusal) => refusals.push((tactic, refusal)),
        }
    }
    Err(Refused { refusals })
}

/// Has a jump at `from`, before the site, lead away from there: a [region](Tactic::Region)
/// up to the site's instruction and as far behind as needed. So several sites are reached
/// by one jump.
///
/// # Errors
///
/// Why that would not be safe.
pub fn choose_from(input: &SiteInput<'_>, from: u64) -> Result<Shape, Refusal> {
    let ladder = Ladder::new(input)?;
    Ladder::instruction(input, from)?;
    let cover = ladder.region_from(from)?;
    let before = [Tactic::Reserved, Tactic::OneInstruction];
    let refusals = before.map(|tactic| (tactic, Refusal::SharedJump { at: from }));
    Ok(shape(&ladder, Tactic::Region, cover, refusals.to_vec()))
}

/// Reaches a site right before a `neighbour`, which is one with a jump of a shape that is
/// [free](Tactic::is_prescribed): the first bytes of that jump become a part of this one's
/// displacement. What the neighbour's shape is [placed](Shape::placed) as from then on is the
/// second value.
///
/// The jump stands at `from`: the site itself, or another one before it, for which the same
/// shape then holds ([`Shape::for_site`]).
///
/// The bytes from there on have to be [given back](Placer::give_back) to the placer before; it
/// then holds them and the neighbour's.
///
/// # Errors
///
/// Why that cannot be done.
pub fn choose_before(
    input: &SiteInput<'_>,
    from: u64,
    neighbour: &Shape,
    placer: &mut Placer,
) -> Result<(Shape, Placed), Refusal> {
    let ladder = Ladder::new(input)?;
    if neighbour.tactic.is_prescribed()
        || neighbour.tactic == Tactic::Int3
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
    let before = Tactic::ALL.into_iter().take_while(|other| *other != tactic);
    let at = neighbour.covered.start;
    let refusals = before.map(|tactic| (tactic, Refusal::BytesInUse { at }));
    let refusals = refusals.collect();
    Ok((shape(&ladder, tactic, cover, refusals), theirs))
}

fn climb(input: &SiteInput<'_>, mut placer: Option<&mut Placer>) -> Result<Shape, Refused> {
    let ladder = match Ladder::new(input) {
        Ok(ladder) => ladder,
        Err(refusal) => {
            let refusals = Tactic::ALL.map(|tactic| (tactic, refusal)).to_vec();
            return Err(Refused { refusals });
        }
    };
    let mut refusals = Vec::new();
    for tactic in Tactic::ALL {
        let tried = match (tactic, placer.as_deref_mut()) {
            (Tactic::Reserved, _) => ladder.reserved(),
            (Tactic::OneInstruction, _) => ladder.one_instruction(),
            (Tactic::Region, _) => ladder.region(),
            (Tactic::Int3, _) => ladder.int3(),
            (_, None) => continue,
            (Tactic::Punned, Some(placer)) => ladder.punned(placer),
            (Tactic::PunnedByte, Some(placer)) => ladder.punned_byte(placer),
            (Tactic::Evicted, Some(placer)) => ladder.evicted(placer),
            (Tactic::Trapped, Some(placer)) => ladder.trapped(placer),
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
