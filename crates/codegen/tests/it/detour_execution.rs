//! Runs detours, in a child process, from random registers and flags: live registers
//! and flags must be unchanged, the record must hold their initial values, and every run
//! must have been counted once.

use crate::constants;
use crate::flags;
use crate::mapped;

use crate::signals::{handle, step_from};
use crate::support::random::Random;
use crate::support::sandbox::{COPY, EXIT, Sandbox, State, alone, in_child};
use crate::undisturbed::undisturbed;
use capriole_codegen::detour::{Compiler, Detour, PLACES_ROOM, Request, room};
use capriole_codegen::runtime::Runtime;
use capriole_codegen::work::{Record, Word, Work};
use capriole_insn::liveness::{Live, RegSet};
use capriole_resident as resident;
use capriole_ring::layout::{self, Geometry, stream};
use capriole_ring::{Memory, Reader};
use capriole_testkit::effort::rounds;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};
use mapped::map_session;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

static GEOMETRY: LazyLock<Geometry> = LazyLock::new(|| Geometry {
    cpus: mapped::cpus(),
    packet_size: 4096,
    packets: 64,
    journal: 1,
    counters: 100,
    directories: 0,
    frames: 0,
    areas: 0,
    kept: 0,
    windows: false,
});
/// Address of the detour under test; the resident is at `COPY`.
const DETOUR: u64 = COPY + 0x2000;
/// Address of the breakpoint at which single stepping through the detour starts.
const STEP: u64 = DETOUR - 16;

/// The state of restartable sequences in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Restartable sequences as glibc registered them.
    Registered,
    /// A `struct rseq` that reads as "not registered".
    Unregistered,
    /// A `struct rseq` that was not registered, but reads as registered, on CPU 0.
    Stale,
    /// No offset is known: every record takes the locked path.
    Locked,
}

#[derive(Debug, Clone)]
struct Case {
    /// Number of detours of other sites before it, some of the same form.
    before: u32,
    live: Live,
    red_zone: bool,
    work: Vec<Work>,
    mode: Mode,
    /// If set, the detour first marks new threads as unregistered; this is the return value of the
    /// call that creates threads (0 in a new thread).
    unregister: Option<u64>,
    /// Number of free packets at the start; 0: the events are lost.
    free: u32,
    /// Number of times that the detour runs, while the packets fill up.
    runs: u32,
    /// A signal after every instruction, so that no restartable sequence completes.
    stepped: bool,
    seed: u64,
}

fn random_case(random: &mut Random, seed: u64) -> Case {
    let register = |random: &mut Random| Register::RAX + random.below(16) as u32;
    let mut work = Vec::new();
    let mut used = HashSet::new();
    let only_counts = random.below(4) == 0;
    let unregister = (random.below(4) == 0).then(|| random.pick(&[0, 0, 4711]));
    let live = Live {
        gprs: RegSet(random.number() as u16 | RegSet::of(Register::RSP).0),
        flags: random.below(2) == 0 && unregister.is_none(),
    };
    // As at a conditional jump that leaves the function: all of the work depends on the flags,
    // or some of it.
    let asked = flags::random(random).filter(|_| live.flags && random.below(2) == 0);
    let all = random.below(2) == 0;
    let filter = |random: &mut Random| asked.filter(|_| all || random.below(2) == 0);
    for index in 0..1 + random.below(3) as u32 {
        if only_counts || random.below(4) == 0 {
            let counter = random.below(GEOMETRY.counters as usize) as u32;
            work.push(Work::Count {
                counter,
                filter: filter(random).map(flags::filter),
            });
            continue;
        }
        let fields: Vec<Word> = (0..random.below(7))
            .map(|_| match random.below(3) {
                0 => Word::Constant(constants::random(random)),
                _ => register(random).into(),
            })
            .collect();
        used.extend(fields.iter().filter_map(|word| word.register()));
        if used.len() > 11 {
            break; // more than a site can have
        }
        let event = 1000 + index;
        let filter = filter(random).map(flags::filter);
        work.push(
            Record {
                event,
                fields,
                filter,
            }
            .into(),
        );
    }
    if unregister.is_some() {
        work.insert(0, Work::Unregister);
    }
    Case {
        before: random.below(4) as u32,
        live,
        red_zone: random.below(2) == 0,
        work,
        mode: random.pick(&[
            Mode::Registered,
            Mode::Registered,
            Mode::Unregistered,
            Mode::Stale,
            Mode::Locked,
        ]),
        unregister,
        free: random.pick(&[GEOMETRY.packets, GEOMETRY.packets, 3, 0]),
        runs: random.pick(&[1, 2, 150]),
        stepped: false,
        seed,
    }
}

