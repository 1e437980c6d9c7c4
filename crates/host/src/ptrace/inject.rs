//! System calls made by a thread of the target, on our behalf.
//!
//! The danger is our own death: if the tracer is killed while a thread's registers are changed
//! for a system call, the thread runs with those registers. So before its registers change, a
//! signal frame with its whole state is written below its stack, and the call is made from a
//! `syscall; ret` found somewhere in the target, with the stack pointer at the frame. If the
//! tracer dies, the thread makes the call, returns into `rt_sigreturn`, and is where it was.
//!
//! ```text
//!        rsp ──▶  words popped behind the syscall
//!                 address of a restorer (mov $15,%rax; syscall)
//!                 struct ucontext: all general registers, signal mask
//!                 XSAVE area (64-byte aligned): vector and x87 state
//!      rsp-128 ▶  red zone, untouched
//!       stack ──▶ (the thread's own)
//! ```
//!
//! While the tracer lives that does not happen: the tracer stops the thread behind the call and
//! restores its registers. Until session memory exists the frame lies on the thread's stack,
//! afterwards in the session's scratch pages.

use crate::error::TargetError;
use crate::host::{CallTable, Calls, FramePlace, StoppedThread, TargetMemory, is_permitted};
use crate::ptrace::requests;
use crate::ptrace::requests::Event;
use crate::ptrace::threads::{SPIN, thread_state};
use crate::steps::step;
use crate::x86_64::frame::{frame_size, signal_frame};
use crate::x86_64::gadgets::Gadgets;
use crate::x86_64::registers::{self, Registers};
use rustix::io::Errno;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// Time between two looks afterwards.
const LOOK: Duration = Duration::from_micros(20);
/// Time for which a thread may sleep before it reaches a call.
const HELD_UP: Duration = Duration::from_secs(2);

/// Finds out whether a thread that should run sleeps.
#[derive(Debug, Default)]
struct Asleep {
    looks: u32,
    since: Option<Instant>,
}

impl Asleep {
    /// True if the thread has slept for so long, at each look.
    fn is_for_long(&mut self, tid: i32) -> bool {
        self.looks += 1;
        // Usually it is done before the first of them.
        if self.looks.is_multiple_of(64) {
            self.since = match thread_state(tid) {
                'S' => Some(self.since.unwrap_or_else(Instant::now)),
                _ => None,
            };
        }
        self.since.is_some_and(|since| since.elapsed() > HELD_UP)
    }
}

/// One thread of the target that makes system calls for us. Dropping it restores the thread's
/// registers.
#[derive(Debug)]
pub(super) struct Injector<'a> {
    /// The agent's thread stays stopped as long as this lives.
    stopped: PhantomData<&'a StoppedThread>,
    pid: i32,
    tid: i32,
    original: Registers,
    mask: u64,
    syscall: u64,
    stack: u64,
    /// The stack pointer with which a `ret` returns through the frame.
    home: u64,
    hijacked: bool,
}

