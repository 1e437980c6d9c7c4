//! Aggregates that the program keeps in session memory: tables, and the rows read from them.

pub mod counting;
pub mod model;
pub mod source;
pub mod table;

pub use model::{Bucket, Group, Histogram, Measure, Row, Snapshot};
pub use source::Source;
pub use table::AggregateTable;
