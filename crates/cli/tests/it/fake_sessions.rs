//! Memory that has the name of session memory but was made by someone else, with arbitrary
//! numbers in it: no process that encounters it allocates more memory than there is, hangs,
//! panics, or writes where it should not. Data meant for the user's own recordings does not go
//! there either.

use crate::programs;

use crate::limited::ended;
use crate::target::{Running, is_root, told};
use crate::traces::{Background, scratch};
use capriole_host::ptrace;
use capriole_ledger as ledger;
use capriole_ledger::{header as noted, journal};
use capriole_patch::outside::{sessions, writer};
use capriole_patch::recover::find;
use capriole_proc::process::Process;
use capriole_ring::Memory;
use capriole_ring::layout::{Geometry, State, header};
use capriole_testkit::effort::{Random, rounds};
use programs::{Compiler, build};
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Address where the program maps the memory.
const SESSION: u64 = 0x1000_0000_0000;
const CODE: u64 = 0x3000_0000_0000;
/// More memory than any machine has.
const HUGE: u64 = 16 << 40;

struct Fake {
    running: Running,
    memory: Memory,
    ledger: Memory,
    geometry: Geometry,
}

impl Fake {
    fn program() -> Option<PathBuf> {
        build(Compiler::Gcc, "fake_session.c", &[])
    }

    fn start(size: u64) -> Option<Fake> {
        let mut command = Command::new(Fake::program()?);
        Some(Fake::of(command.arg(size.to_string())))
    }

    fn of(command: &mut Command) -> Fake {
        let running = Running::of(command);
        let map = |number| {
            let path = format!("/proc/{}/fd/{number}", running.pid);
            let file = OpenOptions::new().read(true).write(true).open(path);
            Memory::map(&file.expect("its memory").into(), 1 << 20).expect("map")
        };
        let (memory, ledger) = (map(3), map(4));
        let geometry = Geometry::for_buffer(1 << 17, 2, 16);
        Fake {
            running,
            memory,
            ledger,
            geometry,
        }
    }

    /// Formats the memory as a recorder would, if the program itself were the recorder.
    fn format(&mut self) {
        self.running.say("");
        assert_eq!(self.running.line(), "mapped");
        self.memory.write(0, &vec![0; self.memory.len()]);
        self.memory.format(SESSION, &self.geometry);
        self.memory.store_u32(header::STATE, State::Armed as u32);
        self.memory.store_u32(header::MESSAGES, 1);
        let own = self.running.process();
        let maps = own.maps().expect("maps");
        let at = maps.iter().find(|m| m.start == SESSION).expect("mapped");
        let ledger = &self.ledger;
        ledger.write(0, &vec![0; ledger.len()]);
        for (at, value) in [
            (noted::MAGIC, ledger::MAGIC),
            (noted::START_TIME, own.start_time()),
            (noted::OWNER_START_TIME, own.start_time()),
            (noted::MEMORY, SESSION),
            (noted::MEMORY + 8, at.end - at.start),
            (noted::MEMORY + 16, at.inode),
        ] {
            ledger.store(at, value);
        }
        for (at, value) in [
            (noted::VERSION, ledger::VERSION),
            (noted::STATE, State::Armed as u32),
            (noted::PID, own.pid()),
            (noted::OWNER, own.pid()),
        ] {
            ledger.store_u32(at, value);
        }
    }

    /// Runs a command with limited memory and time, and returns its output.
    fn meets(&self, words: &[&str]) -> Output {
        let pid = self.running.pid.to_string();
        let words: Vec<&str> = words
            .iter()
            .map(|word| if *word == "PID" { &pid } else { *word })
            .collect();
        ended(&words)
    }
}

