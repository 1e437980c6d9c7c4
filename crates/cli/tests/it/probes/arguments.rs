//! Handlers with a function's own parameters, and functions in the place of others.

use super::parts;

parts!("probes_arguments.c":
    arguments,
    argument_errors,
    replacements,
    replaced_and_probed,
    under_load,
);
