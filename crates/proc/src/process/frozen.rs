//! Processes whose control group is frozen (cgroups(7)), as those of a paused container are: their
//! threads stop for a tracer, but execute nothing until the group is thawed.

use super::control_groups::{Group, groups_of};
use crate::files;
use std::path::{Path, PathBuf};

/// Returns the frozen control group that a process belongs to, as a directory.
pub(super) fn frozen_group(pid: u32) -> Option<PathBuf> {
    let mut groups = groups_of(pid, "freezer").into_iter();
    groups.find(is_frozen).map(|group| group.path)
}

fn is_frozen(group: &Group) -> bool {
    let reads = |group: &Path, file: &str, line: &str| {
        let text = files::read_pseudo_text(group.join(file));
        text.is_ok_and(|text| text.lines().any(|l| l == line))
    };
    match group.unified {
        // A group of which one thread cannot be frozen is not frozen, but its other threads are.
        true => {
            reads(&group.path, "cgroup.events", "frozen 1")
                || group
                    .with_those_above()
                    .any(|above| reads(above, "cgroup.freeze", "1"))
        }
        // What is above freezes, too, and is shown here.
        false => ["FROZEN", "FREEZING"]
            .iter()
            .any(|state| reads(&group.path, "freezer.state", state)),
    }
}
