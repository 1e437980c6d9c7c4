//! Finds the implementation of an indirect function (IFUNC) that a process uses.

use std::sync::Arc;

use capriole_object::symbols::Found;
use capriole_object::{Object, Objects};

/// Returns the link address of the implementation that the resolver in `object` has chosen: it is
/// in the slots (`.got`) through which the objects of the process call the function, as soon as
/// these are bound. `None` if none is, or without a process.
pub(super) fn in_use(objects: &Objects, object: &Arc<Object>, found: &Found<'_>) -> Option<u64> {
    let process = objects.process()?;
    let symbols = object.symbols().ok()?;
    let resolver = found.function.extent.start;
    let own = object.file().resolved_slots(resolver).into_iter();
    let own = own.map(|slot| object.run_time(slot));
    let own = own.filter_map(|slot| word(process, slot));
    let is_implementation = |link: &u64| {
        let function = symbols.function_at(*link);
        let starts = function.is_none_or(|f| f.extent.start == *link && !f.is_resolver);
        starts && object.file().is_text(*link) && object.file().file_offset(*link).is_some()
    };
    own.chain(bound(objects, found.name.linkage))
        .map(|address| object.link(address))
        .find(is_implementation)
}

/// Returns the addresses by which the objects of the process call the function `name`.
pub(super) fn bound(objects: &Objects, name: &str) -> Vec<u64> {
    let Some(process) = objects.process() else {
        return Vec::new();
    };
    let slots = objects.all().flat_map(|user| {
        let slots = user.file().import_slots(name).into_iter();
        slots.map(|slot| user.run_time(slot))
    });
    slots.filter_map(|slot| word(process, slot)).collect()
}

fn word(process: &capriole_proc::process::Process, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    let read = process.read_memory(address, &mut word).ok();
    (read == Some(8)).then(|| u64::from_le_bytes(word))
}
