//! Makes plans for resolved sites: gathers the inputs of the pure planner from the object and
//! the process.

mod narrow;
mod together;

use self::together::wants_placing;
use capriole_dwarf::DebugInfo as _;
pub use capriole_patch::attach::Plan;
use capriole_patch::attach::{CLUSTER, breakpoints_allowed};
use capriole_patch::other::Other;
use capriole_proc::maps::{Layout, PAGE_SIZE, free_stretches, max_map_count};

use crate::resolve::{Body, Site};
use capriole_host::ptrace;
use capriole_host::survey::has_shadow_stack;
use capriole_insn::{Extent, FunctionFlow, Hints};
use capriole_ledger::Kind;
use capriole_object::symbols::display;
use capriole_object::{Object, ObjectCode, ObjectFile, ObjectKind};
use capriole_proc::process::Process;
use capriole_tactic::place::{Placer, Space};
use capriole_tactic::site::{
    Refusal, Refused, Shape, SiteInput, Tactic, choose, choose_from, choose_placed,
};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Permission to use breakpoints, or the reason for refusing it; determined when it is first needed,
/// because that takes up to a second if a thread blocks SIGTRAP.
type Breakpoints = LazyLock<Result<(), Refusal>, Box<dyn FnOnce() -> Result<(), Refusal> + Send>>;

/// Planner for the sites of one process, or of files without a process.
#[derive(Debug)]
pub struct Planner {
    breakpoints: Breakpoints,
    shadow_stack: bool,
    /// True to prefer changing one instruction over changing several, everywhere.
    one_instruction: bool,
    /// The process, of which pages cannot be covered that hold something else than their file: there,
    /// changing one instruction is preferred, too. `None` for files.
    process: Option<Process>,
    trusted: bool,
    /// Addresses available for stubs; `None` for a file, which is treated as if it were loaded
    /// alone.
    space: Option<Space>,
    /// The other session of the process, whose probes stay as they are.
    other: Option<Other>,
    /// The kind of the session that is to probe the sites.
    kind: Kind,
}

/// The plan of a site, or the reasons why there is none.
pub type Planned = Result<Plan, Refused>;

/// Number of mappings always left for the process.
const SPARE_MAPPINGS: usize = 4096;
/// Space to leave after a program at a fixed address: its heap begins up to 32 MiB after it
/// (`arch_randomize_brk`), and needs space to grow.
const HEAP_ROOM: u64 = (32 + 256) << 20;
/// Prefixes of the sonames (or file names) of C libraries and dynamic loaders.
const C_LIBRARIES: [&str; 5] = [
    "libc.so",
    "ld-linux",
    "libpthread.so",
    "libc.musl",
    "ld-musl",
];
/// Prefix of the soname of the library by which programs probe themselves.
const LIBRARY: &str = "libcapriole.so";
/// Section with the code of that library, also in a program that it is linked into.
const LIBRARY_CODE: &str = "capriole_text";
/// Section with the functions that a program excludes from probes (`CAPRIOLE_NOPROBE` in
/// `include/capriole/probe.h`).
const NO_PROBE: &str = "capriole_noprobe";
/// Prefixes of the names of functions that Go's signal handlers may run.
const GO_RUNTIME: [&str; 6] = [
    "runtime.",
    "runtime/",
    "internal/",
    "type:",
    "sync/atomic.",
    "go:",
];
/// Size of `endbr64`, bytes.
const ENDBR: u64 = 4;
/// Space for one detour, bytes: enough for nearly all detours.
const DETOUR: u64 = 1024;
/// Space for code shared by detours, bytes.
const RESIDENT: u64 = 1 << 20;

/// True for a C library or a dynamic loader.
pub(crate) fn is_c_library(object: &Object) -> bool {
    // On some systems, the file name of musl is not distinctive.
    let name = object
        .file()
        .soname()
        .map_or_else(|| object.name(), str::to_owned);
    C_LIBRARIES.iter().any(|library| name.starts_with(library))
}

/// Returns the run-time addresses of the functions that an object excludes from probes, if it has some.
#[must_use]
pub fn excluded(object: &Object) -> Option<Range<u64>> {
    let section = object.file().section(NO_PROBE)?;
    Some(object.run_time(section.start)..object.run_time(section.end))
}

