//! Attaching to a process: everything is planned and prepared while the program runs; then all
//! threads are stopped once, checked, and all sites are written.
//!
//! ```text
//!  stop all   examine the threads (restartable sequences, thread ids)
//!  keep one   map session memory and arenas; the other threads run
//!  none       compile detours, write them to the arenas, where no thread runs yet
//!  one        map stubs; install the SIGTRAP handler, if a breakpoint is needed
//!  stop all   verify, move program counters, journal, write the jumps; resume
//!  later      sites that were occupied, see [`Attached::optimise`]
//! ```
//!
//! While the session lives, probes can be [added](Attached::add), [disarmed](Attached::disarm) and
//! [armed](Attached::arm) again.
//!
//! Why a site may be written while all threads are stopped: no thread is inside the bytes that
//! change, except at their start (program counters were checked, and moved to the copies in the
//! detour); no thread returns into them later (the words on the stacks were checked; a
//! displaced call never leaves a return address inside, because the planner allows a call only
//! at the end); and no jump leads there (the planner has checked the whole object).

mod arming;
mod beside;
mod code;
mod indexes;
mod leaving;
mod over;
mod places;
mod round;
mod running;

use self::beside::Watched;
pub use self::beside::{Beside, Disturbance, How, Unreached};
use self::code::{Code, Facts};
pub use self::leaving::Leave;
use self::places::Asked;
use self::round::Round;
pub use self::running::Running;
use crate::actions;
use crate::detach;
use crate::guards::{Guarded, Guards};
use crate::installed::Installed;
use crate::other::{Other, Owner};
pub use crate::probe::{Plan, Point, Probe};
use crate::recover;
use crate::recover::{InUse, Kept};
use crate::returns::Region;
use crate::session::{Agent, SessionMemory, write};
use capriole_codegen::detour::CompileError;
use capriole_codegen::runtime::ClockReading;
use capriole_codegen::work::Work;
use capriole_host::error::TargetError;
use capriole_host::host::{Host, TargetMemory};
use capriole_host::steps::step;
use capriole_host::survey::{Survey, has_shadow_stack};
use capriole_insn::liveness::RegSet;
use capriole_ledger::counter::ReferenceCounter;
use capriole_ledger::remains::TracePlace;
use capriole_ledger::{FAULTS, Identity, Kind, MAX_ENTRIES};
use capriole_proc::process::{self, Process};
use capriole_proc::translator;
use capriole_resident::unwinding::Module;
use capriole_ring::layout::{Geometry, State, header, own};
use capriole_tactic::site::{Patch, Tactic};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Reason why a planned site was not probed after all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SiteError {
    /// The detour cannot be made.
    #[error("{0}")]
    Compile(#[from] CompileError),
    /// The bytes in memory differ from the file's.
    #[error(
        "the bytes in memory are not those of the file: another tool (a debugger's breakpoint, a uprobe) or the program itself has changed them"
    )]
    Modified,
    /// The memory of the site is gone.
    #[error(
        "its file is no longer mapped: the program has unloaded it (dlclose), or has executed another program meanwhile; try again"
    )]
    Unmapped,
    /// A thread stays inside the bytes that would change, or a saved address points into them.
    #[error("a thread stays inside the bytes that would change, or a saved address points there")]
    Occupied,
    /// The jump would cross a page boundary, and no breakpoint may stand in for it.
    #[error("the jump would cross a page boundary, which needs a breakpoint for a moment: {0}")]
    PageBoundary(&'static str),
    /// A breakpoint cannot be used.
    #[error("only a breakpoint would do: {0}")]
    Breakpoint(&'static str),
    /// The stub's address, which the bytes of the program prescribe, is already mapped.
    #[error("the program has mapped something where the jump would lead")]
    StubTaken,
    /// The jump would cover several instructions of a page that is not covered, since it holds something
    /// else than its file.
    #[error(
        "only a jump over several instructions is possible here, and another tool has a uprobe in the same page (or the program has changed it): one more, at this function, would make the program execute the middle of that jump; a breakpoint would be safe, but was not allowed or cannot be used"
    )]
    Uncovered,
    /// The other session of the process has a probe there.
    #[error("{0} has a probe there, which changes some of the same bytes or relies on them")]
    Claimed(Owner),
    /// One of Capriole's own guards is at the site.
    #[error(
        "here Capriole itself has a probe, which tells new threads apart behind the system call that makes them"
    )]
    Guarded,
    /// The probe would make system calls, and the program filters its own.
    #[error(
        "fields in memory are read by a system call, and the program filters its system calls (seccomp, or PR_SET_SYSCALL_USER_DISPATCH); registers can be recorded"
    )]
    Filtered,
    /// The neighbouring probe that this one builds on could not be installed.
    #[error(
        "the probe right behind it, of whose jump this one's would be a part, cannot be put in: {0}"
    )]
    Neighbour(String),
    /// Another probe of the session has a part of the bytes.
    #[error("another probe changes, or relies on, some of the bytes that this one would change")]
    Shared,
    /// The program ended, or could not be stopped, while the probe was being added.
    #[error("the program could not be stopped while the probe was being added")]
    Interrupted,
    /// The session was begun without something that the probe needs.
    #[error("the recording was begun without {0}")]
    Unprepared(&'static str),
    /// A stub cannot reach its detour.
    #[error("the detour is out of reach from where the bytes of the program lead the jump")]
    StubOutOfReach,
}

