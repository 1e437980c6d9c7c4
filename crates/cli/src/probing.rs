//! Common parts of `record` and `stat`: a program that runs or is started, the probes in it, and
//! the end of the recording.

use crate::fields::Purpose;
use crate::output::tell;
use crate::returning::Returns;
use crate::selection;
use crate::selection::{Impossible, Misplaced, Probes, Selected};
use crate::{exit, message, signals, units};
use anyhow::{Context, anyhow, bail};
use capriole_codegen::detour::{ClockReading, Work};
use capriole_event::EventSpec;
use capriole_host::error::TargetError;
use capriole_host::launch::{Launched, launch};
use capriole_object::Objects;
use capriole_patch::attach::{Attached, Beside, How, SiteState, attach_recorded};
use capriole_patch::detach::Detached;
use capriole_patch::family::Family;
use capriole_patch::guards::Guards;
use capriole_patch::lanes::Lanes;
use capriole_patch::recover::detach_all;
use capriole_patch::remains::TraceId;
use capriole_planner::guards;
use capriole_planner::planner::Planner;
use capriole_planner::resolve::Body;
use capriole_planner::unwinders;
use capriole_proc::process::{Process, State};
use capriole_proc::translator;
use capriole_ring::layout::Geometry;
use capriole_trace::clock::{Clock, tsc};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

/// Options that control how sites are probed.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Means {
    /// Use breakpoints where no jump can be placed; a program that hits one while it blocks SIGTRAP
    /// is killed
    #[arg(long)]
    pub breakpoints: bool,
    /// Change only one instruction for each probe wherever possible: slower, but safe if another
    /// tool puts uprobes at the same places meanwhile
    #[arg(long)]
    pub one_instruction: bool,
    /// Continue without the events that cannot be probed, even if they were named, and report what
    /// is left out
    #[arg(long)]
    pub keep_going: bool,
    /// Probe the given addresses even where nothing shows that an instruction begins there; if none
    /// does, the program malfunctions
    #[arg(long)]
    pub trust_address: bool,
    /// Read the clock only after all earlier loads of the thread have completed: times of different
    /// CPUs then agree with the order of events, at a cost of some nanoseconds per event
    #[arg(long)]
    pub ordered_clock: bool,
}

/// Environment variable for tests: the time stamp counter advances in steps of this many ticks.
const CLOCK_STEP: &str = "CAPRIOLE_CLOCK_STEP";

impl Means {
    /// Returns how probes read the clock.
    fn clock(&self) -> anyhow::Result<ClockReading> {
        let step = simulated_step()?;
        Ok(ClockReading {
            ordered: self.ordered_clock,
            coarse: u64::from(step).max(tsc::step()) > 1,
            step,
        })
    }
}

/// Starts the clock of a recording.
///
/// # Errors
/// The time stamp counter cannot be used as a clock.
pub fn clock() -> anyhow::Result<Clock> {
    let clock = Clock::start().context("the time stamp counter cannot be used as a clock")?;
    Ok(clock.with_step(u64::from(simulated_step()?)))
}

/// Returns the step of a simulated clock, in ticks; 0 for the real clock.
///
/// # Errors
/// The environment variable is not a number of ticks in range.
pub fn simulated_step() -> anyhow::Result<u32> {
    let Some(step) = std::env::var_os(CLOCK_STEP) else {
        return Ok(0);
    };
    let number = step.to_str().and_then(|step| step.parse().ok());
    let number = number.filter(|step| *step <= 1 << 20);
    number.with_context(|| format!("{CLOCK_STEP} has to be a number of ticks, at most 1048576"))
}

/// Limits for restarting a program until its events can be probed: number of starts, and time.
const MOST_STARTS: u32 = 10;
const STARTING: Duration = Duration::from_secs(2);
/// Advice for [`Misplaced`].
const ANEW: &str = "that depends on where the program was loaded, and may be possible when it was \
                    started anew";

/// The program to be probed.
pub enum Program {
    /// A process that was already running.
    Running(Process),
    /// A program that we started; it is paused before its first function.
    Started(Launched),
}

