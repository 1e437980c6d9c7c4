//! One case: a random function, some of its sites, and some inputs for each.

use std::fmt::Write as _;

use capriole_codegen::detour::{Chain, Compiler, Point, Request};
use capriole_codegen::work::{Record, Word, Work};
use capriole_insn::relocate::relocatable;
use capriole_insn::{Extent, FunctionFlow};
use capriole_tactic::place::{Placer, Space};
use capriole_tactic::site::{Shape, SiteInput, Tactic, choose, choose_placed};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::compare::{self, Loose, Run};
use super::machine::{CALLS, End, FLAGS, Machine, Outcome, Program, Step};
use super::memory::{self, BIAS, Memory, SENTINEL, STACK_POINTER};
use super::patch::{self, Patch};
use super::session::{COUNTERS, DETOURS, Mode, Session};
use super::tally::{Ended, Other, Tally};
use super::{child, vectors};
use crate::constants;
use crate::flags;
use crate::object::Object;
use crate::support::random::Random;

/// Number of sites per function, and of inputs per site.
const SITES: usize = 6;
const INPUTS: usize = 3;
/// Longer functions are skipped: their analysis takes longer than all runs.
const LONGEST: u64 = 0x8000;
/// Size of a probe's image: its detour, those of others before it, the code that they
/// share, and copies of evicted instructions.
const IMAGE_SIZE: usize = 0x2000;
const INT3: u8 = 0xcc;
/// Number of times that the memory below the stack pointer is changed, to check whether that
/// matters: a comparison with one wrong value may give the same result as with another.
const SCRIBBLES: u64 = 12;
/// Maximum length of an instruction's copy.
const MAX_COPY: u64 = 40;
const RED_ZONE: u64 = 128;

/// Everything that the cases of one library share. Exists in a child process only.
pub struct Prover<'a> {
    object: &'a Object,
    machine: &'static mut Machine,
    memory: Memory,
    session: Session,
}

/// A function under test.
struct Function {
    name: String,
    extent: Extent,
    flow: FunctionFlow,
    boundaries: Vec<u64>,
    returns: Vec<u64>,
    split_part: bool,
}

/// A probe on one of its sites.
struct Probe {
    shape: Shape,
    work: Vec<Work>,
    mode: Mode,
    /// Start address of the image.
    address: u64,
    image: Vec<u8>,
    detour: Chain,
    /// Address at which its work begins.
    begins: u64,
    patch: Patch,
    /// The original bytes at each of the patch's writes, in their order.
    before: Vec<(u64, Vec<u8>)>,
}

impl<'a> Prover<'a> {
    /// Prepares this process for running cases; it cannot run anything else afterwards.
    pub fn new(object: &'a Object, seed: u64, tally: &Tally) -> Self {
        let mut memory = Memory::new(&object.elf, &mut Random::new(seed));
        let session = Session::new();
        for (address, bytes) in session.residents() {
            memory.write_arena(address, &bytes);
        }
        if !child::move_rseq() {
            tally.no_rseq();
        }
        child::forbid_system_calls(BIAS >> 32);
        Self {
            object,
            machine: Machine::take_over(),
            memory,
            session,
        }
    }

    /// Runs the case with this seed.
    pub fn prove(&mut self, seed: u64, tally: &Tally) -> Result<(), String> {
        let mut random = Random::new(seed);
        let function = self.choose_function(&mut random);
        let code = self.object.code();
        if function.extent.len() > LONGEST
            || function.boundaries.iter().any(|&at| {
                code.instruction_at(at, function.extent.end)
                    .is_none_or(|i| is_unsuitable(&i))
            })
        {
            tally.other(Other::Unsuitable);
            return Ok(());
        }
        let memory = &mut self.memory;
        let bytes = code.get(function.extent).expect("a function in the text");
        memory.write_text(function.extent.start, bytes);
        memory.randomise(&mut random);
        let mut proved = Ok(());
        for _ in 0..SITES {
            proved = self.prove_site(&function, &mut random, tally);
            if proved.is_err() {
                break;
            }
        }
        self.memory.clear_text(function.extent);
        proved
    }