impl SiteError {
    /// Returns the error of a probe that needs a breakpoint, at least for a moment, where none may
    /// be used for this reason.
    fn no_breakpoint(tactic: Tactic, reason: &'static str) -> SiteError {
        match tactic.needs_trap() {
            true => SiteError::Breakpoint(reason),
            false => SiteError::PageBoundary(reason),
        }
    }
}

/// Time for which the program was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standstill {
    /// Total time for which all threads were stopped.
    pub all: Duration,
    /// Additional time for which one thread was stopped while the others ran.
    pub one: Duration,
}

/// A probed process.
#[derive(Debug)]
pub struct Attached {
    /// The process, and how it is changed.
    pub host: Arc<dyn Host>,
    /// Session memory.
    pub memory: SessionMemory,
    /// Time for which the process was paused.
    pub standstill: Standstill,
    /// The moment just before the first probes were written.
    pub since: Instant,
    /// Survey of the process's threads.
    pub survey: Survey,
    /// True if the program could install a seccomp filter unnoticed. The resident then makes no
    /// system calls, and fields that it would read by a system call cannot be read.
    pub unguarded: bool,
    /// True if the program filtered its system calls at attach, or had them redirected.
    filtered: bool,
    /// True if all system calls that install a filter are guarded.
    has_filters: bool,
    /// True if the program sees its own signal actions in place of ours, whichever call it uses.
    has_actions: bool,
    /// True once all that an attach writes at once is written.
    begun: bool,
    /// Reading of the clock in all detours.
    clock: ClockReading,
    /// Registration as a session that is in use.
    pub(crate) in_use: InUse,
    pub(crate) installed: Installed,
    /// Sites still to be switched to their jumps.
    round: Round,
    /// Pages that have been covered, or could not be.
    covered: BTreeSet<u64>,
    /// Addresses of uprobes that the program does not reach.
    unreached: BTreeSet<u64>,
    /// Bytes expected at the sites; dropped when sites are written.
    watched: Option<Watched>,
    /// Probes removed because another tool changed their sites.
    disturbances: Vec<Disturbance>,
    /// The number of those that a look has returned.
    told: usize,
}

/// State of a site: which patch leads to its detour now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteState {
    /// The patch of its tactic: a jump, or a breakpoint if no other tactic is possible.
    Final,
    /// A breakpoint, until no thread is inside the bytes that change.
    StandIn,
    /// No patch yet: a thread is inside the bytes that change, and no breakpoint may stand in.
    Waiting,
    /// No patch any more: another tool changed the site, see [`Attached::look`].
    TakenOut,
    /// No patch now: see [`Attached::disarm`].
    Disarmed,
}

