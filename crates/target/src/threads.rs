//! Stopping a process: every thread, or one.

use crate::error::TargetError;
use crate::ptrace::{self, Event, Registers};
use crate::steps::step;
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a thread may take to stop. A thread in uninterruptible sleep (a
/// parent in vfork, a dead network disk) stops only when that is over.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long a thread that was let run may take to be given a processor.
const SCHEDULED_LIMIT: Duration = Duration::from_millis(100);
/// How long a stop is waited for without sleeping.
const SPIN: Duration = Duration::from_micros(30);
/// How long the end of killed threads is waited for.
const BURY_LIMIT: Duration = Duration::from_secs(1);

/// A thread that stands still under our control.
#[derive(Debug, Clone, Copy)]
pub struct StoppedThread {
    /// Thread id.
    pub tid: i32,
    /// The signal that was about to be delivered, to be delivered on resumption;
    /// 0: none.
    pub signal: i32,
    /// Its registers, as they will be when it goes on.
    pub registers: Registers,
}

/// Threads of a process standing still. Dropping it lets them go on untraced.
#[derive(Debug)]
pub struct Stopped {
    /// The process.
    pub pid: i32,
    threads: Vec<StoppedThread>,
    since: Instant,
    /// Ctrl-Z must not stop us now.
    _awake: ptrace::StayAwake,
}

thread_local! {
    /// Threads that somebody on this (tracing) thread holds still; see [`Hold`].
    static HELD: RefCell<BTreeSet<i32>> = const { RefCell::new(BTreeSet::new()) };
}

fn is_held(tid: i32) -> bool {
    HELD.with_borrow(|held| held.contains(&tid))
}

/// A thread that stays seized and still between one [`Stopped`] and the next: a
/// program that has just been started and must not run before it is probed.
///
/// Dropping it lets the thread go on untraced.
#[derive(Debug)]
pub struct Hold {
    tid: i32,
}

impl Hold {
    /// Holds a thread that is already seized and stands still.
    pub(crate) fn new(tid: i32) -> Hold {
        HELD.with_borrow_mut(|held| held.insert(tid));
        Hold { tid }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.remove(&self.tid));
        let _ = ptrace::detach(self.tid, 0); // killed meanwhile: nothing to do
    }
}

/// `io_pgetevents`, which the libc crate does not name.
const SYS_IO_PGETEVENTS: i64 = 333;

/// System calls that return EINTR when a stop interrupts them although no signal
/// handler has run, and which are safe to start again from the beginning.
///
/// For all others the kernel restarts the call by itself after a ptrace stop
/// (signal(7), "Interruption of system calls and library functions by stop
/// signals"). The sockets' calls do so only where a time-out is set.
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

const EINTR: i64 = -(libc::EINTR as i64);
/// The kernel's own code for "start again, unless a handler runs" (ERESTARTNOHAND).
const RESTART_UNLESS_HANDLED: i64 = -514;

/// Turns an EINTR that our stop caused into a restart.
///
/// The thread stands inside signal processing, before it is decided whether a
/// handler runs: with ERESTARTNOHAND in rax the kernel starts the call again if
/// none does, and returns EINTR if one does, exactly as without us. A call that
/// timed out, or finished, does not read EINTR here. What changes is that a
/// relative time-out starts anew.
fn heal_interrupted_call(registers: &mut Registers) -> bool {
    let interrupted = registers.rax as i64 == EINTR
        && (registers.orig_rax as i64) >= 0
        && restartable(registers.orig_rax);
    if interrupted {
        registers.rax = RESTART_UNLESS_HANDLED as u64;
    }
    interrupted
}

fn thread_ids(pid: i32) -> Result<BTreeSet<i32>, TargetError> {
    let directory = std::fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|_| TargetError::Vanished { pid })?;
    let ids = directory.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(ids.collect())
}

/// How often a thread has been given a processor, if the kernel counts that.
fn times_scheduled(pid: i32, tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    text.split_whitespace().nth(2)?.parse().ok()
}

/// The state letter of a thread; `X` if it is gone.
fn thread_state(pid: i32, tid: i32) -> char {
    std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat"))
        .ok()
        .and_then(|stat| stat[stat.rfind(')')? + 1..].trim_start().chars().next())
        .unwrap_or('X')
}

/// A number in the status of a thread.
fn status_field(pid: i32, tid: i32, field: &str) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(field))?;
    line.trim().parse().ok()
}

fn seize(pid: i32, tid: i32) -> Result<bool, TargetError> {
    if is_held(tid) {
        return Ok(true);
    }
    match ptrace::seize(tid, libc::PTRACE_O_TRACESYSGOOD) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(Errno::PERM) if matches!(thread_state(pid, tid), 'Z' | 'X') => Ok(false),
        Err(Errno::PERM) => {
            let number = |field| status_field(pid, tid, field);
            match number("TracerPid:").unwrap_or(0) {
                0 => Err(TargetError::NotPermitted { pid }),
                // It did not stop in time when we asked before, and still has to.
                us if us == rustix::thread::gettid().as_raw_nonzero().get() => Ok(true),
                tracer => Err(TargetError::traced_by(pid, tracer)),
            }
        }
        Err(errno) => Err(TargetError::ptrace("seize", tid, errno)),
    }
}

