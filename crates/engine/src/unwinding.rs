//! The table by which the program finds callers: the rules of all code that it has mapped.

use crate::error::Result;
use crate::record::mappings::with_code;
use capriole_object::frame_rules::RuleStart;
use capriole_object::{Object, Objects};
use capriole_proc::process::Process;
use capriole_resident::unwinding::{self, Module};
use std::collections::HashMap;
use std::sync::Arc;

/// Returns the table for all files that a process has mapped as code now. There are no rules for
/// those that cannot be read, and for what is mapped later.
///
/// # Errors
/// The memory map cannot be read.
pub(crate) fn table(objects: &Objects, process: &Process) -> Result<Vec<u8>> {
    let mut rules: HashMap<*const Object, Vec<RuleStart>> = HashMap::new();
    let mut modules = Vec::new();
    for mapping in with_code(&process.maps()?) {
        let Some(object) = objects.containing(mapping.start) else {
            continue;
        };
        let rules = rules
            .entry(Arc::as_ptr(object))
            .or_insert_with(|| object.file().frame_rules());
        modules.push(Module {
            addresses: mapping.start..mapping.end,
            link: object.link(mapping.start),
            rules: rules.clone(),
        });
    }
    Ok(unwinding::table(&modules))
}