/// Groups objects whose detours can be placed together. The objects are in ascending order,
/// each with a number; the numbers of a group are added.
fn clusters(objects: Vec<(Range<u64>, u64)>) -> Vec<(Range<u64>, u64)> {
    let mut clusters: Vec<(Range<u64>, u64)> = Vec::new();
    for (range, number) in objects {
        match clusters.last_mut() {
            Some((near, sum)) if range.end.saturating_sub(near.start) <= CLUSTER => {
                near.end = near.end.max(range.end);
                *sum += number;
            }
            _ => clusters.push((range, number)),
        }
    }
    clusters
}

fn refused(refusal: Refusal) -> Refused {
    Refused {
        refusals: Tactic::ALL
            .into_iter()
            .map(|tactic| (tactic, refusal))
            .collect(),
    }
}

fn outside(site: &Site) -> Refused {
    refused(Refusal::OutsideFunction {
        site: site.address,
        function: site.extent,
    })
}

/// Returns the addresses where stubs may be mapped in a process; no addresses if the memory map
/// cannot be read.
fn space_of(process: &Process) -> Space {
    let maps = process.maps().unwrap_or_default();
    if maps.is_empty() {
        return Space::new(Vec::new(), 0);
    }
    let mappings = max_map_count().saturating_sub(maps.len() + SPARE_MAPPINGS) / 2;
    let mut layout = Layout::of(process);
    // Go's runtime gets memory only from mmap(2). It does not use the `brk` heap, which the kernel
    // may put anywhere in the GiB above the program. C code in such a program also falls back to
    // mmap(2) where `brk` has no space; an existing heap still gets space to grow.
    let program = ObjectFile::open(&process.proc_path("exe"));
    if program.is_ok_and(|file| file.is_go()) {
        layout.start_brk = None;
    }
    Space::new(free_stretches(&maps, &layout), mappings)
}

/// Returns the addresses where stubs could be mapped if the object were loaded alone.
fn space_around(site: &Site) -> Space {
    let range = site.object.range();
    if site.object.file().kind() != ObjectKind::FixedProgram {
        return Space::around(range);
    }
    let page = |address: u64| address.next_multiple_of(PAGE_SIZE);
    let above = page(range.end.saturating_add(HEAP_ROOM));
    let free = vec![
        page(64 << 10)..range.start / PAGE_SIZE * PAGE_SIZE,
        above..page(range.start.saturating_add(1 << 31)),
    ];
    Space::new(free, max_map_count() / 2)
}

impl Site {
    /// Makes a site at the start of a function with this run-time extent, whatever names the
    /// function has. `None` if the start is not in the object's file.
    #[must_use]
    pub fn of_function(object: &Arc<Object>, extent: Extent) -> Option<Site> {
        let link_address = object.link(extent.start);
        let symbols = object.symbols().ok()?;
        let linkage = symbols
            .function_at(link_address)
            .and_then(|function| symbols.linkage_name(function));
        Some(Site {
            object: Arc::clone(object),
            symbol: linkage.map(|name| display(name).into_owned()),
            linkage_name: linkage.map(str::to_owned),
            offset: 0,
            file_offset: object.file().file_offset(link_address)?,
            link_address,
            address: extent.start,
            extent,
            by_name: false,
            body: Body::Own,
            scope: None,
            leaving: None,
            marker: None,
            check: 0,
        })
    }

    /// Makes a site at another run-time address in the same function. `None` if the address is not
    /// in the object's file.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<Site> {
        let link_address = self.object.link(address);
        Some(Site {
            offset: address.wrapping_sub(self.extent.start),
            file_offset: self.object.file().file_offset(link_address)?,
            link_address,
            address,
            body: Body::Own,
            scope: None,
            leaving: None,
            marker: None,
            check: 0,
            ..self.clone()
        })
    }
}

impl Planner {
    /// Makes a planner for sites of a running process that a recorder is to probe.
    pub fn of_process(process: &Process) -> Planner {
        Planner::of_session(process, Kind::Recorder)
    }

