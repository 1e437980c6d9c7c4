//! Detours are run, in a child process, from random registers and flags: what is
//! live must come out as it went in, and the record must hold what went in.

#[path = "../../insn/tests/support/mod.rs"]
#[allow(unused_imports)]
mod support;

use capriole_insn::liveness::{Live, RegSet};
use capriole_plan::detour::{ALIGNMENT, Detour, Record, Request, Runtime, compile};
use capriole_resident as resident;
use capriole_ring::layout::{self, Geometry, control};
use capriole_ring::memory::Identity;
use capriole_ring::{Memory, Reader};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess, Register};
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::Arc;
use support::random::Random;
use support::sandbox::{COPY, EXIT, STACK_POINTER, Sandbox, State, alone, in_child};

const GEOMETRY: Geometry = Geometry {
    cpus: 256,
    packet_size: 4096,
    packets: 64,
    journal: 1,
    counters: 0,
};
/// Where the detour under test stands; the resident stands at `COPY`.
const DETOUR: u64 = COPY + 0x2000;

/// How a case finds the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Restartable sequences as glibc registered them.
    Registered,
    /// A `struct rseq` that says "not registered".
    Unregistered,
    /// No offset is known: every record goes the locked way.
    Locked,
}

#[derive(Debug, Clone)]
struct Case {
    live: Live,
    red_zone: bool,
    records: Vec<Record>,
    mode: Mode,
    /// Packets that are free when it starts, 0: the events are lost.
    free: u32,
    /// How often the detour runs, with the packets filling up.
    runs: u32,
    seed: u64,
}

fn random_case(random: &mut Random, seed: u64) -> Case {
    let register = |random: &mut Random| loop {
        let register = Register::RAX + random.below(16) as u32;
        if register != Register::RSP {
            return register;
        }
    };
    let mut records = Vec::new();
    for event in 0..1 + random.below(3) as u32 {
        let fields = (0..random.below(7)).map(|_| register(random)).collect();
        records.push(Record {
            event: 1000 + event,
            fields,
        });
    }
    Case {
        live: Live {
            gprs: RegSet(random.next() as u16 | RegSet::of(Register::RSP).0),
            flags: random.below(2) == 0,
        },
        red_zone: random.below(2) == 0,
        records,
        mode: random.pick(&[
            Mode::Registered,
            Mode::Registered,
            Mode::Unregistered,
            Mode::Locked,
        ]),
        free: random.pick(&[GEOMETRY.packets, GEOMETRY.packets, 3, 0]),
        runs: random.pick(&[1, 2, 150]),
        seed,
    }
}

fn request<'a>(case: &'a Case) -> Request<'a> {
    Request {
        records: &case.records,
        displaced: &[],
        resume: EXIT,
        red_zone: case.red_zone,
        live: case.live,
    }
}

/// glibc's offset of `struct rseq` from the thread pointer, if it registered one.
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

/// A `struct rseq` of a thread that never registered it, as near to the thread
/// pointer as the real one.
#[repr(C, align(32))]
struct FakeRseq(Cell<[u32; 8]>);
thread_local! {
    static FAKE: FakeRseq = const { FakeRseq(Cell::new([0, u32::MAX, 0, 0, 0, 0, 0, 0])) };
}

/// Session memory of the child, as target and tracer at once.
struct Session {
    memory: Arc<Memory>,
    base: u64,
}

