//! A host whose operations fail, one after the other, while probes are attached and detached: a
//! write that is refused, a system call that finds no memory, a process that cannot be stopped.
//! Each failure is reported or made good, and leaves the program as it was.

use capriole_codegen::runtime::ClockReading;
use capriole_host::error::TargetError;
use capriole_host::host::{
    CallTable, Caller, Calls, FramePlace, Host, StoppedThread, StoppedThreads, TargetMemory,
};
use capriole_host::ptrace;
use capriole_patch::attach::attach;
use capriole_patch::recover;
use capriole_planner::guards;
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::*;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kind of operation that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    Write,
    Call,
    Stop,
    Hire,
}

/// Counts operations of a kind, and fails one of them.
#[derive(Debug)]
struct Counter {
    fails: Fails,
    at: usize,
    done: AtomicUsize,
}

impl Counter {
    fn fails(&self, what: Fails) -> bool {
        self.fails == what && self.done.fetch_add(1, Ordering::Relaxed) == self.at
    }
}

#[derive(Debug)]
struct Failing {
    inner: Arc<dyn Host>,
    counter: Arc<Counter>,
}

#[derive(Debug)]
struct Memory(Box<dyn TargetMemory>, Arc<Counter>);

#[derive(Debug)]
struct Thread<'s>(Box<dyn Caller + 's>, Arc<Counter>);

struct Calling<'a>(Box<dyn Calls + 'a>, Arc<Counter>);

impl TargetMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(address, into)
    }

    fn read_some(&self, address: u64, len: usize) -> io::Result<Vec<u8>> {
        self.0.read_some(address, len)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        match self.1.fails(Fails::Write) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => self.0.write(address, bytes),
        }
    }
}

impl Caller for Thread<'_> {
    fn pid(&self) -> i32 {
        self.0.pid()
    }

    fn tid(&self) -> i32 {
        self.0.tid()
    }

    fn stack(&self) -> Result<FramePlace, TargetError> {
        self.0.stack()
    }

    fn returns_by_itself(&self) -> bool {
        self.0.returns_by_itself()
    }

    fn begin<'a>(
        &'a self,
        memory: &'a dyn TargetMemory,
        place: FramePlace,
    ) -> Result<Box<dyn Calls + 'a>, TargetError> {
        let calls = self.0.begin(memory, place)?;
        Ok(Box::new(Calling(calls, self.1.clone())))
    }

    fn calls_from_anywhere(&self) -> bool {
        self.0.calls_from_anywhere()
    }

    fn elapsed(&self) -> std::time::Duration {
        self.0.elapsed()
    }
}

impl Calls for Calling<'_> {
    fn call(
        &mut self,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<Result<u64, Errno>, TargetError> {
        // A descriptor is closed whatever the call returns.
        match number != libc::SYS_close && self.1.fails(Fails::Call) {
            true => Ok(Err(Errno::NOMEM)),
            false => self.0.call(number, arguments),
        }
    }

    fn call_each(
        &mut self,
        table: &CallTable,
        is_done: &dyn Fn() -> bool,
    ) -> Result<(), TargetError> {
        self.0.call_each(table, is_done)
    }

    fn below_frame(&self) -> u64 {
        self.0.below_frame()
    }

    fn finish(self: Box<Self>) -> Result<(), TargetError> {
        self.0.finish()
    }
}

impl Failing {
    fn thread(&self, caller: Box<dyn Caller>) -> Box<dyn Caller> {
        Box::new(Thread(caller, self.counter.clone()))
    }

    fn unstoppable(&self) -> TargetError {
        let pid = self.process().pid() as i32;
        TargetError::Unstoppable {
            pid,
            tid: pid,
            state: 'D',
        }
    }
}

impl Host for Failing {
    fn process(&self) -> &Process {
        self.inner.process()
    }

    fn other(&self, process: &Process) -> Arc<dyn Host> {
        self.inner.other(process)
    }

    fn memory(&self) -> Result<Box<dyn TargetMemory>, TargetError> {
        let memory = self.inner.memory()?;
        Ok(Box::new(Memory(memory, self.counter.clone())))
    }

    fn check_stops(&self) -> Result<(), TargetError> {
        self.inner.check_stops()
    }

    fn check_calls(&self) -> Result<(), TargetError> {
        self.inner.check_calls()
    }

    fn prepare(&self, memory: &dyn TargetMemory) {
        self.inner.prepare(memory);
    }

