//! Calls and handlers on several stacks.

use super::parts;

parts!("probes_stacks.c":
    left_by_jumps,
    missed_once,
    coroutines,
    signal_stack_above,
    left_calls,
);
