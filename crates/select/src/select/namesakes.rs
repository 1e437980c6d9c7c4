//! Functions that share the name of a selected one, and parameters, that are left out.

use super::Selected;
use super::part::Part;
use capriole_planner::resolve::{Body, Namesake, Site, namesakes as known_namesakes};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Returns what is left out of selected functions: code of the same names, and parameters; a message each.
pub fn left_out(selected: &[Selected]) -> Vec<String> {
    let namesakes = namesakes(selected).into_iter();
    namesakes.chain(unshown(selected)).collect()
}

/// Returns a message for each function that an event names, if the compiler has put more code under
/// that name, which gets no probe: copies for some callers (`name.isra.0`), and `static` functions
/// of other source files that have no symbol of their own, or only such a one.
fn namesakes(selected: &[Selected]) -> Vec<String> {
    let mut taken = HashSet::new();
    for Selected { site, .. } in selected {
        taken.insert((site.object.path(), site.file_offset));
        taken.extend(start(site).map(|start| (site.object.path(), start)));
    }
    let mut told = HashSet::new();
    let mut messages = Vec::new();
    for event in selected {
        let site = &event.site;
        let named = event.origin.is_named() && site.by_name && site.body == Body::Own;
        let (true, Some(linkage)) = (named, &site.linkage_name) else {
            continue;
        };
        if !told.insert((site.object.path(), linkage)) {
            continue;
        }
        let is_taken = |offset: &u64| taken.contains(&(site.object.path(), *offset));
        // Other events mean symbols only, and need no debug information.
        let known = match event.part {
            Part::Point if site.leaving.is_none() && site.is_entry() => known_namesakes(site),
            _ => Vec::new(),
        };
        let known: Vec<&Namesake> = known
            .iter()
            .filter(|namesake| !namesake.file_offsets.iter().any(is_taken))
            .collect();
        let mut list = String::new();
        for namesake in &known {
            let _ = write!(list, "\n  {namesake}");
        }
        let is_known = |offset: &u64| known.iter().any(|n| n.file_offsets.contains(offset));
        for (name, offset) in variants(site, linkage) {
            if !is_taken(&offset) && !is_known(&offset) {
                let object = site.object.path().display();
                let _ = write!(list, "\n  {name}  code at {object}:{offset:#x}");
            }
        }
        if !list.is_empty() {
            let name = site.symbol.as_deref().unwrap_or(linkage);
            messages.push(format!(
                "left out: more code named `{name}`, of copies for some callers or of other \
                 functions; an event with that name, or PATH:0xOFFSET, probes it too:{list}"
            ));
        }
    }
    messages
}

/// Returns the offset in the file of the function that contains a site.
fn start(site: &Site) -> Option<u64> {
    let file = site.object.file();
    file.file_offset(site.object.link(site.extent.start))
}

/// Returns the names that compilers derive from a function's name for its code, with the offsets in
/// the file.
fn variants(site: &Site, linkage: &str) -> Vec<(String, u64)> {
    let Ok(symbols) = site.object.symbols() else {
        return Vec::new();
    };
    let file = site.object.file();
    let found = symbols.variants(linkage).into_iter();
    // In Go, a closure is named after the function around it: `main.run.func1`.
    let is_go = file.is_go();
    let is_other = |name: &str| is_go && !name.ends_with(".abi0");
    found
        .filter(|found| !is_other(found.name.linkage))
        .filter_map(|found| {
            let offset = file.file_offset(found.function.extent.start)?;
            Some((found.name.linkage.to_owned(), offset))
        })
        .collect()
}

/// Returns a message for each parameter that `$arg*` leaves out, because it has no known value, or one
/// of a type that cannot be shown.
fn unshown(selected: &[Selected]) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    for event in selected.iter().filter(|event| !event.origin.is_implied()) {
        for (name, reason) in &event.fields.unshown {
            let label = &event.probe.label;
            let message = format!("left out of `{label}`: parameter `{name}`: {reason}");
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
    }
    messages
}
