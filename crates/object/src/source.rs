//! Source of an object's bytes. Only the needed parts are read, because a program with debug
//! information may be gigabytes in size.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use object::read::ReadCacheOps;

use super::ObjectProblem;

/// The bytes of an ELF file: an open regular file, read as it is needed.
#[derive(Debug)]
pub struct Source {
    file: File,
    /// Its size when it was opened, bytes.
    len: u64,
}

/// Returns the largest plausible size of a file with this many blocks of 512 bytes on disk. A
/// sparse file can claim any size, and all of it would be read. Compressing file systems do not
/// come near this factor; some file systems do not count blocks.
fn most(blocks: u64) -> u64 {
    match blocks {
        0 => 1 << 30,
        blocks => (64 << 20) + blocks.saturating_mul(512 * 32),
    }
}

impl Source {
    /// Makes a source from a regular file: a device or FIFO has no length to check against and
    /// might never respond.
    pub fn file(file: File) -> Result<Source, ObjectProblem> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ObjectProblem::NotElf);
        }
        let len = metadata.size();
        if len > most(metadata.blocks()) {
            return Err(ObjectProblem::Damaged("it is mostly holes"));
        }
        Ok(Source { file, len })
    }

    /// Returns the size of the file, bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads `size` bytes at `offset`; never allocates more than the file's size.
    pub fn read(&self, offset: u64, size: u64) -> Result<Vec<u8>, ObjectProblem> {
        let end = offset.checked_add(size);
        if end.is_none_or(|end| end > self.len()) {
            return Err(ObjectProblem::Damaged("it ends too early (truncated?)"));
        }
        let len = usize::try_from(size).map_err(|_| ObjectProblem::Damaged("too large"))?;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

/// A position in a [`Source`], for the reader of the `object` crate.
#[derive(Debug)]
pub struct Cursor<'a> {
    source: &'a Source,
    position: u64,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte.
    pub fn new(source: &'a Source) -> Cursor<'a> {
        Cursor {
            source,
            position: 0,
        }
    }
}

impl ReadCacheOps for Cursor<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.source.len())
    }

    fn seek(&mut self, position: u64) -> Result<u64, ()> {
        self.position = position;
        Ok(position)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        let left = self.source.len().saturating_sub(self.position);
        let count = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        self.read_exact(&mut buffer[..count])?;
        Ok(count)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.source
            .file
            .read_exact_at(buffer, self.position)
            .map_err(|_| ())?;
        self.position += buffer.len() as u64;
        Ok(())
    }
}