impl Program {
    /// Opens process `pid`, or starts the program in `words` with its arguments.
    ///
    /// # Errors
    /// There is no such process, it may not be probed, or the program cannot be started.
    pub fn find(pid: Option<u32>, words: &[OsString]) -> anyhow::Result<Program> {
        Ok(match pid {
            Some(pid) => {
                let process = Process::open(pid)?;
                process.preflight()?;
                translator::refuse(&process)?;
                Program::Running(process)
            }
            None => {
                let program = Program::Started(launch(&words[0], &words[1..])?);
                if let Err(error) = translator::refuse(program.process()) {
                    program.abandon();
                    return Err(error.into());
                }
                program
            }
        })
    }

    /// Finds or starts the program and runs `prepare` on it. If an event cannot be probed because
    /// of where the program happens to be loaded, which differs with each start, starts it again:
    /// only its loader has run so far.
    ///
    /// # Errors
    /// The errors of [`Program::find`] and of `prepare`; after the latter the program is abandoned.
    pub fn prepared<T>(
        pid: Option<u32>,
        words: &[OsString],
        mut prepare: impl FnMut(&Program) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Program, T)> {
        let begin = Instant::now();
        for start in 1.. {
            let program = Program::find(pid, words)?;
            // Not earlier: a program that we start must inherit its signal actions unchanged.
            signals::catch();
            let error = match prepare(&program) {
                Ok(prepared) => return Ok((program, prepared)),
                Err(error) => error,
            };
            program.abandon();
            let again = pid.is_none() && start < MOST_STARTS && begin.elapsed() < STARTING;
            if !error.is::<Misplaced>() || !again {
                return Err(match (error.downcast::<Misplaced>(), pid) {
                    (Ok(error), Some(_)) => anyhow!("{error}; {ANEW}"),
                    (Ok(error), None) => anyhow!("{error}; {start} starts in a row were no better"),
                    (Err(error), _) => error,
                });
            }
            signals::let_go();
        }
        unreachable!("the number of starts is limited")
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        match self {
            Program::Running(process) => process,
            Program::Started(launched) => &launched.process,
        }
    }

    /// Ends a program that we started, so that it is not left running unwatched.
    pub fn abandon(self) {
        if let Program::Started(mut launched) = self {
            let _ = launched.child.kill();
            drop(launched.hold);
            let _ = launched.child.wait();
        }
    }

    /// Lets a program that we started run, and returns it to be waited for.
    pub fn release(self) -> Option<Child> {
        match self {
            Program::Running(_) => None,
            Program::Started(launched) => {
                drop(launched.hold); // now it runs
                Some(launched.child)
            }
        }
    }
}

/// Sites and plans for the user's events, before the program is touched.
pub struct Planned {
    /// Every site that the events select.
    pub selected: Vec<Selected>,
    /// For each site, why it has no probe.
    pub dropped: Vec<Option<String>>,
    /// Events that select nothing that can be probed, with `--keep-going`.
    impossible: Vec<Impossible>,
    probes: Probes,
    guards: Guards,
    clock: ClockReading,
}

impl Planned {
    /// Finds and plans the sites of `events`; `works` returns the work for the probe of each, or
    /// why that cannot be done.
    ///
    /// # Errors
    /// An event is not found, or was named and cannot be probed; with `--keep-going`, only if none
    /// can be probed.
    pub fn new(
        process: &Process,
        events: &[EventSpec],
        means: &Means,
        (purpose, returns): (Purpose, Returns),
        works: impl FnOnce(&[Selected]) -> anyhow::Result<Vec<anyhow::Result<Vec<Work>>>>,
    ) -> anyhow::Result<Planned> {
        let objects = Objects::of_process(process)?;
        let planner = Planner::of_process(process)
            .with_breakpoints(means.breakpoints)
            .with_trusted_addresses(means.trust_address)
            .with_one_instruction(means.one_instruction);
        let mut events = events.to_vec();
        if purpose == Purpose::Record {
            events.extend(message::events(&objects, &events));
        }
        let (mut selected, impossible) = match means.keep_going {
            true => selection::select_possible(&objects, &planner, &events, purpose, returns)?,
            false => {
                let selected = selection::select(&objects, &planner, &events, purpose, returns);
                (selected?, Vec::new())
            }
        };
        if means.keep_going {
            selection::keep_going(&mut selected);
        }
        selection::refuse_named(&selected)?;
        let found = works(&selected)?;
        let mut works = Vec::with_capacity(found.len());
        for (event, work) in selected.iter_mut().zip(found) {
            works.push(match work {
                Err(error) if means.keep_going => {
                    event.left_out = Some(exit::message(&error));
                    Vec::new()
                }
                work => work?,
            });
        }
        selection::refuse_named(&selected)?;
        let probes = selection::probes(&selected, works);
        let mut guards = guards::find(&objects, &planner);
        if selected.iter().any(|event| event.followed) {
            let unwinders = unwinders::find(&objects, &planner)
                .context("return addresses cannot be replaced; leave out --return=stack")?;
            guards = guards.with_unwinders(unwinders);
        }
        let mut dropped: Vec<Option<String>> = selected.iter().map(Selected::refused).collect();
        for &(index, other) in &probes.overlapping {
            let other = selected[other].name();
            let reason = format!("its probe would overlap that of {other}; take one of the two");
            dropped[index] = Some(reason);
        }
        Ok(Planned {
            selected,
            dropped,
            impossible,
            probes,
            guards,
            clock: means.clock()?,
        })
    }

