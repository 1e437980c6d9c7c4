//! Forked children that execute another program: from then on they have no probes.
//!
//! The kernel marks a task as forked, and removes the mark when it executes a program; that is to be
//! seen in `/proc`, until its parent has waited for it. So children that live for a moment only may be
//! missed, and the number is a lower bound.

use crate::pace::Work;
use capriole_host::steps::step;
use capriole_patch::attach::Attached;
use capriole_proc::process::{Process, is_helper};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Interval between looks, at least; looking takes at most one part in `SHARE` of a
/// processor's time.
const INTERVAL: Duration = Duration::from_millis(5);
const SHARE: u32 = 100;
/// Maximum number of threads of a process whose children are looked at, and of children that are
/// followed: each takes a file to read.
const MOST_THREADS: usize = 16;
const MOST_CHILDREN: usize = 256;

/// Counts the children of a recorded process that execute another program.
#[derive(Debug, Default)]
pub(crate) struct Executed {
    /// The children at the last look, by number, with the time of their start: true for those that
    /// have executed a program, or were there before the first look.
    children: BTreeMap<(u32, u64), bool>,
    count: u64,
    /// Time of the next look; `None` before the first.
    next: Option<Instant>,
}

impl Executed {
    /// Returns the number of children so far that were seen to have executed a program.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Looks at the children of the recorded process, and at those that they forked, if it is time for that.
    pub(crate) fn look(&mut self, attached: &Attached) {
        if self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let work = Work::begin();
        let is_first = self.next.is_none();
        let before = self.count;
        let mut parents = vec![attached.process().clone()];
        let mut found = BTreeMap::new();
        while let Some(parent) = parents.pop() {
            let threads = parent.threads().unwrap_or_default();
            let threads = threads.into_iter().take(MOST_THREADS);
            for pid in threads.flat_map(|tid| parent.children_of(tid)) {
                if found.len() >= MOST_CHILDREN {
                    break;
                }
                let Some((child, has_executed)) = child_of(&parent, pid) else {
                    continue;
                };
                let name = (pid, child.start_time());
                let known = self.children.get(&name).copied();
                // One that was forked before the probes came has none.
                let without = is_first && !attached.is_shared_with(&child);
                let executed = has_executed || known == Some(true) || without;
                // Its own children have no probes either.
                if !executed {
                    parents.push(child);
                } else if known != Some(true) && !is_first {
                    self.count += 1;
                }
                found.insert(name, executed);
            }
        }
        // The program itself has executed another one, whose children never had probes.
        if self.count != before && !attached.is_mapped() {
            self.count = before;
        }
        self.children = found;
        if is_first || self.count != before {
            step("children looked at");
        }
        self.next = Some(Instant::now() + INTERVAL.max(work.spent() * SHARE));
    }
}

/// Opens a child, and says if it has executed a program; `None` if it is no child any more.
fn child_of(parent: &Process, pid: u32) -> Option<(Process, bool)> {
    let child = Process::open(pid).ok()?;
    let stat = child.stat().ok()?;
    // A program that probes itself starts its helper so.
    let has_executed = stat.has_executed() && !is_helper(pid);
    (stat.parent == parent.pid()).then_some((child, has_executed))
}
