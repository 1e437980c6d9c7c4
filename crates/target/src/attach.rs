//! Attaching: everything is planned and prepared while the program runs, then it
//! is stopped once, checked, and all sites are written.
//!
//! ```text
//!  stop all   look at the threads (restartable sequences, thread ids)
//!  one stays  map session memory and arenas; the others go on
//!  —          compile detours, write them where nobody is yet
//!  one        install the SIGTRAP handler, if a breakpoint is needed
//!  stop all   verify, move program counters, journal, write the jumps; go on
//! ```
//!
//! Why a site may be written while all threads stand still: no thread is inside
//! the bytes that change, but at their start (program counters were looked at and
//! moved to the copies in the detour); none comes back into them later (the words
//! on the stacks were looked at; a displaced call never leaves a return address
//! inside, because the planner allows one only at the end); and no jump leads
//! there (the planner has looked at the whole object).

use crate::detach::Installed;
use crate::error::TargetError;
use crate::gadgets;
use crate::maps::Mapping;
use crate::memory::RemoteMemory;
use crate::patch::{Batch, Change, Found, INT3};
use crate::process::{Process, Seccomp};
use crate::session::{Agent, Arena, SessionMemory};
use crate::steps::step;
use crate::survey::Survey;
use crate::threads::Stopped;
use crate::{recover, stacks};
use capriole_plan::detour::{
    CompileError, Compiler, Counters, Detour, Request, Runtime, Work, room,
};
use capriole_plan::site::{Shape, Tactic};
use capriole_resident as resident;
use capriole_ring::layout::{Geometry, State, header, journal};
use capriole_ring::memory::Identity;
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// A site to be probed.
#[derive(Debug, Clone)]
pub struct Probe {
    /// How it is reached.
    pub shape: Shape,
    /// What it does.
    pub work: Vec<Work>,
    /// The mapped extent of its object, run time.
    pub near: Range<u64>,
    /// The bytes of `shape.covered` that the plan was made for.
    pub before: Vec<u8>,
}

/// Why a planned site was not probed after all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SiteError {
    /// The detour cannot be made.
    #[error("{0}")]
    Compile(#[from] CompileError),
    /// Memory does not hold what the file does.
    #[error(
        "the bytes in memory are not those of the file: another tool (a debugger's breakpoint, a uprobe) or the program itself has changed them"
    )]
    Modified,
    /// Somebody stays inside the bytes that would change.
    #[error("a thread stays inside the bytes that would change, or a saved address points there")]
    Occupied,
    /// A jump would lie in two pages and no breakpoint may stand in for it.
    #[error("the jump would cross a page boundary, which needs a breakpoint for a moment: {0}")]
    PageBoundary(&'static str),
    /// A breakpoint cannot be used.
    #[error("only a breakpoint would do: {0}")]
    Breakpoint(&'static str),
}

/// How long the program stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standstill {
    /// All threads, in total.
    pub all: Duration,
    /// One thread more, while the others ran.
    pub one: Duration,
}

/// A probed process.
#[derive(Debug)]
pub struct Attached {
    /// The process.
    pub process: Process,
    /// Session memory.
    pub memory: SessionMemory,
    /// For each probe that was asked for, what became of it.
    pub outcomes: Vec<Result<Site, SiteError>>,
    /// How long it stood still.
    pub standstill: Standstill,
    /// What was found out about its threads.
    pub survey: Survey,
    pub(crate) installed: Installed,
}

/// A site that is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Address of the first changed byte.
    pub address: u64,
    /// Address of the detour.
    pub detour: u64,
    /// Bytes of the detour.
    pub detour_size: usize,
    /// How it is reached.
    pub tactic: Tactic,
}

/// Sites whose object lies within 1 GiB share an arena.
const CLUSTER: u64 = 1 << 30;
/// How often the program is stopped again for sites that are occupied.
const ROUNDS: usize = 10;
const PAGE: u64 = 4096;

/// How often a thread that blocks SIGTRAP is looked at before that counts.
const LOOKS: u32 = 20;

