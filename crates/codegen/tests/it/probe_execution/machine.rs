//! A processor state that is loaded, run and saved, all through signal frames: the
//! initial state of a run is written into the frame of one signal, and its final state
//! is read from the frame of another. So every register that the kernel saves is under
//! control, up to the upper halves of the vectors, and no assembly is needed.
//!
//! A *stepped* run has the trap flag set: each instruction ends in the handler,
//! which records address and registers. A *plain* run executes at full speed. Either
//! ends when control leaves the function (all text around it is `int3`), at a
//! fault, or (stepped only) at a limit.
//!
//! The handler touches no thread-local memory: the thread pointer during a run is not
//! the test's.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use capriole_insn::Extent;

/// The thread pointer during a run.
pub const THREAD: u64 = super::memory::TLS + 0x1000;
/// Number of calls out of the function that return; the run ends at the next one.
pub const CALLS: usize = 8;
/// Maximum number of arrivals at the site in a stepped run.
pub const ARRIVALS: usize = 3;
/// Maximum number of the function's instructions in a stepped run.
pub const STEPS: usize = 100;
/// Maximum number of instructions of all kinds, including the detour's.
const RAW_STEPS: u32 = 4_000;
const FRAME: usize = 16384;
/// OF DF SF ZF AF PF CF.
pub const FLAGS: u64 = 0xcd5;
const TRAP_FLAG: i64 = 0x100;

/// Greg numbers by hardware register number.
const GREGS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Registers before the instruction at `address` runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub address: u64,
    pub gprs: [u64; 16],
    pub flags: u64,
}

/// The registers on an arrival at the site, and the number of steps before it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub after: usize,
    pub step: Step,
}

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Control reached an address outside the function.
    Left(u64),
    /// A processor exception: its address, its number, and for page faults the error
    /// code and the faulting address.
    Fault {
        at: u64,
        trap: i64,
        error: i64,
        address: i64,
    },
    /// A limit of the run was reached.
    Bound,
    /// Far too many instructions were executed.
    Hung,
}

/// Description of a run.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub start: Step,
    pub stepped: bool,
    pub function: Vec<Extent>,
    /// Address that counts as an arrival at the site: the site itself, or the place in a detour
    /// that has already run the instructions before it.
    pub site: u64,
    /// The site has a `rep` instruction: all its iterations are one
    /// arrival.
    pub repeats: bool,
    /// Addresses that count only as arrivals, not as steps: the nops of a reserved site.
    pub silent: Vec<Extent>,
    /// Replaced instructions; their copies are recorded instead.
    pub patched: Vec<u64>,
    /// Copies, and their original instructions.
    pub copies: Vec<(u64, u64)>,
    /// Ranges of generated code.
    pub generated: Vec<Extent>,
    /// Breakpoints and their targets.
    pub traps: Vec<(u64, u64)>,
    /// On each arrival, overwrites the memory more than this many bytes below the stack
    /// pointer; the second number is the seed of the new contents.
    pub scribble: Option<(u64, u64)>,
    /// End of the detour's recording: its address for execution and for writing. A
    /// stepped run executes the code before it at full speed.
    pub landing: Option<(u64, usize)>,
    /// The return addresses of the function's calls, sorted.
    pub returns: Vec<u64>,
    /// rax, rcx, rdx, rsi, rdi, r8 to r11 and the flags after a call.
    pub callee: Vec<[u64; 10]>,
    /// Vector registers and the like, laid out as in a signal frame.
    pub vectors: Vec<u8>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub end: End,
    pub last: Step,
    pub vectors: Vec<u8>,
    pub steps: Vec<Step>,
    pub arrivals: Vec<Arrival>,
    /// Number of calls out of the function that returned.
    pub calls: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Starting,
    Running,
}

