//! Safe wrappers of the ptrace requests in use, one function each.
//!
//! All of them act on a *thread*, and must come from the thread that seized it: all code in
//! this crate that stops a program runs on one thread.

#![allow(unsafe_code)]

use crate::host::Restartable;
use crate::stacks::BREAKPOINT_CODE;
use crate::x86_64::registers::Registers;
use capriole_proc::files;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::c_void;

/// Reason why a thread reported to its tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The thread stopped because of our interrupt.
    Interrupted,
    /// The thread stopped together with its process (SIGSTOP and the like).
    GroupStop,
    /// The thread stopped before this signal is delivered.
    Signal(i32),
    /// The thread stopped at the entry or exit of a system call.
    Syscall,
    /// The thread has just executed another program.
    Exec,
    /// Another ptrace event (a clone, for instance).
    Other(i32),
    /// The thread is gone; the exit status in wait's encoding.
    Gone(i32),
}

fn check(result: libc::c_long) -> Result<(), Errno> {
    if result == -1 {
        return Err(Errno::from_raw_os_error(
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        ));
    }
    Ok(())
}

/// Makes a request. Its number is unsigned with glibc, signed with musl.
fn request(what: impl Into<i64>, tid: i32, address: usize, data: usize) -> Result<(), Errno> {
    let what = what.into();
    // SAFETY: only requests without pointers into our memory come here; they affect only the
    // tracee's memory, not ours.
    check(unsafe { libc::ptrace(what as _, tid, address, data) })
}

/// Makes a request that reads or writes `value` in our memory.
fn transfer<T>(what: impl Into<i64>, tid: i32, address: usize, value: &mut T) -> Result<(), Errno> {
    let data: *mut T = value;
    let what = what.into();
    // SAFETY: `data` is valid for reads and writes of a `T`, and every caller
    // passes the type that its request transfers.
    check(unsafe { libc::ptrace(what as _, tid, address, data.cast::<c_void>()) })
}

/// Becomes the tracer of a thread without stopping it.
pub fn seize(tid: i32, options: libc::c_int) -> Result<(), Errno> {
    request(libc::PTRACE_SEIZE, tid, 0, options as usize)
}

/// Requests a seized thread to stop.
pub fn interrupt(tid: i32) -> Result<(), Errno> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Resumes a stopped thread, delivering `signal` (0: none).
pub fn cont(tid: i32, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// Resumes a stopped thread until the next entry or exit of a system call.
pub fn cont_to_syscall(tid: i32, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as usize)
}