    /// Returns the sites that get a probe.
    pub fn kept(&self) -> impl Iterator<Item = &Selected> {
        let both = self.selected.iter().zip(&self.dropped);
        both.filter(|(_, d)| d.is_none()).map(|(event, _)| event)
    }

    /// Inserts the probes, which record into this trace.
    ///
    /// # Errors
    /// No probe could be inserted, or the probe of a named event could not. No probe is left in the
    /// program then.
    pub fn attach(
        mut self,
        process: &Process,
        trace: Option<&TraceId>,
        geometry: impl Fn(u32) -> Geometry + Send,
    ) -> anyhow::Result<Probed> {
        // Up to here a signal may end this process.
        signals::hold();
        let (probes, events): (Vec<_>, Vec<_>) = self.probes.probes.into_iter().unzip();
        let attached = attach_recorded(process, probes, &self.guards, self.clock, geometry, trace)
            .map_err(|error| failed(process, error))?;
        let mut probe_of = vec![None; self.selected.len()];
        for (number, events) in events.into_iter().enumerate() {
            for index in events {
                probe_of[index] = Some(number);
                if let Err(error) = &attached.outcomes[number] {
                    self.dropped[index] = Some(error.to_string());
                }
            }
        }
        let both = || self.selected.iter().zip(&self.dropped);
        let named = both().find(|(e, d)| e.named && d.is_some());
        let mut asked = both().filter(|(event, _)| !event.implied);
        let none = asked.all(|(_, dropped)| dropped.is_some());
        if let Some((event, Some(reason))) = named.or(both().next().filter(|_| none)) {
            let message = format!("{} cannot be probed: {reason}", event.name());
            attached.detach()?;
            bail!(message);
        }
        Ok(Probed {
            selected: self.selected,
            dropped: self.dropped,
            impossible: self.impossible,
            probe_of,
            attached,
        })
    }
}

/// Converts the error of an attach, and removes what the attach left in the program.
fn failed(process: &Process, error: TargetError) -> anyhow::Error {
    // Memory that was already mapped is useless now.
    if matches!(
        error,
        TargetError::NoSpace { .. } | TargetError::Refused { .. }
    ) {
        let _ = detach_all(process);
    }
    error.into()
}

/// A process with its probes inserted.
pub struct Probed {
    /// Every site that the events select.
    pub selected: Vec<Selected>,
    /// For each site, why it has no probe.
    pub dropped: Vec<Option<String>>,
    /// Events that select nothing that can be probed.
    impossible: Vec<Impossible>,
    /// For each site, the number of its probe.
    probe_of: Vec<Option<usize>>,
    /// The inserted probes.
    pub attached: Attached,
}

impl Probed {
    /// Prints `capriole: DOING 3 functions of process 17 (name)`, and what ends it if there is no
    /// time limit.
    pub fn say_begin(&self, doing: &str, limit: Option<Duration>) {
        let probed = self.selected.iter().zip(&self.dropped);
        let probed = probed
            .filter(|(event, d)| d.is_none() && !event.keeps && !event.implied)
            .map(|(event, _)| event);
        let probed: Vec<&Selected> = probed.collect();
        let (one, several) = Selected::nouns(probed.iter().copied());
        let probed = probed
            .iter()
            .map(|event| (event.definition, event.subject()));
        let probed = probed.collect::<HashSet<_>>().len();
        tell!(
            "capriole: {doing} {} of process {} ({}){}",
            units::counted(probed as u64, one, several),
            self.attached.process.pid(),
            self.attached.process.name(),
            if limit.is_some() {
                ""
            } else {
                ", until it ends or Ctrl-C"
            }
        );
    }

