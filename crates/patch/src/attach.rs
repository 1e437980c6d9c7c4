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
mod over;
mod places;
mod round;

use self::beside::Watched;
pub use self::beside::{Beside, Disturbance, How};
use self::code::{Code, Facts};
use self::places::Asked;
use self::round::Round;
use crate::counter::ReferenceCounter;
use crate::detach::Installed;
use crate::guards::Guards;
use crate::ledger::{FAULTS, Identity, MAX_ENTRIES};
use crate::recover;
use crate::recover::InUse;
use crate::remains::TraceId;
use crate::returns::Region;
use crate::session::{Agent, Batch, SessionMemory};
use crate::states;
use capriole_codegen::detour::{ClockReading, CompileError, Work};
use capriole_host::error::TargetError;
use capriole_host::gadgets;
use capriole_host::memory::RemoteMemory;
use capriole_host::survey::Survey;
use capriole_host::threads;
use capriole_host::threads::Stopped;
use capriole_host::tracer;
use capriole_insn::Extent;
use capriole_insn::liveness::{Live, RegSet};
use capriole_proc::process::{Process, Seccomp};
use capriole_proc::translator;
use capriole_ring::layout::{Geometry, State, header, own};
use capriole_tactic::site::{Patch, Shape, Tactic};
use std::collections::HashMap;
use std::ops::{BitOr, Range};
use std::time::Duration;
use thiserror::Error;

/// A probed instruction, with the work done before it.
#[derive(Debug, Clone)]
pub struct Point {
    /// Address of the instruction.
    pub site: u64,
    /// Work done before the instruction.
    pub work: Vec<Work>,
    /// Work done when the function entered here returns. If there is any, the site is the
    /// function's entry, where the return address is on top of the stack, and that address is
    /// replaced.
    pub returns: Vec<Work>,
    /// See [`Shape`].
    pub at_entry: bool,
    /// See [`Shape`].
    pub live: Live,
    /// See [`Shape`].
    pub function: Extent,
}

impl Point {
    /// Makes a point without work at the site of a shape.
    #[must_use]
    pub fn of(shape: &Shape) -> Point {
        Point {
            site: shape.site,
            work: Vec::new(),
            returns: Vec::new(),
            at_entry: shape.at_entry,
            live: shape.live,
            function: shape.function,
        }
    }

    /// Registers that the work reads.
    fn reads(&self) -> RegSet {
        let sets = self.work.iter().map(Work::reads);
        sets.fold(RegSet::EMPTY, BitOr::bitor)
    }
}

/// A plan, with the original bytes that it is made for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Shape of the jump that reaches the site.
    pub shape: Shape,
    /// The original bytes of `shape.covered`.
    pub before: Vec<u8>,
    /// True if a breakpoint may be put at the site.
    pub breakpoint: bool,
    /// True if a function is entered at the site, by calls and by jumps that leave their function,
    /// so that its return address is on top of the stack. The red zone may still be in use.
    pub called: bool,
}

/// A site to be probed, or several sites that share one jump.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Shape of the patch: how the detour is reached.
    pub shape: Shape,
    /// The instructions of `shape` before which work is done, ascending.
    pub points: Vec<Point>,
    /// Mapped extent of the site's object, in run-time addresses.
    pub near: Range<u64>,
    /// The bytes of `shape.covered` for which the plan was made.
    pub before: Vec<u8>,
    /// True if a breakpoint may stand in for the jump while the bytes that change are occupied.
    pub stand_in: bool,
    /// Counters that must be above zero for the program to reach the site.
    pub counters: Vec<ReferenceCounter>,
}

impl Probe {
    /// Makes a probe of `plan`, in the object mapped at `near`, without work.
    #[must_use]
    pub fn new(plan: Plan, near: Range<u64>) -> Probe {
        Probe {
            points: vec![Point::of(&plan.shape)],
            shape: plan.shape,
            near,
            before: plan.before,
            stand_in: plan.breakpoint,
            counters: Vec::new(),
        }
    }

    /// Sets the work at the probe's own site.
    #[must_use]
    pub fn with(mut self, work: Vec<Work>) -> Probe {
        self.point(&Point::of(&self.shape)).work = work;
        self
    }

