//! Information about a process that is available without tracing it.
//!
//! Everything comes from `/proc/PID` (proc_pid_stat(5), proc_pid_status(5)). Nothing here stops
//! the process, so every result is a snapshot; if the process ends meanwhile, reads return
//! [`ProcessError::NoSuchProcess`].
//!
//! A program may end its main thread and go on in others. Then the main thread is a zombie,
//! `/proc/PID` shows neither memory nor files, and those of another thread are read: see [`deputy`].

mod auxv;
mod control_groups;
mod descriptors;
mod error;
mod file_system;
mod frozen;
mod layout;
mod memory_limit;
mod slow_memory;
mod stat;
mod status;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use auxv::Auxv;
pub use descriptors::Socket;
pub use error::{Permission, ProcessError};
pub use file_system::FileSystem;
pub use stat::Stat;
pub use status::{Credentials, Seccomp, SignalSet, State, Status};

use crate::files;
use crate::maps::{COVER_NAME, Mapping, PAGE_SIZE, as_made, parse_maps};

/// Maximum number of bytes of a command line to read; the kernel allows 6 MiB (execve(2)).
const MAX_COMMAND_LINE: u64 = 6 << 20;
/// `e_ident[EI_CLASS]` of a 64-bit ELF file.
const ELFCLASS64: u8 = 2;
/// `e_machine` of x86-64 (and of the 32-bit x32 ABI, which has a different `EI_CLASS`).
const EM_X86_64: u16 = 62;
/// `e_machine` of 32-bit x86.
const EM_386: u16 = 3;

/// A process, identified by its pid and its start time, so that reuse of the pid is detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    start_time: u64,
    name: String,
}

impl Process {
    /// Finds process `pid`. The pid must be that of the process, not of another of its threads.
    ///
    /// # Errors
    ///
    /// [`ProcessError::NoSuchProcess`], and [`ProcessError::IsThread`] with
    /// the pid to use instead. Use [`Process::preflight`] for all other checks.
    pub fn open(pid: u32) -> Result<Process, ProcessError> {
        let process = Process::listed(pid)?;
        let tgid = process.status()?.tgid;
        if tgid != pid {
            return Err(ProcessError::IsThread {
                tid: pid,
                pid: tgid,
            });
        }
        Ok(process)
    }

    /// Finds a process whose pid comes from a list of processes: it need not be asked whether it is a thread.
    ///
    /// # Errors
    /// [`ProcessError::NoSuchProcess`]
    pub fn listed(pid: u32) -> Result<Process, ProcessError> {
        let stat = read_stat(pid)?;
        Ok(Process {
            pid,
            start_time: stat.start_time,
            // The program chooses its name, and messages are printed to terminals.
            name: capriole_text::printable(&stat.comm),
        })
    }

    /// Returns all processes except the calling one.
    pub fn others() -> impl Iterator<Item = Process> {
        Process::other_numbers().filter_map(|pid| Process::listed(pid).ok())
    }

    /// Returns all processes except the calling one whose list of mappings contains a name. A
    /// process that may not be read, or has just ended, is left out.
    pub fn others_that_map(name: &str) -> impl Iterator<Item = Process> {
        let finder = memchr::memmem::Finder::new(name).into_owned();
        Process::other_numbers()
            .filter(move |pid| {
                let maps = |pid: u32| files::read_pseudo(format!("/proc/{pid}/maps"));
                let maps = match maps(*pid) {
                    Ok(none) if none.is_empty() => maps(deputy(*pid)),
                    maps => maps,
                };
                maps.is_ok_and(|maps| finder.find(&maps).is_some())
            })
            .filter_map(|pid| Process::listed(pid).ok())
    }

    fn other_numbers() -> impl Iterator<Item = u32> {
        Process::numbers().filter(|pid| *pid != std::process::id())
    }

    /// Returns the pids of all processes.
    pub fn numbers() -> impl Iterator<Item = u32> {
        fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    }

