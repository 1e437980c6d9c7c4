//! Detaching: every byte back, nobody left in a detour, everything unmapped.
//!
//! The order makes every intermediate state one in which the program runs
//! correctly, and from which a later detach can go on:
//!
//! 1. reference counters, and the bytes (detours and handler are still there for whoever
//!    is inside), but those that answer unwinders, and those by which the program sees its
//!    own signal actions in place of ours;
//! 2. threads leave the arenas; a thread that has run into a breakpoint takes its
//!    SIGTRAP and goes through the detour like any other;
//! 3. the signal actions;
//! 4. return addresses that were replaced, then what answers unwinders, while all threads
//!    stand still; the memory through which calls return stays (see [`crate::returns`]);
//! 5. arenas, then session memory, at last the ledger, which holds the journal.
//!
//! Memory is unmapped only if no thread is in it, no signal frame on a stack returns
//! into it (a handler interrupted a detour, or was called from ours) and no
//! thread's `rseq_cs` points into it (the kernel reads that descriptor whenever it
//! next preempts the thread). Other words on a stack that point into it are stale:
//! a detour leaves return addresses only while it calls the resident, and whoever
//! is there is in it himself, or has been interrupted by a signal there. Otherwise it stays, restored, until a later detach.

use crate::counter::Reference;
use crate::error::TargetError;
use crate::gadgets;
use crate::ledger::{Ledger, MemoryAt};
use crate::maps::Mapping;
use crate::memory::RemoteMemory;
use crate::patch::{Batch, Change, Found, INT3};
use crate::process::Process;
use crate::ptrace;
use crate::recover;
use crate::remains::{Remains, Save};
use crate::returns::Region;
use crate::session::{Agent, Arena};
use crate::stacks;
use crate::steps::step;
use crate::threads::{self, Stopped};
use crate::tracer;
use capriole_ring::layout::{State, header, own};
use std::ops::Range;
use std::time::Duration;

/// A signal's action that was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// The signal: SIGTRAP, or one that an instruction's fault raises.
    pub signal: i32,
    /// Our handler.
    pub handler: u64,
    /// The program's `struct kernel_sigaction`.
    pub old: [u64; 4],
}

/// What a session has put into a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// What tells all that, and goes last.
    pub ledger: Ledger,
    /// Where session memory was mapped.
    pub(crate) memory: Option<MemoryAt>,
    /// Memory for detours.
    pub arenas: Vec<Arena>,
    /// The memory through which followed calls return.
    pub returns: Option<Region>,
    /// Where stubs are mapped, ascending.
    pub stubs: Vec<Range<u64>>,
    /// The sites.
    pub changes: Vec<Change>,
    /// The reference counters that one was added to.
    pub(crate) references: Vec<Reference>,
    /// The replaced signal actions.
    pub actions: Vec<Action>,
}

impl Installed {
    /// Whether breakpoints are handled.
    pub(crate) fn handles_traps(&self) -> bool {
        self.actions
            .iter()
            .any(|action| action.signal == libc::SIGTRAP)
    }

    /// Whether an address lies in generated code.
    fn holds(&self, address: u64) -> bool {
        let at = self.stubs.partition_point(|range| range.end <= address);
        self.stubs
            .get(at)
            .is_some_and(|range| range.start <= address)
            || self.arenas.iter().any(|arena| arena.contains(address))
            || self.returns.is_some_and(|region| region.holds(address))
    }

    /// Where session memory is mapped now, with the slots for open calls behind it, which are
    /// the process's own.
    pub(crate) fn memory_in(&self, process: &Process) -> Result<Option<Range<u64>>, TargetError> {
        let Some(memory) = self.memory else {
            return Ok(None);
        };
        let maps = process.maps()?;
        let is_it = |m: &&Mapping| m.start == memory.base && m.inode == memory.inode;
        let mut shared = maps.iter().filter(|m| recover::is_session(m));
        let Some(shared) = shared.find(is_it) else {
            return Ok(None);
        };
        let end = memory.base.saturating_add(memory.size);
        let own = |m: &Mapping| m.start == shared.end && m.inode == 0 && !m.perms.execute;
        let slots = end > shared.end && maps.iter().any(|m| own(m) && end <= m.end);
        Ok(Some(shared.start..if slots { end } else { shared.end }))
    }

    /// Entries of the journal.
    pub(crate) fn journalled(&self) -> usize {
        self.changes.len() + self.references.len()
    }