    /// Prints how many functions are left out, with examples and reasons, and a warning if memory
    /// cannot be read.
    pub fn say_dropped(&self) {
        if self.attached.unguarded {
            tell!(
                "capriole: what is in memory, and thread names, cannot be read in this program: \
                 that takes system calls, and it has calls of its own by which it could install \
                 a seccomp filter unnoticed"
            );
        }
        if !self.impossible.is_empty() {
            let definitions = self.selected.iter().filter(|event| !event.implied);
            let definitions: HashSet<&str> = definitions.map(|e| e.text.as_str()).collect();
            let all = definitions.len() + self.impossible.len();
            tell!(
                "capriole: left out: {} of {}:",
                units::count(self.impossible.len() as u64),
                units::counted(all as u64, "event", "events")
            );
            for Impossible { reason, .. } in &self.impossible {
                tell!("  {reason}");
            }
        }
        let mut told = HashSet::new();
        let left_out: Vec<(&Selected, &String)> = self
            .selected
            .iter()
            .zip(&self.dropped)
            .filter_map(|(e, d)| Some((e, d.as_ref().filter(|_| !e.implied)?)))
            .filter(|(e, _)| told.insert((e.definition, e.place_of_call())))
            .collect();
        if left_out.is_empty() {
            return;
        }
        let asked = || self.selected.iter().filter(|event| !event.implied);
        let all: HashSet<(usize, u64)> = asked()
            .map(|event| (event.definition, event.place_of_call()))
            .collect();
        let (one, several) = match Selected::nouns(asked()) {
            ("marker", _) => ("place of a marker", "places of markers"),
            nouns => nouns,
        };
        tell!(
            "capriole: left out: {} of {}; `capriole list` tells why. For example:",
            units::count(left_out.len() as u64),
            units::counted(all.len() as u64, one, several)
        );
        for (event, reason) in left_out.iter().take(3) {
            let at = match &event.site.marker {
                Some(_) => event.at_exit(),
                None => String::new(),
            };
            tell!("  {}{at}: {reason}", event.name());
        }
        if left_out
            .iter()
            .any(|(event, _)| event.site.body != Body::Own)
        {
            tell!("  calls that come by there are not in what is recorded or counted");
        }
    }

    /// Formats the sites for `--json`, in the order of `selected`.
    pub fn sites_json(&self) -> Vec<Value> {
        let disturbances = self.attached.disturbances();
        let disturbances: HashMap<usize, &How> =
            disturbances.iter().map(|d| (d.probe, &d.how)).collect();
        let site = |((event, dropped), probe): ((&Selected, &Option<String>), &Option<usize>)| {
            let mut site = event.json();
            let outcome = probe.and_then(|number| self.attached.outcomes[number].as_ref().ok());
            site["state"] = match (dropped, outcome) {
                (None, Some(outcome)) => json!(outcome.state.name(outcome.tactic)),
                _ => json!("not probed"),
            };
            if let Some(reason) = dropped {
                site["reason"] = json!(reason);
            }
            if let Some(how) = probe.and_then(|number| disturbances.get(&number)) {
                site["reason"] = json!(how.to_string());
            }
            site
        };
        let both = self.selected.iter().zip(&self.dropped);
        let impossible = self.impossible.iter().map(|event| {
            json!({
                "event": event.event,
                "tactic": "none",
                "state": "not probed",
                "reason": event.reason,
            })
        });
        let sites = both.zip(&self.probe_of).map(site);
        sites.chain(impossible).collect()
    }

