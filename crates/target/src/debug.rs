//! Names, types and source lines from debug information (DWARF 2 to 5).
//!
//! - [`ObjectFile::debug`](crate::object::ObjectFile::debug) finds it: in the file, in a
//!   separate file by build id or `.gnu_debuglink`, with dwz's common file and `.dwo` and
//!   `.dwp` files;
//! - [`Debug::functions`] and [`Debug::line`] turn names and source lines into sites, with
//!   every inlined copy; [`Debug::site`] finds the functions around an address;
//! - [`Debug::fetch`] turns a variable with its path at a site into registers, offsets and a
//!   type; [`Debug::describe`] lists the variables at a site.
//!
//! File contents are not trusted: sizes and depths are bounded, each query may do a bounded amount
//! of work, and unreadable data is an error, never a panic. All addresses are link addresses.

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
mod lines;
mod list;
mod location;
mod namespace;
mod origin;
mod path;
mod place;
mod prologue;
mod returned;
mod scope;
mod sections;
mod setup;
mod types;
mod units;
mod walk;

pub use error::{DebugError, LineError, NotUsed, Onward, Refusal, Tried, VariableError};
pub use fetch::TypedFetch;
pub(crate) use find::{DIRECTORIES, DebugData};
pub use functions::FunctionPlace;
pub use inlined::Inlined;
pub use lines::LinePlace;
pub use list::Described;
pub use origin::Origin;
pub use returned::Returned;
pub use scope::{Frame, Site};
pub use units::Debug;
