//! The declarations of `capriole/probe.h`, for what the rest of the crate does not offer.
//!
//! Written by hand, one for each in the header. A test makes assertions in C from the text of this file,
//! that types, sizes, offsets, constants and prototypes are the same, and compiles them.
#![allow(non_camel_case_types)]

use crate::Registers;
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

/// Called before the instruction.
pub type capriole_pre_handler =
    Option<unsafe extern "C" fn(*mut capriole_probe, *mut Registers) -> c_int>;
/// Called after the instruction.
pub type capriole_post_handler =
    Option<unsafe extern "C" fn(*mut capriole_probe, *mut Registers, c_ulong)>;
/// Called when a handler runs into a fault.
pub type capriole_fault_handler =
    Option<unsafe extern "C" fn(*mut capriole_probe, *mut Registers, c_int) -> c_int>;
/// Called at the entry or at the return of a function.
pub type capriole_call_handler =
    Option<unsafe extern "C" fn(*mut capriole_call, *mut Registers) -> c_int>;
/// Writes a record.
pub type capriole_write = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64);

/// Register it disabled.
pub const CAPRIOLE_DISABLED: c_uint = 1;
/// Keep the breakpoint.
pub const CAPRIOLE_NO_OPTIMIZE: c_uint = 2;
/// Its handlers do not change vector or x87 registers.
pub const CAPRIOLE_NO_VECTOR: c_uint = 4;
/// Save these registers, without a look at the handlers.
pub const CAPRIOLE_SAVE_VECTOR: c_uint = 8;

/// Not registered.
pub const CAPRIOLE_UNREGISTERED: c_int = 0;
/// By a breakpoint.
pub const CAPRIOLE_BREAKPOINT: c_int = 1;
/// By a breakpoint that is going to be replaced by a jump.
pub const CAPRIOLE_WAITING: c_int = 2;
/// By a jump.
pub const CAPRIOLE_OPTIMIZED: c_int = 3;
/// Disabled.
pub const CAPRIOLE_OFF: c_int = 4;
/// Its library is unmapped, or another tool has changed the place.
pub const CAPRIOLE_GONE: c_int = 5;
/// Not in yet: a thread is inside the bytes that change.
pub const CAPRIOLE_OCCUPIED: c_int = 6;

/// A probe.
#[repr(C)]
#[derive(Debug)]
pub struct capriole_probe {
    /// Address of the instruction.
    pub address: *mut c_void,
    /// Start of a library's file name, or a path; null for the program.
    pub object: *const c_char,
    /// A function.
    pub symbol: *const c_char,
    /// Bytes from the start of the function.
    pub offset: c_ulong,
    /// `FILE:LINE`.
    pub line: *const c_char,
    /// Called before the instruction.
    pub pre: capriole_pre_handler,
    /// Called after it.
    pub post: capriole_post_handler,
    /// Called when one of these runs into a fault.
    pub fault: capriole_fault_handler,
    /// For the handlers.
    pub data: *mut c_void,
    /// `CAPRIOLE_DISABLED` and the like.
    pub flags: c_uint,
    /// Hits at which no handler was called.
    pub missed: c_ulong,
    /// Of the library.
    pub private_: [*mut c_void; 6],
}

/// A call that is going on.
#[repr(C)]
#[derive(Debug)]
pub struct capriole_call {
    /// The probe.
    pub probe: *mut capriole_return_probe,
    /// Address that the function returns to.
    pub return_address: u64,
    /// Address of the return address.
    pub sp: u64,
    /// `data_size` bytes, not initialised.
    pub data: *mut c_void,
}

/// A return probe.
#[repr(C)]
#[derive(Debug)]
pub struct capriole_return_probe {
    /// The place: the entry of a function.
    pub probe: capriole_probe,
    /// Called at the entry.
    pub entry: capriole_call_handler,
    /// Called at the return.
    pub handler: capriole_call_handler,
    /// Bytes, at most 1024.
    pub data_size: usize,
    /// Calls that are followed at a time; 0: as many as there is room for.
    pub max_active: c_uint,
    /// 1: replace the return address instead of probing all exits.
    pub by_address: c_uint,
    /// Calls that could not be followed.
    pub missed: c_ulong,
    /// Of the library.
    pub private_: [*mut c_void; 4],
}

/// A handler with the parameters of the probed function.
#[repr(C)]
#[derive(Debug)]
pub struct capriole_argument_probe {
    /// The place: the entry of a function.
    pub probe: capriole_probe,
    /// The handler, whatever its type is.
    pub handler: Option<unsafe extern "C" fn()>,
    /// Number of 8-byte arguments on the stack.
    pub stack_words: c_uint,
}

/// A function in the place of another one.
#[repr(C)]
#[derive(Debug)]
pub struct capriole_replacement {
    /// The place: the entry of a function.
    pub probe: capriole_probe,
    /// What is called instead.
    pub replacement: Option<unsafe extern "C" fn()>,
    /// Set to what does what the function did; may be null.
    pub original: *mut Option<unsafe extern "C" fn()>,
}

/// A record that the program writes itself.
#[repr(C)]
#[derive(Debug)]
pub struct capriole_record {
    /// Its name.
    pub name: *const c_char,
    /// Its fields, as in an event.
    pub fields: *const c_char,
    /// Writes it.
    pub write: Option<capriole_write>,
    /// Number of its event, or 0.
    pub number: c_int,
}

