//! Preparation of a child process, so that it can run any code.

use super::machine::{THREAD, thread_pointer};
use super::memory::RSEQ;

const RSEQ_SIGNATURE: u32 = 0x5305_3053;
const RSEQ_SIZE: u32 = 32;
const RSEQ_UNREGISTER: i32 = 1;

fn rseq(address: u64, size: u32, flags: i32) -> bool {
    // SAFETY: rseq(2); the 32 bytes that are registered stay mapped.
    let result = unsafe { libc::syscall(libc::SYS_rseq, address, size, flags, RSEQ_SIGNATURE) };
    result == 0
}

fn own_rseq() -> u64 {
    THREAD.wrapping_add_signed(i64::from(RSEQ))
}

/// Registers `struct rseq` in the thread block of the code under test, instead of
/// in glibc's. Returns `false` if the kernel refuses.
pub fn move_rseq() -> bool {
    // SAFETY: looks up a symbol by a terminated name.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if !symbol.is_null() {
        // SAFETY: glibc defines it as ptrdiff_t.
        let offset = unsafe { *symbol.cast::<isize>() };
        let theirs = thread_pointer().wrapping_add_signed(offset as i64);
        // The size must equal the one given at registration.
        let _ = (1..=8).any(|n| rseq(theirs, n * RSEQ_SIZE, RSEQ_UNREGISTER));
    }
    let moved = rseq(own_rseq(), RSEQ_SIZE, 0);
    if !moved {
        // It then reads as "not registered", and every record takes the locked path.
        // SAFETY: a field of the structure, in the thread block that is mapped.
        unsafe { ((own_rseq() + 4) as *mut u32).write_volatile(u32::MAX) };
    }
    moved
}

/// Clears the descriptor pointer that the kernel reads when it preempts the thread.
pub fn forget_rseq() {
    // SAFETY: a field of the structure, in the thread block that is mapped.
    unsafe { ((own_rseq() + 8) as *mut u64).write_volatile(0) };
}

/// Makes system calls from addresses whose upper half is `high` fail: there should be
/// none, as functions with system calls are left out, but an indirect jump may
/// go astray.
pub fn forbid_system_calls(high: u64) {
    const INSTRUCTION_POINTER_HIGH: u32 = 12;
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        statement(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            0,
            0,
            INSTRUCTION_POINTER_HIGH,
        ),
        statement(libc::BPF_JMP | libc::BPF_JEQ, 0, 1, high as u32),
        statement(
            libc::BPF_RET,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        statement(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: prctl(2) without pointers.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0);
    // SAFETY: the program and its filter live until the call returns.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(done, 0, "no seccomp filter");
}

/// Pages mapped for stubs at prescribed addresses; unmapped on drop.
#[derive(Default)]
pub struct Stubs {
    pages: Vec<u64>,
}

const PAGE: u64 = 4096;

impl Stubs {
    /// Maps the pages around the stubs, fills them with `int3` and writes the
    /// stubs. Returns `None` if something else is mapped there.
    pub fn map(stubs: &[(u64, Vec<u8>)]) -> Option<Self> {
        let mut mapped = Self::default();
        for (address, bytes) in stubs {
            let end = address + bytes.len() as u64;
            for page in (address / PAGE * PAGE..end).step_by(PAGE as usize) {
                if !mapped.pages.contains(&page) {
                    mapped.map_page(page)?;
                }
            }
        }
        for (address, bytes) in stubs {
            // SAFETY: the pages around the stub have just been mapped.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), *address as *mut u8, bytes.len());
            }
        }
        for page in &mapped.pages {
            let executable = libc::PROT_READ | libc::PROT_EXEC;
            // SAFETY: a page of ours, which nothing refers to.
            let done = unsafe { libc::mprotect(*page as *mut _, PAGE as usize, executable) };
            assert_eq!(done, 0);
        }
        Some(mapped)
    }

    fn map_page(&mut self, page: u64) -> Option<()> {
        // SAFETY: a new anonymous mapping that replaces no other.
        let mapped = unsafe {
            libc::mmap(
                page as *mut _,
                PAGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if mapped as u64 != page {
            return None;
        }
        self.pages.push(page);
        // SAFETY: the whole of the new mapping.
        unsafe { std::ptr::write_bytes(page as *mut u8, 0xcc, PAGE as usize) };
        Some(())
    }
}

impl Drop for Stubs {
    fn drop(&mut self) {
        for page in &self.pages {
            // SAFETY: a page mapped by `map_page`; no run is active.
            unsafe { libc::munmap(*page as *mut _, PAGE as usize) };
        }
    }
}
