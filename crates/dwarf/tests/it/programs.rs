//! Values read through debug information in compiled programs, one file for each kind.

mod arrivals;
mod fortran;
mod incomplete;
mod names;
mod parts;
mod registers;
mod scopes;

/// Returns true if the refusal says that the compiler keeps no such value at this place.
fn has_no_place(refusal: &capriole_dwarf::Refusal) -> bool {
    use capriole_dwarf::Refusal;
    matches!(
        refusal,
        Refusal::OptimisedOut { .. } | Refusal::Computed(_) | Refusal::EntryValue { .. }
    )
}
