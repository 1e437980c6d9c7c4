//! Detaching: restores every byte, moves every thread out of the detours, unmaps all memory.
//!
//! The order makes every intermediate state one in which the program runs correctly, and from
//! which a later detach can continue:
//!
//! 1. reference counters and the bytes of sites (detours and handler are still there for
//!    threads inside), except those of the probes that answer unwinders, and of those through
//!    which the program sees its own signal actions in place of ours;
//! 2. threads leave the arenas; a thread that has hit a breakpoint takes its SIGTRAP and goes
//!    through the detour like any other;
//! 3. the signal actions;
//! 4. return addresses that were replaced, then the probes left in by step 1, while all threads
//!    are stopped; the memory through which calls return stays (see [`crate::returns`]);
//! 5. arenas, then session memory, and last the ledger, which holds the journal.
//!
//! Memory is unmapped only if no thread is in it, no signal frame on a stack returns into it (a
//! handler interrupted a detour, or was called from ours) and no thread's `rseq_cs` points into
//! it (the kernel reads that descriptor whenever it next preempts the thread). The SIGTRAP handler
//! may leave its frame without our restorer: it jumps to the detour, so all the time the thread is
//! in an arena, or the frame of a signal that interrupted it leads there. Other words on a stack
//! that point into it are stale: a detour leaves return addresses only while it calls the
//! resident, and a thread that is there is in that memory itself, or was interrupted by a
//! signal there; or while it calls routines of the program itself ([`Routines`]), whose record of the
//! thread says so while they call handlers. Otherwise the memory stays, with the bytes restored, until
//! a later detach.
//!
//! Forked children inherit text, arenas and ledger as private copies, and session memory
//! shared: they keep recording. At the end of a recording every process that has the session's
//! memfd mapped is detached as well, each by its own ledger. After `exec` all mappings are
//! gone, and nothing is written.

use crate::actions;
use crate::cover;
use crate::installed::Installed;
use crate::patch::Batch;
use crate::session::{Agent, write};
use capriole_host::error::TargetError;
use capriole_host::host::{Host, Routines, StoppedThread, StoppedThreads, TargetMemory};
use capriole_host::stacks::{self, is_above};
use capriole_host::steps::step;
use capriole_host::survey::is_pending;
use capriole_ledger::Arena;
use capriole_ledger::change::{Change, Found, INT3};
use capriole_ledger::remains::{Remains, Save};
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use capriole_ring::layout::{State, header, own};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Result of a detach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detached {
    /// Sites whose bytes were restored, without the guards.
    pub restored: usize,
    /// Sites that other tools or the program have changed or unmapped meanwhile; left alone.
    pub foreign: usize,
    /// Sites where a uprobe or another breakpoint was added or removed meanwhile, so that only a
    /// part of the probe was left, which was restored. A breakpoint that was still there was left.
    pub repaired: usize,
    /// True if memory stays mapped because a saved address points into it; all bytes are restored
    /// nevertheless. A later `capriole detach` removes it.
    pub lingering: bool,
    /// True if memory stays mapped because the program may have addresses in it that nothing tells; its
    /// library removes it.
    pub kept: bool,
    /// Forked children that have corrupted their own ledgers; their probes stay in.
    pub damaged: usize,
    /// Time for which all threads were stopped.
    pub standstill: Duration,
    /// Moment from which no process had probes any more, and no thread was in one, except for detours that a
    /// signal handler had interrupted; `None` if there were none to remove, because the program had ended
    /// or another process had removed them.
    pub out: Option<Instant>,
    /// Where threads stood when the bytes were restored, the first [`MOST_STOOD`].
    pub stood: Vec<Stood>,
}

/// Where a thread stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stood {
    /// Its program counter.
    pub pc: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer, or whatever else is in that register.
    pub rbp: u64,
}

impl Stood {
    fn of(thread: &StoppedThread) -> Stood {
        Stood {
            pc: thread.pc(),
            sp: thread.sp(),
            rbp: thread.frame_pointer(),
        }
    }
}

/// Most threads of which a detach tells where they stood.
pub const MOST_STOOD: usize = 64;