/// Offsets of the header's fields, and their sizes in bytes.
const FIELDS: [(usize, usize); 10] = [
    (header::VERSION, 4),
    (header::STATE, 4),
    (header::BASE, 8),
    (header::SIZE, 8),
    (header::CPUS, 4),
    (header::LANES, 4),
    (header::PACKET_SIZE, 4),
    (header::PACKETS, 4),
    (header::MESSAGES, 4),
    (header::PACKETS_OFFSET, 8),
];
/// Offsets of the ledger's fields, and their sizes in bytes.
const NOTED: [(usize, usize); 20] = [
    (noted::MAGIC, 8),
    (noted::VERSION, 4),
    (noted::STATE, 4),
    (noted::PID, 4),
    (noted::OWNER, 4),
    (noted::START_TIME, 8),
    (noted::OWNER_START_TIME, 8),
    (noted::MEMORY, 8),
    (noted::MEMORY + 8, 8),
    (noted::MEMORY + 16, 8),
    (noted::JOURNAL_LEN, 4),
    (noted::ARENAS_LEN, 4),
    (noted::ARENAS, 8),
    (noted::ARENAS + 8, 8),
    (noted::ACTIONS_INSTALLED, 4),
    (noted::ACTIONS, 8),
    (noted::ACTIONS + 8, 8),
    (noted::STUBS, 8),
    (noted::RETURNS, 8),
    (noted::BATCH, 8),
];

fn put(memory: &Memory, (at, bytes): (usize, usize), value: u64) {
    match bytes {
        4 => memory.store_u32(at, value as u32),
        _ => memory.store(at, value),
    }
}

/// Returns boundary values, each of which has caused a failure.
fn interesting(random: &mut impl FnMut() -> u64) -> u64 {
    let of = [
        0,
        1,
        3,
        4096,
        u64::from(u32::MAX),
        1 << 31,
        u64::MAX,
        u64::MAX - 63,
        1 << 47,
        SESSION,
        SESSION + (1 << 20) - 8,
        CODE,
        HUGE,
        random(),
        random() % 4096,
        SESSION + random() % (1 << 20),
    ];
    of[random() as usize % of.len()]
}

/// Puts arbitrary numbers into any fields and into the data they refer to, for readers and
/// writers.
#[test]
fn any_header_is_read_and_written_to_without_harm() {
    for size in [1 << 20, HUGE] {
        let Some(mut fake) = Fake::start(size) else {
            return;
        };
        let process = fake.running.process();
        let mut random = Random::new(size);
        let mut random = || random.number();
        let (mut sound, mut written) = (0, 0);
        let rounds = rounds(600, 1500, 20_000);
        for round in 0..rounds {
            fake.format();
            for _ in 0..1 + round % 4 {
                let field = FIELDS[random() as usize % FIELDS.len()];
                put(&fake.memory, field, interesting(&mut random));
            }
            for _ in 0..round % 3 {
                let field = NOTED[random() as usize % NOTED.len()];
                put(&fake.ledger, field, interesting(&mut random));
            }
            for _ in 0..round % 3 {
                let at = random() as usize % (1 << 17) / 8 * 8;
                fake.memory.store(at, interesting(&mut random));
                fake.ledger.store(at, interesting(&mut random));
            }
            let Ok(found) = find(&*ptrace::host(&process)) else {
                continue;
            };
            for session in found {
                sound += 1;
                let Ok(writer) = writer(&process, &session) else {
                    continue;
                };
                written += usize::from(writer.write_text(0, 1, b"text", || 1).is_ok());
            }
        }
        // Check that some headers are accepted, so that the test reaches further than the first check.
        let enough = sound > rounds / 15 && written > rounds / 150;
        assert!(enough, "{sound} {written}");
        fake.running.finish();
    }
}

