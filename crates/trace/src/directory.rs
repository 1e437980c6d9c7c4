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
//! Until its recording begins, a new trace is called `.NAME.new`, beside the older trace: a recording
//! that never begins changes nothing. Then the older trace becomes `NAME.old`.
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

use crate::document::MAX_JSON;
use crate::packet::parse_file_name;
use crate::place::{Place, is_ours, open_directory, replace, temporary};

/// The name of the TSDL file.
pub(crate) const METADATA: &str = "metadata";
/// The directory of the JSON file.
const INFO: &str = "info";
/// The JSON file.
const JSON: &str = "capriole.json";
/// The file with the names of code.
const NAMES: &str = "names.jsonl.gz";

/// Permissions of a trace's files: the owner may read and write.
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Maximum number of bytes of a metadata file read to identify its writer, which is named near
/// the start.
const MAX_HEAD: u64 = 1 << 20;

/// Returns the path of the names of code in a trace directory.
pub(crate) fn names_path(directory: &Path) -> PathBuf {
    directory.join(INFO).join(NAMES)
}

/// Returns the path of the JSON file in a trace directory.
pub(crate) fn json_path(directory: &Path) -> PathBuf {
    directory.join(INFO).join(JSON)
}

/// Reason why a directory for a new trace could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The path exists and is not a directory.
    #[error("{0} exists and is not a directory; choose another place for the trace")]
    NotADirectory(PathBuf),
    /// The path is a directory with other contents.
    #[error("{0} exists and is not a trace; move it away, or choose another place for the trace")]
    NotATrace(PathBuf),
    /// Moving the older trace aside would replace something that is not a trace.
    #[error("the older trace would be kept as {0}, which exists and is not a trace; move it away")]
    OldNotATrace(PathBuf),
    /// The temporary name of the new trace is taken by something that is not a trace.
    #[error(
        "the new trace would first be written to {0}, which exists and is not a trace; move it away"
    )]
    InTheWay(PathBuf),
    /// The older trace's predecessor would be removed, but a file in it is not part of a trace.
    #[error(
        "{0} is in the directory of an old trace that would be removed, but is not part of the trace; move it away"
    )]
    Foreign(PathBuf),
    /// Other users may change the directory's contents.
    #[error(
        "{0} belongs to another user, or others may write to it and could redirect the trace; choose another place for the trace"
    )]
    NotOurs(PathBuf),
    /// A recorder is still writing to the trace.
    #[error("{0} is being written by another recording; choose another place for the trace")]
    Busy(PathBuf),
    /// The path ends in `..` or is `/`, so it cannot be renamed.
    #[error(
        "{0} is not empty and cannot be renamed, to keep it; choose another place for the trace"
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

fn failed<E: Into<io::Error>>(
    what: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> DirectoryError + use<E> {
    let path = path.to_path_buf();
    move |error| DirectoryError::Io {
        what,
        path,
        source: error.into(),
    }
}

/// An open trace directory for writing.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Where the directory is now.
    place: Place,
    /// The name that it gets when the recording begins, if it has another one until then.
    name: Option<OsString>,
    /// True if the directory existed before, empty.
    existed: bool,
    root: Locked,
    info: OwnedFd,
}

