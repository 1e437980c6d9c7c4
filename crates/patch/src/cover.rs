//! Covers of text: private memory in the place of the pages that probes are written to.
//!
//! The kernel puts a uprobe into each mapping of its file, without a look at what is there. If that is a
//! jump over several instructions, the program executes the file's first instruction and goes on in the
//! middle of the jump. Into other memory it puts none. So the pages are covered before anything is
//! written to them:
//!
//! ```text
//!  program                                aside
//!  text of the file                       reserved             memfd: the same bytes
//!       │  mremap, MREMAP_DONTUNMAP
//!  the file again, no page read yet  ──▶  text of the file
//!       │  mremap of the memfd's mapping
//!  cover: the same bytes                  text of the file: uprobes go here
//! ```
//!
//! When the probes are out, the mappings that stand aside return to their places, with the uprobes that
//! have been registered meanwhile: the program is as if we had not been there.
//!
//! Why that is safe: all threads are stopped, so nobody executes, maps or unmaps anything meanwhile. At
//! each moment the same bytes are in place, also if we are killed in between: a page is covered only if
//! it holds what its file holds, so it makes no difference whether the mapping moved aside, the one that
//! the kernel leaves in its place, or the cover is read. Nothing is written to a ledger: the name of the
//! memfd says where everything belongs ([`capriole_proc::maps::Cover`]), in a forked child as well.
//!
//! A page is left alone, and its probes are written as before, if it holds something else than the file
//! (another tool's breakpoint, which would find no handler in a cover; a program that has changed its own
//! text), if it is shared, writable or not a file's, if the process would have too many mappings, or if
//! the kernel is older than 5.13, in which `MREMAP_DONTUNMAP` moves no files.

use crate::installed::Installed;
use crate::ranges::Ranges;
use crate::session::{Agent, AgentOf, Batch, Move, fill, write};
use capriole_host::error::TargetError;
use capriole_host::host::{Calls, Host, StoppedThreads, TargetMemory};
use capriole_host::memfd;
use capriole_host::steps::step;
use capriole_ledger::change::{Change, INT3};
use capriole_ledger::{Arena, Entry, Ledger};
use capriole_proc::maps::{
    Aside, Cover, Layout, Mapping, PAGE_SIZE, asides, containing, covers, free_stretches,
    is_covered, max_map_count,
};
use capriole_proc::process::Process;
use capriole_ring::layout::State;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Maximum number of runs of pages that are covered, or uncovered, in one stop.
const AT_ONCE: usize = 64;
/// Maximum number of pages between two runs that are covered with them, where there are more runs than are
/// covered in one stop: they are copied in less time than a run is moved.
const GAP: u64 = 3;
/// Stops in which no thread may be able to make calls.
const TRIES: u32 = 100;
/// Runs that the kernel may refuse to move before no other is tried.
const REFUSALS: usize = 8;
/// Attempts to reserve addresses, between which the program may have mapped something there.
const ATTEMPTS: usize = 3;
/// Mappings that are left to the process in any case.
const RESERVE: usize = 4096;
/// Mappings that a run of covered pages may take: the rest of the mapping behind it, the cover, and what
/// stands aside.
const MAPPINGS: usize = 3;

/// Memory that is ready to cover pages.
#[derive(Debug)]
pub(crate) struct Ready {
    aside: Aside,
    inode: u64,
    /// The ranges of pages, ascending, with their mappings.
    runs: Vec<Run>,
    /// The bytes of all pages.
    bytes: Vec<u8>,
    /// Number of runs that have been tried.
    done: usize,
    /// Number of runs that the kernel has refused.
    refused: usize,
    /// Number of stops in which no thread could make calls.
    tries: u32,
}

/// A range of pages to be covered.
#[derive(Debug, Clone)]
struct Run {
    start: u64,
    end: u64,
    /// Offset in the memfd.
    offset: u64,
    /// The mapping that it is a part of.
    of: Mapping,
}

