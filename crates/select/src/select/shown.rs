//! Selected events as people see them.

use super::Selected;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::Role;
use std::collections::HashMap;

/// Finds the names to show for these events side by side, and for the functions that contain them.
pub fn shown_names(selected: &[Selected], form: Form) -> ShownNames {
    if form == Form::Full {
        return ShownNames::of([], form);
    }
    let names = selected.iter().map(Selected::name);
    let symbols = selected
        .iter()
        .filter_map(|event| event.site.symbol.clone());
    let names: Vec<String> = names.chain(symbols).collect();
    ShownNames::of(names.iter().map(String::as_str), form)
}

/// Returns, for each event by index, the number of the event that is hit or not together with it:
/// nobody selects a function's tail calls, only its ends, and it need not end in both ways.
pub fn hit_as(selected: &[Selected]) -> Vec<u32> {
    let with_call = |event: &&Selected| event.call.is_some();
    let returns: HashMap<Option<u32>, u32> = selected
        .iter()
        .filter(with_call)
        .filter(|event| event.role() == Role::Return)
        .map(|event| (event.call, event.id))
        .collect();
    let number = |event: &Selected| match (event.role(), returns.get(&event.call)) {
        (Role::TailCall, Some(number)) => *number,
        _ => event.id,
    };
    selected.iter().map(number).collect()
}
