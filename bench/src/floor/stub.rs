//! Machine code of the floor, and the fields in it that are filled in at run time.

use core::arch::global_asm;
use core::ffi::c_void;

use rustix::mm::{MprotectFlags, mprotect};

use super::{COUNTER, EVENT_ID, FloorError};

/// Signature required before an abort handler (as in glibc and the kernel's self tests on x86).
const RSEQ_SIGNATURE: u32 = 0x5305_3053;

// The floor's functions. The three bytes after the jump are the rest of the displaced instructions;
// they are never executed.
macro_rules! jumping_copy {
    ($symbol:literal) => {
        global_asm!(
            r#".pushsection .text.capriole_bench,"ax",@progbits"#,
            ".p2align 6",
            concat!(".globl ", $symbol),
            concat!(".type ", $symbol, ",@function"),
            concat!(".globl ", $symbol, "_stub"),
            concat!(".hidden ", $symbol, "_stub"),
            concat!(".globl ", $symbol, "_resume"),
            concat!(".hidden ", $symbol, "_resume"),
            concat!($symbol, ":"),
            ".byte 0xe9",
            concat!(".long ", $symbol, "_stub - . - 4"),
            ".byte 0x7d, 0xf8, 0xcc",
            concat!($symbol, "_resume:"),
            "mov %rsi, -0x10(%rbp)",
            "nop",
            "pop %rbp",
            "ret",
            concat!(".size ", $symbol, ", . - ", $symbol),
            ".popsection",
            options(att_syntax),
        );
    };
}

jumping_copy!("capriole_bench_floor_count");
jumping_copy!("capriole_bench_floor_rdtsc");
jumping_copy!("capriole_bench_floor_record");

global_asm!(
    r#".pushsection .text.capriole_bench_stubs,"ax",@progbits"#,
    ".p2align 6",
    ".globl capriole_bench_floor_count_stub; .hidden capriole_bench_floor_count_stub",
    "capriole_bench_floor_count_stub:",
    "incq {counter}(%rip)",
    "push %rbp",
    "mov %rsp, %rbp",
    "mov %rdi, -0x8(%rbp)",
    "jmp capriole_bench_floor_count_resume",
    "",
    ".p2align 6",
    ".globl capriole_bench_floor_rdtsc_stub; .hidden capriole_bench_floor_rdtsc_stub",
    "capriole_bench_floor_rdtsc_stub:",
    "rdtsc",
    "push %rbp",
    "mov %rsp, %rbp",
    "mov %rdi, -0x8(%rbp)",
    "jmp capriole_bench_floor_rdtsc_resume",
    ".popsection",
    counter = sym COUNTER,
    options(att_syntax),
);