/// Sets up the largest possible claims: a journal, code that was never written, packets.
fn greedy(fake: &Fake, which: usize) {
    let (memory, ledger) = (&fake.memory, &fake.ledger);
    match which {
        0 => ledger.store_u32(noted::JOURNAL_LEN, u32::MAX),
        1 => {
            // The longest possible journal, all entries alike.
            ledger.store_u32(noted::JOURNAL_LEN, ledger::MAX_ENTRIES);
            let entry = 6 * 4096 + journal::LEN;
            ledger.write(entry, &[journal::MAX_BYTES as u8 + 1]);
        }
        2 | 3 => {
            ledger.store(noted::ARENAS, CODE);
            ledger.store(noted::ARENAS + 8, HUGE);
            ledger.store_u32(noted::ARENAS_LEN, which as u32 - 2);
        }
        4 => {
            memory.store_u32(header::CPUS, u32::MAX);
            memory.store_u32(header::PACKETS, u32::MAX);
            memory.store_u32(header::PACKET_SIZE, u32::MAX);
        }
        5 => {
            memory.store(header::SIZE, u64::MAX);
            ledger.store(noted::MEMORY + 8, u64::MAX);
        }
        6 => ledger.store_u32(noted::ARENAS_LEN, u32::MAX),
        // As many arenas as allowed, each of the largest allowed size.
        7 => {
            for arena in 0..ledger::MAX_ARENAS {
                let at = noted::ARENAS + arena * 16;
                ledger.store(at, CODE + ((arena as u64) << 31));
                ledger.store(at + 8, 2 << 30);
            }
            ledger.store_u32(noted::ARENAS_LEN, ledger::MAX_ARENAS as u32);
        }
        _ => ledger.store(noted::RETURNS, CODE - 4096),
    }
}

#[test]
fn who_asks_for_more_than_there_is_does_not_get_it() {
    let directory = scratch();
    let trace = directory.path().join("t");
    let trace = trace.to_str().expect("UTF-8");
    for which in 0..9 {
        for words in [
            &["mark", "-p", "PID", "text"][..],
            &[
                "record",
                "-p",
                "PID",
                "-o",
                trace,
                "--duration",
                "10ms",
                "-e",
                ":main",
            ],
            &["detach", "PID"],
        ] {
            // Start a new one each time: detach closes sessions that it takes for leftovers.
            let Some(mut fake) = Fake::start(HUGE) else {
                return;
            };
            fake.format();
            greedy(&fake, which);
            let output = fake.meets(words);
            let pid = fake.running.pid.to_string();
            if !output.status.success() {
                assert!(told(&output).contains(&pid), "{which} {}", told(&output));
            }
            fake.running.finish();
        }
    }
}

/// An apparent session of another user, or of a program that is no recorder: messages without
/// an address do not go there, even if it claims to belong to an existing recorder.
#[test]
fn what_is_written_to_all_goes_to_the_own_recordings_alone() {
    let (Some(program), Some(other)) = (Fake::program(), build(Compiler::Gcc, "counted.c", &[]))
    else {
        return;
    };
    let open = scratch();
    let mut commands = vec![Command::new(&program)];
    if is_root("have processes of other users") {
        // With our program name, but of another user.
        let copy = programs::copied_for_others(&program, open.path(), 0o755);
        let mut command = Command::new(&copy);
        command.uid(65534).gid(65534);
        commands.push(command);
    }
    let mut running = Running::start(&other, &["--wait", "--threads", "1", "--calls", "5"]);
    let directory = scratch();
    let recorder = Background::attach(&directory.path().join("t"), running.pid, &[":counted_work"]);
    let recording = find(&*ptrace::host(&running.process())).expect("a session");
    let owner = Process::open(recording[0].owner.expect("a recorder")).expect("it runs");
    for command in &mut commands {
        let mut fake = Fake::of(command);
        for claim in [false, true] {
            fake.format();
            if claim {
                fake.ledger.store_u32(noted::OWNER, owner.pid());
                let started = owner.start_time();
                fake.ledger.store(noted::OWNER_START_TIME, started);
            }
            let pids: Vec<u32> = sessions()
                .iter()
                .map(|(process, _)| process.pid())
                .collect();
            assert!(!pids.contains(&fake.running.pid));
            assert!(pids.contains(&running.pid));
        }
        // A process named explicitly is always accepted.
        fake.format();
        let output = fake.meets(&["mark", "-p", "PID", "text"]);
        assert!(output.status.success(), "{}", told(&output));
        fake.running.finish();
    }
    recorder.end();
    running.say("go");
    running.say("end");
    running.finish();
}