    /// Returns the pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the start time in clock ticks since boot (field 22 of `stat`). Together with the pid
    /// it identifies the process uniquely. exec does not change it.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Returns how long ago the process began, to the nearest hundredth of a second.
    #[must_use]
    pub fn age(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let now = Duration::try_from(now).unwrap_or_default();
        let per_second = rustix::param::clock_ticks_per_second();
        let began = Duration::from_millis(self.start_time.saturating_mul(1000) / per_second);
        now.saturating_sub(began)
    }

    /// Returns the name that the main thread had when the process was opened (up to 15 bytes).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `/proc/PID/FILE`, that of another thread if the main thread has ended.
    #[must_use]
    pub fn proc_path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", deputy(self.pid)))
    }

    /// True if the same process is still running under this pid.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match self.stat() {
            Ok(stat) => !stat.state.has_ended() || deputy(self.pid) != self.pid,
            // Without a free file descriptor we cannot tell, so assume that it is alive.
            Err(error) => error.is_own(),
        }
    }

    /// True if the process has ended, or is ending and has already released its memory.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let has_memory = || match self.maps() {
            Ok(maps) => !maps.is_empty(),
            Err(error) => error.is_own(),
        };
        !self.is_alive() || !has_memory()
    }

    /// Checks for every obstacle to tracing that can be detected without trying. Call this before
    /// attaching, to get a clear error message. A tracer that is a thread of the calling process is
    /// not an obstacle.
    ///
    /// # Errors
    ///
    /// Kernel thread, zombie, traced by another program, not permitted,
    /// 32-bit program, foreign architecture, no such process.
    pub fn preflight(&self) -> Result<(), ProcessError> {
        let stat = self.stat()?;
        if stat.is_kernel_thread() {
            return Err(ProcessError::KernelThread {
                pid: self.pid,
                name: stat.comm,
            });
        }
        let mut status = self.status()?;
        if status.state.has_ended() {
            return Err(ProcessError::Zombie {
                pid: self.pid,
                name: stat.comm,
            });
        }
        let until = Instant::now() + TRACER_PATIENCE;
        while status.tracer != 0
            && !is_own_thread(status.tracer)
            && is_passing_tracer(status.tracer)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
            status = self.status()?;
        }
        let tracer = status.tracer;
        if tracer != 0 && !is_own_thread(tracer) {
            return Err(ProcessError::AlreadyTraced {
                pid: self.pid,
                tracer,
                name: read_stat(tracer).map_or_else(|_| "?".to_owned(), |stat| stat.comm),
            });
        }
        // To open `mem`, the kernel does the same permission check as for PTRACE_ATTACH
        // (PTRACE_MODE_ATTACH_FSCREDS, including security modules).
        File::open(self.proc_path("mem")).map_err(|e| self.error("mem", e))?;
        self.check_architecture()
    }

    /// Refuses a process whose threads execute nothing, as they have to when it is traced: its control
    /// group is frozen. What only reads from the process need not ask for that.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Frozen`].
    pub fn check_runs(&self) -> Result<(), ProcessError> {
        match frozen::frozen_group(self.pid) {
            None => Ok(()),
            Some(group) => Err(ProcessError::Frozen {
                pid: self.pid,
                name: self.name().to_owned(),
                group,
            }),
        }
    }

    /// Reads `/proc/PID/stat`.
    ///
    /// # Errors
    ///
    /// [`ProcessError::NoSuchProcess`], also when the pid now belongs to another process.
    pub fn stat(&self) -> Result<Stat, ProcessError> {
        let stat = read_stat(self.pid)?;
        if stat.start_time != self.start_time {
            return Err(ProcessError::NoSuchProcess { pid: self.pid });
        }
        Ok(stat)
    }

    /// Reads `/proc/PID/status`, the status of the main thread, or of another one if that has ended.
    ///
    /// # Errors
    ///
    /// [`ProcessError::NoSuchProcess`] and [`ProcessError::Unreadable`].
    pub fn status(&self) -> Result<Status, ProcessError> {
        self.parse_status("status", &self.read_of_deputy("status")?)
    }

    /// Reads the status of one thread of the process, or of another process with the same memory.
    ///
    /// # Errors
    ///
    /// [`ProcessError::NoSuchProcess`] if the thread or process has ended.
    pub fn thread_status(&self, tid: u32) -> Result<Status, ProcessError> {
        self.of_thread_status(tid, |file, bytes| self.parse_status(file, bytes))
    }

    fn of_thread_status<T>(
        &self,
        tid: u32,
        parse: impl Fn(&str, &[u8]) -> Result<T, ProcessError>,
    ) -> Result<T, ProcessError> {
        let read = |file: String| parse(&file, &self.read(&file)?);
        read(format!("task/{tid}/status")).or_else(|_| read(format!("../{tid}/status")))
    }

    /// True if the process and this one are in the same PID namespace, so that its threads have the same ids for
    /// both; false if that cannot be found out.
    #[must_use]
    pub fn shares_pid_namespace(&self) -> bool {
        let ours = fs::read_link("/proc/self/ns/pid").ok();
        ours.is_some() && ours == fs::read_link(self.proc_path("ns/pid")).ok()
    }

    /// True if a thread has a filter of system calls; false if it has ended.
    #[must_use]
    pub fn is_filtered(&self, tid: u32) -> bool {
        self.seccomp(tid).is_some_and(|mode| mode != Seccomp::Off)
    }

    /// Returns the mode in which a thread filters its system calls; `None` if it has ended. Reads nothing else: all
    /// threads may stand still meanwhile.
    #[must_use]
    pub fn seccomp(&self, tid: u32) -> Option<Seccomp> {
        let mode = self.of_thread_status(tid, |_, bytes| Ok(Seccomp::of_status(bytes)));
        mode.ok()
    }

    /// True if the process has mapped more than its limit for that (`RLIMIT_AS`) allows by now. False if that
    /// cannot be found out.
    #[must_use]
    pub fn is_beyond_address_space(&self) -> bool {
        let (limits, sizes) = (self.text_of_deputy("limits"), self.text_of_deputy("statm"));
        let mut lines = limits.lines();
        let limit = lines.find_map(|line| line.strip_prefix("Max address space"));
        let limit = limit.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let pages = sizes.split_whitespace().next();
        let pages = pages.and_then(|pages| pages.parse::<u64>().ok());
        limit
            .zip(pages)
            .is_some_and(|(limit, pages)| pages * PAGE_SIZE > limit)
    }

    /// True if the process keeps some of its memory from being swapped out (mlock(2), mlockall(2)).
    #[must_use]
    pub fn has_locked_memory(&self) -> bool {
        let status = self.text_of_deputy("status");
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let locked = locked.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        locked.is_some_and(|kib| kib > 0)
    }

    /// Returns the processes that a thread has forked and that still exist; none if the kernel was
    /// built without such lists (`CONFIG_PROC_CHILDREN`).
    #[must_use]
    pub fn children_of(&self, tid: u32) -> Vec<u32> {
        let text = self
            .read(&format!("task/{tid}/children"))
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    }

    /// Returns the CPU time of one thread in ns, if the kernel records it.
    pub fn time_on_processor(&self, tid: u32) -> Option<u64> {
        let text = self.read(&format!("task/{tid}/schedstat")).ok()?;
        let text = String::from_utf8(text).ok()?;
        text.split(' ').next()?.parse().ok()
    }

    /// Returns the name of one thread (up to 15 bytes, not necessarily UTF-8 in the kernel; invalid
    /// bytes are replaced).
    ///
    /// # Errors
    ///
    /// [`ProcessError::NoSuchProcess`] if the thread or process has ended.
    pub fn thread_name(&self, tid: u32) -> Result<String, ProcessError> {
        let bytes = self.read(&format!("task/{tid}/comm"))?;
        Ok(String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned())
    }

    /// Returns the tids of the process's threads, in ascending order.
    ///
    /// Threads may come and go while the list is read. To get all of them, stop the threads found
    /// so far and read again, until there are no new ones.
    ///
    /// # Errors
    ///
    /// [`ProcessError::NoSuchProcess`] and [`ProcessError::Unreadable`].
    pub fn threads(&self) -> Result<Vec<u32>, ProcessError> {
        let mut tids = Vec::new();
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid));
        for entry in tasks.map_err(|e| self.error("task", e))? {
            let entry = entry.map_err(|e| self.error("task", e))?;
            if let Some(tid) = entry.file_name().to_str().and_then(|s| s.parse().ok()) {
                tids.push(tid);
            }
        }
        tids.sort_unstable();
        Ok(tids)
    }

    /// Returns the path of the program as the kernel shows it, without the ` (deleted)` that the
    /// kernel appends if the file was removed or replaced.
    ///
    /// # Errors
    ///
    /// Not permitted, no such process, or a kernel thread (which has no program).
    pub fn exe(&self) -> Result<PathBuf, ProcessError> {
        let link = fs::read_link(self.proc_path("exe")).map_err(|e| self.error("exe", e))?;
        Ok(
            match link.to_str().and_then(|s| s.strip_suffix(" (deleted)")) {
                Some(path) if fs::symlink_metadata(&link).is_err() => PathBuf::from(path),
                _ => link,
            },
        )
    }

    /// Opens the program's file itself, even if it no longer has a name.
    ///
    /// # Errors
    ///
    /// As [`Process::exe`].
    pub fn open_exe(&self) -> Result<File, ProcessError> {
        File::open(self.proc_path("exe")).map_err(|error| {
            // Who may not trace the process may not read the link, either.
            let Ok(path) = self.exe() else {
                return self.error("exe", error);
            };
            match FileSystem::denying(self, &path, &error) {
                Some(reason) => ProcessError::FileNotReadable {
                    pid: self.pid,
                    name: self.name.clone(),
                    path,
                    reason,
                },
                None => self.error("exe", error),
            }
        })
    }

    /// Returns a path to access a file in the process's own root directory and mount namespace.
    #[must_use]
    pub fn in_root(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix("/").unwrap_or(path);
        self.proc_path("root").join(relative)
    }

    /// True if the process has another root directory than this one: in a container, or after chroot(2).
    #[must_use]
    pub fn has_other_root(&self) -> bool {
        let id = |path: &Path| std::fs::metadata(path).map(|root| (root.dev(), root.ino()));
        match (id(&self.in_root(Path::new("/"))), id(Path::new("/"))) {
            (Ok(theirs), Ok(ours)) => theirs != ours,
            _ => false,
        }
    }

    /// Returns the program's arguments, each followed by a zero byte. A program can overwrite them,
    /// so at most the maximum size of an ordinary command line is read.
    #[must_use]
    pub fn command_line(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let file = File::open(self.proc_path("cmdline"));
        // An unreadable command line is shown as empty.
        let _ = file.and_then(|file| file.take(MAX_COMMAND_LINE).read_to_end(&mut bytes));
        bytes
    }

    /// Reads the auxiliary vector that the kernel gave the program.
    ///
    /// # Errors
    ///
    /// Not permitted, no such process.
    pub fn auxv(&self) -> Result<Auxv, ProcessError> {
        Ok(Auxv::parse(&self.raw_auxv()?))
    }

    /// Returns the auxiliary vector as bytes, which differ between two programs that a process executes one
    /// after the other.
    ///
    /// # Errors
    ///
    /// See [`ProcessError`].
    pub fn raw_auxv(&self) -> Result<Vec<u8>, ProcessError> {
        self.read_of_deputy("auxv")
    }

    /// Reads the memory map, as the program has made it: text that [covers](crate::maps::Cover) have
    /// taken the place of is where it belongs.
    ///
    /// # Errors
    ///
    /// See [`raw_maps`](Self::raw_maps).
    pub fn maps(&self) -> Result<Vec<Mapping>, ProcessError> {
        self.raw_maps().map(as_made)
    }

    /// Reads the memory map as it is.
    ///
    /// The kernel returns it in pieces. If the program maps or unmaps memory meanwhile, two pieces
    /// may be inconsistent; then the map is read again.
    ///
    /// # Errors
    ///
    /// Not permitted, no such process, or a malformed line.
    pub fn raw_maps(&self) -> Result<Vec<Mapping>, ProcessError> {
        const ATTEMPTS: usize = 20;
        let mut attempt = 1;
        loop {
            match parse_maps(&self.read_of_deputy("maps")?) {
                Ok(maps) => return Ok(maps),
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                Err(source) => {
                    let pid = self.pid;
                    return Err(ProcessError::Maps { pid, source });
                }
            }
        }
    }

    /// Opens the file of a mapping itself, even if it no longer has a name, by the kernel's link for the
    /// range. Memory that [covers](crate::maps::Cover) a file is not opened in its place.
    ///
    /// # Errors
    ///
    /// Not permitted (the links need `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`), or nothing is mapped
    /// to exactly this range.
    pub fn open_mapped(&self, mapping: &Mapping) -> io::Result<File> {
        let link = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
        let link = self.proc_path(&link);
        let is_cover = |path: PathBuf| {
            let path = path.as_os_str().as_encoded_bytes();
            path.starts_with(format!("/memfd:{COVER_NAME}").as_bytes())
        };
        if fs::read_link(&link).is_ok_and(is_cover) {
            return Err(io::ErrorKind::NotFound.into());
        }
        crate::files::open(&link)
    }

    /// Returns, for each page, whether the process has a copy of its own: a page of a private mapping of
    /// a file that was written to.
    ///
    /// # Errors
    ///
    /// Not permitted, or the process has ended.
    pub fn has_own_copies(&self, pages: &[u64]) -> Result<Vec<bool>, ProcessError> {
        // Documentation/admin-guide/mm/pagemap.rst of the kernel.
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const OF_A_FILE: u64 = 1 << 61;
        let fail = |e| self.error("pagemap", e);
        let file = File::open(self.proc_path("pagemap")).map_err(fail)?;
        let mut own = Vec::new();
        for page in pages {
            let mut entry = [0; 8];
            file.read_exact_at(&mut entry, page / PAGE_SIZE * 8)
                .map_err(fail)?;
            let entry = u64::from_le_bytes(entry);
            own.push(entry & SWAPPED != 0 || entry & PRESENT != 0 && entry & OF_A_FILE == 0);
        }
        Ok(own)
    }

    /// Returns the limit of the main stack in bytes; `None` if unlimited or unknown.
    #[must_use]
    pub(crate) fn stack_limit(&self) -> Option<u64> {
        let bytes = self.read("limits").ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix("Max stack size"))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }

    /// Reads up to `buffer.len()` bytes of the process's memory at `address`
    /// through `/proc/PID/mem`, without stopping it. Returns the number of
    /// bytes read, which is smaller if the mapped memory ends earlier.
    ///
    /// # Errors
    ///
    /// Not permitted, no such process, nothing mapped at `address`.
    pub fn read_memory(&self, address: u64, buffer: &mut [u8]) -> Result<usize, ProcessError> {
        let file = File::open(self.proc_path("mem")).map_err(|e| self.error("mem", e))?;
        file.read_at(buffer, address)
            .map_err(|e| self.error("mem", e))
    }

    fn parse_status(&self, file: &str, bytes: &[u8]) -> Result<Status, ProcessError> {
        Status::parse(bytes).ok_or_else(|| ProcessError::Unreadable {
            pid: self.pid,
            file: file.to_owned(),
            source: io::ErrorKind::InvalidData.into(),
        })
    }

    /// Reads a file of `/proc/PID` that is there as long as any thread is.
    fn read(&self, file: &str) -> Result<Vec<u8>, ProcessError> {
        let bytes = files::read_pseudo(format!("/proc/{}/{file}", self.pid));
        bytes.map_err(|e| self.error(file, e))
    }

    /// Reads a file that shows memory, files or rights: that of the [`deputy`].
    fn read_of_deputy(&self, file: &str) -> Result<Vec<u8>, ProcessError> {
        loop {
            let deputy = deputy(self.pid);
            let bytes = files::read_pseudo(format!("/proc/{deputy}/{file}"));
            match bytes.map_err(|e| self.error(file, e)) {
                // The thread that stood for the process has just ended.
                Err(ProcessError::NoSuchProcess { .. })
                    if deputy != self.pid && deputy != self::deputy(self.pid) => {}
                bytes => return bytes,
            }
        }
    }

    /// Returns the text of such a file; empty if it cannot be read.
    fn text_of_deputy(&self, file: &str) -> String {
        let bytes = self.read_of_deputy(file).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn error(&self, file: &str, source: io::Error) -> ProcessError {
        ProcessError::from_io(self.pid, &self.name, file, source)
    }

    /// Checks the header of the program's file, and refuses anything but a 64-bit x86 program.
    pub fn check_architecture(&self) -> Result<(), ProcessError> {
        let mut header = [0u8; 20];
        self.open_exe()?
            .read_exact(&mut header)
            .map_err(|e| self.error("exe", e))?;
        let class = header[4];
        let machine = u16::from_le_bytes([header[18], header[19]]);
        let (pid, name) = (self.pid, self.name.clone());
        match (machine, class) {
            (EM_X86_64, ELFCLASS64) => Ok(()),
            (EM_X86_64 | EM_386, _) => Err(ProcessError::ThirtyTwoBit { pid, name }),
            _ => Err(ProcessError::ForeignArchitecture { pid, name, machine }),
        }
    }
}

