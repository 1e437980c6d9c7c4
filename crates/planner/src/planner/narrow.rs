//! Jumps within one instruction, for sites whose jump would cover several.
//!
//! They cost a stub and a second jump, and are safe beside breakpoints that other tools insert at
//! the same places later (see [`capriole_patch::attach::Attached::look`]).

use super::together::{covers_any, own_bytes, shared_jumps, wants_placing};
use super::{ENDBR, Planned, Planner, plan_of};
use crate::resolve::Site;
use capriole_insn::Extent;
use capriole_proc::maps::{PAGE_SIZE, is_covered};
use capriole_proc::process::Process;
use capriole_tactic::place::Placer;
use capriole_tactic::site::{Refusal, choose_one_instruction};
use std::collections::{BTreeMap, BTreeSet, HashMap};

const INT3: u8 = 0xcc;

/// Returns the pages that a plan changes at its site; none without a plan.
fn pages(plan: &Planned) -> impl Iterator<Item = u64> {
    let covered = plan.iter().map(|plan| plan.shape.covered);
    let ends = covered.flat_map(|covered| [covered.start, covered.end.max(1) - 1]);
    ends.map(|address| address / PAGE_SIZE * PAGE_SIZE)
}

impl Planner {
    /// Has no jump change breakpoints that other tools (a debugger, a uprobe) have in the pages of these
    /// sites, or rely on the bytes under them. A breakpoint at a site itself is left to the write, which
    /// refuses the site then.
    pub(super) fn leave_to_breakpoints(&self, placer: &mut Placer, sites: &[&Site]) {
        let addresses: BTreeSet<u64> = sites.iter().map(|site| site.address).collect();
        let mut near: BTreeMap<u64, &Site> = BTreeMap::new();
        for site in sites {
            let page = site.address / PAGE_SIZE * PAGE_SIZE;
            // The instructions behind the site may be in the next one.
            for page in [page, page + PAGE_SIZE] {
                near.entry(page).or_insert(site);
            }
        }
        for page in self.own_copies(&near.keys().copied().collect()) {
            for at in self.breakpoints_in_page(near[&page], page) {
                // A function may begin with an `endbr64`, which stays.
                if addresses.range(at - ENDBR..=at).next().is_none() {
                    placer.claim(at..at + 1);
                }
            }
        }
    }

    /// Returns the addresses in a page, near a site, where memory has a breakpoint that the file has not.
    fn breakpoints_in_page(&self, site: &Site, page: u64) -> Vec<u64> {
        let mut now = [0; PAGE_SIZE as usize];
        let code = site.object.code().ok();
        let code = code.and_then(|code| code.code_at(site.address));
        let read = |process: &Process| process.read_memory(page, &mut now).ok();
        let (Some(code), Some(size)) = (code, self.process.as_ref().and_then(read)) else {
            return Vec::new();
        };
        let file = |at| code.get(Extent::new(at, at + 1));
        let now = (page..).zip(&now[..size]);
        let breakpoints =
            now.filter(|(at, byte)| **byte == INT3 && file(*at).is_some_and(|file| file != [INT3]));
        breakpoints.map(|(at, _)| at).collect()
    }

    /// Returns those pages of which the process has a copy of its own.
    fn own_copies(&self, pages: &BTreeSet<u64>) -> BTreeSet<u64> {
        let all: Vec<u64> = pages.iter().copied().collect();
        let process = self.process.as_ref();
        let own = process.and_then(|process| process.has_own_copies(&all).ok());
        let own = all.into_iter().zip(own.unwrap_or_default());
        own.filter(|(_, own)| *own).map(|(page, _)| page).collect()
    }

    /// Returns those pages of jumps over several instructions of which the process has a copy of its own,
    /// as it has where another tool has a uprobe.
    fn altered_pages(&self, plans: &[Planned]) -> BTreeSet<u64> {
        let wide = plans
            .iter()
            .filter(|plan| plan.as_ref().is_ok_and(|p| p.shape.tactic.is_wide()));
        let all: BTreeSet<u64> = wide.flat_map(pages).collect();
        let own = self.own_copies(&all);
        let process = self.process.as_ref();
        let maps = match own.is_empty() {
            true => Vec::new(),
            false => process
                .and_then(|process| process.raw_maps().ok())
                .unwrap_or_default(),
        };
        own.into_iter()
            .filter(|page| !is_covered(&maps, *page))
            .collect()
    }

