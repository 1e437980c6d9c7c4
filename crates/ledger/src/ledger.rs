//! The ledger of a session: all data needed to remove its probes from a process.
//!
//! Session memory is shared by a process, the children that it forks and the tracer; a child
//! may have dropped its privileges, and can write anything there. So nothing in it is trusted.
//! The data that the tracer relies on is in a ledger, of which each process has its own:
//!
//! ```text
//! 0          header     one page: process ids, mappings, replaced signal actions
//! SCRATCH    four pages: frames and arguments of system calls that a thread makes for us
//! PLACE      one page: the directory of the trace
//! JOURNAL    64 bytes for each change: the bytes before and after
//! ```
//!
//! It is a memfd without content, sealed so that it never gets any, and mapped *privately*: its
//! name in `/proc/PID/maps` shows where it is, even after the tracer was killed. The tracer
//! writes to it through `/proc/PID/mem`, which gives the process private copies of the pages. A
//! forked child has copies of those pages as they were at the fork, just as of the code that
//! they describe. It can damage them only for itself.
//!
//! A process can create a false ledger. So everything read from a ledger is checked against
//! bounds, and is used to change no process other than the one that it was read from. Such
//! changes are made with the rights of a tracer, but the process could have made all of them to
//! itself.
//!
//! Data that has a count is written before the count, and the count by one write, so the tracer
//! may die at any moment.
//!
//! The ledger is mapped before session memory and unmapped after it. If a mapping of session
//! memory is in no ledger, but some ledger has none noted yet, the tracer died in between; in
//! any other case such a mapping is refused, because it is not known what else exists. An entry
//! that makes no sense is an error. The state is in session memory too, as a hint for others;
//! the recorder believes it only if the process's ledger does not contradict it.
//!
//! A ledger never grows: a program may be mapping memory behind it. Probes that are added to a
//! session which is running have a further ledger, an *extension*, which names the first:
//!
//! ```text
//! ledger of the session   MEMORY = M                   its arenas, stubs, changes, signal actions
//! extension               MEMORY = M, BASE = the first   more arenas, stubs, changes
//! extension               MEMORY = M, BASE = the first   …
//! ```
//!
//! An extension names the first from its first write on. So whoever finds them in a process, after
//! whatever step the tracer was killed, knows which belong together: they are one session, whose
//! bytes are restored together (probes of both may have been at one site, one after the other), and
//! the first ledger is unmapped last. An extension has a version of its own, so that an older
//! capriole, which would take it for a session by itself, refuses it.

use crate::change::{Change, Uses};
use crate::counter::{Reference, ReferenceCounter};
use crate::remains::{TraceId, TracePlace};
use capriole_host::error::TargetError;
use capriole_host::host::{Routines, TargetMemory};
use capriole_host::steps::step;
use capriole_proc::maps::{Device, Mapping, PAGE_SIZE};
use capriole_proc::process::Process;
use capriole_ring::layout::State;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Name of a recorder's memfd; /proc/PID/maps shows it as `/memfd:capriole-ledger (deleted)`.
pub const LEDGER_NAME: &str = "capriole-ledger";

/// Owner of a session: a process has at most one living session of each kind. The kind shows in the
/// names of all memory of the session, from the moment when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A recorder, which the program knows nothing of.
    Recorder,
    /// The helper of a program that probes itself.
    Library,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 2] = [Kind::Recorder, Kind::Library];

    /// Returns the other kind.
    #[must_use]
    pub fn other(self) -> Kind {
        match self {
            Kind::Recorder => Kind::Library,
            Kind::Library => Kind::Recorder,
        }
    }

    /// Name of the memfd of a ledger.
    #[must_use]
    pub const fn ledger_name(self) -> &'static str {
        match self {
            Kind::Recorder => LEDGER_NAME,
            Kind::Library => "capriole-library-ledger",
        }
    }

    /// Name of the memfd of session memory.
    #[must_use]
    pub const fn memory_name(self) -> &'static str {
        match self {
            Kind::Recorder => "capriole",
            Kind::Library => "capriole-library",
        }
    }

    /// Name of the memfd that stubs are mapped from.
    #[must_use]
    pub const fn stubs_name(self) -> &'static str {
        match self {
            Kind::Recorder => "capriole-stubs",
            Kind::Library => "capriole-library-stubs",
        }
    }
}

