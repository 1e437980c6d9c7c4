//! Source of an object's bytes. Only the needed parts are read, because a program with debug
//! information may be gigabytes in size.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{PoisonError, RwLock};

use object::read::ReadCacheOps;

use super::ObjectProblem;

/// The bytes of an ELF file: an open regular file, read as it is needed.
#[derive(Debug)]
pub struct Source {
    file: File,
    /// Its size when it was opened, bytes.
    len: u64,
    /// Blocks from which few bytes were read, by their number: jump tables are read word by word.
    blocks: RwLock<HashMap<u64, Box<[u8]>>>,
}

/// Size of a kept block, bytes.
const BLOCK: u64 = 16 << 10;
/// Maximum number of blocks kept: 16 MiB.
const MOST_BLOCKS: usize = 1024;
/// Maximum size of a read through a kept block, bytes.
const FEW: u64 = 64;

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
        let blocks = RwLock::default();
        Ok(Source { file, len, blocks })
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
        if size <= FEW && offset % BLOCK + size <= BLOCK {
            return self.few(offset, len);
        }
        self.bytes(offset, len)
    }

    fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>, ObjectProblem> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Reads bytes that lie in one block.
    fn few(&self, offset: u64, len: usize) -> Result<Vec<u8>, ObjectProblem> {
        let (number, start) = (offset / BLOCK, (offset % BLOCK) as usize);
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = blocks.get(&number) {
            return Ok(block[start..start + len].to_vec());
        }
        drop(blocks);
        let at = number * BLOCK;
        let block = self.bytes(at, BLOCK.min(self.len - at) as usize)?;
        let wanted = block[start..start + len].to_vec();
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        if blocks.len() >= MOST_BLOCKS {
            blocks.clear();
        }
        blocks.insert(number, block.into());
        Ok(wanted)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn words_are_those_of_the_whole_file_also_between_blocks() {
        let bytes: Vec<u8> = (0..2 * BLOCK + 5).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("it is written");
        let source = Source::file(file).expect("a regular file");
        for at in (BLOCK - 9..BLOCK + 9).chain(2 * BLOCK - 9..2 * BLOCK - 2) {
            let word = source.read(at, 8).map_err(|_| at);
            let at = at as usize;
            let expected = bytes.get(at..at + 8).map(<[u8]>::to_vec);
            assert_eq!(word.ok(), expected, "{at}");
        }
        assert!(source.read(2 * BLOCK - 2, 8).is_err());
        assert_eq!(
            source.read(2 * BLOCK, 5).ok().as_deref(),
            bytes.get(2 * BLOCK as usize..)
        );
    }
}
