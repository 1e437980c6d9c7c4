//! What changing a process takes, whoever does it: its memory, its threads stopped, and system
//! calls made by one of them.
//!
//! The patcher is written against [`Host`] and knows nothing else of a process, apart from what
//! `/proc` says about it. [`crate::ptrace`] is the host for other processes. Hosts are trait
//! objects, not type parameters: an operation takes microseconds, and a process and its children may
//! have different hosts.
//!
//! ```text
//!   Host ── memory() ──▶ TargetMemory     read and write
//!     │
//!     ├──── stop() ────▶ StoppedThreads   program counters, moved, let run; resumed when dropped
//!     │                        │
//!     └──── hire(), choose() ◀─┘ ──▶ Caller ── begin() ──▶ Calls   system calls
//! ```

use crate::error::TargetError;
use crate::survey::is_pending;
use crate::x86_64::registers::Registers;
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use rustix::io::Errno;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Code of the program itself that detours call, and that calls other code of the program. While it does,
/// the program counter of a thread tells nothing about where it returns to: then its record has a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routines {
    /// Addresses of the routines.
    pub text: Range<u64>,
    /// Addresses of the threads' records. Each begins with two words: the stack pointer in the routine, or
    /// 0 if no other code is called, and the thread pointer.
    pub records: Range<u64>,
    /// Size of a record in bytes.
    pub record_size: u64,
}

/// A process that can be changed while it runs.
pub trait Host: Debug + Send + Sync {
    /// The process, as `/proc` shows it.
    fn process(&self) -> &Process;

    /// Returns the host of another process that was forked from this one, or shares its memory.
    fn other(&self, process: &Process) -> Arc<dyn Host>;

    /// Refuses a process that cannot be changed by this host.
    ///
    /// # Errors
    /// It is of another kind, is over, has another tracer, or access to it is not permitted.
    fn preflight(&self) -> Result<(), TargetError> {
        self.process().preflight()?;
        Ok(self.process().check_runs()?)
    }

    /// False if its threads cannot be stopped: then only what is safe whatever they do may be
    /// written, and nothing that they may be using may be taken away.
    fn can_stop(&self) -> bool {
        true
    }

    /// Returns what detours of this host call in the program's own code.
    fn routines(&self) -> Option<Routines> {
        None
    }

