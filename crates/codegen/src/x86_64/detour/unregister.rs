//! The code that marks a new thread as having no restartable sequences.
//!
//! A thread has them once its C library has registered its `struct rseq` (rseq(2)). Before
//! that, `cpu_id` there should be negative. But it is 0 on a new stack and a stale number on a
//! reused one; in a child of `vfork` it is the parent's, whose structure the child uses (the
//! kernel registers none for it). Such a number would be taken for a CPU's, and the thread
//! would write to that CPU's packet, on whatever CPU it runs, and without being restarted. So
//! this code runs after every system call that creates such threads, which returns 0 to them:
//!
//! ```text
//!         test %rax, %rax
//!         jne  done
//!         movl $-1, %fs:cpu_id          RSEQ_CPU_ID_UNINITIALIZED
//!  done
//! ```
//!
//! The value is correct for the thread, and the C library itself writes it before it registers.
//! The kernel writes the CPU's number once the library has registered, and when the parent of a
//! `vfork` child continues after its suspension.

use super::emit::{Labels, RSEQ_CPU_ID, bind, fs, mark};
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction};

/// `RSEQ_CPU_ID_UNINITIALIZED` (linux/rseq.h).
const UNINITIALIZED: i32 = -1;

/// Marks the thread, if restartable sequences are used.
pub(super) fn hot(a: &mut CodeAssembler, rseq: Option<i32>) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    if let Some(rseq) = rseq {
        let mut done = a.create_label();
        a.test(rax, rax)?;
        a.jne(done)?;
        let cpu = fs(rseq + RSEQ_CPU_ID);
        a.add_instruction(Instruction::with2(
            Code::Mov_rm32_imm32,
            cpu,
            UNINITIALIZED,
        )?)?;
        bind(a, &mut done)?;
    }
    let done = mark(a)?;
    Ok(Labels::new(begin, done, (begin, 0)))
}
