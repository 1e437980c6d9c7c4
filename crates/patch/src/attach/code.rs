//! The code of a session: arenas with the resident and the detours, the stubs, and the table of
//! breakpoints.

use super::CLUSTER;
use super::{Point, Probe, SiteError, counters};
use crate::actions;
use crate::guards::{Guarded, bytes_of};
use crate::other::{Other, check_action};
use crate::returns::Region;
use crate::session::{Agent, Batch, SessionMemory, write};
use crate::stubs::{Row, Stubs};
use capriole_codegen::detour;
use capriole_codegen::detour::{Chain, Compiler, PLACES_ROOM, Request, room};
use capriole_codegen::runtime::{ClockReading, Counters, Frames, Runtime};
use capriole_codegen::work::Work;
use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_host::steps::step;
use capriole_host::survey::Survey;
use capriole_insn::liveness::Live;
use capriole_ledger::change::{Change, INT3, Uses};
use capriole_ledger::counter;
use capriole_ledger::counter::Reference;
use capriole_ledger::{Action, Arena, FAULTS, journal};
use capriole_proc::process::Process;
use capriole_resident as resident;
use capriole_resident::unwinding::{self, Module};
use capriole_tactic::site::{JUMP, Patch, Placed, Shape, StubTo};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Space for the copy of one evicted neighbour, bytes; more than ever needed.
const COPY_ROOM: u64 = 64;
/// Space for following a call, bytes: the call of the routine, and the code that returns.
const RETURN_ROOM: u64 = 512;
/// Size of an entry of the table of breakpoints, and of a row of a batch of system calls,
/// bytes.
const ENTRY: u64 = 16;
const ROW: u64 = 32;
/// Alignment of a compiler's image, bytes.
const DESCRIPTOR: u64 = 32;
const PAGE: u64 = 4096;
/// Attempts to replace the action of a signal that the program sets at the same time.
const ACTION_TRIES: u32 = 8;

/// Probes whose objects can share an arena.
pub(super) struct Cluster {
    /// Address range that contains the objects.
    pub near: Range<u64>,
    /// Bytes that the arena needs.
    pub size: u64,
    probes: Vec<usize>,
}

/// Space for finding callers in code that is mapped later, bytes: it takes no memory before it is used.
const CALLERS_ROOM: u64 = 4 << 20;

/// Space for the rule of the place in an arena to which signal handlers return, bytes.
const RETURNING: u64 = 64;

/// Groups probes that can share an arena; the first has room for the rules of `callers` as well, and if the
/// code is `unwound`, for what an unwinder is told of it.
pub(super) fn clusters(probes: &[Probe], callers: &[Module], unwound: bool) -> Vec<Cluster> {
    let mut order: Vec<usize> = (0..probes.len()).collect();
    order.sort_by_key(|i| (probes[*i].near.start, probes[*i].shape.covered.start));
    let mut clusters: Vec<Cluster> = Vec::new();
    for index in order {
        let near = probes[index].near.clone();
        match clusters.last_mut() {
            Some(c) if near.end.saturating_sub(c.near.start) <= CLUSTER => {
                c.near.end = c.near.end.max(near.end);
                c.probes.push(index);
            }
            _ => clusters.push(Cluster {
                near,
                size: 0,
                probes: vec![index],
            }),
        }
    }
    for cluster in &mut clusters {
        let detours: u64 = cluster.probes.iter().map(|i| room_of(&probes[*i])).sum();
        cluster.size = resident::size() as u64 + ENTRY + detours + PLACES_ROOM;
    }
    let count = clusters.len() as u64;
    if let Some(first) = clusters.first_mut() {
        first.size += tables_room(probes) + ENTRY;
        if unwound {
            first.size += resident::frames().len() as u64 + 2 * ENTRY;
            first.size += code_room(probes) + RESIDENT_ROOM * count;
        }
        if !callers.is_empty() {
            first.size += 3 * ENTRY + unwinding::Table::size(callers) as u64 + CALLERS_ROOM;
            first.size += RETURNING * count;
        }
    }
    for cluster in &mut clusters {
        cluster.size = cluster.size.next_multiple_of(PAGE);
    }
    clusters
}

fn placed(probe: &Probe) -> impl Iterator<Item = &Placed> {
    probe.shape.placed.iter()
}

fn room_of(probe: &Probe) -> u64 {
    let copies: usize = placed(probe).map(|p| p.evicted.len()).sum();
    let of = |point: &Point| {
        let returns = match point.returns.is_empty() {
            true => 0,
            false => room(&point.returns) + RETURN_ROOM,
        };
        let after = match point.after.is_empty() {
            true => 0,
            false => room(&point.after),
        };
        room(&point.work) + after + returns
    };
    let points: u64 = probe.points.iter().map(of).sum();
    let lead = probe
        .points
        .first()
        .is_none_or(|p| p.site != probe.shape.covered.start);
    let copies = copies + probe.shape.displaced.len().saturating_sub(JUMP as usize);
    points + COPY_ROOM * copies as u64 + if lead { room(&[]) } else { 0 }
}

/// Returns the size of two tables of breakpoints (a second one with stand-ins may replace the
/// first), of the rows by which stubs are mapped, and of the states of reference counters.
fn tables_room(probes: &[Probe]) -> u64 {
    let entries = |p: &Probe| {
        1 + placed(p)
            .map(|p| p.writes.len() + p.traps.len())
            .sum::<usize>()
    };
    let stubs = |p: &Probe| placed(p).map(|p| p.stubs.len()).sum::<usize>();
    let entries: usize = probes.iter().map(entries).sum();
    let stubs: usize = probes.iter().map(stubs).sum();
    let tables = 2 * (2 * ENTRY + ENTRY * entries as u64) + 2 * ROW * stubs as u64;
    let states = counter::STATE_SIZE * counters(probes).len() as u64;
    tables + states + copies_room(probes) + ENTRY
}

/// Rows of a resident in the table of copies, bytes.
const RESIDENT_ROOM: u64 = 2 * ENTRY;

