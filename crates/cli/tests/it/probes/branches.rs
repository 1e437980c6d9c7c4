//! Post-handlers of jumps, calls and returns.
//!
//! The long form of the load, 100,000 cycles:
//!
//! ```text
//! CAPRIOLE_LONG=1 cargo test --release -p capriole-cli --test it probes::branches:: -- --nocapture
//! ```

use super::{PATIENCE, command, output_within, parts, program, well};
use crate::target::rounds;

parts!("probes_branches.c":
    jumps,
    breakpoints,
    posts_only,
    vectors,
    changes,
    skipped,
    several,
    missed,
    faulting,
    fatal,
    handler_faults,
    forked,
    behind_landing_pads,
    refused,
    with_return_probes,
    backtraces,
);

/// Four threads, each with a thousand signals a second, go through branches whose probes come and go.
#[test]
fn load() {
    let Some(program) = program("probes_branches.c") else {
        return;
    };
    let cycles = rounds(300, 100_000);
    let seed = std::env::var("CAPRIOLE_SEED").unwrap_or_else(|_| "1".to_owned());
    let patience = PATIENCE * if cycles > 1000 { 200 } else { 1 };
    let mut command = command(&program, &["load", &seed, &cycles.to_string()]);
    println!("{}", well(&output_within(&mut command, patience)));
}
