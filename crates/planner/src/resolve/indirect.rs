//! Finds the implementation of an indirect function (IFUNC) that a process uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use capriole_object::symbols::Found;
use capriole_object::{Object, Objects};

/// Sections of stubs that jump through slots.
const STUBS: [&str; 4] = [".plt", ".plt.sec", ".plt.got", ".iplt"];

/// Returns the link addresses of the implementations that resolvers of this name in `object` have chosen: they
/// are in the slots (`.got`) through which the objects of the process call the function, as soon as these are
/// bound. There are several where objects are bound to several versions of the function. Empty if none
/// is bound, or without a process.
pub(super) fn in_use(objects: &Objects, object: &Arc<Object>, found: &Found<'_>) -> Vec<u64> {
    let (Some(process), Ok(symbols)) = (objects.process(), object.symbols()) else {
        return Vec::new();
    };
    let resolver = found.function.extent.start;
    let own = object.file().resolved_slots(resolver).into_iter();
    let own = own.map(|slot| slot.wrapping_add(object.data_bias()));
    let own = own.filter_map(|slot| word(process, slot));
    // A slot that is not bound yet may lead back into the stub that jumps through it.
    let stubs = STUBS.map(|name| object.file().section(name));
    let is_stub = |link: &u64| stubs.iter().flatten().any(|stub| stub.contains(link));
    let is_implementation = |link: &u64| {
        let function = symbols.function_at(*link);
        let starts = function.is_none_or(|f| f.extent.start == *link && !f.is_resolver);
        starts
            && !is_stub(link)
            && object.file().is_text(*link)
            && object.file().file_offset(*link).is_some()
    };
    let all = own.chain(bound(objects, found.name.linkage));
    let all = all.map(|address| address.wrapping_sub(object.data_bias()));
    let mut seen = BTreeSet::new();
    all.filter(|link| is_implementation(link) && seen.insert(*link))
        .collect()
}

/// Returns the addresses by which the objects of the process call the function `name`.
pub(super) fn bound(objects: &Objects, name: &str) -> Vec<u64> {
    let Some(process) = objects.process() else {
        return Vec::new();
    };
    let slots = objects.all().flat_map(|user| {
        let slots = user.file().import_slots(name).into_iter();
        slots.map(|slot| slot.wrapping_add(user.data_bias()))
    });
    slots.filter_map(|slot| word(process, slot)).collect()
}

fn word(process: &capriole_proc::process::Process, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    let read = process.read_memory(address, &mut word).ok();
    (read == Some(8)).then(|| u64::from_le_bytes(word))
}
