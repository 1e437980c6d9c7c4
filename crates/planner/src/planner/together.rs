//! Planning of many sites that are to be probed at the same time.
//!
//! Sites are planned in three passes. The first pass runs on all processors and uses the
//! tactics whose jumps have a free choice of target; sites of a function whose jumps would
//! overlap share one jump if possible. The second pass assigns stub addresses, one site at a
//! time, to the few remaining sites, without touching the bytes of any other site. If that
//! fails because of the free jump of one other site, that site gets a stub, too. The last pass
//! handles sites that only a breakpoint could reach and that are right before others with a
//! jump: they use the first bytes of that jump as part of their own.

use super::{Plan, Planned, Planner, plan_of, refused, release_instruction};
use crate::resolve::Site;
use capriole_insn::{Extent, FunctionFlow};
use capriole_tactic::place::Placer;
use capriole_tactic::site::{JUMP, Refusal, Shape, choose_before};
use iced_x86::Mnemonic;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of functions that a thread takes at a time.
const PORTION: usize = 16;
/// Number of bytes from a site on that its jump may cover or rely on: prefixes and the jump.
const NEAR: u64 = 3 + JUMP;

impl Planner {
    /// Plans many sites that are to be probed at the same time. The plans are in the order of the
    /// sites. Sites at the same address get the same plan.
    pub fn plan_all(&self, sites: &[&Site]) -> Vec<Planned> {
        let Some(first) = sites.first() else {
            return Vec::new();
        };
        // Analyse each object once, in advance; the analysis uses all processors.
        for site in sites {
            let _ = site.object.code();
        }
        let mut functions = by_function(sites);
        let plans: Vec<OnceLock<Planned>> = sites.iter().map(|_| OnceLock::new()).collect();
        for function in &mut functions {
            function.retain(|&index| match self.check_excluded(sites[index]) {
                Ok(()) => true,
                Err(refused) => {
                    let _ = plans[index].set(Err(refused));
                    false
                }
            });
        }
        functions.retain(|function| !function.is_empty());
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let from = next.fetch_add(PORTION, Ordering::Relaxed);
                if from >= functions.len() {
                    break;
                }
                for function in &functions[from..functions.len().min(from + PORTION)] {
                    let flow = self.analyse(&chosen(sites, function));
                    let flow = flow.as_ref().map_err(Clone::clone);
                    let each = function.iter().map(|&index| {
                        let planned = |flow| self.plan_in(sites[index], flow, None, &[]);
                        (index, flow.clone().and_then(planned))
                    });
                    let mut planned: Vec<(usize, Planned)> = each.collect();
                    if let Ok(flow) = flow {
                        self.join(sites, flow, &mut planned);
                    }
                    for (index, plan) in planned {
                        let _ = plans[index].set(plan);
                    }
                }
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        match functions.len() > 2 * PORTION && workers > 1 {
            false => work(),
            true => std::thread::scope(|scope| {
                for _ in 0..workers {
                    scope.spawn(work);
                }
            }),
        }
        let never = || refused(Refusal::TargetsUnknown("planning was cut short"));
        let mut plans: Vec<Planned> = plans
            .into_iter()
            .map(|plan| plan.into_inner().unwrap_or_else(|| Err(never())))
            .collect();
        let mut wanted: Vec<u64> = sites.iter().map(|site| site.address).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut placer = self.placer_of(first, sites);
        self.narrow(sites, &functions, &mut plans, &mut placer, &wanted);
        self.place_rest(sites, &functions, &mut plans, placer, &wanted);
        plans
    }