    /// Returns, for each probe, the name of its first event.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = vec![String::new(); self.attached.outcomes.len()];
        for (event, number) in self.selected.iter().zip(&self.probe_of) {
            let Some(name) = number.map(|number| &mut names[number]) else {
                continue;
            };
            if name.is_empty() {
                *name = event.name();
            }
        }
        names
    }

    /// Returns the number of events that lost their probes to other tools.
    pub fn taken_out(&self) -> usize {
        let outcome = |number: &usize| self.attached.outcomes[*number].as_ref();
        let is_out = |number: &usize| outcome(number).is_ok_and(|s| s.state == SiteState::TakenOut);
        let numbers = self.probe_of.iter().flatten();
        numbers.filter(|number| is_out(number)).count()
    }

    /// Formats how long the program was paused, for `--json`.
    pub fn standstill_json(&self, detached: &Detached) -> Value {
        let standstill = self.attached.standstill;
        json!({
            "attach": standstill.all.as_nanos() as u64,
            "attach_one_thread": standstill.one.as_nanos() as u64,
            "detach": detached.standstill.as_nanos() as u64,
        })
    }

    /// Prints how long the program was paused, and what is left in it.
    pub fn say_end(&self, ended: Ended, detached: &Detached) {
        let out = match ended {
            Ended::Exited => String::new(),
            _ => format!(" and {} to detach", units::time(detached.standstill)),
        };
        tell!(
            "capriole: the program stood still for {} to attach{out}",
            units::time(self.attached.standstill.all)
        );
        let taken_out = self.taken_out();
        if taken_out > 0 {
            tell!(
                "capriole: {} NOT recorded to the end: another tool came to the same places",
                units::counted(taken_out as u64, "event was", "events were")
            );
        }
        if detached.repaired > 0 {
            tell!(
                "capriole: at {} another tool (a uprobe, a debugger) had come or gone since; the \
                 program's own bytes are back, and its breakpoints were left",
                units::counted(detached.repaired as u64, "place", "places")
            );
        }
        if detached.foreign > 0 {
            tell!(
                "capriole: left alone: {} that somebody else has changed or unmapped since",
                units::counted(detached.foreign as u64, "place", "places")
            );
        }
        if detached.lingering {
            tell!(
                "capriole: all bytes are back, but memory stays mapped because a signal handler \
                 will return into it; `capriole detach {}` removes it later",
                self.attached.process.pid()
            );
        }
        if detached.damaged > 0 {
            tell!(
                "capriole: {} wrote over what tells how the probes are taken out; they stay there",
                units::counted(detached.damaged as u64, "child", "children")
            );
        }
    }

    /// Removes the probes.
    ///
    /// # Errors
    /// The probes are still in the program; the error says why.
    pub fn detach(&self) -> Result<Detached, TargetError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.attached.detach() {
                // The program ended during the detach: nothing is left to remove.
                Err(_) if self.attached.process.is_over() => return Ok(Detached::default()),
                // A parent in vfork can be stopped once its child has executed its program; and
                // `capriole detach` may be running as well.
                Err(TargetError::Unstoppable { .. } | TargetError::AlreadyTraced { .. })
                    if tries < DETACH_TRIES =>
                {
                    std::thread::sleep(SECOND);
                }
                result => return result,
            }
        }
    }

    /// Describes what is left in the program after an error.
    pub fn aftermath(&self) -> String {
        if !self.attached.process.is_alive() {
            "the program has ended".to_owned()
        } else if self.attached.is_mapped() {
            let pid = self.attached.process.pid();
            format!("its probes are still in the program: `capriole detach {pid}` takes them out")
        } else {
            "the program goes on without probes".to_owned()
        }
    }
}

/// Reason for the end of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The time limit was reached.
    Duration,
    /// Ctrl-C, SIGTERM or SIGHUP arrived.
    Requested,
    /// The program ended.
    Exited,
    /// The program executed another one.
    Executed,
    /// Somebody took the probes out with `capriole detach`.
    Detached,
    /// Another tool has interfered with a probe that all others depend on.
    Disturbed,
    /// The program, or a child of it, disables the time stamp counter, which probes read.
    NoClock,
    /// A child with other privileges keeps session memory, and could read what is recorded.
    Overheard,
}

