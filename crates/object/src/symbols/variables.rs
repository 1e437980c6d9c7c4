//! Variables by address.

use std::collections::BTreeMap;

use super::display;
use super::read::Table;

/// The variables of an object that have names: link address, to size in bytes and linkage name.
#[derive(Debug, Default)]
pub(crate) struct Variables(BTreeMap<u64, (u64, String)>);

impl Variables {
    /// Selects the variables from symbol tables. Of several at one address the largest counts, and of those
    /// the first name. What is damaged has none.
    pub fn of(tables: &[Table]) -> Variables {
        let mut all: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        for (address, size, name) in tables.iter().flat_map(Table::variables) {
            match all.get(&address) {
                Some((known, _)) if *known >= size => {}
                _ => drop(all.insert(address, (size, name.to_owned()))),
            }
        }
        Variables(all)
    }

    /// Returns the variable that contains a link address: its name, demangled, and the offset in it.
    pub fn at(&self, address: u64) -> Option<(String, u64)> {
        let (start, (size, name)) = self.0.range(..=address).next_back()?;
        let offset = address - start;
        (offset < *size).then(|| (display(name).into_owned(), offset))
    }
}