impl SiteState {
    /// Returns the name in output: `optimised`, or for a tactic without a jump `breakpoint`;
    /// `stand-in`, `waiting`, `taken-out` and `disarmed`.
    #[must_use]
    pub fn name(self, tactic: Tactic) -> &'static str {
        match (self, tactic.patch()) {
            (SiteState::Final, Patch::Breakpoint) => "breakpoint",
            (SiteState::Final, Patch::Jump) => "optimised",
            (SiteState::StandIn, _) => "stand-in",
            (SiteState::Waiting, _) => "waiting",
            (SiteState::TakenOut, _) => "taken-out",
            (SiteState::Disarmed, _) => "disarmed",
        }
    }
}

/// A probed site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Address of the first changed byte.
    pub address: u64,
    /// Address of the detour.
    pub detour: u64,
    /// Size of the detour, bytes.
    pub detour_size: usize,
    /// Tactic by which it is patched.
    pub tactic: Tactic,
    /// Current state.
    pub state: SiteState,
}

/// Maximum extent of a group of objects that share an arena of detours, bytes.
pub const CLUSTER: u64 = 1 << 30;
/// Retries while a guard's site is occupied, before the attach drops the guard or fails.
const OCCUPIED_TRIES: u32 = 8;
/// Attempts while a thread may be about to install a system call filter just when the guards
/// are written.
const FILTER_TRIES: u32 = 20;
/// Checks of a thread that blocks SIGTRAP before breakpoints are refused, 2 ms apart.
const LOOKS: u32 = 50;
/// Limit of these checks if every such thread runs: a thread that creates one thread after the
/// other blocks all signals most of the time, but not at every check.
const LOOKS_AT_RUNNING: u32 = 250;
/// Limit of these checks if every such thread is runnable but gets no processor.
const LOOKS_AT_WAITING: u32 = 500;
/// Processor time below which a thread with SIGTRAP blocked may still be starting, or creating
/// another thread, ns.
const MAKING: u64 = 1_000_000;

/// Keeps the registers that probes read live. The program may not need a value any more, and
/// yet a probe may read it before the program overwrites it; so the detours of the function's
/// other probes must not use that register either.
fn keep_what_is_read(probes: &mut [Probe]) {
    let points = probes.iter().flat_map(|probe| &probe.points);
    let reads = points.map(|point| (point.site, point.reads()));
    let mut reads: Vec<_> = reads.filter(|(_, set)| !set.is_empty()).collect();
    reads.sort_unstable_by_key(|(site, _)| *site);
    let mut of_functions = HashMap::new();
    for point in probes.iter_mut().flat_map(|probe| &mut probe.points) {
        let read = *of_functions
            .entry(point.function)
            .or_insert_with_key(|function| {
                let first = reads.partition_point(|(site, _)| *site < function.start);
                let inside = reads[first..].iter();
                let inside = inside.take_while(|(site, _)| *site < function.end);
                inside.fold(RegSet::EMPTY, |all, (_, set)| all | *set)
            });
        point.live.gprs = point.live.gprs | read;
    }
}

impl Attached {
    /// The process, as `/proc` shows it.
    pub fn process(&self) -> &Process {
        self.host.process()
    }

    /// Returns the kind of the session.
    pub fn kind(&self) -> Kind {
        self.memory.ledger.kind
    }

    /// Returns the addresses to which the program's signal handlers return where handlers of the session have
    /// called them: these are in call stacks.
    #[must_use]
    pub fn signal_returns(&self) -> Vec<u64> {
        self.round.code.signal_returns()
    }

    /// Gives the program the rules of code that it has mapped since the attach, by which it finds callers.
    /// Nothing is stopped. Returns false if it does not look for callers, or there is no room for more
    /// rules: call stacks then end at this code.
    ///
    /// # Errors
    /// The program's memory cannot be written.
    pub fn add_callers(&mut self, modules: &[Module]) -> Result<bool, TargetError> {
        let remote = self.host.memory()?;
        let pid = self.process().pid() as i32;
        self.round.code.add_callers(pid, &remote, modules)
    }

    /// Checks that breakpoints may be used now: those of [`breakpoints_allowed`], and beside the other
    /// session of the process, if there is one.
    fn check_breakpoints(&self) -> Result<(), &'static str> {
        breakpoints_allowed(&*self.host)?;
        if self.installed.handles_traps() {
            return Ok(());
        }
        let remote = self.host.memory();
        let other = remote.and_then(|r| Other::find(self.process(), &r, self.kind()));
        match other {
            Ok(Some(other)) => other.check_breakpoints(self.has_actions),
            Ok(None) => Ok(()),
            Err(_) => Err("it cannot be seen whether another session handles breakpoints"),
        }
    }
}