/// Whether breakpoints may be used in a process now: no thread blocks SIGTRAP, and
/// the program does not ignore it. (The kernel kills a program that runs into a
/// breakpoint while the signal is blocked or ignored.)
///
/// # Errors
/// The reason why not.
pub fn breakpoints_allowed(process: &Process) -> Result<(), &'static str> {
    let gone = |_| "the process is gone";
    if process
        .status()
        .map_err(gone)?
        .ignored
        .contains(libc::SIGTRAP)
    {
        return Err("the program ignores SIGTRAP, so a breakpoint would kill it");
    }
    // A thread that is just being made blocks every signal for a moment, and so does
    // one on its way back from a dead tracer's call. Look again before saying no.
    let blocks = |tid: &u32| {
        let status = process.thread_status(*tid);
        status.is_ok_and(|s| s.blocked.contains(libc::SIGTRAP))
    };
    let mut blocking = process.threads().map_err(gone)?;
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        blocking.retain(blocks);
        if blocking.is_empty() {
            return Ok(());
        }
    }
    Err("a thread blocks SIGTRAP, so a breakpoint would kill the program")
}

struct Cluster {
    near: Range<u64>,
    probes: Vec<usize>,
    arena: Option<Arena>,
}

/// Groups probes whose objects can share an arena.
fn clusters(probes: &[Probe]) -> Vec<Cluster> {
    let mut order: Vec<usize> = (0..probes.len()).collect();
    order.sort_by_key(|i| (probes[*i].near.start, probes[*i].shape.covered.start));
    let mut clusters: Vec<Cluster> = Vec::new();
    for index in order {
        let near = probes[index].near.clone();
        match clusters.last_mut() {
            Some(c) if near.end.saturating_sub(c.near.start) <= CLUSTER => {
                c.near.end = c.near.end.max(near.end);
                c.probes.push(index);
            }
            _ => clusters.push(Cluster {
                near,
                probes: vec![index],
                arena: None,
            }),
        }
    }
    clusters
}

fn arena_size(probes: &[Probe], cluster: &Cluster) -> u64 {
    let room = |i: &usize| 16 + room(&probes[*i].work);
    let detours: u64 = cluster.probes.iter().map(room).sum();
    (resident::size() as u64 + detours).next_multiple_of(PAGE)
}

/// The code of one arena: the resident, the table of breakpoints, the detours.
struct Image {
    arena: Arena,
    bytes: Vec<u8>,
    config: resident::Config,
}

fn jump(from: u64, to: u64) -> [u8; 5] {
    let displacement = to.wrapping_sub(from + 5) as u32;
    let mut bytes = [0xe9, 0, 0, 0, 0];
    bytes[1..].copy_from_slice(&displacement.to_le_bytes());
    bytes
}

fn change_for(probe: &Probe, detour: &Detour) -> Change {
    let address = probe.shape.covered.start;
    let (mut before, mut after) = ([0; journal::MAX_BYTES], [0; journal::MAX_BYTES]);
    let len = if probe.shape.tactic == Tactic::Int3 {
        1
    } else {
        5
    };
    before[..len].copy_from_slice(&probe.before[..len]);
    match probe.shape.tactic {
        Tactic::Int3 => after[0] = INT3,
        _ => after[..5].copy_from_slice(&jump(address, detour.entry)),
    }
    Change {
        address,
        len,
        before,
        after,
        detour: detour.entry,
    }
}

/// Attaches to a process: writes all `probes` that can be written.
///
/// # Errors
/// The program is then as it was before: what had been mapped or written already
/// is taken out again.
pub fn attach(
    process: &Process,
    probes: &[Probe],
    geometry: impl FnOnce(u32) -> Geometry,
) -> Result<Attached, TargetError> {
    attach_living(process, probes, geometry).map_err(|error| match process.is_alive() {
        true => error,
        // Whatever failed then failed for that reason.
        false => TargetError::Vanished {
            pid: process.pid() as i32,
        },
    })
}

fn attach_living(
    process: &Process,
    probes: &[Probe],
    geometry: impl FnOnce(u32) -> Geometry,
) -> Result<Attached, TargetError> {
    prepare_and_write(process, probes, geometry).inspect_err(|_| {
        // The process may be gone; whatever else fails here is left to a later
        // `capriole detach`.
        let _ = recover::remove_own(process);
    })
}

