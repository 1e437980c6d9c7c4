//! Plans for sites, and detours that run. All tests are in one program, because each program
//! takes long to link.

#[path = "common/compiled.rs"]
mod compiled;
#[path = "common/constants.rs"]
mod constants;
#[path = "common/description.rs"]
mod description;
#[path = "common/flags.rs"]
mod flags;
#[path = "common/mapped.rs"]
mod mapped;
#[path = "common/object.rs"]
mod object;
#[path = "common/signals.rs"]
mod signals;
#[path = "../../../insn/tests/it/support/mod.rs"]
mod support;
#[path = "common/undisturbed.rs"]
mod undisturbed;

mod batch_waits;
mod callers_execution;
mod detour_cost;
mod detour_execution;
mod fetch_execution;
mod hostile_execution;
mod intervals_stepped;
mod kept_execution;
mod probe_execution;
mod site_choose;
mod site_libraries;
mod site_properties;
mod summary_stepped;
mod tally_execution;
