//! Code mappings of the program, for resolving call stacks and symbols when the trace is read.

use capriole_object::Objects;
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use capriole_trace::{EventInfo, MappingInfo};
use std::collections::HashSet;

/// True if an event has a field that needs the mappings: a call stack, or the address of a function.
pub(crate) fn are_needed(events: &[EventInfo]) -> bool {
    let mut fields = events.iter().flat_map(|event| &event.fields);
    fields.any(|field| field.field_type.is_call_stack() || field.field_type.is_symbol())
}

/// Returns the mappings of files with code.
pub(crate) fn with_code(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter().filter(|m| {
        // Memory may have an inode but no file: JIT-compiled code, and our own stubs.
        let named = !m.path.as_encoded_bytes().starts_with(b"/memfd:");
        m.is_file() && m.perms.execute && named
    })
}

/// Returns the file mappings with code that are not in `seen` yet, and adds them there. Empty if
/// the process has just ended.
pub fn new(process: &Process, seen: &mut HashSet<(u64, u64)>) -> Vec<MappingInfo> {
    let maps = process.maps().unwrap_or_default();
    let maps = with_code(&maps).filter(|m| seen.insert((m.start, m.end)));
    let maps: Vec<&Mapping> = maps.collect();
    if maps.is_empty() {
        return Vec::new();
    }
    let Ok(objects) = Objects::of_process(process) else {
        return Vec::new();
    };
    maps.iter()
        .map(|m| {
            let object = objects.containing(m.start);
            let build_id = object.and_then(|object| object.file().build_id());
            let hexadecimal = |id: &[u8]| id.iter().map(|b| format!("{b:02x}")).collect();
            MappingInfo {
                start: m.start,
                end: m.end,
                offset: m.offset,
                path: m.path.to_string_lossy().into_owned(),
                build_id: build_id.map(hexadecimal),
            }
        })
        .collect()
}
