//! Sessions found in a process: another tracer's, or left by a dead one.
//!
//! Each kind of session is found, refused and cleared away by itself: a recorder has nothing to do with
//! the library's session beside it ([`other`](crate::other)), living or dead, and the other way round.
//! Only `capriole detach` removes the remains of both.
//!
//! A session in another process may be any memory with that name. It must be on the kernel's
//! own device for memfds, which cannot be mounted. Journals are bounded
//! ([`MAX_ENTRIES`](capriole_ledger::MAX_ENTRIES)); journals and arenas are read in pieces, from
//! one budget per process. The owner of a recording is identified by a fact that cannot be
//! forged: the open memfd of a process of the same user named `capriole`.

use crate::detach::{Detached, detach, detach_and_save, send_home};
use crate::installed::Installed;
use crate::returns::Region;
use crate::session::{Agent, SESSION_PATH, is_of_session, is_session};
use capriole_host::error::TargetError;
use capriole_host::host::{Host, TargetMemory};
use capriole_host::memfd;
use capriole_ledger::change::Change;
use capriole_ledger::remains::{Save, TraceId};
use capriole_ledger::{Arena, Entry, Kind, Ledger, MemoryAt, is_ledger};
use capriole_proc::maps::{COVER_NAME, Mapping, containing};
use capriole_proc::process::Process;
use capriole_ring::layout::State;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A session that was found mapped in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSession {
    /// Everything that the session has installed in the process.
    pub installed: Installed,
    /// The tracer that made it, if it is still alive.
    pub owner: Option<u32>,
    /// State of the session.
    pub state: State,
    /// The trace that it was recorded to, if it was.
    pub trace: Option<TraceId>,
    /// The directory of that trace, as the process tells it, which may have been changed by the program.
    pub directory: Option<PathBuf>,
    /// True if it was taken out, but for the memory.
    pub kept: bool,
    /// True if the process has inherited it by fork.
    pub inherited: bool,
    /// Inode of session memory: the same in every process that shares it. 0: none is mapped.
    pub inode: u64,
}

/// Number of arena bytes read at once.
const STRETCH: usize = 64 << 10;
/// Maximum number of sessions in a process: one, and those that dead tracers left.
const MAX_SESSIONS: usize = 64;
/// Maximum number of journal entries of a process, over all its journals.
const MAX_ENTRIES: u64 = 1 << 22;
/// Maximum number of bytes of a process's arenas that are compared with zero.
const MAX_UNWRITTEN: u64 = 1 << 30;

/// Attempts to read sessions that are just being taken out.
const FIND_TRIES: u32 = 5;

/// Number of searches for the children of a program that keeps forking.
const FORK_ROUNDS: usize = 10;

/// Returns our own process id and start time.
pub(crate) fn own_identity() -> (u32, u64) {
    let pid = std::process::id();
    (pid, Process::open(pid).map_or(0, |p| p.start_time()))
}

/// Finds all sessions mapped in a process, of both kinds.
///
/// # Errors
/// See [`find_of`].
pub fn find(host: &dyn Host) -> Result<Vec<FoundSession>, TargetError> {
    let mut found = find_of(host, Kind::Recorder)?;
    found.extend(find_of(host, Kind::Library)?);
    Ok(found)
}

/// Finds all sessions of one kind mapped in a process, by its ledgers. Memory that a process has mapped by a
/// descriptor of its own is skipped: a recorder, and a writer of messages
/// ([`outside::writer`](crate::outside::writer)), have the memory of sessions in other processes.
///
/// # Errors
/// The memory cannot be read, a ledger is invalid, or there is session memory without a ledger:
/// then it is unknown what else is installed.
pub fn find_of(host: &dyn Host, kind: Kind) -> Result<Vec<FoundSession>, TargetError> {
    let ledgers = || -> Result<Vec<Ledger>, TargetError> {
        let process = host.process();
        Ok(Ledger::of(kind, process.pid() as i32, &process.maps()?).collect())
    };
    let mut tries = 0;
    loop {
        let before = ledgers()?;
        let found = find_now(host, kind);
        tries += 1;
        // Its owner may just be taking it out.
        if found.is_ok() || tries == FIND_TRIES || ledgers()? == before {
            return found;
        }
    }
}