/// Attempts to let a thread leave a detour, with growing pauses. A detour takes nanoseconds; the
/// later attempts are for machines that are very busy.
const MOMENTS: u32 = 60;
/// Time for which the others stand still in the first round while threads leave detours. In each further
/// round it is twice as long, up to a limit: on some machines threads always wait so long for a processor.
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);
const MOST_DOUBLINGS: u32 = 6;
/// Maximum number of rounds, each of which stops the process, until everything can be unmapped.
/// The program runs in between: a thread in a signal handler that interrupted a detour needs a
/// processor to return, which takes a while with hundreds of busy threads.
const ROUNDS: u32 = 16;
/// Number of those rounds in which a copy of a replaced return address may be one that an
/// unwinder has just read from the stack. The unwinder needs it for nanoseconds; a copy that is
/// still there after a second is stale.
const UNWINDING_ROUNDS: u32 = 10;
/// Distance above the stack pointer within which an unwinder keeps its copy, bytes.
const UNWINDER_STACK: usize = 4096;

/// Removes everything that `installed` lists.
///
/// # Errors
/// [`TargetError::Vanished`] or a similar error if the process ended; otherwise as many sites
/// as possible are restored and the rest can be tried again.
pub fn detach(host: &dyn Host, installed: &Installed) -> Result<Detached, TargetError> {
    detach_and_save(host, installed, None)
}

/// Detaches as [`detach`] does. The recorder writes what session memory has to its trace before that memory is
/// unmapped: until then it can be saved by others, if the recorder is killed.
///
/// # Errors
/// See [`detach`].
pub(crate) fn detach_and_flush(
    host: &dyn Host,
    installed: &Installed,
    flush: &mut Flush<'_>,
) -> Result<Detached, TargetError> {
    host.check_stops()?;
    host.apart(|| detach_living(host, installed, Some(Meanwhile::Flush(flush))))
}

/// Callback of a recorder that writes what session memory has to its trace. The program runs meanwhile.
pub type Flush<'a> = dyn FnMut() + Send + 'a;

/// The action on session memory after the last record was written and before the memory is unmapped.
enum Meanwhile<'m, 's> {
    /// The records that a dead recorder has left are saved.
    Save(&'m mut Save<'s>),
    /// A living recorder writes its records.
    Flush(&'m mut Flush<'s>),
}

/// Detaches as [`detach`] does, and saves the records that a dead recorder has left in session
/// memory before that memory is unmapped.
///
/// # Errors
/// See [`detach`].
pub(crate) fn detach_and_save(
    host: &dyn Host,
    installed: &Installed,
    save: Option<&mut Save<'_>>,
) -> Result<Detached, TargetError> {
    host.check_stops()?;
    host.apart(|| detach_living(host, installed, save.map(Meanwhile::Save)))
}

fn detach_living(
    host: &dyn Host,
    installed: &Installed,
    meanwhile: Option<Meanwhile<'_, '_>>,
) -> Result<Detached, TargetError> {
    let process = host.process();
    let mut report = Detached::default();
    match detach_ours(host, installed, meanwhile, &mut report) {
        // Another process has finished meanwhile, and has unmapped what was being read.
        Err(_) if !process.is_over() && matches!(installed.ledger.is_in(process), Ok(false)) => {
            Ok(report)
        }
        result => result.map(|()| report),
    }
}

