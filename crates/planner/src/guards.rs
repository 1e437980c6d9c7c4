//! Guards: Capriole's own probes, behind the system calls that create threads.
//!
//! A thread that is not yet, or never will be, registered for restartable sequences may have a
//! `struct rseq` that says otherwise, and would then write records as if the kernel restarted
//! it (see [`Work::Unregister`]). This holds for a new thread until its C library has
//! registered it, and for a child of `vfork` until it executes its program. Both start behind a
//! system call with `CLONE_VM`; a program has few of these, in its C library. The guard there
//! corrects the registration mark before any other code that could be probed runs.
//!
//! A call is found by its number, a constant that is loaded shortly before:
//!
//! ```text
//!  b8 b3 01 00 00   mov $435, %eax       clone3; 56: clone; 58: vfork
//!  0f 05            syscall
//!  48 85 c0         test %rax, %rax      here
//! ```
//!
//! Calls whose number is a variable (`syscall(SYS_clone3, ...)`) are not found; the function
//! with which Go creates child processes is known by its name.
//!
//! Other guards are *before* the system calls by which a program installs a system call filter
//! (seccomp(2), `prctl`), also where the number is a variable, in all objects. Once a filter is
//! installed, a system call that the program does not make itself may kill it, so the resident
//! is told to make none (`capriole_filtering` in `resident.c`). So are those by which it provides
//! pages of its memory itself (userfaultfd(2)): a read may then wait for it. The call itself is not
//! displaced, as a thread can sleep in one: the guard is at an instruction before it that
//! always runs before it.
//!
//! If two processes run on one thread structure at the same time (`clone(CLONE_VM)` without
//! `CLONE_VFORK` or `CLONE_SETTLS`), no guard can help; the C library itself does not work
//! there either.

mod calls;
mod tls;

use self::calls::{Call, Calls, changes, constant, copied, loaded};
use crate::planner::{Planner, is_c_library};
use crate::resolve::Site;
use capriole_codegen::work::Work;
use capriole_insn::{Code, Extent};
use capriole_object::{Object, Objects};
use capriole_patch::attach::{Plan, Probe};
use capriole_patch::guards::{Guards, uses_any};
use capriole_proc::maps::PAGE_SIZE;
use capriole_proc::process::{Process, ProcessError};
use capriole_resident::{CallNumber, FilterCall};
use iced_x86::{
    Code as Op, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};
use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;

/// `clone`, `vfork`, `clone3` (asm/unistd_64.h).
const CALLS: [u32; 3] = [56, 58, 435];
/// `prctl`, `seccomp` and `userfaultfd`.
const PRCTL: u32 = 157;
const FILTER_CALLS: [u32; 3] = [PRCTL, 317, 323];
/// First arguments of `prctl` that install a filter, redirect system calls to the program, or
/// give up the time stamp counter: `PR_SET_SECCOMP`, `PR_SET_TSC`,
/// `PR_SET_SYSCALL_USER_DISPATCH` (linux/prctl.h).
const FILTER_OPTIONS: [u64; 3] = [22, 26, 59];
/// `rt_sigaction`.
const SIGACTION: u32 = 13;
/// Flag of `clone` that shares the memory with the parent (linux/sched.h).
const CLONE_VM: u64 = 0x100;
/// `mov $..., %eax`.
const MOV_EAX: u8 = 0xb8;
/// Maximum number of instructions between loading the number and the call.
const NEAR: usize = 16;
/// Length of a `syscall` instruction, bytes.
const SYSCALL: u64 = 2;
/// Maximum number of bytes that a guard changes or displaces from its site on: a jump that ends
/// in the middle of a long instruction.
const MAX_PATCH: u64 = 4 + 15;
/// The function by which Go programs create children that share their memory: its name in the
/// symbol table, and in Go's own table, where its wrapper has the same name.
const GO_VFORK: [&str; 2] = ["syscall.rawVforkSyscall.abi0", "syscall.rawVforkSyscall"];