/// First word of a ledger: `CAPRLEDG` in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CAPRLEDG");
/// Version of the layout.
pub const VERSION: u32 = 3;
/// Version of the layout of an extension.
pub const EXTENSION_VERSION: u32 = 4;
/// Maximum number of memfds that stubs of one ledger are mapped from.
pub const MAX_STUBS: usize = 256;
/// Maximum number of arenas in a session.
pub const MAX_ARENAS: usize = 64;
/// Maximum size of an arena, bytes: a jump reaches no further.
const MAX_ARENA_SIZE: u64 = 2 << 30;
/// Maximum number of journal entries: a reader has to keep all of them.
pub const MAX_ENTRIES: u32 = 1 << 22;
/// The signals of faults that an instruction can raise: SIGILL, SIGBUS, SIGFPE, SIGSEGV.
pub const FAULTS: [i32; 4] = [4, 7, 8, 11];

/// Byte offsets in the header page.
pub mod header {
    use super::{FAULTS, MAX_ARENAS, MAX_STUBS};

    /// u64: [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// u32: [`super::VERSION`].
    pub const VERSION: usize = 8;
    /// u32: one of [`State`](super::State).
    pub const STATE: usize = 12;
    /// u32: process id of the target, as the tracer sees it.
    pub const PID: usize = 16;
    /// u32: process id of the tracer.
    pub const OWNER: usize = 20;
    /// u64: start time of the target, clock ticks since boot.
    pub const START_TIME: usize = 24;
    /// u64: start time of the tracer, clock ticks since boot.
    pub const OWNER_START_TIME: usize = 32;
    /// u64: address of session memory; 0: it is not mapped, or was just being mapped. After it
    /// u64: its size in bytes, and u64: its inode, which is written before the memory is mapped.
    pub const MEMORY: usize = 40;
    /// u32: journal entries in use.
    pub const JOURNAL_LEN: usize = 64;
    /// u32: arenas in use, at most [`MAX_ARENAS`].
    pub const ARENAS_LEN: usize = 68;
    /// u32: a bit for each of [`FAULTS`], followed by one for SIGTRAP, set from before the
    /// resident's handler for that signal is installed, or may be by the resident itself, until after
    /// it is removed.
    pub const ACTIONS_INSTALLED: usize = 72;
    /// u64: inode of the memory that stubs are mapped from; 0: there are none. An extension may have
    /// more in [`MORE_STUBS`].
    pub const STUBS: usize = 80;
    /// u64: address of the region through which followed calls return; 0: no calls are followed.
    pub const RETURNS: usize = 88;
    /// u64: the row that a batch of system calls in the target has reached; 0: none yet.
    pub const BATCH: usize = 96;
    /// u64: a word by which the tracer recognises the memory of a process.
    pub const MARK: usize = 104;
    /// u64: address of the words that are private to the process
    /// ([`own`](capriole_ring::layout::own)); 0: not mapped yet.
    pub const OWN: usize = 112;
    /// u64: address of the session's first ledger, in an extension of it; 0: this is the first.
    pub const BASE: usize = 120;
    /// For each of [`FAULTS`], and for SIGTRAP: u64 address of the resident's handler, 4 × u64
    /// the program's own action (`struct kernel_sigaction`: handler, flags, restorer, mask).
    pub const ACTIONS: usize = 128;
    /// Bytes of one action.
    pub const ACTION_SIZE: usize = 40;
    /// [`MAX_ARENAS`] × { u64 start, u64 length in bytes }.
    pub const ARENAS: usize = 512;

    /// 16 bytes: the UUID of the trace being recorded; zeros: none.
    pub const TRACE: usize = ARENAS + MAX_ARENAS * 16;

    /// ([`MAX_STUBS`] - 1) × u64: as [`STUBS`].
    pub const MORE_STUBS: usize = TRACE + 16;

    /// 5 × u64: start and end of the code that detours call in the program itself, start and end of the
    /// records of its threads, size of a record in bytes; zeros: they call none.
    pub const ROUTINES: usize = MORE_STUBS + (MAX_STUBS - 1) * 8;

    /// u64: 1 once everything was taken out but the memory, in which the program may have addresses.
    pub const KEPT: usize = ROUTINES + 5 * 8;

    const _: () = assert!(BASE + 8 <= ACTIONS);
    const _: () = assert!(KEPT + 8 <= super::HEADER_SIZE);
    const _: () = assert!(ACTIONS + (FAULTS.len() + 1) * ACTION_SIZE <= ARENAS);
    const _: () = assert!(TRACE + 16 <= super::HEADER_SIZE);
}

/// Byte offsets in a journal entry.
pub mod journal {
    pub use crate::change::MAX_BYTES;

