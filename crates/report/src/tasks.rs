//! The thread column: a label for each thread that has a name, looked up by thread id.

use std::collections::{BTreeMap, HashMap};

use capriole_trace::Document;

/// Shown for a thread without a name, as in ftrace.
const UNKNOWN: &str = "<...>";

/// One label for each thread.
pub(super) struct Tasks {
    by_tid: HashMap<u32, Vec<u8>>,
    /// The last thread looked up, and its label: the next lookup is usually for the same thread.
    last: Option<(u32, Vec<u8>)>,
    make: fn(&str, u32) -> String,
}

impl Tasks {
    /// Prepares the labels that `make` returns for the name and id of each thread.
    pub(super) fn new(threads: &BTreeMap<u32, String>, make: fn(&str, u32) -> String) -> Tasks {
        let by_tid = threads
            .iter()
            .map(|(tid, comm)| (*tid, make(comm, *tid).into_bytes()))
            .collect();
        Tasks {
            by_tid,
            last: None,
            make,
        }
    }

    /// Returns the label of a thread.
    pub(super) fn get(&mut self, tid: u32) -> &[u8] {
        if self.last.as_ref().is_none_or(|(last, _)| *last != tid) {
            let mut text = self.last.take().map(|(_, text)| text).unwrap_or_default();
            text.clear();
            match self.by_tid.get(&tid) {
                Some(known) => text.extend_from_slice(known),
                None => text.extend_from_slice((self.make)(UNKNOWN, tid).as_bytes()),
            }
            self.last = Some((tid, text));
        }
        match &self.last {
            Some((_, text)) => text,
            None => unreachable!("it was set above"),
        }
    }

    /// Returns the width of the widest label, in characters.
    fn width(&self) -> usize {
        let width = |text: &Vec<u8>| String::from_utf8_lossy(text).chars().count();
        self.by_tid.values().map(width).max().unwrap_or(0)
    }
}

/// `orders-5574`
pub(super) fn name_and_id(comm: &str, tid: u32) -> String {
    format!("{}-{tid}", printable(comm))
}

/// Returns the width of the column of threads, each with name and id.
pub(super) fn width(document: &Document) -> usize {
    let named = Tasks::new(&document.threads, name_and_id).width();
    // The kernel's widest pid, 4194304, for a thread without a name.
    named.max(UNKNOWN.len() + 1 + 7)
}

pub(super) use capriole_text::printable;