    /// Returns the point at the address of `like`; if there is none, inserts a copy of `like`
    /// without work.
    pub fn point(&mut self, like: &Point) -> &mut Point {
        let at = self.points.partition_point(|point| point.site < like.site);
        if self
            .points
            .get(at)
            .is_none_or(|point| point.site != like.site)
        {
            let new = Point {
                work: Vec::new(),
                returns: Vec::new(),
                ..like.clone()
            };
            self.points.insert(at, new);
        }
        &mut self.points[at]
    }

    /// True if the probe follows calls to their returns.
    pub(crate) fn follows(&self) -> bool {
        self.points.iter().any(|point| !point.returns.is_empty())
    }

    /// Returns all work done at the probe's points and at returns.
    fn works(&self) -> impl Iterator<Item = &Work> {
        let points = self.points.iter();
        points.flat_map(|point| point.work.iter().chain(&point.returns))
    }
}

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
    /// One of Capriole's own guards is at the site.
    #[error(
        "here Capriole itself has a probe, which tells new threads apart behind the system call that makes them"
    )]
    Guarded,
    /// The probe would make system calls, and the program has a seccomp filter.
    #[error(
        "fields in memory are read by a system call, and the program has a seccomp filter that may forbid it; registers can be recorded"
    )]
    Filtered,
    /// The neighbouring probe that this one builds on could not be installed.
    #[error(
        "the probe right behind it, of whose jump this one's would be a part, cannot be put in: {0}"
    )]
    Neighbour(String),
    /// Another probe of the session has a part of the bytes.
    #[error(
        "another probe of this recording changes, or relies on, some of the bytes that this one would change"
    )]
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
    /// The process.
    pub process: Process,
    /// Session memory.
    pub memory: SessionMemory,
    /// Outcome for each requested probe.
    pub outcomes: Vec<Result<Site, SiteError>>,
    /// Time for which the process was paused.
    pub standstill: Standstill,
    /// Survey of the process's threads.
    pub survey: Survey,
    /// True if the program could install a seccomp filter unnoticed. The resident then makes no
    /// system calls, and fields that it would read by a system call cannot be read.
    pub unguarded: bool,
    /// True if the program had a seccomp filter at attach.
    filtered: bool,
    /// True if all system calls that install a filter are guarded.
    has_filters: bool,
    /// True once all that an attach writes at once is written.
    begun: bool,
    /// Reading of the clock in all detours.
    clock: ClockReading,
    /// Registration as a session that is in use.
    pub(crate) in_use: InUse,
    pub(crate) installed: Installed,
    /// Sites still to be switched to their jumps.
    round: Round,
    /// Bytes expected at the sites; dropped when sites are written.
    watched: Option<Watched>,
    /// Probes removed because another tool changed their sites.
    disturbances: Vec<Disturbance>,
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

/// Checks that breakpoints may be used in a process now: no thread blocks SIGTRAP, and the program
/// does not ignore it. (The kernel kills a program that runs into a breakpoint while the signal is
/// blocked or ignored.)
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
    // Signal handlers belong to a process, not to its memory.
    match threads::sharing_memory(process.pid() as i32).as_deref() {
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
    let runs = |tid: u32| threads::thread_state(tid as i32) == 'R';
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
    process: &Process,
    probes: Vec<Probe>,
    guards: &Guards,
    clock: ClockReading,
    geometry: impl Fn(u32) -> Geometry + Send,
) -> Result<Attached, TargetError> {
    attach_recorded(process, probes, guards, clock, geometry, None)
}

/// Attaches as [`attach`] does, and records in the process which trace its records go to.
///
/// # Errors
/// See [`attach`].
pub fn attach_recorded(
    process: &Process,
    probes: Vec<Probe>,
    guards: &Guards,
    clock: ClockReading,
    geometry: impl Fn(u32) -> Geometry + Send,
    trace: Option<&TraceId>,
) -> Result<Attached, TargetError> {
    process.preflight()?;
    translator::refuse(process)?;
    tracer::check_filters(process)?;
    let attached = tracer::apart(|| attach_living(process, probes, guards, clock, geometry, trace));
    attached.map_err(|error| match process.is_over() {
        // The process has ended, which explains any other error.
        true => TargetError::Vanished {
            pid: process.pid() as i32,
        },
        false => error,
    })
}

