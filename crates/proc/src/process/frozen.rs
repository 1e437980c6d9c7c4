//! Processes whose control group is frozen (cgroups(7)), as those of a paused container are: their
//! threads stop for a tracer, but execute nothing until the group is thawed.

use crate::files;
use std::path::{Path, PathBuf};

/// A hierarchy of control groups that can freeze.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    /// Where it is mounted.
    mount: PathBuf,
    /// The group that is mounted there.
    root: PathBuf,
    /// True for version 2, false for the freezer of version 1.
    unified: bool,
}

/// Returns the frozen control group that a process belongs to, as a directory.
pub(super) fn frozen_group(pid: u32) -> Option<PathBuf> {
    let groups = files::read_pseudo_text(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = files::read_pseudo_text("/proc/self/mountinfo").ok()?;
    hierarchies(&mounts).into_iter().find_map(|hierarchy| {
        let path = group_in(&groups, hierarchy.unified)?;
        let below = path.strip_prefix(&hierarchy.root).ok()?;
        let group = hierarchy.mount.join(below);
        is_frozen(&group, &hierarchy).then_some(group)
    })
}

fn is_frozen(group: &Path, hierarchy: &Hierarchy) -> bool {
    let reads = |group: &Path, file: &str, line: &str| {
        let text = files::read_pseudo_text(group.join(file));
        text.is_ok_and(|text| text.lines().any(|l| l == line))
    };
    match hierarchy.unified {
        // A group of which one thread cannot be frozen is not frozen, but its other threads are.
        true => {
            let above = group.ancestors();
            let mut above = above.take_while(|above| above.starts_with(&hierarchy.mount));
            reads(group, "cgroup.events", "frozen 1")
                || above.any(|group| reads(group, "cgroup.freeze", "1"))
        }
        // What is above freezes, too, and is shown here.
        false => ["FROZEN", "FREEZING"]
            .iter()
            .any(|state| reads(group, "freezer.state", state)),
    }
}

/// Returns the path of a process's group, from lines `ID:CONTROLLERS:PATH`.
fn group_in(groups: &str, unified: bool) -> Option<PathBuf> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match unified {
            true => id == "0" && controllers.is_empty(),
            false => controllers.split(',').any(|name| name == "freezer"),
        };
        is_it.then(|| PathBuf::from(path))
    })
}

/// Returns the mounted hierarchies, from lines `ID PARENT DEVICE ROOT MOUNT OPTIONS... - TYPE SOURCE
/// OPTIONS` (proc_pid_mountinfo(5)).
fn hierarchies(mounts: &str) -> Vec<Hierarchy> {
    let of_line = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mount) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let unified = match kind.next()? {
            "cgroup2" => true,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "freezer") => false,
            _ => return None,
        };
        Some(Hierarchy {
            mount: PathBuf::from(mount),
            root: PathBuf::from(root),
            unified,
        })
    };
    mounts.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_those_that_freeze() {
        let mounts = "\
30 23 0:26 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
31 30 0:27 /a /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/freezer rw shared:10 - cgroup cgroup rw,freezer
33 30 0:29 / /sys/fs/cgroup/cpu rw shared:11 - cgroup cgroup rw,cpu
";
        let hierarchy = |mount: &str, root: &str, unified| Hierarchy {
            mount: mount.into(),
            root: root.into(),
            unified,
        };
        let wanted = [
            hierarchy("/sys/fs/cgroup/unified", "/a", true),
            hierarchy("/sys/fs/cgroup/freezer", "/", false),
        ];
        assert_eq!(hierarchies(mounts), wanted);
    }

    #[test]
    fn groups_are_named_by_their_hierarchy() {
        let groups = "5:cpu,cpuacct:/x\n4:freezer:/y:z\n0::/a/b\n";
        assert_eq!(group_in(groups, true), Some("/a/b".into()));
        assert_eq!(group_in(groups, false), Some("/y:z".into()));
        assert_eq!(group_in("5:cpu:/x\n", true), None);
    }
}