fn detach_ours(
    host: &dyn Host,
    installed: &Installed,
    mut meanwhile: Option<Meanwhile<'_, '_>>,
    report: &mut Detached,
) -> Result<(), TargetError> {
    let process = host.process();
    let pid = process.pid() as i32;
    // Another process (`capriole detach`) may be detaching, too: between two of our stops it can
    // have finished, and the program can have mapped something else there.
    let is_ours = || installed.ledger.is_in(process);
    if !is_ours()? {
        return Ok(());
    }
    step("session found");
    let remote = host.memory()?;
    // Later sessions may have put their probes where those of this one were.
    let is_kept = installed.ledger.header(&remote)?.is_kept();
    if is_kept && installed.stays {
        return Ok(());
    }
    // Search now; while threads are stopped, only the result is checked.
    host.prepare(&remote);
    for round in 0..ROUNDS {
        if round > 0 {
            std::thread::sleep(Duration::from_millis(1 << round.min(9)));
        }
        let mut stopped = host.stop()?;
        if !is_ours()? {
            return Ok(());
        }
        if round == 0 && !is_kept {
            let threads = stopped.threads().iter().take(MOST_STOOD);
            report.stood = threads.map(Stood::of).collect();
            lower_references(process, &remote, installed)?;
            restore_bytes(pid, &remote, installed, report)?;
            say_left(process, &remote, installed)?;
            set_restored(process, &remote, installed)?;
        }
        let left = all_leave(&mut *stopped, host, &remote, installed, round)?;
        if left {
            // Those that were in a detour have recorded their hits.
            report.out.get_or_insert_with(Instant::now);
        }
        let quiet = left && is_quiet(&*stopped, &remote, process, installed, round)?;
        report.standstill += stopped.elapsed();
        if !quiet {
            continue;
        }
        // No byte leads into the detours any more, so no thread can enter them that way; but a foreign
        // SIGTRAP still enters our handler. So the handler is removed first, and then the threads are
        // checked again.
        if !is_kept && handlers_stand(pid, &remote, installed)? {
            restore_actions(host, &remote, installed, stopped)?;
            // Meanwhile a thread may have entered the handler once more.
            stopped = host.stop()?;
            if !is_ours()? {
                return Ok(());
            }
            let quiet = all_leave(&mut *stopped, host, &remote, installed, round)?
                && is_quiet(&*stopped, &remote, process, installed, round)?;
            report.standstill += stopped.elapsed();
            if !quiet {
                continue;
            }
        }
        if !is_kept {
            restore_returns(process, &remote, installed)?;
        }
        let Some(stopped) = uncover(host, stopped, &remote, installed, report)? else {
            continue;
        };
        match meanwhile.take() {
            // The next round unmaps.
            Some(Meanwhile::Save(save)) => {
                drop(stopped);
                if !save_remains(process, &remote, installed, save)? {
                    report.lingering = true;
                    return Ok(());
                }
            }
            Some(Meanwhile::Flush(flush)) => {
                drop(stopped);
                flush();
                step("records flushed");
                // No thread comes to the arenas again: nothing leads there. So one stopped thread is enough, or
                // the next round if there is none now.
                let agent = Agent::hire(host, &remote);
                if !is_ours()? {
                    return Ok(());
                }
                if let Ok(agent) = agent {
                    agent.unmap(process, &remote, installed)?;
                    agent.dismiss();
                    return Ok(());
                }
            }
            None if installed.stays => {
                installed.ledger.note_kept(&remote)?;
                report.kept = true;
                return Ok(());
            }
            None => {
                unmap(host, &remote, installed, stopped)?;
                return Ok(());
            }
        }
    }
    report.out.get_or_insert_with(Instant::now);
    report.lingering = true;
    Ok(())
}

/// Time for which the program runs between two stops in which text is uncovered.
const BETWEEN_STOPS: Duration = Duration::from_millis(1);

/// Puts covered text back, in as many stops as it takes. No thread that has left the arenas can enter them
/// again in between: nothing leads there. Returns the threads, stopped once more; `None` if they have to be
/// looked at again.
fn uncover(
    host: &dyn Host,
    mut stopped: Box<dyn StoppedThreads>,
    remote: &dyn TargetMemory,
    installed: &Installed,
    report: &mut Detached,
) -> Result<Option<Box<dyn StoppedThreads>>, TargetError> {
    loop {
        let begun = Instant::now();
        stopped.past_signals()?;
        let more = cover::uncover(host, &*stopped, remote, installed);
        report.standstill += begun.elapsed();
        match more {
            Ok(true) => {}
            Ok(false) => return Ok(Some(stopped)),
            // All threads are about to receive signals.
            Err(error) if error.is_momentary() => return Ok(None),
            Err(error) => return Err(error),
        }
        drop(stopped);
        std::thread::sleep(BETWEEN_STOPS);
        stopped = host.stop()?;
        if !installed.ledger.is_in(host.process())? {
            return Ok(None);
        }
    }
}

/// Moves every thread out of the arenas, and those that return from calls for a dead tracer to their own
/// code: their frames are in the ledger. Returns false if one is still there.
fn all_leave(
    stopped: &mut dyn StoppedThreads,
    host: &dyn Host,
    remote: &dyn TargetMemory,
    installed: &Installed,
    round: u32,
) -> Result<bool, TargetError> {
    let patience = PATIENCE * (1 << round.min(MOST_DOUBLINGS));
    let left = match leave(stopped, installed, patience) {
        Ok(true) => send_home(stopped, host, remote).map(|any| !any),
        left => left,
    };
    match left {
        // While it was let run, the thread has reached a place where it cannot stop; the others
        // must not stay stopped to wait for it.
        Err(TargetError::Unstoppable { .. }) => Ok(false),
        left => left,
    }
}

