//! Data that a report keeps for open calls.

use std::collections::HashMap;

/// A value for each open call that the report shows, by stack.
#[derive(Debug)]
pub(super) struct Open<T> {
    stacks: HashMap<u64, Vec<T>>,
}

impl<T> Open<T> {
    pub(super) fn new() -> Open<T> {
        Open {
            stacks: HashMap::new(),
        }
    }

    /// Adds a call that begins on a stack.
    pub(super) fn push(&mut self, stack: u64, call: T) {
        self.stacks.entry(stack).or_default().push(call);
    }

    /// Removes and returns the innermost call of a stack when it ends.
    pub(super) fn pop(&mut self, stack: u64) -> Option<T> {
        let open = self.stacks.get_mut(&stack)?;
        let call = open.pop();
        if open.is_empty() {
            self.stacks.remove(&stack);
        }
        call
    }

    /// Returns the calls of a stack, outermost first.
    pub(super) fn of(&mut self, stack: u64) -> &mut [T] {
        self.stacks.get_mut(&stack).map_or(&mut [], |open| open)
    }
}