/// Asks a seized thread to stop. One that is gone says so when it is waited for.
fn ask(tid: i32) {
    if !is_held(tid) {
        let _ = ptrace::interrupt(tid);
    }
}

/// The next report of `tid`, if there is one yet.
///
/// That it is about to receive a signal is looked at and not taken: taken, the
/// signal would be in our hands alone, and lost if we are killed. The exit status of
/// a process that we have started ourselves is not taken either: it is for whoever
/// waits for that child.
fn report(pid: i32, tid: i32) -> Result<Option<Event>, Errno> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let who = WaitId::Pid(Pid::from_raw(tid).ok_or(Errno::SRCH)?);
    let reports = WaitIdOptions::EXITED | WaitIdOptions::STOPPED;
    let look = reports | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let Some(status) = waitid(who, look)? else {
        return Ok(None);
    };
    let own_child = || status_field(pid, tid, "PPid:") == Some(std::process::id() as i32);
    if let Some(stop) = status.trapping_signal() {
        // As in the status of wait(2), shifted: the signal, and what else it is.
        if stop & !0x7f == 0 {
            return Ok(Some(Event::Signal(stop)));
        }
    } else if tid == pid && own_child() {
        return Ok(Some(Event::Gone(0)));
    }
    ptrace::wait(tid, false)
}

/// Waits for threads that were killed while they stood still: as long as their
/// tracer has not seen their end, neither has anybody else.
fn bury(pid: i32, mut dead: Vec<i32>) {
    // The first thread's end is told when all others are gone.
    dead.sort_by_key(|tid| *tid == pid);
    let started = Instant::now();
    for tid in dead {
        while started.elapsed() < BURY_LIMIT {
            match report(pid, tid) {
                Ok(None) => std::thread::sleep(Duration::from_micros(100)),
                Ok(Some(Event::Gone(_))) | Err(_) => break,
                // It was not dead after all.
                Ok(Some(_)) => {
                    let _ = ptrace::detach(tid, 0);
                    break;
                }
            }
        }
    }
}