/// The state shared with the handler.
pub struct Machine {
    phase: Phase,
    program: Program,
    /// Ranges of a frame's extended state that hold registers.
    ranges: Vec<(usize, usize)>,
    home_gregs: [i64; 23],
    home_vectors: Vec<u8>,
    home_thread: u64,
    steps: Vec<Step>,
    arrivals: Vec<Arrival>,
    calls: usize,
    raw: u32,
    /// The original byte at the landing, while a breakpoint replaces it.
    landing: Option<u8>,
    end: End,
    last: Step,
    vectors: Vec<u8>,
}

static MACHINE: AtomicPtr<Machine> = AtomicPtr::new(std::ptr::null_mut());
/// Signals that arrived while no run was active: always 0.
static STRAY: AtomicU64 = AtomicU64::new(0);

impl Machine {
    /// Takes over the signals of this process, which must be a child created for that.
    pub fn take_over() -> &'static mut Machine {
        let machine = Box::leak(Box::new(Machine {
            phase: Phase::Idle,
            program: Program::default(),
            ranges: super::vectors::register_ranges(),
            home_gregs: [0; 23],
            home_vectors: vec![0; FRAME],
            home_thread: 0,
            steps: Vec::with_capacity(STEPS + 1),
            arrivals: Vec::with_capacity(ARRIVALS + 1),
            calls: 0,
            raw: 0,
            landing: None,
            end: End::Bound,
            last: Step::default(),
            vectors: vec![0; FRAME],
        }));
        MACHINE.store(machine, Ordering::SeqCst);
        let stack = Box::leak(vec![0u8; 1 << 18].into_boxed_slice());
        let stack = libc::stack_t {
            ss_sp: stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: stack.len(),
        };
        // SAFETY: the stack is leaked, so it stays.
        unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
        for signal in [
            libc::SIGTRAP,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
        ] {
            // SAFETY: zero is a valid `sigaction`.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_SIGINFO;
            // SAFETY: the handler has the signature that SA_SIGINFO requires.
            let done = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
            assert_eq!(done, 0);
        }
        machine
    }

    /// Runs `program`. The caller has to set up the memory.
    pub fn run(&mut self, program: Program) -> Outcome {
        self.program = program;
        self.steps.clear();
        self.arrivals.clear();
        self.calls = 0;
        self.raw = RAW_STEPS;
        self.home_thread = thread_pointer();
        self.phase = Phase::Starting;
        // SAFETY: the handler replaces our state by the program's, and restores ours
        // at the end, all registers included. It writes to `self` without the compiler's
        // knowledge, which the assembly may do, having no options.
        unsafe { std::arch::asm!("int3", in("rdi") std::ptr::from_mut(self)) };
        assert_eq!(STRAY.load(Ordering::SeqCst), 0);
        Outcome {
            end: self.end,
            last: self.last,
            vectors: self.vectors.clone(),
            steps: self.steps.clone(),
            arrivals: self.arrivals.clone(),
            calls: self.calls,
        }
    }

    /// Loads the program's registers into a frame.
    fn begin(&mut self, frame: &mut Frame<'_>) {
        self.home_gregs.copy_from_slice(frame.gregs);
        let size = frame.vectors.len();
        self.home_vectors[..size].copy_from_slice(frame.vectors);
        for &(from, to) in &self.ranges {
            if to <= size {
                frame.vectors[from..to].copy_from_slice(&self.program.vectors[from..to]);
            }
        }
        super::vectors::mark_all_used(frame.vectors);
        let start = self.program.start;
        for (register, value) in GREGS.into_iter().zip(start.gprs) {
            frame.gregs[register as usize] = value as i64;
        }
        frame.gregs[libc::REG_RIP as usize] = start.address as i64;
        let trap = if self.program.stepped { TRAP_FLAG } else { 0 };
        frame.gregs[libc::REG_EFL as usize] = (start.flags & FLAGS) as i64 | 0x202 | trap;
        self.phase = Phase::Running;
        set_thread_pointer(THREAD);
        self.visit(frame);
        self.stop_stepping(frame);
    }

    /// Saves the program's registers and restores ours.
    fn finish(&mut self, frame: &mut Frame<'_>, end: End) {
        self.end = end;
        self.last = frame.step();
        let size = frame.vectors.len();
        self.vectors[..size].copy_from_slice(frame.vectors);
        frame.vectors.copy_from_slice(&self.home_vectors[..size]);
        frame.gregs.copy_from_slice(&self.home_gregs);
        self.phase = Phase::Idle;
        self.lift();
        set_thread_pointer(self.home_thread);
    }

    /// Sets a breakpoint after the recording; nothing before it is stepped.
    fn land(&mut self) {
        if let Some((_, writable)) = self.program.landing {
            let byte = writable as *mut u8;
            // SAFETY: a byte of the arena's writable mapping, which outlives runs.
            self.landing = Some(unsafe { byte.read() });
            // SAFETY: as above. This thread runs the code, and returns from the
            // handler, which serialises, before it does so.
            unsafe { byte.write_volatile(0xcc) };
        }
    }

    /// Removes the breakpoint.
    fn lift(&mut self) {
        if let (Some(old), Some((_, writable))) = (self.landing.take(), self.program.landing) {
            // SAFETY: as in `land`.
            unsafe { (writable as *mut u8).write_volatile(old) };
        }
    }

    /// Clears the trap flag while the run is on its way to the landing.
    fn stop_stepping(&self, frame: &mut Frame<'_>) {
        if self.landing.is_some() {
            frame.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
        }
    }

    /// Handles control reaching an address: records it, or ends the run.
    fn visit(&mut self, frame: &mut Frame<'_>) {
        if !self.program.stepped {
            return;
        }
        if self.raw == 0 {
            return self.finish(frame, End::Hung);
        }
        self.raw -= 1;
        let mut step = frame.step();
        let at = step.address;
        let p = &self.program;
        let in_any = |ranges: &[Extent]| ranges.iter().any(|range| range.contains(at));
        let patched = p.patched.contains(&at);
        let silent = in_any(&p.silent);
        let (original, between) = match p.copies.iter().find(|(copy, _)| *copy == at) {
            _ if patched => (Some(at), false),
            Some((_, original)) => (Some(*original), false),
            None => (in_any(&p.function).then_some(at), in_any(&p.generated)),
        };
        if between && at != p.site {
            return;
        }
        let Some(original) = original.or(between.then_some(at)) else {
            return self.leave(frame, at);
        };
        let again = p.repeats && self.steps.last().is_some_and(|last| last.address == at);
        if at == p.site && !again {
            if self.arrivals.len() == ARRIVALS {
                return self.finish(frame, End::Bound);
            }
            self.arrivals.push(Arrival {
                after: self.steps.len(),
                step,
            });
            self.land();
            if let Some((spared, noise)) = self.program.scribble {
                super::memory::scribble_below(step.gprs[4], spared, noise);
            }
        }
        if patched || silent || between {
            return;
        }
        step.address = original;
        if self.steps.len() == STEPS {
            return self.finish(frame, End::Bound);
        }
        self.steps.push(step);
    }

    /// Handles control at an address outside the function. If it was called, as
    /// the return address shows, it returns; otherwise the run ends.
    fn leave(&mut self, frame: &mut Frame<'_>, at: u64) {
        frame.gregs[libc::REG_RIP as usize] = at as i64;
        let stack = frame.gregs[libc::REG_RSP as usize] as u64;
        let back = super::memory::stack_word(stack)
            .filter(|back| self.calls < CALLS && self.program.returns.binary_search(back).is_ok());
        let Some(back) = back else {
            return self.finish(frame, End::Left(at));
        };
        let callee = self.program.callee[self.calls];
        self.calls += 1;
        for (index, register) in [0, 1, 2, 6, 7, 8, 9, 10, 11].into_iter().enumerate() {
            frame.gregs[GREGS[register] as usize] = callee[index] as i64;
        }
        let flags = &mut frame.gregs[libc::REG_EFL as usize];
        *flags = *flags & !(FLAGS as i64) | (callee[9] & FLAGS & !0x400) as i64;
        frame.gregs[libc::REG_RSP as usize] = stack.wrapping_add(8) as i64;
        frame.gregs[libc::REG_RIP as usize] = back as i64;
        self.visit(frame);
    }

    fn exception(&mut self, frame: &mut Frame<'_>) {
        let at = frame.gregs[libc::REG_RIP as usize] as u64;
        let trap = frame.gregs[libc::REG_TRAPNO as usize];
        let error = frame.gregs[libc::REG_ERR as usize];
        let address = frame.gregs[libc::REG_CR2 as usize];
        if self.program.stepped {
            frame.gregs[libc::REG_EFL as usize] |= TRAP_FLAG;
        }
        match trap {
            1 => self.visit(frame),
            3 => {
                let at = at.wrapping_sub(1);
                frame.gregs[libc::REG_RIP as usize] = at as i64;
                if self.landing.is_some() && self.program.landing.is_some_and(|l| l.0 == at) {
                    self.lift();
                    self.visit(frame);
                } else if let Some((_, to)) =
                    self.program.traps.iter().find(|(from, _)| *from == at)
                {
                    frame.gregs[libc::REG_RIP as usize] = *to as i64;
                    self.visit(frame);
                } else if self.program.function.iter().any(|f| f.contains(at)) {
                    self.finish(
                        frame,
                        End::Fault {
                            at,
                            trap,
                            error: 0,
                            address: 0,
                        },
                    );
                } else {
                    self.leave(frame, at);
                }
            }
            // A page fault caused by an instruction fetch.
            14 if error & 0x10 != 0 => self.leave(frame, at),
            14 => self.finish(
                frame,
                End::Fault {
                    at,
                    trap,
                    error,
                    address,
                },
            ),
            _ => self.finish(
                frame,
                End::Fault {
                    at,
                    trap,
                    error: 0,
                    address: 0,
                },
            ),
        }
        self.stop_stepping(frame);
    }
}

