//! Memfds that another process has open.
//!
//! A descriptor in `/proc/PID/fd` belongs to that process, and may refer to anything: a file
//! that it opened with `O_PATH` would be reopened here for writing with *our* rights. So the
//! descriptor is checked before it is opened, and the open then uses the checked file.
//!
//! A descriptor that the target has just created must be empty and not sealed.

use capriole_proc::maps::Device;
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

/// Opens a memfd of another process by its entry in `/proc/PID/fd`, for reading and writing. Its
/// inode must match, if one is given. The open file description, and so a lock on it, is ours
/// alone.
///
/// # Errors
/// `EBADF` if it is something else; otherwise the kernel's error.
pub fn open(entry: &Path, inode: Option<u64>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = rustix::fs::open(entry, flags, Mode::empty())?;
    check(place.as_fd(), inode)?;
    let again = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::open(again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Refuses anything but a memfd.
fn check(file: BorrowedFd<'_>, inode: Option<u64>) -> rustix::io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let is_one = device() == Some(Device::from_st_dev(stat.st_dev))
        && inode.is_none_or(|inode| stat.st_ino == inode);
    is_one.then_some(()).ok_or(Errno::BADF)
}

/// Refuses anything but a new memfd: empty and without seals.
///
/// # Errors
/// `EBADF`.
pub fn check_fresh(file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    check(file, None)?;
    let empty = rustix::fs::fstat(file)?.st_size == 0;
    let unsealed = rustix::fs::fcntl_get_seals(file)? == SealFlags::empty();
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
