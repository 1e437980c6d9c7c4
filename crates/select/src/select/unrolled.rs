//! Inlined copies of which a probe may miss calls.

use super::Selected;
use super::same_code::listed;
use capriole_dwarf::DebugInfo as _;
use capriole_planner::resolve::{Body, Site};
use std::collections::BTreeSet;

/// True if a site is an inlined copy that seems to stand several times in an unrolled loop.
pub(super) fn is_in_unrolled_loop(site: &Site) -> bool {
    let (Body::Inlined { .. }, Some(scope)) = (&site.body, &site.scope) else {
        return false;
    };
    let debug = site.object.file().debug();
    debug.is_ok_and(|debug| debug.is_repeated(scope))
}

/// Returns a message that lists the copies of inlined functions that seem to stand several times in an unrolled
/// loop, of which debug information tells one place.
pub fn in_unrolled_loops(selected: &[Selected]) -> Option<String> {
    let copies = selected.iter().filter(|event| !event.origin.is_implied());
    let names = copies.filter_map(|Selected { site, .. }| {
        let Body::Inlined { function } = &site.body else {
            return None;
        };
        let into = site.symbol.as_deref().unwrap_or("?");
        let name = || format!("{function} (inlined in {into}+{:#x})", site.offset);
        is_in_unrolled_loop(site).then(name)
    });
    let names: BTreeSet<String> = names.collect();
    let names: Vec<String> = names.into_iter().collect();
    (!names.is_empty()).then(|| {
        format!(
            "hit in some rounds only, it seems: copies in loops that the compiler has unrolled, which debug \
             information takes for one (compile with -fno-unroll-loops to see all calls, or make the function \
             noinline):{}",
            listed(&names)
        )
    })
}
