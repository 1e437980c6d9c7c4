//! Load bias of an object: the difference between run-time and link addresses.

use std::collections::BTreeMap;

use super::{ObjectFile, ObjectKind, Segment};
use capriole_proc::maps::Mapping;

/// Copy of a file in memory.
pub(super) struct Instance {
    pub bias: u64,
    pub mappings: Vec<Mapping>,
    /// True if each segment of the file is mapped.
    pub is_whole: bool,
}

/// Finds the copies of a file in memory from its mappings, the program itself or a whole copy first.
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
/// which most mappings agree is right. Every bias with some code counts: a program may map its code
/// once more, as V8 does.
pub(super) fn instances(
    file: &ObjectFile,
    mappings: &[Mapping],
    entry: Option<u64>,
) -> Vec<Instance> {
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
    if file.kind() == ObjectKind::FixedProgram
        && let Some(own) = votes.get_mut(&0)
    {
        *own = usize::MAX;
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
    if let Some(own) = by_entry
        && votes.contains_key(&own)
        && !biases.contains(&own)
    {
        // The program has moved its code to other pages (huge pages, for example).
        biases.push(own);
    }
    let instance = |bias| {
        let belongs = |at: &usize| candidates[*at].iter().any(|&(other, _)| other == bias);
        let own = (0..mappings.len()).filter(belongs);
        let mappings: Vec<Mapping> = own.map(|at| mappings[at].clone()).collect();
        let is_mapped = |segment: &Segment| {
            let start = segment.page_address().wrapping_add(bias);
            segment.file_size == 0 || mappings.iter().any(|mapping| mapping.contains(start))
        };
        Instance {
            bias,
            is_whole: file.segments().iter().all(is_mapped),
            mappings,
        }
    };
    let mut instances: Vec<Instance> = biases.into_iter().map(instance).collect();
    instances.sort_by_key(|instance| (Some(instance.bias) != by_entry, !instance.is_whole));
    instances
}

/// Returns the bias if `mapping` may be a part of `segment`, and whether it is code.
fn candidate(segment: &Segment, mapping: &Mapping) -> Option<(u64, bool)> {
    let page = segment.page_address_of(mapping.offset)?;
    let code = mapping.perms.execute && segment.perms.execute;
    Some((mapping.start.wrapping_sub(page), code))
}
