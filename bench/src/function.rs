//! The empty function, its copies, and the loop that calls one of them.
//!
//! Every copy is, byte for byte, what GCC 12 emits at `-O0` for
//! `void f(long a, long b) {}`:
//!
//! ```text
//!  0  55           push %rbp
//!  1  48 89 e5     mov  %rsp,%rbp
//!  4  48 89 7d f8  mov  %rdi,-0x8(%rbp)
//!  8  48 89 75 f0  mov  %rsi,-0x10(%rbp)
//!  c  90           nop
//!  d  5d           pop  %rbp
//!  e  c3           ret
//! ```
//!
//! A five-byte jump at its start displaces the first three instructions and leads
//! back to byte 8. The arguments are written below the stack pointer, into the red
//! zone, as compilers do in leaf functions.
//! Copies start at multiples of 64 bytes, so that each has its own cache lines and the same
//! alignment for fetch and branch prediction.

use core::arch::global_asm;

/// Declares the copies: the enum, their code, and the table of both.
macro_rules! copies {
    ($($(#[$doc:meta])* $variant:ident = $symbol:ident,)*) => {
        /// A copy of the empty function. Rows call different copies, so that one row's calls do not
        /// hit another row's probe.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Function { $($(#[$doc])* $variant,)* }

        impl Function {
            /// Every copy that can be probed or called.
            pub const ALL: &'static [Function] = &[$(Function::$variant),*];

            /// The symbol's name in the bench target.
            pub const fn symbol(self) -> &'static str {
                match self { $(Function::$variant => stringify!($symbol),)* }
            }

            /// Pointer to the copy.
            pub(crate) fn pointer(self) -> extern "C" fn(u64, u64) {
                unsafe extern "C" { $(safe fn $symbol(a: u64, b: u64);)* }
                match self { $(Function::$variant => $symbol,)* }
            }

            /// The address in this process.
            pub fn address(self) -> u64 {
                self.pointer() as usize as u64
            }
        }
    };
}

copies! {
    /// Never probed: the bare call.
    Bare = capriole_bench_hit,
    /// Begins with a jump to the hand-written count, see [`crate::floor`].
    FloorCount = capriole_bench_floor_count,
    /// Begins with a jump to nothing but `rdtsc`.
    FloorRdtsc = capriole_bench_floor_rdtsc,
    /// Begins with a jump to the hand-written record.
    FloorRecord = capriole_bench_floor_record,
    /// For the kernel's uprobe; alone on its page.
    Uprobe = capriole_bench_uprobe,
    /// For the kernel's uretprobe; alone on its page.
    Uretprobe = capriole_bench_uretprobe,
    /// For the kernel's uprobe on a five-byte nop, with which this copy begins; alone on its page.
    UprobeNop5 = capriole_bench_uprobe_nop5,
    /// For `kernel.uprobe_4args`; alone on its page.
    Uprobe4Args = capriole_bench_uprobe_4args,
    /// For `kernel.uprobe_bpf`; alone on its page.
    UprobeBpf = capriole_bench_uprobe_bpf,
    /// For `kernel.uretprobe_bpf`; alone on its page.
    UretprobeBpf = capriole_bench_uretprobe_bpf,
    /// Called before each write to `trace_marker`.
    Marker = capriole_bench_marker,
    /// For `capriole.record2`: time, event, thread and two arguments.
    Record2 = capriole_bench_record2,
    /// For `capriole.record0`: no arguments.
    Record0 = capriole_bench_record0,
    /// For `capriole.record6`: six arguments.
    Record6 = capriole_bench_record6,
    /// For `capriole.string`: a string in memory.
    Text = capriole_bench_string,
    /// For `capriole.reject`: a filter that rejects every call.
    Reject = capriole_bench_reject,
    /// For `capriole.int3`: the record of `capriole.record2`, reached by a breakpoint.
    Int3 = capriole_bench_int3,
    /// For a probe that counts.
    Count = capriole_bench_count,
    /// For `capriole.count_by_key`: 256 keys.
    ByKey = capriole_bench_by_key,
    /// For `capriole.sum`.
    Sum = capriole_bench_sum,
    /// For `capriole.hist`.
    Hist = capriole_bench_hist,
    /// For `capriole.hist_by_key`: 256 keys.
    HistByKey = capriole_bench_hist_by_key,
    /// For `capriole.entry_exit`.
    EntryExit = capriole_bench_entry_exit,
    /// For `capriole.return.stack`.
    ReturnStack = capriole_bench_return_stack,
    /// For `capriole.latency`.
    Latency = capriole_bench_latency,
    /// For a return probe.
    Return = capriole_bench_return,
    /// For anything else.
    Spare = capriole_bench_spare,
}

/// String that `capriole.string` records, including its NUL.
pub static TEXT: [u8; 22] = *b"/var/lib/service/0042\0";

impl Function {
    /// Returns the copy with this symbol name.
    pub fn from_symbol(symbol: &str) -> Option<Function> {
        Self::ALL.iter().copied().find(|f| f.symbol() == symbol)
    }
}

/// Emits the code of one unmodified copy.
macro_rules! plain_copy {
    ($symbol:literal, $align:literal) => {
        plain_copy!($symbol, $align, "");
    };
    ($symbol:literal, $align:literal, $first:literal) => {
        global_asm!(
            r#".pushsection .text.capriole_bench,"ax",@progbits"#,
            concat!(".p2align ", $align),
            concat!(".globl ", $symbol),
            concat!(".type ", $symbol, ",@function"),
            concat!($symbol, ":"),
            ".cfi_startproc",
            $first,
            "push %rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset %rbp, -16",
            "mov %rsp, %rbp",
            ".cfi_def_cfa_register %rbp",
            "mov %rdi, -0x8(%rbp)",
            "mov %rsi, -0x10(%rbp)",
            "nop",
            "pop %rbp",
            ".cfi_def_cfa %rsp, 8",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $symbol, ", . - ", $symbol),
            concat!(".p2align ", $align),
            ".popsection",
            options(att_syntax),
        );
    };
}

