//! `/proc/PID/status` and `/proc/PID/task/TID/status` (proc_pid_status(5)).

/// State of a thread, from the letter that the kernel shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// `R`: running or ready to run.
    Running,
    /// `S`: in a sleep that signals can interrupt.
    Sleeping,
    /// `D`: in a sleep that signals cannot interrupt (disk, network file system).
    Uninterruptible,
    /// `T`: stopped by a signal.
    Stopped,
    /// `t`: stopped by its tracer.
    Traced,
    /// `Z`: ended, not yet reaped by its parent.
    Zombie,
    /// `X`: about to disappear.
    Dead,
    /// `I` and letters of newer kernels.
    Other(char),
}

impl State {
    pub(super) fn from_letter(letter: char) -> State {
        match letter {
            'R' => State::Running,
            'S' => State::Sleeping,
            'D' => State::Uninterruptible,
            'T' => State::Stopped,
            't' => State::Traced,
            'Z' => State::Zombie,
            'X' | 'x' => State::Dead,
            other => State::Other(other),
        }
    }

    /// True if the thread has ended. A main thread that ended before others stays a zombie.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, State::Zombie | State::Dead)
    }
}

/// Seccomp mode of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seccomp {
    /// All system calls are allowed.
    Off,
    /// Mode 1: only read, write, exit and sigreturn are allowed; any other call kills.
    Strict,
    /// Mode 2: a filter program decides.
    Filter,
}

impl Seccomp {
    /// Returns the mode that `/proc/TID/status` shows. The line is absent if the kernel was built without seccomp.
    pub(super) fn of_status(status: &[u8]) -> Seccomp {
        let mut lines = status.split(|byte| *byte == b'\n');
        let mode = lines.find_map(|line| line.strip_prefix(b"Seccomp:"));
        match mode.map(<[u8]>::trim_ascii) {
            Some(b"1") => Seccomp::Strict,
            Some(b"2") => Seccomp::Filter,
            _ => Seccomp::Off,
        }
    }
}

/// A set of signals in the kernel's format: bit `n - 1` is signal `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SignalSet(pub u64);

impl SignalSet {
    /// True if `signal` (1 to 64) is in the set.
    #[must_use]
    pub fn contains(self, signal: i32) -> bool {
        (1..=64).contains(&signal) && self.0 >> (signal - 1) & 1 == 1
    }
}

/// Users, groups and capabilities of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// User ids: real, effective, saved, file system.
    pub uids: [u32; 4],
    /// Group ids: real, effective, saved, file system.
    pub gids: [u32; 4],
    /// Permitted capabilities.
    pub permitted: u64,
    /// Effective capabilities.
    pub effective: u64,
}

/// The fields of `status` that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The process this thread belongs to.
    pub tgid: u32,
    /// State of the thread.
    pub state: State,
    /// Tracer of the thread; 0 if there is none, or if it is in a PID namespace that is not visible
    /// from here.
    pub tracer: u32,
    /// Effective user id.
    pub uid: u32,
    /// Users, groups and capabilities.
    pub credentials: Credentials,
    /// Number of threads of the process.
    pub threads: u32,
    /// `SigBlk`: signals that this thread has blocked.
    pub blocked: SignalSet,
    /// `SigIgn`: signals that the process ignores.
    pub ignored: SignalSet,
    /// `SigCgt`: signals for which the process has a handler.
    pub caught: SignalSet,
    /// Seccomp mode of the thread.
    pub seccomp: Seccomp,
    /// The `no_new_privs` attribute.
    pub no_new_privs: bool,
}

impl Status {
    /// Parses the file; `None` if a line that every kernel since 3.8 writes is missing or
    /// malformed.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Status> {
        // The kernel escapes newlines in `Name:`, so splitting into lines is reliable.
        let text = String::from_utf8_lossy(bytes);
        let field = |key: &str| -> Option<&str> {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
                .map(str::trim)
        };
        let number = |key: &str| -> Option<u32> {
            field(key)?.split_ascii_whitespace().next()?.parse().ok()
        };
        let bits = |key: &str| u64::from_str_radix(field(key)?, 16).ok();
        let signals = |key: &str| bits(key).map(SignalSet);
        let four = |key: &str| -> Option<[u32; 4]> {
            let numbers = field(key)?.split_ascii_whitespace();
            let numbers: Result<Vec<u32>, _> = numbers.map(str::parse).collect();
            numbers.ok()?.try_into().ok()
        };
        let credentials = Credentials {
            uids: four("Uid")?,
            gids: four("Gid")?,
            permitted: bits("CapPrm")?,
            effective: bits("CapEff")?,
        };
        Some(Status {
            tgid: number("Tgid")?,
            state: State::from_letter(field("State")?.chars().next()?),
            tracer: number("TracerPid")?,
            uid: credentials.uids[1],
            credentials,
            threads: number("Threads")?,
            blocked: signals("SigBlk")?,
            ignored: signals("SigIgn")?,
            caught: signals("SigCgt")?,
            // Absent if the kernel was built without seccomp.
            seccomp: Seccomp::of_status(bytes),
            no_new_privs: number("NoNewPrivs") == Some(1),
        })
    }
}
