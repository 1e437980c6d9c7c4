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
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The code of a process whose rules it has.
#[derive(Debug)]
pub(crate) struct Callers {
    known: HashSet<CodeMapping>,
    /// Reads rules on a thread of its own: for a large library that takes a second, in which the others
    /// go on.
    reading: Option<JoinHandle<Vec<Module>>>,
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
            reading: None,
            looked: Instant::now(),
            spent: Duration::ZERO,
        };
        Ok((callers, modules(objects, &all)))
    }

    /// Gives the program the rules of code that it has mapped since, if it is time to look for it.
    pub fn keep_looking(&mut self, attached: &mut Attached) {
        if let Some(reading) = self.reading.take_if(|reading| reading.is_finished())
            && let Ok(rules) = reading.join()
        {
            // Without these rules, call stacks end at this code.
            let _ = attached.add_callers(&rules);
        }
        if self.reading.is_none() && self.looked.elapsed() >= until_next(self.spent) {
            self.looked = Instant::now();
            let maps = attached.process().maps();
            self.spent = self.looked.elapsed();
            // A process that has just ended needs nothing more.
            self.look(attached.process(), &maps.unwrap_or_default());
        }
    }

    fn look(&mut self, process: &Process, maps: &[Mapping]) {
        let new: Vec<Mapping> = with_code(maps)
            .filter(|mapping| !self.known.contains(&CodeMapping::from(*mapping)))
            .cloned()
            .collect();
        if new.is_empty() {
            return;
        }
        for mapping in new.iter().map(CodeMapping::from) {
            // The table has one at each address: the same code may come back there.
            self.known.retain(|known| !known.overlaps(&mapping));
            self.known.insert(mapping);
        }
        let process = process.clone();
        let read = move || match Objects::of_process(&process) {
            Ok(objects) => modules(&objects, &new.iter().collect::<Vec<_>>()),
            Err(_) => Vec::new(),
        };
        let thread = std::thread::Builder::new().name("rules".to_owned());
        self.reading = thread.spawn(read).ok();
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
