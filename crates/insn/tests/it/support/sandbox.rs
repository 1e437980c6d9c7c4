//! Runs machine code on chosen registers, flags and memory, and returns the state
//! that it left behind. Everything happens in a forked child: a crash is a failed test.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use iced_x86::code_asm::*;

/// Address of the code under test.
pub const ORIGINAL: u64 = 0x2000_0000;
/// Address of its copy.
pub const COPY: u64 = 0x2400_0000;
/// Memory that the code may use.
pub const DATA: u64 = 0x2800_0000;
/// The bytes of `DATA` that are compared.
pub const DATA_SIZE: usize = 4096;
const STACK: u64 = 0x2c00_0000;
const STACK_SIZE: usize = 4096;
/// The stack pointer at the start.
pub const STACK_POINTER: u64 = STACK + STACK_SIZE as u64 / 2;
const CONTEXT: u64 = 0x3000_0000;
const STUB: u64 = 0x3400_0000;
/// Jump here to end a run.
pub const EXIT: u64 = STUB + 0x800;

/// The flags that may be set at the start of a run: OF SF ZF AF PF CF.
pub const ARITHMETIC_FLAGS: u64 = 0x8d5;

const IN: u64 = CONTEXT;
const IN_FLAGS: u64 = CONTEXT + 0x80;
const ENTRY: u64 = CONTEXT + 0x88;
const HOST: u64 = CONTEXT + 0x90;
const OUT: u64 = CONTEXT + 0x100;
const OUT_FLAGS: u64 = CONTEXT + 0x180;

/// Registers by number, and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub gprs: [u64; 16],
    pub flags: u64,
}

/// Everything that a run can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub state: State,
    pub data: Vec<u8>,
    pub stack: Vec<u8>,
}

/// The memory that code runs in. Exists in a child process only.
pub struct Sandbox(());

impl Sandbox {
    fn new() -> Self {
        for (address, size) in [
            (ORIGINAL, 0x10000),
            (COPY, 0x10000),
            (DATA, DATA_SIZE),
            (STACK, 4096),
            (CONTEXT, 4096),
            (STUB, 4096),
        ] {
            // SAFETY: a new anonymous mapping that replaces no other.
            let mapped = unsafe {
                libc::mmap(
                    address as *mut _,
                    size,
                    libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            assert_eq!(mapped as u64, address, "cannot map {address:#x}");
        }
        let mut sandbox = Self(());
        sandbox.write(STUB, &enter_stub());
        sandbox.write(EXIT, &exit_stub());
        sandbox
    }

    /// Writes bytes into one of the areas.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        // SAFETY: `new` mapped the areas; the tests write well within 64 KiB.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
    }

    fn read(&self, address: u64, len: usize) -> Vec<u8> {
        // SAFETY: only called for areas that `new` mapped.
        unsafe { std::slice::from_raw_parts(address as *const u8, len) }.to_vec()
    }

    /// Runs the code at `entry` with `input`, memory filled from `seed`, until
    /// it jumps or returns to [`EXIT`]. The stack pointer of `input` is ignored.
    pub fn run(&mut self, entry: u64, input: &State, seed: u64) -> Outcome {
        let mut random = super::random::Random::new(seed);
        let mut fill = |size: usize| -> Vec<u8> {
            (0..size / 8)
                .flat_map(|_| random.number().to_le_bytes())
                .collect()
        };
        let data = fill(DATA_SIZE);
        let mut stack = fill(STACK_SIZE);
        let top = (STACK_POINTER - STACK) as usize;
        stack[top..top + 8].copy_from_slice(&EXIT.to_le_bytes());
        self.write(DATA, &data);
        self.write(STACK, &stack);
        let mut gprs = input.gprs;
        gprs[4] = STACK_POINTER;
        let words: Vec<u8> = gprs
            .iter()
            .chain([&(input.flags & ARITHMETIC_FLAGS | 2), &entry])
            .flat_map(|word| word.to_le_bytes())
            .collect();
        self.write(IN, &words);
        // SAFETY: the stub follows the C calling convention; the code it jumps
        // to stays within the areas, or the child dies, which is reported.
        unsafe {
            let enter: extern "C" fn() = std::mem::transmute(STUB as *const ());
            enter();
        }
        let out = self.read(OUT, 17 * 8);
        let word = |i: usize| u64::from_le_bytes(out[8 * i..8 * i + 8].try_into().unwrap());
        Outcome {
            state: State {
                gprs: std::array::from_fn(word),
                flags: word(16) & ARITHMETIC_FLAGS,
            },
            data: self.read(DATA, DATA_SIZE),
            stack: self.read(STACK, 4096),
        }
    }
}

const REGISTERS: [AsmRegister64; 16] = [
    rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
];
const PRESERVED: [AsmRegister64; 6] = [rbx, rbp, r12, r13, r14, r15];

fn enter_stub() -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    for register in PRESERVED {
        a.push(register).unwrap();
    }
    a.mov(qword_ptr(HOST), rsp).unwrap();
    a.push(qword_ptr(IN_FLAGS)).unwrap();
    a.popfq().unwrap();
    for (i, register) in REGISTERS.into_iter().enumerate() {
        a.mov(register, qword_ptr(IN + 8 * i as u64)).unwrap();
    }
    a.jmp(qword_ptr(ENTRY)).unwrap();
    a.assemble(STUB).unwrap()
}

