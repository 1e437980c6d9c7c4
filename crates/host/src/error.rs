//! Errors of attaching to a process, probing it and detaching.

use capriole_proc::files;
use capriole_proc::process::ProcessError;
use capriole_text::units::signal as signal_name;
use rustix::io::Errno;
use thiserror::Error;

/// Reason why a process could not be probed, or not be restored cleanly.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The process cannot be inspected, or is of an unsupported kind.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The process ended while it was being worked on.
    #[error(
        "process {pid} ended while it was being attached to; start it again and attach earlier"
    )]
    Vanished {
        /// The process.
        pid: i32,
    },
    /// A signal ended the process while it was being worked on.
    #[error("process {pid} was killed by {} while it was being attached to{}", signal_name(*signal), killer(*signal))]
    Killed {
        /// The process.
        pid: i32,
        /// Number of the signal.
        signal: i32,
    },
    /// ptrace is not permitted.
    #[error(
        "process {pid}: ptrace is not permitted; run as the user who owns it or as root (CAP_SYS_PTRACE), and look at kernel.yama.ptrace_scope"
    )]
    NotPermitted {
        /// The process.
        pid: i32,
    },
    /// A seccomp filter that the process shares with us forbids ptrace.
    #[error(
        "process {pid} has a seccomp filter that its helper has inherited, and that forbids ptrace; call capriole_start() before the filter is installed"
    )]
    TraceFiltered {
        /// The process.
        pid: i32,
    },
    /// A debugger or another tracer holds the process.
    #[error(
        "process {pid} is already traced by {name} (pid {tracer}); a process has only one tracer: end that one, or wait for it"
    )]
    AlreadyTraced {
        /// The process.
        pid: i32,
        /// Its tracer.
        tracer: i32,
        /// Name of the tracer.
        name: String,
    },
    /// The program may not read the time stamp counter.
    #[error(
        "process {pid} has given up the right to read the time stamp counter (prctl PR_SET_TSC), which probes read: a probe would kill it; remove that call from the program"
    )]
    ForbiddenClock {
        /// The process.
        pid: i32,
    },
    /// The site of a guard stays occupied.
    #[error(
        "process {pid}: a thread stays at a place where Capriole needs a probe of its own (behind rt_sigaction, for handlers of faults, or, if return addresses are replaced, at _Unwind_Find_FDE, for exceptions); try again"
    )]
    Occupied {
        /// The process.
        pid: i32,
    },
    /// A thread of the program passed the sites of our guards before these were written.
    #[error(
        "process {pid} is about to install a seccomp filter, or to give up the time stamp counter; try again"
    )]
    Filtering {
        /// The process.
        pid: i32,
    },
    /// Another `capriole` is recording the process.
    #[error("process {pid} is already being recorded by capriole, process {owner}; end that one")]
    AlreadyRecorded {
        /// The process.
        pid: i32,
        /// Pid of the other capriole.
        owner: i32,
    },
    /// Remains of an earlier tracer of a program that probes itself are still in use.
    #[error(
        "process {pid} still runs a handler that was called by a probe of an earlier helper, so what that has left cannot be taken out; try again when the handler has returned"
    )]
    InUse {
        /// The process.
        pid: i32,
    },
    /// A program that probes itself may replace its own return addresses.
    #[error(
        "return addresses cannot be replaced in process {pid}: it probes itself, and only one of the two may do that"
    )]
    ReturnsBeside {
        /// The process.
        pid: i32,
    },
    /// All probes in the process are those that it has put into itself.
    #[error(
        "process {pid} has no probes but those that it has put into itself, which stay as long as its helper, process {helper}, lives"
    )]
    ProbesItself {
        /// The process.
        pid: i32,
        /// Its helper.
        helper: i32,
    },
    /// The process's seccomp filter could kill it, and we are not permitted to suspend the filter.
    #[error(
        "process {pid} has a seccomp filter, which could kill it when a system call in which it sleeps is interrupted; {}",
        match filtered_too {
            true => "capriole runs under one itself, as in a container, and so may not suspend it: run capriole outside",
            false if *as_root => "this root lacks CAP_SYS_ADMIN, as in a container or a user namespace, and so may not suspend it: run capriole outside",
            false => "only root (CAP_SYS_ADMIN) may suspend the filter: try again with sudo",
        }
    )]
    Filtered {
        /// The process.
        pid: i32,
        /// We have a filter, too: whoever has one may not suspend those of others (ptrace(2)).
        filtered_too: bool,
        /// We are root already.
        as_root: bool,
    },
    /// A thread does not stop.
    #[error(
        "thread {tid} of process {pid} does not stop (state {state}): it sleeps uninterruptibly in the kernel, as a parent in vfork or a reader of a dead disk does; try again when that is over"
    )]
    Unstoppable {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// Its state letter in /proc.
        state: char,
    },
    /// A thread that was to make a system call for us executes nothing.
    #[error(
        "thread {tid} of process {pid} does not go on when it is let run: its control group is frozen, as a paused container's is, or it waits for memory that another thread has to provide; try again when that is over"
    )]
    HeldUp {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// A thread that made system calls for us resumed on its own before we took control of it
    /// again.
    #[error(
        "thread {tid} was not kept stopped, because this process did not run for seconds (is the machine overloaded?); try again"
    )]
    ThreadResumed {
        /// The thread.
        tid: i32,
    },
    /// A ptrace request failed.
    #[error("cannot {what} thread {tid}: {errno}")]
    Ptrace {
        /// The failed action.
        what: &'static str,
        /// The thread.
        tid: i32,
        /// Error number from the kernel.
        errno: Errno,
    },
    /// A system call made inside the target failed.
    #[error("process {pid} cannot {what}: {errno}{}", cause(*errno))]
    Refused {
        /// The process.
        pid: i32,
        /// The system call's purpose.
        what: &'static str,
        /// Error number from the kernel.
        errno: Errno,
    },
    /// The program has no `syscall` instruction, or none that is followed by a return.
    #[error(
        "process {pid} has no executable memory from which a system call can be made; is it still starting?"
    )]
    NoSyscall {
        /// The process.
        pid: i32,
    },
    /// There is no room below the thread's stack pointer.
    #[error("thread {tid} has no room on its stack")]
    NoStack {
        /// The thread.
        tid: i32,
    },
    /// No thread is in a state in which it could make system calls for us.
    #[error("no thread of process {pid} can be used to map memory; try again")]
    NoThread {
        /// The process.
        pid: i32,
    },
    /// There is no free memory within reach of a jump.
    #[error(
        "no free memory of {size} bytes within 2 GiB of {near:#x} in process {pid}: its address space is full there, and a jump reaches no further"
    )]
    NoSpace {
        /// The process.
        pid: i32,
        /// Address that must be within reach.
        near: u64,
        /// Bytes needed.
        size: u64,
    },
    /// The journal has no room for so many sites.
    #[error("more than {most} places of process {pid} would be changed; name fewer functions")]
    TooMany {
        /// The process.
        pid: i32,
        /// Maximum number of sites.
        most: u32,
    },
    /// System calls are filtered, and the filter cannot be suspended.
    #[error(
        "process {pid} runs in a seccomp sandbox ({mode}); mapping memory in it could get it killed, and suspending the filter needs CAP_SYS_ADMIN: run capriole as root"
    )]
    Sandboxed {
        /// The process.
        pid: i32,
        /// `strict` or `filter`.
        mode: &'static str,
    },
    /// The program has the system calls of all its threads passed back to itself.
    #[error(
        "process {pid} has the system calls of its threads redirected to itself (PR_SET_SYSCALL_USER_DISPATCH), and no thread could make one for Capriole now; try again when one sleeps in a system call"
    )]
    Redirected {
        /// The process.
        pid: i32,
    },
    /// The program may have to provide its own code.
    #[error(
        "process {pid} executes code of a network or FUSE file system, and serves one itself: while it is stopped, it could not be read"
    )]
    ServesItsCode {
        /// The process.
        pid: i32,
    },
    /// Session memory is inconsistent.
    #[error(
        "the session memory of process {pid} is damaged ({what}); its probes cannot be taken out safely, restart the program when you can"
    )]
    Damaged {
        /// The process.
        pid: i32,
        /// The inconsistency.
        what: &'static str,
    },
    /// The memory of the process cannot be read or written.
    #[error("cannot {what} the memory of process {pid} at {address:#x}: {source}")]
    Memory {
        /// The process.
        pid: i32,
        /// `read` or `write`.
        what: &'static str,
        /// Its address.
        address: u64,
        /// Error from the kernel.
        source: std::io::Error,
    },
    /// The session memory cannot be shared with us.
    #[error("cannot share memory with process {pid}: {errno}{}", cause(*errno))]
    Share {
        /// The process.
        pid: i32,
        /// Error number from the kernel.
        errno: Errno,
    },
    /// A program cannot be started.
    #[error("cannot start {program}: {reason}")]
    Launch {
        /// The program.
        program: String,
        /// The reason.
        reason: String,
    },
    /// The process has no probes of capriole.
    #[error("process {pid} has no probes of capriole")]
    NothingAttached {
        /// The process.
        pid: i32,
    },
}

