//! Programs that their helpers cannot stop.

use super::parts;

parts!("probes_unstopped.c":
    filtered,
    filtered_by_death,
    filtered_by_signal,
    debugged,
    debugged_later,
    started_before,
    forked,
);