    /// Returns addresses of instructions of which the program may have the addresses of copies that an
    /// earlier tracer has made: these stay mapped.
    fn copied(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Opens the memory of the process.
    ///
    /// # Errors
    /// The process is gone, or access to it is not permitted.
    fn memory(&self) -> Result<Box<dyn TargetMemory>, TargetError>;

    /// Refuses, before any thread is interrupted, a process that stopping could kill.
    ///
    /// # Errors
    /// [`TargetError::Filtered`], or the process is gone.
    fn check_stops(&self) -> Result<(), TargetError>;

    /// Refuses a process that a system call of ours would kill.
    ///
    /// # Errors
    /// [`TargetError::Sandboxed`], or the process is gone.
    fn check_calls(&self) -> Result<(), TargetError>;

    /// Looks for what calls need, which takes milliseconds: for use before threads are stopped.
    /// Without it, [`Host::choose`] and [`Host::hire`] do so.
    fn prepare(&self, memory: &dyn TargetMemory);

    /// Runs `work` once, on a thread from which threads can be stopped; whatever it leaves stopped
    /// or interrupted is released at its end. Use [`apart`](Host#method.apart).
    fn run_apart(&self, work: &mut (dyn FnMut() + Send));

    /// Stops all threads of the process, and of the processes that have the same memory.
    ///
    /// # Errors
    /// [`TargetError::Unstoppable`]: one does not stop. All go on then.
    fn stop(&self) -> Result<Box<dyn StoppedThreads>, TargetError>;

    /// Stops one thread. Returns `None` if it is gone.
    ///
    /// # Errors
    /// [`TargetError::Unstoppable`]: it cannot stop now.
    fn stop_one(&self, tid: i32) -> Result<Option<Box<dyn StoppedThreads>>, TargetError>;

    /// Returns the ids of the other processes that have the same memory.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    fn sharing_memory(&self) -> Result<Vec<i32>, TargetError>;

    /// True if a stopped thread is returning, on its own, from a call that it was made to issue by
    /// a tracer that has ended since.
    fn is_orphan(&self, thread: &StoppedThread, memory: &dyn TargetMemory) -> bool;

    /// True if system calls of a stopped thread may be passed back to the program, now or later, because
    /// it has asked for that: code of ours must make none then.
    fn may_redirect_calls(&self, thread: &StoppedThread) -> bool;

    /// Chooses one of the stopped threads for calls, and resumes the others.
    ///
    /// # Errors
    /// [`TargetError::NoThread`]: none of them can make calls now; [`TargetError::Redirected`]: because
    /// those that could have their calls redirected; [`TargetError::NoSyscall`]: there is no way to make
    /// calls in this process.
    fn choose(
        &self,
        stopped: Box<dyn StoppedThreads>,
        memory: &dyn TargetMemory,
    ) -> Result<Box<dyn Caller>, TargetError>;

    /// Chooses one of the stopped threads for calls; all stay stopped. `maps` are the mappings of the
    /// process now.
    ///
    /// # Errors
    /// The errors of [`Host::choose`].
    fn choose_among<'s>(
        &self,
        stopped: &'s (dyn StoppedThreads + 'static),
        memory: &dyn TargetMemory,
        maps: &[Mapping],
    ) -> Result<Box<dyn Caller + 's>, TargetError>;

    /// Stops one thread, whichever is ready first, for calls.
    ///
    /// # Errors
    /// The errors of [`Host::choose`].
    fn hire(&self, memory: &dyn TargetMemory) -> Result<Box<dyn Caller>, TargetError>;

    /// Stops this thread for calls, which waits for us in a call of its own.
    ///
    /// # Errors
    /// The errors of [`Host::choose`].
    fn hire_one(
        &self,
        tid: i32,
        memory: &dyn TargetMemory,
    ) -> Result<Box<dyn Caller>, TargetError> {
        match self.stop_one(tid)? {
            Some(stopped) => self.choose(stopped, memory),
            None => Err(TargetError::NoThread {
                pid: self.process().pid() as i32,
            }),
        }
    }
}

impl dyn Host + '_ {
    /// Process id.
    pub fn pid(&self) -> i32 {
        self.process().pid() as i32
    }

    /// Runs `work` on a thread from which threads can be stopped, see [`Host::run_apart`], and
    /// returns its result.
    ///
    /// # Panics
    /// Panics if `work` does.
    pub fn apart<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let (mut work, mut result) = (Some(work), None);
        self.run_apart(&mut || result = work.take().map(|work| work()));
        result.expect("run_apart runs its work")
    }
}

/// The memory of a process.
pub trait TargetMemory: Debug + Send + Sync {
    /// Fills `into` from `address`.
    ///
    /// # Errors
    /// EIO where nothing is mapped; unexpected end of file if the process is gone.
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()>;

    /// Reads up to `len` bytes, fewer if the mapping ends before.
    ///
    /// # Errors
    /// The first byte cannot be read.
    fn read_some(&self, address: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Writes `bytes` at `address`, whatever the protection of the page: a private mapping gets a
    /// copy of it.
    ///
    /// Not for instruction bytes of the program: only the module `patch` writes those.
    ///
    /// # Errors
    /// Nothing is mapped there, or the process is gone.
    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads a u64.
    ///
    /// # Errors
    /// Those of [`TargetMemory::read`].
    fn read_u64(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a u32.
    ///
    /// # Errors
    /// Those of [`TargetMemory::read`].
    fn read_u32(&self, address: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

impl<M: TargetMemory + ?Sized> TargetMemory for Box<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read(address, into)
    }

    fn read_some(&self, address: u64, len: usize) -> io::Result<Vec<u8>> {
        (**self).read_some(address, len)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write(address, bytes)
    }
}

/// A thread that is stopped under our control.
#[derive(Debug, Clone, Copy)]
pub struct StoppedThread {
    /// Thread id.
    pub tid: i32,
    /// Its process, which may be another one that shares the memory.
    pub pid: i32,
    /// The signal that was about to be delivered, to be delivered on resumption;
    /// 0: none.
    pub signal: i32,
    /// Its registers, as they will be when it resumes.
    pub(crate) registers: Registers,
}

/// Signals that an instruction raises.
const FAULTS: [i32; 6] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
];

impl StoppedThread {
    /// True if it is not about to receive a signal, also not that of an instruction that has just faulted.
    pub(crate) fn goes_on(&self) -> bool {
        self.signal == 0 && !is_pending(self.tid, &FAULTS)
    }
}

/// Stopped threads of a process. Dropping them resumes them.
pub trait StoppedThreads: Debug {
    /// The process that was stopped.
    fn pid(&self) -> i32;

