//! Stopping a process: every thread, or one.
//!
//! A thread that cannot stop (in `vfork`, on a dead disk, in a long system call) is left alone
//! after 20 ms: the others continue, and all are interrupted again once it has stopped. So is a
//! thread that only waits for a processor, after 10 ms, in each further attempt after twice as long.
//! After ten seconds there is an error, for a thread that has run meanwhile as `schedstat` shows,
//! and the end of the tracing thread withdraws the interrupt.
//!
//! A stop interrupts blocking system calls. The kernel restarts almost all of them; those that
//! would return EINTR are restarted here. A thread with a seccomp filter resumes an interrupted
//! sleep by `restart_syscall`, which its filter may not allow: it continues to that call's
//! entry with its filter suspended, and no other call can pass; when it sleeps, the tracing
//! thread ends, and with it the suspension.

use crate::error::TargetError;
use crate::host::{Restartable, StoppedThread, StoppedThreads};
use crate::ptrace::requests;
use crate::ptrace::requests::{Event, report, status_field};
use crate::ptrace::tracer;
use crate::steps::step;
use crate::x86_64::registers::{heal_interrupted_call, moved_to, wants_restart_call};
use capriole_proc::files;
use capriole_proc::process::{ProcessError, TRACER_PATIENCE, deputy, is_passing_tracer};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// Time limit for threads to stop. A thread in uninterruptible sleep (a parent in vfork, a dead
/// network disk) or in a long system call stops only when that is over.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Time limit, after that, for a thread that could stop, if only it got a processor.
const STARVED_LIMIT: Duration = Duration::from_secs(120);
/// Time for which the other threads may stay stopped for one that does not stop; then they
/// resume, and are interrupted again when that one has stopped.
const PATIENCE: Duration = Duration::from_millis(20);
/// Time limit of the first attempt to stop a thread that is runnable but gets no processor. Each
/// further attempt has twice the limit, so that threads that always wait that long are stopped, too.
const STARVED_PATIENCE: Duration = Duration::from_millis(10);
/// Time between two checks of a thread that does not stop.
const LOOK: Duration = Duration::from_micros(500);
/// Time spent waiting for a stop without sleeping.
pub(super) const SPIN: Duration = Duration::from_micros(30);
/// Attempts to seize a thread that nobody seems to trace.
const SEIZE_TRIES: u32 = 10;
/// Longest pause between two attempts while another Capriole holds a thread.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Time limit for killed threads to end.
const BURY_LIMIT: Duration = Duration::from_secs(1);
/// Most signals that are received in a stop so that a thread can make calls.
const SIGNALS: usize = 4;

/// Seized and stopped threads of a process. Dropping it resumes them, no longer traced.
#[derive(Debug)]
pub struct Stopped {
    /// The process.
    pub pid: i32,
    threads: Vec<StoppedThread>,
    since: Instant,
    /// Keeps Ctrl-Z from stopping us meanwhile.
    _awake: requests::StayAwake,
}

thread_local! {
    /// Threads that this (tracing) thread keeps stopped; see [`Hold`].
    static HELD: RefCell<BTreeSet<i32>> = const { RefCell::new(BTreeSet::new()) };
}

/// True if this thread holds any.
pub(crate) fn holds_any() -> bool {
    HELD.with_borrow(|held| !held.is_empty())
}

fn is_held(tid: i32) -> bool {
    HELD.with_borrow(|held| held.contains(&tid))
}

/// A thread that stays seized and stopped between one [`Stopped`] and the next: a program that
/// has just been started and must not run before it is probed.
///
/// Dropping it resumes the thread, no longer traced.
#[derive(Debug)]
pub struct Hold {
    tid: i32,
    /// Keeps it on the thread that is the tracer: any other thread's attempt to let the program run
    /// would do nothing.
    _tracer: PhantomData<*const ()>,
}