    /// The second pass: places the sites that no free jump reaches, and those whose jump would
    /// cover another site. `wanted` contains the addresses of all sites.
    fn place_rest(
        &self,
        sites: &[&Site],
        functions: &[Vec<usize>],
        plans: &mut [Planned],
        mut placer: Placer,
        wanted: &[u64],
    ) {
        let shared = shared_jumps(plans);
        let covers: Vec<bool> = plans
            .iter()
            .map(|plan| covers_any(plan, wanted, &shared))
            .collect();
        let is_left = |index: usize, plan: &Planned| covers[index] || wants_placing(plan);
        // Take the bytes that settled sites change, and reserve the instructions of the remaining
        // sites, so that none of them is displaced.
        let settled = plans.iter().enumerate();
        let settled = settled.filter(|(index, plan)| !is_left(*index, plan));
        for plan in settled.filter_map(|(_, plan)| plan.as_ref().ok()) {
            let covered = plan.shape.covered;
            placer.claim(covered.start..covered.end);
        }
        let left = |index: &usize| is_left(*index, &plans[*index]);
        let rest: Vec<&Vec<usize>> = functions.iter().filter(|f| f.iter().any(left)).collect();
        for &index in rest.iter().copied().flatten().filter(|index| left(index)) {
            placer.reserve(own_bytes(sites[index], &plans[index]));
        }
        let mut placed: HashMap<u64, usize> = HashMap::new();
        for function in rest {
            let Ok(flow) = self.analyse(&chosen(sites, function)) else {
                continue;
            };
            for &index in function {
                if !is_left(index, &plans[index]) {
                    continue;
                }
                let site = sites[index];
                let extent = Extent::new(site.extent.start, site.extent.end + 1);
                let others = match covers[index] {
                    true => within(wanted, extent),
                    false => &[],
                };
                if let Some(same) = placed.get(&site.address) {
                    plans[index] = plans[*same].clone();
                    continue;
                }
                placer.release(own_bytes(site, &plans[index]));
                release_instruction(&mut placer, site);
                // A site right after this site's `endbr64` gets the same jump.
                let behind = behind_landing_pad(site);
                for other in function
                    .iter()
                    .filter(|i| Some(sites[**i].address) == behind)
                {
                    placer.release(own_bytes(sites[*other], &plans[*other]));
                    release_instruction(&mut placer, sites[*other]);
                }
                let planned = self.plan_in(site, &flow, Some(&mut placer), others);
                if planned.is_err()
                    && !covers[index]
                    && self.make_way(sites, &flow, function, index, plans, &mut placer)
                {
                    placed.insert(site.address, index);
                    placed.extend(
                        plans[index]
                            .as_ref()
                            .ok()
                            .map(|plan| (plan.shape.site, index)),
                    );
                    continue;
                }
                // If planning fails for a site whose jump covers others, it keeps that jump: this site wins.
                if planned.is_ok() || !covers[index] {
                    plans[index] = planned;
                }
                match &plans[index] {
                    // The last pass may find something better than a breakpoint.
                    Ok(plan) if plan.shape.tactic.is_breakpoint() => {
                        placer.reserve(own_bytes(site, &plans[index]));
                    }
                    Ok(plan) => placer.claim(plan.shape.covered.start..plan.shape.covered.end),
                    Err(_) => {}
                }
                placed.insert(site.address, index);
                // The jump may be after an `endbr64`, where there may be another site.
                placed.extend(
                    plans[index]
                        .as_ref()
                        .ok()
                        .map(|plan| (plan.shape.site, index)),
                );
            }
        }
        self.place_beside(sites, functions, plans, &mut placer);
    }

    /// Plans a site that relies on bytes which a free jump of the same function would change. If
    /// one site is the only user of that jump, it gets a stub instead. Returns true if both sites
    /// could be placed; otherwise changes nothing.
    fn make_way(
        &self,
        sites: &[&Site],
        flow: &FunctionFlow,
        function: &[usize],
        index: usize,
        plans: &mut [Planned],
        placer: &mut Placer,
    ) -> bool {
        let site = sites[index];
        for &other in function {
            let Ok(plan) = &plans[other] else { continue };
            let (theirs, covered) = (plan.shape.site, plan.shape.covered);
            let near = covered.start > site.address && covered.start < site.address + NEAR;
            if !near || !plan.shape.tactic.is_wide() {
                continue;
            }
            let users = |index: &&usize| {
                let plan = plans[**index].as_ref();
                plan.is_ok_and(|plan| plan.shape.covered.overlaps(&covered))
            };
            let users: Vec<usize> = function.iter().filter(users).copied().collect();
            let is_theirs = |index: &usize| {
                let plan = plans[*index].as_ref();
                plan.is_ok_and(|plan| plan.shape.site == theirs)
            };
            if !users.iter().all(is_theirs) {
                continue;
            }
            let own = own_bytes(sites[other], &plans[other]);
            let mut placer_then = placer.clone();
            placer_then.unclaim(covered.start..covered.end);
            placer_then.reserve(own.clone());
            let Ok(mine) = self.plan_in(site, flow, Some(&mut placer_then), &[]) else {
                continue;
            };
            placer_then.claim(mine.shape.covered.start..mine.shape.covered.end);
            placer_then.release(own);
            let relied = mine
                .shape
                .placed
                .iter()
                .flat_map(|placed| &placed.relies_on);
            let relied = relied.flat_map(|(at, bytes)| *at..at + bytes.len() as u64);
            let mut kept: Vec<u64> = relied.collect();
            kept.extend(mine.shape.covered.start..mine.shape.covered.end);
            let then = Some(&mut placer_then);
            let Ok(theirs) = self.plan_in(sites[other], flow, then, &kept) else {
                continue;
            };
            // The other site had a jump, and must not get a breakpoint for the sake of this site.
            if theirs.shape.tactic.is_breakpoint() {
                continue;
            }
            placer_then.claim(theirs.shape.covered.start..theirs.shape.covered.end);
            for user in users {
                plans[user] = Ok(theirs.clone());
            }
            plans[index] = Ok(mine);
            *placer = placer_then;
            return true;
        }
        false
    }