    /// Makes a planner for sites of a running process that a session of this kind is to probe.
    pub fn of_session(process: &Process, kind: Kind) -> Planner {
        let host = ptrace::host(process);
        // What cannot be seen now is found when the probes are written.
        let remote = host.memory().ok();
        let other = remote.and_then(|remote| Other::find(process, &remote, kind).ok()?);
        let beside = |other: &Other| other.check_breakpoints(other.leaves_actions());
        let beside = other.as_ref().map_or(Ok(()), beside);
        let allowed = move || beside.and_then(|()| breakpoints_allowed(&*host));
        Planner {
            breakpoints: Breakpoints::new(Box::new(move || {
                allowed().map_err(Refusal::TrapUnusable)
            })),
            other,
            kind,
            shadow_stack: has_shadow_stack(process),
            one_instruction: false,
            process: Some(process.clone()),
            trusted: false,
            space: Some(space_of(process)),
        }
    }

    /// Makes a planner for sites of a file, as if it ran in a process without restrictions.
    pub fn offline() -> Planner {
        Planner {
            breakpoints: Breakpoints::new(Box::new(|| Ok(()))),
            shadow_stack: false,
            one_instruction: false,
            process: None,
            trusted: false,
            space: None,
            other: None,
            kind: Kind::Recorder,
        }
    }

    /// Allows or forbids breakpoints.
    #[must_use]
    pub fn with_breakpoints(mut self, allowed: bool) -> Planner {
        if !allowed {
            self.breakpoints = Breakpoints::new(Box::new(|| Err(Refusal::BreakpointsOff)));
        }
        self
    }

    /// Prefers a jump that changes only one instruction, where possible: see
    /// [`capriole_tactic::site::choose_one_instruction`].
    #[must_use]
    pub fn with_one_instruction(mut self, wanted: bool) -> Planner {
        self.one_instruction = wanted;
        self
    }

    /// Trusts that an instruction begins at a given address, even if nothing shows that.
    #[must_use]
    pub fn with_trusted_addresses(mut self, trusted: bool) -> Planner {
        self.trusted = trusted;
        self
    }

    /// Refuses an address outside of all known functions unless an instruction is known to begin
    /// there.
    fn check_address(&self, site: &Site, object: &ObjectCode) -> Result<(), Refusal> {
        let symbols = site.object.symbols().ok();
        if symbols.is_some_and(|symbols| symbols.function_at(site.link_address).is_some()) {
            return Ok(()); // its flow tells
        }
        if site.marker.is_some() || site.scope.is_some() {
            return Ok(());
        }
        let site_at = site.address;
        match object.shown(site_at) {
            Ok(()) => Ok(()),
            Err(Some(instruction)) => Err(Refusal::NotABoundary {
                site: site_at,
                instruction,
            }),
            Err(None) if self.trusted || begins_line(site) => Ok(()),
            Err(None) => Err(Refusal::NotShown { site: site_at }),
        }
    }

    /// Checks that breakpoints may be used in the object of a site.
    ///
    /// The kernel kills a program that hits a breakpoint while SIGTRAP is blocked. C libraries
    /// block all signals in some of their own functions: while they create a thread, raise a signal
    /// or abort.
    fn breakpoints_in(&self, site: &Site) -> Result<(), Refusal> {
        if site.object.file().is_go() {
            // Functions called by Go's signal handlers run with all signals blocked.
            let symbol = site.linkage_name.as_deref().unwrap_or("runtime.");
            if GO_RUNTIME.iter().any(|start| symbol.starts_with(start)) {
                return self.breakpoints.and(Err(Refusal::TrapUnusable(
                    "Go's signal handlers run this with all signals blocked, where a breakpoint ends the program",
                )));
            }
        }
        match is_c_library(&site.object) {
            true => self.breakpoints.and(Err(Refusal::TrapUnusable(
                "the C library runs parts of itself with all signals blocked, where a breakpoint ends the program",
            ))),
            false => *self.breakpoints,
        }
    }

