//! Signals such as Ctrl-C end a recording cleanly.

#![allow(unsafe_code)]

use rustix::process::{Pid, Signal};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of these signals so far. A plain count: it publishes no other data.
static REQUESTS: AtomicU32 = AtomicU32::new(0);
/// The state of the signals before they were caught.
static BEFORE: Mutex<Option<Actions>> = Mutex::new(None);
/// 1 if SIGPIPE was ignored when this process began, before the runtime of Rust ignored it.
static PIPE_IGNORED: AtomicU32 = AtomicU32::new(0);

/// Run by the loader before `main`, and so before that runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn look() {
        PIPE_IGNORED.store(is_ignored(libc::SIGPIPE).into(), Ordering::Relaxed);
    }
    look
};
/// Set once there is something to end cleanly. Until then a signal ends this process.
static BEGUN: AtomicBool = AtomicBool::new(false);

extern "C" fn count(signal: libc::c_int) {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
    if !BEGUN.load(Ordering::Relaxed) {
        // SAFETY: both are async-signal-safe. The signal is delivered when this handler returns.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        // SAFETY: as above.
        unsafe { libc::raise(signal) };
    }
}

/// Makes such signals only count from now on, to be polled by [`requests`]: a process is about to
/// be changed, or measured.
pub fn hold() {
    BEGUN.store(true, Ordering::Relaxed);
}

/// Ends what [`hold`] has begun: nothing has to be ended cleanly any more.
pub fn release() {
    BEGUN.store(false, Ordering::Relaxed);
}

extern "C" fn go_on(_: libc::c_int) {}

/// Makes SIGINT, SIGTERM and SIGHUP end this process from now on; after [`hold`] they only request
/// the end. They interrupt blocking system calls. See also [`outlive_file_limit`]. A second call
/// changes nothing. To be called while there is one thread.
///
/// SIGINT and SIGTERM do so even if they were ignored or blocked: a shell without job control starts
/// what is to run in the background with SIGINT ignored, and that signal is how a script ends a
/// recording. An ignored SIGHUP stays ignored, because that is what `nohup` is for.
///
/// Children can be waited for from now on, also where SIGCHLD was ignored. Programs that this process
/// starts inherit the original state only through [`Actions`].
pub fn catch() {
    let mut kept = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.is_some() {
        return;
    }
    let mut before = Vec::new();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if signal != libc::SIGHUP || !is_ignored(signal) {
            before.push((signal, handle(signal, count)));
        }
    }
    before.push((libc::SIGXFSZ, handle(libc::SIGXFSZ, go_on)));
    if is_ignored(libc::SIGCHLD) {
        before.push((libc::SIGCHLD, set(libc::SIGCHLD, libc::SIG_DFL)));
    }
    if PIPE_IGNORED.load(Ordering::Relaxed) != 0 {
        before.push((libc::SIGPIPE, made(libc::SIG_IGN)));
    }
    let mut ours = no_signals();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: adds to a set of ours.
        unsafe { libc::sigaddset(&raw mut ours, signal) };
    }
    let mut mask = no_signals();
    // SAFETY: only changes the mask of this thread.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const ours, &raw mut mask) };
    *kept = Some(Actions {
        actions: before,
        mask,
    });
}

/// Signal actions and signal mask from before [`catch`], to be restored in a child.
#[derive(Clone)]
pub struct Actions {
    actions: Vec<(libc::c_int, libc::sigaction)>,
    mask: libc::sigset_t,
}

impl Actions {
    /// Returns those of this process; `None` if they were not caught.
    #[must_use]
    pub fn before() -> Option<Actions> {
        let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
        before.clone()
    }

    /// Restores them. Only makes system calls, as a child may between fork and exec.
    pub fn restore(&self) {
        for (signal, action) in &self.actions {
            // SAFETY: the action is one that the kernel returned, or a plain one.
            unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) };
        }
        // SAFETY: the mask is one that the kernel returned.
        unsafe {
            libc::sigprocmask(
                libc::SIG_SETMASK,
                &raw const self.mask,
                std::ptr::null_mut(),
            )
        };
    }
}

/// Makes a command start with the signal actions from before [`catch`], and killed by the kernel when
/// the thread that starts it ends, however that ends. For tools that work for this process.
pub fn tie(command: &mut Command) {
    let before = Actions::before();
    let parent = std::process::id();
    let tied = move || {
        if let Some(before) = &before {
            before.restore();
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before.
        match rustix::process::getppid().map(Pid::as_raw_nonzero) {
            Some(pid) if pid.get().unsigned_abs() == parent => Ok(()),
            _ => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes only system calls.
    unsafe { command.pre_exec(tied) };
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: a set is plain bits.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: it is ours.
    unsafe { libc::sigemptyset(&raw mut set) };
    set
}

/// Makes a write beyond the file size limit (SIGXFSZ) an error, like a full disk, from now on.
pub fn outlive_file_limit() {
    handle(libc::SIGXFSZ, go_on);
}

/// True if a signal is ignored by this process.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: zero is a valid `sigaction` (no flags, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the action.
    unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    action.sa_sigaction == libc::SIG_IGN
}

/// Installs a handler and returns the previous action.
fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) -> libc::sigaction {
    set(signal, handler as *const () as libc::sighandler_t)
}

/// Sets the action of a signal, and returns the previous one. A handler at most adds to an atomic,
/// which is async-signal-safe.
fn set(signal: libc::c_int, handler: libc::sighandler_t) -> libc::sigaction {
    let action = made(handler);
    let mut before = action;
    // SAFETY: the action is a constant, or one of the handlers above.
    unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
    before
}

fn made(handler: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: zero is a valid `sigaction` (no flags, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action
}

/// Returns the number of requests to end so far.
pub fn requests() -> u32 {
    REQUESTS.load(Ordering::Relaxed)
}
