//! Names of functions for reports that merge many call stacks.

use crate::callstack::{Backtrace, CallStacks, End, Frame};

/// Returns the functions of a call path, outermost first.
pub(super) fn functions(stacks: &CallStacks, way: &Backtrace) -> Vec<String> {
    let cut = match way.end {
        End::Outermost => None,
        End::Truncated => Some("[truncated]".to_string()),
        End::Unknown => Some("[unknown caller]".to_string()),
    };
    let calls = way.calls.iter().rev();
    let frames = calls.flat_map(|call| stacks.call(*call).iter().rev());
    cut.into_iter().chain(frames.map(Frame::name)).collect()
}