impl<'a> Injector<'a> {
    /// Prepares `thread`, which must not be about to receive a signal. Nothing changes in the thread
    /// yet, except memory at `place`.
    pub(super) fn new(
        thread: &'a StoppedThread,
        pid: i32,
        memory: &dyn TargetMemory,
        gadgets: &Gadgets,
        place: FramePlace,
    ) -> Result<Injector<'a>, TargetError> {
        let tid = thread.tid;
        let fail = |what| move |errno| TargetError::ptrace(what, tid, errno);
        let mask = requests::signal_mask(tid).map_err(fail("read the signal mask of"))?;
        let mut injector = Injector {
            stopped: PhantomData,
            pid,
            tid,
            original: thread.registers,
            mask,
            syscall: gadgets.syscall,
            stack: thread.sp(),
            home: thread.sp(),
            hijacked: false,
        };
        if place == FramePlace::Nowhere {
            return Ok(injector);
        }
        let xstate = requests::xstate(tid).map_err(fail("read the vector state of"))?;
        let at = match place {
            FramePlace::Scratch { start, .. } => start,
            FramePlace::Stack { .. } => (thread.sp() - 128 - frame_size(&xstate)) & !63,
            FramePlace::Nowhere => 0,
        };
        let frame = signal_frame(&thread.registers, mask, &xstate, gadgets, at)
            .ok_or(TargetError::NoSyscall { pid })?;
        let fits = match place {
            FramePlace::Scratch { start, len } => at + frame.len() as u64 <= start + len,
            FramePlace::Stack { limit } => at >= limit,
            FramePlace::Nowhere => true,
        };
        if !fits {
            return Err(TargetError::NoStack { tid });
        }
        memory
            .write(at, &frame)
            .map_err(|_| TargetError::NoStack { tid })?;
        injector.stack = at;
        injector.home = at + gadgets.chain.map_or(0, |(s, _)| s.pops as u64 * 8);
        injector.syscall = gadgets.chain.map_or(gadgets.syscall, |(s, _)| s.address);
        step("signal frame written");
        Ok(injector)
    }

    /// Waits for the report of a thread on its way to our call. One that sleeps for long, as none does
    /// there that is free to run, is interrupted; true says so. It may have gone on just then, and reports
    /// something else first.
    fn next_on_the_way(&self) -> Result<(Event, bool), TargetError> {
        let tid = self.tid;
        let fail = |what| move |errno| TargetError::ptrace(what, tid, errno);
        let started = Instant::now();
        let mut asleep = Asleep::default();
        let mut held_up = false;
        loop {
            if let Some(event) = requests::wait(tid, false).map_err(fail("wait for"))? {
                return Ok((event, held_up));
            }
            if started.elapsed() < SPIN {
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(LOOK);
            if !held_up && asleep.is_for_long(tid) {
                requests::interrupt(tid).map_err(fail("interrupt"))?;
                held_up = true;
            }
        }
    }

    fn until(&self, wanted: Event, to_syscall: bool) -> Result<(), TargetError> {
        loop {
            let (event, held_up) = match to_syscall {
                true => self.next_on_the_way()?,
                // It is interrupted already, so nothing holds it but the call.
                false => {
                    let event = requests::wait(self.tid, true)
                        .map_err(|errno| TargetError::ptrace("wait for", self.tid, errno))?;
                    (event.ok_or(TargetError::Vanished { pid: self.pid })?, false)
                }
            };
            match event {
                event if event == wanted => return Ok(()),
                // SIGSTOP for the whole process: it will stay stopped when we leave.
                Event::GroupStop if wanted == Event::Interrupted => return Ok(()),
                // All signals are blocked that can be, so any other one is a fault caused by the call.
                Event::Signal(signal) if signal != libc::SIGSTOP => {
                    return Err(TargetError::NoSyscall { pid: self.pid });
                }
                Event::Gone(status) => return Err(TargetError::gone(self.pid, status)),
                // Here the registers may be restored; at the entry of our call they may not: the thread
                // would make a call that it has made before.
                Event::Interrupted | Event::GroupStop if held_up => {
                    let (pid, tid) = (self.pid, self.tid);
                    return Err(TargetError::HeldUp { pid, tid });
                }
                event => {
                    let go = if to_syscall {
                        requests::cont_to_syscall
                    } else {
                        requests::cont
                    };
                    let signal = stops_the_process(event);
                    go(self.tid, signal).map_err(|e| TargetError::ptrace("resume", self.tid, e))?;
                }
            }
        }
    }

    /// Sets the registers for calls, and blocks the thread's signals before the first; takes the step
    /// `done` in between.
    fn set_registers(&mut self, registers: &Registers, done: &str) -> Result<(), TargetError> {
        let tid = self.tid;
        let fail = |what| move |errno| TargetError::ptrace(what, tid, errno);
        requests::set_registers(tid, registers).map_err(fail("set the registers of"))?;
        step(done);
        if !self.hijacked {
            // Set this only after the registers: if we die in between, the frame restores a mask that
            // never changed.
            self.hijacked = true;
            requests::set_signal_mask(tid, u64::MAX).map_err(fail("block the signals of"))?;
            step("signals blocked");
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), TargetError> {
        if !std::mem::take(&mut self.hijacked) {
            return Ok(());
        }
        let tid = self.tid;
        // The mask first: if we die before the registers are restored, the frame returns the thread
        // to its own code, with this mask.
        requests::set_signal_mask(tid, self.mask)
            .map_err(|errno| TargetError::ptrace("restore the signals of", tid, errno))?;
        step("signals unblocked");
        requests::set_registers(tid, &self.original)
            .map_err(|errno| TargetError::ptrace("restore the registers of", tid, errno))?;
        step("registers restored");
        Ok(())
    }
}

/// Returns the signal to pass on with an event: SIGSTOP, which no thread can block, stops the whole process;
/// the thread goes on with our call, and stays stopped behind it.
fn stops_the_process(event: Event) -> i32 {
    match event {
        Event::Signal(libc::SIGSTOP) => libc::SIGSTOP,
        _ => 0,
    }
}

impl Calls for Injector<'_> {
    fn call(
        &mut self,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<Result<u64, Errno>, TargetError> {
        assert!(
            is_permitted(number),
            "system call {number} is not permitted"
        );
        let tid = self.tid;
        let fail = |what| move |errno| TargetError::ptrace(what, tid, errno);
        let r = registers::for_call(self.original, number, arguments, self.syscall, self.stack);
        self.set_registers(&r, "registers set for a call")?;
        requests::cont_to_syscall(tid, 0).map_err(fail("resume"))?;
        self.until(Event::Syscall, true)?;
        step("at the call's entry");
        // Stop behind the call inside signal processing, not at its exit: only there does the kernel
        // check again, once the thread's registers are restored, if an interrupted call of the
        // thread's own has to be restarted.
        requests::interrupt(tid).map_err(fail("interrupt"))?;
        requests::cont(tid, 0).map_err(fail("resume"))?;
        self.until(Event::Interrupted, false)?;
        step("behind the call");
        let after = requests::registers(tid).map_err(fail("read the registers of"))?;
        Ok(registers::result(&after))
    }

    fn call_each(
        &mut self,
        table: &CallTable,
        is_done: &dyn Fn() -> bool,
    ) -> Result<(), TargetError> {
        let tid = self.tid;
        let pid = self.pid;
        let fail = |what| move |errno| TargetError::ptrace(what, tid, errno);
        assert!(
            is_permitted(table.number),
            "system call {} is not permitted",
            table.number
        );
        let r = registers::for_table(self.original, table, self.home);
        self.set_registers(&r, "registers set for many calls")?;
        requests::cont(tid, 0).map_err(fail("resume"))?;
        step("many calls under way");
        let mut waited = 0;
        let mut asleep = Asleep::default();
        let mut held_up = false;
        while !is_done() && !held_up {
            match requests::wait(tid, false).map_err(fail("wait for"))? {
                None => {}
                Some(Event::Gone(status)) => return Err(TargetError::gone(pid, status)),
                Some(Event::Signal(signal)) if signal != libc::SIGSTOP => {
                    return Err(TargetError::NoSyscall { pid });
                }
                Some(event) => {
                    requests::cont(tid, stops_the_process(event)).map_err(fail("resume"))?;
                }
            }
            if waited < 200 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(LOOK);
                held_up = asleep.is_for_long(tid);
            }
            waited += 1;
        }
        requests::interrupt(tid).map_err(fail("interrupt"))?;
        loop {
            match requests::wait(tid, true).map_err(fail("wait for"))? {
                Some(Event::Interrupted | Event::GroupStop) => break,
                // With its signals blocked it receives none: it has returned through the frame.
                Some(Event::Signal(signal)) => {
                    requests::cont(tid, signal).map_err(fail("resume"))?
                }
                Some(Event::Gone(status)) => return Err(TargetError::gone(pid, status)),
                None => return Err(TargetError::Vanished { pid }),
                Some(_) => requests::cont(tid, 0).map_err(fail("resume"))?,
            }
        }
        let here = requests::registers(tid).map_err(fail("read the registers of"))?;
        if !table.code.contains(&here.rip) {
            // We did not run for longer than the thread waits. The frame has restored the thread's
            // registers and signal mask, and must not be restored again over what it did since.
            self.hijacked = false;
            return Err(TargetError::ThreadResumed { tid });
        }
        if held_up {
            return Err(TargetError::HeldUp { pid, tid });
        }
        step("many calls made");
        Ok(())
    }

    fn below_frame(&self) -> u64 {
        self.stack - 48
    }

    fn finish(mut self: Box<Self>) -> Result<(), TargetError> {
        self.restore()
    }
}

impl Drop for Injector<'_> {
    fn drop(&mut self) {
        // Reached only after an error; the thread is then gone or untraceable.
        let _ = self.restore();
    }
}
