//! A running test program, probes in it, and checks that nothing is left behind.
//!
//! The library inserts the probes, for tight loops ([`attach_to`], [`Recording`]), or the
//! command does.

pub use crate::effort::{Effort, effort, is_long, rounds};
pub use crate::tools::is_root;
use crate::waiting;
pub use crate::waiting::{HANGS, until};
use capriole_codegen::runtime::ClockReading;
use capriole_codegen::work::{Record, Work};
use capriole_event::EventSpec;
use capriole_host::ptrace;
use capriole_ledger::is_ledger;
use capriole_object::Objects;
use capriole_patch::attach::{Attached, Point, Probe, attach, breakpoints_allowed};
use capriole_patch::guards::Guards;
use capriole_patch::session::is_session;
use capriole_planner::guards;
use capriole_planner::planner::Planner;
use capriole_planner::resolve::{Site, resolve};
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_ring::{Packet, Reader};
use capriole_tactic::site::Tactic;
use iced_x86::{Decoder, DecoderOptions, Register};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the sites of some events.
pub fn sites(objects: &Objects, events: &[&str]) -> Vec<Site> {
    let specs = events
        .iter()
        .map(|text| EventSpec::parse(text).expect("an event").into());
    specs
        .flat_map(|spec| resolve(objects, &spec).expect("functions"))
        .collect()
}

/// The function patterns of `hammer`.
pub const HAMMER: &[&str] = &[":work*", ":step"];

/// A program that has printed "ready". Killed when dropped.
pub struct Running {
    pub child: Child,
    pub pid: u32,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a program at a lower priority than the tests: many of these programs compute without
    /// end, and the tests that run beside this one need the processors.
    pub fn start(program: &Path, arguments: &[&str]) -> Running {
        Running::of(behind("10", program).args(arguments))
    }

    /// Starts a program that gets the processors only while no test needs them.
    pub fn last(program: &Path, arguments: &[&str]) -> Running {
        Running::of(behind("19", program).args(arguments))
    }

    pub fn of(command: &mut Command) -> Running {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that was just built starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let pid = child.id();
        let mut running = Running {
            child,
            pid,
            input,
            output,
        };
        let line = running.line();
        assert_eq!(line, format!("ready {pid}"));
        running
    }

    pub fn process(&self) -> Process {
        Process::open(self.pid).expect("it runs")
    }

    /// Returns the next line that the program prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.truncate(line.trim_end().len());
        line
    }

    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        // In one write: the program must not see a part of the line.
        let line = format!("{line}\n");
        input.write_all(line.as_bytes()).expect("it lives");
    }

    /// Lets a program that loops while `has_turn()` of `common.h` make so many turns more.
    pub fn turns(&mut self, count: u32) {
        self.say(&format!("turns {count}"));
        assert_eq!(self.line(), "turned");
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid as i32, signal) }, 0);
    }

    /// Ends the program and returns its output. The program must have verified all its work.
    pub fn finish(mut self) -> String {
        drop(self.input.take());
        self.finished()
    }

    /// Waits until the program ends. The program must have verified all its work.
    pub fn finished(&mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("text");
        let status = self.child.wait().expect("it ends");
        let last = text.lines().last().unwrap_or_default();
        assert!(
            status.success() && last.starts_with("ok "),
            "the program ended with {status}:\n{text}"
        );
        text
    }

    /// Fails with the program's last output if it is not alive.
    pub fn assert_alive(&mut self) {
        if let Some(status) = self.child.try_wait().expect("a child") {
            let mut text = String::new();
            let _ = self.output.read_to_string(&mut text);
            panic!("the program has ended with {status}:\n{text}");
        }
    }
}

/// Time for a killed program to end.
const LAST_WAIT: Duration = Duration::from_secs(5);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Do not wait forever: after a failure this test may still trace some of its threads,
        // and then their end is not reported.
        let started = Instant::now();
        while started.elapsed() < LAST_WAIT && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns a command that runs a program at a lower priority, under the same process id.
fn behind(steps: &str, program: &Path) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", steps]).arg(program);
    command
}

/// Starts a program that only sleeps, and returns it once it does: nothing changes in its mappings
/// any more. Nobody ends it.
pub fn sleeping() -> Child {
    let child = Command::new("sleep").arg("1000").spawn();
    let child = child.expect("sleep starts");
    let call = || std::fs::read_to_string(format!("/proc/{}/syscall", child.id()));
    let sleep = format!("{} ", libc::SYS_clock_nanosleep);
    until("it sleeps", || {
        call().is_ok_and(|call| call.starts_with(&sleep))
    });
    child
}

