//! Parts of events that reports show, or need.

use capriole_object::is_link;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::{CallStack, Document, Event, EventInfo, FieldInfo, Role, Target, Value};
use std::collections::{BTreeMap, HashMap, HashSet};

/// True if a field is shown in the line of its event. Others, such as `_sp`, are only needed to
/// interpret the trace; call stacks have separate lines.
pub(crate) fn is_shown(field: &FieldInfo) -> bool {
    !field.name.starts_with('_') && !field.field_type.is_call_stack()
}

/// Returns the names to show for the events of a trace, and the functions that contain them.
pub(crate) fn event_names(document: &Document, form: Form) -> ShownNames {
    let names = document.events.iter().flat_map(|event| {
        let symbol = event.symbol.as_deref();
        std::iter::once(event.name.as_str()).chain(symbol)
    });
    ShownNames::of(names, form)
}

/// Returns the names of events, by index. Functions of one name in one object, such as the instances of
/// a generic function in Rust, have their places behind it: `shop::show (orders+0x14580)`. Events
/// with a name of their own, of markers, and of inlined copies keep it.
pub(crate) fn names_apart(events: &[EventInfo]) -> Vec<String> {
    let entries = events.iter().filter(|event| event.role == Role::Entry);
    let entries: HashMap<Option<u32>, &EventInfo> = entries.map(|e| (e.call, e)).collect();
    // The function's start, in memory and in its file.
    let start = |event: &EventInfo| {
        let own = match event.role {
            Role::Point | Role::Entry => event,
            Role::Return | Role::TailCall => event
                .call
                .and_then(|call| entries.get(&Some(call)).copied())?,
        };
        let symbol = event.symbol.as_deref()?;
        let rest = event.name.strip_prefix(symbol)?;
        let is_own = !rest.contains(" (inlined in ");
        let offset = own.symbol_offset;
        let both = (
            own.address.checked_sub(offset)?,
            own.offset.checked_sub(offset)?,
        );
        is_own.then_some(both)
    };
    let mut starts: HashMap<(&str, &str), HashSet<u64>> = HashMap::new();
    for event in events {
        if let Some((address, _)) = start(event) {
            let same = starts.entry((&event.name, &event.object)).or_default();
            same.insert(address);
        }
    }
    let name = |event: &EventInfo| match start(event) {
        Some((_, place)) if starts[&(&*event.name, &*event.object)].len() > 1 => {
            format!("{} ({}+{place:#x})", event.name, file_name(&event.object))
        }
        _ => event.name.clone(),
    };
    events.iter().map(name).collect()
}

/// True if events of a trace have call stacks.
pub fn has_call_stacks(document: &Document) -> bool {
    with_call_stacks(document).is_some()
}

/// Returns, for each event by index, true if it has a call stack; `None` if no event has one.
pub(crate) fn with_call_stacks(document: &Document) -> Option<Vec<bool>> {
    let has = |event: &EventInfo| event.fields.iter().any(|f| f.field_type.is_call_stack());
    let all: Vec<bool> = document.events.iter().map(has).collect();
    all.contains(&true).then_some(all)
}

/// Returns the call stack of an event.
pub(crate) fn call_stack<'a>(event: &Event<'a>) -> Option<CallStack<'a>> {
    event.fields().find_map(|value| match value {
        Value::CallStack(stack) => Some(stack),
        _ => None,
    })
}

/// Returns the name of an event's object: that of its file, but for the program the name that it was
/// run by, which may be a link to the file (`redis-server` to `redis-check-rdb`).
pub(crate) fn object_name<'a>(
    target: &'a Target,
    threads: &BTreeMap<u32, String>,
    object: &'a str,
) -> &'a str {
    /// Length of the kernel's name of a thread, which is that of the program at its start.
    const COMM: usize = 15;
    let own = file_name(object);
    if object != target.executable {
        return own;
    }
    let run_by = target
        .command_line
        .first()
        .map_or("", |word| file_name(word));
    let started = threads.get(&target.pid).map(String::as_str);
    // A program may write over its arguments; its name is another copy.
    let is_cut = |name: &str| name.len() == COMM && run_by.starts_with(name);
    match started.is_some_and(|name| name == run_by || is_cut(name)) {
        true if !run_by.is_empty() => run_by,
        _ => own,
    }
}

/// Returns the name of a library as other files know it, `libz.so.1`, if its file's name is that with
/// more of the version, `libz.so.1.2.13`; else the file's name.
pub(crate) fn shown_library<'a>(file: &'a str, soname: Option<&'a str>) -> &'a str {
    let link = soname.filter(|soname| is_link(soname, file));
    link.unwrap_or(file)
}

/// Returns the file name, the last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_has_the_name_that_others_know_it_by() {
        let shown = |file, soname| shown_library(file, soname);
        assert_eq!(shown("libz.so.1.2.13", Some("libz.so.1")), "libz.so.1");
        assert_eq!(shown("libz.so.1", Some("libz.so.1")), "libz.so.1");
        assert_eq!(shown("libz.so.12", Some("libz.so.1")), "libz.so.12");
        assert_eq!(
            shown("ld-musl-x86_64.so.1", Some("libc.so")),
            "ld-musl-x86_64.so.1"
        );
        assert_eq!(shown("orders", None), "orders");
    }

    #[test]
    fn a_program_has_the_name_that_it_was_run_by() {
        let named = |command: &str, thread: &str| {
            let target = Target {
                pid: 7,
                executable: "/usr/bin/redis-check-rdb".to_owned(),
                command_line: vec![command.to_owned()],
            };
            let threads = BTreeMap::from([(7, thread.to_owned())]);
            let name = |object| object_name(&target, &threads, object).to_owned();
            (name("/usr/bin/redis-check-rdb"), name("/lib/libc.so.6"))
        };
        let (program, library) = named("/usr/bin/redis-server", "redis-server");
        assert_eq!((&*program, &*library), ("redis-server", "libc.so.6"));
        // Its arguments overwritten, its thread renamed, and a name that the kernel cuts.
        assert_eq!(
            named("redis-server *:6379", "redis-server").0,
            "redis-check-rdb"
        );
        assert_eq!(named("redis-server", "main").0, "redis-check-rdb");
        assert_eq!(named("", "").0, "redis-check-rdb");
        assert_eq!(
            named("a_name_longer_than_15", "a_name_longer_t").0,
            "a_name_longer_than_15"
        );
    }
}
