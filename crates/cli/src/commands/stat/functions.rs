//! Names of the functions whose addresses are keys.

use capriole::aggregate::model::Group;
use capriole_object::Objects;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_proc::process::Process;
use capriole_select::select::Selected;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Interval between looks for libraries that were loaded meanwhile.
const SECOND: Duration = Duration::from_secs(1);

/// Finds the functions of addresses, if keys are such.
#[derive(Default)]
pub struct Functions(Option<Known>);

struct Known {
    process: Process,
    /// The objects that were mapped at the last look; `None` if they could not be read.
    objects: Option<Objects>,
    looked: Instant,
    form: Form,
    /// Complete names, and offsets, by address.
    found: HashMap<u64, (String, u64)>,
}

impl Functions {
    /// Looks at the objects of a process if keys of these events are symbols. `form` is the form of
    /// names in tables.
    pub fn of(process: &Process, selected: &[Selected], form: Form) -> Functions {
        let mut keys = selected.iter().flat_map(|event| {
            let all = event.fields.all();
            all.flat_map(|fields| &fields.infos[..fields.keys])
        });
        let needed = keys.any(|info| info.field_type.is_symbol());
        Functions(needed.then(|| Known {
            objects: Objects::of_process(process).ok(),
            process: process.clone(),
            looked: Instant::now(),
            form,
            found: HashMap::new(),
        }))
    }

    /// Names the addresses in keys. Functions that are shown side by side have different names.
    pub fn name(&mut self, groups: &mut [Group]) {
        let Some(known) = &mut self.0 else { return };
        for group in &mut *groups {
            group.name_functions(|address| {
                known.find(address);
                None
            });
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

impl Known {
    fn find(&mut self, address: u64) {
        if self.found.contains_key(&address) {
            return;
        }
        let mut found = self.look_up(address);
        if found.is_none() && self.looked.elapsed() >= SECOND {
            self.looked = Instant::now();
            // A process that has ended has no mappings; what is known of it stays.
            if let Ok(objects) = Objects::of_process(&self.process)
                && objects.all().next().is_some()
            {
                self.objects = Some(objects);
                found = self.look_up(address);
            }
        }
        if let Some(found) = found {
            self.found.insert(address, found);
        }
    }

    fn look_up(&self, address: u64) -> Option<(String, u64)> {
        let object = self.objects.as_ref()?.containing(address)?;
        let symbols = object.symbols().ok()?;
        let link = object.link(address);
        let function = symbols.function_at(link)?;
        let name = symbols.display_name(function)?;
        Some((name.into_owned(), link - function.extent.start))
    }
}
