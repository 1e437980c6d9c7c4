//! Programs that set actions of SIGTRAP while breakpoints are in them.

use super::parts;

parts!("probes_signals.c":
    actions,
    meanwhile,
    faults,
);
