//! Reasons why an ELF file cannot be used.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capriole_proc::process::FileSystem;

/// Error for a program or library that cannot be used, with its path.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct ObjectError {
    /// Path of the file, as the process names it.
    pub path: PathBuf,
    /// The reason.
    pub reason: ObjectProblem,
}

impl ObjectError {
    pub(crate) fn new(path: &Path, reason: impl Into<ObjectProblem>) -> ObjectError {
        ObjectError {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

/// Reasons why a program or library cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ObjectProblem {
    /// The kernel refuses to open or read it.
    #[error("cannot read it: {0}")]
    Io(Arc<io::Error>),
    /// Its file system does not let this user read it.
    #[error("cannot be read: {0}")]
    NotReadable(FileSystem),
    /// Not an ELF file, so neither a program nor a library (it may be a script).
    #[error("not an ELF file; name the program or library itself")]
    NotElf,
    /// A 32-bit file (i386 or x32).
    #[error("a 32-bit file; only 64-bit x86 programs can be traced")]
    ThirtyTwoBit,
    /// A file for another processor.
    #[error("made for another processor (ELF machine {0}); only x86-64 can be traced")]
    ForeignArchitecture(u16),
    /// An ELF file of a kind that is not loaded: relocatable object, core dump.
    #[error("neither a program nor a shared library (ELF type {0}); link it first")]
    NotLoadable(u16),
    /// The file contradicts itself or ends too early.
    #[error("damaged ELF file: {0}")]
    Damaged(&'static str),
    /// A different file is at the path now.
    #[error(
        "the file on disk is not the one that runs (replaced since the program was started): restart the program, or run as root to reach the old file"
    )]
    Replaced,
    /// The file was deleted and cannot be reached in any other way.
    #[error(
        "the file was deleted after the program had loaded it: restart the program, or run as root to reach it"
    )]
    Deleted,
    /// The mappings in the process do not match the program headers.
    #[error("its mappings in the process do not fit its program headers")]
    StrangeMapping,
}

impl From<io::Error> for ObjectProblem {
    fn from(error: io::Error) -> ObjectProblem {
        ObjectProblem::Io(Arc::new(error))
    }
}