impl Run {
    fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// Adds to some pages those between them that are covered as well, so that there are fewer runs.
fn with_gaps(pages: &BTreeSet<u64>) -> BTreeSet<u64> {
    let distances = || pages.iter().zip(pages.iter().skip(1));
    let gaps = distances().filter(|(page, next)| *next - *page > PAGE_SIZE);
    if gaps.count() < AT_ONCE {
        return pages.clone();
    }
    let between = distances()
        .filter(|(page, next)| *next - *page <= (GAP + 1) * PAGE_SIZE)
        .flat_map(|(page, next)| (*page..*next).step_by(PAGE_SIZE as usize));
    pages.iter().copied().chain(between).collect()
}

/// Returns the pages among these that hold what their files hold, joined to ranges, and those that hold
/// something else.
fn coverable(
    process: &Process,
    pages: &BTreeSet<u64>,
) -> Result<(Vec<Run>, BTreeSet<u64>), TargetError> {
    if process.has_locked_memory() {
        // Text that is locked in memory would be no more after its moves, and counted as if.
        return Ok((Vec::new(), BTreeSet::new()));
    }
    let maps = process.raw_maps()?;
    let device = memfd::device();
    let mapping_of = |page: u64| {
        let mapping = containing(&maps, page)?;
        let perms = mapping.perms;
        let is_text = mapping.is_file()
            && (perms.read && perms.execute && !perms.write && !perms.shared)
            && device.is_some_and(|device| mapping.dev != device);
        is_text.then_some(mapping)
    };
    let pages: Vec<(u64, &Mapping)> = pages
        .iter()
        .filter_map(|page| Some((*page, mapping_of(*page)?)))
        .collect();
    let addresses: Vec<u64> = pages.iter().map(|(page, _)| *page).collect();
    let own = process.has_own_copies(&addresses)?;
    let mut runs: Vec<Run> = Vec::new();
    let mut altered = BTreeSet::new();
    let mut file: Option<(u64, Option<File>)> = None;
    for ((page, mapping), own) in pages.into_iter().zip(own) {
        if own {
            if file.as_ref().is_none_or(|(of, _)| *of != mapping.start) {
                file = Some((mapping.start, open(process, mapping)));
            }
            let file = file.as_ref().and_then(|(_, file)| file.as_ref());
            let is_files = |file| is_as_in(file, process, page, mapping).unwrap_or(false);
            if !file.is_some_and(is_files) {
                altered.insert(page);
                continue;
            }
        }
        match runs.last_mut() {
            Some(run) if run.end == page && run.of.start == mapping.start => run.end += PAGE_SIZE,
            _ => runs.push(Run {
                start: page,
                end: page + PAGE_SIZE,
                offset: 0,
                of: mapping.clone(),
            }),
        }
    }
    // Half of what the process may still map stays its own, and a reserve.
    let free = max_map_count().saturating_sub(maps.len());
    let room = free.saturating_sub(RESERVE) / 2 / MAPPINGS;
    runs.truncate(room);
    Ok((runs, altered))
}

/// Returns those of some pages that are not covered.
pub(crate) fn uncovered(maps: &[Mapping], pages: BTreeSet<u64>) -> BTreeSet<u64> {
    let pages = pages.into_iter();
    pages.filter(|page| !is_covered(maps, *page)).collect()
}

/// Opens the file of a mapping.
fn open(process: &Process, mapping: &Mapping) -> Option<File> {
    process.open_mapped(mapping).ok().or_else(|| {
        let path = process.in_root(mapping.path.as_ref());
        let file = capriole_proc::files::open(&path).ok()?;
        let metadata = file.metadata().ok()?;
        let device = capriole_proc::maps::Device::from_st_dev(metadata.dev());
        ((device, metadata.ino()) == (mapping.dev, mapping.inode)).then_some(file)
    })
}

/// True if a page holds what the file holds.
fn is_as_in(file: &File, process: &Process, page: u64, mapping: &Mapping) -> Option<bool> {
    let (mut here, mut there) = ([0; PAGE_SIZE as usize], [0; PAGE_SIZE as usize]);
    process.read_memory(page, &mut here).ok()?;
    // Behind the end of the file is nothing but zeros.
    let mut at = mapping.offset + (page - mapping.start);
    let mut rest = &mut there[..];
    while !rest.is_empty() {
        let count = file.read_at(rest, at).ok()?;
        if count == 0 {
            break;
        }
        at += count as u64;
        rest = &mut rest[count..];
    }
    Some(here == there)
}

impl Ready {
    /// Prepares covers for those of some pages that can have one, while the program runs. `None` if
    /// there are none. Returns the pages as well that cannot, since they hold something else than their file.
    ///
    /// # Errors
    /// The process is gone, or no thread of it can make calls.
    pub(crate) fn prepare(
        host: &dyn Host,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        pages: &BTreeSet<u64>,
    ) -> Result<(Option<Ready>, BTreeSet<u64>), TargetError> {
        let process = host.process();
        let (runs, altered) = coverable(process, &with_gaps(pages))?;
        let ready = match runs.is_empty() {
            true => None,
            false => Ready::of(host, remote, ledger, runs)?,
        };
        Ok((ready, altered))
    }

