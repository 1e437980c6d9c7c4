//! Parts of events that reports show, or need.

use capriole_trace::{CallStack, Document, Event, EventInfo, FieldInfo, Value};

/// True if a field is shown in the line of its event. Others, such as `_sp`, are only needed to
/// interpret the trace; call stacks have separate lines.
pub(crate) fn is_shown(field: &FieldInfo) -> bool {
    !field.name.starts_with('_') && !field.field_type.is_call_stack()
}

/// True if events of a trace have call stacks.
pub fn has_call_stacks(document: &Document) -> bool {
    with_call_stacks(document).is_some()
}

/// Returns, for each event by index, true if it has a call stack; `None` if no event has one.
pub(crate) fn with_call_stacks(document: &Document) -> Option<Vec<bool>> {
    let has = |event: &EventInfo| event.fields.iter().any(|f| f.field_type.is_call_stack());
    let all: Vec<bool> = document.events.iter().map(has).collect();
    all.contains(&true).then_some(all)
}

/// Returns the call stack of an event.
pub(crate) fn call_stack<'a>(event: &Event<'a>) -> Option<CallStack<'a>> {
    event.fields().find_map(|value| match value {
        Value::CallStack(stack) => Some(stack),
        _ => None,
    })
}

/// Returns the file name, the last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