    /// Analyses the control flow of the function that contains some sites. Each site that is known
    /// to be code, or trusted, counts as reachable.
    fn analyse(&self, sites: &[&Site]) -> Result<FunctionFlow, Refused> {
        let site = sites.first().ok_or_else(damaged)?;
        let object = site.object.code().map_err(|_| damaged())?;
        let code = object.code_at(site.address).ok_or_else(|| outside(site))?;
        let read = |address, size| object.read(address, size);
        let hints = Hints {
            landing_pads: object.landing_pads_in(site.extent),
            read: &read,
        };
        let flow = FunctionFlow::analyse_with(&code, &site.extent, &hints);
        let flow = flow.map_err(|_| outside(site))?;
        // The split-off part of a function may jump to code that is not the target of any other jump.
        let jumps = object.targets_at(site.address).into_iter();
        let jumps = jumps.flat_map(|targets| targets.crossing_into(site.extent));
        let mut entries: Vec<u64> = jumps
            .map(|jump| jump.0)
            .filter(|target| flow.is_boundary(*target) && !flow.is_reached(*target))
            .collect();
        let addresses = sites.iter().map(|site| site.address);
        entries.extend(addresses.filter(|&at| {
            let may_be_data =
                flow.is_boundary(at) && !flow.is_reached(at) && !flow.is_straight_from_start(at);
            may_be_data && (self.trusted || object.shown(at).is_ok())
        }));
        if entries.is_empty() {
            return Ok(flow);
        }
        entries.extend(hints.landing_pads);
        let hints = Hints {
            landing_pads: &entries,
            ..hints
        };
        FunctionFlow::analyse_with(&code, &site.extent, &hints).map_err(|_| outside(site))
    }

    /// True if the program runs with a shadow stack (CET).
    #[must_use]
    pub fn has_shadow_stack(&self) -> bool {
        self.shadow_stack
    }

    fn placer(&self, site: &Site) -> Placer {
        let space = self.space.clone();
        let mut placer = Placer::new(space.unwrap_or_else(|| space_around(site)));
        self.leave_to_other(&mut placer);
        self.leave_to_breakpoints(&mut placer, &[site]);
        want_markers(&mut placer, &site.object);
        placer
    }

    /// Makes a placer for many sites, which keeps space free for their detours.
    fn placer_of(&self, first: &Site, sites: &[&Site]) -> Placer {
        let Some(mut space) = self.space.clone() else {
            return self.placer(first);
        };
        let mut objects: Vec<(Range<u64>, u64)> = Vec::new();
        for site in sites {
            let range = site.object.range();
            match objects.iter_mut().find(|(known, _)| *known == range) {
                Some((_, count)) => *count += 1,
                None => objects.push((range, 1)),
            }
        }
        objects.sort_unstable_by_key(|(range, _)| range.start);
        for (near, count) in clusters(objects) {
            space.keep_free(near, count * DETOUR + RESIDENT);
        }
        let mut placer = Placer::new(space);
        self.leave_to_other(&mut placer);
        self.leave_to_breakpoints(&mut placer, sites);
        let mut objects: Vec<&Arc<Object>> = sites.iter().map(|site| &site.object).collect();
        objects.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for object in objects {
            want_markers(&mut placer, object);
        }
        placer
    }

    /// Has no probe change bytes that the other session claims, or rely on them.
    fn leave_to_other(&self, placer: &mut Placer) {
        let claims = self.other.iter().flat_map(Other::claims);
        claims.for_each(|bytes| placer.claim(bytes));
    }

    /// Returns the bytes that the other session claims in reach of an extent.
    fn claimed_near(&self, extent: Extent) -> Vec<Extent> {
        /// As in [`ObjectCode::forbidden_near`].
        const NEAR: u64 = 512;
        let near = extent.start.saturating_sub(NEAR)..extent.end.saturating_add(NEAR);
        let claims = self
            .other
            .iter()
            .flat_map(|other| other.claims_in(near.clone()));
        claims
            .map(|bytes| Extent::new(bytes.start, bytes.end))
            .collect()
    }