    fn run_apart(&self, work: &mut (dyn FnMut() + Send)) {
        self.inner.run_apart(work);
    }

    fn stop(&self) -> Result<Box<dyn StoppedThreads>, TargetError> {
        match self.counter.fails(Fails::Stop) {
            true => Err(self.unstoppable()),
            false => self.inner.stop(),
        }
    }

    fn stop_one(&self, tid: i32) -> Result<Option<Box<dyn StoppedThreads>>, TargetError> {
        self.inner.stop_one(tid)
    }

    fn sharing_memory(&self) -> Result<Vec<i32>, TargetError> {
        self.inner.sharing_memory()
    }

    fn is_orphan(&self, thread: &StoppedThread, memory: &dyn TargetMemory) -> bool {
        self.inner.is_orphan(thread, memory)
    }

    fn may_redirect_calls(&self, thread: &StoppedThread) -> bool {
        self.inner.may_redirect_calls(thread)
    }

    fn choose(
        &self,
        stopped: Box<dyn StoppedThreads>,
        memory: &dyn TargetMemory,
    ) -> Result<Box<dyn Caller>, TargetError> {
        let caller = self.inner.choose(stopped, memory)?;
        Ok(self.thread(caller))
    }

    fn choose_among<'s>(
        &self,
        stopped: &'s (dyn StoppedThreads + 'static),
        memory: &dyn TargetMemory,
        maps: &[Mapping],
    ) -> Result<Box<dyn Caller + 's>, TargetError> {
        let caller = self.inner.choose_among(stopped, memory, maps)?;
        Ok(Box::new(Thread(caller, self.counter.clone())))
    }

    fn hire(&self, memory: &dyn TargetMemory) -> Result<Box<dyn Caller>, TargetError> {
        match self.counter.fails(Fails::Hire) {
            true => Err(self.unstoppable()),
            false => Ok(self.thread(self.inner.hire(memory)?)),
        }
    }
}

/// Attaches and detaches with the n-th operation of a kind failing, for every n.
fn each_failure(what: Fails, program: &str, events: &[&str], reach: Reach) {
    let Some(program) = build(Compiler::Gcc, program, &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--threads", "2", "--segv"]);
    let process = running.process();
    let before = looks(&process);
    let all = Probes::of(&process, events, reach);
    let guards = guards::of_process(&process).expect("guards");
    let (mut at, mut failed) = (0, 0);
    loop {
        let counter = Arc::new(Counter {
            fails: what,
            at,
            done: AtomicUsize::new(0),
        });
        let host: Arc<dyn Host> = Arc::new(Failing {
            inner: ptrace::host(&process),
            counter: counter.clone(),
        });
        let geometry = |journal| Geometry::for_buffer(1 << 20, 2, journal);
        let probes = all.probes.clone();
        let when = format!("{what:?} {at}");
        match attach(&host, probes, &guards, ClockReading::default(), geometry) {
            Ok(attached) => {
                running.assert_alive();
                // What could not be taken out is taken out by the next attempt.
                if attached.detach().is_err() {
                    failed += 1;
                }
            }
            Err(_) => failed += 1,
        }
        running.assert_alive();
        // A thread may stand still in a detour.
        until(&format!("{when}: it stays"), || {
            let left = recover::find(&*host).expect(&when);
            if !left.is_empty() {
                let _ = recover::detach_all(&*host);
            }
            left.is_empty()
        });
        assert_text_is_the_files(&process, false);
        assert_looks(&process, &before, &when);
        if counter.done.load(Ordering::Relaxed) <= at {
            break;
        }
        // All of the first, later ones in larger steps.
        at += 1 + at / rounds(2, 24, 1000);
    }
    println!("{what:?}: {failed} of {at} failed");
    assert!(failed > 0);
    running.finish();
}

const EVENTS: &[&str] = &[":work", ":work_short", ":work_ret", ":work%return"];

#[test]
fn at_each_write() {
    each_failure(Fails::Write, "hammer.c", EVENTS, Reach::Best);
}

#[test]
fn at_each_call() {
    each_failure(Fails::Call, "hammer.c", EVENTS, Reach::Best);
}

#[test]
fn at_each_stop() {
    each_failure(Fails::Stop, "hammer.c", EVENTS, Reach::Best);
    each_failure(Fails::Hire, "hammer.c", EVENTS, Reach::Best);
}

#[test]
fn with_breakpoints() {
    for what in [Fails::Write, Fails::Call] {
        each_failure(what, "hammer.c", EVENTS, Reach::Breakpoint);
    }
}