/// Finds and plans all guards at system calls.
#[must_use]
pub fn find(objects: &Objects, planner: &Planner) -> Guards {
    let mut guards = Guards {
        filters_complete: true,
        actions_complete: true,
        ..Guards::default()
    };
    let all: Vec<_> = objects.all().map(|o| (o, Calls::of(o))).collect();
    let is_static = !objects.all().any(|object| is_c_library(object));
    for (object, calls) in &all {
        // Threads are created by the C library and the program itself.
        if object.is_main() || is_c_library(object) {
            add_threads(&mut guards, object, planner);
        }
        guards.own_storage |= !is_c_library(object)
            && tls::changes_thread_pointer(object, calls, is_static && object.is_main());
    }
    for (object, calls) in &all {
        let pointers = calls.with(&tls::CALLS).map(|call| call.address);
        let pointers: BTreeSet<u64> = pointers.collect();
        for call in calls.with(&FILTER_CALLS) {
            let found = before_call(object, planner, call).unless_overlapping(&guards);
            guards.filters_complete &= found.is_ok();
            // Nobody would remove the probes before this call sets a thread pointer.
            guards.own_storage |= found.is_err() && pointers.contains(&call.address);
            guards.filters.extend(found.ok().flatten());
        }
    }
    for (object, calls) in &all {
        for call in calls.with(&[SIGACTION]) {
            let found = behind_action(object, planner, call).unless_overlapping(&guards);
            guards.actions_complete &= found.is_ok();
            guards.actions.extend(found.ok().flatten());
        }
    }
    guards
}

/// Finds and plans all guards at system calls of a process.
///
/// # Errors
/// The process is gone, or cannot be examined.
pub fn of_process(process: &Process) -> Result<Guards, ProcessError> {
    let objects = Objects::of_process(process)?;
    Ok(find(&objects, &Planner::of_process(process)))
}

fn add_threads(guards: &mut Guards, object: &Arc<Object>, planner: &Planner) {
    for address in behind_calls(object) {
        let site = function_around(object, address)
            .and_then(|function| Site::of_function(object, function)?.at(address));
        let plan = site.and_then(|site| planner.plan(&site).ok());
        match plan.filter(is_usable) {
            Some(plan) => {
                let guard = Probe::new(plan, object.range()).with(vec![Work::Unregister]);
                guards.threads.push(Probe {
                    // New threads have all signals blocked.
                    stand_in: false,
                    ..guard
                });
            }
            None => guards.missing = true,
        }
    }
}

/// Result of planning a guard at a system call.
enum Before {
    /// The call needs no guard.
    Harmless,
    Guard(Box<Probe>),
    /// There is no site for a guard.
    Nothing,
}

/// A call is left without the guard that it needs.
struct Unguarded;

impl Before {
    /// Returns the guard to install, if the call needs one; an error if there is none, or it would
    /// overlap another.
    fn unless_overlapping(self, guards: &Guards) -> Result<Option<Probe>, Unguarded> {
        match self {
            Before::Harmless => Ok(None),
            Before::Guard(probe) if !guards.overlaps(&probe) => Ok(Some(*probe)),
            Before::Guard(_) | Before::Nothing => Err(Unguarded),
        }
    }
}

/// Plans the guard behind a call that may be `rt_sigaction`.
fn behind_action(object: &Arc<Object>, planner: &Planner, call: &Call) -> Before {
    let mut number = Where::Register(Register::RAX);
    for instruction in &call.before {
        number = number.before(instruction);
    }
    // The C library's own calls: those made in all threads (setuid(2) and the like), and
    // cancellable ones.
    let own = matches!(number, Where::Memory(..) | Where::Register(Register::RSI));
    if is_c_library(object) && call.number.is_none() && own {
        return Before::Harmless;
    }
    let Some(function) = call.function else {
        return Before::Nothing;
    };
    // This function only creates child processes.
    if go_vforks(object).contains(&function) {
        return Before::Harmless;
    }
    let address = call.address + SYSCALL;
    let site = Site::of_function(object, function).and_then(|site| site.at(address));
    let plan = site.and_then(|site| planner.plan(&site).ok());
    let Some(plan) = plan.filter(is_one_jump) else {
        return Before::Nothing;
    };
    let work = Work::Help {
        routine: 0, // set when the guard is written
        argument: call.number.map_or(u64::MAX, u64::from),
    };
    let probe = Probe::new(plan, object.range()).with(vec![work]);
    Before::Guard(Box::new(Probe {
        stand_in: false,
        ..probe
    }))
}

/// Location of a value, such as a system call's number, before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Known(u64),
    Register(Register),
    Memory(Register, i32),
    Unknown,
}

impl Where {
    /// Returns the location before an instruction, from the location behind it.
    fn before(self, instruction: &Instruction) -> Where {
        match self {
            Where::Register(register) if changes(instruction, register) => {
                let constant = constant(instruction).map(Where::Known);
                let copied = || copied(instruction).map(Where::Register);
                let loaded = || loaded(instruction).map(|(base, at)| Where::Memory(base, at));
                constant
                    .or_else(copied)
                    .or_else(loaded)
                    .unwrap_or(Where::Unknown)
            }
            // A write to memory in between may change that very location.
            Where::Memory(base, _) if changes(instruction, base) || writes_memory(instruction) => {
                Where::Unknown
            }
            other => other,
        }
    }
}