    fn choose_function(&self, random: &mut Random) -> Function {
        let object = self.object;
        let part = object.functions.is_empty() || random.below(3) == 0;
        let (name, extent, split_part) = if part && !object.parts.is_empty() {
            let extent = object.parts[random.below(object.parts.len())];
            ("(no symbol)".to_owned(), extent, true)
        } else {
            let (name, extent) = &object.functions[random.below(object.functions.len())];
            (name.clone(), *extent, name.ends_with(".cold"))
        };
        let flow = object.flow(&extent);
        let boundaries: Vec<u64> = flow.boundaries().collect();
        let behind = |at| flow.instruction_around(at).map(|call| call.end);
        let returns = flow.calls().filter_map(behind);
        Function {
            returns: returns.filter(|at| extent.contains(*at)).collect(),
            name,
            extent,
            flow,
            boundaries,
            split_part,
        }
    }

    fn prove_site(
        &mut self,
        function: &Function,
        random: &mut Random,
        tally: &Tally,
    ) -> Result<(), String> {
        let code = self.object.code();
        // One in four at the function's start, as most probes are there.
        let site = match random.below(4) {
            0 => function.extent.start,
            _ => function.boundaries[random.below(function.boundaries.len())],
        };
        // Without the usual tactics and with little space, the other tactics are used more often.
        let placing = random.below(2) == 0;
        let input = SiteInput {
            code: &code,
            flow: &function.flow,
            site,
            targets: &self.object.targets,
            padding_end: self.object.padding_end(&function.extent),
            next: None,
            forbidden: &[],
            shadow_stack: false,
            int3: Ok(()),
            go: placing && random.below(4) > 0,
            split_part: function.split_part,
        };
        let chosen = match placing {
            true => choose_placed(&input, &mut Placer::new(self.space(random))),
            false => choose(&input),
        };
        let Ok(mut shape) = chosen else {
            tally.other(Other::Refused);
            return Ok(());
        };
        if random.below(8) == 0 {
            as_breakpoint(&mut shape);
        }
        let Some(probe) = self.compile(function, shape, random)? else {
            tally.other(Other::NoMemory);
            return Ok(());
        };
        tally.site();
        let proved = (0..INPUTS).try_for_each(|_| {
            self.prove_input(function, &probe, random, tally)
                .map_err(|e| describe(&code, function, &probe, &e))
        });
        for (at, bytes) in &probe.patch.relies_on {
            for at in (*at..).take(bytes.len()) {
                if !function.extent.contains(at) {
                    self.memory.clear_text(Extent::new(at, at + 1));
                }
            }
        }
        proved
    }

    /// Space for stubs: everywhere around, or a few small ranges.
    fn space(&self, random: &mut Random) -> Space {
        let free = self.memory.free();
        if random.below(3) == 0 {
            return Space::new(free, usize::MAX);
        }
        let small = free.into_iter().filter_map(|range| {
            let pages = (range.end - range.start) / 4096;
            let size = (1u64 << random.below(16)).min(pages);
            let start = range.start + random.number() % (pages - size + 1) * 4096;
            (random.below(4) > 0).then_some(start..start + size * 4096)
        });
        Space::new(small.collect(), usize::MAX)
    }