/// Returns the size of the rows in the table of copies that are not of copies: for each part of a detour its
/// code, the jump back, and the code that it may share with others.
fn code_room(probes: &[Probe]) -> u64 {
    let parts = probes.iter().map(|p| 2 * p.points.len() as u64 + 1);
    4 * ENTRY * parts.sum::<u64>()
}

/// Returns the size of the table of copies.
fn copies_room(probes: &[Probe]) -> u64 {
    let evicted = |p: &Probe| placed(p).map(|p| p.evicted.len()).sum::<usize>();
    let parts = |p: &Probe| p.points.len() + 1;
    let copies = |p: &Probe| 2 * p.shape.displaced.len() + parts(p) + 2 * evicted(p);
    let copies: usize = probes.iter().map(copies).sum();
    2 * ENTRY + ENTRY * copies as u64
}

/// Code and changes compiled for one probe.
#[derive(Debug, Clone)]
pub(super) struct Made {
    /// The changes, in the order in which they have to be written.
    pub changes: Vec<Change>,
    pub detour: Chain,
    stubs: Vec<(u64, Vec<u8>)>,
    /// Breakpoints inside the changed bytes: (address, destination).
    traps: Vec<(u64, u64)>,
    /// The copies of neighbours: (start, end, original).
    evicted: Vec<(u64, u64, u64)>,
}

/// The code of one arena: the resident and the detours.
#[derive(Debug)]
struct Image {
    arena: Arena,
    /// Addresses from which jumps reach the arena.
    near: Range<u64>,
    /// Number of bytes in use, from the arena's start. Bytes behind them have never been executed.
    used: u64,
    /// Bytes to be written.
    bytes: Vec<u8>,
    config: resident::Config,
}

impl Cluster {
    /// Returns the number of bytes that the probes' code and tables need behind the resident.
    pub(super) fn room(&self) -> u64 {
        self.size - resident::size() as u64 + counter::STATE_SIZE * self.probes.len() as u64
    }
}

impl Image {
    fn free(&self) -> u64 {
        self.arena
            .len
            .saturating_sub(self.used.next_multiple_of(DESCRIPTOR))
    }
}

/// Facts about a session that its code depends on.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub memory: &'a SessionMemory,
    pub survey: &'a Survey,
    pub clock: ClockReading,
    pub region: Option<Region>,
    /// Detours call routines of the program.
    pub has_routines: bool,
}

impl Facts<'_> {
    fn runtime(&self, arena: &Arena) -> Runtime {
        let entries = resident::entries(arena.start);
        let Facts {
            memory,
            survey,
            clock,
            ..
        } = *self;
        Runtime {
            shadow_stack: survey.shadow_stack,
            clock,
            streams: memory.base + memory.geometry.streams() as u64,
            limit: memory.geometry.limit(),
            rseq_offset: survey.rseq_offset,
            tid_offset: survey.tid_offset,
            switch: entries.switch,
            locked: entries.locked,
            run: entries.run,
            directories: memory.base + memory.geometry.directories_offset() as u64,
            frames: Frames {
                address: memory.base + memory.geometry.frames_offset() as u64,
                slots: memory.geometry.frames,
                size: memory.geometry.frame_size() as u32,
            },
            counters: Counters {
                address: memory.base + memory.geometry.counters_offset() as u64,
                stride: memory.geometry.counter_stride() as u32,
                cpus: memory.geometry.cpus,
            },
        }
    }

    fn config(&self) -> resident::Config {
        let Facts {
            memory,
            survey,
            clock,
            ..
        } = *self;
        resident::Config {
            session: memory.base,
            geometry: memory.geometry,
            rseq_offset: survey.rseq_offset,
            tid_offset: survey.tid_offset,
            coarse_clock: clock.coarse,
            has_routines: self.has_routines,
            clock_step: clock.step,
            traps: 0,
            old_trap: (0, 0),
            unwinding: 0,
            own_frames: 0,
        }
    }
}

/// All code of a session.
#[derive(Debug)]
pub(super) struct Code {
    images: Vec<Image>,
    /// Outcome for each probe.
    pub made: Vec<Result<Made, SiteError>>,
    /// Reference counters, with the addresses of their states in an arena.
    pub references: Vec<Reference>,
    /// The tables of breakpoints in the program, the oldest first: each more than twice as long as
    /// the next.
    tables: Vec<Table>,
    /// The tables of copies in the program, in the same order.
    copies: Vec<Copies>,
    /// The tables by which callers are found; `None` if no callers are found.
    callers: Option<Callers>,
    /// True if unwinders are told of this code.
    pub unwound: bool,
    /// Code that is in no table of copies yet: rows with its start and the address of its places, and with its
    /// end.
    pieces: Vec<(u64, u64)>,
}

/// The table by which callers are found, in the first arena:
///
/// ```text
/// u64 address of the table | rules, table | further rules, table of all ... | free
/// ```
#[derive(Debug)]
struct Callers {
    /// Address of the word with the table's address.
    word: u64,
    /// The table's address, in that word.
    newest: u64,
    table: unwinding::Table,
    free: Range<u64>,
}

/// A table of breakpoints in the program.
#[derive(Debug)]
struct Table {
    address: u64,
    /// By ascending sites.
    traps: Vec<(u64, u64)>,
}

impl Table {
    /// Returns the number of the row of a breakpoint.
    fn row(&self, site: u64) -> Option<usize> {
        self.traps.binary_search_by_key(&site, |(at, _)| *at).ok()
    }
}

/// How some breakpoints get into the tables.
struct TrapChanges {
    /// Rows whose breakpoints lead elsewhere now: (table, row, destination).
    moved: Vec<(usize, usize, u64)>,
    /// Breakpoints that are in no table.
    new: BTreeMap<u64, u64>,
    /// Number of tables that stay, and length of the new one, as [`joined`] returns them.
    kept: usize,
    len: usize,
}

/// A table of copies of instructions in the program.
#[derive(Debug)]
struct Copies {
    address: u64,
    rows: Vec<(u64, u64)>,
}

