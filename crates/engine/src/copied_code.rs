//! Copies of probed functions in executable memory without a file.
//!
//! A program that copies its code to other memory, and executes it there, does not reach probes in the file's
//! mapping. Code that a file is mapped for once more is probed as well; nothing leads from a copy in memory to
//! its file, except that its bytes are the same.

use capriole_planner::resolve::Site;
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use std::collections::BTreeMap;

/// Sizes of the code that is compared: less may be the same by chance.
const LEAST: usize = 24;
const MOST: usize = 256;
/// Most functions that are searched for.
const FUNCTIONS: usize = 64;
/// Most bytes of memory that are searched, and bytes of one part of it.
const MEMORY: u64 = 64 << 20;
const PART: usize = 1 << 20;

/// Returns the addresses of a copy of each function in executable memory without a file, by the indices of the
/// functions' sites. Functions of less than 24 bytes, those after the first 64, and memory after the first 64 MiB
/// are left out.
#[must_use]
pub fn copies(process: &Process, sites: &[&Site]) -> BTreeMap<usize, u64> {
    let codes = sites.iter().enumerate();
    let codes = codes.filter_map(|(index, site)| Some((index, code(site)?)));
    let codes: Vec<(usize, Vec<u8>)> = codes.take(FUNCTIONS).collect();
    let mut found = BTreeMap::new();
    if codes.is_empty() {
        return found;
    }
    let maps = process.maps().unwrap_or_default();
    let is_memory = |mapping: &&Mapping| !mapping.is_file() && mapping.perms.execute;
    let mut left = MEMORY;
    for mapping in maps.iter().filter(is_memory) {
        let end = mapping.end.min(mapping.start.saturating_add(left));
        left -= end - mapping.start;
        for start in (mapping.start..end).step_by(PART) {
            let size = (end - start).min((PART + MOST) as u64);
            let mut bytes = vec![0; size as usize];
            let read = process.read_memory(start, &mut bytes).unwrap_or(0);
            for (index, code) in &codes {
                let at = memchr::memmem::find(&bytes[..read], code);
                let address = at.map(|at| start + at as u64);
                // A program may move its code and leave the file's mapping.
                let address = address.filter(|address| *address != sites[*index].extent.start);
                if let Some(address) = address {
                    found.entry(*index).or_insert(address);
                }
            }
        }
    }
    found
}

/// Returns the first bytes of the function around a site, as in the file.
fn code(site: &Site) -> Option<Vec<u8>> {
    let all = site.object.code().ok()?;
    let bytes = all.code_at(site.extent.start)?.get(site.extent)?;
    (bytes.len() >= LEAST).then(|| bytes[..bytes.len().min(MOST)].to_vec())
}