    fn of(
        host: &dyn Host,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        mut runs: Vec<Run>,
    ) -> Result<Option<Ready>, TargetError> {
        let process = host.process();
        // The first page covers nothing: it keeps the addresses.
        let mut len = PAGE_SIZE;
        let mut bytes = Vec::new();
        for run in &mut runs {
            run.offset = len;
            len += run.len();
            let read = remote.read_some(run.start, run.len() as usize);
            let read = read.map_err(TargetError::reading(process.pid() as i32, run.start))?;
            if read.len() as u64 != run.len() {
                return Ok(None); // unmapped meanwhile
            }
            bytes.extend(read);
        }
        let agent = Agent::hire(host, remote)?;
        release_unused(&agent, process, remote, ledger)?;
        for _ in 0..ATTEMPTS {
            // In the middle of nowhere: the neighbourhood of text is for jumps.
            let free = free_stretches(&process.maps()?, &Layout::of(process));
            let widest = free.into_iter().max_by_key(|free| free.end - free.start);
            // With the spare range.
            let Some(free) = widest.filter(|free| free.end - free.start >= 2 * len) else {
                break;
            };
            let start = free.start + (free.end - free.start - 2 * len) / 2 / PAGE_SIZE * PAGE_SIZE;
            let aside = Aside(start..start + len);
            if let Some(inode) = agent.reserve(remote, ledger, &aside, &bytes)? {
                agent.dismiss();
                return Ok(Some(Ready {
                    aside,
                    inode,
                    runs,
                    bytes,
                    done: 0,
                    refused: 0,
                    tries: 0,
                }));
            }
        }
        agent.dismiss();
        Ok(None)
    }