/// Returns the usual cause of an error of the kernel.
fn cause(errno: Errno) -> &'static str {
    match errno {
        Errno::NOMEM => " (out of memory, or of mappings: see vm.max_map_count and its limits)",
        Errno::PERM | Errno::ACCESS => {
            " (a security module forbids it, or the program changes its descriptors meanwhile)"
        }
        Errno::FBIG => " (the limit for file sizes, ulimit -f, is below the size of the buffer)",
        Errno::MFILE => {
            " (the program or capriole has no free file descriptor; raise the limit, ulimit -n)"
        }
        _ => "",
    }
}

/// Returns what sends a signal that may end a process while a tracer attaches, and what to do.
fn killer(signal: i32) -> &'static str {
    match signal {
        libc::SIGSYS => {
            ": its seccomp filter forbids a system call that attaching makes in it; try again as \
             root, who may suspend the filter"
        }
        libc::SIGKILL => "; dmesg shows if it was for lack of memory",
        _ => "; start it again, without a tracer first, to see if that is a fault of its own",
    }
}

impl TargetError {
    /// True if no thread can make system calls for us at the moment, but one may be able to soon.
    #[must_use]
    pub fn is_momentary(&self) -> bool {
        matches!(
            self,
            TargetError::NoThread { .. } | TargetError::Redirected { .. }
        )
    }

