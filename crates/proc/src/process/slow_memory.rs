//! Memory whose pages may be long in coming when somebody touches them, or never come: those that the
//! program itself provides (userfaultfd(2)), and those of files that a server has, which may be the
//! program, too (FUSE), or does not answer (NFS).

use super::Process;
use crate::maps::{Device, Mapping, PAGE_SIZE};
use std::collections::BTreeSet;

/// The kernel's name of a descriptor of userfaultfd(2).
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";

/// The device through which a process serves a file system.
const FUSE: &str = "/dev/fuse";
/// Flags of mappings that are registered for it: pages that are missing, write-protected, or not mapped
/// yet (proc_pid_smaps(5)).
const REGISTERED: [&str; 3] = ["um", "uw", "ui"];
/// Resident memory beyond which smaps takes too long, bytes.
const LARGE: u64 = 4 << 30;

/// Types of file systems whose files a server has (filesystems(5)), without what may follow a dot.
const SERVED: [&str; 18] = [
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gfs2", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs",
];

impl Process {
    /// True if a page of the process may be long in coming: it has a descriptor of userfaultfd(2), or
    /// maps a file that a server has. False if that cannot be found out.
    #[must_use]
    pub fn has_slow_memory(&self) -> bool {
        let descriptors = self.descriptors().unwrap_or_default();
        let provides = descriptors.iter().any(|(_, name)| name == USERFAULTFD);
        provides || self.maps_served_files()
    }

    /// True if a part of its memory is registered for userfaultfd(2): another process may have the
    /// descriptor alone. The kernel looks at every page for that, so in a process with more than
    /// 4 GiB of memory nobody looks. False if that cannot be found out.
    #[must_use]
    pub fn has_registered_memory(&self) -> bool {
        let pages = self.text_of_deputy("statm");
        let resident = pages.split_whitespace().nth(1);
        let resident = resident.and_then(|pages| pages.parse::<u64>().ok());
        if resident.is_none_or(|pages| pages * PAGE_SIZE > LARGE) {
            return false;
        }
        let smaps = self.text_of_deputy("smaps");
        let mut flags = smaps
            .lines()
            .filter_map(|line| line.strip_prefix("VmFlags:"));
        flags.any(|flags| {
            flags
                .split_whitespace()
                .any(|flag| REGISTERED.contains(&flag))
        })
    }

    /// True if the process serves a file system (FUSE), and executes code of one that has a server: that may
    /// be itself, and while it is stopped nobody can read what is not in memory. False if that cannot be
    /// found out.
    #[must_use]
    pub fn may_serve_its_code(&self) -> bool {
        let serves = || {
            let descriptors = self.descriptors().unwrap_or_default();
            descriptors.iter().any(|(_, name)| name == FUSE)
        };
        self.maps_served(|m| m.perms.execute) && serves()
    }

    fn maps_served_files(&self) -> bool {
        self.maps_served(|_| true)
    }

    fn maps_served(&self, is_it: impl Fn(&Mapping) -> bool) -> bool {
        let served = served(&self.text_of_deputy("mountinfo"));
        let is_served = |m: &Mapping| m.inode != 0 && served.contains(&m.dev) && is_it(m);
        !served.is_empty() && self.raw_maps().unwrap_or_default().iter().any(is_served)
    }
}

/// Returns the devices of the file systems that servers have, from a mountinfo (proc_pid_mountinfo(5)).
fn served(mounts: &str) -> BTreeSet<Device> {
    let device = |line: &str| {
        let (mount, rest) = line.split_once(" - ")?;
        let kind = rest.split([' ', '.']).next()?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
        SERVED.contains(&kind).then_some(Device { major, minor })
    };
    mounts.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_servers_are_told_from_others() {
        let mounts = "\
24 31 0:22 / /proc rw,relatime - proc proc rw
31 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw
90 31 0:45 / /mnt/a rw,nosuid - fuse.sshfs me@host:/ rw,user_id=1000
91 31 0:46 / /mnt/b\\040- ro shared:7 master:2 - nfs4 server:/b rw,vers=4.2
92 31 0:47 / /mnt/c rw - fusectl fusectl rw
93 31 0:48 / /mnt/d rw - fuse d rw
";
        let minors: Vec<u32> = served(mounts).iter().map(|device| device.minor).collect();
        assert_eq!(minors, [45, 46, 48]);
    }
}