/// Name of a thread that is a tracer only for moments: a thread of Capriole's.
pub const TRACER_NAME: &str = "capriole-tracer";
/// Time for which such a thread of another process is waited for.
pub const TRACER_PATIENCE: Duration = Duration::from_secs(5);

/// True if `tid`, which traces a thread, is going to stop that in a moment, or has ended.
#[must_use]
pub fn is_passing_tracer(tid: u32) -> bool {
    let name = files::read_pseudo_text(format!("/proc/{tid}/comm"));
    name.map_or(true, |name| name.trim_end() == TRACER_NAME)
}

/// True for a process that is the helper of some program that probes itself.
#[must_use]
pub fn is_helper(pid: u32) -> bool {
    let line = files::read_pseudo(format!("/proc/{pid}/cmdline"));
    line.is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"probe-helper"))
}

/// True if `tid` is a thread of the calling process: a process that we launched and still hold
/// is traced, but by us.
fn is_own_thread(tid: u32) -> bool {
    Path::new("/proc/self/task").join(tid.to_string()).exists()
}

/// Returns the number of the thread in whose directory of `/proc` the memory and the files of a process
/// are: the process's own number, or, if its main thread has ended, that of another thread.
#[must_use]
pub fn deputy(pid: u32) -> u32 {
    // Without memory there is no program.
    let has_memory = |tid: u32| match fs::read_link(format!("/proc/{tid}/exe")) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(_) => true,
    };
    if has_memory(pid) {
        return pid;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten();
    let mut tids = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let other = tids.find(|tid| *tid != pid && has_memory(*tid));
    other.unwrap_or(pid)
}

fn read_stat(pid: u32) -> Result<Stat, ProcessError> {
    let bytes = files::read_pseudo(format!("/proc/{pid}/stat"))
        .map_err(|e| ProcessError::from_io(pid, "?", "stat", e))?;
    Stat::parse(&bytes).ok_or_else(|| ProcessError::Unreadable {
        pid,
        file: "stat".to_owned(),
        source: io::ErrorKind::InvalidData.into(),
    })
}

/// Returns Yama's `ptrace_scope`, 0 if the kernel has no Yama.
#[must_use]
pub fn ptrace_scope() -> u32 {
    files::read_pseudo_text("/proc/sys/kernel/yama/ptrace_scope")
        .ok()
        .and_then(|s| s.trim().parse().ok())
        .unwrap_or(0)
}
