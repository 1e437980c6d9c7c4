//! Functions that share the code of a selected one: an event is one for all of them.

use super::Selected;
use capriole_planner::resolve::{Body, Site};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Maximum number of lines that a message lists.
const LISTED: usize = 8;

/// Lists the first of some lines for a message, and says how many more there are.
pub(super) fn listed(lines: &[String]) -> String {
    let mut list = String::new();
    for line in lines.iter().take(LISTED) {
        let _ = write!(list, "\n  {line}");
    }
    if lines.len() > LISTED {
        let _ = write!(list, "\n  and {} more", lines.len() - LISTED);
    }
    list
}

/// Returns the names of the other functions whose code is the same as that of the function in which a site is.
pub(super) fn same_code(site: &Site) -> Vec<String> {
    let (Some(linkage), Ok(symbols)) = (&site.linkage_name, site.object.symbols()) else {
        return Vec::new();
    };
    if matches!(site.body, Body::Inlined { .. }) {
        return Vec::new();
    }
    let start = site.object.link(site.extent.start);
    let function = symbols.function_starting_at(start);
    function.map_or_else(Vec::new, |function| symbols.same_code(function, linkage))
}

/// Returns a message that lists the functions whose events are also those of other functions, because they
/// have the same code.
pub fn shared_code(selected: &[Selected]) -> Option<String> {
    let mut told = HashSet::new();
    let mut shared = Vec::new();
    for Selected { site, .. } in selected.iter().filter(|event| !event.origin.is_implied()) {
        if !told.insert((site.object.path(), site.extent.start)) {
            continue;
        }
        let others = same_code(site);
        if !others.is_empty() {
            let name = site.symbol.as_deref().unwrap_or("?");
            shared.push(format!("{name} = {}", others.join(" = ")));
        }
    }
    (!shared.is_empty()).then(|| {
        format!(
            "one code for several functions, which the compiler or the linker has folded, or with several \
             names: their calls are the same events, and cannot be told apart:{}",
            listed(&shared)
        )
    })
}