/// The tactic that a test wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The tactic that the planner chooses.
    Best,
    /// A breakpoint everywhere.
    Breakpoint,
}

/// Probes of a process. Each that serves a single site records arguments 1 and 2; its event
/// number is its index.
#[derive(Debug, Clone, Default)]
pub struct Probes {
    pub probes: Vec<Probe>,
    pub names: Vec<String>,
    /// Guards of the process, found at the first attach: that takes longer than the rest of it.
    pub guards: OnceLock<Guards>,
}

impl Probes {
    pub fn of(process: &Process, events: &[&str], reach: Reach) -> Probes {
        let objects = Objects::of_process(process).expect("the objects");
        let planner = Planner::of_process(process);
        let mut result = Probes::default();
        let sites = sites(&objects, events);
        let plans = planner.plan_all(&sites.iter().collect::<Vec<_>>());
        for (site, plan) in sites.iter().zip(plans) {
            let plan = plan.expect("a plan");
            let fields = vec![Register::RDI, Register::RSI];
            let record = Record::new(result.probes.len() as u32, fields);
            let mut probe = Probe::new(plan, site.object.range()).with(vec![record.into()]);
            if reach == Reach::Breakpoint {
                by_breakpoint(&mut probe);
            }
            result.probes.push(probe);
            result.names.push(site.symbol.clone().unwrap_or_default());
        }
        let mut tactics = result.probes.iter().map(|probe| probe.shape.tactic);
        if tactics.any(|tactic| tactic == Tactic::Int3) {
            // A thread that is being created blocks all signals for a moment.
            until("no thread blocks SIGTRAP", || {
                !breakpoints_allowed(&*ptrace::host(process)).is_err_and(blocks_sigtrap)
            });
        }
        result
    }

    /// Probes for sites that may share jumps, without breakpoints. Sites are numbered as events in
    /// their order.
    pub fn joined(process: &Process, events: &[&str]) -> Probes {
        let objects = Objects::of_process(process).expect("the objects");
        let planner = Planner::of_process(process).with_breakpoints(false);
        let sites = sites(&objects, events);
        let plans = planner.plan_all(&sites.iter().collect::<Vec<_>>());
        let mut probes: BTreeMap<u64, Probe> = BTreeMap::new();
        for (event, (site, plan)) in (0..).zip(sites.iter().zip(plans)) {
            let plan = plan.expect("a plan");
            let record = Record::new(event, vec![Register::RDI, Register::RSI]);
            let covered = plan.shape.covered;
            let point = Point::of(&plan.shape);
            let probe = probes
                .entry(covered.start)
                .or_insert_with(|| Probe::new(plan, site.object.range()));
            assert_eq!(
                probe.shape.covered, covered,
                "they share a jump or are apart"
            );
            probe.point(&point).work.push(record.into());
        }
        Probes {
            probes: probes.into_values().collect(),
            names: sites.into_iter().filter_map(|site| site.symbol).collect(),
            guards: OnceLock::new(),
        }
    }

    /// Like [`Probes::of`], for the patterns that match something that can be probed.
    pub fn of_any(process: &Process, events: &[&str], reach: Reach) -> Probes {
        let objects = Objects::of_process(process).expect("the objects");
        let planner = Planner::of_process(process);
        let fits = |text: &&&str| {
            let spec = EventSpec::parse(text).expect("an event");
            resolve(&objects, &spec.into())
                .is_ok_and(|sites| sites.iter().all(|site| planner.plan(site).is_ok()))
        };
        let events: Vec<&str> = events.iter().filter(fits).copied().collect();
        Probes::of(process, &events, reach)
    }

    pub fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        let kept: Vec<bool> = self.names.iter().map(|n| wanted(n)).collect();
        let mut keep = kept.iter();
        self.probes.retain(|_| *keep.next().expect("as many"));
        let mut keep = kept.iter();
        self.names.retain(|_| *keep.next().expect("as many"));
        for (number, probe) in self.probes.iter_mut().enumerate() {
            if let Work::Record(record) = &mut probe.points[0].work[0] {
                record.event = number as u32;
            }
        }
    }
}

/// Changes a probe into one that uses a breakpoint.
fn by_breakpoint(probe: &mut Probe) {
    if probe.shape.tactic == Tactic::Int3 {
        return;
    }
    let start = probe.shape.covered.start;
    let mut decoder = Decoder::with_ip(64, &probe.before, start, DecoderOptions::NONE);
    let first = decoder.decode();
    probe.shape.tactic = Tactic::Int3;
    probe.shape.placed = None;
    probe.shape.displaced = vec![first];
    probe.shape.resume = first.next_ip();
    probe.shape.covered.end = start + 1;
    probe.before.truncate(1);
}

