//! What functions in call stacks are called in reports that take many of them together.

use crate::callstack::{CallStacks, End, Frame};

use super::file_name;

/// A backtrace, as the numbers of its calls, the innermost first, and why there are no more,
/// if that is not because the program begins there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Way {
    pub calls: Vec<usize>,
    pub cut: Option<End>,
}

/// The names of the functions of all ways of a trace.
pub(super) struct Names {
    stacks: CallStacks,
}

impl Names {
    pub(super) fn new(stacks: CallStacks) -> Names {
        Names { stacks }
    }

    /// The functions of a way, the outermost first.
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

/// The function's name, or else that of its file in brackets.
fn name(frame: &Frame) -> String {
    match (&frame.symbol, &frame.object) {
        (Some(symbol), _) => symbol.clone(),
        (None, Some(object)) => format!("[{}]", file_name(object)),
        (None, None) => "[unknown]".to_string(),
    }
}
