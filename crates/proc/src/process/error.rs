//! Reasons why a process cannot be inspected or traced, and what the user can do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use super::{FileSystem, ptrace_scope};
use crate::maps::MapsError;

/// Reason why a process cannot be read or traced.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No process has this pid, or it has ended.
    #[error("no process has the number {pid}{}", if *pid == 0 { ": numbers begin at 1" } else { " (it may have ended)" })]
    NoSuchProcess {
        /// The pid that was given.
        pid: u32,
    },
    /// The number is the tid of a thread other than the main thread of a process.
    #[error("{tid} is a thread of process {pid}")]
    IsThread {
        /// The number that was given.
        tid: u32,
        /// The process it belongs to.
        pid: u32,
    },
    /// The process is a thread of the kernel.
    #[error(
        "process {pid} ({name}) is a thread of the kernel and has no program; only user programs can be traced"
    )]
    KernelThread {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// The process has ended and has not been reaped by its parent.
    #[error("process {pid} ({name}) has already ended (zombie); there is nothing left to trace")]
    Zombie {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// The process's control group is frozen.
    #[error(
        "process {pid} ({name}) is frozen with its control group, as a paused container is ({}); try again when it has been thawed",
        group.display()
    )]
    Frozen {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
        /// The directory of the group.
        group: PathBuf,
    },
    /// The program is 32-bit (i386 or x32).
    #[error("process {pid} ({name}) runs a 32-bit program; only 64-bit x86 programs can be traced")]
    ThirtyTwoBit {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// The program is built for another processor.
    #[error(
        "process {pid} ({name}) runs a program for another processor (ELF machine {machine}); only x86-64 programs can be traced"
    )]
    ForeignArchitecture {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
        /// `e_machine` of the program.
        machine: u16,
    },
    /// A binary translator runs the program.
    #[error(
        "process {pid} ({name}) is run by {translator}, which translates the program's code and executes the translation, so a probe would have no effect; {instead}"
    )]
    Translated {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
        /// The translator's name.
        translator: &'static str,
        /// Advice to the user.
        instead: &'static str,
    },
    /// This user may not trace the process.
    #[error("process {pid} ({name}): not permitted to trace it; {advice}")]
    NotPermitted {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
        /// Advice to the user.
        advice: Permission,
    },
    /// This user may trace the process, but not read its program's file.
    #[error("process {pid} ({name}): its program {} cannot be read: {reason}", path.display())]
    FileNotReadable {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
        /// The file.
        path: PathBuf,
        /// The file system of the file.
        reason: FileSystem,
    },
    /// Another process traces it; there can be only one tracer.
    #[error(
        "process {pid} is already traced by {name} (pid {tracer}); end that program or detach it first"
    )]
    AlreadyTraced {
        /// The process.
        pid: u32,
        /// Pid of the tracer.
        tracer: u32,
        /// Name of the tracer.
        name: String,
    },
    /// The memory map is not in the known format.
    #[error("process {pid}: cannot understand /proc/{pid}/maps: {source}")]
    Maps {
        /// The process.
        pid: u32,
        /// The line and the reason.
        source: MapsError,
    },
    /// A file under `/proc` cannot be read for another reason.
    #[error("cannot read /proc/{pid}/{file}: {source}")]
    Unreadable {
        /// The process.
        pid: u32,
        /// The file.
        file: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl ProcessError {
    /// True if the error is ours, not the process's: we are out of file descriptors or memory.
    #[must_use]
    pub fn is_own(&self) -> bool {
        let ProcessError::Unreadable { source, .. } = self else {
            return false;
        };
        let ours = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
        source
            .raw_os_error()
            .is_some_and(|error| ours.contains(&Errno::from_raw_os_error(error)))
    }

    /// Converts the kernel's error number for a file under `/proc` to an error of this type.
    pub fn from_io(pid: u32, name: &str, file: &str, source: io::Error) -> ProcessError {
        let errno = source.raw_os_error().map(Errno::from_raw_os_error);
        match errno {
            Some(Errno::NOENT | Errno::SRCH) => {
                // A kernel thread has a directory but no `exe`.
                if file == "exe" && super::read_stat(pid).is_ok_and(|s| s.is_kernel_thread()) {
                    return ProcessError::KernelThread {
                        pid,
                        name: name.to_owned(),
                    };
                }
                ProcessError::NoSuchProcess { pid }
            }
            Some(Errno::ACCESS | Errno::PERM) => ProcessError::NotPermitted {
                pid,
                name: name.to_owned(),
                advice: Permission::advice(),
            },
            _ => ProcessError::Unreadable {
                pid,
                file: file.to_owned(),
                source,
            },
        }
    }
}

/// Reason why a user may not trace a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// The process belongs to another user, or has extra privileges.
    OtherUser,
    /// Yama (`/proc/sys/kernel/yama/ptrace_scope` is 1): only descendants may be traced.
    YamaChildrenOnly,
    /// Yama (2): only with `CAP_SYS_PTRACE`.
    YamaAdminOnly,
    /// Yama (3): nobody may trace, until the next boot.
    YamaNobody,
    /// The user is already root: a container or security module forbids it.
    RootRefused,
}

impl Permission {
    /// Returns the reason that applies to this user on this system.
    #[must_use]
    pub fn advice() -> Permission {
        match ptrace_scope() {
            3.. => Permission::YamaNobody,
            _ if rustix::process::geteuid().is_root() => Permission::RootRefused,
            2 => Permission::YamaAdminOnly,
            1 => Permission::YamaChildrenOnly,
            0 => Permission::OtherUser,
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Permission::OtherUser => {
                "it belongs to another user or has raised privileges: run as root or with CAP_SYS_PTRACE"
            }
            Permission::YamaChildrenOnly => {
                "kernel.yama.ptrace_scope is 1, which allows own children only: run as root or with CAP_SYS_PTRACE, start the program under capriole, or `sysctl kernel.yama.ptrace_scope=0`"
            }
            Permission::YamaAdminOnly => {
                "kernel.yama.ptrace_scope is 2, which allows administrators only: run as root or with CAP_SYS_PTRACE"
            }
            Permission::YamaNobody => {
                "kernel.yama.ptrace_scope is 3, which forbids tracing for everybody until the next boot"
            }
            Permission::RootRefused => {
                "this is root without CAP_SYS_PTRACE over it, as in a container: run outside, or add the capability (docker run --cap-add SYS_PTRACE)"
            }
        })
    }
}