fn attach_living(
    process: &Process,
    mut probes: Vec<Probe>,
    guards: &Guards,
    clock: ClockReading,
    geometry: impl Fn(u32) -> Geometry,
    trace: Option<&TraceId>,
) -> Result<Attached, TargetError> {
    let mut guards = guards.clone();
    let (mut tries, mut occupied) = (0, 0);
    loop {
        tries += 1;
        let attached = prepare_and_write(process, &mut probes, &guards, clock, &geometry, trace);
        if !matches!(attached, Ok(Some(_))) {
            // The process may be gone; a later `capriole detach` removes anything left behind here.
            let _ = recover::remove_own(process);
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
                occupied += 1;
                std::thread::sleep(Duration::from_millis(1 << occupied));
            }
            None => {
                let less = guards.with_less(handles_faults(process)?);
                guards = less.ok_or(TargetError::Occupied {
                    pid: process.pid() as i32,
                })?;
            }
        }
    }
}

/// Returns `None`, and has changed nothing, if the guards cannot be written.
fn prepare_and_write(
    process: &Process,
    probes: &mut Vec<Probe>,
    guards: &Guards,
    clock: ClockReading,
    geometry: impl Fn(u32) -> Geometry,
    trace: Option<&TraceId>,
) -> Result<Option<Attached>, TargetError> {
    let pid = process.pid() as i32;
    recover::clear_the_way(process)?;
    Agent::check_sandbox(process)?;
    let remote = RemoteMemory::open(pid)?;
    let identity = Identity {
        target: (process.pid(), process.start_time()),
        owner: recover::own_identity(),
    };
    let writes = |p: &Probe| {
        p.shape
            .placed
            .as_ref()
            .map_or(1, |placed| placed.writes.len())
    };
    let mut writes = probes.iter().map(writes).sum::<usize>() + guards.len();
    writes += counters(probes).len();
    if writes > MAX_ENTRIES as usize {
        return Err(TargetError::TooMany {
            pid,
            most: MAX_ENTRIES,
        });
    }
    let geometry = geometry(writes as u32);

    // Search now; while threads are stopped, only the result is checked.
    gadgets::search(&process.maps()?, &remote);
    // Examine all threads, keep one.
    let mut standstill = Standstill::default();
    let mut stopped = Stopped::all(pid)?;
    if recover::send_home(&mut stopped, process, &remote)? {
        // The calls that these threads made for a dead tracer may only now have mapped something.
        standstill.all += stopped.resume();
        recover::clear_the_way(process)?;
        stopped = Stopped::all(pid)?;
    }
    states::refuse_alignment_check(&stopped)?;
    let mut survey = Survey::of(process, &stopped, &remote);
    if guards.have_own_storage() {
        survey.rseq_offset = None;
        survey.tid_offset = None;
    }
    let guarded = match guards.are_complete() && survey.rseq_offset.is_some() {
        true => guards.join(probes),
        false => {
            survey.rseq_offset = None;
            guards.without_threads().join(probes)
        }
    };
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
    // Our own mappings must not occupy addresses that stubs need.
    let placed = probes.iter().filter_map(|p| p.shape.placed.as_ref());
    let mut stubs: Vec<u64> = placed
        .flat_map(|p| p.stubs.iter().map(|s| s.address))
        .collect();
    stubs.sort_unstable();
    // Large mappings must not occupy addresses that arenas need either.
    let hint = out_of_reach(probes);
    let memory = agent.create_memory(process, &remote, geometry, &identity, hint)?;
    agent.refuse_forbidden_clock(&remote, &memory.ledger)?;
    let follows = probes.iter().any(Probe::follows);
    let region = match follows || !guarded.unwinders.is_empty() {
        true => Some(Region::create(&agent, process, &remote, &memory)?),
        false => None,
    };
    if let Some(region) = region {
        guarded.answer(probes, region);
    }
    let calls = probes.iter().any(|probe| probe.works().any(Work::may_call));
    let unguarded = calls && !guards.have_filters();
    if filtered || unguarded {
        make_no_calls(pid, &remote, &memory)?;
    }
    let mut arenas = Vec::new();
    let clusters = code::clusters(probes);
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
    if let Some(first) = arenas.first() {
        guarded.place(probes, &capriole_resident::entries(first.start));
    }

    keep_what_is_read(probes);
    let facts = Facts {
        memory: &memory,
        survey: &survey,
        clock,
        region,
    };
    let mut code = Code::compile(probes, &clusters, &arenas, &facts);
    code.guard(&guarded);
    if filtered {
        code.refuse_calls(probes);
    }
    let traps = code.traps(probes, breakpoints_allowed(process));
    code.write(pid, &remote, &traps)?;
    let stubs = code.stubs();
    let handles_faults = guards.have_actions() && handles_faults(process)?;
    if !stubs.rows.is_empty() {
        let agent = Agent::hire(process, &remote)?;
        let batch = Batch {
            code: code.entries().batch..code.entries().batch_home + 1,
            table: code.table_room(),
        };
        let batch = Some(batch).filter(|_| !filtered);
        let taken = agent.map_stubs(&remote, &memory.ledger, 0, &stubs, batch)?;
        code.refuse_stubs(&taken);
        standstill.one += agent.dismiss();
    }
    if handles_faults {
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
    };
    if let Some(trace) = trace {
        memory.ledger.note_trace(&remote, trace)?;
    }
    memory.ledger.note_state(&remote, State::Armed)?;
    memory.memory.store_u32(header::STATE, State::Armed as u32);
    let ledger = (memory.ledger, installed.arenas.len());
    let in_use = InUse::of(rustix::fs::fstat(&memory.file).map_or(0, |file| file.st_ino));
    let mut attached = Attached {
        process: process.clone(),
        has_filters: guards.have_filters(),
        begun: false,
        clock,
        in_use,
        memory,
        outcomes: Vec::new(),
        standstill,
        survey,
        unguarded: unguarded && !filtered,
        filtered,
        installed,
        round: Round::new(probes, code, guarded, ledger),
        watched: None,
        disturbances: Vec::new(),
    };
    if !traps.is_empty() || handles_faults {
        // First the guards that hide our handlers from the program.
        if !attached.write(round::Occupied::GuardsOnly)? {
            attached.round.guarded.part(probes);
            return Ok(None);
        }
        let agent = Agent::hire(process, &remote)?;
        let (memory, code) = (&attached.memory, &mut attached.round.code);
        if !traps.is_empty() {
            traps.install(&agent, &remote, memory, code)?;
        }
        if handles_faults {
            code.install_faults(&agent, &remote, memory)?;
        }
        attached.standstill.one += agent.dismiss();
        attached.installed.actions = memory.ledger.header(&remote)?.actions();
    }
    attached.round.guarded.part(probes);
    if !attached.write(round::Occupied::Wait)? {
        return Ok(None);
    }
    if attached.round.wants_stand_ins() {
        attached.stand_in()?;
    }
    let round = &mut attached.round;
    let probes = std::mem::take(probes);
    round.asked = Asked::of(probes, &mut round.entries, &round.guarded.guards);
    attached.outcomes = attached.round.outcomes();
    attached.begun = true;
    Ok(Some(attached))
}