/// Resumes a stopped thread, no longer traced, delivering `signal` (0: none).
pub fn detach(tid: i32, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// Changes the options given to [`seize`].
pub(crate) fn set_options(tid: i32, options: libc::c_int) -> Result<(), Errno> {
    request(libc::PTRACE_SETOPTIONS, tid, 0, options as usize)
}

/// Returns registers that are all zero.
pub(crate) fn no_registers() -> Registers {
    // SAFETY: the type is plain integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// Sets the hardware breakpoints of a stopped thread, at most four: it gets a SIGTRAP before it executes the
/// instruction at one of the addresses.
pub fn set_hardware_breakpoints(tid: i32, addresses: &[u64]) -> Result<(), Errno> {
    let register = |i: usize| std::mem::offset_of!(libc::user, u_debugreg) + i * 8;
    request(libc::PTRACE_POKEUSER, tid, register(7), 0)?;
    let mut enabled = 0;
    for number in 0..4 {
        let address = addresses.get(number).map_or(0, |address| *address as usize);
        request(libc::PTRACE_POKEUSER, tid, register(number), address)?;
        // DR7: enabled for this thread, on execution, one byte.
        enabled |= usize::from(number < addresses.len()) << (2 * number);
    }
    request(libc::PTRACE_POKEUSER, tid, register(7), enabled)
}

/// Returns the general registers of a stopped thread.
pub fn registers(tid: i32) -> Result<Registers, Errno> {
    let mut registers = no_registers();
    transfer(libc::PTRACE_GETREGS, tid, 0, &mut registers)?;
    Ok(registers)
}

/// Sets the general registers of a stopped thread.
pub(crate) fn set_registers(tid: i32, registers: &Registers) -> Result<(), Errno> {
    let mut registers = *registers;
    transfer(libc::PTRACE_SETREGS, tid, 0, &mut registers)
}

/// How the kernel passes a thread's system calls back to its program: `struct ptrace_sud_config`
/// (linux/ptrace.h), set by `prctl(PR_SET_SYSCALL_USER_DISPATCH)`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserDispatch {
    /// 0: not at all.
    pub mode: u64,
    /// Address of a byte, 0 while all calls are allowed; 0 if there is none, and calls never are.
    pub selector: u64,
    /// First address of the code that may always make calls.
    pub start: u64,
    /// Size of that code in bytes.
    pub len: u64,
}

/// Returns how a stopped thread's system calls are passed back to its program.
///
/// # Errors
/// EIO from a kernel before Linux 6.4, which cannot say.
pub(crate) fn user_dispatch(tid: i32) -> Result<UserDispatch, Errno> {
    const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: i64 = 0x4211;
    let mut dispatch = UserDispatch::default();
    let size = size_of::<UserDispatch>();
    transfer(
        PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
        tid,
        size,
        &mut dispatch,
    )?;
    Ok(dispatch)
}

/// Returns the floating-point and vector state of a stopped thread, in the processor's standard
/// XSAVE format.
pub fn xstate(tid: i32) -> Result<Vec<u8>, Errno> {
    const NT_X86_XSTATE: usize = 0x202;
    let mut buffer = vec![0u8; 64 * 1024];
    let mut vector = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    transfer(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &mut vector)?;
    buffer.truncate(vector.iov_len);
    Ok(buffer)
}

/// Returns the signals that a stopped thread blocks, bit `n - 1` for signal `n`.
pub(crate) fn signal_mask(tid: i32) -> Result<u64, Errno> {
    let mut mask = 0u64;
    transfer(libc::PTRACE_GETSIGMASK, tid, 8, &mut mask)?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub(crate) fn set_signal_mask(tid: i32, mask: u64) -> Result<(), Errno> {
    let mut mask = mask;
    transfer(libc::PTRACE_SETSIGMASK, tid, 8, &mut mask)
}

/// `struct ptrace_rseq_configuration` of linux/ptrace.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RseqConfiguration {
    address: u64,
    size: u32,
    signature: u32,
    flags: u32,
    pad: u32,
}

/// Returns the registration of a stopped thread's restartable sequences (Linux 5.13).
pub(crate) fn rseq_configuration(tid: i32) -> Result<Restartable, Errno> {
    const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
    let mut configuration = RseqConfiguration::default();
    let size = size_of::<RseqConfiguration>();
    transfer(PTRACE_GET_RSEQ_CONFIGURATION, tid, size, &mut configuration)?;
    Ok(Restartable {
        address: configuration.address,
        signature: configuration.signature,
    })
}

/// Maximum number of pending signals that are looked at.
const MOST_PENDING: usize = 64;

/// `struct __ptrace_peeksiginfo_args` of linux/ptrace.h, which libc has for glibc only.
#[repr(C)]
struct PeekSiginfo {
    off: u64,
    flags: u32,
    nr: i32,
}

/// True if a stopped thread has just executed a breakpoint instruction, and its SIGTRAP is about to be
/// delivered (it is the signal that the thread has stopped for) or pending. The code of other SIGTRAPs,
/// such as those that a process sends, is another one.
pub(crate) fn has_hit_breakpoint(tid: i32, signal: i32) -> bool {
    // SAFETY: all zero is a siginfo_t.
    let mut infos = [unsafe { std::mem::zeroed::<libc::siginfo_t>() }; MOST_PENDING];
    let is_breakpoint = |info: &libc::siginfo_t| {
        info.si_signo == libc::SIGTRAP && info.si_code == BREAKPOINT_CODE as i32
    };
    if signal == libc::SIGTRAP {
        let got = transfer(libc::PTRACE_GETSIGINFO, tid, 0, &mut infos[0]);
        return got.is_ok() && is_breakpoint(&infos[0]);
    }
    let all = PeekSiginfo {
        off: 0,
        flags: 0, // those of the thread, not of its process
        nr: MOST_PENDING as i32,
    };
    let request = i64::from(libc::PTRACE_PEEKSIGINFO) as _;
    // SAFETY: `all` is what the request reads, and `infos` has room for what it writes.
    let count = unsafe { libc::ptrace(request, tid, &raw const all, infos.as_mut_ptr()) };
    let count = usize::try_from(count).unwrap_or(0);
    infos[..count.min(MOST_PENDING)].iter().any(is_breakpoint)
}

thread_local! {
    /// Number of [`StayAwake`]s, and the state from before the first one.
    static AWAKE: RefCell<(usize, Before)> = const { RefCell::new((0, Before { mask: None, scheduled: None })) };
}

/// Signal mask and scheduling to restore in a thread that stayed awake.
struct Before {
    mask: Option<libc::sigset_t>,
    scheduled: Option<Scheduled>,
}

/// How a thread was scheduled.
enum Scheduled {
    /// By this policy, none of the real-time ones, maybe with `SCHED_RESET_ON_FORK`.
    Policy(i32),
    /// With this nice value.
    Nice(i32),
}

/// The nice value with the highest priority.
const FIRST: i32 = -20;

/// Returns the scheduling policy of the calling thread. By the system call: musl has no function for threads.
fn policy() -> i32 {
    // SAFETY: only reads a number; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) as i32 }
}

/// Sets the scheduling policy and the real-time priority of the calling thread.
fn set_policy(policy: i32, priority: i32) -> Result<(), Errno> {
    // SAFETY: the kernel reads the priority, its `struct sched_param`; 0 is the calling thread.
    check(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) })
}

