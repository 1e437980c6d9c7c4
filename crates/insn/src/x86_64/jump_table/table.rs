//! Reading the entries of a table.

use super::Resolver;
use super::bound::Bound;

/// Maximum number of entries of a table.
pub const MAX_ENTRIES: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// 32 bits, added to the table's address.
    Offset,
    /// A 64-bit address.
    Address,
}

/// Result of reading a possible table.
enum Read {
    /// The targets, and how many of them are certain.
    Table(Vec<u64>, usize),
    /// Not a table.
    None,
    /// Possibly a table, but its end is unknown.
    Doubtful,
}

impl Resolver<'_> {
    /// Reads the tables at `candidates`. A single candidate must be a table; of several, all that
    /// may be tables are used.
    pub(super) fn read_tables(
        &self,
        candidates: &[u64],
        entry: Entry,
        bound: Bound,
    ) -> Option<(Vec<u64>, usize)> {
        let mut targets = Vec::new();
        let mut certain = 0;
        let mut found = false;
        for &candidate in candidates {
            match self.read_table(candidate, entry, bound) {
                Read::Table(mut more, sure) => {
                    if candidates.len() == 1 {
                        certain = sure;
                    }
                    found = true;
                    targets.append(&mut more);
                }
                Read::None => {}
                Read::Doubtful => return None,
            }
        }
        found.then_some((targets, certain))
    }

    fn read_table(&self, table: u64, entry: Entry, bound: Bound) -> Read {
        let (exact, limit) = match bound {
            Bound::Exactly(count) => (true, count),
            Bound::AtMost(count) => (false, count),
            Bound::Unknown => (false, usize::MAX),
        };
        let text = self.code.extent();
        let mut targets = Vec::new();
        for i in 0..limit {
            if i == MAX_ENTRIES {
                return Read::Doubtful;
            }
            let target = self.read_entry(table, entry, i);
            match target {
                Some(target) if self.extent.contains(target) => targets.push(target),
                // Into a part of the function that was split off.
                Some(target) if exact && text.contains(target) => targets.push(target),
                _ if exact || i == 0 => return Read::None,
                Some(target) if text.contains(target) => return Read::Doubtful,
                _ => break,
            }
        }
        let certain = if exact { targets.len() } else { 0 };
        Read::Table(targets, certain)
    }

    /// Returns the target of entry number `index`.
    fn read_entry(&self, table: u64, entry: Entry, index: usize) -> Option<u64> {
        let size = match entry {
            Entry::Offset => 4,
            Entry::Address => 8,
        };
        let bytes = (self.hints.read)(table.wrapping_add((index * size) as u64), size)?;
        match entry {
            Entry::Offset => {
                let offset = i32::from_le_bytes(*bytes.first_chunk()?);
                Some(table.wrapping_add_signed(i64::from(offset)))
            }
            Entry::Address => Some(u64::from_le_bytes(*bytes.first_chunk()?)),
        }
    }
}