/// Returns how many of some tables stay as they are when another one is put in front of them, which
/// is joined with those that are not much longer; and the length of the joined one. `lengths` are
/// those of the tables, the oldest first, `len` is that of the new one.
fn joined(lengths: &[usize], mut len: usize) -> (usize, usize) {
    let mut kept = lengths.len();
    while kept > 0 && lengths[kept - 1] <= 2 * len {
        kept -= 1;
        len += lengths[kept];
    }
    (kept, len)
}

/// Breakpoints: (address, destination).
#[derive(Debug, Default)]
pub(super) struct Traps(Vec<(u64, u64)>);

impl Traps {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, site: u64, leads_to: u64) {
        self.0.push((site, leads_to));
    }

    /// Returns where the breakpoints lead; of several at one address the last counts.
    fn by_site(&self) -> BTreeMap<u64, u64> {
        self.0.iter().copied().collect()
    }

    /// Installs the resident's handler for SIGTRAP. The resident, with its table of breakpoints, is
    /// in the first arena.
    pub(super) fn install(
        &self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        memory: &SessionMemory,
        code: &Code,
    ) -> Result<(), TargetError> {
        let ledger = &memory.ledger;
        let old = agent.signal_action(remote, ledger, libc::SIGTRAP, None)?;
        code.write_old_trap(agent.pid(), remote, old)?;
        let entries = code.entries();
        // Journal the signal action before installing it.
        let action = Action {
            signal: libc::SIGTRAP,
            handler: entries.trap,
            old,
        };
        ledger.note_action(remote, &action)?;
        check_action(ledger, remote, libc::SIGTRAP)?;
        // Keep the program's own choice of stack and mask, but not SA_RESETHAND, which would remove
        // our handler at the first hit. SIGTRAP is never blocked while a handler runs: a breakpoint in
        // a function that the program's own handler calls would kill the program, and a later check
        // would find SIGTRAP blocked.
        let keep = (libc::SA_ONSTACK | libc::SA_RESTART) as u64;
        let flags = old[1] & keep | (libc::SA_SIGINFO | libc::SA_NODEFER) as u64 | SA_RESTORER;
        let mask = old[3] & !(1 << (libc::SIGTRAP - 1));
        // From here on an action that the program sets is kept apart from ours.
        actions::follow(agent.pid(), remote, memory.own(), &[libc::SIGTRAP], true)?;
        agent.signal_action(
            remote,
            ledger,
            libc::SIGTRAP,
            Some([entries.trap, flags, entries.restorer, mask]),
        )?;
        step("trap handler installed");
        Ok(())
    }
}

/// Flag of a signal action that has a restorer (asm/signal.h).
const SA_RESTORER: u64 = 0x0400_0000;

fn jump(from: u64, to: u64) -> [u8; 5] {
    let displacement = to.wrapping_sub(from + 5) as u32;
    let mut bytes = [0xe9, 0, 0, 0, 0];
    bytes[1..].copy_from_slice(&displacement.to_le_bytes());
    bytes
}

fn change(address: u64, before: &[u8], after: &[u8], detour: u64, phase: u8) -> Change {
    let mut change = Change {
        address,
        len: after.len(),
        before: [0; journal::MAX_BYTES],
        after: [0; journal::MAX_BYTES],
        detour,
        uses: Uses::default(),
        phase,
        guard: false,
        unwinder: false,
        breakpoint: false,
        action: false,
    };
    change.breakpoint = after == [INT3] || change.crosses_pages();
    change.before[..after.len()].copy_from_slice(&before[..after.len()]);
    change.after[..after.len()].copy_from_slice(after);
    change
}

/// Compiles the code that runs when a followed function has returned. Registers and stack are
/// as they are at a `ret`. The code then returns without using the processor's return
/// prediction, whose entry the function's own `ret` has consumed.
///
/// ```text
/// lea 8(%rsp), %rsp
/// jmp *-8(%rsp)
/// ```
fn returning(point: &Point, compiler: &mut Compiler) -> Result<u64, SiteError> {
    const RETURN: [u8; 9] = [0x48, 0x8d, 0x64, 0x24, 0x08, 0xff, 0x64, 0x24, 0xf8];
    let decoder = Decoder::with_ip(64, &RETURN, point.site, DecoderOptions::NONE);
    let displaced: Vec<Instruction> = decoder.into_iter().collect();
    let detour = compiler.compile(&Request {
        work: &point.returns,
        displaced: &displaced,
        resume: point.site,
        red_zone: true,
        live: Live::ALL,
    })?;
    Ok(detour.entry)
}

fn all_made(made: Vec<Option<Result<Made, SiteError>>>) -> Vec<Result<Made, SiteError>> {
    let made = made.into_iter();
    made.map(|m| m.unwrap_or(Err(SiteError::Occupied)))
        .collect()
}

/// Compiles the probes of a cluster into `arena`, behind `head`, which is `from` bytes behind the
/// arena's start; returns the head and the code, and the rows of code that detours share.
fn compile_into(
    probes: &[Probe],
    cluster: &Cluster,
    (arena, from): (&Arena, u64),
    head: Vec<u8>,
    facts: &Facts<'_>,
    made: &mut [Option<Result<Made, SiteError>>],
) -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut compiler = Compiler::new(facts.runtime(arena), arena.start + from, head);
    for &index in &cluster.probes {
        let mut one = make(&probes[index], &mut compiler, facts.region);
        if let Ok(made) = &mut one {
            claim(&probes[index].shape, &mut made.changes);
        }
        for change in one.iter_mut().flat_map(|made| &mut made.changes) {
            change.breakpoint |= probes[index].stand_in;
        }
        made[index] = Some(one);
    }
    let shared = compiler.shared().into_iter();
    let shared = shared.flat_map(|(code, places)| piece(code, places));
    let shared = shared.collect();
    let bytes = compiler.into_image();
    assert!(
        from + bytes.len() as u64 <= arena.len,
        "the arena was sized for its detours"
    );
    (bytes, shared)
}

/// Returns the rows of code in the table of copies.
fn piece(code: Range<u64>, places: u64) -> [(u64, u64); 2] {
    [(code.start, resident::COPY_CODE | places), (code.end, 0)]
}