    /// Makes a probe, and writes everything except its patch of the code.
    fn compile(
        &mut self,
        function: &Function,
        shape: Shape,
        random: &mut Random,
    ) -> Result<Option<Probe>, String> {
        let mode = random.pick(&[
            Mode::Registered,
            Mode::Registered,
            Mode::Unregistered,
            Mode::Locked,
        ]);
        let work = random_work(random, &shape);
        let address = DETOURS + 32 * random.below(64) as u64;
        let request = Request {
            work: &work,
            displaced: &[],
            resume: shape.resume,
            red_zone: !shape.at_entry,
            live: shape.live,
        };
        let mut compiler = Compiler::new(self.session.runtime(mode), address, Vec::new());
        let no_detour = |e| format!("no detour: {e}: {shape:#x?}");
        for other in 0..random.below(3) as u32 {
            let request = Request {
                work: &elsewhere(&work, other),
                ..request
            };
            compiler.compile(&request).map_err(no_detour)?;
        }
        let own = Point {
            site: shape.site,
            after: &[],
            work: &work,
            red_zone: !shape.at_entry,
            live: shape.live,
        };
        let mut points = vec![own];
        // Other instructions of the region, with probes that have no work.
        let others = shape.displaced.iter().filter(|i| i.ip() != shape.site);
        points.extend(others.filter(|_| random.below(4) == 0).map(|other| Point {
            site: other.ip(),
            after: &[],
            work: &[],
            ..own
        }));
        points.sort_by_key(|point| point.site);
        let detour = compiler.compile_chain(&points, &shape.displaced, shape.resume);
        let detour = detour.map_err(no_detour)?;
        let begins = match shape.site == shape.covered.start {
            true => detour.entry(),
            false => detour.goes_on(shape.site).expect("a point"),
        };
        let Some(patch) = patch::patch(&shape, &detour, &mut compiler) else {
            return Ok(None);
        };
        let image = compiler.into_image();
        assert!(image.len() <= IMAGE_SIZE);
        if child::Stubs::map(&patch.stubs).is_none() {
            return Ok(None);
        }
        let memory = &mut self.memory;
        // The kernel may still refer to the descriptor of the last detour.
        child::forget_rseq();
        let mut bytes = image.clone();
        bytes.resize(IMAGE_SIZE, INT3); // nothing stays of the last one
        memory.write_arena(address, &bytes);
        // Bytes after the function that are part of displacements.
        for (at, bytes) in &patch.relies_on {
            for (at, byte) in (*at..).zip(bytes) {
                if !function.extent.contains(at) {
                    memory.write_text(at, &[*byte]);
                }
            }
        }
        let before = patch.writes.iter().map(|(at, bytes)| {
            let extent = Extent::new(*at, at + bytes.len() as u64);
            (*at, memory.text(extent))
        });
        Ok(Some(Probe {
            before: before.collect(),
            shape,
            work,
            mode,
            address,
            image,
            detour,
            begins,
            patch,
        }))
    }

    /// Runs the program, with the first `writes` writes of a probe applied.
    fn run(&mut self, program: Program, probe: Option<(&Probe, usize)>) -> Run {
        let memory = &mut self.memory;
        memory.reset();
        let mut stubs = child::Stubs::default();
        if let Some((probe, writes)) = probe {
            self.session.reset();
            for (at, bytes) in &probe.patch.writes[..writes] {
                memory.write_text(*at, bytes);
            }
            stubs = child::Stubs::map(&probe.patch.stubs).expect("mapped once already");
        }
        let outcome = self.machine.run(program);
        drop(stubs);
        for (at, bytes) in probe.iter().flat_map(|(p, _)| p.before.iter().rev()) {
            memory.write_text(*at, bytes);
        }
        Run {
            outcome,
            memory: memory.snapshot(),
        }
    }

