//! Sessions found in a process: another tracer's, or what a dead one left.

use crate::counter::{Reference, ReferenceCounter};
use crate::detach::{Action, Detached, Installed, detach};
use crate::error::TargetError;
use crate::maps::{Device, Mapping};
use crate::memory::RemoteMemory;
use crate::patch::Change;
use crate::process::Process;
use crate::returns::Region;
use crate::session::{Agent, Arena, MEMFD_NAME, STUBS_NAME};
use crate::threads::Stopped;
use crate::{gadgets, inject};
use capriole_ring::Memory;
use capriole_ring::layout::{self, State, header, journal};
use std::ops::Range;
use std::time::Duration;

/// A session that was found mapped in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSession {
    /// What it has put into the process.
    pub installed: Installed,
    /// The tracer that made it, if it is still alive.
    pub owner: Option<u32>,
    /// Where the session stood.
    pub state: State,
    /// Inode of the memfd: the same in every process that shares the session.
    pub inode: u64,
}

/// How often the children of a program that keeps forking are looked for.
const FORK_ROUNDS: usize = 10;

/// Whether a mapping is a session's memory.
pub fn is_session(mapping: &Mapping) -> bool {
    mapping.path.as_encoded_bytes() == format!("/memfd:{MEMFD_NAME}").as_bytes()
        && mapping.perms.shared
        && mapping.offset == 0
}

/// Our own process id and start time.
pub fn own_identity() -> (u32, u64) {
    let pid = std::process::id();
    (pid, Process::open(pid).map_or(0, |p| p.start_time()))
}

/// The replaced signal actions, as session memory has them.
pub(crate) fn actions(memory: &Memory) -> Vec<Action> {
    read_actions(|at| memory.load(at), |at| memory.load_u32(at))
}

fn read_actions(word: impl Fn(usize) -> u64, half: impl Fn(usize) -> u32) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut add = |signal, handler, old: usize| {
        actions.push(Action {
            signal,
            handler: word(handler),
            old: std::array::from_fn(|i| word(old + i * 8)),
        });
    };
    if half(header::TRAP_INSTALLED) != 0 {
        add(libc::SIGTRAP, header::TRAP_HANDLER, header::TRAP_OLD);
    }
    let installed = half(header::FAULTS_INSTALLED);
    for (index, signal) in layout::FAULTS.into_iter().enumerate() {
        if installed >> index & 1 == 1 {
            add(
                signal,
                header::FAULT_HANDLER,
                header::FAULT_OLD + index * 32,
            );
        }
    }
    actions
}

struct Header(Vec<u8>);

impl Header {
    fn u64(&self, at: usize) -> u64 {
        let mut w = [0; 8];
        w.copy_from_slice(&self.0[at..at + 8]);
        u64::from_le_bytes(w)
    }
    fn u32(&self, at: usize) -> u32 {
        self.u64(at & !7).to_le_bytes()[at % 8..at % 8 + 4]
            .try_into()
            .map_or(0, u32::from_le_bytes)
    }
}

/// All sessions mapped in a process.
///
/// # Errors
/// The memory cannot be read, or a session's header or journal makes no sense.
pub fn find(process: &Process) -> Result<Vec<FoundSession>, TargetError> {
    let pid = process.pid() as i32;
    let maps = process.maps()?;
    let sessions: Vec<&Mapping> = maps.iter().filter(|m| is_session(m)).collect();
    if sessions.is_empty() {
        return Ok(Vec::new());
    }
    let remote = RemoteMemory::open(pid)?;
    sessions
        .into_iter()
        .map(|m| read_session(pid, &remote, &maps, m))
        .collect()
}

