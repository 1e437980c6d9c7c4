//! The headers of an ELF file: its loadable segments and its sections (System V ABI, chapters 4
//! and 5, and its AMD64 supplement).

use object::LittleEndian as LE;
use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

use super::ObjectProblem;
use super::source::{Cursor, Source};
use capriole_proc::maps::{PAGE_SIZE, Perms};

/// Kind of an ELF file, by the way it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A program at the address it was linked for (`ET_EXEC`).
    FixedProgram,
    /// A program that may be loaded anywhere (`ET_DYN` with an interpreter or
    /// the `DF_1_PIE` flag).
    PositionIndependentProgram,
    /// A shared library.
    SharedLibrary,
}

/// One loadable segment (`PT_LOAD`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Link address of the first byte.
    pub address: u64,
    /// Size in memory, bytes; the part beyond `file_size` is zero.
    pub memory_size: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Size in the file, bytes.
    pub file_size: u64,
    /// Permissions when mapped.
    pub perms: Perms,
}

impl Segment {
    /// Returns the file offset of the page that holds the first byte.
    pub(crate) fn page_offset(&self) -> u64 {
        self.offset / PAGE_SIZE * PAGE_SIZE
    }

    /// Returns the link address of the page that holds the first byte.
    pub(crate) fn page_address(&self) -> u64 {
        self.address / PAGE_SIZE * PAGE_SIZE
    }

    /// Returns the link address for a file offset in the segment's pages; `None` if they do not
    /// contain it. The first page may begin before the segment: neighbouring segments may share a
    /// page.
    pub(crate) fn page_address_of(&self, offset: u64) -> Option<u64> {
        let distance = offset.checked_sub(self.page_offset())?;
        let size = self.offset.checked_add(self.file_size)? - self.page_offset();
        (distance < size).then(|| self.page_address().wrapping_add(distance))
    }

    /// Returns the link address of the byte at a file offset.
    #[must_use]
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let distance = offset.checked_sub(self.offset)?;
        (distance < self.file_size).then(|| self.address + distance)
    }

    /// Returns the file offset of the byte at a link address.
    #[must_use]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let distance = address.checked_sub(self.address)?;
        (distance < self.file_size).then(|| self.offset + distance)
    }
}

/// A section that has a name, with the fields that are needed here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub name: String,
    pub kind: u32,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub allocated: bool,
    pub executable: bool,
}

impl Section {
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        self.address <= address && address < self.end()
    }

    /// True if the section has bytes in the file (`.bss` has none).
    pub(crate) fn in_file(&self) -> bool {
        self.kind != elf::SHT_NOBITS.0
    }

    /// True if the section holds the stubs through which the object calls other objects.
    pub(crate) fn is_plt(&self) -> bool {
        let name = self.name.as_str();
        name == ".plt" || name == ".iplt" || name.starts_with(".plt.")
    }
}

/// The headers of a file.
#[derive(Debug)]
pub(crate) struct Headers {
    pub kind: ObjectKind,
    pub entry: u64,
    /// Link address of the program headers, if they are loaded.
    pub phdr_address: Option<u64>,
    pub segments: Vec<Segment>,
    pub sections: Vec<Section>,
    /// File range of `PT_DYNAMIC`.
    pub dynamic: Option<(u64, u64)>,
    /// File ranges of `PT_NOTE` and notes in sections.
    pub notes: Vec<(u64, u64)>,
    /// Link address and size of `PT_GNU_EH_FRAME`.
    pub eh_frame_hdr: Option<(u64, u64)>,
}