    /// u64: address of the first byte that changes.
    pub const ADDRESS: usize = 0;
    /// u8: number of changed bytes, 1..=[`MAX_BYTES`].
    pub const LEN: usize = 8;
    /// u8: order of writing among the changes of one site; they are reverted in the opposite order.
    pub const PHASE: usize = 9;
    /// u8: [`CODE`], [`GUARD`], [`UNWINDER`], [`ACTION`] or [`REFERENCE`].
    pub const KIND: usize = 10;
    /// u8: 1 if the first byte never holds a breakpoint of Capriole's own.
    pub const NO_BREAKPOINT: usize = 11;
    /// u16, u16: numbers of bytes before `ADDRESS`, and from there on, that the probe changes, displaces
    /// or relies on. No other session may change them.
    pub const USES: usize = 12;
    /// [`MAX_BYTES`] × u8: the bytes before.
    pub const BEFORE: usize = 16;
    /// [`MAX_BYTES`] × u8: the bytes while probed.
    pub const AFTER: usize = 32;
    /// u64: address of the detour.
    pub const DETOUR: usize = 48;
    /// Size of an entry, bytes.
    pub const SIZE: usize = 64;
    /// Kind: a site's bytes.
    pub const CODE: u8 = 0;
    /// Kind: a guard's bytes, which are written before all others and reverted after them.
    pub const GUARD: u8 = 1;
    /// Kind: not code, but a reference counter of two bytes, which was incremented. Then `BEFORE`
    /// holds the inode of its file and its offset there, `AFTER` the device (major number above
    /// minor), and `DETOUR` the address of the word that holds its state.
    pub const REFERENCE: u8 = 2;
    /// Kind: bytes of a guard that answers unwinders, which are reverted last of all.
    pub const UNWINDER: u8 = 3;
    /// Kind: bytes of a guard behind `rt_sigaction`, which are reverted when no action is replaced
    /// any more.
    pub const ACTION: u8 = 4;
}

const HEADER_SIZE: usize = 4096;
/// Byte offset of the scratch pages.
const SCRATCH: u64 = HEADER_SIZE as u64;
/// Size of the scratch pages, bytes.
const SCRATCH_SIZE: u64 = 4 * 4096;
/// Byte offset of the trace's directory: a path that ends with a zero; empty: none is known.
const PLACE: u64 = SCRATCH + SCRATCH_SIZE;
const PLACE_SIZE: usize = 4096;
/// Byte offset of the journal.
const JOURNAL: u64 = PLACE + PLACE_SIZE as u64;
/// Number of journal bytes read at once.
const STRETCH: u64 = 64 << 10;

/// The processes of a session: target and tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The kind of the tracer.
    pub kind: Kind,
    /// The target's process id and start time (clock ticks since boot).
    pub target: (u32, u64),
    /// The tracer's process id and start time (clock ticks since boot).
    pub owner: (u32, u64),
}

/// Mapping of session memory in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryAt {
    /// Address of the first byte.
    pub base: u64,
    /// Size in bytes.
    pub size: u64,
    /// Inode of the memfd.
    pub inode: u64,
}

/// A ledger that is mapped in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    /// The kind of the session.
    pub kind: Kind,
    /// The process.
    pub pid: i32,
    /// Its address.
    pub start: u64,
    /// Size in bytes.
    pub len: u64,
    /// Inode of the memfd.
    pub inode: u64,
}

/// A replaced signal action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// The signal: SIGTRAP, or one that a faulting instruction raises.
    pub signal: i32,
    /// Our handler.
    pub handler: u64,
    /// The program's `struct kernel_sigaction`; zeros if the handler stands before none that the program
    /// had when the session began.
    pub old: [u64; 4],
}

/// Memory for detours, readable and executable in the target, never writable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arena {
    /// Address in the target.
    pub start: u64,
    /// Size in bytes.
    pub len: u64,
}

impl Arena {
    /// True if `address` lies in it.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.start + self.len).contains(&address)
    }
}

/// True if a mapping is a ledger.
pub fn is_ledger(mapping: &Mapping) -> bool {
    kind_of(mapping).is_some()
}

/// Returns the kind of the session whose ledger a mapping is.
fn kind_of(mapping: &Mapping) -> Option<Kind> {
    let name = mapping.path.as_encoded_bytes().strip_prefix(b"/memfd:")?;
    let mut kinds = Kind::ALL.into_iter();
    let kind = kinds.find(|kind| kind.ledger_name().as_bytes() == name)?;
    (!mapping.perms.shared && mapping.offset == 0).then_some(kind)
}

impl Ledger {
    /// Returns the size of a ledger with room for `entries` journal entries, bytes: whole pages.
    pub fn size(entries: u32) -> u64 {
        (JOURNAL + u64::from(entries) * journal::SIZE as u64).next_multiple_of(PAGE_SIZE)
    }

