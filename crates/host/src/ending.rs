//! The end of a process that need not be our child, and its exit status.

#![allow(unsafe_code)]

use capriole_proc::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// `PIDFD_GET_INFO`, `_IOWR(0xff, 11, struct pidfd_info)` with its first version (linux/pidfd.h).
const GET_INFO: libc::c_ulong = 0xc040_ff0b;
/// `PIDFD_INFO_EXIT`: the exit status is wanted, and is there in the answer. From Linux 6.15.
const INFO_EXIT: u64 = 1 << 3;

/// The first version of `struct pidfd_info`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<Info>() == 64);

/// Watches for the end of a process.
#[derive(Debug)]
pub struct Ending {
    process: Process,
    pidfd: Option<OwnedFd>,
}

impl Ending {
    /// Begins to watch a process. This cannot fail: without the kernel's support less is known in the end.
    #[must_use]
    pub fn of(process: &Process) -> Ending {
        let pid = Pid::from_raw(process.pid() as i32);
        Ending {
            process: process.clone(),
            // Fails before Linux 5.3, or if the process has just ended.
            pidfd: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
        }
    }

    /// True if the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => ends_within(pidfd, Duration::ZERO),
            None => !self.process.is_alive(),
        }
    }

    /// Waits that long, or until the process ends or a signal comes, whatever is first.
    pub fn wait(&self, most: Duration) {
        match &self.pidfd {
            Some(pidfd) => drop(ends_within(pidfd, most)),
            None => std::thread::sleep(most),
        }
    }

    /// Returns the exit status of a process that has ended. `None` if its parent has waited for it and the
    /// kernel does not keep it (before Linux 6.15).
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        // The parent may wait for it between two of these.
        let status = self
            .kept()
            .or_else(|| self.of_zombie())
            .or_else(|| self.kept());
        status.map(ExitStatus::from_raw)
    }

    /// Returns the status that the kernel keeps for a process that its parent has waited for.
    fn kept(&self) -> Option<i32> {
        let pidfd = self.pidfd.as_ref()?;
        let mut info = Info {
            mask: INFO_EXIT,
            ..Info::default()
        };
        // SAFETY: the call writes at most the 64 bytes that its number says, into `info`, where each value of
        // each field is valid.
        let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) };
        (result == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
    }

    fn of_zombie(&self) -> Option<i32> {
        let stat = self.process.stat().ok()?;
        stat.state.has_ended().then_some(stat.exit_code).flatten()
    }
}

fn ends_within(pidfd: &OwnedFd, time: Duration) -> bool {
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&time)).is_ok_and(|n| n > 0)
}
