//! Names of the functions and variables whose addresses are keys.

use super::lookup::keys;
use capriole::aggregate::model::Group;
use capriole::names::Namer;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_proc::process::Process;
use capriole_select::select::Selected;
use std::collections::HashMap;

/// Finds the functions and variables at addresses, if keys are such.
#[derive(Default)]
pub struct Functions(Option<Known>);

struct Known {
    namer: Namer,
    form: Form,
    /// Complete names, and offsets, by address.
    found: HashMap<u64, (String, u64)>,
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
        for name in known.namer.take().names {
            if let Some(function) = name.functions.last()
                && let (Some(named), Some(offset)) = (&function.name, function.offset)
            {
                known.found.insert(name.at, (named.to_string(), offset));
            } else {
                // Other code was there as well.
                known.found.remove(&name.at);
            }
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