/// Checks that breakpoints may be used in a process now: no thread blocks SIGTRAP, and the program
/// does not ignore it. (The kernel kills a program that runs into a breakpoint while the signal is
/// blocked or ignored.)
///
/// # Errors
/// The reason why not.
pub fn breakpoints_allowed(host: &dyn Host) -> Result<(), &'static str> {
    step("breakpoints asked for");
    let process = host.process();
    let gone = |_| "the process is gone";
    let ignored = process.status().map_err(gone)?.ignored;
    if ignored.contains(libc::SIGTRAP) {
        return Err("the program ignores SIGTRAP, so a breakpoint would kill it");
    }
    // Signal handlers belong to a process, not to its memory.
    match host.sharing_memory().as_deref() {
        Ok([]) => {}
        Ok(_) => {
            return Err(
                "another process has the same memory (CLONE_VM), and a breakpoint would kill it",
            );
        }
        Err(_) => return Err("it cannot be seen whether another process has the same memory"),
    }
    // A thread that is just being created blocks every signal for a moment, and so does one that
    // is returning from a system call made for a dead tracer. Check again before refusing.
    let blocks = |(tid, _): &(u32, Option<u64>)| {
        let status = process.thread_status(*tid);
        status.is_ok_and(|s| s.blocked.contains(libc::SIGTRAP))
    };
    let runs = |tid: u32| {
        let status = process.thread_status(tid);
        status.is_ok_and(|status| status.state == process::State::Running)
    };
    let waits = |(tid, ran): &(u32, Option<u64>)| {
        let now = process.time_on_processor(*tid);
        runs(*tid)
            && matches!((ran, now), (Some(ran), Some(now)) if now.saturating_sub(*ran) < MAKING)
    };
    // Runnable now, or on a processor since the last check.
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut progresses = |(tid, _): &(u32, Option<u64>)| {
        let now = process.time_on_processor(*tid);
        let before = now.and_then(|now| last.insert(*tid, now));
        runs(*tid) || before.is_some() && before != now
    };
    let threads = process.threads().map_err(gone)?.into_iter();
    let mut blocking: Vec<_> = threads.map(|tid| (tid, None)).collect();
    blocking.retain(blocks);
    for (tid, ran) in &mut blocking {
        *ran = process.time_on_processor(*tid);
    }
    for look in 1..=LOOKS_AT_WAITING {
        if blocking.is_empty() {
            return Ok(());
        }
        let progress = blocking.iter().filter(|thread| progresses(thread)).count();
        let patience = match progress == blocking.len() {
            true => LOOKS_AT_RUNNING,
            false => LOOKS,
        };
        if look >= patience && !blocking.iter().all(waits) {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
        blocking.retain(blocks);
    }
    Err("a thread blocks SIGTRAP, so a breakpoint would kill the program")
}

/// Attaches to a process: writes all `probes` that can be written, and `guards`. If a thread
/// stays at the site of a guard for threads or for filters, the attach drops that guard: then
/// no probe uses restartable sequences, or the resident makes no system calls. Guards without
/// which the program would see wrong addresses are required.
///
/// # Errors
/// On an error the program is as it was before: everything that was mapped or written is
/// removed again.
pub fn attach(
    host: &Arc<dyn Host>,
    probes: Vec<Probe>,
    guards: &Guards,
    clock: ClockReading,
    geometry: impl Fn(u32) -> Geometry + Send,
) -> Result<Attached, TargetError> {
    let new = NewSession {
        kind: Kind::Recorder,
        trace: None,
        callers: &[],
    };
    attach_as(host, probes, guards, clock, geometry, new)
}

/// A session that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewSession<'a> {
    /// Its kind.
    pub kind: Kind,
    /// The trace that its records go to.
    pub trace: Option<&'a TracePlace>,
    /// The rules by which callers are found; empty if no work needs them.
    pub callers: &'a [Module],
}