/// Returns the rows of the resident in an arena.
fn resident_at(arena: &Arena) -> [(u64, u64); 2] {
    let code = arena.start..arena.start + resident::size() as u64;
    piece(code, resident::COPY_RESIDENT)
}

/// Notes in the changes of a probe which bytes it needs, so that no other session changes them: those
/// that it covers, displaces or relies on belong to the change before them.
fn claim(shape: &Shape, changes: &mut [Change]) {
    let displaced = shape.displaced.iter().map(|i| i.ip()..i.next_ip());
    for bytes in bytes_of(shape).chain(displaced) {
        let before = changes.iter_mut().filter(|c| c.address <= bytes.start);
        let nearest = match before.max_by_key(|change| change.address) {
            Some(nearest) => nearest,
            None => match changes.iter_mut().min_by_key(|change| change.address) {
                Some(first) => first,
                None => return,
            },
        };
        let at = nearest.address;
        let distance =
            |from: u64, to: u64| u16::try_from(to.saturating_sub(from)).unwrap_or(u16::MAX);
        let Uses { back, ahead } = nearest.uses;
        nearest.uses = Uses {
            back: back.max(distance(bytes.start, at)),
            ahead: ahead.max(distance(at, bytes.end)),
        };
    }
}

/// Compiles one probe's detour, and all that belongs to it.
fn make(probe: &Probe, compiler: &mut Compiler, region: Option<Region>) -> Result<Made, SiteError> {
    let shape = &probe.shape;
    let mut works = Vec::new();
    for point in &probe.points {
        let mut work = point.work.clone();
        if let (false, Some(region)) = (point.returns.is_empty(), region) {
            work.push(Work::Help {
                routine: match point.returns.iter().any(Work::reads_call) {
                    true => region.entries().follow_once,
                    false => region.entries().follow,
                },
                argument: returning(point, compiler)?,
            });
        }
        works.push(work);
    }
    let points = probe.points.iter().zip(&works);
    let points: Vec<_> = points
        .map(|(point, work)| detour::Point {
            site: point.site,
            work,
            after: &point.after,
            red_zone: !point.at_entry,
            live: point.live,
        })
        .collect();
    let detour = compiler.compile_chain(&points, &shape.displaced, shape.resume)?;
    let address = shape.covered.start;
    let Some(placed) = &shape.placed else {
        let change = match shape.tactic.patch() {
            Patch::Breakpoint => change(address, &probe.before, &[INT3], detour.entry(), 0),
            Patch::Jump => {
                let jump = jump(address, detour.entry());
                change(address, &probe.before, &jump, detour.entry(), 0)
            }
        };
        return Ok(Made {
            changes: vec![change],
            detour,
            stubs: Vec::new(),
            traps: Vec::new(),
            evicted: Vec::new(),
        });
    };
    let (mut copies, mut evicted) = (Vec::new(), Vec::new());
    for instruction in &placed.evicted {
        let copy = compiler.copy_out(instruction)?;
        copies.push((instruction.ip(), copy.entry));
        evicted.push((copy.entry, copy.end(), instruction.ip()));
    }
    let copy_of = |at: u64| {
        copies
            .iter()
            .find(|(old, _)| *old == at)
            .map(|(_, new)| *new)
    };
    // A jump that shares bytes with another one (`builds_on`) is written after it.
    let first = u8::from(placed.builds_on.is_some());
    let changes = placed.writes.iter().zip(first..).map(|(write, phase)| {
        let leads_to = copy_of(write.address).unwrap_or(detour.entry());
        change(write.address, &write.before, &write.after, leads_to, phase)
    });
    let changes = changes.collect();
    let mut stubs = Vec::new();
    for stub in &placed.stubs {
        let target = match stub.to {
            StubTo::Detour => detour.entry(),
            StubTo::Evicted(index) => copies[index].1,
        };
        let bytes = stub.bytes(target).ok_or(SiteError::StubOutOfReach)?;
        stubs.push((stub.address, bytes));
    }
    let copy = |at: &u64| Some((*at, detour.goes_on(*at)?));
    let traps = placed.traps.iter().filter_map(copy).collect();
    Ok(Made {
        changes,
        detour,
        stubs,
        traps,
        evicted,
    })
}

impl Made {
    /// Returns the breakpoints at the starts of changes and inside them: (address, destination).
    pub(super) fn traps(&self) -> impl Iterator<Item = (u64, u64)> {
        let sites = self.changes.iter().map(|c| (c.address, c.detour));
        sites.chain(self.traps.iter().copied())
    }

    /// Returns the copies of the `displaced` instructions, as rows of the table that maps a fault
    /// in a copy to the address of the original; if the code is `unwound`, also of the rest of the detour.
    fn copies(&self, displaced: &[Instruction], unwound: bool) -> Vec<(u64, u64)> {
        let exact = |original: u64| original | resident::COPY_EXACT;
        let starts = |original: &u64| self.changes.iter().any(|c| c.address == *original);
        let mut rows = Vec::new();
        let mut displaced = displaced.iter();
        for part in &self.detour.parts {
            // The next (copy, original) if it continues the last row.
            let mut next = None;
            for ((original, copy), instruction) in part.copies.iter().zip(&mut displaced) {
                // Instructions other than jumps and calls are copied unchanged, or with another
                // displacement.
                let as_long = instruction.flow_control() == FlowControl::Next;
                let changed = match starts(original) {
                    true => resident::COPY_CHANGED,
                    false => 0,
                };
                if !as_long || next != Some((*copy, *original)) {
                    rows.extend(next.map(|(end, _)| (end, 0)).filter(|row| row.0 < *copy));
                    let row = if as_long { *original } else { exact(*original) };
                    rows.push((*copy, row | changed));
                }
                let len = instruction.len() as u64;
                next = as_long.then_some((copy + len, original + len));
            }
            let end = next.map_or(part.end(), |(end, _)| end);
            if !unwound {
                rows.push((end, 0));
                continue;
            }
            let copies = part.copies.first().map(|(_, copy)| *copy).or(part.back);
            if copies.is_some_and(|copies| part.address < copies) {
                rows.push((part.address, resident::COPY_CODE | part.places));
            }
            match (part.back, part.goes_to) {
                (Some(back), to) => rows.extend([(back, exact(to)), (part.end(), 0)]),
                (None, _) => rows.push((end, 0)),
            }
        }
        for (start, end, original) in &self.evicted {
            rows.extend([(*start, exact(*original)), (*end, 0)]);
        }
        rows
    }