    /// Returns the number of journal entries for which there is room.
    pub fn room(&self) -> usize {
        (self.len.saturating_sub(JOURNAL) / journal::SIZE as u64) as usize
    }

    /// Returns all ledgers that are mapped in process `pid`.
    pub fn all(pid: i32, maps: &[Mapping]) -> impl Iterator<Item = Ledger> {
        let ledger = move |mapping: &Mapping| {
            Some(Ledger {
                kind: kind_of(mapping)?,
                pid,
                start: mapping.start,
                len: mapping.end - mapping.start,
                inode: mapping.inode,
            })
        };
        maps.iter().filter_map(ledger)
    }

    /// Returns the ledgers of sessions of this kind that are mapped in process `pid`.
    pub fn of(kind: Kind, pid: i32, maps: &[Mapping]) -> impl Iterator<Item = Ledger> {
        Ledger::all(pid, maps).filter(move |ledger| ledger.kind == kind)
    }

    /// Returns true if the ledger is still mapped: not after exec, nor after another process has
    /// removed everything.
    ///
    /// # Errors
    /// The process is gone.
    pub fn is_in(&self, process: &Process) -> Result<bool, TargetError> {
        let maps = process.maps()?;
        let mut ledgers = Ledger::all(self.pid, &maps);
        Ok(ledgers.any(|l| (l.start, l.inode) == (self.start, self.inode)))
    }

    /// Returns the memory for a frame or arguments.
    pub fn scratch(&self) -> Range<u64> {
        self.start + SCRATCH..self.start + PLACE
    }

    /// Returns the address where a batch of system calls records the row that it has reached.
    pub fn batch(&self) -> u64 {
        self.start + header::BATCH as u64
    }

    fn put(&self, remote: &dyn TargetMemory, at: u64, bytes: &[u8]) -> Result<(), TargetError> {
        let address = self.start + at;
        let written = remote.write(address, bytes);
        written.map_err(TargetError::writing(self.pid, address))
    }