/// Attaches as [`attach`] does, with this session. There may be a session of the other kind in the process:
/// see [`other`](crate::other).
///
/// # Errors
/// See [`attach`].
pub fn attach_as(
    host: &Arc<dyn Host>,
    probes: Vec<Probe>,
    guards: &Guards,
    clock: ClockReading,
    geometry: impl Fn(u32) -> Geometry + Send,
    new: NewSession<'_>,
) -> Result<Attached, TargetError> {
    let process = host.process();
    host.preflight()?;
    translator::refuse(process)?;
    host.check_stops()?;
    let attached = host.apart(|| attach_living(host, probes, guards, clock, geometry, new));
    attached.map_err(|error| match process.is_over() {
        // The process has ended, which explains any other error but one that says how it ended.
        true if matches!(error, TargetError::Killed { .. }) => error,
        true => TargetError::Vanished {
            pid: process.pid() as i32,
        },
        false => error,
    })
}

fn attach_living(
    host: &Arc<dyn Host>,
    probes: Vec<Probe>,
    guards: &Guards,
    clock: ClockReading,
    geometry: impl Fn(u32) -> Geometry,
    new: NewSession<'_>,
) -> Result<Attached, TargetError> {
    let process = host.process();
    let mut guards = guards.clone();
    let (mut tries, mut occupied) = (0, 0);
    loop {
        tries += 1;
        let attached = prepare_and_write(host, &probes, &guards, clock, &geometry, new);
        if !matches!(attached, Ok(Some(_))) {
            // The process may be gone; a later `capriole detach` removes anything left behind here.
            let _ = recover::remove_own(&**host, new.kind);
        }
        if matches!(attached, Err(TargetError::Filtering { .. })) && tries < FILTER_TRIES {
            // The next attempt sees the result of the thread's call.
            std::thread::sleep(Duration::from_millis(2));
            continue;
        }
        match attached? {
            Some(attached) => return Ok(attached),
            // Usually the thread moves out of the way in a moment.
            None if occupied < OCCUPIED_TRIES => {
                step("place of a guard occupied");
                occupied += 1;
                std::thread::sleep(Duration::from_millis(1 << occupied));
            }
            None => {
                let less = guards.with_less(catches_faults(process)?);
                guards = less.ok_or(TargetError::Occupied {
                    pid: process.pid() as i32,
                })?;
            }
        }
    }
}

/// Facts about a process that are needed before code is compiled for it.
struct Examined {
    survey: Survey,
    /// The guards that were added to the probes.
    guarded: Guarded,
    /// True if a thread has a filter of system calls.
    filtered: bool,
    /// The thread that makes calls for us.
    agent: Agent,
}

/// Examines all threads in a stop, and keeps one.
fn examine(
    host: &Arc<dyn Host>,
    probes: &mut Vec<Probe>,
    (guards, kind): (&Guards, Kind),
    remote: &dyn TargetMemory,
    standstill: &mut Standstill,
) -> Result<Examined, TargetError> {
    let process = host.process();
    // While threads run: one may install a filter at any time after this, too, and it is checked again when
    // the probes are written.
    let mut threads = process.threads()?.into_iter();
    let filtered = threads.any(|tid| process.is_filtered(tid));
    let mut stopped = host.stop()?;
    if detach::send_home(&mut *stopped, &**host, remote)? {
        // The calls that these threads made for a dead tracer may only now have mapped something.
        standstill.all += stopped.resume();
        recover::clear_the_way(&**host, kind)?;
        stopped = host.stop()?;
    }
    let mut survey = Survey::of(process, &*stopped, remote);
    if guards.have_own_storage() {
        survey.rseq_offset = None;
        survey.tid_offset = None;
        survey.own_storage = true;
    }
    let guarded = match guards.are_complete() && survey.rseq_offset.is_some() {
        true => guards.join(probes),
        false => {
            survey.rseq_offset = None;
            guards.without_threads().join(probes)
        }
    };
    let mut threads = stopped.threads().iter();
    let redirected = threads.any(|thread| host.may_redirect_calls(thread));
    standstill.all += stopped.elapsed();
    let agent = match Agent::choose(&**host, stopped, remote) {
        Err(error) if error.is_momentary() => Agent::hire(&**host, remote)?,
        result => result?,
    };
    Ok(Examined {
        survey,
        guarded,
        filtered: filtered || redirected,
        agent,
    })
}