impl Case {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.work.iter().filter_map(|work| match work {
            Work::Record(record) => Some(record),
            _ => None,
        })
    }

    /// Returns true if nothing may be recorded as if the thread were registered.
    fn is_told_apart(&self) -> bool {
        self.stepped || self.mode == Mode::Stale && self.unregister == Some(0)
    }

    /// Compiles its detour, after others that differ in the recorded events or counters.
    fn compile(&self, runtime: Runtime) -> (Detour, Vec<u8>) {
        let mut compiler = Compiler::new(runtime, DETOUR, Vec::new());
        for other in 0..self.before {
            let mut work = self.work.clone();
            for work in &mut work {
                match work {
                    Work::Record(record) => {
                        record.event = 7777 + other;
                        record.fields.iter_mut().for_each(constants::change);
                    }
                    Work::Count { counter, .. } => *counter = (*counter + 1) % GEOMETRY.counters,
                    Work::Run { .. }
                    | Work::Tally(_)
                    | Work::Long(_)
                    | Work::Enter { .. }
                    | Work::Unregister
                    | Work::Help { .. }
                    | Work::Handler(_)
                    | Work::Replace(_) => {}
                }
            }
            let mut request = request(self);
            request.work = &work;
            request.red_zone ^= other == 1;
            compiler.compile(&request).unwrap();
        }
        let detour = compiler.compile(&request(self)).unwrap();
        let size = compiler.image().len() as u64;
        let enough = u64::from(self.before + 1) * room(&self.work) + PLACES_ROOM;
        assert!(size <= enough, "{size} bytes of {enough}");
        // Behind the first detour of a form come the form's places.
        let end = DETOUR + compiler.image().len() as u64;
        assert!(detour.end() == end || detour.places == detour.end().next_multiple_of(8));
        (detour, compiler.into_image())
    }
}

fn request<'a>(case: &'a Case) -> Request<'a> {
    Request {
        work: &case.work,
        displaced: &[],
        resume: EXIT,
        red_zone: case.red_zone,
        live: case.live,
    }
}

/// Returns glibc's offset of `struct rseq` from the thread pointer, if it registered one.
fn rseq_offset() -> Option<i32> {
    // SAFETY: looks up a symbol by a terminated name.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: glibc defines it as ptrdiff_t.
    i32::try_from(unsafe { *symbol.cast::<isize>() }).ok()
}

fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: on x86-64 the thread pointer's first word points to itself.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer) };
    pointer
}

/// A `struct rseq` of a thread that never registered it, as close to the thread
/// pointer as the real one.
#[repr(C, align(32))]
struct FakeRseq(Cell<[u32; 8]>);
thread_local! {
    static FAKE: FakeRseq = const { FakeRseq(Cell::new([0, u32::MAX, 0, 0, 0, 0, 0, 0])) };
}

/// Session memory of the child process, which is both target and tracer.
struct Session {
    memory: Arc<Memory>,
    base: u64,
}

impl Session {
    fn new() -> Session {
        let (memory, base) = map_session(&GEOMETRY);
        Session { memory, base }
    }

    fn reset(&self, free: u32) {
        mapped::empty(&self.memory, self.base, &GEOMETRY);
        for word in 0..layout::MAX_PACKETS / 64 {
            self.memory.store(layout::header::FREE + 8 * word, 0);
        }
        for index in 0..free {
            self.memory.free_packet(index);
        }
    }