impl Hold {
    /// Holds a thread that is already seized and stopped.
    pub(crate) fn new(tid: i32) -> Hold {
        HELD.with_borrow_mut(|held| held.insert(tid));
        Hold {
            tid,
            _tracer: PhantomData,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.remove(&self.tid));
        let _ = requests::detach(self.tid, 0); // killed meanwhile: nothing to do
    }
}

/// `io_pgetevents`, for which the libc crate has no constant.
const SYS_IO_PGETEVENTS: i64 = 333;

/// Returns true for system calls that return EINTR when a stop interrupts them although no
/// signal handler has run, and which are safe to start again from the beginning.
///
/// For all others the kernel restarts the call by itself after a ptrace stop
/// (signal(7), "Interruption of system calls and library functions by stop
/// signals"). The calls on sockets return EINTR only where a time-out is set.
fn restartable(number: u64) -> bool {
    [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
        SYS_IO_PGETEVENTS,
        libc::SYS_io_uring_enter,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_connect,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
    ]
    .contains(&(number as i64))
}

fn thread_ids(pid: i32) -> Result<BTreeSet<i32>, TargetError> {
    Ok(numbers(pid, "task")?.collect())
}

/// Returns the numbers among the names in the directory `/proc/PID/PLACE`. If it cannot be
/// read, for example because no descriptor is free, this is an error: the directory must not
/// look empty.
fn numbers(pid: i32, place: &str) -> Result<impl Iterator<Item = i32>, TargetError> {
    let directory = std::fs::read_dir(format!("/proc/{pid}/{place}")).map_err(|error| {
        match ProcessError::from_io(pid as u32, "", place, error) {
            ProcessError::NoSuchProcess { .. } => TargetError::Vanished { pid },
            error => error.into(),
        }
    })?;
    Ok(directory.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// Returns the scheduler's counters for a thread, if there are any: nanoseconds on a processor,
/// and how often it was scheduled.
fn scheduled(tid: i32) -> Option<(u64, u64)> {
    let text = files::read_pseudo_text(format!("/proc/{tid}/schedstat")).ok()?;
    let mut words = text.split_whitespace().map(str::parse);
    Some((words.next()?.ok()?, words.nth(1)?.ok()?))
}

/// Returns the state letter of a thread; `X` if it is gone.
pub(crate) fn thread_state(tid: i32) -> char {
    // Directly below `/proc` the file has sums over all threads of the process.
    files::read_pseudo_text(format!("/proc/{tid}/task/{tid}/stat"))
        .ok()
        .and_then(|stat| stat[stat.rfind(')')? + 1..].trim_start().chars().next())
        .unwrap_or('X')
}

/// True if a thread has a system call filter.
fn is_filtered(tid: i32) -> bool {
    status_field(tid, "Seccomp:").is_some_and(|mode| mode != 0)
}

/// Returns the processes, other than `pid`, that share the memory of `pid` (CLONE_VM without
/// CLONE_THREAD), among those that are not in `seen`; adds all processes to `seen`.
///
/// A vfork child is one as well. Its parent cannot be stopped, so there is no such child while
/// all threads of a process are stopped.
fn sharers(pid: i32, seen: &mut BTreeSet<i32>) -> Result<Vec<i32>, TargetError> {
    let pids = numbers(pid, "..")?;
    let new: Vec<i32> = pids.filter(|other| seen.insert(*other)).collect();
    let own = deputy(pid as u32) as i32;
    let shares = |other: &i32| *other != pid && requests::share_memory(own, *other);
    Ok(new.into_iter().filter(shares).collect())
}

/// Returns the other processes that have the same memory as `pid`.
pub fn sharing_memory(pid: i32) -> Result<Vec<i32>, TargetError> {
    sharers(pid, &mut BTreeSet::new())
}

fn seize(pid: i32, tid: i32) -> Result<bool, TargetError> {
    if is_held(tid) {
        return Ok(true);
    }
    for _ in 0..SEIZE_TRIES {
        match requests::seize(tid, libc::PTRACE_O_TRACESYSGOOD) {
            Ok(()) => return Ok(true),
            Err(Errno::SRCH) => return Ok(false),
            Err(Errno::PERM) if matches!(thread_state(tid), 'Z' | 'X') => return Ok(false),
            Err(Errno::PERM) => {
                let number = |field| status_field(tid, field);
                match number("TracerPid:").unwrap_or(0) {
                    // Another tracer may have let it go in between.
                    0 => {}
                    // We have seized it already: it did not stop in time at an earlier request, and still
                    // has to.
                    us if us == rustix::thread::gettid().as_raw_nonzero().get() => return Ok(true),
                    tracer => return Err(TargetError::traced_by(pid, tracer)),
                }
            }
            Err(errno) => return Err(TargetError::ptrace("seize", tid, errno)),
        }
    }
    Err(TargetError::NotPermitted { pid })
}

/// Tries to stop threads until no thread of another Capriole holds one of them, for a bounded time.
/// That one stops threads for moments only, too: the program is recorded and probes itself.
fn past_others<T>(mut attempt: impl FnMut() -> Result<T, TargetError>) -> Result<T, TargetError> {
    let until = Instant::now() + TRACER_PATIENCE;
    // Two that began at the same moment must not go on in step.
    let mut pause = Duration::from_micros(100 + u64::from(std::process::id() % 64) * 8);
    loop {
        match attempt() {
            Err(TargetError::AlreadyTraced { tracer, .. })
                if is_passing_tracer(tracer as u32) && Instant::now() < until =>
            {
                std::thread::sleep(pause);
                pause = (pause * 3 / 2).min(LONGEST_PAUSE);
            }
            result => return result,
        }
    }
}

/// Interrupts a seized thread. If the thread is gone, waiting for it reports that.
fn ask(tid: i32) {
    if !is_held(tid) {
        let _ = requests::interrupt(tid);
    }
}

/// Waits for the end of threads (process, thread) that were killed while stopped: until their
/// tracer has seen their end, no other process sees it either.
fn bury(mut dead: Vec<(i32, i32)>) {
    // The end of a process's first thread is reported when all its other threads are gone.
    dead.sort_by_key(|(pid, tid)| tid == pid);
    let started = Instant::now();
    for (_, tid) in dead {
        while started.elapsed() < BURY_LIMIT {
            match report(tid) {
                Ok(None) => std::thread::sleep(Duration::from_micros(100)),
                Ok(Some(Event::Gone(_))) | Err(_) => break,
                // It was not killed after all.
                Ok(Some(_)) => {
                    let _ = requests::detach(tid, 0);
                    break;
                }
            }
        }
    }
}

/// When threads were interrupted, and how long they are waited for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    at: Instant,
    /// Limit for those that could stop, if only they got a processor.
    starved: Duration,
}

impl Asked {
    /// Now, for a thread for which no other stands still.
    fn alone() -> Asked {
        Asked {
            at: Instant::now(),
            starved: STOP_LIMIT,
        }
    }
}

/// Waits for a report of `tid`, spinning at first since a stop usually takes microseconds.
/// Returns `None` if enough time has passed since it was `asked` and the thread cannot stop now.
fn wait_limited(pid: i32, tid: i32, asked: Asked) -> Result<Option<Event>, TargetError> {
    let started = Instant::now();
    // Almost every thread stops at once, and others wait for it meanwhile.
    let mut before = None;
    loop {
        match report(tid) {
            Ok(Some(event)) => return Ok(Some(event)),
            Ok(None) => {}
            Err(Errno::CHILD) => return Ok(Some(Event::Gone(0))),
            Err(errno) => return Err(TargetError::ptrace("wait", tid, errno)),
        }
        // Spin no longer than a running thread takes to stop: a thread that only waits for a processor
        // may be waiting for ours.
        let waited = started.elapsed();
        if waited < SPIN {
            std::thread::yield_now();
            continue;
        }
        let before = *before.get_or_insert_with(|| scheduled(tid));
        // A process's first thread that has ended before the others reports nothing.
        let state = thread_state(tid);
        if tid == pid && matches!(state, 'Z' | 'X') {
            return Ok(Some(Event::Gone(0)));
        }
        // A thread that is runnable, but has not run for so long, waits for a processor and stops as
        // soon as it has one. A thread that has run is deep in the kernel.
        let ran = || match (before, scheduled(tid)) {
            (Some((before, _)), Some((now, _))) => Duration::from_nanos(now - before),
            _ => waited,
        };
        let since = asked.at.elapsed();
        let late = since > PATIENCE && (state == 'D' || ran() > PATIENCE / 2);
        if late || since > asked.starved || waited > STOP_LIMIT {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Result of waiting for an interrupted thread.
enum Settled {
    Still(Box<StoppedThread>),
    Gone,
    /// The thread cannot stop now.
    Busy,
}

/// Waits until a seized thread, which was interrupted at `asked`, is stopped; `event` is its
/// report, if that was already read.
fn settle(pid: i32, tid: i32, event: Option<Event>, asked: Asked) -> Result<Settled, TargetError> {
    let mut event = event;
    let signal = loop {
        if is_held(tid) {
            break 0;
        }
        let told = match event.take() {
            Some(event) => Some(event),
            None => wait_limited(pid, tid, asked)?,
        };
        match told {
            None => return Ok(Settled::Busy),
            Some(Event::Gone(_)) => {
                tracer::stop_restart(tid);
                return Ok(Settled::Gone);
            }
            // The thread is at the entry or exit of the call that it restarts, past its filter. It has
            // to stop behind that call, where the kernel decides which call to restart; and any stop
            // cancels the pending interrupt.
            Some(Event::Syscall) if tracer::is_restarting(tid) => {
                let _ = requests::interrupt(tid);
                let _ = requests::cont(tid, 0); // gone: the wait says so
            }
            Some(Event::Signal(signal)) => break signal,
            Some(_) => break 0,
        }
    };
    if tracer::stop_restart(tid) {
        // Its filter is active again.
        let _ = requests::set_options(tid, libc::PTRACE_O_TRACESYSGOOD);
    }
    let mut registers = match requests::registers(tid) {
        Ok(registers) => registers,
        Err(Errno::SRCH) => return Ok(Settled::Gone),
        Err(errno) => return Err(TargetError::ptrace("read the registers of", tid, errno)),
    };
    if heal_interrupted_call(&mut registers, restartable) {
        requests::set_registers(tid, &registers)
            .map_err(|errno| TargetError::ptrace("set the registers of", tid, errno))?;
    }
    Ok(Settled::Still(Box::new(StoppedThread {
        tid,
        pid,
        signal,
        registers,
    })))
}

/// Resumes threads, no longer traced.
fn let_go(threads: &[StoppedThread]) {
    let mut dead = Vec::new();
    for thread in threads.iter().filter(|t| !is_held(t.tid)) {
        let StoppedThread {
            tid, pid, signal, ..
        } = *thread;
        let registers = requests::registers(tid).unwrap_or(thread.registers);
        if wants_restart_call(&registers)
            && is_filtered(tid)
            && tracer::restart(tid, signal).is_ok()
        {
            continue;
        }
        if requests::detach(tid, signal).is_err() {
            dead.push((pid, tid));
        }
    }
    tracer::lead_restarts();
    bury(dead);
}

/// Waits, while all others run, until threads that could not stop are stopped. Those that would have
/// to wait longer than `hold` for each other are released. After `until`, only threads that have not
/// run since are waited for. Returns each thread with the time at which it stopped.
fn wait_for_busy(
    busy: Vec<(i32, i32)>,
    until: Instant,
    hold: Duration,
) -> Result<Vec<(StoppedThread, Instant)>, TargetError> {
    // Those that stop wait for us.
    let _awake = requests::StayAwake::new();
    let before: BTreeMap<i32, u64> = busy
        .iter()
        .filter_map(|(_, tid)| Some((*tid, scheduled(*tid)?.0)))
        .collect();
    let is_starved = |tid: i32| match (before.get(&tid), scheduled(tid)) {
        (Some(before), Some((now, _))) => {
            let ran = Duration::from_nanos(now.saturating_sub(*before));
            thread_state(tid) == 'R' && ran < PATIENCE / 2
        }
        _ => false,
    };
    let mut busy = busy;
    let mut still: Vec<(StoppedThread, Instant)> = Vec::new();
    loop {
        let mut later = Vec::new();
        for (pid, tid) in busy {
            let told = report(tid).unwrap_or(Some(Event::Gone(0)));
            let Some(event) = told else {
                later.push((pid, tid));
                continue;
            };
            match settle(pid, tid, Some(event), Asked::alone())? {
                Settled::Still(thread) => still.push((*thread, Instant::now())),
                Settled::Gone => {}
                Settled::Busy => later.push((pid, tid)),
            }
        }
        busy = later;
        let Some(first) = busy.first().copied() else {
            return Ok(still);
        };
        let now = Instant::now();
        let is_stuck = |(_, tid): &&(i32, i32)| !is_starved(*tid);
        let stuck = (now > until).then(|| busy.iter().find(is_stuck)).flatten();
        let is_over = stuck.is_some() || now > until + STARVED_LIMIT;
        let waited = |(_, since): &(StoppedThread, Instant)| is_over || since.elapsed() > hold;
        let (long, rest): (Vec<_>, Vec<_>) = still.into_iter().partition(waited);
        let_go(
            &long
                .into_iter()
                .map(|(thread, _)| thread)
                .collect::<Vec<_>>(),
        );
        still = rest;
        if is_over {
            let (pid, tid) = stuck.copied().unwrap_or(first);
            let state = thread_state(tid);
            return Err(TargetError::Unstoppable { pid, tid, state });
        }
        std::thread::sleep(LOOK);
    }
}

impl Stopped {
    /// Stops every thread of `pid`, and of the processes that have the same memory.
    ///
    /// If one does not stop, the others do not stay stopped for it: they resume after 10 or 20 ms, and all
    /// are interrupted again when that one has stopped.
    ///
    /// # Errors
    /// [`TargetError::Unstoppable`]: one has not stopped for ten seconds.
    pub fn all(pid: i32) -> Result<Stopped, TargetError> {
        past_others(|| Stopped::all_now(pid))
    }

    /// Does the work of [`all`](Self::all), unless another tracer is there.
    fn all_now(pid: i32) -> Result<Stopped, TargetError> {
        let until = Instant::now() + STOP_LIMIT;
        // Scan now, so that few new ones are left once all are stopped.
        let mut seen = BTreeSet::new();
        let others = sharers(pid, &mut seen)?;
        let mut still = Vec::new();
        let mut starved = STARVED_PATIENCE;
        loop {
            let mut stopped = Stopped::of(pid, still);
            let busy = stopped.stop_all(&others, &mut seen.clone(), starved)?;
            if busy.is_empty() {
                step("all threads stopped");
                return match stopped.threads.is_empty() {
                    true => Err(TargetError::Vanished { pid }),
                    false => Ok(stopped),
                };
            }
            drop(stopped);
            step("others run");
            still = wait_for_busy(busy, until, (starved / 2).min(PATIENCE))?;
            starved = (starved * 2).min(STOP_LIMIT);
        }
    }

    /// Takes threads that are stopped, each with the time at which it stopped.
    fn of(pid: i32, still: Vec<(StoppedThread, Instant)>) -> Stopped {
        let since = still.iter().map(|(_, since)| *since).min();
        Stopped {
            pid,
            threads: still.into_iter().map(|(thread, _)| thread).collect(),
            since: since.unwrap_or_else(Instant::now),
            _awake: requests::StayAwake::new(),
        }
    }

    /// Interrupts all threads that are not stopped, and waits for them. Returns those
    /// (process, thread) that cannot stop now.
    ///
    /// All are interrupted first and then waited for; the list is read again until it has nothing
    /// new, because a thread that still runs may create others. Other processes with the same
    /// memory come last: one of them may be a vfork child, before whose end its parent cannot stop.
    fn stop_all(
        &mut self,
        others: &[i32],
        seen: &mut BTreeSet<i32>,
        starved: Duration,
    ) -> Result<Vec<(i32, i32)>, TargetError> {
        let mut processes = vec![self.pid];
        let mut others = others.to_vec();
        let mut known: BTreeSet<i32> = self.threads.iter().map(|t| t.tid).collect();
        loop {
            let mut fresh = Vec::new();
            for process in &processes {
                let ids = match thread_ids(*process) {
                    Err(TargetError::Vanished { .. }) if *process != self.pid => continue,
                    ids => ids?,
                };
                fresh.extend(ids.difference(&known).map(|tid| (*process, *tid)));
            }
            if fresh.is_empty() {
                others.extend(sharers(self.pid, seen)?);
                if others.is_empty() {
                    return Ok(Vec::new());
                }
                processes.append(&mut others);
                continue;
            }
            let mut asked = Vec::new();
            let mut failure = None;
            for (pid, tid) in fresh {
                known.insert(tid);
                match seize(pid, tid) {
                    Ok(true) => {
                        ask(tid);
                        asked.push((pid, tid));
                    }
                    Ok(false) => {}
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            let interrupted = Asked {
                at: Instant::now(),
                starved,
            };
            let mut busy = Vec::new();
            for (pid, tid) in asked {
                match settle(pid, tid, None, interrupted) {
                    Ok(Settled::Still(thread)) => self.threads.push(*thread),
                    Ok(Settled::Gone) => {}
                    Ok(Settled::Busy) => busy.push((pid, tid)),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            if let Some(error) = failure {
                return Err(error);
            }
            if !busy.is_empty() {
                return Ok(busy);
            }
        }
    }

    /// Stops the one thread `tid` of `pid`. Returns `None` if it is gone.
    ///
    /// # Errors
    /// [`TargetError::Unstoppable`]: it cannot stop now. It resumes, no longer traced, when our own
    /// thread ends, see [`tracer::apart`].
    pub fn one(pid: i32, tid: i32) -> Result<Option<Stopped>, TargetError> {
        past_others(|| Stopped::one_now(pid, tid))
    }

    /// Does the work of [`one`](Self::one), unless another tracer is there.
    fn one_now(pid: i32, tid: i32) -> Result<Option<Stopped>, TargetError> {
        let mut stopped = Stopped::of(pid, Vec::new());
        let state = thread_state(tid);
        if state == 'D' {
            return Err(TargetError::Unstoppable { pid, tid, state });
        }
        if !seize(pid, tid)? {
            return Ok(None);
        }
        ask(tid);
        match settle(pid, tid, None, Asked::alone())? {
            Settled::Still(thread) => stopped.threads.push(*thread),
            Settled::Gone => return Ok(None),
            Settled::Busy => {
                let state = thread_state(tid);
                return Err(TargetError::Unstoppable { pid, tid, state });
            }
        }
        step("one thread stopped");
        Ok(Some(stopped))
    }

    /// Has thread `index` receive the signal that it is about to receive, or that its instruction has raised, and
    /// stop at the first instruction of the handler. Returns `false` if it is gone.
    fn receive(&mut self, index: usize) -> Result<bool, TargetError> {
        if self.threads[index].signal == 0 && !self.let_run_to_signal(index)? {
            return Ok(false);
        }
        let StoppedThread { tid, signal, .. } = self.threads[index];
        // Asked before it runs, it stops before its next instruction. Gone: the wait says so.
        let _ = requests::interrupt(tid);
        let _ = requests::cont(tid, signal);
        self.settle_again(index, None)
    }

    /// Waits for the next stop of thread `index`, which is running, or has reported `event`.
    fn settle_again(&mut self, index: usize, event: Option<Event>) -> Result<bool, TargetError> {
        self.threads[index].signal = 0;
        let StoppedThread { tid, pid, .. } = self.threads[index];
        match settle(pid, tid, event, Asked::alone())? {
            Settled::Still(thread) => {
                self.threads[index] = *thread;
                Ok(true)
            }
            Settled::Gone => {
                self.threads.remove(index);
                Ok(false)
            }
            Settled::Busy => {
                self.threads.remove(index);
                let state = thread_state(tid);
                Err(TargetError::Unstoppable { pid, tid, state })
            }
        }
    }
}

impl StoppedThreads for Stopped {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn threads(&self) -> &[StoppedThread] {
        &self.threads
    }

    fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    fn move_to(&mut self, index: usize, address: u64) -> Result<(), TargetError> {
        let thread = &mut self.threads[index];
        let registers = moved_to(thread.registers, address);
        requests::set_registers(thread.tid, &registers)
            .map_err(|errno| TargetError::ptrace("set the registers of", thread.tid, errno))?;
        thread.registers = registers;
        Ok(())
    }

    fn let_run(
        &mut self,
        index: usize,
        moment: Duration,
        patience: Duration,
    ) -> Result<bool, TargetError> {
        let StoppedThread { tid, signal, .. } = self.threads[index];
        let times_scheduled = || scheduled(tid).map(|(_, times)| times);
        let before = times_scheduled();
        let mut event = None;
        if requests::cont(tid, signal).is_ok() {
            let started = Instant::now();
            loop {
                // A thread that was interrupted once more than it has stopped (it was stopped already,
                // or came to a signal first) stops at once. If it were interrupted again then, it would do
                // so for ever.
                event = report(tid).unwrap_or(Some(Event::Gone(0)));
                // On a busy machine it may wait for a processor for long; interrupted before it has run,
                // it would make no progress however often it is let run.
                let waited = started.elapsed();
                let has_run = before.is_none() || times_scheduled() != before || waited > patience;
                if event.is_some() || waited >= moment && has_run {
                    break;
                }
                if waited < moment {
                    std::thread::sleep((moment - waited).min(Duration::from_micros(100)));
                } else {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
            if event.is_none() {
                let _ = requests::interrupt(tid);
            }
        }
        self.settle_again(index, event)
    }

    /// It is not interrupted: interrupted before it runs, which is the rule on a busy machine, it
    /// would stop for the interrupt, and come no nearer to the signal.
    fn let_run_to_signal(&mut self, index: usize) -> Result<bool, TargetError> {
        let StoppedThread { tid, signal, .. } = self.threads[index];
        let _ = requests::cont(tid, signal); // gone: the wait says so
        self.settle_again(index, None)
    }

    fn past_signals(&mut self) -> Result<(), TargetError> {
        for _ in 0..SIGNALS {
            let pid = self.pid;
            if self.threads.iter().any(|t| t.pid == pid && t.goes_on()) {
                break;
            }
            let Some(index) = self.threads.iter().position(|t| t.pid == pid) else {
                break;
            };
            self.receive(index)?;
        }
        Ok(())
    }

    fn has_hit_breakpoint(&self, index: usize) -> bool {
        let StoppedThread { tid, signal, .. } = self.threads[index];
        requests::has_hit_breakpoint(tid, signal)
    }

    fn restartable_sequences(&self, index: usize) -> Option<Restartable> {
        requests::rseq_configuration(self.threads[index].tid).ok()
    }

    fn keep_only(mut self: Box<Self>, index: usize) -> Box<dyn StoppedThreads> {
        let kept = self.threads.swap_remove(index);
        Box::new(Stopped {
            pid: self.pid,
            threads: vec![kept],
            since: self.since,
            _awake: requests::StayAwake::new(),
        })
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let_go(&self.threads);
    }
}
