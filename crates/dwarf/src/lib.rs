//! Names, types and source lines from debug information (DWARF 2 to 5).
//!
//! - [`DebugInfo::debug`] finds it: in the file, in a
//!   separate file by build id or `.gnu_debuglink`, with dwz's common file and `.dwo` and
//!   `.dwp` files; [`DebugInfo::fetch_debug`] adds what the caller fetches from elsewhere;
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
//! inferred from types; the crate `prologue` follows the first instructions. The exception is Go, whose
//! convention depends on types alone (`go_places`). Names are looked up in
//! `scope` (one function, the blocks that contain the place), then `class` (members) and
//! `globals` (namespaces, units). A variable that an inlined copy does not mention is optimised
//! out there.

mod advised;
mod captured;
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
mod go_globals;
mod go_places;
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
mod relative;
mod returned;
mod scope;
mod sections;
mod setup;
mod text;
mod types;
mod units;
mod unrolled;
mod walk;

pub use error::{
    DebugError, LineError, NotFetched, NotUsed, Onward, Refusal, Tried, VariableError,
};
pub use fetch::{Case, Length, TypedFetch};
use find::{DebugData, Fetch};
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
use std::path::PathBuf;
use std::sync::OnceLock;

/// Debug information of an ELF file.
pub trait DebugInfo {
    /// Returns names, types and source lines, from the file itself, a separate debug file, or one that
    /// was [fetched](DebugInfo::fetch_debug). They are read once, on first use.
    ///
    /// # Errors
    ///
    /// There is no debug information (the error lists the places searched), or it is damaged.
    fn debug(&self) -> Result<Debug<'_>, DebugError>;

    /// Gets the debug information from elsewhere if no file of this machine has it: `fetch` returns
    /// the path of a file for a build id. Only the first call for a file does anything. If it fails,
    /// the error of [`DebugInfo::debug`] has the reason.
    fn fetch_debug(&self, fetch: &mut dyn FnMut(&[u8]) -> Result<PathBuf, NotFetched>);

    /// Returns which functions are inlined where, from files of this machine. Reads the debug
    /// information on each call.
    ///
    /// # Errors
    ///
    /// There is no debug information, or it is damaged.
    fn inlined(&self) -> Result<Inlined, DebugError>;
}

/// Debug information that was read, or why there is none.
type Read = Result<Box<DebugData>, DebugError>;

/// The debug information of one file, by where it came from.
struct Held {
    /// From files of this machine.
    local: Read,
    /// From elsewhere, once it was to be fetched.
    fetched: OnceLock<Read>,
}

impl Held {
    fn of(file: &ObjectFile) -> &Held {
        let read = || Held {
            local: DebugData::read(file, file.debug_directories()).map(Box::new),
            fetched: OnceLock::new(),
        };
        let held = file.debug_slot(read);
        held.expect("this is the only type that is kept there")
    }

    fn fetch(&self, file: &ObjectFile, fetch: &mut Fetch<'_>) {
        let Err(DebugError::None { path, tried, .. }) = &self.local else {
            return;
        };
        self.fetched.get_or_init(|| {
            let fetched = DebugData::fetched(file, file.debug_directories(), fetch);
            fetched.map(Box::new).map_err(|why| DebugError::None {
                path: path.clone(),
                tried: tried.clone(),
                not_fetched: Some(why),
            })
        });
    }
}

impl DebugInfo for ObjectFile {
    fn debug(&self) -> Result<Debug<'_>, DebugError> {
        let held = Held::of(self);
        let data = held.fetched.get().unwrap_or(&held.local);
        let data = data.as_ref().map_err(Clone::clone)?;
        Ok(Debug::new(self, data))
    }

    fn fetch_debug(&self, fetch: &mut dyn FnMut(&[u8]) -> Result<PathBuf, NotFetched>) {
        Held::of(self).fetch(self, fetch);
    }

    fn inlined(&self) -> Result<Inlined, DebugError> {
        Inlined::new(DebugData::read(self, self.debug_directories())?)
    }
}