impl Ended {
    /// Returns the word for `--json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Duration => "duration",
            Ended::Requested => "requested",
            Ended::Exited => "program ended",
            Ended::Executed => "program executed another",
            Ended::Detached => "detached",
            Ended::Disturbed => "disturbed",
            Ended::NoClock => "no clock",
            Ended::Overheard => "overheard",
        }
    }

    /// Returns the remark for the user's summary.
    pub fn remark(self) -> &'static str {
        match self {
            Ended::Duration | Ended::Requested => "",
            Ended::Exited => "; the program has ended",
            Ended::Executed => "; the program has executed another one, which has no probes",
            Ended::Detached => "; somebody else took the probes out",
            Ended::Disturbed => "; another tool came to a probe that Capriole itself needs",
            Ended::Overheard => {
                "; ended there, since a child with other rights keeps the memory of the recording, \
                 and could read what is recorded"
            }
            Ended::NoClock => {
                "; ended there, since the program gives up the time stamp counter \
                 (seccomp's strict mode, or PR_SET_TSC), which probes read"
            }
        }
    }
}

/// Interval between the more expensive checks.
const SECOND: Duration = Duration::from_secs(1);
/// Number of attempts to stop a thread that does not stop, before the probes are left in the
/// program. Each attempt takes seconds.
const DETACH_TRIES: u32 = 3;
/// Delay before occupied sites are retried for the first time. It doubles with each retry, up
/// to `LONGEST_ROUND`.
const FIRST_ROUND: Duration = Duration::from_millis(5);
const LONGEST_ROUND: Duration = Duration::from_secs(5);
/// Interval between checks for other tools at our probes.
const LOOK: Duration = Duration::from_millis(100);
/// Limits these checks to one part in this many of the time.
const LOOK_SHARE: u32 = 100;

/// Watches for the end of a recording, and retries occupied sites now and then.
pub struct Watch {
    process: Process,
    pidfd: Option<OwnedFd>,
    started: Instant,
    limit: Option<Duration>,
    second: Instant,
    family: Family,
    /// Delay between two rounds for occupied sites, and the time of the next one.
    round: Duration,
    next_round: Instant,
    /// Time of the next check for other tools at our probes, the names of the probes for messages,
    /// and the messages from these checks.
    next_look: Instant,
    names: Vec<String>,
    notices: Vec<String>,
    held: bool,
    lanes: Lanes,
}

impl Watch {
    /// Starts watching a process, for `limit` at most, from now on.
    ///
    /// # Errors
    /// The process id is invalid.
    pub fn new(probed: &Probed, limit: Option<Duration>) -> anyhow::Result<Watch> {
        let process = &probed.attached.process;
        let pid = Pid::from_raw(process.pid() as i32).context("no process")?;
        let now = Instant::now();
        Ok(Watch {
            process: process.clone(),
            // Fails before Linux 5.3, or if the process has just ended.
            pidfd: pidfd_open(pid, PidfdFlags::empty()).ok(),
            started: now,
            limit,
            second: now,
            family: Family::default(),
            round: FIRST_ROUND,
            next_round: now + FIRST_ROUND,
            next_look: now + LOOK,
            names: probed.names(),
            notices: Vec::new(),
            held: false,
            lanes: Lanes::default(),
        })
    }

    /// Returns the time left until the limit.
    pub fn left(&self) -> Option<Duration> {
        let elapsed = self.started.elapsed();
        self.limit.map(|limit| limit.saturating_sub(elapsed))
    }

    /// Returns the time until the next check is due, at most `most`.
    pub fn pause(&self, attached: &Attached, most: Duration) -> Duration {
        let mut pause = self.left().map_or(most, |left| left.min(most));
        pause = pause.min(self.next_look.saturating_duration_since(Instant::now()));
        if attached.has_waiting() {
            let until = self.next_round.saturating_duration_since(Instant::now());
            pause = pause.min(until);
        }
        pause
    }

    /// Returns the other processes that are recorded now.
    pub fn other_processes(&mut self, attached: &Attached) -> impl Iterator<Item = Process> {
        self.family.members(attached).cloned()
    }

    fn has_ended(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match &self.pidfd {
            Some(fd) => {
                poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
            }
            None => !self.process.is_alive(),
        }
    }

    fn all_threads_ended(&self) -> bool {
        let ended = |tid: &u32| {
            let status = self.process.thread_status(*tid);
            status.map_or_else(
                |error| !error.is_own(),
                |s| matches!(s.state, State::Zombie | State::Dead),
            )
        };
        match self.process.threads() {
            Ok(tids) => tids.iter().all(ended),
            Err(error) => !error.is_own(),
        }
    }