plain_copy!("capriole_bench_hit", 6);
plain_copy!("capriole_bench_marker", 6);
plain_copy!("capriole_bench_record2", 6);
plain_copy!("capriole_bench_record0", 6);
plain_copy!("capriole_bench_record6", 6);
plain_copy!("capriole_bench_string", 6);
plain_copy!("capriole_bench_reject", 6);
plain_copy!("capriole_bench_int3", 6);
plain_copy!("capriole_bench_count", 6);
plain_copy!("capriole_bench_by_key", 6);
plain_copy!("capriole_bench_sum", 6);
plain_copy!("capriole_bench_hist", 6);
plain_copy!("capriole_bench_hist_by_key", 6);
plain_copy!("capriole_bench_entry_exit", 6);
plain_copy!("capriole_bench_return_stack", 6);
plain_copy!("capriole_bench_latency", 6);
plain_copy!("capriole_bench_return", 6);
plain_copy!("capriole_bench_spare", 6);
// The kernel puts its breakpoint into a private copy of the page, and drops that copy again. With a
// page of their own, these functions do not affect other rows.
plain_copy!("capriole_bench_uprobe", 12);
plain_copy!("capriole_bench_uretprobe", 12);
plain_copy!("capriole_bench_uprobe_4args", 12);
plain_copy!("capriole_bench_uprobe_bpf", 12);
plain_copy!("capriole_bench_uretprobe_bpf", 12);
plain_copy!(
    "capriole_bench_uprobe_nop5",
    12,
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"
);

// The loop is assembly too, so that the calls are the same whatever the compiler
// does: f(0, n), f(1, n - 1), ... f(n - 1, 1).
global_asm!(
    r#".pushsection .text.capriole_bench,"ax",@progbits"#,
    ".p2align 6",
    ".globl capriole_bench_loop",
    ".type capriole_bench_loop,@function",
    "capriole_bench_loop:",
    ".cfi_startproc",
    "push %rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset %rbx, 0",
    "push %r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset %r12, 0",
    "push %r13",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset %r13, 0",
    "mov %rdi, %r12",
    "mov %rsi, %rbx",
    "xor %r13d, %r13d",
    "test %rbx, %rbx",
    "jz 2f",
    ".p2align 5",
    "1:",
    "mov %r13, %rdi",
    "mov %rbx, %rsi",
    "call *%r12",
    "inc %r13",
    "dec %rbx",
    "jnz 1b",
    "2:",
    "pop %r13",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore %r13",
    "pop %r12",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore %r12",
    "pop %rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore %rbx",
    "ret",
    ".cfi_endproc",
    ".size capriole_bench_loop, . - capriole_bench_loop",
    ".popsection",
    options(att_syntax),
);

/// Calls the copy `calls` times; the first argument counts up from 0, the second
/// one down from `calls`, so that their sum is `calls` in every call.
pub fn call(function: Function, calls: u64) {
    unsafe extern "C" {
        fn capriole_bench_loop(function: u64, calls: u64);
    }
    // SAFETY: the address belongs to one of the functions above (or of the three in `floor` that
    // begin with a jump), which all take two integers and return none.
    unsafe { capriole_bench_loop(function.address(), calls) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GCC 12's code at -O0.
    const GCC_O0: [u8; 15] = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x7d, 0xf8, 0x48, 0x89, 0x75, 0xf0, 0x90, 0x5d, 0xc3,
    ];

    fn bytes(function: Function) -> [u8; 15] {
        bytes_at(function.address())
    }

    fn bytes_at(address: u64) -> [u8; 15] {
        // SAFETY: every copy is at least 15 bytes long, padding follows, text is readable.
        unsafe { (address as *const [u8; 15]).read_unaligned() }
    }

    #[test]
    fn untouched_copies_are_the_compilers_bytes() {
        for &function in Function::ALL {
            let floor = function.symbol().contains("_floor_");
            if function == Function::UprobeNop5 {
                assert_eq!(bytes(function)[..5], [0x0f, 0x1f, 0x44, 0, 0]);
                assert_eq!(bytes_at(function.address() + 5), GCC_O0);
                continue;
            }
            assert_eq!(bytes(function) == GCC_O0, !floor, "{function:?}");
            if floor {
                assert_eq!(
                    bytes(function)[0],
                    0xe9,
                    "{function:?} must begin with a jump"
                );
                assert_eq!(bytes(function)[8..], GCC_O0[8..], "{function:?}");
            }
            assert_eq!(function.address() % 64, 0, "{function:?}");
        }
    }

    #[test]
    fn names_are_unique_and_found() {
        for &function in Function::ALL {
            assert_eq!(Function::from_symbol(function.symbol()), Some(function));
        }
        assert_eq!(Function::from_symbol("capriole_bench_nothing"), None);
    }
}