    /// The last pass: places sites that only a breakpoint, or nothing, could reach so far, and that
    /// are right before others with a jump.
    fn place_beside(
        &self,
        sites: &[&Site],
        functions: &[Vec<usize>],
        plans: &mut [Planned],
        placer: &mut Placer,
    ) {
        // Maps the address of each free jump to the plans that use it.
        let mut free: HashMap<u64, Vec<usize>> = HashMap::new();
        for (index, plan) in plans.iter().enumerate() {
            if let Ok(plan) = plan {
                let start = plan.shape.covered.start;
                free.entry(start).or_default().push(index);
            }
        }
        for function in functions {
            let left = |index: &&usize| wants_placing(&plans[**index]);
            let left: Vec<usize> = function.iter().filter(left).copied().collect();
            let Ok(flow) = self.analyse(&chosen(sites, &left)) else {
                continue;
            };
            let starts = left.iter().map(|i| own_bytes(sites[*i], &plans[*i]).start);
            let starts: Vec<u64> = starts.collect();
            for (at, start) in starts.iter().enumerate().rev() {
                let behind = (start + 1..start + JUMP).find_map(|at| Some((at, free.get(&at)?)));
                let Some((end, neighbours)) = behind else {
                    continue;
                };
                // Try this site together with the unplaced sites before it first, then on its own.
                let near = starts[..=at].iter().copied();
                let mut froms: Vec<u64> = near.skip_while(|from| from + JUMP <= end).collect();
                froms.dedup();
                for from in froms {
                    if !wants_placing(&plans[left[at]]) {
                        break;
                    }
                    let first = starts.partition_point(|start| *start < from);
                    let behind = starts.partition_point(|other| other <= start);
                    let members = &left[first..behind];
                    self.place_before(sites, &flow, members, (from, neighbours), plans, placer);
                }
            }
        }
    }

    /// Makes a jump at `from` serve the sites `members`. The last of them is right before
    /// `neighbours`, sites with a free jump.
    fn place_before(
        &self,
        sites: &[&Site],
        flow: &FunctionFlow,
        members: &[usize],
        (from, neighbours): (u64, &[usize]),
        plans: &mut [Planned],
        placer: &mut Placer,
    ) {
        let (Some(last), Some(Ok(neighbour))) =
            (members.last(), neighbours.first().map(|i| &plans[*i]))
        else {
            return;
        };
        let neighbour = neighbour.shape.clone();
        let own: Vec<Range<u64>> = members
            .iter()
            .map(|index| own_bytes(sites[*index], &plans[*index]))
            .collect();
        own.iter().for_each(|own| placer.release(own.clone()));
        let mut theirs = None;
        let plan = self.with_input(sites[*last], flow, &[], |input, _| {
            let placed = choose_before(input, from, &neighbour, placer);
            let (shape, placed) = placed.map_err(refused)?;
            theirs = Some(placed);
            plan_of(sites[*last], input, shape)
        });
        own.into_iter().for_each(|own| placer.reserve(own));
        let (Ok(plan), Some(theirs)) = (plan, theirs) else {
            return;
        };
        for index in members {
            let before = match &plans[*index] {
                Ok(plan) => &plan.shape.refusals,
                Err(refused) => &refused.refusals,
            };
            let before = before
                .iter()
                .filter(|(tactic, _)| *tactic < plan.shape.tactic);
            let refusals = before.copied().collect();
            plans[*index] = self.with_input(sites[*index], flow, &[], |input, _| {
                let shape = plan.shape.for_site(input).map_err(refused)?;
                plan_of(sites[*index], input, Shape { refusals, ..shape })
            });
        }
        for index in neighbours {
            if let Ok(plan) = &mut plans[*index] {
                plan.shape.placed = Some(theirs.clone());
            }
        }
    }