    /// True if a breakpoint is used, even for a moment.
    pub(super) fn needs_trap(&self) -> bool {
        let changes = &self.changes;
        !self.traps.is_empty()
            || changes
                .iter()
                .any(|c| c.len == 1 && c.after[0] == INT3 || c.crosses_pages())
    }

    /// Returns the stubs, as addresses and bytes.
    pub(super) fn stubs(&self) -> &[(u64, Vec<u8>)] {
        &self.stubs
    }

    pub(super) fn is_in(&self, rows: &[Row]) -> bool {
        let taken = |at: u64| {
            let holds = |row: &Row| (row.address..row.address + row.len).contains(&at);
            rows.iter().any(holds)
        };
        let mut stubs = self.stubs.iter();
        stubs.any(|(at, bytes)| taken(*at) || taken(at + bytes.len() as u64 - 1))
    }
}

/// Returns the rows of some detours in the table of copies.
fn copies_of<'a>(
    made: impl Iterator<Item = (&'a Made, &'a Probe)>,
    unwound: bool,
) -> Vec<(u64, u64)> {
    made.flat_map(|(made, probe)| made.copies(&probe.shape.displaced, unwound))
        .collect()
}

impl Code {
    /// Compiles the detours of all probes.
    pub(super) fn compile(
        probes: &[Probe],
        clusters: &[Cluster],
        arenas: &[Arena],
        facts: &Facts<'_>,
    ) -> Code {
        let mut made: Vec<Option<Result<Made, SiteError>>> = vec![None; probes.len()];
        let (mut images, mut pieces) = (Vec::new(), Vec::new());
        for (cluster, arena) in clusters.iter().zip(arenas) {
            // Breakpoints between detours: a stray jump must not execute on.
            let head = vec![INT3; resident::size()];
            let (bytes, shared) = compile_into(probes, cluster, (arena, 0), head, facts, &mut made);
            pieces.extend(resident_at(arena).into_iter().chain(shared));
            images.push(Image {
                arena: *arena,
                near: cluster.near.clone(),
                used: 0,
                bytes,
                config: facts.config(),
            });
        }
        Code {
            tables: Vec::new(),
            copies: Vec::new(),
            callers: None,
            unwound: false,
            pieces,
            made: all_made(made),
            images,
            references: counters(probes)
                .into_iter()
                .map(|counter| Reference { counter, state: 0 })
                .collect(),
        }
    }

    /// Returns the number of an image with `size` free bytes, whose arena jumps from and to all of
    /// `near` reach.
    pub(super) fn with_room(&self, near: &Range<u64>, size: u64) -> Option<usize> {
        self.images.iter().position(|image| {
            image.free() >= size && image.near.start <= near.start && near.end <= image.near.end
        })
    }

    /// Adds an image for a new arena, and writes the resident there; returns its number.
    pub(super) fn open(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        arena: Arena,
        near: Range<u64>,
        facts: &Facts<'_>,
    ) -> Result<usize, TargetError> {
        let first = self.images.first();
        let config = resident::Config {
            unwinding: first.map_or(0, |image| image.config.unwinding),
            ..facts.config()
        };
        let blob = resident::place(arena.start, &config);
        write(pid, remote, arena.start, &blob)?;
        step("resident of a further arena written");
        self.pieces.extend(resident_at(&arena));
        self.images.push(Image {
            arena,
            near,
            used: blob.len() as u64,
            bytes: Vec::new(),
            config,
        });
        Ok(self.images.len() - 1)
    }

    /// Compiles the detours of further probes behind the code of existing images, one for each
    /// cluster, and writes them there. No thread executes these bytes yet: nothing leads to them.
    /// Returns the outcome for each probe.
    pub(super) fn compile_more(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        probes: &[Probe],
        (clusters, places): (&[Cluster], &[usize]),
        facts: &Facts<'_>,
    ) -> Result<Vec<Result<Made, SiteError>>, TargetError> {
        let mut made: Vec<Option<Result<Made, SiteError>>> = vec![None; probes.len()];
        for (cluster, place) in clusters.iter().zip(places) {
            let image = &mut self.images[*place];
            let from = image.used.next_multiple_of(DESCRIPTOR);
            let at = (&image.arena, from);
            let (mut bytes, shared) =
                compile_into(probes, cluster, at, Vec::new(), facts, &mut made);
            self.pieces.extend(shared);
            bytes.resize(bytes.len().next_multiple_of(ENTRY as usize), INT3);
            for counter in counters(cluster.probes.iter().map(|i| &probes[*i])) {
                if self.references.iter().any(|known| known.counter == counter) {
                    continue;
                }
                let state = image.arena.start + from + bytes.len() as u64;
                bytes.extend([0; counter::STATE_SIZE as usize]);
                self.references.push(Reference { counter, state });
            }
            let end = from + bytes.len() as u64;
            assert!(end <= image.arena.len, "there is room for it");
            let gap = (from - image.used) as usize;
            bytes.splice(..0, std::iter::repeat_n(INT3, gap));
            write(pid, remote, image.arena.start + image.used, &bytes)?;
            image.used = end;
            step("further detours written");
        }
        Ok(all_made(made))
    }

    /// Reserves `size` bytes in any arena; returns their address, a multiple of 16.
    fn reserve(&mut self, pid: i32, size: u64) -> Result<u64, TargetError> {
        let near = self.images.first().map_or(0, |image| image.arena.start);
        let fits = |image: &&mut Image| image.free() >= size;
        let image = self.images.iter_mut().find(fits);
        let image = image.ok_or(TargetError::NoSpace { pid, near, size })?;
        let at = image.used.next_multiple_of(ENTRY);
        image.used = at + size;
        Ok(image.arena.start + at)
    }

    /// Reserves memory for the rows of a batch of system calls, if there is room.
    pub(super) fn rows_room(&mut self, pid: i32, rows: usize) -> Option<u64> {
        self.reserve(pid, ROW * rows as u64).ok()
    }

