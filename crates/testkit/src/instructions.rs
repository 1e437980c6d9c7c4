//! Plans every instruction of some code, and sorts the plans into batches whose probes do not
//! overlap.

use capriole_codegen::work::Record;
use capriole_insn::{Extent, FunctionFlow, Hints};
use capriole_object::{Object, Objects};
use capriole_patch::attach::Probe;
use capriole_planner::planner::Planner;
use capriole_planner::resolve::Site;
use capriole_tactic::site::{Refusal, Shape, Tactic};
use iced_x86::Register;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Returns the objects of a process whose file names begin with `name`; "" is the program.
pub fn objects_named(objects: &Objects, name: &str) -> Vec<Arc<Object>> {
    let is = |object: &&Arc<Object>| match name {
        "" => object.is_main(),
        name => object.name().starts_with(name),
    };
    objects.all().filter(is).cloned().collect()
}

/// Returns the functions of an object, at run-time addresses.
pub fn functions(object: &Object) -> Vec<Extent> {
    let symbols = object.symbols().expect("symbols");
    let all = symbols.functions().iter();
    all.map(|f| object.run_time_extent(f.extent)).collect()
}

/// Returns every instruction that decoding finds in the functions.
pub fn every_instruction(object: &Arc<Object>, functions: &[Extent]) -> Vec<Site> {
    let code = object.code().expect("code");
    let mut seen = BTreeSet::new();
    let mut sites = Vec::new();
    for function in functions {
        let Some(text) = code.code_at(function.start) else {
            continue;
        };
        let read = |address, size| code.read(address, size);
        let hints = Hints {
            landing_pads: code.landing_pads_in(*function),
            read: &read,
        };
        let Ok(flow) = FunctionFlow::analyse_with(&text, function, &hints) else {
            continue;
        };
        let new = flow.boundaries().filter(|address| seen.insert(*address));
        let start = Site::of_function(object, *function).expect("in the file");
        sites.extend(new.map(|address| start.at(address).expect("in the file")));
    }
    sites
}

/// An instruction with its probe.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Function name and offset.
    pub name: String,
    /// File name and link address: the same in every process.
    pub key: (String, u64),
    pub probe: Probe,
}

/// The planner's results for many instructions.
#[derive(Debug, Default)]
pub struct Plans {
    pub planned: Vec<Planned>,
    /// Number of instructions given to the planner.
    pub instructions: usize,
    /// Refused instructions by reason (that of the last tactic tried before a breakpoint).
    pub refused: BTreeMap<String, usize>,
    /// Instructions that no freely chosen jump reaches. Plan them in small numbers, so that there
    /// is room for each (see [`Plans::of_rest`]).
    pub rest: Vec<Site>,
}

impl Plans {
    /// Plans every site that a freely chosen jump reaches.
    pub fn of(planner: &Planner, sites: &[Site]) -> Plans {
        Plans::made(planner, sites, |tactic| !tactic.is_prescribed())
    }

    /// Plans every `of`-th of the remaining sites, starting at the n-th.
    pub fn of_rest(planner: &Planner, rest: &[Site], n: usize, of: usize) -> Plans {
        let sites: Vec<Site> = rest.iter().skip(n).step_by(of).cloned().collect();
        Plans::made(planner, &sites, |_| true)
    }

    /// Plans sites. Each probe records a few registers, which differ from site to site.
    fn made(planner: &Planner, sites: &[Site], wanted_tactic: impl Fn(Tactic) -> bool) -> Plans {
        let wanted: Vec<&Site> = sites.iter().collect();
        let mut plans = Plans {
            instructions: sites.len(),
            ..Plans::default()
        };
        for (site, plan) in sites.iter().zip(planner.plan_all(&wanted)) {
            match plan {
                // `endbr64` is skipped; the next instruction is a site of its own.
                Ok(plan) if plan.shape.site != site.address => {
                    *plans.refused.entry("endbr64".to_owned()).or_default() += 1;
                }
                // It needs another probe at the same time.
                Ok(plan)
                    if plan
                        .shape
                        .placed
                        .as_ref()
                        .is_some_and(|p| p.builds_on.is_some()) =>
                {
                    plans.rest.push(site.clone());
                }
                Ok(plan) if !wanted_tactic(plan.shape.tactic) => plans.rest.push(site.clone()),
                Ok(plan) => {
                    let symbol = site.symbol.as_deref().unwrap_or("?");
                    plans.planned.push(Planned {
                        name: format!("{symbol}+{:#x}", site.offset),
                        key: (site.object.name(), site.link_address),
                        probe: Probe::new(plan, site.object.range()),
                    });
                }
                Err(refused) => {
                    let but_breakpoints =
                        |(tactic, _): &&(Tactic, Refusal)| *tactic != Tactic::Int3;
                    let last = refused.refusals.iter().rfind(but_breakpoints);
                    let why = last.map_or(String::new(), |(_, refusal)| sort_of(refusal));
                    *plans.refused.entry(why).or_default() += 1;
                    plans.rest.push(site.clone());
                }
            }
        }
        for (number, planned) in plans.planned.iter_mut().enumerate() {
            let fields = fields_of(number, planned.probe.shape.site);
            let event = number as u32;
            let work = &mut planned.probe.points[0].work;
            work.push(Record::new(event, fields).into());
        }
        plans
    }