/// One recorded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    pub time: u64,
    pub event: u32,
    pub tid: u32,
    pub thread: u64,
    pub seq: u64,
}

/// An attached process and its recorded calls so far.
pub struct Recording {
    pub attached: Attached,
    reader: Reader,
    pub calls: Vec<Call>,
}

fn blocks_sigtrap(reason: &str) -> bool {
    reason.contains("blocks SIGTRAP")
}

/// Attaches. Every probe must be written.
pub fn attach_to(process: &Process, probes: &Probes, buffer: u64) -> Recording {
    let started = Instant::now();
    loop {
        let recording = attach_once(process, probes, buffer);
        let outcomes = recording.attached.outcomes();
        let mut named = outcomes.iter().zip(&probes.names);
        let Some((outcome, name)) = named.find(|(outcome, _)| outcome.is_err()) else {
            return recording;
        };
        // A thread that is just being created may stand still while it blocks all signals.
        let error = outcome.as_ref().map(|_| ()).expect_err("it is one");
        let passes = blocks_sigtrap(&error.to_string()) && started.elapsed() < HANGS;
        assert!(passes, "{name}: {error}");
        recording.detach();
    }
}

fn attach_once(process: &Process, probes: &Probes, buffer: u64) -> Recording {
    let find = || guards::of_process(process).expect("guards");
    let guards = probes.guards.get_or_init(find);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let attached = attach(
        &ptrace::host(process),
        probes.probes.clone(),
        guards,
        ClockReading::default(),
        |journal| Geometry::for_buffer(buffer, cpus.max(configured_cpus()), journal),
    )
    .expect("attach");
    let memory = &attached.memory;
    let reader = Reader::new(memory.memory.clone(), memory.geometry);
    Recording {
        attached,
        reader,
        calls: Vec::new(),
    }
}

fn configured_cpus() -> u32 {
    // SAFETY: reads a number.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.clamp(1, 4096) as u32
}

fn take(calls: &mut Vec<Call>, packet: Packet<'_>) {
    let mut last = 0;
    assert_eq!(packet.content.len() % 32, 0, "half a record");
    for record in packet.content.chunks_exact(32) {
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8"));
        let (time, header) = (word(0), word(8));
        assert!(time >= last, "time goes backwards in a packet");
        last = time;
        calls.push(Call {
            time,
            event: header as u32,
            tid: (header >> 32) as u32,
            thread: word(16),
            seq: word(24),
        });
    }
}

impl Recording {
    /// Collects records for a while.
    pub fn record(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let calls = &mut self.calls;
            self.reader
                .collect::<()>(false, |p| {
                    take(calls, p);
                    Ok(())
                })
                .expect("the sink never fails");
            self.reader.wait(Duration::from_millis(1));
        }
    }

    /// Collects records until the calls are such, however long that takes.
    ///
    /// # Panics
    /// If they never are.
    #[track_caller]
    pub fn record_until(&mut self, what: &str, mut are_such: impl FnMut(&[Call]) -> bool) {
        until(what, || {
            let calls = &mut self.calls;
            self.reader
                .collect_committed::<()>(|p| {
                    take(calls, p);
                    Ok(())
                })
                .expect("the sink never fails");
            are_such(&self.calls)
        });
    }

    /// Collects records until so many further calls were recorded.
    #[track_caller]
    pub fn record_calls(&mut self, more: usize) {
        let wanted = self.calls.len() + more;
        self.record_until("further calls", |calls| calls.len() >= wanted);
    }

    /// Takes the probes out and returns the calls in time order, or `None` if the buffer was too
    /// small for all of them.
    pub fn detach(self) -> Option<Vec<Call>> {
        let report = self.attached.detach().unwrap_or_else(|error| {
            panic!(
                "detach: {error}; {}",
                last_words(self.attached.process().pid())
            )
        });
        assert_eq!(report.foreign, 0, "{report:?}");
        if report.lingering {
            self.sweep();
        }
        self.finish()
    }

    /// Removes the memory that a signal handler on a busy machine may still return
    /// into, as `capriole detach` does, once the handler has returned.
    fn sweep(&self) {
        until(
            "all memory is unmapped",
            || match capriole_patch::recover::detach_all(&*self.attached.host) {
                Ok(report) => !report.lingering,
                Err(capriole_host::error::TargetError::NothingAttached { .. }) => true,
                Err(error) => panic!("sweep: {error}"),
            },
        );
    }

    /// Like [`Recording::detach`], after the probes have been taken out.
    pub fn finish(mut self) -> Option<Vec<Call>> {
        let calls = &mut self.calls;
        self.reader
            .collect::<()>(true, |p| {
                take(calls, p);
                Ok(())
            })
            .expect("the sink never fails");
        assert_eq!(self.reader.damaged(), 0);
        self.calls.sort_unstable();
        (self.reader.lost() == 0).then_some(self.calls)
    }
}