    fn put_words(
        &self,
        remote: &dyn TargetMemory,
        at: usize,
        words: &[u64],
    ) -> Result<(), TargetError> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.put(remote, at as u64, &bytes)
    }

    fn put_half(&self, remote: &dyn TargetMemory, at: usize, half: u32) -> Result<(), TargetError> {
        self.put(remote, at as u64, &half.to_le_bytes())
    }

    /// Initialises a newly mapped ledger, by one write; an extension gets the session's first
    /// ledger and its memory.
    pub fn begin(
        &self,
        remote: &dyn TargetMemory,
        who: &Identity,
        extends: Option<(&Ledger, &MemoryAt)>,
    ) -> Result<(), TargetError> {
        let mut bytes = [0; header::ACTIONS];
        let mut put = |at: usize, b: &[u8]| bytes[at..at + b.len()].copy_from_slice(b);
        let version = match extends {
            Some((base, memory)) => {
                put(header::BASE, &base.start.to_le_bytes());
                for (index, word) in [memory.base, memory.size, memory.inode].iter().enumerate() {
                    put(header::MEMORY + index * 8, &word.to_le_bytes());
                }
                EXTENSION_VERSION
            }
            None => VERSION,
        };
        put(header::MAGIC, &MAGIC.to_le_bytes());
        put(header::VERSION, &version.to_le_bytes());
        put(header::STATE, &(State::Building as u32).to_le_bytes());
        put(header::PID, &who.target.0.to_le_bytes());
        put(header::OWNER, &who.owner.0.to_le_bytes());
        put(header::START_TIME, &who.target.1.to_le_bytes());
        put(header::OWNER_START_TIME, &who.owner.1.to_le_bytes());
        self.put(remote, 0, &bytes)?;
        step("ledger begun");
        Ok(())
    }

    /// Records where session memory is mapped.
    pub fn note_memory(
        &self,
        remote: &dyn TargetMemory,
        memory: &MemoryAt,
    ) -> Result<(), TargetError> {
        let words = [memory.base, memory.size, memory.inode];
        self.put_words(remote, header::MEMORY, &words)?;
        step("session memory noted");
        Ok(())
    }

    /// Records the trace that the session's records go to. A path that is too long is left out.
    pub fn note_trace(
        &self,
        remote: &dyn TargetMemory,
        trace: &TracePlace,
    ) -> Result<(), TargetError> {
        let mut path = trace.directory.as_os_str().as_bytes().to_vec();
        path.push(0);
        if path.len() <= PLACE_SIZE {
            self.put(remote, PLACE, &path)?;
        }
        self.put(remote, header::TRACE as u64, &trace.id)
    }

    /// Returns the directory of the trace, as the process tells it. `None` if none is known.
    pub fn trace_directory(&self, remote: &dyn TargetMemory) -> Option<PathBuf> {
        let mut page = vec![0; PLACE_SIZE];
        remote.read(self.start + PLACE, &mut page).ok()?;
        let end = page.iter().position(|byte| *byte == 0)?;
        page.truncate(end);
        let path = PathBuf::from(OsString::from_vec(page));
        path.is_absolute().then_some(path)
    }

    /// Records that nothing leads to the session's code any more but what the program may have read.
    pub fn note_kept(&self, remote: &dyn TargetMemory) -> Result<(), TargetError> {
        self.put_words(remote, header::KEPT, &[1])
    }

    /// Records the code that detours call in the program itself.
    pub fn note_routines(
        &self,
        remote: &dyn TargetMemory,
        routines: &Routines,
    ) -> Result<(), TargetError> {
        let Routines {
            text,
            records,
            record_size,
        } = routines;
        let words = [
            text.start,
            text.end,
            records.start,
            records.end,
            *record_size,
        ];
        self.put_words(remote, header::ROUTINES, &words)
    }

    /// Records the address of the words that are private to the process.
    pub fn note_own(&self, remote: &dyn TargetMemory, address: u64) -> Result<(), TargetError> {
        self.put_words(remote, header::OWN, &[address])
    }

    /// Records the state of the session.
    pub fn note_state(&self, remote: &dyn TargetMemory, state: State) -> Result<(), TargetError> {
        self.put_half(remote, header::STATE, state as u32)?;
        step("state written");
        Ok(())
    }

    /// Records that arena number `index` is about to be mapped, or, if its length is 0, that it is
    /// not.
    pub fn note_arena(
        &self,
        remote: &dyn TargetMemory,
        index: usize,
        arena: &Arena,
    ) -> Result<(), TargetError> {
        let at = header::ARENAS + index * 16;
        self.put_words(remote, at, &[arena.start, arena.len])
    }

    /// Records how many arenas are mapped.
    pub fn count_arenas(&self, remote: &dyn TargetMemory, count: usize) -> Result<(), TargetError> {
        self.put_half(remote, header::ARENAS_LEN, count as u32)
    }

    /// Records the inode of the memory that stubs are about to be mapped from, as number `index` of
    /// this ledger's.
    pub fn note_stubs(
        &self,
        remote: &dyn TargetMemory,
        index: usize,
        inode: u64,
    ) -> Result<(), TargetError> {
        self.put_words(remote, stubs_at(index), &[inode])
    }

    /// Records the address of the region through which calls return.
    pub fn note_returns(&self, remote: &dyn TargetMemory, base: u64) -> Result<(), TargetError> {
        self.put_words(remote, header::RETURNS, &[base])
    }

    /// Records that a batch of system calls has not reached any row.
    pub fn forget_batch(&self, remote: &dyn TargetMemory) -> Result<(), TargetError> {
        self.put_words(remote, header::BATCH, &[0])
    }

    /// Records a signal action that is about to be replaced.
    pub fn note_action(
        &self,
        remote: &dyn TargetMemory,
        action: &Action,
    ) -> Result<(), TargetError> {
        let mut signals = signals();
        let Some(index) = signals.position(|signal| signal == action.signal) else {
            return Ok(());
        };
        let [handler, flags, restorer, mask] = action.old;
        let words = [action.handler, handler, flags, restorer, mask];
        let at = header::ACTIONS + index * header::ACTION_SIZE;
        self.put_words(remote, at, &words)?;
        let installed = self.header(remote)?.half(header::ACTIONS_INSTALLED) | 1 << index;
        self.put_half(remote, header::ACTIONS_INSTALLED, installed)?;
        step("journal of a signal action written");
        Ok(())
    }

    /// Writes a word that no copy of this ledger has; returns the word's address.
    pub fn mark(&self, remote: &dyn TargetMemory, word: u64) -> Result<u64, TargetError> {
        self.put_words(remote, header::MARK, &[word])?;
        Ok(self.start + header::MARK as u64)
    }

    /// Records that the action of one signal is not replaced after all.
    pub fn forget_action(&self, remote: &dyn TargetMemory, signal: i32) -> Result<(), TargetError> {
        let Some(index) = signals().position(|own| own == signal) else {
            return Ok(());
        };
        let installed = self.header(remote)?.half(header::ACTIONS_INSTALLED) & !(1 << index);
        self.put_half(remote, header::ACTIONS_INSTALLED, installed)
    }

    /// Records that no signal action is replaced any more.
    pub fn forget_actions(&self, remote: &dyn TargetMemory) -> Result<(), TargetError> {
        self.put_half(remote, header::ACTIONS_INSTALLED, 0)
    }

    /// Appends entries to the journal, which holds `len` so far.
    pub fn append(
        &self,
        remote: &dyn TargetMemory,
        len: usize,
        entries: &[Entry],
    ) -> Result<(), TargetError> {
        if entries.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = entries.iter().flat_map(Entry::bytes).collect();
        let at = JOURNAL + (len * journal::SIZE) as u64;
        if at + bytes.len() as u64 > self.len {
            return Err(self.damaged("the journal is full"));
        }
        self.put(remote, at, &bytes)?;
        step("journal entries written");
        // The count last: an entry that is counted is complete.
        let len = (len + entries.len()) as u32;
        self.put_half(remote, header::JOURNAL_LEN, len)
    }

    fn damaged(&self, what: &'static str) -> TargetError {
        let pid = self.pid;
        TargetError::Damaged { pid, what }
    }

    fn read(
        &self,
        remote: &dyn TargetMemory,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), TargetError> {
        let address = self.start + at;
        let read = remote.read(address, bytes);
        read.map_err(TargetError::reading(self.pid, address))
    }

    /// Reads the header.
    pub fn header(&self, remote: &dyn TargetMemory) -> Result<Header, TargetError> {
        if self.len < JOURNAL {
            return Err(self.damaged("its ledger is too small"));
        }
        let mut bytes = [0; HEADER_SIZE];
        self.read(remote, 0, &mut bytes)?;
        let ledger = *self;
        Ok(Header { ledger, bytes })
    }
}