/// True if an instruction may write to memory.
fn writes_memory(instruction: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_memory().iter();
    let mut accesses = used.map(|used| used.access());
    accesses.any(|access| {
        !matches!(
            access,
            OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        )
    })
}

/// Describes a call for the resident. `None` if the call's number cannot be known in advance.
fn filter_call(call: &Call, number: Where, option: Where, mode: Where) -> Option<FilterCall> {
    let register = |register: Register| register.number() as u8;
    let argument = |place: Where| match place {
        Where::Register(at) => Some(register(at)),
        _ => None,
    };
    Some(FilterCall {
        number: match (call.number, number) {
            (Some(number), _) => CallNumber::Known(number),
            (_, Where::Known(number)) => CallNumber::Known(number as u32),
            (_, Where::Register(at)) => CallNumber::Register(register(at)),
            (_, Where::Memory(base, at)) => CallNumber::Memory(register(base), at),
            (_, Where::Unknown) => return None,
        },
        option: argument(option),
        mode: argument(mode),
    })
}

/// Plans the guard before a call, as near to it as possible; prefers a jump that does not rely
/// on the bytes behind the call, where another guard may be needed.
fn before_call(object: &Arc<Object>, planner: &Planner, call: &Call) -> Before {
    let Some(function) = call.function else {
        return Before::Nothing;
    };
    // Locations of the arguments before the current instruction.
    let mut number = Where::Register(Register::RAX);
    let mut option = Where::Register(Register::RDI);
    let mut mode = Where::Register(Register::RSI);
    let end = call.address + SYSCALL;
    let behind = end..end + MAX_PATCH;
    let mut in_the_way = None;
    for instruction in &call.before {
        number = number.before(instruction);
        option = option.before(instruction);
        mode = mode.before(instruction);
        if let (Some(PRCTL), Where::Known(option)) = (call.number, option)
            && !FILTER_OPTIONS.contains(&option)
        {
            return Before::Harmless;
        }
        let Some(known) = filter_call(call, number, option, mode) else {
            return in_the_way.unwrap_or(Before::Nothing);
        };
        let site = Site::of_function(object, function).and_then(|site| site.at(instruction.ip()));
        let plan = site.and_then(|site| planner.plan(&site).ok());
        let Some(plan) = plan.filter(is_one_jump) else {
            continue;
        };
        let work = Work::Help {
            routine: 0, // set when the guard is written
            argument: known.argument(),
        };
        let probe = Probe::new(plan, object.range()).with(vec![work]);
        let leaves_room = !uses_any(&probe, slice::from_ref(&behind));
        let guard = Before::Guard(Box::new(Probe {
            // Any thread may reach that site, with any signals blocked.
            stand_in: false,
            ..probe
        }));
        if leaves_room {
            return guard;
        }
        in_the_way.get_or_insert(guard);
    }
    // C libraries make cancellable calls, which are others than these, through such a function.
    // syscall(2) takes the number as its first argument. In musl that function is in no table.
    let is_cancellable = is_c_library(object) && number == Where::Register(Register::RSI);
    in_the_way.unwrap_or(match is_cancellable {
        true => Before::Harmless,
        false => Before::Nothing,
    })
}

/// True if a guard can be installed by one single write of a jump, and clobbers no live flags.
fn is_usable(plan: &Plan) -> bool {
    is_one_write(plan) && !plan.shape.live.flags
}

/// True if a probe can be installed by one single write of a jump, possibly a jump to a stub.
fn is_one_jump(plan: &Plan) -> bool {
    let start = plan.shape.covered.start;
    let one_page = start / PAGE_SIZE == (start + 4) / PAGE_SIZE;
    let alone = plan.shape.placed.as_ref().is_none_or(|placed| {
        placed.writes.len() == 1
            && placed.evicted.is_empty()
            && placed.traps.is_empty()
            && placed.builds_on.is_none()
    });
    !plan.shape.tactic.is_breakpoint() && alone && one_page
}

/// True if a probe can be installed by one single write of a jump.
pub(crate) fn is_one_write(plan: &Plan) -> bool {
    let start = plan.shape.covered.start;
    let one_page = start / PAGE_SIZE == (start + 4) / PAGE_SIZE;
    let jump = !plan.shape.tactic.is_breakpoint() && plan.shape.placed.is_none();
    jump && one_page
}