/// Checks that no call is missing and that the calls are in order, for each function and
/// thread. Returns the number of calls of each function. `step` is called with mixed numbers
/// and has no order, so its calls are only counted.
pub fn assert_gap_free(names: &[String], calls: &[Call]) -> BTreeMap<String, usize> {
    let mut last: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for call in calls {
        let name = &names[call.event as usize];
        *count.entry(name.clone()).or_default() += 1;
        if name.ends_with("step") {
            continue;
        }
        if let Some(before) = last.insert((call.event, call.thread), call.seq) {
            assert_eq!(
                call.seq,
                before + 1,
                "{name}, thread {}: calls are missing or in the wrong order",
                call.thread
            );
        }
    }
    count
}

/// Describes how a process ended, if it did.
pub fn last_words(pid: u32) -> String {
    let mut status = 0;
    // SAFETY: queries a child of this test; `status` is a place for the answer.
    match unsafe { libc::waitpid(pid as i32, &mut status, libc::WNOHANG) } {
        0 => "the program still runs".to_owned(),
        -1 => "the program is gone".to_owned(),
        _ => format!("the program has ended with wait status {status:#x}"),
    }
}

/// The appearance of a process from outside, to compare with its later appearance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looks {
    handlers: Vec<String>,
    descriptors: Vec<String>,
    /// Executable and shared mappings; the program may change the others itself.
    code: Vec<String>,
}

impl Looks {
    /// Executable and shared mappings.
    pub fn mappings(&self) -> &[String] {
        &self.code
    }

    /// Ignores the signal mask, for a program that blocks and unblocks signals all the time.
    pub fn without_mask(mut self) -> Looks {
        self.handlers.retain(|line| !line.starts_with("SigBlk"));
        self
    }
}

fn describe(mapping: &Mapping) -> String {
    format!(
        "{:x}-{:x} {:?} {}",
        mapping.start,
        mapping.end,
        mapping.perms,
        mapping.path.to_string_lossy()
    )
}

pub fn looks(process: &Process) -> Looks {
    let status = std::fs::read_to_string(process.proc_path("status")).expect("status");
    let handlers = status
        .lines()
        .filter(|l| l.starts_with("SigCgt") || l.starts_with("SigIgn") || l.starts_with("SigBlk"))
        .map(str::to_owned)
        .collect();
    let mut descriptors: Vec<String> = std::fs::read_dir(process.proc_path("fd"))
        .expect("descriptors")
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let target = std::fs::read_link(entry.path()).ok()?;
            Some(format!("{:?} {target:?}", entry.file_name()))
        })
        .collect();
    descriptors.sort();
    let maps = process.maps().expect("maps");
    let code = maps
        .iter()
        .filter(|m| m.perms.execute || m.perms.shared)
        .map(describe)
        .collect();
    Looks {
        handlers,
        descriptors,
        code,
    }
}