/// Lets the calling thread run before all threads without a real-time policy, where permitted (root).
/// A nice value alone compares only threads of one scheduling group, of which each session may have
/// one (sched(7), "The autogroup feature"), and each control group has. Returns what to restore; `None` if
/// nothing is permitted, or such a policy is there already.
fn run_first() -> Option<Scheduled> {
    let policy = policy();
    let usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
    if !usual.contains(&(policy & !libc::SCHED_RESET_ON_FORK)) {
        return None;
    }
    // New threads and processes do not get it.
    if set_policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1).is_ok() {
        return Some(Scheduled::Policy(policy));
    }
    let nice = rustix::process::getpriority_process(None).ok()?;
    rustix::process::setpriority_process(None, FIRST).ok()?;
    Some(Scheduled::Nice(nice))
}

/// Takes [`run_first`] back, which is always permitted.
fn run_as_before(before: Scheduled) {
    let _ = match before {
        // Where only a limit (RLIMIT_RTPRIO) has permitted it, the flag stays.
        Scheduled::Policy(policy) => {
            set_policy(policy, 0).or_else(|_| set_policy(policy | libc::SCHED_RESET_ON_FORK, 0))
        }
        Scheduled::Nice(nice) => rustix::process::setpriority_process(None, nice),
    };
}

/// Guard that keeps Ctrl-Z and the like from stopping the calling thread: a stopped tracer
/// would leave the program that it has stopped hanging until the user types `fg`. Where permitted, the
/// thread also runs first: on a busy machine the program would stay stopped until we are scheduled.
/// When the last guard is dropped, both are restored; a thread that is killed leaves nothing behind.
///
/// A thread that runs first must not spin for longer than some microseconds while it waits for a thread of the
/// program, which may need the same processor: it sleeps.
#[derive(Debug)]
pub struct StayAwake(());

impl StayAwake {
    /// Blocks the terminal's stop signals and has the thread run first.
    pub fn new() -> StayAwake {
        AWAKE.with_borrow_mut(|(count, before)| {
            *count += 1;
            if *count > 1 {
                return;
            }
            // SAFETY: an all-zero set is a valid (empty) one.
            let mut stops: libc::sigset_t = unsafe { std::mem::zeroed() };
            for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
                // SAFETY: a valid set and a valid signal number.
                unsafe { libc::sigaddset(&mut stops, signal) };
            }
            let mut old = stops;
            // SAFETY: both point to valid sets.
            let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &stops, &mut old) };
            before.mask = (result == 0).then_some(old);
            before.scheduled = run_first();
        });
        StayAwake(())
    }
}

impl Default for StayAwake {
    fn default() -> Self {
        StayAwake::new()
    }
}

impl Drop for StayAwake {
    fn drop(&mut self) {
        AWAKE.with_borrow_mut(|(count, before)| {
            *count -= 1;
            if *count > 0 {
                return;
            }
            if let Some(scheduled) = before.scheduled.take() {
                run_as_before(scheduled);
            }
            if let Some(old) = before.mask.take() {
                // SAFETY: the mask came from the kernel.
                unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
            }
        });
    }
}

/// True if two processes share one address space, not copies of it (kcmp(2), KCMP_VM).
pub(crate) fn share_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: kcmp takes only numbers, and changes nothing.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// Returns the stop with this status of waitid(2): a signal, and above it the number of a ptrace event.
fn stop_of(status: i32) -> Event {
    let signal = status & 0xff;
    match status >> 8 {
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Event::Interrupted,
        libc::PTRACE_EVENT_STOP => Event::GroupStop,
        libc::PTRACE_EVENT_EXEC => Event::Exec,
        0 if signal == libc::SIGTRAP | 0x80 => Event::Syscall,
        0 => Event::Signal(signal),
        other => Event::Other(other),
    }
}