fn prepare_and_write(
    process: &Process,
    probes: &[Probe],
    geometry: impl FnOnce(u32) -> Geometry,
) -> Result<Attached, TargetError> {
    process.preflight()?;
    let pid = process.pid() as i32;
    recover::clear_the_way(process)?;
    Agent::check_sandbox(process)?;
    let remote = RemoteMemory::open(pid)?;
    let identity = Identity {
        target: (process.pid(), process.start_time()),
        owner: recover::own_identity(),
    };
    let geometry = geometry(probes.len() as u32);

    // Searched now, found again while threads stand still.
    gadgets::search(&process.maps()?, &remote);
    // Look at all threads, keep one.
    let mut standstill = Standstill::default();
    let mut stopped = Stopped::all(pid)?;
    if recover::send_home(&mut stopped, process, &remote)? {
        // What their tracer was building may have come to be only now.
        standstill.all += stopped.resume();
        recover::clear_the_way(process)?;
        stopped = Stopped::all(pid)?;
    }
    let survey = Survey::of(&stopped, &remote);
    let filtered = stopped.threads().iter().any(|t| {
        process
            .thread_status(t.tid as u32)
            .is_ok_and(|s| s.seccomp != Seccomp::Off)
    });
    standstill.all += stopped.elapsed();
    let agent = match Agent::choose(process, stopped, &remote) {
        Err(TargetError::NoThread { .. }) => Agent::hire(process, &remote)?,
        result => result?,
    };
    let memory = agent.create_memory(process, &remote, geometry, &identity)?;
    let mut clusters = clusters(probes);
    let mut arenas = Vec::new();
    for cluster in &mut clusters {
        let len = arena_size(probes, cluster);
        let arena = agent.create_arena(process, &remote, &memory, cluster.near.clone(), len)?;
        cluster.arena = Some(arena);
        arenas.push(arena);
    }
    standstill.one += agent.dismiss();

    // Compile.
    let mut outcomes: Vec<Option<SiteError>> = vec![None; probes.len()];
    let mut changes: Vec<Option<(Change, Detour)>> = vec![None; probes.len()];
    let mut images = Vec::new();
    for cluster in &clusters {
        let Some(arena) = cluster.arena else { continue };
        images.push(compile_cluster(
            probes,
            cluster,
            arena,
            &memory,
            &survey,
            filtered,
            &mut outcomes,
            &mut changes,
        ));
    }

    // Breakpoints: for sites that have nothing else, and for a moment at jumps
    // that cross a page boundary.
    let needs_trap = |c: &Option<(Change, Detour)>| {
        c.as_ref()
            .is_some_and(|(change, _)| change.len == 1 || change.crosses_pages())
    };
    let mut trap = None;
    if changes.iter().any(needs_trap) {
        match breakpoints_allowed(process) {
            Ok(()) => trap = Some(()),
            Err(reason) => {
                for (change, outcome) in changes.iter_mut().zip(&mut outcomes) {
                    if needs_trap(change) {
                        *outcome = Some(match change.take() {
                            Some((c, _)) if c.len > 1 => SiteError::PageBoundary(reason),
                            _ => SiteError::Breakpoint(reason),
                        });
                    }
                }
            }
        }
    }
    if trap.is_some() {
        let mut traps: Vec<(u64, u64)> = changes
            .iter()
            .flatten()
            .filter(|(c, _)| c.len == 1 || c.crosses_pages())
            .map(|(c, d)| (c.address, d.entry))
            .collect();
        traps.sort_unstable();
        install_traps(
            process,
            &remote,
            &memory,
            &mut images,
            &traps,
            &mut standstill,
        )?;
    } else {
        write_images(pid, &remote, &images)?;
    }

    // The journal, before any byte.
    let mut installed = Installed {
        base: memory.base,
        size: geometry.size() as u64,
        arenas,
        changes: Vec::new(),
        trap: recover::trap_state(&memory.memory),
    };
    let mut waiting: Vec<usize> = (0..probes.len())
        .filter(|i| changes[*i].is_some())
        .collect();
    memory.memory.store_u32(header::STATE, State::Armed as u32);
    let mut sites: Vec<Option<Site>> = vec![None; probes.len()];
    for round in 0..ROUNDS {
        if waiting.is_empty() && round > 0 {
            break;
        }
        if round > 0 {
            std::thread::sleep(Duration::from_millis(1 << round.min(5)));
        }
        let mut stopped = Stopped::all(pid)?;
        let maps = process.maps()?;
        waiting = write_round(
            &mut stopped,
            &remote,
            &maps,
            probes,
            &changes,
            &waiting,
            &memory,
            &mut installed,
            &mut outcomes,
            &mut sites,
        )?;
        standstill.all += stopped.resume();
    }
    for index in waiting {
        outcomes[index] = Some(SiteError::Occupied);
    }
    let outcomes = sites
        .into_iter()
        .zip(outcomes)
        .map(|(site, error)| site.ok_or(error.unwrap_or(SiteError::Occupied)))
        .collect();
    Ok(Attached {
        process: process.clone(),
        memory,
        outcomes,
        standstill,
        survey,
        installed,
    })
}