/// Time for which it may wait for a processor in each.
const SCHEDULED_LIMIT: Duration = Duration::from_millis(100);

/// Lets threads finish the calls that a killed tracer made them issue. Returns true if there
/// were any: then the mappings may have changed.
///
/// Until they have finished, a session must not be unmapped: the frame through which they
/// return may lie in it.
///
/// # Errors
/// A thread cannot be resumed, or stopped again.
pub(crate) fn send_home(
    stopped: &mut dyn StoppedThreads,
    host: &dyn Host,
    remote: &dyn TargetMemory,
) -> Result<bool, TargetError> {
    let mut any = false;
    let mut index = 0;
    let mut moments = 0;
    while let Some(thread) = stopped.threads().get(index).copied() {
        if moments < MOMENTS && host.is_orphan(&thread, remote) {
            any = true;
            let pause = if moments < 8 { 0 } else { 20 << (moments / 8) };
            moments += 1;
            stopped.let_run(index, Duration::from_micros(pause), SCHEDULED_LIMIT)?;
        } else {
            index += 1;
            moments = 0;
        }
    }
    Ok(any)
}

/// True if nothing leads back into the arenas, which all threads have left, and no unwinder needs our
/// answer.
fn is_quiet(
    stopped: &dyn StoppedThreads,
    remote: &dyn TargetMemory,
    process: &Process,
    installed: &Installed,
    round: u32,
) -> Result<bool, TargetError> {
    Ok(unreferenced(stopped, remote, process, installed)?
        && (round >= UNWINDING_ROUNDS || asked(stopped, remote, process, installed)?))
}

/// Saves the content of session memory. The program runs meanwhile, since that may take long;
/// no thread writes records there any more: no byte and no return address leads to a detour,
/// and no thread is in one.
fn save_remains(
    process: &Process,
    remote: &dyn TargetMemory,
    installed: &Installed,
    save: &mut Save<'_>,
) -> Result<bool, TargetError> {
    let trace = installed.ledger.header(remote)?.trace();
    if let (Some(trace), Some(mapped)) = (trace, installed.shared_in(process)?) {
        let remains = Remains::read(process.pid() as i32, remote, mapped);
        let saved = save(&trace, remains);
        step("remains saved");
        return Ok(saved);
    }
    Ok(true)
}

/// Records that all bytes are restored. The recorder that made the session for this process,
/// and not for one that this process was forked from, must see that even when the ledger is
/// gone.
fn set_restored(
    process: &Process,
    remote: &dyn TargetMemory,
    installed: &Installed,
) -> Result<(), TargetError> {
    let ledger = &installed.ledger;
    ledger.note_state(remote, State::Restored)?;
    for extension in &installed.extensions {
        extension.note_state(remote, State::Restored)?;
    }
    let is_owned = ledger.header(remote)?.pid() == process.pid();
    let Some(memory) = installed.shared_in(process)?.filter(|_| is_owned) else {
        return Ok(());
    };
    let address = memory.start + header::STATE as u64;
    let (pid, word) = (process.pid() as i32, State::Restored as u32);
    write(pid, remote, address, &word.to_le_bytes())?;
    step("state shown");
    Ok(())
}

