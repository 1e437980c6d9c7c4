//! Functions and exception landing pads, from the call frame information.
//!
//! `.eh_frame` (LSB core specification, chapter 10) holds one entry (FDE) for every function
//! that a compiler emitted, or that a careful assembly programmer annotated, even in stripped
//! files.

use std::collections::HashMap;

use capriole_insn::{Extent, landing_pads};
use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, LittleEndian, UnwindSection};

use super::ObjectProblem;
use super::elf::Headers;
use super::source::Source;

const DAMAGED: ObjectProblem = ObjectProblem::Damaged("bad call frame information (.eh_frame)");

/// One entry of the call frame information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Link addresses that the entry covers: a function, or the cold part of one.
    pub extent: Extent,
    /// Link address of the description of its exception handlers, if any.
    pub(crate) lsda: Option<Lsda>,
}

impl Frame {
    /// True if the entry describes exception handlers.
    #[must_use]
    pub fn has_handlers(&self) -> bool {
        self.lsda.is_some()
    }
}

/// Location of the language-specific data of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lsda {
    At(u64),
    /// The address is filled in only by the loader.
    Unknown,
}

/// Addresses where exceptions continue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LandingPads {
    /// Link addresses, ascending.
    pub addresses: Vec<u64>,
    /// Functions whose handler tables could not be parsed: any address in them may be a landing
    /// pad.
    pub unknown: Vec<Extent>,
}

/// Reads all entries, by start address. An object without `.eh_frame` has none.
pub(crate) fn read_frames(source: &Source, headers: &Headers) -> Result<Vec<Frame>, ObjectProblem> {
    let Some((address, bytes)) = eh_frame(source, headers)? else {
        return Ok(Vec::new());
    };
    let section = EhFrame::new(&bytes, LittleEndian);
    let bases = BaseAddresses::default()
        .set_eh_frame(address)
        .set_text(headers.section(".text").map_or(0, |s| s.address))
        .set_got(headers.section(".got").map_or(0, |s| s.address));
    let mut cies = HashMap::new();
    let mut frames = Vec::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().map_err(|_| DAMAGED)? {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial
            .parse(|section, bases, offset| {
                if let Some(cie) = cies.get(&offset) {
                    return Ok(gimli::CommonInformationEntry::clone(cie));
                }
                let cie = section.cie_from_offset(bases, offset)?;
                cies.insert(offset, cie.clone());
                Ok(cie)
            })
            .map_err(|_| DAMAGED)?;
        // Skip the code to which signal handlers return. Its entry begins a byte early, so that
        // unwinders, which look up the return address minus one, find it (glibc's `__restore_rt`).
        // Decoding from there yields instructions other than those executed.
        if fde.is_signal_trampoline() {
            continue;
        }
        let start = fde.initial_address();
        // For a function that the linker dropped, an entry at address 0 remains.
        let Some(end) = start.checked_add(fde.len()).filter(|_| start != 0) else {
            continue;
        };
        if start < end {
            let lsda = fde.lsda().map(|pointer| match pointer {
                gimli::Pointer::Direct(address) => Lsda::At(address),
                gimli::Pointer::Indirect(_) => Lsda::Unknown,
            });
            frames.push(Frame {
                extent: Extent { start, end },
                lsda: lsda.filter(|&lsda| lsda != Lsda::At(0)),
            });
        }
    }
    frames.sort_by_key(|frame| (frame.extent.start, frame.extent.end));
    Ok(frames)
}

/// Returns the link address and the bytes of `.eh_frame`, found by its section or, in a file
/// without section headers, by the pointer in `.eh_frame_hdr`.
pub(crate) fn eh_frame(
    source: &Source,
    headers: &Headers,
) -> Result<Option<(u64, Vec<u8>)>, ObjectProblem> {
    if let Some(section) = headers.section(".eh_frame") {
        if !section.in_file() {
            return Ok(None);
        }
        let bytes = source.read(section.offset, section.size)?;
        return Ok(Some((section.address, bytes)));
    }
    let Some((address, size)) = headers.eh_frame_hdr else {
        return Ok(None);
    };
    let offset = headers.offset_of(address).ok_or(DAMAGED)?;
    let bytes = source.read(offset, size)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(address);
    let header = EhFrameHdr::new(&bytes, LittleEndian)
        .parse(&bases, 8)
        .map_err(|_| DAMAGED)?;
    let start = header.eh_frame_ptr().direct().map_err(|_| DAMAGED)?;
    // The length is not recorded: the table ends with an entry of length zero.
    let segment = headers
        .segments
        .iter()
        .find(|s| s.offset_of(start).is_some())
        .ok_or(DAMAGED)?;
    let end = segment.address + segment.file_size;
    let offset = segment.offset_of(start).ok_or(DAMAGED)?;
    Ok(Some((start, source.read(offset, end - start)?)))
}

/// Reads the landing pads of all `frames`.
pub(crate) fn read_landing_pads(
    source: &Source,
    headers: &Headers,
    frames: &[Frame],
) -> LandingPads {
    let mut tables = Tables::new(source, headers);
    let mut pads = LandingPads::default();
    for frame in frames {
        let Some(lsda) = frame.lsda else { continue };
        let found = match lsda {
            Lsda::At(address) => tables
                .at(address)
                .and_then(|bytes| landing_pads(bytes, address, frame.extent.start).ok()),
            Lsda::Unknown => None,
        };
        match found {
            Some(found) => pads.addresses.extend(found),
            None => pads.unknown.push(frame.extent),
        }
    }
    pads.addresses.sort_unstable();
    pads.addresses.dedup();
    pads
}

/// The sections that contain exception handler tables, each read once.
struct Tables<'a> {
    source: &'a Source,
    headers: &'a Headers,
    read: Vec<(u64, Vec<u8>)>,
    /// Number of bytes that may still be read: in a damaged file, any number of sections may cover
    /// the same bytes.
    left: u64,
}

impl<'a> Tables<'a> {
    fn new(source: &'a Source, headers: &'a Headers) -> Self {
        Tables {
            source,
            headers,
            read: Vec::new(),
            left: source.len().saturating_mul(2),
        }
    }

    /// Returns the bytes from link address `address` to the end of its section.
    fn at(&mut self, address: u64) -> Option<&[u8]> {
        let known = self.read.iter().position(|(start, bytes)| {
            address
                .checked_sub(*start)
                .is_some_and(|at| at < bytes.len() as u64)
        });
        let index = match known {
            Some(index) => index,
            None => {
                let table = self.load(address)?;
                self.read.push(table);
                self.read.len() - 1
            }
        };
        let (start, bytes) = &self.read[index];
        bytes.get(usize::try_from(address - start).ok()?..)
    }

    fn load(&mut self, address: u64) -> Option<(u64, Vec<u8>)> {
        let (source, headers) = (self.source, self.headers);
        let section = headers
            .sections
            .iter()
            .find(|s| s.allocated && s.in_file() && s.contains(address))
            .map(|s| (s.address, s.offset, s.size));
        let segment = || {
            let segments = headers.segments.iter();
            let found = segments
                .into_iter()
                .find(|s| s.offset_of(address).is_some());
            found.map(|s| (s.address, s.offset, s.file_size))
        };
        let (start, offset, size) = section.or_else(segment)?;
        self.left = self.left.checked_sub(size)?;
        Some((start, source.read(offset, size).ok()?))
    }
}
