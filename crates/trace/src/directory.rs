//! The trace directory: its contents, creating a new one, moving the older one aside.
//!
//! ```text
//! capriole.trace/
//!   metadata              TSDL: the layout of the streams         replaced as a whole
//!   cpu0 cpu1 cpu0.1 ...  the streams: packets of records         appended to
//!   info/capriole.json    data that CTF has no place for          replaced as a whole
//! ```
//!
//! The JSON file is in a directory of its own because babeltrace2 and Trace Compass treat every
//! visible plain file beside `metadata` as a stream, and refuse the whole trace if one is not.
//! Names of temporary files start with a dot for the same reason.
//!
//! A running recording holds a lock (`flock`) on the directory, so that another recording does
//! not move it aside. All files are opened relative to the open directory: renaming it does not
//! mislead the recorder. The directory must belong to the user, and no other user may write to
//! it: otherwise another user could choose which files are overwritten, see
//! [`place`](crate::place).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;

use crate::packet::parse_file_name;
use crate::place::{Place, is_ours, open_directory, replace, temporary};

/// The name of the TSDL file.
pub(crate) const METADATA: &str = "metadata";
/// The directory of the JSON file.
const INFO: &str = "info";
/// The JSON file.
const JSON: &str = "capriole.json";

/// Permissions of a trace's files: the owner may read and write.
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Maximum number of bytes of a metadata file read to identify its writer, which is named near
/// the start.
const MAX_HEAD: u64 = 1 << 20;

/// Maximum size of the description, bytes.
pub(crate) const MAX_JSON: u64 = 512 << 20;

/// Returns the path of the JSON file in a trace directory.
pub(crate) fn json_path(directory: &Path) -> PathBuf {
    directory.join(INFO).join(JSON)
}

/// Reason why a directory for a new trace could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The path exists and is not a directory.
    #[error("{0} is there and is not a directory; choose another place for the trace")]
    NotADirectory(PathBuf),
    /// The path is a directory with other contents.
    #[error("{0} is there and is not a trace; move it away, or choose another place for the trace")]
    NotATrace(PathBuf),
    /// Moving the older trace aside would replace something that is not a trace.
    #[error("{0} is in the way of the older trace and is not a trace; move it away")]
    OldNotATrace(PathBuf),
    /// The older trace's predecessor would be removed, but a file in it is not part of a trace.
    #[error("{0} is not part of a trace and would be removed with it; move it away")]
    Foreign(PathBuf),
    /// Other users may change the directory's contents.
    #[error(
        "{0} belongs to another user, or others may write to it, who could lead the trace elsewhere; choose another place for the trace"
    )]
    NotOurs(PathBuf),
    /// A recorder is still writing to the trace.
    #[error("{0} is being written by another recording; choose another place for the trace")]
    Busy(PathBuf),
    /// The path ends in `..` or is `/`, so it cannot be renamed.
    #[error(
        "{0} is not empty and has no name by which it could be put aside; choose another place for the trace"
    )]
    NoName(PathBuf),
    /// A system call failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// The attempted operation: `create`, `rename`, `remove`, `read`.
        what: &'static str,
        /// The path it was attempted on.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_path_buf();
    move |source| DirectoryError::Io { what, path, source }
}

/// An open trace directory for writing.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    place: Place,
    root: Locked,
    info: OwnedFd,
}

