//! The canonical frame address at an instruction (DWARF 5, chapter 6.4): what the stack
//! pointer was before the call.

use gimli::{BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, UnwindContext, UnwindSection};

use super::units::{Bytes, Debug, slice};

/// The canonical frame address is a register plus an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cfa {
    pub register: gimli::Register,
    pub offset: i64,
}

impl Debug<'_> {
    /// How to get the canonical frame address at an instruction, from `.eh_frame` or
    /// `.debug_frame`; `None` if they do not say, or only by a calculation.
    pub(super) fn cfa(&self, address: u64) -> Option<Cfa> {
        if let Some(known) = self.frames.borrow().get(&address) {
            return *known;
        }
        let found = self.find_cfa(address);
        self.frames.borrow_mut().insert(address, found);
        found
    }

    fn find_cfa(&self, address: u64) -> Option<Cfa> {
        let eh = self.data.eh_frame.as_ref().and_then(|(start, bytes)| {
            let mut section = EhFrame::from(slice(bytes));
            section.set_address_size(8);
            let bases = BaseAddresses::default().set_eh_frame(*start);
            self.row(&section, &bases, address)
        });
        eh.or_else(|| {
            let mut section = DebugFrame::from(slice(&self.data.debug_frame));
            section.set_address_size(8);
            self.row(&section, &BaseAddresses::default(), address)
        })
    }

    fn row<'b, S: UnwindSection<Bytes<'b>>>(
        &self,
        section: &S,
        bases: &BaseAddresses,
        address: u64,
    ) -> Option<Cfa> {
        let mut entries = section.entries(bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            // An entry that cannot be read is not the one.
            let Ok(fde) = partial.parse(S::cie_from_offset) else {
                continue;
            };
            if !fde.contains(address) {
                continue;
            }
            let mut context = UnwindContext::new();
            let row = fde.unwind_info_for_address(section, bases, &mut context, address);
            return match row.ok()?.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => Some(Cfa {
                    register: *register,
                    offset: *offset,
                }),
                CfaRule::Expression(_) => None,
            };
        }
        None
    }
}
