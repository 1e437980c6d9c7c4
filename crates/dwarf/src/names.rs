//! The names of a function.

use capriole_object::symbols::demangle::{demangle, is_mangled, is_without_blanks, without_blanks};
use capriole_object::symbols::spelling::Spelling;

/// True if `wanted` is a name of the function: as in the source, the linkage name, or the latter
/// demangled, with or without parameters.
pub(super) fn is_called(wanted: &str, name: Option<&str>, linkage: Option<&str>) -> bool {
    if name == Some(wanted) || linkage == Some(wanted) {
        return true;
    }
    let Some(demangled) = linkage.filter(|name| is_mangled(name)).and_then(demangle) else {
        return false;
    };
    let wanted = without_blanks(wanted);
    let is = |name: &str| is_without_blanks(name, &wanted);
    is(&demangled.full)
        || is(&demangled.short)
        || demangled.with_return_type.as_deref().is_some_and(is)
}

/// True if a name of C++ or D in another [spelling](Spelling) may be meant for the function.
pub(super) fn may_be_called(wanted: &Spelling, linkage: Option<&str>) -> bool {
    let demangled = linkage.filter(|name| is_mangled(name)).and_then(demangle);
    demangled.is_some_and(|name| wanted.is(&name))
}

/// True if the end of a linkage name, demangled, is this name without blanks.
pub(super) fn is_member_called(wanted: &str, linkage: Option<&str>) -> bool {
    let demangled = linkage.filter(|name| is_mangled(name)).and_then(demangle);
    demangled.is_some_and(|name| name.is_member(wanted))
}