fn read_session(
    pid: i32,
    remote: &RemoteMemory,
    maps: &[Mapping],
    mapping: &Mapping,
) -> Result<FoundSession, TargetError> {
    let base = mapping.start;
    let fail = |address| {
        move |source| TargetError::Memory {
            pid,
            what: "read",
            address,
            source,
        }
    };
    let mut bytes = vec![0; layout::HEADER_SIZE];
    remote.read(base, &mut bytes).map_err(fail(base))?;
    let h = Header(bytes);
    let damaged = |what| TargetError::Damaged { pid, what };
    let size = mapping.end - mapping.start;
    let mut installed = Installed {
        base,
        size,
        arenas: Vec::new(),
        returns: None,
        stubs: Vec::new(),
        changes: Vec::new(),
        references: Vec::new(),
        actions: Vec::new(),
    };
    if h.u64(header::MAGIC) != layout::MAGIC {
        // The tracer died between mapping and formatting: nothing else is there.
        let state = State::Building;
        return Ok(FoundSession {
            installed,
            owner: None,
            state,
            inode: mapping.inode,
        });
    }
    let state = State::from_word(h.u32(header::STATE)).ok_or(damaged("unknown state"))?;
    // Behind what is shared come slots of the process's own, if they were mapped already.
    let end = base.saturating_add(h.u64(header::SIZE));
    let own = |m: &&Mapping| m.start == mapping.end && m.inode == 0 && !m.perms.execute;
    if maps
        .iter()
        .find(own)
        .is_some_and(|m| end > m.start && end <= m.end)
    {
        installed.size = end - base;
    }

    let arenas = h.u32(header::ARENAS_LEN) as usize;
    if arenas > layout::MAX_ARENAS {
        return Err(damaged("too many arenas"));
    }
    // And the one that was being mapped when its tracer died, which is not counted.
    for i in 0..(arenas + 1).min(layout::MAX_ARENAS) {
        let at = header::ARENAS + i * 16;
        let arena = Arena {
            start: h.u64(at),
            len: h.u64(at + 8),
        };
        let mapped = arena.len > 0 && is_arena(remote, maps, arena);
        if mapped {
            installed.arenas.push(arena);
        }
    }

    installed.returns = Region::at(remote, maps, h.u64(header::RETURNS));
    installed.stubs = stubs_in(maps, h.u64(header::STUBS_INODE));

    let count = h.u32(header::JOURNAL_LEN) as usize;
    let offset = h.u64(header::JOURNAL_OFFSET);
    let bytes = count as u64 * journal::SIZE as u64;
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        return Err(damaged("the journal does not fit"));
    }
    let mut entries = vec![0; bytes as usize];
    remote
        .read(base + offset, &mut entries)
        .map_err(fail(base + offset))?;
    for entry in entries.chunks_exact(journal::SIZE) {
        if entry[journal::KIND] == journal::REFERENCE {
            let reference =
                read_reference(entry).ok_or(damaged("a journal entry makes no sense"))?;
            // The word that says how far it is goes with the arena, at last.
            if installed.arenas.iter().any(|a| a.contains(reference.state)) {
                installed.references.push(reference);
            }
            continue;
        }
        let change = read_entry(entry).ok_or(damaged("a journal entry makes no sense"))?;
        // Sites of libraries that were unloaded meanwhile are not there any more.
        let text = maps
            .iter()
            .any(|m| m.contains(change.address) && m.perms.execute);
        if text {
            installed.changes.push(change);
        }
    }
    installed.actions = read_actions(|at| h.u64(at), |at| h.u32(at));
    let (owner, started) = (h.u32(header::OWNER), h.u64(header::OWNER_START_TIME));
    let alive = Process::open(owner).is_ok_and(|p| p.start_time() == started && p.is_alive());
    let owner = alive.then_some(owner);
    Ok(FoundSession {
        installed,
        owner,
        state,
        inode: mapping.inode,
    })
}

/// Where the stubs of a session are mapped, by the inode of their memory; adjacent
/// mappings as one.
pub(crate) fn stubs_in(maps: &[Mapping], inode: u64) -> Vec<Range<u64>> {
    let name = format!("/memfd:{STUBS_NAME}");
    let is_stub = |m: &&Mapping| {
        inode != 0 && m.inode == inode && m.path.as_encoded_bytes() == name.as_bytes()
    };
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for mapping in maps.iter().filter(is_stub) {
        match ranges.last_mut() {
            Some(last) if last.end == mapping.start => last.end = mapping.end,
            _ => ranges.push(mapping.start..mapping.end),
        }
    }
    ranges
}

/// Whether an arena of ours is mapped there: never unmap anything else. One that
/// nothing was written to yet holds zeros.
fn is_arena(remote: &RemoteMemory, maps: &[Mapping], arena: Arena) -> bool {
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
    remote
        .read_some(arena.start, arena.len as usize)
        .is_ok_and(|bytes| bytes.iter().all(|b| *b == 0))
}

