//! Processes that a user may think are covered by a recording of another one, and are not: children that were
//! forked before the probes were in, and the other processes of a program that forked before.

use capriole_patch::attach::Attached;
use capriole_proc::maps::{Device, containing};
use capriole_proc::process::{Process, is_helper};
use capriole_text::units;
use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::MetadataExt;

/// Most processes that are looked at, and most that a message names.
const MOST: usize = 1024;
const MOST_NAMED: usize = 8;

/// The relation of a process to the one that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// It is a child, or a child's child.
    Child,
    /// It runs the same program, and is the parent, or another child of that.
    SameProgram,
}

impl Relation {
    /// Returns the name used in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Relation::Child => "child",
            Relation::SameProgram => "same program",
        }
    }
}

/// A process that is not covered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncovered {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its relation to the process that is recorded.
    pub relation: Relation,
}

/// Returns the file that a process executes: device and inode.
fn program(process: &Process) -> Option<(u64, u64)> {
    let file = std::fs::metadata(process.proc_path("exe")).ok()?;
    Some((file.dev(), file.ino()))
}

fn children(process: &Process) -> impl Iterator<Item = Process> {
    let threads = process.threads().unwrap_or_default();
    let children: Vec<u32> = threads
        .into_iter()
        .take(MOST)
        .flat_map(|tid| process.children_of(tid))
        .collect();
    children
        .into_iter()
        .filter_map(|pid| Process::listed(pid).ok())
}

fn parent(process: &Process) -> Option<Process> {
    Process::listed(process.stat().ok()?.parent).ok()
}

/// Returns this process and all that it descends from: a shell that is recorded has the recorder as a child.
fn ourselves() -> Vec<u32> {
    let own = Process::listed(std::process::id()).ok();
    let line = std::iter::successors(own, parent);
    line.map(|process| process.pid()).collect()
}

/// Returns the processes that are not covered, the children first: of those that have mapped one of the files in
/// which these addresses lie, and so could have called what is recorded.
#[must_use]
pub fn of(attached: &Attached, sites: &[u64]) -> Vec<Uncovered> {
    let process = attached.process();
    let maps = process.maps().unwrap_or_default();
    let files = sites.iter().filter_map(|site| containing(&maps, *site));
    let files: HashSet<(Device, u64)> = files.map(|file| (file.dev, file.inode)).collect();
    let could_call = |other: &Process| {
        let maps = other.maps().unwrap_or_default();
        maps.iter()
            .any(|file| files.contains(&(file.dev, file.inode)))
    };
    let ourselves = ourselves();
    let mut found: BTreeMap<u32, Uncovered> = BTreeMap::new();
    let mut add = |other: &Process, relation| {
        let known = found.len();
        let is_other = other.pid() != process.pid() && !is_helper(other.pid());
        let is_new = is_other && !found.contains_key(&other.pid()) && known < MOST;
        if is_new && could_call(other) && !attached.is_shared_with(other) {
            let uncovered = Uncovered {
                pid: other.pid(),
                name: other.name().to_owned(),
                relation,
            };
            found.insert(other.pid(), uncovered);
        }
        is_new
    };
    let mut parents = vec![process.clone()];
    while let Some(parent) = parents.pop() {
        for child in children(&parent) {
            if add(&child, Relation::Child) {
                parents.push(child);
            }
        }
    }
    let own = program(process);
    let same = |other: &Process| own.is_some() && program(other) == own;
    if let Some(parent) = parent(process).filter(same) {
        add(&parent, Relation::SameProgram);
        for sibling in children(&parent).filter(same) {
            add(&sibling, Relation::SameProgram);
        }
    }
    let found = found.into_values();
    let found = found.filter(|other| !ourselves.contains(&other.pid));
    let mut found: Vec<Uncovered> = found.collect();
    found.sort_by_key(|uncovered| (uncovered.relation, uncovered.pid));
    found
}

/// Returns the message that names them, if there are any.
#[must_use]
pub fn message(uncovered: &[Uncovered]) -> Option<String> {
    let part = |relation, one: &str, several: &str| {
        let all = uncovered.iter().filter(|other| other.relation == relation);
        let all: Vec<&Uncovered> = all.collect();
        let named = all.iter().take(MOST_NAMED);
        let mut names: Vec<String> = named
            .map(|other| format!("{} ({})", other.pid, other.name))
            .collect();
        if all.len() > MOST_NAMED {
            names.push(format!("{} more", all.len() - MOST_NAMED));
        }
        let number = units::counted(all.len() as u64, one, several);
        (!all.is_empty()).then(|| format!("{number}: {}", names.join(", ")))
    };
    let parts = [
        part(
            Relation::Child,
            "child process that was there before",
            "child processes that were there before",
        ),
        part(
            Relation::SameProgram,
            "other process of this program",
            "other processes of this program",
        ),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| {
        format!(
            "not covered: {}; -p PID covers one of them, and the children that it \
             forks from then on",
            parts.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_a_few() {
        let other = |pid, relation| Uncovered {
            pid,
            name: "worker".to_owned(),
            relation,
        };
        assert_eq!(message(&[]), None);
        let one = [other(7, Relation::SameProgram)];
        let end = "; -p PID covers one of them, and the children that it forks from then on";
        assert_eq!(
            message(&one).as_deref(),
            Some(&*format!(
                "not covered: 1 other process of this program: 7 (worker){end}"
            ))
        );
        let many = (1..=10).map(|pid| other(pid, Relation::Child));
        let many: Vec<Uncovered> = many.chain(one).collect();
        let said = message(&many).expect("a message");
        assert!(
            said.contains("10 child processes that were there before: 1 (worker), "),
            "{said}"
        );
        assert!(
            said.contains("8 (worker), 2 more; 1 other process"),
            "{said}"
        );
    }
}
