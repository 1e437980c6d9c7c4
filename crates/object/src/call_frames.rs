//! Call frame information, used to determine whether a function is entered by a call.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameOffset, LittleEndian, RegisterRule,
    UnwindContext, UnwindSection, X86_64,
};

use super::elf::Headers;
use super::source::Source;
use super::unwind::eh_frame;

/// The entries of `.eh_frame`, for lookup by address.
#[derive(Debug)]
pub(crate) struct CallFrames {
    address: u64,
    bytes: Vec<u8>,
    /// Start and end link address and offset of each entry.
    entries: Vec<(u64, u64, EhFrameOffset)>,
}

impl CallFrames {
    /// Finds all entries; in a damaged section, those before the damage.
    pub(crate) fn read(source: &Source, headers: &Headers) -> CallFrames {
        let (address, bytes) = match eh_frame(source, headers) {
            Ok(Some(found)) => found,
            Ok(None) | Err(_) => (0, Vec::new()),
        };
        let mut frames = CallFrames {
            address,
            bytes,
            entries: Vec::new(),
        };
        let section = EhFrame::new(&frames.bytes, LittleEndian);
        let bases = frames.bases();
        let mut all = section.entries(&bases);
        let mut entries = Vec::new();
        while let Ok(Some(entry)) = all.next() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else {
                continue;
            };
            let start = fde.initial_address();
            if let Some(end) = start.checked_add(fde.len()).filter(|_| start != 0) {
                entries.push((start, end, EhFrameOffset(fde.offset())));
            }
        }
        entries.sort_unstable_by_key(|(start, end, _)| (*start, *end));
        frames.entries = entries;
        frames
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.address)
    }

    /// Returns true if the return address is on top of the stack at a link address. `None` if no
    /// entry covers the address.
    pub(crate) fn is_called(&self, address: u64) -> Option<bool> {
        let next = self.entries.partition_point(|entry| entry.0 <= address);
        let (_, end, offset) = self.entries[..next].last()?;
        if address >= *end {
            return None;
        }
        let section = EhFrame::new(&self.bytes, LittleEndian);
        let bases = self.bases();
        let fde = section.fde_from_offset(&bases, *offset, EhFrame::cie_from_offset);
        let fde = fde.ok()?;
        if fde.is_signal_trampoline() {
            return Some(false);
        }
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&section, &bases, &mut context, address);
        let row = row.ok()?;
        let on_top = matches!(
            row.cfa(),
            CfaRule::RegisterAndOffset { register, offset: 8 } if *register == X86_64::RSP
        );
        let saved = matches!(row.register(X86_64::RA), Some(RegisterRule::Offset(-8)));
        Some(on_top && saved)
    }
}