/// Releases a thread that waits in a guard until the probes are removed (`capriole_filtering`
/// in `resident.c`). A session that was never armed may have no such word.
fn say_left(
    process: &Process,
    remote: &dyn TargetMemory,
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

/// Decrements the reference counters: the program need not reach the probes any more.
fn lower_references(
    process: &Process,
    remote: &dyn TargetMemory,
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

/// Returns one change for each address, with the state of its bytes. Probes of a session may have
/// been at the same site one after the other, each with a jump of its own over the same bytes: the
/// one whose jump is there now is the one to be reverted, and for the others the bytes would look as
/// if another tool had changed them.
pub(crate) fn one_at_each_place<'c>(
    batch: &mut Batch<'_>,
    changes: Vec<&'c Change>,
) -> Vec<(&'c Change, Found)> {
    let rank = |found| match found {
        Found::After => 0,
        Found::Between => 1,
        Found::Before => 2,
        Found::Disturbed => 3,
        Found::Foreign => 4,
    };
    let mut found: BTreeMap<u64, (&Change, Found)> = BTreeMap::new();
    for change in changes {
        let now = batch.inspect(change);
        match found.entry(change.address) {
            Entry::Vacant(place) => drop(place.insert((change, now))),
            // Of two that fit equally well, the later.
            Entry::Occupied(mut place) if rank(now) <= rank(place.get().1) => {
                place.insert((change, now));
            }
            Entry::Occupied(_) => {}
        }
    }
    found.into_values().collect()
}

fn restore_bytes(
    pid: i32,
    remote: &dyn TargetMemory,
    installed: &Installed,
    report: &mut Detached,
) -> Result<(), TargetError> {
    let mut batch = Batch::new(pid, remote);
    // Exceptions must be able to unwind as long as a return address is replaced, and the program
    // must not see our signal actions.
    let changes = installed.changes.iter().filter(|change| !change.is_late());
    // Restore a site before the neighbour that made room for it, and the guards last.
    let (guards, others): (Vec<&Change>, Vec<&Change>) = changes.partition(|change| change.guard);
    let of = |phase| others.iter().copied().filter(move |c| c.phase == phase);
    let phases = installed.phases().rev();
    let mut steps: Vec<Vec<&Change>> = phases.map(|phase| of(phase).collect()).collect();
    steps.push(guards);
    for changes in steps {
        for (change, found) in one_at_each_place(&mut batch, changes) {
            match found {
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

/// Returns true if no unwinder is between reading a replaced return address from a stack and
/// looking it up. After the lookup it has the original address; before that it is in its own
/// code, and the lookup would fail once no probe answers any more. The address is in a register first,
/// and then on the unwinder's own stack.
fn asked(
    stopped: &dyn StoppedThreads,
    remote: &dyn TargetMemory,
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
    let is_between = |thread: &StoppedThread| {
        if !own.iter().any(|code| code.contains(&thread.pc())) {
            return false;
        }
        // Between the load from the stack and the store to where the unwinder keeps it.
        let is_loaded = |register: &u64| region.is_copy(remote, u64::MAX, *register);
        let stack = remote.read_some(thread.sp() & !7, UNWINDER_STACK);
        thread.general_registers().iter().any(is_loaded)
            || stack.is_ok_and(|stack| {
                let words = stack.as_chunks().0.iter();
                let mut words = words.zip((thread.sp() & !7..).step_by(8));
                words.any(|(word, at)| region.is_copy(remote, at, u64::from_le_bytes(*word)))
            })
    };
    Ok(!stopped.threads().iter().any(is_between))
}

/// Restores the return addresses, and then the bytes of the late changes. All threads are
/// stopped, none is in generated code, and none enters it any more except by a return.
fn restore_returns(
    process: &Process,
    remote: &dyn TargetMemory,
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

/// True if the program counter may be behind a breakpoint of ours: one at the start of a
/// change, permanent or temporary, or one inside a change.
fn behind_breakpoint(installed: &Installed, rip: u64) -> bool {
    let at = rip.wrapping_sub(1);
    installed.changes.iter().any(|change| {
        let offset = at.wrapping_sub(change.address) as usize;
        offset == 0 || offset < change.len && change.after[offset] == INT3
    })
}

/// True if a SIGTRAP is pending for a thread that does not block it.
pub(crate) fn sigtrap_pending(tid: i32) -> bool {
    is_pending(tid, &[libc::SIGTRAP])
}

/// Moves every thread out of the arenas. Returns `false` if one stays, for example because it has
/// got no processor while the threads stood still for as long as `patience`.
pub(crate) fn leave(
    stopped: &mut dyn StoppedThreads,
    installed: &Installed,
    patience: Duration,
) -> Result<bool, TargetError> {
    let mut index = 0;
    let mut moments = 0;
    while index < stopped.threads().len() {
        let thread = stopped.threads()[index];
        if behind_breakpoint(installed, thread.pc()) {
            // The thread has hit the breakpoint. Its handler runs next, and leads to the detour, as
            // always: we do nothing here that takes several steps and would be left half done if we were
            // killed. The handler stays until then.
            let about_to = thread.signal == libc::SIGTRAP;
            if about_to || sigtrap_pending(thread.tid) {
                let rest = patience.saturating_sub(stopped.elapsed());
                if moments >= MOMENTS || rest.is_zero() {
                    return Ok(false);
                }
                moments += 1;
                if about_to {
                    stopped.let_run(index, Duration::ZERO, rest)?;
                } else {
                    stopped.let_run_to_signal(index)?;
                }
                continue;
            }
        }
        if installed.holds(thread.pc()) {
            // A thread that a dead tracer has left waiting returns to its own code at once.
            let home = |arena: &Arena| {
                let entries = capriole_resident::entries(arena.start);
                let waits = entries.batch_waits..=entries.batch_home;
                waits.contains(&thread.pc()).then_some(entries.batch_home)
            };
            if let Some(home) = installed.arenas.iter().find_map(home) {
                stopped.move_to(index, home)?;
            }
            let rest = patience.saturating_sub(stopped.elapsed());
            if moments >= MOMENTS || rest.is_zero() {
                return Ok(false);
            }
            let pause = if moments < 8 { 0 } else { 20 << (moments / 8) };
            moments += 1;
            stopped.let_run(index, Duration::from_micros(pause), rest)?;
            continue; // the same one again, or its successor in the list
        }
        index += 1;
        moments = 0;
    }
    Ok(true)
}

/// True if no signal frame returns, and no thread's `rseq_cs` points, into the arenas. A
/// descriptor of a thread that is outside is no longer in use, and is cleared.
pub(crate) fn unreferenced(
    stopped: &dyn StoppedThreads,
    remote: &dyn TargetMemory,
    process: &Process,
    installed: &Installed,
) -> Result<bool, TargetError> {
    let maps = process.maps()?;
    let in_arena = |word: u64| installed.holds(word);
    let routines = installed.routines.as_ref();
    if routines.is_some_and(|routines| is_called(stopped, remote, &maps, routines)) {
        return Ok(false);
    }
    let in_routine = |word: u64| routines.is_some_and(|routines| routines.text.contains(&word));
    let mut referenced = false;
    let restorers: Vec<u64> = match installed.actions.is_empty() {
        true => Vec::new(),
        false => {
            let restorer = |arena: &Arena| capriole_resident::entries(arena.start).restorer;
            installed.arenas.iter().map(restorer).collect()
        }
    };
    let lowest = restorers.iter().copied().min().unwrap_or(u64::MAX);
    let may_be_restorer = lowest..=restorers.iter().copied().max().unwrap_or(0);
    // Signal frames of our handlers, which return through our restorer.
    let mut frames = std::collections::BTreeSet::new();
    stacks::scan(stopped, remote, &maps, |word| {
        let leads_back = |rip| in_arena(rip) || in_routine(rip);
        referenced |= word.saved_rip.is_some_and(leads_back);
        if may_be_restorer.contains(&word.value) && restorers.contains(&word.value) {
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
    for index in 0..stopped.threads().len() {
        let Some(rseq) = stopped.restartable_sequences(index) else {
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

/// Maximum size of the records of threads, bytes.
const MAX_RECORDS: u64 = 64 << 20;

/// True if a thread is in one of the routines of the program that detours call, or in what they call.
/// A thread that has left a handler by a jump has its record still, but its stack pointer is above the
/// frame.
fn is_called(
    stopped: &dyn StoppedThreads,
    remote: &dyn TargetMemory,
    maps: &[Mapping],
    routines: &Routines,
) -> bool {
    let size = routines.records.end.saturating_sub(routines.records.start);
    let bytes = match size <= MAX_RECORDS {
        true => remote.read_some(routines.records.start, size as usize),
        false => Ok(Vec::new()),
    };
    let bytes = bytes.unwrap_or_default();
    let record_size = (routines.record_size as usize).max(16);
    let word = |record: &[u8], index: usize| {
        let word = record.as_chunks().0.get(index);
        word.map_or(0, |word| u64::from_le_bytes(*word))
    };
    let frames: BTreeMap<u64, u64> = bytes
        .chunks(record_size)
        .map(|record| (word(record, 1), word(record, 0)))
        .filter(|(_, frame)| *frame != 0)
        .collect();
    stopped.threads().iter().any(|thread| {
        let frame = frames.get(&thread.thread_pointer());
        routines.text.contains(&thread.pc())
            || frame.is_some_and(|frame| !is_above(thread, maps, *frame))
    })
}

fn restore_actions(
    host: &dyn Host,
    remote: &dyn TargetMemory,
    installed: &Installed,
    stopped: Box<dyn StoppedThreads>,
) -> Result<(), TargetError> {
    let agent = Agent::choose(host, stopped, remote).or_else(|_| Agent::hire(host, remote))?;
    restore_actions_of(&agent, remote, installed)?;
    agent.dismiss();
    // A process that shares the memory may have inherited the actions by fork, and has its own
    // copy of them.
    for pid in host.sharing_memory()? {
        let Ok(other) = Process::open(pid as u32) else {
            continue; // it has ended
        };
        let restored = Agent::hire(&*host.other(&other), remote).and_then(|agent| {
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

/// Makes the resident put its handlers before no further actions of the program. Returns true if one may
/// be there; else no action has to be restored. All threads are stopped.
fn handlers_stand(
    pid: i32,
    remote: &dyn TargetMemory,
    installed: &Installed,
) -> Result<bool, TargetError> {
    if installed.actions.is_empty() {
        return Ok(false);
    }
    let ledger = &installed.ledger;
    actions::end(pid, remote, ledger)?;
    step("signal actions not followed");
    let own = ledger.header(remote)?.own();
    if !actions::replaced(pid, remote, own, &installed.actions)?.is_empty() {
        return Ok(true);
    }
    ledger.forget_actions(remote)?;
    Ok(false)
}

fn restore_actions_of(
    agent: &Agent,
    remote: &dyn TargetMemory,
    installed: &Installed,
) -> Result<(), TargetError> {
    let (pid, ledger) = (agent.pid(), &installed.ledger);
    let own = ledger.header(remote)?.own();
    for action in actions::replaced(pid, remote, own, &installed.actions)? {
        let current = agent.signal_action(remote, ledger, action.signal, None)?;
        // The program may have installed a handler of its own meanwhile: keep it.
        if current[0] == action.handler {
            let own = actions::newest(pid, remote, own, &action)?;
            agent.signal_action(remote, ledger, action.signal, Some(own))?;
            step("signal handler removed");
        }
    }
    Ok(())
}

fn unmap(
    host: &dyn Host,
    remote: &dyn TargetMemory,
    installed: &Installed,
    stopped: Box<dyn StoppedThreads>,
) -> Result<(), TargetError> {
    let process = host.process();
    let agent = Agent::choose(host, stopped, remote).or_else(|_| Agent::hire(host, remote))?;
    agent.unmap(process, remote, installed)?;
    agent.dismiss();
    Ok(())
}

impl Agent {
    /// Unmaps stubs, then arenas, session memory, and last the ledger, which records where all the
    /// others are. No thread may be in any of them.
    fn unmap(
        &self,
        process: &Process,
        remote: &dyn TargetMemory,
        installed: &Installed,
    ) -> Result<(), TargetError> {
        // The frame must not lie in memory that is being unmapped.
        let place = self.stack()?;
        self.with(remote, place, |i| {
            let mut unmap = |start: u64, len: u64, what| {
                let unmapped = i.call(libc::SYS_munmap, [start, len, 0, 0, 0, 0])?;
                unmapped.map_err(self.refused(what))
            };
            for range in &installed.stubs {
                unmap(range.start, range.end - range.start, "unmap stubs")?;
            }
            step("stubs unmapped");
            for arena in &installed.arenas {
                unmap(arena.start, arena.len, "unmap code")?;
                step("arena unmapped");
            }
            if let Some(memory) = installed.memory_in(process)? {
                let len = memory.end - memory.start;
                unmap(memory.start, len, "unmap shared memory")?;
                step("session memory unmapped");
            }
            // The first ledger last: without it an extension would be a session of its own.
            let ledgers = installed.extensions.iter().chain([&installed.ledger]);
            for ledger in ledgers {
                unmap(ledger.start, ledger.len, "unmap the journal")?;
                step("ledger unmapped");
            }
            Ok(())
        })
    }
}