// 0x7f..... are placeholders that `install` replaces; each is named by the label
// after its instruction. The page is the stub's own, so that nothing else is
// executed from it while it is writable.
// The whole range from `range` to `committed` is one restartable sequence: a thread that is
// preempted, migrated or signalled in it restarts at the stub. The cold part is inside, too: it
// updates position and wraps with one store, and falls through into the stub again.
global_asm!(
    r#".pushsection .text.capriole_bench_record,"ax",@progbits"#,
    // Global, because the compiler may put the code that names them into another object.
    ".globl capriole_bench_record_page; .hidden capriole_bench_record_page",
    ".globl capriole_bench_record_range; .hidden capriole_bench_record_range",
    ".globl capriole_bench_record_at_wraps; .hidden capriole_bench_record_at_wraps",
    ".globl capriole_bench_record_at_base; .hidden capriole_bench_record_at_base",
    ".globl capriole_bench_record_at_reset; .hidden capriole_bench_record_at_reset",
    ".globl capriole_bench_record_at_arm; .hidden capriole_bench_record_at_arm",
    ".globl capriole_bench_record_at_cpu; .hidden capriole_bench_record_at_cpu",
    ".globl capriole_bench_record_at_position; .hidden capriole_bench_record_at_position",
    ".globl capriole_bench_record_at_end; .hidden capriole_bench_record_at_end",
    ".globl capriole_bench_record_at_tid; .hidden capriole_bench_record_at_tid",
    ".globl capriole_bench_record_committed; .hidden capriole_bench_record_committed",
    ".globl capriole_bench_record_abort; .hidden capriole_bench_record_abort",
    ".globl capriole_bench_record_page_end; .hidden capriole_bench_record_page_end",
    ".p2align 12",
    "capriole_bench_record_page:",
    ".skip 4, 0xcc",
    "capriole_bench_record_range:",
    "mov 0x7f000008(%r10), %rax", // wraps
    "capriole_bench_record_at_wraps:",
    "inc %rax",
    "mov 0x7f000018(%r10), %rdx", // base
    "capriole_bench_record_at_base:",
    "movq %rax, %xmm15",
    "movq %rdx, %xmm14",
    "punpcklqdq %xmm15, %xmm14",
    "movdqa %xmm14, 0x7f000000(%r10)", // position and wraps
    "capriole_bench_record_at_reset:",
    "",
    ".p2align 6",
    ".globl capriole_bench_floor_record_stub; .hidden capriole_bench_floor_record_stub",
    "capriole_bench_floor_record_stub:",
    "movq $0x7f000040, %fs:0x7f000048", // descriptor to the rseq area
    "capriole_bench_record_at_arm:",
    "mov %fs:0x7f000044, %r10d", // this CPU
    "capriole_bench_record_at_cpu:",
    "shl $6, %r10d",
    "mov 0x7f000000(%r10), %r11", // position
    "capriole_bench_record_at_position:",
    "cmp 0x7f000010(%r10), %r11", // end
    "capriole_bench_record_at_end:",
    "jae capriole_bench_record_range",
    "rdtsc",
    "mov %eax, (%r11)",
    "mov %edx, 4(%r11)",
    "mov %fs:0x7f000050, %edx", // thread id
    "capriole_bench_record_at_tid:",
    "movl ${id}, 8(%r11)",
    "mov %edx, 12(%r11)",
    "mov %rdi, 16(%r11)",
    "mov %rsi, 24(%r11)",
    "addq $32, 0x7f000000(%r10)", // commit
    "capriole_bench_record_committed:",
    "push %rbp",
    "mov %rsp, %rbp",
    "mov %rdi, -0x8(%rbp)",
    "jmp capriole_bench_floor_record_resume",
    ".byte 0x0f, 0xb9, 0x3d", // ud1, so that the signature reads as an instruction
    ".long {signature}",
    "capriole_bench_record_abort:",
    "jmp capriole_bench_floor_record_stub",
    ".p2align 12",
    "capriole_bench_record_page_end:",
    "",
    // Location of the C library's rseq area; null symbols if it has none.
    ".weak __rseq_offset",
    ".weak __rseq_size",
    ".globl capriole_bench_rseq_offset",
    "capriole_bench_rseq_offset:",
    "mov __rseq_offset@GOTPCREL(%rip), %rax",
    "ret",
    ".globl capriole_bench_rseq_size",
    "capriole_bench_rseq_size:",
    "mov __rseq_size@GOTPCREL(%rip), %rax",
    "ret",
    ".popsection",
    id = const EVENT_ID,
    signature = const RSEQ_SIGNATURE,
    options(att_syntax),
);

unsafe extern "C" {
    static capriole_bench_record_page: u8;
    static capriole_bench_record_page_end: u8;
    static capriole_bench_record_range: u8;
    static capriole_bench_record_committed: u8;
    static capriole_bench_record_abort: u8;
    static capriole_bench_record_at_wraps: u8;
    static capriole_bench_record_at_base: u8;
    static capriole_bench_record_at_reset: u8;
    static capriole_bench_record_at_arm: u8;
    static capriole_bench_record_at_cpu: u8;
    static capriole_bench_record_at_position: u8;
    static capriole_bench_record_at_end: u8;
    static capriole_bench_record_at_tid: u8;
    safe fn capriole_bench_rseq_offset() -> *const isize;
    safe fn capriole_bench_rseq_size() -> *const u32;
}

