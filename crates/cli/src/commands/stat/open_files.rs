//! Names of the file descriptors that are keys.

use capriole::aggregate::model::Group;
use capriole::descriptors::{Descriptors, is_descriptor};
use capriole_proc::process::Process;
use capriole_select::select::Selected;
use std::time::{Duration, Instant};

/// Interval between searches for children that are counted, too.
const SECOND: Duration = Duration::from_secs(1);

/// Looks at what descriptors are open for, if keys are descriptors.
#[derive(Default)]
pub struct OpenFiles(Option<Looks>);

struct Looks {
    /// The program, and children of it that are counted.
    processes: Vec<Process>,
    /// Time of the last search for children.
    searched: Instant,
    descriptors: Descriptors,
}

impl OpenFiles {
    /// Looks for the first time, before the probes of these events are inserted.
    pub fn begin(&mut self, process: &Process, selected: &[Selected]) {
        let mut keys = selected.iter().flat_map(|event| {
            let all = event.fields.all();
            all.flat_map(|fields| &fields.infos[..fields.keys])
        });
        self.0 = keys
            .any(|info| is_descriptor(info.field_type))
            .then(|| Looks {
                processes: vec![process.clone()],
                searched: Instant::now(),
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

    /// Looks if it is time. `children` returns the other processes that are counted.
    pub fn keep_looking(&mut self, children: impl FnOnce() -> Vec<Process>) {
        let Some(looks) = &mut self.0 else { return };
        if !looks.descriptors.is_due() {
            return;
        }
        if looks.searched.elapsed() >= SECOND {
            looks.searched = Instant::now();
            for child in children() {
                if !looks.processes.contains(&child) {
                    looks.processes.push(child);
                }
            }
        }
        self.look();
    }

    /// Names the descriptors in keys.
    pub fn name(&self, groups: &mut [Group]) {
        let Some(looks) = &self.0 else { return };
        for group in groups {
            group.name_descriptors(|fd| looks.descriptors.only_name(fd));
        }
    }
}
