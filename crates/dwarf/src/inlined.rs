//! Functions inlined at an address: a backtrace shows them in addition to real calls.

use std::fmt;
use std::sync::Arc;

use gimli::{Dwarf, DwarfSections, EndianArcSlice, LittleEndian};

use super::error::DebugError;
use super::find::DebugData;
use capriole_object::symbols::display;

type Slice = EndianArcSlice<LittleEndian>;

/// Debug information for repeated queries of inlined functions.
pub struct Inlined(addr2line::Context<Slice>);

impl fmt::Debug for Inlined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inlined")
    }
}

impl Inlined {
    pub(crate) fn new(data: DebugData) -> Result<Inlined, DebugError> {
        let dwarf = |sections: DwarfSections<Vec<u8>>| -> Dwarf<Slice> {
            sections.borrow(|bytes| Slice::new(Arc::from(bytes.as_slice()), LittleEndian))
        };
        let mut main = dwarf(data.main);
        if let Some(supplement) = data.supplement {
            main.set_sup(dwarf(supplement));
        }
        addr2line::Context::from_dwarf(main)
            .map(Inlined)
            .map_err(|_| DebugError::Damaged("bad table of units"))
    }

    /// Returns the demangled names of the functions inlined at a link address, innermost first.
    /// The last is the function that they are inlined into. Empty if unknown.
    #[must_use]
    pub fn at(&self, link_address: u64) -> Vec<String> {
        let mut names = Vec::new();
        // Split debug information is not loaded.
        let Ok(mut frames) = self.0.find_frames(link_address).skip_all_loads() else {
            return names;
        };
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.as_ref();
            let name = function.and_then(|f| f.raw_name().ok().map(|n| display(&n).into_owned()));
            names.push(name.unwrap_or_else(|| "??".to_string()));
        }
        names
    }
}
