//! From resolved sites to plans: what the pure planner has to be given, gathered
//! from the object and the process.

use crate::attach::breakpoints_allowed;
use crate::process::Process;
use crate::resolve::Site;
use capriole_insn::{Extent, FunctionFlow, Hints};
use capriole_plan::site::{Refusal, Refused, Shape, SiteInput, Tactic, choose};
use std::sync::OnceLock;

/// Plans sites of one process, or of files by themselves.
#[derive(Debug)]
pub struct Planner {
    breakpoints: Result<(), Refusal>,
    shadow_stack: bool,
}

/// A site's plan, or the reasons why it has none.
pub type Planned = Result<Plan, Refused>;

/// A plan, with the bytes that it was made for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How the site is reached.
    pub shape: Shape,
    /// The bytes of `shape.covered`.
    pub before: Vec<u8>,
}

fn refused(refusal: Refusal) -> Refused {
    Refused {
        refusals: Tactic::ALL
            .into_iter()
            .map(|tactic| (tactic, refusal))
            .collect(),
    }
}

/// Whether the process runs with a shadow stack (CET), from
/// `x86_Thread_features` of its status.
fn has_shadow_stack(process: &Process) -> bool {
    std::fs::read_to_string(process.proc_path("status")).is_ok_and(|status| {
        status
            .lines()
            .any(|l| l.starts_with("x86_Thread_features:") && l.contains("shstk"))
    })
}

impl Planner {
    /// For sites of a running process.
    pub fn of_process(process: &Process) -> Planner {
        Planner {
            breakpoints: breakpoints_allowed(process).map_err(Refusal::TrapUnusable),
            shadow_stack: has_shadow_stack(process),
        }
    }

    /// For sites of a file, as if it ran in a process that allows everything.
    pub fn offline() -> Planner {
        Planner {
            breakpoints: Ok(()),
            shadow_stack: false,
        }
    }

    /// Uses breakpoints, or never does.
    #[must_use]
    pub fn with_breakpoints(mut self, allowed: bool) -> Planner {
        if !allowed {
            self.breakpoints = Err(Refusal::BreakpointsOff);
        }
        self
    }

    /// Plans one site.
    ///
    /// # Errors
    /// The reasons, one for each tactic.
    pub fn plan(&self, site: &Site) -> Planned {
        let outside = || {
            refused(Refusal::OutsideFunction {
                site: site.address,
                function: site.extent,
            })
        };
        let damaged = |_| refused(Refusal::TargetsUnknown("a table of the file is damaged"));
        let object = site.object.code().map_err(damaged)?;
        let code = object.code_at(site.address).ok_or_else(outside)?;
        let targets = object.targets_at(site.address).ok_or_else(outside)?;
        let read = |address, size| object.read(address, size);
        let hints = Hints {
            landing_pads: object.landing_pads_in(site.extent),
            read: &read,
        };
        let flow =
            FunctionFlow::analyse_with(&code, &site.extent, &hints).map_err(|_| outside())?;
        let split_part = site.object.symbols().is_ok_and(|symbols| {
            let function = symbols.function_at(site.link_address);
            function.is_none_or(|f| symbols.is_split_off(f))
        });
        let shape = choose(&SiteInput {
            code: &code,
            flow: &flow,
            site: site.address,
            targets,
            padding_end: object.padding_end(site.extent),
            forbidden: object.forbidden(),
            shadow_stack: self.shadow_stack,
            int3: self.breakpoints,
            go: object.is_go(),
            split_part,
        })?;
        // A breakpoint's shape covers one byte; more never hurts.
        let end = shape.covered.end.max(shape.covered.start + 1);
        let before = code
            .get(Extent::new(shape.covered.start, end))
            .ok_or_else(outside)?
            .to_vec();
        Ok(Plan { shape, before })
    }

    /// Plans many sites, on all processors; in the order of the sites.
    pub fn plan_all(&self, sites: &[&Site]) -> Vec<Planned> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        if sites.len() < 64 || workers == 1 {
            return sites.iter().map(|site| self.plan(site)).collect();
        }
        // Objects are analysed once, on all processors by themselves.
        for site in sites {
            let _ = site.object.code();
        }
        let plans: Vec<OnceLock<Planned>> = sites.iter().map(|_| OnceLock::new()).collect();
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let from = next.fetch_add(32, std::sync::atomic::Ordering::Relaxed);
                        if from >= sites.len() {
                            break;
                        }
                        let to = sites.len().min(from + 32);
                        for (site, plan) in sites[from..to].iter().zip(&plans[from..to]) {
                            plan.get_or_init(|| self.plan(site));
                        }
                    }
                });
            }
        });
        let planned = |p: OnceLock<Planned>| p.into_inner();
        plans
            .into_iter()
            .zip(sites)
            .map(|(p, site)| planned(p).unwrap_or_else(|| self.plan(site)))
            .collect()
    }
}