/// Returns the offset of the inode of stub memory number `index`.
fn stubs_at(index: usize) -> usize {
    match index {
        0 => header::STUBS,
        _ => header::MORE_STUBS + (index - 1) * 8,
    }
}

/// Returns the signals whose actions may be replaced, in the order of the ledger.
fn signals() -> impl Iterator<Item = i32> {
    FAULTS.into_iter().chain([libc::SIGTRAP])
}

/// A copy of a ledger's header.
pub struct Header {
    ledger: Ledger,
    bytes: [u8; HEADER_SIZE],
}

impl Header {
    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_le_bytes(word)
    }

    fn half(&self, at: usize) -> u32 {
        let mut half = [0; 4];
        half.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(half)
    }

    /// Returns true if the header has been written. The tracer may have died before that.
    pub fn is_begun(&self) -> Result<bool, TargetError> {
        match (self.word(header::MAGIC), self.half(header::VERSION)) {
            (MAGIC, VERSION) => Ok(true),
            (MAGIC, EXTENSION_VERSION) if self.base() != 0 => Ok(true),
            (0, 0) => Ok(false),
            (MAGIC, _) => Err(self.ledger.damaged(
                "its ledger has another version: take the probes out with the capriole that made it",
            )),
            _ => Err(self.ledger.damaged("its ledger is none")),
        }
    }

    /// Returns the state of the session in this process.
    pub fn state(&self) -> Result<State, TargetError> {
        let state = State::from_word(self.half(header::STATE));
        state.ok_or(self.ledger.damaged("unknown state"))
    }

    /// Returns the id of the process that the session was made for; a forked child has its parent's
    /// here.
    pub fn pid(&self) -> u32 {
        self.half(header::PID)
    }

    /// The tracer's process id and start time.
    pub fn owner(&self) -> (u32, u64) {
        (
            self.half(header::OWNER),
            self.word(header::OWNER_START_TIME),
        )
    }

    /// Returns the mapping of session memory, if it was recorded.
    pub fn memory(&self) -> Option<MemoryAt> {
        let word = |i: usize| self.word(header::MEMORY + i * 8);
        let memory = MemoryAt {
            base: word(0),
            size: word(1),
            inode: word(2),
        };
        (memory.base != 0).then_some(memory)
    }

    /// Returns the inode of session memory that is mapped, or was about to be; 0: none.
    pub fn memory_inode(&self) -> u64 {
        self.word(header::MEMORY + 16)
    }

    /// Returns the arenas, including one that was being mapped when the tracer died, which is not
    /// counted.
    pub fn arenas(&self) -> Result<Vec<Arena>, TargetError> {
        let len = self.half(header::ARENAS_LEN) as usize;
        if len > MAX_ARENAS {
            return Err(self.ledger.damaged("too many arenas"));
        }
        let arenas = (0..(len + 1).min(MAX_ARENAS)).map(|index| {
            let at = header::ARENAS + index * 16;
            Arena {
                start: self.word(at),
                len: self.word(at + 8),
            }
        });
        let arenas: Vec<Arena> = arenas.filter(|arena| arena.len > 0).collect();
        match arenas.iter().any(|arena| arena.len > MAX_ARENA_SIZE) {
            true => Err(self.ledger.damaged("an arena is too large")),
            false => Ok(arenas),
        }
    }

    /// Returns the trace being recorded, if any.
    pub fn trace(&self) -> Option<TraceId> {
        let mut trace = TraceId::default();
        trace.copy_from_slice(&self.bytes[header::TRACE..header::TRACE + 16]);
        (trace != TraceId::default()).then_some(trace)
    }

    /// True if nothing leads to the session's code any more but what the program may have read.
    pub fn is_kept(&self) -> bool {
        self.word(header::KEPT) != 0
    }

    /// Returns the code that detours call in the program itself.
    pub fn routines(&self) -> Option<Routines> {
        let [start, end, first, last, record_size] =
            [0, 8, 16, 24, 32].map(|at| self.word(header::ROUTINES + at));
        (start < end).then_some(Routines {
            text: start..end,
            records: first..last,
            record_size,
        })
    }

    /// Returns the address of the ledger that this one extends; 0: none.
    pub fn base(&self) -> u64 {
        self.word(header::BASE)
    }

    /// Returns the inodes of the memory that stubs are mapped from.
    pub fn stubs(&self) -> Vec<u64> {
        let inodes = (0..MAX_STUBS).map(|index| self.word(stubs_at(index)));
        inodes.filter(|inode| *inode != 0).collect()
    }

    /// Returns the address of the memory through which followed calls return; 0 if there is none.
    pub fn returns(&self) -> u64 {
        self.word(header::RETURNS)
    }

    /// Returns the address of the words that are private to the process, inside its session memory.
    pub fn own(&self) -> Option<u64> {
        let (own, memory) = (self.word(header::OWN), self.memory()?);
        let end = memory.base.checked_add(memory.size)?;
        (memory.base..end).contains(&own).then_some(own)
    }

    /// Returns the replaced signal actions.
    pub fn actions(&self) -> Vec<Action> {
        let installed = self.half(header::ACTIONS_INSTALLED);
        let signals = signals().enumerate();
        let replaced = signals.filter(|(index, _)| installed >> index & 1 == 1);
        replaced
            .map(|(index, signal)| {
                let at = header::ACTIONS + index * header::ACTION_SIZE;
                Action {
                    signal,
                    handler: self.word(at),
                    old: std::array::from_fn(|i| self.word(at + 8 + i * 8)),
                }
            })
            .collect()
    }

    /// Returns the number of journal entries.
    pub fn entries(&self) -> u32 {
        self.half(header::JOURNAL_LEN)
    }

    /// Reads the journal, a part at a time: where a ledger's count is false there are no entries,
    /// and reading ends.
    pub fn journal(
        &self,
        remote: &dyn TargetMemory,
        mut visit: impl FnMut(Entry),
    ) -> Result<(), TargetError> {
        let ledger = &self.ledger;
        let bytes = u64::from(self.entries()) * journal::SIZE as u64;
        if self.entries() > MAX_ENTRIES || bytes > ledger.len - JOURNAL {
            return Err(ledger.damaged("the journal does not fit"));
        }
        let mut done = 0;
        while done < bytes {
            let mut stretch = vec![0; (bytes - done).min(STRETCH) as usize];
            ledger.read(remote, JOURNAL + done, &mut stretch)?;
            for bytes in stretch.chunks_exact(journal::SIZE) {
                let entry = Entry::read(bytes);
                visit(entry.ok_or(ledger.damaged("a journal entry makes no sense"))?);
            }
            done += stretch.len() as u64;
        }
        Ok(())
    }
}

