//! Traces as text: one line for each event, or one table.

mod backtraces;
mod call_summary;
mod callers;
mod escape;
mod flame;
mod graph;
mod graph_json;
mod line;
mod lines_json;
mod lines_text;
mod marker_text;
mod open;
mod printf;
mod stack_callers;
mod stack_flame;
mod stack_names;
mod summary;
mod symbols;
mod table;
mod tasks;

pub mod calls;
pub mod callstack;

use std::io;

pub use call_summary::{CallSummary, FunctionSummary, Order};
pub use callers::{Callers, Edge, FunctionCallers};
pub use escape::{put_escaped, put_json};
pub use flame::{Flame, FlameBy, FoldedStack};
pub use graph::{GraphOptions, write_graph};
pub use graph_json::write_graph_json;
pub use lines_json::write_json_lines;
pub use lines_text::{TextOptions, write_text};
pub use stack_callers::{EventEdge, FunctionEvents, StackCallers};
pub use stack_flame::{EventStack, StackFlame};
pub use summary::{EventSummary, Summary};

use capriole_trace::Event;
use capriole_trace::TraceError;
use capriole_trace::{CallStack, Value};
use capriole_trace::{Document, EventInfo, FieldInfo};

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

/// True if a field is shown in the line of its event. Others, such as `_sp`, are only needed to
/// interpret the trace; call stacks have separate lines.
fn is_shown(field: &FieldInfo) -> bool {
    !field.name.starts_with('_') && !field.field_type.is_call_stack()
}

/// True if events of a trace have call stacks.
pub fn has_call_stacks(document: &Document) -> bool {
    with_call_stacks(document).is_some()
}

/// Returns, for each event by index, true if it has a call stack; `None` if no event has one.
fn with_call_stacks(document: &Document) -> Option<Vec<bool>> {
    let has = |event: &EventInfo| event.fields.iter().any(|f| f.field_type.is_call_stack());
    let all: Vec<bool> = document.events.iter().map(has).collect();
    all.contains(&true).then_some(all)
}

/// Returns the call stack of an event.
fn call_stack<'a>(event: &Event<'a>) -> Option<CallStack<'a>> {
    event.fields().find_map(|value| match value {
        Value::CallStack(stack) => Some(stack),
        _ => None,
    })
}

/// Returns the file name, the last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod fixtures {
    use capriole_trace::{EventInfo, FieldInfo, Role};

    /// Makes an event with fields of these types.
    pub(crate) fn event(id: u32, types: &[&str]) -> EventInfo {
        let field = |text: &&str| FieldInfo {
            name: text.to_string(),
            field_type: text.parse().unwrap(),
        };
        EventInfo {
            id,
            name: String::new(),
            symbol: None,
            symbol_offset: 0,
            object: String::new(),
            build_id: None,
            offset: 0,
            address: 0,
            fields: types.iter().map(field).collect(),
            faults: false,
            tactic: String::new(),
            refusals: Vec::new(),
            role: Role::Point,
            call: None,
            format: None,
        }
    }
}