impl Session {
    fn new() -> Session {
        let fd = rustix::fs::memfd_create("detour-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, GEOMETRY.size() as u64).unwrap();
        let memory = Arc::new(Memory::map(&fd, GEOMETRY.size()).unwrap());
        // SAFETY: a fresh mapping, never unmapped.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                GEOMETRY.size(),
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .unwrap() as u64;
        Session { memory, base }
    }

    fn reset(&self, free: u32) {
        self.memory.format(
            self.base,
            &GEOMETRY,
            &Identity {
                target: (0, 0),
                owner: (0, 0),
            },
        );
        for lane in 0..layout::LANES as u32 {
            for cpu in 0..GEOMETRY.cpus {
                let at = GEOMETRY.stream(lane, cpu);
                self.memory.store(at + layout::stream::LOST, 0);
                self.memory.store_u32(at + layout::stream::LOCK, 0);
            }
        }
        for word in 0..layout::MAX_PACKETS / 64 {
            self.memory.store(layout::header::FREE + 8 * word, 0);
        }
        for index in 0..free {
            self.memory.free_packet(index);
        }
    }

    /// Puts resident and detour in place.
    fn place(&self, sandbox: &mut Sandbox, case: &Case) -> Detour {
        let rseq = match case.mode {
            Mode::Registered => rseq_offset(),
            Mode::Unregistered => {
                let fake = FAKE.with(|fake| std::ptr::from_ref(fake) as u64);
                Some(i32::try_from(fake.wrapping_sub(thread_pointer()) as i64).unwrap())
            }
            Mode::Locked => None,
        };
        let config = resident::Config {
            session: self.base,
            geometry: GEOMETRY,
            rseq_offset: rseq,
            tid_offset: None,
            no_wake: false,
            traps: (0, 0),
            old_trap: (0, 0),
        };
        // The kernel reads the last descriptor when it preempts us: not while the
        // bytes of another detour take its place. (A detach clears it, too.)
        if let Some(offset) = rseq_offset() {
            let rseq_cs = thread_pointer().wrapping_add(offset as u64) + 8;
            // SAFETY: a field of this thread's registered `struct rseq`.
            unsafe { (rseq_cs as *mut u64).write_volatile(0) };
        }
        sandbox.write(COPY, &resident::place(COPY, &config));
        let detour = compile(&request(case), &runtime(self.base, rseq), DETOUR).unwrap();
        sandbox.write(DETOUR, &detour.bytes);
        detour
    }
}

fn runtime(base: u64, rseq_offset: Option<i32>) -> Runtime {
    let entries = resident::entries(COPY);
    Runtime {
        heads: base + GEOMETRY.heads() as u64,
        rseq_offset,
        tid_offset: None,
        switch: entries.switch,
        locked: entries.locked,
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
    let mut random = Random::new(case.seed);
    let mut expected = Vec::new();
    for _ in 0..case.runs {
        let input: State = random.state();
        let seed = random.next();
        // The same run without the detour: what memory and stack look like.
        let plain = sandbox.run(EXIT, &input, seed);
        let out = sandbox.run(detour.entry, &input, seed);
        for register in case.live.gprs.iter() {
            let i = register.number();
            check("register", out.state.gprs[i] == plain.state.gprs[i], || {
                format!(
                    "{register:?} {:#x} became {:#x}",
                    plain.state.gprs[i], out.state.gprs[i]
                )
            })?;
        }
        if case.live.flags {
            check("flags", out.state.flags == plain.state.flags, || {
                format!("{:#x} became {:#x}", plain.state.flags, out.state.flags)
            })?;
        }
        check("data", out.data == plain.data, || "changed".into())?;
        let kept = (STACK_POINTER & 0xfff) as usize - if case.red_zone { 128 } else { 0 };
        check(
            "stack",
            out.stack[kept..2048] == plain.stack[kept..2048],
            || "changed".into(),
        )?;
        for record in &case.records {
            let fields: Vec<u64> = record
                .fields
                .iter()
                .map(|r| plain.state.gprs[r.number()])
                .collect();
            expected.push((record.event, fields));
        }
    }
    let mut reader = Reader::new(session.memory.clone(), GEOMETRY, session.base);
    let mut seen: Vec<(u64, u32, Vec<u64>)> = Vec::new();
    let size = |event: u32| case.records[event as usize - 1000].fields.len();
    reader
        .collect::<String>(true, |packet| {
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

fn describe(case: &Case) -> String {
    let detour = compile(
        &request(case),
        &runtime(0x7000_0000_0000, Some(-160)),
        DETOUR,
    )
    .unwrap();
    let mut text = format!("{case:?}\n");
    let start = (detour.entry - DETOUR) as usize;
    for i in &mut Decoder::with_ip(
        64,
        &detour.bytes[start..],
        detour.entry,
        DecoderOptions::NONE,
    ) {
        let _ = writeln!(text, "{:#x} {i}", i.ip());
    }
    text
}

fn cases() -> usize {
    std::env::var("CAPRIOLE_LONG").map_or(3_000, |_| 100_000)
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

/// Starts a timer whose signal comes every 50 us, handled on a stack of its own: the
/// sandbox's is small.
fn interrupt_all_the_time() {
    let stack = Box::leak(vec![0u8; 1 << 16].into_boxed_slice());
    let stack = libc::stack_t {
        ss_sp: stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: stack.len(),
    };
    // SAFETY: the stack is leaked, so it stays.
    unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
    // SAFETY: zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler does nothing.
    unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) };
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

/// A timer signal every 50 us aborts restartable sequences all the time.
#[test]
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
            case.records
                .iter()
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

/// The hot path, read in its own disassembly: no call, no lock, no system call, no
/// vector register, and one store to the packet's control.
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
        let detour = compile(
            &request(&case),
            &runtime(0x7000_0000_0000, Some(-160)),
            DETOUR,
        )
        .unwrap();
        let start = (detour.entry - DETOUR) as usize;
        let mut stores = 0;
        for i in &mut Decoder::with_ip(
            64,
            &detour.bytes[start..],
            detour.entry,
            DecoderOptions::NONE,
        ) {
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
                // The one store to the packet's control is the commit.
                let to_control = used.displacement() == control::POS as u64
                    && used.segment() != Register::FS
                    && used.base() != Register::RSP
                    && i.mnemonic() == Mnemonic::Mov
                    && i.memory_size().size() == 8;
                stores += usize::from(written && to_control);
            }
        }
        assert_eq!(stores, case.records.len(), "{}", describe(&case));
        assert_eq!(DETOUR % ALIGNMENT, 0);
    }
}
