//! Watching a probed process: the end of a recording, other tools at the probes, and sites that
//! were occupied.

use crate::executed::Executed;
use crate::pace::Work;
use crate::plan::Probed;
use crate::unwinding::Callers;
use capriole_host::TargetError;
use capriole_host::ending::Ending;
use capriole_patch::attach::{Attached, Beside, How, Leave, Unreached};
use capriole_patch::family::Family;
use capriole_patch::lanes::Lanes;
use capriole_proc::process::Process;
use capriole_text::units;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The other side of a recording: it may request the end, and is told what happens.
pub trait Observer {
    /// True if the recording is to end now.
    fn end_requested(&mut self) -> bool;
    /// Takes a message: one line, without the name of the program in front.
    fn tell(&mut self, message: &str);
}

/// Observer that never requests the end and drops all messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn end_requested(&mut self) -> bool {
        false
    }

    fn tell(&mut self, _: &str) {}
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
    /// The program disables the time stamp counter, which probes read.
    NoClock,
    /// The program sets thread pointers itself, behind which probes find data of the C library.
    ThreadPointer,
    /// A child with other privileges keeps session memory, and could read what is recorded.
    MemoryExposed,
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
            Ended::ThreadPointer => "thread pointer",
            Ended::MemoryExposed => "overheard",
        }
    }

    /// Returns the remark for the user's summary.
    pub fn remark(self) -> &'static str {
        match self {
            Ended::Duration | Ended::Requested => "",
            Ended::Exited => "; the program has ended",
            Ended::Executed => "; the program has executed another one, which is not followed",
            Ended::Detached => "; the probes were taken out by a `detach`",
            Ended::Disturbed => {
                "; ended there, since another tool (a uprobe, a debugger) wrote to a probe that \
                 Capriole itself needs; record again without it"
            }
            Ended::MemoryExposed => {
                "; ended there, since a child process with other rights could read the events"
            }
            Ended::ThreadPointer => {
                "; ended there, since the program sets a thread pointer itself (arch_prctl, clone), by which \
                 probes find data of the C library; it can be recorded again as soon as it has done so"
            }
            Ended::NoClock => {
                "; ended there, since the program gives up the right to read the time stamp \
                 counter (seccomp's strict mode, or PR_SET_TSC), which probes read"
            }
        }
    }
}

/// Returns a message about children that executed other programs, if there were any.
#[must_use]
pub fn not_followed(executed_children: u64) -> Option<String> {
    let processes = units::counted(executed_children, "child process", "child processes");
    let message = format!(
        "at least {processes} executed another program, which is not followed: only the calls before \
         that are recorded"
    );
    (executed_children > 0).then_some(message)
}

/// Interval between the more expensive checks.
const SECOND: Duration = Duration::from_secs(1);
/// Delay before occupied sites are retried for the first time. It doubles with each retry, up
/// to `LONGEST_ROUND`.
const FIRST_ROUND: Duration = Duration::from_millis(5);
const LONGEST_ROUND: Duration = Duration::from_secs(5);
/// Interval between checks for other tools at our probes.
const TOOL_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Limits these checks, and those of memory, to one part in this many of a processor's time.
const TOOL_CHECK_SHARE: u32 = 100;

/// Returns the delay before the next check for other tools, or of memory, after one that took so much processor
/// time. If it found one, that may be about to write to other sites as well.
fn tool_check_delay(found: bool, spent: Duration) -> Duration {
    match found {
        true => TOOL_CHECK_INTERVAL,
        false => TOOL_CHECK_INTERVAL.max(spent * TOOL_CHECK_SHARE),
    }
}

/// Watches for the end of a recording, and retries occupied sites now and then.
#[derive(Debug)]
pub struct Watch {
    process: Process,
    ending: Arc<Ending>,
    /// The code whose callers the program finds; `None` if no event needs them.
    callers: Option<Callers>,
    started: Instant,
    limit: Option<Duration>,
    second: Instant,
    family: Family,
    executed: Executed,
    /// Delay between two rounds for occupied sites, and the time of the next one.
    round: Duration,
    next_round: Instant,
    /// Time of the next check for other tools at our probes, the names of the probes for messages,
    /// and the messages from these checks.
    next_tool_check: Instant,
    /// Time of the next check for memory whose pages may be long in coming.
    next_memory_check: Instant,
    names: Vec<String>,
    notices: Vec<String>,
    held: bool,
    lanes: Lanes,
}

