//! Names of the functions and variables whose addresses are keys.

use super::lookup::keys;
use capriole::aggregate::model::Group;
use capriole::names::Namer;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_proc::process::Process;
use capriole_select::select::Selected;
use capriole_trace::Names;
use std::collections::HashMap;

/// Finds the functions and variables at addresses, if keys are such.
#[derive(Default)]
pub struct Functions(Option<Known>);

struct Known {
    namer: Namer,
    form: Form,
    /// Complete names, and offsets, by address.
    found: HashMap<u64, (String, u64)>,
    /// All names that were found, with the remarks on them.
    names: Names,
}

impl Functions {
    /// Looks at the code of a process if keys of these events are symbols. `form` is the form of
    /// names in tables.
    pub fn of(process: &Process, selected: &[Selected], form: Form) -> Functions {
        let mut keys = keys(selected);
        let needed = keys.any(|info| info.field_type.is_symbol());
        Functions(needed.then(|| Known {
            namer: Namer::new(process),
            form,
            found: HashMap::new(),
            names: Names::default(),
        }))
    }

    /// Sets the other processes that are counted.
    pub fn set_children(&mut self, children: &[Process]) {
        if let Some(known) = &mut self.0 {
            known.namer.set_children(children.to_vec());
        }
    }

    /// Looks for code that was mapped since the last time, if it is time.
    pub fn keep_looking(&mut self) {
        if let Some(known) = &mut self.0 {
            known.namer.keep_looking();
        }
    }

    /// Returns what is to be said of the names, a line for each remark.
    pub fn remarks(&self) -> Vec<String> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |known| known.names.remarks())
    }

    /// Names the addresses in keys. Functions that are shown side by side have different names.
    pub fn name(&mut self, groups: &mut [Group]) {
        let Some(known) = &mut self.0 else { return };
        known.namer.look();
        for group in &mut *groups {
            group.name_functions(|address| {
                known.namer.symbol(address);
                None
            });
        }
        let named = known.namer.take();
        for remark in named.remarks {
            known.names.remark(remark);
        }
        for name in named.names {
            if let Some(function) = name.functions.last()
                && let (Some(named), Some(offset)) = (&function.name, function.offset)
            {
                known.found.insert(name.at, (named.to_string(), offset));
            } else {
                // Other code was there as well.
                known.found.remove(&name.at);
            }
            known.names.add(name);
        }
        let full = known.found.values().map(|(name, _)| name.as_str());
        let names = ShownNames::of(full, known.form);
        for group in groups {
            group.name_functions(|address| {
                let (name, offset) = known.found.get(&address)?;
                Some((names.get(name), *offset))
            });
        }
    }
}
