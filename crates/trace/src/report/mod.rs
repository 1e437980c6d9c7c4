//! Traces as text: every event a line, or one table.

mod call_summary;
mod callers;
mod escape;
mod flame;
mod graph;
mod graph_json;
mod line;
mod lines_json;
mod lines_text;
mod open;
mod summary;
mod symbols;
mod table;
mod tasks;

use std::io;

pub use call_summary::{CallSummary, FunctionSummary, Order};
pub use callers::{Callers, Edge, FunctionCallers};
pub use escape::{put_escaped, put_json};
pub use flame::{Flame, FlameBy, FoldedStack};
pub use graph::{GraphOptions, write_graph};
pub use graph_json::write_graph_json;
pub use lines_json::write_json_lines;
pub use lines_text::write_text;
pub use summary::{EventSummary, Summary};

use crate::damage::TraceError;
use crate::document::FieldInfo;

/// Why a report stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The report cannot be written. A reader that went away (`BrokenPipe`) is no fault.
    #[error("cannot write the report: {0}")]
    Output(#[from] io::Error),
}

/// Whether a field is for people. Others are there for reading the trace, such as `_sp`.
fn is_shown(field: &FieldInfo) -> bool {
    !field.name.starts_with('_')
}

/// The last part of a path: the file's name.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
