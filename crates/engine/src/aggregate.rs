//! Aggregates that the program keeps in session memory: tables, and the rows read from them.

pub mod counting;
pub mod model;
pub mod source;
pub mod table;

pub use model::{Group, Snapshot};
pub use source::Source;
pub use table::AggregateTable;
