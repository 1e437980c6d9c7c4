//! Reasons why a tactic, or a whole site, was not used.

use std::fmt;

use capriole_insn::{Extent, RelocateError};

/// A reason not to use a tactic at a site. `Display` gives one line for people to read;
/// [`key`](Self::key) is a word for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The site is not inside the given function.
    OutsideFunction {
        /// The site.
        site: u64,
        /// The function's bounds.
        function: Extent,
    },
    /// The site is in the middle of an instruction.
    NotABoundary {
        /// The site.
        site: u64,
        /// The instruction around it.
        instruction: Extent,
    },
    /// Some bytes of the function do not decode: the starts and targets of the instructions after
    /// them are unknown.
    Undecodable {
        /// The first such byte.
        at: u64,
    },
    /// A jump leads into the middle of an instruction: data is interleaved with the code, or
    /// instructions overlap.
    OverlappingCode {
        /// Target of the jump into this function.
        at: u64,
    },
    /// No control flow is known to reach the site. It may be data.
    NotReached {
        /// The site.
        site: u64,
    },
    /// No function is known at the site, and nothing proves that an instruction begins there.
    NotShown {
        /// The site.
        site: u64,
    },
    /// The site is in code that must not change, for instance a restartable
    /// sequence or Capriole's own code.
    Forbidden {
        /// The forbidden range.
        range: Extent,
    },
    /// There are no nops at the site that could hold a jump.
    NoReservedBytes,
    /// There are nops, but fewer than the jump needs.
    NopsTooShort {
        /// Number of bytes of nops at the site.
        bytes: u64,
    },
    /// The instruction is shorter than the jump.
    ShortInstruction {
        /// Its length in bytes.
        bytes: u64,
    },
    /// The tactic applies only to instructions of another length.
    OtherLength {
        /// The instruction's length in bytes.
        bytes: u64,
    },
    /// The bytes after the instruction make the jump lead to addresses that are in
    /// use or do not exist.
    NoStubAddress,
    /// Another probe changes some of the bytes, or relies on them.
    BytesInUse {
        /// The first such byte.
        at: u64,
    },
    /// The jump before another site nearby serves this one as well.
    SharedJump {
        /// Address of that jump.
        at: u64,
    },
    /// No instruction or unused bytes in reach of a short jump could make room.
    NoNeighbour,
    /// The bytes lie in two pages, and no order of writing them keeps the program runnable if the
    /// writer is killed in between.
    PageBoundary {
        /// The start of the second page.
        at: u64,
    },
    /// An instruction cannot be run elsewhere.
    NotRelocatable(RelocateError),
    /// Something jumps to, or points at, an address that the jump would cover.
    BranchTarget {
        /// That address.
        at: u64,
    },
    /// A static marker, where other tools may write, would be covered.
    MarkerInside {
        /// Its address.
        at: u64,
    },
    /// A covered call that is not the last covered instruction: it would return into the middle of
    /// the jump.
    CallInside {
        /// Its address.
        at: u64,
    },
    /// Control flow ends before five bytes are covered, and what follows is not unused padding.
    EndsTooSoon {
        /// The address after the last instruction that could be covered.
        at: u64,
    },
    /// An indirect jump of the function could lead to a covered instruction.
    UnresolvedIndirectJump {
        /// The address of the jump.
        at: u64,
    },
    /// Code elsewhere jumps into this function and has an indirect jump that
    /// is not understood: it may be a part of this function.
    UnresolvedPartJump {
        /// Target of that jump.
        at: u64,
    },
    /// Not all jump targets in the object could be found, for the given reason.
    TargetsUnknown(&'static str),
    /// Go's runtime stops goroutines at any instruction and saves its address.
    GoPreemption,
    /// With a shadow stack, a call cannot be displaced: its return address must
    /// be pushed by a `call`.
    ShadowStack {
        /// The address of the call.
        at: u64,
    },
    /// The program itself has a breakpoint (`int3`) there, such as `__builtin_debugtrap` or
    /// padding.
    BreakpointPresent {
        /// Its address.
        at: u64,
    },
    /// Breakpoints were not enabled.
    BreakpointsOff,
    /// The program is traced by a debugger or forbids the handler that breakpoints need; the
    /// message tells which.
    TrapUnusable(&'static str),
}

impl Refusal {
    /// True if the only reason is that the tactic is for instructions of another length.
    pub(super) const fn is_about_length(&self) -> bool {
        matches!(
            self,
            Self::NoReservedBytes
                | Self::NopsTooShort { .. }
                | Self::ShortInstruction { .. }
                | Self::OtherLength { .. }
        )
    }

    /// Returns a word for the kind of reason that is the same in every version: the key under which
    /// refusals are counted and written as JSON.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::OutsideFunction { .. } => "outside-function",
            Self::NotABoundary { .. } => "not-a-boundary",
            Self::Undecodable { .. } => "undecodable",
            Self::OverlappingCode { .. } => "overlapping-code",
            Self::NotReached { .. } => "not-reached",
            Self::NotShown { .. } => "not-shown",
            Self::Forbidden { .. } => "forbidden",
            Self::NoReservedBytes => "no-reserved-bytes",
            Self::NopsTooShort { .. } => "nops-too-short",
            Self::ShortInstruction { .. } => "short-instruction",
            Self::OtherLength { .. } => "other-length",
            Self::NoStubAddress => "no-stub-address",
            Self::BytesInUse { .. } => "bytes-in-use",
            Self::SharedJump { .. } => "shared-jump",
            Self::NoNeighbour => "no-neighbour",
            Self::PageBoundary { .. } => "page-boundary",
            Self::NotRelocatable(_) => "not-relocatable",
            Self::BranchTarget { .. } => "branch-target",
            Self::MarkerInside { .. } => "marker-inside",
            Self::CallInside { .. } => "call-inside",
            Self::EndsTooSoon { .. } => "ends-too-soon",
            Self::UnresolvedIndirectJump { .. } => "unresolved-indirect-jump",
            Self::UnresolvedPartJump { .. } => "unresolved-part-jump",
            Self::TargetsUnknown(_) => "targets-unknown",
            Self::GoPreemption => "go-preemption",
            Self::ShadowStack { .. } => "shadow-stack",
            Self::BreakpointPresent { .. } => "breakpoint-present",
            Self::BreakpointsOff => "breakpoints-off",
            Self::TrapUnusable(_) => "trap-unusable",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsideFunction { site, function } => {
                write!(f, "{site:#x} is not inside the function {function}")
            }
            Self::NotABoundary { site, instruction } => write!(
                f,
                "{site:#x} is in the middle of the instruction at {:#x}; the next one begins at {:#x}",
                instruction.start, instruction.end
            ),
            Self::Undecodable { at } => {
                write!(f, "the bytes at {at:#x} are no known instruction")
            }
            Self::OverlappingCode { at } => write!(
                f,
                "a jump leads into the middle of an instruction at {at:#x}, so data may stand between the code"
            ),
            Self::NotReached { site } => write!(
                f,
                "nothing is known to lead to {site:#x}, so it may be data"
            ),
            Self::NotShown { site } => write!(
                f,
                "no function is known at {site:#x}, and no call, jump, line or table of the file shows that an instruction begins there"
            ),
            Self::Forbidden { range } => {
                write!(f, "the code at {range} must not be changed")
            }
            Self::NoReservedBytes => f.write_str("no nops at the site"),
            Self::NopsTooShort { bytes } => {
                let plural = if *bytes == 1 { "" } else { "s" };
                write!(
                    f,
                    "only {bytes} byte{plural} of nops at the site, 5 are needed"
                )
            }
            Self::ShortInstruction { bytes } => {
                let plural = if *bytes == 1 { "" } else { "s" };
                write!(f, "the instruction has {bytes} byte{plural}, 5 are needed")
            }
            Self::OtherLength { bytes } => {
                let plural = if *bytes == 1 { "" } else { "s" };
                write!(f, "the instruction has {bytes} byte{plural}")
            }
            Self::NoStubAddress => f.write_str(
                "the bytes behind the instruction would lead the jump to addresses that are in use",
            ),
            Self::BytesInUse { at } => {
                write!(
                    f,
                    "another probe changes the byte at {at:#x} or relies on it"
                )
            }
            Self::SharedJump { at } => {
                write!(
                    f,
                    "the jump at {at:#x}, before another site, leads here as well"
                )
            }
            Self::NoNeighbour => {
                f.write_str("no instruction or unused bytes nearby could make room for the jump")
            }
            Self::PageBoundary { at } => {
                write!(
                    f,
                    "the bytes that would change lie on both sides of {at:#x}, in two pages"
                )
            }
            Self::NotRelocatable(reason) => write!(f, "cannot be run elsewhere: {reason}"),
            Self::BranchTarget { at } => {
                write!(f, "something may jump to {at:#x}, which would be covered")
            }
            Self::MarkerInside { at } => write!(
                f,
                "there is a static marker at {at:#x}, where other tools may write, which would be covered"
            ),
            Self::CallInside { at } => {
                write!(f, "the call at {at:#x} would return into the covered bytes")
            }
            Self::EndsTooSoon { at } => write!(
                f,
                "less than 5 bytes up to {at:#x}, and no unused padding follows"
            ),
            Self::UnresolvedIndirectJump { at } => write!(
                f,
                "the indirect jump at {at:#x} is not understood and might lead to a covered instruction"
            ),
            Self::UnresolvedPartJump { at } => write!(
                f,
                "code that jumps to {at:#x} contains an indirect jump that is not understood"
            ),
            Self::TargetsUnknown(why) => {
                write!(f, "not all jumps of the object are known: {why}")
            }
            Self::GoPreemption => f.write_str(
                "Go's scheduler may interrupt a goroutine between the covered instructions",
            ),
            Self::ShadowStack { at } => write!(
                f,
                "the call at {at:#x} cannot be displaced in a program with a shadow stack"
            ),
            Self::BreakpointPresent { at } => {
                write!(
                    f,
                    "the instruction at {at:#x} is a breakpoint (int3) of the program itself"
                )
            }
            Self::BreakpointsOff => f.write_str("breakpoints are used only on request"),
            Self::TrapUnusable(why) => write!(f, "breakpoints cannot be used: {why}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<RelocateError> for Refusal {
    fn from(reason: RelocateError) -> Self {
        Self::NotRelocatable(reason)
    }
}