    /// Runs after the first pass. Sites whose own, unshared jump covers several instructions are
    /// planned again with a jump in one instruction where possible, and otherwise left unchanged: all of
    /// them if that was asked for, else those in pages that cannot be covered, since another tool is there.
    pub(super) fn narrow(
        &self,
        sites: &[&Site],
        functions: &[Vec<usize>],
        plans: &mut [Planned],
        placer: &mut Placer,
        wanted: &[u64],
    ) {
        let shared = shared_jumps(plans);
        let mut users: HashMap<u64, Vec<u64>> = HashMap::new();
        for plan in plans.iter().flatten() {
            let users = users.entry(plan.shape.covered.start).or_default();
            users.push(plan.shape.site);
        }
        let is_alone = |plan: &Planned| {
            plan.as_ref().is_ok_and(|plan| {
                let site = plan.shape.site;
                let users = &users[&plan.shape.covered.start];
                users.iter().all(|user| *user == site)
            })
        };
        let is_wide = |plan: &Planned| plan.as_ref().is_ok_and(|plan| plan.shape.tactic.is_wide());
        let altered = match self.one_instruction {
            true => BTreeSet::new(),
            false => self.altered_pages(plans),
        };
        let has_breakpoint = |site: &Site, plan: &Planned| {
            let is_broken = |page: &u64| !self.breakpoints_in_page(site, *page).is_empty();
            altered.intersection(&pages(plan).collect()).any(is_broken)
        };
        let is_open = |plan: &Planned| {
            self.one_instruction || pages(plan).any(|page| altered.contains(&page))
        };
        let candidates: Vec<bool> = plans
            .iter()
            .map(|plan| {
                is_wide(plan)
                    && is_open(plan)
                    && is_alone(plan)
                    && !covers_any(plan, wanted, &shared)
            })
            .collect();
        if !candidates.contains(&true) {
            return;
        }
        // No jump may rely on bytes that other sites change or will need.
        for (index, plan) in plans.iter().enumerate() {
            match plan {
                Ok(plan) if candidates[index] => {
                    placer.reserve(plan.shape.covered.start..plan.shape.covered.end);
                }
                Ok(plan) if !wants_placing(&plans[index]) => {
                    placer.claim(plan.shape.covered.start..plan.shape.covered.end);
                }
                _ => placer.reserve(own_bytes(sites[index], plan)),
            }
        }
        let mut done: HashMap<u64, usize> = HashMap::new();
        for function in functions {
            let left = function.iter().filter(|index| candidates[**index]);
            let left: Vec<usize> = left.copied().collect();
            if left.is_empty() {
                continue;
            }
            let own: Vec<&Site> = function.iter().map(|index| sites[*index]).collect();
            let Ok(flow) = self.analyse(&own) else {
                continue;
            };
            for index in left {
                let Ok(wide) = &plans[index] else { continue };
                if let Some(same) = done.insert(wide.shape.site, index) {
                    plans[index] = plans[same].clone();
                    continue;
                }
                let covered = wide.shape.covered;
                placer.release(covered.start..covered.end);
                let narrow = self.with_input(sites[index], &flow, &[], |input, _| {
                    let shape = match choose_one_instruction(input, placer) {
                        // Slow, and safe beside breakpoints of others. Elsewhere the page may be covered yet.
                        Err(_)
                            if input.int3.is_ok()
                                && has_breakpoint(sites[index], &plans[index]) =>
                        {
                            let mut shape = wide.shape.clone();
                            shape.refusals.push((shape.tactic, Refusal::AlteredPage));
                            shape.by_breakpoint();
                            shape
                        }
                        shape => shape?,
                    };
                    plan_of(sites[index], input, shape)
                });
                match narrow {
                    Ok(plan) => {
                        let covered = plan.shape.covered;
                        placer.claim(covered.start..covered.end);
                        plans[index] = Ok(plan);
                    }
                    Err(_) => placer.claim(covered.start..covered.end),
                }
            }
        }
    }
}
