//! File systems on which only some users may read.

use super::Process;
use std::fmt;
use std::io;
use std::path::Path;

/// A file system, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    /// Its type, such as `fuse.sshfs`.
    kind: String,
    /// The user to whom a server gives access: FUSE lets nobody else read, root neither.
    user: Option<u32>,
}

impl FileSystem {
    /// Returns the file system of a path, as the process names it, if that is why root could not open the
    /// file: file modes do not stop root.
    #[must_use]
    pub fn denying(process: &Process, path: &Path, error: &io::Error) -> Option<FileSystem> {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        (is_denied && rustix::process::geteuid().is_root()).then(|| FileSystem::of(process, path))
    }

    fn of(process: &Process, path: &Path) -> FileSystem {
        let found = find(&process.text_of_deputy("mountinfo"), path);
        found.unwrap_or_else(|| FileSystem {
            kind: "unknown".to_owned(),
            user: None,
        })
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.user {
            Some(user) => write!(
                f,
                "it is on a file system ({}) that only user {user} may read: run capriole as that user",
                self.kind
            ),
            None => write!(
                f,
                "it is on a file system ({}) that this user may not read: run capriole as the user of the process",
                self.kind
            ),
        }
    }
}

/// Finds a path in a mountinfo (proc_pid_mountinfo(5)). Of mounts at one place, the last counts.
fn find(mountinfo: &str, path: &Path) -> Option<FileSystem> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let place = mount.split(' ').nth(4)?.replace("\\040", " ");
        path.starts_with(&place).then_some((place.len(), kind))
    });
    let (_, kind) = mounts.max_by_key(|(length, _)| *length)?;
    let mut words = kind.split(' ');
    let name = words.next()?;
    let user = words
        .flat_map(|options| options.split(','))
        .filter(|_| name.starts_with("fuse"))
        .find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(FileSystem {
        kind: name.to_owned(),
        user,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_is_found() {
        let mounts = "22 1 254:0 / / rw,noatime shared:1 - ext4 /dev/vda1 rw\n\
             40 22 0:39 / /home/me/a\\040b rw,nosuid - fuse.sshfs host: rw,user_id=1000,group_id=1000\n\
             41 22 0:40 / /srv rw - nfs4 server:/srv rw\n";
        let said = |path: &str| find(mounts, Path::new(path)).map(|found| found.to_string());
        let sshfs = said("/home/me/a b/program").unwrap();
        assert!(
            sshfs.contains("(fuse.sshfs) that only user 1000 may read"),
            "{sshfs}"
        );
        let nfs = said("/srv/program").unwrap();
        assert!(nfs.contains("(nfs4) that this user may not read"), "{nfs}");
        assert!(said("/srvx/program").unwrap().contains("(ext4)"));
        assert_eq!(said("program"), None);
    }
}
