//! Finds callers in a child process, from random registers, stacks and tables of rules: the chain
//! must be equal, address by address, to a reference evaluation, and the program must not be
//! disturbed. Whatever rbp and the stack contain, nothing but their own memory is read, by the
//! kernel if it may be missing, and the walk ends.

use crate::description::*;
use crate::mapped;
use crate::mapped::map_session;
use crate::support::random::Random;
use crate::support::sandbox::{COPY, EXIT, STACK_POINTER, Sandbox, State, in_child};
use crate::undisturbed::undisturbed;
use capriole_codegen::detour::{Compiler, Request};
use capriole_codegen::fetch::{Content, Fetch, Field, STRING_LIMIT, Source};
use capriole_codegen::runtime::Runtime;
use capriole_insn::liveness::{Live, RegSet};
use capriole_object::frame_rules::{Cfa, FrameRule, RuleStart, SavedRbp};
use capriole_resident as resident;
use capriole_resident::unwinding::{Module, Table, chain};
use capriole_ring::layout::Geometry;
use capriole_ring::{Memory, Reader};
use capriole_testkit::effort::{rounds, seed};
use iced_x86::Register;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

static GEOMETRY: LazyLock<Geometry> = LazyLock::new(|| Geometry {
    cpus: mapped::cpus(),
    packet_size: 1 << 16,
    packets: 8,
    journal: 1,
    counters: 0,
    directories: 0,
    frames: 0,
    areas: 0,
    kept: 0,
    windows: true,
});
const DETOUR: u64 = COPY + 0x4000;
const EVENT: u32 = 4711;
/// Addresses of code: at the sandbox's exit, to which the stack's top leads, and elsewhere.
const CODE: [Range<u64>; 2] = [
    EXIT & !0xfff..(EXIT & !0xfff) + 0x1000,
    0x7000_0000..0x7000_3000,
];

#[derive(Debug)]
struct Case {
    modules: Vec<Module>,
    /// How many of them are added later, each by itself.
    later: usize,
    most: u16,
    site: u64,
    on_top: bool,
    /// There is memory for copies of the stack.
    windows: bool,
    long: bool,
    live: Live,
    red_zone: bool,
    seed: u64,
}

fn code(random: &mut Random) -> u64 {
    let range = &CODE[random.below(CODE.len())];
    range.start + random.below((range.end - range.start) as usize) as u64
}

/// Returns a rule; with `long` one that often leads on.
fn rule(random: &mut Random, long: bool) -> FrameRule {
    if long && random.below(12) > 0 {
        let above = 8 + 8 * random.below(12) as u32;
        return FrameRule::Frame {
            cfa: match random.below(8) {
                0 => Cfa::Rbp(above),
                _ => Cfa::Rsp(above),
            },
            rbp: SavedRbp::Unchanged,
        };
    }
    let distance = 8 * match random.below(8) {
        0 => random.below(1 << 18) as u32,
        1 => 0,
        _ => random.below(40) as u32,
    };
    let cfa = match random.below(12) {
        0 if random.below(2) == 0 => return FrameRule::Unknown,
        0 => return FrameRule::Called,
        1 if random.below(4) == 0 => return FrameRule::Outermost,
        1 | 2 => return FrameRule::Signal,
        3..=5 => Cfa::Rsp(distance),
        6 => Cfa::Plt,
        7 => Cfa::Saved(distance),
        _ => Cfa::Rbp(distance),
    };
    let rbp = match random.below(8) {
        0 => SavedRbp::Unknown,
        1 => SavedRbp::AtRbp,
        2..=4 => SavedRbp::Unchanged,
        _ => SavedRbp::BelowCfa(8 + 8 * random.below(20) as u32),
    };
    FrameRule::Frame { cfa, rbp }
}

fn module(random: &mut Random, addresses: Range<u64>, long: bool) -> Module {
    let mut at = 0;
    let rules = (0..random.below(200)).map(|_| {
        at += 1 + random.below(100) as u64;
        RuleStart {
            address: at,
            rule: rule(random, long),
        }
    });
    Module {
        rules: rules.collect(),
        addresses,
        link: 50,
    }
}