    /// Returns the threads.
    fn threads(&self) -> &[StoppedThread];

    /// Returns the time for which they have been stopped.
    fn elapsed(&self) -> Duration;

    /// Sets the address at which thread `index` resumes.
    ///
    /// # Errors
    /// The thread is gone.
    fn move_to(&mut self, index: usize, address: u64) -> Result<(), TargetError>;

    /// Lets thread `index` run for a moment and stops it again. For as long as `patience` it may wait
    /// for a processor before. Returns `false` if it is gone; it is then removed from the threads.
    ///
    /// # Errors
    /// [`TargetError::Unstoppable`]: it cannot stop now; it is then removed from the threads, too.
    fn let_run(
        &mut self,
        index: usize,
        moment: Duration,
        patience: Duration,
    ) -> Result<bool, TargetError>;

    /// Resumes thread `index`, for which a signal is pending that it does not block, until it is
    /// about to receive that signal. Returns `false` if it is gone; it is then removed from the
    /// threads.
    ///
    /// # Errors
    /// Those of [`StoppedThreads::let_run`].
    fn let_run_to_signal(&mut self, index: usize) -> Result<bool, TargetError>;

    /// If every thread of the process is about to receive a signal, has one receive it and stop at the first
    /// instruction of the handler, so that it can make calls. One that steps itself, or faults all the time,
    /// would not be able to at most instants.
    ///
    /// # Errors
    /// Those of [`StoppedThreads::let_run`].
    fn past_signals(&mut self) -> Result<(), TargetError>;

    /// True if thread `index` has just executed a breakpoint instruction, and is about to receive the
    /// SIGTRAP.
    fn has_hit_breakpoint(&self, index: usize) -> bool;

    /// Returns the registration of thread `index` for restartable sequences; `None` if the kernel
    /// does not say.
    fn restartable_sequences(&self, index: usize) -> Option<Restartable>;

    /// Resumes all threads but `index`.
    fn keep_only(self: Box<Self>, index: usize) -> Box<dyn StoppedThreads>;
}

impl dyn StoppedThreads + '_ {
    /// Resumes all threads, and returns how long they were stopped.
    pub fn resume(self: Box<Self>) -> Duration {
        let elapsed = self.elapsed();
        drop(self);
        elapsed
    }
}

/// Registration of a thread for restartable sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restartable {
    /// Address of its `struct rseq`; 0 if none is registered.
    pub address: u64,
    /// The word before every abort address.
    pub signature: u32,
}

/// Place of the signal frame through which a thread returns to its own code if the tracer ends in
/// the middle of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramePlace {
    /// In `len` bytes at `start` that are not used otherwise.
    Scratch {
        /// Address of the scratch memory, 64-byte aligned.
        start: u64,
        /// Size in bytes.
        len: u64,
    },
    /// Below the red zone of the thread's stack, not below `limit`.
    Stack {
        /// Lowest address of the stack's mapping.
        limit: u64,
    },
    /// No frame: there is no stack that is safe to write below (a goroutine's, for instance). If
    /// the tracer is killed in the microseconds of such a call the target is lost; at most one call
    /// is made this way, to get scratch memory.
    Nowhere,
}

/// A stopped thread that can make system calls for us. Dropping it resumes the thread.
pub trait Caller: Debug {
    /// Process id.
    fn pid(&self) -> i32;

    /// Thread id; that of the process if any of its threads may make the calls.
    fn tid(&self) -> i32;

