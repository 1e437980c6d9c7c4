//! Names for keys that are numbers in the program: descriptors and call stacks.

use super::open_files::OpenFiles;
use super::stacks::Functions;
use capriole::aggregate::model::Snapshot;
use capriole_proc::process::Process;
use capriole_select::select::Selected;
use capriole_text::tell;

/// Finds names while the program runs.
#[derive(Default)]
pub struct Lookup {
    open: OpenFiles,
    functions: Functions,
    title: String,
}

impl Lookup {
    /// Begins before the probes of these events are inserted.
    pub fn begin(&mut self, process: &Process, selected: &[Selected]) {
        self.open.begin(process, selected);
        self.functions.begin(process, selected);
        let words = process.command_line();
        let words = words
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty());
        let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
        self.title = words.join(" ");
    }

    /// Returns the program's command line.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Looks at the program if it is time. `children` returns the other processes that are counted.
    pub fn keep_looking(&mut self, process: &Process, children: impl FnOnce() -> Vec<Process>) {
        self.open.keep_looking(children);
        self.functions.keep_looking(process);
    }

    /// Names the keys of a snapshot.
    pub fn name(&mut self, process: &Process, snapshot: &mut Snapshot) {
        self.open.look();
        self.open.name(snapshot);
        self.functions.name(process, snapshot);
    }

    /// Prints why functions have no names.
    pub fn say_remarks(&self) {
        for remark in self.functions.remarks() {
            tell!("capriole: {remark}");
        }
    }
}
