//! MiniDebugInfo: the section `.gnu_debugdata`, an ELF file compressed by xz whose `.symtab` has the functions
//! that stripping removed from the file ("MiniDebugInfo" in gdb's manual). Fedora and RHEL have it in every
//! program and library.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Write};

use rustix::fs::{MemfdFlags, memfd_create};

use super::elf::Headers;
use super::source::Source;

const SECTION: &str = ".gnu_debugdata";
/// Maximum size of the file in it, bytes.
const MAX_SIZE: usize = 64 << 20;

/// Returns the file in the section of a file, with its headers; `None` if there is none, or it is damaged.
pub(crate) fn read(source: &Source, headers: &Headers) -> Option<(Source, Headers)> {
    let section = headers.section(SECTION)?;
    let packed = source.read(section.offset, section.size).ok()?;
    // A source is a file.
    let file = memfd_create("capriole-names", MemfdFlags::CLOEXEC).ok()?;
    let mut unpacked = Limited {
        file: File::from(file),
        left: MAX_SIZE,
    };
    lzma_rs::xz_decompress(&mut BufReader::new(Cursor::new(packed)), &mut unpacked).ok()?;
    let source = Source::file(unpacked.file).ok()?;
    let headers = Headers::read(&source).ok()?;
    Some((source, headers))
}

/// A file that is not written beyond a size.
struct Limited {
    file: File,
    left: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = self.file.write(bytes)?;
        self.left -= written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
