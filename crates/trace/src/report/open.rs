//! What a report keeps of the calls that are open.

use std::collections::HashMap;

/// Something for each open call, by stack; of those that the report shows.
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

    /// A call begins on a stack.
    pub(super) fn push(&mut self, stack: u64, call: T) {
        self.stacks.entry(stack).or_default().push(call);
    }

    /// The innermost call of a stack ends.
    pub(super) fn pop(&mut self, stack: u64) -> Option<T> {
        let open = self.stacks.get_mut(&stack)?;
        let call = open.pop();
        if open.is_empty() {
            self.stacks.remove(&stack);
        }
        call
    }

    /// The calls of a stack, the outermost first.
    pub(super) fn of(&mut self, stack: u64) -> &mut [T] {
        self.stacks.get_mut(&stack).map_or(&mut [], |open| open)
    }
}