impl Directory {
    /// Creates the directory, after moving an older trace of that name aside to `NAME.old`, which
    /// replaces an even older one. An empty directory is used as it is, including one left by a
    /// recorder that was killed just after creating it.
    ///
    /// Checks everything before changing anything, and removes nothing that is not part of a trace
    /// made by this crate.
    pub(crate) fn create(path: &Path) -> Result<Directory, DirectoryError> {
        let place = Place::of(path).map_err(failed("create", path))?;
        let found = open_existing(&place, path)?;
        let found = match found {
            Some(found) if !is_empty(&found).map_err(failed("read", path))? => {
                put_aside(&place, found, path)?;
                None
            }
            found => found,
        };
        let made = found.is_none();
        if found.is_none() {
            // Arguments and addresses are secrets of the target: only the owner may read them.
            rustix::fs::mkdirat(&place.directory, &place.name, Mode::RWXU)
                .map_err(|error| failed("create", path)(error.into()))?;
        }
        let opened = match found {
            Some(found) => Ok(found),
            None => open_existing(&place, path).and_then(|found| {
                let missing = || io::Error::from(Errno::NOENT);
                found.ok_or_else(missing).map_err(failed("open", path))
            }),
        };
        let info_path = path.join(INFO);
        let filled = opened.and_then(|root| {
            let busy = || DirectoryError::Busy(path.to_path_buf());
            let root = Locked::take(root).ok_or_else(busy)?;
            match rustix::fs::mkdirat(&root.0, INFO, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed("create", &info_path)(error.into())),
            }
            let info = open_directory(&root.0, OsStr::new(INFO));
            let info = info.map_err(|error| {
                if made {
                    // It is empty.
                    let _ = unlinkat(&root.0, INFO, AtFlags::REMOVEDIR);
                }
                failed("open", &info_path)(error)
            })?;
            Ok((root, info))
        });
        match filled {
            Ok((root, info)) => Ok(Directory {
                path: path.to_path_buf(),
                place,
                root,
                info,
            }),
            Err(error) => {
                if made {
                    // Fails, and leaves the directory in place, if another process has put
                    // something into it meanwhile.
                    let _ = unlinkat(&place.directory, &place.name, AtFlags::REMOVEDIR);
                }
                Err(error)
            }
        }
    }

    /// Reopens the directory of a trace whose recorder was killed; `None` if there is none.
    pub(crate) fn reopen(path: &Path) -> Result<Option<Directory>, DirectoryError> {
        let place = match Place::of(path) {
            Ok(place) => place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", path)(error)),
        };
        let Some(root) = open_existing(&place, path)? else {
            return Ok(None);
        };
        if !is_trace(&root) {
            return Err(DirectoryError::NotATrace(path.to_path_buf()));
        }
        let root = Locked::take(root).ok_or_else(|| DirectoryError::Busy(path.to_path_buf()))?;
        let info = open_directory(&root.0, OsStr::new(INFO));
        let info = info.map_err(failed("open", &path.join(INFO)))?;
        Ok(Some(Directory {
            path: path.to_path_buf(),
            place,
            root,
            info,
        }))
    }

    /// Returns the names of the directory's entries.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        entries(&self.root.0)
    }

    /// Opens an existing stream file.
    pub(crate) fn open_stream(&self, name: &OsStr) -> io::Result<File> {
        open_file(&self.root.0, name, OFlags::RDWR)
    }

    /// Reads the JSON file.
    pub(crate) fn read_json(&self) -> io::Result<Vec<u8>> {
        let file = open_file(&self.info, OsStr::new(JSON), OFlags::RDONLY)?;
        let mut text = Vec::new();
        file.take(MAX_JSON).read_to_end(&mut text)?;
        Ok(text)
    }

    /// Removes the directory with its contents, if it is still where it was made.
    pub(crate) fn remove(self) -> Result<(), DirectoryError> {
        let Directory {
            path,
            place,
            root,
            info,
        } = self;
        // Frees a descriptor for `copy`: the process may have no other free one.
        drop(info);
        // Releases the lock: `remove` refuses a trace that has a writer.
        let directory = copy(&root.0).map_err(failed("remove", &path))?;
        drop(root);
        remove(&place, directory, &path)
    }

    /// Returns the path under which the directory was created.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a stream's file.
    pub(crate) fn create_stream(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        Ok(openat(&self.root.0, name, flags, FILE)?.into())
    }

    /// Replaces `metadata` atomically; on failure the older one stays.
    pub(crate) fn replace_metadata(&self, text: &str) -> io::Result<()> {
        replace(
            self.root.0.as_fd(),
            METADATA.as_ref(),
            text.as_bytes(),
            FILE,
        )
    }

    /// Replaces the JSON file atomically; on failure the older one stays.
    pub(crate) fn replace_json(&self, text: &[u8]) -> io::Result<()> {
        replace(self.info.as_fd(), JSON.as_ref(), text, FILE)
    }
}