    /// The phases of changes there are, from 0.
    fn phases(&self) -> std::ops::RangeInclusive<u8> {
        0..=self.changes.iter().map(|c| c.phase).max().unwrap_or(0)
    }
}

/// What a detach did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Detached {
    /// Sites whose bytes were put back, without the guards.
    pub restored: usize,
    /// Sites that somebody else has changed or unmapped meanwhile; left alone.
    pub foreign: usize,
    /// Sites where a uprobe or another breakpoint had come or gone meanwhile, so that only a
    /// part of the probe was left, which was put back. A breakpoint that still stands there
    /// was left.
    pub repaired: usize,
    /// Memory stays mapped because a saved address points into it; all bytes are
    /// back nevertheless. Another `capriole detach` removes it later.
    pub lingering: bool,
    /// Forked children whose own ledgers make no sense. They did that to themselves; their
    /// probes stay in.
    pub damaged: usize,
    /// How long all threads stood still.
    pub standstill: Duration,
}

/// How long a thread in a detour is given to leave it, and how often. A detour
/// takes nanoseconds; the later rounds are for machines that are very busy.
const MOMENTS: u32 = 60;
/// How often the process is stopped again for what could not be unmapped.
/// The program runs in between: a thread in a signal handler that interrupted a detour
/// needs a processor to come back, which with hundreds of busy threads takes its time.
const ROUNDS: u32 = 16;
/// In how many of them a copy of a replaced return address may be one that an unwinder has
/// just taken. That takes nanoseconds; what is there after a second is left over.
const UNWINDING_ROUNDS: u32 = 10;
/// How far from the stack pointer an unwinder has its copy, bytes.
const UNWINDER_STACK: usize = 4096;

/// Takes everything out that `installed` says.
///
/// # Errors
/// [`TargetError::Vanished`] and its like if the process ended; otherwise as many
/// sites as possible are restored and the rest can be tried again.
pub fn detach(process: &Process, installed: &Installed) -> Result<Detached, TargetError> {
    detach_and_save(process, installed, None)
}

/// The same; what a dead recorder has left in session memory is saved before that is unmapped.
///
/// # Errors
/// As [`detach`].
pub(crate) fn detach_and_save(
    process: &Process,
    installed: &Installed,
    save: Option<&mut Save<'_>>,
) -> Result<Detached, TargetError> {
    tracer::check_filters(process)?;
    tracer::apart(|| detach_living(process, installed, save))
}

fn detach_living(
    process: &Process,
    installed: &Installed,
    mut save: Option<&mut Save<'_>>,
) -> Result<Detached, TargetError> {
    let pid = process.pid() as i32;
    let mut report = Detached::default();
    // Somebody else (`capriole detach`) may be at the same work: between two of our
    // stops he can have finished it, and the program have mapped other things there.
    let is_ours = || installed.ledger.is_in(process);
    if !is_ours()? {
        return Ok(report);
    }
    let remote = RemoteMemory::open(pid)?;
    // Searched now, found again while threads stand still.
    gadgets::search(&process.maps()?, &remote);
    for round in 0..ROUNDS {
        if round > 0 {
            std::thread::sleep(Duration::from_millis(1 << round.min(9)));
        }
        let mut stopped = Stopped::all(pid)?;
        if !is_ours()? {
            return Ok(report);
        }
        if round == 0 {
            lower_references(process, &remote, installed)?;
            restore_bytes(pid, &remote, installed, &mut report)?;
            say_left(process, &remote, installed)?;
            set_restored(process, &remote, installed)?;
        }
        let left = match leave(&mut stopped, &remote, installed) {
            // Let go for a moment, it has come to where it cannot stop; the others must not
            // wait for it standing still.
            Err(TargetError::Unstoppable { .. }) => false,
            left => left?,
        };
        let quiet = left
            && unreferenced(&stopped, &remote, process, installed)?
            && (round >= UNWINDING_ROUNDS || asked(&stopped, &remote, process, installed)?);
        report.standstill += stopped.elapsed();
        if !quiet {
            continue;
        }
        // Nobody can come in any more, since no byte leads there; but a foreign
        // SIGTRAP still enters our handler. So that goes first, and then it is
        // looked again.
        if !installed.actions.is_empty() {
            restore_actions(process, &remote, installed, stopped)?;
            // Between that and now a thread can have entered it once more.
            stopped = Stopped::all(pid)?;
            if !is_ours()? {
                return Ok(report);
            }
            let left = match leave(&mut stopped, &remote, installed) {
                Err(TargetError::Unstoppable { .. }) => false,
                left => left?,
            };
            let quiet = left
                && unreferenced(&stopped, &remote, process, installed)?
                && (round >= UNWINDING_ROUNDS || asked(&stopped, &remote, process, installed)?);
            report.standstill += stopped.elapsed();
            if !quiet {
                continue;
            }
        }
        restore_returns(process, &remote, installed)?;
        match save.take() {
            // The next round unmaps.
            Some(save) => {
                drop(stopped);
                save_remains(process, &remote, installed, save)?;
            }
            None => {
                unmap(process, &remote, installed, stopped)?;
                return Ok(report);
            }
        }
    }
    report.lingering = true;
    Ok(report)
}

