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
//! mislead the recorder.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};

use crate::packet::parse_file_name;

/// The name of the TSDL file.
pub(crate) const METADATA: &str = "metadata";
/// The directory of the JSON file.
const INFO: &str = "info";
/// The JSON file.
const JSON: &str = "capriole.json";

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
    root: Locked,
    info: OwnedFd,
}

impl Directory {
    /// Makes the directory, after putting an older trace of that name aside as `NAME.old`,
    /// which replaces an even older one. An empty directory is used as it is.
    ///
    /// Everything is checked before anything is changed, and nothing is removed that is not
    /// part of a trace of this crate's making.
    pub(crate) fn create(path: &Path) -> Result<Directory, DirectoryError> {
        match entries(path) {
            Ok(names) if names.is_empty() => {}
            Ok(_) => put_aside(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(DirectoryError::NotADirectory(path.to_path_buf()));
            }
            Err(error) => return Err(failed("read", path)(error)),
        }
        // Arguments and addresses are the target's secrets: for the owner only.
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(failed("create", path)(error.into())),
        }
        let root = open_directory(CWD, path).map_err(failed("open", path))?;
        let Some(root) = Locked::take(root) else {
            return Err(DirectoryError::Busy(path.to_path_buf()));
        };
        let info_path = path.join(INFO);
        rustix::fs::mkdirat(&root.0, INFO, Mode::RWXU)
            .map_err(|error| failed("create", &info_path)(error.into()))?;
        let info = open_directory(&root.0, Path::new(INFO)).map_err(failed("open", &info_path))?;
        Ok(Directory {
            path: path.to_path_buf(),
            root,
            info,
        })
    }

    /// The path it was made with.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a stream's file.
    pub(crate) fn create_stream(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.root.0, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Replaces `metadata` as a whole, or leaves the older one.
    pub(crate) fn replace_metadata(&self, text: &str) -> io::Result<()> {
        replace(&self.root.0, METADATA, text.as_bytes())
    }

    /// Replaces the JSON file as a whole, or leaves the older one.
    pub(crate) fn replace_json(&self, text: &[u8]) -> io::Result<()> {
        replace(&self.info, JSON, text)
    }
}

fn open_directory(at: impl rustix::fd::AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, path, flags, Mode::empty())?)
}

/// Writes a hidden file and renames it, so that a reader sees the older text or the newer one.
fn replace(directory: &OwnedFd, name: &str, text: &[u8]) -> io::Result<()> {
    let temporary = format!(".{name}.tmp");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let written = rustix::fs::openat(directory, temporary.as_str(), flags, mode)
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).write_all(text))
        .and_then(|()| {
            Ok(rustix::fs::renameat(
                directory,
                temporary.as_str(),
                directory,
                name,
            )?)
        });
    if written.is_err() {
        // Half a temporary file helps nobody; if even this fails, it stays, hidden.
        let _ = rustix::fs::unlinkat(directory, temporary.as_str(), rustix::fs::AtFlags::empty());
    }
    written
}

/// The names in a directory.
fn entries(path: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(path)?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

/// Whether a directory is a trace of this crate's making.
fn is_trace(path: &Path) -> bool {
    json_path(path).is_file()
        || fs::read_to_string(path.join(METADATA))
            .is_ok_and(|text| text.contains("tracer_name = \"capriole\""))
}

/// Whether a recording holds the lock of a directory.
fn is_busy(path: &Path) -> bool {
    open_directory(CWD, path).is_ok_and(|directory| Locked::take(directory).is_none())
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
fn put_aside(path: &Path) -> Result<(), DirectoryError> {
    if !is_trace(path) {
        return Err(DirectoryError::NotATrace(path.to_path_buf()));
    }
    let Some(name) = path.file_name() else {
        return Err(DirectoryError::NoName(path.to_path_buf()));
    };
    if is_busy(path) {
        return Err(DirectoryError::Busy(path.to_path_buf()));
    }
    let mut old_name = name.to_os_string();
    old_name.push(".old");
    let old = path.with_file_name(old_name);
    match fs::symlink_metadata(&old) {
        Ok(found) if found.is_dir() && is_trace(&old) => remove(&old)?,
        Ok(_) => return Err(DirectoryError::OldNotATrace(old)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("read", &old)(error)),
    }
    fs::rename(path, &old).map_err(failed("rename", path))
}

/// Removes a trace, file by file, if there is nothing else in its directory.
fn remove(path: &Path) -> Result<(), DirectoryError> {
    if is_busy(path) {
        return Err(DirectoryError::Busy(path.to_path_buf()));
    }
    let info = path.join(INFO);
    let mut files = Vec::new();
    let mut collect = |directory: &Path, is_ours: &dyn Fn(&str) -> bool| {
        for name in entries(directory).map_err(failed("read", directory))? {
            let file = directory.join(&name);
            if file == info && file.is_dir() {
                continue;
            }
            if !name.to_str().is_some_and(is_ours) || file.is_dir() {
                return Err(DirectoryError::Foreign(file));
            }
            files.push(file);
        }
        Ok(())
    };
    collect(path, &|name| {
        is_ours(name, METADATA) || parse_file_name(name).is_some()
    })?;
    if info.is_dir() {
        collect(&info, &|name| is_ours(name, JSON))?;
    }
    // What tells that it is a trace goes last: whoever is killed on the way leaves
    // something that can be removed the next time.
    let metadata = path.join(METADATA);
    for file in files.iter().filter(|file| **file != metadata) {
        fs::remove_file(file).map_err(failed("remove", file))?;
    }
    if info.is_dir() {
        fs::remove_dir(&info).map_err(failed("remove", &info))?;
    }
    if files.contains(&metadata) {
        fs::remove_file(&metadata).map_err(failed("remove", &metadata))?;
    }
    fs::remove_dir(path).map_err(failed("remove", path))
}

/// Whether this is the file, or the temporary one that it is made from.
fn is_ours(name: &str, file: &str) -> bool {
    OsStr::new(name) == file || name == format!(".{file}.tmp")
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
        assert!(is_busy(&path));
        drop(first);
        assert!(!is_busy(&path));
    }
}
