//! Facts from the notes and the dynamic section.

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{Note, NoteIterator};

use super::elf::Headers;
use super::source::Source;

type Elf = elf::FileHeader64<LE>;

/// Notes larger than this are not read (build ids have 20 bytes).
const NOTES_LIMIT: u64 = 1 << 20;
/// Owner of Go's notes; type 4 is its build id.
const GO_NOTE: &[u8] = b"Go";

/// Facts from notes and the dynamic section. Loading the object requires none of them, so
/// damaged ones count as absent.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub build_id: Option<Vec<u8>>,
    pub soname: Option<String>,
    pub go_note: bool,
    pub pie_flag: bool,
    /// Link addresses of the dynamic symbol and string tables, and the size of the latter.
    pub dynamic_symbols: Option<(u64, u64, u64)>,
}

impl Facts {
    pub(crate) fn read(source: &Source, headers: &Headers) -> Facts {
        let mut facts = Facts::default();
        for &(offset, size) in &headers.notes {
            if let Ok(bytes) = source.read(offset, size.min(NOTES_LIMIT)) {
                facts.read_notes(&bytes);
            }
        }
        if let Some((offset, size)) = headers.dynamic
            && let Ok(bytes) = source.read(offset, size.min(NOTES_LIMIT))
        {
            facts.read_dynamic(source, headers, &bytes);
        }
        facts
    }

    /// Reads notes. Notes with eight-byte alignment hold only properties and are skipped.
    fn read_notes(&mut self, bytes: &[u8]) {
        for note in notes(bytes).flatten() {
            match (note.name(), note.n_type(LE)) {
                (elf::ELF_NOTE_GNU, elf::NT_GNU_BUILD_ID) if !note.desc().is_empty() => {
                    self.build_id.get_or_insert_with(|| note.desc().to_vec());
                }
                (GO_NOTE, _) => self.go_note = true,
                _ => {}
            }
        }
    }

    fn read_dynamic(&mut self, source: &Source, headers: &Headers, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks::<8>();
        let (pairs, _) = words.as_chunks::<2>();
        let entries = pairs
            .iter()
            .map(|[tag, value]| (i64::from_le_bytes(*tag), u64::from_le_bytes(*value)))
            .take_while(|&(tag, _)| tag != elf::DT_NULL.0);
        let (mut name, mut strings, mut strings_size, mut symbols) = (None, None, None, None);
        for (tag, value) in entries {
            match elf::DynamicTag(tag) {
                elf::DT_SONAME => name = Some(value),
                elf::DT_STRTAB => strings = Some(value),
                elf::DT_STRSZ => strings_size = Some(value),
                elf::DT_SYMTAB => symbols = Some(value),
                elf::DT_FLAGS_1 => self.pie_flag = value & elf::DF_1_PIE.0 != 0,
                _ => {}
            }
        }
        self.dynamic_symbols = symbols
            .zip(strings)
            .zip(strings_size)
            .map(|((symbols, strings), size)| (symbols, strings, size));
        self.soname = name.zip(strings).and_then(|(name, strings)| {
            let offset = headers.offset_of(strings.checked_add(name)?)?;
            let room = source.len().saturating_sub(offset).min(4096);
            let bytes = source.read(offset, room).ok()?;
            let end = bytes.iter().position(|&b| b == 0)?;
            String::from_utf8(bytes[..end].to_vec()).ok()
        });
    }
}

/// Returns the notes of a section or segment whose padding is to four bytes. After an error there
/// are no more. The bytes have to be aligned to four, as a buffer from [`Source::read`] is;
/// otherwise there is only an error.
pub(crate) fn notes(bytes: &[u8]) -> impl Iterator<Item = object::Result<Note<'_, Elf>>> {
    NoteIterator::<Elf>::new(LE, 4, bytes).into_iter().flatten()
}