impl Watch {
    /// Starts watching a process, for `limit` at most, from now on. This cannot fail, since the
    /// probes are already in the process.
    pub fn new(probed: &mut Probed, limit: Option<Duration>) -> Watch {
        let now = Instant::now();
        Watch {
            process: probed.attached.process().clone(),
            ending: Arc::clone(&probed.ending),
            callers: probed.callers.take(),
            started: now,
            limit,
            second: now,
            family: Family::default(),
            executed: Executed::default(),
            round: FIRST_ROUND,
            next_round: now + FIRST_ROUND,
            next_tool_check: now + TOOL_CHECK_INTERVAL,
            next_memory_check: now,
            names: probed.names(),
            notices: Vec::new(),
            held: false,
            lanes: Lanes::default(),
        }
    }

    /// Adds the names of further probes.
    pub fn add_names(&mut self, names: Vec<String>) {
        self.names.extend(names);
    }

    /// Returns the name of a probe's first event.
    #[must_use]
    pub fn name(&self, probe: usize) -> &str {
        self.names.get(probe).map_or("", |name| name)
    }

    /// Returns the time left until the limit.
    pub fn left(&self) -> Option<Duration> {
        let elapsed = self.started.elapsed();
        self.limit.map(|limit| limit.saturating_sub(elapsed))
    }

    /// Returns the time until the next check is due, at most `most`.
    pub fn pause(&self, attached: &Attached, most: Duration) -> Duration {
        let mut pause = self.left().map_or(most, |left| left.min(most));
        pause = pause.min(
            self.next_tool_check
                .saturating_duration_since(Instant::now()),
        );
        if attached.has_waiting() {
            let until = self.next_round.saturating_duration_since(Instant::now());
            pause = pause.min(until);
        }
        pause
    }

    /// Returns how many children that the program forked were seen to execute another program, after
    /// which they are not recorded any more. It may be more: one that ends soon is not seen.
    #[must_use]
    pub fn executed_children(&self) -> u64 {
        self.executed.count()
    }

    /// Returns the other processes that are recorded now.
    pub fn other_processes(&mut self, attached: &Attached) -> impl Iterator<Item = Process> {
        self.family.members(attached).cloned()
    }

    /// Waits that long, or until the program ends or a signal comes, whatever is first.
    pub fn wait(&self, most: Duration) {
        self.ending.wait(most);
    }

    fn all_threads_ended(&self) -> bool {
        let ended = |tid: &u32| {
            let status = self.process.thread_status(*tid);
            status.map_or_else(|error| !error.is_own(), |s| s.state.has_ended())
        };
        match self.process.threads() {
            Ok(tids) => tids.iter().all(ended),
            Err(error) => !error.is_own(),
        }
    }

    /// Checks whether another tool has interfered with a probe.
    fn check_other_tools(&mut self, attached: &mut Attached) -> Option<Ended> {
        for unreached in attached.unreached() {
            let Unreached { address, probe } = unreached;
            let place = match probe {
                Some(probe) => format!("{} ({address:#x})", self.names[probe]),
                None => format!("{address:#x}, near a probe"),
            };
            self.notices.push(format!(
                "another tool has put a uprobe at {place}: it gets no hits from this program until the \
                 recording ends"
            ));
        }
        match attached.look() {
            Ok(Beside::TakenOut(disturbances)) => {
                for disturbance in disturbances {
                    let out = match disturbance.how {
                        How::Replaced => "it is left alone",
                        _ => "the probe is removed",
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
                    "a probe that Capriole itself needs: {how}; all probes are removed"
                ));
                Some(Ended::Disturbed)
            }
            // A debugger that runs the program restores our bytes when it leaves or steps over
            // them.
            Err(error @ TargetError::AlreadyTraced { .. }) if !self.held => {
                self.held = true;
                self.notices.push(format!(
                    "a breakpoint of another tool is at a probe, so hits may be missing: {error}"
                ));
                None
            }
            // The check is repeated soon; a program that is just ending needs nothing more.
            Err(_) => None,
        }
    }

