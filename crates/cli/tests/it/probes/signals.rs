//! Programs that set actions of SIGTRAP, and handlers of faults, while probes are in them.

use super::parts;

parts!("probes_signals.c":
    alignment,
    actions,
    meanwhile,
    faults,
    faults_later,
);
