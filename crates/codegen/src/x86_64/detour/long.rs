//! The code that has calls recorded only if they took long enough.
//!
//! ```text
//!         time since the entry          as for a latency; not known: done
//!         cmp  $least, time             or too long for straight code: below
//!         jb   done
//!         put the registers back, have the resident run the program, save them again
//!  done
//! ```
//!
//! Most calls are short; they are handled entirely by straight code. The program finds the slot
//! by itself and checks again, with the time of its record.
//!
//! The slots are private memory behind the shared part of session memory (which is mapped as a
//! whole, then that part is replaced): workers that a server forks run the same code at the
//! same stack positions, and would otherwise find each other's slots. The resident counts the
//! duration up to the very time of the record.

use super::emit::{Labels, Patch, bind, mark};
use super::frame::Frame;
use super::run::Apart;
use super::timing;
use crate::runtime::Runtime;
use crate::work::Long;
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, Register};

/// Emits the hot path.
pub(super) fn hot(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    work: &Long,
    before: Apart,
) -> Result<Labels, IcedError> {
    let begin = mark(a)?;
    let mut done = before.done;
    let mut more: Vec<(CodeLabel, Patch)> = Vec::new();
    let clock = timing::clock(a, frame, runtime, work.call, done, &mut more)?;
    timing::since(a, clock, before.out)?;
    let least = Instruction::with2(Code::Mov_r64_imm64, frame.key, work.least)?;
    a.add_instruction(least)?;
    a.add_instruction(Instruction::with2(
        Code::Cmp_r64_rm64,
        Register::RAX,
        frame.key,
    )?)?;
    a.jae(before.out)?;
    bind(a, &mut done)?;
    Ok(Labels {
        locked: before.called,
        more,
        ..Labels::new(begin, done, (before.event, 4))
    })
}
