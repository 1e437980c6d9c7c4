//! Memfds that another process has open.
//!
//! A descriptor in `/proc/PID/fd` belongs to that process, and may refer to anything: a file
//! that it opened with `O_PATH` would be reopened here for writing with *our* rights. So the
//! descriptor is checked before it is opened, and the open then uses the checked file.
//!
//! A descriptor that the target has just created must be empty and not sealed, but for the seal of a file
//! that is not to be executed.
//!
//! A capriole holds descriptors of the memory of sessions in *other* processes. They must not be
//! taken for descriptors that a killed tracer left in it, since a capriole is a program that can
//! be recorded like any other. So they are opened with `O_NONBLOCK`, which has no effect on a
//! memfd and is visible in `/proc/PID/fdinfo`.

use capriole_proc::files;
use capriole_proc::maps::Device;
use capriole_proc::process::deputy;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use std::path::Path;
use std::sync::OnceLock;

/// Returns the device of all memfds (except those of huge pages), which is not a mountable file
/// system; `None` if this process cannot create a memfd.
pub fn device() -> Option<Device> {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    let number = DEVICE.get_or_init(|| {
        let file = rustix::fs::memfd_create("capriole-device", MemfdFlags::CLOEXEC).ok()?;
        Some(rustix::fs::fstat(file).ok()?.st_dev)
    });
    number.map(Device::from_st_dev)
}

/// Opens a memfd of another process by its entry in `/proc/PID/fd`, for reading and writing, with
/// our mark. Its inode must match, if one is given. The open file description,
/// and so a lock on it, is ours alone.
///
/// # Errors
/// `EBADF` if it is something else; otherwise the kernel's error.
pub fn open(entry: &Path, inode: Option<u64>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = rustix::fs::open(entry, flags, Mode::empty())?;
    check(place.as_fd(), inode)?;
    reopen(place.as_fd())
}

/// Opens a memfd again, for reading and writing, with our mark. A descriptor got
/// by `pidfd_getfd` shares its open file description, and so its flags, with the other process.
///
/// # Errors
/// The kernel's error.
pub fn reopen(file: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(again, OFlags::RDWR | OFlags::CLOEXEC | MARK, Mode::empty())
}

/// Marks a descriptor that a capriole opened for itself.
const MARK: OFlags = OFlags::NONBLOCK;

/// True if process `pid` opened its descriptor `fd` itself, by [`reopen`] or to look at it
/// (`O_PATH`). One that a tracer had it create is not marked.
#[must_use]
pub(crate) fn is_reopened(pid: u32, fd: i32) -> bool {
    let text = files::read_pseudo_text(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & (MARK | OFlags::PATH).bits() != 0)
}

/// A descriptor that a process has for a memfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Its number in that process.
    pub number: i32,
    /// Inode of the memfd.
    pub inode: u64,
    /// True if it has our mark.
    pub reopened: bool,
}

/// Returns the descriptors that a process has for memfds whose names are ours. Empty if they cannot be
/// read.
#[must_use]
pub fn descriptors(pid: u32, is_ours: impl Fn(&str) -> bool) -> Vec<Descriptor> {
    use std::os::unix::fs::MetadataExt;
    let pid = deputy(pid);
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let found = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        let name = target.to_str()?.strip_prefix("/memfd:")?;
        is_ours(name.strip_suffix(" (deleted)")?).then_some(())?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some(Descriptor {
            number,
            inode: std::fs::metadata(entry.path()).ok()?.ino(),
            reopened: is_reopened(pid, number),
        })
    });
    found.collect()
}

/// Refuses anything but a memfd.
fn check(file: BorrowedFd<'_>, inode: Option<u64>) -> rustix::io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let is_one = device() == Some(Device::from_st_dev(stat.st_dev))
        && inode.is_none_or(|inode| stat.st_ino == inode);
    is_one.then_some(()).ok_or(Errno::BADF)
}

/// Refuses anything but a new memfd: empty, and without seals other than `F_SEAL_EXEC`, which only keeps
/// it from becoming an executable file.
///
/// # Errors
/// `EBADF`.
pub fn check_fresh(file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    check(file, None)?;
    let empty = rustix::fs::fstat(file)?.st_size == 0;
    let unsealed = SealFlags::EXEC.contains(rustix::fs::fcntl_get_seals(file)?);
    (empty && unsealed).then_some(()).ok_or(Errno::BADF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn entry(file: impl AsFd) -> PathBuf {
        format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
    }

    #[test]
    fn only_a_memfd_is_opened_and_only_a_new_one_is_fresh() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let made = rustix::fs::memfd_create("capriole", flags).expect("memfd");
        let inode = rustix::fs::fstat(&made).expect("fstat").st_ino;
        let again = open(&entry(&made), Some(inode)).expect("it is one");
        check_fresh(again.as_fd()).expect("nobody has touched it");
        assert_eq!(
            open(&entry(&made), Some(inode + 1)).err(),
            Some(Errno::BADF)
        );
        let of = |file: &OwnedFd| is_reopened(std::process::id(), file.as_raw_fd());
        assert!(of(&again) && !of(&made));
        let held = descriptors(std::process::id(), |name| name == "capriole");
        let numbers = [made.as_raw_fd(), again.as_raw_fd()];
        let held = held.iter().filter(|held| numbers.contains(&held.number));
        let mut held: Vec<_> = held.map(|held| (held.inode, held.reopened)).collect();
        held.sort_unstable();
        assert_eq!(held, [(inode, false), (inode, true)]);
        rustix::fs::fcntl_add_seals(&made, SealFlags::GROW).expect("it may be sealed");
        assert_eq!(check_fresh(again.as_fd()), Err(Errno::BADF));

        // A file that another process holds only by `O_PATH` must not be opened with our rights.
        let file = tempfile::NamedTempFile::new().expect("a file");
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let by_path = rustix::fs::open(file.path(), flags, Mode::empty()).expect("a path");
        assert_eq!(open(&entry(&by_path), None).err(), Some(Errno::BADF));
        let opened = rustix::fs::open("/dev/zero", OFlags::RDWR, Mode::empty()).expect("a device");
        assert_eq!(check_fresh(opened.as_fd()), Err(Errno::BADF));
    }
}