    /// Returns the number of sites for each tactic.
    pub fn tactics(&self) -> BTreeMap<&'static str, usize> {
        let mut count = BTreeMap::new();
        for planned in &self.planned {
            *count
                .entry(planned.probe.shape.tactic.as_str())
                .or_default() += 1;
        }
        count
    }

    /// Returns indices of all planned probes in batches, as few as the largest number of probes
    /// that overlap at one place. Probes that share a jump do not overlap.
    pub fn batches(&self) -> Vec<Vec<usize>> {
        let mut batches: Vec<(BTreeMap<u64, u64>, Vec<usize>)> = Vec::new();
        for (index, planned) in self.planned.iter().enumerate() {
            let claims = claims(&planned.probe.shape);
            let covered = planned.probe.shape.covered;
            let is_joint = |taken: &BTreeMap<u64, u64>| {
                let free = !planned.probe.shape.tactic.is_prescribed();
                free && taken.get(&covered.start) == Some(&covered.end)
            };
            let is_free = |taken: &BTreeMap<u64, u64>| {
                is_joint(taken)
                    || claims.iter().all(|claim| {
                        let before = taken.range(..claim.end).next_back();
                        before.is_none_or(|(_, end)| *end <= claim.start)
                    })
            };
            // Do not always start with the first, so that the batches have about the same size.
            let from = index % batches.len().max(1);
            let mut turn = (from..batches.len()).chain(0..from);
            let at = match turn.find(|at| is_free(&batches[*at].0)) {
                Some(at) => at,
                None => {
                    batches.push((BTreeMap::new(), Vec::new()));
                    batches.len() - 1
                }
            };
            let (taken, batch) = &mut batches[at];
            batch.push(index);
            // A probe's claims may overlap each other: keep the larger end for the range.
            for claim in &claims {
                let end = taken.entry(claim.start).or_insert(claim.end);
                *end = (*end).max(claim.end);
            }
        }
        batches.into_iter().map(|(_, batch)| batch).collect()
    }

    pub fn probes(&self, batch: &[usize]) -> Vec<Probe> {
        let mut probes: BTreeMap<(u64, u64), Probe> = BTreeMap::new();
        for planned in batch.iter().map(|i| &self.planned[*i].probe) {
            let covered = planned.shape.covered;
            let probe = probes.entry((covered.start, covered.end));
            let probe = probe.or_insert_with(|| planned.clone());
            for point in &planned.points {
                probe.point(point).work.clone_from(&point.work);
            }
        }
        probes.into_values().collect()
    }
}

/// Returns a refusal without its addresses.
fn sort_of(refusal: &Refusal) -> String {
    let text = format!("{refusal:?}");
    let end = text.find([' ', '(', '{']).unwrap_or(text.len());
    text[..end].to_owned()
}

/// Returns the bytes that a probe needs for itself; no other probe may use any of them.
pub fn claims(shape: &Shape) -> Vec<Extent> {
    let placed = shape.placed.iter();
    let writes = placed.clone().flat_map(|p| &p.writes);
    let relied = placed.flat_map(|p| &p.relies_on);
    let mut claims = vec![shape.covered];
    claims.extend(writes.map(|w| Extent::new(w.address, w.address + w.before.len() as u64)));
    claims.extend(relied.map(|(at, bytes)| Extent::new(*at, at + bytes.len() as u64)));
    claims.retain(|claim| !claim.is_empty());
    claims
}

/// Returns zero to four registers, sometimes including the stack pointer.
fn fields_of(number: usize, address: u64) -> Vec<Register> {
    let mut x = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number as u64;
    let mut next = || {
        x ^= x >> 31;
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x >> 40
    };
    let count = [0, 1, 1, 2, 2, 3, 4][next() as usize % 7];
    let register = |n: u64| Register::RAX + n as u32;
    (0..count).map(|_| register(next() % 16)).collect()
}
