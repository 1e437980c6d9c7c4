//! Aggregates that the program keeps in session memory: tables, and the rows read from them.

pub mod maps;
pub mod model;
pub mod source;
pub mod table;
pub mod totals;

pub use maps::{Maps, Own};
pub use model::{
    Bucket, Chain, ChainEnd, ChainFunction, Exact, Group, Histogram, Intervals, Measure, Row,
    Snapshot,
};
pub use source::Source;
pub use table::{AggregateTable, Keys};