impl Directory {
    /// Creates the directory under a temporary name beside `path`; [`begin`](Self::begin) puts it
    /// in place. An empty directory is used as it is, including one left by a recorder that was
    /// killed just after creating it.
    ///
    /// Checks everything that could prevent `begin`, and changes nothing else.
    pub(crate) fn prepare(path: &Path) -> Result<Directory, DirectoryError> {
        let place = Place::of(path).map_err(failed("create", path))?;
        match open_existing(&place, path)? {
            Some(found) if is_empty(&found).map_err(failed("read", path))? => {
                return Directory::fill(place, None, found, path);
            }
            Some(found) => {
                check_aside(&place, &found, path)?;
            }
            None => {}
        }
        let name = pending(&place.name);
        let new_path = path.with_file_name(&name);
        let new = Place {
            directory: place.directory,
            name,
        };
        match open_existing(&new, &new_path) {
            Ok(None) => {}
            // Left by a recorder that was killed before its recording began: without records.
            Ok(Some(left))
                if is_trace(&left) || is_empty(&left).map_err(failed("read", &new_path))? =>
            {
                remove(&new, left, path)?;
            }
            Ok(Some(_)) | Err(DirectoryError::NotADirectory(_)) => {
                return Err(DirectoryError::InTheWay(new_path));
            }
            Err(error) => return Err(error),
        }
        // Arguments and addresses are secrets of the target: only the owner may read them.
        rustix::fs::mkdirat(&new.directory, &new.name, Mode::RWXU)
            .map_err(failed("create", path))?;
        let opened = open_existing(&new, &new_path).and_then(|found| {
            let missing = || io::Error::from(Errno::NOENT);
            found.ok_or_else(missing).map_err(failed("open", &new_path))
        });
        let again = copy(&new.directory).map_err(failed("open", path));
        let (again, new_name) = (again?, new.name.clone());
        let filled = opened.and_then(|root| Directory::fill(new, Some(place.name), root, path));
        filled.inspect_err(|_| {
            // Fails, and leaves the directory in place, if another process has put something into
            // it meanwhile.
            let _ = unlinkat(&again, &new_name, AtFlags::REMOVEDIR);
        })
    }