    fn prove_input(
        &mut self,
        function: &Function,
        probe: &Probe,
        random: &mut Random,
        tally: &Tally,
    ) -> Result<(), String> {
        let shape = &probe.shape;
        let mut start = start_address(function, shape.site, random);
        if shape.covered.contains(start) && !probe.patch.patched.contains(&start) {
            start = shape.covered.start; // no thread is left behind a jump
        }
        let original_program = self.program(function, probe, start, random);
        let original = self.run(original_program.clone(), None);
        if let Some(other) = is_no_case(function, probe, &original.outcome)? {
            tally.other(other);
            return Ok(());
        }
        let arrivals = &original.outcome.arrivals;
        let mut generated: Vec<Extent> = probe.patch.generated().collect();
        let arena_end = memory::ARENA + memory::ARENA_SIZE as u64;
        generated.push(Extent::new(memory::ARENA, arena_end));
        // The first copy, or the jump back if there are no copies.
        let mut parts = probe.detour.parts.iter();
        let detour = parts.find(|part| part.entry == probe.begins);
        let detour = detour.expect("a part with the work");
        let way_back = detour.address + detour.size as u64 - 5;
        let landing = detour.copies.first().map_or(way_back, |(_, copy)| *copy);
        // Now and then step through the recording, too: each step aborts its restartable
        // sequence.
        let landing = (landing, self.memory.writable_arena(landing));
        let probed_program = Program {
            landing: (random.below(8) > 0).then_some(landing),
            site: match shape.site == shape.covered.start {
                true => shape.site,
                false => probe.begins,
            },
            silent: Vec::new(),
            patched: probe.patch.patched.clone(),
            copies: probe.patch.copies.clone(),
            traps: probe.patch.traps.clone(),
            generated,
            ..original_program.clone()
        };
        let red_zone = if shape.at_entry { 0 } else { RED_ZONE };
        let mut unwritten: Vec<Extent> = arrivals
            .iter()
            .map(|arrival| arrival.step.gprs[4])
            .map(|sp| Extent::new(sp - memory::BELOW, sp - red_zone))
            .collect();
        unwritten.push(memory::unregistered_rseq());
        let dead = Loose::behind(&shape.live);
        let locate = |at| locate(function, probe, at);

        let all = probe.patch.writes.len();
        let mut probed = self.run(probed_program.clone(), Some((probe, all)));
        unwritten.extend(undo_call(probe, &mut probed));
        let same = compare::steps(&original.outcome, &probed.outcome, dead).and_then(|loose| {
            compare::ends(&original, &probed, loose, dead, &unwritten, locate)?;
            self.check_work(probe, &original.outcome)
        });
        if let Err(error) = same {
            if self.reads_garbage(function, &original, &original_program, shape.at_entry) {
                tally.other(Other::Garbage);
                return Ok(());
            }
            return Err(explain(&error, "stepped", &original, &probed));
        }
        for writes in 1..all {
            self.prove_half_written(&original, &probed_program, probe, writes)
                .map_err(|e| format!("after {writes} of {all} writes: {e}"))?;
            tally.half_written();
        }
        let ended = match original.outcome.end {
            End::Left(_) => Ended::Left,
            End::Fault { .. } => Ended::Fault,
            _ => Ended::Bound,
        };
        tally.run(
            shape.tactic,
            ended,
            original.outcome.steps.len(),
            arrivals.len(),
        );
        if !arrivals.is_empty() && probe.work.iter().any(is_count) {
            tally.counted();
        }
        for arrival in arrivals {
            let asks = |work: &&Work| flags::asked(work).is_some();
            for work in probe.work.iter().filter(asks) {
                tally.asked(flags::wanted(work, arrival.step.flags));
            }
        }
        let runs_on = match original.outcome.end {
            End::Left(to) => !self.memory.stops_at(to),
            _ => ended == Ended::Bound,
        };
        if runs_on {
            return Ok(()); // at full speed it would not end there
        }
        let plain = Program {
            stepped: false,
            landing: None,
            ..probed_program
        };
        let mut plain = self.run(plain, Some((probe, all)));
        undo_call(probe, &mut plain);
        // The detour may take another path than when it is stepped, and leave other
        // values in dead registers.
        let same = compare::ends(&original, &plain, dead, dead, &unwritten, locate)
            .and_then(|()| self.check_work(probe, &original.outcome));
        match same {
            Ok(restartable) => tally.plain(restartable > 0),
            Err(_)
                if self.reads_garbage(function, &original, &original_program, shape.at_entry) =>
            {
                tally.other(Other::Garbage);
            }
            Err(error) => return Err(explain(&error, "at full speed", &original, &plain)),
        }
        Ok(())
    }

