//! Selected events as people see them.

use super::Selected;
use capriole_object::symbols::shown::{Form, ShownNames};

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
