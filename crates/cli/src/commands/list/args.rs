//! `list --args`: parameters and variables of functions, from debug information.

use capriole_dwarf::Described;
use capriole_object::symbols::shown::ShownNames;
use capriole_select::fields::Reader;
use capriole_select::select::Selected;
use capriole_text::printable;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;

/// Returns the type that a field gets by default, or why it has none.
fn recorded(described: &Described) -> Result<String, String> {
    let typed = described.fetch.as_ref().map_err(ToString::to_string)?;
    Ok(typed.field_type.to_string())
}

/// Writes text: the function, then a line for each parameter and variable. A reason that holds for
/// several functions, such as missing debug information, is told at the first one.
pub(super) fn write(
    selected: &[Selected],
    names: &ShownNames,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut reader = Reader::default();
    let mut told = HashMap::new();
    for event in selected {
        let name = printable(&names.get(&event.name())).to_string();
        writeln!(out, "{name}")?;
        let found = match reader.describe(&event.site) {
            Ok(found) => found,
            Err(error) => {
                let error = error.to_string();
                match told.get(&error) {
                    Some(first) => writeln!(out, "  as for {first}")?,
                    None => writeln!(out, "  {error}")?,
                }
                told.entry(error).or_insert(name);
                continue;
            }
        };
        if found.is_empty() {
            writeln!(out, "  nothing: it has no parameters")?;
        }
        let width = found.iter().map(|d| d.name.len()).max().unwrap_or(0);
        for described in &found {
            let kind = if described.parameter {
                ""
            } else {
                "  (a variable)"
            };
            let place = match (&described.place, recorded(described)) {
                (Ok(place), Ok(field)) => format!("{place:<12} as {field}"),
                (Ok(place), Err(refusal)) => format!("{place:<12} not as a whole: {refusal}"),
                (Err(refusal), _) => format!("cannot be recorded here: {refusal}"),
            };
            writeln!(
                out,
                "  {:<width$}  {:<20}  {place}{kind}",
                printable(&described.name),
                printable(&described.c_type)
            )?;
        }
    }
    Ok(())
}

/// Formats the parameters and variables as JSON.
pub(super) fn json(selected: &[Selected]) -> Value {
    let mut reader = Reader::default();
    let functions = selected.iter().map(|event| {
        let arguments = match reader.describe(&event.site) {
            Ok(found) => found
                .iter()
                .map(|d| {
                    let recorded = recorded(d);
                    json!({
                        "name": d.name,
                        "parameter": d.parameter,
                        "function": d.function,
                        "c_type": d.c_type,
                        "place": d.place.as_ref().ok(),
                        "type": recorded.as_ref().ok(),
                        "refusal": d.place.as_ref().err().map(ToString::to_string).or(recorded.err()),
                    })
                })
                .collect(),
            Err(error) => json!({ "refusal": error.to_string() }),
        };
        json!({ "event": event.name(), "arguments": arguments })
    });
    functions.collect()
}
