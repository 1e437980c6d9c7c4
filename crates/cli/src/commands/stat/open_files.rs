//! Names of the file descriptors that are keys.

use super::lookup::keys;
use capriole::aggregate::model::Group;
use capriole::descriptors::{Descriptors, is_descriptor};
use capriole_proc::process::Process;
use capriole_select::select::Selected;

/// Looks at what descriptors are open for, if keys are descriptors.
#[derive(Default)]
pub struct OpenFiles(Option<Looks>);

struct Looks {
    /// The program, and children of it that are counted.
    processes: Vec<Process>,
    descriptors: Descriptors,
}

impl OpenFiles {
    /// Looks for the first time, before the probes of these events are inserted.
    pub fn begin(&mut self, process: &Process, selected: &[Selected]) {
        let mut keys = keys(selected);
        self.0 = keys
            .any(|info| is_descriptor(info.field_type))
            .then(|| Looks {
                processes: vec![process.clone()],
                descriptors: Descriptors::default(),
            });
        self.look();
    }

    /// Looks now.
    pub fn look(&mut self) {
        if let Some(looks) = &mut self.0 {
            let all = looks.processes.iter();
            looks.descriptors.look(all.map(|one| (one, Vec::new())));
        }
    }

    /// Adds other processes that are counted.
    pub fn add_children(&mut self, children: &[Process]) {
        let Some(looks) = &mut self.0 else { return };
        for child in children {
            if !looks.processes.contains(child) {
                looks.processes.push(child.clone());
            }
        }
    }

    /// Looks if it is time.
    pub fn keep_looking(&mut self) {
        let is_due = |looks: &Looks| looks.descriptors.is_due();
        if self.0.as_ref().is_some_and(is_due) {
            self.look();
        }
    }

    /// Names the descriptors in keys.
    pub fn name(&self, groups: &mut [Group]) {
        let Some(looks) = &self.0 else { return };
        for group in groups {
            group.name_descriptors(|fd| looks.descriptors.only_name(fd));
        }
    }
}
