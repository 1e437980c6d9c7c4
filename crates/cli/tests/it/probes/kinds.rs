//! States, arrays and places, which probes of all kinds have.

use super::parts;

parts!("probes_kinds.c":
    enabled_and_disabled,
    enabled_in_the_middle,
    arrays_of_returns,
    arguments,
    replacements,
    places,
    lists,
    list_errors,
    original_after_the_end,
    indirect,
    held_no_longer,
    come_and_go,
    come_and_go_in_turns,
    occupied,
    flags_of_posts,
    written_at_once,
);
