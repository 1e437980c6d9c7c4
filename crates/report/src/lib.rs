//! Traces as text: one line for each event, or one table.

mod backtraces;
mod call_summary;
mod callers;
mod comparison;
mod error;
mod escape;
mod flame;
mod folded;
mod graph;
mod graph_json;
mod line;
mod lines_json;
mod lines_text;
mod marker_text;
mod open;
mod printf;
mod shown;
mod stack_callers;
mod stack_flame;
mod stack_names;
mod summary;
mod symbols;
mod table;
mod tasks;

pub mod calls;
pub mod callstack;

pub use call_summary::{CallSummary, FunctionSummary, Order};
pub use callers::{Callers, Edge, FunctionCallers};
pub use capriole_object::symbols::shown::Form;
pub use comparison::{Compared, Comparison, FunctionComparison};
pub use error::ReportError;
pub use escape::{put_escaped, put_json};
pub use flame::{Flame, FlameBy, FoldedStack};
pub use folded::Folded;
pub use graph::{GraphOptions, write_graph};
pub use graph_json::write_graph_json;
pub use lines_json::write_json_lines;
pub use lines_text::{TextOptions, put_descriptor, write_text};
pub use shown::has_call_stacks;
pub use stack_callers::{EventEdge, FunctionEvents, StackCallers};
pub use stack_flame::{EventStack, StackFlame};
pub use summary::{EventSummary, Summary};

#[cfg(test)]
mod fixtures {
    use capriole_trace::{EventInfo, FieldInfo, Role};

    /// Makes an event with fields of these types.
    pub(crate) fn event(id: u32, types: &[&str]) -> EventInfo {
        let field = |text: &&str| FieldInfo::new(text.to_string(), text.parse().unwrap());
        EventInfo {
            id,
            name: String::new(),
            symbol: None,
            symbol_offset: 0,
            object: String::new(),
            soname: None,
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
