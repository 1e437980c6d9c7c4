//! A temporary directory for the files of a measurement.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory in the system's directory for temporary files (`TMPDIR`), which only this
/// user may enter. Removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn new() -> std::io::Result<Scratch> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        loop {
            // Only different numbers matter; nothing else is published by it.
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("capriole-bench-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch(path)),
                // Left behind by a process that was killed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_gone_with_its_files() {
        let scratch = Scratch::new().expect("a directory");
        let other = Scratch::new().expect("another");
        assert_ne!(scratch.path(), other.path());
        std::fs::write(scratch.path().join("a"), "b").expect("a file");
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists() && other.path().exists());
    }
}