/// An entry of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A site's bytes, or a guard's.
    Change(Change),
    /// A reference counter.
    Reference(Reference),
}

impl Entry {
    fn bytes(&self) -> [u8; journal::SIZE] {
        let mut entry = [0; journal::SIZE];
        let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
        match self {
            Entry::Change(change) => {
                let kind = match change {
                    Change { unwinder: true, .. } => journal::UNWINDER,
                    Change { action: true, .. } => journal::ACTION,
                    Change { guard: true, .. } => journal::GUARD,
                    _ => journal::CODE,
                };
                put(journal::ADDRESS, &change.address.to_le_bytes());
                let no_breakpoint = u8::from(!change.breakpoint);
                let head = [change.len as u8, change.phase, kind, no_breakpoint];
                put(journal::LEN, &head);
                put(journal::USES, &change.uses.back.to_le_bytes());
                put(journal::USES + 2, &change.uses.ahead.to_le_bytes());
                put(journal::BEFORE, &change.before);
                put(journal::AFTER, &change.after);
                put(journal::DETOUR, &change.detour.to_le_bytes());
            }
            Entry::Reference(reference) => {
                let counter = &reference.counter;
                let device = u64::from(counter.dev.major) << 32 | u64::from(counter.dev.minor);
                put(journal::ADDRESS, &counter.address.to_le_bytes());
                put(journal::LEN, &[2, 0, journal::REFERENCE, 1]);
                put(journal::BEFORE, &counter.inode.to_le_bytes());
                put(journal::BEFORE + 8, &counter.offset.to_le_bytes());
                put(journal::AFTER, &device.to_le_bytes());
                put(journal::DETOUR, &reference.state.to_le_bytes());
            }
        }
        entry
    }