fn find_now(host: &dyn Host, kind: Kind) -> Result<Vec<FoundSession>, TargetError> {
    let process = host.process();
    let pid = process.pid() as i32;
    let maps = process.maps()?;
    let mut memories: Vec<&Mapping> = maps.iter().filter(|m| is_of_session(m, kind)).collect();
    let ledgers: Vec<Ledger> = Ledger::of(kind, pid, &maps).collect();
    if memories.is_empty() && ledgers.is_empty() {
        return Ok(Vec::new());
    }
    if ledgers.len().max(memories.len()) > MAX_SESSIONS {
        let what = "too many mappings of it";
        return Err(TargetError::Damaged { pid, what });
    }
    let remote = host.memory()?;
    let mut left = (MAX_ENTRIES, MAX_UNWRITTEN);
    let sessions = ledgers.into_iter();
    let sessions = sessions.map(|ledger| read_session(&remote, &maps, ledger, &mut left));
    let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
    let mut sessions = together(sessions);
    for Found { session, .. } in &mut sessions {
        if let Some(at) = session.installed.memory {
            let is_its = |m: &&Mapping| m.start == at.base && m.inode == at.inode;
            if let Some(index) = memories.iter().position(is_its) {
                session.inode = memories.swap_remove(index).inode;
            }
        }
    }
    let reopened = match memories.is_empty() {
        true => BTreeSet::new(),
        false => reopened(process.pid()),
    };
    for mapping in memories {
        // The tracer died before it could record where its memory is. Nothing else is installed then.
        let is_its = |found: &&mut Found| {
            found.session.installed.memory.is_none() && found.memory == mapping.inode
        };
        let Some(Found { session, .. }) = sessions.iter_mut().find(is_its) else {
            if reopened.contains(&mapping.inode) {
                continue;
            }
            return Err(TargetError::Damaged {
                pid,
                what: "it has no ledger: another version of capriole has made it, and has to take it out, or the program itself has",
            });
        };
        session.inode = mapping.inode;
        session.installed.memory = Some(MemoryAt {
            base: mapping.start,
            size: mapping.end - mapping.start,
            inode: mapping.inode,
        });
    }
    Ok(sessions.into_iter().map(|found| found.session).collect())
}

/// Contents of a ledger.
struct Found {
    session: FoundSession,
    /// Inode of the session memory that is mapped, or was about to be; 0: none.
    memory: u64,
    /// Address of the ledger that this one extends; 0: none.
    base: u64,
}

/// Makes one session of each ledger and its extensions. An extension whose first ledger is gone stays
/// a session by itself: nothing is left installed that no session lists.
fn together(found: Vec<Found>) -> Vec<Found> {
    let (extensions, mut firsts): (Vec<Found>, Vec<Found>) =
        found.into_iter().partition(|found| found.base != 0);
    let mut orphans = Vec::new();
    for extension in extensions {
        let own = &extension.session.installed;
        let is_its = |first: &&mut Found| {
            let installed = &first.session.installed;
            installed.ledger.start == extension.base && installed.memory == own.memory
        };
        match firsts.iter_mut().find(is_its) {
            Some(first) => first.session.installed.extend(extension.session.installed),
            None => orphans.push(extension),
        }
    }
    firsts.append(&mut orphans);
    for found in &mut firsts {
        let installed = &mut found.session.installed;
        // The word that holds a counter's state is removed with the arena, at the end.
        let arenas = &installed.arenas;
        let references = &mut installed.references;
        references.retain(|reference| arenas.iter().any(|a| a.contains(reference.state)));
        installed.stubs.sort_unstable_by_key(|range| range.start);
    }
    firsts
}

/// Returns the inodes of session memory that a process has opened itself.
fn reopened(pid: u32) -> BTreeSet<u64> {
    let names = Kind::ALL.map(Kind::memory_name);
    let held = memfd::descriptors(pid, |name| names.contains(&name)).into_iter();
    let reopened = held.filter(|descriptor| descriptor.reopened);
    reopened.map(|descriptor| descriptor.inode).collect()
}

