//! The control groups (cgroups(7)) of a process: directories below the mount points of their hierarchies.

use crate::files;
use std::path::{Path, PathBuf};

/// A hierarchy of control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    /// Where it is mounted.
    mount: PathBuf,
    /// The group that is mounted there.
    root: PathBuf,
    /// True for version 2, false for a controller of version 1.
    unified: bool,
}

/// A control group that a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Its directory.
    pub path: PathBuf,
    /// True for version 2.
    pub unified: bool,
    mount: PathBuf,
}

impl Group {
    /// Returns the directories of the group and of those above it, as far as they are visible.
    pub fn with_those_above(&self) -> impl Iterator<Item = &Path> {
        let all = self.path.ancestors();
        all.take_while(|above| above.starts_with(&self.mount))
    }
}

/// Returns the groups of a process in the hierarchies that may have a controller.
pub(super) fn groups_of(pid: u32, controller: &str) -> Vec<Group> {
    let read = |file: String| files::read_pseudo_text(file).unwrap_or_default();
    let groups = read(format!("/proc/{pid}/cgroup"));
    let mounts = read("/proc/self/mountinfo".to_owned());
    let group = |hierarchy: Hierarchy| {
        let path = group_in(&groups, controller, hierarchy.unified)?;
        let below = path.strip_prefix(&hierarchy.root).ok()?;
        Some(Group {
            path: hierarchy.mount.join(below),
            unified: hierarchy.unified,
            mount: hierarchy.mount,
        })
    };
    let hierarchies = hierarchies(&mounts, controller).into_iter();
    hierarchies.filter_map(group).collect()
}

/// Returns the path of a process's group, from lines `ID:CONTROLLERS:PATH`.
fn group_in(groups: &str, controller: &str, unified: bool) -> Option<PathBuf> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match unified {
            true => id == "0" && controllers.is_empty(),
            false => controllers.split(',').any(|name| name == controller),
        };
        is_it.then(|| PathBuf::from(path))
    })
}

/// Returns the mounted hierarchies that may have a controller, from lines `ID PARENT DEVICE ROOT MOUNT OPTIONS... - TYPE SOURCE
/// OPTIONS` (proc_pid_mountinfo(5)).
fn hierarchies(mounts: &str, controller: &str) -> Vec<Hierarchy> {
    let of_line = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mount) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let unified = match kind.next()? {
            "cgroup2" => true,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == controller) => false,
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
    fn hierarchies_are_those_with_the_controller() {
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
        assert_eq!(hierarchies(mounts, "freezer"), wanted);
    }

    #[test]
    fn groups_are_named_by_their_hierarchy() {
        let groups = "5:cpu,cpuacct:/x\n4:freezer:/y:z\n0::/a/b\n";
        assert_eq!(group_in(groups, "freezer", true), Some("/a/b".into()));
        assert_eq!(group_in(groups, "freezer", false), Some("/y:z".into()));
        assert_eq!(group_in("5:cpu:/x\n", "cpu", true), None);
    }
}
