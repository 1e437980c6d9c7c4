//! Names, types and source lines from debug information (DWARF 2 to 5).
//!
//! - [`DebugInfo::debug`] finds it: in the file, in a
//!   separate file by build id or `.gnu_debuglink`, with dwz's common file and `.dwo` and
//!   `.dwp` files;
//! - [`Debug::functions`] and [`Debug::line`] turn names and source lines into sites, with
//!   every inlined copy; [`Debug::site`] finds the functions around an address;
//! - [`Debug::fetch`] turns a variable with its path at a site into registers, offsets and a
//!   type; [`Debug::describe`] lists the variables at a site.
//!
//! File contents are not trusted: sizes and depths are bounded, each query may do a bounded amount
//! of work, and unreadable data is an error, never a panic. All addresses are link addresses.
//!
//! Debug information says where a variable is after the function's first instructions have
//! stored it there, and not from which instruction on. The calling convention depends on more
//! than it describes: which C++ classes are passed by the address of a copy, which hidden
//! parameters shift the others, how far an aligned frame is from the caller's. So nothing is
//! inferred from types; the crate `prologue` follows the first instructions. Names are looked up in
//! `scope` (one function, the blocks that contain the place), then `class` (members) and
//! `globals` (namespaces, units). A variable that an inlined copy does not mention is optimised
//! out there.

mod class;
mod convention;
mod ctext;
mod die;
mod early;
mod error;
mod fetch;
mod find;
mod frame;
mod functions;
mod globals;
mod go;
mod index;
mod inlined;
mod known;
mod lines;
mod list;
mod location;
mod names;
mod namespace;
mod origin;
mod passed;
mod path;
mod returned;
mod scope;
mod sections;
mod setup;
mod text;
mod types;
mod units;
mod walk;

pub use error::{DebugError, LineError, NotUsed, Onward, Refusal, Tried, VariableError};
pub use fetch::{Case, Length, TypedFetch};
use find::DebugData;
pub use functions::FunctionPlace;
pub use inlined::Inlined;
pub use lines::LinePlace;
pub use list::Described;
pub use origin::Origin;
pub use passed::ChangedParameters;
pub use returned::{Callers, Returned, ReturnedText};
pub use scope::{Frame, Site};
pub use types::Enumerators;
pub use units::Debug;

use capriole_object::ObjectFile;

/// Debug information of an ELF file.
pub trait DebugInfo {
    /// Returns names, types and source lines, from the file itself or a separate debug file. They
    /// are read once, on first use.
    ///
    /// # Errors
    ///
    /// There is no debug information (the error lists the places searched), or it is damaged.
    fn debug(&self) -> Result<Debug<'_>, DebugError>;

    /// Returns which functions are inlined where. Reads the debug information on each call.
    ///
    /// # Errors
    ///
    /// There is no debug information, or it is damaged.
    fn inlined(&self) -> Result<Inlined, DebugError>;
}

impl DebugInfo for ObjectFile {
    fn debug(&self) -> Result<Debug<'_>, DebugError> {
        let read = || DebugData::read(self, self.debug_directories()).map(Box::new);
        let slot = self.debug_slot::<Result<Box<DebugData>, DebugError>>(read);
        let data = slot.expect("this is the only type that is kept there");
        let data = data.as_ref().map_err(Clone::clone)?;
        Ok(Debug::new(self, data))
    }

    fn inlined(&self) -> Result<Inlined, DebugError> {
        Inlined::new(DebugData::read(self, self.debug_directories())?)
    }
}
