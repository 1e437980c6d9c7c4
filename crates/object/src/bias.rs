//! Load bias of an object: the difference between run-time and link addresses.

use std::collections::BTreeMap;

use super::{ObjectFile, ObjectKind, Segment};
use capriole_proc::maps::Mapping;

/// Finds the load biases of a file from its mappings, each with the mappings that belong to it.
/// `entry` is the run-time address of the entry point, if known.
///
/// A mapping at file offset *o* may belong to any segment whose pages contain *o*. For such a
/// segment, the bias is
///
/// ```text
/// mapping start - (segment's page address + o - segment's page offset)
/// ```
///
/// Neighbouring segments may share a page, so a single mapping can be ambiguous; the bias on
/// which most mappings agree is right. Every bias with some code counts.
pub(super) fn instances(
    file: &ObjectFile,
    mappings: &[Mapping],
    entry: Option<u64>,
) -> Vec<(u64, Vec<Mapping>)> {
    let candidates: Vec<Vec<(u64, bool)>> = mappings
        .iter()
        .map(|mapping| {
            let segments = file.segments().iter();
            segments
                .filter_map(|segment| candidate(segment, mapping))
                .collect()
        })
        .collect();
    let mut votes = BTreeMap::<u64, usize>::new();
    for &(bias, _) in candidates.iter().flatten() {
        *votes.entry(bias).or_default() += 1;
    }
    if file.kind() == ObjectKind::FixedProgram {
        votes.retain(|&bias, _| bias == 0);
    }
    let mut biases = Vec::new();
    for candidates in &candidates {
        let code = candidates
            .iter()
            .filter(|&&(bias, code)| code && votes.contains_key(&bias));
        biases.extend(
            code.max_by_key(|(bias, _)| votes[bias])
                .map(|&(bias, _)| bias),
        );
    }
    biases.sort_unstable();
    biases.dedup();
    let by_entry = entry.map(|entry| entry.wrapping_sub(file.entry()));
    if biases.is_empty() {
        // The program has moved its code to other pages (huge pages, for example).
        biases.extend(by_entry.filter(|bias| votes.contains_key(bias)));
    }
    // The program itself comes before further copies of its file.
    biases.sort_by_key(|&bias| Some(bias) != by_entry);
    biases
        .into_iter()
        .map(|bias| {
            let belongs = |at: &usize| candidates[*at].iter().any(|&(other, _)| other == bias);
            let mappings = (0..mappings.len())
                .filter(belongs)
                .map(|at| mappings[at].clone());
            (bias, mappings.collect())
        })
        .collect()
}

/// Returns the bias if `mapping` may be a part of `segment`, and whether it is code.
fn candidate(segment: &Segment, mapping: &Mapping) -> Option<(u64, bool)> {
    let page = segment.page_address_of(mapping.offset)?;
    let code = mapping.perms.execute && segment.perms.execute;
    Some((mapping.start.wrapping_sub(page), code))
}
