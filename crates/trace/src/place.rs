//! Places to write to: an open directory, and a name in it.
//!
//! A user who may write to a directory on a path can change the targets of the names in it at
//! any moment. So a path is walked once, with each directory held open, and only through
//! symbolic links that belong to us or root. New files are created in the directory that was
//! found, and never through a link.
//!
//! A trace directory must belong to us, and only we may write to it. Its parents may belong to
//! another user (root recording into a user's directory): that user can move the trace away,
//! but cannot change it or cause other files to be overwritten. Files are created with `O_EXCL`
//! and put in place by `renameat`.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Maximum number of links followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) directory: OwnedFd,
    pub(crate) name: OsString,
}

impl Place {
    /// The name of the directory itself.
    pub(crate) const HERE: &str = ".";

    /// Resolves a path. If the path ends in no name, such as `/` and `..`, the name is
    /// [`HERE`](Self::HERE). The name is not a link that would be followed; it need not exist.
    ///
    /// # Errors
    /// A directory on the path is missing, or a link belongs to another user.
    pub(crate) fn of(path: &Path) -> io::Result<Place> {
        let start = if path.is_absolute() { "/" } else { "." };
        let mut directory = open_directory(CWD, OsStr::new(start))?;
        let mut name: Option<OsString> = None;
        let mut rest = components(path);
        let mut links = 0;
        while let Some(next) = rest.pop() {
            // The previous name must be a directory, or a link to one.
            if let Some(before) = name.take() {
                match link_at(&directory, &before)? {
                    Some(target) => {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(Errno::LOOP.into());
                        }
                        rest.push(next);
                        rest.extend(components(&target));
                        if target.is_absolute() {
                            directory = open_directory(CWD, OsStr::new("/"))?;
                        }
                        continue;
                    }
                    None => directory = open_directory(&directory, &before)?,
                }
            }
            match next.as_bytes() {
                b".." => directory = open_directory(&directory, &next)?,
                _ => name = Some(next),
            }
            // The last name may also be a link.
            if let (Some(last), true) = (&name, rest.is_empty())
                && let Some(target) = link_at(&directory, last)?
            {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                name = None;
                rest.extend(components(&target));
                if target.is_absolute() {
                    directory = open_directory(CWD, OsStr::new("/"))?;
                }
            }
        }
        let name = name.unwrap_or_else(|| Place::HERE.into());
        Ok(Place { directory, name })
    }

    /// Returns the status of the entry; links are not followed.
    pub(crate) fn stat(&self) -> rustix::io::Result<Stat> {
        rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Returns the names of a path, last one first.
fn components(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    });
    names.rev().collect()
}

/// Opens a directory; fails for a link.
pub(crate) fn open_directory(at: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(at.as_fd(), name, flags, Mode::empty()) {
        // The directory may be searched but not read by this user.
        Err(Errno::ACCESS) => Ok(openat(
            at,
            name,
            (flags - OFlags::RDONLY) | OFlags::PATH,
            Mode::empty(),
        )?),
        result => Ok(result?),
    }
}

/// Returns the target of the link of this name, if it may be followed; `None` if it is not a
/// link.
fn link_at(directory: &OwnedFd, name: &OsStr) -> io::Result<Option<PathBuf>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = match openat(directory, name, flags, Mode::empty()) {
        Ok(link) => link,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let stat = rustix::fs::fstat(&link)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Ok(None);
    }
    if stat.st_uid != 0 && stat.st_uid != own_user() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} is a symbolic link of another user (uid {}), which is not followed",
                name.display(),
                stat.st_uid
            ),
        ));
    }
    let target = rustix::fs::readlinkat(&link, "", Vec::new())?;
    Ok(Some(PathBuf::from(OsStr::from_bytes(target.as_bytes()))))
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// True if a directory belongs to us, and no other user may write to it. (A group whose id
/// equals the user's id counts as the user.)
pub(crate) fn is_ours(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = rustix::fs::fstat(directory)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    let by_group = mode.contains(Mode::WGRP) && stat.st_gid != stat.st_uid;
    Ok(stat.st_uid == own_user() && !by_group && !mode.contains(Mode::WOTH))
}

/// Returns the temporary name that a file has while it is being written.
pub(crate) fn temporary(name: impl AsRef<OsStr>) -> OsString {
    let mut temporary = OsString::from(".");
    temporary.push(name.as_ref());
    temporary.push(".tmp");
    temporary
}

/// Creates a new file in an open directory, replacing any entry of that name, even a link. Atomic:
/// a reader sees the older file or the newer one.
pub(crate) fn replace(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    bytes: &[u8],
    mode: Mode,
) -> io::Result<()> {
    let temporary = temporary(name);
    let unlink = || rustix::fs::unlinkat(directory, &temporary, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || openat(directory, &temporary, flags, mode);
    let file = match create() {
        // Left by a killed process. If it belongs to another user and cannot be removed, it stays.
        Err(Errno::EXIST) => unlink().and_then(|()| create()),
        result => result,
    };
    let mut file = File::from(file?);
    let written = file.write_all(bytes).and_then(|()| {
        Ok(rustix::fs::renameat(
            directory, &temporary, directory, name,
        )?)
    });
    if written.is_err() {
        // A partial temporary file is useless; if even removing it fails, it stays, hidden.
        let _ = unlink();
    }
    written
}

/// Opens our own descriptor that a path such as `/dev/stdout` names, so that output continues at
/// its current position, as with `>>`.
fn own_descriptor(path: &Path) -> Option<io::Result<OwnedFd>> {
    let number = match path.to_str()? {
        "/dev/stdout" => "1",
        "/dev/stderr" => "2",
        other => ["/dev/fd/", "/proc/self/fd/"]
            .iter()
            .find_map(|own| other.strip_prefix(own))
            .filter(|number| number.bytes().all(|c| c.is_ascii_digit()))?,
    };
    Some(match number {
        "1" => io::stdout().as_fd().try_clone_to_owned(),
        "2" => io::stderr().as_fd().try_clone_to_owned(),
        _ => {
            let path = format!("/proc/self/fd/{number}");
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)
        }
    })
}

/// Writes a file that the user named, replacing an older one. A path that is not a regular
/// file, such as `/dev/stdout`, is written to if it is one of our own descriptors.
///
/// # Errors
/// The file cannot be written; the older file is then unchanged.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(own) = own_descriptor(path) {
        return File::from(own?).write_all(bytes);
    }
    if path == Path::new("/dev/null") {
        return Ok(());
    }
    let place = Place::of(path)?;
    match place.stat() {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
            let what = "it exists and is not a regular file";
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
        Ok(_) | Err(Errno::NOENT) => {
            let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
            replace(place.directory.as_fd(), &place.name, bytes, mode)
        }
        Err(error) => Err(error.into()),
    }
}