/// Takes a process as it is that cannot be stopped. Nothing is known of its threads, so nothing is
/// written into its code now, not even guards: if the program asks for its action of SIGTRAP, it
/// sees ours.
fn not_examined(
    host: &Arc<dyn Host>,
    probes: &[Probe],
    remote: &dyn TargetMemory,
) -> Result<Examined, TargetError> {
    let process = host.process();
    if !probes.is_empty() {
        // What an attach writes it writes in a stop.
        return Err(TargetError::NotPermitted {
            pid: process.pid() as i32,
        });
    }
    Ok(Examined {
        survey: Survey {
            shadow_stack: has_shadow_stack(process),
            ..Survey::default()
        },
        guarded: Guarded::default(),
        filtered: process
            .threads()?
            .into_iter()
            .any(|tid| process.is_filtered(tid)),
        agent: Agent::hire(&**host, remote)?,
    })
}

/// Returns `None`, and has changed nothing, if the guards cannot be written.
///
/// An attempt that fails, wherever it does, leaves nothing of itself in the probes that were asked
/// for: guards of an earlier attempt among them would call routines in memory that is unmapped.
fn prepare_and_write(
    host: &Arc<dyn Host>,
    asked: &[Probe],
    guards: &Guards,
    clock: ClockReading,
    geometry: impl Fn(u32) -> Geometry,
    new: NewSession<'_>,
) -> Result<Option<Attached>, TargetError> {
    let process = host.process();
    let pid = process.pid() as i32;
    let probes = &mut asked.to_vec();
    recover::clear_the_way(&**host, new.kind)?;
    let kept = Kept::find(&**host, new.kind)?;
    host.check_calls()?;
    if process.may_serve_its_code() {
        return Err(TargetError::ServesItsCode { pid });
    }
    let remote = host.memory()?;
    // Planned before, maybe, than the other session was made.
    let guards = &match Other::find(process, &remote, new.kind)? {
        Some(other) => guards.beside(&other),
        None => guards.clone(),
    };
    let identity = Identity {
        kind: new.kind,
        target: (process.pid(), process.start_time()),
        owner: recover::own_identity(),
    };
    let mut writes = probes.iter().map(Probe::writes).sum::<usize>() + guards.len();
    writes += counters(&*probes).len();
    if writes > MAX_ENTRIES as usize {
        return Err(TargetError::TooMany {
            pid,
            most: MAX_ENTRIES,
        });
    }
    let geometry = geometry(writes as u32);
    let geometry = match new.callers.is_empty() {
        true => geometry,
        false => geometry.with_windows(),
    };

    // Search now; while threads are stopped, only the result is checked.
    host.prepare(&remote);
    let calls = probes.iter().any(|probe| probe.works().any(Work::may_call));
    let is_registered = calls && process.has_registered_memory();
    let mut standstill = Standstill::default();
    let unguarded = Guards::default();
    let (examined, guards) = match host.can_stop() {
        true => (
            examine(host, probes, (guards, new.kind), &remote, &mut standstill)?,
            guards,
        ),
        false => (not_examined(host, probes, &remote)?, &unguarded),
    };
    let Examined {
        survey,
        mut guarded,
        filtered,
        agent,
    } = examined;
    // Our own mappings must not occupy addresses that stubs need.
    let stubs = stub_addresses(probes);
    // Large mappings must not occupy addresses that arenas need either.
    let hint = out_of_reach(probes);
    let memory = agent.create_memory(process, &remote, geometry, &identity, hint)?;
    agent.refuse_forbidden_clock(&remote, &memory.ledger)?;
    // From here on another session sees this one: of two that begin at the same moment, one at least
    // knows of the other.
    let other = Other::find(process, &remote, new.kind)?;
    let follows = probes.iter().any(Probe::follows);
    if follows && other.is_some() {
        return Err(TargetError::ReturnsBeside { pid });
    }
    let region = match follows || guards.unwinders_required {
        true => Some(Region::create(&agent, process, &remote, &memory)?),
        false => None,
    };
    guarded.answer(probes, region);
    let unwound = !guarded.unwinders.is_empty();
    let unguarded = calls && !guards.have_filters();
    if filtered || unguarded {
        make_no_calls(pid, &remote, &memory)?;
    }
    let mut arenas = Vec::new();
    let clusters = code::clusters(probes, new.callers, unwound);
    for cluster in &clusters {
        let near = cluster.near.clone();
        let size = cluster.size;
        let arena = agent.create_arena(
            process,
            &remote,
            &memory.ledger,
            arenas.len(),
            near,
            size,
            &stubs,
        )?;
        arenas.push(arena);
    }
    standstill.one += agent.dismiss();
    if process.has_less_memory_than_we() {
        // Who touches a page first pays for it.
        let size = rustix::fs::fstat(&memory.file).map_or(0, |file| file.st_size as u64);
        let none = rustix::fs::FallocateFlags::empty();
        let _ = rustix::fs::fallocate(&memory.file, none, 0, size);
    }
    if let Some(first) = arenas.first() {
        guarded.place(probes, &capriole_resident::entries(first.start));
    }

    keep_what_is_read(probes);
    let facts = Facts {
        memory: &memory,
        survey: &survey,
        clock,
        region,
        has_routines: host.routines().is_some(),
    };
    let mut code = Code::compile(probes, &clusters, &arenas, &facts);
    code.guard(&guarded);
    code.unwound = unwound;
    if filtered {
        code.refuse_calls(probes);
    }
    let beside = |other: &Other| other.check_breakpoints(guards.have_actions());
    let allowed = || {
        let beside = other.as_ref().map_or(Ok(()), beside);
        beside.and_then(|()| breakpoints_allowed(&**host))
    };
    let traps = code.traps(probes, allowed);
    code.write(pid, &remote, &traps, new.callers)?;
    let stubs = code.stubs();
    let is_free = other.is_none_or(|other| !other.handles(&FAULTS));
    let follows_faults = is_free && guards.have_actions() && code.has_resident();
    let follows_faults = follows_faults && code.note_faults(&remote, &memory)?;
    let handles_faults = follows_faults && catches_faults(process)?;
    if !stubs.rows.is_empty() {
        let agent = Agent::hire(&**host, &remote)?;
        let batch = (!filtered).then(|| code.batch(code.table_room()));
        let taken = agent.map_stubs(&remote, &memory.ledger, 0, &stubs, batch)?;
        code.refuse_stubs(&taken);
        standstill.one += agent.dismiss();
    }
    if follows_faults || unwound {
        code.write_copies(pid, &remote, probes)?;
    }
    let noted = memory.ledger.header(&remote)?;
    let installed = Installed {
        ledger: memory.ledger,
        extensions: Vec::new(),
        memory: noted.memory(),
        arenas,
        returns: region,
        stubs: recover::stubs_in(&process.maps()?, &noted.stubs()),
        changes: Vec::new(),
        references: Vec::new(),
        actions: noted.actions(),
        routines: host.routines(),
        stays: false,
    };
    if let Some(trace) = new.trace {
        memory.ledger.note_trace(&remote, trace)?;
    }
    if let Some(routines) = &installed.routines {
        memory.ledger.note_routines(&remote, routines)?;
    }
    memory.ledger.note_state(&remote, State::Armed)?;
    memory.memory.store_u32(header::STATE, State::Armed as u32);
    let ledger = (memory.ledger, installed.arenas.len());
    let in_use = InUse::of(rustix::fs::fstat(&memory.file).map_or(0, |file| file.st_ino));
    let mut attached = Attached {
        host: host.clone(),
        has_filters: guards.have_filters(),
        has_actions: guards.have_actions(),
        begun: false,
        clock,
        in_use,
        memory,
        standstill,
        since: Instant::now(),
        survey,
        unguarded: unguarded && !filtered,
        filtered,
        installed,
        round: Round::new(probes, code, guarded, ledger, kept),
        covered: BTreeSet::new(),
        unreached: BTreeSet::new(),
        watched: None,
        disturbances: Vec::new(),
        told: 0,
    };
    if !traps.is_empty() || handles_faults {
        // First the guards that hide our handlers from the program.
        if !attached.write(round::Occupied::GuardsOnly)? {
            return Ok(None);
        }
        let agent = Agent::hire(&**host, &remote)?;
        let (memory, code) = (&attached.memory, &mut attached.round.code);
        if !traps.is_empty() {
            traps.install(&agent, &remote, memory, code)?;
        }
        if handles_faults {
            code.install_faults(&agent, &remote, memory)?;
        }
        attached.standstill.one += agent.dismiss();
    }
    if follows_faults && !handles_faults {
        // From the moment on when the guards are there.
        actions::follow(pid, &remote, attached.memory.own(), &FAULTS, true)?;
    }
    attached.installed.actions = attached.memory.ledger.header(&remote)?.actions();
    if calls {
        mind_slow_memory(process, &remote, &attached.memory, is_registered)?;
    }
    attached.round.guarded.part(probes);
    attached.since = Instant::now();
    if host.can_stop() && !attached.write(round::Occupied::Wait)? {
        return Ok(None);
    }
    if follows_faults && !handles_faults && catches_faults(process)? {
        // It has set one before the guards were there.
        let agent = Agent::hire(&**host, &remote)?;
        let (memory, code) = (&attached.memory, &attached.round.code);
        code.install_faults(&agent, &remote, memory)?;
        attached.standstill.one += agent.dismiss();
        attached.installed.actions = attached.memory.ledger.header(&remote)?.actions();
    }
    if attached.round.wants_stand_ins() {
        attached.stand_in()?;
    }
    let round = &mut attached.round;
    let probes = std::mem::take(probes);
    round.asked = Asked::of(probes, &mut round.entries, &round.guarded.guards);
    attached.begun = true;
    Ok(Some(attached))
}

