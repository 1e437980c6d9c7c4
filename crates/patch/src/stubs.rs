//! Pages of stubs: many addresses, few pages of memory.
//!
//! A stub's address is determined by the program's bytes at the site, so there may be thousands of
//! pages with one stub each. Stubs of different pages that do not overlap within the page share one
//! page of a file, which is mapped at each of those addresses ("physical page grouping" in Duck et
//! al., PLDI 2020):
//!
//! ```text
//! address 0x7f12_3456_7000   ······[stub A]················
//! address 0x7f12_9abc_d000   ···············[stub B]·······
//! file page 0                ······[stub A]·[stub B]·······   mapped twice
//! ```
//!
//! The pages are those of one memfd, which is sealed and mapped privately at all those
//! addresses, by code in the target that makes one `mmap` call after the other. At most half of
//! the mappings that the process has left are used. A stub more than 1 GiB from its site
//! contains the detour's full address.

use capriole_ledger::change::INT3;
use capriole_proc::maps::PAGE_SIZE;
use std::collections::BTreeMap;

/// Number of file pages searched for room before a new one is added.
const OPEN: usize = 64;
const SIZE: usize = PAGE_SIZE as usize;

/// A piece of the file and its mapping address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Address in the target, a multiple of the page size.
    pub address: u64,
    /// Size in bytes, a multiple of the page size.
    pub len: u64,
    /// Offset in the file.
    pub offset: u64,
}

/// A file of stubs and the mappings of its pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stubs {
    /// Contents of the file: whole pages, breakpoints between the stubs.
    pub bytes: Vec<u8>,
    /// The mappings, by address.
    pub rows: Vec<Row>,
}

struct Page {
    bytes: Vec<u8>,
    used: Vec<bool>,
}

impl Page {
    fn has_room(&self, pieces: &[(usize, &[u8])]) -> bool {
        pieces
            .iter()
            .all(|(at, bytes)| !self.used[*at..at + bytes.len()].contains(&true))
    }

    fn put(&mut self, pieces: &[(usize, &[u8])]) {
        for (at, bytes) in pieces {
            self.bytes[*at..at + bytes.len()].copy_from_slice(bytes);
            self.used[*at..at + bytes.len()].fill(true);
        }
    }
}

impl Stubs {
    /// Packs stubs, given as addresses and bytes that do not overlap, into pages by first fit.
    pub fn of(stubs: &[(u64, Vec<u8>)]) -> Stubs {
        let mut pieces: BTreeMap<u64, Vec<(usize, &[u8])>> = BTreeMap::new();
        for (address, bytes) in stubs {
            let at = (address % PAGE_SIZE) as usize;
            let first = bytes.len().min(SIZE - at);
            let page = address / PAGE_SIZE;
            pieces.entry(page).or_default().push((at, &bytes[..first]));
            if first < bytes.len() {
                pieces
                    .entry(page + 1)
                    .or_default()
                    .push((0, &bytes[first..]));
            }
        }
        let mut pages: Vec<Page> = Vec::new();
        let mut rows: Vec<Row> = Vec::new();
        for (number, pieces) in pieces {
            let open = pages.len().saturating_sub(OPEN);
            let found = pages[open..].iter().position(|page| page.has_room(&pieces));
            let index = found.map_or(pages.len(), |index| open + index);
            if index == pages.len() {
                pages.push(Page {
                    bytes: vec![INT3; SIZE],
                    used: vec![false; SIZE],
                });
            }
            pages[index].put(&pieces);
            let (address, offset) = (number * PAGE_SIZE, index as u64 * PAGE_SIZE);
            match rows.last_mut() {
                Some(row) if row.address + row.len == address && row.offset + row.len == offset => {
                    row.len += PAGE_SIZE;
                }
                _ => rows.push(Row {
                    address,
                    len: PAGE_SIZE,
                    offset,
                }),
            }
        }
        Stubs {
            bytes: pages.into_iter().flat_map(|page| page.bytes).collect(),
            rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes at an address as they are once all rows are mapped.
    fn read(stubs: &Stubs, address: u64, len: usize) -> Vec<u8> {
        (address..address + len as u64)
            .map(|at| {
                let row = stubs
                    .rows
                    .iter()
                    .find(|row| (row.address..row.address + row.len).contains(&at))
                    .expect("mapped");
                stubs.bytes[(row.offset + at - row.address) as usize]
            })
            .collect()
    }

    #[test]
    fn stubs_that_do_not_overlap_share_a_page() {
        let wanted: Vec<(u64, Vec<u8>)> = (0..200u64)
            .map(|i| (0x7000_0000_0000 + i * 0x12_3457, vec![i as u8; 5]))
            .collect();
        let stubs = Stubs::of(&wanted);
        assert!(stubs.rows.len() >= 190, "{}", stubs.rows.len());
        assert!(stubs.bytes.len() <= 3 * SIZE, "{}", stubs.bytes.len());
        for (address, bytes) in &wanted {
            assert_eq!(read(&stubs, *address, 5), *bytes);
        }
    }

    #[test]
    fn a_stub_over_a_page_boundary_is_whole() {
        let wanted = [
            (0x10_0ffd, vec![1, 2, 3, 4, 5]),
            (0x20_0ffe, vec![6, 7, 8, 9, 10]),
            (0x20_1002 + 1, vec![11; 15]),
        ];
        let stubs = Stubs::of(&wanted);
        for (address, bytes) in &wanted {
            assert_eq!(read(&stubs, *address, bytes.len()), *bytes);
        }
        assert_eq!(read(&stubs, 0x10_1002, 1), [INT3]);
    }
}
