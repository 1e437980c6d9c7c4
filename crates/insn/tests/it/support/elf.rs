//! A minimal ELF reader: enough for the tests to find functions in system libraries.
//! It is independent of the product's symbol code, so that this code is not tested with
//! itself.

#![allow(dead_code)]

use std::path::{Path, PathBuf};

use capriole_insn::Extent;

/// A shared object of the system. All addresses are as linked, plus the bias.
pub struct Elf {
    bytes: Vec<u8>,
    bias: u64,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    /// The part that becomes read-only once relocations are applied.
    read_only_later: Extent,
}

/// A mapped segment of the file.
#[derive(Clone, Copy)]
pub struct Segment {
    pub executable: bool,
    pub writable: bool,
    pub address: u64,
    pub memory_size: u64,
    offset: usize,
    file_size: usize,
}

/// Value that the loader stores at a relocated place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixup {
    /// An address in this object.
    Inside(u64),
    /// The address of something in another object.
    Elsewhere,
    /// The number of this object's module, for thread-local variables.
    Module,
    /// An offset in thread-local memory.
    ThreadOffset,
}

struct Section {
    kind: u32,
    address: u64,
    offset: usize,
    size: usize,
    link: usize,
}

/// One entry of `.eh_frame`: the code of a function, or of a part of one.
pub struct Fde {
    pub extent: Extent,
    pub lsda: Option<u64>,
}

const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_DYNSYM: u32 = 11;
const SHT_RELR: u32 = 19;

/// Finds the system's copy of a library, if it has one.
pub fn find_library(name: &str) -> Option<PathBuf> {
    [
        "/usr/lib/x86_64-linux-gnu",
        "/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
    ]
    .iter()
    .map(|directory| Path::new(directory).join(name))
    .find(|path| path.exists())
}

impl Elf {
    pub fn open(path: &Path) -> Option<Self> {
        Self::open_at(path, 0)
    }

