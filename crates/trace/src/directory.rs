//! The trace directory: what is in it, making a new one, putting the older one aside.
//!
//! ```text
//! capriole.trace/
//!   metadata              TSDL: what the streams look like      replaced as a whole
//!   cpu0 cpu1 cpu0.1 ...  the streams: packets of records       appended to
//!   info/capriole.json    what CTF has no place for             replaced as a whole
//! ```
//!
//! The JSON file stands in a directory of its own because babeltrace2 and Trace Compass take
//! every visible plain file beside `metadata` for a stream, and refuse the whole trace when one
//! is not. Temporary files start with a dot for the same reason.
//!
//! While a recording runs it holds a lock (`flock`) on the directory, so that another one does
//! not put it aside. All files are opened relative to the open directory: renaming it does not
//! mislead the recorder. The directory has to belong to the user, and nobody else may write to it:
//! else whoever made it decides what is written over, see [`place`](crate::place).

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
use crate::reader::MAX_JSON;

/// The name of the TSDL file.
pub(crate) const METADATA: &str = "metadata";
/// The directory of the JSON file.
const INFO: &str = "info";
/// The JSON file.
const JSON: &str = "capriole.json";

/// What the files of a trace may be used for, and by whom.
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// How much of a metadata file is read to see whose it is, bytes. That stands at its beginning.
const MAX_HEAD: u64 = 1 << 20;

/// The path of the JSON file in a trace directory.
pub(crate) fn json_path(directory: &Path) -> PathBuf {
    directory.join(INFO).join(JSON)
}

/// Why a directory for a new trace could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The place is taken by something that is not a directory.
    #[error("{0} is there and is not a directory; choose another place for the trace")]
    NotADirectory(PathBuf),
    /// The place is taken by a directory with other things in it.
    #[error("{0} is there and is not a trace; move it away, or choose another place for the trace")]
    NotATrace(PathBuf),
    /// The older trace is put aside and would replace something that is not a trace.
    #[error("{0} is in the way of the older trace and is not a trace; move it away")]
    OldNotATrace(PathBuf),
    /// The older trace's predecessor would be removed, but a file in it is not part of a trace.
    #[error("{0} is not part of a trace and would be removed with it; move it away")]
    Foreign(PathBuf),
    /// Somebody else may change what is in it.
    #[error(
        "{0} belongs to another user, or others may write to it, who could lead the trace elsewhere; choose another place for the trace"
    )]
    NotOurs(PathBuf),
    /// A recorder is still writing there.
    #[error("{0} is being written by another recording; choose another place for the trace")]
    Busy(PathBuf),
    /// The path ends in `..` or is `/`, so that it cannot be renamed.
    #[error(
        "{0} is not empty and has no name by which it could be put aside; choose another place for the trace"
    )]
    NoName(PathBuf),
    /// The system refused.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried: `create`, `rename`, `remove`, `read`.
        what: &'static str,
        /// What it was tried on.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_path_buf();
    move |source| DirectoryError::Io { what, path, source }
}

/// An open trace directory that is being written.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    place: Place,
    root: Locked,
    info: OwnedFd,
}

impl Directory {
    /// Makes the directory, after putting an older trace of that name aside as `NAME.old`,
    /// which replaces an even older one. A directory with nothing in it is used as it is, also if
    /// a recorder was killed when it had just begun there.
    ///
    /// Everything is checked before anything is changed, and nothing is removed that is not
    /// part of a trace of this crate's making.
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
            // Arguments and addresses are the target's secrets: for the owner only.
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
                    // There is nothing in it.
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
                    // If somebody has put something into it meanwhile, it stays.
                    let _ = unlinkat(&place.directory, &place.name, AtFlags::REMOVEDIR);
                }
                Err(error)
            }
        }
    }

    /// Opens the directory of a trace again, whose recorder was killed; `None` if there is none.
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

    /// The names of what is in it.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        entries(&self.root.0)
    }

    /// Opens the file of a stream that is there.
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

    /// Removes it with all that is in it, if it is still where it was made.
    pub(crate) fn remove(self) -> Result<(), DirectoryError> {
        let Directory {
            path,
            place,
            root,
            info,
        } = self;
        // There may be no descriptor left but this one.
        drop(info);
        // Unlocked, as one that nobody writes to.
        let directory = copy(&root.0).map_err(failed("remove", &path))?;
        drop(root);
        remove(&place, directory, &path)
    }

    /// The path it was made with.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a stream's file.
    pub(crate) fn create_stream(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        Ok(openat(&self.root.0, name, flags, FILE)?.into())
    }

    /// Replaces `metadata` as a whole, or leaves the older one.
    pub(crate) fn replace_metadata(&self, text: &str) -> io::Result<()> {
        replace(
            self.root.0.as_fd(),
            METADATA.as_ref(),
            text.as_bytes(),
            FILE,
        )
    }

    /// Replaces the JSON file as a whole, or leaves the older one.
    pub(crate) fn replace_json(&self, text: &[u8]) -> io::Result<()> {
        replace(self.info.as_fd(), JSON.as_ref(), text, FILE)
    }
}

/// The directory that has a name, if it is there: one of ours, and no link.
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

/// The same open directory once more.
fn copy(directory: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(directory, 0)?)
}

/// The names in a directory.
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

/// True if a directory has nothing but what a recorder makes before the first file of a trace
/// is whole, or leaves when it is killed while it removes one.
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

/// Opens a regular file of a directory.
fn open_file(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<File> {
    let what_else = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a file");
    // Nobody but us can put something else there meanwhile.
    if type_at(directory, name)? != FileType::RegularFile {
        return Err(what_else());
    }
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?.into())
}

/// The type of what has a name in a directory; a link is one itself.
fn type_at(directory: &OwnedFd, name: impl rustix::path::Arg) -> rustix::io::Result<FileType> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// Whether a directory is a trace of this crate's making.
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

/// Whether a recording holds the lock of a directory.
fn is_busy(directory: &OwnedFd) -> bool {
    // Opened anew: a lock is of what was opened.
    open_directory(directory, OsStr::new(".")).is_ok_and(|again| Locked::take(again).is_none())
}

/// A directory with its lock, given back when this is dropped.
///
/// It is given back by name and not only by closing: a child that another thread of this
/// process has just forked holds the open directory too, until it executes its program.
#[derive(Debug)]
struct Locked(OwnedFd);

impl Locked {
    /// Takes the lock; `None` if another recording has it. Where the file system knows no
    /// locks, everybody has it.
    fn take(directory: OwnedFd) -> Option<Locked> {
        let locked = rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive);
        (locked != Err(rustix::io::Errno::WOULDBLOCK)).then_some(Locked(directory))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Fails only where there was no lock to take.
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

/// Removes a trace, file by file, if there is nothing else in its directory.
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
    // What tells that it is a trace goes last: whoever is killed on the way leaves
    // something that can be removed the next time.
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

/// Whether this is the file, or the temporary one that it is made from.
fn is_file(name: &str, file: &str) -> bool {
    name == file || OsStr::new(name) == temporary(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the child that is about to execute another program has it.
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
