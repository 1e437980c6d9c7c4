//! Selection of the object for a place that is given without one.

use std::sync::Arc;

use capriole_dwarf::DebugInfo as _;
use capriole_event::{Place, Probe};
use capriole_object::symbols::OtherSymbol;
use capriole_object::{Entry, Object, Objects};

use super::choose::written;
use super::{NAMED, ResolveError, indirect};

/// How well an object fits a place, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// A function has this name, or matches the pattern; or there is the source file.
    Whole,
    /// Functions of some class, namespace or module have this name.
    Member,
}

/// Returns the object that has the place: the main program, else a library. Of several libraries,
/// this is the one whose function the process calls by that name.
pub(super) fn choose<'a>(
    objects: &'a Objects,
    probe: &Probe,
) -> Result<&'a [Arc<Object>], ResolveError> {
    let main = objects.main_entry()?;
    let opened_main = objects.open(main)?;
    for fit in [Fit::Whole, Fit::Member] {
        let has = |object: &Arc<Object>| has(object, &probe.place, fit);
        if opened_main.iter().any(has) {
            return Ok(opened_main);
        }
        let libraries = objects.entries().iter().filter(|e| e.path() != main.path());
        let opened = libraries.filter_map(|entry| objects.open(entry).ok());
        let found: Vec<&[Arc<Object>]> = opened.filter(|o| o.iter().any(has)).collect();
        match found.as_slice() {
            [] => {}
            [one] => return Ok(one),
            several => return used(objects, probe, several),
        }
        // Copies in the program itself come before members that only have the name's end.
        if has_copies(opened_main, probe, fit) {
            return Ok(opened_main);
        }
    }
    match opened_main
        .iter()
        .any(|object| has_label(object, &probe.place))
    {
        true => Ok(opened_main),
        false => Err(nowhere(objects, main, probe)),
    }
}

fn has(object: &Arc<Object>, place: &Place, fit: Fit) -> bool {
    match (place, fit) {
        (Place::Symbol { pattern, .. }, _) => {
            let Ok(symbols) = object.symbols() else {
                return false;
            };
            match fit {
                Fit::Whole if place.is_glob() => {
                    !symbols.exact(pattern).is_empty()
                        || !symbols.matching(place.matcher()).is_empty()
                }
                Fit::Whole => !symbols.exact(pattern).is_empty(),
                Fit::Member => !place.is_glob() && !symbols.members(pattern).is_empty(),
            }
        }
        (Place::Line { file, line }, Fit::Whole) => {
            let debug = object.file().debug();
            debug.is_ok_and(|debug| debug.line(file, (*line).into()).is_ok())
        }
        _ => false,
    }
}

/// True if the name is that of a label in the text, which may be code, or which the message can place.
fn has_label(object: &Object, place: &Place) -> bool {
    let Place::Symbol { pattern, .. } = place else {
        return false;
    };
    let file = object.file();
    let other = file.other_symbol(pattern);
    matches!(other, Ok(Some(OtherSymbol::Label(address))) if file.is_text(address))
}

/// True if debug information has a function that fits, of which only inlined copies need be there.
fn has_copies(objects: &[Arc<Object>], probe: &Probe, fit: Fit) -> bool {
    let Place::Symbol { pattern, .. } = &probe.place else {
        return false;
    };
    objects.iter().any(|object| {
        let debug = object.file().debug();
        let found = debug.and_then(|debug| match fit {
            Fit::Whole => debug.functions(pattern),
            Fit::Member => debug.members(pattern),
        });
        found.is_ok_and(|found| !found.is_empty())
    })
}

/// Returns the one of several libraries whose function the process calls.
fn used<'a>(
    objects: &Objects,
    probe: &Probe,
    several: &[&'a [Arc<Object>]],
) -> Result<&'a [Arc<Object>], ResolveError> {
    let name = match &probe.place {
        Place::Symbol { pattern, .. } => pattern.as_str(),
        Place::FileOffset(_) | Place::Line { .. } | Place::Static { .. } => "",
    };
    let bound = indirect::bound(objects, name);
    let calls = |candidate: &&&'a [Arc<Object>]| {
        let mut objects = candidate.iter();
        objects.any(|object| bound.iter().any(|address| object.contains(*address)))
    };
    if let Some(one) = several.iter().find(calls) {
        return Ok(one);
    }
    let mut places: Vec<String> = several
        .iter()
        .filter_map(|objects| {
            let name = objects.first()?.name();
            Some(format!("{}:{}", written(&name), probe.place))
        })
        .collect();
    let all = places.len();
    places.truncate(NAMED);
    Err(ResolveError::SeveralObjects {
        symbol: probe.place.to_string(),
        places,
        all,
    })
}

/// Makes the error for a place that no object has.
fn nowhere(objects: &Objects, main: &Entry, probe: &Probe) -> ResolveError {
    let place = probe.place.to_string();
    if let Place::Line { file, line } = &probe.place
        && let Ok([object, ..]) = objects.open(main)
        && let Err(error) = super::at_line(object, file, *line)
    {
        return error;
    }
    if let Place::Symbol { pattern, offset: 0 } = &probe.place
        && let Ok([object, ..]) =
            super::choose::by_name(objects, pattern).and_then(|entry| Ok(objects.open(entry)?))
    {
        return ResolveError::IsObject {
            name: pattern.clone(),
            object: object.name(),
        };
    }
    let symbol = match &probe.place {
        Place::Symbol { pattern, .. } => pattern.as_str(),
        _ => "",
    };
    let near = |object: &Arc<Object>| -> Vec<String> {
        let symbols = object.symbols();
        let names = symbols.map(|symbols| symbols.nearest(symbol));
        let prefix = match object.is_main() {
            true => String::new(),
            false => written(&object.name()).to_owned(),
        };
        let names = names.unwrap_or_default().into_iter();
        names.map(|name| format!("{prefix}:{name}")).collect()
    };
    let mut nearest: Vec<String> = Vec::new();
    for object in objects.all() {
        nearest.extend(near(object));
        if nearest.len() >= NAMED {
            break;
        }
    }
    nearest.truncate(NAMED);
    let stripped = objects.open(main).is_ok_and(|objects| {
        objects.iter().any(|object| {
            let symbols = object.symbols();
            symbols.is_ok_and(|symbols| symbols.functions().iter().all(|f| !f.is_named()))
        })
    });
    ResolveError::Nowhere {
        place,
        main: main.path().to_owned(),
        libraries: objects.entries().len().saturating_sub(1),
        stripped,
        nearest,
    }
}
