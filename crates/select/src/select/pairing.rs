//! Pairing of the events at functions' entries with those at their exits.

use super::fate::Fate;
use super::part::Origin;
use super::selected::Selected;
use crate::advice::Message;
use capriole_planner::resolve::Body;
use capriole_trace::Role;
use std::collections::HashMap;

/// Leaves out all exits of a function if one cannot be probed: otherwise some calls would never
/// end. (A named exit is an error, reported later.)
pub(super) fn all_exits_or_none(selected: &mut [Selected]) {
    let function =
        |event: &Selected| Some((event.definition, event.site.leaving.as_ref()?.function));
    let mut missing: HashMap<(usize, u64), Message> = HashMap::new();
    for event in selected.iter() {
        if let (Some(function), Fate::Refused(refused)) = (function(event), &event.fate)
            && !event.origin.is_named()
        {
            let reason = || format!("its exit at {} cannot be probed: {refused}", event.place());
            let reason = || Message::from(reason());
            missing.entry(function).or_insert_with(reason);
        }
    }
    for event in selected {
        if let Some(reason) = function(event).and_then(|function| missing.get(&function)) {
            event.fate.leave_out(|| reason.clone());
        }
    }
}

/// Links the events of each function's entry and exits. At each of them, takes the first event
/// that was written for calls, or else the first event.
pub(super) fn join_calls(selected: &mut [Selected]) {
    let mut by_purpose: Vec<&mut Selected> = selected.iter_mut().collect();
    by_purpose.sort_by_key(|event| !event.part.is_of_calls());
    // For each function with probed exits, the first definition of them and its event.
    let mut exits: HashMap<u64, (usize, u32)> = HashMap::new();
    let is_there = |event: &Selected| event.fate.left_out().is_none();
    for event in by_purpose.iter().filter(|event| is_there(event)) {
        if let Some(leaving) = &event.site.leaving {
            let first = (event.definition, event.id);
            exits.entry(leaving.function).or_insert(first);
        }
    }
    let mut entries: HashMap<u64, u32> = HashMap::new();
    for event in &mut by_purpose {
        let own = event.site.leaving.is_none()
            && event.site.body == Body::Own
            && event.site.marker.is_none();
        let address = event.site.function();
        if own
            && is_there(event)
            && event.site.is_entry()
            && event.is_in_trace()
            && exits.contains_key(&address)
            && !entries.contains_key(&address)
        {
            entries.insert(address, event.id);
            event.call = Some(event.id);
        }
    }
    for event in selected.iter_mut().filter(|event| is_there(event)) {
        if let Some(leaving) = &event.site.leaving
            && let Some((definition, first)) = exits.get(&leaving.function)
            && *definition == event.definition
        {
            let entry = entries.get(&leaving.function);
            event.call = Some(*entry.unwrap_or(first));
        }
    }
}

/// Treats all events as matches of a pattern: sites that cannot be probed are left out.
pub fn keep_going(selected: &mut [Selected]) {
    for event in selected.iter_mut() {
        if let Origin::User { named } = &mut event.origin {
            *named = false;
        }
    }
    all_exits_or_none(selected);
    // An entry whose exits are left out no longer begins calls.
    for event in selected
        .iter_mut()
        .filter(|event| event.role() == Role::Entry)
    {
        event.call = None;
    }
    join_calls(selected);
}