    /// Returns the place for a frame on the thread's own stack, if that is safe.
    ///
    /// # Errors
    /// The process is gone.
    fn stack(&self) -> Result<FramePlace, TargetError>;

    /// True if a thread with a frame returns to its own code by itself when the tracer ends.
    fn returns_by_itself(&self) -> bool;

    /// Prepares the thread for calls, with the frame at `place`. Nothing changes in the thread yet,
    /// except memory at `place`.
    ///
    /// # Errors
    /// There is no room for the frame, or the thread is gone.
    fn begin<'a>(
        &'a self,
        memory: &'a dyn TargetMemory,
        place: FramePlace,
    ) -> Result<Box<dyn Calls + 'a>, TargetError>;

    /// True if the thread may make system calls from all code, at any time; else only by
    /// [`Calls::call`].
    fn calls_from_anywhere(&self) -> bool;

    /// Returns the time for which the thread has been stopped.
    fn elapsed(&self) -> Duration;
}

impl dyn Caller + '_ {
    /// Resumes the thread; returns how long it was stopped.
    pub fn dismiss(self: Box<Self>) -> Duration {
        let elapsed = self.elapsed();
        drop(self);
        elapsed
    }
}

/// Calls of one thread. Dropping them restores the thread's registers.
pub trait Calls {
    /// Makes one system call. `Ok(Err(errno))` is the call's own failure.
    ///
    /// # Errors
    /// The thread is gone.
    ///
    /// # Panics
    /// Panics if `number` is not one of the permitted calls.
    fn call(&mut self, number: i64, arguments: [u64; 6])
    -> Result<Result<u64, Errno>, TargetError>;

    /// Makes the calls of a batch, by code of the resident, until `is_done`.
    ///
    /// # Errors
    /// The thread is gone or ran into a fault.
    ///
    /// # Panics
    /// As [`Calls::call`].
    fn call_each(
        &mut self,
        table: &CallTable,
        is_done: &dyn Fn() -> bool,
    ) -> Result<(), TargetError>;

    /// Returns an address with 48 free bytes below the frame.
    fn below_frame(&self) -> u64;

    /// Restores the thread's registers and signal mask.
    ///
    /// # Errors
    /// The thread is gone.
    fn finish(self: Box<Self>) -> Result<(), TargetError>;
}

/// System calls with the same number, one for each row { arguments 0, 1 and 5, wanted result } of a
/// table, up to the first that gives another result; or moves of mappings, with rows { old address, size,
/// 0, new address }. The code is in the resident's entry.S.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTable {
    /// The resident's code, up to the instruction where it waits to be stopped.
    pub code: Range<u64>,
    /// Where it begins.
    pub start: u64,
    /// Addresses of the rows, in the target.
    pub rows: Range<u64>,
    /// Number of the call.
    pub number: i64,
    /// Arguments 2, 3 and 4, the same for each row.
    pub arguments: [u64; 3],
    /// Address where the code notes the address of the row that it came to.
    pub came_to: u64,
}

/// The system calls that a thread of the program may be made to issue, each with its purpose.
/// None of them sleeps in a way that the kernel resumes by `restart_syscall`: such a call
/// records in the thread's `restart_block` how to resume, and overwrites the record of a sleep
/// of the program that our stop has interrupted. The program would then wake from *our* sleep.
pub(crate) const PERMITTED: [i64; 10] = [
    libc::SYS_mmap,         // session memory, code, open calls, covers of text
    libc::SYS_munmap,       // the same at the end
    libc::SYS_mremap,       // covered text
    libc::SYS_mprotect,     // of text that is no longer covered
    libc::SYS_madvise,      // of open calls; session memory is not for core dumps
    libc::SYS_memfd_create, // session memory, stubs, covers
    libc::SYS_close,        // their descriptors
    libc::SYS_rt_sigaction, // handlers of SIGTRAP and of faults
    libc::SYS_prctl,        // PR_GET_TSC
    libc::SYS_membarrier,   // of the instruction fetch, for bytes that change while threads run
];

/// True if a thread may be made to issue this system call.
pub(crate) fn is_permitted(number: i64) -> bool {
    PERMITTED.contains(&number)
}