/// Checks that the process looks as before, immediately or once a thread on its way back has
/// arrived: once is enough, as the program goes on, and changes its signal mask in handlers.
pub fn assert_looks(process: &Process, before: &Looks, when: &str) {
    let started = Instant::now();
    loop {
        let now = looks(process);
        if now == *before {
            return;
        }
        if started.elapsed() > HANGS {
            assert_eq!(now, *before, "{when}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that the bytes of all mapped text equal those of the files.
pub fn assert_text_is_the_files(process: &Process, only_main: bool) {
    let main = process.exe().expect("exe");
    for mapping in process.maps().expect("maps") {
        let is_text = mapping.perms.execute && mapping.is_file();
        if !is_text || only_main && Path::new(&mapping.path) != main {
            continue;
        }
        let Ok(file) = std::fs::File::open(process.in_root(Path::new(&mapping.path))) else {
            continue; // a library that was loaded and is deleted by now
        };
        let size = (mapping.end - mapping.start) as usize;
        let (mut on_disk, mut in_memory) = (vec![0; size], vec![0; size]);
        let len = file.read_at(&mut on_disk, mapping.offset).expect("read");
        if process.read_memory(mapping.start, &mut in_memory).is_err() {
            continue; // unloaded meanwhile
        }
        let different = (0..len).find(|i| on_disk[*i] != in_memory[*i]);
        assert_eq!(
            different.map(|i| format!(
                "{:#x}: {:02x?} instead of {:02x?}",
                mapping.start + i as u64,
                &in_memory[i..(i + 8).min(len)],
                &on_disk[i..(i + 8).min(len)]
            )),
            None,
            "{} is changed",
            mapping.path.to_string_lossy()
        );
    }
}

/// Checks that neither session memory nor a ledger is mapped.
pub fn assert_no_session(process: &Process) {
    let maps = process.maps().expect("maps");
    let ours = |m: &&Mapping| is_session(m) || is_ledger(m);
    let left = maps.iter().find(ours).map(describe);
    assert_eq!(left, None, "memory of a session is still mapped");
}

/// Returns exit status and both outputs, for messages.
pub fn told(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Describes where each thread of a process stands, of the group that it leads, and of each Capriole
/// process: its state, the kernel function that it waits in, its system call with arguments, and its call
/// stack if gdb can tell. For the report on a program that hangs.
#[must_use]
pub fn standing(program: u32) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for pid in Process::numbers() {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        let Ok(stat) = read("stat") else { continue };
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
        let group = fields.and_then(|mut fields| fields.nth(2)?.parse().ok());
        let is_member = pid == program || group == Some(program);
        if !is_member && !read("comm").is_ok_and(|name| name.trim_end() == "capriole") {
            continue;
        }
        let words = read("cmdline").unwrap_or_default().replace('\0', " ");
        let _ = writeln!(text, "{pid} {words}");
        let columns = ["stat", "wchan", "syscall"].map(|name| waiting::of_threads(pid, name));
        for (thread, stat) in columns[0].iter().enumerate() {
            let other = |column: usize| columns[column].get(thread).map_or("", |text| text.trim());
            let stat: Vec<&str> = stat.splitn(6, ' ').take(5).collect();
            let (wchan, call) = (other(1), other(2));
            let _ = writeln!(text, "    {} | {wchan} | {call}", stat.join(" "));
        }
        if is_member {
            let mut gdb = Command::new("timeout");
            gdb.args("60 gdb -nx -batch -ex".split(' '));
            gdb.args(["thread apply all backtrace", "-p"]);
            let stacks = gdb.arg(pid.to_string()).stdin(Stdio::null()).output();
            let stacks = stacks.map(|output| output.stdout).unwrap_or_default();
            text.push_str(&String::from_utf8_lossy(&stacks));
        }
    }
    text
}

/// Text that the program seems to have changed itself, so that its pages are not covered: in each page,
/// the operand of a long nop differs from the file's.
pub struct OwnText {
    process: Process,
    /// Changed addresses, with the file's bytes.
    bytes: Vec<(u64, u8)>,
}

impl OwnText {
    /// Changes the text of a file in a process.
    #[must_use]
    pub fn of(process: &Process, file: &Path) -> OwnText {
        // nopl 0(%rax,%rax,1), of any length, and its displacement.
        const NOPS: [(&[u8], usize); 3] = [
            (&[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], 4),
            (&[0x0f, 0x1f, 0x80, 0, 0, 0, 0], 3),
            (&[0x0f, 0x1f, 0x44, 0, 0], 4),
        ];
        let mut bytes = Vec::new();
        for mapping in process.maps().expect("maps") {
            if !mapping.perms.execute || Path::new(&mapping.path) != file {
                continue;
            }
            let mut text = vec![0; (mapping.end - mapping.start) as usize];
            process
                .read_memory(mapping.start, &mut text)
                .expect("readable");
            for (page, content) in (mapping.start..).step_by(4096).zip(text.chunks(4096)) {
                let of = |(nop, operand): &(&[u8], usize)| {
                    let at = content.windows(nop.len()).position(|w| w == *nop)?;
                    Some(page + (at + operand) as u64)
                };
                bytes.extend(NOPS.iter().find_map(of).map(|at| (at, 0)));
            }
        }
        assert!(!bytes.is_empty(), "no nop in {}", file.display());
        let own = OwnText {
            process: process.clone(),
            bytes,
        };
        own.write(process, |_| 1);
        own
    }

    fn write(&self, process: &Process, byte: impl Fn(u8) -> u8) {
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).open(process.proc_path("mem"));
        let file = file.expect("its memory");
        for (address, of_the_file) in &self.bytes {
            let written = file.write_at(&[byte(*of_the_file)], *address);
            assert_eq!(written.expect("written"), 1);
        }
    }

    /// Writes the file's bytes again.
    pub fn restore(self) {
        self.write(&self.process, |byte| byte);
    }
}