unsafe extern "C" {
    /// Registers a probe.
    pub fn capriole_probe_register(probe: *mut capriole_probe) -> c_int;
    /// Takes a probe out.
    pub fn capriole_probe_unregister(probe: *mut capriole_probe) -> c_int;
    /// Registers probes, all of them or none.
    pub fn capriole_probes_register(probes: *mut *mut capriole_probe, count: usize) -> c_int;
    /// Takes probes out, all of them or none.
    pub fn capriole_probes_unregister(probes: *mut *mut capriole_probe, count: usize) -> c_int;
    /// Stops the calls of a probe's handlers.
    pub fn capriole_probe_disable(probe: *mut capriole_probe) -> c_int;
    /// Resumes them.
    pub fn capriole_probe_enable(probe: *mut capriole_probe) -> c_int;
    /// Disarms all probes.
    pub fn capriole_disarm_all() -> c_int;
    /// Arms those that are enabled.
    pub fn capriole_arm_all() -> c_int;
    /// 1 between the two.
    pub fn capriole_all_disarmed() -> c_int;
    /// Number of hits at which no handler was called.
    pub fn capriole_probe_missed(probe: *const capriole_probe) -> c_ulong;
    /// State of a probe.
    pub fn capriole_probe_status(
        probe: *const capriole_probe,
        why: *mut c_char,
        size: usize,
    ) -> c_int;
    /// Allows or forbids jumps.
    pub fn capriole_optimization(allowed: c_int) -> c_int;
    /// Waits until no probe waits for its jump.
    pub fn capriole_optimize(milliseconds: c_uint) -> c_int;
    /// Writes a line for each probe.
    pub fn capriole_list(fd: c_int) -> c_int;
    /// Writes a line for each function that is excluded from probes.
    pub fn capriole_list_noprobe(fd: c_int) -> c_int;
    /// Message of the thread's last error.
    pub fn capriole_error() -> *const c_char;
    /// Starts the helper process.
    pub fn capriole_start() -> c_int;
    /// Ends the helper process.
    pub fn capriole_finish() -> c_int;
    /// Registers a return probe.
    pub fn capriole_return_probe_register(probe: *mut capriole_return_probe) -> c_int;
    /// Takes a return probe out.
    pub fn capriole_return_probe_unregister(probe: *mut capriole_return_probe) -> c_int;
    /// Registers return probes, all of them or none.
    pub fn capriole_return_probes_register(
        probes: *mut *mut capriole_return_probe,
        count: usize,
    ) -> c_int;
    /// Takes return probes out, all of them or none.
    pub fn capriole_return_probes_unregister(
        probes: *mut *mut capriole_return_probe,
        count: usize,
    ) -> c_int;
    /// Stops the calls of a return probe's handlers.
    pub fn capriole_return_probe_disable(probe: *mut capriole_return_probe) -> c_int;
    /// Resumes them.
    pub fn capriole_return_probe_enable(probe: *mut capriole_return_probe) -> c_int;
    /// Number of calls that could not be followed.
    pub fn capriole_return_probe_missed(probe: *const capriole_return_probe) -> c_ulong;
    /// State of a return probe.
    pub fn capriole_return_probe_status(
        probe: *const capriole_return_probe,
        why: *mut c_char,
        size: usize,
    ) -> c_int;
    /// Registers an argument probe.
    pub fn capriole_argument_probe_register(probe: *mut capriole_argument_probe) -> c_int;
    /// Takes an argument probe out.
    pub fn capriole_argument_probe_unregister(probe: *mut capriole_argument_probe) -> c_int;
    /// Registers argument probes, all of them or none.
    pub fn capriole_argument_probes_register(
        probes: *mut *mut capriole_argument_probe,
        count: usize,
    ) -> c_int;
    /// Takes argument probes out, all of them or none.
    pub fn capriole_argument_probes_unregister(
        probes: *mut *mut capriole_argument_probe,
        count: usize,
    ) -> c_int;
    /// Stops the calls of an argument probe's handler.
    pub fn capriole_argument_probe_disable(probe: *mut capriole_argument_probe) -> c_int;
    /// Resumes them.
    pub fn capriole_argument_probe_enable(probe: *mut capriole_argument_probe) -> c_int;
    /// State of an argument probe.
    pub fn capriole_argument_probe_status(
        probe: *const capriole_argument_probe,
        why: *mut c_char,
        size: usize,
    ) -> c_int;
    /// Puts a function in the place of another one.
    pub fn capriole_replace(replacement: *mut capriole_replacement) -> c_int;
    /// Takes it off.
    pub fn capriole_restore(replacement: *mut capriole_replacement) -> c_int;
    /// Has the function itself called for a time.
    pub fn capriole_replacement_disable(replacement: *mut capriole_replacement) -> c_int;
    /// Has the replacement called again.
    pub fn capriole_replacement_enable(replacement: *mut capriole_replacement) -> c_int;
    /// State of a replacement.
    pub fn capriole_replacement_status(
        replacement: *const capriole_replacement,
        why: *mut c_char,
        size: usize,
    ) -> c_int;
    /// Enables an event; returns its number.
    pub fn capriole_event_enable(event: *const c_char) -> c_int;
    /// Disables an event.
    pub fn capriole_event_disable(event: c_int) -> c_int;
    /// Writes the table of an aggregated event.
    pub fn capriole_event_rows(event: c_int, fd: c_int) -> c_int;
    /// Writes the records since the last call.
    pub fn capriole_event_read(fd: c_int) -> c_int;
    /// Begins a trace.
    pub fn capriole_record_start(directory: *const c_char) -> c_int;
    /// Completes it.
    pub fn capriole_record_stop() -> c_int;
    /// Enables a record.
    pub fn capriole_record_enable(record: *mut capriole_record) -> c_int;
    /// Disables a record.
    pub fn capriole_record_disable(record: *mut capriole_record) -> c_int;
    /// Does nothing.
    pub fn capriole_record_nothing(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64);
}