/// Looks at a traced thread's next report, and takes it with it unless `flags` say otherwise (`WNOWAIT`). Returns
/// `None` if there is none yet, and `flags` do not say to wait for it.
fn look(tid: i32, flags: i32) -> Result<Option<libc::siginfo_t>, Errno> {
    loop {
        // SAFETY: zero is a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = flags | libc::__WALL;
        // SAFETY: `info` is valid for the kernel to write.
        let result = unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &mut info, flags) };
        if result == 0 {
            // SAFETY: the kernel has written it, or it is zero.
            return Ok((unsafe { info.si_pid() } != 0).then_some(info));
        }
        let error = std::io::Error::last_os_error().raw_os_error();
        match Errno::from_raw_os_error(error.unwrap_or(libc::EIO)) {
            Errno::INTR => {}
            error => return Err(error),
        }
    }
}

/// Waits for a traced thread's next report. With `block` unset, returns `None` if there is none
/// yet.
///
/// The end of a process that we have started is reported and not taken: its exit status is for the
/// code that waits for that child. A stop is taken as such, because the thread may be killed between
/// the look and that.
pub fn wait(tid: i32, block: bool) -> Result<Option<Event>, Errno> {
    next(tid, if block { 0 } else { libc::WNOHANG }, true)
}

/// Returns a traced thread's next report, if there is one yet.
///
/// A report that the thread is about to receive a signal is read but not consumed: a consumed
/// signal would be in our hands alone, and lost if we are killed.
pub fn report(tid: i32) -> Result<Option<Event>, Errno> {
    next(tid, libc::WNOHANG, false)
}

fn next(tid: i32, block: i32, take_signals: bool) -> Result<Option<Event>, Errno> {
    loop {
        let Some(info) = look(tid, libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | block)? else {
            return Ok(None);
        };
        // SAFETY: the kernel has written it, for a child.
        let status = unsafe { info.si_status() };
        match info.si_code {
            libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => {
                if !is_own_child(tid) && look(tid, libc::WEXITED | libc::WNOHANG)?.is_none() {
                    continue;
                }
                return Ok(Some(Event::Gone(match info.si_code {
                    libc::CLD_EXITED => status << 8,
                    _ => status,
                })));
            }
            _ => {
                if let event @ Event::Signal(_) = stop_of(status)
                    && !take_signals
                {
                    return Ok(Some(event));
                }
                if let Some(info) = look(tid, libc::WSTOPPED | libc::WNOHANG)? {
                    // SAFETY: as above.
                    return Ok(Some(stop_of(unsafe { info.si_status() })));
                }
            }
        }
    }
}

/// Returns a numeric field of a thread's status.
pub(super) fn status_field(tid: i32, field: &str) -> Option<i32> {
    let status = files::read_pseudo_text(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(field))?;
    line.trim().parse().ok()
}

/// True for the first thread of a process that this one has started.
fn is_own_child(tid: i32) -> bool {
    status_field(tid, "Tgid:") == Some(tid)
        && status_field(tid, "PPid:") == Some(std::process::id() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy and nice value of the calling thread.
    fn scheduling() -> (i32, i32) {
        let nice = rustix::process::getpriority_process(None).expect("its own");
        (policy(), nice)
    }

    #[test]
    fn an_awake_thread_runs_first_and_afterwards_as_before() {
        let flagged = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
        for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH, flagged] {
            set_policy(policy, 0).expect("without privileges");
            let before = scheduling();
            assert_eq!(before.0, policy);
            let first = StayAwake::new();
            let within = scheduling();
            drop(StayAwake::new());
            assert_eq!(scheduling(), within, "the first one is still there");
            drop(first);
            assert_eq!(scheduling(), before);
            if within.0 != libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK {
                println!("skipped: no real-time scheduling is permitted here");
            }
        }
    }

    #[test]
    fn an_awake_thread_is_not_stopped_by_the_terminal() {
        let blocked = |signal| {
            // SAFETY: an all-zero set is a valid (empty) one.
            let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: only reads the mask, into a valid set.
            let read =
                unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) };
            assert_eq!(read, 0);
            // SAFETY: a valid set and a valid signal number.
            unsafe { libc::sigismember(&mask, signal) == 1 }
        };
        let stops = || [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].map(blocked);
        let others = || (1..=31).filter(|signal| blocked(*signal)).count();
        assert_eq!(stops(), [false; 3]);
        let before = others();
        let first = StayAwake::new();
        assert_eq!((stops(), others()), ([true; 3], before + 3));
        drop(StayAwake::new());
        assert_eq!(stops(), [true; 3], "the first one is still there");
        drop(first);
        assert_eq!((stops(), others()), ([false; 3], before));
    }

    #[test]
    fn other_real_time_scheduling_is_left_alone() {
        if set_policy(libc::SCHED_RR, 2).is_err() {
            return println!("skipped: no real-time scheduling is permitted here");
        }
        let awake = StayAwake::new();
        assert_eq!(scheduling().0, libc::SCHED_RR);
        drop(awake);
        assert_eq!(scheduling().0, libc::SCHED_RR);
    }
}
