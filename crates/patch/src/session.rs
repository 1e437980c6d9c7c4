//! Session memory and arenas in a target: creating them and mapping them.

use crate::stubs::{Row, Stubs};
use capriole_host::error::TargetError;
use capriole_host::host::{
    CallTable, Caller, Calls, FramePlace, Host, StoppedThreads, TargetMemory,
};
use capriole_host::memfd;
use capriole_host::steps::step;
use capriole_ledger::{Arena, Identity, Kind, Ledger, MAX_ARENAS, MemoryAt};
use capriole_proc::maps::{GapQuery, Layout, Mapping, PAGE_SIZE, find_gaps};
use capriole_proc::process::{Process, deputy};
use capriole_ring::Memory;
use capriole_ring::layout::{Geometry, own};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Name of the memory that a recorder's stubs are mapped from.
pub const STUBS_NAME: &str = Kind::Recorder.stubs_name();

/// Start of the path of each mapping of session memory in `/proc/PID/maps`.
pub(crate) const SESSION_PATH: &str = "/memfd:capriole";

/// True if a mapping is a session's memory, of either kind.
pub fn is_session(mapping: &Mapping) -> bool {
    Kind::ALL
        .into_iter()
        .any(|kind| is_of_session(mapping, kind))
}

/// True if a mapping is the memory of a session of this kind.
pub(crate) fn is_of_session(mapping: &Mapping, kind: Kind) -> bool {
    mapping.path.as_encoded_bytes() == format!("/memfd:{}", kind.memory_name()).as_bytes()
        && mapping.perms.shared
        && mapping.offset == 0
        && memfd::device().is_none_or(|device| mapping.dev == device)
}

/// Session memory, mapped here and in the target.
#[derive(Debug)]
pub struct SessionMemory {
    /// Our mapping.
    pub memory: Arc<Memory>,
    /// Layout of the memory.
    pub geometry: Geometry,
    /// Its address in the target.
    pub base: u64,
    /// The memfd; keeps the memory when the target dies.
    pub file: OwnedFd,
    /// Data that only the target has, and that no other process can write.
    pub ledger: Ledger,
}

impl SessionMemory {
    /// Returns the address, in the target, of the words that are private to each process.
    pub(crate) fn own(&self) -> u64 {
        self.base + self.geometry.own_offset() as u64
    }
}

/// The resident's code for a batch of system calls, and memory for their arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The code, up to the instruction where it waits.
    pub code: Range<u64>,
    /// Where it begins.
    pub start: u64,
    /// Address of the memory for arguments, 32 bytes for each call. The target can read it.
    pub table: u64,
}

/// A mapping to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) len: u64,
}

impl Batch {
    /// Returns the code of a session for moves of mappings, with their table at `table`; `None` if the
    /// session has none.
    pub(crate) fn of_moves(
        remote: &dyn TargetMemory,
        arenas: &[Arena],
        table: u64,
    ) -> Option<Batch> {
        let entries = capriole_resident::entries(arenas.first()?.start);
        // A session that was not armed has none yet.
        let code = entries.batch..entries.batch_home + 1;
        let size = (code.end - code.start) as usize;
        let is_there = remote.read_some(code.start, size).ok()? == capriole_resident::batch();
        is_there.then_some(Batch {
            code,
            start: entries.batch_moves,
            table,
        })
    }
}

/// A system call and its arguments 2, 3 and 4, which are the same for each row.
struct Repeated {
    number: i64,
    arguments: [u64; 3],
}

/// A thread of the target that can make system calls for us, and what they do for sessions.
#[derive(Debug)]
pub struct AgentOf<'s>(Box<dyn Caller + 's>);

/// The only thread that we hold.
pub type Agent = AgentOf<'static>;

/// Attempts to map an arena.
const ATTEMPTS: usize = 50;