    /// Checks whether another tool has interfered with a probe.
    fn look(&mut self, attached: &mut Attached) -> Option<Ended> {
        match attached.look() {
            Ok(Beside::TakenOut(disturbances)) => {
                for disturbance in disturbances {
                    let out = match disturbance.how {
                        How::Replaced => "it is left alone",
                        _ => "the probe was taken out",
                    };
                    self.notices.push(format!(
                        "{}: {} ({:#x}); {out}, and from now on its calls are not recorded",
                        self.names[disturbance.probe], disturbance.how, disturbance.address
                    ));
                }
                None
            }
            Ok(Beside::Guard(how)) => {
                self.notices.push(format!(
                    "a probe that Capriole itself needs: {how}; all probes are taken out"
                ));
                Some(Ended::Disturbed)
            }
            // A debugger that runs the program restores our bytes when it leaves or steps over
            // them.
            Err(error @ TargetError::AlreadyTraced { .. }) if !self.held => {
                self.held = true;
                self.notices.push(format!(
                    "a breakpoint stands at a probe, whose calls may be missing: {error}"
                ));
                None
            }
            // The check is repeated soon; a program that is just ending needs nothing more.
            Err(_) => None,
        }
    }

    /// Prints the messages about other tools, and returns them.
    pub fn notices(&mut self) -> Vec<String> {
        for notice in &self.notices {
            tell!("capriole: {notice}");
        }
        std::mem::take(&mut self.notices)
    }

    /// Runs the checks that are due, and returns the reason if the recording has ended.
    pub fn ended(&mut self, attached: &mut Attached) -> Option<Ended> {
        if signals::requests() > 0 {
            return Some(Ended::Requested);
        }
        if self.left() == Some(Duration::ZERO) {
            return Some(Ended::Duration);
        }
        if self.has_ended() {
            return Some(Ended::Exited);
        }
        if attached.is_restored() {
            return Some(Ended::Detached);
        }
        if attached.must_leave() {
            return Some(Ended::NoClock);
        }
        if attached.has_waiting() && Instant::now() >= self.next_round {
            self.round = (self.round * 2).min(LONGEST_ROUND);
            // This fails for a process that is just ending, or a thread that does not stop: the
            // probes that are there go on working.
            let _ = attached.optimise();
            self.next_round = Instant::now() + self.round;
        }
        if Instant::now() >= self.next_look {
            let began = Instant::now();
            let ended = self.look(attached);
            self.next_look = Instant::now() + LOOK.max(began.elapsed() * LOOK_SHARE);
            if ended.is_some() {
                return ended;
            }
        }
        self.lanes.look(attached);
        if self.second.elapsed() < SECOND {
            return None;
        }
        self.second = Instant::now();
        let mut kept = false;
        for stranger in self.family.part(attached) {
            let (pid, name) = (stranger.process.pid(), stranger.process.name());
            kept |= stranger.keeps;
            let outcome = match stranger.result {
                _ if stranger.keeps => "it keeps the memory of this recording".to_owned(),
                Ok(()) => "it is not recorded any more".to_owned(),
                Err(error) => format!("its probes cannot be taken out: {error}"),
            };
            tell!(
                "capriole: process {pid} ({name}), a child, has other rights than process {} now; {outcome}",
                self.process.pid()
            );
        }
        if kept {
            return Some(Ended::Overheard);
        }
        // A process whose main thread has ended shows no memory map.
        match self.process.status().map(|status| status.state) {
            Ok(State::Zombie | State::Dead) | Err(_) => {
                self.all_threads_ended().then_some(Ended::Exited)
            }
            Ok(_) => (!attached.is_mapped() && !self.has_ended()).then_some(Ended::Executed),
        }
    }
}

/// Waits for a program that we started, and passes on its status. A further termination signal
/// leaves it running.
pub fn wait_for(mut child: Child) -> anyhow::Result<ExitCode> {
    let before = signals::requests();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(crate::exit::passed_on(status));
        }
        if signals::requests() > before {
            tell!("capriole: process {} is left running", child.id());
            return Ok(ExitCode::SUCCESS);
        }
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            // A signal interrupts this wait; one that arrived just before it is noticed soon.
            Ok(ended) => {
                let soon = Timespec {
                    tv_sec: 0,
                    tv_nsec: 200_000_000,
                };
                let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&soon));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