    /// With only the first writes of a probe (the last write is the one at the site),
    /// nothing is recorded or counted and nothing changes.
    fn prove_half_written(
        &mut self,
        original: &Run,
        probed: &Program,
        probe: &Probe,
        writes: usize,
    ) -> Result<(), String> {
        let written = &probe.patch.writes[..writes];
        let is_written = |at: &u64| {
            let contains =
                |(from, bytes): &(u64, Vec<u8>)| (*from..from + bytes.len() as u64).contains(at);
            written.iter().any(contains)
        };
        let mut half = Program {
            landing: None,
            ..probed.clone()
        };
        half.patched.retain(is_written);
        half.generated
            .retain(|range| !is_write(probe, range) || is_written(&range.start));
        let mut half = self.run(half, Some((probe, writes)));
        let pushed: Vec<Extent> = undo_call(probe, &mut half).into_iter().collect();
        let none = Loose::default();
        compare::steps(&original.outcome, &half.outcome, none)
            .and_then(|loose| {
                compare::ends(
                    original,
                    &half,
                    loose,
                    none,
                    &pushed,
                    |at| match is_written(&at) {
                        true => None,
                        false => copy_around(probe, at).map_or(Some(at), |(_, old)| Some(old)),
                    },
                )
            })
            .and_then(|()| {
                let seen = self.session.seen(&probe.work)?;
                match (seen.records.len(), seen.counts.iter().sum::<u64>()) {
                    (0, 0) => Ok(()),
                    (records, counts) => Err(format!("{records} records, counted {counts}")),
                }
            })
            .map_err(|e| explain(&e, "half written", original, &half))
    }

    /// Returns true if the original itself behaves differently when memory below the stack
    /// pointer changes on arrival, so that the run proves nothing.
    ///
    /// At a function's entry this includes the red zone. A leaf function may validly read there
    /// only if the run begins at its start and it had no chance to write before: of the 16
    /// bytes of a `long double` in its frame it writes ten, and may read all.
    fn reads_garbage(
        &mut self,
        function: &Function,
        original: &Run,
        program: &Program,
        at_entry: bool,
    ) -> bool {
        let outcome = &original.outcome;
        let code = self.object.code();
        let is_endbr = |step: &Step| {
            code.instruction_at(step.address, function.extent.end)
                .is_some_and(|i| i.mnemonic() == Mnemonic::Endbr64)
        };
        let nothing_before = program.start.address == function.extent.start
            && matches!(outcome.arrivals[..], [arrival]
                if outcome.steps[..arrival.after].iter().all(is_endbr));
        let spared = if at_entry && (outcome.calls > 0 || nothing_before) {
            0
        } else {
            RED_ZONE
        };
        let unwritten: Vec<Extent> = original
            .outcome
            .arrivals
            .iter()
            .map(|arrival| arrival.step.gprs[4])
            .map(|sp| Extent::new(sp - memory::BELOW, sp - spared))
            .collect();
        let none = Loose::default();
        (1..=SCRIBBLES).any(|noise| {
            let scribbled = Program {
                scribble: Some((spared, noise)),
                ..program.clone()
            };
            let scribbled = self.run(scribbled, None);
            compare::steps(&original.outcome, &scribbled.outcome, none)
                .and_then(|loose| {
                    compare::ends(original, &scribbled, loose, none, &unwritten, Some)
                })
                .is_err()
        })
    }

    /// Sets up the run of the original, from random registers.
    fn program(
        &mut self,
        function: &Function,
        probe: &Probe,
        start: u64,
        random: &mut Random,
    ) -> Program {
        let at_start = start == function.extent.start && !function.split_part;
        let memory = &mut self.memory;
        let word = memory::random_word(random);
        memory.preset(STACK_POINTER, if at_start { SENTINEL } else { word });
        let mut gprs = std::array::from_fn(|_| memory::random_word(random));
        gprs[4] = STACK_POINTER;
        if !at_start && random.below(2) == 0 {
            gprs[5] = STACK_POINTER + 0x1000; // a frame pointer
        }
        let direction = if random.below(16) == 0 { 0x400 } else { 0 };
        let site = self
            .object
            .code()
            .instruction_at(probe.shape.site, function.extent.end);
        let repeats = site.is_some_and(|i| i.has_rep_prefix() || i.has_repne_prefix());
        let mut callee = vec![[0; 10]; CALLS];
        for word in callee.iter_mut().flatten() {
            *word = memory::random_word(random);
        }
        Program {
            start: Step {
                address: start,
                gprs,
                flags: random.number() & FLAGS & !0x400 | direction,
            },
            stepped: true,
            function: vec![function.extent],
            site: probe.shape.site,
            repeats: repeats && probe.shape.tactic != Tactic::Reserved,
            silent: if probe.shape.tactic == Tactic::Reserved {
                vec![probe.shape.covered]
            } else {
                Vec::new()
            },
            returns: function.returns.clone(),
            callee,
            vectors: vectors::random(random),
            ..Program::default()
        }
    }