    fn read(entry: &[u8]) -> Option<Entry> {
        let word = |at: usize| {
            let bytes = entry.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let bytes = |at: usize| entry.get(at..at + journal::MAX_BYTES)?.try_into().ok();
        let (len, kind) = (*entry.get(journal::LEN)?, *entry.get(journal::KIND)?);
        if len == 0 || usize::from(len) > journal::MAX_BYTES {
            return None;
        }
        let address = word(journal::ADDRESS)?;
        let short = |at: usize| Some(u16::from_le_bytes(entry.get(at..at + 2)?.try_into().ok()?));
        match kind {
            journal::REFERENCE => {
                let device = word(journal::AFTER)?;
                Some(Entry::Reference(Reference {
                    counter: ReferenceCounter {
                        address,
                        offset: word(journal::BEFORE + 8)?,
                        dev: Device {
                            major: (device >> 32) as u32,
                            minor: device as u32,
                        },
                        inode: word(journal::BEFORE)?,
                    },
                    state: word(journal::DETOUR)?,
                }))
            }
            journal::CODE | journal::GUARD | journal::UNWINDER | journal::ACTION => {
                let uses = Uses {
                    back: short(journal::USES)?,
                    // A ledger of an older version has 0 there.
                    ahead: short(journal::USES + 2)?.max(len.into()),
                };
                // The program can write to its memory: sums with these must not overflow.
                address.checked_sub(uses.back.into())?;
                address.checked_add(uses.ahead.into())?;
                Some(Entry::Change(Change {
                    address,
                    len: len.into(),
                    before: bytes(journal::BEFORE)?,
                    after: bytes(journal::AFTER)?,
                    detour: word(journal::DETOUR)?,
                    uses,
                    phase: *entry.get(journal::PHASE)?,
                    guard: kind != journal::CODE,
                    unwinder: kind == journal::UNWINDER,
                    action: kind == journal::ACTION,
                    breakpoint: *entry.get(journal::NO_BREAKPOINT)? == 0,
                }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written() {
        let change = |guard, unwinder| {
            Entry::Change(Change {
                address: 0x1234_5678_9abc,
                len: 5,
                before: *b"before..........",
                after: *b"after...........",
                detour: 0x4242,
                uses: Uses { back: 7, ahead: 19 },
                phase: 3,
                guard,
                unwinder,
                action: guard && !unwinder,
                breakpoint: !guard,
            })
        };
        let reference = Entry::Reference(Reference {
            counter: ReferenceCounter {
                address: 0x1234,
                offset: 0x5678,
                dev: Device {
                    major: 259,
                    minor: 7,
                },
                inode: 42,
            },
            state: 0x9abc,
        });
        for entry in [
            change(false, false),
            change(true, false),
            change(true, true),
            reference,
        ] {
            assert_eq!(Entry::read(&entry.bytes()), Some(entry));
        }
    }

    #[test]
    fn entries_without_sense_are_none() {
        assert_eq!(Entry::read(&[0; journal::SIZE]), None);
        let with = |at: usize, byte: u8| {
            let mut entry = [0; journal::SIZE];
            entry[journal::LEN] = 1;
            entry[at] = byte;
            Entry::read(&entry)
        };
        assert!(with(journal::PHASE, 255).is_some());
        assert_eq!(with(journal::LEN, 17), None);
        assert_eq!(with(journal::KIND, 5), None);
        // The bytes it changes would end behind the end of memory.
        let mut entry = [0; journal::SIZE];
        entry[journal::LEN] = 5;
        entry[journal::ADDRESS..journal::ADDRESS + 8].fill(0xff);
        assert_eq!(Entry::read(&entry), None);
    }
}