/// Opens the directory at a place, if it exists; it must be ours and must not be a link.
fn open_existing(place: &Place, path: &Path) -> Result<Option<OwnedFd>, DirectoryError> {
    let stat = match place.stat() {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failed("read", path)(error.into())),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(DirectoryError::NotADirectory(path.to_path_buf()));
    }
    let directory = open_directory(&place.directory, &place.name).map_err(failed("open", path))?;
    match is_ours(directory.as_fd()).map_err(failed("read", path))? {
        true => Ok(Some(directory)),
        false => Err(DirectoryError::NotOurs(path.to_path_buf())),
    }
}

/// Opens the same directory again.
fn copy(directory: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(directory, 0)?)
}

/// Returns the names in a directory.
fn entries(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// True if a directory contains nothing but what a recorder creates before the first file of a
/// trace is complete, or leaves when it is killed while removing a trace.
fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    let mut names = entries(directory)?;
    names.retain(|name| *name != temporary(METADATA));
    if names.iter().any(|name| name != INFO) {
        return Ok(false);
    }
    if names.is_empty() {
        return Ok(true);
    }
    if type_at(directory, INFO)? != FileType::Directory {
        return Ok(false);
    }
    let info = open_directory(directory, OsStr::new(INFO))?;
    let mut names = entries(&info)?;
    names.retain(|name| *name != temporary(JSON));
    Ok(names.is_empty())
}

/// Opens a regular file in a directory.
fn open_file(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<File> {
    let what_else = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a file");
    // Only we can write here, so no other process can replace it meanwhile.
    if type_at(directory, name)? != FileType::RegularFile {
        return Err(what_else());
    }
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?.into())
}

/// Returns the type of a directory's entry; links are not followed.
fn type_at(directory: &OwnedFd, name: impl rustix::path::Arg) -> rustix::io::Result<FileType> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// True if a directory is a trace made by this crate.
fn is_trace(directory: &OwnedFd) -> bool {
    let described = || {
        let info = open_directory(directory, OsStr::new(INFO)).ok()?;
        Some(type_at(&info, JSON) == Ok(FileType::RegularFile))
    };
    let declared = || {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if type_at(directory, METADATA) != Ok(FileType::RegularFile) {
            return None;
        }
        let file = openat(directory, METADATA, flags, Mode::empty()).ok()?;
        let mut text = Vec::new();
        let file = File::from(file).take(MAX_HEAD);
        { file }.read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).contains("tracer_name = \"capriole\""))
    };
    described() == Some(true) || declared() == Some(true)
}

/// True if a recording holds the lock of a directory.
fn is_busy(directory: &OwnedFd) -> bool {
    // Opened again: a lock belongs to the open file description.
    open_directory(directory, OsStr::new(".")).is_ok_and(|again| Locked::take(again).is_none())
}

/// A directory with its lock, which is released on drop.
///
/// Unlocks explicitly, not only by closing: a child that another thread of this process has just
/// forked also holds the open directory, until it executes its program.
#[derive(Debug)]
struct Locked(OwnedFd);