    /// Checks that each arrival was recorded once, with its registers, and counted once.
    /// Returns the number of records and counts made by a restartable sequence.
    fn check_work(&self, probe: &Probe, original: &Outcome) -> Result<u64, String> {
        let mut records = Vec::new();
        let mut counts = vec![0; COUNTERS as usize];
        for arrival in &original.arrivals {
            let value = |word: &Word| match word {
                Word::Register(register) => arrival.step.gprs[register.number()],
                Word::Constant(value) => *value,
            };
            let wanted = |work: &&Work| flags::wanted(work, arrival.step.flags);
            for work in probe.work.iter().filter(wanted) {
                match work {
                    Work::Record(record) => {
                        records.push((record.event, record.fields.iter().map(value).collect()));
                    }
                    Work::Count { counter, .. } => counts[*counter as usize] += 1,
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
        }
        let seen = self.session.seen(&probe.work)?;
        if seen.records != records {
            return Err(format!("recorded {:x?}, not {records:x?}", seen.records));
        }
        if seen.counts != counts {
            return Err(format!("counted {:?}, not {counts:?}", seen.counts));
        }
        if seen.restartable > 0 && probe.mode != Mode::Registered {
            return Err(format!("{} times as if registered", seen.restartable));
        }
        Ok(seen.restartable)
    }
}

/// One or two records, with a count before, between or after them, or counts only.
fn random_work(random: &mut Random, shape: &Shape) -> Vec<Work> {
    // At a conditional jump, often filter on its condition; otherwise, now and then, on any
    // condition, if the flags are live: the detour overwrites dead flags, so that they differ
    // in the probed run.
    let jump = shape.displaced.first().filter(|i| i.is_jcc_short_or_near());
    let asked = match jump {
        Some(jump) if random.below(4) > 0 => Some(jump.condition_code()),
        _ if shape.live.flags && random.below(4) == 0 => flags::random(random),
        _ => None,
    };
    let all = random.below(2) == 0;
    let filter = |random: &mut Random| {
        let asked = asked.filter(|_| all || random.below(2) == 0);
        asked.map(flags::filter)
    };
    let count = |random: &mut Random| Work::Count {
        counter: random.below(COUNTERS as usize) as u32,
        filter: filter(random),
    };
    if random.below(8) == 0 {
        return (0..1 + random.below(2)).map(|_| count(random)).collect();
    }
    let mut work = Vec::new();
    for event in 0..1 + random.below(8) as u32 / 6 {
        let fields = (0..random.below(5)).map(|_| {
            let number = random.pick(&[0u32, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
            match random.below(4) {
                0 => Word::Constant(constants::random(random)),
                _ => Word::Register(Register::RAX + number),
            }
        });
        let record = Record {
            event: 1000 + event,
            fields: fields.collect(),
            filter: filter(random),
        };
        work.push(record.into());
    }
    if random.below(4) == 0 {
        work.insert(random.below(work.len() + 1), count(random));
    }
    work
}

/// Work of the same form for another site: other events, other counters.
fn elsewhere(work: &[Work], other: u32) -> Vec<Work> {
    let change = |work: &Work| match work {
        Work::Record(record) => {
            let mut record = record.clone();
            record.event += 1000 * (other + 1);
            record.fields.iter_mut().for_each(constants::change);
            record.into()
        }
        Work::Count { counter, filter } => Work::Count {
            counter: (counter + 1 + other) % COUNTERS,
            filter: filter.clone(),
        },
        Work::Run { .. }
        | Work::Tally(_)
        | Work::Long(_)
        | Work::Enter { .. }
        | Work::Unregister
        | Work::Help { .. }
        | Work::Handler(_)
        | Work::Replace(_) => work.clone(),
    };
    work.iter().map(change).collect()
}

fn is_count(work: &Work) -> bool {
    matches!(work, Work::Count { .. })
}

/// Returns true if the range is one of the probe's writes.
fn is_write(probe: &Probe, range: &Extent) -> bool {
    let mut writes = probe.patch.writes.iter();
    writes.any(|(at, bytes)| *range == Extent::new(*at, at + bytes.len() as u64))
}

/// Chooses an instruction near the site; often the site itself or the function's start.
fn start_address(function: &Function, site: u64, random: &mut Random) -> u64 {
    let index = function.boundaries.partition_point(|&at| at < site);
    match random.below(6) {
        0 => function.extent.start,
        1 => site,
        // After it, where a tactic may have changed something as well.
        2 => {
            let behind = (index + random.below(4)).min(function.boundaries.len() - 1);
            function.boundaries[behind]
        }
        _ => function.boundaries[index - random.below(index.min(12) + 1)],
    }
}

/// Turns the shape into a breakpoint, if its first instruction can be displaced.
fn as_breakpoint(shape: &mut Shape) {
    let at_site = shape.displaced.iter().find(|i| i.ip() == shape.site);
    let Some(instruction) = at_site.copied().filter(|i| relocatable(i).is_ok()) else {
        return;
    };
    shape.displaced = vec![instruction];
    shape.placed = None;
    shape.tactic = Tactic::Int3;
    shape.covered = Extent::new(shape.site, shape.site + 1);
    shape.resume = shape.displaced[0].next_ip();
}

/// Returns a reason if the run of the original proves nothing about the probe; an error if it
/// shows that the shape is wrong.
fn is_no_case(
    function: &Function,
    probe: &Probe,
    original: &Outcome,
) -> Result<Option<Other>, String> {
    let patched = |step: &Step| probe.patch.patched.contains(&step.address);
    if original.arrivals.is_empty() && !original.steps.iter().any(patched) {
        return Ok(Some(Other::NotReached));
    }
    let stack_pointers = original.arrivals.iter().map(|arrival| arrival.step.gprs[4]);
    if !stack_pointers.into_iter().all(memory::has_room_below) {
        return Ok(Some(Other::NoStack));
    }
    let inside = Extent::new(probe.shape.covered.start + 1, probe.shape.covered.end);
    let mut before: Option<Extent> = None;
    for step in &original.steps {
        let Some(here) = function.flow.instruction_around(step.address) else {
            return Ok(Some(Other::Astray));
        };
        if here.start != step.address {
            return Ok(Some(Other::Astray));
        }
        let follows = before.is_some_and(|b| b.end == here.start || b == here);
        let trapped = probe.patch.patched.contains(&here.start);
        if inside.contains(here.start) && !follows && !trapped {
            let from = before.map_or(0, |b| b.start);
            let mut indirect = function.flow.indirect_jumps().iter();
            return match indirect.any(|jump| jump.address == from) {
                true => Ok(Some(Other::Astray)),
                false => Err(format!(
                    "control comes to {:#x}, inside the probe, from {from:#x}",
                    here.start
                )),
            };
        }
        before = Some(here);
    }
    Ok(None)
}

/// Maps an address in the function or in the detour's copies to the original address.
/// Calls are not copied as calls: a fault in a copy occurs after it has pushed its return
/// address, which [`undo_call`] reverts.
fn locate(function: &Function, probe: &Probe, at: u64) -> Option<u64> {
    if function.extent.contains(at) && !probe.patch.generated().any(|g| g.contains(at)) {
        return Some(at);
    }
    copy_around(probe, at).map(|(_, original)| original)
}

/// Finds the copy that an address in the arena belongs to; returns it and its original.
fn copy_around(probe: &Probe, at: u64) -> Option<(u64, u64)> {
    let copies = probe.patch.copies.iter().copied();
    copies
        .filter(|(copy, _)| *copy <= at && at < copy + MAX_COPY)
        .max()
}

/// If the run ended by a fault in the copy of a call, after the push: restores the
/// stack pointer, and returns the location of the return address.
fn undo_call(probe: &Probe, run: &mut Run) -> Option<Extent> {
    let End::Fault { at, .. } = run.outcome.end else {
        return None;
    };
    let (copy, original) = copy_around(probe, at)?;
    let shape = &probe.shape;
    let evicted = shape.placed.iter().flat_map(|placed| &placed.evicted);
    let mut copied = shape.displaced.iter().chain(evicted);
    let call = copied.find(|i| i.ip() == original)?;
    if copy == at || call.flow_control() != FlowControl::IndirectCall {
        return None;
    }
    let stack_pointer = &mut run.outcome.last.gprs[4];
    let pushed = Extent::new(*stack_pointer, *stack_pointer + 8);
    *stack_pointer = pushed.end;
    Some(pushed)
}

/// Returns true if the instruction's result differs when it runs again, if it enters the
/// kernel, or if its result shows its address or that it is stepped.
fn is_unsuitable(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    let segment = (0..instruction.op_count()).any(|i| {
        instruction.op_kind(i) == OpKind::Register
            && instruction.op_register(i).is_segment_register()
    });
    segment
        || matches!(
            instruction.flow_control(),
            FlowControl::Interrupt | FlowControl::XbeginXabortXend
        )
        || matches!(
            instruction.mnemonic(),
            M::Syscall
                | M::Sysenter
                | M::Rdtsc
                | M::Rdtscp
                | M::Rdrand
                | M::Rdseed
                | M::Rdpid
                | M::Rdpmc
                | M::Rdpkru
                | M::Wrpkru
                | M::Cpuid
                | M::Xgetbv
                | M::Pushf
                | M::Pushfq
                | M::Popf
                | M::Popfq
                | M::Rdfsbase
                | M::Rdgsbase
                | M::Wrfsbase
                | M::Wrgsbase
                | M::Fnstenv
                | M::Fstenv
                | M::Fnsave
                | M::Fsave
                | M::Fxsave
                | M::Fxsave64
                | M::Xsave
                | M::Xsave64
                | M::Xsavec
                | M::Xsavec64
                | M::Xsaveopt
                | M::Xrstor
                | M::Xrstor64
                | M::Fxrstor
                | M::Fxrstor64
        )
}

/// Describes a failed run, with the path of the original.
fn explain(error: &str, how: &str, original: &Run, probed: &Run) -> String {
    let (a, b) = (&original.outcome, &probed.outcome);
    let way = |steps: &[Step]| {
        let last = steps.len().saturating_sub(40);
        steps[last..]
            .iter()
            .map(|step| format!("{:x}", step.address))
            .collect::<Vec<_>>()
            .join(" ")
    };
    format!(
        "{how}: {error}\noriginal: {:x?} after {} steps: {}\nprobed: {:x?} after {} steps: {}\n\
         registers on arrival: {:x?}",
        a.end,
        a.steps.len(),
        way(&a.steps),
        b.end,
        b.steps.len(),
        way(&b.steps),
        a.arrivals,
    )
}

/// Describes everything about a probe that is needed to understand a failure. Addresses
/// in files are lower by `BIAS`.
fn describe(
    code: &capriole_insn::Code<'_>,
    function: &Function,
    probe: &Probe,
    error: &str,
) -> String {
    let shape = &probe.shape;
    let mut text = format!(
        "{error}\n{} {} (mapped {BIAS:#x} higher than linked), site {:#x}, {}\n\
         covered {}, resume {:#x}, at entry: {}, live {:?}, work {:?}, {:?}\n",
        function.name,
        function.extent,
        shape.site,
        shape.tactic,
        shape.covered,
        shape.resume,
        shape.at_entry,
        shape.live,
        probe.work,
        probe.mode,
    );
    let _ = writeln!(text, "{:x?}", probe.patch);
    let mut list = |title: &str, bytes: &[u8], address: u64, limit: usize| {
        let _ = writeln!(text, "{title}:");
        let decoder = &mut Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        for i in decoder.into_iter().take(limit) {
            let _ = writeln!(text, "  {:#x} {i}", i.ip());
        }
    };
    let near = function
        .boundaries
        .partition_point(|&at| at < shape.site)
        .saturating_sub(12);
    let from = function.boundaries[near];
    let bytes = code
        .get(Extent::new(from, function.extent.end))
        .unwrap_or(&[]);
    list("around the site", bytes, from, 40);
    for part in &probe.detour.parts {
        let hot = (part.entry - probe.address) as usize;
        list("detour", &probe.image[hot..], part.entry, 80);
    }
    text
}