    /// Returns the addresses around the first arena, where tables may be.
    pub(super) fn near(&self) -> Range<u64> {
        let first = self.images.first();
        first.map_or(0..0, |image| image.near.clone())
    }

    /// True if an arena has `size` free bytes.
    pub(super) fn has_room(&self, size: u64) -> bool {
        self.images.iter().any(|image| image.free() >= size)
    }

    /// Collects the breakpoints that will be used; drops probes that need one that is not allowed.
    pub(super) fn traps(
        &mut self,
        probes: &[Probe],
        allowed: impl Fn() -> Result<(), &'static str>,
    ) -> Traps {
        let mut traps = Traps::default();
        let allowed = LazyCell::new(allowed);
        for (made, probe) in self.made.iter_mut().zip(probes) {
            let Ok(ready) = made else { continue };
            if !ready.needs_trap() {
                continue;
            }
            if let Err(reason) = *allowed {
                *made = Err(SiteError::no_breakpoint(probe.shape.tactic, reason));
                continue;
            }
            traps.0.extend(ready.traps());
        }
        traps
    }

    /// True if the resident is in the process, which is if there are probes or guards.
    pub(super) fn has_resident(&self) -> bool {
        !self.images.is_empty()
    }

    /// Returns the resident's entries in the first arena.
    pub(super) fn entries(&self) -> resident::Entries {
        resident::entries(self.images[0].arena.start)
    }

    /// Returns the code for a batch of system calls whose rows are written to `table`.
    pub(super) fn batch(&self, table: u64) -> Batch {
        let entries = self.entries();
        Batch {
            code: entries.batch..entries.batch_home + 1,
            start: entries.batch,
            table,
        }
    }

    /// Returns an address in the first arena where a table can be written.
    pub(super) fn table_room(&self) -> u64 {
        let first = &self.images[0];
        first.arena.start + first.used
    }

    /// True if callers can be found.
    pub(super) fn has_unwinding(&self) -> bool {
        self.callers.is_some()
    }

    /// Returns where handlers of the program return to that are called by handlers of the session.
    pub(super) fn signal_returns(&self) -> Vec<u64> {
        let arenas = self.images.iter().map(|image| image.arena.start);
        arenas
            .map(|arena| resident::entries(arena).restorer)
            .collect()
    }

    /// Adds the rules of code that was mapped after the probes were inserted. Hits that look for callers
    /// meanwhile use either the old table or the new one, which is complete before its address is written:
    /// eight aligned bytes, which other processors read as a whole. Returns false if there is no room, or
    /// nothing needs callers: chains then end at this code.
    pub(super) fn add_callers(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        modules: &[Module],
    ) -> Result<bool, TargetError> {
        let Some(callers) = &mut self.callers else {
            return Ok(false);
        };
        let size = unwinding::Table::size(modules) + callers.table.size_of_head();
        if callers.free.end - callers.free.start < size as u64 {
            return Ok(false);
        }
        // `remote` stays with the memory that the process had when it was opened, also if another program is
        // executed meanwhile: if this is still ours, the other program is not written to.
        let ours = [
            (callers.word, callers.newest),
            (callers.newest, callers.table.base()),
        ];
        if ours
            .iter()
            .any(|(at, word)| remote.read_u64(*at).ok() != Some(*word))
        {
            return Ok(false);
        }
        let (bytes, table) = callers.table.add(modules, callers.free.start);
        write(pid, remote, callers.free.start, &bytes)?;
        step("callers written");
        write(pid, remote, callers.word, &table.to_le_bytes())?;
        callers.newest = table;
        callers.free.start += (bytes.len() as u64).next_multiple_of(ENTRY);
        Ok(true)
    }

    /// Writes the arenas; the first contains the table of breakpoints, and the table by which callers
    /// are found unless that is empty.
    pub(super) fn write(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        traps: &Traps,
        callers: &[Module],
    ) -> Result<(), TargetError> {
        let signal_returns = self.signal_returns();
        let Some(first) = self.images.first_mut() else {
            return Ok(());
        };
        let align = |bytes: &mut Vec<u8>| {
            bytes.resize(bytes.len().next_multiple_of(ENTRY as usize), INT3);
        };
        align(&mut first.bytes);
        let at = first.arena.start + first.bytes.len() as u64;
        first.config.traps = at;
        let rows: Vec<(u64, u64)> = traps.by_site().into_iter().collect();
        first.bytes.extend(resident::trap_table(&rows, 0));
        self.tables = vec![Table {
            address: at,
            traps: rows,
        }];
        for reference in &mut self.references {
            reference.state = first.arena.start + first.bytes.len() as u64;
            first.bytes.extend([0; counter::STATE_SIZE as usize]);
        }
        let mut room = 0;
        if !callers.is_empty() {
            align(&mut first.bytes);
            let word = first.arena.start + first.bytes.len() as u64;
            let mut table = unwinding::Table::from(word + ENTRY);
            let mut modules = callers.to_vec();
            // Handlers of the program that are called by ours return there.
            modules.extend(signal_returns.into_iter().map(Module::signal_return));
            let (rules, at) = table.add(&modules, word + ENTRY);
            first.bytes.extend(at.to_le_bytes());
            align(&mut first.bytes);
            first.bytes.extend(rules);
            align(&mut first.bytes);
            let free = first.arena.start + first.bytes.len() as u64;
            room = CALLERS_ROOM;
            self.callers = Some(Callers {
                word,
                newest: at,
                table,
                free: free..free + room,
            });
        }
        let mut own_frames = 0;
        if self.unwound {
            align(&mut first.bytes);
            own_frames = first.arena.start + first.bytes.len() as u64;
            first.bytes.extend(resident::frames());
            align(&mut first.bytes);
        }
        for image in &mut self.images {
            image.config.own_frames = own_frames;
            image.config.unwinding = self.callers.as_ref().map_or(0, |callers| callers.word);
            image.used = image.bytes.len() as u64 + std::mem::take(&mut room);
            let blob = resident::place(image.arena.start, &image.config);
            image.bytes[..blob.len()].copy_from_slice(&blob);
            write(pid, remote, image.arena.start, &image.bytes)?;
            step("arena written");
            // It is in the target now; no copy is needed here.
            image.bytes = Vec::new();
        }
        Ok(())
    }