impl Agent {
    /// Chooses one of the stopped threads, resumes the others, and keeps that one stopped.
    pub fn choose(
        host: &dyn Host,
        stopped: Box<dyn StoppedThreads>,
        memory: &dyn TargetMemory,
    ) -> Result<Self, TargetError> {
        host.choose(stopped, memory).map(AgentOf)
    }

    /// Stops one thread of a process for system calls.
    pub fn hire(host: &dyn Host, memory: &dyn TargetMemory) -> Result<Self, TargetError> {
        host.hire(memory).map(AgentOf)
    }

    /// Stops this thread of a process for system calls, or another one if that is not possible.
    pub fn hire_one(
        host: &dyn Host,
        tid: i32,
        memory: &dyn TargetMemory,
    ) -> Result<Self, TargetError> {
        match host.hire_one(tid, memory) {
            Err(_) => Agent::hire(host, memory),
            caller => caller.map(AgentOf),
        }
    }
}

impl<'s> AgentOf<'s> {
    /// Chooses one of the stopped threads, all of which stay stopped.
    pub(crate) fn among(
        host: &dyn Host,
        stopped: &'s (dyn StoppedThreads + 'static),
        memory: &dyn TargetMemory,
        maps: &[Mapping],
    ) -> Result<Self, TargetError> {
        host.choose_among(stopped, memory, maps).map(AgentOf)
    }

    /// True if the thread has a filter of system calls; false if it has ended.
    pub(crate) fn is_filtered(&self, process: &Process) -> bool {
        process.is_filtered(self.0.tid() as u32)
    }

    /// Has all processors that run threads of the process synchronise their instruction fetch.
    /// Registers the process for that with the kernel, if it is not yet.
    ///
    /// # Errors
    /// The thread is gone, or the kernel has no such barrier (before Linux 4.16).
    pub(crate) fn synchronise(
        &self,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
    ) -> Result<(), TargetError> {
        let register = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u64;
        let barrier = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u64;
        let done = self.with(remote, self.scratch(ledger), |calls| {
            let mut call = |command| calls.call(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]);
            match call(barrier)? {
                Err(_) => match call(register)? {
                    Ok(_) => call(barrier),
                    refused => Ok(refused),
                },
                done => Ok(done),
            }
        })?;
        let refused = self.refused("have all processors synchronise");
        done.map(|_| ()).map_err(refused)
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// Resumes the thread; returns how long it was stopped.
    pub fn dismiss(self) -> Duration {
        self.0.dismiss()
    }

    /// Returns the place for a frame on the thread's own stack, if that is safe.
    pub(crate) fn stack(&self) -> Result<FramePlace, TargetError> {
        self.0.stack()
    }

    /// Makes system calls with the frame at `place`.
    pub(crate) fn with<T>(
        &self,
        memory: &dyn TargetMemory,
        place: FramePlace,
        work: impl FnOnce(&mut dyn Calls) -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        let mut calls = self.0.begin(memory, place)?;
        let result = work(&mut *calls)?;
        calls.finish()?;
        Ok(result)
    }

    pub(crate) fn refused(&self, what: &'static str) -> impl Fn(Errno) -> TargetError + use<> {
        let pid = self.pid();
        move |errno| TargetError::Refused { pid, what, errno }
    }

    /// Creates a ledger and session memory in the target and maps the latter on both sides; in the
    /// target at `hint`, if there is room, else (or if it is 0) where the kernel chooses. The
    /// ledger is created first, so that session memory never exists without one.
    pub(crate) fn create_memory(
        &self,
        process: &Process,
        remote: &dyn TargetMemory,
        geometry: Geometry,
        identity: &Identity,
        hint: u64,
    ) -> Result<SessionMemory, TargetError> {
        let pid = self.pid();
        let mut place = self.stack()?;
        let mut loan = None;
        if place == FramePlace::Nowhere {
            let len = 16384;
            let start = self.with(remote, place, |i| {
                let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
                let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
                i.call(libc::SYS_mmap, [0, len, prot, flags, u64::MAX, 0])
            })?;
            let start = start.map_err(self.refused("map scratch memory"))?;
            if self.0.returns_by_itself() {
                place = FramePlace::Scratch {
                    start,
                    len: len - 64,
                };
            }
            loan = Some((start, len));
        }
        let name = match (place, loan) {
            (_, Some((start, len))) => start + len - 64,
            (FramePlace::Stack { .. }, _) => 0, // below the frame, once it stands
            _ => unreachable!("either a stack or a loan"),
        };
        let (size, shared) = (geometry.size(), geometry.shared_size());
        let len = Ledger::size(geometry.journal);
        // The mapped ranges: the program's other threads may have put other files in the place of
        // ours, and then these mappings could not be found again.
        let mapped = std::cell::RefCell::new(Vec::new());
        let map = |i: &mut dyn Calls| {
            let name = if name == 0 { i.below_frame() } else { name };
            let at = (name, hint);
            let ledger = self.map_ledger(i, remote, identity.kind, at, len, "ledger mapped")?;
            mapped.borrow_mut().push((ledger.start, len));
            let fail = |errno| TargetError::Share { pid, errno };
            if !ledger.is_in(process)? {
                return Err(fail(Errno::BADF));
            }
            ledger.begin(remote, identity, None)?;

            let own_name = identity.kind.memory_name();
            let (fd, file) =
                self.create_file(i, remote, name, own_name, |fd| share(pid, fd, shared))?;
            let inode = rustix::fs::fstat(&file).map_err(fail)?.st_ino;
            // Noted before the memory is mapped: if we die in between, `recover` tells it by its inode
            // from memory of other processes' sessions, which the target has mapped if it is a recorder.
            let noted = MemoryAt {
                base: 0,
                size: size as u64,
                inode,
            };
            if let Err(error) = ledger.note_memory(remote, &noted) {
                let _ = i.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
                return Err(error);
            }
            let flags = (libc::MAP_SHARED | libc::MAP_NORESERVE) as u64;
            let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            let base = i.call(libc::SYS_mmap, [hint, size as u64, prot, flags, fd, 0])?;
            step("session memory mapped");
            let _ = i.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
            let base = base.map_err(self.refused("map shared memory"))?;
            // A core dump would hold all of it, used or not. What refuses that does no harm.
            let advice = [base, size as u64, libc::MADV_DONTDUMP as u64, 0, 0, 0];
            let _ = i.call(libc::SYS_madvise, advice)?;
            mapped.borrow_mut().push((base, size as u64));
            let at = MemoryAt {
                base,
                size: size as u64,
                inode,
            };
            ledger.note_memory(remote, &at)?;
            // Another thread may have replaced the descriptor by another file before it was mapped.
            let is_ours = |m: &Mapping| (m.start, m.inode) == (at.base, at.inode);
            if !ledger.is_in(process)? || !process.maps()?.iter().any(is_ours) {
                return Err(fail(Errno::BADF));
            }
            let memory = Memory::map(&file, shared).map_err(fail)?;
            memory.format(base, &geometry);
            step("session memory formatted");
            // A forked child has its own words, and its own calls, at the same positions of its stacks.
            let (start, len) = (base + shared as u64, (size - shared) as u64);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let flags = (flags | libc::MAP_FIXED) as u64;
            i.call(libc::SYS_mmap, [start, len, prot, flags, u64::MAX, 0])?
                .map_err(self.refused("map memory for open calls"))?;
            // On a kernel too old for this, a child is taken for its parent a moment longer.
            let page = start + own::KNOWN as u64;
            let advice = [page, PAGE_SIZE, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
            let _ = i.call(libc::SYS_madvise, advice)?;
            write(pid, remote, page, &1u32.to_le_bytes())?;
            ledger.note_own(remote, base + geometry.own_offset() as u64)?;
            step("slots for open calls mapped");
            Ok(SessionMemory {
                memory: Arc::new(memory),
                geometry,
                base,
                file,
                ledger,
            })
        };
        let result = self.with(remote, place, |i| {
            let result = map(i);
            if result.is_err() {
                // The ledger last, and only if the memory is gone that a later detach finds by it.
                let mut mapped = mapped.take().into_iter().rev();
                let unmapped = |(start, len): (u64, u64)| {
                    let call = i.call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]);
                    matches!(call, Ok(Ok(_)))
                };
                let _ = mapped.all(unmapped);
            }
            result
        })?;
        if let Some((start, len)) = loan {
            let _ = self.with(remote, self.scratch(&result.ledger), |i| {
                i.call(libc::SYS_munmap, [start, len, 0, 0, 0, 0])
            })?;
        }
        Ok(result)
    }

    /// Creates a further ledger with room for `entries` journal entries, an extension of the
    /// session's, below it.
    ///
    /// Until its first write, which is one copy in the kernel, it is an empty ledger: if we die
    /// before, there is nothing to restore by it, and it is unmapped as any other.
    pub(crate) fn create_extension(
        &self,
        process: &Process,
        remote: &dyn TargetMemory,
        base: &Ledger,
        memory: &MemoryAt,
        identity: &Identity,
        entries: u32,
    ) -> Result<Ledger, TargetError> {
        let pid = self.pid();
        let (place, name) = self.scratch_and_more(base);
        let len = Ledger::size(entries);
        self.with(remote, place, |i| {
            let mapped = "extension of the ledger mapped";
            let at = (name, base.start);
            let ledger = self.map_ledger(i, remote, base.kind, at, len, mapped)?;
            // Another thread may have replaced the descriptor by another file before it was mapped.
            let begun = match ledger.is_in(process)? {
                true => ledger.begin(remote, identity, Some((base, memory))),
                false => Err(TargetError::Share {
                    pid,
                    errno: Errno::BADF,
                }),
            };
            if begun.is_err() {
                let _ = i.call(libc::SYS_munmap, [ledger.start, len, 0, 0, 0, 0])?;
            }
            begun.map(|()| ledger)
        })
    }

    /// Creates an empty ledger of `len` bytes in the target, with the name of its memfd written at
    /// `name`, and maps it below `end` (the second of the addresses), if there is room; then takes the
    /// step `mapped`.
    fn map_ledger(
        &self,
        i: &mut dyn Calls,
        remote: &dyn TargetMemory,
        kind: Kind,
        (name, end): (u64, u64),
        len: u64,
        mapped: &'static str,
    ) -> Result<Ledger, TargetError> {
        let pid = self.pid();
        let (fd, inode) = self.create_file(i, remote, name, kind.ledger_name(), |fd| {
            empty(pid, fd, len)
        })?;
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_NORESERVE) as u64;
        let below = end.saturating_sub(len);
        let start = i.call(libc::SYS_mmap, [below, len, prot, flags, fd, 0])?;
        step(mapped);
        let _ = i.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
        let start = start.map_err(self.refused("map memory for a journal"))?;
        Ok(Ledger {
            kind,
            pid,
            start,
            len,
            inode,
        })
    }

    /// Creates a memfd in the target, with its name written at `at`, and prepares it with `ready`.
    /// Returns its descriptor in the target, which is closed if `ready` fails.
    fn create_file<T>(
        &self,
        i: &mut dyn Calls,
        remote: &dyn TargetMemory,
        at: u64,
        name: &str,
        ready: impl FnOnce(i32) -> Result<T, TargetError>,
    ) -> Result<(u64, T), TargetError> {
        let text = [name.as_bytes(), b"\0"].concat();
        write(self.pid(), remote, at, &text)?;
        let fd = create_memfd(i, at)?.map_err(self.refused("create shared memory"))?;
        step("memfd created");
        match ready(fd as i32) {
            Ok(made) => Ok((fd, made)),
            Err(error) => {
                let _ = i.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
                Err(error)
            }
        }
    }

    pub(crate) fn scratch(&self, ledger: &Ledger) -> FramePlace {
        let scratch = ledger.scratch();
        match self.0.returns_by_itself() {
            true => FramePlace::Scratch {
                start: scratch.start,
                len: scratch.end - scratch.start,
            },
            false => FramePlace::Nowhere,
        }
    }

    /// Makes one system call; `what` is its purpose, for the error.
    pub(crate) fn call(
        &self,
        remote: &dyn TargetMemory,
        session: &SessionMemory,
        what: &'static str,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<u64, TargetError> {
        self.with(remote, self.scratch(&session.ledger), |i| {
            i.call(number, arguments)
        })?
        .map_err(self.refused(what))
    }

    /// Maps an arena of `len` bytes within reach of jumps from and to all of `near`, and records it
    /// in the ledger as number `index`. The addresses in `avoid` (ascending) are left free, with a
    /// page around them.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn create_arena(
        &self,
        process: &Process,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        index: usize,
        near: Range<u64>,
        len: u64,
        avoid: &[u64],
    ) -> Result<Arena, TargetError> {
        let pid = self.pid();
        let layout = Layout::of(process);
        let no_space = || TargetError::NoSpace {
            pid,
            near: near.start,
            size: len,
        };
        if index >= MAX_ARENAS {
            return Err(no_space());
        }
        // The list of mappings may be outdated at once: other threads are running.
        for _ in 0..ATTEMPTS {
            let mut maps = process.maps()?;
            maps.extend(avoid.iter().map(|stub| {
                let start = stub / PAGE_SIZE * PAGE_SIZE;
                Mapping {
                    start,
                    // A stub may extend into the next page.
                    end: start + 2 * PAGE_SIZE,
                    ..Mapping::default()
                }
            }));
            let candidates = find_gaps(&maps, &layout, &GapQuery::new(len, near.clone()));
            if candidates.is_empty() {
                return Err(no_space());
            }
            for at in candidates.into_iter().take(8) {
                // Recorded before the call, counted after it: if we die in between, the thread makes the call
                // without us, and `recover` looks there.
                ledger.note_arena(remote, index, &Arena { start: at, len })?;
                let result = self.with(remote, self.scratch(ledger), |i| {
                    let prot = (libc::PROT_READ | libc::PROT_EXEC) as u64;
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                    let flags = (flags | libc::MAP_FIXED_NOREPLACE) as u64;
                    i.call(libc::SYS_mmap, [at, len, prot, flags, u64::MAX, 0])
                })?;
                match result {
                    Ok(start) if start == at => {
                        ledger.count_arenas(remote, index + 1)?;
                        step("arena mapped");
                        return Ok(Arena { start, len });
                    }
                    Ok(elsewhere) => {
                        // A kernel before 4.17 treats the address as a hint.
                        let _ = self.with(remote, self.scratch(ledger), |i| {
                            i.call(libc::SYS_munmap, [elsewhere, len, 0, 0, 0, 0])
                        })?;
                    }
                    Err(Errno::EXIST) => {}
                    Err(errno) => return Err(self.refused("map memory for code")(errno)),
                }
            }
            ledger.note_arena(remote, index, &Arena { start: 0, len: 0 })?;
        }
        Err(no_space())
    }

    /// Returns the program's action for a signal (`struct kernel_sigaction`: handler, flags,
    /// restorer, mask), and replaces it if `new` is given.
    pub(crate) fn signal_action(
        &self,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        signal: i32,
        new: Option<[u64; 4]>,
    ) -> Result<[u64; 4], TargetError> {
        let pid = self.pid();
        let (place, at_new) = self.scratch_and_more(ledger);
        let at_old = at_new + 32;
        if let Some(new) = new {
            let bytes: Vec<u8> = new.iter().flat_map(|w| w.to_le_bytes()).collect();
            write(pid, remote, at_new, &bytes)?;
        }
        let argument = if new.is_some() { at_new } else { 0 };
        self.with(remote, place, |i| {
            i.call(
                libc::SYS_rt_sigaction,
                [signal as u64, argument, at_old, 8, 0, 0],
            )
        })?
        .map_err(self.refused("change what a signal does"))?;
        let mut words = [[0; 8]; 4];
        let read = remote.read(at_old, words.as_flattened_mut());
        read.map_err(TargetError::reading(pid, at_old))?;
        Ok(words.map(u64::from_le_bytes))
    }

    /// Returns scratch memory for a frame, and the address of 64 bytes behind it for other data.
    pub(crate) fn scratch_and_more(&self, ledger: &Ledger) -> (FramePlace, u64) {
        let more = ledger.scratch().end - 64;
        match self.scratch(ledger) {
            FramePlace::Scratch { start, len } => {
                let len = len - 64;
                (FramePlace::Scratch { start, len }, more)
            }
            other => (other, more),
        }
    }

    /// Creates a memfd for code, whose name is at `name`. Returns its descriptor in the target.
    pub(crate) fn create_executable(
        &self,
        i: &mut dyn Calls,
        name: u64,
    ) -> Result<u64, TargetError> {
        let fd = create_memfd(i, name)?;
        fd.map_err(self.refused("create memory for code"))
    }

    /// Maps stubs at their addresses, from memory number `index` of the ledger's. Returns the rows for which there is no room: the program has
    /// mapped something else there meanwhile.
    pub(crate) fn map_stubs(
        &self,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        index: usize,
        stubs: &Stubs,
        batch: Option<Batch>,
    ) -> Result<Vec<Row>, TargetError> {
        let pid = self.pid();
        let (place, name) = self.scratch_and_more(ledger);
        let text = [ledger.kind.stubs_name().as_bytes(), b"\0"].concat();
        write(pid, remote, name, &text)?;
        self.with(remote, place, |i| {
            let fd = self.create_executable(i, name)?;
            step("memory for stubs created");
            let filled = fill(pid, fd as i32, 0, &stubs.bytes).and_then(|inode| {
                step("stubs written");
                ledger.note_stubs(remote, index, inode)
            });
            let rows = stubs.rows.iter();
            let wanted = rows.map(|row| [row.address, row.len, row.offset, row.address]);
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
            let call = Repeated {
                number: libc::SYS_mmap,
                arguments: [(libc::PROT_READ | libc::PROT_EXEC) as u64, flags as u64, fd],
            };
            let failed = match filled {
                Ok(()) => self.repeat(i, remote, ledger, &call, &wanted.collect::<Vec<_>>(), batch),
                Err(error) => Err(error),
            };
            let _ = i.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
            step("stubs mapped");
            let rows = failed?.into_iter().map(|index| stubs.rows[index]);
            Ok(rows.collect())
        })
    }

    /// True if the thread can make calls by code of the resident.
    fn makes_batches(&self) -> bool {
        self.0.returns_by_itself() && self.0.calls_from_anywhere()
    }

    /// Makes one system call many times; returns the rows whose result is not the expected one.
    fn repeat(
        &self,
        i: &mut dyn Calls,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        call: &Repeated,
        rows: &[[u64; 4]],
        batch: Option<Batch>,
    ) -> Result<Vec<usize>, TargetError> {
        let pid = self.pid();
        let [c, d, e] = call.arguments;
        let mut failed = Vec::new();
        let batch = batch.filter(|_| rows.len() > 2 && self.makes_batches());
        let Some(batch) = batch else {
            for (index, [a, b, f, wanted]) in rows.iter().enumerate() {
                let result = i.call(call.number, [*a, *b, c, d, e, *f])?;
                if result != Ok(*wanted) {
                    failed.push(index);
                }
            }
            return Ok(failed);
        };
        let bytes: Vec<u8> = rows
            .iter()
            .flatten()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        write(pid, remote, batch.table, &bytes)?;
        let mut next = 0;
        while let Some(index) = self.go_on(i, remote, ledger, call, &batch, next..rows.len())? {
            failed.push(index);
            next = index + 1;
        }
        Ok(failed)
    }

    /// Makes the calls of some rows of a batch, whose table is written; returns the index of the first
    /// row whose result is not the expected one.
    fn go_on(
        &self,
        i: &mut dyn Calls,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        call: &Repeated,
        batch: &Batch,
        rows: Range<usize>,
    ) -> Result<Option<usize>, TargetError> {
        if rows.is_empty() {
            return Ok(None);
        }
        const SIZE: u64 = 32;
        let at = |row: usize| batch.table + row as u64 * SIZE;
        // 0 if the process has ended, which other code detects.
        let came_to = || remote.read_u64(ledger.batch()).unwrap_or(0);
        ledger.forget_batch(remote)?;
        let table = CallTable {
            code: batch.code.clone(),
            start: batch.start,
            rows: at(rows.start)..at(rows.end),
            number: call.number,
            arguments: call.arguments,
            came_to: ledger.batch(),
        };
        i.call_each(&table, &|| came_to() != 0)?;
        let came_to = came_to();
        if came_to == table.rows.end {
            return Ok(None);
        }
        // The memory is the program's: trust nothing in it.
        let index = (came_to.wrapping_sub(batch.table) / SIZE) as usize;
        match rows.contains(&index) {
            true => Ok(Some(index)),
            false => Err(TargetError::Damaged {
                pid: self.pid(),
                what: "a batch of system calls went astray",
            }),
        }
    }

    /// Moves mappings, one after the other, and `leaves` one of the same file, without pages, where each
    /// was, or nothing. Returns the index of the first that the kernel does not move; those behind it stay where
    /// they are.
    pub(crate) fn move_mappings(
        &self,
        i: &mut dyn Calls,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        (moves, leaves): (&[Move], bool),
        batch: Option<&Batch>,
    ) -> Result<Option<usize>, TargetError> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let flags = flags | if leaves { libc::MREMAP_DONTUNMAP } else { 0 };
        let batch = batch.filter(|_| moves.len() > 2 && self.makes_batches());
        let Some(batch) = batch else {
            for (index, Move { from, to, len }) in moves.iter().enumerate() {
                let arguments = [*from, *len, *len, flags as u64, *to, 0];
                if i.call(libc::SYS_mremap, arguments)? != Ok(*to) {
                    return Ok(Some(index));
                }
                step("text moved");
            }
            return Ok(None);
        };
        let rows = moves.iter().flat_map(|m| [m.from, m.len, 0, m.to]);
        let bytes: Vec<u8> = rows.flat_map(u64::to_le_bytes).collect();
        write(self.pid(), remote, batch.table, &bytes)?;
        let call = Repeated {
            number: libc::SYS_mremap,
            arguments: [0, flags as u64, 0],
        };
        self.go_on(i, remote, ledger, &call, batch, 0..moves.len())
    }

    /// Closes file descriptor `fd` in the target.
    pub fn close(&self, remote: &dyn TargetMemory, fd: u64) -> Result<(), TargetError> {
        let place = self.stack()?;
        self.with(remote, place, |i| {
            i.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])
        })?
        .map(|_| ())
        .map_err(self.refused("close a descriptor"))
    }
}