    /// Names the other session where its bytes are the reason of a refusal.
    fn name_other(&self, refusals: &mut [(Tactic, Refusal)], claimed: &[Extent]) {
        let Some(owner) = self.other.as_ref().map(|other| other.owner) else {
            return;
        };
        for (_, refusal) in refusals {
            if let Refusal::Forbidden { range } = *refusal
                && claimed.contains(&range)
            {
                *refusal = match (owner.kind, owner.tracer) {
                    (Kind::Library, _) => Refusal::ProbedByProgram { range },
                    (Kind::Recorder, Some(pid)) => Refusal::ProbedByRecorder { range, pid },
                    (Kind::Recorder, None) => Refusal::ProbedBefore { range },
                };
            }
        }
    }

    /// Refuses functions that the program excludes from probes; and to record code of the library by which a
    /// program probes itself: each of its probes would hit one there. The library has probes of its own there,
    /// for records.
    fn check_excluded(&self, site: &Site) -> Result<(), Refused> {
        if excluded(&site.object).is_some_and(|excluded| excluded.contains(&site.address)) {
            return Err(refused(Refusal::NoProbe));
        }
        let file = site.object.file();
        let soname = file.soname();
        let name = soname.map_or_else(|| site.object.name(), str::to_owned);
        let section = file.section(LIBRARY_CODE);
        let is_in = |section: Range<u64>| section.contains(&site.link_address);
        let is_own = name.starts_with(LIBRARY) || section.is_some_and(is_in);
        match is_own && self.kind == Kind::Recorder {
            true => Err(refused(Refusal::LibraryCode)),
            false => Ok(()),
        }
    }

    /// Plans one site on its own.
    ///
    /// # Errors
    /// The reasons, one for each tactic.
    pub fn plan(&self, site: &Site) -> Planned {
        self.check_excluded(site)?;
        let flow = self.analyse(&[site])?;
        let mut placer = self.placer(site);
        release_instruction(&mut placer, site);
        self.plan_in(site, &flow, Some(&mut placer), &[])
    }

    /// Plans every instruction of a function from an address on, each as if it were the only one to
    /// be probed. The plans are in order of address.
    ///
    /// # Errors
    /// The code of the function is not known: the reason, for each tactic.
    pub fn plan_each(&self, function: &Site, from: u64) -> Result<Vec<Planned>, Refused> {
        self.check_excluded(function)?;
        let flow = self.analyse(&[function])?;
        let placer = self.placer(function);
        let plan = |site: Site| {
            let plan = self.plan_in(&site, &flow, None, &[]);
            match wants_placing(&plan) {
                true => {
                    let mut placer = placer.clone();
                    release_instruction(&mut placer, &site);
                    self.plan_in(&site, &flow, Some(&mut placer), &[])
                }
                false => plan,
            }
        };
        let places = flow.boundaries().filter(|address| *address >= from);
        let sites = places.filter_map(|address| function.at(address));
        Ok(sites.map(plan).collect())
    }

    /// Plans a site of an analysed function. Without a placer, uses only the tactics that need
    /// none. The instructions at `others` must stay unchanged.
    fn plan_in(
        &self,
        site: &Site,
        flow: &FunctionFlow,
        placer: Option<&mut Placer>,
        others: &[u64],
    ) -> Planned {
        self.with_input(site, flow, others, |input, own| {
            let explain = |refusals: &mut Vec<(Tactic, Refusal)>| {
                for (_, refusal) in refusals {
                    if let Refusal::Forbidden { range } = refusal
                        && input.forbidden[own..].contains(range)
                    {
                        *refusal = Refusal::BytesInUse { at: range.start };
                    }
                }
            };
            let shape = match placer {
                None => choose(input),
                Some(placer) => choose_placed(input, placer),
            };
            let shape = match shape {
                Ok(mut shape) => {
                    explain(&mut shape.refusals);
                    shape
                }
                Err(mut refused) => {
                    explain(&mut refused.refusals);
                    return Err(refused);
                }
            };
            plan_of(site, input, shape)
        })
    }

    /// Plans a site that shares a jump at `from`; see [`choose_from`].
    fn plan_from(&self, site: &Site, flow: &FunctionFlow, from: u64) -> Planned {
        self.with_input(site, flow, &[], |input, _| {
            let shape = choose_from(input, from).map_err(refused)?;
            plan_of(site, input, shape)
        })
    }