    /// Writes the resident and the detour into the sandbox.
    fn place(&self, sandbox: &mut Sandbox, case: &Case) -> Detour {
        let rseq = match case.mode {
            Mode::Registered => rseq_offset(),
            Mode::Unregistered | Mode::Stale => {
                let fake = FAKE.with(|fake| std::ptr::from_ref(fake) as u64);
                Some(i32::try_from(fake.wrapping_sub(thread_pointer()) as i64).unwrap())
            }
            Mode::Locked => None,
        };
        let config = resident::Config {
            rseq_offset: rseq,
            ..mapped::config(self.base, &GEOMETRY)
        };
        // Clear the pointer to the last descriptor: the kernel reads it when it preempts this
        // thread, so it must not be set while the bytes of another detour replace the last one. (A
        // detach clears it, too.)
        if let Some(offset) = rseq_offset() {
            let rseq_cs = thread_pointer().wrapping_add(offset as u64) + 8;
            // SAFETY: a field of this thread's registered `struct rseq`.
            unsafe { (rseq_cs as *mut u64).write_volatile(0) };
        }
        sandbox.write(COPY, &resident::place(COPY, &config));
        let (detour, image) = case.compile(Runtime {
            shadow_stack: case.seed % 2 == 1,
            ..runtime(self.base, rseq)
        });
        sandbox.write(DETOUR, &image);
        detour
    }
}

fn runtime(base: u64, rseq_offset: Option<i32>) -> Runtime {
    Runtime {
        rseq_offset,
        ..mapped::runtime(base, &GEOMETRY, COPY)
    }
}

fn check(name: &str, ok: bool, detail: impl FnOnce() -> String) -> Result<(), String> {
    if ok {
        Ok(())
    } else {
        Err(format!("{name}: {}", detail()))
    }
}