fn random_case(random: &mut Random, seed: u64) -> Case {
    let long = random.below(2) == 0;
    let mut modules = CODE
        .map(|addresses| module(random, addresses, long))
        .to_vec();
    modules.retain(|_| random.below(9) > 0);
    // Code that is mapped later: elsewhere, or where other code was.
    let later = random.below(3);
    for _ in 0..later {
        let start = match random.below(3) {
            0 => 0x7100_0000,
            _ => code(random),
        };
        let size = 1 + random.below(0x800) as u64;
        modules.push(module(random, start..start + size, long));
    }
    Case {
        modules,
        later,
        most: random.pick(&[1, 2, 30, 64, 128]),
        site: code(random),
        on_top: random.below(3) == 0,
        windows: random.below(8) > 0,
        long,
        live: Live {
            gprs: RegSet(random.number() as u16 | RegSet::of(Register::RSP).0),
            flags: random.below(2) == 0,
        },
        red_zone: random.below(2) == 0,
        seed,
    }
}

/// The walk, as it is described.
struct Walk<'a> {
    world: &'a World,
    stack: u64,
    /// Addresses that were copied.
    copied: Range<u64>,
    reads: u32,
    windows: bool,
    /// A word below the stack pointer was read, where the detour has its own.
    unsure: bool,
}

impl Walk<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let page = address & !0xfff;
        if !address.is_multiple_of(8) {
            return None;
        }
        self.unsure |= address < self.stack && page == self.stack & !0xfff;
        let above = address >= self.stack && page == self.stack & !0xfff;
        if !above && !self.copied.contains(&address) {
            let size = match self.reads {
                0 => chain::FIRST_READ,
                _ => chain::WINDOW,
            };
            self.copied = 0..0;
            if !self.windows || self.reads == chain::MOST_READS {
                return None;
            }
            self.reads += 1;
            let length = self.world.readable(page, size as usize).len() as u64;
            self.copied = page..page + length;
            if length == 0 {
                return None;
            }
        }
        self.world.word(address)
    }
}

fn rule_at(modules: &[Module], address: u64) -> FrameRule {
    // The module of an address is the last there, unless a later one overlaps it.
    let overlap = |a: &Module, b: &Module| {
        a.addresses.start < b.addresses.end && b.addresses.start < a.addresses.end
    };
    let lasts = |at: usize| {
        !modules[at + 1..]
            .iter()
            .any(|later| overlap(&modules[at], later))
    };
    let module = (0..modules.len())
        .filter(|at| lasts(*at))
        .map(|at| &modules[at]);
    let module = module.into_iter().find(|m| m.addresses.contains(&address));
    let rule = module.and_then(|module| {
        let link = address - module.addresses.start + module.link;
        let mut rules = module.rules.iter().rev();
        rules.find(|rule| rule.address <= link)
    });
    rule.map_or(FrameRule::Unknown, |rule| rule.rule)
}

