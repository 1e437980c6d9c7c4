//! Nothing of the program changes at a hit but what handlers change.

use super::parts;

parts!("probes_registers.c":
    breakpoints,
    jumps,
    breakpoints_and_posts,
    jumps_and_posts,
    posts_only,
    readers,
    vectors_found,
    vectors_saved,
    vectors_not_saved,
    changed,
);