    /// Locks an empty directory, and creates the directory of the JSON file in it.
    fn fill(
        place: Place,
        name: Option<OsString>,
        root: OwnedFd,
        path: &Path,
    ) -> Result<Directory, DirectoryError> {
        let info_path = path.join(INFO);
        let root = Locked::take(root).ok_or_else(|| DirectoryError::Busy(path.to_path_buf()))?;
        match rustix::fs::mkdirat(&root.0, INFO, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("create", &info_path)(error)),
        }
        let info = open_directory(&root.0, OsStr::new(INFO)).map_err(|error| {
            // It is empty.
            let _ = unlinkat(&root.0, INFO, AtFlags::REMOVEDIR);
            failed("open", &info_path)(error)
        })?;
        Ok(Directory {
            path: path.to_path_buf(),
            place,
            existed: name.is_none(),
            name,
            root,
            info,
        })
    }

    /// Puts the directory in place. An older trace there becomes `NAME.old`, which replaces an even
    /// older one. Does nothing if it is in place.
    ///
    /// On failure the older trace stays in its place.
    pub(crate) fn begin(&mut self) -> Result<(), DirectoryError> {
        let Some(name) = self.name.take() else {
            return Ok(());
        };
        let result = self.move_to(&name);
        match result {
            Ok(()) => self.place.name = name,
            Err(_) => self.name = Some(name),
        }
        result
    }

    /// Moves the directory to another name, and what is there aside.
    fn move_to(&self, name: &OsStr) -> Result<(), DirectoryError> {
        let path = &self.path;
        let target = Place {
            directory: copy(&self.place.directory).map_err(failed("open", path))?,
            name: name.to_owned(),
        };
        let aside = match open_existing(&target, path)? {
            Some(found) if is_empty(&found).map_err(failed("read", path))? => {
                remove(&target, found, path)?;
                None
            }
            Some(found) => Some(put_aside(&target, found, path)?),
            None => None,
        };
        let directory = &self.place.directory;
        rustix::fs::renameat(directory, &self.place.name, directory, name).map_err(|error| {
            if let Some(old) = aside {
                let _ = rustix::fs::renameat(directory, old, directory, name);
            }
            failed("rename", path)(error)
        })
    }

    /// Reopens the directory of a trace whose recorder was killed; `None` if there is none.
    pub(crate) fn reopen(path: &Path) -> Result<Option<Directory>, DirectoryError> {
        Directory::reopen_as(path, |_| None)
    }

    /// Reopens the directory of a trace whose recorder was killed before it had put the directory
    /// in place; `None` if there is none.
    pub(crate) fn reopen_pending(path: &Path) -> Result<Option<Directory>, DirectoryError> {
        Directory::reopen_as(path, |name| Some(pending(name)))
    }

    fn reopen_as(
        path: &Path,
        pending: impl Fn(&OsStr) -> Option<OsString>,
    ) -> Result<Option<Directory>, DirectoryError> {
        let mut place = match Place::of(path) {
            Ok(place) => place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", path)(error)),
        };
        let now = pending(&place.name);
        let name = now.map(|now| std::mem::replace(&mut place.name, now));
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
            existed: false,
            name,
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

    /// Opens the file with the names of code, which is created if it does not exist.
    pub(crate) fn open_names(&self) -> io::Result<File> {
        let name = OsStr::new(NAMES);
        match open_file(&self.info, name, OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                Ok(openat(&self.info, name, flags | OFlags::CLOEXEC, FILE)?.into())
            }
            opened => opened,
        }
    }

    /// Reads the JSON file.
    pub(crate) fn read_json(&self) -> io::Result<Vec<u8>> {
        let file = open_file(&self.info, OsStr::new(JSON), OFlags::RDONLY)?;
        let mut text = Vec::new();
        file.take(MAX_JSON).read_to_end(&mut text)?;
        Ok(text)
    }

    /// Removes the directory with its contents, if it is still where it was made. One that existed
    /// before is only emptied.
    pub(crate) fn remove(self) -> Result<(), DirectoryError> {
        let Directory {
            path,
            place,
            root,
            info,
            existed,
            ..
        } = self;
        // Frees a descriptor for `copy`: the process may have no other free one.
        drop(info);
        // Releases the lock: `remove` refuses a trace that has a writer.
        let directory = copy(&root.0).map_err(failed("remove", &path))?;
        drop(root);
        match existed {
            true => empty(&directory, &path),
            false => remove(&place, directory, &path),
        }
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
        Err(error) => return Err(failed("read", path)(error)),
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
    names.retain(|name| *name != temporary(JSON) && name != NAMES);
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
        let info = open_directory(directory, OsStr::new(INFO));
        info.is_ok_and(|info| type_at(&info, JSON) == Ok(FileType::RegularFile))
    };
    let declared = || {
        let file = open_file(directory, OsStr::new(METADATA), OFlags::RDONLY).ok()?;
        let mut text = Vec::new();
        file.take(MAX_HEAD).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).contains("tracer_name = \"capriole\""))
    };
    described() || declared() == Some(true)
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

/// Returns the name that a new trace has until its recording begins.
fn pending(name: &OsStr) -> OsString {
    let mut pending = OsString::from(".");
    pending.push(name);
    pending.push(".new");
    pending
}

fn old_name(name: &OsStr) -> OsString {
    let mut old_name = name.to_owned();
    old_name.push(".old");
    old_name
}

/// Returns where a trace is when another recording has been given its directory.
#[must_use]
pub fn put_aside_as(path: &Path) -> PathBuf {
    path.with_file_name(old_name(path.file_name().unwrap_or_default()))
}

/// Checks that a trace can be renamed to `NAME.old`, and returns that place with the trace that is
/// there.
fn check_aside(
    place: &Place,
    trace: &OwnedFd,
    path: &Path,
) -> Result<(Place, Option<OwnedFd>), DirectoryError> {
    if !is_trace(trace) {
        return Err(DirectoryError::NotATrace(path.to_path_buf()));
    }
    if place.name == Place::HERE {
        return Err(DirectoryError::NoName(path.to_path_buf()));
    }
    if is_busy(trace) {
        return Err(DirectoryError::Busy(path.to_path_buf()));
    }
    let old_name = old_name(&place.name);
    let old_path = path.with_file_name(&old_name);
    let old = Place {
        directory: copy(&place.directory).map_err(failed("open", path))?,
        name: old_name,
    };
    match open_existing(&old, &old_path) {
        Ok(None) => Ok((old, None)),
        Ok(Some(directory))
            if is_trace(&directory)
                || is_empty(&directory).map_err(failed("read", &old_path))? =>
        {
            parts(&directory, &old_path)?;
            Ok((old, Some(directory)))
        }
        Ok(Some(_)) | Err(DirectoryError::NotADirectory(_)) => {
            Err(DirectoryError::OldNotATrace(old_path))
        }
        Err(error) => Err(error),
    }
}