/// Returns the addresses and the reason for the end; `None` if they depend on what is below the
/// stack pointer.
fn expected(case: &Case, world: &World) -> Option<(Vec<u64>, u32)> {
    let mut rsp = world.registers[Register::RSP.number()];
    let mut rbp = Some(world.registers[Register::RBP.number()]);
    let mut walk = Walk {
        world,
        stack: rsp,
        copied: 0..0,
        reads: 0,
        windows: case.windows,
        unsure: false,
    };
    let (mut address, mut exact) = (case.site, true);
    let mut found = Vec::new();
    while found.len() < case.most.into() {
        let is_first = found.is_empty();
        found.push(address);
        let rule = match case.on_top && is_first {
            true => FrameRule::Frame {
                cfa: Cfa::Rsp(8),
                rbp: SavedRbp::Unchanged,
            },
            false if exact => rule_at(&case.modules, address),
            false => rule_at(&case.modules, address - 1).returned_to(),
        };
        let step = |walk: &mut Walk<'_>| -> Result<(u64, u64, Option<u64>, bool), u32> {
            let mut read = |at: u64| walk.word(at).ok_or(chain::UNREADABLE);
            let (cfa, saved) = match rule {
                FrameRule::Unknown | FrameRule::Called => return Err(chain::UNKNOWN),
                FrameRule::Outermost => return Err(chain::OUTERMOST),
                FrameRule::Signal => {
                    let rbp = read(rsp.wrapping_add(chain::SIGNAL_RBP))?;
                    let rip = read(rsp.wrapping_add(chain::SIGNAL_RIP))?;
                    let rsp = read(rsp.wrapping_add(chain::SIGNAL_RSP))?;
                    return Ok((rip, rsp, Some(rbp), true));
                }
                FrameRule::Frame { cfa, rbp } => (cfa, rbp),
            };
            let known = || rbp.ok_or(chain::UNKNOWN);
            let cfa = match cfa {
                Cfa::Rsp(above) => rsp.wrapping_add(above.into()),
                Cfa::Plt => rsp.wrapping_add(if address & 15 >= 11 { 16 } else { 8 }),
                Cfa::Rbp(above) => known()?.wrapping_add(above.into()),
                Cfa::Saved(below) => read(known()?.wrapping_sub(below.into()))?,
            };
            if cfa <= rsp {
                return Err(chain::UNKNOWN);
            }
            let rbp = match (saved, rbp) {
                (SavedRbp::Unknown, _) => None,
                (SavedRbp::Unchanged, rbp) => rbp,
                (SavedRbp::AtRbp, None) => None,
                (SavedRbp::AtRbp, Some(at)) => Some(read(at)?),
                (SavedRbp::BelowCfa(below), _) => Some(read(cfa.wrapping_sub(below.into()))?),
            };
            match read(cfa.wrapping_sub(8))? {
                0 => Err(chain::OUTERMOST),
                to => Ok((to, cfa, rbp, false)),
            }
        };
        let stepped = step(&mut walk);
        if walk.unsure {
            return None;
        }
        match stepped {
            Ok(next) => (address, rsp, rbp, exact) = next,
            Err(end) => return Some((found, end)),
        }
    }
    Some((found, chain::FULL))
}

struct Session {
    memory: Arc<Memory>,
    base: u64,
    area: Area,
}

impl Session {
    fn new() -> Session {
        let (memory, base) = map_session(&GEOMETRY);
        Session {
            memory,
            base,
            area: Area::map(),
        }
    }

    /// Fills the memory that frames may be in, beside the stack: words that lead to code, to itself
    /// and to nowhere.
    fn fill(&self, random: &mut Random, long: bool) -> Vec<u8> {
        let mut words = Vec::with_capacity(AREA_SIZE);
        let mut last = 0;
        while words.len() < AREA_SIZE {
            let word = match random.below(12) {
                _ if long && random.below(12) > 0 => code(random),
                0 => random.number(),
                1 => 0,
                2 => pointer(random),
                3 => STACK_POINTER + 8 * random.below(100) as u64,
                // Upwards, as frames are; sometimes it stays where it is.
                4..=7 => {
                    last = AREA + (words.len() + 8 * random.below(60)) as u64;
                    last
                }
                8 => last,
                _ => code(random),
            };
            words.extend(word.to_le_bytes());
        }
        self.area.set(&words);
        words
    }

    fn record(&self) -> Result<Vec<u8>, String> {
        let mut reader = Reader::new(self.memory.clone(), *GEOMETRY);
        let mut records = Vec::new();
        let collected = reader.collect::<String>(true, |packet| {
            if !packet.content.is_empty() {
                records.push(packet.content[16..].to_vec());
            }
            Ok(())
        });
        collected.map_err(|error| format!("reading: {error}"))?;
        match (records.pop(), reader.lost(), records.len()) {
            (Some(record), 0, 0) => Ok(record),
            other => Err(format!("{other:?}")),
        }
    }
}

/// Counts of chains by their ends: there must be all kinds.
#[derive(Debug, Default)]
struct Seen {
    ends: [u64; 4],
    longest: usize,
    with_calls: u64,
}

