//! The resident's code that makes system calls for a tracer, and then waits to be fetched: a thread of this
//! test runs it.

use crate::mapped;
use crate::support::sandbox::{COPY, in_child};

use capriole_resident as resident;
use capriole_ring::layout::Geometry;
use capriole_testkit::waiting::until;
use rustix::io::Errno;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// As often as this a thread is woken before it goes home: `BATCH_WAKES` in entry.S.
const WAKES: usize = 100;

/// Number of signals that the waiting thread has got.
static SIGNALS: AtomicUsize = AtomicUsize::new(0);
/// Result of the call in which the thread has waited; 0 while it does.
static RESULT: AtomicI64 = AtomicI64::new(0);
/// Number of the thread.
static THREAD: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: i32) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Makes no call for a table without rows, waits, and returns the result of the call that waited.
fn wait(batch: u64) -> i64 {
    let mut came_to = u64::MAX;
    let result: i64;
    // SAFETY: the code changes these registers and one word, and returns to behind the call.
    unsafe {
        std::arch::asm!(
            "push rbx",
            "push rbp",
            "xor ebx, ebx",
            "xor ebp, ebp",
            "call rax",
            "pop rbp",
            "pop rbx",
            in("r13") &raw mut came_to,
            inout("rax") batch as i64 => result,
            out("rdi") _, out("rsi") _, out("rdx") _, out("rcx") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    assert_eq!(came_to, 0, "it came to the end of the table");
    result
}

/// True if the thread sleeps in rt_sigtimedwait.
fn waits() -> bool {
    let tid = THREAD.load(Ordering::SeqCst);
    let call = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall"));
    call.is_ok_and(|call| call.starts_with("128 "))
}

/// A spurious wakeup, here by a signal, does not end the wait: the tracer finds the thread where it expects it.
/// After [`WAKES`] of them the thread returns to its own code.
#[test]
fn a_thread_that_is_woken_waits_on() {
    let geometry = Geometry::for_buffer(1 << 20, mapped::cpus(), 1);
    let config = mapped::config(0, &geometry);
    in_child(
        &[resident::entries(COPY).batch],
        |sandbox, batch| {
            sandbox.write(COPY, &resident::place(COPY, &config));
            wake(*batch);
            Ok(())
        },
        |batch| format!("code at {batch:#x}"),
    );
}

/// Wakes a thread that waits, until it has returned.
fn wake(batch: u64) {
    // SAFETY: the handler only counts.
    unsafe { libc::signal(libc::SIGUSR1, count as *const () as libc::sighandler_t) };
    let thread = std::thread::spawn(move || {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        THREAD.store(tid as u64, Ordering::SeqCst);
        RESULT.store(wait(batch), Ordering::SeqCst);
    });
    let is_home = || RESULT.load(Ordering::SeqCst) != 0;
    for number in 1.. {
        until("it waits, or is home", || is_home() || waits());
        if is_home() {
            break;
        }
        let tid = THREAD.load(Ordering::SeqCst);
        let process = std::process::id();
        // SAFETY: sends a signal that has a handler to a thread of this process.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, tid, libc::SIGUSR1) };
        assert!(sent == 0 || is_home());
        until("it has got the signal", || {
            is_home() || SIGNALS.load(Ordering::SeqCst) == number
        });
    }
    thread.join().expect("it returns");
    let signals = SIGNALS.load(Ordering::SeqCst);
    match Errno::from_raw_os_error(-RESULT.load(Ordering::SeqCst) as i32) {
        Errno::INTR => assert_eq!(signals, WAKES),
        // Nobody fetched it for seconds: on a machine that is that busy, between two signals.
        Errno::AGAIN => assert!(signals < WAKES, "{signals}"),
        other => panic!("{other}"),
    }
}