#[allow(clippy::too_many_arguments)]
fn compile_cluster(
    probes: &[Probe],
    cluster: &Cluster,
    arena: Arena,
    memory: &SessionMemory,
    survey: &Survey,
    filtered: bool,
    outcomes: &mut [Option<SiteError>],
    changes: &mut [Option<(Change, Detour)>],
) -> Image {
    let entries = resident::entries(arena.start);
    let runtime = Runtime {
        heads: memory.base + memory.geometry.heads() as u64,
        counters: Counters {
            address: memory.base + memory.geometry.counters_offset() as u64,
            stride: memory.geometry.counter_stride() as u32,
            cpus: memory.geometry.cpus,
        },
        rseq_offset: survey.rseq_offset,
        tid_offset: survey.tid_offset,
        switch: entries.switch,
        locked: entries.locked,
    };
    let config = resident::Config {
        session: memory.base,
        geometry: memory.geometry,
        rseq_offset: survey.rseq_offset,
        tid_offset: survey.tid_offset,
        no_wake: filtered,
        traps: (0, 0),
        old_trap: (0, 0),
    };
    // Breakpoints between detours: a jump gone wrong must not run on.
    let mut compiler = Compiler::new(runtime, arena.start, vec![INT3; resident::size()]);
    for &index in &cluster.probes {
        let probe = &probes[index];
        let request = Request {
            work: &probe.work,
            displaced: &probe.shape.displaced,
            resume: probe.shape.resume,
            red_zone: !probe.shape.at_entry,
            live: probe.shape.live,
        };
        match compiler.compile(&request) {
            Ok(detour) => changes[index] = Some((change_for(probe, &detour), detour)),
            Err(error) => outcomes[index] = Some(error.into()),
        }
    }
    let bytes = compiler.into_image();
    assert!(
        bytes.len() as u64 <= arena.len,
        "the arena was sized for its detours"
    );
    Image {
        arena,
        bytes,
        config,
    }
}

fn write_images(pid: i32, remote: &RemoteMemory, images: &[Image]) -> Result<(), TargetError> {
    for image in images {
        let mut bytes = image.bytes.clone();
        let blob = resident::place(image.arena.start, &image.config);
        bytes[..blob.len()].copy_from_slice(&blob);
        let address = image.arena.start;
        remote
            .write(address, &bytes)
            .map_err(|source| TargetError::Memory {
                pid,
                what: "write",
                address,
                source,
            })?;
        step("arena written");
    }
    Ok(())
}

/// Writes the arenas with the table of breakpoints and installs the handler that
/// stands in the first of them.
fn install_traps(
    process: &Process,
    remote: &RemoteMemory,
    memory: &SessionMemory,
    images: &mut [Image],
    traps: &[(u64, u64)],
    standstill: &mut Standstill,
) -> Result<(), TargetError> {
    let pid = process.pid() as i32;
    let agent = Agent::hire(process, remote)?;
    let old = agent.trap_action(remote, memory.base, None)?;
    let image = &mut images[0];
    let table_at = image.bytes.len().next_multiple_of(16);
    image.bytes.resize(table_at, INT3);
    for (site, detour) in traps {
        image.bytes.extend_from_slice(&site.to_le_bytes());
        image.bytes.extend_from_slice(&detour.to_le_bytes());
    }
    assert!(
        image.bytes.len() as u64 <= image.arena.len,
        "the arena has room for its table"
    );
    image.config.traps = (image.arena.start + table_at as u64, traps.len() as u64);
    image.config.old_trap = (old[0], old[1]);
    let entries = resident::entries(image.arena.start);
    write_images(pid, remote, images)?;
    // The journal of the signal action, before the action.
    let m = &memory.memory;
    for (i, word) in old.iter().enumerate() {
        m.store(header::TRAP_OLD + i * 8, *word);
    }
    m.store(header::TRAP_HANDLER, entries.trap);
    m.store_u32(header::TRAP_INSTALLED, 1);
    step("trap journal written");
    // The program's own choice of stack and mask stays; SA_RESETHAND would take
    // our handler away with the first hit. But SIGTRAP is never blocked while a
    // handler runs: a breakpoint in what the program's own handler calls would
    // end the program, and whoever looks would find SIGTRAP blocked.
    let keep = (libc::SA_ONSTACK | libc::SA_RESTART) as u64;
    const SA_RESTORER: u64 = 0x0400_0000;
    let flags = old[1] & keep | (libc::SA_SIGINFO | libc::SA_NODEFER) as u64 | SA_RESTORER;
    let mask = old[3] & !(1 << (libc::SIGTRAP - 1));
    agent.trap_action(
        remote,
        memory.base,
        Some([entries.trap, flags, entries.restorer, mask]),
    )?;
    step("trap handler installed");
    standstill.one += agent.dismiss();
    Ok(())
}