/// Returns the run-time addresses behind an object's system calls that create threads.
fn behind_calls(object: &Object) -> Vec<u64> {
    let mut found = Vec::new();
    let Ok(texts) = object.file().text() else {
        return found;
    };
    for text in texts {
        let code = Code::new(&text.bytes, object.run_time(text.address));
        for at in memchr::memchr_iter(MOV_EAX, &text.bytes) {
            let Some(number) = text.bytes.get(at + 1..at + 5) else {
                continue;
            };
            let number = u32::from_le_bytes([number[0], number[1], number[2], number[3]]);
            let load = code.address + at as u64;
            if CALLS.contains(&number)
                && object.is_mapped(load)
                && let Some(call) = call_behind(&code, load)
                && is_instruction(object, &code, load)
                && !is_fork(object, &code, number, call.ip())
            {
                found.push(call.next_ip());
            }
        }
    }
    for extent in go_vforks(object) {
        let piece = texts.iter().find_map(|text| {
            let code = Code::new(&text.bytes, object.run_time(text.address));
            code.get(extent).is_some().then_some(code)
        });
        let calls = piece
            .iter()
            .flat_map(|code| instructions(code, extent.start, extent.end));
        found.extend(
            calls
                .filter(|i| i.mnemonic() == Mnemonic::Syscall)
                .map(|i| i.next_ip()),
        );
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the run-time extents of the Go runtime's functions that call vfork(2) and clone(2).
fn go_vforks(object: &Object) -> Vec<Extent> {
    let symbols = object.file().is_go().then(|| object.symbols().ok());
    let symbols = symbols.flatten().into_iter();
    symbols
        .flat_map(|symbols| GO_VFORK.map(|name| symbols.linked(name)))
        .flatten()
        .map(|found| object.run_time_extent(found.function.extent))
        .collect()
}

/// Decodes instructions from `start` on, up to the first invalid one.
fn instructions<'a>(
    code: &'a Code<'a>,
    start: u64,
    end: u64,
) -> impl Iterator<Item = Instruction> + 'a {
    let next = move |at: &mut u64| {
        let instruction = code.instruction_at(*at, end)?;
        *at = instruction.next_ip();
        Some(instruction)
    };
    let mut at = start;
    std::iter::from_fn(move || next(&mut at))
}

/// True if an instruction writes `register` or a part of it.
fn writes(instruction: &Instruction, register: Register) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers().iter();
    used.filter(|u| u.register().full_register() == register)
        .any(|u| !matches!(u.access(), OpAccess::Read | OpAccess::CondRead))
}

/// Returns the system call whose number is loaded at `start`.
fn call_behind(code: &Code<'_>, start: u64) -> Option<Instruction> {
    let end = code.address + code.bytes.len() as u64;
    for instruction in instructions(code, start, end).skip(1).take(NEAR) {
        if instruction.mnemonic() == Mnemonic::Syscall {
            return Some(instruction);
        }
        if instruction.flow_control() != FlowControl::Next || writes(&instruction, Register::RAX) {
            return None;
        }
    }
    None
}

/// True if decoding from the start of the function reaches `address`, or if no function is
/// known.
fn is_instruction(object: &Object, code: &Code<'_>, address: u64) -> bool {
    let Some(extent) = function_around(object, address) else {
        return true;
    };
    let mut all = instructions(code, extent.start, extent.end);
    all.find(|i| i.next_ip() > address)
        .is_none_or(|i| i.ip() == address)
}

/// True if a call of `clone` is known to give the child its own memory: then the child's
/// registration is its parent's.
fn is_fork(object: &Object, code: &Code<'_>, number: u32, call: u64) -> bool {
    let Some(extent) = function_around(object, call).filter(|_| number == CALLS[0]) else {
        return false;
    };
    let mut flags = None;
    for instruction in instructions(code, extent.start, call) {
        if writes(&instruction, Register::RDI) {
            let constant = matches!(
                instruction.code(),
                Op::Mov_r32_imm32 | Op::Mov_rm32_imm32 | Op::Mov_rm64_imm32
            );
            flags = constant.then(|| instruction.immediate(1));
        }
        if instruction.next_ip() == call {
            return flags.is_some_and(|flags| flags & CLONE_VM == 0);
        }
    }
    false
}

/// Returns the run-time extent of the function around an address.
///
/// glibc's `clone3` has no symbol, and its unwind table leaves out the few bytes between
/// the call and where the new thread starts: the two pieces are one function.
fn function_around(object: &Object, address: u64) -> Option<Extent> {
    const GAP: u64 = 32;
    let symbols = object.symbols().ok()?;
    let link = object.link(address);
    let extent = match symbols.function_at(link) {
        Some(function) => function.extent,
        None => {
            let functions = symbols.functions();
            let next = functions.partition_point(|f| f.extent.start <= link);
            let before = functions[..next].last()?.extent;
            let behind = functions.get(next)?.extent;
            let gap = behind.start.checked_sub(before.end)?;
            (gap <= GAP).then_some(Extent::new(before.start, behind.end))?
        }
    };
    Some(object.run_time_extent(extent))
}