/// Renames a trace to `NAME.old`, and returns that name.
fn put_aside(place: &Place, trace: OwnedFd, path: &Path) -> Result<OsString, DirectoryError> {
    let (old, older) = check_aside(place, &trace, path)?;
    if let Some(older) = older {
        remove(&old, older, &path.with_file_name(&old.name))?;
    }
    rustix::fs::renameat(&place.directory, &place.name, &old.directory, &old.name)
        .map_err(failed("rename", path))?;
    Ok(old.name)
}

/// Contents of a trace directory.
struct Parts {
    files: Vec<OsString>,
    /// The directory of the JSON file, and its files.
    info: Option<(OwnedFd, Vec<OsString>)>,
}

/// Lists a trace, if it can be removed: no recording writes to it, and its directory contains
/// nothing else.
fn parts(trace: &OwnedFd, path: &Path) -> Result<Parts, DirectoryError> {
    if is_busy(trace) {
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
    let files = collect(trace, path, &|name| {
        is_file(name, METADATA) || parse_file_name(name).is_some()
    })?;
    let info_path = path.join(INFO);
    let info = match is_directory(trace, OsStr::new(INFO)) {
        true => {
            let info =
                open_directory(trace, OsStr::new(INFO)).map_err(failed("open", &info_path))?;
            let files = collect(&info, &info_path, &|name| {
                is_file(name, JSON) || name == NAMES
            })?;
            Some((info, files))
        }
        false => None,
    };
    Ok(Parts { files, info })
}

/// Removes a trace, file by file, if its directory contains nothing else.
fn remove(place: &Place, trace: OwnedFd, path: &Path) -> Result<(), DirectoryError> {
    empty(&trace, path)?;
    unlinkat(&place.directory, &place.name, AtFlags::REMOVEDIR).map_err(failed("remove", path))
}

/// Removes the files of a trace, if its directory contains nothing else.
fn empty(trace: &OwnedFd, path: &Path) -> Result<(), DirectoryError> {
    let Parts { files, info } = parts(trace, path)?;
    let info_path = path.join(INFO);
    let unlink = |at: &OwnedFd, name: &OsStr, path: &Path, flags: AtFlags| {
        unlinkat(at, name, flags).map_err(failed("remove", path))
    };
    // The file that identifies it as a trace goes last: after a kill midway, the rest can still be
    // removed the next time.
    for name in files.iter().filter(|name| *name != METADATA) {
        unlink(trace, name, &path.join(name), AtFlags::empty())?;
    }
    if let Some((info, files)) = info {
        for name in &files {
            unlink(&info, name, &info_path.join(name), AtFlags::empty())?;
        }
        unlink(trace, OsStr::new(INFO), &info_path, AtFlags::REMOVEDIR)?;
    }
    if files.iter().any(|name| name == METADATA) {
        let path = path.join(METADATA);
        unlink(trace, OsStr::new(METADATA), &path, AtFlags::empty())?;
    }
    Ok(())
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
        let mut first = Directory::prepare(&path).unwrap();
        first.begin().unwrap();
        let _copy = rustix::io::dup(&first.root.0).unwrap();
        let again = open_directory(rustix::fs::CWD, path.as_os_str()).unwrap();
        assert!(is_busy(&again));
        drop(first);
        assert!(!is_busy(&again));
    }
}
