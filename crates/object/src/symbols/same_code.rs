//! Functions of one code: the compiler or the linker has folded identical ones (`-fipa-icf`, which is part of
//! `-O2` of GCC; `--icf` of gold and lld), or one name is another's alias.

use super::{Function, SymbolTable, display};

/// The name that Go's linker gives to the first function, where the text begins.
const GO_TEXT: &str = "runtime.text";

impl SymbolTable {
    /// Returns the names of the other functions, for display, that have the code of a function, which is
    /// known by its linkage name here: calls of all of them are the same events.
    ///
    /// Not among them is another spelling of the same name: `__read` of `read`, `lseek64` of `lseek`, or a second
    /// constructor of one class.
    #[must_use]
    pub fn same_code(&self, function: &Function, linkage: &str) -> Vec<String> {
        if function.names < 2 {
            return Vec::new();
        }
        let mut known = vec![(linkage.to_owned(), display(linkage).into_owned())];
        for name in self.names(function).filter(|name| name.linkage != GO_TEXT) {
            let shown = display(name.linkage);
            let is_known = |(own, display): &(String, String)| {
                *display == shown || is_respelled(own, name.linkage)
            };
            if !known.iter().any(is_known) {
                known.push((name.linkage.to_owned(), shown.into_owned()));
            }
        }
        let others = known.into_iter().skip(1);
        others.map(|(_, shown)| shown).collect()
    }
}

/// True if two linkage names differ by what C libraries add to a name: a prefix that is reserved for them
/// (`__read`, `_IO_fopen`, `__GI___libc_read`), or the width of file offsets at the end (`lseek64`).
fn is_respelled(one: &str, other: &str) -> bool {
    let core = |name| str::strip_suffix(name, "64").unwrap_or(name);
    let (one, other) = (core(one), core(other));
    let (short, long) = match one.len() < other.len() {
        true => (one, other),
        false => (other, one),
    };
    let prefix = long.strip_suffix(short);
    !short.is_empty()
        && prefix.is_some_and(|prefix| {
            prefix.is_empty()
                || (prefix.starts_with('_') && (prefix.ends_with('_') || short.starts_with('_')))
        })
}

#[cfg(test)]
mod tests {
    use super::is_respelled;

    #[test]
    fn names_are_respelled_by_reserved_prefixes_and_widths() {
        for (one, other) in [
            ("read", "__read"),
            ("fopen64", "_IO_fopen"),
            ("__libc_read", "__GI___libc_read"),
            ("lseek", "lseek64"),
            ("_exit", "___exit"),
        ] {
            assert!(
                is_respelled(one, other) && is_respelled(other, one),
                "{one} {other}"
            );
        }
        for (one, other) in [
            ("strtol", "strtoll"),
            ("get", "get_it"),
            ("get", "forget"),
            ("put", "_input"),
            ("_ZN1A3getEv", "_ZN1B3getEv"),
            ("handle1", "handle2"),
            ("handle", "handle2"),
        ] {
            assert!(
                !is_respelled(one, other) && !is_respelled(other, one),
                "{one} {other}"
            );
        }
    }
}