fn write_journal(memory: &SessionMemory, index: usize, change: &Change) {
    let at = memory.geometry.journal_offset() + index * journal::SIZE;
    let m = &memory.memory;
    m.store(at + journal::ADDRESS, change.address);
    m.write(at + journal::LEN, &[change.len as u8]);
    m.write(at + journal::BEFORE, &change.before);
    m.write(at + journal::AFTER, &change.after);
    m.store(at + journal::DETOUR, change.detour);
    // The count last: an entry that is counted is whole.
    m.store_u32(header::JOURNAL_LEN, index as u32 + 1);
}

/// Writes, with the process standing still, every waiting site that nobody is
/// inside of. Returns those that have to wait.
#[allow(clippy::too_many_arguments)]
fn write_round(
    stopped: &mut Stopped,
    remote: &RemoteMemory,
    maps: &[Mapping],
    probes: &[Probe],
    changes: &[Option<(Change, Detour)>],
    waiting: &[usize],
    memory: &SessionMemory,
    installed: &mut Installed,
    outcomes: &mut [Option<SiteError>],
    sites: &mut [Option<Site>],
) -> Result<Vec<usize>, TargetError> {
    let pid = stopped.pid;
    let mut ready = Vec::new();
    let mut batch = Batch::new(pid, remote);
    for &index in waiting {
        let Some((change, _)) = &changes[index] else {
            continue;
        };
        match batch.inspect(change) {
            Found::Before => ready.push(index),
            _ => outcomes[index] = Some(SiteError::Modified),
        }
    }
    // Where a thread or a saved address must not be: behind the first byte of
    // sites that consist of several instructions.
    let mut inside: Vec<(Range<u64>, usize)> = ready
        .iter()
        .filter(|i| probes[**i].shape.tactic != Tactic::Int3)
        .map(|i| {
            (
                probes[*i].shape.covered.start + 1..probes[*i].shape.covered.end,
                *i,
            )
        })
        .collect();
    inside.sort_by_key(|(range, _)| range.start);
    let find = |address: u64| -> Option<usize> {
        let at = inside.partition_point(|(range, _)| range.end <= address);
        inside
            .get(at)
            .filter(|(range, _)| range.contains(&address))
            .map(|(_, index)| *index)
    };
    let mut occupied = std::collections::BTreeSet::new();
    // Any word counts: a return address, the program counter of a signal frame, or
    // a preempted goroutine's, or chance.
    stacks::scan(stopped, remote, maps, |word| {
        if let Some(index) = find(word.value) {
            occupied.insert(index);
        }
    });
    let mut moves = Vec::new();
    for (at, thread) in stopped.threads().iter().enumerate() {
        let rip = thread.registers.rip;
        let Some(index) = find(rip) else { continue };
        let Some((_, detour)) = &changes[index] else {
            continue;
        };
        let copy = detour
            .copies
            .iter()
            .find(|(old, _)| *old == rip)
            .map(|(_, new)| *new);
        let reserved =
            (probes[index].shape.tactic == Tactic::Reserved).then_some(probes[index].shape.resume);
        match copy.or(reserved) {
            Some(new) => moves.push((at, new, index)),
            None => {
                occupied.insert(index);
            }
        }
    }
    let mut written = Vec::new();
    let (now, later): (Vec<usize>, Vec<usize>) =
        ready.into_iter().partition(|i| !occupied.contains(i));
    for &index in &now {
        let Some((change, detour)) = &changes[index] else {
            continue;
        };
        write_journal(memory, installed.changes.len(), change);
        installed.changes.push(*change);
        written.push((index, change, detour));
    }
    step("journal written");
    // Threads first: a copy in a detour behaves like the original whether or not
    // the jump is there yet, but the middle of a written jump is nothing.
    for (at, new, index) in moves {
        if !occupied.contains(&index) {
            stopped.move_to(at, new)?;
            step("thread moved");
        }
    }
    for (index, change, detour) in written {
        batch.apply(change)?;
        sites[index] = Some(Site {
            address: change.address,
            detour: detour.entry,
            detour_size: detour.size,
            tactic: probes[index].shape.tactic,
        });
    }
    batch.write()?;
    step("all sites written");
    Ok(later)
}