/// Waits for a report of `tid` for at most [`STOP_LIMIT`], spinning at first since
/// a stop usually takes microseconds.
fn wait_limited(pid: i32, tid: i32) -> Result<Event, TargetError> {
    let started = Instant::now();
    loop {
        match report(pid, tid) {
            Ok(Some(event)) => return Ok(event),
            Ok(None) => {}
            Err(Errno::CHILD) => return Ok(Event::Gone(0)),
            Err(errno) => return Err(TargetError::ptrace("wait", tid, errno)),
        }
        let waited = started.elapsed();
        if waited > STOP_LIMIT {
            let state = thread_state(pid, tid);
            return Err(TargetError::Unstoppable { pid, tid, state });
        }
        // Not longer than a running thread takes: one that only waits for a processor
        // may be waiting for ours.
        if waited < SPIN {
            std::thread::yield_now();
        } else {
            // A first thread that has ended before the others reports nothing.
            if tid == pid && matches!(thread_state(pid, tid), 'Z' | 'X') {
                return Ok(Event::Gone(0));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Waits until a seized and interrupted thread stands still, or has `event` to tell.
/// `None`: it is gone.
fn settle(pid: i32, tid: i32, event: Option<Event>) -> Result<Option<StoppedThread>, TargetError> {
    let signal = match () {
        () if is_held(tid) => 0,
        () => match event.map_or_else(|| wait_limited(pid, tid), Ok)? {
            Event::Gone(_) => return Ok(None),
            Event::Signal(signal) => signal,
            _ => 0,
        },
    };
    let mut registers = match ptrace::registers(tid) {
        Ok(registers) => registers,
        Err(Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(TargetError::ptrace("read the registers of", tid, errno)),
    };
    if heal_interrupted_call(&mut registers) {
        ptrace::set_registers(tid, &registers)
            .map_err(|errno| TargetError::ptrace("set the registers of", tid, errno))?;
    }
    Ok(Some(StoppedThread {
        tid,
        signal,
        registers,
    }))
}

impl Stopped {
    /// Stops every thread of `pid`.
    ///
    /// All are asked first and then waited for; the list is read again until it
    /// has nothing new, because a thread that still runs may create others.
    pub fn all(pid: i32) -> Result<Stopped, TargetError> {
        let mut stopped = Stopped {
            pid,
            threads: Vec::new(),
            since: Instant::now(),
            _awake: ptrace::StayAwake::new(),
        };
        let mut known = BTreeSet::new();
        loop {
            let ids = thread_ids(pid)?;
            let fresh: Vec<i32> = ids.difference(&known).copied().collect();
            if fresh.is_empty() {
                break;
            }
            let mut asked = Vec::new();
            let mut failure = None;
            for tid in fresh {
                known.insert(tid);
                match seize(pid, tid) {
                    Ok(true) => {
                        ask(tid);
                        asked.push(tid);
                    }
                    Ok(false) => {}
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            for tid in asked {
                match settle(pid, tid, None) {
                    Ok(Some(thread)) => stopped.threads.push(thread),
                    Ok(None) => {}
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            if let Some(error) = failure {
                return Err(error);
            }
        }
        step("all threads stopped");
        if stopped.threads.is_empty() {
            return Err(TargetError::Vanished { pid });
        }
        Ok(stopped)
    }

    /// Stops the one thread `tid` of `pid`. `None`: it is gone.
    pub fn one(pid: i32, tid: i32) -> Result<Option<Stopped>, TargetError> {
        let mut stopped = Stopped {
            pid,
            threads: Vec::new(),
            since: Instant::now(),
            _awake: ptrace::StayAwake::new(),
        };
        if !seize(pid, tid)? {
            return Ok(None);
        }
        ask(tid);
        match settle(pid, tid, None)? {
            Some(thread) => stopped.threads.push(thread),
            None => return Ok(None),
        }
        step("one thread stopped");
        Ok(Some(stopped))
    }

    /// The threads.
    pub fn threads(&self) -> &[StoppedThread] {
        &self.threads
    }

    /// How long they have been standing.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Lets thread `index` go on elsewhere.
    pub fn move_to(&mut self, index: usize, address: u64) -> Result<(), TargetError> {
        let thread = &mut self.threads[index];
        let mut registers = thread.registers;
        registers.rip = address;
        // The new place is not behind a `syscall` instruction: nothing may be
        // restarted by stepping the program counter back.
        registers.orig_rax = u64::MAX;
        ptrace::set_registers(thread.tid, &registers)
            .map_err(|errno| TargetError::ptrace("set the registers of", thread.tid, errno))?;
        thread.registers = registers;
        Ok(())
    }

    /// Lets thread `index` run for a moment and stops it again. `false`: it has
    /// gone, and is no longer among the threads.
    pub fn let_run(&mut self, index: usize, moment: Duration) -> Result<bool, TargetError> {
        let StoppedThread { tid, signal, .. } = self.threads[index];
        let before = times_scheduled(self.pid, tid);
        let mut event = None;
        if ptrace::cont(tid, signal).is_ok() {
            let started = Instant::now();
            loop {
                // A thread that was asked to stop once more than it has stopped (it
                // stood still already, or came to a signal first) stops at once.
                // Asked then again, it would do so for ever.
                event = report(self.pid, tid).unwrap_or(Some(Event::Gone(0)));
                // On a busy machine it may wait for a processor for long; asked before
                // it has run, it would come no further however often it is let run.
                let waited = started.elapsed();
                let has_run = before.is_none()
                    || times_scheduled(self.pid, tid) != before
                    || waited > SCHEDULED_LIMIT;
                if event.is_some() || waited >= moment && has_run {
                    break;
                }
                if waited < moment {
                    std::thread::sleep((moment - waited).min(Duration::from_micros(100)));
                } else {
                    std::thread::yield_now();
                }
            }
            if event.is_none() {
                let _ = ptrace::interrupt(tid);
            }
        }
        self.settle_again(index, event)
    }

    /// Waits for the next stop of thread `index`, which is running, or has told `event`.
    fn settle_again(&mut self, index: usize, event: Option<Event>) -> Result<bool, TargetError> {
        self.threads[index].signal = 0;
        match settle(self.pid, self.threads[index].tid, event)? {
            Some(thread) => {
                self.threads[index] = thread;
                Ok(true)
            }
            None => {
                self.threads.remove(index);
                Ok(false)
            }
        }
    }

    /// Lets thread `index`, for which a signal is pending that it does not block, go
    /// on until it is about to receive it. `false`: it has gone, and is no longer
    /// among the threads.
    ///
    /// It is not asked to stop: asked before it runs, which on a busy machine is the
    /// rule, it would stop for that, and come no nearer to the signal.
    pub fn let_run_to_signal(&mut self, index: usize) -> Result<bool, TargetError> {
        let StoppedThread { tid, signal, .. } = self.threads[index];
        let _ = ptrace::cont(tid, signal); // gone: the wait says so
        self.settle_again(index, None)
    }

    /// Lets all threads go on untraced and tells how long they stood still.
    pub fn resume(self) -> Duration {
        let elapsed = self.elapsed();
        drop(self);
        elapsed
    }

    /// Lets all threads but `index` go on.
    pub fn keep_only(mut self, index: usize) -> Stopped {
        let kept = self.threads.swap_remove(index);
        Stopped {
            pid: self.pid,
            threads: vec![kept],
            since: self.since,
            _awake: ptrace::StayAwake::new(),
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let threads = self.threads.iter().filter(|t| !is_held(t.tid));
        let dead = threads
            .filter(|t| ptrace::detach(t.tid, t.signal).is_err())
            .map(|t| t.tid)
            .collect();
        bury(self.pid, dead);
    }
}