/// Has saved what stands in session memory. The program runs, since that may take long; nobody
/// writes records there any more: no byte and no return address leads to a detour, and nobody is
/// in one.
fn save_remains(
    process: &Process,
    remote: &RemoteMemory,
    installed: &Installed,
    save: &mut Save<'_>,
) -> Result<(), TargetError> {
    let trace = installed.ledger.header(remote)?.trace();
    if let (Some(trace), Some(mapped)) = (trace, installed.memory_in(process)?) {
        let remains = Remains::read(process.pid() as i32, remote, mapped);
        save(&trace, remains);
        step("remains saved");
    }
    Ok(())
}

/// Notes that all bytes are back. Whoever made the session for this process, and not for one
/// that it was forked from, is to see it, also when the ledger is gone.
fn set_restored(
    process: &Process,
    remote: &RemoteMemory,
    installed: &Installed,
) -> Result<(), TargetError> {
    let ledger = &installed.ledger;
    ledger.note_state(remote, State::Restored)?;
    let is_owned = ledger.header(remote)?.pid() == process.pid();
    let Some(memory) = installed.memory_in(process)?.filter(|_| is_owned) else {
        return Ok(());
    };
    let address = memory.start + header::STATE as u64;
    remote
        .write(address, &(State::Restored as u32).to_le_bytes())
        .map_err(|source| TargetError::Memory {
            pid: process.pid() as i32,
            what: "write",
            address,
            source,
        })?;
    step("state shown");
    Ok(())
}

/// Lets a thread go on that waits in a guard until the probes are out (`capriole_filtering`
/// in `resident.c`). In a session that was never armed there may be no such word.
fn say_left(
    process: &Process,
    remote: &RemoteMemory,
    installed: &Installed,
) -> Result<(), TargetError> {
    let address = installed.ledger.header(remote).map(|header| header.own());
    let Ok(Some(address)) = address else {
        return Ok(());
    };
    let leave = remote.read_u32(address + own::LEAVE as u64);
    let waits = leave.is_ok_and(|word| word != 0);
    let region = installed.returns.filter(|_| waits);
    if let Some(region) = region.filter(|region| region.is_in(process, remote)) {
        region.close(process.pid() as i32, remote)?;
    }
    let _ = remote.write(address + own::LEFT as u64, &1u32.to_le_bytes());
    Ok(())
}

/// The program comes to the probes no more, as far as we are concerned.
fn lower_references(
    process: &Process,
    remote: &RemoteMemory,
    installed: &Installed,
) -> Result<(), TargetError> {
    if installed.references.is_empty() {
        return Ok(());
    }
    let maps = process.maps()?;
    for reference in &installed.references {
        reference.lower(process.pid() as i32, remote, &maps)?;
    }
    Ok(())
}

fn restore_bytes(
    pid: i32,
    remote: &RemoteMemory,
    installed: &Installed,
    report: &mut Detached,
) -> Result<(), TargetError> {
    let mut batch = Batch::new(pid, remote);
    // Exceptions have to find their way as long as a return address is replaced, and no action
    // of ours may be seen.
    let changes = installed.changes.iter().filter(|change| !change.is_late());
    // A site before the neighbour that made room for it, and what guards all at last.
    let (guards, others): (Vec<&Change>, Vec<&Change>) = changes.partition(|change| change.guard);
    let mut steps: Vec<Vec<&Change>> = installed
        .phases()
        .rev()
        .map(|phase| {
            others
                .iter()
                .copied()
                .filter(|c| c.phase == phase)
                .collect()
        })
        .collect();
    steps.push(guards);
    for changes in steps {
        for change in changes {
            match batch.inspect(change) {
                Found::Before => {}
                Found::Foreign => report.foreign += 1,
                Found::Disturbed => {
                    let repaired = batch.take_back(change) && !change.guard;
                    report.repaired += usize::from(repaired);
                }
                Found::After | Found::Between => {
                    batch.revert(change)?;
                    report.restored += usize::from(!change.guard);
                }
            }
        }
        batch.write()?;
    }
    step("all bytes restored");
    Ok(())
}