/// Returns true if the program has a handler for a signal that a faulting instruction raises.
fn handles_faults(process: &Process) -> Result<bool, TargetError> {
    let caught = process.status()?.caught;
    Ok(FAULTS.iter().any(|signal| caught.contains(*signal)))
}

/// Forbids the resident to make system calls in the process, from the start.
fn make_no_calls(
    pid: i32,
    remote: &RemoteMemory,
    memory: &SessionMemory,
) -> Result<(), TargetError> {
    let address = memory.base + (memory.geometry.own_offset() + own::NO_CALLS) as u64;
    let written = remote.write(address, &1u32.to_le_bytes());
    written.map_err(|source| TargetError::Memory {
        pid,
        what: "write",
        address,
        source,
    })?;
    memory.memory.store_u32(header::NO_CALLS, 1);
    Ok(())
}

/// Returns the reference counters of some probes, without duplicates.
fn counters(probes: &[Probe]) -> Vec<ReferenceCounter> {
    let mut counters: Vec<_> = probes.iter().flat_map(|p| &p.counters).copied().collect();
    counters.sort_unstable_by_key(|counter| counter.address);
    counters.dedup_by_key(|counter| counter.address);
    counters
}

/// Returns an address that no jump of a probe reaches.
fn out_of_reach(probes: &[Probe]) -> u64 {
    let highest = probes.iter().map(|p| p.near.start).max().unwrap_or(0);
    highest.saturating_sub(8 << 30) & !0xfff
}