    /// Covers the next pages, and returns true if there are more. `maps` are the mappings of the process
    /// now, as the kernel has them.
    ///
    /// # Errors
    /// The process is gone, or no thread of it can make calls now.
    pub(crate) fn put(
        &mut self,
        host: &dyn Host,
        stopped: &(dyn StoppedThreads + 'static),
        remote: &dyn TargetMemory,
        maps: &[Mapping],
        (ledger, arenas): (&Ledger, &[Arena]),
    ) -> Result<bool, TargetError> {
        if self.done == self.runs.len() {
            return Ok(false);
        }
        let process = host.process();
        let agent = match AgentOf::among(host, stopped, remote, maps) {
            // All of them are about to receive signals, for instance.
            Err(error) if error.is_momentary() && self.tries < TRIES => {
                self.tries += 1;
                return Ok(true);
            }
            agent => agent?,
        };
        // Another thread may have put another file in the place of ours before it was mapped.
        let spare = self.aside.spare();
        let is_ours =
            |m: &&Mapping| m.inode == self.inode && Aside::of(m).as_ref() == Some(&self.aside);
        let ours = maps.iter().filter(is_ours);
        let ready = ours.map(|m| {
            let end = m.end.min(spare.end);
            end.saturating_sub(m.start.max(spare.start))
        });
        let next = match ready.sum::<u64>() == spare.end - spare.start {
            true => self.runs.len().min(self.done + AT_ONCE),
            false => self.done,
        };
        let is_there = |run: &&Run| {
            let is_same = containing(maps, run.start).is_some_and(|m| {
                (m.dev, m.inode, m.perms) == (run.of.dev, run.of.inode, run.of.perms)
                    && run.end <= m.end
                    && run.of.offset + (run.start - run.of.start)
                        == m.offset + (run.start - m.start)
            });
            let now = || remote.read_some(run.start, run.len() as usize);
            is_same && now().is_ok_and(|now| now == self.bytes_of(run))
        };
        let runs = self.runs[self.done..next].iter();
        let runs: Vec<&Run> = runs.filter(is_there).collect();
        let place = agent.scratch(ledger);
        let mut refused = self.refused;
        let mut end = next;
        let batch = batch(&agent, process, remote, arenas, self.aside.0.start);
        agent.with(remote, place, |i| {
            let mut moves: Vec<Move> = runs.iter().flat_map(|run| self.moves(run)).collect();
            while refused < REFUSALS
                && let Some(at) =
                    agent.move_mappings(i, remote, ledger, (&moves, true), batch.as_ref())?
            {
                refused += 1;
                if at % 2 == 1 {
                    // What is in its place is the same file: if it cannot be moved back, the program
                    // runs on.
                    let Move { from, to, len } = moves[at - 1];
                    let back = Move {
                        from: to,
                        to: from,
                        len,
                    };
                    agent.move_mappings(i, remote, ledger, (&[back], true), None)?;
                }
                moves.drain(..(at / 2 + 1) * 2);
            }
            step("pages covered");
            if refused == REFUSALS || next == self.done {
                end = self.runs.len();
            }
            Ok(())
        })?;
        (self.done, self.refused) = (end, refused);
        Ok(self.done < self.runs.len())
    }

    /// Returns the two moves by which a run is covered.
    fn moves(&self, run: &Run) -> [Move; 2] {
        let len = run.len();
        let aside = Move {
            from: run.start,
            to: self.aside.0.start + run.offset,
            len,
        };
        let cover = Move {
            from: self.aside.spare().start + run.offset - PAGE_SIZE,
            to: run.start,
            len,
        };
        [aside, cover]
    }

    fn bytes_of(&self, run: &Run) -> &[u8] {
        let start = (run.offset - PAGE_SIZE) as usize;
        &self.bytes[start..start + run.len() as usize]
    }

    /// Unmaps everything if nothing is covered.
    ///
    /// # Errors
    /// The process is gone, or no thread of it can make calls.
    pub(crate) fn finish(
        self,
        host: &dyn Host,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
    ) -> Result<(), TargetError> {
        let maps = host.process().raw_maps()?;
        if covers(&maps).any(|cover| cover.aside == self.aside) {
            return Ok(());
        }
        let agent = Agent::hire(host, remote)?;
        let released = agent.with(remote, agent.scratch(ledger), |i| {
            release(i, &maps, &self.aside)
        })?;
        released.map_err(agent.refused("unmap memory for covered text"))
    }
}

/// Returns the code that moves many mappings at once, with a table at `table`. If we die meanwhile, the
/// thread goes on with the rest by itself, which is right after each move; `None` if it has a filter of
/// system calls, which might forbid them then.
fn batch(
    agent: &AgentOf<'_>,
    process: &Process,
    remote: &dyn TargetMemory,
    arenas: &[Arena],
    table: u64,
) -> Option<Batch> {
    let may_go_on = !agent.is_filtered(process);
    may_go_on.then(|| Batch::of_moves(remote, arenas, table))?
}

impl Agent {
    /// Maps a memfd for covers with `bytes` behind its first page, and reserves the range where what
    /// they cover stands aside. Returns its inode; `None` if something is mapped there, or the program
    /// may not have executable memory of that kind, or no more memory.
    fn reserve(
        &self,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
        aside: &Aside,
        bytes: &[u8],
    ) -> Result<Option<u64>, TargetError> {
        let pid = self.pid();
        let (place, name) = self.scratch_and_more(ledger);
        let text = [aside.name().as_bytes(), b"\0"].concat();
        write(pid, remote, name, &text)?;
        self.with(remote, place, |i| {
            let fd = match self.create_executable(i, name) {
                Err(TargetError::Refused { .. }) => return Ok(None),
                fd => fd?,
            };
            step("memory for covers created");
            let mapped = match fill(pid, fd as i32, PAGE_SIZE, bytes) {
                Ok(inode) => map(i, aside, fd).map(|mapped| mapped.then_some(inode)),
                Err(TargetError::Share { .. }) => Ok(None),
                Err(error) => Err(error),
            };
            // It is not to take a number from the program for longer than it must.
            let _ = i.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
            step("memory for covers mapped");
            mapped
        })
    }
}

/// Maps a memfd of covers to the range where what they cover is to stand, whose first page holds tables of
/// calls, and its contents to the spare range behind. Returns false if something else is mapped there.
fn map(i: &mut dyn Calls, aside: &Aside, fd: u64) -> Result<bool, TargetError> {
    let (start, spare) = (aside.0.start, aside.spare());
    let len = spare.end - start;
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    let reserve = flags | libc::MAP_FIXED_NOREPLACE;
    let call = [start, len, libc::PROT_READ as u64, reserve as u64, fd, 0];
    match i.call(libc::SYS_mmap, call)? {
        Ok(at) if at == start => {}
        Ok(elsewhere) => {
            // A kernel before 4.17 treats the address as a hint.
            let _ = i.call(libc::SYS_munmap, [elsewhere, len, 0, 0, 0, 0])?;
            return Ok(false);
        }
        Err(_) => return Ok(false),
    }
    step("addresses for covered text reserved");
    let (prot, flags) = (libc::PROT_READ | libc::PROT_EXEC, flags | libc::MAP_FIXED);
    let size = spare.end - spare.start;
    let call = [spare.start, size, prot as u64, flags as u64, fd, PAGE_SIZE];
    let mapped = i.call(libc::SYS_mmap, call)?;
    if mapped.is_err() {
        let _ = i.call(libc::SYS_munmap, [start, len, 0, 0, 0, 0])?;
    }
    Ok(mapped.is_ok())
}

/// Unmaps the ranges of covers that have all gone since, as those of a library that was unloaded have:
/// what stood aside of it would otherwise stay until the session ends.
fn release_unused(
    agent: &Agent,
    process: &Process,
    remote: &dyn TargetMemory,
    ledger: &Ledger,
) -> Result<(), TargetError> {
    let maps = process.raw_maps()?;
    let mut asides = asides(&maps);
    // Where nothing stands aside, the other session is just about to cover pages.
    let is_used = |aside: &Aside| {
        let mut inside = maps.iter().filter(|m| aside.0.contains(&m.start));
        inside.any(|m| Aside::of(m).is_none())
    };
    let is_needed = |aside: &Aside| covers(&maps).any(|cover| cover.aside == *aside);
    asides.retain(|aside| is_used(aside) && !is_needed(aside));
    if asides.is_empty() {
        return Ok(());
    }
    agent.with(remote, agent.scratch(ledger), |i| {
        for aside in &asides {
            // What cannot be unmapped now stays until the end.
            let _ = release(i, &maps, aside)?;
        }
        Ok(())
    })
}

/// Unmaps the range where covered mappings stood aside, and the spare one behind it, if no cover is left
/// that needs them.
fn release(
    i: &mut dyn Calls,
    maps: &[Mapping],
    aside: &Aside,
) -> Result<Result<(), Errno>, TargetError> {
    let is_its = |m: &&Mapping| Aside::of(m).as_ref() == Some(aside);
    let is_needed = covers(maps).any(|cover| cover.aside == *aside);
    let mut keepers = maps.iter().filter(is_its);
    if is_needed || !keepers.any(|m| m.start == aside.0.start) {
        return Ok(Ok(()));
    }
    // Without what the program may have mapped there, if it has unmapped a part, or nothing was left there.
    let is_left = |m: &&Mapping| aside.0.contains(&m.start) && m.is_file() && !m.perms.write;
    let whole = aside.0.start..aside.spare().end;
    let is_own = |m: &&Mapping| whole.contains(&m.start) && is_its(m);
    let all = maps.iter().filter(|m| is_left(m) || is_own(m));
    let mut unused: Vec<Range<u64>> = Vec::new();
    for mapping in all {
        match unused.last_mut() {
            Some(last) if last.end == mapping.start => last.end = mapping.end,
            _ => unused.push(mapping.start..mapping.end),
        }
    }
    for Range { start, end } in unused {
        if let Err(errno) = i.call(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0])? {
            return Ok(Err(errno));
        }
        step("addresses for covered text released");
    }
    Ok(Ok(()))
}

/// Returns the bytes that other sessions of the process may have changed: the other one, and those that
/// tracers which died have left.
fn changed_by_others(
    pid: i32,
    maps: &[Mapping],
    remote: &dyn TargetMemory,
    installed: &Installed,
) -> Result<Ranges, TargetError> {
    let own = |ledger: &Ledger| {
        let mut own = installed.extensions.iter().chain([&installed.ledger]);
        own.any(|own| own.start == ledger.start)
    };
    let mut changed = Ranges::default();
    for ledger in Ledger::all(pid, maps).filter(|ledger| !own(ledger)) {
        let header = ledger.header(remote)?;
        if header.is_begun()? && header.state()? != State::Restored {
            header.journal(remote, |entry| {
                if let Entry::Change(change) = entry {
                    changed.insert(change.claim(), 0);
                }
            })?;
        }
    }
    Ok(changed)
}

/// Puts everything that covers stand in for back into its place, except where other sessions of the
/// process have changes. All threads are stopped, and this session has no bytes in the program any more.
/// Returns true if there is more than one stop is for.
///
/// # Errors
/// The process is gone, or no thread of it can make calls now.
pub(crate) fn uncover(
    host: &dyn Host,
    stopped: &(dyn StoppedThreads + 'static),
    remote: &dyn TargetMemory,
    installed: &Installed,
) -> Result<bool, TargetError> {
    let process = host.process();
    let maps = process.raw_maps()?;
    let asides = asides(&maps);
    if asides.is_empty() {
        return Ok(false);
    }
    let others = changed_by_others(process.pid() as i32, &maps, remote, installed)?;
    let is_free = |cover: &Cover| {
        let Mapping { start, end, .. } = cover.mapping;
        others.meeting(start..end).next().is_none()
    };
    let agent = AgentOf::among(host, stopped, remote, &maps)?;
    let ledger = &installed.ledger;
    // A move that leaves something behind takes address space, and the kernel unmaps what is in the place
    // before it refuses that (RLIMIT_AS).
    let leaves = !process.is_beyond_address_space();
    let keeper = |m: &&Mapping| Aside::of(m).is_some_and(|aside| aside.0.start == m.start);
    let table = maps.iter().find(keeper).map(|m| m.start);
    agent.with(remote, agent.scratch(ledger), |i| {
        let mut covers = covers(&maps).filter(is_free);
        let mut moves = Vec::new();
        for cover in covers.by_ref() {
            let back = prepare_return(i, remote, agent.pid(), &maps, &cover)?;
            moves.extend(back.map_err(agent.refused("protect covered text"))?);
            if moves.len() >= AT_ONCE {
                break;
            }
        }
        for moves in moves.chunks(2 * AT_ONCE) {
            let table = table.and_then(|at| batch(&agent, process, remote, &installed.arenas, at));
            let batch = table.as_ref();
            let moved = agent.move_mappings(i, remote, ledger, (moves, leaves), batch)?;
            if moved.is_some() {
                return Err(agent.refused("put covered text back")(Errno::NOMEM));
            }
            step("pages uncovered");
        }
        if covers.next().is_some() {
            return Ok(true);
        }
        let maps = process.raw_maps()?;
        for aside in &asides {
            if let Err(errno) = release(i, &maps, aside)? {
                return Err(agent.refused("unmap memory for covered text")(errno));
            }
        }
        Ok(false)
    })
}

/// Returns the moves that put what a cover stands in for back into its place. What the program, or another
/// tool, has changed in the cover meanwhile is first changed in the text that stands aside as well, where
/// nobody executes it; so is the protection.
fn prepare_return(
    i: &mut dyn Calls,
    remote: &dyn TargetMemory,
    pid: i32,
    maps: &[Mapping],
    cover: &Cover,
) -> Result<Result<Vec<Move>, Errno>, TargetError> {
    let mut moves = Vec::new();
    let parts = cover.belongs(maps);
    let len = (cover.mapping.end - cover.mapping.start) as usize;
    let read = |at| remote.read_some(at, len).ok().filter(|b| b.len() == len);
    let (Some(now), Some(aside)) = (read(cover.mapping.start), read(cover.covered.start)) else {
        return Ok(Ok(moves));
    };
    if parts.is_empty() {
        return Ok(Ok(moves));
    }
    // A breakpoint that is only aside is a uprobe's, which was registered meanwhile.
    let differs = |at: &usize| now[*at] != aside[*at] && aside[*at] != INT3;
    let mut at = 0;
    while at < len {
        let end = at + (at..len).take_while(differs).count();
        if end > at {
            let address = cover.covered.start + at as u64;
            write(pid, remote, address, &now[at..end])?;
            step("change in a cover kept");
        }
        at = end + 1;
    }
    for part in &parts {
        let from = cover.covered.start + (part.start - cover.mapping.start);
        let len = part.end - part.start;
        let aside = maps.get(maps.partition_point(|m| m.end <= from));
        if aside.is_some_and(|aside| aside.perms != part.perms) {
            let perms = part.perms;
            let prot = [
                (perms.read, libc::PROT_READ),
                (perms.write, libc::PROT_WRITE),
                (perms.execute, libc::PROT_EXEC),
            ];
            let prot = prot.iter().filter(|(has, _)| *has);
            let prot: i32 = prot.map(|(_, bit)| bit).sum();
            let call = [from, len, prot as u64, 0, 0, 0];
            if let Err(errno) = i.call(libc::SYS_mprotect, call)? {
                return Ok(Err(errno));
            }
        }
        moves.push(Move {
            from,
            to: part.start,
            len,
        });
    }
    Ok(Ok(moves))
}

/// Returns the addresses where other tools have uprobes that the program does not reach: they are in
/// text that stands aside. `changes` are those of the session, whose bytes differ anyway.
pub(crate) fn unreached(
    maps: &[Mapping],
    remote: &dyn TargetMemory,
    changes: &[Change],
) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut changes: Vec<&Change> = changes.iter().collect();
    changes.sort_unstable_by_key(|change| change.address);
    for cover in covers(maps) {
        let Mapping { start, end, .. } = cover.mapping;
        let len = (end - start) as usize;
        let read = |at| remote.read_some(at, len).ok().filter(|b| b.len() == len);
        let (Some(mut own), Some(aside)) = (read(start), read(cover.covered.start)) else {
            continue;
        };
        let first = changes.partition_point(|c| c.address + c.len as u64 <= start);
        for change in changes[first..].iter().take_while(|c| c.address < end) {
            for (at, byte) in (change.address..).zip(&change.before[..change.len]) {
                if (start..end).contains(&at) {
                    own[(at - start) as usize] = *byte;
                }
            }
        }
        let differ = (start..)
            .zip(own.iter().zip(&aside))
            .filter(|(_, (own, aside))| **aside == INT3 && **own != INT3);
        found.extend(differ.map(|(address, _)| address));
    }
    found
}