    /// Lets sites of a function share a jump where their own jumps would overlap, or where one of
    /// them has no jump. The sites are in order of address, each already planned on its own.
    fn join(&self, sites: &[&Site], flow: &FunctionFlow, planned: &mut [(usize, Planned)]) {
        // The latest sites that share a jump, and the extent of that jump.
        let mut group: Vec<usize> = Vec::new();
        let mut covered = Extent::new(0, 0);
        for at in 0..planned.len() {
            let (index, plan) = &planned[at];
            let own = plan.as_ref().ok().map(|plan| plan.shape.covered);
            if !wants_placing(plan) && own.is_none() {
                continue;
            }
            if let Some(last) = group.last()
                && let (Ok(same), Ok(own)) = (&planned[*last].1, plan)
                && same.shape.site == own.shape.site
            {
                planned[at].1 = planned[*last].1.clone();
                group.push(at);
                continue;
            }
            let free = own.filter(|_| !wants_placing(plan));
            let apart = free.is_some_and(|own| !own.overlaps(&covered));
            if !group.is_empty() && !apart {
                let joined = self.plan_from(sites[*index], flow, covered.start);
                let Ok(joined) = joined else {
                    // Close the group: a jump shared with later sites would cover this site's instruction.
                    group.clear();
                    covered = Extent::new(0, 0);
                    continue;
                };
                covered = joined.shape.covered;
                planned[at].1 = Ok(joined.clone());
                for member in &group {
                    if let Ok(plan) = &mut planned[*member].1 {
                        plan.shape.tactic = joined.shape.tactic;
                        plan.shape.covered = covered;
                        plan.shape.resume = joined.shape.resume;
                        plan.shape.displaced.clone_from(&joined.shape.displaced);
                        plan.before.clone_from(&joined.before);
                    }
                }
                group.push(at);
            } else if let Some(own) = free {
                group = vec![at];
                covered = own;
            }
        }
    }
}

fn chosen<'a>(sites: &[&'a Site], indices: &[usize]) -> Vec<&'a Site> {
    indices.iter().map(|&index| sites[index]).collect()
}

/// Returns the part of a list of ascending addresses that lies in `extent`.
fn within(addresses: &[u64], extent: Extent) -> &[u64] {
    let start = addresses.partition_point(|address| *address < extent.start);
    let tail = &addresses[start..];
    &tail[..tail.partition_point(|address| *address < extent.end)]
}

/// Returns the extents of the jumps that start before a site and also serve it, by site
/// address.
pub(super) fn shared_jumps(plans: &[Planned]) -> HashMap<u64, Extent> {
    let shapes = plans.iter().flatten().map(|plan| &plan.shape);
    let led = shapes.filter(|shape| shape.site != shape.covered.start);
    led.map(|shape| (shape.site, shape.covered)).collect()
}

/// True if a plan changes or moves an instruction at one of `wanted` other than the plan's own
/// site, unless its jump serves that site as well.
pub(super) fn covers_any(plan: &Planned, wanted: &[u64], shared: &HashMap<u64, Extent>) -> bool {
    plan.as_ref().is_ok_and(|plan| {
        let covered = plan.shape.covered;
        // A site at the start of the covered bytes has the same jump.
        let others = within(wanted, Extent::new(covered.start + 1, covered.end));
        let mut others = others.iter().filter(|at| **at != plan.shape.site);
        others.any(|at| shared.get(at) != Some(&covered))
    })
}

/// True if the first pass found no jump for a site, but a later pass might.
pub(super) fn wants_placing(plan: &Planned) -> bool {
    match plan {
        // Beside another tool's breakpoint a jump may not be safe, although there is one.
        Ok(plan) => plan.shape.tactic.is_breakpoint() && !plan.shape.is_beside_another(),
        // A reason that holds for the site itself is the same for every tactic.
        Err(refused) => refused
            .refusals
            .iter()
            .any(|(_, refusal)| Some(refusal) != refused.refusals.first().map(|(_, first)| first)),
    }
}

/// Returns the address range of the instruction at a site.
pub(super) fn own_bytes(site: &Site, plan: &Planned) -> Range<u64> {
    let own = |plan: &'_ Plan| {
        let mut displaced = plan.shape.displaced.iter();
        displaced.find(|i| i.ip() == plan.shape.site).copied()
    };
    let displaced = plan.as_ref().ok().and_then(own);
    match displaced {
        Some(instruction) => instruction.ip()..instruction.next_ip(),
        None => site.address..site.address + 1,
    }
}

/// Returns the address right after a site's `endbr64`, if there is one.
fn behind_landing_pad(site: &Site) -> Option<u64> {
    let code = site.object.code().ok()?.code_at(site.address)?;
    let instruction = code.instruction_at(site.address, code.extent().end)?;
    (instruction.mnemonic() == Mnemonic::Endbr64).then(|| instruction.next_ip())
}

/// Returns the indices of the sites, grouped by function and in order of address within each.
fn by_function(sites: &[&Site]) -> Vec<Vec<usize>> {
    let key = |index: &usize| (sites[*index].extent, sites[*index].address);
    let mut order: Vec<usize> = (0..sites.len()).collect();
    order.sort_by_key(key);
    let same = |a: &usize, b: &usize| sites[*a].extent == sites[*b].extent;
    order.chunk_by(same).map(<[usize]>::to_vec).collect()
}