    /// Returns where a breakpoint leads by the tables.
    pub(super) fn leads_to(&self, site: u64) -> Option<u64> {
        let (table, row) = self.row_of(site)?;
        Some(self.tables[table].traps[row].1)
    }

    /// Returns the table in which the handler finds a breakpoint, and the number of its row.
    fn row_of(&self, site: u64) -> Option<(usize, usize)> {
        let mut tables = self.tables.iter().enumerate().rev();
        tables.find_map(|(table, traps)| Some((table, traps.row(site)?)))
    }

    fn changes_of(&self, traps: &Traps) -> TrapChanges {
        let (mut moved, mut new) = (Vec::new(), BTreeMap::new());
        for (site, to) in traps.by_site() {
            match self.row_of(site) {
                Some((table, row)) if self.tables[table].traps[row].1 == to => {}
                Some((table, row)) => moved.push((table, row, to)),
                None => _ = new.insert(site, to),
            }
        }
        let lengths: Vec<usize> = self.tables.iter().map(|t| t.traps.len()).collect();
        let (kept, len) = joined(&lengths, new.len());
        TrapChanges {
            moved,
            new,
            kept,
            len,
        }
    }

    /// Returns the room that [`add_traps`](Self::add_traps) needs, bytes; 0 if all are there.
    pub(super) fn traps_room(&self, traps: &Traps) -> u64 {
        let changes = self.changes_of(traps);
        match changes.new.is_empty() {
            true => 0,
            false => ENTRY * (1 + changes.len as u64),
        }
    }

    /// Adds breakpoints to the tables: by one more, in front of the others, which is joined with
    /// those that are not much longer. So a breakpoint is written again only as often as the
    /// number of all has doubled. A handler that runs meanwhile uses either the old or the new
    /// tables: the address of the first is one word, and old tables stay.
    ///
    /// Where a breakpoint leads elsewhere now, its row is changed: also by one word. Both detours are
    /// there. Sites whose probes come and go would fill the arenas with tables otherwise.
    pub(super) fn add_traps(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        traps: &Traps,
    ) -> Result<(), TargetError> {
        let TrapChanges {
            moved, new, kept, ..
        } = self.changes_of(traps);
        for (table, row, to) in moved {
            let table = &mut self.tables[table];
            let word = table.address + ENTRY * (1 + row as u64) + 8;
            write(pid, remote, word, &to.to_le_bytes())?;
            step("breakpoint led to another detour");
            table.traps[row].1 = to;
        }
        if new.is_empty() {
            return Ok(());
        }
        let mut joined = BTreeMap::new();
        for table in &self.tables[kept..] {
            joined.extend(table.traps.iter().copied());
        }
        joined.extend(new);
        let older = kept
            .checked_sub(1)
            .map_or(0, |last| self.tables[last].address);
        let rows: Vec<(u64, u64)> = joined.into_iter().collect();
        let table = resident::trap_table(&rows, older);
        let at = self.reserve(pid, table.len() as u64)?;
        write(pid, remote, at, &table)?;
        step("second table of breakpoints written");
        write(pid, remote, self.entries().traps, &at.to_le_bytes())?;
        step("second table of breakpoints in place");
        self.tables.truncate(kept);
        self.tables.push(Table {
            address: at,
            traps: rows,
        });
        Ok(())
    }

    /// Tells the resident which copies of instructions exist, for handlers of faults.
    pub(super) fn write_copies(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        probes: &[Probe],
    ) -> Result<(), TargetError> {
        let made = self.made.iter().zip(probes);
        let made: Vec<_> = made
            .filter_map(|(made, probe)| Some((made.as_ref().ok()?, probe)))
            .collect();
        let copies = copies_of(made.into_iter(), self.unwound);
        let copies = self.with_pieces(copies);
        self.add_copies(pid, remote, &copies)
    }