fn read_session(
    remote: &dyn TargetMemory,
    maps: &[Mapping],
    ledger: Ledger,
    (entries, unwritten): &mut (u64, u64),
) -> Result<Found, TargetError> {
    let header = ledger.header(remote)?;
    let mut session = FoundSession {
        installed: Installed {
            ledger,
            extensions: Vec::new(),
            memory: None,
            arenas: Vec::new(),
            returns: None,
            stubs: Vec::new(),
            changes: Vec::new(),
            references: Vec::new(),
            actions: Vec::new(),
            routines: None,
            stays: false,
        },
        owner: None,
        state: State::Building,
        trace: None,
        directory: None,
        kept: false,
        inherited: false,
        inode: 0,
    };
    if !header.is_begun()? {
        // The tracer died before it could write to the ledger: nothing else is installed.
        return Ok(Found {
            session,
            memory: 0,
            base: 0,
        });
    }
    session.state = header.state()?;
    session.trace = header.trace();
    session.directory = session.trace.and_then(|_| ledger.trace_directory(remote));
    session.kept = header.is_kept();
    session.inherited = header.pid() != ledger.pid as u32;
    let installed = &mut session.installed;
    installed.memory = header.memory();
    installed.arenas = header.arenas()?;
    installed
        .arenas
        .retain(|arena| is_arena(remote, maps, arena, unwritten));
    installed.returns = Region::at(remote, maps, header.returns());
    installed.stubs = stubs_in(maps, &header.stubs());
    *entries = entries
        .checked_sub(u64::from(header.entries()))
        .ok_or(TargetError::Damaged {
            pid: ledger.pid,
            what: "its journal is too long",
        })?;
    header.journal(remote, |entry| match entry {
        Entry::Reference(reference) => installed.references.push(reference),
        // Sites of libraries that were unloaded meanwhile no longer exist.
        Entry::Change(change) => {
            if containing(maps, change.address).is_some_and(|m| m.perms.execute) {
                installed.changes.push(change);
            }
        }
    })?;
    installed.actions = header.actions();
    installed.routines = header.routines();
    let (owner, started) = header.owner();
    let alive = Process::open(owner).is_ok_and(|p| p.start_time() == started && p.is_alive());
    session.owner = alive.then_some(owner);
    Ok(Found {
        session,
        memory: header.memory_inode(),
        base: header.base(),
    })
}

