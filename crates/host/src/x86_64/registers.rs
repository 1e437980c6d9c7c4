//! General registers of a stopped thread, and how the kernel restarts system calls by them.

use crate::host::{CallTable, StoppedThread};

/// General registers, in the order of `PTRACE_GETREGS`.
pub type Registers = libc::user_regs_struct;

impl StoppedThread {
    /// Returns the program counter.
    pub fn pc(&self) -> u64 {
        self.registers.rip
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> u64 {
        self.registers.rsp
    }

    /// Returns rbp.
    pub fn frame_pointer(&self) -> u64 {
        self.registers.rbp
    }

    /// Returns the general registers, in no particular order, without the stack pointer.
    pub fn general_registers(&self) -> [u64; 15] {
        let r = &self.registers;
        [
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12,
            r.r13, r.r14, r.r15,
        ]
    }

    /// Returns the thread pointer, from which thread-local variables have their offsets.
    pub fn thread_pointer(&self) -> u64 {
        self.registers.fs_base
    }

    /// Returns the number of the system call in which the thread was stopped.
    pub fn system_call(&self) -> Option<i64> {
        Some(self.registers.orig_rax as i64).filter(|number| *number >= 0)
    }
}

const EINTR: i64 = -(libc::EINTR as i64);
/// The kernel's own code for "start again, unless a handler runs" (ERESTARTNOHAND).
const RESTART_UNLESS_HANDLED: i64 = -514;
/// The kernel's internal code for "continue this sleep by restart_syscall"
/// (ERESTART_RESTARTBLOCK).
const RESTART_BLOCK: i64 = -516;

/// Turns an EINTR that our stop caused into a restart, if the call is `restartable`.
///
/// The thread is stopped inside signal processing, before the kernel decides if a handler runs:
/// with ERESTARTNOHAND in rax the kernel starts the call again if none does, and returns EINTR
/// if one does, exactly as without us. A call that timed out, or finished, does not have EINTR
/// here. Only a relative time-out starts anew.
pub(crate) fn heal_interrupted_call(
    registers: &mut Registers,
    restartable: impl FnOnce(u64) -> bool,
) -> bool {
    let interrupted = registers.rax as i64 == EINTR
        && (registers.orig_rax as i64) >= 0
        && restartable(registers.orig_rax);
    if interrupted {
        registers.rax = RESTART_UNLESS_HANDLED as u64;
    }
    interrupted
}

/// True for the kernel's internal results that mean "start the call again".
pub(crate) fn wants_restart(registers: &Registers) -> bool {
    (registers.orig_rax as i64) >= 0 && matches!(registers.rax as i64, -516 | -514 | -513 | -512)
}

/// True if a thread with these registers continues by `restart_syscall`.
pub(crate) fn wants_restart_call(registers: &Registers) -> bool {
    (registers.orig_rax as i64) >= 0 && registers.rax as i64 == RESTART_BLOCK
}

/// What a stopped thread loses if it makes system calls for the tracer. The least loss comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    /// No time: it waits. If the tracer dies meanwhile, its call starts anew, by the signal frame.
    Nothing,
    /// It waits by `restart_syscall`. If the tracer dies, its call returns EINTR: `rt_sigreturn` makes
    /// the kernel forget how to go on, and nobody knows the number of the call any more.
    Call,
    /// It runs.
    Time,
}

/// Returns what a thread loses, by the registers with which it has stopped.
pub(crate) fn loss(registers: &Registers) -> Loss {
    let resumes = libc::SYS_restart_syscall as u64;
    // Or sent back to its `syscall` instruction, and stopped again before it got there.
    let is_sent_back = (registers.orig_rax as i64) < 0 && registers.rax == resumes;
    match wants_restart(registers) {
        _ if registers.orig_rax == resumes || is_sent_back => Loss::Call,
        true => Loss::Nothing,
        false => Loss::Time,
    }
}

/// True at the entry of `restart_syscall`: the result register holds ENOSYS there, which the call
/// itself never returns.
pub(crate) fn enters_restart_call(registers: &Registers) -> bool {
    registers.orig_rax as i64 == libc::SYS_restart_syscall
        && registers.rax as i64 == -i64::from(libc::ENOSYS)
}

/// Returns registers that resume at `address`.
pub(crate) fn moved_to(mut registers: Registers, address: u64) -> Registers {
    registers.rip = address;
    // The new address is not behind a `syscall` instruction: the kernel must not restart a call by
    // stepping the program counter back.
    registers.orig_rax = u64::MAX;
    registers
}

/// EFLAGS.TF: the processor traps after each instruction.
const TRAP: u64 = 1 << 8;

/// Returns registers for a call of ours, which resume at `address`. A thread may step itself: all signals are blocked
/// during a call, and a trap then would end the program.
fn called_at(original: Registers, address: u64) -> Registers {
    let mut r = moved_to(original, address);
    r.eflags &= !TRAP;
    r
}

/// Returns registers for one system call by the `syscall` instruction at `at`.
pub(crate) fn for_call(
    original: Registers,
    number: i64,
    arguments: [u64; 6],
    at: u64,
    stack: u64,
) -> Registers {
    let mut r = called_at(original, at);
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
    r.rax = number as u64;
    r.rsp = stack;
    r
}

/// Returns registers for the resident's code of a batch.
pub(crate) fn for_table(original: Registers, table: &CallTable, stack: u64) -> Registers {
    let mut r = called_at(original, table.start);
    r.rbx = table.rows.start;
    r.rbp = table.rows.end;
    r.r12 = table.number as u64;
    r.r13 = table.came_to;
    [r.r14, r.r15, r.r8] = table.arguments;
    r.rsp = stack;
    r
}

/// Returns the result of a system call.
pub(crate) fn result(registers: &Registers) -> Result<u64, rustix::io::Errno> {
    match registers.rax as i64 {
        error @ -4095..=-1 => Err(rustix::io::Errno::from_raw_os_error(-error as i32)),
        _ => Ok(registers.rax),
    }
}
