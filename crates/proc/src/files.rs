//! Opening of files for reading whose names come from outside: a trace, debug information, a
//! path in another process.
//!
//! Such a path may name any type of file: a FIFO without a writer, an endless device or one
//! that acts when it is opened, a sparse file that claims to be larger than any disk. So the
//! type is checked before the file is opened, and only regular files are opened.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Size limit of text files written by users, such as event definitions, bytes.
pub(crate) const MAX_TEXT: u64 = 16 << 20;
/// Room for most files of `/proc`, bytes.
const PSEUDO_FILE: usize = 16 << 10;

/// Opens a regular file.
///
/// # Errors
/// It is not a regular file, or the kernel's error.
pub fn open(path: &Path) -> io::Result<File> {
    regular(&place(path)?)
}

/// Opens a regular file at a path in a root directory, which may be that of another process. No part of the path may
/// be a symbolic link: whoever can write to a directory on the way could have any other file opened.
///
/// # Errors
/// It is not a regular file, there is a symbolic link on the way, or the kernel's error.
pub fn open_in(root: &Path, path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty())?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve) {
        Ok(place) => regular(&place),
        Err(Errno::LOOP) => Err(io::Error::other(
            "a directory on the way is a symbolic link",
        )),
        Err(error) => Err(error.into()),
    }
}

/// Opens the file of a reference, which must be a regular one.
fn regular(place: &OwnedFd) -> io::Result<File> {
    let kind = file_type(place)?;
    if kind != FileType::RegularFile {
        return Err(io::Error::new(
            match kind {
                FileType::Directory => ErrorKind::IsADirectory,
                _ => ErrorKind::InvalidInput,
            },
            format!("it is {}, not a file", name(kind)),
        ));
    }
    reopen(place, OFlags::NONBLOCK)
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open`]; the file is larger.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    // Check before reading: the file may be sparse.
    if file.metadata()?.len() > limit {
        return Err(too_large(limit));
    }
    read_all(file, limit)
}

/// Reads a file of a pseudo-filesystem, `/proc` or `/sys`. Such a file has no size to ask for, and
/// each call makes the kernel write its text anew, so that as few as possible are made: one for each
/// page of text, and one that returns nothing.
///
/// # Errors
/// Those of open(2) and read(2).
pub fn read_pseudo(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PSEUDO_FILE);
    // A file as such is asked for its size first.
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a text file of a pseudo-filesystem.
///
/// # Errors
/// As [`read_pseudo`]; it is not UTF-8.
pub fn read_pseudo_text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = read_pseudo(path)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Reads a file that the user named as input. It may also be `-` or one of our own descriptors,
/// such as `/dev/stdin` or the shell's `<(...)`, and so a pipe or a terminal. Reads at most
/// 16 MiB.
///
/// # Errors
/// As [`read`].
pub fn read_input(path: &Path) -> io::Result<Vec<u8>> {
    let own = ["/dev/stdin", "/dev/fd", "/proc/self/fd"];
    if path.as_os_str() == "-" {
        read_all(io::stdin().lock(), MAX_TEXT)
    } else if own.iter().any(|own| path.starts_with(own)) {
        read_all(reopen(&place(path)?, OFlags::empty())?, MAX_TEXT)
    } else {
        read(path, MAX_TEXT)
    }
}

/// Gets a reference to the file without opening it (`O_PATH`).
fn place(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn file_type(file: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode))
}

/// Opens the file that was checked.
fn reopen(place: &OwnedFd, more: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | more;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn read_all(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(limit));
    }
    Ok(bytes)
}

fn too_large(limit: u64) -> io::Error {
    let what = format!("it is larger than {} MiB", limit >> 20);
    io::Error::new(ErrorKind::FileTooLarge, what)
}

fn name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symbolic link",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn in_a_root_directory_no_link_is_followed() {
        let root = tempfile::tempdir().expect("a directory");
        let inside = root.path().join("inside");
        std::fs::create_dir(&inside).expect("a directory");
        std::fs::write(inside.join("file"), "right").expect("a file");
        symlink("file", inside.join("link")).expect("a link");
        symlink("inside", root.path().join("way")).expect("a link");
        let read = |path: &str| {
            let mut text = String::new();
            open_in(root.path(), Path::new(path))?.read_to_string(&mut text)?;
            io::Result::Ok(text)
        };
        assert_eq!(read("inside/file").expect("a file"), "right");
        assert_eq!(read("/../inside/file").expect("in the root"), "right");
        let error = read("inside/link").expect_err("a link");
        assert_eq!(error.to_string(), "it is a symbolic link, not a file");
        let error = read("way/file").expect_err("a link");
        assert_eq!(
            error.to_string(),
            "a directory on the way is a symbolic link"
        );
        let error = read("inside").expect_err("a directory");
        assert_eq!(error.to_string(), "it is a directory, not a file");
        assert_eq!(read("no").expect_err("nothing").kind(), ErrorKind::NotFound);
    }

    /// Bytes read by this thread so far.
    fn read_so_far() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").expect("its counters");
        let count = text.lines().find_map(|line| line.strip_prefix("rchar: "));
        count.expect("a counter").parse().expect("a number")
    }

    #[test]
    fn what_is_too_large_is_not_read_first() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(65 << 20).expect("holes");
        let before = read_so_far();
        let error = read(file.path(), 64 << 20).expect_err("too large");
        assert_eq!(error.to_string(), "it is larger than 64 MiB");
        assert!(read_so_far() - before < 1 << 20);
        assert_eq!(read(file.path(), 65 << 20).expect("bytes").len(), 65 << 20);
    }
}
