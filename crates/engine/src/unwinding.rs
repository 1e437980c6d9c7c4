//! The tables by which the program finds callers: the rules of all code that it has mapped.

use crate::error::Result;
use crate::names::{BEGINNING, CodeMapping, LATER, SOON, with_code};
use capriole_object::frame_rules::RuleStart;
use capriole_object::{Object, Objects};
use capriole_patch::attach::Attached;
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use capriole_resident::unwinding::Module;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// The code of a process whose rules it has.
#[derive(Debug)]
pub(crate) struct Callers {
    known: HashSet<CodeMapping>,
    begun: Instant,
    looked: Instant,
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
            begun: Instant::now(),
            looked: Instant::now(),
        };
        Ok((callers, modules(objects, &all)))
    }

    /// Gives the program the rules of code that it has mapped since, if it is time to look for it.
    pub fn keep_looking(&mut self, attached: &mut Attached) {
        let interval = match self.begun.elapsed() < BEGINNING {
            true => SOON,
            false => LATER,
        };
        if self.looked.elapsed() < interval {
            return;
        }
        self.looked = Instant::now();
        // A process that has just ended needs nothing more.
        let Ok(maps) = attached.process().maps() else {
            return;
        };
        let new: Vec<&Mapping> = with_code(&maps)
            .filter(|mapping| self.known.insert(CodeMapping::from(*mapping)))
            .collect();
        if new.is_empty() {
            return;
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
