//! Names for keys that are numbers in the program: descriptors, functions and call stacks.

use super::open_files::OpenFiles;
use super::{functions, stacks};
use capriole::aggregate::model::Group;
use capriole_object::symbols::shown::Form;
use capriole_patch::attach::Attached;
use capriole_proc::process::Process;
use capriole_select::select::Selected;
use capriole_text::tell;
use capriole_trace::FieldInfo;
use std::time::{Duration, Instant};

/// Finds names while the program runs.
#[derive(Default)]
pub struct Lookup {
    open: OpenFiles,
    functions: functions::Functions,
    stacks: stacks::Functions,
    title: String,
    /// Time of the last search for other processes that are counted.
    searched: Option<Instant>,
}

/// Interval between such searches.
const SECOND: Duration = Duration::from_secs(1);

/// Returns the fields that are keys of these events.
pub(super) fn keys(selected: &[Selected]) -> impl Iterator<Item = &FieldInfo> {
    let all = selected.iter().flat_map(|event| event.fields.all());
    all.flat_map(|fields| &fields.infos[..fields.keys])
}

impl Lookup {
    /// Begins before the probes of these events are inserted. `form` is the form of names in tables.
    pub fn begin(&mut self, process: &Process, selected: &[Selected], form: Form) {
        self.open.begin(process, selected);
        self.functions = functions::Functions::of(process, selected, form);
        self.stacks.begin(process, selected);
        let words = process.command_line();
        let words = words
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty());
        let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
        self.title = words.join(" ");
    }

    /// Tells what belongs to the probes, once they are in the program.
    pub fn attached(&mut self, attached: &Attached) {
        self.stacks.attached(attached);
    }

    /// Returns the program's command line.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Looks at the program if it is time. `children` returns the other processes that are counted.
    pub fn keep_looking(&mut self, children: impl FnOnce() -> Vec<Process>) {
        if self
            .searched
            .is_none_or(|searched| searched.elapsed() >= SECOND)
        {
            self.searched = Some(Instant::now());
            let children = children();
            self.open.add_children(&children);
            self.functions.set_children(&children);
            self.stacks.set_children(&children);
        }
        self.open.keep_looking();
        self.functions.keep_looking();
        self.stacks.keep_looking();
    }

    /// Names the keys of these groups.
    pub fn name<'a>(&mut self, all: impl IntoIterator<Item = &'a mut [Group]>) {
        self.open.look();
        for groups in all {
            self.open.name(groups);
            self.functions.name(groups);
            self.stacks.name(groups);
        }
    }

    /// Prints what is to be said of the functions' names.
    pub fn say_remarks(&self) {
        let of_stacks = self.stacks.remarks();
        let mut of_functions = self.functions.remarks();
        of_functions.retain(|remark| !of_stacks.contains(remark));
        for remark in of_stacks.iter().chain(&of_functions) {
            tell!("capriole: {remark}");
        }
    }
}
