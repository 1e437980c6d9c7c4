//! Names of functions for reports that merge many call stacks.

use crate::callstack::{Backtrace, CallStacks, End, Frame};

use crate::shown::file_name;

/// Returns the functions of a call path, outermost first.
pub(super) fn functions(stacks: &CallStacks, way: &Backtrace) -> Vec<String> {
    let cut = match way.end {
        End::Outermost => None,
        End::Truncated => Some("[truncated]".to_string()),
        End::Unknown => Some("[unknown caller]".to_string()),
    };
    let calls = way.calls.iter().rev();
    let frames = calls.flat_map(|call| stacks.call(*call).iter().rev());
    cut.into_iter().chain(frames.map(name)).collect()
}

/// Returns the function's name, or the place where it begins if it has none. If no function is known,
/// returns the file's name in brackets.
fn name(frame: &Frame) -> String {
    let name = frame.symbol.clone().or_else(|| frame.place());
    name.unwrap_or_else(|| match &frame.object {
        Some(object) => format!("[{}]", file_name(object)),
        None => "[unknown]".to_string(),
    })
}