/// True if probes have been written into a process and not been removed.
///
/// # Errors
/// See [`find`].
pub fn is_probed(host: &dyn Host) -> Result<bool, TargetError> {
    let process = host.process();
    let pid = process.pid() as i32;
    let maps = process.maps()?;
    let remote = host.memory()?;
    for ledger in Ledger::all(pid, &maps) {
        let header = ledger.header(&remote)?;
        if header.is_begun()? && header.state()? == State::Armed && header.entries() > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the ranges where a session's stubs are mapped, by the inodes of their memory;
/// adjacent mappings are merged.
pub(crate) fn stubs_in(maps: &[Mapping], inodes: &[u64]) -> Vec<Range<u64>> {
    let names = Kind::ALL.map(|kind| format!("/memfd:{}", kind.stubs_name()));
    let is_named = |m: &Mapping| {
        names
            .iter()
            .any(|n| m.path.as_encoded_bytes() == n.as_bytes())
    };
    let is_stub = |m: &&Mapping| m.inode != 0 && inodes.contains(&m.inode) && is_named(m);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for mapping in maps.iter().filter(is_stub) {
        match ranges.last_mut() {
            Some(last) if last.end == mapping.start => last.end = mapping.end,
            _ => ranges.push(mapping.start..mapping.end),
        }
    }
    ranges
}

/// True if an arena of ours is mapped there: never unmap anything else. An arena that has not
/// been written to yet holds zeros.
fn is_arena(
    remote: &dyn TargetMemory,
    maps: &[Mapping],
    arena: &Arena,
    unwritten: &mut u64,
) -> bool {
    let Some(end) = arena.start.checked_add(arena.len) else {
        return false;
    };
    let mapped = maps.iter().any(|m| {
        m.start <= arena.start && end <= m.end && m.perms.execute && !m.perms.write && m.inode == 0
    });
    if !mapped {
        return false;
    }
    let mut magic = [0; 4];
    if remote.read(arena.start, &mut magic).is_ok() && magic == capriole_resident::MAGIC {
        return true;
    }
    let Some(left) = unwritten.checked_sub(arena.len) else {
        return false;
    };
    *unwritten = left;
    (arena.start..end).step_by(STRETCH).all(|at| {
        let len = (end - at).min(STRETCH as u64) as usize;
        let bytes = remote.read_some(at, len);
        bytes.is_ok_and(|bytes| bytes.iter().all(|b| *b == 0))
    })
}

/// Stops the process once for [`send_home`].
fn wait_for_orphans(host: &dyn Host) -> Result<(), TargetError> {
    let remote = host.memory()?;
    send_home(&mut *host.stop()?, host, &remote).map(|_| ())
}

/// Inodes of the memory of our own process's sessions that are in use.
static IN_USE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Registration of a session that our own process uses. A later attach by the same process refuses
/// a target that has such a session (the session's own process, or a forked child of it), instead of
/// taking it for what a failed attach has left. Ends when dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    inode: u64,
}

impl InUse {
    /// Registers the session whose memory has this inode, which no other memory has while the
    /// session's descriptor of it is open.
    pub(crate) fn of(inode: u64) -> InUse {
        in_use().insert(inode);
        InUse { inode }
    }

    /// Ends the registration.
    pub(crate) fn end(&self) {
        in_use().remove(&self.inode);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the registered inodes. A set is valid whoever panicked while holding the lock.
fn in_use() -> MutexGuard<'static, BTreeSet<u64>> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FoundSession {
    /// Returns the kind of the session.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.installed.ledger.kind
    }

    /// True if our own process has made it, and does not use it.
    fn is_own_remains(&self) -> bool {
        self.owner == Some(std::process::id()) && !in_use().contains(&self.inode)
    }
}

/// Removes all remains of dead tracers of one kind from a process, before a new attach.
///
/// # Errors
/// [`TargetError::AlreadyRecorded`] if a living one of that kind has probes there, also if that is our own
/// process: further probes are [added](crate::attach::Attached::add) to its session.
/// [`TargetError::InUse`]: the program runs a handler that a probe has called.
pub(crate) fn clear_the_way(host: &dyn Host, kind: Kind) -> Result<(), TargetError> {
    let process = host.process();
    let pid = process.pid() as i32;
    if !find_of(host, kind)?.is_empty() {
        wait_for_orphans(host)?;
    }
    let sessions = find_of(host, kind)?;
    // All are checked first: what looks like the remains of a dead tracer may be the ledger that a
    // living one is just adding to its session. This includes the time in which it removes its probes.
    // What a child has inherited and taken out stays mapped while something on a stack leads there.
    let is_parted = |session: &FoundSession| session.inherited && session.state == State::Restored;
    let living = sessions.iter();
    let mut living = living.filter(|session| !session.is_own_remains() && !is_parted(session));
    if let Some(owner) = living.find_map(|session| session.owner) {
        return Err(TargetError::AlreadyRecorded {
            pid,
            owner: owner as i32,
        });
    }
    for session in sessions {
        take_out(host, session)?;
    }
    close_leaked(host, kind)
}

/// Takes out what a dead tracer has left. A thread that is in a handler of the program's own is going
/// to return into a detour, and from there to an instruction that a new probe might be about to change.
/// Copies of which the program may have addresses stay; they do so as well, see [`Kept`].
fn take_out(host: &dyn Host, mut session: FoundSession) -> Result<(), TargetError> {
    let pid = host.process().pid() as i32;
    let is_own = session.kind() == Kind::Library;
    session.installed.stays |= is_own && !host.copied().is_empty();
    match detach(host, &session.installed)?.lingering && is_own {
        true => Err(TargetError::InUse { pid }),
        false => Ok(()),
    }
}

/// Removes what sessions of a program that probes itself have left, all of them: the program has no
/// addresses there any more.
///
/// # Errors
/// See [`detach`]. A session that somebody uses is left.
pub fn detach_left(host: &dyn Host) -> Result<(), TargetError> {
    let is_left = |session: &FoundSession| {
        session.owner.is_none() || session.inherited || session.is_own_remains()
    };
    detach_each(host, is_left, |session| {
        detach(host, &session.installed).map(drop)
    })
}

/// Takes the sessions out that a program has made for its own probes, and `which` chooses.
fn detach_each(
    host: &dyn Host,
    which: impl Fn(&FoundSession) -> bool + Sync,
    take_out: impl Fn(FoundSession) -> Result<(), TargetError> + Send,
) -> Result<(), TargetError> {
    let chosen = || -> Result<Vec<FoundSession>, TargetError> {
        let mut found = find_of(host, Kind::Library)?;
        found.retain(&which);
        Ok(found)
    };
    if chosen()?.is_empty() {
        return Ok(());
    }
    host.check_stops()?;
    host.apart(|| {
        wait_for_orphans(host)?;
        chosen()?.into_iter().try_for_each(take_out)
    })
}

/// Changes of earlier sessions of the same kind whose code is mapped still, because the program may have
/// addresses there: the code goes on behind the displaced instructions.
#[derive(Debug, Default)]
pub(crate) struct Kept(Vec<Change>);

impl Kept {
    /// Finds them, once the way is [clear](clear_the_way).
    pub(crate) fn find(host: &dyn Host, kind: Kind) -> Result<Kept, TargetError> {
        let copied = host.copied();
        let sessions = match copied.is_empty() {
            true => Vec::new(),
            false => find_of(host, kind)?,
        };
        let changes = sessions.into_iter().filter(|found| found.kept);
        let mut changes: Vec<Change> = changes.flat_map(|found| found.installed.changes).collect();
        // Threads have left the code of all others.
        changes.retain(|change| copied.iter().any(|at| change.claim().contains(at)));
        Ok(Kept(changes))
    }

    /// True if the code of an earlier session might go on inside the bytes of a change, which displaces
    /// other instructions than the earlier change did.
    pub(crate) fn goes_on_in(&self, change: &Change) -> bool {
        let claim = change.claim();
        self.0.iter().any(|kept| {
            let old = kept.claim();
            let meets = old.start < claim.end && claim.start <= old.end;
            meets && (kept.address, old) != (change.address, claim.clone())
        })
    }
}

/// Removes the sessions of one kind that our own process has made in a process and does not use.
///
/// # Errors
/// See [`detach`].
pub fn remove_own(host: &dyn Host, kind: Kind) -> Result<(), TargetError> {
    for session in find_of(host, kind)? {
        if session.is_own_remains() {
            detach(host, &session.installed)?;
        }
    }
    close_leaked(host, kind)
}

/// Time for which a descriptor must have been there before it is closed: a recorder has
/// descriptors without the mark of [`memfd::is_reopened`] for microseconds, while it attaches.
const LEAKED_FOR: Duration = Duration::from_millis(50);

/// Closes memfds of ours that a tracer left open because it was killed at just that moment, but not
/// those that the process, being a recorder, has opened itself.
fn close_leaked(host: &dyn Host, kind: Kind) -> Result<(), TargetError> {
    let process = host.process();
    let find = || {
        let names = [kind.memory_name(), kind.ledger_name(), kind.stubs_name()];
        // A cover may be of either kind.
        let is_ours = |name: &str| names.contains(&name) || name.starts_with(COVER_NAME);
        let mut found = memfd::descriptors(process.pid(), is_ours);
        found.retain(|descriptor| !descriptor.reopened);
        found
    };
    let mut leaked = find();
    if !leaked.is_empty() {
        std::thread::sleep(LEAKED_FOR);
        let still = find();
        leaked.retain(|descriptor| still.contains(descriptor));
    }
    if leaked.is_empty() || process.pid() == std::process::id() {
        return Ok(());
    }
    let remote = host.memory()?;
    let agent = Agent::hire(host, &remote)?;
    for descriptor in leaked {
        agent.close(&remote, descriptor.number as u64)?;
    }
    agent.dismiss();
    Ok(())
}

/// Removes every probe, including a dead tracer's, from a process and from the processes that
/// share its session: its forked children, or a child's parent. Probes that the program has put into
/// itself stay as long as its helper lives.
///
/// # Errors
/// [`TargetError::NothingAttached`] if there are none, [`TargetError::ProbesItself`] if there are no
/// others.
pub fn detach_all(host: &dyn Host) -> Result<Detached, TargetError> {
    detach_all_and_save(host, &Kind::ALL, None)
}

/// Detaches as [`detach_all`] does, sessions of these kinds, and saves the records that dead recorders have left in
/// session memory before that memory is unmapped. (A living recorder writes them to its trace
/// itself.)
///
/// # Errors
/// See [`detach_all`].
pub fn detach_all_and_save(
    host: &dyn Host,
    kinds: &[Kind],
    save: Option<&mut Save<'_>>,
) -> Result<Detached, TargetError> {
    host.preflight()?;
    host.check_stops()?;
    host.apart(|| detach_living(host, kinds, save))
}

fn detach_living(
    host: &dyn Host,
    kinds: &[Kind],
    mut save: Option<&mut Save<'_>>,
) -> Result<Detached, TargetError> {
    let process = host.process();
    let pid = process.pid() as i32;
    wait_for_orphans(host)?;
    let mut sessions = Vec::new();
    for kind in kinds {
        sessions.extend(find_of(host, *kind)?);
    }
    let mut helper = None;
    sessions.retain(|session| {
        let owner = session.owner.filter(|_| session.kind() == Kind::Library);
        helper = helper.or(owner);
        owner.is_none() && !session.kept
    });
    if sessions.is_empty() {
        close_leaked(host, Kind::Recorder)?;
        return Err(match helper {
            Some(helper) => TargetError::ProbesItself {
                pid,
                helper: helper as i32,
            },
            None => {
                close_leaked(host, Kind::Library)?;
                TargetError::NothingAttached { pid }
            }
        });
    }
    let mut total = Detached::default();
    for mut session in sessions {
        // The program's library has the addresses of copies and handlers, until its next helper has given
        // it others, or it is told to forget them.
        session.installed.stays = session.kind() == Kind::Library;
        // Reborrow for each call.
        let mut save =
            reborrow(&mut save).filter(|_| session.owner.is_none() && session.trace.is_some());
        let memory = session.installed.memory.filter(|_| session.inode != 0);
        // Children first: then the records saved when the process itself is detached are complete.
        // Children that it forks meanwhile are detached after it.
        if save.is_some()
            && let Some(memory) = &memory
        {
            let save = reborrow(&mut save);
            // A child that fails here is tried again after the process, and reported then.
            let kind = session.kind();
            if let Ok(children) = detach_children(host, kind, memory, process.pid(), save) {
                total.add_children(&Detached {
                    lingering: false,
                    damaged: 0,
                    ..children
                });
            }
        }
        let one = detach_and_save(host, &session.installed, reborrow(&mut save))?;
        total.restored += one.restored;
        total.foreign += one.foreign;
        total.repaired += one.repaired;
        total.lingering |= one.lingering;
        total.kept |= one.kept;
        total.standstill += one.standstill;
        total.out = total.out.max(one.out);
        if let Some(memory) = &memory {
            total.add_children(&detach_children(
                host,
                session.kind(),
                memory,
                process.pid(),
                reborrow(&mut save),
            )?);
        }
    }
    close_leaked(host, Kind::Recorder)?;
    Ok(total)
}

/// Returns the processes, other than `except`, that share session memory with a target: its forked
/// children, or the parent of one.
pub fn sharing(memory: &MemoryAt, except: u32) -> Vec<Process> {
    Process::others_that_map(SESSION_PATH)
        .filter(|p| p.pid() != except && shares(p, memory))
        .collect()
}

/// True if a process has session memory mapped as a process of the program has it: with a
/// ledger, or at the program's address. A recorder and a writer of messages (`outside::writer`)
/// have it mapped elsewhere, by a descriptor of their own; the ledgers that they may have belong to
/// recordings of themselves.
pub(crate) fn shares(process: &Process, memory: &MemoryAt) -> bool {
    let Ok(maps) = process.maps() else {
        return false;
    };
    let mut mapped = maps
        .iter()
        .filter(|m| is_session(m) && m.inode == memory.inode);
    mapped.next().is_some_and(|first| {
        let at_base = |m: &Mapping| m.start == memory.base;
        at_base(first)
            || mapped.any(at_base)
            || maps.iter().any(is_ledger) && !reopened(process.pid()).contains(&memory.inode)
    })
}

/// Removes the probes from the other processes that share a session, each by its own ledger:
/// the ledger of one must not affect another. A child may fork while its siblings are examined:
/// the search is repeated until it finds no new process.
///
/// # Errors
/// The first error of a process, after all the others were done.
pub(crate) fn detach_children(
    host: &dyn Host,
    kind: Kind,
    memory: &MemoryAt,
    except: u32,
    mut save: Option<&mut Save<'_>>,
) -> Result<Detached, TargetError> {
    let mut report = Detached::default();
    let mut seen = BTreeSet::new();
    let mut result = Ok(());
    for _ in 0..FORK_ROUNDS {
        let mut children = sharing(memory, except);
        children.retain(|child| seen.insert((child.pid(), child.start_time())));
        if children.is_empty() {
            break;
        }
        for child in children {
            let host = host.other(&child);
            match detach_child(&*host, kind, memory.inode, reborrow(&mut save)) {
                Ok(one) => report.add_children(&one),
                Err(_) if child.is_over() => {}
                // The child has damaged its own ledger, and cannot be restored.
                Err(TargetError::Damaged { .. }) => report.damaged += 1,
                Err(error) => result = result.and(Err(error)),
            }
        }
    }
    result.map(|()| report)
}

/// Removes the probes that a program has put into itself and a process has inherited from it by fork,
/// from that process alone. Its parent keeps them, and a recorder those that it has in the child.
///
/// # Errors
/// See [`detach_all`] and [`TargetError::InUse`]; that there are none is no error.
pub fn detach_inherited(host: &dyn Host) -> Result<(), TargetError> {
    host.preflight()?;
    detach_each(
        host,
        |session| session.inherited,
        |session| take_out(host, session),
    )
}

/// Removes the probes of the session with this inode from one of the processes that share it.
///
/// # Errors
/// See [`detach`] and [`find`].
pub(crate) fn detach_sharing(
    host: &dyn Host,
    kind: Kind,
    inode: u64,
) -> Result<Detached, TargetError> {
    detach_child(host, kind, inode, None)
}

fn detach_child(
    host: &dyn Host,
    kind: Kind,
    inode: u64,
    mut save: Option<&mut Save<'_>>,
) -> Result<Detached, TargetError> {
    let mut report = Detached::default();
    for session in find_of(host, kind)? {
        if session.inode == inode {
            let save = reborrow(&mut save);
            report.add_children(&detach_and_save(host, &session.installed, save)?);
        }
    }
    Ok(report)
}

/// Reborrows `save` for one call.
fn reborrow<'a, 'b>(save: &'a mut Option<&mut Save<'b>>) -> Option<&'a mut Save<'b>> {
    save.as_mut().map(|save| &mut **save)
}

impl Detached {
    /// Adds the results of children.
    pub(crate) fn add_children(&mut self, children: &Detached) {
        self.restored += children.restored;
        self.repaired += children.repaired;
        self.lingering |= children.lingering;
        self.kept |= children.kept;
        self.damaged += children.damaged;
        self.out = self.out.max(children.out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capriole_ledger::change::Uses;

    #[test]
    fn code_goes_on_only_behind_the_same_instructions() {
        let change = |address, ahead| Change {
            address,
            len: 5,
            before: Default::default(),
            after: Default::default(),
            detour: 0,
            uses: Uses { back: 0, ahead },
            phase: 0,
            guard: false,
            unwinder: false,
            breakpoint: true,
            action: false,
        };
        let kept = Kept(vec![change(100, 7), change(200, 5)]);
        for (address, ahead, goes_on) in [
            (100, 7, false),
            (100, 9, true),
            (100, 5, true),
            (104, 5, true),
            (110, 5, false),
            (198, 5, true),
            (200, 5, false),
            (300, 5, false),
        ] {
            let found = kept.goes_on_in(&change(address, ahead));
            assert_eq!(found, goes_on, "{address} {ahead}");
        }
    }
}
