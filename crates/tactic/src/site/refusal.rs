//! Reasons why a tactic, or a whole site, was not used.

use capriole_insn::{Extent, RelocateError};
use thiserror::Error;

/// A reason not to use a tactic at a site. `Display` gives one line for people to read;
/// [`key`](Self::key) is a word for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// The site is not inside the given function.
    #[error("{site:#x} is not inside the function {function}")]
    OutsideFunction {
        /// The site.
        site: u64,
        /// The function's bounds.
        function: Extent,
    },
    /// The site is in the middle of an instruction.
    #[error("{site:#x} is in the middle of the instruction at {:#x}; the next one begins at {:#x}", instruction.start, instruction.end)]
    NotABoundary {
        /// The site.
        site: u64,
        /// The instruction around it.
        instruction: Extent,
    },
    /// Some bytes of the function do not decode: the starts and targets of the instructions after
    /// them are unknown.
    #[error("the bytes at {at:#x} are no known instruction")]
    Undecodable {
        /// The first such byte.
        at: u64,
    },
    /// A jump leads into the middle of an instruction: data is interleaved with the code, or
    /// instructions overlap.
    #[error(
        "a jump leads into the middle of an instruction at {at:#x}, so data may stand between the code"
    )]
    OverlappingCode {
        /// Target of the jump into this function.
        at: u64,
    },
    /// No control flow is known to reach the site. It may be data.
    #[error("nothing is known to lead to {site:#x}, so it may be data")]
    NotReached {
        /// The site.
        site: u64,
    },
    /// No function is known at the site, and nothing proves that an instruction begins there.
    #[error(
        "no function is known at {site:#x}, and no call, jump, line or table of the file shows that an instruction begins there"
    )]
    NotShown {
        /// The site.
        site: u64,
    },
    /// The site is in code that must not change, for instance a restartable
    /// sequence or Capriole's own code.
    #[error("the code at {range} must not be changed")]
    Forbidden {
        /// The forbidden range.
        range: Extent,
    },
    /// The program has put a probe there itself.
    #[error("the program itself has a probe at {range}")]
    ProbedByProgram {
        /// The bytes that this probe needs.
        range: Extent,
    },
    /// A recorder has put a probe there.
    #[error("a recorder (capriole, process {pid}) has a probe at {range}")]
    ProbedByRecorder {
        /// The bytes that this probe needs.
        range: Extent,
        /// Its process id.
        pid: u32,
    },
    /// A recorder that has ended has left a probe there.
    #[error("a recorder has ended without taking its probe at {range} out")]
    ProbedBefore {
        /// The bytes that this probe needs.
        range: Extent,
    },
    /// The site is in libcapriole: each probe of the program would hit one there.
    #[error("this is code of libcapriole, by which the program probes itself")]
    LibraryCode,
    /// The program has excluded the function from probes (`CAPRIOLE_NOPROBE`).
    #[error("the program has excluded this function from probes (CAPRIOLE_NOPROBE)")]
    NoProbe,
    /// There are no nops at the site that could hold a jump.
    #[error("no nops at the site")]
    NoReservedBytes,
    /// There are nops, but fewer than the jump needs.
    #[error("only {} of nops at the site, 5 are needed", counted(*bytes))]
    NopsTooShort {
        /// Number of bytes of nops at the site.
        bytes: u64,
    },
    /// The instruction is shorter than the jump.
    #[error("the instruction has {}, 5 are needed", counted(*bytes))]
    ShortInstruction {
        /// Its length in bytes.
        bytes: u64,
    },
    /// The tactic applies only to instructions of another length.
    #[error("the instruction has {}", counted(*bytes))]
    OtherLength {
        /// The instruction's length in bytes.
        bytes: u64,
    },
    /// The bytes after the instruction make the jump lead to addresses that are in
    /// use or do not exist.
    #[error("the bytes behind the instruction would lead the jump to addresses that are in use")]
    NoStubAddress,
    /// Another probe changes some of the bytes, or relies on them.
    #[error("another probe changes the byte at {at:#x} or relies on it")]
    BytesInUse {
        /// The first such byte.
        at: u64,
    },
    /// The jump before another site nearby serves this one as well.
    #[error("the jump at {at:#x}, before another site, leads here as well")]
    SharedJump {
        /// Address of that jump.
        at: u64,
    },
    /// The jump would cover several instructions of a page that holds something else than its file.
    #[error(
        "another tool has a uprobe in the same page (or the program has changed it): one more, at this function, would make the program execute the middle of a jump over several instructions"
    )]
    AlteredPage,
    /// No instruction or unused bytes in reach of a short jump could make room.
    #[error("no instruction or unused bytes nearby could make room for the jump")]
    NoNeighbour,
    /// The bytes lie in two pages, and no order of writing them keeps the program runnable if the
    /// writer is killed in between.
    #[error("the bytes that would change lie on both sides of {at:#x}, in two pages")]
    PageBoundary {
        /// The start of the second page.
        at: u64,
    },
    /// An instruction cannot be run elsewhere.
    #[error("cannot be run elsewhere: {0}")]
    NotRelocatable(RelocateError),
    /// Something jumps to, or points at, an address that the jump would cover.
    #[error("something may jump to {at:#x}, which would be covered")]
    BranchTarget {
        /// That address.
        at: u64,
    },
    /// A static marker, where other tools may write, would be covered.
    #[error(
        "there is a static marker at {at:#x}, where other tools may write, which would be covered"
    )]
    MarkerInside {
        /// Its address.
        at: u64,
    },
    /// A covered call that is not the last covered instruction: it would return into the middle of
    /// the jump.
    #[error("the call at {at:#x} would return into the covered bytes")]
    CallInside {
        /// Its address.
        at: u64,
    },
    /// Control flow ends before five bytes are covered, and what follows is not unused padding.
    #[error("less than 5 bytes up to {at:#x}, and no unused padding follows")]
    EndsTooSoon {
        /// The address after the last instruction that could be covered.
        at: u64,
    },
    /// An indirect jump of the function could lead to a covered instruction.
    #[error(
        "the indirect jump at {at:#x} is not understood and might lead to a covered instruction"
    )]
    UnresolvedIndirectJump {
        /// The address of the jump.
        at: u64,
    },
    /// Code elsewhere jumps into this function and has an indirect jump that
    /// is not understood: it may be a part of this function.
    #[error("code that jumps to {at:#x} contains an indirect jump that is not understood")]
    UnresolvedPartJump {
        /// Target of that jump.
        at: u64,
    },
    /// Not all jump targets in the object could be found, for the given reason.
    #[error("not all jumps of the object are known: {0}")]
    TargetsUnknown(&'static str),
    /// Go's runtime stops goroutines at any instruction and saves its address.
    #[error("Go's scheduler may interrupt a goroutine between the covered instructions")]
    GoPreemption,
    /// With a shadow stack, a call cannot be displaced: its return address must
    /// be pushed by a `call`.
    #[error("the call at {at:#x} cannot be displaced in a program with a shadow stack")]
    ShadowStack {
        /// The address of the call.
        at: u64,
    },
    /// The program itself has a breakpoint (`int3`) there, such as `__builtin_debugtrap` or
    /// padding.
    #[error("the instruction at {at:#x} is a breakpoint (int3) of the program itself")]
    BreakpointPresent {
        /// Its address.
        at: u64,
    },
    /// Breakpoints were not enabled.
    #[error("breakpoints are used only on request")]
    BreakpointsOff,
    /// The program is traced by a debugger or forbids the handler that breakpoints need; the
    /// message tells which.
    #[error("breakpoints cannot be used: {0}")]
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
            Self::ProbedByProgram { .. } => "probed-by-program",
            Self::ProbedByRecorder { .. } => "probed-by-recorder",
            Self::ProbedBefore { .. } => "probed-before",
            Self::LibraryCode => "library-code",
            Self::NoProbe => "no-probe",
            Self::NoReservedBytes => "no-reserved-bytes",
            Self::NopsTooShort { .. } => "nops-too-short",
            Self::ShortInstruction { .. } => "short-instruction",
            Self::OtherLength { .. } => "other-length",
            Self::NoStubAddress => "no-stub-address",
            Self::BytesInUse { .. } => "bytes-in-use",
            Self::SharedJump { .. } => "shared-jump",
            Self::AlteredPage => "altered-page",
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

impl From<RelocateError> for Refusal {
    fn from(reason: RelocateError) -> Self {
        Self::NotRelocatable(reason)
    }
}

/// `1 byte`, `2 bytes`
fn counted(bytes: u64) -> String {
    let plural = if bytes == 1 { "" } else { "s" };
    format!("{bytes} byte{plural}")
}