impl Locked {
    /// Takes the lock; `None` if another recording has it. On a file system without locks it always
    /// succeeds.
    fn take(directory: OwnedFd) -> Option<Locked> {
        let locked = rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive);
        (locked != Err(rustix::io::Errno::WOULDBLOCK)).then_some(Locked(directory))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Fails only if the file system has no locks.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Renames a trace to `NAME.old`.
fn put_aside(place: &Place, trace: OwnedFd, path: &Path) -> Result<(), DirectoryError> {
    if !is_trace(&trace) {
        return Err(DirectoryError::NotATrace(path.to_path_buf()));
    }
    if place.name == Place::HERE {
        return Err(DirectoryError::NoName(path.to_path_buf()));
    }
    if is_busy(&trace) {
        return Err(DirectoryError::Busy(path.to_path_buf()));
    }
    let mut old_name = place.name.clone();
    old_name.push(".old");
    let old_path = path.with_file_name(&old_name);
    let old = Place {
        directory: copy(&place.directory).map_err(failed("open", path))?,
        name: old_name,
    };
    match open_existing(&old, &old_path) {
        Ok(None) => {}
        Ok(Some(directory))
            if is_trace(&directory)
                || is_empty(&directory).map_err(failed("read", &old_path))? =>
        {
            remove(&old, directory, &old_path)?;
        }
        Ok(Some(_)) | Err(DirectoryError::NotADirectory(_)) => {
            return Err(DirectoryError::OldNotATrace(old_path));
        }
        Err(error) => return Err(error),
    }
    rustix::fs::renameat(&place.directory, &place.name, &old.directory, &old.name)
        .map_err(|error| failed("rename", path)(error.into()))
}

/// Removes a trace, file by file, if its directory contains nothing else.
fn remove(place: &Place, trace: OwnedFd, path: &Path) -> Result<(), DirectoryError> {
    if is_busy(&trace) {
        return Err(DirectoryError::Busy(path.to_path_buf()));
    }
    let is_directory = |at: &OwnedFd, name: &OsStr| type_at(at, name) == Ok(FileType::Directory);
    let collect = |at: &OwnedFd, path: &Path, is_ours: &dyn Fn(&str) -> bool| {
        let mut files = entries(at).map_err(failed("read", path))?;
        files.retain(|name| name != INFO || !is_directory(at, name));
        let foreign =
            |name: &&OsString| !name.to_str().is_some_and(is_ours) || is_directory(at, name);
        match files.iter().find(foreign) {
            Some(name) => Err(DirectoryError::Foreign(path.join(name))),
            None => Ok(files),
        }
    };
    let files = collect(&trace, path, &|name| {
        is_file(name, METADATA) || parse_file_name(name).is_some()
    })?;
    let info_path = path.join(INFO);
    let info = match is_directory(&trace, OsStr::new(INFO)) {
        true => {
            let info =
                open_directory(&trace, OsStr::new(INFO)).map_err(failed("open", &info_path))?;
            let files = collect(&info, &info_path, &|name| is_file(name, JSON))?;
            Some((info, files))
        }
        false => None,
    };
    let unlink = |at: &OwnedFd, name: &OsStr, path: &Path, flags: AtFlags| {
        unlinkat(at, name, flags).map_err(|error| failed("remove", path)(error.into()))
    };
    // The file that identifies it as a trace goes last: after a kill midway, the rest can still be
    // removed the next time.
    for name in files.iter().filter(|name| *name != METADATA) {
        unlink(&trace, name, &path.join(name), AtFlags::empty())?;
    }
    if let Some((info, files)) = info {
        for name in &files {
            unlink(&info, name, &info_path.join(name), AtFlags::empty())?;
        }
        unlink(&trace, OsStr::new(INFO), &info_path, AtFlags::REMOVEDIR)?;
    }
    if files.iter().any(|name| name == METADATA) {
        unlink(
            &trace,
            OsStr::new(METADATA),
            &path.join(METADATA),
            AtFlags::empty(),
        )?;
    }
    unlink(&place.directory, &place.name, path, AtFlags::REMOVEDIR)
}

/// True if `name` is this file or its temporary file.
fn is_file(name: &str, file: &str) -> bool {
    name == file || OsStr::new(name) == temporary(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Same situation as a forked child that holds a copy and is about to execute another program.
    #[test]
    fn a_copy_of_the_open_directory_does_not_keep_the_lock() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("trace");
        let first = Directory::create(&path).unwrap();
        let _copy = rustix::io::dup(&first.root.0).unwrap();
        let again = open_directory(rustix::fs::CWD, path.as_os_str()).unwrap();
        assert!(is_busy(&again));
        drop(first);
        assert!(!is_busy(&again));
    }
}
