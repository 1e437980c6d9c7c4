//! Sections of ELF files of any kind (programs, debug files, `.dwo`), whole and
//! decompressed.

use std::path::Path;

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::read::{CompressedData, CompressionFormat, ReadCache};

use super::error::NotUsed;
pub use capriole_object::source::{Cursor, Source};
use capriole_proc::files;

/// Maximum claimed size of a compressed section, per compressed byte: zlib reaches 1,032, and
/// zstd much less except on constant bytes.
const EXPANSION: u64 = 1100;
/// The largest section that is read, in bytes.
const LARGEST: u64 = 16 << 30;

const DAMAGED: NotUsed = NotUsed::Damaged("bad section");

struct Section {
    name: String,
    offset: u64,
    size: u64,
    /// Format, offset and size of the compressed bytes, and the uncompressed size.
    compressed: Option<(CompressionFormat, u64, u64, u64)>,
}

/// The sections of a file, except those without bytes in it (`SHT_NOBITS`).
pub(super) struct Sections<'a> {
    source: &'a Source,
    sections: Vec<Section>,
    /// Bytes that may still be read. The limit is needed because any number of sections of a
    /// damaged file may share the same bytes.
    left: std::cell::Cell<u64>,
}

/// Opens a file that need not be a program.
pub(super) fn open(path: &Path) -> Result<Source, NotUsed> {
    let file = files::open(path).map_err(|_| NotUsed::Absent)?;
    Source::file(file).map_err(|_| NotUsed::Absent)
}

impl<'a> Sections<'a> {
    pub(super) fn read(source: &'a Source) -> Result<Sections<'a>, NotUsed> {
        let cache = ReadCache::new(Cursor::new(source));
        let header = elf::FileHeader64::<LE>::parse(&cache)
            .map_err(|_| NotUsed::Damaged("not an ELF file"))?;
        let table = header.sections(LE, &cache).map_err(|_| DAMAGED)?;
        let mut sections = Vec::new();
        for section in table.iter() {
            let Ok(name) = table.section_name(LE, section) else {
                continue;
            };
            if section.sh_type(LE) == elf::SHT_NOBITS {
                continue;
            }
            let (offset, size) = (section.sh_offset(LE), section.sh_size(LE));
            let mut name = String::from_utf8_lossy(name).into_owned();
            let mut compressed = None;
            if let Ok(Some((header, at, len))) = section.compression(LE, &cache) {
                let format = match header.ch_type.get(LE) {
                    kind if kind == elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
                    kind if kind == elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
                    _ => CompressionFormat::Unknown,
                };
                compressed = Some((format, at, len, header.ch_size.get(LE)));
            } else if let Some(rest) = name.strip_prefix(".zdebug_") {
                // The older form: "ZLIB" and the size, big-endian.
                let head = source.read(offset, 12.min(size)).unwrap_or_default();
                let Some(len) = head
                    .strip_prefix(b"ZLIB")
                    .and_then(|len| Some(u64::from_be_bytes(len.try_into().ok()?)))
                else {
                    continue;
                };
                name = format!(".debug_{rest}");
                compressed = Some((CompressionFormat::Zlib, offset + 12, size - 12, len));
            }
            sections.push(Section {
                name,
                offset,
                size,
                compressed,
            });
        }
        Ok(Sections {
            source,
            sections,
            left: std::cell::Cell::new(source.len().saturating_mul(2)),
        })
    }

    fn find(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some_and(|section| section.size > 0)
    }

    /// Returns the decompressed bytes of a section; empty if there is no such section.
    pub(super) fn bytes(&self, name: &str) -> Result<Vec<u8>, NotUsed> {
        let Some(section) = self.find(name) else {
            return Ok(Vec::new());
        };
        let read = |offset: u64, size: u64| {
            let left = self.left.get().checked_sub(size);
            self.left
                .set(left.filter(|_| size < LARGEST).ok_or(DAMAGED)?);
            self.source.read(offset, size).map_err(|_| DAMAGED)
        };
        let Some((format, offset, size, uncompressed_size)) = section.compressed else {
            return read(section.offset, section.size);
        };
        if uncompressed_size > size.saturating_mul(EXPANSION).min(LARGEST) {
            return Err(NotUsed::Damaged("a compressed section claims to be huge"));
        }
        let data = read(offset, size)?;
        let compressed = CompressedData {
            format,
            data: &data,
            uncompressed_size,
        };
        compressed
            .decompress()
            .map(|bytes| bytes.into_owned())
            .map_err(|_| NotUsed::Damaged("a section cannot be decompressed"))
    }

    /// Returns the build id.
    pub(super) fn build_id(&self) -> Option<Vec<u8>> {
        let note = self.bytes(".note.gnu.build-id").ok()?;
        // Name size, content size, type, name, content.
        let size = u32::from_le_bytes(note.get(4..8)?.try_into().ok()?);
        (note.get(12..16)? == b"GNU\0")
            .then(|| note.get(16..)?.get(..size as usize).map(<[u8]>::to_vec))?
    }

    /// Returns the file name, and the bytes after it, of `.gnu_debuglink` or `.gnu_debugaltlink`.
    pub(super) fn link(&self, name: &str) -> Option<(String, Vec<u8>)> {
        let bytes = self.bytes(name).ok()?;
        let end = bytes.iter().position(|&byte| byte == 0)?;
        let file = String::from_utf8(bytes[..end].to_vec()).ok()?;
        (!file.is_empty()).then(|| (file, bytes[end + 1..].to_vec()))
    }
}

/// Computes the checksum of a whole file, as in `.gnu_debuglink` (CRC-32 of IEEE 802.3).
pub(super) fn check_sum(source: &Source) -> Option<u32> {
    const CHUNK: u64 = 1 << 20;
    let mut sum = crc32fast::Hasher::new();
    let mut offset = 0;
    while offset < source.len() {
        let size = CHUNK.min(source.len() - offset);
        sum.update(&source.read(offset, size).ok()?);
        offset += size;
    }
    Some(sum.finalize())
}