/// A word of a journal entry.
fn word(entry: &[u8], at: usize) -> Option<u64> {
    let bytes = entry.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn read_reference(entry: &[u8]) -> Option<Reference> {
    let device = word(entry, journal::AFTER)?;
    Some(Reference {
        counter: ReferenceCounter {
            address: word(entry, journal::ADDRESS)?,
            offset: word(entry, journal::BEFORE + 8)?,
            dev: Device {
                major: (device >> 32) as u32,
                minor: device as u32,
            },
            inode: word(entry, journal::BEFORE)?,
        },
        state: word(entry, journal::DETOUR)?,
    })
}

fn read_entry(entry: &[u8]) -> Option<Change> {
    let len = entry[journal::LEN] as usize;
    if len == 0 || len > journal::MAX_BYTES {
        return None;
    }
    Some(Change {
        address: word(entry, journal::ADDRESS)?,
        len,
        before: entry[journal::BEFORE..][..journal::MAX_BYTES]
            .try_into()
            .ok()?,
        after: entry[journal::AFTER..][..journal::MAX_BYTES]
            .try_into()
            .ok()?,
        detour: word(entry, journal::DETOUR)?,
        phase: entry[journal::PHASE],
        guard: matches!(
            entry[journal::KIND],
            journal::GUARD | journal::UNWINDER | journal::ACTION
        ),
        unwinder: entry[journal::KIND] == journal::UNWINDER,
        action: entry[journal::KIND] == journal::ACTION,
    })
}

/// How often a thread is given a moment to get home.
const MOMENTS: u32 = 60;

/// Lets threads finish the calls that a tracer had them make when it was killed.
/// Tells whether there were any: what is mapped may be another thing then.
///
/// Until they have, a session must not be unmapped: the frame that takes them home
/// may lie in it.
///
/// # Errors
/// A thread cannot be let run, or stopped again.
pub fn send_home(
    stopped: &mut Stopped,
    process: &Process,
    remote: &RemoteMemory,
) -> Result<bool, TargetError> {
    let maps = process.maps()?;
    let mut any = false;
    let mut index = 0;
    let mut moments = 0;
    while let Some(thread) = stopped.threads().get(index).copied() {
        let gadgets = || gadgets::search(&maps, remote);
        if moments < MOMENTS && inject::is_orphan(&thread.registers, remote, gadgets) {
            any = true;
            let pause = if moments < 8 { 0 } else { 20 << (moments / 8) };
            moments += 1;
            stopped.let_run(index, Duration::from_micros(pause))?;
        } else {
            index += 1;
            moments = 0;
        }
    }
    Ok(any)
}

/// Stops the process once for [`send_home`].
fn wait_for_orphans(process: &Process) -> Result<(), TargetError> {
    let pid = process.pid() as i32;
    let remote = RemoteMemory::open(pid)?;
    send_home(&mut Stopped::all(pid)?, process, &remote).map(|_| ())
}

/// Removes what dead tracers left in a process, before another one attaches.
///
/// # Errors
/// [`TargetError::AlreadyRecorded`] if a living capriole has probes there.
pub fn clear_the_way(process: &Process) -> Result<(), TargetError> {
    let pid = process.pid() as i32;
    if !find(process)?.is_empty() {
        wait_for_orphans(process)?;
    }
    for session in find(process)? {
        match session.owner {
            // Also while it is taking its probes out.
            Some(owner) if owner != std::process::id() => {
                return Err(TargetError::AlreadyRecorded {
                    pid,
                    owner: owner as i32,
                });
            }
            _ => {
                detach(process, &session.installed)?;
            }
        }
    }
    close_leaked(process)
}

/// Removes the sessions that this very process has made in a process.
pub(crate) fn remove_own(process: &Process) -> Result<(), TargetError> {
    for session in find(process)? {
        if session.owner == Some(std::process::id()) {
            detach(process, &session.installed)?;
        }
    }
    close_leaked(process)
}

/// Closes memfds of ours that a tracer killed at just that moment left open.
fn close_leaked(process: &Process) -> Result<(), TargetError> {
    let Ok(entries) = std::fs::read_dir(process.proc_path("fd")) else {
        return Ok(());
    };
    let names = [MEMFD_NAME, STUBS_NAME].map(|name| format!("/memfd:{name} (deleted)"));
    let leaked: Vec<u64> = entries
        .filter_map(|e| {
            let e = e.ok()?;
            let target = std::fs::read_link(e.path()).ok()?;
            let is_ours = names.iter().any(|name| target.as_os_str() == name.as_str());
            is_ours.then(|| e.file_name().to_str()?.parse().ok())?
        })
        .collect();
    if leaked.is_empty() || process.pid() == std::process::id() {
        return Ok(());
    }
    let pid = process.pid() as i32;
    let remote = RemoteMemory::open(pid)?;
    let agent = Agent::hire(process, &remote)?;
    for fd in leaked {
        agent.close(process, &remote, fd)?;
    }
    agent.dismiss();
    Ok(())
}

/// Takes every probe out of a process, also a dead tracer's, and out of the processes
/// that share its session: its forked children, or a child's parent.
///
/// # Errors
/// [`TargetError::NothingAttached`] if there are none.
pub fn detach_all(process: &Process) -> Result<Detached, TargetError> {
    process.preflight()?;
    wait_for_orphans(process)?;
    let sessions = find(process)?;
    if sessions.is_empty() {
        close_leaked(process)?;
        return Err(TargetError::NothingAttached {
            pid: process.pid() as i32,
        });
    }
    let mut total = Detached::default();
    for session in sessions {
        let one = detach(process, &session.installed)?;
        total.restored += one.restored;
        total.foreign += one.foreign;
        total.lingering |= one.lingering;
        total.standstill += one.standstill;
        let others = detach_children(session.inode, process.pid(), &session.installed)?;
        total.restored += others.restored;
        total.lingering |= others.lingering;
    }
    close_leaked(process)?;
    Ok(total)
}

/// The processes, other than `except`, that have the session memory with this
/// inode mapped: forked children of a target.
pub fn sharing(inode: u64, except: u32) -> Vec<Process> {
    Process::others()
        .filter(|p| p.pid() != except)
        .filter(|p| {
            p.maps()
                .is_ok_and(|maps| maps.iter().any(|m| is_session(m) && m.inode == inode))
        })
        .collect()
}

/// Takes the probes out of the other processes that share a session. A child may fork
/// while its siblings are looked at: it is looked again until there is nobody new.
fn detach_children(
    inode: u64,
    except: u32,
    installed: &Installed,
) -> Result<Detached, TargetError> {
    let mut report = Detached::default();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..FORK_ROUNDS {
        let mut children = sharing(inode, except);
        children.retain(|child| seen.insert((child.pid(), child.start_time())));
        if children.is_empty() {
            break;
        }
        for child in children {
            let one = match detach(&child, installed) {
                Ok(one) => one,
                Err(_) if child.is_over() => continue,
                Err(error) => return Err(error),
            };
            report.restored += one.restored;
            report.lingering |= one.lingering;
        }
    }
    Ok(report)
}

impl crate::attach::Attached {
    /// Inode of the session's memfd.
    pub fn inode(&self) -> u64 {
        rustix::fs::fstat(&self.memory.file).map_or(0, |s| s.st_ino)
    }

    /// Takes every probe out, of the process and of the children that it forked
    /// meanwhile. What was recorded stays in session memory.
    ///
    /// # Errors
    /// As [`detach`]; a process that has ended is no error.
    pub fn detach(&self) -> Result<Detached, TargetError> {
        let mut report = match detach(&self.process, &self.installed) {
            Ok(report) => report,
            Err(_) if self.process.is_over() => Detached::default(),
            Err(error) => return Err(error),
        };
        let children = detach_children(self.inode(), self.process.pid(), &self.installed)?;
        report.restored += children.restored;
        report.lingering |= children.lingering;
        Ok(report)
    }

    /// Whether the session is still mapped in the process: not after exec.
    pub fn is_mapped(&self) -> bool {
        crate::detach::still_mapped(&self.process, self.installed.base).unwrap_or(false)
    }

    /// Whether a thread of the program waits until the probes are out.
    pub fn must_leave(&self) -> bool {
        self.memory.memory.load_u32(header::LEAVE) != 0
    }

    /// Whether somebody else has taken the probes out (`capriole detach`).
    pub fn is_restored(&self) -> bool {
        self.memory.memory.load_u32(header::STATE) == State::Restored as u32
    }
}