    /// Returns the error for memory of process `pid` that cannot be read at an address.
    pub fn reading(pid: i32, address: u64) -> impl FnOnce(std::io::Error) -> TargetError {
        TargetError::accessing(pid, "read", address)
    }

    /// Returns the error for memory of process `pid` that cannot be written at an address.
    pub fn writing(pid: i32, address: u64) -> impl FnOnce(std::io::Error) -> TargetError {
        TargetError::accessing(pid, "write", address)
    }

    pub(crate) fn accessing(
        pid: i32,
        what: &'static str,
        address: u64,
    ) -> impl FnOnce(std::io::Error) -> TargetError {
        move |source| TargetError::Memory {
            pid,
            what,
            address,
            source,
        }
    }

    /// Returns the error for a failed ptrace request; if the thread is gone, the process has ended.
    pub(crate) fn ptrace(what: &'static str, tid: i32, errno: Errno) -> TargetError {
        match errno {
            Errno::SRCH => TargetError::Vanished { pid: tid },
            errno => TargetError::Ptrace { what, tid, errno },
        }
    }

    /// Returns the error for a process that has ended with this wait status.
    pub(crate) fn gone(pid: i32, status: i32) -> TargetError {
        match libc::WIFSIGNALED(status) {
            true => TargetError::Killed {
                pid,
                signal: libc::WTERMSIG(status),
            },
            false => TargetError::Vanished { pid },
        }
    }

    pub(crate) fn traced_by(pid: i32, tracer: i32) -> TargetError {
        let name = files::read_pseudo_text(format!("/proc/{tracer}/comm")).unwrap_or_default();
        TargetError::AlreadyTraced {
            pid,
            tracer,
            name: name.trim().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_ends_the_process_is_named() {
        // As wait(2) returns them: killed, and ended with status 3.
        let told = |status| TargetError::gone(7, status).to_string();
        assert_eq!(
            told(libc::SIGSYS | 0x80),
            "process 7 was killed by SIGSYS while it was being attached to: its seccomp filter \
             forbids a system call that attaching makes in it; try again as root, who may suspend \
             the filter"
        );
        assert!(told(libc::SIGKILL).starts_with("process 7 was killed by SIGKILL while"));
        assert!(told(3 << 8).starts_with("process 7 ended while it was being attached to"));
    }
}