/// The kernel's `struct rseq_cs`.
#[repr(C, align(32))]
pub(super) struct RseqCs {
    version: u32,
    flags: u32,
    start_ip: u64,
    post_commit_offset: u64,
    abort_ip: u64,
}

impl RseqCs {
    /// Returns the descriptor of the record stub.
    pub(super) fn of_the_stub() -> RseqCs {
        let start = (&raw const capriole_bench_record_range).addr();
        let committed = (&raw const capriole_bench_record_committed).addr();
        RseqCs {
            version: 0,
            flags: 0,
            start_ip: start as u64,
            post_commit_offset: (committed - start) as u64,
            abort_ip: (&raw const capriole_bench_record_abort).addr() as u64,
        }
    }
}

/// Writes the values known only at run time into the stub's instructions.
pub(super) fn patch(descriptor: u32, per_cpu: u32, rseq: u32, tid: u32) -> Result<(), FloorError> {
    let page = (&raw const capriole_bench_record_page).cast_mut();
    let length = (&raw const capriole_bench_record_page_end).addr() - page.addr();
    protect(page, length, MprotectFlags::READ | MprotectFlags::WRITE)?;
    // (end of the instruction, how far before it the field starts, placeholder, value)
    let fields = [
        (
            &raw const capriole_bench_record_at_wraps,
            4,
            0x7f00_0008,
            per_cpu + 8,
        ),
        (
            &raw const capriole_bench_record_at_base,
            4,
            0x7f00_0018,
            per_cpu + 24,
        ),
        (
            &raw const capriole_bench_record_at_reset,
            4,
            0x7f00_0000,
            per_cpu,
        ),
        (
            &raw const capriole_bench_record_at_arm,
            4,
            0x7f00_0040,
            descriptor,
        ),
        (
            &raw const capriole_bench_record_at_arm,
            8,
            0x7f00_0048,
            rseq.wrapping_add(8),
        ),
        (
            &raw const capriole_bench_record_at_cpu,
            4,
            0x7f00_0044,
            rseq.wrapping_add(4),
        ),
        (
            &raw const capriole_bench_record_at_position,
            4,
            0x7f00_0000,
            per_cpu,
        ),
        (
            &raw const capriole_bench_record_at_end,
            4,
            0x7f00_0010,
            per_cpu + 16,
        ),
        (&raw const capriole_bench_record_at_tid, 4, 0x7f00_0050, tid),
        (
            &raw const capriole_bench_record_committed,
            5,
            0x7f00_0000,
            per_cpu,
        ),
    ];
    for (after, back, placeholder, value) in fields {
        let field = after.cast_mut().wrapping_sub(back).cast::<u32>();
        // SAFETY: the field lies in the stub's page, which is readable.
        let found = unsafe { field.read_unaligned() };
        assert_eq!(
            found, placeholder,
            "the assembler encoded the stub in another way"
        );
        // SAFETY: the field lies in the stub's page, which was just made writable.
        unsafe { field.write_unaligned(value) };
    }
    protect(page, length, MprotectFlags::READ | MprotectFlags::EXEC)
}

fn protect(page: *mut u8, length: usize, flags: MprotectFlags) -> Result<(), FloorError> {
    let what = "make the page of the floor's stub writable";
    // SAFETY: the range is the stub's own pages; nothing else is in them, and the stub is not
    // called before `install` has returned.
    unsafe { mprotect(page.cast::<c_void>(), length, flags) }
        .map_err(|error| FloorError::Sys { what, error })
}

/// Offset of this process' rseq areas from the thread pointer, as two's complement.
pub(super) fn rseq_offset() -> Option<u32> {
    let offset = capriole_bench_rseq_offset();
    let size = capriole_bench_rseq_size();
    // SAFETY: a symbol of the C library, or null if it has none.
    let size = unsafe { size.as_ref() }?;
    // SAFETY: as above.
    let offset = unsafe { offset.as_ref() }?;
    if *size == 0 {
        return None;
    }
    i32::try_from(*offset).ok().map(|offset| offset as u32)
}
