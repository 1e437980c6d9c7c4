//! The canonical frame address at an instruction (DWARF 5, chapter 6.4): the value of the stack
//! pointer before the call.

use capriole_prologue::registers::general;
use capriole_prologue::{Start, Sum};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, Operation, UnwindContext, UnwindSection,
};

use super::units::{Bytes, Debug, slice};

impl Debug<'_> {
    /// Returns the formula for the canonical frame address at an instruction, from `.eh_frame` or
    /// `.debug_frame`. `None` if there is none, or if it needs more than registers, reads and
    /// offsets.
    pub(super) fn cfa(&self, address: u64) -> Option<Sum> {
        if let Some(known) = self.frames.borrow().get(&address) {
            return known.clone();
        }
        let found = self.find_cfa(address);
        self.frames.borrow_mut().insert(address, found.clone());
        found
    }

    fn find_cfa(&self, address: u64) -> Option<Sum> {
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
    ) -> Option<Sum> {
        let mut entries = section.entries(bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            // Skip an entry that cannot be read.
            let Ok(fde) = partial.parse(S::cie_from_offset) else {
                continue;
            };
            if !fde.contains(address) {
                continue;
            }
            let mut context = UnwindContext::new();
            let row = fde.unwind_info_for_address(section, bases, &mut context, address);
            let row = row.ok()?;
            let expression = match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => {
                    let register = general(register.0)?;
                    return Some(Sum::of(Start::Register(register)).shift(*offset));
                }
                CfaRule::Expression(expression) => expression.get(section).ok()?,
            };
            // If a function aligned the stack, GCC keeps the address in the frame.
            let mut found: Option<Sum> = None;
            let mut operations = expression.operations(fde.cie().encoding());
            while let Some(operation) = operations.next().ok()? {
                found = Some(match (found, operation) {
                    (
                        None,
                        Operation::RegisterOffset {
                            register, offset, ..
                        },
                    ) => Sum::of(Start::Register(general(register.0)?)).shift(offset),
                    (Some(sum), Operation::PlusConstant { value }) => sum.shift(value as i64),
                    (
                        Some(sum),
                        Operation::Deref {
                            size: 8,
                            space: false,
                            ..
                        },
                    ) => sum.read()?,
                    _ => return None,
                });
            }
            return found;
        }
        None
    }
}
