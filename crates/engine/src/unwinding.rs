//! The tables by which the program finds callers: the rules of all code that it has mapped.

use crate::error::Result;
use crate::names::{CodeMapping, until_next, with_code};
use capriole_object::frame_rules::RuleStart;
use capriole_object::{Object, Objects};
use capriole_patch::attach::Attached;
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use capriole_resident::unwinding::Module;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The code of a process whose rules it has.
#[derive(Debug)]
pub(crate) struct Callers {
    known: HashSet<CodeMapping>,
    /// Time of the last search, and how long it took.
    looked: Instant,
    spent: Duration,
}

impl Callers {
    /// Returns the rules of all files that a process has mapped as code now. There are none of those that
    /// cannot be read.
    ///
    /// # Errors
    /// The memory map cannot be read.
    pub fn of(objects: &Objects, process: &Process) -> Result<(Callers, Vec<Module>)> {
        let maps = process.maps()?;
        let all: Vec<&Mapping> = with_code(&maps).collect();
        let callers = Callers {
            known: all
                .iter()
                .map(|mapping| CodeMapping::from(*mapping))
                .collect(),
            looked: Instant::now(),
            spent: Duration::ZERO,
        };
        Ok((callers, modules(objects, &all)))
    }

    /// Gives the program the rules of code that it has mapped since, if it is time to look for it.
    pub fn keep_looking(&mut self, attached: &mut Attached) {
        if self.looked.elapsed() >= until_next(self.spent) {
            self.looked = Instant::now();
            self.look(attached);
            self.spent = self.looked.elapsed();
        }
    }

    fn look(&mut self, attached: &mut Attached) {
        // A process that has just ended needs nothing more.
        let Ok(maps) = attached.process().maps() else {
            return;
        };
        let new: Vec<&Mapping> = with_code(&maps)
            .filter(|mapping| !self.known.contains(&CodeMapping::from(*mapping)))
            .collect();
        if new.is_empty() {
            return;
        }
        for mapping in new.iter().map(|mapping| CodeMapping::from(*mapping)) {
            // The table has one at each address: the same code may come back there.
            self.known.retain(|known| !known.overlaps(&mapping));
            self.known.insert(mapping);
        }
        if let Ok(objects) = Objects::of_process(attached.process()) {
            // Without these rules, call stacks end at this code.
            let _ = attached.add_callers(&modules(&objects, &new));
        }
    }
}

/// Returns the rules of mappings.
fn modules(objects: &Objects, mappings: &[&Mapping]) -> Vec<Module> {
    let mut rules: HashMap<*const Object, Vec<RuleStart>> = HashMap::new();
    let mut modules = Vec::new();
    for mapping in mappings {
        let Some(object) = objects.containing(mapping.start) else {
            continue;
        };
        let rules = rules
            .entry(Arc::as_ptr(object))
            .or_insert_with(|| object.file().frame_rules());
        modules.push(Module {
            addresses: mapping.start..mapping.end,
            link: object.link(mapping.start),
            rules: rules.clone(),
        });
    }
    modules
}