fn run_case(
    session: &Session,
    seen: &mut Seen,
    sandbox: &mut Sandbox,
    case: &Case,
) -> Result<(), String> {
    let callers = Field {
        source: Source::Register(Register::RBP),
        pointers: Vec::new(),
        length: None,
        content: Content::Callers {
            most: case.most,
            site: case.site,
            on_top: case.on_top,
        },
    };
    let behind = Field {
        source: Source::Immediate(0x1234_5678_9abc),
        content: Content::Number(capriole_codegen::condition::Width::WORD),
        ..callers.clone()
    };
    let fetch = Fetch {
        fields: vec![callers, behind],
        recorded: 2,
        ..Fetch::default()
    };
    let work = fetch.work(EVENT).map_err(|error| error.to_string())?;
    assert!(work.finds_callers() && work.may_call());
    // Words, so that it is aligned. The last modules are added to a table of the others.
    let (first, later) = case.modules.split_at(case.modules.len() - case.later);
    let mut memory = vec![0_u64; (Table::size(&case.modules) + 4096) / 8];
    let base = memory.as_mut_ptr() as u64;
    let mut table = Table::from(base);
    let (mut at, mut newest) = (0, 0);
    for modules in [first].into_iter().chain(later.chunks(1)) {
        let (bytes, head) = table.add(modules, base + 8 * at as u64);
        for word in bytes.chunks(8) {
            memory[at] = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            at += 1;
        }
        newest = head;
    }
    let newest = [newest];
    let mut random = Random::new(case.seed);
    for _ in 0..6 {
        mapped::empty(&session.memory, session.base, &GEOMETRY);
        let config = resident::Config {
            tid_offset: Some(TID_OFFSET),
            unwinding: newest.as_ptr() as u64,
            own_frames: 0,
            geometry: Geometry {
                windows: case.windows,
                ..*GEOMETRY
            },
            ..mapped::config(session.base, &GEOMETRY)
        };
        sandbox.write(COPY, &resident::place(COPY, &config));
        let runtime = Runtime {
            tid_offset: Some(TID_OFFSET),
            ..mapped::runtime(session.base, &GEOMETRY, COPY)
        };
        let mut compiler = Compiler::new(runtime, DETOUR, Vec::new());
        let request = Request {
            work: std::slice::from_ref(&work),
            displaced: &[],
            resume: EXIT,
            red_zone: case.red_zone,
            live: case.live,
        };
        let detour = compiler.compile(&request).expect("all is near");
        sandbox.write(DETOUR, compiler.image());
        let area = session.fill(&mut random, case.long);
        let mut input: State = random.state();
        input.gprs[Register::RBP.number()] = match random.below(6) {
            0 => random.number(),
            1 => STACK_POINTER + 8 * random.below(40) as u64,
            _ => AREA + 8 * random.below(AREA_SIZE / 16) as u64,
        };
        let seed = random.number();
        let plain = sandbox.run(EXIT, &input, seed);
        let out = sandbox.run(detour.entry, &input, seed);
        undisturbed(&plain, &out, case.live, case.red_zone)?;
        let world = World {
            area,
            registers: plain.state.gprs,
            stack: plain.stack.clone(),
            data: plain.data.clone(),
            comm: own_comm(),
            tid: own_tid(),
            text_limit: STRING_LIMIT,
        };
        let Some((found, end)) = expected(case, &world) else {
            continue;
        };
        let mut bytes = (found.len() as u32).to_le_bytes().to_vec();
        bytes.extend(end.to_le_bytes());
        bytes.extend(found.iter().flat_map(|address| address.to_le_bytes()));
        bytes.extend(0x1234_5678_9abc_u64.to_le_bytes());
        let record = session.record()?;
        if record != bytes {
            return Err(format!("recorded {record:x?}, not {bytes:x?}"));
        }
        seen.ends[end as usize] += 1;
        seen.longest = seen.longest.max(found.len());
        seen.with_calls += u64::from(found.len() > 2);
    }
    Ok(())
}

#[test]
fn chains_are_those_of_the_rules_whatever_the_stack_contains() {
    if thread_word(TID_OFFSET) != own_tid() {
        println!("skipped: this C library keeps the thread's id elsewhere");
        return;
    }
    let mut random = Random::new(seed() + 11);
    let count = rounds(3_000, 9_000, 100_000) as u64;
    let cases: Vec<Case> = (0..count)
        .map(|number| random_case(&mut random, number + 1))
        .collect();
    for cases in cases.chunks(3_000) {
        let mut session = None;
        let mut seen = Seen::default();
        let mut left = cases.len();
        in_child(
            cases,
            |sandbox, case| {
                let session = session.get_or_insert_with(Session::new);
                run_case(session, &mut seen, sandbox, case)?;
                left -= 1;
                let enough = seen.ends.iter().all(|ends| *ends > 20)
                    && seen.longest > 20
                    && seen.with_calls > 500;
                match left == 0 && !enough {
                    true => Err(format!("{seen:?}")),
                    false => Ok(()),
                }
            },
            |case| format!("{case:x?}"),
        );
    }
}