fn exit_stub() -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    for (i, register) in REGISTERS.into_iter().enumerate() {
        a.mov(qword_ptr(OUT + 8 * i as u64), register).unwrap();
    }
    a.mov(rsp, qword_ptr(HOST)).unwrap();
    a.pushfq().unwrap();
    a.pop(qword_ptr(OUT_FLAGS)).unwrap();
    for register in PRESERVED.into_iter().rev() {
        a.pop(register).unwrap();
    }
    a.ret().unwrap();
    a.assemble(EXIT).unwrap()
}

/// A forked child inherits the locks that other threads hold (allocator, loader, panic
/// output), so tests that fork must not run beside another one.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Ends this process if a run hangs: with SIGPROF after 300 s of processor time, which other load on
/// the machine does not use up, or with SIGALRM if it waits for something that never comes.
fn limit_time() {
    let zero = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let limit = libc::itimerval {
        it_interval: zero,
        it_value: libc::timeval {
            tv_sec: 300,
            ..zero
        },
    };
    // SAFETY: sets a timer of this process.
    unsafe { libc::alarm(1200) };
    // SAFETY: sets a timer of this process from a value that is valid during the call.
    let set = unsafe { libc::setitimer(libc::ITIMER_PROF, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "cannot set a timer");
}

/// Runs `cases` in one child process and fails with the child's message, or
/// with `describe` of the case in which it died.
pub fn in_child<T>(
    cases: &[T],
    mut each: impl FnMut(&mut Sandbox, &T) -> Result<(), String>,
    describe: impl Fn(&T) -> String,
) {
    let guard = alone();
    // SAFETY: a new shared anonymous page.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the page is mapped, zeroed, and never unmapped.
    let current = unsafe { &*page.cast::<AtomicUsize>() };
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child runs only the code below and then exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork");
    if child == 0 {
        limit_time();
        // The child must not exit normally after a panic.
        let run = std::panic::AssertUnwindSafe(|| {
            let mut sandbox = Sandbox::new();
            cases.iter().enumerate().find_map(|(index, case)| {
                current.store(index, Ordering::Relaxed);
                each(&mut sandbox, case).err()
            })
        });
        let failed = std::panic::catch_unwind(run).unwrap_or_else(|_| Some("panicked".into()));
        let status = i32::from(failed.is_some());
        if let Some(message) = failed {
            let _ = writer.write_all(message.as_bytes());
        }
        // SAFETY: ends the child without running the parent's exit code.
        unsafe { libc::_exit(status) };
    }
    drop(writer);
    let mut message = String::new();
    reader.read_to_string(&mut message).unwrap();
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    drop(guard);
    let index = current.load(Ordering::Relaxed);
    let case = &cases[index];
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let case = describe(case);
        panic!("died of signal {signal} in case {index}:\n{case}");
    }
    assert_eq!(status, 0, "case {index}: {message}\n{}", describe(case));
}