/// The registers in a signal frame.
struct Frame<'a> {
    gregs: &'a mut [i64; 23],
    vectors: &'a mut [u8],
}

impl Frame<'_> {
    fn step(&self) -> Step {
        Step {
            address: self.gregs[libc::REG_RIP as usize] as u64,
            gprs: std::array::from_fn(|i| self.gregs[GREGS[i] as usize] as u64),
            flags: self.gregs[libc::REG_EFL as usize] as u64 & FLAGS,
        }
    }
}

extern "C" fn on_signal(
    signal: libc::c_int,
    _: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    // SAFETY: stored by `take_over`, never freed; `run` waits in one instruction
    // while this handler works on it.
    let machine = unsafe { &mut *MACHINE.load(Ordering::SeqCst) };
    // SAFETY: the kernel passes a context that is ours until the handler returns.
    let context = unsafe { &mut (*context).uc_mcontext };
    let vectors = context.fpregs.cast::<u8>();
    // SAFETY: the state is 512 bytes long at least.
    let size = unsafe { super::vectors::size_of_state(vectors) }.min(FRAME);
    let mut frame = Frame {
        gregs: &mut context.gregs,
        // SAFETY: its length is the one that the kernel stored in the state itself.
        vectors: unsafe { std::slice::from_raw_parts_mut(vectors, size) },
    };
    match machine.phase {
        Phase::Starting => machine.begin(&mut frame),
        Phase::Running => machine.exception(&mut frame),
        Phase::Idle => {
            STRAY.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the default action ends this child when the fault comes
            // again.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// Base of the `fs` segment.
pub fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: on x86-64 the thread pointer's first word points to itself.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer) };
    pointer
}

fn set_thread_pointer(to: u64) {
    const ARCH_SET_FS: u64 = 0x1002;
    // SAFETY: arch_prctl(2); written without libc, which would store errno.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_arch_prctl => _,
            in("rdi") ARCH_SET_FS,
            in("rsi") to,
            out("rcx") _,
            out("r11") _,
        );
    }
}
