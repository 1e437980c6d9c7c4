//! Values read through debug information in compiled programs, one file for each kind.

mod debug_arrivals;
mod debug_incomplete;
mod debug_names;
mod debug_parts;
mod debug_scopes;
mod symbols_elsewhere;

/// Returns true if the refusal says that the compiler keeps no such value at this place.
fn has_no_place(refusal: &capriole_dwarf::Refusal) -> bool {
    use capriole_dwarf::Refusal;
    matches!(
        refusal,
        Refusal::OptimisedOut { .. } | Refusal::Computed(_) | Refusal::EntryValue { .. }
    )
}