fn run_case(session: &Session, sandbox: &mut Sandbox, case: &Case) -> Result<(), String> {
    session.reset(case.free);
    let detour = session.place(sandbox, case);
    let mut entry = detour.entry;
    if case.stepped {
        entry = STEP;
        let mut bytes = vec![0xcc, 0xe9];
        bytes.extend(((detour.entry - STEP - 6) as u32).to_le_bytes());
        sandbox.write(STEP, &bytes);
    }
    let mut random = Random::new(case.seed);
    let mut expected = Vec::new();
    let mut counts = vec![0; GEOMETRY.counters as usize];
    for _ in 0..case.runs {
        let mut input: State = random.state();
        let seed = random.number();
        if let Some(returned) = case.unregister {
            input.gprs[Register::RAX.number()] = returned;
        }
        let cpu = if case.mode == Mode::Stale {
            0
        } else {
            -1i32 as u32
        };
        FAKE.with(|fake| fake.0.set([0, cpu, 0, 0, 0, 0, 0, 0]));
        // The same run without the detour, for the expected memory and stack.
        let plain = sandbox.run(EXIT, &input, seed);
        let out = sandbox.run(entry, &input, seed);
        undisturbed(&plain, &out, case.live, case.red_zone)?;
        if case.is_told_apart() && case.mode == Mode::Stale {
            let cpu = FAKE.with(|fake| fake.0.get()[1]);
            check(
                "mark",
                cpu == u32::MAX || case.unregister != Some(0),
                || format!("it is said to be on CPU {cpu}"),
            )?;
        }
        for work in &case.work {
            if !flags::wanted(work, plain.state.flags) {
                continue;
            }
            let record = match work {
                Work::Record(record) => record,
                Work::Count { counter, .. } => {
                    counts[*counter as usize] += 1;
                    continue;
                }
                Work::Run { .. }
                | Work::Tally(_)
                | Work::Long(_)
                | Work::Enter { .. }
                | Work::Unregister
                | Work::Help { .. }
                | Work::Handler(_)
                | Work::Replace(_) => {
                    continue;
                }
            };
            let fields: Vec<u64> = record
                .fields
                .iter()
                .map(|word| match word {
                    Word::Register(register) => plain.state.gprs[register.number()],
                    Word::Constant(value) => *value,
                })
                .collect();
            expected.push((record.event, fields));
        }
    }
    let counters = mapped::counts(&session.memory, &GEOMETRY);
    check("counters", counters == counts, || {
        format!("{counters:?}, not {counts:?}")
    })?;
    let on_a_cpu = |copy| GEOMETRY.counter(copy, 0)..GEOMETRY.counter(copy + 1, 0);
    let mut words = (0..GEOMETRY.cpus).flat_map(on_a_cpu).step_by(8);
    let restarted = words.all(|at| session.memory.load(at) == 0);
    check("abort", restarted || !case.is_told_apart(), || {
        "a CPU's counter was changed".into()
    })?;
    let mut reader = Reader::new(session.memory.clone(), *GEOMETRY);
    let mut seen: Vec<(u64, u32, Vec<u64>)> = Vec::new();
    let size = |event: u32| {
        let record = case.records().find(|record| record.event == event);
        record.map_or(0, |record| record.fields.len())
    };
    reader
        .collect::<String>(true, |packet| {
            let locked = packet.lane != 0;
            check("abort", locked || !case.is_told_apart(), || {
                "a record stands in lane 0".into()
            })?;
            let mut rest = packet.content;
            let mut last = 0;
            while !rest.is_empty() {
                let word =
                    |i: usize| u64::from_le_bytes(rest[8 * i..8 * i + 8].try_into().unwrap());
                let (time, event) = (word(0), word(1) as u32);
                check("time", time > last, || format!("{time} after {last}"))?;
                check("event", event >= 1000, || format!("{event}"))?;
                last = time;
                seen.push((time, event, (0..size(event)).map(|i| word(2 + i)).collect()));
                rest = &rest[16 + 8 * size(event)..];
            }
            Ok(())
        })
        .map_err(|e| format!("reading: {e}"))?;
    seen.sort();
    let lost = reader.lost();
    check("damage", reader.damaged() == 0, || {
        reader.damaged().to_string()
    })?;
    check(
        "count",
        seen.len() as u64 + lost == expected.len() as u64,
        || {
            format!(
                "{} recorded, {lost} lost, {} made",
                seen.len(),
                expected.len()
            )
        },
    )?;
    if case.free == GEOMETRY.packets {
        check("lost", lost == 0, || lost.to_string())?;
        for ((_, event, fields), expected) in seen.iter().zip(&expected) {
            check("fields", (*event, fields.clone()) == *expected, || {
                format!("{event} {fields:x?}, not {expected:x?}")
            })?;
        }
    } else if case.free == 0 {
        check("lost", seen.is_empty(), || {
            format!("{} recorded without room", seen.len())
        })?;
    }
    Ok(())
}

/// Decodes the instructions of a detour from its entry to its end.
fn instructions(case: &Case, runtime: Runtime) -> Vec<Instruction> {
    let (detour, image) = case.compile(runtime);
    let bytes = &image[(detour.entry - DETOUR) as usize..(detour.end() - DETOUR) as usize];
    Decoder::with_ip(64, bytes, detour.entry, DecoderOptions::NONE)
        .iter()
        .collect()
}

fn describe(case: &Case) -> String {
    let mut text = format!("{case:?}\n");
    for i in instructions(case, runtime(0x7000_0000_0000, Some(-160))) {
        let _ = writeln!(text, "{:#x} {i}", i.ip());
    }
    text
}

fn cases() -> usize {
    rounds(1_000, 9_000, 100_000)
}

#[test]
fn what_is_live_survives_and_what_is_recorded_is_true() {
    let mut random = Random::new(1);
    let cases: Vec<Case> = (0..cases())
        .map(|i| random_case(&mut random, i as u64 + 1))
        .collect();
    let mut session = None;
    in_child(
        &cases,
        |sandbox, case| run_case(session.get_or_insert_with(Session::new), sandbox, case),
        describe,
    );
}

extern "C" fn nothing(_: libc::c_int) {}