/// Whether no unwinder has taken a return address from a stack that was replaced, and not asked
/// yet where it leads. When it has asked it has the original; in between it is in its own code,
/// and would ask in vain when nobody answers any more.
fn asked(
    stopped: &Stopped,
    remote: &RemoteMemory,
    process: &Process,
    installed: &Installed,
) -> Result<bool, TargetError> {
    let unwinders = installed.changes.iter().filter(|change| change.unwinder);
    let asks: Vec<u64> = unwinders.map(|change| change.address).collect();
    let (Some(region), false) = (installed.returns, asks.is_empty()) else {
        return Ok(true);
    };
    let maps = process.maps()?;
    let own: Vec<Range<u64>> = maps
        .iter()
        .filter(|m| m.perms.execute)
        .filter(|m| asks.iter().any(|address| m.contains(*address)))
        .map(|m| m.start..m.end)
        .collect();
    let is_between = |thread: &crate::threads::StoppedThread| {
        let inside = own.iter().any(|code| code.contains(&thread.registers.rip));
        let stack = || remote.read_some(thread.registers.rsp & !7, UNWINDER_STACK);
        inside
            && stack().is_ok_and(|stack| {
                let words = stack
                    .chunks_exact(8)
                    .zip((thread.registers.rsp & !7..).step_by(8));
                words.into_iter().any(|(word, at)| {
                    let word = word.try_into().map_or(0, u64::from_le_bytes);
                    region.is_copy(remote, at, word)
                })
            })
    };
    Ok(!stopped.threads().iter().any(is_between))
}

/// Puts the return addresses back, and then the bytes of unwinders. All threads stand still,
/// nobody is in generated code, and nobody comes into it any more but by a return.
fn restore_returns(
    process: &Process,
    remote: &RemoteMemory,
    installed: &Installed,
) -> Result<(), TargetError> {
    let pid = process.pid() as i32;
    let region = installed.returns;
    if let Some(region) = region.filter(|region| region.is_in(process, remote)) {
        region.restore(pid, remote)?;
    }
    let mut batch = Batch::new(pid, remote);
    for change in installed.changes.iter().filter(|change| change.is_late()) {
        match batch.inspect(change) {
            Found::After | Found::Between => batch.revert(change)?,
            Found::Disturbed => drop(batch.take_back(change)),
            Found::Before | Found::Foreign => {}
        }
    }
    batch.write()?;
    step("bytes of unwinders restored");
    Ok(())
}

/// Whether the program counter may be behind a breakpoint of ours: one that stood at
/// the start of a change, for good or for a while, or inside one.
fn behind_breakpoint(installed: &Installed, rip: u64) -> bool {
    let at = rip.wrapping_sub(1);
    installed.changes.iter().any(|change| {
        let offset = at.wrapping_sub(change.address) as usize;
        offset == 0 || offset < change.len && change.after[offset] == INT3
    })
}

/// True if a SIGTRAP waits for a thread that does not block it.
pub(crate) fn sigtrap_pending(tid: i32) -> bool {
    is_pending(tid, &[libc::SIGTRAP])
}

/// True if one of `signals` waits for a thread that does not block it.
pub(crate) fn is_pending(tid: i32, signals: &[i32]) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else {
        return false;
    };
    let set = |field: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(field));
        line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
    };
    let (pending, blocked) = (set("SigPnd:").unwrap_or(0), set("SigBlk:").unwrap_or(0));
    let waits = |signal: &i32| (pending & !blocked) >> (signal - 1) & 1 == 1;
    signals.iter().any(waits)
}