/// Writes to the memory of process `pid`, at an address that is not instruction bytes of the
/// program.
pub(crate) fn write(
    pid: i32,
    remote: &dyn TargetMemory,
    address: u64,
    bytes: &[u8],
) -> Result<(), TargetError> {
    let written = remote.write(address, bytes);
    written.map_err(TargetError::writing(pid, address))
}

/// Writes the contents of the target's memfd, `bytes` at an offset; returns its inode.
pub(crate) fn fill(pid: i32, fd: i32, offset: u64, bytes: &[u8]) -> Result<u64, TargetError> {
    use std::os::unix::fs::FileExt;
    let fail = |errno| TargetError::Share { pid, errno };
    let file = std::fs::File::from(open_descriptor(pid, fd).map_err(fail)?);
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    set_size(&file, offset + bytes.len() as u64).map_err(fail)?;
    let written = file.write_all_at(bytes, offset);
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    written.map_err(errno).map_err(fail)?;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(fail)?;
    Ok(rustix::fs::fstat(&file).map_err(fail)?.st_ino)
}

/// Gives the target's memfd its final size, and seals it so that it never gets content; returns
/// its inode.
fn empty(pid: i32, fd: i32, size: u64) -> Result<u64, TargetError> {
    let fail = |errno| TargetError::Share { pid, errno };
    let file = open_descriptor(pid, fd).map_err(fail)?;
    set_size(&file, size).map_err(fail)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(fail)?;
    let inode = rustix::fs::fstat(&file).map_err(fail)?.st_ino;
    step("ledger sized");
    Ok(inode)
}

