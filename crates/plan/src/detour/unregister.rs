//! The code that marks a new thread as one without restartable sequences.
//!
//! A thread has them from when its C library registers its `struct rseq` (rseq(2)). Before
//! that, `cpu_id` there should be negative, but it is 0 in a new stack, a number of old in
//! one that was used before, and in a child of `vfork` the parent's, whose structure it
//! uses (the kernel registers none for it). Such a number is taken for that of a CPU, and
//! the thread writes to that CPU's packet, on whatever CPU it runs, and without being
//! restarted. So this runs behind every system call that makes such threads, which returns
//! 0 to them:
//!
//! ```text
//!         test %rax, %rax
//!         jne  done
//!         movl $-1, %fs:cpu_id          RSEQ_CPU_ID_UNINITIALIZED
//!  done
//! ```
//!
//! It is the truth about the thread, and what the C library writes itself before it
//! registers. The kernel writes the number of the CPU when the library has done so, and
//! when the parent of a `vfork` child goes on after it was suspended.

use super::assemble::{Labels, RSEQ_CPU_ID, bind, mark};
use super::frame::fs;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction};

/// `RSEQ_CPU_ID_UNINITIALIZED` (linux/rseq.h).
const UNINITIALIZED: i32 = -1;

/// The mark, if there is something to mark.
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
    Ok(Labels {
        begin,
        done,
        value: (begin, 0),
        sequence: None,
        locked: None,
        more: Vec::new(),
    })
}
