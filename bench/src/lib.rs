//! Measurement for `capriole bench hit`: the cost of one call of an empty function, in nanoseconds,
//! when it is traced in different ways.
//! A bench *target* (this program, executed again by its hidden subcommand, which calls
//! [`target_main`]) holds many copies of one empty function ([`Function`]) and a loop that calls
//! any of them. [`run_hit`] starts it, arms a [`Probe`] on a copy, has the loop run, removes the
//! probe and goes on to the next [`Row`], round after round, so that a change in the machine's
//! speed affects all rows alike.
//! The `floor` rows are the reference for Capriole: the same work written by hand in assembly,
//! reached by the same single jump (see [`floor`]). The `kernel` rows use the kernel's tracing (see
//! [`kernel`]). Everything else to be measured is passed in as a [`Probe`].
//!
//! | module | about |
//! | --- | --- |
//! | [`function`] | the copies of the empty function, and the loop around them |
//! | [`floor`] | the records and counts written by hand |
//! | [`target`] | the bench target: commands on its standard input |
//! | [`process`] | starting the bench target and sending those commands |
//! | [`single`] | calls timed one by one |
//! | [`kernel`] | the rows measured with the kernel's tracing |
//! | [`peers`] | other tools, each with a program of its own |
//! | [`runner`] | rounds, calibration, checks of the hit counts |
//! | [`marker`] | loops around static markers, and bytes that markers add to object files |
//! | [`probing`] | a program that probes itself, and a classical implementation of probes |
//! | [`report`] | results as JSON and as a table |
//! | [`mod@chart`] | results as an SVG chart |
//! `capriole bench attach` and `capriole bench program` probe whole programs: one with very many
//! functions, and real ones with work to do.
//!
//! | module | about |
//! | --- | --- |
//! | [`crowd`] | a program with 40,000 functions, generated and compiled |
//! | [`workload`] | CPython and SQLite with a fixed amount of work |
//! | [`server`] | a node server that sends requests to itself |
//! | [`talk`] | commands to a program, and its answers |
//! | [`scratch`] | a temporary directory |
//! | [`spread`] | median and extremes |

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("capriole-bench measures x86-64 Linux only");

pub mod chart;
pub mod crowd;
pub mod floor;
pub mod function;
mod interrupt;
pub mod kernel;
pub mod marker;
pub mod peers;
pub mod probing;
pub mod process;
pub mod report;
pub mod runner;
pub mod scratch;
pub mod server;
pub mod single;
pub mod spread;
pub mod talk;
pub mod target;
pub mod workload;

pub use chart::chart;
pub use function::{Function, TEXT};
pub use kernel::{BpfCounter, Moment, UprobeAt};
pub use marker::{MarkerResults, MarkerRow, Subject, marker_rows, run_marker};
pub use peers::peer_rows;
pub use process::{BenchError, Target, TargetInfo};
pub use report::{Measured, RowResult, table, table_with};
pub use runner::{
    Caller, HitOptions, Probe, Progress, Row, Trouble, default_rows, last_allowed_cpu, run_hit,
};
pub use single::Singles;
pub use target::target_main;

/// First argument by which `capriole-bench` is started as the measured program.
pub const TARGET: &str = "bench-target";

/// Returns the path of the command `capriole`: beside this program, or else in `PATH`.
#[must_use]
pub fn command() -> std::path::PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.map(|own| own.with_file_name("capriole"));
    beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| "capriole".into())
}