impl Headers {
    pub(crate) fn read(source: &Source) -> Result<Headers, ObjectProblem> {
        check_ident(source)?;
        let cache = ReadCache::new(Cursor::new(source));
        let header = elf::FileHeader64::<LE>::parse(&cache)
            .map_err(|_| ObjectProblem::Damaged("bad file header"))?;
        let file_type = header.e_type(LE);
        if file_type != elf::ET_EXEC && file_type != elf::ET_DYN {
            return Err(ObjectProblem::NotLoadable(file_type.0));
        }
        let programs = header
            .program_headers(LE, &cache)
            .map_err(|_| ObjectProblem::Damaged("bad program headers"))?;
        let mut headers = Headers {
            kind: ObjectKind::SharedLibrary,
            entry: header.e_entry(LE),
            phdr_address: None,
            segments: Vec::new(),
            sections: sections(header, &cache)?,
            dynamic: None,
            notes: Vec::new(),
            eh_frame_hdr: None,
        };
        let mut interpreter = false;
        for program in programs {
            let range = program.file_range(LE);
            match program.p_type(LE) {
                elf::PT_LOAD => headers.segments.push(segment(program)?),
                elf::PT_DYNAMIC => headers.dynamic = Some(range),
                elf::PT_NOTE => headers.notes.push(range),
                elf::PT_INTERP => interpreter = true,
                elf::PT_GNU_EH_FRAME => {
                    headers.eh_frame_hdr = Some((program.p_vaddr(LE), range.1));
                }
                _ => {}
            }
        }
        if headers.segments.is_empty() {
            return Err(ObjectProblem::Damaged("nothing in it is loadable"));
        }
        headers.phdr_address = headers
            .segments
            .iter()
            .find_map(|segment| segment.address_of(header.e_phoff(LE)));
        if file_type == elf::ET_EXEC {
            headers.kind = ObjectKind::FixedProgram;
        } else if interpreter {
            headers.kind = ObjectKind::PositionIndependentProgram;
        }
        Ok(headers)
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Returns the file offset of the byte at `address`, in any segment.
    pub(crate) fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|s| s.offset_of(address))
    }

    /// Returns the executable section that holds a link address. Without section headers, returns
    /// the executable segment, as a section without a name.
    pub(crate) fn text_range(&self, address: u64) -> Option<(u64, u64, bool)> {
        if self.sections.is_empty() {
            return self
                .segments
                .iter()
                .filter(|s| s.perms.execute)
                .find(|s| s.offset_of(address).is_some())
                .map(|s| (s.address, s.address + s.file_size, false));
        }
        self.sections
            .iter()
            .find(|s| s.executable && s.allocated && s.in_file() && s.contains(address))
            .map(|s| (s.address, s.end(), s.is_plt()))
    }
}

/// Checks the start of the file header for errors that the `object` crate does not distinguish.
fn check_ident(source: &Source) -> Result<(), ObjectProblem> {
    let ident = source
        .read(0, 20.min(source.len()))
        .map_err(|_| ObjectProblem::NotElf)?;
    if ident.get(..4) != Some(b"\x7fELF") {
        return Err(ObjectProblem::NotElf);
    }
    let &[.., low, high] = ident.as_slice() else {
        return Err(ObjectProblem::NotElf);
    };
    if ident.len() < 20 {
        return Err(ObjectProblem::Damaged("it ends within the file header"));
    }
    let big_endian = ident[5] == elf::ELFDATA2MSB.0;
    let machine = if big_endian {
        u16::from_be_bytes([low, high])
    } else {
        u16::from_le_bytes([low, high])
    };
    match (machine, ident[4] == elf::ELFCLASS64.0) {
        (m, true) if m == elf::EM_X86_64.0 && !big_endian => Ok(()),
        (m, false) if m == elf::EM_X86_64.0 || m == elf::EM_386.0 => {
            Err(ObjectProblem::ThirtyTwoBit)
        }
        _ => Err(ObjectProblem::ForeignArchitecture(machine)),
    }
}

fn segment(program: &elf::ProgramHeader64<LE>) -> Result<Segment, ObjectProblem> {
    let flags = program.p_flags(LE);
    let has = |flag: elf::ProgramFlags| flags.0 & flag.0 != 0;
    let segment = Segment {
        address: program.p_vaddr(LE),
        memory_size: program.p_memsz(LE),
        offset: program.p_offset(LE),
        file_size: program.p_filesz(LE),
        perms: Perms {
            read: has(elf::PF_R),
            write: has(elf::PF_W),
            execute: has(elf::PF_X),
            shared: false,
        },
    };
    let size = segment.memory_size.max(segment.file_size);
    if segment.address.checked_add(size).is_none() || segment.offset.checked_add(size).is_none() {
        return Err(ObjectProblem::Damaged(
            "a segment lies outside the address space",
        ));
    }
    if segment.address % PAGE_SIZE != segment.offset % PAGE_SIZE {
        return Err(ObjectProblem::Damaged(
            "a segment is not aligned to its pages",
        ));
    }
    Ok(segment)
}

fn sections<'a>(
    header: &elf::FileHeader64<LE>,
    cache: &'a ReadCache<Cursor<'a>>,
) -> Result<Vec<Section>, ObjectProblem> {
    let table = header
        .sections(LE, cache)
        .map_err(|_| ObjectProblem::Damaged("bad section headers (truncated?)"))?;
    let flag = |section: &elf::SectionHeader64<LE>, flag: u64| section.sh_flags(LE).0 & flag != 0;
    Ok(table
        .iter()
        .map(|section| Section {
            // A section with an unreadable name is never one that we look up.
            name: table
                .section_name(LE, section)
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .unwrap_or_default(),
            kind: section.sh_type(LE).0,
            address: section.sh_addr(LE),
            offset: section.sh_offset(LE),
            size: section.sh_size(LE),
            link: section.sh_link(LE),
            allocated: flag(section, elf::SHF_ALLOC.0),
            executable: flag(section, elf::SHF_EXECINSTR.0),
        })
        .collect())
}
