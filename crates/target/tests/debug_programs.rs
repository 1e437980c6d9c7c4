//! Values by debug information in programs that compilers made, one file for each kind.

mod fixtures;
mod stopped;

#[path = "debug_programs/debug_arrivals.rs"]
mod debug_arrivals;
#[path = "debug_programs/debug_incomplete.rs"]
mod debug_incomplete;
#[path = "debug_programs/debug_names.rs"]
mod debug_names;
#[path = "debug_programs/debug_parts.rs"]
mod debug_parts;
#[path = "debug_programs/debug_scopes.rs"]
mod debug_scopes;
#[path = "debug_programs/symbols_elsewhere.rs"]
mod symbols_elsewhere;

/// True for a refusal that says that the compiler keeps no such value at the place.
fn has_no_place(refusal: &capriole_target::debug::Refusal) -> bool {
    use capriole_target::debug::Refusal;
    matches!(
        refusal,
        Refusal::OptimisedOut { .. } | Refusal::Computed(_) | Refusal::EntryValue { .. }
    )
}