    /// Reads the file as if it were mapped `bias` above its linked address.
    pub fn open_at(path: &Path, bias: u64) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        if bytes.get(..5)? != b"\x7fELF\x02" || u16_at(&bytes, 18) != 62 {
            return None;
        }
        let segments = table(&bytes, 32, 54)
            .into_iter()
            .filter(|&at| u32_at(&bytes, at) == 1)
            .map(|at| Segment {
                executable: u32_at(&bytes, at + 4) & 1 != 0,
                writable: u32_at(&bytes, at + 4) & 2 != 0,
                offset: u64_at(&bytes, at + 8) as usize,
                address: u64_at(&bytes, at + 16).wrapping_add(bias),
                memory_size: u64_at(&bytes, at + 40),
                file_size: u64_at(&bytes, at + 32) as usize,
            })
            .collect();
        let sections = table(&bytes, 40, 58)
            .into_iter()
            .map(|at| Section {
                kind: u32_at(&bytes, at + 4),
                address: u64_at(&bytes, at + 16).wrapping_add(bias),
                offset: u64_at(&bytes, at + 24) as usize,
                size: u64_at(&bytes, at + 32) as usize,
                link: u32_at(&bytes, at + 40) as usize,
            })
            .collect();
        let read_only_later = table(&bytes, 32, 54)
            .into_iter()
            .find(|&at| u32_at(&bytes, at) == 0x6474_e552)
            .map_or(Extent::new(0, 0), |at| {
                let address = u64_at(&bytes, at + 16).wrapping_add(bias);
                Extent::new(address, address + u64_at(&bytes, at + 40))
            });
        Some(Self {
            bytes,
            bias,
            segments,
            sections,
            read_only_later,
        })
    }

    /// The mapped segments, and the bytes of the file in each.
    pub fn segments(&self) -> impl Iterator<Item = (Segment, &[u8])> {
        self.segments
            .iter()
            .map(|s| (*s, &self.bytes[s.offset..s.offset + s.file_size]))
    }

    /// The part of the writable segment that the loader makes read-only.
    pub fn read_only_later(&self) -> Extent {
        self.read_only_later
    }

    /// The executable segment and its address.
    pub fn text(&self) -> (&[u8], u64) {
        let segment = self.segments.iter().find(|s| s.executable).unwrap();
        let bytes = &self.bytes[segment.offset..segment.offset + segment.file_size];
        (bytes, segment.address)
    }

    /// The addresses of all executable segments.
    pub fn texts(&self) -> Vec<Extent> {
        let executable = self.segments.iter().filter(|s| s.executable);
        executable
            .map(|s| Extent::new(s.address, s.address + s.file_size as u64))
            .collect()
    }

    /// The executable segment around an address, and its address.
    pub fn text_at(&self, address: u64) -> Option<(&[u8], u64)> {
        let inside = |s: &&Segment| {
            let end = s.address + s.file_size as u64;
            s.executable && (s.address..end).contains(&address)
        };
        let segment = self.segments.iter().find(inside)?;
        let bytes = &self.bytes[segment.offset..segment.offset + segment.file_size];
        Some((bytes, segment.address))
    }

    /// The segments that are not executable, and their addresses.
    pub fn data(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.segments
            .iter()
            .filter(|s| !s.executable)
            .map(|s| (&self.bytes[s.offset..s.offset + s.file_size], s.address))
    }

    /// Bytes of the file image at an address.
    pub fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        self.segments.iter().find_map(|s| {
            let inside = usize::try_from(address.checked_sub(s.address)?).ok()?;
            (inside.checked_add(len)? <= s.file_size)
                .then(|| self.bytes[s.offset + inside..s.offset + inside + len].to_vec())
        })
    }

    /// All bytes of the file image from an address to the end of its segment.
    pub fn rest(&self, address: u64) -> &[u8] {
        self.segments
            .iter()
            .find_map(|s| {
                let inside = usize::try_from(address.checked_sub(s.address)?).ok()?;
                (inside < s.file_size)
                    .then(|| &self.bytes[s.offset + inside..s.offset + s.file_size])
            })
            .unwrap_or(&[])
    }

    /// The functions in the symbol tables, sorted by address.
    pub fn functions(&self) -> Vec<(String, Extent)> {
        let texts = self.texts();
        let mut functions = Vec::new();
        for section in &self.sections {
            if section.kind != SHT_SYMTAB && section.kind != SHT_DYNSYM {
                continue;
            }
            let names = self.sections[section.link].offset;
            for at in (section.offset..section.offset + section.size).step_by(24) {
                let kind = self.bytes[at + 4] & 0xf;
                let start = u64_at(&self.bytes, at + 8).wrapping_add(self.bias);
                let size = u64_at(&self.bytes, at + 16);
                if (kind == 2 || kind == 10)
                    && size > 0
                    && texts.iter().any(|text| text.contains(start))
                {
                    let name = names + u32_at(&self.bytes, at) as usize;
                    let end = name + self.bytes[name..].iter().position(|&b| b == 0).unwrap();
                    let name = String::from_utf8_lossy(&self.bytes[name..end]).into_owned();
                    functions.push((name, Extent::new(start, start + size)));
                }
            }
        }
        functions.sort_by_key(|(_, extent)| *extent);
        functions.dedup_by_key(|(_, extent)| *extent);
        functions
    }

    /// All entries of `.eh_frame`, found through the table in `.eh_frame_hdr`,
    /// sorted by address.
    pub fn fdes(&self) -> Vec<Fde> {
        let Some(header) = table(&self.bytes, 32, 54)
            .into_iter()
            .find(|&at| u32_at(&self.bytes, at) == 0x6474_e550)
        else {
            return Vec::new();
        };
        let at = u64_at(&self.bytes, header + 8) as usize;
        let address = u64_at(&self.bytes, header + 16).wrapping_add(self.bias);
        assert_eq!(
            self.bytes[at..at + 4],
            [1, 0x1b, 0x03, 0x3b],
            "unusual .eh_frame_hdr"
        );
        let count = u32_at(&self.bytes, at + 8) as usize;
        let mut fdes: Vec<Fde> = (0..count)
            .filter_map(|i| {
                let entry = at + 12 + 8 * i;
                let fde = address.wrapping_add_signed(i64::from(i32_at(&self.bytes, entry + 4)));
                self.fde(fde)
            })
            .collect();
        fdes.sort_by_key(|fde| fde.extent);
        fdes
    }

    fn fde(&self, address: u64) -> Option<Fde> {
        let bytes = self.read(address, 64)?;
        let cie = (address + 4).wrapping_sub(u64::from(u32_at(&bytes, 4)));
        let (pointer_encoding, lsda_encoding) = self.cie(cie)?;
        assert_eq!(pointer_encoding, 0x1b, "FDE pointers are not pc-relative");
        let start = (address + 8).wrapping_add_signed(i64::from(i32_at(&bytes, 8)));
        let size = u64::from(u32_at(&bytes, 12));
        let lsda = match lsda_encoding {
            Some(0x1b) => {
                let value = i32_at(&bytes, 17);
                (value != 0).then(|| (address + 17).wrapping_add_signed(i64::from(value)))
            }
            Some(other) => panic!("LSDA pointer encoding {other:#x}"),
            None => None,
        };
        Some(Fde {
            extent: Extent::new(start, start + size),
            lsda,
        })
    }

    /// Pointer encodings in the FDEs of a CIE.
    fn cie(&self, address: u64) -> Option<(u8, Option<u8>)> {
        let bytes = self.read(address, 48)?;
        let augmentation = &bytes[9..9 + bytes[9..].iter().position(|&b| b == 0)?];
        let mut at = 9 + augmentation.len() + 1;
        let skip_leb = |at: &mut usize| {
            while bytes[*at] & 0x80 != 0 {
                *at += 1;
            }
            *at += 1;
        };
        // Code and data alignment, return address register, length.
        (0..4).for_each(|_| skip_leb(&mut at));
        let (mut pointers, mut lsda) = (0, None);
        for letter in augmentation {
            match letter {
                b'z' => {}
                b'R' => {
                    pointers = bytes[at];
                    at += 1;
                }
                b'L' => {
                    lsda = Some(bytes[at]);
                    at += 1;
                }
                b'P' => at += if bytes[at] & 0xf == 0 { 9 } else { 5 },
                b'S' => {}
                _ => return None,
            }
        }
        Some((pointers, lsda))
    }

    /// The values of all relative relocations: the addresses that the object's data
    /// contains.
    pub fn pointers(&self) -> Vec<u64> {
        self.fixups(true)
            .into_iter()
            .filter_map(|(_, fixup)| match fixup {
                Fixup::Inside(address) => Some(address),
                _ => None,
            })
            .collect()
    }

    /// Relocated places and the values that the loader stores there, for the usual
    /// kinds of relocations; or only for those that need no symbol.
    pub fn fixups(&self, relative_only: bool) -> Vec<(u64, Fixup)> {
        let mut fixups = Vec::new();
        for section in &self.sections {
            let range = section.offset..section.offset + section.size;
            match section.kind {
                SHT_RELA => {
                    for at in range.step_by(24) {
                        let place = u64_at(&self.bytes, at).wrapping_add(self.bias);
                        let symbol = u32_at(&self.bytes, at + 12) as usize;
                        let addend = u64_at(&self.bytes, at + 16);
                        let fixup = match u32_at(&self.bytes, at + 8) {
                            8 | 37 => Fixup::Inside(addend.wrapping_add(self.bias)),
                            _ if relative_only => continue,
                            // R_X86_64_64, GLOB_DAT, JUMP_SLOT
                            1 | 6 | 7 => {
                                let symbols = self.sections[section.link].offset;
                                let value = u64_at(&self.bytes, symbols + 24 * symbol + 8);
                                if value == 0 {
                                    Fixup::Elsewhere
                                } else {
                                    Fixup::Inside(
                                        value.wrapping_add(addend).wrapping_add(self.bias),
                                    )
                                }
                            }
                            16 => Fixup::Module,
                            17 | 18 => Fixup::ThreadOffset,
                            _ => continue,
                        };
                        fixups.push((place, fixup));
                    }
                }
                SHT_RELR => {
                    let mut next = section.address;
                    for at in range.step_by(8) {
                        let word = u64_at(&self.bytes, at);
                        let places: Vec<u64> = if word & 1 == 0 {
                            let place = word.wrapping_add(self.bias);
                            next = place + 8;
                            vec![place]
                        } else {
                            next += 63 * 8;
                            (0..63)
                                .filter(|bit| word >> (bit + 1) & 1 != 0)
                                .map(|bit| next - 63 * 8 + bit * 8)
                                .collect()
                        };
                        for place in places {
                            let bytes = self.read(place, 8).expect("RELR place");
                            let value = u64_at(&bytes, 0).wrapping_add(self.bias);
                            fixups.push((place, Fixup::Inside(value)));
                        }
                    }
                }
                _ => {}
            }
        }
        fixups
    }
}

/// The offsets of the entries of the program or section header table, whose
/// offset is stored at `place` and whose entry size at `entry_size`.
fn table(bytes: &[u8], place: usize, entry_size: usize) -> Vec<usize> {
    let start = u64_at(bytes, place) as usize;
    let size = usize::from(u16_at(bytes, entry_size));
    let count = usize::from(u16_at(bytes, entry_size + 2));
    (0..count).map(|i| start + i * size).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    u32_at(bytes, at) as i32
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}
