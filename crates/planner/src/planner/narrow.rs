//! Jumps within one instruction, for sites whose jump would cover several.
//!
//! They cost a stub and a second jump, and are safe beside breakpoints that other tools insert at
//! the same places later (see [`capriole_patch::attach::Attached::look`]).

use super::together::{covers_any, own_bytes, shared_jumps, wants_placing};
use super::{Planned, Planner, plan_of};
use crate::resolve::Site;
use capriole_proc::maps::{PAGE_SIZE, is_covered};
use capriole_tactic::place::Placer;
use capriole_tactic::site::choose_one_instruction;
use std::collections::{BTreeSet, HashMap};

/// Returns the pages that a plan changes at its site; none without a plan.
fn pages(plan: &Planned) -> impl Iterator<Item = u64> {
    let covered = plan.iter().map(|plan| plan.shape.covered);
    let ends = covered.flat_map(|covered| [covered.start, covered.end.max(1) - 1]);
    ends.map(|address| address / PAGE_SIZE * PAGE_SIZE)
}

impl Planner {
    /// Returns those pages of jumps over several instructions of which the process has a copy of its own,
    /// as it has where another tool has a uprobe.
    fn altered_pages(&self, plans: &[Planned]) -> BTreeSet<u64> {
        let wide = plans
            .iter()
            .filter(|plan| plan.as_ref().is_ok_and(|p| p.shape.tactic.is_wide()));
        let all: BTreeSet<u64> = wide.flat_map(pages).collect();
        let all: Vec<u64> = all.into_iter().collect();
        let process = self.process.as_ref();
        let own = process.and_then(|process| process.has_own_copies(&all).ok());
        let own = all.into_iter().zip(own.unwrap_or_default());
        let own: BTreeSet<u64> = own.filter(|(_, own)| *own).map(|(page, _)| page).collect();
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
                    let shape = choose_one_instruction(input, placer)?;
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
