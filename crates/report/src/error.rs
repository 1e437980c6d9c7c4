//! Reasons why a report stops.

use capriole_trace::TraceError;
use std::io;

/// Reason why a report stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The report cannot be written. A reader that has exited (`BrokenPipe`) is not treated as a
    /// fault.
    #[error("cannot write the report: {0}")]
    Output(#[from] io::Error),
}