/// Creates a memfd in the target, whose name is at `name`, and returns its descriptor there. Nobody is to
/// execute it as a program, which it says for `vm.memfd_noexec`; that it may be mapped as code stays so.
fn create_memfd(i: &mut dyn Calls, name: u64) -> Result<Result<u64, Errno>, TargetError> {
    const NOEXEC_SEAL: u64 = 8; // since Linux 6.3
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let mut create = |flags| i.call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]);
    match create(flags | NOEXEC_SEAL)? {
        Err(Errno::INVAL) => create(flags),
        made => Ok(made),
    }
}

/// Gives a memfd its size. Fails with `FBIG` if this process may not make files of that size: it
/// counts as a file, and the kernel would send a SIGXFSZ, which ends programs.
fn set_size(file: impl AsFd, size: u64) -> Result<(), Errno> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit {
        Some(limit) if limit < size => Err(Errno::FBIG),
        _ => rustix::fs::ftruncate(file, size),
    }
}

/// Gets our own descriptor for the target's memfd and gives the memfd its final size.
fn share(pid: i32, fd: i32, size: usize) -> Result<OwnedFd, TargetError> {
    let fail = |errno| TargetError::Share { pid, errno };
    let file = open_descriptor(pid, fd).map_err(fail)?;
    set_size(&file, size as u64).map_err(fail)?;
    // Prevents other processes from shortening the file, after which accesses to the mapping would
    // fault.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(fail)?;
    step("memfd sized");
    // Where that is forbidden, only the mark is missing.
    Ok(memfd::reopen(file.as_fd()).unwrap_or(file))
}

/// Opens a memfd that the target has just created. The target's other threads run: one may have
/// put another file in its place to make us write there.
fn open_descriptor(pid: i32, fd: i32) -> rustix::io::Result<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let by_pidfd = || {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        pidfd_getfd(process, fd, PidfdGetfdFlags::empty())
    };
    // On a kernel before 5.6 the path is needed, and if the main thread has ended: it has no files.
    let by_path = || {
        let path = format!("/proc/{}/fd/{fd}", deputy(pid as u32));
        memfd::open(path.as_ref(), None)
    };
    let file = match by_pidfd() {
        Err(Errno::NOSYS) => by_path(),
        Err(errno) => by_path().map_err(|_| errno),
        file => file,
    }?;
    memfd::check_fresh(file.as_fd())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_every_kind_is_found_by_its_name() {
        for kind in Kind::ALL {
            assert!(format!("/memfd:{}", kind.memory_name()).starts_with(SESSION_PATH));
        }
    }
}
