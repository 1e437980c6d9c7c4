//! Places that events give without an object, or with a part of a name.

use super::Selected;
use capriole_event::{ObjectRef, Place};
use std::collections::HashSet;

/// Returns a message for each event whose place was given without its library, or with a part of
/// the function's name, that tells which place it is.
pub fn identified(selected: &[Selected]) -> Vec<String> {
    let mut told = HashSet::new();
    let mut messages = Vec::new();
    for event in selected {
        let (probe, site) = (&event.probe, &event.site);
        let Place::Symbol { pattern, .. } = &probe.place else {
            continue;
        };
        if !event.origin.is_named() || !told.insert(event.definition) {
            continue;
        }
        let Some(symbol) = &site.symbol else { continue };
        let elsewhere = probe.object == ObjectRef::Any && !site.object.is_main();
        let is_member = site.linkage_name.as_ref() != Some(pattern) && !begins(symbol, pattern);
        let name = match (elsewhere, is_member) {
            (true, _) => format!("{}:{symbol}", site.object.name()),
            (false, true) => symbol.clone(),
            (false, false) => continue,
        };
        messages.push(format!("`{pattern}` is {name}"));
    }
    messages
}

/// True if a name begins with another one, whatever blanks they have.
fn begins(name: &str, with: &str) -> bool {
    let mut letters = name.chars().filter(|c| *c != ' ');
    let mut wanted = with.chars().filter(|c| *c != ' ');
    wanted.all(|c| letters.next() == Some(c))
}