    /// Returns the rows of further detours, and of code that is in no table yet.
    pub(super) fn new_copies<'a>(
        &mut self,
        made: impl Iterator<Item = (&'a Made, &'a Probe)>,
    ) -> Vec<(u64, u64)> {
        let copies = copies_of(made, self.unwound);
        self.with_pieces(copies)
    }

    /// Adds the rows of code that is in no table of copies yet, if unwinders are told of it.
    fn with_pieces(&mut self, mut copies: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        if self.unwound {
            copies.append(&mut self.pieces);
        }
        copies
    }

    /// Returns the room that [`add_copies`](Self::add_copies) needs for so many rows, bytes.
    pub(super) fn new_copies_room(&self, rows: usize) -> u64 {
        let lengths: Vec<usize> = self.copies.iter().map(|c| c.rows.len()).collect();
        ENTRY * (1 + joined(&lengths, rows).1 as u64)
    }

    /// Adds rows of copies to the tables, as [`add_traps`](Self::add_traps) does.
    pub(super) fn add_copies(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        copies: &[(u64, u64)],
    ) -> Result<(), TargetError> {
        let lengths: Vec<usize> = self.copies.iter().map(|c| c.rows.len()).collect();
        let (kept, _) = joined(&lengths, copies.len());
        let (older, newer) = self.copies.split_at(kept);
        let older = older.last().map_or(0, |last| last.address);
        let newer = newer.iter().flat_map(|copies| &copies.rows);
        let rows: Vec<(u64, u64)> = newer.chain(copies).copied().collect();
        let table = resident::trap_table(&rows, older);
        let at = self.reserve(pid, table.len() as u64)?;
        write(pid, remote, at, &table)?;
        step("table of copies written");
        write(pid, remote, self.entries().copies, &at.to_le_bytes())?;
        self.copies.truncate(kept);
        self.copies.push(Copies { address: at, rows });
        Ok(())
    }

    /// Notes that the resident's handlers of faults may stand before the program's from now on: those
    /// that it has, and those that it sets later. Returns false, and notes nothing, if the other session
    /// of the process handles faults.
    pub(super) fn note_faults(
        &self,
        remote: &dyn TargetMemory,
        memory: &SessionMemory,
    ) -> Result<bool, TargetError> {
        let ledger = &memory.ledger;
        for signal in FAULTS {
            ledger.note_action(remote, &self.fault_action(signal, [0; 4]))?;
        }
        let process = Process::open(ledger.pid as u32)?;
        let other = Other::find(&process, remote, ledger.kind)?;
        if other.is_some_and(|other| other.handles(&FAULTS)) {
            for signal in FAULTS {
                ledger.forget_action(remote, signal)?;
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn fault_action(&self, signal: i32, old: [u64; 4]) -> Action {
        Action {
            signal,
            handler: self.entries().fault,
            old,
        }
    }

    /// Installs the resident's handlers for faults in front of the program's own, so that these see
    /// the fault of a displaced instruction at its original address; and makes the resident do the same
    /// with those that the program sets later.
    ///
    /// While the tracer installs handlers, the resident installs none.
    pub(super) fn install_faults(
        &self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        memory: &SessionMemory,
    ) -> Result<(), TargetError> {
        let (pid, own) = (agent.pid(), memory.own());
        for tries in 0.. {
            let mut missing = false;
            for (index, signal) in FAULTS.into_iter().enumerate() {
                let old = agent.signal_action(remote, &memory.ledger, signal, None)?;
                if old[0] == self.entries().fault || !actions::is_preceded(&old) {
                    continue;
                }
                if !missing {
                    actions::follow(pid, remote, own, &FAULTS, false)?;
                }
                missing = true;
                self.install_fault(agent, remote, memory, (index, signal), old)?;
            }
            actions::follow(pid, remote, own, &FAULTS, true)?;
            // The program may have set one just before.
            if !missing || tries == ACTION_TRIES {
                break;
            }
        }
        Ok(())
    }

    /// Installs the resident's handler of one fault, number `index`, in front of the action `old`.
    fn install_fault(
        &self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        memory: &SessionMemory,
        (index, signal): (usize, i32),
        mut old: [u64; 4],
    ) -> Result<(), TargetError> {
        let pid = agent.pid();
        let entries = self.entries();
        let ledger = &memory.ledger;
        for _ in 0..ACTION_TRIES {
            let words: Vec<u8> = old.iter().flat_map(|w| w.to_le_bytes()).collect();
            write(pid, remote, entries.actions + index as u64 * 32, &words)?;
            ledger.note_action(remote, &self.fault_action(signal, old))?;
            check_action(ledger, remote, signal)?;
            actions::forget_newest(pid, remote, memory.own(), signal)?;
            // Keep the stack, the mask and the restarting of calls as the program set them.
            let flags = old[1] | libc::SA_SIGINFO as u64 | SA_RESTORER;
            let new = [entries.fault, flags, entries.restorer, old[3]];
            let was = agent.signal_action(remote, ledger, signal, Some(new))?;
            step("fault handler installed");
            if was == old {
                break;
            }
            // Another thread has set an action in between.
            old = was;
            if !actions::is_preceded(&old) {
                agent.signal_action(remote, ledger, signal, Some(old))?;
                break;
            }
        }
        Ok(())
    }

    /// Tells the resident the previous action for SIGTRAP.
    fn write_old_trap(
        &self,
        pid: i32,
        remote: &dyn TargetMemory,
        old: [u64; 4],
    ) -> Result<(), TargetError> {
        let bytes = [old[0].to_le_bytes(), old[1].to_le_bytes()].concat();
        write(pid, remote, self.entries().old_trap, &bytes)?;
        let words: Vec<u8> = old.iter().flat_map(|w| w.to_le_bytes()).collect();
        write(
            pid,
            remote,
            self.entries().actions + FAULTS.len() as u64 * 32,
            &words,
        )
    }

    /// Returns all stubs that have to be mapped.
    pub(super) fn stubs(&self) -> Stubs {
        let made = self.made.iter().flatten();
        let stubs: Vec<(u64, Vec<u8>)> = made.flat_map(|m| m.stubs.iter().cloned()).collect();
        Stubs::of(&stubs)
    }

    /// Marks the changes of guards, unwinder probes and action probes; drops requested probes that
    /// would use a guard's bytes.
    pub(super) fn guard(&mut self, guarded: &Guarded) {
        let mut mark = |guards: &[usize], mark: fn(&mut Change)| {
            for index in guards {
                let changes = self.made[*index].iter_mut().flat_map(|m| &mut m.changes);
                changes.for_each(mark);
            }
        };
        mark(&guarded.guards, |change| change.guard = true);
        mark(&guarded.unwinders, |change| change.unwinder = true);
        mark(&guarded.actions, |change| change.action = true);
        for index in &guarded.refused {
            self.made[*index] = Err(SiteError::Guarded);
        }
    }

    /// Drops probes whose work may make system calls.
    pub(super) fn refuse_calls(&mut self, probes: &[Probe]) {
        for (made, probe) in self.made.iter_mut().zip(probes) {
            if probe.works().any(Work::may_call) {
                *made = Err(SiteError::Filtered);
            }
        }
    }

    /// Drops the probes that have stubs in rows that could not be mapped.
    pub(super) fn refuse_stubs(&mut self, rows: &[Row]) {
        if rows.is_empty() {
            return;
        }
        for made in &mut self.made {
            if made.as_ref().is_ok_and(|m| m.is_in(rows)) {
                *made = Err(SiteError::StubTaken);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

    /// The rows that one addition after the other writes are few for each, however many there were.
    #[test]
    fn rows_are_written_again_only_as_their_number_doubles() {
        let mut lengths: Vec<usize> = Vec::new();
        let mut written = 0;
        for number in 1..=10_000 {
            let (kept, len) = joined(&lengths, 1);
            lengths.truncate(kept);
            lengths.push(len);
            written += len;
            assert_eq!(lengths.iter().sum::<usize>(), number);
            assert!(lengths.is_sorted_by(|older, newer| older > &(2 * newer)));
        }
        assert!(written < 10_000 * 14, "{written}");
    }
}
