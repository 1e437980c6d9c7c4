//! Facts from the notes and the dynamic section.

use object::elf;

use super::elf::Headers;
use super::source::Source;

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

    /// Reads notes: each is three words (name size, content size, type), name and content, each
    /// padded to four bytes. Notes with eight-byte alignment hold only properties and are skipped.
    fn read_notes(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((note, tail)) = take_note(rest) {
            match (note.name, note.kind) {
                (b"GNU", kind) if kind == elf::NT_GNU_BUILD_ID.0 && !note.content.is_empty() => {
                    self.build_id.get_or_insert_with(|| note.content.to_vec());
                }
                (GO_NOTE, _) => self.go_note = true,
                _ => {}
            }
            rest = tail;
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

pub(crate) struct Note<'a> {
    pub name: &'a [u8],
    pub kind: u32,
    pub content: &'a [u8],
}

/// Takes a note from the front: three words (name size, content size, type), name and content,
/// each padded to four bytes.
pub(crate) fn take_note(bytes: &[u8]) -> Option<(Note<'_>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(12)?;
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?))
    };
    let (name, rest) = take_padded(rest, word(0)?)?;
    let (content, rest) = take_padded(rest, word(4)?)?;
    let name = name.split(|&b| b == 0).next().unwrap_or_default();
    let kind = word(8)?;
    Some((
        Note {
            name,
            kind,
            content,
        },
        rest,
    ))
}

fn take_padded(bytes: &[u8], size: u32) -> Option<(&[u8], &[u8])> {
    let size = usize::try_from(size).ok()?;
    let (taken, _) = bytes.split_at_checked(size)?;
    // The padding of the last note may be missing.
    let rest = bytes.get(size.next_multiple_of(4)..).unwrap_or_default();
    Some((taken, rest))
}