/// Gets every thread out of the arenas. `false` if one stays.
fn leave(
    stopped: &mut Stopped,
    remote: &RemoteMemory,
    installed: &Installed,
) -> Result<bool, TargetError> {
    let _ = remote;
    let in_arena = |rip: u64| installed.holds(rip);
    let mut index = 0;
    let mut moments = 0;
    while index < stopped.threads().len() {
        let thread = stopped.threads()[index];
        if behind_breakpoint(installed, thread.registers.rip) {
            // It has run into the breakpoint. What follows is the handler, which leads
            // to the detour, as always: nothing that we do here in several steps, and
            // would leave half done if we were killed. The handler stays until then.
            let about_to = thread.signal == libc::SIGTRAP;
            if about_to || sigtrap_pending(thread.tid) {
                if moments >= MOMENTS {
                    return Ok(false);
                }
                moments += 1;
                if about_to {
                    stopped.let_run(index, Duration::ZERO)?;
                } else {
                    stopped.let_run_to_signal(index)?;
                }
                continue;
            }
        }
        if in_arena(thread.registers.rip) {
            // One that a dead tracer has left waiting goes home at once.
            let home = |a: &Arena| capriole_resident::entries(a.start).batch_home;
            if installed
                .arenas
                .iter()
                .any(|a| home(a) == thread.registers.rip)
            {
                stopped.move_to(index, thread.registers.rip)?;
            }
            if moments >= MOMENTS {
                return Ok(false);
            }
            let pause = if moments < 8 { 0 } else { 20 << (moments / 8) };
            moments += 1;
            stopped.let_run(index, Duration::from_micros(pause))?;
            continue; // the same one again, or its successor in the list
        }
        index += 1;
        moments = 0;
    }
    Ok(true)
}

/// Whether no signal frame returns, and no thread's `rseq_cs` points, into the arenas.
/// A descriptor of a thread that is outside is done with, and is cleared.
fn unreferenced(
    stopped: &Stopped,
    remote: &RemoteMemory,
    process: &Process,
    installed: &Installed,
) -> Result<bool, TargetError> {
    let in_arena = |word: u64| installed.holds(word);
    let mut referenced = false;
    let restorer = |word: u64| {
        !installed.actions.is_empty()
            && installed
                .arenas
                .iter()
                .any(|a| capriole_resident::entries(a.start).restorer == word)
    };
    // Frames of our handlers, which lead over our restorer.
    let mut frames = std::collections::BTreeSet::new();
    stacks::scan(stopped, remote, &process.maps()?, |word| {
        referenced |= word.saved_rip.is_some_and(in_arena);
        if restorer(word.value) {
            frames.insert(word.address);
        }
        if let Some(stale) = word.stale_frame {
            frames.remove(&stale);
        }
    });
    referenced |= !frames.is_empty();
    if referenced {
        return Ok(false);
    }
    const RSEQ_CS: u64 = 8;
    for thread in stopped.threads() {
        let Ok(rseq) = ptrace::rseq_configuration(thread.tid) else {
            continue;
        };
        if rseq.address == 0 {
            continue;
        }
        let at = rseq.address + RSEQ_CS;
        if remote.read_u64(at).is_ok_and(in_arena) && remote.write(at, &[0; 8]).is_err() {
            return Ok(false);
        }
    }
    step("nobody in the arenas");
    Ok(true)
}

fn restore_actions(
    process: &Process,
    remote: &RemoteMemory,
    installed: &Installed,
    stopped: Stopped,
) -> Result<(), TargetError> {
    let agent =
        Agent::choose(process, stopped, remote).or_else(|_| Agent::hire(process, remote))?;
    restore_actions_of(&agent, remote, installed)?;
    agent.dismiss();
    // Who has the same memory may have got the actions by fork, and has them to itself.
    for pid in threads::sharing_memory(process.pid() as i32)? {
        let Ok(other) = Process::open(pid as u32) else {
            continue; // it has ended
        };
        let restored = Agent::hire(&other, remote).and_then(|agent| {
            restore_actions_of(&agent, remote, installed)?;
            agent.dismiss();
            Ok(())
        });
        match restored {
            Err(_) if other.is_over() => {}
            restored => restored?,
        }
    }
    installed.ledger.forget_actions(remote)
}

fn restore_actions_of(
    agent: &Agent,
    remote: &RemoteMemory,
    installed: &Installed,
) -> Result<(), TargetError> {
    let ledger = &installed.ledger;
    for action in &installed.actions {
        let current = agent.signal_action(remote, ledger, action.signal, None)?;
        // The program may have installed a handler of its own meanwhile: that stays.
        if current[0] == action.handler {
            agent.signal_action(remote, ledger, action.signal, Some(action.old))?;
            step("signal handler removed");
        }
    }
    Ok(())
}

fn unmap(
    process: &Process,
    remote: &RemoteMemory,
    installed: &Installed,
    stopped: Stopped,
) -> Result<(), TargetError> {
    let agent =
        Agent::choose(process, stopped, remote).or_else(|_| Agent::hire(process, remote))?;
    agent.unmap(process, remote, installed)?;
    agent.dismiss();
    Ok(())
}
