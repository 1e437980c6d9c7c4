//! The names of a function.

use capriole_object::symbols::demangle::{demangle, is_mangled, without_blanks};

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
    let is = |name: &str| without_blanks(name) == wanted;
    is(&demangled.full)
        || is(&demangled.short)
        || demangled.with_return_type.as_deref().is_some_and(is)
}
