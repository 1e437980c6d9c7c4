//! `/proc/PID/stat` (proc_pid_stat(5)).

use super::State;

/// `PF_FORKNOEXEC` and `PF_KTHREAD` of `<linux/sched.h>`.
const PF_FORKNOEXEC: u64 = 0x0000_0040;
const PF_KTHREAD: u64 = 0x0020_0000;

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Field 2, the name; it may contain spaces and parentheses.
    pub comm: String,
    /// Field 3.
    pub state: State,
    /// Field 4, the parent process.
    pub parent: u32,
    /// Field 9, the kernel's `PF_*` flags.
    pub flags: u64,
    /// Field 22, clock ticks since boot.
    pub start_time: u64,
    /// Field 47, the start of the heap (`brk`); `None` if the reader lacks the permission to see
    /// it.
    pub start_brk: Option<u64>,
    /// Field 52, the exit status in the form of waitpid(2), if the process has ended.
    pub exit_code: Option<i32>,
}

impl Stat {
    /// Parses the line; `None` if it is malformed. The name extends to the *last* closing
    /// parenthesis, because it may contain any bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Stat> {
        let open = bytes.iter().position(|&b| b == b'(')?;
        let close = bytes.iter().rposition(|&b| b == b')')?;
        let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
        // fields[0] is field 3 in the manual page.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |field: usize| -> Option<u64> { fields.get(field - 3)?.parse().ok() };
        Some(Stat {
            comm,
            state: State::from_letter(fields.first()?.chars().next()?),
            parent: u32::try_from(number(4)?).ok()?,
            flags: number(9)?,
            start_time: number(22)?,
            start_brk: number(47).filter(|&address| address != 0),
            exit_code: number(52).and_then(|code| i32::try_from(code).ok()),
        })
    }

    /// True if the process has executed a program since it was forked.
    #[must_use]
    pub fn has_executed(&self) -> bool {
        self.flags & PF_FORKNOEXEC == 0
    }

    /// True for a kernel thread, which has no program.
    #[must_use]
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }
}
