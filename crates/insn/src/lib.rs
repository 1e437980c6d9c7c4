//! Analysis of machine code, as far as a probe needs it; what is x86-64 in it is in `x86_64/`.
//!
//! The input is bytes and the address at which they run; the output is
//!
//! * [`FunctionFlow`]: where the instructions of one function begin, where its
//!   jumps go, and what could not be understood;
//! * [`conventions`]: bytes at entries that tool chains rely on;
//! * [`Exits`]: where control leaves a function;
//! * [`Targets`]: every address of an object that some jump, call, table or
//!   pointer can lead to;
//! * [`Shown`]: addresses where instructions are proved to begin;
//! * [`stack_check`](stack_check()): length of the stack check at the start of Go functions;
//! * [`live_at`]: the registers whose values still matter at a site, and whether the flags do;
//! * [`result_use`](result_use()): whether the code after a call reads its result;
//! * [`red_zone`]: code that keeps values below the stack pointer;
//! * [`relocate`](relocate()): a copy of some instructions that behaves the
//!   same elsewhere;
//! * [`landing_pads`](landing_pads()): where execution continues after a C++ or Rust exception.
//!
//! Nothing here touches a process; everything is a function of bytes. Memory outside the code
//! (jump tables) is read through a closure. Code that is not understood is reported as unknown
//! and never guessed.
#![forbid(unsafe_code)]

// An architecture is a folder, with the same names of files in each.
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod arch;
pub mod flow;
pub mod landing_pads;
mod shown;
pub mod targets;

pub use arch::{conventions, decode, exits, jump_table, liveness, red_zone, relocate, result_use};

pub use arch::stack_check::{Restored, restored, stack_check};
pub use decode::{Code, Extent};
pub use exits::{Exit, ExitKind, Exits, Surroundings, Undecided};
pub use flow::{FlowError, FunctionFlow, Hints, ReadMemory};
pub use jump_table::{IndirectJump, Resolution};
pub use landing_pads::{LandingPadError, landing_pads};
pub use liveness::{Live, RegSet, live_among, live_at};
pub use relocate::{RelocateError, Relocated, relocate};
pub use result_use::{Branch, References, ResultUse, result_use};
pub use shown::Shown;
pub use targets::Targets;

/// Sorts values, and drops those that are there twice.
fn ascending<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}
