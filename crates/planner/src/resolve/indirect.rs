//! Finds the implementation of an indirect function (IFUNC) that a process uses.

use std::sync::Arc;

use super::Candidate;
use capriole_object::symbols::display;
use capriole_object::{Object, Objects};

/// Reads the slots (`.got`) through which the objects of the process call `name`. A slot that
/// is already bound holds the address of the implementation that the resolver in `object`
/// chose. Returns `None` if no slot is bound.
pub(super) fn in_use(objects: &Objects, object: &Arc<Object>, name: &str) -> Option<Candidate> {
    let process = objects.process()?;
    let symbols = object.symbols().ok()?;
    for user in objects.all() {
        for slot in user.file().import_slots(name) {
            let mut word = [0; 8];
            if process.read_memory(user.run_time(slot), &mut word).ok() != Some(8) {
                continue;
            }
            let link = object.link(u64::from_le_bytes(word));
            let bound = symbols
                .function_starting_at(link)
                .filter(|f| !f.is_resolver);
            let Some(file_offset) = object.file().file_offset(link) else {
                continue;
            };
            if object.file().is_text(link)
                && (bound.is_some() || symbols.function_at(link).is_none())
            {
                let linkage = bound
                    .and_then(|f| symbols.linkage_name(f))
                    .unwrap_or("(no name)");
                return Some(Candidate {
                    symbol: display(linkage).into_owned(),
                    linkage_name: linkage.to_owned(),
                    object: object.path().to_owned(),
                    file_offset,
                });
            }
        }
    }
    None
}