/// Returns true if the program has a handler for a signal that a faulting instruction raises.
fn catches_faults(process: &Process) -> Result<bool, TargetError> {
    let caught = process.status()?.caught;
    Ok(FAULTS.iter().any(|signal| caught.contains(*signal)))
}

/// Has the resident read only pages that are in memory from now on, in a process that shares a session,
/// if others may be long in coming. (A process that provides pages itself from now on is noticed by the
/// resident.) `is_known`: it has such memory.
fn mind_slow_memory(
    process: &Process,
    remote: &dyn TargetMemory,
    memory: &SessionMemory,
    is_known: bool,
) -> Result<(), TargetError> {
    let address = memory.own() + own::SLOW_MEMORY as u64;
    let is_minded = remote.read_u32(address).is_ok_and(|word| word != 0);
    match is_minded || !(is_known || process.has_slow_memory()) {
        true => Ok(()),
        false => write(process.pid() as i32, remote, address, &1u32.to_le_bytes()),
    }
}

/// Forbids the resident to make system calls in the process, from the start.
fn make_no_calls(
    pid: i32,
    remote: &dyn TargetMemory,
    memory: &SessionMemory,
) -> Result<(), TargetError> {
    let address = memory.own() + own::NO_CALLS as u64;
    write(pid, remote, address, &1u32.to_le_bytes())?;
    memory.memory.store_u32(header::NO_CALLS, 1);
    Ok(())
}

/// Returns the reference counters of some probes, without duplicates.
fn counters<'a>(probes: impl IntoIterator<Item = &'a Probe>) -> Vec<ReferenceCounter> {
    let probes = probes.into_iter();
    let mut counters: Vec<_> = probes.flat_map(|p| &p.counters).copied().collect();
    counters.sort_unstable_by_key(|counter| counter.address);
    counters.dedup_by_key(|counter| counter.address);
    counters
}

/// Returns the addresses of the stubs that some probes need, ascending.
fn stub_addresses(probes: &[Probe]) -> Vec<u64> {
    let placed = probes.iter().filter_map(|p| p.shape.placed.as_ref());
    let stubs = placed.flat_map(|p| p.stubs.iter().map(|s| s.address));
    let mut stubs: Vec<u64> = stubs.collect();
    stubs.sort_unstable();
    stubs
}

/// Returns an address that no jump of a probe reaches.
fn out_of_reach(probes: &[Probe]) -> u64 {
    let highest = probes.iter().map(|p| p.near.start).max().unwrap_or(0);
    highest.saturating_sub(8 << 30) & !0xfff
}
