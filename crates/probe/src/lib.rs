//! Dynamic probes that a program puts into itself: kprobes' interface in user space.
//!
//! ```no_run
//! use capriole_probe::{Action, Probe};
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! static CALLS: AtomicU64 = AtomicU64::new(0);
//!
//! fn main() -> Result<(), capriole_probe::Error> {
//!     let probe = Probe::symbol("libc", "malloc").before(|_| {
//!         CALLS.fetch_add(1, Ordering::Relaxed);
//!         Action::Continue
//!     });
//!     // SAFETY: the handler adds to an atomic number.
//!     let _registered = unsafe { probe.register() }?;
//!     let _text = "a text".repeat(1000);
//!     println!("{} calls", CALLS.load(Ordering::Relaxed));
//!     Ok(())
//! }
//! ```
//!
//! - [`Probe`]: handlers before and after an instruction, with all general registers
//! - [`ReturnProbe`]: handlers at the entry and at the return of a function, with data for each call
//! - [`ArgumentProbe`]: a handler with the parameters of the probed function
//! - [`Replacement`]: a function in the place of another one
//! - [`Event`], [`Record`]: records and tables without handlers
//! - [`optimization`], [`optimize`], [`disarm_all`], [`arm_all`], [`list`], [`start`], [`finish`]: all probes of
//!   the process
//!
//! The library in C is compiled into the crate: nothing has to be installed but the command `capriole`,
//! which changes the program's code as its helper process. It is looked for at the path in the variable
//! `CAPRIOLE_HELPER`, at `/usr/local/bin/capriole`, and in the directories of `PATH`.
//! `docs/probes.md` describes all this for C, and what is different from kprobes.
//!
//! # What is unsafe
//!
//! A handler runs in the middle of a function, in whatever thread executes the instruction. Registering
//! one is unsafe, because the compiler knows nothing of that. Who registers a handler promises that:
//!
//! 1. **It leaves registers with which the program can go on.** It may change all of them, `ip` and `sp`
//!    as well, and the program goes on with them. A handler that does not write to the
//!    [`Registers`] keeps this promise.
//! 2. **It waits for no lock that the thread may hold in the probed function**, or in one that calls it.
//!    That is a deadlock, which is safe in Rust's sense; but *data* that such a lock protects may be in the
//!    middle of a change, and many functions of C libraries have no check against that. So where the
//!    probed function may be a part of the allocator (anything in `malloc`, `free` ... behind its entry), the
//!    handler does not allocate or free; where it may be a part of `std::io`'s streams, it does not print;
//!    where it may be part of the dynamic linker, it calls no function for the first time.
//!    Atomic numbers, memory that was allocated before, and system calls are always good.
//! 3. **It refers to nothing of the interrupted code that may be changing**: no thread-local `RefCell`
//!    or `Cell` and no static that the probed function works on.
//! 4. **With [`Probe::on_fault`] it owns nothing that has to be dropped**, where it may fault: an abandoned
//!    handler is left as by `longjmp`.
//! 5. **With `no_vector` it changes no vector or x87 register.** Without that, the library looks into the
//!    closure's machine code, and saves these registers where it may change one, so any closure is right.
//!    It cannot look through calls by pointer (`dyn Fn`), and saves then; that costs 200 ns or so.
//! 6. **The place is what the handler takes it for**: the types of an argument probe at a place that is given by
//!    name or address are not checked.
//!
//! A handler that panics ends the process: the message is printed, then it aborts, as at the end of any
//! `extern "C"` function. A panic never goes through the probed function. Printing the message takes locks
//! and memory, so it may also hang where 2 is broken.
//!
//! Hits in a handler, in the same thread, are not followed: they are counted as
//! [missed](Registered::missed). So a handler at the entry of `malloc` may allocate. Handlers cannot register
//! or take out probes: that is an error, `EDEADLK`. A guard that is dropped by a handler stays registered
//! for ever.
//!
//! What is safe: everything of events and records, which call no handler; and everything of what is
//! registered, which waits until no handler runs before memory is freed.
//!
//! # Excluded functions
//!
//! A function in the section `capriole_noprobe` cannot be probed or replaced (`EINVAL`), in whatever language it is
//! written: in C it is declared with `CAPRIOLE_NOPROBE`, in Rust so. [`list_noprobe`] lists them.
//!
//! ```
//! #[inline(never)]
//! // SAFETY: the section has code only.
//! #[unsafe(link_section = "capriole_noprobe")]
//! fn with_all_signals_blocked() {}
//! # with_all_signals_blocked();
//! ```
//!
//! A shared library that contains this crate must not be unloaded while something is registered.

mod arguments;
mod error;
mod events;
pub mod ffi;
mod function;
mod guard;
mod place;
mod probe;
mod process;
mod registers;
mod replace;
mod returns;

pub use arguments::{ArgumentProbe, RegisteredArguments};
pub use error::Error;
pub use events::{Event, Record, read_records, read_records_to, record_to, stop_recording};
pub use function::Function;
pub use place::Place;
pub use probe::{Action, Fault, Probe, Registered, State, Status};
pub use process::{
    all_disarmed, arm_all, disarm_all, finish, list, list_noprobe, list_noprobe_to, list_to,
    optimization, optimize, start,
};
pub use registers::Registers;
pub use replace::{Original, Replaced, Replacement};
pub use returns::{Call, RegisteredReturn, ReturnProbe};

#[cfg(not(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux"
)))]
compile_error!("capriole-probe is for Linux on x86-64");
