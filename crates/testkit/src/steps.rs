//! Steps of the command, or of another tracer in a process of its own, at which a test kills it: see
//! `capriole_host::steps`.

use crate::effort::{Effort, Random, effort};
use crate::files::scratch;
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

/// A step of a run: one of those with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub name: String,
    /// Number among the steps of that name, from 1.
    pub number: usize,
    /// Number among all steps, from 1.
    pub at: usize,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.number)
    }
}

/// Runs a tracer, and returns the steps that it took in their order, and its output. A tracer without
/// debug assertions takes none.
pub fn reached(command: &mut Command) -> (Vec<Step>, Output) {
    let directory = scratch();
    let list = directory.path().join("steps");
    let output = command.env("CAPRIOLE_STEPS", &list).output();
    command.env_remove("CAPRIOLE_STEPS");
    (listed(&list), output.expect("it starts"))
}

/// Returns the steps in a file that `CAPRIOLE_STEPS` named; none if there is no such file.
#[must_use]
pub fn listed(list: &Path) -> Vec<Step> {
    let text = std::fs::read_to_string(list).unwrap_or_default();
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    let numbered = text.lines().enumerate().map(|(index, name)| {
        let number = count.entry(name).or_default();
        *number += 1;
        Step {
            name: name.to_owned(),
            number: *number,
            at: index + 1,
        }
    });
    numbered.collect()
}

/// Steps to kill a tracer at, in their order: of each name the first, the middle and the last one; in
/// the soak 40 more, other ones with each seed; in the long form all.
#[must_use]
pub fn chosen(steps: &[Step]) -> Vec<Step> {
    some_of(steps, 40, |number, last| {
        [1, last.div_ceil(2), last].contains(&number)
    })
}

/// Like [`chosen`], for what only depends on where the tracer is: of each name the first one.
#[must_use]
pub fn firsts(steps: &[Step]) -> Vec<Step> {
    some_of(steps, 20, |number, _| number == 1)
}

/// Like [`chosen`], for tests that repeat with other programs what one does at each step: of every
/// third name the first one.
#[must_use]
pub fn few(steps: &[Step]) -> Vec<Step> {
    let mut firsts = 0;
    some_of(steps, 20, |number, _| {
        firsts += usize::from(number == 1);
        number == 1 && firsts % 3 == 1
    })
}

fn some_of(
    steps: &[Step],
    more: usize,
    mut is_named: impl FnMut(usize, usize) -> bool,
) -> Vec<Step> {
    let last = |name: &str| steps.iter().filter(|step| step.name == name).count();
    let mut random = Random::new(0x57e9);
    let wanted = steps.iter().filter(|step| {
        let is_named = is_named(step.number, last(&step.name));
        let is_drawn = random.below(steps.len()) < more;
        match effort() {
            Effort::Test => is_named,
            Effort::Soak => is_named || is_drawn,
            Effort::Long => true,
        }
    });
    wanted.cloned().collect()
}

/// Lets a tracer die when it reaches a step.
pub fn dies_at<'c>(command: &'c mut Command, step: &Step) -> &'c mut Command {
    command.env("CAPRIOLE_DIE_AT", step.to_string())
}

/// Lets a tracer stop when it reaches a step, until SIGCONT.
pub fn stops_at<'c>(command: &'c mut Command, step: &Step) -> &'c mut Command {
    command.env("CAPRIOLE_STOP_AT", step.to_string())
}

/// Waits until a child has stopped, or ended. True if it has stopped; the end is left to be waited for.
#[must_use]
pub fn has_stopped(pid: u32) -> bool {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let child = Pid::from_raw(pid as i32).expect("a child's number");
    let what = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(child), what).expect("a child");
    status.is_some_and(|status| status.stopped())
}

/// True if a tracer died at a step, rather than end because it does not take that step this time.
#[must_use]
pub fn died(output: &Output) -> bool {
    output.status.signal() == Some(libc::SIGKILL)
}
