//! Values by debug information in programs that compilers made, one file for each kind.

mod debug_arrivals;
mod debug_incomplete;
mod debug_names;
mod debug_parts;
mod debug_scopes;
mod symbols_elsewhere;

/// True for a refusal that says that the compiler keeps no such value at the place.
fn has_no_place(refusal: &capriole_dwarf::Refusal) -> bool {
    use capriole_dwarf::Refusal;
    matches!(
        refusal,
        Refusal::OptimisedOut { .. } | Refusal::Computed(_) | Refusal::EntryValue { .. }
    )
}