    /// Looks for memory whose pages may be long in coming, if a probe reads memory at all.
    fn check_memory(&mut self, attached: &Attached) {
        if !attached.may_call() {
            return;
        }
        // One that ends or executes another program meanwhile needs nothing more.
        let _ = attached.mind_slow_memory(&self.process);
        for process in self.family.members(attached) {
            let _ = attached.mind_slow_memory(process);
        }
    }

    /// Passes the messages about other tools on, and returns them.
    pub fn notices(&mut self, observer: &mut dyn Observer) -> Vec<String> {
        for notice in &self.notices {
            observer.tell(notice);
        }
        std::mem::take(&mut self.notices)
    }

    /// Runs the checks that are due, and returns the reason if the recording has ended.
    pub fn ended(&mut self, attached: &mut Attached, observer: &mut dyn Observer) -> Option<Ended> {
        if observer.end_requested() {
            return Some(Ended::Requested);
        }
        if self.left() == Some(Duration::ZERO) {
            return Some(Ended::Duration);
        }
        if self.ending.has_ended() {
            return Some(Ended::Exited);
        }
        if attached.is_restored() {
            return Some(Ended::Detached);
        }
        match attached.must_leave() {
            Some(Leave::Clock) => return Some(Ended::NoClock),
            Some(Leave::ThreadPointer) => return Some(Ended::ThreadPointer),
            None => {}
        }
        if attached.has_waiting() && Instant::now() >= self.next_round {
            self.round = (self.round * 2).min(LONGEST_ROUND);
            // This fails for a process that is just ending, or a thread that does not stop: the
            // probes that are there go on working.
            let _ = attached.optimise();
            self.next_round = Instant::now() + self.round;
        }
        if Instant::now() >= self.next_tool_check {
            let (work, known) = (Work::begin(), self.notices.len());
            let ended = self.check_other_tools(attached);
            let found = self.notices.len() > known;
            self.next_tool_check = Instant::now() + tool_check_delay(found, work.spent());
            if ended.is_some() {
                return ended;
            }
        }
        self.lanes.look(attached);
        self.executed.look(attached);
        if let Some(callers) = &mut self.callers {
            callers.keep_looking(attached);
        }
        if Instant::now() >= self.next_memory_check {
            let work = Work::begin();
            self.check_memory(attached);
            self.next_memory_check = Instant::now() + tool_check_delay(false, work.spent());
        }
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
                Ok(()) => format!("it is not covered any more; -p {pid} covers it"),
                Err(error) => format!("its probes cannot be taken out: {error}"),
            };
            observer.tell(&format!(
                "process {pid} ({name}), a child, has other rights than process {} now; {outcome}",
                self.process.pid()
            ));
        }
        if kept {
            return Some(Ended::MemoryExposed);
        }
        // Another thread's status, if the main thread has ended and others go on.
        match self.process.status().map(|status| status.state) {
            Ok(state) if !state.has_ended() => {
                let is_other = !attached.is_mapped() && !self.ending.has_ended();
                // One that is just ending has no memory at all.
                let has_memory = || self.process.maps().is_ok_and(|maps| !maps.is_empty());
                (is_other && has_memory()).then_some(Ended::Executed)
            }
            _ => self.all_threads_ended().then_some(Ended::Exited),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_tool_was_found_the_next_check_is_soon() {
        let long = Duration::from_millis(400);
        assert_eq!(tool_check_delay(true, long), TOOL_CHECK_INTERVAL);
        assert_eq!(tool_check_delay(false, long), long * TOOL_CHECK_SHARE);
        assert_eq!(tool_check_delay(false, Duration::ZERO), TOOL_CHECK_INTERVAL);
    }
}