    /// Passes the planner's input for a site to `then`, with the number of its forbidden extents
    /// that are forbidden for reasons other than `others`. The instructions at `others` must stay
    /// unchanged.
    fn with_input(
        &self,
        site: &Site,
        flow: &FunctionFlow,
        others: &[u64],
        then: impl FnOnce(&SiteInput<'_>, usize) -> Planned,
    ) -> Planned {
        let object = site.object.code().map_err(|_| damaged())?;
        let code = object.code_at(site.address).ok_or_else(|| outside(site))?;
        self.check_address(site, object).map_err(refused)?;
        let targets = object
            .targets_at(site.address)
            .ok_or_else(|| outside(site))?;
        // The function may also be entered after its `endbr64`.
        let near_start = site.address.wrapping_sub(site.extent.start) <= ENDBR;
        let in_use = near_start && object.is_entered_in_use(site.extent.start);
        let split_part = site.object.symbols().is_ok_and(|symbols| {
            let function = symbols.function_at(site.link_address);
            function.is_none_or(|f| symbols.is_split_off(f))
        });
        let others = others.iter().filter(|other| **other != site.address);
        let others = others.map(|other| Extent::new(*other, other + 1));
        let near = object.forbidden_near(site.extent);
        let claimed = self.claimed_near(site.extent);
        let kept = near.iter().chain(&claimed).copied().chain(others);
        let kept: Vec<Extent> = kept.collect();
        let input = SiteInput {
            code: &code,
            flow,
            site: site.address,
            targets,
            padding_end: object.padding_end(site.extent),
            next: site.object.symbols().ok().and_then(|symbols| {
                let next = site.object.link(site.extent.end);
                let next = symbols.function_starting_at(next)?;
                Some(site.object.run_time_extent(next.extent))
            }),
            forbidden: &kept,
            shadow_stack: self.shadow_stack,
            int3: self.breakpoints_in(site),
            go: object.is_go(),
            split_part,
        };
        let plan = then(&input, near.len() + claimed.len());
        let mut plan = plan.map_err(|mut refused| {
            self.name_other(&mut refused.refusals, &claimed);
            refused
        })?;
        self.name_other(&mut plan.shape.refusals, &claimed);
        plan.called = plan.shape.at_entry;
        plan.shape.at_entry &= !in_use;
        Ok(plan)
    }
}

/// Makes a plan from a shape and the bytes that it covers.
fn plan_of(site: &Site, input: &SiteInput<'_>, shape: Shape) -> Planned {
    // A breakpoint's shape covers one byte; saving more does no harm.
    let end = shape.covered.end.max(shape.covered.start + 1);
    let before = input.code.get(Extent::new(shape.covered.start, end));
    Ok(Plan {
        before: before.ok_or_else(|| outside(site))?.to_vec(),
        shape,
        breakpoint: input.int3,
        called: false,
    })
}

/// True if a statement of a line table begins at the site.
fn begins_line(site: &Site) -> bool {
    let at = site.link_address;
    let debug = site.object.file().debug().ok();
    debug.is_some_and(|debug| !debug.statements(at, at + 1).is_empty())
}

fn damaged() -> Refused {
    refused(Refusal::TargetsUnknown("a table of the file is damaged"))
}

/// Returns the address range of the instruction at an address.
fn instruction_bytes(object: &ObjectCode, address: u64) -> Range<u64> {
    let code = object.code_at(address);
    let found = code.and_then(|code| code.instruction_at(address, code.extent().end));
    address..found.map_or(address + 1, |instruction| instruction.next_ip())
}

/// Reserves all static markers: no probe may displace them or rely on their bytes, because
/// other tools may change them at any time.
fn want_markers(placer: &mut Placer, object: &Object) {
    let Ok(code) = object.code() else { return };
    for marker in code.markers() {
        placer.reserve(instruction_bytes(code, marker));
    }
}

/// Allows changing the site's own instruction, even if it is a marker.
fn release_instruction(placer: &mut Placer, site: &Site) {
    if let Ok(code) = site.object.code() {
        placer.release(instruction_bytes(code, site.address));
    }
}
