//! Names of functions for reports that merge many call stacks.

use crate::callstack::{CallStacks, End, Frame};

use crate::shown::file_name;

/// A call path: the numbers of a backtrace's calls, innermost first, and the reason why it is
/// cut off, unless it reaches the outermost call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Way {
    pub calls: Vec<usize>,
    pub cut: Option<End>,
}

/// The names of the functions in all call paths of a trace.
pub(super) struct Names {
    stacks: CallStacks,
}

impl Names {
    pub(super) fn new(stacks: CallStacks) -> Names {
        Names { stacks }
    }

    /// Returns the functions of a call path, outermost first.
    pub(super) fn of(&self, way: &Way) -> Vec<String> {
        let cut = match way.cut {
            None | Some(End::Outermost) => None,
            Some(End::Truncated) => Some("[truncated]".to_string()),
            Some(End::Unknown) => Some("[unknown caller]".to_string()),
        };
        let calls = way.calls.iter().rev();
        let frames = calls.flat_map(|call| self.stacks.call(*call).iter().rev());
        cut.into_iter().chain(frames.map(name)).collect()
    }
}

/// Returns the function's name, or its file's name in brackets if the function has none.
fn name(frame: &Frame) -> String {
    match (&frame.symbol, &frame.object) {
        (Some(symbol), _) => symbol.clone(),
        (None, Some(object)) => format!("[{}]", file_name(object)),
        (None, None) => "[unknown]".to_string(),
    }
}