/// Starts a timer that raises a signal every 50 us.
fn interrupt_all_the_time() {
    handle(
        libc::SIGALRM,
        nothing as *const () as usize,
        libc::SA_RESTART,
    );
    let interval = libc::timeval {
        tv_sec: 0,
        tv_usec: 50,
    };
    let timer = libc::itimerval {
        it_interval: interval,
        it_value: interval,
    };
    // SAFETY: the timer's signal is handled.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
}

/// A timer signal every 50 us aborts restartable sequences all the time. In single steps, below, each is
/// aborted at each instruction.
#[test]
#[ignore = "soak"]
fn interrupted_records_are_whole_or_absent_and_none_is_lost() {
    let mut random = Random::new(2);
    let cases: Vec<Case> = (0..60)
        .map(|i| Case {
            mode: Mode::Registered,
            free: GEOMETRY.packets,
            runs: 600,
            ..random_case(&mut random, i + 1)
        })
        .filter(|case| {
            case.records()
                .map(|r| 16 + 8 * r.fields.len())
                .sum::<usize>()
                < 120
        })
        .collect();
    assert!(cases.len() > 20);
    let mut session = None;
    in_child(
        &cases,
        |sandbox, case| {
            let session = session.get_or_insert_with(|| {
                let session = Session::new(); // before signals interrupt its system calls
                interrupt_all_the_time();
                session
            });
            run_case(session, sandbox, case)
        },
        describe,
    );
}

/// A debugger's single steps: each raises a signal, so every attempt is aborted, and all
/// records take the locked path.
#[test]
fn stepped_detours_come_out_at_the_other_end() {
    if rseq_offset().is_none() {
        println!("skipped: this C library registers no restartable sequences");
        return;
    }
    let mut random = Random::new(4);
    let cases: Vec<Case> = (0..rounds(120, 300, 3_000) as u64)
        .map(|i| Case {
            mode: Mode::Registered,
            free: GEOMETRY.packets,
            runs: 3,
            stepped: true,
            ..random_case(&mut random, i + 1)
        })
        .collect();
    let mut session = None;
    in_child(
        &cases,
        |sandbox, case| {
            let session = session.get_or_insert_with(|| {
                step_from(STEP);
                Session::new()
            });
            run_case(session, sandbox, case)
        },
        describe,
    );
}

/// Checks the hot path in its own disassembly: no call, no lock, no system call, no
/// vector register, and one store to the stream's head.
#[test]
fn the_hot_path_is_straight_code() {
    let _guard = alone();
    let mut random = Random::new(3);
    let mut info = InstructionInfoFactory::new();
    for seed in 0..500 {
        let case = Case {
            mode: Mode::Registered,
            ..random_case(&mut random, seed)
        };
        let mut stores = 0;
        for i in instructions(&case, runtime(0x7000_0000_0000, Some(-160))) {
            let text = describe(&case);
            assert!(
                !i.is_call_near() && !i.is_call_near_indirect(),
                "{i}\n{text}"
            );
            assert!(
                !i.has_lock_prefix() && i.mnemonic() != Mnemonic::Xchg,
                "{i}\n{text}"
            );
            assert_ne!(i.mnemonic(), Mnemonic::Syscall);
            let info = info.info(&i);
            for used in info.used_registers() {
                assert!(!used.register().is_vector_register(), "{i}\n{text}");
            }
            for used in info.used_memory() {
                let written = matches!(
                    used.access(),
                    OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite
                );
                // The one store to the stream's head is the commit.
                let to_head = used.displacement() == stream::HEAD as u64
                    && used.index() == Register::None
                    && used.segment() != Register::FS
                    && used.base() != Register::RSP
                    && i.mnemonic() == Mnemonic::Mov
                    && i.memory_size().size() == 4;
                // Or a store to the counter.
                let counted = written && i.mnemonic() == Mnemonic::Add;
                stores += usize::from(written && to_head || counted);
            }
        }
        let commits = case.work.iter().filter(|w| **w != Work::Unregister).count();
        assert_eq!(stores, commits, "{}", describe(&case));
    }
}
